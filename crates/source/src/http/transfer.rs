//! The bytes of one unit, to its end, through as many requests as it takes.
//!
//! ```text
//!  GET ──▶ 200 ── bytes 0…k ──✗ broken
//!  pause
//!  GET, Range: bytes=k-, If-Range: etag ──▶ 206 ── bytes k… ──▶ end
//!                                      └──▶ 200   same version: skip k bytes; another: error
//! ```
//!
//! What tells versions apart is the etag, else the time of the last change, else only the length: a server that names
//! none of the first two can replace an object by one of the same length between two pieces unseen. And a body whose
//! length is told neither by a header nor by chunks ends where the connection ends: nobody can see that it was cut.

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

/// Bodies up to this size are handed over in one piece.
pub(crate) const SMALL: u64 = 512 << 10;

/// A server's clock may be off by this much before a time of change says nothing about versions.
const CLOCK_SLACK: Duration = Duration::from_secs(1);

/// The bytes of `unit`, which `remote` has.
pub(crate) async fn open(context: &SourceContext, remote: Arc<dyn Remote>, unit: &Unit) -> Result<OpenedUnit> {
    let mut transfer = Transfer::new(remote, unit.clone());
    let begun = transfer.begin().await?;
    let (unit, ranges) = transfer.known();
    let small = transfer.left().filter(|left| *left <= SMALL);
    let held = small.and_then(|left| context.budget.try_reserve("fetching", left as usize).ok());
    let content = match held {
        Some(held) => match transfer.gather(begun).await {
            (bytes, Ok(())) => Content::whole(bytes, held),
            (bytes, Err(error)) => {
                // What has come before it tells a unit that broke off from one that cannot be opened.
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

/// `unit` with its size and its version, asked for.
pub(crate) async fn look(context: &SourceContext, remote: Arc<dyn Remote>, unit: &Unit) -> Result<Unit> {
    let unit = unit.clone();
    on_io(context, async move {
        let mut tries = Tries::new(remote.client().policy);
        let Version { total, etag, .. } = tries.repeat(&unit.uri, || ask_version(&*remote)).await?;
        Ok(Unit { size: total.or(unit.size), etag: etag.or(unit.etag), ..unit })
    })
    .await
}

/// The header `Content-Type` of `unit`, asked for.
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

/// An object somewhere that answers as the web does.
#[async_trait]
pub(crate) trait Remote: Debug + Send + Sync {
    /// What reads the answers.
    fn client(&self) -> &Client;

    /// Whether ranges are served even if no answer says so.
    fn has_ranges(&self) -> bool {
        false
    }

    /// Asks for the object, or for a part of it: `GET` or `HEAD`. The answer's status is 2xx or 416.
    async fn send(&self, method: &Method, part: Option<&Part>) -> Result<Answer, Fault>;
}

/// A part of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// The first byte.
    pub(crate) first: u64,
    /// The byte behind the last one, which is more than `first`; the object's end if `None`.
    pub(crate) end: Option<u64>,
    /// The version that it must be of: a strong etag, or a time of change.
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
    /// To each other.
    Pieces(Vec<Bytes>),
}

/// An answer whose body begins with so many bytes that are not wanted.
struct Begun {
    answer: Answer,
    skipped: u64,
    /// The byte of the object behind the last one that this answer has, if it says so: a server may send less than it
    /// was asked for.
    end: Option<u64>,
}

/// What is known of the object's version.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Version {
    etag: Option<String>,
    modified: Option<String>,
    /// Whether `modified` is far enough in the past to tell versions apart.
    settled: bool,
    total: Option<u64>,
}

/// A unit on its way.
struct Transfer {
    remote: Arc<dyn Remote>,
    unit: Unit,
    /// The next byte of the object.
    at: u64,
    /// The byte behind the last one that is wanted, once known.
    end: Option<u64>,
    version: Option<Version>,
    tries: Tries,
    /// The server says that it serves ranges.
    with_ranges: bool,
    /// All of the object is of no use.
    ranges_only: bool,
    /// It was seen that it does not.
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

    /// The first answer; `None` if there is nothing to read of it.
    async fn begin(&mut self) -> Result<Option<Begun>> {
        loop {
            self.tries.begin();
            match self.ask().await {
                Ok(begun) => return Ok(begun),
                Err(fault) => self.pause(fault).await?,
            }
        }
    }

    /// What the first answer has told: the unit, and whether ranges of it are served.
    fn known(&self) -> (Unit, bool) {
        let version = self.version.clone().unwrap_or_default();
        let unit = Unit {
            size: version.total.or(self.unit.size),
            etag: version.etag.or_else(|| self.unit.etag.clone()),
            ..self.unit.clone()
        };
        // Without an etag nobody would see that two ranges are of two versions.
        let ranges = self.with_ranges && unit.size.is_some() && unit.etag.is_some();
        (unit, ranges)
    }

    /// How many bytes are still wanted, where that is known.
    fn left(&self) -> Option<u64> {
        self.end.map(|end| end - self.at)
    }

    /// All that is wanted, in one piece; or what has come of it, and why there is no more.
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

    /// Brings what `begun` has and, where that breaks off, what further answers have.
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

    /// Waits before the next try.
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

    /// What is still to be asked for; `None` for all of the object.
    fn part(&self) -> Option<Part> {
        if self.at == 0 && self.unit.range.is_none() {
            return None;
        }
        let version = self.version.as_ref().and_then(Version::validator);
        let version = version.and_then(|version| HeaderValue::from_str(version).ok());
        Some(Part { first: self.at, end: self.end, version })
    }

    /// Compares the answer with what is known, and returns how many bytes at the beginning of its body are not wanted,
    /// and where it ends, as far as that is told. `None` if the server serves no ranges and one was asked of it.
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

    /// Makes sure that the object is still the one that was listed and begun.
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

    /// The server has no such bytes: fine if there are none left, since where the length was not told, the end may
    /// have been reached unseen.
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

    /// Hands the body over, without the first bytes that are not wanted and what lies behind the end. Whether that was
    /// all: an answer may have less than it was asked for.
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
                // A connection can be used again only when the end was seen.
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

/// The object is another one than it was.
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

    /// What `If-Range` may name: a strong etag, or a time of change that can be relied upon (RFC 9110, 13.1.5).
    fn validator(&self) -> Option<&str> {
        match self.etag.as_deref() {
            Some(etag) => Some(etag).filter(|etag| !etag.starts_with("W/")),
            None => self.modified.as_deref().filter(|_| self.settled),
        }
    }

    /// Whether `other` can be the same version, as far as both tell.
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

/// What a body is packed with, if it is nothing that is seen in its first bytes. What browsers unpack without a word is
/// rarely meant here: it was asked for plain.
fn unknown_packing(value: &str) -> Option<&str> {
    const KNOWN: [&str; 8] = ["", "identity", "aws-chunked", "gzip", "x-gzip", "zstd", "bzip2", "xz"];
    value.split(',').map(str::trim).find(|packing| !KNOWN.iter().any(|known| packing.eq_ignore_ascii_case(known)))
}

/// The first byte, the one behind the last, and the total of `bytes 5-9/100`; the total may be `*`.
fn content_range(value: &str) -> Option<(u64, u64, Option<u64>)> {
    let (range, total) = value.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let total = if total == "*" { None } else { Some(total.parse().ok()?) };
    (first <= last && last < total.unwrap_or(u64::MAX)).then_some((first, last + 1, total))
}

/// By HEAD, or where that is refused, by asking for the first byte.
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

/// By HEAD, or where that tells nothing, by asking for the first byte.
async fn ask_version(remote: &dyn Remote) -> Result<Version, Fault> {
    match remote.send(&Method::HEAD, None).await {
        Ok(response) => {
            if let Some(length) = content_length(response.headers()) {
                return Ok(Version::of(response.headers(), Some(length)));
            }
        }
        // A signed URL is signed for GET only, and some servers know no HEAD: let GET say what is wrong.
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
    fn versions_are_told_apart_by_what_both_know() {
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
