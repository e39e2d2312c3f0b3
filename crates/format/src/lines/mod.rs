//! The lines format: one column, `line`.

mod parse;
pub mod spec;
mod write;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use encoding_rs::Encoding;
use millstream_core::format::{
    Doubt, Format, OnDrift, ParseRequest, Parser, Reading, RowEncoder, Sample, Splitter, StreamFormat, TEXT,
    TextPosition,
};
use millstream_core::registry::{Built, FormatEntry};
use millstream_core::spec::{Fault, SpecInfo, parse};
use millstream_core::{Error, Result};
use serde_json::{Value, json};

use crate::encoding;
use crate::split::LineSplitter;
use millstream_core::columns::type_name;
use parse::LineParser;
use spec::LinesSpec;
use write::LineEncoder;

/// The name of the one column.
pub const LINE: &str = "line";

/// The format's entry in the registry.
pub const ENTRY: FormatEntry = FormatEntry {
    spec: SpecInfo::of::<LinesSpec>(),
    extensions: &[".txt", ".log", ".lines"],
    suggested: &|_| json!({}),
    // `text/plain` is what servers give to all that they do not know.
    by_content_type: &|_| None,
    build: &|settings| build_format(settings),
};

fn build_format(settings: &Value) -> Built<dyn Format> {
    let spec: LinesSpec = parse(settings)?;
    let lines = Lines::new(&spec).map_err(|error| vec![Fault::new("", error.what())])?;
    Ok(Arc::new(lines))
}

/// The lines format with its settings.
#[derive(Debug)]
pub struct Lines {
    encoding: Option<&'static Encoding>,
    max_record: usize,
}

impl Lines {
    /// The format with checked settings. Settings that the check would refuse are an error.
    pub fn new(spec: &LinesSpec) -> Result<Self> {
        let by_label = |label: &str| {
            encoding::by_label(label)
                .map_err(|hint| Error::job("there is no encoding of that name").text(label).hint(hint))
        };
        Ok(Lines {
            encoding: spec.encoding.as_deref().map(by_label).transpose()?,
            max_record: usize::try_from(spec.max_record.0.min(spec::MAX_RECORD)).unwrap_or(usize::MAX),
        })
    }
}

impl Default for Lines {
    /// The format without settings.
    fn default() -> Self {
        Lines { encoding: None, max_record: usize::try_from(LinesSpec::default().max_record.0).unwrap_or(usize::MAX) }
    }
}

impl Format for Lines {
    fn name(&self) -> &'static str {
        "lines"
    }

    fn declared(&self) -> Option<SchemaRef> {
        Some(Arc::new(Schema::new(vec![Field::new(LINE, TEXT, true)])))
    }

    fn reading(&self) -> Reading<'_> {
        Reading::Stream(self)
    }

    fn splittable(&self) -> bool {
        true
    }

    fn encoder(&self, schema: SchemaRef, _begin: bool) -> Result<Box<dyn RowEncoder>> {
        if self.encoding.is_some_and(|encoding| encoding != encoding_rs::UTF_8) {
            return Err(Error::job("lines are written as UTF-8").hint("leave `encoding` out of the sink's lines block"));
        }
        let [column] = &schema.fields()[..] else {
            let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
            return Err(Error::job(format!("lines are written from one column, and there are {}", names.len()))
                .text(names.join(", "))
                .hint("select one column of text, or write csv or json"));
        };
        if write::is_text(column.data_type()) {
            return Ok(Box::new(LineEncoder));
        }
        let what = format!("lines are written from a column of text, and it is {}", type_name(column.data_type()));
        Err(Error::job(what).column(column.name()).hint("convert it to text in SQL, or write csv or json"))
    }
}

impl StreamFormat for Lines {
    fn infer(&self, _samples: &[Sample], _on_drift: OnDrift) -> Result<SchemaRef> {
        Ok(Arc::new(Schema::new(vec![Field::new(LINE, TEXT, true)])))
    }

    fn parser(&self, request: &ParseRequest) -> Result<Box<dyn Parser>> {
        let [column] = &request.schema.fields()[..] else {
            return Err(Error::job("lines have one column, `line`"));
        };
        if *column.data_type() != TEXT {
            return Err(Error::job("lines have one column of text, `line`").text(type_name(column.data_type())));
        }
        Ok(Box::new(LineParser::new(request, self.encoding, self.max_record)?))
    }

    fn doubt_literal(&self, literal: &str) -> Option<Doubt> {
        literal.contains('\n').then(|| Doubt {
            what: "a line has no line end in it, so none contains this text".to_owned(),
            hint: "ask for the text of one line; `all` takes several texts".to_owned(),
        })
    }

    fn reads_any_text(&self) -> bool {
        true
    }

    fn rows_are_as_large_as_text(&self) -> bool {
        true
    }

    fn splitter(&self, head: &[u8]) -> Option<Box<dyn Splitter>> {
        encoding::utf8_mark(self.encoding, head)?;
        Some(Box::new(LineSplitter::new(self.max_record, false)))
    }

    fn splitter_behind(&self, head: &[u8], at: TextPosition) -> Option<Box<dyn Splitter>> {
        encoding::utf8_mark(self.encoding, head)?;
        Some(Box::new(LineSplitter::behind(at, self.max_record)))
    }
}
