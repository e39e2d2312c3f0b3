//! Brings a table in step with gathered rows, in the transaction of the load. `millstream-database` has the statements,
//! `database/in_step.rs` the settings and errors.

use millstream_core::{Error, Result, fail_point};
use millstream_database::TextRows;
use millstream_database::in_step::InStep;
use millstream_database::load::{Counted, Step};
use rusqlite::Connection;
use rusqlite::types::ValueRef;

use super::insert::is_refusal;
use super::loading::Loading;
use super::message::{place, sqlite_error};
use super::table::{self, OwnTables};
use crate::database::in_step::{Counts, accept_changed};
use crate::database::load::moved_together;

/// Compares the gathered rows with the table, and changes it.
pub(super) fn in_step(connection: &Connection, loading: &mut Loading, shown: &str) -> Result<()> {
    let (spec, target) = (&loading.spec, place(shown, &loading.spec));
    spec.in_step().accept_rows(loading.taken.rows, &target)?;
    let tables = OwnTables::new(spec, &spec.in_step().moment(loading.began, &loading.schema));
    let columns: Vec<String> = loading.schema.fields().iter().map(|field| field.name().clone()).collect();
    let may_drop = table::may_drop(connection, spec).map_err(|error| sqlite_error("look into", shown, spec, &error))?;
    let queries = InStep { may_drop, ..table::in_step(spec, &tables, &columns) };
    let publishing = Publishing { connection, loading, in_step: queries, target: &target, shown, begin: &tables.begin };
    publishing.index(&tables)?;
    let counts = publishing.run()?;
    for own in [&tables.gathering, &tables.versions] {
        let dropped = connection.execute_batch(&format!("DROP TABLE IF EXISTS {own}"));
        dropped.map_err(|error| sqlite_error("write to", shown, spec, &error))?;
    }
    loading.taken.counts = counts;
    Ok(())
}

struct Publishing<'a> {
    connection: &'a Connection,
    loading: &'a Loading,
    in_step: InStep<'a>,
    /// The table, for messages.
    target: &'a str,
    shown: &'a str,
    /// When the run began, for messages.
    begin: &'a str,
}

impl Publishing<'_> {
    fn told(&self, error: &rusqlite::Error) -> Error {
        sqlite_error("write to", self.shown, &self.loading.spec, error)
    }

    /// Lets gathered rows be found by their keys, each of which is there once, as the table compares them.
    fn index(&self, tables: &OwnTables) -> Result<()> {
        let spec = &self.loading.spec;
        let key = self.in_step.staged_key();
        let keys = table::collated(self.connection, spec, &key).map_err(|error| self.told(&error))?;
        let index = format!("CREATE UNIQUE INDEX {} ON {} ({keys})", tables.index, tables.gathering);
        match self.connection.execute_batch(&index) {
            Err(error) if is_refusal(&error) => {
                let found = self.query(&self.in_step.duplicates_of(&keys))?;
                Err(spec.in_step().duplicates(&found, self.target))
            }
            done => done.map_err(|error| self.told(&error)),
        }
    }

    fn run(&self) -> Result<Counts> {
        let settings = self.loading.spec.in_step();
        let mut counts = Counts::default();
        for step in self.in_step.steps() {
            fail_point::pass("publish.step");
            match step {
                Step::Never { sql, fault } => {
                    let found = self.query(&sql)?;
                    if !found.is_empty() {
                        return Err(settings.fault(fault, &found, self.target, self.begin));
                    }
                }
                Step::Change { sql, counted, expected } => {
                    let expected = expected.map(|query| self.count(&query)).transpose()?;
                    let changed = self.connection.execute(&sql, []).map_err(|error| self.refused(&error))? as u64;
                    accept_changed(counted, changed, expected, self.target)?;
                    counts.add(counted, changed);
                    if counted == Counted::Deleted && counts.deleted > 0 {
                        let compared = self.count(&self.in_step.compared())? + counts.deleted;
                        settings.accept_deletes(counts.deleted, compared, self.target)?;
                    }
                }
            }
        }
        Ok(counts)
    }

    fn refused(&self, error: &rusqlite::Error) -> Error {
        let told = self.told(error);
        match is_refusal(error) {
            true => moved_together(told, self.loading.spec.mode),
            false => told,
        }
    }

    /// The number that a query counts.
    fn count(&self, query: &str) -> Result<u64> {
        let count = self.connection.query_row(query, [], |row| row.get::<_, i64>(0));
        count.map(i64::unsigned_abs).map_err(|error| self.told(&error))
    }

    /// The rows of a query, as text.
    fn query(&self, sql: &str) -> Result<TextRows> {
        let found = self.connection.prepare(sql).and_then(|mut query| {
            let columns = query.column_count();
            let cells = |row: &rusqlite::Row<'_>| (0..columns).map(|index| row.get_ref(index).map(text)).collect();
            query.query_map([], cells)?.collect()
        });
        found.map_err(|error| self.told(&error))
    }
}

fn text(value: ValueRef<'_>) -> Option<String> {
    match value {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Real(number) => Some(number.to_string()),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
    }
}
