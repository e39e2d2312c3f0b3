//! Deadlines that will be missed, by the durations of earlier runs.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use millstream_core::Result;
use millstream_schedule::outlook;

use crate::entry::{Entry, moment};
use crate::notice::Notice;
use crate::scheduler::Scheduler;

/// So many durations are looked at.
const DURATIONS: i64 = 21;

impl Scheduler {
    /// Finds out when it may be known that what is started misses its deadline.
    pub(crate) fn expect(&mut self, sequence: &Arc<str>, planned: i64) -> Result<()> {
        let Some(deadline) = self.deadline(sequence, planned) else { return Ok(()) };
        let durations = self.occurrences.durations(sequence, DURATIONS)?;
        let now = self.moment();
        if let Some(running) = self.running.get_mut(&(Arc::clone(sequence), planned)).filter(|one| !one.is_late) {
            running.late_at = Some(outlook(deadline, running.begin, now, &durations).known);
        }
        Ok(())
    }

    fn deadline(&self, sequence: &Arc<str>, planned: i64) -> Option<DateTime<Utc>> {
        self.entries.get(sequence)?.schedule.deadline(moment(planned))
    }

    /// Reports what will miss its deadline, once.
    pub(crate) fn look_at_deadlines(&mut self) -> Result<()> {
        let now = self.now();
        let mut due: Vec<(Arc<str>, i64)> = self
            .running
            .iter()
            .filter(|(_, running)| running.late_at.is_some_and(|late| late <= now))
            .map(|(key, _)| key.clone())
            .collect();
        // What waits for the one before it may be late, too.
        let is_open = |entry: &&Entry| entry.queued.is_some() && entry.queued != entry.late;
        let waiting = self.entries.values().filter(is_open);
        due.extend(waiting.filter_map(|entry| Some((Arc::clone(&entry.sequence), entry.queued?))));
        for (sequence, planned) in due {
            let Some(deadline) = self.deadline(&sequence, planned) else { continue };
            let durations = self.occurrences.durations(&sequence, DURATIONS)?;
            let found = self.occurrences.find(&sequence, planned)?;
            let begin = found.and_then(|one| one.claimed).map(moment);
            let outlook = outlook(deadline, begin, now, &durations);
            if let Some(running) = self.running.get_mut(&(Arc::clone(&sequence), planned)) {
                running.is_late = outlook.is_late(now);
                running.late_at = (!running.is_late).then_some(outlook.known);
            }
            if outlook.is_late(now) {
                self.entries.get_mut(&sequence).into_iter().for_each(|entry| entry.late = Some(planned));
            }
            if outlook.is_late(now) && self.occurrences.is_late(&sequence, planned, now.timestamp_millis())? {
                let of = self.named(&sequence, planned);
                self.tell(Notice::Late { of, deadline, expected: outlook.end.filter(|end| *end > deadline) });
            }
        }
        Ok(())
    }
}
