//! A commit, or a rename, whose answer does not come. A connection that is closed tells so; one that something in
//! between keeps open never does. So while it is not answered it is looked now and then, over another connection,
//! whether it is done.

use std::time::Duration;

use futures::future::BoxFuture;

use super::server::{Connection, Failure};

/// How long it may take before it is looked, and between two looks. Some take longer, where a server waits for others.
const LOOK: Duration = if cfg!(test) { Duration::from_millis(300) } else { Duration::from_secs(30) };

/// Runs the statement that makes rows visible; how many rows it changed. `None` if no answer has come, and `is_there`
/// says that it is done: the connection is of no use any more.
pub(crate) async fn unless_it_is_there<'a>(
    connection: &mut dyn Connection,
    statement: &str,
    is_there: impl Fn() -> BoxFuture<'a, bool>,
) -> Result<Option<u64>, Failure> {
    let mut committing = connection.execute(statement);
    loop {
        if let Ok(done) = tokio::time::timeout(LOOK, &mut committing).await {
            return done.map(Some);
        }
        tokio::select! {
            biased;
            done = &mut committing => return done.map(Some),
            there = is_there() => if there { return Ok(None) },
        }
    }
}
