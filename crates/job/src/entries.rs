//! What the entries of a job file may say beside the settings of components.
//!
//! The doc comments are the reference, the types the schema. Values are read through these structs once a lint walk
//! has found nothing wrong; places come from the tree.

use std::collections::BTreeMap;

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
    /// Where to: a path, `-` for standard output, or a target with its scheme, such as `s3://bucket/result.csv.gz` or
    /// `sqlite:out/result.db`.
    pub write: String,
    /// How many rows may be left out because the target refuses them: a number (`100`), or a share of those that came
    /// (`1%`). With more the run fails. What is left out is kept for `millstream rejects`.
    #[serde(default)]
    pub max_rejects: MaxRejects,
}

/// Keeps the rows that meet a condition.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FilterKeys {
    /// The source or transform it reads.
    pub from: String,
    /// The condition: a SQL expression over the columns.
    #[schemars(length(min = 1))]
    pub r#where: String,
}

/// Chooses, renames and computes columns.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SelectKeys {
    /// The source or transform it reads.
    pub from: String,
    /// The columns in their order: names or SQL expressions, or names with their expressions.
    pub columns: Columns,
}

/// Columns of a `select`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Columns {
    /// Names or SQL expressions, with `AS name` where they need a name.
    List(#[schemars(length(min = 1))] Vec<String>),
    /// New names and their SQL expressions.
    Named(#[schemars(extend("minProperties" = 1))] BTreeMap<String, Expression>),
}

/// A SQL expression. Numbers and `true` need no quotes.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Expression {
    /// An expression.
    Text(#[schemars(length(min = 1))] String),
    /// A number.
    Number(f64),
    /// `true` or `false`.
    Flag(bool),
}

/// The rows of several steps, one after the other.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum UnionForm {
    /// The steps.
    List(#[schemars(length(min = 2))] Vec<String>),
    /// The steps and how they are put together.
    Keys(UnionKeys),
}

/// The rows of several steps, one after the other.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnionKeys {
    /// The steps.
    #[schemars(length(min = 2))]
    pub of: Vec<String>,
    /// How columns find each other.
    #[serde(default)]
    pub by: UnionBy,
    /// Whether rows that are equal come out once.
    #[serde(default)]
    pub distinct: bool,
}

/// How the columns of a union find each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum UnionBy {
    /// By their names; a column that a step lacks is null.
    #[default]
    Name,
    /// By their places; all steps have as many columns.
    Position,
}

/// Sorts the rows.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SortSpec {
    /// The source or transform it reads.
    pub from: String,
    /// What to sort by, most important first: a column or SQL expression, then `asc` (the default) or `desc`, then
    /// `nulls first` or `nulls last` (nulls count as the largest value if nothing is said).
    pub by: KeyTexts,
    /// How many rows to keep; all if left out.
    #[serde(default)]
    pub limit: Option<u64>,
    /// Whether of the rows that are equal in all of `by` only one stays: any of them, with `stable` the first that
    /// came.
    #[serde(default)]
    pub unique: bool,
    /// Keeps one row of those that are equal in some columns.
    #[serde(default)]
    #[schemars(with = "SortDedupe")]
    pub dedupe: Option<SortDedupe>,
    /// Whether rows with equal keys stay in the order in which they came: that of the files as they are listed, and of
    /// their lines. Then one task reads them.
    #[serde(default)]
    pub stable: bool,
    /// The pool of scratch disks that it uses, one of those in the machine file. On a machine without pools it uses
    /// what there is.
    #[serde(default)]
    #[schemars(with = "String", length(min = 1))]
    pub pool: Option<String>,
}

/// Keeps one row of those that are equal in some columns, while they are sorted.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SortDedupe {
    /// The columns in which rows are equal. Where they are the first that are sorted by, it costs nothing; otherwise
    /// the rows are sorted twice.
    pub by: KeyTexts,
    /// Which of the equal rows stays, in the order of the sort; where that says nothing, in the order in which they
    /// came. If left out, the first in the order of the sort, or any of them.
    #[serde(default)]
    #[schemars(with = "Keep")]
    pub keep: Option<Keep>,
}

/// One sort key, or a list of at least one.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum KeyTexts {
    /// One.
    One(#[schemars(length(min = 1))] String),
    /// Several.
    Several(#[schemars(length(min = 1))] Vec<String>),
}

/// Keeps one row of those that are equal in some columns.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DedupeKeys {
    /// The source or transform it reads.
    pub from: String,
    /// The columns in which rows are equal; all columns if left out.
    #[serde(default)]
    pub by: Texts,
    /// Which of the equal rows stays, in the order that `order` gives (the first, if left out). Without `order` it is
    /// that in which the rows came: that of the files as they are listed, and of their lines. Then one task reads them.
    #[serde(default)]
    #[schemars(with = "Keep")]
    pub keep: Option<Keep>,
    /// The order of equal rows, written as in `sort`. Without it and without `keep` any one of them stays.
    #[serde(default)]
    pub order: Texts,
}

/// Which row a dedupe keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Keep {
    /// The first.
    #[default]
    First,
    /// The last.
    Last,
}

/// An entry of `transforms`: exactly one of these keys, beside which `sorted_by` and `max_rejects` may stand.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("minProperties" = 1, "maxProperties" = 3))]
pub struct TransformKeys {
    /// A SQL query; the other entries are its tables.
    #[serde(default)]
    #[schemars(with = "String", length(min = 1))]
    pub sql: Option<String>,
    /// Keeps the rows that meet a condition.
    #[serde(default)]
    #[schemars(with = "FilterKeys")]
    pub filter: Option<FilterKeys>,
    /// Chooses, renames and computes columns.
    #[serde(default)]
    #[schemars(with = "SelectKeys")]
    pub select: Option<SelectKeys>,
    /// The rows of several steps, one after the other.
    #[serde(default)]
    #[schemars(with = "UnionForm")]
    pub union: Option<UnionForm>,
    /// Sorts the rows.
    #[serde(default)]
    #[schemars(with = "SortSpec")]
    pub sort: Option<SortSpec>,
    /// Keeps one row of those that are equal in some columns.
    #[serde(default)]
    #[schemars(with = "DedupeKeys")]
    pub dedupe: Option<DedupeKeys>,
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

/// The key of a transform for the order of its rows.
pub const SORTED_BY: &str = "sorted_by";

/// The key of a transform for how many rows it may leave out.
pub const MAX_REJECTS: &str = "max_rejects";

/// The keys of a transform that say nothing of what it does.
pub const BESIDE: [&str; 2] = [SORTED_BY, MAX_REJECTS];
