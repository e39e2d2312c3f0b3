//! Types of MySQL and MariaDB: which one the values of an Arrow type get, and what a declared one can hold.
//!
//! What an Arrow type becomes:
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
//! Text in tables that are made is compared byte by byte (`utf8mb4_bin`), as Millstream compares it.

use arrow::datatypes::{DataType, TimeUnit};

use crate::family::{Family, digits};

/// The most digits of a `DECIMAL`, and of those behind the point that both MySQL and MariaDB allow.
const DECIMAL_DIGITS: (u8, i8) = (65, 30);

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

/// What a column of a type, in lower case, can hold.
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
