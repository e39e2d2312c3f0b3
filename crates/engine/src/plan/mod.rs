//! A job to one plan: the steps as logical plans, then each sink (and each step that several use) as a physical one.
//!
//! ```text
//!  job graph ─▶ logical plan a step ─▶ inline what one step uses ─▶ optimise ─▶ physical plans ─▶ meters
//!              (steps.rs)              tee what several use          ▲
//!                                      (shared.rs)                   └ columns and filters that a tee's users want
//! ```
//! A step with one user is a view: columns and filters push through it into the readers. A step with several is planned
//! once, with the union of the columns and the OR of the filters that its users want.

pub mod joins;
pub mod shared;
pub mod steps;

use std::sync::Arc;

use datafusion::error::Result as DataFusionResult;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};

/// `node` with other children and its properties computed anew: the body of the deprecated
/// `ExecutionPlan::with_new_children`, which the trait still requires.
pub fn recompute_with(
    node: Arc<dyn ExecutionPlan>,
    children: Vec<Arc<dyn ExecutionPlan>>,
) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    node.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
}
