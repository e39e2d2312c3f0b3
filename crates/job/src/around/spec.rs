//! What a job file may say of its runs as a whole.

use std::collections::BTreeMap;

use millstream_core::program::CommandLine;
use millstream_core::spec::{Duration, Size, TextOrSecret};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::allow::Allow;
use super::hours::Hours;
use crate::entries::Texts;

/// The keys of a job that apply to its runs as a whole.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AroundKeys {
    /// How long a job that reads a queue runs: until it is `stopped` by a signal; until the queue is `empty`, and stays
    /// so for a while (`empty` means 5 seconds, `{empty: 1m}` a minute); `now`, until everything is loaded that is
    /// there when it begins; `{rows: N}`, until so many messages are loaded; or `{for: 10m}`. A job that reads a queue
    /// has to say it.
    #[schemars(with = "Until")]
    pub until: Option<Until>,
    /// When the rows of a queue that were read so far are committed: whichever comes first.
    pub commit: CommitKeys,
    /// How long a job that reads a queue keeps its rejects. Those of other jobs are kept as long as their run is in the
    /// run history.
    pub keep_rejects: Duration,
    /// What has to hold before a logical run begins. Otherwise nothing is touched, and the command ends with exit code
    /// 4, or, with `otherwise: skip`, with 0. A run that resumes another one does not ask again.
    pub require: Vec<RequirementKeys>,
    /// What a run that fails does next: it waits, and resumes itself. If left out it ends.
    #[schemars(with = "RetryRun")]
    pub retry_run: Option<RetryRun>,
    /// How much the sources of the job may ask of networks, servers and databases, all together.
    pub throttle: ThrottleKeys,
    /// The hours of the day in which the job runs, such as `20:00-06:00`, in its `timezone`. Outside of them no run
    /// begins: it waits. One that has not ended when they end stops reading, lets go of everything, and is resumed when
    /// they begin again.
    #[schemars(with = "Hours")]
    pub hours: Option<Hours>,
    /// How much of the cores its runs get where others want them, too.
    pub priority: Priority,
    /// The variables that those may set who may start the job at a server, and not change it (the role `operate`): a
    /// list of names, or names with the values that each may have, a list of them or a regular expression.
    pub allow: Allow,
    /// What is done after a run that succeeds.
    pub on_success: Vec<HookKeys>,
    /// What is done after a run that fails, is interrupted, or whose requirements do not hold, once it is not retried
    /// any more.
    pub on_failure: Vec<HookKeys>,
}

impl Default for AroundKeys {
    fn default() -> Self {
        AroundKeys {
            until: None,
            commit: CommitKeys::default(),
            keep_rejects: Duration::from_seconds(30 * 86_400),
            require: Vec::new(),
            retry_run: None,
            throttle: ThrottleKeys::default(),
            hours: None,
            priority: Priority::Normal,
            allow: Allow::default(),
            on_success: Vec::new(),
            on_failure: Vec::new(),
        }
    }
}

/// How much the sources of a job may ask of others, all together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ThrottleKeys {
    /// How many bytes they read a second at most, such as `10MiB`: of files as they are stored, packed or not, of
    /// databases as much as their rows take in memory. What is written is not counted: it follows what is read.
    #[schemars(with = "Size")]
    pub bytes_per_second: Option<Size>,
    /// How many connections they have open at once at most. Each source that connects to a server gets an equal part,
    /// and at least one; its own `connections` may be fewer. A sink that loads a database opens no more, either.
    #[schemars(with = "usize", range(min = 1, max = 256))]
    pub connections: Option<usize>,
}

/// How much of the cores a run gets where other programs of the machine want them, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// About a tenth of what others get; all, if nobody else wants them.
    Low,
    /// As much as others.
    #[default]
    Normal,
    /// About three times as much as others, if the system allows that to the user.
    High,
}

impl Priority {
    /// Its name, unless it is the usual one.
    pub fn in_words(self) -> Option<&'static str> {
        match self {
            Priority::Low => Some("low"),
            Priority::Normal => None,
            Priority::High => Some("high"),
        }
    }

    /// The nice value of its processes, as the system has it.
    pub fn nice(self) -> i32 {
        match self {
            Priority::Low => 10,
            Priority::Normal => 0,
            Priority::High => -5,
        }
    }
}

/// How long a job that reads a queue runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Until {
    /// One of the ends that need no number.
    End(UntilEnd),
    /// Until the queue has been empty for so long.
    Empty(UntilEmpty),
    /// Until so many messages are loaded.
    Rows(UntilRows),
    /// For so long.
    For(UntilTime),
}

/// An end of a job that reads a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum UntilEnd {
    /// A signal stops it.
    Stopped,
    /// The queue has been empty for 5 seconds.
    Empty,
    /// Everything is loaded that was there when it began.
    Now,
}

/// Until the queue has been empty for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UntilEmpty {
    /// For how long.
    pub empty: Duration,
}

/// Until some messages are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UntilRows {
    /// How many.
    #[schemars(range(min = 1))]
    pub rows: u64,
}

/// For some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UntilTime {
    /// How long.
    pub r#for: Duration,
}

/// When the rows of a queue that were read so far are committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CommitKeys {
    /// After so many messages.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub rows: u64,
    /// After so much text of messages.
    pub bytes: Size,
    /// After the first message has waited for so long.
    pub every: Duration,
}

impl Default for CommitKeys {
    fn default() -> Self {
        CommitKeys { rows: 30_000, bytes: Size(8_000_000), every: Duration::from_seconds(1) }
    }
}

/// Something that has to hold before a run begins: exactly one of `exists`, `query`, `units` and `age`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RequirementKeys {
    /// A path, a pattern or a URL, of which at least one file has to be there.
    #[schemars(with = "String", length(min = 1))]
    pub exists: Option<String>,
    /// A query on a database, whose first value has to be neither null, false nor 0.
    #[schemars(with = "QueryKeys")]
    pub query: Option<QueryKeys>,
    /// How many files a source has to have.
    #[schemars(with = "UnitsKeys")]
    pub units: Option<UnitsKeys>,
    /// How old the files of a source have to be.
    #[schemars(with = "AgeKeys")]
    pub age: Option<AgeKeys>,
    /// What the error says in place of the requirement in words.
    #[schemars(with = "String", length(min = 1))]
    pub message: Option<String>,
    /// What happens if it does not hold.
    pub otherwise: Otherwise,
}

/// What happens if a requirement does not hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Otherwise {
    /// The run fails with exit code 4.
    #[default]
    Fail,
    /// The run is skipped: the command says why, and succeeds.
    Skip,
}

/// A query on a database.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct QueryKeys {
    /// The database, such as `postgres://etl@db.example/shop`. A block of its name beside it, such as `postgres`, has
    /// the settings that a source would have.
    pub r#in: String,
    /// The query.
    #[schemars(length(min = 1))]
    pub sql: String,
}

/// How many files a source has.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnitsKeys {
    /// The source.
    pub of: String,
    /// The least number of files.
    #[schemars(range(min = 1))]
    pub min: u64,
}

/// How old the files of a source are: the time since they were changed, by the clock of this machine. A file from the
/// future is as young as can be.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("minProperties" = 2))]
pub struct AgeKeys {
    /// The source.
    pub of: String,
    /// The least age of each file, such as `10m`: younger ones may still be written.
    #[serde(default)]
    #[schemars(with = "Duration")]
    pub min: Option<Duration>,
    /// The largest age of the newest file, such as `24h`.
    #[serde(default)]
    #[schemars(with = "Duration")]
    pub max: Option<Duration>,
}

/// How often a run that fails resumes itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryRun {
    /// How often it is resumed, from 1 to 100. Mistakes in the job, bad data and interruptions are not retried.
    #[schemars(range(min = 1, max = 100))]
    pub count: u32,
    /// How long it waits before each time.
    #[serde(default = "RetryRun::usual_wait")]
    pub wait: Duration,
}

impl RetryRun {
    const fn usual_wait() -> Duration {
        Duration::from_seconds(60)
    }
}

/// Something that is done after a run: exactly one of `command`, `webhook` and `mail`. If it fails, that is a warning:
/// the run has ended as it has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HookKeys {
    /// A program and its arguments. It gets the report as JSON on standard input, and `MILLSTREAM_OUTCOME` (`done`,
    /// `failed`, `interrupted`), `MILLSTREAM_JOB` and `MILLSTREAM_RUN` in its environment.
    #[schemars(with = "CommandLine")]
    pub command: Option<CommandLine>,
    /// A URL that gets the report as JSON.
    #[schemars(with = "WebhookKeys")]
    pub webhook: Option<WebhookKeys>,
    /// A mail, by the server in `smtp` of the machine file.
    #[schemars(with = "MailKeys")]
    pub mail: Option<MailKeys>,
    /// How long it may take.
    pub timeout: HookTimeout,
}

/// How long a hook may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct HookTimeout(pub Duration);

impl Default for HookTimeout {
    fn default() -> Self {
        HookTimeout(Duration::from_seconds(60))
    }
}

/// A URL that gets the report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookKeys {
    /// The URL, to which the report is sent with `POST`.
    pub url: TextOrSecret,
    /// Headers of the request.
    #[serde(default)]
    pub headers: BTreeMap<String, TextOrSecret>,
    /// The path of a PEM file with certificates of authorities to trust besides the system's.
    #[serde(default)]
    #[schemars(with = "String", length(min = 1))]
    pub ca: Option<String>,
}

/// A mail.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MailKeys {
    /// Its recipients: `ops@example.com`, or `Operations <ops@example.com>`.
    pub to: Texts,
    /// Its subject; if left out it names the job and how the run ended.
    #[serde(default)]
    #[schemars(with = "String", length(min = 1))]
    pub subject: Option<String>,
}
