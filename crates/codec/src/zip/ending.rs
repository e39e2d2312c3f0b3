//! The end of a zip archive, searched backwards: where its directory is.
//!
//! ```text
//!  … members │ directory │ [zip64 end │ locator] │ end, comment │
//!                             └────── tail ───────────────────┘
//! ```
//!
//! This reports no errors. It returns `None` for anything irregular or ambiguous: the archive is then read as a stream,
//! which names its faults.

use std::ops::Range;

use memchr::memmem;

use super::directory::Totals;
use super::record::{self, END_SIZE, WIDE_END_SIZE, WIDE_LOCATOR_SIZE, u16_at, u32_at, u64_at};

/// The position of an archive's directory, and how many members it claims to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZipEnding {
    directory: Range<u64>,
    pub(super) members: u64,
    /// Without zip64, only the last 16 bits of the number are known.
    wide: bool,
}

impl ZipEnding {
    /// How many bytes of an archive's end are needed to find its directory (all, if it has fewer).
    pub const TAIL: u64 = (WIDE_END_SIZE + WIDE_LOCATOR_SIZE + END_SIZE) as u64 + u16::MAX as u64;

    /// Looks for the end in `tail`, the last bytes of an archive of `size` bytes.
    pub fn find(tail: &[u8], size: u64) -> Option<Self> {
        let start = size.checked_sub(tail.len() as u64)?;
        let at = end_record(tail)?;
        let end = &tail[at..];
        let locator = at.checked_sub(WIDE_LOCATOR_SIZE).filter(|&at| tail[at..].starts_with(&record::WIDE_LOCATOR));
        let wide = match locator {
            Some(locator) => Some(wide_end(tail, start, locator)?),
            None => None,
        };
        let disks = [u16_at(end, 4), u16_at(end, 6)];
        if disks.iter().any(|&disk| disk != 0 && !(disk == u16::MAX && wide.is_some())) {
            return None;
        }
        let said = Totals::of_end(end);
        let (totals, directory_end) = wide.unwrap_or((said, start + at as u64));
        let directory = totals.begin..directory_end;
        let in_order = said.agrees(totals) && directory.start.checked_add(totals.size) == Some(directory.end);
        in_order.then_some(ZipEnding { directory, members: totals.entries, wide: wide.is_some() })
    }

    /// The bytes of the directory.
    pub fn directory(&self) -> Range<u64> {
        self.directory.clone()
    }

    /// Whether the number of members matches a directory of `entries` entries.
    pub(super) fn lists(&self, entries: u64) -> bool {
        entries == self.members || (!self.wide && entries & u64::from(u16::MAX) == self.members)
    }
}

/// Where the end record begins in `tail`: the only one there whose comment fills the rest.
fn end_record(tail: &[u8]) -> Option<usize> {
    let fits = |at: &usize| {
        let end = &tail[*at..];
        end.len() >= END_SIZE && END_SIZE + usize::from(u16_at(end, 20)) == end.len()
    };
    let mut found = memmem::find_iter(tail, &record::END).filter(fits);
    let at = found.next()?;
    found.next().is_none().then_some(at)
}

/// The numbers of the zip64 end, and the byte where it begins. `tail` begins at byte `start`, the locator at its byte
/// `locator`.
fn wide_end(tail: &[u8], start: u64, locator: usize) -> Option<(Totals, u64)> {
    let begin = u64_at(&tail[locator..], 8);
    let at = usize::try_from(begin.checked_sub(start)?).ok()?;
    let bytes = tail.get(at..locator)?;
    let whole = bytes.len() >= WIDE_END_SIZE
        && bytes.starts_with(&record::WIDE_END)
        && u64_at(bytes, 4).checked_add(12) == Some(bytes.len() as u64);
    let one_file = u32_at(bytes, 16) == 0 && u32_at(bytes, 20) == 0;
    (whole && one_file).then(|| (Totals::of_wide_end(bytes), begin))
}
