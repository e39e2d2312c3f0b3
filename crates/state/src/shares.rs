//! What runs of one machine leave each other: memory, and places in pools.
//!
//! A run that knows nothing of others finds them in the state folder. What it has taken is a file that its process has
//! locked: the system lets go of it when the process ends, however it ends. Who takes memory holds the lock of the
//! whole folder meanwhile, so that two do not take the same.

use std::fs::TryLockError;
use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use fs_err::{File, OpenOptions};
use millstream_core::stable_hash::hash;
use millstream_core::{Error, Result};

/// The folder of the shares of memory in the state folder.
const SHARES: &str = "shares";

/// The folder of the places in pools.
const POOLS: &str = "pools";

/// The lock of the whole folder.
const LOCK: &str = "lock";

/// A run gets at least this part of the memory of the machine, whatever others have.
const LEAST_PART: u64 = 8;

/// How much memory a run wants, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// What all runs of the machine have together.
    pub all: u64,
    /// How much it reserves, whatever others have; if it says nothing, what these leave.
    pub reserved: Option<u64>,
    /// How many runs are to have room beside each other, this one among them.
    pub beside: u64,
    /// The least with which it can work.
    pub least: u64,
}

impl Wanted {
    /// What it gets where others have `others` bytes.
    fn given(self, others: u64) -> u64 {
        let left = self.all.saturating_sub(others);
        let least = self.least.max(self.all / LEAST_PART).min(self.all);
        self.reserved.unwrap_or_else(|| self.alone().min(left).max(least))
    }

    /// What it would get if there were no others.
    fn alone(self) -> u64 {
        (self.all / self.beside.max(1)).max(self.least.min(self.all))
    }
}

/// Memory that a run has, until this is dropped.
#[derive(Debug)]
pub struct MemoryShare {
    /// How much, in bytes.
    pub memory: u64,
    /// How much others had when it was taken.
    pub others: u64,
    /// Whether it would be more without them.
    pub is_less: bool,
    path: PathBuf,
    _locked: File,
}

impl MemoryShare {
    /// Takes what is `wanted` in the state folder `state`.
    ///
    /// # Errors
    /// If there can be no lock.
    pub fn take(state: &Path, wanted: Wanted) -> Result<Self> {
        let failed = |cause: std::io::Error| Error::io("memory cannot be shared with other runs", &cause);
        let folder = state.join(SHARES);
        fs_err::create_dir_all(&folder).map_err(failed)?;
        let lock = File::create(folder.join(LOCK)).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let others = others(&folder).map_err(failed)?;
        let memory = wanted.given(others);
        // Not the name of a run: that says when it began, and no two have the same.
        let path = folder.join(format!("{:016x}.share", RandomState::new().hash_one(())));
        let mut file = File::create(&path).map_err(failed)?;
        file.lock().map_err(failed)?;
        file.write_all(memory.to_string().as_bytes()).map_err(failed)?;
        let is_less = wanted.reserved.is_none() && memory < wanted.alone();
        Ok(MemoryShare { memory, others, is_less, path, _locked: file })
    }
}

/// How many bytes live runs have in the state folder `state`.
///
/// # Errors
/// If that cannot be read.
pub fn memory_taken(state: &Path) -> Result<u64> {
    let folder = state.join(SHARES);
    if !folder.exists() {
        return Ok(0);
    }
    let count = || {
        let lock = File::create(folder.join(LOCK))?;
        lock.lock()?;
        others(&folder)
    };
    count().map_err(|cause| Error::io("the memory of runs cannot be counted", &cause))
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        // A file that is not locked means the same as none.
        let _ = fs_err::remove_file(&self.path);
    }
}

/// How many bytes live runs have. What dead ones have left is removed.
fn others(folder: &Path) -> std::io::Result<u64> {
    let mut all = 0_u64;
    for entry in fs_err::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "share") {
            continue;
        }
        let Ok(mut file) = File::open(&path) else { continue };
        match file.try_lock_shared() {
            Ok(()) => drop(fs_err::remove_file(&path)),
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                file.read_to_string(&mut text)?;
                all = all.saturating_add(text.trim().parse().unwrap_or_default());
            }
            Err(TryLockError::Error(cause)) => return Err(cause),
        }
    }
    Ok(all)
}

/// A place in a pool, until this is dropped.
#[derive(Debug)]
pub struct PoolPlace(#[expect(dead_code, reason = "held for its drop")] File);

impl PoolPlace {
    /// Takes one of the `size` places of the pool `name` in the state folder `state`; `None` if runs of this machine
    /// have them all.
    ///
    /// # Errors
    /// If there can be no lock.
    pub fn take(state: &Path, name: &str, size: usize) -> Result<Option<Self>> {
        let failed = |cause: std::io::Error| Error::io(format!("no place in the pool `{name}` can be taken"), &cause);
        let folder = state.join(POOLS);
        fs_err::create_dir_all(&folder).map_err(failed)?;
        for place in 1..=size {
            let path = folder.join(format!("{:016x}.{place}", hash(name)));
            let options = OpenOptions::new().create(true).truncate(false).write(true).clone();
            let file = options.open(path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) => return Ok(Some(PoolPlace(file))),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(cause)) => return Err(failed(cause)),
            }
        }
        Ok(None)
    }
}

/// How many of the `size` places of the pool `name` in the state folder `state` are taken.
pub fn places_taken(state: &Path, name: &str, size: usize) -> usize {
    let place = |place: usize| state.join(POOLS).join(format!("{:016x}.{place}", hash(name)));
    let is_taken = |file: File| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    (1..=size).filter(|&number| File::open(place(number)).is_ok_and(is_taken)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Wanted = Wanted { all: 1000, reserved: None, beside: 1, least: 50 };

    #[test]
    fn a_run_gets_what_others_leave_and_at_least_something() {
        assert_eq!(WANTED.given(0), 1000);
        assert_eq!(WANTED.given(400), 600);
        assert_eq!(WANTED.given(5000), 125, "an eighth");
        assert_eq!(Wanted { least: 300, ..WANTED }.given(900), 300);
        assert_eq!(Wanted { reserved: Some(800), ..WANTED }.given(900), 800);
        assert_eq!(Wanted { beside: 4, ..WANTED }.given(0), 250);
        assert_eq!(Wanted { beside: 4, ..WANTED }.given(900), 125);
        assert_eq!(Wanted { beside: 100, ..WANTED }.given(0), 125);
        assert_eq!(Wanted { all: 20, ..WANTED }.given(0), 20, "never more than all");
    }

    #[test]
    fn memory_is_free_again_when_its_run_has_ended() {
        let state = tempfile::TempDir::new().expect("a folder");
        let take = |wanted| MemoryShare::take(state.path(), wanted).expect("a share");
        let first = take(Wanted { reserved: Some(700), ..WANTED });
        let second = take(WANTED);
        assert_eq!((second.memory, second.others, second.is_less), (300, 700, true));
        assert_eq!(memory_taken(state.path()).expect("counted"), 1000);
        drop(first);
        assert_eq!(take(WANTED).memory, 700);
        // One that was killed has left its file.
        fs_err::write(state.path().join(SHARES).join("1-1.share"), "900").expect("a file");
        drop(second);
        let alone = take(WANTED);
        assert_eq!((alone.memory, alone.is_less), (1000, false));
        drop(alone);
        let left = fs_err::read_dir(state.path().join(SHARES)).expect("the folder").count();
        assert_eq!(left, 1, "only the lock is left");
    }

    #[test]
    fn a_pool_has_as_many_places_as_it_says() {
        let state = tempfile::TempDir::new().expect("a folder");
        let take = |name: &str| PoolPlace::take(state.path(), name, 2).expect("an answer");
        let (first, second) = (take("db"), take("db"));
        assert!(first.is_some() && second.is_some() && take("db").is_none());
        assert_eq!((places_taken(state.path(), "db", 2), places_taken(state.path(), "web", 2)), (2, 0));
        assert!(take("web/..").is_some(), "any name");
        drop(first);
        assert!(take("db").is_some());
    }
}
