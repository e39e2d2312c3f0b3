//! Rewriting the expressions of a plan, whose columns keep their names.

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result as DataFusionResult};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, LogicalPlan};

/// Rewrites each expression of `plan` and of its subqueries from the leaves up. `rewrite` sees the columns that the
/// expression can use.
pub fn expressions(
    plan: LogicalPlan,
    rewrite: impl Fn(Expr, &DFSchema) -> DataFusionResult<Transformed<Expr>>,
) -> DataFusionResult<LogicalPlan> {
    let of_plan = |plan: LogicalPlan| {
        let schema = merge_schema(&plan.inputs());
        let names = NamePreserver::new(&plan);
        let mut of_expression = |expr: Expr| {
            let name = names.save(&expr);
            let rewritten = expr.transform_up(|expr| rewrite(expr, &schema))?;
            Ok(rewritten.update_data(|expr| name.restore(expr)))
        };
        plan.map_expressions(|expr| match &expr {
            // A set cannot have a name of its own, only its members can.
            Expr::GroupingSet(_) => expr.map_children(&mut of_expression),
            _ => of_expression(expr),
        })
    };
    Ok(plan.transform_up_with_subqueries(of_plan)?.data)
}
