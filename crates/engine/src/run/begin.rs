//! The first steps of a run: plan the sinks, and begin all loads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::FutureExt;
use futures::future::BoxFuture;
use millstream_core::sink::{LoadContext, LoadNotes};
use millstream_core::{Error, ErrorKind, Result, StepKind, fail_point};
use millstream_job::{Job, SinkStep};
use millstream_state::LiveRun;
use millstream_state::rejects::{Line, RejectLine};

use super::sinks::{AtOnce, ByChunk, CommitMarker, SinkRun, Sinks};
use super::work::Work;
use crate::chunks::admission::{Admission, AdmittedSource, NotingSink};
use crate::chunks::load::Loaded as LoadedChunks;
use crate::chunks::marks::TimedRows;
use crate::chunks::origins::OriginReadExec;
use crate::chunks::pipeline::{Pipeline, is_incremental};
use crate::chunks::sinks;
use crate::failure::Failure;
use crate::fingerprint::Fingerprints;
use crate::plan::lookup::{LookupExec, lookups, row_inputs};
use crate::plan::shared::{Physical, Root};
use crate::read::Reader;
use crate::read::exec::ReadExec;
use crate::rejects::Entry;
use crate::resume;
use crate::stages::StageKind;

/// A run whose sinks are planned.
pub(super) struct Planned<'w, 'j> {
    work: Work<'w, 'j>,
    physical: Physical,
    /// How many counters there were before.
    steps_before: usize,
}

/// A run whose loads have begun.
pub(super) struct Begun<'w, 'j> {
    pub(super) work: Work<'w, 'j>,
    pub(super) physical: Physical,
    pub(super) sinks: Sinks<'j>,
    /// What is read of incremental sources whose sinks are loaded all at once.
    pub(super) admission: Option<Admission>,
    /// What drives the loads.
    pub(super) tasks: Tasks,
    /// What earlier runs have left, to be forgotten once this one is done.
    pub(super) stale: Vec<CommitMarker>,
}

/// A sink whose load has not begun.
struct PlannedSink<'j> {
    sink: &'j SinkStep,
    plan: Arc<dyn ExecutionPlan>,
    by_chunk: sinks::ByChunk,
    /// The pipelines to it, if its rows are staged chunk by chunk.
    staged: Option<Vec<Pipeline>>,
    context: LoadContext,
}

/// What drives the loads of a run.
#[derive(Default)]
pub(super) struct Tasks {
    /// The plans that load all at once.
    pub(super) plans: Vec<Arc<dyn ExecutionPlan>>,
    /// The loads chunk by chunk.
    pub(super) chunk_loads: Vec<BoxFuture<'static, Result<LoadedChunks>>>,
}

impl<'w, 'j> Planned<'w, 'j> {
    /// Plans all sinks.
    pub(super) async fn new(work: Work<'w, 'j>) -> Result<Self, Failure> {
        let steps_before = work.run.steps.count();
        let physical = work.prepared.plan_sinks(work.job).await?;
        Ok(Planned { work, physical, steps_before })
    }

    /// Begins all loads. If one cannot begin, the others are rolled back.
    pub(super) async fn begin(self) -> Result<Begun<'w, 'j>, Failure> {
        let Planned { work, physical, steps_before } = self;
        let (sinks, tasks, stale) = (Sinks::default(), Tasks::default(), Vec::new());
        let mut begun = Begun { work, physical, sinks, admission: None, tasks, stale };
        let mut planned = match begun.planned_sinks().await {
            Ok(planned) => planned,
            Err(error) => return Err(begun.fail_to_begin(error).await),
        };
        if begun.is_catch_up() {
            planned = begun.plan_takers(planned, steps_before).await?;
        }
        if let Err(error) = begun.read_references().await {
            return Err(begun.fail_to_begin(error).await);
        }
        let unopened = begun.unopened();
        if !unopened.is_empty() {
            return Err(Failure { lints: Vec::new(), errors: unopened });
        }
        match begun.begin_all(planned).await {
            Ok(()) => Ok(begun),
            Err(error) => Err(begun.fail_to_begin(error).await),
        }
    }
}

impl<'j> Begun<'_, 'j> {
    /// All lookups of the run, those in references among them.
    fn lookups(&self) -> Vec<&LookupExec> {
        self.physical.plans().flat_map(lookups).collect()
    }

    /// Reads what is looked up in. If that cannot be read, nothing has begun.
    async fn read_references(&self) -> Result<()> {
        let Work { run, point, .. } = self.work;
        let lookups = self.lookups();
        let mut sources: Vec<String> = lookups.iter().flat_map(|lookup| sources(lookup.reference())).collect();
        sources.sort();
        sources.dedup();
        let is_of = |line: &RejectLine| {
            let source = line.rejected.source.as_ref().filter(|_| line.chunk.is_none());
            source.is_some_and(|source| sources.contains(source))
        };
        if let Some(log) = run.rejects.log().filter(|_| point.resumes().is_some() && !sources.is_empty())
            && log.earlier()?.kept.iter().any(|kept| is_of(&kept.line))
        {
            // They are read again, and what is rejected of them is rejected again.
            log.add([Line::Anew { anew: sources.clone() }], false)?;
        }
        let context = run.session.task_ctx();
        for lookup in lookups {
            let ready = async {
                tokio::select! {
                    biased;
                    error = run.threads.processes().too_much() => Err(error),
                    ready = lookup.shared().ready(lookup.reference(), &context) => ready.map(drop),
                }
            };
            let ready = self.work.unless_interrupted(ready).await;
            ready.map_err(|error| match error.step_name() {
                Some(_) => error,
                None => error.in_step(&lookup.shape().step),
            })?;
        }
        sources.into_iter().try_for_each(|source| run.rejects.judge(&Entry::Step(source)))
    }

    /// The hashes of what is looked up in, by the steps that do it.
    pub(super) fn reference_hashes(&self) -> BTreeMap<String, String> {
        let hash = |lookup: &LookupExec| {
            let reference = lookup.shared().loaded()?;
            Some((lookup.shape().step.clone(), format!("{:016x}", reference.hash())))
        };
        self.lookups().into_iter().filter_map(hash).collect()
    }

    /// Begins the loads of `planned`. Their targets are asked for commit markers before the first one begins: a load
    /// that has begun may lock what the next one looks at.
    async fn begin_all(&mut self, mut planned: Vec<PlannedSink<'j>>) -> Result<()> {
        let Work { job, prepared, point, live, .. } = self.work;
        for sink in &mut planned {
            if sink.by_chunk.is_err() && sink.context.notes.is_none() {
                sink.context = self.with_marker(sink.sink, sink.context.clone()).await?;
            }
        }
        let fingerprints = Fingerprints::of(job, prepared);
        for sink in planned {
            match (sink.by_chunk.clone(), sink.staged.clone()) {
                (Ok(pipelines), _) => self.begin_by_chunk(sink, pipelines, &fingerprints).await?,
                (Err(_), Some(pipelines)) => self.begin_staged(sink, pipelines, &fingerprints).await?,
                (Err(_), None) => self.begin_at_once(sink).await?,
            }
        }
        self.tasks.plans.extend(self.physical.for_checks.iter().map(|step| Arc::clone(&step.plan)));
        point.find_traces(&self.sinks.ledgers()).await?;
        let references = self.reference_hashes();
        if self.is_catch_up() || self.sinks.at_once().iter().any(|sink| sink.load.is_there()) {
            point.same_references(&references)?;
        }
        fail_point::pass("loading.before");
        point.loading(job, prepared, live, &references)
    }

    /// All sinks, with how each is loaded, and what is read for it.
    async fn planned_sinks(&mut self) -> Result<Vec<PlannedSink<'j>>> {
        let job = self.work.job;
        let plans: Vec<_> = self.physical.roots.iter().map(|root| Arc::clone(&root.plan)).collect();
        let mut planned = Vec::new();
        for ((sink, plan), by_chunk) in job.sinks.iter().zip(plans).zip(sinks::by_chunk(job, &self.physical)?) {
            let context = self.context(sink, &plan)?;
            let staged = match self.work.run.replay {
                None => sinks::staged(job, sink, &plan),
                Some(_) => None,
            };
            planned.push(PlannedSink { sink, plan, by_chunk, staged, context });
        }
        self.go_on_at_once(&mut planned).await?;
        for PlannedSink { sink, context, .. } in &planned {
            self.work.unless_interrupted(self.work.warn_of_other_values(sink, context)).await?;
        }
        self.admit(&mut planned).await?;
        Ok(planned)
    }

    /// Plans only those sinks again that take rows in this run: what the others alone would read is not read.
    async fn plan_takers(
        &mut self,
        planned: Vec<PlannedSink<'j>>,
        steps_before: usize,
    ) -> Result<Vec<PlannedSink<'j>>, Failure> {
        let Work { run, job, prepared, .. } = self.work;
        let takes = |name: &str| self.admission.as_ref().is_some_and(|admission| admission.takes(name));
        // The counters of plans that do not run.
        run.steps.truncate(steps_before);
        let physical = prepared.plan_some_sinks(job, |sink| takes(&sink.name.value)).await?;
        let takers = planned.into_iter().filter(|planned| takes(&planned.sink.name.value)).zip(&physical.roots);
        let taker = |(planned, root): (PlannedSink<'j>, &Root)| {
            let LoadContext { notes, take_over, .. } = planned.context;
            let context = LoadContext { notes, take_over, ..self.context(planned.sink, &root.plan)? };
            Ok(PlannedSink { plan: Arc::clone(&root.plan), context, ..planned })
        };
        let takers = takers.map(taker).collect::<Result<_>>()?;
        self.physical = physical;
        Ok(takers)
    }

    /// Loads all at once what earlier runs have begun to load all at once, and what goes into the same place.
    async fn go_on_at_once(&self, planned: &mut [PlannedSink<'j>]) -> Result<()> {
        for PlannedSink { sink, by_chunk, context, .. } in &mut *planned {
            // The load of incremental sources belongs to all runs, none of which goes all at once.
            let may_have_begun = by_chunk.as_ref().is_ok_and(|pipelines| !is_incremental(pipelines));
            if !may_have_begun {
                continue;
            }
            let begun = self.work.unless_interrupted(self.work.point.has_begun_at_once(sink, context)).await;
            if begun.map_err(|error| error.in_step(&sink.name.value))? {
                *by_chunk = Err("an earlier run has begun it so".to_owned());
            }
        }
        let targets = planned.iter().map(|planned| planned.sink.sink.target()).collect::<Vec<_>>();
        sinks::not_beside_others(&targets, planned.iter_mut().map(|planned| &mut planned.by_chunk));
        Ok(())
    }

    /// Decides what is read of incremental sources whose sinks are loaded all at once, and gives these what they note.
    async fn admit(&mut self, planned: &mut [PlannedSink<'j>]) -> Result<()> {
        let Work { run, job, prepared, point, .. } = self.work;
        let mut noting = Vec::new();
        for PlannedSink { sink, by_chunk, context, .. } in &mut *planned {
            let sources: Vec<String> =
                sinks::incremental_sources(job, sink).map(|source| source.name.value.clone()).collect();
            if sources.is_empty() || by_chunk.is_ok() || run.replay.is_some() {
                continue;
            }
            let notes = Arc::new(LoadNotes::new(&point.load_of_all_runs(sink)));
            let found = point.noted(sink, &notes.load, context);
            let written = self.work.unless_interrupted(found).await.map_err(|error| error.in_step(&sink.name.value))?;
            context.notes = Some(Arc::clone(&notes));
            context.take_over = point.takes_over();
            let (name, target) = (sink.name.value.clone(), sink.sink.target());
            let (written, adds_rows) = (Arc::new(written), sink.sink.adds_rows());
            noting.push(NotingSink { name, target, written, notes, sources, adds_rows });
        }
        if noting.is_empty() {
            return Ok(());
        }
        let is_read = |reader: &&Arc<Reader>| noting.iter().any(|sink| sink.sources.contains(&reader.name));
        let source = |reader: &Arc<Reader>| {
            let by = reader.incremental_by.as_ref().map(|by| {
                let columns = prepared.source_columns(&reader.name);
                let column = columns.and_then(|columns| columns.field_with_name(&by.by).ok().cloned());
                let step = job.sources.iter().find(|source| source.name.value == reader.name);
                let selected = step.and_then(|source| source.selected.clone());
                let timed = column.zip(selected).map(|(column, selected)| TimedRows { column, selected });
                timed.ok_or_else(|| Error::internal("the column by which rows are read is not known"))
            });
            Ok(AdmittedSource { reader: Arc::clone(reader), by: by.transpose()? })
        };
        let sources = prepared.readers.iter().filter(is_read).map(source).collect::<Result<Vec<_>>>()?;
        let admission = Admission::of(sources, &noting, point.accepts_changed());
        self.admission = Some(self.work.unless_interrupted(admission).await?);
        Ok(())
    }

    /// Whether the run only brings sinks to what others have.
    pub(super) fn is_catch_up(&self) -> bool {
        self.admission.as_ref().is_some_and(|admission| admission.is_catch_up)
    }

    /// Begins a load chunk by chunk; all at once, if its target keeps no ledger.
    async fn begin_by_chunk(
        &mut self,
        planned: PlannedSink<'j>,
        pipelines: Vec<Pipeline>,
        fingerprints: &Fingerprints,
    ) -> Result<()> {
        let Work { run, point, live, .. } = self.work;
        let sink = planned.sink;
        let opened = point.open_ledger(sink, &pipelines, planned.context.clone(), fingerprints);
        let opened = self.work.unless_interrupted(opened).await;
        let Some(ledger) = opened.map_err(|error| error.in_step(&sink.name.value))? else {
            let context = self.with_marker(sink, planned.context).await?;
            return self.begin_at_once(PlannedSink { context, ..planned }).await;
        };
        // Of a run that has died before its rows became visible all at once.
        self.begin_rejects_anew(&sink.name.value, &planned.plan, false)?;
        let load = ledger.load(run, pipelines, planned.context.step, point, live.map(LiveRun::progress)).await?;
        let loading = load.run(Arc::clone(&ledger.rows));
        self.tasks.chunk_loads.push(self.timed(sink, loading));
        self.sinks.push(SinkRun::ByChunk(Box::new(ByChunk { ledger, loaded: None })));
        Ok(())
    }

    /// Begins a load whose rows are staged chunk by chunk; all at once, if its target cannot do that.
    async fn begin_staged(
        &mut self,
        planned: PlannedSink<'j>,
        pipelines: Vec<Pipeline>,
        fingerprints: &Fingerprints,
    ) -> Result<()> {
        let Work { run, point, .. } = self.work;
        let sink = planned.sink;
        let opened = point.open_staged(sink, &pipelines, planned.context.clone(), fingerprints, run.machine().cores);
        let opened = self.work.unless_interrupted(opened).await;
        let Some(mut open) = opened.map_err(|error| error.in_step(&sink.name.value))? else {
            return self.begin_at_once(planned).await;
        };
        // Of a run whose rows were not staged chunk by chunk.
        self.begin_rejects_anew(&sink.name.value, &planned.plan, open.load.is_there())?;
        let step = planned.context.step;
        let chunks = open.chunks(run, pipelines, Arc::clone(&step));
        let (load, rows) = (Arc::clone(&open.load), Arc::clone(&open.rows));
        self.tasks.chunk_loads.push(match load.is_there() {
            true => self.timed(sink, chunks.take_over()),
            false => self.timed(sink, chunks.run(rows)),
        });
        self.sinks.push(SinkRun::AtOnce(Box::new(AtOnce::staged(sink, step, planned.plan, open))));
        Ok(())
    }

    /// Begins a load all at once.
    async fn begin_at_once(&mut self, planned: PlannedSink<'j>) -> Result<()> {
        let PlannedSink { sink, plan, context, .. } = planned;
        let (run, name) = (self.work.run, &sink.name.value);
        let begun = self.work.unless_interrupted(AtOnce::begin(run, sink, plan, context)).await;
        let (at_once, load) = begun.map_err(|error| error.in_step(name))?;
        let (input, is_there) = (Arc::clone(&at_once.plan), at_once.load.is_there());
        self.sinks.push(SinkRun::AtOnce(Box::new(at_once)));
        if is_there {
            run.rejects.pass(None);
        }
        self.begin_rejects_anew(name, &input, is_there)?;
        self.tasks.plans.push(Arc::new(load));
        Ok(())
    }

    /// `loading`, which reports how long it takes.
    fn timed(
        &self,
        sink: &SinkStep,
        loading: impl Future<Output = Result<LoadedChunks>> + Send + 'static,
    ) -> BoxFuture<'static, Result<LoadedChunks>> {
        let (stages, name) = (self.work.run.stages.clone(), sink.name.value.clone());
        async move { stages.timed(StageKind::Sink, Some(&name), loading).await }.boxed()
    }

    fn context(&self, sink: &SinkStep, plan: &Arc<dyn ExecutionPlan>) -> Result<LoadContext> {
        let (run, name) = (self.work.run, &sink.name.value);
        let schema = self.work.prepared.sink_columns(sink);
        let schema = schema.ok_or_else(|| Error::internal(format!("the columns of sink `{name}` are not known")))?;
        Ok(LoadContext {
            run: self.work.point.run.clone(),
            first: self.work.point.first().to_owned(),
            sink: name.clone(),
            marker: None,
            notes: None,
            take_over: false,
            worker: None,
            schema,
            partitions: plan.output_partitioning().partition_count(),
            ordered: plan.output_ordering().is_some(),
            io: run.runtimes.io(),
            scratch: run.scratch.folder().to_owned(),
            programs: self.work.prepared.programs(name),
            budget: Arc::clone(&run.budget),
            step: run.steps.add(name, StepKind::Load, sink.sink.name()),
            refusals: None,
        })
    }

    /// `context` of a load that goes all at once, with its commit marker.
    async fn with_marker(&mut self, sink: &SinkStep, context: LoadContext) -> Result<LoadContext> {
        let point = self.work.point;
        let marker = self.work.unless_interrupted(point.marker(sink, &context)).await;
        let marker = marker.map_err(|error| error.in_step(&sink.name.value))?;
        self.stale.extend(marker.stale.into_iter().map(|load| CommitMarker {
            sink: Arc::clone(&sink.sink),
            load,
            context: LoadContext { take_over: true, ..context.clone() },
        }));
        Ok(LoadContext { marker: marker.load, take_over: point.takes_over(), ..context })
    }

    /// Forgets what earlier runs have rejected on the way to a sink that was loaded all at once: it will be rejected
    /// again.
    fn begin_rejects_anew(&self, sink: &str, plan: &Arc<dyn ExecutionPlan>, is_there: bool) -> Result<()> {
        let Work { run, point, .. } = self.work;
        let Some(log) = run.rejects.log().filter(|_| point.resumes().is_some()) else { return Ok(()) };
        if log.earlier()?.kept.iter().all(|kept| kept.line.chunk.is_some()) {
            return Ok(());
        }
        let mut anew = sources(plan);
        anew.extend((!is_there).then(|| sink.to_owned()));
        log.add([Line::Anew { anew }], false)
    }

    /// Takes over what operators have counted themselves, once none of them runs any more.
    pub(super) fn settle(&self) {
        self.physical.metered.iter().for_each(|metered| metered.settle());
    }

    /// The units that could not be opened or were left out: each is an error of a run that fails.
    pub(super) fn unopened(&self) -> Vec<Error> {
        let mut unopened = self.work.prepared.unopened();
        unopened.extend(self.work.prepared.all_skipped());
        unopened
    }

    /// Ends a run whose rows have all come and break checks, and rolls back what is not committed.
    pub(super) async fn fail_checks(self, mut errors: Vec<Error>) -> Failure {
        let first = errors.remove(0);
        self.sinks.staged().iter().for_each(|staged| staged.give_up());
        let mut failure = self.fail(first).await;
        failure.errors.extend(errors);
        failure
    }

    /// Ends a run that fails with `error` before its loads run.
    async fn fail_to_begin(self, error: Error) -> Failure {
        self.settle();
        self.fail(error).await
    }

    /// Ends a run that fails with `error`, and rolls back what is not committed.
    pub(super) async fn fail(self, error: Error) -> Failure {
        let unopened = self.unopened();
        // They are to be seen; that they cannot be written is not why it failed.
        let _ = self.work.run.rejects.flush();
        self.sinks.roll_back().await;
        let error = resume::stopped(self.work.point, error, &self.sinks.ledgers()).await;
        let some_visible = self.sinks.ledgers().iter().any(|ledger| ledger.rows.load(Ordering::Relaxed) > 0);
        let error = resume::left(self.work.point, error, &self.sinks.staged(), some_visible);
        let error = self.sinks.with_left(error);
        let error = output_closed(self.work.job, error);
        let alone = matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::OutputClosed);
        let errors = if alone { vec![error] } else { unopened.into_iter().chain([error]).collect() };
        Failure { lints: Vec::new(), errors }
    }
}

/// The sources whose rows `plan` gives.
fn sources(plan: &Arc<dyn ExecutionPlan>) -> Vec<String> {
    let own = plan.downcast_ref::<ReadExec>().map(|read| read.source().to_owned());
    let with_origins = plan.downcast_ref::<OriginReadExec>().map(|read| read.source().to_owned());
    own.into_iter().chain(with_origins).chain(row_inputs(plan).into_iter().flat_map(sources)).collect()
}

/// The reader of standard output may close it early; but what goes elsewhere is then missing there.
fn output_closed(job: &Job, error: Error) -> Error {
    let only_output = job.sinks.iter().all(|sink| sink.write.value == "-");
    if error.kind() != ErrorKind::OutputClosed || only_output {
        return error;
    }
    let plain = Error::refused(format!("{}: its reader has closed it", error.what()))
        .hint("what the other sinks had written was rolled back; read standard output to its end, or write to a file");
    error.step_name().into_iter().fold(plain, Error::in_step)
}
