//! Tests that every format passes: [`Subject::check`].
//!
//! It has rows of every type with extreme values ([`flat`], [`nested`], [`far`]), and the checks that all formats
//! share. Each format tests its peculiarities in its own folder.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Decimal256Array, Float32Array,
    Float64Array, Int8Array, Int16Array, Int32Array, Int64Array, ListArray, RecordBatch, RecordBatchOptions,
    StringViewArray, StructArray, Time64MicrosecondArray, TimestampMicrosecondArray, UInt8Array, UInt16Array,
    UInt32Array, UInt64Array, new_null_array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{concat_batches, filter_record_batch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, i256};
use async_trait::async_trait;
use bytes::Bytes;
use futures::executor::block_on;
use futures::stream::StreamExt;
use millstream_core::Result;
use millstream_core::contains::Contains;
use millstream_core::format::{
    BATCH_BYTES, Format, OnDrift, ParseRequest, Parsed, ReadAt, Reading, Reject, Sample, StreamFormat, TextPiece,
    TextPosition, Validate,
};

/// A format and the rows it is checked with.
pub struct Subject {
    /// The format, with settings under which it can read what it writes.
    pub format: Arc<dyn Format>,
    /// Rows of every type that the format knows; at least eight.
    pub batch: RecordBatch,
    /// For stream formats: a record that is refused, with its line end, to stand between two good ones.
    pub bad_record: Option<&'static [u8]>,
    /// How the format treats files with other columns than the source's.
    pub columns: Columns,
}

/// How a format matches the columns of a file with those of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Columns {
    /// There is one column that never changes (lines).
    Fixed,
    /// By name; a missing column is a fault under `on_drift: fail`.
    Named,
    /// By name; a missing column is always null (json).
    Optional,
}

/// The result of reading one text.
#[derive(Debug)]
pub struct Outcome {
    /// The batches as they were returned.
    pub batches: Vec<RecordBatch>,
    /// Their rows as one batch.
    pub rows: RecordBatch,
    /// The line of each row, if asked for.
    pub lines: Vec<i64>,
    /// Where each row begins, if that was asked for.
    pub bytes: Vec<i64>,
    /// The refused records.
    pub rejects: Vec<Reject>,
    /// How many records were skipped.
    pub passed_over: u64,
}

impl Outcome {
    fn new(schema: SchemaRef, parsed: Parsed) -> Self {
        let batches: Vec<RecordBatch> = parsed.rows.iter().map(|rows| rows.batch.clone()).collect();
        for batch in &batches {
            assert_eq!(batch.schema(), schema, "every batch has the schema of the projection");
            assert!(batch.num_rows() > 0, "no batch is empty");
        }
        let rows = together(&schema, &batches);
        let bytes = numbers(parsed.rows.iter().filter_map(|rows| rows.bytes.as_ref()));
        let lines = numbers(parsed.rows.iter().filter_map(|rows| rows.lines.as_ref()));
        Outcome { batches, rows, lines, bytes, rejects: parsed.rejects, passed_over: parsed.passed_over }
    }

    /// Line, byte and raw text of each reject.
    fn rejected(&self) -> Vec<(Option<u64>, Option<u64>, String, String)> {
        let shown = |reject: &Reject| {
            let place = reject.reason.location();
            let raw = String::from_utf8_lossy(&reject.raw).into_owned();
            (place.line, place.byte, raw, reject.reason.what().to_owned())
        };
        self.rejects.iter().map(shown).collect()
    }
}

/// The values of arrays of `Int64`.
fn numbers<'a>(arrays: impl Iterator<Item = &'a ArrayRef>) -> Vec<i64> {
    let values = |array: &'a ArrayRef| array.as_any().downcast_ref::<Int64Array>().expect("they are Int64").values();
    arrays.flat_map(|array| values(array).iter().copied()).collect()
}

/// Batches as one; without columns only their rows are counted.
fn together(schema: &SchemaRef, batches: &[RecordBatch]) -> RecordBatch {
    if schema.fields().is_empty() {
        let rows = batches.iter().map(RecordBatch::num_rows).sum();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        return RecordBatch::try_new_with_options(Arc::clone(schema), Vec::new(), &options).expect("no columns");
    }
    concat_batches(schema, batches).expect("the same schema")
}

/// A file in memory.
#[derive(Debug)]
pub struct InMemory(pub Bytes);

#[async_trait]
impl ReadAt for InMemory {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    async fn read_at(&self, range: Range<u64>) -> Result<Bytes> {
        Ok(self.0.slice(range.start as usize..range.end as usize))
    }
}

/// Writes `batches` as one file.
pub fn encode(format: &dyn Format, schema: &SchemaRef, batches: &[RecordBatch], begin: bool) -> Vec<u8> {
    let mut encoder = format.encoder(Arc::clone(schema), begin).expect("the format writes these types");
    let mut output = Vec::new();
    for batch in batches {
        encoder.encode(batch, &mut output).expect("the rows can be written");
    }
    encoder.finish(&mut output).expect("the end can be written");
    output
}

/// Reads `text`, pushed in pieces that end at `cuts` and at the end.
pub fn parse(format: &dyn StreamFormat, text: &[u8], request: &ParseRequest, cuts: &[usize]) -> Result<Outcome> {
    let mut parser = format.parser(request)?;
    let mut parsed = Parsed::default();
    let mut start = 0;
    for &cut in cuts.iter().chain([&text.len()]) {
        parser.push(Bytes::copy_from_slice(&text[start..cut]), &mut parsed)?;
        start = cut;
    }
    parser.finish(&mut parsed)?;
    Ok(Outcome::new(request.output_schema(), parsed))
}

/// Reads `text`, pushed in pieces that end at `cuts`, in parts of about `size` bytes that are parsed separately. `None`
/// if it cannot be cut.
pub fn parse_apart(
    format: &dyn StreamFormat,
    text: &[u8],
    request: &ParseRequest,
    cuts: &[usize],
    size: usize,
) -> Option<Result<Outcome>> {
    let head = cuts.first().copied().unwrap_or(text.len()).max(4).min(text.len());
    let mut splitter = format.splitter(&text[..head])?;
    let mut pieces = Vec::new();
    let mut start = 0;
    for &cut in cuts.iter().chain([&text.len()]) {
        splitter.push(Bytes::copy_from_slice(&text[start..cut]), size, &mut pieces);
        start = cut;
    }
    splitter.finish(&mut pieces);
    Some(parse_pieces(format, request, pieces))
}

fn parse_pieces(format: &dyn StreamFormat, request: &ParseRequest, pieces: Vec<TextPiece>) -> Result<Outcome> {
    let mut first = format.parser(request)?;
    let (mut others, mut is_error) = (Vec::new(), false);
    let mut parsed = Parsed::default();
    for (index, piece) in pieces.into_iter().enumerate() {
        assert!(!piece.text.iter().all(Bytes::is_empty), "no piece is empty");
        if index == 0 {
            assert_eq!(piece.place, TextPosition { byte: 0, line: 1 });
        }
        match first.fork(piece.place) {
            Some(parser) => others.push((parser, piece.text)),
            None => {
                piece.text.into_iter().try_for_each(|text| first.push(text, &mut parsed))?;
                // Later pieces give no rows: they only add text to the message of an error.
                is_error = index > 0;
            }
        }
    }
    first.finish(&mut parsed)?;
    assert!(!is_error, "the first piece says all there is to know");
    for (mut parser, text) in others {
        text.into_iter().try_for_each(|text| parser.push(text, &mut parsed))?;
        parser.finish(&mut parsed)?;
    }
    Ok(Outcome::new(request.output_schema(), parsed))
}

/// Whether `text` can be cut; if so, checks that the result is the same as without cuts.
pub fn same_apart(format: &dyn StreamFormat, text: &[u8], request: &ParseRequest, cuts: &[usize], size: usize) -> bool {
    let Some(apart) = parse_apart(format, text, request, cuts, size) else { return false };
    let place = || format!("{:?} cut at {cuts:?}, in pieces of {size}", String::from_utf8_lossy(text));
    match (parse(format, text, request, &[]), apart) {
        (Ok(whole), Ok(apart)) => {
            assert_eq!(whole.rows, apart.rows, "{}", place());
            assert_eq!(whole.lines, apart.lines, "{}", place());
            assert_eq!(whole.bytes, apart.bytes, "{}", place());
            assert_eq!(whole.passed_over, apart.passed_over, "{}", place());
            assert_eq!(format!("{:?}", whole.rejects), format!("{:?}", apart.rejects), "{}", place());
        }
        (whole, apart) => {
            let error = |outcome: Result<Outcome>| format!("{:?}", outcome.map(|_| "no error"));
            assert_eq!(error(whole), error(apart), "{}", place());
        }
    }
    true
}

/// Whether the lines of `text` can be read behind others; if so, checks that they are the same.
pub fn same_behind(format: &dyn StreamFormat, text: &[u8], request: &ParseRequest) -> bool {
    let request = ParseRequest { lines: true, bytes: true, ..request.clone() };
    let whole = parse(format, text, &request, &[]).expect("the text can be read");
    let mut ends = (1..text.len()).filter(|end| text[end - 1] == b'\n').peekable();
    let Some(&first) = ends.peek() else { return false };
    for end in ends {
        let at = TextPosition { byte: end as u64, line: 1 };
        let Some(mut splitter) = format.splitter_behind(text, at) else { return false };
        let mut learned = format.parser(&request).expect("a parser");
        learned.push(Bytes::copy_from_slice(&text[..first]), &mut Parsed::default()).expect("the first line");
        let (mut pieces, mut parsed) = (Vec::new(), Parsed::default());
        splitter.push(Bytes::copy_from_slice(&text[end..]), 1, &mut pieces);
        splitter.finish(&mut pieces);
        for piece in pieces {
            let mut parser = learned.fork(piece.place).expect("it knows the beginning");
            piece.text.into_iter().try_for_each(|text| parser.push(text, &mut parsed)).expect("pushed");
            parser.finish(&mut parsed).expect("finished");
        }
        let behind = Outcome::new(request.output_schema(), parsed);
        let before = whole.bytes.iter().filter(|byte| byte.unsigned_abs() < end as u64).count();
        assert_eq!(behind.bytes, whole.bytes[before..], "behind {end}");
        assert_eq!(behind.rows, whole.rows.slice(before, whole.rows.num_rows() - before), "behind {end}");
        let bytes = |rejects: &[Reject]| rejects.iter().map(|reject| reject.byte).collect::<Vec<_>>();
        let refused: Vec<u64> = bytes(&whole.rejects).into_iter().filter(|byte| *byte >= end as u64).collect();
        assert_eq!(bytes(&behind.rejects), refused, "behind {end}");
    }
    true
}

/// Checks that reading `text` with `contains` gives what reading all of it and then removing what lacks the text gives:
/// the same rows and rejects at the same places, or the same error. `length` tells how long the record is with which a
/// text begins; `stays` names the rejects that stay whatever they contain. `request` has lines and bytes.
pub fn same_if_removed_later(
    format: &dyn StreamFormat,
    text: &[u8],
    request: &ParseRequest,
    contains: &Contains,
    cuts: &[usize],
    length: impl Fn(&[u8]) -> usize,
    stays: impl Fn(&Reject) -> bool,
) {
    let place = || format!("{:?} cut at {cuts:?}, {contains:?}", String::from_utf8_lossy(text));
    let some = parse(format, text, &ParseRequest { contains: contains.clone(), ..request.clone() }, cuts);
    let (all, some) = match (parse(format, text, request, cuts), some) {
        (Ok(all), Ok(some)) => (all, some),
        (all, some) => {
            let error = |outcome: Result<Outcome>| format!("{:?}", outcome.map(|_| "no error"));
            assert_eq!(error(all), error(some), "{}", place());
            return;
        }
    };
    let passes = |byte: &i64| {
        let behind = &text[*byte as usize..];
        let record = &behind[..length(behind)];
        let record = record.strip_suffix(b"\n").unwrap_or(record);
        contains.matches(record.strip_suffix(b"\r").unwrap_or(record))
    };
    let mask: Vec<bool> = all.bytes.iter().map(passes).collect();
    let kept = |numbers: &[i64]| -> Vec<i64> {
        numbers.iter().zip(&mask).filter_map(|(number, kept)| kept.then_some(*number)).collect()
    };
    let rows = filter_record_batch(&all.rows, &BooleanArray::from(mask.clone())).expect("as many as rows");
    assert_eq!(some.rows, rows, "{}", place());
    assert_eq!(some.lines, kept(&all.lines), "{}", place());
    assert_eq!(some.bytes, kept(&all.bytes), "{}", place());
    let refused = all.rejects.iter().filter(|reject| contains.matches(&reject.raw) || stays(reject));
    let shown = |reject: &Reject| format!("{reject:?}");
    assert_eq!(
        some.rejects.iter().map(shown).collect::<Vec<_>>(),
        refused.map(shown).collect::<Vec<_>>(),
        "{}",
        place()
    );
    let records = |outcome: &Outcome| (outcome.rows.num_rows() + outcome.rejects.len()) as u64 + outcome.passed_over;
    assert_eq!(records(&some), records(&all), "{}", place());
}

/// Reads `text` as a stream or by ranges, as the format does.
pub fn read(format: &dyn Format, text: &[u8], request: &ParseRequest) -> Result<Outcome> {
    match format.reading() {
        Reading::Stream(stream) => parse(stream, text, request, &[]),
        Reading::Ranges(ranges) => {
            let file = Arc::new(InMemory(Bytes::copy_from_slice(text)));
            let read: Vec<Result<Parsed>> = block_on(ranges.read(file, request).collect());
            let mut parsed = Parsed::default();
            for more in read {
                parsed.append(more?);
            }
            Ok(Outcome::new(request.output_schema(), parsed))
        }
        Reading::Rows => panic!("{} reads nothing", format.name()),
    }
}

impl Subject {
    /// Runs all checks.
    pub fn check(&self) {
        self.what_is_written_is_read_back();
        self.columns_are_found_in_the_text();
        self.a_file_without_rows_is_complete();
        self.cuts_change_nothing();
        self.pieces_can_be_parsed_apart();
        self.lines_can_be_read_behind_others();
        self.rows_can_be_chosen_by_their_places();
        self.any_projection_is_the_same_as_choosing_afterwards();
        self.batches_are_as_long_as_asked_for();
        self.lines_are_where_rows_begin();
        self.bytes_are_where_rows_begin();
        self.a_bad_record_leaves_its_neighbours_alone();
        self.records_without_a_text_are_dropped();
        self.other_columns_are_matched_as_on_drift_says();
        self.pieces_can_follow_each_other();
    }

    /// Runs the checks of the memory of stream formats, which take some time.
    pub fn check_memory(&self) {
        self.many_bad_records_are_handed_over_in_between();
        self.long_records_end_a_batch();
    }

    fn schema(&self) -> SchemaRef {
        self.batch.schema()
    }

    fn request(&self) -> ParseRequest {
        ParseRequest { lines: true, bytes: true, ..ParseRequest::all(self.schema()) }
    }

    fn written(&self) -> Vec<u8> {
        let rows = self.batch.num_rows();
        let parts = [self.batch.slice(0, 1), self.batch.slice(1, 0), self.batch.slice(1, rows - 1)];
        encode(self.format.as_ref(), &self.schema(), &parts, true)
    }

    fn read(&self, text: &[u8], request: &ParseRequest) -> Outcome {
        let outcome = read(self.format.as_ref(), text, request).expect("the text can be read");
        assert_eq!(outcome.rejected(), [], "nothing is refused");
        outcome
    }

    fn what_is_written_is_read_back(&self) {
        for validate in [Validate::Used, Validate::All] {
            let outcome = self.read(&self.written(), &ParseRequest { validate, ..self.request() });
            same(&outcome.rows, &self.batch);
        }
    }

    fn columns_are_found_in_the_text(&self) {
        let written = Bytes::from(self.written());
        let found = match self.format.reading() {
            Reading::Stream(stream) => {
                let sample = Sample { uri: "sample".to_owned(), text: written, complete: true };
                stream.infer(&[sample], OnDrift::Fail).expect("the sample has columns")
            }
            Reading::Ranges(ranges) => {
                let found = block_on(ranges.columns(Arc::new(InMemory(written)))).expect("the file has columns");
                assert_eq!(found, self.schema(), "a file that stores types stores them exactly");
                found
            }
            Reading::Rows => panic!("{} reads nothing", self.format.name()),
        };
        let names = |schema: &Schema| schema.fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>();
        assert_eq!(names(&found), names(&self.schema()));
    }

    fn a_file_without_rows_is_complete(&self) {
        let written = encode(self.format.as_ref(), &self.schema(), &[], true);
        assert_eq!(self.read(&written, &self.request()).rows.num_rows(), 0);
        let with_an_empty_batch = encode(self.format.as_ref(), &self.schema(), &[self.batch.slice(0, 0)], true);
        assert_eq!(self.read(&with_an_empty_batch, &self.request()).rows.num_rows(), 0);
    }

    fn cuts_change_nothing(&self) {
        let Reading::Stream(stream) = self.format.reading() else { return };
        let mut text = self.written();
        if let (Some(bad), true) = (self.bad_record, self.format.splittable()) {
            text.extend_from_slice(bad);
            text.extend(encode(self.format.as_ref(), &self.schema(), &[self.batch.slice(0, 2)], false));
        }
        let whole = parse(stream, &text, &self.request(), &[]).expect("the text can be read");
        let bytewise: Vec<usize> = (1..text.len()).collect();
        let step = (text.len() / 400).max(1);
        let two_pieces = (1..text.len()).step_by(step).map(|cut| vec![cut]);
        let three_pieces = (1..text.len()).step_by(step).map(|cut| vec![cut / 2, cut]);
        for cuts in [bytewise].into_iter().chain(two_pieces).chain(three_pieces) {
            let cut = parse(stream, &text, &self.request(), &cuts).expect("the text can be read, however it is cut");
            let shown = &cuts[..cuts.len().min(3)];
            assert_eq!(cut.rows, whole.rows, "cut at {shown:?}");
            assert_eq!(cut.lines, whole.lines, "cut at {shown:?}");
            assert_eq!(cut.bytes, whole.bytes, "cut at {shown:?}");
            assert_eq!(cut.rejected(), whole.rejected(), "cut at {shown:?}");
        }
    }

    fn records_without_a_text_are_dropped(&self) {
        let Reading::Stream(stream) = self.format.reading() else { return };
        let text = self.written();
        let contains = |any: &[&str], all: &[&str]| Contains {
            any: any.iter().map(|text| (*text).to_owned()).collect(),
            all: all.iter().map(|text| (*text).to_owned()).collect(),
        };
        let all = self.batch.num_rows() as u64;
        for contains in [contains(&[], &["~~~"]), contains(&["~~~", "999"], &[]), contains(&["999"], &["9", "~~~"])] {
            let contained = ParseRequest { contains: contains.clone(), ..self.request() };
            for cuts in [vec![], vec![text.len() / 3]] {
                let some = parse(stream, &text, &contained, &cuts).expect("the text can be read");
                let rows = some.rows.num_rows() as u64;
                assert_eq!(some.passed_over + rows, all, "{contains:?}");
                assert_eq!(rows > 0, contains.all.is_empty() && contains.matches(&text), "{contains:?}");
            }
        }
    }

    fn pieces_can_be_parsed_apart(&self) {
        let Reading::Stream(stream) = self.format.reading() else { return };
        let mut text = self.written();
        if !self.format.splittable() {
            assert!(stream.splitter(&text).is_none(), "what cannot be written in pieces cannot be read so");
            return;
        }
        if let Some(bad) = self.bad_record {
            text.extend_from_slice(bad);
            text.extend(encode(self.format.as_ref(), &self.schema(), &[self.batch.slice(0, 2)], false));
        }
        let every_100: Vec<usize> = (100..text.len()).step_by(100).collect();
        for size in [1, 50, 1000, 1 << 20] {
            for cuts in [&[][..], &every_100] {
                let head = cuts.first().copied().unwrap_or(text.len());
                let same = same_apart(stream, &text, &self.request(), cuts, size);
                assert!(same || stream.splitter(&text[..head]).is_none());
            }
        }
        assert!(stream.splitter(&text).is_some(), "lines can be cut");
    }

    fn lines_can_be_read_behind_others(&self) {
        let Reading::Stream(stream) = self.format.reading() else { return };
        let mut text = self.written();
        if let Some(bad) = self.bad_record {
            text.extend_from_slice(bad);
            text.extend(encode(self.format.as_ref(), &self.schema(), &[self.batch.slice(0, 2)], false));
        }
        same_behind(stream, &text, &self.request());
    }

    fn rows_can_be_chosen_by_their_places(&self) {
        let Reading::Ranges(format) = self.format.reading() else { return };
        let written = self.written();
        let request = ParseRequest { lines: true, bytes: true, ..self.request() };
        let whole = self.read(&written, &request);
        let cuts = block_on(format.cuts(Arc::new(InMemory(written.clone().into())))).expect("readable");
        assert!(cuts.is_sorted() && cuts.first() == Some(&0), "{cuts:?}");
        assert!(whole.bytes.iter().all(|place| place.unsigned_abs() < cuts[cuts.len() - 1]));
        let between = whole.bytes.iter().map(|place| place.unsigned_abs() + 1);
        for cut in cuts.iter().copied().chain(between) {
            let read =
                |places: Range<u64>| self.read(&written, &ParseRequest { places: Some(places), ..request.clone() });
            let [before, behind] = [read(0..cut), read(cut..u64::MAX)];
            assert_eq!([before.bytes, behind.bytes].concat(), whole.bytes, "cut at {cut}");
            assert_eq!([before.lines, behind.lines].concat(), whole.lines, "cut at {cut}");
            let schema = whole.rows.schema();
            same(&concat_batches(&schema, &[before.rows, behind.rows]).expect("the same columns"), &whole.rows);
        }
    }

    fn any_projection_is_the_same_as_choosing_afterwards(&self) {
        let written = self.written();
        let columns = self.batch.num_columns();
        let mut projections = vec![Vec::new(), (0..columns).rev().collect(), vec![columns / 2, 0]];
        projections.extend((0..columns).map(|column| vec![column]));
        for projection in projections {
            for validate in [Validate::Used, Validate::All] {
                let request = ParseRequest { projection: projection.clone(), validate, ..self.request() };
                let outcome = self.read(&written, &request);
                assert_eq!(outcome.rows.num_rows(), self.batch.num_rows(), "projection {projection:?}");
                same(&outcome.rows, &self.batch.project(&projection).expect("columns of the batch"));
            }
        }
    }

    fn batches_are_as_long_as_asked_for(&self) {
        let written = self.written();
        let rows = self.batch.num_rows();
        for batch_rows in [1, 2, 3, rows, rows + 1] {
            let outcome = self.read(&written, &ParseRequest { batch_rows, ..self.request() });
            let lengths: Vec<usize> = outcome.batches.iter().map(RecordBatch::num_rows).collect();
            if matches!(self.format.reading(), Reading::Stream(_)) {
                let full = vec![batch_rows; rows / batch_rows];
                let rest = (!rows.is_multiple_of(batch_rows)).then_some(rows % batch_rows);
                assert_eq!(lengths, full.into_iter().chain(rest).collect::<Vec<_>>());
            }
            // Batches of a file with row groups also end where a group ends.
            assert!(lengths.iter().all(|length| *length <= batch_rows), "{lengths:?}");
            same(&outcome.rows, &self.batch);
            assert_eq!(outcome.lines.len(), rows);
        }
    }

    fn lines_are_where_rows_begin(&self) {
        let written = self.written();
        let lines = self.read(&written, &self.request()).lines;
        assert_eq!(lines.len(), self.batch.num_rows());
        assert!(lines.windows(2).all(|pair| pair[0] < pair[1]), "{lines:?}");
        assert!(lines.first().is_some_and(|first| *first >= 1));
        let projected = self.read(&written, &ParseRequest { projection: Vec::new(), ..self.request() });
        assert_eq!(projected.lines, lines, "lines do not depend on the columns");
        let unasked = self.read(&written, &ParseRequest { lines: false, ..self.request() });
        assert!(unasked.lines.is_empty());
    }

    fn bytes_are_where_rows_begin(&self) {
        let written = self.written();
        let outcome = self.read(&written, &self.request());
        assert_eq!(outcome.bytes.len(), self.batch.num_rows());
        assert!(outcome.bytes.is_sorted(), "{:?}", outcome.bytes);
        if matches!(self.format.reading(), Reading::Stream(_)) {
            for (byte, line) in outcome.bytes.iter().zip(&outcome.lines) {
                let before = &written[..*byte as usize];
                let count = |sign: u8| before.iter().filter(|byte| **byte == sign).count() as i64;
                // A return is a line end of its own in some formats.
                assert!((count(b'\n')..=count(b'\n') + count(b'\r')).contains(&(line - 1)), "{byte} is on line {line}");
            }
            assert!(outcome.bytes.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", outcome.bytes);
        }
        let projected = self.read(&written, &ParseRequest { projection: Vec::new(), ..self.request() });
        assert_eq!(projected.bytes, outcome.bytes, "bytes do not depend on the columns");
        assert!(self.read(&written, &ParseRequest { bytes: false, ..self.request() }).bytes.is_empty());
    }

    fn a_bad_record_leaves_its_neighbours_alone(&self) {
        let (Reading::Stream(stream), Some(bad)) = (self.format.reading(), self.bad_record) else { return };
        let rows = self.batch.num_rows();
        let mut text = encode(self.format.as_ref(), &self.schema(), &[self.batch.slice(0, 3)], true);
        let byte = text.len();
        let line = 1 + text.iter().filter(|byte| **byte == b'\n').count();
        text.extend_from_slice(bad);
        text.extend(encode(self.format.as_ref(), &self.schema(), &[self.batch.slice(3, rows - 3)], false));
        let outcome = parse(stream, &text, &self.request(), &[]).expect("a bad record does not end the reading");
        same(&outcome.rows, &self.batch);
        assert_eq!(outcome.rejects.len(), 1, "{:?}", outcome.rejected());
        let reject = &outcome.rejects[0];
        assert_eq!(reject.raw, bad.trim_ascii_end());
        assert_eq!(reject.reason.kind(), millstream_core::ErrorKind::Data);
        assert_eq!(reject.reason.location().line, Some(line as u64));
        let at = reject.reason.location().byte.expect("a reject has its byte");
        assert!((byte as u64..(byte + bad.len()) as u64).contains(&at), "byte {at}, the record is at {byte}");
    }

    /// Only bad records, many more than are held at once, pushed in one piece.
    fn many_bad_records_are_handed_over_in_between(&self) {
        let (Reading::Stream(stream), Some(bad)) = (self.format.reading(), self.bad_record) else { return };
        let mut text = encode(self.format.as_ref(), &self.schema(), &[], true);
        text.extend(bad.repeat(8_000));
        let begun = text.len();
        text.extend(encode(self.format.as_ref(), &self.schema(), &[self.batch.slice(0, 2)], false));
        let mut parser = stream.parser(&self.request()).expect("the types can be read");
        let (mut rejected, mut rows, mut handed_over) = (Vec::new(), 0, 0);
        let mut waiting = Bytes::from(text.clone());
        loop {
            let mut parsed = Parsed::default();
            parser.push(std::mem::take(&mut waiting), &mut parsed).expect("the text can be read");
            handed_over += 1;
            assert_eq!(parsed.is_full(), parser.waits(), "it goes on until there is too much, or nothing left");
            assert!(parsed.rejects.len() < 8_000, "{} rejects at once", parsed.rejects.len());
            rows += parsed.rows.iter().map(|rows| rows.batch.num_rows()).sum::<usize>();
            rejected.extend(parsed.rejects);
            if !parser.waits() {
                break;
            }
        }
        let mut parsed = Parsed::default();
        parser.finish(&mut parsed).expect("the end can be read");
        rows += parsed.rows.iter().map(|rows| rows.batch.num_rows()).sum::<usize>();
        assert_eq!((rejected.len(), rows), (8_000, 2), "handed over {handed_over} times");
        // Ignoring `waits` gives the same result.
        let whole = parse(stream, &text, &self.request(), &[begun / 3, begun]).expect("the text can be read");
        let told = |rejects: &[Reject]| format!("{rejects:?}");
        assert_eq!((told(&whole.rejects), whole.rows.num_rows()), (told(&rejected), 2));
    }

    /// However few they are: a batch holds no more than some megabytes of text.
    fn long_records_end_a_batch(&self) {
        let Reading::Stream(stream) = self.format.reading() else { return };
        let Some(place) = self.schema().fields().iter().position(|field| *field.data_type() == DataType::Utf8View)
        else {
            return;
        };
        let long = "long ".repeat(100_000);
        let row = self.batch.slice(0, 1);
        let mut columns = row.columns().to_vec();
        columns[place] = Arc::new(StringViewArray::from(vec![long.as_str()]));
        let row = RecordBatch::try_new(self.schema(), columns).expect("one text for another");
        let text = encode(self.format.as_ref(), &self.schema(), &vec![row; 30], true);
        for cuts in [vec![], (1000..text.len()).step_by(200_000).collect()] {
            let outcome = parse(stream, &text, &self.request(), &cuts).expect("the text can be read");
            assert_eq!(outcome.rows.num_rows(), 30);
            let most = outcome.batches.iter().map(RecordBatch::num_rows).max();
            assert!(most.is_some_and(|most| most <= 3 * BATCH_BYTES / 2 / long.len()), "{most:?} rows of 500 kB");
        }
    }

    fn other_columns_are_matched_as_on_drift_says(&self) {
        if self.columns == Columns::Fixed {
            return;
        }
        let written = self.written();
        let fields = self.schema().fields().clone();

        // Another order, under every setting.
        let reversed: SchemaRef = Arc::new(Schema::new(fields.iter().rev().cloned().collect::<Vec<_>>()));
        let order: Vec<usize> = (0..fields.len()).rev().collect();
        for on_drift in [OnDrift::Fail, OnDrift::Null, OnDrift::Widen] {
            let request = ParseRequest { on_drift, ..ParseRequest::all(Arc::clone(&reversed)) };
            same(&self.read(&written, &request).rows, &self.batch.project(&order).expect("columns of the batch"));
        }

        // The source has a column that the file lacks.
        let absent = Arc::new(Field::new("absent", DataType::Int64, true));
        let more: SchemaRef =
            Arc::new(Schema::new([absent].into_iter().chain(fields.iter().cloned()).collect::<Vec<_>>()));
        for on_drift in [OnDrift::Fail, OnDrift::Null, OnDrift::Widen] {
            let request = ParseRequest { on_drift, ..ParseRequest::all(Arc::clone(&more)) };
            if on_drift == OnDrift::Fail && self.columns == Columns::Named {
                let error = read(self.format.as_ref(), &written, &request).expect_err("the file lacks a column");
                assert!(error.to_string().contains("absent"), "{error}");
                continue;
            }
            let rows = self.read(&written, &request).rows;
            assert_eq!(rows.column(0).null_count(), rows.num_rows());
            let rest: Vec<usize> = (1..rows.num_columns()).collect();
            same(&rows.project(&rest).expect("columns of the batch"), &self.batch);
        }

        // The file has a column that the source lacks.
        let less: SchemaRef = Arc::new(Schema::new(fields.iter().skip(1).cloned().collect::<Vec<_>>()));
        let rest: Vec<usize> = (1..fields.len()).collect();
        for on_drift in [OnDrift::Fail, OnDrift::Null, OnDrift::Widen] {
            let request = ParseRequest { on_drift, ..ParseRequest::all(Arc::clone(&less)) };
            if on_drift == OnDrift::Null {
                same(&self.read(&written, &request).rows, &self.batch.project(&rest).expect("columns of the batch"));
                continue;
            }
            match read(self.format.as_ref(), &written, &request) {
                Err(error) => assert!(error.to_string().contains(fields[0].name()), "{error}"),
                Ok(outcome) => {
                    let rejects = outcome.rejected();
                    assert_eq!(rejects.len(), self.batch.num_rows(), "no row gets through: {rejects:?}");
                }
            }
        }
    }

    fn pieces_can_follow_each_other(&self) {
        if !self.format.splittable() {
            return;
        }
        let rows = self.batch.num_rows();
        let pieces = [0..2, 2..rows - 1, rows - 1..rows];
        let mut text = Vec::new();
        for (index, piece) in pieces.into_iter().enumerate() {
            let batch = self.batch.slice(piece.start, piece.len());
            text.extend(encode(self.format.as_ref(), &self.schema(), &[batch], index == 0));
        }
        assert_eq!(text, self.written());
        same(&self.read(&text, &self.request()).rows, &self.batch);
    }
}

/// Compares column by column, so that a failure names the column.
fn same(found: &RecordBatch, expected: &RecordBatch) {
    assert_eq!(found.num_rows(), expected.num_rows());
    for (index, field) in expected.schema().fields().iter().enumerate() {
        assert_eq!(found.column(index), expected.column(index), "column {}", field.name());
    }
    assert_eq!(found.schema(), expected.schema());
}

/// A batch of named columns that may all be null.
pub fn batch_of(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let fields: Vec<Field> =
        columns.iter().map(|(name, values)| Field::new(*name, values.data_type().clone(), true)).collect();
    let values = columns.into_iter().map(|(_, values)| values).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), values).expect("columns of one length")
}

/// Eight rows of every type without parts, with nulls and the extremes that every format can write (years from 1 to
/// 9999). Rows 3 and 6 are null throughout, except for the first column.
pub fn flat() -> RecordBatch {
    let micro = 1_000_000_i64;
    let first_day = -719_162_i64;
    let last_day = 2_932_896_i64;
    let moments = vec![
        Some(0),
        Some(-1),
        Some(1_700_000_000 * micro + 123_456),
        None,
        Some(first_day * 86_400 * micro),
        Some((last_day + 1) * 86_400 * micro - 1),
        None,
        Some(951_782_400 * micro + 500_000),
    ];
    let texts = vec![
        Some("plain"),
        Some(""),
        Some("quote \" comma , semicolon ; tab \t backslash \\ apostrophe '"),
        None,
        Some("line\nbreak\r\nand return\rhere"),
        Some("ünïcödé – 日本語 – 🦀 – \u{feff}in the middle"),
        None,
        Some("  spaces around, and longer than twelve bytes  "),
    ];
    batch_of(vec![
        ("id", Arc::new(Int64Array::from_iter_values(0..8))),
        ("truth", Arc::new(BooleanArray::from(alternating([true, false, true, true, false, true])))),
        ("i8", Arc::new(Int8Array::from(alternating([i8::MIN, i8::MAX, 0, -1, 1, 7])))),
        ("i16", Arc::new(Int16Array::from(alternating([i16::MIN, i16::MAX, 0, -1, 1, 7])))),
        ("i32", Arc::new(Int32Array::from(alternating([i32::MIN, i32::MAX, 0, -1, 1, 7])))),
        ("i64", Arc::new(Int64Array::from(alternating([i64::MIN, i64::MAX, 0, -1, 1, 7])))),
        ("u8", Arc::new(UInt8Array::from(alternating([u8::MIN, u8::MAX, 1, 2, 3, 4])))),
        ("u16", Arc::new(UInt16Array::from(alternating([u16::MIN, u16::MAX, 1, 2, 3, 4])))),
        ("u32", Arc::new(UInt32Array::from(alternating([u32::MIN, u32::MAX, 1, 2, 3, 4])))),
        ("u64", Arc::new(UInt64Array::from(alternating([u64::MIN, u64::MAX, 1, 2, 3, 4])))),
        ("f32", Arc::new(Float32Array::from(alternating([f32::MIN, f32::MAX, f32::MIN_POSITIVE, 0.1, -0.0, 1e-7])))),
        ("f64", Arc::new(Float64Array::from(alternating([f64::MIN, f64::MAX, 5e-324, 0.1, -0.0, 1e21])))),
        ("text", Arc::new(StringViewArray::from(texts))),
        ("date", {
            let days = [0, -1, first_day as i32, last_day as i32, 11_016, 19_000];
            Arc::new(Date32Array::from(alternating(days)))
        }),
        ("time", {
            let times = [0, 86_400 * micro - 1, 1, 12 * 3_600 * micro, 500_000, 61 * micro];
            Arc::new(Time64MicrosecondArray::from(alternating(times)))
        }),
        ("moment", Arc::new(TimestampMicrosecondArray::from(moments.clone()))),
        ("moment_utc", Arc::new(TimestampMicrosecondArray::from(moments).with_timezone("UTC"))),
        ("price", {
            let values = Decimal128Array::from(alternating([0, 1, -1, 12_345, 9_999_999_999, -9_999_999_999]));
            Arc::new(values.with_precision_and_scale(10, 2).expect("ten digits"))
        }),
        ("exact", {
            let most = 10_i128.pow(38) - 1;
            let values = Decimal128Array::from(alternating([most, -most, 0, 5, -5, 10]));
            Arc::new(values.with_precision_and_scale(38, 0).expect("38 digits"))
        }),
        ("wide", {
            let most = i256::from_string(&"9".repeat(76)).expect("76 digits");
            let values = [most, -most, i256::ZERO, i256::ONE, i256::MINUS_ONE, i256::from_i128(12_345)];
            let values = Decimal256Array::from(alternating(values));
            Arc::new(values.with_precision_and_scale(76, 20).expect("76 digits"))
        }),
    ])
}

/// Bytes, lists, structs and lists of structs, eight rows.
pub fn nested() -> RecordBatch {
    let bytes: Vec<Option<&[u8]>> =
        vec![Some(b"\x00\xff\n\""), Some(b""), Some(b"abc"), None, Some(b"\xde\xad"), Some(b"0"), None, Some(b"z")];
    let numbers = Int64Array::from(vec![Some(1), None, Some(i64::MIN), Some(i64::MAX), Some(5)]);
    let offsets = OffsetBuffer::from_lengths([2, 0, 1, 0, 1, 0, 0, 1]);
    let list = |item: ArrayRef| {
        let field = Arc::new(Field::new_list_field(item.data_type().clone(), true));
        let valid = NullBuffer::from(vec![true, true, true, false, true, true, false, true]);
        ListArray::try_new(field, offsets.clone(), item, Some(valid)).expect("offsets fit the items")
    };
    let pair = |length: usize, valid: Vec<bool>| {
        let names: Vec<Option<String>> = (0..length).map(|n| (n % 3 != 1).then(|| format!("name {n} \"é\""))).collect();
        let values = Float64Array::from_iter((0..length).map(|n| (n % 4 != 2).then_some(n as f64 / 8.0)));
        let fields =
            vec![Field::new("name", DataType::Utf8View, true), Field::new("value \"quoted\"", DataType::Float64, true)];
        let columns: Vec<ArrayRef> = vec![Arc::new(StringViewArray::from_iter(names)), Arc::new(values)];
        StructArray::try_new(fields.into(), columns, Some(NullBuffer::from(valid))).expect("columns of one length")
    };
    batch_of(vec![
        ("id", Arc::new(Int64Array::from_iter_values(0..8))),
        ("bytes", Arc::new(BinaryArray::from(bytes))),
        ("numbers", Arc::new(list(Arc::new(numbers)))),
        ("place", Arc::new(pair(8, vec![true, true, true, false, true, true, false, true]))),
        ("places", Arc::new(list(Arc::new(pair(5, vec![true, true, false, true, true]))))),
        ("lists", {
            let inner = list(Arc::new(StringViewArray::from(vec![Some("a"), None, Some(""), Some("d"), Some("e")])));
            let field = Arc::new(Field::new_list_field(inner.data_type().clone(), true));
            let offsets = OffsetBuffer::from_lengths([1, 0, 2, 0, 1, 3, 0, 1]);
            let valid = NullBuffer::from(vec![true, true, true, false, true, true, false, true]);
            Arc::new(ListArray::try_new(field, offsets, Arc::new(inner), Some(valid)).expect("offsets fit the items"))
        }),
    ])
}

/// Values that only some formats can write: dates beyond years of four digits, NaN and infinities, and columns that are
/// null throughout. Eight rows.
pub fn far() -> RecordBatch {
    batch_of(vec![
        ("id", Arc::new(Int64Array::from_iter_values(0..8))),
        ("date", Arc::new(Date32Array::from(alternating([i32::MIN, i32::MAX, -719_163, 2_932_897, -719_528, 0])))),
        ("moment", {
            let moments = [i64::MIN, i64::MAX, -62_135_596_800_000_001, 253_402_300_800_000_000, 1, -1];
            Arc::new(TimestampMicrosecondArray::from(alternating(moments)))
        }),
        ("f32", {
            let floats = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::EPSILON, 1.0, -1.0];
            Arc::new(Float32Array::from(alternating(floats)))
        }),
        ("f64", {
            let floats = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::EPSILON, 1.0, -1.0];
            Arc::new(Float64Array::from(alternating(floats)))
        }),
        ("nothing", new_null_array(&DataType::Int64, 8)),
        ("no_text", new_null_array(&DataType::Utf8View, 8)),
    ])
}

/// Six values in eight rows: rows 3 and 6 are null.
fn alternating<T: Copy>(values: [T; 6]) -> Vec<Option<T>> {
    let [a, b, c, d, e, f] = values;
    vec![Some(a), Some(b), Some(c), None, Some(d), Some(e), None, Some(f)]
}
