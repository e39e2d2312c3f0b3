//! Runs: a list of them, one with all that is known of it, its log and its rejects.

use std::path::PathBuf;
use std::sync::Arc;

use millstream::history::{Outcome, RunFilter, RunHistory, RunKind, RunRecord};
use millstream::rejects::has_kept;
use millstream::{Error, ErrorKind};
use millstream_page::compare::compared;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::summary::{RunSummary, summary};
use crate::access::Role;
use crate::actions::{Log, read_log};
use crate::answers::{blocking, failed};
use crate::problem::Problem;
use crate::routes::{Nothing, Request, Route, ask, get};
use crate::shared::Shared;

/// How many runs a list has if nothing is said, and at most.
const USUAL: u64 = 50;
const MOST: u64 = 500;

/// The most runs of the steps of a sequence that are shown.
const STEP_RUNS: u64 = 1_000;

pub fn routes() -> Vec<Route> {
    vec![
        get("/api/v1/runs", Role::Look, "Runs, the last one first", list),
        get("/api/v1/runs/{run}", Role::Look, "A run, beside an earlier one", detail),
        get("/api/v1/runs/{run}/log", Role::Look, "What a run has printed", log),
        ask("/api/v1/runs/{run}/rejects", Role::Look, "What a run rejected, by reason", rejects),
    ]
}

/// Which runs are asked for.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct RunsQuery {
    /// Of this file, by its path from the root.
    job: Option<String>,
    /// Of this file, by its name from the folder.
    file: Option<String>,
    /// `job` or `sequence`.
    kind: Option<String>,
    /// `running`, `done`, `failed`, `interrupted`, `killed` or `skipped`.
    outcome: Option<String>,
    /// With this text in the path of the file, the name, the variables or the error.
    q: Option<String>,
    /// That began at this time or later.
    from: Option<u64>,
    /// That began before this time.
    to: Option<u64>,
    /// Those that are steps of sequences, too.
    steps: bool,
    /// Only those that left something to do.
    unfinished: bool,
    /// Only those that are older than this run.
    before: Option<String>,
    /// How many at most.
    limit: Option<u64>,
}

/// A list of runs.
#[derive(Debug, Serialize, JsonSchema)]
struct RunList {
    runs: Vec<RunSummary>,
    /// What `before` says to get the next ones; null if these are the last.
    next: Option<String>,
}

/// One of several words, by which something is chosen.
fn chosen<T>(what: &str, word: Option<&str>, known: &[(&str, T)]) -> Result<Option<T>, Problem>
where
    T: Copy,
{
    let Some(word) = word.filter(|word| !word.is_empty()) else { return Ok(None) };
    let found = known.iter().find(|(name, _)| *name == word).map(|(_, value)| *value);
    let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    let error =
        || Error::job(format!("this is no {what}")).text(word).hint(format!("choose one of {}", names.join(", ")));
    found.map(Some).ok_or_else(|| Problem::bad(error()))
}

fn list(shared: &Shared, _: &Request, query: RunsQuery) -> Result<RunList, Problem> {
    let outcomes =
        [Outcome::Running, Outcome::Done, Outcome::Failed, Outcome::Interrupted, Outcome::Killed, Outcome::Skipped];
    let outcomes = outcomes.map(|outcome| (outcome.name(), outcome));
    let kinds = [("job", RunKind::Job), ("sequence", RunKind::Sequence)];
    let job = query.job.clone().or_else(|| query.file.as_ref().map(|file| shared.folder.path_of(file)));
    let most = query.limit.unwrap_or(USUAL).clamp(1, MOST);
    let filter = RunFilter {
        job: job.clone(),
        kind: chosen("kind of run", query.kind.as_deref(), &kinds)?,
        outcome: chosen("outcome", query.outcome.as_deref(), &outcomes)?,
        text: query.q.clone().filter(|text| !text.is_empty()),
        from: query.from,
        to: query.to,
        steps: query.steps,
        before: query.before.clone(),
    };
    let mut runs = match query.unfinished {
        true => unfinished(shared, &filter, most + 1)?,
        false => shared.history.browse(&filter, most + 1)?,
    };
    let has_more = runs.len() as u64 > most;
    runs.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    let next = runs.last().filter(|_| has_more).map(|last| last.run.clone());
    let runs = runs.iter().map(|run| summary(&shared.history, &shared.folder, run)).collect();
    Ok(RunList { runs, next })
}

/// The last `most` runs that left something to do and that `filter` lets through.
fn unfinished(shared: &Shared, filter: &RunFilter, most: u64) -> Result<Vec<RunRecord>, Problem> {
    let wanted = filter.text.as_ref().map(|text| text.to_lowercase());
    let has = |run: &RunRecord| {
        let shown = [&run.job, &run.run, &run.shown_variables(), &run.shown_message().unwrap_or_default()];
        wanted.as_ref().is_none_or(|wanted| shown.iter().any(|text| text.to_lowercase().contains(wanted)))
    };
    let is_right = |run: &RunRecord| {
        filter.kind.is_none_or(|kind| run.kind == kind)
            && filter.outcome.is_none_or(|outcome| run.outcome == outcome)
            && filter.from.is_none_or(|from| run.began >= from)
            && filter.to.is_none_or(|to| run.began < to)
            && (filter.steps || run.of_step.is_none())
            && has(run)
    };
    let all = shared.history.left_over(filter.job.as_deref(), u64::MAX)?;
    let behind = filter
        .before
        .as_ref()
        .map_or(0, |before| all.iter().position(|run| run.run == *before).map_or(all.len(), |position| position + 1));
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    Ok(all.into_iter().skip(behind).filter(is_right).take(most).collect())
}

/// The run of this name.
pub fn find(shared: &Shared, name: &str) -> Result<RunRecord, Problem> {
    let found = shared.history.find(name)?;
    found.ok_or_else(|| Problem::absent(Error::refused("there is no such run").text(name)))
}

/// What a run is compared with.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Beside {
    /// Another run than the last one before it that is done.
    beside: Option<String>,
}

/// A run, with all that is known of it.
#[derive(Debug, Serialize, JsonSchema)]
struct RunDetail {
    run: RunSummary,
    /// Why it has failed, with places and hints; empty if the history has only the message of the run.
    errors: Vec<Value>,
    /// Its report; of one that has failed, what there was of it.
    report: Option<Value>,
    /// What it is compared with.
    before: Option<Earlier>,
    compared: Vec<Number>,
    /// How a job goes that runs; of one that was killed, how it went last.
    live: Option<Value>,
    /// The steps of a sequence.
    steps: Option<Value>,
    /// The runs of the steps of a sequence.
    step_runs: Vec<RunSummary>,
    /// All runs of its resume chain, the first one first.
    chain: Vec<RunSummary>,
    can: Can,
    /// Whether there is a log.
    has_log: bool,
}

/// An earlier run.
#[derive(Debug, Serialize, JsonSchema)]
struct Earlier {
    run: RunSummary,
    report: Option<Value>,
}

/// A number of a run beside that of an earlier one, in words.
#[derive(Debug, Serialize, JsonSchema)]
struct Number {
    what: &'static str,
    now: String,
    before: String,
    change: String,
    expected: String,
}

/// What can be done about a run.
#[derive(Debug, Serialize, JsonSchema)]
#[expect(clippy::struct_excessive_bools, reason = "each is a button")]
struct Can {
    cancel: bool,
    resume: bool,
    start: bool,
    replay: bool,
}

fn detail(shared: &Shared, request: &Request, query: Beside) -> Result<RunDetail, Problem> {
    let (history, folder) = (&shared.history, &shared.folder);
    let mut run = find(shared, request.id("run"))?.shown();
    let errors = run.report.as_mut().and_then(|report| report.as_object_mut()?.remove("errors"));
    let before = match query.beside.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => Some(find(shared, name)?),
        None => history.done_before(&run)?,
    };
    let before = before.map(RunRecord::shown);
    let numbers = compared(&run, before.as_ref()).into_iter();
    let number = |one: millstream_page::compare::Compared| Number {
        what: one.what,
        now: one.now,
        before: one.before,
        change: one.change,
        expected: one.expected,
    };
    let is_over = run.ended.is_some();
    let view = if is_over { None } else { history.view_of(&run.run) };
    let view: Option<Value> = view.and_then(|view| serde_json::from_str(&view).ok());
    let of_report = run.report.as_ref().map(|report| report["steps"].clone());
    let (live, steps, step_runs) = match run.kind {
        RunKind::Job => (view, None, Vec::new()),
        RunKind::Sequence => {
            let steps = view.map(|view| view["steps"].clone()).or(of_report);
            (None, Some(steps.unwrap_or_else(|| Value::Array(Vec::new()))), history.steps_of(&run.logical, STEP_RUNS)?)
        }
    };
    let summaries = |runs: &[RunRecord]| runs.iter().map(|run| summary(history, folder, run)).collect::<Vec<_>>();
    let shown = summary(history, folder, &run);
    let may = request.caller.role >= Role::Operate;
    let is_here = shown.file.is_some();
    let can = Can {
        cancel: may && run.outcome == Outcome::Running,
        resume: may && is_here && shown.is_unfinished && run.of_step.is_none(),
        start: may && is_here && run.outcome != Outcome::Running && run.of_step.is_none(),
        replay: may
            && is_here
            && run.kind == RunKind::Job
            && run.rows_rejected > 0
            && run.outcome != Outcome::Running
            && has_kept(history.folder(), &run.logical),
    };
    Ok(RunDetail {
        has_log: log_path(shared, &run).is_some(),
        errors: errors.and_then(|errors| errors.as_array().cloned()).unwrap_or_default(),
        report: run.report.clone(),
        before: before.map(|before| Earlier { run: summary(history, folder, &before), report: before.report }),
        compared: numbers.map(number).collect(),
        live,
        steps,
        step_runs: summaries(&step_runs),
        chain: summaries(&history.chain(&run.logical)?),
        can,
        run: shown,
    })
}

/// Which log is wanted, and from where on.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct LogQuery {
    /// The byte with which it begins.
    from: u64,
    /// Of this step of a sequence, in place of the sequence itself.
    step: Option<String>,
    /// Of this part of the step, counted from 0.
    part: usize,
}

fn log(shared: &Shared, request: &Request, LogQuery { from, step, part }: LogQuery) -> Result<Log, Problem> {
    let run = find(shared, request.id("run"))?;
    if let Some(step) = step {
        let path = log_of_part_of(shared, &run, &step, part);
        let path = path.ok_or_else(|| Problem::absent(Error::refused("the run has no such step").text(step)))?;
        let nothing = Log { text: String::new(), next: 0, is_cut: false };
        return if path.is_file() { Ok(read_log(&path, from)?) } else { Ok(nothing) };
    }
    match log_path(shared, &run) {
        Some(path) => Ok(read_log(&path, from)?),
        None => {
            let error = Error::refused("this run has no log").text(&run.run);
            Err(Problem::absent(error.hint("a run that was started in a terminal has printed there")))
        }
    }
}

/// Where the log of `run` is: that of what was asked of the server, of the scheduler, or of a sequence.
fn log_path(shared: &Shared, run: &RunRecord) -> Option<PathBuf> {
    let of_scheduler = || {
        let occurrence = shared.occurrences().of_chain(&run.logical).ok()??;
        millstream_scheduler::log_of(shared.history.folder(), &occurrence.sequence, occurrence.planned)
    };
    shared.actions.log_of(run).or_else(of_scheduler).or_else(|| log_of_step(shared, run))
}

/// The steps of a sequence, as they are or were last.
fn steps_of(history: &RunHistory, sequence: &RunRecord) -> Vec<Value> {
    let view = history.view_of(&sequence.run).and_then(|view| serde_json::from_str(&view).ok());
    let steps = match view.or_else(|| history.find(&sequence.run).ok()??.report) {
        Some(Value::Object(mut known)) => known.remove("steps"),
        _ => None,
    };
    match steps {
        Some(Value::Array(steps)) => steps,
        _ => Vec::new(),
    }
}

/// Where the sequence that is `run` keeps what a part of a step has printed. The name of the step comes from outside:
/// only one that the sequence has leads to a file.
fn log_of_part_of(shared: &Shared, run: &RunRecord, step: &str, part: usize) -> Option<PathBuf> {
    let steps = steps_of(&shared.history, run);
    let known = steps.iter().find(|known| known["name"] == step)?;
    known["parts"].get(part)?;
    Some(millstream::sequence::log_of_part(shared.history.folder(), &run.run, step, part))
}

/// Where a sequence keeps what the process of its step printed that is `run`.
fn log_of_step(shared: &Shared, run: &RunRecord) -> Option<PathBuf> {
    let of = run.of_step.as_ref()?;
    for sequence in shared.history.chain(&of.sequence).ok()?.iter().rev() {
        for step in steps_of(&shared.history, sequence) {
            let parts = step["parts"].as_array()?;
            let Some(part) = parts.iter().position(|part| part["run"] == run.run.as_str()) else { continue };
            return log_of_part_of(shared, sequence, step["name"].as_str()?, part).filter(|path| path.is_file());
        }
    }
    None
}

/// The rejects of a run, by reason.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
struct Rejects {
    run: String,
    /// How many wait to be loaded.
    waiting: u64,
    /// How many were loaded later.
    replayed: u64,
    reasons: Vec<Reason>,
    /// Whether any of them can be loaded again.
    can_be_replayed: bool,
}

/// Rejects of one reason.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
struct Reason {
    /// The entry of the job that refused them.
    step: String,
    /// Why, in one word.
    kind: String,
    /// The column at fault, if it is known.
    column: Option<String>,
    count: u64,
    examples: Vec<Example>,
}

/// A reject in words.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
struct Example {
    /// Where it is, and what is wrong with it.
    what: String,
    /// The beginning of its record or row.
    record: Option<String>,
}

async fn rejects(shared: Arc<Shared>, request: Request, _: Nothing) -> Result<Rejects, Problem> {
    // Names of runs are given to the program: only those of the history are.
    let name = request.id("run").to_owned();
    let run = blocking(&shared, move |shared| find(shared, &name)).await?;
    let arguments = ["rejects", run.run.as_str(), "--by-reason"].map(Into::into);
    let answer = shared.commands.ask(&arguments).await?;
    failed(&answer)?;
    serde_json::from_value(answer)
        .map_err(|cause| Problem::from(Error::new(ErrorKind::Internal, "the rejects cannot be read").cause(cause)))
}
