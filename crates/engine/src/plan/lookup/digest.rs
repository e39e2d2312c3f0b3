//! The hash of all rows of a reference, in whatever order they come. It is stored with what is loaded, and compared by
//! later versions of the program, so it is made of the values alone and stays as it is. Types are no part of it where
//! they hold the same values: those of all entries are in the fingerprint.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Decimal128Type, Decimal256Type, Float64Type, Int64Type, UInt64Type};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use millstream_core::{Error, Result};

/// What stands for a null, and what begins the hashes of numbers, texts and lists.
const NULL: u64 = 0x6e75_6c6c_6e75_6c6c;
const NUMBER: u64 = 0x01;
const REAL: u64 = 0x02;
const TEXT: u64 = 0x03;
const LIST: u64 = 0x04;
const STRUCT: u64 = 0x05;
const OTHER: u64 = 0x06;

/// The hash of some rows, in any order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Digest {
    rows: u64,
    sum: u64,
}

impl Digest {
    /// Adds rows with these hashes.
    pub fn add(&mut self, hashes: &[u64]) {
        self.rows += hashes.len() as u64;
        self.sum = hashes.iter().fold(self.sum, |sum, hash| sum.wrapping_add(*hash));
    }

    /// How many rows there are.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The hash.
    pub fn hash(&self) -> u64 {
        mix(self.sum ^ mix(self.rows))
    }
}

/// The hash of each row of `columns`, which have `rows` rows.
pub fn row_hashes(columns: &[ArrayRef], rows: usize) -> Result<Vec<u64>> {
    let mut hashes = vec![0_u64; rows];
    for column in columns {
        let values = values(column).map_err(|cause| Error::internal("a column cannot be hashed").cause(cause))?;
        for (hash, value) in hashes.iter_mut().zip(values) {
            *hash = mix(hash.rotate_left(7) ^ value);
        }
    }
    Ok(hashes)
}

/// The last step of SplitMix64: every bit of the result depends on every bit of `value`.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

fn bytes(kind: u64, text: &[u8]) -> u64 {
    let (words, rest) = text.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let begin = mix(kind ^ (text.len() as u64).rotate_left(32));
    let all = words.iter().chain(std::iter::once(&last));
    mix(all.fold(begin, |hash, word| {
        (hash ^ u64::from_le_bytes(*word)).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29)
    }))
}

fn number(value: u64) -> u64 {
    mix(NUMBER ^ value.rotate_left(8))
}

/// The hash of each value of `column`.
fn values(column: &ArrayRef) -> Result<Vec<u64>, ArrowError> {
    let mut hashes = present(column)?;
    if let Some(nulls) = column.logical_nulls() {
        hashes.iter_mut().zip(nulls.iter()).filter(|(_, is_valid)| !is_valid).for_each(|(hash, _)| *hash = NULL);
    }
    Ok(hashes)
}

/// The same, with anything in the place of nulls.
fn present(column: &ArrayRef) -> Result<Vec<u64>, ArrowError> {
    let count = column.len();
    let longs = |column: &ArrayRef| -> Result<Vec<u64>, ArrowError> {
        let column = cast(column, &DataType::Int64)?;
        Ok(column.as_primitive::<Int64Type>().values().iter().map(|value| number(value.cast_unsigned())).collect())
    };
    Ok(match column.data_type() {
        DataType::Null => vec![NULL; count],
        DataType::UInt64 => column.as_primitive::<UInt64Type>().values().iter().map(|value| number(*value)).collect(),
        DataType::Date32 | DataType::Time32(_) => longs(&cast(column, &DataType::Int32)?)?,
        kind if kind.is_integer()
            || matches!(
                kind,
                DataType::Boolean
                    | DataType::Date64
                    | DataType::Time64(_)
                    | DataType::Timestamp(..)
                    | DataType::Duration(_)
            ) =>
        {
            longs(column)?
        }
        kind if kind.is_floating() => {
            let column = cast(column, &DataType::Float64)?;
            let bits = column.as_primitive::<Float64Type>().values().iter().map(|value| value.to_bits());
            bits.map(|bits| mix(REAL ^ bits.rotate_left(8))).collect()
        }
        DataType::Decimal32(precision, scale) | DataType::Decimal64(precision, scale) => {
            present(&cast(column, &DataType::Decimal128(*precision, *scale))?)?
        }
        DataType::Decimal128(..) => column
            .as_primitive::<Decimal128Type>()
            .values()
            .iter()
            .map(|one| bytes(NUMBER, &one.to_le_bytes()))
            .collect(),
        DataType::Decimal256(..) => column
            .as_primitive::<Decimal256Type>()
            .values()
            .iter()
            .map(|one| bytes(NUMBER, &one.to_le_bytes()))
            .collect(),
        DataType::Utf8View => {
            column.as_string_view().iter().map(|one| bytes(TEXT, one.unwrap_or("").as_bytes())).collect()
        }
        DataType::Utf8 | DataType::LargeUtf8 => present(&cast(column, &DataType::Utf8View)?)?,
        DataType::BinaryView => column.as_binary_view().iter().map(|one| bytes(TEXT, one.unwrap_or(&[]))).collect(),
        DataType::Binary | DataType::LargeBinary | DataType::FixedSizeBinary(_) => {
            present(&cast(column, &DataType::BinaryView)?)?
        }
        DataType::Dictionary(_, kind) => values(&cast(column, kind)?)?,
        DataType::List(_) => {
            let list = column.as_list::<i32>();
            lists(
                &values(list.values())?,
                list.value_offsets().windows(2).map(|ends| ends[0] as usize..ends[1] as usize),
            )
        }
        DataType::LargeList(_) => {
            let list = column.as_list::<i64>();
            lists(
                &values(list.values())?,
                list.value_offsets().windows(2).map(|ends| ends[0] as usize..ends[1] as usize),
            )
        }
        DataType::Struct(_) => structs(column.as_struct().columns(), count)?,
        _ => shown(column)?,
    })
}

fn lists(values: &[u64], ranges: impl Iterator<Item = std::ops::Range<usize>>) -> Vec<u64> {
    let list = |range: std::ops::Range<usize>| {
        let begin = mix(LIST ^ (range.len() as u64).rotate_left(8));
        values[range].iter().fold(begin, |hash, value| mix(hash.rotate_left(7) ^ value))
    };
    ranges.map(list).collect()
}

fn structs(columns: &[ArrayRef], count: usize) -> Result<Vec<u64>, ArrowError> {
    let mut hashes = vec![mix(STRUCT); count];
    for column in columns {
        for (hash, value) in hashes.iter_mut().zip(values(column)?) {
            *hash = mix(hash.rotate_left(7) ^ value);
        }
    }
    Ok(hashes)
}

/// Of types that hardly any reference has.
fn shown(column: &ArrayRef) -> Result<Vec<u64>, ArrowError> {
    let options = FormatOptions::new();
    let shown = ArrayFormatter::try_new(column.as_ref(), &options)?;
    Ok((0..column.len()).map(|row| bytes(OTHER, shown.value(row).to_string().as_bytes())).collect())
}

/// The hashes of the rows of one batch.
pub fn of_batch(batch: &arrow::array::RecordBatch) -> Result<Vec<u64>> {
    row_hashes(&batch.columns().iter().map(Arc::clone).collect::<Vec<_>>(), batch.num_rows())
}
