//! A look at the first bytes of a source: its columns, where the job declares none, and its size.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use bytes::{Bytes, BytesMut};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use millstream_codec::{Packing, Unpack, Unpacked, packing_by_name};
use millstream_core::format::{EmptyFiles, OnDrift, ParseRequest, ReadAt, Reading, Sample, SeenColumns};
use millstream_core::queue::Queue;
use millstream_core::{ByteStream, Error, ErrorKind, Reservation, Result, Unit};
use millstream_format::drift::nothing_in_common;

use super::Reader;
use super::archive;
use super::foreign::Foreign;
use super::ranges::{Collected, ranged_file};
use super::stored;
use super::table::Estimate;

/// Decoded bytes of one unit that are looked at.
pub const SAMPLE_BYTES: usize = 1 << 20;

/// Bytes of them that are held against the columns.
const FITS_BYTES: usize = 64 << 10;

/// Bytes of them that tell a dialect, and whether there is a header. More would make every run of a csv source without
/// columns begin later: 64 KiB take 15 ms.
const DIALECT_BYTES: usize = 16 << 10;

/// Units that are looked at, unless all must be.
const SAMPLE_UNITS: usize = 8;

/// Units whose sizes are added up for an estimate. So many are kept at the most, so that they are not listed again.
const ESTIMATE_UNITS: usize = 10_000;

/// Units that are listed even if fewer are asked for: a page of what lists objects, and most sources have no more.
const LISTED_AT_LEAST: usize = 1_000;

/// Compressed text grows by about this factor, where nothing is known of it.
const UNPACKED_RATIO: f64 = 4.0;

/// The first decoded bytes of a unit.
#[derive(Debug, Clone)]
pub struct Head {
    /// The unit.
    pub unit: Unit,
    /// The member, if the unit is an archive: the first that the job reads.
    pub member: Option<String>,
    /// The codec found.
    pub codec: &'static str,
    /// Up to [`SAMPLE_BYTES`] of text.
    pub text: Bytes,
    /// Whether `text` is all there is.
    pub complete: bool,
    /// Bytes of the unit of which that is the text.
    pub stored: u64,
}

/// The columns of the source: declared, or made out from its files.
pub async fn columns(reader: &Arc<Reader>) -> Result<SchemaRef> {
    if let Some(declared) = reader.format.declared() {
        return Ok(declared);
    }
    if matches!(reader.format.reading(), Reading::Rows) {
        return stored::columns(reader).await;
    }
    let first = units(reader, SAMPLE_UNITS).await?;
    if first.is_empty() {
        return match reader.allow_empty {
            true => Ok(Arc::new(arrow::datatypes::Schema::empty())),
            false => Err(reader.nothing(&reader.patterns)),
        };
    }
    let connections = first.iter().map(|unit| reader.source_of(&unit.uri).map_or(1, |source| source.connections()));
    let at_once = connections.min().unwrap_or(1).clamp(1, SAMPLE_UNITS);
    let units = match reader.on_drift {
        OnDrift::Widen => reader.list(),
        OnDrift::Fail | OnDrift::Null => stream::iter(first.into_iter().map(Ok)).boxed(),
    };
    match reader.format.reading() {
        Reading::Stream(_) => stream_columns(reader, units, at_once).await,
        Reading::Ranges(_) => range_columns(reader, units).await,
        Reading::Rows => Err(Error::internal("rows have their columns already")),
    }
}

/// The columns of `units`, of which so many are read at once: a server may take long to answer.
async fn stream_columns(
    reader: &Arc<Reader>,
    units: BoxStream<'static, Result<Unit>>,
    at_once: usize,
) -> Result<SchemaRef> {
    let read = |(number, unit): (usize, Result<Unit>)| async move {
        let unit: Unit = unit?;
        // A few samples always fit. All of them, however many files there are, may not.
        let holder = "the beginnings of all files, to infer their columns,";
        let charged = (number >= SAMPLE_UNITS).then_some(holder);
        let name = unit.name();
        Ok::<_, Error>((name, read_head(reader, unit, SAMPLE_BYTES, charged).await))
    };
    let mut heads = std::pin::pin!(units.enumerate().map(read).buffered(at_once));
    let mut samples = Vec::new();
    let mut unopened = None;
    while let Some(head) = heads.next().await {
        let (uri, head) = head?;
        let head = match head {
            Ok(head) => head,
            Err(error) if error.kind() == ErrorKind::Memory => return Err(error.hint(DECLARE)),
            Err(error) => {
                reader.unopened.look_past(error.clone())?;
                unopened.get_or_insert(error);
                continue;
            }
        };
        let uri = head.member.as_ref().map_or(uri.clone(), |member| format!("{uri}, member {member}"));
        samples.push(Sample { uri, text: head.text, complete: head.complete });
    }
    if let (true, Some(error)) = (samples.is_empty(), unopened) {
        return Err(unknown_columns(reader, error));
    }
    let format = reader.stream_format().ok_or_else(|| Error::internal("a stream format was expected"))?;
    let columns = format.infer(&samples, reader.on_drift)?;
    for sample in &samples {
        fits(reader, sample, &columns).map_err(|error| error.in_unit(&sample.uri, None))?;
    }
    Ok(columns)
}

/// Whether the file of `sample` can be read with these columns: what the run would say when it comes to it.
fn fits(reader: &Reader, sample: &Sample, columns: &SchemaRef) -> Result<()> {
    let format = reader.stream_format().ok_or_else(|| Error::internal("a stream format was expected"))?;
    let cut = sample.text.len() > FITS_BYTES;
    let text = sample.text.slice(..sample.text.len().min(FITS_BYTES));
    let sample = Sample { uri: sample.uri.clone(), text, complete: sample.complete && !cut };
    let request = request(reader, columns);
    format.fits(&sample, &request)?;
    // Of a part of a file nobody knows what the rest has.
    let other = request.seen.filter(|_| sample.complete).and_then(|seen| seen.only_other());
    other.map_or(Ok(()), |other| Err(nothing_in_common([other.as_str()].into_iter(), columns)))
}

fn request(reader: &Reader, columns: &SchemaRef) -> ParseRequest {
    ParseRequest {
        on_drift: reader.on_drift,
        empty_files: reader.empty_files,
        seen: (reader.on_drift != OnDrift::Fail).then(SeenColumns::default),
        // Only what ends the run is looked for, and not what a value may be.
        projection: Vec::new(),
        contains: reader.contains_to_read(),
        ..ParseRequest::all(Arc::clone(columns))
    }
}

/// Holds the beginning of the first file against columns that the job declares, where it can be opened again.
pub async fn check_first(reader: &Arc<Reader>, columns: &SchemaRef) -> Result<()> {
    if reader.format.declared().is_none() || reader.stream_format().is_none() {
        return Ok(());
    }
    // What cannot be listed or opened is reported when it is read.
    let Ok(first) = units(reader, 1).await else { return Ok(()) };
    let Some(unit) = first.into_iter().next() else { return Ok(()) };
    let source = reader.source_of(&unit.uri)?;
    if !source.is_local() || !source.can_reopen(&unit) {
        return Ok(());
    }
    let head = match read_head(reader, unit, FITS_BYTES, None).await {
        Ok(head) => head,
        Err(error) if error.kind() == ErrorKind::Data && !reader.unopened.skips() => return Err(error),
        Err(_) => return Ok(()),
    };
    let sample = Sample { uri: head.unit.name(), text: head.text, complete: head.complete };
    fits(reader, &sample, columns).map_err(|error| error.in_unit(&head.unit.uri, head.member.as_deref()))
}

/// The columns of the messages of a queue: made out from the first and the last ones that it has now.
pub async fn message_columns(reader: &Arc<Reader>, queue: &dyn Queue) -> Result<SchemaRef> {
    let Some(format) = reader.stream_format() else {
        let what = format!("the columns of messages in {} cannot be inferred", reader.format.name());
        return Err(Error::job(what).hint(DECLARE_THEM));
    };
    let messages = queue.sample(SAMPLE_BYTES, &reader.context.io).await?;
    let (mut samples, mut unreadable) = (Vec::new(), None::<Error>);
    for (number, id) in messages.ids().iter().enumerate() {
        if messages.body(number).trim_ascii().is_empty() {
            continue;
        }
        let unit = Unit::new(queue.shown());
        let unpack = Unpack::new(reader.unpack_options(&unit));
        let mut body = stream::iter([Ok(Bytes::copy_from_slice(messages.body(number)))]).boxed();
        let sample = async {
            let head = decode_head(reader, unit, (unpack, &mut body), SAMPLE_BYTES, None).await?;
            let uri = format!("{}, message {}", queue.shown(), queue.shown_id(*id));
            let sample = Sample { uri, text: head.text, complete: head.complete };
            // A message that cannot be read is a reject when its turn comes.
            format.infer(std::slice::from_ref(&sample), reader.on_drift)?;
            Ok(sample)
        };
        match sample.await {
            Ok(sample) => samples.push(sample),
            Err(error) => drop(unreadable.get_or_insert(error)),
        }
    }
    match unreadable {
        Some(error) if samples.is_empty() => {
            Err(Error::data(format!("the columns of {} cannot be inferred: no message can be read", queue.shown()))
                .cause(error.what())
                .hint(DECLARE_THEM))
        }
        None if samples.is_empty() && !messages.is_empty() => {
            Err(Error::data(format!("the columns of {} cannot be inferred: its messages have no body", queue.shown()))
                .hint("name the field of an entry that has the message (`field`), or declare the columns"))
        }
        None if samples.is_empty() => Err(without_messages(queue)),
        _ => format.infer(&samples, reader.on_drift),
    }
}

/// The error of a queue whose columns are to be inferred and that has no messages.
pub fn without_messages(queue: &dyn Queue) -> Error {
    let what = format!("the columns of {} cannot be inferred: it has no messages now", queue.shown());
    Error::transient(what).hint(DECLARE_THEM)
}

const DECLARE_THEM: &str = "declare them in the format, such as `json: {columns: {id: int64, name: utf8}}`";

/// `error` as the reason why nothing is known of the columns: what would skip the unit is no help then.
fn unknown_columns(reader: &Reader, error: Error) -> Error {
    match reader.unopened.skips() {
        true => error.hint(
            "it is skipped, as are all other files that were tried, so the columns are not known: declare `columns`, \
             or correct what `read` names",
        ),
        false => error,
    }
}

const DECLARE: &str = "declare `columns`, or raise `--memory`";

async fn range_columns(reader: &Arc<Reader>, mut units: BoxStream<'static, Result<Unit>>) -> Result<SchemaRef> {
    let format = reader.range_format().ok_or_else(|| Error::internal("a range format was expected"))?;
    let mut found: Vec<(String, SchemaRef)> = Vec::new();
    let mut unopened = None;
    while let Some(unit) = units.next().await.transpose()? {
        let file = match ranged(reader, &unit).await {
            Ok(file) => file,
            Err(error) => {
                reader.unopened.look_past(error.clone())?;
                unopened.get_or_insert(error);
                continue;
            }
        };
        if file.size() == 0 && reader.empty_files == EmptyFiles::Allow {
            continue;
        }
        let mut columns = format.columns(file).await.map_err(|error| error.in_unit(&unit.uri, None))?;
        // Most files have the columns of the one before: they share one description.
        if let Some((_, before)) = found.last().filter(|(_, before)| *before == columns) {
            columns = Arc::clone(before);
        }
        found.push((unit.name(), columns));
    }
    if let (true, Some(error)) = (found.is_empty(), unopened) {
        return Err(unknown_columns(reader, error));
    }
    if found.is_empty() {
        return Err(Error::data("columns cannot be inferred: all files are empty").hint(
            "provide files that are not empty, or leave the empty ones out of `read`: a parquet file stores its \
             columns",
        ));
    }
    format.merge(&found, reader.on_drift)
}

/// `unit` as a file that can be read by ranges: where it is, or collected in memory.
async fn ranged(reader: &Arc<Reader>, unit: &Unit) -> Result<Arc<dyn ReadAt>> {
    match ranged_file(reader, unit, None).await? {
        Some(file) => Ok(file),
        None => collect(reader, unit).await,
    }
}

/// The first member of a packed unit, whole, charged while it is held.
async fn collect(reader: &Arc<Reader>, unit: &Unit) -> Result<Arc<dyn ReadAt>> {
    let holder = format!("a {} file that cannot be read by ranges", reader.format.name());
    let head = read_head(reader, unit.clone(), usize::MAX, Some(&holder)).await?;
    Ok(Arc::new(Collected(head.text)))
}

/// The first units of the source, at most `limit`. If these are all there are, or nearly, they are kept for the run.
pub async fn units(reader: &Arc<Reader>, limit: usize) -> Result<Vec<Unit>> {
    if let Some(known) = reader.opened.units(limit) {
        return Ok(known);
    }
    let mut found = Vec::new();
    let mut listed = reader.list();
    while found.len() < limit.max(LISTED_AT_LEAST) {
        match listed.next().await {
            Some(unit) => found.push(unit?),
            None => {
                reader.opened.keep_units(found.clone());
                break;
            }
        }
    }
    found.truncate(limit);
    Ok(found)
}

/// What listing tells of the size of a source on this machine, and the beginning of one of its files of how it is
/// packed and how long a record is; `None` if nothing is told.
pub async fn estimate(reader: &Arc<Reader>) -> Result<Option<Estimate>> {
    let units = units(reader, ESTIMATE_UNITS).await?;
    // What a list names may be elsewhere: a look at it would cost as much as reading it.
    if !units.iter().all(|unit| reader.source_of(&unit.uri).is_ok_and(|source| source.is_local())) {
        return Ok(None);
    }
    let mut estimate = Estimate { is_cut: units.len() == ESTIMATE_UNITS, ..Estimate::default() };
    let (ratio, record_bytes) = growth(reader, &units).await.unwrap_or((UNPACKED_RATIO, None));
    estimate.record_bytes = record_bytes;
    for unit in units {
        let Some(size) = unit.size else { return Ok(None) };
        let ratio = match packing_by_name(&unit.uri) {
            Packing::Plain => 1.0,
            Packing::Stream => ratio,
            Packing::Archive => UNPACKED_RATIO,
        };
        estimate.units += 1;
        estimate.stored_bytes += size;
        estimate.text_bytes += (size as f64 * ratio) as u64;
    }
    Ok(Some(estimate))
}

/// By how much the largest of the compressed `units` grows when it is unpacked, and the bytes of one of its records; if
/// none is, those of the largest. What is wrong with it is told when it is read.
async fn growth(reader: &Arc<Reader>, units: &[Unit]) -> Option<(f64, Option<u64>)> {
    let unit = units.iter().max_by_key(|unit| (packing_by_name(&unit.uri), unit.size))?;
    let is_sound =
        matches!(reader.format.reading(), Reading::Stream(_)) && packing_by_name(&unit.uri) != Packing::Archive;
    if !is_sound || !reader.source_of(&unit.uri).ok()?.can_reopen(unit) {
        return None;
    }
    let head = head(reader, unit.clone()).await.ok()?;
    let (text, stored) = (head.text.len() as u64, head.stored);
    if text == 0 || stored == 0 {
        return None;
    }
    let lines = memchr::memchr_iter(b'\n', &head.text).count() as u64;
    Some((text as f64 / stored as f64, text.checked_div(lines)))
}

/// The first bytes of `unit`, decoded.
pub async fn head(reader: &Arc<Reader>, unit: Unit) -> Result<Head> {
    read_head(reader, unit, SAMPLE_BYTES, None).await
}

/// Fewer of them: what tells a dialect.
pub async fn short_head(reader: &Arc<Reader>, unit: Unit) -> Result<Head> {
    let mut head = read_head(reader, unit, DIALECT_BYTES, None).await?;
    head.complete &= head.text.len() <= DIALECT_BYTES;
    head.text.truncate(DIALECT_BYTES);
    Ok(head)
}

/// The format of a sample.
pub fn guess_of(head: &Head) -> Result<millstream_format::Guess> {
    millstream_format::guess(&sample_of(head), &head.text)
}

/// The beginning of a unit as a sample.
pub fn sample_of(head: &Head) -> Sample {
    Sample { uri: head.unit.name(), text: head.text.clone(), complete: head.complete }
}

/// The first `limit` bytes of `unit`, decoded; charged to `holder`, if there is one, as long as the text lives.
async fn read_head(reader: &Arc<Reader>, unit: Unit, limit: usize, holder: Option<&str>) -> Result<Head> {
    let unit = Unit { records: None, ..unit };
    let (unpack, mut bytes) = archive::look(reader, &unit).await.map_err(|error| error.in_unit(&unit.uri, None))?;
    if reader.source_of(&unit.uri)?.can_reopen(&unit) {
        return decode_head(reader, unit, (unpack, &mut bytes), limit, holder).await;
    }
    let mut taken: Vec<Bytes> = Vec::new();
    let mut noted = (&mut bytes).inspect_ok(|chunk| taken.push(chunk.clone())).boxed();
    let head = decode_head(reader, unit, (unpack, &mut noted), limit, holder).await?;
    drop(noted);
    let again: ByteStream = stream::iter(taken.into_iter().map(Ok)).chain(bytes).boxed();
    reader.opened.keep(&head.unit.uri, again);
    Ok(head)
}

/// The same of a unit that is open.
async fn decode_head(
    reader: &Arc<Reader>,
    unit: Unit,
    (mut unpack, bytes): (Unpack, &mut BoxStream<'_, Result<Bytes>>),
    limit: usize,
    holder: Option<&str>,
) -> Result<Head> {
    let uri = unit.uri.clone();
    let at_unit = |error: Error| error.in_unit(&uri, None);
    let mut head = Head { unit, member: None, codec: "", text: Bytes::new(), complete: false, stored: 0 };
    let mut text = Charged::default();
    let mut foreign = Foreign::new(reader);
    while text.bytes.len() < limit {
        match unpack.next().map_err(at_unit)? {
            Unpacked::Hungry => match bytes.next().await.transpose().map_err(at_unit)? {
                Some(chunk) => unpack.feed(chunk),
                None => unpack.end(),
            },
            Unpacked::Begin { member } => {
                foreign.begin(&uri, member.as_deref())?;
                head.member = member;
            }
            Unpacked::Text(piece) => {
                foreign.text(&piece).map_err(|error| error.in_unit(&uri, head.member.as_deref()))?;
                if let Some(holder) = holder {
                    text.charges.push(reader.context.budget.try_reserve(holder, piece.len()).map_err(at_unit)?);
                }
                text.bytes.extend_from_slice(&piece);
            }
            Unpacked::End | Unpacked::Done => {
                head.complete = true;
                break;
            }
        }
    }
    (head.codec, head.stored) = (unpack.codec(), unpack.compressed_position());
    head.text = Bytes::from_owner(text);
    Ok(head)
}

/// Text and what is reserved for it.
#[derive(Default)]
struct Charged {
    bytes: BytesMut,
    charges: Vec<Reservation>,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
