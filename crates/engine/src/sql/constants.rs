//! Values of a query that do not depend on its rows and cannot be computed: `CAST('a' AS int)`, `1 / 0`.
//!
//! DataFusion leaves them for the run to fail by. Only what is surely computed counts: a branch of CASE, the right side
//! of AND, a later argument of coalesce may never be.

use std::sync::Arc;

use arrow::array::RecordBatchOptions;
use arrow::datatypes::Schema;
use arrow::record_batch::RecordBatch;
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan, Operator, Volatility};
use millstream_core::ErrorKind;

use crate::fault;

/// Why a constant of `plan` cannot be computed, if there is one.
pub fn constant_fault(state: &SessionState, plan: &LogicalPlan) -> Option<Arc<DataFusionError>> {
    // With the conversions that the types ask for: `number = 'a'` has one.
    let analysed = state.analyzer().execute_and_check(plan.clone(), state.config_options(), |_, _| {}).ok()?;
    let mut found = None;
    let walked = analysed.apply_with_subqueries(|node| {
        node.apply_expressions(|expression| {
            expression.apply(|part| {
                found = found.take().or_else(|| fault_of(state, part));
                Ok(match &found {
                    Some(_) => TreeNodeRecursion::Stop,
                    None if is_conditional(part) => TreeNodeRecursion::Jump,
                    None => TreeNodeRecursion::Continue,
                })
            })
        })
    });
    walked.ok().and(found)
}

/// Why `expression` cannot be computed, if it is a constant.
fn fault_of(state: &SessionState, expression: &Expr) -> Option<Arc<DataFusionError>> {
    if matches!(expression, Expr::Literal(..) | Expr::Alias(_)) || !is_constant(expression) {
        return None;
    }
    let error = compute(state, expression).err()?;
    let error = Arc::new(error);
    let kind = fault::unwrap(DataFusionError::Shared(Arc::clone(&error))).kind();
    (kind == ErrorKind::Data).then_some(error)
}

fn compute(state: &SessionState, expression: &Expr) -> DataFusionResult<()> {
    let physical = state.create_physical_expr(expression.clone(), &DFSchema::empty())?;
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    let one_row = RecordBatch::try_new_with_options(Schema::empty().into(), Vec::new(), &options)?;
    physical.evaluate(&one_row).map(|_| ())
}

/// Whether nothing in `expression` depends on a row, on the time or on chance, and all of it is surely computed.
fn is_constant(expression: &Expr) -> bool {
    let varies = |part: &Expr| match part {
        Expr::Literal(..) | Expr::Cast(_) | Expr::TryCast(_) | Expr::Negative(_) | Expr::Not(_) => false,
        Expr::BinaryExpr(_) | Expr::Between(_) | Expr::Like(_) | Expr::SimilarTo(_) | Expr::InList(_) => {
            is_conditional(part)
        }
        Expr::IsNull(_) | Expr::IsNotNull(_) => false,
        Expr::ScalarFunction(call) => is_conditional(part) || call.func.signature().volatility != Volatility::Immutable,
        _ => true,
    };
    expression.exists(|part| Ok(varies(part))).is_ok_and(|varies| !varies)
}

/// Whether parts of `expression` may never be computed.
fn is_conditional(expression: &Expr) -> bool {
    match expression {
        Expr::Case(_) => true,
        Expr::BinaryExpr(BinaryExpr { op, .. }) => matches!(op, Operator::And | Operator::Or),
        Expr::ScalarFunction(call) => call.func.short_circuits(),
        _ => false,
    }
}
