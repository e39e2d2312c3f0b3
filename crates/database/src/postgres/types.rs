//! Types of PostgreSQL: the column type for an Arrow type, the family of a declared type, and the Arrow type of a
//! column that is read.
//!
//! The column types for Arrow types:
//!
//! | rows | column | value |
//! |---|---|---|
//! | bool | `boolean` | |
//! | int8, int16, uint8 | `smallint` | |
//! | int32, uint16 | `integer` | |
//! | int64, uint32 | `bigint` | |
//! | uint64 | `numeric(20,0)` | exact |
//! | float32, float16 | `real` | |
//! | float64 | `double precision` | |
//! | decimal | `numeric(p,s)` | exact |
//! | text | `text` | a NUL byte is an error |
//! | binary | `bytea` | |
//! | date | `date` | |
//! | time | `time` | nanoseconds are an error |
//! | timestamp without a zone | `timestamp` | nanoseconds are an error |
//! | timestamp with a zone | `timestamptz` | nanoseconds are an error |
//! | lists, structs, maps | `jsonb` | |
//! | interval, duration | `text` | text |

use arrow::datatypes::{DataType, TimeUnit};
use millstream_core::format::TEXT;
use tokio_postgres::Column;
use tokio_postgres::types::Type;

use crate::family::Family;

/// The most digits of a `numeric(p, s)` that a new column gets.
const NUMERIC_DIGITS: u8 = 100;

/// The column type for values of `data_type`.
pub(super) fn column_type(data_type: &DataType) -> String {
    match data_type {
        DataType::Boolean => "boolean".to_owned(),
        DataType::Int8 | DataType::Int16 | DataType::UInt8 => "smallint".to_owned(),
        DataType::Int32 | DataType::UInt16 => "integer".to_owned(),
        DataType::Int64 | DataType::UInt32 => "bigint".to_owned(),
        DataType::UInt64 => "numeric(20,0)".to_owned(),
        DataType::Float16 | DataType::Float32 => "real".to_owned(),
        DataType::Float64 => "double precision".to_owned(),
        DataType::Decimal32(digits, scale)
        | DataType::Decimal64(digits, scale)
        | DataType::Decimal128(digits, scale)
        | DataType::Decimal256(digits, scale) => match u8::try_from(*scale) {
            Ok(scale) if *digits <= NUMERIC_DIGITS && scale <= *digits => format!("numeric({digits},{scale})"),
            _ => "numeric".to_owned(),
        },
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            "bytea".to_owned()
        }
        DataType::Date32 | DataType::Date64 => "date".to_owned(),
        DataType::Time32(_) | DataType::Time64(_) => "time without time zone".to_owned(),
        DataType::Timestamp(_, None) => "timestamp without time zone".to_owned(),
        DataType::Timestamp(_, Some(_)) => "timestamp with time zone".to_owned(),
        DataType::Dictionary(_, values) => column_type(values),
        DataType::RunEndEncoded(_, values) => column_type(values.data_type()),
        nested if nested.is_nested() => "jsonb".to_owned(),
        _ => "text".to_owned(),
    }
}

/// The family of a declared type, as `format_type` writes it.
pub fn family(declared: &str) -> Family {
    let word = declared.split('(').next().unwrap_or_default();
    let inside = declared.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
    let numbers: Vec<i16> = inside
        .map_or(vec![], |(inside, _)| inside.split(',').filter_map(|number| number.trim().parse().ok()).collect());
    let digits = numbers.first().map_or(6, |digits| *digits as u8);
    let integer = |bytes| Family::Integer { bytes, signed: true };
    if declared.ends_with("[]") {
        return Family::Other;
    }
    match word.trim() {
        "boolean" => Family::Bool,
        "smallint" => integer(2),
        "integer" => integer(4),
        "bigint" => integer(8),
        "real" => Family::Float { bytes: 4 },
        "double precision" => Family::Float { bytes: 8 },
        "numeric" => Family::Decimal(match numbers[..] {
            [precision, scale] => Some((precision.unsigned_abs(), scale)),
            _ => None,
        }),
        "text" | "character varying" | "character" => Family::Text,
        "bytea" => Family::Bytes,
        "date" => Family::Date,
        "json" => Family::Json { binary: false },
        "jsonb" => Family::Json { binary: true },
        "uuid" => Family::Uuid,
        "time" | "time without time zone" if !declared.contains("with time zone") => Family::Time { digits },
        "timestamp" | "timestamp without time zone" | "timestamp with time zone" => {
            Family::Timestamp { zoned: declared.contains("with time zone"), digits }
        }
        _ => Family::Other,
    }
}

/// The Arrow type of a column that is read.
pub fn arrow_type(column: &Column) -> DataType {
    match *column.type_() {
        Type::BOOL => DataType::Boolean,
        Type::INT2 => DataType::Int16,
        Type::INT4 => DataType::Int32,
        Type::INT8 => DataType::Int64,
        Type::FLOAT4 => DataType::Float32,
        Type::FLOAT8 => DataType::Float64,
        Type::NUMERIC => decimal_type(column.type_modifier()),
        Type::DATE => DataType::Date32,
        Type::TIME => DataType::Time64(TimeUnit::Microsecond),
        Type::TIMESTAMP => DataType::Timestamp(TimeUnit::Microsecond, None),
        Type::TIMESTAMPTZ => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        Type::BYTEA => DataType::Binary,
        _ => TEXT,
    }
}

/// The type of `numeric(p, s)`; text without digits, or with more than a decimal of 256 bits holds.
fn decimal_type(modifier: i32) -> DataType {
    let (precision, scale) = ((modifier - 4) >> 16, ((modifier - 4) & 0x7ff) << 21 >> 21);
    match (u8::try_from(precision), i8::try_from(scale)) {
        (Ok(precision @ 1..=38), Ok(scale)) if modifier >= 4 && (0..=precision as i8).contains(&scale) => {
            DataType::Decimal128(precision, scale)
        }
        (Ok(precision @ 39..=72), Ok(scale)) if modifier >= 4 && (0..=precision as i8).contains(&scale) => {
            DataType::Decimal256(precision, scale)
        }
        _ => TEXT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_come_from_the_modifier() {
        let modifier = |precision: i32, scale: i32| ((precision << 16) | (scale & 0x7ff)) + 4;
        assert_eq!(decimal_type(modifier(12, 3)), DataType::Decimal128(12, 3));
        assert_eq!(decimal_type(modifier(60, 0)), DataType::Decimal256(60, 0));
        for other in [-1, modifier(1000, 0), modifier(5, -2), modifier(2, 5)] {
            assert_eq!(decimal_type(other), TEXT);
        }
    }
}
