//! Runs work on the runtime of the network and its timers, from any thread.

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
        Some(Err(cause)) => Err(Error::internal(format!("{what} failed")).cause(cause)),
        None => Err(Error::internal(format!("{what} was lost"))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error_that_names_the_work() {
        let io = Handle::current();
        let error = on_io::<()>(&io, "reading a database", async { panic!("a bug") }).await;
        let error = error.expect_err("it broke off");
        assert_eq!(error.what(), "reading a database failed");
    }

    #[tokio::test]
    async fn work_stops_when_its_answer_is_wanted_no_more() {
        let held = Arc::new(());
        let (kept, io) = (Arc::clone(&held), Handle::current());
        let work = on_io(&io, "a task of the load", async move {
            std::future::pending::<()>().await;
            drop(kept);
            Ok(())
        });
        timeout(Duration::from_millis(50), work).await.expect_err("it never ends by itself");
        let stopped = async {
            while Arc::strong_count(&held) > 1 {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(60), stopped).await.expect("it was stopped");
    }
}
