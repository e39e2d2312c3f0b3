//! Counts the new rows of merges: SQLite reports each row while it is inserted. Tables without row numbers are an
//! exception: their rows are counted before and after.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::Connection;
use rusqlite::hooks::Action;

/// How many rows were inserted into a table, those of statements that were rolled back among them.
#[derive(Debug, Clone, Default)]
pub(super) struct NewRows(Arc<AtomicU64>);

impl NewRows {
    /// The number so far.
    fn so_far(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Does `work`, and counts the rows that it inserts.
    pub(super) fn of<T>(&self, work: impl FnOnce() -> T) -> (T, u64) {
        let before = self.so_far();
        let done = work();
        (done, self.so_far() - before)
    }
}

/// Counts rows that are inserted into `tables` from now on.
pub(super) fn count(connection: &mut Connection, tables: Vec<(String, NewRows)>) -> rusqlite::Result<()> {
    connection.update_hook(Some(move |action: Action, _: &str, changed: &str, _: i64| {
        if action == Action::SQLITE_INSERT
            && let Some((_, new)) = tables.iter().find(|(table, _)| changed.eq_ignore_ascii_case(table))
        {
            new.0.fetch_add(1, Ordering::Relaxed);
        }
    }))
}
