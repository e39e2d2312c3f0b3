//! The csv format: reading, writing and the types of a sample.
//!
//! | file | owns |
//! |---|---|
//! | `spec` | what a job file may say |
//! | `marks`, `scan` | where records and fields are |
//! | `bits`, `sweep` | the same, quickly, where records are plain |
//! | `values`, `time` | the text of a field as a value |
//! | `build` | values as arrays |
//! | `parse` | pushed text to batches and rejects |
//! | `split` | pieces of a text that can be parsed separately |
//! | `single` | one record cut out of a text |
//! | `doubt` | what a sample says against the defaults |
//! | `faults` | messages about bad records and values |
//! | `infer` | the columns of a sample |
//! | `write` | batches to text |

mod bits;
mod build;
mod doubt;
mod faults;
pub(crate) mod infer;
mod marks;
mod parse;
pub(crate) mod scan;
mod single;
pub mod spec;
mod split;
mod sweep;
pub(crate) mod time;
pub(crate) mod values;
mod write;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use encoding_rs::Encoding;
use millstream_core::format::{
    Defaults, Doubt, Format, OnDrift, ParseRequest, Parsed, Parser, Reading, RowEncoder, Sample, Splitter,
    StreamFormat, TextPosition,
};
use millstream_core::registry::{Built, FormatEntry, is_content_type};
use millstream_core::spec::{Fault, SpecInfo, parse};
use millstream_core::{Error, Result};
use serde_json::{Value, json};

use crate::contains::{Search, has_inner_quote};
use crate::drift::{Types, merge};
use crate::encoding;
use crate::split::LineSplitter;
use infer::{Inference, decoded};
use millstream_core::columns::{Column, schema_of};
use parse::{CsvParser, Plan};
use spec::{Conventions, CsvSpec, Dialect};
use split::CsvSplitter;
use write::CsvEncoder;

pub(crate) use build::Texts;

/// The format's entry in the registry.
pub const ENTRY: FormatEntry = FormatEntry {
    spec: SpecInfo::of::<CsvSpec>(),
    extensions: &[".csv", ".tsv", ".tab", ".psv"],
    suggested: &|ending| match ending {
        ".tsv" | ".tab" => json!({"delimiter": "\t"}),
        ".psv" => json!({"delimiter": "|"}),
        _ => json!({}),
    },
    by_content_type: &by_content_type,
    build: &|settings| build_format(settings),
};

/// The settings of `text/csv; header=absent` and its like.
fn by_content_type(value: &str) -> Option<Value> {
    let mut settings = match value {
        value if is_content_type(value, &["text/csv", "application/csv"]) => json!({}),
        value if is_content_type(value, &["text/tab-separated-values"]) => json!({"delimiter": "\t"}),
        _ => return None,
    };
    // The only parameter of RFC 4180 that matters here. Charsets are often wrong, and wrong bytes are seen.
    if value.split(';').skip(1).any(|part| part.trim().eq_ignore_ascii_case("header=absent")) {
        settings["header"] = Value::Bool(false);
    }
    Some(settings)
}

fn build_format(settings: &Value) -> Built<dyn Format> {
    let spec: CsvSpec = parse(settings)?;
    let csv = Csv::new(&spec).map_err(|error| vec![Fault::new("", error.what())])?;
    Ok(Arc::new(csv))
}

/// The csv format with its settings.
#[derive(Debug)]
pub struct Csv {
    dialect: Dialect,
    conventions: Conventions,
    encoding: Option<&'static Encoding>,
    header: bool,
    skip_lines: u64,
    columns: Option<Vec<Column>>,
}

impl Csv {
    /// The format with checked settings. Settings that the check would refuse are an error.
    pub fn new(spec: &CsvSpec) -> Result<Self> {
        Ok(Csv {
            dialect: spec.dialect()?,
            conventions: spec.conventions(),
            encoding: spec.encoding()?,
            header: spec.header,
            skip_lines: spec.skip_lines,
            columns: spec.columns.as_ref().map(|columns| columns.resolve()).transpose()?,
        })
    }

    fn csv_parser(&self, request: &ParseRequest) -> Result<CsvParser> {
        CsvParser::new(Plan {
            dialect: self.dialect.clone(),
            conventions: self.conventions.clone(),
            encoding: self.encoding,
            header: self.header,
            skip_lines: self.skip_lines,
            formats: self.formats(&request.schema),
            contains: Search::new(&request.contains)?,
            request: request.clone(),
        })
    }

    /// The strftime formats that the columns of `schema` were declared with.
    fn formats(&self, schema: &SchemaRef) -> Vec<Option<String>> {
        let declared = self.columns.as_deref().unwrap_or_default();
        let format =
            |name: &str| declared.iter().find(|column| column.name == name).and_then(|column| column.format.clone());
        schema.fields().iter().map(|field| format(field.name())).collect()
    }
}

impl Format for Csv {
    fn name(&self) -> &'static str {
        "csv"
    }

    fn declared(&self) -> Option<SchemaRef> {
        self.columns.as_deref().map(schema_of)
    }

    fn reading(&self) -> Reading<'_> {
        Reading::Stream(self)
    }

    fn splittable(&self) -> bool {
        true
    }

    fn encoder(&self, schema: SchemaRef, begin: bool) -> Result<Box<dyn RowEncoder>> {
        if self.skip_lines > 0 {
            return Err(Error::job("`skip_lines` is for reading").hint("leave it out of the sink's csv block"));
        }
        if self.encoding.is_some_and(|encoding| encoding != encoding_rs::UTF_8) {
            return Err(Error::job("csv is written as UTF-8").hint("leave `encoding` out of the sink's csv block"));
        }
        let formats = self.formats(&schema);
        let encoder =
            CsvEncoder::new(self.dialect.clone(), self.conventions.clone(), &schema, formats, begin && self.header)?;
        Ok(Box::new(encoder))
    }
}

impl StreamFormat for Csv {
    fn infer(&self, samples: &[Sample], on_drift: OnDrift) -> Result<SchemaRef> {
        let inference = Inference {
            dialect: &self.dialect,
            conventions: &self.conventions,
            encoding: self.encoding,
            header: self.header,
            skip_lines: self.skip_lines,
        };
        let mut files = Vec::with_capacity(samples.len());
        for sample in samples {
            if let Some(schema) = inference.columns(sample)? {
                files.push((sample.uri.clone(), schema));
            }
        }
        if files.is_empty() {
            let no_text = samples.iter().all(|sample| sample.complete && decoded(sample, self.encoding).is_empty());
            let error = faults::no_columns(no_text, samples.len());
            return Err(match samples {
                [only] => error.in_unit(&only.uri, None),
                _ => error,
            });
        }
        let misfit = self.header.then(|| faults::divided_otherwise(&self.dialect, &files)).flatten();
        misfit.map_or(Ok(()), Err)?;
        merge(&files, on_drift, Types::Inferred)
    }

    fn parser(&self, request: &ParseRequest) -> Result<Box<dyn Parser>> {
        Ok(Box::new(self.csv_parser(request)?))
    }

    fn doubt_literal(&self, literal: &str) -> Option<Doubt> {
        let quote = char::from(self.dialect.quote?);
        let delimiter = std::str::from_utf8(&self.dialect.delimiter).ok()?;
        let is_border = |one: char| delimiter.contains(one) || one == '\n';
        has_inner_quote(literal, quote, is_border).then(|| Doubt {
            what: format!("CSV writes a {quote} inside of a field as {quote}{quote}, and `contains` compares bytes"),
            hint: "search for a part of the text without it, or filter in SQL".to_owned(),
        })
    }

    fn fits(&self, sample: &Sample, request: &ParseRequest) -> Result<()> {
        let mut parser = self.csv_parser(request)?;
        let mut parsed = Parsed::default();
        parser.push(sample.text.clone(), &mut parsed)?;
        if sample.complete {
            parser.finish(&mut parsed)?;
        }
        parser.end_of_misfit()?;
        // With a header, its names have shown it.
        if self.header {
            return Ok(());
        }
        let width = request.schema.fields().len();
        let other = faults::other_width(&self.dialect, &decoded(sample, self.encoding), self.skip_lines, width);
        other.map_or(Ok(()), Err)
    }

    fn rows_are_as_large_as_text(&self) -> bool {
        true
    }

    fn needs_header(&self) -> bool {
        self.header
    }

    fn header_length(&self, beginning: &[u8], request: &ParseRequest) -> usize {
        single::starts(self, beginning, request).and_then(|starts| starts.into_iter().min()).unwrap_or(0)
    }

    fn record_length(&self, header: &[u8], text: &[u8], request: &ParseRequest) -> usize {
        let starts = single::starts(self, &[header, text].concat(), request);
        let second = starts.into_iter().flatten().filter(|start| *start > header.len()).min();
        second.map_or(text.len(), |start| start - header.len())
    }

    fn defaults(&self, settings: &Value, columns: &Schema) -> Defaults {
        doubt::defaults(settings, columns)
    }

    fn doubt(&self, name: &str, settings: &Value, columns: &Schema, sample: &Sample, plausible: bool) -> Option<Doubt> {
        doubt::doubt(name, settings, columns, sample, plausible)
    }

    fn splitter(&self, head: &[u8]) -> Option<Box<dyn Splitter>> {
        let mark = encoding::utf8_mark(self.encoding, head)?;
        Some(Box::new(CsvSplitter::new(self.dialect.clone(), self.header, self.skip_lines, mark)))
    }

    fn splitter_behind(&self, head: &[u8], at: TextPosition) -> Option<Box<dyn Splitter>> {
        encoding::utf8_mark(self.encoding, head)?;
        let first_end = memchr::memchr2(b'\r', b'\n', head)?;
        let in_feeds = head[first_end] == b'\n' || head.get(first_end + 1) == Some(&b'\n');
        if self.dialect.comment.is_some() {
            return None;
        }
        // The parser has to know the header, and what stands before it.
        let is_whole = memchr::memchr_iter(b'\n', head).count() as u64 > self.skip_lines + u64::from(self.header);
        let in_lines = self.dialect.quote.is_none() && in_feeds && is_whole;
        in_lines.then(|| Box::new(LineSplitter::behind(at, self.dialect.max_record)) as Box<dyn Splitter>)
    }
}
