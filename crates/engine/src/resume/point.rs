//! Where a run stands among the runs of its job.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use millstream_core::Result;
use millstream_job::{Job, SinkStep};
use millstream_state::{
    JobKey, LiveRun, LogicalRun, OnlyRun, RunHistory, RunKind, RunRecord, began, default_folder, new_name,
};
use serde_json::{Value, json};

use super::decide::{self, Asked, SinceTheEnd, Start};
use super::names::LoadNames;
use crate::chunks::references::has_changed;
use crate::fingerprint::{Compared, Fingerprints, changed_files, code_files};
use crate::machine::Machine;
use crate::options::{Cancel, RunOptions};
use crate::prepare::Prepared;
use crate::rejects::Rejects;
use crate::rejects::replay::Replay;

/// Where a run stands among the runs of its job: which one it resumes, if any.
pub struct ResumePoint {
    /// The name of the run.
    pub run: String,
    start: Start,
    /// The run history, if there is one.
    pub(super) history: Option<Arc<RunHistory>>,
    pub(super) job: JobKey,
    /// The job's path, as it was given.
    path: String,
    /// When the logical run begins, in milliseconds since 1970.
    pub moment: i64,
    /// What it was asked for.
    pub options: RunOptions,
    /// The runs of the same command that only brought sinks to the files that others have, before it.
    pub catch_up_runs: Vec<String>,
    /// The rejects that it loads again.
    pub(super) replay: Option<Arc<Replay>>,
    only: Mutex<Option<OnlyRun>>,
    /// Whether there may be something to resume.
    has_begun: AtomicBool,
}

/// What a run has to do whose last run is done.
pub enum ToDo {
    /// Nothing: all rows are there.
    Nothing,
    /// The job from its beginning.
    Everything,
    /// What this run has left: the last run was of another job.
    Rest(Box<RunRecord>),
}

/// So many runs are looked through for the last one that had rows to count: others may have found nothing to do.
const MOST_REPORTS: u64 = 100;

/// Where the hashes of the files of code stand in what a run predicts.
const CODE: &str = "code";

/// Where the hashes of what lookups look up in stand there.
const REFERENCES: &str = "references";

/// When the logical run `first` began. Its name says that, too.
fn moment_of(history: Option<&RunHistory>, first: &str) -> Result<Option<i64>> {
    let known = history.map(|history| history.moment_of(first)).transpose()?.flatten();
    Ok(known.or_else(|| began(first)))
}

fn adds_rows(job: &Job) -> bool {
    job.sinks.iter().any(|sink| sink.sink.adds_rows())
}

impl ResumePoint {
    /// Finds where a run of `job` stands.
    pub fn find(job: &Job, machine: &Machine, options: &RunOptions, replay: Option<&Arc<Replay>>) -> Result<Self> {
        let history = match &machine.state {
            Some(folder) => Some(RunHistory::open(folder)?),
            // If none was asked for, a run without a history is better than no run.
            None => default_folder().map(|folder| RunHistory::open_if_possible(&folder)).transpose()?.flatten(),
        };
        let of_job = || job.set.clone().into_iter().collect();
        let variables = options.variables.clone().unwrap_or_else(of_job);
        let key = JobKey::new(job.path(), &variables);
        let last = match &history {
            Some(history) if options.resume => history.last(&key)?,
            _ => None,
        };
        // What a queue has given is known by the positions in the targets.
        let incremental = job.sources.iter().any(|source| source.incremental || source.queue().is_some());
        let is_another_day = last.as_ref().is_some_and(|last| job.is_of_another_day(last.moment()));
        let run = new_name();
        let start = decide::start(last, incremental || is_another_day)?;
        let before = match (&start, replay) {
            (_, Some(replay)) => moment_of(history.as_deref(), &replay.first)?,
            (Start::Resumes(last), None) => Some(last.moment()),
            // A job that only replaces what was there begins a logical run.
            (Start::AfterTheEnd(last), None) if adds_rows(job) => Some(last.moment()),
            (Start::AfterTheEnd(_) | Start::Fresh, None) => options.now.or_else(|| began(&run)),
        };
        Ok(ResumePoint {
            moment: before.unwrap_or_else(|| job.around.moment.milliseconds()),
            run,
            start,
            history,
            job: key,
            path: job.path().to_owned(),
            options: options.clone(),
            catch_up_runs: Vec::new(),
            replay: replay.map(Arc::clone),
            only: Mutex::default(),
            has_begun: AtomicBool::new(false),
        })
    }

    /// Where the next attempt of the same logical run stands, after this one has failed: it resumes this one, or begins
    /// as this one has, if that has left nothing to resume.
    pub fn next(self) -> Result<Self> {
        let last = self.history.as_ref().map(|history| history.find(&self.run)).transpose()?.flatten();
        let left = last.filter(|last| last.fingerprint.is_some());
        let resumes = left.is_some() || self.has_begun.load(Ordering::Relaxed);
        Ok(ResumePoint {
            run: new_name(),
            start: left.map_or(self.start, |last| Start::Resumes(Box::new(last))),
            options: match resumes {
                true => RunOptions { resume: true, restart: false, ..self.options },
                false => self.options,
            },
            only: Mutex::default(),
            has_begun: AtomicBool::new(false),
            ..self
        })
    }

    /// The same, cancelled by `cancel`.
    pub fn cancelled_by(self, cancel: &Cancel) -> Self {
        ResumePoint { options: RunOptions { cancel: cancel.clone(), ..self.options }, ..self }
    }

    /// Whether a logical run of `job` begins with it.
    pub fn begins(&self, job: &Job) -> bool {
        match self.start {
            Start::Fresh => self.replay.is_none(),
            Start::AfterTheEnd(_) => !adds_rows(job),
            Start::Resumes(_) => false,
        }
    }

    /// The run that this one resumes.
    fn resumed(&self) -> Option<&RunRecord> {
        match &self.start {
            Start::Resumes(last) => Some(last),
            Start::Fresh | Start::AfterTheEnd(_) => None,
        }
    }

    /// The first run of its resume chain, if it resumes one.
    pub fn resumes(&self) -> Option<&str> {
        self.resumed().map(|last| last.logical.as_str())
    }

    /// The first run of its resume chain: itself, if it resumes none.
    pub fn first(&self) -> &str {
        self.resumes().unwrap_or(&self.run)
    }

    /// Whether the last run is done, and there is nothing to resume.
    pub fn is_after_the_end(&self) -> bool {
        matches!(self.start, Start::AfterTheEnd(_))
    }

    /// The command that resumes this run or the last one, as messages show it.
    pub(super) fn resume_command(&self) -> String {
        let set = if self.job.variables.is_empty() { "" } else { ", with the same `--set`," };
        format!("`millstream run --resume {}`{set}", self.path)
    }

    /// What it was asked for, and may do.
    pub(super) fn asked(&self) -> Asked {
        Asked {
            resume: self.options.resume,
            restart: self.options.restart,
            replay: self.replay.is_some(),
            has_run: self.resumed().is_some(),
        }
    }

    /// Whether it loads rejects again.
    pub fn is_replay(&self) -> bool {
        self.replay.is_some()
    }

    /// The state folder, if there is a run history.
    pub fn state_folder(&self) -> Option<&Path> {
        self.history.as_ref().map(|history| history.folder())
    }

    /// The first runs of all resume chains of the job.
    pub fn all_chains(&self) -> Result<BTreeSet<String>> {
        let runs = self.history.as_ref().map(|history| history.list(Some(&self.job.path), u64::MAX)).transpose()?;
        Ok(runs.into_iter().flatten().map(|run| run.logical).collect())
    }

    /// Whether it may take over what other runs have.
    pub fn takes_over(&self) -> bool {
        self.asked().takes_over()
    }

    /// Whether units that have changed are loaded as they are now.
    pub fn accepts_changed(&self) -> bool {
        self.options.accept_changed
    }

    /// The names of the loads of `sink`.
    pub(super) fn names(&self, sink: &SinkStep) -> LoadNames {
        let table = sink.settings.get("table").and_then(|table| table.as_str()).unwrap_or_default();
        LoadNames::new(&self.job.text(), &sink.name.value, table, self.first(), self.replay.as_deref())
    }

    /// What there is to do after the last run, which is done. A job that only replaces what was there is done again:
    /// what has become of it is unknown, and no row is duplicated. A job that has changed, or has other files on this
    /// machine (elsewhere that is not asked for), is refused: its rows are not added beside the others.
    pub async fn after_the_end(&self, job: &Job, prepared: &Prepared<'_>) -> Result<ToDo> {
        let Start::AfterTheEnd(done) = &self.start else { return Ok(ToDo::Everything) };
        if !adds_rows(job) {
            return Ok(ToDo::Everything);
        }
        let since = since_the_end(done, job, prepared).await?;
        // What is read once may have been read in part by now.
        if since.compared == Compared::Changed
            && prepared.readers.iter().all(|reader| reader.reads_once().is_none())
            && let Some(earlier) = self.earlier(&Fingerprints::of(job, prepared))?
        {
            return Ok(ToDo::Rest(Box::new(earlier)));
        }
        decide::after_the_end(&since, job.path())?;
        Ok(ToDo::Nothing)
    }

    /// The run to resume of the job with these fingerprints, if its last run was of another job.
    fn earlier(&self, fingerprints: &Fingerprints) -> Result<Option<RunRecord>> {
        let runs = self.history.as_ref().map(|history| history.loading_runs(&self.job, u64::MAX)).transpose()?;
        Ok(decide::earlier(runs.unwrap_or_default(), |before| fingerprints.compare(before)))
    }

    /// Lets it resume `earlier`.
    pub fn resume_earlier(&mut self, earlier: Box<RunRecord>) {
        self.moment = earlier.moment();
        self.start = Start::Resumes(earlier);
    }

    /// Lets `rejects` be kept beside the run history, and removed there if the job says after how long.
    pub fn keep(&self, rejects: &Rejects, job: &Job) {
        if let Some(history) = &self.history {
            let first = self.replay.as_ref().map_or_else(|| self.first(), |replay| &replay.first);
            rejects.keep_in(history.folder(), first, &self.run, job.around.keep_rejects);
        }
    }

    /// Enters the run into the run history.
    pub fn enter(&self) -> Result<Option<LiveRun>> {
        if self.replay.is_some() {
            // No run can resume it: what it does is noted beside the rejects.
            return Ok(None);
        }
        // A run that resumes another one belongs to the series of that.
        let series = match self.resumed() {
            Some(last) => last.series.as_deref(),
            None => self.options.series.as_deref(),
        };
        let of_step = self.options.of_step.as_ref();
        let logical = LogicalRun { first: self.first(), moment: self.moment, series, kind: RunKind::Job, of_step };
        self.history.as_ref().map(|history| history.begin(&self.run, logical, &self.job)).transpose()
    }

    /// Refuses to resume a run whose job gave other rows.
    pub fn accept(&self, job: &Job, prepared: &Prepared<'_>) -> Result<()> {
        let Some(last) = self.resumed() else { return Ok(()) };
        let Some(before) = &last.fingerprint else { return Ok(()) };
        let changed = changed_files(&last.predicted[CODE], &code_files(job, prepared));
        decide::same_job(Fingerprints::of(job, prepared).compare(before), &changed)
    }

    /// Refuses to resume a run that has made rows visible which were looked up in something else. `references` are the
    /// hashes of what is looked up in, by the steps that do it.
    pub fn same_references(&self, references: &BTreeMap<String, String>) -> Result<()> {
        let Some(before) = self.resumed().map(|last| &last.predicted[REFERENCES]) else { return Ok(()) };
        let changed = |(step, hash): &(&String, &String)| before[*step].as_str().is_some_and(|before| before != *hash);
        match references.iter().find(changed) {
            Some((step, _)) => Err(has_changed(&format!("what `{step}` looks up in"))),
            None => Ok(()),
        }
    }

    /// Stores that from here on there may be something to resume. `references` are the hashes of what is looked up in,
    /// by the steps that do it.
    pub fn loading(
        &self,
        job: &Job,
        prepared: &Prepared<'_>,
        live: Option<&LiveRun>,
        references: &BTreeMap<String, String>,
    ) -> Result<()> {
        self.has_begun.store(true, Ordering::Relaxed);
        let Some(live) = live else { return Ok(()) };
        let mut stored = predicted(prepared);
        let code = code_files(job, prepared);
        if code.as_object().is_some_and(|code| !code.is_empty()) {
            stored[CODE] = code;
        }
        if !references.is_empty() {
            stored[REFERENCES] = json!(references);
        }
        live.loading(Fingerprints::of(job, prepared).current(), &stored)
    }

    /// The reports of the last runs of the job that were done, the last one first; not of those that only brought sinks
    /// to the files that others had, whose rows are not those of a whole run.
    pub fn earlier_reports(&self) -> Result<Vec<Value>> {
        let reports = self.history.as_ref().map(|history| history.reports_of(&self.job, MOST_REPORTS)).transpose()?;
        let mut reports = reports.unwrap_or_default();
        reports.retain(|report| report["caught_up"] != true);
        Ok(reports)
    }

    /// Whether the run history says that the run `run` is done.
    pub(super) fn is_done(&self, run: &str) -> Result<bool> {
        self.history.as_ref().map_or(Ok(false), |history| history.is_done(run))
    }

    /// Whether the run `run` was of this machine, and is dead: what the server has of it is about to end.
    pub(super) fn has_died(&self, run: &str) -> bool {
        self.history.as_ref().is_some_and(|history| history.has_died(run))
    }

    /// Makes sure that no other run of the job loads. Where no run history can be kept, the target's ledger alone has
    /// to do.
    pub fn be_the_only_run(&self) -> Result<()> {
        let mut only = self.only.lock().unwrap_or_else(PoisonError::into_inner);
        if let (None, Some(history)) = (&*only, &self.history) {
            *only = Some(history.only_run(&self.job)?);
        }
        Ok(())
    }
}

fn predicted(prepared: &Prepared<'_>) -> Value {
    serde_json::to_value(prepared.predicted()).unwrap_or_default()
}

/// What has happened since the run `done`.
async fn since_the_end(done: &RunRecord, job: &Job, prepared: &Prepared<'_>) -> Result<SinceTheEnd> {
    let before = done.fingerprint.as_ref();
    let compared = before.map_or(Compared::Same, |before| Fingerprints::of(job, prepared).compare(before));
    if compared == Compared::Newer {
        // Whatever the targets have, it is refused.
        return Ok(SinceTheEnd { compared, lost: None, files_changed: false, code_changed: Vec::new() });
    }
    let files = |predicted: &Value| [predicted["units"].clone(), predicted["stored_bytes"].clone()];
    let files_changed = files(&done.predicted) != files(&predicted(prepared));
    let code_changed = changed_files(&done.predicted[CODE], &code_files(job, prepared));
    Ok(SinceTheEnd { compared, lost: first_lost(job, prepared).await?, files_changed, code_changed })
}

/// The first sink whose target has lost what was added to it, and what the target lacks.
async fn first_lost(job: &Job, prepared: &Prepared<'_>) -> Result<Option<(String, String)>> {
    for sink in job.sinks.iter().filter(|sink| sink.sink.adds_rows()) {
        let is_gone = sink.sink.is_gone(&prepared.network(&sink.name.value)).await;
        if is_gone.map_err(|error| error.in_step(&sink.name.value))? {
            let target = sink.sink.target();
            let lost = match sink.settings.get("table") {
                Some(_) => format!("its table in {target} no longer exists"),
                None => format!("the list of its files beside {target} no longer exists"),
            };
            return Ok(Some((sink.name.value.clone(), lost)));
        }
    }
    Ok(None)
}
