//! The plan of one group: the operators of a pipeline over the rows of the group, with one more column that numbers
//! them.
//!
//! The number goes through every operator behind the other columns, so whatever becomes of a row, it is known which
//! record it is from.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt64Array};
use arrow::compute::BatchCoalescer;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::projection::ProjectionExpr;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::TryStreamExt;
use millstream_core::format::BATCH_BYTES;

use super::group::Group;
use super::pipeline::Pipeline;
use super::span::{Span, Spans};
use crate::checks::{CheckCounts, EntryChecks};
use crate::fault;
use crate::node::{leaf, over_one_input, streaming};
use crate::plan::checked::CheckExec;
use crate::plan::lenient::LenientExec;
use crate::plan::lookup::{LOOKUP, LookupExec, lookups, row_inputs};
use crate::plan::work::WorkExec;
use crate::rejects::carried::Carried;
use crate::rejects::take::TakeRow;

/// The column of the rows' numbers.
const NUMBER: &str = "_millstream_row";

/// The plan of `pipeline` over the rows of `group`. Its last column tells which of them each row is from, as a
/// [`Span`].
///
/// Rows that an operator cannot compute go to `taker`. They, and what filters leave out, are counted in `left_out`.
pub fn over(
    pipeline: &Pipeline,
    group: &Group,
    batch_rows: usize,
    taker: &Arc<dyn TakeRow>,
    left_out: &Arc<AtomicI64>,
) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    let mut fields: Vec<_> = pipeline.read().schema().fields().iter().cloned().collect();
    fields.push(Arc::new(Field::new(NUMBER, DataType::UInt64, false)));
    let schema = Arc::new(Schema::new(fields));
    let properties = streaming(Arc::clone(&schema), 1);
    let carried: Arc<dyn Carried> = Arc::new(Spans { chunk_ends: group.chunk_ends() });
    let batches = group.batches();
    let rows: Arc<dyn ExecutionPlan> = Arc::new(GroupExec { batches, batch_rows, schema, properties });
    pipeline.operators.iter().rev().try_fold(rows, |input, operator| {
        if !matches!(operator.name(), "FilterExec" | "LenientExec" | "WorkExec" | CheckExec::NAME | LOOKUP) {
            return on_top_with(input, operator, &carried, Some(taker));
        }
        let input = CountExec::over(input, left_out, 1);
        Ok(CountExec::over(on_top_with(input, operator, &carried, Some(taker))?, left_out, -1))
    })
}

/// How many rows the steps of `plan` have answered in batches, and how many they gave for these.
pub fn in_batches(plan: &Arc<dyn ExecutionPlan>) -> (u64, u64) {
    let own = plan.downcast_ref::<WorkExec>().and_then(WorkExec::in_batches).unwrap_or_default();
    let below = row_inputs(plan).into_iter().map(in_batches);
    below.fold(own, |(answered, given), (more_answered, more_given)| (answered + more_answered, given + more_given))
}

/// What the checks of `plan` have counted of its rows, each with the checks of its entry.
pub fn checked(plan: &Arc<dyn ExecutionPlan>) -> Vec<(Arc<EntryChecks>, Arc<CheckCounts>)> {
    let own = plan.downcast_ref::<CheckExec>().filter(|_| plan.name() == CheckExec::NAME);
    let own = own.map(|check| (Arc::clone(check.checks()), Arc::clone(check.counts())));
    own.into_iter().chain(row_inputs(plan).into_iter().flat_map(checked)).collect()
}

/// Tells the counters of the lookups of `plan` what they have found: its rows are delivered.
pub fn settle(plan: &Arc<dyn ExecutionPlan>) {
    lookups(plan).into_iter().for_each(LookupExec::settle);
}

/// `operator` over `input`, handing on the last column, which tells where rows are from, as `carried` says.
pub fn on_top(
    input: Arc<dyn ExecutionPlan>,
    operator: &Arc<dyn ExecutionPlan>,
    carried: &Arc<dyn Carried>,
) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    on_top_with(input, operator, carried, None)
}

/// The same. If `operator` leaves rows out, they go to `taker`, if there is one.
fn on_top_with(
    input: Arc<dyn ExecutionPlan>,
    operator: &Arc<dyn ExecutionPlan>,
    carried: &Arc<dyn Carried>,
    taker: Option<&Arc<dyn TakeRow>>,
) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    let last = input.schema().fields().len() - 1;
    if operator.name() == "MeterExec" {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        return Arc::clone(operator).replace_children(vec![input], options);
    }
    if operator.name() == "LenientExec"
        && let Some(lenient) = operator.downcast_ref::<LenientExec>()
    {
        let inner = on_top_with(input, lenient.operator(), carried, taker)?;
        let same = lenient.like(inner, taker.cloned());
        return same
            .map(|same| Arc::new(same) as _)
            .ok_or_else(|| DataFusionError::Internal("an operator has become another".to_owned()));
    }
    if let Some(work) = operator.downcast_ref::<WorkExec>() {
        return Ok(Arc::new(work.carrying(input, carried, taker)));
    }
    if let Some(check) = operator.downcast_ref::<CheckExec>() {
        return Ok(Arc::new(check.carrying(input, taker)));
    }
    if let Some(lookup) = operator.downcast_ref::<LookupExec>() {
        return Ok(Arc::new(lookup.carrying(input, taker)));
    }
    if let Some(filter) = operator.downcast_ref::<FilterExec>() {
        let projection = filter.projection().as_ref().map(|kept| kept.iter().copied().chain([last]).collect());
        let builder = FilterExecBuilder::new(Arc::clone(filter.predicate()), input);
        return Ok(Arc::new(builder.with_batch_size(filter.batch_size()).apply_projection(projection)?.build()?));
    }
    if let Some(projection) = operator.downcast_ref::<ProjectionExec>() {
        let name = input.schema().field(last).name().clone();
        let number = ProjectionExpr { expr: Arc::new(Column::new(&name, last)), alias: name };
        let expressions: Vec<ProjectionExpr> = projection.expr().iter().cloned().chain([number]).collect();
        return Ok(Arc::new(ProjectionExec::try_new(expressions, input)?));
    }
    Err(DataFusionError::Internal(format!("{} is on a way that goes row by row", operator.name())))
}

/// Counts the rows that come through.
#[derive(Debug)]
struct CountExec {
    input: Arc<dyn ExecutionPlan>,
    count: Arc<AtomicI64>,
    /// What each row counts.
    sign: i64,
}

impl CountExec {
    fn over(input: Arc<dyn ExecutionPlan>, count: &Arc<AtomicI64>, sign: i64) -> Arc<dyn ExecutionPlan> {
        Arc::new(CountExec { input, count: Arc::clone(count), sign })
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        CountExec { input, count: Arc::clone(&self.count), sign: self.sign }
    }
}

impl DisplayAs for CountExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CountExec")
    }
}

impl ExecutionPlan for CountExec {
    over_one_input!("CountExec");

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let (input, count, sign) = (self.input.execute(partition, context)?, Arc::clone(&self.count), self.sign);
        let counted = input.inspect_ok(move |batch| {
            count.fetch_add(sign * batch.num_rows() as i64, Ordering::Relaxed);
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), counted)))
    }
}

/// The leaf of the plan: the rows of a group, numbered.
struct GroupExec {
    batches: Vec<RecordBatch>,
    batch_rows: usize,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
}

impl fmt::Debug for GroupExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupExec").field("batches", &self.batches.len()).finish_non_exhaustive()
    }
}

impl DisplayAs for GroupExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GroupExec")
    }
}

impl ExecutionPlan for GroupExec {
    leaf!("GroupExec");

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let (batches, schema, batch_rows) = (self.batches.clone(), Arc::clone(&self.schema), self.batch_rows);
        let rows = async_stream::try_stream! {
            let mut small = BatchCoalescer::new(Arc::clone(&schema), batch_rows)
                .with_biggest_coalesce_batch_size(Some(batch_rows / 2));
            let (mut next, mut held) = (0, 0);
            for batch in batches {
                held += batch.get_array_memory_size();
                let numbered = numbered(&schema, &batch, next)?;
                next += batch.num_rows() as u64;
                small.push_batch(numbered)?;
                if held >= BATCH_BYTES {
                    small.finish_buffered_batch()?;
                }
                while let Some(batch) = small.next_completed_batch() {
                    held = 0;
                    yield batch;
                }
            }
            small.finish_buffered_batch()?;
            while let Some(batch) = small.next_completed_batch() {
                yield batch;
            }
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), rows)))
    }
}

/// `batch` with the numbers of its rows from `first` on.
fn numbered(schema: &SchemaRef, batch: &RecordBatch, first: u64) -> DataFusionResult<RecordBatch> {
    let rows = batch.num_rows();
    let numbers = (first..first + rows as u64).map(|number| Span::one(number).pack());
    let numbers = numbers.collect::<Result<Vec<u64>, _>>().map_err(fault::carry)?;
    let numbers: ArrayRef = Arc::new(UInt64Array::from(numbers));
    let columns = batch.columns().iter().cloned().chain([numbers]).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}
