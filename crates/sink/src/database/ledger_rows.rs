//! The rows of chunks in the ledger: writes and reads them. `entry.rs` has the owner of a load, `ledger.rs` loads chunk
//! by chunk, `commit_marker.rs` what loads all at once note.

use millstream_core::sink::{Chunk, WrittenChunks};

use super::entry::Entry;
use super::server::{Connection, Failure};
use crate::shared::digest;

/// The most rows of the ledger in one statement.
pub(crate) const ROWS: usize = 500;

/// Entries per query.
const PAGE: usize = 50_000;

/// Records chunks of the load of `entry`, inside of the open transaction.
pub(crate) async fn record(
    entry: &Entry,
    connection: &mut dyn Connection,
    chunks: &[Chunk],
    attempt: &str,
) -> Result<(), Failure> {
    let load = &entry.key;
    for some in chunks.chunks(ROWS) {
        let row = |chunk: &Chunk| format!("('{load}', '{}', {}, '{attempt}')", digest(&chunk.unit), chunk.number);
        let rows: Vec<String> = some.iter().map(row).collect();
        let insert =
            format!("INSERT INTO {} (load_key, unit_key, chunk, attempt) VALUES {}", entry.table, rows.join(", "));
        connection.execute(&insert).await?;
    }
    Ok(())
}

/// Takes notes of the load of `entry` back, inside of the open transaction. Returns whether all of them were there.
pub(crate) async fn take_back(
    entry: &Entry,
    connection: &mut dyn Connection,
    chunks: &[Chunk],
) -> Result<bool, Failure> {
    for Chunk { unit, number } in chunks {
        let (table, load, unit) = (&entry.table, &entry.key, digest(unit));
        let delete =
            format!("DELETE FROM {table} WHERE load_key = '{load}' AND unit_key = '{unit}' AND chunk = {number}");
        if connection.execute(&delete).await? != 1 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Which of `chunks` of the load of `entry` are written; with `attempt`, by that attempt.
pub(super) async fn written(
    entry: &Entry,
    connection: &mut dyn Connection,
    chunks: &[Chunk],
    attempt: Option<&str>,
) -> Result<Vec<Chunk>, Failure> {
    let by = attempt.map_or(String::new(), |attempt| format!(" AND attempt = '{attempt}'"));
    let mut known = WrittenChunks::new([], digest);
    let mut units: Vec<&str> = chunks.iter().map(|chunk| chunk.unit.as_str()).collect();
    units.sort_unstable();
    units.dedup();
    for some in units.chunks(ROWS) {
        let some: Vec<String> = some.iter().map(|unit| format!("'{}'", digest(unit))).collect();
        let condition = format!(" AND unit_key IN ({}){by}", some.join(", "));
        known.extend(recorded(&entry.table, connection, &entry.key, &condition).await?);
    }
    Ok(chunks.iter().filter(|chunk| known.contains(chunk)).cloned().collect())
}

/// All written chunks of a load in the ledger `table`. There may be many, so they are read by pages.
pub(crate) async fn all_chunks(
    table: &str,
    connection: &mut dyn Connection,
    load_key: &str,
) -> Result<WrittenChunks, Failure> {
    let mut known = WrittenChunks::new([], digest);
    let mut behind = String::new();
    loop {
        let condition = format!("{behind} ORDER BY unit_key, chunk LIMIT {PAGE}");
        let page = recorded(table, connection, load_key, &condition).await?;
        let Some((unit, number)) = page.last().cloned().filter(|_| page.len() == PAGE) else {
            known.extend(page);
            return Ok(known);
        };
        behind = format!(" AND unit_key >= '{unit}' AND (unit_key > '{unit}' OR chunk > {number})");
        known.extend(page);
    }
}

/// Units and numbers of the chunks of a load in the ledger `table` for which `condition` holds.
pub(crate) async fn recorded(
    table: &str,
    connection: &mut dyn Connection,
    load_key: &str,
    condition: &str,
) -> Result<Vec<(String, u64)>, Failure> {
    let query = format!("SELECT unit_key, chunk FROM {table} WHERE load_key = '{load_key}' AND chunk >= 0{condition}");
    let rows = connection.query(&query).await?.into_iter();
    let known = rows.filter_map(|row| {
        let mut cells = row.into_iter().flatten();
        Some((cells.next()?, cells.next()?.parse().ok()?))
    });
    Ok(known.collect())
}
