//! A checked job: what to run, with everything that was found out about it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use arrow_ipc::convert::{IpcSchemaEncoder, fb_to_schema};
use arrow_ipc::root_as_schema;
use millstream_core::{Error, Result};
use millstream_job::{Job, Lint};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::explain::Explanation;

/// The version of a plan that is written down.
const VERSION: u32 = 1;

/// A checked job: its graph, the columns of all its entries, and what a run of it would do. It does not change, and any
/// number of runs can start from it.
///
/// It can be written as JSON and read on another machine: then the job's variables and the columns of its sources are
/// those that were found when it was made, whatever the environment or the files say there. Secrets by reference travel
/// by the names of their variables or files. What a job says in plain text, such as a password in a URL, and the values
/// of its variables are part of what is written.
#[derive(Debug, Clone)]
pub struct JobPlan {
    pub(crate) job: Arc<Job>,
    pub(crate) sources: Arc<KnownSources>,
    pub(crate) columns: BTreeMap<String, SchemaRef>,
    pub(crate) warnings: Vec<Lint>,
    pub(crate) explanation: Explanation,
}

/// What is known of the sources of a job before a run looks at them.
#[derive(Debug, Default)]
pub struct KnownSources {
    /// The columns of their files, without those that the job adds.
    pub columns: HashMap<String, SchemaRef>,
    /// What looking at them has read the beginning of and cannot be read again, such as a pipe.
    pub consumed: Vec<String>,
}

/// A plan as it is written.
#[derive(Serialize, Deserialize)]
pub(crate) struct WrittenPlan {
    version: u32,
    pub(crate) path: String,
    pub(crate) text: String,
    pub(crate) variables: BTreeMap<String, String>,
    set: BTreeMap<String, String>,
    /// What `today` and `now` were, in milliseconds since 1970.
    #[serde(default)]
    pub(crate) now: Option<i64>,
    /// Of the files of each source.
    sources: BTreeMap<String, WrittenColumns>,
    /// Of the rows of each source and transform.
    columns: BTreeMap<String, WrittenColumns>,
    explanation: Explanation,
}

/// Columns as the schema of Arrow's IPC format, in hexadecimal digits.
#[derive(Serialize, Deserialize)]
struct WrittenColumns {
    arrow: String,
}

impl JobPlan {
    /// The job.
    pub fn job(&self) -> &Arc<Job> {
        &self.job
    }

    /// How it would run.
    pub fn explain(&self) -> &Explanation {
        &self.explanation
    }

    /// What is strange about the job and no error.
    pub fn warnings(&self) -> &[Lint] {
        &self.warnings
    }

    /// The columns of a source or transform.
    pub fn columns(&self, entry: &str) -> Option<&SchemaRef> {
        self.columns.get(entry)
    }

    /// The plan as JSON.
    ///
    /// # Errors
    /// Never for a plan that an engine has made.
    pub fn to_json(&self) -> Result<Value> {
        let written = |(entry, columns): (&String, &SchemaRef)| (entry.clone(), WrittenColumns::of(columns));
        let written = WrittenPlan {
            version: VERSION,
            path: self.job.path().to_owned(),
            text: self.job.text.whole(),
            variables: self.job.variables.clone(),
            set: self.job.set.clone(),
            now: Some(self.job.around.moment.milliseconds()),
            sources: self.sources.columns.iter().map(written).collect(),
            columns: self.columns.iter().map(written).collect(),
            explanation: self.explanation.clone(),
        };
        serde_json::to_value(written).map_err(|cause| Error::internal("a plan cannot be written").cause(cause))
    }
}

/// The plan of `job` as JSON, whose sources have files with these columns, as far as workers have to know it: without
/// its explanation.
pub(crate) fn written_plan(job: &Job, sources: impl Iterator<Item = (String, SchemaRef)>) -> Result<Value> {
    let written = WrittenPlan {
        version: VERSION,
        path: job.path().to_owned(),
        text: job.text.whole(),
        variables: job.variables.clone(),
        set: job.set.clone(),
        now: Some(job.around.moment.milliseconds()),
        sources: sources.map(|(name, columns)| (name, WrittenColumns::of(&columns))).collect(),
        columns: BTreeMap::new(),
        explanation: Explanation::default(),
    };
    serde_json::to_value(written).map_err(|cause| Error::internal("a plan cannot be written").cause(cause))
}

impl WrittenPlan {
    /// The plan that `json` holds.
    pub(crate) fn read(json: &Value) -> Result<Self> {
        if let Some(version) = json["version"].as_u64().filter(|version| *version > VERSION.into()) {
            return Err(Error::newer("the plan", version, VERSION));
        }
        Self::deserialize(json).map_err(|cause| Error::job("this is not a plan of a job").cause(cause))
    }

    /// The plan, of `job`, which was parsed from its text, with these warnings.
    pub(crate) fn plan(self, job: Job, warnings: Vec<Lint>) -> Result<JobPlan> {
        let job = Job { set: self.set, ..job };
        let read = |(entry, columns): (String, WrittenColumns)| Ok((entry, columns.schema()?));
        let of_sources = self.sources.into_iter().map(read).collect::<Result<_>>()?;
        Ok(JobPlan {
            sources: Arc::new(KnownSources { columns: of_sources, consumed: Vec::new() }),
            job: Arc::new(job),
            columns: self.columns.into_iter().map(read).collect::<Result<_>>()?,
            warnings,
            explanation: self.explanation,
        })
    }
}

impl WrittenColumns {
    fn of(schema: &Schema) -> Self {
        let message = IpcSchemaEncoder::new().schema_to_fb(schema);
        WrittenColumns { arrow: message.finished_data().iter().map(|byte| format!("{byte:02x}")).collect() }
    }

    fn schema(&self) -> Result<SchemaRef> {
        let damaged = || Error::job("the columns of the plan are damaged");
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes = self.arrow.as_bytes().chunks(2).map(pair).collect::<Option<Vec<u8>>>().ok_or_else(damaged)?;
        let schema = root_as_schema(&bytes).map_err(|cause| damaged().cause(cause))?;
        Ok(Arc::new(fb_to_schema(schema)))
    }
}

/// What can be run: a job, whose sources are looked at first, or a plan.
#[derive(Debug, Clone)]
pub struct Runnable {
    pub(crate) job: Arc<Job>,
    pub(crate) known: Option<Arc<KnownSources>>,
}

impl From<Job> for Runnable {
    fn from(job: Job) -> Self {
        Arc::new(job).into()
    }
}

impl From<Arc<Job>> for Runnable {
    fn from(job: Arc<Job>) -> Self {
        Runnable { job, known: None }
    }
}

impl From<&JobPlan> for Runnable {
    fn from(plan: &JobPlan) -> Self {
        Runnable { job: Arc::clone(&plan.job), known: Some(Arc::clone(&plan.sources)) }
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field, TimeUnit};

    use super::*;

    #[test]
    fn columns_come_back_as_they_were() {
        let list = DataType::List(Arc::new(Field::new("item", DataType::Decimal128(38, 3), true)));
        let schema = Schema::new(vec![
            Field::new("a b", DataType::Utf8View, false),
            Field::new("t", DataType::Timestamp(TimeUnit::Microsecond, Some("Europe/Berlin".into())), true),
            Field::new("l", list, true),
        ]);
        let written = WrittenColumns::of(&schema);
        assert_eq!(written.schema().expect("it is sound").as_ref(), &schema);
        for damaged in [&written.arrow[..8], "zz", ""] {
            assert!(WrittenColumns { arrow: damaged.to_owned() }.schema().is_err(), "{damaged}");
        }
    }
}
