//! The sorting phase: records are filled into memory as they arrive, then sorted.
//!
//! ```text
//!  segments   ┌ record record record … ┐ ┌ record … ┐      as they came
//!  entries    [first 12 bytes of the key | where it is]    16 bytes a row, sorted as numbers
//! ```
//! Nearly all comparisons are between two adjacent numbers, and need neither a branch nor the records. The position of
//! the record is last in the number, so equal rows keep the order in which they arrived. Rows with the same first bytes
//! form a group, which is sorted again by the bytes after them.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use millstream_core::buffers::Pool;
use millstream_core::{Error, Result};

use crate::memory::{Held, Memory, SEGMENT, Segment};
use crate::rows::{Layout, Prepared};

/// Bytes of an entry.
pub(crate) const ENTRY: usize = size_of::<u128>();

/// Bytes of a key that an entry holds.
const PREFIX: usize = 12;

/// The bits of an entry with the position of the record: the segment, then the byte in it.
const POSITION: u128 = 0xffff_ffff;

/// The most segments of a piece.
const MOST_SEGMENTS: usize = (1 << 32) / SEGMENT;

/// The most bytes of records that are gathered into a piece: of each two segments, at least half is filled.
pub(crate) const GATHERED: usize = (MOST_SEGMENTS / 2 - 1) * SEGMENT;

/// Rows whose entries are charged at once.
const CHARGED_ROWS: usize = 1 << 14;

/// A smaller group is sorted by comparing its keys.
const SMALL_GROUP: usize = 32;

/// After so many equal bytes whole keys are compared.
const DEEPEST: usize = 16 * PREFIX;

/// Which of the rows with equal keys stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Hash)]
pub enum Keep {
    /// The one that arrived first.
    First,
    /// The one that arrived last.
    Last,
}

/// The entry of a row: the first bytes of `key`, and the position of the record.
pub(crate) fn entry(layout: &Layout, key: &[u8], position: u32) -> u128 {
    let mut bytes = [layout.filler(); 16];
    match key.first_chunk::<16>() {
        Some(first) => bytes = *first,
        None => {
            let known = key.len().min(PREFIX);
            bytes[..known].copy_from_slice(&key[..known]);
        }
    }
    (u128::from_be_bytes(bytes) & !POSITION) | u128::from(position)
}

/// The entries of the first `count` of `records`, which follow each other, with the bytes where they begin.
pub(crate) fn entries_of(layout: &Layout, records: &[u8], count: usize) -> impl Iterator<Item = u128> {
    let mut at = 0;
    (0..count).map(move |_| {
        let begin = at;
        let measure = layout.measure(&records[begin..]);
        at += measure.end;
        entry(layout, &records[begin + measure.key..begin + measure.rest], begin as u32)
    })
}

/// The position of an entry's record.
pub(crate) fn position(entry: u128) -> u32 {
    entry as u32
}

/// Entries in memory that is reused.
#[derive(Debug, Default)]
pub(crate) struct Entries(Vec<u128>);

static ENTRIES: Pool<u128> = Pool::new();

impl Entries {
    /// No entries, with room for `count`.
    pub(crate) fn with_room(count: usize) -> Self {
        Entries(ENTRIES.take(count))
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        ENTRIES.give_back(std::mem::take(&mut self.0));
    }
}

impl Deref for Entries {
    type Target = Vec<u128>;

    fn deref(&self) -> &Vec<u128> {
        &self.0
    }
}

impl DerefMut for Entries {
    fn deref_mut(&mut self) -> &mut Vec<u128> {
        &mut self.0
    }
}

/// The bits of entries that decide the order of two rows without their keys, if they differ. With `keep`, rows are the
/// same if their first keys are equal.
pub(crate) fn deciding_bits(layout: &Layout, keep: Option<Keep>) -> u128 {
    let bytes = if keep.is_some() { layout.same_bytes().min(PREFIX) } else { PREFIX };
    !u128::MAX.checked_shr(8 * bytes as u32).unwrap_or(0)
}

/// Merges the sorted runs of which `entries` consist; `ends` are their ends.
///
/// It merges bottom-up between two buffers, without branches that depend on the keys. The standard library's stable
/// sort does the same, but searches for the runs, and allocates memory each time.
fn merge_runs(entries: &mut Entries, mut ends: Vec<usize>) {
    let mut merged = Entries::with_room(entries.len());
    merged.resize(entries.len(), 0);
    while ends.len() > 1 {
        let mut begin = 0;
        let pairs = ends.chunks(2).map(|pair| {
            let (middle, end) = (pair[0], pair[pair.len() - 1]);
            merge_two(&entries[begin..middle], &entries[middle..end], &mut merged[begin..end]);
            begin = end;
            end
        });
        ends = pairs.collect();
        std::mem::swap(entries, &mut merged);
    }
}

/// Merges `earlier` and `later` into `merged`, which is as long as both.
fn merge_two(earlier: &[u128], later: &[u128], merged: &mut [u128]) {
    let (mut one, mut other) = (0, 0);
    let follow = earlier.last().zip(later.first()).is_none_or(|(last, first)| last <= first);
    while !follow && one < earlier.len() && other < later.len() {
        let (left, right) = (earlier[one], later[other]);
        let is_later = right < left;
        merged[one + other] = if is_later { right } else { left };
        one += usize::from(!is_later);
        other += usize::from(is_later);
    }
    let (rest, last) = merged[one + other..].split_at_mut(earlier.len() - one);
    rest.copy_from_slice(&earlier[one..]);
    last.copy_from_slice(&later[other..]);
}

/// Sorts `entries` by their keys, which `key` gives by position, and equal keys by position. If the entries consist of
/// sorted `runs`, which end there, the runs are merged.
pub(crate) fn order<'a>(
    layout: &Layout,
    entries: &mut Entries,
    runs: Option<Vec<usize>>,
    key: &impl Fn(u32) -> &'a [u8],
) {
    let are_runs = runs.is_some();
    match runs {
        Some(ends) => merge_runs(entries, ends),
        None => entries.sort_unstable(),
    }
    if layout.is_decided_by(PREFIX) {
        return;
    }
    // A key that is shorter than its prefix is padded, so it may share the prefix with a longer one.
    let is_whole = |entry: &u128| key(position(*entry)).len() >= PREFIX;
    for group in entries.chunk_by_mut(|one, other| one >> 32 == other >> 32).filter(|group| group.len() > 1) {
        if are_equal(group, key) {
            continue;
        }
        match are_runs || group.len() < SMALL_GROUP || !group.iter().all(is_whole) {
            true => by_keys(layout, group, 0, key),
            false => {
                let first = group[0] & !POSITION;
                refine(layout, group, PREFIX, key);
                group.iter_mut().for_each(|entry| *entry = first | (*entry & POSITION));
            }
        }
    }
}

/// Whether all rows of a group have the same key, and so are in order. Others mostly differ at once.
fn are_equal<'a>(group: &[u128], key: &impl Fn(u32) -> &'a [u8]) -> bool {
    let first = key(position(group[0]));
    group[1..].iter().all(|entry| key(position(*entry)) == first)
}

/// Sorts a group whose keys agree in their first `depth` bytes.
fn refine<'a>(layout: &Layout, group: &mut [u128], depth: usize, key: &impl Fn(u32) -> &'a [u8]) {
    for one in group.iter_mut() {
        *one = entry(layout, key(position(*one)).get(depth..).unwrap_or_default(), position(*one));
    }
    group.sort_unstable();
    for group in group.chunk_by_mut(|one, other| one >> 32 == other >> 32).filter(|group| group.len() > 1) {
        if are_equal(group, key) {
            continue;
        }
        let longer = |entry: &u128| key(position(*entry)).len() > depth + PREFIX;
        match group.len() >= SMALL_GROUP && depth < DEEPEST && group.iter().all(longer) {
            true => refine(layout, group, depth + PREFIX, key),
            false => by_keys(layout, group, depth, key),
        }
    }
}

/// Sorts a group whose keys agree in their first `depth` bytes, by comparing the rest.
fn by_keys<'a>(layout: &Layout, group: &mut [u128], depth: usize, key: &impl Fn(u32) -> &'a [u8]) {
    let rest = |entry: u128| key(position(entry)).get(depth..).unwrap_or_default();
    group.sort_by(|one, other| {
        layout.compare(rest(*one), rest(*other)).then_with(|| position(*one).cmp(&position(*other)))
    });
}

/// Leaves one of the `entries` of equal rows, which follow each other. `record` gives the records by position.
pub(crate) fn unique<'a>(layout: &Layout, entries: &mut Vec<u128>, keep: Keep, record: &impl Fn(u32) -> &'a [u8]) {
    let decided = layout.same_is_decided_by(PREFIX);
    let deciding_bits = deciding_bits(layout, Some(keep));
    entries.dedup_by(|next, kept| {
        let same = (*next ^ *kept) & deciding_bits == 0
            && (decided || layout.same(record(position(*next))) == layout.same(record(position(*kept))));
        if same && keep == Keep::Last {
            *kept = *next;
        }
        same
    });
}

/// Records in memory, in the order in which they arrived.
#[derive(Debug)]
pub(crate) struct Filling {
    layout: Arc<Layout>,
    memory: Arc<Memory>,
    /// The bytes after which it is full.
    most: usize,
    segments: Vec<Segment>,
    entries: Entries,
    bytes: usize,
    /// The memory of the entries.
    held: Option<Held>,
    cursors: Vec<usize>,
}

impl Filling {
    pub(crate) fn new(layout: Arc<Layout>, memory: Arc<Memory>, most: usize) -> Self {
        let (segments, entries) = (Vec::new(), Entries::default());
        Filling { layout, memory, most, segments, entries, bytes: 0, held: None, cursors: Vec::new() }
    }

    pub(crate) fn rows(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of its records.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the limit is reached.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes + self.rows() * ENTRY >= self.most || self.segments.len() == MOST_SEGMENTS
    }

    /// Adds rows of `prepared` from `from` on, until it is full or memory is refused; with `force` at least one row.
    /// Returns the first row that was not added.
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
            let position = (self.segments.len() - 1) * SEGMENT;
            let Some(segment) = self.segments.last_mut() else { return Ok(from) };
            let charged = self.held.as_ref().map_or(0, Held::bytes) / ENTRY;
            let (begin, room) = (segment.filled().len(), segment.room());
            let (mut to, mut bytes) = (from, 0);
            while to < prepared.rows() && self.entries.len() + (to - from) < charged {
                let length = prepared.length(to);
                if bytes + length > room {
                    break;
                }
                bytes += length;
                to += 1;
            }
            self.layout.write(prepared, from, to, segment.next(bytes), &mut self.cursors);
            if self.entries.capacity() == 0 {
                // The expected number of entries, if all rows are about as long as these.
                let each = bytes / (to - from).max(1) + ENTRY;
                self.entries = Entries::with_room(self.most / each + CHARGED_ROWS);
            }
            let written = entries_of(&self.layout, &segment.filled()[begin..], to - from);
            self.entries.extend(written.map(|entry| entry + (position + begin) as u128));
            self.bytes += bytes;
            from = to;
        }
        Ok(from)
    }

    /// Charges the entry of one more row.
    fn charge_entry(&mut self, force: bool) -> bool {
        let charged = self.held.as_ref().map_or(0, Held::bytes);
        if (self.rows() + 1) * ENTRY <= charged {
            return true;
        }
        let more = CHARGED_ROWS * ENTRY;
        let held = self.memory.try_take(more).or_else(|| force.then(|| self.memory.take(more)));
        match (held, &mut self.held) {
            (None, _) => return false,
            (Some(more), Some(held)) => held.join(more),
            (more, none) => *none = more,
        }
        true
    }

    /// Sorts the records, and keeps those that `wanted` selects.
    pub(crate) fn sort(mut self, wanted: &Selection) -> Result<Sorted> {
        let mut entries = std::mem::take(&mut self.entries);
        if let Some(held) = &mut self.held {
            held.shrink_to(entries.len() * ENTRY);
        }
        let mut sorted = Sorted {
            layout: self.layout,
            segments: self.segments,
            entries: Entries::default(),
            bytes: self.bytes,
            held: self.held,
        };
        wanted.leave_out_later(&sorted.layout, &mut entries);
        let key = |position: u32| sorted.layout.key(sorted.record_at(position));
        order(&sorted.layout, &mut entries, None, &key);
        if let Some(keep) = wanted.keep {
            unique(&sorted.layout, &mut entries, keep, &|position| sorted.record_at(position));
        }
        entries.truncate(wanted.first);
        sorted.entries = entries;
        match wanted.all() {
            true => Ok(sorted),
            false => sorted.without_gaps(&self.memory),
        }
    }
}

/// Which rows of a sort to keep.
#[derive(Debug, Clone)]
pub(crate) struct Selection {
    /// Which one of equal rows to keep.
    pub(crate) keep: Option<Keep>,
    /// How many of the remaining rows to keep, the first in order.
    pub(crate) first: usize,
    /// The entry of a row after which none is needed, if known: enough rows come before it.
    pub(crate) last: Option<u128>,
}

impl Selection {
    fn all(&self) -> bool {
        self.keep.is_none() && self.first == usize::MAX
    }

    /// Drops the `entries` after the last row that is needed.
    fn leave_out_later(&self, layout: &Layout, entries: &mut Vec<u128>) {
        if self.first == 0 {
            entries.clear();
        }
        let Some(last) = self.last else { return };
        // A later one of equal rows may replace an earlier one.
        let deciding_bits = deciding_bits(layout, self.keep.filter(|keep| *keep == Keep::Last));
        entries.retain(|entry| entry & deciding_bits <= last & deciding_bits);
    }
}

/// Records in memory, in order.
#[derive(Debug)]
pub(crate) struct Sorted {
    layout: Arc<Layout>,
    segments: Vec<Segment>,
    entries: Entries,
    bytes: usize,
    /// The memory of the entries.
    held: Option<Held>,
}

impl Sorted {
    /// The same records without gaps, if only few of those that arrived are left.
    fn without_gaps(mut self, memory: &Arc<Memory>) -> Result<Self> {
        self.bytes = self.entries.iter().map(|entry| self.record_length(position(*entry))).sum();
        if let Some(held) = &mut self.held {
            held.shrink_to(self.entries.len() * ENTRY);
        }
        let had: usize = self.segments.iter().map(|segment| segment.filled().len()).sum();
        if self.bytes > GATHERED.min(had / 4) {
            return Ok(self);
        }
        let mut gathered = Gathered::new(Arc::clone(&self.layout), Arc::clone(memory));
        for entry in self.entries.iter() {
            gathered.add(*entry, self.record_at(position(*entry)))?;
        }
        Ok(gathered.done())
    }

    fn record_length(&self, position: u32) -> usize {
        self.layout.measure(self.record_at(position)).end
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
        self.record_at(position(self.entries[row]))
    }

    fn record_at(&self, position: u32) -> &[u8] {
        &self.segments[position as usize / SEGMENT].filled()[position as usize % SEGMENT..]
    }
}

/// Records that are added in order, each copied.
pub(crate) struct Gathered {
    memory: Arc<Memory>,
    sorted: Sorted,
}

impl Gathered {
    pub(crate) fn new(layout: Arc<Layout>, memory: Arc<Memory>) -> Self {
        let sorted = Sorted { layout, segments: Vec::new(), entries: Entries::default(), bytes: 0, held: None };
        Gathered { memory, sorted }
    }

    /// Adds the record at the beginning of `bytes`, with the first bytes of its key in `entry`. Its source is freed
    /// soon, so memory is taken whether it is free or not.
    pub(crate) fn add(&mut self, entry: u128, bytes: &[u8]) -> Result<()> {
        let Sorted { layout, segments, entries, bytes: all, .. } = &mut self.sorted;
        let record = &bytes[..layout.measure(bytes).end];
        if segments.last().is_none_or(|segment| segment.room() < record.len()) {
            segments.extend(self.memory.segment(record.len(), true)?);
        }
        let index = segments.len().saturating_sub(1);
        let Some(segment) = segments.last_mut() else { return Ok(()) };
        let at = segment.filled().len();
        let position = u32::try_from(index * SEGMENT + at)
            .map_err(|_| Error::internal("more records were gathered than a piece can have"))?;
        segment.next(record.len()).copy_from_slice(record);
        *all += record.len();
        entries.push((entry & !POSITION) | u128::from(position));
        Ok(())
    }

    /// The number of records.
    pub(crate) fn rows(&self) -> usize {
        self.sorted.entries.len()
    }

    pub(crate) fn done(mut self) -> Sorted {
        self.sorted.held = Some(self.memory.take(self.sorted.entries.len() * ENTRY));
        self.sorted
    }
}
