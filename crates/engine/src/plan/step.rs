//! A step of the job as the planner sees it.

use datafusion::logical_expr::LogicalPlan;

/// A step's logical plan, over the tables of other steps.
#[derive(Debug, Clone)]
pub struct LogicalStep {
    /// The step's name.
    pub name: String,
    /// What it does.
    pub plan: LogicalPlan,
}
