//! Sets of entries' ids as ranges, and how they are written into a position.
//!
//! An answer to a read has consecutive entries of the stream, all handed out to one consumer, so its first and last id
//! say all of it, however many there are.

use std::fmt;
use std::str::FromStr;

use super::reply::EntryId;

impl EntryId {
    /// The id behind this one.
    pub(super) fn next(self) -> Self {
        match self.sequence.checked_add(1) {
            Some(sequence) => EntryId { sequence, ..self },
            None => EntryId { milliseconds: self.milliseconds.saturating_add(1), sequence: 0 },
        }
    }

    /// The id before this one.
    fn previous(self) -> Self {
        match self.sequence.checked_sub(1) {
            Some(sequence) => EntryId { sequence, ..self },
            None => EntryId { milliseconds: self.milliseconds.saturating_sub(1), sequence: u64::MAX },
        }
    }
}

/// Ids from a first to a last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: EntryId,
    pub(super) last: EntryId,
}

/// A set of ids: ranges in their order, which neither overlap nor touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ranges(Vec<Range>);

impl Ranges {
    /// One range; none if the last id is before the first.
    pub(super) fn of(first: EntryId, last: EntryId) -> Self {
        Ranges(if first <= last { vec![Range { first, last }] } else { Vec::new() })
    }

    /// The ranges in their order.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = Range> {
        self.0.iter().copied()
    }

    /// Whether an id is among them.
    pub(super) fn contains(&self, id: EntryId) -> bool {
        let at = self.0.partition_point(|range| range.last < id);
        self.0.get(at).is_some_and(|range| range.first <= id)
    }

    /// Adds the ids of another set.
    pub(super) fn add(&mut self, other: &Ranges) {
        match (self.0.last_mut(), other.0.first()) {
            (_, None) => {}
            // Entries come in order, so most of what is added is behind the rest.
            (Some(last), Some(first)) if last.last < first.first => {
                let touches = last.last.next() == first.first;
                if touches {
                    last.last = first.last;
                }
                self.0.extend(&other.0[usize::from(touches)..]);
            }
            (None, Some(_)) => self.0.clone_from(&other.0),
            _ => self.merge(other),
        }
    }

    fn merge(&mut self, other: &Ranges) {
        let mut all: Vec<Range> = self.0.iter().chain(&other.0).copied().collect();
        all.sort_unstable_by_key(|range| range.first);
        self.0.clear();
        for range in all {
            match self.0.last_mut() {
                Some(last) if range.first <= last.last.next() => last.last = last.last.max(range.last),
                _ => self.0.push(range),
            }
        }
    }

    /// Removes the ids of another set.
    pub(super) fn remove(&mut self, other: &Ranges) {
        let mut kept = Vec::with_capacity(self.0.len());
        let mut at = 0;
        for range in &self.0 {
            let mut first = Some(range.first);
            while other.0.get(at).is_some_and(|cut| cut.last < range.first) {
                at += 1;
            }
            for cut in other.0[at..].iter().take_while(|cut| cut.first <= range.last) {
                if let Some(first) = first.filter(|first| *first < cut.first) {
                    kept.push(Range { first, last: cut.first.previous() });
                }
                first = if cut.last < range.last { Some(cut.last.next()) } else { None };
            }
            kept.extend(first.map(|first| Range { first, last: range.last }));
        }
        self.0 = kept;
    }

    /// The largest id.
    pub(super) fn highest(&self) -> Option<EntryId> {
        self.0.last().map(|range| range.last)
    }
}

/// `5.0:2.7,1.3`: from 5-0 to 7-7, and 8-3. Milliseconds are counted from those before.
impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = 0;
        for (number, Range { first, last }) in self.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(f, "{comma}{}.{}", first.milliseconds - before, first.sequence)?;
            if last != first {
                write!(f, ":{}.{}", last.milliseconds - first.milliseconds, last.sequence)?;
            }
            before = last.milliseconds;
        }
        Ok(())
    }
}

impl FromStr for Ranges {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut ranges = Ranges::default();
        let mut before = 0;
        for item in text.split(',').filter(|item| !item.is_empty()) {
            let (first, last) = item.split_once(':').map_or((item, None), |(first, last)| (first, Some(last)));
            let first = id_behind(before, first)?;
            let last = last.map_or(Ok(first), |last| id_behind(first.milliseconds, last))?;
            if last < first || ranges.highest().is_some_and(|highest| first <= highest) {
                return Err(());
            }
            before = last.milliseconds;
            ranges.0.push(Range { first, last });
        }
        Ok(ranges)
    }
}

fn id_behind(milliseconds: u64, text: &str) -> Result<EntryId, ()> {
    let (more, sequence) = text.split_once('.').ok_or(())?;
    let more: u64 = more.parse().map_err(|_| ())?;
    let milliseconds = milliseconds.checked_add(more).ok_or(())?;
    Ok(EntryId { milliseconds, sequence: sequence.parse().map_err(|_| ())? })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Ids of a small world: three sequences a millisecond, of which the last is the largest there is.
    fn id(number: u64) -> EntryId {
        EntryId { milliseconds: number / 3, sequence: [0, 1, u64::MAX][(number % 3) as usize] }
    }

    fn world() -> impl Iterator<Item = EntryId> {
        (0..60).map(id)
    }

    fn set(ranges: &Ranges) -> BTreeSet<EntryId> {
        world().filter(|id| ranges.contains(*id)).collect()
    }

    fn some_ranges() -> impl Strategy<Value = Ranges> {
        proptest::collection::vec((0..60_u64, 0..6_u64), 0..8).prop_map(|pairs| {
            let mut ranges = Ranges::default();
            for (first, length) in pairs {
                ranges.add(&Ranges::of(id(first), id((first + length).min(59))));
            }
            ranges
        })
    }

    proptest! {
        #[test]
        fn they_are_sets(a in some_ranges(), b in some_ranges()) {
            let (mut sum, mut rest) = (a.clone(), a.clone());
            sum.add(&b);
            rest.remove(&b);
            prop_assert_eq!(set(&sum), &set(&a) | &set(&b));
            prop_assert_eq!(set(&rest), &set(&a) - &set(&b));
            prop_assert!(sum.0.windows(2).all(|pair| pair[0].last.next() < pair[1].first), "{sum:?}");
            prop_assert!(rest.0.windows(2).all(|pair| pair[0].last < pair[1].first), "{rest:?}");
            prop_assert!(rest.iter().all(|range| range.first <= range.last), "{rest:?}");
            prop_assert_eq!(sum.to_string().parse(), Ok(sum));
        }

        #[test]
        fn no_text_makes_them_panic(text in "[0-9.:,]{0,30}") {
            let _ = text.parse::<Ranges>();
        }
    }

    #[test]
    fn what_follows_makes_one_range() {
        let mut ranges = Ranges::of(id(3), id(4));
        ranges.add(&Ranges::of(id(4).next(), id(9)));
        assert_eq!(ranges, Ranges::of(id(3), id(9)));
        ranges.remove(&Ranges::of(id(5), id(5)));
        assert_eq!((ranges.iter().len(), ranges.contains(id(5)), ranges.contains(id(6))), (2, false, true));
    }

    #[test]
    fn they_are_written_short() {
        let at = |milliseconds, sequence| EntryId { milliseconds, sequence };
        let mut ranges = Ranges::of(at(1_700_000_000_000, 0), at(1_700_000_000_002, 7));
        ranges.add(&Ranges::of(at(1_700_000_000_003, 3), at(1_700_000_000_003, 3)));
        assert_eq!(ranges.to_string(), "1700000000000.0:2.7,1.3");
        assert_eq!(Ranges::default().to_string().parse(), Ok(Ranges::default()));
        for bad in ["1", "1.2:", "5.0:0.0,0.0", "1.2,x.0", "18446744073709551615.0,1.0", "3.5:0.4"] {
            assert_eq!(bad.parse::<Ranges>(), Err(()), "{bad}");
        }
    }
}
