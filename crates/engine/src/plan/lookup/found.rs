//! What is asked of a reference, and what is found in it.

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, UInt32Array};
use arrow::buffer::NullBuffer;
use arrow::compute::kernels::cmp::eq;
use arrow::compute::{and, filter, take};
use datafusion::common::hash_utils::{QualityRandomState, create_hashes};
use millstream_core::{Error, Result};

use super::compare::key;
use super::shape::Shape;
use crate::fault;

/// The seed of the hashes of keys. Nothing outlives the run that depends on it.
const SEED: u64 = 0x6d69_6c6c_7374_7265;

/// Rows that are looked up.
#[derive(Debug)]
pub struct Probe {
    /// Their keys, in the types in which they are compared.
    pub keys: Vec<ArrayRef>,
    /// The hashes of the keys.
    pub hashes: Vec<u64>,
    /// Which of them can match something.
    pub valid: Option<NullBuffer>,
    /// The values that a range has to hold; none without a range.
    pub values: Vec<i128>,
}

impl Probe {
    /// The rows of `batch`, whose columns with these numbers are compared.
    pub fn new(shape: &Shape, batch: &RecordBatch, columns: &[usize]) -> Result<Self> {
        let column = |index: usize| batch.column(columns[index]);
        let keys = shape.keys.iter().enumerate().map(|(index, one)| key(column(index), &one.common));
        let keys = keys.collect::<Result<Vec<_>>>()?;
        let (hashes, mut valid) = hashed(&keys, batch.num_rows())?;
        let mut values = Vec::new();
        if let Some(range) = &shape.range {
            let (numbers, nulls) = range.scale.numbers(column(keys.len()))?;
            valid = NullBuffer::union(valid.as_ref(), nulls.as_ref());
            values = numbers;
        }
        Ok(Probe { keys, hashes, valid, values })
    }

    /// Whether row `row` can match something.
    pub fn is_valid(&self, row: usize) -> bool {
        self.valid.as_ref().is_none_or(|valid| valid.is_valid(row))
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }
}

/// The hashes of `keys`, of `rows` rows, and which of the keys have no null.
pub fn hashed(keys: &[ArrayRef], rows: usize) -> Result<(Vec<u64>, Option<NullBuffer>)> {
    let mut hashes = vec![0; rows];
    create_hashes(keys, &QualityRandomState::with_seed(SEED), &mut hashes).map_err(fault::unwrap)?;
    let nulls = keys.iter().fold(None, |all, key| NullBuffer::union(all.as_ref(), key.logical_nulls().as_ref()));
    Ok((hashes, nulls))
}

/// Pairs of rows that match: each row that was looked up, in order, and where in `columns` that is which it gets.
#[derive(Debug, Default)]
pub struct Found {
    /// The rows that were looked up. One comes twice if several match, and not at all if none does.
    pub rows: Vec<u32>,
    /// Where their columns are.
    pub positions: Vec<u32>,
    /// The columns that are taken.
    pub columns: Vec<ArrayRef>,
}

impl Found {
    /// A row that several rows match, and where two of these are.
    pub fn duplicate(&self) -> Option<(u32, [u32; 2])> {
        let index = self.rows.windows(2).position(|two| two[0] == two[1])?;
        Some((self.rows[index], [self.positions[index], self.positions[index + 1]]))
    }
}

/// Which of the pairs of `rows` and `positions` have equal keys.
pub fn equal(
    (keys, rows): (&[ArrayRef], &UInt32Array),
    (others, positions): (&[ArrayRef], &UInt32Array),
) -> Result<Option<BooleanArray>> {
    let mut all: Option<BooleanArray> = None;
    for (key, other) in keys.iter().zip(others) {
        // Often each row has one match, and is there as it is.
        let is_whole = rows.len() == key.len() && rows.values().iter().enumerate().all(|(at, row)| at == *row as usize);
        let key = if is_whole { key.clone() } else { take(key, rows, None).map_err(unfit)? };
        let other = take(other, positions, None).map_err(unfit)?;
        let same = eq(&key, &other).map_err(unfit)?;
        all = Some(match all {
            Some(all) => and(&all, &same).map_err(unfit)?,
            None => same,
        });
    }
    Ok(all)
}

/// The numbers of `numbers` that `mask` keeps.
pub fn kept(numbers: &UInt32Array, mask: &BooleanArray) -> Result<Vec<u32>> {
    let kept = filter(numbers, mask).map_err(unfit)?;
    Ok(arrow::array::AsArray::as_primitive::<arrow::datatypes::UInt32Type>(&kept).values().to_vec())
}

pub fn unfit(cause: arrow::error::ArrowError) -> Error {
    Error::internal("the columns of a lookup do not fit together").cause(cause)
}
