//! Status files: how live runs go, for other processes.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// The folder of the status files in the state folder.
pub(super) const FOLDER: &str = "status";

/// How a live run goes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunStatus {
    /// When this was so, in milliseconds since 1970.
    pub updated: u64,
    /// Rows that came out of the sources.
    pub rows_read: u64,
    /// Rows that the sinks took.
    pub rows_written: u64,
    /// Records that were rejected.
    pub rows_rejected: u64,
    /// Units read to their end.
    pub units: u64,
    /// Rows that were read, or messages of a queue, a second, over the last seconds.
    pub rate: f64,
    /// The part of all bytes that is read, from 0 to 1, if it is known how many they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// How the queue is read, if the run reads one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueStatus>,
}

/// How a live run reads its queue.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueStatus {
    /// Messages that the group has not read, if the queue says so.
    pub lag: Option<u64>,
    /// The age of the oldest message that is read and not acknowledged, if there is one.
    pub oldest_seconds: Option<f64>,
    /// Epochs that are committed.
    pub epochs: u64,
}

/// The status file of a live run. It is a file beside the history, because a run that is stopped in the middle of
/// writing to the history would block all others.
#[derive(Debug)]
pub struct StatusFile {
    path: PathBuf,
    /// Whether the run has ended. What is on its way is not written any more.
    has_ended: Mutex<bool>,
}

impl StatusFile {
    /// The status file of `run` in the state folder `state`; it is created with the first status.
    pub(super) fn new(state: &Path, run: &str) -> Self {
        StatusFile { path: path(state, run), has_ended: Mutex::new(false) }
    }

    /// Puts `status` in the place of the one before. It does no harm if that fails.
    pub fn write(&self, status: &RunStatus) {
        let has_ended = self.has_ended.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(text) = serde_json::to_vec(status) else { return };
        if *has_ended {
            return;
        }
        let new = self.path.with_extension("new");
        let _ = fs_err::write(&new, text).and_then(|()| fs_err::rename(&new, &self.path));
    }

    /// Removes the file: the history knows how the run has ended.
    pub(super) fn remove(&self) {
        *self.has_ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        let _ = fs_err::remove_file(&self.path);
    }
}

/// What `run` has written last; `None` if it has written nothing.
pub(super) fn status_of(state: &Path, run: &str) -> Option<RunStatus> {
    serde_json::from_slice(&fs_err::read(path(state, run)).ok()?).ok()
}

fn path(state: &Path, run: &str) -> PathBuf {
    state.join(FOLDER).join(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_there_until_the_run_has_ended() {
        let state = tempfile::TempDir::new().expect("a folder");
        fs_err::create_dir(state.path().join(FOLDER)).expect("a folder");
        let file = StatusFile::new(state.path(), "1-1");
        assert_eq!(status_of(state.path(), "1-1"), None);
        for rows_read in [7, 8] {
            let status = RunStatus { rows_read, queue: Some(QueueStatus::default()), ..RunStatus::default() };
            file.write(&status);
            assert_eq!(status_of(state.path(), "1-1"), Some(status));
        }
        file.remove();
        file.write(&RunStatus::default());
        assert_eq!(status_of(state.path(), "1-1"), None, "it was on its way when the run ended");
        fs_err::write(path(state.path(), "1-1"), "{\"rows_read\": 3, \"of\": \"a later version\"}").expect("written");
        assert_eq!(status_of(state.path(), "1-1").expect("a status").rows_read, 3);
    }
}
