//! What the steps of a run have come to so far.

use millstream_engine::sequences::Row;
use millstream_job::sequence::{Sequence, Step, StepState};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// An item of a loop: a text, or a row of a query.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Item {
    /// A text: a value of a list, a day, a path.
    Text(String),
    /// A row.
    Row(Row),
}

impl Item {
    /// The item in a text: itself, or the first column of the row.
    pub fn text(&self) -> String {
        match self {
            Item::Text(text) => text.clone(),
            Item::Row(row) => row.values().next().and_then(text_of).unwrap_or_default(),
        }
    }
}

/// A value in a text. Null has none.
pub(crate) fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// What a step does once: itself, or for one item of its loop.
#[derive(Debug, Clone)]
pub struct Part {
    /// The item, if the step is a loop.
    pub item: Option<Item>,
    /// What it has come to.
    pub state: StepState,
    /// How often it was attempted.
    pub attempts: u32,
    /// When its first attempt began, in milliseconds since 1970.
    pub began: Option<u64>,
    /// When its last one ended.
    pub ended: Option<u64>,
    /// Why it has failed.
    pub message: Option<String>,
    /// Its results.
    pub results: Row,
}

impl Part {
    pub(crate) fn new(item: Option<Item>) -> Self {
        let (attempts, began, ended, message, results) = (0, None, None, None, Row::new());
        Part { item, state: StepState::Waiting, attempts, began, ended, message, results }
    }

    /// The name of its run in the history, if it has one.
    pub fn run(&self) -> Option<&str> {
        self.results.get("run")?.as_str()
    }
}

/// A step.
#[derive(Debug, Clone)]
pub struct StepProgress {
    /// What it has come to.
    pub state: StepState,
    /// Counts up when it is done once more although it was done before.
    pub round: u32,
    /// Whether its jobs begin anew in this round, whatever they have loaded.
    pub restarts: bool,
    /// Whether it could begin, but no part of it has: its pool has no place, or others have the memory.
    pub waits_for_room: bool,
    /// When it began, in milliseconds since 1970.
    pub began: Option<u64>,
    /// When it was over.
    pub ended: Option<u64>,
    /// Why it has failed, if that is not said of its parts.
    pub message: Option<String>,
    /// Its results.
    pub results: Row,
    /// Its parts; none before it begins.
    pub parts: Vec<Part>,
}

impl Default for StepProgress {
    fn default() -> Self {
        let (began, ended, message, results, parts) = (None, None, None, Row::new(), Vec::new());
        let (state, round, restarts, waits_for_room) = (StepState::Waiting, 1, false, false);
        StepProgress { state, round, restarts, waits_for_room, began, ended, message, results, parts }
    }
}

impl StepProgress {
    /// The name of a part in the run history, if the step has this name.
    pub fn label(&self, name: &str, part: usize) -> String {
        let round = if self.round > 1 { format!(" ({})", self.round) } else { String::new() };
        let item_of = |part: &Part| part.item.as_ref().map(Item::text);
        let Some(item) = self.parts.get(part).and_then(item_of) else { return format!("{name}{round}") };
        // Two rows may have the same first column.
        match self.parts.iter().take(part).filter(|other| item_of(other).as_ref() == Some(&item)).count() {
            0 => format!("{name}{round}[{item}]"),
            before => format!("{name}{round}[{item}, {}]", before + 1),
        }
    }

    /// Why it has failed: what it says itself, or the first of its parts. Of a loop with the item, and how many more
    /// have failed.
    pub fn why(&self, step: &Step) -> Option<String> {
        if self.message.is_some() {
            return self.message.clone();
        }
        let mut failed = self.parts.iter().filter(|part| part.state.is_failure());
        let first = failed.next()?;
        let why = first.message.clone();
        let Some((for_each, item)) = step.for_each.as_ref().zip(first.item.as_ref()) else { return why };
        let more = match failed.count() {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        let why = why.map_or(String::new(), |why| format!(": {why}"));
        Some(format!("{}={}{more}{why}", for_each.variable.value, item.text()))
    }
}

/// All steps, in the order of the file.
#[derive(Debug, Clone)]
pub struct Progress {
    /// The steps.
    pub steps: Vec<StepProgress>,
}

impl Progress {
    pub(crate) fn new(sequence: &Sequence) -> Self {
        Progress { steps: vec![StepProgress::default(); sequence.steps.len()] }
    }

    pub(crate) fn states(&self) -> Vec<StepState> {
        self.steps.iter().map(|step| step.state).collect()
    }

    /// The steps as the report of the run has them.
    pub fn to_json(&self, sequence: &Sequence) -> Value {
        let step = |number: usize| {
            let (step, progress) = (&sequence.steps[number], &self.steps[number]);
            let needs: Vec<&str> =
                sequence.graph.needs(number).iter().map(|&need| sequence.steps[need].name.value.as_str()).collect();
            let variable = step.for_each.as_ref().map(|for_each| for_each.variable.value.as_str());
            let part = |part: &Part| {
                let item = part.item.as_ref().zip(variable).map(|(item, name)| format!("{name}={}", item.text()));
                json!({
                    "item": item, "attempts": part.attempts, "outcome": outcome(part.state), "began": part.began,
                    "ended": part.ended, "run": part.run(), "message": part.message, "results": part.results,
                })
            };
            let state = if progress.waits_for_room { StepState::Waiting } else { progress.state };
            json!({
                "name": step.name.value, "kind": step.action.kind(), "what": crate::values::what(&step.action),
                "needs": needs, "when": crate::values::when(step), "outcome": outcome(state),
                "began": progress.began, "ended": progress.ended, "message": progress.message,
                "results": progress.results, "parts": progress.parts.iter().map(part).collect::<Vec<_>>(),
            })
        };
        (0..sequence.steps.len()).map(step).collect()
    }
}

/// What a state is called in reports.
pub(crate) fn outcome(state: StepState) -> &'static str {
    match state {
        StepState::Waiting => "waiting",
        StepState::Running => "running",
        StepState::Succeeded => "success",
        StepState::Failed => "failed",
        StepState::Skipped => "skipped",
        StepState::NotRun => "not_run",
    }
}
