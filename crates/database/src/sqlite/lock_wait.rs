//! Waits for a database that another connection has locked, up to the limit in the job, and until the wait is stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rusqlite::Connection;

/// The longest pause between two tries, and so the delay after which a free database or a stop is noticed.
const LONGEST_PAUSE: Duration = Duration::from_millis(25);

/// How long to wait for a lock, and whether the wait was stopped. Clones are stopped together.
#[derive(Debug, Clone)]
pub struct LockWait {
    limit: Duration,
    stopped: Arc<AtomicBool>,
}

impl LockWait {
    /// Each wait takes at most `limit`.
    pub fn new(limit: Duration) -> Self {
        LockWait { limit, stopped: Arc::default() }
    }

    /// The same with another limit.
    pub fn with_limit(&self, limit: Duration) -> Self {
        LockWait { limit, stopped: Arc::clone(&self.stopped) }
    }

    /// Ends all waiting, now and later.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Whether waiting was stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Stops the wait when what it returns is dropped, such as with a future that waits.
    pub fn stop_on_drop(&self) -> StopOnDrop {
        StopOnDrop(self.clone())
    }

    /// Lets `connection` wait like this. SQLite's own time limit cannot be stopped early, and is at most 24 days.
    pub fn apply(&self, connection: &mut Connection) -> rusqlite::Result<()> {
        let wait = self.clone();
        let mut since = Instant::now();
        connection.busy_handler(Some(move |tries: i32| {
            if tries == 0 {
                since = Instant::now();
            }
            wait.pause(since, tries.unsigned_abs())
        }))
    }

    /// Waits a little before try number `tries` (from 0) of a wait that began at `since`; false if the wait is over.
    pub fn pause(&self, since: Instant, tries: u32) -> bool {
        let left = self.limit.saturating_sub(since.elapsed());
        if left.is_zero() || self.is_stopped() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(u64::from(tries) + 1).min(LONGEST_PAUSE).min(left));
        true
    }
}

/// See [`LockWait::stop_on_drop`].
pub struct StopOnDrop(LockWait);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}
