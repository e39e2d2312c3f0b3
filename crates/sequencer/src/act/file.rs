//! Jobs and other sequences: processes of Millstream.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_core::Result;
use millstream_core::program::Lines;
use millstream_engine::HAS_CHANGED;
use millstream_engine::sequences::Row;
use millstream_state::{JobKey, OfStep, Outcome, RunHistory, RunRecord, WaitingRun};
use serde_json::{Value, json};

use super::process::{self, Ended, MOST_REPORT};
use crate::surroundings::{Done, GRACE, Surroundings, too_long};

/// The results of a job that stand in its report under the same names.
const OF_REPORT: [&str; 4] = ["rows_read", "rows_written", "rows_rejected", "run"];

/// How often it looks whether a process has gone.
const PAUSE: Duration = Duration::from_millis(200);

/// The longest text of a record that stands in a message, in bytes.
const MOST_SHOWN: usize = 200;

/// A job or a sequence that is run.
pub(crate) struct FilePart {
    pub(crate) history: Arc<RunHistory>,
    pub(crate) of: OfStep,
    /// The program, and the arguments that all processes get.
    pub(crate) program: Vec<OsString>,
    /// The path as it stands in the sequence.
    pub(crate) path: String,
    /// The same from the root.
    pub(crate) from_root: PathBuf,
    /// Values of its variables.
    pub(crate) set: Vec<(String, String)>,
    /// The file with what is handed over.
    pub(crate) handover: PathBuf,
    pub(crate) memory: u64,
    /// Whether it is another sequence.
    pub(crate) is_sequence: bool,
    /// Whether it is to begin anew, whatever was published.
    pub(crate) restarts: bool,
    /// Whether it is kept running.
    pub(crate) keeps_running: bool,
}

/// What is to be done after the runs of a part so far.
enum ToDo {
    /// Nothing: this run has done it.
    Nothing(Box<RunRecord>),
    Begin,
    Resume,
    /// It begins, whatever was loaded.
    Restart,
    /// Neither is safe.
    Refuse(String),
}

impl FilePart {
    pub(crate) async fn run(self, surroundings: &Surroundings, limit: Option<Duration>, lines: Lines) -> Done {
        let to_do = match self.to_do().await {
            Ok(ToDo::Nothing(run)) => return Done::with(results_of(&run)),
            Ok(ToDo::Refuse(why)) => return Done::failed(why),
            Ok(to_do) => to_do,
            Err(error) => return error.into(),
        };
        let mut is_changed = false;
        let mut ended = self.attempt(surroundings, &to_do, limit, &lines).await;
        if let Ok((first, said)) = &ended
            && matches!(to_do, ToDo::Resume)
            && has_changed(said)
            && !first.stopped
        {
            // Nothing was published of a job that has changed, or the engine refuses this, too.
            is_changed = true;
            ended = self.attempt(surroundings, &ToDo::Begin, limit, &lines).await;
        }
        let (ended, said) = match ended {
            Ok(ended) => ended,
            Err(error) => return error.into(),
        };
        let mut results = results_of_report(&said);
        if ended.ending.is_success() {
            if let Some(rows) = self.rows_of_all_attempts(&results) {
                results.insert("rows_written".to_owned(), json!(rows));
            }
            return Done { stopped: ended.stopped && !self.keeps_running, failed: None, results };
        }
        if !results.contains_key("run")
            && let Ok(runs) = self.history.of_step(&self.of)
            && let Some(run) = runs.first()
        {
            results.insert("run".to_owned(), json!(run.run));
        }
        let why = match ended.late {
            true => self.too_long(limit),
            false => first_error(&said).or_else(|| ended.last.last().cloned()).unwrap_or(ended.ending.to_string()),
        };
        let why = if is_changed && said["errors"][0]["kind"] == "refused" { self.with_hint(why) } else { why };
        Done { stopped: ended.stopped, failed: Some(why), results }
    }

    /// What is said of a process that took longer than it may.
    fn too_long(&self, limit: Option<Duration>) -> String {
        let waiting = WaitingRun::all(self.history.folder());
        match waiting.into_iter().find(|run| run.of_step.as_ref() == Some(&self.of)) {
            Some(WaitingRun { hours, .. }) => format!("{}; it waited for its hours, {hours}", too_long(limit)),
            None => too_long(limit),
        }
    }

    /// How many rows were written, if runs before this one have made a part of them visible.
    fn rows_of_all_attempts(&self, results: &Row) -> Option<u64> {
        let run = self.history.find(results.get("run")?.as_str()?).ok()??;
        let is_first = run.logical == run.run;
        let earlier = (!is_first).then(|| self.history.rows_of(&run.logical, Some(&run.run)).ok())??;
        Some(earlier + results.get("rows_written")?.as_u64()?)
    }

    /// Starts its process once, and returns what that has said.
    async fn attempt(
        &self,
        surroundings: &Surroundings,
        to_do: &ToDo,
        limit: Option<Duration>,
        lines: &Lines,
    ) -> Result<(Ended, Value)> {
        let mut program = process::program(surroundings, self.command(to_do));
        // Only one process can serve metrics there.
        program.withheld.push("MILLSTREAM_METRICS".to_owned());
        let ended = process::run(surroundings, &program, limit, Arc::clone(lines), MOST_REPORT).await?;
        let said = serde_json::from_slice(&ended.output).unwrap_or_default();
        Ok((ended, said))
    }

    async fn to_do(&self) -> Result<ToDo> {
        if self.keeps_running {
            return Ok(ToDo::Begin);
        }
        let begun = Instant::now();
        // A process that was killed with its sequence may take a while to go.
        let runs = loop {
            let runs = self.history.of_step(&self.of)?;
            if runs.iter().all(|run| run.outcome != Outcome::Running) || begun.elapsed() > GRACE {
                break runs;
            }
            tokio::time::sleep(PAUSE).await;
        };
        if let Some(done) = runs.iter().find(|run| run.is_complete() || run.outcome == Outcome::Skipped) {
            return Ok(ToDo::Nothing(Box::new(done.clone())));
        }
        // One that did not begin to load has left nothing.
        let Some(last) = runs.iter().find(|run| run.fingerprint.is_some()) else {
            return Ok(if self.restarts { ToDo::Restart } else { ToDo::Begin });
        };
        let key = JobKey::new(&self.from_root.to_string_lossy(), &self.set);
        if (&last.job, &last.variables) != (&key.path, &key.variables) {
            return Ok(match last.rows_written > 0 || self.is_sequence {
                true => {
                    ToDo::Refuse(self.with_hint(format!("the values of `{}` have changed since it was run", self.path)))
                }
                false => ToDo::Begin,
            });
        }
        let newest = self.history.last(&key)?;
        Ok(match newest.filter(|newest| newest.run != last.run) {
            Some(other) => ToDo::Refuse(self.with_hint(format!(
                "`{}` was run elsewhere since (run {}), so that its run {} cannot be resumed",
                self.path, other.run, last.run
            ))),
            None => ToDo::Resume,
        })
    }

    fn command(&self, to_do: &ToDo) -> Vec<OsString> {
        let mut words = self.program.clone();
        words.push("run".into());
        // The file may be gone by now: only its path from the root is the same then.
        words.push(self.from_root.clone().into());
        words.extend(["--json", "--as-step"].map(OsString::from));
        words.push(self.handover.clone().into());
        words.extend(["--memory".to_owned(), self.memory.to_string()].map(OsString::from));
        let more = match to_do {
            ToDo::Resume => Some("--resume"),
            // A sequence begins its steps anew by itself.
            ToDo::Restart if !self.is_sequence => Some("--restart"),
            _ => None,
        };
        words.extend(more.map(OsString::from));
        words
    }

    /// `why`, and the way out.
    fn with_hint(&self, why: String) -> String {
        let step = self.of.step.split([' ', '[']).next().unwrap_or_default();
        let left = "what it has loaded stays there";
        format!("{why}; `--resume --restart={step}` begins it anew, and {left}")
    }
}

/// Whether Millstream has refused to resume a job that has changed.
fn has_changed(said: &Value) -> bool {
    said["errors"][0]["what"] == HAS_CHANGED
}

fn results_of_report(report: &Value) -> Row {
    let result = |name: &str| Some((name.to_owned(), report.get(name).filter(|value| !value.is_null())?.clone()));
    OF_REPORT.into_iter().filter_map(result).collect()
}

fn results_of(run: &RunRecord) -> Row {
    let own = json!({
        "rows_read": run.rows_read, "rows_written": run.rows_written, "rows_rejected": run.rows_rejected,
        "run": run.run,
    });
    let mut results = own.as_object().cloned().unwrap_or_default();
    // What it was when it ended, of all attempts.
    results.extend(run.report.as_ref().map(results_of_report).unwrap_or_default());
    results
}

/// The first error in what Millstream has said.
fn first_error(said: &Value) -> Option<String> {
    let lint = said["lints"].as_array().into_iter().flatten().find(|lint| lint["severity"] == "error");
    if let Some(lint) = lint {
        let place = format!("{}:{}:{}", lint["path"].as_str()?, lint["line"], lint["column"]);
        return Some(format!("{place}: {}", lint["what"].as_str()?));
    }
    let error = said["errors"].as_array()?.first()?;
    let mut text = error["what"].as_str()?.to_owned();
    if let Some(place) = error["uri"].as_str() {
        text = format!("{place}: {text}");
    }
    if let Some(offending) = error["text"].as_str().filter(|offending| offending.len() <= MOST_SHOWN) {
        text.push_str(&format!(" `{offending}`"));
    }
    if let Some(line) = error["line"].as_u64() {
        text.push_str(&format!(" (line {line})"));
    }
    if let Some(cause) = error["cause"].as_str() {
        text.push_str(&format!(": {cause}"));
    }
    Some(text)
}
