//! What a run resumes: its place among the runs of the job, and the ledgers of its sinks.
//!
//! A load in a target's ledger is named after the job, the sink, the table and the first run of its resume chain; that
//! of an incremental source after the first three. So a target tells by itself what was begun in it and not ended, also
//! to a machine that knows nothing of the run that began it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use millstream_core::sink::{Chunk, Delivered, KnownLoad, Ledger, LoadContext};
use millstream_core::{Error, ErrorKind, Result, Step};
use millstream_job::{Job, Lint, SinkStep, SourceStep};
use millstream_state::{JobKey, LiveRun, OnlyRun, Outcome, ProgressFile, RunHistory, RunRecord, default_folder};
use serde_json::Value;

use crate::chunks::load::{ChunkLoad, Commits, check_rules, is_complete, note_complete};
use crate::chunks::way::{Leg, legs};
use crate::context::RunContext;
use crate::fingerprint::{Compared, Fingerprints};
use crate::machine::Machine;
use crate::options::RunOptions;
use crate::plan::shared::Physical;
use crate::prepare::Prepared;
use crate::rejects::Rejects;
use crate::rejects::replay::{self, Replay};
use crate::report::{SinkResult, Tally};

/// A load of which nothing is in the target is forgotten when it is older than this, in seconds.
const OLD: u64 = 24 * 60 * 60;

/// In place of a run, in the name of a load that all runs share.
const ALL_RUNS: &str = "incremental";

/// What the name of a load whose rows become visible at once ends with.
const AT_ONCE: &str = "\nall at once";

/// Where a run stands among the runs of its job.
pub struct Place {
    /// Its name.
    pub run: String,
    /// The first run of its resume chain.
    pub resumes: Option<String>,
    /// The last run, if it was done, so that there is nothing to resume.
    done: Option<RunRecord>,
    /// The run history, if there is one.
    history: Option<Arc<RunHistory>>,
    job: JobKey,
    /// The job's path, as it was given.
    path: String,
    options: RunOptions,
    /// The rejects that it loads again.
    replay: Option<Arc<Replay>>,
    /// The run that it resumes.
    last: Option<RunRecord>,
    only: Mutex<Option<OnlyRun>>,
}

/// What earlier runs have left in a target.
#[derive(Debug, Default)]
pub struct Left {
    /// The load that this run has, or resumes.
    pub load: Option<String>,
    /// Loads that are to be forgotten, but not before this run is done: if it fails before it is in the run history,
    /// another may still resume one of them, and has to find its notes.
    pub stale: Vec<String>,
}

/// The ledger of a sink in this run.
pub struct OpenLedger {
    ledger: Arc<dyn Ledger>,
    load: String,
    sink: String,
    target: String,
    incremental: bool,
    fingerprint: Option<Chunk>,
    /// Loads of earlier runs that are complete.
    stale: Vec<String>,
    /// Rows that have become visible.
    pub rows: Arc<AtomicU64>,
    /// What has become of the records, once all have come.
    tally: Mutex<Option<Tally>>,
    commits: Commits,
}

/// The name of a run: when it began, and in which process. Of runs that begin in the same millisecond, the later has
/// the next one.
fn run_name() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    let next = |last: u64| now.max(last.saturating_add(1));
    let last = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
    format!("{}-{}", next(last.unwrap_or_default()), std::process::id())
}

impl Place {
    /// Where a run of `job` stands.
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
        let incremental = job.sources.iter().any(|source| source.incremental);
        let done = last.clone().filter(|last| last.outcome == Outcome::Done && !incremental);
        if let Some(running) = last.as_ref().filter(|last| last.outcome == Outcome::Running) {
            return Err(Error::refused("the last run of this job is still running")
                .cause(format!("run {} in process {}", running.run, running.process))
                .hint("wait until it has ended, or end it"));
        }
        let last = last.filter(|last| last.outcome.is_unfinished());
        let resumes = last.as_ref().map(|last| last.logical.clone());
        let (path, job, options) = (job.path().to_owned(), key, options.clone());
        let (run, replay, only) = (run_name(), replay.map(Arc::clone), Mutex::default());
        Ok(Place { run, resumes, done, history, job, path, options, replay, last, only })
    }

    /// The command that resumes this run or the last one, as messages show it.
    fn resume_command(&self) -> String {
        let set = if self.job.variables.is_empty() { "" } else { ", with the same `--set`," };
        format!("`millstream run --resume {}`{set}", self.path)
    }

    /// Whether the last run was done, and there is nothing to resume.
    pub fn is_after_the_end(&self) -> bool {
        self.done.is_some()
    }

    /// Whether there is nothing to do, since the last run has added all rows. What replaces what was there is done
    /// again: what has become of it is unknown, and no row is duplicated. Rows of a job that is another one now, or has
    /// other files on this machine (elsewhere that is not asked for), are not added beside those that are there.
    pub async fn finds_nothing_new(&self, job: &Job, prepared: &Prepared<'_>) -> Result<bool> {
        let adds_rows = job.sinks.iter().any(|sink| sink.sink.adds_rows());
        let Some(done) = self.done.as_ref().filter(|_| adds_rows) else { return Ok(false) };
        let before = done.fingerprint.as_ref();
        let compared = before.map_or(Compared::Same, |before| Fingerprints::of(job, prepared).compare(before));
        if compared == Compared::Newer {
            return Err(is_newer());
        }
        let is_another = compared == Compared::Changed;
        let predicted = serde_json::to_value(prepared.predicted()).unwrap_or_default();
        let files = |predicted: &Value| [predicted["units"].clone(), predicted["stored_bytes"].clone()];
        for sink in job.sinks.iter().filter(|sink| sink.sink.adds_rows()) {
            let is_gone = sink.sink.is_gone(&prepared.network()).await;
            if is_gone.map_err(|error| error.in_step(&sink.name.value))? {
                let target = sink.sink.target();
                let lost = match sink.settings.get("table") {
                    Some(_) => format!("its table in {target} no longer exists"),
                    None => format!("the list of its files beside {target} no longer exists"),
                };
                let what = format!("the last run of this job loaded everything, but {lost}");
                return Err(Error::refused(what)
                    .in_step(&sink.name.value)
                    .hint(format!("restore it, or load everything again: `millstream run {}`", job.path())));
            }
        }
        let what = match (is_another, files(&done.predicted) != files(&predicted)) {
            (false, false) => return Ok(true),
            (true, _) => "the job has changed",
            (false, true) => "its files have changed",
        };
        Err(Error::refused(format!("the last run of this job loaded everything, and {what} since"))
            .cause("loading it again would duplicate the rows")
            .hint(format!(
                "with `incremental: true` at its sources a job loads only files that are new; `millstream run {}` \
                 loads \
                 everything",
                job.path()
            )))
    }

    /// Whether it may take over what other runs have.
    pub fn takes_over(&self) -> bool {
        self.options.resume || self.replay.is_some()
    }

    /// Lets `rejects` be kept beside the run history.
    pub fn keep(&self, rejects: &Rejects) {
        if let Some(history) = &self.history {
            let first = self.replay.as_ref().map(|replay| &replay.first);
            let first = first.or(self.resumes.as_ref()).unwrap_or(&self.run);
            rejects.keep_in(history.folder(), first, &self.run);
        }
    }

    /// Enters the run into the run history.
    pub fn enter(&self) -> Result<Option<LiveRun>> {
        if self.replay.is_some() {
            // No run can resume it: what it does is noted beside the rejects.
            return Ok(None);
        }
        let logical = self.resumes.as_ref().unwrap_or(&self.run);
        self.history.as_ref().map(|history| history.begin(&self.run, logical, &self.job)).transpose()
    }

    /// Refuses to resume a run whose job gave other rows.
    pub fn accept(&self, job: &Job, prepared: &Prepared<'_>) -> Result<()> {
        let Some(before) = self.last.as_ref().and_then(|last| last.fingerprint.as_ref()) else { return Ok(()) };
        accepted(Fingerprints::of(job, prepared).compare(before))
    }

    /// From here on there may be something to resume.
    pub fn loading(&self, job: &Job, prepared: &Prepared<'_>, live: Option<&LiveRun>) -> Result<()> {
        let Some(live) = live else { return Ok(()) };
        let predicted = serde_json::to_value(prepared.predicted()).unwrap_or_default();
        live.loading(Fingerprints::of(job, prepared).current(), &predicted)
    }

    /// Refuses to resume runs that have loaded rows, but of which the ledgers have no record.
    pub async fn find_traces(&self, ledgers: &[OpenLedger]) -> Result<()> {
        let (Some(history), Some(logical)) = (&self.history, &self.resumes) else { return Ok(()) };
        let rows = history.rows_of(logical)?;
        if rows == 0 || ledgers.is_empty() || ledgers.iter().any(|one| one.incremental) {
            return Ok(());
        }
        let mut is_empty = Vec::new();
        for one in ledgers {
            is_empty.push(one.ledger.written().await?.is_empty());
        }
        // Where one of several is complete, all had notes: one without was forgotten.
        let mut is_forgotten = is_empty.iter().all(|empty| *empty);
        for one in ledgers.iter().filter(|_| is_empty.contains(&true)) {
            is_forgotten |= is_complete(one.ledger.as_ref(), &one.load).await?;
        }
        if !is_forgotten {
            return Ok(());
        }
        Err(Error::refused(
            "the target has no record of what the run to be resumed has loaded",
        )
        .cause(format!(
            "run {logical} has loaded {rows} rows; since then a run on another machine or with another state folder \
             has completed the load, or the table `_millstream_ledger` was dropped, or the server has lost what it had \
             committed"
        ))
        .hint(
            "check whether all rows are there; without `--resume` they are all loaded again, in addition to those",
        ))
    }

    /// The ledger of `sink`, to which `legs` lead; `None` if there can be none.
    pub async fn open_ledger(
        &self,
        sink: &SinkStep,
        legs: &[Leg],
        context: LoadContext,
        fingerprints: &Fingerprints,
    ) -> Result<Option<OpenLedger>> {
        self.be_the_only_run()?;
        let incremental = legs.iter().any(|leg| leg.read().reader().incremental);
        let of_sink = self.of_sink(sink);
        let own = match incremental {
            true => format!("{of_sink}{ALL_RUNS}"),
            false => format!("{of_sink}{}", self.load()),
        };
        // Nobody else can have a load that is named after this run.
        let context = LoadContext { take_over: self.takes_over(), ..context };
        if incremental && self.options.restart {
            // What the ledger knows of files is forgotten before it is looked into: the table may be gone.
            sink.sink.unmark(&own, LoadContext { take_over: true, ..context.clone() }, false).await?;
        }
        let Some(mut ledger) = sink.sink.ledger(&own, context.clone()).await? else { return Ok(None) };
        let mut load = own;
        let left = match incremental {
            true => Ok(Left::default()),
            false if self.replay.is_some() => self.forget_earlier_rounds(ledger.as_ref(), &of_sink, &load).await,
            false => self.left_behind(sink, ledger.as_ref(), &of_sink, &load, fingerprints).await,
        };
        if !matches!(left, Ok(Left { load: None, .. })) {
            // What we only looked for is not to be left.
            ledger.forget_unwritten(&load).await?;
        }
        let Left { load: other, stale } = left?;
        if let Some(other) = other {
            ledger = match sink.sink.ledger(&other, context).await? {
                Some(ledger) => ledger,
                None => return Ok(None),
            };
            load = other;
        }
        let rows = Arc::default();
        let (sink, target) = (sink.name.value.clone(), sink.sink.target());
        let (fingerprint, tally) = ((!incremental).then(|| fingerprints.note()), Mutex::default());
        let commits = Commits::default();
        Ok(Some(OpenLedger { ledger, load, sink, target, incremental, fingerprint, stale, rows, tally, commits }))
    }

    /// What the load of `sink` notes when all of its rows become visible at once, and what earlier runs have left of
    /// such loads. With one that the history knows nothing of, this run goes on if it was asked to.
    pub async fn mark(&self, sink: &SinkStep, context: &LoadContext) -> Result<Left> {
        if !sink.sink.adds_rows() {
            return Ok(Left::default());
        }
        self.be_the_only_run()?;
        let of_sink = self.of_sink(sink);
        let own = format!("{of_sink}{}{AT_ONCE}", self.load());
        let goes_on = self.options.resume && self.resumes.is_none();
        let (mut adopted, mut stale): (Option<KnownLoad>, _) = (None, Vec::new());
        for mut other in sink.sink.known_loads(context.clone()).await? {
            let run = other.load.strip_prefix(&of_sink).and_then(|rest| rest.strip_suffix(AT_ONCE));
            let run = run.filter(|run| !run.contains('\n') && self.looks_after(run) && other.load != own);
            let Some(run) = run else { continue };
            if self.has_died(run) {
                other.connections.clear();
            }
            // One whose rows are there goes before one that has only begun.
            if goes_on && adopted.as_ref().is_none_or(|one| one.chunks == 0) {
                stale.extend(adopted.replace(other).map(|former| former.load));
            } else if !other.connections.is_empty() && !self.options.restart {
                return Err(is_loading(&other));
            } else if other.chunks > 0 && self.begins_anew() && !self.is_done(run)? {
                return Err(is_there(&sink.sink.target(), &self.resume_command()));
            } else {
                stale.push(other.load);
            }
        }
        Ok(Left { load: Some(adopted.map_or(own, |other| other.load)), stale })
    }

    /// The name of the run's loads, behind that of the sink.
    fn load(&self) -> String {
        match &self.replay {
            Some(replay) => replay.load(),
            None => self.resumes.as_ref().unwrap_or(&self.run).clone(),
        }
    }

    /// Whether this run clears up what a load of this name has left: a replay looks after its own earlier rounds, and
    /// only a replay does.
    fn looks_after(&self, load: &str) -> bool {
        match &self.replay {
            Some(replay) => load.starts_with(&replay.load_of_any_round()),
            None => !load.starts_with(replay::PREFIX),
        }
    }

    /// A replay that was killed when all was done but to forget has left its load.
    async fn forget_earlier_rounds(&self, ledger: &dyn Ledger, of_sink: &str, own: &str) -> Result<Left> {
        let Some(replay) = &self.replay else { return Ok(Left::default()) };
        let any = format!("{of_sink}{}", replay.load_of_any_round());
        for other in ledger.loads().await?.into_iter().filter(|other| other.load != own && other.load.starts_with(&any))
        {
            ledger.forget(&other.load).await?;
        }
        Ok(Left::default())
    }

    /// Whether this run was asked neither to resume another nor to leave what another has done.
    fn begins_anew(&self) -> bool {
        !self.takes_over() && !self.options.restart
    }

    /// Whether the run history says that all of the run `run` is done.
    fn is_done(&self, run: &str) -> Result<bool> {
        self.history.as_ref().map_or(Ok(false), |history| history.is_done(run))
    }

    /// Whether the run `run` was of this machine, and is dead: what the server has of it is about to end.
    fn has_died(&self, run: &str) -> bool {
        self.history.as_ref().is_some_and(|history| history.has_died(run))
    }

    /// What the names of all loads of `sink` begin with.
    fn of_sink(&self, sink: &SinkStep) -> String {
        let table = sink.settings.get("table").and_then(|table| table.as_str()).unwrap_or_default();
        format!("{}\n{}\n{table}\n", self.job.text(), sink.name.value)
    }

    /// Where no run history can be kept, the target's ledger alone has to do.
    fn be_the_only_run(&self) -> Result<()> {
        let mut only = self.only.lock().unwrap_or_else(PoisonError::into_inner);
        if let (None, Some(history)) = (&*only, &self.history) {
            *only = Some(history.only_run(&self.job)?);
        }
        Ok(())
    }

    /// Looks at what earlier runs have left in the ledger. If this run was asked to resume, and the run history has
    /// nothing to resume, it resumes what is there, be it complete or not.
    async fn left_behind(
        &self,
        sink: &SinkStep,
        ledger: &dyn Ledger,
        of_sink: &str,
        own: &str,
        fingerprints: &Fingerprints,
    ) -> Result<Left> {
        let (mut unfinished, mut complete) = (Vec::new(), Vec::new());
        for mut other in ledger.loads().await? {
            let run = other.load.strip_prefix(of_sink).filter(|run| *run != ALL_RUNS && !run.contains('\n'));
            let run = run.filter(|run| self.looks_after(run));
            let Some(run) = run else { continue };
            if other.load == own {
                continue;
            }
            let is_done = self.is_done(run)?;
            let has_died = self.has_died(run);
            if has_died {
                other.connections.clear();
            }
            let is_unwritten = other.chunks == 0 && other.connections.is_empty();
            if is_unwritten && (has_died || other.idle_seconds > OLD) {
                // If another session holds it, that is no fault, and a later run does it.
                let _ = ledger.forget_unwritten(&other.load).await;
            } else if is_done || self.options.restart {
                ledger.forget(&other.load).await?;
            } else if !is_unwritten {
                match is_complete(ledger, &other.load).await? {
                    true if self.begins_anew() => return Err(is_there(&sink.sink.target(), &self.resume_command())),
                    true => complete.push(other),
                    false => unfinished.push(other),
                }
            }
        }
        let goes_on = self.options.resume && self.resumes.is_none();
        if goes_on && unfinished.is_empty() {
            // Its run has died before it could say so.
            unfinished.extend(complete.pop());
        }
        let stale = complete.into_iter().map(|other| other.load).collect();
        match unfinished.as_slice() {
            [] => Ok(Left { load: None, stale }),
            [other] if goes_on => {
                let written = ledger.written_of(&other.load).await?;
                check_rules(&written, &ledger.place())?;
                accepted(fingerprints.compare_notes(&written))?;
                Ok(Left { load: Some(other.load.clone()), stale })
            }
            [other, ..] if !other.connections.is_empty() => Err(is_loading(other)),
            [other, ..] => Err(Error::refused("an earlier run of this job is unfinished")
                .cause(format!("{} chunks of its rows are in {}", other.chunks, sink.sink.target()))
                .hint(format!(
                    "{} loads the rest; `--restart` starts again and keeps the rows already loaded",
                    self.resume_command()
                ))),
        }
    }
}

impl OpenLedger {
    /// The load of what `legs` read.
    pub fn load(
        &self,
        run: &RunContext,
        legs: Vec<Leg>,
        step: Arc<Step>,
        place: &Place,
        progress: Option<Arc<ProgressFile>>,
    ) -> ChunkLoad {
        ChunkLoad {
            name: self.sink.clone(),
            legs,
            ledger: Arc::clone(&self.ledger),
            step,
            budget: Arc::clone(&run.budget),
            context: run.session.task_ctx(),
            workers: run.runtimes.workers(),
            accept_changed: place.options.accept_changed,
            rejects: Arc::clone(&run.rejects),
            fingerprint: self.fingerprint.clone(),
            progress,
            commits: self.commits.clone(),
        }
    }

    /// Whether it is that of `sink`.
    pub fn is_of(&self, sink: &str) -> bool {
        self.sink == sink
    }

    /// All records have come, and this has become of them.
    pub fn tell(&self, tally: Tally) {
        *self.tally.lock().unwrap_or_else(PoisonError::into_inner) = Some(tally);
    }

    /// What there is now.
    pub fn result(&self) -> SinkResult {
        let summary = self.ledger.summary(self.rows.load(Ordering::Relaxed));
        let tally = *self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        SinkResult { sink: self.sink.clone(), target: self.target.clone(), summary, removed: None, tally }
    }
}

/// Refuses to resume unless the job is the same.
fn accepted(compared: Compared) -> Result<()> {
    match compared {
        Compared::Same => Ok(()),
        Compared::Changed => Err(has_changed()),
        Compared::Newer => Err(is_newer()),
    }
}

/// The run to be resumed has a fingerprint of a newer version.
fn is_newer() -> Error {
    Error::refused("the last run of this job was made by a newer version of Millstream")
        .cause("this version cannot find out whether the job has changed since then")
        .hint("upgrade Millstream; `--restart` would load all rows a second time")
}

/// The run to be resumed gave other rows.
fn has_changed() -> Error {
    Error::refused("the job has changed since the run to be resumed")
        .cause("its sources, columns, steps or targets differ, so its rows may differ")
        .hint("undo the change, or start again with `--restart`")
}

/// A load that has all of its rows in the target, of a run that has not come to its end.
fn is_there(target: &str, resume: &str) -> Error {
    Error::refused("an earlier run of this job has loaded all of its rows, but is unfinished")
        .cause(format!("{target} has its commit marker"))
        .hint(format!("{resume} completes it and adds no row twice; `--restart` loads all rows a second time"))
}

/// A load whose run has connections.
fn is_loading(other: &KnownLoad) -> Error {
    Error::refused("another run of this job is loading now")
        .cause(other.connections.join(", "))
        .hint("wait until it has ended; if it never ends, `--resume` ends its connections and resumes the load")
}

/// The ways to each sink, where it is loaded chunk by chunk; otherwise why it is not.
pub fn ways(job: &Job, physical: &Physical) -> Result<Vec<Result<Vec<Leg>, String>>> {
    let way = |(sink, root): (&SinkStep, &crate::plan::shared::Root)| match sink.sink.may_keep_ledger() {
        true => legs(&root.plan),
        false => Err("its target or its settings require it".to_owned()),
    };
    let mut ways: Vec<_> = job.sinks.iter().zip(&physical.roots).map(way).collect();
    // A target in which a transaction is open until the end may not take others meanwhile.
    let at_once: Vec<String> =
        job.sinks.iter().zip(&ways).filter(|(_, way)| way.is_err()).map(|(sink, _)| sink.sink.target()).collect();
    for (sink, way) in job.sinks.iter().zip(&mut ways) {
        if way.is_ok() && at_once.contains(&sink.sink.target()) {
            *way = Err("another sink loads into the same place at once".to_owned());
        }
    }
    for (sink, way) in job.sinks.iter().zip(&ways) {
        check_incremental(job, sink, way)?;
    }
    Ok(ways)
}

/// A source that is incremental leads to sinks that know what they have.
fn check_incremental(job: &Job, sink: &SinkStep, way: &Result<Vec<Leg>, String>) -> Result<()> {
    let Some(source) = incremental_sources(job, sink).next() else { return Ok(()) };
    let why = match way {
        Err(why) => Some(why.clone()),
        Ok(legs) => {
            let other = legs.iter().find(|leg| !leg.read().reader().incremental);
            other.map(|other| format!("`{}` is not incremental", other.read().source()))
        }
    };
    match why {
        Some(why) => Err(Error::job(not_incremental(source, sink)).cause(why).hint(INCREMENTAL_HINT)),
        None => Ok(()),
    }
}

/// The incremental sources whose rows go to `sink`.
fn incremental_sources<'a>(job: &'a Job, sink: &'a SinkStep) -> impl Iterator<Item = &'a SourceStep> {
    let is_used = |source: &&SourceStep| is_used(job, &sink.from.value, &source.name.value);
    job.sources.iter().filter(|source| source.incremental).filter(is_used)
}

fn not_incremental(source: &SourceStep, sink: &SinkStep) -> String {
    format!("`{}` is incremental, and `{}` cannot be loaded file by file", source.name.value, sink.name.value)
}

const INCREMENTAL_HINT: &str =
    "write its rows, changed row by row only, into a table with `mode: append`, or leave out `incremental`";

/// What `incremental` asks for that the settings of a job rule out, whatever its plan: a sink without a ledger, a
/// source whose rows have no files.
pub fn lints(job: &Job) -> Vec<Lint> {
    let mut lints = Vec::new();
    for sink in &job.sinks {
        for source in incremental_sources(job, sink) {
            let reads_rows = source.places.iter().filter(|(entry, _)| entry.rows).flat_map(|(entry, _)| entry.schemes);
            let reads_rows: Vec<&str> = reads_rows.copied().collect();
            let scheme = |pattern: &str| pattern.split_once(':').map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
            let of_rows = source.read.iter().any(|read| reads_rows.contains(&scheme(&read.value).as_str()));
            let hint = if of_rows {
                "a database has no files; leave out `incremental`".to_owned()
            } else if source.read.iter().any(|read| read.value == "-") {
                "standard input has no files, and cannot be read again; leave out `incremental`".to_owned()
            } else if !sink.sink.may_keep_ledger() {
                format!("this target takes all rows at once, or its settings require it; {INCREMENTAL_HINT}")
            } else {
                continue;
            };
            lints.push(job.text.error(source.name.span, not_incremental(source, sink)).hint(hint));
        }
    }
    lints
}

/// Whether the rows of `step` come from `source`.
pub fn is_used(job: &Job, step: &str, source: &str) -> bool {
    step == source
        || job
            .transforms
            .iter()
            .filter(|one| one.name.value == step)
            .any(|one| one.uses.iter().any(|used| is_used(job, used, source)))
}

/// `error`, which stopped the run, and what of the run stays. Commits that are under way end first; a load that has
/// nothing is forgotten.
pub async fn stopped(place: &Place, error: Error, ledgers: &[OpenLedger]) -> Error {
    let ends = ledgers.iter().map(|one| one.commits.end(one.ledger.stop_waiting()));
    futures::future::join_all(ends).await;
    for one in ledgers.iter().filter(|one| !one.incremental && one.rows.load(Ordering::Relaxed) == 0) {
        // Whether that works does not matter: the next run does it.
        let _ = one.ledger.forget_unwritten(&one.load).await;
    }
    let rows: u64 = ledgers.iter().map(|one| one.rows.load(Ordering::Relaxed)).sum();
    if rows == 0 {
        return error;
    }
    let go_on = match &place.replay {
        Some(replay) => format!("`millstream rejects {} --replay` loads the rest", replay.first),
        None => format!("{} loads the rest", place.resume_command()),
    };
    // Those of earlier attempts stay.
    let rows = if place.resumes.is_some() { format!("{rows} more") } else { rows.to_string() };
    if error.kind() == ErrorKind::Interrupted {
        let what = format!("the run was interrupted; {rows} rows are loaded, and the rest was rolled back");
        return Error::new(ErrorKind::Interrupted, what).hint(go_on);
    }
    match error.hint_text().map(str::to_owned) {
        // What is to be done first has been told.
        Some(hint) => error.hint(format!("{hint}; then {go_on}: {rows} rows are loaded")),
        None => error.hint(format!("{rows} rows are loaded, and {go_on}")),
    }
}

/// Notes that loads are complete.
pub async fn complete(ledgers: &[OpenLedger]) -> Result<()> {
    for one in ledgers.iter().filter(|one| !one.incremental) {
        let noted = note_complete(one.ledger.as_ref()).await.map_err(|error| error.in_step(&one.sink))?;
        debug_assert!(matches!(noted, Delivered::Written { .. } | Delivered::AlreadyDone(_)));
    }
    Ok(())
}

/// Forgets loads that are complete. What could not be forgotten, or taken away, comes back with its sink's name: the
/// next run does it.
pub async fn forget(ledgers: &[OpenLedger]) -> Vec<(String, Error)> {
    let mut left = Vec::new();
    for one in ledgers.iter().filter(|one| !one.incremental) {
        for stale in &one.stale {
            // Its own run, or the next one, does it.
            let _ = one.ledger.forget(stale).await;
        }
        left.extend(one.ledger.forget(&one.load).await.err().map(|error| (one.sink.clone(), error)));
    }
    left
}
