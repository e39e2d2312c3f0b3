//! How many units of a server are opened at once: few at first, and more while more comes in by it.
//!
//! Each open unit costs memory and a connection, and a server has only so many to give. What they bring is measured
//! over rounds: a round is over when as many units have come as may be open, and some time has passed. While a round
//! brings clearly more than the best before it, the next may open twice as many; one that does not ends the climb. Now
//! and then it is tried again, since a network or a server can become faster.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// With so many it begins.
const FIRST: usize = 8;

/// The shortest round.
const ROUND: Duration = Duration::from_millis(100);

/// So much more must come in a round for the climb to go on.
const GAIN: f64 = 1.1;

/// Rounds without a climb before one is tried again.
const REST: u32 = 50;

/// What a unit is worth in bytes however small it is, so that tiny ones are not taken for silence.
const UNIT: u64 = 1 << 10;

/// The number of units of one server that may be open.
#[derive(Debug)]
pub struct ConcurrencyLimit {
    limit: AtomicUsize,
    /// What has come from all its units.
    bytes: AtomicU64,
    most: usize,
    climb: Mutex<Climb>,
}

#[derive(Debug)]
struct Climb {
    round: Option<Round>,
    /// Bytes a second of the best round so far.
    best: f64,
    /// The limit of the round before.
    before: usize,
    /// Rounds since the climb ended; `None` while it goes on.
    rested: Option<u32>,
}

/// What was known when a round began.
#[derive(Debug, Clone, Copy)]
struct Round {
    began: Instant,
    bytes: u64,
    units: usize,
}

impl ConcurrencyLimit {
    /// At most `most` units.
    pub fn new(most: usize) -> Self {
        let climb = Climb { round: None, best: 0.0, before: most.clamp(1, FIRST), rested: None };
        ConcurrencyLimit {
            limit: AtomicUsize::new(most.clamp(1, FIRST)),
            bytes: AtomicU64::new(0),
            most: most.max(1),
            climb: Mutex::new(climb),
        }
    }

    /// How many may be open now.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// So many bytes have come.
    pub fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A unit was opened.
    pub fn opened(&self) {
        if self.most > FIRST {
            self.opened_at(Instant::now(), self.bytes.load(Ordering::Relaxed));
        }
    }

    fn opened_at(&self, now: Instant, bytes: u64) {
        let mut climb = self.lock();
        let limit = self.limit();
        let Some(round) = &mut climb.round else {
            climb.round = Some(Round { began: now, bytes, units: 0 });
            return;
        };
        round.units += 1;
        let (elapsed, units) = (now.duration_since(round.began), round.units);
        if elapsed < ROUND || units < limit {
            return;
        }
        let worth = bytes.saturating_sub(round.bytes) + units as u64 * UNIT;
        let rate = worth as f64 / elapsed.as_secs_f64();
        climb.round = Some(Round { began: now, bytes, units: 0 });
        match climb.rested {
            None if rate > climb.best * GAIN => self.rise(&mut climb, rate),
            None => {
                climb.rested = Some(0);
                self.limit.store(climb.before, Ordering::Relaxed);
            }
            Some(rested) if rested < REST => climb.rested = Some(rested + 1),
            Some(_) => self.rise(&mut climb, rate),
        }
    }

    fn rise(&self, climb: &mut Climb, rate: f64) {
        let limit = self.limit();
        climb.best = rate;
        climb.before = limit;
        climb.rested = (limit == self.most).then_some(0);
        self.limit.store((limit * 2).min(self.most), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Climb> {
        self.climb.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where it ends, and the most it had, after `rounds` rounds over a network that brings `rate(open)` bytes a
    /// second.
    fn climb(most: usize, rounds: usize, rate: impl Fn(usize) -> f64) -> (usize, usize) {
        let limit = ConcurrencyLimit::new(most);
        let (mut now, mut bytes, mut highest) = (Instant::now(), 0.0, 0);
        limit.opened_at(now, 0);
        for _ in 0..rounds {
            let open = limit.limit();
            highest = highest.max(open);
            for _ in 0..open {
                let time = ROUND.mul_f64(1.01) / open as u32;
                now += time;
                bytes += rate(open) * time.as_secs_f64();
                limit.opened_at(now, bytes as u64);
            }
        }
        (limit.limit(), highest)
    }

    #[test]
    fn it_climbs_while_each_connection_brings_its_own() {
        assert_eq!(climb(64, 5, |open| open as f64 * 1e6), (64, 64));
        assert_eq!(climb(20, 5, |open| open as f64 * 1e6), (20, 20), "never above what is allowed");
        assert_eq!(climb(17, 200, |open| open as f64 * 1e6).1, 17);
    }

    #[test]
    fn it_goes_back_where_more_connections_bring_no_more() {
        assert_eq!(climb(64, 10, |_| 1e8), (8, 16));
        assert_eq!(climb(64, 10, |open| open.min(20) as f64 * 1e6), (32, 64));
    }

    #[test]
    fn after_a_rest_it_tries_again() {
        assert!(climb(64, REST as usize + 10, |_| 1e8).1 <= 16, "and finds nothing new");
    }

    #[test]
    fn few_are_open_from_the_beginning_where_few_are_allowed() {
        assert_eq!(ConcurrencyLimit::new(3).limit(), 3);
        assert_eq!(ConcurrencyLimit::new(0).limit(), 1);
    }
}
