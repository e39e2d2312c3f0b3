//! The directory of a file (its footer): the part that the parquet crate reads, and what it does not show.
//!
//! ```text
//!  FileMetaData ─ schema ────── unknown converted types are left out: they only say how a value is shown
//!               └ row groups ── which column chunks are encrypted (the crate would take their bytes for pages)
//! ```

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use millstream_core::Result;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader};

use super::fetch::{damaged, unreadable};
use super::thrift::{INT32, LIST, STRUCT, Thrift};

/// The converted types that exist: 0 (text) to 21 (intervals).
const CONVERTED_TYPES: std::ops::RangeInclusive<i64> = 0..=21;

/// The directory of a file.
#[derive(Debug, Clone)]
pub struct Directory {
    /// The directory as the parquet crate reads it.
    pub metadata: Arc<ParquetMetaData>,
    /// The leaf columns of which some chunk is encrypted.
    encrypted: BTreeSet<usize>,
}

impl Directory {
    /// The directory in `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let notes = Notes::of(bytes).unwrap_or_default();
        let readable = without(bytes, &notes.unknown);
        let metadata = ParquetMetaDataReader::decode_metadata(&readable).map_err(unreadable)?;
        Ok(Directory { metadata: Arc::new(metadata), encrypted: notes.encrypted })
    }

    /// Whether the values of leaf column `leaf` cannot be read without a key.
    pub fn is_encrypted(&self, leaf: usize) -> bool {
        self.encrypted.contains(&leaf)
    }

    /// A column chunk, with corrected offsets: some writers use 0 for a missing dictionary, others use 0 for the data
    /// of a chunk that only has a dictionary.
    pub fn chunk(&self, group: usize, leaf: usize) -> Result<ColumnChunkMetaData> {
        let group = self.metadata.row_groups().get(group);
        let chunk = group.and_then(|group| group.columns().get(leaf));
        let chunk = chunk.ok_or_else(|| damaged("a row group lacks a column of the schema"))?;
        let chunk = match chunk.dictionary_page_offset() {
            Some(at) if at <= 0 || (chunk.data_page_offset() > 0 && at > chunk.data_page_offset()) => {
                chunk.clone().into_builder().set_dictionary_page_offset(None).build().map_err(unreadable)?
            }
            _ => chunk.clone(),
        };
        let begin = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
        if begin < 0 || chunk.compressed_size() < 0 || begin.checked_add(chunk.compressed_size()).is_none() {
            return Err(damaged(&format!(
                "a column chunk begins at byte {begin} and has {} bytes",
                chunk.compressed_size()
            )));
        }
        Ok(chunk)
    }
}

/// Facts in a directory that the parquet crate does not show.
#[derive(Debug, Default)]
struct Notes {
    /// Fields of the schema with an unknown converted type, in order.
    unknown: Vec<Field>,
    encrypted: BTreeSet<usize>,
}

/// A field of a struct that can be left out.
#[derive(Debug)]
struct Field {
    /// The byte at which it begins.
    begin: usize,
    /// The byte after it.
    end: usize,
    /// The distance of its number from that of the previous field.
    step: u8,
}

impl Notes {
    /// `None` if the bytes are no directory; the parquet crate then finds the fault.
    fn of(bytes: &[u8]) -> Option<Self> {
        let mut notes = Notes::default();
        let mut thrift = Thrift(bytes);
        thrift.fields(|thrift, field, kind| match (field, kind) {
            (2, LIST) => notes.schema(thrift, bytes.len()),
            (4, LIST) => notes.row_groups(thrift),
            _ => thrift.skip(kind),
        })?;
        Some(notes)
    }

    fn schema(&mut self, thrift: &mut Thrift<'_>, length: usize) -> Option<()> {
        let (elements, _) = thrift.list()?;
        for _ in 0..elements {
            let mut number = 0;
            loop {
                let (before, begin) = (number, length - thrift.0.len());
                let Some(kind) = thrift.field(&mut number)? else { break };
                // 6: the converted type.
                if number == 6 && kind == INT32 {
                    let value = thrift.integer()?;
                    let step = u8::try_from(number - before).ok()?;
                    if !CONVERTED_TYPES.contains(&value) {
                        self.unknown.push(Field { begin, end: length - thrift.0.len(), step });
                    }
                } else {
                    thrift.skip(kind)?;
                }
            }
        }
        Some(())
    }

    fn row_groups(&mut self, thrift: &mut Thrift<'_>) -> Option<()> {
        let (groups, _) = thrift.list()?;
        for _ in 0..groups {
            thrift.fields(|thrift, field, kind| match (field, kind) {
                // 1: the column chunks.
                (1, LIST) => {
                    let (chunks, _) = thrift.list()?;
                    (0..chunks).try_for_each(|leaf| {
                        thrift.fields(|thrift, field, kind| {
                            // 8: how it is encrypted.
                            if (field, kind) == (8, STRUCT) {
                                self.encrypted.insert(usize::try_from(leaf).ok()?);
                            }
                            thrift.skip(kind)
                        })
                    })
                }
                _ => thrift.skip(kind),
            })?;
        }
        Some(())
    }
}

/// `bytes` without some fields of structs. The next field stores its number as the distance from the previous one.
fn without<'a>(bytes: &'a [u8], fields: &[Field]) -> Cow<'a, [u8]> {
    if fields.is_empty() {
        return bytes.into();
    }
    let mut kept = Vec::with_capacity(bytes.len());
    let mut from = 0;
    for field in fields {
        kept.extend_from_slice(&bytes[from..field.begin]);
        from = field.end;
        // A field with its full number, and the end of the struct, stay unchanged.
        if let Some(next) = bytes.get(from).filter(|next| *next >> 4 > 0) {
            kept.push(next.wrapping_add(field.step << 4));
            from += 1;
        }
    }
    kept.extend_from_slice(&bytes[from..]);
    kept.into()
}
