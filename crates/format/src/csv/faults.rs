//! What the csv parser says of bad records and values. The caller adds the byte.

use arrow::datatypes::DataType;
use millstream_core::{Error, RejectKind};

use super::scan::{BadRecord, Flaw};
use super::spec::{Conventions, Dialect};
use super::values::{ValueFault, trimmed};
use crate::columns::type_name;

/// A character as a message shows it.
fn shown(character: &[u8]) -> String {
    match character {
        b"\t" => "a tab".to_owned(),
        b" " => "a space".to_owned(),
        other => format!("`{}`", String::from_utf8_lossy(other)),
    }
}

fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// A record with a bad structure; `expected` fields were expected.
pub(crate) fn structure(dialect: &Dialect, bad: &BadRecord, expected: usize, text: &[u8]) -> Error {
    let delimiter = shown(&dialect.delimiter);
    let quote = dialect.quote.map_or(String::new(), |quote| shown(&[quote]));
    let record = &text[bad.start..bad.end];
    let from_flaw = &text[bad.at.min(bad.end)..bad.end];
    let error = match bad.flaw {
        Flaw::FieldCount(count) => {
            let error = Error::data(format!("the record has {}, expected {expected}", plural(count, "field"))).text(record);
            error.hint(match (count > expected, dialect.quote) {
                (true, Some(_)) => format!("a field that holds the delimiter ({delimiter}) must stand in quotes ({quote})"),
                (true, None) => format!("a field cannot hold the delimiter ({delimiter}) without quotes: set `quote`"),
                (false, _) if count == 1 => format!("is {delimiter} the delimiter of this file? see `delimiter`, `comment` and `skip_lines`"),
                (false, _) => "fields at the end are missing, or a line end inside a field is not in quotes".to_owned(),
            })
        }
        Flaw::QuoteInside => Error::data("there is a quote inside a field that is not in quotes").text(from_flaw).hint(format!(
            "put the whole field in quotes and double the quote inside it, or set `quote: none` if {quote} is ordinary text"
        )),
        Flaw::AfterQuote => Error::data("there is text after the closing quote of a field").text(from_flaw).hint(match dialect.escape {
            None => format!("a quote inside a field in quotes is doubled ({q}{q}); set `escape` if the file has another way, or `trim: true` if only spaces follow", q = quote.trim_matches('`')),
            Some(escape) => format!("a quote inside a field in quotes follows {}; set `trim: true` if only spaces follow", shown(&[escape])),
        }),
        Flaw::Unclosed(line) => Error::data(format!("the quote opened in line {line} is not closed before the end"))
            .text(from_flaw)
            .hint(format!("the file may be cut short; set `quote: none` if {quote} is ordinary text")),
    };
    // A quote that should not be there makes one record of many.
    let more = match bad.flaw {
        Flaw::AfterQuote => memchr::memchr_iter(b'\n', record).count(),
        _ => 0,
    };
    let error =
        if more > 0 { error.cause(format!("the record goes on to line {}", bad.line + more as u64)) } else { error };
    let kind = match bad.flaw {
        Flaw::FieldCount(_) => RejectKind::Fields,
        _ => RejectKind::Quotes,
    };
    error.line(bad.line).reject(kind)
}

/// A record that is longer than allowed; `open` is the line of its open quote.
pub(crate) fn too_long(dialect: &Dialect, line: u64, open: Option<u64>, record: &[u8]) -> Error {
    let limit = millstream_core::spec::Size(dialect.max_record as u64);
    let beginning = &record[..record.len().min(dialect.max_record)];
    let error = Error::data(format!("the record is longer than {limit}")).text(beginning).line(line);
    let error = error.reject(RejectKind::TooLong);
    match open {
        Some(opened) => error
            .cause(format!("the quote opened in line {opened} is not closed"))
            .hint("set `quote: none` if quotes are ordinary text, or raise `max_record`"),
        None => error.hint("raise `max_record` if records may be that long"),
    }
}

/// Texts that often stand for null.
const NULL_TEXTS: &[&str] =
    &["na", "n/a", "#n/a", "nan", "null", "nil", "none", "-", "--", ".", "?", "\\n", "(null)", "unknown"];

/// A value that is none of its column's type.
pub(crate) fn value(fault: ValueFault, data_type: &DataType, text: &[u8], conventions: &Conventions) -> Error {
    let name = type_name(data_type);
    let what = match fault {
        ValueFault::Malformed => format!("the value is no {name}"),
        ValueFault::OutOfRange => format!("the value is out of the range of {}", range(data_type).unwrap_or(name)),
        ValueFault::TooFine => format!("the value has more digits than {name} keeps"),
        ValueFault::HasZone => {
            "the value has an offset from UTC, and the column is a timestamp without zone".to_owned()
        }
    };
    let kind = match fault {
        ValueFault::OutOfRange => RejectKind::OutOfRange,
        _ => RejectKind::Value,
    };
    Error::data(what).text(text).reject(kind).hint(value_hint(fault, data_type, trimmed(text), conventions))
}

fn value_hint(fault: ValueFault, data_type: &DataType, text: &[u8], conventions: &Conventions) -> String {
    let lower = String::from_utf8_lossy(text).to_lowercase();
    match (fault, data_type) {
        (ValueFault::HasZone, _) => "declare the column as timestamptz".to_owned(),
        (ValueFault::OutOfRange, _) => "declare a wider type".to_owned(),
        (ValueFault::TooFine, DataType::Decimal128(..) | DataType::Decimal256(..)) => {
            "declare a larger scale".to_owned()
        }
        (ValueFault::TooFine, _) => "times are kept in microseconds: declare the column as utf8".to_owned(),
        (ValueFault::Malformed, _) if NULL_TEXTS.contains(&lower.as_str()) => {
            format!("if it stands for null, set `null: [\"\", \"{}\"]`", String::from_utf8_lossy(text).escape_debug())
        }
        (ValueFault::Malformed, data_type)
            if data_type.is_numeric() && conventions.decimal == b'.' && text.contains(&b',') =>
        {
            "if the comma is part of the number, set `decimal: \",\"` or `thousands: \",\"`".to_owned()
        }
        (ValueFault::Malformed, data_type) if data_type.is_integer() && text.contains(&b'.') => {
            "declare the column as float64 or decimal(precision, scale)".to_owned()
        }
        (ValueFault::Malformed, DataType::Boolean) => format!(
            "set `true_texts` and `false_texts`; now they are {} and {}",
            conventions.true_texts.join(", "),
            conventions.false_texts.join(", ")
        ),
        (ValueFault::Malformed, DataType::Date32 | DataType::Time64(_) | DataType::Timestamp(..)) => {
            "say how it is written: {type: date, format: \"%d.%m.%Y\"}, or declare the column as utf8".to_owned()
        }
        (ValueFault::Malformed, DataType::Binary) => "bytes are written as pairs of hexadecimal digits".to_owned(),
        _ => "correct it, or declare the column as utf8".to_owned(),
    }
}

fn range(data_type: &DataType) -> Option<String> {
    let (low, high) = match data_type {
        DataType::Int8 => (i8::MIN.to_string(), i8::MAX.to_string()),
        DataType::Int16 => (i16::MIN.to_string(), i16::MAX.to_string()),
        DataType::Int32 => (i32::MIN.to_string(), i32::MAX.to_string()),
        DataType::Int64 => (i64::MIN.to_string(), i64::MAX.to_string()),
        DataType::UInt8 => ("0".to_owned(), u8::MAX.to_string()),
        DataType::UInt16 => ("0".to_owned(), u16::MAX.to_string()),
        DataType::UInt32 => ("0".to_owned(), u32::MAX.to_string()),
        DataType::UInt64 => ("0".to_owned(), u64::MAX.to_string()),
        _ => return None,
    };
    Some(format!("{}, {low} to {high}", type_name(data_type)))
}

/// What to do where a record has more fields than the header's one: `title` stands there, and the record on `line`.
pub(crate) fn title_hint(title: &str, line: u64) -> String {
    format!(
        "the header has one field, `{}`; if the lines before line {line} are a title, set `skip_lines: {}`",
        millstream_core::error::printable(title.as_bytes()),
        line - 1
    )
}

/// Adds to a fault of the header that the names stand on the line `below`, if they do, or that its delimiter looks
/// wrong, if it does.
pub(crate) fn header_hint(error: Error, dialect: &Dialect, names: &[String], below: Option<u64>) -> Error {
    if let Some(line) = below {
        let lines = line - 1;
        return error.hint(format!("line {line} has the names of the columns: set `skip_lines: {lines}`"));
    }
    let [only] = names else { return error };
    let other =
        [";", "\t", "|", ","].into_iter().find(|other| dialect.delimiter != other.as_bytes() && only.contains(other));
    match other {
        Some(other) => error.hint(format!(
            "the header is one field; is {} the delimiter? set `delimiter: \"{}\"`",
            shown(other.as_bytes()),
            other.escape_default()
        )),
        None => error,
    }
}
