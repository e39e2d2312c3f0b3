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
use futures::{Stream, StreamExt};
use millstream_core::reject::RejectLimit;
use millstream_core::sink::{Load, Sink};
use millstream_core::{Error, ErrorKind, RejectKind, Result, Step, values};

use crate::fault;
use crate::node::over_one_input;
use crate::rejects::origin::without_origins;
use crate::rejects::{Entry, allowing};

/// Hands the rows of its input to a load that has begun.
pub struct LoadExec {
    name: String,
    sink: Arc<dyn Sink>,
    load: Arc<dyn Load>,
    step: Arc<Step>,
    input: Arc<dyn ExecutionPlan>,
    /// What the sink may leave out, if it may leave out anything.
    limit: Option<Arc<RejectLimit>>,
    /// Whether the sink gets the column that says where a row is from.
    keep_origins: bool,
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
        let properties = Arc::new(properties);
        LoadExec { name: name.to_owned(), sink, load, step, input, limit: None, keep_origins: false, properties }
    }

    /// The same, where the sink may leave out what `limit` says. `keep_origins` hands on the column that says where a
    /// row is from, if there is one.
    pub fn with_rejects(self, limit: Option<Arc<RejectLimit>>, keep_origins: bool) -> Self {
        LoadExec { limit, keep_origins, ..self }
    }

    /// The sink.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        let (sink, load, step) = (Arc::clone(&self.sink), Arc::clone(&self.load), Arc::clone(&self.step));
        LoadExec::new(&self.name, sink, load, step, input).with_rejects(self.limit.clone(), self.keep_origins)
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
        let (limit, keep_origins) = (self.limit.clone(), self.keep_origins);
        let input = input.map(move |batch| {
            let batch = batch?;
            limit.iter().for_each(|limit| limit.add_came(batch.num_rows() as u64));
            if keep_origins { Ok(batch) } else { without_origins(&batch) }
        });
        let rows = async move {
            let rows = write_all(load, &step, partition, input)
                .await
                .map_err(|error| fault::carry(hinted(error, &name).in_step(&name)))?;
            Ok(RecordBatch::try_new(written_schema(), vec![Arc::new(UInt64Array::from(vec![rows]))])?)
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), futures::stream::once(rows))))
    }
}

/// `error`, with the way to go on without rows that the target of `sink` does not take, if it is about these.
fn hinted(error: Error, sink: &str) -> Error {
    let is_row = error.kind() == ErrorKind::Data && error.reject_kind() != RejectKind::Other;
    // What was read has its step by now.
    match is_row && error.step_name().is_none() {
        true => allowing(error, &Entry::Sink(sink.to_owned())),
        false => error,
    }
}

/// Writes all of `input`; returns how many rows that was.
async fn write_all(
    load: Arc<dyn Load>,
    step: &Step,
    partition: usize,
    mut input: impl Stream<Item = DataFusionResult<RecordBatch>> + Unpin,
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
        values::check(&batch)?;
        writer.write(batch).await?;
        // A run that is asked to end ends here, however fast the rows come.
        tokio::task::yield_now().await;
        // What an earlier run has written is not written by this one.
        if !load.is_there() {
            step.add_rows(count);
        }
        rows += count;
    }
    writer.close().await?;
    Ok(rows)
}
