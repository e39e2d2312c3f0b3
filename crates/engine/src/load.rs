//! The plan node that loads: each partition of its input goes to a writer of its own.
//!
//! Its output is one row a partition: how many rows were written. Beginning, preparing and committing the load stand
//! above the plan, since a job with several sinks commits them together.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{RecordBatch, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties,
};
use futures::StreamExt;
use millstream_core::sink::{Load, Sink};
use millstream_core::{Result, Step};

use crate::fault;
use crate::plan::node::over_one_input;

/// Hands the rows of its input to a load that has begun.
pub struct LoadExec {
    name: String,
    sink: Arc<dyn Sink>,
    load: Arc<dyn Load>,
    step: Arc<Step>,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl LoadExec {
    /// Writes `input` to `load`, which `sink` (the entry `name`) has begun.
    pub fn new(
        name: &str,
        sink: Arc<dyn Sink>,
        load: Arc<dyn Load>,
        step: Arc<Step>,
        input: Arc<dyn ExecutionPlan>,
    ) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(written_schema()),
            Partitioning::UnknownPartitioning(input.output_partitioning().partition_count()),
            EmissionType::Final,
            Boundedness::Bounded,
        );
        LoadExec { name: name.to_owned(), sink, load, step, input, properties: Arc::new(properties) }
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        let (sink, load, step) = (Arc::clone(&self.sink), Arc::clone(&self.load), Arc::clone(&self.step));
        LoadExec::new(&self.name, sink, load, step, input)
    }
}

fn written_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("rows", DataType::UInt64, false)]))
}

impl fmt::Debug for LoadExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadExec").field("name", &self.name).field("sink", &self.sink).finish_non_exhaustive()
    }
}

impl DisplayAs for LoadExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoadExec: {}, {} {}", self.name, self.sink.name(), self.sink.target())
    }
}

impl ExecutionPlan for LoadExec {
    over_one_input!("LoadExec");

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let input = self.input.execute(partition, context)?;
        let (load, step, name) = (Arc::clone(&self.load), Arc::clone(&self.step), self.name.clone());
        let rows = async move {
            let rows =
                write_all(load, &step, partition, input).await.map_err(|error| fault::carry(error.in_step(&name)))?;
            Ok(RecordBatch::try_new(written_schema(), vec![Arc::new(UInt64Array::from(vec![rows]))])?)
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), futures::stream::once(rows))))
    }
}

/// Writes all of `input`; returns how many rows that was.
async fn write_all(
    load: Arc<dyn Load>,
    step: &Step,
    partition: usize,
    mut input: SendableRecordBatchStream,
) -> Result<u64> {
    let mut writer = load.writer(partition).await?;
    let mut rows = 0;
    loop {
        let start = Instant::now();
        // Waiting for the end is no waiting for rows: a partition may have none, and its task helps others meanwhile.
        let Some(batch) = input.next().await else { break };
        step.add_waiting_input(start.elapsed());
        let batch = batch.map_err(fault::unwrap)?;
        let count = batch.num_rows() as u64;
        writer.write(batch).await?;
        // A run that is asked to end ends here, however fast the rows come.
        tokio::task::yield_now().await;
        step.add_rows(count);
        rows += count;
    }
    writer.close().await?;
    Ok(rows)
}
