//! The units of a load: what they are called in the ledger, which of them are complete, and which have changed.
//!
//! For each unit the ledger notes, beside its chunks, the version that was read ([`VERSION`] and above) and, once all
//! of its chunks are written, [`COMPLETE`]. So a later run passes over complete units without opening them, and sees
//! when a unit is not any more what was loaded of it. Versions are what the listing tells: an etag or a time of change,
//! and the size. Where a place tells none of these, a change goes unseen. If records of a unit were rejected, that is
//! noted, too ([`rejects_note`]): the reject log may be gone when it is asked what becomes of the unit.
//!
//! A unit may be forgotten. Its notes stay, since the names of members, which are hashes there, cannot be found; a
//! further note gives it another name ([`Place`]), under which nothing is noted.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_core::sink::{Chunk, FORGOTTEN, WrittenChunks};
use millstream_core::{Error, Result, Unit};
use millstream_job::OnChange;
use millstream_state::rejects::{ChunkId, Kept};

use super::arrival::{self, Arrivals};
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
    /// Whether any unit of the load was forgotten.
    forgets: bool,
    when_changed: WhenChanged,
    /// Whether units that the target has completely are kept.
    keeps_settled: bool,
    /// How their rows are numbered, if they are staged.
    slots: Option<Slots>,
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

/// What is to be noted of a unit that is not complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToNote {
    /// Its version, unless that is noted.
    pub version: Option<Chunk>,
    /// That it is complete.
    pub complete: Chunk,
    /// Whether anything is noted of it under any name. A worker that does not ask the ledger would give other names to
    /// its chunks, or take those that are there for missing.
    pub is_known: bool,
}

/// What the ledger says of a unit.
struct Known {
    /// What it is called in the ledger.
    key: String,
    version: u64,
    /// The versions that are noted.
    before: Vec<u64>,
    /// It has changed, and is not to be loaded as it is now.
    is_changed: bool,
    is_complete: bool,
    /// Its version is noted: some of it is written.
    is_noted: bool,
}

/// The error of a unit that is listed twice: the ledger cannot distinguish the two.
pub fn listed_twice(uri: &str, source: &str) -> Error {
    Error::refused("a file is listed twice, so its rows would be loaded twice")
        .in_unit(uri, None)
        .in_step(source)
        .hint("change `read` so that it matches the file once")
}

/// What becomes of a unit that has changed since it was loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WhenChanged {
    /// It is named when everything else is loaded, and the run fails.
    #[default]
    Fail,
    /// It is loaded as it is now, beside what was loaded of it before.
    Accept,
    /// It stays as it was loaded.
    Skip,
    /// It is loaded as it is now, in place of what was loaded of it before.
    Reload,
}

impl WhenChanged {
    /// Of a source that says `on_change`, in a run that may accept changed units.
    pub fn of(on_change: OnChange, accept_changed: bool) -> Self {
        match on_change {
            OnChange::Reload => WhenChanged::Reload,
            _ if accept_changed => WhenChanged::Accept,
            OnChange::Skip => WhenChanged::Skip,
            OnChange::Fail => WhenChanged::Fail,
        }
    }
}

/// When a unit that was listed is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadWhen {
    /// Now.
    Now,
    /// Not at all: it is complete, or has changed.
    Never,
    /// Once everything else is loaded: it is reloaded.
    Later,
}

/// A unit whose rows are replaced.
#[derive(Debug)]
pub struct Reload {
    /// The unit as it is now.
    pub unit: Unit,
    /// Its name in the ledger.
    place: String,
    /// The version that is to be loaded.
    version: u64,
    /// The versions that are noted.
    before: Vec<u64>,
}

/// How units of several pipelines share the order of arrival: those of the pipeline number `of` of `count`.
#[derive(Debug, Clone, Copy)]
pub struct Slots {
    /// The number of the pipeline.
    pub of: u64,
    /// How many there are.
    pub count: u64,
}

#[derive(Default)]
struct State {
    /// Those that are being read, by their URI.
    reading: HashMap<String, Arc<UnitNotes>>,
    /// All URIs that were listed, as hashes.
    listed: HashSet<u64>,
    passed_over: u64,
    changed: Vec<String>,
    skipped: Vec<String>,
    reloads: Vec<Reload>,
    /// Units that are being read, and those that the target has, where they are kept.
    open: HashMap<String, Unit>,
    settled: Vec<Settling>,
}

/// A unit that the target has completely, once everything is delivered.
struct Settling {
    unit: Unit,
    /// What was noted of it in this run, if something was.
    notes: Option<Arc<UnitNotes>>,
    /// Whether what was noted before does not count any more.
    is_anew: bool,
}

/// A unit that is being read.
#[derive(Debug)]
pub struct UnitNotes {
    /// Its path or URL, with passwords left out.
    pub name: String,
    /// What it is called in the ledger.
    pub key: String,
    /// The unit under which its version is noted, and that it is complete.
    noted_as: String,
    /// What it is called whatever its version.
    place: String,
    /// Only a range of it is read here. The coordinator, which knows of the others, notes that it is complete.
    is_range: bool,
    /// Notes its version; nothing if an earlier run has done that.
    version: Option<Chunk>,
    /// Numbers its rows, if they are staged.
    arrivals: Option<Arrivals>,
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
    /// The numbers under which it is noted that records of it were rejected.
    rejected: Vec<u64>,
}

type MemberKey = (Arc<str>, u32);

/// A unit that the target has completely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettledUnit {
    /// The unit.
    pub unit: Unit,
    /// The numbers under which it is noted that records of it were rejected ([`rejects_number`]).
    pub rejected: Vec<u64>,
}

/// What a unit is called in the ledger, whatever its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The name.
    pub name: String,
    /// When it was last forgotten, in milliseconds since 1970.
    pub forgotten: Option<u64>,
}

impl Place {
    /// What the unit `name` of `source` is called in a load of which this is `written`.
    pub fn of(source: &str, name: &str, written: &WrittenChunks) -> Self {
        let place = first_name(source, name);
        match written.of_unit(&forgotten_unit(&place)).last() {
            None => Place { name: place, forgotten: None },
            Some(at) => Place { name: format!("{place}\nforgotten {at:x}"), forgotten: Some(*at) },
        }
    }
}

/// Whether any unit of the load of which this is `written` was forgotten.
fn has_forgotten(written: &WrittenChunks) -> bool {
    !written.of_unit(FORGOTTEN).is_empty()
}

/// What a unit is called that was never forgotten.
fn first_name(source: &str, name: &str) -> String {
    format!("{source}\n{name}")
}

/// The unit under which it is noted when the unit with the first name `place` was forgotten.
fn forgotten_unit(place: &str) -> String {
    format!("{place}\nforgotten")
}

/// Whether a unit can be forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Forgettable {
    /// The load does not have it.
    Unknown,
    /// The load has a part of it.
    Begun,
    /// The load has all of it; with what notes that it is forgotten.
    Complete(Chunk),
}

/// Whether the unit `name` of `source` can be forgotten at the time `now`, in milliseconds since 1970, in a load of
/// which this is `written`.
pub fn forgettable(source: &str, name: &str, written: &WrittenChunks, now: u64) -> Forgettable {
    let Place { name: place, forgotten } = Place::of(source, name, written);
    match written.of_unit(&place) {
        [] => Forgettable::Unknown,
        noted if !noted.contains(&COMPLETE) => Forgettable::Begun,
        _ => {
            let number = forgotten.map_or(now, |before| now.max(before + 1));
            Forgettable::Complete(Chunk { unit: forgotten_unit(&first_name(source, name)), number })
        }
    }
}

/// What notes that units were forgotten at the time `now`, in milliseconds since 1970, in a load of which this is
/// `written`.
pub fn forgotten_note(written: &WrittenChunks, now: u64) -> Chunk {
    let number = written.of_unit(FORGOTTEN).last().map_or(now, |before| now.max(before + 1));
    Chunk { unit: FORGOTTEN.to_owned(), number }
}

impl Units {
    /// Those of `source`, of which `written` is in the target.
    pub fn new(source: &str, written: Arc<WrittenChunks>, when_changed: WhenChanged) -> Self {
        let (source, state, forgets) = (source.to_owned(), Mutex::default(), has_forgotten(&written));
        Units { source, written, forgets, when_changed, keeps_settled: false, slots: None, state }
    }

    /// The same, whose rows are staged.
    pub fn staged(self, slots: Slots) -> Self {
        Units { slots: Some(slots), ..self }
    }

    /// The same, which keeps the units that the target has completely.
    pub fn keeping_settled(self) -> Self {
        Units { keeps_settled: true, ..self }
    }

    /// The target has all of `unit`, which was reloaded with `notes`, once everything is delivered.
    pub fn settle_reloaded(&self, unit: &Unit, notes: Arc<UnitNotes>) {
        if self.keeps_settled {
            self.lock().settled.push(Settling { unit: unit.clone(), notes: Some(notes), is_anew: true });
        }
    }

    /// The units that the target has completely.
    pub fn take_settled(&self) -> Vec<SettledUnit> {
        let settled = std::mem::take(&mut self.lock().settled);
        let settled = settled.into_iter().map(|Settling { unit, notes, is_anew }| {
            let before = if is_anew { SettledUnit { unit, rejected: Vec::new() } } else { self.settled(unit) };
            let now = notes.map_or_else(Vec::new, |notes| notes.lock().rejected.clone());
            SettledUnit { rejected: [before.rejected, now].concat(), ..before }
        });
        settled.collect()
    }

    /// What is known of a unit that the target has completely.
    pub fn settled(&self, unit: Unit) -> SettledUnit {
        let rejected = self.written.of_unit(&rejects_unit(&self.place(&unit).name)).to_vec();
        SettledUnit { unit, rejected }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When `unit`, which was listed, is read. The ledger cannot distinguish a unit from itself.
    pub fn admit(&self, unit: &Unit) -> Result<ReadWhen> {
        let mut state = self.lock();
        let listed = state.listed.len() as u64;
        if !state.listed.insert(hash(first_name(&self.source, &unit.name()))) {
            // Staged rows have keys: those of a file that comes once more would change nothing.
            return match self.slots {
                Some(_) => Ok(ReadWhen::Never),
                None => Err(listed_twice(&unit.uri, &self.source)),
            };
        }
        let Known { key, version, before, is_changed, is_complete, is_noted } = self.known(unit);
        if is_changed {
            match self.when_changed {
                WhenChanged::Accept => return Err(Error::internal("a unit is accepted and has changed")),
                WhenChanged::Fail => state.changed.push(unit.name()),
                WhenChanged::Skip => state.skipped.push(unit.name()),
                WhenChanged::Reload => {
                    let place = self.place(unit).name;
                    state.reloads.push(Reload { unit: unit.clone(), place, version, before });
                    return Ok(ReadWhen::Later);
                }
            }
            return Ok(ReadWhen::Never);
        }
        if is_complete {
            state.passed_over += 1;
            if self.keeps_settled {
                state.settled.push(Settling { unit: unit.clone(), notes: None, is_anew: false });
            }
            return Ok(ReadWhen::Never);
        }
        let note = Chunk { unit: key.clone(), number: version };
        let (name, noted_as, version) = (unit.name(), key.clone(), (!is_noted).then_some(note));
        let slot = self.slots.map(|slots| listed * slots.count + slots.of);
        let arrivals = slot.map(|slot| Arrivals::new(slot, Arc::clone(&self.written)));
        let place = self.place(unit).name;
        let (is_range, notes) = (unit.records.is_some(), Mutex::default());
        let notes = UnitNotes { name, key, noted_as, place, is_range, version, arrivals, state: notes };
        state.reading.insert(unit.uri.clone(), Arc::new(notes));
        if self.keeps_settled {
            state.open.insert(unit.uri.clone(), unit.clone());
        }
        Ok(ReadWhen::Now)
    }

    /// The units of a reload: that unit alone, nothing of which is written.
    pub fn of_reload(source: &str, reload: &Reload) -> Self {
        let nothing = WrittenChunks::new([], str::to_owned);
        let units = Units::new(source, Arc::new(nothing), WhenChanged::default());
        let notes = UnitNotes {
            name: reload.unit.name(),
            key: reload.key(reload.version),
            noted_as: reload.place.clone(),
            place: reload.place.clone(),
            is_range: false,
            version: None,
            arrivals: None,
            state: Mutex::default(),
        };
        units.lock().reading.insert(reload.unit.uri.clone(), Arc::new(notes));
        units
    }

    /// The units to be reloaded, each once.
    pub fn take_reloads(&self) -> Vec<Reload> {
        std::mem::take(&mut self.lock().reloads)
    }

    /// Whether a unit of this name was listed, or is noted.
    pub fn knows(&self, name: &str) -> bool {
        let place = first_name(&self.source, name);
        self.lock().listed.contains(&hash(&place)) || !self.written.of_unit(&place).is_empty()
    }

    /// The name of the source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The units that have changed and stay as they were loaded.
    pub fn skipped(&self) -> Vec<String> {
        self.lock().skipped.clone()
    }

    /// What the load knows of `unit`, if it is loaded as a whole.
    pub fn standing(&self, unit: &Unit) -> Standing {
        let Known { key, version, is_changed, is_complete, is_noted, .. } = self.known(unit);
        match (is_changed, is_complete, is_noted) {
            (true, ..) => Standing::Changed,
            (_, true, _) => Standing::Complete,
            (_, _, true) => Standing::Begun,
            _ => Standing::New([Chunk { unit: key.clone(), number: version }, Chunk { unit: key, number: COMPLETE }]),
        }
    }

    /// The notes of `unit`, if it is to be loaded, and replaces nothing.
    pub fn to_note(&self, unit: &Unit) -> Option<ToNote> {
        let Known { key, version, is_changed, is_complete, is_noted, .. } = self.known(unit);
        let is_known = key != first_name(&self.source, &unit.name()) || !self.written.of_unit(&key).is_empty();
        let version = (!is_noted).then(|| Chunk { unit: key.clone(), number: version });
        let to_note = ToNote { version, complete: Chunk { unit: key, number: COMPLETE }, is_known };
        (!is_changed && !is_complete).then_some(to_note)
    }

    fn place(&self, unit: &Unit) -> Place {
        match self.forgets {
            true => Place::of(&self.source, &unit.name(), &self.written),
            false => Place { name: first_name(&self.source, &unit.name()), forgotten: None },
        }
    }

    /// What the ledger says of `unit`.
    fn known(&self, unit: &Unit) -> Known {
        let (Place { name: place, forgotten }, version) = (self.place(unit), version(unit));
        let known = self.written.of_unit(&place);
        let first_version = known.partition_point(|number| *number < VERSION);
        let versions: Vec<u64> = known[first_version..].iter().copied().filter(|number| *number != COMPLETE).collect();
        let differs = !versions.is_empty() && !versions.contains(&version);
        // What is loaded as another version has chunks of its own.
        let key = if differs { accepted_key(&place, version, &self.written) } else { place };
        let was_accepted = !self.written.of_unit(&key).is_empty();
        let is_complete = self.written.contains(&Chunk { unit: key.clone(), number: COMPLETE });
        let is_noted = self.written.contains(&Chunk { unit: key.clone(), number: version });
        let is_changed = differs && !was_accepted && self.when_changed != WhenChanged::Accept;
        // `reload` also replaces the rows that it had before it was forgotten.
        let is_replaced = forgotten.is_some() && known.is_empty() && self.when_changed == WhenChanged::Reload;
        Known { key, version, before: versions, is_changed: is_changed || is_replaced, is_complete, is_noted }
    }

    /// A unit that is being read.
    pub fn notes(&self, uri: &str) -> Result<Arc<UnitNotes>> {
        let found = self.lock().reading.get(uri).cloned();
        found.ok_or_else(|| Error::internal("rows of a unit that was not listed").in_unit(uri, None))
    }

    /// A unit is complete, and nothing more will be asked of it.
    pub fn complete(&self, uri: &str) {
        let mut state = self.lock();
        let notes = state.reading.remove(uri);
        if let Some(unit) = state.open.remove(uri) {
            state.settled.push(Settling { unit, notes, is_anew: false });
        }
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
    /// A queue, of which `process` reads some messages.
    pub fn of_queue(queue: &str, process: &str) -> Self {
        let (name, key) = (queue.to_owned(), format!("{process}\n{queue}"));
        let (noted_as, place) = (key.clone(), key.clone());
        let (version, arrivals, state) = (None, None, Mutex::default());
        UnitNotes { name, key, noted_as, place, is_range: false, version, arrivals, state }
    }

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

    /// Where rows of `member` stand in the order of arrival, the last of which come now and begins at `last`; `None` if
    /// that is not asked for.
    pub fn place_of(&self, member: &MemberPlace, last: u64) -> Option<Arc<arrival::Place>> {
        let arrivals = self.arrivals.as_ref()?;
        Some(arrivals.place_of(&self.chunk(member, 0, 1).unit, last))
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
        (state.groups == usize::from(own) && !self.is_range).then(|| self.complete_note())
    }

    /// A group with rows of this unit is written. What there is to note now.
    pub fn group_written(&self, noted: bool) -> Option<Chunk> {
        let mut state = self.lock();
        state.groups -= 1;
        state.version_noted = true;
        (state.read && state.groups == 0 && !noted && !self.is_range).then(|| self.complete_note())
    }

    /// What notes the version, unless that is written.
    pub fn version_note(&self) -> Option<Chunk> {
        let is_noted = self.lock().version_noted;
        self.version.clone().filter(|_| !is_noted)
    }

    /// Notes that records were rejected in a delivery of the resume chain `first` into `sink`: of this unit, the first
    /// of them in `chunk`; or perhaps of others, where `is_exact` is false.
    pub fn rejects_note(&self, sink: &str, first: &str, chunk: &Chunk, is_exact: bool) -> Chunk {
        let number = rejects_number(sink, Some(chunk), &chain(first, is_exact));
        self.lock().rejected.push(number);
        Chunk { unit: rejects_unit(&self.place), number }
    }

    /// The note that this unit is complete.
    pub fn complete_note(&self) -> Chunk {
        Chunk { unit: self.noted_as.clone(), number: COMPLETE }
    }
}

impl Reload {
    /// What the chunks of a version are called. They have names of their own: what an earlier version had rejected is
    /// not taken for what this one has.
    fn key(&self, version: u64) -> String {
        format!("{}\nreload {version:x}", self.place)
    }

    /// What is noted of the new version as a whole.
    pub fn known_by(&self) -> Vec<Chunk> {
        [self.version, COMPLETE].map(|number| Chunk { unit: self.place.clone(), number }).to_vec()
    }

    /// What is noted with the rows of these chunks.
    pub fn notes(&self, chunks: impl IntoIterator<Item = Chunk>) -> Vec<Chunk> {
        let reloaded = Chunk { unit: format!("{}{RELOADED}", self.place), number: self.version };
        let mut notes: Vec<Chunk> = chunks.into_iter().chain(self.known_by()).chain([reloaded]).collect();
        notes.sort();
        notes.dedup();
        notes
    }

    /// The units whose notes are removed: those of the earlier versions, and of these chunks, in case the same version
    /// was loaded before.
    pub fn forgets(&self, chunks: &[Chunk]) -> Vec<String> {
        let before = self.before.iter().map(|version| self.key(*version));
        let own = [self.place.clone(), format!("{}{RELOADED}", self.place), rejects_unit(&self.place)];
        let mut units: Vec<String> =
            own.into_iter().chain(before).chain(chunks.iter().map(|chunk| chunk.unit.clone())).collect();
        units.sort();
        units.dedup();
        units
    }
}

/// Under which unit it is noted that records of the unit with the name `place` were rejected, of whichever version.
fn rejects_unit(place: &str) -> String {
    format!("{place}\nrejected")
}

/// What notes that records were rejected in a load all at once of the resume chain `first` into `sink`: of the unit
/// with the name `place`; or perhaps of others, where `is_exact` is false.
pub fn rejects_note(place: &Place, sink: &str, first: &str, is_exact: bool) -> Chunk {
    Chunk { unit: rejects_unit(&place.name), number: rejects_number(sink, None, &chain(first, is_exact)) }
}

/// The numbers under which the load of which this is `written` has noted rejects of the unit `name` of `source`.
pub fn noted_rejects<'a>(source: &str, name: &str, written: &'a WrittenChunks) -> &'a [u64] {
    written.of_unit(&rejects_unit(&Place::of(source, name, written).name))
}

fn chain(first: &str, is_exact: bool) -> String {
    if is_exact { first.to_owned() } else { format!("{first}{INEXACT}") }
}

/// In the number of rejects that may be of other units, too: no reject of the log has it.
const INEXACT: &str = "\nand others";

/// The number under which rejects are noted that were made on the way to `sink` by the resume chain `first`, and of a
/// delivery of chunks by the first of them that has some. The reject log knows all of that, so it can say which of its
/// rejects the target means. No two deliveries note the same.
pub fn rejects_number(sink: &str, chunk: Option<&Chunk>, first: &str) -> u64 {
    let chunk = chunk.map_or(String::new(), |Chunk { unit, number }| format!("{unit}\n{number}"));
    hash(format!("{sink}\n{chunk}\n{first}")) >> 2
}

/// Behind the name of a unit: that it was reloaded, and as which version.
const RELOADED: &str = "\nreloaded";

/// The number under which the target of `sink` has noted this reject of the resume chain `first`, if it has the rows
/// that were loaded beside it; `None` if it was on its way to another sink.
pub fn number_of(kept: &Kept, sink: &str, first: &str) -> Option<u64> {
    match (&kept.noted_by, &kept.line.chunk, &kept.line.rejected.sink) {
        (Some(ChunkId { sink: of, unit, number }), ..) if of == sink => {
            Some(rejects_number(sink, Some(&Chunk { unit: unit.clone(), number: *number }), first))
        }
        (None, None, of) if of.as_ref().is_none_or(|of| of == sink) => Some(rejects_number(sink, None, first)),
        _ => None,
    }
}

/// What a unit is called whose version `version` is loaded beside earlier ones. What was accepted before a reload is
/// gone with it.
fn accepted_key(place: &str, version: u64, written: &WrittenChunks) -> String {
    match written.of_unit(&format!("{place}{RELOADED}")).last() {
        None => format!("{place}\n{version:x}"),
        Some(base) => format!("{place}\n{version:x} beside {base:x}"),
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
        let units = Units::new("s", written(&[]), WhenChanged::Fail);
        assert_eq!(units.admit(&unit("a", 1)).expect("listed once"), ReadWhen::Now);
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
        assert_eq!(units.admit(&unit("b", 1)).expect("listed once"), ReadWhen::Now);
        let notes = units.notes("b").expect("it is read");
        notes.join_group();
        assert_eq!(notes.end(true), Some(notes.complete_note()));
        assert_eq!(notes.group_written(true), None, "it is noted");
    }

    #[test]
    fn complete_units_are_skipped_and_changed_ones_are_reported() {
        let first = Units::new("s", written(&[]), WhenChanged::Fail);
        assert_eq!(first.admit(&unit("a", 1)).expect("listed once"), ReadWhen::Now);
        let notes = first.notes("a").expect("it is read");
        let all = [notes.version_note().expect("a version"), notes.complete_note()];
        let second = Units::new("s", written(&all), WhenChanged::Fail);
        assert_eq!(second.admit(&unit("a", 1)).expect("listed once"), ReadWhen::Never);
        assert_eq!((second.passed_over(), second.changed()), (1, vec![]));
        let third = Units::new("s", written(&all), WhenChanged::Fail);
        assert_eq!(third.admit(&unit("a", 2)).expect("listed once"), ReadWhen::Never);
        assert_eq!((third.passed_over(), third.changed()), (0, vec!["a".to_owned()]));
        let fourth = Units::new("s", written(&all), WhenChanged::Accept);
        assert_eq!(fourth.admit(&unit("a", 2)).expect("listed once"), ReadWhen::Now);
        let again = fourth.notes("a").expect("it is read");
        assert_ne!(again.key, notes.key);
        let accepted = [again.version_note().expect("a version"), again.complete_note()];
        // What was accepted once is known from then on.
        let fifth = Units::new("s", written(&[all, accepted].concat()), WhenChanged::Fail);
        assert_eq!(fifth.admit(&unit("a", 2)).expect("listed once"), ReadWhen::Never);
        assert_eq!((fifth.passed_over(), fifth.changed()), (1, vec![]));
    }

    /// Reloads `unit`, and gives what is noted then, of what `before` was noted.
    fn reloaded(before: &[Chunk], unit: &Unit) -> Vec<Chunk> {
        let units = Units::new("s", written(before), WhenChanged::Reload);
        assert_eq!(units.admit(unit).expect("listed once"), ReadWhen::Later);
        let reload = units.take_reloads().pop().expect("it has changed");
        let notes = Units::of_reload("s", &reload).notes(&unit.uri).expect("it is read");
        let chunks: Vec<Chunk> = (0..2).map(|part| notes.chunk(&MemberPlace::default(), part * 10, 10)).collect();
        let forgets = reload.forgets(&chunks);
        let kept = before.iter().filter(|chunk| !forgets.contains(&chunk.unit)).cloned();
        let all: Vec<Chunk> = kept.chain(reload.notes(chunks)).collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len(), "no note is there already");
        all
    }

    #[test]
    fn a_reload_leaves_the_notes_of_one_version() {
        let first = Units::new("s", written(&[]), WhenChanged::Reload);
        assert_eq!(first.admit(&unit("a", 1)).expect("listed once"), ReadWhen::Now);
        let notes = first.notes("a").expect("it is read");
        let chunk = notes.chunk(&MemberPlace::default(), 0, 10);
        let mut noted = vec![chunk, notes.version_note().expect("a version"), notes.complete_note()];
        // A version that was there before comes back.
        for modified in [2, 3, 2, 1, 2] {
            noted = reloaded(&noted, &unit("a", modified));
            assert_eq!(noted.len(), 5, "two chunks, the version, that it is complete, that it was reloaded");
            for when_changed in [WhenChanged::Fail, WhenChanged::Accept, WhenChanged::Reload] {
                let next = Units::new("s", written(&noted), when_changed);
                assert_eq!(next.admit(&unit("a", modified)).expect("listed once"), ReadWhen::Never);
                assert_eq!(next.passed_over(), 1);
            }
        }
    }

    #[test]
    fn what_was_accepted_before_a_reload_is_gone_with_it() {
        let place = "s\na".to_owned();
        let complete = |unit: &str| Chunk { unit: unit.to_owned(), number: COMPLETE };
        let version = |modified| version(&unit("a", modified));
        let first = [Chunk { unit: place.clone(), number: version(1) }, complete(&place)];
        let accepted = complete(&format!("{place}\n{:x}", version(2)));
        let both = [&first[..], &[accepted]].concat();
        let known = Units::new("s", written(&both), WhenChanged::Reload);
        assert_eq!(known.admit(&unit("a", 2)).expect("listed once"), ReadWhen::Never, "it is loaded beside");
        let after = reloaded(&both, &unit("a", 3));
        let known = Units::new("s", written(&after), WhenChanged::Fail);
        assert_eq!(known.admit(&unit("a", 2)).expect("listed once"), ReadWhen::Never);
        assert_eq!(known.changed(), ["a"], "the version that was accepted is not there any more");
    }

    #[test]
    fn nothing_comes_twice_by_being_listed_twice() {
        let units = Units::new("s", written(&[]), WhenChanged::Fail);
        assert_eq!(units.admit(&unit("a", 1)).expect("listed once"), ReadWhen::Now);
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
