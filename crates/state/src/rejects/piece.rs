//! The pieces of a reject log: their names, when one ends, and when it is removed.

use std::io::{Result, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs_err::File;
use millstream_core::clock;

use super::{ENDING, folder};

/// A piece ends once it has so many bytes: 64 MB.
const PIECE_BYTES: u64 = 64_000_000;

/// How a reject log is written in pieces, so that old rejects can be removed while their run goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    /// How long rejects are kept, at least. A piece ends after a thirtieth of it.
    pub keep: Duration,
    /// A piece ends once it has so many bytes.
    pub bytes: u64,
}

impl Rotation {
    /// Rejects are kept for at least `keep`.
    pub fn new(keep: Duration) -> Self {
        Rotation { keep, bytes: piece_bytes() }
    }

    /// After so long a piece ends, and it is time to look for old ones.
    pub fn span(&self) -> Duration {
        self.keep / 30
    }
}

/// The most bytes of a piece, in tests fewer.
fn piece_bytes() -> u64 {
    #[cfg(debug_assertions)]
    if let Some(bytes) = std::env::var("MILLSTREAM_REJECT_BYTES").ok().and_then(|bytes| bytes.parse().ok()) {
        return bytes;
    }
    PIECE_BYTES
}

/// What a piece is called. Runs come in the order of their beginnings, and pieces in that of their numbers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PieceName {
    /// When the run began, in milliseconds since 1970, as its name says: `MILLISECONDS-PROCESS`.
    began: u64,
    /// The run.
    pub(super) run: String,
    /// From 1.
    number: u64,
}

impl PieceName {
    pub(super) fn new(run: &str, number: u64) -> Self {
        let began = run.split('-').next().and_then(|time| time.parse().ok());
        PieceName { began: began.unwrap_or(u64::MAX), run: run.to_owned(), number }
    }

    fn parse(file: &str) -> Option<Self> {
        let stem = file.strip_suffix(ENDING)?;
        match stem.rsplit_once('.') {
            Some((run, number)) => Some(PieceName::new(run, number.parse().ok()?)),
            None => Some(PieceName::new(stem, 1)),
        }
    }

    /// The name of the file without its ending.
    pub(super) fn stem(&self) -> String {
        match self.number {
            1 => self.run.clone(),
            number => format!("{}.{number}", self.run),
        }
    }

    pub(super) fn path(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}{ENDING}", self.stem()))
    }

    /// Those of all pieces in `folder`, in their order.
    pub(super) fn all(folder: &Path) -> Result<Vec<Self>> {
        let mut names = Vec::new();
        for entry in fs_err::read_dir(folder)? {
            names.extend(PieceName::parse(&entry?.file_name().to_string_lossy()));
        }
        names.sort();
        Ok(names)
    }
}

/// A piece that is being written.
#[derive(Debug)]
pub(super) struct Piece {
    file: File,
    /// When it was made, in milliseconds since 1970.
    begun: u64,
    bytes: u64,
}

impl Piece {
    /// Makes a file at `path`, and the folders that it needs.
    pub(super) fn create(path: &Path) -> Result<Self> {
        let folder = path.parent().unwrap_or(path);
        fs_err::create_dir_all(folder)?;
        let file = File::create_new(path)?;
        for folder in folder.ancestors().take(3) {
            File::open(folder)?.sync_all()?;
        }
        Ok(Piece { file, begun: clock::now(), bytes: 0 })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Whether what comes next belongs into another piece.
    pub(super) fn is_over(&self, rotation: &Rotation) -> bool {
        let age = Duration::from_millis(clock::now().saturating_sub(self.begun));
        // A process with other settings may have removed it.
        let is_gone = || self.file.metadata().is_ok_and(|metadata| metadata.nlink() == 0);
        self.bytes >= rotation.bytes || age >= rotation.span() || is_gone()
    }

    /// Adds a frame, and returns when it is durable.
    pub(super) fn write(&mut self, frame: &[u8]) -> Result<()> {
        self.file.write_all(frame)?;
        self.bytes += frame.len() as u64;
        self.file.sync_data()
    }
}

/// Removes the pieces that were written last longer than `keep` ago, of the runs that began with one of `chains`, in
/// the state folder. It does no harm if one cannot be removed: it is tried again.
pub fn remove_old<'a>(state: &Path, chains: impl IntoIterator<Item = &'a String>, keep: Duration) {
    let now = clock::now();
    let is_old = |path: &Path| {
        let written = fs_err::metadata(path).ok().and_then(|metadata| u64::try_from(metadata.mtime()).ok());
        written.is_some_and(|seconds| Duration::from_millis(now.saturating_sub(seconds * 1_000)) > keep)
    };
    for chain in chains {
        let folder = folder(state, chain);
        let names = PieceName::all(&folder).unwrap_or_default();
        for path in names.iter().map(|name| name.path(&folder)).filter(|path| is_old(path)) {
            let _ = fs_err::remove_file(path);
        }
    }
}
