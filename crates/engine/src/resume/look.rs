//! What commands look at between runs: the loads that all runs of a job share.

use std::sync::Arc;

use arrow::datatypes::Schema;
use millstream_core::sink::LoadContext;
use millstream_core::{Step, StepKind};
use millstream_job::SinkStep;

use super::ResumePoint;
use crate::context::RunContext;

impl ResumePoint {
    /// What a sink is looked at with that loads nothing.
    pub fn looking(&self, context: &RunContext, sink: &SinkStep) -> LoadContext {
        self.looking_as(context, sink, context.steps.add(&sink.name.value, StepKind::Load, sink.sink.name()))
    }

    /// The same, with these counters of the sink.
    pub fn looking_as(&self, context: &RunContext, sink: &SinkStep, step: Arc<Step>) -> LoadContext {
        LoadContext {
            run: self.run.clone(),
            first: self.first().to_owned(),
            sink: sink.name.value.clone(),
            marker: None,
            notes: None,
            take_over: false,
            worker: None,
            schema: Arc::new(Schema::empty()),
            partitions: 1,
            ordered: false,
            io: context.runtimes.io(),
            scratch: context.scratch.folder().to_owned(),
            programs: Arc::default(),
            budget: Arc::clone(&context.budget),
            step,
            refusals: None,
        }
    }
}
