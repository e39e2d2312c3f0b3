//! Shared by all sinks: blocking calls, charged memory, and messages about paths.

use std::io;
use std::path::Path;
use std::sync::Arc;

use millstream_core::{Budget, Error};
use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs `work`, which blocks on the disk, without delaying the other tasks of a runtime with many threads. On a runtime
/// with one thread it just runs.
pub(crate) fn blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// Bytes of the budget that a buffer holds; given back when dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    bytes: usize,
    /// Bytes that may always be held, so that a refusal slows a sink down, but never stops it.
    floor: usize,
}

impl Charge {
    pub(crate) fn new(budget: &Arc<Budget>, floor: usize) -> Self {
        Charge { budget: Arc::clone(budget), bytes: 0, floor }
    }

    /// Charges `bytes` that are already held.
    pub(crate) fn held(budget: &Arc<Budget>, bytes: usize) -> Self {
        budget.take(bytes);
        Charge { budget: Arc::clone(budget), bytes, floor: 0 }
    }

    /// The charged bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the charge to `bytes`. `false` if the budget refuses: then the charge stays unchanged.
    #[must_use]
    pub(crate) fn set(&mut self, bytes: usize) -> bool {
        if bytes <= self.bytes {
            self.budget.give_back(self.bytes - bytes);
        } else if bytes <= self.floor {
            self.budget.take(bytes - self.bytes);
        } else if !self.budget.try_take(bytes - self.bytes) {
            return false;
        }
        self.bytes = bytes;
        true
    }

    /// Changes the charge to `bytes` that are already held, whether they are free or not.
    pub(crate) fn force(&mut self, bytes: usize) {
        self.budget.take(bytes.saturating_sub(self.bytes));
        self.budget.give_back(self.bytes.saturating_sub(bytes));
        self.bytes = bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

/// `cannot WHAT PATH`, with the system's own words as cause.
pub(crate) fn path_error(what: &str, path: &Path, error: &io::Error) -> Error {
    let told = Error::io(format!("cannot {what} {}", path.display()), error);
    match error.kind() {
        io::ErrorKind::InvalidFilename => told.hint("a file's name has at most 255 bytes on most disks"),
        io::ErrorKind::IsADirectory => told.hint("name a file in that folder"),
        io::ErrorKind::NotADirectory => told.hint("a part of the path is a file, but a folder is needed"),
        _ => told,
    }
}

/// The nearest folder above `path` (or `path` itself) that exists.
pub(crate) fn nearest_existing(path: &Path) -> &Path {
    let mut at = path;
    while !at.as_os_str().is_empty() && at.symlink_metadata().is_err() {
        at = at.parent().unwrap_or(Path::new(""));
    }
    if at.as_os_str().is_empty() { Path::new(".") } else { at }
}

/// The error if no files can be created in `folder`, which need not exist yet. Changes nothing.
pub(crate) fn folder_fault(folder: &Path) -> Option<Error> {
    let existing = nearest_existing(folder);
    match existing.metadata() {
        Err(error) => Some(path_error("look at", existing, &error)),
        Ok(metadata) if !metadata.is_dir() => Some(
            Error::refused(format!("{} is a file, but a folder is needed", existing.display()))
                .hint("write to another folder, or move the file away"),
        ),
        Ok(_) => {
            let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
            if let Err(error) = rustix::fs::access(existing, access).map_err(io::Error::from) {
                return Some(path_error("write to the folder", existing, &error));
            }
            try_file(existing).err().map(|error| no_files(folder, existing, &error))
        }
    }
}

/// The error of a folder in which no file can be created although the rights allow it, above the folder `wanted`.
fn no_files(wanted: &Path, existing: &Path, error: &io::Error) -> Error {
    let what = match wanted == existing {
        true => format!("files cannot be created in {}", existing.display()),
        false => format!("files cannot be created in {}, so not in {}", existing.display(), wanted.display()),
    };
    let told = match error.kind() {
        // "No such file or directory" is not so: the folder is there.
        io::ErrorKind::NotFound => {
            Error::refused(what).cause("its file system allows none, although the permissions do")
        }
        _ => Error::io(what, error),
    };
    told.hint("write to another folder")
}

/// Tries to create a file in `folder`, and leaves nothing there: some file systems grant rights that they do not have
/// (`/proc`, `/sys`), and a disk may have no free inodes.
fn try_file(folder: &Path) -> io::Result<()> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR).map_err(io::Error::from) {
        Ok(_) => Ok(()),
        // Not every file system has files without a name.
        Err(_) => tempfile::Builder::new().prefix(".millstream-").tempfile_in(folder).map(drop),
    }
}

/// Creates `folder` and missing folders above it, and adds them to `created`, outermost first.
pub(crate) fn create_folders(folder: &Path, created: &mut Vec<std::path::PathBuf>) -> Result<(), Error> {
    let missing: Vec<&Path> = folder
        .ancestors()
        .take_while(|ancestor| !ancestor.as_os_str().is_empty() && ancestor.symlink_metadata().is_err())
        .collect();
    for ancestor in missing.into_iter().rev() {
        match fs_err::create_dir(ancestor) {
            Ok(()) => created.push(ancestor.to_owned()),
            // Another run was faster, or the path is like `a/../a`.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(path_error("create the folder", ancestor, &error)),
        }
    }
    Ok(())
}

/// Removes the folders of `created` that are still empty, innermost first.
pub(crate) fn remove_folders(created: &mut Vec<std::path::PathBuf>) {
    for folder in created.drain(..).rev() {
        // A folder with content by now is in use, and stays.
        let _ = fs_err::remove_dir(folder);
    }
}

/// Makes the entries of `folder` durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), Error> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let synced = fs_err::File::open(folder).and_then(|opened| opened.sync_all());
    match synced {
        // Some network file systems cannot sync a folder; there is nothing more to be done there.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        other => other.map_err(|error| path_error("sync the folder", folder, &error)),
    }
}

/// The SHA-256 of a text as hexadecimal digits.
pub(crate) fn digest(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Ignores rows, which are already in the target.
pub(crate) struct NoWriter;

#[async_trait::async_trait]
impl millstream_core::sink::Writer for NoWriter {
    async fn write(&mut self, _batch: arrow::array::RecordBatch) -> millstream_core::Result<()> {
        Ok(())
    }

    async fn close(&mut self) -> millstream_core::Result<()> {
        Ok(())
    }
}

/// `1 file`, `2 files`.
pub(crate) fn counted(count: u64, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_takes_no_files_is_not_said_to_be_missing() {
        let missing = io::Error::from(io::ErrorKind::NotFound);
        let told = no_files(Path::new("/proc/deep"), Path::new("/proc"), &missing);
        assert_eq!(told.what(), "files cannot be created in /proc, so not in /proc/deep");
        assert_eq!(told.cause_text(), Some("its file system allows none, although the permissions do"));
        assert_eq!(told.hint_text(), Some("write to another folder"));
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let told = no_files(Path::new("/data"), Path::new("/data"), &full);
        assert_eq!((told.what(), told.cause_text()), ("files cannot be created in /data", Some("no storage space")));
    }
}
