//! A file of the state folder that several processes read and change: the server, and the commands beside it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use millstream::{Error, Result};
use serde::Serialize;

use crate::lock::lock;
use crate::private;

/// What such a file holds.
pub trait Content: Clone + Default + PartialEq + Serialize {
    /// Its name, to which `.json` and `.lock` are added.
    const NAME: &'static str;

    /// What the text of the file at `path` says.
    fn parse(path: &Path, text: &str) -> Result<Self>;
}

/// What distinguishes one version of a file from another: when it was changed, its size, its inode.
type Stamp = Option<(i64, i64, u64, u64)>;

/// What a file holds, and which version of it that is.
#[derive(Debug)]
struct Version<T> {
    content: T,
    stamp: Stamp,
}

/// A file with `T`.
#[derive(Debug)]
pub struct Stored<T> {
    path: PathBuf,
    known: Mutex<Version<T>>,
}

impl<T: Content> Stored<T> {
    /// That in the folder of the server. One that is missing is empty.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(T::NAME).with_extension("json");
        let known = Mutex::new(read(&path)?);
        Ok(Stored { path, known })
    }

    /// Looks at what the file holds now.
    pub fn look<R>(&self, look: impl FnOnce(&T) -> R) -> Result<R> {
        let mut known = lock(&self.known);
        if known.stamp != stamp(&self.path) {
            *known = read(&self.path)?;
        }
        Ok(look(&known.content))
    }

    /// Changes what the file holds, unless `change` fails. Others who change it wait meanwhile, in this process and in
    /// others; those who look do not.
    pub fn change<R>(&self, change: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        let only = private::append(&self.path.with_extension("lock")).map_err(|cause| failed(&cause))?;
        only.lock().map_err(|cause| failed(&cause))?;
        let before: T = read(&self.path)?.content;
        let mut content = before.clone();
        let changed = change(&mut content)?;
        if content != before {
            let text = serde_json::to_vec_pretty(&content).map_err(|cause| failed(&cause.into()))?;
            private::write(&self.path, &text).map_err(|cause| failed(&cause))?;
            *lock(&self.known) = Version { content, stamp: stamp(&self.path) };
        }
        Ok(changed)
    }
}

fn read<T: Content>(path: &Path) -> Result<Version<T>> {
    // Before the text: if it changes in between, it is read again.
    let stamp = stamp(path);
    let content = match fs_err::read_to_string(path) {
        Ok(text) => T::parse(path, &text)?,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => T::default(),
        Err(cause) => return Err(failed(&cause)),
    };
    Ok(Version { content, stamp })
}

fn stamp(path: &Path) -> Stamp {
    let metadata = fs_err::metadata(path).ok()?;
    Some((metadata.mtime(), metadata.mtime_nsec(), metadata.size(), metadata.ino()))
}

/// The error if a file of the folder cannot be used.
pub fn failed(cause: &std::io::Error) -> Error {
    Error::io("the users and tokens of the server cannot be used", cause)
}
