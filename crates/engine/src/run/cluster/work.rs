//! The worker's side: reads the units of bundles, and delivers what the targets do not have.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::FutureExt;
use millstream_cluster::{Hello, Identity, Link, Parted, ReadBundle, ToRead, Worker, join};
use millstream_core::sink::{Chunk, Kept, LoadContext, WorkerPart};
use millstream_core::{Error, ErrorKind, Result, StepKind, Unit, clock};
use millstream_job::{Job, SinkStep, SourceStep};
use millstream_state::rejects::Line;
use serde_json::Value;
use tokio::sync::watch;

use super::announced::Announced;
use super::code::place;
use super::count::CountWork;
use super::files::{RejectsOfBundle, hand_over};
use super::hindrance;
use super::session::unit_of;
use super::task::{Assignment, BundleOutcome, Keep, OfPart, Task, Told, from_value, to_value};
use crate::chunks::load::{ChunkLoad, Commits, first_notes, only_begun};
use crate::chunks::pipeline::repeatable;
use crate::chunks::references::{References, has_changed};
use crate::chunks::shared::{BundleLoad, Keeper, KeptDelivery};
use crate::chunks::sinks;
use crate::chunks::units::{Units, WhenChanged};
use crate::context::RunContext;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::fingerprint::{Compared, Fingerprints};
use crate::job_plan::{JobPlan, Runnable};
use crate::machine::host_name;
use crate::memory;
use crate::options::Cancel;
use crate::plan::lookup::lookups;
use crate::plan::shared::Physical;
use crate::prepare::{Asked, Prepared, Reach, prepare, prepare_with_sinks};
use crate::read::Filtered;
use crate::run::begin::Tasks;
use crate::run::load::drive;
use crate::run::sinks::AtOnce;
use crate::runtime::KeptIo;

/// Bundles that a worker reads at once: while one is at its end, the next one has begun.
const SLOTS: u64 = 2;

/// A worker of a cluster, with the machine of an engine.
pub struct EngineWork {
    engine: Engine,
    on_begin: Box<dyn Fn(&str) + Send + Sync>,
}

impl EngineWork {
    /// One that works with `engine`.
    pub fn new(engine: Engine) -> Self {
        EngineWork { engine, on_begin: Box::new(|_| ()) }
    }

    /// Calls `then` when it has its task, and can do it, with what that is: `the run 7 of job.yaml`.
    #[must_use]
    pub fn on_begin(self, then: impl Fn(&str) + Send + Sync + 'static) -> Self {
        EngineWork { on_begin: Box::new(then), ..self }
    }

    /// Joins the coordinator at `address`, and reads what that hands out until nothing is left, or `leave` is true.
    ///
    /// # Errors
    /// If no coordinator answers there that has the same secret.
    pub async fn join(self, address: &str, identity: &Identity, leave: watch::Receiver<bool>) -> Result<Parted> {
        let machine = self.engine.machine();
        let hello = Hello {
            protocol: millstream_cluster::PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host: host_name(),
            process: std::process::id(),
            slots: SLOTS,
            cores: machine.cores as u64,
            memory: machine.memory,
            now: i64::try_from(clock::now()).unwrap_or(i64::MAX),
        };
        join(address, identity, hello, Arc::new(self), leave).await
    }
}

impl std::fmt::Debug for EngineWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineWork").field("engine", &self.engine).finish_non_exhaustive()
    }
}

#[async_trait]
impl millstream_cluster::Work for EngineWork {
    async fn begin(&self, worker: Worker, task: Value) -> Result<Arc<dyn ReadBundle>> {
        let (reads, what) = self.prepare(worker, task).await?;
        (self.on_begin)(&what);
        Ok(reads)
    }
}

impl EngineWork {
    /// What reads the bundles of a task, and what that is, in words.
    async fn prepare(&self, worker: Worker, task: Value) -> Result<(Arc<dyn ReadBundle>, String)> {
        let assignment: Assignment = from_value(task)?;
        let (folder, must_be_there) = assignment.folder();
        if let Err(cause) = std::env::set_current_dir(folder)
            && must_be_there
        {
            let what = format!("the folder {}, in which the run was started, is not here", folder.display());
            return Err(Error::io(what, &cause).hint("start the run in a folder that all machines have"));
        }
        let mut task = match assignment {
            Assignment::Load(task) => *task,
            Assignment::Count(task) => {
                return Ok((Arc::new(CountWork::new(self.engine.clone(), task)), "a count of lines".to_owned()));
            }
        };
        let what = format!("the run {} of {}", task.run, task.plan["path"].as_str().unwrap_or_default());
        let code = match task.code.is_empty() {
            true => None,
            false => {
                let scratch = self.engine.machine().scratch.disks.first().map(|disk| disk.folder.clone());
                let mut builder = tempfile::Builder::new();
                let folder = builder.prefix("millstream-code-").tempdir_in(scratch.unwrap_or_else(std::env::temp_dir));
                let folder = folder.map_err(|cause| Error::io("a folder for the code cannot be made", &cause))?;
                let path = task.plan["path"].as_str().unwrap_or_default().to_owned();
                task.plan["path"] = Value::String(place(&task.code, &path, folder.path())?);
                Some(folder)
            }
        };
        let plan = self.engine.restore(&task.plan).map_err(Failure::into_first)?;
        let (engine, next, kept) = (self.engine.clone(), Arc::default(), Kept::default());
        let joined = Arc::new(Joined { engine, worker, task, plan, next, kept, kept_io: KeptIo::new()?, _code: code });
        joined.check().await.map_err(|failure| same_files(failure.into_first()))?;
        Ok((Arc::new(Reads(joined)), what))
    }
}

/// A task that a worker has.
struct Joined {
    engine: Engine,
    worker: Worker,
    task: Task,
    plan: JobPlan,
    /// The number of the next delivery.
    next: Arc<AtomicU64>,
    /// What sinks keep between bundles, and where it waits.
    kept: Kept,
    kept_io: KeptIo,
    /// The folder of its code, if that has one of its own.
    _code: Option<tempfile::TempDir>,
}

impl Joined {
    /// Whether the job is the same here: its files can be seen, its targets answer, and its rows would be the same.
    async fn check(self: &Arc<Self>) -> Result<(), Failure> {
        let joined = Arc::clone(self);
        let work = self.engine.fresh(Runnable::from(&self.plan))?;
        self.engine
            .with_looking_context(async move |context: &RunContext| {
                let Runnable { job, known } = work;
                // A list may be on the machine of the coordinator alone.
                let has_list = |source: &&SourceStep| source.read.iter().any(|pattern| pattern.value.starts_with('@'));
                let handed_out = |source: &&SourceStep| joined.task.distributed.contains(&source.name.value);
                let lists = job.sources.iter().filter(has_list).filter(handed_out);
                context.read_only(lists.map(|source| (source.name.value.clone(), Vec::new())).collect());
                let known = known.as_deref();
                let prepared = prepare_with_sinks(context, &job, known, Reach::Online, Asked::Check).await?;
                same_interpreters(&joined.task.interpreters, &prepared.interpreters())?;
                match Fingerprints::of(&job, &prepared).compare(&joined.task.fingerprint) {
                    Compared::Same => joined.check_files(context, &job, &prepared).await,
                    _ => Err(other_rows().into()),
                }
            })
            .await
    }
}

impl Joined {
    /// Whether what the run has begun to write in folders is to be seen here.
    async fn check_files(&self, context: &RunContext, job: &Job, prepared: &Prepared<'_>) -> Result<(), Failure> {
        if !job.sinks.iter().any(hindrance::writes_files) {
            return Ok(());
        }
        let physical = prepared.plan_sinks(job).await?;
        let part = WorkerPart { worker: self.worker, attempt: 0, at_once: 1, kept: self.kept.clone() };
        for (sink, root) in job.sinks.iter().zip(&physical.roots).filter(|(sink, _)| hindrance::writes_files(sink)) {
            let load_context = load_context(context, self, &part, prepared, sink, &root.plan)?;
            let begun = sink.sink.begin(load_context).await.map_err(|error| error.in_step(&sink.name.value))?;
            begun.abort().await;
        }
        Ok(())
    }
}

/// `error`, with the question whether files are the same everywhere, if it may come of others here.
fn same_files(error: Error) -> Error {
    match error.what() {
        "no file matches" | "the file has changed since it was listed" => {
            error.hint("is the folder of these files the same one on all machines?")
        }
        _ => error,
    }
}

/// Whether what runs the code of steps is the same here as where the run was started.
fn same_interpreters(there: &BTreeMap<String, String>, here: &BTreeMap<String, String>) -> Result<()> {
    let other =
        there.iter().find_map(|(step, there)| Some((step, there, here.get(step).filter(|here| *here != there)?)));
    let Some((step, there, here)) = other else { return Ok(()) };
    let error = Error::refused(format!("{here} runs the code of `{step}` here, and {there} where the run was started"));
    Err(error.in_step(step).hint("let all machines have the same version: what its functions give may depend on it"))
}

/// The error of a job with another fingerprint than the coordinator's.
fn other_rows() -> Error {
    Error::refused("the job would give other rows here")
        .hint("are its code and the formats of its files the same on all machines, and as they were when it began?")
}

/// Reads the bundles of a task.
struct Reads(Arc<Joined>);

#[async_trait]
impl ReadBundle for Reads {
    async fn read(&self, to_read: ToRead, link: Link) -> Result<Value, Vec<Error>> {
        let internal = |error: Error| vec![error];
        let (joined, stopped, lines) = (Arc::clone(&self.0), link.clone(), link.clone());
        let ToRead { attempt, units, is_again, at_once } = to_read;
        let sources: Vec<String> = joined.plan.job().sources.iter().map(|source| source.name.value.clone()).collect();
        let all = joined.task.distributed.iter().map(|source| (source.clone(), Vec::new()));
        let mut only: HashMap<String, Vec<Unit>> = all.collect();
        let mut bundle = Vec::new();
        for listed in &units {
            let unit = unit_of(listed).map_err(internal)?;
            let source = sources.get(listed.source as usize);
            let source = source.ok_or_else(|| internal(Error::internal("a unit of no source")))?;
            bundle.push((source.clone(), unit.uri.clone(), unit.bytes()));
            only.entry(source.clone()).or_default().push(unit);
        }
        let (count, next) = (units.iter().map(|unit| unit.extent.files()).sum(), Arc::clone(&joined.next));
        let keeper = Arc::new(LinkKeeper {
            link,
            next,
            announced: Mutex::new(Announced::new(bundle)),
            left_out: Mutex::default(),
            ended: AtomicU64::new(0),
        });
        let part = WorkerPart { worker: joined.worker, attempt, at_once, kept: joined.kept.clone() };
        let bundle = Bundle { part, only, is_again, keeper, link: lines };
        let engine = joined.engine.clone();
        let reading =
            engine.with_context(async move |context: &RunContext| read_bundle(context, &joined, bundle).await);
        let outcome = tokio::select! {
            biased;
            () = stopped.stopped() => return Err(vec![Error::new(ErrorKind::Interrupted, "the bundle was stopped")]),
            outcome = reading => outcome,
        };
        let outcome =
            outcome.map_err(|failure| failure.into_errors().into_iter().map(same_files).collect::<Vec<_>>())?;
        to_value(&BundleOutcome { units: count, ..outcome }).map_err(internal)
    }
}

/// What is to be read.
struct Bundle {
    part: WorkerPart,
    /// The units, by source.
    only: HashMap<String, Vec<Unit>>,
    is_again: bool,
    keeper: Arc<LinkKeeper>,
    link: Link,
}

async fn read_bundle(context: &RunContext, joined: &Joined, bundle: Bundle) -> Result<BundleOutcome, Failure> {
    let (_governing, began) = (context.govern()?, Instant::now());
    let Bundle { part, only, is_again, keeper, link } = bundle;
    let rejects = Arc::new(RejectsOfBundle::new(&context.budget)?);
    match joined.plan.job().sinks.iter().all(hindrance::writes_files) {
        true => {
            let (rejects, sources) = (Arc::clone(&rejects), joined.task.distributed.clone());
            context.rejects.keep_by(move |lines| rejects.keep(lines, |source| sources.contains(source)));
        }
        false => context.rejects.keep_by(move |lines| {
            keep_lines(&link, lines);
            Ok(())
        }),
    }
    let read: BTreeSet<String> =
        only.iter().filter(|(_, units)| !units.is_empty()).map(|(source, _)| source.clone()).collect();
    // A part of a unit has a bundle of its own.
    let part_of = only.iter().flat_map(|(source, units)| units.iter().map(move |unit| (source.clone(), unit.clone())));
    let part_of = part_of.clone().find(|(_, unit)| unit.records.is_some());
    context.read_only(only);
    context.share_limits(part.at_once);
    let Runnable { job, known } = joined.engine.fresh(Runnable::from(&joined.plan))?;
    let prepared = prepare(context, &job, known.as_deref(), Reach::Online).await?;
    prepared.readers.iter().for_each(|reader| reader.watch_left_out());
    let physical = prepared.plan_sinks(&job).await?;
    read_references(context, joined, &physical).await?;
    // What is rejected of references the coordinator has.
    rejects.clear();
    let by_chunk = sinks::by_chunk(&job, &physical)?;
    // Its code may have changed since the worker joined.
    let fingerprints = Fingerprints::of(&job, &prepared);
    if fingerprints.compare(&joined.task.fingerprint) != Compared::Same {
        return Err(other_rows().into());
    }
    let fingerprint = fingerprints.note();
    let (mut tasks, mut files) = (Tasks::default(), Vec::new());
    for ((sink, root), pipelines) in job.sinks.iter().zip(&physical.roots).zip(by_chunk) {
        let name = &sink.name.value;
        if hindrance::writes_files(sink) {
            let pipelines = repeatable(&root.plan).map_err(Error::internal)?;
            if pipelines.iter().any(|pipeline| read.contains(pipeline.read().source())) {
                for pipeline in &pipelines {
                    let (keeper, source) = (Arc::clone(&keeper), pipeline.read().source().to_owned());
                    pipeline.read().reader().watch_units(move |uri, is_read| keeper.reading(&source, uri, is_read));
                }
                let load_context = load_context(context, joined, &part, &prepared, sink, &root.plan)?;
                let begun = AtOnce::begin(context, sink, Arc::clone(&root.plan), load_context).await;
                let (load, exec) = begun.map_err(|error| error.in_step(name))?;
                tasks.plans.push(Arc::new(exec));
                files.push(load);
            }
            continue;
        }
        let pipelines = pipelines.map_err(|why| Error::internal(format!("`{name}` cannot be shared: {why}")))?;
        if !pipelines.iter().any(|pipeline| read.contains(pipeline.read().source())) {
            continue;
        }
        let shared = joined.task.loads.get(name);
        let shared = shared.ok_or_else(|| Error::internal(format!("`{name}` is not shared")))?;
        let fingerprint = (!shared.incremental).then(|| fingerprint.clone());
        let references = References::of(&pipelines, shared.incremental.then_some(joined.task.first.as_str()))?;
        let begins_with =
            [first_notes(fingerprint.as_ref(), &references), part_of.iter().flat_map(noted).collect()].concat();
        let known = (!is_again).then(|| only_begun(&begins_with));
        let load_context = load_context(context, joined, &part, &prepared, sink, &root.plan)?;
        let step = Arc::clone(&load_context.step);
        let ledger = sink.sink.ledger(&shared.name, load_context).await.map_err(|error| error.in_step(name))?;
        let ledger = ledger.ok_or_else(|| Error::internal(format!("`{name}` keeps no ledger")))?;
        let load = ChunkLoad {
            name: name.clone(),
            notes_rejects_of: shared.incremental.then(|| joined.task.first.clone()),
            // The coordinator has noted them.
            references: References::default(),
            pipelines,
            ledger,
            step,
            budget: Arc::clone(&context.budget),
            context: context.session.task_ctx(),
            workers: context.runtimes.workers(),
            accept_changed: joined.task.accept_changed,
            rejects: Arc::clone(&context.rejects),
            fingerprint,
            progress: None,
            commits: Commits::default(),
            scratch: context.scratch.folder().to_owned(),
            is_staged: false,
            by_workers: Arc::default(),
            bundle: Some(BundleLoad { keeper: Arc::clone(&keeper) as Arc<dyn Keeper>, known }),
        };
        tasks.chunk_loads.push(load.run(Arc::default()).boxed());
    }
    drive(context, tasks, &Cancel::default()).await?;
    prepared.finish_workers().await?;
    physical.metered.iter().for_each(|metered| metered.settle());
    context.steps.all().iter().try_for_each(|step| step.check())?;
    let unopened = prepared.unopened();
    if !unopened.is_empty() {
        return Err(Failure { lints: Vec::new(), errors: unopened });
    }
    let of_files = match files.is_empty() {
        true => None,
        false => Some(hand_over(&files, &prepared.readers, &rejects).await?),
    };
    // One that was left out, because it could not be opened, is not done.
    let is_done = of_files.is_none() && keeper.ended.load(Ordering::Relaxed) > 0;
    let part_of = part_of.filter(|_| is_done);
    let part = part_of.map(|(source, unit)| OfPart { source, uri: unit.uri, left_out: keeper.left_out() });
    Ok(BundleOutcome { files: of_files, part, ..outcome(context, joined, &prepared, began) })
}

/// What the coordinator has noted of `unit` of `source`, of which a bundle has a part.
fn noted((source, unit): &(String, Unit)) -> Option<Chunk> {
    let units = Units::new(source, Arc::new(only_begun(&[])), WhenChanged::default());
    units.to_note(unit)?.version
}

/// Reads what is looked up in, which has to be what the coordinator has read.
async fn read_references(context: &RunContext, joined: &Joined, physical: &Physical) -> Result<()> {
    let task_context = context.session.task_ctx();
    for lookup in physical.plans().flat_map(lookups) {
        let step = &lookup.shape().step;
        let ready = lookup.shared().ready(lookup.reference(), &task_context).await;
        ready.map_err(|error| if error.step_name().is_some() { error } else { error.in_step(step) })?;
        let hash = lookup.shared().loaded().map(|reference| format!("{:016x}", reference.hash()));
        if hash.as_ref() != joined.task.references.get(step) {
            return Err(has_changed(&format!("what `{step}` looks up in")));
        }
    }
    Ok(())
}

fn outcome(context: &RunContext, joined: &Joined, prepared: &Prepared<'_>, began: Instant) -> BundleOutcome {
    let mut used = context.threads.used();
    used.add(joined.kept_io.used());
    BundleOutcome {
        units: 0,
        files: None,
        part: None,
        steps: context.snapshots(),
        came: context.rejects.all_came(),
        missing_columns: prepared.missing_columns(),
        cached: (context.cache.cached(), context.cache.disk()),
        cpu_seconds: used.busy.as_secs_f64(),
        delayed_seconds: used.delayed.as_secs_f64(),
        seconds: began.elapsed().as_secs_f64(),
        peak_rss_bytes: memory::peak_resident(),
    }
}

fn load_context(
    context: &RunContext,
    joined: &Joined,
    part: &WorkerPart,
    prepared: &Prepared<'_>,
    sink: &SinkStep,
    plan: &Arc<dyn ExecutionPlan>,
) -> Result<LoadContext> {
    let name = &sink.name.value;
    let schema = prepared.sink_columns(sink);
    let schema = schema.ok_or_else(|| Error::internal(format!("the columns of sink `{name}` are not known")))?;
    Ok(LoadContext {
        run: joined.task.run.clone(),
        first: joined.task.first.clone(),
        sink: name.clone(),
        marker: None,
        notes: None,
        take_over: false,
        worker: Some(part.clone()),
        schema,
        partitions: plan.output_partitioning().partition_count(),
        ordered: plan.output_ordering().is_some(),
        // Connections are kept between bundles; files are not.
        io: if hindrance::writes_files(sink) { context.runtimes.io() } else { joined.kept_io.io() },
        scratch: context.scratch.folder().to_owned(),
        programs: prepared.programs(name),
        budget: Arc::clone(&context.budget),
        step: context.steps.add(name, StepKind::Load, sink.sink.name()),
        refusals: None,
    })
}

/// Keeps what a bundle rejects at the coordinator.
struct LinkKeeper {
    link: Link,
    next: Arc<AtomicU64>,
    announced: Mutex<Announced>,
    /// What filters have left out of units that are at their ends.
    left_out: Mutex<HashMap<String, (String, Filtered)>>,
    /// How many units are at their ends.
    ended: AtomicU64,
}

impl std::fmt::Debug for LinkKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LinkKeeper")
    }
}

impl LinkKeeper {
    /// What filters have left out of units that are at their ends, and complete with no delivery.
    fn left_out(&self) -> Filtered {
        let known = std::mem::take(&mut *self.left_out.lock().unwrap_or_else(PoisonError::into_inner));
        known.into_values().fold(Filtered::default(), |mut sum, (_, left_out)| {
            sum += left_out;
            sum
        })
    }

    fn tell(&self, told: &Told) {
        // It is of our own making.
        to_value(told).into_iter().for_each(|told| self.link.tell(told));
    }
}

impl Keeper for LinkKeeper {
    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn keep(&self, mut delivery: KeptDelivery) -> Result<()> {
        let left_out: Vec<(String, Filtered)> = {
            let known = self.left_out.lock().unwrap_or_else(PoisonError::into_inner);
            delivery.completes().filter_map(|unit| known.get(unit).cloned()).collect()
        };
        left_out.iter().for_each(|(source, left_out)| delivery.leave_out(source, *left_out));
        self.link.keep(to_value(&Keep(delivery))?)
    }

    fn committed(&self, number: u64) {
        self.tell(&Told::Committed(number));
    }

    fn ended(&self, source: &str, unit: &str, left_out: Filtered) {
        self.ended.fetch_add(1, Ordering::Relaxed);
        if left_out.records > 0 {
            let mut known = self.left_out.lock().unwrap_or_else(PoisonError::into_inner);
            known.insert(unit.to_owned(), (source.to_owned(), left_out));
        }
    }

    fn reading(&self, source: &str, uri: &str, is_read: bool) {
        let (mut announced, now) = (self.announced.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        let positions = match is_read {
            true => announced.begins(source, uri, now),
            false => announced.ends(source, uri, now),
        };
        // In this order: the last message says what is being read.
        positions.into_iter().for_each(|positions| self.link.reading(positions));
    }
}

/// Tells rejects that belong to no delivery yet. What belongs to no chunk is of a reference, which the coordinator has
/// read, too.
fn keep_lines(link: &Link, mut lines: Vec<Line>) {
    lines.retain(|line| matches!(line, Line::Reject(line) if line.chunk.is_some()));
    if !lines.is_empty() {
        // It is of our own making.
        to_value(&Told::Lines(lines)).into_iter().for_each(|told| link.tell(told));
    }
}
