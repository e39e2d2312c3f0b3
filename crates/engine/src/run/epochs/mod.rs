//! A run that reads a queue: it works in epochs until it is to end, each of which all sinks commit before its messages
//! are acknowledged. While one epoch is committed, the rows of the next one are sent, and the one behind it is gathered
//! and parsed.
//!
//! ```text
//!  consumer ─batches─▶ open epoch ─full─▶ closed epoch ─rows, moves─▶ each sink ─all committed─▶ acknowledge
//!                      (parsed meanwhile)
//! ```

mod chores;
mod epoch;
mod known;
mod parts;
mod until;
mod writing;

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use millstream_core::epochs::{EpochTarget, QueueLoad};
use millstream_core::queue::{Consumer, Event as QueueEvent, Joining, MessageBatch, Queue};
use millstream_core::{Error, ErrorKind, Result, Step, StepKind};
use millstream_job::around::{CommitKeys, Until, UntilEnd};
use millstream_job::{Job, SinkStep, SourceStep};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::commit::{Committed, Entries, Summary};
use super::work::{Work, interruption};
use crate::chunks::each_epoch::EachEpoch;
use crate::chunks::epochs::{EpochLoad, PAUSES};
use crate::chunks::load::{ChunkLoad, Commits};
use crate::chunks::messages::MessageReader;
use crate::chunks::pipeline::Pipeline;
use crate::chunks::queue_plan::QueuePlan;
use crate::chunks::references::References;
use crate::failure::Failure;
use crate::options::Cancel;
use crate::plan::lookup::lookups;
use crate::read::sample::without_messages;
use chores::Chores;
use epoch::{Batch, Epoch, EpochSink};
use known::KnownLoad;
use until::End;
use writing::{Writing, written};

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

/// Whether the columns of the queue of `job` are declared, or can be inferred: it has messages.
///
/// # Errors
/// Of the kind [`ErrorKind::Transient`] if it has none now, or cannot be reached.
pub(super) async fn has_columns(job: &Job, io: &Handle) -> Result<(), Failure> {
    let is_declared = |source: &&SourceStep| source.format.as_ref().is_none_or(|format| format.declared().is_some());
    for source in job.sources.iter().filter(|source| !is_declared(source)) {
        let Some(Ok(queue)) = source.queue() else { continue };
        let messages = queue.sample(1, io).await.map_err(|error| error.in_step(&source.name.value))?;
        if messages.is_empty() {
            return Err(without_messages(queue.as_ref()).in_step(&source.name.value).into());
        }
    }
    Ok(())
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

/// A run that reads a queue.
struct Consuming<'w, 'j> {
    work: Work<'w, 'j>,
    tell: Tell,
    sinks: Vec<EpochSink<'j>>,
    reader: Arc<MessageReader>,
    consumer: Box<dyn Consumer>,
    commit: CommitKeys,
    /// When it is to be seen next how far the queue is behind.
    next_look: Instant,
    chores: Chores,
    end: End,
    open: Epoch,
    /// What is committed as soon as the epoch before it is.
    closed: Option<Epoch>,
    /// A batch that goes to other sinks than the open epoch.
    apart: Option<MessageBatch>,
    /// The epochs that are being written: the first one has its turn.
    writing: VecDeque<Writing>,
    /// How many epochs were written.
    epochs: u64,
}

/// Reads the queue of the job until it is to end.
pub(super) async fn run(work: Work<'_, '_>, tell: Tell) -> Result<Committed, Failure> {
    let until = work.job.around.until.ok_or_else(|| Error::internal("a job that reads a queue has no `until`"))?;
    let mut consuming = Consuming::begin(work, tell, until).await?;
    let ended = consuming.until_end().await;
    let Consuming { sinks, consumer, end, writing, .. } = consuming;
    // An error elsewhere ends what is being written. Commits that have begun come to their end.
    drop(writing);
    let left = consumer.leave().await;
    for EpochSink { load, known, .. } in &sinks {
        load.end_commits().await;
        known.ends().await;
    }
    ended?;
    left?;
    if end.is_stopped && !end.is_of_signals() {
        let what = "the run was stopped before its end; messages that it had not committed come again";
        return Err(Error::new(ErrorKind::Interrupted, what).hint("start it again with the same command").into());
    }
    let results = sinks.iter().map(|sink| sink.result()).collect::<Result<Vec<_>>>()?;
    if !is_service(work.job) {
        work.run.rejects.judge_all()?;
    }
    let summary = Summary { run: work.point.run.clone(), results, ..Summary::default() };
    Ok(Committed { summary, entries: Entries::default() })
}

impl<'w, 'j> Consuming<'w, 'j> {
    async fn begin(work: Work<'w, 'j>, tell: Tell, until: Until) -> Result<Self, Failure> {
        let Work { run, job, prepared, point, .. } = work;
        let physical = prepared.plan_sinks(job).await?;
        let plan = QueuePlan::new(job, &physical)?.ok_or_else(|| Error::internal("the job reads no queue"))?;
        let QueuePlan { name, queue, sinks: planned } = plan;
        for lookup in physical.plans().flat_map(lookups) {
            let context = run.session.task_ctx();
            let ready = lookup.shared().ready(lookup.reference(), &context);
            work.unless_interrupted(ready.map(|ready| ready.map(drop))).await?;
        }
        let process = process_name();
        let (mut sinks, mut positions, mut pipelines) = (Vec::new(), Vec::new(), Vec::new());
        for (sink, (pipeline, _)) in job.sinks.iter().zip(planned) {
            let step = run.steps.add(&sink.name.value, StepKind::Load, sink.sink.name());
            let target = async || {
                let target = target_of(work, sink, &queue, &process, &step).await;
                target.map_err(|error| error.in_step(&sink.name.value).into())
            };
            let (target, known) = once_there(job, &tell, work.cancel, target).await?;
            let load = EpochLoad::new(&target, |ledger| ChunkLoad {
                name: sink.name.value.clone(),
                notes_rejects_of: None,
                pipelines: vec![pipeline.clone()],
                ledger,
                step: Arc::clone(&step),
                budget: Arc::clone(&run.budget),
                context: run.session.task_ctx(),
                workers: run.runtimes.workers(),
                accept_changed: false,
                rejects: Arc::clone(&run.rejects),
                fingerprint: None,
                references: References::default(),
                progress: None,
                commits: Commits::new(target.epochs().connections()),
                scratch: run.scratch.folder().to_owned(),
                is_staged: false,
                by_workers: Arc::default(),
                bundle: None,
            });
            sinks.push(EpochSink { sink, load: Arc::new(load), known });
            positions.push(target.positions().cloned());
            pipelines.push(pipeline);
        }
        if point.options.restart && !sinks.iter().any(|sink| sink.known.begins_anew) {
            return Err(known::nothing_to_restart().into());
        }
        let reader = reader_of(work, &queue, &process, pipelines)?;
        point.loading(job, prepared, work.live, &std::collections::BTreeMap::new())?;
        let (budget, io) = (Arc::clone(&run.budget), run.runtimes.io());
        let joining = Joining { process, positions, budget, most: None, io };
        let join = async || queue.join(joining.clone()).await.map_err(|error| error.in_step(name).into());
        let consumer = once_there(job, &tell, work.cancel, join).await?;
        run.monitor.reads_queue();
        Ok(Consuming {
            work,
            tell,
            sinks,
            reader,
            consumer,
            commit: job.around.commit,
            next_look: Instant::now(),
            chores: Chores::begin(),
            end: End::new(until),
            open: Epoch::default(),
            closed: None,
            apart: None,
            writing: VecDeque::new(),
            epochs: 0,
        })
    }

    /// Works until the end is reached, and everything that was read is committed.
    async fn until_end(&mut self) -> Result<()> {
        let cancel = self.work.cancel.clone();
        let cancelled = cancel.cancelled().fuse();
        tokio::pin!(cancelled);
        loop {
            self.look()?;
            if self.must_close() {
                self.closed = Some(std::mem::take(&mut self.open));
                if let Some(batch) = self.apart.take() {
                    self.add(batch);
                }
            }
            if self.may_write()
                && let Some(epoch) = self.closed.take()
            {
                self.write(epoch).await;
                continue;
            }
            let is_idle = self.writing.is_empty() && self.open.is_empty() && self.apart.is_none();
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
                done = written(&mut self.writing), if !self.writing.is_empty() => self.written(done?).await?,
                () = &mut cancelled, if !self.end.is_stopped => {
                    self.end.is_stopped = true;
                    self.end.is_reached = true;
                    self.sinks.iter().for_each(|sink| sink.load.end_soon());
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

    /// Takes note from time to time of how far the queue is behind, and does what else is due.
    fn look(&mut self) -> Result<()> {
        if self.next_look > Instant::now() {
            return Ok(());
        }
        self.next_look = Instant::now() + LOOKS;
        self.work.run.monitor.note_lag(self.consumer.lag());
        self.chores.do_due(self.work)
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
        let MessageBatch { number, messages, sinks } = &batch;
        let (messages, bytes) = (messages.len() as u64, messages.text().len() as u64);
        self.open.batches.push(Batch { number: *number, messages, bytes, sinks: *sinks });
        self.open.messages += messages;
        self.open.bytes += bytes;
        self.open.begun.get_or_insert_with(Instant::now);
        let reader = Arc::clone(&self.reader);
        self.open.rows.push(self.work.run.runtimes.workers().spawn(async move { reader.read(batch).await }));
    }

    /// Drops batches of epochs that are not being written yet.
    async fn revoke(&mut self, numbers: &[u64]) {
        let mut lost = self.open.drop_batches(numbers, &self.reader, &self.sinks).await;
        if let Some(closed) = &mut self.closed {
            lost += closed.drop_batches(numbers, &self.reader, &self.sinks).await;
        }
        self.closed = self.closed.take().filter(|epoch| !epoch.is_empty());
        if let Some(batch) = self.apart.take_if(|batch| numbers.contains(&batch.number)) {
            lost += batch.messages.len() as u64;
        }
        self.end.lost(lost);
    }
}

/// Waits until `moment`, if there is one.
async fn sleep_until(moment: Option<Instant>) {
    tokio::time::sleep_until(moment.unwrap_or_else(Instant::now)).await;
}

/// What reads the queue for all sinks, whose pipelines these are.
fn reader_of(
    work: Work<'_, '_>,
    queue: &Arc<dyn Queue>,
    process: &str,
    mut pipelines: Vec<Pipeline>,
) -> Result<Arc<MessageReader>> {
    let (job, rejects) = (work.job, &work.run.rejects);
    let is_same = |pipeline: &Pipeline| std::ptr::eq(pipeline.read(), pipelines[0].read());
    if !pipelines.iter().all(is_same) {
        return Err(Error::internal("the sinks of a queue do not read it together"));
    }
    let wants_raw = job.sinks.iter().any(|sink| rejects.of_sink(&sink.name.value).is_some()) || rejects.is_lenient();
    let first = &job.sinks[0].name.value;
    let reader =
        MessageReader::new(pipelines.swap_remove(0), Arc::clone(queue), process, first, Arc::clone(rejects), wants_raw);
    Ok(Arc::new(reader))
}

/// How `sink` takes the epochs of `source`, and what is known of their load.
async fn target_of(
    work: Work<'_, '_>,
    sink: &SinkStep,
    source: &Arc<dyn Queue>,
    process: &str,
    step: &Arc<Step>,
) -> Result<(EpochTarget, KnownLoad)> {
    let schema = work.prepared.sink_columns(sink).ok_or_else(|| Error::internal("the columns are not known"))?;
    let programs = work.prepared.programs(&sink.name.value);
    let looking = work.point.looking_as(work.run, sink, Arc::clone(step));
    let context = millstream_core::sink::LoadContext { schema, programs, ordered: true, ..looking };
    let queue = source.facts();
    let load = work.point.load_of_queue(sink, &queue.name, &queue.group);
    let load = QueueLoad { load, owner: process.to_owned(), queue, source: Arc::clone(source) };
    let each = || EpochTarget::AtLeastOnce(Arc::new(EachEpoch::new(Arc::clone(&sink.sink), context.clone())));
    let target = sink.sink.epochs(&load, context.clone()).await?.unwrap_or_else(each);
    let known = KnownLoad::find(work.point, &load.load, &target).await?;
    Ok((target, known))
}

/// The name of a process that joins a group: 16 hexadecimal digits.
fn process_name() -> String {
    // Its keys are random.
    format!("{:016x}", RandomState::new().build_hasher().finish())
}
