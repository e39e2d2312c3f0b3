//! `millstream runs`: the run history, as a list or one run compared with the one before.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use chrono::{DateTime, Local};
use millstream::Failure;
use millstream::history::{Outcome, RunHistory, RunRecord, default_folder};
use millstream::report::Lag;
use millstream::{Error, Result};
use serde_json::{Value, json};

use crate::arguments::{Global, Runs};
use crate::human;
use crate::output::Output;
use crate::progress::pace;
use crate::shared::machine;
use crate::table::table;

/// How many runs are named if the requested one does not exist.
const NAMED: usize = 10;

/// Shows the list of runs, or one run.
pub fn show(global: &Global, output: Output, asked: &Runs) -> Result<(), Failure> {
    let folder = machine(global)?.state.or_else(default_folder);
    let folder = folder.ok_or_else(|| {
        Error::refused("there is no folder for the run history").hint("name one with `--state` or MILLSTREAM_STATE")
    })?;
    let history = RunHistory::open(&folder)?;
    match &asked.run {
        Some(run) => one(output, &history, asked, run)?,
        None => list(output, &history, asked)?,
    }
    Ok(())
}

fn list(output: Output, history: &RunHistory, asked: &Runs) -> Result<()> {
    let most = if asked.unfinished { u64::MAX } else { asked.most };
    let mut runs = history.list(job_path(asked).as_deref(), most)?;
    if asked.unfinished {
        // Runs that were resumed are not unfinished.
        let all = history.list(None, u64::MAX)?;
        let gone_on = |run: &RunRecord| {
            // The clock may have been set back meanwhile: the later ones stand before it.
            let later = all.iter().take_while(|other| other.run != run.run);
            let mut same = later.filter(|other| (&other.job, &other.variables) == (&run.job, &run.variables));
            same.any(|other| other.logical == run.logical || other.outcome == Outcome::Done)
        };
        runs.retain(|run| run.outcome.is_unfinished() && !gone_on(run));
        runs.truncate(usize::try_from(asked.most).unwrap_or(usize::MAX));
    }
    if output.json {
        let runs: Vec<Value> = runs.iter().map(|run| json!(RunRecord { report: None, ..to_show(run) })).collect();
        return output.json(&json!({"runs": runs}));
    }
    if runs.is_empty() {
        return output.result(if asked.unfinished { "nothing is unfinished\n" } else { "no runs yet\n" });
    }
    let mut header = vec!["run", "began", "took", "ended", "read", "written", "rejected", "job"];
    let mut right = vec![false, false, true, false, true, true, true, false];
    let mut rows: Vec<Vec<String>> = runs.iter().map(row).collect();
    if runs.iter().any(|run| run.outcome == Outcome::Running) {
        // Only what runs has anything to say here.
        let before_job = header.len() - 1;
        header.insert(before_job, "now");
        right.insert(before_job, false);
        rows.iter_mut().zip(&runs).for_each(|(row, run)| row.insert(before_job, now(run).unwrap_or_default()));
    }
    let header: Vec<String> = header.into_iter().map(str::to_owned).collect();
    output.result(&table(&header, &rows, &right))
}

/// What a run that is running does now: its rate, and how far it is behind.
fn now(run: &RunRecord) -> Option<String> {
    let status = run.status.as_ref().filter(|_| run.outcome == Outcome::Running)?;
    Some(match &status.queue {
        Some(queue) => {
            let oldest = queue.oldest_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            pace(status.rate, &Lag { messages: queue.lag, oldest })
        }
        None => format!("{} rows/s", human::count(status.rate.round() as u64)),
    })
}

/// The path of the job in the form of the run history.
fn job_path(asked: &Runs) -> Option<String> {
    let path = asked.job.as_ref()?;
    Some(fs_err::canonicalize(path).map_or_else(|_| path.clone(), |path| path.display().to_string()))
}

/// A run without internal fields.
fn to_show(run: &RunRecord) -> RunRecord {
    RunRecord { variables: shown(&run.variables), ..run.clone() }
}

/// Variables, one a line, without the values of those whose names suggest passwords.
fn shown(variables: &str) -> String {
    let shown = variables.lines().map(|variable| match variable.split_once('=') {
        Some((name, _)) if is_secret(name) => format!("{name}=***"),
        _ => variable.to_owned(),
    });
    shown.collect::<Vec<_>>().join("\n")
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["pass", "secret", "token", "key", "credential"].iter().any(|part| name.contains(part))
}

fn row(run: &RunRecord) -> Vec<String> {
    let job = match run.variables.is_empty() {
        true => run.job.clone(),
        false => format!("{} {}", run.job, shown(&run.variables).replace('\n', " ")),
    };
    vec![
        run.run.clone(),
        moment(run.began),
        took(run).map_or(String::new(), human::time),
        run.outcome.name().to_owned(),
        human::count(run.rows_read),
        human::count(run.rows_written),
        human::count(run.rows_rejected),
        job,
    ]
}

/// A time in the local time zone.
fn moment(milliseconds: u64) -> String {
    let time: DateTime<Local> = (UNIX_EPOCH + Duration::from_millis(milliseconds)).into();
    time.format("%Y-%m-%d %H:%M:%S").to_string()
}

/// How long a run took, or, if it has not recorded its end, how long it is known to have lasted.
fn took(run: &RunRecord) -> Option<Duration> {
    let so_far = || run.status.as_ref().map(|status| status.updated);
    Some(Duration::from_millis(run.ended.or_else(so_far)?.saturating_sub(run.began)))
}

fn one(output: Output, history: &RunHistory, asked: &Runs, name: &str) -> Result<()> {
    let runs = history.list(job_path(asked).as_deref(), u64::MAX)?;
    let found = runs.iter().find(|run| name == "last" || run.run == name);
    let Some(run) = found else {
        return Err(unknown(name, &runs));
    };
    let before = history.done_before(run)?;
    if output.json {
        return output.json(&json!({"run": to_show(run), "before": before.as_ref().map(to_show)}));
    }
    output.result(&described(run, before.as_ref()))
}

/// The error if none of `runs`, the newest first, has that name.
pub fn unknown(name: &str, runs: &[RunRecord]) -> Error {
    let names: Vec<&str> = runs.iter().take(NAMED).map(|run| run.run.as_str()).collect();
    Error::job(format!("there is no run `{name}`")).hint(millstream::text::did_you_mean(name, "runs", &names))
}

/// A run, compared with the last finished run before it, if any.
fn described(run: &RunRecord, before: Option<&RunRecord>) -> String {
    let mut text = format!("run {} of {}: {}\n", run.run, run.job, run.outcome.name());
    if run.logical != run.run {
        let _ = writeln!(text, "resumed run {}", run.logical);
    }
    if let Some(message) = &run.message {
        let _ = writeln!(text, "error: {message}");
    }
    if let Some(now) = now(run) {
        let _ = writeln!(text, "since {}: {now}", moment(run.began));
    }
    if run.outcome.is_unfinished() {
        let reads_queue = run.status.as_ref().is_some_and(|status| status.queue.is_some());
        let _ = match reads_queue {
            true => writeln!(text, "hint: `millstream run {}` continues where its targets stand", run.job),
            false => writeln!(text, "hint: `millstream run --resume {}` resumes it", run.job),
        };
    }
    text.push('\n');
    let expected = |key: &str| run.predicted.get(key).and_then(Value::as_u64).filter(|expected| *expected > 0);
    let number = |of: fn(&RunRecord) -> Option<u64>, shown: fn(u64) -> String, expected: Option<u64>| {
        let cell = |value: Option<u64>| value.map(shown).unwrap_or_default();
        let earlier = before.and_then(of);
        vec![cell(of(run)), cell(earlier), change(of(run), earlier), cell(expected)]
    };
    let milliseconds = |milliseconds: u64| human::time(Duration::from_millis(milliseconds));
    let lines = [
        ("time", number(|run| Some(u64::try_from(took(run)?.as_millis()).unwrap_or(u64::MAX)), milliseconds, None)),
        ("files", number(|run| Some(run.units), human::count, expected("units"))),
        ("bytes read", number(|run| in_report(run, "bytes_read"), human::size, expected("stored_bytes"))),
        ("rows read", number(|run| Some(run.rows_read), human::count, None)),
        ("rows written", number(|run| Some(run.rows_written), human::count, None)),
        ("rows rejected", number(|run| Some(run.rows_rejected), human::count, None)),
        ("peak memory", number(|run| in_report(run, "peak_rss_bytes"), human::size, None)),
    ];
    let rows: Vec<Vec<String>> =
        lines.into_iter().map(|(name, cells)| [vec![name.to_owned()], cells].concat()).collect();
    let earlier = before.map_or(String::new(), |before| format!("run {}", before.run));
    let header = [String::new(), "this run".to_owned(), earlier, "change".to_owned(), "expected".to_owned()];
    text.push_str(&table(&header, &rows, &[false, true, true, true, true]));
    text.push_str(&checks(run));
    text
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

fn in_report(run: &RunRecord, key: &str) -> Option<u64> {
    run.report.as_ref()?.get(key)?.as_u64()
}

/// By how much something has changed, in percent.
fn change(now: Option<u64>, before: Option<u64>) -> String {
    match (now, before) {
        (Some(now), Some(before)) if before > 0 => {
            let percent = (now as f64 / before as f64 - 1.0) * 100.0;
            if percent.abs() < 0.5 { "same".to_owned() } else { format!("{percent:+.0} %") }
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use millstream::history::RunKind;

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
    fn passwords_are_not_shown() {
        assert_eq!(shown("DAY=1\nDB_PASSWORD=a=b\nApiToken=x"), "DAY=1\nDB_PASSWORD=***\nApiToken=***");
    }

    #[test]
    fn a_run_stands_beside_the_one_before() {
        let text = described(&run("2-2", 1_500), Some(&run("1-1", 1_000)));
        assert!(text.starts_with("run 2-2 of /a.yaml: done\nresumed run 1-1\n"), "{text}");
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).expect("a line").to_owned();
        assert_eq!(line("rows read").split_whitespace().collect::<Vec<_>>()[2..], ["1,500", "1,000", "+50", "%"]);
        assert!(line("files").contains("same") && line("files").ends_with('3'), "{text}");
        assert!(!text.contains("--resume"));
        let killed = RunRecord { outcome: Outcome::Killed, ended: None, report: None, ..run("3-3", 0) };
        assert!(described(&killed, None).contains("`millstream run --resume /a.yaml` resumes it"));
    }
}
