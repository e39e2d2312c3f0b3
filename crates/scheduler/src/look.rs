//! What schedules and files ask for, as decisions that are stored before anything is done.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use millstream_core::Result;
use millstream_schedule::{Due, Missed, MissedBecause, ON_TIME, Skipped, SkippedBecause, State};
use millstream_state::occurrences::{Arrival, Decisions, MissedTimes, NewOccurrence, SkippedTime};

use crate::entry::{Entry, moment};
use crate::notice::Notice;
use crate::scheduler::Scheduler;

/// So many files are named as the cause of a start.
const NAMED: usize = 3;

/// The cause of an occurrence whose time was missed.
const MISSED: &str = "a missed time";

/// What was found out about one sequence.
struct Looked {
    sequence: Arc<str>,
    decisions: Decisions,
    due: Due,
}

impl Scheduler {
    /// Looks at all times and followed sequences for which something may be due.
    pub(crate) fn look_at_schedules(&mut self) -> Result<()> {
        let now = self.moment();
        let is_due = |entry: &&Entry| entry.is_dirty || entry.look_again.is_some_and(|again| again <= now);
        let sequences: Vec<Arc<str>> =
            self.entries.values().filter(is_due).map(|entry| Arc::clone(&entry.sequence)).collect();
        let mut looked = Vec::new();
        for sequence in sequences {
            looked.push(self.look(sequence, now)?);
        }
        let decisions: Vec<Decisions> =
            looked.iter().filter(|one| !is_nothing(&one.decisions)).map(|one| one.decisions.clone()).collect();
        // All of them in one transaction: that of a thousand sequences takes no longer than that of one.
        let mut holds = match decisions.is_empty() {
            true => Vec::new(),
            false => self.occurrences.decide(&decisions)?,
        }
        .into_iter();
        for one in looked {
            let holds = is_nothing(&one.decisions) || holds.next().unwrap_or(true);
            self.decided(one, holds)?;
        }
        Ok(())
    }

    /// What is due of one sequence.
    fn look(&self, sequence: Arc<str>, now: DateTime<Utc>) -> Result<Looked> {
        let Some(entry) = self.entries.get(&sequence) else {
            return Ok(Looked { sequence, decisions: Decisions::default(), due: Due::default() });
        };
        let decided = entry.known.map_or(now, |known| known.min(now));
        let later = self.occurrences.behind(&sequence, decided.timestamp_millis())?;
        let running = self.running_of(&sequence).next();
        let catches_up = match running.filter(|_| entry.schedule.catches_all_up()) {
            Some(planned) => {
                let found = self.occurrences.find(&sequence, planned)?;
                found.is_some_and(|one| one.cause.as_deref() == Some(MISSED))
            }
            None => false,
        };
        let state = State {
            changed: entry.changed,
            known: entry.known,
            later: later.into_iter().map(moment).collect(),
            running: running.map(moment),
            catches_up,
            queued: entry.queued.map(moment),
        };
        let due = entry.schedule.due(&state, now);
        let new = |planned: DateTime<Utc>| {
            let cause = if now - planned < ON_TIME { "time" } else { MISSED };
            NewOccurrence { planned: planned.timestamp_millis(), cause: Some(cause.to_owned()) }
        };
        let mut decisions = Decisions {
            sequence: sequence.to_string(),
            known: due.known.filter(|_| due.known != entry.known).map(|known| known.timestamp_millis()),
            start: due.start.map(new),
            queued: due.queued.filter(|_| due.queued != state.queued).map(new),
            skipped: due.skipped.iter().map(skipped).collect(),
            missed: due.missed.iter().map(missed).collect(),
            ..Decisions::default()
        };
        if let Some(after) = &entry.after {
            let is_free = running.is_none() && decisions.start.is_none() && due.queued.is_none();
            let ends = after.ends(&sequence, &self.occurrences, now, entry.schedule.within())?;
            if let (Some(planned), true) = (ends.start, is_free) {
                let cause = Some(format!("the end of {}", after.sequence()));
                decisions.start = Some(NewOccurrence { planned, cause });
            }
            let is_settled = ends.start.is_none() || is_free;
            decisions.followed = Some(ends.followed).filter(|place| is_settled && *place != after.followed);
        }
        Ok(Looked { sequence, decisions, due })
    }

    /// Does what was decided and stored. `holds`: nobody had started it before.
    fn decided(&mut self, looked: Looked, holds: bool) -> Result<()> {
        let Looked { sequence, decisions, due } = looked;
        let Some(entry) = self.entries.get_mut(&sequence) else { return Ok(()) };
        entry.known = due.known;
        entry.queued = due.queued.map(|queued| queued.timestamp_millis());
        entry.look_again = due.look_again;
        entry.is_dirty = false;
        if let (Some(after), Some(followed)) = (&mut entry.after, decisions.followed) {
            after.followed = followed;
        }
        for Missed { first, last, count, because } in due.missed {
            let why = missed_because(because).to_owned();
            self.tell(Notice::Missed { first: self.entries[&sequence].named(first), last, count, why });
        }
        for Skipped { planned, because } in due.skipped {
            let why = skipped_because(because).to_owned();
            self.tell(Notice::Skipped { of: self.entries[&sequence].named(planned), why });
        }
        if let Some(planned) = due.cancel {
            self.cancel(&sequence, planned.timestamp_millis())?;
        }
        match decisions.start {
            Some(NewOccurrence { planned, .. }) if holds => self.start(&sequence, planned, false),
            // It has started before, so there may be more to decide.
            Some(_) => {
                self.reconcile = true;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Looks for files of sequences that are free to start.
    pub(crate) fn look_at_files(&mut self) -> Result<()> {
        let now = self.moment();
        let is_free = |entry: &&Entry| {
            entry.files.is_some() && entry.queued.is_none() && self.running_of(&entry.sequence).next().is_none()
        };
        let free: Vec<Arc<str>> = self.entries.values().filter(is_free).map(|one| Arc::clone(&one.sequence)).collect();
        for sequence in free {
            // With `--once`, what is there at its start.
            let is_over = self.frozen.is_some() && self.has_looked(&sequence);
            let files = self.entries.get_mut(&sequence).and_then(|entry| entry.files.as_mut());
            let Some(arrived) = files.filter(|_| !is_over).and_then(|files| files.look(now.timestamp_millis())) else {
                continue;
            };
            if !arrived.new.is_empty() {
                self.arrived(&sequence, arrived.new, now)?;
            } else if self.entries[&sequence].files.as_ref().is_some_and(|files| files.may_forget(&arrived)) {
                let stored = self.occurrences.arrivals(&sequence)?;
                let gone = self.entries[&sequence].files.as_ref().map(|files| files.gone(&arrived, &stored));
                self.occurrences.forget_arrivals(&sequence, &gone.unwrap_or_default(), now.timestamp_millis())?;
                let left = self.occurrences.arrivals(&sequence)?;
                if let Some(files) = self.entries.get_mut(&sequence).and_then(|entry| entry.files.as_mut()) {
                    files.forget_all_but(&left);
                }
            }
        }
        Ok(())
    }

    fn has_looked(&self, sequence: &Arc<str>) -> bool {
        self.entries.get(sequence).and_then(|entry| entry.files.as_ref()).is_some_and(|files| files.next().is_some())
    }

    /// Files have arrived for a sequence that does not run.
    fn arrived(&mut self, sequence: &Arc<str>, arrivals: Vec<Arrival>, now: DateTime<Utc>) -> Result<()> {
        let mut planned = now.timestamp_millis();
        while self.occurrences.find(sequence, planned)?.is_some() {
            planned += 1;
        }
        let mut names: Vec<&str> = arrivals.iter().take(NAMED).map(|one| one.file.as_str()).collect();
        let more = format!("{} more", arrivals.len().saturating_sub(NAMED));
        if arrivals.len() > NAMED {
            names.push(&more);
        }
        let cause = Some(format!("files: {}", names.join(", ")));
        let start = Some(NewOccurrence { planned, cause });
        let decisions =
            Decisions { sequence: sequence.to_string(), start, arrivals: arrivals.clone(), ..Decisions::default() };
        self.occurrences.decide(&[decisions])?;
        if let Some(files) = self.entries.get_mut(sequence).and_then(|entry| entry.files.as_mut()) {
            files.see(&arrivals);
        }
        self.start(sequence, planned, false)
    }
}

/// Whether there is nothing to store.
fn is_nothing(decisions: &Decisions) -> bool {
    let sequence = decisions.sequence.clone();
    *decisions == Decisions { sequence, ..Decisions::default() }
}

fn skipped(skipped: &Skipped) -> SkippedTime {
    SkippedTime { planned: skipped.planned.timestamp_millis(), why: skipped_because(skipped.because).to_owned() }
}

fn missed(missed: &Missed) -> MissedTimes {
    MissedTimes {
        first: missed.first.timestamp_millis(),
        last: missed.last.timestamp_millis(),
        count: i64::try_from(missed.count).unwrap_or(i64::MAX),
        why: missed_because(missed.because).to_owned(),
    }
}

fn skipped_because(because: SkippedBecause) -> &'static str {
    match because {
        SkippedBecause::Overlap => "the one before it still runs",
        SkippedBecause::Replaced => "a later one has taken its place",
        SkippedBecause::TooOld => "it has waited for longer than `within`",
    }
}

fn missed_because(because: MissedBecause) -> &'static str {
    match because {
        MissedBecause::TooOld => "older than `within`",
        MissedBecause::NoCatchUp => "`catch_up: none`",
        MissedBecause::NotTheLast => "`catch_up: last`, and a later one came",
    }
}
