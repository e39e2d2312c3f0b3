//! The lines that begin in a range of the bytes of a text. Where every line end ends a record, a large file is read so
//! by several processes, each of which knows the place of its records without reading what is before them.
//!
//! ```text
//!  range              ├─────────────────┤
//!  lines   ├────┼───────┼─────┼──────┼─────────┼────
//!  read                 └──────────────────────┘
//! ```

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use memchr::{memchr, memrchr};
use millstream_core::format::{ParseRequest, Parsed, Parser, Splitter, TextPosition};
use millstream_core::{ByteStream, Error, Result, Unit};

use super::Reader;
use super::ranges::range_of;

/// The first bytes of a text, which tell its layout and its header, are so many.
const HEAD: u64 = 64 << 10;

/// So much is requested behind a range, where its last line ends.
const BEHIND: u64 = 64 << 10;

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
        // Whoever reads the beginning hears what is wrong with it.
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

/// The lines that begin in the range of `unit`, whose size is known, and what stands before them, if something does.
pub async fn open(reader: &Arc<Reader>, unit: &Unit, head: Bytes) -> Result<(Option<Before>, ByteStream)> {
    let (Some(range), Some(size)) = (unit.range.clone(), unit.size) else {
        return Err(Error::internal("lines of a range are read of a unit that has none"));
    };
    // A line begins at the first byte of the range if another one ends right before it.
    let mut at = range.start.saturating_sub(1);
    let mut bytes = up_to_line_end(Arc::clone(reader), unit.clone(), at..range.end.min(size), size);
    if range.start == 0 {
        return Ok((None, bytes));
    }
    let mut rest = Bytes::new();
    while let Some(mut chunk) = bytes.next().await.transpose()? {
        let end = memchr(b'\n', &chunk).map_or(chunk.len(), |end| end + 1);
        at += end as u64;
        if end < chunk.len() || chunk.ends_with(b"\n") {
            rest = chunk.split_off(end);
            break;
        }
    }
    let first = (!rest.is_empty()).then_some(Ok(rest));
    Ok((Some(Before { head, at }), futures::stream::iter(first).chain(bytes).boxed()))
}

/// The bytes of `unit` in `range`, and those behind it up to the end of a line that began in it.
fn up_to_line_end(reader: Arc<Reader>, unit: Unit, range: std::ops::Range<u64>, size: u64) -> ByteStream {
    async_stream::try_stream! {
        let (mut at, mut until) = (range.start, range.end.saturating_add(BEHIND).min(size));
        loop {
            let mut bytes = range_of(&reader, &unit, at..until).await?;
            while let Some(chunk) = bytes.next().await.transpose()? {
                let begin = at;
                at += chunk.len() as u64;
                let last = usize::try_from((range.end - 1).saturating_sub(begin)).unwrap_or(usize::MAX);
                let end = chunk.get(last..).and_then(|chunk| memchr(b'\n', chunk));
                if let Some(end) = end {
                    yield chunk.slice(..last + end + 1);
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
