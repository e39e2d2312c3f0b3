//! The rate over the last seconds.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The rate is that of so much time.
const WINDOW: Duration = Duration::from_secs(5);

/// The time between two counts that are kept.
const BETWEEN: Duration = Duration::from_millis(500);

/// What has been counted in the last seconds.
#[derive(Debug, Default)]
pub(super) struct Rate {
    counts: VecDeque<(Instant, u64)>,
}

impl Rate {
    /// The rate a second, now that there are `count` in all.
    pub(super) fn note(&mut self, now: Instant, count: u64) -> f64 {
        while self.counts.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= WINDOW) {
            self.counts.pop_front();
        }
        if self.counts.back().is_none_or(|(at, _)| now.duration_since(*at) >= BETWEEN) {
            self.counts.push_back((now, count));
        }
        let Some((at, before)) = self.counts.front() else { return 0.0 };
        let seconds = now.duration_since(*at).as_secs_f64();
        if seconds > 0.0 { count.saturating_sub(*before) as f64 / seconds } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let (begun, mut rate) = (Instant::now(), Rate::default());
        let at = |tenths: u64| begun + Duration::from_millis(100 * tenths);
        assert_eq!(rate.note(at(0), 0), 0.0);
        for tenth in 1..=100 {
            rate.note(at(tenth), 100 * tenth);
        }
        assert_eq!(rate.note(at(101), 10_100).round(), 1_000.0);
        for tenth in 102..=200 {
            rate.note(at(tenth), 10_100);
        }
        assert_eq!(rate.note(at(201), 10_100), 0.0, "nothing came in the last seconds");
        assert!(rate.counts.len() <= 12, "{}", rate.counts.len());
    }
}
