//! What the scheduler tells people.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use millstream_core::Error;
use millstream_job::Lint;
use millstream_state::Outcome;

/// Something that people may want to know. Sequences are named by the paths of their files from the root.
#[derive(Debug, Clone)]
pub enum Notice {
    /// A sequence was found, or its file has changed.
    Scheduled {
        /// The sequence.
        sequence: Arc<str>,
        /// The first time at which it will start, if it has times.
        next: Option<DateTime<Utc>>,
        /// Its time zone.
        zone: Tz,
        /// What starts it beside the time, in words.
        triggers: Vec<String>,
    },
    /// A file is gone, or has no schedule any more.
    Gone {
        /// The sequence.
        sequence: Arc<str>,
        /// Whether the file is there.
        is_there: bool,
    },
    /// A sequence does not start by itself, since its schedule has errors.
    Broken {
        /// The sequence.
        sequence: Arc<str>,
        /// What is wrong.
        lints: Vec<Lint>,
    },
    /// The steps of a sequence, or files that they name, have mistakes: its next run would fail.
    Mistakes {
        /// The sequence.
        sequence: Arc<str>,
        /// What is wrong.
        lints: Vec<Lint>,
    },
    /// The file of a sequence was changed in the future: until then nothing of it is due.
    FromTheFuture {
        /// The sequence.
        sequence: Arc<str>,
        /// The time of the file.
        changed: DateTime<Utc>,
    },
    /// The clock was set, by more than a minute.
    ClockSet {
        /// What it showed, or would show by now.
        from: DateTime<Utc>,
        /// What it shows.
        to: DateTime<Utc>,
    },
    /// A process was started for an occurrence.
    Started {
        /// The occurrence.
        of: Named,
        /// Whether it resumes a run that was killed.
        resumes: bool,
        /// How long it took from when there was a slot for it.
        waited: Duration,
    },
    /// A run was found that was started earlier.
    Found {
        /// The occurrence.
        of: Named,
        /// The run.
        run: String,
    },
    /// An occurrence has ended.
    Ended {
        /// The occurrence.
        of: Named,
        /// How.
        outcome: Outcome,
        /// The error, if there was one.
        message: Option<String>,
        /// What its process has printed, if it has printed something.
        log: Option<PathBuf>,
    },
    /// An occurrence will not run.
    Skipped {
        /// The occurrence.
        of: Named,
        /// Why.
        why: String,
    },
    /// An occurrence is cancelled, since another one waits for its end.
    Cancelled {
        /// The occurrence.
        of: Named,
    },
    /// Times were missed, and are not caught up.
    Missed {
        /// The first of them.
        first: Named,
        /// The last one.
        last: DateTime<Utc>,
        /// How many.
        count: u64,
        /// Why they are not caught up.
        why: String,
    },
    /// An occurrence will miss its deadline, or has missed it.
    Late {
        /// The occurrence.
        of: Named,
        /// The deadline.
        deadline: DateTime<Utc>,
        /// When it will have ended, as far as earlier runs tell.
        expected: Option<DateTime<Utc>>,
    },
    /// Something did not work, and is tried again.
    Trouble(Error),
}

/// An occurrence, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The sequence.
    pub sequence: Arc<str>,
    /// The planned time.
    pub planned: DateTime<Utc>,
    /// The time zone of the schedule.
    pub zone: Tz,
}

impl Named {
    /// Its planned time, for people: `2026-01-31 02:00 Europe/Berlin`.
    pub fn shown(&self) -> String {
        format!("{} {}", self.planned.with_timezone(&self.zone).format("%Y-%m-%d %H:%M"), self.zone.name())
    }
}
