//! The content of one unit or of one member of an archive: recognised by its first bytes, then decoded or passed
//! through.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use millstream_core::buffers;
use millstream_core::codec::Decoder;
use millstream_core::helpers::HelperPool;
use millstream_core::{Error, Result};

use super::hidden::{self, HiddenZip};
use super::promise;
use crate::frame::{corrupt, cut};
use crate::input::{Input, PIECE};
use crate::tar::{BLOCK, Judged, has_magic, judge};
use crate::{CODECS, zip};

/// A unit of at most this many compressed bytes is decoded in one call if all of it has arrived…
pub(super) const WHOLE: usize = 1 << 20;

/// …if its text has at most this many bytes.
pub(super) const WHOLE_TEXT: usize = 4 << 20;

/// The least memory that is taken for a piece of decoded text.
const SMALLEST_PIECE: usize = 16 * 1024;

/// The assumed ratio of text to compressed bytes before anything is known.
const USUAL_RATIO: u64 = 5;

/// Bytes that decide what a content is.
pub(crate) const HEAD: usize = 16;

/// What every Parquet file begins with.
const PARQUET: &[u8] = b"PAR1";

/// What a call of [`Content::pull`] gives.
#[derive(Debug)]
pub(super) enum Pulled {
    /// More bytes are needed.
    Hungry,
    /// The kind of the content is known. Comes first.
    Begun {
        /// The text is a tar; only the text of a unit may be one.
        is_tar: bool,
    },
    /// Text, not empty.
    Text(Bytes),
    /// The content is complete.
    End,
}

/// The kind of the content.
enum Kind {
    Unknown,
    Plain,
    /// Decoded at once.
    Whole,
    Compressed {
        decoder: Box<dyn Decoder>,
        more: bool,
    },
}

/// The content of one unit or member.
pub(super) struct Content {
    kind: Kind,
    /// Whether [`Pulled::Begun`] has been given.
    announced: bool,
    /// Whether it is known to be plain text, whatever its first bytes are.
    is_plain: bool,
    /// Text that was decoded to recognise a tar, and is not given yet.
    first: VecDeque<Bytes>,
    /// The first bytes, while they are too few to recognise the content.
    head: Vec<u8>,
    codec: &'static str,
    /// The codec or archive that the name suggests; it only breaks ties.
    expected: Option<&'static str>,
    in_archive: bool,
    /// The most text that is decoded at once.
    whole_text: usize,
    /// Pushed and not used yet.
    pending: Bytes,
    ended: bool,
    /// Bytes pushed in all.
    pushed: u64,
    /// Bytes of text given so far.
    text: u64,
    /// Looks for an archive in what passes for plain text.
    hidden: Option<HiddenZip>,
}

impl Content {
    /// A new content, of which only the name is known. At most `whole_text` bytes of text are decoded in one call.
    pub(super) fn new(expected: Option<&'static str>, in_archive: bool, whole_text: usize) -> Self {
        Content {
            kind: Kind::Unknown,
            announced: false,
            is_plain: false,
            first: VecDeque::new(),
            head: Vec::new(),
            codec: "",
            expected,
            in_archive,
            whole_text: whole_text.min(WHOLE_TEXT),
            pending: Bytes::new(),
            ended: false,
            pushed: 0,
            text: 0,
            hidden: None,
        }
    }

    /// One that is plain text.
    pub(super) fn plain() -> Self {
        Content { kind: Kind::Plain, is_plain: true, codec: "plain", ..Content::new(None, false, 0) }
    }

    /// The codec's name; empty until it is known.
    pub(super) fn codec(&self) -> &'static str {
        self.codec
    }

    /// Bytes that were pushed and wait to be decoded.
    pub(super) fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// The next bytes. Only to be called when [`Content::pull`] was hungry.
    pub(super) fn push(&mut self, chunk: Bytes) {
        self.pushed += chunk.len() as u64;
        if self.pending.is_empty() {
            self.pending = chunk;
            return;
        }
        // Only the first few bytes of a content are ever joined, while its codec is not known.
        let mut joined = BytesMut::with_capacity(self.pending.len() + chunk.len());
        joined.extend_from_slice(&self.pending);
        joined.extend_from_slice(&chunk);
        self.pending = joined.freeze();
    }

    /// Shows the decoder the bytes that have arrived and will be pushed: `input`, after the pending ones.
    pub(super) fn look_ahead(&mut self, helpers: &Arc<dyn HelperPool>, input: &Input) {
        if let Kind::Compressed { decoder, .. } = &mut self.kind {
            let at = input.position() - self.pending.len() as u64;
            decoder.look_ahead(helpers, at, &mut std::iter::once(&self.pending).chain(input.chunks()));
        }
    }

    /// See [`Decoder::wants`].
    pub(super) fn wants(&self) -> usize {
        match &self.kind {
            Kind::Compressed { decoder, .. } => decoder.wants(),
            _ => 0,
        }
    }

    /// See [`Decoder::held`].
    pub(super) fn held(&self) -> usize {
        match &self.kind {
            Kind::Compressed { decoder, .. } => decoder.held(),
            _ => 0,
        }
    }

    /// There are no more bytes.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// The kind of the content, then its text.
    pub(super) fn pull(&mut self) -> Result<Pulled> {
        if !self.announced && self.is_plain {
            self.announced = true;
            return Ok(Pulled::Begun { is_tar: false });
        }
        if !self.announced {
            return self.detect_tar();
        }
        let pulled = match self.first.pop_front() {
            Some(text) => Pulled::Text(text),
            None => self.pull_text()?,
        };
        if let Some(hidden) = &mut self.hidden {
            match &pulled {
                Pulled::Text(text) => hidden.pass(text)?,
                Pulled::End => hidden.end()?,
                Pulled::Hungry | Pulled::Begun { .. } => {}
            }
        }
        Ok(pulled)
    }

    /// Decodes as much as is needed to recognise a tar.
    fn detect_tar(&mut self) -> Result<Pulled> {
        let promised = promise::is_tar(self.expected);
        let is_tar = loop {
            let judged = match self.pull_text()? {
                Pulled::Text(text) => {
                    let judged = self.judge(&text, promised);
                    self.first.push_back(text);
                    judged
                }
                Pulled::End => break self.judge_all(promised)?,
                pulled => return Ok(pulled),
            };
            match judged {
                Judged::Maybe => {}
                Judged::No => {
                    self.check_text()?;
                    break false;
                }
                Judged::Yes => break true,
            }
        };
        self.announced = true;
        self.head = Vec::new();
        // A member of an archive may be a zip, and a value in a Parquet file may contain one.
        let is_parquet = self.first.iter().flatten().take(PARQUET.len()).eq(PARQUET);
        if !is_tar && !is_parquet && !self.in_archive && matches!(self.kind, Kind::Plain) {
            self.hidden = Some(HiddenZip::new());
        }
        if is_tar && self.in_archive {
            return Err(archive_inside("tar"));
        }
        Ok(Pulled::Begun { is_tar })
    }

    fn judge(&mut self, text: &[u8], promised: bool) -> Judged {
        if self.head.is_empty() && text.len() >= BLOCK {
            return judge(text, promised);
        }
        let missing = BLOCK - self.head.len();
        self.head.extend_from_slice(&text[..text.len().min(missing)]);
        judge(&self.head, promised)
    }

    /// Whether the whole text, which is in `first` and too short for a tar, counts as one.
    fn judge_all(&self, promised: bool) -> Result<bool> {
        let used = self.pushed - self.pending.len() as u64;
        if promised && self.head.is_empty() {
            return Err(corrupt("the data unpacks to nothing, but the file's name promises a tar", used));
        }
        // A line may be data under an odd name; the beginning of a tar header has no line end.
        let is_text = looks_like_text(&self.head) && self.head.contains(&b'\n');
        if has_magic(&self.head) || (promised && !is_text) {
            return Err(cut("tar", "its first header is cut off", used));
        }
        Ok(false)
    }

    /// Checks text that is no tar: if its name promises one, it must at least be text.
    fn check_text(&self) -> Result<()> {
        if !promise::is_tar(self.expected) {
            return Ok(());
        }
        let head: Vec<u8> = self.first.iter().flatten().copied().take(HEAD).collect();
        if looks_like_text(&head) { Ok(()) } else { Err(self.not_as_promised(&head)) }
    }

    fn pull_text(&mut self) -> Result<Pulled> {
        if let Kind::Unknown = self.kind {
            if self.pending.len() < HEAD && !self.ended {
                return Ok(Pulled::Hungry);
            }
            if let Some(text) = self.whole()
                && !text.is_empty()
            {
                return Ok(Pulled::Text(text));
            }
            if let Kind::Unknown = self.kind
                && !self.detect()?
            {
                return Ok(Pulled::Hungry);
            }
        }
        let text = match &mut self.kind {
            Kind::Whole => Bytes::new(),
            Kind::Unknown | Kind::Plain => self.pending.split_to(self.pending.len().min(PIECE)),
            Kind::Compressed { .. } => self.decode()?,
        };
        if !text.is_empty() {
            self.text += text.len() as u64;
            return Ok(Pulled::Text(text));
        }
        if !self.ended {
            return Ok(Pulled::Hungry);
        }
        if let Kind::Compressed { decoder, .. } = &mut self.kind {
            decoder.finish()?;
        }
        Ok(Pulled::End)
    }

    /// Decodes a piece of what is pending; empty if that gives no text.
    fn decode(&mut self) -> Result<Bytes> {
        let size = self.piece_size();
        let Kind::Compressed { decoder, more } = &mut self.kind else {
            return Ok(Bytes::new());
        };
        if self.pending.is_empty() && !*more {
            return Ok(Bytes::new());
        }
        let mut output = buffers::take(size);
        let used = decoder.decode(&self.pending, &mut output, size)?;
        self.pending.advance(used);
        *more = output.len() == size;
        Ok(buffers::share(output))
    }

    /// How much memory to take for the text of what is pending: there may be many small units, and each would hold 512
    /// KiB until its last batch is gone.
    fn piece_size(&self) -> usize {
        let used = self.pushed - self.pending.len() as u64;
        let ratio = self.text.checked_div(used).map_or(USUAL_RATIO, |known| known + 1);
        let estimate = (self.pending.len() as u64).saturating_mul(ratio);
        usize::try_from(estimate).unwrap_or(PIECE).clamp(SMALLEST_PIECE, PIECE)
    }

    /// Decodes all pending bytes in one call, if they are the whole content and it is small. `None` for faulty data:
    /// the decoder then finds the fault.
    fn whole(&mut self) -> Option<Bytes> {
        if !self.ended || self.pending.len() > WHOLE {
            return None;
        }
        let head = &self.pending[..self.pending.len().min(HEAD)];
        let codec = CODECS.iter().map(|entry| (entry.build)()).find(|codec| codec.recognises(head))?;
        let text = codec.decode_whole(&self.pending, self.whole_text)?;
        self.codec = codec.name();
        self.kind = Kind::Whole;
        self.pending = Bytes::new();
        self.text = text.len() as u64;
        Some(text)
    }

    /// Finds out what the content is by its first bytes; `false` if more are needed.
    fn detect(&mut self) -> Result<bool> {
        let head = &self.pending[..self.pending.len().min(HEAD)];
        for entry in CODECS {
            let codec = (entry.build)();
            if codec.recognises(head) {
                self.codec = entry.name;
                self.kind = Kind::Compressed { decoder: codec.decoder()?, more: false };
                return Ok(true);
            }
        }
        if self.in_archive && zip::recognises(head, false) {
            return Err(archive_inside("zip"));
        }
        // The name of a tar's first member may look like any magic.
        let promised = promise::is_tar(self.expected);
        let judged = judge(&self.pending, promised);
        if judged == Judged::Maybe && !self.ended {
            return Ok(false);
        }
        let is_cut = judged == Judged::Maybe && (has_magic(&self.pending) || (promised && !head.is_empty()));
        if judged == Judged::Yes || is_cut {
            self.codec = "plain";
            self.kind = Kind::Plain;
            return Ok(true);
        }
        if let Some(name) = unsupported(head) {
            return Err(Error::refused(format!("the data is {name}, which is not supported"))
                .text(head)
                .hint("supported: plain text, gzip, zstd, bzip2, xz, zip and tar; unpack it first"));
        }
        if let Some(codec) = self.cut_in_its_head(head)? {
            self.codec = codec.0;
            self.kind = Kind::Compressed { decoder: codec.1, more: false };
            return Ok(true);
        }
        if self.expected == Some("zip") && !looks_like_text(head) {
            // A member that begins in the head continues after it.
            let front = HEAD + zip::HEAD_OF_MEMBER;
            if self.pending.len() < front && !self.ended {
                return Ok(false);
            }
            if let Some(at) = zip::find_member(&self.pending[..self.pending.len().min(front)]) {
                return Err(hidden::begins_at(at as u64));
            }
        }
        self.check_expected(head)?;
        self.codec = "plain";
        self.kind = Kind::Plain;
        Ok(true)
    }

    /// A unit of a few bytes that begins as its name promises was cut before it could be recognised ("BZ").
    fn cut_in_its_head(&self, head: &[u8]) -> Result<Option<(&'static str, Box<dyn Decoder>)>> {
        let expected = promise::codec_of(self.expected);
        let entry = CODECS.iter().find(|entry| Some(entry.name) == expected);
        let Some(entry) = entry.filter(|_| !head.is_empty() && head.len() < HEAD) else {
            return Ok(None);
        };
        let begins = (entry.build)().decoder()?.decode(head, &mut Vec::new(), HEAD).is_ok();
        if begins { Ok(Some((entry.name, (entry.build)().decoder()?))) } else { Ok(None) }
    }

    /// A name that promises a codec and bytes that are neither that nor text mean damage, not plain text. Plain text
    /// under such a name is accepted: some servers decompress unasked.
    fn check_expected(&self, head: &[u8]) -> Result<()> {
        let Some(expected) = self.expected else {
            return Ok(());
        };
        if head.is_empty() {
            return Err(corrupt(format!("the file is empty, but its name promises {expected}"), 0));
        }
        if looks_like_text(head) {
            return Ok(());
        }
        Err(self.not_as_promised(head))
    }

    fn not_as_promised(&self, head: &[u8]) -> Error {
        let expected = self.expected.unwrap_or("what it was");
        corrupt(format!("the data is not {expected}, as its name promises, nor is it text"), 0).text(head)
    }
}

fn archive_inside(kind: &str) -> Error {
    Error::refused(format!("a member of the archive is itself a {kind} archive"))
        .hint("leave it out by `members`, or unpack the outer archive first")
}

/// Whether `head`, the beginning of a content, may be text: no control characters but white space, in UTF-8, UTF-16
/// with a byte order mark, or any encoding that extends ASCII.
fn looks_like_text(head: &[u8]) -> bool {
    let wide = head.starts_with(&[0xff, 0xfe]) || head.starts_with(&[0xfe, 0xff]);
    wide || head.iter().all(|&byte| byte >= 0x20 || matches!(byte, b'\t' | b'\n' | b'\r' | 0x0c | 0x1b))
}

/// The kind of a content that is known by its first bytes, and can neither be read as text nor be unpacked.
fn unsupported(head: &[u8]) -> Option<&'static str> {
    const KNOWN: &[(&[u8], &str)] = &[
        (b"\x7fELF", "a program (or a self-extracting archive)"),
        (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
        (b"Rar!\x1a\x07", "a RAR archive"),
        (b"\x04\x22\x4d\x18", "compressed by lz4"),
        (b"\x1f\x9d", "compressed by compress (.Z)"),
        (b"\x1f\xa0", "compressed by compress (LZH)"),
        (b"\x1f\x1e", "compressed by pack (.z)"),
        (b"LZIP\x01", "compressed by lzip"),
        (b"\x89LZO\x00\r\n\x1a\n", "compressed by lzop"),
        (b"\xff\x06\x00\x00sNaPpY", "compressed by snappy (framed)"),
        (b"PK\x07\x08PK\x03\x04", "a part of a split zip archive"),
    ];
    let known = KNOWN.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, name)| *name);
    // "MZ" alone may begin a text.
    let program = head.starts_with(b"MZ") && head.contains(&0);
    known.or(program.then_some("a program (or a self-extracting archive)"))
}
