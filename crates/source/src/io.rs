//! Runs work of a source on the runtime of the network.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use millstream_core::source::SourceContext;
use millstream_core::{Error, ErrorKind, Result};
use tokio::runtime::Handle;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

/// A timeout that is noticed so late means that the task was not polled in time.
const LATE: Duration = Duration::from_millis(100);

/// The outcome of `work`, unless that takes longer than `limit`. If the task was not polled when the time was over, it
/// could not see what arrived meanwhile either: then it gets the same time again.
pub(crate) async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    loop {
        let deadline = Instant::now() + limit;
        match tokio::time::timeout_at(deadline, work.as_mut()).await {
            Ok(done) => return Some(done),
            Err(_) if deadline.elapsed() > LATE => {}
            Err(_) => return None,
        }
    }
}

/// Stops a task when dropped.
pub(crate) struct Stop(pub(crate) tokio::task::AbortHandle);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs `work` on the runtime of the network; it is stopped if the future is dropped.
pub(crate) async fn on_io<T: Send + 'static>(
    context: &SourceContext,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    joined(elsewhere(&context.io, work).await)
}

/// Runs `work` on `runtime`; it is stopped if the future is dropped.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn time_in_which_nobody_looked_does_not_count() {
        let limit = Duration::from_millis(200);
        let (sender, mut receiver) = tokio::sync::oneshot::channel();
        let mut waiting = Box::pin(within(limit, &mut receiver));
        assert!(futures::poll!(&mut waiting).is_pending());
        std::thread::sleep(2 * limit);
        assert!(futures::poll!(&mut waiting).is_pending(), "nobody looked");
        sender.send(1).expect("somebody waits");
        assert_eq!(waiting.await, Some(Ok(1)));
        assert_eq!(within(limit, std::future::pending::<()>()).await, None);
    }
}
