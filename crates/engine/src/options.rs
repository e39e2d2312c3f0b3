//! What is asked of a run beside its job, and how it is watched and ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use millstream_job::Lint;
use tokio::sync::Notify;

use crate::rejects::replay::Replay;
use crate::report::Progress;

/// Is told what is strange about a job and no error, before anything runs.
pub type Warn<'a> = dyn Fn(&[Lint]) + Sync + 'a;

/// Lets another thread end a run.
#[derive(Debug, Default)]
pub struct Interrupt {
    asked: AtomicBool,
    notify: Notify,
}

impl Interrupt {
    /// Ends the run: it takes back what it has written and fails with [`millstream_core::ErrorKind::Interrupted`].
    pub fn ask(&self) {
        self.asked.store(true, Ordering::SeqCst);
        self.notify.notify_waiters();
    }

    /// Whether the run was asked to end.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    /// Returns when the run was asked to end.
    pub async fn asked(&self) {
        loop {
            let notified = self.notify.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if self.is_asked() {
                return;
            }
            notified.await;
        }
    }
}

/// How a run is watched and ended.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    /// Called about ten times a second, and once at the end.
    pub progress: &'a (dyn Fn(&Progress) + Sync),
    /// Is told what is strange about the job, before anything is written.
    pub warn: &'a Warn<'a>,
    /// Ends the run.
    pub interrupt: &'a Interrupt,
}

/// What is asked of a run beside its job.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// Go on where the last run of the job stopped.
    pub resume: bool,
    /// Begin anew, whatever an earlier run has left.
    pub restart: bool,
    /// Load units that have changed since they were loaded as they are now.
    pub accept_changed: bool,
    /// Load these rejects again, and nothing else.
    pub replay: Option<Arc<Replay>>,
    /// The variables of the command line, which tell runs of one job from each other.
    pub variables: Vec<(String, String)>,
}
