//! What the job file may say of a function of one's own.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use millstream_core::columns::{ColumnSpec, Columns};
use millstream_core::program::{CommandLine, env_faults};
use millstream_core::spec::{Duration, Fault, Size, Spec, TextOrSecret};
use millstream_core::transform::{ColumnName, EntryName, Per, SortTerm};
use millstream_process::command::ExchangeForm;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::keys::Keys;

/// The most processes of a step.
const MOST_WORKERS: usize = 1024;

/// Computes rows with a Python function or a program, in processes of their own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MapSpec {
    /// The source or transform it reads.
    pub from: EntryName,
    /// The function: a Python file, a colon and the name of the function in it. The path is relative to the job file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// The program and its arguments; no shell takes part. It reads rows on standard input and writes rows to standard
    /// output. A name with a slash is relative to the job file, another one is looked up in PATH.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "CommandLine")]
    pub command: Option<CommandLine>,
    /// The form of the rows that the program reads and writes. With `python` and `arrow` the function takes and gives
    /// `pyarrow.RecordBatch` instead of dicts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<ExchangeForm>,
    /// What it is called with: a row, for which it gives a row or none (`row`); the rows of a batch (`batch`), all rows
    /// that are equal in the columns of `by` (`group`), or all rows (`stream`), for which it gives any number of rows.
    #[serde(default)]
    pub per: Per,
    /// With `per: group`: the columns that are equal in a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Keys<ColumnName>>,
    /// With `per: group`: the order of the rows in a group, as in a `sort`; any order if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order_by: Option<Keys<SortTerm>>,
    /// The columns that it gives, and their types.
    pub columns: Columns,
    /// Columns that the rows keep beside these, which need not be given; with `per: row` only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keep: Vec<ColumnName>,
    /// Promises that what is given for a row depends on that row alone, and is the same each time. With `per: row` and
    /// `per: batch` a load can go chunk by chunk then.
    #[serde(default)]
    pub deterministic: bool,
    /// The version of what the rows depend on beside the file of the function or the command. A load that began with
    /// another one is not resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The Python to run the function with, `python3` if left out; a path is relative to the job file. Python 3.8 or
    /// later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub interpreter: Option<String>,
    /// Variables of the environment for it, beside those of this process.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, TextOrSecret>,
    /// How many processes there are; if left out as many as there are cores, with `per: stream` one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<NonZeroUsize>,
    /// How long it may take for a call, or on a stream between two signs of work; any time if left out, but for a
    /// program that does nothing for long. With `per: row` a call has as many rows as take about 75 ms, from one to
    /// 8,192; otherwise it has a batch, and with `exchange: arrow` several if they are quick.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// How much memory each process may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
}

impl MapSpec {
    /// What computes the rows.
    fn check_code(&self, faults: &mut Vec<Fault>) {
        const FORM: &str = "write `python: features.py:score` or `command: [./score, --fast]`";
        match (&self.python, &self.command) {
            (None, None) => faults.push(Fault::new("", "nothing says what computes the rows").hint(FORM)),
            (Some(_), Some(_)) => {
                faults.push(Fault::of_key("command", "either a function or a program computes the rows").hint(FORM));
            }
            (Some(python), None) => {
                faults.extend(crate::python::fault(python));
                match self.exchange {
                    None | Some(ExchangeForm::Arrow) => {}
                    Some(_) => {
                        let what = "a function takes dicts, or batches of pyarrow with `exchange: arrow`";
                        faults.push(Fault::of_key("exchange", what).hint("leave `exchange` out, or write `arrow`"));
                    }
                }
                if self.exchange.is_some() && self.per == Per::Row {
                    let what = "a function with `exchange: arrow` takes many rows at once";
                    faults.push(Fault::of_key("exchange", what).hint("add `per: batch`, or leave `exchange` out"));
                }
            }
            (None, Some(program)) => {
                faults.extend(program.faults("command"));
                if self.interpreter.is_some() {
                    let hint = "write it as the program: command: [.venv/bin/python, score.py]";
                    faults.push(Fault::of_key("interpreter", "a command has no interpreter").hint(hint));
                }
                match self.exchange {
                    None => {
                        let what = "nothing says in which form the program reads and writes rows";
                        let hint = "add `exchange: lines`, `csv`, `json` or `arrow`";
                        faults.push(Fault::of_key("command", what).hint(hint));
                    }
                    Some(ExchangeForm::Lines) if self.columns.0.len() > 1 => {
                        let hint = "name one column of utf8, or use csv, json or arrow";
                        faults.push(Fault::of_key("exchange", "lines have one column").hint(hint));
                    }
                    Some(_) => {}
                }
            }
        }
    }

    /// What it is called with.
    fn check_calls(&self, faults: &mut Vec<Fault>) {
        if self.per != Per::Row && !self.keep.is_empty() {
            let what = "`keep` needs `per: row`: of many rows nobody knows which one a row is from";
            faults.push(Fault::of_key("keep", what).hint("have these columns given, or use `per: row`"));
        }
        match (&self.by, self.per) {
            (Some(by), Per::Group) => faults.extend(by.fault("by")),
            (None, Per::Group) => {
                let hint = "name the columns that are equal in a group: by: [day]";
                faults.push(Fault::of_key("per", "`per: group` needs `by`").hint(hint));
            }
            (Some(_), _) => faults.push(Fault::of_key("by", "`by` needs `per: group`").hint("add `per: group`")),
            (None, _) => {}
        }
        if self.order_by.is_some() && self.per != Per::Group {
            let hint = "add `per: group`, or sort before and use `per: stream`";
            faults.push(Fault::of_key("order_by", "`order_by` needs `per: group`").hint(hint));
        }
        if self.deterministic && matches!(self.per, Per::Group | Per::Stream) {
            let what = "`deterministic` is a promise about single rows";
            faults.push(Fault::of_key("deterministic", what).hint("leave it out"));
        }
    }
}

impl Spec for MapSpec {
    const NAME: &'static str = "map";
    const SUMMARY: &'static str = "Computes rows with a Python function or a program.";
    const EXAMPLE: &'static str = "map:\n  from: ranked\n  python: features.py:score\n  columns: {score: float64}\n  \
                                   keep: [name]\n  deterministic: true\n";

    fn check(&self) -> Vec<Fault> {
        let mut faults = self.columns.check("columns");
        faults.extend(self.columns.nameless("columns"));
        if self.columns.is_empty() {
            let hint = "name them with their types: columns: {id: int64, score: float64}";
            faults.push(Fault::new("columns", "it gives no columns").hint(hint));
        }
        for (name, column) in &self.columns.0 {
            if let ColumnSpec::Detailed(details) = column
                && details.format.is_some()
            {
                let path = vec!["columns".to_owned(), name.clone(), "format".to_owned()];
                let what = "dates and times have one form here".to_owned();
                faults.push(Fault { path, what, hint: Some("leave `format` out".to_owned()) });
            }
        }
        faults.extend(env_faults(&self.env));
        self.check_code(&mut faults);
        self.check_calls(&mut faults);
        if self.workers.is_some_and(|workers| workers.get() > MOST_WORKERS) {
            faults.push(Fault::new("workers", format!("there can be at most {MOST_WORKERS} processes")));
        }
        for (index, kept) in self.keep.iter().enumerate() {
            if self.keep[..index].contains(kept) {
                faults.push(Fault::new(&format!("keep.{index}"), format!("`{}` is there twice", kept.as_str())));
            }
            if self.columns.0.iter().any(|(name, _)| name == kept.as_str()) {
                let what = format!("`{}` is given already", kept.as_str());
                faults.push(Fault::new(&format!("keep.{index}"), what).hint("leave it out of `columns` or of `keep`"));
            }
        }
        faults
    }
}
