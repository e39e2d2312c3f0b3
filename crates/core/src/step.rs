//! The counters of a step. Progress, ETA, verdict and report are computed from these and from nothing else.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepKind {
    /// Names become units.
    List,
    /// Units become bytes: disk, pipe or network.
    Fetch,
    /// Bytes become text.
    Decode,
    /// Text becomes batches.
    Parse,
    /// Batches become batches.
    Transform,
    /// Batches go to the target.
    Load,
}

impl fmt::Display for StepKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StepKind::List => "list",
            StepKind::Fetch => "fetch",
            StepKind::Decode => "decode",
            StepKind::Parse => "parse",
            StepKind::Transform => "transform",
            StepKind::Load => "load",
        })
    }
}

/// One step of a run. All counters only grow, except what is expected and rows that are refused later; times are summed
/// over the tasks that work on the step, so they can exceed the time of the run.
#[derive(Debug)]
pub struct Step {
    /// The job's name for it: an entry of the job file.
    pub name: String,
    /// What it does.
    pub kind: StepKind,
    detail: Mutex<String>,
    units: AtomicU64,
    units_total: AtomicU64,
    rows: AtomicU64,
    /// Rows that other processes have computed of a step that transforms.
    rows_elsewhere: AtomicU64,
    rejected: AtomicU64,
    passed_over: AtomicU64,
    bytes: AtomicU64,
    bytes_total: AtomicU64,
    busy: AtomicU64,
    waiting_input: AtomicU64,
    waiting_output: AtomicU64,
    waiting_scratch: AtomicU64,
    spilled: AtomicU64,
    spilled_for_want: AtomicU64,
    /// If processes compute it.
    work: Option<Work>,
    /// If it is a lookup.
    lookup: Option<Lookup>,
}

/// What is counted of a step that processes compute, which may give more or fewer rows than it takes.
#[derive(Debug, Default)]
struct Work {
    workers: usize,
    rows_in: AtomicU64,
    answered: AtomicU64,
    rejected: AtomicU64,
    given: AtomicU64,
    streams: AtomicU64,
    restarts: AtomicU64,
    lost: AtomicU64,
    retries: AtomicU64,
    /// Nanoseconds of processor time of processes elsewhere.
    cpu_elsewhere: AtomicU64,
}

/// What is counted of a lookup.
#[derive(Debug)]
struct Lookup {
    reference: String,
    rows: AtomicU64,
    matched: AtomicU64,
    missed: AtomicU64,
}

impl Step {
    /// A step with all counters at zero. `detail` says more than the kind: `gzip`, `http`, `hash join`.
    pub fn new(name: impl Into<String>, kind: StepKind, detail: impl Into<String>) -> Arc<Self> {
        Step::with(name.into(), kind, detail.into(), None, None)
    }

    /// A step that at most `workers` processes compute, with all counters at zero.
    pub fn of_processes(name: impl Into<String>, detail: impl Into<String>, workers: usize) -> Arc<Self> {
        let work = Work { workers, ..Work::default() };
        Step::with(name.into(), StepKind::Transform, detail.into(), Some(work), None)
    }

    /// A step that looks up in `reference`, with all counters at zero.
    pub fn of_lookup(name: impl Into<String>, detail: impl Into<String>, reference: impl Into<String>) -> Arc<Self> {
        let count = AtomicU64::default;
        let lookup = Lookup { reference: reference.into(), rows: count(), matched: count(), missed: count() };
        Step::with(name.into(), StepKind::Transform, detail.into(), None, Some(lookup))
    }

    fn with(name: String, kind: StepKind, detail: String, work: Option<Work>, lookup: Option<Lookup>) -> Arc<Self> {
        Arc::new(Step {
            name,
            kind,
            detail: Mutex::new(detail),
            units: AtomicU64::new(0),
            units_total: AtomicU64::new(0),
            rows: AtomicU64::new(0),
            rows_elsewhere: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            passed_over: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            bytes_total: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            waiting_input: AtomicU64::new(0),
            waiting_output: AtomicU64::new(0),
            waiting_scratch: AtomicU64::new(0),
            spilled: AtomicU64::new(0),
            spilled_for_want: AtomicU64::new(0),
            work,
            lookup,
        })
    }

    /// Whether processes compute it.
    pub fn is_of_processes(&self) -> bool {
        self.work.is_some()
    }

    /// The reference of a lookup has `rows` rows.
    pub fn set_reference(&self, rows: u64) {
        self.lookup.iter().for_each(|lookup| lookup.rows.store(rows, Ordering::Relaxed));
    }

    /// Rows that have found something in the reference, and that have not.
    pub fn add_looked_up(&self, matched: u64, missed: u64) {
        if let Some(lookup) = &self.lookup {
            lookup.matched.fetch_add(matched, Ordering::Relaxed);
            lookup.missed.fetch_add(missed, Ordering::Relaxed);
        }
    }

    /// Rows that came to the processes of the step.
    pub fn add_rows_in(&self, rows: u64) {
        self.count(rows, |work| &work.rows_in);
    }

    /// Rows that its processes have answered.
    pub fn add_answered(&self, rows: u64) {
        self.count(rows, |work| &work.answered);
    }

    /// Rows at which its processes have failed and that were left out. They are rejected where they are kept.
    pub fn add_failed(&self, rows: u64) {
        self.count(rows, |work| &work.rejected);
    }

    /// Rows that its processes have given.
    pub fn add_given(&self, rows: u64) {
        self.count(rows, |work| &work.given);
    }

    /// One of its processes has ended, taken too long or held too much, in a call that took `time`, and another takes
    /// its place.
    pub fn add_restart(&self, time: Duration) {
        self.count(1, |work| &work.restarts);
        self.count(nanoseconds(time), |work| &work.lost);
    }

    /// Rows that were given to one of its processes before are given to one again.
    pub fn add_retry(&self) {
        self.count(1, |work| &work.retries);
    }

    /// A stream of the step's rows begins.
    pub fn begin_stream(&self) {
        self.count(1, |work| &work.streams);
    }

    /// A stream of the step's rows has come to its end.
    pub fn end_stream(&self) {
        if let Some(work) = &self.work {
            work.streams.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn count(&self, count: u64, counter: impl Fn(&Work) -> &AtomicU64) {
        if let Some(work) = &self.work {
            counter(work).fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Whether no row is missing on either side of a step that processes compute: each that came in was answered or
    /// left out, and each that was given has gone out. Where not all rows were wanted, that is not known.
    ///
    /// # Errors
    /// If rows are missing.
    pub fn check(&self) -> Result<()> {
        let Some(work) = &self.work else { return Ok(()) };
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (rows_in, answered, rejected) = (read(&work.rows_in), read(&work.answered), read(&work.rejected));
        let (given, out) = (read(&work.given), read(&self.rows));
        if read(&work.streams) > 0 || (rows_in == answered + rejected && given == out) {
            return Ok(());
        }
        let cause = format!(
            "{rows_in} came in, but {answered} were answered + {rejected} rejected; {given} were given, but {out} went \
             out"
        );
        Err(Error::internal("the numbers of rows do not fit together").in_step(&self.name).cause(cause))
    }

    /// What the step works on, for people: `gzip`, `http`.
    pub fn detail(&self) -> String {
        self.detail.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// Adds to the detail what only the data tells (a codec found by its magic bytes); said once.
    pub fn add_detail(&self, detail: &str) {
        let mut known = self.detail.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !known.split(", ").any(|part| part == detail) {
            if !known.is_empty() {
                known.push_str(", ");
            }
            known.push_str(detail);
        }
    }

    /// Units finished.
    pub fn add_units(&self, units: u64) {
        self.units.fetch_add(units, Ordering::Relaxed);
    }

    /// Units and bytes that are to come, as far as known: what progress is measured against.
    pub fn expect(&self, units: u64, bytes: u64) {
        self.units_total.fetch_add(units, Ordering::Relaxed);
        self.bytes_total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Of the bytes that were to come, so many are not needed.
    pub fn expect_less(&self, bytes: u64) {
        let less = |total: u64| Some(total.saturating_sub(bytes));
        // It always gives a new value.
        let _ = self.bytes_total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Rows that left the step.
    pub fn add_rows(&self, rows: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
    }

    /// The rows that have left it in this process.
    pub fn own_rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// All rows that left the step were taken back.
    pub fn roll_back_rows(&self) {
        self.rows.store(0, Ordering::Relaxed);
    }

    /// So many of the rows were left out after all.
    pub fn leave_out_rows(&self, rows: u64) {
        self.rows.fetch_sub(rows, Ordering::Relaxed);
    }

    /// Adds records that lack the text that a source wants, and were not parsed.
    pub fn add_passed_over(&self, records: u64) {
        self.passed_over.fetch_add(records, Ordering::Relaxed);
    }

    /// Records that the step refused.
    pub fn add_rejected(&self, rows: u64) {
        self.rejected.fetch_add(rows, Ordering::Relaxed);
    }

    /// So many of those that were rejected are counted elsewhere.
    pub fn leave_out_rejected(&self, rows: u64) {
        self.rejected.fetch_sub(rows, Ordering::Relaxed);
    }

    /// Of the rows that were counted, so many were refused after all.
    pub fn refuse_rows(&self, rows: u64) {
        self.rows.fetch_sub(rows, Ordering::Relaxed);
        self.add_rejected(rows);
    }

    /// Bytes that left the step.
    pub fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The bytes counted so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes that the step wrote to scratch because memory was short.
    pub fn add_spilled(&self, bytes: u64) {
        self.spilled.fetch_add(bytes, Ordering::Relaxed);
        self.spilled_for_want.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that the step wrote to scratch as it was planned: it would gain little by more memory.
    pub fn add_spilled_as_planned(&self, bytes: u64) {
        self.spilled.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Time at work.
    pub fn add_busy(&self, time: Duration) {
        self.busy.fetch_add(nanoseconds(time), Ordering::Relaxed);
    }

    /// Time spent waiting for what comes in.
    pub fn add_waiting_input(&self, time: Duration) {
        self.waiting_input.fetch_add(nanoseconds(time), Ordering::Relaxed);
    }

    /// Time spent waiting for what comes after: the next step, or the target.
    pub fn add_waiting_output(&self, time: Duration) {
        self.waiting_output.fetch_add(nanoseconds(time), Ordering::Relaxed);
    }

    /// Time spent waiting for scratch.
    pub fn add_waiting_scratch(&self, time: Duration) {
        self.waiting_scratch.fetch_add(nanoseconds(time), Ordering::Relaxed);
    }

    /// Runs `work` and counts its time as busy.
    pub fn busy<T>(&self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.add_busy(start.elapsed());
        result
    }

    /// Runs `write`, a call that hands bytes to the target, and counts its time as waiting for output.
    pub fn writing<T>(&self, write: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = write();
        self.add_waiting_output(start.elapsed());
        result
    }

    /// Adds what another process has counted of the same step and has checked: bytes and times, what its processes
    /// did, and what was looked up. Its rows count only in a step that [transforms](StepKind::Transform).
    pub fn add_elsewhere(&self, other: &StepSnapshot) {
        let time = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        self.add_bytes(other.bytes);
        self.add_busy(time(other.busy));
        self.add_waiting_input(time(other.waiting_input));
        self.add_waiting_output(time(other.waiting_output));
        self.add_waiting_scratch(time(other.waiting_scratch));
        if self.kind == StepKind::Transform {
            self.rows_elsewhere.fetch_add(other.rows, Ordering::Relaxed);
        }
        if let Some(work) = &other.work {
            self.add_rows_in(work.rows_in);
            self.add_failed(work.rows_rejected);
            self.add_answered(work.rows_in.saturating_sub(work.rows_rejected));
            self.count(work.restarts, |own| &own.restarts);
            self.count(nanoseconds(time(work.lost_seconds)), |own| &own.lost);
            self.count(work.retries, |own| &own.retries);
            self.count(nanoseconds(time(work.cpu_seconds)), |own| &own.cpu_elsewhere);
        }
        if let (Some(own), Some(lookup)) = (&self.lookup, &other.lookup) {
            own.rows.fetch_max(lookup.reference_rows, Ordering::Relaxed);
            self.add_looked_up(lookup.matched, lookup.missed);
        }
    }

    /// The counters as they stand now.
    pub fn snapshot(&self) -> StepSnapshot {
        let seconds = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64 / 1e9;
        let (waiting_input, waiting_output) = (seconds(&self.waiting_input), seconds(&self.waiting_output));
        let waiting_scratch = seconds(&self.waiting_scratch);
        StepSnapshot {
            name: self.name.clone(),
            kind: self.kind,
            detail: self.detail(),
            units: self.units.load(Ordering::Relaxed),
            units_total: self.units_total.load(Ordering::Relaxed),
            rows: self.own_rows() + self.rows_elsewhere.load(Ordering::Relaxed),
            rejected: self.rejected.load(Ordering::Relaxed),
            passed_over: self.passed_over.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            bytes_total: self.bytes_total.load(Ordering::Relaxed),
            busy: seconds(&self.busy),
            waiting: waiting_input + waiting_output + waiting_scratch,
            waiting_input,
            waiting_output,
            waiting_scratch,
            spilled_bytes: self.spilled.load(Ordering::Relaxed),
            spilled_for_want: self.spilled_for_want.load(Ordering::Relaxed),
            work: self.work.as_ref().map(|work| WorkSnapshot {
                workers: work.workers,
                rows_in: work.rows_in.load(Ordering::Relaxed),
                rows_rejected: work.rejected.load(Ordering::Relaxed),
                restarts: work.restarts.load(Ordering::Relaxed),
                retries: work.retries.load(Ordering::Relaxed),
                lost_seconds: seconds(&work.lost),
                cpu_seconds: seconds(&work.cpu_elsewhere),
            }),
            lookup: self.lookup.as_ref().map(|lookup| LookupSnapshot {
                reference: lookup.reference.clone(),
                reference_rows: lookup.rows.load(Ordering::Relaxed),
                matched: lookup.matched.load(Ordering::Relaxed),
                missed: lookup.missed.load(Ordering::Relaxed),
            }),
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX)
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The counters of a step at one moment; times in seconds, summed over tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepSnapshot {
    /// The job's name for it.
    pub name: String,
    /// What it does.
    pub kind: StepKind,
    /// What it works on: `gzip`, `http`.
    pub detail: String,
    /// Units finished.
    pub units: u64,
    /// Units known of so far.
    pub units_total: u64,
    /// Rows that left the step.
    pub rows: u64,
    /// Records that the step refused.
    pub rejected: u64,
    /// Records that lack the text that a source wants, and were not parsed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub passed_over: u64,
    /// Bytes that left the step.
    pub bytes: u64,
    /// Bytes known to come through the step.
    pub bytes_total: u64,
    /// Seconds at work.
    pub busy: f64,
    /// Seconds spent waiting: for input, for output or for scratch.
    pub waiting: f64,
    /// Seconds spent waiting for input.
    pub waiting_input: f64,
    /// Seconds spent waiting for output.
    pub waiting_output: f64,
    /// Seconds spent waiting for scratch.
    pub waiting_scratch: f64,
    /// Bytes written to scratch because memory was short.
    pub spilled_bytes: u64,
    /// Of these, what was not planned: more memory would save it.
    pub spilled_for_want: u64,
    /// If processes compute the step: what came into it, and what they took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work: Option<WorkSnapshot>,
    /// If it is a lookup: what was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lookup: Option<LookupSnapshot>,
}

impl StepSnapshot {
    /// What the step has done since `earlier`, a snapshot of the same step. What it knows of (units, bytes to come,
    /// workers, the size of a reference) stays.
    pub fn since(&self, earlier: &StepSnapshot) -> StepSnapshot {
        let count = |of: fn(&StepSnapshot) -> u64| of(self).saturating_sub(of(earlier));
        let time = |of: fn(&StepSnapshot) -> f64| (of(self) - of(earlier)).max(0.0);
        StepSnapshot {
            units: count(|step| step.units),
            rows: count(|step| step.rows),
            rejected: count(|step| step.rejected),
            passed_over: count(|step| step.passed_over),
            bytes: count(|step| step.bytes),
            busy: time(|step| step.busy),
            waiting: time(|step| step.waiting),
            waiting_input: time(|step| step.waiting_input),
            waiting_output: time(|step| step.waiting_output),
            waiting_scratch: time(|step| step.waiting_scratch),
            spilled_bytes: count(|step| step.spilled_bytes),
            spilled_for_want: count(|step| step.spilled_for_want),
            work: self.work.as_ref().map(|work| match &earlier.work {
                Some(earlier) => work.since(earlier),
                None => work.clone(),
            }),
            ..self.clone()
        }
    }
}

impl WorkSnapshot {
    fn since(&self, earlier: &WorkSnapshot) -> WorkSnapshot {
        WorkSnapshot {
            workers: self.workers,
            rows_in: self.rows_in.saturating_sub(earlier.rows_in),
            rows_rejected: self.rows_rejected.saturating_sub(earlier.rows_rejected),
            restarts: self.restarts.saturating_sub(earlier.restarts),
            retries: self.retries.saturating_sub(earlier.retries),
            lost_seconds: (self.lost_seconds - earlier.lost_seconds).max(0.0),
            cpu_seconds: (self.cpu_seconds - earlier.cpu_seconds).max(0.0),
        }
    }
}

/// A lookup at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookupSnapshot {
    /// The entry that it looks up in.
    pub reference: String,
    /// How many rows that has.
    pub reference_rows: u64,
    /// Rows that have found something.
    pub matched: u64,
    /// Rows that have found nothing.
    pub missed: u64,
}

/// A step that processes compute, at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkSnapshot {
    /// How many processes there are at most.
    pub workers: usize,
    /// Rows that came into the step. For a function for SQL those that it was called for, again where an expression
    /// was computed again.
    pub rows_in: u64,
    /// Of these, rows at which the processes have failed. Where rows keep their origin up to a target that loads them
    /// chunk by chunk, they count among those that the target's step rejected.
    pub rows_rejected: u64,
    /// Processes that had ended, taken too long or held too much, and were replaced.
    pub restarts: u64,
    /// Calls with rows that were given to a process before.
    pub retries: u64,
    /// How long the calls took at which processes were replaced, in seconds, summed over the processes.
    pub lost_seconds: f64,
    /// Processor time of the processes, in seconds.
    pub cpu_seconds: f64,
}

/// All steps of a run, in the order in which they were added.
#[derive(Debug, Default)]
pub struct Steps(Mutex<Vec<Arc<Step>>>);

impl Steps {
    /// Adds a step.
    pub fn add(&self, name: impl Into<String>, kind: StepKind, detail: impl Into<String>) -> Arc<Step> {
        let step = Step::new(name, kind, detail);
        self.push(Arc::clone(&step));
        step
    }

    /// Adds `step`.
    pub fn push(&self, step: Arc<Step>) {
        self.lock().push(step);
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Removes all behind the first `count`.
    pub fn truncate(&self, count: usize) {
        self.lock().truncate(count);
    }

    /// All steps.
    pub fn all(&self) -> Vec<Arc<Step>> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Step>>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_processes_balance_on_each_side() {
        let step = Step::of_processes("t", "python", 2);
        step.begin_stream();
        step.add_rows_in(10);
        step.add_given(5);
        step.check().expect("not all rows were wanted");
        step.end_stream();
        let error = step.check().expect_err("ten are missing");
        assert_eq!((error.kind(), error.step_name()), (crate::ErrorKind::Internal, Some("t")));
        step.add_answered(9);
        step.add_failed(1);
        assert!(step.check().is_err(), "five were given that never went out");
        step.add_rows(5);
        step.check().expect("all are accounted for");
        let snapshot = step.snapshot().work.expect("processes compute it");
        assert_eq!((snapshot.workers, snapshot.rows_in, snapshot.rows_rejected), (2, 10, 1));
        assert_eq!(Step::new("s", StepKind::Parse, "csv").snapshot().work, None);
    }
}
