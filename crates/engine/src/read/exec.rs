//! The plan node that reads: units come in as rows, batches go out.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Statistics;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, ReplaceChildrenOptions};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties,
};
use futures::TryStreamExt;

use super::Reader;
use super::queue::from_batch;
use super::rows::{self, RowsRequest};
use crate::fault;

/// Reads the units that its input hands it.
#[derive(Debug)]
pub struct ReadExec {
    reader: Arc<Reader>,
    request: Arc<RowsRequest>,
    statistics: Statistics,
    units: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl ReadExec {
    /// Reads what `units` hands out, with as many partitions as `units` has. `statistics` estimates the rows.
    pub fn new(
        reader: Arc<Reader>,
        request: Arc<RowsRequest>,
        statistics: Statistics,
        units: Arc<dyn ExecutionPlan>,
    ) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&request.output_schema)),
            Partitioning::UnknownPartitioning(units.output_partitioning().partition_count()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        ReadExec { reader, request, statistics, units, properties: Arc::new(properties) }
    }

    /// The source's name in the job.
    pub fn source(&self) -> &str {
        &self.reader.name
    }
}

impl DisplayAs for ReadExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns: Vec<&str> =
            self.request.output_schema.fields().iter().map(|field| field.name().as_str()).collect();
        write!(f, "ReadExec: {}, {}, columns=[{}]", self.reader.name, self.reader.format.name(), columns.join(", "))?;
        if let Some(filter) = &self.request.filter {
            write!(f, ", filter={filter}")?;
        }
        if !self.request.parse.bounds.is_empty() {
            write!(f, ", {} bounds for row groups", self.request.parse.bounds.len())?;
        }
        Ok(())
    }
}

impl ExecutionPlan for ReadExec {
    fn name(&self) -> &str {
        "ReadExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.units]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DataFusionResult<TreeNodeRecursion>,
    ) -> DataFusionResult<TreeNodeRecursion> {
        match &self.request.filter {
            Some(filter) => f(filter),
            None => Ok(TreeNodeRecursion::Continue),
        }
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let units = children.pop().ok_or_else(|| DataFusionError::Internal("ReadExec has one input".into()))?;
        let (reader, request) = (Arc::clone(&self.reader), Arc::clone(&self.request));
        Ok(Arc::new(ReadExec::new(reader, request, self.statistics.clone(), units)))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        crate::plan::recompute_with(self, children)
    }

    fn statistics_from_inputs(
        &self,
        _: &[Arc<Statistics>],
        arguments: &StatisticsArgs,
    ) -> DataFusionResult<Arc<Statistics>> {
        Ok(Arc::new(match arguments.partition() {
            None => self.statistics.clone(),
            Some(_) => Statistics::new_unknown(&self.schema()),
        }))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let units = self.units.execute(partition, context)?;
        let partitions = self.units.output_partitioning().partition_count().max(1);
        let reader = Arc::clone(&self.reader);
        let ahead = self.reader.open_ahead().div_ceil(partitions).max(1);
        let opened = units
            .map_ok(|batch| futures::stream::iter(from_batch(&batch).into_iter().map(DataFusionResult::Ok)))
            .try_flatten()
            .map_ok(move |unit| {
                let name = reader.name.clone();
                let opening = rows::open(Arc::clone(&reader), unit);
                let _enter = reader.context.io.enter();
                let task = datafusion::common::runtime::SpawnedTask::spawn(opening);
                async move {
                    match task.join().await {
                        Ok(opened) => opened.map_err(|error| fault::carry(error.in_step(&name))),
                        Err(join) => Err(DataFusionError::ExecutionJoin(Box::new(join))),
                    }
                }
            })
            .try_buffered(ahead);
        let (reader, request) = (Arc::clone(&self.reader), Arc::clone(&self.request));
        let batches = opened.map_ok(move |open| rows::rows(Arc::clone(&reader), Arc::clone(&request), open));
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), batches.try_flatten())))
    }
}
