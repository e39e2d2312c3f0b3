//! What other processes see of a run while it lasts, and ask of it: about once a second it writes how it goes into the
//! state folder, and looks there whether it is to stop.

use std::time::{Duration, Instant};

use millstream_state::{LiveRun, QueueStatus, RunStatus};
use tokio::task::JoinHandle;

use crate::options::Cancel;
use crate::report::Progress;

/// The time between two writes.
const INTERVAL: Duration = Duration::from_secs(1);

/// Writes the status of a run from time to time.
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
    /// Writes what `progress` says, if it is time for it, and cancels the run with `cancel` if it is asked to stop. The
    /// run does not wait for that: a disk may be slow.
    pub(super) fn write(&mut self, live: &LiveRun, progress: &Progress, cancel: &Cancel) {
        let is_writing = self.writing.as_ref().is_some_and(|writing| !writing.is_finished());
        if self.last.elapsed() < INTERVAL || is_writing {
            return;
        }
        self.last = Instant::now();
        let (file, status, asked, cancel) = (live.status(), status(progress), live.cancel_file(), cancel.clone());
        self.writing = Some(tokio::task::spawn_blocking(move || {
            file.write(&status);
            if asked.is_asked() {
                cancel.cancel();
            }
        }));
    }
}

fn status(progress: &Progress) -> RunStatus {
    let totals = &progress.totals;
    RunStatus {
        updated: millstream_core::clock::now(),
        rows_read: totals.rows_read,
        rows_written: totals.rows_written,
        rows_rejected: totals.rows_rejected,
        units: totals.units,
        rate: progress.rate,
        queue: progress.queue.map(|queue| QueueStatus {
            lag: queue.lag.messages,
            oldest_seconds: queue.lag.oldest.map(|oldest| oldest.as_secs_f64()),
            epochs: queue.epochs.committed,
        }),
    }
}
