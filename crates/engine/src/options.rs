//! What is asked of a run beside its job, and how it is cancelled.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::select_all;
use millstream_state::OfStep;
use tokio::sync::Notify;

/// Cancels runs. Clones cancel the same runs.
#[derive(Clone, Default)]
pub struct Cancel {
    own: Arc<State>,
    /// What cancels this, too.
    above: Vec<Arc<State>>,
}

#[derive(Default)]
struct State {
    cancelled: AtomicBool,
    notify: Notify,
}

impl Cancel {
    /// Cancels the runs: each rolls back what is not committed and fails with
    /// [`millstream_core::ErrorKind::Interrupted`]. Commits that have begun come to their end.
    pub fn cancel(&self) {
        self.own.cancelled.store(true, Ordering::SeqCst);
        self.own.notify.notify_waiters();
    }

    /// One that this cancels, and that does not cancel this.
    pub(crate) fn child(&self) -> Self {
        let above = self.above.iter().chain([&self.own]).map(Arc::clone);
        Cancel { own: Arc::default(), above: above.collect() }
    }

    /// Whether the runs were cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.states().any(|state| state.cancelled.load(Ordering::SeqCst))
    }

    /// Returns when the runs are cancelled.
    pub async fn cancelled(&self) {
        select_all(self.states().map(|state| Box::pin(state.cancelled()))).await;
    }

    fn states(&self) -> impl Iterator<Item = &Arc<State>> {
        self.above.iter().chain([&self.own])
    }
}

impl State {
    async fn cancelled(&self) {
        loop {
            let notified = self.notify.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if self.cancelled.load(Ordering::SeqCst) {
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

/// How a run uses the workers of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterOptions {
    /// Where they join: `0.0.0.0:7447`.
    pub listen: String,
    /// The file with the secret of the cluster.
    pub secret: PathBuf,
    /// Folders that all machines see under the same path.
    pub shared: Vec<PathBuf>,
    /// Whether the run fails if its job cannot be distributed, and waits for workers for ever.
    pub always: bool,
    /// How long it waits if there is no worker; then it reads by itself what is left.
    pub wait: Duration,
    /// How often coordinator and workers say that they are there.
    pub beat: Duration,
    /// After how long without a word one of them is lost to the other.
    pub patience: Duration,
}

impl ClusterOptions {
    /// With workers that join at `listen` and have the secret in the file `secret`.
    pub fn new(listen: impl Into<String>, secret: impl Into<PathBuf>) -> Self {
        ClusterOptions {
            listen: listen.into(),
            secret: secret.into(),
            shared: Vec::new(),
            always: false,
            wait: Duration::from_secs(30),
            beat: Duration::from_secs(5),
            patience: Duration::from_secs(30),
        }
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
    /// The variables that distinguish the runs of one job. `None`: those that the job was parsed with.
    pub variables: Option<Vec<(String, String)>>,
    /// When the logical run begins, in milliseconds since 1970: what `today` and `now` are. `None`: now, or when the
    /// run began that this one resumes.
    pub now: Option<i64>,
    /// The series of runs that it belongs to, as the run history stores it: runs of one job for several values of a
    /// variable. A run that resumes another one belongs to the series of that.
    pub series: Option<String>,
    /// The step of a sequence that it is, as the run history stores it.
    pub of_step: Option<OfStep>,
    /// Variables that the programs of the job get beside those of this process, unless the job sets them.
    pub environment: Vec<(String, String)>,
    /// Whether [`Event::Stage`](crate::run::Event::Stage) reports what the run has spent its time with.
    pub stages: bool,
    /// Lets the workers of a cluster read.
    pub cluster: Option<ClusterOptions>,
    /// Cancels the run, and all others that have a clone of it. To drop or cancel the handle of one run leaves the
    /// others alone.
    pub cancel: Cancel,
}
