//! The lock of the scheduler: one process at a time decides what starts.

use std::fs::TryLockError;
use std::io::{Read, Seek, Write};
use std::path::Path;

use fs_err::{File, OpenOptions};
use millstream_core::{Error, Result};

/// The file of the lock in the state folder. It holds the number of the process, for people.
const NAME: &str = "scheduler.lock";

/// The lock of the scheduler.
#[derive(Debug)]
pub struct OnlyScheduler {
    _locked: File,
}

impl OnlyScheduler {
    /// Locks the state folder `state`; if another scheduler has done so, the number of its process instead, as far as
    /// that is known.
    ///
    /// # Errors
    /// If there can be no lock.
    pub fn take(state: &Path) -> Result<Result<Self, String>> {
        let failed = |cause: std::io::Error| Error::io("the lock of the scheduler cannot be created", &cause);
        fs_err::create_dir_all(state).map_err(failed)?;
        let options = OpenOptions::new().create(true).truncate(false).read(true).write(true).clone();
        let mut file = options.open(state.join(NAME)).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {
                file.set_len(0).and_then(|()| file.rewind()).map_err(failed)?;
                file.write_all(std::process::id().to_string().as_bytes()).map_err(failed)?;
                Ok(Ok(OnlyScheduler { _locked: file }))
            }
            Err(TryLockError::WouldBlock) => {
                let mut process = String::new();
                let _ = file.read_to_string(&mut process);
                Ok(Err(process))
            }
            Err(TryLockError::Error(cause)) => Err(failed(cause)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_scheduler_at_a_time() {
        let state = tempfile::TempDir::new().expect("a folder");
        let take = || OnlyScheduler::take(state.path()).expect("an answer");
        let first = take().expect("the only one");
        assert_eq!(take().expect_err("there is one"), std::process::id().to_string());
        drop(first);
        take().expect("the first has ended");
    }
}
