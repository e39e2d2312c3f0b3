//! The JSON format: objects, one a line, in an array, or one after the other.
//!
//! ```text
//!  text ─ records.rs ─▶ records ─ parser.rs ─▶ cursor.rs + builders.rs (convert.rs) ─▶ batches ─ writer.rs ─▶ text
//!                                                 └─ quick.rs
//! ```
//! This file only ties the parts together. `path.rs` finds values inside of JSON texts, for SQL.

mod builders;
mod convert;
mod cursor;
mod infer;
mod parser;
pub mod path;
mod quick;
mod records;
mod spec;
mod writer;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use millstream_core::format::{
    Doubt, Format, OnDrift, ParseRequest, Parser, Reading, RowEncoder, Sample, Splitter, StreamFormat, TextPosition,
};
use millstream_core::registry::{Built, FormatEntry, is_content_type};
use millstream_core::spec::{self as core_spec, Fault, SpecInfo};
use millstream_core::{Error, Result};
use serde_json::Value;

pub use self::spec::{Decimals, JsonSpec, Layout, Nulls};
use crate::contains::has_inner_quote;
use crate::split::LineSplitter;
use millstream_core::columns::{Column, schema_of};

/// The format's entry in the registry.
pub const ENTRY: FormatEntry = FormatEntry {
    spec: SpecInfo::of::<JsonSpec>(),
    extensions: &[".json", ".jsonl", ".ndjson"],
    suggested: &|_| Value::Object(serde_json::Map::new()),
    by_content_type: &|value| is_content_type(value, CONTENT_TYPES).then(|| Value::Object(serde_json::Map::new())),
    build: &|settings| {
        let spec: JsonSpec = core_spec::parse(settings)?;
        let built: Built<dyn Format> = Ok(Arc::new(JsonFormat::new(spec)?));
        built
    },
};

/// The content types of JSON, also where each line is a value.
const CONTENT_TYPES: &[&str] = &[
    "application/json",
    "application/x-ndjson",
    "application/ndjson",
    "application/jsonl",
    "application/x-jsonl",
    "application/jsonlines",
    "application/x-jsonlines",
    "application/json-lines",
];

/// JSON with its settings.
#[derive(Debug)]
pub struct JsonFormat {
    spec: JsonSpec,
    columns: Vec<Column>,
}

impl JsonFormat {
    /// The format with these settings, or all their faults.
    pub fn new(spec: JsonSpec) -> Result<Self, Vec<Fault>> {
        let columns = spec.columns.resolve().map_err(|_| spec.columns.check("columns"))?;
        Ok(JsonFormat { spec, columns })
    }

    /// The most bytes of one record.
    fn max_record(&self) -> usize {
        usize::try_from(self.spec.max_record.0).unwrap_or(usize::MAX)
    }
}

/// Whether a JSON text may have this character as an escape, beside the quote.
fn is_escapable(one: char) -> bool {
    matches!(one, '/' | '\\') || one.is_control() || !one.is_ascii()
}

impl Format for JsonFormat {
    fn name(&self) -> &'static str {
        "json"
    }

    fn declared(&self) -> Option<SchemaRef> {
        (!self.columns.is_empty()).then(|| schema_of(&self.columns))
    }

    fn reading(&self) -> Reading<'_> {
        Reading::Stream(self)
    }

    fn splittable(&self) -> bool {
        self.spec.layout != Layout::Array
    }

    fn encoder(&self, schema: SchemaRef, begin: bool) -> Result<Box<dyn RowEncoder>> {
        if !begin && !self.splittable() {
            return Err(Error::internal("a json array was asked for in pieces"));
        }
        Ok(Box::new(writer::JsonEncoder::new(&self.spec, &schema)?))
    }
}

impl StreamFormat for JsonFormat {
    /// In JSON a key may be missing, so the columns are the keys of all samples, whatever `on_drift` says.
    fn infer(&self, samples: &[Sample], _on_drift: OnDrift) -> Result<SchemaRef> {
        infer::infer(samples, self.spec.layout, self.max_record())
    }

    fn parser(&self, request: &ParseRequest) -> Result<Box<dyn Parser>> {
        Ok(Box::new(parser::JsonParser::new(self, request)?))
    }

    fn doubt_literal(&self, literal: &str) -> Option<Doubt> {
        let is_border = |one: char| ":,{}[]".contains(one);
        let (what, written) = match literal.chars().find(|one| is_escapable(*one)) {
            Some('/') => ("/".to_owned(), "`\\/`".to_owned()),
            Some('\\') => ("\\".to_owned(), "`\\\\`".to_owned()),
            Some(one) if one.is_control() => {
                (format!("U+{:04X}", u32::from(one)), format!("`\\u{:04x}`", u32::from(one)))
            }
            Some(one) => (one.to_string(), format!("`\\u{:04x}`", one.encode_utf16(&mut [0; 2])[0])),
            None if has_inner_quote(literal, '"', is_border) => ("\"".to_owned(), "`\\\"`".to_owned()),
            None => return None,
        };
        Some(Doubt {
            what: format!("JSON may write `{what}` in a text as {written}, and `contains` compares bytes"),
            hint: "search for a part of the text without it, or give both ways to write it in `any`".to_owned(),
        })
    }

    fn record_length(&self, _header: &[u8], text: &[u8], _request: &ParseRequest) -> usize {
        let mut values = serde_json::Deserializer::from_slice(text).into_iter::<serde::de::IgnoredAny>();
        match values.next() {
            Some(Ok(_)) => values.byte_offset(),
            _ => text.len(),
        }
    }

    fn file_of_record(&self, header: &[u8], record: &[u8]) -> Vec<u8> {
        match self.spec.layout {
            Layout::Array => [b"[", record, b"]\n"].concat(),
            _ => [header, record, b"\n"].concat(),
        }
    }

    /// Only for lines: in the other layouts the end of a record that is too long or lacks a bracket is not known until
    /// all of it has been read, and it would have to be kept until then. If the layout is not declared, the first line
    /// must be part of `head`.
    fn splitter(&self, head: &[u8]) -> Option<Box<dyn Splitter>> {
        let lines = records::is_lines(head, self.spec.layout, self.max_record());
        lines.then(|| {
            let splitter: Box<dyn Splitter> =
                Box::new(LineSplitter::new(self.max_record(), self.spec.layout == Layout::Auto));
            splitter
        })
    }

    fn splitter_behind(&self, head: &[u8], at: TextPosition) -> Option<Box<dyn Splitter>> {
        let lines = records::is_lines(head, self.spec.layout, self.max_record());
        lines.then(|| Box::new(LineSplitter::behind(at, self.max_record())) as Box<dyn Splitter>)
    }

    fn stands_before_record(&self, byte: u8) -> bool {
        cursor::is_space(byte)
    }
}
