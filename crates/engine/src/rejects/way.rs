//! Rows that carry where they are from in one more column, on ways that go row by row to a target that is loaded at once.
//!
//! The column stands behind all others and goes through every operator, so whoever refuses a row finds in it the file, the
//! line, and the raw record. On ways to a target that is loaded chunk by chunk, the group of a row knows the same
//! ([`crate::chunks`]).

use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryViewArray, Int64Array, RecordBatch, StringViewArray, StructArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Fields, Int64Type, Schema, SchemaRef};
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::TryStreamExt;
use millstream_core::Error;
use millstream_core::reject::{RawText, Rejected};

use super::log::RejectLine;
use super::{Entry, Refusal, Rejects, line, of_parser};
use crate::chunks::instance::on_top;
use crate::chunks::way::Leg;
use crate::fault;
use crate::plan::node::{leaf, streaming};
use crate::read::exec::ReadExec;
use crate::read::rows::{Piece, PlacedRows};

/// The column.
const PLACE: &str = "_millstream_record";

/// What it has of each row.
fn fields() -> Fields {
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
    /// The line on which the record begins, from 1.
    pub line: Option<u64>,
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
        let error = self.line.into_iter().fold(error, Error::line);
        self.byte.into_iter().fold(error, Error::byte)
    }

    /// What is kept of `rejected`, with this place.
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
            line: self.line,
            byte: self.byte,
            row: rejected.row.filter(|_| raw.is_none()),
            raw,
            ..rejected
        };
        line(rejected, Some(&head))
    }
}

/// One value for every one of `rows` rows.
fn text(value: Option<&str>, rows: usize) -> ArrayRef {
    match value {
        None => Arc::new(StringViewArray::new_null(rows)),
        Some(value) => {
            let one = StringViewArray::from(vec![value]);
            Arc::new(StringViewArray::new(vec![one.views()[0]; rows].into(), one.data_buffers().to_vec(), None))
        }
    }
}

fn bytes(value: &[u8], rows: usize) -> ArrayRef {
    let one = BinaryViewArray::from(vec![value]);
    Arc::new(BinaryViewArray::new(vec![one.views()[0]; rows].into(), one.data_buffers().to_vec(), None))
}

/// `rows` with the column behind the others.
fn with_places(schema: &SchemaRef, source: &str, uri: &str, rows: PlacedRows) -> DataFusionResult<RecordBatch> {
    let PlacedRows { batch, lines, bytes: starts, raw, member } = rows;
    let count = batch.num_rows();
    let numbers = |numbers: Option<ArrayRef>| numbers.unwrap_or_else(|| Arc::new(Int64Array::new_null(count)));
    let raw = raw.unwrap_or_else(|| Arc::new(BinaryViewArray::new_null(count)));
    let columns = vec![
        text(Some(source), count),
        text(Some(&millstream_core::redact::url(uri)), count),
        text(member.name.as_deref(), count),
        numbers(lines),
        numbers(starts),
        raw,
        bytes(&member.beginning, count),
    ];
    let place = StructArray::try_new(fields(), columns, None::<NullBuffer>)?;
    let columns = batch.columns().iter().cloned().chain([Arc::new(place) as ArrayRef]).collect();
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}

/// Where row `row` of `batch` is from, if its last column tells, and the batch without that column.
pub fn origin(batch: &RecordBatch, row: usize) -> Option<(Origin, RecordBatch)> {
    let last = has_places(&batch.schema())?;
    let place = batch.column(last).as_struct();
    let text = |index: usize| {
        let values = place.column(index).as_string_view();
        (!values.is_null(row)).then(|| values.value(row).to_owned())
    };
    let number = |index: usize| {
        let values = place.column(index).as_primitive::<Int64Type>();
        (!values.is_null(row)).then(|| values.value(row).unsigned_abs())
    };
    let bytes = |index: usize| {
        let values = place.column(index).as_binary_view();
        (!values.is_null(row)).then(|| values.value(row).to_vec())
    };
    let origin = Origin {
        source: text(0)?,
        uri: text(1)?,
        member: text(2),
        line: number(3),
        byte: number(4),
        text: bytes(5),
        beginning: bytes(6).unwrap_or_default(),
    };
    Some((origin, without_places(batch).ok()?))
}

/// The index of the column, if there is one.
fn has_places(schema: &Schema) -> Option<usize> {
    let last = schema.fields().len().checked_sub(1)?;
    (schema.field(last).name() == PLACE).then_some(last)
}

/// `batch` without the column.
pub fn without_places(batch: &RecordBatch) -> DataFusionResult<RecordBatch> {
    match has_places(&batch.schema()) {
        Some(last) => Ok(batch.project(&(0..last).collect::<Vec<_>>())?),
        None => Ok(batch.clone()),
    }
}

/// What is kept of a row that is refused by `error`, as far as its last column tells where it is from. `rejected` makes it
/// of the row without that column.
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

/// The plan of ways that go row by row, whose rows have the column.
pub fn placed(legs: &[Leg], rejects: &Arc<Rejects>) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    let mut plans = Vec::new();
    for leg in legs {
        let mut fields: Vec<_> = leg.read().schema().fields().iter().cloned().collect();
        fields.push(Arc::new(Field::new(PLACE, DataType::Struct(self::fields()), false)));
        let schema = Arc::new(Schema::new(fields));
        let properties = streaming(Arc::clone(&schema), leg.read().partitions());
        let read = PlacedReadExec { leg: leg.clone(), rejects: Arc::clone(rejects), schema, properties };
        plans.push(leg.operators.iter().rev().try_fold(Arc::new(read) as Arc<dyn ExecutionPlan>, on_top)?);
    }
    match plans.len() {
        1 => Ok(plans.remove(0)),
        _ => UnionExec::try_new(plans),
    }
}

/// Reads rows with their places, and leaves out what the parser refuses.
pub struct PlacedReadExec {
    leg: Leg,
    rejects: Arc<Rejects>,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
}

impl PlacedReadExec {
    /// The source's name in the job.
    pub fn source(&self) -> &str {
        self.leg.read().source()
    }
}

impl fmt::Debug for PlacedReadExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlacedReadExec").field("source", &self.leg.read().source()).finish_non_exhaustive()
    }
}

impl DisplayAs for PlacedReadExec {
    fn fmt_as(&self, mode: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.leg.read().fmt_as(mode, f)
    }
}

impl ExecutionPlan for PlacedReadExec {
    leaf!("PlacedReadExec");

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let read: &ReadExec = self.leg.read();
        let mut pieces = read.pieces(partition, context, true, |_| Ok(true))?;
        let (schema, rejects, source) = (Arc::clone(&self.schema), Arc::clone(&self.rejects), read.source().to_owned());
        let batches = async_stream::try_stream! {
            while let Some((uri, piece)) = pieces.try_next().await.map_err(fault::carry)? {
                match piece {
                    Piece::Rows(rows) => yield with_places(&schema, &source, &uri, rows)?,
                    Piece::Rejects(refused, member) => {
                        let refusal = |reject| of_parser(&rejects, &source, &uri, &member, reject);
                        let refusals = refused.into_iter().map(refusal).collect();
                        rejects.take(&Entry::Step(source.clone()), refusals).map_err(fault::carry)?;
                    }
                    Piece::Settled | Piece::End => {}
                }
            }
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), batches)))
    }
}
