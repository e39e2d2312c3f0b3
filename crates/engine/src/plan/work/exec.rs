//! The node of a plan whose rows workers compute.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::runtime::SpawnedTask;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{
    Distribution, LexRequirement, OrderingRequirements, PhysicalExpr, PhysicalSortRequirement,
};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use millstream_core::Error;
use millstream_core::format::{BATCH_BYTES, BATCH_ROWS};
use millstream_core::transform::Per;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout_at};

use super::groups::{Groups, cut};
use super::pass::{Feed, passed};
use super::pool::Pool;
use super::rows::{Part, Work, unfit};
use crate::fault;
use crate::node::{EachRound, over_one_input, streaming};
use crate::rejects::Rejects;
use crate::rejects::carried::Carried;
use crate::rejects::take::TakeRow;

/// Has workers compute rows.
pub struct WorkExec {
    input: Arc<dyn ExecutionPlan>,
    work: Arc<Work>,
    /// The columns that are equal in a group.
    by: Vec<usize>,
    /// With [`Per::Stream`], what the workers share while one of them reads.
    feeds: EachRound<Weak<Feed>>,
    properties: Arc<PlanProperties>,
}

/// What is computed apart, and the room that it takes.
type Call = (Groups, Option<OwnedSemaphorePermit>);

/// Rows that come one batch after the other.
type Batches = BoxStream<'static, DataFusionResult<RecordBatch>>;

/// So long rows wait for others of their call, at most.
const LONGEST_GATHERING: Duration = Duration::from_millis(50);

/// Rows of so many bytes are no more gathered for a call.
const CALL_BYTES: usize = BATCH_BYTES / 4;

/// The size of a view of a text, in bytes.
const VIEW_BYTES: usize = size_of::<u128>();

impl WorkExec {
    /// The workers of `pool` over `input`. Their rows have the columns of `schema`, the last of which are those of the
    /// input with the numbers `keep`. Groups have equal values in its columns `by`.
    pub fn new(
        input: Arc<dyn ExecutionPlan>,
        pool: &Arc<Pool>,
        schema: SchemaRef,
        keep: Vec<usize>,
        by: Vec<usize>,
    ) -> Self {
        let width = input.schema().fields().len();
        let work = Work {
            pool: Arc::clone(pool),
            schema,
            wanted: None,
            keep,
            width,
            taker: None,
            is_entry: true,
            carried: None,
            went: Arc::default(),
            lost: Arc::default(),
        };
        WorkExec::over(input, Arc::new(work), by)
    }

    fn over(input: Arc<dyn ExecutionPlan>, work: Arc<Work>, by: Vec<usize>) -> Self {
        let carried = input.schema().fields().iter().skip(work.width).cloned().collect::<Vec<_>>();
        let fields = work.schema.fields().iter().cloned().chain(carried);
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let partitions = match work.pool.rules().per {
            Per::Row | Per::Batch => input.output_partitioning().partition_count(),
            Per::Group => 1,
            Per::Stream => work.pool.size(),
        };
        WorkExec { input, work, by, feeds: EachRound::new(partitions), properties: streaming(schema, partitions) }
    }

    /// The workers.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.work.pool
    }

    /// The name of its step, if that may leave rows out.
    pub fn lenient_step(&self) -> Option<&str> {
        self.work.taker.as_ref().map(|_| self.pool().step())
    }

    /// How many rows have failed.
    pub fn failed(&self) -> u64 {
        self.work.went.failed.load(Ordering::Relaxed)
    }

    /// With [`Per::Batch`]: how many rows were answered, and how many were given for them.
    pub fn in_batches(&self) -> Option<(u64, u64)> {
        let went = &self.work.went;
        let counts = (went.answered.load(Ordering::Relaxed), went.given.load(Ordering::Relaxed));
        (self.per() == Per::Batch).then_some(counts)
    }

    /// The same, with the rows that fail going to `taker`, if its step may leave some out.
    pub fn lenient(&self, taker: Arc<dyn TakeRow>, rejects: &Arc<Rejects>) -> Option<Self> {
        rejects.of_step(self.pool().step())?;
        let work = Work { taker: Some((taker, Arc::clone(rejects))), ..Work::clone(&self.work) };
        Some(WorkExec::over(Arc::clone(&self.input), Arc::new(work), self.by.clone()))
    }

    /// The same over `input`, whose last column tells where rows are from, as `carried` says. What may fail goes to
    /// `taker`, if there is one, and what becomes of rows is counted apart then.
    pub fn carrying(
        &self,
        input: Arc<dyn ExecutionPlan>,
        carried: &Arc<dyn Carried>,
        taker: Option<&Arc<dyn TakeRow>>,
    ) -> Self {
        let own = Work { carried: Some(Arc::clone(carried)), ..Work::clone(&self.work) };
        let work = match taker {
            Some(taker) => {
                let taker = own.taker.as_ref().map(|(_, rejects)| (Arc::clone(taker), Arc::clone(rejects)));
                Work { taker, went: Arc::default(), ..own }
            }
            None => own,
        };
        WorkExec::over(input, Arc::new(work), self.by.clone())
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        WorkExec::over(input, Arc::clone(&self.work), self.by.clone())
    }

    fn per(&self) -> Per {
        self.pool().rules().per
    }

    /// How many whole batches are given to workers at once: each partition may keep all of its share of them busy, and
    /// has one more batch ready.
    fn at_once(&self) -> usize {
        let partitions = match self.per() {
            Per::Group => 1,
            _ => self.input.output_partitioning().partition_count(),
        };
        self.pool().size().div_ceil(partitions) + 1
    }

    /// The rows of a partition, in batches that are computed apart.
    fn parts(&self, partition: usize, context: Arc<TaskContext>) -> DataFusionResult<Batches> {
        let work = Arc::clone(&self.work);
        let limits = work.taker.as_ref().and_then(|(_, rejects)| rejects.of_step(self.pool().step()));
        let input = self.input.execute(partition, context)?;
        let counters = Arc::clone(self.pool().counters());
        let input = input.inspect_ok(move |batch| {
            let rows = batch.num_rows() as u64;
            counters.add_rows_in(rows);
            limits.iter().for_each(|limit| limit.add_came(rows));
        });
        let (groups, at_once) = match self.per() {
            Per::Group => {
                let schema = self.input.schema();
                let groups = groups_of(Box::pin(RecordBatchStreamAdapter::new(schema, input)), self.by.clone());
                (groups.map_ok(|groups| (groups, None)).boxed(), self.at_once())
            }
            _ => {
                let work = Arc::clone(&work);
                // They may be cut by where they are from, or be left out as a whole.
                let is_apart = work.carried.is_some()
                    || (work.taker.is_some() && self.per() == Per::Batch && !self.pool().rules().deterministic);
                let input = match is_apart {
                    true => input.boxed(),
                    false => gathered(self.input.schema(), input.boxed(), self.pool()),
                };
                let apart = move |rows| stream::iter(work.apart(rows).into_iter().map(Ok));
                let input = input.map_ok(apart).try_flatten().boxed();
                // Many small calls, or few large ones.
                (calls(input, self.pool(), self.at_once()), self.at_once().max(self.pool().size() + 1))
            }
        };
        let rows = groups.map(move |groups| {
            let work = Arc::clone(&work);
            async move {
                let (groups, room) = groups?;
                let part = match groups {
                    Groups::Whole(part) => part,
                    Groups::Long(rows) => return Ok((passed(&work, rows), room)),
                };
                // A task of its own: a worker must not wait until somebody asks for the rows, which may be somebody who
                // waits for what another one who needs the worker holds.
                let rows = SpawnedTask::spawn(async move { work.rows(part).await }).join().await;
                let rows = rows.unwrap_or_else(|join| Err(Error::internal("a task failed").cause(join)));
                let rows = rows.map_err(fault::carry)?;
                Ok::<_, DataFusionError>((stream::iter(rows.into_iter().map(Ok)).boxed(), room))
            }
        });
        Ok(rows.buffered(at_once).map_ok(|(rows, _)| rows).try_flatten().boxed())
    }

    /// The rows of one of the workers that share a stream.
    fn stream(&self, partition: usize, context: &Arc<TaskContext>) -> DataFusionResult<Batches> {
        let mut begun = None;
        let feed = self.feeds.begin(partition, |_| {
            let partitions = 0..self.input.output_partitioning().partition_count();
            let inputs = partitions.map(|partition| self.input.execute(partition, Arc::clone(context)));
            let feed = Arc::new(Feed::new(inputs.collect::<DataFusionResult<_>>()?));
            begun = Some(Arc::clone(&feed));
            Ok(Arc::downgrade(&feed))
        })?;
        // If all others have ended, nothing is left for this one.
        let rows = begun.or_else(|| feed.upgrade()).map_or_else(|| stream::empty().boxed(), Feed::rows);
        let counters = Arc::clone(self.pool().counters());
        let rows = rows.inspect_ok(move |batch| counters.add_rows_in(batch.num_rows() as u64));
        Ok(passed(&self.work, rows.boxed()))
    }
}

/// The rows of `input`, which have the columns of `schema`, in batches of as many rows as a call of `pool` is to have,
/// as far as they come soon.
fn gathered(schema: SchemaRef, input: Batches, pool: &Arc<Pool>) -> Batches {
    if pool.call_rows().gathered().is_none() {
        return input;
    }
    let begin = (input.fuse(), Arc::clone(pool), schema);
    stream::try_unfold(begin, |(mut input, pool, schema)| async move {
        let Some(first) = input.try_next().await? else { return Ok(None) };
        let wanted = pool.call_rows().gathered().unwrap_or(0);
        let (mut rows, mut bytes, until) = (first.num_rows(), bytes_of(&first), Instant::now() + LONGEST_GATHERING);
        let mut batches = vec![first];
        while rows < wanted
            && bytes < CALL_BYTES
            && let Ok(Some(batch)) = timeout_at(until, input.next()).await
        {
            let batch = batch?;
            rows += batch.num_rows();
            bytes += bytes_of(&batch);
            batches.push(batch);
        }
        let together = match <[RecordBatch; 1]>::try_from(batches) {
            Ok([batch]) => batch,
            Err(batches) => concat_batches(&schema, &batches).map_err(|cause| fault::carry(unfit(cause)))?,
        };
        Ok(Some((together, (input, pool, schema))))
    })
    .boxed()
}

/// The memory of the values of `batch`, in bytes: not that of pages which others share.
fn bytes_of(batch: &RecordBatch) -> usize {
    let of_column = |column: &ArrayRef| match column.data_type() {
        DataType::Utf8View => column.as_string_view().total_buffer_bytes_used() + VIEW_BYTES * column.len(),
        DataType::BinaryView => column.as_binary_view().total_buffer_bytes_used() + VIEW_BYTES * column.len(),
        _ => column.to_data().get_slice_memory_size().unwrap_or_else(|_| column.get_array_memory_size()),
    };
    batch.columns().iter().map(of_column).sum()
}

/// The rows of `input` as calls of `pool`, no more at once than whole batches, of which there may be `at_once`. Each
/// comes with the room that it takes until its rows are wanted; one of several batches takes that of one.
fn calls(input: Batches, pool: &Arc<Pool>, at_once: usize) -> BoxStream<'static, DataFusionResult<Call>> {
    let room = Arc::new(Semaphore::new(at_once * BATCH_ROWS));
    let begin = (input, None, Arc::clone(pool), room);
    stream::try_unfold(begin, |(mut input, mut rest, pool, room)| async move {
        while rest.is_none() {
            let Some(batch) = input.try_next().await? else { return Ok(None) };
            rest = Some(batch).filter(|batch| batch.num_rows() > 0);
        }
        let Some(rows) = pool.call_rows().cut(&mut rest) else { return Ok(None) };
        let taken = Arc::clone(&room).acquire_many_owned(rows.num_rows().min(BATCH_ROWS) as u32).await;
        let taken = taken.map_err(|closed| fault::carry(Error::internal("no room for rows").cause(closed)))?;
        let call = (Groups::Whole(Part { rows, ends: Vec::new() }), Some(taken));
        Ok(Some((call, (input, rest, pool, room))))
    })
    .boxed()
}

/// The groups of `input`, which is in order, with equal values in its columns `by`.
fn groups_of(input: SendableRecordBatchStream, by: Vec<usize>) -> BoxStream<'static, DataFusionResult<Groups>> {
    let begin = async move {
        let (sender, groups) = mpsc::channel(1);
        // A task of its own: it feeds a long group while nobody asks for the next one.
        let task = SpawnedTask::spawn(cut(input, by, sender));
        stream::unfold(Some((groups, task)), |state| async move {
            let (mut groups, task) = state?;
            match groups.recv().await {
                Some(next) => Some((next, Some((groups, task)))),
                None => match task.join().await {
                    Ok(()) => None,
                    Err(join) => Some((Err(fault::carry(Error::internal("a task failed").cause(join))), None)),
                },
            }
        })
    };
    stream::once(begin).flatten().boxed()
}

impl fmt::Debug for WorkExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkExec").field("pool", self.pool()).finish_non_exhaustive()
    }
}

impl DisplayAs for WorkExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkExec: {}, workers={}", self.pool().name(), self.pool().size())?;
        if let Some(wanted) = &self.work.wanted {
            write!(f, ", columns={wanted:?}")?;
        }
        if self.work.taker.is_some() {
            f.write_str(", leaves out rows that cannot be computed")?;
        }
        Ok(())
    }
}

impl ExecutionPlan for WorkExec {
    over_one_input!("WorkExec");

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        let is_one = self.per() == Per::Group || (self.per() == Per::Stream && self.pool().size() == 1);
        vec![if is_one { Distribution::SinglePartition } else { Distribution::UnspecifiedDistribution }]
    }

    /// Groups come one after the other, and what is in order goes through one filter in order.
    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        let schema = self.input.schema();
        let requirement = match self.per() {
            Per::Group => {
                let column = |index: &usize| Arc::new(Column::new(schema.field(*index).name(), *index));
                let columns = self.by.iter().map(|by| column(by) as Arc<dyn PhysicalExpr>);
                LexRequirement::new(columns.map(|column| PhysicalSortRequirement::new(column, None)))
            }
            Per::Stream if self.pool().size() == 1 => {
                self.input.output_ordering().map(|order| LexRequirement::from(order.clone()))
            }
            _ => None,
        };
        vec![requirement.map(OrderingRequirements::new)]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![matches!(self.per(), Per::Row | Per::Batch)]
    }

    /// What nobody wants of the rows of a stream need not be read.
    fn try_swapping_with_projection(
        &self,
        projection: &ProjectionExec,
    ) -> DataFusionResult<Option<Arc<dyn ExecutionPlan>>> {
        let columns = projection.expr().iter().map(|column| column.expr.downcast_ref::<Column>().map(Column::index));
        let wanted = columns.collect::<Option<Vec<_>>>().filter(|wanted| wanted.is_sorted_by(|one, next| one < next));
        let is_whole = self.schema().fields().len() == self.work.schema.fields().len();
        Ok(match wanted {
            Some(mut wanted)
                if self.per() == Per::Stream && is_whole && wanted.len() < self.schema().fields().len() =>
            {
                if let Some(before) = &self.work.wanted {
                    wanted.iter_mut().for_each(|column| *column = before[*column]);
                }
                let work = Work { schema: projection.schema(), wanted: Some(wanted), ..Work::clone(&self.work) };
                Some(Arc::new(WorkExec::over(Arc::clone(&self.input), Arc::new(work), self.by.clone())))
            }
            _ => None,
        })
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let rows = match self.per() {
            Per::Stream => self.stream(partition, &context)?,
            _ => self.parts(partition, context)?,
        };
        let counters = Arc::clone(self.pool().counters());
        counters.begin_stream();
        let end = stream::once(async move {
            counters.end_stream();
            None
        });
        let rows = rows.map(Some).chain(end).filter_map(std::future::ready);
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}
