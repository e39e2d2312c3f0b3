//! Plans nodes of our own.
//!
//! DataFusion's traits for it are asynchronous. Their methods are written out here, as are those of its other traits: a
//! future that `async_trait` makes holds the parameters, and the compiler then proves anew for each method that all
//! types of a plan can be sent to other threads. That was more than half of the time to compile this crate
//! (<https://github.com/apache/datafusion/issues/13814>).

use std::future::ready;
use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::internal_err;
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{LogicalPlan, UserDefinedLogicalNode};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{ExtensionPlanner, PhysicalPlanner};
use futures::future::BoxFuture;

/// Plans one kind of node.
pub trait PlanNode: Send + Sync {
    /// The node.
    type Node: 'static;

    /// The operator for `node` over `inputs`.
    fn plan(
        &self,
        node: &Self::Node,
        inputs: &[Arc<dyn ExecutionPlan>],
        planning: &Planning<'_>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>>;
}

/// The only one of `inputs`, which are those of the node `name`.
pub fn only(name: &str, inputs: &[Arc<dyn ExecutionPlan>]) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    match inputs {
        [input] => Ok(Arc::clone(input)),
        _ => internal_err!("{name} has one input"),
    }
}

/// What DataFusion gives to plan with.
pub struct Planning<'a> {
    /// Plans expressions.
    pub planner: &'a dyn PhysicalPlanner,
    /// The session.
    pub session: &'a dyn Session,
    /// The context of the plan.
    pub context: &'a PhysicalPlanningContext,
}

/// A planner of nodes as DataFusion knows it.
pub struct Nodes<P>(pub P);

impl<P: PlanNode> Nodes<P> {
    fn plan(
        &self,
        node: &dyn UserDefinedLogicalNode,
        inputs: &[Arc<dyn ExecutionPlan>],
        planning: &Planning<'_>,
    ) -> DataFusionResult<Option<Arc<dyn ExecutionPlan>>> {
        let Some(own) = node.as_any().downcast_ref::<P::Node>() else { return Ok(None) };
        self.0.plan(own, inputs, planning).map(Some)
    }
}

impl<P: PlanNode> ExtensionPlanner for Nodes<P> {
    fn plan_extension<'a, 'b, 'c, 'd, 'e, 'f, 'g, 'h, 'future>(
        &'a self,
        planner: &'b dyn PhysicalPlanner,
        node: &'c dyn UserDefinedLogicalNode,
        _: &'d [&'e LogicalPlan],
        inputs: &'f [Arc<dyn ExecutionPlan>],
        session: &'g dyn Session,
        context: &'h PhysicalPlanningContext,
    ) -> BoxFuture<'future, DataFusionResult<Option<Arc<dyn ExecutionPlan>>>>
    where
        'a: 'future,
        'b: 'future,
        'c: 'future,
        'd: 'future,
        'e: 'future,
        'f: 'future,
        'g: 'future,
        'h: 'future,
        Self: 'future,
    {
        Box::pin(ready(self.plan(node, inputs, &Planning { planner, session, context })))
    }
}
