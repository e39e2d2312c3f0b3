//! The sinks of a run: one value for each, which owns its load, its counters and its ledger.

use std::sync::Arc;

use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use millstream_core::sink::{Load, LoadContext, Refusals, Sink};
use millstream_core::{Error, Result, Step};
use millstream_job::SinkStep;

use crate::chunks::load::Loaded as LoadedChunks;
use crate::chunks::origins::with_origins;
use crate::chunks::pipeline::{Counts, Pipeline, counts, row_preserving};
use crate::context::RunContext;
use crate::fault;
use crate::load::LoadExec;
use crate::rejects::SinkRefusals;
use crate::report::{SinkResult, Tally};
use crate::resume::{OpenLedger, OpenStaged};

/// A sink whose load has begun.
pub(super) enum SinkRun<'j> {
    /// Its rows become visible all at once.
    AtOnce(Box<AtOnce<'j>>),
    /// Its rows become visible chunk by chunk.
    ByChunk(Box<ByChunk>),
}

/// A load that goes all at once. If the run ends before it is committed, however it ends, it is rolled back.
pub(super) struct AtOnce<'j> {
    pub(super) sink: &'j SinkStep,
    pub(super) load: Arc<dyn Load>,
    /// Its counters.
    pub(super) step: Arc<Step>,
    /// The plan that gives its rows.
    pub(super) plan: Arc<dyn ExecutionPlan>,
    /// The plan of its rows, if each comes from one record.
    pub(super) row_preserving: Option<Arc<dyn ExecutionPlan>>,
    pub(super) marker: Option<CommitMarker>,
    /// How its rows are staged, if that is done chunk by chunk: then no operator of `plan` runs.
    pub(super) staged: Option<Staged>,
    /// What workers of a cluster have brought, if there were any.
    by_workers: Option<ByWorkers>,
}

/// What workers of a cluster have brought to a load.
#[derive(Debug, Clone, Copy)]
struct ByWorkers {
    /// What has become of their records.
    tally: Tally,
    /// What the steps had counted when they had ended. It tells no more than `tally`, and less of what is rejected.
    counted_before: Tally,
}

/// Rows that are staged chunk by chunk.
pub(super) struct Staged {
    pub(super) open: OpenStaged,
    /// What has become of the records, once all have come.
    pub(super) loaded: Option<LoadedChunks>,
}

/// A load that goes chunk by chunk.
pub(super) struct ByChunk {
    pub(super) ledger: OpenLedger,
    /// What it has come to, once everything has come.
    pub(super) loaded: Option<LoadedChunks>,
}

/// What a load notes in its target when its rows become visible.
pub(super) struct CommitMarker {
    pub(super) sink: Arc<dyn Sink>,
    pub(super) load: String,
    pub(super) context: LoadContext,
}

impl CommitMarker {
    /// The commit marker of a load of `sink` with this context, if it has one.
    pub(super) fn of(sink: &SinkStep, context: LoadContext) -> Option<Self> {
        let load = context.marker.clone()?;
        Some(CommitMarker { sink: Arc::clone(&sink.sink), load, context })
    }

    /// Forgets it; with `unwritten` only if the rows are not there.
    pub(super) async fn forget(&self, unwritten: bool) -> Result<()> {
        self.sink.forget_marker(&self.load, self.context.clone(), unwritten).await
    }
}

impl<'j> AtOnce<'j> {
    /// Begins a load of the rows of `plan`, and says what drives it. Where rows may be refused, they carry their
    /// origins.
    pub(super) async fn begin(
        run: &RunContext,
        sink: &'j SinkStep,
        plan: Arc<dyn ExecutionPlan>,
        context: LoadContext,
    ) -> Result<(Self, LoadExec)> {
        let (name, step) = (&sink.name.value, Arc::clone(&context.step));
        let refusals = SinkRefusals::of(&run.rejects, name, &step);
        let keep_origins = refusals.is_some();
        let pipelines = row_preserving(&plan);
        if let (Err(why), Some(replay)) = (&pipelines, &run.replay) {
            return Err(replay.refuse(why));
        }
        let input = match &pipelines {
            Ok(pipelines) if keep_origins || run.rejects.is_lenient() => {
                with_origins(pipelines, &run.rejects, true).map_err(fault::unwrap)?
            }
            Ok(pipelines) if pipelines.iter().flat_map(Pipeline::lookups).any(|lookup| lookup.shape().may_fail()) => {
                with_origins(pipelines, &run.rejects, false).map_err(fault::unwrap)?
            }
            _ => Arc::clone(&plan),
        };
        let context = LoadContext {
            partitions: input.output_partitioning().partition_count(),
            refusals: refusals.map(|refusals| refusals as Arc<dyn Refusals>),
            ..context
        };
        let load = sink.sink.begin(context.clone()).await?;
        let exec =
            LoadExec::new(name, Arc::clone(&sink.sink), Arc::clone(&load), Arc::clone(&step), Arc::clone(&input));
        let exec = exec.with_rejects(run.rejects.of_sink(name), keep_origins);
        let row_preserving = pipelines.ok().filter(|_| !load.is_there()).map(|_| plan);
        let marker = CommitMarker::of(sink, context);
        let by_workers = None;
        Ok((AtOnce { sink, load, step, plan: input, row_preserving, marker, staged: None, by_workers }, exec))
    }

    /// One whose rows, those of `plan`, are staged chunk by chunk.
    pub(super) fn staged(sink: &'j SinkStep, step: Arc<Step>, plan: Arc<dyn ExecutionPlan>, open: OpenStaged) -> Self {
        let (load, staged) = (Arc::clone(&open.load), Some(Staged { open, loaded: None }));
        AtOnce { sink, load, step, plan, row_preserving: None, marker: None, staged, by_workers: None }
    }
}

impl AtOnce<'_> {
    /// The name of the sink.
    pub(super) fn name(&self) -> &str {
        &self.sink.name.value
    }

    /// What has become of the records, none of which may be missing, if each row comes from one of them.
    pub(super) fn tally(&self) -> Result<Option<Tally>> {
        if let Some(staged) = &self.staged {
            return Ok(staged.loaded.as_ref().filter(|_| !self.load.is_there()).map(|loaded| loaded.tally));
        }
        let Some(counted) = self.counted() else { return Ok(None) };
        let tally = match self.by_workers {
            Some(ByWorkers { tally, counted_before }) => counted.minus(counted_before).and(tally),
            None => counted,
        };
        tally.check(self.name()).map(|()| Some(tally))
    }

    /// What the steps have counted, if each row comes from one record.
    fn counted(&self) -> Option<Tally> {
        let plan = self.row_preserving.as_ref()?;
        let Counts { read, filtered, rejected, answered, given, .. } = counts(plan);
        let load = self.step.snapshot();
        let rejected = rejected + load.rejected;
        Some(Tally { read, written: load.rows, filtered, rejected, answered, given, ..Tally::default() })
    }

    /// Workers of a cluster have brought the records of `tally`. What the steps have counted so far is of these.
    pub(super) fn add_workers(&mut self, tally: Tally) {
        let counted_before = self.counted().unwrap_or_default();
        self.by_workers = Some(ByWorkers { tally, counted_before });
    }

    /// The result of a load that is committed; `summary` tells what there is now.
    pub(super) fn result(&self, summary: String) -> Result<SinkResult> {
        // Which of the rows that are left out an earlier run has staged is not known.
        let is_resumed = self.staged.as_ref().is_some_and(|staged| staged.open.is_resumed);
        let ignored = if is_resumed { 0 } else { self.load.ignored() };
        let tally =
            self.tally()?.map(|tally| Tally { written: tally.written.saturating_sub(ignored), ignored, ..tally });
        self.step.leave_out_rows(ignored);
        let (sink, target) = (self.name().to_owned(), self.sink.sink.target());
        let removed = Some(self.load.removed()).filter(|removed| removed.files > 0);
        let (changes, reloaded) = (self.load.changes(), None);
        Ok(SinkResult { sink, target, summary, removed, reloaded, changes, tally })
    }

    /// Rolls back what is not committed.
    pub(super) async fn roll_back(&self) {
        match &self.staged {
            Some(staged) => staged.open.roll_back().await,
            None => self.load.abort().await,
        }
        if let Some(marker) = &self.marker {
            // The error that the run ends with is worth more than this one; the next run does it.
            let _ = marker.forget(true).await;
        }
    }
}

/// What targets have noted of the run.
#[derive(Default)]
pub(super) struct SinkEntries {
    pub(super) ledgers: Vec<OpenLedger>,
    pub(super) markers: Vec<CommitMarker>,
    pub(super) staged: Vec<OpenStaged>,
}

/// The sinks of a run, in their order in the job.
#[derive(Default)]
pub(super) struct Sinks<'j>(Vec<SinkRun<'j>>);

impl<'j> Sinks<'j> {
    /// Adds one.
    pub(super) fn push(&mut self, sink: SinkRun<'j>) {
        self.0.push(sink);
    }

    /// Those that load all at once.
    pub(super) fn at_once(&self) -> Vec<&AtOnce<'j>> {
        let at_once = self.0.iter().filter_map(|sink| match sink {
            SinkRun::AtOnce(at_once) => Some(at_once.as_ref()),
            SinkRun::ByChunk(_) => None,
        });
        at_once.collect()
    }

    /// Those that load chunk by chunk.
    pub(super) fn by_chunk(&self) -> impl Iterator<Item = &ByChunk> {
        self.0.iter().filter_map(|sink| match sink {
            SinkRun::ByChunk(by_chunk) => Some(by_chunk.as_ref()),
            SinkRun::AtOnce(_) => None,
        })
    }

    /// The same, to be changed.
    pub(super) fn at_once_mut(&mut self) -> impl Iterator<Item = &mut AtOnce<'j>> {
        self.0.iter_mut().filter_map(|sink| match sink {
            SinkRun::AtOnce(at_once) => Some(at_once.as_mut()),
            SinkRun::ByChunk(_) => None,
        })
    }

    /// The ledgers of those that load chunk by chunk.
    pub(super) fn ledgers(&self) -> Vec<&OpenLedger> {
        self.by_chunk().map(|sink| &sink.ledger).collect()
    }

    /// The loads that are staged chunk by chunk.
    pub(super) fn staged(&self) -> Vec<&OpenStaged> {
        self.at_once().into_iter().filter_map(|sink| sink.staged.as_ref()).map(|staged| &staged.open).collect()
    }

    /// What loads of chunks have come to, whenever their rows become visible.
    pub(super) fn loaded(&self) -> impl Iterator<Item = &LoadedChunks> {
        self.0.iter().filter_map(|sink| match sink {
            SinkRun::ByChunk(by_chunk) => by_chunk.loaded.as_ref(),
            SinkRun::AtOnce(at_once) => at_once.staged.as_ref()?.loaded.as_ref(),
        })
    }

    /// Takes note of what loads of chunks have come to.
    pub(super) fn set_loaded(&mut self, loaded: Vec<LoadedChunks>) {
        for loaded in loaded {
            for sink in &mut self.0 {
                match sink {
                    SinkRun::ByChunk(sink) if sink.ledger.is_of(&loaded.sink) => sink.loaded = Some(loaded.clone()),
                    SinkRun::AtOnce(sink) if sink.name() == loaded.sink => {
                        sink.staged.iter_mut().for_each(|staged| staged.loaded = Some(loaded.clone()));
                    }
                    _ => {}
                }
            }
        }
    }

    /// Rolls everything back before anything was committed: then nothing was written.
    pub(super) async fn roll_back(&self) {
        let at_once = self.at_once();
        for sink in &at_once {
            sink.roll_back().await;
        }
        at_once.iter().filter(|sink| sink.load.can_roll_back()).for_each(|sink| sink.step.roll_back_rows());
    }

    /// `error`, for which the run was rolled back, and what loads have left in their targets all the same.
    pub(super) fn with_left(&self, error: Error) -> Error {
        let left = self.at_once().into_iter().filter_map(|sink| sink.load.left());
        let lines: Vec<String> = error.hint_text().map(str::to_owned).into_iter().chain(left).collect();
        if lines.is_empty() { error } else { error.hint(lines.join("\n")) }
    }

    /// What is forgotten once the run is recorded: the ledgers' loads, the commit markers, and what is staged.
    pub(super) fn into_entries(self) -> SinkEntries {
        let mut entries = SinkEntries::default();
        for sink in self.0 {
            match sink {
                SinkRun::ByChunk(sink) => entries.ledgers.push(sink.ledger),
                SinkRun::AtOnce(sink) => {
                    entries.markers.extend(sink.marker);
                    entries.staged.extend(sink.staged.map(|staged| staged.open));
                }
            }
        }
        entries
    }
}
