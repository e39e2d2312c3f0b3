//! A plan of an archive, made from its directory before anything else is read: which bytes to read, in parts that can
//! be read independently.
//!
//! ```text
//!  members   │ a ✓ │ b ✓ │ c ✗ │ d ✓ │ e ✗, large        │ f ✓ │ g ✗ │ directory │ end
//!  parts     └─────────── 0 ─────────┘                   └─ 1 ─┘
//! ```
//!
//! A part begins and ends with a selected member, and includes other members if leaving them out would save little. It
//! is read like an archive in a stream, and compared with the directory meanwhile: see `part`.
//!
//! Only a regular archive gets a plan. For any other one the plan is `None`, and it is read as a stream, which names
//! its faults.

use std::ops::Range;

use millstream_core::{Result, stable_hash};

use super::directory::digest;
use super::ending::ZipEnding;
use super::names;
use super::record::{self, DESCRIPTOR_LIMIT, ENTRY_SIZE, Header, LOCAL_SIZE};
use crate::UnpackOptions;
use crate::members::{MemberFilter, NAMES_SHOWN, none_selected};
use crate::ratio::is_beyond;

/// The number of parts to aim for.
const PARTS: u64 = 64;

/// How many more bytes are read after a part: those that identify a descriptor. The directory and its end have more.
const BEHIND: u64 = DESCRIPTOR_LIMIT as u64 + 2;

/// How large the parts of an archive are.
#[derive(Debug, Clone, Copy)]
pub struct ZipCuts {
    /// The least bytes of a part, if there are as many.
    pub smallest: u64,
    /// A part ends with the member with which it has this many bytes.
    pub largest: u64,
    /// The most bytes of unselected members that are read with the members around them.
    pub passed_over: u64,
}

impl Default for ZipCuts {
    /// Opening a part, or asking for one more, costs about as much as reading some 100 kB.
    fn default() -> Self {
        ZipCuts { smallest: 1 << 20, largest: 8 << 20, passed_over: 256 << 10 }
    }
}

/// What the directory says of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// Where its local header is.
    pub(super) offset: u64,
    /// A digest of all that its local header must agree on.
    pub(super) digest: u64,
    /// Its text in bytes.
    pub(super) size: u64,
    pub(super) wanted: bool,
}

/// Reads a directory, piece by piece.
#[derive(Debug)]
pub struct ZipPlanner {
    ending: ZipEnding,
    wanted: MemberFilter,
    max_members: u64,
    max_ratio: u64,
    cuts: ZipCuts,
    entries: Vec<Entry>,
    /// The beginning of an entry that has not arrived whole.
    rest: Vec<u8>,
    /// The first members with data, for messages.
    names: Vec<(u64, String)>,
    named: u64,
    /// Hashes of the names of wanted members.
    wanted_names: Vec<u64>,
}

impl ZipPlanner {
    /// Starts the plan of an archive with this end; `None` if it must be read as a stream.
    pub fn new(ending: ZipEnding, options: &UnpackOptions) -> Result<Option<Self>> {
        let limits = &options.limits;
        // The size of all text is only known after reading: a member may be compressed itself.
        if limits.bytes.is_some() || ending.members > limits.members {
            return Ok(None);
        }
        Ok(Some(ZipPlanner {
            ending,
            wanted: MemberFilter::new(&options.members)?,
            max_members: limits.members,
            max_ratio: limits.ratio,
            cuts: ZipCuts::default(),
            entries: Vec::new(),
            rest: Vec::new(),
            names: Vec::new(),
            named: 0,
            wanted_names: Vec::new(),
        }))
    }

    /// Sets the sizes of parts.
    pub fn with_cuts(self, cuts: ZipCuts) -> Self {
        ZipPlanner { cuts, ..self }
    }

    /// The next bytes of the directory; `None` if the archive must be read as a stream.
    pub fn feed(&mut self, bytes: &[u8]) -> Option<()> {
        if self.rest.is_empty() {
            let used = self.parse(bytes)?;
            self.rest.extend_from_slice(&bytes[used..]);
            return Some(());
        }
        let mut rest = std::mem::take(&mut self.rest);
        rest.extend_from_slice(bytes);
        let used = self.parse(&rest)?;
        rest.drain(..used);
        self.rest = rest;
        Some(())
    }

    /// Reads the whole entries at the beginning of `bytes`; returns how many bytes they have.
    fn parse(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut used = 0;
        loop {
            let bytes = &bytes[used..];
            let Some(fixed) = bytes.get(..ENTRY_SIZE) else { return Some(used) };
            if !fixed.starts_with(&record::ENTRY) {
                return None;
            }
            let size = Header::entry_size(fixed);
            let Some(entry) = bytes.get(..size) else { return Some(used) };
            self.entry(&Header::entry(entry))?;
            used += size;
        }
    }

    fn entry(&mut self, header: &Header) -> Option<()> {
        if self.entries.len() as u64 >= self.max_members {
            return None;
        }
        let name = names::decode(&header.name, header.flags, &header.extra);
        let wanted = !header.is_folder() && self.wanted.wants(&name);
        let (offset, size) = (header.offset, header.size);
        self.entries.push(Entry { offset, digest: digest(header), size, wanted });
        if wanted {
            self.wanted_names.push(stable_hash::hash(&name));
        }
        if !name.ends_with('/') {
            self.named += 1;
            let at = self.names.partition_point(|(known, _)| *known < offset);
            if at < NAMES_SHOWN {
                self.names.insert(at, (offset, name));
                self.names.truncate(NAMES_SHOWN);
            }
        }
        Some(())
    }

    /// Its memory in bytes.
    pub fn held(&self) -> usize {
        let names = self.wanted_names.capacity() * size_of::<u64>();
        self.entries.capacity() * size_of::<Entry>() + self.rest.capacity() + names
    }

    /// The plan, when all bytes of the directory have been given; `None` if the archive must be read as a stream. An
    /// error if no member is wanted.
    pub fn finish(mut self) -> Result<Option<ZipPlan>> {
        if !self.in_order() {
            return Ok(None);
        }
        if self.entries.iter().any(|entry| entry.wanted) {
            let parts = parts(&self.entries, self.ending.directory().start, self.cuts);
            // A bomb, or wrong sizes: reading as a stream names the member at fault.
            if parts.iter().any(|part| is_beyond(self.max_ratio, part.text_before, part.bytes.start)) {
                return Ok(None);
            }
            self.wanted_names.sort_unstable();
            let has_twins = self.wanted_names.windows(2).any(|pair| pair[0] == pair[1]);
            return Ok(Some(ZipPlan { entries: self.entries, parts, has_twins }));
        }
        if self.wanted.asks() {
            let names = self.names.iter().map(|(_, name)| name.as_str());
            return Err(none_selected("zip", names, self.named));
        }
        Ok(None)
    }

    /// Sorts the entries by their offset. Returns whether they do not overlap, from the first byte to the directory.
    fn in_order(&mut self) -> bool {
        self.entries.sort_unstable_by_key(|entry| entry.offset);
        let entries = &self.entries;
        let behind = |before: u64, after: u64| after.checked_sub(before).is_some_and(|size| size >= LOCAL_SIZE as u64);
        self.rest.is_empty()
            && self.ending.lists(entries.len() as u64)
            && entries.first().is_some_and(|first| first.offset == 0)
            && entries.windows(2).all(|pair| behind(pair[0].offset, pair[1].offset))
            && entries.last().is_some_and(|last| behind(last.offset, self.ending.directory().start))
    }
}

/// A part of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// From the local header of its first member to the record after its last one.
    pub(super) bytes: Range<u64>,
    /// Its entries.
    pub(super) entries: Range<usize>,
    /// The bytes of selected text before it.
    pub(super) text_before: u64,
}

/// Cuts an archive whose directory begins at byte `end` into parts.
fn parts(entries: &[Entry], end: u64, cuts: ZipCuts) -> Vec<Part> {
    let enough = (end / PARTS).min(cuts.largest).max(cuts.smallest);
    let mut parts: Vec<Part> = Vec::new();
    let mut text = 0_u64;
    for (index, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.wanted) {
        let end = entries.get(index + 1).map_or(end, |next| next.offset);
        match parts.last_mut() {
            Some(part)
                if part.bytes.end - part.bytes.start < enough && entry.offset - part.bytes.end <= cuts.passed_over =>
            {
                part.bytes.end = end;
                part.entries.end = index + 1;
            }
            _ => parts.push(Part { bytes: entry.offset..end, entries: index..index + 1, text_before: text }),
        }
        text = text.saturating_add(entry.size);
    }
    parts
}

/// Which bytes of an archive to read, in parts.
#[derive(Debug, PartialEq, Eq)]
pub struct ZipPlan {
    /// In the order of the archive.
    entries: Vec<Entry>,
    parts: Vec<Part>,
    has_twins: bool,
}

impl ZipPlan {
    /// How many parts there are: at least one.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// The bytes of the archive that [`crate::Unpack::of_part`] is to be fed for the part of that number.
    pub fn range(&self, part: usize) -> Range<u64> {
        self.parts.get(part).map_or(0..0, |part| part.bytes.start..part.bytes.end + BEHIND)
    }

    /// Whether two of the wanted members have the same name.
    pub fn has_twins(&self) -> bool {
        self.has_twins
    }

    /// Its memory in bytes.
    pub fn held(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.parts.capacity() * size_of::<Part>()
    }

    /// The part of that number.
    pub(super) fn part(&self, part: usize) -> Option<&Part> {
        self.parts.get(part)
    }

    /// What the directory lists in a part.
    pub(super) fn entries(&self, part: &Part) -> &[Entry] {
        self.entries.get(part.entries.clone()).unwrap_or_default()
    }
}
