//! Reads the bytes of one unit, with as many requests as necessary.
//!
//! ```text
//!  GET ──▶ 200 ── bytes 0…k ──✗ broken
//!  pause
//!  GET, Range: bytes=k-, If-Range: etag ──▶ 206 ── bytes k… ──▶ end
//!                                      └──▶ 200   same version: skip k bytes; another: error
//! ```
//!
//! The version is identified by the etag, else by the time of the last change, else only by the length: without the
//! first two, an object can be replaced unnoticed by one of the same length between two requests. A body without a
//! length and without chunks ends with the connection, so a cut is not noticed.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream};
use millstream_core::source::{Content, OpenedUnit, SourceContext};
use millstream_core::{Result, Unit};
use reqwest::header::{
    ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, DATE, ETAG, HeaderMap, HeaderValue,
    LAST_MODIFIED,
};
use reqwest::{Method, StatusCode};

use super::answer::Answer;
use super::client::{Client, header};
use super::retry::{Fault, Tries};
use crate::feed::{Feeder, feed};
use crate::io::on_io;

/// Bodies up to this size are passed on in one piece.
pub(crate) const SMALL: u64 = 512 << 10;

/// The tolerance for a server's clock. A time of change within it does not identify versions.
const CLOCK_SLACK: Duration = Duration::from_secs(1);

/// Opens `unit` on `remote`.
pub(crate) async fn open(context: &SourceContext, remote: Arc<dyn Remote>, unit: &Unit) -> Result<OpenedUnit> {
    let mut transfer = Transfer::new(remote, unit.clone());
    let begun = transfer.begin().await?;
    let (unit, ranges) = transfer.known();
    // What comes in one piece is paid for afterwards.
    let most = context.pace.ahead().map_or(SMALL, |ahead| SMALL.min(ahead as u64));
    let small = transfer.left().filter(|left| *left <= most);
    let held = small.and_then(|left| context.budget.try_reserve("fetching", left as usize).ok());
    let content = match held {
        Some(held) => match transfer.gather(begun).await {
            (bytes, Ok(())) => Content::whole(bytes, held),
            (bytes, Err(error)) => {
                // The bytes before the error distinguish a unit that broke off from one that cannot be opened.
                let come = Some(Ok(bytes)).filter(|bytes| bytes.as_ref().is_ok_and(|bytes| !bytes.is_empty()));
                Content::Stream(stream::iter(come.into_iter().chain([Err(error)])).boxed())
            }
        },
        None => Content::Stream(feed(context, SMALL as usize, move |feeder| async move {
            transfer.bring(begun, &mut Output::Stream(feeder)).await
        })),
    };
    Ok(OpenedUnit { unit, ranges, content })
}

/// The bytes of `unit` in `range`, which is not empty; `None` if ranges are not served.
pub(crate) async fn read_range(
    context: &SourceContext,
    remote: Arc<dyn Remote>,
    unit: &Unit,
    range: Range<u64>,
) -> Result<Option<Bytes>> {
    let part = Unit { range: Some(range), ..unit.clone() };
    let mut transfer = Transfer { ranges_only: true, ..Transfer::new(remote, part) };
    on_io(context, async move {
        let begun = transfer.begin().await?;
        let (bytes, outcome) = transfer.gather(begun).await;
        outcome?;
        Ok((!transfer.without_ranges).then_some(bytes))
    })
    .await
}

/// Requests the size and the version of `unit`.
pub(crate) async fn look(context: &SourceContext, remote: Arc<dyn Remote>, unit: &Unit) -> Result<Unit> {
    let unit = unit.clone();
    on_io(context, async move {
        let mut tries = Tries::new(remote.client().policy);
        let Version { total, etag, .. } = tries.repeat(&unit.uri, || ask_version(&*remote)).await?;
        Ok(Unit { size: total.or(unit.size), etag: etag.or(unit.etag), ..unit })
    })
    .await
}

/// Requests the header `Content-Type` of `unit`.
pub(crate) async fn content_type(
    context: &SourceContext,
    remote: Arc<dyn Remote>,
    unit: &Unit,
) -> Result<Option<String>> {
    let uri = unit.uri.clone();
    on_io(context, async move {
        let mut tries = Tries::new(remote.client().policy);
        tries.repeat(&uri, || ask_content_type(&*remote)).await
    })
    .await
}

/// An object that is read over HTTP.
#[async_trait]
pub(crate) trait Remote: Debug + Send + Sync {
    /// The client that reads the answers.
    fn client(&self) -> &Client;

    /// Whether ranges are known to be served.
    fn has_ranges(&self) -> bool {
        false
    }

    /// Requests the object or a part of it by `GET` or `HEAD`. The answer's status is 2xx or 416.
    async fn send(&self, method: &Method, part: Option<&Part>) -> Result<Answer, Fault>;
}

/// A part of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// The first byte.
    pub(crate) first: u64,
    /// The end of the range, which is more than `first`; the object's end if `None`.
    pub(crate) end: Option<u64>,
    /// The required version: a strong etag, or a time of change.
    pub(crate) version: Option<HeaderValue>,
}

impl Part {
    /// The value of the header `Range`.
    pub(crate) fn range(&self) -> HeaderValue {
        let text = match self.end {
            Some(end) => format!("bytes={}-{}", self.first, end.saturating_sub(1)),
            None => format!("bytes={}-", self.first),
        };
        // Digits are always a header's characters.
        HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("bytes=0-"))
    }
}

/// Where the bytes go.
enum Output {
    /// Into a stream.
    Stream(Feeder),
    /// Into a list.
    Pieces(Vec<Bytes>),
}

/// An answer whose body begins with some bytes to skip.
struct Begun {
    answer: Answer,
    skipped: u64,
    /// The position in the object where this answer ends, if known: a server may send less than requested.
    end: Option<u64>,
}

/// The known version of the object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Version {
    etag: Option<String>,
    modified: Option<String>,
    /// Whether `modified` is old enough to identify versions.
    settled: bool,
    total: Option<u64>,
}

/// The transfer of a unit.
struct Transfer {
    remote: Arc<dyn Remote>,
    unit: Unit,
    /// The next byte of the object.
    at: u64,
    /// The end of the requested range, once known.
    end: Option<u64>,
    version: Option<Version>,
    tries: Tries,
    /// The server says that it serves ranges.
    with_ranges: bool,
    /// Only a range is useful, not the whole object.
    ranges_only: bool,
    /// The server has ignored a range.
    without_ranges: bool,
}

impl Transfer {
    /// A transfer of the unit's range, or of all of it.
    fn new(remote: Arc<dyn Remote>, unit: Unit) -> Self {
        let (at, end) = unit.range.as_ref().map_or((0, None), |range| (range.start, Some(range.end)));
        let tries = Tries::new(remote.client().policy);
        let with_ranges = remote.has_ranges();
        let (ranges_only, without_ranges) = (false, false);
        Transfer { remote, unit, at, end, version: None, tries, with_ranges, ranges_only, without_ranges }
    }

    /// The first answer; `None` if it has nothing to read.
    async fn begin(&mut self) -> Result<Option<Begun>> {
        loop {
            self.tries.begin();
            match self.ask().await {
                Ok(begun) => return Ok(begun),
                Err(fault) => self.pause(fault).await?,
            }
        }
    }

    /// The facts from the first answer: the unit, and whether ranges of it are served.
    fn known(&self) -> (Unit, bool) {
        let version = self.version.clone().unwrap_or_default();
        let unit = Unit {
            size: version.total.or(self.unit.size),
            etag: version.etag.or_else(|| self.unit.etag.clone()),
            ..self.unit.clone()
        };
        // Without an etag, two ranges could come from two versions unnoticed.
        let ranges = self.with_ranges && unit.size.is_some() && unit.etag.is_some();
        (unit, ranges)
    }

    /// How many bytes are left, if known.
    fn left(&self) -> Option<u64> {
        self.end.map(|end| end - self.at)
    }

    /// All bytes in one piece; or the bytes so far, and the error.
    async fn gather(&mut self, begun: Option<Begun>) -> (Bytes, Result<()>) {
        let mut output = Output::Pieces(Vec::new());
        let outcome = self.bring(begun, &mut output).await;
        let bytes = match output {
            Output::Pieces(mut pieces) if pieces.len() == 1 => pieces.swap_remove(0),
            Output::Pieces(pieces) => pieces.concat().into(),
            Output::Stream(_) => Bytes::new(),
        };
        (bytes, outcome)
    }

    /// Reads the body of `begun` and, if it breaks off, those of further answers.
    async fn bring(&mut self, mut begun: Option<Begun>, output: &mut Output) -> Result<()> {
        while let Some(answer) = begun {
            match self.body(answer, output).await {
                Ok(true) => break,
                Ok(false) => {}
                Err(fault) => self.pause(fault).await?,
            }
            begun = self.begin().await?;
        }
        Ok(())
    }

    /// Waits before the next attempt.
    async fn pause(&mut self, fault: Fault) -> Result<()> {
        let pause = self.tries.failed(fault).map_err(|error| error.in_unit(&self.unit.uri, None))?;
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// One request; `None` if there is nothing to read of its answer.
    async fn ask(&mut self) -> Result<Option<Begun>, Fault> {
        if self.end == Some(self.at) {
            return Ok(None);
        }
        let answer = self.remote.send(&Method::GET, self.part().as_ref()).await?;
        if answer.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            return self.unsatisfiable(&answer).map(|()| None);
        }
        Ok(self.accept(&answer)?.map(|(skipped, end)| Begun { answer, skipped, end }))
    }

    /// The part to request; `None` for the whole object.
    fn part(&self) -> Option<Part> {
        if self.at == 0 && self.unit.range.is_none() {
            return None;
        }
        let version = self.version.as_ref().and_then(Version::validator);
        let version = version.and_then(|version| HeaderValue::from_str(version).ok());
        Some(Part { first: self.at, end: self.end, version })
    }

    /// Checks the answer. Returns how many bytes at the beginning of its body to skip, and where it ends, if known.
    /// `None` if a range is required and the server ignores ranges.
    fn accept(&mut self, response: &Answer) -> Result<Option<(u64, Option<u64>)>, Fault> {
        if let Some(packing) = header(response.headers(), &CONTENT_ENCODING).and_then(unknown_packing) {
            return Err(Fault::permanent(format!(
                "the server sends it compressed as `{packing}`, which is not supported"
            ))
            .hint("store it uncompressed, or compressed with gzip or zstd"));
        }
        let (first, end, total) = if response.status() == StatusCode::PARTIAL_CONTENT {
            let range = header(response.headers(), &CONTENT_RANGE).and_then(content_range);
            let (first, end, total) =
                range.ok_or_else(|| Fault::permanent("the server does not say which bytes it sends"))?;
            if first != self.at {
                return Err(Fault::permanent(format!("the server sends byte {first} when asked for byte {}", self.at)));
            }
            (first, Some(end), total)
        } else if response.status() == StatusCode::NO_CONTENT {
            return Err(Fault::permanent("the server answers 204: it has nothing to send"));
        } else {
            let total = content_length(response.headers());
            (0, total, total)
        };
        self.same_version(Version::of(response.headers(), total))?;
        self.with_ranges |= header(response.headers(), &ACCEPT_RANGES).is_some_and(|unit| unit.trim() == "bytes");
        let whole = response.status() != StatusCode::PARTIAL_CONTENT;
        if whole && self.ranges_only {
            self.without_ranges = true;
            return Ok(None);
        }
        match (self.end, total) {
            (Some(end), Some(total)) if end > total => return Err(self.outside(total)),
            (None, Some(total)) => self.end = Some(total),
            _ => {}
        }
        Ok(Some((self.at - first, end)))
    }

    /// Checks that the object is still the version that was listed and begun.
    fn same_version(&mut self, version: Version) -> Result<(), Fault> {
        match &self.version {
            Some(known) if !known.is(&version) => return Err(changed("while it was read")),
            Some(_) => return Ok(()),
            None => {}
        }
        let listed = Version { etag: self.unit.etag.clone(), total: self.unit.size, ..Version::default() };
        if !listed.is(&version) {
            return Err(changed("since it was listed"));
        }
        self.version = Some(version);
        Ok(())
    }

    /// The server has no such range: fine at the end, which may have been reached unnoticed if the length was unknown.
    fn unsatisfiable(&mut self, response: &Answer) -> Result<(), Fault> {
        let range = header(response.headers(), &CONTENT_RANGE);
        let total = range.and_then(|range| range.trim().strip_prefix("bytes */")).and_then(|total| total.parse().ok());
        if let Some(total) = total {
            self.same_version(Version { total: Some(total), ..Version::default() })?;
        }
        match total {
            Some(total) if total == self.at && self.end.is_none() => {
                self.end = Some(total);
                Ok(())
            }
            Some(total) => Err(self.outside(total)),
            None => Err(Fault::permanent(format!("the server answers 416: it has no byte {}", self.at))),
        }
    }

    fn outside(&self, total: u64) -> Fault {
        let end = self.end.map_or_else(|| "the end".to_owned(), |end| end.to_string());
        Fault::permanent(format!("bytes {} to {end} were requested from an object of {total} bytes", self.at))
            .hint("the object has become shorter, or what names the range is wrong")
    }

    /// Passes on the body, without bytes before and after the range. Returns whether it was complete: an answer may
    /// have less than requested.
    async fn body(&mut self, begun: Begun, output: &mut Output) -> Result<bool, Fault> {
        let Begun { mut answer, mut skipped, end } = begun;
        let from = self.at;
        while self.end != Some(self.at) || skipped > 0 {
            let Some(mut chunk) = self.remote.client().chunk(&mut answer).await? else { break };
            let unwanted = skipped.min(chunk.len() as u64);
            skipped -= unwanted;
            chunk.advance(unwanted);
            if let Some(end) = self.end {
                chunk.truncate(usize::try_from(end - self.at).unwrap_or(usize::MAX));
            }
            self.at += chunk.len() as u64;
            self.tries.progressed(chunk.len());
            output.take(chunk).await;
        }
        match self.end {
            Some(wanted) if self.at < wanted && (Some(self.at) != end || self.at == from) => {
                Err(Fault::transient(format!("the body ended at byte {} of {wanted}", self.at)))
            }
            wanted => {
                // A connection can be reused only after the end was read.
                let _ = self.remote.client().chunk(&mut answer).await;
                Ok(wanted.is_none_or(|wanted| self.at == wanted))
            }
        }
    }
}

impl Output {
    async fn take(&mut self, bytes: Bytes) {
        match self {
            _ if bytes.is_empty() => {}
            Output::Stream(feeder) => {
                let room = feeder.room(bytes.len()).await;
                feeder.send(bytes, room);
            }
            Output::Pieces(pieces) => pieces.push(bytes),
        }
    }
}

/// The fault of an object that has changed.
pub(crate) fn changed(when: &str) -> Fault {
    Fault::permanent(format!("the object has changed {when}")).hint("run again when nothing writes to it")
}

trait Advance {
    fn advance(&mut self, bytes: u64);
}

impl Advance for Bytes {
    /// Drops `bytes` at the beginning, at most all.
    fn advance(&mut self, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(self.len());
        drop(self.split_to(bytes));
    }
}

impl Version {
    fn of(headers: &HeaderMap, total: Option<u64>) -> Self {
        let modified = header(headers, &LAST_MODIFIED).map(str::to_owned);
        let date = |text: &str| httpdate::parse_http_date(text).ok();
        let sent = header(headers, &DATE).and_then(date).unwrap_or_else(SystemTime::now);
        let age = modified.as_deref().and_then(date).and_then(|modified| sent.duration_since(modified).ok());
        Version {
            etag: header(headers, &ETAG).map(str::to_owned),
            modified,
            settled: age.is_some_and(|age| age > CLOCK_SLACK),
            total,
        }
    }

    /// The value for `If-Range`: a strong etag, or a reliable time of change (RFC 9110, 13.1.5).
    fn validator(&self) -> Option<&str> {
        match self.etag.as_deref() {
            Some(etag) => Some(etag).filter(|etag| !etag.starts_with("W/")),
            None => self.modified.as_deref().filter(|_| self.settled),
        }
    }

    /// Whether `other` can be the same version, as far as both are known.
    fn is(&self, other: &Version) -> bool {
        fn agree<T: PartialEq>(one: Option<T>, other: Option<T>) -> bool {
            one.is_none() || other.is_none() || one == other
        }
        let weak = |etag: &Option<String>| etag.as_ref().map(|etag| etag.trim_start_matches("W/").to_owned());
        let times_matter = self.etag.is_none() || other.etag.is_none();
        agree(weak(&self.etag), weak(&other.etag))
            && (!times_matter || agree(self.modified.as_ref(), other.modified.as_ref()))
            && agree(self.total, other.total)
    }
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    header(headers, &CONTENT_LENGTH)?.trim().parse().ok()
}

/// The encoding of a body, if its first bytes do not show it.
fn unknown_packing(value: &str) -> Option<&str> {
    const KNOWN: [&str; 8] = ["", "identity", "aws-chunked", "gzip", "x-gzip", "zstd", "bzip2", "xz"];
    value.split(',').map(str::trim).find(|packing| !KNOWN.iter().any(|known| packing.eq_ignore_ascii_case(known)))
}

/// The first byte, the end, and the total of `bytes 5-9/100`; the total may be `*`.
fn content_range(value: &str) -> Option<(u64, u64, Option<u64>)> {
    let (range, total) = value.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let total = if total == "*" { None } else { Some(total.parse().ok()?) };
    (first <= last && last < total.unwrap_or(u64::MAX)).then_some((first, last + 1, total))
}

/// By HEAD, or if that is refused, by requesting the first byte.
async fn ask_content_type(remote: &dyn Remote) -> Result<Option<String>, Fault> {
    let response = match remote.send(&Method::HEAD, None).await {
        Ok(response) => response,
        Err(fault) if fault.status.is_some() && !fault.transient => {
            let first = Part { first: 0, end: Some(1), version: None };
            remote.send(&Method::GET, Some(&first)).await?
        }
        Err(fault) => return Err(fault),
    };
    Ok(header(response.headers(), &CONTENT_TYPE).map(str::to_owned))
}

/// By HEAD, or if that gives nothing, by requesting the first byte.
async fn ask_version(remote: &dyn Remote) -> Result<Version, Fault> {
    match remote.send(&Method::HEAD, None).await {
        Ok(response) => {
            if let Some(length) = content_length(response.headers()) {
                return Ok(Version::of(response.headers(), Some(length)));
            }
        }
        // A signed URL is only valid for GET, and some servers do not support HEAD: GET then gives the error.
        Err(fault) if fault.status.is_some() && !fault.transient => {}
        Err(fault) => return Err(fault),
    }
    let first = Part { first: 0, end: Some(1), version: None };
    let response = remote.send(&Method::GET, Some(&first)).await?;
    let range = header(response.headers(), &CONTENT_RANGE);
    let total = match response.status() {
        StatusCode::PARTIAL_CONTENT => range.and_then(content_range).and_then(|(_, _, total)| total),
        StatusCode::RANGE_NOT_SATISFIABLE => {
            range.and_then(|range| range.trim().strip_prefix("bytes */")).and_then(|total| total.parse().ok())
        }
        _ => content_length(response.headers()),
    };
    Ok(Version::of(response.headers(), total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges_are_read_strictly() {
        assert_eq!(content_range("bytes 5-9/100"), Some((5, 10, Some(100))));
        assert_eq!(content_range("bytes 0-0/*"), Some((0, 1, None)));
        for bad in ["", "bytes */100", "bytes 9-5/100", "bytes 0-100/100", "bytes 0-1", "items 0-1/2", "bytes -1/2"] {
            assert_eq!(content_range(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_is_packed_otherwise_is_not_taken_for_text() {
        for known in ["", "identity", "gzip", "GZIP", "aws-chunked,gzip", "aws-chunked"] {
            assert_eq!(unknown_packing(known), None, "{known}");
        }
        assert_eq!((unknown_packing("br"), unknown_packing("gzip, deflate")), (Some("br"), Some("deflate")));
    }

    #[test]
    fn versions_are_distinguished_by_what_both_know() {
        let version = |etag: Option<&str>, modified: Option<&str>, total| Version {
            etag: etag.map(str::to_owned),
            modified: modified.map(str::to_owned),
            settled: true,
            total,
        };
        let first = version(Some("\"1\""), Some("Monday"), Some(5));
        assert!(first.is(&version(Some("W/\"1\""), Some("Tuesday"), Some(5))), "the etag decides");
        assert!(!first.is(&version(Some("\"2\""), Some("Monday"), Some(5))));
        assert!(!first.is(&version(Some("\"1\""), Some("Monday"), Some(6))));
        assert!(!first.is(&version(None, Some("Tuesday"), Some(5))));
        assert!(first.is(&version(None, None, None)));
        assert_eq!(first.validator(), Some("\"1\""));
        assert_eq!(version(Some("W/\"1\""), Some("Monday"), None).validator(), None);
        assert_eq!(version(None, Some("Monday"), None).validator(), Some("Monday"));
    }
}
