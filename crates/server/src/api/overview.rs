//! What runs, what failed, what comes next, at one glance.

use millstream::history::{Outcome, RunFilter, WaitingRun};
use schemars::JsonSchema;
use serde::Serialize;

use super::schedule::{Schedule, schedule};
use super::summary::{RunSummary, StepOf, kind_name, summary};
use crate::access::Role;
use crate::problem::Problem;
use crate::routes::{Nothing, Request, Route, get};
use crate::shared::{NoticeText, Shared};

/// How many runs a strip has, and how many strips there are.
const IN_STRIP: u64 = 20;
const STRIPS: usize = 100;

/// How many runs are shown that left something to do.
const UNFINISHED: u64 = 20;

pub fn routes() -> Vec<Route> {
    vec![get("/api/v1/overview", Role::Look, "What runs, what failed, what comes next", overview)]
}

/// What runs, what failed, what comes next.
#[derive(Debug, Serialize, JsonSchema)]
struct Overview {
    running: Vec<RunSummary>,
    waiting: Vec<Waiting>,
    /// What left something to do.
    unfinished: Vec<RunSummary>,
    schedule: Schedule,
    /// The last runs of each file, those that ran last first.
    strips: Vec<Strip>,
    /// What the scheduler and the server have noticed, the last first.
    notices: Vec<NoticeText>,
}

/// A run that waits for its hours.
#[derive(Debug, Serialize, JsonSchema)]
struct Waiting {
    job: String,
    file: Option<String>,
    of_step: Option<StepOf>,
    hours: String,
    until: String,
    has_begun: bool,
    since: u64,
}

/// The last runs of a file, the oldest first.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Strip {
    job: String,
    file: Option<String>,
    kind: &'static str,
    runs: Vec<InStrip>,
}

/// A run in a strip.
#[derive(Debug, Clone, Serialize, JsonSchema)]
struct InStrip {
    run: String,
    outcome: &'static str,
    began: u64,
    seconds: Option<f64>,
}

fn overview(shared: &Shared, _: &Request, _: Nothing) -> Result<Overview, Problem> {
    let (history, folder) = (&shared.history, &shared.folder);
    let summaries = |runs: &[_]| runs.iter().map(|run| summary(history, folder, run)).collect::<Vec<_>>();
    let running = history.browse(&RunFilter { outcome: Some(Outcome::Running), ..RunFilter::default() }, u64::MAX)?;
    let waiting = WaitingRun::all(history.folder()).into_iter().map(|run| Waiting {
        file: folder.name_of(&run.job),
        job: run.job,
        of_step: run.of_step.as_ref().map(StepOf::of),
        hours: run.hours,
        until: run.until,
        has_begun: run.has_begun,
        since: run.since,
    });
    let unfinished = shared.cached("unfinished", || {
        let mut runs = history.left_over(None, UNFINISHED * 5)?;
        runs.retain(|run| run.of_step.is_none());
        runs.truncate(UNFINISHED as usize);
        Ok(summaries(&runs))
    })?;
    Ok(Overview {
        running: summaries(&running),
        waiting: waiting.collect(),
        unfinished,
        schedule: schedule(shared, 1)?,
        strips: shared.cached("strips", || strips(shared))?,
        notices: shared.notices.all(),
    })
}

fn strips(shared: &Shared) -> Result<Vec<Strip>, Problem> {
    let mut strips = Vec::new();
    for known in shared.history.known_jobs()? {
        let filter = RunFilter { job: Some(known.job.clone()), ..RunFilter::default() };
        let mut runs = shared.history.browse(&filter, IN_STRIP)?;
        // Those that are steps of sequences only are shown there.
        if runs.is_empty() {
            continue;
        }
        runs.reverse();
        let in_strip = |run: &millstream::history::RunRecord| InStrip {
            run: run.run.clone(),
            outcome: run.outcome.name(),
            began: run.began,
            seconds: run.took().map(|took| took.as_secs_f64()),
        };
        strips.push(Strip {
            file: shared.folder.name_of(&known.job),
            kind: kind_name(known.kind),
            runs: runs.iter().map(in_strip).collect(),
            job: known.job,
        });
    }
    strips.sort_by_key(|strip| std::cmp::Reverse(strip.runs.last().map(|run| run.began)));
    strips.truncate(STRIPS);
    Ok(strips)
}
