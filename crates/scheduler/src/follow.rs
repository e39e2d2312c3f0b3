//! Starts, and what becomes of them: processes of this scheduler, of earlier ones, and what was started by hand.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use millstream_core::Result;
use millstream_state::CancelFile;
use millstream_state::occurrences::{Occurrence, OccurrenceState};

use crate::entry::{Entry, moment};
use crate::logs;
use crate::notice::Notice;
use crate::scheduler::Scheduler;
use crate::slots::{Exited, Start};

/// So often an occurrence is started again whose process was killed before it could claim it.
const MOST_ATTEMPTS: u32 = 3;

/// Old occurrences of a sequence are deleted after so many starts.
const TIDY_AFTER: u32 = 64;

/// An occurrence that is started.
#[derive(Debug, Clone, Default)]
pub(crate) struct Running {
    /// Whether a slot of this scheduler has started it, or will.
    pub is_ours: bool,
    /// Whether it has a process.
    pub has_process: bool,
    /// The run that has claimed it, as far as that was looked at.
    pub run: Option<String>,
    /// When it was claimed.
    pub begin: Option<DateTime<Utc>>,
    /// Whether its run is asked to stop.
    pub is_cancelled: bool,
    /// When it is to be looked at whether its deadline will be missed; nothing if that is known, or there is none.
    pub late_at: Option<DateTime<Utc>>,
    /// Whether it is known that its deadline will be missed.
    pub is_late: bool,
}

impl Scheduler {
    /// The planned times of what is started of `sequence`.
    pub(crate) fn running_of(&self, sequence: &Arc<str>) -> impl Iterator<Item = i64> {
        let range = (Arc::clone(sequence), i64::MIN)..=(Arc::clone(sequence), i64::MAX);
        self.running.range(range).map(|((_, planned), _)| *planned)
    }

    /// Starts what was decided, as soon as there is a slot.
    pub(crate) fn start(&mut self, sequence: &Arc<str>, planned: i64, resumes: bool) -> Result<()> {
        let running = self.running.entry((Arc::clone(sequence), planned)).or_default();
        (running.is_ours, running.has_process) = (true, false);
        self.slots.add(Start { sequence: Arc::clone(sequence), planned, resumes });
        if let Some(entry) = self.entries.get_mut(sequence) {
            entry.starts += 1;
        }
        self.expect(sequence, planned)
    }

    /// A process was started.
    pub(crate) fn began(&mut self, start: &Start, waited: Duration) {
        if let Some(running) = self.running.get_mut(&(Arc::clone(&start.sequence), start.planned)) {
            running.has_process = true;
        }
        let of = self.named(&start.sequence, start.planned);
        self.tell(Notice::Started { of, resumes: start.resumes, waited });
    }

    /// A process of this scheduler has ended.
    pub(crate) fn exited(&mut self, exited: &Exited) -> Result<()> {
        let Exited { start: Start { sequence, planned, .. }, how } = exited;
        let found = self.occurrences.find(sequence, *planned)?;
        let Some(occurrence) = found.filter(|one| one.state == OccurrenceState::Started) else {
            return self.ended(sequence, *planned);
        };
        if let Some(run) = &occurrence.run {
            return match self.occurrences.history().is_alive(run) {
                // Another process was faster.
                true => {
                    self.adopt(&occurrence);
                    Ok(())
                }
                false => self.killed(&occurrence, run),
            };
        }
        let message = match how {
            Ok(status) if status.code().is_none() && occurrence.attempts < MOST_ATTEMPTS => {
                self.occurrences.again(sequence, *planned)?;
                return self.start(sequence, *planned, false);
            }
            Ok(status) => match status.code() {
                Some(code) => format!("it could not begin: exit code {code}"),
                None => format!("its process was killed {} times before it could begin", MOST_ATTEMPTS + 1),
            },
            Err(cause) => format!("its process cannot be started: {cause}"),
        };
        self.occurrences.fail(sequence, *planned, &message)?;
        self.ended(sequence, *planned)
    }

    /// The run of an occurrence was killed: it is resumed, unless that is not wanted any more.
    fn killed(&mut self, occurrence: &Occurrence, run: &str) -> Result<()> {
        let sequence: Arc<str> = occurrence.sequence.as_str().into();
        let planned = occurrence.planned;
        let cancel = CancelFile::new(&self.options.state, run);
        let is_wanted = self.entries.get(&sequence).is_some_and(|entry| {
            let age = self.now() - moment(planned);
            occurrence.attempts < entry.schedule.resumes() && age <= entry.schedule.within()
        });
        // It may have ended while this was found out.
        if is_wanted && !cancel.is_asked() && self.occurrences.again(&sequence, planned)? {
            // Of one that was killed before it did anything there is nothing to resume.
            let resumes = self.occurrences.has_begun(run)?;
            return self.start(&sequence, planned, resumes);
        }
        cancel.remove();
        self.occurrences.was_killed(&sequence, planned, run)?;
        self.ended(&sequence, planned)
    }

    /// An occurrence has ended, or will not run: that is stored already.
    fn ended(&mut self, sequence: &Arc<str>, planned: i64) -> Result<()> {
        self.running.remove(&(Arc::clone(sequence), planned));
        let log = logs::kept(&self.options.state, sequence, planned);
        let of = self.named(sequence, planned);
        match self.occurrences.find(sequence, planned)? {
            Some(Occurrence { state: OccurrenceState::Skipped, why, .. }) => {
                self.tell(Notice::Skipped { of, why: why.unwrap_or_default() });
            }
            Some(Occurrence { outcome: Some(outcome), message, run, .. }) => {
                if let Some(run) = run {
                    CancelFile::new(&self.options.state, &run).remove();
                }
                self.failed += usize::from(outcome.is_unfinished());
                self.tell(Notice::Ended { of, outcome, message, log });
            }
            _ => {}
        }
        self.tidy(sequence)
    }

    /// Deletes what is old of a sequence that is free again.
    fn tidy(&mut self, sequence: &Arc<str>) -> Result<()> {
        // Others may follow it.
        let is_next = |entry: &&mut Entry| entry.after.is_some() || entry.sequence == *sequence;
        self.entries.values_mut().filter(is_next).for_each(|entry| entry.is_dirty = true);
        let Some(entry) = self.entries.get_mut(sequence) else { return Ok(()) };
        if entry.starts < TIDY_AFTER {
            return Ok(());
        }
        entry.starts = 0;
        for planned in self.occurrences.delete_oldest(sequence)? {
            logs::remove(&self.options.state, sequence, planned);
        }
        Ok(())
    }

    /// Follows a run that this scheduler has not started.
    fn adopt(&mut self, occurrence: &Occurrence) {
        let key = (Arc::from(occurrence.sequence.as_str()), occurrence.planned);
        let running = self.running.entry(key).or_default();
        (running.is_ours, running.has_process) = (false, true);
        running.run = occurrence.run.clone();
        running.begin = occurrence.claimed.map(moment);
        self.count_others();
    }

    fn count_others(&self) {
        self.slots.set_others(self.running.values().filter(|running| !running.is_ours).count());
    }

    /// Whether the runs live that this scheduler has not started.
    pub(crate) fn look_at_others(&mut self) -> Result<()> {
        let history = Arc::clone(self.occurrences.history());
        let is_dead =
            |running: &Running| !running.is_ours && running.run.as_ref().is_none_or(|run| !history.is_alive(run));
        let dead: Vec<(Arc<str>, i64)> =
            self.running.iter().filter(|(_, running)| is_dead(running)).map(|(key, _)| key.clone()).collect();
        for (sequence, planned) in dead {
            match self.occurrences.find(&sequence, planned)? {
                Some(Occurrence { state: OccurrenceState::Started, run: Some(run), .. }) if history.is_alive(&run) => {
                    // It was resumed meanwhile.
                    if let Some(running) = self.running.get_mut(&(sequence, planned)) {
                        running.run = Some(run);
                    }
                    continue;
                }
                Some(occurrence @ Occurrence { state: OccurrenceState::Started, .. }) => match occurrence.run.clone() {
                    Some(run) => self.killed(&occurrence, run.as_str())?,
                    None => self.start(&sequence, planned, false)?,
                },
                _ => self.ended(&sequence, planned)?,
            }
            self.count_others();
        }
        Ok(())
    }

    /// Compares what is started and queued with what the history has.
    pub(crate) fn look_at_open(&mut self) -> Result<()> {
        for occurrence in self.occurrences.open()? {
            let key: (Arc<str>, i64) = (occurrence.sequence.as_str().into(), occurrence.planned);
            if occurrence.state == OccurrenceState::Queued {
                if let Some(entry) = self.entries.get_mut(&key.0).filter(|entry| entry.queued.is_none()) {
                    (entry.queued, entry.is_dirty) = (Some(key.1), true);
                }
                continue;
            }
            if let Some(running) = self.running.get_mut(&key) {
                let is_new = running.run != occurrence.run;
                (running.run, running.begin) = (occurrence.run.clone(), occurrence.claimed.map(moment));
                if is_new {
                    self.expect(&key.0, key.1)?;
                }
                continue;
            }
            match &occurrence.run {
                Some(run) if self.occurrences.history().is_alive(run) => {
                    self.adopt(&occurrence);
                    self.tell(Notice::Found { of: self.named(&key.0, key.1), run: run.clone() });
                    self.expect(&key.0, key.1)?;
                }
                Some(run) => {
                    self.killed(&occurrence, run)?;
                    self.entries.get_mut(&key.0).into_iter().for_each(|entry| entry.is_dirty = true);
                }
                // A process of an earlier scheduler may be about to claim it: then the second one is refused.
                None if self.entries.contains_key(&key.0) => self.start(&key.0, key.1, false)?,
                None => {}
            }
        }
        Ok(())
    }

    /// Another occurrence waits for the end of this one.
    pub(crate) fn cancel(&mut self, sequence: &Arc<str>, planned: i64) -> Result<()> {
        let key = (Arc::clone(sequence), planned);
        if self.running.get(&key).is_none_or(|running| running.is_cancelled) {
            return Ok(());
        }
        let why = "cancelled, since the next one is due";
        if self.occurrences.withdraw(sequence, planned, why)? {
            // Its process, if it has one, cannot claim it any more.
            if self.slots.remove(sequence, planned) {
                return self.ended(sequence, planned);
            }
        } else if let Some(run) = self.occurrences.find(sequence, planned)?.and_then(|one| one.run) {
            CancelFile::new(&self.options.state, &run).ask()?;
        }
        if let Some(running) = self.running.get_mut(&key) {
            running.is_cancelled = true;
        }
        self.tell(Notice::Cancelled { of: self.named(sequence, planned) });
        Ok(())
    }
}
