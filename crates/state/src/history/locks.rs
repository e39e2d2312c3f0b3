//! The locks of live runs, and of jobs of which one run loads at a time.
//!
//! A lock is a file that the run's process has locked. The system releases it when the process ends, however it ends.

use std::fs::TryLockError;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs_err::File;
use millstream_core::stable_hash::hash;
use millstream_core::{Error, Result};

use super::key::JobKey;

/// The folder of the locks of runs in the state folder.
pub(super) const RUNS: &str = "live";

/// The folder of the locks of jobs.
pub(super) const JOBS: &str = "jobs";

/// How long the lock of a killed run is kept: after that no server has connections of the run any more.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// The lock of a live run, which is removed with it.
#[derive(Debug)]
pub(super) struct RunLock {
    path: PathBuf,
    _locked: File,
}

impl RunLock {
    /// Locks `run` in the state folder `state`.
    pub(super) fn take(state: &Path, run: &str) -> Result<Self> {
        let path = path(state, run);
        let failed = |cause: std::io::Error| Error::io("the lock of the run cannot be created", &cause);
        let file = File::create(&path).map_err(failed)?;
        file.lock().map_err(failed)?;
        Ok(RunLock { path, _locked: file })
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // A missing lock file means the same as one that is not locked.
        let _ = fs_err::remove_file(&self.path);
    }
}

/// Whether the process of `run` lives, as far as this machine knows.
pub(super) fn is_alive(state: &Path, run: &str) -> bool {
    File::open(path(state, run)).is_ok_and(|file| file.try_lock_shared().is_err())
}

/// Whether `run` was a run of this machine, and its process is gone.
pub(super) fn has_died(state: &Path, run: &str) -> bool {
    File::open(path(state, run)).is_ok_and(|file| file.try_lock_shared().is_ok())
}

/// Removes old locks of runs that were killed. A young one still says that its run was of this machine, and is dead.
/// It does no harm if one cannot be removed.
pub(super) fn remove_old(state: &Path) {
    let Ok(files) = fs_err::read_dir(state.join(RUNS)) else { return };
    for path in files.flatten().map(|file| file.path()) {
        let modified = fs_err::metadata(&path).and_then(|metadata| metadata.modified());
        let is_old = modified.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age > KEPT));
        if is_old && File::open(&path).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = fs_err::remove_file(&path);
        }
    }
}

/// The file of the lock of `run`.
pub(super) fn path(state: &Path, run: &str) -> PathBuf {
    state.join(RUNS).join(format!("{run}.lock"))
}

/// The lock of a job: the run that has it is the only one of its job that loads.
#[derive(Debug)]
pub struct OnlyRun(#[allow(dead_code)] File);

impl OnlyRun {
    /// Locks `job`; `None` if another run has it.
    pub(super) fn take(state: &Path, job: &JobKey) -> Result<Option<Self>> {
        let path = state.join(JOBS).join(format!("{:016x}.lock", hash(job.text())));
        let failed = |cause: std::io::Error| Error::io("the lock of the job cannot be created", &cause);
        let file = File::create(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(OnlyRun(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(cause)) => Err(failed(cause)),
        }
    }
}
