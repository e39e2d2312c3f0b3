//! The messages of the CSV parser about bad records and values. The caller adds the byte.

use std::collections::HashMap;

use arrow::datatypes::{DataType, Schema, SchemaRef};
use millstream_core::{Error, RejectKind};

use super::infer::behind_lines;
use super::scan::{BadRecord, StructureFault};
use super::spec::{Conventions, Dialect};
use super::values::{ValueFault, trimmed};
use millstream_core::columns::type_name;

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
    let from_fault = &text[bad.at.min(bad.end)..bad.end];
    let error = match bad.structure_fault {
        StructureFault::FieldCount(count) => {
            let error = Error::data(format!(
                "the record has {}, expected \
                                             {expected}",
                plural(count, "field")
            ))
            .text(record);
            error.hint(match (count > expected, dialect.quote) {
                (true, Some(_)) => {
                    format!("a field that holds the delimiter ({delimiter}) must be in quotes ({quote})")
                }
                (true, None) => format!("a field cannot hold the delimiter ({delimiter}) without quotes: set `quote`"),
                (false, _) if count == 1 => format!(
                    "is {delimiter} the delimiter of this file? see `delimiter`, \
                                                     `comment` and `skip_lines`"
                ),
                (false, _) => "fields at the end are missing, or a line end inside a field is not in quotes".to_owned(),
            })
        }
        StructureFault::QuoteInside => Error::data(
            "there is a quote inside a field that is not in \
                                          quotes",
        )
        .text(from_fault)
        .hint(format!(
            "put the whole field in quotes and double the quote inside it, or set `quote: none` if {quote} is ordinary \
             text"
        )),
        StructureFault::AfterQuote => Error::data(
            "there is text after the closing quote of a \
                                         field",
        )
        .text(from_fault)
        .hint(match dialect.escape {
            None => format!(
                "a quote inside a field in quotes is doubled ({q}{q}); set `escape` if the file escapes quotes \
                 differently, or `trim: true` if only spaces follow",
                q = quote.trim_matches('`')
            ),
            Some(escape) => format!(
                "a quote inside a field in quotes follows {}; set `trim: true` if only spaces \
                                     follow",
                shown(&[escape])
            ),
        }),
        StructureFault::LoneReturn => {
            Error::data("there is a carriage return (CR) outside of quotes that ends no line")
                .text(record)
                .cause("the lines of this file end in LF")
                .hint(match dialect.quote {
                    Some(_) => format!("put the field that holds it in quotes ({quote}), or remove it"),
                    None => "remove it, or set `quote` and put the field that holds it in quotes".to_owned(),
                })
        }
        StructureFault::Unclosed(line) => {
            Error::data(format!("the quote opened in line {line} is not closed before the end"))
                .text(from_fault)
                .hint(format!("the file may be cut short; set `quote: none` if {quote} is ordinary text"))
        }
    };
    // A stray quote makes one record of many.
    let more = match bad.structure_fault {
        StructureFault::AfterQuote => memchr::memchr_iter(b'\n', record).count(),
        _ => 0,
    };
    let error =
        if more > 0 { error.cause(format!("the record continues to line {}", bad.line + more as u64)) } else { error };
    let kind = match bad.structure_fault {
        StructureFault::FieldCount(_) => RejectKind::Fields,
        StructureFault::LoneReturn => RejectKind::Syntax,
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

/// A value that does not fit its column's type.
pub(crate) fn value(fault: ValueFault, data_type: &DataType, text: &[u8], conventions: &Conventions) -> Error {
    let name = type_name(data_type);
    let what = match fault {
        ValueFault::Malformed => format!("the value is not {} {name}", article(&name)),
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

/// The indefinite article before the name of a type.
fn article(name: &str) -> &'static str {
    if name.starts_with('i') { "an" } else { "a" }
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
            "declare how it is written: {type: date, format: \"%d.%m.%Y\"}, or declare the column as utf8".to_owned()
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

/// The hint if a record has more fields than the header, which is the one field `title`; the record is on `line`.
pub(crate) fn title_hint(title: &str, line: u64) -> String {
    format!(
        "the header has one field, `{}`; if the lines before line {line} are a title, set `skip_lines: {}`",
        millstream_core::error::printable(title.as_bytes()),
        line - 1
    )
}

/// Adds a hint to a fault of the header: that the names are on the line `below`, or that the delimiter looks wrong;
/// `wanted` are the columns of the source.
pub(crate) fn header_hint(
    error: Error,
    dialect: &Dialect,
    header: &[u8],
    wanted: &Schema,
    below: Option<u64>,
) -> Error {
    if let Some(line) = below {
        let lines = line - 1;
        return error.hint(format!("line {line} has the names of the columns: set `skip_lines: {lines}`"));
    }
    let header = String::from_utf8_lossy(header);
    let Some(other) = other_delimiter(dialect, &header, wanted) else { return error };
    let is_one = std::str::from_utf8(&dialect.delimiter).is_ok_and(|delimiter| !header.contains(delimiter));
    let seen = match is_one {
        true => format!("the header is one field; is {} the delimiter?", shown(other.as_bytes())),
        false => {
            format!(
                "the file seems to be divided by {}, not by {};",
                shown(other.as_bytes()),
                shown(&dialect.delimiter)
            )
        }
    };
    error.hint(format!(
        "{seen} set `delimiter: \"{}\"`; files with different delimiters are different sources",
        other.escape_default()
    ))
}

/// The fault of the first of `files` that has another delimiter: its header is one field, but shares a column with
/// another file if another delimiter divides it. Such a file would give rows of garbage or nulls.
pub(crate) fn divided_otherwise(dialect: &Dialect, files: &[(String, SchemaRef)]) -> Option<Error> {
    // The first file with each name.
    let mut names: HashMap<&str, usize> = HashMap::new();
    for (index, (_, schema)) in files.iter().enumerate() {
        schema.fields().iter().for_each(|field| {
            names.entry(field.name()).or_insert(index);
        });
    }
    files.iter().find_map(|(file, schema)| {
        let [field] = &schema.fields()[..] else { return None };
        let header = field.name();
        let shared = |delimiter: &str| {
            header_fields(header, delimiter).find_map(|name| Some((&files[*names.get(name.as_str())?].0, name)))
        };
        let candidates =
            OTHERS.into_iter().filter(|other| other.as_bytes() != dialect.delimiter && header.contains(other));
        let (delimiter, (other, name)) = candidates.filter_map(|other| Some((other, shared(other)?))).next()?;
        let delimiter_shown = shown(delimiter.as_bytes());
        Some(
            Error::data("the file has another delimiter than the other files of the source")
                .in_unit(file, None)
                .text(header)
                .cause(format!(
                    "divided by {}, its header is one field; divided by {delimiter_shown}, it has the column `{name}`, \
                     as {} has",
                    shown(&dialect.delimiter),
                    millstream_core::redact::url(other)
                ))
                .hint(format!(
                    "files with different delimiters are different sources: read this one by a source of its own, with \
                     `delimiter: \"{}\"`",
                    delimiter.escape_default()
                )),
        )
    })
}

/// The names in a header that `delimiter` divides.
fn header_fields(header: &str, delimiter: &str) -> impl Iterator<Item = String> {
    header.split(delimiter).map(|field| field.trim().trim_matches(['"', '\'']).trim().to_owned())
}

/// The delimiter that a header seems to have, if it is another one: it finds more columns of the source, or, if the
/// header is one field, several columns.
fn other_delimiter(dialect: &Dialect, header: &str, wanted: &Schema) -> Option<&'static str> {
    let delimiter = std::str::from_utf8(&dialect.delimiter).ok()?;
    let known =
        |delimiter: &str| header_fields(header, delimiter).filter(|name| wanted.field_with_name(name).is_ok()).count();
    let others = || OTHERS.into_iter().filter(|other| *other != delimiter && header.contains(other));
    let best = others().map(|other| (known(other), other)).max_by_key(|(count, _)| *count);
    match best {
        Some((count, other)) if count > known(delimiter) => Some(other),
        _ if !header.contains(delimiter) => others().next(),
        _ => None,
    }
}

/// The fault of a text in which the delimiter does not occur, where another one cuts every line into `width` fields.
pub(crate) fn other_width(dialect: &Dialect, text: &[u8], skip_lines: u64, width: usize) -> Option<Error> {
    if width < 2 || memchr::memmem::find(text, &dialect.delimiter).is_some() {
        return None;
    }
    let text = &text[behind_lines(text, skip_lines)..];
    let lines: Vec<&[u8]> = text
        .split(|byte| matches!(byte, b'\n' | b'\r'))
        .filter(|line| !line.is_empty() && line.first().copied() != dialect.comment)
        .take(LINES_LOOKED_AT)
        .collect();
    let cut = lines.len() > 1 && !text.ends_with(b"\n") && !text.ends_with(b"\r");
    let whole = &lines[..lines.len() - usize::from(cut)];
    let cuts = |other: &&str| {
        let count = |line: &&[u8]| memchr::memmem::find_iter(line, other.as_bytes()).count() + 1;
        !whole.is_empty() && whole.iter().all(|line| count(line) == width)
    };
    let other = OTHERS.iter().copied().filter(|other| other.as_bytes() != dialect.delimiter).find(cuts)?;
    let (ours, theirs) = (shown(&dialect.delimiter), shown(other.as_bytes()));
    Some(
        Error::data(format!("the delimiter ({ours}) does not occur in the file"))
            .text(whole.first()?)
            .cause(format!("with {theirs} its records have {width} fields, as many as there are columns"))
            .hint(format!("set `delimiter: \"{}\"`", other.escape_default())),
    )
}

/// How many lines are checked for another delimiter.
const LINES_LOOKED_AT: usize = 100;

/// Delimiters that a file may have instead.
const OTHERS: [&str; 4] = [";", "\t", "|", ","];

/// A file without the header that it should begin with; `no_text` says that it has no text at all.
pub(crate) fn no_header(no_text: bool, skip_lines: u64) -> Error {
    let what = match (no_text, skip_lines) {
        (true, _) => "the file is empty, but a header is required",
        (false, 0) => "the file has no header, only blank lines or comments",
        (false, _) => "the file has no header after the lines that `skip_lines` skips",
    };
    Error::data(what).hint(EMPTY_HINT)
}

/// Files without any record, so that their columns are unknown; `no_text` says that they have no text at all.
pub(crate) fn no_columns(no_text: bool, files: usize) -> Error {
    let what = match (no_text, files) {
        (true, 1) => "columns cannot be inferred: the file is empty",
        (true, _) => "columns cannot be inferred: the files are empty",
        (false, _) => "columns cannot be inferred: there is no record",
    };
    Error::data(what).hint(
        "a file that was cut short looks like this: get it again; if it may be empty, declare `columns` and set \
         `empty_files: allow` in the source",
    )
}

const EMPTY_HINT: &str = "a file that was cut short looks like this: get it again; or set `empty_files: allow` in the \
                          source to read such files as files without rows";
