//! Text to lines.
//!
//! `\n` ends a line, and a `\r` before it is removed; a `\r` elsewhere is part of the line. A last line without `\n`
//! counts, so a text has as many lines as `wc -l` says, or one more. Without columns only line ends are counted. If
//! lines must contain a text, it is searched, and the lines between two hits are skipped together.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use encoding_rs::Encoding;
use memchr::{memchr, memchr_iter};
use millstream_core::contains::Contains;
use millstream_core::format::{BATCH_BYTES, ParseRequest, Parsed, Parser, Reject, Rows, TextPosition};
use millstream_core::spec::Size;
use millstream_core::{Error, Result};

use crate::contains::{Hits, Search};
use crate::csv::Texts;
use crate::encoding::{self, ToUtf8};

/// A pushed text is taken in pieces of at most this size: positions in views have 32 bits.
const PIECE: usize = 1 << 29;

/// What does not change while a unit is parsed.
#[derive(Clone)]
struct Settings {
    encoding: Option<&'static Encoding>,
    max_record: usize,
    schema: SchemaRef,
    /// How often the line is among the output's columns (0 or more).
    columns: usize,
    /// Whether the number of each line is needed.
    lines: bool,
    /// Whether the position of each line is needed.
    bytes: bool,
    batch_rows: usize,
    /// What lines must contain, or they are no rows.
    contains: Option<Search>,
    /// What sound lines must contain to be wanted.
    required: Option<Search>,
}

impl Settings {
    /// Whether nothing but the texts of lines is needed.
    fn are_texts_alone(&self) -> bool {
        self.columns > 0 && !self.lines && !self.bytes
    }

    /// Whether lines are only counted.
    fn is_count(&self) -> bool {
        self.columns == 0 && !self.lines && !self.bytes && self.contains.is_none()
    }

    /// Whether `line`, which is not too long, is dropped.
    fn drops(&self, line: &[u8]) -> bool {
        self.contains
            .as_ref()
            .is_some_and(|contains| line.len() <= self.max_record && !contains.matches(without_return(line)))
    }
}

/// Parses one unit.
pub(crate) struct LineParser {
    decoder: ToUtf8,
    settings: Settings,
    texts: Texts,
    lines: Vec<i64>,
    starts: Vec<i64>,
    rows: usize,
    /// Bytes of the text that the batch is from.
    batch_bytes: usize,
    /// Text that was pushed and is not parsed yet.
    waiting: VecDeque<Bytes>,
    /// The beginning of a line that continues in the next push; if only line ends are counted, only its length.
    carry: Vec<u8>,
    carried: usize,
    /// The line that comes next, from 1.
    line: u64,
    /// Where the next line begins in the unit, in bytes of UTF-8.
    offset: u64,
}

impl LineParser {
    /// At the beginning of a unit.
    pub fn new(request: &ParseRequest, encoding: Option<&'static Encoding>, max_record: usize) -> Result<Self> {
        let required = request.required.iter().map(|required| required.text.clone()).collect();
        let decoder = ToUtf8::new(encoding);
        let settings = Settings {
            encoding,
            max_record,
            schema: request.output_schema(),
            columns: request.projection.len(),
            lines: request.lines,
            bytes: request.bytes,
            batch_rows: request.batch_rows.max(1),
            contains: Search::new(&request.contains)?,
            required: Search::new(&Contains { all: required, any: Vec::new() })?,
        };
        Ok(LineParser::at(TextPosition { byte: 0, line: 1 }, settings, decoder))
    }

    fn at(place: TextPosition, settings: Settings, decoder: ToUtf8) -> Self {
        LineParser {
            decoder,
            texts: Texts::new(if settings.columns == 0 { 0 } else { settings.batch_rows.min(1 << 16) }),
            settings,
            lines: Vec::new(),
            starts: Vec::new(),
            rows: 0,
            batch_bytes: 0,
            waiting: VecDeque::new(),
            carry: Vec::new(),
            carried: 0,
            line: place.line,
            offset: place.byte,
        }
    }

    /// Queues text.
    fn wait(&mut self, text: Bytes) {
        if !text.is_empty() {
            self.offset += self.decoder.take_mark();
            self.waiting.push_back(text);
        }
    }

    /// Parses the next waiting text.
    fn next_text(&mut self, parsed: &mut Parsed) -> Result<()> {
        let Some(mut text) = self.waiting.pop_front() else { return Ok(()) };
        let mut piece = text.split_to(text.len().min(PIECE));
        if !text.is_empty() {
            self.waiting.push_front(text);
        }
        if self.settings.is_count() {
            return self.count(&piece, parsed);
        }
        let taken = self.piece(&piece, parsed)?;
        if taken < piece.len() {
            self.waiting.push_front(piece.split_off(taken));
        }
        Ok(())
    }

    /// Only counts. The limit of lines is still checked, so that the same texts are errors.
    fn count(&mut self, piece: &[u8], parsed: &mut Parsed) -> Result<()> {
        let last = memchr::memrchr(b'\n', piece);
        let count = memchr_iter(b'\n', piece).count();
        if self.carried + piece.len() > self.settings.max_record {
            self.look_for_long_line(piece)?;
        }
        match last {
            None => self.carried += piece.len(),
            Some(last) => {
                self.offset += (self.carried + last + 1) as u64;
                self.carried = piece.len() - last - 1;
            }
        }
        self.line += count as u64;
        let mut left = count;
        while left > 0 {
            let rows = left.min(self.settings.batch_rows - self.rows);
            self.rows += rows;
            left -= rows;
            self.give_out_full(parsed)?;
        }
        Ok(())
    }

    fn look_for_long_line(&self, piece: &[u8]) -> Result<()> {
        let mut length = self.carried;
        let mut start = 0;
        let mut passed = 0;
        for (count, end) in memchr_iter(b'\n', piece).chain([piece.len()]).enumerate() {
            length += end - start;
            if length > self.settings.max_record {
                let mut error = self.too_long(None, count as u64);
                if count > 0 {
                    error = error.byte(self.offset + passed);
                }
                return Err(error);
            }
            passed += length as u64 + 1;
            length = 0;
            start = end + 1;
        }
        Ok(())
    }

    /// Parses the lines of a piece, until there are too many rejects. Returns the bytes used.
    fn piece(&mut self, piece: &Bytes, parsed: &mut Parsed) -> Result<usize> {
        let mut place = None;
        let mut start = 0;
        let contains = self.settings.contains.clone();
        // Validating the whole piece spares validating each line, unless most are dropped.
        let valid = contains.is_none() && simdutf8::basic::from_utf8(piece).is_ok();
        let search = contains.or_else(|| self.settings.required.clone().filter(|_| valid));
        let mut hits = search.as_ref().map(|search| Hits::new(search, piece));
        let is_plain = valid && hits.is_none() && self.settings.are_texts_alone();
        while let Some(end) = memchr(b'\n', &piece[start..]).map(|length| start + length) {
            if is_plain && self.carry.is_empty() && end - start <= self.settings.max_record {
                start = self.plain_lines(piece, start, &mut place);
                if self.is_batch_full() {
                    self.give_out(parsed)?;
                    place = None;
                }
                continue;
            }
            if !self.carry.is_empty() {
                let mut line = std::mem::take(&mut self.carry);
                line.extend_from_slice(&piece[start..end]);
                self.take_or_drop(&line, &mut place, parsed)?;
                line.clear();
                self.carry = line;
            } else if let Some(hits) = &mut hits {
                let longest = self.settings.max_record;
                let next = hits.lines_without(start, longest);
                if next > start {
                    self.pass_over(&piece[start..next], parsed);
                    start = next;
                    continue;
                }
                if end - start <= longest && !hits.has(start, start + without_return(&piece[start..end]).len()) {
                    self.pass_over(&piece[start..=end], parsed);
                    start = end + 1;
                    continue;
                }
                // Alone it must not keep a whole text alive.
                self.take(&piece[start..end], None, valid, &mut place, parsed)?;
            } else {
                self.take(&piece[start..end], Some((piece, start)), valid, &mut place, parsed)?;
            }
            self.offset += 1;
            start = end + 1;
            if self.is_batch_full() {
                self.give_out(parsed)?;
                place = None;
            }
            if parsed.is_full() {
                return Ok(start);
            }
        }
        self.carry.extend_from_slice(&piece[start..]);
        if self.carry.len() > self.settings.max_record {
            return Err(self.too_long(Some(&self.carry), 0));
        }
        Ok(piece.len())
    }

    fn is_batch_full(&self) -> bool {
        self.rows >= self.settings.batch_rows || self.batch_bytes >= BATCH_BYTES
    }

    /// Takes lines of a piece of UTF-8 from `start` on, until the batch is full or one is too long. Returns where they
    /// end. What [`take`](Self::take) does for each line is done for all of them here.
    fn plain_lines(&mut self, piece: &Bytes, start: usize, place: &mut Option<u32>) -> usize {
        let most = self.settings.batch_rows - self.rows;
        let (mut begun, mut count) = (start, 0);
        for end in memchr_iter(b'\n', &piece[start..]).take(most).map(|length| start + length) {
            if end - begun > self.settings.max_record || self.batch_bytes + begun - start >= BATCH_BYTES {
                break;
            }
            let raw = &piece[begun..end];
            let line = without_return(raw);
            self.texts.append_shared(line, begun, piece, place);
            begun = end + 1;
            count += 1;
        }
        self.rows += count;
        self.line += count as u64;
        self.offset += (begun - start) as u64;
        self.batch_bytes += begun - start;
        begun
    }

    /// Skips `lines`, which are whole.
    fn pass_over(&mut self, lines: &[u8], parsed: &mut Parsed) {
        let count = memchr_iter(b'\n', lines).count() as u64;
        parsed.passed_over += count;
        self.line += count;
        self.offset += lines.len() as u64;
    }

    /// Takes a line of its own, without its `\n`, if it has what lines must contain.
    fn take_or_drop(&mut self, raw: &[u8], place: &mut Option<u32>, parsed: &mut Parsed) -> Result<()> {
        if !self.settings.drops(raw) {
            return self.take(raw, None, false, place, parsed);
        }
        parsed.passed_over += 1;
        self.line += 1;
        self.offset += raw.len() as u64;
        Ok(())
    }

    /// Takes a line without its `\n`; `shared` is the text that it is part of, and its index among the buffers.
    fn take(
        &mut self,
        raw: &[u8],
        shared: Option<(&Bytes, usize)>,
        valid: bool,
        place: &mut Option<u32>,
        parsed: &mut Parsed,
    ) -> Result<()> {
        if raw.len() > self.settings.max_record {
            return Err(self.too_long(Some(raw), 0));
        }
        let line = without_return(raw);
        if !valid && let Err(fault) = simdutf8::compat::from_utf8(line) {
            let at = fault.valid_up_to();
            let reason =
                encoding::fault(self.settings.encoding, &line[at..]).line(self.line).byte(self.offset + at as u64);
            parsed.refuse(Reject { raw: Bytes::copy_from_slice(line), byte: self.offset, line: self.line, reason });
        } else {
            if self.settings.columns > 0 {
                match shared {
                    Some((text, start)) => self.texts.append_shared(line, start, text, place),
                    None => self.texts.append_own(|own| own.extend_from_slice(line)),
                }
            }
            if self.settings.lines {
                self.lines.push(self.line.cast_signed());
            }
            if self.settings.bytes {
                self.starts.push(self.offset.cast_signed());
            }
            self.rows += 1;
        }
        self.line += 1;
        self.offset += raw.len() as u64;
        self.batch_bytes += raw.len() + 1;
        if parsed.is_full() { self.give_out(parsed) } else { Ok(()) }
    }

    /// The error of a line that is too long. The message shows the same part of `line` however the text was cut.
    fn too_long(&self, line: Option<&[u8]>, lines_before: u64) -> Error {
        let limit = Size(self.settings.max_record as u64);
        let error = Error::data(format!("the line is longer than {limit}"))
            .line(self.line + lines_before)
            .byte(self.offset)
            .hint("raise `max_record` if lines may be that long; a file without line ends may not be text");
        match line {
            Some(line) => error.text(&line[..line.len().min(self.settings.max_record)]),
            None => error,
        }
    }

    fn give_out_full(&mut self, parsed: &mut Parsed) -> Result<()> {
        if self.rows >= self.settings.batch_rows { self.give_out(parsed) } else { Ok(()) }
    }

    fn give_out(&mut self, parsed: &mut Parsed) -> Result<()> {
        let rows = std::mem::take(&mut self.rows);
        self.batch_bytes = 0;
        if rows == 0 {
            return Ok(());
        }
        let arrays: Vec<ArrayRef> =
            if self.settings.columns == 0 { Vec::new() } else { vec![self.texts.array(); self.settings.columns] };
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.settings.schema), arrays, &options)
            .map_err(|cause| Error::internal("the columns of a batch do not fit together").cause(cause))?;
        let lines = std::mem::take(&mut self.lines);
        let lines = self.settings.lines.then(|| Arc::new(Int64Array::from(lines)) as ArrayRef);
        let starts = std::mem::take(&mut self.starts);
        let bytes = self.settings.bytes.then(|| Arc::new(Int64Array::from(starts)) as ArrayRef);
        parsed.rows.push(Rows { batch, lines, bytes });
        Ok(())
    }
}

/// A line without the `\r` of its line end.
fn without_return(raw: &[u8]) -> &[u8] {
    raw.strip_suffix(b"\r").unwrap_or(raw)
}

impl Parser for LineParser {
    fn fork(&self, at: TextPosition) -> Option<Box<dyn Parser>> {
        Some(Box::new(LineParser::at(at, self.settings.clone(), self.decoder.fork()?)))
    }

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
        self.rows += usize::from(self.carried > 0);
        if !self.carry.is_empty() {
            let line = std::mem::take(&mut self.carry);
            self.take_or_drop(&line, &mut None, parsed)?;
        }
        self.give_out(parsed)
    }
}
