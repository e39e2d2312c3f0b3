//! Which columns can be compared without loss, and their values in a form that can be.
//!
//! Keys are cast to a common type that holds every value of both, or at least all that can be equal: of a double and an
//! integer, integers. A value that it cannot hold matches nothing, as null does. The bounds of ranges become numbers in
//! one scale, which a date in the year 9999 fits in as well as nanoseconds do.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array};
use arrow::buffer::NullBuffer;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Decimal128Type, Float64Type, Int64Type, TimeUnit};
use millstream_core::{Error, Result};

/// The most digits of a decimal of 128 bits, and of one of 256.
const DIGITS: (u8, u8) = (38, 76);

const SECOND: i128 = 1_000_000_000;
const DAY: i128 = 86_400 * SECOND;

/// The type in which values of `one` and `other` are compared for equality; `None` if there is none without loss.
pub fn common(one: &DataType, other: &DataType) -> Option<DataType> {
    let (one, other) = (plain(one), plain(other));
    match (&one, &other) {
        (DataType::Null, DataType::Null) => Some(DataType::Boolean),
        (DataType::Null, _) => common(&other, &other),
        (_, DataType::Null) => common(&one, &one),
        (DataType::UInt64, other) if other.is_unsigned_integer() => Some(DataType::UInt64),
        (one, DataType::UInt64) if one.is_unsigned_integer() => Some(DataType::UInt64),
        (one, other) if one.is_integer() && other.is_integer() => Some(DataType::Int64),
        (one, other) if is_real(one) && is_real(other) && (one.is_floating() || other.is_floating()) => {
            Some(DataType::Float64)
        }
        (one, other) if one.is_integer() && other.is_floating() => common(one, one),
        (one, other) if one.is_floating() && other.is_integer() => common(other, other),
        (one, other) if is_exact(one) && is_exact(other) => decimal(one, other),
        (DataType::Date32 | DataType::Date64, DataType::Date32 | DataType::Date64) => Some(DataType::Date32),
        (DataType::Date32 | DataType::Date64, DataType::Timestamp(unit, None))
        | (DataType::Timestamp(unit, None), DataType::Date32 | DataType::Date64) => {
            Some(DataType::Timestamp(finer(*unit, TimeUnit::Microsecond), None))
        }
        (DataType::Timestamp(one, None), DataType::Timestamp(other, None)) => {
            Some(DataType::Timestamp(finer(*one, *other), None))
        }
        (DataType::Timestamp(one, Some(zone)), DataType::Timestamp(other, Some(_))) => {
            Some(DataType::Timestamp(finer(*one, *other), Some(Arc::clone(zone))))
        }
        (one, other) if is_time(one) && is_time(other) => Some(DataType::Time64(TimeUnit::Nanosecond)),
        (one, other) => {
            let is_known =
                matches!(one, DataType::Boolean | DataType::Utf8View | DataType::BinaryView | DataType::Duration(_));
            (one == other && is_known).then(|| one.clone())
        }
    }
}

/// The type without its layout in memory.
fn plain(kind: &DataType) -> DataType {
    match kind {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8View,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            DataType::BinaryView
        }
        DataType::Dictionary(_, values) => plain(values),
        DataType::RunEndEncoded(_, values) => plain(values.data_type()),
        other => other.clone(),
    }
}

/// Whether a double holds every value.
fn is_real(kind: &DataType) -> bool {
    kind.is_floating()
        || matches!(
            kind,
            DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::UInt8 | DataType::UInt16 | DataType::UInt32
        )
}

fn is_exact(kind: &DataType) -> bool {
    kind.is_integer() || kind.is_decimal()
}

fn is_time(kind: &DataType) -> bool {
    matches!(kind, DataType::Time32(_) | DataType::Time64(_))
}

/// Digits before and behind the point.
fn digits(kind: &DataType) -> (i16, i16) {
    match kind {
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => (i16::from(*precision) - i16::from(*scale), i16::from(*scale)),
        _ => (20, 0),
    }
}

/// The decimal that holds all values of both.
fn decimal(one: &DataType, other: &DataType) -> Option<DataType> {
    let (one, other) = (digits(one), digits(other));
    let (before, behind) = (one.0.max(other.0), one.1.max(other.1).max(0));
    let scale = i8::try_from(behind).ok()?;
    match before + behind {
        all if all <= i16::from(DIGITS.0) => Some(DataType::Decimal128(DIGITS.0, scale)),
        all if all <= i16::from(DIGITS.1) => Some(DataType::Decimal256(DIGITS.1, scale)),
        _ => None,
    }
}

fn finer(one: TimeUnit, other: TimeUnit) -> TimeUnit {
    one.max(other)
}

/// The values of `column` as the type `common`; those that it cannot hold are null.
pub fn key(column: &ArrayRef, common: &DataType) -> Result<ArrayRef> {
    let column = match column.data_type() == common {
        true => Arc::clone(column),
        false if column.data_type().is_floating() && common.is_integer() => whole(column, common)?,
        false => cast(column, common, true)?,
    };
    match column.as_primitive_opt::<Float64Type>() {
        // There are two zeros, which are equal.
        Some(values) => Ok(Arc::new(values.unary::<_, Float64Type>(|value| value + 0.0))),
        None => Ok(column),
    }
}

/// The doubles of `column` that are integers, as such. Others are null.
fn whole(column: &ArrayRef, common: &DataType) -> Result<ArrayRef> {
    let column = cast(column, &DataType::Float64, false)?;
    let is_whole = |value: &f64| value.fract() == 0.0;
    let values = column.as_primitive::<Float64Type>().iter();
    let values: Float64Array = values.map(|value| value.filter(is_whole)).collect();
    cast(&(Arc::new(values) as ArrayRef), common, true)
}

fn cast(column: &ArrayRef, to: &DataType, safe: bool) -> Result<ArrayRef> {
    let options = CastOptions { safe, ..CastOptions::default() };
    cast_with_options(column, to, &options)
        .map_err(|cause| Error::data("a value cannot be compared").cause(cause.to_string()))
}

/// The scale in which the values of a range are numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Exact numbers, with so many digits behind the point.
    Exact(i8),
    /// Doubles.
    Real,
    /// An integer between doubles, or a double between integers: twice the integers, with a number between each two of
    /// them for all that is between these.
    Halves,
    /// Times since 1970, or since midnight, in nanoseconds.
    Nanoseconds,
}

/// The scale in which the value of a range, the first of `kinds`, is compared with the bounds, which are the others;
/// `None` if there is none without loss.
pub fn scale(kinds: &[&DataType]) -> Option<Scale> {
    let kinds: Vec<DataType> = kinds.iter().map(|kind| plain(kind)).filter(|kind| *kind != DataType::Null).collect();
    if kinds.iter().all(is_exact) {
        let (before, behind) = kinds.iter().map(digits).fold((0, 0), |all, one| (all.0.max(one.0), all.1.max(one.1)));
        let fits = before + behind <= i16::from(DIGITS.0);
        return i8::try_from(behind).ok().filter(|_| fits).map(Scale::Exact);
    }
    if kinds.iter().all(is_real) {
        return Some(Scale::Real);
    }
    if let [value, bounds @ ..] = &kinds[..] {
        let of = |one: fn(&DataType) -> bool, others: fn(&DataType) -> bool| one(value) && bounds.iter().all(others);
        let is_mixed =
            of(DataType::is_integer, DataType::is_floating) || of(DataType::is_floating, DataType::is_integer);
        if is_mixed {
            return Some(Scale::Halves);
        }
    }
    let is_zoned = |kind: &DataType| matches!(kind, DataType::Timestamp(_, Some(_)));
    let is_local = |kind: &DataType| matches!(kind, DataType::Date32 | DataType::Date64 | DataType::Timestamp(_, None));
    let is_one = kinds.iter().all(is_zoned) || kinds.iter().all(is_local) || kinds.iter().all(is_time);
    is_one.then_some(Scale::Nanoseconds)
}

impl Scale {
    /// The values of `column` as numbers that are in the same order, and which of them are null.
    pub fn numbers(self, column: &ArrayRef) -> Result<(Vec<i128>, Option<NullBuffer>)> {
        let column = match column.data_type() {
            DataType::Dictionary(_, values) => cast(column, values, false)?,
            DataType::RunEndEncoded(_, values) => cast(column, values.data_type(), false)?,
            _ => Arc::clone(column),
        };
        let nulls = column.logical_nulls();
        if column.data_type().is_null() {
            return Ok((vec![0; column.len()], nulls));
        }
        let numbers = match self {
            Scale::Exact(digits) => {
                let column = cast(&column, &DataType::Decimal128(DIGITS.0, digits), false)?;
                column.as_primitive::<Decimal128Type>().values().to_vec()
            }
            Scale::Real => {
                let column = cast(&column, &DataType::Float64, false)?;
                in_order(column.as_primitive::<Float64Type>())
            }
            Scale::Halves if column.data_type().is_floating() => {
                let column = cast(&column, &DataType::Float64, false)?;
                column.as_primitive::<Float64Type>().values().iter().map(|value| half(*value)).collect()
            }
            Scale::Halves => {
                let column = cast(&column, &DataType::Decimal128(DIGITS.0, 0), false)?;
                column.as_primitive::<Decimal128Type>().values().iter().map(|value| value * 2).collect()
            }
            Scale::Nanoseconds => {
                let factor = nanoseconds(column.data_type());
                let column = match column.data_type() {
                    DataType::Date32 | DataType::Time32(_) => {
                        cast(&cast(&column, &DataType::Int32, false)?, &DataType::Int64, false)?
                    }
                    _ => cast(&column, &DataType::Int64, false)?,
                };
                let values = column.as_primitive::<Int64Type>().values();
                values.iter().map(|value| i128::from(*value) * factor).collect()
            }
        };
        Ok((numbers, nulls))
    }
}

/// A double between integers. The largest is what is no number.
fn half(value: f64) -> i128 {
    const FAR: f64 = 1e30;
    let value = if value.is_nan() { f64::INFINITY } else { value };
    let floor = value.floor();
    floor.clamp(-FAR, FAR) as i128 * 2 + i128::from(floor != value)
}

/// Numbers in the order of doubles; the largest is what is no number.
fn in_order(values: &Float64Array) -> Vec<i128> {
    let number = |value: &f64| {
        let bits = (value + 0.0).to_bits().cast_signed();
        i128::from(if bits < 0 { bits ^ i64::MAX } else { bits })
    };
    values.values().iter().map(number).collect()
}

/// The nanoseconds of one unit of a type.
fn nanoseconds(kind: &DataType) -> i128 {
    let of_unit = |unit: &TimeUnit| match unit {
        TimeUnit::Second => SECOND,
        TimeUnit::Millisecond => SECOND / 1_000,
        TimeUnit::Microsecond => SECOND / 1_000_000,
        TimeUnit::Nanosecond => 1,
    };
    match kind {
        DataType::Date32 => DAY,
        DataType::Date64 => SECOND / 1_000,
        DataType::Time32(unit) | DataType::Time64(unit) | DataType::Timestamp(unit, _) => of_unit(unit),
        _ => 1,
    }
}
