//! Runs over weeks: how long they took, how much they did.

use std::time::Duration;

use millstream::history::RunNumbers;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::summary::kind_name;
use crate::access::Role;
use crate::problem::{Problem, now};
use crate::routes::{Request, Route, get};
use crate::shared::Shared;

/// The most runs.
const MOST: u64 = 2_000;

/// How many days are shown if nothing is said.
const DAYS: u64 = 30;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

pub fn routes() -> Vec<Route> {
    vec![get("/api/v1/history", Role::Look, "The numbers of runs over time, the oldest first", history)]
}

/// Which runs are asked for.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Wanted {
    /// Of this file, by its name from the folder.
    file: Option<String>,
    /// Of this file, by its path from the root.
    job: Option<String>,
    /// Of the last days.
    days: Option<u64>,
}

/// The numbers of runs over time.
#[derive(Debug, Serialize, JsonSchema)]
struct History {
    /// The oldest first.
    runs: Vec<Numbers>,
    /// All files with runs.
    jobs: Vec<Job>,
    /// Whether there are more runs than these.
    is_cut: bool,
}

/// The numbers of a run.
#[derive(Debug, Serialize, JsonSchema)]
struct Numbers {
    run: String,
    job: String,
    file: Option<String>,
    kind: &'static str,
    began: u64,
    seconds: Option<f64>,
    outcome: &'static str,
    rows_read: u64,
    rows_written: u64,
    rows_rejected: u64,
    bytes_read: Option<u64>,
}

/// A file with runs.
#[derive(Debug, Clone, Serialize, JsonSchema)]
struct Job {
    job: String,
    file: Option<String>,
    kind: &'static str,
    runs: u64,
}

fn history(shared: &Shared, _: &Request, wanted: Wanted) -> Result<History, Problem> {
    let job = wanted.job.or_else(|| wanted.file.as_ref().map(|file| shared.folder.path_of(file)));
    let days = DAY.saturating_mul(u32::try_from(wanted.days.unwrap_or(DAYS)).unwrap_or(u32::MAX));
    let from = now().saturating_sub(u64::try_from(days.as_millis()).unwrap_or(u64::MAX));
    let mut runs = shared.history.numbers(job.as_deref(), from, MOST + 1)?;
    let is_cut = runs.len() as u64 > MOST;
    runs.truncate(MOST as usize);
    let numbers = |run: &RunNumbers| Numbers {
        run: run.run.clone(),
        file: shared.folder.name_of(&run.job),
        job: run.job.clone(),
        kind: kind_name(run.kind),
        began: run.began,
        seconds: run.ended.map(|ended| Duration::from_millis(ended.saturating_sub(run.began)).as_secs_f64()),
        outcome: match run.outcome {
            Some(outcome) => outcome.name(),
            None if shared.history.is_alive(&run.run) => "running",
            None => "killed",
        },
        rows_read: run.rows[0],
        rows_written: run.rows[1],
        rows_rejected: run.rows[2],
        bytes_read: run.bytes_read,
    };
    let jobs = shared.cached("jobs", || {
        let job = |known: millstream::history::KnownJob| Job {
            file: shared.folder.name_of(&known.job),
            kind: kind_name(known.kind),
            runs: known.runs,
            job: known.job,
        };
        Ok(shared.history.known_jobs()?.into_iter().map(job).collect::<Vec<_>>())
    })?;
    Ok(History { runs: runs.iter().rev().map(numbers).collect(), jobs, is_cut })
}
