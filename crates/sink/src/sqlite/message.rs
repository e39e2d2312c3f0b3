//! Converts SQLite's errors to Millstream's, with the database and hints.

use millstream_core::{Error, ErrorKind, RejectKind};
use rusqlite::ErrorCode;

use super::spec::SqliteSpec;
use crate::database::load::DUPLICATE;

/// `table t of x.db`.
pub(super) fn place(shown: &str, spec: &SqliteSpec) -> String {
    format!("table {} of {shown}", spec.table)
}

/// SQLite's error while doing `what` (`open`, `write to`) with the database `shown`.
pub(super) fn sqlite_error(what: &str, shown: &str, spec: &SqliteSpec, error: &rusqlite::Error) -> Error {
    let cause = cause(error);
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            Error::transient(format!("{shown} is locked by another process"))
                .cause(format!("{cause} (waited {})", spec.busy_timeout))
                .hint("wait until the other process is done with it, or raise `busy_timeout`")
        }
        Some(ErrorCode::NotADatabase) => Error::refused(format!("{shown} is not a SQLite database"))
            .cause(cause)
            .hint("write to another file, or move this one away"),
        Some(ErrorCode::DatabaseCorrupt) => Error::refused(format!("the database {shown} is damaged"))
            .cause(cause)
            .hint("check it: sqlite3 FILE 'PRAGMA integrity_check'"),
        Some(ErrorCode::DiskFull) => Error::refused(format!("cannot {what} {shown}"))
            .cause(cause)
            .hint("free some space, or write to another disk"),
        Some(ErrorCode::ReadOnly) => Error::refused(format!("cannot {what} {shown}"))
            .cause(cause)
            .hint("check the permissions of the file and of its folder: SQLite writes a journal beside it"),
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => Error::refused(format!("cannot {what} {shown}"))
            .cause(cause)
            .hint("check that the folder exists, and the permissions of both"),
        Some(ErrorCode::OutOfMemory) => Error::new(ErrorKind::Memory, format!("cannot {what} {shown}")).cause(cause),
        Some(ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::TooBig) => {
            refused_row(shown, spec, error)
        }
        _ => Error::refused(format!("cannot {what} {shown}")).cause(cause),
    }
}

/// The error of a refused row.
fn refused_row(shown: &str, spec: &SqliteSpec, error: &rusqlite::Error) -> Error {
    use rusqlite::ffi;
    let told = Error::data(format!("table {} of {shown} refuses a row", spec.table)).cause(cause(error));
    match error.sqlite_error().map(|error| error.extended_code) {
        Some(ffi::SQLITE_CONSTRAINT_UNIQUE | ffi::SQLITE_CONSTRAINT_PRIMARYKEY | ffi::SQLITE_CONSTRAINT_ROWID) => {
            told.reject(RejectKind::Duplicate).hint(DUPLICATE)
        }
        Some(ffi::SQLITE_CONSTRAINT_NOTNULL) => {
            told.reject(RejectKind::Null).hint("filter such rows out, or give them a value: coalesce(x, …)")
        }
        Some(ffi::SQLITE_CONSTRAINT_DATATYPE) | None => {
            told.reject(RejectKind::Value).hint("the table is STRICT: CAST the value to its type")
        }
        Some(ffi::SQLITE_TOOBIG) => told.reject(RejectKind::TooLong).hint("shorten the value, or filter such rows out"),
        _ => told.reject(RejectKind::Constraint).hint("fix such rows, or filter them out"),
    }
}

/// SQLite's own words.
pub(super) fn cause(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(_, Some(text)) => text.clone(),
        other => {
            let text = other.to_string();
            // If SQLite gives a number without a text, the library writes both: Error code 13: database is full.
            let number = text.strip_prefix("Error code ").and_then(|text| text.split_once(": "));
            number.map_or(text.clone(), |(_, text)| text.to_owned())
        }
    }
}
