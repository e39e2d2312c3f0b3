//! Encodes batches into groups of rows, and collects rows that cannot be encoded. The form of the rows writes values:
//! `text.rs`, or PostgreSQL's binary form.

use std::ops::Range;

use arrow::array::RecordBatch;
use arrow::datatypes::{FieldRef, SchemaRef};
use millstream_core::{RejectKind, Result};
use millstream_database::family::Family;
use millstream_database::table::Bulk;

use super::cells::{Cells, Column, Columns};
use super::group::{BadRow, Group};
use super::server::Encoder;
use super::spec::DatabaseSpec;
use super::text::{self, Flavour, Reason};

/// How one row is written.
pub(crate) trait RowForm: Send {
    /// Writes a row with its arrival number, if there is a column for it. An error names the column.
    fn write(
        &mut self,
        columns: &mut [Column],
        row: usize,
        arrival: Option<u64>,
        out: &mut Vec<u8>,
    ) -> Result<(), (usize, Reason)>;
}

/// Encodes rows in some form.
pub(crate) struct RowEncoder<F> {
    form: F,
    fields: Vec<FieldRef>,
    /// The columns in which a null is refused, with the reason.
    not_null: Vec<(usize, Reason)>,
    /// The columns of times with fewer digits than microseconds, and the microseconds of their last digit.
    coarse: Vec<(usize, i64)>,
    most_rows: usize,
}

const NO_KEY: Reason =
    Reason { what: "a row without a value in a key column", hint: "filter such rows out: x IS NOT NULL" };
const REPLACED: Reason = Reason {
    what: "the column cannot be null, and the server would write the current time instead",
    hint: "filter such rows out, or give them a value: coalesce(x, …)",
};

const DIGITS: Reason = Reason {
    what: "the time has more fractional digits than the column keeps",
    hint: "cut them off: date_trunc('second', x); or widen the column: TIME(6)",
};

impl<F: RowForm> RowEncoder<F> {
    pub(crate) fn new(form: F, bulk: &Bulk, schema: &SchemaRef, spec: &DatabaseSpec) -> Self {
        let fields: Vec<FieldRef> = schema.fields().iter().cloned().collect();
        let keys = fields.iter().map(|field| spec.in_step().needs_value(field.name()));
        let keys = keys.enumerate().filter(|(_, is_key)| *is_key).map(|(index, _)| (index, NO_KEY));
        let replaced = bulk.columns.iter().enumerate().filter(|(_, column)| column.replaces_null);
        let not_null = keys.chain(replaced.map(|(index, _)| (index, REPLACED))).collect();
        let coarse = bulk.columns.iter().enumerate().filter_map(|(index, column)| match column.family {
            Family::Time { digits: digits @ 0..6 } => Some((index, 10_i64.pow(6 - u32::from(digits)))),
            _ => None,
        });
        RowEncoder { form, fields, not_null, coarse: coarse.collect(), most_rows: spec.batch_rows }
    }

    fn row(
        &mut self,
        columns: &mut [Column],
        row: usize,
        arrival: Option<u64>,
        out: &mut Vec<u8>,
    ) -> Result<(), (usize, Reason)> {
        if let Some((index, reason)) = self.not_null.iter().find(|(index, _)| columns[*index].is_null(row)) {
            return Err((*index, reason.clone()));
        }
        for (index, step) in &self.coarse {
            match &columns[*index].cells {
                Cells::Time(values, per_second) if !columns[*index].is_null(row) => {
                    let micros =
                        text::microseconds(values.value(row), *per_second).map_err(|reason| (*index, reason))?;
                    if micros % step != 0 {
                        return Err((*index, DIGITS));
                    }
                }
                _ => {}
            }
        }
        self.form.write(columns, row, arrival, out)
    }

    fn rows(&mut self, columns: &mut [Column], range: Range<usize>, arrival: Option<u64>, group: &mut Group) -> usize {
        for row in range.clone() {
            if group.is_full(self.most_rows) {
                return row;
            }
            let arrival = arrival.map(|first| first + row as u64);
            match self.row(columns, row, arrival, &mut group.bytes) {
                Ok(()) => group.end_row(),
                Err((column, reason)) => {
                    group.undo_row();
                    let bad = BadRow {
                        index: group.rows(),
                        shown: self.shown(columns, row),
                        column: Some(self.fields[column].name().clone()),
                        reason: reason.what.to_owned(),
                        kind: if columns[column].is_null(row) { RejectKind::Null } else { RejectKind::Value },
                        hint: Some(reason.hint.to_owned()),
                    };
                    group.refuse(bad);
                }
            }
        }
        range.end
    }

    /// The row for a message: `id=1, name='a'`.
    fn shown(&self, columns: &mut [Column], row: usize) -> String {
        let mut line = Vec::new();
        for column in columns.iter_mut() {
            let start = line.len();
            if text::write(column, row, Flavour::Postgres, &mut line).is_err() {
                line.truncate(start);
                line.push(b'?');
            }
            line.push(b'\t');
        }
        let names: Vec<&str> = self.fields.iter().map(|field| field.name().as_str()).collect();
        text::shown(&names, &line)
    }
}

impl<F: RowForm> Encoder for RowEncoder<F> {
    fn encode(&mut self, batch: &RecordBatch, from: usize, arrival: Option<u64>, group: &mut Group) -> Result<usize> {
        let columns = Columns::new(&self.fields, batch)?;
        let mut cells = columns.cells()?;
        Ok(self.rows(&mut cells, from..batch.num_rows(), arrival, group))
    }
}

/// Rows as text with tabs.
pub(crate) struct TextForm(pub(crate) Flavour);

impl RowForm for TextForm {
    fn write(
        &mut self,
        columns: &mut [Column],
        row: usize,
        arrival: Option<u64>,
        out: &mut Vec<u8>,
    ) -> Result<(), (usize, Reason)> {
        for (index, column) in columns.iter_mut().enumerate() {
            if index > 0 {
                out.push(b'\t');
            }
            text::write(column, row, self.0, out).map_err(|reason| (index, reason))?;
        }
        if let Some(arrival) = arrival {
            out.push(b'\t');
            text::number(arrival, out);
        }
        out.push(b'\n');
        Ok(())
    }
}
