//! Sequences on the command line: `run`, `check` and `explain` of a file with `steps:`.

mod explain;
mod show;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::executor::block_on;
use millstream::history::{JobKey, Outcome, RunHistory, default_folder};
use millstream::sequence::{Asked, Handover, ReadOptions, ReadSequence, RunOptions, dry_run, moment};
use millstream::{Cancel, Engine, Error, Failure, Lint, Result, sequence};
use serde_json::{Value, json};

use crate::arguments::{Check, Global, Run};
use crate::interrupt;
use crate::output::Output;
use crate::shared::{engine, machine, refusal, refuse_not_allowed, tell_lints};
use crate::shares;
use show::Board;

/// Whether the file at `path` is a sequence. One that cannot be read is a job, whose error says so.
pub fn is_sequence(path: &str) -> bool {
    fs_err::read_to_string(path).is_ok_and(|text| sequence::is_sequence(&text))
}

/// The history, without which nothing can be resumed.
fn history(engine: &Engine) -> Result<Arc<RunHistory>> {
    let folder = engine.machine().state.clone().or_else(default_folder);
    let folder = folder.ok_or_else(|| {
        let error = Error::refused("there is no folder for the run history, which sequences need");
        error.hint("name one with `--state` or MILLSTREAM_STATE")
    })?;
    RunHistory::open(&folder)
}

/// Runs the sequence of `run`, and returns the exit code. `handed` is what another sequence has handed over.
pub fn run(global: &Global, output: Output, run: &Run, handed: Option<&Handover>) -> Result<u8, Failure> {
    refuse_options_of_jobs(run)?;
    let (engine, _memory) = shares::engine(machine(global)?, global, output, run)?;
    let (path, history) = (&run.job.path, history(&engine)?);
    let asked = Asked {
        resume: run.resume,
        restart: run.restarted_steps().to_vec(),
        from: run.from.clone(),
        only: run.only.clone(),
        chain: match run.occurrence.filter(|_| run.resume) {
            Some(planned) => sequence::chain(&history, path, planned)?,
            None => None,
        },
    };
    let key = JobKey::new(path, &global.set);
    let of_earlier = moment(&history, &key, &asked)?;
    let read = read(
        &engine,
        global,
        path,
        true,
        of_earlier.or(handed.map(|handed| handed.moment)).or(run.occurrence),
        handed,
    )?;
    refuse_not_allowed(run.only_allowed, &read.sequence.allow, &global.set)?;
    tell_lints(output, &read.warnings);
    if of_earlier.is_none() && !run.resume && handed.is_none() {
        tell_unfinished(output, &history, &key, path)?;
    }
    if run.dry_run {
        return tell_dry_run(output, &read, &history, &key, &asked).map(|()| 0);
    }
    shares::prefer(read.sequence.priority.nice());
    let cancel = Cancel::default();
    let board = Arc::new(Board::new(output, &read.sequence, &history));
    let teller = Arc::clone(&board);
    interrupt::watch(cancel.clone(), move |text| teller.message(text))?;
    let options = RunOptions {
        asked,
        of_step: handed.map(Handover::of_step),
        pools: handed.map(|handed| handed.pools.clone()).unwrap_or_default(),
        occurrence: run.occurrence,
        program: program(global, &history)?,
        cancel,
        page: Box::new(page),
    };
    let ended = sequence::run(&engine, &read, &history, options, &|seen| board.see(seen));
    board.end();
    let report = ended?;
    if output.json {
        let mut json = report.json.clone();
        let errors: Vec<_> = report.error.iter().map(millstream::report::error_json).collect();
        json["errors"] = json!(errors);
        output.json(&json)?;
    } else {
        output.chat(&show::ending(&report));
    }
    let Some(error) = report.error else { return Ok(0) };
    output.message(&crate::message::error(output, &error));
    Ok(error.kind().exit_code())
}

/// The page of a run with its report so far.
fn page(history: &RunHistory, run: &str, report: &Value) -> Result<String> {
    let record = history.find(run)?;
    let record = record.ok_or_else(|| Error::internal("the run is not in the history").text(run))?;
    millstream_page::html(history, &record, Some(report))
}

/// Says that the last run has left something, where another one begins.
fn tell_unfinished(output: Output, history: &RunHistory, key: &JobKey, path: &str) -> Result<()> {
    if let Some(last) = history.last(key)?.filter(|last| last.outcome.is_unfinished()) {
        output.chat(&format!(
            "the last run ({}) {}; this is another one: `millstream run --resume {path}` would have continued it\n",
            last.run,
            match last.outcome {
                Outcome::Failed => "failed",
                Outcome::Interrupted => "was interrupted",
                _ => "was killed",
            }
        ));
    }
    Ok(())
}

/// Reads a sequence.
fn read(
    engine: &Engine,
    global: &Global,
    path: &str,
    running: bool,
    moment: Option<i64>,
    handed: Option<&Handover>,
) -> Result<ReadSequence, Failure> {
    let texts = handed.map(|handed| handed.texts.clone()).unwrap_or_default();
    let options = ReadOptions { set: global.set.iter().cloned().collect(), running, moment, texts };
    sequence::read(engine, path, &options)
}

/// What only jobs can do.
fn refuse_options_of_jobs(run: &Run) -> Result<()> {
    let refused = |option: &str, hint: &str| {
        Err(Error::job(format!("`{option}` is for jobs, and this is a sequence")).hint(hint))
    };
    if run.job.each.values.is_some() {
        return refused("--for", "a step runs once for each of several values with `for_each`");
    }
    if run.restart.as_ref().is_some_and(Vec::is_empty) {
        return refused("--restart", "name the step: `--restart=STEP` begins it anew; a plain run begins all anew");
    }
    if run.accept_changed {
        return refused("--accept-changed", "resume the job itself with it, then the sequence");
    }
    if run.metrics.is_some() && std::env::var_os("MILLSTREAM_METRICS").is_none() {
        return refused("--metrics", "MILLSTREAM_METRICS and this option serve the metrics of one job");
    }
    Ok(())
}

/// Millstream, and the arguments that the processes of a sequence get. They run in the folder of the sequence.
fn program(global: &Global, history: &RunHistory) -> Result<Vec<OsString>> {
    let failed = |cause: std::io::Error| Error::io("the path of this program is not known", &cause);
    let absolute = |path: &Path| std::path::absolute(path).map_err(failed);
    let mut words: Vec<OsString> = vec![std::env::current_exe().map_err(failed)?.into()];
    let mut add = |name: &str, value: OsString| words.extend([name.into(), value]);
    add("--state", absolute(history.folder())?.into());
    add("--color", "never".into());
    if let Some(machine) = &global.machine {
        add("--machine", absolute(Path::new(machine))?.into());
    }
    if let Some(node) = &global.node {
        add("--node", node.into());
    }
    if let Some(cores) = global.cores {
        add("--cores", cores.to_string().into());
    }
    for scratch in &global.scratch {
        add("--scratch", absolute(scratch)?.into());
    }
    Ok(words)
}

fn tell_dry_run(
    output: Output,
    read: &ReadSequence,
    history: &RunHistory,
    key: &JobKey,
    asked: &Asked,
) -> Result<(), Failure> {
    let steps = dry_run(&read.sequence, history, key, asked)?;
    if output.json {
        let steps: Vec<_> = steps.iter().map(|(step, does)| json!({"step": step, "does": does})).collect();
        return Ok(output.json(&json!({"steps": steps}))?);
    }
    let width = steps.iter().map(|(step, _)| step.chars().count()).max().unwrap_or_default();
    let lines: String = steps.iter().map(|(step, does)| format!("{step:width$}  {does}\n")).collect();
    Ok(output.result(&lines)?)
}

/// Checks the sequence at `path`, and the files that it names.
pub fn check(global: &Global, output: Output, check: &Check, path: &str) -> Result<(), Failure> {
    let engine = engine(global)?;
    let options = ReadOptions { set: global.set.iter().cloned().collect(), ..ReadOptions::default() };
    let outline = |lints: &[Lint]| -> Result<Value, Failure> {
        let read = sequence::read(&engine, path, &options)?;
        let (lints, allow) = (if check.outline { &read.warnings } else { lints }, &read.sequence.allow);
        let mut known = json!({"lints": lints, "errors": [], "unknown": [], "allow": allow.names()});
        if check.outline {
            known["refusal"] = refusal(check.only_allowed, allow, &global.set);
        }
        Ok(known)
    };
    if check.outline {
        return Ok(output.json(&outline(&[])?)?);
    }
    let lints = block_on(sequence::check(&engine, path, &options, check.offline))?;
    if output.json {
        return Ok(output.json(&outline(&lints)?)?);
    }
    tell_lints(output, &lints);
    output.chat(&format!("{path} can run\n"));
    Ok(())
}

/// Shows how the sequence at `path` would run.
pub fn explain(global: &Global, output: Output, path: &str) -> Result<(), Failure> {
    let engine = engine(global)?;
    let read = read(&engine, global, path, false, None, None)?;
    tell_lints(output, &read.warnings);
    let key = JobKey::new(path, &global.set);
    let durations = match history(&engine) {
        Ok(history) => {
            let runs = history.list(Some(&key.path), explain::MOST)?.into_iter();
            let reports: Vec<Value> = runs.filter_map(|run| run.report).collect();
            explain::durations(&read.sequence, &reports)
        }
        // A sequence that has never run has none.
        Err(_) => vec![None; read.sequence.steps.len()],
    };
    match output.json {
        true => output.json(&explain::as_json(&read.sequence, &durations))?,
        false => output.result(&explain::as_text(&read.sequence, &durations))?,
    }
    Ok(())
}

/// What was handed over in the file that `--as-step` names.
pub fn handed(path: Option<&PathBuf>) -> Result<Option<Handover>> {
    path.map(|path| Handover::read(path)).transpose()
}
