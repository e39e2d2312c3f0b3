//! A group: the rows of some whole chunks in memory, on their way into one transaction.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, UInt64Array};
use arrow::datatypes::Int64Type;
use millstream_core::sink::Chunk;
use millstream_core::{Budget, Error, Result};

use super::arrival::Place;
use super::span::Span;
use super::units::UnitNotes;
use crate::member::MemberPlace;
use crate::read::messages::ReadMessages;
use crate::read::rows::LocatedRows;
use crate::rejects::origin::Origin;
use millstream_state::rejects::RejectLine;

/// A group is sent, however small it is, when its first rows have waited for so long.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The most units in a group: each brings some notes with it.
const MOST_UNITS: usize = 2_000;

/// Memory that rows take, in bytes for each byte of their text.
const MEMORY_FACTOR: usize = 2;

/// Consecutive rows of one chunk.
#[derive(Debug)]
pub struct ChunkRows {
    /// The chunk.
    pub chunk: Chunk,
    unit: Arc<UnitNotes>,
    rows: LocatedRows,
    /// What the parser has refused of the chunk, as far as it is logged with these rows.
    rejects: Arc<[RejectLine]>,
    /// How many records the parser has refused of the chunk.
    rejected: u64,
    /// About how much text they are, in bytes.
    text: usize,
    /// Where they stand in the order of arrival, if that is asked for.
    place: Option<Arc<Place>>,
    /// The messages that they are from, if they are from a queue.
    messages: Option<Arc<ReadMessages>>,
}

impl ChunkRows {
    /// Nothing but rejects of a chunk of `unit`; `rows` are none.
    pub fn rejects(
        chunk: Chunk,
        unit: &Arc<UnitNotes>,
        rows: RecordBatch,
        rejects: impl Into<Arc<[RejectLine]>>,
    ) -> Self {
        let rejects = rejects.into();
        let rows = LocatedRows { batch: rows, lines: None, bytes: None, raw: None, member: MemberPlace::default() };
        let text = rejects.iter().map(reject_bytes).sum();
        let rejected = rejects.len() as u64;
        ChunkRows { chunk, unit: Arc::clone(unit), rows, rejects, rejected, text, place: None, messages: None }
    }

    /// Rows of messages of the queue `unit`, all of which are one chunk.
    pub fn of_messages(
        chunk: Chunk,
        unit: &Arc<UnitNotes>,
        rows: LocatedRows,
        messages: Arc<ReadMessages>,
        text: usize,
    ) -> Self {
        ChunkRows {
            chunk,
            unit: Arc::clone(unit),
            rows,
            rejects: Arc::default(),
            rejected: 0,
            text,
            place: None,
            messages: Some(messages),
        }
    }

    /// The same rows for another sink, which does not log what the parser has refused.
    pub fn for_another_sink(&self) -> Self {
        ChunkRows {
            chunk: self.chunk.clone(),
            unit: Arc::clone(&self.unit),
            rows: self.rows.clone(),
            rejects: Arc::default(),
            rejected: self.rejected,
            text: self.text,
            place: self.place.clone(),
            messages: self.messages.clone(),
        }
    }

    /// The number of rows.
    pub fn count(&self) -> u64 {
        self.rows.batch.num_rows() as u64
    }

    /// How many records the parser has refused.
    pub fn rejected(&self) -> u64 {
        self.rejected
    }
}

/// How many rows there are, and how many records the parser has refused.
pub fn counts(rows: &[ChunkRows]) -> (u64, u64) {
    (rows.iter().map(ChunkRows::count).sum(), rows.iter().map(ChunkRows::rejected).sum())
}

/// The memory of a reject in bytes, about.
fn reject_bytes(line: &RejectLine) -> usize {
    let raw = line.rejected.raw.as_ref();
    let raw = raw.and_then(|raw| raw.text.as_ref().or(raw.base64.as_ref())).map_or(0, String::len);
    raw + line.rejected.message.len() + 500
}

/// Cuts rows of `unit` where a chunk ends.
pub fn cut(rows: LocatedRows, unit: &Arc<UnitNotes>, chunk_bytes: u64) -> Result<Vec<ChunkRows>> {
    let Some(bytes) = rows.bytes.clone() else { return Err(Error::internal("the parser gave no positions of rows")) };
    let bytes = bytes.as_primitive::<Int64Type>().values();
    let place = bytes.last().and_then(|last| unit.place_of(&rows.member, last.unsigned_abs()));
    let mut cut = Vec::new();
    let mut start = 0;
    while start < bytes.len() {
        let chunk = unit.chunk(&rows.member, bytes[start].unsigned_abs(), chunk_bytes);
        let behind = (chunk.number + 1).saturating_mul(chunk_bytes);
        let length = bytes[start..].partition_point(|byte| byte.unsigned_abs() < behind).max(1);
        let text = (bytes[start + length - 1] - bytes[start]).unsigned_abs() as usize;
        let slice = slice(&rows, start, length);
        let text = if text > 0 { text } else { slice.batch.get_array_memory_size() };
        let (unit, place) = (Arc::clone(unit), place.clone());
        let (rejects, messages) = (Arc::default(), None);
        cut.push(ChunkRows { chunk, unit, rows: slice, rejects, rejected: 0, text, place, messages });
        start += length;
    }
    Ok(cut)
}

fn slice(rows: &LocatedRows, start: usize, length: usize) -> LocatedRows {
    LocatedRows {
        batch: rows.batch.slice(start, length),
        lines: rows.lines.as_ref().map(|lines| lines.slice(start, length)),
        bytes: rows.bytes.as_ref().map(|bytes| bytes.slice(start, length)),
        raw: rows.raw.as_ref().map(|raw| raw.slice(start, length)),
        member: rows.member.clone(),
    }
}

/// Rows of some chunks, and what is noted with them.
pub struct Group {
    /// The number of the pipeline that its rows go through.
    pub pipeline: usize,
    rows: Vec<ChunkRows>,
    /// The units that it has rows of, and whether it notes that they are complete.
    units: Vec<(Arc<UnitNotes>, bool)>,
    notes: Vec<Chunk>,
    text: usize,
    begun: Instant,
    held: Held,
}

/// Memory that is charged to the budget, whether there is room or not: so little is held that it need not wait, and
/// others are kept from taking it.
struct Held {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Held {
    fn add(&mut self, bytes: usize) {
        self.budget.take(bytes);
        self.bytes += bytes;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

impl Group {
    /// Without rows.
    pub fn new(pipeline: usize, budget: &Arc<Budget>) -> Self {
        Group {
            pipeline,
            rows: Vec::new(),
            units: Vec::new(),
            notes: Vec::new(),
            text: 0,
            begun: Instant::now(),
            held: Held { budget: Arc::clone(budget), bytes: 0 },
        }
    }

    /// Adds rows of a chunk; all others of it have to go into the same group.
    pub fn push(&mut self, rows: ChunkRows) {
        if !self.has(&rows.unit) {
            rows.unit.join_group();
            self.units.push((Arc::clone(&rows.unit), false));
        }
        self.text += rows.text;
        // Raw records keep text that the columns may not need.
        let raw = if rows.rows.raw.is_some() { rows.text } else { 0 };
        self.held.add(rows.text * MEMORY_FACTOR + raw);
        self.rows.push(rows);
    }

    /// Adds notes.
    pub fn note(&mut self, notes: impl IntoIterator<Item = Chunk>) {
        self.notes.extend(notes);
    }

    /// Whether it has rows of `unit`, which are the last that came if it has.
    pub fn has(&self, unit: &Arc<UnitNotes>) -> bool {
        self.units.iter().rev().any(|(one, _)| Arc::ptr_eq(one, unit))
    }

    /// The units that it has rows of.
    pub fn units(&self) -> impl Iterator<Item = &Arc<UnitNotes>> {
        self.units.iter().map(|(unit, _)| unit)
    }

    /// The same, with the first chunk that it has of each.
    pub fn first_chunks(&self) -> impl Iterator<Item = (&Arc<UnitNotes>, &Chunk)> {
        let first = |unit: &Arc<UnitNotes>| self.rows.iter().find(|rows| Arc::ptr_eq(&rows.unit, unit));
        self.units().filter_map(move |unit| Some((unit, &first(unit)?.chunk)))
    }

    /// Where its rows stand in the order of arrival, each place once for consecutive rows.
    pub fn places(&self) -> impl Iterator<Item = &Arc<Place>> {
        let mut last: Option<&Arc<Place>> = None;
        self.rows.iter().filter_map(|rows| rows.place.as_ref()).filter(move |place| {
            let is_another = last.is_none_or(|last| !Arc::ptr_eq(last, place));
            last = Some(place);
            is_another
        })
    }

    /// The numbers of rows by their order of arrival; `spans` says which records they are from.
    ///
    /// # Errors
    /// If its rows have no places.
    pub fn arrivals(&self, spans: &UInt64Array) -> Result<Int64Array> {
        let (mut index, mut first) = (0, 0);
        let arrival = |span: u64| {
            let record = usize::try_from(Span::unpack(span).first).unwrap_or(usize::MAX);
            if record < first {
                (index, first) = (0, 0);
            }
            while let Some(rows) = self.rows.get(index)
                && record - first >= rows.rows.batch.num_rows()
            {
                first += rows.rows.batch.num_rows();
                index += 1;
            }
            let rows = self.rows.get(index)?;
            let byte = rows.rows.bytes.as_ref()?.as_primitive::<Int64Type>().value(record - first);
            Some(rows.place.as_ref()?.arrival(byte.unsigned_abs()))
        };
        let arrivals = spans.values().iter().copied().map(arrival).collect::<Option<Vec<i64>>>();
        arrivals.map(Int64Array::from).ok_or_else(|| Error::internal("it is not known when a row has come"))
    }

    /// It has all of `unit` that is not written: `note` says so.
    pub fn complete(&mut self, unit: &Arc<UnitNotes>, note: Chunk) {
        for (_, complete) in self.units.iter_mut().filter(|(one, _)| Arc::ptr_eq(one, unit)) {
            *complete = true;
        }
        self.notes.push(note);
    }

    /// Whether it is to be sent before rows of `next`, with about `limit` bytes of text.
    pub fn is_full(&self, limit: usize, next: &Chunk) -> bool {
        let enough = self.text >= limit || self.units.len() >= MOST_UNITS || self.begun.elapsed() >= LONGEST_WAIT;
        enough && self.rows.last().is_some_and(|last| last.chunk != *next)
    }

    /// Takes over what `other`, of the same pipeline, has, unless that would be more than about `limit` bytes of text.
    pub fn absorb(&mut self, mut other: Group, limit: usize) -> Option<Group> {
        let together = self.text + other.text;
        if other.pipeline != self.pipeline || together > limit || self.units.len() + other.units.len() > MOST_UNITS {
            return Some(other);
        }
        self.rows.append(&mut other.rows);
        self.notes.append(&mut other.notes);
        for (unit, complete) in other.units.drain(..) {
            // Of an archive both may have some members.
            match self.has(&unit) {
                true => unit.merge_groups(),
                false => self.units.push((unit, complete)),
            }
        }
        self.text = together;
        self.held.bytes += std::mem::take(&mut other.held.bytes);
        None
    }

    /// Whether there is nothing to write and nothing to note.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.notes.is_empty()
    }

    /// Whether it has rows.
    pub fn has_rows(&self) -> bool {
        !self.rows.is_empty()
    }

    /// What is noted with the rows, each once.
    pub fn chunks(&self) -> Vec<Chunk> {
        let mut chunks: Vec<Chunk> = Vec::with_capacity(self.notes.len() + self.units.len());
        for rows in &self.rows {
            if chunks.last() != Some(&rows.chunk) {
                chunks.push(rows.chunk.clone());
            }
        }
        chunks.extend(self.notes.iter().cloned());
        chunks.sort();
        chunks.dedup();
        chunks
    }

    /// Leaves out what is written already. How many rows that were; `None` if there was no such thing.
    pub fn leave_out(&mut self, written: &[Chunk]) -> Option<u64> {
        let written: HashSet<&Chunk> = written.iter().collect();
        let (before, rows) = (self.rows.len() + self.notes.len(), self.count());
        self.rows.retain(|rows| !written.contains(&rows.chunk));
        self.notes.retain(|note| !written.contains(note));
        (self.rows.len() + self.notes.len() < before).then(|| rows - self.count())
    }

    /// The rows.
    pub fn batches(&self) -> Vec<RecordBatch> {
        self.rows.iter().map(|rows| rows.rows.batch.clone()).collect()
    }

    /// Behind which rows a chunk ends, counted over all batches.
    pub fn chunk_ends(&self) -> Vec<u64> {
        let (mut ends, mut count) = (Vec::new(), 0);
        for (index, rows) in self.rows.iter().enumerate() {
            count += rows.count();
            if self.rows.get(index + 1).is_none_or(|next| next.chunk != rows.chunk) {
                ends.push(count);
            }
        }
        ends
    }

    /// Where the records of `span` are, whose first one tells the file and the chunk.
    pub fn origin_of(&self, source: &str, span: Span) -> Option<(Origin, &Chunk)> {
        let (first, chunk) = self.origin(source, span.first)?;
        let Some(last) = span.last else { return Some((first, chunk)) };
        let last_line = self.origin(source, last).and_then(|(last, _)| last.line);
        Some((Origin { last_line, text: None, ..first }, chunk))
    }

    /// Where the record of row `number` is, counted over all batches from 0.
    fn origin(&self, source: &str, number: u64) -> Option<(Origin, &Chunk)> {
        let mut left = usize::try_from(number).ok()?;
        let rows = self.rows.iter().find(|rows| {
            let here = left < rows.rows.batch.num_rows();
            if !here {
                left -= rows.rows.batch.num_rows();
            }
            here
        })?;
        let LocatedRows { lines, bytes, raw, member, .. } = &rows.rows;
        let number = |numbers: &Option<ArrayRef>| {
            numbers.as_ref().map(|numbers| numbers.as_primitive::<Int64Type>().value(left).unsigned_abs())
        };
        let raw = raw.as_ref().map(|raw| raw.as_binary_view()).filter(|raw| !raw.is_null(left));
        if let Some(messages) = &rows.messages {
            return Some((messages.origin(source, number(bytes)?), &rows.chunk));
        }
        let origin = Origin {
            source: source.to_owned(),
            uri: rows.unit.name.clone(),
            member: member.name.as_deref().map(str::to_owned),
            id: None,
            line: number(lines),
            last_line: None,
            byte: number(bytes),
            text: raw.map(|raw| raw.value(left).to_vec()),
            beginning: member.beginning.to_vec(),
        };
        Some((origin, &rows.chunk))
    }

    /// The row `number`, counted over all batches from 0, as it was read.
    pub fn row(&self, number: u64) -> Option<RecordBatch> {
        let mut left = usize::try_from(number).ok()?;
        for rows in &self.rows {
            let batch = &rows.rows.batch;
            if left < batch.num_rows() {
                return Some(batch.slice(left, 1));
            }
            left -= batch.num_rows();
        }
        None
    }

    /// How many rows there are.
    pub fn count(&self) -> u64 {
        self.rows.iter().map(ChunkRows::count).sum()
    }

    /// How many rows there are, and how many records parsers have refused.
    pub fn counts(&self) -> (u64, u64) {
        counts(&self.rows)
    }

    /// What parsers have refused, and the chunk of each.
    pub fn rejects(&self) -> impl Iterator<Item = (&RejectLine, &Chunk)> {
        self.rows.iter().flat_map(|rows| rows.rejects.iter().map(|line| (line, &rows.chunk)))
    }

    /// It is written: what there is to note of units that are complete by that.
    pub fn written(self) -> Vec<Chunk> {
        self.places().for_each(|place| place.noted());
        self.units.iter().filter_map(|(unit, noted)| unit.group_written(*noted)).collect()
    }
}

#[cfg(test)]
mod tests {
    use millstream_core::Unit;
    use millstream_core::sink::WrittenChunks;

    use super::super::units::{Slots, Units, WhenChanged};
    use super::*;

    /// Rows of a unit that begin at these bytes.
    fn rows(units: &Units, unit: &str, bytes: &[i64]) -> Vec<ChunkRows> {
        let column: ArrayRef = Arc::new(Int64Array::from(bytes.to_vec()));
        let batch = RecordBatch::try_from_iter([("n", Arc::clone(&column))]).expect("one column");
        let member = MemberPlace::default();
        let rows = LocatedRows { batch, lines: None, bytes: Some(column), raw: None, member };
        cut(rows, &units.notes(unit).expect("it is read"), 100).expect("they have places")
    }

    #[test]
    fn staged_rows_are_numbered_by_where_they_stand() {
        let nothing = Arc::new(WrittenChunks::new([], str::to_owned));
        let units = Units::new("s", nothing, WhenChanged::Fail).staged(Slots { of: 0, count: 1 });
        let mut group = Group::new(0, &Budget::new(1 << 20));
        for (unit, bytes) in [("a", &[0, 50, 120][..]), ("b", &[0, 7])] {
            units.admit(&Unit::new(unit)).expect("listed once");
            rows(&units, unit, bytes).into_iter().for_each(|rows| group.push(rows));
        }
        let numbers = |records: &[u64]| {
            let spans = records.iter().map(|record| Span::one(*record).pack().expect("a number"));
            group.arrivals(&UInt64Array::from_iter_values(spans)).map(|numbers| numbers.values().to_vec())
        };
        let all = numbers(&[0, 1, 2, 3, 4]).expect("they have places");
        assert!(all.is_sorted_by(|left, right| left < right), "{all:?}");
        assert_eq!(numbers(&[3, 1, 4]).expect("they have places"), [all[3], all[1], all[4]], "whatever their order");
        assert!(numbers(&[5]).is_err(), "there are five");
        let notes: Vec<_> = group.places().filter_map(|place| place.note()).map(|note| note.unit.clone()).collect();
        assert_eq!(notes, ["s\na\nbegins", "s\nb\nbegins"]);
    }

    #[test]
    fn rows_that_are_not_staged_have_no_numbers() {
        let nothing = Arc::new(WrittenChunks::new([], str::to_owned));
        let units = Units::new("s", nothing, WhenChanged::Fail);
        units.admit(&Unit::new("a")).expect("listed once");
        assert!(units.admit(&Unit::new("a")).is_err(), "the ledger cannot tell them apart");
        let mut group = Group::new(0, &Budget::new(1 << 20));
        rows(&units, "a", &[0, 1]).into_iter().for_each(|rows| group.push(rows));
        assert_eq!(group.places().count(), 0);
        assert!(group.arrivals(&UInt64Array::from(vec![0])).is_err());
    }
}
