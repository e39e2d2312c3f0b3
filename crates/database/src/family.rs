//! Families of column types, whatever a server calls them, and which Arrow values fit them. Each server maps its
//! declared types to families.

use arrow::datatypes::{DataType, TimeUnit};

/// What a column can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Booleans.
    Bool,
    /// Whole numbers.
    Integer {
        /// Their size in bytes.
        bytes: u8,
        /// Whether there are negative ones.
        signed: bool,
    },
    /// Floats.
    Float {
        /// Their size in bytes: 4 or 8.
        bytes: u8,
    },
    /// Decimals, with their digits in all and after the point; `None` if unlimited.
    Decimal(Option<(u16, i16)>),
    /// Text.
    Text,
    /// Bytes.
    Bytes,
    /// Days of the calendar.
    Date,
    /// Times of a day.
    Time {
        /// Digits after the second.
        digits: u8,
    },
    /// Dates with times.
    Timestamp {
        /// Whether they have a time zone.
        zoned: bool,
        /// Digits after the second.
        digits: u8,
    },
    /// JSON.
    Json {
        /// Whether the server stores it in a binary form.
        binary: bool,
    },
    /// UUIDs.
    Uuid,
    /// One or several of a list of texts; a number would be an index into the list.
    Choice,
    /// Bits.
    Bits,
    /// Anything else: the server reads it from text.
    Other,
}

/// Whether a column of the family `new` can hold all values of one of the family `old`.
pub fn holds(new: Family, old: Family) -> bool {
    match (new, old) {
        (Family::Integer { bytes, signed }, Family::Integer { bytes: before, signed: had_sign }) => {
            bytes >= before && (signed == had_sign || (signed && bytes > before))
        }
        (Family::Float { bytes }, Family::Float { bytes: before }) => bytes >= before,
        (Family::Decimal(None), Family::Integer { .. } | Family::Decimal(_)) => true,
        (Family::Decimal(Some((digits, scale))), Family::Decimal(Some((before, behind)))) => {
            scale >= behind && i32::from(digits) - i32::from(scale) >= i32::from(before) - i32::from(behind)
        }
        (Family::Timestamp { zoned, digits }, Family::Timestamp { zoned: was_zoned, digits: before }) => {
            zoned == was_zoned && digits >= before
        }
        _ => false,
    }
}

/// How values of a type fit a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// All fit, or the server refuses those that do not.
    Whole,
    /// Some may not fit.
    Narrow,
    /// They are of another kind and never fit.
    None,
}

fn integer(data_type: &DataType) -> Option<(u8, bool)> {
    Some(match data_type {
        DataType::Int8 => (1, true),
        DataType::Int16 => (2, true),
        DataType::Int32 => (4, true),
        DataType::Int64 => (8, true),
        DataType::UInt8 => (1, false),
        DataType::UInt16 => (2, false),
        DataType::UInt32 => (4, false),
        DataType::UInt64 => (8, false),
        _ => return None,
    })
}

fn decimal(data_type: &DataType) -> Option<(u16, i16)> {
    match data_type {
        DataType::Decimal32(digits, scale)
        | DataType::Decimal64(digits, scale)
        | DataType::Decimal128(digits, scale)
        | DataType::Decimal256(digits, scale) => Some((u16::from(*digits), i16::from(*scale))),
        _ => None,
    }
}

/// The digits after the second of a unit.
pub fn digits(unit: TimeUnit) -> u8 {
    match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 3,
        // Values with more digits are refused one by one.
        TimeUnit::Microsecond | TimeUnit::Nanosecond => 6,
    }
}

fn narrow_unless(whole: bool) -> Fit {
    if whole { Fit::Whole } else { Fit::Narrow }
}

/// How values of a type fit a column of a family.
pub fn fit(data_type: &DataType, family: Family) -> Fit {
    let (bytes, signed) = match data_type {
        DataType::Dictionary(_, values) => return fit(values, family),
        DataType::RunEndEncoded(_, values) => return fit(values.data_type(), family),
        DataType::Null => return Fit::Whole,
        other => integer(other).unwrap_or((0, true)),
    };
    let is_integer = bytes > 0;
    let is_text = matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    let is_bytes = matches!(
        data_type,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_)
    );
    let is_float = matches!(data_type, DataType::Float16 | DataType::Float32 | DataType::Float64);
    match family {
        Family::Bool if *data_type == DataType::Boolean => Fit::Whole,
        Family::Bits if *data_type == DataType::Boolean || is_integer => Fit::Whole,
        Family::Integer { .. } if *data_type == DataType::Boolean => Fit::Whole,
        Family::Integer { bytes: room, signed: has_sign } if is_integer => narrow_unless(match (signed, has_sign) {
            (true, true) | (false, false) => bytes <= room,
            (false, true) => bytes < room,
            (true, false) => false,
        }),
        Family::Integer { .. } if is_float || decimal(data_type).is_some() => Fit::Narrow,
        Family::Float { bytes: room } if is_float => narrow_unless(*data_type != DataType::Float64 || room == 8),
        Family::Float { bytes: room } if is_integer => narrow_unless(bytes < room || (bytes == 4 && room == 8)),
        Family::Float { .. } if decimal(data_type).is_some() => Fit::Narrow,
        Family::Decimal(None) if is_integer || is_float || decimal(data_type).is_some() => Fit::Whole,
        Family::Decimal(Some((precision, scale))) if is_integer => {
            let digits = [3, 5, 0, 10, 0, 0, 0, 20][usize::from(bytes) - 1];
            narrow_unless(i32::from(precision) - i32::from(scale) >= digits)
        }
        Family::Decimal(Some(_)) if is_float => Fit::Narrow,
        Family::Decimal(Some((precision, scale))) => match decimal(data_type) {
            Some((digits, behind)) => narrow_unless(
                behind <= scale && i32::from(digits) - i32::from(behind) <= i32::from(precision) - i32::from(scale),
            ),
            None => Fit::None,
        },
        // Numbers and times are written as text without a loss.
        Family::Text => {
            if is_bytes {
                Fit::None
            } else {
                Fit::Whole
            }
        }
        Family::Bytes => {
            if is_bytes || is_text {
                Fit::Whole
            } else {
                Fit::None
            }
        }
        Family::Date => match data_type {
            DataType::Date32 | DataType::Date64 => Fit::Whole,
            DataType::Timestamp(..) => Fit::Narrow,
            _ if is_text => Fit::Whole,
            _ => Fit::None,
        },
        // Values with more digits are refused one by one.
        Family::Time { .. } => {
            if is_text || matches!(data_type, DataType::Time32(_) | DataType::Time64(_)) {
                Fit::Whole
            } else {
                Fit::None
            }
        }
        Family::Timestamp { digits: room, .. } => match data_type {
            DataType::Date32 | DataType::Date64 => Fit::Whole,
            DataType::Timestamp(unit, _) => narrow_unless(digits(*unit) <= room),
            _ if is_text => Fit::Whole,
            _ => Fit::None,
        },
        Family::Json { .. } => {
            if is_text || data_type.is_nested() {
                Fit::Whole
            } else {
                Fit::None
            }
        }
        Family::Uuid | Family::Choice => {
            if is_text {
                Fit::Whole
            } else {
                Fit::None
            }
        }
        Family::Other => Fit::Whole,
        Family::Bool | Family::Bits | Family::Integer { .. } | Family::Float { .. } | Family::Decimal(None) => {
            Fit::None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_known_by_its_type() {
        let int = |bytes, signed| Family::Integer { bytes, signed };
        for (data_type, family, expected) in [
            (DataType::Int64, int(8, true), Fit::Whole),
            (DataType::Int64, int(4, true), Fit::Narrow),
            (DataType::Int64, int(8, false), Fit::Narrow),
            (DataType::UInt32, int(8, true), Fit::Whole),
            (DataType::UInt64, int(8, true), Fit::Narrow),
            (DataType::Utf8View, int(8, true), Fit::None),
            (DataType::Float64, Family::Float { bytes: 4 }, Fit::Narrow),
            (DataType::Int32, Family::Float { bytes: 8 }, Fit::Whole),
            (DataType::Int64, Family::Float { bytes: 8 }, Fit::Narrow),
            (DataType::Int64, Family::Decimal(Some((20, 0))), Fit::Whole),
            (DataType::Int32, Family::Decimal(Some((10, 2))), Fit::Narrow),
            (DataType::Decimal128(10, 2), Family::Decimal(Some((10, 2))), Fit::Whole),
            (DataType::Decimal128(10, 2), Family::Decimal(Some((12, 1))), Fit::Narrow),
            (DataType::Binary, Family::Text, Fit::None),
            (DataType::Int64, Family::Text, Fit::Whole),
            (
                DataType::Timestamp(TimeUnit::Microsecond, None),
                Family::Timestamp { zoned: false, digits: 0 },
                Fit::Narrow,
            ),
            (DataType::Null, int(1, true), Fit::Whole),
        ] {
            assert_eq!(fit(&data_type, family), expected, "{data_type} into {family:?}");
        }
    }
}
