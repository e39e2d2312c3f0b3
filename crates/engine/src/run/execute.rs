//! A run: begin all loads, drive all plans, then commit all or take all back.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use millstream_core::sink::{Load, LoadContext, Refusals, Sink};
use millstream_core::source::RowSource;
use millstream_core::step::StepSnapshot;
use millstream_core::threads::ProcessorUse;
use millstream_core::{Error, ErrorKind, Result, Step, StepKind, fail_point};
use millstream_job::{Job, SinkStep};
use millstream_state::rejects::Line;
use millstream_state::{Ending, LiveRun};
use tokio::task::JoinSet;

use super::{Event, Observer};
use crate::chunks::load::Loaded;
use crate::chunks::pipeline::{Counts, counts, row_preserving};
use crate::chunks::placed::{PlacedReadExec, placed};
use crate::chunks::sinks;
use crate::context::RunContext;
use crate::engine::{Engine, Turn};
use crate::failure::Failure;
use crate::fault;
use crate::fingerprint::Fingerprints;
use crate::job_plan::Runnable;
use crate::load::LoadExec;
use crate::machine::check_scratch;
use crate::memory;
use crate::options::{Cancel, RunOptions};
use crate::plan::shared::Physical;
use crate::prepare::{Asked, Prepared, Reach, prepare_with_sinks};
use crate::read::exec::ReadExec;
use crate::rejects::replay::Replay;
use crate::rejects::{Rejects, SinkRefusals};
use crate::report::{MissingColumn, Progress, Report, SinkResult, Skipped, Tally, Totals};
use crate::resume::{self, OpenLedger, ResumePoint};
use crate::verdict::{Evidence, verdict};

/// How often progress is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Runs a job to its end on the calling thread, and enters it into the run history. With `replay` it loads rejects
/// again. It waits for its turn, if other runs have the memory.
pub(crate) fn execute(
    engine: &Engine,
    work: &Runnable,
    options: &RunOptions,
    replay: Option<&Arc<Replay>>,
    observer: &Observer,
) -> Result<Report, Failure> {
    let job = work.job.as_ref();
    engine.machine().scratch.disks.iter().try_for_each(|disk| check_scratch(&disk.folder))?;
    let turn = turn(engine, options, observer)?;
    let place = ResumePoint::find(job, engine.machine(), options, replay)?;
    let budget = Arc::clone(turn.share.budget());
    let run = RunContext::of_run(engine, budget, replay.map(Arc::clone))?;
    let begun = Instant::now();
    let governing = run.govern()?;
    let live = OnceCell::new();
    if !place.is_after_the_end() {
        let _ = live.set(place.enter()?);
    }
    place.keep(&run.rejects);
    let committing = AtomicBool::new(false);
    let work = async {
        let may_be_done = place.is_after_the_end();
        let asked = Asked::Run { resumes: place.resumes(), may_be_done };
        let checked = async {
            let known = work.known.as_deref();
            let prepared = prepare_with_sinks(&run, job, known, Reach::Online, asked).await?;
            observer.warn(&prepared.warnings);
            place.accept(job, &prepared)?;
            Ok::<_, Failure>(prepared)
        };
        let prepared = tokio::select! {
            biased;
            () = options.cancel.cancelled() => return Err(interruption().into()),
            checked = checked => checked?,
        };
        if may_be_done {
            if place.finds_nothing_new(job, &prepared).await? {
                return Ok(Done { run: place.run.clone(), nothing_new: true, ..Done::default() });
            }
            prepared.reach_sinks(job, asked).await?;
            let _ = live.set(place.enter()?);
        }
        let live = live.get().and_then(Option::as_ref);
        let work = Work { run: &run, job, prepared: &prepared, place: &place, live, cancel: &options.cancel };
        work.execute(&committing).await
    };
    let finished = run.runtimes.workers().block_on(async {
        let ticking = async {
            loop {
                tokio::time::sleep(PROGRESS_INTERVAL).await;
                observer.progress(Progress::of(&run.steps, begun.elapsed(), committing.load(Ordering::Relaxed)));
            }
        };
        tokio::pin!(work);
        tokio::select! {
            biased;
            finished = &mut work => finished,
            () = ticking => unreachable!("progress is reported until the work is done"),
        }
    });
    let live = live.into_inner().flatten();
    let elapsed = begun.elapsed();
    let steps: Vec<StepSnapshot> = run.steps.all().iter().map(|step| step.snapshot()).collect();
    let totals = Totals::of(&steps);
    let mut ending = Ending {
        rows_read: totals.rows_read,
        rows_written: totals.rows_written,
        rows_rejected: totals.rows_rejected,
        units: totals.units,
        report: None,
    };
    let done = match finished {
        Ok(done) => done,
        Err(failure) => {
            // What is wrong with the job is reported in any case, whether or not the run history can be written.
            let wrong = Error::job("the job file is wrong");
            let _ = live.map(|live| live.end(Some(failure.errors.first().unwrap_or(&wrong)), &ending));
            return Err(failure);
        }
    };
    observer.progress(Progress::of(&run.steps, elapsed, true));
    let mut report = report(&run, job, &done, elapsed, run.threads.used(), governing.held());
    ending.report = serde_json::to_value(&report).ok();
    if let Some(live) = live {
        live.end(None, &ending)?;
    }
    if let Some(replay) = replay {
        fail_point::pass("replay.before");
        replay.mark(&place.run)?;
        fail_point::pass("replay.after");
    }
    // Only now: if the run is killed before, the next one resumes it and asks the ledgers what is there.
    fail_point::pass("forget.before");
    for (sink, error) in run.runtimes.workers().block_on(forget(&done)) {
        for result in report.results.iter_mut().filter(|result| result.sink == sink) {
            let cause = error.cause_text().map_or(String::new(), |cause| format!(": {cause}"));
            result.summary.push_str(&format!(", but {}{cause}; the next run tries again", error.what()));
        }
    }
    if !done.nothing_new {
        run.runtimes.workers().block_on(async {
            for sink in &job.sinks {
                // What stays is in nobody's way: it only says whose the files are.
                let _ = sink.sink.settle(&run.source_context(), done.logical()).await;
            }
        });
    }
    Ok(report)
}

/// Waits until the run may load.
fn turn(engine: &Engine, options: &RunOptions, observer: &Observer) -> Result<Turn> {
    futures::executor::block_on(async {
        let turn = engine.turn();
        tokio::pin!(turn);
        if let Some(turn) = turn.as_mut().now_or_never() {
            return turn;
        }
        observer.report(Event::Waiting);
        tokio::select! {
            biased;
            () = options.cancel.cancelled() => Err(interruption()),
            turn = turn => turn,
        }
    })
}

/// Forgets in the targets what was loaded; what could not be forgotten comes back with its sink's name.
async fn forget(done: &Done) -> Vec<(String, Error)> {
    for stale in &done.stale {
        // The next run does it otherwise.
        let _ = stale.forget(false).await;
    }
    let mut left = resume::forget(&done.ledgers.iter().collect::<Vec<_>>()).await;
    for marked in &done.marked {
        left.extend(marked.forget(false).await.err().map(|error| (marked.context.sink.clone(), error)));
    }
    left
}

fn interruption() -> Error {
    Error::new(ErrorKind::Interrupted, "the run was interrupted; what it had written was rolled back")
        .hint("start it again with the same command")
}

/// A load that has begun. If the run ends before it is committed, however it ends, it is rolled back.
struct Begun<'a> {
    sink: &'a SinkStep,
    load: Arc<dyn Load>,
    /// Its counters.
    step: Arc<Step>,
    /// The plan of its rows, if each comes from one record.
    row_wise: Option<Arc<dyn ExecutionPlan>>,
    marked: Option<Marked>,
}

/// What a load notes in its target when its rows become visible.
#[derive(Clone)]
struct Marked {
    sink: Arc<dyn Sink>,
    mark: String,
    context: LoadContext,
}

impl Marked {
    /// Forgets it; with `unwritten` only if the rows are not there.
    async fn forget(&self, unwritten: bool) -> Result<()> {
        self.sink.unmark(&self.mark, self.context.clone(), unwritten).await
    }
}

/// What a run has left, beside the counters.
#[derive(Default)]
struct Done {
    run: String,
    resumes: Option<String>,
    results: Vec<SinkResult>,
    skipped: (u64, Vec<Skipped>),
    /// The columns that files lacked.
    missing_columns: Vec<MissingColumn>,
    nothing_new: bool,
    units_before: u64,
    ledgers: Vec<OpenLedger>,
    marked: Vec<Marked>,
    /// What earlier runs have left, to be forgotten once this one is done.
    stale: Vec<Marked>,
}

impl Done {
    /// The first run of the resume chain.
    fn logical(&self) -> &str {
        self.resumes.as_ref().unwrap_or(&self.run)
    }
}

/// The sources that `plan` reads.
fn sources(plan: &Arc<dyn ExecutionPlan>) -> Vec<String> {
    let own = plan.downcast_ref::<ReadExec>().map(|read| read.source().to_owned());
    let placed = plan.downcast_ref::<PlacedReadExec>().map(|read| read.source().to_owned());
    own.into_iter().chain(placed).chain(plan.children().into_iter().flat_map(sources)).collect()
}

/// The reader of standard output may close it early; but what goes elsewhere is then missing there.
fn unfinished(job: &Job, error: Error) -> Error {
    let only_output = job.sinks.iter().all(|sink| sink.write.value == "-");
    if error.kind() != ErrorKind::OutputClosed || only_output {
        return error;
    }
    let plain = Error::refused(format!("{}: its reader has closed it", error.what()))
        .hint("what the other sinks had written was rolled back; read standard output to its end, or write to a file");
    error.step_name().into_iter().fold(plain, Error::in_step)
}

impl Begun<'_> {
    /// What has become of the records, none of which may be missing, if each row comes from one of them.
    fn tally(&self) -> Result<Option<Tally>> {
        let Some(plan) = &self.row_wise else { return Ok(None) };
        let Counts { read, filtered, rejected, .. } = counts(plan);
        let load = self.step.snapshot();
        let rejected = rejected + load.rejected;
        let tally = Tally { read, written: load.rows, filtered, rejected, ..Tally::default() };
        tally.check(&self.sink.name.value).map(|()| Some(tally))
    }
}

async fn take_back(begun: &[Begun<'_>]) {
    for one in begun {
        one.load.abort().await;
        if let Some(marked) = &one.marked {
            // The error that the run ends with is worth more than this one; the next run does it.
            let _ = marked.forget(true).await;
        }
    }
}

/// Takes all of it back before anything was committed: then nothing was written.
async fn give_up(begun: &[Begun<'_>]) {
    take_back(begun).await;
    begun.iter().filter(|one| one.load.can_be_taken_back()).for_each(|one| one.step.take_back_rows());
}

/// All rows are where they go to, and nobody sees them yet: what was left out is durable, is not too much, and with it
/// no record is missing.
fn nothing_is_missing(begun: &[Begun<'_>], rejects: &Rejects) -> Result<()> {
    rejects.judge_all()?;
    rejects.flush()?;
    begun.iter().try_for_each(|one| one.tally().map(drop))
}

/// Makes everything durable where nobody sees it, then visible.
async fn commit(begun: &[Begun<'_>], rejects: &Rejects) -> Result<Vec<SinkResult>> {
    for one in begun {
        if let Err(error) = one.load.prepare().await {
            give_up(begun).await;
            return Err(error.in_step(&one.sink.name.value));
        }
    }
    if let Err(error) = nothing_is_missing(begun, rejects) {
        give_up(begun).await;
        return Err(error);
    }
    fail_point::pass("publish.before");
    let mut results: Vec<SinkResult> = Vec::new();
    for (index, one) in begun.iter().enumerate() {
        if index > 0 {
            fail_point::pass("publish.next");
        }
        match one.load.commit().await {
            Ok(summary) => {
                let ignored = one.load.ignored();
                let tally = one.tally()?.map(|tally| Tally {
                    written: tally.written.saturating_sub(ignored),
                    ignored,
                    ..tally
                });
                one.step.leave_out_rows(ignored);
                let (sink, target) = (one.sink.name.value.clone(), one.sink.sink.target());
                let removed = Some(one.load.removed()).filter(|removed| removed.files > 0);
                results.push(SinkResult { sink, target, summary, removed, tally })
            }
            Err(error) => {
                take_back(&begun[index..]).await;
                let error = error.in_step(&one.sink.name.value);
                return Err(match results.is_empty() {
                    true => error,
                    false => {
                        let done: Vec<&str> = results.iter().map(|result| result.sink.as_str()).collect();
                        let first = error.hint_text().map_or(String::new(), |hint| format!("{hint}; "));
                        error.hint(format!("{first}these sinks were already committed: {}", done.join(", ")))
                    }
                });
            }
        }
    }
    fail_point::pass("publish.after");
    Ok(results)
}

/// What a run has to do.
struct Work<'w, 'a> {
    run: &'w RunContext,
    job: &'a Job,
    prepared: &'w Prepared<'w>,
    place: &'w ResumePoint,
    live: Option<&'w LiveRun>,
    cancel: &'w Cancel,
}

impl<'a> Work<'_, 'a> {
    /// Plans and loads everything, then commits it.
    async fn execute(&self, committing: &AtomicBool) -> Result<Done, Failure> {
        let Work { job, prepared, place, .. } = self;
        let physical = prepared.plan_sinks(job).await?;
        let mut begun: Vec<Begun<'_>> = Vec::new();
        let mut ledgers: Vec<OpenLedger> = Vec::new();
        let mut stale: Vec<Marked> = Vec::new();
        let ended = self.load_all(&physical, &mut begun, &mut ledgers, &mut stale).await;
        physical.metered.iter().for_each(|metered| metered.settle());
        let mut unopened = prepared.unopened();
        unopened.extend(prepared.all_skipped());
        let rejects = &self.run.rejects;
        let judged = ended.and_then(|loaded| rejects.judge_all().map(|()| loaded));
        let loaded = match judged {
            Ok(loaded) => loaded,
            Err(error) => {
                // They are to be seen; that they cannot be written is not why it failed.
                let _ = rejects.flush();
                give_up(&begun).await;
                let error = unfinished(job, resume::stopped(place, error, &ledgers.iter().collect::<Vec<_>>()).await);
                let last = matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::OutputClosed);
                let errors = if last { vec![error] } else { unopened.into_iter().chain([error]).collect() };
                return Err(Failure { lints: Vec::new(), errors });
            }
        };
        if !unopened.is_empty() {
            give_up(&begun).await;
            return Err(Failure { lints: Vec::new(), errors: unopened });
        }
        // From here on the run is seen through: what remains is short, and half of it would be worse than either end.
        committing.store(true, Ordering::Relaxed);
        let places = job.sources.iter().flat_map(|source| &source.places);
        places.filter_map(|(_, place)| place.rows()).for_each(RowSource::done);
        let mut results = commit(&begun, rejects).await?;
        resume::complete(&ledgers.iter().collect::<Vec<_>>()).await?;
        for one in &loaded {
            ledgers.iter().filter(|ledger| ledger.is_of(&one.sink)).for_each(|ledger| ledger.tell(one.tally));
        }
        results.extend(ledgers.iter().map(OpenLedger::result));
        let place_of = |result: &SinkResult| job.sinks.iter().position(|sink| sink.name.value == result.sink);
        results.sort_by_key(place_of);
        Ok(Done {
            run: place.run.clone(),
            resumes: place.resumes().map(str::to_owned),
            results,
            skipped: prepared.skipped(),
            missing_columns: prepared.missing_columns(),
            nothing_new: begun.is_empty() && !loaded.is_empty() && loaded.iter().all(|loaded| loaded.nothing_new),
            units_before: loaded.iter().map(|loaded| loaded.units_before).sum(),
            ledgers,
            stale,
            marked: begun.into_iter().filter_map(|one| one.marked).collect(),
        })
    }

    /// Begins every load and drives every plan to its end. What is loaded chunk by chunk goes by `ledgers`.
    async fn load_all(
        &self,
        physical: &Physical,
        begun: &mut Vec<Begun<'a>>,
        ledgers: &mut Vec<OpenLedger>,
        stale: &mut Vec<Marked>,
    ) -> Result<Vec<Loaded>> {
        let Work { run, job, .. } = self;
        let (ways, fingerprints) = (sinks::by_chunk(job, physical)?, Fingerprints::of(job, self.prepared));
        let mut contexts = Vec::new();
        for ((sink, root), way) in job.sinks.iter().zip(&physical.roots).zip(&ways) {
            let context = self.context(sink, &root.plan)?;
            // Before the first begins: one that has begun may hold the place that the next one looks at.
            contexts.push(if way.is_err() { self.at_once(sink, context, stale).await? } else { context });
        }
        let mut plans: Vec<Arc<dyn ExecutionPlan>> = Vec::new();
        let mut chunk_loads = Vec::new();
        for (((sink, root), way), mut context) in job.sinks.iter().zip(&physical.roots).zip(ways).zip(contexts) {
            let name = &sink.name.value;
            if let Ok(legs) = way {
                let opened =
                    self.unless_interrupted(self.place.open_ledger(sink, &legs, context.clone(), &fingerprints)).await;
                if let Some(ledger) = opened.map_err(|error| error.in_step(name))? {
                    chunk_loads.push((
                        ledger.load(run, legs, context.step, self.place, self.live.map(LiveRun::progress)),
                        Arc::clone(&ledger.rows),
                    ));
                    ledgers.push(ledger);
                    continue;
                }
                context = self.at_once(sink, context, stale).await?;
            }
            let step = Arc::clone(&context.step);
            let rejects = &run.rejects;
            let refusals = SinkRefusals::of(rejects, name, &step);
            let keep_places = refusals.is_some();
            let row_wise = row_preserving(&root.plan);
            if let (Err(why), Some(replay)) = (&row_wise, &run.replay) {
                return Err(replay.refuse(why));
            }
            let row_wise = row_wise.ok();
            let input = match &row_wise {
                Some(legs) if keep_places || rejects.is_lenient() => placed(legs, rejects).map_err(fault::unwrap)?,
                _ => Arc::clone(&root.plan),
            };
            let context = LoadContext {
                partitions: input.output_partitioning().partition_count(),
                refusals: refusals.map(|refusals| refusals as Arc<dyn Refusals>),
                ..context
            };
            let begin = sink.sink.begin(context.clone());
            let load = self.unless_interrupted(begin).await.map_err(|error| error.in_step(name))?;
            let mark = context.mark.clone();
            let marked = mark.map(|mark| Marked { sink: Arc::clone(&sink.sink), mark, context });
            if load.is_there() {
                rejects.pass(None);
            }
            self.begin_rejects_anew(name, &input, load.as_ref())?;
            let row_wise = row_wise.filter(|_| !load.is_there()).map(|_| Arc::clone(&root.plan));
            begun.push(Begun { sink, load: Arc::clone(&load), step: Arc::clone(&step), row_wise, marked });
            let limit = rejects.of_sink(name);
            let load_exec = LoadExec::new(name, Arc::clone(&sink.sink), load, step, input);
            plans.push(Arc::new(load_exec.with_rejects(limit, keep_places)));
        }
        self.place.find_traces(&ledgers.iter().collect::<Vec<_>>()).await?;
        fail_point::pass("loading.before");
        self.place.loading(job, self.prepared, self.live)?;
        let chunk_loads = chunk_loads.into_iter().map(|(load, rows)| load.run(rows).boxed()).collect();
        drive(run, plans, chunk_loads, self.cancel).await
    }

    /// What earlier runs have left out on the way to a sink that is loaded at once is forgotten: it will be left out
    /// again.
    fn begin_rejects_anew(&self, sink: &str, plan: &Arc<dyn ExecutionPlan>, load: &dyn Load) -> Result<()> {
        let Some(log) = self.run.rejects.log().filter(|_| self.place.resumes().is_some()) else { return Ok(()) };
        if log.earlier()?.kept.is_empty() {
            return Ok(());
        }
        let mut anew = sources(plan);
        anew.extend((!load.is_there()).then(|| sink.to_owned()));
        log.add([Line::Anew { anew }], false)
    }

    fn context(&self, sink: &SinkStep, plan: &Arc<dyn ExecutionPlan>) -> Result<LoadContext> {
        let (run, name) = (self.run, &sink.name.value);
        let schema = self.prepared.sink_columns(sink);
        let schema = schema.ok_or_else(|| Error::internal(format!("the columns of sink `{name}` are not known")))?;
        Ok(LoadContext {
            run: self.place.run.clone(),
            first: self.place.first().to_owned(),
            sink: name.clone(),
            mark: None,
            take_over: false,
            schema,
            partitions: plan.output_partitioning().partition_count(),
            ordered: plan.output_ordering().is_some(),
            io: run.runtimes.io(),
            scratch: run.scratch.folder().to_owned(),
            budget: Arc::clone(&run.budget),
            step: run.steps.add(name, StepKind::Load, sink.sink.name()),
            refusals: None,
        })
    }

    /// `context` of a load whose rows become visible at once.
    async fn at_once(&self, sink: &SinkStep, context: LoadContext, stale: &mut Vec<Marked>) -> Result<LoadContext> {
        let left = self.unless_interrupted(self.place.marker(sink, &context)).await;
        let left = left.map_err(|error| error.in_step(&sink.name.value))?;
        stale.extend(left.stale.into_iter().map(|mark| Marked {
            sink: Arc::clone(&sink.sink),
            mark,
            context: LoadContext { take_over: true, ..context.clone() },
        }));
        Ok(LoadContext { mark: left.load, take_over: self.place.takes_over(), ..context })
    }

    async fn unless_interrupted<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(interruption()),
            done = work => done,
        }
    }
}

/// Drives all partitions of `plans`, each as a task on the workers, and `chunk_loads` beside them. The first error, or
/// the user, ends them all, and no task is left when this returns: what they have written can then be rolled back.
async fn drive(
    run: &RunContext,
    plans: Vec<Arc<dyn ExecutionPlan>>,
    chunk_loads: Vec<BoxFuture<'static, Result<Loaded>>>,
    cancel: &Cancel,
) -> Result<Vec<Loaded>> {
    let context: Arc<TaskContext> = run.session.task_ctx();
    let mut streams = Vec::new();
    for plan in plans {
        for partition in 0..plan.output_partitioning().partition_count() {
            streams.push(plan.execute(partition, Arc::clone(&context)).map_err(fault::unwrap)?);
        }
    }
    let mut tasks: JoinSet<Result<Option<Loaded>>> = JoinSet::new();
    for mut stream in streams {
        let to_its_end = async move {
            while let Some(batch) = stream.next().await {
                batch.map_err(fault::unwrap)?;
            }
            Ok(None)
        };
        tasks.spawn_on(to_its_end, &run.runtimes.workers());
    }
    for load in chunk_loads {
        tasks.spawn_on(async move { load.await.map(Some) }, &run.runtimes.workers());
    }
    let mut loaded = Vec::new();
    let mut first: Result<()> = Ok(());
    loop {
        let ended = tokio::select! {
            biased;
            () = cancel.cancelled(), if first.is_ok() => {
                first = Err(interruption());
                tasks.abort_all();
                continue;
            }
            ended = tasks.join_next() => ended,
        };
        let Some(ended) = ended else { break };
        let ended = match ended {
            Ok(ended) => ended,
            Err(join) if join.is_cancelled() => continue,
            Err(join) => Err(Error::internal("a task failed").cause(join)),
        };
        match ended {
            Ok(one) => loaded.extend(one),
            Err(error) if first.is_ok() => {
                first = Err(error);
                tasks.abort_all();
            }
            Err(_) => {}
        }
    }
    first.map(|()| loaded)
}

fn report(run: &RunContext, job: &Job, done: &Done, elapsed: Duration, used: ProcessorUse, held: Duration) -> Report {
    let steps: Vec<StepSnapshot> = run.steps.all().iter().map(|step| step.snapshot()).collect();
    let totals = Totals::of(&steps);
    let ProcessorUse { busy: processor, delayed } = used;
    let verdict = verdict(&Evidence { steps: &steps, elapsed, processor, delayed, cores: run.machine().cores, held });
    Report {
        job: job.path().to_owned(),
        run: done.run.clone(),
        resumes: done.resumes.clone(),
        nothing_new: done.nothing_new,
        units_loaded_before: done.units_before,
        seconds: elapsed.as_secs_f64(),
        rows_read: totals.rows_read,
        rows_written: totals.rows_written,
        rows_rejected: totals.rows_rejected,
        rejects: run.rejects.log().filter(|log| log.has_some() || log.has_earlier()).map(|_| done.logical().to_owned()),
        units_skipped: done.skipped.0,
        skipped: done.skipped.1.clone(),
        missing_columns: done.missing_columns.clone(),
        bytes_read: totals.bytes_read,
        bytes_from_cache: run.cache.cached(),
        bytes_from_disk: run.cache.disk(),
        bytes_written: totals.bytes_written,
        peak_rss_bytes: memory::peak_resident(),
        memory_bytes: run.machine().memory,
        cores: run.machine().cores,
        cpu_seconds: processor.as_secs_f64(),
        results: done.results.clone(),
        steps,
        verdict,
    }
}
