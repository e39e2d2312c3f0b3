//! A run as its caller sees it: events while it lasts, a way to cancel it, and what it comes to.
//!
//! `attempts.rs` makes the attempts of a logical run, each of which is a run; `hours.rs` when they may run.
//! `execute.rs` takes a run from its start to its report, on a thread that the run has for itself. The states of a run
//! and the steps between them: `begin.rs`, `load.rs`, `commit.rs`, `record.rs`. `epochs` a run that reads a queue,
//! `outages.rs` what it reports; `passes.rs` adds up the runs of one command; `after_load.rs` what becomes of files
//! that are loaded; `cluster` what its workers do; `sinks.rs` the sinks of a run; `status.rs` what other processes see of it; `work.rs` what it works
//! with.

mod after_load;
mod attempts;
mod begin;
pub mod cluster;
mod commit;
mod epochs;
mod execute;
mod hours;
mod load;
mod other_values;
mod outages;
mod passes;
mod publish_order;
mod record;
mod sinks;
mod status;
mod work;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::Builder;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use millstream_core::{Error, Result};
use millstream_job::Lint;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, WeakUnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};

use crate::engine::Engine;
use crate::failure::Failure;
use crate::hooks::AfterRun;
use crate::job_plan::Runnable;
use crate::options::{Cancel, RunOptions};
use crate::report::{Progress, Report};
use crate::stages::Stage;

use attempts::Attempts;
pub(crate) use execute::execute;

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
    /// What the run has spent time with, once it is over: only if [`RunOptions::stages`] asks for it.
    Stage(Stage),
    /// How far the run is, about ten times a second, and once at its end. A caller that reads slowly gets the latest.
    Progress(Progress),
}

/// A run of a job. It ends by itself, whether or not its events are read; dropping this cancels it.
pub type Run = Running<Report>;

/// Work of an engine that goes on by itself.
pub struct Running<T> {
    events: BoxStream<'static, Event>,
    ended: oneshot::Receiver<Result<T, Failure>>,
    cancel: Cancel,
    /// Whether the result was taken.
    is_done: bool,
}

/// The events of a run as they come.
struct Events {
    rare: UnboundedReceiver<Event>,
    progress: watch::Receiver<Option<Progress>>,
}

impl Events {
    async fn next(&mut self) -> Option<Event> {
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
    fn new() -> (Self, Events) {
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

impl<T: Send + 'static> Running<T> {
    /// Does `work` on a thread of its own. What cancels it cancels nothing else.
    pub(crate) fn start(
        options: RunOptions,
        work: impl FnOnce(&RunOptions, &Observer) -> Result<T, Failure> + Send + 'static,
    ) -> Result<Self> {
        let cancel = options.cancel.child();
        let options = RunOptions { cancel: cancel.clone(), ..options };
        let (observer, events) = Observer::new();
        let (answer, ended) = oneshot::channel();
        let thread = Builder::new().name("millstream-run".to_owned()).spawn(move || {
            let done = work(&options, &observer);
            drop(observer);
            // The caller may have left.
            let _ = answer.send(done);
        });
        thread.map_err(|cause| Error::io("a thread cannot be started", &cause))?;
        let events = stream::unfold(events, async |mut events| Some((events.next().await?, events))).boxed();
        Ok(Running { events, ended, cancel, is_done: false })
    }

    /// The next event; `None` once the run has ended.
    pub async fn next_event(&mut self) -> Option<Event> {
        self.events.next().await
    }

    /// Cancels the run, which then ends soon: see [`Cancel::cancel`].
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// What the run has come to, once it has ended. Events that nobody has read are dropped.
    ///
    /// # Errors
    /// Everything that kept the job from running, or the error that ended it. What was not committed is rolled back.
    pub async fn finish(mut self) -> Result<T, Failure> {
        let ended = (&mut self.ended).await;
        self.is_done = true;
        ended.unwrap_or_else(|_| Err(Error::internal("the thread of the run has panicked").into()))
    }
}

impl<T> Stream for Running<T> {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_next_unpin(context)
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        if !self.is_done {
            self.cancel.cancel();
        }
    }
}

impl<T> fmt::Debug for Running<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("cancel", &self.cancel).finish_non_exhaustive()
    }
}

/// Does what the job does after a run.
fn after(
    engine: &Engine,
    attempts: &Attempts<'_>,
    ended: Result<Report, Failure>,
    observer: &Observer,
) -> Result<Report, Failure> {
    let reports = observer.reports();
    let lines = Arc::new(move |step: &str, line: &str| {
        reports.report(Event::Line { step: step.to_owned(), line: line.to_owned() });
    });
    let (options, count) = (attempts.options, attempts.count);
    let (environment, stages) = (options.environment.clone(), execute::stages(options, observer));
    let (job, run) = (attempts.job.as_ref(), attempts.run());
    let after = AfterRun { engine, job, run, attempts: count, ended: &ended, lines, environment, stages };
    let results = after.hooks(&|hook, error| {
        observer.report(Event::HookFailed { hook: hook.to_owned(), error: error.clone() });
    });
    ended.map(|report| Report { hooks: results, ..report })
}

impl Engine {
    /// Starts a run, which goes on by itself, and enters it into the run history.
    ///
    /// # Errors
    /// If the system starts no more threads. All other errors come from [`Running::finish`].
    pub fn start(&self, work: impl Into<Runnable>, options: RunOptions) -> Result<Run> {
        let (engine, work) = (self.clone(), work.into());
        Running::start(options, move |options, observer| {
            let mut attempts = Attempts::new(&engine, work, options, observer);
            let ended = attempts.make();
            after(&engine, &attempts, ended, observer)
        })
    }
}
