//! Which units of a bundle the coordinator believes are being read: if the worker ends, these are suspects.
//!
//! A unit has to be announced before it is read, and most units take less time than a message. So a message also
//! announces some small ones that are about to be read.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// The least time between two messages that announce nothing new.
const BETWEEN: Duration = Duration::from_millis(50);

/// How many units, and stored bytes of them, are announced at most before they begin. If the worker ends, each of them
/// is read by itself, like those that it was reading.
const MOST_AHEAD: (usize, u64) = (16, 1 << 20);

/// The units of a bundle, by their positions in it.
#[derive(Debug)]
pub(super) struct Announced {
    positions: HashMap<(String, String), usize>,
    units: Vec<Unit>,
    /// Those that are being read.
    reading: BTreeSet<usize>,
    /// Those that have not begun.
    ahead: BTreeSet<usize>,
    /// Stored bytes of these.
    ahead_bytes: u64,
    last: Option<Instant>,
}

#[derive(Debug)]
struct Unit {
    /// How many bytes are stored, if that is known.
    bytes: Option<u64>,
    /// The one that its source reads next.
    next: Option<usize>,
    /// Whether it has begun, or is passed over.
    has_begun: bool,
}

impl Announced {
    /// Those of a bundle: of each the source, the URI, and how many bytes are stored, if that is known.
    pub fn new(bundle: impl IntoIterator<Item = (String, String, Option<u64>)>) -> Self {
        let (mut positions, mut units) = (HashMap::new(), Vec::<Unit>::new());
        let mut sources: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (position, (source, uri, bytes)) in bundle.into_iter().enumerate() {
            sources.entry(source.clone()).or_default().push(position);
            positions.insert((source, uri), position);
            units.push(Unit { bytes, next: None, has_begun: false });
        }
        for mut of_source in sources.into_values() {
            // As a queue of units hands them out.
            of_source.sort_by_key(|position| Reverse(units[*position].bytes.unwrap_or(0)));
            for pair in of_source.windows(2) {
                units[pair[0]].next = Some(pair[1]);
            }
        }
        Announced { positions, units, reading: BTreeSet::new(), ahead: BTreeSet::new(), ahead_bytes: 0, last: None }
    }

    /// A unit of `source` begins, `now`. What is to be announced, if it was not.
    pub fn begins(&mut self, source: &str, uri: &str, now: Instant) -> Option<Vec<usize>> {
        let position = self.position(source, uri)?;
        let was_announced = self.take_ahead(position);
        self.reading.insert(position);
        if was_announced {
            return None;
        }
        self.look_ahead(position);
        Some(self.all(now))
    }

    /// A unit of `source` is at its end, or is passed over. What is announced from `now` on, if it is time to say so.
    pub fn ends(&mut self, source: &str, uri: &str, now: Instant) -> Option<Vec<usize>> {
        let position = self.position(source, uri)?;
        let was_announced = self.take_ahead(position) | self.reading.remove(&position);
        let is_time = self.last.is_none_or(|last| now.saturating_duration_since(last) >= BETWEEN);
        (was_announced && is_time).then(|| self.all(now))
    }

    fn position(&self, source: &str, uri: &str) -> Option<usize> {
        self.positions.get(&(source.to_owned(), uri.to_owned())).copied()
    }

    /// The unit has begun, or is passed over. Whether it was announced before.
    fn take_ahead(&mut self, position: usize) -> bool {
        let unit = &mut self.units[position];
        unit.has_begun = true;
        let was_announced = self.ahead.remove(&position);
        self.ahead_bytes -= unit.bytes.filter(|_| was_announced).unwrap_or(0);
        was_announced
    }

    /// Announces what its source reads after the unit at `position`, as much as may be.
    fn look_ahead(&mut self, position: usize) {
        let mut next = self.units[position].next;
        while let Some(position) = next {
            let Unit { bytes, next: after, has_begun } = &self.units[position];
            // One of unknown size may be large.
            let sum = self.ahead_bytes + bytes.unwrap_or(u64::MAX / 2);
            if *has_begun || self.ahead.len() == MOST_AHEAD.0 || sum > MOST_AHEAD.1 {
                return;
            }
            if self.ahead.insert(position) {
                self.ahead_bytes = sum;
            }
            next = *after;
        }
    }

    fn all(&mut self, now: Instant) -> Vec<usize> {
        self.last = Some(now);
        self.reading.union(&self.ahead).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(units: &[(&str, Option<u64>)]) -> Announced {
        let unit = |(number, (source, bytes)): (usize, &(&str, Option<u64>))| {
            ((*source).to_owned(), number.to_string(), *bytes)
        };
        Announced::new(units.iter().enumerate().map(unit))
    }

    #[test]
    fn small_units_are_announced_with_the_one_before() {
        let now = Instant::now();
        let units = [("a", Some(MOST_AHEAD.1)), ("b", Some(10)), ("a", Some(20)), ("a", Some(30)), ("a", None)];
        let mut units = bundle(&units);
        assert_eq!(units.begins("a", "0", now), Some(vec![0, 2, 3]), "small ones of its source");
        assert_eq!(units.begins("a", "3", now), None, "it is announced");
        assert_eq!(units.begins("b", "1", now), Some(vec![0, 1, 2, 3]));
        assert_eq!(units.ends("a", "0", now), None, "that can wait");
        assert_eq!(units.ends("a", "2", now + BETWEEN), Some(vec![1, 3]), "it is passed over");
        assert_eq!(units.begins("a", "4", now), Some(vec![1, 3, 4]));
        assert_eq!(units.begins("c", "4", now), None, "it is in no bundle");
    }

    #[test]
    fn each_unit_is_announced_before_it_is_read_and_few_are_too_early() {
        for bytes in [|_: u64| 1, |number: u64| 1 + number * 7_919 % 1_000, |number: u64| number * 7_919 % 200_000] {
            let (now, count, open) = (Instant::now(), 1_000_u64, 32);
            let mut units = bundle(&(0..count).map(|number| ("a", Some(bytes(number)))).collect::<Vec<_>>());
            let mut order: Vec<u64> = (0..count).collect();
            order.sort_by_key(|number| Reverse(bytes(*number)));
            let (mut announced, mut messages) = (Vec::new(), 0);
            for (index, number) in order.iter().enumerate() {
                if let Some(positions) = units.begins("a", &number.to_string(), now) {
                    (announced, messages) = (positions, messages + 1);
                }
                assert!(announced.contains(&(*number as usize)), "{number}");
                assert!(units.reading.len() + units.ahead.len() <= open + MOST_AHEAD.0);
                let sum: u64 = units.ahead.iter().map(|position| bytes(*position as u64)).sum();
                assert!(sum == units.ahead_bytes && sum <= MOST_AHEAD.1, "{sum}");
                if index >= open - 1 {
                    units.ends("a", &order[index + 1 - open].to_string(), now);
                }
            }
            assert!(messages <= count as usize / 5, "{messages}");
        }
    }
}
