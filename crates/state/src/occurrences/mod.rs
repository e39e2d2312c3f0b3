//! Occurrences: what schedules have decided, in the tables beside those of the runs.
//!
//! An occurrence is a sequence (by the path of its file from the root) and a planned time, and there is one at most of
//! each. What is decided at a moment is stored in one transaction together with the moment up to which all is decided:
//! a scheduler that is killed between any two steps has decided either all of it or nothing. A run *claims* its
//! occurrence before it does anything, and exactly one run can.
//!
//! ```text
//!             ┌────────▶ skipped
//!  queued ──▶ started ──claim──▶ started, with its run ──▶ ended
//!                                     ▲    └── killed ──┐
//!                                     └─── a resume ────┘
//! ```
//! `decide.rs` what the scheduler decides, `claim.rs` how runs begin and end, `ask.rs` what was.

mod ask;
mod claim;
mod decide;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use rusqlite::Row;
use serde::Serialize;

use crate::history::{Outcome, RunHistory};

pub use ask::{Known, RunOfSequence};
pub use claim::Claim;
pub(crate) use claim::end;
pub use decide::{Arrival, Decisions, MissedTimes, NewOccurrence, SkippedTime};

/// The columns of an occurrence, in the order of [`occurrence`].
const COLUMNS: &str = "sequence, planned, state, cause, why, decided, run, logical, claimed, ended, outcome, message, \
                       attempts, late";

/// What schedules have decided, in the run history.
#[derive(Debug, Clone)]
pub struct Occurrences {
    history: Arc<RunHistory>,
}

impl Occurrences {
    /// Those in `history`.
    pub fn new(history: Arc<RunHistory>) -> Self {
        Occurrences { history }
    }

    /// The history that they are in.
    pub fn history(&self) -> &Arc<RunHistory> {
        &self.history
    }
}

/// How far an occurrence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OccurrenceState {
    /// It waits for the end of the one before it.
    Queued,
    /// It is to run, or runs.
    Started,
    /// Its run has ended, or could not begin.
    Ended,
    /// It will not run.
    Skipped,
}

impl OccurrenceState {
    /// What it is called, here and in the database.
    pub fn name(self) -> &'static str {
        match self {
            OccurrenceState::Queued => "queued",
            OccurrenceState::Started => "started",
            OccurrenceState::Ended => "ended",
            OccurrenceState::Skipped => "skipped",
        }
    }

    fn of(stored: &str) -> Self {
        let all = [OccurrenceState::Queued, OccurrenceState::Started, OccurrenceState::Ended];
        all.into_iter().find(|state| state.name() == stored).unwrap_or(OccurrenceState::Skipped)
    }
}

/// An occurrence. Moments are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Occurrence {
    /// The path of the sequence's file, from the root.
    pub sequence: String,
    /// The planned time.
    pub planned: i64,
    /// How far it is.
    pub state: OccurrenceState,
    /// What has brought it about.
    pub cause: Option<String>,
    /// Why it is skipped.
    pub why: Option<String>,
    /// When this was decided.
    pub decided: i64,
    /// The run that has claimed it; if that was resumed, the last one.
    pub run: Option<String>,
    /// The first run of the resume chain.
    pub logical: Option<String>,
    /// When it was first claimed.
    pub claimed: Option<i64>,
    /// When its run ended.
    pub ended: Option<i64>,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// The error, if it ended with one.
    pub message: Option<String>,
    /// How often it was started again after a process was killed.
    pub attempts: u32,
    /// When it became known that the deadline would be missed.
    pub late: Option<i64>,
}

fn occurrence(row: &Row<'_>) -> rusqlite::Result<Occurrence> {
    let outcome: Option<String> = row.get(10)?;
    Ok(Occurrence {
        sequence: row.get(0)?,
        planned: row.get(1)?,
        state: OccurrenceState::of(&row.get::<_, String>(2)?),
        cause: row.get(3)?,
        why: row.get(4)?,
        decided: row.get(5)?,
        run: row.get(6)?,
        logical: row.get(7)?,
        claimed: row.get(8)?,
        ended: row.get(9)?,
        outcome: outcome.as_deref().and_then(Outcome::stored),
        message: row.get(11)?,
        attempts: row.get(12)?,
        late: row.get(13)?,
    })
}
