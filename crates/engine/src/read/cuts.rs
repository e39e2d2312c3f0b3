//! Where a large unit is cut into ranges that several processes read: a zip between members, a Parquet file between row
//! groups, a text anywhere if every line end ends a record.

use std::ops::Range;
use std::sync::Arc;

use millstream_codec::{codec_by_name, is_packed, is_zip};
use millstream_core::format::{OnDrift, Reading, StreamFormat, TextPosition};
use millstream_core::{Records, Result, Unit};

use super::archive::{Found, by_directory};
use super::ranges::ranged_file;
use super::{Provenance, Reader, lines};

/// Stored bytes of a range.
const RANGE_BYTES: u64 = 128 << 20;

/// A range has at least so many row groups: one that begins inside of a row group fetches it all the same, as the range
/// before it does.
const ROW_GROUPS: usize = 4;

/// Stored bytes of a range, in tests fewer.
fn range_bytes() -> u64 {
    #[cfg(debug_assertions)]
    if let Some(bytes) = std::env::var("MILLSTREAM_RANGE_BYTES").ok().and_then(|bytes| bytes.parse().ok()) {
        return bytes;
    }
    RANGE_BYTES
}

/// Of so many units the size is asked for if the listing has not told it: a list may have very many.
const MOST_ASKED: u64 = 32;

/// Where the units of a source are cut.
#[derive(Debug)]
pub struct Cuts {
    reader: Arc<Reader>,
    chunk_bytes: u64,
    /// Of how many units the size was asked for.
    asked: u64,
}

impl Cuts {
    /// Those of the units of `reader`. Ranges of records that a ledger knows by chunks begin at multiples of
    /// `chunk_bytes`: no chunk is in two of them.
    pub fn new(reader: &Arc<Reader>, chunk_bytes: u64) -> Self {
        Cuts { reader: Arc::clone(reader), chunk_bytes, asked: 0 }
    }

    /// The source.
    pub fn source(&self) -> &str {
        &self.reader.name
    }

    /// `unit` in parts that are read apart; none if it is read as a whole.
    pub async fn of(&mut self, unit: &Unit) -> Vec<Unit> {
        self.asked += u64::from(unit.size.is_none());
        if unit.size.is_none() && self.asked > MOST_ASKED {
            return Vec::new();
        }
        // What is wrong with it shows when it is read.
        cut(&self.reader, unit, self.chunk_bytes).await.unwrap_or_default()
    }
}

async fn cut(reader: &Arc<Reader>, unit: &Unit, chunk_bytes: u64) -> Result<Vec<Unit>> {
    let is_large = unit.size.is_none_or(|size| size >= 2 * range_bytes());
    let gives_rows = matches!(reader.format.reading(), Reading::Rows);
    if !is_large || unit.records.is_some() || !reader.sorted_by.is_empty() || gives_rows {
        return Ok(Vec::new());
    }
    let known = reader.source_of(&unit.uri)?.look(&reader.context, unit).await?;
    // Without a version nobody would see that two ranges are of different ones.
    let (Some(size), Some(etag)) = (known.size, known.etag.clone()) else { return Ok(Vec::new()) };
    let ranges = ranges_of(reader, &known, size, chunk_bytes).await?.into_iter();
    let records = |places| Some(Box::new(Records { places, size, etag: etag.clone() }));
    Ok(ranges.map(|places| Unit { records: records(places), ..unit.clone() }).collect())
}

/// The ranges of a unit that has so many bytes.
async fn ranges_of(reader: &Arc<Reader>, known: &Unit, size: u64, chunk_bytes: u64) -> Result<Vec<Range<u64>>> {
    let step = range_bytes();
    if size < 2 * step {
        return Ok(Vec::new());
    }
    match reader.format.reading() {
        Reading::Rows => Ok(Vec::new()),
        Reading::Ranges(format) => {
            let Some(file) = ranged_file(reader, known, None).await? else { return Ok(Vec::new()) };
            let cuts = format.cuts(file).await?;
            let Some(end) = cuts.last().copied() else { return Ok(Vec::new()) };
            let step = u64::try_from(u128::from(step) * u128::from(end) / u128::from(size)).unwrap_or(u64::MAX);
            let sparse: Vec<u64> = cuts.into_iter().step_by(ROW_GROUPS).collect();
            Ok(ranges(sparse.into_iter().map(|cut| cut.next_multiple_of(chunk_bytes)), step, end))
        }
        Reading::Stream(format) => match lines::head(reader, known).await? {
            None => Ok(Vec::new()),
            Some(head) if is_zip(&head) => match by_directory(reader, known).await? {
                // Members of the same name would be taken for each other.
                Some(Found::Archive(archive)) if !archive.has_twins() => Ok(ranges(archive.begins(), step, size)),
                _ => Ok(Vec::new()),
            },
            Some(head) if is_packed(&head, codec_by_name(&known.uri)) || !reads_in_lines(reader, format, &head) => {
                Ok(Vec::new())
            }
            Some(_) => {
                let step = step.next_multiple_of(chunk_bytes);
                Ok(ranges((1..).map(|number| number * step).take_while(|cut| *cut < size), step, size))
            }
        },
    }
}

/// Whether the lines of a text that begins with `head` can be read apart. Nobody counts all of its lines then, and
/// nobody sees which columns all of its records have together.
fn reads_in_lines(reader: &Reader, format: &dyn StreamFormat, head: &[u8]) -> bool {
    // A parser learns from the first line, as far as that is longer than a byte order mark.
    let has_line = head.get(3..).is_some_and(|head| head.contains(&b'\n'));
    let knows_columns = reader.on_drift == OnDrift::Fail || format.needs_header();
    let counts_lines = reader.provenance.contains(&Provenance::Line);
    let is_lines = format.splitter_behind(head, TextPosition { byte: 0, line: 1 }).is_some();
    has_line && knows_columns && !counts_lines && is_lines
}

/// From 0 to `end`, cut at some of `cuts`, so that each range has about `step`; none if that is a single one.
fn ranges(cuts: impl Iterator<Item = u64>, step: u64, end: u64) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    let mut start = 0;
    for cut in cuts.filter(|cut| *cut < end) {
        if cut - start >= step {
            ranges.push(start..cut);
            start = cut;
        }
    }
    if !ranges.is_empty() {
        ranges.push(start..end);
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::ranges;

    #[test]
    fn ranges_follow_each_other_from_the_beginning_to_the_end() {
        assert_eq!(ranges([0, 3, 9, 12, 30].into_iter(), 10, 31), [0..12, 12..30, 30..31]);
        assert!(ranges([0, 3].into_iter(), 10, 9).is_empty());
        assert!(ranges(std::iter::empty(), 10, 90).is_empty());
    }
}
