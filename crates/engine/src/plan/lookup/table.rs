//! A reference in memory.
//!
//! Its rows are in the order of the hashes of their keys. A directory tells by the first bits of a hash where the rows
//! begin that have it, so finding them costs two reads. Rows with one hash are in the order of the beginnings of their
//! ranges, or, if the first in some order counts, in that order.
//!
//! ```text
//!  hash ─first bits─▶ directory ─▶ [hash | from | before | most]   most: the latest end of a range so far, so that
//!                                   hash   1      5        5       who looks for ranges with 7, from the last one that
//!                                   hash   4      9        9   ◀─  begins in time back, stops where all have ended
//!                                   hash   8      12       12
//! ```

use std::ops::Range;

use arrow::array::{ArrayRef, RecordBatch, UInt32Array, UInt64Array};
use arrow::compute::{SortColumn, lexsort_to_indices, take};
use millstream_core::transform::Duplicate;
use millstream_core::{Error, Result};

use super::compare::key;
use super::digest;
use super::found::{Found, Probe, equal, hashed, kept, unfit};
use super::shape::Shape;

/// Bytes that a row takes beside its columns: its hash, its part of the directory, and what sorting takes.
pub const ROW_BYTES: usize = 32;

/// The same of what a range takes.
pub const RANGE_BYTES: usize = 96;

/// A row that several may match is looked at in so many pairs at a time, about.
const MOST_PAIRS: usize = 32 * 1024;

/// The rows of a reference, in the order of the hashes of their keys.
#[derive(Debug)]
pub struct Table {
    hashes: Vec<u64>,
    /// Where the rows begin whose hashes have these first bits.
    directory: Vec<u32>,
    /// How far a hash is shifted for these bits.
    shift: u32,
    keys: Vec<ArrayRef>,
    taken: Vec<ArrayRef>,
    ranges: Option<Ranges>,
    /// The place of each row in the order in which the first one counts.
    ranks: Option<Vec<u32>>,
    /// How many pairs of one row are looked at: more would change nothing.
    most_of_row: usize,
}

/// The ranges of the rows.
#[derive(Debug)]
struct Ranges {
    from: Vec<i128>,
    before: Vec<i128>,
    /// The largest `before` of the rows with this hash, up to each row.
    most: Vec<i128>,
}

impl Table {
    /// The rows of `batch`, which are in no order. Those whose keys are null match nothing, and are left out.
    pub fn new(shape: &Shape, batch: &RecordBatch) -> Result<Self> {
        if u32::try_from(batch.num_rows()).is_err() {
            let what = format!("`{}` has more rows than a lookup can hold in memory", shape.reference);
            return Err(Error::refused(what).in_step(&shape.step));
        }
        let keys = shape.keys.iter().map(|one| key(batch.column(one.within.1), &one.common));
        let keys = keys.collect::<Result<Vec<_>>>()?;
        let (hashes, valid) = hashed(&keys, batch.num_rows())?;
        let bounds = bounds(shape, batch)?;
        let ranks = ranks(shape, batch)?;
        let is_valid = |row: &u32| valid.as_ref().is_none_or(|valid| valid.is_valid(*row as usize));
        let mut order: Vec<u32> = (0..batch.num_rows() as u32).filter(is_valid).collect();
        order.sort_unstable_by_key(|row| {
            let row = *row as usize;
            let from = bounds.as_ref().map_or(0, |(from, _)| from[row]);
            (hashes[row], from, ranks.as_ref().map_or(row as u32, |ranks| ranks[row]))
        });
        let indices = UInt32Array::from(order.clone());
        let in_order = |column: &ArrayRef| take(column, &indices, None).map_err(unfit);
        let keys = keys.iter().map(in_order).collect::<Result<Vec<_>>>()?;
        let taken = shape.taken.iter().map(|one| in_order(batch.column(one.column))).collect::<Result<Vec<_>>>()?;
        let hashes: Vec<u64> = order.iter().map(|row| hashes[*row as usize]).collect();
        let ranges = bounds.map(|(from, before)| Ranges::new(&hashes, &order, &from, &before));
        let ranks = ranks.map(|ranks| order.iter().map(|row| ranks[*row as usize]).collect());
        let most_of_row = most_of_row(shape, is_pure(&hashes, &keys)?);
        let (directory, shift) = directory(&hashes);
        Ok(Table { hashes, directory, shift, keys, taken, ranges, ranks, most_of_row })
    }

    /// What the rows `rows` of `probe` find, or the first of them, and the row before which that ends.
    pub fn find(&self, probe: &Probe, rows: Range<usize>) -> Result<(Found, usize)> {
        let (mut probes, mut positions) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
        let mut next = rows.start;
        while next < rows.end && positions.len() < MOST_PAIRS {
            if probe.is_valid(next) {
                self.candidates(probe, next, &mut positions);
                probes.resize(positions.len(), next as u32);
            }
            next += 1;
        }
        let (probes, positions) = (UInt32Array::from(probes), UInt32Array::from(positions));
        let same = equal((&probe.keys, &probes), (&self.keys, &positions))?;
        let (rows, positions) = match same.filter(|same| same.true_count() < same.len()) {
            Some(same) => (kept(&probes, &same)?, kept(&positions, &same)?),
            None => (probes.values().to_vec(), positions.values().to_vec()),
        };
        let mut found = Found { rows, positions, columns: self.taken.clone() };
        if let Some(ranks) = &self.ranks {
            only_first(&mut found, ranks);
        }
        Ok((found, next))
    }

    /// Adds where rows are whose hashes and ranges fit row `row` of `probe`.
    fn candidates(&self, probe: &Probe, row: usize, positions: &mut Vec<u32>) {
        let hash = probe.hashes[row];
        let bucket = hash.checked_shr(self.shift).unwrap_or(0) as usize;
        let (start, end) = (self.directory[bucket] as usize, self.directory[bucket + 1] as usize);
        let start = start + self.hashes[start..end].iter().take_while(|other| **other < hash).count();
        let count = self.hashes[start..end].iter().take_while(|other| **other == hash).count();
        let Some(ranges) = &self.ranges else {
            positions.extend((start as u32..(start + count) as u32).take(self.most_of_row));
            return;
        };
        let value = probe.values[row];
        let begun = ranges.from[start..start + count].partition_point(|from| *from <= value);
        let back = (start..start + begun).rev().take_while(|at| ranges.most[*at] > value);
        let fits = back.filter(|at| ranges.before[*at] > value).take(self.most_of_row);
        positions.extend(fits.map(|at| at as u32));
    }
}

/// Keeps of the pairs of each row the one that comes first.
fn only_first(found: &mut Found, ranks: &[u32]) {
    let mut kept = 0;
    for index in 0..found.rows.len() {
        let (row, position) = (found.rows[index], found.positions[index]);
        if kept > 0 && found.rows[kept - 1] == row {
            let best = &mut found.positions[kept - 1];
            if ranks[position as usize] < ranks[*best as usize] {
                *best = position;
            }
            continue;
        }
        (found.rows[kept], found.positions[kept]) = (row, position);
        kept += 1;
    }
    found.rows.truncate(kept);
    found.positions.truncate(kept);
}

/// How many rows that match one row are of interest, where rows with one hash have one key (`pure`), or not.
fn most_of_row(shape: &Shape, pure: bool) -> usize {
    match shape.duplicate {
        Duplicate::Fail if pure => 2,
        Duplicate::First if pure && shape.range.is_none() => 1,
        _ => usize::MAX,
    }
}

/// Whether all rows with one hash, which stand side by side, have one key.
fn is_pure(hashes: &[u64], keys: &[ArrayRef]) -> Result<bool> {
    let beside = hashes.windows(2).enumerate().filter(|(_, two)| two[0] == two[1]);
    let ones: Vec<u32> = beside.map(|(at, _)| at as u32).collect();
    let (ones, others) = (UInt32Array::from(ones.clone()), UInt32Array::from_iter_values(ones.iter().map(|at| at + 1)));
    if ones.is_empty() {
        return Ok(true);
    }
    Ok(equal((keys, &ones), (keys, &others))?.is_none_or(|same| same.true_count() == same.len()))
}

/// Where rows begin whose hashes have the same first bits: as many bits as there are rows, about.
fn directory(hashes: &[u64]) -> (Vec<u32>, u32) {
    let bits = hashes.len().max(1).next_power_of_two().trailing_zeros();
    let shift = u64::BITS - bits;
    let mut directory = vec![0_u32; (1 << bits) + 1];
    for hash in hashes {
        directory[hash.checked_shr(shift).unwrap_or(0) as usize + 1] += 1;
    }
    let mut all = 0;
    for begin in &mut directory {
        all += *begin;
        *begin = all;
    }
    (directory, shift)
}

/// The bounds of the ranges of the rows of `batch`; those that are null are open.
pub fn bounds(shape: &Shape, batch: &RecordBatch) -> Result<Option<(Vec<i128>, Vec<i128>)>> {
    let Some(range) = &shape.range else { return Ok(None) };
    let bound = |column: &Option<(String, usize)>, open: i128| -> Result<Vec<i128>> {
        let Some((_, column)) = column else { return Ok(vec![open; batch.num_rows()]) };
        let (mut numbers, nulls) = range.scale.numbers(batch.column(*column))?;
        if let Some(nulls) = nulls {
            numbers.iter_mut().zip(nulls.iter()).filter(|(_, is_valid)| !is_valid).for_each(|(bound, _)| *bound = open);
        }
        Ok(numbers)
    };
    Ok(Some((bound(&range.from, i128::MIN)?, bound(&range.before, i128::MAX)?)))
}

/// The places of the rows of `batch` in the order in which the first one counts. Of rows that are equal in that order
/// the one comes first whose columns have the smaller hash, whatever the order in which they came.
fn ranks(shape: &Shape, batch: &RecordBatch) -> Result<Option<Vec<u32>>> {
    if shape.duplicate != Duplicate::First {
        return Ok(None);
    }
    let column =
        |(column, options): &(usize, _)| SortColumn { values: batch.column(*column).clone(), options: Some(*options) };
    let ties: ArrayRef = std::sync::Arc::new(UInt64Array::from(digest::of_batch(batch)?));
    let columns: Vec<SortColumn> =
        shape.order.iter().map(column).chain([SortColumn { values: ties, options: None }]).collect();
    let order = lexsort_to_indices(&columns, None).map_err(unfit)?;
    let mut ranks = vec![0; batch.num_rows()];
    order.values().iter().enumerate().for_each(|(rank, row)| ranks[*row as usize] = rank as u32);
    Ok(Some(ranks))
}

impl Ranges {
    /// The ranges of rows with these hashes, which stand in `order`.
    fn new(hashes: &[u64], order: &[u32], from: &[i128], before: &[i128]) -> Self {
        let from: Vec<i128> = order.iter().map(|row| from[*row as usize]).collect();
        let before: Vec<i128> = order.iter().map(|row| before[*row as usize]).collect();
        let mut most = before.clone();
        for at in 1..most.len() {
            if hashes[at - 1] == hashes[at] {
                most[at] = most[at].max(most[at - 1]);
            }
        }
        Ranges { from, before, most }
    }
}
