//! The place for what does not fit in memory: a folder of this process inside each scratch folder.
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
use millstream_sort::Compression;

use crate::machine::{Disk, Disks};

/// How the folders' names begin.
const PREFIX: &str = "millstream-";

/// The name of the file that tells whether the process lives.
const LOCK: &str = "lock";

/// Its name before it is locked.
const NEW_LOCK: &str = "lock.new";

/// A folder without a lock is of a process that has just begun, unless it is older than this.
const BEGUN: Duration = Duration::from_secs(60);

/// How long the removal of the folder is tried, while threads that are ending may still write to it.
const PATIENCE: Duration = Duration::from_secs(1);

/// The folders, one on each disk.
#[derive(Debug)]
pub struct Scratch {
    folders: Vec<ScratchFolder>,
    compression: Compression,
    block: Option<u64>,
    buffer: bool,
}

/// A folder on a disk; removed when this is dropped.
#[derive(Debug)]
struct ScratchFolder {
    disk: Disk,
    path: PathBuf,
    /// `None` where no folder could be made: then nothing can spill, which is told when something wants to.
    _lock: Option<File>,
}

impl Scratch {
    /// New folders on `disks`. Those that dead processes have left there are removed.
    pub fn new(disks: &Disks) -> Self {
        let folders = disks.disks.iter().map(ScratchFolder::new).collect();
        Scratch { folders, compression: disks.compression, block: disks.block, buffer: disks.buffer }
    }

    /// Where everything may make files.
    pub fn folder(&self) -> &Path {
        self.folders_of(None).first().map_or(Path::new(""), |folder| folder.path.as_path())
    }

    /// Where what names `pool` may make files, or what names none. Where a machine has no such pool, or no disk that is
    /// for everything, it is all of them.
    pub fn folders(&self, pool: Option<&str>) -> Vec<PathBuf> {
        self.folders_of(pool).into_iter().map(|folder| folder.path.clone()).collect()
    }

    fn folders_of(&self, pool: Option<&str>) -> Vec<&ScratchFolder> {
        let for_everything = |folder: &&ScratchFolder| folder.disk.is_for_everything();
        let in_pool =
            |folder: &&ScratchFolder| pool.is_some_and(|pool| folder.disk.pools.iter().any(|one| one == pool));
        let mut chosen: Vec<&ScratchFolder> = self.folders.iter().filter(in_pool).collect();
        if chosen.is_empty() {
            chosen = self.folders.iter().filter(for_everything).collect();
        }
        if chosen.is_empty() { self.folders.iter().collect() } else { chosen }
    }

    /// How sorted runs are written.
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// Bytes of a block of these, if that is set.
    pub fn block(&self) -> Option<u64> {
        self.block
    }

    /// Whether rows wait before a sort while it is busy.
    pub fn buffer(&self) -> bool {
        self.buffer
    }
}

impl ScratchFolder {
    fn new(disk: &Disk) -> Self {
        let parent = disk.folder.as_path();
        sweep(parent);
        let made = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent);
        let locked = made.and_then(|folder| {
            // It is locked when it gets its name: nobody finds it free.
            let (lock, unnamed) = (folder.path().join(LOCK), folder.path().join(NEW_LOCK));
            let file = File::create(&unnamed)?;
            file.lock()?;
            fs_err::rename(unnamed, lock)?;
            Ok((folder.keep(), file))
        });
        let (folder, lock) = match locked {
            Ok((folder, lock)) => (folder, Some(lock)),
            Err(_) => (parent.to_owned(), None),
        };
        ScratchFolder { disk: disk.clone(), path: folder, _lock: lock }
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        if self._lock.is_none() {
            return;
        }
        let begun = Instant::now();
        while fs_err::remove_dir_all(&self.path).is_err() && self.path.exists() && begun.elapsed() < PATIENCE {
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
            let is_beginning =
                |entry: std::io::Result<fs_err::DirEntry>| entry.is_ok_and(|entry| entry.file_name() == NEW_LOCK);
            let is_empty = fs_err::read_dir(folder).is_ok_and(|mut entries| entries.all(is_beginning));
            is_empty && age.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age > BEGUN))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(folder: &Path) -> Scratch {
        Scratch::new(&Disks::one(folder.to_owned()))
    }

    #[test]
    fn what_names_a_pool_uses_its_disks_and_the_rest_the_others() {
        let parent = tempfile::tempdir().expect("a folder");
        let disk = |name: &str, pools: &[&str]| {
            let folder = parent.path().join(name);
            fs_err::create_dir(&folder).expect("writable");
            Disk { folder, pools: pools.iter().map(|pool| (*pool).to_owned()).collect() }
        };
        let disks = vec![disk("large", &["large"]), disk("any", &[]), disk("both", &["large", "default"])];
        let scratch = Scratch::new(&Disks { disks: disks.clone(), ..Disks::one(PathBuf::new()) });
        let names = |scratch: &Scratch, pool: Option<&str>| -> Vec<String> {
            let parents = scratch.folders(pool).into_iter().filter_map(|folder| Some(folder.parent()?.to_owned()));
            parents.filter_map(|folder| Some(folder.file_name()?.to_string_lossy().into_owned())).collect()
        };
        assert_eq!(names(&scratch, None), ["any", "both"]);
        assert_eq!(names(&scratch, Some("large")), ["large", "both"]);
        assert_eq!(names(&scratch, Some("other")), ["any", "both"]);
        assert!(scratch.folder().starts_with(parent.path().join("any")));
        let only = Scratch::new(&Disks { disks: disks[..1].to_vec(), ..Disks::one(PathBuf::new()) });
        assert_eq!(names(&only, None), ["large"]);
    }

    #[test]
    fn the_folder_goes_with_its_process() {
        let parent = tempfile::tempdir().expect("a folder");
        let scratch = on(parent.path());
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
        // Killed before it had its lock, some minutes ago.
        let half = left("millstream-half", NEW_LOCK);
        let ago = std::time::SystemTime::now() - BEGUN * 2;
        File::open(&half).and_then(|folder| folder.set_modified(ago)).expect("it can be told");
        let living = on(parent.path());
        assert!(!dead.exists() && !half.exists());
        let second = on(parent.path());
        assert!(living.folder().exists() && second.folder().exists() && beginning.exists());
        assert!(others.iter().all(|folder| folder.exists()));
    }

    #[test]
    fn where_no_folder_can_be_made_nothing_is_removed() {
        let parent = tempfile::tempdir().expect("a folder");
        let absent = parent.path().join("none");
        let scratch = on(&absent);
        assert_eq!(scratch.folder(), absent);
        drop(scratch);
        assert!(parent.path().exists());
    }
}
