//! Work on the runtime of the network and its timers, from whatever thread waits for it.

use std::future::Future;

use millstream_core::{Error, Result};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// Runs `work` on `io`, and stops it if its future is dropped. `what` names it in an error: `a task of the load`.
pub async fn on_io<T: Send + 'static>(
    io: &Handle,
    what: &'static str,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let mut task = JoinSet::new();
    task.spawn_on(work, io);
    match task.join_next().await {
        Some(Ok(done)) => done,
        Some(Err(cause)) => Err(Error::internal(format!("{what} broke off")).cause(cause)),
        None => Err(Error::internal(format!("{what} was lost"))),
    }
}
