//! What other processes see of a run while it lasts, and ask of it: about once a second it writes how it goes into the
//! state folder, and looks there whether it is to stop.

use std::time::{Duration, Instant};

use millstream_core::clock;
use millstream_core::step::StepSnapshot;
use millstream_job::JobEntry;
use millstream_state::{LiveRun, QueueStatus, RunStatus};
use serde::Serialize;
use tokio::task::JoinHandle;

use crate::options::Cancel;
use crate::report::{ClusterReport, Phase, Progress, TimePoint, Totals};
use crate::verdict::Verdict;

/// The time between two writes.
const INTERVAL: Duration = Duration::from_secs(1);

/// How a run goes, for a page that shows it. Its JSON is read by pages of other versions: fields may be added to it.
#[derive(Debug, Serialize)]
pub(super) struct View {
    /// When this was so, in milliseconds since 1970.
    pub updated: u64,
    pub phase: &'static str,
    pub elapsed_ms: u64,
    pub entries: Vec<JobEntry>,
    pub steps: Vec<StepSnapshot>,
    /// How far it was at points of its time.
    pub points: Vec<TimePoint>,
    /// Rows, or messages of a queue, a second.
    pub rate: f64,
    pub bytes_read: u64,
    pub bytes_expected: u64,
    pub bytes_written: u64,
    pub units: u64,
    pub units_expected: u64,
    /// Seconds until all that is known of is read.
    pub eta: Option<f64>,
    /// What limits it, so far.
    pub verdict: Verdict,
    pub memory_used: usize,
    pub memory_limit: u64,
    pub resident: u64,
    pub queue: Option<QueueStatus>,
    /// What the workers of a cluster do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterReport>,
}

impl View {
    /// That of a run with this `progress`. What else there is to say, the caller adds.
    pub(super) fn of(progress: &Progress) -> Self {
        let Totals { bytes_read, bytes_expected, bytes_written, units, units_expected, .. } = progress.totals;
        View {
            updated: clock::now(),
            phase: match progress.phase {
                Phase::Reading => "reading",
                Phase::Finishing => "finishing",
                Phase::Committing => "committing",
            },
            elapsed_ms: u64::try_from(progress.elapsed.as_millis()).unwrap_or(u64::MAX),
            entries: Vec::new(),
            steps: progress.steps.clone(),
            points: Vec::new(),
            rate: progress.rate,
            bytes_read,
            bytes_expected,
            bytes_written,
            units,
            units_expected,
            eta: progress.remaining().map(|remaining| remaining.as_secs_f64()),
            verdict: Verdict::default(),
            memory_used: 0,
            memory_limit: 0,
            resident: 0,
            queue: queue(progress),
            cluster: progress.cluster.as_deref().cloned(),
        }
    }
}

/// Writes the status and the view of a run from time to time.
pub(super) struct StatusWriter {
    last: Instant,
    writing: Option<JoinHandle<()>>,
}

impl Default for StatusWriter {
    fn default() -> Self {
        StatusWriter { last: Instant::now(), writing: None }
    }
}

impl StatusWriter {
    /// Writes what `progress` and `view` say, if it is time for it, and cancels the run with `cancel` if it is asked to
    /// stop. The run does not wait for that: a disk may be slow.
    pub(super) fn write(&mut self, live: &LiveRun, progress: &Progress, view: impl FnOnce() -> View, cancel: &Cancel) {
        let is_writing = self.writing.as_ref().is_some_and(|writing| !writing.is_finished());
        if self.last.elapsed() < INTERVAL || is_writing {
            return;
        }
        self.last = Instant::now();
        let (status, view) = (status(progress), view());
        let (file, view_file, asked, cancel) = (live.status(), live.view(), live.cancel_file(), cancel.clone());
        self.writing = Some(tokio::task::spawn_blocking(move || {
            file.write(&status);
            if let Ok(view) = serde_json::to_vec(&view) {
                view_file.write(&view);
            }
            if asked.is_asked() {
                cancel.cancel();
            }
        }));
    }
}

fn status(progress: &Progress) -> RunStatus {
    let totals = &progress.totals;
    RunStatus {
        updated: clock::now(),
        rows_read: totals.rows_read,
        rows_written: totals.rows_written,
        rows_rejected: totals.rows_rejected,
        units: totals.units,
        rate: progress.rate,
        share: share(totals),
        queue: queue(progress),
    }
}

/// The part of all bytes that is read, if it is known how many they are.
fn share(totals: &Totals) -> Option<f64> {
    let Totals { bytes_read, bytes_expected, .. } = *totals;
    (bytes_expected > 0).then(|| (bytes_read as f64 / bytes_expected as f64).min(1.0))
}

fn queue(progress: &Progress) -> Option<QueueStatus> {
    progress.queue.map(|queue| QueueStatus {
        lag: queue.lag.messages,
        oldest_seconds: queue.lag.oldest.map(|oldest| oldest.as_secs_f64()),
        epochs: queue.epochs.committed,
    })
}
