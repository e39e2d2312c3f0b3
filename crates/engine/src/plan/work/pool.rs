//! The workers of a step: as many processes as it may have, started when they are needed, kept for the whole run.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::common::runtime::SpawnedTask;
use futures::{StreamExt, stream};
use millstream_core::processes::{Kept, Processes};
use millstream_core::program::ProgramContext;
use millstream_core::spec::{Duration as Time, Size};
use millstream_core::transform::{Answer, CallSize, GivenRows, Per, RowStream, WorkRules, Worker, Workers};
use millstream_core::{Error, ErrorKind, Result, Step};
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::call_rows::{CallRows, QUICK};
use crate::surroundings::Surroundings;

/// How often the memory of a worker is measured that may not take any amount.
const MEASURE_EVERY: Duration = Duration::from_millis(200);

/// The shortest pause between two looks at a worker.
const LEAST_PAUSE: Duration = Duration::from_millis(1);

/// How long a worker takes to start before the user hears of it.
const LONG_START: Duration = Duration::from_secs(10);

/// How long a worker may take to start, with what it loads.
const LONGEST_START: Duration = Duration::from_secs(600);

/// How long a worker may take to end, unless the job says how long it may take for a batch.
const LONGEST_END: Duration = Duration::from_secs(60);

/// The workers of a step.
pub struct Pool {
    starter: Arc<Starter>,
    /// Itself, for what starts workers beside the calls.
    own: Weak<Pool>,
    counters: Arc<Step>,
    size: usize,
    /// One for each worker that there is, or was: what takes the permit of a worker that has ended starts another.
    permits: Semaphore,
    /// How many calls wait for a permit.
    waiting: AtomicUsize,
    growth: Mutex<Growth>,
    /// Whether all workers may be started. Before, one at a time works: a few quick rows are not worth more.
    is_open: AtomicBool,
    call_rows: CallRows,
    idle: Mutex<Vec<Idle>>,
    /// The memory that the workers may take.
    kept: OnceLock<Kept>,
}

/// Starts workers.
struct Starter {
    workers: Arc<dyn Workers>,
    takes: SchemaRef,
    context: ProgramContext,
    /// What the rows depend on beside the settings, when the first worker was started.
    code: OnceLock<Value>,
    /// What runs their code, once the first one has started.
    interpreter: OnceLock<Option<String>>,
    /// All processes of the run.
    processes: Arc<Processes>,
}

/// How a pool has grown. A call never waits for a worker that starts while another one is free: loading its code takes
/// a second, and the rows behind that call would wait, too.
#[derive(Default)]
struct Growth {
    /// Workers that have joined the first one, or are about to.
    more: usize,
    /// How many of them have joined.
    joined: usize,
    /// They start. What is dropped ends.
    tasks: Vec<SpawnedTask<()>>,
    /// Why one could not be started.
    failed: Option<Error>,
}

/// Counts the time of a worker as busy until it is dropped.
struct Busy<'a>(&'a Step, Instant);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.add_busy(self.1.elapsed());
    }
}

/// Counts a call as waiting until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn begin(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::SeqCst);
        Waiting(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How a worker has failed at a call.
#[derive(Debug)]
pub struct Failed {
    /// Why.
    pub error: Error,
    /// The row or group at which it was, if that is known.
    pub at: Option<u32>,
}

/// A worker that does nothing, and when its memory was measured.
struct Idle {
    worker: Box<dyn Worker>,
    measured: Instant,
}

impl Pool {
    /// The workers of `step`, none of which is started yet, for rows with the columns `takes`. There are `cores` of
    /// them unless the job says otherwise.
    pub fn new(
        workers: Arc<dyn Workers>,
        step: &str,
        takes: SchemaRef,
        surroundings: &Surroundings,
        cores: usize,
    ) -> Arc<Self> {
        let cores = if workers.rules().per == Per::Stream { 1 } else { cores };
        let size = workers.rules().workers.map_or(cores, Into::into);
        let call_size = workers.rules().call_size;
        let counters = Step::of_processes(step, workers.name(), size);
        let context = surroundings.context(step);
        let processes = Arc::clone(&surroundings.processes);
        let starter = Arc::new(Starter {
            workers,
            takes,
            context,
            code: OnceLock::new(),
            interpreter: OnceLock::new(),
            processes,
        });
        Arc::new_cyclic(|own| Pool {
            starter,
            own: Weak::clone(own),
            counters,
            size,
            permits: Semaphore::new(1),
            waiting: AtomicUsize::new(0),
            growth: Mutex::default(),
            is_open: AtomicBool::new(call_size != CallSize::Rows),
            call_rows: CallRows::new(call_size),
            idle: Mutex::default(),
            kept: OnceLock::new(),
        })
    }

    /// The name of the step.
    pub fn step(&self) -> &str {
        &self.counters.name
    }

    /// The counters of the step.
    pub fn counters(&self) -> &Arc<Step> {
        &self.counters
    }

    /// What its workers are called.
    pub fn name(&self) -> &'static str {
        self.starter.workers.name()
    }

    /// How it is used.
    pub fn rules(&self) -> &WorkRules {
        self.starter.workers.rules()
    }

    /// How many workers there are at most.
    pub fn size(&self) -> usize {
        self.size
    }

    /// How many rows a call has.
    pub fn call_rows(&self) -> &CallRows {
        &self.call_rows
    }

    /// What the rows depend on beside the settings.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn code(&self) -> Result<Value> {
        self.starter.code()
    }

    /// What runs the code of its workers, once one has started, if it says so.
    pub fn interpreter(&self) -> Option<&str> {
        self.starter.interpreter.get()?.as_deref()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a worker, unless there is one: whatever keeps the step from working is known then.
    ///
    /// # Errors
    /// If it cannot be started, or there is too little memory for all of them.
    pub async fn begin(&self) -> Result<()> {
        self.keep_memory()?;
        if self.idle().is_empty() {
            let worker = self.starter.start().await?;
            self.idle().push(worker);
        }
        Ok(())
    }

    /// Keeps memory for the workers, if the job says how much they may take.
    fn keep_memory(&self) -> Result<()> {
        let Some(each) = self.rules().memory else { return Ok(()) };
        let words = match self.size {
            1 => format!("a process of up to {}", Size(each)),
            count => format!("{count} processes of up to {} each", Size(each)),
        };
        let _ =
            self.kept.set(self.starter.processes.keep(self.step(), each.saturating_mul(self.size as u64), &words)?);
        Ok(())
    }

    /// `error` of a worker, which may have repeated what it was started with.
    fn shown(&self, error: Error) -> Error {
        self.starter.shown(error)
    }

    fn growth(&self) -> MutexGuard<'_, Growth> {
        self.growth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a worker is free. If none is, another one is started, as long as there may be more.
    async fn free(&self) -> Result<SemaphorePermit<'_>> {
        if let Ok(permit) = self.permits.try_acquire() {
            return Ok(permit);
        }
        let _waiting = Waiting::begin(&self.waiting);
        if self.is_open.load(Ordering::SeqCst) {
            self.grow();
        }
        let permit = self.permits.acquire().await;
        permit.map_err(|_| self.growth().failed.clone().unwrap_or_else(|| Error::internal("the workers have ended")))
    }

    /// Starts another worker beside the calls, unless there are all.
    fn grow(&self) {
        let mut growth = self.growth();
        if growth.more + 1 >= self.size || growth.failed.is_some() {
            return;
        }
        growth.more += 1;
        let (starter, pool) = (Arc::clone(&self.starter), Weak::clone(&self.own));
        growth.tasks.push(SpawnedTask::spawn(async move {
            let started = starter.unless_stopped(starter.start()).await;
            if let Some(pool) = pool.upgrade() {
                pool.join(started);
            }
        }));
    }

    fn join(&self, started: Result<Idle>) {
        match started {
            Ok(worker) => {
                self.idle().push(worker);
                self.growth().joined += 1;
                self.permits.add_permits(1);
            }
            Err(error) => {
                self.growth().failed = Some(error);
                self.permits.close();
            }
        }
    }

    /// What a worker gives for `batch`, as [`Worker::call`] says; waits for one that is idle. With `fresh` it is a new
    /// one. With `watched` it says at which row it is. The inner error is that of a worker which has failed at it and
    /// has ended.
    ///
    /// # Errors
    /// If no worker can be started.
    pub async fn call(
        &self,
        batch: &RecordBatch,
        ends: &[usize],
        fresh: bool,
        watched: bool,
    ) -> Result<Result<Answer, Failed>> {
        let _permit = self.free().await?;
        let busy = Busy(&self.counters, Instant::now());
        let idle = self.idle().pop();
        let mut worker = match idle {
            Some(worker) if !fresh => worker,
            replaced => {
                // What it has answered may be wrong all the same.
                if let Some(replaced) = replaced
                    && let Err(error) = self.ended(replaced).await
                    && error.kind() == ErrorKind::Refused
                {
                    return Err(error);
                }
                self.starter.start().await?
            }
        };
        if watched {
            worker.worker.watch();
        }
        match self.called(&mut worker, batch, ends).await {
            Err(error) if matches!(error.kind(), ErrorKind::Refused | ErrorKind::Memory) => Err(error),
            Err(error) => {
                self.counters.add_restart(busy.1.elapsed());
                Ok(Err(Failed { error, at: worker.worker.at() }))
            }
            Ok(mut answer) => {
                self.idle().push(worker);
                for failure in &mut answer.failures {
                    failure.error = self.shown(failure.error.clone());
                }
                Ok(Ok(answer))
            }
        }
    }

    /// No more rows follow: looks whether the workers agree.
    ///
    /// # Errors
    /// If one has given more than it was asked for, says that it has failed, or does not end in time.
    pub async fn finish(&self) -> Result<()> {
        self.growth().tasks.clear();
        let idle = std::mem::take(&mut *self.idle());
        futures::future::try_join_all(idle.into_iter().map(|idle| self.ended(idle))).await.map(drop)
    }

    /// Has a worker end.
    async fn ended(&self, mut idle: Idle) -> Result<()> {
        let time = self.rules().timeout.unwrap_or(LONGEST_END);
        let ended = tokio::time::timeout(time, idle.worker.finish()).await.unwrap_or_else(|_| {
            let what = format!("the {} worker has not ended within {}", self.name(), Time(time));
            Err(Error::data(what).hint("it has to end when there are no more rows to read; raise `timeout`"))
        });
        ended.map_err(|error| self.shown(error).in_step(self.step()))
    }

    /// Passes `rows` through a worker, as [`Worker::pass`] says. It counts as none of those that calls wait for: how
    /// long it takes depends on who gives the rows and who wants them.
    ///
    /// # Errors
    /// If no worker can be started; those of the worker.
    pub async fn pass(&self, rows: RowStream, given: &dyn GivenRows) -> Result<()> {
        // There is no second try, so it is one that cannot have ended since its last batch.
        let idle = if self.rules().per == Per::Stream { self.idle().pop() } else { None };
        let mut worker = match idle {
            Some(worker) => worker,
            None => self.starter.start().await?,
        };
        let signs = Arc::new(Signs::new(&self.counters));
        let seen = Arc::clone(&signs);
        let rows = stream::unfold(rows, move |mut rows| {
            let seen = Arc::clone(&seen);
            async move {
                let begun = Instant::now();
                let next = seen.while_others_work(rows.next()).await;
                seen.counters.add_waiting_input(begun.elapsed());
                Some((next?, rows))
            }
        });
        let given = SeenRows { given, signs: &signs };
        let measure = worker.worker.measure();
        let Idle { worker: own, measured } = &mut worker;
        let pass = own.pass(rows.boxed(), &given);
        self.watched(pass, measure, measured, || signs.last()).await?;
        // One that has seen the end of a stream has no more to do.
        let done = if self.rules().per == Per::Stream { Some(worker) } else { self.keep_idle(worker) };
        match done {
            Some(worker) => self.ended(worker).await,
            None => Ok(()),
        }
    }

    /// Keeps `worker` for the next call, unless there are as many as there may be.
    fn keep_idle(&self, worker: Idle) -> Option<Idle> {
        let there = 1 + self.growth().joined;
        let (mut idle, at_work) = (self.idle(), there.saturating_sub(self.permits.available_permits()));
        if idle.len() + at_work >= there {
            return Some(worker);
        }
        idle.push(worker);
        None
    }

    async fn called(&self, worker: &mut Idle, batch: &RecordBatch, ends: &[usize]) -> Result<Answer> {
        let Idle { worker, measured } = worker;
        let (measure, asked) = (worker.measure(), Instant::now());
        let answer = self.watched(worker.call(batch, ends), measure, measured, || Some(asked));
        tokio::pin!(answer);
        let answer = match self.is_open.load(Ordering::Relaxed) {
            true => answer.await,
            false => match tokio::time::timeout(QUICK, &mut answer).await {
                Ok(answer) => answer,
                Err(_) => {
                    self.open();
                    answer.await
                }
            },
        };
        if answer.is_ok() {
            self.call_rows.learn(batch.num_rows(), asked.elapsed());
        }
        if self.call_rows.are_most() {
            self.open();
        }
        answer
    }

    /// Has all workers work that calls wait for, now and later.
    fn open(&self) {
        if !self.is_open.swap(true, Ordering::SeqCst) {
            (0..self.waiting.load(Ordering::SeqCst)).for_each(|_| self.grow());
        }
    }

    /// Waits for `work`, within the time since `last`, the memory of a worker, and that of the run.
    async fn watched<T>(
        &self,
        work: impl Future<Output = Result<T>>,
        measure: Box<dyn Fn() -> u64 + Send + Sync>,
        measured: &mut Instant,
        last: impl Fn() -> Option<Instant>,
    ) -> Result<T> {
        let done = self.starter.within_memory(self.within_rules(work, measure, measured, last)).await;
        done.map_err(|error| self.shown(error))
    }

    /// Waits for `work`, unless the run ends early.
    pub async fn unless_stopped<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.starter.unless_stopped(work).await
    }

    /// Waits for `work`, within the time since `last` and within the memory of a worker.
    async fn within_rules<T>(
        &self,
        work: impl Future<Output = Result<T>>,
        measure: Box<dyn Fn() -> u64 + Send + Sync>,
        measured: &mut Instant,
        last: impl Fn() -> Option<Instant>,
    ) -> Result<T> {
        let WorkRules { timeout, memory, .. } = *self.rules();
        if timeout.is_none() && memory.is_none() {
            return work.await;
        }
        tokio::pin!(work);
        loop {
            let since = last();
            let left =
                timeout.map(|timeout| timeout.saturating_sub(since.map_or(Duration::ZERO, |last| last.elapsed())));
            let next = memory.map(|_| MEASURE_EVERY.saturating_sub(measured.elapsed()));
            let pause = [left, next].into_iter().flatten().min().unwrap_or(MEASURE_EVERY);
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = tokio::time::sleep(pause.max(LEAST_PAUSE)) => {}
            }
            if let (Some(timeout), Some(last)) = (timeout, last())
                && last.elapsed() >= timeout
            {
                let what = format!("the {} worker has not answered within {}", self.name(), Time(timeout));
                return Err(Error::data(what).hint("raise `timeout`, or see what the code waits for"));
            }
            let Some(limit) = memory.filter(|_| measured.elapsed() >= MEASURE_EVERY) else { continue };
            let bytes = measure();
            *measured = Instant::now();
            if bytes > limit {
                let what = format!("the {} worker takes more memory than it may", self.name());
                return Err(Error::data(what)
                    .cause(format!("it has {}, and `memory` is {}", Size(bytes), Size(limit)))
                    .hint("raise `memory`, or have the code keep less"));
            }
        }
    }
}

impl Starter {
    /// What the rows depend on beside the settings.
    fn code(&self) -> Result<Value> {
        match self.code.get() {
            Some(code) => Ok(code.clone()),
            None => self.workers.fingerprint(&self.context.folder),
        }
    }

    async fn start(&self) -> Result<Idle> {
        self.started().await.map_err(|error| self.shown(error))
    }

    /// `error` of a worker, which may have repeated what it was started with.
    fn shown(&self, error: Error) -> Error {
        self.context.secrets.hidden_in(error)
    }

    async fn started(&self) -> Result<Idle> {
        let start = self.within_memory(self.workers.start(&self.takes, &self.context));
        tokio::pin!(start);
        let started = match tokio::time::timeout(LONG_START, &mut start).await {
            Ok(started) => Ok(started),
            Err(_) => {
                let most = Time(LONGEST_START);
                (self.context.lines)(&format!("its code has not loaded for {}; it may take {most}", Time(LONG_START)));
                tokio::time::timeout(LONGEST_START.saturating_sub(LONG_START), start).await
            }
        };
        let started = started.unwrap_or_else(|_| {
            let what = format!("the {} worker has not started within {}", self.workers.name(), Time(LONGEST_START));
            Err(Error::refused(what).hint("what does the code do when it is loaded?"))
        });
        let worker = started?;
        // What it has loaded may be most of what it ever holds.
        worker.measure()();
        self.within_memory(std::future::ready(Ok(()))).await?;
        // What was loaded before may have changed since, but not what is loaded after.
        let code = self.workers.fingerprint(&self.context.folder)?;
        if *self.code.get_or_init(|| code.clone()) != code {
            let what = format!("the code of `{}` has changed since the run began", self.context.step);
            return Err(Error::refused(what).hint("run it again: rows of two versions would be mixed"));
        }
        let _ = self.interpreter.set(worker.interpreter().map(str::to_owned));
        Ok(Idle { worker, measured: Instant::now() })
    }

    /// Waits for `work`, unless the run ends early.
    async fn unless_stopped<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.processes.stopped() => Err(Error::new(ErrorKind::Interrupted, "the run has ended")),
            done = work => done,
        }
    }

    /// Waits for `work`, unless the processes of the run hold too much memory before.
    async fn within_memory<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            error = self.processes.too_much() => Err(error),
            done = work => done,
        }
    }
}

/// When a worker that rows are passed through was last seen to work.
struct Signs {
    counters: Arc<Step>,
    seen: Mutex<Seen>,
}

struct Seen {
    last: Instant,
    /// How many wait for others: for rows to pass on, or for room for those that it gives.
    waits: usize,
}

impl Signs {
    fn new(counters: &Arc<Step>) -> Self {
        Signs { counters: Arc::clone(counters), seen: Mutex::new(Seen { last: Instant::now(), waits: 0 }) }
    }

    /// When it was last seen to work; `None` while it cannot be its fault that nothing happens.
    fn last(&self) -> Option<Instant> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        (seen.waits == 0).then_some(seen.last)
    }

    fn changed(&self, change: impl FnOnce(&mut usize)) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, was_busy) = (Instant::now(), seen.waits == 0);
        if was_busy {
            self.counters.add_busy(now.duration_since(seen.last));
        }
        change(&mut seen.waits);
        seen.last = now;
    }

    /// Waits for `work` of others.
    async fn while_others_work<T>(&self, work: impl Future<Output = T>) -> T {
        self.changed(|waits| *waits += 1);
        let done = work.await;
        self.changed(|waits| *waits -= 1);
        done
    }
}

impl Drop for Signs {
    fn drop(&mut self) {
        self.changed(|_| {});
    }
}

/// Takes rows, and sees that there are some.
struct SeenRows<'a> {
    given: &'a dyn GivenRows,
    signs: &'a Signs,
}

#[async_trait]
impl GivenRows for SeenRows<'_> {
    fn wanted(&self) -> Option<&[usize]> {
        self.given.wanted()
    }

    async fn take(&self, rows: RecordBatch) -> Result<()> {
        self.signs.while_others_work(self.given.take(rows)).await
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("step", &self.step())
            .field("workers", &self.starter.workers)
            .finish_non_exhaustive()
    }
}
