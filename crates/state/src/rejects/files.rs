//! Reading the files of the reject log.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use fs_err::File;
use millstream_core::{Error, Result};

use super::ENDING;
use super::line::{Line, RejectLine, VERSION};

/// What one run has written.
pub(super) struct RunLines {
    /// The run.
    pub(super) run: String,
    /// Its lines, in their order.
    pub(super) lines: Vec<Line>,
}

impl RunLines {
    /// Its rejects, in their order.
    pub(super) fn into_rejects(self) -> impl Iterator<Item = RejectLine> {
        self.lines.into_iter().filter_map(|line| match line {
            Line::Reject(line) => Some(*line),
            _ => None,
        })
    }
}

/// The lines of all files in `folder`, in the order of the runs.
pub(super) fn read_all(folder: &Path) -> Result<Vec<RunLines>> {
    let failed = |path: &Path, cause: &std::io::Error| {
        Error::io(format!("the rejects in {} cannot be read", path.display()), cause)
    };
    let mut files = Vec::new();
    for entry in fs_err::read_dir(folder).map_err(|cause| failed(folder, &cause))? {
        let name = entry.map_err(|cause| failed(folder, &cause))?.file_name().to_string_lossy().into_owned();
        files.extend(name.strip_suffix(ENDING).map(str::to_owned));
    }
    files.sort_by_key(|run| order(run));
    let mut runs = Vec::new();
    for run in files {
        let path = folder.join(format!("{run}{ENDING}"));
        let lines = lines_of(&path).map_err(|cause| failed(&path, &cause))?;
        if let Some(Line::Version { version, .. }) = lines.first()
            && *version > VERSION
        {
            return Err(Error::newer(format!("the list of rejects {}", path.display()), version, VERSION)
                .hint("upgrade Millstream to show them or to resume their run"));
        }
        runs.push(RunLines { run, lines });
    }
    Ok(runs)
}

/// Runs come in the order of their beginnings: `MILLISECONDS-PROCESS`.
fn order(run: &str) -> (u64, String) {
    let time = run.split('-').next().and_then(|time| time.parse().ok());
    (time.unwrap_or(u64::MAX), run.to_owned())
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
                std::io::ErrorKind::UnexpectedEof => break,
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
