//! Waiting for a database that another process holds: as long as the job says, and no longer than anyone wants the
//! answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rusqlite::Connection;

/// The longest pause between two tries: so late it is noticed that the database is free, or that nobody waits.
const LONGEST_PAUSE: Duration = Duration::from_millis(25);

/// How long to wait, and whether anyone still does. Its clones are given up together.
#[derive(Debug, Clone)]
pub(super) struct Patience {
    limit: Duration,
    given_up: Arc<AtomicBool>,
}

impl Patience {
    pub(super) fn new(limit: Duration) -> Self {
        Patience { limit, given_up: Arc::default() }
    }

    /// The same with another limit.
    pub(super) fn with_limit(&self, limit: Duration) -> Self {
        Patience { limit, given_up: Arc::clone(&self.given_up) }
    }

    /// Ends all waiting, now and later.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    /// Gives up when what it returns is dropped: when a future is, in which somebody waits.
    pub(super) fn until_dropped(&self) -> GiveUp {
        GiveUp(self.clone())
    }

    /// Lets `connection` wait like this. SQLite's own time limit cannot be ended early, and ends at 24 days.
    pub(super) fn apply(&self, connection: &mut Connection) -> rusqlite::Result<()> {
        let patience = self.clone();
        let mut since = Instant::now();
        connection.busy_handler(Some(move |tries: i32| {
            if tries == 0 {
                since = Instant::now();
            }
            patience.pause(since, tries.unsigned_abs())
        }))
    }

    /// Waits a little before try number `tries` (from 0) of a wait that began at `since`; false if it is enough.
    pub(super) fn pause(&self, since: Instant, tries: u32) -> bool {
        let left = self.limit.saturating_sub(since.elapsed());
        if left.is_zero() || self.is_given_up() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(u64::from(tries) + 1).min(LONGEST_PAUSE).min(left));
        true
    }
}

/// See [`Patience::until_dropped`].
pub(super) struct GiveUp(Patience);

impl Drop for GiveUp {
    fn drop(&mut self) {
        self.0.give_up();
    }
}
