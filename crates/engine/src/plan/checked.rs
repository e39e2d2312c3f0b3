//! The rows of an entry that has checks: a node through which its rows pass and are looked at.
//!
//! No filter is pushed below it, since all rows of the entry are to be looked at, and it asks for the columns that its
//! checks are about beside those that are wanted. A consumer may want no more rows early, such as a limit: then what is
//! left is read at the end of the run, for the checks alone. Where the optimizer drops a step because no row of it
//! would be left, the node goes with it; then [`super::shared`] plans the step once more, for its checks alone.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering as Memory};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DFSchemaRef, internal_err};
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, LogicalPlanBuilder, UserDefinedLogicalNodeCore, lit};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::{Stream, StreamExt};
use millstream_core::reject::RejectLimit;
use millstream_core::{Error, Result};

use super::extension::{PlanNode, Planning, only};
use super::lenient::LenientExec;
use super::lookup::{LookupExec, row_inputs};
use super::work::WorkExec;
use crate::checks::{CheckCounts, CheckKind, EntryCheck, EntryChecks};
use crate::fault;
use crate::node::Rounds;
use crate::planner_names::PlannerNames;
use crate::rejects::Rejects;
use crate::rejects::take::TakeRow;

/// The rows of its input, looked at.
#[derive(Debug, Clone)]
pub struct CheckedRows {
    input: LogicalPlan,
    /// The expressions of all checks, one after the other.
    expressions: Vec<Expr>,
    checks: Arc<EntryChecks>,
}

impl CheckedRows {
    /// The rows of `input`, looked at by `checks`, which have these expressions.
    pub fn plan(input: LogicalPlan, expressions: Vec<Expr>, checks: Arc<EntryChecks>) -> LogicalPlan {
        LogicalPlan::Extension(Extension { node: Arc::new(CheckedRows { input, expressions, checks }) })
    }
}

/// The checks of all nodes in `plan`, the outermost first.
///
/// # Errors
/// Those of DataFusion.
pub fn all_checks(plan: &LogicalPlan) -> DataFusionResult<Vec<Arc<EntryChecks>>> {
    let mut found = Vec::new();
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::Extension(own) = node
            && let Some(rows) = own.node.as_any().downcast_ref::<CheckedRows>()
        {
            found.push(Arc::clone(&rows.checks));
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

/// The rows of `plan` without any of their columns: what is read of them is what checks need.
///
/// # Errors
/// Those of DataFusion.
pub fn for_checks(plan: LogicalPlan) -> DataFusionResult<LogicalPlan> {
    LogicalPlanBuilder::from(plan).project([lit(true)])?.build()
}

impl PartialEq for CheckedRows {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.checks, &other.checks)
            && (&self.expressions, &self.input) == (&other.expressions, &other.input)
    }
}

impl Eq for CheckedRows {}

impl Hash for CheckedRows {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.expressions, &self.input).hash(state);
    }
}

impl PartialOrd for CheckedRows {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.input.partial_cmp(&other.input)
    }
}

impl UserDefinedLogicalNodeCore for CheckedRows {
    fn name(&self) -> &str {
        "CheckedRows"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        self.input.schema()
    }

    fn expressions(&self) -> Vec<Expr> {
        self.expressions.clone()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CheckedRows: {}", labels(&self.checks))
    }

    fn with_exprs_and_inputs(&self, expressions: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> DataFusionResult<Self> {
        match (inputs.pop(), expressions.len() == self.expressions.len()) {
            (Some(input), true) => Ok(CheckedRows { input, expressions, checks: Arc::clone(&self.checks) }),
            _ => internal_err!("checked rows have one input and the expressions of their checks"),
        }
    }

    /// Those of the checks are added by the optimizer.
    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        Some(vec![output_columns.to_vec()])
    }
}

fn labels(checks: &EntryChecks) -> String {
    let labels: Vec<&str> = checks.checks.iter().map(|check| check.label.as_str()).collect();
    labels.join("; ")
}

/// Plans [`CheckedRows`].
pub struct CheckedRowsPlanner;

impl PlanNode for CheckedRowsPlanner {
    type Node = CheckedRows;

    fn plan(
        &self,
        rows: &CheckedRows,
        inputs: &[Arc<dyn ExecutionPlan>],
        Planning { planner, session, context }: &Planning<'_>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let input = only("CheckedRows", inputs)?;
        let physical = |expression| planner.create_physical_expr(expression, rows.input.schema(), *session, context);
        let expressions = rows.expressions.iter().map(physical).collect::<DataFusionResult<Vec<_>>>()?;
        let columns = input.schema().fields().len();
        let counts = Arc::clone(&rows.checks.counts);
        let names = Arc::new(PlannerNames::of(&input));
        Ok(Arc::new(CheckExec::new(
            input,
            Look {
                expressions: expressions.into(),
                checks: Arc::clone(&rows.checks),
                counts,
                columns,
                names,
                left_out: None,
            },
        )))
    }
}

/// Looks at the rows of its input.
pub struct CheckExec {
    input: Arc<dyn ExecutionPlan>,
    look: Look,
    rounds: Rounds,
    unread: Arc<Unread>,
    properties: Arc<PlanProperties>,
}

/// How rows are looked at.
#[derive(Clone)]
struct Look {
    expressions: Arc<[Arc<dyn PhysicalExpr>]>,
    checks: Arc<EntryChecks>,
    counts: Arc<CheckCounts>,
    /// The columns of the rows; what is behind them says where a row is from.
    columns: usize,
    names: Arc<PlannerNames>,
    /// What becomes of rows that break a rule, if they are left out.
    left_out: Option<LeftOut>,
}

#[derive(Clone)]
struct LeftOut {
    taker: Arc<dyn TakeRow>,
    /// Counts the rows that come, if nothing below does.
    came: Option<Arc<RejectLimit>>,
    count: Arc<AtomicU64>,
}

impl CheckExec {
    /// What the node is called. Meters hide what they meter from their own name.
    pub const NAME: &str = "CheckExec";

    fn new(input: Arc<dyn ExecutionPlan>, look: Look) -> Self {
        let partitions = input.output_partitioning().partition_count();
        let properties = Arc::clone(input.properties());
        CheckExec { input, look, rounds: Rounds::new(partitions), unread: Unread::new(partitions), properties }
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        CheckExec::new(input, self.look.clone())
    }

    /// The checks.
    pub fn checks(&self) -> &Arc<EntryChecks> {
        &self.look.checks
    }

    /// What this node counts: for a part of the rows something of its own.
    pub fn counts(&self) -> &Arc<CheckCounts> {
        &self.look.counts
    }

    /// Whether it leaves rows out.
    pub fn rejects(&self) -> bool {
        self.look.left_out.is_some()
    }

    /// How many rows it has left out.
    pub fn failed(&self) -> u64 {
        self.look.left_out.as_ref().map_or(0, |left_out| left_out.count.load(Memory::Relaxed))
    }

    /// The same, with rows that break the rule of a check that rejects going to `taker`; `None` if no check does.
    pub fn lenient(&self, taker: Arc<dyn TakeRow>, rejects: &Rejects) -> Option<Self> {
        let checks = self.checks();
        if !checks.rejects() {
            return None;
        }
        let came = rejects.of_step(&checks.name).filter(|_| !is_counted_below(&self.input, &checks.name));
        let left_out = LeftOut { taker, came, count: Arc::default() };
        Some(CheckExec::new(Arc::clone(&self.input), Look { left_out: Some(left_out), ..self.look.clone() }))
    }

    /// The same over other rows, which have one more column that says where they are from. With `taker` these are a
    /// part of all rows, counted by themselves.
    pub fn carrying(&self, input: Arc<dyn ExecutionPlan>, taker: Option<&Arc<dyn TakeRow>>) -> Self {
        let Some(taker) = taker else { return self.with_input(input) };
        let counts = Arc::new(CheckCounts::new(self.checks().checks.len()));
        let of_part = |left_out: LeftOut| LeftOut { taker: Arc::clone(taker), count: Arc::default(), ..left_out };
        let left_out = self.look.left_out.clone().map(of_part);
        CheckExec::new(input, Look { counts, left_out, ..self.look.clone() })
    }

    /// Reads what no consumer wanted of the rows of `partition`.
    async fn read_rest(&self, partition: usize, context: Arc<TaskContext>) -> Result<()> {
        let mut rest = match self.unread.take(partition) {
            Some(rest) => rest,
            None if self.rounds.has_begun(partition) => return Ok(()),
            None => self.execute(partition, context).map_err(fault::unwrap)?,
        };
        while let Some(batch) = rest.next().await {
            batch.map_err(fault::unwrap)?;
        }
        Ok(())
    }
}

/// Reads what no consumer wanted of the rows of `node`, one of [`nodes`], once none of them reads any more: one future
/// for each partition.
pub fn rest(
    node: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
) -> impl Iterator<Item = impl Future<Output = Result<()>> + Send + 'static> {
    (0..node.output_partitioning().partition_count()).map(move |partition| {
        let (node, context) = (Arc::clone(&node), Arc::clone(&context));
        async move {
            let check = node.downcast_ref::<CheckExec>();
            let check = check.ok_or_else(|| Error::internal("a node that checks rows is another"))?;
            check.read_rest(partition, context).await
        }
    })
}

/// Whether an operator in `plan` counts the rows that come to `step` for its limit: what reads a source does, and the
/// first operator that may leave something out.
fn is_counted_below(plan: &Arc<dyn ExecutionPlan>, step: &str) -> bool {
    let lenient = LenientExec::steps(plan).iter().any(|one| one == step);
    let work = plan.downcast_ref::<WorkExec>().and_then(WorkExec::lenient_step).is_some_and(|one| one == step);
    let read = plan.downcast_ref::<crate::read::exec::ReadExec>().is_some_and(|read| read.source() == step);
    let lookup = plan.downcast_ref::<LookupExec>().and_then(LookupExec::lenient_step).is_some_and(|one| one == step);
    let is_here = lenient || work || read || lookup;
    is_here || row_inputs(plan).into_iter().any(|child| is_counted_below(child, step))
}

/// All nodes of `plan` that check rows, the outermost first.
pub fn nodes(plan: &Arc<dyn ExecutionPlan>) -> Vec<Arc<dyn ExecutionPlan>> {
    let own = (plan.name() == CheckExec::NAME).then(|| Arc::clone(plan));
    own.into_iter().chain(plan.children().into_iter().flat_map(nodes)).collect()
}

impl Look {
    /// The rows of `batch` without those that are left out. What comes once more is not counted again.
    fn at(&self, mut batch: RecordBatch, is_first: bool) -> DataFusionResult<RecordBatch> {
        if !is_first {
            return self.without_all_broken(batch);
        }
        if let Some(left_out) = &self.left_out {
            left_out.came.iter().for_each(|came| came.add_came(batch.num_rows() as u64));
            for (index, check, own) in self.each().filter(|(_, check, _)| check.rejects()) {
                batch = self.without_broken(batch, index, check, own, left_out)?;
            }
        }
        self.counts.add_rows(batch.num_rows() as u64);
        for (index, check, own) in self.each().filter(|(_, check, _)| !check.rejects()) {
            match &check.kind {
                CheckKind::Rows(_) => {}
                CheckKind::Condition => {
                    let holds = self.holds(&batch, own)?;
                    let broken = broken(&holds);
                    if broken > 0 {
                        self.counts.add_broken(index, broken);
                        self.show(index, &batch, &holds);
                    }
                }
                CheckKind::Unique(keys) => {
                    let columns = own.iter().map(|column| column.evaluate(&batch)?.into_array(batch.num_rows()));
                    let columns = columns.collect::<DataFusionResult<Vec<ArrayRef>>>()?;
                    let found = keys.add(&columns);
                    let found = found.map_err(|error| fault::carry(error.in_step(&self.checks.entry)))?;
                    self.counts.add_broken(index, found.rows);
                    found.examples.into_iter().for_each(|example| self.counts.show(index, example));
                }
            }
        }
        Ok(batch)
    }

    /// `batch` without the rows that break the rule of a check that rejects.
    fn without_all_broken(&self, mut batch: RecordBatch) -> DataFusionResult<RecordBatch> {
        let rejecting = self.each().filter(|(_, check, _)| self.left_out.is_some() && check.rejects());
        for (_, _, own) in rejecting {
            batch = kept(&batch, &self.holds(&batch, own)?)?;
        }
        Ok(batch)
    }

    /// The checks with their numbers and expressions.
    fn each(&self) -> impl Iterator<Item = (usize, &EntryCheck, &[Arc<dyn PhysicalExpr>])> {
        let mut next = 0;
        self.checks.checks.iter().enumerate().map(move |(index, check)| {
            let own = &self.expressions[next..next + check.expressions];
            next += check.expressions;
            (index, check, own)
        })
    }

    /// For which rows the condition holds.
    fn holds(&self, batch: &RecordBatch, own: &[Arc<dyn PhysicalExpr>]) -> DataFusionResult<BooleanArray> {
        let [condition] = own else { return internal_err!("a check of single rows has one condition") };
        let holds = condition.evaluate(batch)?.into_array(batch.num_rows())?;
        match holds.as_boolean_opt() {
            Some(holds) => Ok(holds.clone()),
            None => Ok(BooleanArray::new_null(batch.num_rows())),
        }
    }

    /// `batch` without the rows that break the rule of a check; these go where rejects go.
    fn without_broken(
        &self,
        batch: RecordBatch,
        index: usize,
        check: &EntryCheck,
        own: &[Arc<dyn PhysicalExpr>],
        left_out: &LeftOut,
    ) -> DataFusionResult<RecordBatch> {
        let holds = self.holds(&batch, own)?;
        let count = broken(&holds);
        if count == 0 {
            return Ok(batch);
        }
        self.counts.add_broken(index, count);
        self.show(index, &batch, &holds);
        for row in broken_rows(&holds) {
            let row = self.names.in_rows(&batch.slice(row, 1));
            let taken = left_out.taker.take(&self.checks.name, &row, check.row_error());
            taken.map_err(fault::carry)?;
            left_out.count.fetch_add(1, Memory::Relaxed);
        }
        kept(&batch, &holds)
    }

    /// Keeps some of the rows that break a rule, to be shown.
    fn show(&self, index: usize, batch: &RecordBatch, holds: &BooleanArray) {
        let columns: Vec<usize> = (0..self.columns.min(batch.num_columns())).collect();
        for row in broken_rows(holds) {
            if !self.counts.wants_examples(index) {
                return;
            }
            if let Ok(row) = batch.slice(row, 1).project(&columns) {
                self.counts.show_row(index, &self.names.in_rows(&row));
            }
        }
    }
}

/// The rows that break no rule.
fn kept(batch: &RecordBatch, holds: &BooleanArray) -> DataFusionResult<RecordBatch> {
    let kept: BooleanArray = holds.iter().map(|holds| Some(holds != Some(false))).collect();
    Ok(filter_record_batch(batch, &kept)?)
}

/// How many rows break a rule: those for which the condition is false, and not null.
fn broken(holds: &BooleanArray) -> u64 {
    (holds.len() - holds.null_count() - holds.true_count()) as u64
}

fn broken_rows(holds: &BooleanArray) -> impl Iterator<Item = usize> {
    (0..holds.len()).filter(|row| holds.is_valid(*row) && !holds.value(*row))
}

/// The partitions that are being read, each until its end. They belong to the node and not to a consumer, which may
/// end early, and may even hold its stream until the run ends: what is left can be taken at any time.
struct Unread(Vec<Mutex<Option<SendableRecordBatchStream>>>);

impl Unread {
    fn new(partitions: usize) -> Arc<Self> {
        Arc::new(Unread((0..partitions).map(|_| Mutex::default()).collect()))
    }

    fn lock(&self, partition: usize) -> MutexGuard<'_, Option<SendableRecordBatchStream>> {
        self.0[partition].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, partition: usize) -> Option<SendableRecordBatchStream> {
        self.lock(partition).take()
    }
}

/// A partition as its consumer reads it.
struct Looking {
    schema: SchemaRef,
    partition: usize,
    unread: Arc<Unread>,
}

impl Stream for Looking {
    type Item = DataFusionResult<RecordBatch>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut input = self.unread.lock(self.partition);
        let Some(rows) = input.as_mut() else { return Poll::Ready(None) };
        let polled = rows.as_mut().poll_next(context);
        // After an error the run ends.
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            *input = None;
        }
        polled
    }
}

impl RecordBatchStream for Looking {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

impl fmt::Debug for CheckExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckExec").field("entry", &self.checks().entry).finish_non_exhaustive()
    }
}

impl DisplayAs for CheckExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CheckExec: {}", labels(self.checks()))
    }
}

impl ExecutionPlan for CheckExec {
    fn name(&self) -> &str {
        CheckExec::NAME
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DataFusionResult<TreeNodeRecursion>,
    ) -> DataFusionResult<TreeNodeRecursion> {
        let mut recursion = TreeNodeRecursion::Continue;
        for expression in self.look.expressions.iter() {
            recursion = f(expression)?;
            if recursion == TreeNodeRecursion::Stop {
                break;
            }
        }
        Ok(recursion)
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        match children.pop() {
            Some(input) => Ok(Arc::new(self.with_input(input))),
            None => internal_err!("CheckExec has one input"),
        }
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    /// Rows that are read once more, such as those of a level of a recursive query, are looked at once.
    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let is_first = self.rounds.begin(partition) == 0;
        let input = self.input.execute(partition, context)?;
        let (schema, look) = (self.schema(), self.look.clone());
        let looked = input.map(move |batch| look.at(batch?, is_first));
        let looked = Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&schema), looked));
        if !is_first {
            return Ok(looked);
        }
        *self.unread.lock(partition) = Some(looked);
        Ok(Box::pin(Looking { schema, partition, unread: Arc::clone(&self.unread) }))
    }
}
