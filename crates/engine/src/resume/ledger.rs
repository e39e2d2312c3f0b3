//! The ledger of a sink in this run.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use millstream_core::sink::{Chunk, Ledger, LoadContext, WrittenChunks};
use millstream_core::{Error, ErrorKind, Result, Step};
use millstream_job::SinkStep;
use millstream_state::ProgressFile;

use super::decide::{self, Choice, LoadKind, Trace};
use super::point::ResumePoint;
use crate::chunks::load::{ChunkLoad, Commits, first_notes, is_complete, note_complete, says_all_else_is_loaded};
use crate::chunks::pipeline::{Pipeline, is_incremental};
use crate::chunks::references::References;
use crate::chunks::shared::ByWorkers;
use crate::context::RunContext;
use crate::fingerprint::Fingerprints;
use crate::report::{SinkResult, Tally};

/// The ledger of a sink in this run.
pub struct OpenLedger {
    ledger: Arc<dyn Ledger>,
    load: String,
    sink: String,
    target: String,
    incremental: bool,
    fingerprint: Option<Chunk>,
    /// Loads of earlier runs that are complete.
    stale: Vec<String>,
    /// Rows that have become visible.
    pub rows: Arc<AtomicU64>,
    /// What has become of the records, once all have come.
    tally: Mutex<Option<Tally>>,
    commits: Commits,
    /// What workers of a cluster do of it.
    pub by_workers: Arc<ByWorkers>,
    /// What it begins with.
    first_notes: OnceLock<Vec<Chunk>>,
    /// Whether that was noted before there were rows, for workers.
    is_begun: AtomicBool,
}

impl ResumePoint {
    /// The ledger of `sink`, to which `pipelines` lead; `None` if there can be none.
    pub async fn open_ledger(
        &self,
        sink: &SinkStep,
        pipelines: &[Pipeline],
        context: LoadContext,
        fingerprints: &Fingerprints,
    ) -> Result<Option<OpenLedger>> {
        self.be_the_only_run()?;
        let kind = match is_incremental(pipelines) {
            true => LoadKind::Incremental,
            false if self.replay.is_some() => LoadKind::Round,
            false => LoadKind::ByChunk,
        };
        let incremental = kind == LoadKind::Incremental;
        let names = self.names(sink);
        let own = if incremental { names.incremental() } else { names.by_chunk() };
        // No other run can have a load that is named after this run.
        let context = LoadContext { take_over: self.takes_over(), ..context };
        if incremental && self.options.restart {
            // What the ledger knows of files is forgotten before anything is looked up in it: the table may be gone.
            sink.sink.forget_marker(&own, LoadContext { take_over: true, ..context.clone() }, false).await?;
        }
        let Some(mut ledger) = sink.sink.ledger(&own, context.clone()).await? else { return Ok(None) };
        let choice = self.choose(sink, kind, ledger.as_ref(), &names, fingerprints).await;
        if !matches!(choice, Ok(Choice { resumes: None, .. })) {
            // The load of its own was only needed to look for others.
            ledger.forget_unwritten(&own).await?;
        }
        let Choice { resumes, stale } = choice?;
        if let Some(other) = &resumes {
            ledger = match sink.sink.ledger(other, context).await? {
                Some(ledger) => ledger,
                None => return Ok(None),
            };
        }
        Ok(Some(OpenLedger {
            ledger,
            load: resumes.unwrap_or(own),
            sink: sink.name.value.clone(),
            target: sink.sink.target(),
            incremental,
            fingerprint: (!incremental).then(|| fingerprints.note()),
            stale,
            rows: Arc::default(),
            tally: Mutex::default(),
            commits: Commits::default(),
            by_workers: Arc::default(),
            first_notes: OnceLock::new(),
            is_begun: AtomicBool::new(false),
        }))
    }

    /// The name of the load of `sink` that all runs share.
    pub fn load_of_all_runs(&self, sink: &SinkStep) -> String {
        self.names(sink).incremental()
    }

    /// The name of the load of `sink` that all processes share which read the queue `queue` in the name of `group`.
    pub fn load_of_queue(&self, sink: &SinkStep, queue: &str, group: &str) -> String {
        self.names(sink).of_queue(queue, group)
    }

    /// What is noted of the load `load` that all runs share, in the target of `sink`. With `--restart` that is
    /// forgotten.
    pub async fn noted(&self, sink: &SinkStep, load: &str, context: &LoadContext) -> Result<WrittenChunks> {
        self.be_the_only_run()?;
        if self.options.restart {
            let context = LoadContext { take_over: true, ..context.clone() };
            sink.sink.forget_marker(load, context, false).await?;
        }
        sink.sink.noted(load, context.clone()).await
    }

    /// Refuses to resume runs that have loaded rows, but of which the ledgers have no record.
    pub async fn find_traces(&self, ledgers: &[&OpenLedger]) -> Result<()> {
        let (Some(history), Some(first)) = (&self.history, self.resumes()) else { return Ok(()) };
        let rows = history.rows_of(first, None)?;
        if rows == 0 || ledgers.iter().any(|one| one.incremental) {
            return Ok(());
        }
        let mut traces = Vec::new();
        for one in ledgers {
            traces.push(Trace { is_empty: one.ledger.written().await?.is_empty(), is_complete: false });
        }
        if traces.iter().any(|trace| trace.is_empty) {
            for (one, trace) in ledgers.iter().zip(&mut traces) {
                trace.is_complete = is_complete(one.ledger.as_ref(), &one.load).await?;
            }
        }
        decide::rows_are_known(first, rows, &traces)
    }
}

impl OpenLedger {
    /// The load of what `pipelines` read, whose lookups have read their references.
    ///
    /// # Errors
    /// If the load was begun with other references.
    pub async fn load(
        &self,
        run: &RunContext,
        pipelines: Vec<Pipeline>,
        step: Arc<Step>,
        point: &ResumePoint,
        progress: Option<Arc<ProgressFile>>,
    ) -> Result<ChunkLoad> {
        let mut references = References::of(&pipelines, self.incremental.then(|| point.first()))?;
        let _ = self.first_notes.set(first_notes(self.fingerprint.as_ref(), &references));
        if !references.is_empty() {
            references.check(&self.ledger.written().await?).map_err(|error| error.in_step(&self.sink))?;
        }
        Ok(ChunkLoad {
            name: self.sink.clone(),
            notes_rejects_of: self.incremental.then(|| point.first().to_owned()),
            pipelines,
            ledger: Arc::clone(&self.ledger),
            step,
            budget: Arc::clone(&run.budget),
            context: run.session.task_ctx(),
            workers: run.runtimes.workers(),
            accept_changed: point.accepts_changed(),
            rejects: Arc::clone(&run.rejects),
            fingerprint: self.fingerprint.clone(),
            references,
            progress,
            commits: self.commits.clone(),
            scratch: run.scratch.folder().to_owned(),
            is_staged: false,
            by_workers: Arc::clone(&self.by_workers),
            bundle: None,
        })
    }

    /// Notes what it begins with, unless that is there: workers do not compete for it then.
    pub async fn begin_for_workers(&self) -> Result<()> {
        let written = self.ledger.written().await?;
        let missing = self.first_notes.get().into_iter().flatten().filter(|note| !written.contains(note));
        let missing: Vec<Chunk> = missing.cloned().collect();
        if !missing.is_empty() {
            self.is_begun.store(written.is_empty(), Ordering::Relaxed);
            self.ledger.delivery(missing, 0).await?.commit().await?;
        }
        Ok(())
    }

    /// Forgets its load if nothing but its beginning is in the ledger.
    async fn forget_unwritten(&self) -> Result<()> {
        let begins_with = self.first_notes.get().map_or(0, |notes| notes.len() as u64);
        if self.is_begun.load(Ordering::Relaxed) && self.ledger.count().await? == begins_with {
            return self.ledger.forget(&self.load).await;
        }
        self.ledger.forget_unwritten(&self.load).await.map(drop)
    }

    /// The name of its sink.
    pub fn sink(&self) -> &str {
        &self.sink
    }

    /// The name of its load.
    pub fn load_name(&self) -> &str {
        &self.load
    }

    /// Whether its load belongs to all runs.
    pub fn is_incremental(&self) -> bool {
        self.incremental
    }

    /// The ledger itself.
    pub fn ledger(&self) -> Arc<dyn Ledger> {
        Arc::clone(&self.ledger)
    }

    /// Whether it is that of `sink`.
    pub fn is_of(&self, sink: &str) -> bool {
        self.sink == sink
    }

    /// All records have come, and this has become of them.
    pub fn set_tally(&self, tally: Tally) {
        *self.tally.lock().unwrap_or_else(PoisonError::into_inner) = Some(tally);
    }

    /// What there is now.
    pub fn result(&self) -> SinkResult {
        let summary = self.ledger.summary(self.rows.load(Ordering::Relaxed));
        let tally = *self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        SinkResult {
            sink: self.sink.clone(),
            target: self.target.clone(),
            summary,
            removed: None,
            reloaded: None,
            changes: None,
            tally,
        }
    }
}

/// `error`, which stopped the run, and what of the run stays. Commits that are under way end first; a load that has
/// nothing is forgotten.
pub async fn stopped(point: &ResumePoint, error: Error, ledgers: &[&OpenLedger]) -> Error {
    let ends = ledgers.iter().map(|one| one.commits.end(one.ledger.stop_waiting()));
    futures::future::join_all(ends).await;
    for one in ledgers.iter().filter(|one| !one.incremental && one.rows.load(Ordering::Relaxed) == 0) {
        // Whether that works does not matter: the next run does it.
        let _ = one.forget_unwritten().await;
    }
    let rows: u64 = ledgers.iter().map(|one| one.rows.load(Ordering::Relaxed)).sum();
    if rows == 0 || (ledgers.len() == 1 && says_all_else_is_loaded(&error)) {
        return error;
    }
    let go_on = match &point.replay {
        Some(replay) => format!("`millstream rejects {} --replay` loads the rest", replay.first),
        None => format!("{} loads the rest", point.resume_command()),
    };
    // Those of earlier attempts stay.
    let more = if point.resumes().is_some() { " more" } else { "" };
    let are_loaded = match rows {
        1 => format!("1{more} row is loaded"),
        rows => format!("{rows}{more} rows are loaded"),
    };
    if error.kind() == ErrorKind::Interrupted {
        let what = format!("the run was interrupted; {are_loaded}, and the rest was rolled back");
        return Error::new(ErrorKind::Interrupted, what).hint(go_on);
    }
    match error.hint_text().map(str::to_owned) {
        // What is to be done first has been told.
        Some(hint) => error.hint(format!("{hint}; then {go_on}: {are_loaded}")),
        None => error.hint(format!("{are_loaded}, and {go_on}")),
    }
}

/// Notes that loads are complete.
pub async fn complete(ledgers: &[&OpenLedger]) -> Result<()> {
    for one in ledgers.iter().filter(|one| !one.incremental) {
        note_complete(one.ledger.as_ref()).await.map_err(|error| error.in_step(&one.sink))?;
    }
    Ok(())
}

/// Forgets loads that are complete. What could not be forgotten, or taken away, comes back with its sink's name: the
/// next run does it.
pub async fn forget(ledgers: &[OpenLedger]) -> Vec<(String, Error)> {
    let mut left = Vec::new();
    for one in ledgers.iter().filter(|one| !one.incremental) {
        for stale in &one.stale {
            // Its own run, or the next one, does it.
            let _ = one.ledger.forget(stale).await;
        }
        left.extend(one.ledger.forget(&one.load).await.err().map(|error| (one.sink.clone(), error)));
    }
    left
}
