//! How the sinks of a job take the rows of its queue, and what holds for them.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use millstream_core::epochs::{Guarantee, QueueFacts};
use millstream_core::queue::{Queue, SinkSet};
use millstream_core::{Error, Result};
use millstream_job::{CheckSeverity, Job, SinkStep};

use super::pipeline::{Pipeline, row_preserving_apart};
use crate::plan::shared::Physical;

/// The most sinks that take the rows of a queue: a batch has a bit for each.
const MOST_SINKS: usize = SinkSet::BITS as usize;

/// The plan of a job that reads a queue.
pub struct QueuePlan<'j> {
    /// The name of the source.
    pub name: &'j str,
    /// The queue.
    pub queue: Arc<dyn Queue>,
    /// The pipeline to each sink, and what holds for it.
    pub sinks: Vec<(Pipeline, Guarantee)>,
}

impl<'j> QueuePlan<'j> {
    /// The plan of `job`; `None` if it reads no queue.
    ///
    /// # Errors
    /// If a sink cannot take the rows, or not one by one.
    pub fn new(job: &'j Job, physical: &Physical) -> Result<Option<Self>> {
        let mut queues = job.sources.iter().filter_map(|source| Some((source.name.value.as_str(), source.queue()?)));
        let Some((name, queue)) = queues.next() else { return Ok(None) };
        let queue = queue.map_err(|fault| Error::job(fault.what).in_step(name))?;
        if job.sinks.len() > MOST_SINKS {
            return Err(Error::job(format!("a queue feeds at most {MOST_SINKS} sinks")).in_step(name));
        }
        if let Some((entry, _)) = job.checks().find(|(entry, check)| {
            let is_of_sink = job.sinks.iter().any(|sink| sink.name.value == **entry);
            check.severity != CheckSeverity::Reject && (is_of_sink || job.gives_rows_of(entry, name))
        }) {
            let what = format!("`{entry}` has a check that is judged when all rows have come, and `{name}` has no end");
            return Err(Error::job(what)
                .in_step(entry)
                .hint("write `severity: reject` if it is about single rows, or check the table afterwards"));
        }
        let (facts, mut metered) = (queue.facts(), HashSet::new());
        let sinks = job.sinks.iter().zip(&physical.roots).map(|(sink, root)| {
            let pipeline = pipeline(sink, name, &root.plan, &mut metered)?;
            Ok((pipeline, guarantee(sink, &facts)?))
        });
        Ok(Some(QueuePlan { name, queue, sinks: sinks.collect::<Result<_>>()? }))
    }
}

/// The one pipeline to `sink`, which begins at the queue `name`.
fn pipeline(
    sink: &SinkStep,
    name: &str,
    plan: &Arc<dyn ExecutionPlan>,
    metered: &mut HashSet<String>,
) -> Result<Pipeline> {
    let refused = |why: String| {
        let what =
            format!("`{name}` is a queue, which has no end, and `{}` cannot take its rows one by one", sink.name.value);
        Error::job(what).cause(why).hint("use filters, expressions, lookups and own code that takes single rows")
    };
    let mut pipelines = row_preserving_apart(plan, metered).map_err(refused)?;
    match pipelines.len() {
        1 if pipelines[0].read().source() == name => Ok(pipelines.remove(0)),
        1 => Err(refused(format!("it reads `{}`, which is not a queue", pipelines[0].read().source()))),
        _ => Err(refused("rows reach it by more than one path, as of a union or a join".to_owned())),
    }
}

fn guarantee(sink: &SinkStep, queue: &QueueFacts) -> Result<Guarantee> {
    sink.sink.guarantee(queue).map_err(|why| {
        Error::job(format!("`{}` cannot take rows of a queue", sink.name.value)).cause(why).hint(
            "write to a table of a database with `mode: append`, `merge` or `ignore`, to files that are only added, \
                 to a queue, to a program or to standard output",
        )
    })
}
