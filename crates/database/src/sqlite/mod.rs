//! SQLite: paths of databases, and opening them.
//!
//! `dialect.rs` is how SQL is written, `in_step.rs` how rows are compared, `types.rs` which types columns have,
//! `lock_wait.rs` the wait for a database that another connection has locked.

mod dialect;
mod in_step;
mod lock_wait;
mod types;

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

pub use self::dialect::SqliteDialect;
pub use self::lock_wait::{LockWait, StopOnDrop};
pub use self::types::{Affinity, NUMERIC_DIGITS, column_type, decimal_digits};

/// The access for which a database is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading.
    Read,
    /// Reading, after rolling back the open transaction of a killed process.
    Recover,
    /// Writing; the file is created if it does not exist.
    Write,
}

/// The path in `sqlite:out/x.db`; `sqlite:///x.db` is an absolute one.
pub fn path_of(url: &str) -> &str {
    let rest = url.split_once(':').map_or(url, |(_, rest)| rest);
    rest.strip_prefix("//").unwrap_or(rest)
}

/// Opens the database at `path`, for use by one thread at a time.
pub fn open(path: &Path, access: Access) -> rusqlite::Result<Connection> {
    let flags = match access {
        Access::Read => OpenFlags::SQLITE_OPEN_READ_ONLY,
        Access::Recover => OpenFlags::SQLITE_OPEN_READ_WRITE,
        Access::Write => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
    };
    Connection::open_with_flags(plain(path), flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)
}

/// A path that SQLite cannot take for a URI, as it would `file:x.db`.
fn plain(path: &Path) -> PathBuf {
    if path.is_absolute() { path.to_owned() } else { Path::new(".").join(path) }
}

/// Lets the pages of `connection` take about `bytes` bytes of memory.
pub fn set_page_cache(connection: &Connection, bytes: usize) -> rusqlite::Result<()> {
    connection.pragma_update(None, "cache_size", -i64::try_from(bytes / 1024).unwrap_or(2048))
}

/// Whether `connection` enforces foreign keys from now on.
pub fn enforce_foreign_keys(connection: &Connection, enforced: bool) -> rusqlite::Result<()> {
    connection.pragma_update(None, "foreign_keys", enforced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_path_with_slashes_or_without() {
        for (url, path) in [
            ("sqlite:out/x.db", "out/x.db"),
            ("sqlite:/x.db", "/x.db"),
            ("sqlite:///x.db", "/x.db"),
            ("sqlite://x.db", "x.db"),
            ("x.db", "x.db"),
        ] {
            assert_eq!(path_of(url), path, "{url}");
        }
        assert_eq!(plain(Path::new("file:x?mode=memory")), Path::new("./file:x?mode=memory"));
    }
}
