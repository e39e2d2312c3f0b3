//! A part of a plan that may be executed again.
//!
//! DataFusion's join by a condition executes its left side a second time when that turns out not to fit in memory. Many
//! of its operators (a repartitioning, a hash join) give their rows only once, and end the process or give nothing the
//! second time. So every time but the first, a copy that nothing is known of is executed instead.

use std::fmt;
use std::sync::Arc;

use datafusion::error::Result as DataFusionResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};

use crate::node::{EachRound, over_one_input, statistics_of_input};

/// Gives the rows of its input as often as it is executed.
#[derive(Debug)]
pub struct AgainExec {
    input: Arc<dyn ExecutionPlan>,
    /// The input, and a copy of it for each round but the first.
    inputs: EachRound<Arc<dyn ExecutionPlan>>,
}

impl AgainExec {
    /// Over `input`, which may give its rows only once.
    pub fn new(input: Arc<dyn ExecutionPlan>) -> Self {
        let inputs = EachRound::new(input.output_partitioning().partition_count());
        AgainExec { input, inputs }
    }

    fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        AgainExec::new(input)
    }
}

impl DisplayAs for AgainExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AgainExec")
    }
}

impl ExecutionPlan for AgainExec {
    over_one_input!("AgainExec");

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    statistics_of_input!();

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DataFusionResult<SendableRecordBatchStream> {
        let input = self.inputs.begin(partition, |round| match round {
            0 => Ok(Arc::clone(&self.input)),
            _ => reset_plan_states(Arc::clone(&self.input)),
        })?;
        input.execute(partition, context)
    }
}
