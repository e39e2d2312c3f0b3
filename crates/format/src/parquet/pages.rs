//! The pages of a column chunk: their headers are checked before anything is unpacked, and the sizes in them are
//! charged.
//!
//! ```text
//!  header ─▶ can it be? ─▶ checksum ─▶ limits ─▶ budget ─▶ the parquet crate unpacks it ─▶ does its encoding expand?
//! ```
//! The parquet crate finds other faults of pages. The fields of a header are those of `PageHeader` in parquet.thrift.

use std::sync::Arc;

use bytes::{Buf, Bytes};
use millstream_core::{Error, Result};
use parquet::basic::{Compression, Encoding};
use parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

use super::fetch::damaged;
use super::memory::{Held, Meter};
use super::thrift::{INT32, STRUCT, Thrift};

/// The kinds of pages.
const INDEX_PAGE: i64 = 1;
const DICTIONARY_PAGE: i64 = 2;

/// Bytes of a value of a dictionary besides its text.
const DICTIONARY_VALUE: usize = 16;

/// Pages below this size, stored and unpacked, are combined.
const SMALL_PAGES: usize = 4 << 10;

/// The header of a page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PageHeader {
    kind: i64,
    /// Bytes of the header.
    length: usize,
    /// Bytes after the header.
    stored: i64,
    /// Bytes of what was compressed.
    unpacked: i64,
    checksum: Option<i64>,
    /// Values, with nulls and empty lists.
    values: i64,
}

impl PageHeader {
    /// The header at the beginning of `bytes`, if there is one, with the fields that every header has.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut header = PageHeader::default();
        let mut thrift = Thrift(bytes);
        let mut required = [false; 3];
        thrift.fields(|thrift, field, kind| {
            if let (1..=3, INT32) = (field, kind) {
                required[field as usize - 1] = true;
            }
            match (field, kind) {
                (1, INT32) => header.kind = thrift.integer()?,
                (2, INT32) => header.unpacked = thrift.integer()?,
                (3, INT32) => header.stored = thrift.integer()?,
                (4, INT32) => header.checksum = Some(thrift.integer()?),
                // Of a data page, of a dictionary, and of a data page of the second version.
                (5 | 7 | 8, STRUCT) => thrift.fields(|thrift, inner, kind| {
                    match (inner, kind) {
                        (1, INT32) => header.values = thrift.integer()?,
                        _ => thrift.skip(kind)?,
                    }
                    Some(())
                })?,
                _ => thrift.skip(kind)?,
            }
            Some(())
        })?;
        header.length = bytes.len() - thrift.0.len();
        (required == [true; 3]).then_some(header)
    }

    /// Fails if the header is impossible. Limits and memory bound the unpacked size.
    fn check(&self) -> Result<(), String> {
        let PageHeader { unpacked, values, .. } = *self;
        if self.kind == DICTIONARY_PAGE && values > unpacked.max(1) {
            return Err(format!("a dictionary of {unpacked} bytes would have {values} values"));
        }
        Ok(())
    }
}

/// The bytes of a column chunk, with their position in the file.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// The byte of the file at which it begins.
    pub begin: u64,
    /// All of its bytes.
    pub bytes: Bytes,
}

impl Chunk {
    fn from(&self, start: u64) -> ParquetResult<Bytes> {
        let at = start.checked_sub(self.begin).and_then(|at| usize::try_from(at).ok());
        let at = at.filter(|at| *at <= self.bytes.len());
        at.map(|at| self.bytes.slice(at..)).ok_or_else(|| outside(start))
    }
}

fn outside(at: u64) -> ParquetError {
    ParquetError::EOF(format!("byte {at} is outside of its column chunk"))
}

impl Length for Chunk {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }
}

impl ChunkReader for Chunk {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        Ok(self.from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let bytes = self.from(start)?;
        if length > bytes.len() { Err(outside(start + length as u64)) } else { Ok(bytes.slice(..length)) }
    }
}

/// The facts about a leaf column that decide the memory of its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// Its name, with those of the lists and structs around it.
    pub name: String,
    /// The row group, from 0.
    pub group: usize,
    /// Whether a row can have any number of values.
    pub repeated: bool,
    /// Whether values can be missing.
    pub optional: bool,
    /// Bytes that a decoded value takes, without the text that it may point to.
    pub width: usize,
}

impl Leaf {
    /// Bytes that the values of a page take in lists: it is unknown how many of its rows are in a batch.
    fn in_lists(&self, values: i64) -> usize {
        // Levels of both kinds, the values, and their copy when the lists are put together.
        let each = 2 * self.width + 4;
        if self.repeated { usize::try_from(values).unwrap_or(0).saturating_mul(each) } else { 0 }
    }
}

/// The pages of a chunk, by their headers.
#[derive(Debug, Default)]
pub struct Outline {
    /// For each data page the values up to its end, and the bytes that it takes. Small ones are combined.
    pub pages: Vec<(u64, u64)>,
    /// Bytes of dictionaries.
    pub dictionary: u64,
}

impl Outline {
    /// The outline of the pages in `chunk` up to its last value, as far as they have headers. `most` is the number of
    /// its values.
    pub fn of(chunk: &[u8], most: u64, leaf: &Leaf) -> Self {
        let mut outline = Outline::default();
        let (mut at, mut values) = (0, 0_u64);
        // Where the last of `pages` begins in the chunk.
        let mut begin = 0;
        while values < most
            && let Some(header) = chunk.get(at..).filter(|rest| !rest.is_empty()).and_then(PageHeader::parse)
        {
            let bytes = u64::try_from(header.unpacked).unwrap_or(0);
            let count = u64::try_from(header.values).unwrap_or(0);
            match header.kind {
                INDEX_PAGE => {}
                DICTIONARY_PAGE => {
                    let values = count.saturating_mul(DICTIONARY_VALUE as u64);
                    outline.dictionary = outline.dictionary.saturating_add(bytes).saturating_add(values);
                }
                _ => {
                    values = values.saturating_add(count);
                    let bytes = bytes.saturating_add(leaf.in_lists(header.values) as u64);
                    match outline.pages.last_mut() {
                        // Or else an outline of the smallest pages would be larger than they are.
                        Some(last)
                            if at - begin <= SMALL_PAGES && last.1.saturating_add(bytes) <= SMALL_PAGES as u64 =>
                        {
                            *last = (values, last.1 + bytes);
                        }
                        _ => {
                            begin = at;
                            outline.pages.push((values, bytes));
                        }
                    }
                }
            }
            let Ok(stored) = usize::try_from(header.stored) else { break };
            at = at.saturating_add(header.length).saturating_add(stored);
        }
        outline
    }
}

/// Reads the pages of a chunk.
pub struct Pages {
    inner: SerializedPageReader<Chunk>,
    chunk: Bytes,
    /// Where the next page begins in it.
    at: usize,
    compressed: bool,
    leaf: Arc<Leaf>,
    meter: Arc<Meter>,
    /// The memory of the dictionary, which is needed until the end.
    dictionary: Option<Held>,
}

impl Pages {
    /// The pages of `chunk`, which `metadata` describes, in a row group of `rows` rows.
    pub fn new(
        chunk: Chunk,
        metadata: &ColumnChunkMetaData,
        rows: usize,
        leaf: Arc<Leaf>,
        meter: Arc<Meter>,
    ) -> ParquetResult<Self> {
        let bytes = chunk.bytes.clone();
        let compressed = metadata.compression() != Compression::UNCOMPRESSED;
        let inner = SerializedPageReader::new(Arc::new(chunk), metadata, rows, None)?;
        Ok(Pages { inner, chunk: bytes, at: 0, compressed, leaf, meter, dictionary: None })
    }

    /// `error`, at this column chunk.
    fn fault(&self, error: Error) -> ParquetError {
        let error = error.column(self.leaf.name.clone());
        self.meter.fail(error.clone());
        ParquetError::External(Box::new(error))
    }

    fn damaged(&self, cause: &str) -> ParquetError {
        self.fault(damaged(&format!("row group {}: {cause}", self.leaf.group)))
    }

    /// The header and the bytes of the next page that has values, if there is one that has a header.
    fn next_page(&mut self) -> ParquetResult<Option<(PageHeader, Bytes)>> {
        loop {
            let rest = self.chunk.get(self.at..).unwrap_or_default();
            let Some(header) = PageHeader::parse(rest) else { return Ok(None) };
            header.check().map_err(|cause| self.damaged(&cause))?;
            let begin = self.at + header.length;
            let end = usize::try_from(header.stored).ok().and_then(|stored| begin.checked_add(stored));
            let Some(end) = end.filter(|end| *end <= self.chunk.len()) else { return Ok(None) };
            self.at = end;
            if header.kind != INDEX_PAGE {
                return Ok(Some((header, self.chunk.slice(begin..end))));
            }
        }
    }

    /// Charges the memory of a page.
    fn admit(&mut self, header: &PageHeader, stored: &[u8]) -> ParquetResult<Option<Held>> {
        if let Some(expected) = header.checksum
            && crc32fast::hash(stored) != expected as u32
        {
            return Err(self.damaged("the checksum of a page does not match its bytes"));
        }
        let unpacked = usize::try_from(header.unpacked).unwrap_or(0);
        let group = self.leaf.group;
        let kind = if header.kind == DICTIONARY_PAGE { "the dictionary" } else { "a page" };
        let what = format!("{kind} of row group {group}");
        self.meter.count(stored.len() as u64, unpacked as u64, &what).map_err(|error| self.fault(error))?;
        if header.kind == DICTIONARY_PAGE {
            let values = usize::try_from(header.values).unwrap_or(0);
            let held = self.meter.hold(values.saturating_mul(DICTIONARY_VALUE), &what);
            self.dictionary = Some(held.map_err(|error| self.fault(error))?);
        } else if self.leaf.repeated {
            let values = format!("a page of {} values in lists of row group {group}", header.values);
            let bytes = self.leaf.in_lists(header.values);
            self.meter.hold_for_batch(bytes, &values).map_err(|error| self.fault(error))?;
        }
        let held = self.compressed.then(|| self.meter.hold(unpacked, &what));
        held.transpose().map_err(|error| self.fault(error))
    }

    /// Charges the memory of a page's values beyond its `stored` bytes, if its header does not show it.
    fn admit_values(&mut self, page: &Page, stored: u64) -> ParquetResult<()> {
        let encoding = page.encoding();
        if !matches!(encoding, Encoding::DELTA_BYTE_ARRAY | Encoding::DELTA_LENGTH_BYTE_ARRAY) || !page.is_data_page() {
            return Ok(());
        }
        let most = u64::from(page.num_values());
        let Some(values) = values_of(page, &self.leaf) else { return Ok(()) };
        if let Some(count) = delta_count(values).filter(|count| *count > most) {
            return Err(self.damaged(&format!("a page of {most} values has the lengths of {count}")));
        }
        let what = format!("a page of texts that share their beginnings, in row group {}", self.leaf.group);
        let hold = |bytes: u64| {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            self.meter.hold_for_batch(bytes, &what).map_err(|error| self.fault(error))
        };
        // Charged before the lengths are read one by one: a few bytes can claim billions.
        hold(most.saturating_mul(8))?;
        if encoding == Encoding::DELTA_BYTE_ARRAY {
            let prefixes = delta_sum(values);
            self.meter.count(stored, prefixes, &what).map_err(|error| self.fault(error))?;
            hold(prefixes)?;
        }
        Ok(())
    }
}

/// The values of a data page, after its levels; `None` if it has none.
fn values_of<'a>(page: &'a Page, leaf: &Leaf) -> Option<&'a [u8]> {
    match page {
        Page::DataPage { buf, def_level_encoding: Encoding::RLE, rep_level_encoding: Encoding::RLE, .. } => {
            let mut rest: &[u8] = buf;
            for _ in 0..usize::from(leaf.repeated) + usize::from(leaf.optional) {
                let (length, behind) = rest.split_first_chunk::<4>()?;
                rest = behind.get(usize::try_from(u32::from_le_bytes(*length)).ok()?..)?;
            }
            Some(rest)
        }
        Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. } => {
            let levels = usize::try_from(def_levels_byte_len.checked_add(*rep_levels_byte_len)?).ok()?;
            buf.get(levels..)
        }
        // The old levels without a length before them.
        Page::DataPage { .. } | Page::DictionaryPage { .. } => None,
    }
}

/// How many numbers there are in `bytes`, which are written as differences (DELTA_BINARY_PACKED).
fn delta_count(bytes: &[u8]) -> Option<u64> {
    let mut thrift = Thrift(bytes);
    thrift.number()?;
    thrift.number()?;
    thrift.number()
}

/// The sum of the numbers in `bytes`, which are written as differences (DELTA_BINARY_PACKED). If they are cut short,
/// the sum so far: they will not be decoded.
fn delta_sum(bytes: &[u8]) -> u64 {
    let mut thrift = Thrift(bytes);
    let header = (|| Some((thrift.number()?, thrift.number()?, thrift.number()?, thrift.integer()?)))();
    let Some((block, parts, count, first)) = header else { return 0 };
    let (Ok(parts), Some(part)) = (usize::try_from(parts), block.checked_div(parts)) else { return 0 };
    let (mut left, mut value) = (count.saturating_sub(1), first);
    let mut sum = if count > 0 { u64::try_from(first).unwrap_or(0) } else { 0 };
    while left > 0 && part > 0 {
        let block = (|| Some((thrift.integer()?, thrift.take(parts)?)))();
        let Some((least, widths)) = block else { return sum };
        for width in widths {
            let numbers = part.min(left);
            let bytes = usize::try_from(u128::from(part) * u128::from(*width) / 8);
            let Some(packed) = bytes.ok().and_then(|bytes| thrift.take(bytes.min(thrift.0.len()))) else {
                return sum;
            };
            for index in 0..numbers {
                value = value.wrapping_add(least).wrapping_add(bits(packed, index, *width) as i64);
                sum = sum.saturating_add(u64::try_from(value).unwrap_or(0));
            }
            left -= numbers;
            if left == 0 {
                break;
            }
        }
    }
    sum
}

/// Number `index` of those that have `width` bits each, from the lowest bit of the first byte.
fn bits(packed: &[u8], index: u64, width: u8) -> u64 {
    let first = u128::from(index) * u128::from(width);
    let Ok(byte) = usize::try_from(first / 8) else { return 0 };
    let mut window = [0; 16];
    let bytes = packed.get(byte..).unwrap_or_default();
    let count = bytes.len().min(window.len());
    window[..count].copy_from_slice(&bytes[..count]);
    let shifted = u128::from_le_bytes(window) >> (first % 8);
    (shifted & ((1_u128 << width.min(64)) - 1)) as u64
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        // Without a valid header, the parquet crate finds the fault.
        let (held, stored) = match self.next_page()? {
            Some((header, stored)) => (self.admit(&header, &stored)?, stored.len() as u64),
            None => (None, 0),
        };
        let Some(mut page) = self.inner.get_next_page()? else { return Ok(None) };
        let (Page::DataPage { buf, .. } | Page::DataPageV2 { buf, .. } | Page::DictionaryPage { buf, .. }) = &mut page;
        if let Some(held) = held {
            *buf = held.on(std::mem::take(buf));
        }
        self.admit_values(&page, stored)?;
        Ok(Some(page))
    }

    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        self.inner.peek_next_page()
    }

    fn skip_next_page(&mut self) -> ParquetResult<()> {
        self.next_page()?;
        self.inner.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> ParquetResult<bool> {
        self.inner.at_record_boundary()
    }
}

impl Iterator for Pages {
    type Item = ParquetResult<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

/// The pages of the one chunk that a column has in a row group.
pub struct OnePageReader(pub Option<Pages>);

impl Iterator for OnePageReader {
    type Item = ParquetResult<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.take().map(|pages| Ok(Box::new(pages) as Box<dyn PageReader>))
    }
}

impl PageIterator for OnePageReader {}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header of a dictionary: its type, its text's bytes, its own, its number of values (each below 64, or as
    /// given).
    fn dictionary(text: &[u8], stored: u8, values: &[u8]) -> Vec<u8> {
        [&[0x15, 4, 0x15], text, &[0x15, 2 * stored, 0x4c, 0x15], values, &[0x15, 0, 0, 0]].concat()
    }

    fn leaf(repeated: bool) -> Leaf {
        Leaf { name: "a".into(), group: 0, repeated, optional: true, width: 8 }
    }

    #[test]
    fn a_header_tells_what_its_page_takes() {
        let page = [dictionary(&[16], 8, &[4]), vec![7; 8]].concat();
        let header = PageHeader::parse(&page).expect("a header");
        assert_eq!((header.stored, header.unpacked, header.values, header.length), (8, 8, 2, page.len() - 8));
        assert_eq!(header.check(), Ok(()));
        let huge = [0xfe, 0xff, 0xff, 0xff, 2];
        let claimed = PageHeader::parse(&dictionary(&[16], 8, &huge)).expect("a header");
        assert_eq!(claimed.check(), Err("a dictionary of 8 bytes would have 402653183 values".into()));
        let twice = [page.clone(), page.clone()].concat();
        assert_eq!(Outline::of(&twice, 1, &leaf(false)).dictionary, 2 * (8 + 2 * DICTIONARY_VALUE as u64));
        // A data page of 1,000 values in 50 bytes, which unpack to 2,000; field 4 is its checksum.
        let data =
            [&[0x15, 0, 0x15, 0xa0, 0x1f, 0x15, 0x64, 0x15, 6, 0x1c, 0x15, 0xd0, 0x0f, 0, 0][..], &[0; 50]].concat();
        let header = PageHeader::parse(&data).expect("a header");
        assert_eq!((header.values, header.unpacked, header.checksum), (1_000, 2_000, Some(3)));
        assert_eq!(Outline::of(&data, 1_000, &leaf(false)).pages, [(1_000, 2_000)]);
        assert_eq!(
            Outline::of(&data, 1_000, &leaf(true)).pages,
            [(1_000, 2_000 + 1_000 * 20)],
            "with levels and a copy"
        );
        // Zeros after the last page are no pages, and bytes after the last value are ignored.
        let rest = [&data[..], &[0; 50]].concat();
        assert_eq!(PageHeader::parse(&[0; 50]), None);
        assert_eq!(Outline::of(&rest, 2_000, &leaf(false)).pages, [(1_000, 2_000)]);
        let many = data.repeat(1_000);
        assert_eq!(Outline::of(&many, 3_000, &leaf(false)).pages, [(2_000, 4_000), (3_000, 2_000)]);
        // Pages of one value, which unpack to nothing.
        let small = [0x15, 0, 0x15, 0, 0x15, 0, 0x2c, 0x15, 2, 0, 0].repeat(100_000);
        let outline = Outline::of(&small, 100_000, &leaf(false));
        assert_eq!(outline.pages.last(), Some(&(100_000, 0)));
        assert!(outline.pages.len() <= small.len() / SMALL_PAGES + 1, "{}", outline.pages.len());
        // A cut or missing header is left to the parquet crate.
        for end in 0..page.len() - 8 {
            assert_eq!(PageHeader::parse(&page[..end]), None);
        }
        for text in [&[0xff; 100][..], &[0x1c; 100], &[0x19; 100], &[0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x0f]] {
            assert_eq!(PageHeader::parse(text), None);
        }
    }

    #[test]
    fn differences_are_summed_without_being_kept() {
        // Blocks of 128 in 4 parts: 7, then twice 5 + a difference of 3 bits (1 and 2, packed as 0b010_001).
        let numbers = [0x80, 0x01, 4, 3, 14, 10, 3, 0, 0, 0, 0b0001_0001, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!((delta_count(&numbers), delta_sum(&numbers)), (Some(3), 7 + 13 + 20));
        assert_eq!(delta_sum(&numbers[..9]), 7, "cut short");
        assert_eq!((delta_count(&[]), delta_sum(&[])), (None, 0));
        for width in [1_u8, 7, 8, 13, 31, 64] {
            let packed: Vec<u8> = (0..64).collect();
            let mut bit_by_bit = 0_u64;
            for bit in 0..width {
                let at = usize::from(3 * width) + usize::from(bit);
                bit_by_bit |= u64::from(packed[at / 8] >> (at % 8) & 1) << bit;
            }
            assert_eq!(bits(&packed, 3, width), bit_by_bit, "{width} bits");
        }
    }
}
