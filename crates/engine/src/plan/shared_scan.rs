//! A step that several steps use runs once: the shared scan hands each of its batches to all its consumers.
//!
//! ```text
//!                     ┌─▶ queue of consumer 0 ─▶
//!  input, partition p ┤
//!                     └─▶ queue of consumer 1 ─▶   (memory, then scratch)
//! ```
//! One task a partition pulls the input and fills the consumers' queues. When every consumer has enough in its queue
//! the task waits: that is the backpressure. When one consumer starves while another has enough (a hash join that
//! first drains one side of a self-join would otherwise wait for ever), what the slower one has not taken yet goes to
//! scratch.
//!
//! What a consumer has taken is gone. One that is executed again (see [`Rounds`]) runs the input again, for itself
//! alone: that is slow, and rare, and the rows are the same.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use datafusion::common::Statistics;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::StreamExt;
use millstream_core::{Budget, Error, Reservation, Step};
use tempfile::NamedTempFile;
use tokio::sync::Notify;

use crate::fault;
use crate::node::{Rounds, leaf, streaming};

/// Bytes in memory that are enough for one consumer of one partition.
const ENOUGH: usize = 4 << 20;

/// The size of a file in scratch, in bytes of memory: it is deleted once it has been read.
const SPILL_FILE: usize = 32 << 20;

/// A step and its consumers. Its state belongs to the run, not to a plan node, so it survives when nodes are rebuilt.
pub struct SharedScan {
    name: String,
    input: Arc<dyn ExecutionPlan>,
    consumers: AtomicUsize,
    partitions: Vec<Arc<Partition>>,
    budget: Arc<Budget>,
    scratch: std::path::PathBuf,
    step: Arc<Step>,
}

impl fmt::Debug for SharedScan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedScan").field("name", &self.name).finish_non_exhaustive()
    }
}

/// One partition of the input and the queues of its consumers.
#[derive(Default)]
struct Partition {
    state: Mutex<State>,
    /// Told by the consumers: there is room, or one of them starves.
    wanted: Notify,
    /// Told by the task: there are batches, or the end.
    given: Notify,
}

#[derive(Default)]
struct State {
    queues: Vec<Queue>,
    ended: Option<Result<(), Arc<DataFusionError>>>,
    task: Option<SpawnedTask<()>>,
}

#[derive(Default)]
struct Queue {
    batches: VecDeque<Held>,
    bytes: usize,
    starving: bool,
    closed: bool,
}

/// What waits for a consumer.
enum Held {
    Memory(RecordBatch, Reservation),
    Scratch(ScratchFile),
}

enum ScratchFile {
    Writing { writer: Box<StreamWriter<std::io::BufWriter<NamedTempFile>>>, bytes: usize },
    Reading(Box<StreamReader<std::io::BufReader<NamedTempFile>>>),
}

impl SharedScan {
    /// A shared scan over `input`; its consumers come with [`SharedScan::consumer`].
    pub fn new(
        name: &str,
        input: Arc<dyn ExecutionPlan>,
        budget: Arc<Budget>,
        scratch: std::path::PathBuf,
        step: Arc<Step>,
    ) -> Arc<Self> {
        let partitions = input.output_partitioning().partition_count();
        Arc::new(SharedScan {
            name: name.to_owned(),
            partitions: (0..partitions).map(|_| Arc::default()).collect(),
            input,
            consumers: AtomicUsize::new(0),
            budget,
            scratch,
            step,
        })
    }

    /// The columns it hands out.
    pub fn schema(&self) -> SchemaRef {
        self.input.schema()
    }

    /// The step's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The plan below it.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// A node that reads the shared scan as its next consumer. `projection` are the columns that it keeps, as indices
    /// into the schema.
    pub fn consumer(self: &Arc<Self>, projection: Vec<usize>) -> DataFusionResult<SharedScanExec> {
        let consumer = self.consumers.fetch_add(1, Ordering::Relaxed);
        for partition in &self.partitions {
            partition.lock().queues.push(Queue::default());
        }
        let schema = Arc::new(self.schema().project(&projection)?);
        let partitions = self.partitions.len();
        Ok(SharedScanExec {
            shared: Arc::clone(self),
            consumer,
            projection,
            rounds: Rounds::new(partitions),
            again: Mutex::default(),
            properties: streaming(schema, partitions),
        })
    }

    /// Starts the task of partition `index`, once.
    fn start(self: &Arc<Self>, index: usize, context: &Arc<TaskContext>) -> DataFusionResult<()> {
        let partition = &self.partitions[index];
        let mut state = partition.lock();
        if state.task.is_some() || state.ended.is_some() {
            return Ok(());
        }
        let mut input = self.input.execute(index, Arc::clone(context))?;
        let shared = Arc::downgrade(self);
        let end = End(Arc::clone(partition));
        state.task = Some(SpawnedTask::spawn(async move {
            while let Some(batch) = input.next().await {
                let Some(shared) = shared.upgrade() else { return };
                let handed = match batch {
                    Ok(batch) => shared.hand_out(&end.0, batch).await,
                    Err(error) => Err(error),
                };
                match handed {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => return end.set(Err(Arc::new(error))),
                }
            }
            end.set(Ok(()));
        }));
        Ok(())
    }

    /// Waits until the consumers of `partition` want more, and gives each `batch`. `false` if nobody is left.
    async fn hand_out(&self, partition: &Partition, batch: RecordBatch) -> DataFusionResult<bool> {
        loop {
            let wanted = partition.wanted.notified();
            tokio::pin!(wanted);
            wanted.as_mut().enable();
            {
                let mut state = partition.lock();
                let mut open = state.queues.iter().filter(|queue| !queue.closed).peekable();
                if open.peek().is_none() {
                    return Ok(false);
                }
                let someone_starves = state.queues.iter().any(|queue| !queue.closed && queue.starving);
                let all_have_room = state.queues.iter().all(|queue| queue.closed || queue.has_room());
                if all_have_room || someone_starves {
                    self.step.add_rows(batch.num_rows() as u64);
                    for queue in state.queues.iter_mut().filter(|queue| !queue.closed) {
                        self.put(queue, &batch)?;
                    }
                    drop(state);
                    partition.given.notify_waiters();
                    return Ok(true);
                }
            }
            wanted.await;
        }
    }

    /// Puts `batch` at the end of `queue`: in memory while that is little and allowed, else in scratch.
    fn put(&self, queue: &mut Queue, batch: &RecordBatch) -> DataFusionResult<()> {
        let bytes = datafusion::physical_plan::spill::get_record_batch_memory_size(batch);
        let in_memory = queue.has_room();
        queue.starving = false;
        if in_memory && let Ok(reservation) = self.budget.try_reserve(&self.name, bytes) {
            queue.bytes += bytes;
            queue.batches.push_back(Held::Memory(batch.clone(), reservation));
            return Ok(());
        }
        let batch = &compact(batch)?;
        let bytes = datafusion::physical_plan::spill::get_record_batch_memory_size(batch);
        self.step.add_spilled(bytes as u64);
        if let Some(Held::Scratch(ScratchFile::Writing { writer, bytes: written })) = queue.batches.back_mut()
            && *written < SPILL_FILE
        {
            *written += bytes;
            return Ok(writer.write(batch)?);
        }
        let file = tempfile::Builder::new().prefix("millstream-").tempfile_in(&self.scratch).map_err(|cause| {
            fault::carry(
                Error::io(format!("no scratch file can be created in {}", self.scratch.display()), &cause)
                    .in_step(&self.name),
            )
        })?;
        let mut writer = StreamWriter::try_new(std::io::BufWriter::new(file), &batch.schema())?;
        writer.write(batch)?;
        queue.batches.push_back(Held::Scratch(ScratchFile::Writing { writer: Box::new(writer), bytes }));
        Ok(())
    }

    /// Gives up what `consumer` has not taken of partition `index`, and all that is to come.
    fn close(&self, index: usize, consumer: usize) {
        let partition = &self.partitions[index];
        partition.lock().queues[consumer] = Queue { closed: true, ..Queue::default() };
        partition.wanted.notify_waiters();
    }

    /// The next batch for `consumer` of `partition`; `None` at the end.
    async fn take(&self, partition: &Partition, consumer: usize) -> DataFusionResult<Option<RecordBatch>> {
        loop {
            let given = partition.given.notified();
            tokio::pin!(given);
            given.as_mut().enable();
            {
                let mut state = partition.lock();
                if let Some(batch) = state.queues[consumer].take()? {
                    drop(state);
                    partition.wanted.notify_waiters();
                    return Ok(Some(batch));
                }
                match &state.ended {
                    Some(Ok(())) => return Ok(None),
                    Some(Err(error)) => return Err(DataFusionError::Shared(Arc::clone(error))),
                    None => state.queues[consumer].starving = true,
                }
            }
            partition.wanted.notify_waiters();
            given.await;
        }
    }
}

/// The end of a partition's task, shown to its consumers. They see that a task broke, too, and do not wait for ever.
struct End(Arc<Partition>);

impl End {
    fn set(&self, end: Result<(), Arc<DataFusionError>>) {
        self.0.lock().ended.get_or_insert(end);
        self.0.given.notify_waiters();
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.set(Err(Arc::new(fault::carry(Error::internal("a task failed")))));
    }
}

impl Partition {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Queue {
    /// Whether a batch may wait here in memory. What has gone to scratch is taken first.
    fn has_room(&self) -> bool {
        self.bytes < ENOUGH && !matches!(self.batches.back(), Some(Held::Scratch(_)))
    }

    /// The first batch that waits.
    fn take(&mut self) -> DataFusionResult<Option<RecordBatch>> {
        while let Some(first) = self.batches.pop_front() {
            match first {
                Held::Memory(batch, reservation) => {
                    self.bytes -= reservation.bytes();
                    return Ok(Some(batch));
                }
                Held::Scratch(ScratchFile::Writing { mut writer, .. }) => {
                    writer.finish()?;
                    let file = writer.into_inner()?.into_inner().map_err(|error| error.into_error())?;
                    let reader = open_from_start(file)?;
                    self.batches.push_front(Held::Scratch(ScratchFile::Reading(Box::new(reader))));
                }
                Held::Scratch(ScratchFile::Reading(mut reader)) => {
                    if let Some(batch) = reader.next() {
                        let batch = batch?;
                        self.batches.push_front(Held::Scratch(ScratchFile::Reading(reader)));
                        return Ok(Some(batch));
                    }
                }
            }
        }
        Ok(None)
    }
}

/// `batch` with nothing in its buffers but its own text. Texts are views into what was decoded, and a filter leaves
/// few of them; in scratch every column would be followed by all of the text that its views point into.
fn compact(batch: &RecordBatch) -> DataFusionResult<RecordBatch> {
    let columns = batch.columns().iter().map(|column| match column.data_type() {
        DataType::Utf8View => Arc::new(column.as_string_view().gc()) as ArrayRef,
        DataType::BinaryView => Arc::new(column.as_binary_view().gc()),
        _ => Arc::clone(column),
    });
    Ok(RecordBatch::try_new(batch.schema(), columns.collect())?)
}

fn open_from_start(mut file: NamedTempFile) -> DataFusionResult<StreamReader<std::io::BufReader<NamedTempFile>>> {
    use std::io::Seek;
    file.as_file_mut().rewind()?;
    Ok(StreamReader::try_new(std::io::BufReader::new(file), None)?)
}

/// One use of a [`SharedScan`].
#[derive(Debug)]
pub struct SharedScanExec {
    shared: Arc<SharedScan>,
    consumer: usize,
    projection: Vec<usize>,
    rounds: Rounds,
    /// The input for every round after the first.
    again: Mutex<Vec<Arc<dyn ExecutionPlan>>>,
    properties: Arc<PlanProperties>,
}

impl SharedScanExec {
    /// The plan of the step that is shared.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.shared.input
    }

    /// The name of that step.
    pub fn name_of_step(&self) -> &str {
        &self.shared.name
    }

    /// The input with this consumer's columns, as it is computed by the consumer alone.
    pub fn columns_of_input(&self) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        self.projected(Arc::clone(&self.shared.input))
    }

    /// The input as it is run again by this consumer alone. `round` counts from 1.
    fn input_of(&self, round: usize) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let mut again = self.again.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        while again.len() < round {
            again.push(self.anew()?);
        }
        Ok(Arc::clone(&again[round - 1]))
    }

    /// A copy of the input that shares no rows with any other: also the shared scans below it are run again.
    fn anew(&self) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let copy = Arc::clone(&self.shared.input).transform_up(|node| match node.downcast_ref::<SharedScanExec>() {
            Some(below) => Ok(Transformed::yes(below.projected(below.anew()?)?)),
            None => Ok(Transformed::yes(node.reset_state()?)),
        });
        Ok(copy?.data)
    }

    /// `input` with this consumer's columns.
    fn projected(&self, input: Arc<dyn ExecutionPlan>) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let schema = input.schema();
        let columns = self.projection.iter().map(|&index| {
            let name = schema.field(index).name();
            (Arc::new(Column::new(name, index)) as Arc<dyn PhysicalExpr>, name.clone())
        });
        Ok(Arc::new(ProjectionExec::try_new(columns.collect::<Vec<_>>(), input)?))
    }
}

/// A plan that was given up for a better one (see `plan/joins.rs`) must leave no consumer behind for whom batches are
/// kept.
impl Drop for SharedScanExec {
    fn drop(&mut self) {
        for partition in 0..self.shared.partitions.len() {
            if !self.rounds.has_begun(partition) {
                self.shared.close(partition, self.consumer);
            }
        }
    }
}

impl DisplayAs for SharedScanExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schema = self.schema();
        let columns: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        write!(f, "SharedScanExec: {} (runs once), columns=[{}]", self.shared.name, columns.join(", "))
    }
}

impl ExecutionPlan for SharedScanExec {
    // The input is the shared scan's own, not this node's: it must not be rebuilt once for every consumer.
    leaf!("SharedScanExec");

    /// What is known of the input: without it a join would take a large side for a small one.
    fn statistics_from_inputs(
        &self,
        _: &[Arc<Statistics>],
        arguments: &StatisticsArgs,
    ) -> DataFusionResult<Arc<Statistics>> {
        let mut statistics = Statistics::new_unknown(&self.schema());
        if arguments.partition().is_none() {
            let input = StatisticsContext::new().compute(self.shared.input.as_ref(), &StatisticsArgs::new())?;
            statistics.num_rows = input.num_rows.to_inexact();
            statistics.total_byte_size = input.total_byte_size.to_inexact();
        }
        Ok(Arc::new(statistics))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let round = self.rounds.begin(partition);
        if round > 0 {
            return self.projected(self.input_of(round)?)?.execute(partition, context);
        }
        let own = ConsumerOf { shared: Arc::clone(&self.shared), partition, consumer: self.consumer };
        let projection = self.projection.clone();
        let batches = async_stream::try_stream! {
            own.shared.start(partition, &context)?;
            while let Some(batch) = own.shared.take(&own.shared.partitions[partition], own.consumer).await? {
                yield batch.project(&projection)?;
            }
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), batches)))
    }
}

/// Closes its queue when the consumer is done with it, so that nobody waits for it.
struct ConsumerOf {
    shared: Arc<SharedScan>,
    partition: usize,
    consumer: usize,
}

impl Drop for ConsumerOf {
    fn drop(&mut self) {
        self.shared.close(self.partition, self.consumer);
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;
    use arrow::datatypes::{DataType, Field, Schema};
    use datafusion::catalog::TableProvider;
    use datafusion::datasource::MemTable;
    use datafusion::prelude::SessionContext;
    use millstream_core::StepKind;

    use super::*;

    async fn tee_of(rows: i64, budget: usize) -> (Arc<SharedScan>, Arc<TaskContext>, Arc<Step>) {
        let schema: SchemaRef = Arc::new(Schema::new(vec![
            Field::new("a", DataType::Int64, false),
            Field::new("b", DataType::Int64, false),
        ]));
        let batches: Vec<RecordBatch> = (0..rows)
            .step_by(8192)
            .map(|start| {
                let numbers: Arc<Int64Array> = Arc::new((start..(start + 8192).min(rows)).collect());
                RecordBatch::try_new(Arc::clone(&schema), vec![numbers.clone(), numbers]).expect("a batch")
            })
            .collect();
        let context = SessionContext::new();
        let table = MemTable::try_new(schema, vec![batches]).expect("a table");
        let input = table.scan(&context.state(), None, &[], None).await.expect("a plan");
        let step = Step::new("t", StepKind::Transform, "shared");
        let shared = SharedScan::new("t", input, Budget::new(budget), std::env::temp_dir(), Arc::clone(&step));
        (shared, context.task_ctx(), step)
    }

    async fn sum(stream: SendableRecordBatchStream) -> (usize, i64) {
        let batches: Vec<RecordBatch> = stream.map(|batch| batch.expect("a batch")).collect().await;
        let total = batches
            .iter()
            .map(|batch| arrow::compute::sum(batch.column(0).as_any().downcast_ref::<Int64Array>().expect("int64")))
            .map(Option::unwrap_or_default)
            .sum();
        (batches.iter().map(RecordBatch::num_rows).sum(), total)
    }

    /// The worst consumer: it drains one side wholly before it looks at the other.
    #[tokio::test]
    async fn a_user_who_lags_is_spilled_and_loses_nothing() {
        let rows = 3_000_000;
        let (shared, context, step) = tee_of(rows, 1 << 20).await;
        let first = shared.consumer(vec![0]).expect("a consumer").execute(0, Arc::clone(&context)).expect("a stream");
        let second = shared.consumer(vec![1, 0]).expect("a consumer").execute(0, context).expect("a stream");
        let expected = (rows as usize, rows * (rows - 1) / 2);
        assert_eq!(sum(first).await, expected);
        assert_eq!(sum(second).await, expected);
        assert!(step.snapshot().spilled_bytes > 0, "it must have spilled");
        assert_eq!(step.snapshot().rows, rows as u64, "the input ran once");
    }

    #[tokio::test]
    async fn a_user_who_leaves_does_not_hold_up_the_others() {
        let (shared, context, step) = tee_of(2_000_000, 64 << 20).await;
        let first = shared.consumer(vec![0]).expect("a consumer").execute(0, Arc::clone(&context)).expect("a stream");
        let second = shared.consumer(vec![0]).expect("a consumer").execute(0, context).expect("a stream");
        drop(second);
        assert_eq!(sum(first).await.0, 2_000_000);
        assert_eq!(step.snapshot().spilled_bytes, 0);
    }

    #[tokio::test]
    async fn a_user_who_is_executed_again_gets_all_rows_again() {
        let (shared, context, _) = tee_of(20_000, 64 << 20).await;
        let consumer = shared.consumer(vec![1]).expect("a consumer");
        for _ in 0..3 {
            assert_eq!(sum(consumer.execute(0, Arc::clone(&context)).expect("a stream")).await, (20_000, 199_990_000));
        }
    }

    /// An input whose task breaks.
    #[derive(Debug)]
    struct Broken {
        properties: Arc<PlanProperties>,
    }

    impl DisplayAs for Broken {
        fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Broken")
        }
    }

    impl ExecutionPlan for Broken {
        leaf!("Broken");

        fn execute(&self, _: usize, _: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
            let broken = futures::stream::poll_fn(|_| panic!("on purpose"));
            Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), broken)))
        }
    }

    #[tokio::test]
    async fn users_of_a_task_that_broke_do_not_wait_for_ever() {
        let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, false)]));
        let input = Arc::new(Broken { properties: streaming(schema, 1) });
        let step = Step::new("t", StepKind::Transform, "shared");
        let shared = SharedScan::new("t", input, Budget::new(1 << 20), std::env::temp_dir(), step);
        let context = SessionContext::new().task_ctx();
        let mut rows = shared.consumer(vec![0]).expect("a consumer").execute(0, context).expect("a stream");
        let error = rows.next().await.expect("the fault").expect_err("the task broke");
        assert_eq!(fault::unwrap(error).kind(), millstream_core::ErrorKind::Internal);
    }

    #[test]
    fn what_goes_to_scratch_holds_no_text_of_other_rows() {
        let texts: arrow::array::StringViewArray =
            (0..1000).map(|n| Some(format!("a text that is long enough {n}"))).collect();
        let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("t", DataType::Utf8View, false)]));
        let batch = RecordBatch::try_new(schema, vec![Arc::new(texts)]).expect("a batch").slice(7, 1);
        let small = compact(&batch).expect("a batch");
        assert_eq!(small, batch);
        assert!(small.get_array_memory_size() * 10 < batch.get_array_memory_size());
    }

    #[tokio::test]
    async fn nothing_is_kept_for_a_plan_that_was_given_up() {
        let (shared, context, step) = tee_of(2_000_000, 64 << 20).await;
        drop(shared.consumer(vec![0]).expect("a consumer"));
        let first = shared.consumer(vec![0]).expect("a consumer").execute(0, context).expect("a stream");
        assert_eq!(sum(first).await.0, 2_000_000);
        assert_eq!(step.snapshot().spilled_bytes, 0);
    }
}
