//! Reading the files of the reject log.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

use fs_err::File;
use millstream_core::{Error, Result};

use super::line::{Line, RejectLine, VERSION};
use super::piece::PieceName;

/// What one run has written into one piece.
pub(super) struct PieceLines {
    /// The run, and the number of the piece.
    pub(super) name: PieceName,
    /// Its lines, in their order.
    pub(super) lines: Vec<Line>,
}

impl PieceLines {
    /// Its rejects, in their order.
    pub(super) fn into_rejects(self) -> impl Iterator<Item = RejectLine> {
        self.lines.into_iter().filter_map(|line| match line {
            Line::Reject(line) => Some(*line),
            _ => None,
        })
    }
}

/// The lines of all files in `folder`, in the order of the runs, and of their pieces.
pub(super) fn read_all(folder: &Path) -> Result<Vec<PieceLines>> {
    let failed = |path: &Path, cause: &std::io::Error| {
        Error::io(format!("the rejects in {} cannot be read", path.display()), cause)
    };
    let mut pieces = Vec::new();
    for name in PieceName::all(folder).map_err(|cause| failed(folder, &cause))? {
        let path = name.path(folder);
        let lines = match lines_of(&path) {
            // It was removed meanwhile, as it was too old.
            Err(cause) if cause.kind() == ErrorKind::NotFound => continue,
            lines => lines.map_err(|cause| failed(&path, &cause))?,
        };
        if let Some(Line::Version { version, .. }) = lines.first()
            && *version > VERSION
        {
            return Err(Error::newer(format!("the list of rejects {}", path.display()), version, VERSION)
                .hint("upgrade Millstream to show them or to resume their run"));
        }
        pieces.push(PieceLines { name, lines });
    }
    Ok(pieces)
}

/// The lines of all whole frames.
fn lines_of(path: &Path) -> std::io::Result<Vec<Line>> {
    let mut file = BufReader::new(File::open(path)?);
    let mut lines = Vec::new();
    while !file.fill_buf()?.is_empty() {
        let mut text = Vec::new();
        let read = zstd::Decoder::with_buffer(&mut file)?.single_frame().read_to_end(&mut text);
        if let Err(cause) = read {
            // Only the end of a file can be half written.
            let mut rest = Vec::new();
            file.read_to_end(&mut rest)?;
            match cause.kind() {
                ErrorKind::UnexpectedEof => break,
                _ => return Err(cause),
            }
        }
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            lines.push(serde_json::from_slice(line).map_err(std::io::Error::other)?);
            if let [Line::Version { version, .. }] = lines[..]
                && version > VERSION
            {
                // The lines behind it may be of any form.
                return Ok(lines);
            }
        }
    }
    Ok(lines)
}
