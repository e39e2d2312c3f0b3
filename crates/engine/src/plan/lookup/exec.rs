//! The node of a plan whose rows get columns of a reference.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{
    Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, Scalar, UInt32Array, new_null_array,
};
use arrow::compute::kernels::zip::zip;
use arrow::compute::take;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::internal_err;
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, ReplaceChildrenOptions};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties,
};
use futures::StreamExt;
use millstream_core::reject::RejectKind;
use millstream_core::transform::Duplicate;
use millstream_core::{Error, Result, Step};

use super::blocks::as_planned;
use super::found::{Found, Probe, unfit};
use super::reference::{Lookups, Reference, Shared, compact, on_a_thread};
use super::shape::{OnMiss, Shape};
use crate::fault;
use crate::node::without_expressions;
use crate::rejects::origin::origin;
use crate::rejects::take::TakeRow;
use crate::rejects::{Entry, Rejects, allowing};

/// The name of the operator.
pub const LOOKUP: &str = "LookupExec";

/// Gives rows columns of a reference.
pub struct LookupExec {
    input: Arc<dyn ExecutionPlan>,
    reference: Arc<dyn ExecutionPlan>,
    work: Arc<Work>,
    properties: Arc<PlanProperties>,
}

/// What is done with each batch.
#[derive(Clone)]
struct Work {
    shape: Arc<Shape>,
    shared: Arc<Shared>,
    /// The columns of a row that are compared.
    probed: Vec<usize>,
    /// Columns of a row. What stands behind them is handed on.
    width: usize,
    schema: SchemaRef,
    /// Takes the rows that are rejected.
    taker: Option<(Arc<dyn TakeRow>, Arc<Rejects>)>,
    /// Knows where rows are from.
    places: Option<Arc<dyn TakeRow>>,
    went: Arc<Went>,
}

/// What has become of rows.
#[derive(Debug, Default)]
struct Went {
    matched: AtomicU64,
    missed: AtomicU64,
    rejected: AtomicU64,
    /// What of this was reported before.
    told: (AtomicU64, AtomicU64),
}

/// The rows that come out: which of the batch, and where in the columns that are found, unless nowhere.
struct Pairs {
    rows: UInt32Array,
    positions: UInt32Array,
    /// Whether the rows are those of the batch, each once.
    is_whole: bool,
}

impl LookupExec {
    /// What the rows of `input`, of which the columns `probed` are compared, find in `reference`.
    pub fn new(
        input: Arc<dyn ExecutionPlan>,
        reference: Arc<dyn ExecutionPlan>,
        shape: Arc<Shape>,
        probed: Vec<usize>,
        lookups: Lookups,
    ) -> DataFusionResult<Self> {
        if shape.taken.iter().any(|take| take.column >= reference.schema().fields().len()) {
            return internal_err!("a reference lacks columns");
        }
        let counters = Step::of_lookup(&shape.step, "lookup", &shape.reference);
        let shared = Arc::new(Shared::new(&shape, lookups, counters));
        let width = input.schema().fields().len();
        let (taker, places, went) = (None, None, Arc::default());
        let schema = input.schema();
        let work = Work { shape, shared, probed, width, schema, taker, places, went };
        Ok(LookupExec::over(input, reference, work))
    }

    fn over(input: Arc<dyn ExecutionPlan>, reference: Arc<dyn ExecutionPlan>, work: Work) -> Self {
        let schema = input.schema();
        let (own, carried) = schema.fields().split_at(work.width.min(schema.fields().len()));
        let taken = work.shape.taken.iter().map(|take| &take.field);
        let fields = own.iter().chain(taken).chain(carried).cloned();
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let orders = input.output_ordering().into_iter().cloned();
        let properties = PlanProperties::new(
            EquivalenceProperties::new_with_orderings(Arc::clone(&schema), orders),
            Partitioning::UnknownPartitioning(input.output_partitioning().partition_count()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        let work = Arc::new(Work { schema, ..work });
        LookupExec { input, reference, work, properties: Arc::new(properties) }
    }

    /// What is looked up.
    pub fn shape(&self) -> &Shape {
        &self.work.shape
    }

    /// The reference.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.work.shared
    }

    /// The plan of the reference.
    pub fn reference(&self) -> &Arc<dyn ExecutionPlan> {
        &self.reference
    }

    /// How many rows were rejected.
    pub fn failed(&self) -> u64 {
        self.work.went.rejected.load(Ordering::Relaxed)
    }

    /// The name of its step, if that may leave rows out.
    pub fn lenient_step(&self) -> Option<&str> {
        self.work.taker.as_ref().map(|_| self.work.shape.step.as_str())
    }

    /// The same, with the rows that are rejected going to `taker`, if its step may leave some out.
    pub fn lenient(&self, taker: Arc<dyn TakeRow>, rejects: &Arc<Rejects>) -> Option<Self> {
        if !matches!(self.work.shape.miss, OnMiss::Reject) {
            return None;
        }
        rejects.of_step(&self.work.shape.step)?;
        Some(self.with(Work { taker: Some((taker, Arc::clone(rejects))), ..Work::clone(&self.work) }))
    }

    /// The same over `input`, whose last column tells where rows are from. `taker` knows where that is, and takes what
    /// is rejected; what becomes of rows is counted apart then.
    pub fn carrying(&self, input: Arc<dyn ExecutionPlan>, taker: Option<&Arc<dyn TakeRow>>) -> Self {
        let own = Work::clone(&self.work);
        let work = match taker {
            Some(taker) => Work {
                taker: own.taker.as_ref().map(|(_, rejects)| (Arc::clone(taker), Arc::clone(rejects))),
                places: Some(Arc::clone(taker)),
                went: Arc::default(),
                ..own
            },
            None => own,
        };
        LookupExec::over(input, Arc::clone(&self.reference), work)
    }

    /// Tells the counters of the step what has become of rows, once none come any more.
    pub fn settle(&self) {
        let went = &self.work.went;
        let untold = |count: &AtomicU64, told: &AtomicU64| {
            let now = count.load(Ordering::Relaxed);
            now - told.swap(now, Ordering::Relaxed)
        };
        let (matched, missed) = (untold(&went.matched, &went.told.0), untold(&went.missed, &went.told.1));
        self.work.shared.counters().add_looked_up(matched, missed);
    }

    fn with(&self, work: Work) -> Self {
        LookupExec::over(Arc::clone(&self.input), Arc::clone(&self.reference), work)
    }
}

/// The inputs of `plan` that its rows come from: not what is only looked up in.
pub fn row_inputs(plan: &Arc<dyn ExecutionPlan>) -> Vec<&Arc<dyn ExecutionPlan>> {
    let most = if plan.name() == LOOKUP { 1 } else { usize::MAX };
    plan.children().into_iter().take(most).collect()
}

/// All lookups in `plan`, those in references among them, each once.
pub fn lookups(plan: &Arc<dyn ExecutionPlan>) -> Vec<&LookupExec> {
    let own = plan.downcast_ref::<LookupExec>().filter(|_| plan.name() == LOOKUP);
    own.into_iter().chain(plan.children().into_iter().flat_map(lookups)).collect()
}

impl Work {
    /// The rows of `batch`, from `start` on, with what they find, and the row before which that ends.
    fn step(
        &self,
        reference: &Reference,
        batch: &RecordBatch,
        probe: &Probe,
        start: usize,
    ) -> Result<(RecordBatch, usize)> {
        let (found, next) = reference.find(probe, start..probe.len())?;
        if self.shape.duplicate == Duplicate::Fail
            && let Some((row, positions)) = found.duplicate()
        {
            return Err(self.duplicate(batch, row as usize, positions, &found));
        }
        let missing = missing(&found, start..next);
        self.went.matched.fetch_add((next - start - missing.len()) as u64, Ordering::Relaxed);
        self.went.missed.fetch_add(missing.len() as u64, Ordering::Relaxed);
        self.leave_out(batch, &missing)?;
        let pairs = match (&self.shape.miss, missing.is_empty()) {
            (OnMiss::Fill(_), false) => Pairs::with(&found, &missing, start..next, probe.len()),
            _ => Pairs::of(&found, probe.len()),
        };
        Ok((self.output(batch, &found, &pairs)?, next))
    }

    /// What becomes of the rows `missing` of `batch`, if they do not get other values.
    fn leave_out(&self, batch: &RecordBatch, missing: &[u32]) -> Result<()> {
        let step = &self.shape.step;
        for row in missing {
            let row = *row as usize;
            match &self.shape.miss {
                OnMiss::Fill(_) | OnMiss::Drop => return Ok(()),
                OnMiss::Fail => {
                    let hint = "add it there, or say what becomes of such rows: `miss: null`, `drop`, `reject`, or \
                                `{value: {column: value}}`";
                    return Err(self.place(&batch.slice(row, 1), self.miss(batch, row)).hint(hint));
                }
                OnMiss::Reject => {
                    let (row, error) = (batch.slice(row, 1), self.miss(batch, row));
                    let Some((taker, _)) = &self.taker else {
                        return Err(self.place(&row, allowing(error, &Entry::Step(step.clone()))));
                    };
                    taker.take(step, &row, error)?;
                    self.went.rejected.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        Ok(())
    }

    /// The error of row `row` of `batch`, which nothing matches.
    fn miss(&self, batch: &RecordBatch, row: usize) -> Error {
        let what = format!("no row of `{}` matches", self.shape.reference);
        Error::data(what).text(self.keys(batch, row)).reject(RejectKind::Expression).in_step(&self.shape.step)
    }

    /// The error of row `row` of `batch`, which two rows of the reference match.
    fn duplicate(&self, batch: &RecordBatch, row: usize, positions: [u32; 2], found: &Found) -> Error {
        let what = format!("several rows of `{}` match", self.shape.reference);
        let names: Vec<&str> = self.shape.taken.iter().map(|take| take.field.name().as_str()).collect();
        let [one, other] = positions.map(|position| shown(&names, &found.columns, position as usize));
        let cause = format!("one has {one}, another {other}");
        let hint = "correct the reference, add the columns to `on` that tell them apart, or say which one counts: \
                    `duplicate: first` with `order_by`, or `all`";
        let error = Error::data(what).text(self.keys(batch, row)).cause(cause).hint(hint).in_step(&self.shape.step);
        self.place(&batch.slice(row, 1), error)
    }

    /// The values of row `row` that are compared.
    fn keys(&self, batch: &RecordBatch, row: usize) -> String {
        let names: Vec<&str> = self.shape.probed().collect();
        let columns: Vec<ArrayRef> = self.probed.iter().map(|column| Arc::clone(batch.column(*column))).collect();
        shown(&names, &columns, row)
    }

    /// `error` of `row`, a batch of one, with its file and line as far as they are known.
    fn place(&self, row: &RecordBatch, error: Error) -> Error {
        match (&self.places, origin(row, 0)) {
            (Some(places), _) => places.place(row, error),
            (None, Some((origin, _))) => origin.place(error),
            (None, None) => error,
        }
    }

    /// The rows that come out of `batch`.
    fn output(&self, batch: &RecordBatch, found: &Found, pairs: &Pairs) -> Result<RecordBatch> {
        let kept = |column: &ArrayRef| match pairs.is_whole {
            true => Ok(Arc::clone(column)),
            false => take(column, &pairs.rows, None).map_err(unfit),
        };
        let (own, carried) = batch.columns().split_at(self.width);
        let mut columns = own.iter().map(kept).collect::<Result<Vec<_>>>()?;
        for (index, column) in found.columns.iter().enumerate() {
            columns.push(self.taken(index, column, &pairs.positions)?);
        }
        columns.extend(carried.iter().map(kept).collect::<Result<Vec<_>>>()?);
        let options = RecordBatchOptions::new().with_row_count(Some(pairs.rows.len()));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options).map_err(unfit)
    }

    /// The column `index` of those that are taken: `column` at `positions`, and what stands for a miss elsewhere.
    fn taken(&self, index: usize, column: &ArrayRef, positions: &UInt32Array) -> Result<ArrayRef> {
        let kind = self.shape.taken[index].field.data_type();
        let found = match column.is_empty() {
            true => new_null_array(column.data_type(), positions.len()),
            false => compact(&take(column, positions, None).map_err(unfit)?),
        };
        let found = as_planned(found, kind)?;
        match (&self.shape.miss, positions.nulls()) {
            (OnMiss::Fill(constants), Some(nulls)) => match &constants[index] {
                Some(constant) => filled(&found, &BooleanArray::new(nulls.inner().clone(), None), constant),
                None => Ok(found),
            },
            _ => Ok(found),
        }
    }
}

/// `column`, with `constant` where `is_found` says no.
fn filled(column: &ArrayRef, is_found: &BooleanArray, constant: &Scalar<ArrayRef>) -> Result<ArrayRef> {
    zip(is_found, column, constant).map_err(unfit)
}

/// The values of row `row` of `columns`, in words: `customer = 17, day = 2026-01-01`.
fn shown(names: &[&str], columns: &[ArrayRef], row: usize) -> String {
    let options = FormatOptions::new().with_null("null");
    let value = |(name, column): (&&str, &ArrayRef)| {
        let shown = ArrayFormatter::try_new(column.as_ref(), &options).map(|values| values.value(row).to_string());
        format!("{name} = {}", shown.unwrap_or_else(|_| "?".to_owned()))
    };
    names.iter().zip(columns).map(value).collect::<Vec<_>>().join(", ")
}

/// The rows of `rows` that found nothing.
fn missing(found: &Found, rows: std::ops::Range<usize>) -> Vec<u32> {
    if found.rows.len() == rows.len() && found.rows.windows(2).all(|two| two[0] < two[1]) {
        return Vec::new();
    }
    let mut matched = found.rows.iter().peekable();
    let mut missing = Vec::new();
    for row in rows.start as u32..rows.end as u32 {
        let mut is_found = false;
        while matched.next_if_eq(&&row).is_some() {
            is_found = true;
        }
        if !is_found {
            missing.push(row);
        }
    }
    missing
}

impl Pairs {
    /// Those that are found, in a batch of `count` rows.
    fn of(found: &Found, count: usize) -> Self {
        let is_whole = found.rows.len() == count && found.rows.iter().enumerate().all(|(at, row)| at == *row as usize);
        Pairs { rows: found.rows.clone().into(), positions: found.positions.clone().into(), is_whole }
    }

    /// The same, and the rows `missing` of `rows`, which found nothing, each in its place.
    fn with(found: &Found, missing: &[u32], rows: std::ops::Range<usize>, count: usize) -> Self {
        let mut missing = missing.iter().copied().peekable();
        let size = rows.len().max(found.rows.len());
        let (mut all, mut positions) = (Vec::with_capacity(size), Vec::with_capacity(size));
        for (row, position) in found.rows.iter().zip(&found.positions) {
            while let Some(before) = missing.next_if(|before| before < row) {
                all.push(before);
                positions.push(None);
            }
            all.push(*row);
            positions.push(Some(*position));
        }
        all.extend(missing);
        positions.resize(all.len(), None);
        let is_whole = all.len() == count && all.iter().enumerate().all(|(at, row)| at == *row as usize);
        Pairs { rows: all.into(), positions: positions.into(), is_whole }
    }
}

impl fmt::Debug for LookupExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LookupExec").field("step", &self.work.shape.step).finish_non_exhaustive()
    }
}

impl DisplayAs for LookupExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Work { shape, shared, .. } = self.work.as_ref();
        let taken: Vec<&str> = shape.taken.iter().map(|take| take.field.name().as_str()).collect();
        let miss = match &shape.miss {
            OnMiss::Fail => "fail",
            OnMiss::Reject => "reject",
            OnMiss::Drop => "drop",
            OnMiss::Fill(values) if values.iter().all(Option::is_none) => "null",
            OnMiss::Fill(_) => "value",
        };
        let duplicate = match shape.duplicate {
            Duplicate::Fail => "fail",
            Duplicate::First => "first",
            Duplicate::All => "all",
        };
        write!(
            f,
            "LookupExec: in={}, on=[{}], take=[{}], miss={miss}, duplicate={duplicate}, memory={}",
            shape.reference,
            shape.conditions(),
            taken.join(", "),
            shared.memory(),
        )
    }
}

impl ExecutionPlan for LookupExec {
    fn name(&self) -> &'static str {
        LOOKUP
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input, &self.reference]
    }

    without_expressions!();

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true, false]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![true, false]
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let Ok([input, reference]) = <[Arc<dyn ExecutionPlan>; 2]>::try_from(children) else {
            return internal_err!("a lookup has two inputs");
        };
        Ok(Arc::new(LookupExec::over(input, reference, Work::clone(&self.work))))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let mut input = self.input.execute(partition, Arc::clone(&context))?;
        let (work, plan) = (Arc::clone(&self.work), Arc::clone(&self.reference));
        let limit = work.taker.as_ref().and_then(|(_, rejects)| rejects.of_step(&work.shape.step));
        let rows = async_stream::try_stream! {
            let reference = work.shared.ready(&plan, &context).await.map_err(fault::carry)?;
            while let Some(batch) = input.next().await {
                let batch = batch?;
                limit.iter().for_each(|limit| limit.add_came(batch.num_rows() as u64));
                let probe = Probe::new(&work.shape, &batch, &work.probed).map_err(fault::carry)?;
                let (mut start, probe) = (0, Arc::new(probe));
                while start < probe.len() {
                    let (rows, next) = match reference.is_in_scratch() {
                        false => work.step(&reference, &batch, &probe, start),
                        true => {
                            let (work, reference) = (Arc::clone(&work), Arc::clone(&reference));
                            let (batch, probe) = (batch.clone(), Arc::clone(&probe));
                            on_a_thread(move || work.step(&reference, &batch, &probe, start)).await
                        }
                    }
                    .map_err(fault::carry)?;
                    start = next;
                    if rows.num_rows() > 0 {
                        yield rows;
                    }
                }
            }
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}
