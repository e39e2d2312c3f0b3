//! What happens during a run, on its way to the caller.

use std::time::Duration;

use millstream_core::Error;
use millstream_job::Lint;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, WeakUnboundedSender, unbounded_channel};
use tokio::sync::watch;

use crate::report::Progress;
use crate::stages::Stage;

/// What happens during a run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// Other runs have the memory: the run waits for its turn.
    Waiting,
    /// What is strange about the job and no error. It comes before anything is written.
    Warnings(Vec<Lint>),
    /// A program that works for the run has written a line to standard error.
    Line {
        /// The entry of the job that it works for.
        step: String,
        /// The line.
        line: String,
    },
    /// The run has failed, and is resumed after a while.
    Retrying {
        /// The number of the attempt that has failed, from 1.
        attempt: u32,
        /// How many attempts there are at most.
        of: u32,
        /// How long it waits.
        wait: Duration,
        /// Why it has failed.
        error: Error,
    },
    /// The job does not run at this time of the day: the run waits.
    OutsideHours {
        /// The hours in which it runs.
        hours: String,
        /// When they begin, in the time zone of the job.
        until: String,
        /// Whether it has begun before, and continues then.
        has_begun: bool,
    },
    /// A queue or a target is away: the run waits for it.
    Away {
        /// The entry of the job that waits.
        of: String,
        /// Why.
        error: Error,
    },
    /// What an entry has waited for is there again.
    Back {
        /// The entry.
        of: String,
    },
    /// The queue has lost messages, which the job allows.
    Gap {
        /// What.
        error: Error,
    },
    /// Workers of a cluster can join.
    Listening {
        /// Where.
        address: String,
        /// For how long the run waits for the first one; for ever without.
        wait: Option<Duration>,
    },
    /// The run has workers, and its job cannot be distributed: it runs on this machine alone.
    NotDistributed {
        /// Why, in words that end a sentence.
        why: String,
    },
    /// A worker has joined.
    Joined {
        /// Its machine and process.
        worker: String,
        /// Its cores.
        cores: u64,
    },
    /// A worker cannot join.
    NotJoined {
        /// Its machine and process.
        worker: String,
        /// Why.
        error: Error,
    },
    /// A worker has left, as it was asked to.
    Left {
        /// Its machine and process.
        worker: String,
    },
    /// A worker is lost. What it was reading is read again.
    Lost {
        /// Its machine and process.
        worker: String,
        /// Why.
        why: String,
        /// How many bundles it was reading.
        bundles: u64,
    },
    /// There was no worker for too long: the run reads what is left on this machine.
    Alone,
    /// Something that the job does after a run has failed.
    HookFailed {
        /// What.
        hook: String,
        /// Why.
        error: Error,
    },
    /// What the run has spent time with, once it is over: only if
    /// [`RunOptions::stages`](crate::options::RunOptions::stages) asks for it.
    Stage(Stage),
    /// How far the run is, about ten times a second, and once at its end. A caller that reads slowly gets the latest.
    Progress(Progress),
}

/// The events of a run as they come.
pub(super) struct Events {
    rare: UnboundedReceiver<Event>,
    progress: watch::Receiver<Option<Progress>>,
}

impl Events {
    pub(super) async fn next(&mut self) -> Option<Event> {
        tokio::select! {
            biased;
            Some(event) = self.rare.recv() => Some(event),
            Ok(()) = self.progress.changed() => self.progress.borrow_and_update().clone().map(Event::Progress),
            else => None,
        }
    }
}

/// What tells the caller of a run how it goes.
#[derive(Clone)]
pub(crate) struct Observer {
    rare: UnboundedSender<Event>,
    progress: watch::Sender<Option<Progress>>,
}

impl Observer {
    pub(super) fn new() -> (Self, Events) {
        let (rare, rarely) = unbounded_channel();
        let (progress, progresses) = watch::channel(None);
        (Observer { rare, progress }, Events { rare: rarely, progress: progresses })
    }

    /// Reports how far the run is.
    pub(crate) fn progress(&self, progress: Progress) {
        self.progress.send_replace(Some(progress));
    }

    /// Reports `event`. The caller may have left.
    pub(crate) fn report(&self, event: Event) {
        let _ = self.rare.send(event);
    }

    /// What reports events for others, who may outlive the run: they do not keep its events from ending.
    pub(crate) fn reports(&self) -> Reports {
        Reports(self.rare.downgrade())
    }

    /// Reports what is strange about the job, if anything is.
    pub(crate) fn warn(&self, warnings: &[Lint]) {
        if !warnings.is_empty() {
            self.report(Event::Warnings(warnings.to_vec()));
        }
    }
}

/// What reports events until the run has ended.
#[derive(Clone)]
pub(crate) struct Reports(WeakUnboundedSender<Event>);

impl Reports {
    /// Reports `event`, if the run has not ended.
    pub(crate) fn report(&self, event: Event) {
        if let Some(rare) = self.0.upgrade() {
            let _ = rare.send(event);
        }
    }
}
