//! What coordinator and workers give each other.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use millstream_core::step::StepSnapshot;
use millstream_core::{Error, Result};
use millstream_state::rejects::{Line, RejectLine};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::code::CodeFile;
use crate::chunks::shared::KeptDelivery;
use crate::read::Filtered;
use crate::report::{MissingColumn, Tally};
use crate::urls::Urls;

/// What workers are to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Assignment {
    /// Units are loaded into the sinks of a job.
    Load(Box<Task>),
    /// Their lines are counted.
    Count(CountTask),
}

impl Assignment {
    /// The folder at which paths begin, and whether it has to be there.
    pub(super) fn folder(&self) -> (&Path, bool) {
        match self {
            Assignment::Load(task) => (&task.folder, task.uses_files),
            Assignment::Count(task) => (&task.folder, task.reads_files),
        }
    }
}

/// What a worker has to know of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Task {
    /// The job, as [`crate::JobPlan::to_json`] writes it.
    pub plan: Value,
    /// The code that it runs.
    pub code: Vec<CodeFile>,
    /// What runs it where the run was started, by the steps, as far as they say.
    pub interpreters: BTreeMap<String, String>,
    /// The hashes of what its lookups look up in, by the steps that do it.
    pub references: BTreeMap<String, String>,
    /// The sources whose units are handed out.
    pub distributed: BTreeSet<String>,
    /// The job's fingerprint: rows of a job with another one are others.
    pub fingerprint: String,
    /// The run.
    pub run: String,
    /// The first run of its resume chain.
    pub first: String,
    /// The folder at which paths begin.
    pub folder: PathBuf,
    /// Whether it reads files, or writes some.
    pub uses_files: bool,
    /// The loads in the ledgers of the sinks, by the sinks' names.
    pub loads: BTreeMap<String, SharedLoad>,
    /// Whether units that have changed are loaded as they are now.
    pub accept_changed: bool,
}

/// What is to be counted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct CountTask {
    /// What is read.
    pub urls: Urls,
    /// Whether the lines of each unit are kept.
    pub by_unit: bool,
    /// The folder at which paths begin.
    pub folder: PathBuf,
    /// Whether files are read.
    pub reads_files: bool,
}

/// A load that workers join.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SharedLoad {
    /// Its name in the ledger.
    pub name: String,
    /// Whether it belongs to all runs.
    pub incremental: bool,
}

/// What a worker wants to be kept before it commits.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Keep(pub KeptDelivery);

/// What a worker tells while it reads.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Told {
    /// The delivery of this number is committed.
    Committed(u64),
    /// Rejects that belong to no delivery yet.
    Lines(Vec<Line>),
}

/// What has come of a bundle.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct BundleOutcome {
    /// How many units it had.
    pub units: u64,
    /// What was counted of each step; of rows only what belongs to no delivery.
    pub steps: Vec<StepSnapshot>,
    /// How many records have come to entries that may leave something out.
    pub came: HashMap<String, u64>,
    /// Columns that files lacked.
    pub missing_columns: Vec<MissingColumn>,
    /// Bytes of local files that were in the page cache, and that were not.
    pub cached: (u64, u64),
    /// What has come into files, if that is where the rows go.
    pub files: Option<OfFiles>,
    /// The part of a unit that it was, if it was one whose rows go into a ledger.
    pub part: Option<OfPart>,
    /// Seconds of processor time.
    pub cpu_seconds: f64,
    /// Seconds that its threads were ready to run while others had the processor.
    pub delayed_seconds: f64,
    /// Seconds.
    pub seconds: f64,
    /// The most memory of the worker's process so far, in bytes.
    pub peak_rss_bytes: u64,
}

/// A part of a unit whose records are all in the target.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct OfPart {
    /// The source of the unit.
    pub source: String,
    /// Its URI.
    pub uri: String,
    /// What filters have left out of it.
    pub left_out: Filtered,
}

/// What has come of a bundle whose rows go into files.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct OfFiles {
    /// What each sink has got.
    pub sinks: BTreeMap<String, ForSink>,
    /// How many records filters have left out of each source before they were rows.
    pub filtered: BTreeMap<String, u64>,
    /// What was rejected.
    pub rejects: Vec<RejectLine>,
}

/// What a sink has got of a bundle.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ForSink {
    /// What its load has handed over.
    pub handed: Value,
    /// What has become of the records.
    pub tally: Tally,
}

/// `value` as JSON.
pub(super) fn to_value(value: &impl Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(|cause| Error::internal("a message cannot be written").cause(cause))
}

/// What `value` holds.
pub(super) fn from_value<T: DeserializeOwned>(value: Value) -> Result<T> {
    serde_json::from_value(value).map_err(|cause| Error::internal("a message cannot be read").cause(cause))
}
