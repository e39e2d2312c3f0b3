//! What a program gives: where an answer ends, and its rows.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use millstream_core::format::{EmptyFiles, ParseRequest, Parsed, Parser, Reject};
use millstream_core::reject::RejectKind;
use millstream_core::transform::{Answer, Failure, Per};
use millstream_core::{Error, ErrorKind, Result};

use super::arrow_stream::ArrowStream;
use super::exchange::{Exchange, Records};
use crate::arrow_rows::{given, nullable};
use crate::unread::Unread;

/// The longest answer that is held, in bytes.
const MOST_BYTES: usize = 256 << 20;

/// Reads the answers of one program.
pub(super) struct Answers {
    per: Per,
    gives: SchemaRef,
    form: Form,
    /// What was read and is part of no answer yet.
    unread: Unread,
    /// How many bytes of `unread` were looked at.
    scanned: usize,
}

enum Form {
    Text {
        exchange: Exchange,
        records: Records,
        /// The record before all others, with its line end, once it is there.
        header: Option<Bytes>,
        scan: Scan,
    },
    Arrow {
        stream: ArrowStream,
        batches: Vec<RecordBatch>,
        /// How many of `batches` there were at each end.
        ends: Vec<usize>,
    },
}

/// What of an answer was found so far.
#[derive(Default)]
struct Scan {
    in_quotes: bool,
    /// Where quotes were closed last: another one right behind it is part of the text.
    closed: Option<usize>,
    /// Where the record begins that is not complete.
    begun: usize,
    /// Of answers for rows: each record, without its line end; `None` for a row that is left out.
    records: Vec<Option<Range<usize>>>,
    /// Of answers for batches: where the end of each stands, and how long it is.
    ends: Vec<Range<usize>>,
}

impl Answers {
    /// Of a program that is called for `per` and gives rows with the columns `gives`.
    pub fn new(exchange: &Exchange, per: Per, gives: &SchemaRef) -> Self {
        let form = match exchange {
            Exchange::Text(records, _) => {
                Form::Text { exchange: exchange.clone(), records: *records, header: None, scan: Scan::default() }
            }
            Exchange::Arrow => Form::Arrow { stream: ArrowStream::default(), batches: Vec::new(), ends: Vec::new() },
        };
        Answers { per, gives: Arc::clone(gives), form, unread: Unread::default(), scanned: 0 }
    }

    /// Whether an answer is longer than any may be.
    pub fn is_too_long(&self) -> bool {
        self.unread.len() > MOST_BYTES
    }

    /// Where bytes that are read go.
    pub fn space(&mut self) -> &mut Vec<u8> {
        self.unread.space()
    }

    /// Whether the answer to `asked` rows (of answers for rows) or to `asked` batches or groups is complete.
    ///
    /// # Errors
    /// If what was read is no form of rows.
    pub fn is_complete(&mut self, asked: usize) -> Result<bool> {
        let Answers { per, form, unread, scanned, .. } = self;
        match form {
            Form::Text { records, header, scan, .. } => {
                scan.go_on(*records, *per, header, unread, scanned, asked);
                Ok(match per {
                    Per::Row => scan.records.len() >= asked,
                    _ => scan.ends.len() >= asked,
                })
            }
            Form::Arrow { stream, batches, ends } => loop {
                let is_complete = match per {
                    Per::Group => ends.len() >= asked,
                    _ => !batches.is_empty(),
                };
                if is_complete {
                    return Ok(true);
                }
                match stream.next(unread)? {
                    Some(batch) if batch.num_rows() == 0 && *per == Per::Group => ends.push(batches.len()),
                    Some(batch) => batches.push(batch),
                    None => return Ok(false),
                }
            },
        }
    }

    /// How many answers for rows were found so far; of other answers, how many were read as a whole.
    pub fn count(&self) -> usize {
        match &self.form {
            Form::Text { scan, .. } => scan.records.len().max(scan.ends.len()),
            Form::Arrow { ends, .. } => ends.len(),
        }
    }

    /// Whether there is more than was asked for. To be asked when an answer was taken.
    pub fn is_surplus(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Whether there are rows behind the last answer, when all was read. An Arrow stream has its end there.
    ///
    /// # Errors
    /// If what is there is no form of rows.
    pub fn has_rows_left(&mut self) -> Result<bool> {
        match &mut self.form {
            Form::Arrow { stream, .. } => Ok(stream.next(&mut self.unread)?.is_some() || !self.unread.is_empty()),
            Form::Text { .. } => Ok(!self.unread.trim_ascii().is_empty()),
        }
    }

    /// The answer, which is complete, and taken by that.
    ///
    /// # Errors
    /// If it cannot be read as a whole, or does not have the columns that it should have.
    pub fn take(&mut self, asked: usize) -> Result<Answer> {
        self.scanned = 0;
        match &mut self.form {
            Form::Text { exchange, header, scan, .. } => {
                let scan = std::mem::take(scan);
                let text = self.unread.split_to(scan.begun);
                let reading = TextAnswer { exchange, header: header.as_ref(), gives: &self.gives, text };
                match self.per {
                    Per::Row => reading.of_rows(&scan.records),
                    per => reading.of_groups(&scan.ends, per),
                }
            }
            Form::Arrow { batches, ends, .. } => {
                let batches = std::mem::take(batches);
                ends.clear();
                let rows = batches.iter().map(|batch| given(batch, &self.gives, "the program"));
                let rows = together(&self.gives, rows.collect::<Result<Vec<_>>>()?)?;
                let origins = match self.per {
                    Per::Row if rows.num_rows() != asked => {
                        let what = format!("the program gave {} rows for {asked}", rows.num_rows());
                        return Err(Error::data(what).hint("`per: row` gives a row for each; use `per: batch`"));
                    }
                    Per::Row => Some(UInt32Array::from_iter_values(0..asked as u32)),
                    _ => None,
                };
                Ok(Answer { rows, origins, failures: Vec::new() })
            }
        }
    }
}

impl Scan {
    /// Looks at the rest of `unread`, as far as the answer goes.
    fn go_on(
        &mut self,
        records: Records,
        per: Per,
        header: &mut Option<Bytes>,
        unread: &mut Unread,
        scanned: &mut usize,
        asked: usize,
    ) {
        let is_csv = records == Records::Csv;
        loop {
            let found = match per {
                Per::Row => self.records.len(),
                _ => self.ends.len(),
            };
            if found >= asked {
                return;
            }
            let rest = &unread[*scanned..];
            let next = if is_csv { memchr::memchr2(b'\n', b'"', rest) } else { memchr::memchr(b'\n', rest) };
            let Some(at) = next.map(|at| *scanned + at) else {
                *scanned = unread.len();
                return;
            };
            *scanned = at + 1;
            if unread[at] == b'"' {
                let is_first = at == self.begun || unread[at - 1] == b',';
                match self.in_quotes {
                    true => self.closed = Some(at),
                    false if !is_first && self.closed != at.checked_sub(1) => continue,
                    false => self.closed = None,
                }
                self.in_quotes = self.closed.is_none();
                continue;
            }
            if self.in_quotes {
                continue;
            }
            self.closed = None;
            let start = std::mem::replace(&mut self.begun, at + 1);
            let end = if at > start && unread[at - 1] == b'\r' { at - 1 } else { at };
            if is_csv && header.is_none() && start < end {
                // Ends of batches without rows are before it.
                *header = Some(unread.remove(start..at + 1));
                (*scanned, self.begun) = (start, start);
                continue;
            }
            let is_blank = unread[start..end].trim_ascii().is_empty();
            match (per, records) {
                (Per::Row, Records::Lines) => self.records.push(Some(start..end)),
                (Per::Row, Records::Csv) => self.records.push((start < end).then_some(start..end)),
                (Per::Row, Records::Json) if is_blank => {}
                (Per::Row, Records::Json) => {
                    let is_null = unread[start..end].trim_ascii() == b"null";
                    self.records.push((!is_null).then_some(start..end));
                }
                _ if start == end => self.ends.push(start..at + 1),
                _ => {}
            }
        }
    }
}

/// An answer as text.
struct TextAnswer<'a> {
    exchange: &'a Exchange,
    header: Option<&'a Bytes>,
    gives: &'a SchemaRef,
    text: Bytes,
}

/// The rows of a text, and the records that are none.
struct Read {
    rows: RecordBatch,
    rejects: Vec<Reject>,
}

impl TextAnswer<'_> {
    /// Of an answer for rows: `records` has what belongs to each.
    fn of_rows(&self, records: &[Option<Range<usize>>]) -> Result<Answer> {
        let kept: Vec<u32> = (0..).zip(records).filter(|(_, record)| record.is_some()).map(|(row, _)| row).collect();
        let text = match kept.len() == records.len() {
            true => self.text.clone(),
            false => self.joined(records.iter().flatten().cloned(), b"\n"),
        };
        let Read { rows, rejects } = self.read(text)?;
        let mut failures = Vec::new();
        let mut is_bad = vec![false; kept.len()];
        if !rejects.is_empty() {
            // Where each record begins in the text that was parsed.
            let mut starts = Vec::with_capacity(kept.len());
            let (mut at, joined) = (0, kept.len() < records.len());
            for record in records.iter().flatten() {
                starts.push(if joined { at } else { record.start });
                at += record.len() + 1;
            }
            for reject in rejects {
                let record = starts.partition_point(|start| *start as u64 <= reject.byte).saturating_sub(1);
                is_bad[record] = true;
                failures.push(Failure { part: Some(kept[record]), error: unreadable_record(&reject) });
            }
        }
        let good = kept.iter().zip(&is_bad).filter(|(_, bad)| !**bad).map(|(row, _)| *row);
        let origins = UInt32Array::from_iter_values(good);
        if origins.len() != rows.num_rows() {
            let what = format!("the program gave {} rows in {} records", rows.num_rows(), origins.len());
            return Err(Error::data(what).text(&self.text));
        }
        Ok(Answer { rows, origins: Some(origins), failures })
    }

    /// Of an answer for batches or groups, each of which ends where `ends` says.
    fn of_groups(&self, ends: &[Range<usize>], per: Per) -> Result<Answer> {
        let begins = std::iter::once(0).chain(ends.iter().map(|end| end.end));
        let groups: Vec<Range<usize>> = begins.zip(ends).map(|(begin, end)| begin..end.start).collect();
        let Read { rows, rejects } = self.read(self.joined(groups.iter().cloned(), b""))?;
        if rejects.is_empty() {
            return Ok(Answer { rows, origins: None, failures: Vec::new() });
        }
        // Each by itself, to find those that are at fault.
        let (mut good, mut failures) = (Vec::new(), Vec::new());
        for (number, group) in (0..).zip(groups) {
            let Read { rows, rejects } = self.read(self.text.slice(group))?;
            match rejects.first() {
                None => good.push(rows),
                Some(reject) => {
                    let part = (per == Per::Group).then_some(number);
                    failures.push(Failure { part, error: unreadable_record(reject) });
                }
            }
        }
        Ok(Answer { rows: together(self.gives, good)?, origins: None, failures })
    }

    fn joined(&self, parts: impl Iterator<Item = Range<usize>>, end: &[u8]) -> Bytes {
        let parts: Vec<Range<usize>> = parts.collect();
        if let ([part], true) = (parts.as_slice(), end.is_empty()) {
            return self.text.slice(part.clone());
        }
        let mut joined = Vec::with_capacity(parts.iter().map(|part| part.len() + end.len()).sum());
        for part in parts {
            joined.extend_from_slice(&self.text[part]);
            joined.extend_from_slice(end);
        }
        joined.into()
    }

    fn read(&self, text: Bytes) -> Result<Read> {
        let (_, format) = self.exchange.text()?;
        let mut request = ParseRequest::all(Arc::clone(self.gives));
        // What gives no rows need not give a header.
        request.empty_files = EmptyFiles::Allow;
        let mut parser = format.parser(&request).map_err(of_program)?;
        let mut parsed = Parsed::default();
        let header = self.header.cloned().unwrap_or_default();
        let before = header.len() as u64;
        for piece in [header, text] {
            push(&mut *parser, piece, &mut parsed).map_err(of_program)?;
        }
        parser.finish(&mut parsed).map_err(of_program)?;
        let rows = parsed.rows.into_iter().map(|rows| rows.batch).collect();
        let mut rejects = parsed.rejects;
        rejects.iter_mut().for_each(|reject| reject.byte = reject.byte.saturating_sub(before));
        Ok(Read { rows: together(self.gives, rows)?, rejects })
    }
}

/// Parses `text`, unless there is none.
fn push(parser: &mut dyn Parser, text: Bytes, parsed: &mut Parsed) -> Result<()> {
    if !text.is_empty() {
        parser.push(text, parsed)?;
    }
    while parser.waits() {
        // One that is full would take nothing.
        let mut more = Parsed::default();
        parser.push(Bytes::new(), &mut more)?;
        parsed.append(more);
    }
    Ok(())
}

/// `error` of a format, which speaks of files and of what a source may say of them.
fn of_program(error: Error) -> Error {
    if error.kind() != ErrorKind::Data {
        return error;
    }
    let told = Error::data(error.what().replace("the file", "the output of the program"));
    let told = error.offending_text().into_iter().fold(told, Error::text);
    let told = error.cause_text().into_iter().fold(told, |told, cause| told.cause(cause));
    told.reject(error.reject_kind()).hint("correct what the program writes, or `columns`")
}

/// What a record of a program is that is no row.
fn unreadable_record(reject: &Reject) -> Error {
    let reason = &reject.reason;
    let mut error = Error::data(format!("the program gave a record that is no row: {}", reason.what()))
        .reject(RejectKind::Value)
        .text(&reject.raw);
    if let Some(cause) = reason.cause_text() {
        error = error.cause(cause);
    }
    match reason.hint_text() {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

/// All rows of `batches`.
fn together(gives: &SchemaRef, batches: Vec<RecordBatch>) -> Result<RecordBatch> {
    let schema = nullable(gives);
    let batches: Vec<RecordBatch> = batches
        .into_iter()
        .map(|batch| batch.with_schema(Arc::clone(&schema)))
        .collect::<Result<_, _>>()
        .map_err(unfit)?;
    match <[RecordBatch; 1]>::try_from(batches) {
        Ok([batch]) => Ok(batch),
        Err(batches) => concat_batches(&schema, &batches).map_err(unfit),
    }
}

fn unfit(cause: arrow::error::ArrowError) -> Error {
    Error::internal("rows of a program do not fit together").cause(cause)
}

/// Reads rows as they come: those of a stream, or the answer to one group.
pub(super) struct Given<'a> {
    answers: &'a mut Answers,
    /// Of a text.
    parser: Option<Box<dyn Parser>>,
    is_complete: bool,
}

impl<'a> Given<'a> {
    /// What `answers` reads next: of a text only the columns that are `wanted`, if they are not all.
    ///
    /// # Errors
    /// If the exchange cannot be read.
    pub fn new(answers: &'a mut Answers, wanted: Option<&[usize]>) -> Result<Self> {
        let parser = match &answers.form {
            Form::Arrow { .. } => None,
            Form::Text { exchange, header, .. } => {
                let mut request = ParseRequest::all(Arc::clone(&answers.gives));
                // What gives no rows need not give a header.
                request.empty_files = EmptyFiles::Allow;
                if let Some(wanted) = wanted {
                    request.projection = wanted.to_vec();
                }
                let mut parser = exchange.text()?.1.parser(&request).map_err(of_program)?;
                let header = header.clone().unwrap_or_default();
                push(&mut *parser, header, &mut Parsed::default()).map_err(of_program)?;
                Some(parser)
            }
        };
        Ok(Given { answers, parser, is_complete: false })
    }

    /// Where bytes that are read go.
    pub fn space(&mut self) -> &mut Vec<u8> {
        self.answers.space()
    }

    /// Whether there is more than the answer.
    pub fn is_surplus(&self) -> bool {
        self.answers.is_surplus()
    }

    /// Whether a record is longer than any may be.
    pub fn is_too_long(&self) -> bool {
        self.answers.is_too_long()
    }

    /// Whether the group's answer has ended. A stream ends with its bytes.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The rows of what was read since the last call.
    ///
    /// # Errors
    /// If something cannot be read.
    pub fn rows(&mut self) -> Result<Vec<RecordBatch>> {
        let Given { answers: Answers { per, gives, form, unread, scanned }, parser, is_complete } = self;
        let mut parsed = Parsed::default();
        match (form, parser) {
            (Form::Text { records, header, scan, .. }, Some(parser)) => {
                let text = match per {
                    Per::Stream => unread.split_to(unread.len()),
                    _ => {
                        let had_header = header.is_some();
                        scan.go_on(*records, *per, header, unread, scanned, 1);
                        if let (false, Some(header)) = (had_header, &*header) {
                            push(&mut **parser, header.clone(), &mut parsed).map_err(of_program)?;
                        }
                        let mut text = unread.split_to(scan.begun);
                        if let Some(end) = scan.ends.pop() {
                            text.truncate(end.start);
                            *is_complete = true;
                        }
                        scan.closed = scan.closed.and_then(|closed| closed.checked_sub(scan.begun));
                        (*scanned, scan.begun) = (*scanned - scan.begun, 0);
                        text
                    }
                };
                push(&mut **parser, text, &mut parsed).map_err(of_program)?;
                if *is_complete {
                    parser.finish(&mut parsed).map_err(of_program)?;
                }
            }
            (Form::Arrow { stream, .. }, _) => {
                let mut rows = Vec::new();
                while !*is_complete && let Some(batch) = stream.next(unread)? {
                    match batch.num_rows() {
                        0 => *is_complete = *per == Per::Group,
                        _ => rows.push(given(&batch, gives, "the program")?),
                    }
                }
                return Ok(rows);
            }
            (Form::Text { .. }, None) => {}
        }
        rows_of(parsed)
    }

    /// The rows that are left at the end of a stream's bytes.
    ///
    /// # Errors
    /// If they end within a record.
    pub fn rest(&mut self) -> Result<Vec<RecordBatch>> {
        match (&mut self.parser, &self.answers.form) {
            (Some(parser), _) => {
                let mut parsed = Parsed::default();
                parser.finish(&mut parsed).map_err(of_program)?;
                rows_of(parsed)
            }
            (None, _) if self.answers.is_surplus() => {
                Err(Error::data("what the program gave is no Arrow IPC stream").cause("it ends within a batch"))
            }
            (None, _) => Ok(Vec::new()),
        }
    }
}

fn rows_of(parsed: Parsed) -> Result<Vec<RecordBatch>> {
    match parsed.rejects.first() {
        Some(reject) => Err(unreadable_record(reject)),
        None => Ok(parsed.rows.into_iter().map(|rows| rows.batch).collect()),
    }
}
