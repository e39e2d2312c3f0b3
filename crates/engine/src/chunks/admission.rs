//! Which units of incremental sources a run reads that loads all at once, and what its sinks note of them. Of a source
//! that is read by the time in a column, stretches of time are its units; `marks.rs` has these.
//!
//! Each sink notes the units of its rows in the transaction that makes these visible. Sinks commit one after the other,
//! so after a crash one may have units that another lacks; so has a sink that is new in the job. Then the run **catches
//! up**: it loads only these units, and only into sinks that lack all of them. Catching up again, as long as sinks
//! differ, brings all to the same units; then comes the load of what none has.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_core::sink::{Chunk, LoadNotes, Noted, WrittenChunks};
use millstream_core::{Error, Result, Unit};
use millstream_job::OnChange;

use super::load::changed_units;
use super::marks::{Stretch, TimedRows, TimedSource};
use super::units::{Place, SettledUnit, Standing, Units, WhenChanged, listed_twice, rejects_note};
use crate::read::{Reader, sample};
use crate::report::{LeftFiles, WindowRead};

/// A sink that notes the units whose rows it gets.
pub struct NotingSink {
    /// Its name.
    pub name: String,
    /// Its target, for messages.
    pub target: String,
    /// What it has noted so far.
    pub written: Arc<WrittenChunks>,
    /// Where it gets what it notes now.
    pub notes: Arc<LoadNotes>,
    /// The names of the incremental sources whose rows come to it.
    pub sources: Vec<String>,
    /// Whether rows that come again are there twice.
    pub adds_rows: bool,
}

/// An incremental source.
pub struct AdmittedSource {
    /// Its reader.
    pub reader: Arc<Reader>,
    /// What says which rows are new; `None` if it is read by files.
    pub by: Option<TimedRows>,
}

/// What a run reads of incremental sources, and which sinks take it.
#[derive(Debug)]
pub struct Admission {
    units: Vec<Admitted>,
    readers: Vec<Arc<Reader>>,
    timed: Vec<TimedSource>,
    takes: Vec<Taking>,
    /// Whether it only brings sinks to the units that others have.
    pub is_catch_up: bool,
    /// Units that all sinks have.
    pub units_before: u64,
    /// The units that have changed and stay as they were loaded, by source.
    skipped: BTreeMap<String, BTreeSet<String>>,
    /// For each sink the units that it has completely, of the sources that do something with them.
    settled: Vec<(String, Vec<SettledUnit>)>,
    /// The numbers under which this run has noted rejects, by the URIs of units.
    rejected: Mutex<HashMap<String, Vec<u64>>>,
}

/// The units of which a run has rejected records on the way to sinks that are loaded all at once.
#[derive(Debug, Default)]
pub struct RejectedUnits {
    /// The first run of the resume chain.
    pub first: String,
    /// Their names.
    pub names: HashSet<String>,
    /// Whether some were rejected of which that is not known: it may be any.
    pub may_be_any: bool,
}

/// A unit, or a stretch of time, that is read.
#[derive(Debug)]
struct Admitted {
    source: String,
    what: Listed,
    /// What each sink notes of it, if that is of it alone.
    notes: Vec<Vec<Chunk>>,
}

/// What a source has.
#[derive(Debug)]
enum Listed {
    File(Unit),
    Rows(Stretch),
}

/// What sources have, and what of it is new to each sink.
struct Found {
    listed: Vec<Admitted>,
    /// For each sink, whether each is new to it; nothing, if its rows do not come to it.
    standings: Vec<Vec<Option<bool>>>,
    changed: Vec<String>,
    /// The units that have changed and stay as they were loaded, by source.
    skipped: BTreeMap<String, BTreeSet<String>>,
}

/// A sink that takes rows in this run.
#[derive(Debug)]
struct Taking {
    sink: String,
    /// Its place among the noting sinks.
    number: usize,
    notes: Arc<LoadNotes>,
    /// What it has noted so far.
    written: Arc<WrittenChunks>,
}

impl Found {
    /// Looks at all units of `reader`.
    async fn add_files(&mut self, reader: &Arc<Reader>, sinks: &[NotingSink], accept_changed: bool) -> Result<()> {
        let units = sample::units(reader, usize::MAX).await.map_err(|error| error.in_step(&reader.name))?;
        let of = |sink: &NotingSink| {
            let when_changed = WhenChanged::of(reader.on_change, accept_changed);
            Units::new(&reader.name, Arc::clone(&sink.written), when_changed)
        };
        let mut places = HashSet::new();
        let known: Vec<Units> = sinks.iter().map(of).collect();
        for unit in units {
            if !places.insert(unit.uri.clone()) {
                return Err(listed_twice(&unit.uri, &reader.name));
            }
            let mut notes = Vec::new();
            for ((sink, units), standings) in sinks.iter().zip(&known).zip(&mut self.standings) {
                let is_read = sink.sources.contains(&reader.name);
                let standing = is_read.then(|| units.standing(&unit));
                notes.push(match &standing {
                    Some(Standing::New(new)) => new.to_vec(),
                    _ => Vec::new(),
                });
                standings.push(match standing {
                    None => None,
                    Some(Standing::Complete) => Some(false),
                    Some(Standing::New(_)) => Some(true),
                    Some(Standing::Changed) if reader.on_change == OnChange::Skip => {
                        self.skipped.entry(reader.name.clone()).or_default().insert(unit.name());
                        Some(false)
                    }
                    Some(Standing::Changed) => {
                        self.changed.push(unit.name());
                        Some(false)
                    }
                    Some(Standing::Begun) => return Err(begun(&unit, sink).in_step(&sink.name)),
                });
            }
            self.listed.push(Admitted { source: reader.name.clone(), what: Listed::File(unit), notes });
        }
        Ok(())
    }

    /// Looks at the stretches of `source`.
    fn add_rows(&mut self, source: &TimedSource) {
        for stretch in &source.stretches {
            for (number, standings) in self.standings.iter_mut().enumerate() {
                standings.push(source.lacks(number, *stretch));
            }
            let notes = vec![Vec::new(); self.standings.len()];
            self.listed.push(Admitted { source: source.name().to_owned(), what: Listed::Rows(*stretch), notes });
        }
    }
}

impl Admission {
    /// Looks at all units and rows of `sources`, and lets their readers read those that this run loads into `sinks`.
    ///
    /// # Errors
    /// If units have changed since they were loaded, unless `accept_changed`; if one was loaded chunk by chunk and is
    /// not complete; if it is not known which rows are new.
    pub async fn of(sources: Vec<AdmittedSource>, sinks: &[NotingSink], accept_changed: bool) -> Result<Self> {
        let standings = vec![Vec::new(); sinks.len()];
        let mut found = Found { listed: Vec::new(), standings, changed: Vec::new(), skipped: BTreeMap::new() };
        let (mut readers, mut timed) = (Vec::new(), Vec::new());
        for AdmittedSource { reader, by } in sources {
            match by {
                Some(rows) => {
                    let source = TimedSource::of(&reader, rows, sinks, accept_changed).await;
                    let source = source.map_err(|error| in_step(error, &reader.name))?;
                    found.add_rows(&source);
                    timed.push(source);
                }
                None => {
                    found.add_files(&reader, sinks, accept_changed).await?;
                    readers.push(reader);
                }
            }
        }
        let Found { listed, standings, mut changed, skipped } = found;
        if !changed.is_empty() {
            changed.sort();
            changed.dedup();
            return Err(changed_units(changed, NOTHING_IS_LOADED));
        }
        let settled = settled(&readers, sinks, &listed, &skipped);
        let Pass { units, takes, is_catch_up } = pass(&standings);
        let units_before = (0..listed.len()).filter(|unit| standings.iter().all(|of| of[*unit] != Some(true))).count();
        let admitted = listed.into_iter().zip(units).filter(|(_, is_admitted)| *is_admitted);
        let units: Vec<Admitted> = admitted.map(|(admitted, _)| admitted).collect();
        for reader in &readers {
            reader.restrict(of_source(&units, &reader.name).filter_map(Listed::file).cloned().collect());
        }
        for source in &mut timed {
            let stretches: Vec<Stretch> = of_source(&units, source.name()).filter_map(Listed::rows).collect();
            source.admit(&stretches).await.map_err(|error| error.in_step(source.name()))?;
        }
        let taking = |(number, sink): (usize, &NotingSink)| Taking {
            sink: sink.name.clone(),
            number,
            notes: Arc::clone(&sink.notes),
            written: Arc::clone(&sink.written),
        };
        let takes = sinks.iter().enumerate().filter(|(number, _)| takes[*number]).map(taking).collect();
        let units_before = units_before as u64;
        Ok(Admission {
            units,
            readers,
            timed,
            takes,
            is_catch_up,
            units_before,
            skipped,
            settled,
            rejected: Mutex::default(),
        })
    }

    /// Whether the sink `name` gets rows in this run.
    pub fn takes(&self, name: &str) -> bool {
        self.takes.iter().any(|taking| taking.sink == name)
    }

    /// Whether there is nothing to read.
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// The rows that are read by the time in a column, source by source.
    pub fn windows(&self) -> Vec<WindowRead> {
        self.timed.iter().filter_map(TimedSource::report).collect()
    }

    /// Everything was read: says what each sink notes; of units with records that were `rejected`, that, too. Units
    /// that could not be opened are left to a later run.
    pub fn note(&self, rejected: &RejectedUnits) {
        for taking in &self.takes {
            let read = self.units.iter().filter(|admitted| !self.was_skipped(admitted));
            let mut noted = Noted::default();
            for admitted in read {
                noted.chunks.extend(admitted.notes[taking.number].clone());
                for (uri, note) in admitted.rejects_notes(taking, rejected) {
                    self.rejected_now().entry(uri.to_owned()).or_default().push(note.number);
                    noted.chunks.push(note);
                }
            }
            for Noted { chunks, replaced } in self.timed.iter().map(|source| source.noted(taking.number)) {
                noted.chunks.extend(chunks);
                noted.replaced.extend(replaced);
            }
            taking.notes.set(noted);
        }
    }

    /// Fails if files are to be moved or deleted of which not all was read.
    pub fn all_is_read(&self) -> Result<()> {
        self.readers.iter().filter(|reader| reader.after_load.is_some()).try_for_each(|reader| {
            let own = self.units.iter().filter(|admitted| admitted.source == reader.name);
            let admitted = own.filter(|admitted| !self.was_skipped(admitted)).count() as u64;
            match reader.steps.fetch.snapshot().units < admitted {
                true => Err(not_read(&reader.name)),
                false => Ok(()),
            }
        })
    }

    /// The files that have changed and stay as they were loaded.
    pub fn skipped(&self) -> impl Iterator<Item = LeftFiles> {
        self.skipped.iter().filter_map(|(source, units)| LeftFiles::of(source, units.iter().cloned().collect()))
    }

    /// The units that each sink has once it is committed, of the sources that do something with them. None while sinks
    /// only catch up: the next pass knows them.
    pub fn settled(&self) -> Vec<(String, Vec<SettledUnit>)> {
        if self.is_catch_up {
            return Vec::new();
        }
        let of = |(source, units): &(String, Vec<SettledUnit>)| {
            let unopened = |settled: &&SettledUnit| !self.is_unopened(source, &settled.unit);
            let units = units.iter().filter(unopened).cloned().map(|settled| {
                let now = self.rejected_now().get(&settled.unit.uri).cloned().unwrap_or_default();
                SettledUnit { rejected: [settled.rejected, now].concat(), ..settled }
            });
            (source.clone(), units.collect())
        };
        self.settled.iter().map(of).collect()
    }

    fn rejected_now(&self) -> MutexGuard<'_, HashMap<String, Vec<u64>>> {
        self.rejected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn was_skipped(&self, admitted: &Admitted) -> bool {
        admitted.what.file().is_some_and(|unit| self.is_unopened(&admitted.source, unit))
    }

    fn is_unopened(&self, source: &str, unit: &Unit) -> bool {
        let mut readers = self.readers.iter().filter(|reader| reader.name == source);
        readers.any(|reader| reader.unopened.has(&unit.uri))
    }
}

/// For each sink the units that it has once all are loaded which it lacks.
fn settled(
    readers: &[Arc<Reader>],
    sinks: &[NotingSink],
    listed: &[Admitted],
    skipped: &BTreeMap<String, BTreeSet<String>>,
) -> Vec<(String, Vec<SettledUnit>)> {
    let mut settled = Vec::new();
    for reader in readers.iter().filter(|reader| reader.after_load.is_some()) {
        let stays = |unit: &Unit| skipped.get(&reader.name).is_some_and(|names| names.contains(&unit.name()));
        let own = of_source(listed, &reader.name).filter_map(Listed::file).filter(|unit| !stays(unit));
        let listed: Vec<&Unit> = own.collect();
        for sink in sinks.iter().filter(|sink| sink.sources.contains(&reader.name)) {
            let units = Units::new(&reader.name, Arc::clone(&sink.written), WhenChanged::default());
            let of_sink = listed.iter().map(|unit| units.settled((*unit).clone())).collect();
            settled.push((reader.name.clone(), of_sink));
        }
    }
    settled
}

fn not_read(source: &str) -> Error {
    Error::refused(format!("`{source}` was not read to its end, and `after_load` would move or delete its files"))
        .cause("what it is joined with has no rows, so its own were not asked for")
        .in_step(source)
        .hint("nothing was loaded; check the entry that it is joined with")
}

impl Admitted {
    /// Its URI, and what notes for a sink that records of it were rejected, if they were or may have been.
    fn rejects_notes(&self, taking: &Taking, rejected: &RejectedUnits) -> Vec<(&str, Chunk)> {
        let Some(unit) = self.what.file().filter(|_| !self.notes[taking.number].is_empty()) else { return Vec::new() };
        let place = Place::of(&self.source, &unit.name(), &taking.written);
        let note = |is_exact| (unit.uri.as_str(), rejects_note(&place, &taking.sink, &rejected.first, is_exact));
        let is_rejected = rejected.names.contains(&unit.name());
        is_rejected.then(|| note(true)).into_iter().chain(rejected.may_be_any.then(|| note(false))).collect()
    }
}

impl Listed {
    fn file(&self) -> Option<&Unit> {
        match self {
            Listed::File(unit) => Some(unit),
            Listed::Rows(_) => None,
        }
    }

    fn rows(&self) -> Option<Stretch> {
        match self {
            Listed::File(_) => None,
            Listed::Rows(stretch) => Some(*stretch),
        }
    }
}

/// What is read of the source `name`.
fn of_source<'a>(units: &'a [Admitted], name: &'a str) -> impl Iterator<Item = &'a Listed> {
    units.iter().filter(move |admitted| admitted.source == name).map(|admitted| &admitted.what)
}

/// `error` in the step `name`, unless it is known to be in another one.
fn in_step(error: Error, name: &str) -> Error {
    match error.step_name() {
        Some(_) => error,
        None => error.in_step(name),
    }
}

const NOTHING_IS_LOADED: &str = "nothing is loaded; `--accept-changed` loads them as they are now, in addition to \
                                 their earlier rows";

fn begun(unit: &Unit, sink: &NotingSink) -> Error {
    Error::refused(format!("an earlier run has loaded a part of this file chunk by chunk into {}", sink.target))
        .in_unit(&unit.uri, None)
        .hint("run the job as it was then to load the rest, and change it afterwards")
}

/// Which units are read, and which sinks take their rows.
#[derive(Debug, PartialEq, Eq)]
struct Pass {
    units: Vec<bool>,
    takes: Vec<bool>,
    is_catch_up: bool,
}

/// Decides for each unit and sink. `standings` says for each sink which units are new to it; nothing, if their rows do
/// not come to it.
fn pass(standings: &[Vec<Option<bool>>]) -> Pass {
    let count = standings.first().map_or(0, Vec::len);
    let is = |unit: usize, what: bool| standings.iter().any(|of| of[unit] == Some(what));
    // A unit that some sinks have and others lack.
    let differs: Vec<bool> = (0..count).map(|unit| is(unit, true) && is(unit, false)).collect();
    let lacks = |of: &Vec<Option<bool>>| (0..count).filter(|unit| differs[*unit] && of[*unit] == Some(true)).count();
    let most = standings.iter().max_by_key(|of| lacks(of)).filter(|of| lacks(of) > 0);
    let Some(most) = most else {
        let units = (0..count).map(|unit| is(unit, true)).collect();
        return Pass { units, takes: vec![true; standings.len()], is_catch_up: false };
    };
    let units: Vec<bool> = (0..count).map(|unit| differs[unit] && most[unit] == Some(true)).collect();
    let lacks_all = |of: &Vec<Option<bool>>| (0..count).all(|unit| !units[unit] || of[unit] == Some(true));
    let takes = standings.iter().map(lacks_all).collect();
    Pass { units, takes, is_catch_up: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: Option<bool> = Some(true);
    const HAS: Option<bool> = Some(false);

    #[test]
    fn sinks_that_agree_load_what_none_has() {
        let found = pass(&[vec![HAS, NEW, NEW], vec![HAS, NEW, None]]);
        assert_eq!(found, Pass { units: vec![false, true, true], takes: vec![true, true], is_catch_up: false });
        assert_eq!(pass(&[]), Pass { units: vec![], takes: vec![], is_catch_up: false });
    }

    #[test]
    fn a_sink_that_lacks_what_others_have_gets_it_alone() {
        // The first has committed, the others have not; the last unit is new to all.
        let found = pass(&[vec![HAS, HAS, NEW], vec![HAS, NEW, NEW], vec![HAS, NEW, NEW]]);
        assert_eq!(found, Pass { units: vec![false, true, false], takes: vec![false, true, true], is_catch_up: true });
    }

    #[test]
    fn whatever_sinks_have_catching_up_ends_with_all_having_the_same() {
        for seed in 0..5_000_u32 {
            let bit = |index: usize| seed.wrapping_mul(2_654_435_761).rotate_left(index as u32 * 3) & 1 == 1;
            let mut all: Vec<Vec<Option<bool>>> =
                (0..3).map(|sink| (0..4).map(|unit| Some(bit(sink * 4 + unit))).collect()).collect();
            let mut passes = 0;
            loop {
                let Pass { units, takes, is_catch_up } = pass(&all);
                for (of, _) in all.iter_mut().zip(&takes).filter(|(_, takes)| **takes) {
                    for (standing, _) in of.iter_mut().zip(&units).filter(|(_, read)| **read) {
                        assert_eq!(*standing, NEW, "no unit is loaded twice: {seed}");
                        *standing = HAS;
                    }
                }
                passes += 1;
                if !is_catch_up {
                    break;
                }
            }
            assert!(passes <= 13 && all.iter().flatten().all(|standing| *standing == HAS), "{seed}: {all:?}");
        }
    }
}
