//! Whether a deadline will be missed, by the durations of earlier runs.
//!
//! The rule: a run takes the median of those earlier runs that took longer than it has taken so far. At its beginning,
//! that is the median of all; each earlier run that it outlasts makes it more probable that this is a long one. If it
//! has outlasted all of them, they say nothing any more.

use chrono::{DateTime, TimeDelta, Utc};

/// Fewer runs say nothing.
const FEWEST: usize = 3;

/// Of more runs, the last ones count: what a job does changes in time.
const MOST: usize = 21;

/// What is to be expected of an occurrence with a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outlook {
    /// When it will have ended, as far as earlier runs tell.
    pub end: Option<DateTime<Utc>>,
    /// From this moment on it is known that the deadline will be missed, unless the occurrence has ended before; the
    /// deadline itself at the latest.
    pub known: DateTime<Utc>,
}

/// What is to be expected at `now` of an occurrence that is to have ended at `deadline`. `begin` is when it began,
/// `None` if it waits; `durations` are those of earlier runs that ended well, in milliseconds, the last one first.
pub fn outlook(
    deadline: DateTime<Utc>,
    begin: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
    durations: &[i64],
) -> Outlook {
    let mut sorted: Vec<TimeDelta> =
        durations.iter().take(MOST).map(|duration| TimeDelta::milliseconds((*duration).max(0))).collect();
    if sorted.len() < FEWEST {
        return Outlook { end: None, known: deadline };
    }
    sorted.sort_unstable();
    let Some(begin) = begin else {
        let typical = median(&sorted);
        let latest = typical.and_then(|typical| deadline.checked_sub_signed(typical)).unwrap_or(deadline);
        return Outlook { end: typical.and_then(|typical| now.checked_add_signed(typical)), known: latest };
    };
    let longer_than = |elapsed: TimeDelta| &sorted[sorted.partition_point(|one| *one <= elapsed)..];
    let end = median(longer_than(now - begin)).and_then(|typical| begin.checked_add_signed(typical));
    // What is expected changes only when it has taken as long as one of the earlier runs.
    let allowed = deadline - begin;
    let moments = [TimeDelta::zero()].into_iter().chain(sorted.iter().copied());
    let is_late = |elapsed: &TimeDelta| median(longer_than(*elapsed)).is_some_and(|typical| typical > allowed);
    let known = moments.filter(is_late).min().and_then(|elapsed| begin.checked_add_signed(elapsed));
    Outlook { end, known: known.map_or(deadline, |known| known.min(deadline)) }
}

impl Outlook {
    /// Whether at `now` the deadline is missed or will be.
    pub fn is_late(&self, now: DateTime<Utc>) -> bool {
        now >= self.known
    }
}

/// Of an even number, the longer one in the middle.
fn median(sorted: &[TimeDelta]) -> Option<TimeDelta> {
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::utc;

    const MINUTE: i64 = 60_000;

    fn minutes(durations: &[i64]) -> Vec<i64> {
        durations.iter().map(|minutes| minutes * MINUTE).collect()
    }

    #[test]
    fn a_run_that_begins_too_late_is_known_at_once() {
        let (begin, deadline) = (utc("2026-01-10T02:30"), utc("2026-01-10T03:00"));
        let found = outlook(deadline, Some(begin), begin, &minutes(&[40, 35, 45]));
        assert_eq!(found, Outlook { end: Some(utc("2026-01-10T03:10")), known: begin });
        assert!(found.is_late(begin));
    }

    #[test]
    fn a_run_that_outlasts_others_is_late_before_the_deadline() {
        let (begin, deadline) = (utc("2026-01-10T02:00"), utc("2026-01-10T03:00"));
        // Mostly half an hour, sometimes more than one.
        let durations = minutes(&[30, 90, 28, 29, 31, 95, 30]);
        let at = |now: &str| outlook(deadline, Some(begin), utc(now), &durations);
        assert_eq!(at("2026-01-10T02:00").end, Some(utc("2026-01-10T02:30")));
        // At 30 minutes, those that took longer are 31, 90 and 95.
        let known = utc("2026-01-10T02:30");
        assert_eq!(at("2026-01-10T02:00").known, known);
        assert!(!at("2026-01-10T02:29").is_late(utc("2026-01-10T02:29")));
        assert_eq!(at("2026-01-10T02:30"), Outlook { end: Some(utc("2026-01-10T03:30")), known });
        assert_eq!(at("2026-01-10T03:36"), Outlook { end: None, known });
    }

    #[test]
    fn what_waits_is_late_once_too_little_time_is_left() {
        let (now, deadline) = (utc("2026-01-10T02:10"), utc("2026-01-10T03:00"));
        let found = outlook(deadline, None, now, &minutes(&[30, 20, 40]));
        assert_eq!(found, Outlook { end: Some(utc("2026-01-10T02:40")), known: utc("2026-01-10T02:30") });
    }

    #[test]
    fn few_runs_and_runs_in_time_say_nothing_before_the_deadline() {
        let (begin, deadline) = (utc("2026-01-10T02:00"), utc("2026-01-10T03:00"));
        for durations in [vec![], minutes(&[600, 600]), minutes(&[10, 20, 60])] {
            let found = outlook(deadline, Some(begin), begin, &durations);
            assert_eq!(found.known, deadline, "{durations:?}");
        }
        assert!(outlook(deadline, Some(begin), deadline, &[]).is_late(deadline));
    }

    #[test]
    fn only_the_last_runs_count() {
        let (begin, deadline) = (utc("2026-01-10T02:00"), utc("2026-01-10T03:00"));
        let mut durations = minutes(&[20; MOST]);
        durations.extend(minutes(&[500; 100]));
        assert_eq!(outlook(deadline, Some(begin), begin, &durations).known, deadline);
    }

    /// What is known is the first of all moments, second by second, at which the end lies behind the deadline.
    #[test]
    fn what_is_known_agrees_with_looking_each_second() {
        let begin = utc("2026-01-10T02:00");
        for seed in 0..300 {
            let mut random = fastrand::Rng::with_seed(seed);
            let durations: Vec<i64> = (0..random.usize(3..12)).map(|_| random.i64(0..100) * 1000).collect();
            let deadline = begin + TimeDelta::seconds(random.i64(0..100));
            let seconds = (0..=(deadline - begin).num_seconds()).map(|seconds| begin + TimeDelta::seconds(seconds));
            let is_late = |now: &DateTime<Utc>| {
                outlook(deadline, Some(begin), *now, &durations).end.is_some_and(|end| end > deadline)
            };
            let first = seconds.clone().find(is_late).unwrap_or(deadline);
            assert_eq!(outlook(deadline, Some(begin), begin, &durations).known, first, "seed {seed}: {durations:?}");
        }
    }
}
