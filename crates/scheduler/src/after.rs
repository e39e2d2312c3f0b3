//! The end of another sequence, which starts one.
//!
//! The planned time is that of the run which has ended. So each logical run starts the sequence once, and nothing has
//! to be noted but a place in the history up to which all is decided, which only saves work.

use std::path::PathBuf;

use chrono::{DateTime, TimeDelta, Utc};
use millstream_core::Result;
use millstream_schedule::{AfterEnd, AfterSpec};
use millstream_state::occurrences::{Occurrence, OccurrenceState, RunOfSequence};
use millstream_state::{Occurrences, Outcome};

use crate::entry::{beside, moment};

/// The sequence that is followed.
#[derive(Debug)]
pub(crate) struct Followed {
    file: PathBuf,
    on: AfterEnd,
    /// All ends of runs up to this place of the history are decided.
    pub followed: i64,
}

/// What is to be decided about ends.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Ends {
    /// The planned time of the first run whose end starts the sequence.
    pub start: Option<i64>,
    /// All ends up to this place will be decided then.
    pub followed: i64,
}

impl Followed {
    /// What the sequence at `sequence` follows from the place `followed` of the history on.
    pub fn new(sequence: &str, after: &AfterSpec, followed: i64) -> Self {
        Followed { file: beside(sequence, after.sequence()), on: after.on(), followed }
    }

    /// The path of the other sequence, from the root.
    pub fn sequence(&self) -> String {
        let path = fs_err::canonicalize(&self.file).unwrap_or_else(|_| self.file.clone());
        path.to_string_lossy().into_owned()
    }

    /// What is to be decided now for `sequence`. What ended longer than `within` ago starts nothing.
    pub fn ends(
        &self,
        sequence: &str,
        occurrences: &Occurrences,
        now: DateTime<Utc>,
        within: TimeDelta,
    ) -> Result<Ends> {
        let other = self.sequence();
        let oldest = now.checked_sub_signed(within).unwrap_or(DateTime::<Utc>::MIN_UTC);
        let mut ends = Ends { start: None, followed: self.followed };
        let mut is_settled = true;
        for run in occurrences.runs_behind(&other, self.followed)? {
            let outcome = as_it_will_be(&run, || occurrences.find(&other, run.moment))?;
            let is_old = run.ended.is_some_and(|ended| moment(ended) < oldest);
            let counts = match (outcome, self.on) {
                (Outcome::Running, _) => None,
                (Outcome::Done, AfterEnd::Success | AfterEnd::Always) => Some(!is_old),
                (Outcome::Done | Outcome::Skipped, _) | (_, AfterEnd::Success) => Some(false),
                (_, AfterEnd::Failure | AfterEnd::Always) => Some(!is_old),
            };
            let starts = counts == Some(true) && occurrences.find(sequence, run.moment)?.is_none();
            if starts && ends.start.is_none() {
                ends.start = Some(run.moment);
            } else {
                is_settled &= counts.is_some() && !starts;
            }
            if is_settled {
                ends.followed = run.place;
            }
        }
        Ok(ends)
    }
}

/// How a run has ended; one that was killed and will be resumed runs.
fn as_it_will_be(run: &RunOfSequence, occurrence: impl FnOnce() -> Result<Option<Occurrence>>) -> Result<Outcome> {
    if run.outcome != Outcome::Killed {
        return Ok(run.outcome);
    }
    let is_open = |one: &Occurrence| one.state == OccurrenceState::Started && one.run.as_ref() == Some(&run.run);
    Ok(if occurrence()?.as_ref().is_some_and(is_open) { Outcome::Running } else { Outcome::Killed })
}
