//! Keys and types from a sample.
//!
//! Every record of the sample adds to the shapes of its values; at the end each shape is the narrowest type that holds
//! all of them. Texts stay texts, even if they look like dates or numbers.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use millstream_core::format::{Sample, TEXT};
use millstream_core::{Error, Result};

use super::cursor::{Cursor, Fault, Kind};
use super::parser::text_of;
use super::records::{Splitter, line_of};
use super::spec::Layout;
use crate::csv::infer::keeps_digits;

/// An object inside a record with more keys than this is used as a dictionary: it is taken as text.
const MOST_KEYS: usize = 500;

/// The columns of all samples. A key that only some samples have is a column of all: in JSON a key may be missing.
pub fn infer(samples: &[Sample], layout: Layout, max_record: usize) -> Result<SchemaRef> {
    let mut record = Object::default();
    let mut records = 0;
    let mut fault = None;
    for sample in samples {
        records += look_at(sample, layout, max_record, &mut record, &mut fault)?;
    }
    if records == 0 {
        let uri = samples.first().map(|sample| sample.uri.as_str()).unwrap_or_default();
        let error = fault.unwrap_or_else(|| Error::data("the sample has no records to take columns from"));
        let error = if error.hint_text().is_none() { error.hint("declare `columns`") } else { error };
        return Err(error.in_unit(uri, None));
    }
    if record.keys.is_empty() {
        let uri = samples.first().map(|sample| sample.uri.as_str()).unwrap_or_default();
        let error = Error::data("the objects of the sample have no keys to take columns from");
        return Err(error.in_unit(uri, None).hint("declare `columns`"));
    }
    Ok(Arc::new(Schema::new(record.fields())))
}

/// Adds the records of one sample to `object`. Returns their number; the first fault is kept.
fn look_at(
    sample: &Sample,
    layout: Layout,
    max_record: usize,
    object: &mut Object,
    first_fault: &mut Option<Error>,
) -> Result<usize> {
    let mut splitter = Splitter::new(layout, max_record);
    let mut records = 0;
    let mut scratch = String::new();
    let mut fault = None;
    let mut take = |record: super::records::Record<'_>| {
        // The parser reports faulty records; here they are skipped, so a record is validated before it is used.
        let learned = text_of(record, max_record as u64).and_then(|text| {
            check(text, &mut scratch)?;
            object.read(&mut Cursor::new(text), &mut scratch)
        });
        match learned {
            Ok(()) => records += 1,
            Err(found) if fault.is_none() => {
                let line = line_of(record.text, found.at(), record.line);
                fault = Some(found.into_error(record.byte, line));
            }
            Err(_) => {}
        }
        Ok(())
    };
    let mut outcome = splitter.push(&sample.text, &mut take);
    if outcome.is_ok() && sample.complete {
        outcome = splitter.finish(&mut take);
    }
    let fault = outcome.err().or(fault);
    let fault = match fault {
        None if records == 0 && !sample.complete && !sample.text.is_empty() => {
            Some(Error::data(format!("the first record is longer than the sample of {} bytes", sample.text.len())))
        }
        other => other,
    };
    if let (None, Some(fault)) = (&first_fault, fault) {
        *first_fault = Some(fault.in_unit(&sample.uri, None));
    }
    Ok(records)
}

/// Whether the text is one object.
fn check(text: &str, scratch: &mut String) -> Result<(), Fault> {
    let mut cursor = Cursor::new(text);
    let kind = cursor.kind()?;
    cursor.skip(scratch)?;
    if kind != Kind::Object {
        return Err(Fault::new(0, format!("the record is {}, not an object", kind.name())).text(text));
    }
    cursor.end()
}

/// A float64 holds every whole number up to this one: 2^53.
const EXACT_WHOLE: u64 = 1 << 53;

/// The values seen at one position.
#[derive(Debug, Clone, Default)]
struct Shape {
    truth: bool,
    integer: bool,
    negative: bool,
    /// Whole numbers beyond int64.
    large: bool,
    /// Whole numbers beyond uint64.
    huge: bool,
    float: bool,
    /// Numbers with more digits than a float64 keeps: whole ones above 2^53, and long fractions.
    long: bool,
    text: bool,
    list: Option<Box<Shape>>,
    object: Option<Object>,
}

/// The keys seen at one position, in the order of their first appearance.
#[derive(Debug, Clone, Default)]
struct Object {
    keys: Vec<(String, Shape)>,
    index: HashMap<String, usize>,
}

impl Object {
    fn read(&mut self, cursor: &mut Cursor<'_>, scratch: &mut String) -> Result<(), Fault> {
        cursor.kind()?;
        cursor.open_object()?;
        let mut key = String::new();
        let mut first = true;
        while let Some(name) = cursor.key(first, &mut key)? {
            first = false;
            let index = match self.index.get(name) {
                Some(index) => *index,
                None => {
                    self.index.insert(name.to_owned(), self.keys.len());
                    self.keys.push((name.to_owned(), Shape::default()));
                    self.keys.len() - 1
                }
            };
            self.keys[index].1.read(cursor, scratch)?;
        }
        Ok(())
    }

    fn fields(&self) -> Fields {
        self.keys.iter().map(|(name, shape)| Field::new(name, shape.data_type(), true)).collect()
    }
}

impl Shape {
    fn read(&mut self, cursor: &mut Cursor<'_>, scratch: &mut String) -> Result<(), Fault> {
        match cursor.kind()? {
            Kind::Null => {
                cursor.null()?;
            }
            Kind::Bool => {
                cursor.truth()?;
                self.truth = true;
            }
            Kind::Text => {
                cursor.string(scratch)?;
                self.text = true;
            }
            Kind::Number => self.number(cursor.number()?),
            Kind::List => {
                cursor.open_list()?;
                let items = self.list.get_or_insert_default();
                let mut first = true;
                while cursor.item(first)? {
                    first = false;
                    items.read(cursor, scratch)?;
                }
            }
            Kind::Object => self.object.get_or_insert_default().read(cursor, scratch)?,
        }
        Ok(())
    }

    fn number(&mut self, text: &str) {
        self.negative |= text.starts_with('-');
        if text.contains(['.', 'e', 'E']) {
            self.float = true;
            self.long |= text.parse().is_ok_and(|value| !keeps_digits(text.as_bytes(), value));
        } else if let Ok(whole) = text.parse::<i64>() {
            self.integer = true;
            self.long |= whole.unsigned_abs() > EXACT_WHOLE;
        } else {
            self.long = true;
            match text.parse::<u64>() {
                Ok(_) => self.large = true,
                Err(_) => self.huge = true,
            }
        }
    }

    /// The narrowest type for all values seen.
    fn data_type(&self) -> DataType {
        let number = self.integer || self.large || self.huge || self.float;
        let kinds = [self.truth, number, self.text, self.list.is_some(), self.object.is_some()];
        if kinds.iter().filter(|seen| **seen).count() != 1 {
            return TEXT;
        }
        if let Some(items) = &self.list {
            return DataType::List(Arc::new(Field::new_list_field(items.data_type(), true)));
        }
        match &self.object {
            Some(object) if object.keys.is_empty() || object.keys.len() > MOST_KEYS => TEXT,
            Some(object) => DataType::Struct(object.fields()),
            None if self.truth => DataType::Boolean,
            None if number => self.number_type(),
            None => TEXT,
        }
    }

    fn number_type(&self) -> DataType {
        match (self.float, self.huge, self.large) {
            // As text they keep their digits, too.
            (true, _, _) if self.long => TEXT,
            (true, _, _) => DataType::Float64,
            // Whole numbers that no integer type holds are often identifiers: as text they keep their digits.
            (false, true, _) => TEXT,
            (false, false, true) if self.negative => TEXT,
            (false, false, true) => DataType::UInt64,
            (false, false, false) => DataType::Int64,
        }
    }
}
