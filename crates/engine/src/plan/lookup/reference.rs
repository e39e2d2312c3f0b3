//! The reference of a lookup: read once a run, as a whole, and held in memory if it fits, in scratch if it does not.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, RecordBatch, RecordBatchOptions, UInt64Array};
use arrow::compute::{SortOptions, concat_batches};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::runtime::SpawnedTask;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::stream::{RecordBatchReceiverStreamBuilder, RecordBatchStreamAdapter};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::{StreamExt, TryStreamExt, stream};
use millstream_core::spec::Size;
use millstream_core::transform::Duplicate;
use millstream_core::{Budget, Error, Reservation, Result, Step};
use tokio::sync::OnceCell;

use super::super::sort::{ExternalSort, Sorting};
use super::blocks::{BlockWriter, Blocks};
use super::compare::key;
use super::digest::{self, Digest};
use super::found::{Found, Probe, hashed, unfit};
use super::shape::Shape;
use super::table::{RANGE_BYTES, ROW_BYTES, Table, bounds};
use crate::fault;
use crate::node::{leaf, streaming};
use crate::scratch::Scratch;

/// The share of the budget that all references of a job hold together. Sorts have most of the rest.
const SHARE: f64 = 0.35;

/// The most rows of a reference in memory.
const MOST_ROWS: u64 = u32::MAX as u64;

/// Batches that wait between those who read a reference and who takes them.
const AHEAD: usize = 2;

/// What the lookups of a job may use.
#[derive(Debug, Clone)]
pub struct Lookups {
    budget: Arc<Budget>,
    scratch: Arc<Scratch>,
    sorting: Sorting,
    /// Bytes that references hold.
    held: Arc<AtomicUsize>,
}

impl Lookups {
    /// For the lookups of one job. References that do not fit are sorted as `sorting` says.
    pub fn new(budget: Arc<Budget>, scratch: Arc<Scratch>, sorting: Sorting) -> Self {
        Lookups { budget, scratch, sorting, held: Arc::default() }
    }

    /// Bytes of memory for all references together.
    pub fn memory(&self) -> u64 {
        (self.budget.limit() as f64 * SHARE) as u64
    }
}

/// Bytes that a reference holds; given back when dropped.
#[derive(Debug)]
struct Held {
    lookups: Lookups,
    reservation: Option<Reservation>,
}

impl Held {
    fn bytes(&self) -> usize {
        self.reservation.as_ref().map_or(0, Reservation::bytes)
    }

    /// Takes `bytes` more, if they are free and no more than the share of references.
    fn grow(&mut self, bytes: usize) -> bool {
        let Lookups { budget, held, .. } = &self.lookups;
        let most = self.lookups.memory() as usize;
        let fits = |held: usize| held.checked_add(bytes).filter(|all| *all <= most);
        if held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err() {
            budget.refuse();
            return false;
        }
        let taken = match &mut self.reservation {
            Some(reservation) => reservation.try_grow(bytes),
            None => {
                self.reservation = budget.try_reserve("a lookup", bytes).ok();
                self.reservation.is_some()
            }
        };
        if !taken {
            held.fetch_sub(bytes, Ordering::Relaxed);
        }
        taken
    }

    fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes());
        self.reservation.iter_mut().for_each(|reservation| reservation.shrink(bytes));
        self.lookups.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shrink(self.bytes());
    }
}

/// The reference of a lookup in a run, which all its tasks share.
pub struct Shared {
    shape: Arc<Shape>,
    lookups: Lookups,
    counters: Arc<Step>,
    loaded: OnceCell<Arc<Reference>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("step", &self.shape.step).finish_non_exhaustive()
    }
}

/// A reference that is read.
#[derive(Debug)]
pub struct Reference {
    store: Store,
    digest: Digest,
    _held: Held,
}

#[derive(Debug)]
enum Store {
    Memory(Table),
    Scratch(Blocks),
}

impl Reference {
    /// Bytes of memory that it holds.
    pub fn bytes(&self) -> usize {
        self._held.bytes()
    }

    /// The hash of all its rows, in whatever order they came.
    pub fn hash(&self) -> u64 {
        self.digest.hash()
    }

    /// Whether rows are looked up in scratch, which may block.
    pub fn is_in_scratch(&self) -> bool {
        matches!(self.store, Store::Scratch(_))
    }

    /// What the rows `rows` of `probe` find, or the first of them, and the row before which that ends.
    pub fn find(&self, probe: &Probe, rows: std::ops::Range<usize>) -> Result<(Found, usize)> {
        match &self.store {
            Store::Memory(table) => table.find(probe, rows),
            Store::Scratch(blocks) => blocks.find(probe, rows),
        }
    }
}

impl Shared {
    /// Not read yet.
    pub fn new(shape: &Arc<Shape>, lookups: Lookups, counters: Arc<Step>) -> Self {
        Shared { shape: Arc::clone(shape), lookups, counters, loaded: OnceCell::new() }
    }

    /// The counters of the step.
    pub fn counters(&self) -> &Arc<Step> {
        &self.counters
    }

    /// Bytes of memory that it, with all other references, may hold.
    pub fn memory(&self) -> Size {
        Size(self.lookups.memory())
    }

    /// The reference, if it is read.
    pub fn loaded(&self) -> Option<&Arc<Reference>> {
        self.loaded.get()
    }

    /// The reference, whose rows come from `plan`: read when the first lookup asks for it.
    pub async fn ready(&self, plan: &Arc<dyn ExecutionPlan>, context: &Arc<TaskContext>) -> Result<Arc<Reference>> {
        let loading = async || Ok(Arc::new(self.load(plan, context).await?));
        self.loaded.get_or_try_init(loading).await.map(Arc::clone)
    }

    async fn load(&self, plan: &Arc<dyn ExecutionPlan>, context: &Arc<TaskContext>) -> Result<Reference> {
        let input = all_partitions(plan, context).map_err(fault::unwrap)?;
        let mut rows = Compact { input, digest: Digest::default() };
        let mut held = Held { lookups: self.lookups.clone(), reservation: None };
        let (schema, mut batches) = (plan.schema(), Vec::new());
        while let Some(batch) = rows.next().await? {
            let fits = held.grow(self.bytes_of(&batch)) && rows.digest.rows() <= MOST_ROWS;
            batches.push(batch);
            if !fits {
                return self.spill(schema, batches, rows, held, context).await;
            }
        }
        // They are copied into one batch, and then into their order.
        let copies = batches.iter().map(RecordBatch::get_array_memory_size).sum::<usize>();
        if !held.grow(copies * 2) {
            return self.spill(schema, batches, rows, held, context).await;
        }
        let shape = Arc::clone(&self.shape);
        let table = on_a_thread(move || {
            let batch = concat_batches(&schema, &batches).map_err(unfit)?;
            drop(batches);
            Table::new(&shape, &batch)
        });
        let table = table.await?;
        held.shrink(copies * 2);
        self.tell(&rows.digest, "");
        Ok(Reference { store: Store::Memory(table), digest: rows.digest, _held: held })
    }

    /// What a row of the reference takes in memory, for all rows of `batch`.
    fn bytes_of(&self, batch: &RecordBatch) -> usize {
        let of_row = ROW_BYTES + if self.shape.range.is_some() { RANGE_BYTES } else { 0 };
        batch.get_array_memory_size() + batch.num_rows() * of_row
    }

    fn tell(&self, digest: &Digest, how: &str) {
        let rows = digest.rows();
        self.counters.set_reference(rows);
        self.counters.add_detail(&format!("{rows} rows in `{}`{how}", self.shape.reference));
    }

    /// Sorts `batches`, and the rows that still come, into blocks in scratch.
    async fn spill(
        &self,
        schema: SchemaRef,
        batches: Vec<RecordBatch>,
        rows: Compact,
        mut held: Held,
        context: &Arc<TaskContext>,
    ) -> Result<Reference> {
        let sample = RecordBatch::new_empty(Arc::clone(&schema));
        let counted = Arc::new(Mutex::new(rows.digest));
        let rest = rest(rows, Arc::clone(&counted));
        let shape = Arc::clone(&self.shape);
        let keyed = stream::iter(batches.into_iter().map(Ok)).chain(rest);
        let with_hashes = with_hashes(&schema, &self.shape);
        let to = Arc::clone(&with_hashes);
        let keyed = keyed.map(move |batch| add_hashes(&to, &shape, &batch?).map_err(fault::carry));
        let input =
            FeedExec::new(Arc::clone(&with_hashes), Box::pin(RecordBatchStreamAdapter::new(with_hashes, keyed)));
        let order = order(&self.shape, &schema);
        let sort = ExternalSort::over(order, None, None, Arc::new(input), self.lookups.sorting.clone());
        let sort = sort.map_err(fault::unwrap)?;
        // The sort takes what has come from here on.
        held.shrink(held.bytes());
        let mut sorted = sort.execute(0, Arc::clone(context)).map_err(fault::unwrap)?;
        let mut writer = BlockWriter::new(self.lookups.scratch.folder(), &self.shape, &sample)?;
        while let Some(batch) = sorted.next().await {
            let (batch, shape) = (batch.map_err(fault::unwrap)?, Arc::clone(&self.shape));
            writer = on_a_thread(move || writer.add(&shape, &batch).map(|()| writer)).await?;
        }
        let (blocks, bytes) = on_a_thread(move || writer.end()).await?;
        self.counters.add_spilled(bytes);
        let digest = *counted.lock().unwrap_or_else(PoisonError::into_inner);
        self.tell(&digest, " on disk");
        Ok(Reference { store: Store::Scratch(blocks), digest, _held: held })
    }
}

/// Does `work`, which may take long, where it keeps nobody waiting.
pub async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = SpawnedTask::spawn_blocking(work).join().await;
    done.unwrap_or_else(|join| Err(Error::internal("a task of a lookup failed").cause(join)))
}

/// The rows of all partitions of `plan`, which tasks of their own read.
fn all_partitions(
    plan: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
) -> DataFusionResult<SendableRecordBatchStream> {
    let partitions = plan.output_partitioning().partition_count();
    let mut all = RecordBatchReceiverStreamBuilder::new(plan.schema(), partitions * AHEAD);
    for partition in 0..partitions {
        let (mut rows, sender) = (plan.execute(partition, Arc::clone(context))?, all.tx());
        all.spawn(async move {
            while let Some(batch) = rows.next().await {
                let is_over = batch.is_err();
                if sender.send(batch).await.is_err() || is_over {
                    break;
                }
            }
            Ok(())
        });
    }
    Ok(all.build())
}

/// Rows as they come, with texts that keep nothing else in memory, and their digest.
struct Compact {
    input: SendableRecordBatchStream,
    digest: Digest,
}

impl Compact {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        while let Some(batch) = self.input.try_next().await.map_err(fault::unwrap)? {
            if batch.num_rows() == 0 {
                continue;
            }
            self.digest.add(&digest::of_batch(&batch)?);
            let columns = batch.columns().iter().map(compact).collect();
            let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            return RecordBatch::try_new_with_options(batch.schema(), columns, &options).map(Some).map_err(unfit);
        }
        Ok(None)
    }
}

/// `column` without what others of its page have in memory.
pub fn compact(column: &ArrayRef) -> ArrayRef {
    match column.data_type() {
        DataType::Utf8View if !column.as_string_view().data_buffers().is_empty() => {
            Arc::new(column.as_string_view().gc())
        }
        DataType::BinaryView if !column.as_binary_view().data_buffers().is_empty() => {
            Arc::new(column.as_binary_view().gc())
        }
        _ => Arc::clone(column),
    }
}

/// The rows that still come. At their end `counted` has the digest of all.
fn rest(
    rows: Compact,
    counted: Arc<Mutex<Digest>>,
) -> impl futures::Stream<Item = DataFusionResult<RecordBatch>> + Send + 'static {
    stream::try_unfold((rows, counted), |(mut rows, counted)| async move {
        let next = rows.next().await.map_err(fault::carry)?;
        *counted.lock().unwrap_or_else(PoisonError::into_inner) = rows.digest;
        Ok(next.map(|batch| (batch, (rows, counted))))
    })
}

/// The columns of a reference, what its rows are sorted by, and the hashes of their keys and of all.
pub(super) fn with_hashes(schema: &SchemaRef, shape: &Shape) -> SchemaRef {
    let from = shape.range.iter().map(|_| Field::new("_from", DataType::Decimal128(38, 0), true));
    let hashes = ["_hash", "_tie"].map(|name| Field::new(name, DataType::UInt64, false));
    let fields = schema.fields().iter().map(|field| field.as_ref().clone()).chain(from).chain(hashes);
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

pub(super) fn add_hashes(schema: &SchemaRef, shape: &Shape, batch: &RecordBatch) -> Result<RecordBatch> {
    let keys = shape.keys.iter().map(|one| key(batch.column(one.within.1), &one.common));
    let (hashes, valid) = hashed(&keys.collect::<Result<Vec<_>>>()?, batch.num_rows())?;
    let mut columns = batch.columns().to_vec();
    if let Some((from, _)) = bounds(shape, batch)? {
        let from: Decimal128Array = from.into_iter().map(|from| (from != i128::MIN).then_some(from)).collect();
        columns.push(Arc::new(from.with_precision_and_scale(38, 0).map_err(unfit)?));
    }
    columns.push(Arc::new(UInt64Array::from(hashes)));
    columns.push(Arc::new(UInt64Array::from(digest::of_batch(batch)?)));
    let batch = RecordBatch::try_new(Arc::clone(schema), columns).map_err(unfit)?;
    match valid {
        // Nulls match nothing.
        Some(valid) => arrow::compute::filter_record_batch(&batch, &valid.into_inner().into()).map_err(unfit),
        None => Ok(batch),
    }
}

/// The order in which the records of a reference with the columns of `schema` are in scratch.
pub(super) fn order(shape: &Shape, schema: &SchemaRef) -> LexOrdering {
    let columns = schema.fields().len();
    let by = |name: &str, index: usize, options: SortOptions| {
        PhysicalSortExpr::new(Arc::new(Column::new(name, index)), options)
    };
    let ascending = SortOptions { descending: false, nulls_first: true };
    let ranged = usize::from(shape.range.is_some());
    let mut order = vec![by("_hash", columns + ranged, ascending)];
    if ranged > 0 {
        order.push(by("_from", columns, ascending));
    }
    if shape.duplicate == Duplicate::First {
        order.extend(shape.order.iter().map(|(column, options)| by(schema.field(*column).name(), *column, *options)));
        order.push(by("_tie", columns + ranged + 1, ascending));
    }
    let first = order[0].clone();
    LexOrdering::new(order).unwrap_or_else(|| [first].into())
}

/// Gives the rows of a stream, once.
struct FeedExec {
    rows: Mutex<Option<SendableRecordBatchStream>>,
    properties: Arc<PlanProperties>,
}

impl FeedExec {
    fn new(schema: SchemaRef, rows: SendableRecordBatchStream) -> Self {
        FeedExec { rows: Mutex::new(Some(rows)), properties: streaming(schema, 1) }
    }
}

impl fmt::Debug for FeedExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FeedExec")
    }
}

impl DisplayAs for FeedExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FeedExec")
    }
}

impl ExecutionPlan for FeedExec {
    leaf!("FeedExec");

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner).take();
        rows.ok_or_else(|| DataFusionError::Internal("the rows of a reference were read before".to_owned()))
    }
}
