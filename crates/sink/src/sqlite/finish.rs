//! The steps after the rows of a load, in the open transaction: moves gathered rows, builds indexes, compares foreign
//! keys, and runs the user's actions.

use millstream_core::{Error, RejectKind, Result};
use millstream_database::sqlite::LockWait;
use rusqlite::{Connection, ErrorCode};

use super::insert::is_refusal;
use super::loading::{Loading, Taken};
use super::message::{place, sqlite_error};
use super::spec::SqliteSpec;
use super::{ledger, publish, table, user_statements};
use crate::database::load::moved_together;
use crate::database::spec::Mode;
use crate::shared::counted;

/// Runs all steps except the comparison of foreign keys, which needs the rows of all loads.
pub(super) fn finish(connection: &Connection, loading: &mut Loading, shown: &str, lock_wait: &LockWait) -> Result<()> {
    let (mode, is_gathered) = (loading.spec.mode, table::is_gathered(&loading.spec));
    match is_gathered && !loading.done_before {
        true if mode.is_in_step() => publish::in_step(connection, loading, shown)?,
        true => move_gathered(connection, loading, shown)?,
        false => {}
    }
    if mode == Mode::Merge {
        count_merged(connection, loading, shown)?;
    }
    let told = |error| sqlite_error("write to", shown, &loading.spec, &error);
    for create in &loading.indexes {
        connection.execute_batch(create).map_err(told)?;
    }
    if loading.done_before {
        return Ok(());
    }
    user_statements::run(connection, &loading.spec.after, "after", lock_wait)?;
    if let Some(notes) = &loading.notes {
        let by_another = || loaded_by_another(&place(shown, &loading.spec));
        return match ledger::write_notes(connection, notes) {
            Ok(true) => Ok(()),
            Ok(false) => Err(by_another()),
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => Err(by_another()),
            Err(error) => Err(told(error)),
        };
    }
    match &loading.marker {
        Some(marker) => ledger::write_marker(connection, marker).map_err(told),
        None => Ok(()),
    }
}

/// The error of a run that finds files noted which were not when it began.
fn loaded_by_another(place: &str) -> Error {
    Error::refused(format!("another run has loaded some of the same files or rows into {place} meanwhile"))
        .hint("nothing was written twice: run the job again")
}

/// The error of gathered rows that are moved into the table together.
pub(super) fn moved_error(loading: &Loading, shown: &str, error: &rusqlite::Error) -> Error {
    let told = sqlite_error("write to", shown, &loading.spec, error);
    match is_refusal(error) {
        true if told.reject_kind() == RejectKind::Duplicate => moved_together(told, loading.spec.mode),
        true if loading.tried => told,
        true => told.hint("fix such rows, or filter them out; `max_rejects` at the sink finds them one by one"),
        false => told,
    }
}

/// Moves the gathered rows into the table.
fn move_gathered(connection: &Connection, loading: &mut Loading, shown: &str) -> Result<()> {
    let spec = &loading.spec;
    let told = |error: rusqlite::Error| moved_error(loading, shown, &error);
    let keys = table::collated(connection, spec, &spec.key).map_err(told)?;
    let statement = table::publish_statement(spec, &loading.schema, &loading.merged, &keys);
    let (changed, new) = loading.new_rows.of(|| connection.execute(&statement, []));
    let changed = changed.map_err(told)?;
    connection.execute_batch(&format!("DROP TABLE {}", table::gathering(spec))).map_err(told)?;
    if spec.mode == Mode::Ignore {
        loading.taken.left_out = loading.taken.rows.saturating_sub(changed as u64);
    }
    loading.taken.written = changed as u64;
    loading.taken.counts.inserted = new;
    Ok(())
}

/// Completes what is known of a merge: how many rows it has changed.
fn count_merged(connection: &Connection, loading: &mut Loading, shown: &str) -> Result<()> {
    if let Some(before) = loading.unreported {
        let now = table::unreported_rows(connection, &loading.spec);
        let now = now.map_err(|error| sqlite_error("look into", shown, &loading.spec, &error))?;
        loading.taken.counts.inserted = now.unwrap_or(before).saturating_sub(before);
    }
    let Taken { written, counts, .. } = &mut loading.taken;
    counts.updated = written.saturating_sub(counts.inserted);
    Ok(())
}

/// Rows of a table that refer to rows which do not exist.
pub(super) struct Broken {
    pub(super) table: String,
    pub(super) error: Error,
}

/// Refuses a load after which more rows refer to rows that do not exist than before.
/// `foreign` are the tables with foreign keys that it touches, and their violations before it.
pub(super) fn check_foreign_keys(
    connection: &Connection,
    spec: &SqliteSpec,
    foreign: &[(String, u64)],
    shown: &str,
) -> Result<(), Broken> {
    for (name, before) in foreign {
        let broken = |error| Broken { table: name.clone(), error };
        let now = table::violations(connection, name)
            .map_err(|error| broken(sqlite_error("look into", shown, spec, &error)))?;
        if now > *before {
            let (new, would) = (counted(now - before, "row"), "would refer to rows that do not exist");
            let error = Error::data(format!("{new} of table {name} of {shown} {would}"))
                .cause("FOREIGN KEY constraint failed")
                .hint(format!("load the rows that they refer to, or see which: PRAGMA foreign_key_check({name})"));
            return Err(broken(error));
        }
    }
    Ok(())
}
