//! `millstream run --for NAME=VALUES`: the job for each value of a variable, one after the other, and what of that was
//! done before. Each value is a logical run of its own.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use millstream::history::{RunHistory, RunRecord, default_folder};
use millstream::report::Report;
use millstream::{Engine, Error, Failure, Job, Result, RunOptions};
use serde_json::{Value, json};

use crate::arguments::{Global, Run};
use crate::commands::report_failure;
use crate::output::Output;
use crate::shared::{Followed, machine, refuse_two_outputs, sound_job, tell_done};
use crate::shares;
use crate::telemetry::Telemetry;
use crate::values::Values;

/// What is done for a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ToDo {
    /// Nothing: it is done.
    Nothing,
    /// Its last run is resumed.
    Resume,
    /// It begins.
    Begin,
}

/// What is left of the last series of `values` with one of `keys`, and its name; `None` if there is none.
/// `keys` are the variables of the values, as the run history has them; `runs` are those of the job in any series, the
/// last first.
fn left(runs: &[RunRecord], keys: &[String], values: &Values) -> Option<(String, Vec<ToDo>)> {
    let is_ours = |run: &&RunRecord| {
        keys.contains(&run.variables) && run.series.as_ref().is_some_and(|series| has_values(series, values))
    };
    let series = runs.iter().find(is_ours)?.series.clone()?;
    let of_series = |key: &String| {
        let mut runs = runs.iter().filter(|run| run.series.as_ref() == Some(&series) && run.variables == *key);
        match (runs.clone().any(RunRecord::is_complete), runs.next()) {
            (true, _) => ToDo::Nothing,
            // One that did not begin to load has left nothing.
            (false, Some(last)) if last.fingerprint.is_some() => ToDo::Resume,
            (false, _) => ToDo::Begin,
        }
    };
    let left = keys.iter().map(of_series).collect();
    Some((series, left))
}

/// What the name of a series ends with: the values, as they were written.
fn suffix(values: &Values) -> String {
    format!(" {}={}", values.name, values.written)
}

/// Whether the series of this name is one of the same values, however they were written: `2026-1-1..2026-1-31` has the
/// days of `2026-01-01..2026-01-31`.
fn has_values(series: &str, values: &Values) -> bool {
    let Some((_, written)) = series.split_once(' ') else { return false };
    let is_same = |other: Values| other.name == values.name && other.values == values.values;
    written == suffix(values).trim_start() || written.parse().is_ok_and(is_same)
}

/// The variables of a run as the run history has them.
fn key(set: &[(String, String)]) -> String {
    let mut variables: Vec<String> = set.iter().map(|(name, value)| format!("{name}={value}")).collect();
    variables.sort();
    variables.join("\n")
}

/// A series of runs.
struct Series<'a> {
    global: &'a Global,
    output: Output,
    run: &'a Run,
    values: &'a Values,
    engine: Engine,
    name: String,
    left: Vec<ToDo>,
    telemetry: Telemetry,
}

/// Runs the job of `run` for each of `values`, until one fails, and returns the exit code.
pub fn run(global: &Global, output: Output, run: &Run, values: &Values) -> Result<u8, Failure> {
    if let Some((name, _)) = global.set.iter().find(|(name, _)| *name == values.name) {
        return Err(Error::job(format!("`--set` and `--for` both give {name}")).hint("leave one of them out").into());
    }
    let (engine, _memory) = shares::engine(machine(global)?, global, output, run)?;
    let begin = || (new_name(values), vec![ToDo::Begin; values.values.len()]);
    let (name, left) = match run.resume {
        true => left_of_last(global, &engine, run, values)?.unwrap_or_else(begin),
        false => begin(),
    };
    let telemetry = Telemetry::begin(output, run.metrics.as_deref(), &engine)?;
    let series = Series { global, output, run, values, engine, name, left, telemetry };
    let ended = series.run();
    series.telemetry.end();
    ended
}

fn left_of_last(
    global: &Global,
    engine: &Engine,
    run: &Run,
    values: &Values,
) -> Result<Option<(String, Vec<ToDo>)>, Failure> {
    let folder = engine.machine().state.clone().or_else(default_folder);
    let folder = folder.ok_or_else(|| {
        let error = Error::refused("there is no folder for the run history, which knows what is done");
        error.hint("name one with `--state` or MILLSTREAM_STATE")
    })?;
    let path = &run.job.path;
    let path = fs_err::canonicalize(path).map_or_else(|_| path.clone(), |path| path.display().to_string());
    let runs = RunHistory::open(&folder)?.in_series(&path)?;
    let keys: Vec<String> = values.values.iter().map(|value| key(&set(global, values, value))).collect();
    let left = left(&runs, &keys, values);
    if left.is_none() && runs.iter().any(|run| keys.contains(&run.variables)) {
        let what = format!(
            "no series of `--for{}` is there to be resumed, but others have some of its values",
            suffix(values)
        );
        return Err(Error::refused(what)
            .hint("resume the series with the values that it had; without `--resume`, all values run again")
            .into());
    }
    Ok(left)
}

/// The variables of the run for `value`.
fn set(global: &Global, values: &Values, value: &str) -> Vec<(String, String)> {
    global.set.iter().cloned().chain([(values.name.clone(), value.to_owned())]).collect()
}

/// A name that no other series has.
fn new_name(values: &Values) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}-{}{}", since.as_millis(), std::process::id(), suffix(values))
}

impl Series<'_> {
    fn run(&self) -> Result<u8, Failure> {
        let followed = Followed::new(self.output)?;
        let mut reports = Vec::new();
        for (index, (value, to_do)) in self.values.values.iter().zip(&self.left).enumerate() {
            let place = format!("{}={value} ({} of {})", self.values.name, index + 1, self.left.len());
            if *to_do == ToDo::Nothing {
                self.output.chat(&format!("{place}: done before\n"));
                reports.push(json!({"value": value, "outcome": "done before"}));
                continue;
            }
            self.output.chat(&format!("{place}:\n"));
            let report = match self.one(&followed, value, *to_do) {
                Ok(report) => report,
                Err(failure) => return Ok(self.fail(index, &failure, reports)),
            };
            let outcome = if report.skipped_run.is_some() { "skipped" } else { "done" };
            if !self.output.json {
                tell_done(self.output, &report, self.run.verbose)?;
            }
            reports.push(json!({"value": value, "outcome": outcome, "report": report}));
        }
        match self.output.json {
            true => self.output.json(&self.to_json(&reports))?,
            false => self.tell_end(&reports),
        }
        Ok(0)
    }

    /// The series so far.
    fn to_json(&self, runs: &[Value]) -> Value {
        json!({"series": self.name, "variable": self.values.name, "runs": runs})
    }

    /// Shows why value number `index` (from 0) has failed, after the runs `done`, and returns the exit code.
    fn fail(&self, index: usize, failure: &Failure, mut done: Vec<Value>) -> u8 {
        let code = report_failure(self.output, failure, |mut failed| {
            failed["value"] = json!(self.values.values[index]);
            failed["outcome"] = json!("failed");
            done.push(failed);
            self.to_json(&done)
        });
        self.tell_left(index);
        code
    }

    fn one(&self, followed: &Followed, value: &str, to_do: ToDo) -> Result<Report, Failure> {
        let global = Global { set: set(self.global, self.values, value), ..self.global.clone() };
        let job: Arc<Job> = sound_job(&global, &self.engine, self.output, &self.run.job.path, true)?;
        refuse_two_outputs(self.output, &job)?;
        let observed = self.telemetry.run(&job);
        let options = RunOptions {
            resume: to_do == ToDo::Resume,
            restart: self.run.restarts(),
            accept_changed: self.run.accept_changed,
            variables: Some(global.set.clone()),
            cluster: crate::cluster::options(self.engine.machine(), &self.run.distributed)?,
            cancel: followed.cancel(),
            series: Some(self.name.clone()),
            ..observed.options()
        };
        let ended = followed.follow(&observed, || self.engine.start(job, options));
        observed.end(ended.as_ref().map(Some));
        ended
    }

    /// Says how to go on after value number `index` (from 0) has failed.
    fn tell_left(&self, index: usize) {
        let Values { name, written, values } = self.values;
        let set: String = self.global.set.iter().map(|(name, value)| format!(" --set {name}={value}")).collect();
        let path = &self.run.job.path;
        self.output.chat(&format!(
            "{name}={} failed, {index} of {} values are done: `millstream run {path} --for {name}={written}{set} \
             --resume` continues with it\n",
            values[index],
            values.len(),
        ));
    }

    fn tell_end(&self, reports: &[Value]) {
        let count = |outcome: &str| reports.iter().filter(|report| report["outcome"] == outcome).count();
        let more = |outcome: &str| match count(outcome) {
            0 => String::new(),
            count => format!(", {count} {outcome}"),
        };
        let (done, skipped, before) = (count("done"), more("skipped"), more("done before"));
        let values = if done == 1 { "value" } else { "values" };
        self.output.chat(&format!("{done} {values} of {} done{skipped}{before}\n", self.values.name));
    }
}

#[cfg(test)]
mod tests {
    use millstream::history::{Outcome, RunKind};

    use super::*;

    fn run(series: &str, variables: &str, outcome: Outcome, has_begun: bool, report: Option<Value>) -> RunRecord {
        RunRecord {
            run: String::new(),
            logical: String::new(),
            job: String::new(),
            variables: variables.to_owned(),
            fingerprint: has_begun.then(String::new),
            process: 1,
            began: 1,
            ended: None,
            outcome,
            message: None,
            rows_read: 0,
            rows_written: 0,
            rows_rejected: 0,
            units: 0,
            predicted: Value::Null,
            report,
            program: None,
            moment: None,
            series: Some(series.to_owned()),
            kind: RunKind::Job,
            of_step: None,
            status: None,
        }
    }

    fn values(written: &str) -> Values {
        format!("D={written}").parse().expect("values")
    }

    #[test]
    fn what_is_left_is_that_of_the_last_series_of_these_values() {
        // The last run first.
        let caught_up = Some(json!({"caught_up": true}));
        let runs = [
            run("3 D=3", "D=3", Outcome::Done, true, None),
            run("2 D=1..5", "D=4", Outcome::Failed, false, None),
            run("2 D=1..5", "D=4", Outcome::Done, true, caught_up),
            run("2 D=1..5", "D=1", Outcome::Skipped, false, None),
            run("2 D=1..5", "D=3", Outcome::Failed, true, None),
            run("2 D=1..5", "D=2", Outcome::Done, true, None),
            run("2 D=1..5", "D=2", Outcome::Failed, true, None),
            run("1 D=1..5", "D=5", Outcome::Done, true, None),
        ];
        let keys = ["D=1", "D=2", "D=3", "D=4", "D=5"].map(str::to_owned);
        let (series, found) = left(&runs, &keys, &values("1..5")).expect("there is one");
        assert_eq!(series, "2 D=1..5");
        assert_eq!(found, [ToDo::Begin, ToDo::Nothing, ToDo::Resume, ToDo::Begin, ToDo::Begin]);
        assert_eq!(left(&runs, &["D=7".to_owned()], &values("1..5")), None);
        assert_eq!(left(&runs, &keys, &values("1..4")), None);
        assert!(left(&runs, &keys, &values("1..3, 4,5")).is_some(), "the same values");
    }
}
