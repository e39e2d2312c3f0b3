//! `millstream cancel`: asks runs of this machine to stop, whatever has started them.

use std::time::Duration;

use millstream::history::{CancelFile, Outcome, RunHistory, RunRecord};
use millstream::{Error, Failure, Result};
use serde_json::{Value, json};

use crate::arguments::{CancelRuns, Global};
use crate::output::Output;
use crate::runs::{find, history};

/// The time between two looks whether a run has ended.
const LOOK: Duration = Duration::from_millis(100);

/// Asks the runs to stop.
///
/// # Errors
/// If one is not there or does not run; then none is asked.
pub fn cancel(global: &Global, output: Output, asked: &CancelRuns) -> Result<(), Failure> {
    let history = history(global)?;
    let runs = asked.runs.iter().map(|name| running(&history, name)).collect::<Result<Vec<RunRecord>>>()?;
    for run in &runs {
        CancelFile::new(history.folder(), &run.run).ask()?;
        output.chat(&format!("run {} of {} is asked to stop\n", run.run, run.job));
    }
    let mut ended = Vec::new();
    for run in runs.iter().filter(|_| !asked.no_wait) {
        let outcome = outcome(&history, run)?;
        output.chat(&format!("run {} has ended: {}\n", run.run, outcome.name()));
        ended.push(json!({"run": run.run, "outcome": outcome}));
    }
    if output.json {
        let names: Vec<&str> = runs.iter().map(|run| run.run.as_str()).collect();
        let ended = if asked.no_wait { Value::Null } else { json!(ended) };
        output.json(&json!({"asked": names, "ended": ended}))?;
    }
    Ok(())
}

/// The run of that name, which runs.
fn running(history: &RunHistory, name: &str) -> Result<RunRecord> {
    let run = find(history, None, name)?;
    if run.outcome == Outcome::Running {
        return Ok(run);
    }
    let what = format!("run {} does not run: {}", run.run, run.outcome.name());
    Err(Error::refused(what).hint("`millstream runs` lists them"))
}

/// How `run` has ended, once it has.
fn outcome(history: &RunHistory, run: &RunRecord) -> Result<Outcome> {
    loop {
        match history.find(&run.run)? {
            Some(RunRecord { outcome: Outcome::Running, .. }) => std::thread::sleep(LOOK),
            Some(run) => return Ok(run.outcome),
            // A newer run has taken its place in the history.
            None => return Ok(Outcome::Interrupted),
        }
    }
}
