//! What comes next, for people: read from the files and the state folder, whether a scheduler runs or not.

use std::path::Path;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use millstream_core::Result;
use millstream_job::Lint;
use millstream_state::occurrences::{MissedTimes, Occurrence, OccurrenceState};
use millstream_state::{Occurrences, RunHistory};

use crate::entry::{self, Read, moment};
use crate::folder::Folder;
use crate::scheduler::{Checker, Clock};

/// The last one that has ended is looked for among so many.
const LOOKED_AT: i64 = 20;

/// A sequence with a schedule.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The path of its file from the root.
    pub sequence: Arc<str>,
    /// Its time zone.
    pub zone: Tz,
    /// The next times at which it starts, in order.
    pub next: Vec<DateTime<Utc>>,
    /// What starts it beside the time.
    pub triggers: Vec<String>,
    /// What is started of it.
    pub running: Option<Occurrence>,
    /// Whether the process of that is gone.
    pub was_killed: bool,
    /// What waits for the end of that.
    pub queued: Option<Occurrence>,
    /// The last one that has ended or was skipped.
    pub last: Option<Occurrence>,
    /// The last times that were missed and are not caught up.
    pub missed: Option<MissedTimes>,
}

/// The sequences with schedules in `folder`, those that start next first, each with at most `most` times; and what is
/// wrong with others, and with what `checker` finds in the steps of these.
///
/// # Errors
/// If a folder cannot be used.
pub fn list(
    folder: &Path,
    state: &Path,
    clock: &Clock,
    most: usize,
    checker: &Checker,
) -> Result<(Vec<Listed>, Vec<Lint>)> {
    let history = RunHistory::open(state)?;
    let occurrences = Occurrences::new(Arc::clone(&history));
    let now = moment((clock.0)());
    let open = occurrences.open()?;
    let (changes, errors) = Folder::new(folder)?.changes();
    if let Some(error) = errors.into_iter().next() {
        return Err(error);
    }
    let (mut listed, mut lints) = (Vec::new(), Vec::new());
    for change in changes {
        let Some((text, stamp)) = change.now else { continue };
        let schedule = match entry::read(&change.path, &text, now.timestamp_millis(), true) {
            Read::Nothing => continue,
            Read::Broken(found) => {
                lints.extend(found);
                continue;
            }
            Read::Schedule(schedule) => schedule,
        };
        for lint in (checker.0)(&change.path).0 {
            // Two sequences may name the same job.
            if !lints.contains(&lint) {
                lints.push(lint);
            }
        }
        let from = now.max(moment(stamp.modified()));
        let until = from.checked_add_days(chrono::Days::new(366 * 40)).unwrap_or(DateTime::<Utc>::MAX_UTC);
        let last = occurrences.last(&change.path, LOOKED_AT)?;
        let is_gone = |one: &Occurrence| one.run.as_ref().is_some_and(|run| !history.is_alive(run));
        let of = |state| open.iter().find(|one| one.state == state && *one.sequence == *change.path).cloned();
        listed.push(Listed {
            zone: schedule.zone(),
            next: schedule.times(from, until).take(most).collect(),
            triggers: schedule.triggers(),
            was_killed: of(OccurrenceState::Started).as_ref().is_some_and(is_gone),
            running: of(OccurrenceState::Started),
            queued: of(OccurrenceState::Queued),
            last: last
                .iter()
                .find(|one| matches!(one.state, OccurrenceState::Ended | OccurrenceState::Skipped))
                .cloned(),
            missed: occurrences.missed(&change.path, 1)?.pop(),
            sequence: change.path,
        });
    }
    // Those without a time come last.
    listed.sort_by_key(|one| (one.next.is_empty(), one.next.first().copied(), Arc::clone(&one.sequence)));
    Ok((listed, lints))
}
