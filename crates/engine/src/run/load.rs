//! The load itself: drives all plans and all loads chunk by chunk to their ends.

use std::sync::Arc;

use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::StreamExt;
use millstream_core::{Error, Processes, Result};
use millstream_job::SinkStep;
use tokio::task::JoinSet;

use super::begin::{Begun, Tasks};
use super::sinks::{CommitMarker, Sinks};
use super::work::{Work, interruption};
use crate::checks::{EntryChecks, judge};
use crate::chunks::admission::{Admission, RejectedUnits};
use crate::chunks::load::Loaded as LoadedChunks;
use crate::context::RunContext;
use crate::failure::Failure;
use crate::fault;
use crate::load::LoadExec;
use crate::options::Cancel;
use crate::plan::checked;
use crate::report::CheckResult;
use crate::stages::{OpenStage, StageKind};

/// A run whose rows have reached their targets: committed where they are loaded chunk by chunk, elsewhere not visible
/// yet.
pub(super) struct Loaded<'w, 'j> {
    pub(super) work: Work<'w, 'j>,
    pub(super) sinks: Sinks<'j>,
    pub(super) stale: Vec<CommitMarker>,
    /// What the checks have come to: none of them fails the run.
    pub(super) checks: Vec<CheckResult>,
    /// What was read of incremental sources whose sinks are loaded all at once.
    pub(super) admission: Option<Admission>,
}

impl<'w, 'j> Begun<'w, 'j> {
    /// Loads everything. If that fails, or too much is rejected, what is not committed is rolled back.
    pub(super) async fn load(mut self) -> Result<Loaded<'w, 'j>, Failure> {
        let Work { run, cancel, .. } = self.work;
        if let Err(errors) = self.distribute().await {
            self.settle();
            let mut errors = errors.into_iter();
            let first = errors.next().unwrap_or_else(|| Error::internal("a worker has failed, and did not say why"));
            let mut failure = self.fail(first).await;
            failure.errors.extend(errors);
            return Err(failure);
        }
        let mut loaded = drive(run, std::mem::take(&mut self.tasks), cancel).await;
        if loaded.is_ok()
            && let Err(error) = self.read_rest().await
        {
            loaded = Err(error);
        }
        if loaded.is_ok()
            && let Err(error) = self.work.prepared.finish_workers().await
        {
            loaded = Err(error);
        }
        self.settle();
        let judged = loaded.and_then(|loaded| {
            run.rejects.judge_all()?;
            run.steps.all().iter().try_for_each(|step| step.check())?;
            self.admission.iter().try_for_each(Admission::all_is_read)?;
            let checks = if self.has_nothing_new(&loaded) { Vec::new() } else { self.judge_checks()? };
            Ok((loaded, checks))
        });
        let checks = match judged {
            Ok((loaded, checks)) => {
                self.sinks.set_loaded(loaded);
                checks
            }
            Err(error) => return Err(self.fail(error).await),
        };
        let failures = judge::failures(&checks, !self.work.point.catch_up_runs.is_empty());
        if !failures.is_empty() {
            run.checks.set(checks);
            return Err(self.fail_checks(failures).await);
        }
        let unopened = self.unopened();
        if !unopened.is_empty() {
            self.sinks.roll_back().await;
            return Err(Failure { lints: Vec::new(), errors: unopened });
        }
        let rejected = self.rejected_units();
        self.admission.iter().for_each(|admission| admission.note(&rejected));
        let Begun { work, sinks, stale, admission, .. } = self;
        Ok(Loaded { work, sinks, stale, checks, admission })
    }

    /// The units of which records were rejected on the way to sinks that are loaded all at once.
    fn rejected_units(&self) -> RejectedUnits {
        let Work { run, job, point, .. } = self.work;
        let touched = run.rejects.touched();
        // What is only looked up in has no part in what the files become.
        let gives_rows = |step: &str| {
            let is_of = |sink: &SinkStep| sink.name.value == step || job.gives_rows_of(&sink.from.value, step);
            job.sinks.iter().any(is_of)
        };
        let may_be_any = touched.unknown_steps().any(gives_rows);
        RejectedUnits { first: point.first().to_owned(), names: touched.units, may_be_any }
    }

    /// Whether all files were loaded before: then there are no rows that checks could be about.
    fn has_nothing_new(&self, loaded: &[LoadedChunks]) -> bool {
        let none_admitted = self.admission.as_ref().is_some_and(Admission::is_empty);
        let all_there = || !loaded.is_empty() && loaded.iter().all(|loaded| loaded.nothing_new);
        let only_chunks = self.sinks.at_once().is_empty();
        if only_chunks { all_there() } else { none_admitted && loaded.iter().all(|loaded| loaded.nothing_new) }
    }

    /// What the checks have come to, now that everything has come.
    fn judge_checks(&self) -> Result<Vec<CheckResult>> {
        let mut checks = self.work.prepared.checks();
        checks.retain(|checks| self.looks_at(checks));
        let earlier = match checks.iter().any(|checks| checks.has_change()) {
            true => self.work.point.earlier_reports()?,
            false => Vec::new(),
        };
        let pass = match self.is_catch_up() {
            true => judge::Pass::CatchUp,
            false => judge::Pass::Whole,
        };
        judge::results(&checks, &earlier, pass)
    }

    /// Whether rows of the entry that has `checks` go to a sink of this run.
    fn looks_at(&self, checks: &EntryChecks) -> bool {
        let takes =
            |sink: &SinkStep| sink.name.value == checks.name || self.work.job.reads(&sink.from.value, &checks.name);
        !self.is_catch_up() || self.sinks.at_once().iter().any(|at_once| takes(at_once.sink))
    }

    /// Reads what no sink has wanted of the rows of entries with checks. Rows that pass several checks go through the
    /// outermost: so what is left of that is read first.
    async fn read_rest(&self) -> Result<()> {
        // What is staged chunk by chunk has been read to its end.
        let at_once = self.sinks.at_once().into_iter().filter(|sink| sink.staged.is_none()).map(|sink| &sink.plan);
        let for_checks = self.physical.for_checks.iter().map(|step| &step.plan);
        self.read_rest_of(at_once.chain(for_checks)).await?;
        for shared in self.physical.shared_scans.iter().rev() {
            self.read_rest_of([shared.input()].into_iter()).await?;
        }
        Ok(())
    }

    /// The same of `plans`, of which none reads another.
    async fn read_rest_of(&self, plans: impl Iterator<Item = &Arc<dyn ExecutionPlan>>) -> Result<()> {
        let Work { run, cancel, .. } = self.work;
        let mut waiting: Vec<_> = plans.map(|plan| checked::nodes(plan).into_iter()).collect();
        loop {
            let next: Vec<_> = waiting.iter_mut().filter_map(Iterator::next).collect();
            if next.is_empty() {
                return Ok(());
            }
            let mut reading = JoinSet::new();
            for rest in next.into_iter().flat_map(|node| checked::rest(node, run.session.task_ctx())) {
                reading.spawn_on(async { rest.await.map(|()| None) }, &run.runtimes.workers());
            }
            joined(reading, cancel, run.threads.processes()).await?;
        }
    }
}

/// Drives all partitions of the plans, each as a task on the workers, and the loads chunk by chunk beside them. The
/// first error, processes that hold too much memory, or the user, ends them all, and no task is left when this returns:
/// what they have written can then be rolled back.
pub(super) async fn drive(run: &RunContext, tasks: Tasks, cancel: &Cancel) -> Result<Vec<LoadedChunks>> {
    joined(spawn(run, tasks)?, cancel, run.threads.processes()).await
}

/// Starts the tasks, each of which ends with what a load chunk by chunk has come to, if it is one.
fn spawn(run: &RunContext, tasks: Tasks) -> Result<JoinSet<Result<Option<LoadedChunks>>>> {
    let context: Arc<TaskContext> = run.session.task_ctx();
    let mut streams = Vec::new();
    for plan in tasks.plans {
        // It lasts until the last partition has ended.
        let sink = plan.downcast_ref::<LoadExec>().map(LoadExec::name);
        let stage = sink.map(|name| Arc::new(run.stages.begin(StageKind::Sink, Some(name))));
        for partition in 0..plan.output_partitioning().partition_count() {
            let stream = plan.execute(partition, Arc::clone(&context)).map_err(fault::unwrap)?;
            streams.push((stream, stage.clone()));
        }
    }
    let mut spawned = JoinSet::new();
    for (mut stream, stage) in streams {
        let to_its_end = async move {
            while let Some(batch) = stream.next().await {
                batch.inspect_err(|_| stage.iter().for_each(|stage| stage.fail())).map_err(fault::unwrap)?;
            }
            stage.and_then(Arc::into_inner).into_iter().for_each(OpenStage::end);
            Ok(None)
        };
        spawned.spawn_on(to_its_end, &run.runtimes.workers());
    }
    for load in tasks.chunk_loads {
        spawned.spawn_on(async move { load.await.map(Some) }, &run.runtimes.workers());
    }
    Ok(spawned)
}

/// Ends the tasks early, those too that block until a process has answered.
fn stop(tasks: &mut JoinSet<Result<Option<LoadedChunks>>>, processes: &Processes) {
    tasks.abort_all();
    processes.stop();
}

/// Waits until all tasks have ended.
async fn joined(
    mut tasks: JoinSet<Result<Option<LoadedChunks>>>,
    cancel: &Cancel,
    processes: &Processes,
) -> Result<Vec<LoadedChunks>> {
    let mut loaded = Vec::new();
    let mut first: Result<()> = Ok(());
    loop {
        let ended = tokio::select! {
            biased;
            () = cancel.cancelled(), if first.is_ok() => {
                first = Err(interruption());
                stop(&mut tasks, processes);
                continue;
            }
            error = processes.too_much(), if first.is_ok() => {
                first = Err(error);
                stop(&mut tasks, processes);
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
                stop(&mut tasks, processes);
            }
            Err(_) => {}
        }
    }
    first.map(|()| loaded)
}
