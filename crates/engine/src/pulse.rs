//! What a run notes beside the counters of its steps, for those who observe it: the stages that it has gone through,
//! the epochs that it has committed, how far it is behind its queue.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// What a run has spent time with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// What it was.
    pub kind: StageKind,
    /// The entry of the job that it was about; of a hook the key of the job file and what it is: `on_success: webhook`.
    pub of: Option<String>,
    /// When it began.
    pub began: SystemTime,
    /// How long it took.
    pub took: Duration,
    /// Whether it has failed.
    pub failed: bool,
    /// The messages of an epoch; 0 of everything else.
    pub messages: u64,
}

/// The kinds of what a run spends time with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StageKind {
    /// Looking at sources and targets, up to the plan.
    Prepare,
    /// Reading and loading all rows.
    Load,
    /// Loading the rows of one sink, within [`StageKind::Load`].
    Sink,
    /// Making the rows of all sinks durable and visible.
    Commit,
    /// Writing the messages that a queue's sinks commit together, within [`StageKind::Load`].
    Epoch,
    /// Something that is done after a run.
    Hook,
}

/// What a run that reads a queue has committed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EpochCounts {
    /// Epochs that all of their sinks have committed.
    pub epochs: u64,
    /// Transactions of sinks: one for each sink of an epoch.
    pub commits: u64,
}

/// How far a run is behind its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lag {
    /// Messages that are in the queue and not committed.
    pub messages: u64,
    /// The age of the oldest of them; `None` where it is not known.
    pub oldest: Option<Duration>,
}

type Report = Arc<dyn Fn(Stage) + Send + Sync>;

/// Notes what a run is doing.
#[derive(Default)]
pub struct Pulse {
    report: Option<Report>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    epochs: EpochCounts,
    lag: Option<Lag>,
    /// When the epoch began that is being written.
    epoch: Option<(SystemTime, Instant)>,
}

impl Pulse {
    /// One that also hands each stage to `report` once it is over.
    pub fn reporting(report: impl Fn(Stage) + Send + Sync + 'static) -> Self {
        Pulse { report: Some(Arc::new(report)), state: Mutex::default() }
    }

    /// A stage begins, which lasts until what comes back is dropped.
    pub fn begin(&self, kind: StageKind, of: Option<&str>) -> Begun {
        let of = of.map(str::to_owned);
        let report = self.report.clone();
        Begun { report, kind, of, began: (SystemTime::now(), Instant::now()), failed: AtomicBool::new(false) }
    }

    /// Does `work`, which is a stage of the run.
    ///
    /// # Errors
    /// Those of `work`.
    pub async fn timed<T, E>(
        &self,
        kind: StageKind,
        of: Option<&str>,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let stage = self.begin(kind, of);
        work.await.inspect_err(|_| stage.fail())
    }

    /// The sinks begin to write an epoch.
    pub fn begin_epoch(&self) {
        self.locked(|state| state.epoch = Some((SystemTime::now(), Instant::now())));
    }

    /// The epoch of `messages` is committed, by `commits` sinks.
    pub fn end_epoch(&self, messages: u64, commits: usize) {
        let begun = self.locked(|state| {
            state.epochs.epochs += 1;
            state.epochs.commits += commits as u64;
            state.epoch.take()
        });
        if let (Some(report), Some((began, since))) = (&self.report, begun) {
            let (kind, took) = (StageKind::Epoch, since.elapsed());
            report(Stage { kind, of: None, began, took, failed: false, messages });
        }
    }

    /// The run is so far behind its queue.
    pub fn set_lag(&self, lag: Option<Lag>) {
        self.locked(|state| state.lag = lag);
    }

    /// What is committed so far.
    pub fn epochs(&self) -> EpochCounts {
        self.locked(|state| state.epochs)
    }

    /// How far the run is behind its queue, as it was noted last.
    pub fn lag(&self) -> Option<Lag> {
        self.locked(|state| state.lag)
    }

    fn locked<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Pulse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pulse").field("epochs", &self.epochs()).field("lag", &self.lag()).finish_non_exhaustive()
    }
}

/// A stage that has begun.
pub struct Begun {
    report: Option<Report>,
    kind: StageKind,
    of: Option<String>,
    began: (SystemTime, Instant),
    failed: AtomicBool,
}

impl Begun {
    /// It has failed.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(report) = &self.report {
            let (kind, of, (began, since)) = (self.kind, self.of.take(), self.began);
            let failed = *self.failed.get_mut();
            report(Stage { kind, of, began, took: since.elapsed(), failed, messages: 0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_reported_once_they_are_over() {
        let seen: Arc<Mutex<Vec<Stage>>> = Arc::default();
        let taker = Arc::clone(&seen);
        let pulse = Pulse::reporting(move |stage| taker.lock().expect("no panic").push(stage));
        let outer = pulse.begin(StageKind::Load, None);
        let inner = futures::executor::block_on(pulse.timed(StageKind::Sink, Some("o"), async { Err::<(), _>("no") }));
        assert_eq!(inner, Err("no"));
        drop(outer);
        let seen = seen.lock().expect("no panic");
        let shown: Vec<_> = seen.iter().map(|stage| (stage.kind, stage.of.as_deref(), stage.failed)).collect();
        assert_eq!(shown, [(StageKind::Sink, Some("o"), true), (StageKind::Load, None, false)]);
        assert!(seen[0].began >= seen[1].began && seen[0].took <= seen[1].took);
    }

    #[test]
    fn epochs_are_counted_whether_or_not_they_are_reported() {
        let pulse = Pulse::default();
        pulse.begin_epoch();
        pulse.end_epoch(10, 2);
        pulse.end_epoch(10, 1);
        assert_eq!(pulse.epochs(), EpochCounts { epochs: 2, commits: 3 });
        let lag = Lag { messages: 7, oldest: None };
        pulse.set_lag(Some(lag));
        assert_eq!(pulse.lag(), Some(lag));
    }
}
