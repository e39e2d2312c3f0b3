//! The plan node that reads: units come in as rows, batches go out.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use arrow::compute::BatchCoalescer;
use datafusion::common::Statistics;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, ReplaceChildrenOptions};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties,
};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use millstream_core::format::{BATCH_BYTES, StreamFormat};
use millstream_core::{Reservation, Result, Unit};

use super::Reader;
use super::concurrency::ConcurrencyLimit;
use super::helpers::ReadHelpers;
use super::messages::ReadMessages;
use super::opening::{Order, opened};
use super::order::{OrderCheck, SortedBy};
use super::queue::{UnitsExec, from_batch};
use super::rows::{self, Piece, RowsRequest};
use super::unit::{OpenUnit, UnitBytes};
use crate::fault;
use crate::node::EachRound;
use crate::read::cutter::Cutter;

/// Pieces of units, each with the unit's URI.
pub type UnitPieces = BoxStream<'static, Result<(Arc<str>, Piece)>>;

/// Reads the units that its input hands it.
#[derive(Debug)]
pub struct ReadExec {
    reader: Arc<Reader>,
    request: Arc<RowsRequest>,
    statistics: Statistics,
    is_listed: bool,
    units: Arc<dyn ExecutionPlan>,
    /// One for each time that all is executed: its tasks hand each other parts of what they read.
    pools: EachRound<Arc<ReadHelpers>>,
    properties: Arc<PlanProperties>,
}

impl ReadExec {
    /// Reads what `units` hands out, with as many partitions as `units` has. `statistics` estimates the rows: of all
    /// units if `is_listed`, else of the first.
    pub fn new(
        reader: Arc<Reader>,
        request: Arc<RowsRequest>,
        statistics: Statistics,
        is_listed: bool,
        units: Arc<dyn ExecutionPlan>,
    ) -> Self {
        let properties = PlanProperties::new(
            order_of(&request),
            Partitioning::UnknownPartitioning(units.output_partitioning().partition_count()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        let pools = EachRound::new(units.output_partitioning().partition_count());
        ReadExec { reader, request, statistics, is_listed, units, pools, properties: Arc::new(properties) }
    }

    /// What the rows are held against, from the first on.
    fn order_check(&self) -> DataFusionResult<Option<Arc<OrderCheck>>> {
        let RowsRequest { sorted, read_schema, .. } = self.request.as_ref();
        let check = (!sorted.is_empty()).then(|| OrderCheck::new(read_schema, sorted)).transpose();
        check.map(|check| check.map(Arc::new)).map_err(|error| fault::carry(error.in_step(&self.reader.name)))
    }

    /// Whether what comes out is about as large as the text of the source: nothing is left out, and a value takes no
    /// less than its text.
    pub fn gives_its_text(&self) -> bool {
        let format = self.reader.stream_format();
        self.request.whole && format.is_some_and(StreamFormat::rows_are_as_large_as_text)
    }

    /// Whether `statistics` tells of all units, and not only of the first.
    pub fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// The source's name in the job.
    pub fn source(&self) -> &str {
        &self.reader.name
    }

    /// What it reads with.
    pub fn reader(&self) -> &Arc<Reader> {
        &self.reader
    }

    /// What `partition` reads of the units that `wanted` lets through, with the place of every row, and the unit's URI.
    /// Rows come as the parser gives them, however few they are, with their raw records if `raw`.
    pub fn pieces(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
        raw: bool,
        wanted: impl Fn(&Unit) -> Result<bool> + Send + 'static,
    ) -> DataFusionResult<UnitPieces> {
        let units = self.units.execute(partition, context)?;
        let units = units.map_err(fault::unwrap);
        let units = units.map_ok(|batch| stream::iter(from_batch(&batch).into_iter().map(Ok))).try_flatten();
        let units =
            units.try_filter_map(move |unit| std::future::ready(wanted(&unit).map(|wanted| wanted.then_some(unit))));
        self.pieces_of(units.boxed(), self.pool(partition)?, self.partitions(), raw)
    }

    /// What one task reads of `unit` alone, as [`ReadExec::pieces`] gives it.
    pub fn pieces_of_unit(&self, unit: Unit, raw: bool) -> DataFusionResult<UnitPieces> {
        let pool = ReadHelpers::new(self.reader.context.io.clone());
        self.pieces_of(stream::iter([Ok(unit)]).boxed(), pool, 1, raw)
    }

    /// What one task reads of the text of `messages`, as [`ReadExec::pieces`] gives it.
    pub fn pieces_of_messages(&self, messages: Arc<ReadMessages>, raw: bool) -> UnitPieces {
        self.prepare_rejects(raw);
        let reader = Arc::clone(&self.reader);
        let request = RowsRequest { messages: Some(Arc::clone(&messages)), ..self.request.with_origins(raw) };
        let uri: Arc<str> = messages.queue.shown().into();
        let member = Arc::new(ReadHelpers::new(reader.context.io.clone()).join());
        // The consumer has charged the text to the budget.
        let held = Reservation::of_taken(&reader.context.budget, 0);
        let text = messages.text();
        let unit = Unit { size: Some(text.len() as u64), ..Unit::new(uri.as_ref()) };
        let limit = Arc::new(ConcurrencyLimit::new(1));
        let open = OpenUnit { unit, bytes: UnitBytes::Whole(text, held), limit };
        let pieces = rows::pieces(reader, Arc::new(request), open, member, None).map_err(fault::unwrap);
        pieces.map_ok(move |piece| (Arc::clone(&uri), piece)).boxed()
    }

    fn pieces_of(
        &self,
        units: BoxStream<'static, Result<Unit>>,
        pool: Arc<ReadHelpers>,
        partitions: usize,
        raw: bool,
    ) -> DataFusionResult<UnitPieces> {
        self.prepare_rejects(raw);
        let (reader, request) = (Arc::clone(&self.reader), Arc::new(self.request.with_origins(raw)));
        let (check, order) = (self.order_check()?, self.order());
        let pieces = async_stream::try_stream! {
            let opened = opened(Arc::clone(&reader), units, partitions, &pool, order);
            let opened = opened.map_err(|error| error.in_step(&reader.name));
            tokio::pin!(opened);
            loop {
                let member = Arc::new(pool.join());
                let _helpers = helpers(&pool, request.helpers);
                while let Some(open) = opened.try_next().await? {
                    let uri: Arc<str> = open.unit.uri.as_str().into();
                    let (worker, check) = (Arc::clone(&member), check.clone());
                    let pieces = rows::pieces(Arc::clone(&reader), Arc::clone(&request), open, worker, check);
                    tokio::pin!(pieces);
                    while let Some(piece) = pieces.try_next().await.map_err(fault::unwrap)? {
                        let handed_over = Instant::now();
                        yield (Arc::clone(&uri), piece);
                        reader.steps.parse.add_waiting_output(handed_over.elapsed());
                    }
                }
                drop(member);
                if !pool.help().await {
                    break;
                }
            }
        };
        Ok(pieces.boxed())
    }

    /// Says how raw records are cut, if someone may ask for them.
    fn prepare_rejects(&self, raw: bool) {
        if self.reader.tape(raw, None).is_some() {
            let cutter = Cutter::new(Arc::clone(&self.reader), &self.request.parse);
            self.reader.rejects.cut_by(&self.reader.name, Arc::new(cutter));
        }
    }

    /// How many tasks read.
    pub fn partitions(&self) -> usize {
        self.units.output_partitioning().partition_count().max(1)
    }

    /// What the opened units are ordered by.
    fn order(&self) -> Order {
        let in_order = self.units.downcast_ref::<UnitsExec>().is_some_and(UnitsExec::is_in_order);
        if in_order { Order::Given } else { Order::ByServer }
    }

    fn pool(&self, partition: usize) -> DataFusionResult<Arc<ReadHelpers>> {
        self.pools.begin(partition, |_| Ok(ReadHelpers::new(self.reader.context.io.clone())))
    }
}

/// Tasks that do what is offered in `pool`, until what comes back is dropped.
pub fn helpers(pool: &Arc<ReadHelpers>, count: usize) -> Vec<SpawnedTask<()>> {
    let help = |_| {
        let pool = Arc::clone(pool);
        SpawnedTask::spawn(async move { pool.help_only().await })
    };
    (0..count).map(help).collect()
}

/// What is known of the order of the rows.
fn order_of(request: &RowsRequest) -> EquivalenceProperties {
    let key = |key: &SortedBy| {
        let index = request.output_schema.index_of(&key.column).ok()?;
        Some(PhysicalSortExpr::new(Arc::new(Column::new(&key.column, index)), key.options))
    };
    let keys: Vec<PhysicalSortExpr> = request.sorted.iter().map_while(key).collect();
    let schema = Arc::clone(&request.output_schema);
    match keys.is_empty() {
        true => EquivalenceProperties::new(schema),
        false => EquivalenceProperties::new_with_orderings(schema, [keys]),
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
        if !self.request.parse.contains.is_empty() {
            write!(f, ", contains={}", self.request.parse.contains)?;
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
        Ok(Arc::new(ReadExec::new(reader, request, self.statistics.clone(), self.is_listed, units)))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        crate::node::recompute_with(self, children)
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
        self.prepare_rejects(false);
        let units = self.units.execute(partition, context)?;
        let (partitions, order) = (self.partitions(), self.order());
        let (reader, request) = (Arc::clone(&self.reader), Arc::clone(&self.request));
        let check = self.order_check()?;
        let pool = self.pool(partition)?;
        let batches = async_stream::try_stream! {
            let mut small = BatchCoalescer::new(Arc::clone(&request.output_schema), request.parse.batch_rows)
                .with_biggest_coalesce_batch_size(Some(request.parse.batch_rows / 2));
            let mut held = 0;
            let name = reader.name.clone();
            let units = units.map_err(fault::unwrap);
            let units = units.map_ok(|batch| stream::iter(from_batch(&batch).into_iter().map(Ok))).try_flatten();
            let opened = opened(Arc::clone(&reader), units, partitions, &pool, order);
            let opened = opened.map_err(|error| fault::carry(error.in_step(&name)));
            tokio::pin!(opened);
            loop {
                let member = Arc::new(pool.join());
                let _helpers = helpers(&pool, request.helpers);
                while let Some(open) = opened.try_next().await? {
                    let (worker, check) = (Arc::clone(&member), check.clone());
                    let rows = rows::rows(Arc::clone(&reader), Arc::clone(&request), open, worker, check);
                    tokio::pin!(rows);
                    while let Some(batch) = rows.try_next().await? {
                        held += batch.get_array_memory_size();
                        small.push_batch(batch)?;
                        // Few rows can be much text.
                        if held >= BATCH_BYTES {
                            small.finish_buffered_batch()?;
                        }
                        while let Some(batch) = small.next_completed_batch() {
                            held = 0;
                            let handed_over = Instant::now();
                            yield batch;
                            reader.steps.parse.add_waiting_output(handed_over.elapsed());
                        }
                    }
                }
                small.finish_buffered_batch()?;
                while let Some(batch) = small.next_completed_batch() {
                    held = 0;
                    yield batch;
                }
                drop(member);
                if !pool.help().await {
                    break;
                }
            }
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), batches)))
    }
}
