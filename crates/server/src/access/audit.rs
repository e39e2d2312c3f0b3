//! The audit log: who did what, a line of JSON each, in `STATE/server/audit.jsonl`.

use std::io::{Read, Seek, SeekFrom, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use millstream::{Error, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::private;
use crate::problem::now;

/// A log of this size becomes the older one of two.
const LARGEST: u64 = 8 << 20;

/// The most characters of a text in an entry: what comes from outside shall not push out what was there.
const LONGEST: usize = 200;

/// What somebody did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditEntry {
    /// When, in milliseconds since 1970.
    pub when: u64,
    /// Who.
    pub user: String,
    /// From where.
    pub from: String,
    /// What: `start`, `cancel`, `sign in`.
    pub did: String,
    /// To what: a file, a run.
    pub what: String,
    /// Whether it worked.
    pub ok: bool,
}

/// The audit log.
#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
    writing: Mutex<()>,
}

impl Audit {
    pub(super) fn new(folder: &Path) -> Self {
        Audit { path: folder.join("audit.jsonl"), writing: Mutex::new(()) }
    }

    /// Notes what was done.
    ///
    /// # Errors
    /// If it cannot be written, such as to a full disk.
    pub fn note(&self, user: &str, from: IpAddr, did: &str, what: &str, ok: bool) -> Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let cut = |text: &str| text.chars().take(LONGEST).collect::<String>();
        let [user, did, what] = [user, did, what].map(cut);
        let entry = AuditEntry { when: now(), user, from: from.to_string(), did, what, ok };
        let note = || {
            if fs_err::metadata(&self.path).is_ok_and(|metadata| metadata.len() >= LARGEST) {
                fs_err::rename(&self.path, self.path.with_extension("old.jsonl"))?;
            }
            let mut file = private::append(&self.path)?;
            let mut line = if ends_a_line(&self.path)? { Vec::new() } else { vec![b'\n'] };
            serde_json::to_writer(&mut line, &entry)?;
            line.push(b'\n');
            file.write_all(&line)
        };
        note().map_err(|cause| Error::io("the audit log cannot be written", &cause))
    }

    /// The last `most` entries, the last one first.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn last(&self, most: usize) -> Result<Vec<AuditEntry>> {
        let mut entries = Vec::new();
        for path in [self.path.clone(), self.path.with_extension("old.jsonl")] {
            let text = match fs_err::read(&path) {
                Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
                Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => continue,
                Err(cause) => return Err(Error::io("the audit log cannot be read", &cause)),
            };
            let left = most - entries.len();
            entries.extend(text.lines().rev().filter_map(|line| serde_json::from_str(line).ok()).take(left));
        }
        Ok(entries)
    }
}

/// Whether the file at `path` is empty, or its last line is whole.
fn ends_a_line(path: &Path) -> std::io::Result<bool> {
    let mut file = fs_err::File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(true);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_last_entries_come_first_and_a_torn_line_does_no_harm() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let audit = Audit::new(folder.path());
        assert!(audit.last(10).expect("read").is_empty());
        for what in ["a.yaml", "b.yaml"] {
            audit.note("ada", Ipv4Addr::LOCALHOST.into(), "start", what, true).expect("written");
        }
        private::append(&audit.path)
            .and_then(|mut file| file.write_all("{\"when\": 1, \"us\u{e9}".as_bytes().split_last().expect("bytes").1))
            .expect("written");
        audit.note("ada", Ipv4Addr::LOCALHOST.into(), "start", &"c".repeat(10_000), true).expect("written");
        let last = audit.last(3).expect("read");
        assert_eq!(last[0].what.len(), LONGEST);
        let last = &last[1..];
        assert_eq!(last.iter().map(|entry| entry.what.as_str()).collect::<Vec<_>>(), ["b.yaml", "a.yaml"]);
        fs_err::rename(&audit.path, audit.path.with_extension("old.jsonl")).expect("renamed");
        audit.note("ada", Ipv4Addr::LOCALHOST.into(), "cancel", "1-1", false).expect("written");
        assert_eq!(audit.last(3).expect("read")[2].what, "b.yaml");
    }
}
