//! The end of a zip archive, found from behind: where its directory is.
//!
//! ```text
//!  … members │ directory │ [zip64 end │ locator] │ end, comment │
//!                             └────── tail ───────────────────┘
//! ```
//!
//! Nothing is judged here. Whatever is not exactly in order, or can be taken in two ways, is `None`: the archive is
//! then read in passing, where its faults have names.

use std::ops::Range;

use memchr::memmem;

use super::directory::Totals;
use super::record::{self, END_SIZE, WIDE_END_SIZE, WIDE_LOCATOR_SIZE, u16_at, u32_at, u64_at};

/// Where the directory of an archive is, and how many members it says that it lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZipEnding {
    directory: Range<u64>,
    pub(super) members: u64,
    /// Without zip64, only the last 16 bits of the number are told.
    wide: bool,
}

impl ZipEnding {
    /// So many bytes of an archive's end tell where its directory is (all of them, if it has fewer).
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

    /// Whether a directory of so many entries is the one that was told of.
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

/// What the zip64 end says, and the byte where it begins. `tail` begins at byte `start`, the locator at its byte
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
