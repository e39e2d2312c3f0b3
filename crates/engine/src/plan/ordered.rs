//! The order that a transform's rows are said to have already: a node that lets them pass, tells the planner, and holds
//! them against it. What a source says of its rows is held against them by whoever reads them, who knows file and line.

use std::fmt;
use std::sync::Arc;

use datafusion::common::{DFSchemaRef, internal_err};
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, UserDefinedLogicalNodeCore};
use datafusion::physical_expr::expressions::col;
use datafusion::physical_expr::{Distribution, PhysicalSortExpr};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::StreamExt;

use super::extension::{PlanNode, Planning, only};
use crate::fault;
use crate::node::{over_one_input, statistics_of_input};
use crate::read::order::{OrderCheck, SortedBy};

/// The rows of its input, which have an order already.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RowsInOrder {
    input: LogicalPlan,
    keys: Vec<SortedBy>,
    /// The name of the step that says so.
    step: String,
}

impl RowsInOrder {
    /// The rows of `input`, of which `step` says that they are in the order of `keys`.
    pub fn plan(input: LogicalPlan, keys: Vec<SortedBy>, step: &str) -> LogicalPlan {
        let node = RowsInOrder { input, keys, step: step.to_owned() };
        LogicalPlan::Extension(Extension { node: Arc::new(node) })
    }

    /// Whether `node` is one.
    pub fn is(node: &LogicalPlan) -> bool {
        matches!(node, LogicalPlan::Extension(Extension { node }) if node.as_any().is::<RowsInOrder>())
    }
}

impl PartialOrd for RowsInOrder {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        self.input.partial_cmp(&other.input)
    }
}

impl UserDefinedLogicalNodeCore for RowsInOrder {
    fn name(&self) -> &str {
        "RowsInOrder"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        self.input.schema()
    }

    fn expressions(&self) -> Vec<Expr> {
        let schema = self.input.schema();
        let column = |key: &SortedBy| schema.iter().find(|(_, field)| *field.name() == key.column).map(Expr::from);
        self.keys.iter().filter_map(column).collect()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&str> = self.keys.iter().map(|key| key.column.as_str()).collect();
        write!(f, "RowsInOrder: {}", keys.join(", "))
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> DataFusionResult<Self> {
        match inputs.pop() {
            Some(input) => Ok(RowsInOrder { input, ..self.clone() }),
            None => internal_err!("rows in order have one input"),
        }
    }

    /// All columns that it is in the order of, beside those that are wanted.
    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let schema = self.input.schema();
        let mut wanted: Vec<usize> = output_columns.to_vec();
        wanted.extend(self.keys.iter().filter_map(|key| schema.index_of_column_by_name(None, &key.column)));
        wanted.sort_unstable();
        wanted.dedup();
        Some(vec![wanted])
    }
}

/// Plans [`RowsInOrder`].
pub struct RowsInOrderPlanner;

impl PlanNode for RowsInOrderPlanner {
    type Node = RowsInOrder;

    fn plan(
        &self,
        rows: &RowsInOrder,
        inputs: &[Arc<dyn ExecutionPlan>],
        _: &Planning<'_>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let input = only("RowsInOrder", inputs)?;
        Ok(Arc::new(InOrderExec::new(input, rows.keys.clone(), rows.step.clone())?))
    }
}

/// Gives the rows of its input, all in one partition, after a look at their order.
#[derive(Debug)]
pub struct InOrderExec {
    input: Arc<dyn ExecutionPlan>,
    keys: Vec<SortedBy>,
    order: Vec<PhysicalSortExpr>,
    step: String,
    properties: Arc<PlanProperties>,
}

impl InOrderExec {
    fn new(input: Arc<dyn ExecutionPlan>, keys: Vec<SortedBy>, step: String) -> DataFusionResult<Self> {
        let schema = input.schema();
        let key = |key: &SortedBy| Ok(PhysicalSortExpr::new(col(&key.column, &schema)?, key.options));
        let order = keys.iter().map(key).collect::<DataFusionResult<Vec<_>>>()?;
        let properties = in_order(&input, &order);
        Ok(InOrderExec { input, keys, order, step, properties })
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        let properties = in_order(&input, &self.order);
        InOrderExec { input, keys: self.keys.clone(), order: self.order.clone(), step: self.step.clone(), properties }
    }
}

/// What is known of `input`, and that it is in this order.
fn in_order(input: &Arc<dyn ExecutionPlan>, order: &[PhysicalSortExpr]) -> Arc<PlanProperties> {
    let mut equivalences = input.equivalence_properties().clone();
    equivalences.add_ordering(order.iter().cloned());
    Arc::new(input.properties().as_ref().clone().with_eq_properties(equivalences))
}

impl DisplayAs for InOrderExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&str> = self.keys.iter().map(|key| key.column.as_str()).collect();
        write!(f, "InOrderExec: sorted_by=[{}]", keys.join(", "))
    }
}

impl ExecutionPlan for InOrderExec {
    over_one_input!("InOrderExec");

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        vec![Distribution::SinglePartition]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    statistics_of_input!();

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let schema = self.schema();
        let check = OrderCheck::new(&schema, &self.keys).map_err(fault::carry)?;
        let step = self.step.clone();
        let checked = self.input.execute(partition, context)?.map(move |batch| {
            let batch = batch?;
            check.check(&batch, None).map_err(|error| fault::carry(error.in_step(&step)))?;
            Ok(batch)
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, checked)))
    }
}
