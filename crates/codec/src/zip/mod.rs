//! zip archives, unpacked while they arrive.
//!
//! An archive's directory is at its end, but every member also has a header of its own before its data, so the archive
//! can be read as a stream:
//!
//! ```text
//!  local header │ data │ [descriptor] │ … │ directory entry │ … │ [zip64 end │ locator] │ end, comment
//!  ── Begin ──── Text… ──── End ─────   ── compared with what was read ───────────────── Done
//! ```
//!
//! If only the descriptor after a member gives its length, the member ends where its compressed data does; a stored one
//! is searched for its descriptor, see `member`. The directory at the end must list exactly what was read, see
//! `directory`. Names of members, which are never used as paths, are in `names`.
//!
//! If the source can read ranges, a large archive is not read as a stream: `ending` finds its directory, `plan` makes a
//! plan of it, and idle tasks walk through each part of the plan as above; `part` compares it with the directory.
//!
//! Supported: stored, deflate, bzip2, zstd and xz; zip64. Refused: encryption, split archives, a program or a text
//! before the first member (`unpack/hidden.rs`). Folders are skipped.

mod directory;
mod ending;
mod member;
mod names;
mod part;
mod plan;
mod record;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_plan;

use std::ops::Range;
use std::sync::Arc;

use millstream_core::{Error, Result};

use crate::frame::{self, Frame, corrupt, cut};
use crate::input::{Input, Piece};
use crate::members::{MemberFilter, none_selected, too_many};
use directory::Directory;
pub use ending::ZipEnding;
use member::{Data, Member};
use part::Listed;
pub use plan::{ZipCuts, ZipPlan, ZipPlanner};
use record::Header;

/// Whether a unit that begins with `head` is a zip archive: a member, or the end of an empty one. Two letters alone
/// ("PK") count as a cut archive only if the unit's name promises one.
pub(crate) fn recognises(head: &[u8], expected: bool) -> bool {
    let least = if expected { 1 } else { 3 };
    frame::recognises(head, &record::LOCAL, least) || frame::recognises(head, &record::END, least)
}

/// Whether a member begins with `head`.
pub(crate) fn begins_member(head: &[u8]) -> bool {
    head.starts_with(&record::LOCAL)
}

/// Bytes of a member's header, without its name, that distinguish it from text with its signature by chance.
pub(crate) const HEAD_OF_MEMBER: usize = record::LOCAL_SIZE;

/// Where in `bytes` the header of a member begins.
pub(crate) fn find_member(bytes: &[u8]) -> Option<usize> {
    memchr::memmem::find_iter(bytes, &record::LOCAL).find(|&at| {
        let header = &bytes[at..];
        // A known method (stored, deflate, bzip2, lzma, zstd, xz, …), a name, and an existing version.
        let is_known = matches!(record::u16_at(header, 8), 0..=14 | 93..=99);
        header.len() >= HEAD_OF_MEMBER
            && is_known
            && (1..=4096).contains(&record::u16_at(header, 26))
            && record::u16_at(header, 4) & 0xff <= 63
    })
}

/// Whether data of `size` bytes whose last ones are `tail` ends as an archive with members does.
pub(crate) fn ends_archive(tail: &[u8], size: u64) -> bool {
    memchr::memmem::find_iter(tail, &record::END).any(|at| {
        let end = &tail[at..];
        let before = size - end.len() as u64;
        let (members, directory) = (record::u16_at(end, 10), u64::from(record::u32_at(end, 12)));
        end.len() >= record::END_SIZE
            && record::END_SIZE + usize::from(record::u16_at(end, 20)) == end.len()
            && (record::u16_at(end, 4), record::u16_at(end, 6)) == (0, 0)
            && members > 0
            && directory >= u64::from(members) * record::ENTRY_SIZE as u64
            && directory + u64::from(record::u32_at(end, 16)) <= before
    })
}

/// The part of the archive that is read; it only moves forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Members,
    Entries,
    Signature,
    WideEnd,
    WideLocator,
    End,
}

/// A walk through an archive.
pub(crate) struct Walk {
    wanted: MemberFilter,
    max_members: u64,
    any_wanted: bool,
    member: Option<Member>,
    /// A decoder of the last member, with its method.
    spare: Option<Box<dyn Frame>>,
    spare_method: u16,
    phase: Phase,
    listing: Listing,
}

/// The list that the members are compared with.
enum Listing {
    /// The directory, which comes at the end.
    Behind(Directory),
    /// The directory's entries for a part of the archive.
    Known(Listed),
}

impl Walk {
    /// A walk that gives the members that match `globs` (all if there are none), of at most `max_members`.
    pub(crate) fn new(globs: &[String], max_members: u64) -> Result<Self> {
        Walk::along(globs, max_members, Listing::Behind(Directory::default()))
    }

    /// A walk through the part of that number. The plan has checked the limit of members.
    pub(crate) fn of_part(globs: &[String], plan: Arc<ZipPlan>, part: usize) -> Result<Self> {
        Walk::along(globs, u64::MAX, Listing::Known(Listed::new(plan, part)?))
    }

    fn along(globs: &[String], max_members: u64, listing: Listing) -> Result<Self> {
        Ok(Walk {
            wanted: MemberFilter::new(globs)?,
            max_members,
            any_wanted: false,
            member: None,
            spare: None,
            spare_method: 0,
            phase: Phase::Members,
            listing,
        })
    }

    /// The bytes of the part, and the bytes of selected text before it.
    pub(crate) fn part(&self) -> Option<(Range<u64>, u64)> {
        match &self.listing {
            Listing::Behind(_) => None,
            Listing::Known(part) => Some((part.bytes(), part.text_before())),
        }
    }

    /// The member that is being read, wanted or not.
    pub(crate) fn current_member(&self) -> Option<&str> {
        self.member.as_ref().map(|member| member.name.as_str())
    }

    /// The next step.
    pub(crate) fn next(&mut self, input: &mut Input) -> Result<Piece> {
        let piece = self.next_piece(input)?;
        match &self.listing {
            Listing::Known(part) if matches!(piece, Piece::Hungry) && input.is_fed() => {
                Err(part.overrun(input.position()))
            }
            _ => Ok(piece),
        }
    }

    fn next_piece(&mut self, input: &mut Input) -> Result<Piece> {
        loop {
            let step = match self.member {
                Some(_) => self.member_data(input)?,
                None if self.phase == Phase::End => self.after_end(input)?,
                None => self.record(input)?,
            };
            if let Some(piece) = step {
                return Ok(piece);
            }
        }
    }

    fn member_data(&mut self, input: &mut Input) -> Result<Option<Piece>> {
        let Some(member) = &mut self.member else {
            return Ok(None);
        };
        Ok(match member.next(input, &mut self.spare)? {
            Data::Hungry => Some(Piece::Hungry),
            Data::Text(text) => member.wanted.then_some(Piece::Bytes(text)),
            Data::Again => None,
            Data::End => {
                match &mut self.listing {
                    Listing::Behind(directory) => {
                        directory.walked(member.at, &member.header, &member.name, member.wanted)
                    }
                    Listing::Known(part) => part.walked(member.at, &member.header, &member.name)?,
                }
                let piece = member.wanted.then_some(Piece::End);
                self.spare_method = member.header.method;
                self.member = None;
                piece
            }
        })
    }

    /// Reads the next record. `None` if it gives nothing.
    fn record(&mut self, input: &mut Input) -> Result<Option<Piece>> {
        let at = input.position();
        if let Listing::Known(part) = &self.listing
            && part.ends(at)?
        {
            return Ok(Some(Piece::Done));
        }
        let Some(bytes) = take(input, 4, "the directory at its end is missing")? else {
            return Ok(Some(Piece::Hungry));
        };
        let signature = [bytes[0], bytes[1], bytes[2], bytes[3]];
        let phase = match signature {
            record::LOCAL => Phase::Members,
            record::ENTRY => Phase::Entries,
            record::SIGNATURE => Phase::Signature,
            record::WIDE_END => Phase::WideEnd,
            record::WIDE_LOCATOR => Phase::WideLocator,
            record::END => Phase::End,
            record::ENCRYPTION => {
                return Err(Error::refused("the directory of the zip is encrypted, which is not supported").byte(at));
            }
            _ => {
                return Err(corrupt("neither a member nor the directory of the zip begins here", at).text(signature));
            }
        };
        if phase < self.phase {
            return Err(corrupt("the records of the zip are out of order", at).text(signature));
        }
        let Listing::Behind(directory) = &mut self.listing else {
            return match phase {
                Phase::Members => self.local_header(input),
                _ => Err(corrupt("a part of the directory is between the members of the zip", at).text(signature)),
            };
        };
        let begun = match phase {
            Phase::Members => return self.local_header(input),
            Phase::Entries => entry(directory, &self.wanted, input)?,
            Phase::Signature => skip_signature(input)?,
            Phase::WideEnd => wide_end(directory, input)?,
            Phase::WideLocator => skip_locator(input)?,
            Phase::End => end(directory, input)?,
        };
        if !begun {
            return Ok(Some(Piece::Hungry));
        }
        self.phase = phase;
        Ok(None)
    }

    fn local_header(&mut self, input: &mut Input) -> Result<Option<Piece>> {
        let at = input.position();
        let Some(bytes) = whole(input, record::LOCAL_SIZE, Header::local_size, "a member's header is cut off")? else {
            return Ok(Some(Piece::Hungry));
        };
        let header = Header::local(bytes);
        let size = bytes.len();
        let name = names::decode(&header.name, header.flags, &header.extra);
        let wanted = !header.is_folder() && self.wanted.wants(&name);
        match &self.listing {
            Listing::Behind(directory) if directory.members() >= self.max_members => {
                return Err(too_many(self.max_members, at));
            }
            Listing::Behind(_) => {}
            Listing::Known(part) => part.begins(at, &name, wanted)?,
        }
        input.used(size);
        self.any_wanted |= wanted;
        let spare = self.spare.take().filter(|_| self.spare_method == header.method);
        let member = Member::new(at, input.position(), header, name, wanted, spare)?;
        let begin = wanted.then(|| Piece::Begin(Some(member.name.clone())));
        self.member = Some(member);
        Ok(begin)
    }

    /// Fails if anything follows the end.
    fn after_end(&mut self, input: &mut Input) -> Result<Option<Piece>> {
        let at = input.position();
        if input.available() > 0 {
            let shown = input.head(16);
            return Err(Error::data("garbage after the end of the zip").byte(at).text(shown).hint(
                "the archive is complete up to this byte; cut the file there if the rest is not needed, else get it \
                 again",
            ));
        }
        if !input.ended() {
            return Ok(Some(Piece::Hungry));
        }
        if let Listing::Behind(directory) = &self.listing
            && self.wanted.asks()
            && !self.any_wanted
        {
            let names = || directory.names();
            return Err(none_selected("zip", names(), names().count() as u64));
        }
        Ok(Some(Piece::Done))
    }
}

/// Reads an entry of the directory; `false` if it has not come yet.
fn entry(directory: &mut Directory, wanted: &MemberFilter, input: &mut Input) -> Result<bool> {
    let at = input.position();
    let missing = "an entry of its directory is cut off";
    let Some(bytes) = whole(input, record::ENTRY_SIZE, Header::entry_size, missing)? else {
        return Ok(false);
    };
    let header = Header::entry(bytes);
    let size = bytes.len();
    directory.begins(at);
    let name = names::decode(&header.name, header.flags, &header.extra);
    let wanted = !header.is_folder() && wanted.wants(&name);
    directory.entry(at, &header, &name, wanted)?;
    input.used(size);
    Ok(true)
}

/// Like [`entry`], for the zip64 end.
fn wide_end(directory: &mut Directory, input: &mut Input) -> Result<bool> {
    let at = input.position();
    let missing = "the zip64 end of its directory is cut off";
    let size = |fixed: &[u8]| {
        let rest = record::u64_at(fixed, 4).max((record::WIDE_END_SIZE - 12) as u64);
        usize::try_from(rest).unwrap_or(usize::MAX).saturating_add(12)
    };
    let Some(fixed) = take(input, record::WIDE_END_SIZE, missing)? else {
        return Ok(false);
    };
    // Extensible data may follow in the record, but little.
    if size(fixed) > 1 << 16 {
        return Err(corrupt("the zip64 end of the directory has an impossible size", at));
    }
    let Some(bytes) = whole(input, record::WIDE_END_SIZE, size, missing)? else {
        return Ok(false);
    };
    let size = bytes.len();
    directory.wide_end(at, bytes)?;
    input.used(size);
    Ok(true)
}

/// Like [`entry`], for the end.
fn end(directory: &mut Directory, input: &mut Input) -> Result<bool> {
    let at = input.position();
    let size = |fixed: &[u8]| record::END_SIZE + usize::from(record::u16_at(fixed, 20));
    let Some(bytes) = whole(input, record::END_SIZE, size, "the end of its directory is cut off")? else {
        return Ok(false);
    };
    let size = bytes.len();
    directory.end(at, bytes)?;
    input.used(size);
    Ok(true)
}

/// The next `count` bytes; `None` if they have not come yet, an error if they never will.
fn take<'a>(input: &'a mut Input, count: usize, missing: &str) -> Result<Option<&'a [u8]>> {
    if input.available() < count {
        if input.ended() {
            return Err(cut("zip", missing, input.position() + input.available() as u64));
        }
        return Ok(None);
    }
    Ok(Some(input.head(count)))
}

/// The next record; `size` computes its length from its fixed part.
fn whole<'a>(
    input: &'a mut Input,
    fixed: usize,
    size: impl Fn(&[u8]) -> usize,
    missing: &str,
) -> Result<Option<&'a [u8]>> {
    match take(input, fixed, missing)? {
        None => Ok(None),
        Some(bytes) => {
            let size = size(bytes);
            take(input, size, missing)
        }
    }
}

/// Skips a signature of the directory, which is not verified.
fn skip_signature(input: &mut Input) -> Result<bool> {
    let size = |fixed: &[u8]| 6 + usize::from(record::u16_at(fixed, 4));
    skip(input, 6, size, "the signature of its directory is cut off")
}

fn skip_locator(input: &mut Input) -> Result<bool> {
    skip(input, record::WIDE_LOCATOR_SIZE, |_| record::WIDE_LOCATOR_SIZE, "the zip64 locator is cut off")
}

fn skip(input: &mut Input, fixed: usize, size: impl Fn(&[u8]) -> usize, missing: &str) -> Result<bool> {
    let Some(bytes) = whole(input, fixed, size, missing)? else {
        return Ok(false);
    };
    let size = bytes.len();
    input.used(size);
    Ok(true)
}
