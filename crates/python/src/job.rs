//! Jobs that Python has built, as JSON.

use millstream::{Engine, Error, Failure, JobBuilder, ParseOptions, Parsed, Result};
use pyo3::prelude::*;
use serde_json::{Map, Value};

use crate::errors;

/// The text of the job file of a job, which is JSON: `{"sources": {"places": {…}}, …}`.
#[pyfunction]
pub fn job_text(py: Python<'_>, job: &str) -> PyResult<String> {
    Ok(builder(job).map_err(|error| errors::of_error(py, error))?.to_string())
}

/// The job, checked, and what is strange about it.
///
/// # Errors
/// Everything that is wrong with it.
pub async fn parsed(engine: &Engine, job: &str, path: &str) -> Result<Parsed, Failure> {
    let options = ParseOptions { needs_secrets: true, ..ParseOptions::default() };
    engine.parse_job(path, &builder(job)?.to_string(), &options).await
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
