//! The merging phase: runs are cut into slices in the order of their keys, which all cores merge.
//!
//! ```text
//!  run 0   ──▓▓▓▓▓▓▓▓░░░│         what is read of it      bound: the least of the last keys that are read, of the runs
//!  run 1   ──▓▓▓▓░░░░░░░░░░│                              with unread rows. No smaller key can follow.
//!  run 2   ──▓▓▓▓▓▓▓▓▓▓▓▓│◀ bound
//!            └─ slice ──┘         ▓ is cut off: one slice, merged by whichever core is free
//! ```
//! The run whose last key is the least is always the next to be read (Knuth, The Art of Computer Programming 3, 5.4.9,
//! forecasting), so of every other run at most one extent lies after the bound, and memory does not depend on how the
//! keys are distributed. If keys are equal, the order of runs decides, then that of rows: a slice can end among equal
//! keys.
//!
//! A slice is not merged by a tree of losers: its entries are merged pairwise, run by run. This takes the same number
//! of comparisons, but between adjacent numbers, without branches.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::RecordBatch;
use millstream_core::Result;
use millstream_core::buffers::Pool;

use crate::memory::{Held, Memory};
use crate::piece::{Entries, Gathered, Keep, Selection, Sorted, deciding_bits, entry, order, position, unique};
use crate::rows::Layout;
use crate::scratch::{Chunk, Run, RunReader};

/// Rows of an output batch.
const BATCH: usize = 8192;

/// Bytes that a row takes besides its record while its slice is merged: its entry twice, and its position.
const BESIDE: usize = 2 * size_of::<u128>() + size_of::<(u32, u32)>();

/// The least and most bytes of a slice.
const SLICE: (usize, usize) = (256 << 10, 1 << 20);

/// One part in so many of the memory is for records read from runs, and another one for slices that are merged.
pub(crate) const SHARE: usize = 4;

/// The least and most bytes that are read at once.
pub(crate) const EXTENT: (usize, usize) = (16 << 10, 1 << 20);

/// The least and most extents that are read at once, between which the memory decides: a disk with a queue is only busy
/// while requests wait in it.
const DEPTH: (usize, usize) = (8, 64);
const AHEAD: usize = 2 << 20;

/// How many samples of a run are taken to find the end of a slice.
const SAMPLES: usize = 16;

/// A sorted piece: in memory, or a run in scratch.
#[derive(Debug, Clone)]
pub(crate) enum Piece {
    Memory(Arc<Sorted>),
    Scratch(Arc<Run>),
}

impl Piece {
    /// Bytes in scratch.
    pub(crate) fn stored(&self) -> u64 {
        match self {
            Piece::Memory(_) => 0,
            Piece::Scratch(run) => run.stored(),
        }
    }
}

/// Records in order, in memory.
#[derive(Debug, Clone)]
enum Records {
    Sorted(Arc<Sorted>),
    Read(Arc<Chunk>),
}

impl Records {
    fn rows(&self) -> usize {
        match self {
            Records::Sorted(sorted) => sorted.rows(),
            Records::Read(chunk) => chunk.rows(),
        }
    }

    fn entry(&self, row: usize) -> u128 {
        match self {
            Records::Sorted(sorted) => sorted.entry(row),
            Records::Read(chunk) => chunk.entry(row),
        }
    }

    fn record(&self, row: usize) -> &[u8] {
        match self {
            Records::Sorted(sorted) => sorted.record(row),
            Records::Read(chunk) => chunk.record(row),
        }
    }

    /// Bytes that merging `rows` of them takes.
    fn cost(&self, rows: usize) -> usize {
        let bytes = match self {
            Records::Sorted(sorted) => sorted.bytes(),
            Records::Read(chunk) => chunk.bytes(),
        };
        (bytes / self.rows().max(1) + BESIDE) * rows
    }
}

/// A run, and the position up to which it is merged.
#[derive(Debug)]
struct Cursor {
    /// The records in memory, each with the first row that is not in a slice yet.
    read: VecDeque<(Records, usize)>,
    /// Reads the rest of the run.
    reader: Option<RunReader>,
}

impl Cursor {
    /// Bytes that begin with the last record that is read.
    fn last_record(&self) -> Option<&[u8]> {
        let (records, _) = self.read.back()?;
        Some(records.record(records.rows() - 1))
    }

    fn last_key<'a>(&'a self, layout: &Layout) -> Option<&'a [u8]> {
        self.last_record().map(|record| layout.key(record))
    }
}

/// The end of a slice: after this row. If one of equal rows is to stay, the end is before the first of them.
struct Cut {
    /// The key, or its part that equal rows share.
    key: Vec<u8>,
    run: usize,
}

/// Runs that are being merged.
#[derive(Debug)]
pub struct Merge {
    layout: Arc<Layout>,
    memory: Arc<Memory>,
    keep: Option<Keep>,
    cursors: Vec<Cursor>,
    /// The runs that are not read to their end; that with the least last key is last.
    unfinished: Vec<usize>,
    extent: usize,
    slice: usize,
    /// Bytes read since the last slice.
    fresh: usize,
}

impl Merge {
    /// Merges `pieces` with `workers` at once. Equal rows keep the order of the pieces. Records that are read take
    /// `share` bytes, and slices that are merged as much again. Runs are read by `extent` bytes, or as many as there is
    /// memory for.
    pub(crate) fn new(
        layout: Arc<Layout>,
        memory: Arc<Memory>,
        keep: Option<Keep>,
        pieces: Vec<Piece>,
        share: usize,
        extent: Option<usize>,
        workers: usize,
    ) -> Self {
        let mut cursors = Vec::with_capacity(pieces.len());
        for piece in pieces {
            cursors.push(match piece {
                Piece::Memory(sorted) if sorted.rows() == 0 => continue,
                Piece::Memory(sorted) => Cursor { read: [(Records::Sorted(sorted), 0)].into(), reader: None },
                Piece::Scratch(run) => Cursor { read: VecDeque::new(), reader: Some(run.reader(&memory)) },
            });
        }
        let unfinished: Vec<usize> = (0..cursors.len()).filter(|run| cursors[*run].reader.is_some()).collect();
        Merge {
            keep,
            cursors,
            extent: extent.unwrap_or((share / unfinished.len().max(1)).clamp(EXTENT.0, EXTENT.1)),
            unfinished,
            slice: (share / (workers + 3)).clamp(SLICE.0, SLICE.1),
            fresh: 0,
            layout,
            memory,
        }
    }

    /// The next rows in order, to be merged by [`Slice::merge`]. It reads, so it may wait for the disk.
    pub fn next_slice(&mut self) -> Result<Option<Slice>> {
        loop {
            while let Some(run) = self.unfinished.last().copied() {
                let cursor = &self.cursors[run];
                let cost = cursor.reader.as_ref().map_or(0, |reader| reader.cost(self.extent));
                let wanted = self.fresh < self.slice && cost <= self.memory.left();
                if !cursor.read.is_empty() && !wanted {
                    break;
                }
                self.fresh += cursor.reader.as_ref().map_or(0, |reader| reader.size(self.extent));
                self.read_more()?;
            }
            if self.cursors.iter().all(|cursor| cursor.read.is_empty()) {
                return Ok(None);
            }
            let slice = self.cut();
            self.fresh = 0;
            if slice.rows > 0 {
                return Ok(Some(slice));
            }
            // No row is before the bound, so it has to move.
            self.read_more()?;
        }
    }

    /// Reads more of the run with the least last key.
    fn read_more(&mut self) -> Result<()> {
        let Some(run) = self.unfinished.pop() else { return Ok(()) };
        let cursor = &mut self.cursors[run];
        let Some(reader) = &mut cursor.reader else { return Ok(()) };
        if reader.has_more() {
            let chunk = Arc::new(reader.read(self.extent)?);
            cursor.read.push_back((Records::Read(chunk), 0));
        }
        if !reader.has_more() {
            cursor.reader = None;
            return Ok(());
        }
        let layout = &self.layout;
        let last = |run: usize| self.cursors[run].last_key(layout).unwrap_or_default();
        let position = self.unfinished.partition_point(|other| {
            !self.cursors[*other].read.is_empty()
                && layout.compare(last(*other), last(run)).then(other.cmp(&run)).is_gt()
        });
        self.unfinished.insert(position, run);
        self.read_ahead();
        Ok(())
    }

    /// Starts reading what is needed next, as far as there is memory for it.
    fn read_ahead(&mut self) {
        let depth = (AHEAD / self.extent).clamp(DEPTH.0, DEPTH.1);
        for run in self.unfinished.iter().rev().take(depth) {
            let reader = self.cursors[*run].reader.as_mut();
            if !reader.is_none_or(|reader| reader.read_ahead(self.extent)) {
                return;
            }
        }
    }

    /// Cuts a slice off the records in memory.
    fn cut(&mut self) -> Slice {
        let bound = self.unfinished.last().map(|run| {
            let last = self.cursors[*run].last_record().map(|record| self.cut_key(record));
            Cut { key: last.unwrap_or_default().to_vec(), run: *run }
        });
        let mut ends = self.ends(bound.as_ref());
        if self.cost(&ends) > 2 * self.slice
            && let Some((sample, row)) = self.sample(&ends)
        {
            let mut nearer = self.ends(Some(&sample));
            if self.keep.is_none() {
                nearer[sample.run] = row;
            }
            if self.cost(&nearer) > 0 {
                ends = nearer;
            }
        }
        let mut parts = Vec::new();
        for (cursor, (chunks, row)) in self.cursors.iter_mut().zip(ends) {
            for _ in 0..chunks {
                let Some((records, from)) = cursor.read.pop_front() else { break };
                parts.push(Part { to: records.rows(), records, from });
            }
            if let Some((records, from)) = cursor.read.front_mut().filter(|(_, from)| row > *from) {
                parts.push(Part { records: records.clone(), from: *from, to: row });
                *from = row;
            }
        }
        parts.retain(|part| part.from < part.to);
        let rows = parts.iter().map(|part| part.to - part.from).sum();
        let held = self.memory.take(rows * BESIDE);
        Slice { layout: Arc::clone(&self.layout), keep: self.keep, parts, rows, held }
    }

    /// How much of each run belongs to a slice that ends with `cut`: the number of whole chunks, and the first row of
    /// the next chunk that does not belong to it.
    fn ends(&self, cut: Option<&Cut>) -> Vec<(usize, usize)> {
        let deciding_bits = deciding_bits(&self.layout, self.keep);
        let last = cut.map_or(0, |cut| entry(&self.layout, &cut.key, 0) & deciding_bits);
        let end = |(run, cursor): (usize, &Cursor)| {
            let Some(cut) = cut else { return (cursor.read.len(), 0) };
            // If one of equal rows is to stay, a slice has all or none of them.
            let with_equal = self.keep.is_none() && run <= cut.run;
            let belongs = |records: &Records, row: usize| {
                let first = records.entry(row) & deciding_bits;
                if first != last {
                    return first < last;
                }
                let key = self.cut_key(records.record(row));
                let order = match self.keep {
                    Some(_) => self.layout.compare_same(key, &cut.key),
                    None => self.layout.compare(key, &cut.key),
                };
                order.is_lt() || (with_equal && order.is_eq())
            };
            let chunks = cursor.read.partition_point(|(records, _)| belongs(records, records.rows() - 1));
            let row = cursor.read.get(chunks).map_or(0, |(records, from)| {
                let (mut low, mut high) = (*from, records.rows());
                while low < high {
                    let middle = low.midpoint(high);
                    match belongs(records, middle) {
                        true => low = middle + 1,
                        false => high = middle,
                    }
                }
                low
            });
            (chunks, row)
        };
        self.cursors.iter().enumerate().map(end).collect()
    }

    /// The bytes of the record at the beginning of `bytes` that are compared with a cut.
    fn cut_key<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        if self.keep.is_some() { self.layout.same(bytes) } else { self.layout.key(bytes) }
    }

    /// Bytes of memory that merging the rows before `ends` takes.
    fn cost(&self, ends: &[(usize, usize)]) -> usize {
        let of_run = |(cursor, (chunks, row)): (&Cursor, &(usize, usize))| {
            let whole = cursor.read.iter().take(*chunks).map(|(records, from)| records.cost(records.rows() - from));
            let part = cursor.read.get(*chunks).map_or(0, |(records, from)| records.cost(row.saturating_sub(*from)));
            whole.sum::<usize>() + part
        };
        self.cursors.iter().zip(ends).map(of_run).sum()
    }

    /// A row before `ends`, after about as many bytes as a slice should have, and the end of its run in such a slice.
    fn sample(&self, ends: &[(usize, usize)]) -> Option<(Cut, (usize, usize))> {
        struct Sample<'a> {
            entry: u128,
            record: &'a [u8],
            run: usize,
            end: (usize, usize),
            cost: usize,
        }
        let deciding_bits = deciding_bits(&self.layout, None);
        let step = (self.slice / SAMPLES).max(1);
        let mut samples = Vec::new();
        for (run, (cursor, (chunks, row))) in self.cursors.iter().zip(ends).enumerate() {
            // At most as much of one run as the slice can have in all.
            let mut left = self.slice;
            for (index, (records, from)) in cursor.read.iter().take(chunks + 1).enumerate() {
                let to = if index < *chunks { records.rows() } else { *row };
                let rows = (step / records.cost(1).max(1)).max(1);
                let mut next = *from;
                while next < to && left > 0 {
                    let end = (next + rows).min(to);
                    let cost = records.cost(end - next);
                    samples.push(Sample {
                        entry: records.entry(end - 1) & deciding_bits,
                        record: records.record(end - 1),
                        run,
                        end: if end == records.rows() { (index + 1, 0) } else { (index, end) },
                        cost,
                    });
                    left = left.saturating_sub(cost);
                    next = end;
                }
            }
        }
        let keys = |one: &Sample, other: &Sample| {
            self.layout.compare(self.layout.key(one.record), self.layout.key(other.record))
        };
        samples.sort_by(|one, other| {
            let places = || one.run.cmp(&other.run).then(one.end.cmp(&other.end));
            one.entry.cmp(&other.entry).then_with(|| keys(one, other)).then_with(places)
        });
        let mut sum = 0;
        let enough = samples.iter().find(|sample| {
            sum += sample.cost;
            sum >= self.slice
        })?;
        Some((Cut { key: self.cut_key(enough.record).to_vec(), run: enough.run }, enough.end))
    }
}

/// Consecutive rows of the order, not merged yet.
#[derive(Debug)]
pub struct Slice {
    layout: Arc<Layout>,
    keep: Option<Keep>,
    parts: Vec<Part>,
    rows: usize,
    held: Held,
}

/// The rows of a slice in order. Their memory is held until they are passed on.
#[derive(Debug)]
pub struct Merged {
    batches: std::vec::IntoIter<RecordBatch>,
    held: Held,
}

impl Iterator for Merged {
    type Item = RecordBatch;

    fn next(&mut self) -> Option<RecordBatch> {
        let batch = self.batches.next()?;
        self.held.shrink_to(self.held.bytes().saturating_sub(batch.get_array_memory_size()));
        Some(batch)
    }
}

#[derive(Debug)]
struct Part {
    records: Records,
    from: usize,
    to: usize,
}

impl Slice {
    /// How many rows there are, before any are left out as equal.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Its rows in order.
    pub fn merge(self) -> Result<Merged> {
        let mut held = self.held.nothing();
        let mut batches = Vec::with_capacity(self.rows.div_ceil(BATCH));
        self.in_order(|records| {
            let batch = self.layout.read(records)?;
            held.grow(batch.get_array_memory_size());
            batches.push(batch);
            Ok(())
        })?;
        Ok(Merged { batches: batches.into_iter(), held })
    }

    /// Passes its records in order to `take`, some at a time; each record is at the beginning of its bytes.
    pub(crate) fn in_order(&self, mut take: impl FnMut(&[&[u8]]) -> Result<()>) -> Result<()> {
        let mut entries = Entries::with_room(self.rows);
        let mut places = POSITIONS.take(self.rows);
        let mut ends = Vec::with_capacity(self.parts.len());
        for (index, part) in self.parts.iter().enumerate() {
            for row in part.from..part.to {
                let number = places.len() as u32;
                entries.push(part.records.entry(row) >> 32 << 32 | u128::from(number));
                places.push((index as u32, row as u32));
            }
            ends.push(entries.len());
        }
        let record = |number: u32| {
            let (part, row) = places[number as usize];
            self.parts[part as usize].records.record(row as usize)
        };
        let key = |number: u32| self.layout.key(record(number));
        order(&self.layout, &mut entries, Some(ends), &key);
        if let Some(keep) = self.keep {
            unique(&self.layout, &mut entries, keep, &record);
        }
        let most = BATCH.min(self.layout.most_rows());
        let mut records: Vec<&[u8]> = Vec::with_capacity(most);
        for entries in entries.chunks(most) {
            records.clear();
            records.extend(entries.iter().map(|entry| record(position(*entry))));
            take(&records)?;
        }
        POSITIONS.give_back(places);
        Ok(())
    }
}

/// The first rows of two pieces together, up to the limit. Equal rows of `earlier` come before those of `later`.
pub(crate) fn first_of(
    layout: &Arc<Layout>,
    memory: &Arc<Memory>,
    wanted: &Selection,
    earlier: Arc<Sorted>,
    later: Arc<Sorted>,
) -> Result<Sorted> {
    let rows = earlier.rows() + later.rows();
    let all = |records: Arc<Sorted>| Part { from: 0, to: records.rows(), records: Records::Sorted(records) };
    let slice = Slice {
        layout: Arc::clone(layout),
        keep: wanted.keep,
        parts: vec![all(earlier), all(later)],
        rows,
        held: memory.take(rows * BESIDE),
    };
    let mut gathered = Gathered::new(Arc::clone(layout), Arc::clone(memory));
    slice.in_order(|records| {
        let left = wanted.first - gathered.rows();
        records.iter().take(left).try_for_each(|record| gathered.add(entry(layout, layout.key(record), 0), record))
    })?;
    Ok(gathered.done())
}

/// Memory of slices, reused.
static POSITIONS: Pool<(u32, u32)> = Pool::new();
