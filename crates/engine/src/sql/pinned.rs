//! `now()` and its like at a time that is given, as tests of jobs do.

use std::sync::Arc;
use std::time::SystemTime;

use chrono::{DateTime, Utc};
use datafusion::common::Result as DataFusionResult;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::AnalyzerRule;

use super::rewrite;

/// The functions that tell the time; their other names lead to these.
const FUNCTIONS: &[&str] = &["now", "current_date", "current_time"];

/// Puts the values of the functions at this time in their place.
#[derive(Debug)]
pub struct PinnedTime(DateTime<Utc>);

impl PinnedTime {
    /// At `now`.
    pub fn new(now: SystemTime) -> Self {
        PinnedTime(now.into())
    }
}

impl AnalyzerRule for PinnedTime {
    fn name(&self) -> &str {
        "pinned_time"
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> DataFusionResult<LogicalPlan> {
        let context = SimplifyContext::builder()
            .with_query_execution_start_time(Some(self.0))
            .with_config_options(Arc::new(config.clone()))
            .build();
        rewrite::expressions(plan, |expr, _| match expr {
            Expr::ScalarFunction(call) if FUNCTIONS.contains(&call.name()) && call.args.is_empty() => {
                match call.func.simplify(Vec::new(), &context)? {
                    ExprSimplifyResult::Simplified(value) => Ok(Transformed::yes(value)),
                    ExprSimplifyResult::Original(_) => Ok(Transformed::no(Expr::ScalarFunction(call))),
                }
            }
            other => Ok(Transformed::no(other)),
        })
    }
}
