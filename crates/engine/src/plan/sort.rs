//! Sorting in a plan: our external sort in place of DataFusion's, and of the merge of sorted partitions above it.
//!
//! ```text
//!  SortPreservingMergeExec                        SortExec, ours: all partitions are one sort,
//!   └ SortExec, a partition each      becomes      └ …            merged on all cores
//!      └ …
//! ```
//! A sort of which only the first rows are wanted stays DataFusion's while these are few: it holds no more than them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use arrow::row::{OwnedRow, RowConverter, SortField};
use datafusion::common::Statistics;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet, Time};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::stream::{BoxStream, FuturesUnordered};
use futures::{Stream, StreamExt, TryStreamExt};
use millstream_core::spec::Size;
use millstream_core::{Budget, Error, ErrorKind, Step};
use millstream_sort::{
    Compression, Finished, Input, Keep, Key, KeyValues, Layout, Merge, Merged, Order, Plan, Resources, Slice, Sort,
};

use super::buffer::buffered;
use super::joins::size_of;
use super::sorted::OneOf;
use crate::fault;
use crate::node::over_one_input;
use crate::read::exec::ReadExec;
use crate::scratch::Scratch;

/// The share of the budget that all sorts of a job hold together.
const SHARE: f64 = 0.6;

/// Bytes that each sort but the first takes beside what it reserves, with what takes its rows: batches on their way, an
/// encoder, the buffers of a file. Ten sorts of one file into ten files took 22 MB more than one sort.
const BESIDE: u64 = 2 << 20;

/// The least memory of one sort, in bytes.
const LEAST: u64 = 1 << 20;

/// Groups are sorted together until they have so many bytes, or a quarter of the memory.
const GROUPS: usize = 8 << 20;

/// Of so many rows and fewer DataFusion keeps the first of them in memory: it cannot do with less, however long they
/// are.
const FEW: usize = 1_000;

/// The part of what is to be written that scratch must have room for, before anything is read: of what is written as it
/// is, and of what is packed. Sizes are estimates.
const ROOM: (f64, f64) = (0.5, 0.1);

/// What the sorts of a job may use.
#[derive(Debug, Clone)]
pub struct Sorting {
    budget: Arc<Budget>,
    /// For what does not fit.
    scratch: Arc<Scratch>,
    /// How many slices are merged at once.
    workers: usize,
    /// Bytes of memory for all sorts together. The limit of the budget moves while the run goes on, and a plan does
    /// not.
    memory: u64,
    /// How many sorts there are. Each has an equal part of the memory.
    sorts: Arc<AtomicU64>,
}

impl Sorting {
    /// For the sorts of one job, none of which is planned yet.
    pub fn new(budget: Arc<Budget>, scratch: Arc<Scratch>, workers: usize) -> Self {
        let memory = (budget.limit() as f64 * SHARE) as u64;
        Sorting { budget, scratch, workers, memory, sorts: Arc::default() }
    }

    /// Bytes of memory for one sort, when all are planned.
    fn memory(&self) -> u64 {
        let sorts = self.sorts.load(Ordering::Relaxed).max(1);
        (self.memory.saturating_sub((sorts - 1) * BESIDE) / sorts).max(LEAST)
    }

    /// Fails if the sorts of the job, when all are planned, are too many for the memory.
    pub fn check(&self) -> DataFusionResult<()> {
        let sorts = self.sorts.load(Ordering::Relaxed);
        let needed = sorts * LEAST + sorts.saturating_sub(1) * BESIDE;
        if sorts <= 1 || needed <= self.memory {
            return Ok(());
        }
        let what = format!("{sorts} sorts need {} of memory, and {} is left for them", Size(needed), Size(self.memory));
        let error = Error::refused(what).hint("raise `--memory`, or divide the job into several");
        Err(fault::carry(error))
    }
}

/// `plan` with sorts that stay within the budget.
pub fn external(plan: Arc<dyn ExecutionPlan>, sorting: &Sorting) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    let plan = plan.transform_up(|node| replace(node, sorting))?.data;
    plan.apply(|node| {
        sorting.sorts.fetch_add(u64::from(node.downcast_ref::<ExternalSort>().is_some()), Ordering::Relaxed);
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(plan)
}

/// Whether DataFusion's own sort cannot be left what it is.
fn is_ours(fetch: Option<usize>) -> bool {
    fetch.is_none_or(|fetch| fetch == 0 || fetch > FEW)
}

fn replace(node: Arc<dyn ExecutionPlan>, sorting: &Sorting) -> DataFusionResult<Transformed<Arc<dyn ExecutionPlan>>> {
    if let Some(sort) = node.downcast_ref::<SortExec>()
        && is_ours(sort.fetch())
    {
        let input = Arc::clone(sort.input());
        let apart = sort.preserve_partitioning() && input.output_partitioning().partition_count() > 1;
        let shape = Shape { order: sort.expr().clone(), fetch: sort.fetch(), apart, one_of: None, pool: None };
        let external = ExternalSort::new(shape, input, sorting.clone())?;
        return Ok(Transformed::yes(Arc::new(external)));
    }
    // What was planned before the plan was optimised: with what is known of its input now.
    if let Some(sort) = node.downcast_ref::<ExternalSort>() {
        let external = ExternalSort::new(sort.shape.clone(), Arc::clone(&sort.input), sorting.clone())?;
        return Ok(Transformed::yes(Arc::new(external)));
    }
    if let Some(merge) = node.downcast_ref::<SortPreservingMergeExec>()
        && let Some(sort) = merge.input().downcast_ref::<ExternalSort>()
        && sort.shape.apart
        && sort.shape.order == *merge.expr()
    {
        let fetch = merge.fetch().or(sort.shape.fetch);
        let shape = Shape { fetch, apart: false, ..sort.shape.clone() };
        let external = ExternalSort::new(shape, Arc::clone(&sort.input), sorting.clone())?;
        return Ok(Transformed::yes(Arc::new(external)));
    }
    Ok(Transformed::no(node))
}

/// What a sort gives.
#[derive(Debug, Clone)]
struct Shape {
    order: LexOrdering,
    /// No more rows than these.
    fetch: Option<usize>,
    /// Whether each partition is in an order of its own.
    apart: bool,
    /// Of which rows only one stays.
    one_of: Option<OneOf>,
    /// The scratch disks that it uses.
    pool: Option<String>,
}

impl Shape {
    /// What is known of the rows of `input` when they are sorted. What is the same in all rows of each partition need
    /// not be so in all of them.
    fn properties(&self, input: &Arc<dyn ExecutionPlan>) -> Arc<PlanProperties> {
        let input = match self.apart || input.output_partitioning().partition_count() == 1 {
            true => Arc::clone(input),
            false => Arc::new(CoalescePartitionsExec::new(Arc::clone(input))),
        };
        let sort = SortExec::new(self.order.clone(), input).with_preserve_partitioning(self.apart);
        Arc::clone(sort.with_fetch(self.fetch).properties())
    }

    /// By how many of the first keys the rows of `input` are in order already. Rows of which only one stays must not be
    /// told apart by them.
    fn sorted_keys(&self, input: &Arc<dyn ExecutionPlan>) -> usize {
        if !self.apart && input.output_partitioning().partition_count() > 1 {
            return 0;
        }
        let most = self.one_of.map_or(self.order.len(), |one_of| one_of.keys);
        let known = input.equivalence_properties();
        let is_sorted = |keys: &usize| known.ordering_satisfy(self.order[..*keys].iter().cloned()).unwrap_or(false);
        (1..=most).rev().find(is_sorted).unwrap_or(0)
    }
}

/// Rows in one order.
#[derive(Debug)]
pub struct ExternalSort {
    shape: Shape,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    sorting: Sorting,
    layout: Arc<Layout>,
    /// By so many of the first keys the rows come in order already.
    sorted: usize,
    /// Rows and bytes that come in, as far as known, and whether hardly fewer can come.
    size: (Option<u64>, Option<u64>),
    certain: bool,
    metrics: ExecutionPlanMetricsSet,
    /// What all partitions together have done.
    done: Arc<Done>,
}

/// What a sort has done.
#[derive(Debug, Default)]
struct Done {
    /// Runs that were written.
    runs: AtomicU64,
    /// Bytes written to scratch once, and again since there were too many runs to be merged.
    written: AtomicU64,
    written_again: AtomicU64,
    /// Nanoseconds that tasks waited for their input, and for scratch.
    waiting_input: AtomicU64,
    waiting_scratch: AtomicU64,
    /// Rows that were dropped as equal to others. Not counted where nobody wanted all rows.
    dropped: AtomicU64,
}

impl ExternalSort {
    /// Whether only one row stays of those that are equal.
    pub fn keeps_one_of_equal(&self) -> bool {
        self.shape.one_of.is_some()
    }

    /// The rows of all partitions of `input` in `order`, of which only those stay that `one_of` says. What does not fit
    /// in memory goes to the disks of `pool`.
    pub fn over(
        order: LexOrdering,
        one_of: Option<OneOf>,
        pool: Option<String>,
        input: Arc<dyn ExecutionPlan>,
        sorting: Sorting,
    ) -> DataFusionResult<Self> {
        ExternalSort::new(Shape { order, fetch: None, apart: false, one_of, pool }, input, sorting)
    }

    fn new(shape: Shape, input: Arc<dyn ExecutionPlan>, sorting: Sorting) -> DataFusionResult<Self> {
        let schema = input.schema();
        let key = |key: &PhysicalSortExpr| {
            let values = match key.expr.downcast_ref::<Column>() {
                Some(column) => KeyValues::Column(column.index()),
                None => KeyValues::Computed {
                    data_type: key.expr.data_type(&schema)?,
                    nullable: key.expr.nullable(&schema)?,
                },
            };
            let order = Order { descending: key.options.descending, nulls_first: key.options.nulls_first };
            Ok(Key { values, order })
        };
        let keys = shape.order.iter().map(key).collect::<DataFusionResult<Vec<_>>>()?;
        let same = shape.one_of.map_or(keys.len(), |one_of| one_of.keys);
        let layout = Arc::new(Layout::with_same(&schema, &keys, same).map_err(fault::carry)?);
        let (rows, bytes) = if is_listed(&input)? { size_of(&input)? } else { (None, None) };
        let size = (rows.map(|rows| rows as u64), bytes.map(|bytes| bytes as u64));
        let certain = gives_its_text(&input);
        let properties = shape.properties(&input);
        let sorted = shape.sorted_keys(&input);
        let (metrics, done) = (ExecutionPlanMetricsSet::new(), Arc::default());
        Ok(ExternalSort { shape, input, properties, sorting, layout, sorted, size, certain, metrics, done })
    }

    /// How many sorts it is, and how many inputs each has: apart, each partition is one, with its part of everything.
    fn sorts_and_inputs(&self) -> (u64, u64) {
        let partitions = self.input.output_partitioning().partition_count() as u64;
        if self.shape.apart { (partitions.max(1), 1) } else { (1, partitions) }
    }

    /// How one of its sorts will go.
    fn plan(&self) -> Plan {
        let (sorts, inputs) = self.sorts_and_inputs();
        let memory = self.sorting.memory() / sorts;
        let (rows, bytes) = self.held_of_each();
        let disks = self.sorting.scratch.folders(self.shape.pool.as_deref()).len() as u64;
        Plan::new(bytes, rows, memory, (inputs, disks), self.sorting.scratch.block())
    }

    /// Rows and bytes that one of its sorts cannot drop as they come, as far as known: of each input no more than are
    /// wanted.
    fn held_of_each(&self) -> (Option<u64>, Option<u64>) {
        let (sorts, inputs) = self.sorts_and_inputs();
        let (rows, bytes) = (self.size.0.map(|rows| rows / sorts), self.size.1.map(|bytes| bytes / sorts));
        let wanted = self.shape.fetch.map(|fetch| (fetch as u64).saturating_mul(inputs));
        match (wanted, rows, bytes) {
            (Some(wanted), Some(rows), Some(bytes)) if wanted < rows => {
                let share = wanted as f64 / rows as f64;
                (Some(wanted), Some((bytes as f64 * share) as u64))
            }
            _ => (rows, bytes),
        }
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        ExternalSort {
            shape: self.shape.clone(),
            properties: self.shape.properties(&input),
            input,
            sorting: self.sorting.clone(),
            layout: Arc::clone(&self.layout),
            sorted: self.sorted,
            size: self.size,
            certain: self.certain,
            metrics: ExecutionPlanMetricsSet::new(),
            done: Arc::default(),
        }
    }

    /// Whether hardly less is written than comes in, where that does not fit in memory.
    fn writes_all(&self) -> bool {
        self.certain && self.sorted == 0 && self.shape.one_of.is_none()
    }

    /// Tells `step` what all partitions have done: a sort works in tasks of its own, which nobody polls.
    pub fn settle(&self, step: &Step) {
        let counted = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let scratch = Duration::from_nanos(counted(&self.done.waiting_scratch));
        let busy = self.metrics.clone_inner().elapsed_compute().unwrap_or(0);
        step.add_busy(Duration::from_nanos(busy as u64));
        step.add_waiting_input(Duration::from_nanos(counted(&self.done.waiting_input)));
        step.add_waiting_scratch(scratch);
        step.add_spilled_as_planned(counted(&self.done.written));
        step.add_spilled(counted(&self.done.written_again));
        if let Some(outcome) = self.outcome() {
            step.add_detail(&outcome);
        }
    }

    /// What came of the plan, for people; nothing where all stayed in memory as planned and every row was kept.
    fn outcome(&self) -> Option<String> {
        let runs = self.done.runs.load(Ordering::Relaxed);
        let planned = self.plan().runs.filter(|_| self.writes_all()).map(|runs| runs * self.sorts_and_inputs().0);
        let runs = match planned {
            Some(planned) if runs + planned > 0 => Some(format!("{runs} runs, {planned} planned")),
            None if runs > 0 => Some(format!("{runs} runs")),
            _ => None,
        };
        let dropped = self.done.dropped.load(Ordering::Relaxed);
        let dropped = (dropped > 0).then(|| format!("{dropped} duplicates dropped"));
        let parts: Vec<String> = runs.into_iter().chain(dropped).collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

impl DisplayAs for ExternalSort {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SortExec: expr=[{}], ", self.shape.order)?;
        let keys = |count: usize| {
            let keys: Vec<String> = self.shape.order.iter().take(count).map(|key| key.expr.to_string()).collect();
            keys.join(", ")
        };
        match (self.sorted, self.certain) {
            (0, true) => write!(f, "{}", self.plan())?,
            (0, false) => write!(f, "{:#}", self.plan())?,
            (sorted, _) => write!(f, "memory={}, within groups of equal [{}]", Size(self.plan().memory), keys(sorted))?,
        }
        if let Some(one_of) = self.shape.one_of {
            let which = if one_of.keep == Keep::First { "first" } else { "last" };
            write!(f, ", keep={which} of equal [{}]", keys(one_of.keys))?;
        }
        if let Some(fetch) = self.shape.fetch {
            write!(f, ", fetch={fetch}")?;
        }
        if let Some(pool) = &self.shape.pool {
            write!(f, ", pool={pool}")?;
        }
        if self.shape.apart {
            f.write_str(", preserve_partitioning")?;
        }
        Ok(())
    }
}

impl ExecutionPlan for ExternalSort {
    over_one_input!("SortExec");

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn fetch(&self) -> Option<usize> {
        self.shape.fetch
    }

    fn with_fetch(&self, fetch: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        let mut limited = self.with_input(Arc::clone(&self.input));
        limited.shape.fetch = fetch;
        Some(Arc::new(limited))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition.filter(|_| self.shape.apart))]
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        _: &StatisticsArgs,
    ) -> DataFusionResult<Arc<Statistics>> {
        let Some(of_input) = inputs.first() else { return Ok(Arc::new(Statistics::new_unknown(&self.schema()))) };
        match (self.shape.fetch, self.shape.one_of) {
            (fetch @ Some(_), None) => Ok(Arc::new(of_input.as_ref().clone().with_fetch(fetch, 0, 1)?)),
            (_, Some(_)) => Ok(Arc::new(of_input.as_ref().clone().to_inexact())),
            (None, None) => Ok(Arc::clone(of_input)),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let plan = self.plan();
        let resources = Resources {
            budget: Arc::clone(&self.sorting.budget),
            memory: plan.memory as usize,
            scratch: self.sorting.scratch.folders(self.shape.pool.as_deref()),
            compression: self.sorting.scratch.compression(),
            piece: plan.piece as usize,
            block: plan.block as usize,
            extent: self.sorting.scratch.block().map(|block| block as usize),
            workers: self.sorting.workers,
        };
        if self.writes_all() {
            let part = if resources.compression == Compression::None { ROOM.0 } else { ROOM.1 };
            plan.check(&resources.scratch, part).map_err(fault::carry)?;
        }
        let inputs = match self.shape.apart {
            true => partition..partition + 1,
            false => 0..self.input.output_partitioning().partition_count(),
        };
        let stream = |input| {
            let stream = self.input.execute(input, Arc::clone(&context))?;
            let buffer = plan.piece as usize;
            Ok(match self.sorting.scratch.buffer() {
                true => buffered(stream, buffer, Arc::clone(&self.sorting.budget)),
                false => stream,
            })
        };
        let streams = inputs.map(stream).collect::<DataFusionResult<Vec<_>>>()?;
        let is_computed = |key: &&PhysicalSortExpr| key.expr.downcast_ref::<Column>().is_none();
        let work = Work {
            layout: Arc::clone(&self.layout),
            keep: self.shape.one_of.map(|one_of| one_of.keep),
            first: self.shape.fetch,
            resources,
            computed: self.shape.order.iter().filter(is_computed).map(|key| Arc::clone(&key.expr)).collect(),
            busy: MetricBuilder::new(&self.metrics).elapsed_compute(partition),
            done: Arc::clone(&self.done),
        };
        let groups = match self.sorted {
            0 => None,
            keys => Some(Groups::new(&self.shape.order[..keys], &self.schema())?),
        };
        let sorted = match groups {
            Some(groups) => futures::stream::iter(streams)
                .flat_map(move |stream| work.clone().in_groups(stream, groups.clone()))
                .boxed(),
            None => work.all(streams).boxed(),
        };
        let sorted = first_rows(sorted, self.shape.fetch.unwrap_or(usize::MAX));
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), sorted)))
    }
}

/// Whether the sizes of all that the sources of `plan` have are known, not only of the first of them.
fn is_listed(plan: &Arc<dyn ExecutionPlan>) -> DataFusionResult<bool> {
    let mut is_listed = true;
    plan.apply(|node| {
        is_listed &= node.downcast_ref::<ReadExec>().is_none_or(ReadExec::is_listed);
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(is_listed)
}

/// Whether hardly less comes out of `plan` than its sources have: then the size that is known of it is one to rely on.
fn gives_its_text(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if let Some(read) = plan.downcast_ref::<ReadExec>() {
        return read.gives_its_text();
    }
    let keeps_all = plan.is::<CoalescePartitionsExec>()
        || plan.is::<RepartitionExec>()
        || plan.is::<CooperativeExec>()
        || plan.is::<UnionExec>();
    keeps_all && plan.children().into_iter().all(gives_its_text)
}

fn broken(cause: impl fmt::Display) -> DataFusionError {
    DataFusionError::Internal(format!("a task of a sort failed: {cause}"))
}

/// What all inputs have brought, in their order, or why the first has failed: then the others end. One that was told to
/// end by another that has failed is not the reason.
async fn all_of(filling: Vec<SpawnedTask<DataFusionResult<Finished>>>) -> DataFusionResult<Vec<Finished>> {
    let numbered = filling.into_iter().enumerate();
    let mut ending: FuturesUnordered<_> = numbered
        .map(|(number, task)| async move { (number, task.join_unwind().await.map_err(broken).flatten()) })
        .collect();
    let (mut finished, mut interrupted) = (Vec::new(), None);
    while let Some((number, ended)) = ending.next().await {
        match ended {
            Ok(one) => finished.push((number, one)),
            Err(error) if fault::ours(&error).is_some_and(|error| error.kind() == ErrorKind::Interrupted) => {
                interrupted = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
    finished.sort_unstable_by_key(|(number, _)| *number);
    interrupted.map_or_else(|| Ok(finished.into_iter().map(|(_, one)| one).collect()), Err)
}

/// The first rows of `sorted`, as many as are wanted.
fn first_rows(mut sorted: BoxStream<'static, Sorted>, wanted: usize) -> impl Stream<Item = Sorted> {
    async_stream::try_stream! {
        let mut left = wanted;
        while left > 0 {
            let Some(batch) = sorted.try_next().await? else { break };
            let batch = batch.slice(0, batch.num_rows().min(left));
            left -= batch.num_rows();
            yield batch;
        }
    }
}

type Sorted = DataFusionResult<RecordBatch>;

/// What the sorts of a partition have in common.
#[derive(Clone)]
struct Work {
    layout: Arc<Layout>,
    keep: Option<Keep>,
    /// How many rows are wanted.
    first: Option<usize>,
    resources: Resources,
    /// The keys that are no columns.
    computed: Vec<Arc<dyn PhysicalExpr>>,
    busy: Time,
    done: Arc<Done>,
}

impl Work {
    fn sort(&self, inputs: usize) -> Arc<Sort> {
        Sort::new(Arc::clone(&self.layout), self.keep, self.first, &self.resources, inputs)
    }

    /// The rows of all `streams` in one order.
    fn all(self, streams: Vec<SendableRecordBatchStream>) -> impl Stream<Item = Sorted> {
        async_stream::try_stream! {
            let sort = self.sort(streams.len());
            let fill = |stream| SpawnedTask::spawn(self.clone().fill(stream, sort.input()));
            let filling: Vec<_> = streams.into_iter().map(fill).collect();
            let finished = all_of(filling).await?;
            let mut sorted = std::pin::pin!(self.merged(sort, finished));
            while let Some(batch) = sorted.try_next().await? {
                yield batch;
            }
        }
    }

    /// The rows of `stream`, which come in `groups` that follow each other in order, in order within these. Several
    /// small groups are sorted together.
    fn in_groups(self, mut stream: SendableRecordBatchStream, mut groups: Groups) -> impl Stream<Item = Sorted> {
        async_stream::try_stream! {
            let enough = GROUPS.min(self.resources.memory / 4);
            let mut sort = self.sort(1);
            let mut input = sort.input();
            while let Some(mut batch) = self.next(&mut stream).await? {
                let begin = groups.last_begin(&batch)?;
                if let Some(row) = begin.filter(|_| input.bytes() >= enough) {
                    self.push(batch.slice(0, row), &mut input).await?;
                    batch = batch.slice(row, batch.num_rows() - row);
                    let next = self.sort(1);
                    let full = std::mem::replace(&mut input, next.input());
                    let sort = std::mem::replace(&mut sort, next);
                    let finished = full.finish().await.map_err(fault::carry)?;
                    let mut sorted = std::pin::pin!(self.merged(sort, vec![finished]));
                    while let Some(batch) = sorted.try_next().await? {
                        yield batch;
                    }
                }
                self.push(batch, &mut input).await?;
            }
            let finished = input.finish().await.map_err(fault::carry)?;
            let mut sorted = std::pin::pin!(self.merged(sort, vec![finished]));
            while let Some(batch) = sorted.try_next().await? {
                yield batch;
            }
        }
    }

    /// Sorts what comes out of `stream`.
    async fn fill(self, mut stream: SendableRecordBatchStream, mut input: Input) -> DataFusionResult<Finished> {
        while let Some(batch) = self.next(&mut stream).await? {
            self.push(batch, &mut input).await?;
        }
        input.finish().await.map_err(fault::carry)
    }

    /// What `stream` gives next. What it takes until there is something is counted as waiting, without its own work.
    async fn next(&self, stream: &mut SendableRecordBatchStream) -> DataFusionResult<Option<RecordBatch>> {
        let mut idle: Option<Instant> = None;
        let next = futures::future::poll_fn(|context| {
            let waited = idle.take().map_or(Duration::ZERO, |since| since.elapsed());
            self.done.waiting_input.fetch_add(waited.as_nanos() as u64, Ordering::Relaxed);
            let polled = stream.poll_next_unpin(context);
            idle = polled.is_pending().then(Instant::now);
            polled
        });
        next.await.transpose()
    }

    async fn push(&self, batch: RecordBatch, input: &mut Input) -> DataFusionResult<()> {
        let working = self.busy.timer();
        let values = self.computed.iter().map(|key| key.evaluate(&batch)?.into_array(batch.num_rows()));
        let values = values.collect::<DataFusionResult<Vec<ArrayRef>>>()?;
        let prepared = self.layout.prepare(&batch, &values).map_err(fault::carry)?;
        drop((batch, working));
        input.push(&prepared).await.map_err(fault::carry)
    }

    /// The rows of all that is `finished`, merged.
    fn merged(&self, sort: Arc<Sort>, finished: Vec<Finished>) -> impl Stream<Item = Sorted> + use<> {
        let Work { resources, busy, done, .. } = self.clone();
        async_stream::try_stream! {
            let mut dropped: u64 = finished.iter().map(Finished::rows).sum();
            let filled = sort.usage();
            busy.add_duration(filled.busy.saturating_sub(filled.waited));
            let merge = {
                let sort = Arc::clone(&sort);
                beside(move || sort.merge(finished)).await?
            };
            let usage = sort.usage();
            done.runs.fetch_add(usage.runs, Ordering::Relaxed);
            done.written.fetch_add(usage.written - usage.merged_again, Ordering::Relaxed);
            done.written_again.fetch_add(usage.merged_again, Ordering::Relaxed);
            let mut slices = std::pin::pin!(slices(merge, resources.workers, busy));
            while let Some(sorted) = slices.try_next().await? {
                for batch in sorted {
                    dropped -= batch.num_rows() as u64;
                    yield batch;
                }
            }
            done.dropped.fetch_add(dropped, Ordering::Relaxed);
            let waited = sort.usage().waited.as_nanos() as u64;
            done.waiting_scratch.fetch_add(waited, Ordering::Relaxed);
        }
    }
}

/// Where groups of rows begin: rows with the same values of the keys by which the input is sorted already.
#[derive(Debug, Clone)]
struct Groups {
    keys: Vec<Arc<dyn PhysicalExpr>>,
    converter: Arc<RowConverter>,
    /// The last row so far.
    last: Option<OwnedRow>,
}

impl Groups {
    fn new(keys: &[PhysicalSortExpr], schema: &SchemaRef) -> DataFusionResult<Self> {
        let field = |key: &PhysicalSortExpr| Ok(SortField::new(key.expr.data_type(schema)?));
        let fields = keys.iter().map(field).collect::<DataFusionResult<Vec<_>>>()?;
        let keys = keys.iter().map(|key| Arc::clone(&key.expr)).collect();
        Ok(Groups { keys, converter: Arc::new(RowConverter::new(fields)?), last: None })
    }

    /// The first row of the last group that begins in `batch`, which follows those that were asked for before.
    fn last_begin(&mut self, batch: &RecordBatch) -> DataFusionResult<Option<usize>> {
        let columns = self.keys.iter().map(|key| key.evaluate(batch)?.into_array(batch.num_rows()));
        let rows = self.converter.convert_columns(&columns.collect::<DataFusionResult<Vec<_>>>()?)?;
        let before = self.last.take();
        let begins = |row: &usize| match row.checked_sub(1) {
            Some(other) => rows.row(*row) != rows.row(other),
            None => before.as_ref().is_some_and(|before| before.row() != rows.row(*row)),
        };
        let begin = (0..rows.num_rows()).rev().find(begins);
        self.last = rows.num_rows().checked_sub(1).map(|last| rows.row(last).owned());
        Ok(begin)
    }
}

/// What `work`, which may wait for the disk, gives.
async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> millstream_core::Result<T> + Send + 'static,
) -> DataFusionResult<T> {
    SpawnedTask::spawn_blocking(work).join_unwind().await.map_err(broken)?.map_err(fault::carry)
}

/// The merged slices of `merge` in order. As many are merged at once as there are `workers`, beside whoever takes them;
/// one more waits, so that nobody waits for it to be cut.
fn slices(merge: Merge, workers: usize, busy: Time) -> impl Stream<Item = DataFusionResult<Merged>> {
    let cut = futures::stream::try_unfold(merge, async |mut merge| {
        let (slice, merge) = beside(move || Ok((merge.next_slice()?, merge))).await?;
        Ok(slice.map(|slice| (slice, merge)))
    });
    let merged = cut.map(move |slice: DataFusionResult<Slice>| {
        let busy = busy.clone();
        async move {
            let slice = slice?;
            let merging = SpawnedTask::spawn(async move {
                let _working = busy.timer();
                slice.merge()
            });
            merging.join_unwind().await.map_err(broken)?.map_err(fault::carry)
        }
    });
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    let sending = SpawnedTask::spawn(async move {
        let mut merged = std::pin::pin!(merged.buffered(workers.max(1) + 1));
        while let Some(slice) = merged.next().await {
            if sender.send(slice).await.is_err() {
                return;
            }
        }
    });
    futures::stream::try_unfold((receiver, sending), async |(mut receiver, sending)| {
        if let Some(slice) = receiver.recv().await {
            return slice.map(|slice| Some((slice, (receiver, sending))));
        }
        // It has ended, and not broken off.
        sending.join_unwind().await.map(|()| None).map_err(broken)
    })
}
