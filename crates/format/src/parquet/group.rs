//! One row group: its column chunks in memory, and how many of its rows are decoded at once.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use bytes::Bytes;
use millstream_core::{Error, Result};
use parquet::arrow::FieldLevels;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, RowGroups};
use parquet::column::page::PageIterator;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};
use parquet::schema::types::ColumnDescriptor;

use super::fetch::{in_words, unreadable};
use super::memory::Meter;
use super::pages::{Chunk, Leaf, OnePageReader, Outline, Pages};

/// The most bytes of the pages of one batch, unless single ones are larger.
const BATCH_PAGES: u64 = 16 << 20;

/// A column chunk to decode.
pub struct ColumnChunk {
    /// The leaf column.
    pub leaf: usize,
    /// Its position and encodings.
    pub metadata: ColumnChunkMetaData,
    /// The type of its values.
    pub about: Arc<Leaf>,
}

/// The facts about leaf `column` in row group `group`, whose values become `data_type`.
pub fn about(column: &ColumnDescriptor, group: usize, data_type: &DataType) -> Arc<Leaf> {
    let width = match data_type {
        DataType::Utf8View | DataType::BinaryView => 16,
        DataType::FixedSizeBinary(size) => usize::try_from(*size).unwrap_or(0),
        other => other.primitive_width().unwrap_or(1),
    };
    Arc::new(Leaf {
        name: column.path().string(),
        group,
        repeated: column.max_rep_level() > 0,
        optional: column.max_def_level() > 0,
        width,
    })
}

/// An open row group.
pub struct OpenGroup {
    batches: ParquetRecordBatchReader,
    columns: Vec<Column>,
    rows: u64,
    /// Rows of a batch.
    batch_rows: u64,
    /// Rows that were returned.
    row: u64,
    meter: Arc<Meter>,
    index: usize,
}

/// A column of an open group, with the position up to which its pages are read.
struct Column {
    about: Arc<Leaf>,
    outline: Outline,
    next: usize,
    /// Rows of the group.
    rows: u64,
}

impl OpenGroup {
    /// Opens row group `index`, whose chunks are in `bytes`.
    pub fn new(
        metadata: &ParquetMetaData,
        index: usize,
        chunks: &[ColumnChunk],
        bytes: Vec<Bytes>,
        levels: &FieldLevels,
        most_rows: usize,
        meter: &Arc<Meter>,
    ) -> Result<Self> {
        let rows = u64::try_from(metadata.row_group(index).num_rows()).unwrap_or(0);
        let columns: Vec<Column> = chunks
            .iter()
            .zip(&bytes)
            .map(|(chunk, bytes)| Column {
                about: Arc::clone(&chunk.about),
                outline: Outline::of(bytes, u64::try_from(chunk.metadata.num_values()).unwrap_or(0), &chunk.about),
                next: 0,
                rows,
            })
            .collect();
        let batch_rows = batch_rows(&columns, most_rows.max(1) as u64, meter.most());
        let group = InMemory { metadata, index, chunks, bytes, meter };
        let size = usize::try_from(batch_rows.min(rows.max(1))).unwrap_or(usize::MAX);
        let batches = ParquetRecordBatchReader::try_new_with_row_groups(levels, &group, size, None);
        let batches = batches.map_err(|cause| meter.fault().unwrap_or_else(|| unreadable(cause)))?;
        Ok(OpenGroup { batches, columns, rows, batch_rows, row: 0, meter: Arc::clone(meter), index })
    }

    /// The next rows.
    pub async fn next(&mut self) -> Result<Option<RecordBatch>> {
        let end = self.row.saturating_add(self.batch_rows).min(self.rows);
        let rows = end - self.row.min(end);
        let needs: Vec<u64> = self.columns.iter_mut().map(|column| column.need(end, rows)).collect();
        let need = needs.iter().fold(0, |sum: u64, need| sum.saturating_add(*need));
        if !self.meter.admit(usize::try_from(need).unwrap_or(usize::MAX)).await {
            return Err(self.too_large(&needs, need, rows));
        }
        let batch = self.batches.next().transpose();
        let batch = batch.map_err(|cause| self.meter.fault().unwrap_or_else(|| self.unreadable(&cause.to_string())))?;
        self.row += batch.as_ref().map_or(0, |batch| batch.num_rows() as u64);
        Ok(batch)
    }

    fn unreadable(&self, cause: &str) -> Error {
        let error = in_words(cause.trim_start_matches("Parquet argument error: "));
        match error.cause_text() {
            Some(cause) => {
                let cause = format!("row group {}: {cause}", self.index);
                error.cause(cause)
            }
            None => error,
        }
    }

    /// The error if there is no room for the next batch; it names the column that needs most.
    fn too_large(&self, needs: &[u64], need: u64, rows: u64) -> Error {
        let what = match rows {
            1 => format!("row {} of row group {}", self.row + 1, self.index),
            _ => format!("rows {} to {} of row group {}", self.row + 1, self.row + rows, self.index),
        };
        let largest = self.columns.iter().zip(needs).max_by_key(|(_, need)| **need);
        let error = self.meter.too_large(need, &what);
        largest.into_iter().fold(error, |error, (column, _)| error.column(column.about.name.clone()))
    }
}

impl Column {
    /// The row, counted from the beginning of the group, at which page `page` ends. Lists are assumed to be equally
    /// long.
    fn end(&self, page: usize) -> u64 {
        let total = self.outline.pages.last().map_or(0, |(values, _)| *values);
        let values = self.outline.pages.get(page).map_or(total, |(values, _)| *values);
        u64::try_from(u128::from(values) * u128::from(self.rows) / u128::from(total.max(1))).unwrap_or(u64::MAX)
    }

    /// Bytes that decoding `rows` rows up to `upto` takes, besides pages that are already decoded.
    fn need(&mut self, upto: u64, rows: u64) -> u64 {
        let mut bytes = rows.saturating_mul(self.about.width as u64);
        if self.next == 0 {
            bytes = bytes.saturating_add(self.outline.dictionary);
        }
        while let Some((_, page)) = self.outline.pages.get(self.next)
            && (self.next == 0 || self.end(self.next - 1) < upto)
        {
            bytes = bytes.saturating_add(*page);
            self.next += 1;
        }
        bytes
    }

    /// The most that the pages of `rows` rows in a row take.
    fn most(&self, rows: u64) -> u64 {
        let pages = &self.outline.pages;
        let (mut most, mut sum, mut end) = (0_u64, 0_u64, 0_usize);
        for begin in 0..pages.len() {
            // From the last row of the first page on.
            let last = self.end(begin).saturating_sub(1).saturating_add(rows);
            while end < pages.len() && (end <= begin || self.end(end - 1) < last) {
                sum = sum.saturating_add(pages[end].1);
                end += 1;
            }
            most = most.max(sum);
            sum = sum.saturating_sub(pages[begin].1);
        }
        most.saturating_add(rows.saturating_mul(self.about.width as u64))
    }

    /// The most that a row of a page takes on the average.
    fn densest(&self) -> u64 {
        let mut begin = 0;
        let mut densest = self.about.width as u64;
        for (page, (_, bytes)) in self.outline.pages.iter().enumerate() {
            let end = self.end(page);
            densest = densest.max(bytes / (end - begin.min(end)).max(1));
            begin = end;
        }
        densest
    }
}

/// How many rows are decoded at once: fewer than `most` if rows are long. `memory` is the memory in all.
fn batch_rows(columns: &[Column], most: u64, memory: u64) -> u64 {
    let cost = |rows: u64| columns.iter().fold(0_u64, |sum, column| sum.saturating_add(column.most(rows)));
    if cost(most) <= BATCH_PAGES {
        return most;
    }
    // A batch of one row takes whole pages, and both of them at the border of two.
    let least = cost(1);
    let allowed = BATCH_PAGES.max(least.saturating_mul(2).min((memory / 2).max(least.saturating_add(least / 4))));
    let fewer = std::iter::successors(Some(most), |rows| (*rows > 1).then(|| rows.div_ceil(2)));
    let fitting = fewer.into_iter().find(|rows| *rows == 1 || cost(*rows) <= allowed).unwrap_or(1);
    // Short rows in large pages: fewer of them would save nothing.
    let densest: u64 = columns.iter().map(Column::densest).fold(0, u64::saturating_add);
    fitting.max((BATCH_PAGES / densest.max(1)).clamp(1, most))
}

/// A row group whose selected chunks are in memory.
struct InMemory<'a> {
    metadata: &'a ParquetMetaData,
    index: usize,
    chunks: &'a [ColumnChunk],
    bytes: Vec<Bytes>,
    meter: &'a Arc<Meter>,
}

impl RowGroups for InMemory<'_> {
    fn num_rows(&self) -> usize {
        usize::try_from(self.metadata.row_group(self.index).num_rows()).unwrap_or(0)
    }

    fn column_chunks(&self, leaf: usize) -> ParquetResult<Box<dyn PageIterator>> {
        let found = self.chunks.iter().zip(&self.bytes).find(|(chunk, _)| chunk.leaf == leaf);
        let (chunk, bytes) =
            found.ok_or_else(|| ParquetError::General(format!("column {leaf} is decoded and was not read")))?;
        let begin = chunk.metadata.byte_range().0;
        let pages = Chunk { begin, bytes: bytes.clone() };
        let (about, meter) = (Arc::clone(&chunk.about), Arc::clone(self.meter));
        let pages = Pages::new(pages, &chunk.metadata, self.num_rows(), about, meter)?;
        Ok(Box::new(OnePageReader(Some(pages))))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(std::iter::once(self.metadata.row_group(self.index)))
    }

    fn metadata(&self) -> &ParquetMetaData {
        self.metadata
    }
}
