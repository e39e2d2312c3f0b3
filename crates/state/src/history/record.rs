//! A run as the history stores it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millstream_core::{Error, ErrorKind, clock, redact};
use rusqlite::Row;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::status::RunStatus;

/// The columns of a record, in the order of [`record`].
pub(super) const COLUMNS: &str = "run, logical, job, variables, fingerprint, process, began, ended, outcome, message, \
                                  rows_read, rows_written, rows_rejected, units, predicted, report, program, \
                                  moment, series, kind, sequence, step";

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It is running.
    Running,
    /// Without an error.
    Done,
    /// With an error.
    Failed,
    /// It was cancelled.
    Interrupted,
    /// Its process ended before it could record how.
    Killed,
    /// It did not begin, since a requirement of its job did not hold, and the job says that it is skipped then.
    Skipped,
}

impl Outcome {
    /// How a run ends that ended with `error`, or without one.
    pub(super) fn of(error: Option<&Error>) -> Self {
        match error.map(Error::kind) {
            None => Outcome::Done,
            Some(ErrorKind::Interrupted) => Outcome::Interrupted,
            Some(_) => Outcome::Failed,
        }
    }

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Running => "running",
            Outcome::Done => "done",
            Outcome::Failed => "failed",
            Outcome::Interrupted => "interrupted",
            Outcome::Killed => "killed",
            Outcome::Skipped => "skipped",
        }
    }

    /// The outcome of this name that a run has stored, or its scheduler, when it ended.
    pub(crate) fn stored(name: &str) -> Option<Self> {
        let known = [Outcome::Done, Outcome::Failed, Outcome::Interrupted, Outcome::Killed, Outcome::Skipped];
        known.into_iter().find(|known| name == known.name())
    }

    /// Whether it left something to do.
    pub fn is_unfinished(self) -> bool {
        matches!(self, Outcome::Failed | Outcome::Interrupted | Outcome::Killed)
    }
}

/// What a run is of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RunKind {
    /// A job.
    #[default]
    Job,
    /// A sequence.
    Sequence,
}

impl RunKind {
    /// How it is stored: nothing for jobs, as in histories that had nothing else.
    pub(super) fn stored(self) -> Option<&'static str> {
        match self {
            RunKind::Job => None,
            RunKind::Sequence => Some("sequence"),
        }
    }

    pub(super) fn of(stored: Option<&str>) -> Self {
        if stored == RunKind::Sequence.stored() { RunKind::Sequence } else { RunKind::Job }
    }
}

/// The step of a sequence that a run is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfStep {
    /// The logical run of the sequence: its first run.
    pub sequence: String,
    /// The name of the step; of a loop with the item behind it.
    pub step: String,
}

/// What the run history says of a run.
#[derive(Debug, Clone, Serialize)]
pub struct RunRecord {
    /// Its name.
    pub run: String,
    /// The name of the first run of the resume chain.
    pub logical: String,
    /// The job's file.
    pub job: String,
    /// The variables of the command line.
    pub variables: String,
    /// The fingerprint of everything that its rows depended on.
    pub fingerprint: Option<String>,
    /// The number of its process.
    pub process: u32,
    /// When it began, in milliseconds since 1970.
    pub began: u64,
    /// When it ended.
    pub ended: Option<u64>,
    /// How it ended.
    pub outcome: Outcome,
    /// The error, if it ended with one.
    pub message: Option<String>,
    /// Rows that came out of the sources.
    pub rows_read: u64,
    /// Rows that were written.
    pub rows_written: u64,
    /// Records that were rejected.
    pub rows_rejected: u64,
    /// Units read to their end.
    pub units: u64,
    /// What was expected when it began.
    pub predicted: Value,
    /// Its report; of a run that has failed, what there was of it.
    pub report: Option<Value>,
    /// The version of Millstream; `None` for runs before this was stored.
    pub program: Option<String>,
    /// When the logical run began, in milliseconds since 1970; `None` for runs before this was stored.
    pub moment: Option<i64>,
    /// The series of runs that it belongs to, one for each value of a variable.
    pub series: Option<String>,
    /// What it is of.
    pub kind: RunKind,
    /// The step of a sequence that it is, if a sequence has started it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_step: Option<OfStep>,
    /// How it goes, or, if it was killed, how it went last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<RunStatus>,
}

impl RunRecord {
    /// Whether all that it was to load is loaded. One that only brought sinks to the same files is followed by another.
    pub fn is_complete(&self) -> bool {
        let caught_up = self.report.as_ref().is_some_and(|report| report["caught_up"] == true);
        self.outcome == Outcome::Done && !caught_up
    }

    /// When the logical run began, in milliseconds since 1970.
    pub fn moment(&self) -> i64 {
        self.moment.or_else(|| began(&self.logical)).unwrap_or_else(|| i64::try_from(self.began).unwrap_or(i64::MAX))
    }

    /// The run without what is not to be seen: the values of variables whose names suggest secrets, also in errors, and
    /// passwords in addresses.
    pub fn shown(mut self) -> Self {
        self.message = self.shown_message();
        let mut report = self.report.take();
        let errors = report.as_mut().and_then(|report| report.get_mut("errors")?.as_array_mut());
        for text in errors.into_iter().flatten().filter_map(Value::as_object_mut).flat_map(|error| error.values_mut()) {
            if let Value::String(text) = text {
                *text = self.shown_text(text);
            }
        }
        let parameters = report.as_mut().and_then(|report| report.get_mut("parameters")?.as_object_mut());
        for (name, value) in parameters.into_iter().flatten() {
            if redact::is_secret(name) {
                *value = redact::SHOWN.into();
            }
        }
        let variables = self.shown_variables();
        RunRecord { variables, report, ..self }
    }

    /// Its error, without what is not to be seen.
    pub fn shown_message(&self) -> Option<String> {
        self.message.as_deref().map(|message| self.shown_text(message))
    }

    fn shown_text(&self, text: &str) -> String {
        shown_text(&self.variables, text)
    }

    /// Its variables, without the values of those whose names suggest secrets.
    pub fn shown_variables(&self) -> String {
        redact::variables(&self.variables)
    }

    /// How long it took, or, if it has not recorded its end, how long it is known to have lasted.
    pub fn took(&self) -> Option<Duration> {
        let so_far = || match self.outcome {
            Outcome::Running => Some(clock::now()),
            _ => self.status.as_ref().map(|status| status.updated),
        };
        Some(Duration::from_millis(self.ended.or_else(so_far)?.saturating_sub(self.began)))
    }
}

/// `text` of a run with these variables, without the values of those whose names suggest secrets, and without passwords
/// in addresses.
pub(super) fn shown_text(variables: &str, text: &str) -> String {
    let pairs = variables.lines().filter_map(|line| line.split_once('='));
    let secrets = pairs.filter(|(name, _)| redact::is_secret(name)).map(|(_, value)| value);
    redact::urls(&redact::values(text, secrets))
}

/// When the run of this name began, in milliseconds since 1970: names begin with that.
pub fn began(run: &str) -> Option<i64> {
    run.split('-').next()?.parse().ok()
}

/// The name of a new run: when it begins, and in which process. Of runs that begin in the same millisecond, the later
/// has the next one.
pub fn new_name() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = clock::now();
    let next = |last: u64| now.max(last.saturating_add(1));
    let last = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
    format!("{}-{}", next(last.unwrap_or_default()), std::process::id())
}

/// What is stored of a run when it ends.
#[derive(Debug, Clone, Default)]
pub struct Ending {
    /// Rows that came out of the sources.
    pub rows_read: u64,
    /// Rows that were written.
    pub rows_written: u64,
    /// Records that were rejected.
    pub rows_rejected: u64,
    /// Units read to their end.
    pub units: u64,
    /// The report; of a run that has failed, what there is of it.
    pub report: Option<Value>,
}

/// The record in a row of [`COLUMNS`]. A run without an outcome has [`Outcome::Running`].
pub(super) fn record(row: &Row<'_>) -> rusqlite::Result<RunRecord> {
    let number = |index| row.get::<_, i64>(index).map(i64::unsigned_abs);
    let value = |index| -> rusqlite::Result<Option<Value>> {
        Ok(row.get::<_, Option<String>>(index)?.and_then(|text| serde_json::from_str(&text).ok()))
    };
    let outcome: Option<String> = row.get(8)?;
    Ok(RunRecord {
        run: row.get(0)?,
        logical: row.get(1)?,
        job: row.get(2)?,
        variables: row.get(3)?,
        fingerprint: row.get(4)?,
        process: row.get(5)?,
        began: number(6)?,
        ended: row.get::<_, Option<i64>>(7)?.map(i64::unsigned_abs),
        outcome: outcome.as_deref().and_then(Outcome::stored).unwrap_or(Outcome::Running),
        message: row.get(9)?,
        rows_read: number(10)?,
        rows_written: number(11)?,
        rows_rejected: number(12)?,
        units: number(13)?,
        predicted: value(14)?.unwrap_or(Value::Null),
        report: value(15)?,
        program: row.get(16)?,
        moment: row.get(17)?,
        series: row.get(18)?,
        kind: RunKind::of(row.get::<_, Option<String>>(19)?.as_deref()),
        of_step: row
            .get::<_, Option<String>>(20)?
            .zip(row.get::<_, Option<String>>(21)?)
            .map(|(sequence, step)| OfStep { sequence, step }),
        status: None,
    })
}
