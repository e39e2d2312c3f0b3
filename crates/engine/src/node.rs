//! What all plan nodes of ours have in common, so that each says only what is its own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::SchemaRef;
use datafusion::error::Result as DataFusionResult;
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{
    Boundedness, ChildrenPropertiesMode, EmissionType, ReplaceChildrenOptions,
};
use datafusion::physical_plan::{ExecutionPlan, Partitioning, PlanProperties};

/// The properties of a node that hands on its rows as they come, in no order, over `partitions`.
pub fn streaming(schema: SchemaRef, partitions: usize) -> Arc<PlanProperties> {
    Arc::new(PlanProperties::new(
        EquivalenceProperties::new(schema),
        Partitioning::UnknownPartitioning(partitions),
        EmissionType::Incremental,
        Boundedness::Bounded,
    ))
}

/// `node` with other children and its properties computed anew: the body of the deprecated
/// `ExecutionPlan::with_new_children`, which the trait still requires.
pub fn recompute_with(
    node: Arc<dyn ExecutionPlan>,
    children: Vec<Arc<dyn ExecutionPlan>>,
) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    node.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
}

/// Counts how often each partition of a node was executed. The same plan can be executed again: the recursive part of
/// a `WITH RECURSIVE` once for every level, the left side of a join by a condition when it turns out not to fit in
/// memory. A node whose rows are used up by then must make them anew, or they would be missing in silence.
#[derive(Debug)]
pub struct Rounds(Vec<AtomicUsize>);

impl Rounds {
    /// No partition of `partitions` was executed yet.
    pub fn new(partitions: usize) -> Self {
        Rounds((0..partitions).map(|_| AtomicUsize::new(0)).collect())
    }

    /// How often `partition` was executed before this time.
    pub fn begin(&self, partition: usize) -> usize {
        self.0.get(partition).map_or(0, |times| times.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether `partition` was ever executed.
    pub fn has_begun(&self, partition: usize) -> bool {
        self.0.get(partition).is_some_and(|times| times.load(Ordering::Relaxed) > 0)
    }
}

/// Something of its own for each time that a node is executed as a whole.
#[derive(Debug)]
pub struct EachRound<T> {
    rounds: Rounds,
    made: Mutex<Vec<T>>,
}

impl<T: Clone> EachRound<T> {
    /// For a node of `partitions`, none of which was executed yet.
    pub fn new(partitions: usize) -> Self {
        EachRound { rounds: Rounds::new(partitions), made: Mutex::default() }
    }

    /// What `partition`, which is executed now, shares with the others of its round: made by the first that comes to
    /// it.
    pub fn begin(&self, partition: usize, mut make: impl FnMut(usize) -> DataFusionResult<T>) -> DataFusionResult<T> {
        let round = self.rounds.begin(partition);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        while made.len() <= round {
            let next = make(made.len())?;
            made.push(next);
        }
        Ok(made[round].clone())
    }
}

/// The methods of an `ExecutionPlan` that is a leaf without expressions and has a field `properties`.
macro_rules! leaf {
    ($name:literal) => {
        fn name(&self) -> &str {
            $name
        }

        fn properties(&self) -> &Arc<PlanProperties> {
            &self.properties
        }

        fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
            Vec::new()
        }

        $crate::node::without_expressions!();

        fn replace_children(
            self: Arc<Self>,
            _: Vec<Arc<dyn ExecutionPlan>>,
            _: datafusion::physical_plan::execution_plan::ReplaceChildrenOptions,
        ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
            Ok(self)
        }
    };
}

/// The methods of an `ExecutionPlan` without expressions that has a field `input` and a method `with_input`, which
/// makes the same node over another one.
macro_rules! over_one_input {
    ($name:literal) => {
        fn name(&self) -> &str {
            $name
        }

        fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
            vec![&self.input]
        }

        $crate::node::without_expressions!();

        fn replace_children(
            self: Arc<Self>,
            mut children: Vec<Arc<dyn ExecutionPlan>>,
            _: datafusion::physical_plan::execution_plan::ReplaceChildrenOptions,
        ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
            match children.pop() {
                Some(input) => Ok(Arc::new(self.with_input(input))),
                None => datafusion::common::internal_err!("{} has one input", $name),
            }
        }
    };
}

/// What a node without expressions says of them, and the deprecated way to replace children.
macro_rules! without_expressions {
    () => {
        fn apply_expressions(
            &self,
            _: &mut dyn FnMut(
                &Arc<dyn datafusion::physical_expr::PhysicalExpr>,
            ) -> DataFusionResult<datafusion::common::tree_node::TreeNodeRecursion>,
        ) -> DataFusionResult<datafusion::common::tree_node::TreeNodeRecursion> {
            Ok(datafusion::common::tree_node::TreeNodeRecursion::Continue)
        }

        fn with_new_children(
            self: Arc<Self>,
            children: Vec<Arc<dyn ExecutionPlan>>,
        ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
            $crate::node::recompute_with(self, children)
        }
    };
}

/// The statistics of an `ExecutionPlan` that has as many rows as its one input.
macro_rules! statistics_of_input {
    () => {
        fn child_stats_requests(
            &self,
            partition: Option<usize>,
        ) -> Vec<datafusion::physical_plan::statistics::ChildStats> {
            vec![datafusion::physical_plan::statistics::ChildStats::At(partition)]
        }

        fn statistics_from_inputs(
            &self,
            inputs: &[Arc<datafusion::common::Statistics>],
            _: &datafusion::physical_plan::statistics::StatisticsArgs,
        ) -> DataFusionResult<Arc<datafusion::common::Statistics>> {
            let of_input = inputs.first().cloned();
            Ok(of_input.unwrap_or_else(|| Arc::new(datafusion::common::Statistics::new_unknown(&self.schema()))))
        }
    };
}

/// The asynchronous `scan` of a `TableProvider`, by a method that is not: see `plan/extension.rs` for the reason.
macro_rules! scan_by {
    ($method:ident) => {
        fn scan<'a, 'b, 'c, 'd, 'future>(
            &'a self,
            session: &'b dyn datafusion::catalog::Session,
            projection: Option<&'c Vec<usize>>,
            filters: &'d [datafusion::logical_expr::Expr],
            _: Option<usize>,
        ) -> futures::future::BoxFuture<'future, DataFusionResult<Arc<dyn ExecutionPlan>>>
        where
            'a: 'future,
            'b: 'future,
            'c: 'future,
            'd: 'future,
            Self: 'future,
        {
            Box::pin(std::future::ready(self.$method(session, projection, filters)))
        }
    };
}

pub(crate) use {leaf, over_one_input, scan_by, statistics_of_input, without_expressions};
