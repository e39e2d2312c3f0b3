//! The units of a load: what they are called in the ledger, which of them are complete, and which have changed.
//!
//! For each unit the ledger notes, beside its chunks, the version that was read ([`VERSION`] and above) and, once all
//! of its chunks are written, [`COMPLETE`]. So a later run passes over complete units without opening them, and sees
//! when a unit is not any more what was loaded of it. Versions are what the listing tells: an etag or a time of change,
//! and the size. Where a place tells none of these, a change goes unseen.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_core::sink::{Chunk, WrittenChunks};
use millstream_core::{Error, Result, Unit};

use crate::member::MemberPlace;
use millstream_core::stable_hash::hash;

/// The number that notes that a unit is complete.
pub(super) const COMPLETE: u64 = (1 << 63) - 1;

/// Numbers from here on note the version of a unit; those below are its chunks.
const VERSION: u64 = 1 << 62;

/// All units of one source on their way into one sink.
pub struct Units {
    /// The name of the source.
    source: String,
    written: Arc<WrittenChunks>,
    /// Whether a unit that has changed is loaded as it is now, beside what was loaded of it before.
    accept_changed: bool,
    state: Mutex<State>,
}

/// What a load of all runs knows of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Nothing; what is noted once all of it is written.
    New([Chunk; 2]),
    /// Some of it is written.
    Begun,
    /// All of it is written.
    Complete,
    /// It is not any more what was written of it.
    Changed,
}

/// What the ledger says of a unit.
struct Known {
    /// What it is called in the ledger.
    key: String,
    version: u64,
    /// It has changed, and is not to be loaded as it is now.
    is_changed: bool,
    is_complete: bool,
    /// Its version is noted: some of it is written.
    is_noted: bool,
}

/// The error of a unit that cannot be told from itself.
pub fn listed_twice(uri: &str, source: &str) -> Error {
    Error::refused("a file is listed twice, so its rows would be loaded twice")
        .in_unit(uri, None)
        .in_step(source)
        .hint("change `read` so that it matches the file once")
}

#[derive(Default)]
struct State {
    /// Those that are being read, by their URI.
    reading: HashMap<String, Arc<UnitNotes>>,
    /// All URIs that were listed, as hashes.
    listed: HashSet<u64>,
    passed_over: u64,
    changed: Vec<String>,
}

/// A unit that is being read.
#[derive(Debug)]
pub struct UnitNotes {
    /// Its path or URL, with passwords left out.
    pub name: String,
    /// What it is called in the ledger.
    pub key: String,
    /// Notes its version; nothing if an earlier run has done that.
    version: Option<Chunk>,
    state: Mutex<UnitState>,
}

#[derive(Debug, Default)]
struct UnitState {
    /// Groups with rows of it that are not written.
    groups: usize,
    /// A group that notes its version is written.
    version_noted: bool,
    /// It has been read to its end.
    read: bool,
    /// Members that have begun.
    members: HashSet<MemberKey>,
}

type MemberKey = (Arc<str>, u32);

impl Units {
    /// Those of `source`, of which `written` is in the target.
    pub fn new(source: &str, written: Arc<WrittenChunks>, accept_changed: bool) -> Self {
        Units { source: source.to_owned(), written, accept_changed, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `unit`, which was listed, is to be read. A unit that is listed twice cannot be told from itself.
    pub fn admit(&self, unit: &Unit) -> Result<bool> {
        let mut state = self.lock();
        if !state.listed.insert(hash(&self.place(unit))) {
            return Err(listed_twice(&unit.uri, &self.source));
        }
        let Known { key, version, is_changed, is_complete, is_noted } = self.known(unit);
        if is_changed {
            state.changed.push(unit.name());
            return Ok(false);
        }
        if is_complete {
            state.passed_over += 1;
            return Ok(false);
        }
        let note = Chunk { unit: key.clone(), number: version };
        let notes = UnitNotes { name: unit.name(), key, version: (!is_noted).then_some(note), state: Mutex::default() };
        state.reading.insert(unit.uri.clone(), Arc::new(notes));
        Ok(true)
    }

    /// What the load knows of `unit`, if it is loaded as a whole.
    pub fn standing(&self, unit: &Unit) -> Standing {
        let Known { key, version, is_changed, is_complete, is_noted } = self.known(unit);
        match (is_changed, is_complete, is_noted) {
            (true, ..) => Standing::Changed,
            (_, true, _) => Standing::Complete,
            (_, _, true) => Standing::Begun,
            _ => Standing::New([Chunk { unit: key.clone(), number: version }, Chunk { unit: key, number: COMPLETE }]),
        }
    }

    fn place(&self, unit: &Unit) -> String {
        format!("{}\n{}", self.source, unit.name())
    }

    /// What the ledger says of `unit`.
    fn known(&self, unit: &Unit) -> Known {
        let (place, version) = (self.place(unit), version(unit));
        let known = self.written.of_unit(&place);
        let first_version = known.partition_point(|number| *number < VERSION);
        let versions: Vec<u64> = known[first_version..].iter().copied().filter(|number| *number != COMPLETE).collect();
        let differs = !versions.is_empty() && !versions.contains(&version);
        // What is loaded as another version has chunks of its own.
        let key = if differs { format!("{place}\n{version:x}") } else { place };
        let was_accepted = !self.written.of_unit(&key).is_empty();
        let is_complete = self.written.contains(&Chunk { unit: key.clone(), number: COMPLETE });
        let is_noted = self.written.contains(&Chunk { unit: key.clone(), number: version });
        Known { key, version, is_changed: differs && !was_accepted && !self.accept_changed, is_complete, is_noted }
    }

    /// A unit that is being read.
    pub fn notes(&self, uri: &str) -> Result<Arc<UnitNotes>> {
        let found = self.lock().reading.get(uri).cloned();
        found.ok_or_else(|| Error::internal("rows of a unit that was not listed").in_unit(uri, None))
    }

    /// A unit is complete, and nothing more will be asked of it.
    pub fn complete(&self, uri: &str) {
        self.lock().reading.remove(uri);
    }

    /// Whether this chunk is in the target.
    pub fn is_written(&self, chunk: &Chunk) -> bool {
        !self.written.is_empty() && self.written.contains(chunk)
    }

    /// How many units were complete before this run.
    pub fn passed_over(&self) -> u64 {
        self.lock().passed_over
    }

    /// The units that are not any more what was loaded of them.
    pub fn changed(&self) -> Vec<String> {
        self.lock().changed.clone()
    }
}

impl UnitNotes {
    fn lock(&self) -> MutexGuard<'_, UnitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The chunk of the record that begins at `byte` of `member`.
    pub fn chunk(&self, member: &MemberPlace, byte: u64, chunk_bytes: u64) -> Chunk {
        let unit = match &member.name {
            None => self.key.clone(),
            Some(name) => format!("{}\n{}\n{name}", self.key, member.earlier),
        };
        Chunk { unit, number: byte / chunk_bytes }
    }

    /// Rows of a member come that nothing came of before.
    pub fn begin_member(&self, member: &MemberPlace) -> Result<()> {
        let Some(name) = &member.name else { return Ok(()) };
        if self.lock().members.insert((Arc::clone(name), member.earlier)) {
            return Ok(());
        }
        Err(Error::data("the archive has two members of this name")
            .in_unit(&self.name, Some(name))
            .hint("rename one of them: Millstream cannot tell which one is already loaded"))
    }

    /// A group has its first rows of this unit.
    pub fn join_group(&self) {
        self.lock().groups += 1;
    }

    /// Two groups with rows of this unit have become one.
    pub fn merge_groups(&self) {
        self.lock().groups -= 1;
    }

    /// The unit has been read to its end. What a group notes that has all of it that is not written, if it is `own`; or
    /// what anybody may note if there is nothing left to write.
    pub fn end(&self, own: bool) -> Option<Chunk> {
        let mut state = self.lock();
        state.read = true;
        (state.groups == usize::from(own)).then(|| self.complete_note())
    }

    /// A group with rows of this unit is written. What there is to note now.
    pub fn group_written(&self, noted: bool) -> Option<Chunk> {
        let mut state = self.lock();
        state.groups -= 1;
        state.version_noted = true;
        (state.read && state.groups == 0 && !noted).then(|| self.complete_note())
    }

    /// What notes the version, unless that is written.
    pub fn version_note(&self) -> Option<Chunk> {
        let is_noted = self.lock().version_noted;
        self.version.clone().filter(|_| !is_noted)
    }

    /// The note that this unit is complete.
    pub fn complete_note(&self) -> Chunk {
        Chunk { unit: self.key.clone(), number: COMPLETE }
    }
}

/// The number of a unit's version.
fn version(unit: &Unit) -> u64 {
    let tag = unit.etag.clone().or_else(|| unit.modified.map(|modified| modified.to_string()));
    VERSION + (hash(format!("{:?} {tag:?}", unit.size)) & (VERSION - 1)).min(VERSION - 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(uri: &str, modified: i64) -> Unit {
        Unit { size: Some(7), modified: Some(modified), ..Unit::new(uri) }
    }

    fn written(chunks: &[Chunk]) -> Arc<WrittenChunks> {
        let chunks = chunks.iter().map(|chunk| (chunk.unit.clone(), chunk.number));
        Arc::new(WrittenChunks::new(chunks, str::to_owned))
    }

    #[test]
    fn a_unit_is_complete_when_all_of_its_groups_are_written() {
        let units = Units::new("s", written(&[]), false);
        assert!(units.admit(&unit("a", 1)).expect("listed once"));
        let notes = units.notes("a").expect("it is read");
        notes.join_group();
        notes.join_group();
        let version = notes.version_note().expect("its version is not noted");
        assert!(version.number >= VERSION && version.number < COMPLETE);
        assert_eq!(notes.end(true), None, "another group has rows of it");
        assert_eq!(notes.group_written(false), None);
        assert_eq!(notes.version_note(), None, "it is written");
        assert_eq!(notes.group_written(false), Some(notes.complete_note()));
        // Read by one group alone, it is complete with this one.
        assert!(units.admit(&unit("b", 1)).expect("listed once"));
        let notes = units.notes("b").expect("it is read");
        notes.join_group();
        assert_eq!(notes.end(true), Some(notes.complete_note()));
        assert_eq!(notes.group_written(true), None, "it is noted");
    }

    #[test]
    fn complete_units_are_skipped_and_changed_ones_are_reported() {
        let first = Units::new("s", written(&[]), false);
        assert!(first.admit(&unit("a", 1)).expect("listed once"));
        let notes = first.notes("a").expect("it is read");
        let all = [notes.version_note().expect("a version"), notes.complete_note()];
        let second = Units::new("s", written(&all), false);
        assert!(!second.admit(&unit("a", 1)).expect("listed once"));
        assert_eq!((second.passed_over(), second.changed()), (1, vec![]));
        let third = Units::new("s", written(&all), false);
        assert!(!third.admit(&unit("a", 2)).expect("listed once"));
        assert_eq!((third.passed_over(), third.changed()), (0, vec!["a".to_owned()]));
        let fourth = Units::new("s", written(&all), true);
        assert!(fourth.admit(&unit("a", 2)).expect("listed once"));
        let again = fourth.notes("a").expect("it is read");
        assert_ne!(again.key, notes.key);
        let accepted = [again.version_note().expect("a version"), again.complete_note()];
        // What was accepted once is known from then on.
        let fifth = Units::new("s", written(&[all, accepted].concat()), false);
        assert!(!fifth.admit(&unit("a", 2)).expect("listed once"));
        assert_eq!((fifth.passed_over(), fifth.changed()), (1, vec![]));
    }

    #[test]
    fn nothing_comes_twice_by_being_listed_twice() {
        let units = Units::new("s", written(&[]), false);
        assert!(units.admit(&unit("a", 1)).expect("listed once"));
        assert!(units.admit(&unit("a", 1)).expect_err("listed twice").what().contains("listed twice"));
        let notes = units.notes("a").expect("it is read");
        let member = |earlier| MemberPlace { name: Some("x.csv".into()), earlier, ..MemberPlace::default() };
        notes.begin_member(&member(0)).expect("the first");
        notes.begin_member(&member(1)).expect("the second of this name");
        assert!(notes.begin_member(&member(0)).is_err());
        assert_ne!(notes.chunk(&member(0), 0, 10), notes.chunk(&member(1), 0, 10));
        assert_eq!(notes.chunk(&member(0), 29, 10).number, 2);
    }
}
