//! Rows with what they find in a reference, as a node of the logical plan.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::{DFSchema, DFSchemaRef, internal_err};
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, UserDefinedLogicalNodeCore};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;

use super::super::extension::{PlanNode, Planning};
use super::exec::LookupExec;
use super::reference::Lookups;
use super::shape::Shape;

/// The rows of its first input, with columns of those of its second that match.
#[derive(Debug, Clone)]
pub struct LookupRows {
    input: LogicalPlan,
    reference: LogicalPlan,
    shape: Arc<Shape>,
    /// The columns of the input that are compared, in the order of the shape.
    probed: Vec<Expr>,
    schema: DFSchemaRef,
}

impl LookupRows {
    /// What the rows of `input` find in `reference`, which has the columns that `shape` needs.
    ///
    /// # Errors
    /// If the columns do not go together.
    pub fn plan(input: LogicalPlan, reference: LogicalPlan, shape: Arc<Shape>) -> DataFusionResult<LogicalPlan> {
        let columns = input.schema();
        let probed = shape.probed().map(|name| {
            let index = columns.fields().iter().position(|field| field.name() == name);
            match index {
                Some(index) => Ok(Expr::from(columns.qualified_field(index))),
                None => internal_err!("there is no column `{name}`"),
            }
        });
        let probed = probed.collect::<DataFusionResult<_>>()?;
        let schema = schema(&input, &shape)?;
        let node = LookupRows { input, reference, shape, probed, schema };
        Ok(LogicalPlan::Extension(Extension { node: Arc::new(node) }))
    }
}

fn schema(input: &LogicalPlan, shape: &Shape) -> DataFusionResult<DFSchemaRef> {
    let taken = shape.taken.iter().map(|take| Arc::clone(&take.field));
    let fields = input.schema().fields().iter().cloned().chain(taken);
    Ok(Arc::new(DFSchema::try_from(Schema::new(fields.collect::<Vec<_>>()))?))
}

impl PartialEq for LookupRows {
    fn eq(&self, other: &Self) -> bool {
        (&self.input, &self.reference) == (&other.input, &other.reference) && Arc::ptr_eq(&self.shape, &other.shape)
    }
}

impl Eq for LookupRows {}

impl Hash for LookupRows {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.shape.step, &self.input, &self.reference).hash(state);
    }
}

impl PartialOrd for LookupRows {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.input.partial_cmp(&other.input)
    }
}

impl UserDefinedLogicalNodeCore for LookupRows {
    fn name(&self) -> &str {
        "LookupRows"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input, &self.reference]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        self.probed.clone()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LookupRows: in={}, on=[{}]", self.shape.reference, self.shape.conditions())
    }

    fn with_exprs_and_inputs(&self, probed: Vec<Expr>, inputs: Vec<LogicalPlan>) -> DataFusionResult<Self> {
        let Ok([input, reference]) = <[LogicalPlan; 2]>::try_from(inputs) else {
            return internal_err!("a lookup has two inputs");
        };
        let schema = schema(&input, &self.shape)?;
        Ok(LookupRows { input, reference, shape: Arc::clone(&self.shape), probed, schema })
    }

    /// Of the rows those that are wanted, beside those that are compared; of the reference all that it has.
    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let width = self.input.schema().fields().len();
        let wanted = output_columns.iter().copied().filter(|column| *column < width).collect();
        Some(vec![wanted, (0..self.reference.schema().fields().len()).collect()])
    }
}

/// Plans [`LookupRows`].
pub struct LookupRowsPlanner(pub Lookups);

impl PlanNode for LookupRowsPlanner {
    type Node = LookupRows;

    fn plan(
        &self,
        rows: &LookupRows,
        inputs: &[Arc<dyn ExecutionPlan>],
        Planning { planner, session, context }: &Planning<'_>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let [input, reference] = inputs else { return internal_err!("a lookup has two inputs") };
        let index = |expression: &Expr| {
            let planned = planner.create_physical_expr(expression, rows.input.schema(), *session, context)?;
            match planned.downcast_ref::<Column>() {
                Some(column) => Ok(column.index()),
                None => internal_err!("a lookup compares columns, and {planned} is none"),
            }
        };
        let probed = rows.probed.iter().map(index).collect::<DataFusionResult<Vec<_>>>()?;
        let (input, reference) = (Arc::clone(input), Arc::clone(reference));
        Ok(Arc::new(LookupExec::new(input, reference, Arc::clone(&rows.shape), probed, self.0.clone())?))
    }
}
