//! The format traits: text to batches and back.
//!
//! A *stream* format (lines, csv, json) is parsed as its text arrives. A *range* format (parquet) has its directory
//! at the end and asks for the ranges it needs.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::codec::Limits;
use crate::contains::Contains;
use crate::{Budget, Error, Result};

/// The type of text columns everywhere in Millstream: views into the decoded text, which saves the copy.
pub const TEXT: DataType = DataType::Utf8View;

/// Rows in a batch, unless something else is asked for.
pub const BATCH_ROWS: usize = 8192;

/// What to do when the columns of one file of a source differ from the others'.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnDrift {
    /// A missing or an additional column is an error. Another order is not: columns are matched by name.
    #[default]
    Fail,
    /// A missing column is null, an additional one is ignored.
    Null,
    /// The source has the columns of all its files: every file is inspected before the first is read, and a type that
    /// differs is widened (int64 with float64 is float64, anything else utf8).
    Widen,
}

/// What an empty file means where a header (csv) or a directory (parquet) is required.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EmptyFiles {
    /// It ends the run: a file that was cut short looks like this.
    #[default]
    Error,
    /// It is a file without rows.
    Allow,
}

/// Which columns of the source a file has: told by its parsers (several, if its text is parsed in pieces), asked when
/// it is at its end.
#[derive(Debug, Clone, Default)]
pub struct SeenColumns(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    /// Of each column of the source whether it was seen.
    columns: Vec<bool>,
    /// A column that is none of the source's.
    other: Option<String>,
}

impl SeenColumns {
    /// The file has the columns (counted as in the request's schema) for which `has` says so. To be called at least
    /// once.
    pub fn note(&self, count: usize, has: impl Fn(usize) -> bool) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.columns.resize(count, false);
        seen.columns.iter_mut().enumerate().for_each(|(column, seen)| *seen |= has(column));
    }

    /// The file has this column, which is none of the source's.
    pub fn note_other(&self, name: &str) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.other.get_or_insert_with(|| name.to_owned());
    }

    /// The columns that the file lacks; none if nothing was told of it.
    pub fn missing(&self) -> Vec<usize> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.columns.iter().enumerate().filter(|(_, seen)| !**seen).map(|(column, _)| column).collect()
    }

    /// If the file has none of the source's columns and another one: that.
    pub fn only_other(&self) -> Option<String> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.other.clone().filter(|_| !seen.columns.contains(&true))
    }
}

/// When values are converted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Validate {
    /// Values of the columns that the job uses; the structure (quotes, field counts) always.
    #[default]
    Used,
    /// Every value of every column.
    All,
}

/// The beginning of one unit (or member), from which columns and types are guessed.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The unit it is from, for messages.
    pub uri: String,
    /// Its first decoded bytes.
    pub text: Bytes,
    /// Whether `text` is all there is. If not, its last record may be cut.
    pub complete: bool,
}

/// What a parser is asked for.
#[derive(Debug, Clone)]
pub struct ParseRequest {
    /// The columns of the source.
    pub schema: SchemaRef,
    /// The columns that are used, as indices into `schema`, in the order of the output.
    pub projection: Vec<usize>,
    /// What a file with other columns means.
    pub on_drift: OnDrift,
    /// What a file with nothing in it means.
    pub empty_files: EmptyFiles,
    /// What is to be told which columns the file has, if anybody asks.
    pub seen: Option<SeenColumns>,
    /// Whether the text is one record that was cut out of a file, behind what stood before that file's first record.
    pub single: bool,
    /// Which values are converted.
    pub validate: Validate,
    /// Whether [`Rows::lines`] is wanted.
    pub lines: bool,
    /// Whether [`Rows::bytes`] is wanted.
    pub bytes: bool,
    /// Rows in a full batch.
    pub batch_rows: usize,
    /// Conditions that every wanted row meets. A hint: a format may skip whole row groups by it, nothing else.
    pub bounds: Vec<Bound>,
    /// Text that every wanted row has. A hint: a parser may pass over sound records that lack it, and counts them.
    pub required: Vec<Required>,
    /// Texts that a raw record must contain, or it is no row and no reject: a stream format passes over it, sound or
    /// not, and counts it. A record that is too long, or is not complete at the end of a text with structure, is
    /// refused all the same. A record is what stands between its neighbours, without its line end.
    pub contains: Contains,
    /// Of a range format: only the rows whose place, as [`Rows::bytes`] gives it, is in here. All of them if `None`.
    pub places: Option<Range<u64>>,
    /// What a format that is packed inside may unpack to.
    pub limits: Limits,
    /// What decoding is charged to, where that is more than the bytes that were read; nothing if there is no budget.
    pub budget: Option<Arc<Budget>>,
}

impl ParseRequest {
    /// Every column of `schema`, strictly.
    pub fn all(schema: SchemaRef) -> Self {
        ParseRequest {
            projection: (0..schema.fields().len()).collect(),
            schema,
            on_drift: OnDrift::Fail,
            empty_files: EmptyFiles::Error,
            seen: None,
            single: false,
            validate: Validate::Used,
            lines: false,
            bytes: false,
            batch_rows: BATCH_ROWS,
            bounds: Vec::new(),
            required: Vec::new(),
            contains: Contains::default(),
            places: None,
            limits: Limits::default(),
            budget: None,
        }
    }

    /// The schema of the batches that come out: the projection's columns.
    pub fn output_schema(&self) -> SchemaRef {
        let fields: Vec<_> = self.projection.iter().map(|&index| Arc::clone(&self.schema.fields()[index])).collect();
        Arc::new(Schema::new(fields))
    }
}

/// A condition `column OP value` that can rule out whole row groups by their statistics.
#[derive(Debug, Clone)]
pub struct Bound {
    /// Index into the request's schema.
    pub column: usize,
    /// How the column compares with the value.
    pub comparison: Comparison,
    /// One value, of the column's type.
    pub value: ArrayRef,
}

/// Text that the values of a column must contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Required {
    /// Index into the request's schema.
    pub column: usize,
    /// The text, which is not empty.
    pub text: String,
}

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `=`
    Equal,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
}

/// Rows that a parser gives out.
#[derive(Debug, Clone)]
pub struct Rows {
    /// The projection's columns. With no columns it still has a row count.
    pub batch: RecordBatch,
    /// If asked for: for each row the line on which it begins, from 1 (for parquet the row's number), as `Int64`.
    pub lines: Option<ArrayRef>,
    /// If asked for: for each row the byte of the decoded text at which its record begins, as `Int64`. (For parquet:
    /// bytes of the row groups before its own, and its share of this.) It never falls, and depends on nothing but the
    /// text.
    pub bytes: Option<ArrayRef>,
}

/// A record that a parser refused. The parser goes on behind it.
#[derive(Debug, Clone)]
pub struct Reject {
    /// The raw record, without its line end; of a range format, which has no text, the row as a JSON object.
    pub raw: Bytes,
    /// The byte of the decoded text at which the record begins.
    pub byte: u64,
    /// The line on which it begins, from 1.
    pub line: u64,
    /// Why, and where: an [`Error`] of kind `Data` with line, byte, column and offending text.
    pub reason: Error,
}

/// Text whose rows make a full batch, even if they are few: 4 MiB. A batch keeps the text alive that its values point
/// into, and records may be long.
pub const BATCH_BYTES: usize = 4 << 20;

/// Memory that rejects may take before they are handed over: 4 MiB.
const REJECT_BYTES: usize = 4 << 20;

/// About what the reason of a reject takes. It can be a thousand times as long as the record.
const REASON_BYTES: usize = 1 << 10;

/// What came out of a parser.
#[derive(Debug, Default)]
pub struct Parsed {
    /// Rows, in the order of the text.
    pub rows: Vec<Rows>,
    /// Records that were refused, in the order of the text.
    pub rejects: Vec<Reject>,
    /// How many records are neither rows nor rejects because they lack a text: a [`Required`] one, or that of
    /// [`Contains`].
    pub passed_over: u64,
    reject_bytes: usize,
}

impl Parsed {
    /// Adds a record that was refused.
    pub fn refuse(&mut self, reject: Reject) {
        self.reject_bytes += reject.raw.len() + REASON_BYTES;
        self.rejects.push(reject);
    }

    /// Whether the rejects take so much memory that they must be handed over before there are more.
    pub fn is_full(&self) -> bool {
        self.reject_bytes >= REJECT_BYTES
    }

    /// Adds what came out behind it.
    pub fn append(&mut self, more: Parsed) {
        self.rows.extend(more.rows);
        self.rejects.extend(more.rejects);
        self.passed_over += more.passed_over;
        self.reject_bytes += more.reject_bytes;
    }
}

/// Parses one unit or member.
pub trait Parser: Send {
    /// Takes the next piece of text (cut anywhere) and adds to `parsed` what is ready. An error is a fault after which
    /// there is no going on (the header lacks a column); a record that is bad becomes a [`Reject`].
    ///
    /// Where `parsed` becomes full, all rows so far are added, and the rest of the text waits for the next push, which
    /// may be one of no text.
    fn push(&mut self, text: Bytes, parsed: &mut Parsed) -> Result<()>;

    /// Whether text waits that was pushed.
    fn waits(&self) -> bool {
        false
    }

    /// The text is complete: adds the rest to `parsed`, full or not. So nothing should wait any more.
    fn finish(&mut self, parsed: &mut Parsed) -> Result<()>;

    /// A parser of a later piece of the same text, which knows what this one has learned from the beginning (the
    /// header). `None` if that is not known yet, or if pieces cannot be parsed apart.
    fn fork(&self, _at: TextPosition) -> Option<Box<dyn Parser>> {
        None
    }
}

/// Where a piece of a longer text begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextPosition {
    /// Bytes of text before it.
    pub byte: u64,
    /// The line that begins there, from 1.
    pub line: u64,
}

/// A piece of a text that can be parsed apart from what is before and behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextPiece {
    /// Where it begins.
    pub place: TextPosition,
    /// Its text, cut anywhere. Together they end where a record does. Of a record that is too long the rest may be
    /// missing.
    pub text: Vec<Bytes>,
}

/// Cuts the text of one unit or member where a record ends, so that its pieces can be parsed on several cores.
///
/// The rows, their lines and the rejects are the same as those of one parser over the whole text, whatever is wrong
/// with it. The first piece goes to the unit's own parser, which can be forked once it has taken that piece. An error
/// of a piece is the error of the text: what the pieces behind it give counts for nothing.
pub trait Splitter: Send {
    /// Takes the next piece of text (cut anywhere) and adds to `pieces` what is complete: pieces of at least `size`
    /// bytes, as small as the records allow.
    fn push(&mut self, text: Bytes, size: usize, pieces: &mut Vec<TextPiece>);

    /// The text is complete: adds the rest, which may end inside a record.
    fn finish(&mut self, pieces: &mut Vec<TextPiece>);
}

/// Encodes the rows of one file.
pub trait RowEncoder: Send {
    /// Encodes `batch`, appending what is ready to `output`. The first call also writes what stands before the rows.
    fn encode(&mut self, batch: &RecordBatch, output: &mut Vec<u8>) -> Result<()>;

    /// Bytes of memory that it takes for rows which it has not given out yet, about.
    fn held(&self) -> usize {
        0
    }

    /// Memory is short: gives out the rows that it holds, as far as the format allows. The file has the same rows, and
    /// may be packed less well.
    fn relieve(&mut self, _output: &mut Vec<u8>) -> Result<()> {
        Ok(())
    }

    /// Appends what stands after the rows. A file without rows is still complete: a CSV has its header, a JSON array
    /// its brackets, a Parquet file its schema.
    fn finish(&mut self, output: &mut Vec<u8>) -> Result<()>;
}

/// A way to write rows as bytes.
pub trait Format: Debug + Send + Sync {
    /// What it is called in reports and job files: `csv`.
    fn name(&self) -> &'static str;

    /// The columns that the job file declares; `None` if they come from a sample.
    fn declared(&self) -> Option<SchemaRef>;

    /// How it reads.
    fn reading(&self) -> Reading<'_>;

    /// Whether batches that were encoded apart may follow each other in one file in any order of their encoders
    /// (lines, csv and json lines: yes, after the first encoder's beginning; parquet: no).
    fn splittable(&self) -> bool;

    /// An encoder for one file whose rows have `schema`. With `begin` false it leaves out what stands before the
    /// rows (only for splittable formats).
    fn encoder(&self, schema: SchemaRef, begin: bool) -> Result<Box<dyn RowEncoder>>;
}

/// How a format reads.
pub enum Reading<'a> {
    /// As the text arrives.
    Stream(&'a dyn StreamFormat),
    /// By the ranges it needs.
    Ranges(&'a dyn RangeFormat),
    /// Not at all: the place gives rows.
    Rows,
}

/// A format that is parsed as its text arrives.
pub trait StreamFormat: Format {
    /// The columns of the samples, matched by name as `on_drift` says. An error if no columns can be made out.
    fn infer(&self, samples: &[Sample], on_drift: OnDrift) -> Result<SchemaRef>;

    /// A parser at the beginning of a unit or member.
    fn parser(&self, request: &ParseRequest) -> Result<Box<dyn Parser>>;

    /// Whether a file that begins with `sample` can be read as `request` asks: the error that would end the run at this
    /// file, whatever may be rejected.
    fn fits(&self, sample: &Sample, request: &ParseRequest) -> Result<()> {
        let mut parser = self.parser(request)?;
        let mut parsed = Parsed::default();
        parser.push(sample.text.clone(), &mut parsed)?;
        if sample.complete { parser.finish(&mut parsed) } else { Ok(()) }
    }

    /// What cuts a text that begins with `head` (at least its first 4 bytes, if it has them, and better its first
    /// lines: json looks at the first to know its layout); `None` if its pieces cannot be parsed apart. `head` is
    /// pushed like the rest.
    fn splitter(&self, _head: &[u8]) -> Option<Box<dyn Splitter>> {
        None
    }

    /// What cuts the text of a file behind the line end before `at`, if every line end ends a record; `None` if not all
    /// of them do. `head` are the first bytes of the file, its first lines among them.
    fn splitter_behind(&self, _head: &[u8], _at: TextPosition) -> Option<Box<dyn Splitter>> {
        None
    }

    /// Whether `byte` may stand between the beginning of a line and the place of its record, where every line end ends
    /// a record.
    fn stands_before_record(&self, _byte: u8) -> bool {
        false
    }

    /// Whether any text is made of records of this format. If not, a file of another kind (a spreadsheet, a picture) is
    /// refused by its first bytes.
    fn reads_any_text(&self) -> bool {
        false
    }

    /// Whether a batch takes about as much memory as the text of its records, if all columns are read.
    fn rows_are_as_large_as_text(&self) -> bool {
        false
    }

    /// Whether a record can only be parsed behind a header, the first record of its file.
    fn needs_header(&self) -> bool {
        false
    }

    /// How many bytes of `beginning`, the first bytes of a file, come before its first record.
    fn header_length(&self, _beginning: &[u8], _request: &ParseRequest) -> usize {
        0
    }

    /// How many bytes of `text` its first record takes; with or without its line end. `text` begins with a record, and
    /// may be cut off anywhere behind it. `header` is what comes before the first record of the file.
    fn record_length(&self, _header: &[u8], text: &[u8], _request: &ParseRequest) -> usize {
        memchr::memchr(b'\n', text).unwrap_or(text.len())
    }

    /// The text of a file with one record. `header` is what comes before the first record of the file that `record` is
    /// from; it is empty if there is none.
    fn file_of_record(&self, header: &[u8], record: &[u8]) -> Vec<u8> {
        [header, record, b"\n"].concat()
    }

    /// Why a record with `literal` in a value may have other bytes there, so that `contains`, which compares bytes,
    /// misses it.
    fn doubt_literal(&self, _literal: &str) -> Option<Doubt> {
        None
    }

    /// How likely the defaults are to fit the files of a source with `columns`, where `settings` say nothing.
    fn defaults(&self, _settings: &Value, _columns: &Schema) -> Defaults {
        Defaults::None
    }

    /// What `sample` says against the defaults for the source `name` with `columns`: the one doubt that explains the
    /// others. Defaults that are plausible are only held against it if `plausible` says so.
    fn doubt(&self, _name: &str, _settings: &Value, _columns: &Schema, _: &Sample, _plausible: bool) -> Option<Doubt> {
        None
    }
}

/// How likely defaults are to fit a source's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defaults {
    /// The settings leave nothing out that a sample could tell.
    None,
    /// The columns look right. A sample may still tell otherwise, but is worth no request to a server.
    Plausible,
    /// The columns look wrong: a sample is worth a request.
    Doubtful,
}

/// A reason to doubt a default, or another setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt {
    /// What is doubtful, in lower case.
    pub what: String,
    /// What to do.
    pub hint: String,
}

/// Bytes that can be read anywhere.
#[async_trait]
pub trait ReadAt: Debug + Send + Sync {
    /// Size in bytes.
    fn size(&self) -> u64;

    /// Exactly the bytes of `range`.
    async fn read_at(&self, range: Range<u64>) -> Result<Bytes>;
}

/// A format that asks for the ranges it needs.
#[async_trait]
pub trait RangeFormat: Format {
    /// The columns of one file.
    async fn columns(&self, file: Arc<dyn ReadAt>) -> Result<SchemaRef>;

    /// The columns of several files together, matched by name as `on_drift` says.
    fn merge(&self, files: &[(String, SchemaRef)], on_drift: OnDrift) -> Result<SchemaRef>;

    /// The places of rows, as [`Rows::bytes`] gives them, at which a file is best cut, and the end of all. There may be
    /// none.
    async fn cuts(&self, _file: Arc<dyn ReadAt>) -> Result<Vec<u64>> {
        Ok(Vec::new())
    }

    /// The rows of one file, and those that are refused: a value is not what its type allows.
    fn read(&self, file: Arc<dyn ReadAt>, request: &ParseRequest) -> BoxStream<'static, Result<Parsed>>;
}
