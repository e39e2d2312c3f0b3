//! The lines of a text whose records begin in a range of its bytes. Where every line end ends a record, a large file is
//! read so by several processes, each of which knows the places of its records without reading what is before them.
//!
//! ```text
//!  range              ├─────────────────┤
//!  lines   ├────┼───────┼─────┼──────┼─────────┼────
//!  read                 └──────────────────────┘
//! ```
//! The place of a record may be behind the beginning of its line: of JSON blanks come before it.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use memchr::{memchr, memrchr};
use millstream_core::format::{ParseRequest, Parsed, Parser, Splitter, TextPosition};
use millstream_core::{ByteStream, Error, Records, Result, Unit};

use super::Reader;
use super::ranges::range_of;

/// The first bytes of a text, which tell its layout and its header, are so many.
const HEAD: u64 = 64 << 10;

/// So much is requested behind a range, where its last line ends.
const BEHIND: u64 = 64 << 10;

/// So many bytes before a place tell whether the record of the line there comes behind it. Both who reads up to it and
/// who reads from it look at the same. Of a line that begins with more blanks than that, the record is out of its
/// range, which is an error.
const LOOK: u64 = 4 << 10;

/// What stands before the lines of a range.
#[derive(Debug, Clone)]
pub struct Before {
    /// The first bytes of the text.
    head: Bytes,
    /// How many bytes of text come before.
    at: u64,
}

impl Before {
    /// How many bytes of text come before, and the first of them.
    pub fn text(&self) -> (u64, &Bytes) {
        (self.at, &self.head)
    }

    /// A parser that knows the beginning of the text, and what cuts the rest.
    ///
    /// # Errors
    /// If not every line end ends a record.
    pub fn parser(&self, reader: &Reader, request: &ParseRequest) -> Result<(Box<dyn Parser>, Box<dyn Splitter>)> {
        let format = reader.stream_format().ok_or_else(|| Error::internal("only a text has lines"))?;
        // Lines before it were not counted.
        let splitter = format.splitter_behind(&self.head, TextPosition { byte: self.at, line: 1 });
        let splitter =
            splitter.ok_or_else(|| Error::data("the file has not the layout that it had when it was listed"))?;
        let mut parser = format.parser(request)?;
        let lines = memrchr(b'\n', &self.head).map_or(0, |last| last + 1);
        // What is wrong with them shows where the beginning is read.
        parser.push(self.head.slice(..lines), &mut Parsed::default())?;
        Ok((parser, splitter))
    }
}

/// The first bytes of `unit`, whose size is known; `None` if its place gives no ranges.
pub async fn head(reader: &Reader, unit: &Unit) -> Result<Option<Bytes>> {
    let head = 0..unit.size.unwrap_or(0).min(HEAD);
    reader.context.pace.take(head.end).await;
    reader.source_of(&unit.uri)?.read_range(&reader.context, unit, head).await
}

/// The lines of `unit`, as it was cut, whose records are those that are meant, and what stands before them, if
/// something does.
pub async fn open(reader: &Arc<Reader>, unit: &Unit, head: Bytes) -> Result<(Option<Before>, ByteStream)> {
    let Some(Records { places, size, .. }) = unit.records.as_deref().cloned() else {
        return Err(Error::internal("some lines are read of a unit that was not cut"));
    };
    let at = places.start.saturating_sub(LOOK);
    let mut bytes = up_to(Arc::clone(reader), unit.clone(), at..places.end.min(size), size);
    if places.start == 0 {
        return Ok((None, bytes));
    }
    // What comes until the first line begins whose record is meant.
    let mut text = Vec::new();
    let (looked, mut begin) = ((places.start - at) as usize, None);
    while begin.is_none() {
        let Some(chunk) = bytes.next().await.transpose()? else { break };
        let searched = text.len().max(looked);
        text.extend_from_slice(&chunk);
        if text.len() < looked {
            continue;
        }
        begin = match open_line(reader, &text[..looked], at == 0) {
            Some(open) => Some(open),
            None => text.get(searched..).and_then(|text| memchr(b'\n', text)).map(|end| searched + end + 1),
        };
    }
    let begin = begin.unwrap_or(text.len());
    let rest = Bytes::from(text).slice(begin..);
    let first = (!rest.is_empty()).then_some(Ok(rest));
    let before = Before { head, at: at + begin as u64 };
    Ok((Some(before), futures::stream::iter(first).chain(bytes).boxed()))
}

/// Where the last line of `text` begins, if its record comes behind it: of that line there is nothing yet, or only what
/// stands before a record. With `is_beginning` no line end stands before `text`.
fn open_line(reader: &Reader, text: &[u8], is_beginning: bool) -> Option<usize> {
    let format = reader.stream_format()?;
    let begin = memrchr(b'\n', text).map(|end| end + 1).or(is_beginning.then_some(0))?;
    text[begin..].iter().all(|byte| format.stands_before_record(*byte)).then_some(begin)
}

/// The bytes of `unit` from the beginning of `range` to the end of the line whose record is the last that begins in it.
fn up_to(reader: Arc<Reader>, unit: Unit, range: Range<u64>, size: u64) -> ByteStream {
    async_stream::try_stream! {
        let (mut at, mut until) = (range.start, range.end.saturating_add(BEHIND).min(size));
        // The last bytes before the end of the range, as far as they have come.
        let looks_from = range.end.saturating_sub(LOOK).max(range.start);
        let (mut last, is_rest) = (Vec::new(), range.end == size);
        loop {
            let mut bytes = range_of(&reader, &unit, at..until).await?;
            while let Some(mut chunk) = bytes.next().await.transpose()? {
                let begin = at;
                at += chunk.len() as u64;
                let within = |place: u64| (place.clamp(begin, at) - begin) as usize;
                if begin < range.end {
                    last.extend_from_slice(&chunk[within(looks_from)..within(range.end)]);
                }
                if at < range.end || is_rest {
                    yield chunk;
                    continue;
                }
                if begin < range.end && open_line(&reader, &last, looks_from == 0).is_some() {
                    yield chunk.split_to(within(range.end));
                    return;
                }
                let inside = within(range.end);
                if let Some(end) = memchr(b'\n', &chunk[inside..]) {
                    yield chunk.split_to(inside + end + 1);
                    return;
                }
                yield chunk;
            }
            if until == size {
                return;
            }
            (at, until) = (until, until.saturating_add(BEHIND * 16).min(size));
        }
    }
    .boxed()
}
