//! Finds the files that match a pattern, in order, with the names of one folder per level in memory.
//!
//! A folder is read once, whatever the pattern: while walking down, the set of parts that can come next is kept, as
//! a regular expression's automaton keeps its states.
//!
//! ```text
//!  data/**/x*/*.gz      at data/     {**, x*}     a/  fits **        → {**, x*}
//!                                                 x1/ fits ** and x* → {**, x*, *.gz}
//! ```
//!
//! So each file is found once, sorted by folder and name. Links are followed if a part of the pattern names them, but
//! `**` does not follow them: a link to a parent folder would never end, and one to a sibling would find its files
//! twice. Wildcards find regular files; a pipe or a device must be named.
//!
//! This blocks: it runs on the blocking threads.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use millstream_core::hint::nearest;
use millstream_core::{Error, Result, Unit};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::glob::{self, Segment, States};
use super::read::Stamp;
use super::{io_error, uri_of};

/// How many names of a folder are searched for a similar one.
const HINT_NAMES: usize = 10_000;

/// How many names are shown if none is similar.
const HINT_SHOWN: usize = 5;

/// Calls `emit` with each file that matches `pattern` (a path, without a scheme). If it returns `false`, the walk ends.
pub(crate) fn walk(pattern: &str, emit: &mut dyn FnMut(Unit) -> bool) -> Result<()> {
    if !glob::has_wildcards(pattern) {
        emit(named(&PathBuf::from(glob::unescape(pattern)))?);
        return Ok(());
    }
    let segments = glob::segments(pattern)
        .map_err(|what| Error::job(what).text(pattern).hint(r"to mean the character itself, write `\[`"))?;
    let root = if pattern.starts_with('/') { Path::new("/") } else { Path::new("") };
    Walker { segments, emit }.folder(root, &BTreeSet::from([0])).map(drop)
}

/// The unit of a path without wildcards.
pub(crate) fn named(path: &Path) -> Result<Unit> {
    let stat = match rustix::fs::stat(path) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Err(missing(path)),
        Err(cause) => return Err(io_error("the file cannot be looked up", path, &cause.into())),
    };
    if type_of(&stat) == FileType::Directory {
        let shown = path.display().to_string();
        return Err(Error::refused("this is a folder, not a file")
            .in_unit(&uri_of(path), None)
            .hint(format!("to read all files below it, add /**: {}/**", shown.trim_end_matches('/'))));
    }
    if path.as_os_str().as_bytes().ends_with(b"/") {
        return Err(Error::refused("this is a file, and its name ends like a folder's")
            .in_unit(&uri_of(path), None)
            .hint("leave out the slash at the end"));
    }
    Ok(unit(path, &stat))
}

fn type_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn unit(path: &Path, stat: &Stat) -> Unit {
    let mut unit = Unit::new(uri_of(path));
    if type_of(stat) == FileType::RegularFile {
        let stamp = Stamp::of(stat);
        unit.size = Some(stamp.size);
        unit.etag = Some(stamp.etag());
        unit.modified = Some(stamp.modified_milliseconds());
    }
    unit
}

/// The error of a path that does not exist: it names the first missing part, and the most similar name beside it.
fn missing(path: &Path) -> Error {
    let mut absent = path;
    while let Some(parent) = absent.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        if fs_err::symlink_metadata(parent).is_ok() {
            break;
        }
        absent = parent;
    }
    if fs_err::symlink_metadata(absent).is_ok_and(|metadata| metadata.is_symlink()) {
        return Error::refused("this link is broken").in_unit(&uri_of(path), None).hint("repair the link");
    }
    let error = if absent == path {
        Error::refused("there is no such file")
    } else {
        Error::refused(format!("there is no folder {}", absent.display()))
    };
    let error = error.in_unit(&uri_of(path), None).absent();
    if path.starts_with("~") {
        return error.hint("only a shell expands `~`; write ${HOME}");
    }
    if let Some(name) = shell_variable(path) {
        return error.hint(format!("only a shell expands `${name}`; write ${{{name}}}"));
    }
    error.hint(hint_beside(absent))
}

/// The name after the first `$` of `path`, if a shell would expand it.
fn shell_variable(path: &Path) -> Option<&str> {
    let (_, behind) = path.to_str()?.split_once('$')?;
    let end = behind.find(|one: char| !one.is_ascii_alphanumeric() && one != '_').unwrap_or(behind.len());
    Some(&behind[..end]).filter(|name| name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_'))
}

/// The most similar name beside `absent`, or some names.
fn hint_beside(absent: &Path) -> String {
    let parent = absent.parent().unwrap_or(absent);
    let listing = fs_err::read_dir(here_if_empty(parent)).into_iter().flatten().take(HINT_NAMES);
    let mut names: Vec<String> = listing.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.retain(|name| !name.starts_with('.'));
    names.sort_unstable();
    let wanted = absent.file_name().unwrap_or_default().to_string_lossy();
    // A common ending does not make names similar.
    let stem = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let stems: Vec<String> = names.iter().map(|name| stem(name)).collect();
    let similar = names.iter().map(String::as_str).filter(|name| !differs_in_digits(&wanted, name));
    let near = nearest(&wanted, similar).filter(|near| {
        let (wanted, near) = (stem(&wanted), stem(near));
        wanted.eq_ignore_ascii_case(&near) || nearest(&wanted, stems.iter().map(String::as_str)) == Some(near.as_str())
    });
    if let Some(near) = near {
        return format!("did you mean {}?", parent.join(near).display());
    }
    let folder = std::path::absolute(here_if_empty(parent)).unwrap_or_else(|_| parent.to_owned());
    if names.is_empty() {
        return format!("nothing is in {}", folder.display());
    }
    let more = if names.len() > HINT_SHOWN { ", …" } else { "" };
    names.truncate(HINT_SHOWN);
    format!("in {} there are: {}{more}", folder.display(), names.join(", "))
}

/// Whether two names are those of different days or numbers, such as `2026-01-02.csv` and `2026-01-03.csv`: that is no
/// slip.
fn differs_in_digits(one: &str, other: &str) -> bool {
    let mut pairs = one.chars().zip(other.chars()).filter(|(one, other)| one != other).peekable();
    let has_same_form = one.chars().count() == other.chars().count();
    has_same_form && pairs.peek().is_some() && pairs.all(|(one, other)| one.is_ascii_digit() && other.is_ascii_digit())
}

fn here_if_empty(folder: &Path) -> &Path {
    if folder.as_os_str().is_empty() { Path::new(".") } else { folder }
}

struct Walker<'a> {
    segments: Vec<Segment>,
    emit: &'a mut dyn FnMut(Unit) -> bool,
}

/// The kind of a folder's entry as far as the listing gives it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Folder,
    File,
    Link,
    Other,
}

impl From<std::fs::FileType> for Kind {
    fn from(kind: std::fs::FileType) -> Self {
        if kind.is_dir() {
            Kind::Folder
        } else if kind.is_file() {
            Kind::File
        } else if kind.is_symlink() {
            Kind::Link
        } else {
            Kind::Other
        }
    }
}

impl Walker<'_> {
    /// Walks `folder`. `false` ends the walk.
    fn folder(&mut self, folder: &Path, states: &States) -> Result<bool> {
        let states = glob::closure(&self.segments, states);
        let entries = self.entries(folder, &states)?;
        if entries.is_empty() {
            return Ok(true);
        }
        // Names are looked up relative to the open folder, which saves resolving its path each time.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let here = match rustix::fs::open(here_if_empty(folder), flags, Mode::empty()) {
            Ok(here) => here,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(true),
            Err(cause) => return Err(io_error("the folder cannot be listed", here_if_empty(folder), &cause.into())),
        };
        for (name, kind) in entries {
            if !self.entry(&here, &folder.join(&name), &name, kind, &states)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The entries of `folder` that can matter, sorted. If the pattern only gives names here, the folder is not read:
    /// it may be large, or not readable.
    fn entries(&self, folder: &Path, states: &States) -> Result<Vec<(OsString, Kind)>> {
        let names: Option<BTreeSet<&String>> = states
            .iter()
            .map(|&state| match &self.segments[state] {
                Segment::Name(name) => Some(name),
                _ => None,
            })
            .collect();
        match names {
            Some(names) => names.into_iter().filter_map(|name| probe(&folder.join(name), name).transpose()).collect(),
            None => read_folder(folder),
        }
    }

    /// The entry `name` of the folder `here`.
    fn entry(&mut self, here: &OwnedFd, path: &Path, name: &OsStr, kind: Kind, states: &States) -> Result<bool> {
        let step = glob::step(&self.segments, states, name, kind == Kind::Folder);
        if kind == Kind::Folder {
            return if step.next.is_empty() { Ok(true) } else { self.folder(path, &step.next) };
        }
        let matters = step.ends || (kind == Kind::Link && !step.next.is_empty());
        if !matters || kind == Kind::Other {
            return Ok(true);
        }
        match rustix::fs::statat(here, name, AtFlags::empty()) {
            Ok(stat) if type_of(&stat) == FileType::Directory && !step.next.is_empty() => self.folder(path, &step.next),
            Ok(stat) if type_of(&stat) == FileType::RegularFile && step.ends => Ok((self.emit)(unit(path, &stat))),
            Ok(_) => Ok(true),
            // A file that was removed since its folder was read is skipped, but a broken link is not.
            Err(Errno::NOENT) if !(kind == Kind::Link && step.ends) => Ok(true),
            Err(cause) if kind == Kind::Link => Err(io_error("this link is broken", path, &cause.into())
                .hint("repair the link, or write a narrower pattern")),
            Err(cause) => Err(io_error("the file cannot be looked up", path, &cause.into())),
        }
    }
}

/// The kind of what is at `path`, or `None` if there is nothing.
fn probe(path: &Path, name: &str) -> Result<Option<(OsString, Kind)>> {
    match fs_err::symlink_metadata(path) {
        Ok(metadata) => Ok(Some((OsString::from(name), metadata.file_type().into()))),
        Err(cause) if is_absent(&cause) => Ok(None),
        Err(cause) => Err(io_error("the file cannot be looked up", path, &cause)),
    }
}

/// The names and kinds in a folder, sorted by name. A folder that is not there has none.
fn read_folder(folder: &Path) -> Result<Vec<(OsString, Kind)>> {
    let fault = |cause: &io::Error| io_error("the folder cannot be listed", here_if_empty(folder), cause);
    let listing = match fs_err::read_dir(here_if_empty(folder)) {
        Ok(listing) => listing,
        Err(cause) if is_absent(&cause) => return Ok(Vec::new()),
        Err(cause) => return Err(fault(&cause)),
    };
    let mut entries = Vec::new();
    for entry in listing {
        let entry = entry.map_err(|cause| fault(&cause))?;
        let kind = entry.file_type().map_err(|cause| fault(&cause))?;
        entries.push((entry.file_name(), kind.into()));
    }
    entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    Ok(entries)
}

fn is_absent(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
