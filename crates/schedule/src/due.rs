//! What is due at a moment: what starts, waits, is skipped, cancelled or missed, and when to look again.
//!
//! Times are decided in order, and what is decided is kept as one moment, `known`. So a scheduler that is killed
//! between two decisions loses none and repeats none, and a clock that jumps forward is the same as a scheduler that
//! did not run. If a clock jumps back, `known` follows it, so that a clock that was ahead holds nothing up. Times come
//! again then, but those that have an occurrence are named in [`State::later`] and are left out. A clock that is before
//! the last change of the file is wrong beyond that, like one that begins in 1970, and `known` stays.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};

use crate::schedule::Schedule;
use crate::spec::{CatchUp, Overlap};

/// So long a planned time is on time: a scheduler is not always awake at the very moment. Entries of cron name minutes,
/// so at most one time of a schedule is on time.
pub const ON_TIME: TimeDelta = TimeDelta::minutes(1);

/// What is known of a sequence when its schedule is looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// The last change of the file. What was planned before is not due, and not missed.
    pub changed: DateTime<Utc>,
    /// All times up to this one are decided: [`Due::known`] of the last look. `None` before the first one.
    pub known: Option<DateTime<Utc>>,
    /// The planned times of all occurrences behind `known`, or behind the moment of the look if that is earlier. There
    /// are some only if the clock has jumped back.
    pub later: BTreeSet<DateTime<Utc>>,
    /// The occurrence that runs.
    pub running: Option<DateTime<Utc>>,
    /// Whether that catches up a time that was missed.
    pub catches_up: bool,
    /// The occurrence that waits for the end of that.
    pub queued: Option<DateTime<Utc>>,
}

/// What is due. Occurrences are their planned times.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Due {
    /// What starts now.
    pub start: Option<DateTime<Utc>>,
    /// What waits from now on; it replaces [`State::queued`].
    pub queued: Option<DateTime<Utc>>,
    /// The occurrence that runs and is to be cancelled, since another one waits for its end. It is named at each look
    /// until it has ended.
    pub cancel: Option<DateTime<Utc>>,
    /// Occurrences that will not run.
    pub skipped: Vec<Skipped>,
    /// Planned times that were missed, in order.
    pub missed: Vec<Missed>,
    /// All times up to this one are decided; to be kept together with the above.
    pub known: Option<DateTime<Utc>>,
    /// The next moment at which something is due by itself. The end of a run is the other occasion to look.
    pub look_again: Option<DateTime<Utc>>,
    /// The clock is behind the last change of the file, so that it is wrong, or the file's time is. Nothing is due
    /// until it has passed that.
    pub is_clock_behind: bool,
}

/// An occurrence that will not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skipped {
    /// The occurrence.
    pub planned: DateTime<Utc>,
    /// Why.
    pub because: SkippedBecause,
}

/// Why an occurrence will not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkippedBecause {
    /// Another one runs.
    Overlap,
    /// It waited, and a later one waits in its place or starts.
    Replaced,
    /// It has waited for longer than `within`.
    TooOld,
}

/// Planned times one after the other that were missed: there are no occurrences of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missed {
    /// The first of them.
    pub first: DateTime<Utc>,
    /// The last one.
    pub last: DateTime<Utc>,
    /// How many they are.
    pub count: u64,
    /// Why they are not caught up.
    pub because: MissedBecause,
}

/// Why a missed time is not caught up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissedBecause {
    /// It is older than `within`.
    TooOld,
    /// `catch_up: none`.
    NoCatchUp,
    /// `catch_up: last`, and a later one came.
    NotTheLast,
}

impl Schedule {
    /// What is due at `now`.
    pub fn due(&self, state: &State, now: DateTime<Utc>) -> Due {
        let is_clock_behind = now < state.changed;
        let known = state.known.map(|known| if is_clock_behind { known } else { known.min(now) });
        let after = known.map_or(state.changed, |known| known.max(state.changed));
        let oldest = now.checked_sub_signed(self.within).unwrap_or(DateTime::<Utc>::MIN_UTC);
        let mut look = Look { overlap: self.overlap, running: state.running, due: Due { known, ..Due::default() } };
        match state.queued {
            Some(planned) if planned < oldest => look.skip(planned, SkippedBecause::TooOld),
            queued => look.due.queued = queued,
        }
        let is_on_time = |time: DateTime<Utc>| now - time < ON_TIME;
        // What is on time waits behind what is caught up.
        let catches_up = state.running.is_some() && state.catches_up;
        let mut times = self.times(after, now).peekable();
        while let Some(time) = times.next_if(|time| {
            let is_settled = *time < oldest || state.later.contains(time);
            self.catch_up != CatchUp::All || is_settled || (is_on_time(*time) && !catches_up) || look.is_free()
        }) {
            match self.catch_up {
                _ if state.later.contains(&time) => look.due.known = Some(time),
                CatchUp::None if !is_on_time(time) => look.miss(time, MissedBecause::NoCatchUp),
                CatchUp::Last | CatchUp::All if time < oldest => look.miss(time, MissedBecause::TooOld),
                CatchUp::Last if times.peek().is_some() => look.miss(time, MissedBecause::NotTheLast),
                _ => look.decide(time),
            }
        }
        look.begin();
        look.due.cancel = state.running.filter(|_| self.overlap == Overlap::Cancel && look.due.queued.is_some());
        look.due.look_again = self.next(now.max(state.changed));
        look.due.is_clock_behind = is_clock_behind;
        look.due
    }
}

/// What a look has decided so far.
struct Look {
    overlap: Overlap,
    running: Option<DateTime<Utc>>,
    due: Due,
}

impl Look {
    fn is_busy(&self) -> bool {
        self.running.is_some() || self.due.start.is_some()
    }

    /// Whether something may start now and nothing waits for that.
    fn is_free(&self) -> bool {
        !self.is_busy() && self.due.queued.is_none()
    }

    fn miss(&mut self, time: DateTime<Utc>, because: MissedBecause) {
        self.due.known = Some(time);
        match self.due.missed.last_mut().filter(|last| last.because == because) {
            Some(span) => (span.last, span.count) = (time, span.count + 1),
            None => self.due.missed.push(Missed { first: time, last: time, count: 1, because }),
        }
    }

    fn skip(&mut self, planned: DateTime<Utc>, because: SkippedBecause) {
        self.due.skipped.push(Skipped { planned, because });
    }

    /// What becomes of a time that is on time or caught up.
    fn decide(&mut self, time: DateTime<Utc>) {
        self.due.known = Some(time);
        match self.overlap {
            _ if self.is_free() => self.due.start = Some(time),
            Overlap::Skip => self.skip(time, SkippedBecause::Overlap),
            Overlap::Queue => {
                // What waits is earlier, so it goes first.
                self.begin();
                self.wait(time);
            }
            Overlap::Cancel => {
                // What waits would be cancelled as soon as it has started.
                self.wait(time);
                self.begin();
            }
        }
    }

    fn wait(&mut self, time: DateTime<Utc>) {
        if let Some(earlier) = self.due.queued.replace(time) {
            self.skip(earlier, SkippedBecause::Replaced);
        }
    }

    /// Starts what waits, if nothing runs.
    fn begin(&mut self) {
        if !self.is_busy() {
            self.due.start = self.due.queued.take();
        }
    }
}
