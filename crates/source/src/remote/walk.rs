//! Finds the files on a server that match a pattern, in order.
//!
//! As for local files (`file/walk.rs`), a folder is listed once, whatever the pattern: while walking down, the set of
//! parts of the pattern that can come next is kept. Folders that the pattern names are entered without listing those
//! above. Links are followed if a part of the pattern names them, but `**` does not follow them.
//!
//! The names of one folder and of the folders to enter are in memory.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use millstream_core::{Error, Result, Unit};
use tokio::sync::mpsc;

use super::{Absence, Entry, Facts, Failure, Kind, Protocol, Server, Target};
use crate::file::glob::{self, Segment, States, Step};

/// A pending step of the walk.
enum Work {
    /// A folder to enter; `seen` if a listing has named it.
    Folder { path: Vec<u8>, states: States, seen: bool },
    /// A name whose kind is not known.
    Probe { path: Vec<u8>, step: Step, link: bool },
    /// A file to send.
    File { folder: Arc<[u8]>, entry: Entry },
}

struct Walker<'a, P: Protocol> {
    server: &'a Server<P>,
    target: &'a Target,
    segments: Vec<Segment>,
}

/// Sends each file that matches `pattern` (the path of a URL, decoded).
pub(super) async fn walk<P: Protocol>(
    server: &Server<P>,
    target: &Target,
    pattern: &str,
    found: &mpsc::Sender<Result<Unit>>,
) -> Result<()> {
    let segments = glob::segments(pattern).map_err(|what| {
        Error::job(what).in_unit(&target.uri(b"/"), None).text(pattern).hint("to mean the character itself, write %5B")
    })?;
    let walker = Walker { server, target, segments };
    // Two slashes begin an absolute path if one slash means the login's folder.
    let root = if pattern.starts_with("//") { b"/".to_vec() } else { Vec::new() };
    let mut stack = vec![Work::Folder { path: root, states: States::from([0]), seen: false }];
    while let Some(work) = stack.pop() {
        let more = match work {
            Work::Folder { path, states, seen } => walker.folder(path, &states, seen).await?,
            Work::Probe { path, step, link } => walker.probe(path, step, link).await?,
            Work::File { folder, entry } => {
                if found.send(Ok(walker.unit(&child(&folder, &entry.name), &entry.facts))).await.is_err() {
                    return Ok(());
                }
                continue;
            }
        };
        stack.extend(more.into_iter().rev());
    }
    Ok(())
}

fn child(folder: &[u8], name: &[u8]) -> Vec<u8> {
    [folder, b"/", name].concat()
}

impl<P: Protocol> Walker<'_, P> {
    fn unit(&self, path: &[u8], facts: &Facts) -> Unit {
        Unit { size: facts.size, etag: facts.etag(), modified: facts.modified, ..Unit::new(self.target.uri(path)) }
    }

    /// The next steps in a folder.
    async fn folder(&self, path: Vec<u8>, states: &States, seen: bool) -> Result<Vec<Work>> {
        let states = glob::closure(&self.segments, states);
        let names: Option<BTreeSet<&String>> = states
            .iter()
            .map(|&state| match &self.segments[state] {
                Segment::Name(name) => Some(name),
                _ => None,
            })
            .collect();
        if let Some(names) = names {
            return Ok(names.into_iter().filter_map(|name| self.named(&path, name, &states)).collect());
        }
        let folder: Arc<[u8]> = path.into();
        let entries = self.entries(&folder, seen).await?;
        Ok(entries.into_iter().filter_map(|entry| self.listed(&folder, entry, &states)).collect())
    }

    /// A name that the pattern gives: the folder is not listed, since it may be large, or not readable.
    fn named(&self, folder: &[u8], name: &str, states: &States) -> Option<Work> {
        let path = child(folder, name.as_bytes());
        let step = glob::step(&self.segments, states, OsStr::new(name), false);
        match (step.ends, step.next.is_empty()) {
            (false, true) => None,
            (false, false) => Some(Work::Folder { path, states: step.next, seen: false }),
            (true, _) => Some(Work::Probe { path, step, link: false }),
        }
    }

    /// A name that the server lists.
    fn listed(&self, folder: &Arc<[u8]>, entry: Entry, states: &States) -> Option<Work> {
        let step = glob::step(&self.segments, states, OsStr::from_bytes(&entry.name), entry.facts.kind == Kind::Folder);
        match entry.facts.kind {
            Kind::File if step.ends => Some(Work::File { folder: Arc::clone(folder), entry }),
            Kind::Folder if !step.next.is_empty() => {
                Some(Work::Folder { path: child(folder, &entry.name), states: step.next, seen: true })
            }
            Kind::Link if step.ends || !step.next.is_empty() => {
                Some(Work::Probe { path: child(folder, &entry.name), step, link: true })
            }
            _ => None,
        }
    }

    /// Checks a link, or a name that is only known from the pattern.
    async fn probe(&self, path: Vec<u8>, step: Step, link: bool) -> Result<Vec<Work>> {
        let uri = self.target.uri(&path);
        let facts = match self.server.look_up(&self.target.address, &uri, &P::path(&path)).await? {
            Ok(facts) => facts,
            Err(failure) if link && step.ends => {
                let error = Error::refused("this link is broken").cause(failure.fault.what);
                let error = failure.fault.text.into_iter().fold(error, Error::text);
                return Err(error.in_unit(&uri, None).hint("repair the link, or write a narrower pattern"));
            }
            Err(_) => return Ok(Vec::new()),
        };
        Ok(match facts.kind {
            Kind::Folder if !step.next.is_empty() => {
                vec![Work::Folder { path, states: step.next, seen: true }]
            }
            Kind::File if step.ends => {
                let at = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                let entry = Entry { name: path[at + 1..].to_vec(), facts };
                vec![Work::File { folder: path[..at].into(), entry }]
            }
            _ => Vec::new(),
        })
    }

    /// The entries of a folder, sorted by name. A missing folder has none.
    async fn entries(&self, folder: &[u8], seen: bool) -> Result<Vec<Entry>> {
        match self.ask(folder).await? {
            Ok(entries) => Ok(entries),
            Err(failure) if failure.absent == Absence::Yes => Ok(Vec::new()),
            Err(failure) => {
                if seen || self.is_there(folder).await? {
                    return Err(self.refused(folder, failure));
                }
                Ok(Vec::new())
            }
        }
    }

    async fn ask(&self, folder: &[u8]) -> Result<Result<Vec<Entry>, Failure>> {
        let path = if folder.is_empty() { b"/".as_slice() } else { folder };
        let uri = self.target.uri(path);
        let answer = self.server.list(&self.target.address, &uri, &P::path(path)).await?;
        Ok(answer.map(|mut entries| {
            entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            entries.dedup_by(|a, b| a.name == b.name);
            entries
        }))
    }

    /// Whether the parent lists this folder: some servers do not distinguish missing rights from absence otherwise.
    async fn is_there(&self, folder: &[u8]) -> Result<bool> {
        let Some(at) = folder.iter().rposition(|byte| *byte == b'/') else { return Ok(true) };
        let above = self.ask(&folder[..at]).await?;
        Ok(above.is_ok_and(|entries| entries.iter().any(|entry| entry.name == folder[at + 1..])))
    }

    fn refused(&self, folder: &[u8], failure: Failure) -> Error {
        let Failure { fault, .. } = failure;
        let mut error = Error::refused("the folder cannot be listed").cause(fault.what);
        error = fault.text.into_iter().fold(error, Error::text);
        error
            .in_unit(&self.target.uri(folder), None)
            .hint("check the permissions of the folder, or write a narrower pattern")
    }
}
