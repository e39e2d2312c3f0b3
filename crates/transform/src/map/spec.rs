//! What the job file may say of a function of one's own.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use millstream_core::columns::{ColumnSpec, Columns};
use millstream_core::spec::{Duration, Fault, Size, Spec, TextOrSecret};
use millstream_core::transform::{ColumnName, EntryName, Per};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The most processes of a step.
const MOST_WORKERS: usize = 1024;

/// Computes rows with a Python function, in processes of their own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MapSpec {
    /// The source or transform it reads.
    pub from: EntryName,
    /// The function: a Python file, a colon and the name of the function in it. The path is relative to the job file.
    pub python: String,
    /// What the function is called with: a row, a dict, for which it gives a dict or None (`row`); or the rows of a
    /// batch, a list of dicts, for which it gives any number of dicts (`batch`).
    #[serde(default)]
    pub per: Per,
    /// The columns that it gives, and their types.
    pub columns: Columns,
    /// Columns that the rows keep beside these. The function need not give them; with `per: row` only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keep: Vec<ColumnName>,
    /// Promises that what the function gives for a row depends on that row alone, and is the same each time. Then a
    /// load can go chunk by chunk.
    #[serde(default)]
    pub deterministic: bool,
    /// The version of what the function depends on beside its file. A load that began with another one is not resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The Python to run it with; a path is relative to the job file. Python 3.8 or later.
    #[serde(default = "interpreter")]
    #[schemars(length(min = 1))]
    pub interpreter: String,
    /// Variables of the environment for it, beside those of this process.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, TextOrSecret>,
    /// How many processes call it; as many as there are cores if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<NonZeroUsize>,
    /// How long it may take for a batch; any time if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// How much memory each process may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
}

fn interpreter() -> String {
    "python3".to_owned()
}

impl MapSpec {
    /// The file and the name of the function.
    pub fn function(&self) -> Option<(&str, &str)> {
        let (file, name) = self.python.rsplit_once(':')?;
        let is_name = |part: &str| {
            let mut characters = part.chars();
            characters.next().is_some_and(|first| first.is_alphabetic() || first == '_')
                && characters.all(|character| character.is_alphanumeric() || character == '_')
        };
        (!file.is_empty() && name.split('.').all(is_name)).then_some((file, name))
    }
}

impl Spec for MapSpec {
    const NAME: &'static str = "map";
    const SUMMARY: &'static str = "Computes rows with a Python function.";
    const EXAMPLE: &'static str = "map:\n  from: ranked\n  python: features.py:score\n  columns: {score: float64}\n  \
                                   keep: [name]\n  deterministic: true\n";

    fn check(&self) -> Vec<Fault> {
        let mut faults = self.columns.check("columns");
        faults.extend(self.columns.nameless("columns"));
        if self.columns.is_empty() {
            let hint = "name them with their types: columns: {id: int64, score: float64}";
            faults.push(Fault::new("columns", "the function gives no columns").hint(hint));
        }
        for (name, column) in &self.columns.0 {
            if let ColumnSpec::Detailed(details) = column
                && details.format.is_some()
            {
                let path = vec!["columns".to_owned(), name.clone(), "format".to_owned()];
                let what = "a function gives dates and times as such, not as text".to_owned();
                faults.push(Fault { path, what, hint: Some("leave `format` out".to_owned()) });
            }
        }
        if self.function().is_none() {
            let what = format!("`{}` names no function of a Python file", self.python);
            faults.push(Fault::new("python", what).hint("write the file, a colon and the function: features.py:score"));
        }
        if self.function().is_some_and(|(file, _)| !file.ends_with(".py")) {
            let what = format!("`{}` names no Python file", self.python);
            faults.push(Fault::new("python", what).hint("its name ends in .py: features.py:score"));
        }
        if self.workers.is_some_and(|workers| workers.get() > MOST_WORKERS) {
            faults.push(Fault::new("workers", format!("there can be at most {MOST_WORKERS} processes")));
        }
        if self.per == Per::Batch && !self.keep.is_empty() {
            let what = "`keep` needs `per: row`: of the rows of a batch nobody knows which row they are from";
            faults.push(Fault::of_key("keep", what).hint("have the function give these columns, or use `per: row`"));
        }
        for (index, kept) in self.keep.iter().enumerate() {
            if self.keep[..index].contains(kept) {
                faults.push(Fault::new(&format!("keep.{index}"), format!("`{}` is there twice", kept.as_str())));
            }
            if self.columns.0.iter().any(|(name, _)| name == kept.as_str()) {
                let what = format!("the function gives `{}` already", kept.as_str());
                faults.push(Fault::new(&format!("keep.{index}"), what).hint("leave it out of `columns` or of `keep`"));
            }
        }
        faults
    }
}
