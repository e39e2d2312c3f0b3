//! Records to batches: one pass over the text of a record checks its grammar and fills the columns.
//!
//! (Tried first: arrow-json's decoder. Its tape takes `{"a":1,,}` and `{"a":1 "b":2}`, the last of two equal keys, 2.7
//! as the int64 2 and texts with raw line ends, and it says neither the byte nor the path of what it refuses, so it
//! would need a strict scan before it anyway.)
//!
//! It decides between rows and rejects. `records.rs` finds the records, and `builders.rs` reads their values.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use millstream_core::format::{
    BATCH_BYTES, OnDrift, ParseRequest, Parsed, Parser, Reject, Rows, TextPosition, Validate,
};
use millstream_core::{Error, RejectKind, Result};

use super::JsonFormat;
use super::builders::{Extra, Fields, Reading};
use super::cursor::{Cursor, Fault, Kind};
use super::quick::Margin;
use super::records::{Record, Splitter, line_of};
use crate::contains::Search;
use millstream_core::columns::Column;

/// How much text is cut into records between checks for too many rejects.
const STEP: usize = 16 << 10;

/// Parses one unit.
pub struct JsonParser {
    plan: Arc<Plan>,
    splitter: Splitter,
    maker: RowMaker,
    /// Text that was pushed and is not parsed yet.
    waiting: VecDeque<Bytes>,
}

/// What does not change while a unit is parsed.
struct Plan {
    /// The declared columns.
    columns: Vec<Column>,
    max_record: usize,
    /// What records must contain.
    contains: Option<Arc<Search>>,
    request: ParseRequest,
}

/// Fills the columns.
struct RowMaker {
    fields: Fields,
    schema: SchemaRef,
    projection: Vec<usize>,
    batch_rows: usize,
    max_record: u64,
    rows: usize,
    bytes: usize,
    lines: Option<Vec<i64>>,
    starts: Option<Vec<i64>>,
    scratch: String,
}

impl JsonParser {
    /// At the beginning of a unit.
    pub fn new(format: &JsonFormat, request: &ParseRequest) -> Result<Self> {
        let plan = Plan {
            columns: format.columns.clone(),
            max_record: format.max_record(),
            contains: Search::new(&request.contains)?.map(Arc::new),
            request: request.clone(),
        };
        let splitter = Splitter::new(format.spec.layout, format.max_record()).containing(plan.contains.clone());
        JsonParser::with(Arc::new(plan), splitter)
    }

    fn with(plan: Arc<Plan>, splitter: Splitter) -> Result<Self> {
        Ok(JsonParser { maker: RowMaker::new(&plan)?, splitter, plan, waiting: VecDeque::new() })
    }
}

impl JsonParser {
    /// Parses the beginning of the waiting text.
    fn next_text(&mut self, parsed: &mut Parsed) -> Result<()> {
        let Some(mut text) = self.waiting.pop_front() else { return Ok(()) };
        let step = text.split_to(text.len().min(STEP));
        if !text.is_empty() {
            self.waiting.push_front(text);
        }
        let maker = &mut self.maker;
        let taken = self.splitter.push(&step, &mut |record| maker.take(record, parsed));
        parsed.passed_over += self.splitter.take_dropped();
        taken
    }
}

impl Plan {
    /// The meaning of a key that is no column.
    fn extra(&self) -> Extra {
        match self.request.on_drift {
            OnDrift::Null => Extra::Ignore,
            OnDrift::Fail if self.columns.is_empty() => Extra::Refuse(
                "no record of the sample has it: declare `columns` (`millstream guess` writes them), or leave it out \
                 with `on_drift: null`",
            ),
            OnDrift::Fail => Extra::Refuse("add it to `columns`, or leave it out with `on_drift: null`"),
            OnDrift::Widen => Extra::Refuse(
                "no sample has it, not even with `on_drift: widen`: add it to `columns`, or leave it out with \
                 `on_drift: null`",
            ),
        }
    }

    fn format_of(&self, name: &str) -> Option<&str> {
        self.columns.iter().find(|column| column.name == name)?.format.as_deref()
    }
}

impl Parser for JsonParser {
    fn push(&mut self, text: Bytes, parsed: &mut Parsed) -> Result<()> {
        if !text.is_empty() {
            self.waiting.push_back(text);
        }
        while self.waits() && !parsed.is_full() {
            self.next_text(parsed)?;
        }
        Ok(())
    }

    fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn finish(&mut self, parsed: &mut Parsed) -> Result<()> {
        while self.waits() {
            self.next_text(parsed)?;
        }
        let maker = &mut self.maker;
        self.splitter.finish(&mut |record| maker.take(record, parsed))?;
        parsed.passed_over += self.splitter.take_dropped();
        if let Some(seen) = &self.plan.request.seen {
            self.maker.fields.note_seen(seen);
        }
        self.maker.flush(parsed)
    }

    fn fork(&self, at: TextPosition) -> Option<Box<dyn Parser>> {
        if !self.splitter.in_lines() {
            return None;
        }
        let splitter = Splitter::at(at, self.plan.max_record).containing(self.plan.contains.clone());
        Some(Box::new(JsonParser::with(Arc::clone(&self.plan), splitter).ok()?))
    }
}

impl RowMaker {
    fn new(plan: &Plan) -> Result<Self> {
        let (request, extra) = (&plan.request, plan.extra());
        let fields = Fields::new(request.schema.fields(), extra, |index, field| {
            let used = request.validate == Validate::All || request.projection.contains(&index);
            used.then(|| Reading { format: plan.format_of(field.name()), extra })
        })?;
        Ok(RowMaker {
            fields,
            schema: request.output_schema(),
            projection: request.projection.clone(),
            batch_rows: request.batch_rows.max(1),
            max_record: plan.max_record as u64,
            rows: 0,
            bytes: 0,
            lines: request.lines.then(Vec::new),
            starts: request.bytes.then(Vec::new),
            scratch: String::new(),
        })
    }

    /// Makes a row of the record, or a reject.
    fn take(&mut self, record: Record<'_>, parsed: &mut Parsed) -> Result<()> {
        if let Err(fault) = self.read(record) {
            self.fields.truncate(self.rows);
            let line = line_of(record.text, fault.at(), record.line);
            let reason = fault.into_error(record.byte, line);
            parsed.refuse(Reject {
                raw: Bytes::copy_from_slice(record.text),
                byte: record.byte,
                line: record.line,
                reason,
            });
            return if parsed.is_full() { self.flush(parsed) } else { Ok(()) };
        }
        self.rows += 1;
        self.bytes += record.text.len();
        if let Some(lines) = &mut self.lines {
            lines.push(i64::try_from(record.line).unwrap_or(i64::MAX));
        }
        if let Some(starts) = &mut self.starts {
            starts.push(i64::try_from(record.byte).unwrap_or(i64::MAX));
        }
        if self.rows == self.batch_rows || self.bytes >= BATCH_BYTES {
            self.flush(parsed)?;
        }
        Ok(())
    }

    fn read(&mut self, record: Record<'_>) -> Result<(), Fault> {
        let margin = Margin::new(record.wide, record.text.len());
        let mut cursor = Cursor::with_margin(text_of(record, self.max_record)?, &margin);
        match cursor.kind()? {
            Kind::Object => self.fields.object(&mut cursor, &mut self.scratch)?,
            other => {
                let text = cursor.raw(&mut self.scratch)?;
                return Err(Fault::new(0, format!("the record is {}, not an object", other.name())).text(text));
            }
        }
        cursor.end()
    }

    /// Gives out the rows so far as a batch.
    fn flush(&mut self, parsed: &mut Parsed) -> Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        let rows = std::mem::take(&mut self.rows);
        self.bytes = 0;
        let columns = self.fields.finish()?;
        let used = self.projection.iter().map(|&index| columns.get(index).cloned().flatten());
        let used: Option<Vec<ArrayRef>> = used.collect();
        let columns = used.ok_or_else(|| Error::internal("a column of the projection has no builder"))?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
            .map_err(|cause| Error::internal("the columns of a json batch do not fit together").cause(cause))?;
        let numbers = |numbers: &mut Vec<i64>| -> ArrayRef { Arc::new(Int64Array::from(std::mem::take(numbers))) };
        let lines = self.lines.as_mut().map(numbers);
        let bytes = self.starts.as_mut().map(numbers);
        debug_assert!(lines.as_ref().is_none_or(|lines| lines.len() == rows));
        parsed.rows.push(Rows { batch, lines, bytes });
        Ok(())
    }
}

/// The text of a record, if it is whole and UTF-8.
pub(super) fn text_of(record: Record<'_>, max_record: u64) -> Result<&str, Fault> {
    if record.too_long {
        return Err(Fault::new(0, format!("the record is longer than {max_record} bytes"))
            .kind(RejectKind::TooLong)
            .text(&String::from_utf8_lossy(&record.text[..record.text.len().min(80)]))
            .hint("a bracket or a line end may be missing; otherwise raise `max_record`"));
    }
    if record.utf8 {
        // SAFETY: the splitter has checked all lines of the text that this is one of.
        return Ok(unsafe { std::str::from_utf8_unchecked(record.text) });
    }
    simdutf8::basic::from_utf8(record.text).map_err(|_| not_utf8(record.text))
}

fn not_utf8(text: &[u8]) -> Fault {
    let at = std::str::from_utf8(text).map_or_else(|error| error.valid_up_to(), str::len);
    let shown: String = text[at..].iter().take(8).map(|byte| format!("\\x{byte:02x}")).collect();
    Fault::new(at, "bytes that are not UTF-8")
        .kind(RejectKind::Encoding)
        .text(&shown)
        .hint("JSON must be UTF-8: convert the file, for example with `iconv -f WINDOWS-1252 -t UTF-8`")
}
