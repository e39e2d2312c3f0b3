//! Sorts that say more than SQL can: of which rows only one stays, and that rows with equal keys keep the order in
//! which they came.
//!
//! To the logical plan such a sort is a node of our own, through which columns are pushed down as through any other.
//! How it is done is [`super::sort`]'s.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::compute::SortOptions;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{DFSchemaRef, internal_err};
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::expr::Sort;
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, LogicalPlanBuilder, UserDefinedLogicalNodeCore};
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::ExecutionPlan;
use millstream_sort::Keep;

use super::extension::{PlanNode, Planning, only};
use super::ordered::RowsInOrder;
use super::sort::{ExternalSort, Sorting};

/// One row stays of those that are equal in the first keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Hash)]
pub struct OneOf {
    /// In so many of them.
    pub keys: usize,
    /// Which one.
    pub keep: Keep,
}

/// The rows of its input in order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub struct SortedRows {
    input: LogicalPlan,
    keys: Vec<Sort>,
    one_of: Option<OneOf>,
    stable: bool,
    pool: Option<String>,
}

impl SortedRows {
    /// The rows of `input` in the order of `keys`. With `stable`, rows with equal keys are in the order in which they
    /// came, and their sources are read in order.
    pub fn new(input: LogicalPlan, keys: Vec<Sort>, one_of: Option<OneOf>, stable: bool) -> Self {
        SortedRows { input, keys, one_of, stable, pool: None }
    }

    /// The same on the scratch disks of `pool`.
    pub fn on(self, pool: Option<String>) -> Self {
        SortedRows { pool, ..self }
    }

    /// As a node of a plan.
    pub fn plan(self) -> LogicalPlan {
        LogicalPlan::Extension(Extension { node: Arc::new(self) })
    }

    /// Whether `plan` has a node for which rows must come in the order of their sources.
    pub fn needs_order_of_arrival(plan: &LogicalPlan) -> DataFusionResult<bool> {
        let mut found = false;
        plan.apply_with_subqueries(|node| {
            found |= SortedRows::of(node).is_some_and(|sorted| sorted.stable) || RowsInOrder::is(node);
            Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })?;
        Ok(found)
    }

    /// `plan`, where rows come in the order of their sources, with nodes of our own for all sorts: the optimizer takes
    /// a sort for needless whose rows are sorted again, but a stable one keeps its order.
    pub fn keep_all(plan: LogicalPlan) -> DataFusionResult<LogicalPlan> {
        let kept = plan.transform_up_with_subqueries(|node| match node {
            LogicalPlan::Sort(sort) => {
                let sorted = SortedRows::new(Arc::unwrap_or_clone(sort.input), sort.expr, None, true).plan();
                let limited = match sort.fetch {
                    Some(_) => LogicalPlanBuilder::from(sorted).limit(0, sort.fetch)?.build()?,
                    None => sorted,
                };
                Ok(Transformed::yes(limited))
            }
            node => Ok(Transformed::no(node)),
        })?;
        Ok(kept.data)
    }

    fn of(node: &LogicalPlan) -> Option<&SortedRows> {
        let LogicalPlan::Extension(Extension { node }) = node else { return None };
        node.as_any().downcast_ref()
    }
}

impl UserDefinedLogicalNodeCore for SortedRows {
    fn name(&self) -> &str {
        "SortedRows"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        self.input.schema()
    }

    fn expressions(&self) -> Vec<Expr> {
        self.keys.iter().map(|key| key.expr.clone()).collect()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<String> = self.keys.iter().map(ToString::to_string).collect();
        write!(f, "SortedRows: {}", keys.join(", "))
    }

    fn with_exprs_and_inputs(&self, expressions: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> DataFusionResult<Self> {
        let (Some(input), true) = (inputs.pop(), expressions.len() == self.keys.len()) else {
            return internal_err!("a sort has one input and its keys");
        };
        let keys = self.keys.iter().zip(expressions);
        let keys = keys.map(|(key, expression)| Sort::new(expression, key.asc, key.nulls_first)).collect();
        Ok(SortedRows { input, keys, one_of: self.one_of, stable: self.stable, pool: self.pool.clone() })
    }

    /// Those of the keys are added by the optimizer.
    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        Some(vec![output_columns.to_vec()])
    }
}

/// Plans [`SortedRows`], whose sorts may use what is given.
pub struct SortedRowsPlanner(pub Sorting);

impl PlanNode for SortedRowsPlanner {
    type Node = SortedRows;

    fn plan(
        &self,
        sorted: &SortedRows,
        inputs: &[Arc<dyn ExecutionPlan>],
        Planning { planner, session, context }: &Planning<'_>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let input = only("SortedRows", inputs)?;
        let key = |key: &Sort| {
            let expr = planner.create_physical_expr(&key.expr, sorted.input.schema(), *session, context)?;
            let options = SortOptions { descending: !key.asc, nulls_first: key.nulls_first };
            Ok(PhysicalSortExpr::new(expr, options))
        };
        let keys = sorted.keys.iter().map(key).collect::<DataFusionResult<Vec<_>>>()?;
        // A key that comes twice counts once.
        let different = |keys: &[PhysicalSortExpr]| LexOrdering::new(keys.iter().cloned()).map_or(0, |keys| keys.len());
        let one_of = sorted.one_of.map(|one_of| OneOf { keys: different(&keys[..one_of.keys]), ..one_of });
        let Some(order) = LexOrdering::new(keys) else { return internal_err!("a sort has a key") };
        Ok(Arc::new(ExternalSort::over(order, one_of, sorted.pool.clone(), input, self.0.clone())?))
    }
}
