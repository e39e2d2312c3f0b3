//! The audit log: who did what, a line of JSON each, in `STATE/server/audit.jsonl`.

use std::io::Write;
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
        let [user, did, what] = [user, did, what].map(str::to_owned);
        let entry = AuditEntry { when: now(), user, from: from.to_string(), did, what, ok };
        let note = || {
            if fs_err::metadata(&self.path).is_ok_and(|metadata| metadata.len() >= LARGEST) {
                fs_err::rename(&self.path, self.path.with_extension("old.jsonl"))?;
            }
            let mut line = serde_json::to_vec(&entry)?;
            line.push(b'\n');
            private::append(&self.path)?.write_all(&line)
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
            let text = match fs_err::read_to_string(&path) {
                Ok(text) => text,
                Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => continue,
                Err(cause) => return Err(Error::io("the audit log cannot be read", &cause)),
            };
            let left = most - entries.len();
            entries.extend(text.lines().rev().filter_map(|line| serde_json::from_str(line).ok()).take(left));
        }
        Ok(entries)
    }
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
        private::append(&audit.path).and_then(|mut file| file.write_all(b"{\"when\": 1, \"us\n")).expect("written");
        let last = audit.last(2).expect("read");
        assert_eq!(last.iter().map(|entry| entry.what.as_str()).collect::<Vec<_>>(), ["b.yaml", "a.yaml"]);
        fs_err::rename(&audit.path, audit.path.with_extension("old.jsonl")).expect("renamed");
        audit.note("ada", Ipv4Addr::LOCALHOST.into(), "cancel", "1-1", false).expect("written");
        assert_eq!(audit.last(2).expect("read")[1].what, "b.yaml");
    }
}
