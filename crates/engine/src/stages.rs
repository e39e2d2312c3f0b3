//! The stages of a run: what it spends time with, for those who observe it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// Whether it has failed, or was dropped before its end.
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

type Report = Arc<dyn Fn(Stage) + Send + Sync>;

/// Takes the stages of a run once they are over, if anything does.
#[derive(Clone, Default)]
pub struct Stages(Option<Report>);

impl Stages {
    /// Hands each stage to `report` once it is over.
    pub fn reported_to(report: impl Fn(Stage) + Send + Sync + 'static) -> Self {
        Stages(Some(Arc::new(report)))
    }

    /// A stage begins, which lasts until what comes back is dropped.
    pub fn begin(&self, kind: StageKind, of: Option<&str>) -> OpenStage {
        OpenStage {
            report: self.0.clone(),
            kind,
            of: of.map(str::to_owned),
            began: (SystemTime::now(), Instant::now()),
            messages: 0,
            has_ended: false,
            has_failed: AtomicBool::new(false),
        }
    }

    /// The sinks begin to write an epoch of `messages`.
    pub fn begin_epoch(&self, messages: u64) -> OpenStage {
        let mut epoch = self.begin(StageKind::Epoch, None);
        epoch.messages = messages;
        epoch
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
        work.await.inspect(|_| stage.end())
    }
}

impl fmt::Debug for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stages").field(&self.0.is_some()).finish()
    }
}

/// A stage that has begun. It has failed if it is dropped before [`OpenStage::end`].
pub struct OpenStage {
    report: Option<Report>,
    kind: StageKind,
    of: Option<String>,
    began: (SystemTime, Instant),
    messages: u64,
    has_ended: bool,
    has_failed: AtomicBool,
}

impl OpenStage {
    /// It has come to its end.
    pub fn end(mut self) {
        self.has_ended = true;
    }

    /// A part of it has failed, however the others end.
    pub fn fail(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }
}

impl Drop for OpenStage {
    fn drop(&mut self) {
        if let Some(report) = &self.report {
            let (kind, of, (began, since), messages) = (self.kind, self.of.take(), self.began, self.messages);
            let failed = !self.has_ended || *self.has_failed.get_mut();
            report(Stage { kind, of, began, took: since.elapsed(), failed, messages });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn stages_are_reported_once_they_are_over() {
        let seen: Arc<Mutex<Vec<Stage>>> = Arc::default();
        let taker = Arc::clone(&seen);
        let stages = Stages::reported_to(move |stage| taker.lock().expect("no panic").push(stage));
        let outer = stages.begin(StageKind::Load, None);
        let timed = |done: Result<(), &'static str>| {
            futures::executor::block_on(stages.timed(StageKind::Sink, Some("o"), async move { done }))
        };
        assert_eq!((timed(Err("no")), timed(Ok(()))), (Err("no"), Ok(())));
        drop(stages.begin_epoch(7));
        let of_parts = stages.begin(StageKind::Commit, None);
        of_parts.fail();
        of_parts.end();
        outer.end();
        let seen = seen.lock().expect("no panic");
        let shown: Vec<_> = seen.iter().map(|stage| (stage.kind, stage.of.as_deref(), stage.failed)).collect();
        let expected = [
            (StageKind::Sink, Some("o"), true),
            (StageKind::Sink, Some("o"), false),
            (StageKind::Epoch, None, true),
            (StageKind::Commit, None, true),
            (StageKind::Load, None, false),
        ];
        assert_eq!(shown, expected);
        assert_eq!(seen.iter().map(|stage| stage.messages).sum::<u64>(), 7);
        let (first, last) = (&seen[0], &seen[4]);
        assert!(first.began >= last.began && first.took <= last.took);
    }
}
