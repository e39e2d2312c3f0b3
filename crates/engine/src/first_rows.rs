//! The first rows of a step of a job that is prepared.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use futures::StreamExt;
use millstream_core::Error;
use millstream_job::Job;

use crate::context::RunContext;
use crate::failure::Failure;
use crate::fault;
use crate::prepare::Prepared;

/// At most `rows` rows of the step `name`, and its columns; of what the first sink reads, if none is named.
pub async fn first_rows(
    context: &RunContext,
    job: &Job,
    prepared: &Prepared<'_>,
    name: Option<String>,
    rows: usize,
) -> Result<(SchemaRef, Vec<RecordBatch>), Failure> {
    let name = name.or_else(|| job.sinks.first().map(|sink| sink.from.value.clone()));
    let name = name.ok_or_else(|| Error::job("the job has no step to show"))?;
    let physical = prepared.plan_first_rows(&name, Some(rows)).await?;
    let root = physical.roots.first().ok_or_else(|| Error::internal("the step has no plan"))?;
    let (plan, task) = (Arc::clone(&root.plan), context.session.task_ctx());
    let mut stream = datafusion::physical_plan::execute_stream(plan, task).map_err(fault::unwrap)?;
    let mut batches = Vec::new();
    while let Some(batch) = stream.next().await {
        batches.push(batch.map_err(fault::unwrap)?);
    }
    drop(stream);
    prepared.finish_workers().await?;
    Failure::of(prepared.unopened())?;
    Ok((root.plan.schema(), batches))
}
