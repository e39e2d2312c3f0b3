//! Joins that fit: a hash join holds its build side in memory and cannot spill it, a sort-merge join can.

use std::sync::Arc;

use datafusion::common::stats::Precision;
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

/// The hash table and the copies made while it is built take about as much again as the rows.
const BUILD_FACTOR: usize = 2;

/// The physical plan of `plan`. Where the build side of a hash join would not fit into `memory` bytes, its joins are
/// planned as sort-merge joins instead. Sides of unknown size are taken to fit.
pub async fn physical_plan(
    plan: &LogicalPlan,
    state: &SessionState,
    memory: usize,
) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    let physical = state.query_planner().create_physical_plan(plan, state).await?;
    if !has_too_large_a_build_side(&physical, memory)? {
        return Ok(physical);
    }
    let mut config = state.config().clone();
    config.options_mut().optimizer.prefer_hash_join = false;
    let sorting = SessionStateBuilder::new_from_existing(state.clone()).with_config(config).build();
    sorting.query_planner().create_physical_plan(plan, &sorting).await
}

fn has_too_large_a_build_side(plan: &Arc<dyn ExecutionPlan>, memory: usize) -> DataFusionResult<bool> {
    if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        let statistics = StatisticsContext::new().compute(join.left().as_ref(), &StatisticsArgs::new())?;
        if let Precision::Exact(bytes) | Precision::Inexact(bytes) = statistics.total_byte_size
            && bytes.saturating_mul(BUILD_FACTOR) > memory
        {
            return Ok(true);
        }
    }
    for child in plan.children() {
        if has_too_large_a_build_side(child, memory)? {
            return Ok(true);
        }
    }
    Ok(false)
}
