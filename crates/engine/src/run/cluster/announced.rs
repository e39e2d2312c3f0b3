//! Which units of a bundle the coordinator takes for being read: if the worker ends, these are suspects.
//!
//! A unit has to be announced before it is read, and most units take less time than a message. So a message announces
//! small ones that follow, too.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// How often the coordinator hears which units are not being read any more.
const TOLD: Duration = Duration::from_millis(50);

/// So many units and stored bytes are announced ahead at most. If the worker ends, each is read by itself, as one that
/// was being read is.
const AHEAD: (usize, u64) = (16, 1 << 20);

/// The units of a bundle.
#[derive(Debug)]
pub(super) struct Announced {
    /// The positions of the units in the bundle, by their sources and URIs.
    positions: HashMap<(String, String), usize>,
    units: Vec<Unit>,
    now: BTreeSet<usize>,
    told: Option<Instant>,
}

#[derive(Debug)]
struct Unit {
    /// How many bytes are stored, if that is known.
    bytes: Option<u64>,
    /// The position of the one that its source reads next.
    next: Option<usize>,
    has_begun: bool,
}

impl Announced {
    /// Those of a bundle in order: the source, the URI, and how many bytes are stored, if that is known.
    pub fn new(bundle: impl IntoIterator<Item = (String, String, Option<u64>)>) -> Self {
        let (mut positions, mut last, mut units) = (HashMap::new(), HashMap::new(), Vec::<Unit>::new());
        for (position, (source, uri, bytes)) in bundle.into_iter().enumerate() {
            if let Some(before) = last.insert(source.clone(), position) {
                units[before].next = Some(position);
            }
            positions.insert((source, uri), position);
            units.push(Unit { bytes, next: None, has_begun: false });
        }
        Announced { positions, units, now: BTreeSet::new(), told: None }
    }

    /// A unit of `source` begins, or is at its end. The positions of all that are announced, if the coordinator has to
    /// hear of it `now`.
    pub fn change(&mut self, source: &str, uri: &str, begins: bool, now: Instant) -> Option<Vec<usize>> {
        let position = *self.positions.get(&(source.to_owned(), uri.to_owned()))?;
        let is_news = begins && !self.now.contains(&position);
        match begins {
            true => self.units[position].has_begun = true,
            false => drop(self.now.remove(&position)),
        }
        if is_news {
            self.announce_from(position);
        }
        if is_news || self.told.is_none_or(|told| now.saturating_duration_since(told) >= TOLD) {
            self.told = Some(now);
            return Some(self.now.iter().copied().collect());
        }
        None
    }

    /// Announces the unit at `first`, and small ones that its source reads after it.
    fn announce_from(&mut self, first: usize) {
        self.now.insert(first);
        let (mut units, mut bytes) = AHEAD;
        let mut next = self.units[first].next;
        while let Some(position) = next {
            let unit = &self.units[position];
            let left = unit.bytes.and_then(|stored| bytes.checked_sub(stored));
            let Some(left) = left.filter(|_| units > 0 && !unit.has_begun) else { break };
            (units, bytes, next) = (units - 1, left, unit.next);
            self.now.insert(position);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(units: &[(&str, Option<u64>)]) -> Announced {
        let unit = |(number, (source, bytes)): (usize, &(&str, Option<u64>))| {
            ((*source).to_owned(), format!("{number}"), *bytes)
        };
        Announced::new(units.iter().enumerate().map(unit))
    }

    #[test]
    fn small_units_are_announced_with_the_one_before() {
        let now = Instant::now();
        let mut units = bundle(&[("a", Some(10)), ("b", Some(10)), ("a", Some(20)), ("a", Some(AHEAD.1)), ("a", None)]);
        assert_eq!(units.change("a", "0", true, now), Some(vec![0, 2]), "those of its source");
        assert_eq!(units.change("a", "2", true, now), None, "it is announced");
        assert_eq!(units.change("b", "1", true, now), Some(vec![0, 1, 2]));
        assert_eq!(units.change("a", "0", false, now), None, "that can wait");
        assert_eq!(units.change("a", "3", true, now), Some(vec![1, 2, 3]), "nobody knows how large the next one is");
        assert_eq!(units.change("a", "2", false, now + TOLD), Some(vec![1, 3]));
        assert_eq!(units.change("a", "4", true, now + TOLD), Some(vec![1, 3, 4]));
        assert_eq!(units.change("c", "4", true, now), None, "it is in no bundle");
    }

    #[test]
    fn each_unit_is_announced_when_it_begins_and_not_when_it_has_ended() {
        let (now, count) = (Instant::now(), 100);
        let mut units = bundle(&vec![("a", Some(1)); count]);
        let (mut announced, mut messages) = (Vec::new(), 0);
        for number in 0..count {
            if let Some(told) = units.change("a", &number.to_string(), true, now) {
                (announced, messages) = (told, messages + 1);
            }
            assert!(announced.contains(&number));
            assert!(announced.iter().all(|position| *position >= number), "{announced:?} at {number}");
            units.change("a", &number.to_string(), false, now);
        }
        assert_eq!(messages, count.div_ceil(AHEAD.0 + 1));
    }
}
