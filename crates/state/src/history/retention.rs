//! How long runs are kept: the last [`KEPT`], and what is kept of them beside the history.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::progress;
use super::record::RunRecord;
use super::status;
use super::store::signed;
use crate::{rejects, sequences};

/// So many runs are kept.
pub(super) const KEPT: u64 = 1_000;

/// Deletes the oldest runs if there are too many, but for those for which `is_alive` holds; whether it did. It deletes
/// many at a time: to find them takes a look at all runs, their reports included, and to count them takes a look at an
/// index.
pub(super) fn delete_oldest(connection: &Connection, is_alive: impl Fn(&str) -> bool) -> rusqlite::Result<bool> {
    let count: i64 = connection.query_row("SELECT count(*) FROM runs", [], |row| row.get(0))?;
    if count <= signed(KEPT + KEPT / 10) {
        return Ok(false);
    }
    let old = "SELECT run FROM runs WHERE run NOT IN (SELECT run FROM runs ORDER BY rowid DESC LIMIT ?1)";
    let old: Vec<String> =
        connection.prepare(old)?.query_map([signed(KEPT)], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let transaction = connection.unchecked_transaction()?;
    let mut deleted = 0;
    for run in old.iter().filter(|run| !is_alive(run)) {
        deleted += transaction.execute("DELETE FROM runs WHERE run = ?1", [run])?;
    }
    transaction.commit()?;
    Ok(deleted > 0)
}

/// Removes the rejects, the progress and status files and the folders of sequences of runs that are not among `runs`.
/// It does no harm if one cannot be removed.
pub(super) fn remove_files(state: &Path, runs: &[RunRecord]) {
    for rejects in others(&state.join(rejects::FOLDER), runs.iter().map(|run| run.logical.as_str())) {
        let _ = fs_err::remove_dir_all(rejects);
    }
    for folder in others(&state.join(sequences::FOLDER), runs.iter().map(|run| run.run.as_str())) {
        let _ = fs_err::remove_dir_all(folder);
    }
    for folder in [progress::FOLDER, status::FOLDER] {
        for file in others(&state.join(folder), runs.iter().map(|run| run.run.as_str())) {
            let _ = fs_err::remove_file(file);
        }
    }
}

/// What is in `folder` and has none of the names `known`.
fn others<'a>(folder: &Path, known: impl Iterator<Item = &'a str>) -> Vec<PathBuf> {
    let known: HashSet<&str> = known.collect();
    let entries = fs_err::read_dir(folder).into_iter().flatten().flatten();
    let others = entries.filter(|entry| !known.contains(entry.file_name().to_string_lossy().as_ref()));
    others.map(|entry| entry.path()).collect()
}
