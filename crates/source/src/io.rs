//! Work that a source leaves to the runtime of the network.

use std::future::Future;

use millstream_core::source::SourceContext;
use millstream_core::{Error, ErrorKind, Result};
use tokio::runtime::Handle;
use tokio::task::{JoinError, JoinHandle};

/// Stops a task when dropped.
pub(crate) struct Stop(pub(crate) tokio::task::AbortHandle);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs `work` on the runtime of the network; it is stopped if nobody waits for it any more.
pub(crate) async fn on_io<T: Send + 'static>(
    context: &SourceContext,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    joined(elsewhere(&context.io, work).await)
}

/// Runs `work` on `runtime`; it is stopped if nobody waits for it any more.
pub(crate) async fn elsewhere<T: Send + 'static>(
    runtime: &Handle,
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, JoinError> {
    let task = runtime.spawn(work);
    let _stop = Stop(task.abort_handle());
    task.await
}

pub(crate) async fn join<T>(task: JoinHandle<Result<T>>) -> Result<T> {
    joined(task.await)
}

fn joined<T>(outcome: Result<Result<T>, JoinError>) -> Result<T> {
    match outcome {
        Ok(result) => result,
        Err(cause) if cause.is_cancelled() => Err(interrupted()),
        Err(cause) => Err(Error::internal("a fetching task failed").cause(cause)),
    }
}

/// The runtime is being shut down.
pub(crate) fn interrupted() -> Error {
    Error::new(ErrorKind::Interrupted, "the run ended while an object was fetched")
}
