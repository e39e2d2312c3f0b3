//! The end of a run: its report, its entry in the run history, and what targets forget then.

use std::time::Duration;

use millstream_core::threads::ProcessorUse;
use millstream_core::{Error, ErrorKind, Result, clock, fail_point};
use millstream_job::{Job, JobEntry};
use millstream_state::{Ending, LiveRun};
use serde_json::{Value, json};

use super::after_load;
use super::commit::{Committed, Entries, Summary};
use super::sinks::SinkEntries;
use crate::context::RunContext;
use crate::failure::{Failure, error_json};
use crate::memory;
use crate::monitor::Moment;
use crate::rejects::replay::Replay;
use crate::report::{Report, Totals};
use crate::resume::{self, ResumePoint};
use crate::verdict::{Evidence, Verdict, media, verdict};

/// A run that has ended in the run history, or beside its rejects.
pub(super) struct Recorded {
    report: Report,
    summary: Summary,
    entries: Entries,
}

/// The most errors of a failed run that the history keeps.
const MOST_ERRORS: usize = 20;

/// How long a run has taken, and what of the processor.
pub(super) struct Used {
    pub(super) elapsed: Duration,
    pub(super) processor: ProcessorUse,
    /// How long readers were held back, since memory was short.
    pub(super) held: Duration,
}

/// Stores that a run has failed, and how far it came.
pub(super) fn record_failure(
    run: &RunContext,
    job: &Job,
    point: &ResumePoint,
    live: Option<LiveRun>,
    failure: &Failure,
    elapsed: Duration,
) {
    let wrong = Error::job("the job file is wrong");
    let error = failure.errors.first().unwrap_or(&wrong);
    let mut report = report_of_failed(run, job, point, elapsed);
    if error.kind() != ErrorKind::Interrupted {
        report["errors"] = failure.errors.iter().take(MOST_ERRORS).map(error_json).collect();
    }
    // What is wrong is reported in any case, whether or not the run history can be written.
    let _ = live.map(|live| live.end(Some(error), &Ending { report: Some(report), ..ending(run) }));
}

/// What the history keeps of the report of a run that has failed: what its page shows.
fn report_of_failed(run: &RunContext, job: &Job, point: &ResumePoint, elapsed: Duration) -> Value {
    let steps = run.snapshots();
    let totals = Totals::of(&steps);
    let (checks, peak) = (run.checks.take(), memory::peak_resident());
    let intervals = run.monitor.intervals(&totals);
    let mut report = json!({
        "seconds": elapsed.as_secs_f64(),
        "bytes_read": totals.bytes_read,
        "bytes_written": totals.bytes_written,
        "peak_rss_bytes": peak,
        "entries": JobEntry::all_of(job),
        "steps": steps,
    });
    if let Some(cluster) = run.cluster_report() {
        report["cluster"] = json!(cluster);
    }
    if !checks.is_empty() {
        report["checks"] = json!(checks);
    }
    if !point.catch_up_runs.is_empty() {
        report["catch_up_runs"] = json!(point.catch_up_runs);
    }
    match intervals.is_empty() {
        true => report["points"] = json!(run.monitor.points(elapsed, &totals)),
        false => report["intervals"] = json!(intervals),
    }
    report
}

impl Committed {
    /// Stores that the run is done: no other resumes it.
    pub(super) fn record(
        self,
        run: &RunContext,
        job: &Job,
        live: Option<LiveRun>,
        replay: Option<&Replay>,
        used: Used,
    ) -> Result<Recorded> {
        let Committed { summary, entries } = self;
        let report = report(run, job, &summary, used);
        let ending = Ending { report: serde_json::to_value(&report).ok(), ..ending(run) };
        if let Some(live) = live {
            live.end(None, &ending)?;
        }
        if let Some(replay) = replay {
            fail_point::pass("replay.before");
            replay.mark(&summary.run)?;
            fail_point::pass("replay.after");
        }
        Ok(Recorded { report, summary, entries })
    }
}

impl Recorded {
    /// Forgets in the targets what was loaded. Only now: if the run is killed before it is recorded, the next one
    /// resumes it and asks the ledgers what is there.
    /// Then files are moved or deleted that are loaded.
    pub(super) fn forget(mut self, run: &RunContext, job: &Job, point: &ResumePoint) -> Report {
        fail_point::pass("forget.before");
        for (sink, error) in run.runtimes.workers().block_on(self.entries.forget()) {
            for result in self.report.results.iter_mut().filter(|result| result.sink == sink) {
                let cause = error.cause_text().map_or(String::new(), |cause| format!(": {cause}"));
                result.summary.push_str(&format!(", but {}{cause}; the next run tries again", error.what()));
            }
        }
        if !self.summary.nothing_new {
            run.runtimes.workers().block_on(async {
                for sink in &job.sinks {
                    // It does no harm if something stays: it only says whose the files are.
                    let _ =
                        sink.sink.settle(&run.source_context(std::sync::Arc::default()), self.summary.first()).await;
                }
            });
        }
        let settled = self.entries.take_settled();
        self.report.disposed = run.runtimes.workers().block_on(after_load::dispose(run, job, point, settled));
        self.report
    }
}

impl Entries {
    /// Forgets them; what could not be forgotten comes back with its sink's name.
    async fn forget(&self) -> Vec<(String, Error)> {
        for stale in &self.stale {
            // The next run does it otherwise.
            let _ = stale.forget(false).await;
        }
        let SinkEntries { ledgers, markers, staged } = &self.of_sinks;
        let mut left = resume::forget(ledgers).await;
        for marker in markers {
            left.extend(marker.forget(false).await.err().map(|error| (marker.context.sink.clone(), error)));
        }
        for staged in staged {
            left.extend(staged.forget().await);
        }
        left
    }
}

/// What the history stores of a run that ends now, without its report.
fn ending(run: &RunContext) -> Ending {
    let totals = Totals::of(&run.snapshots());
    Ending {
        rows_read: totals.rows_read,
        rows_written: totals.rows_written,
        rows_rejected: totals.rows_rejected,
        units: totals.units,
        report: None,
    }
}

/// The day of the dates of a run that is resumed, if today is another one.
fn earlier_day(job: &Job, summary: &Summary) -> Option<String> {
    let is_earlier = summary.resumes.is_some() && job.is_of_another_day(clock::now().cast_signed());
    is_earlier.then(|| job.around.moment.text().chars().take_while(|character| *character != 'T').collect())
}

/// What limited the run; one that has read a queue for long, in its last minute.
pub(super) fn verdict_of(run: &RunContext, job: &Job, end: Moment) -> Verdict {
    let earlier = run.monitor.earlier();
    let of = earlier.as_ref().map_or_else(|| end.clone(), |earlier| end.since(earlier));
    let Moment { elapsed, steps, processor: ProcessorUse { busy: processor, delayed }, held, throttled } = of;
    let (by_workers, cores) = run.cluster_report().map_or((ProcessorUse::default(), 0), |cluster| cluster.processor());
    let (processor, delayed) = (processor + by_workers.busy, delayed + by_workers.delayed);
    let (cores, media) = (run.machine().cores.max(cores), media(job));
    let throttle = run.pace.bytes_per_second().map(|rate| (rate, throttled));
    let bundles = run.cluster_report().map_or(0.0, |cluster| cluster.workers.iter().map(|worker| worker.seconds).sum());
    let places = (bundles / elapsed.as_secs_f64().max(1e-6)).max(1.0);
    let evidence =
        Evidence { steps: &steps, elapsed, places, processor, delayed, cores, held, throttle, media: &media };
    let verdict = verdict(&evidence);
    match earlier {
        Some(_) => Verdict { sentence: format!("in the last {} s {}", elapsed.as_secs(), verdict.sentence), ..verdict },
        None => verdict,
    }
}

fn report(run: &RunContext, job: &Job, summary: &Summary, used: Used) -> Report {
    let (steps, processor) = (run.snapshots(), used.processor.busy);
    let totals = Totals::of(&steps);
    let elapsed = used.elapsed;
    let (resident, peak) = (memory::peak_resident(), run.threads.processes().peak());
    let (held, throttled) = (used.held, run.pace.held());
    let by_workers = run.cluster_report().map_or(0.0, |cluster| cluster.processor().0.busy.as_secs_f64());
    let end = Moment { elapsed, steps: steps.clone(), processor: used.processor, held, throttled };
    let verdict = verdict_of(run, job, end);
    Report {
        job: job.path().to_owned(),
        run: summary.run.clone(),
        resumes: summary.resumes.clone(),
        began: job.around.moment.text(),
        earlier_day: earlier_day(job, summary),
        skipped_run: None,
        attempts: 1,
        nothing_new: summary.nothing_new,
        units_loaded_before: summary.units_before,
        caught_up: summary.is_catch_up,
        catch_up_runs: summary.catch_up_runs.clone(),
        seconds: elapsed.as_secs_f64(),
        rows_read: totals.rows_read,
        rows_written: totals.rows_written,
        rows_rejected: totals.rows_rejected,
        rejects: run.rejects.log().filter(|_| !run.rejects.left_out().is_empty()).map(|_| summary.first().to_owned()),
        units_skipped: summary.skipped.0,
        skipped: summary.skipped.1.clone(),
        not_ready: summary.not_ready.clone(),
        unmatched: summary.unmatched.clone(),
        changed: summary.changed.clone(),
        disposed: Vec::new(),
        windows: summary.windows.clone(),
        missing_columns: summary.missing_columns.clone(),
        checks: summary.checks.clone(),
        bytes_read: totals.bytes_read,
        bytes_from_cache: run.cache.cached(),
        bytes_from_disk: run.cache.disk(),
        bytes_written: totals.bytes_written,
        peak_rss_bytes: resident,
        peak_memory_bytes: resident.max(peak.total),
        peak_workers_bytes: peak.processes,
        memory_bytes: run.machine().memory,
        cores: run.machine().cores,
        cpu_seconds: processor.as_secs_f64() + by_workers,
        results: summary.results.clone(),
        entries: JobEntry::all_of(job),
        steps,
        points: run.monitor.points(elapsed, &totals),
        intervals: run.monitor.intervals(&totals),
        verdict,
        cluster: run.cluster_report(),
        hooks: Vec::new(),
    }
}
