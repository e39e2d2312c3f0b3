//! Operators that leave out the rows on which they fail.
//!
//! A filter or a projection computes whole batches, and says of an error at most the value. So a batch that fails is
//! computed again in halves, down to the rows to blame. Nothing is computed twice where nothing fails.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{AsArray, RecordBatch, RecordBatchOptions};
use arrow::compute::filter_record_batch;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::StreamExt;
use millstream_core::ErrorKind;

use super::error_locator::ErrorLocator;
use super::lookup::row_inputs;
use crate::fault;
use crate::planner_names::PlannerNames;
use crate::rejects::Rejects;
use crate::rejects::take::TakeRow;

/// A filter or a projection that leaves out what it cannot compute, where the step at fault allows it.
pub struct LenientExec {
    operator: Arc<dyn ExecutionPlan>,
    input: Arc<dyn ExecutionPlan>,
    rejects: Arc<Rejects>,
    locator: Arc<ErrorLocator>,
    taker: Arc<dyn TakeRow>,
    /// Whether rows come here first, and are counted.
    counts: bool,
    failed: Arc<AtomicU64>,
    names: Arc<PlannerNames>,
}

impl LenientExec {
    /// `operator`, if it is one that can leave rows out.
    pub fn over(
        operator: &Arc<dyn ExecutionPlan>,
        rejects: &Arc<Rejects>,
        locator: &Arc<ErrorLocator>,
        taker: Arc<dyn TakeRow>,
    ) -> Option<Self> {
        let names = operator.children().first().map(|input| PlannerNames::of(input)).unwrap_or_default();
        LenientExec::naming(operator, rejects, locator, taker, &Arc::new(names))
    }

    fn naming(
        operator: &Arc<dyn ExecutionPlan>,
        rejects: &Arc<Rejects>,
        locator: &Arc<ErrorLocator>,
        taker: Arc<dyn TakeRow>,
        names: &Arc<PlannerNames>,
    ) -> Option<Self> {
        let known = operator.is::<FilterExec>() || operator.is::<ProjectionExec>();
        let input = operator.children().first().map(|input| Arc::clone(input)).filter(|_| known)?;
        let (rejects, locator, names) = (Arc::clone(rejects), Arc::clone(locator), Arc::clone(names));
        let counts = !is_below(&input);
        let failed = Arc::default();
        Some(LenientExec { operator: Arc::clone(operator), input, rejects, locator, taker, counts, failed, names })
    }

    /// The names of the steps in `plan`, if it is one of these, that may leave something out.
    pub fn steps(plan: &Arc<dyn ExecutionPlan>) -> Vec<String> {
        let Some(lenient) = plan.downcast_ref::<LenientExec>() else { return Vec::new() };
        lenient.locator.steps().map(str::to_owned).collect()
    }

    /// How many rows it has left out.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// The operator itself.
    pub fn operator(&self) -> &Arc<dyn ExecutionPlan> {
        &self.operator
    }

    /// The same for another operator of the same kind, which is over another input, with its rows taken by `taker` if
    /// there is one.
    pub fn like(&self, operator: Arc<dyn ExecutionPlan>, taker: Option<Arc<dyn TakeRow>>) -> Option<Self> {
        // What another takes another counts.
        let failed = if taker.is_some() { Arc::default() } else { Arc::clone(&self.failed) };
        let taker = taker.unwrap_or_else(|| Arc::clone(&self.taker));
        let same = LenientExec::naming(&operator, &self.rejects, &self.locator, taker, &self.names)?;
        Some(LenientExec { failed, ..same })
    }
}

/// Whether there is such an operator on the way of the rows of `plan`.
fn is_below(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.name() == "LenientExec" || row_inputs(plan).into_iter().any(is_below)
}

/// What an operator computes.
struct Work {
    failed: Arc<AtomicU64>,
    operator: Arc<dyn ExecutionPlan>,
    rejects: Arc<Rejects>,
    locator: Arc<ErrorLocator>,
    taker: Arc<dyn TakeRow>,
    names: Arc<PlannerNames>,
}

impl Work {
    /// The rows that come out of `batch`, without those that cannot be computed.
    fn rows(&self, batch: RecordBatch) -> DataFusionResult<Vec<RecordBatch>> {
        let (mut parts, mut done) = (vec![batch], Vec::new());
        while let Some(part) = parts.pop() {
            let error = match self.compute(&part) {
                Ok(rows) => {
                    done.push(rows);
                    continue;
                }
                Err(error) => fault::unwrap(self.locator.place(error, self.operator.name())),
            };
            let step = error.step_name().unwrap_or_default().to_owned();
            if error.kind() != ErrorKind::Data || self.rejects.of_step(&step).is_none() {
                return Err(fault::carry(error));
            }
            match part.num_rows() {
                0 | 1 => {
                    self.taker.take(&step, &self.names.in_rows(&part), error).map_err(fault::carry)?;
                    self.failed.fetch_add(1, Ordering::Relaxed);
                }
                rows => {
                    parts.push(part.slice(rows / 2, rows - rows / 2));
                    parts.push(part.slice(0, rows / 2));
                }
            }
        }
        Ok(done)
    }

    fn compute(&self, batch: &RecordBatch) -> DataFusionResult<RecordBatch> {
        if let Some(projection) = self.operator.downcast_ref::<ProjectionExec>() {
            let columns = projection.expr().iter().map(|one| one.expr.evaluate(batch)?.into_array(batch.num_rows()));
            let columns = columns.collect::<DataFusionResult<Vec<_>>>()?;
            let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            return Ok(RecordBatch::try_new_with_options(self.operator.schema(), columns, &options)?);
        }
        let filter = self.operator.downcast_ref::<FilterExec>();
        let filter =
            filter.ok_or_else(|| DataFusionError::Internal("only filters and projections come here".into()))?;
        let mask = filter.predicate().evaluate(batch)?.into_array(batch.num_rows())?;
        let kept = filter_record_batch(batch, mask.as_boolean())?;
        match filter.projection().as_ref() {
            Some(columns) => Ok(kept.project(columns)?),
            None => Ok(kept),
        }
    }
}

impl fmt::Debug for LenientExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LenientExec").field("operator", &self.operator).finish_non_exhaustive()
    }
}

impl DisplayAs for LenientExec {
    fn fmt_as(&self, mode: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.operator.fmt_as(mode, f)?;
        f.write_str(", leaves out rows that cannot be computed")
    }
}

impl ExecutionPlan for LenientExec {
    fn name(&self) -> &str {
        "LenientExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.operator.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        self.operator.maintains_input_order()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DataFusionResult<TreeNodeRecursion>,
    ) -> DataFusionResult<TreeNodeRecursion> {
        self.operator.apply_expressions(f)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let operator = Arc::clone(&self.operator).replace_children(children, options)?;
        let same = self.like(operator, None);
        let same = same.ok_or_else(|| DataFusionError::Internal("an operator has become another".into()))?;
        Ok(Arc::new(same))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let mut input = self.input.execute(partition, context)?;
        let LenientExec { operator, rejects, locator, taker, names, .. } = self;
        let work = Work {
            failed: Arc::clone(&self.failed),
            operator: Arc::clone(operator),
            rejects: Arc::clone(rejects),
            locator: Arc::clone(locator),
            taker: Arc::clone(taker),
            names: Arc::clone(names),
        };
        let counted = if self.counts { rejects.of_steps(locator.steps()) } else { Vec::new() };
        let rows = async_stream::try_stream! {
            while let Some(batch) = input.next().await {
                let batch = batch?;
                counted.iter().for_each(|limit| limit.add_came(batch.num_rows() as u64));
                for rows in work.rows(batch)? {
                    if rows.num_rows() > 0 {
                        yield rows;
                    }
                }
            }
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}
