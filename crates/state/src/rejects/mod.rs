//! The reject log: what runs rejected, as JSON lines in frames of zstd, one file for each run, or several pieces.
//!
//! ```text
//!  STATE/rejects/FIRST/RUN.jsonl.zst    FIRST: the first run of its resume chain
//!  STATE/rejects/FIRST/RUN.2.jsonl.zst  the second piece, of a run that reads a queue: see [`Rotation`]
//!  STATE/rejects/FIRST/replayed         what was loaded later: see [`ReplayedRejects`]
//! ```
//! A line is a reject, or says something about others. The rejects of a chunk are in the file before the chunk's ledger
//! entry is committed, so a run that is killed between the two leaves rejects of rows that the next run loads and
//! rejects again. So of the rejects of a chunk only those of its last delivery count.
//!
//! A frame is written as a whole. Readers skip the frame that a killed run has left half written: nothing that depends
//! on it was committed. A file that could not be written to its end is not continued, but followed by another piece.
//!
//! The first line of a file holds its version. A file without it has version 1, too.
//!
//! `line.rs` the lines; `log.rs` the log of a live run; `piece.rs` the files of a log, and which of them are too old;
//! `files.rs` reads them; `earlier.rs` which of their rejects count; `replayed.rs` which were loaded later. The engine
//! decides how much may be rejected, and replays rejects.

mod earlier;
mod files;
mod line;
mod log;
mod piece;
mod replayed;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use millstream_core::Error;

pub use earlier::{committed, committed_checks, failed_again, of_run, read};
pub use line::{Again, CheckedLine, CheckedRows, ChunkId, DeliveryNumber, Earlier, Kept, Line, RejectLine};
pub use log::RejectLog;
pub use piece::{Rotation, remove_old};
pub use replayed::ReplayedRejects;

/// The folder of all rejects in the state folder.
pub(crate) const FOLDER: &str = "rejects";

/// The end of the names of the files.
const ENDING: &str = ".jsonl.zst";

/// The folder for the rejects of `first` and the runs that resume it.
pub fn folder(state: &Path, first: &str) -> PathBuf {
    state.join(FOLDER).join(first)
}

/// Whether `first` or a run that resumes it has kept rejects: those of a run that fails at its first bad record are
/// counted, and not kept.
pub fn has_kept(state: &Path, first: &str) -> bool {
    fs_err::read_dir(folder(state, first))
        .is_ok_and(|mut files| files.any(|file| file.is_ok_and(|file| file.path().to_string_lossy().ends_with(ENDING))))
}

fn cannot_keep(path: &Path, cause: &std::io::Error) -> Error {
    let error = Error::io(format!("the rejects cannot be kept in {}", path.display()), cause);
    match error.hint_text() {
        Some(_) => error,
        None => error.hint("name another folder with `--state` or MILLSTREAM_STATE"),
    }
}
