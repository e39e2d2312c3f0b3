//! The reject log of a live run.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use millstream_core::{Error, Result};

use super::earlier::read;
use super::line::{CheckedLine, CheckedRows, ChunkId, DeliveryNumber, Earlier, Line, RejectLine, VERSION};
use super::piece::{Piece, PieceName, Rotation};
use super::{cannot_keep, folder};

/// Rejects that are not tied to a chunk are written when they take so much memory.
const BUFFER_BYTES: usize = 1 << 20;

/// The reject log of a live run: one file, or pieces.
#[derive(Debug)]
pub struct RejectLog {
    pub(super) folder: PathBuf,
    run: String,
    /// How its pieces end; `None` if it is one file, which runs that resume this one read.
    rotation: Option<Rotation>,
    state: Mutex<State>,
    /// Chunks of which a delivery has rejects in a file, and may be done again.
    pending: Mutex<HashSet<ChunkId>>,
}

#[derive(Debug, Default)]
struct State {
    piece: Option<Piece>,
    /// How many pieces there are.
    pieces: u64,
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
        RejectLog {
            folder: folder(state, first),
            run: run.to_owned(),
            rotation: None,
            state: Mutex::default(),
            pending: Mutex::default(),
        }
    }

    /// The same, in pieces. No run resumes such a run, so only rejects are kept, and not what checks have counted.
    pub fn in_pieces(self, rotation: Rotation) -> Self {
        RejectLog { rotation: Some(rotation), ..self }
    }

    /// How its pieces end, if it is written in pieces.
    pub fn rotation(&self) -> Option<&Rotation> {
        self.rotation.as_ref()
    }

    pub(super) fn path(&self, piece: u64) -> PathBuf {
        PieceName::new(&self.run, piece).path(&self.folder)
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

    /// Notes that these chunks are committed, and do not come again.
    pub fn settle(&self, chunks: &[ChunkId]) {
        let mut pending = lock(&self.pending);
        pending.retain(|chunk| !chunks.contains(chunk));
    }

    /// Notes that these chunks are dropped: their records come again in others. What was kept of them does not count.
    pub fn void(&self, chunks: &[ChunkId]) -> Result<()> {
        self.add_delivery(chunks.to_vec(), Vec::new(), Vec::new(), HashMap::new())?;
        self.settle(chunks);
        Ok(())
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
            self.write(&mut state).map_err(|cause| cannot_keep(&self.path(state.pieces), &cause))?;
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
        let (checked, came) = match self.rotation {
            Some(_) => Default::default(),
            None => (checked, came),
        };
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
        state.pieces > 0 || !state.waiting.is_empty()
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
        let mut piece = self.piece(state)?;
        let mut encoder = zstd::Encoder::new(Vec::new(), zstd::DEFAULT_COMPRESSION_LEVEL)?;
        encoder.include_checksum(true)?;
        if piece.is_empty() {
            serde_json::to_writer(&mut encoder, &Line::Version { version: VERSION, came: HashMap::new() })?;
            encoder.write_all(b"\n")?;
        }
        encoder.write_all(&state.waiting)?;
        // One whose end may be half written is not continued.
        piece.write(&encoder.finish()?)?;
        state.waiting.clear();
        state.piece = Some(piece);
        Ok(())
    }

    /// Takes the piece to write into.
    fn piece(&self, state: &mut State) -> std::io::Result<Piece> {
        let is_over = |piece: &Piece| self.rotation.as_ref().is_some_and(|rotation| piece.is_over(rotation));
        match state.piece.take().filter(|piece| !is_over(piece)) {
            Some(piece) => Ok(piece),
            None => {
                state.pieces += 1;
                Piece::create(&self.path(state.pieces))
            }
        }
    }
}
