//! What a sequence's file may say: the doc comments are the reference, the types the schema.

use std::collections::BTreeMap;

use millstream_core::program::CommandLine;
use millstream_core::spec::{Duration, Size, TextOrSecret};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::around::{Allow, Priority};
use crate::entries::{Scalar, Texts};

/// A file with `steps`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SequenceKeys {
    /// When the sequence starts by itself, under `millstream schedule`.
    #[schemars(with = "Value")]
    pub schedule: Option<Value>,
    /// The time zone of `${today}` and `${now}`, as the IANA database names it, such as `Europe/Berlin`. If left out,
    /// that of `schedule` is used, or UTC.
    #[schemars(with = "String")]
    pub timezone: Option<String>,
    /// How much of the cores its steps get where others want them, too. Jobs may have a lower one of their own.
    pub priority: Priority,
    /// The parameters that those may set who may start the sequence at a server, and not change it (the role
    /// `operate`): a list of names, or names with the values that each may have, a list of them or a regular
    /// expression.
    pub allow: Allow,
    /// Names and values. Steps use them as `${NAME}`, and `--set NAME=…` replaces them. A value may use dates,
    /// variables of the environment, and parameters above it. One without a value has to be given.
    pub parameters: BTreeMap<String, ParameterKeys>,
    /// What is done. Each step has a name. It starts once the steps that it `needs` are over; without `needs` at once.
    #[schemars(extend("minProperties" = 1))]
    pub steps: BTreeMap<String, StepKeys>,
}

/// The value of a parameter; with nothing in its place it has to be given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct ParameterKeys(pub Option<Scalar>);

/// A step: exactly one of `job`, `sequence`, `command`, `query`, `wait`, `webhook` and `mail`, and when and how it
/// runs.
///
/// `${steps.load.rows_written}` in its texts is a result of an earlier step. A job has the results `rows_read`,
/// `rows_written`, `rows_rejected`, `run`; a query the columns of its first row; a command `exit_code` and `output`; a
/// webhook `status` and `body`; a wait for a file its path as `file`. All but queries have `duration_ms` and `ok`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StepKeys {
    /// Runs a job: the path of its file, from the folder of this file.
    #[schemars(with = "String", length(min = 1))]
    pub job: Option<String>,
    /// Runs another sequence as one step: the path of its file, from the folder of this file.
    #[schemars(with = "String", length(min = 1))]
    pub sequence: Option<String>,
    /// Runs a program: its name and its arguments, without a shell. It succeeds with exit code 0.
    #[schemars(with = "CommandLine")]
    pub command: Option<CommandLine>,
    /// Runs a query on the database in `from`. The columns of its first row are the results of the step.
    #[schemars(with = "String", length(min = 1))]
    pub query: Option<String>,
    /// The database of `query`, such as `postgres://etl@db.example/shop`. A block of its name beside it, such as
    /// `postgres`, has the settings that a source would have.
    #[schemars(with = "String", length(min = 1))]
    pub from: Option<String>,
    /// Waits for a file, or until a query on a database gives something true.
    #[schemars(with = "WaitKeys")]
    pub wait: Option<WaitKeys>,
    /// Sends a request.
    #[schemars(with = "RequestKeys")]
    pub webhook: Option<RequestKeys>,
    /// Sends a mail, by the server in `smtp` of the machine file.
    #[schemars(with = "LetterKeys")]
    pub mail: Option<LetterKeys>,
    /// Values of variables of the job, or of parameters of the sequence, as `--set` gives them.
    pub set: BTreeMap<String, Scalar>,
    /// The steps that have to be over before this one starts: one name, or a list.
    pub needs: Texts,
    /// When the step runs, once all that it needs is over: `success`, if no earlier step has failed (the default);
    /// `failure`, if any earlier step has failed; `always`; or a SQL condition over results of earlier steps, such as
    /// `steps.rows.n > 0`, and parameters: then no earlier step may have failed, either. Earlier steps are those that
    /// it needs, directly or indirectly. Otherwise the step is skipped, which is no failure, or, because of a failure,
    /// not run, which is one.
    #[schemars(with = "String")]
    pub when: Option<String>,
    /// How often a step that fails is attempted again. If left out it is not.
    #[schemars(with = "RetriesKeys")]
    pub retries: Option<RetriesKeys>,
    /// How long each attempt may take. One that takes longer is stopped and has failed.
    #[schemars(with = "Duration")]
    pub time_limit: Option<Duration>,
    /// A pool of the machine file, which limits how many of its steps run together.
    #[schemars(with = "String", length(min = 1))]
    pub pool: Option<String>,
    /// Runs the step once for each item: a variable, which is `${NAME}` in the texts of the step, and its values. A job
    /// or sequence that has a variable or parameter of this name gets it without `set`.
    #[schemars(with = "BTreeMap<String, ItemsKeys>", extend("minProperties" = 1, "maxProperties" = 1))]
    pub for_each: Option<BTreeMap<String, ItemsKeys>>,
    /// How many items of `for_each` run together; 1 if left out.
    #[schemars(with = "u32", range(min = 1, max = 1024))]
    pub parallel: Option<u32>,
    /// Whether the job is kept running, as one that reads a queue: whenever it ends it starts again, after a pause that
    /// grows while it fails.
    pub keep_running: bool,
    /// Memory that is reserved for the step, such as `2GiB`. If left out it gets a fair part.
    #[schemars(with = "Size")]
    pub memory: Option<Size>,
}

/// A wait: `file`, or `query` and `from`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WaitKeys {
    /// A path, a pattern or a URL, of which at least one file has to be there.
    #[schemars(with = "String", length(min = 1))]
    pub file: Option<String>,
    /// A query on the database in `from`.
    #[schemars(with = "String", length(min = 1))]
    pub query: Option<String>,
    /// The database of `query`. A block of its name beside it, such as `postgres`, has the settings that a source would
    /// have.
    #[schemars(with = "String", length(min = 1))]
    pub from: Option<String>,
    /// A SQL condition over the columns of the query's first row. If left out, the first value has to be neither null,
    /// false nor 0.
    #[schemars(with = "String")]
    pub until: Option<String>,
    /// How long it waits at most; then the step has failed. If left out, `time_limit` is the only limit.
    #[schemars(with = "Duration")]
    pub r#for: Option<Duration>,
    /// How often it looks.
    pub every: Duration,
}

impl Default for WaitKeys {
    fn default() -> Self {
        let every = Duration::from_seconds(10);
        WaitKeys { file: None, query: None, from: None, until: None, r#for: None, every }
    }
}

/// A request.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestKeys {
    /// The URL.
    pub url: TextOrSecret,
    /// The method.
    #[serde(default)]
    pub method: Method,
    /// The body. If left out, `POST`, `PUT` and `PATCH` send what the steps have come to so far, as JSON.
    #[serde(default)]
    #[schemars(with = "String")]
    pub body: Option<String>,
    /// Headers of the request.
    #[serde(default)]
    pub headers: BTreeMap<String, TextOrSecret>,
    /// The path of a PEM file with certificates of authorities to trust besides the system's.
    #[serde(default)]
    #[schemars(with = "String", length(min = 1))]
    pub ca: Option<String>,
}

/// The method of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs)]
pub enum Method {
    Get,
    #[default]
    Post,
    Put,
    Patch,
    Delete,
}

/// A mail.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LetterKeys {
    /// Its recipients: `ops@example.com`, or `Operations <ops@example.com>`.
    pub to: Texts,
    /// Its subject; if left out it names the sequence and what it has come to.
    #[serde(default)]
    #[schemars(with = "String", length(min = 1))]
    pub subject: Option<String>,
    /// What is attached.
    #[serde(default)]
    pub attach: Attachment,
}

/// What is attached to a mail.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Attachment {
    /// The report of the sequence, as one HTML file.
    #[default]
    Report,
    /// Nothing.
    Nothing,
}

/// How often a step that fails is attempted again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetriesKeys {
    /// How often, from 1 to 100, beside the first attempt. A job is resumed.
    #[schemars(range(min = 1, max = 100))]
    pub count: u32,
    /// How long it waits before each time.
    #[serde(default = "RetriesKeys::usual_wait")]
    pub wait: Duration,
}

impl RetriesKeys {
    const fn usual_wait() -> Duration {
        Duration::from_seconds(60)
    }
}

/// The items of a loop.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ItemsKeys {
    /// A list.
    List(#[schemars(length(min = 1), extend("uniqueItems" = true))] Vec<Scalar>),
    /// Days.
    Days(DaysKeys),
    /// Rows of a query. `${NAME}` is the first column, `${NAME.column}` any.
    Rows(RowsOfQueryKeys),
    /// Files. `${NAME}` is the path, `${NAME.name}` the name of the file, `${NAME.stem}` the name without its last
    /// ending.
    Files(FilesKeys),
}

/// Days, from the first to the last, both included.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DaysKeys {
    /// The first day, such as `2026-01-01` or `${today - 7 days}`.
    pub first: String,
    /// The last day. There is no item if it is before the first.
    pub last: String,
    /// What lies between two items.
    #[serde(default)]
    pub every: Pace,
}

/// What lies between two days of a loop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Pace {
    /// A day.
    #[default]
    Day,
    /// A week.
    Week,
    /// A month: the items are of the same day in each, or of the last day where there is none.
    Month,
}

/// Rows of a query.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RowsOfQueryKeys {
    /// The query.
    #[schemars(length(min = 1))]
    pub query: String,
    /// The database. A block of its name beside it, such as `postgres`, has the settings that a source would have.
    #[schemars(length(min = 1))]
    pub from: String,
}

/// Files.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FilesKeys {
    /// A path, a pattern or a URL. The items are the files that are there when the step starts, by name.
    #[schemars(length(min = 1))]
    pub files: String,
}
