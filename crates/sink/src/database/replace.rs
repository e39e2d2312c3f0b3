//! Replaces the rows of a unit by those of its new version, in one transaction, beside the ledger's notes of both. It
//! leaves bulk statements and the commit to `delivery.rs`, and how the rows of a unit are found to the
//! dialect.
//!
//! ```text
//!  BEGIN ─▶ lock the load's entry ─▶ notes of the new version?  ─ yes ─▶ ROLLBACK, already done
//!                                      │ no
//!                                      ▼
//!           delete the old notes and rows ─▶ insert the new notes ─▶ bulk statements ─▶ COMMIT
//! ```
//! The entry is locked exclusively. So a second attempt, after a commit that was never answered, waits for the end of
//! the first one before it looks which version is there.

use millstream_core::sink::{Chunk, Delivered, Delivery, Refused, Replaced, Replacement};
use millstream_core::{Error, Result, fail_point};
use millstream_database::load::Counted;

use super::delivery::OpenTransaction;
use super::entry::blamed;
use super::in_step::accept_changed;
use super::ledger::{DatabaseLedger, LedgerState};
use super::ledger_rows::{ROWS, record, written};
use super::load::{count, on_io};
use super::notes::{Notes, new_name};
use super::server::{Connection, Failure};
use crate::shared::digest;

/// What was removed, unless the new version is there already.
type Removed = Option<Replaced>;

impl DatabaseLedger {
    /// Replaces the rows of a unit.
    pub(super) async fn replace_rows(&self, replacement: Replacement) -> Result<Replaced> {
        let Replacement { column, value, forgets, known_by, chunks, rows } = replacement;
        let (state, attempt) = (self.state(), new_name());
        let (noting, by) = (chunks.clone(), attempt.clone());
        let io = state.into.io.clone();
        let begun = on_io(&io, async move {
            let permit = state.into.shared.pool.permit().await?;
            let mut transaction = OpenTransaction::noted(state.into.shared.pool.take().await?, permit);
            let removal = Removal { state: &state, column: &column, value: &value, forgets: &forgets };
            let removed = removal.begin(transaction.connection(), &known_by, &noting, &by).await;
            match removed {
                Ok(Some(removed)) => Ok(Some((transaction, removed))),
                Ok(None) => {
                    state.into.shared.pool.give(transaction.into_connection());
                    Ok(None)
                }
                Err(failure) => {
                    let tables = [state.into.shared.bulk.table.as_str(), &state.entry.table];
                    Err(blamed(transaction.connection(), &tables, failure).await)
                }
            }
        });
        let Some((transaction, removed)) = begun.await? else { return Ok(Replaced::default()) };
        let mut delivery =
            self.delivery_in(transaction, Notes::chunks(&self.state().entry, chunks).of_attempt(attempt));
        for batch in rows {
            delivery.write(batch?).await?;
        }
        let target = self.state().into.shared.target.clone();
        let refuse = move |refused: &Refused| match refused.rows.is_empty() && !refused.more {
            true => Ok(Vec::new()),
            false => Err(refused.clone().into_error(&target)),
        };
        match Box::new(delivery).commit_if(Box::new(refuse)).await? {
            Delivered::Written { rows, .. } => Ok(Replaced { inserted: rows, is_new: true, ..removed }),
            // The next attempt finds out which version is there.
            Delivered::AlreadyDone(_) | Delivered::Moved(_) | Delivered::Unknown(_) => Err(Error::transient(format!(
                "the connection was lost while {} was committed",
                self.state().into.shared.target
            ))),
        }
    }
}

/// What is removed of a unit.
struct Removal<'a> {
    state: &'a LedgerState,
    column: &'a str,
    value: &'a str,
    forgets: &'a [String],
}

impl Removal<'_> {
    /// Begins the transaction, unless all of `known_by` is noted, up to the notes of the new version.
    async fn begin(
        &self,
        connection: &mut dyn Connection,
        known_by: &[Chunk],
        chunks: &[Chunk],
        attempt: &str,
    ) -> Result<Removed, Failure> {
        connection.execute("BEGIN").await?;
        self.state.entry.check_locked(connection, "FOR UPDATE").await?;
        fail_point::pass("reload.begun");
        if written(&self.state.entry, connection, known_by, None).await?.len() == known_by.len() {
            connection.execute("ROLLBACK").await?;
            return Ok(None);
        }
        let forgotten = self.remove_notes(connection).await?;
        let deleted = connection.execute(&format!("DELETE {}", self.of_unit())).await?;
        self.check_deleted(connection, deleted).await?;
        fail_point::pass("reload.deleted");
        record(&self.state.entry, connection, chunks, attempt).await?;
        fail_point::pass("reload.noted");
        Ok(Some(Replaced { forgotten, deleted, ..Replaced::default() }))
    }

    async fn remove_notes(&self, connection: &mut dyn Connection) -> Result<u64, Failure> {
        let (table, key) = (&self.state.entry.table, &self.state.entry.key);
        let mut removed = 0;
        for some in self.forgets.chunks(ROWS) {
            let units: Vec<String> = some.iter().map(|unit| format!("'{}'", digest(unit))).collect();
            let units = units.join(", ");
            let delete =
                format!("DELETE FROM {table} WHERE load_key = '{key}' AND chunk >= 0 AND unit_key IN ({units})");
            removed += connection.execute(&delete).await?;
        }
        Ok(removed)
    }

    /// Fails if a trigger or a rule of the table has left some of the rows there: they would stay beside the new ones.
    async fn check_deleted(&self, connection: &mut dyn Connection, deleted: u64) -> Result<(), Failure> {
        let facts = connection.describe(&self.state.into.shared.spec.table).await?;
        if !facts.is_some_and(|facts| facts.may_drop) {
            return Ok(());
        }
        let left = count(connection, &format!("SELECT COUNT(*) {}", self.of_unit())).await?;
        let target = &self.state.into.shared.target;
        accept_changed(Counted::Deleted, deleted, Some(deleted + left), target).map_err(Failure::Other)
    }

    /// The rows of the unit: the end of a statement.
    fn of_unit(&self) -> String {
        let shared = &self.state.into.shared;
        let dialect = shared.server.dialect();
        let known = shared.bulk.columns.iter().find(|column| column.name.eq_ignore_ascii_case(self.column));
        let column = dialect.quoted(known.map_or(self.column, |known| &known.name));
        format!("FROM {} WHERE {}", shared.bulk.table, dialect.is_exactly(&column, self.value))
    }
}
