//! One unit to batches: unpack, parse, add provenance, filter.
//!
//! Everything here is pulled: the task that wants a batch does the work, and waits (without holding its thread) only
//! for bytes. That wait is counted as the decoder's, the time between two pulls as the parser's waiting for output.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, RecordBatchOptions, StringViewArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Int64Type, SchemaRef};
use bytes::Bytes;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::physical_expr::PhysicalExpr;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use millstream_codec::Unpacked;
use millstream_core::format::{BATCH_BYTES, EmptyFiles, ParseRequest, Parsed, Parser, ReadAt, Reading, Reject, Rows};
use millstream_core::pace::wait;
use millstream_core::{Budget, Error, HelperPool, Reservation, Result, Unit};

use super::foreign::Foreign;
use super::helpers::Member;
use super::lacking;
use super::lines::Before;
use super::messages::{MessageColumn, ReadMessages};
use super::order::{OrderCheck, SortedBy};
use super::ranges::Collected;
use super::split::{SplitParser, cut};
use super::unit::{OpenUnit, UnitBytes, UnitText};
use super::{Filtered, Provenance, Reader};
use crate::fault;
use crate::member::MemberPlace;
use crate::read::raw::Tape;
use crate::rejects::replay::Replay;
use crate::rejects::{Entry, of_parser};

/// What every unit of a source is read for.
#[derive(Debug, Clone)]
pub struct RowsRequest {
    /// What the parser is asked for: the columns that are put out or filtered by.
    pub parse: ParseRequest,
    /// The parser's columns and the provenance, in the order in which `filter` and `output` count them.
    pub read_schema: SchemaRef,
    /// Which rows come out.
    pub filter: Option<Arc<dyn PhysicalExpr>>,
    /// Which of the read columns come out, in order.
    pub output: Vec<usize>,
    /// Which provenance is in `read_schema`, in order.
    pub provenance: Vec<Provenance>,
    /// The order that the rows have already; all of its columns come out.
    pub sorted: Vec<SortedBy>,
    /// The columns that come out.
    pub output_schema: SchemaRef,
    /// Tasks that help the one that reads, where only one does: they parse what it gives them.
    pub helpers: usize,
    /// Whether these are all columns of the source, and all rows.
    pub whole: bool,
    /// Whether the raw record of each row is wanted.
    pub raw: bool,
    /// The messages whose text is read, if it is that of a queue.
    pub messages: Option<Arc<ReadMessages>>,
}

impl RowsRequest {
    /// The same, and where each row is from; with its raw record if `raw`.
    pub fn with_origins(&self, raw: bool) -> Self {
        let parse = ParseRequest { lines: true, bytes: true, ..self.parse.clone() };
        RowsRequest { parse, raw, ..self.clone() }
    }
}

/// Rows and where they are from.
#[derive(Debug, Clone)]
pub struct LocatedRows {
    /// The columns that come out.
    pub batch: RecordBatch,
    /// The line of each row, if asked for.
    pub lines: Option<ArrayRef>,
    /// The byte at which each row begins, if asked for.
    pub bytes: Option<ArrayRef>,
    /// The raw record of each row, and perhaps some of what follows it, if asked for and known.
    pub raw: Option<ArrayRef>,
    /// The member they are from.
    pub member: MemberPlace,
}

/// What reading a unit, or a part of one, gives.
#[derive(Debug)]
pub enum Piece {
    /// Rows, in their order.
    Rows(LocatedRows),
    /// Records that the parser refused, before the rows that were read with them. A row that comes later may stand
    /// before them in the text, but not one that came earlier behind them.
    Rejects(Vec<Reject>, MemberPlace),
    /// No row comes any more that stands before what came so far: the member is at its end, or so much was refused that
    /// nothing is held back.
    Settled,
    /// The unit has been read to its end, with all of its parts.
    End,
}

/// The rows of one unit, which follow those that `order` has seen.
pub fn rows(
    reader: Arc<Reader>,
    request: Arc<RowsRequest>,
    open: OpenUnit,
    worker: Arc<Member>,
    order: Option<Arc<OrderCheck>>,
) -> impl Stream<Item = DataFusionResult<RecordBatch>> + Send {
    let uri = open.unit.uri.clone();
    pieces(Arc::clone(&reader), request, open, worker, order).filter_map(move |piece| {
        std::future::ready(match piece {
            Ok(Piece::Rows(rows)) => Some(Ok(rows.batch)),
            Ok(Piece::Rejects(refused, member)) => {
                refuse(&reader, refused, &uri, &member).err().map(|error| Err(fault::carry(error)))
            }
            Ok(Piece::Settled | Piece::End) => None,
            Err(error) => Some(Err(error)),
        })
    })
}

/// What one unit gives, whose rows follow those that `order` has seen.
pub fn pieces(
    reader: Arc<Reader>,
    request: Arc<RowsRequest>,
    open: OpenUnit,
    worker: Arc<Member>,
    order: Option<Arc<OrderCheck>>,
) -> impl Stream<Item = DataFusionResult<Piece>> + Send {
    async_stream::try_stream! {
        let uri = open.unit.uri.clone();
        let mut parsed_rows = match open.bytes {
            UnitBytes::Rows => stored_rows(Arc::clone(&reader), Arc::clone(&request), open.unit),
            UnitBytes::Ranged(file) => ranged_rows(Arc::clone(&reader), Arc::clone(&request), open.unit, file),
            _ => {
                let text = UnitText::new(Arc::clone(&reader), open, worker)
                    .map_err(|error| fault::carry(error.in_unit(&uri, None).in_step(&reader.name)))?;
                unpacked_rows(Arc::clone(&reader), Arc::clone(&request), text)
            }
        };
        while let Some(item) = parsed_rows.next().await {
            let item = item.map_err(|error| fault::carry(error.in_unit(&uri, None).in_step(&reader.name)))?;
            let (rows, raw, member) = match item {
                MemberPiece::Rows(rows, raw, member) => (rows, raw, member),
                MemberPiece::Rejects(refused, member) => {
                    reader.steps.parse.add_rejected(refused.len() as u64);
                    reader.came(refused.len() as u64);
                    yield Piece::Rejects(refused, member);
                    continue;
                }
                MemberPiece::Settled => {
                    yield Piece::Settled;
                    continue;
                }
                MemberPiece::End => {
                    yield Piece::End;
                    continue;
                }
            };
            if let Some(order) = &order {
                let placed = |error: Error| {
                    fault::carry(error.in_unit(&uri, member.name.as_deref()).in_step(&reader.name))
                };
                order.check(&rows.batch, rows.lines.as_ref()).map_err(placed)?;
            }
            // What is read counts, not what a filter that was pushed down leaves of it.
            let count = rows.batch.num_rows() as u64;
            reader.steps.parse.add_rows(count);
            reader.came(count);
            let rows = finish(&request, rows, raw, &uri, member, reader.replay.as_deref())?;
            let left = rows.as_ref().map_or(0, |rows| rows.batch.num_rows() as u64);
            if left < count {
                reader.leave_out(&uri, Filtered { records: count - left, passed_over: 0 });
            }
            let Some(rows) = rows else { continue };
            yield Piece::Rows(rows);
        }
    }
}

/// What comes of the text of a unit.
enum MemberPiece {
    /// Rows as the parser gave them, their raw records, and the member they are from.
    Rows(Rows, Option<ArrayRef>, MemberPlace),
    Rejects(Vec<Reject>, MemberPlace),
    Settled,
    End,
}

impl MemberPiece {
    fn rows(rows: Rows, member: &MemberPlace) -> Self {
        MemberPiece::Rows(rows, None, member.clone())
    }
}

type MemberRows = BoxStream<'static, Result<MemberPiece>>;

/// The rows of a unit that is read from its beginning to its end.
fn unpacked_rows(reader: Arc<Reader>, request: Arc<RowsRequest>, mut text: UnitText) -> MemberRows {
    async_stream::try_stream! {
        let mut sink = MemberReader::None;
        let mut member = MemberPlace::default();
        let mut names: HashMap<Arc<str>, u32> = HashMap::new();
        let mut tape = None;
        let mut foreign = Foreign::new(&reader);
        let mut parse = Cow::Borrowed(&request.parse);
        loop {
            let mut parsed = Parsed::default();
            let mut ended = false;
            let mut taken = match text.next().await? {
                Unpacked::Hungry => continue,
                Unpacked::Begin { member: name } => {
                    foreign.begin(&text.unit().uri, name.as_deref())?;
                    member = next_member(name, &mut names);
                    member.is_behind = text.before().is_some();
                    parse = lacking::watched(&request.parse, reader.replay.is_some() || member.is_behind);
                    sink = match text.before() {
                        None => MemberReader::new(&reader, &parse)?,
                        Some(before) => MemberReader::behind(&reader, &parse, before, text.worker())
                            .map_err(|error| text.fault(error, None))?,
                    };
                    tape = reader.tape(request.raw, text.before().map(Before::text));
                    continue;
                }
                Unpacked::Text(piece) => {
                    if text.before().is_none() {
                        let looked = foreign.text(&piece);
                        looked.map_err(|error| text.fault(error, member.name.as_deref()))?;
                    }
                    tape.iter_mut().for_each(|tape: &mut Tape| tape.push(&piece));
                    if text.is_long() {
                        sink.split(&reader, &parse, &piece, text.worker());
                    }
                    sink.push(&reader, &parse, piece, &mut parsed)
                }
                Unpacked::End => {
                    ended = true;
                    if let Some(pieces) = sink.collected() {
                        let mut read = collected_rows(&reader, &parse, pieces)?;
                        while let Some(parsed) = read.next().await {
                            let parsed = parsed.map_err(|error| text.fault(error, member.name.as_deref()))?;
                            for piece in parsed_pieces(parsed, &member) {
                                yield piece;
                            }
                        }
                    }
                    sink.finish(&reader, &mut parsed)
                }
                Unpacked::Done => break,
            };
            // Rejects are handed on before there are too many, wherever in the text that is.
            loop {
                taken.map_err(|error| text.fault(error, member.name.as_deref()))?;
                let is_full = parsed.is_full();
                let Parsed { rows, rejects, passed_over, .. } = std::mem::take(&mut parsed);
                if passed_over > 0 {
                    reader.steps.parse.add_passed_over(passed_over);
                    reader.came(passed_over);
                    reader.leave_out(&text.unit().uri, Filtered { records: passed_over, passed_over });
                }
                if let Some(tape) = tape.as_ref() {
                    member.beginning = tape.beginning();
                }
                if text.is_cut() {
                    bytes_of(&rows, &rejects).try_for_each(|byte| text.check_place(byte))?;
                }
                if !rejects.is_empty() {
                    yield MemberPiece::Rejects(rejects, member.clone());
                }
                for rows in rows {
                    let raw = tape.as_mut().filter(|_| request.raw).and_then(|tape| texts(tape, &rows));
                    yield MemberPiece::Rows(rows, raw, member.clone());
                }
                if is_full {
                    yield MemberPiece::Settled;
                }
                if !sink.waits() {
                    break;
                }
                taken = sink.push(&reader, &parse, Bytes::new(), &mut parsed);
            }
            if ended {
                let member = member.name.as_deref();
                let ended = lacking::ended(&reader.lacking, &parse, &text.unit().uri, member);
                ended.map_err(|error| text.fault(error, member))?;
                sink = MemberReader::None;
                yield MemberPiece::Settled;
            }
        }
        if !text.is_missing() && text.ended(0).is_some() {
            reader.ends(text.unit());
            yield MemberPiece::End;
        }
    }
    .boxed()
}

/// The raw records of rows, as far as `tape` has them.
fn texts(tape: &mut Tape, rows: &Rows) -> Option<ArrayRef> {
    let starts = rows.bytes.as_ref()?.as_primitive::<Int64Type>();
    Some(tape.texts(starts.values()))
}

/// Where the first and the last of what came out of a parser begin, as far as that is known.
fn bytes_of(rows: &[Rows], rejects: &[Reject]) -> impl Iterator<Item = u64> + use<> {
    let ends = |rows: &Rows| {
        let bytes = rows.bytes.as_ref()?.as_primitive::<Int64Type>().values();
        Some([*bytes.first()?, *bytes.last()?].map(i64::unsigned_abs))
    };
    let of_rows: Vec<[u64; 2]> = rows.iter().filter_map(ends).collect();
    let of_rejects: Vec<u64> = rejects.iter().map(|reject| reject.byte).collect();
    of_rows.into_iter().flatten().chain(of_rejects)
}

/// The place of a member that comes behind those in `names`.
fn next_member(name: Option<String>, names: &mut HashMap<Arc<str>, u32>) -> MemberPlace {
    let Some(name) = name else { return MemberPlace::default() };
    let name: Arc<str> = name.into();
    let before = names.entry(Arc::clone(&name)).or_default();
    *before += 1;
    MemberPlace { name: Some(name), earlier: *before - 1, ..MemberPlace::default() }
}

/// The most text that is handed to a parser at once: about as large as a batch. Where few records are kept of it, more,
/// or handing it to another task would take as long as searching it.
fn push_bytes(request: &ParseRequest) -> usize {
    let batch = (request.batch_rows * 32).max(16 << 10);
    if request.contains.is_empty() { batch } else { 4 * batch }
}

/// What takes the text of a member: a parser, or (for a format that asks for ranges, inside an archive or a pipe)
/// memory, charged to the budget.
enum MemberReader {
    None,
    /// Whether anything has been pushed is with the parser.
    Parse(Box<dyn Parser>, bool),
    Split(SplitParser),
    Collect {
        pieces: Vec<Bytes>,
        _reservation: Vec<Reservation>,
    },
}

impl MemberReader {
    fn new(reader: &Reader, request: &ParseRequest) -> Result<Self> {
        Ok(match reader.format.reading() {
            Reading::Stream(format) => MemberReader::Parse(format.parser(request)?, false),
            Reading::Ranges(_) => MemberReader::Collect { pieces: Vec::new(), _reservation: Vec::new() },
            Reading::Rows => return Err(Error::internal("rows are not parsed")),
        })
    }

    /// For the lines that stand behind `before`.
    fn behind(reader: &Reader, request: &ParseRequest, before: &Before, worker: &Member) -> Result<Self> {
        let (parser, splitter) = before.parser(reader, request)?;
        let pool: Arc<dyn HelperPool> = Arc::clone(worker.pool()) as Arc<dyn HelperPool>;
        let step = Arc::clone(&reader.steps.parse);
        Ok(MemberReader::Split(SplitParser::behind(splitter, parser, push_bytes(request), pool, step)))
    }

    /// Prepares for a long text that begins with `text`: its pieces may be parsed by several tasks.
    fn split(&mut self, reader: &Reader, request: &ParseRequest, text: &[u8], worker: &Member) {
        let (MemberReader::Parse(_, false), Some(format)) = (&*self, reader.stream_format()) else { return };
        let Some(splitter) = format.splitter(text) else { return };
        let MemberReader::Parse(parser, _) = std::mem::replace(self, MemberReader::None) else { return };
        let pool: Arc<dyn HelperPool> = Arc::clone(worker.pool()) as Arc<dyn HelperPool>;
        let step = Arc::clone(&reader.steps.parse);
        *self = MemberReader::Split(SplitParser::new(splitter, parser, push_bytes(request), pool, step));
    }

    /// Takes the next text and adds to `parsed` what is ready. Where that becomes full, the rest waits for the next
    /// push, which may be one of no text.
    fn push(&mut self, reader: &Reader, request: &ParseRequest, text: Bytes, parsed: &mut Parsed) -> Result<()> {
        match self {
            MemberReader::None => Err(Error::internal("text outside a member")),
            MemberReader::Parse(parser, begun) => {
                *begun = true;
                reader.steps.parse.busy(|| match text.is_empty() {
                    true => parser.push(text, parsed),
                    false => cut(vec![text], push_bytes(request)).try_for_each(|piece| parser.push(piece, parsed)),
                })
            }
            MemberReader::Split(parser) => parser.push(text, parsed),
            MemberReader::Collect { pieces, _reservation } => {
                let holder = format!("a {} file that cannot be read by ranges", reader.format.name());
                _reservation.push(reader.context.budget.try_reserve(&holder, text.len())?);
                pieces.push(text);
                Ok(())
            }
        }
    }

    /// The text is complete.
    fn finish(&mut self, reader: &Reader, parsed: &mut Parsed) -> Result<()> {
        match self {
            MemberReader::None => Err(Error::internal("a member ended that had not begun")),
            MemberReader::Parse(parser, _) => reader.steps.parse.busy(|| parser.finish(parsed)),
            MemberReader::Split(parser) => parser.finish(parsed),
            MemberReader::Collect { .. } => Ok(()),
        }
    }

    /// Whether something waits for the next push.
    fn waits(&self) -> bool {
        match self {
            MemberReader::Parse(parser, _) => parser.waits(),
            MemberReader::Split(parser) => parser.waits(),
            MemberReader::None | MemberReader::Collect { .. } => false,
        }
    }

    /// The text of a format that asks for ranges.
    fn collected(&mut self) -> Option<Vec<Bytes>> {
        match self {
            MemberReader::Collect { pieces, .. } => Some(std::mem::take(pieces)),
            _ => None,
        }
    }
}

/// The rows of a file that asks for ranges and was collected in memory.
fn collected_rows(
    reader: &Reader,
    request: &ParseRequest,
    pieces: Vec<Bytes>,
) -> Result<BoxStream<'static, Result<Parsed>>> {
    let format = reader.range_format().ok_or_else(|| Error::internal("only a format that asks for ranges collects"))?;
    let bytes: Bytes = pieces.concat().into();
    if bytes.is_empty() && request.empty_files == EmptyFiles::Allow {
        return Ok(futures::stream::empty().boxed());
    }
    Ok(format.read(Arc::new(Collected(bytes)), request))
}

/// Leaves out what the parser refuses, as far as the job allows.
fn refuse(reader: &Reader, refused: Vec<Reject>, uri: &str, member: &MemberPlace) -> Result<()> {
    let refusal = |reject| of_parser(&reader.rejects, &reader.name, uri, member, reject);
    reader.rejects.take(&Entry::Step(reader.name.clone()), refused.into_iter().map(refusal).collect())
}

/// The rows of a unit of a place that gives rows.
fn stored_rows(reader: Arc<Reader>, request: Arc<RowsRequest>, unit: Unit) -> MemberRows {
    async_stream::try_stream! {
        let source = Arc::clone(reader.source_of(&unit.uri)?);
        let place = source.rows().ok_or_else(|| Error::internal("the place gives no rows"))?;
        let mut held = Gathered::new(&reader.context.budget);
        let mut read = place.read(&reader.context, &unit, &request.parse);
        let mut paid = None;
        loop {
            reader.context.budget.admitted().await;
            let start = Instant::now();
            wait(paid).await;
            let next = read.next().await;
            reader.steps.decode.add_waiting_input(start.elapsed());
            let Some(rows) = next.transpose()? else { break };
            let bytes = rows.batch.get_array_memory_size();
            held.set(bytes);
            reader.steps.fetch.add_bytes(bytes as u64);
            paid = reader.context.pace.pay(bytes as u64);
            yield MemberPiece::rows(rows, &MemberPlace::default());
        }
        reader.ends(&unit);
        yield MemberPiece::End;
    }
    .boxed()
}

/// Batches of a part of a database that are held at once: one that is gathered, one that waits, one that was handed on.
const GATHERED: usize = 3;

/// The memory of these, charged to the budget whether there is room or not: so others do with less.
struct Gathered {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Gathered {
    fn new(budget: &Arc<Budget>) -> Self {
        let bytes = GATHERED * BATCH_BYTES;
        budget.take(bytes);
        Gathered { budget: Arc::clone(budget), bytes }
    }

    /// The last batch had so many bytes; the next ones may have as many.
    fn set(&mut self, batch: usize) {
        let bytes = GATHERED * batch;
        self.budget.take(bytes.saturating_sub(self.bytes));
        self.budget.give_back(self.bytes.saturating_sub(bytes));
        self.bytes = bytes;
    }
}

impl Drop for Gathered {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

/// What a format that asks for ranges has read. Its rows come in order, so nothing refused has to wait for others.
fn parsed_pieces(parsed: Parsed, member: &MemberPlace) -> impl Iterator<Item = MemberPiece> {
    let Parsed { rows, rejects, .. } = parsed;
    let refused = !rejects.is_empty();
    let rejects = refused.then(|| MemberPiece::Rejects(rejects, member.clone()));
    let rows: Vec<MemberPiece> = rows.into_iter().map(|rows| MemberPiece::rows(rows, member)).collect();
    rejects.into_iter().chain(rows).chain(refused.then_some(MemberPiece::Settled))
}

/// The rows of a unit whose format asks for ranges.
fn ranged_rows(reader: Arc<Reader>, request: Arc<RowsRequest>, unit: Unit, file: Arc<dyn ReadAt>) -> MemberRows {
    async_stream::try_stream! {
        let format = reader.range_format().ok_or_else(|| Error::internal("only a format that asks for ranges comes \
                                                                          here"))?;
        let mut parse = lacking::watched(&request.parse, reader.replay.is_some() || !unit.is_beginning());
        if let Some(records) = &unit.records {
            parse.to_mut().places = Some(records.places.clone());
        }
        let mut read = match file.size() == 0 && parse.empty_files == EmptyFiles::Allow {
            true => futures::stream::empty().boxed(),
            false => format.read(file, &parse),
        };
        loop {
            let start = Instant::now();
            let Some(parsed) = read.next().await else { break };
            reader.steps.parse.add_busy(start.elapsed());
            for piece in parsed_pieces(parsed?, &MemberPlace::default()) {
                yield piece;
            }
        }
        lacking::ended(&reader.lacking, &parse, &unit.uri, None)?;
        reader.ends(&unit);
        yield MemberPiece::End;
    }
    .boxed()
}

/// Adds the provenance, filters, and keeps the columns that come out. `None` if no row is left.
fn finish(
    request: &RowsRequest,
    rows: Rows,
    mut raw: Option<ArrayRef>,
    uri: &str,
    member: MemberPlace,
    replay: Option<&Replay>,
) -> DataFusionResult<Option<LocatedRows>> {
    let Rows { lines, bytes, .. } = &rows;
    let (mut lines, mut bytes) = (lines.clone().filter(|_| !member.is_behind), bytes.clone());
    let count = rows.batch.num_rows();
    let mut columns: Vec<ArrayRef> = rows.batch.columns().to_vec();
    // What is loaded again is from where it has been.
    let first = replay.and_then(|replay| replay.unit(uri)).map(|unit| &unit.rejected);
    for provenance in &request.provenance {
        columns.push(match provenance {
            Provenance::Uri => match first {
                Some(first) => constant(first.uri.as_deref(), count),
                None => constant(Some(&millstream_core::redact::url(uri)), count),
            },
            Provenance::Member => match first {
                Some(first) => constant(first.member.as_deref(), count),
                None => constant(member.name.as_deref(), count),
            },
            Provenance::Line if first.is_some() => {
                let line = first.and_then(|first| first.line).unwrap_or(0);
                Arc::new(Int64Array::from(vec![line.cast_signed(); count]))
            }
            Provenance::Message(MessageColumn::Id) if first.is_some() => {
                constant(first.and_then(|first| first.id.as_deref()), count)
            }
            Provenance::Message(column) => message_column(request, &rows, *column)?,
            Provenance::Line => {
                rows.lines.clone().ok_or_else(|| DataFusionError::Internal("the parser gave no line numbers".into()))?
            }
        });
    }
    let options = RecordBatchOptions::new().with_row_count(Some(count));
    let batch = RecordBatch::try_new_with_options(Arc::clone(&request.read_schema), columns, &options)?;
    let kept = match &request.filter {
        Some(filter) => {
            let mask = filter.evaluate(&batch)?.into_array(count)?;
            for places in [&mut lines, &mut bytes, &mut raw].into_iter().flatten() {
                *places = arrow::compute::filter(places, mask.as_boolean())?;
            }
            filter_record_batch(&batch, mask.as_boolean())?
        }
        None => batch,
    };
    if kept.num_rows() == 0 {
        return Ok(None);
    }
    let projected = request.output.iter().map(|&index| Arc::clone(kept.column(index))).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(kept.num_rows()));
    let batch = RecordBatch::try_new_with_options(Arc::clone(&request.output_schema), projected, &options)?;
    Ok(Some(LocatedRows { batch, lines, bytes, raw, member }))
}

/// What `rows` have in a column that says of which message a row is.
fn message_column(request: &RowsRequest, rows: &Rows, column: MessageColumn) -> DataFusionResult<ArrayRef> {
    match (&request.messages, &rows.bytes) {
        (Some(messages), Some(bytes)) => Ok(messages.column(column, bytes.as_primitive::<Int64Type>().values())),
        _ => Err(DataFusionError::Internal("it is not known of which messages rows are".into())),
    }
}

/// `value` in every one of `rows` rows: one buffer, many views.
fn constant(value: Option<&str>, rows: usize) -> ArrayRef {
    match value {
        None => arrow::array::new_null_array(&arrow::datatypes::DataType::Utf8View, rows),
        Some(value) => {
            let one = StringViewArray::from(vec![value]);
            let views = vec![one.views()[0]; rows];
            Arc::new(StringViewArray::new(views.into(), one.data_buffers().to_vec(), None))
        }
    }
}
