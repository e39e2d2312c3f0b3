//! Rejects of a run: who may leave out how many records, and where they are kept.
//!
//! ```text
//!  parser ─ refuses a record ──────▶ ┐
//!  expression ─ fails on a row ────▶ ├─▶ limit of the entry ─▶ log ─▶ `millstream rejects`
//!  target ─ does not take a row ───▶ ┘        │ too many: the run ends
//! ```
//! The facts of a reject and the limits are in [`millstream_core::reject`]. The files are in
//! [`millstream_state::rejects`]. Here: `origin.rs` rows that carry their place with them, `replay.rs` what is loaded
//! again. Where nothing may be left out, none of these has any part in a run.

pub mod carried;
pub mod origin;
pub mod replay;
pub mod take;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Debug;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use arrow::array::RecordBatch;
use millstream_core::format::Reject;
use millstream_core::reject::{Counts, MaxRejects, RawText, RejectLimit, Rejected, place_of};
use millstream_core::sink::{Refusals, Refused, RefusedRow};
use millstream_core::{Error, ErrorKind, RejectKind, Result, Step};
use millstream_job::{CheckSeverity, Job};
use millstream_state::rejects::{Line, RejectLine, RejectLog, Rotation};
use serde_json::Value;

use self::replay::Replay;
use crate::member::MemberPlace;

/// How many rejects an error shows.
const SHOWN: usize = 5;

/// A record or row that is refused: what is kept of it, and the error if it may not be left out.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// What is kept.
    pub line: RejectLine,
    /// The error of a run that ends for it.
    pub error: Error,
}

/// What stands between two names of steps of which either may have done it.
const OR: &str = " or ";

/// Cuts the raw records of a source out of its text.
pub trait CutRecord: Debug + Send + Sync {
    /// What stands before the first record of a text with this beginning, where that says how records are to be read.
    fn head(&self, beginning: &[u8]) -> Vec<u8>;

    /// Whether a record is text; otherwise what is kept of it is its row.
    fn has_text(&self) -> bool;

    /// The first record of `text`, without its line end. `head` is the text before the first record of the file.
    fn record<'a>(&self, head: &[u8], text: &'a [u8]) -> &'a [u8];
}

/// The rejects of one run.
#[derive(Debug, Default)]
pub struct Rejects {
    /// Of the entries that may leave something out, by their names; sinks have names of their own.
    limits: RwLock<HashMap<Entry, Arc<RejectLimit>>>,
    log: OnceLock<RejectLog>,
    run: OnceLock<String>,
    /// The first ones of each step.
    first: Mutex<HashMap<String, Vec<Rejected>>>,
    /// Whether all of them may be left out, whatever the entries say.
    all: OnceLock<()>,
    /// Whether a transform may leave something out.
    lenient: OnceLock<()>,
    /// What those are of that are tied to no delivery.
    touched: Mutex<Touched>,
    /// What is loaded again by this run.
    replay: OnceLock<Arc<Replay>>,
    /// What cuts raw records, by the source.
    cutters: RwLock<HashMap<String, Arc<dyn CutRecord>>>,
    /// Whether rejects are counted and not kept.
    only_counted: OnceLock<()>,
    /// Keeps them elsewhere, for a worker of a cluster.
    elsewhere: OnceLock<Elsewhere>,
}

/// Keeps lines elsewhere.
struct Elsewhere(Box<dyn Fn(Vec<Line>) -> Result<()> + Send + Sync>);

impl Debug for Elsewhere {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Elsewhere")
    }
}

/// The units of which records were rejected.
#[derive(Debug, Clone, Default)]
pub struct Touched {
    /// Their paths or URLs, with passwords left out.
    pub units: HashSet<String>,
    /// The steps that have rejected something of which it is not known.
    pub unknown: HashSet<String>,
}

impl Touched {
    fn add(&mut self, Rejected { step, uri, last_line, .. }: &Rejected) {
        match uri {
            Some(uri) if last_line.is_none() => drop(self.units.insert(uri.clone())),
            _ => drop(self.unknown.insert(step.clone())),
        }
    }

    /// The names of the steps that have rejected something of which it is not known: of several, any may have.
    pub fn unknown_steps(&self) -> impl Iterator<Item = &str> {
        self.unknown.iter().flat_map(|step| step.split(OR))
    }
}

/// What an entry has left out so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// The entry: `sink out`, `places`.
    pub entry: String,
    /// How many records or rows.
    pub count: u64,
    /// Place and reason of the first of them, each in a line.
    pub first: Vec<String>,
}

/// An entry of a job that can refuse something.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Entry {
    /// A source or transform.
    Step(String),
    /// A sink.
    Sink(String),
}

impl Entry {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Entry::Step(name) | Entry::Sink(name) => name,
        }
    }

    /// What a message calls it: sinks have names of their own, and a step may have the same.
    pub fn shown(&self) -> String {
        match self {
            Entry::Step(name) => format!("`{name}`"),
            Entry::Sink(name) => format!("the sink `{name}`"),
        }
    }

    /// The key of its count in a file.
    fn key(&self) -> String {
        match self {
            Entry::Step(name) => name.clone(),
            Entry::Sink(name) => format!("sink {name}"),
        }
    }
}

impl Rejects {
    /// Takes over what the entries of `job` allow.
    pub fn allow(&self, job: &Job) {
        let steps = job.sources.iter().map(|source| (&source.name.value, source.max_rejects));
        let steps = steps.chain(job.transforms.iter().map(|step| (&step.name.value, step.max_rejects)));
        let steps = steps.map(|(name, most)| (Entry::Step(name.clone()), most));
        let sinks = job.sinks.iter().map(|sink| (Entry::Sink(sink.name.value.clone()), sink.max_rejects));
        let all = self.all.get().is_some();
        let checks = || job.checks().any(|(_, check)| check.severity == CheckSeverity::Reject);
        if all || job.transforms.iter().any(|step| step.max_rejects.allows_some()) || checks() {
            let _ = self.lenient.set(());
        }
        let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        // What is loaded again does not come from what is only looked up in: that is read as it is.
        let is_free = |entry: &Entry| match entry {
            Entry::Step(name) => all && job.reaches_sink(name),
            Entry::Sink(_) => all,
        };
        // Which share all workers together leave out is judged where all of it is known.
        let is_part = self.elsewhere.get().is_some();
        let most = |entry: &Entry, most: MaxRejects| match (most, is_free(entry)) {
            (_, true) => MaxRejects::Count(u64::MAX),
            (MaxRejects::Share(_), false) if is_part && most.allows_some() => MaxRejects::Count(u64::MAX),
            (most, false) => most,
        };
        let allowed = steps.chain(sinks).map(|(entry, asked)| {
            let most = most(&entry, asked);
            (entry, most)
        });
        limits.extend(
            allowed
                .filter(|(_, most)| most.allows_some())
                .map(|(entry, most)| (entry, Arc::new(RejectLimit::new(most)))),
        );
    }

    /// This run loads rejects again: every entry may leave out whatever it refuses, which stays a reject.
    pub fn replay(&self, replay: &Arc<Replay>) {
        let _ = self.all.set(());
        let _ = self.replay.set(Arc::clone(replay));
    }

    /// What is kept of a reject; of one that has failed again, with the place that it has had.
    pub fn as_kept(&self, line: RejectLine) -> RejectLine {
        match self.replay.get() {
            Some(replay) => replay.again(line),
            None => line,
        }
    }

    /// A unit was loaded before; all of them, if none is named.
    pub fn pass(&self, uri: Option<&str>) {
        if let Some(replay) = self.replay.get() {
            replay.pass(uri);
        }
    }

    /// Keeps rejects in the state folder, as those of `run`, which resumes `first` or is it; if `keep` says so, in
    /// pieces of which old ones can be removed.
    pub fn keep_in(&self, state: &Path, first: &str, run: &str, keep: Option<Duration>) {
        let log = RejectLog::new(state, first, run);
        let log = keep.into_iter().fold(log, |log, keep| log.in_pieces(Rotation::new(keep)));
        let _ = self.log.set(log);
        let _ = self.run.set(first.to_owned());
    }

    /// Lets `keep` keep them elsewhere: this is a worker of a cluster. Call it before [`Rejects::allow`].
    pub fn keep_by(&self, keep: impl Fn(Vec<Line>) -> Result<()> + Send + Sync + 'static) {
        let _ = self.elsewhere.set(Elsewhere(Box::new(keep)));
    }

    /// Where they are kept.
    pub fn log(&self) -> Option<&RejectLog> {
        self.log.get()
    }

    /// What a source or transform may leave out, if it may leave out anything. Of several, joined by `or`, all have to
    /// allow it, and the first counts.
    pub fn of_step(&self, step: &str) -> Option<Arc<RejectLimit>> {
        let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        if limits.is_empty() {
            return None;
        }
        let found: Option<Vec<_>> =
            step.split(OR).map(|name| limits.get(&Entry::Step(name.to_owned())).cloned()).collect();
        found?.into_iter().next()
    }

    /// What a sink may leave out, if it may leave out anything.
    pub fn of_sink(&self, sink: &str) -> Option<Arc<RejectLimit>> {
        let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        limits.get(&Entry::Sink(sink.to_owned())).cloned()
    }

    /// What an entry may leave out, if it may leave out anything.
    pub fn of(&self, entry: &Entry) -> Option<Arc<RejectLimit>> {
        match entry {
            Entry::Step(name) => self.of_step(name),
            Entry::Sink(name) => self.of_sink(name),
        }
    }

    /// What those among `steps` may leave out that may leave out anything.
    pub fn of_steps<'a>(&self, steps: impl Iterator<Item = &'a str>) -> Vec<Arc<RejectLimit>> {
        steps.filter_map(|step| self.of_step(step)).collect()
    }

    /// Whether a transform may leave something out.
    pub fn is_lenient(&self) -> bool {
        self.lenient.get().is_some()
    }

    /// Cuts raw records of `source` by `cutter`.
    pub fn cut_by(&self, source: &str, cutter: Arc<dyn CutRecord>) {
        self.cutters.write().unwrap_or_else(PoisonError::into_inner).insert(source.to_owned(), cutter);
    }

    /// What cuts raw records of `source`.
    pub fn cutter(&self, source: &str) -> Option<Arc<dyn CutRecord>> {
        self.cutters.read().unwrap_or_else(PoisonError::into_inner).get(source).cloned()
    }

    /// Leaves out what `entry` refuses, which is tied to no chunk. With more than it may leave out an error comes back.
    pub fn take(&self, entry: &Entry, refusals: Vec<Refusal>) -> Result<()> {
        let Some(first) = refusals.first() else { return Ok(()) };
        let Some(limit) = self.of(entry) else { return Err(allowing(first.error.clone(), entry)) };
        self.count(entry, &limit, &refusals)?;
        self.keep(refusals.into_iter().map(|refusal| refusal.line))
    }

    /// Counts what `entry` refuses. If it is too much, all of it is kept, and an error comes back.
    pub fn count(&self, entry: &Entry, limit: &RejectLimit, refusals: &[Refusal]) -> Result<()> {
        limit.add(refusals.len() as u64);
        self.show(refusals.iter().map(|refusal| &refusal.line.rejected));
        if !limit.is_passed() {
            return Ok(());
        }
        self.keep(refusals.iter().map(|refusal| refusal.line.clone()))?;
        self.flush()?;
        Err(self.too_many(entry, limit, refusals.last().map(|last| &last.error)))
    }

    /// Keeps rejects, which are durable once [`Rejects::flush`] has been called.
    pub fn keep(&self, lines: impl Iterator<Item = RejectLine>) -> Result<()> {
        // What is looked up in was read before, and what it refuses is kept.
        let is_new = |line: &RejectLine| self.replay.get().is_none_or(|replay| replay.is_of(line));
        let lines = lines.filter(is_new).inspect(|line| {
            self.touched.lock().unwrap_or_else(PoisonError::into_inner).add(&line.rejected);
        });
        self.add(lines.map(|line| Line::Reject(Box::new(self.as_kept(line)))), false)
    }

    /// The units of which this run has rejected records; of those that belong to a delivery only what parsers refuse.
    pub fn touched(&self) -> Touched {
        self.touched.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts rejects without keeping them: what only looks at a job leaves nothing behind.
    pub fn only_count(&self) {
        let _ = self.only_counted.set(());
    }

    /// What has been left out so far, by entry.
    pub fn left_out(&self) -> Vec<LeftOut> {
        let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let mut some: Vec<_> = limits.iter().filter(|(_, limit)| limit.rejected() > 0).collect();
        some.sort_by_key(|(entry, _)| *entry);
        let left_out = |(entry, limit): (&Entry, &Arc<RejectLimit>)| LeftOut {
            entry: entry.shown(),
            count: limit.rejected(),
            first: first.get(entry.name()).into_iter().flatten().map(one_line).collect(),
        };
        some.into_iter().map(left_out).collect()
    }

    /// Adds lines to the file.
    pub fn add(&self, lines: impl Iterator<Item = Line>, now: bool) -> Result<()> {
        let mut lines = lines.peekable();
        if lines.peek().is_none() || self.only_counted.get().is_some() {
            return Ok(());
        }
        if let Some(Elsewhere(keep)) = self.elsewhere.get() {
            return keep(lines.collect());
        }
        self.known_log()?.add(lines, now)
    }

    /// The file; an error if there is no place for it.
    pub fn known_log(&self) -> Result<&RejectLog> {
        self.log.get().ok_or_else(|| {
            Error::refused("there is no folder to keep rejects in").hint("name one with `--state` or MILLSTREAM_STATE")
        })
    }

    /// Returns when everything that was kept is durable.
    pub fn flush(&self) -> Result<()> {
        let Some(log) = self.log.get() else { return Ok(()) };
        let came = self.came();
        if log.has_some() && !came.is_empty() {
            log.add([Line::Came { came }], false)?;
        }
        log.flush()
    }

    /// How many records have come to those whose share counts.
    pub fn came(&self) -> HashMap<String, u64> {
        let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        let shares = limits.iter().filter(|(_, limit)| matches!(limit.most(), MaxRejects::Share(_)));
        shares.map(|(entry, limit)| (entry.key(), limit.came())).collect()
    }

    /// How many records have come to all that may leave something out.
    pub fn all_came(&self) -> HashMap<String, u64> {
        let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        limits.iter().map(|(entry, limit)| (entry.key(), limit.came())).filter(|(_, came)| *came > 0).collect()
    }

    /// An error if any entry that counts its rejects has left out more than it may, whatever is still to come.
    pub fn passed(&self) -> Result<()> {
        let limits: BTreeMap<Entry, Arc<RejectLimit>> = {
            let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
            let counts = limits.iter().filter(|(_, limit)| matches!(limit.most(), MaxRejects::Count(_)));
            counts.map(|(entry, limit)| (entry.clone(), Arc::clone(limit))).collect()
        };
        let passed = limits.iter().find(|(_, limit)| limit.is_passed());
        passed.map_or(Ok(()), |(entry, limit)| Err(self.too_many(entry, limit, None)))
    }

    /// Takes over how many records had come to `entries` in earlier runs.
    pub fn carry_over(&self, came: &HashMap<String, u64>, entries: &[Entry]) {
        for entry in entries {
            if let (Some(limit), Some(came)) = (self.of(entry), came.get(&entry.key())) {
                limit.add_came(*came);
            }
        }
    }

    /// Counts a reject of an earlier run that stays.
    pub fn count_earlier(&self, rejected: &Rejected) {
        // A transform may have the name of a sink.
        let by_sink = rejected.sink.as_ref().filter(|sink| **sink == rejected.step);
        let by_sink = by_sink.filter(|_| rejected.kind != RejectKind::Expression);
        let limit = match by_sink {
            Some(sink) => self.of_sink(sink),
            None => self.of_step(&rejected.step),
        };
        if let Some(limit) = limit {
            limit.add(1);
            self.show([rejected]);
        }
    }

    fn show<'a>(&self, rejects: impl IntoIterator<Item = &'a Rejected>) {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        for rejected in rejects {
            match first.get_mut(&rejected.step) {
                Some(shown) if shown.len() >= SHOWN => {}
                Some(shown) => shown.push(rejected.clone()),
                None => drop(first.insert(rejected.step.clone(), vec![rejected.clone()])),
            }
        }
    }

    /// `error` of a run that ends since it has `rejected` so many, with the first of those steps for which `is_wanted`
    /// holds.
    pub fn with_first(&self, error: Error, rejected: u64, is_wanted: impl Fn(&str) -> bool) -> Error {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wanted: Vec<_> = first.iter().filter(|(step, _)| step.split(OR).any(&is_wanted)).collect();
        wanted.sort_by_key(|(step, _)| *step);
        let mut shown: Vec<String> = error.cause_text().map(str::to_owned).into_iter().collect();
        let all = wanted.into_iter().flat_map(|(_, rejects)| rejects);
        shown.extend(all.take(SHOWN).map(one_line));
        if rejected > SHOWN as u64 {
            shown.push("…".to_owned());
        }
        let hint = error.hint_text().map(str::to_owned).unwrap_or_default();
        let error = error.cause(shown.join("\n"));
        match self.run.get() {
            Some(run) => error.hint(format!("`millstream rejects {run}` shows all of them; {hint}")),
            None => error,
        }
    }

    /// Whether `entry` has left out more than it may, now that everything has come to it.
    pub fn judge(&self, entry: &Entry) -> Result<()> {
        let Some(limit) = self.of(entry).filter(|limit| limit.is_passed_at_end()) else { return Ok(()) };
        self.flush()?;
        Err(self.too_many(entry, &limit, None))
    }

    /// Whether any entry has left out more than it may, now that everything has come.
    pub fn judge_all(&self) -> Result<()> {
        let mut entries: Vec<Entry> = {
            let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
            limits.keys().cloned().collect()
        };
        entries.sort();
        entries.iter().try_for_each(|entry| self.judge(entry))
    }

    /// Another hour of a run that reads a queue has passed: an error if any entry has left out more than it may.
    pub fn hour_passed(&self) -> Result<()> {
        let limits: BTreeMap<Entry, Arc<RejectLimit>> = {
            let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
            limits.iter().map(|(entry, limit)| (entry.clone(), Arc::clone(limit))).collect()
        };
        let passed: Vec<_> = limits.iter().filter(|(_, limit)| limit.hour_passed()).collect();
        let Some((entry, limit)) = passed.first() else { return Ok(()) };
        self.flush()?;
        Err(self.too_many(entry, limit, None))
    }

    /// The error of a run in which `entry` has rejected more than it may; `last` of them was one too many.
    pub fn too_many(&self, entry: &Entry, limit: &RejectLimit, last: Option<&Error>) -> Error {
        let (name, Counts { came, rejected }) = (entry.name(), limit.judged());
        let entry = entry.shown();
        let was = if rejected == 1 { "was" } else { "were" };
        let how_many = match limit.most() {
            MaxRejects::Share(_) if came > 0 => {
                format!("{rejected} of {came} records ({:.2}%)", rejected as f64 / came as f64 * 100.0)
            }
            _ if rejected == 1 => "1 record".to_owned(),
            _ => format!("{rejected} records"),
        };
        let when = if limit.has_past() { " in the last 24 hours" } else { "" };
        let what = format!("{how_many} {was} rejected{when}, and `max_rejects` of {entry} allows {}", limit.most());
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let mut shown: Vec<String> = first.get(name).into_iter().flatten().map(one_line).collect();
        if rejected > shown.len() as u64 {
            shown.push("…".to_owned());
        }
        let mut error = Error::new(ErrorKind::Rejects, what).in_step(name).cause(shown.join("\n"));
        if let Some(last) = last {
            let place = last.location();
            error = place.uri.iter().fold(error, |error, uri| error.in_unit(uri, place.member.as_deref()));
            error = place.line.into_iter().fold(error, Error::line);
            error = place.last_line.into_iter().fold(error, Error::last_line);
        }
        let hint = format!("fix the data or the job, or raise `max_rejects` of {entry}");
        error.hint(match self.run.get() {
            Some(run) => format!("`millstream rejects {run}` shows all of them; {hint}"),
            None => hint,
        })
    }
}

/// Place and reason of a reject, in a line.
pub fn one_line(rejected: &Rejected) -> String {
    let place = place_of(rejected);
    match place.is_empty() {
        true => rejected.message.clone(),
        false => format!("{place}: {}", rejected.message),
    }
}

/// `error`, for which a run ends, with the way to let it go on.
pub fn allowing(error: Error, entry: &Entry) -> Error {
    let way = format!("to continue without such records: `max_rejects: 100` (or `1%`) at {}", entry.shown());
    let hint = error.hint_text().map_or_else(|| way.clone(), |hint| format!("{hint}; {way}"));
    error.hint(hint)
}

/// Why, in full: what is wrong, with the offending text and the cause.
pub fn message_of(error: &Error) -> String {
    let mut message = error.what().to_owned();
    if let Some(text) = error.offending_text() {
        message.push_str(&format!(": `{text}`"));
    }
    if let Some(cause) = error.cause_text() {
        message.push_str(&format!(": {cause}"));
    }
    message
}

/// A record that the parser of `source` refuses.
pub fn of_parser(rejects: &Rejects, source: &str, uri: &str, place: &MemberPlace, reject: Reject) -> Refusal {
    let cutter = rejects.cutter(source);
    let has_text = cutter.as_ref().is_none_or(|cutter| cutter.has_text());
    let head = cutter.map(|cutter| cutter.head(&place.beginning));
    let member = place.name.as_deref();
    let reason = if place.is_behind { reject.reason.without_line() } else { reject.reason };
    let error = reason.in_unit(uri, member).in_step(source);
    let rejected = Rejected {
        step: source.to_owned(),
        kind: error.reject_kind(),
        message: message_of(&error),
        column: error.location().column.clone(),
        source: Some(source.to_owned()),
        sink: None,
        uri: Some(millstream_core::redact::url(uri)),
        member: member.map(str::to_owned),
        line: Some(reject.line).filter(|_| !place.is_behind),
        id: None,
        last_line: None,
        byte: Some(reject.byte),
        raw: has_text.then(|| RawText::new(&reject.raw)),
        row: if has_text { None } else { serde_json::from_slice(&reject.raw).ok() },
    };
    Refusal { line: line(rejected, head.as_deref()), error }
}

/// The line of a reject that is tied to no chunk.
pub fn line(rejected: Rejected, head: Option<&[u8]>) -> RejectLine {
    let head = head.filter(|head| !head.is_empty()).map(RawText::new);
    RejectLine { rejected, head, chunk: None, delivery: 0, again: None }
}

/// A reject of a row whose place is not known.
pub fn of_row(step: &str, sink: Option<&str>, error: &Error, row: Option<&RecordBatch>) -> Rejected {
    let kind = match error.reject_kind() {
        RejectKind::Other => RejectKind::Expression,
        kind => kind,
    };
    Rejected {
        step: step.to_owned(),
        kind,
        message: message_of(error),
        column: error.location().column.clone(),
        source: None,
        sink: sink.map(str::to_owned),
        uri: None,
        member: None,
        line: None,
        id: None,
        last_line: None,
        byte: None,
        raw: None,
        row: row.and_then(json_of),
    }
}

/// A reject of a row that the target of `sink` does not take, whose place is not known.
pub fn of_refused(sink: &str, refused: &RefusedRow, row: Option<&RecordBatch>) -> Rejected {
    Rejected {
        step: sink.to_owned(),
        kind: refused.kind,
        message: refused.reason.clone(),
        column: refused.column.clone(),
        source: None,
        sink: Some(sink.to_owned()),
        uri: None,
        member: None,
        line: None,
        id: None,
        last_line: None,
        byte: None,
        raw: None,
        row: row.and_then(json_of).or_else(|| Some(Value::String(refused.shown.clone()))),
    }
}

/// The first row of `batch` as its columns; `None` if it has columns that JSON cannot show.
pub fn json_of(batch: &RecordBatch) -> Option<Value> {
    let mut writer = arrow_json::WriterBuilder::new()
        .with_explicit_nulls(true)
        .build::<_, arrow_json::writer::LineDelimited>(Vec::new());
    writer.write(&batch.slice(0, 1)).ok()?;
    writer.finish().ok()?;
    serde_json::from_slice(&writer.into_inner()).ok()
}

/// Rows that a target refuses in a load that is not chunk by chunk.
#[derive(Debug)]
pub struct SinkRefusals {
    rejects: Arc<Rejects>,
    limit: Arc<RejectLimit>,
    sink: String,
    step: Arc<Step>,
}

impl SinkRefusals {
    /// Those of `sink`, if it may leave something out; they are counted in `step`.
    pub fn of(rejects: &Arc<Rejects>, sink: &str, step: &Arc<Step>) -> Option<Arc<Self>> {
        let limit = rejects.of_sink(sink)?;
        let (rejects, step) = (Arc::clone(rejects), Arc::clone(step));
        Some(Arc::new(SinkRefusals { rejects, limit, sink: sink.to_owned(), step }))
    }
}

impl Refusals for SinkRefusals {
    fn room(&self, _: u64) -> usize {
        // What has come is counted when it is handed over.
        usize::try_from(self.limit.room(0)).unwrap_or(usize::MAX - 1)
    }

    fn refuse(&self, place: &str, refused: &Refused) -> Result<()> {
        let refusal = |row: &RefusedRow| {
            let error = Refused { rows: vec![row.clone()], more: false }.into_error(place).in_step(&self.sink);
            origin::refusal_of_row(&self.rejects, row.record.as_ref(), error, |row_alone| {
                of_refused(&self.sink, row, row_alone)
            })
        };
        let refusals: Vec<Refusal> = refused.rows.iter().map(refusal).collect();
        let count = refusals.len() as u64;
        self.rejects.take(&Entry::Sink(self.sink.clone()), refusals)?;
        if refused.more {
            return Err(refused.clone().into_error(place));
        }
        self.step.refuse_rows(count);
        Ok(())
    }
}
