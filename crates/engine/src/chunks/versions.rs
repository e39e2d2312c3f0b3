//! Which group notes the version of a unit.
//!
//! The version has to be in the ledger with the first rows of its unit, or before them: a resumed run sees by it that
//! the unit has changed. So of the groups with rows of one unit a single one is delivered first, with the version, and
//! the others wait until it is written. If each of them noted the version, all but one would be refused by the ledger,
//! and would have to be computed and sent once more. The same holds for where staged rows stand in the order of
//! arrival.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_core::sink::Chunk;
use tokio::sync::Notify;

use super::arrival::Place;
use super::group::Group;
use super::units::UnitNotes;

/// The versions that are being noted.
#[derive(Debug, Default)]
pub(super) struct Versions {
    /// The units of groups that are being delivered with their versions, by the key of the unit; and their places.
    claimed: Mutex<HashSet<String>>,
    given_back: Notify,
}

/// Units whose versions a group notes, until it is dropped.
pub(super) struct Claimed<'a> {
    versions: &'a Versions,
    units: Vec<Arc<UnitNotes>>,
    places: Vec<Arc<Place>>,
}

impl Versions {
    fn claimed(&self) -> MutexGuard<'_, HashSet<String>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other group is about to note the version of a unit of `group`. Nothing is held meanwhile, so two
    /// groups cannot wait for each other.
    pub(super) async fn claim(&self, group: &Group) -> Claimed<'_> {
        loop {
            let given_back = self.given_back.notified();
            tokio::pin!(given_back);
            given_back.as_mut().enable();
            if let Some(claimed) = self.try_claim(group.units(), group.places()) {
                return claimed;
            }
            given_back.await;
        }
    }

    fn try_claim<'a>(
        &self,
        units: impl Iterator<Item = &'a Arc<UnitNotes>>,
        places: impl Iterator<Item = &'a Arc<Place>>,
    ) -> Option<Claimed<'_>> {
        let mut claimed = self.claimed();
        // One that is written while the lock is waited for has been given back before.
        let units: Vec<Arc<UnitNotes>> = units.filter(|unit| unit.version_note().is_some()).cloned().collect();
        let places: Vec<Arc<Place>> = places.filter(|place| place.note().is_some()).cloned().collect();
        let keys = keys(&units, &places);
        if keys.iter().any(|key| claimed.contains(*key)) {
            return None;
        }
        claimed.extend(keys.into_iter().map(str::to_owned));
        Some(Claimed { versions: self, units, places })
    }
}

/// What is claimed of these.
fn keys<'a>(units: &'a [Arc<UnitNotes>], places: &'a [Arc<Place>]) -> Vec<&'a str> {
    let units = units.iter().map(|unit| unit.key.as_str());
    units.chain(places.iter().map(|place| place.key())).collect()
}

impl Claimed<'_> {
    /// What the group notes.
    pub(super) fn notes(&self) -> impl Iterator<Item = Chunk> {
        let versions = self.units.iter().filter_map(|unit| unit.version_note());
        versions.chain(self.places.iter().filter_map(|place| place.note().cloned()))
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        let mut claimed = self.versions.claimed();
        for key in keys(&self.units, &self.places) {
            claimed.remove(key);
        }
        drop(claimed);
        self.versions.given_back.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use millstream_core::Unit;
    use millstream_core::sink::WrittenChunks;

    use super::super::arrival::Arrivals;
    use super::super::units::{Units, WhenChanged};
    use super::*;

    #[test]
    fn one_group_at_a_time_notes_a_version() {
        let units = Units::new("s", Arc::new(WrittenChunks::new([], str::to_owned)), WhenChanged::Fail);
        let [one, other] = ["a", "b"].map(|uri| {
            units.admit(&Unit::new(uri)).expect("listed once");
            let notes = units.notes(uri).expect("it is read");
            (0..2).for_each(|_| notes.join_group());
            notes
        });
        let versions = Versions::default();
        let first = versions.try_claim([&one].into_iter(), iter::empty()).expect("nobody has claimed it");
        assert_eq!(first.notes().count(), 1);
        assert!(versions.try_claim([&other, &one].into_iter(), iter::empty()).is_none(), "one of them is claimed");
        let beside = versions.try_claim([&other].into_iter(), iter::empty()).expect("what waits holds nothing");
        drop(beside);
        // A group that fails gives back what it has claimed.
        drop(first);
        let again = versions.try_claim([&one, &other].into_iter(), iter::empty()).expect("both are given back");
        assert_eq!(again.notes().count(), 2);
        for unit in [&one, &other] {
            assert_eq!(unit.group_written(false), None);
        }
        drop(again);
        let last = versions.try_claim([&one, &other].into_iter(), iter::empty()).expect("both are written");
        assert_eq!(last.notes().count(), 0);
    }

    #[test]
    fn one_group_at_a_time_notes_where_rows_stand() {
        let arrivals = Arrivals::new(0, Arc::new(WrittenChunks::new([], str::to_owned)));
        let place = arrivals.place_of("a", 0);
        let versions = Versions::default();
        let first = versions.try_claim(iter::empty(), [&place].into_iter()).expect("nobody has claimed it");
        assert_eq!(first.notes().count(), 1);
        assert!(versions.try_claim(iter::empty(), [&place].into_iter()).is_none());
        place.noted();
        drop(first);
        let second = versions.try_claim(iter::empty(), [&place].into_iter()).expect("it is written");
        assert_eq!(second.notes().count(), 0);
    }
}
