//! Prepares the table of a load, in the open transaction: runs the user's actions before it, and creates or changes the
//! table.

use millstream_core::Result;
use millstream_database::Dialect;
use millstream_database::sqlite::{LockWait, SqliteDialect};
use rusqlite::Connection;

use super::loading::Loading;
use super::message::{place, sqlite_error};
use super::{ledger, table, user_statements};
use crate::database::spec::Mode;

/// Prepares the table of `loading`, unless an earlier run has written its rows.
pub(super) fn make_ready(
    connection: &Connection,
    loading: &mut Loading,
    shown: &str,
    lock_wait: &LockWait,
) -> Result<()> {
    if let Some(notes) = &loading.notes {
        let told = |error| sqlite_error("write to", shown, &loading.spec, &error);
        let is_noted = ledger::enter_notes(connection, &notes.load).map_err(told)?;
        if is_noted && table::existing(connection, shown, &loading.spec)?.is_none() {
            return Err(crate::database::table::is_gone(&place(shown, &loading.spec)));
        }
    }
    if let Some(load) = &loading.marker {
        let entered = ledger::enter_whole(connection, load);
        loading.done_before = entered.map_err(|error| sqlite_error("write to", shown, &loading.spec, &error))?;
    }
    if loading.done_before {
        return Ok(());
    }
    user_statements::run(connection, &loading.spec.before, "before", lock_wait)?;
    let mut faults = table::schema_faults(&loading.spec, &loading.schema);
    faults.extend(table::table_faults(connection, shown, &loading.spec, &loading.schema)?);
    if let Some(first) = faults.into_iter().next() {
        return Err(first);
    }
    let statements = statements(connection, loading, shown)?;
    for statement in statements {
        let done = connection.execute_batch(&statement);
        done.map_err(|error| sqlite_error("create the table in", shown, &loading.spec, &error))?;
    }
    loading.watch(connection).map_err(|error| sqlite_error("look into", shown, &loading.spec, &error))
}

/// The statements that prepare the table. Facts from before them are kept in `loading`.
fn statements(connection: &Connection, loading: &mut Loading, shown: &str) -> Result<Vec<String>> {
    let (spec, schema) = (&loading.spec, &loading.schema);
    let told = |error| sqlite_error("look into", shown, spec, &error);
    loading.foreign = table::foreign_keys(connection, spec).map_err(told)?;
    let exists = table::existing(connection, shown, spec)?.is_some();
    let name = SqliteDialect.quoted(&spec.table);
    let mut statements = Vec::new();
    match spec.mode {
        Mode::Replace if exists => statements.push(format!("DROP TABLE {name}")),
        Mode::Truncate if exists => statements.push(format!("DELETE FROM {name}")),
        _ => {}
    }
    if !exists || spec.mode == Mode::Replace {
        statements.push(table::create_statement(spec, schema));
    } else {
        statements.extend(table::evolving(connection, spec, schema).map_err(told)?);
    }
    if spec.defer_indexes && exists {
        for (name, create) in table::indexes(connection, spec).map_err(told)? {
            statements.push(format!("DROP INDEX {}", SqliteDialect.quoted(&name)));
            loading.indexes.push(create);
        }
    }
    if table::is_gathered(spec) {
        statements.extend(table::gathering_statements(connection, spec, schema).map_err(told)?);
    }
    Ok(statements)
}
