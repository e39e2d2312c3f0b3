//! A commit or rename whose answer does not come. A closed connection is an error, but a middlebox can keep a dead one
//! open forever. So until there is an answer, it is checked regularly over another connection whether the commit was
//! done.

use std::time::Duration;

use futures::future::BoxFuture;

use super::server::{Connection, Failure};

/// The time before the first check, and between checks. Some commits take longer, if the server waits for others.
const LOOK: Duration = if cfg!(test) { Duration::from_millis(300) } else { Duration::from_secs(30) };

/// Runs the statement that makes rows visible. Returns how many rows it changed; `None` if there was no answer, and
/// `is_there` shows that it was done: the connection cannot be used any more.
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
