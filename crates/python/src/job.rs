//! Jobs that Python has built, as JSON.

use std::sync::Arc;

use millstream::{Engine, Error, Failure, Job, JobBuilder, Result};
use pyo3::prelude::*;
use serde_json::{Map, Value};

use crate::errors;

/// The text of the job file of a job, which is JSON: `{"sources": {"places": {…}}, …}`.
#[pyfunction]
pub fn job_text(py: Python<'_>, job: &str) -> PyResult<String> {
    Ok(builder(job).map_err(|error| errors::of_error(py, error))?.to_string())
}

/// The job, checked.
///
/// # Errors
/// Everything that is wrong with it.
pub async fn built(engine: &Engine, job: &str, path: &str) -> Result<Arc<Job>, Failure> {
    builder(job)?.path(path).build(engine).await
}

/// The builder of the job.
///
/// # Errors
/// If it is not JSON of such a form.
pub fn builder(job: &str) -> Result<JobBuilder> {
    let not_json = |cause| Error::internal("a job was not handed over as JSON").cause(cause);
    let job: Map<String, Value> = serde_json::from_str(job).map_err(not_json)?;
    let mut builder = JobBuilder::new();
    for (section, entries) in job {
        let Value::Object(entries) = entries else { continue };
        for (name, settings) in entries {
            builder = match section.as_str() {
                "sources" => builder.source(&name, settings),
                "functions" => builder.function(&name, settings),
                "transforms" => builder.transform(&name, settings),
                "sinks" => builder.sink(&name, settings),
                other => return Err(Error::internal(format!("a job has no `{other}`"))),
            };
        }
    }
    Ok(builder)
}
