//! Finds the rows that a table refuses, by halves of a batch after savepoints. `insert.rs` inserts rows.

use arrow::array::RecordBatch;
use millstream_core::sink::{Refused, RefusedRow};
use millstream_core::{Error, ErrorKind, Result};
use rusqlite::Connection;

use super::insert::{self, Inserted};
use super::loading::Loading;
use super::message::sqlite_error;
use super::table::Destination;

/// Inserts a batch whose first row has the number `first`. If it is refused, inserts it in halves, down to the bad
/// rows, which are skipped and reported, until there are more than `room` of them.
pub(super) fn insert(
    connection: &Connection,
    loading: &Loading,
    shown: &str,
    batch: &RecordBatch,
    first: u64,
    room: usize,
    refused: &mut Refused,
) -> Result<Inserted> {
    let told = |error: rusqlite::Error| sqlite_error("write to", shown, &loading.spec, &error);
    let mut all = Inserted::default();
    let mut parts = vec![(first, batch.clone())];
    while let Some((first, part)) = parts.pop().filter(|_| !refused.more) {
        connection.execute_batch("SAVEPOINT part").map_err(told)?;
        let error = match try_insert(connection, loading, shown, &part) {
            Ok(inserted) => {
                all.bytes += inserted.bytes;
                all.left_out += inserted.left_out;
                all.written += inserted.written;
                all.new += inserted.new;
                connection.execute_batch("RELEASE part").map_err(told)?;
                continue;
            }
            Err(error) => error,
        };
        // A trigger may have rolled everything back.
        if error.kind() != ErrorKind::Data || connection.is_autocommit() {
            return Err(error);
        }
        connection.execute_batch("ROLLBACK TO part; RELEASE part").map_err(told)?;
        let half = part.num_rows() / 2;
        if half == 0 {
            refused.rows.push(refused_row(first, &part, &error));
            refused.more = refused.rows.len() > room;
            continue;
        }
        parts.push((first + half as u64, part.slice(half, part.num_rows() - half)));
        parts.push((first, part.slice(0, half)));
    }
    Ok(all)
}

/// Inserts the rows of a batch after the savepoint `part`. The table in which rows are gathered does not check them, so
/// they are tried in the target first.
fn try_insert(connection: &Connection, loading: &Loading, shown: &str, batch: &RecordBatch) -> Result<Inserted> {
    if loading.tried {
        insert::insert(connection, loading, shown, batch, Destination::Trial)?;
        let rolled_back = connection.execute_batch("ROLLBACK TO part");
        rolled_back.map_err(|error| sqlite_error("write to", shown, &loading.spec, &error))?;
    }
    insert::insert(connection, loading, shown, batch, loading.destination())
}

fn refused_row(row: u64, record: &RecordBatch, error: &Error) -> RefusedRow {
    RefusedRow {
        row,
        record: Some(record.clone()),
        shown: error.offending_text().unwrap_or_default().to_owned(),
        column: error.location().column.clone(),
        reason: error.cause_text().unwrap_or(error.what()).to_owned(),
        kind: error.reject_kind(),
        hint: error.hint_text().map(str::to_owned),
    }
}
