//! Joins that fit: a hash join holds its build side in memory and cannot spill it, a sort-merge join can.
//!
//! A join by a condition (nested loops) spills its left side, but then executes it again, and tells the left rows
//! without a match once for every partition of its right side: it gets a left side that can be executed again, and one
//! partition on the right wherever it may have to spill.

use std::sync::Arc;

use datafusion::common::JoinType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::rerun::AgainExec;
use crate::node::recompute_with;

/// The hash table and the copies made while it is built take about as much again as the rows.
const BUILD_FACTOR: usize = 2;

/// The physical plan of `plan`. Where the build side of a hash join would not fit into `memory` bytes, its joins are
/// planned as sort-merge joins instead. Sides of unknown size are taken to fit.
pub async fn physical_plan(
    plan: &LogicalPlan,
    state: &SessionState,
    memory: usize,
) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    let mut physical = state.query_planner().create_physical_plan(plan, state).await?;
    if has_too_large_a_build_side(&physical, memory)? {
        let mut config = state.config().clone();
        config.options_mut().optimizer.prefer_hash_join = false;
        let sorting = SessionStateBuilder::new_from_existing(state.clone()).with_config(config).build();
        physical = sorting.query_planner().create_physical_plan(plan, &sorting).await?;
    }
    Ok(physical.transform_up(|node| able_to_spill(node, memory))?.data)
}

/// A join by a condition that gives the right rows when it spills.
fn able_to_spill(node: Arc<dyn ExecutionPlan>, memory: usize) -> DataFusionResult<Transformed<Arc<dyn ExecutionPlan>>> {
    let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() else { return Ok(Transformed::no(node)) };
    let left = Arc::new(AgainExec::new(Arc::clone(join.left())));
    let right = match needs_one_right_side(join, memory)? {
        true => Arc::new(CoalescePartitionsExec::new(Arc::clone(join.right()))),
        false => Arc::clone(join.right()),
    };
    Ok(Transformed::yes(recompute_with(node, vec![left, right])?))
}

/// Whether `join` tells left rows without a match, and might do so once for every partition of its right side.
/// (DataFusion 55 says of its `NestedLoopJoinExec` that it counts the matches of each partition apart when it spills.)
fn needs_one_right_side(join: &NestedLoopJoinExec, memory: usize) -> DataFusionResult<bool> {
    let tells_left = match join.join_type() {
        JoinType::Left | JoinType::Full | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => true,
        JoinType::Inner | JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => false,
    };
    let fits = bytes_of(join.left())?.is_some_and(|bytes| bytes.saturating_mul(BUILD_FACTOR) <= memory);
    Ok(tells_left && join.right().output_partitioning().partition_count() > 1 && !fits)
}

/// About how many rows and bytes come out of `plan`, as far as anything is known of that.
pub(super) fn size_of(plan: &Arc<dyn ExecutionPlan>) -> DataFusionResult<(Option<usize>, Option<usize>)> {
    let statistics = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new())?;
    Ok((statistics.num_rows.get_value().copied(), statistics.total_byte_size.get_value().copied()))
}

fn bytes_of(plan: &Arc<dyn ExecutionPlan>) -> DataFusionResult<Option<usize>> {
    Ok(size_of(plan)?.1)
}

fn has_too_large_a_build_side(plan: &Arc<dyn ExecutionPlan>, memory: usize) -> DataFusionResult<bool> {
    if let Some(join) = plan.downcast_ref::<HashJoinExec>()
        && bytes_of(join.left())?.is_some_and(|bytes| bytes.saturating_mul(BUILD_FACTOR) > memory)
    {
        return Ok(true);
    }
    for child in plan.children() {
        if has_too_large_a_build_side(child, memory)? {
            return Ok(true);
        }
    }
    Ok(false)
}
