//! Which plans give, of new files of incremental sources, rows that are added to those of earlier files: what a load
//! all at once of such sources requires.
//!
//! Each row has to come from one row of an incremental source, whatever other files there are. So filters, expressions,
//! lookups, and joins to entries that are not incremental are additive. What combines rows of several files (an
//! aggregate, a window, a limit, one of equal rows) is not: it would combine those of one run. A join of two
//! incremental sources would miss pairs of an old and a new row, and an outer join that keeps rows of the other side
//! would repeat these.

use std::sync::Arc;

use datafusion::common::JoinType;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use millstream_core::transform::Per;

use crate::plan::lookup::row_inputs;
use crate::plan::shared_scan::SharedScanExec;
use crate::plan::sort::ExternalSort;
use crate::plan::work::WorkExec;
use crate::read::exec::ReadExec;

/// Whether `plan` is additive; otherwise why not, in words that end a sentence.
pub fn additive(plan: &Arc<dyn ExecutionPlan>) -> Result<(), String> {
    is_incremental(plan).map(drop)
}

/// Whether rows of `plan` come from an incremental source.
fn is_incremental(plan: &Arc<dyn ExecutionPlan>) -> Result<bool, String> {
    // A meter passes for what it meters.
    if plan.name() == "MeterExec" {
        return plan.children().into_iter().try_fold(false, |any, child| Ok(any | is_incremental(child)?));
    }
    if let Some(read) = plan.downcast_ref::<ReadExec>() {
        return Ok(read.reader().incremental);
    }
    if let Some(shared) = plan.downcast_ref::<SharedScanExec>() {
        return is_incremental(shared.input());
    }
    let children = row_inputs(plan).into_iter().map(is_incremental).collect::<Result<Vec<bool>, String>>()?;
    let any = children.contains(&true);
    if !any {
        return Ok(false);
    }
    if let Some(kind) = join_type(plan) {
        check_join(kind, &children)?;
    } else if children.contains(&false) {
        return Err("some of its rows come from an entry that is not incremental".to_owned());
    }
    match combines(plan) {
        Some(why) => Err(why),
        None => Ok(true),
    }
}

/// The type of a join; a cross join has all pairs, as an inner one.
fn join_type(plan: &Arc<dyn ExecutionPlan>) -> Option<JoinType> {
    let hash = plan.downcast_ref::<HashJoinExec>().map(|join| *join.join_type());
    let merge = plan.downcast_ref::<SortMergeJoinExec>().map(SortMergeJoinExec::join_type);
    let nested = plan.downcast_ref::<NestedLoopJoinExec>().map(|join| *join.join_type());
    let cross = (plan.name() == "CrossJoinExec").then_some(JoinType::Inner);
    hash.or(merge).or(nested).or(cross)
}

fn check_join(kind: JoinType, children: &[bool]) -> Result<(), String> {
    let keeps = match children {
        [true, true] => return Err("a join of two incremental sources misses pairs of old and new rows".to_owned()),
        [true, false] => &[JoinType::Inner, JoinType::Left, JoinType::LeftSemi, JoinType::LeftAnti, JoinType::LeftMark],
        _ => &[JoinType::Inner, JoinType::Right, JoinType::RightSemi, JoinType::RightAnti, JoinType::RightMark],
    };
    match keeps.contains(&kind) {
        true => Ok(()),
        false => Err("the join gives rows of the other side, which would come again in each run".to_owned()),
    }
}

/// Why a node combines rows of several files, if it does.
fn combines(plan: &Arc<dyn ExecutionPlan>) -> Option<String> {
    if plan.fetch().is_some() || plan.name().contains("Limit") {
        return Some("a limit would count the rows of one run".to_owned());
    }
    if plan.downcast_ref::<ExternalSort>().is_some_and(ExternalSort::keeps_one_of_equal) {
        return Some("of equal rows, one of each run would stay".to_owned());
    }
    if let Some(work) = plan.downcast_ref::<WorkExec>() {
        let step = work.pool().step();
        return match work.pool().rules().per {
            Per::Row | Per::Batch => None,
            Per::Group => Some(format!("`{step}` would take the groups of one run")),
            Per::Stream => Some(format!("`{step}` would take the rows of one run")),
        };
    }
    let kinds = [
        ("Aggregate", "an aggregate would combine the rows of one run"),
        ("Window", "a window would look at the rows of one run"),
        ("Recursive", "a recursive query would see the rows of one run"),
        ("SymmetricHashJoin", "the join is not known to be additive"),
        ("PiecewiseMergeJoin", "the join is not known to be additive"),
    ];
    kinds.iter().find(|(part, _)| plan.name().contains(part)).map(|(_, why)| (*why).to_owned())
}
