//! The binary form of `COPY`, as far as reading and writing share it.

use arrow::datatypes::DataType;

use crate::family::Family;

/// The beginning of a binary copy. Flags and the length of an extension follow, four bytes each.
pub const SIGNATURE: &[u8] = b"PGCOPY\n\xff\r\n\0";

/// Days from 1970-01-01 to PostgreSQL's day 0, which is 2000-01-01.
pub const EPOCH_DAYS: i32 = 10_957;

/// The same in microseconds.
pub const EPOCH_MICROS: i64 = EPOCH_DAYS as i64 * 86_400_000_000;

/// Whether values of a type have a binary form for a column of a family.
pub fn has_form(data_type: &DataType, family: Family) -> bool {
    let is_text = matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    match (data_type, family) {
        (DataType::Dictionary(_, values), _) => has_form(values, family),
        (DataType::RunEndEncoded(_, values), _) => has_form(values.data_type(), family),
        (DataType::Null, _) => true,
        (DataType::Boolean, Family::Bool | Family::Integer { .. }) => true,
        (integer, Family::Integer { .. } | Family::Decimal(_)) if integer.is_integer() => true,
        (DataType::Int8 | DataType::Int16 | DataType::Int32, Family::Float { bytes: 8 }) => true,
        (DataType::Float16 | DataType::Float32, Family::Float { .. }) => true,
        (DataType::Float64, Family::Float { bytes: 8 }) => true,
        (DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..), Family::Decimal(_)) => true,
        (_, Family::Text | Family::Json { .. }) if is_text => true,
        (nested, Family::Text | Family::Json { .. }) if nested.is_nested() => true,
        (_, Family::Bytes) if is_text => true,
        (
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_),
            Family::Bytes,
        ) => true,
        (DataType::Date32 | DataType::Date64, Family::Date | Family::Timestamp { .. }) => true,
        (DataType::Timestamp(..), Family::Timestamp { .. }) => true,
        (DataType::Time32(_) | DataType::Time64(_), Family::Time { .. }) => true,
        _ => false,
    }
}
