//! The directory at the end of a zip archive, compared with the members that were read before it came.
//!
//! The directory decides what is in an archive: a member that it does not list was deleted, and a member that it lists
//! twice or elsewhere is read differently by other tools. Each of these is an error, since the rows have been given out
//! by then.

use std::hash::{DefaultHasher, Hash, Hasher};

use millstream_core::{Error, Result};

use super::record::{END_SIZE, Header, u16_at, u32_at, u64_at};
use crate::frame::corrupt;

/// How many bytes of a name are kept for messages.
const SHOWN: usize = 120;

/// What is kept of a member that was read.
#[derive(Debug)]
pub(super) struct Walked {
    /// Where its local header is.
    at: u64,
    digest: u64,
    wanted: bool,
    listed: bool,
    name: Box<str>,
}

/// Everything that the directory must agree on, as one number.
pub(super) fn digest(header: &Header) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&header.name, header.method, header.crc, header.compressed, header.size).hash(&mut hasher);
    hasher.finish()
}

/// Compares the directory with the members, entry by entry.
#[derive(Debug, Default)]
pub(super) struct Directory {
    /// In the order of the archive, hence of `at`.
    walked: Vec<Walked>,
    begin: Option<u64>,
    entries: u64,
    wide: Option<Totals>,
}

/// Numbers that the end of the directory gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) entries: u64,
    pub(super) size: u64,
    pub(super) begin: u64,
}

impl Totals {
    /// What the end record says.
    pub(super) fn of_end(bytes: &[u8]) -> Self {
        Totals { entries: u16_at(bytes, 10).into(), size: u32_at(bytes, 12).into(), begin: u32_at(bytes, 16).into() }
    }

    /// What the zip64 end record says.
    pub(super) fn of_wide_end(bytes: &[u8]) -> Self {
        Totals { entries: u64_at(bytes, 32), size: u64_at(bytes, 40), begin: u64_at(bytes, 48) }
    }

    /// Whether the end record agrees with the numbers `is`. Fields that are too small for their value hold all ones,
    /// with the value in the zip64 record (which `zip -fz -` forgets); writers without zip64 hold what fits.
    pub(super) fn agrees(self, is: Totals) -> bool {
        let agrees = |said: u64, is: u64, ones: u64| said == is & ones || said == ones;
        let (small, large) = (u64::from(u16::MAX), u64::from(u32::MAX));
        agrees(self.entries, is.entries, small)
            && agrees(self.size, is.size, large)
            && agrees(self.begin, is.begin, large)
    }
}

impl Directory {
    /// Members read so far.
    pub(super) fn members(&self) -> u64 {
        self.walked.len() as u64
    }

    /// Remembers a member. Its header says what was found in its data.
    pub(super) fn walked(&mut self, at: u64, header: &Header, name: &str, wanted: bool) {
        let end = name.floor_char_boundary(SHOWN);
        self.walked.push(Walked { at, digest: digest(header), wanted, listed: false, name: name[..end].into() });
    }

    /// Names of the members that hold data, for messages.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.walked.iter().map(|walked| walked.name.as_ref()).filter(|name| !name.ends_with('/'))
    }

    /// Starts the directory at byte `at`, unless it has started.
    pub(super) fn begins(&mut self, at: u64) {
        self.begin.get_or_insert(at);
    }

    /// Compares an entry, which begins at byte `at`; `wanted` says whether its name is selected.
    pub(super) fn entry(&mut self, at: u64, header: &Header, name: &str, wanted: bool) -> Result<()> {
        self.entries += 1;
        let Ok(index) = self.walked.binary_search_by_key(&header.offset, |walked| walked.at) else {
            return Err(nothing_there(at).in_member(name));
        };
        let walked = &mut self.walked[index];
        if walked.listed {
            return Err(corrupt("the zip directory lists a member twice", at).in_member(name));
        }
        walked.listed = true;
        if walked.digest != digest(header) {
            return Err(disagree(at).in_member(name));
        }
        if walked.wanted != wanted && header.size > 0 {
            return Err(wanted_by_one(at).in_member(name));
        }
        Ok(())
    }

    /// Compares the zip64 end record of [`super::record::WIDE_END_SIZE`] bytes.
    pub(super) fn wide_end(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        self.begins(at);
        if u32_at(bytes, 16) != 0 || u32_at(bytes, 20) != 0 {
            return Err(split(at));
        }
        let totals = Totals::of_wide_end(bytes);
        let is = self.totals(at);
        if totals != is {
            return Err(disagrees(totals, is, at));
        }
        self.wide = Some(totals);
        Ok(())
    }

    /// Compares the fixed bytes of the end record; `directory_end` is where the entries ended.
    pub(super) fn end(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        debug_assert!(bytes.len() >= END_SIZE);
        self.begins(at);
        let is = match self.wide {
            Some(totals) => totals,
            None => self.totals(at),
        };
        let disks = [u16_at(bytes, 4), u16_at(bytes, 6)];
        if disks.iter().any(|&disk| disk != 0 && !(disk == u16::MAX && self.wide.is_some())) {
            return Err(split(at));
        }
        let said = Totals::of_end(bytes);
        if !said.agrees(is) {
            return Err(disagrees(said, is, at));
        }
        self.check_listed(at)
    }

    /// The numbers of the entries read, which end at `end`.
    fn totals(&self, end: u64) -> Totals {
        let begin = self.begin.unwrap_or(end);
        Totals { entries: self.entries, size: end - begin, begin }
    }

    /// Fails if a member that was given out is not listed, since it was deleted.
    fn check_listed(&self, at: u64) -> Result<()> {
        let Some(lost) = self.walked.iter().find(|walked| walked.wanted && !walked.listed) else {
            return Ok(());
        };
        Err(not_listed(&lost.name, lost.at).byte(at))
    }
}

/// The directory lists a member where there is none; `at` is the position of the entry or of the missing member.
pub(super) fn nothing_there(at: u64) -> Error {
    corrupt("the zip directory lists a member where the archive has none", at)
}

/// Two records of a member disagree; `at` is the position of the member or of its entry.
pub(super) fn disagree(at: u64) -> Error {
    corrupt("the zip directory and the member's own header disagree", at)
}

/// Two records of a member with text differ in its name (for example because only one has a Unicode name), and only one
/// of the names is selected. `at` is the position of the member or of its entry.
pub(super) fn wanted_by_one(at: u64) -> Error {
    disagree(at)
        .cause("only one of the names that they give it is wanted")
        .hint("write `members` so that both names match, or neither; or pack the archive again")
}

/// The directory does not list the member that begins at byte `begin`.
pub(super) fn not_listed(name: &str, begin: u64) -> Error {
    Error::data("the member is not in the zip directory: it was deleted, or the archive is damaged")
        .in_member(name)
        .hint(format!(
            "its data is still at byte {begin} of the archive; pack the archive again, or leave the member out by \
             `members`"
        ))
}

fn split(at: u64) -> Error {
    Error::refused("the zip archive is split into several files, which is not supported")
        .byte(at)
        .hint("join the parts first: `zip -s 0 split.zip --out whole.zip`")
}

fn disagrees(said: Totals, is: Totals, at: u64) -> Error {
    corrupt(
        format!(
            "the end of the zip says {} members in {} bytes from byte {}, but the directory has {} in {} from {}",
            said.entries, said.size, said.begin, is.entries, is.size, is.begin
        ),
        at,
    )
}
