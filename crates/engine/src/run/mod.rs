//! A run as its caller sees it: events while it lasts, a way to cancel it, and what it comes to.
//!
//! `attempts.rs` makes the attempts of a logical run, each of which is a run; `hours.rs` when they may run.
//! `execute.rs` takes a run from its start to its report, on a thread that the run has for itself. The states of a run
//! and the steps between them: `begin.rs`, `load.rs`, `commit.rs`, `record.rs`. `epochs` a run that reads a queue,
//! `outages.rs` what it reports; `passes.rs` adds up the runs of one command; `after_load.rs` what becomes of files
//! that are loaded; `events.rs` what happens; `cluster` what its workers do; `sinks.rs` the sinks of a run; `status.rs`
//! what other processes see of it; `work.rs` what it works with.

mod after_load;
mod attempts;
mod begin;
pub mod cluster;
mod commit;
mod epochs;
mod events;
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

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use millstream_core::{Error, Result};
use tokio::sync::oneshot;

use crate::engine::Engine;
use crate::failure::Failure;
use crate::hooks::AfterRun;
use crate::job_plan::Runnable;
use crate::options::{Cancel, RunOptions};
use crate::report::Report;

use attempts::Attempts;
pub use events::Event;
pub(crate) use events::Observer;
pub(crate) use execute::execute;

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
