//! Files of this machine: paths, wildcards, pipes and devices.
//!
//! `glob.rs` knows the wildcards, `walk.rs` finds the files, `read.rs` reads them, `disposal.rs` moves them. This file
//! combines them, and writes paths as URIs: unchanged, or, if that would be read as something else (a name that is not
//! UTF-8, or that begins like a URL), as `file:///…` with percent signs, or after `./`.

mod cache;
mod disposal;
pub(crate) mod glob;
mod names;
pub(crate) mod read;
pub mod spec;
pub(crate) mod walk;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use millstream_core::registry::SourceEntry;
use millstream_core::source::{Content, Disposal, OpenedUnit, Source, SourceContext};
use millstream_core::spec::SpecInfo;
use millstream_core::{ByteStream, Error, ErrorKind, Reservation, Result, Unit};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};
use tokio::sync::mpsc;

pub use self::names::PathPattern;
use read::{Opened, SMALL, Stamp};
use spec::FileSpec;

/// The source `file`.
pub const ENTRY: SourceEntry = SourceEntry {
    spec: SpecInfo::of::<FileSpec>(),
    schemes: &["", "file"],
    check: &crate::pattern::check,
    rows: false,
    build: &|settings| {
        let FileSpec {} = crate::settings(settings)?;
        Ok(Arc::new(FileSource))
    },
};

/// Units are listed in portions of this many.
const PORTION: usize = 128;

/// Portions that wait to be taken.
const PORTIONS_AHEAD: usize = 4;

/// Files of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct FileSource;

#[async_trait]
impl Source for FileSource {
    fn name(&self) -> &'static str {
        "file"
    }

    fn medium(&self) -> &'static str {
        "disk"
    }

    fn is_local(&self) -> bool {
        true
    }

    /// A named pipe has no size.
    fn can_reopen(&self, unit: &Unit) -> bool {
        unit.size.is_some()
    }

    /// Several per core, to fill the queue of a disk.
    fn connections(&self) -> usize {
        2 * std::thread::available_parallelism().map_or(2, usize::from)
    }

    fn list(&self, context: &SourceContext, pattern: &str) -> BoxStream<'static, Result<Unit>> {
        let path = match pattern_path(pattern) {
            Ok(path) => path,
            Err(error) => return futures::stream::once(async { Err(error) }).boxed(),
        };
        let (sender, receiver) = mpsc::channel(PORTIONS_AHEAD);
        context.io.spawn_blocking(move || list_blocking(&path, &sender));
        futures::stream::unfold(receiver, |mut receiver| async {
            let portion: Vec<Result<Unit>> = receiver.recv().await?;
            Some((futures::stream::iter(portion), receiver))
        })
        .flatten()
        .boxed()
    }

    async fn open(&self, context: &SourceContext, unit: &Unit) -> Result<ByteStream> {
        Ok(self.open_known(context, unit).await?.content.into_stream())
    }

    async fn open_known(&self, context: &SourceContext, unit: &Unit) -> Result<OpenedUnit> {
        let path = unit_path(&unit.uri);
        let start = on_io(context, {
            let (path, context, unit) = (Arc::clone(&path), context.clone(), unit.clone());
            move || start(&path, &unit, &context)
        });
        let unit = unit.clone();
        Ok(match start.await? {
            Start::Whole(bytes, held) => OpenedUnit { unit, ranges: false, content: Content::whole(bytes, held) },
            Start::File(file, stamp, range) => OpenedUnit {
                unit: Unit { size: Some(stamp.size), etag: Some(stamp.etag()), ..unit },
                ranges: true,
                content: read::stream_file(context, path, file, stamp, range).into(),
            },
            Start::Pipe(file) => {
                OpenedUnit { unit, ranges: false, content: read::stream_pipe(context, path, file).into() }
            }
        })
    }

    fn read_now(&self, unit: &Unit, most: usize) -> Option<Bytes> {
        let size = unit.size.filter(|size| (1..=most as u64).contains(size) && unit.range.is_none())?;
        read::read_listed(&unit_path(&unit.uri), size, unit.etag.as_ref()?)
    }

    async fn read_range(&self, context: &SourceContext, unit: &Unit, range: Range<u64>) -> Result<Option<Bytes>> {
        let (path, unit, counted) = (unit_path(&unit.uri), unit.clone(), context.clone());
        on_io(context, move || {
            let Opened::Regular(file, stamp) = open_version(&path, &unit)? else { return Ok(None) };
            let range = inside(&path, &stamp, range)?;
            let bytes = read::read_range_once(&counted, &file, &path, range)?;
            read::verify(&file, &path, &stamp)?;
            Ok(Some(bytes))
        })
        .await
    }

    async fn dispose(&self, context: &SourceContext, unit: &Unit, how: &Disposal) -> Result<()> {
        let (path, unit, how) = (unit_path(&unit.uri), unit.clone(), how.clone());
        on_io(context, move || {
            disposal::check(&unit, &walk::named(&path)?)?;
            match &how {
                Disposal::Delete => disposal::delete(&path),
                Disposal::Move { folder, patterns } => disposal::move_to(&path, &target(&path, folder, patterns)?),
            }
        })
        .await
    }

    async fn look(&self, context: &SourceContext, unit: &Unit) -> Result<Unit> {
        if unit.size.is_some() && unit.etag.is_some() {
            return Ok(unit.clone());
        }
        let (path, unit) = (unit_path(&unit.uri), unit.clone());
        on_io(context, move || {
            let Unit { size, etag, .. } = walk::named(&path)?;
            Ok(Unit { size, etag, ..unit })
        })
        .await
    }
}

/// The most results of a pattern's braces that are looked at.
const MOST_BRACES: usize = 10_000;

/// Where the file at `path`, which one of `patterns` matches, is moved to.
fn target(path: &Path, folder: &str, patterns: &[String]) -> Result<PathBuf> {
    let paths = patterns.iter().map(|pattern| pattern_path(pattern)).collect::<Result<Vec<String>>>()?;
    let target = Path::new(folder).join(disposal::below(path, &paths));
    let absolute = std::path::absolute(&target).unwrap_or_else(|_| target.clone());
    let here = std::env::current_dir().unwrap_or_default();
    let is_read = |pattern: &String| {
        let expanded = crate::pattern::expand(pattern).into_iter().flatten().take(MOST_BRACES);
        let mut expanded = expanded.filter_map(|one| PathPattern::new(&one, &here));
        expanded.any(|pattern| absolute.to_str().is_some_and(|absolute| pattern.matches(absolute)))
    };
    match patterns.iter().any(is_read) {
        false => Ok(target),
        true => Err(disposal::is_read_there(path, &target)),
    }
}

/// How reading a unit starts.
enum Start {
    Whole(Bytes, Reservation),
    File(Arc<fs_err::File>, Stamp, Range<u64>),
    Pipe(Arc<fs_err::File>),
}

/// Opens the unit, and reads it if it is small and there is memory: a call on a blocking thread is most of the cost of
/// a small file.
fn start(path: &Path, unit: &Unit, context: &SourceContext) -> Result<Start> {
    let (file, stamp) = match open_version(path, unit)? {
        Opened::Regular(file, stamp) => (file, stamp),
        Opened::Stream(_) if unit.range.as_ref().is_some_and(|range| range.start < range.end) => {
            return Err(Error::refused("only a regular file has ranges").in_unit(&uri_of(path), None));
        }
        Opened::Stream(file) => return Ok(Start::Pipe(file)),
    };
    let range = inside(path, &stamp, unit.range.clone().unwrap_or(0..stamp.size))?;
    let length = range.end - range.start;
    let small = usize::try_from(length).ok().filter(|_| length <= SMALL);
    let Some(held) = small.and_then(|length| context.budget.try_reserve("fetching", length).ok()) else {
        return Ok(Start::File(file, stamp, range));
    };
    let bytes = read::read_range_once(context, &file, path, range)?;
    read::verify(&file, path, &stamp)?;
    Ok(Start::Whole(bytes, held))
}

/// Opens the unit's file and makes sure that it is the version that was listed.
fn open_version(path: &Path, unit: &Unit) -> Result<Opened> {
    let opened = read::open(path)?;
    if let (Opened::Regular(_, stamp), Some(etag)) = (&opened, &unit.etag)
        && stamp.etag() != *etag
    {
        return Err(Error::refused("the file has changed since it was listed")
            .in_unit(&unit.uri, None)
            .hint("run again when nothing writes to it"));
    }
    Ok(opened)
}

/// `range`, if it lies inside the file.
fn inside(path: &Path, stamp: &Stamp, range: Range<u64>) -> Result<Range<u64>> {
    if range.start <= range.end && range.end <= stamp.size {
        return Ok(range);
    }
    Err(Error::refused(format!(
        "bytes {} to {} were requested from a file of {} bytes",
        range.start, range.end, stamp.size
    ))
    .in_unit(&uri_of(path), None)
    .hint("the file has become shorter, or what names the range is wrong"))
}

fn list_blocking(pattern: &str, sender: &mpsc::Sender<Vec<Result<Unit>>>) {
    let mut portion = Vec::with_capacity(PORTION);
    let walked = walk::walk(pattern, &mut |unit| {
        portion.push(Ok(unit));
        // If this fails, the receiver has gone and the walk ends.
        portion.len() < PORTION || sender.blocking_send(std::mem::take(&mut portion)).is_ok()
    });
    portion.extend(walked.err().map(Err));
    if !portion.is_empty() {
        let _ = sender.blocking_send(portion);
    }
}

/// Runs `work` on a blocking thread of the runtime for input and output.
async fn on_io<T: Send + 'static>(
    context: &SourceContext,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match context.io.spawn_blocking(work).await {
        Ok(result) => result,
        Err(cause) if cause.is_cancelled() => Err(interrupted()),
        Err(cause) => Err(Error::internal("a reading thread failed").cause(cause)),
    }
}

/// The runtime is being shut down.
pub(crate) fn interrupted() -> Error {
    Error::new(ErrorKind::Interrupted, "the run ended while a file was read")
}

/// An I/O error about `path`.
pub(crate) fn io_error(what: &str, path: &Path, cause: &io::Error) -> Error {
    Error::io(what, cause).in_unit(&uri_of(path), None)
}

/// The characters to escape in the path of a URL.
const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'?').add(b'#').add(b'"').add(b'<').add(b'>').add(b'`');

/// The URI under which `path` is opened again.
pub(crate) fn uri_of(path: &Path) -> String {
    match path.to_str() {
        Some(text) if text == "-" || text.split('/').next().is_some_and(|first| first.contains(':')) => {
            format!("./{text}")
        }
        Some(text) => text.to_owned(),
        None => {
            let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            format!("file://{}", percent_encode(absolute.as_os_str().as_bytes(), ESCAPED))
        }
    }
}

/// The path of a unit's URI.
fn unit_path(uri: &str) -> Arc<Path> {
    let path = match file_url(uri) {
        Some(path) => PathBuf::from(OsString::from_vec(percent_decode_str(path).collect())),
        None => PathBuf::from(without_scheme(uri)),
    };
    path.into()
}

/// The pattern of a path: without its scheme, percent signs of a `file://` URL decoded. Decoded characters are plain:
/// `%2A` is a star, not a wildcard.
fn pattern_path(pattern: &str) -> Result<String> {
    match file_url(pattern) {
        Some(encoded) => decode_pattern(encoded),
        None => Ok(without_scheme(pattern).to_owned()),
    }
}

/// The path of a URL with its percent signs decoded; decoded characters get a backslash if they need one.
pub(crate) fn decode_pattern(encoded: &str) -> Result<String> {
    let fault = || Error::job("the percent-encoding of this URL is not UTF-8").text(encoded);
    let mut decoded = String::new();
    let mut plain: Vec<u8> = Vec::new();
    let mut rest = encoded;
    while let Some(character) = rest.chars().next() {
        let code = rest.strip_prefix('%').and_then(|rest| rest.get(..2)).map(|code| u8::from_str_radix(code, 16));
        if let Some(Ok(byte)) = code {
            plain.push(byte);
            rest = &rest[3..];
            continue;
        }
        decoded.push_str(&crate::pattern::escape(std::str::from_utf8(&plain).map_err(|_| fault())?));
        plain.clear();
        decoded.push(character);
        rest = &rest[character.len_utf8()..];
    }
    decoded.push_str(&crate::pattern::escape(std::str::from_utf8(&plain).map_err(|_| fault())?));
    Ok(decoded)
}

/// The encoded path of a `file://` URL of this machine.
fn file_url(uri: &str) -> Option<&str> {
    let rest = strip_file(uri)?.strip_prefix("//")?;
    if rest.starts_with('/') { Some(rest) } else { rest.strip_prefix("localhost").filter(|path| path.starts_with('/')) }
}

fn without_scheme(uri: &str) -> &str {
    strip_file(uri).unwrap_or(uri)
}

fn strip_file(uri: &str) -> Option<&str> {
    let (scheme, rest) = uri.split_at_checked(5)?;
    scheme.eq_ignore_ascii_case("file:").then_some(rest)
}
