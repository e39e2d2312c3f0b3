//! Which group notes the version of a unit.
//!
//! The version has to be in the ledger with the first rows of its unit, or before them: a resumed run sees by it that
//! the unit has changed. So of the groups with rows of one unit a single one is delivered first, with the version, and
//! the others wait until it is written. If each of them noted the version, all but one would be refused by the ledger,
//! and would have to be computed and sent once more.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_core::sink::Chunk;
use tokio::sync::Notify;

use super::group::Group;
use super::units::UnitNotes;

/// The versions that are being noted.
#[derive(Debug, Default)]
pub(super) struct Versions {
    /// The units of groups that are being delivered with their versions, by the key of the unit.
    claimed: Mutex<HashSet<String>>,
    given_back: Notify,
}

/// Units whose versions a group notes, until it is dropped.
pub(super) struct Claimed<'a> {
    versions: &'a Versions,
    units: Vec<Arc<UnitNotes>>,
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
            if let Some(claimed) = self.try_claim(group.units()) {
                return claimed;
            }
            given_back.await;
        }
    }

    fn try_claim<'a>(&self, units: impl Iterator<Item = &'a Arc<UnitNotes>>) -> Option<Claimed<'_>> {
        let mut claimed = self.claimed();
        // One that is written while the lock is waited for has been given back before.
        let units: Vec<Arc<UnitNotes>> = units.filter(|unit| unit.version_note().is_some()).cloned().collect();
        if units.iter().any(|unit| claimed.contains(&unit.key)) {
            return None;
        }
        claimed.extend(units.iter().map(|unit| unit.key.clone()));
        Some(Claimed { versions: self, units })
    }
}

impl Claimed<'_> {
    /// What the group notes.
    pub(super) fn notes(&self) -> impl Iterator<Item = Chunk> {
        self.units.iter().filter_map(|unit| unit.version_note())
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        let mut claimed = self.versions.claimed();
        for unit in &self.units {
            claimed.remove(&unit.key);
        }
        drop(claimed);
        self.versions.given_back.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use millstream_core::Unit;
    use millstream_core::sink::WrittenChunks;

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
        let first = versions.try_claim([&one].into_iter()).expect("nobody has claimed it");
        assert_eq!(first.notes().count(), 1);
        assert!(versions.try_claim([&other, &one].into_iter()).is_none(), "one of them is claimed");
        let beside = versions.try_claim([&other].into_iter()).expect("what waits holds nothing");
        drop(beside);
        // A group that fails gives back what it has claimed.
        drop(first);
        let again = versions.try_claim([&one, &other].into_iter()).expect("both are given back");
        assert_eq!(again.notes().count(), 2);
        for unit in [&one, &other] {
            assert_eq!(unit.group_written(false), None);
        }
        drop(again);
        let last = versions.try_claim([&one, &other].into_iter()).expect("both are written");
        assert_eq!(last.notes().count(), 0);
    }
}
