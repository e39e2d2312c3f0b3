//! Work that a source leaves to the runtime of the network.

use std::future::Future;

use millstream_core::source::SourceContext;
use millstream_core::{Error, ErrorKind, Result};
use tokio::task::JoinHandle;

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
    let task = context.io.spawn(work);
    let _stop = Stop(task.abort_handle());
    join(task).await
}

pub(crate) async fn join<T>(task: JoinHandle<Result<T>>) -> Result<T> {
    match task.await {
        Ok(result) => result,
        Err(cause) if cause.is_cancelled() => Err(interrupted()),
        Err(cause) => Err(Error::internal("a fetching task failed").cause(cause)),
    }
}

/// The runtime is being shut down.
pub(crate) fn interrupted() -> Error {
    Error::new(ErrorKind::Interrupted, "the run ended while an object was fetched")
}
