//! The sorting phase: records are filled into memory as they come, then put in order.
//!
//! ```text
//!  segments   ┌ record record record … ┐ ┌ record … ┐      as they came
//!  entries    [first 12 bytes of the key | where it is]    16 bytes a row, sorted as numbers
//! ```
//! Nearly all comparisons are between two numbers that lie beside each other, and need neither a branch nor a look at
//! the records. Where it is comes last in the number, so rows that are equal so far keep the order in which they came.
//! Rows with the same first bytes form a group, which is sorted again by the bytes behind them.

use std::sync::Arc;

use millstream_core::Result;

use crate::memory::{Held, Memory, SEGMENT, Segment};
use crate::rows::{Layout, Prepared};

/// Bytes of a key that an entry holds.
const PREFIX: usize = 12;

/// The bits of an entry that say where the record is: which segment, then which byte of it.
const PLACE: u128 = 0xffff_ffff;

/// The most segments of a piece.
const MOST_SEGMENTS: usize = (1 << 32) / SEGMENT;

/// Rows whose entries are charged at once.
const CHARGED_ROWS: usize = 1 << 14;

/// A smaller group is sorted by comparing its keys.
const SMALL_GROUP: usize = 32;

/// Behind so many equal bytes keys are compared as they are.
const DEEPEST: usize = 16 * PREFIX;

/// Which of the rows with equal keys stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Hash)]
pub enum Keep {
    /// The one that came first.
    First,
    /// The one that came last.
    Last,
}

/// An entry of a row: the first bytes of `key`, and where it is.
pub(crate) fn entry(layout: &Layout, key: &[u8], place: u32) -> u128 {
    let mut bytes = [layout.filler(); 16];
    match key.first_chunk::<16>() {
        Some(first) => bytes = *first,
        None => {
            let known = key.len().min(PREFIX);
            bytes[..known].copy_from_slice(&key[..known]);
        }
    }
    (u128::from_be_bytes(bytes) & !PLACE) | u128::from(place)
}

/// Where the record of an entry is.
pub(crate) fn place(entry: u128) -> u32 {
    entry as u32
}

/// Puts `entries` in the order of their keys, which `key` tells by their places. Those with equal keys are put in the
/// order of their places. Where they consist of `runs` that are in order already, these are merged.
pub(crate) fn order<'a>(layout: &Layout, entries: &mut [u128], runs: bool, key: &impl Fn(u32) -> &'a [u8]) {
    match runs {
        true => entries.sort(),
        false => entries.sort_unstable(),
    }
    if layout.is_decided_by(PREFIX) {
        return;
    }
    // A key that ends within its first bytes is filled up: it may agree with a longer one only so far.
    let is_whole = |entry: &u128| key(place(*entry)).len() >= PREFIX;
    for group in entries.chunk_by_mut(|one, other| one >> 32 == other >> 32).filter(|group| group.len() > 1) {
        match runs || group.len() < SMALL_GROUP || !group.iter().all(is_whole) {
            true => by_keys(layout, group, 0, key),
            false => {
                let first = group[0] & !PLACE;
                refine(layout, group, PREFIX, key);
                group.iter_mut().for_each(|entry| *entry = first | (*entry & PLACE));
            }
        }
    }
}

/// Puts a group in order whose keys agree in their first `depth` bytes.
fn refine<'a>(layout: &Layout, group: &mut [u128], depth: usize, key: &impl Fn(u32) -> &'a [u8]) {
    for one in group.iter_mut() {
        *one = entry(layout, key(place(*one)).get(depth..).unwrap_or_default(), place(*one));
    }
    group.sort_unstable();
    for group in group.chunk_by_mut(|one, other| one >> 32 == other >> 32).filter(|group| group.len() > 1) {
        let longer = |entry: &u128| key(place(*entry)).len() > depth + PREFIX;
        match group.len() >= SMALL_GROUP && depth < DEEPEST && group.iter().all(longer) {
            true => refine(layout, group, depth + PREFIX, key),
            false => by_keys(layout, group, depth, key),
        }
    }
}

/// Puts a group in order whose keys agree in their first `depth` bytes, by comparing what follows.
fn by_keys<'a>(layout: &Layout, group: &mut [u128], depth: usize, key: &impl Fn(u32) -> &'a [u8]) {
    let rest = |entry: u128| key(place(entry)).get(depth..).unwrap_or_default();
    group.sort_by(|one, other| layout.compare(rest(*one), rest(*other)).then_with(|| place(*one).cmp(&place(*other))));
}

/// Leaves one of the `entries` of the same rows, which follow each other. `record` tells the records by their places.
pub(crate) fn unique<'a>(layout: &Layout, entries: &mut Vec<u128>, keep: Keep, record: &impl Fn(u32) -> &'a [u8]) {
    let decided = layout.same_is_decided_by(PREFIX);
    let differ = !(u128::MAX >> (8 * layout.same_bytes().min(PREFIX)));
    entries.dedup_by(|next, kept| {
        let same = (*next ^ *kept) & differ == 0
            && (decided || layout.same(record(place(*next))) == layout.same(record(place(*kept))));
        if same && keep == Keep::Last {
            *kept = *next;
        }
        same
    });
}

/// Records in memory, in the order in which they came.
#[derive(Debug)]
pub(crate) struct Filling {
    layout: Arc<Layout>,
    memory: Arc<Memory>,
    /// Bytes after which it is full.
    most: usize,
    segments: Vec<Segment>,
    rows: usize,
    bytes: usize,
    /// For the entries.
    held: Option<Held>,
    cursors: Vec<usize>,
}

impl Filling {
    pub(crate) fn new(layout: Arc<Layout>, memory: Arc<Memory>, most: usize) -> Self {
        Filling { layout, memory, most, segments: Vec::new(), rows: 0, bytes: 0, held: None, cursors: Vec::new() }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of its records.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether it has what it may have.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes + self.rows * size_of::<u128>() >= self.most || self.segments.len() == MOST_SEGMENTS
    }

    /// Takes in rows of `prepared`, from `from` on, until it is full or memory is refused; with `force` one more row at
    /// least. The first row that is not taken in.
    pub(crate) fn add(&mut self, prepared: &Prepared, mut from: usize, mut force: bool) -> Result<usize> {
        while from < prepared.rows() && !self.is_full() {
            if !self.charge_entry(force) {
                return Ok(from);
            }
            let length = prepared.length(from);
            let fits = self.segments.last().is_some_and(|segment| segment.room() >= length);
            if !fits {
                let Some(segment) = self.memory.segment(length, force)? else { return Ok(from) };
                self.segments.push(segment);
            }
            force = false;
            let Some(segment) = self.segments.last_mut() else { return Ok(from) };
            let charged = self.held.as_ref().map_or(0, Held::bytes) / size_of::<u128>();
            let room = segment.room();
            let (mut to, mut bytes) = (from, 0);
            while to < prepared.rows() && self.rows + (to - from) < charged {
                let length = prepared.length(to);
                if bytes + length > room {
                    break;
                }
                bytes += length;
                to += 1;
            }
            self.layout.write(prepared, from, to, segment.next(bytes), &mut self.cursors);
            self.rows += to - from;
            self.bytes += bytes;
            from = to;
        }
        Ok(from)
    }

    /// Charges the entry of one more row.
    fn charge_entry(&mut self, force: bool) -> bool {
        let charged = self.held.as_ref().map_or(0, Held::bytes);
        if (self.rows + 1) * size_of::<u128>() <= charged {
            return true;
        }
        let more = CHARGED_ROWS * size_of::<u128>();
        let held = self.memory.try_take(more).or_else(|| force.then(|| self.memory.take(more)));
        match (held, &mut self.held) {
            (None, _) => return false,
            (Some(more), Some(held)) => held.join(more),
            (more, none) => *none = more,
        }
        true
    }

    /// Puts the records in order; of these, those that `wanted` says are left.
    pub(crate) fn sort(mut self, wanted: &Wanted) -> Result<Sorted> {
        let mut entries = Vec::with_capacity(self.rows);
        for (index, segment) in self.segments.iter().enumerate() {
            let records = segment.filled();
            let mut at = 0;
            while at < records.len() {
                let measure = self.layout.measure(&records[at..]);
                let key = &records[at + measure.key..at + measure.rest];
                entries.push(entry(&self.layout, key, (index * SEGMENT + at) as u32));
                at += measure.end;
            }
        }
        if let Some(held) = &mut self.held {
            held.shrink_to(entries.len() * size_of::<u128>());
        }
        let mut sorted =
            Sorted { layout: self.layout, segments: self.segments, entries, bytes: self.bytes, held: self.held };
        let mut entries = std::mem::take(&mut sorted.entries);
        wanted.leave_out_later(&sorted.layout, &mut entries);
        let key = |place: u32| sorted.layout.key(sorted.record_at(place));
        order(&sorted.layout, &mut entries, false, &key);
        if let Some(keep) = wanted.keep {
            unique(&sorted.layout, &mut entries, keep, &|place| sorted.record_at(place));
        }
        entries.truncate(wanted.first);
        sorted.entries = entries;
        match wanted.all() {
            true => Ok(sorted),
            false => sorted.without_gaps(&self.memory),
        }
    }
}

/// Which rows of a sort are wanted.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    /// Of the same rows one.
    pub(crate) keep: Option<Keep>,
    /// Of what is left so many, the first in order.
    pub(crate) first: usize,
    /// The first of those that came before.
    pub(crate) before: Option<Arc<Sorted>>,
}

impl Wanted {
    fn all(&self) -> bool {
        self.keep.is_none() && self.first == usize::MAX
    }

    /// Leaves out those `entries` that come behind the last row wanted, which is known where there were enough before.
    fn leave_out_later(&self, layout: &Layout, entries: &mut Vec<u128>) {
        let Some(before) = self.before.as_ref().filter(|before| before.rows() >= self.first) else { return };
        let Some(last) = self.first.checked_sub(1).map(|last| before.entry(last)) else { return entries.clear() };
        // A later one of the same rows may take the place of that which is there.
        let compared = if self.keep == Some(Keep::Last) { layout.same_bytes().min(PREFIX) } else { PREFIX };
        let compared = !u128::MAX.checked_shr(8 * compared as u32).unwrap_or(0);
        entries.retain(|entry| entry & compared <= last & compared);
    }
}

/// Records in memory, in order.
#[derive(Debug)]
pub(crate) struct Sorted {
    layout: Arc<Layout>,
    segments: Vec<Segment>,
    entries: Vec<u128>,
    bytes: usize,
    /// For the entries.
    held: Option<Held>,
}

impl Sorted {
    /// The same records, in as little memory as they need where they are few of those that came.
    fn without_gaps(mut self, memory: &Arc<Memory>) -> Result<Self> {
        self.bytes = self.entries.iter().map(|entry| self.record_length(place(*entry))).sum();
        if let Some(held) = &mut self.held {
            held.shrink_to(self.entries.len() * size_of::<u128>());
        }
        let had: usize = self.segments.iter().map(|segment| segment.filled().len()).sum();
        if self.bytes > had / 4 {
            return Ok(self);
        }
        let mut gathered = Gathered::new(Arc::clone(&self.layout), Arc::clone(memory));
        for entry in &self.entries {
            gathered.add(*entry, self.record_at(place(*entry)))?;
        }
        Ok(gathered.done())
    }

    fn record_length(&self, place: u32) -> usize {
        self.layout.measure(self.record_at(place)).end
    }

    pub(crate) fn rows(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of the records, without their entries.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The entry of `row`.
    pub(crate) fn entry(&self, row: usize) -> u128 {
        self.entries[row]
    }

    /// Bytes that begin with the record of `row`.
    pub(crate) fn record(&self, row: usize) -> &[u8] {
        self.record_at(place(self.entries[row]))
    }

    fn record_at(&self, place: u32) -> &[u8] {
        &self.segments[place as usize / SEGMENT].filled()[place as usize % SEGMENT..]
    }
}

/// Records that come in order, each copied.
pub(crate) struct Gathered {
    memory: Arc<Memory>,
    sorted: Sorted,
}

impl Gathered {
    pub(crate) fn new(layout: Arc<Layout>, memory: Arc<Memory>) -> Self {
        let sorted = Sorted { layout, segments: Vec::new(), entries: Vec::new(), bytes: 0, held: None };
        Gathered { memory, sorted }
    }

    /// Adds the record with which `bytes` begins, and whose entry has the first bytes of its key. What it comes from is given
    /// back soon, so memory is taken whether it is free or not.
    pub(crate) fn add(&mut self, entry: u128, bytes: &[u8]) -> Result<()> {
        let Sorted { layout, segments, entries, bytes: all, .. } = &mut self.sorted;
        let record = &bytes[..layout.measure(bytes).end];
        if segments.last().is_none_or(|segment| segment.room() < record.len()) {
            segments.extend(self.memory.segment(record.len(), true)?);
        }
        let index = segments.len().saturating_sub(1);
        let Some(segment) = segments.last_mut() else { return Ok(()) };
        let at = segment.filled().len();
        segment.next(record.len()).copy_from_slice(record);
        *all += record.len();
        entries.push((entry & !PLACE) | (index * SEGMENT + at) as u128);
        Ok(())
    }

    /// How many there are.
    pub(crate) fn rows(&self) -> usize {
        self.sorted.entries.len()
    }

    pub(crate) fn done(mut self) -> Sorted {
        self.sorted.held = Some(self.memory.take(self.sorted.entries.len() * size_of::<u128>()));
        self.sorted
    }
}
