//! Unpacks one unit: bytes in, text out. It does detection, containers, decoding and limits, but no I/O.
//!
//! ```text
//!  feed ─▶ Input ─▶ container ─────────▶ content ────────────▶ limits ─▶ Begin, Text…, End, …, Done
//!                   raw: the unit itself  plain, or a codec,
//!                   zip, tar: member by   by its first bytes
//!                   member                   │ of the unit itself
//!                          ▲                 │
//!                          └── tape ◀────────┘ its text is a tar
//! ```
//!
//! A zip is known by the first bytes of the unit. A tar is known by the first bytes of its text: the text of the unit's
//! content is then walked through, and the contents that are given are those of its members.
//!
//! A part of a zip that is read by its directory is such a container, too, see [`Unpack::of_part`].
//!
//! It is pulled: each call of [`Unpack::next`] does a bounded piece of work and holds a bounded amount of memory,
//! whatever the data says.

mod content;
mod hidden;
mod promise;
mod raw;
mod tar_unit;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use millstream_core::codec::Limits;
use millstream_core::helpers::{HelperPool, NoHelpers};
use millstream_core::spec::Fault;
use millstream_core::{Error, Result};

pub use promise::{Packing, codec_by_name, has_directory_by_name, packing_by_name};

use crate::input::{Input, Piece};
use crate::ratio::check_ratio;
use crate::zip::ZipPlan;
use crate::{CODECS, members, tar, zip};
use content::{Content, HEAD, Pulled};
use raw::Raw;
use tar_unit::TarUnit;

/// How a unit is unpacked.
#[derive(Debug, Clone, Default)]
pub struct UnpackOptions {
    /// Globs that select members of an archive, as for paths: `*` stays inside a folder, `**` does not. Empty: all
    /// files except those that macOS adds (`__MACOSX/…`, `.DS_Store`, in a tar `._…`).
    pub members: Vec<String>,
    /// Limits against bombs.
    pub limits: Limits,
    /// The codec or archive that the unit's name suggests, see [`codec_by_name`]. It only breaks ties: bytes that are
    /// neither a known codec nor text are then an error, and so is an empty file; a tar without a magic is one if it
    /// is promised.
    pub expected: Option<&'static str>,
}

/// How many bytes [`is_packed`] needs, if the unit has as many.
pub const PACKED_HEAD: usize = tar::BLOCK;

/// Whether a unit that begins with `head` is compressed or an archive, so that ranges of it are not ranges of its text.
/// `expected` is what its name suggests.
pub fn is_packed(head: &[u8], expected: Option<&str>) -> bool {
    let start = &head[..head.len().min(HEAD)];
    zip::recognises(start, expected == Some("zip"))
        || CODECS.iter().any(|entry| (entry.build)().recognises(start))
        || tar::judge(head, promise::is_tar(expected)) == tar::Judged::Yes
}

/// Whether a unit that begins with `head` (four bytes are enough) is a zip archive with members.
pub fn is_zip(head: &[u8]) -> bool {
    zip::begins_member(head)
}

/// All faults of the globs of `members`; their paths are indices into the list.
pub fn check_members(globs: &[String]) -> Vec<Fault> {
    members::check(globs)
}

/// What unpacking a unit gives next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unpacked {
    /// More bytes are needed, or the end of the unit.
    Hungry,
    /// A content begins: the unit itself (`None`), or a member of an archive. A member's name is data: it may contain
    /// `..` or begin with `/`. Never use it as a path.
    Begin {
        /// The member's name.
        member: Option<String>,
    },
    /// The next text of the content: never empty, at most 512 KiB; or all of it, up to 4 MiB, if the unit is at most 1
    /// MiB of gzip or zstd and was fed to its end before the first call.
    Text(Bytes),
    /// The content is complete, and its checksums are right.
    End,
    /// The unit is complete.
    Done,
}

enum Container {
    Unknown,
    Raw(Raw),
    Zip(Box<zip::Walk>),
    Tar(Box<TarUnit>),
}

/// Unpacks one unit. Errors name the byte of the unit (and the member); the caller adds the unit.
///
/// ```
/// use millstream_codec::{Unpack, UnpackOptions, Unpacked};
///
/// let mut unpack = Unpack::new(UnpackOptions::default());
/// unpack.feed("some text".into());
/// unpack.end();
/// assert_eq!(unpack.next()?, Unpacked::Begin { member: None });
/// assert_eq!(unpack.next()?, Unpacked::Text("some text".into()));
/// assert_eq!(unpack.next()?, Unpacked::End);
/// assert_eq!(unpack.next()?, Unpacked::Done);
/// # Ok::<(), millstream_core::Error>(())
/// ```
pub struct Unpack {
    options: UnpackOptions,
    /// Helpers that decode parts of a large unit ahead while they are idle.
    helpers: Arc<dyn HelperPool>,
    input: Input,
    container: Container,
    content: Option<Content>,
    member: Option<String>,
    /// The position where the content begins: in a tar, that in the tar.
    content_at: u64,
    content_text: u64,
    /// Text so far. For a part of an archive, with the text before it by the directory.
    unit_text: u64,
    part: Option<PartSoFar>,
    codec: &'static str,
    /// Whether the unit is known to be plain text.
    is_plain: bool,
    /// The largest position so far: positions can go back, since bytes can be put back.
    furthest: u64,
    failed: Option<Error>,
}

/// The text of a part of an archive so far.
struct PartSoFar {
    begin: u64,
    /// Text of the members, and of all before the part.
    member_text: u64,
}

impl std::fmt::Debug for Unpack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unpack")
            .field("codec", &self.codec)
            .field("position", &self.compressed_position())
            .field("member", &self.member)
            .finish_non_exhaustive()
    }
}

impl Unpack {
    /// Nothing has been fed yet.
    pub fn new(options: UnpackOptions) -> Self {
        Unpack {
            options,
            helpers: Arc::new(NoHelpers),
            input: Input::default(),
            container: Container::Unknown,
            content: None,
            member: None,
            content_at: 0,
            content_text: 0,
            unit_text: 0,
            part: None,
            codec: "",
            is_plain: false,
            furthest: 0,
            failed: None,
        }
    }

    /// A part of a zip, by the number that it has in the archive's plan. Feed it the bytes of [`ZipPlan::range`]; it
    /// gives the members that begin in it. `options` are those of the plan.
    pub fn of_part(options: UnpackOptions, plan: Arc<ZipPlan>, part: usize) -> Result<Self> {
        let walk = zip::Walk::of_part(&options.members, plan, part)?;
        let mut unpack = Unpack::new(options);
        if let Some((bytes, text_before)) = walk.part() {
            unpack.input = Input::of_part(bytes.start);
            unpack.unit_text = text_before;
            unpack.part = Some(PartSoFar { begin: bytes.start, member_text: text_before });
        }
        unpack.codec = "zip";
        unpack.container = Container::Zip(Box::new(walk));
        Ok(unpack)
    }

    /// Some bytes of a unit that is plain text, whatever they look like.
    pub fn of_text(options: UnpackOptions) -> Self {
        Unpack { container: Container::Raw(Raw::Begin), is_plain: true, ..Unpack::new(options) }
    }

    /// Lets idle helpers decode parts of the unit ahead. The output is the same.
    pub fn with_helpers(mut self, helpers: Arc<dyn HelperPool>) -> Self {
        self.helpers = helpers;
        self
    }

    /// The next bytes of the unit.
    pub fn feed(&mut self, chunk: Bytes) {
        self.input.feed(chunk);
    }

    /// Ends the unit: there are no more bytes.
    pub fn end(&mut self) {
        self.input.end();
    }

    /// The next step. After an error it returns the same error again; after [`Unpacked::Done`], that again.
    #[allow(clippy::should_implement_trait, reason = "it is pulled like an iterator, but fed in between")]
    pub fn next(&mut self) -> Result<Unpacked> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = self.step();
        self.furthest = self.compressed_position();
        result.map_err(|error| {
            let error = match self.current_member() {
                Some(member) => error.in_member(member),
                None => error,
            };
            self.failed = Some(error.clone());
            error
        })
    }

    /// How the unit is packed: `plain`, `gzip`, `zstd`, `bzip2`, `xz`, `zip`, `tar`, or (compressed as a whole)
    /// `tar.gz`, `tar.zst`, `tar.bz2` or `tar.xz`; empty until it is known.
    pub fn codec(&self) -> &'static str {
        self.codec
    }

    /// Bytes of the unit that have been used so far. It only grows.
    pub fn compressed_position(&self) -> u64 {
        self.furthest.max(self.position())
    }

    /// How many more bytes idle helpers could decode ahead if they were fed now. 0 if no helper is idle.
    pub fn wants(&self) -> usize {
        let here = self.input.available() + self.unit_content().map_or(0, Content::waiting);
        self.unit_content().map_or(0, Content::wants).saturating_sub(here)
    }

    /// Bytes of memory for text that was decoded ahead, and for input that is not used yet.
    pub fn held(&self) -> usize {
        self.input.available() + self.unit_content().map_or(0, Content::held)
    }

    /// The content that the bytes of the unit are pushed to.
    fn unit_content(&self) -> Option<&Content> {
        match &self.container {
            Container::Tar(tar_unit) => Some(tar_unit.unit()),
            _ => self.content.as_ref(),
        }
    }

    fn position(&self) -> u64 {
        let taken = self.input.position();
        match (&self.container, &self.content) {
            (Container::Raw(_), Some(content)) => taken - content.waiting() as u64,
            (Container::Tar(tar_unit), _) => tar_unit.unit_position(taken),
            _ => taken,
        }
    }

    /// The position by which contents are counted.
    fn content_position(&self) -> u64 {
        match &self.container {
            Container::Tar(tar_unit) => tar_unit.position(),
            _ => self.position(),
        }
    }

    fn current_member(&self) -> Option<&str> {
        let walked = match &self.container {
            Container::Zip(walk) => walk.current_member(),
            Container::Tar(tar_unit) => tar_unit.current_member(),
            _ => return None,
        };
        self.member.as_deref().or(walked)
    }

    fn step(&mut self) -> Result<Unpacked> {
        loop {
            if let Some(content) = &mut self.content {
                if let Container::Raw(_) = self.container {
                    content.look_ahead(&self.helpers, &self.input);
                }
                let pulled = content.pull().map_err(|error| match &self.container {
                    // A codec inside a member would give the byte of the member.
                    Container::Zip(_) => error.byte(self.input.position()),
                    Container::Tar(tar_unit) => error.byte(tar_unit.unit_position(self.input.position())),
                    _ => error,
                })?;
                match pulled {
                    Pulled::Begun { is_tar } => {
                        if self.unit_begins(is_tar)? {
                            return Ok(Unpacked::Begin { member: None });
                        }
                        continue;
                    }
                    Pulled::Text(text) => {
                        self.check_limits(text.len() as u64)?;
                        return Ok(Unpacked::Text(text));
                    }
                    Pulled::End => {
                        self.content = None;
                        self.member = None;
                        return Ok(Unpacked::End);
                    }
                    Pulled::Hungry => {}
                }
            }
            match self.next_piece()? {
                Piece::Hungry => return Ok(Unpacked::Hungry),
                Piece::Begin(member) => {
                    let allowed = self.options.limits.bytes.map_or(u64::MAX, |most| most.0);
                    let whole_text = usize::try_from(allowed).unwrap_or(usize::MAX);
                    self.content = Some(match self.is_plain {
                        true => Content::plain(),
                        false => Content::new(self.expected_content(), member.is_some(), whole_text),
                    });
                    self.content_at = self.content_position();
                    self.content_text = 0;
                    self.member.clone_from(&member);
                    // Whether the unit itself is a content is known only when its text begins.
                    if member.is_some() {
                        return Ok(Unpacked::Begin { member });
                    }
                }
                Piece::Bytes(bytes) => {
                    if let Some(part) = &mut self.part {
                        part.member_text = part.member_text.saturating_add(bytes.len() as u64);
                    }
                    if let Some(content) = &mut self.content {
                        content.push(bytes);
                    }
                }
                Piece::Last(bytes) => {
                    if let Some(content) = &mut self.content {
                        content.push(bytes);
                        content.end();
                    }
                }
                Piece::End => {
                    if let Some(content) = &mut self.content {
                        content.end();
                    }
                }
                Piece::Done => return Ok(Unpacked::Done),
            }
        }
    }

    /// The kind of the content is known. Returns whether the unit's own content begins.
    fn unit_begins(&mut self, is_tar: bool) -> Result<bool> {
        let Container::Raw(raw) = self.container else {
            return Ok(false);
        };
        let codec = self.content.as_ref().map_or("", Content::codec);
        if !is_tar {
            self.codec = codec;
            return Ok(true);
        }
        if let Some(unit) = self.content.take() {
            let walk = tar::Walk::new(&self.options.members, self.options.limits.members)?;
            self.codec = promise::tar_in(codec);
            self.container = Container::Tar(Box::new(TarUnit::new(walk, unit, raw, self.options.limits.ratio)));
        }
        Ok(false)
    }

    /// What the unit's name suggests for the content; the name of a member suggests nothing.
    fn expected_content(&self) -> Option<&'static str> {
        match self.container {
            Container::Zip(_) | Container::Tar(_) => None,
            _ => self.options.expected,
        }
    }

    fn next_piece(&mut self) -> Result<Piece> {
        let input = &mut self.input;
        match &mut self.container {
            Container::Unknown => {
                if input.available() < HEAD && !input.ended() {
                    return Ok(Piece::Hungry);
                }
                let expects_zip = self.options.expected == Some("zip");
                if zip::recognises(input.head(HEAD), expects_zip) {
                    self.codec = "zip";
                    let walk = zip::Walk::new(&self.options.members, self.options.limits.members)?;
                    self.container = Container::Zip(Box::new(walk));
                } else {
                    self.container = Container::Raw(Raw::Begin);
                }
                self.next_piece()
            }
            Container::Raw(raw) => Ok(raw.next(input)),
            Container::Zip(walk) => walk.next(input),
            Container::Tar(tar_unit) => tar_unit.next(input, &self.helpers),
        }
    }

    /// Counts `text` bytes and checks the limits.
    fn check_limits(&mut self, text: u64) -> Result<()> {
        // The directory may lie about what was before.
        self.unit_text = self.unit_text.saturating_add(text);
        self.content_text += text;
        let position = self.position();
        let limits = &self.options.limits;
        if let Some(most) = limits.bytes
            && self.unit_text > most.0
        {
            return Err(Error::refused(format!("the unit unpacks to more than {} bytes", most.0))
                .byte(position)
                .hint("raise `limits: {bytes: …}` of the source if you trust the data"));
        }
        check_ratio(limits.ratio, self.unit_text, position, position)?;
        if let Some(part) = &self.part {
            // How much text compressed members before this part gave is unknown, so the ratio is checked against the
            // bytes of this part.
            let more = self.unit_text.saturating_sub(part.member_text);
            check_ratio(limits.ratio, more, position - part.begin, position)?;
        }
        let content = self.content_position().saturating_sub(self.content_at);
        check_ratio(limits.ratio, self.content_text, content, position)
    }
}
