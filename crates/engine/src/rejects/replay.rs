//! Rejects that are loaded again: each raw record is a unit of its own, which goes through the job's parser and steps
//! into the sink that it did not get into.
//!
//! ```text
//!  rejects ─▶ units, each a header and a record ─▶ the job, reduced to one sink ─▶ commit ─▶ marked ─▶ ledger forgets
//! ```
//! A replay is a load like any other, with a name of its own in the target's ledger: it tells the run and how many
//! replays into this sink have come to their end, the **round**. So one that is killed is resumed by the next, and what
//! it has loaded is loaded once. What fails again is kept again, and stays a reject.
//!
//! Here is what is loaded again, and what has become of it. `read/replayed.rs` reads it, `replay.rs` runs it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use millstream_core::reject::Rejected;
use millstream_core::{Error, Result};
use millstream_state::rejects::{Again, RejectLine, ReplayedRejects, failed_again};

/// What the URIs of the units begin with.
const SCHEME: &str = "replay:";

/// The rejects of a run on their way into one sink.
#[derive(Debug)]
pub struct Replay {
    /// The first of the runs that they are of.
    pub first: String,
    /// The sink.
    pub sink: String,
    /// How many replays into the sink have come to their end.
    pub round: u64,
    folder: PathBuf,
    /// By their URIs.
    units: BTreeMap<String, Arc<ReplayUnit>>,
    /// URIs of those that an earlier attempt of the round has loaded.
    passed: Mutex<HashSet<String>>,
    /// Why rows cannot go into the sink one by one, once that is known.
    why_not: OnceLock<String>,
}

/// A record that is loaded again.
#[derive(Debug)]
pub struct ReplayUnit {
    id: String,
    /// What was told of it.
    pub rejected: Rejected,
    /// The text of a file with the record alone.
    pub text: Bytes,
}

impl ReplayUnit {
    /// The record of the reject `id`, in `text`.
    pub fn new(id: String, rejected: Rejected, text: Bytes) -> Self {
        ReplayUnit { id, rejected, text }
    }
}

impl Replay {
    /// The rejects of `first`, kept in `folder`, that go into `sink` in this round.
    pub fn new(first: &str, sink: &str, round: u64, folder: &Path, units: impl Iterator<Item = ReplayUnit>) -> Self {
        Replay {
            first: first.to_owned(),
            sink: sink.to_owned(),
            round,
            folder: folder.to_owned(),
            units: units.map(|unit| (format!("{SCHEME}{}", unit.id), Arc::new(unit))).collect(),
            passed: Mutex::default(),
            why_not: OnceLock::new(),
        }
    }

    /// Whether there is nothing to load.
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// The URIs of the units whose records come from `source`.
    pub fn of_source(&self, source: &str) -> Vec<String> {
        let of_source = |unit: &ReplayUnit| unit.rejected.source.as_deref() == Some(source);
        self.units.iter().filter(|(_, unit)| of_source(unit)).map(|(uri, _)| uri.clone()).collect()
    }

    /// Why rows cannot go into the sink one by one, if that is so.
    pub fn why_not(&self) -> Option<&String> {
        self.why_not.get()
    }

    /// The name of the load, behind that of its sink.
    pub fn load(&self) -> String {
        format!("{}{}", self.load_of_any_round(), self.round)
    }

    /// What the names of all rounds begin with.
    pub fn load_of_any_round(&self) -> String {
        format!("{PREFIX}{} ", self.first)
    }

    /// Where a record comes from, by the URI of its unit.
    pub fn unit(&self, uri: &str) -> Option<&Arc<ReplayUnit>> {
        self.units.get(uri)
    }

    /// Whether `line` is about a record that is loaded again, as far as that is known.
    pub fn is_of(&self, line: &RejectLine) -> bool {
        line.rejected.uri.as_ref().is_none_or(|uri| self.units.contains_key(uri))
    }

    /// What is kept of a record that has failed again.
    pub fn again(&self, line: RejectLine) -> RejectLine {
        let uri = line.rejected.uri.clone().unwrap_or_default();
        let Some(unit) = self.unit(&uri) else { return line };
        if line.rejected.last_line.is_some() {
            // Other rows of the record may be loaded: this one alone is left out, and the record is not loaded again.
            let Rejected { uri, member, line: at, byte, .. } = unit.rejected.clone();
            let rejected = Rejected { uri, member, line: at, last_line: at, byte, ..line.rejected };
            return RejectLine { rejected, ..line };
        }
        let Rejected { step, kind, message, column, .. } = line.rejected;
        let rejected = Rejected { step, kind, message, column, ..unit.rejected.clone() };
        let again = Again { id: unit.id.clone(), sink: self.sink.clone(), round: self.round };
        RejectLine { rejected, again: Some(again), head: None, ..line }
    }

    /// An earlier attempt has loaded this unit; all of them, if none is named.
    pub fn pass(&self, uri: Option<&str>) {
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        match uri {
            Some(uri) => drop(passed.insert(uri.to_owned())),
            None => passed.extend(self.units.keys().cloned()),
        }
    }

    /// Rows cannot go into the sink one by one, in words that end a sentence.
    pub fn refuse(&self, why: &str) -> Error {
        let _ = self.why_not.set(why.to_owned());
        Error::refused(format!("rejects cannot be replayed into `{}`", self.sink))
            .cause(why)
            .hint("run the job again: it reads everything")
    }

    /// Everything is in the target: what was loaded is marked, before the ledger forgets it. `run` is this attempt.
    pub fn mark(&self, run: &str) -> Result<()> {
        let failed = self.failed(run)?;
        let loaded = self.units.values().filter(|unit| !failed.contains(&unit.id)).map(|unit| unit.id.clone());
        ReplayedRejects::add(&self.folder, &self.sink, loaded)
    }

    /// The ids of those that have failed again: in this attempt, or in the earlier one that has delivered them.
    fn failed(&self, run: &str) -> Result<HashSet<String>> {
        let passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        let by_id: HashMap<&str, &str> =
            self.units.iter().map(|(uri, unit)| (unit.id.as_str(), uri.as_str())).collect();
        let of_round = |again: &Again| again.sink == self.sink && again.round == self.round;
        let failed = failed_again(&self.folder)?.into_iter().filter(|(_, again)| of_round(again));
        let counts = |by: &str, id: &str| by == run || by_id.get(id).is_some_and(|uri| passed.contains(*uri));
        Ok(failed.filter(|(by, again)| counts(by, &again.id)).map(|(_, again)| again.id).collect())
    }
}

/// In the names of loads, after the sink.
pub const PREFIX: &str = "replay of ";
