//! Which rejects were loaded later.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};

use fs_err::File;
use millstream_core::{Error, Result};

use super::cannot_keep;

/// The rejects that were loaded later, in a file of lines.
///
/// ```text
///  ID <tab> SINK      loaded into this sink
///  <tab> SINK         a replay into this sink has ended
///  ID                 loaded into all sinks that it belongs to: not a reject any more
/// ```
#[derive(Debug, Default)]
pub struct ReplayedRejects {
    lines: HashSet<String>,
    rounds: HashMap<String, u64>,
}

impl ReplayedRejects {
    fn path(folder: &Path) -> PathBuf {
        folder.join("replayed")
    }

    /// The list in `folder`.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = ReplayedRejects::path(folder);
        let text = match fs_err::read_to_string(&path) {
            Ok(text) => text,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(cause) => return Err(Error::io(format!("the list {} cannot be read", path.display()), &cause)),
        };
        let mut replayed = ReplayedRejects::default();
        // A line that was cut short by a crash has no end.
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            match line.strip_prefix('\t') {
                Some(sink) => *replayed.rounds.entry(sink.to_owned()).or_default() += 1,
                None => drop(replayed.lines.insert(line.to_owned())),
            }
        }
        Ok(replayed)
    }

    /// Whether no reject was loaded.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Whether a reject was loaded into `sink`.
    pub fn has(&self, id: &str, sink: &str) -> bool {
        self.lines.contains(&format!("{id}\t{sink}"))
    }

    /// Whether a reject was loaded into all sinks that it belongs to.
    pub(super) fn is_finished(&self, id: &str) -> bool {
        self.lines.contains(id)
    }

    /// How many replays into `sink` have ended.
    pub fn rounds(&self, sink: &str) -> u64 {
        self.rounds.get(sink).copied().unwrap_or(0)
    }

    /// Notes that a replay into `sink` has ended, and has loaded these.
    pub fn add(folder: &Path, sink: &str, ids: impl Iterator<Item = String>) -> Result<()> {
        let loaded: String = ids.map(|id| format!("{id}\t{sink}\n")).collect();
        ReplayedRejects::append(folder, &format!("{loaded}\t{sink}\n"))
    }

    /// Notes that these are loaded into all sinks that they belong to.
    pub fn finish(folder: &Path, ids: &[String]) -> Result<()> {
        match ids.is_empty() {
            true => Ok(()),
            false => ReplayedRejects::append(folder, &ids.iter().map(|id| format!("{id}\n")).collect::<String>()),
        }
    }

    /// Appends `text`, behind an end for a line that was cut short.
    fn append(folder: &Path, text: &str) -> Result<()> {
        let path = ReplayedRejects::path(folder);
        let written = || -> std::io::Result<()> {
            let mut file = File::options().create(true).append(true).open(&path)?;
            file.write_all(format!("\n{text}").as_bytes())?;
            file.sync_all()
        };
        written().map_err(|cause| cannot_keep(&path, &cause))
    }
}
