//! Sorting in a plan: our external sort in place of DataFusion's, and of the merge of sorted partitions above it.
//!
//! ```text
//!  SortPreservingMergeExec                        SortExec, ours: all partitions are one sort,
//!   └ SortExec, a partition each      becomes      └ …            merged on all cores
//!      └ …
//! ```
//! A sort of which only the first rows are wanted stays DataFusion's while these are few: it holds no more than them.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{ArrayRef, RecordBatch};
use datafusion::common::Statistics;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr};
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
use futures::{StreamExt, TryStreamExt};
use millstream_core::Budget;
use millstream_sort::{Compression, Input, Keep, Key, KeyValues, Layout, Merge, Order, Plan, Resources, Slice, Sort};

use super::joins::size_of;
use super::node::over_one_input;
use super::sorted::OneOf;
use crate::fault;
use crate::read::exec::ReadExec;

/// The share of the budget that all sorts of a job hold together.
const SHARE: f64 = 0.6;

/// Of so many rows and fewer DataFusion keeps the first of them in memory.
const FEW: usize = 100_000;

/// What the sorts of a job may use.
#[derive(Debug, Clone)]
pub struct Sorting {
    budget: Arc<Budget>,
    /// The folder for what does not fit.
    scratch: PathBuf,
    /// How many slices are merged at once.
    workers: usize,
    /// Bytes of memory for all sorts together. The limit of the budget moves while the run goes on, and a plan does not.
    memory: u64,
    /// How many sorts there are. Each has an equal part of the memory.
    sorts: Arc<AtomicU64>,
}

impl Sorting {
    /// For the sorts of one job, none of which is planned yet.
    pub fn new(budget: Arc<Budget>, scratch: PathBuf, workers: usize) -> Self {
        let memory = (budget.limit() as f64 * SHARE) as u64;
        Sorting { budget, scratch, workers, memory, sorts: Arc::default() }
    }

    /// Bytes of memory for one sort, when all are planned.
    fn memory(&self) -> u64 {
        self.memory / self.sorts.load(Ordering::Relaxed).max(1)
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

fn is_large(fetch: Option<usize>) -> bool {
    fetch.is_none_or(|fetch| fetch > FEW)
}

fn replace(node: Arc<dyn ExecutionPlan>, sorting: &Sorting) -> DataFusionResult<Transformed<Arc<dyn ExecutionPlan>>> {
    if let Some(sort) = node.downcast_ref::<SortExec>()
        && is_large(sort.fetch())
    {
        let input = Arc::clone(sort.input());
        let apart = sort.preserve_partitioning() && input.output_partitioning().partition_count() > 1;
        let (order, properties) = (sort.expr().clone(), Arc::clone(sort.properties()));
        let shape = Shape { order, fetch: sort.fetch(), apart, one_of: None };
        let external = ExternalSort::new(shape, input, properties, sorting.clone())?;
        return Ok(Transformed::yes(Arc::new(external)));
    }
    // What was planned before the plan was optimised: with what is known of its input now.
    if let Some(sort) = node.downcast_ref::<ExternalSort>() {
        let (input, properties) = (Arc::clone(&sort.input), Arc::clone(&sort.properties));
        let external = ExternalSort::new(sort.shape.clone(), input, properties, sorting.clone())?;
        return Ok(Transformed::yes(Arc::new(external)));
    }
    if let Some(merge) = node.downcast_ref::<SortPreservingMergeExec>()
        && let Some(sort) = merge.input().downcast_ref::<ExternalSort>()
        && sort.shape.apart
        && sort.shape.order == *merge.expr()
    {
        let properties = Arc::clone(merge.properties());
        let fetch = merge.fetch().or(sort.shape.fetch);
        let shape = Shape { fetch, apart: false, ..sort.shape.clone() };
        let external = ExternalSort::new(shape, Arc::clone(&sort.input), properties, sorting.clone())?;
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
}

/// Rows in one order.
#[derive(Debug)]
pub struct ExternalSort {
    shape: Shape,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    sorting: Sorting,
    layout: Arc<Layout>,
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
    /// Rows that were dropped as equal to others. Not counted where nobody wanted all rows.
    dropped: AtomicU64,
}

impl ExternalSort {
    /// The rows of all partitions of `input` in `order`, of which only those stay that `one_of` says.
    pub fn over(
        order: LexOrdering,
        one_of: Option<OneOf>,
        input: Arc<dyn ExecutionPlan>,
        sorting: Sorting,
    ) -> DataFusionResult<Self> {
        let properties = Arc::clone(SortExec::new(order.clone(), Arc::clone(&input)).properties());
        ExternalSort::new(Shape { order, fetch: None, apart: false, one_of }, input, properties, sorting)
    }

    fn new(
        shape: Shape,
        input: Arc<dyn ExecutionPlan>,
        properties: Arc<PlanProperties>,
        sorting: Sorting,
    ) -> DataFusionResult<Self> {
        let schema = input.schema();
        let key = |key: &datafusion::physical_expr::PhysicalSortExpr| {
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
        let (rows, bytes) = size_of(&input)?;
        let size = (rows.map(|rows| rows as u64), bytes.map(|bytes| bytes as u64));
        let certain = gives_its_text(&input);
        let (metrics, done) = (ExecutionPlanMetricsSet::new(), Arc::default());
        Ok(ExternalSort { shape, input, properties, sorting, layout, size, certain, metrics, done })
    }

    /// How many sorts it is, and how many inputs each has: apart, each partition is one, with its part of everything.
    fn sorts_and_inputs(&self) -> (u64, u64) {
        let partitions = self.input.output_partitioning().partition_count() as u64;
        if self.shape.apart { (partitions.max(1), 1) } else { (1, partitions) }
    }

    /// How one of its sorts will go.
    fn plan(&self) -> Plan {
        let (sorts, inputs) = self.sorts_and_inputs();
        let share = |all: Option<u64>| all.map(|all| all / sorts);
        Plan::new(share(self.size.1), share(self.size.0), self.sorting.memory() / sorts, inputs)
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        ExternalSort {
            shape: self.shape.clone(),
            input,
            properties: Arc::clone(&self.properties),
            sorting: self.sorting.clone(),
            layout: Arc::clone(&self.layout),
            size: self.size,
            certain: self.certain,
            metrics: ExecutionPlanMetricsSet::new(),
            done: Arc::default(),
        }
    }

    /// What came of the plan, for people; nothing where all stayed in memory as planned and every row was kept.
    pub fn outcome(&self) -> Option<String> {
        let runs = self.done.runs.load(Ordering::Relaxed);
        let planned = self.plan().runs.filter(|_| self.certain).map(|runs| runs * self.sorts_and_inputs().0);
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
        match self.certain {
            true => write!(f, "{}", self.plan())?,
            false => write!(f, "{:#}", self.plan())?,
        }
        if let Some(OneOf { keys, keep }) = self.shape.one_of {
            let which = if keep == Keep::First { "first" } else { "last" };
            let equal: Vec<String> = self.shape.order.iter().take(keys).map(|key| key.expr.to_string()).collect();
            write!(f, ", keep={which} of equal [{}]", equal.join(", "))?;
        }
        if let Some(fetch) = self.shape.fetch {
            write!(f, ", fetch={fetch}")?;
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
            (fetch @ Some(_), _) => Ok(Arc::new(of_input.as_ref().clone().with_fetch(fetch, 0, 1)?)),
            (None, Some(_)) => Ok(Arc::new(of_input.as_ref().clone().to_inexact())),
            (None, None) => Ok(Arc::clone(of_input)),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let plan = self.plan();
        let resources = Resources {
            budget: Arc::clone(&self.sorting.budget),
            memory: plan.memory as usize,
            scratch: vec![self.sorting.scratch.clone()],
            compression: Compression::None,
            block: millstream_sort::block(plan.memory) as usize,
            workers: self.sorting.workers,
        };
        if self.certain {
            plan.check(&resources.scratch).map_err(fault::carry)?;
        }
        let inputs = match self.shape.apart {
            true => partition..partition + 1,
            false => 0..self.input.output_partitioning().partition_count(),
        };
        let keep = self.shape.one_of.map(|one_of| one_of.keep);
        let sort = Sort::new(Arc::clone(&self.layout), keep, &resources, inputs.len());
        let streams = inputs
            .map(|input| self.input.execute(input, Arc::clone(&context)))
            .collect::<DataFusionResult<Vec<_>>>()?;
        let computed: Vec<Arc<dyn PhysicalExpr>> = self
            .shape
            .order
            .iter()
            .filter(|key| key.expr.downcast_ref::<Column>().is_none())
            .map(|key| Arc::clone(&key.expr))
            .collect();
        let spilled = MetricBuilder::new(&self.metrics).spilled_bytes(partition);
        let busy = MetricBuilder::new(&self.metrics).elapsed_compute(partition);
        let done = Arc::clone(&self.done);
        let (fetch, workers) = (self.shape.fetch.unwrap_or(usize::MAX), resources.workers);
        let batches = async_stream::try_stream! {
            let fill = |stream| SpawnedTask::spawn(fill(stream, sort.input(), Arc::clone(sort.layout()), computed.clone(), busy.clone()));
            let filling: Vec<_> = streams.into_iter().map(fill).collect();
            let ended = filling.into_iter().map(async |task| task.join_unwind().await.map_err(broken)?);
            let finished = futures::future::try_join_all(ended).await?;
            let came: u64 = finished.iter().map(|finished| finished.rows()).sum();
            let merge = {
                let sort = Arc::clone(&sort);
                beside(move || sort.merge(finished)).await?
            };
            spilled.add(sort.usage().written as usize);
            done.runs.fetch_add(sort.usage().runs, Ordering::Relaxed);
            busy.add_duration(sort.usage().busy);
            let mut left = fetch;
            let mut slices = std::pin::pin!(slices(merge, workers, busy));
            while let Some(sorted) = slices.try_next().await? {
                for batch in sorted {
                    let batch = batch.slice(0, batch.num_rows().min(left));
                    left -= batch.num_rows();
                    yield batch;
                    if left == 0 {
                        return;
                    }
                }
            }
            done.dropped.fetch_add(came - (fetch - left) as u64, Ordering::Relaxed);
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), batches)))
    }
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

/// Sorts what comes out of `stream`.
async fn fill(
    mut stream: SendableRecordBatchStream,
    mut input: Input,
    layout: Arc<Layout>,
    computed: Vec<Arc<dyn PhysicalExpr>>,
    busy: Time,
) -> DataFusionResult<millstream_sort::Finished> {
    while let Some(batch) = stream.try_next().await? {
        let working = busy.timer();
        let values = computed.iter().map(|key| key.evaluate(&batch)?.into_array(batch.num_rows()));
        let values = values.collect::<DataFusionResult<Vec<ArrayRef>>>()?;
        let prepared = layout.prepare(&batch, &values).map_err(fault::carry)?;
        drop((batch, working));
        input.push(&prepared).await.map_err(fault::carry)?;
    }
    input.finish().await.map_err(fault::carry)
}

/// What `work`, which may wait for the disk, gives.
async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> millstream_core::Result<T> + Send + 'static,
) -> DataFusionResult<T> {
    SpawnedTask::spawn_blocking(work).join_unwind().await.map_err(broken)?.map_err(fault::carry)
}

/// The merged slices of `merge` in order; `workers` are merged at once, beside whoever takes them.
fn slices(merge: Merge, workers: usize, busy: Time) -> impl futures::Stream<Item = DataFusionResult<Vec<RecordBatch>>> {
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
        let mut merged = std::pin::pin!(merged.buffered(workers.max(1)));
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
