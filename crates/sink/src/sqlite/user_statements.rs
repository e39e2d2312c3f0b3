//! The user's statements and commands, before and after the rows of a load, in its transaction.

use millstream_core::{Error, Result};
use millstream_database::sqlite::LockWait;
use rusqlite::Connection;

use super::message;
use crate::database::action::Action;

/// Runs the user's commands, and statements in the open transaction, which they may not end.
pub(super) fn run(connection: &Connection, actions: &[Action], when: &str, lock_wait: &LockWait) -> Result<()> {
    for action in actions {
        let statement = match action {
            Action::Statement(statement) => statement,
            Action::Command(line) => {
                line.run_blocking(when, || !lock_wait.is_stopped())?;
                continue;
            }
        };
        let failed =
            |cause: String| Error::refused(format!("a statement of `{when}` failed")).text(statement).cause(cause);
        connection.execute_batch(statement).map_err(|error| {
            failed(message::cause(&error)).hint("nothing was loaded: it is a part of the load's transaction")
        })?;
        if connection.is_autocommit() {
            return Err(failed("it has ended the transaction".to_owned())
                .hint("remove it: the load's own transaction is open, and what was in it may have been committed"));
        }
    }
    Ok(())
}
