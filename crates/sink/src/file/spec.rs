//! What the job file may say of a file sink, beside `from`, `write`, `compress` and the format.

use millstream_core::sink::{Routing, RoutingKind};
use millstream_core::spec::{Fault, Size, Spec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The most shards: each is a file that is always made.
const MAX_SHARDS: u32 = 10_000;

/// Settings of a file sink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FileSpec {
    /// Spreads the rows over a fixed number of files. `{shard}` in the path is the file's number, from 0.
    pub shards: Option<Shards>,
    /// A SQL expression: one file for each of its values. `{value}` in the path is the value.
    #[schemars(length(min = 1))]
    pub split: Option<String>,
    /// Starts a new file when one is full. `{part}` in the path is the number of the part, from 0.
    pub roll: Option<Roll>,
    /// The compression level, on the scale of the codec; its own default if left out.
    pub level: Option<i32>,
    /// What happens to the files of earlier runs: those in the list `.NAME.millstream.json` beside them, or the single
    /// file. Without it they are replaced, except that a `split` over files of an earlier run is refused.
    pub mode: Option<FileMode>,
    /// An older name of `mode`: true is `mode: replace`, and false is `mode: error`.
    pub overwrite: Option<bool>,
    /// The most files that are open at once. Of more, the least recently used is closed for a while; a format that
    /// cannot be continued (parquet) ends with an error instead.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_open: usize,
    /// The most files that one run may create: a split by the wrong expression would create one for every row.
    #[schemars(range(min = 1))]
    pub max_files: usize,
}

impl Default for FileSpec {
    fn default() -> Self {
        FileSpec {
            shards: None,
            split: None,
            roll: None,
            level: None,
            mode: None,
            overwrite: None,
            max_open: 256,
            max_files: 10_000,
        }
    }
}

/// What a run does with the files of earlier runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FileMode {
    /// This run's files take their place; listed files that it does not write are removed.
    Replace,
    /// They are an error, and nothing is written.
    Error,
    /// With `split`: all files of the values that this run writes are replaced, those of other values stay.
    Partitions,
    /// They stay, and new files are added, with `{run}` in their names.
    Append,
}

impl FileMode {
    /// As the job file says it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            FileMode::Replace => "replace",
            FileMode::Error => "error",
            FileMode::Partitions => "partitions",
            FileMode::Append => "append",
        }
    }
}

/// A fixed number of files. One of `hash` and `mod` says which row goes to which.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Shards {
    /// How many files.
    #[schemars(range(min = 1, max = 10_000))]
    pub count: u32,
    /// A SQL expression of any type: equal values go to the same file, and different ones are spread evenly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub hash: Option<String>,
    /// A SQL expression of whole numbers: a row goes to the file with the number `value mod count`.
    #[serde(default, rename = "mod", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub modulo: Option<String>,
}

/// When a file is full. At least one of the two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Roll {
    /// About how large a file gets, compressed: `64MB`. A format that is written in one stream (parquet) is measured
    /// when it hands on bytes, so its files can be larger by a row group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Size>,
    /// How many rows a file gets: exactly this many, but for the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub rows: Option<u64>,
}

impl FileSpec {
    /// The mode that the job file names, if it does.
    pub(crate) fn chosen_mode(&self) -> Option<FileMode> {
        let alias = |overwrite| if overwrite { FileMode::Replace } else { FileMode::Error };
        self.mode.or(self.overwrite.map(alias))
    }

    /// What happens to the files of earlier runs.
    pub(crate) fn mode(&self) -> FileMode {
        self.chosen_mode().unwrap_or(FileMode::Replace)
    }

    /// How the rows are spread over files.
    pub(crate) fn routing(&self) -> Option<Routing> {
        if let Some(expression) = &self.split {
            return Some(Routing { expression: expression.clone(), kind: RoutingKind::Value });
        }
        let shards = self.shards.as_ref()?;
        match (&shards.hash, &shards.modulo) {
            (Some(hash), _) => Some(Routing { expression: hash.clone(), kind: RoutingKind::Hash(shards.count) }),
            (None, Some(modulo)) => Some(Routing { expression: modulo.clone(), kind: RoutingKind::Mod(shards.count) }),
            (None, None) => None,
        }
    }
}

impl Spec for FileSpec {
    const NAME: &'static str = "file";
    const SUMMARY: &'static str = "Writes files: one, a fixed number of shards, or one for each value.";
    const EXAMPLE: &'static str = "\
from: ranked
write: out/places-{shard}.csv.gz
shards: {count: 4, hash: country}
";

    fn check(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        if self.split.is_some() && self.shards.is_some() {
            faults.push(
                Fault::new("split", "both `shards` and `split`").hint(
                    "`shards` makes a fixed number of files, `split` one for each value: leave one of the two out",
                ),
            );
        }
        if self.split.as_ref().is_some_and(|expression| expression.trim().is_empty()) {
            faults
                .push(Fault::new("split", "`split` is empty").hint("write a SQL expression, such as a column's name"));
        }
        if self.mode.is_some() && self.overwrite.is_some() {
            faults.push(Fault::new("overwrite", "both `mode` and `overwrite`").hint(
                "leave `overwrite` out: `overwrite: true` is `mode: replace`, and `overwrite: false` is `mode: error`",
            ));
        }
        if self.mode == Some(FileMode::Partitions) && self.split.is_none() {
            faults.push(Fault::new("mode", "`mode: partitions` without `split`").hint(
                "a partition is a value of `split`: add `split: EXPRESSION`, or write `mode: replace` or `append`",
            ));
        }
        faults.extend(self.shards.iter().flat_map(shards_faults));
        faults.extend(self.roll.iter().flat_map(roll_faults));
        for (name, value) in [("max_open", self.max_open), ("max_files", self.max_files)] {
            if value == 0 {
                faults.push(Fault::new(name, format!("`{name}` is 0")).hint("write at least 1"));
            }
        }
        faults
    }
}

fn shards_faults(shards: &Shards) -> Vec<Fault> {
    let mut faults = Vec::new();
    if shards.count == 0 || shards.count > MAX_SHARDS {
        faults.push(
            Fault::new("shards.count", format!("{} shards", shards.count)).hint(format!("write 1 to {MAX_SHARDS}")),
        );
    }
    match (&shards.hash, &shards.modulo) {
        (Some(_), Some(_)) => {
            faults.push(Fault::new("shards", "both `hash` and `mod`").hint("leave one of the two out"));
        }
        (None, None) => faults.push(
            Fault::new("shards", "neither `hash` nor `mod`")
                .hint("say what decides the file of a row: `hash: EXPRESSION`, or `mod: EXPRESSION` of whole numbers"),
        ),
        (Some(expression), None) | (None, Some(expression)) if expression.trim().is_empty() => {
            faults.push(Fault::new("shards", "the expression is empty").hint("write a column's name, for example"));
        }
        _ => {}
    }
    faults
}

fn roll_faults(roll: &Roll) -> Vec<Fault> {
    let mut faults = Vec::new();
    if roll.bytes.is_none() && roll.rows.is_none() {
        faults.push(Fault::new("roll", "neither `bytes` nor `rows`").hint("say when a file is full: `bytes: 64MB`"));
    }
    if roll.bytes == Some(Size(0)) {
        faults.push(Fault::new("roll.bytes", "a file of 0 bytes").hint("write a size, such as `64MB`"));
    }
    if roll.rows == Some(0) {
        faults.push(Fault::new("roll.rows", "a file of 0 rows").hint("write at least 1"));
    }
    faults
}
