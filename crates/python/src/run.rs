//! Runs of jobs: what happens meanwhile goes to Python, and Ctrl-C cancels them.

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream::report::{Progress, Report};
use millstream::{Engine, Event, Failure, Job, Lint, ParseOptions, Parsed, Run, RunOptions};
use millstream_cli::output::Output;
use millstream_cli::progress::{Display, line};
use pyo3::prelude::*;

use crate::engine::{Limits, Reads, engine};
use crate::errors::{Author, exception, of_error, warning};
use crate::given::Given;
use crate::job;
use crate::wait::wait;

/// How a run goes on from earlier ones.
#[derive(Debug, Clone, FromPyObject)]
pub struct Options {
    #[pyo3(item)]
    resume: bool,
    #[pyo3(item)]
    restart: bool,
    #[pyo3(item)]
    accept_changed: bool,
}

/// Runs a job: the file at `path`, or `job`, which is JSON, under that path. Returns the report as JSON and as text.
///
/// `notify` is called with `("warning", text, None)`, `("line", text, None)`, and, if it wants `progress`, with
/// `("progress", text, share)`, where the share is from 0 to 1 if it is known. With `terminal` a bar is drawn on the
/// terminal.
#[pyfunction]
#[pyo3(signature = (path, job, variables, options, limits, notify, progress, terminal))]
#[expect(clippy::too_many_arguments, reason = "one call of `millstream/_run.py`, by position")]
pub fn run(
    py: Python<'_>,
    path: &str,
    job: Option<&str>,
    variables: BTreeMap<String, String>,
    options: Options,
    limits: Limits,
    notify: Bound<'_, PyAny>,
    progress: bool,
    terminal: bool,
) -> PyResult<(String, String)> {
    let watcher = Watcher::new(notify, progress, terminal);
    let failed = |failure| exception(py, failure, Author::Caller);
    let engine = engine(&limits, Reads::Places).map_err(failed)?;
    let parsed = wait(py, async {
        match job {
            Some(job) => job::parsed(&engine, job, path).await,
            None => {
                let set = variables.clone();
                engine.read_job(path, &ParseOptions { set, needs_secrets: true, ..ParseOptions::default() }).await
            }
        }
    })?;
    let Parsed { job, warnings } = parsed.map_err(failed)?;
    watcher.warn(&warnings)?;
    let Options { resume, restart, accept_changed } = options;
    let variables = Some(variables.into_iter().collect());
    let options = RunOptions { resume, restart, accept_changed, variables, ..RunOptions::default() };
    written(py, &to_its_end(py, &engine, job, options, &watcher, Author::Caller)?)
}

/// Loads the rows of `data` into `sink`, the settings of a sink as JSON, which reads `rows`. The rest is as in [`run`].
#[pyfunction]
pub fn write(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    sink: &str,
    limits: Limits,
    notify: Bound<'_, PyAny>,
    progress: bool,
    terminal: bool,
) -> PyResult<(String, String)> {
    let watcher = Watcher::new(notify, progress, terminal);
    let given = Given::new(data)?;
    let failed = |failure| exception(py, failure, Author::Package);
    let engine = engine(&limits, Reads::Given).map_err(failed)?;
    let url = given.url();
    let job = format!(r#"{{"sources": {{"rows": {{"read": "{url}"}}}}, "sinks": {{"target": {sink}}}}}"#);
    let Parsed { job, .. } = wait(py, job::parsed(&engine, &job, "millstream.write"))?.map_err(failed)?;
    written(py, &to_its_end(py, &engine, job, RunOptions::default(), &watcher, Author::Package)?)
}

fn written(py: Python<'_>, report: &Report) -> PyResult<(String, String)> {
    let unwritten = |cause| of_error(py, millstream::Error::internal("the report cannot be written").cause(cause));
    let json = serde_json::to_string(report).map_err(unwritten)?;
    Ok((json, millstream_cli::report::report(Output::PLAIN, report, false)))
}

/// Runs `job`. A first interrupt cancels the run and waits until it is rolled back, a second one does not wait.
fn to_its_end(
    py: Python<'_>,
    engine: &Engine,
    job: Arc<Job>,
    options: RunOptions,
    watcher: &Watcher<'_>,
    author: Author,
) -> PyResult<Report> {
    let mut run = engine.start(job, options).map_err(|error| of_error(py, error))?;
    let mut interrupted = None;
    loop {
        let told = match wait(py, run.next_event()) {
            Ok(None) => break,
            Ok(Some(event)) => watcher.tell(event),
            Err(signal) => Err(signal),
        };
        if let Err(raised) = told {
            if interrupted.is_some() {
                return Err(raised);
            }
            run.cancel();
            interrupted = Some(raised);
        }
    }
    let ended = wait(py, finish(run))?;
    match interrupted {
        Some(raised) => Err(raised),
        None => ended.map_err(|failure| exception(py, failure, author)),
    }
}

async fn finish(run: Run) -> Result<Report, Failure> {
    run.finish().await
}

/// Passes on the events of a run.
struct Watcher<'py> {
    notify: Bound<'py, PyAny>,
    wants_progress: bool,
    /// On a terminal.
    display: Option<Display>,
}

impl<'py> Watcher<'py> {
    fn new(notify: Bound<'py, PyAny>, wants_progress: bool, terminal: bool) -> Self {
        Watcher { notify, wants_progress, display: terminal.then(|| Display::new(Output::for_people())) }
    }

    fn tell(&self, event: Event) -> PyResult<()> {
        match event {
            Event::Progress(progress) => self.progress(&progress),
            Event::Warnings(lints) => self.warn(&lints),
            Event::Line { step, line } => self.say("line", &format!("{step}: {line}")),
            _ => Ok(()),
        }
    }

    fn warn(&self, lints: &[Lint]) -> PyResult<()> {
        for lint in lints.iter().filter(|lint| !lint.is_error()) {
            self.say("warning", &warning(lint, Author::Caller))?;
        }
        Ok(())
    }

    fn progress(&self, progress: &Progress) -> PyResult<()> {
        if let Some(display) = &self.display {
            display.show(progress);
        }
        if !self.wants_progress {
            return Ok(());
        }
        let totals = &progress.totals;
        let share = (totals.bytes_expected > 0).then(|| totals.bytes_read as f64 / totals.bytes_expected as f64);
        self.notify.call1(("progress", line(progress), share.map(|share| share.min(1.0)))).map(drop)
    }

    /// Hands `text` over, and keeps it apart from the bar.
    fn say(&self, kind: &str, text: &str) -> PyResult<()> {
        let say = || self.notify.call1((kind, text, None::<f64>)).map(drop);
        let Some(display) = &self.display else { return say() };
        let mut said = Ok(());
        display.hide_while(|| said = say());
        said
    }
}

/// The bar does not stay.
impl Drop for Watcher<'_> {
    fn drop(&mut self) {
        if let Some(display) = &self.display {
            display.end();
        }
    }
}
