//! What the entries of a job file may say beside the settings of components.
//!
//! The doc comments are the reference, the types the schema. Values are read through these structs once a lint walk
//! has found nothing wrong; places come from the tree.

use millstream_core::codec::Limits;
use millstream_core::format::{EmptyFiles, OnDrift, Validate};
use millstream_core::reject::MaxRejects;
use millstream_core::source::OnError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
}

impl AddColumn {
    /// The column's name.
    pub fn name(self) -> &'static str {
        match self {
            AddColumn::Uri => "_uri",
            AddColumn::Member => "_member",
            AddColumn::Line => "_line",
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
    /// Columns that say where a row is from, added after the others.
    #[serde(default)]
    pub add: Vec<AddColumn>,
    /// How many records may be left out because they cannot be read: a number (`100`), or a share of those that were
    /// read (`1%`). With more the run fails. What is left out is kept for `millstream rejects`.
    #[serde(default)]
    pub max_rejects: MaxRejects,
    /// Whether each run loads only what no earlier one has loaded. Its rows have to go row by row (filters,
    /// expressions, unions) into a table of a database, with `mode: append`.
    #[serde(default)]
    pub incremental: bool,
    /// The order that the rows have already, written as in `sort`, but of columns only: that of all files together, one
    /// after the other as they are listed. A sort whose order begins with these columns then only sorts rows that are
    /// equal in them. One task reads the files, and a row that is not in order ends the run.
    #[serde(default)]
    pub sorted_by: Texts,
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
}

/// The keys that every entry of `transforms` may have beside the one of its transform.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("minProperties" = 1, "maxProperties" = 3))]
pub struct TransformKeys {
    /// The order that the rows have already, written as in `sort`, but of columns only. A sort whose order begins with
    /// these columns then only sorts rows that are equal in them. The sources are read in order, by one task each, and
    /// a row that is not in order ends the run.
    #[serde(default)]
    pub sorted_by: Texts,
    /// How many rows may be left out because an expression cannot be computed on them (a text that is not a number, a
    /// division by zero): a number (`100`), or a share of those that came (`1%`). With more the run fails. What is left
    /// out is kept for `millstream rejects`. In filters, `select` and their like in `sql`; in an aggregate or a join
    /// such a row still ends the run.
    #[serde(default)]
    pub max_rejects: MaxRejects,
}

/// The key of a source or sink for a program, which stands in place of `read` or `write`. What these have then begins
/// with it as a scheme.
pub const COMMAND: &str = "command";

/// The key of a transform for the order of its rows.
pub const SORTED_BY: &str = "sorted_by";

/// The key of a transform for how many rows it may leave out.
pub const MAX_REJECTS: &str = "max_rejects";
