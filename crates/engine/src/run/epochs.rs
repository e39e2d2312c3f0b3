//! A run that reads a queue: it works in epochs until it is to end, each of which all sinks commit before its messages
//! are acknowledged. While one epoch is written, the next one is gathered and parsed.
//!
//! ```text
//!  consumer ─batches─▶ open epoch ─full─▶ closed epoch ─rows, moves─▶ each sink ─all committed─▶ acknowledge
//!                      (parsed meanwhile)
//! ```

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use millstream_core::positions::Positions;
use millstream_core::queue::{Consumer, Event as QueueEvent, Joining, MessageBatch, Queue, SinkSet};
use millstream_core::sink::Delivered;
use millstream_core::{Error, ErrorKind, Result, fail_point};
use millstream_job::around::{CommitKeys, Until, UntilEmpty, UntilEnd, UntilRows, UntilTime};
use millstream_job::{Job, SinkStep};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;

use super::commit::{Committed, Entries, Summary};
use super::work::{Work, interruption};
use crate::chunks::epochs::{EpochLoad, PAUSES, Waits};
use crate::chunks::group::ChunkRows;
use crate::chunks::load::{ChunkLoad, Commits};
use crate::chunks::pipeline::{Pipeline, row_preserving};
use crate::chunks::references::References;
use crate::failure::Failure;
use crate::options::Cancel;
use crate::plan::lookup::lookups;
use crate::report::SinkResult;

/// How long a queue has to be empty for `until: empty`.
const QUIET: Duration = Duration::from_secs(5);

/// The most sinks that take the rows of a queue: a batch has a bit for each.
const MOST_SINKS: usize = SinkSet::BITS as usize;

/// The most messages of a batch: so the epoch that is gathered ends where it has to.
const BATCH_MESSAGES: usize = 10_000;

/// How often the run takes note of how far the queue is behind.
const LOOKS: Duration = Duration::from_millis(500);

/// What happens to a queue or a target during a run, for the observer.
pub(super) enum Heard {
    /// An entry waits for its queue or target, for this reason.
    Away { of: String, error: Error },
    /// What an entry has waited for is there again.
    Back { of: String },
    /// The queue has lost messages.
    Gap { error: Error },
}

/// Reports it to the observer.
pub(super) type Tell = Arc<dyn Fn(Heard) + Send + Sync>;

/// Whether `job` reads a queue.
pub(super) fn reads_queue(job: &Job) -> bool {
    job.sources.iter().any(|source| source.queue().is_some())
}

/// Whether a run of `job` that ends with `failure` has ended as it was meant to: a service is stopped by a signal.
pub(super) fn ends_well(job: &Job, failure: &Failure) -> bool {
    let is_stop = |error: &Error| error.kind() == ErrorKind::Interrupted;
    is_service(job) && !failure.errors.is_empty() && failure.errors.iter().all(is_stop)
}

/// Whether `job` reads a queue until it is stopped.
pub(super) fn is_service(job: &Job) -> bool {
    matches!(job.around.until, Some(Until::End(UntilEnd::Stopped)))
}

/// Does `work`, as often as it takes while the queue or a target is away, if `job` is a service: it may start before
/// they do.
pub(super) async fn once_there<T>(
    job: &Job,
    tell: &Tell,
    cancel: &Cancel,
    work: impl AsyncFn() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (mut pause, mut away) = (PAUSES.0, None);
    loop {
        let done = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(interruption().into()),
            done = work() => done,
        };
        let failure = match done {
            Err(failure) if is_service(job) && is_away(&failure) => failure,
            done => {
                away.into_iter().for_each(|of| (tell)(Heard::Back { of }));
                return done;
            }
        };
        if let (None, Some(error)) = (&away, failure.errors.first()) {
            let of = error.step_name().unwrap_or_default().to_owned();
            (tell)(Heard::Away { of: of.clone(), error: error.clone() });
            away = Some(of);
        }
        let _ = tokio::time::timeout(pause, cancel.cancelled()).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// Whether everything that is wrong may pass.
fn is_away(failure: &Failure) -> bool {
    let may_pass = |error: &Error| error.kind() == ErrorKind::Transient;
    failure.lints.is_empty() && !failure.errors.is_empty() && failure.errors.iter().all(may_pass)
}

/// Messages that are committed together.
#[derive(Default)]
struct Epoch {
    batches: Vec<Arc<MessageBatch>>,
    /// For each sink the rows of each batch, as they are parsed.
    rows: Vec<Vec<JoinHandle<Result<Vec<ChunkRows>>>>>,
    messages: u64,
    bytes: u64,
    /// When its first batch came.
    begun: Option<Instant>,
}

impl Epoch {
    fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    fn sinks(&self) -> Option<SinkSet> {
        self.batches.first().map(|batch| batch.sinks)
    }

    fn is_full(&self, commit: &CommitKeys) -> bool {
        self.messages >= commit.rows || self.bytes >= commit.bytes.0
    }

    /// When it is committed, whatever is in it.
    fn deadline(&self, commit: &CommitKeys) -> Option<Instant> {
        self.begun.map(|begun| begun + commit.every.0)
    }

    fn numbers(&self) -> Vec<u64> {
        self.batches.iter().map(|batch| batch.number).collect()
    }

    /// Drops those of its batches that have these numbers: how many messages they had.
    async fn drop_batches(&mut self, numbers: &[u64], sinks: &[EpochSink<'_>]) -> u64 {
        let had = self.messages;
        for index in (0..self.batches.len()).rev().filter(|_| !numbers.is_empty()) {
            if !numbers.contains(&self.batches[index].number) {
                continue;
            }
            let batch = self.batches.remove(index);
            self.messages -= batch.messages.len() as u64;
            self.bytes -= batch.messages.text().len() as u64;
            for (sink, rows) in sinks.iter().zip(&mut self.rows).filter(|(_, rows)| !rows.is_empty()) {
                if let Ok(Ok(rows)) = rows.remove(index).await {
                    sink.load.drop_rows(&rows);
                }
            }
        }
        if self.is_empty() {
            self.begun = None;
        }
        had - self.messages
    }
}

/// A sink of a run that reads a queue.
struct EpochSink<'j> {
    sink: &'j SinkStep,
    load: Arc<EpochLoad>,
}

/// What the sinks have done with an epoch.
struct Done {
    batches: Vec<u64>,
    messages: u64,
    /// By the number of the sink; `None` if its target was away when the run was to end.
    results: Vec<(usize, Result<Option<Delivered>>)>,
}

/// A run that reads a queue.
struct Consuming<'w, 'j> {
    work: Work<'w, 'j>,
    tell: Tell,
    sinks: Vec<EpochSink<'j>>,
    consumer: Box<dyn Consumer>,
    commit: CommitKeys,
    /// When it is to be seen next how far the queue is behind.
    next_look: Instant,
    end: End,
    open: Epoch,
    /// What is committed as soon as the epoch before it is.
    closed: Option<Epoch>,
    /// A batch that goes to other sinks than the open epoch.
    apart: Option<MessageBatch>,
    /// The epoch that is being written: an error elsewhere ends that. Commits that have begun come to their end.
    deliveries: Vec<AbortHandle>,
}

/// When the run ends.
struct End {
    until: Until,
    /// Messages that may still come.
    left: u64,
    /// When the time is over.
    time: Option<Instant>,
    /// Since when the queue has been empty.
    empty: Option<Instant>,
    /// Nothing more is read.
    is_reached: bool,
    /// It was stopped by a signal.
    is_stopped: bool,
}

impl End {
    fn new(until: Until) -> Self {
        let left = if let Until::Rows(UntilRows { rows }) = until { rows } else { u64::MAX };
        let time = if let Until::For(UntilTime { r#for }) = until { Some(Instant::now() + r#for.0) } else { None };
        End { until, left, time, empty: None, is_reached: false, is_stopped: false }
    }

    fn quiet(&self) -> Option<Duration> {
        match self.until {
            Until::End(UntilEnd::Empty) => Some(QUIET),
            Until::Empty(UntilEmpty { empty }) => Some(empty.0),
            _ => None,
        }
    }

    /// When the queue has been empty for long enough, if it stays so.
    fn is_quiet_at(&self) -> Option<Instant> {
        self.quiet().zip(self.empty).map(|(quiet, since)| since + quiet)
    }

    /// So many messages came.
    fn came(&mut self, messages: u64) {
        if messages > 0 {
            self.empty = None;
        }
        self.left = self.left.saturating_sub(messages);
        self.is_reached |= self.left == 0;
    }

    /// So many messages that had come were dropped: they come again, to this process or another.
    fn lost(&mut self, messages: u64) {
        if messages == 0 {
            return;
        }
        self.empty = None;
        self.left = self.left.saturating_add(messages);
        self.is_reached = self.is_stopped || self.time.is_some_and(|time| time <= Instant::now());
    }

    fn is_of_signals(&self) -> bool {
        matches!(self.until, Until::End(UntilEnd::Stopped))
    }
}

/// Reads the queue of the job until it is to end.
pub(super) async fn run(work: Work<'_, '_>, tell: Tell) -> Result<Committed, Failure> {
    let until = work.job.around.until.ok_or_else(|| Error::internal("a job that reads a queue has no `until`"))?;
    let mut consuming = Consuming::begin(work, tell, until).await?;
    let ended = consuming.until_end().await;
    let Consuming { sinks, consumer, end, deliveries, .. } = consuming;
    deliveries.iter().for_each(AbortHandle::abort);
    let left = consumer.leave().await;
    for EpochSink { load, .. } in &sinks {
        load.end_commits().await;
    }
    ended?;
    left?;
    if end.is_stopped && !end.is_of_signals() {
        let what = "the run was stopped before its end; messages that it had not committed come again";
        return Err(Error::new(ErrorKind::Interrupted, what).hint("start it again with the same command").into());
    }
    let results = sinks.iter().map(|sink| sink.result()).collect::<Result<Vec<SinkResult>>>()?;
    work.run.rejects.judge_all()?;
    let summary = Summary { run: work.point.run.clone(), results, ..Summary::default() };
    Ok(Committed { summary, entries: Entries::default() })
}

impl EpochSink<'_> {
    fn result(&self) -> Result<SinkResult> {
        Ok(SinkResult {
            sink: self.sink.name.value.clone(),
            target: self.sink.sink.target(),
            summary: self.load.summary(),
            removed: None,
            reloaded: None,
            changes: None,
            tally: Some(self.load.tally()?),
        })
    }
}

/// The one pipeline to `sink`, which begins at the queue `name`.
fn pipeline_of(
    sink: &SinkStep,
    name: &str,
    plan: &Arc<dyn datafusion::physical_plan::ExecutionPlan>,
) -> Result<Pipeline> {
    let refused = |why: String| {
        let what = format!(
            "`{}` is a queue, which has no end, and `{}` cannot take its rows one by one",
            name, sink.name.value
        );
        Error::job(what).cause(why).hint("use filters, expressions, lookups and own code that takes single rows")
    };
    let mut pipelines = row_preserving(plan).map_err(refused)?;
    match pipelines.len() {
        1 if pipelines[0].read().source() == name => Ok(pipelines.remove(0)),
        1 => Err(refused(format!("it reads `{}`, which is no queue", pipelines[0].read().source()))),
        _ => Err(refused("its rows come on several ways".to_owned())),
    }
}

impl<'w, 'j> Consuming<'w, 'j> {
    async fn begin(work: Work<'w, 'j>, tell: Tell, until: Until) -> Result<Self, Failure> {
        let Work { run, job, prepared, point, .. } = work;
        let source = job.sources.iter().find(|source| source.queue().is_some());
        let source = source.ok_or_else(|| Error::internal("the job reads no queue"))?;
        let name = source.name.value.as_str();
        let queue = source.queue().ok_or_else(|| Error::internal("the job reads no queue"))?;
        let queue = queue.map_err(|fault| Error::job(fault.what).in_step(name))?;
        if job.sinks.len() > MOST_SINKS {
            return Err(Error::job(format!("a queue feeds at most {MOST_SINKS} sinks")).in_step(name).into());
        }
        let physical = prepared.plan_sinks(job).await?;
        for lookup in physical.plans().flat_map(lookups) {
            let context = run.session.task_ctx();
            let ready = lookup.shared().ready(lookup.reference(), &context);
            work.unless_interrupted(ready.map(|ready| ready.map(drop))).await?;
        }
        let process = process_name();
        let (mut sinks, mut positions) = (Vec::new(), Vec::new());
        for (sink, root) in job.sinks.iter().zip(&physical.roots) {
            let pipeline = pipeline_of(sink, name, &root.plan)?;
            let own = async || {
                let own = positions_of(work, sink, queue.as_ref(), &process).await;
                own.map_err(|error| error.in_step(&sink.name.value).into())
            };
            let own = once_there(job, &tell, work.cancel, own).await?;
            let load = EpochLoad::new(Arc::clone(&own), Arc::clone(&queue), &process, |ledger| ChunkLoad {
                name: sink.name.value.clone(),
                notes_rejects_of: None,
                pipelines: vec![pipeline],
                ledger,
                step: run.steps.add(&sink.name.value, millstream_core::StepKind::Load, sink.sink.name()),
                budget: Arc::clone(&run.budget),
                context: run.session.task_ctx(),
                workers: run.runtimes.workers(),
                accept_changed: false,
                rejects: Arc::clone(&run.rejects),
                fingerprint: None,
                references: References::default(),
                progress: None,
                commits: Commits::default(),
                scratch: run.scratch.folder().to_owned(),
                is_staged: false,
            });
            sinks.push(EpochSink { sink, load: Arc::new(load) });
            positions.push(Some(own));
        }
        point.loading(job, prepared, work.live, &std::collections::BTreeMap::new())?;
        let step = run.steps.add(name, millstream_core::StepKind::Fetch, "queue");
        let (budget, io) = (Arc::clone(&run.budget), run.runtimes.io());
        let joining = Joining { process, positions, budget, step, io };
        let join = async || queue.join(joining.clone()).await.map_err(|error| error.in_step(name).into());
        let consumer = once_there(job, &tell, work.cancel, join).await?;
        run.monitor.reads_queue();
        Ok(Consuming {
            work,
            tell,
            sinks,
            consumer,
            commit: job.around.commit,
            next_look: Instant::now(),
            end: End::new(until),
            open: Epoch::default(),
            closed: None,
            apart: None,
            deliveries: Vec::new(),
        })
    }

    /// Works until the end is reached, and everything that was read is committed.
    async fn until_end(&mut self) -> Result<()> {
        let mut writing: Option<BoxFuture<'static, Done>> = None;
        let cancel = self.work.cancel.clone();
        let cancelled = cancel.cancelled().fuse();
        tokio::pin!(cancelled);
        loop {
            self.look();
            if self.must_close() {
                self.closed = Some(std::mem::take(&mut self.open));
                if let Some(batch) = self.apart.take() {
                    self.add(batch);
                }
            }
            if writing.is_none()
                && let Some(epoch) = self.closed.take()
            {
                writing = self.write(epoch).await?;
                continue;
            }
            let is_idle = writing.is_none() && self.open.is_empty() && self.apart.is_none();
            if self.end.is_reached && is_idle {
                self.work.run.monitor.note_lag(self.consumer.lag());
                return Ok(());
            }
            let reads = !self.end.is_reached && self.closed.is_none() && self.apart.is_none();
            let room = usize::try_from(self.commit.rows.saturating_sub(self.open.messages).min(self.end.left));
            let room = room.unwrap_or(usize::MAX).clamp(1, BATCH_MESSAGES);
            let deadline = self.open.deadline(&self.commit).filter(|_| self.closed.is_none());
            let time = self.end.time.filter(|_| !self.end.is_reached);
            // What came while the process did not run is seen before the queue counts as empty.
            let quiet = self.end.is_quiet_at().filter(|_| !self.end.is_reached);
            tokio::select! {
                biased;
                done = async { writing.as_mut().expect("it is written").await }, if writing.is_some() => {
                    writing = None;
                    self.written(done).await?;
                }
                () = &mut cancelled, if !self.end.is_stopped => {
                    self.end.is_stopped = true;
                    self.end.is_reached = true;
                }
                () = sleep_until(deadline), if deadline.is_some() => {
                    self.closed = Some(std::mem::take(&mut self.open));
                }
                () = sleep_until(time), if time.is_some() => self.end.is_reached = true,
                event = self.consumer.next(room), if reads => self.happens(event?).await?,
                () = sleep_until(quiet), if quiet.is_some() => self.end.is_reached = true,
                () = tokio::time::sleep_until(self.next_look) => {}
            }
        }
    }

    /// Takes note from time to time of how far the queue is behind.
    fn look(&mut self) {
        if self.next_look <= Instant::now() {
            self.next_look = Instant::now() + LOOKS;
            self.work.run.monitor.note_lag(self.consumer.lag());
        }
    }

    /// Whether the open epoch is committed now.
    fn must_close(&self) -> bool {
        let is_due = self.end.is_reached || self.apart.is_some() || self.open.is_full(&self.commit);
        self.closed.is_none() && !self.open.is_empty() && is_due
    }

    async fn happens(&mut self, event: QueueEvent) -> Result<()> {
        match event {
            QueueEvent::Messages(batch) => {
                self.end.came(batch.messages.len() as u64);
                self.work.run.monitor.came(batch.messages.len() as u64);
                match self.open.sinks() {
                    Some(sinks) if sinks != batch.sinks => self.apart = Some(batch),
                    _ => self.add(batch),
                }
            }
            QueueEvent::Revoked(numbers) => self.revoke(&numbers).await,
            QueueEvent::ReachedStart => self.end.is_reached |= matches!(self.end.until, Until::End(UntilEnd::Now)),
            QueueEvent::Empty => drop(self.end.empty.get_or_insert_with(Instant::now)),
            QueueEvent::Waiting(error) => (self.tell)(Heard::Away { of: self.source().to_owned(), error }),
            QueueEvent::Back(_) => (self.tell)(Heard::Back { of: self.source().to_owned() }),
            QueueEvent::Gap(error) => (self.tell)(Heard::Gap { error }),
        }
        Ok(())
    }

    fn source(&self) -> &str {
        let mut sources = self.work.job.sources.iter();
        sources.find(|source| source.queue().is_some()).map_or("", |source| source.name.value.as_str())
    }

    /// Adds a batch to the open epoch; it is parsed meanwhile.
    fn add(&mut self, batch: MessageBatch) {
        let batch = Arc::new(batch);
        self.open.rows.resize_with(self.sinks.len(), Vec::new);
        for (number, sink) in self.sinks.iter().enumerate().filter(|(number, _)| batch.sinks >> number & 1 == 1) {
            let (load, batch) = (Arc::clone(&sink.load), Arc::clone(&batch));
            let parsing = self.work.run.runtimes.workers().spawn(async move { load.read(&batch).await });
            self.open.rows[number].push(parsing);
        }
        self.open.messages += batch.messages.len() as u64;
        self.open.bytes += batch.messages.text().len() as u64;
        self.open.begun.get_or_insert_with(Instant::now);
        self.open.batches.push(batch);
    }

    /// Drops batches of epochs that are not being written yet.
    async fn revoke(&mut self, numbers: &[u64]) {
        let mut lost = self.open.drop_batches(numbers, &self.sinks).await;
        if let Some(closed) = &mut self.closed {
            lost += closed.drop_batches(numbers, &self.sinks).await;
        }
        self.closed = self.closed.take().filter(|epoch| !epoch.is_empty());
        if let Some(batch) = self.apart.take_if(|batch| numbers.contains(&batch.number)) {
            lost += batch.messages.len() as u64;
        }
        self.end.lost(lost);
    }

    /// Begins to write an epoch into all sinks that lack it; without the batches that were dropped since it was closed,
    /// which nothing would move behind.
    async fn write(&mut self, mut epoch: Epoch) -> Result<Option<BoxFuture<'static, Done>>> {
        let dropped: Vec<u64> = epoch.numbers().into_iter().filter(|batch| !self.consumer.has(*batch)).collect();
        let lost = epoch.drop_batches(&dropped, &self.sinks).await;
        self.end.lost(lost);
        if epoch.is_empty() {
            return Ok(None);
        }
        let messages = epoch.messages;
        self.deliveries.clear();
        let (numbers, sinks) = (epoch.numbers(), epoch.sinks().unwrap_or_default());
        let mut writing = Vec::new();
        for (number, parsing) in epoch.rows.into_iter().enumerate().filter(|(number, _)| sinks >> number & 1 == 1) {
            let mut rows = Vec::new();
            for parsed in parsing {
                rows.extend(parsed.await.map_err(|cause| Error::internal("parsing failed").cause(cause))??);
            }
            let moves = self.consumer.moves(number, &numbers);
            let load = Arc::clone(&self.sinks[number].load);
            let cancel = self.work.cancel.clone();
            let waits = Told { tell: Arc::clone(&self.tell), told: Mutex::new(false), cancel };
            let delivering = async move { load.deliver(rows, moves, &waits).await };
            let delivering = self.work.run.runtimes.workers().spawn(delivering);
            self.deliveries.push(delivering.abort_handle());
            writing.push(async move {
                let done = delivering.await;
                (number, done.unwrap_or_else(|cause| Err(Error::internal("writing failed").cause(cause))))
            });
        }
        Ok(Some(async move { Done { batches: numbers, messages, results: join_all(writing).await } }.boxed()))
    }

    /// All sinks have done what they could with an epoch.
    async fn written(&mut self, done: Done) -> Result<()> {
        let Done { batches, messages, results } = done;
        let (mut all, mut is_given_up, mut failed) = (true, false, None);
        for (sink, result) in results {
            match result {
                Ok(Some(Delivered::Written { .. })) => self.consumer.committed(sink, &batches).await?,
                Ok(Some(Delivered::Moved(positions))) => {
                    all = false;
                    self.consumer.moved(sink, &batches, positions).await?;
                }
                Ok(Some(Delivered::AlreadyDone(_))) => failed = Some(Error::internal("positions have no chunks")),
                Ok(None) => is_given_up = true,
                Err(error) => failed = Some(error),
            }
        }
        if is_given_up || failed.is_some() {
            self.consumer.give_back(&batches).await?;
            return failed.map_or(Ok(()), Err);
        }
        fail_point::pass("epoch.committed");
        if all {
            self.work.run.monitor.committed();
            return self.consumer.acknowledge(&batches).await;
        }
        self.end.lost(messages);
        Ok(())
    }
}

/// Waits until `moment`, if there is one.
async fn sleep_until(moment: Option<Instant>) {
    tokio::time::sleep_until(moment.unwrap_or_else(Instant::now)).await;
}

/// Where `sink` keeps how far the queue is read.
async fn positions_of(
    work: Work<'_, '_>,
    sink: &SinkStep,
    queue: &dyn Queue,
    process: &str,
) -> Result<Arc<dyn Positions>> {
    let none = || {
        Error::job(format!("`{}` cannot take rows of a queue", sink.name.value))
            .cause("its target or its mode keeps no positions, in the transaction of the rows")
            .hint("write to a table of a database, with `mode: append`, `merge` or `ignore`")
    };
    if !sink.sink.may_keep_positions() {
        return Err(none());
    }
    let schema = work.prepared.sink_columns(sink).ok_or_else(|| Error::internal("the columns are not known"))?;
    let context = millstream_core::sink::LoadContext { schema, ..work.point.looking(work.run, sink) };
    let load = work.point.load_of_queue(sink, &queue.shown(), queue.group());
    sink.sink.positions(&load, process, context).await?.ok_or_else(none)
}

/// The name of a process that joins a group: 16 hexadecimal digits.
fn process_name() -> String {
    // Its keys are random.
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// Reports that a target is away, once.
struct Told {
    tell: Tell,
    told: Mutex<bool>,
    cancel: Cancel,
}

#[async_trait]
impl Waits for Told {
    fn waiting(&self, sink: &str, error: &Error) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *told, true) {
            (self.tell)(Heard::Away { of: sink.to_owned(), error: error.clone() });
        }
    }

    fn back(&self, sink: &str) {
        if *self.told.lock().unwrap_or_else(PoisonError::into_inner) {
            (self.tell)(Heard::Back { of: sink.to_owned() });
        }
    }

    async fn pause(&self, pause: Duration) -> bool {
        tokio::time::timeout(pause, self.cancel.cancelled()).await.is_ok()
    }
}
