//! The load of a sink whose rows are staged chunk by chunk, and become visible all at once: opens it, looks whether
//! what an earlier run has staged can be used, and leaves it to the next run if this one fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millstream_core::counts::counted;
use millstream_core::sink::{Chunk, Ledger, Load, LoadContext, StagedLoad, WrittenChunks};
use millstream_core::{Error, ErrorKind, Result, Step};
use millstream_job::SinkStep;

use super::decide::Staged;
use super::point::ResumePoint;
use crate::chunks::load::{ChunkLoad, Commits, check_rules, have_same_units};
use crate::chunks::pipeline::Pipeline;
use crate::chunks::references::References;
use crate::context::RunContext;
use crate::fingerprint::Fingerprints;

/// The most deliveries at once: each has a group in memory.
const MOST_DELIVERIES: usize = 8;

/// The staged load of a sink in this run.
pub struct OpenStaged {
    /// Makes the rows visible.
    pub load: Arc<dyn Load>,
    ledger: Arc<dyn Ledger>,
    name: String,
    sink: String,
    fingerprint: Chunk,
    references: References,
    /// Rows that this run has staged.
    pub rows: Arc<AtomicU64>,
    /// Whether an earlier run has staged some that are used.
    pub is_resumed: bool,
    /// Whether nothing is left to the next run if this one fails.
    is_given_up: AtomicBool,
    commits: Commits,
}

impl ResumePoint {
    /// The staged load of `sink`, to which `pipelines` lead, and whose lookups have read their references; `None` if
    /// its target cannot do that.
    pub async fn open_staged(
        &self,
        sink: &SinkStep,
        pipelines: &[Pipeline],
        context: LoadContext,
        fingerprints: &Fingerprints,
        cores: usize,
    ) -> Result<Option<OpenStaged>> {
        let names = self.names(sink);
        let context = LoadContext { take_over: self.takes_over(), ..context };
        let staged = sink.sink.staged(&names.staged(), names.of_sink(), context.clone()).await?;
        let Some(mut staged) = staged else { return Ok(None) };
        let mut references = References::of(pipelines, None)?;
        let written = staged.ledger.written().await?;
        let mut is_resumed = !written.is_empty();
        if is_resumed && !can_be_used(&staged, &written, pipelines, &mut references, fingerprints).await? {
            is_resumed = false;
            staged = match staged.load.is_there() {
                false => {
                    staged.ledger.begin_anew().await?;
                    staged
                }
                // What this run merges may be something else by now.
                true => {
                    staged.ledger.forget(&names.staged()).await?;
                    let anew = sink.sink.staged(&names.staged(), names.of_sink(), context).await?;
                    anew.ok_or_else(|| Error::internal("a load can be staged no more"))?
                }
            };
        }
        let StagedLoad { ledger, load } = staged;
        let connections = ledger.connections();
        Ok(Some(OpenStaged {
            load,
            ledger,
            name: names.staged(),
            sink: sink.name.value.clone(),
            fingerprint: fingerprints.note(),
            references,
            rows: Arc::default(),
            is_resumed,
            // No other run would find it.
            is_given_up: AtomicBool::new(self.history.is_none()),
            commits: Commits::new((connections + 1).max(cores.min(MOST_DELIVERIES))),
        }))
    }
}

/// Whether what is staged, or was published, is what this run would stage. Notes of references that are known already
/// are left out.
async fn can_be_used(
    StagedLoad { ledger, load }: &StagedLoad,
    written: &WrittenChunks,
    pipelines: &[Pipeline],
    references: &mut References,
    fingerprints: &Fingerprints,
) -> Result<bool> {
    let staged = Staged {
        compared: fingerprints.compare_notes(written),
        known_rules: check_rules(written, &ledger.target()).is_ok(),
        same_references: references.are(written),
        same_files: have_same_units(pipelines, written, load.is_there()).await?,
    };
    if staged.can_be_used() {
        references.leave_out(written);
    }
    Ok(staged.can_be_used())
}

impl OpenStaged {
    /// What stages the rows of `pipelines`.
    pub fn chunks(&mut self, run: &RunContext, pipelines: Vec<Pipeline>, step: Arc<Step>) -> ChunkLoad {
        ChunkLoad {
            name: self.sink.clone(),
            notes_rejects_of: None,
            pipelines,
            ledger: Arc::clone(&self.ledger),
            step,
            budget: Arc::clone(&run.budget),
            context: run.session.task_ctx(),
            workers: run.runtimes.workers(),
            accept_changed: false,
            rejects: Arc::clone(&run.rejects),
            fingerprint: Some(self.fingerprint.clone()),
            references: std::mem::take(&mut self.references),
            progress: None,
            commits: self.commits.clone(),
            scratch: run.scratch.folder().to_owned(),
            is_staged: true,
            by_workers: Arc::default(),
            bundle: None,
        }
    }

    /// Leaves nothing to the next run if this one fails: it would come to the same end.
    pub fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }

    fn staged_rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Whether something is left to the next run if this one fails now.
    fn is_left(&self) -> bool {
        let has_some = (self.is_resumed && !self.load.is_there()) || self.staged_rows() > 0;
        has_some && !self.is_given_up.load(Ordering::Relaxed)
    }

    /// The run has failed, and nothing of the load is visible. What is staged stays, unless that is nothing.
    pub async fn roll_back(&self) {
        self.commits.end(self.ledger.stop_waiting()).await;
        match self.is_left() {
            true => self.load.suspend().await,
            false => self.load.abort().await,
        }
    }

    /// Drops what is left of it, once the run is recorded.
    pub async fn forget(&self) -> Option<(String, Error)> {
        self.ledger.forget(&self.name).await.err().map(|error| (self.sink.clone(), error))
    }
}

/// `error`, which stopped the run, and what of `staged` loads is left to the next one. Other sinks of the run may have
/// rows that are visible, which `error` says then.
pub fn left(point: &ResumePoint, error: Error, staged: &[&OpenStaged], some_visible: bool) -> Error {
    let left: Vec<_> = staged.iter().filter(|one| one.is_left()).collect();
    if left.is_empty() {
        return error;
    }
    let rows: u64 = left.iter().map(|one| one.staged_rows()).sum();
    let verb = if rows == 1 { "is" } else { "are" };
    let staged = match left.iter().any(|one| one.is_resumed) {
        true if rows == 0 => "what is staged stays".to_owned(),
        true => format!("{} {verb} staged", counted(rows, "more row")),
        false => format!("{} {verb} staged", counted(rows, "row")),
    };
    let go_on = format!("{} stages the rest", point.resume_command());
    if error.kind() == ErrorKind::Interrupted && !some_visible {
        let what = format!("the run was interrupted; {staged}, and nothing is visible");
        return Error::new(ErrorKind::Interrupted, what).hint(go_on);
    }
    match error.hint_text().map(str::to_owned) {
        Some(hint) => error.hint(format!("{hint}; then {go_on}: {staged}")),
        None => error.hint(format!("{staged}, and {go_on}")),
    }
}
