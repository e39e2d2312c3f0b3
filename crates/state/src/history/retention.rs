//! How long runs are kept: the numbers of many, and the last of these with all that they have left.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension};

use super::progress;
use super::status;
use super::store::signed;
use super::view;
use crate::{cancel, rejects, sequences};

/// How many runs are kept. Runs that are steps of a sequence do not count, and go with the runs of the sequence:
/// without them it could not be resumed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    /// So many, with their numbers: when, how long, how they ended, rows.
    pub numbers: u64,
    /// So many, the last ones, with their reports, rejects and what lies beside the history.
    pub whole: u64,
    /// So many begin between two looks whether there are more.
    pub each: u64,
}

/// How many are kept. A report takes a few kilobytes, the numbers of a run some hundred bytes.
pub(super) const KEPT: Kept = Kept { numbers: 100_000, whole: 10_000, each: 500 };

/// Forgets runs of which there are more than `kept` says, but for those for which `is_alive` holds; whether it did. The
/// run that has just begun is number `last`: most have to look at nothing.
pub(super) fn forget_oldest(
    connection: &Connection,
    kept: Kept,
    last: u64,
    is_alive: impl Fn(&str) -> bool,
) -> rusqlite::Result<bool> {
    if !last.is_multiple_of(kept.each) {
        return Ok(false);
    }
    let Some(whole) = before(connection, kept.whole)? else { return Ok(false) };
    let transaction = connection.unchecked_transaction()?;
    if let Some(numbers) = before(connection, kept.numbers)? {
        let old = "SELECT run FROM runs WHERE sequence IS NULL AND rowid <= ?1";
        let old: Vec<String> =
            connection.prepare(old)?.query_map([numbers], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        for run in old.iter().filter(|run| !is_alive(run)) {
            transaction.execute("DELETE FROM runs WHERE run = ?1", [run])?;
        }
        // Steps of steps follow in the next round.
        let steps = "DELETE FROM runs WHERE sequence IS NOT NULL AND sequence NOT IN (SELECT logical FROM runs)";
        while transaction.execute(steps, [])? > 0 {}
    }
    let thin = "UPDATE runs SET report = NULL, predicted = NULL WHERE rowid <= ?1 AND report IS NOT NULL";
    transaction.execute(thin, [whole])?;
    transaction.commit()?;
    Ok(true)
}

/// The number of the last run before the last `most`; `None` if there is none.
fn before(connection: &Connection, most: u64) -> rusqlite::Result<Option<i64>> {
    // All of these stand in one place of the index, in their order.
    let find = "SELECT rowid FROM runs WHERE sequence IS NULL AND step IS NULL ORDER BY rowid DESC LIMIT 1 OFFSET ?1";
    connection.query_row(find, [signed(most)], |row| row.get(0)).optional()
}

/// The names of the runs of which everything is kept, and of their resume chains; those that may be alive among them.
pub(super) fn whole_runs(connection: &Connection, kept: Kept) -> rusqlite::Result<Vec<(String, String)>> {
    let from = before(connection, kept.whole)?.unwrap_or_default();
    let mut find = connection.prepare("SELECT run, logical FROM runs WHERE rowid > ?1 OR outcome IS NULL")?;
    find.query_map([from], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

/// Removes the rejects, the progress and status files, the views and the folders of sequences of runs that are not
/// among `runs`, which have names and resume chains. These are asked for last, so that a run which has begun meanwhile
/// is among them. It does no harm if a file cannot be removed.
pub(super) fn remove_files(state: &Path, runs: impl FnOnce() -> Option<Vec<(String, String)>>) {
    let of_run = [progress::FOLDER, status::FOLDER, view::FOLDER, cancel::FOLDER];
    let of_run: Vec<PathBuf> = of_run.iter().flat_map(|folder| entries(&state.join(folder))).collect();
    let [rejects, sequences] = [rejects::FOLDER, sequences::FOLDER].map(|folder| entries(&state.join(folder)));
    let Some(runs) = runs() else { return };
    let (names, logical): (HashSet<&str>, HashSet<&str>) =
        runs.iter().map(|(run, logical)| (run.as_str(), logical.as_str())).unzip();
    for folder in others(rejects, &logical).chain(others(sequences, &names)) {
        let _ = fs_err::remove_dir_all(folder);
    }
    for file in others(of_run, &names) {
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
