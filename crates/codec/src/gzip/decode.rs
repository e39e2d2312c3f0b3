//! Decodes one gzip member: header, deflate data, trailer.
//!
//! ```text
//!  1f 8b 08 flags time(4) xfl os │ [length(2) extra] [name… 0] [comment… 0] [check(2)] │ deflate… │ crc32(4) length(4)
//!  ────────── Fixed ───────────── │ ── only if their flags are set ─────────────────── │ Body     │ Trailer
//! ```

use std::sync::Arc;

use bytes::Bytes;
use crc32fast::Hasher;
use millstream_core::Result;
use millstream_core::helpers::HelperPool;

use crate::deflate::Links;
use crate::frame::{Frame, Progress, corrupt};
use crate::inflate::Inflate;

const FIXED: usize = 10;
const TRAILER: usize = 8;

const HAS_CHECK: u8 = 1 << 1;
const HAS_EXTRA: u8 = 1 << 2;
const HAS_NAME: u8 = 1 << 3;
const HAS_COMMENT: u8 = 1 << 4;
const RESERVED: u8 = 0b1110_0000;

/// The header and trailer around the deflate data, for a search in the middle of a unit.
const LINKS: Links = Links { header: header_length, trailer: TRAILER };

/// The length of the header that `bytes` begin with, if it is whole and plausible.
fn header_length(bytes: &[u8]) -> Option<usize> {
    let (fixed, _) = bytes.split_at_checked(FIXED)?;
    let flags = fixed[3];
    if fixed[..2] != super::MAGIC || fixed[2] != 8 || flags & RESERVED != 0 {
        return None;
    }
    let mut length = FIXED;
    if flags & HAS_EXTRA != 0 {
        let extra = bytes.get(length..length + 2)?;
        length += 2 + usize::from(u16::from_le_bytes([extra[0], extra[1]]));
    }
    for flag in [HAS_NAME, HAS_COMMENT] {
        if flags & flag != 0 {
            length += memchr::memchr(0, bytes.get(length..)?)? + 1;
        }
    }
    if flags & HAS_CHECK != 0 {
        length += 2;
    }
    (length <= bytes.len()).then_some(length)
}

/// The part that the next byte belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Fixed,
    ExtraLength,
    Extra { left: usize },
    Name,
    Comment,
    Check,
    Body,
    Trailer,
}

/// Decodes members, one after the other.
#[derive(Debug)]
pub(super) struct Member {
    part: Part,
    /// The bytes of a part of fixed size so far.
    gathered: Vec<u8>,
    flags: u8,
    header: Hasher,
    inflate: Inflate,
    text: Hasher,
    /// Bytes of text, modulo 2^32 as the trailer has it.
    length: u32,
    /// Bytes of the unit used so far.
    position: u64,
}

impl Member {
    pub(super) fn new() -> Self {
        Member {
            part: Part::Fixed,
            gathered: Vec::with_capacity(FIXED),
            flags: 0,
            header: Hasher::new(),
            inflate: Inflate::new(),
            text: Hasher::new(),
            length: 0,
            position: 0,
        }
    }

    /// The size of the current part of fixed size.
    fn part_size(&self) -> usize {
        match self.part {
            Part::Fixed => FIXED,
            Part::ExtraLength | Part::Check => 2,
            Part::Trailer => TRAILER,
            _ => 0,
        }
    }

    /// Reads the header or trailer from `input`. Returns the bytes used, and whether the member has ended.
    fn frame_bytes(&mut self, input: &[u8]) -> Result<Progress> {
        let part = self.part;
        let used = match part {
            Part::Extra { left } => {
                let used = left.min(input.len());
                self.part = Part::Extra { left: left - used };
                used
            }
            Part::Name | Part::Comment => memchr::memchr(0, input).map_or(input.len(), |zero| zero + 1),
            _ => {
                let used = (self.part_size() - self.gathered.len()).min(input.len());
                self.gathered.extend_from_slice(&input[..used]);
                used
            }
        };
        let bytes = &input[..used];
        if part != Part::Check && part != Part::Trailer {
            self.header.update(bytes);
        }
        self.position += used as u64;
        let ended = match part {
            Part::Fixed => {
                self.check_fixed()?;
                if self.gathered.len() == FIXED {
                    self.after(Part::Fixed);
                }
                false
            }
            Part::ExtraLength if self.gathered.len() == 2 => {
                let left = usize::from(u16::from_le_bytes([self.gathered[0], self.gathered[1]]));
                self.gathered.clear();
                self.part = Part::Extra { left };
                if left == 0 {
                    self.after(self.part);
                }
                false
            }
            Part::Extra { left } if left == used => {
                self.after(part);
                false
            }
            Part::Name | Part::Comment if bytes.last() == Some(&0) => {
                self.after(part);
                false
            }
            Part::Check if self.gathered.len() == 2 => {
                self.compare_check()?;
                self.after(part);
                false
            }
            Part::Trailer if self.gathered.len() == TRAILER => {
                self.compare_trailer()?;
                true
            }
            _ => false,
        };
        Ok(Progress { used, ended })
    }

    /// Moves to the first part after `part` that the flags announce.
    fn after(&mut self, part: Part) {
        let order = [
            (HAS_EXTRA, Part::ExtraLength),
            (HAS_NAME, Part::Name),
            (HAS_COMMENT, Part::Comment),
            (HAS_CHECK, Part::Check),
        ];
        let passed = match part {
            Part::Fixed => 0,
            Part::ExtraLength | Part::Extra { .. } => 1,
            Part::Name => 2,
            Part::Comment => 3,
            Part::Check | Part::Body | Part::Trailer => 4,
        };
        self.gathered.clear();
        let next = order.iter().skip(passed).find(|(flag, _)| self.flags & flag != 0);
        self.part = next.map_or(Part::Body, |(_, part)| *part);
        if self.part == Part::Body {
            self.inflate.begin(self.position);
        }
    }

    /// Checks as much of the fixed part as has arrived.
    fn check_fixed(&mut self) -> Result<()> {
        let start = self.position - self.gathered.len() as u64;
        let fault = |index: u64, what: String| Err(corrupt(what, start + index).text(&self.gathered));
        match self.gathered.as_slice() {
            [first, ..] if *first != super::MAGIC[0] => fault(0, "not gzip: the first bytes are wrong".to_owned()),
            [_, second, ..] if *second != super::MAGIC[1] => fault(1, "not gzip: the first bytes are wrong".to_owned()),
            [_, _, method, ..] if *method != 8 => {
                fault(2, format!("the gzip header names method {method}; only 8, deflate, exists"))
            }
            [_, _, _, flags, ..] if flags & RESERVED != 0 => {
                fault(3, format!("the gzip header has reserved flags: {flags:#04x}"))
            }
            [_, _, _, flags, ..] => {
                self.flags = *flags;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn compare_check(&mut self) -> Result<()> {
        let said = u16::from_le_bytes([self.gathered[0], self.gathered[1]]);
        let is = (self.header.clone().finalize() & 0xffff) as u16;
        if said == is {
            return Ok(());
        }
        Err(corrupt(
            format!("wrong checksum of the gzip header: its bytes give {is:04x}, it says {said:04x}"),
            self.position - 2,
        ))
    }

    fn compare_trailer(&mut self) -> Result<()> {
        let word = |at: usize| {
            u32::from_le_bytes([self.gathered[at], self.gathered[at + 1], self.gathered[at + 2], self.gathered[at + 3]])
        };
        let (said, is) = (word(0), self.text.clone().finalize());
        if said != is {
            return Err(corrupt(
                format!("wrong gzip checksum: the decoded bytes give {is:08x}, the trailer says {said:08x}"),
                self.position - TRAILER as u64,
            ));
        }
        let (said, is) = (word(4), self.length);
        if said != is {
            return Err(corrupt(
                format!("wrong gzip length: {is} bytes were decoded, the trailer says {said} (both modulo 4 GiB)"),
                self.position - 4,
            ));
        }
        Ok(())
    }
}

impl Frame for Member {
    fn begin(&mut self, at: u64) {
        self.part = Part::Fixed;
        self.gathered.clear();
        self.flags = 0;
        self.header.reset();
        self.text.reset();
        self.length = 0;
        self.position = at;
    }

    fn decode(&mut self, input: &[u8], output: &mut Vec<u8>, room: usize) -> Result<Progress> {
        let full = output.len() + room;
        let mut used = 0;
        loop {
            if self.part != Part::Body {
                let progress = self.frame_bytes(&input[used..])?;
                used += progress.used;
                if progress.ended {
                    return Ok(Progress { used, ended: true });
                }
                if self.part != Part::Body && used == input.len() {
                    return Ok(Progress { used, ended: false });
                }
                continue;
            }
            let before = output.len();
            if before == full {
                return Ok(Progress { used, ended: false });
            }
            let progress = self.inflate.decode(&input[used..], output, full - before)?;
            used += progress.used;
            self.position += progress.used as u64;
            self.text.update(&output[before..]);
            self.length = self.length.wrapping_add((output.len() - before) as u32);
            if progress.ended {
                self.part = Part::Trailer;
                self.gathered.clear();
                continue;
            }
            let stuck = progress.used == 0 && output.len() == before;
            if stuck || used == input.len() {
                return Ok(Progress { used, ended: false });
            }
        }
    }

    fn look_ahead(&mut self, helpers: &Arc<dyn HelperPool>, at: u64, coming: &mut dyn Iterator<Item = &Bytes>) {
        self.inflate.look_ahead(helpers, LINKS, at, coming);
    }

    fn wants(&self) -> usize {
        self.inflate.wants()
    }

    fn held(&self) -> usize {
        self.inflate.held()
    }

    fn missing(&self) -> String {
        match self.part {
            Part::Body => self.inflate.missing(),
            Part::Trailer => {
                let left = TRAILER - self.gathered.len();
                format!("{left} of the {TRAILER} bytes of the trailer are missing")
            }
            _ => "the header is cut off".to_owned(),
        }
    }
}
