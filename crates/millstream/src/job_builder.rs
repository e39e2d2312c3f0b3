//! Jobs that a program builds.

use std::fmt;
use std::sync::Arc;

use millstream_engine::job_text::job_file;
use millstream_engine::{Engine, Failure, ParseOptions, Query, RowStream};
use millstream_job::Job;
use serde_json::{Map, Value, json};

/// A job file in the making. Displayed, it is the text of that file: YAML that `millstream run` runs.
///
/// The settings of entries are what a job file says of them, as JSON. Texts are taken as they are: a `${NAME}` in them
/// is no variable.
#[derive(Debug, Clone)]
pub struct JobBuilder {
    path: String,
    root: Map<String, Value>,
}

impl Default for JobBuilder {
    fn default() -> Self {
        JobBuilder::new()
    }
}

impl JobBuilder {
    /// A job without entries.
    pub fn new() -> Self {
        JobBuilder { path: "job.yaml".to_owned(), root: Map::new() }
    }

    /// The path of the job file. It appears in messages, and it identifies the job in the run history: give a job that
    /// may be resumed a path of its own. Without it: `job.yaml` in the working directory.
    pub fn path(self, path: impl Into<String>) -> Self {
        JobBuilder { path: path.into(), ..self }
    }

    /// Adds a source, or replaces the one of that name.
    pub fn source(self, name: &str, settings: Value) -> Self {
        self.entry("sources", name, settings)
    }

    /// Adds a transform, or replaces the one of that name.
    pub fn transform(self, name: &str, settings: Value) -> Self {
        self.entry("transforms", name, settings)
    }

    /// Adds a transform that is a SQL query over the other entries.
    pub fn sql(self, name: &str, query: &str) -> Self {
        self.transform(name, json!({"sql": query}))
    }

    /// Adds a function that the queries may call, or replaces the one of that name.
    pub fn function(self, name: &str, settings: Value) -> Self {
        self.entry("functions", name, settings)
    }

    /// Adds a sink, or replaces the one of that name.
    pub fn sink(self, name: &str, settings: Value) -> Self {
        self.entry("sinks", name, settings)
    }

    fn entry(mut self, section: &str, name: &str, settings: Value) -> Self {
        let section = self.root.entry(section).or_insert_with(|| Value::Object(Map::new()));
        section[name] = settings;
        self
    }

    /// The job.
    ///
    /// # Errors
    /// Everything that is wrong with it. Lines and columns are those of its text.
    pub async fn build(&self, engine: &Engine) -> Result<Arc<Job>, Failure> {
        let options = ParseOptions { needs_secrets: true, ..ParseOptions::default() };
        Ok(engine.parse_job(&self.path, &self.to_string(), &options).await?.job)
    }

    /// Reads the rows of a source, which has these settings.
    ///
    /// # Errors
    /// Everything that is wrong with it; what goes wrong later comes from the stream.
    pub async fn read(engine: &Engine, source: Value) -> Result<RowStream, Failure> {
        // A job has a sink; this one is never opened.
        let job = JobBuilder::new().source("rows", source).sink("stream", json!({"from": "rows", "write": "discard"}));
        engine.rows(job.build(engine).await?, "rows").await
    }
}

/// The job of a query, whose rows are those of [`Query::entry`]. It needs a sink.
impl From<&Query> for JobBuilder {
    fn from(query: &Query) -> Self {
        JobBuilder { root: query.entries().clone(), ..JobBuilder::new() }
    }
}

impl fmt::Display for JobBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&job_file(&self.root))
    }
}
