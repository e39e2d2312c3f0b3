//! A sequence with a schedule, as the scheduler knows it.

use std::path::Path;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use millstream_core::Result;
use millstream_core::spec::parse;
use millstream_job::sequence::schedule::{ScheduleOfFile, schedule_of};
use millstream_job::{JobText, Lint, Span};
use millstream_schedule::{Schedule, ScheduleSpec, schedule_lints};
use millstream_state::Occurrences;

use crate::after::Followed;
use crate::files::Arrivals;
use crate::notice::Named;

/// What a file is to the scheduler.
#[derive(Debug)]
pub(crate) enum Read {
    /// No sequence, or one without a schedule.
    Nothing,
    /// A schedule.
    Schedule(Box<Schedule>),
    /// A schedule with errors.
    Broken(Vec<Lint>),
}

/// Reads the text of the file at `path`, or says why there is none.
pub(crate) fn read(path: &str, text: &std::io::Result<String>, now: i64) -> Read {
    let text = match text {
        Ok(text) => text,
        Err(cause) => {
            let lint = JobText::new(path, "").error(Span::default(), format!("the file cannot be read: {cause}"));
            return Read::Broken(vec![lint]);
        }
    };
    let environment = |name: &str| std::env::var(name).ok();
    let ScheduleOfFile { schedule, lints } = schedule_of(path, text, &environment, &schedule_lints, now);
    match schedule {
        _ if !lints.is_empty() => Read::Broken(lints),
        None => Read::Nothing,
        Some(schedule) => match parse::<ScheduleSpec>(&schedule).and_then(|spec| Schedule::new(&spec)) {
            Ok(schedule) => Read::Schedule(Box::new(schedule)),
            Err(faults) => {
                let whole = JobText::new(path, text);
                let lint = |fault: millstream_core::spec::Fault| Lint {
                    hint: fault.hint,
                    ..whole.error(Span::default(), fault.what)
                };
                Read::Broken(faults.into_iter().map(lint).collect())
            }
        },
    }
}

/// A sequence with a schedule.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The path of its file from the root.
    pub sequence: Arc<str>,
    /// Its schedule.
    pub schedule: Schedule,
    /// When its file was changed.
    pub changed: DateTime<Utc>,
    /// All times up to this one are decided.
    pub known: Option<DateTime<Utc>>,
    /// The planned time of what waits.
    pub queued: Option<i64>,
    /// When its times are to be looked at again.
    pub look_again: Option<DateTime<Utc>>,
    /// Whether something has happened since its times were looked at.
    pub is_dirty: bool,
    /// The files that start it.
    pub files: Option<Arrivals>,
    /// The sequence whose end starts it.
    pub after: Option<Followed>,
    /// The planned time of the last one of which it is known that it will miss its deadline.
    pub late: Option<i64>,
    /// How many were started since old ones were deleted.
    pub starts: u32,
}

impl Entry {
    /// With what is stored of it.
    pub fn new(sequence: &Arc<str>, schedule: Schedule, changed: i64, occurrences: &Occurrences) -> Result<Self> {
        let known = occurrences.known(sequence)?;
        let files = match schedule.files() {
            Some(files) => Some(Arrivals::new(sequence, files, &occurrences.arrivals(sequence)?)),
            None => None,
        };
        let after = match schedule.after() {
            Some(after) => {
                // What ended before the sequence was known does not start it.
                let followed = known.followed.map_or_else(|| occurrences.last_place(), Ok)?;
                Some(Followed::new(sequence, after, followed))
            }
            None => None,
        };
        Ok(Entry {
            sequence: Arc::clone(sequence),
            schedule,
            changed: moment(changed),
            known: known.known.map(moment),
            queued: None,
            look_again: None,
            is_dirty: true,
            files,
            after,
            late: None,
            starts: 0,
        })
    }

    /// The occurrence of `planned`, for people.
    pub fn named(&self, planned: DateTime<Utc>) -> Named {
        Named { sequence: Arc::clone(&self.sequence), planned, zone: self.schedule.zone() }
    }
}

/// The moment that is so many milliseconds behind 1970.
pub(crate) fn moment(milliseconds: i64) -> DateTime<Utc> {
    let end = if milliseconds < 0 { DateTime::<Utc>::MIN_UTC } else { DateTime::<Utc>::MAX_UTC };
    DateTime::from_timestamp_millis(milliseconds).unwrap_or(end)
}

/// The path that the sequence names: relative to the folder of its file.
pub(crate) fn beside(sequence: &str, named: &str) -> std::path::PathBuf {
    Path::new(sequence).parent().unwrap_or(Path::new("/")).join(named)
}
