//! Rows that carry where they are from in one more column, on row-preserving pipelines to a target that is loaded all
//! at once.
//!
//! The column stands behind all others and goes through every operator, so whoever refuses a row finds in it the file,
//! the line, and the raw record. Where a target is loaded chunk by chunk, the group of a row knows the same
//! (`chunks`). `chunks/origins.rs` reads rows with the column.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryViewArray, Int64Array, RecordBatch, StructArray};
use arrow::compute::max;
use arrow::datatypes::{DataType, Field, Fields, Int64Type, Schema};
use datafusion::error::Result as DataFusionResult;
use millstream_core::reject::{RawText, Rejected};
use millstream_core::{Error, Result};
use millstream_state::rejects::RejectLine;

use super::carried::Carried;
use super::{Refusal, Rejects, line};

/// The column.
pub const ORIGIN: &str = "_millstream_record";

/// What it has of each row.
pub fn origin_fields() -> Fields {
    let text = |name: &str, nullable| Field::new(name, DataType::Utf8View, nullable);
    let bytes = |name: &str| Field::new(name, DataType::BinaryView, true);
    let number = |name: &str| Field::new(name, DataType::Int64, true);
    Fields::from(vec![
        text("source", false),
        text("uri", false),
        text("member", true),
        number("line"),
        number("byte"),
        bytes("raw"),
        bytes("beginning"),
        number("last_line"),
    ])
}

/// Where a row is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The source.
    pub source: String,
    /// The path or URL of the unit, passwords left out.
    pub uri: String,
    /// The member, if the unit is an archive.
    pub member: Option<String>,
    /// The id of the message, if the unit is a queue.
    pub id: Option<String>,
    /// The line on which the record begins, from 1.
    pub line: Option<u64>,
    /// The line on which the last record begins, if the row is one of those that a step gave for a batch of records.
    pub last_line: Option<u64>,
    /// The byte of the decoded text at which it begins.
    pub byte: Option<u64>,
    /// The raw record, and perhaps some of what follows it.
    pub text: Option<Vec<u8>>,
    /// The beginning of the text of the file.
    pub beginning: Vec<u8>,
}

impl Origin {
    /// `error`, at this record.
    pub fn place(&self, error: Error) -> Error {
        let error = error.in_unit(&self.uri, self.member.as_deref());
        let error = self.id.iter().fold(error, |error, id| error.in_message(id));
        let error = self.line.into_iter().fold(error, Error::line);
        let error = self.last_line.into_iter().fold(error, Error::last_line);
        self.byte.into_iter().fold(error, Error::byte)
    }

    /// What is kept of `rejected`, with this origin.
    pub fn line(&self, rejected: Rejected, rejects: &Rejects) -> RejectLine {
        let cutter = rejects.cutter(&self.source);
        let head = cutter.as_ref().map(|cutter| cutter.head(&self.beginning)).unwrap_or_default();
        let raw = self.text.as_ref().map(|text| match &cutter {
            Some(cutter) => RawText::new(cutter.record(&head, text)),
            None => RawText::new(text),
        });
        let rejected = Rejected {
            source: Some(self.source.clone()),
            uri: Some(self.uri.clone()),
            member: self.member.clone(),
            id: self.id.clone(),
            line: self.line,
            last_line: self.last_line,
            byte: self.byte,
            row: rejected.row.filter(|_| raw.is_none()),
            raw,
            ..rejected
        };
        line(rejected, Some(&head))
    }
}

/// Where row `row` of `batch` is from, if its last column tells, and the batch without that column.
pub fn origin(batch: &RecordBatch, row: usize) -> Option<(Origin, RecordBatch)> {
    let last = origin_column(&batch.schema())?;
    let origin = batch.column(last).as_struct();
    let text = |index: usize| {
        let values = origin.column(index).as_string_view();
        (!values.is_null(row)).then(|| values.value(row).to_owned())
    };
    let number = |index: usize| {
        let values = origin.column(index).as_primitive::<Int64Type>();
        (!values.is_null(row)).then(|| values.value(row).unsigned_abs())
    };
    let bytes = |index: usize| {
        let values = origin.column(index).as_binary_view();
        (!values.is_null(row)).then(|| values.value(row).to_vec())
    };
    let origin = Origin {
        source: text(0)?,
        uri: text(1)?,
        member: text(2),
        id: None,
        line: number(3),
        last_line: number(7),
        byte: number(4),
        text: bytes(5),
        beginning: bytes(6).unwrap_or_default(),
    };
    Some((origin, without_origins(batch).ok()?))
}

/// The last column as what tells where rows are from.
#[derive(Debug)]
pub struct Origins;

impl Carried for Origins {
    fn is_apart(&self, column: &ArrayRef, one: usize, other: usize) -> bool {
        let origin = column.as_struct();
        (0..3).any(|text| {
            let values = origin.column(text).as_string_view();
            values.is_null(one) != values.is_null(other) || values.value(one) != values.value(other)
        })
    }

    fn together(&self, column: &ArrayRef) -> Result<ArrayRef> {
        let origin = column.as_struct();
        let numbers = |index: usize| origin.column(index).as_primitive::<Int64Type>();
        let last = max(numbers(7)).max(max(numbers(3)));
        let first = numbers(3).iter().enumerate().min_by_key(|(_, line)| *line).map_or(0, |(row, _)| row);
        let (fields, mut columns, nulls) = origin.slice(first, 1).into_parts();
        columns[5] = Arc::new(BinaryViewArray::new_null(1));
        columns[7] = Arc::new(Int64Array::from(vec![last]));
        let together = StructArray::try_new(fields, columns, nulls);
        Ok(Arc::new(together.map_err(|cause| Error::internal("the places of rows do not fit together").cause(cause))?))
    }
}

/// The index of the column, if there is one.
fn origin_column(schema: &Schema) -> Option<usize> {
    let last = schema.fields().len().checked_sub(1)?;
    (schema.field(last).name() == ORIGIN).then_some(last)
}

/// `batch` without the column.
pub fn without_origins(batch: &RecordBatch) -> DataFusionResult<RecordBatch> {
    match origin_column(&batch.schema()) {
        Some(last) => Ok(batch.project(&(0..last).collect::<Vec<_>>())?),
        None => Ok(batch.clone()),
    }
}

/// What is kept of a row that is refused by `error`, as far as its last column tells where it is from. `rejected` makes
/// it of the row without that column.
pub fn refusal_of_row(
    rejects: &Rejects,
    row: Option<&RecordBatch>,
    error: Error,
    rejected: impl FnOnce(Option<&RecordBatch>) -> Rejected,
) -> Refusal {
    match row.and_then(|row| origin(row, 0)) {
        None => Refusal { line: line(rejected(row), None), error },
        Some((origin, row)) => Refusal { line: origin.line(rejected(Some(&row)), rejects), error: origin.place(error) },
    }
}
