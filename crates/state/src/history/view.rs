//! Views of live runs: all that a page shows of how they go, for other processes.
//!
//! A view is larger than a status, and nobody needs it to list runs: it is a file of its own. What its JSON says is
//! decided by those who write it: the counters of a job, the steps of a sequence.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The folder of the views in the state folder.
pub(super) const FOLDER: &str = "views";

/// The view of a live run.
#[derive(Debug)]
pub struct ViewFile {
    path: PathBuf,
    /// Whether the run has ended. What is on its way is not written any more.
    has_ended: Mutex<bool>,
}

impl ViewFile {
    /// That of `run` in the state folder `state`; it is created with the first view.
    pub(super) fn new(state: &Path, run: &str) -> Self {
        ViewFile { path: path(state, run), has_ended: Mutex::new(false) }
    }

    /// Puts `view`, which is JSON, in the place of the one before. It does no harm if that fails.
    pub fn write(&self, view: &[u8]) {
        let has_ended = self.has_ended.lock().unwrap_or_else(PoisonError::into_inner);
        if *has_ended {
            return;
        }
        let new = self.path.with_extension("new");
        let _ = fs_err::write(&new, view).and_then(|()| fs_err::rename(&new, &self.path));
    }

    /// Removes the file: the report says how the run has ended.
    pub(super) fn remove(&self) {
        *self.has_ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        let _ = fs_err::remove_file(&self.path);
    }
}

/// The last view of `run`; `None` if it has none.
pub(super) fn view_of(state: &Path, run: &str) -> Option<String> {
    fs_err::read_to_string(path(state, run)).ok()
}

fn path(state: &Path, run: &str) -> PathBuf {
    state.join(FOLDER).join(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_is_there_until_the_run_has_ended() {
        let state = tempfile::TempDir::new().expect("a folder");
        fs_err::create_dir(state.path().join(FOLDER)).expect("a folder");
        let file = ViewFile::new(state.path(), "1-1");
        assert_eq!(view_of(state.path(), "1-1"), None);
        for view in ["{\"rows\":1}", "{}"] {
            file.write(view.as_bytes());
            assert_eq!(view_of(state.path(), "1-1").as_deref(), Some(view));
        }
        file.remove();
        file.write(b"{}");
        assert_eq!(view_of(state.path(), "1-1"), None, "it was on its way when the run ended");
    }
}
