//! A run as lists have it, and the shapes that several answers share.

use millstream::history::{OfStep, Outcome, RunHistory, RunKind, RunRecord};
use schemars::JsonSchema;
use serde::Serialize;

use crate::folder::Folder;

/// A run, as lists have it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RunSummary {
    /// Its name.
    pub run: String,
    /// The first run of its resume chain.
    pub logical: String,
    /// What it is of.
    pub kind: &'static str,
    /// The path of the job or sequence from the root.
    pub job: String,
    /// Its name from the folder, if it is in it.
    pub file: Option<String>,
    /// `NAME=VALUE`, a line each; those of secrets are `***`.
    pub variables: String,
    /// The number of its process.
    pub process: u32,
    /// When it began, in milliseconds since 1970.
    pub began: u64,
    /// When it ended.
    pub ended: Option<u64>,
    /// How long it has taken so far.
    pub seconds: Option<f64>,
    /// How it ended, or `running`.
    pub outcome: &'static str,
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
    /// Rows or messages a second, while it runs.
    pub rate: Option<f64>,
    /// The part of all bytes that is read, from 0 to 1, while it runs.
    pub share: Option<f64>,
    /// The step of a sequence that it is.
    pub of_step: Option<StepOf>,
    /// Whether it left something that can be resumed.
    pub is_unfinished: bool,
}

/// The step of a sequence that a run is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StepOf {
    /// The first run of the sequence.
    pub sequence: String,
    /// The name of the step; of a loop with the item.
    pub step: String,
}

impl StepOf {
    /// The same as the history has it.
    pub fn of(of: &OfStep) -> Self {
        StepOf { sequence: of.sequence.clone(), step: of.step.clone() }
    }
}

/// What is called `job` or `sequence`.
pub fn kind_name(kind: RunKind) -> &'static str {
    match kind {
        RunKind::Job => "job",
        RunKind::Sequence => "sequence",
    }
}

/// `run` for lists.
pub fn summary(history: &RunHistory, folder: &Folder, run: &RunRecord) -> RunSummary {
    let is_running = run.outcome == Outcome::Running;
    let status = run.status.as_ref().filter(|_| is_running);
    // One that cannot be asked is shown as one that has nothing to resume.
    let is_unfinished = run.outcome.is_unfinished() && history.is_last_word(run).unwrap_or(false);
    RunSummary {
        run: run.run.clone(),
        logical: run.logical.clone(),
        kind: kind_name(run.kind),
        file: folder.name_of(&run.job),
        job: run.job.clone(),
        variables: run.shown_variables(),
        process: run.process,
        began: run.began,
        ended: run.ended,
        seconds: run.took().map(|took| took.as_secs_f64()),
        outcome: run.outcome.name(),
        message: run.shown_message(),
        rows_read: run.rows_read,
        rows_written: run.rows_written,
        rows_rejected: run.rows_rejected,
        units: run.units,
        rate: status.map(|status| status.rate).filter(|_| run.kind == RunKind::Job),
        share: status.and_then(|status| status.share),
        of_step: run.of_step.as_ref().map(StepOf::of),
        is_unfinished,
    }
}
