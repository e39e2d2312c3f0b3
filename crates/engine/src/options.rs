//! What is asked of a run beside its job, and how it is cancelled.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Cancels runs. Clones cancel the same runs.
#[derive(Clone, Default)]
pub struct Cancel(Arc<State>);

#[derive(Default)]
struct State {
    cancelled: AtomicBool,
    notify: Notify,
}

impl Cancel {
    /// Cancels the runs: each rolls back what is not committed and fails with
    /// [`millstream_core::ErrorKind::Interrupted`]. Commits that have begun come to their end.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::SeqCst);
        self.0.notify.notify_waiters();
    }

    /// Whether the runs were cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::SeqCst)
    }

    /// Returns when the runs are cancelled.
    pub async fn cancelled(&self) {
        loop {
            let notified = self.0.notify.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if self.is_cancelled() {
                return;
            }
            notified.await;
        }
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancel").field("cancelled", &self.is_cancelled()).finish()
    }
}

/// What is asked of a run beside its job.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// Resume the last run of the job where it stopped.
    pub resume: bool,
    /// Start again, whatever an earlier run has left.
    pub restart: bool,
    /// Load units that have changed since they were loaded as they are now.
    pub accept_changed: bool,
    /// The variables of the command line, which tell runs of one job from each other.
    pub variables: Vec<(String, String)>,
    /// Cancels the run.
    pub cancel: Cancel,
}
