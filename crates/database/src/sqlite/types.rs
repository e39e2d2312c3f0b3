//! Types of SQLite: the column type for an Arrow type, and the conversions of declared types.
//!
//! The column types for Arrow types:
//!
//! | rows | column | value |
//! |---|---|---|
//! | bool | `BOOLEAN` | 0 or 1 |
//! | integers | `INTEGER` | integer; above 2⁶³−1 an error |
//! | floats | `REAL` | real; NaN an error, since SQLite would make it NULL |
//! | decimal, up to 15 digits | `NUMERIC` | number; exact, as SQLite keeps 15 digits |
//! | decimal, more digits | `TEXT` | text; exact, but compared as text |
//! | text | `TEXT` | text |
//! | binary | `BLOB` | blob |
//! | date, time, timestamp | `TEXT` | ISO 8601 with a space, as SQLite's own functions write it; with a zone in UTC |
//! | interval, duration | `TEXT` | text |
//! | lists, structs, maps | `TEXT` | JSON |

use arrow::datatypes::DataType;

/// The most digits of a decimal that a `NUMERIC` column keeps.
pub const NUMERIC_DIGITS: u8 = 15;

/// How SQLite converts values for a column, by its declared type: "Datatypes In SQLite", section 3.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Affinity {
    /// Numbers become text.
    Text,
    /// Text that looks like a number becomes a number.
    Numeric,
    /// Like `Numeric`, and floats that are whole become integers.
    Integer,
    /// Like `Numeric`, and whole numbers become floats.
    Real,
    /// Values are not converted.
    Blob,
}

impl Affinity {
    /// The affinity of a declared type.
    pub fn of(declared: &str, is_strict: bool) -> Self {
        let declared = declared.to_ascii_uppercase();
        let has = |parts: &[&str]| parts.iter().any(|part| declared.contains(part));
        match () {
            () if has(&["INT"]) => Affinity::Integer,
            () if has(&["CHAR", "CLOB", "TEXT"]) => Affinity::Text,
            () if declared.is_empty() || has(&["BLOB"]) || (is_strict && declared == "ANY") => Affinity::Blob,
            () if has(&["REAL", "FLOA", "DOUB"]) => Affinity::Real,
            () => Affinity::Numeric,
        }
    }
}

/// The digits of a decimal; `None` for other types.
pub fn decimal_digits(data_type: &DataType) -> Option<u8> {
    match data_type {
        DataType::Decimal32(digits, _)
        | DataType::Decimal64(digits, _)
        | DataType::Decimal128(digits, _)
        | DataType::Decimal256(digits, _) => Some(*digits),
        _ => None,
    }
}

/// The column type for values of `data_type`.
pub fn column_type(data_type: &DataType) -> &'static str {
    match data_type {
        DataType::Boolean => "BOOLEAN",
        other if other.is_integer() => "INTEGER",
        DataType::Float16 | DataType::Float32 | DataType::Float64 => "REAL",
        decimal if decimal_digits(decimal).is_some_and(|digits| digits <= NUMERIC_DIGITS) => "NUMERIC",
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => "BLOB",
        DataType::Dictionary(_, values) => column_type(values),
        DataType::RunEndEncoded(_, values) => column_type(values.data_type()),
        _ => "TEXT",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_declared_type_has_the_affinity_of_its_words() {
        for (declared, is_strict, affinity) in [
            ("BIGINT", false, Affinity::Integer),
            // The first rule that fits: "Datatypes In SQLite", section 3.1.
            ("CHARINT", false, Affinity::Integer),
            ("varchar(9)", false, Affinity::Text),
            ("", false, Affinity::Blob),
            ("ANY", false, Affinity::Numeric),
            ("ANY", true, Affinity::Blob),
            ("double precision", false, Affinity::Real),
            ("DECIMAL(10,2)", false, Affinity::Numeric),
        ] {
            assert_eq!(Affinity::of(declared, is_strict), affinity, "{declared}");
        }
    }
}
