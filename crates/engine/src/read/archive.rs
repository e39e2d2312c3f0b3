//! A large zip that is read by its directory, so that several tasks read its members, and only those that are wanted.
//!
//! ```text
//!  unit ─▶ tail ─▶ directory ─▶ plan ─▶ part, part, part, …    to whoever has time
//!                                        └─ range ─▶ unpack ─▶ text of its members
//! ```
//! The codec makes the plan and reads a part; `helpers.rs` says which task takes which part. An archive that
//! has no plan (no ranges, no etag, something in it that is not in order) is read in passing, as any other unit.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use futures::{StreamExt, stream};
use millstream_codec::{Unpack, ZipEnding, ZipPlan, ZipPlanner, has_directory_by_name, is_zip};
use millstream_core::source::{Content, OpenedUnit};
use millstream_core::{ByteStream, Error, Records, Reservation, Result, Unit};

use super::Reader;
use super::ranges::range_of;

/// Zips of more than so many bytes are read by their directory. Two more requests cost about as much as to read a few
/// 100 kB, and smaller ones are mostly many, so that every task has one of its own.
const LARGE: u64 = 4 << 20;

/// An archive and its plan.
#[derive(Debug)]
pub struct Archive {
    unit: Unit,
    plan: Arc<ZipPlan>,
    /// The parts that are read: those that begin in the range of the unit.
    numbers: Range<usize>,
    /// Parts that have not been read to their end.
    left: AtomicUsize,
    /// Lines in those that have.
    lines: AtomicU64,
    _held: Reservation,
}

/// A part of an archive.
#[derive(Debug, Clone)]
pub struct Part {
    archive: Arc<Archive>,
    number: usize,
}

/// A unit that is no archive with a plan, or one that is.
pub enum Found<B = Content> {
    /// Its bytes.
    Bytes(B),
    /// Its plan.
    Archive(Arc<Archive>),
    /// None of its members is wanted, although some were asked for: the error that says so.
    Unwanted(Error),
}

/// Opens `unit`: its stream, unless it is an archive that can be read by its directory.
pub async fn open(reader: &Reader, unit: &Unit) -> Result<Found> {
    // What listing has told is enough where the name tells the rest; otherwise its first bytes do.
    let promises_directory = has_directory_by_name(&unit.uri);
    if is_large(unit) && unit.etag.is_some() && promises_directory && !reader.opened.has(&unit.uri) {
        return planned(reader, unit, unit).await;
    }
    let OpenedUnit { unit: known, ranges, content } = reader.open(unit).await?;
    let mut bytes = match content {
        Content::Stream(bytes) if ranges && is_large(&known) => bytes,
        content => return Ok(Found::Bytes(content)),
    };
    let first = bytes.next().await;
    if !matches!(&first, Some(Ok(head)) if is_zip(head)) {
        return Ok(Found::Bytes(Content::Stream(stream::iter(first).chain(bytes).boxed())));
    }
    // A server may have no connection for the tail while this one is open.
    drop(bytes);
    planned(reader, unit, &known).await
}

/// `unit` by its plan, or its stream if it has none. `known` is what is known of it.
async fn planned(reader: &Reader, unit: &Unit, known: &Unit) -> Result<Found> {
    match by_directory(reader, known).await? {
        Some(found) => Ok(found),
        None => Ok(Found::Bytes(reader.open(unit).await?.content)),
    }
}

/// `unit`, whose size and version are known, by its directory; `None` if it has no plan, or there is no memory for it.
pub async fn by_directory(reader: &Reader, unit: &Unit) -> Result<Option<Found>> {
    let Some((planner, mut held)) = directory(reader, unit).await? else { return Ok(None) };
    match planner.finish() {
        Ok(Some(plan)) => {
            charge(&mut held, plan.held());
            let begins_before =
                |place: u64| (0..plan.parts()).take_while(|part| plan.range(*part).start < place).count();
            let numbers = match unit.records.as_deref() {
                None => 0..plan.parts(),
                Some(Records { places, .. }) => begins_before(places.start)..begins_before(places.end),
            };
            let left = AtomicUsize::new(numbers.len());
            let (unit, plan, lines) = (unit.clone(), Arc::new(plan), AtomicU64::new(0));
            Ok(Some(Found::Archive(Arc::new(Archive { unit, plan, numbers, left, lines, _held: held }))))
        }
        Ok(None) => Ok(None),
        Err(error) => Ok(Some(Found::Unwanted(error.in_unit(&unit.uri, None)))),
    }
}

/// The beginning of what is wanted of `unit`, and what unpacks it. Only where some members are asked for, a look at the
/// first of them is worth a plan.
pub async fn look(reader: &Reader, unit: &Unit) -> Result<(Unpack, ByteStream)> {
    let in_passing = |bytes| (Unpack::new(reader.unpack_options(unit)), bytes);
    if reader.members.is_empty() {
        return Ok(in_passing(reader.open(unit).await?.content.into_stream()));
    }
    match open(reader, unit).await? {
        Found::Archive(archive) => {
            let first = Part { archive, number: 0 };
            Ok((first.unpack(reader)?, first.open(reader).await?))
        }
        Found::Bytes(content) => Ok(in_passing(content.into_stream())),
        Found::Unwanted(error) => Err(error),
    }
}

impl Found {
    /// The same, with its bytes as something else.
    pub fn map<B>(self, bytes: impl FnOnce(Content) -> B) -> Found<B> {
        match self {
            Found::Bytes(content) => Found::Bytes(bytes(content)),
            Found::Archive(archive) => Found::Archive(archive),
            Found::Unwanted(error) => Found::Unwanted(error),
        }
    }
}

fn is_large(unit: &Unit) -> bool {
    unit.range.is_none() && unit.records.is_none() && unit.size.is_some_and(|size| size > LARGE)
}

/// The directory of `unit`, whose size and version are known, and the memory that it takes; `None` if it is to be read
/// in passing, or if there is no memory for it.
async fn directory(reader: &Reader, unit: &Unit) -> Result<Option<(ZipPlanner, Reservation)>> {
    let (source, fetch) = (reader.source_of(&unit.uri)?, &reader.steps.fetch);
    let size = unit.size.unwrap_or(0);
    let tail_at = size.saturating_sub(ZipEnding::TAIL);
    reader.context.pace.take(size - tail_at).await;
    let tail = source.read_range(&reader.context, unit, tail_at..size).await?;
    let Some(tail) = tail else { return Ok(None) };
    fetch.add_bytes(tail.len() as u64);
    let Some(ending) = ZipEnding::find(&tail, size) else { return Ok(None) };
    let directory = ending.directory();
    let Some(mut planner) = ZipPlanner::new(ending, &reader.unpack_options(unit))? else { return Ok(None) };
    let Ok(mut held) = reader.context.budget.try_reserve("the directory of a zip", 0) else { return Ok(None) };
    let in_tail = tail_at.clamp(directory.start, directory.end);
    let mut ahead = range_of(reader, unit, directory.start..in_tail).await?;
    while let Some(bytes) = ahead.next().await.transpose()? {
        fetch.add_bytes(bytes.len() as u64);
        reader.context.pace.take(bytes.len() as u64).await;
        if planner.feed(&bytes).is_none() || !charge(&mut held, planner.held()) {
            return Ok(None);
        }
    }
    let [start, end] = [in_tail, directory.end].map(|at| usize::try_from(at - tail_at).unwrap_or(usize::MAX));
    let rest = tail.get(start..end).and_then(|rest| planner.feed(rest));
    let all = rest.is_some() && charge(&mut held, planner.held());
    Ok(all.then_some((planner, held)))
}

/// Holds `bytes`, if there is room for them.
fn charge(held: &mut Reservation, bytes: usize) -> bool {
    let more = bytes.saturating_sub(held.bytes());
    held.shrink(held.bytes().saturating_sub(bytes));
    more == 0 || held.try_grow(more)
}

impl Archive {
    /// Where its parts begin.
    pub fn begins(&self) -> impl Iterator<Item = u64> {
        (0..self.plan.parts()).map(|part| self.plan.range(part).start)
    }

    /// Whether no part of it is read.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Whether two of its members have the same name.
    pub fn has_twins(&self) -> bool {
        self.plan.has_twins()
    }

    /// The parts that are read, in the order of the archive.
    pub fn parts(self: &Arc<Self>) -> impl Iterator<Item = Part> {
        let archive = Arc::clone(self);
        self.numbers.clone().map(move |number| Part { archive: Arc::clone(&archive), number })
    }

    /// Bytes of it that are not read.
    pub fn left_out(&self) -> u64 {
        let ranges = self.numbers.clone().map(|part| self.plan.range(part));
        let read: u64 = ranges.map(|range| range.end - range.start).sum();
        self.unit.bytes().unwrap_or(0).saturating_sub(read)
    }
}

impl Part {
    /// The archive.
    pub fn unit(&self) -> &Unit {
        &self.archive.unit
    }

    /// Its bytes, as they come.
    pub async fn open(&self, reader: &Reader) -> Result<ByteStream> {
        let bytes = range_of(reader, self.unit(), self.archive.plan.range(self.number)).await;
        bytes.map_err(|error| error.in_unit(&self.unit().uri, None))
    }

    /// What unpacks it.
    pub fn unpack(&self, reader: &Reader) -> Result<Unpack> {
        Unpack::of_part(reader.unpack_options(self.unit()), Arc::clone(&self.archive.plan), self.number)
    }

    /// It has been read to its end, and had so many lines: how many the archive has, if it was the last part of it.
    pub fn ended(&self, lines: u64) -> Option<u64> {
        self.archive.lines.fetch_add(lines, Ordering::AcqRel);
        let last = self.archive.left.fetch_sub(1, Ordering::AcqRel) == 1;
        last.then(|| self.archive.lines.load(Ordering::Acquire))
    }
}
