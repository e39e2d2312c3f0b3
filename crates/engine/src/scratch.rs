//! The place for what does not fit in memory: a folder of this process inside the scratch folder.
//!
//! ```text
//!  /tmp/millstream-a1b2c3/     removed when the process ends,
//!                         lock held while it lives; who finds it free removes the folder of a process that was killed
//!                         …    what spills
//! ```

use std::fs::TryLockError;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fs_err::File;
use millstream_core::{Error, Result};

/// How the folders' names begin.
const PREFIX: &str = "millstream-";

/// The name of the file that tells whether the process lives.
const LOCK: &str = "lock";

/// A folder without a lock is of a process that has just begun, unless it is older than this.
const BEGUN: Duration = Duration::from_secs(60);

/// How long the removal of the folder is tried, while threads that are ending may still write to it.
const PATIENCE: Duration = Duration::from_secs(1);

/// The folder; removed when this is dropped.
#[derive(Debug)]
pub struct Scratch {
    folder: PathBuf,
    /// `None` where no folder could be made: then nothing can spill, which is told when something wants to.
    _lock: Option<File>,
}

impl Scratch {
    /// A new folder in `parent`. Those that dead processes have left there are removed.
    pub fn new(parent: &Path) -> Self {
        sweep(parent);
        let made = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent);
        let locked = made.and_then(|folder| {
            let lock = File::create(folder.path().join(LOCK))?;
            lock.lock()?;
            Ok((folder.keep(), lock))
        });
        match locked {
            Ok((folder, lock)) => Scratch { folder, _lock: Some(lock) },
            Err(_) => Scratch { folder: parent.to_owned(), _lock: None },
        }
    }

    /// Where files may be made.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self._lock.is_none() {
            return;
        }
        let begun = Instant::now();
        while fs_err::remove_dir_all(&self.folder).is_err() && self.folder.exists() && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Removes the folders of processes that are no more. What cannot be removed (it is another user's) is left alone.
fn sweep(parent: &Path) {
    let entries = fs_err::read_dir(parent).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX)));
    for folder in ours.map(|entry| entry.path()).filter(|folder| is_left(folder)) {
        let _ = fs_err::remove_dir_all(folder);
    }
}

/// Whether the process that made `folder` is dead.
fn is_left(folder: &Path) -> bool {
    match File::open(folder.join(LOCK)) {
        Ok(lock) => !matches!(lock.try_lock(), Err(TryLockError::WouldBlock | TryLockError::Error(_))),
        Err(_) => {
            let age = fs_err::symlink_metadata(folder).and_then(|metadata| metadata.modified());
            let is_empty = fs_err::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none());
            is_empty && age.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age > BEGUN))
        }
    }
}

/// The folder in which a run may keep what does not fit in memory must be there.
pub fn check(parent: &Path) -> Result<()> {
    match fs_err::metadata(parent) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(Error::job(format!("the scratch folder {} is not a folder", parent.display()))),
        Err(cause) => Err(Error::io(format!("the scratch folder {} cannot be used", parent.display()), &cause)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_goes_with_its_process() {
        let parent = tempfile::tempdir().expect("a folder");
        let scratch = Scratch::new(parent.path());
        fs_err::write(scratch.folder().join("spilled"), "rows").expect("writable");
        assert!(scratch.folder().starts_with(parent.path()) && scratch.folder() != parent.path());
        drop(scratch);
        assert_eq!(fs_err::read_dir(parent.path()).expect("a folder").count(), 0);
    }

    #[test]
    fn what_the_dead_have_left_is_removed_and_nothing_else() {
        let parent = tempfile::tempdir().expect("a folder");
        let left = |name: &str, file: &str| {
            let folder = parent.path().join(name);
            fs_err::create_dir(&folder).expect("writable");
            fs_err::write(folder.join(file), "").expect("writable");
            folder
        };
        let dead = left("millstream-dead", LOCK);
        let others = [left("millstream-mine", "rows"), left("other", LOCK)];
        let beginning = parent.path().join("millstream-begins");
        fs_err::create_dir(&beginning).expect("writable");
        let living = Scratch::new(parent.path());
        assert!(!dead.exists());
        let second = Scratch::new(parent.path());
        assert!(living.folder().exists() && second.folder().exists() && beginning.exists());
        assert!(others.iter().all(|folder| folder.exists()));
    }

    #[test]
    fn where_no_folder_can_be_made_nothing_is_removed() {
        let parent = tempfile::tempdir().expect("a folder");
        let absent = parent.path().join("none");
        let scratch = Scratch::new(&absent);
        assert_eq!(scratch.folder(), absent);
        drop(scratch);
        assert!(parent.path().exists());
    }
}
