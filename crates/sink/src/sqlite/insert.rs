//! Inserts the rows of a batch by statements of many rows, with the error of a refused row. `bisect.rs` finds refused
//! rows.

use arrow::array::RecordBatch;
use millstream_core::{Error, RejectKind, Result};
use rusqlite::{Connection, ErrorCode, Statement};

use super::loading::Loading;
use super::message::sqlite_error;
use super::spec::SqliteSpec;
use super::table::{self, Destination};
use super::values::{Cell, Column, Reader, ReaderOptions};
use crate::database::spec::Mode;

/// The result of inserting some rows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Inserted {
    /// Their approximate bytes.
    pub(super) bytes: u64,
    /// How many were left out, since their key already existed.
    pub(super) left_out: u64,
    /// How many were written.
    pub(super) written: u64,
    /// How many of a merge are new.
    pub(super) new: u64,
}

/// Inserts the rows of a batch.
pub(super) fn insert(
    connection: &Connection,
    loading: &Loading,
    shown: &str,
    batch: &RecordBatch,
    into: Destination,
) -> Result<Inserted> {
    if loading.spec.mode != Mode::Merge || into != Destination::Table {
        return insert_all(connection, loading, shown, batch, into);
    }
    let (inserted, new) = loading.new_rows.of(|| insert_all(connection, loading, shown, batch, into));
    inserted.map(|inserted| Inserted { new, ..inserted })
}

fn insert_all(
    connection: &Connection,
    loading: &Loading,
    shown: &str,
    batch: &RecordBatch,
    into: Destination,
) -> Result<Inserted> {
    let (spec, schema) = (&loading.spec, &loading.schema);
    let columns: Vec<Column> = schema
        .fields()
        .iter()
        .zip(batch.columns())
        .map(|(field, array)| Column::new(field, array))
        .collect::<Result<_>>()?;
    let options = ReaderOptions::default();
    let readers: Vec<Reader> = columns.iter().map(|column| column.reader(&options)).collect::<Result<_>>()?;
    let told = |error: rusqlite::Error| sqlite_error("write to", shown, spec, &error);
    let many_rows = table::rows_in_statement(schema);
    let mut many = connection
        .prepare_cached(&table::insert_statement(spec, schema, many_rows, into, &loading.merged))
        .map_err(told)?;
    let mut one =
        connection.prepare_cached(&table::insert_statement(spec, schema, 1, into, &loading.merged)).map_err(told)?;
    let drops_rows = table::may_insert_fewer(spec, schema, into, &loading.merged);
    let inserted = Inserted::default();
    let mut insertion = Insertion { readers, spec, shown, watched: &loading.watched, drops_rows, inserted };
    let mut row = 0;
    while row + many_rows <= batch.num_rows() {
        match insertion.rows(&mut many, row, many_rows)? {
            Ok(()) => {}
            // Finds the bad row by single statements. Nothing of the statement stays, and the transaction fails anyway.
            Err(error) if is_refusal(&error) && !connection.is_autocommit() => {
                for suspect in row..row + many_rows {
                    insertion.single(&mut one, suspect)?;
                }
                return Err(told(error));
            }
            Err(error) => return Err(told(error)),
        }
        row += many_rows;
    }
    for row in row..batch.num_rows() {
        insertion.single(&mut one, row)?;
    }
    Ok(insertion.inserted)
}

/// Whether the table refuses a row.
pub(super) fn is_refusal(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::TooBig)
    )
}

/// The state of inserting a batch.
struct Insertion<'a> {
    readers: Vec<Reader<'a>>,
    spec: &'a SqliteSpec,
    shown: &'a str,
    watched: &'a [bool],
    /// Whether the statement may leave out rows whose key exists.
    drops_rows: bool,
    inserted: Inserted,
}

impl<'a> Insertion<'a> {
    /// Runs a statement of `count` rows. The outer error is a value's, the inner one SQLite's.
    fn rows(&mut self, statement: &mut Statement, from: usize, count: usize) -> Result<rusqlite::Result<()>> {
        let mut variable = 1;
        for row in from..from + count {
            for column in 0..self.readers.len() {
                let cell = self.cell(column, row)?;
                self.inserted.bytes += cell.size();
                if let Err(error) = statement.raw_bind_parameter(variable, &cell) {
                    return Ok(Err(error));
                }
                variable += 1;
            }
        }
        match statement.raw_execute() {
            Ok(changed) if changed < count && !self.drops_rows => {
                let what =
                    format!("table {} of {} dropped {} of {count} rows", self.spec.table, self.shown, count - changed);
                Err(Error::data(what).hint("a trigger of the table refuses them: RAISE(IGNORE)"))
            }
            Ok(changed) => {
                self.inserted.written += changed as u64;
                self.inserted.left_out += count.saturating_sub(changed) as u64;
                Ok(Ok(()))
            }
            Err(error) => Ok(Err(error)),
        }
    }

    /// Runs a statement of one row; an error shows the row.
    fn single(&mut self, statement: &mut Statement, row: usize) -> Result<()> {
        let inserted = self.rows(statement, row, 1).map_err(|error| match error.offending_text() {
            Some(_) => error,
            None => error.text(self.shown_row(row)),
        });
        match inserted? {
            Ok(()) => Ok(()),
            Err(error) => Err(sqlite_error("write to", self.shown, self.spec, &error).text(self.shown_row(row))),
        }
    }

    /// A value, unless the table would change it.
    fn cell(&mut self, column: usize, row: usize) -> Result<Cell<'a>> {
        let reader = &mut self.readers[column];
        let name = reader.name();
        let failed = match reader.cell(row) {
            Ok(Cell::Null) if self.spec.in_step().needs_value(name) => {
                Error::data(format!("a row without a value in the key column `{name}` cannot be identified"))
                    .reject(RejectKind::Null)
                    .column(name)
                    .hint(format!("filter such rows out: {name} IS NOT NULL"))
            }
            Ok(Cell::Text(text))
                if self.watched.get(column).is_some_and(|watched| *watched) && table::becomes_another(&text) =>
            {
                super::values::becomes_another(&text, name)
            }
            Ok(cell) => return Ok(cell),
            Err(error) => error,
        };
        Err(if failed.offending_text().is_some() { failed } else { failed.text(self.shown_row(row)) })
    }

    /// The row for a message: `id=1, name='a'`.
    fn shown_row(&mut self, row: usize) -> String {
        let cells = self.readers.iter_mut().map(|reader| {
            let name = reader.name();
            format!("{name}={}", reader.cell(row).map_or_else(|_| "?".to_owned(), |cell| cell.shown()))
        });
        cells.collect::<Vec<_>>().join(", ")
    }
}
