//! Reads a sample with guessed settings, by the parser that a run will use, and compares the result with the text:
//! which records are not read, and which values change.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{
    DataType, Date32Type, Float64Type, Int64Type, Time64MicrosecondType, TimeUnit, TimestampMicrosecondType,
};
use bytes::Bytes;
use millstream_core::format::{Format, ParseRequest, Parsed, Reading, Sample, TEXT, Validate};
use millstream_core::registry::FormatEntry;
use millstream_core::{Error, Result};
use serde_json::Value;

use super::dialect::{Found, Item, Row};
use super::shown;
use super::types::{Cell, cells, syntax};
use crate::csv::Csv;
use crate::csv::spec::CsvSpec;
use millstream_core::columns::{Column, type_name};

/// How many of the records that are not read are quoted.
const MOST_QUOTED: usize = 3;

/// How many of the lines above the table are quoted.
const MOST_TITLES: usize = 10;

/// The result of reading the sample.
pub(super) struct Verdict {
    /// The columns with a changed value, and the first such value.
    pub changed: BTreeMap<usize, String>,
    /// What is not read, one sentence each.
    pub notes: Vec<String>,
}

/// Reads the sample `text`, in which `found` was found, as `spec` says.
pub(super) fn verify(text: &str, found: &Found, spec: &CsvSpec) -> Result<Verdict> {
    // The text is UTF-8 by now.
    let csv = Csv::new(&CsvSpec { encoding: None, ..spec.clone() })?;
    let columns = spec.columns.as_ref().map(|columns| columns.resolve()).transpose()?.unwrap_or_default();
    let mut parsed = Parsed::default();
    let failed = read(&csv, &text[..found.end], &mut parsed).err();
    let (lines, arrays) = rows_of(&parsed)?;
    let rejects: HashMap<u64, &Error> = parsed.rejects.iter().map(|reject| (reject.line, &reject.reason)).collect();
    let mut account = Account { text, spec, header_seen: false, notes: Notes::default() };
    for item in &found.items {
        match item {
            Item::Comment(line, place) => account.comment(*line, place.clone()),
            Item::Record(row) => account.record(row, lines.contains_key(&row.line), rejects.get(&row.line).copied()),
        }
    }
    let values = Values { text, found, spec, columns: &columns, lines: &lines, arrays: &arrays };
    let mut notes = account.notes.sentences(spec);
    notes.extend(failed.map(|error| format!("`run` stops in this file: {}", told(&error))));
    Ok(Verdict { changed: values.changed(), notes })
}

fn read(csv: &Csv, text: &str, parsed: &mut Parsed) -> Result<()> {
    let (Some(schema), Reading::Stream(reading)) = (csv.declared(), csv.reading()) else {
        return Err(Error::internal("guessed settings declare columns"));
    };
    let mut parser = reading.parser(&ParseRequest { lines: true, ..ParseRequest::all(schema) })?;
    parser.push(Bytes::copy_from_slice(text.as_bytes()), parsed)?;
    while parser.waits() {
        parser.push(Bytes::new(), parsed)?;
    }
    parser.finish(parsed)
}

/// What a format refuses of a sample, read with `settings`. A last record that may be cut is ignored.
pub(super) fn refused(entry: FormatEntry, settings: &Value, sample: &Sample) -> Result<Vec<String>> {
    let format = (entry.build)(settings).map_err(|_| Error::internal("the guessed settings are not valid"))?;
    let (Some(schema), Reading::Stream(reading)) = (format.declared(), format.reading()) else {
        return Ok(Vec::new());
    };
    let mut parsed = Parsed::default();
    let read = || {
        let mut parser = reading.parser(&ParseRequest { validate: Validate::All, ..ParseRequest::all(schema) })?;
        parser.push(sample.text.clone(), &mut parsed)?;
        if sample.complete { parser.finish(&mut parsed) } else { Ok(()) }
    };
    let failed = read().err();
    let mut notes = Notes { rejects: parsed.rejects.len(), ..Notes::default() };
    let quoted = parsed.rejects.iter().take(MOST_QUOTED);
    notes.rejected = quoted.map(|reject| told(&reject.reason)).collect();
    let mut said = notes.sentences(&CsvSpec::default());
    said.extend(failed.map(|error| format!("`run` stops in this file: {}", told(&error))));
    Ok(said)
}

/// The rows by the line on which each begins: the batch, and the index in it.
type Lines = HashMap<u64, (usize, usize)>;

fn rows_of(parsed: &Parsed) -> Result<(Lines, Vec<Vec<ArrayRef>>)> {
    let mut lines = Lines::new();
    let mut arrays = Vec::with_capacity(parsed.rows.len());
    for (batch, rows) in parsed.rows.iter().enumerate() {
        let numbers = rows.lines.as_ref().ok_or_else(|| Error::internal("lines were asked for"))?;
        let numbers = numbers.as_primitive::<Int64Type>();
        lines.extend(numbers.values().iter().enumerate().map(|(row, line)| (line.cast_unsigned(), (batch, row))));
        arrays.push(rows.batch.columns().to_vec());
    }
    Ok((lines, arrays))
}

fn told(error: &Error) -> String {
    let place = error.location().line.map_or(String::new(), |line| format!("line {line}: "));
    format!("{place}{}", error.what())
}

/// Goes through the sample, and notes what is not read.
struct Account<'a> {
    text: &'a str,
    spec: &'a CsvSpec,
    /// The record that holds the names has come.
    header_seen: bool,
    notes: Notes,
}

/// What is not read: the number, and the first items.
#[derive(Default)]
struct Notes {
    skipped: Vec<(u64, String)>,
    comments: Vec<(u64, String)>,
    rejected: Vec<String>,
    rejects: usize,
    unread: Vec<u64>,
}

impl Account<'_> {
    fn comment(&mut self, line: u64, place: Range<usize>) {
        if line > self.spec.skip_lines {
            self.notes.comments.push((line, self.text[place].trim_end().to_owned()));
        } else {
            self.skip(line, place.start);
        }
    }

    fn record(&mut self, row: &Row, is_read: bool, reject: Option<&Error>) {
        if row.line <= self.spec.skip_lines {
            self.skip(row.line, row.start);
        } else if self.spec.header && !self.header_seen {
            self.header_seen = true;
        } else if let Some(reason) = reject {
            self.notes.rejects += 1;
            if self.notes.rejected.len() < MOST_QUOTED {
                let line = self.line_at(row.start);
                self.notes.rejected.push(format!("line {}, `{}`: {}", row.line, shown(line), reason.what()));
            }
        } else if !is_read {
            self.notes.unread.push(row.line);
        }
    }

    fn skip(&mut self, line: u64, start: usize) {
        let text = self.line_at(start).to_owned();
        self.notes.skipped.push((line, text));
    }

    fn line_at(&self, start: usize) -> &str {
        self.text[start..].split(['\n', '\r']).next().unwrap_or("")
    }
}

impl Notes {
    fn sentences(mut self, spec: &CsvSpec) -> Vec<String> {
        let mut said = Vec::new();
        let lines = spec.skip_lines;
        if lines > 0 {
            let more = self.skipped.len().saturating_sub(MOST_TITLES);
            let skipped: Vec<String> =
                self.skipped.iter().take(MOST_TITLES).map(|(_, text)| format!("`{}`", shown(text))).collect();
            let more = if more > 0 { format!(", and {more} more") } else { String::new() };
            let what =
                if lines == 1 { "line 1 is skipped".to_owned() } else { format!("lines 1 to {lines} are skipped") };
            said.push(format!("{what}: {}{more}", skipped.join(", ")));
        }
        if let Some((line, text)) = self.comments.first() {
            let count = self.comments.len();
            let noun = if count == 1 { "line is" } else { "lines are" };
            said.push(format!(
                "{count} {noun} left out as comments, since they begin with `{}` and have another form; the first is \
                 line {line}: `{}`",
                spec.comment.as_deref().unwrap_or(""),
                shown(text)
            ));
        }
        if self.rejects > 0 {
            let count = self.rejects;
            said.push(format!(
                "{count} {} of this file cannot be read, and `run` stops at the first; `max_rejects` beside `read` \
                 allows \
                 them",
                if count == 1 { "record" } else { "records" }
            ));
            said.append(&mut self.rejected);
        }
        if !self.unread.is_empty() {
            let first: Vec<String> = self.unread.iter().take(MOST_TITLES).map(u64::to_string).collect();
            let lines = first.join(", ");
            said.push(match self.unread.len() {
                1 => format!("1 record is not read, on line {lines}"),
                count if count > MOST_TITLES => {
                    format!("{count} records are not read, on lines {lines}, and {} more", count - MOST_TITLES)
                }
                count => format!("{count} records are not read, on lines {lines}"),
            });
        }
        said
    }
}

/// Compares the values that were read with the fields.
struct Values<'a> {
    text: &'a str,
    found: &'a Found,
    spec: &'a CsvSpec,
    columns: &'a [Column],
    lines: &'a Lines,
    arrays: &'a [Vec<ArrayRef>],
}

impl Values<'_> {
    /// The columns with a changed or refused value, and the first such value.
    fn changed(&self) -> BTreeMap<usize, String> {
        let syntax = syntax(self.found);
        let mut changed = BTreeMap::new();
        let is_header = |row: &Row| {
            (self.spec.header && self.found.records.first().is_some_and(|first| first.line == row.line))
                || row.line <= self.spec.skip_lines
        };
        for row in self.found.records.iter().filter(|row| !is_header(row)) {
            let place = self.lines.get(&row.line);
            for (column, cell) in cells(self.text, row, &syntax).into_iter().enumerate() {
                let Some(declared) = self.columns.get(column) else { continue };
                let same = match place {
                    Some(&(batch, at)) => self.is_same(declared, &cell, &self.arrays[batch][column], at),
                    // It was refused because of a value, since its structure is valid.
                    None => declared.data_type == TEXT || self.reads(declared, &cell),
                };
                if !same {
                    changed.entry(column).or_insert(cell.text);
                }
            }
        }
        changed
    }

    fn is_null_text(&self, cell: &Cell) -> bool {
        self.spec.null.all().contains(&cell.text)
    }

    /// Whether a value of a refused record can be read alone.
    fn reads(&self, column: &Column, cell: &Cell) -> bool {
        let conventions = self.spec.conventions();
        let reader = crate::csv::values::Reader::new(&conventions, &column.data_type, column.format.as_deref());
        let text = cell.text.trim().as_bytes();
        let reads = match &column.data_type {
            DataType::Boolean => reader.boolean(text).is_ok(),
            DataType::Int64 => reader.signed(text).is_ok(),
            DataType::Float64 => reader.float64(text).is_ok(),
            DataType::Date32 => reader.date(text).is_ok(),
            DataType::Timestamp(_, zone) => reader.timestamp(text, zone.is_some()).is_ok(),
            _ => reader.time(text).is_ok(),
        };
        reads || self.is_null_text(cell)
    }

    fn is_same(&self, column: &Column, cell: &Cell, array: &ArrayRef, row: usize) -> bool {
        if array.is_null(row) {
            // Texts for null are named, and so is every column that they are in.
            return self.is_null_text(cell) && !(cell.quoted && column.data_type == TEXT);
        }
        let text = cell.text.trim();
        let plain = || self.plain_number(text);
        match &column.data_type {
            DataType::Boolean => {
                let words = if array.as_boolean().value(row) { &self.spec.true_texts } else { &self.spec.false_texts };
                words.all().iter().any(|word| word.eq_ignore_ascii_case(text))
            }
            DataType::Int64 => array.as_primitive::<Int64Type>().value(row).to_string() == plain(),
            DataType::Float64 => {
                let value = array.as_primitive::<Float64Type>().value(row);
                plain().parse::<f64>().is_ok_and(|expected| expected == value)
            }
            DataType::Utf8View => array.as_string_view().value(row) == cell.text,
            // The report already names the format.
            _ if column.format.is_some() => true,
            DataType::Date32 => {
                let mut written = Vec::new();
                crate::csv::time::write_date(array.as_primitive::<Date32Type>().value(row).into(), &mut written);
                written == text.as_bytes()
            }
            DataType::Timestamp(TimeUnit::Microsecond, zone) => {
                let value = array.as_primitive::<TimestampMicrosecondType>().value(row);
                crate::csv::time::timestamp(text.as_bytes()) == Ok((value, zone.is_some()))
            }
            DataType::Time64(TimeUnit::Microsecond) => {
                let value = array.as_primitive::<Time64MicrosecondType>().value(row);
                crate::csv::time::time(text.as_bytes()) == Ok(value)
            }
            other => {
                debug_assert!(false, "{} is never guessed", type_name(other));
                false
            }
        }
    }

    /// A number with a point before its fraction, and nothing between its thousands.
    fn plain_number(&self, text: &str) -> String {
        let plain = self.spec.thousands.as_deref().map_or_else(|| text.to_owned(), |sign| text.replace(sign, ""));
        plain.replace(self.spec.decimal.as_str(), ".")
    }
}
