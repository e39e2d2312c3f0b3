//! What the scheduler tells people, in words.

use std::path::Path;

use chrono::{DateTime, Utc};
use millstream_core::Error;
use millstream_core::counts::grouped;
use millstream_job::Lint;
use millstream_state::Outcome;

use crate::notice::{Named, Notice};

/// How times are shown, to the minute.
const MINUTES: &str = "%Y-%m-%d %H:%M";

/// A notice in words.
#[derive(Debug, Clone)]
pub enum Said {
    /// Something that goes as it should.
    Text(String),
    /// Something that may not be as it was meant.
    Warning(Error),
    /// Something that has failed.
    Error(Error),
    /// Mistakes in files, and what follows from them.
    Lints(Vec<Lint>, String),
}

/// The path of a file from `folder`, if it is in it.
pub fn path_from(folder: &Path, path: &str) -> String {
    let path = Path::new(path);
    path.strip_prefix(folder).unwrap_or(path).display().to_string()
}

impl Notice {
    /// The notice in words. Files are named by their paths from `folder`.
    pub fn said(&self, folder: &Path) -> Said {
        let path = |sequence: &str| path_from(folder, sequence);
        let of = |named: &Named| format!("{} of {}", path(&named.sequence), named.shown());
        match self {
            Notice::Scheduled { sequence, next, zone, triggers } => {
                let next = next.map(|planned| Named { sequence: sequence.clone(), planned, zone: *zone }.shown());
                let next = next.map(|next| format!("next at {next}"));
                let by = (!triggers.is_empty()).then(|| format!("by {}", triggers.join(", ")));
                let when: Vec<String> = next.into_iter().chain(by).collect();
                Said::Text(format!("{}: starts {}", path(sequence), when.join(", and ")))
            }
            Notice::Gone { sequence, is_there: true } => {
                let what = format!("{} is no sequence with a schedule now", path(sequence));
                Said::Warning(Error::refused(what).hint("`millstream check` says what is wrong with it"))
            }
            Notice::Gone { sequence, is_there: false } => Said::Text(format!("{}: its file is gone", path(sequence))),
            Notice::Broken { sequence, lints } => {
                let follows = format!("{} does not start until this is corrected", path(sequence));
                Said::Lints(lints.clone(), follows)
            }
            Notice::Mistakes { sequence, lints } => {
                let follows = format!("{}: its next start may fail, until this is corrected", path(sequence));
                Said::Lints(lints.clone(), follows)
            }
            Notice::FromTheFuture { sequence, changed } => {
                let what = format!("{} was changed at {changed}, which is in the future", path(sequence));
                Said::Warning(Error::refused(what).cause("its schedule begins then"))
            }
            Notice::ClockSet { from, to } => {
                Said::Text(format!("the clock was set from {} to {} UTC", from.format(MINUTES), to.format(MINUTES)))
            }
            Notice::Started { of: named, resumes: false, .. } => Said::Text(format!("{}: started", of(named))),
            Notice::Started { of: named, resumes: true, .. } => {
                Said::Text(format!("{}: was killed, and is resumed", of(named)))
            }
            Notice::Found { of: named, run } => Said::Text(format!("{}: runs already, as {run}", of(named))),
            Notice::Ended { of: named, outcome: Outcome::Done | Outcome::Skipped, .. } => {
                Said::Text(format!("{}: done", of(named)))
            }
            Notice::Ended { of: named, outcome, message, log } => {
                let mut error = Error::refused(format!("{}: {}", of(named), outcome.name()));
                if let Some(message) = message {
                    error = error.cause(message);
                }
                if let Some(log) = log {
                    error = error.hint(format!("what it printed is in {}", log.display()));
                }
                Said::Error(error)
            }
            Notice::Skipped { of: named, why } => Said::Text(format!("{}: skipped: {why}", of(named))),
            Notice::Cancelled { of: named } => {
                Said::Text(format!("{}: is cancelled, since the next one waits", of(named)))
            }
            Notice::Missed { first, count: 1, why, .. } => Said::Text(format!("{}: missed: {why}", of(first))),
            Notice::Missed { first, last, count, why } => {
                let last = Named { planned: *last, ..first.clone() }.shown();
                Said::Text(format!("{} to {last}: {} times missed: {why}", of(first), grouped(*count)))
            }
            Notice::Late { of: named, deadline, expected } => {
                let at = |moment: DateTime<Utc>| Named { planned: moment, ..named.clone() }.shown();
                let error = Error::refused(format!("{} will not have ended by {}", of(named), at(*deadline)));
                Said::Warning(match expected {
                    Some(expected) => error.cause(format!("by earlier runs, it ends at {}", at(*expected))),
                    None => error,
                })
            }
            Notice::Trouble(error) => Said::Error(error.clone()),
        }
    }
}
