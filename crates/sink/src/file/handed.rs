//! Files that workers of a cluster write for the load of a run, which alone gives them their final names.
//!
//! ```text
//!  worker:  join ─▶ file … close ─▶ hand_over ─┐
//!  run:     begin ───────────────────────────▶ adopt ─▶ prepare ─▶ commit      or discard
//! ```
//! In a folder they are hidden beside those of the run, under names that no other process uses; in a bucket they are
//! uploads that nobody has completed. So what no load adopts never becomes visible: the run removes it at its end. If
//! that is killed, the next run does so in a folder, and in a bucket a rule of its own, if it has one.

use std::path::{Path, PathBuf};

use millstream_core::sink::LoadContext;
use millstream_core::{Error, Result};
use serde::{Deserialize, Serialize};

use super::naming::{PARTS, Route};
use super::plan::PlannedFile;

/// What a worker hands over.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Handed {
    /// The number of the first part of the next attempt.
    pub(crate) next_part: usize,
    pub(crate) files: Vec<HandedFile>,
}

/// A file that a worker has written.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HandedFile {
    pub(crate) route: Route,
    pub(crate) file: PlannedFile,
    /// Its name among the temporary files, in a folder.
    pub(crate) name: Option<String>,
}

/// The number of the first part that a load makes: those of each attempt of a worker are its own.
pub(crate) fn first_part(context: &LoadContext) -> usize {
    context.worker.as_ref().map_or(0, |part| part.attempt as usize * PARTS)
}

/// The temporary file that a worker has handed over under this name.
///
/// # Errors
/// If it is no name of such a file.
pub(crate) fn place(temporary: &Path, handed: &HandedFile) -> Result<PathBuf> {
    let name = handed.name.as_deref().filter(|name| !name.contains('/') && name.contains('-'));
    name.map(|name| temporary.join(name)).ok_or_else(|| Error::internal("a worker has handed over no file"))
}
