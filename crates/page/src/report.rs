//! What the page reads of reports as the history has them. They may be of an older version, of a run that has failed,
//! or damaged: whatever is missing or of another form is left out.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// An entry of the job.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Entry {
    pub entry: String,
    pub kind: String,
    pub reads: Vec<String>,
}

/// The counters of a step.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Step {
    pub name: String,
    pub kind: String,
    pub detail: String,
    pub rows: u64,
    pub rejected: u64,
    pub bytes: u64,
    pub busy: f64,
    pub waiting_input: f64,
    pub waiting_output: f64,
    pub spilled_bytes: u64,
}

/// How far the run was at a point of its time.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub struct Point {
    pub elapsed_ms: u64,
    pub rows_read: u64,
    pub rows_written: u64,
    pub bytes_read: u64,
}

/// What a run that has read a queue did in an interval.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Interval {
    pub from: String,
    pub to: String,
    pub messages: u64,
    pub rows_written: u64,
}

/// What a check has come to.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Check {
    pub entry: String,
    pub check: String,
    pub severity: String,
    pub holds: bool,
    pub broken: u64,
    pub what: String,
    pub examples: Vec<String>,
}

/// What a sink holds.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct SinkResult {
    pub sink: String,
    pub summary: String,
}

/// A file that was left out.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Skipped {
    pub source: String,
    pub uri: Option<String>,
    pub what: String,
}

/// Files that were left alone.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct LeftFiles {
    pub source: String,
    pub files: u64,
    pub first: Vec<String>,
}

/// A column that files lacked.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct MissingColumn {
    pub source: String,
    pub column: String,
    pub files: u64,
    pub first: Vec<String>,
}

/// The report of a sequence.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Sequence {
    pub outcome: String,
    pub moment: Option<i64>,
    pub began: Option<u64>,
    pub ended: Option<u64>,
    pub parameters: Map<String, Value>,
    pub message: Option<String>,
    #[serde(skip)]
    pub steps: Vec<SequenceStep>,
}

/// A step of a sequence.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct SequenceStep {
    pub name: String,
    pub kind: String,
    pub what: String,
    pub needs: Vec<String>,
    pub when: String,
    pub outcome: String,
    pub began: Option<u64>,
    pub ended: Option<u64>,
    pub message: Option<String>,
    #[serde(skip)]
    pub parts: Vec<Part>,
}

/// What a step does once: itself, or for one item of its loop.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Part {
    pub item: Option<String>,
    /// How often it was attempted. What follows is that of all attempts, and `run` that of the last one.
    pub attempts: u64,
    pub outcome: String,
    pub began: Option<u64>,
    pub ended: Option<u64>,
    pub run: Option<String>,
    pub message: Option<String>,
    pub results: Value,
}

impl Sequence {
    /// That of the JSON.
    pub fn of(report: &Value) -> Self {
        let step = |step: &Value| {
            let parts = items(step, "parts").filter_map(read).collect();
            read::<SequenceStep>(step).map(|step| SequenceStep { parts, ..step })
        };
        let steps = items(report, "steps").filter_map(step).collect();
        Sequence { steps, ..read(report).unwrap_or_default() }
    }
}

/// The items of the list `key` that are as they should be.
pub fn list<T: DeserializeOwned>(report: &Value, key: &str) -> Vec<T> {
    items(report, key).filter_map(read).collect()
}

fn items<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

/// An object whose nulls are as if they were not there.
fn read<T: DeserializeOwned>(value: &Value) -> Option<T> {
    let known = value.as_object()?.iter().filter(|(_, value)| !value.is_null());
    serde_json::from_value(known.map(|(key, value)| (key.clone(), value.clone())).collect()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_missing_null_or_of_another_form_is_left_out() {
        let report = json!({"steps": [{"name": "a", "when": null, "parts": [{"attempts": 2}, 3]}, {"name": 5}, null]});
        let sequence = Sequence::of(&report);
        assert_eq!(sequence.steps.len(), 1);
        assert_eq!((sequence.steps[0].name.as_str(), sequence.steps[0].parts.len()), ("a", 1));
        assert!(Sequence::of(&Value::Null).steps.is_empty());
        assert!(list::<Point>(&json!({"points": "x"}), "points").is_empty());
        assert_eq!(list::<Point>(&json!({"points": [{"elapsed_ms": 7, "later": 1}]}), "points")[0].elapsed_ms, 7);
    }
}
