//! What comes next.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use millstream::Lint;
use millstream::history::Occurrence;
use millstream_scheduler::{Checker, Listed, list, wall_clock};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::access::Role;
use crate::problem::Problem;
use crate::routes::{Request, Route, get};
use crate::shared::{SchedulerState, Shared};

/// The most times of each sequence.
const MOST: usize = 100;

pub fn routes() -> Vec<Route> {
    vec![get("/api/v1/schedule", Role::Look, "When each sequence starts next", answer)]
}

/// How many times are asked for.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Times {
    /// How many times of each sequence; 1 if nothing is said.
    times: Option<usize>,
}

/// What comes next.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Schedule {
    scheduler: SchedulerState,
    sequences: Vec<Scheduled>,
    /// What is wrong with schedules.
    lints: Vec<Value>,
}

/// A sequence with a schedule.
#[derive(Debug, Clone, Serialize, JsonSchema)]
struct Scheduled {
    sequence: String,
    file: Option<String>,
    timezone: String,
    /// The next times, in ISO form.
    next: Vec<String>,
    /// What starts it beside the time, in words.
    triggers: Vec<String>,
    running: Option<OccurrenceText>,
    queued: Option<OccurrenceText>,
    last: Option<OccurrenceText>,
    missed: Option<Value>,
}

/// A start of a sequence.
#[derive(Debug, Clone, Serialize, JsonSchema)]
struct OccurrenceText {
    planned: i64,
    state: &'static str,
    cause: Option<String>,
    why: Option<String>,
    run: Option<String>,
    outcome: Option<&'static str>,
    message: Option<String>,
}

fn answer(shared: &Shared, _: &Request, Times { times }: Times) -> Result<Schedule, Problem> {
    schedule(shared, times.unwrap_or(1).clamp(1, MOST))
}

/// What comes next: `most` times of each sequence.
pub fn schedule(shared: &Shared, most: usize) -> Result<Schedule, Problem> {
    let (sequences, lints) = shared.cached(&format!("schedule {most}"), || {
        // Steps are checked by the scheduler, when their files change.
        let nothing = Checker(Arc::new(|_| Default::default()));
        let (listed, lints) = list(shared.folder.root(), shared.history.folder(), &wall_clock(), most, &nothing)?;
        let sequences: Vec<Scheduled> = listed.iter().map(|listed| scheduled(shared, listed)).collect();
        Ok((sequences, lints.iter().map(|lint: &Lint| json!(lint)).collect::<Vec<Value>>()))
    })?;
    Ok(Schedule { scheduler: shared.scheduler_state(), sequences, lints })
}

fn scheduled(shared: &Shared, listed: &Listed) -> Scheduled {
    let iso = |next: &DateTime<Utc>| next.with_timezone(&listed.zone).to_rfc3339();
    Scheduled {
        sequence: listed.sequence.to_string(),
        file: shared.folder.name_of(&listed.sequence),
        timezone: listed.zone.name().to_owned(),
        next: listed.next.iter().map(iso).collect(),
        triggers: listed.triggers.clone(),
        running: listed.running.as_ref().map(occurrence),
        queued: listed.queued.as_ref().map(occurrence),
        last: listed.last.as_ref().map(occurrence),
        missed: listed.missed.as_ref().map(|missed| json!(missed)),
    }
}

fn occurrence(occurrence: &Occurrence) -> OccurrenceText {
    OccurrenceText {
        planned: occurrence.planned,
        state: occurrence.state.name(),
        cause: occurrence.cause.clone(),
        why: occurrence.why.clone(),
        run: occurrence.run.clone(),
        outcome: occurrence.outcome.map(millstream::history::Outcome::name),
        message: occurrence.message.clone(),
    }
}
