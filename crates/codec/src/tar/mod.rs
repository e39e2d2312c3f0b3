//! tar archives, unpacked while they arrive.
//!
//! ```text
//!  [L, K: long names │ x: pax records] │ header │ data, padded to 512 │ … │ zeros, to the end
//!   ── tell more of the next member ──   Begin    Text…, End               Done
//! ```
//!
//! It reads the forms of v7, ustar, GNU, star and pax, with names of any length and sizes of any kind. The checksum of
//! each header is checked. The data has none, so damage inside it is only found if the tar or the member is compressed.
//!
//! - **Members** are regular files. Folders, devices and labels are skipped, and so are links: the data of a hard link
//!   belongs to an earlier member, which is read under its own name; the target of a symbolic link is in the archive
//!   under its own name, or not at all. If `members` selects a hard link but not its file, that is an error. A name
//!   that occurs twice (`tar --append`) is read twice.
//! - **Names** are data and never a path: `../../x` and `/etc/passwd` are names as any other. `./` at the beginning
//!   (`tar c .`) is removed; globs may be written with it or without.
//! - **The end** is at least one block of zeros. Without it, an archive that was cut between two members would be a
//!   short file without an error. So a missing end is an error, although GNU tar accepts it. Only zeros may follow; GNU
//!   tar ignores anything there, such as the second of two archives that were joined by `cat`.
//! - **Refused** are sparse files, whose data lacks the holes, members that continue in another volume, and unknown
//!   kinds of members, unless they are not selected.
//!
//! The parser is our own: the crates that are well kept (`tar`, `async-tar` and its like) pull from a reader and would
//! block on input, or own it; a header is 512 bytes, and there is nothing else to it.

mod header;
mod pax;
#[cfg(test)]
mod tests;

use millstream_core::{Error, Result};

use crate::frame::{corrupt, cut};
use crate::input::{Input, PIECE, Piece};
use crate::members::{MemberFilter, NAMES_SHOWN, check_name, none_selected, too_many};
use header::{Header, is_zero};
use pax::Records;

pub(crate) use header::{BLOCK, Judged, has_magic, judge};

/// The most bytes of extension headers before a member. Usual ones are far smaller, even with all attributes.
const EXTENSION_LIMIT: u64 = 1 << 20;

/// Of a name, this many bytes are kept for messages.
const SHOWN: usize = 120;

/// What the next bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Header,
    /// The data of an extension header of this kind.
    Extension {
        kind: u8,
        size: u64,
    },
    /// The data of a selected member, and its padding.
    Data {
        left: u64,
        padding: u64,
    },
    /// Bytes to skip.
    Skip {
        left: u64,
    },
    /// Possibly the data of a hard link: some writers give its size, but no data.
    Linked {
        size: u64,
    },
    /// Blocks with the rest of a sparse file's map, then its data.
    Map {
        data: u64,
    },
    /// Zeros.
    End,
}

/// A walk through an archive.
pub(crate) struct Walk {
    wanted: MemberFilter,
    max_members: u64,
    members: u64,
    any_wanted: bool,
    /// The first names of members with data, and how many there are.
    names: Vec<Box<str>>,
    files: u64,
    state: State,
    /// The member that is being read.
    member: Option<String>,
    /// The records for the next member.
    records: Records,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
    /// The records for all members that follow.
    globals: Records,
}

impl Walk {
    /// A walk that gives the members that match `globs` (all if there are none), of at most `max_members`.
    pub(crate) fn new(globs: &[String], max_members: u64) -> Result<Self> {
        Ok(Walk {
            wanted: MemberFilter::new(globs)?,
            max_members,
            members: 0,
            any_wanted: false,
            names: Vec::new(),
            files: 0,
            state: State::Header,
            member: None,
            records: Records::default(),
            long_name: None,
            long_link: None,
            globals: Records::default(),
        })
    }

    /// The member that is being read, wanted or not.
    pub(crate) fn current_member(&self) -> Option<&str> {
        self.member.as_deref()
    }

    /// The next step.
    pub(crate) fn next(&mut self, input: &mut Input) -> Result<Piece> {
        loop {
            let step = match self.state {
                State::Header => self.header(input)?,
                State::Extension { kind, size } => self.extension(input, kind, size)?,
                State::Data { left, padding } => Some(self.data(input, left, padding)?),
                State::Skip { left } => self.skip(input, left)?,
                State::Linked { size } => self.linked(input, size),
                State::Map { data } => self.map(input, data)?,
                State::End => Some(self.end(input)?),
            };
            if let Some(piece) = step {
                return Ok(piece);
            }
        }
    }

    /// Reads the next block. `None` if it gives nothing.
    fn header(&mut self, input: &mut Input) -> Result<Option<Piece>> {
        self.member = None;
        let at = input.position();
        if input.available() < BLOCK {
            return if input.ended() { Err(no_end(input)) } else { Ok(Some(Piece::Hungry)) };
        }
        let Some(block) = input.head(BLOCK).first_chunk::<BLOCK>() else {
            return Ok(Some(Piece::Hungry));
        };
        if is_zero(block) {
            if self.has_records() {
                return Err(corrupt("a tar header describes the next member, but there is none", at));
            }
            self.state = State::End;
            return Ok(None);
        }
        let header = Header::parse(block, at)?;
        input.used(BLOCK);
        match header.kind {
            b'L' | b'K' | b'x' | b'X' | b'g' => self.begin_extension(&header, at)?,
            _ => return self.begins(header, at),
        }
        Ok(None)
    }

    /// Whether there are records for a member that has not come.
    fn has_records(&self) -> bool {
        self.long_name.is_some() || self.long_link.is_some() || self.records != Records::default()
    }

    /// Starts an extension header, whose data describes what follows.
    fn begin_extension(&mut self, header: &Header, at: u64) -> Result<()> {
        if header.size > EXTENSION_LIMIT {
            let what = format!(
                "a tar header has {} bytes about the next member, more than the {EXTENSION_LIMIT} allowed",
                header.size
            );
            return Err(Error::refused(what).byte(at).hint("pack the archive again without extended attributes"));
        }
        self.state = State::Extension { kind: header.kind, size: header.size };
        Ok(())
    }

    fn extension(&mut self, input: &mut Input, kind: u8, size: u64) -> Result<Option<Piece>> {
        let at = input.position();
        // At most 1 MiB, see `begin_extension`.
        let (size, all) = (size as usize, size as usize + padding(size) as usize);
        if input.available() < all {
            if input.ended() {
                return Err(cut("tar", "its description of the next member is cut off", at + input.available() as u64));
            }
            return Ok(Some(Piece::Hungry));
        }
        let data = input.head(size);
        match kind {
            b'L' => self.long_name = Some(header::text(data).to_vec()),
            b'K' => self.long_link = Some(header::text(data).to_vec()),
            b'g' => self.globals.add(data).map_err(|what| corrupt(what, at))?,
            _ => self.records.add(data).map_err(|what| corrupt(what, at))?,
        }
        input.used(all);
        self.state = State::Header;
        Ok(None)
    }

    /// Starts a member of any kind.
    fn begins(&mut self, header: Header, at: u64) -> Result<Option<Piece>> {
        self.members += 1;
        if self.members > self.max_members {
            return Err(too_many(self.max_members, at));
        }
        let records = std::mem::take(&mut self.records).over(&self.globals);
        let long_name = self.long_name.take();
        let long_link = self.long_link.take();
        let name = records.name().or(long_name.as_deref()).unwrap_or(&header.name);
        let name = String::from_utf8_lossy(name);
        let size = records.size().unwrap_or(header.size);
        self.member = Some(short(&name).to_owned());
        let skip = State::Skip { left: size + padding(size) };
        self.state = skip;
        match header.kind {
            0 | b'0' | b'7' if !name.ends_with('/') => {
                return self.file(&name, size, records.is_sparse(), at);
            }
            // v7 marks folders by their names, and labels and lists of folders are no files.
            0 | b'0' | b'7' | b'V' | b'D' => {}
            b'1' => {
                let link = records.link().or(long_link.as_deref()).unwrap_or(&header.link);
                self.check_link(&name, &String::from_utf8_lossy(link), at)?;
                self.state = if size == 0 { State::Header } else { State::Linked { size } };
            }
            // These have no data, whatever their size says.
            b'2'..=b'6' => self.state = State::Header,
            b'S' => {
                self.refuse_if_wanted(&name, || sparse(at))?;
                if header.map_continues {
                    self.state = State::Map { data: size };
                }
            }
            b'M' => self.refuse_if_wanted(&name, || {
                Error::refused("the member begins in another volume of the tar, which is not supported")
                    .byte(at)
                    .hint("join the volumes first, or leave the member out by `members`")
            })?,
            other => self.refuse_if_wanted(&name, || {
                Error::refused("the member is of a kind that is not known")
                    .byte(at)
                    .text([other])
                    .hint("leave it out by `members`, or pack the archive again with `tar --format=posix`")
            })?,
        }
        Ok(None)
    }

    /// Starts a regular file. The state is set as if it were not selected.
    fn file(&mut self, name: &str, size: u64, is_sparse: bool, at: u64) -> Result<Option<Piece>> {
        self.files += 1;
        if self.names.len() < NAMES_SHOWN {
            let shown = short(name);
            self.names.push(shown[..shown.floor_char_boundary(SHOWN)].into());
        }
        if !self.wants(name) {
            return Ok(None);
        }
        check_name(name).map_err(|error| error.byte(at))?;
        if is_sparse {
            return Err(sparse(at));
        }
        self.any_wanted = true;
        self.state = State::Data { left: size, padding: padding(size) };
        Ok(Some(Piece::Begin(Some(short(name).to_owned()))))
    }

    /// Whether the member is selected, by its name in the archive.
    fn wants(&self, name: &str) -> bool {
        let short = short(name);
        if self.wanted.asks() {
            return self.wanted.wants(short) || self.wanted.wants(name);
        }
        // `._a.csv` is what macOS adds to a tar about `a.csv`.
        let of_macos = short.rsplit('/').next().is_some_and(|last| last.starts_with("._"));
        !of_macos && self.wanted.wants(short)
    }

    fn refuse_if_wanted(&self, name: &str, refusal: impl FnOnce() -> Error) -> Result<()> {
        if self.wants(name) { Err(refusal()) } else { Ok(()) }
    }

    /// Fails for a selected hard link whose file is not selected: its data would be left out silently.
    fn check_link(&self, name: &str, to: &str, at: u64) -> Result<()> {
        if !self.wanted.asks() || !self.wants(name) || self.wants(to) {
            return Ok(());
        }
        Err(Error::refused("the member is a hard link to another that `members` leaves out")
            .byte(at)
            .text(to)
            .hint("the data is in the archive under that name: add it to `members`"))
    }

    fn data(&mut self, input: &mut Input, left: u64, padding: u64) -> Result<Piece> {
        if left == 0 {
            self.state = State::Skip { left: padding };
            return Ok(Piece::End);
        }
        let Some(text) = input.take(usize::try_from(left).unwrap_or(PIECE).min(PIECE)) else {
            return if input.ended() { Err(missing(left, input)) } else { Ok(Piece::Hungry) };
        };
        let left = left - text.len() as u64;
        if left == 0 {
            self.state = State::Skip { left: padding };
            return Ok(Piece::Last(text));
        }
        self.state = State::Data { left, padding };
        Ok(Piece::Bytes(text))
    }

    fn skip(&mut self, input: &mut Input, left: u64) -> Result<Option<Piece>> {
        if left == 0 {
            self.state = State::Header;
            return Ok(None);
        }
        let part = usize::try_from(left).unwrap_or(usize::MAX).min(input.available());
        if part == 0 {
            return if input.ended() { Err(missing(left, input)) } else { Ok(Some(Piece::Hungry)) };
        }
        input.used(part);
        self.state = State::Skip { left: left - part as u64 };
        Ok(None)
    }

    /// Skips the data of a hard link with a size, unless a header or the end follows.
    fn linked(&mut self, input: &mut Input, size: u64) -> Option<Piece> {
        if input.available() < BLOCK && !input.ended() {
            return Some(Piece::Hungry);
        }
        let block = input.head(BLOCK);
        let has_none = block.len() < BLOCK || is_zero(block) || header::checksum_is_right(block);
        self.state = if has_none { State::Header } else { State::Skip { left: size + padding(size) } };
        None
    }

    fn map(&mut self, input: &mut Input, data: u64) -> Result<Option<Piece>> {
        if input.available() < BLOCK {
            if input.ended() {
                let byte = input.position() + input.available() as u64;
                return Err(cut("tar", "the map of a sparse member is cut off", byte));
            }
            return Ok(Some(Piece::Hungry));
        }
        let goes_on = input.head(BLOCK)[header::MAP_CONTINUES_AGAIN] != 0;
        input.used(BLOCK);
        if !goes_on {
            self.state = State::Skip { left: data + padding(data) };
        }
        Ok(None)
    }

    /// Nothing but zeros may follow.
    fn end(&mut self, input: &mut Input) -> Result<Piece> {
        while let zeros @ 1.. = input.first().iter().take_while(|&&byte| byte == 0).count() {
            input.used(zeros);
        }
        if input.available() > 0 {
            let at = input.position();
            let shown = input.head(16);
            return Err(Error::data("data after the end of the tar").byte(at).text(shown).hint(
                "the archive is complete up to this byte: cut the file there if the rest is not needed; archives that \
                 were joined must be read one by one",
            ));
        }
        if !input.ended() {
            return Ok(Piece::Hungry);
        }
        if self.wanted.asks() && !self.any_wanted {
            return Err(none_selected("tar", self.names.iter().map(AsRef::as_ref), self.files));
        }
        Ok(Piece::Done)
    }
}

/// The padding after `size` bytes.
fn padding(size: u64) -> u64 {
    size.next_multiple_of(BLOCK as u64) - size
}

/// A name without `./` at its beginning.
fn short(name: &str) -> &str {
    let mut short = name;
    while let Some(rest) = short.strip_prefix("./") {
        short = rest.trim_start_matches('/');
    }
    if short.is_empty() { name } else { short }
}

/// The error of an archive that ends where a header is expected.
fn no_end(input: &mut Input) -> Error {
    let byte = input.position() + input.available() as u64;
    if !is_zero(input.head(BLOCK)) {
        return cut("tar", "the header of a member is cut off", byte);
    }
    cut("tar", "the zeros at its end are missing", byte).hint(
        "the file was cut short, or is still being written; if its writer just left the end out, and nothing is \
         missing, add it: `head -c 1024 /dev/zero >> FILE`",
    )
}

fn missing(left: u64, input: &Input) -> Error {
    cut("tar", &format!("{left} bytes of a member are missing"), input.position())
}

fn sparse(at: u64) -> Error {
    Error::refused("the member is a sparse file, stored without its holes, which is not supported")
        .byte(at)
        .hint("pack the archive again without `--sparse`, or leave the member out by `members`")
}
