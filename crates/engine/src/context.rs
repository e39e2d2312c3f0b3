//! What one run, or one look at a job, works with: its threads, its share of the memory, its tables and counters.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use millstream_core::budget::Share;
use millstream_core::format::BATCH_ROWS;
use millstream_core::program::{ProgramContext, StepLines};
use millstream_core::source::{CacheUse, SourceContext};
use millstream_core::step::StepSnapshot;
use millstream_core::{Budget, Error, Pace, Registry, Result, Steps, ThreadGroup, Unit};
use millstream_job::Job;
use tokio::sync::oneshot;

use crate::checks::FailedChecks;
use crate::engine::{Engine, Governing};
use crate::failure::Failure;
use crate::fault;
use crate::machine::Machine;
use crate::memory::BudgetPool;
use crate::monitor::Monitor;
use crate::rejects::Rejects;
use crate::rejects::replay::Replay;
use crate::report::ClusterReport;
use crate::runtime::Runtimes;
use crate::scratch::Scratch;
use crate::stages::Stages;

/// How long a program is awaited whose output is only looked at, to find out its columns.
const LONGEST_LOOK: Duration = Duration::from_secs(30);

/// What one run, or one look at a job, works with. Nothing of it is shared with other runs: two jobs may use the same
/// names, and each counts by itself.
pub struct RunContext {
    engine: Engine,
    /// Counts as a share of the engine's budget while this lives, unless the run has one with its turn.
    _share: Option<Share>,
    /// The run's share of the memory budget.
    pub budget: Arc<Budget>,
    /// Where the bytes of local files came from.
    pub cache: Arc<CacheUse>,
    /// How fast its sources may read.
    pub pace: Arc<Pace>,
    /// The counters of everything that runs.
    pub steps: Arc<Steps>,
    /// What is left out of the run.
    pub rejects: Arc<Rejects>,
    /// What the checks have come to of a run that fails for them.
    pub checks: FailedChecks,
    /// The rejects that are loaded again, in place of the sources' files.
    pub replay: Option<Arc<Replay>>,
    /// Takes what programs write to standard error.
    pub lines: StepLines,
    /// Variables that programs get beside those of this process, unless the job sets them.
    pub environment: Vec<(String, String)>,
    /// Takes the stages of the run.
    pub stages: Stages,
    /// How long programs may take whose output is only looked at; any time if it is to be read.
    pub patience: Option<Duration>,
    /// DataFusion, with the run's tables.
    pub session: SessionContext,
    /// The run's threads, those of [`RunContext::runtimes`] and the one that drives it, and its processes.
    pub threads: Arc<ThreadGroup>,
    /// They end after what they work for.
    pub runtimes: Runtimes,
    /// Where the SQL engine and shared steps spill. Last, since threads write to it.
    pub scratch: Arc<Scratch>,
    /// How the run goes.
    pub monitor: Monitor,
    /// The units that are read of each source, if these are not all.
    only: OnceLock<HashMap<String, Vec<Unit>>>,
    /// How many share the limits of the job, if others read, too.
    sharers: OnceLock<usize>,
    /// What the workers of a cluster do for the run, if it has one.
    pub cluster: Arc<Mutex<Option<ClusterReport>>>,
}

impl RunContext {
    /// A context of the calling thread, with a share of the budget of its own.
    pub fn new(engine: &Engine) -> Result<Self> {
        let share = engine.budget().share();
        let budget = Arc::clone(share.budget());
        Ok(RunContext { _share: Some(share), ..RunContext::of_run(engine, budget, None)? })
    }

    /// A context of the calling thread, which joins the run's threads, with `budget` as the run's share. With `replay`
    /// the run loads rejects again.
    pub fn of_run(engine: &Engine, budget: Arc<Budget>, replay: Option<Arc<Replay>>) -> Result<Self> {
        let machine = engine.machine();
        let threads = Arc::new(ThreadGroup::within(&budget));
        threads.join();
        let runtimes = Runtimes::new(machine.cores, &threads)?;
        let scratch = Arc::new(Scratch::new(&machine.scratch));
        let session = session(engine, &scratch, &budget)?;
        let rejects = Arc::<Rejects>::default();
        replay.iter().for_each(|replay| rejects.replay(replay));
        Ok(RunContext {
            engine: engine.clone(),
            _share: None,
            budget,
            cache: Arc::default(),
            pace: Arc::default(),
            steps: Arc::default(),
            rejects,
            checks: FailedChecks::default(),
            replay,
            lines: Arc::new(|_, _| {}),
            environment: Vec::new(),
            stages: Stages::default(),
            patience: None,
            session,
            threads,
            runtimes,
            scratch,
            monitor: Monitor::default(),
            only: OnceLock::new(),
            sharers: OnceLock::new(),
            cluster: Arc::default(),
        })
    }

    /// The same, with `lines` taking what programs write to standard error.
    pub fn with_lines(self, lines: StepLines) -> Self {
        RunContext { lines, ..self }
    }

    /// The same, with variables for its programs, and `stages` taking its stages.
    pub fn observed(self, environment: Vec<(String, String)>, stages: Stages) -> Self {
        RunContext { environment, stages, ..self }
    }

    /// The same, with sources that read as fast as `job` says.
    pub fn paced(self, job: &Job) -> Self {
        let rate = job.around.throttle.bytes_per_second.map(|size| size.0);
        RunContext { pace: Arc::new(Pace::new(rate)), ..self }
    }

    /// Lets only these units be read of each source.
    pub fn read_only(&self, units: HashMap<String, Vec<Unit>>) {
        // A context reads one bundle.
        let _ = self.only.set(units);
    }

    /// Lets limits of the job hold for so many bundles together, of which this context reads one.
    pub fn share_limits(&self, bundles: u64) {
        let _ = self.sharers.set(usize::try_from(bundles).unwrap_or(usize::MAX));
    }

    /// How many share the limits of the job: one, if nobody else reads.
    pub fn sharers(&self) -> usize {
        self.sharers.get().copied().unwrap_or(1)
    }

    /// The units that are read of `source`, if these are not all.
    pub fn only(&self, source: &str) -> Option<Vec<Unit>> {
        self.only.get()?.get(source).cloned()
    }

    /// What the workers of a cluster do for the run, or have done.
    pub fn cluster_report(&self) -> Option<ClusterReport> {
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The counters of all steps as they are.
    pub fn snapshots(&self) -> Vec<StepSnapshot> {
        let mut snapshots: Vec<StepSnapshot> = self.steps.all().iter().map(|step| step.snapshot()).collect();
        for StepSnapshot { name, work, .. } in &mut snapshots {
            let work = work.iter_mut();
            work.for_each(|work| work.cpu_seconds += self.threads.processes().used_by(name).busy.as_secs_f64());
        }
        snapshots
    }

    /// What the run may use.
    pub fn machine(&self) -> &Machine {
        self.engine.machine()
    }

    /// The components.
    pub fn registry(&self) -> &Arc<Registry> {
        self.engine.registry()
    }

    /// Holds the process to its budget until what comes back is dropped; nothing where the engine is a guest.
    pub(crate) fn govern(&self) -> Result<Governing> {
        self.engine.govern()
    }

    /// What the sources of a step work with that starts `programs`.
    pub fn source_context(&self, programs: Arc<ProgramContext>) -> SourceContext {
        SourceContext {
            io: self.runtimes.io(),
            budget: Arc::clone(&self.budget),
            cache: Arc::clone(&self.cache),
            programs,
            pace: Arc::clone(&self.pace),
        }
    }
}

impl Engine {
    /// Looks at something with a context of its own: as [`Engine::with_context`], and no program is awaited for long.
    pub(crate) async fn with_looking_context<T, W>(&self, work: W) -> Result<T, Failure>
    where
        T: Send + 'static,
        W: AsyncFnOnce(&RunContext) -> Result<T, Failure> + Send + 'static,
    {
        self.with(Some(LONGEST_LOOK), work).await
    }

    /// Does `work` with a context of its own, on a thread of its own. If the future is dropped, the work ends at its
    /// next await.
    pub(crate) async fn with_context<T, W>(&self, work: W) -> Result<T, Failure>
    where
        T: Send + 'static,
        W: AsyncFnOnce(&RunContext) -> Result<T, Failure> + Send + 'static,
    {
        self.with(None, work).await
    }

    async fn with<T, W>(&self, patience: Option<Duration>, work: W) -> Result<T, Failure>
    where
        T: Send + 'static,
        W: AsyncFnOnce(&RunContext) -> Result<T, Failure> + Send + 'static,
    {
        let (engine, (mut answer, answered)) = (self.clone(), oneshot::channel());
        let look = move || {
            let done = RunContext::new(&engine).map_err(Failure::from).and_then(|context| {
                let context = RunContext { patience, ..context };
                context.runtimes.workers().block_on(async {
                    tokio::select! {
                        biased;
                        () = answer.closed() => Err(Error::internal("no task waits for the answer").into()),
                        done = work(&context) => done,
                    }
                })
            });
            // The one who asked may have left.
            let _ = answer.send(done);
        };
        let thread = std::thread::Builder::new().name("millstream".to_owned()).spawn(look);
        thread.map_err(|cause| Error::io("a thread cannot be started", &cause))?;
        answered.await.unwrap_or_else(|_| Err(Error::internal("the thread that did the work has panicked").into()))
    }
}

/// DataFusion, with `budget` as its memory and `scratch` as its disk.
fn session(engine: &Engine, scratch: &Scratch, budget: &Arc<Budget>) -> Result<SessionContext> {
    let cores = engine.machine().cores;
    let pool: Arc<dyn MemoryPool> = Arc::new(BudgetPool::new(Arc::clone(budget)));
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(pool)
        .with_disk_manager_builder(
            DiskManagerBuilder::default().with_mode(DiskManagerMode::Directories(scratch.folders(None))),
        )
        .with_max_spill_merge_fan_in(merge_fan_in(budget.limit(), cores))
        .build_arc()
        .map_err(fault::unwrap)?;
    let mut config = SessionConfig::new()
        .with_target_partitions(cores)
        .with_batch_size(batch_rows(budget.limit(), cores))
        .with_information_schema(false);
    let options = config.options_mut();
    options.sql_parser.collect_spans = true;
    let session = crate::sql::checked(SessionContext::new_with_config_rt(config, runtime));
    engine.functions().iter().for_each(|function| session.register_udf(function.as_ref().clone()));
    Ok(session)
}

/// Rows in a batch: with a small budget smaller ones, since every operator holds some whatever it declares (a merge one
/// of each run). About 4 KiB of the budget for each row and core.
fn batch_rows(budget: usize, cores: usize) -> usize {
    (budget / cores / 4096).clamp(256, BATCH_ROWS)
}

/// Spilled runs that one sort merges at once. Left to itself the first of several sorts takes what memory there is for
/// its merge, and the others fail; so each gets a part of a quarter of the budget, at about 256 bytes a row and run.
fn merge_fan_in(budget: usize, cores: usize) -> usize {
    (budget / (4 * cores) / (batch_rows(budget, cores) * 256)).max(2)
}
