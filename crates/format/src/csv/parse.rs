//! The csv parser: pushed text to batches and rejects.
//!
//! ```text
//!  push ─▶ to UTF-8 ─▶ skip lines ─▶ header ─▶ scan ─▶ check UTF-8 ─▶ build columns ─▶ batch
//!                                               │            │              │
//!                                  incomplete record to    rejects ◀────────┘
//!                                  the carry buffer
//! ```
//! Records that lack what they must contain are removed after the scan, which knows where records end. Where no quote
//! is near, the lines before the next hit are skipped without a scan.
//!
//! A pushed text is scanned in place, and arrays share it. Only a record that the end of a push cuts is copied, to the
//! carry buffer, which grows by the next text until the record is complete.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, RecordBatchOptions};
use arrow::compute::{filter, filter_record_batch};
use arrow::datatypes::{DataType, SchemaRef};
use bytes::Bytes;
use encoding_rs::Encoding;
use millstream_core::format::{
    BATCH_BYTES, EmptyFiles, OnDrift, ParseRequest, Parsed, Parser, Reject, Rows, TEXT, TextPosition, Validate,
};
use millstream_core::{Error, Result};

use super::build::{BadValue, Builder, Chunk, builder};
use super::faults;
use super::scan::{BadRecord, Index, LineEnds, Scanned, Scanner, StructureFault};
use super::spec::{Conventions, Dialect};
use super::values::{Reader, Syntax};
use crate::contains::{Hits, Lines, Search};
use crate::drift::match_columns;
use crate::encoding::{self, ToUtf8};

/// Records that are scanned before their values are converted: few enough that the text is still in the cache.
const CHUNK_ROWS: usize = 1024;

/// A pushed text is taken in pieces of at most this size: positions in it have 32 bits, and a batch with enough text
/// ends at the end of a piece.
const PIECE: usize = BATCH_BYTES / 4;

/// The most lines of a title.
const MOST_TITLES: u64 = 20;

/// How many bytes after a wrong header are searched for the names of the columns.
const TITLE_BYTES: usize = 64 << 10;

/// Bytes without a hit after which records are scanned one by one, not many at once.
const SPARSE: usize = 4 << 10;

/// The least by which the carry buffer grows.
const CARRY_STEP: usize = 256;

/// Everything that does not change while a unit is parsed.
pub(crate) struct Plan {
    pub dialect: Dialect,
    pub conventions: Conventions,
    pub encoding: Option<&'static Encoding>,
    pub header: bool,
    pub skip_lines: u64,
    /// The strftime format of each column of the request's schema, if it has one.
    pub formats: Vec<Option<String>>,
    /// What records must contain.
    pub contains: Option<Search>,
    pub request: ParseRequest,
}

impl Plan {
    /// The byte after which a line may not be a record, if lines are records where it is not.
    fn line_breaker(&self) -> Option<Option<u8>> {
        let plain = self.dialect.escape.is_none() && self.dialect.comment.is_none();
        plain.then_some(self.dialect.quote)
    }
}

/// The part of the text that comes next.
enum Stage {
    /// Lines to skip, and whether the last byte was a CR, whose LF belongs to it.
    Skip(u64, bool),
    /// The names of the columns.
    Header,
    /// The text after a header without the columns, which may show why.
    Misfit(Box<Misfit>),
    /// Records.
    Records,
}

/// A header that does not have the columns of the source. The error waits for the next lines, so that its hint does not
/// depend on how the text is cut.
struct Misfit {
    error: Error,
    header: Vec<u8>,
    /// The text after the header, up to [`TITLE_BYTES`], and its line.
    text: Vec<u8>,
    line: u64,
    /// The length of the text at which it is searched again.
    enough: usize,
}

/// Whether the lines after a header have the names.
enum Below {
    /// This line has the names of the columns.
    Names(u64),
    /// No line has them.
    Nothing,
    /// More text is needed.
    More,
}

/// A column whose values are converted.
struct Column {
    builder: Box<dyn Builder>,
    /// Its field in the file; `None` if the file lacks it.
    field: Option<usize>,
}

/// Parses one unit.
pub(crate) struct CsvParser {
    plan: Arc<Plan>,
    decoder: ToUtf8,
    stage: Stage,
    scanner: Scanner,
    syntax: Syntax,
    /// Names of the file's fields, for messages.
    names: Vec<String>,
    /// The output's columns, then (if all values are checked) the others.
    columns: Vec<Column>,
    /// For each of the request's columns its field in the file.
    fields: Vec<Option<usize>>,
    /// Text that was pushed and is not parsed yet.
    waiting: VecDeque<Bytes>,
    /// The beginning of a record that continues in the next push.
    carry: Vec<u8>,
    /// Where the text (or the carry) begins in the unit, in bytes of UTF-8.
    offset: u64,
    schema: SchemaRef,
    lines: Vec<i64>,
    starts: Vec<i64>,
    rows: usize,
    /// Bytes of the text that the batch is from.
    batch_bytes: usize,
    /// Rows of the batch with a bad value.
    bad_rows: Vec<usize>,
    index: Index,
    bad_records: Vec<BadRecord>,
    bad_values: Vec<BadValue>,
}

impl CsvParser {
    /// At the beginning of a unit.
    pub fn new(plan: Plan) -> Result<Self> {
        let stage = if plan.skip_lines > 0 {
            Stage::Skip(plan.skip_lines, false)
        } else if plan.header {
            Stage::Header
        } else {
            Stage::Records
        };
        let names = plan.request.schema.fields().iter().map(|field| field.name().clone()).collect();
        let decoder = ToUtf8::new(plan.encoding);
        let place = TextPosition { byte: 0, line: plan.skip_lines + 1 };
        let mut parser = CsvParser::at(place, Arc::new(plan), decoder, stage, names);
        // Types without a CSV form are found before the first byte is read.
        let fields = (0..parser.plan.request.schema.fields().len()).map(Some).collect::<Vec<_>>();
        parser.set_columns(fields)?;
        if !parser.plan.header {
            parser.scanner.set_width(Some(parser.names.len()));
        }
        if parser.plan.request.single && matches!(parser.stage, Stage::Records) {
            parser.scanner.set_line_ends(Some(LineEnds::Feeds));
        }
        Ok(parser)
    }

    /// Without columns.
    fn at(place: TextPosition, plan: Arc<Plan>, decoder: ToUtf8, stage: Stage, names: Vec<String>) -> Self {
        CsvParser {
            decoder,
            stage,
            scanner: Scanner::new(plan.dialect.clone(), place.line),
            syntax: Syntax::new(plan.dialect.clone(), &plan.conventions.nulls),
            names,
            columns: Vec::new(),
            fields: Vec::new(),
            waiting: VecDeque::new(),
            carry: Vec::new(),
            offset: place.byte,
            schema: plan.request.output_schema(),
            lines: Vec::new(),
            starts: Vec::new(),
            rows: 0,
            batch_bytes: 0,
            bad_rows: Vec::new(),
            index: Index::default(),
            bad_records: Vec::new(),
            bad_values: Vec::new(),
            plan,
        }
    }

    /// The file has the request's column i in its field `fields[i]`.
    fn set_columns(&mut self, fields: Vec<Option<usize>>) -> Result<()> {
        let request = &self.plan.request;
        let all = request.validate == Validate::All;
        let unused = (0..request.schema.fields().len()).filter(|column| {
            all && !request.projection.contains(column) && *request.schema.field(*column).data_type() != TEXT
        });
        let capacity = request.batch_rows.min(1 << 16);
        let column = |column: usize| {
            let data_type = request.schema.field(column).data_type();
            let format = self.plan.formats.get(column).and_then(Option::as_deref);
            let reader = Reader::new(&self.plan.conventions, data_type, format);
            Ok(Column { builder: builder(data_type, reader, capacity)?, field: fields.get(column).copied().flatten() })
        };
        self.columns = request.projection.iter().copied().chain(unused).map(column).collect::<Result<_>>()?;
        self.fields = fields;
        Ok(())
    }

    /// Parses the next waiting text.
    fn next_text(&mut self, parsed: &mut Parsed) -> Result<()> {
        let Some(mut text) = self.waiting.pop_front() else { return Ok(()) };
        let piece = text.split_to(text.len().min(PIECE));
        if !text.is_empty() {
            self.waiting.push_front(text);
        }
        let piece = self.skip_lines(piece);
        let piece = self.complete_carry(piece, parsed)?;
        let rest = self.piece(piece, parsed)?;
        if !rest.is_empty() {
            self.waiting.push_front(rest);
        }
        Ok(())
    }

    /// The piece without the lines to skip.
    fn skip_lines(&mut self, piece: Bytes) -> Bytes {
        let Stage::Skip(left, after_cr) = &mut self.stage else {
            return piece;
        };
        let mut position = 0;
        let mut ends = self.scanner.line_ends();
        while *left > 0 || *after_cr {
            if *after_cr {
                let Some(behind) = piece.get(position) else { break };
                let feed = *behind == b'\n';
                ends.get_or_insert(if feed { LineEnds::Feeds } else { LineEnds::Returns });
                position += usize::from(feed);
                *after_cr = false;
                continue;
            }
            let Some(found) = memchr::memchr2(b'\n', b'\r', &piece[position..]) else {
                position = piece.len();
                break;
            };
            *after_cr = piece[position + found] == b'\r';
            if !*after_cr {
                ends.get_or_insert(LineEnds::Feeds);
            }
            position += found + 1;
            *left -= 1;
        }
        self.scanner.set_line_ends(ends);
        let done = *left == 0 && !*after_cr;
        if done {
            self.stage = if self.plan.header { Stage::Header } else { Stage::Records };
        }
        self.offset += position as u64;
        piece.slice(position..)
    }

    /// Completes the record in the carry buffer. Returns the rest of the piece.
    fn complete_carry(&mut self, mut piece: Bytes, parsed: &mut Parsed) -> Result<Bytes> {
        while !self.carry.is_empty() && !piece.is_empty() {
            let mut carry = std::mem::take(&mut self.carry);
            let step = piece.len().min(carry.len().max(CARRY_STEP));
            carry.extend_from_slice(&piece[..step]);
            match self.scan(&carry, 0, false, 1)? {
                Scanned::Enough(next) => {
                    // The record was incomplete before this step, so what lies after it came with the step.
                    let behind = carry.len() - next;
                    carry.truncate(next);
                    self.take_carry(&carry, parsed)?;
                    self.offset += next as u64;
                    piece = piece.split_off(step.saturating_sub(behind));
                }
                _ => {
                    self.carry = carry;
                    piece = piece.split_off(step);
                }
            }
        }
        Ok(piece)
    }

    /// Skips the whole lines from `from` on that lack what records must contain, as far as each surely is a record.
    /// Returns where they end.
    fn skip_records(&mut self, hits: &mut Hits<'_>, piece: &[u8], from: usize, parsed: &mut Parsed) -> usize {
        let is_plain = matches!(self.stage, Stage::Records) && self.scanner.line_ends() == Some(LineEnds::Feeds);
        let Some(breaker) = self.plan.line_breaker().filter(|_| is_plain) else { return from };
        let hit = hits.at_or_after(from);
        let until = breaker.and_then(|byte| memchr::memchr(byte, &piece[from..hit])).map_or(hit, |at| from + at);
        let end = hits.lines_until(from, until, self.plan.dialect.max_record);
        let has_blank_lines = self.names.len() != 1;
        let lines = Lines::count(&piece[from..end], |line| has_blank_lines && matches!(line, [] | [b'\r']));
        self.scanner.skip_lines(lines.all);
        parsed.passed_over += lines.all - lines.blank;
        end
    }

    /// Parses the complete records of a piece; an incomplete one becomes the carry buffer. If there are too many
    /// rejects, the text after the last one is returned.
    fn piece(&mut self, mut piece: Bytes, parsed: &mut Parsed) -> Result<Bytes> {
        let mut from = 0;
        let (plan, text) = (Arc::clone(&self.plan), piece.clone());
        let mut hits = plan.contains.as_ref().map(|contains| Hits::new(contains, &text));
        while !piece.is_empty() {
            if matches!(self.stage, Stage::Misfit(_)) {
                self.behind_misfit(&piece[from..], false)?;
                return Ok(Bytes::new());
            }
            let begun = from;
            if let Some(hits) = &mut hits {
                from = self.skip_records(hits, &piece, from, parsed);
            }
            let limit = match self.stage {
                Stage::Header => 1,
                // Behind many lines without a hit, the next hit is probably far from this one.
                _ if from - begun >= SPARSE => 1,
                _ => CHUNK_ROWS.min(self.plan.request.batch_rows.max(1) - self.rows),
            };
            let scanned = self.scan(&piece, from, false, limit)?;
            let (Scanned::Enough(next) | Scanned::Incomplete(next) | Scanned::TooLong(next, _)) = scanned;
            let bytes = match &mut hits {
                Some(hits) => self.drop_records(hits, parsed),
                None => next - from,
            };
            // A few records must not keep the text of many alive.
            self.take_chunk(&piece, hits.is_none().then_some(&piece), bytes, parsed)?;
            from = next;
            if !matches!(scanned, Scanned::Enough(_)) {
                self.scanner.rebase(next);
                self.carry = piece.split_off(next).to_vec();
                self.offset += next as u64;
                return Ok(Bytes::new());
            }
            if parsed.is_full() {
                self.offset += next as u64;
                return Ok(piece.split_off(next));
            }
        }
        Ok(Bytes::new())
    }

    /// Converts the record that the last scan found in the carry buffer.
    fn take_carry(&mut self, carry: &[u8], parsed: &mut Parsed) -> Result<()> {
        let plan = Arc::clone(&self.plan);
        if let Some(contains) = &plan.contains {
            self.drop_records(&mut Hits::new(contains, carry), parsed);
        }
        self.take_chunk(carry, None, carry.len(), parsed)
    }

    /// Removes the records that lack what they must contain from those that the last scan found. Returns the bytes of
    /// the others. A record without its closing quote stays: it may be many records, and ends the run.
    fn drop_records(&mut self, hits: &mut Hits<'_>, parsed: &mut Parsed) -> usize {
        if matches!(self.stage, Stage::Header) {
            return 0;
        }
        let before = self.index.rows() + self.bad_records.len();
        let records: Vec<(usize, usize)> = (0..self.index.rows()).map(|row| self.index.record(row)).collect();
        let mut bytes = 0;
        self.index.retain(|row| {
            let (start, end) = records[row];
            let kept = hits.has(start, end);
            bytes += if kept { end - start } else { 0 };
            kept
        });
        self.bad_records.retain(|bad| {
            matches!(bad.structure_fault, StructureFault::Unclosed(_)) || hits.matches(bad.start, bad.end)
        });
        parsed.passed_over += (before - self.index.rows() - self.bad_records.len()) as u64;
        bytes
    }

    /// Scans into the index. A record that is too long is an error.
    fn scan(&mut self, text: &[u8], from: usize, last: bool, limit: usize) -> Result<Scanned> {
        self.index.clear();
        self.bad_records.clear();
        let scanned = self.scanner.scan(text, from, last, limit, &mut self.index, &mut self.bad_records);
        match scanned {
            Scanned::TooLong(start, open) => {
                let error = faults::too_long(&self.plan.dialect, self.scanner.line(), open, &text[start..]);
                Err(error.byte(self.offset + start as u64))
            }
            scanned => Ok(scanned),
        }
    }

    /// Converts the records that the last scan found in `bytes` bytes of `text`.
    fn take_chunk(&mut self, text: &[u8], shared: Option<&Bytes>, bytes: usize, parsed: &mut Parsed) -> Result<()> {
        if matches!(self.stage, Stage::Header) {
            return self.take_header(text);
        }
        let (cut, bad): (Vec<&BadRecord>, Vec<&BadRecord>) =
            self.bad_records.iter().partition(|bad| matches!(bad.structure_fault, StructureFault::Unclosed(_)));
        // The text from the quote to the end may be many records, so it cannot be one reject.
        let cut = cut.first().map(|bad| self.reason(text, bad));
        let mut rejects: Vec<(usize, Reject)> =
            bad.into_iter().map(|bad| (bad.start, self.reject_record(text, bad))).collect();
        self.reject_bad_utf8(text, &mut rejects);
        self.convert(text, shared, &mut rejects)?;
        if !rejects.is_empty() {
            rejects.sort_by_key(|(start, _)| *start);
            rejects.into_iter().for_each(|(_, reject)| parsed.refuse(reject));
        }
        if let Some(cut) = cut {
            return Err(cut);
        }
        self.batch_bytes += bytes;
        let full = self.rows >= self.plan.request.batch_rows.max(1) || self.batch_bytes >= BATCH_BYTES;
        if full || parsed.is_full() {
            self.give_out(parsed)?;
        }
        Ok(())
    }

    fn reject_record(&self, text: &[u8], bad: &BadRecord) -> Reject {
        Reject {
            raw: Bytes::copy_from_slice(&text[bad.start..bad.end]),
            byte: self.offset + bad.start as u64,
            line: bad.line,
            reason: self.reason(text, bad),
        }
    }

    fn reason(&self, text: &[u8], bad: &BadRecord) -> Error {
        let reason = faults::structure(&self.plan.dialect, bad, self.names.len(), text);
        let reason = match (bad.structure_fault, self.names.as_slice()) {
            (StructureFault::FieldCount(count), [title])
                if self.plan.header && count > 1 && bad.line <= MOST_TITLES =>
            {
                reason.hint(faults::title_hint(title, bad.line))
            }
            _ => reason,
        };
        reason.byte(self.offset + bad.at as u64)
    }

    /// Removes the records that are not UTF-8 from the index.
    fn reject_bad_utf8(&mut self, text: &[u8], rejects: &mut Vec<(usize, Reject)>) {
        let rows = self.index.rows();
        if rows == 0 {
            return;
        }
        let (start, end) = (self.index.starts[0] as usize, self.index.record(rows - 1).1);
        if simdutf8::basic::from_utf8(&text[start..end]).is_ok() {
            return;
        }
        let mut index = std::mem::take(&mut self.index);
        let faults: Vec<_> = (0..rows)
            .map(|row| {
                let (start, end) = index.record(row);
                simdutf8::compat::from_utf8(&text[start..end]).err().map(|error| start + error.valid_up_to())
            })
            .collect();
        for (row, at) in faults.iter().enumerate().filter_map(|(row, at)| at.map(|at| (row, at))) {
            let (start, end) = index.record(row);
            let ends = &index.ends[row * index.width..(row + 1) * index.width];
            let field = ends.iter().position(|end| at < *end as usize).unwrap_or(0);
            let mut reason = encoding::fault(self.plan.encoding, &text[at..end])
                .line(index.lines[row])
                .byte(self.offset + at as u64);
            if let Some(name) = self.names.get(field) {
                reason = reason.column(name);
            }
            let (raw, byte) = (Bytes::copy_from_slice(&text[start..end]), self.offset + start as u64);
            rejects.push((start, Reject { raw, byte, line: index.lines[row], reason }));
        }
        index.retain(|row| faults[row].is_none());
        self.index = index;
    }

    /// Appends the values of the index's records to the columns.
    fn convert(&mut self, text: &[u8], shared: Option<&Bytes>, rejects: &mut Vec<(usize, Reject)>) -> Result<()> {
        let count = self.index.rows();
        if count == 0 {
            return Ok(());
        }
        self.bad_values.clear();
        let chunk = Chunk { text, shared, index: &self.index, syntax: &self.syntax };
        for column in &mut self.columns {
            match column.field {
                Some(field) => column.builder.append(&chunk, field, &mut self.bad_values),
                None => column.builder.append_nulls(count),
            }
        }
        if self.plan.request.lines {
            self.lines.extend(self.index.lines.iter().map(|line| line.cast_signed()));
        }
        if self.plan.request.bytes {
            let offset = self.offset;
            let byte = |start: &u32| (offset + u64::from(*start)).cast_signed();
            self.starts.extend(self.index.starts[..count].iter().map(byte));
        }
        if !self.bad_values.is_empty() {
            // One reject for a record: its leftmost bad value.
            self.bad_values.sort_by_key(|bad| (bad.row, bad.field));
            self.bad_values.dedup_by_key(|bad| bad.row);
            for bad in &self.bad_values {
                let (start, end) = self.index.record(bad.row);
                rejects.push((
                    start,
                    Reject {
                        raw: Bytes::copy_from_slice(&text[start..end]),
                        byte: self.offset + start as u64,
                        line: self.index.lines[bad.row],
                        reason: self.bad_value(&chunk, bad),
                    },
                ));
                self.bad_rows.push(self.rows + bad.row);
            }
        }
        self.rows += count;
        Ok(())
    }

    fn bad_value(&self, chunk: &Chunk<'_>, bad: &BadValue) -> Error {
        let raw = chunk.raw(bad.row, bad.field);
        let name = self.names.get(bad.field).map_or("", String::as_str);
        let text = self.syntax.to_text(raw);
        let data_type =
            self.plan.request.schema.field_with_name(name).map_or(&DataType::Null, |field| field.data_type());
        let at = self.offset + raw.as_ptr().addr().wrapping_sub(chunk.text.as_ptr().addr()) as u64;
        faults::value(bad.fault, data_type, &text, &self.plan.conventions)
            .line(self.index.lines[bad.row])
            .byte(at)
            .column(name)
    }

    /// Gives out the rows so far as a batch.
    fn give_out(&mut self, parsed: &mut Parsed) -> Result<()> {
        let rows = std::mem::take(&mut self.rows);
        self.batch_bytes = 0;
        if rows == 0 {
            return Ok(());
        }
        let mut arrays: Vec<ArrayRef> =
            self.columns.iter_mut().map(|column| column.builder.finish()).collect::<Result<_>>()?;
        arrays.truncate(self.schema.fields().len());
        let internal = |cause| Error::internal("the columns of a batch do not fit together").cause(cause);
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let mut batch =
            RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options).map_err(internal)?;
        let lines = std::mem::take(&mut self.lines);
        let mut lines: Option<ArrayRef> =
            self.plan.request.lines.then(|| Arc::new(Int64Array::from(lines)) as ArrayRef);
        let starts = std::mem::take(&mut self.starts);
        let mut bytes: Option<ArrayRef> =
            self.plan.request.bytes.then(|| Arc::new(Int64Array::from(starts)) as ArrayRef);
        if !self.bad_rows.is_empty() {
            let mut keep = vec![true; rows];
            self.bad_rows.drain(..).for_each(|row| keep[row] = false);
            let keep = BooleanArray::from(keep);
            batch = if batch.num_columns() == 0 {
                let options = RecordBatchOptions::new().with_row_count(Some(keep.true_count()));
                RecordBatch::try_new_with_options(Arc::clone(&self.schema), Vec::new(), &options).map_err(internal)?
            } else {
                filter_record_batch(&batch, &keep).map_err(internal)?
            };
            lines = lines.map(|lines| filter(&lines, &keep)).transpose().map_err(internal)?;
            bytes = bytes.map(|bytes| filter(&bytes, &keep)).transpose().map_err(internal)?;
        }
        if batch.num_rows() > 0 {
            parsed.rows.push(Rows { batch, lines, bytes });
        }
        Ok(())
    }

    /// Whether one of the first lines of `text`, which begins on line `line`, holds the names of the columns.
    fn names_below(&self, text: &[u8], line: u64) -> Below {
        let mut scanner = Scanner::new(self.plan.dialect.clone(), line);
        scanner.set_line_ends(self.scanner.line_ends());
        let (mut index, mut bad) = (Index::default(), Vec::new());
        let mut from = 0;
        while scanner.line() <= self.plan.skip_lines + MOST_TITLES {
            index.clear();
            match scanner.scan(text, from, false, 1, &mut index, &mut bad) {
                Scanned::Enough(next) => from = next,
                Scanned::Incomplete(_) => return Below::More,
                Scanned::TooLong(..) => return Below::Nothing,
            }
            if index.rows() == 1 {
                let names = header_names(text, &index, &self.syntax, self.plan.encoding).unwrap_or_default();
                if match_columns(&names, &self.plan.request.schema, OnDrift::Fail).is_ok() {
                    return Below::Names(index.lines[0]);
                }
            }
        }
        Below::Nothing
    }

    /// Adds text after a header without the columns. Fails as soon as the hint is known.
    fn behind_misfit(&mut self, text: &[u8], last: bool) -> Result<()> {
        let Stage::Misfit(misfit) = &mut self.stage else { return Ok(()) };
        let room = TITLE_BYTES - misfit.text.len();
        misfit.text.extend_from_slice(&text[..text.len().min(room)]);
        let is_all = last || misfit.text.len() == TITLE_BYTES;
        if misfit.text.len() < misfit.enough && !is_all {
            return Ok(());
        }
        misfit.enough = misfit.text.len() * 2;
        let Stage::Misfit(misfit) = &self.stage else { return Ok(()) };
        let below = match self.names_below(&misfit.text, misfit.line) {
            Below::More if !is_all => return Ok(()),
            Below::Names(line) => Some(line),
            Below::More | Below::Nothing => None,
        };
        let (wanted, error) = (&self.plan.request.schema, misfit.error.clone());
        Err(faults::header_hint(error, &self.plan.dialect, &misfit.header, wanted, below))
    }

    /// Fails for a header without the columns, if there is no more text to wait for.
    pub fn end_of_misfit(&mut self) -> Result<()> {
        self.behind_misfit(&[], true)
    }

    /// Reads the names of the columns from the record that the last scan found, if any.
    fn take_header(&mut self, text: &[u8]) -> Result<()> {
        if let Some(bad) = self.bad_records.first() {
            let error = faults::structure(&self.plan.dialect, bad, 0, text);
            return Err(error.byte(self.offset + bad.at as u64));
        }
        if self.index.rows() == 0 {
            return Ok(());
        }
        let line = self.index.lines[0];
        let place = |error: Error| error.line(line).byte(self.offset + u64::from(self.index.starts[0]));
        let names = header_names(text, &self.index, &self.syntax, self.plan.encoding).map_err(place)?;
        let fields = match match_columns(&names, &self.plan.request.schema, self.plan.request.on_drift) {
            Ok(fields) => fields,
            Err(error) => {
                let (start, end) = self.index.record(0);
                let header = text[start..end].to_vec();
                let (error, line) = (place(error.text(&header)), self.scanner.line());
                self.stage = Stage::Misfit(Box::new(Misfit { error, header, text: Vec::new(), line, enough: 0 }));
                return Ok(());
            }
        };
        if let Some(seen) = &self.plan.request.seen {
            seen.note(fields.len(), |column| fields.get(column).is_some_and(Option::is_some));
        }
        self.scanner.set_width(Some(names.len()));
        self.names = names;
        self.stage = Stage::Records;
        self.set_columns(fields)
    }
}

/// The hint for a header with a name twice. If the line is data, skipping it would lose a record.
const TWICE_HINT: &str = "if the first line is data, set `header: false` and declare `columns`; if it is a header, \
                          rename \
                          one of them, or set `skip_lines: 1` as well, to read the file without its header";

/// The names in the record that is the index's only one. Spaces around a name are left out; a field without a name is
/// `column_N`, N counted from 1; two equal names are an error.
pub(crate) fn header_names(
    text: &[u8],
    index: &Index,
    syntax: &Syntax,
    declared: Option<&'static Encoding>,
) -> Result<Vec<String>> {
    let chunk = Chunk { text, shared: None, index, syntax };
    let mut names: Vec<String> = Vec::with_capacity(index.width);
    for field in 0..index.width {
        let name = syntax.to_text(chunk.raw(0, field));
        let name = String::from_utf8(name).map_err(|error| encoding::fault(declared, error.as_bytes()))?;
        let name = match name.trim() {
            "" => column_name(field),
            name => name.to_owned(),
        };
        if let Some(first) = names.iter().position(|known| *known == name) {
            return Err(Error::data(format!("the header has the column {name} twice"))
                .text(&name)
                .cause(format!("it is in field {} and in field {}", first + 1, field + 1))
                .hint(TWICE_HINT));
        }
        names.push(name);
    }
    Ok(names)
}

/// The name of a field (from 0) without a name.
pub(crate) fn column_name(field: usize) -> String {
    format!("column_{}", field + 1)
}

impl Parser for CsvParser {
    fn push(&mut self, text: Bytes, parsed: &mut Parsed) -> Result<()> {
        let text = self.decoder.push(text);
        self.wait(text);
        while self.waits() && !parsed.is_full() {
            self.next_text(parsed)?;
        }
        Ok(())
    }

    fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn finish(&mut self, parsed: &mut Parsed) -> Result<()> {
        let text = self.decoder.finish();
        self.wait(text);
        while self.waits() {
            self.next_text(parsed)?;
        }
        let carry = std::mem::take(&mut self.carry);
        if !carry.is_empty() {
            self.scan(&carry, 0, true, 1)?;
            self.take_carry(&carry, parsed)?;
        }
        self.end_of_misfit()?;
        let is_due = self.plan.header && !matches!(self.stage, Stage::Records);
        if is_due && self.plan.request.empty_files == EmptyFiles::Error {
            return Err(faults::no_header(self.offset == 0, self.plan.skip_lines));
        }
        self.give_out(parsed)
    }

    fn fork(&self, at: TextPosition) -> Option<Box<dyn Parser>> {
        // The first line end decides which ones count.
        let knows_line_ends = self.scanner.line_ends().is_some();
        if !matches!(self.stage, Stage::Records) || !knows_line_ends {
            return None;
        }
        let plan = Arc::clone(&self.plan);
        let mut parser = CsvParser::at(at, plan, self.decoder.fork()?, Stage::Records, self.names.clone());
        parser.set_columns(self.fields.clone()).ok()?;
        parser.scanner.set_width(Some(self.names.len()));
        parser.scanner.set_line_ends(self.scanner.line_ends());
        Some(Box::new(parser))
    }
}

impl CsvParser {
    /// Queues text. A byte order mark is part of the unit's bytes; it is counted when the first text after it comes.
    fn wait(&mut self, text: Bytes) {
        if !text.is_empty() {
            self.offset += self.decoder.take_mark();
            self.waiting.push_back(text);
        }
    }
}
