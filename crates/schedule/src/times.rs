//! The planned times of a schedule, through both changes of daylight saving time.
//!
//! Each entry is either fixed or not ([`Cron::is_fixed`](crate::cron::Cron::is_fixed)). A fixed one happens once for
//! each time that it names: at the end of the gap where clocks skip that time, in the first pass where they show it
//! twice. The others happen whenever clocks show their times: never in the gap, in both passes of the overlap.
//!
//! Times are computed window by window. That gives them in order even where clocks are set back over midnight, and a
//! window costs the same whatever lies before it.

use chrono::{DateTime, Days, NaiveTime, TimeDelta, Utc};

use crate::cron::CALENDAR;
use crate::schedule::Schedule;
use crate::wall::{Shown, ahead, shown};

/// Windows begin with this length: an entry may name every minute, and mostly the first time is wanted.
const SHORTEST: TimeDelta = TimeDelta::hours(1);

/// Windows grow to this length while they are empty.
const LONGEST: TimeDelta = TimeDelta::days(1);

/// Planned times, in order and each once; computed as they are asked for.
#[derive(Debug, Clone)]
pub struct Times<'a> {
    schedule: &'a Schedule,
    /// Up to here they are computed.
    after: DateTime<Utc>,
    until: DateTime<Utc>,
    length: TimeDelta,
    ready: std::vec::IntoIter<DateTime<Utc>>,
}

impl Schedule {
    /// The planned times behind `after`, up to and with `until`.
    pub fn times(&self, after: DateTime<Utc>, until: DateTime<Utc>) -> Times<'_> {
        // Far from the ends of what can be represented, so that nothing below overflows.
        let last = DateTime::from_timestamp(253_402_300_799, 0).unwrap_or(DateTime::<Utc>::MAX_UTC);
        let [after, until] = [after, until].map(|moment| moment.clamp(DateTime::UNIX_EPOCH, last));
        Times { schedule: self, after, until, length: SHORTEST, ready: Vec::new().into_iter() }
    }

    /// The first planned time behind `after`.
    pub fn next(&self, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let until =
            after.max(DateTime::UNIX_EPOCH).checked_add_days(Days::new(CALENDAR)).unwrap_or(DateTime::<Utc>::MAX_UTC);
        self.times(after, until).next()
    }

    /// Those of one window, in order.
    fn window(&self, after: DateTime<Utc>, until: DateTime<Utc>) -> Vec<DateTime<Utc>> {
        // If clocks are set within the window, these are the earliest and the latest time that they show or skip.
        let [before, behind] = [after, until].map(|moment| ahead(self.zone, moment));
        let (from, to) = (after.naive_utc() + before.min(behind), until.naive_utc() + before.max(behind));
        let mut times = Vec::new();
        for cron in &self.crons {
            for time in cron.wall_times(from, to) {
                match (shown(self.zone, time), cron.is_fixed()) {
                    (Some(Shown::Once(one) | Shown::Twice(one, _)), true) | (Some(Shown::Once(one)), false) => {
                        times.push(one);
                    }
                    (Some(Shown::Never(end)), true) => times.push(end),
                    (Some(Shown::Twice(first, second)), false) => times.extend([first, second]),
                    (Some(Shown::Never(_)), false) | (None, _) => {}
                }
            }
        }
        times.retain(|time| *time > after && *time <= until);
        times.sort_unstable();
        times.dedup();
        times
    }

    /// A moment at or after `from`, such that no planned time lies between; `None` if none comes any more.
    fn nothing_before(&self, from: DateTime<Utc>) -> Option<DateTime<Utc>> {
        // Clocks show another day than UTC, by less than a day.
        let day = self.first_day(from.date_naive().pred_opt()?)?;
        Some(from.max(day.pred_opt()?.and_time(NaiveTime::MIN).and_utc()))
    }
}

impl Iterator for Times<'_> {
    type Item = DateTime<Utc>;

    fn next(&mut self) -> Option<DateTime<Utc>> {
        loop {
            if let Some(time) = self.ready.next() {
                return Some(time);
            }
            if self.after >= self.until {
                return None;
            }
            let end = self.until.min(self.after + self.length);
            self.ready = self.schedule.window(self.after, end).into_iter();
            (self.after, self.length) = match self.ready.as_slice().is_empty() {
                true => (self.schedule.nothing_before(end).unwrap_or(self.until), LONGEST.min(self.length * 2)),
                false => (end, SHORTEST),
            };
        }
    }
}
