//! Checks of rows: what is counted for them during a run, and what they come to.
//!
//! ```text
//!  rows of an entry ─▶ CheckExec (plan/checked.rs) ─▶ counts of its checks ─┐
//!                          └ keys of `unique` (keys.rs)                     ├─▶ judged (judge.rs), before any
//!  earlier runs of the resume chain: counts in the reject log ──────────────┘   sink publishes
//! ```
//! The rules themselves are expressions: see [`crate::plan::conditions`]. Which loads have to go all at once for a
//! check is [`crate::chunks::sinks`]'s to say.

pub mod judge;
pub mod keys;
pub mod lints;
mod runs;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::RecordBatch;
use millstream_core::reject::MaxRejects;
use millstream_core::{Error, RejectKind};
use millstream_job::{Check, CheckSeverity, Located, RowsKeys, Rule};
use millstream_state::rejects::CheckedRows;
use serde_json::{Value, json};

use self::keys::KeySet;
use crate::rejects::json_of;
use crate::report::CheckResult;

/// How many rows that break a rule are shown.
const EXAMPLES: usize = 3;

/// The most characters of a row that are shown.
const EXAMPLE_LENGTH: usize = 200;

/// What the checks of a run have come to that fails for them: its entry in the run history says so, too.
#[derive(Debug, Default)]
pub struct FailedChecks(Mutex<Vec<CheckResult>>);

impl FailedChecks {
    /// Keeps the results.
    pub fn set(&self, results: Vec<CheckResult>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = results;
    }

    /// The results, which are not kept any longer.
    pub fn take(&self) -> Vec<CheckResult> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The checks of an entry's rows, and what has been counted for them so far.
#[derive(Debug)]
pub struct EntryChecks {
    /// The entry: its name, and for a sink `sink` before it.
    pub entry: String,
    /// The name of the source, transform or sink.
    pub name: String,
    /// The checks, in their order.
    pub checks: Vec<EntryCheck>,
    /// What is counted.
    pub counts: Arc<CheckCounts>,
}

/// A check of an entry's rows.
#[derive(Debug)]
pub struct EntryCheck {
    /// What is looked at.
    pub kind: CheckKind,
    /// The rule in a few words.
    pub label: String,
    /// Severity and rule, by which the reject log keeps what was counted: other checks may have the same label.
    pub noted_as: String,
    /// What happens if the rule is broken.
    pub severity: CheckSeverity,
    /// How many rows may break it.
    pub at_most: MaxRejects,
    /// What a message says in place of the rule.
    pub message: Option<String>,
    /// The column that it is about, if it is one.
    pub column: Option<String>,
    /// How many of the expressions of the entry's checks are its own.
    pub expressions: usize,
}

/// What a check looks at.
#[derive(Debug)]
pub enum CheckKind {
    /// How many rows there are.
    Rows(RowsKeys),
    /// A condition for each row: false breaks the rule, and null does not.
    Condition,
    /// Keys, which have to differ.
    Unique(KeySet),
}

impl EntryCheck {
    /// `check`, which has so many expressions. `keys` makes an empty set of keys.
    pub fn new(check: &Check, expressions: usize, keys: impl FnOnce() -> KeySet) -> Self {
        let (kind, column) = match &check.rule {
            Rule::Rows(rows) => (CheckKind::Rows(rows.clone()), None),
            Rule::Unique(_) => (CheckKind::Unique(keys()), None),
            Rule::NotNull(column) | Rule::Values(column, _) | Rule::Matches(column, _) | Rule::Range { column, .. } => {
                (CheckKind::Condition, Some(column.value.clone()))
            }
            Rule::Sql(_) => (CheckKind::Condition, None),
        };
        EntryCheck {
            kind,
            label: check.rule.label(),
            noted_as: json!([check.severity, described(&check.rule)]).to_string(),
            severity: check.severity,
            at_most: check.at_most,
            message: check.message.clone(),
            column,
            expressions,
        }
    }

    /// Whether rows that break the rule are left out.
    pub fn rejects(&self) -> bool {
        self.severity == CheckSeverity::Reject
    }

    /// The error of a row that is left out.
    pub fn row_error(&self) -> Error {
        let what = self.message.clone().unwrap_or_else(|| format!("a check does not hold: {}", self.label));
        let error = Error::data(what).reject(RejectKind::Constraint);
        self.column.iter().fold(error, Error::column)
    }
}

/// What a check of single rows looks at; null for checks of all rows, which leave none out.
pub fn described(rule: &Rule) -> Value {
    let text = |text: &Option<Located<String>>| text.as_ref().map(|text| text.value.clone());
    match rule {
        Rule::NotNull(column) => json!(["not_null", column.value]),
        Rule::Values(column, values) => {
            json!(["values", column.value, values.iter().map(|value| value.value.as_str()).collect::<Vec<_>>()])
        }
        Rule::Matches(column, pattern) => json!(["matches", column.value, pattern.value]),
        Rule::Range { column, min, max } => json!(["range", column.value, text(min), text(max)]),
        Rule::Sql(condition) => json!(["sql", condition.value]),
        Rule::Rows(_) | Rule::Unique(_) => Value::Null,
    }
}

impl EntryChecks {
    /// Those of an entry, with nothing counted.
    pub fn new(name: &str, is_sink: bool, checks: Vec<EntryCheck>) -> Self {
        let entry = if is_sink { format!("sink {name}") } else { name.to_owned() };
        let counts = Arc::new(CheckCounts::new(checks.len()));
        EntryChecks { entry, name: name.to_owned(), checks, counts }
    }

    /// Whether any of them is compared with earlier runs.
    pub fn has_change(&self) -> bool {
        self.checks.iter().any(|check| matches!(&check.kind, CheckKind::Rows(limits) if limits.change.is_some()))
    }

    /// Whether any of them needs all rows together.
    pub fn has_keys(&self) -> bool {
        self.checks.iter().any(|check| matches!(check.kind, CheckKind::Unique(_)))
    }

    /// Bytes that their keys took in scratch.
    pub fn spilled(&self) -> u64 {
        let of = |check: &EntryCheck| match &check.kind {
            CheckKind::Unique(keys) => keys.spilled(),
            CheckKind::Rows(_) | CheckKind::Condition => 0,
        };
        self.checks.iter().map(of).sum()
    }

    /// Whether any of them leaves rows out.
    pub fn rejects(&self) -> bool {
        self.checks.iter().any(EntryCheck::rejects)
    }

    /// What was counted for a part of the rows, as the reject log keeps it.
    pub fn noted(&self, counts: &CheckCounts) -> CheckedRows {
        let broken = self.checks.iter().zip(counts.broken()).filter(|(_, broken)| *broken > 0);
        let broken: BTreeMap<String, u64> = broken.map(|(check, broken)| (check.noted_as.clone(), broken)).collect();
        CheckedRows { entry: self.entry.clone(), rows: counts.rows(), broken }
    }

    /// Adds what an earlier run has counted; what it says of checks that are no more here is left out. Of equal checks
    /// that reject, the first one has left out all rows.
    pub fn add_noted(&self, noted: &CheckedRows) {
        if noted.entry != self.entry {
            return;
        }
        self.counts.add_rows(noted.rows);
        for (index, check) in self.checks.iter().enumerate() {
            if check.rejects() && self.checks[..index].iter().any(|before| before.noted_as == check.noted_as) {
                continue;
            }
            self.counts.add_broken(index, noted.broken.get(&check.noted_as).copied().unwrap_or(0));
        }
    }
}

/// What is counted for the checks of an entry.
#[derive(Debug)]
pub struct CheckCounts {
    rows: AtomicU64,
    of_checks: Vec<CheckCount>,
}

#[derive(Debug, Default)]
struct CheckCount {
    broken: AtomicU64,
    /// Whether there are as many examples as are shown: then nothing is locked for more.
    is_full: AtomicBool,
    examples: Mutex<Vec<String>>,
}

impl CheckCount {
    fn examples(&self) -> MutexGuard<'_, Vec<String>> {
        self.examples.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, example: String) {
        let mut examples = self.examples();
        if examples.len() < EXAMPLES {
            examples.push(example);
        }
        self.is_full.store(examples.len() == EXAMPLES, Ordering::Relaxed);
    }
}

impl CheckCounts {
    /// For so many checks.
    pub fn new(checks: usize) -> Self {
        CheckCounts { rows: AtomicU64::new(0), of_checks: (0..checks).map(|_| CheckCount::default()).collect() }
    }

    /// Counts rows of the entry.
    pub fn add_rows(&self, rows: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
    }

    /// Counts rows that break the rule of the check number `check`.
    pub fn add_broken(&self, check: usize, rows: u64) {
        if rows > 0 {
            self.of_checks[check].broken.fetch_add(rows, Ordering::Relaxed);
        }
    }

    /// Whether rows that break the rule of the check number `check` are still to be shown.
    pub fn wants_examples(&self, check: usize) -> bool {
        !self.of_checks[check].is_full.load(Ordering::Relaxed)
    }

    /// Keeps the first row of `batch`, which breaks the rule of the check number `check`, to be shown.
    pub fn show_row(&self, check: usize, row: &RecordBatch) {
        let shown = json_of(row).map_or_else(|| "a row that cannot be shown".to_owned(), |row| row.to_string());
        self.show(check, shown);
    }

    /// Keeps `example` of what breaks the rule of the check number `check`, to be shown.
    pub fn show(&self, check: usize, example: String) {
        let cut = example.char_indices().nth(EXAMPLE_LENGTH).map(|(end, _)| format!("{}…", &example[..end]));
        self.of_checks[check].show(cut.unwrap_or(example));
    }

    /// Adds what was counted for a part of the rows.
    pub fn add(&self, part: &CheckCounts) {
        self.add_rows(part.rows());
        for (index, of_part) in part.of_checks.iter().enumerate() {
            self.add_broken(index, of_part.broken.load(Ordering::Relaxed));
            of_part.examples().drain(..).for_each(|example| self.of_checks[index].show(example));
        }
    }

    /// Rows of the entry so far, those that were left out not counted.
    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Rows that break the rule of each check.
    pub fn broken(&self) -> impl Iterator<Item = u64> {
        self.of_checks.iter().map(|check| check.broken.load(Ordering::Relaxed))
    }

    /// The first rows that break the rule of each check, as they came.
    fn shown(&self) -> impl Iterator<Item = Vec<String>> {
        self.of_checks.iter().map(|check| check.examples().clone())
    }
}
