//! `millstream runs`: the run history, as a list or one run compared with the one before. `watch.rs` shows the list as
//! it changes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use chrono::{DateTime, Local};
use millstream::Failure;
use millstream::history::{OfStep, Outcome, RunHistory, RunKind, RunRecord, WaitingRun, default_folder};
use millstream::report::Lag;
use millstream::{Error, Result};
use millstream_page::compare::compared;
use serde_json::{Value, json};

use crate::arguments::{Global, Runs};
use crate::human;
use crate::output::Output;
use crate::progress::pace;
use crate::shared::machine;
use crate::table::table;

/// So many of the last runs are compared with a name that none has.
pub const LOOKED_AT: u64 = 1_000;

/// How many runs are named if the requested one does not exist.
const NAMED: usize = 10;

/// Shows the list of runs, or one run.
pub fn show(global: &Global, output: Output, asked: &Runs) -> Result<(), Failure> {
    let history = history(global)?;
    match &asked.run {
        Some(run) => one(output, &history, asked, run)?,
        None if asked.watch => crate::watch::watch(output, &history, asked)?,
        None => list(output, &history, asked)?,
    }
    Ok(())
}

/// The run history of this machine.
pub fn history(global: &Global) -> Result<Arc<RunHistory>, Failure> {
    let folder = machine(global)?.state.or_else(default_folder);
    let folder = folder.ok_or_else(|| {
        Error::refused("there is no folder for the run history").hint("name one with `--state` or MILLSTREAM_STATE")
    })?;
    Ok(RunHistory::open(&folder)?)
}

/// The runs that are asked for, the last one first.
pub fn listed(history: &RunHistory, asked: &Runs) -> Result<Vec<RunRecord>> {
    let job = job_path(asked.job.as_deref());
    match asked.unfinished {
        true => history.unfinished(job.as_deref(), asked.most),
        false => history.list(job.as_deref(), asked.most),
    }
}

fn list(output: Output, history: &RunHistory, asked: &Runs) -> Result<()> {
    let runs = listed(history, asked)?;
    if output.json {
        let waiting = WaitingRun::all(history.folder());
        return output.json(&json!({"runs": runs.iter().map(in_list).collect::<Vec<Value>>(), "waiting": waiting}));
    }
    output.result(&list_text(history, &runs, asked.unfinished)?)
}

/// The runs that wait for their hours, a line each.
fn waiting(history: &RunHistory, paths: &mut BTreeMap<String, String>) -> Result<String> {
    let mut text = String::new();
    for run in WaitingRun::all(history.folder()) {
        let step = step(history, run.of_step.as_ref(), paths)?;
        let step = if step.is_empty() { step } else { format!(", {step}") };
        let what = if run.has_begun { "continues" } else { "begins" };
        let WaitingRun { job, hours, until, .. } = run;
        let _ = writeln!(text, "{job}{step} waits for its hours, {hours}: it {what} at {until}");
    }
    Ok(text)
}

/// A run as JSON lists it.
pub fn in_list(run: &RunRecord) -> Value {
    json!(RunRecord { report: None, ..to_show(run) })
}

/// The list as a table.
pub fn list_text(history: &RunHistory, runs: &[RunRecord], unfinished: bool) -> Result<String> {
    let mut paths = BTreeMap::new();
    let waiting = waiting(history, &mut paths)?;
    if runs.is_empty() {
        let nothing = if unfinished { "nothing is unfinished\n" } else { "no runs yet\n" };
        return Ok(if waiting.is_empty() { nothing.to_owned() } else { waiting });
    }
    let mut header = vec!["run", "began", "took", "ended", "read", "written", "rejected", "job"];
    let mut right = vec![false, false, true, false, true, true, true, false];
    let mut rows: Vec<Vec<String>> = runs.iter().map(row).collect();
    let before_job = header.len() - 1;
    let mut insert = |name: &'static str, cells: Vec<String>| {
        header.insert(before_job, name);
        right.insert(before_job, false);
        rows.iter_mut().zip(cells).for_each(|(row, cell)| row.insert(before_job, cell));
    };
    if runs.iter().any(|run| run.of_step.is_some()) {
        let steps = runs.iter().map(|run| step(history, run.of_step.as_ref(), &mut paths));
        insert("step", steps.collect::<Result<_>>()?);
    }
    if runs.iter().any(|run| run.outcome == Outcome::Running) {
        // Only what runs has anything to say here.
        insert("now", runs.iter().map(|run| now(run).unwrap_or_default()).collect());
    }
    let header: Vec<String> = header.into_iter().map(str::to_owned).collect();
    let table = table(&header, &rows, &right);
    Ok(if waiting.is_empty() { table } else { format!("{table}\n{waiting}") })
}

/// The step of a sequence that a run is: `load of nightly.yaml`. `paths` keeps the files of sequences by their runs.
fn step(history: &RunHistory, of_step: Option<&OfStep>, paths: &mut BTreeMap<String, String>) -> Result<String> {
    let Some(OfStep { sequence, step }) = of_step else { return Ok(String::new()) };
    let path = match paths.get(sequence) {
        Some(path) => path.clone(),
        None => history.find(sequence)?.map_or_else(|| sequence.clone(), |sequence| sequence.job),
    };
    let file = Path::new(&path).file_name().map_or(path.clone(), |name| name.to_string_lossy().into_owned());
    paths.insert(sequence.clone(), path);
    Ok(format!("{step} of {file}"))
}

/// What a run that is running does now: its rate, and how far it is behind.
fn now(run: &RunRecord) -> Option<String> {
    // What a sequence does, its steps say.
    let is_running = run.outcome == Outcome::Running && run.kind == RunKind::Job;
    let status = run.status.as_ref().filter(|_| is_running)?;
    Some(match &status.queue {
        Some(queue) => {
            let oldest = queue.oldest_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            pace(status.rate, &Lag { messages: queue.lag, oldest })
        }
        None => format!("{} rows/s", human::count(status.rate.round() as u64)),
    })
}

/// The path of a job in the form of the run history.
fn job_path(path: Option<&str>) -> Option<String> {
    let path = path?;
    Some(fs_err::canonicalize(path).map_or_else(|_| path.to_owned(), |path| path.display().to_string()))
}

/// A run without what is not to be seen.
pub fn to_show(run: &RunRecord) -> RunRecord {
    run.clone().shown()
}

fn row(run: &RunRecord) -> Vec<String> {
    let job = match run.variables.is_empty() {
        true => run.job.clone(),
        false => format!("{} {}", run.job, run.shown_variables().replace('\n', " ")),
    };
    vec![
        run.run.clone(),
        moment(run.began),
        run.took().map_or(String::new(), human::time),
        run.outcome.name().to_owned(),
        human::count(run.rows_read),
        human::count(run.rows_written),
        human::count(run.rows_rejected),
        job,
    ]
}

/// A time in the local time zone.
pub fn moment(milliseconds: u64) -> String {
    let time: DateTime<Local> = (UNIX_EPOCH + Duration::from_millis(milliseconds)).into();
    time.format("%Y-%m-%d %H:%M:%S").to_string()
}

fn one(output: Output, history: &RunHistory, asked: &Runs, name: &str) -> Result<()> {
    let run = find(history, asked.job.as_deref(), name)?;
    let before = history.done_before(&run)?;
    if output.json {
        return output.json(&json!({"run": to_show(&run), "before": before.as_ref().map(to_show)}));
    }
    output.result(&described(history, &run, before.as_ref())?)
}

/// The run of that name, of the job if one is given. `last` is the last one that is not a step of a sequence: the steps
/// of a sequence begin after it.
///
/// # Errors
/// If there is none.
pub fn find(history: &RunHistory, job: Option<&str>, name: &str) -> Result<RunRecord> {
    let job = job_path(job);
    let named = history.find(name)?.filter(|run| job.as_ref().is_none_or(|job| run.job == *job));
    if let Some(run) = named {
        return Ok(run);
    }
    let last = if name == "last" { history.newest(job.as_deref())? } else { None };
    match last {
        Some(run) => Ok(run),
        None => Err(unknown(name, &history.list(job.as_deref(), LOOKED_AT)?)),
    }
}

/// The error if none of `runs`, the newest first, has that name.
pub fn unknown(name: &str, runs: &[RunRecord]) -> Error {
    let names: Vec<&str> = runs.iter().take(NAMED).map(|run| run.run.as_str()).collect();
    Error::job(format!("there is no run `{name}`")).hint(millstream::text::did_you_mean(name, "runs", &names))
}

/// A run, compared with the last finished run before it, if any.
pub fn described(history: &RunHistory, run: &RunRecord, before: Option<&RunRecord>) -> Result<String> {
    let mut paths = BTreeMap::new();
    let step = step(history, run.of_step.as_ref(), &mut paths)?;
    let sequence = run.of_step.as_ref().and_then(|of| paths.get(&of.sequence));
    Ok(told(run, before, sequence.map(|path| (step.as_str(), path.as_str()))))
}

/// `of` is the step that the run is, in words, and the file of its sequence.
fn told(run: &RunRecord, before: Option<&RunRecord>, of: Option<(&str, &str)>) -> String {
    let mut text = format!("run {} of {}: {}\n", run.run, run.job, run.outcome.name());
    if run.logical != run.run {
        let _ = writeln!(text, "resumed run {}", run.logical);
    }
    if let (Some(OfStep { sequence, .. }), Some((step, _))) = (&run.of_step, of) {
        let _ = writeln!(text, "step {step}, run {sequence}");
    }
    if let Some(message) = &run.message {
        let _ = writeln!(text, "error: {message}");
    }
    if let Some(now) = now(run) {
        let _ = writeln!(text, "since {}: {now}", moment(run.began));
    }
    if run.outcome.is_unfinished() {
        let reads_queue = run.status.as_ref().is_some_and(|status| status.queue.is_some());
        let _ = match (of, reads_queue) {
            (Some((_, sequence)), _) => {
                writeln!(text, "hint: `millstream run --resume {sequence}` resumes its sequence")
            }
            (None, true) => writeln!(text, "hint: `millstream run {}` continues where its targets stand", run.job),
            (None, false) => writeln!(text, "hint: `millstream run --resume {}` resumes it", run.job),
        };
    }
    text.push('\n');
    let rows: Vec<Vec<String>> = compared(run, before)
        .into_iter()
        .map(|line| vec![line.what.to_owned(), line.now, line.before, line.change, line.expected])
        .collect();
    let earlier = before.map_or(String::new(), |before| format!("run {}", before.run));
    let header = [String::new(), "this run".to_owned(), earlier, "change".to_owned(), "expected".to_owned()];
    text.push_str(&table(&header, &rows, &[false, true, true, true, true]));
    text.push_str(&steps(run));
    text.push_str(&checks(run));
    text
}

/// What the steps of a sequence have come to, a line each.
fn steps(run: &RunRecord) -> String {
    let report = run.report.as_ref().filter(|_| run.kind == RunKind::Sequence);
    let all = report.and_then(|report| report["steps"].as_array()).into_iter().flatten();
    let of = |step: &Value, key: &str| step[key].as_str().unwrap_or_default().replace('\n', " ");
    let took = |step: &Value| Some(step["ended"].as_u64()?.saturating_sub(step["began"].as_u64()?));
    let row = |step: &Value| {
        let took = took(step).map_or_else(String::new, |took| human::time(Duration::from_millis(took)));
        vec![of(step, "name"), of(step, "outcome").replace('_', " "), took, of(step, "message")]
    };
    let rows: Vec<Vec<String>> = all.map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let header = ["step", "ended", "took", ""].map(str::to_owned);
    format!("\n{}", table(&header, &rows, &[false, false, true, false]))
}

/// What the checks of a run have come to, a line each.
fn checks(run: &RunRecord) -> String {
    let results = run.report.as_ref().and_then(|report| report.get("checks")?.as_array()).into_iter().flatten();
    let of = |result: &Value, key: &str| result[key].as_str().unwrap_or_default().to_owned();
    let row = |result: &Value| {
        let holds = if result["holds"] == true { "holds" } else { "does not hold" };
        vec![of(result, "entry"), of(result, "check"), of(result, "severity"), holds.to_owned(), of(result, "what")]
    };
    let rows: Vec<Vec<String>> = results.map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let header = ["entry", "check", "severity", "", ""].map(str::to_owned);
    format!("\n{}", table(&header, &rows, &[false; 5]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, rows: u64) -> RunRecord {
        RunRecord {
            run: name.to_owned(),
            logical: "1-1".to_owned(),
            job: "/a.yaml".to_owned(),
            variables: String::new(),
            fingerprint: None,
            process: 1,
            began: 1_000,
            ended: Some(3_000),
            outcome: Outcome::Done,
            message: None,
            rows_read: rows,
            rows_written: rows,
            rows_rejected: 0,
            units: 2,
            predicted: json!({"units": 3}),
            report: Some(json!({"bytes_read": 2_000_000})),
            program: None,
            moment: None,
            series: None,
            kind: RunKind::Job,
            of_step: None,
            status: None,
        }
    }

    #[test]
    fn parameters_that_are_secret_are_not_shown() {
        let report = json!({"parameters": {"DAY": "2026-01-01", "API_TOKEN": "abc"}, "steps": []});
        let run = to_show(&RunRecord { variables: "DB_PASSWORD=x".to_owned(), report: Some(report), ..run("1-1", 0) });
        assert_eq!(run.variables, "DB_PASSWORD=***");
        assert_eq!(run.report.expect("one")["parameters"], json!({"DAY": "2026-01-01", "API_TOKEN": "***"}));
    }

    #[test]
    fn a_sequence_shows_its_steps() {
        let steps = json!([
            {"name": "load", "outcome": "success", "began": 1_000, "ended": 2_500, "message": null},
            {"name": "mail", "outcome": "not_run", "began": null, "ended": null, "message": "`load` failed"},
        ]);
        let report = Some(json!({"steps": steps}));
        let text = told(&RunRecord { kind: RunKind::Sequence, report, ..run("1-1", 0) }, None, None);
        let expected = "step  ended      took\nload  success  1.50 s\nmail  not run          `load` failed\n";
        assert!(text.ends_with(expected), "{text}");
        assert!(!text.contains("rows read"), "{text}");
    }

    #[test]
    fn a_run_stands_beside_the_one_before() {
        let text = told(&run("2-2", 1_500), Some(&run("1-1", 1_000)), None);
        assert!(text.starts_with("run 2-2 of /a.yaml: done\nresumed run 1-1\n"), "{text}");
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).expect("a line").to_owned();
        assert_eq!(line("rows read").split_whitespace().collect::<Vec<_>>()[2..], ["1,500", "1,000", "+50", "%"]);
        assert!(line("files").contains("same") && line("files").ends_with('3'), "{text}");
        assert!(!text.contains("--resume"));
        let of_step = Some(OfStep { sequence: "0-1".to_owned(), step: "load".to_owned() });
        let failed = RunRecord { of_step, outcome: Outcome::Failed, ..run("2-2", 1) };
        let text = told(&failed, None, Some(("load of nightly.yaml", "/nightly.yaml")));
        assert!(text.contains("step load of nightly.yaml, run 0-1\n"), "{text}");
        assert!(text.contains("`millstream run --resume /nightly.yaml` resumes its sequence"), "{text}");
        let killed = RunRecord { outcome: Outcome::Killed, ended: None, report: None, ..run("3-3", 0) };
        assert!(told(&killed, None, None).contains("`millstream run --resume /a.yaml` resumes it"));
    }
}
