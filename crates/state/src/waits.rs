//! Runs that wait before they begin or continue: a run whose job may not run at this time of the day.
//!
//! Such a run is not in the history, or has ended there for a while. What it says of itself is a file that its process
//! has locked, as of the memory that it has.

use std::fs::TryLockError;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

use fs_err::File;
use millstream_core::clock::now;
use millstream_core::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::history::OfStep;

/// The folder of the files in the state folder.
const FOLDER: &str = "waits";

/// A run that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingRun {
    /// The path of its job from the root.
    pub job: String,
    /// The step of a sequence that it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_step: Option<OfStep>,
    /// The hours of the day for which it waits.
    pub hours: String,
    /// When they begin, in the time zone of the job.
    pub until: String,
    /// Whether it continues then. Else it begins.
    pub has_begun: bool,
    /// Since when it waits, in milliseconds since 1970.
    pub since: u64,
}

impl WaitingRun {
    /// A run of the job at `job` that waits from now on.
    pub fn new(job: &str, of_step: Option<OfStep>, hours: String, until: String, has_begun: bool) -> Self {
        let path = fs_err::canonicalize(job).map_or_else(|_| job.to_owned(), |path| path.display().to_string());
        WaitingRun { job: path, of_step, hours, until, has_begun, since: now() }
    }

    /// Shows it to those who ask for the runs of the state folder `state`, until the result is dropped.
    ///
    /// # Errors
    /// If there can be no such file.
    pub fn show(&self, state: &Path) -> Result<ShownWait> {
        let failed = |cause: std::io::Error| Error::io("the run cannot show that it waits", &cause);
        let folder = state.join(FOLDER);
        fs_err::create_dir_all(&folder).map_err(failed)?;
        let text = serde_json::to_vec(self).map_err(|cause| failed(cause.into()))?;
        let path = folder.join(format!("{:016x}.json", RandomState::new().hash_one(())));
        let new = path.with_extension("new");
        let file = File::create(&new).map_err(failed)?;
        file.lock().map_err(failed)?;
        fs_err::write(&new, text).and_then(|()| fs_err::rename(&new, &path)).map_err(failed)?;
        Ok(ShownWait { path, _locked: file })
    }

    /// The runs that wait, those first that began to. What dead ones have left is removed.
    pub fn all(state: &Path) -> Vec<Self> {
        let entries = fs_err::read_dir(state.join(FOLDER)).into_iter().flatten().flatten();
        let waits = |path: PathBuf| {
            let file = File::open(&path).ok().filter(|_| path.extension().is_some_and(|ending| ending == "json"))?;
            match file.try_lock_shared() {
                Ok(()) => {
                    let _ = fs_err::remove_file(&path);
                    None
                }
                Err(TryLockError::WouldBlock) => serde_json::from_slice(&fs_err::read(&path).ok()?).ok(),
                Err(TryLockError::Error(_)) => None,
            }
        };
        let mut all: Vec<Self> = entries.filter_map(|entry| waits(entry.path())).collect();
        all.sort_by_key(|run| run.since);
        all
    }
}

/// A run that shows that it waits.
#[derive(Debug)]
pub struct ShownWait {
    path: PathBuf,
    _locked: File,
}

impl Drop for ShownWait {
    fn drop(&mut self) {
        // A file that is not locked means the same as none.
        let _ = fs_err::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_shown_as_long_as_it_waits() {
        let state = tempfile::TempDir::new().expect("a folder");
        assert!(WaitingRun::all(state.path()).is_empty());
        let of_step = OfStep { sequence: "1-1".into(), step: "load".into() };
        let run = WaitingRun::new("load.yaml", Some(of_step), "20:00-06:00".into(), "20:00".into(), false);
        let shown = run.show(state.path()).expect("a file");
        // One that was killed has left its file.
        fs_err::copy(&shown.path, shown.path.with_file_name("1.json")).expect("a file");
        assert_eq!(WaitingRun::all(state.path()), [run]);
        drop(shown);
        assert!(WaitingRun::all(state.path()).is_empty());
        assert_eq!(fs_err::read_dir(state.path().join(FOLDER)).expect("the folder").count(), 0);
    }
}
