//! The reject log of a live run.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fs_err::File;
use millstream_core::{Error, Result};

use super::earlier::read;
use super::line::{CheckedLine, CheckedRows, ChunkId, DeliveryNumber, Earlier, Line, RejectLine, VERSION};
use super::{ENDING, cannot_keep, folder};

/// Rejects that are not tied to a chunk are written when they take so much memory.
const BUFFER_BYTES: usize = 1 << 20;

/// The reject log of a live run: one file.
#[derive(Debug)]
pub struct RejectLog {
    pub(super) folder: PathBuf,
    pub(super) path: PathBuf,
    state: Mutex<State>,
    /// Chunks of which a delivery has rejects in a file, and is not committed.
    pending: Mutex<HashSet<ChunkId>>,
}

#[derive(Debug, Default)]
struct State {
    file: Option<File>,
    waiting: Vec<u8>,
    deliveries: DeliveryNumber,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RejectLog {
    /// The reject log of `run`, which resumes `first` or is it, in the state folder. Its file is created with the first
    /// reject.
    pub fn new(state: &Path, first: &str, run: &str) -> Self {
        let folder = folder(state, first);
        let path = folder.join(format!("{run}{ENDING}"));
        RejectLog { folder, path, state: Mutex::default(), pending: Mutex::default() }
    }

    /// What earlier runs have left.
    pub fn earlier(&self) -> Result<Earlier> {
        match self.folder.is_dir() {
            true => read(&self.folder),
            false => Ok(Earlier::default()),
        }
    }

    /// Notes that these chunks have rejects of a delivery that was not committed.
    pub fn remember(&self, chunks: impl IntoIterator<Item = ChunkId>) {
        lock(&self.pending).extend(chunks);
    }

    /// Adds lines, and returns when they are durable if `now`, or when they take much memory.
    pub fn add(&self, lines: impl IntoIterator<Item = Line>, now: bool) -> Result<()> {
        let mut state = lock(&self.state);
        for line in lines {
            serde_json::to_writer(&mut state.waiting, &line)
                .map_err(|cause| Error::internal("a reject cannot be written as JSON").cause(cause))?;
            state.waiting.push(b'\n');
        }
        if now || state.waiting.len() >= BUFFER_BYTES {
            self.write(&mut state).map_err(|cause| cannot_keep(&self.path, &cause))?;
        }
        Ok(())
    }

    /// Adds the rejects of one delivery of `chunks` and what checks have counted of it, and returns when they are
    /// durable. What is there of an earlier delivery of these chunks does not count any more. `came` is how many
    /// records have come so far to the entries whose limit is a share.
    pub fn add_delivery(
        &self,
        chunks: Vec<ChunkId>,
        rejects: Vec<RejectLine>,
        checked: Vec<CheckedRows>,
        came: HashMap<String, u64>,
    ) -> Result<()> {
        let delivery = {
            let mut state = lock(&self.state);
            state.deliveries += 1;
            state.deliveries
        };
        let with: HashSet<ChunkId> = rejects.iter().filter_map(|line| line.chunk.clone()).collect();
        let without: Vec<ChunkId> = {
            let pending = lock(&self.pending);
            chunks.iter().filter(|chunk| pending.contains(chunk) && !with.contains(chunk)).cloned().collect()
        };
        if rejects.is_empty() && without.is_empty() && checked.is_empty() {
            return Ok(());
        }
        self.remember(with);
        let checked = (!checked.is_empty()).then_some(Line::Checked(CheckedLine { checked, chunks, delivery }));
        let rejects = rejects.into_iter().map(|line| Line::Reject(Box::new(RejectLine { delivery, ..line })));
        let without = without.into_iter().map(|without| Line::Without { without, delivery });
        let came = (!came.is_empty()).then_some(Line::Came { came });
        self.add(rejects.chain(without).chain(checked).chain(came), true)
    }

    /// Whether any chunk has rejects of a delivery that was not committed, as far as is known.
    pub fn is_pending(&self) -> bool {
        !lock(&self.pending).is_empty()
    }

    /// Whether there is anything in it.
    pub fn has_some(&self) -> bool {
        let state = lock(&self.state);
        state.file.is_some() || !state.waiting.is_empty()
    }

    /// Whether earlier runs have left something.
    pub fn has_earlier(&self) -> bool {
        self.folder.is_dir()
    }

    /// Writes what waits, and returns when it is durable.
    pub fn flush(&self) -> Result<()> {
        self.add([], true)
    }

    fn write(&self, state: &mut State) -> std::io::Result<()> {
        if state.waiting.is_empty() {
            return Ok(());
        }
        let is_new = state.file.is_none();
        let file = match &mut state.file {
            Some(file) => file,
            None => {
                fs_err::create_dir_all(&self.folder)?;
                let file = state.file.insert(File::create_new(&self.path)?);
                for folder in self.folder.ancestors().take(3) {
                    File::open(folder)?.sync_all()?;
                }
                file
            }
        };
        let mut encoder = zstd::Encoder::new(Vec::new(), zstd::DEFAULT_COMPRESSION_LEVEL)?;
        encoder.include_checksum(true)?;
        if is_new {
            serde_json::to_writer(&mut encoder, &Line::Version { version: VERSION, came: HashMap::new() })?;
            encoder.write_all(b"\n")?;
        }
        encoder.write_all(&state.waiting)?;
        file.write_all(&encoder.finish()?)?;
        state.waiting.clear();
        file.sync_data()
    }
}
