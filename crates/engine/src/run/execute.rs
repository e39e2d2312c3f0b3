//! A run from its start to its report.
//!
//! ```text
//!  Planned ─begin─▶ Begun ─load─▶ Loaded ─commit─▶ Committed ─record─▶ Recorded ─forget─▶ the report
//! ```
//! Each state is consumed by the step to the next one. A step that fails rolls back what is not committed. A run may be
//! killed at any point, so the order of the steps must stay: see `docs/decisions/0019-exactly-once.md`.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::FutureExt;
use millstream_core::program::StepLines;
use millstream_core::{Error, Result};
use millstream_job::{JobEntry, Lint};
use millstream_state::{LiveRun, RunRecord};

use super::begin::Planned;
use super::commit::Committed;
use super::epochs::{self, Heard, Tell, reads_queue};
use super::events::{Event, Observer};
use super::outages::Outages;
use super::passes::together;
use super::record::{Used, record_failure, verdict_of};
use super::status::{StatusWriter, View};
use super::work::{Work, interruption};
use crate::context::RunContext;
use crate::engine::{Engine, Governing, Turn};
use crate::failure::Failure;
use crate::job_plan::Runnable;
use crate::machine::check_scratch;
use crate::monitor::Moment;
use crate::options::RunOptions;
use crate::prepare::{Asked, Prepared, Reach, prepare_with_sinks};
use crate::rejects::replay::Replay;
use crate::report::{Progress, Report};
use crate::resume::{ResumePoint, ToDo};
use crate::stages::{StageKind, Stages};

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
    let turn = turn(engine, options, observer)?;
    let mut point = ResumePoint::find(&work.job, engine.machine(), options, replay)?;
    // The job that is replayed is one of that time already, and only a part of its file.
    let at = |point: &ResumePoint| match replay {
        Some(_) => Ok(work.clone()),
        None => engine.at(work, point.moment),
    };
    execute_from(&mut point, &mut None, &at, engine, replay, observer, &turn)
}

/// Runs a job that stands at `point`, and again while sinks have only caught up with others. `before` keeps what such
/// runs have done, for the case that this fails and is tried again. `at` gives the job as it is at the time of a
/// logical run.
pub(super) fn execute_from(
    point: &mut ResumePoint,
    before: &mut Option<Report>,
    at: &dyn Fn(&ResumePoint) -> Result<Runnable, Failure>,
    engine: &Engine,
    replay: Option<&Arc<Replay>>,
    observer: &Observer,
    turn: &Turn,
) -> Result<Report, Failure> {
    let mut report = execute_once(point, at, engine, replay, observer, turn)?;
    let mut left_out: Option<Vec<String>> = None;
    while report.caught_up {
        let skipped: Vec<String> = report.skipped.iter().filter_map(|unit| unit.uri.clone()).collect();
        let reads_nothing = report.rows_read == 0 && !skipped.is_empty();
        if reads_nothing && left_out.as_ref() == Some(&skipped) {
            return Err(cannot_catch_up(&skipped).into());
        }
        left_out = reads_nothing.then_some(skipped);
        let runs = [report.catch_up_runs.as_slice(), std::slice::from_ref(&report.run)].concat();
        *before = Some(with_earlier(before.take(), report));
        // Now all sinks have the same files, or more of them.
        let work = at(point)?;
        let options = RunOptions { restart: false, now: Some(point.moment), ..point.options.clone() };
        *point = ResumePoint::find(&work.job, engine.machine(), &options, replay)?;
        point.catch_up_runs = runs;
        let again = |point: &ResumePoint| engine.at(&engine.fresh(work.clone())?, point.moment);
        report = execute_once(point, &again, engine, replay, observer, turn)?;
    }
    Ok(with_earlier(before.take(), report))
}

/// Sinks would be brought to what others have, again and again.
fn cannot_catch_up(skipped: &[String]) -> Error {
    Error::refused("some sinks lack files that others have, and these cannot be opened")
        .text(skipped.join(", "))
        .hint("put the files back, or remove the entries of the sinks that lack them")
}

fn with_earlier(earlier: Option<Report>, later: Report) -> Report {
    match earlier {
        Some(earlier) => together(earlier, later),
        None => later,
    }
}

/// Runs a job once: to its end, or until sinks that lack files have those that others have.
fn execute_once(
    point: &mut ResumePoint,
    at: &dyn Fn(&ResumePoint) -> Result<Runnable, Failure>,
    engine: &Engine,
    replay: Option<&Arc<Replay>>,
    observer: &Observer,
    turn: &Turn,
) -> Result<Report, Failure> {
    match execute_at(point, engine, &at(point)?, replay, observer, turn)? {
        Ended::Committed(report) => Ok(report),
        Ended::Resumes(earlier) => {
            point.resume_earlier(earlier);
            match execute_at(point, engine, &at(point)?, replay, observer, turn)? {
                Ended::Committed(report) => Ok(report),
                Ended::Resumes(_) => Err(Error::internal("a run that resumes another one has found a third").into()),
            }
        }
    }
}

/// How a run has ended.
enum Ended<T> {
    /// Well.
    Committed(T),
    /// Before it began: it has to resume this run.
    Resumes(Box<RunRecord>),
}

/// Runs a job that stands at `point`.
fn execute_at(
    point: &ResumePoint,
    engine: &Engine,
    work: &Runnable,
    replay: Option<&Arc<Replay>>,
    observer: &Observer,
    turn: &Turn,
) -> Result<Ended<Report>, Failure> {
    let options = &point.options;
    let job = work.job.as_ref();
    let run = RunContext::of_run(engine, Arc::clone(turn.share.budget()), replay.map(Arc::clone))?;
    let run =
        run.with_lines(lines_to(observer)).observed(options.environment.clone(), stages(options, observer)).paced(job);
    let began = Instant::now();
    let governing = run.govern()?;
    let execution = Execution {
        run: &run,
        work,
        point,
        options,
        observer,
        live: OnceCell::new(),
        committing: AtomicBool::new(false),
    };
    if !point.is_after_the_end() {
        execution.enter()?;
    }
    point.keep(&run.rejects, job);
    let finished = run.runtimes.workers().block_on(execution.with_progress(began, &governing));
    let elapsed = began.elapsed();
    execution.committing.fetch_or(finished.is_ok(), Ordering::Relaxed);
    observer.progress(execution.progress(elapsed));
    let live = execution.live.into_inner().flatten();
    let committed = match finished {
        Ok(Ended::Committed(committed)) => committed,
        Ok(Ended::Resumes(earlier)) => return Ok(Ended::Resumes(earlier)),
        Err(failure) => {
            record_failure(&run, job, point, live, &failure, elapsed);
            return Err(failure);
        }
    };
    let used = Used { elapsed, processor: run.threads.used(), held: governing.held() };
    let recorded = committed.record(&run, job, live, replay.map(Arc::as_ref), used)?;
    Ok(Ended::Committed(recorded.forget(&run, job, point)))
}

/// What reports to `observer` how a queue is read, as long as the run has it.
fn tell_to(observer: &Observer) -> Tell {
    let (reports, outages) = (observer.reports(), Outages::default());
    Arc::new(move |heard| {
        if !outages.is_new(&heard) {
            return;
        }
        reports.report(match heard {
            Heard::Away { of, error } => Event::Away { of, error },
            Heard::Back { of } => Event::Back { of },
            Heard::Gap { error } => Event::Gap { error },
        });
    })
}

/// What reports the stages of a run to `observer`, if `options` ask for that.
pub(super) fn stages(options: &RunOptions, observer: &Observer) -> Stages {
    if !options.stages {
        return Stages::default();
    }
    let reports = observer.reports();
    Stages::reported_to(move |stage| reports.report(Event::Stage(stage)))
}

/// What reports lines of programs to `observer`, as long as the run has it.
fn lines_to(observer: &Observer) -> StepLines {
    let reports = observer.reports();
    Arc::new(move |step, line| reports.report(Event::Line { step: step.to_owned(), line: line.to_owned() }))
}

/// Waits until the run may load.
pub(super) fn turn(engine: &Engine, options: &RunOptions, observer: &Observer) -> Result<Turn> {
    engine.machine().scratch.disks.iter().try_for_each(|disk| check_scratch(&disk.folder))?;
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

/// What a run does on its runtime.
struct Execution<'r> {
    run: &'r RunContext,
    work: &'r Runnable,
    point: &'r ResumePoint,
    options: &'r RunOptions,
    observer: &'r Observer,
    /// The run in the run history, once it is entered there.
    live: OnceCell<Option<LiveRun>>,
    /// Whether the run can no longer be cancelled.
    committing: AtomicBool,
}

impl<'r> Execution<'r> {
    /// Enters the run into the run history.
    fn enter(&self) -> Result<()> {
        let _ = self.live.set(self.point.enter()?);
        Ok(())
    }

    /// Commits the run, and reports its progress meanwhile.
    async fn with_progress(&self, began: Instant, governing: &Governing) -> Result<Ended<Committed>, Failure> {
        let committed = async {
            match self.commit().await {
                // It was stopped before it read anything.
                Err(failure) if epochs::ends_well(self.work.job.as_ref(), &failure) => {
                    Ok(Ended::Committed(Committed::nothing_new(&self.point.run)))
                }
                committed => committed,
            }
        };
        let ticking = async {
            let mut status = StatusWriter::default();
            loop {
                tokio::time::sleep(PROGRESS_INTERVAL).await;
                self.tick(began.elapsed(), governing, &mut status);
            }
        };
        tokio::pin!(committed);
        tokio::select! {
            biased;
            committed = &mut committed => committed,
            () = ticking => unreachable!("progress is reported until the work is done"),
        }
    }

    /// How far the run is.
    fn progress(&self, elapsed: Duration) -> Progress {
        let progress = Progress::of(&self.run.steps, elapsed, self.committing.load(Ordering::Relaxed));
        let (rate, queue) = self.run.monitor.tick(elapsed, &progress.totals);
        let throttle = self.run.pace.bytes_per_second();
        let (run, cluster) = (self.point.run.clone(), self.run.cluster_report().map(Box::new));
        Progress { run, rate, queue, throttle, cluster, ..progress }
    }

    /// Reports how far the run is, to its observer and, for other processes, in the state folder.
    fn tick(&self, elapsed: Duration, governing: &Governing, status: &mut StatusWriter) {
        let (run, progress) = (self.run, self.progress(elapsed));
        run.monitor.keep_moment(|| Moment {
            elapsed,
            steps: run.snapshots(),
            processor: run.threads.used(),
            held: governing.held(),
            throttled: run.pace.held(),
        });
        if let Some(live) = self.live.get().and_then(Option::as_ref) {
            status.write(live, &progress, || self.view(&progress, governing), &self.options.cancel);
        }
        self.observer.progress(progress);
    }

    /// How the run goes, for pages.
    fn view(&self, progress: &Progress, governing: &Governing) -> View {
        let (run, job, elapsed) = (self.run, self.work.job.as_ref(), progress.elapsed);
        let moment = Moment {
            elapsed,
            steps: progress.steps.clone(),
            processor: run.threads.used(),
            held: governing.held(),
            throttled: run.pace.held(),
        };
        View {
            entries: JobEntry::all_of(job),
            points: run.monitor.points(elapsed, &progress.totals),
            verdict: verdict_of(run, job, moment),
            memory_used: run.budget.used(),
            memory_limit: run.machine().memory,
            resident: millstream_core::resident(),
            ..View::of(progress)
        }
    }

    /// Goes from the job to the commit.
    async fn commit(&self) -> Result<Ended<Committed>, Failure> {
        let (run, job, point) = (self.run, self.work.job.as_ref(), self.point);
        let may_be_done = point.is_after_the_end();
        let is_service = epochs::is_service(job);
        let asked = Asked::Run { resumes: point.resumes(), may_be_done: may_be_done || is_service };
        let tell = tell_to(self.observer);
        if is_service {
            let io = run.runtimes.io();
            epochs::once_there(job, &tell, &self.options.cancel, async || epochs::has_columns(job, &io).await).await?;
        }
        let stages = &run.stages;
        let prepared = stages.timed(StageKind::Prepare, None, self.prepare(asked)).await?;
        if may_be_done {
            match point.after_the_end(job, &prepared).await? {
                ToDo::Everything => {}
                ToDo::Nothing => return Ok(Ended::Committed(Committed::nothing_new(&point.run))),
                ToDo::Rest(earlier) => return Ok(Ended::Resumes(earlier)),
            }
            prepared.reach_sinks(job, asked).await?;
            self.enter()?;
        }
        if is_service {
            let reach = async || prepared.reach_sinks(job, asked).await;
            epochs::once_there(job, &tell, &self.options.cancel, reach).await?;
        }
        let live = self.live.get().and_then(Option::as_ref);
        let warn = |warnings: &[Lint]| self.observer.warn(warnings);
        let (cancel, reports) = (&self.options.cancel, &self.observer.reports());
        let work = Work { run, job, prepared: &prepared, point, live, cancel, warn: &warn, reports };
        // Rejects of a queue that are loaded again are no messages of it.
        if reads_queue(job) && run.replay.is_none() {
            let reading = epochs::run(work, tell);
            return stages.timed(StageKind::Load, None, reading).await.map(Ended::Committed);
        }
        let loading = async { Planned::new(work).await?.begin().await?.load().await };
        let loaded = stages.timed(StageKind::Load, None, loading).await?;
        let committing = loaded.commit(&self.committing);
        Ok(Ended::Committed(stages.timed(StageKind::Commit, None, committing).await?))
    }

    /// Prepares the job, unless the run is cancelled, and looks whether it is the one to be resumed.
    async fn prepare(&self, asked: Asked<'_>) -> Result<Prepared<'r>, Failure> {
        let job = self.work.job.as_ref();
        let prepared = async {
            let known = self.work.known.as_deref();
            let prepared = prepare_with_sinks(self.run, job, known, Reach::Online, asked).await?;
            self.observer.warn(&prepared.warnings);
            self.point.accept(job, &prepared)?;
            Ok(prepared)
        };
        tokio::select! {
            biased;
            () = self.options.cancel.cancelled() => Err(interruption().into()),
            prepared = prepared => prepared,
        }
    }
}
