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
/// index. Runs that are steps of a sequence do not count, and go with the runs of the sequence: without them it could
/// not be resumed.
pub(super) fn delete_oldest(connection: &Connection, is_alive: impl Fn(&str) -> bool) -> rusqlite::Result<bool> {
    let count = "SELECT count(*) FROM runs WHERE sequence IS NULL";
    let count: i64 = connection.query_row(count, [], |row| row.get(0))?;
    if count <= signed(KEPT + KEPT / 10) {
        return Ok(false);
    }
    let old = "SELECT run FROM runs WHERE sequence IS NULL AND run NOT IN \
               (SELECT run FROM runs WHERE sequence IS NULL ORDER BY rowid DESC LIMIT ?1)";
    let old: Vec<String> =
        connection.prepare(old)?.query_map([signed(KEPT)], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let transaction = connection.unchecked_transaction()?;
    let mut deleted = 0;
    for run in old.iter().filter(|run| !is_alive(run)) {
        deleted += transaction.execute("DELETE FROM runs WHERE run = ?1", [run])?;
    }
    // Steps of steps follow in the next round.
    let steps = "DELETE FROM runs WHERE sequence IS NOT NULL AND sequence NOT IN (SELECT logical FROM runs)";
    while transaction.execute(steps, [])? > 0 {}
    transaction.commit()?;
    Ok(deleted > 0)
}

/// Removes the rejects, the progress and status files and the folders of sequences of runs that are not among `runs`.
/// These are asked for last, so that a run which has begun meanwhile is among them. It does no harm if a file cannot be
/// removed.
pub(super) fn remove_files(state: &Path, runs: impl FnOnce() -> Option<Vec<RunRecord>>) {
    let folders = [rejects::FOLDER, sequences::FOLDER, progress::FOLDER, status::FOLDER];
    let [rejects, sequences, progress, status] = folders.map(|folder| entries(&state.join(folder)));
    let Some(runs) = runs() else { return };
    let logical: HashSet<&str> = runs.iter().map(|run| run.logical.as_str()).collect();
    let names: HashSet<&str> = runs.iter().map(|run| run.run.as_str()).collect();
    for folder in others(rejects, &logical).chain(others(sequences, &names)) {
        let _ = fs_err::remove_dir_all(folder);
    }
    for file in others(progress, &names).chain(others(status, &names)) {
        let _ = fs_err::remove_file(file);
    }
}

/// What is in `folder`.
fn entries(folder: &Path) -> Vec<PathBuf> {
    fs_err::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Those of `paths` that have none of the names `known`.
fn others(paths: Vec<PathBuf>, known: &HashSet<&str>) -> impl Iterator<Item = PathBuf> {
    let is_known =
        |path: &PathBuf| path.file_name().is_some_and(|name| known.contains(name.to_string_lossy().as_ref()));
    paths.into_iter().filter(move |path| !is_known(path))
}
