//! Progress files: how many rows of a live run are visible.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The folder of the progress files in the state folder.
pub(super) const FOLDER: &str = "rows";

/// How often a live run notes its rows.
const INTERVAL: Duration = Duration::from_secs(5);

/// The progress file of a run, in which it notes from time to time how many of its rows are visible: the least that a
/// run has loaded if it is killed. It is a file beside the history, because a run that is stopped in the middle of
/// writing to the history would block all others.
#[derive(Debug)]
pub struct ProgressFile {
    path: PathBuf,
    /// Rows that are visible, and when they were last noted.
    rows: Mutex<(u64, Option<Instant>)>,
}

impl ProgressFile {
    /// The progress file of `run` in the state folder `state`; it is created with the first rows.
    pub(super) fn new(state: &Path, run: &str) -> Self {
        ProgressFile { path: path(state, run), rows: Mutex::default() }
    }

    /// Adds `rows` that have become visible. The first are noted at once.
    pub fn add_rows(&self, rows: u64) {
        let mut known = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        known.0 += rows;
        if known.0 == 0 || known.1.is_some_and(|last| last.elapsed() < INTERVAL) {
            return;
        }
        known.1 = Some(Instant::now());
        self.write(known.0);
    }

    /// Notes all rows that were added.
    pub fn note(&self) {
        let known = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0 > 0 {
            self.write(known.0);
        }
    }

    fn write(&self, rows: u64) {
        // What cannot be noted now is noted with later rows.
        let _ = fs_err::write(&self.path, rows.to_string());
    }

    /// Removes the file: the target has lost rows that were visible, or no run will ask for them any more.
    pub fn clear(&self) {
        *self.rows.lock().unwrap_or_else(PoisonError::into_inner) = (0, None);
        let _ = fs_err::remove_file(&self.path);
    }
}

/// How many rows `run` has noted; `None` if it has no progress file.
pub(super) fn noted_rows(state: &Path, run: &str) -> Option<u64> {
    let noted = fs_err::read_to_string(path(state, run)).ok()?;
    // A file that is empty was about to be written.
    Some(noted.parse().unwrap_or(1))
}

fn path(state: &Path, run: &str) -> PathBuf {
    state.join(FOLDER).join(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rows_are_noted_at_once_and_later_ones_from_time_to_time() {
        let state = tempfile::TempDir::new().expect("a folder");
        fs_err::create_dir(state.path().join(FOLDER)).expect("a folder");
        let progress = ProgressFile::new(state.path(), "1-1");
        progress.add_rows(0);
        assert_eq!(noted_rows(state.path(), "1-1"), None);
        progress.add_rows(7);
        assert_eq!(noted_rows(state.path(), "1-1"), Some(7));
        progress.add_rows(8);
        assert_eq!(noted_rows(state.path(), "1-1"), Some(7));
        progress.note();
        assert_eq!(noted_rows(state.path(), "1-1"), Some(15));
        progress.clear();
        progress.note();
        assert_eq!(noted_rows(state.path(), "1-1"), None);
        progress.add_rows(9);
        assert_eq!(noted_rows(state.path(), "1-1"), Some(9));
        fs_err::write(path(state.path(), "1-1"), "").expect("written");
        assert_eq!(noted_rows(state.path(), "1-1"), Some(1), "rows were about to be noted");
    }
}
