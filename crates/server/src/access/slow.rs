//! Slows down those who guess tokens and passwords.
//!
//! Some wrong ones are answered at once: people mistype. After these, the answer to each further one comes later, and
//! only so many are waited for at a time: others are refused at once, and their tokens are not even looked at. With time,
//! what was wrong is forgotten. All addresses count together: guessing from many of them is no faster. Requests with a
//! token that is right are never slowed.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// So many are answered at once.
const FREE: f64 = 5.0;

/// One is forgotten in this time.
const FORGOTTEN: Duration = Duration::from_secs(10);

/// The answer to the first one that is slowed comes after this time, and each further one after double the time.
const FIRST: Duration = Duration::from_millis(200);

/// Up to this.
const LONGEST: Duration = Duration::from_secs(5);

/// So many wait at a time.
const MOST_WAITING: usize = 16;

/// Numbers of wrong ones at which the audit log notes them: the first ones, and then ever fewer.
fn is_noted(count: u64) -> bool {
    count <= 10 || count.is_power_of_two() || count.is_multiple_of(1_000)
}

/// What was wrong lately.
#[derive(Debug, Default)]
pub struct Slow(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// How many there were, less what was forgotten since.
    level: f64,
    seen: Option<Instant>,
    waiting: usize,
    /// How many there were in all.
    count: u64,
}

impl State {
    fn level(&self, now: Instant) -> f64 {
        let passed = self.seen.map_or(0.0, |seen| now.saturating_duration_since(seen).as_secs_f64());
        (self.level - passed / FORGOTTEN.as_secs_f64()).max(0.0)
    }
}

/// What is to be done about a wrong token.
#[derive(Debug, PartialEq, Eq)]
pub struct Wrong {
    /// How long the answer waits.
    pub wait: Duration,
    /// How many there were, if the log is to note that.
    pub noted: Option<u64>,
}

impl Slow {
    /// Whether so many wait already that another guess is refused, whatever it is.
    pub fn is_full(&self) -> bool {
        self.state().waiting >= MOST_WAITING
    }

    /// Something was wrong, at `now`. The answer waits; [`Slow::waited`] follows.
    pub fn wrong(&self, now: Instant) -> Wrong {
        let mut state = self.state();
        state.level = state.level(now) + 1.0;
        state.seen = Some(now);
        state.count += 1;
        state.waiting += 1;
        let over = (state.level - FREE).max(0.0);
        let wait =
            if over < 0.5 { Duration::ZERO } else { FIRST.mul_f64(2f64.powf(over.min(10.0) - 1.0)).min(LONGEST) };
        Wrong { wait, noted: is_noted(state.count).then_some(state.count) }
    }

    /// One that waited does not any more.
    pub fn waited(&self) {
        let mut state = self.state();
        state.waiting = state.waiting.saturating_sub(1);
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_are_free_and_then_each_takes_longer() {
        let (slow, now) = (Slow::default(), Instant::now());
        let waits: Vec<u128> = (0..12).map(|_| slow.wrong(now).wait.as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        assert!(!slow.is_full());
        let more = (0..4).map(|_| slow.wrong(now).wait).max();
        assert_eq!(more, Some(LONGEST));
        assert!(slow.is_full());
        (0..16).for_each(|_| slow.waited());
        assert!(!slow.is_full());
        let later = slow.wrong(now + FORGOTTEN * 12);
        assert_eq!(later.wait.as_millis(), 0, "it is forgotten");
    }

    #[test]
    fn a_thousand_are_noted_in_few_lines() {
        let slow = Slow::default();
        let noted = (0..1_000).filter(|_| slow.wrong(Instant::now()).noted.is_some()).count();
        assert!((10..25).contains(&noted), "{noted}");
    }
}
