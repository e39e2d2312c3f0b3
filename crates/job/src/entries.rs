//! What the entries of a job file may say beside the settings of components.
//!
//! The doc comments are the reference, the types the schema. Values are read through these structs once a lint walk
//! has found nothing wrong; places come from the tree.

use std::collections::BTreeMap;

use millstream_core::codec::Limits;
use millstream_core::contains::Contains;
use millstream_core::format::{EmptyFiles, OnDrift, Validate};
use millstream_core::reject::MaxRejects;
use millstream_core::source::OnError;
use millstream_core::spec::Duration;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One text, or a list of texts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Texts {
    /// One.
    One(String),
    /// Several.
    Several(Vec<String>),
}

impl Default for Texts {
    fn default() -> Self {
        Texts::Several(Vec::new())
    }
}

impl Texts {
    /// All of them.
    pub fn into_vec(self) -> Vec<String> {
        match self {
            Texts::One(text) => vec![text],
            Texts::Several(texts) => texts,
        }
    }
}

/// A column that tells where a row is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum AddColumn {
    /// The path or URL of the unit, passwords left out (`utf8`).
    #[serde(rename = "_uri")]
    Uri,
    /// The member of the archive; null if the unit is none (`utf8`).
    #[serde(rename = "_member")]
    Member,
    /// The line on which the record begins, from 1; for parquet the number of the row (`int64`).
    #[serde(rename = "_line")]
    Line,
    /// The id of the message, unique in its queue (`utf8`): of Redis `1732528800000-0`, of Kafka `PARTITION:OFFSET`.
    #[serde(rename = "_id")]
    Id,
    /// When the queue got the message, or the message was created (`timestamp`, UTC); null if the queue does not say.
    #[serde(rename = "_time")]
    Time,
    /// The key of the message (`utf8`); null if it has none. Bytes that are no UTF-8 are written as `\xNN`.
    #[serde(rename = "_key")]
    Key,
    /// What the message has beside its body and its key: names and values as a JSON object (`utf8`). If a name comes
    /// several times, the last counts.
    #[serde(rename = "_headers")]
    Headers,
}

impl AddColumn {
    /// Whether it says of which message of a queue a row is.
    pub fn is_of_message(self) -> bool {
        matches!(self, AddColumn::Id | AddColumn::Time | AddColumn::Key | AddColumn::Headers)
    }

    /// The column's name.
    pub fn name(self) -> &'static str {
        match self {
            AddColumn::Uri => "_uri",
            AddColumn::Member => "_member",
            AddColumn::Line => "_line",
            AddColumn::Id => "_id",
            AddColumn::Time => "_time",
            AddColumn::Key => "_key",
            AddColumn::Headers => "_headers",
        }
    }
}

/// An entry of `sources`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SourceKeys {
    /// What to read: paths, globs (`**` for any folders), URLs, `{a,b}` and `{000..999}`, `@FILE` for a list of them
    /// (one a line), or `-` for standard input.
    pub read: Texts,
    /// Which members of archives to read, as globs; all if left out.
    #[serde(default)]
    pub members: Texts,
    /// How much a unit may unpack to.
    #[serde(default)]
    pub limits: Limits,
    /// Whether it is fine if a pattern matches nothing.
    #[serde(default)]
    pub allow_empty: bool,
    /// What an empty file means where a header (csv) or a directory (parquet) is required.
    #[serde(default)]
    pub empty_files: EmptyFiles,
    /// What happens if a file or object cannot be opened.
    #[serde(default)]
    pub on_error: OnError,
    /// What happens if the files' columns differ.
    #[serde(default)]
    pub on_drift: OnDrift,
    /// Which values are checked.
    #[serde(default)]
    pub validate: Validate,
    /// Which records are parsed, by the text that they contain.
    #[serde(default)]
    pub contains: Contains,
    /// Columns that say where a row is from, added after the others.
    #[serde(default)]
    pub add: Vec<AddColumn>,
    /// How many records may be left out because they cannot be read: a number (`100`), or a share of those that were
    /// read (`1%`). With more the run fails. What is left out is kept for `millstream rejects`.
    #[serde(default)]
    pub max_rejects: MaxRejects,
    /// Whether each run loads only files that no earlier one has loaded; for a database `{by: COLUMN}`, and each run
    /// loads only rows that are new or changed. The rows go row by row (filters, expressions, lookups), or joined with
    /// entries that are not incremental, into tables of databases, with `mode: append`, `merge` or `ignore`, or into
    /// files, with `mode: append` or `partitions`.
    #[serde(default)]
    pub incremental: Incremental,
    /// Which files are read only by a later run, because something may still write to them. The report counts them.
    #[serde(default)]
    pub ready: ReadyKeys,
    /// What happens in an incremental source if a file has changed, or has grown, since it was loaded.
    #[serde(default)]
    pub on_change: OnChange,
    /// What happens to a local file of an incremental source once it is loaded, if it has not changed since it was
    /// listed and none of its records was rejected: `delete`, or `{move: FOLDER}`. It happens after all sinks have
    /// committed. A file that cannot be moved or deleted is a warning, and the next run tries again.
    #[serde(default)]
    pub after_load: Option<AfterLoad>,
    /// The order that the rows have already, written as in `sort`, but of columns only: that of all files together, one
    /// after the other as they are listed. A sort whose order begins with these columns then only sorts rows that are
    /// equal in them. One task reads the files, and a row that is not in order ends the run.
    #[serde(default)]
    pub sorted_by: Texts,
    /// What has to hold for the rows of the entry: a list, each with one rule. All checks of the job are evaluated
    /// before any sink publishes its rows; with one that may fail the run, all sinks load all at once.
    #[serde(default)]
    pub checks: Vec<CheckKeys>,
}

/// What each run loads only once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Incremental {
    /// Files, or nothing.
    Files(bool),
    /// Rows of a database.
    Rows(IncrementalBy),
}

impl Default for Incremental {
    fn default() -> Self {
        Incremental::Files(false)
    }
}

impl Incremental {
    /// Whether anything is.
    pub fn is_some(&self) -> bool {
        *self != Incremental::Files(false)
    }

    /// How new rows are found, if it is about rows.
    pub fn by(&self) -> Option<&IncrementalBy> {
        match self {
            Incremental::Files(_) => None,
            Incremental::Rows(by) => Some(by),
        }
    }
}

/// How rows of a database are found that are new or changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IncrementalBy {
    /// The column with the time at which a row was inserted or changed, by the clock of the database.
    #[schemars(length(min = 1))]
    pub by: String,
    /// How long the transactions that write these rows may take. Sinks with `append` leave rows that are younger for a
    /// later run; those with `merge` or `ignore` read rows of this time again.
    #[serde(default = "default_lag")]
    pub lag: Duration,
}

fn default_lag() -> Duration {
    Duration::from_seconds(600)
}

/// Which files are ready to be read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReadyKeys {
    /// Files that were changed less than this time ago are left for a later run, by the clock of this machine when the
    /// run begins to list them. So are files whose time of change is in the future.
    pub min_age: Option<Duration>,
    /// A file is ready if this file is beside it. `{name}` is the name of the file, `{stem}` is the name without its
    /// last ending, and `_SUCCESS` is one marker for a whole folder. Files of such names are never read.
    #[schemars(length(min = 1))]
    pub marker: Option<String>,
}

impl ReadyKeys {
    /// Whether all files are.
    pub fn is_always(&self) -> bool {
        *self == ReadyKeys::default()
    }
}

/// What happens if a file has changed since it was loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnChange {
    /// The run fails and names the files. If all goes into one table chunk by chunk, everything else is loaded first;
    /// otherwise nothing is. `--accept-changed` loads them as they are now, in addition to their earlier rows.
    #[default]
    Fail,
    /// The rows stay as they were loaded, and the report has a warning.
    Skip,
    /// The rows of the file are deleted and those of the new version are loaded, in one transaction for each file. The
    /// rows are found by `_uri`: `add: [_uri]` adds it, and the table has it as a column.
    Reload,
}

/// What happens to a file once it is loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AfterLoad {
    /// It is deleted.
    Delete,
    /// It is moved into this folder, below which it keeps its path behind the first wildcard of `read`. No file is
    /// overwritten.
    Move(String),
}

/// The keys that every entry of `sinks` has.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SinkKeys {
    /// The source or transform whose rows are written.
    pub from: String,
    /// Where to: a path, `-` for standard output, `discard` for nowhere, or a target with its scheme, such as
    /// `s3://bucket/result.csv.gz` or `sqlite:out/result.db`.
    pub write: String,
    /// How many rows may be left out because the target refuses them: a number (`100`), or a share of those that came
    /// (`1%`). With more the run fails. What is left out is kept for `millstream rejects`.
    #[serde(default)]
    pub max_rejects: MaxRejects,
    /// What has to hold for the rows that go to the sink: a list, each with one rule. All checks of the job are
    /// evaluated before any sink publishes its rows; with one that may fail the run, all sinks load all at once.
    #[serde(default)]
    pub checks: Vec<CheckKeys>,
}

/// The keys that every entry of `transforms` may have beside the one of its transform.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("minProperties" = 1, "maxProperties" = 4))]
pub struct TransformKeys {
    /// The order that the rows have already, written as in `sort`, but of columns only. A sort whose order begins with
    /// these columns then only sorts rows that are equal in them. The sources are read in order, by one task each, and
    /// a row that is not in order ends the run.
    #[serde(default)]
    pub sorted_by: Texts,
    /// How many rows may be left out because an expression cannot be computed on them (a text that is not a number, a
    /// division by zero), or because a `lookup` with `miss: reject` finds nothing: a number (`100`), or a share of
    /// those that came (`1%`). With more the run fails. What is left out is kept for `millstream rejects`. In filters,
    /// `select` and their like in `sql`; in an aggregate or a join such a row still ends the run.
    #[serde(default)]
    pub max_rejects: MaxRejects,
    /// What has to hold for the rows of the entry: a list, each with one rule. All checks of the job are evaluated
    /// before any sink publishes its rows; with one that may fail the run, all sinks load all at once.
    #[serde(default)]
    pub checks: Vec<CheckKeys>,
}

/// What happens if a check does not hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CheckSeverity {
    /// The run fails before any sink publishes its rows.
    #[default]
    Fail,
    /// The report has a warning.
    Warn,
    /// Each row that breaks the rule is left out and kept for `millstream rejects`, within `max_rejects` of the entry.
    Reject,
}

/// How many rows there may be.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RowsKeys {
    /// At least so many.
    pub min: Option<u64>,
    /// At most so many.
    pub max: Option<u64>,
    /// How far the number may be from that of the last run that succeeded, with the same variables set: a share such as
    /// `20%`. It holds if there is no such run, or it had no rows.
    pub change: Option<Share>,
}

/// The values that a column may have. Text compares byte by byte.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RangeKeys {
    /// The smallest.
    pub min: Option<Scalar>,
    /// The largest.
    pub max: Option<Scalar>,
}

/// A number, a text, `true` or `false`: a value of a column as it is written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Scalar(pub Value);

impl JsonSchema for Scalar {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Scalar".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": ["string", "number", "boolean"]})
    }
}

/// A share of a number of rows, such as `20%`; it may be more than all.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Share(pub f64);

impl TryFrom<String> for Share {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let number = text.strip_suffix('%').map(str::trim_end).and_then(|number| number.parse::<f64>().ok());
        let share = number.filter(|number| number.is_finite() && *number >= 0.0);
        share.map(|number| Share(number / 100.0)).ok_or_else(|| format!("`{text}` is no share such as `20%`"))
    }
}

impl From<Share> for String {
    fn from(share: Share) -> Self {
        // Of 0.07 × 100 the last digits are an error of the arithmetic.
        format!("{}%", (share.0 * 1e8).round() / 1e6)
    }
}

impl JsonSchema for Share {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Share".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": r"^[0-9]+(\.[0-9]+)? ?%$",
            "description": "A share such as `20%`.",
        })
    }
}

/// A check of an entry's rows: exactly one rule, and what happens if it does not hold. A null breaks no rule but
/// `not_null`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CheckKeys {
    /// How many rows there are.
    pub rows: Option<RowsKeys>,
    /// Columns that have no nulls.
    pub not_null: Option<Texts>,
    /// Columns that are, together, different in all rows. The load then goes all at once.
    pub unique: Option<Texts>,
    /// For each column the values that it may have.
    pub values: Option<BTreeMap<String, Vec<Scalar>>>,
    /// For each column a regular expression that matches somewhere in its texts.
    pub matches: Option<BTreeMap<String, String>>,
    /// For each column the smallest and the largest value that it may have.
    pub range: Option<BTreeMap<String, RangeKeys>>,
    /// A SQL condition over the columns of a row.
    pub sql: Option<String>,
    /// What a message says in place of the rule.
    pub message: Option<String>,
    /// What happens if the check does not hold.
    pub severity: CheckSeverity,
    /// How many rows may break the rule: a number (`100`), or a share of the entry's rows (`1%`). For a rule with
    /// several columns, of each.
    pub at_most: MaxRejects,
}

/// The key of a source or sink for a program, which stands in place of `read` or `write`. What these have then begins
/// with it as a scheme.
pub const COMMAND: &str = "command";

/// The key of a source for the text that its records contain.
pub const CONTAINS: &str = "contains";

/// The key of a transform for the order of its rows.
pub const SORTED_BY: &str = "sorted_by";

/// The key of a transform for how many rows it may leave out.
pub const MAX_REJECTS: &str = "max_rejects";

/// The key of an entry for what has to hold for its rows.
pub const CHECKS: &str = "checks";
