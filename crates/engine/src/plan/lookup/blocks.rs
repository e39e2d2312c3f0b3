//! A reference in scratch: records in the order of the hashes of their keys, in blocks, with an index of the blocks in
//! memory. Rows are found by their keys: each block that has some of a batch of rows is read once for them.
//!
//! ```text
//!  index, in memory:  [first hash, last hash, place, …]  [first hash, last hash, place, …]  …
//!                               │
//!  scratch:             [record record record …]           [record record …]                …
//!
//!  record:  hash │ from, before: of a range │ order, tie: if the first counts │ key │ columns that are taken
//! ```
//! Records with one hash are in the order of the beginnings of their ranges, or in that in which the first one counts.

use std::fmt;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::UInt64Type;
use arrow::row::{RowConverter, Rows, SortField};
use millstream_core::transform::Duplicate;
use millstream_core::{Error, Result};

use super::compare::key;
use super::found::{Found, Probe, unfit};
use super::shape::Shape;
use super::table::bounds;

/// The least bytes of a block but the last.
const BLOCK: usize = if cfg!(test) { 200 } else { 16 << 10 };

/// Rows that several match are looked up until there are so many pairs.
const MOST_PAIRS: usize = 32 * 1024;

/// A reference in scratch.
pub struct Blocks {
    file: std::fs::File,
    index: Vec<Block>,
    rows: Codec,
}

/// What there is to know of a block.
#[derive(Debug, Clone, Copy)]
struct Block {
    first: (u64, i128),
    last_hash: u64,
    start: u64,
    length: usize,
    /// The latest end of a range in it.
    most: i128,
    /// The latest end of a range of the records with its last hash, also in the blocks before.
    most_of_last: i128,
}

/// Keys, orders and columns as bytes.
struct Codec {
    keys: RowConverter,
    order: Option<RowConverter>,
    taken: RowConverter,
    has_range: bool,
    duplicate: Duplicate,
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocks").field("blocks", &self.index.len()).finish_non_exhaustive()
    }
}

/// Writes blocks.
pub struct BlockWriter {
    file: BufWriter<std::fs::File>,
    index: Vec<Block>,
    rows: Codec,
    block: Vec<u8>,
    open: Option<Block>,
    written: u64,
}

impl Codec {
    /// Of rows whose columns are those of `batch`.
    fn new(shape: &Shape, batch: &RecordBatch) -> Result<Self> {
        let converter = |fields: Vec<SortField>| {
            RowConverter::new(fields).map_err(|cause| {
                let what =
                    format!("`{}` does not fit in memory, and has columns that cannot be spilled", shape.reference);
                Error::refused(what).cause(cause).hint("raise `--memory`, or take fewer columns").in_step(&shape.step)
            })
        };
        let kind = |column: usize| batch.column(column).data_type().clone();
        let order = shape.order.iter().map(|(column, options)| SortField::new_with_options(kind(*column), *options));
        Ok(Codec {
            keys: converter(shape.keys.iter().map(|key| SortField::new(key.common.clone())).collect())?,
            order: match shape.duplicate {
                Duplicate::First => Some(converter(order.collect())?),
                Duplicate::Fail | Duplicate::All => None,
            },
            taken: converter(shape.taken.iter().map(|take| SortField::new(kind(take.column))).collect())?,
            has_range: shape.range.is_some(),
            duplicate: shape.duplicate,
        })
    }
}

impl BlockWriter {
    /// New blocks in a file in `folder`, which has no name. Rows will have the columns of `batch`.
    pub fn new(folder: &Path, shape: &Shape, batch: &RecordBatch) -> Result<Self> {
        let file = tempfile::tempfile_in(folder).map_err(|cause| io("written to", folder, &cause))?;
        let (index, rows) = (Vec::new(), Codec::new(shape, batch)?);
        Ok(BlockWriter { file: BufWriter::new(file), index, rows, block: Vec::new(), open: None, written: 0 })
    }

    /// Adds the rows of `batch`, the next in order, whose last two columns are the hashes of their keys and of all.
    pub fn add(&mut self, shape: &Shape, batch: &RecordBatch) -> Result<()> {
        let last = batch.num_columns();
        let [hashes, ties] = [last - 2, last - 1].map(|column| batch.column(column).as_primitive::<UInt64Type>());
        let keys = shape.keys.iter().map(|one| key(batch.column(one.within.1), &one.common));
        let keys = converted(&self.rows.keys, &keys.collect::<Result<Vec<_>>>()?, batch.num_rows())?;
        let taken: Vec<ArrayRef> = shape.taken.iter().map(|one| batch.column(one.column).clone()).collect();
        let taken = converted(&self.rows.taken, &taken, batch.num_rows())?;
        let order: Vec<ArrayRef> = shape.order.iter().map(|(column, _)| batch.column(*column).clone()).collect();
        let order = self.rows.order.as_ref().map(|rows| converted(rows, &order, batch.num_rows())).transpose()?;
        let bounds = bounds(shape, batch)?;
        for row in 0..batch.num_rows() {
            let hash = hashes.value(row);
            let (from, before) = bounds.as_ref().map_or((0, 0), |(from, before)| (from[row], before[row]));
            self.begin_record(hash, from, before)?;
            let block = &mut self.block;
            block.extend_from_slice(&hash.to_le_bytes());
            if bounds.is_some() {
                block.extend_from_slice(&from.to_le_bytes());
                block.extend_from_slice(&before.to_le_bytes());
            }
            if let Some(order) = &order {
                add_bytes(block, order.row(row).data());
                block.extend_from_slice(&ties.value(row).to_le_bytes());
            }
            add_bytes(block, keys.row(row).data());
            add_bytes(block, taken.row(row).data());
        }
        Ok(())
    }

    /// A record with this hash and range comes next.
    fn begin_record(&mut self, hash: u64, from: i128, before: i128) -> Result<()> {
        if self.block.len() >= BLOCK {
            self.end_block()?;
        }
        let before_it = self.index.last().filter(|last| last.last_hash == hash).map(|last| last.most_of_last);
        let start = self.written;
        match &mut self.open {
            Some(open) => {
                open.most_of_last = if open.last_hash == hash { open.most_of_last.max(before) } else { before };
                open.last_hash = hash;
                open.most = open.most.max(before);
            }
            None => {
                let most_of_last = before_it.map_or(before, |most| most.max(before));
                let block =
                    Block { first: (hash, from), last_hash: hash, start, length: 0, most: before, most_of_last };
                self.open = Some(block);
            }
        }
        Ok(())
    }

    fn end_block(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        self.file.write_all(&self.block).map_err(|cause| io("written to", Path::new("scratch"), &cause))?;
        self.index.push(Block { length: self.block.len(), ..open });
        self.written += self.block.len() as u64;
        self.block.clear();
        Ok(())
    }

    /// All rows have come: the blocks, and how many bytes they have.
    pub fn end(mut self) -> Result<(Blocks, u64)> {
        self.end_block()?;
        let file = self.file.into_inner().map_err(|cause| io("written to", Path::new("scratch"), cause.error()))?;
        Ok((Blocks { file, index: self.index, rows: self.rows }, self.written))
    }
}

fn add_bytes(block: &mut Vec<u8>, bytes: &[u8]) {
    block.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    block.extend_from_slice(bytes);
}

/// The rows of `columns` as bytes. No column at all makes rows of no bytes.
fn converted(rows: &RowConverter, columns: &[ArrayRef], count: usize) -> Result<Rows> {
    match columns.is_empty() {
        true => {
            let mut none = rows.empty_rows(count, 0);
            let empty = rows.parser();
            (0..count).for_each(|_| none.push(empty.parse(&[])));
            Ok(none)
        }
        false => rows.convert_columns(columns).map_err(unfit),
    }
}

fn io(how: &str, path: &Path, cause: &std::io::Error) -> Error {
    let what = format!("a reference that does not fit in memory cannot be {how} the scratch folder");
    let error = Error::io(what, cause);
    match cause.kind() {
        std::io::ErrorKind::StorageFull => {
            error.hint("free some space there, choose another folder by `--scratch`, or allow more `--memory`")
        }
        _ => error.in_unit(&path.display().to_string(), None),
    }
}

/// The block that was read last.
#[derive(Default)]
struct Open {
    number: Option<usize>,
    bytes: Vec<u8>,
}

/// A record as it is read.
struct Record<'a> {
    hash: u64,
    from: i128,
    before: i128,
    /// Its place in the order in which the first counts: the keys of that order, and what tells equal ones apart.
    rank: (&'a [u8], u64),
    key: &'a [u8],
    taken: &'a [u8],
}

/// Reads the records of a block one after the other.
struct Records<'a> {
    rest: &'a [u8],
    codec: &'a Codec,
}

impl<'a> Records<'a> {
    fn part(&mut self, length: usize) -> Option<&'a [u8]> {
        let (part, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(part)
    }

    fn word<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.part(N)?.try_into().ok()
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = u32::from_le_bytes(self.word()?);
        self.part(length as usize)
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        let hash = u64::from_le_bytes(self.word()?);
        let (mut from, mut before) = (0, 0);
        if self.codec.has_range {
            from = i128::from_le_bytes(self.word()?);
            before = i128::from_le_bytes(self.word()?);
        }
        let mut rank: (&[u8], u64) = (&[], 0);
        if self.codec.order.is_some() {
            rank = (self.bytes()?, u64::from_le_bytes(self.word()?));
        }
        Some(Record { hash, from, before, rank, key: self.bytes()?, taken: self.bytes()? })
    }
}

/// The records that match, so far.
#[derive(Default)]
struct Matches {
    rows: Vec<u32>,
    /// Where the bytes of each are.
    places: Vec<Range<usize>>,
    bytes: Vec<u8>,
    /// The rank of the last, if the first counts.
    rank: (Vec<u8>, u64),
}

impl Matches {
    /// Adds a record that matches `row`, for which only the first counts.
    fn add_if_first(&mut self, row: usize, record: &Record<'_>) {
        if self.rows.last() == Some(&(row as u32)) {
            if (self.rank.0.as_slice(), self.rank.1) <= record.rank {
                return;
            }
            self.rows.pop();
            self.places.pop();
        }
        self.rank = (record.rank.0.to_vec(), record.rank.1);
        self.add(row, record.taken);
    }

    fn add(&mut self, row: usize, taken: &[u8]) {
        self.rows.push(row as u32);
        self.places.push(self.bytes.len()..self.bytes.len() + taken.len());
        self.bytes.extend_from_slice(taken);
    }
}

impl Blocks {
    /// What the rows `rows` of `probe` find, or the first of them, and the row before which that ends.
    pub fn find(&self, probe: &Probe, rows: Range<usize>) -> Result<(Found, usize)> {
        // In few rows if there may be many matches.
        let end = match self.rows.duplicate {
            Duplicate::All => rows.end.min(rows.start + MOST_PAIRS / 64),
            Duplicate::Fail | Duplicate::First => rows.end,
        };
        let keys: Vec<ArrayRef> = probe.keys.iter().map(|key| key.slice(rows.start, end - rows.start)).collect();
        let keys = converted(&self.rows.keys, &keys, end - rows.start)?;
        let mut order: Vec<usize> = (rows.start..end).filter(|row| probe.is_valid(*row)).collect();
        let value = |row: usize| probe.values.get(row).copied().unwrap_or(0);
        order.sort_unstable_by_key(|row| (probe.hashes[*row], value(*row)));
        let (mut open, mut matches) = (Open::default(), Matches::default());
        for row in order {
            self.of_row(
                (row, probe.hashes[row], value(row)),
                keys.row(row - rows.start).data(),
                &mut open,
                &mut matches,
            )?;
        }
        Ok((self.found(matches)?, end))
    }

    /// Adds the records that match a row, of which its number, its hash and its value are given.
    fn of_row(
        &self,
        (row, hash, value): (usize, u64, i128),
        key: &[u8],
        open: &mut Open,
        matches: &mut Matches,
    ) -> Result<()> {
        let begin = self.index.partition_point(|block| block.last_hash < hash);
        let end = match self.rows.has_range {
            true => self.index.partition_point(|block| block.first <= (hash, value)),
            false => self.index.partition_point(|block| block.first.0 <= hash),
        };
        if begin >= end {
            return Ok(());
        }
        let before = matches.rows.len();
        match self.rows.has_range {
            false => {
                for number in begin..end {
                    self.of_block((number, row, hash, value), key, open, matches)?;
                    if self.is_enough(matches.rows.len() - before) {
                        break;
                    }
                }
            }
            true => {
                for number in (begin..end).rev() {
                    if self.index[number].most > value {
                        self.of_block((number, row, hash, value), key, open, matches)?;
                    }
                    let has_more = number > begin && self.index[number - 1].most_of_last > value;
                    if !has_more || self.is_enough(matches.rows.len() - before) {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether so many matches of a row tell all.
    fn is_enough(&self, count: usize) -> bool {
        match self.rows.duplicate {
            Duplicate::Fail => count >= 2,
            Duplicate::First => count >= 1 && !self.rows.has_range,
            Duplicate::All => false,
        }
    }

    fn of_block(
        &self,
        (number, row, hash, value): (usize, usize, u64, i128),
        key: &[u8],
        open: &mut Open,
        matches: &mut Matches,
    ) -> Result<()> {
        self.read(number, open)?;
        let before = matches.rows.len();
        let fits = |record: &Record<'_>| {
            record.hash == hash
                && record.key == key
                && (!self.rows.has_range || (record.from <= value && value < record.before))
        };
        let records = Records { rest: &open.bytes, codec: &self.rows };
        for record in records.skip_while(|record| record.hash < hash).take_while(|record| record.hash == hash) {
            if !fits(&record) {
                continue;
            }
            match self.rows.duplicate {
                Duplicate::First => matches.add_if_first(row, &record),
                Duplicate::Fail | Duplicate::All => matches.add(row, record.taken),
            }
            if self.is_enough(matches.rows.len() - before) {
                break;
            }
        }
        Ok(())
    }

    fn read(&self, number: usize, open: &mut Open) -> Result<()> {
        if open.number == Some(number) {
            return Ok(());
        }
        let block = self.index[number];
        open.number = None;
        open.bytes.resize(block.length, 0);
        let read = self.file.read_exact_at(&mut open.bytes, block.start);
        read.map_err(|cause| io("read from", Path::new("scratch"), &cause))?;
        open.number = Some(number);
        Ok(())
    }

    fn found(&self, matches: Matches) -> Result<Found> {
        let mut order: Vec<u32> = (0..matches.rows.len() as u32).collect();
        order.sort_by_key(|at| matches.rows[*at as usize]);
        let parser = self.rows.taken.parser();
        let rows = order.iter().map(|at| parser.parse(&matches.bytes[matches.places[*at as usize].clone()]));
        let columns = self.rows.taken.convert_rows(rows).map_err(unfit)?;
        let rows: Vec<u32> = order.iter().map(|at| matches.rows[*at as usize]).collect();
        let positions = (0..rows.len() as u32).collect();
        Ok(Found { rows, positions, columns })
    }
}

/// `column` as the type that its column has: what was in scratch may have another layout.
pub fn as_planned(column: ArrayRef, kind: &arrow::datatypes::DataType) -> Result<ArrayRef> {
    if column.data_type() == kind { Ok(column) } else { cast(&column, kind).map_err(unfit) }
}
