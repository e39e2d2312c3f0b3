//! The transaction that publishes the rows of a load's own tables, with retries, and errors of refused rows.

use millstream_core::{Error, Result};

use super::shared::Shared;
use crate::database::commit_marker::CommitMarker;
use crate::database::entry::blamed;
use crate::database::pool::pause;
use crate::database::server::{Connection, Failure};

/// The statements of a transaction that is left open for the commit.
#[derive(Debug, Default)]
pub(super) struct Publishing {
    pub(super) statements: Vec<String>,
    /// The statement that counts the written rows.
    pub(super) counted: Option<usize>,
}

impl Publishing {
    /// Runs it, with retries after conflicts, and writes the commit marker `marker`. Returns how many rows it wrote.
    pub(super) async fn run(
        &self,
        shared: &Shared,
        connection: &mut dyn Connection,
        marker: Option<&CommitMarker>,
    ) -> Result<u64> {
        let mut tries = 0;
        loop {
            match self.try_once(connection, marker).await {
                Err(Failure::Again { .. }) if tries < shared.spec.retries => {
                    connection.execute("ROLLBACK").await.map_err(Failure::into_error)?;
                    pause(tries).await;
                    tries += 1;
                }
                Ok(rows) => return Ok(rows),
                Err(failure) => {
                    let is_row = matches!(failure, Failure::Rows(_));
                    let target = shared.server.dialect().table(&shared.spec.table);
                    let error = blamed(connection, &[&target], failure).await;
                    return Err(if is_row { moved_together(error) } else { error });
                }
            }
        }
    }

    async fn try_once(&self, connection: &mut dyn Connection, marker: Option<&CommitMarker>) -> Result<u64, Failure> {
        let mut rows = 0;
        connection.execute("BEGIN").await?;
        for (index, statement) in self.statements.iter().enumerate() {
            let changed = connection.execute(statement).await?;
            if self.counted == Some(index) {
                rows = changed;
            }
        }
        if let Some(marker) = marker {
            marker.write(connection).await?;
        }
        Ok(rows)
    }
}

/// The error of a refused row that cannot be identified.
pub(crate) fn moved_together(error: Error) -> Error {
    let way = "the rows are moved into the table all at once, so the database reports one that violates a key, and \
               none can be left out: filter such rows out";
    let hint = error.hint_text().map_or_else(|| way.to_owned(), |hint| format!("{hint}; {way}"));
    error.hint(hint)
}
