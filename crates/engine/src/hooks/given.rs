//! What hooks are given.

use crate::surroundings::Surroundings;

/// How a run has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    Failed,
    Interrupted,
}

impl Outcome {
    pub(super) fn name(self) -> &'static str {
        match self {
            Outcome::Done => "done",
            Outcome::Failed => "failed",
            Outcome::Interrupted => "interrupted",
        }
    }
}

/// What hooks are given.
pub(super) struct Given<'a> {
    pub(super) job: &'a str,
    pub(super) run: &'a str,
    pub(super) outcome: Outcome,
    /// The report, or why there is none, as JSON without secrets.
    pub(super) report: String,
    /// The same in one sentence.
    pub(super) sentence: String,
    pub(super) surroundings: &'a Surroundings,
}
