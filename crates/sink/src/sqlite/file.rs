//! The file of a database: created with its folder if it does not exist, opened and locked while others may remove it,
//! and removed if it stays empty.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use millstream_core::{Budget, Error, Result};
use millstream_database::sqlite::{self, Access, LockWait};
use rusqlite::Connection;

use super::message::sqlite_error;
use super::spec::SqliteSpec;
use crate::shared::{Charge, create_folders, path_error, remove_folders};

/// The limits of SQLite's page cache in bytes. Beyond it, SQLite writes pages out early.
const CACHE_BYTES: std::ops::RangeInclusive<usize> = (2 << 20)..=(64 << 20);

/// How often opening is retried if others remove the database meanwhile.
const MOVED_TRIES: usize = 100;

/// A file that a run writes to.
pub(super) struct File {
    path: PathBuf,
    /// Its path, for messages.
    pub(super) shown: String,
    created_file: bool,
    created_folders: Vec<PathBuf>,
}

impl File {
    pub(super) fn new(path: &Path) -> Self {
        let shown = path.display().to_string();
        File { path: path.to_owned(), shown, created_file: false, created_folders: Vec::new() }
    }

    /// Opens the database and begins a transaction. Also returns the charge for its pages.
    pub(super) fn begin(
        &mut self,
        spec: &SqliteSpec,
        lock_wait: &LockWait,
        budget: &Arc<Budget>,
    ) -> Result<(Connection, Charge)> {
        for _ in 0..MOVED_TRIES {
            // Until we hold the lock, a run that rolls back may remove the empty database and the folder that it has
            // created.
            self.make_folder()?;
            let opened = sqlite::open(&self.path, Access::Write);
            let file = inode(&self.path);
            match opened {
                Ok(mut connection) => {
                    let begun = set_up(&mut connection, &lock_wait.with_limit(spec.busy_timeout.0), budget);
                    if file.is_some() && inode(&self.path) == file {
                        return match begun {
                            Ok(cache) => Ok((connection, cache)),
                            Err(error) => {
                                self.roll_back(Some(connection));
                                Err(sqlite_error("write to", &self.shown, spec, &error))
                            }
                        };
                    }
                }
                Err(_) if self.path.parent().is_some_and(is_missing) => {}
                Err(error) => return Err(sqlite_error("open", &self.shown, spec, &error)),
            }
        }
        Err(Error::transient(format!("{} is removed again and again", self.shown)))
    }

    /// Creates the database's folder, and records whether the database is new.
    fn make_folder(&mut self) -> Result<()> {
        if let Some(folder) = self.path.parent() {
            create_folders(folder, &mut self.created_folders)?;
        }
        match fs_err::metadata(&self.path) {
            Ok(metadata) if metadata.is_dir() => return Err(is_folder(&self.shown)),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => self.created_file = true,
            Err(error) => return Err(path_error("look at", &self.path, &error)),
        }
        Ok(())
    }

    /// Rolls the transaction back, if one has begun, and removes created files.
    pub(super) fn roll_back(&mut self, connection: Option<Connection>) {
        if let Some(connection) = connection {
            // Closing also rolls back, but would release the lock.
            let _ = connection.execute_batch("ROLLBACK");
            if self.created_file {
                remove_empty(&connection, &self.path);
            }
        }
        remove_folders(&mut self.created_folders);
    }
}

/// Begins the transaction. Returns the charge for the pages.
fn set_up(connection: &mut Connection, lock_wait: &LockWait, budget: &Arc<Budget>) -> rusqlite::Result<Charge> {
    lock_wait.apply(connection)?;
    connection.set_prepared_statement_cache_capacity(64);
    // Otherwise replacing a table could delete rows of other tables: see `table::foreign_keys`.
    sqlite::enforce_foreign_keys(connection, false)?;
    let cache = give_cache(connection, budget)?;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    // Pages that cannot be written out because of a reader are kept; waiting would stop the load at each of them.
    connection.busy_handler(None::<fn(i32) -> bool>)?;
    Ok(cache)
}

/// Gives SQLite memory for its pages: a share of the budget, within bounds.
pub(super) fn give_cache(connection: &Connection, budget: &Arc<Budget>) -> rusqlite::Result<Charge> {
    let wanted = (budget.limit() / 16).clamp(*CACHE_BYTES.start(), *CACHE_BYTES.end());
    let mut charge = Charge::new(budget, *CACHE_BYTES.start());
    let taken = if charge.set(wanted) { wanted } else { *CACHE_BYTES.start() };
    // The least is within the floor of the charge.
    let _ = charge.set(taken);
    sqlite::set_page_cache(connection, taken)?;
    Ok(charge)
}

/// The identity of the file at `path`, if there is one.
fn inode(path: &Path) -> Option<(u64, u64)> {
    fs_err::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

fn is_missing(folder: &Path) -> bool {
    !folder.as_os_str().is_empty() && folder.symlink_metadata().is_err()
}

/// Removes the database that we created, if it is still empty. This is done under its lock: a process that waits for
/// the lock notices afterwards that the file has changed, and SQLite refuses to write into a removed one.
pub(super) fn remove_empty(connection: &Connection, path: &Path) {
    let locked = connection.busy_timeout(Duration::ZERO).and_then(|()| connection.execute_batch("BEGIN EXCLUSIVE"));
    if locked.is_ok() && fs_err::metadata(path).is_ok_and(|metadata| metadata.len() == 0) {
        // An empty database that stays does no harm.
        let _ = fs_err::remove_file(path);
    }
}

/// The error if the target is a folder.
pub(super) fn is_folder(shown: &str) -> Error {
    Error::refused(format!("{shown} is a folder, not a database"))
        .hint(format!("name a file in it, such as sqlite:{}/result.db", shown.trim_end_matches('/')))
}
