//! Slows down those who guess tokens and passwords.
//!
//! Some wrong ones are answered at once: people mistype. After these, the answer to each further one comes later, and
//! only so many are waited for at a time, also if those who guess do not wait themselves: others are refused at once.
//! With time, what was wrong is forgotten. All addresses count together: guessing from many of them is no faster.
//! Tokens that are right are never slowed; passwords have places of their own, since they are looked at in these.

use std::sync::{Arc, Mutex, PoisonError};
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
pub(super) fn is_noted(count: u64) -> bool {
    count <= 10 || count.is_power_of_two() || count.is_multiple_of(1_000)
}

/// More than so many are not counted: who has stopped guessing is not slowed for longer than it takes to forget these.
const MOST_COUNTED: f64 = 16.0;

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

/// A guess that is looked at, or whose answer waits, until this is dropped.
#[derive(Debug)]
pub struct Guess(Arc<Slow>);

impl Slow {
    /// Takes one of the places for guesses; `None` if others have them all.
    pub fn enter(self: &Arc<Self>) -> Option<Guess> {
        let mut state = self.state();
        if state.waiting >= MOST_WAITING {
            return None;
        }
        state.waiting += 1;
        Some(Guess(Arc::clone(self)))
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guess {
    /// It was wrong, at `now`.
    pub fn wrong(&self, now: Instant) -> Wrong {
        let mut state = self.0.state();
        state.level = (state.level(now) + 1.0).min(MOST_COUNTED);
        state.seen = Some(now);
        state.count += 1;
        let over = (state.level - FREE).max(0.0);
        let wait =
            if over < 0.5 { Duration::ZERO } else { FIRST.mul_f64(2f64.powf(over.min(10.0) - 1.0)).min(LONGEST) };
        Wrong { wait, noted: is_noted(state.count).then_some(state.count) }
    }
}

impl Drop for Guess {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.waiting = state.waiting.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_are_free_and_then_each_takes_longer() {
        let (slow, now) = (Arc::new(Slow::default()), Instant::now());
        let guess = |now: Instant| slow.enter().expect("a place").wrong(now).wait.as_millis();
        let waits: Vec<u128> = (0..12).map(|_| guess(now)).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        assert_eq!(guess(now + FORGOTTEN * 12), 0, "it is forgotten");
    }

    #[test]
    fn only_so_many_are_looked_at_together() {
        let slow = Arc::new(Slow::default());
        let guesses: Vec<Guess> = (0..MOST_WAITING).map(|_| slow.enter().expect("a place")).collect();
        assert!(slow.enter().is_none());
        drop(guesses);
        assert!(slow.enter().is_some());
    }

    #[test]
    fn a_thousand_are_noted_in_few_lines() {
        let slow = Arc::new(Slow::default());
        let guess = || slow.enter().expect("a place").wrong(Instant::now());
        let noted = (0..1_000).filter(|_| guess().noted.is_some()).count();
        assert!((10..25).contains(&noted), "{noted}");
    }
}
