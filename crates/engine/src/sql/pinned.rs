//! `now()` and its like at a time that is given, as tests of jobs do.

use std::sync::Arc;

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
    /// At `now`, in milliseconds since 1970; `None` if that is no time.
    pub fn at(now: i64) -> Option<Self> {
        DateTime::from_timestamp_millis(now).map(PinnedTime)
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

#[cfg(test)]
mod tests {
    use arrow::util::pretty::pretty_format_batches;
    use datafusion::prelude::SessionContext;

    use super::*;
    use crate::sql::checked;

    #[tokio::test]
    async fn every_function_of_the_present_has_the_time() {
        let context = checked(SessionContext::new());
        context.add_analyzer_rule(Arc::new(PinnedTime::at(1_767_225_600_500).expect("a time")));
        for (expression, value) in [
            ("now()", "2026-01-01T00:00:00.500"),
            ("current_timestamp", "2026-01-01T00:00:00.500"),
            ("current_date", "2026-01-01"),
            ("today()", "2026-01-01"),
            ("current_time", "00:00:00.500"),
            (
                "(SELECT max(current_date - INTERVAL '1 day') FROM (VALUES (1), (2)) v(n) WHERE now() > '2026-01-01')",
                "2025-12-31",
            ),
        ] {
            let frame = context.sql(&format!("SELECT {expression} AS x")).await.expect(expression);
            let table = pretty_format_batches(&frame.collect().await.expect(expression)).expect("a table").to_string();
            assert!(table.contains(&format!("| {value}")), "{expression}: {table}");
        }
    }
}
