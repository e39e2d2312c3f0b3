//! Of which message of a queue a row is.

use std::fmt::Write as _;
use std::sync::Arc;

use arrow::array::{ArrayRef, StringViewBuilder, TimestampMicrosecondBuilder};
use arrow::datatypes::{DataType, Field, TimeUnit};
use bytes::Bytes;
use millstream_core::queue::{MessageBatch, Messages, Queue};
use serde_json::{Map, Value};

use crate::rejects::origin::Origin;

/// A column that says of which message a row is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageColumn {
    /// `_id`: its id.
    Id,
    /// `_time`: when it came.
    Time,
    /// `_key`: its key.
    Key,
    /// `_headers`: what it has beside its body.
    Headers,
}

impl MessageColumn {
    /// The column.
    pub fn field(self) -> Field {
        match self {
            MessageColumn::Id => Field::new("_id", DataType::Utf8View, false),
            MessageColumn::Time => {
                Field::new("_time", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true)
            }
            MessageColumn::Key => Field::new("_key", DataType::Utf8View, true),
            MessageColumn::Headers => Field::new("_headers", DataType::Utf8View, false),
        }
    }
}

/// Messages whose text is read.
#[derive(Debug)]
pub struct ReadMessages {
    /// The messages.
    pub batch: Arc<MessageBatch>,
    /// The message that is read, if it is one alone.
    pub only: Option<usize>,
    /// Their queue.
    pub queue: Arc<dyn Queue>,
}

/// The text of a batch, which lives as long as values point into it.
struct BatchText(Arc<MessageBatch>);

impl AsRef<[u8]> for BatchText {
    fn as_ref(&self) -> &[u8] {
        self.0.messages.text()
    }
}

impl ReadMessages {
    fn messages(&self) -> &Messages {
        &self.batch.messages
    }

    /// The text that is read.
    pub fn text(&self) -> Bytes {
        let all = Bytes::from_owner(BatchText(Arc::clone(&self.batch)));
        match self.only {
            None => all,
            Some(number) => all.slice_ref(self.messages().body(number)),
        }
    }

    /// The number of the message whose text has the byte `byte` of what is read.
    pub fn number(&self, byte: u64) -> usize {
        self.only.unwrap_or_else(|| self.messages().at(usize::try_from(byte).unwrap_or(usize::MAX)))
    }

    /// Where the record is from that begins at `byte` of what is read.
    pub fn origin(&self, source: &str, byte: u64) -> Origin {
        self.origin_of(source, self.number(byte))
    }

    /// Where a message is from.
    pub fn origin_of(&self, source: &str, number: usize) -> Origin {
        Origin {
            source: source.to_owned(),
            uri: self.queue.shown(),
            member: None,
            id: Some(self.shown_id(number)),
            line: None,
            last_line: None,
            byte: None,
            // Each message has a line feed at least, unless their text was left out.
            text: (!self.messages().text().is_empty()).then(|| self.messages().body(number).to_vec()),
            beginning: Vec::new(),
        }
    }

    /// The id of a message, as it is shown.
    pub fn shown_id(&self, number: usize) -> String {
        self.queue.shown_id(self.messages().ids()[number])
    }

    /// What rows whose records begin at `bytes` have in a column.
    pub fn column(&self, column: MessageColumn, bytes: &[i64]) -> ArrayRef {
        let numbers = bytes.iter().map(|byte| self.number(byte.unsigned_abs()));
        match column {
            MessageColumn::Time => {
                let mut times = TimestampMicrosecondBuilder::with_capacity(bytes.len());
                for number in numbers {
                    times.append_option(self.messages().time(number).and_then(|time| time.checked_mul(1_000)));
                }
                Arc::new(times.finish().with_timezone("UTC"))
            }
            MessageColumn::Id => texts(numbers.map(|number| Some(self.shown_id(number)))),
            MessageColumn::Key => texts(numbers.map(|number| self.messages().key(number).map(shown))),
            MessageColumn::Headers => texts(numbers.map(|number| Some(self.headers(number)))),
        }
    }

    fn headers(&self, number: usize) -> String {
        let pair = |(name, value): (&[u8], &[u8])| (shown(name), Value::String(shown(value)));
        Value::Object(self.messages().headers(number).map(pair).collect::<Map<_, _>>()).to_string()
    }
}

fn texts(values: impl Iterator<Item = Option<String>>) -> ArrayRef {
    let mut texts = StringViewBuilder::new();
    values.for_each(|value| texts.append_option(value));
    Arc::new(texts.finish())
}

/// Bytes as text; those that are no UTF-8 as `\\xNN`.
fn shown(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| {
            let _ = write!(text, "\\x{byte:02X}");
        });
    }
    text
}
