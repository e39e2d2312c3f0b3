//! The commit of a run: makes everything durable, then visible.

use std::sync::atomic::{AtomicBool, Ordering};

use millstream_core::sink::InputFacts;
use millstream_core::source::RowSource;
use millstream_core::{Error, Result, fail_point};

use super::after_load::Settled;
use super::load::Loaded;
use super::publish_order::PublishOrder;
use super::sinks::{AtOnce, CommitMarker, SinkEntries};
use super::work::Work;
use crate::chunks::admission::Admission;
use crate::report::{CheckResult, LeftFiles, MissingColumn, SinkResult, Skipped, UnmatchedPatterns, WindowRead};
use crate::resume;

/// A run whose rows are all visible.
#[derive(Default)]
pub(super) struct Committed {
    pub(super) summary: Summary,
    pub(super) entries: Entries,
}

/// What a run has come to, beside the counters.
#[derive(Default)]
pub(super) struct Summary {
    pub(super) run: String,
    /// The first run of the resume chain, if the run resumes one.
    pub(super) resumes: Option<String>,
    pub(super) results: Vec<SinkResult>,
    /// How many units were left out, and the first of them.
    pub(super) skipped: (u64, Vec<Skipped>),
    /// Files that are not ready to be read.
    pub(super) not_ready: Vec<LeftFiles>,
    /// Patterns that match no file.
    pub(super) unmatched: Vec<UnmatchedPatterns>,
    /// Files that have changed and stay as they were loaded.
    pub(super) changed: Vec<LeftFiles>,
    /// The rows that were read by the time in a column.
    pub(super) windows: Vec<WindowRead>,
    /// The columns that files lacked.
    pub(super) missing_columns: Vec<MissingColumn>,
    /// Whether everything was there before.
    pub(super) nothing_new: bool,
    /// Units that earlier runs had loaded.
    pub(super) units_before: u64,
    /// What the checks have come to.
    pub(super) checks: Vec<CheckResult>,
    /// Whether it has only brought sinks to the files that others have.
    pub(super) is_catch_up: bool,
    /// The runs of the same command that have done so before it.
    pub(super) catch_up_runs: Vec<String>,
}

/// What targets have noted of the run and of earlier ones. It is forgotten once the run is recorded.
#[derive(Default)]
pub(super) struct Entries {
    /// Commit markers of earlier runs.
    pub(super) stale: Vec<CommitMarker>,
    /// What belongs to the run.
    pub(super) of_sinks: SinkEntries,
    /// The files that each sink has completely, where something is to become of them.
    pub(super) settled: Vec<Settled>,
}

impl Summary {
    /// The first run of the resume chain.
    pub(super) fn first(&self) -> &str {
        self.resumes.as_ref().unwrap_or(&self.run)
    }
}

impl Committed {
    /// A run that had nothing to do.
    pub(super) fn nothing_new(run: &str) -> Self {
        let summary = Summary { run: run.to_owned(), nothing_new: true, ..Summary::default() };
        Committed { summary, entries: Entries::default() }
    }
}

impl Loaded<'_, '_> {
    /// Commits everything. Once `committing` says so the run cannot be cancelled: what remains is short, and half of it
    /// would be worse than either end.
    pub(super) async fn commit(self, committing: &AtomicBool) -> Result<Committed> {
        let inputs = self.work.job.sources.iter().flat_map(|source| &source.inputs);
        inputs.filter_map(|(_, source)| source.rows()).for_each(RowSource::done);
        let links: Vec<_> = self.sinks.at_once().iter().map(|sink| sink.load.links()).collect();
        let order = PublishOrder::of(&links);
        for (load, tables) in &order.referred {
            self.sinks.at_once()[*load].load.protect(tables.clone());
        }
        if let Err(error) = self.prepare(&order).await {
            self.sinks.roll_back().await;
            let error = resume::left(self.work.point, error, &self.sinks.staged(), true);
            return Err(self.sinks.with_left(error));
        }
        committing.store(true, Ordering::Relaxed);
        let mut results = publish(&self.sinks.at_once(), &order).await?;
        resume::complete(&self.sinks.ledgers()).await?;
        for sink in self.sinks.by_chunk() {
            sink.loaded.iter().for_each(|loaded| sink.ledger.set_tally(loaded.tally));
            let reloaded = sink.loaded.as_ref().and_then(|loaded| loaded.reloaded.clone());
            results.push(SinkResult { reloaded, ..sink.ledger.result() });
        }
        let sinks = &self.work.job.sinks;
        results.sort_by_key(|result| sinks.iter().position(|sink| sink.name.value == result.sink));
        let summary = self.summary(results);
        let loaded = self.sinks.by_chunk().filter_map(|sink| sink.loaded.as_ref());
        let at_once = self.admission.iter().flat_map(Admission::settled);
        let settled = loaded.flat_map(|loaded| loaded.settled.clone()).chain(at_once).collect();
        let entries = Entries { stale: self.stale, of_sinks: self.sinks.into_entries(), settled };
        Ok(Committed { summary, entries })
    }

    /// Makes everything durable that is not visible yet, and what was rejected. If this succeeds, not too much was
    /// rejected, and no record is missing. What cannot be rolled back comes last. Sinks that have to wait for others by
    /// `order` are prepared when these are committed.
    async fn prepare(&self, order: &PublishOrder) -> Result<()> {
        let all = self.sinks.at_once();
        for sink in all.iter().filter(|sink| sink.load.can_roll_back()) {
            self.accept(sink)?;
        }
        let (first, last): (Vec<_>, Vec<_>) =
            order.prepared_first().map(|index| all[index]).partition(|sink| sink.load.can_roll_back());
        for sink in first {
            sink.load.prepare().await.map_err(|error| error.in_step(sink.name()))?;
        }
        for sink in order.checked.iter().map(|load| all[*load]) {
            sink.load.check_missing().await.map_err(|error| error.in_step(sink.name()))?;
        }
        self.work.run.rejects.judge_all()?;
        self.work.run.rejects.flush()?;
        all.iter().try_for_each(|sink| sink.tally().map(drop))?;
        for sink in last {
            // A program may work for long when it has all rows.
            let prepared = async {
                tokio::select! {
                    biased;
                    error = self.work.run.threads.processes().too_much() => Err(error),
                    prepared = sink.load.prepare() => prepared,
                }
            };
            self.work.unless_interrupted(prepared).await.map_err(|error| error.in_step(sink.name()))?;
        }
        Ok(())
    }

    /// Fails if `sink` does not accept what has become of its input. Rejects are kept before, and the error shows them.
    fn accept(&self, sink: &AtOnce<'_>) -> Result<()> {
        let input = self.input_of(sink);
        let Err(error) = sink.load.accept(&input) else { return Ok(()) };
        let rejects = &self.work.run.rejects;
        rejects.flush()?;
        let error = match input.rejected {
            0 => error,
            rejected => rejects.with_first(error, rejected, |step| self.leads_to(sink, step)),
        };
        Err(error.in_step(sink.name()))
    }

    /// Whether rows of `step` go to `sink`, or it is its own.
    fn leads_to(&self, sink: &AtOnce<'_>, step: &str) -> bool {
        step == sink.name() || self.work.job.reads(&sink.sink.from.value, step)
    }

    /// What is known of the input of `sink`.
    fn input_of(&self, sink: &AtOnce<'_>) -> InputFacts {
        let Work { run, prepared, .. } = self.work;
        let leads_here = |step: &str| self.leads_to(sink, step);
        let steps = run.steps.all();
        let rejected = steps.iter().map(|step| step.snapshot()).filter(|step| leads_here(&step.name));
        InputFacts {
            rejected: rejected.map(|step| step.rejected).sum(),
            skipped_units: prepared.skipped_of(leads_here),
            not_ready: prepared.not_ready_of(leads_here),
        }
    }

    fn summary(&self, results: Vec<SinkResult>) -> Summary {
        let Work { point, prepared, .. } = self.work;
        let chunks: Vec<_> = self.sinks.loaded().collect();
        let only_chunks = self.sinks.at_once().is_empty() && !chunks.is_empty();
        let nothing_admitted = self.admission.as_ref().is_some_and(Admission::is_empty) && chunks.is_empty();
        let before = self.admission.as_ref().map_or(0, |admission| admission.units_before);
        let at_once_skipped = self.admission.iter().flat_map(Admission::skipped);
        Summary {
            run: point.run.clone(),
            resumes: point.resumes().map(str::to_owned),
            results,
            skipped: prepared.skipped(),
            not_ready: prepared.not_ready(),
            unmatched: prepared.unmatched(),
            changed: chunks.iter().flat_map(|loaded| loaded.skipped.clone()).chain(at_once_skipped).collect(),
            windows: self.admission.as_ref().map_or_else(Vec::new, Admission::windows),
            missing_columns: prepared.missing_columns(),
            nothing_new: nothing_admitted || (only_chunks && chunks.iter().all(|loaded| loaded.nothing_new)),
            units_before: before + chunks.iter().map(|loaded| loaded.units_before).sum::<u64>(),
            is_catch_up: self.admission.as_ref().is_some_and(|admission| admission.is_catch_up),
            catch_up_runs: point.catch_up_runs.clone(),
            checks: self.checks.clone(),
        }
    }
}

/// Makes the rows of `sinks` visible, one sink after the other in this `order`. If one fails, it and those behind it
/// are rolled back.
async fn publish(sinks: &[&AtOnce<'_>], order: &PublishOrder) -> Result<Vec<SinkResult>> {
    fail_point::pass("publish.before");
    let all = order.published();
    let mut done = Done::default();
    for load in &order.deleting {
        let sink = sinks[*load];
        match sink.load.delete_missing().await {
            Ok(0) => {}
            Ok(_) => done.deleted.push(sink.name().to_owned()),
            Err(error) => {
                roll_back(sinks, &all).await;
                return Err(done.beside(error.in_step(sink.name())));
            }
        }
    }
    for (index, (load, waits)) in all.iter().enumerate() {
        if index > 0 {
            fail_point::pass("publish.next");
        }
        let sink = sinks[*load];
        match publish_one(sink, *waits).await {
            Ok(summary) => done.results.push(sink.result(summary)?),
            Err(error) => {
                roll_back(sinks, &all[index..]).await;
                return Err(done.beside(error.in_step(sink.name())));
            }
        }
    }
    fail_point::pass("publish.after");
    Ok(done.results)
}

/// Makes the rows of `sink` visible; it is prepared before, if it has `waited` for others.
async fn publish_one(sink: &AtOnce<'_>, waited: bool) -> Result<String> {
    if waited {
        sink.load.prepare().await?;
        fail_point::pass("publish.prepared");
    }
    sink.load.commit().await
}

async fn roll_back(sinks: &[&AtOnce<'_>], behind: &[(usize, bool)]) {
    for (load, _) in behind {
        sinks[*load].roll_back().await;
    }
}

/// What has been done when a sink fails.
#[derive(Default)]
struct Done {
    /// Of sinks that are committed.
    results: Vec<SinkResult>,
    /// The sinks that have deleted missing rows.
    deleted: Vec<String>,
}

impl Done {
    /// `error` of a sink that is not committed, beside what is done.
    fn beside(&self, error: Error) -> Error {
        let committed: Vec<&str> = self.results.iter().map(|result| result.sink.as_str()).collect();
        let deleted: Vec<&str> =
            self.deleted.iter().map(String::as_str).filter(|sink| !committed.contains(sink)).collect();
        let told = [
            ("these sinks were already committed", committed),
            ("these sinks have already deleted the rows that were missing", deleted),
        ];
        let told = told.into_iter().filter(|(_, sinks)| !sinks.is_empty());
        let told = told.map(|(what, sinks)| format!("{what}: {}", sinks.join(", ")));
        let hints: Vec<String> = error.hint_text().map(str::to_owned).into_iter().chain(told).collect();
        if hints.is_empty() { error } else { error.hint(hints.join("; ")) }
    }
}
