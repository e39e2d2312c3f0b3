//! What a run did in each interval of its time: as many intervals as a report can hold, which get longer with the run.

use std::time::{Duration, Instant};

use millstream_core::queue::Lag;

use crate::report::Interval;

/// The most intervals.
const MOST: usize = 120;

/// The length of the first ones.
const FIRST: Duration = Duration::from_secs(1);

/// Counters that only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) messages: u64,
    pub(super) rows_written: u64,
    pub(super) rejected: u64,
    pub(super) epochs: u64,
}

/// The end of an interval.
#[derive(Debug, Clone, Copy)]
struct End {
    /// Milliseconds since 1970.
    at: u64,
    counts: Counts,
    lag: Lag,
}

/// The intervals of a run, each of which begins where the one before it ends.
#[derive(Debug)]
pub(super) struct Intervals {
    /// When the run began, in milliseconds since 1970.
    from: u64,
    ends: Vec<End>,
    /// When the last one ended.
    last: Instant,
    length: Duration,
}

impl Intervals {
    pub(super) fn new(now: Instant, from: u64) -> Self {
        Intervals { from, ends: Vec::new(), last: now, length: FIRST }
    }

    /// Ends the current interval, if it is long enough.
    pub(super) fn note(&mut self, now: Instant, at: u64, counts: Counts, lag: Lag) {
        if now.duration_since(self.last) >= self.length {
            self.end(now, at, counts, lag);
        }
    }

    /// Ends the current interval. If there are too many, two neighbours become one.
    pub(super) fn end(&mut self, now: Instant, at: u64, counts: Counts, lag: Lag) {
        if self.ends.len() == MOST {
            self.ends = self.ends.chunks(2).filter_map(|pair| pair.last().copied()).collect();
            self.length *= 2;
        }
        self.ends.push(End { at, counts, lag });
        self.last = now;
    }

    pub(super) fn all(&self) -> Vec<Interval> {
        let (mut from, mut before) = (self.from, Counts::default());
        let interval = |end: &End| {
            let End { at, counts, lag } = *end;
            let interval = Interval {
                from: in_utc(from),
                to: in_utc(at),
                messages: counts.messages.saturating_sub(before.messages),
                rows_written: counts.rows_written.saturating_sub(before.rows_written),
                rejected: counts.rejected.saturating_sub(before.rejected),
                epochs: counts.epochs.saturating_sub(before.epochs),
                lag: lag.messages,
                oldest_seconds: lag.oldest.map(|oldest| oldest.as_secs_f64()),
            };
            (from, before) = (at, counts);
            interval
        };
        self.ends.iter().map(interval).collect()
    }
}

/// A time in ISO form: `2026-11-26T00:31:28Z`.
fn in_utc(milliseconds: u64) -> String {
    let time = chrono::DateTime::from_timestamp_millis(milliseconds.cast_signed());
    time.map(|time| time.format("%Y-%m-%dT%H:%M:%SZ").to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The intervals of a run of so many seconds, which gets a message in each.
    fn of_seconds(seconds: u64) -> Intervals {
        let begun = Instant::now();
        let mut intervals = Intervals::new(begun, 0);
        for second in 1..=seconds {
            let counts = Counts { messages: second, rows_written: 2 * second, ..Counts::default() };
            let lag = Lag { messages: Some(seconds - second), oldest: None };
            intervals.note(begun + Duration::from_secs(second), 1_000 * second, counts, lag);
        }
        intervals
    }

    #[test]
    fn a_long_run_has_longer_intervals_and_no_more_of_them() {
        for seconds in [1, 119, 120, 121, 1_000, 100_000] {
            let intervals = of_seconds(seconds);
            let (length, all) = (intervals.length.as_secs(), intervals.all());
            assert!(all.len() <= MOST && (seconds < 120 || all.len() >= MOST / 2), "{seconds}: {}", all.len());
            assert!(all.iter().all(|one| one.messages <= length && one.rows_written == 2 * one.messages), "{all:?}");
            let covered = all.iter().map(|one| one.messages).sum::<u64>();
            assert!(covered <= seconds && seconds - covered < length, "{covered} of {seconds}");
            assert!(all.windows(2).all(|pair| pair[0].to == pair[1].from), "{all:?}");
        }
    }

    #[test]
    fn an_interval_says_when_and_how_far_the_queue_was_behind_at_its_end() {
        let all = of_seconds(2).all();
        assert_eq!((all[0].from.as_str(), all[0].to.as_str()), ("1970-01-01T00:00:00Z", "1970-01-01T00:00:01Z"));
        assert_eq!((all[0].lag, all[1].lag), (Some(1), Some(0)));
    }
}
