//! A file in a folder under its temporary name. `folder.rs` and `worker.rs` decide what that is, and what becomes of
//! it.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use millstream_core::direct::{self, Appender};
use millstream_core::{Budget, Result};

use super::destination::Draft;
use super::naming::Target;
use crate::shared::{Charge, blocking, path_error};

/// What tells workers of a cluster whose temporary files these are.
pub(super) const RUN: &str = "run";

/// `.NAME.tmp` beside the result.
pub(super) fn temporary_folder(target: &Target) -> PathBuf {
    target.folder().join(format!(".{}.tmp", target.key()))
}

/// The length in bytes from which a file is written past the page cache. It must be on the disk before the commit
/// anyway, and would evict other pages.
const LARGE: u64 = if cfg!(test) { 2 << 20 } else { 32 << 20 };

/// Bytes of a large file that are written at once.
const PIECE: usize = 512 << 10;

/// A file under its temporary name.
pub(super) struct StagedFile {
    staged: PathBuf,
    /// Its final path, for messages.
    shown: PathBuf,
    file: Option<fs_err::File>,
    length: u64,
    /// Whether it was closed temporarily, as one of many files.
    rested: bool,
    /// Writes the file once it is large.
    large: Option<(Appender, Charge)>,
    budget: Arc<Budget>,
}

impl StagedFile {
    /// A new one at `staged`, which messages call `shown`.
    pub(super) fn create(staged: PathBuf, shown: PathBuf, budget: &Arc<Budget>) -> Result<Self> {
        let created = fs_err::OpenOptions::new().append(true).create_new(true).open(&staged);
        let file = Some(created.map_err(|error| path_error("make", &staged, &error))?);
        Ok(StagedFile { staged, shown, file, length: 0, rested: false, large: None, budget: Arc::clone(budget) })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.length += bytes.len() as u64;
        match self.large.is_none() && self.length >= LARGE && !self.rested {
            true => self.write_first_of_large(bytes),
            false => self.write_on(bytes),
        }
    }

    /// Writes `bytes` in the same way as before.
    fn write_on(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.large {
            Some((appender, _)) => appender.append(bytes),
            None => self.opened()?.write_all(bytes),
        }
    }

    /// Writes `bytes`, with which the file becomes large: from the last page boundary in them on past the cache.
    fn write_first_of_large(&mut self, bytes: &[u8]) -> io::Result<()> {
        let page = direct::align_down(self.length);
        let Some(before) = bytes.len().checked_sub((self.length - page) as usize) else { return self.write_on(bytes) };
        let (before, behind) = bytes.split_at(before);
        self.write_on(before)?;
        let mut charge = Charge::new(&self.budget, 0);
        if charge.set(Appender::held(PIECE)) {
            let file = Arc::new(self.opened()?.file().try_clone()?);
            self.large = Some((Appender::new(file, page, PIECE)?, charge));
        }
        self.write_on(behind)
    }

    /// The file, reopened if it was closed temporarily.
    fn opened(&mut self) -> io::Result<&mut fs_err::File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => fs_err::OpenOptions::new().append(true).open(&self.staged)?,
        };
        Ok(self.file.insert(file))
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.large.take() {
            Some((mut appender, _charge)) => appender.flush(),
            None => Ok(()),
        }
    }
}

#[async_trait]
impl Draft for StagedFile {
    async fn append(&mut self, bytes: &[u8]) -> Result<()> {
        blocking(|| self.write(bytes)).map_err(|error| path_error("write", &self.shown, &error))
    }

    async fn rest(&mut self) -> Result<()> {
        blocking(|| self.flush()).map_err(|error| path_error("write", &self.shown, &error))?;
        self.rested = true;
        self.file = None;
        Ok(())
    }

    async fn close(mut self: Box<Self>) -> Result<()> {
        blocking(|| self.flush()).map_err(|error| path_error("write", &self.shown, &error))
    }
}
