//! Types of MySQL and MariaDB: the column type for an Arrow type, the family of a declared type, and the Arrow type of
//! a column that is read.
//!
//! The column types for Arrow types:
//!
//! | rows | column | value |
//! |---|---|---|
//! | bool | `BOOLEAN` (`TINYINT(1)`) | 0 or 1 |
//! | integers | `TINYINT` to `BIGINT`, `UNSIGNED` for those without a sign | |
//! | float32, float16 | `FLOAT` | NaN and infinity are errors |
//! | float64 | `DOUBLE` | NaN and infinity are errors |
//! | decimal, up to 65 digits, 30 behind the point | `DECIMAL` | exact |
//! | decimal, more | `LONGTEXT` | exact, as text |
//! | text | `LONGTEXT`; in a key `VARCHAR(255)` | |
//! | binary | `LONGBLOB`; in a key `VARBINARY(255)` | |
//! | date | `DATE` | years 1 to 9999 |
//! | time | `TIME(6)`, `TIME(3)`, `TIME` by its unit | nanoseconds are an error |
//! | timestamp | `DATETIME(6)`, `DATETIME(3)`, `DATETIME` by its unit | with a zone in UTC; nanoseconds are an error |
//! | lists, structs, maps | `JSON` | |
//! | interval, duration | `LONGTEXT` | text |
//!
//! New tables compare text byte by byte (`utf8mb4_bin`), as Millstream does.

use arrow::datatypes::{DataType, TimeUnit};
use millstream_core::format::TEXT;
use mysql_async::Column;
use mysql_async::consts::{ColumnFlags, ColumnType};

use crate::family::{Family, digits};

/// The most digits of a `DECIMAL`, in all and after the point, that both MySQL and MariaDB allow.
const DECIMAL_DIGITS: (u8, i8) = (65, 30);

/// The number of the character set that means bytes.
const BYTES: u16 = 63;

/// The column type for values of `data_type`.
pub(super) fn column_type(data_type: &DataType, is_key: bool) -> String {
    match data_type {
        DataType::Boolean => "BOOLEAN".to_owned(),
        DataType::Int8 => "TINYINT".to_owned(),
        DataType::Int16 => "SMALLINT".to_owned(),
        DataType::Int32 => "INT".to_owned(),
        DataType::Int64 => "BIGINT".to_owned(),
        DataType::UInt8 => "TINYINT UNSIGNED".to_owned(),
        DataType::UInt16 => "SMALLINT UNSIGNED".to_owned(),
        DataType::UInt32 => "INT UNSIGNED".to_owned(),
        DataType::UInt64 => "BIGINT UNSIGNED".to_owned(),
        DataType::Float16 | DataType::Float32 => "FLOAT".to_owned(),
        DataType::Float64 => "DOUBLE".to_owned(),
        DataType::Decimal32(digits, scale)
        | DataType::Decimal64(digits, scale)
        | DataType::Decimal128(digits, scale)
        | DataType::Decimal256(digits, scale)
            if *digits <= DECIMAL_DIGITS.0 && *scale <= DECIMAL_DIGITS.1 && *scale >= 0 =>
        {
            format!("DECIMAL({digits},{scale})")
        }
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) if is_key => {
            "VARBINARY(255)".to_owned()
        }
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            "LONGBLOB".to_owned()
        }
        DataType::Date32 | DataType::Date64 => "DATE".to_owned(),
        DataType::Time32(unit) | DataType::Time64(unit) => with_digits("TIME", *unit),
        DataType::Timestamp(unit, _) => with_digits("DATETIME", *unit),
        DataType::Dictionary(_, values) => column_type(values, is_key),
        DataType::RunEndEncoded(_, values) => column_type(values.data_type(), is_key),
        nested if nested.is_nested() => "JSON".to_owned(),
        _ if is_key => "VARCHAR(255)".to_owned(),
        _ => "LONGTEXT".to_owned(),
    }
}

fn with_digits(name: &str, unit: TimeUnit) -> String {
    match digits(unit) {
        0 => name.to_owned(),
        digits => format!("{name}({digits})"),
    }
}

/// The family of a declared type, which is in lower case.
pub fn family(declared: &str) -> Family {
    let word = declared.split(['(', ' ']).next().unwrap_or_default();
    let numbers: Vec<u16> = declared
        .split_once('(')
        .and_then(|(_, rest)| rest.split_once(')'))
        .map_or(vec![], |(inside, _)| inside.split(',').filter_map(|number| number.trim().parse().ok()).collect());
    let signed = !declared.contains("unsigned");
    let integer = |bytes| Family::Integer { bytes, signed };
    let first = numbers.first().copied();
    match word {
        "boolean" | "tinyint" => integer(1),
        "smallint" => integer(2),
        "mediumint" => integer(3),
        "int" | "integer" => integer(4),
        "bigint" => integer(8),
        "float" => Family::Float { bytes: 4 },
        "double" | "real" => Family::Float { bytes: 8 },
        "decimal" | "numeric" => {
            let behind = numbers.get(1).copied().unwrap_or(0);
            Family::Decimal(Some((first.unwrap_or(10), i16::try_from(behind).unwrap_or(0))))
        }
        "char" | "varchar" | "tinytext" | "text" | "mediumtext" | "longtext" => Family::Text,
        "binary" | "varbinary" | "tinyblob" | "blob" | "mediumblob" | "longblob" => Family::Bytes,
        "date" => Family::Date,
        "time" => Family::Time { digits: first.map_or(0, |digits| digits as u8) },
        "datetime" | "timestamp" => {
            Family::Timestamp { zoned: word == "timestamp", digits: first.map_or(0, |digits| digits as u8) }
        }
        "json" => Family::Json { binary: true },
        "uuid" => Family::Uuid,
        "enum" | "set" => Family::Choice,
        "bit" => Family::Bits,
        _ => Family::Other,
    }
}

/// The Arrow type of a column that is read.
pub fn arrow_type(column: &Column) -> DataType {
    let unsigned = column.flags().contains(ColumnFlags::UNSIGNED_FLAG);
    let either = |signed, without| if unsigned { without } else { signed };
    match column.column_type() {
        ColumnType::MYSQL_TYPE_TINY => either(DataType::Int8, DataType::UInt8),
        ColumnType::MYSQL_TYPE_SHORT => either(DataType::Int16, DataType::UInt16),
        ColumnType::MYSQL_TYPE_YEAR => DataType::UInt16,
        ColumnType::MYSQL_TYPE_INT24 | ColumnType::MYSQL_TYPE_LONG => either(DataType::Int32, DataType::UInt32),
        ColumnType::MYSQL_TYPE_LONGLONG => either(DataType::Int64, DataType::UInt64),
        ColumnType::MYSQL_TYPE_BIT => DataType::UInt64,
        ColumnType::MYSQL_TYPE_FLOAT => DataType::Float32,
        ColumnType::MYSQL_TYPE_DOUBLE => DataType::Float64,
        ColumnType::MYSQL_TYPE_DECIMAL | ColumnType::MYSQL_TYPE_NEWDECIMAL => decimal_type(column, unsigned),
        ColumnType::MYSQL_TYPE_DATE | ColumnType::MYSQL_TYPE_NEWDATE => DataType::Date32,
        ColumnType::MYSQL_TYPE_TIME | ColumnType::MYSQL_TYPE_TIME2 => DataType::Time64(TimeUnit::Microsecond),
        ColumnType::MYSQL_TYPE_DATETIME | ColumnType::MYSQL_TYPE_DATETIME2 => {
            DataType::Timestamp(TimeUnit::Microsecond, None)
        }
        ColumnType::MYSQL_TYPE_TIMESTAMP | ColumnType::MYSQL_TYPE_TIMESTAMP2 => {
            DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
        }
        ColumnType::MYSQL_TYPE_JSON | ColumnType::MYSQL_TYPE_ENUM | ColumnType::MYSQL_TYPE_SET => TEXT,
        ColumnType::MYSQL_TYPE_GEOMETRY => DataType::Binary,
        _ if column.character_set() == BYTES => DataType::Binary,
        _ => TEXT,
    }
}

/// The server gives the length of a decimal with its sign and its point.
fn decimal_type(column: &Column, unsigned: bool) -> DataType {
    let scale = column.decimals();
    let signs = u32::from(!unsigned) + u32::from(scale > 0);
    match (u8::try_from(column.column_length().saturating_sub(signs)), i8::try_from(scale)) {
        (Ok(precision @ 1..=38), Ok(scale)) => DataType::Decimal128(precision, scale),
        (Ok(precision @ 39..=76), Ok(scale)) => DataType::Decimal256(precision, scale),
        _ => TEXT,
    }
}
