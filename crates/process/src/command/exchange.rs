//! How rows go to a program and back.

use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::SchemaRef;
use arrow_ipc::writer::StreamWriter;
use millstream_core::format::{Format, Reading, RowEncoder, StreamFormat, TEXT};
use millstream_core::transform::Per;
use millstream_core::{Error, Result};

use crate::arrow_rows::{common_schema, in_common_types};

/// The form of rows between Millstream and a program.
#[derive(Debug, Clone)]
pub enum Exchange {
    /// Records of a text.
    Text(Records, Arc<dyn Format>),
    /// The stream form of Arrow IPC.
    Arrow,
}

/// What ends a record of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Records {
    /// A line end; the line is the record.
    Lines,
    /// A line end that is not between quotes. The first record is the header.
    Csv,
    /// A line end.
    Json,
}

impl Exchange {
    /// The format of a text.
    pub(super) fn text(&self) -> Result<(Records, &dyn StreamFormat)> {
        match self {
            Exchange::Text(records, format) => match format.reading() {
                Reading::Stream(format) => Ok((*records, format)),
                _ => Err(Error::internal("an exchange with a format that is no text")),
            },
            Exchange::Arrow => Err(Error::internal("an exchange that is no text")),
        }
    }
}

/// Writes rows.
pub struct Encoder(Form);

enum Form {
    Text { records: Records, per: Per, encoder: Box<dyn RowEncoder>, header: Vec<u8> },
    Arrow { writer: Box<StreamWriter<Vec<u8>>>, schema: SchemaRef },
}

impl Encoder {
    /// For rows with the columns `takes`, for a program that is called for `per`.
    ///
    /// # Errors
    /// If the exchange has no form for such columns.
    pub fn new(exchange: &Exchange, per: Per, takes: &SchemaRef) -> Result<Self> {
        match exchange {
            Exchange::Text(records, format) => {
                let mut encoder = format.encoder(Arc::clone(takes), true)?;
                let mut header = Vec::new();
                encoder.encode(&RecordBatch::new_empty(Arc::clone(takes)), &mut header)?;
                Ok(Encoder(Form::Text { records: *records, per, encoder, header }))
            }
            Exchange::Arrow => {
                let schema = common_schema(takes);
                let writer = StreamWriter::try_new(Vec::new(), &schema)
                    .map_err(|cause| Error::job("Arrow IPC has no form for these columns").cause(cause))?;
                Ok(Encoder(Form::Arrow { writer: Box::new(writer), schema }))
            }
        }
    }

    /// Adds what stands before all rows, once.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        match &mut self.0 {
            Form::Text { header, .. } => out.append(header),
            Form::Arrow { writer, .. } => out.append(writer.get_mut()),
        }
    }

    /// Adds `rows`.
    ///
    /// # Errors
    /// If a value has no form. What was added is to be forgotten then.
    pub fn rows(&mut self, rows: &RecordBatch, out: &mut Vec<u8>) -> Result<()> {
        match &mut self.0 {
            Form::Text { records, per, encoder, .. } => {
                match (records, per) {
                    (_, Per::Stream) | (Records::Lines, Per::Row) | (Records::Json, _) => {}
                    (Records::Lines, _) => no_empty_line(rows)?,
                    (Records::Csv, _) => no_lone_null(rows)?,
                }
                encoder.encode(rows, out)
            }
            Form::Arrow { writer, schema } => {
                let rows = in_common_types(rows, schema)?;
                let written = writer.write(&rows);
                let bytes = std::mem::take(writer.get_mut());
                written.map_err(|cause| Error::data("the rows have no form in Arrow IPC").cause(cause))?;
                out.extend(bytes);
                Ok(())
            }
        }
    }

    /// Adds `rows` as groups, each with its end: they end behind as many rows as `ends` says.
    ///
    /// # Errors
    /// If a value has no form. What was added is to be forgotten then.
    pub fn groups(&mut self, rows: &RecordBatch, ends: &[usize], out: &mut Vec<u8>) -> Result<()> {
        if let Form::Text { records, .. } = &self.0 {
            // Groups may be small, and encoding has a price for each call.
            let (records, mut text) = (*records, Vec::new());
            self.rows(rows, &mut text)?;
            return mark_ends(records, &text, ends, out);
        }
        let starts = std::iter::once(&0).chain(ends);
        for (start, end) in starts.zip(ends) {
            self.rows(&rows.slice(*start, end - start), out)?;
            self.end(out)?;
        }
        Ok(())
    }

    /// Adds the end of a batch or group.
    ///
    /// # Errors
    /// If an empty batch cannot be written.
    pub fn end(&mut self, out: &mut Vec<u8>) -> Result<()> {
        match &mut self.0 {
            Form::Text { .. } => out.push(b'\n'),
            Form::Arrow { schema, .. } => {
                let empty = RecordBatch::new_empty(Arc::clone(schema));
                self.rows(&empty, out)?;
            }
        }
        Ok(())
    }

    /// Adds what stands behind all rows.
    ///
    /// # Errors
    /// If the end of a stream cannot be written.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<()> {
        match &mut self.0 {
            Form::Text { encoder, .. } => encoder.finish(out),
            Form::Arrow { writer, .. } => {
                writer.finish().map_err(|cause| Error::internal("the end of an Arrow stream").cause(cause))?;
                out.append(writer.get_mut());
                Ok(())
            }
        }
    }
}

/// Copies the records of `text`, with an empty line behind as many of them as each of `ends` says.
fn mark_ends(records: Records, text: &[u8], ends: &[usize], out: &mut Vec<u8>) -> Result<()> {
    out.reserve(text.len() + ends.len());
    let mut ends = ends.iter().peekable();
    let (mut begun, mut record, mut in_quotes) = (0, 0, false);
    let quote = if records == Records::Csv { b'"' } else { b'\n' };
    for at in memchr::memchr2_iter(b'\n', quote, text) {
        if text[at] == b'"' {
            in_quotes = !in_quotes;
        } else if !in_quotes {
            record += 1;
            if ends.next_if_eq(&&record).is_some() {
                out.extend_from_slice(&text[begun..=at]);
                out.push(b'\n');
                begun = at + 1;
            }
        }
    }
    match ends.next() {
        None => Ok(()),
        Some(_) => Err(Error::internal("the rows of groups are not as many records")),
    }
}

/// A null alone in its record is an empty line, which means something else.
fn no_lone_null(rows: &RecordBatch) -> Result<()> {
    let [column] = rows.columns() else { return Ok(()) };
    match column.null_count() {
        0 => Ok(()),
        _ => Err(Error::data("a null alone in its record is an empty line in csv, which a program takes for none")
            .hint("leave such rows out before, or use `exchange: json`")),
    }
}

/// An empty line is the end of a batch.
fn no_empty_line(rows: &RecordBatch) -> Result<()> {
    let Some(column) = rows.columns().first() else { return Ok(()) };
    let column = cast(column, &TEXT).map_err(|cause| Error::internal("lines are not text").cause(cause))?;
    match column.as_string_view().iter().all(|text| text.is_some_and(|text| !text.is_empty())) {
        true => Ok(()),
        false => Err(Error::data("an empty text or null is no line: an empty line ends a batch or group")
            .hint("leave such rows out before, or use `exchange: csv` or `json`")),
    }
}

#[cfg(test)]
mod tests {
    use super::{Records, mark_ends};

    fn marked(records: Records, text: &str, ends: &[usize]) -> Option<String> {
        let mut out = Vec::new();
        mark_ends(records, text.as_bytes(), ends, &mut out).ok()?;
        Some(String::from_utf8(out).expect("UTF-8"))
    }

    #[test]
    fn groups_end_behind_their_records() {
        let three = "\"a\nb\",1\n\"\"\"\n\",2\nc,3\n";
        let expected = "\"a\nb\",1\n\"\"\"\n\",2\n\nc,3\n\n";
        assert_eq!(marked(Records::Csv, three, &[2, 3]).as_deref(), Some(expected));
        assert_eq!(marked(Records::Lines, "a\"\nb\nc\"\n", &[1, 3]).as_deref(), Some("a\"\n\nb\nc\"\n\n"));
        assert_eq!(marked(Records::Json, "{\"a\":1}\n", &[2]), None, "a record is missing");
    }
}
