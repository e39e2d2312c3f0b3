//! Rows as messages: some columns set the key, headers and time of a message, and the others are its body.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringViewArray, TimestampMillisecondArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Schema, SchemaRef, TimeUnit, TimestampMillisecondType};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use millstream_core::format::RowEncoder;
use millstream_core::hint::did_you_mean;
use millstream_core::sink::RefusedRow;
use millstream_core::types::type_name;
use millstream_core::{Error, RejectKind, Result};
use serde_json::{Map, Value};

use crate::encode::Encoding;

/// How many characters of a value a message about its row shows.
const SHOWN_CHARACTERS: usize = 40;

/// What a column sets of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Key,
    Headers,
    Time,
}

impl Part {
    pub(super) const ALL: [Part; 3] = [Part::Key, Part::Headers, Part::Time];

    /// The name of its column.
    pub(super) fn name(self) -> &'static str {
        match self {
            Part::Key => "_key",
            Part::Headers => "_headers",
            Part::Time => "_time",
        }
    }

    fn takes(self, data_type: &DataType) -> bool {
        match self {
            Part::Key | Part::Headers => {
                matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
            }
            Part::Time => matches!(data_type, DataType::Timestamp(..)),
        }
    }

    fn form(self) -> &'static str {
        match self {
            Part::Key => "the key of a message is text",
            Part::Headers => "the headers of a message are a JSON object, as text",
            Part::Time => "the time of a message is a timestamp",
        }
    }
}

/// A message that is to be sent.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Message {
    pub(super) key: Option<String>,
    pub(super) headers: Vec<(String, String)>,
    /// Milliseconds since 1970.
    pub(super) time: Option<i64>,
    /// What identifies it, if the queue is to take it once.
    pub(super) id: Option<String>,
    pub(super) body: Vec<u8>,
}

impl Message {
    /// About how many bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.len() + value.len());
        self.body.len() + self.key.as_ref().map_or(0, String::len) + headers.sum::<usize>()
    }
}

/// How the rows of a sink become messages.
#[derive(Debug, Clone)]
pub(super) struct Form {
    pub(super) encoding: Encoding,
    pub(super) parts: Vec<Part>,
    /// Names that no header may have: those of other fields.
    pub(super) taken: Vec<String>,
    /// The column that identifies a message.
    pub(super) id: Option<String>,
}

impl Form {
    /// What keeps rows of these columns from being messages.
    pub(super) fn faults(&self, schema: &SchemaRef) -> Vec<Error> {
        let columns = || schema.fields().iter().map(|field| format!("`{}`", field.name()));
        let fault = |part: &Part| match schema.column_with_name(part.name()) {
            None => {
                let what = format!("`add` names `{}`, which is not a column of the rows", part.name());
                let there = columns().collect::<Vec<_>>().join(", ");
                Some(Error::job(what).hint(format!("the columns are {there}; `add` of a source makes such a column")))
            }
            Some((_, field)) if !part.takes(field.data_type()) => {
                let what = format!("the column `{}` has the type {}", part.name(), type_name(field.data_type()));
                Some(Error::job(what).cause(part.form()).hint("convert it in a transform, or leave it out of `add`"))
            }
            Some(_) => None,
        };
        let mut faults: Vec<Error> = self.parts.iter().filter_map(fault).collect();
        faults.extend(self.id.as_ref().and_then(|id| self.fault_of_id(id, schema)));
        if self.body(schema).is_empty() {
            let error = Error::job("no column is left for the body of the messages");
            faults.push(error.hint("give the rows another column, or name fewer of them in `add`"));
        } else if let Err(error) = self.encoding.check(self.body_schema(schema)) {
            faults.push(error);
        }
        faults
    }

    fn fault_of_id(&self, id: &str, schema: &SchemaRef) -> Option<Error> {
        let fields = schema.fields();
        let Some((_, field)) = schema.column_with_name(id) else {
            let names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
            let what = format!("`id` names `{id}`, which is not a column of the rows");
            return Some(Error::job(what).hint(did_you_mean(id, "columns", &names)));
        };
        let kind = field.data_type();
        let is_id = Part::Key.takes(kind) || kind.is_integer();
        (!is_id).then(|| {
            Error::job(format!("`id` names `{id}`, which has the type {}", type_name(kind)))
                .cause("what identifies a message is text or an integer")
                .hint("convert it in a transform, or name another column")
        })
    }

    /// The columns of the body.
    fn body(&self, schema: &SchemaRef) -> Vec<usize> {
        let is_body = |name: &str| self.parts.iter().all(|part| part.name() != name);
        let fields = schema.fields().iter().enumerate();
        fields.filter(|(_, field)| is_body(field.name())).map(|(index, _)| index).collect()
    }

    fn body_schema(&self, schema: &SchemaRef) -> SchemaRef {
        let fields = self.body(schema).into_iter().map(|index| Arc::clone(&schema.fields()[index]));
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }

    /// In words, for `explain`.
    pub(super) fn describe(&self) -> String {
        let parts: Vec<&str> = self.parts.iter().map(|part| part.name()).collect();
        match parts.is_empty() {
            true => self.encoding.describe(),
            false => format!("{} ({} set beside it)", self.encoding.describe(), parts.join(", ")),
        }
    }

    /// What makes messages of rows of `schema`.
    pub(super) fn rows(&self, schema: &SchemaRef) -> Rows {
        let index = |part: &Part| Some((*part, schema.index_of(part.name()).ok()?));
        Rows {
            body: self.body(schema),
            schema: self.body_schema(schema),
            parts: self.parts.iter().filter_map(index).collect(),
            id: self.id.as_ref().and_then(|id| schema.index_of(id).ok()),
            columns: schema.fields().len(),
            encoder: None,
            form: self.clone(),
        }
    }
}

/// Makes messages of rows.
pub(super) struct Rows {
    form: Form,
    /// The columns of the body, and their schema.
    body: Vec<usize>,
    schema: SchemaRef,
    parts: Vec<(Part, usize)>,
    /// The column that identifies a message.
    id: Option<usize>,
    /// How many columns the sink has.
    columns: usize,
    encoder: Option<Box<dyn RowEncoder>>,
}

/// Rows as messages.
#[derive(Debug)]
pub(super) struct Encoded {
    pub(super) batch: RecordBatch,
    /// How many of its columns are the sink's.
    columns: usize,
    /// Each with the number of its row in the batch.
    pub(super) messages: Vec<(usize, Message)>,
    /// Rows that are none, with the number in the batch.
    pub(super) refused: Vec<RefusedRow>,
}

impl Encoded {
    /// Leaves out the rows with these numbers in the batch, and what was refused of them.
    pub(super) fn leave_out(&mut self, is_left_out: impl Fn(usize) -> bool) {
        self.messages.retain(|(row, _)| !is_left_out(*row));
        self.refused.retain(|refused| !usize::try_from(refused.row).is_ok_and(&is_left_out));
    }
}

impl Rows {
    /// The messages of the rows of `batch`, whose columns are those of the schema, and perhaps more.
    pub(super) fn encode(&mut self, batch: &RecordBatch) -> Result<Encoded> {
        let bodies = self.bodies(batch)?;
        let column =
            |part: Part| self.parts.iter().find(|(own, _)| *own == part).map(|(_, index)| batch.column(*index));
        let (keys, headers) = (texts(column(Part::Key))?, texts(column(Part::Headers))?);
        let times = times(column(Part::Time))?;
        let ids = texts(self.id.map(|id| batch.column(id)))?;
        let (batch, columns) = (batch.clone(), self.columns);
        let mut encoded = Encoded { batch, columns, messages: Vec::new(), refused: Vec::new() };
        for (row, body) in bodies.into_iter().enumerate() {
            let written = text(headers.as_ref(), row).unwrap_or("{}");
            match pairs(written, &self.form.taken) {
                Ok(headers) => {
                    let key = text(keys.as_ref(), row).map(str::to_owned);
                    let time = times.as_ref().filter(|times| times.is_valid(row)).map(|times| times.value(row));
                    let id = text(ids.as_ref(), row).map(str::to_owned);
                    if ids.is_some() && id.is_none() {
                        let reason = "it has no id: the value is null".to_owned();
                        let refusal = encoded.refusal(row, RejectKind::Null, self.form.id.clone(), reason);
                        encoded.refused.push(refusal);
                        continue;
                    }
                    encoded.messages.push((row, Message { key, headers, time, id, body }));
                }
                Err(reason) => {
                    let column = Some(Part::Headers.name().to_owned());
                    encoded.refused.push(encoded.refusal(row, RejectKind::Value, column, reason));
                }
            }
        }
        Ok(encoded)
    }

    /// The body of each row.
    fn bodies(&mut self, batch: &RecordBatch) -> Result<Vec<Vec<u8>>> {
        let rows = batch
            .project(&self.body)
            .map_err(|cause| Error::internal("rows have other columns than their sink").cause(cause))?;
        // A record of JSON is a line.
        if self.form.encoding.splittable() && self.form.encoding.format() == "json" {
            let text = self.encoded(&rows)?;
            let lines = text.split_inclusive(|byte| *byte == b'\n').map(|line| self.finished(line.to_vec()));
            return lines.collect();
        }
        (0..rows.num_rows()).map(|row| self.body(&rows.slice(row, 1))).collect()
    }

    /// Rows as text; of a format that has a beginning, without it.
    fn encoded(&mut self, rows: &RecordBatch) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        let encoder = match &mut self.encoder {
            Some(encoder) => encoder,
            None => self.encoder.insert(self.form.encoding.rows(&self.schema, false)?),
        };
        encoder.encode(rows, &mut text)?;
        Ok(text)
    }

    /// The body of a single row.
    fn body(&mut self, row: &RecordBatch) -> Result<Vec<u8>> {
        if self.form.encoding.splittable() {
            let text = self.encoded(row)?;
            return self.finished(text);
        }
        let (mut encoder, mut text) = (self.form.encoding.rows(&self.schema, true)?, Vec::new());
        encoder.encode(row, &mut text)?;
        encoder.finish(&mut text)?;
        self.form.encoding.compress(text)
    }

    /// A record as a message has it: without its line end.
    fn finished(&self, mut text: Vec<u8>) -> Result<Vec<u8>> {
        if text.last() == Some(&b'\n') {
            text.pop();
            text.pop_if(|byte| *byte == b'\r');
        }
        self.form.encoding.compress(text)
    }
}

fn texts(column: Option<&ArrayRef>) -> Result<Option<StringViewArray>> {
    let converted = column.map(|column| cast(column, &DataType::Utf8View)).transpose();
    let converted = converted.map_err(|cause| Error::internal("a column is not text").cause(cause))?;
    Ok(converted.map(|column| column.as_string_view().clone()))
}

fn times(column: Option<&ArrayRef>) -> Result<Option<TimestampMillisecondArray>> {
    let milliseconds = |column: &ArrayRef| {
        let zone = match column.data_type() {
            DataType::Timestamp(_, zone) => zone.clone(),
            _ => None,
        };
        cast(column, &DataType::Timestamp(TimeUnit::Millisecond, zone))
    };
    let converted = column.map(milliseconds).transpose();
    let converted = converted.map_err(|cause| Error::internal("a column is not a timestamp").cause(cause))?;
    Ok(converted.map(|column| column.as_primitive::<TimestampMillisecondType>().clone()))
}

fn text(texts: Option<&StringViewArray>, row: usize) -> Option<&str> {
    texts.filter(|texts| texts.is_valid(row)).map(|texts| texts.value(row))
}

/// The names and values of a JSON object of texts, or why it is none.
fn pairs(text: &str, taken: &[String]) -> Result<Vec<(String, String)>, String> {
    let object: Map<String, Value> =
        serde_json::from_str(text).map_err(|cause| format!("`_headers` is not a JSON object: {cause}"))?;
    let pair = |(name, value): (String, Value)| match value {
        _ if taken.contains(&name) => Err(format!("the header `{name}` has the name of another field of the entry")),
        Value::String(value) => Ok((name, value)),
        _ => Err(format!("the header `{name}` is not text")),
    };
    object.into_iter().map(pair).collect()
}

impl Encoded {
    /// A row that is left out.
    pub(super) fn refusal(&self, row: usize, kind: RejectKind, column: Option<String>, reason: String) -> RefusedRow {
        let record = Some(self.batch.slice(row, 1));
        RefusedRow { row: row as u64, record, shown: self.shown(row), column, reason, kind, hint: None }
    }

    /// A row as `id=1, name='a'`, with the beginnings of long values.
    fn shown(&self, row: usize) -> String {
        let options = FormatOptions::default().with_null("NULL");
        let value = |column: &ArrayRef| -> Option<String> {
            let value = ArrayFormatter::try_new(column, &options).ok()?.value(row).to_string();
            let cut: String = value.chars().take(SHOWN_CHARACTERS).collect();
            let cut = if cut.len() < value.len() { format!("{cut}…") } else { cut };
            let is_text = Part::Key.takes(column.data_type()) && column.is_valid(row);
            Some(if is_text { format!("'{cut}'") } else { cut })
        };
        let schema = self.batch.schema();
        let named = schema.fields().iter().zip(self.batch.columns()).take(self.columns);
        let shown = named.filter_map(|(field, column)| Some(format!("{}={}", field.name(), value(column)?)));
        shown.collect::<Vec<_>>().join(", ")
    }
}
