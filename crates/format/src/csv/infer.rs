//! The columns of a sample and the narrowest types that hold its values.
//!
//! A type is only chosen if no value loses anything. These stay text: whole numbers with leading zeros (postcodes),
//! with a leading plus (telephone numbers), or with more digits than an int64 has; numbers with more digits than a
//! float64 keeps, such as whole numbers above 2^53 beside a fraction; and `1e5`, since programs write such a number as
//! `1e+05` or `1.0e5`.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use bytes::Bytes;
use encoding_rs::Encoding;
use millstream_core::format::{Sample, TEXT};
use millstream_core::{Error, Result};

use super::build::Chunk;
use super::faults;
use super::parse::{column_name, header_names};
use super::scan::{Index, LineEnds, Scanned, Scanner};
use super::spec::{Conventions, Dialect};
use super::values::{Reader, Syntax, trimmed};
use crate::encoding::ToUtf8;

/// The settings for inference.
pub(crate) struct Inference<'a> {
    pub dialect: &'a Dialect,
    pub conventions: &'a Conventions,
    pub encoding: Option<&'static Encoding>,
    pub header: bool,
    pub skip_lines: u64,
}

impl Inference<'_> {
    /// The columns of one sample; a column without values has the null type. `None` if the sample has no record.
    pub fn columns(&self, sample: &Sample) -> Result<Option<SchemaRef>> {
        let text = decoded(sample, self.encoding);
        self.columns_of(&text, sample.complete).map_err(|error| error.in_unit(&sample.uri, None))
    }

    fn columns_of(&self, text: &[u8], complete: bool) -> Result<Option<SchemaRef>> {
        let syntax = Syntax::new(self.dialect.clone(), &self.conventions.nulls);
        let mut scanner = Scanner::new(self.dialect.clone(), self.skip_lines + 1);
        let mut index = Index::default();
        let mut bad = Vec::new();
        let start = behind_lines(text, self.skip_lines);
        scanner.set_line_ends(LineEnds::first(&text[..start]).filter(|_| start > 0));
        // The first record says how many fields there are, whether it is a header or not.
        let next = loop {
            let from = start.max(index.ends.last().map_or(0, |end| *end as usize));
            match scanner.scan(text, from, complete, 1, &mut index, &mut bad) {
                Scanned::Enough(next) if index.rows() > 0 => break next,
                Scanned::Enough(next) if bad.is_empty() => {
                    // A comment or an empty line.
                    if let Some(found) = self.first_record(text, next, complete, &mut scanner, &mut index, &mut bad)? {
                        break found;
                    }
                    return Ok(None);
                }
                Scanned::TooLong(_, open) => return Err(faults::too_long(self.dialect, scanner.line(), open, text)),
                Scanned::Incomplete(at) if at < text.len() => {
                    return Err(Error::data("the sample ends inside the first record")
                        .line(scanner.line())
                        .hint("declare `columns`; if a quote is not closed, see `quote`"));
                }
                Scanned::Incomplete(_) => return Ok(None),
                Scanned::Enough(_) => {}
            }
            if let Some(bad) = bad.first() {
                return Err(faults::structure(self.dialect, bad, 0, text).byte(bad.at as u64));
            }
        };
        let width = index.width;
        let names = if self.header {
            let line = index.lines[0];
            let names = header_names(text, &index, &syntax, self.encoding).map_err(|error| error.line(line))?;
            index.clear();
            names
        } else {
            (0..width).map(column_name).collect()
        };
        scanner.set_width(Some(width));
        // Bad records will be rejected when they are read.
        if let Scanned::TooLong(_, open) = scanner.scan(text, next, complete, usize::MAX, &mut index, &mut bad) {
            return Err(faults::too_long(self.dialect, scanner.line(), open, text));
        }
        let chunk = Chunk { text, shared: None, index: &index, syntax: &syntax };
        let fields: Vec<_> = names
            .into_iter()
            .enumerate()
            .map(|(field, name)| Field::new(name, self.column_type(&chunk, field), true))
            .collect();
        Ok(Some(Arc::new(Schema::new(fields))))
    }

    /// Skips comments and empty lines from `next` to the first record. Returns where the second one begins.
    fn first_record(
        &self,
        text: &[u8],
        mut next: usize,
        complete: bool,
        scanner: &mut Scanner,
        index: &mut Index,
        bad: &mut Vec<super::scan::BadRecord>,
    ) -> Result<Option<usize>> {
        loop {
            match scanner.scan(text, next, complete, 1, index, bad) {
                Scanned::Enough(behind) if index.rows() > 0 => return Ok(Some(behind)),
                Scanned::Enough(behind) => next = behind,
                Scanned::TooLong(_, open) => return Err(faults::too_long(self.dialect, scanner.line(), open, text)),
                Scanned::Incomplete(_) => return Ok(None),
            }
            if let Some(bad) = bad.first() {
                return Err(faults::structure(self.dialect, bad, 0, text).byte(bad.at as u64));
            }
        }
    }

    /// The narrowest type of a column's values.
    fn column_type(&self, chunk: &Chunk<'_>, field: usize) -> DataType {
        let mut guess = TypeGuess::new(self.conventions);
        for row in 0..chunk.index.rows() {
            let raw = chunk.raw(row, field);
            let content = chunk.syntax.content(raw);
            if !chunk.syntax.is_null(content.text) {
                // A text with escapes is no number, date or boolean, whether they are undone or not.
                guess.see(content.text);
            }
        }
        guess.data_type()
    }
}

/// A sample's text as UTF-8.
pub(crate) fn decoded(sample: &Sample, encoding: Option<&'static Encoding>) -> Bytes {
    let mut decoder = ToUtf8::new(encoding);
    let text = decoder.push(sample.text.clone());
    // The end of the sample may cut a character.
    if !sample.complete && !text.is_empty() {
        return text;
    }
    let rest = decoder.finish();
    if rest.is_empty() { text } else { [text, rest].concat().into() }
}

/// The position after the first `count` lines.
pub(crate) fn behind_lines(text: &[u8], count: u64) -> usize {
    let mut position = 0;
    for _ in 0..count {
        match memchr::memchr2(b'\n', b'\r', &text[position..]) {
            None => return text.len(),
            Some(found) => {
                position += found + 1;
                if text[position - 1] == b'\r' && text.get(position) == Some(&b'\n') {
                    position += 1;
                }
            }
        }
    }
    position
}

/// The types that are tried, narrowest first.
fn candidates() -> [DataType; 7] {
    [
        DataType::Boolean,
        DataType::Int64,
        DataType::Float64,
        DataType::Date32,
        DataType::Timestamp(TimeUnit::Microsecond, None),
        DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        DataType::Time64(TimeUnit::Microsecond),
    ]
}

/// Which types all values seen so far have.
pub(crate) struct TypeGuess {
    alive: Vec<(DataType, Reader)>,
    seen: bool,
}

impl TypeGuess {
    /// Nothing seen yet.
    pub fn new(conventions: &Conventions) -> Self {
        let alive = candidates().into_iter().map(|data_type| {
            let reader = Reader::new(conventions, &data_type, None);
            (data_type, reader)
        });
        TypeGuess { alive: alive.collect(), seen: false }
    }

    /// Adds one value that is not null.
    pub fn see(&mut self, text: &[u8]) {
        self.seen = true;
        let text = trimmed(text);
        self.alive.retain(|(data_type, reader)| fits(text, data_type, reader));
    }

    /// The narrowest type of all values; the null type without values.
    pub fn data_type(&self) -> DataType {
        if !self.seen {
            return DataType::Null;
        }
        self.alive.first().map_or(TEXT, |(data_type, _)| data_type.clone())
    }
}

fn fits(text: &[u8], data_type: &DataType, reader: &Reader) -> bool {
    match data_type {
        DataType::Boolean => reader.boolean(text).is_ok(),
        DataType::Int64 => reader.signed(text).is_ok() && is_bare(text) && text != b"-0",
        DataType::Float64 if reader.is_plain() && is_short_decimal(text) => true,
        DataType::Float64 => {
            text.iter().any(u8::is_ascii_digit)
                && is_bare(text)
                && !is_short_power(text)
                && reader.float64(text).is_ok_and(|value| keeps_digits(text, value))
                && (!is_whole(text) || reader.signed(text).is_ok())
        }
        DataType::Date32 => reader.date(text).is_ok(),
        DataType::Timestamp(_, zone) => reader.timestamp(text, zone.is_some()).is_ok(),
        _ => reader.time(text).is_ok(),
    }
}

/// Whether it is a number such as `-12.50`, with so few digits that a float64 keeps them: most numbers are.
fn is_short_decimal(text: &[u8]) -> bool {
    let unsigned = text.strip_prefix(b"-").unwrap_or(text);
    let whole = unsigned.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let is_whole_sound = whole == 1 || (whole > 1 && unsigned[0] != b'0');
    let is_fraction_sound = match &unsigned[whole..] {
        [] => true,
        [b'.', fraction @ ..] => !fraction.is_empty() && fraction.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    text.len() <= 15 && is_whole_sound && is_fraction_sound
}

/// Whether a number has neither a leading plus nor a leading zero, which would be lost.
fn is_bare(text: &[u8]) -> bool {
    !text.starts_with(b"+") && !matches!(unsigned(text), [b'0', digit, ..] if digit.is_ascii_digit())
}

/// Whether it is a whole number with an exponent that has no sign: `1e5` is as likely a name.
fn is_short_power(text: &[u8]) -> bool {
    let Some(at) = memchr::memchr2(b'e', b'E', text) else { return false };
    is_whole(&text[..at]) && text[at + 1..].iter().all(u8::is_ascii_digit)
}

/// All whole numbers up to this one are exact as a float64.
const EXACT: f64 = (1_u64 << 53) as f64;

/// Whether `value`, written with as many digits as `text` has, has the same digits; signs between them do not count.
pub(crate) fn keeps_digits(text: &[u8], value: f64) -> bool {
    if is_whole(text) && value.abs() > EXACT {
        return false;
    }
    // A float64 keeps any 15 digits.
    if text.len() <= 15 {
        return true;
    }
    let mantissa = &text[..memchr::memchr2(b'e', b'E', text).unwrap_or(text.len())];
    let digits = significant(mantissa);
    digits.len() <= 15
        || significant(format!("{value:.*e}", digits.len() - 1).split('e').next().unwrap_or("").as_bytes()) == digits
}

/// The digits of a number without the zeros at both ends.
fn significant(number: &[u8]) -> Vec<u8> {
    let mut digits: Vec<u8> =
        number.iter().copied().filter(u8::is_ascii_digit).skip_while(|digit| *digit == b'0').collect();
    digits.truncate(digits.iter().rposition(|digit| *digit != b'0').map_or(0, |last| last + 1));
    digits
}

fn unsigned(text: &[u8]) -> &[u8] {
    match text {
        [b'+' | b'-', rest @ ..] => rest,
        rest => rest,
    }
}

fn is_whole(text: &[u8]) -> bool {
    unsigned(text).iter().all(u8::is_ascii_digit)
}
