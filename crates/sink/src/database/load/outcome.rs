//! The step that makes the rows of a load visible, a commit or a rename, whose answer may be lost with the connection.
//! Its outcome is then determined over another connection.

use std::sync::Arc;

use futures::FutureExt;
use millstream_core::{Error, ErrorKind, Result, fail_point};

use super::own_tables::Names;
use super::shared::Shared;
use crate::database::commit;
use crate::database::commit_marker::CommitMarker;
use crate::database::pool::{connect, pause};
use crate::database::server::{Connection, Failure};

/// How another connection can determine whether a commit without an answer was done.
pub(super) enum Proof {
    /// The transaction has a name that the server knows.
    Transaction(String),
    /// The ledger has the commit marker of the transaction.
    Marker(Arc<CommitMarker>),
    /// The staging table has fewer rows than were loaded into it.
    Staged(String, u64),
    /// The new table is not under its own name any more, once the connection that renames it, and holds this lock, is
    /// gone.
    Renamed { lock: String, marker: Option<Arc<CommitMarker>>, new_name: String },
    /// It cannot be determined.
    None,
}

impl Proof {
    /// The proof for a transaction that wrote `marker`, or has a name.
    pub(super) fn of_transaction(marker: &Option<Arc<CommitMarker>>, name: Option<String>) -> Option<Self> {
        match marker {
            Some(marker) => Some(Proof::Marker(Arc::clone(marker))),
            None => name.map(Proof::Transaction),
        }
    }

    /// Whether the ledger shows the outcome.
    fn is_recorded(&self) -> bool {
        matches!(self, Proof::Marker(_) | Proof::Renamed { marker: Some(_), .. })
    }
}

/// Commits the open transaction. Returns a working connection.
pub(super) async fn commit(
    shared: &Shared,
    mut connection: Box<dyn Connection>,
    proof: &Proof,
) -> Result<Box<dyn Connection>> {
    let is_there = || async { matches!(found_out(shared, proof).await, Ok((_, Some(true)))) }.boxed();
    let committed = commit::unless_it_is_there(connection.as_mut(), "COMMIT", is_there).await;
    seen_through(shared, connection, committed, proof).await
}

/// Runs the statements that replace the target by the new table. Returns a working connection.
pub(super) async fn rename(
    shared: &Shared,
    mut connection: Box<dyn Connection>,
    statements: &[String],
    names: &Names,
    marker: Option<&Arc<CommitMarker>>,
) -> Result<Box<dyn Connection>> {
    let new_name = names.new_name.clone();
    let proof = Proof::Renamed { lock: names.id.clone(), marker: marker.cloned(), new_name };
    for statement in statements {
        fail_point::pass("rename.before");
        let is_there = || is_renamed(shared, &names.new_name).boxed();
        let renamed = commit::unless_it_is_there(connection.as_mut(), statement, is_there).await;
        fail_point::pass("rename.after");
        connection = seen_through(shared, connection, renamed, &proof).await?;
    }
    Ok(connection)
}

/// Returns a working connection after the commit, even if the answer was lost.
async fn seen_through(
    shared: &Shared,
    connection: Box<dyn Connection>,
    done: Result<Option<u64>, Failure>,
    proof: &Proof,
) -> Result<Box<dyn Connection>> {
    let lost = match done {
        Ok(Some(_)) => return Ok(connection),
        Ok(None) => {
            drop(connection);
            return connect(shared.server.as_ref(), &shared.spec).await;
        }
        Err(Failure::Lost(error)) => error,
        Err(other) => return Err(other.into_error()),
    };
    drop(connection);
    let cause = lost.cause_text().unwrap_or(lost.what()).to_owned();
    for tries in 0..=shared.spec.retries {
        match found_out(shared, proof).await {
            Ok((connection, Some(true))) => return Ok(connection),
            Ok((_, Some(false))) => {
                return Err(Error::transient(format!(
                    "the connection was lost before {} was committed",
                    shared.target
                ))
                .cause(cause)
                .hint("check the server's log; nothing was loaded, and the load can be started again"));
            }
            Err(error) if proof.is_recorded() && error.kind() != ErrorKind::Transient => {
                return Err(error);
            }
            Ok((_, None)) | Err(_) => pause(tries).await,
        }
    }
    Err(Error::refused(format!("the connection was lost while {} was committed", shared.target))
        .cause(cause)
        .hint("it is unknown whether the rows are there: check before you start the job again"))
}

/// Whether no table has the name of the new one any more, while the connection may still be renaming it.
async fn is_renamed(shared: &Shared, new_name: &str) -> bool {
    let Ok(mut connection) = connect(shared.server.as_ref(), &shared.spec).await else { return false };
    let left = connection.tables(&shared.spec.table, new_name).await;
    left.is_ok_and(|left| left.is_empty())
}

/// Checks over a new connection whether the commit was done; `None` if that is not decided yet.
async fn found_out(shared: &Shared, proof: &Proof) -> Result<(Box<dyn Connection>, Option<bool>)> {
    let mut connection = connect(shared.server.as_ref(), &shared.spec).await?;
    let found = match proof {
        Proof::Transaction(name) => connection.was_committed(name).await,
        Proof::Marker(marker) => marker.is_written(connection.as_mut()).await.map(Some),
        Proof::Staged(staging, rows) => {
            let count = shared.server.dialect().count_staged(staging);
            connection.query(&count).await.map(|found| {
                let count = found.into_iter().flatten().flatten().next().and_then(|text| text.parse::<u64>().ok());
                // Without rows, both outcomes are the same.
                count.map(|count| *rows == 0 || count < *rows)
            })
        }
        Proof::Renamed { lock, marker, new_name } => {
            if !connection.lock(lock).await.map_err(Failure::into_error)? {
                return Ok((connection, None));
            }
            match marker {
                Some(marker) => marker.is_written(connection.as_mut()).await.map(Some),
                None => {
                    let left = connection.tables(&shared.spec.table, new_name).await;
                    left.map(|found| Some(found.is_empty()))
                }
            }
        }
        Proof::None => Ok(None),
    };
    Ok((connection, found.map_err(Failure::into_error)?))
}
