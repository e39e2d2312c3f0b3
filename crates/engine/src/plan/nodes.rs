//! The planner of queries: DataFusion's, which knows the nodes of ours.

use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use futures::future::BoxFuture;

use super::checked::CheckedRowsPlanner;
use super::extension::Nodes;
use super::lookup::{LookupRowsPlanner, Lookups};
use super::mapped::MappedRowsPlanner;
use super::ordered::RowsInOrderPlanner;
use super::sort::Sorting;
use super::sorted::SortedRowsPlanner;

/// Plans queries as DataFusion does, and the nodes of ours.
#[derive(Debug)]
pub struct NodesPlanner {
    /// What sorts may use.
    pub sorting: Sorting,
    /// What lookups may use.
    pub lookups: Lookups,
}

impl QueryPlanner for NodesPlanner {
    fn create_physical_plan<'a, 'b, 'c, 'future>(
        &'a self,
        plan: &'b LogicalPlan,
        session: &'c dyn Session,
    ) -> BoxFuture<'future, DataFusionResult<Arc<dyn ExecutionPlan>>>
    where
        'a: 'future,
        'b: 'future,
        'c: 'future,
        Self: 'future,
    {
        planned(self, plan, session)
    }
}

fn planned<'a>(
    nodes: &NodesPlanner,
    plan: &'a LogicalPlan,
    session: &'a dyn Session,
) -> BoxFuture<'a, DataFusionResult<Arc<dyn ExecutionPlan>>> {
    let planner = DefaultPhysicalPlanner::with_extension_planners(vec![
        Arc::new(Nodes(SortedRowsPlanner(nodes.sorting.clone()))),
        Arc::new(Nodes(LookupRowsPlanner(nodes.lookups.clone()))),
        Arc::new(Nodes(RowsInOrderPlanner)),
        Arc::new(Nodes(MappedRowsPlanner)),
        Arc::new(Nodes(CheckedRowsPlanner)),
    ]);
    Box::pin(async move { planner.create_physical_plan(plan, session).await })
}
