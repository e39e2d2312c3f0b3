//! Reads rows with the column that says where they are from: see [`crate::rejects::origin`].

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryViewArray, Int64Array, RecordBatch, StringViewArray, StructArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::TryStreamExt;

use super::instance::on_top;
use super::pipeline::Pipeline;
use crate::fault;
use crate::node::{leaf, streaming};
use crate::read::exec::ReadExec;
use crate::read::rows::{LocatedRows, Piece};
use crate::rejects::carried::Carried;
use crate::rejects::origin::{ORIGIN, Origins, origin_fields};
use crate::rejects::{Entry, Rejects, of_parser};

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
fn add_origins(schema: &SchemaRef, source: &str, uri: &str, rows: LocatedRows) -> DataFusionResult<RecordBatch> {
    let LocatedRows { batch, lines, bytes: starts, raw, member } = rows;
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
        Arc::new(Int64Array::new_null(count)),
    ];
    let origin = StructArray::try_new(origin_fields(), columns, None::<NullBuffer>)?;
    let columns = batch.columns().iter().cloned().chain([Arc::new(origin) as ArrayRef]).collect();
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}

/// The plan of row-preserving pipelines, whose rows have the column: with raw records, if they are wanted.
pub fn with_origins(
    pipelines: &[Pipeline],
    rejects: &Arc<Rejects>,
    raw: bool,
) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    let carried: Arc<dyn Carried> = Arc::new(Origins);
    let mut plans = Vec::new();
    for pipeline in pipelines {
        let mut fields: Vec<_> = pipeline.read().schema().fields().iter().cloned().collect();
        fields.push(Arc::new(Field::new(ORIGIN, DataType::Struct(origin_fields()), false)));
        let schema = Arc::new(Schema::new(fields));
        let properties = streaming(Arc::clone(&schema), pipeline.read().partitions());
        let rejects = Arc::clone(rejects);
        let read = OriginReadExec { pipeline: pipeline.clone(), rejects, raw, schema, properties };
        let on_top = |input, operator| on_top(input, operator, &carried);
        plans.push(pipeline.operators.iter().rev().try_fold(Arc::new(read) as Arc<dyn ExecutionPlan>, on_top)?);
    }
    match plans.len() {
        1 => Ok(plans.remove(0)),
        _ => UnionExec::try_new(plans),
    }
}

/// Reads rows with their origins, and leaves out what the parser refuses.
pub struct OriginReadExec {
    pipeline: Pipeline,
    rejects: Arc<Rejects>,
    raw: bool,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
}

impl OriginReadExec {
    /// The source's name in the job.
    pub fn source(&self) -> &str {
        self.pipeline.read().source()
    }
}

impl fmt::Debug for OriginReadExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OriginReadExec").field("source", &self.pipeline.read().source()).finish_non_exhaustive()
    }
}

impl DisplayAs for OriginReadExec {
    fn fmt_as(&self, mode: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pipeline.read().fmt_as(mode, f)
    }
}

impl ExecutionPlan for OriginReadExec {
    leaf!("OriginReadExec");

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let read: &ReadExec = self.pipeline.read();
        let mut pieces = read.pieces(partition, context, self.raw, |_| Ok(true))?;
        let (schema, rejects, source) = (Arc::clone(&self.schema), Arc::clone(&self.rejects), read.source().to_owned());
        let batches = async_stream::try_stream! {
            while let Some((uri, piece)) = pieces.try_next().await.map_err(fault::carry)? {
                match piece {
                    Piece::Rows(rows) => yield add_origins(&schema, &source, &uri, rows)?,
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
