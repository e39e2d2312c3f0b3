//! What a run tells at its end: for people, and as one JSON object for machines.

use std::time::Duration;

use millstream_core::queue::Lag;
use millstream_core::sink::{Changes, Removed};
use millstream_core::step::StepSnapshot;
use millstream_core::threads::ProcessorUse;
use millstream_core::{Error, Result, StepKind, Steps};
use millstream_job::{CheckSeverity, JobEntry};
use serde::{Deserialize, Serialize};

use crate::verdict::Verdict;

/// What a run did.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// The job file.
    pub job: String,
    /// The run's name.
    pub run: String,
    /// The first run of its resume chain.
    pub resumes: Option<String>,
    /// When its logical run began, in the time zone of the job: what its dates were computed of.
    pub began: String,
    /// The day of its dates, if it resumes a run of another day than today. Then the run of today is still to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub earlier_day: Option<String>,
    /// Why the run was skipped: a requirement of the job that did not hold. It has read and written nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_run: Option<String>,
    /// How often the run was attempted, with `retry_run`.
    pub attempts: u32,
    /// Whether everything was loaded before.
    pub nothing_new: bool,
    /// Units that were loaded before.
    pub units_loaded_before: u64,
    /// Whether the run has only loaded files that some of its sinks had, and others lacked.
    pub caught_up: bool,
    /// Runs before this one that only loaded files that some of its sinks had, and others lacked. The report of a
    /// command adds up what they and this one did; the run history has each alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub catch_up_runs: Vec<String>,
    /// How long it took.
    pub seconds: f64,
    /// Records that were read, those that were refused among them.
    pub rows_read: u64,
    /// Rows that the sinks took.
    pub rows_written: u64,
    /// Records that were refused.
    pub rows_rejected: u64,
    /// The run under which `millstream rejects` shows these, if there are any.
    pub rejects: Option<String>,
    /// Units that could not be opened and were left out (`on_error: skip`).
    pub units_skipped: u64,
    /// The first of these, and why.
    pub skipped: Vec<Skipped>,
    /// Files that are not ready to be read: a later run reads them (`ready`).
    pub not_ready: Vec<LeftFiles>,
    /// Sources of which patterns match no file (`allow_empty`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unmatched: Vec<UnmatchedPatterns>,
    /// Files that have changed and stay as they were loaded (`on_change: skip`), by sink and source.
    pub changed: Vec<LeftFiles>,
    /// Files that were moved or deleted once they were loaded (`after_load`), by source.
    pub disposed: Vec<DisposedFiles>,
    /// The rows that were read of sources with `incremental: {by: COLUMN}`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<WindowRead>,
    /// Columns that files lacked and that are null in their rows (`on_drift: null` or `widen`).
    pub missing_columns: Vec<MissingColumn>,
    /// What the checks of the job have come to.
    pub checks: Vec<CheckResult>,
    /// Bytes fetched, as stored.
    pub bytes_read: u64,
    /// Bytes of local files that were in the page cache when they were wanted.
    pub bytes_from_cache: u64,
    /// Bytes of local files that had to come from the disk.
    pub bytes_from_disk: u64,
    /// Bytes handed to the targets.
    pub bytes_written: u64,
    /// The largest resident size of the process.
    pub peak_rss_bytes: u64,
    /// The most memory of the process and of those that worked for the run, at one time.
    pub peak_memory_bytes: u64,
    /// The most memory of the processes that worked for the run.
    pub peak_workers_bytes: u64,
    /// The memory budget.
    pub memory_bytes: u64,
    /// Workers.
    pub cores: usize,
    /// Processor time of the process over the run, and of those that worked for it, in seconds.
    pub cpu_seconds: f64,
    /// What each sink now holds.
    pub results: Vec<SinkResult>,
    /// The entries of the job: sources, transforms, then sinks.
    pub entries: Vec<JobEntry>,
    /// The counters of all steps.
    pub steps: Vec<StepSnapshot>,
    /// How far the run was at points of its time, at most 120 of them, in their order; the last one is its end. The
    /// longer the run, the further they are apart. None of a run that has read a queue: it has intervals.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<TimePoint>,
    /// Of a run that has read a queue: what it did in each interval, at most 120 of them, in their order. The longer
    /// the run, the longer they are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub intervals: Vec<Interval>,
    /// What limited the run; if it has read a queue for more than a minute, in the last minute.
    pub verdict: Verdict,
    /// What the workers of a cluster have done, if it had one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterReport>,
    /// What was done after it, as the job says.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<HookResult>,
}

/// What the workers of a cluster do, or have done, for a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterReport {
    /// How many workers there are now.
    pub now: u64,
    /// Bundles that are done.
    pub bundles: u64,
    /// Bundles that are being read.
    pub reading: u64,
    /// Units that are done, and those that were listed so far.
    pub units: (u64, u64),
    /// Their bytes, as stored.
    pub bytes: (u64, u64),
    /// All workers that have joined, in the order in which they did.
    pub workers: Vec<WorkerReport>,
}

impl ClusterReport {
    /// The processor time of all workers, and how many cores they have together.
    pub(crate) fn processor(&self) -> (ProcessorUse, usize) {
        let time = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let mut used = ProcessorUse::default();
        for worker in &self.workers {
            used.add(ProcessorUse { busy: time(worker.cpu_seconds), delayed: time(worker.delayed_seconds) });
        }
        let cores = self.workers.iter().filter(|worker| worker.bundles > 0).map(|worker| worker.cores).sum::<u64>();
        (used, usize::try_from(cores).unwrap_or(usize::MAX))
    }
}

/// What a worker has done.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerReport {
    /// Its machine and process.
    pub worker: String,
    /// Its cores.
    pub cores: u64,
    /// The memory that it may use, in bytes.
    pub memory_bytes: u64,
    /// Bundles that it has read.
    pub bundles: u64,
    /// Units that these had.
    pub units: u64,
    /// Rows that it has committed.
    pub rows: u64,
    /// Bytes that it has fetched.
    pub bytes: u64,
    /// How long its bundles took together, in seconds.
    pub seconds: f64,
    /// Its processor time, in seconds.
    pub cpu_seconds: f64,
    /// How long its threads were ready to run while others had the processor, in seconds.
    pub delayed_seconds: f64,
    /// The most memory that its process had, in bytes.
    pub peak_rss_bytes: u64,
    /// Why it was lost, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
}

impl Report {
    /// Rows that the sink `name` took.
    pub(crate) fn rows_into(&self, name: &str) -> u64 {
        let loads = self.steps.iter().filter(|step| step.kind == StepKind::Load && step.name == name);
        loads.map(|step| step.rows).sum()
    }
}

/// How far a run was at a point of its time: all counts are since its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimePoint {
    /// How long it had lasted, in milliseconds.
    pub elapsed_ms: u64,
    /// Records that were read, those that were refused among them.
    pub rows_read: u64,
    /// Rows that the sinks took.
    pub rows_written: u64,
    /// Bytes fetched, as stored.
    pub bytes_read: u64,
}

/// What a run that reads a queue did in an interval of its time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// When it began, in UTC: `2026-11-26T00:31:28Z`.
    pub from: String,
    /// When it ended.
    pub to: String,
    /// Messages that came, those that came again among them.
    pub messages: u64,
    /// Rows that the sinks took.
    pub rows_written: u64,
    /// Records that were refused.
    pub rejected: u64,
    /// Epochs that were committed.
    pub epochs: u64,
    /// Messages that the group had not read at its end, if the queue says so.
    pub lag: Option<u64>,
    /// The age of the oldest message that was read and not acknowledged at its end, if there was one.
    pub oldest_seconds: Option<f64>,
}

/// What has become of something that was done after a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookResult {
    /// What: the program, the URL or the recipients.
    pub hook: String,
    /// Why it has failed, if it has.
    pub error: Option<String>,
}

/// A unit that could not be opened.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Skipped {
    /// The source's name.
    pub source: String,
    /// The unit.
    pub uri: Option<String>,
    /// Why.
    pub what: String,
}

/// Files of a source that a run has left alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftFiles {
    /// The source's name.
    pub source: String,
    /// How many.
    pub files: u64,
    /// The first of them, at most ten.
    pub first: Vec<String>,
}

impl LeftFiles {
    /// Of all of them; `None` if there are none.
    pub fn of(source: &str, mut all: Vec<String>) -> Option<Self> {
        let files = all.len() as u64;
        all.truncate(Removed::NAMED);
        (files > 0).then(|| LeftFiles { source: source.to_owned(), files, first: all })
    }
}

/// The rows that a run has read of a source by the time in a column. Times are in ISO form, with a `Z` if they are in
/// UTC, and otherwise as the column has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowRead {
    /// The source's name.
    pub source: String,
    /// The column.
    pub by: String,
    /// The first time that was read; `None` if it was all rows up to the end.
    pub from: Option<String>,
    /// The first time that was not read any more; `None` if there was no end.
    pub until: Option<String>,
    /// Up to where all rows are loaded now, but for those of transactions that take longer than the lag.
    pub mark: String,
}

/// What has become of the files of a source once they were loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DisposedFiles {
    /// The source's name.
    pub source: String,
    /// How many were moved.
    pub moved: u64,
    /// How many were deleted.
    pub deleted: u64,
    /// How many are loaded and stay where they are: the next run tries again.
    pub left: u64,
    /// The first of these, at most ten.
    pub first_left: Vec<LeftFile>,
}

/// A file that stays where it is, though it is loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftFile {
    /// Its path.
    pub uri: String,
    /// Why.
    pub what: String,
}

impl DisposedFiles {
    /// None of `left` files of `source`, for one reason.
    pub fn none(source: &str, left: u64, what: &str) -> Self {
        let first_left = vec![LeftFile { uri: source.to_owned(), what: what.to_owned() }];
        DisposedFiles { source: source.to_owned(), left, first_left, ..DisposedFiles::default() }
    }

    /// Whether there were any files.
    pub fn is_something(&self) -> bool {
        self.moved + self.deleted + self.left > 0
    }
}

/// Files whose rows a sink has replaced.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadedFiles {
    /// How many.
    pub files: u64,
    /// Rows that were deleted.
    pub rows_deleted: u64,
    /// Rows that were inserted in their place.
    pub rows_inserted: u64,
    /// The first files that had no rows in the table any more, though they were loaded before; at most ten.
    pub without_rows: Vec<String>,
}

/// The patterns of a source that match no file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnmatchedPatterns {
    /// The source's name.
    pub source: String,
    /// The patterns, without passwords.
    pub patterns: Vec<String>,
}

/// A column that files of a source lacked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingColumn {
    /// The source's name.
    pub source: String,
    /// The column.
    pub column: String,
    /// How many files (or members) lacked it.
    pub files: u64,
    /// The first of them that were read, at most ten.
    pub first: Vec<String>,
}

/// What a check of an entry's rows has come to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckResult {
    /// The source or transform; for a sink `sink NAME`.
    pub entry: String,
    /// The rule in a few words: `not_null: id`.
    pub check: String,
    /// What happens if it does not hold.
    pub severity: CheckSeverity,
    /// Whether it holds. One that leaves rows out always does.
    pub holds: bool,
    /// Rows that came to the check: for one that rejects, those that earlier ones have not left out; for others, those
    /// that are kept.
    pub rows: u64,
    /// Rows that break the rule.
    pub broken: u64,
    /// How many may, if any may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_most: Option<String>,
    /// What was found, in words.
    pub what: String,
    /// Some of the rows that break the rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<String>,
}

/// What a sink now holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SinkResult {
    /// The sink's name.
    pub sink: String,
    /// The target.
    pub target: String,
    /// What there is: "252 rows in table t".
    pub summary: String,
    /// Files of earlier runs that were removed, if there are any.
    pub removed: Option<Removed>,
    /// What was replaced of files that have changed (`on_change: reload`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reloaded: Option<ReloadedFiles>,
    /// What has changed in the target, if its rows were compared with those that came.
    pub changes: Option<Changes>,
    /// What has become of the records, if each row comes from one of them.
    pub tally: Option<Tally>,
}

/// Sums over the counters of a run as it stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Rows that came out of the sources' parsers.
    pub rows_read: u64,
    /// Rows that the sinks took.
    pub rows_written: u64,
    /// Records that were refused.
    pub rows_rejected: u64,
    /// Bytes fetched, as stored.
    pub bytes_read: u64,
    /// Bytes that are known to come, as stored; grows while listing goes on.
    pub bytes_expected: u64,
    /// Bytes handed to the targets.
    pub bytes_written: u64,
    /// Units read to their end.
    pub units: u64,
    /// Units known.
    pub units_expected: u64,
}

impl Totals {
    /// Sums up `steps`.
    pub fn of(steps: &[StepSnapshot]) -> Self {
        let mut totals = Totals::default();
        for step in steps {
            totals.rows_rejected += step.rejected;
            match step.kind {
                StepKind::Fetch => {
                    totals.bytes_read += step.bytes;
                    totals.bytes_expected += step.bytes_total;
                    totals.units += step.units;
                    totals.units_expected += step.units_total;
                }
                StepKind::Parse => totals.rows_read += step.rows + step.rejected + step.passed_over,
                StepKind::Load => {
                    totals.rows_written += step.rows;
                    totals.bytes_written += step.bytes;
                }
                StepKind::List | StepKind::Decode | StepKind::Transform => {}
            }
        }
        totals
    }
}

/// What has become of the records of row-preserving pipelines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Records that were read.
    pub read: u64,
    /// Rows that the target has.
    pub written: u64,
    /// Rows that a filter left out.
    pub filtered: u64,
    /// Records and rows that were refused.
    pub rejected: u64,
    /// Rows whose key was there already, where the mode leaves these out.
    pub ignored: u64,
    /// Records that were read again, though an earlier run had loaded them.
    pub before: u64,
    /// Rows that steps of one's own have answered in batches: they became the rows that were given.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub answered: u64,
    /// Rows that these steps gave for them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub given: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Tally {
    /// The sum of both.
    pub fn and(self, other: Tally) -> Tally {
        Tally {
            read: self.read + other.read,
            written: self.written + other.written,
            filtered: self.filtered + other.filtered,
            rejected: self.rejected + other.rejected,
            ignored: self.ignored + other.ignored,
            before: self.before + other.before,
            answered: self.answered + other.answered,
            given: self.given + other.given,
        }
    }

    /// What has come since it was `before`.
    pub fn minus(self, before: Tally) -> Tally {
        Tally {
            read: self.read.saturating_sub(before.read),
            written: self.written.saturating_sub(before.written),
            filtered: self.filtered.saturating_sub(before.filtered),
            rejected: self.rejected.saturating_sub(before.rejected),
            ignored: self.ignored.saturating_sub(before.ignored),
            before: self.before.saturating_sub(before.before),
            answered: self.answered.saturating_sub(before.answered),
            given: self.given.saturating_sub(before.given),
        }
    }

    /// None of the records may be missing.
    pub fn check(&self, sink: &str) -> Result<()> {
        let Tally { read, written, filtered, rejected, ignored, before, answered, given } = *self;
        match read + given == written + filtered + rejected + ignored + before + answered {
            true => Ok(()),
            false => Err(self.fault(sink)),
        }
    }

    /// The error of a run in which records are missing.
    pub fn fault(&self, sink: &str) -> Error {
        let Tally { read, written, filtered, rejected, ignored, before, answered, given } = *self;
        let also = |count: u64, what: &str| if count > 0 { format!(" + {count} {what}") } else { String::new() };
        let (before, given) = (also(before, "loaded before"), also(given, "given"));
        let answered = also(answered, "answered in batches");
        Error::internal("the numbers of records do not fit together").in_step(sink).cause(format!(
            "{read} read{given}, but {written} written + {filtered} filtered + {rejected} rejected + {ignored} ignored \
             as duplicates{before}{answered}"
        ))
    }
}

/// The rows of a step that processes compute, as the run stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkedRows {
    /// The entry of the job.
    pub step: String,
    /// Rows that came into the step.
    pub rows_in: u64,
    /// Rows that it gave.
    pub rows_out: u64,
}

/// How far a run is.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// The name of the run. One that is resumed has another one, and other counters.
    pub run: String,
    /// Time since the run began.
    pub elapsed: Duration,
    /// The sums so far.
    pub totals: Totals,
    /// The steps that processes compute.
    pub worked: Vec<WorkedRows>,
    /// What the run is doing: `reading`, `committing`.
    pub phase: Phase,
    /// The counters of all steps.
    pub steps: Vec<StepSnapshot>,
    /// Rows that were read, or messages of a queue, a second, over the last seconds.
    pub rate: f64,
    /// How many bytes a second its sources may read at most, if the job says so.
    pub throttle: Option<u64>,
    /// How the queue is read, if the run reads one.
    pub queue: Option<QueueProgress>,
    /// What workers of a cluster do, if the run has some.
    pub cluster: Option<Box<ClusterReport>>,
}

/// How far a run is with a queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueueProgress {
    /// Messages that came, those that came again among them.
    pub messages: u64,
    /// How its epochs have ended.
    pub epochs: EpochCounts,
    /// How far it is behind.
    pub lag: Lag,
}

/// How the epochs of a run have ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EpochCounts {
    /// Those that all of their sinks have committed.
    pub committed: u64,
    /// Those of which messages come again, since another process had loaded them.
    pub repeated: u64,
    /// Those that were given up: the run ended before all sinks had committed.
    pub dropped: u64,
    /// Transactions of sinks: one for each sink of an epoch, or for each of its places.
    pub commits: u64,
}

/// What a run is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Phase {
    /// Units are read.
    #[default]
    Reading,
    /// All units are read; what holds rows back (a sort, an aggregate, a slow target) is working them off.
    Finishing,
    /// The targets make the result durable and visible.
    Committing,
}

impl Progress {
    /// The progress of a run with these counters.
    pub fn of(steps: &Steps, elapsed: Duration, committing: bool) -> Self {
        let snapshots: Vec<StepSnapshot> = steps.all().iter().map(|step| step.snapshot()).collect();
        let totals = Totals::of(&snapshots);
        let worked = |step: &StepSnapshot| {
            let rows_in = step.work.as_ref()?.rows_in;
            Some(WorkedRows { step: step.name.clone(), rows_in, rows_out: step.rows })
        };
        let worked = snapshots.iter().filter_map(worked).collect();
        let phase = match committing {
            true => Phase::Committing,
            false if totals.units_expected > 0 && totals.units == totals.units_expected => Phase::Finishing,
            false => Phase::Reading,
        };
        Progress { elapsed, totals, worked, phase, steps: snapshots, ..Progress::default() }
    }

    /// Time until all that is known of is read, at the rate so far; `None` where nothing can be said.
    pub fn remaining(&self) -> Option<Duration> {
        let Totals { bytes_read, bytes_expected, .. } = self.totals;
        if bytes_read == 0 || bytes_expected <= bytes_read || self.phase != Phase::Reading {
            return None;
        }
        let rate = bytes_read as f64 / self.elapsed.as_secs_f64().max(1e-3);
        Some(Duration::from_secs_f64((bytes_expected - bytes_read) as f64 / rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_record_is_reported_with_all_figures() {
        let tally = Tally { read: 10, written: 5, filtered: 2, rejected: 1, ignored: 1, before: 1, ..Tally::default() };
        tally.check("o").expect("they fit together");
        let error = Tally { written: 4, ..tally }.check("o").expect_err("one is missing");
        assert_eq!(error.kind(), millstream_core::ErrorKind::Internal);
        let told = "10 read, but 4 written + 2 filtered + 1 rejected + 1 ignored as duplicates + 1 loaded before";
        assert_eq!((error.cause_text(), error.step_name()), (Some(told), Some("o")));
        assert!(Tally { written: 6, ..tally }.check("o").is_err(), "one too many is as wrong");
        let in_batches = Tally { answered: 7, given: 20, written: 18, ..tally };
        in_batches.check("o").expect("they fit together on each side");
        assert!(Tally { answered: 6, ..in_batches }.check("o").is_err(), "one is not answered");
    }

    #[test]
    fn what_remains_follows_from_the_rate_so_far() {
        let steps = Steps::default();
        let fetch = steps.add("s", StepKind::Fetch, "file");
        fetch.expect(2, 1000);
        let progress = Progress::of(&steps, Duration::from_secs(1), false);
        assert_eq!(progress.remaining(), None, "nothing read yet");
        fetch.add_bytes(250);
        let progress = Progress::of(&steps, Duration::from_secs(1), false);
        assert_eq!(progress.remaining(), Some(Duration::from_secs(3)));
        fetch.add_units(2);
        assert_eq!(Progress::of(&steps, Duration::from_secs(1), false).phase, Phase::Finishing);
    }
}
