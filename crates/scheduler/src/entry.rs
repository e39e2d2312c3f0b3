//! A sequence with a schedule, as the scheduler knows it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use millstream_core::Result;
use millstream_core::spec::parse;
use millstream_job::sequence::schedule::{ScheduleOfFile, after_fault, schedule_of};
use millstream_job::{JobText, Lint, Span};
use millstream_schedule::{Schedule, ScheduleSpec, schedule_lints};
use millstream_state::Occurrences;
use serde_json::Value;

use crate::after::Followed;
use crate::files::Arrivals;
use crate::messages::Ear;
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

/// Reads the text of the file at `path`, or says why there is none. With `wants_others`, a sequence that it follows has
/// to be there.
pub(crate) fn read(path: &str, text: &std::io::Result<String>, now: i64, wants_others: bool) -> Read {
    let text = match text {
        Ok(text) => text,
        Err(cause) => {
            let lint = JobText::new(path, "").error(Span::default(), format!("the file cannot be read: {cause}"));
            return Read::Broken(vec![lint]);
        }
    };
    let environment = |name: &str| std::env::var(name).ok();
    let faults = |schedule: &Value| {
        let text_of = |other: &str| fs_err::read(other).ok().map(|text| String::from_utf8_lossy(&text).into_owned());
        let of_after = after_fault(path, schedule, &text_of).filter(|_| wants_others);
        schedule_lints(schedule).into_iter().chain(of_after).collect()
    };
    let ScheduleOfFile { schedule, lints } = schedule_of(path, text, &environment, &faults, now);
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
    /// What listens for messages that start it.
    pub ear: Ear,
    /// Whether its steps, or files that they name, have changed since mistakes were looked for.
    pub is_unchecked: bool,
    /// The mistakes that were found then.
    pub mistakes: Vec<Lint>,
    /// The files that its steps name, by their paths from the root.
    pub named: BTreeSet<PathBuf>,
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
            ear: Ear::default(),
            is_unchecked: true,
            mistakes: Vec::new(),
            named: BTreeSet::new(),
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
