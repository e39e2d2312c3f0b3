//! A file of the state folder that several processes read and change: the server, and the commands beside it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use millstream::{Error, Result};
use serde::Serialize;

use crate::private;

/// What such a file holds.
pub trait Content: Clone + Default + Serialize {
    /// Its name, to which `.json` and `.lock` are added.
    const NAME: &'static str;

    /// What the text of the file at `path` says.
    fn parse(path: &Path, text: &str) -> Result<Self>;
}

/// What distinguishes one version of a file from another: when it was changed, its size, its inode.
type Stamp = Option<(i64, i64, u64, u64)>;

/// A file with `T`, as it was when it was read last.
#[derive(Debug)]
pub struct Stored<T> {
    path: PathBuf,
    content: T,
    stamp: Stamp,
}

impl<T: Content> Stored<T> {
    /// That in the folder of the server. One that is missing is empty.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(T::NAME).with_extension("json");
        let stamp = stamp(&path);
        let content = match fs_err::read_to_string(&path) {
            Ok(text) => T::parse(&path, &text)?,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => T::default(),
            Err(cause) => return Err(failed(&cause)),
        };
        Ok(Stored { path, content, stamp })
    }

    /// What the file holds now.
    pub fn now(&mut self) -> Result<&T> {
        if self.stamp != stamp(&self.path) {
            *self = Stored::read(self.folder())?;
        }
        Ok(&self.content)
    }

    /// Changes what the file holds, unless `change` fails. Another process that does the same meanwhile waits.
    pub fn change<R>(&mut self, change: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        let lock = private::append(&self.path.with_extension("lock")).map_err(|cause| failed(&cause))?;
        lock.lock().map_err(|cause| failed(&cause))?;
        let mut content = Stored::<T>::read(self.folder())?.content;
        let changed = change(&mut content)?;
        let text = serde_json::to_vec_pretty(&content).map_err(|cause| failed(&cause.into()))?;
        private::write(&self.path, &text).map_err(|cause| failed(&cause))?;
        (self.content, self.stamp) = (content, stamp(&self.path));
        Ok(changed)
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }
}

fn stamp(path: &Path) -> Stamp {
    let metadata = fs_err::metadata(path).ok()?;
    Some((metadata.mtime(), metadata.mtime_nsec(), metadata.size(), metadata.ino()))
}

/// The error if a file of the folder cannot be used.
pub fn failed(cause: &std::io::Error) -> Error {
    Error::io("the users and tokens of the server cannot be used", cause)
}
