//! The data of one member of a zip archive, from the end of its local header to the beginning of the next record.

use bytes::Bytes;
use crc32fast::Hasher;
use memchr::memmem;
use millstream_core::{Error, Result};

use super::record::{self, Descriptor, Facts, Header};
use crate::bzip2::Bzip2Stream;
use crate::frame::{Frame, corrupt, cut};
use crate::inflate::Inflate;
use crate::input::{Input, PIECE};
use crate::members::check_name;
use crate::xz::XzStream;
use crate::zstd::ZstdFrame;

/// Compression methods.
pub(super) const STORED: u16 = 0;
pub(super) const DEFLATE: u16 = 8;
const BZIP2: u16 = 12;
const ZSTD: u16 = 93;
const XZ: u16 = 95;

/// The assumed ratio of text to data, at first.
const USUAL_RATIO: usize = 5;

/// The least memory that is taken for a piece of decoded text.
const SMALLEST_PIECE: usize = 16 * 1024;

/// Bytes that may belong to the descriptor and to the signature of the next record.
const HELD_BACK: usize = record::DESCRIPTOR_LIMIT + 3;

/// A member while it is read.
pub(super) struct Member {
    /// Where its local header is.
    pub(super) at: u64,
    pub(super) header: Header,
    /// Its name as text.
    pub(super) name: String,
    pub(super) wanted: bool,
    body: Body,
    text: Hasher,
    size: u64,
    compressed: u64,
}

enum Body {
    /// Not selected, and its size is known.
    Skip,
    /// Stored, and its size is known.
    Copy,
    /// Stored, and its descriptor is searched for: the last bytes are held back, since they may be the descriptor.
    Scan { held: Vec<u8> },
    /// Compressed. `more` says that the decoder may still hold text.
    Decode { frame: Box<dyn Frame>, more: bool },
    /// All data has been read; the descriptor, if any, comes next.
    Descriptor,
    /// Complete.
    End,
}

/// What one step through the data gives.
pub(super) enum Data {
    Hungry,
    /// Text of the member (selected or not).
    Text(Bytes),
    /// Nothing; call again.
    Again,
    /// The member is complete and right.
    End,
}

/// A decoder for `method`, if there is one.
pub(super) fn frame_for(method: u16) -> Result<Option<Box<dyn Frame>>> {
    Ok(match method {
        DEFLATE => Some(Box::new(Inflate::new())),
        BZIP2 => Some(Box::new(Bzip2Stream::new())),
        ZSTD => Some(Box::new(ZstdFrame::new()?)),
        XZ => Some(Box::new(XzStream::new())),
        _ => None,
    })
}

/// The name of a method.
fn method_name(method: u16) -> &'static str {
    match method {
        1 => "shrink",
        2..=5 => "reduce",
        6 => "implode",
        9 => "deflate64",
        10 => "PKWARE implode",
        14 => "LZMA",
        16 => "IBM CMPSC",
        18 => "IBM TERSE",
        19 => "IBM LZ77",
        20 => "zstd (old number)",
        94 => "MP3",
        96 => "JPEG",
        97 => "WavPack",
        98 => "PPMd",
        99 => "AES encryption",
        _ => "unknown",
    }
}

impl Member {
    /// A member whose data begins at byte `data_at`. `spare` is a decoder of its method to reuse.
    pub(super) fn new(
        at: u64,
        data_at: u64,
        header: Header,
        name: String,
        wanted: bool,
        spare: Option<Box<dyn Frame>>,
    ) -> Result<Self> {
        let refused = |what: String| Err(Error::refused(what).in_member(&name).byte(at));
        let known = header.known_size();
        let skips = !wanted && known.is_some();
        let encrypted = record::FLAG_ENCRYPTED | record::FLAG_STRONG | record::FLAG_MASKED;
        if !skips && header.flags & encrypted != 0 {
            return refused("the member is encrypted, which is not supported".to_owned())
                .map_err(|error| error.hint("decrypt the archive first, or leave the member out by `members`"));
        }
        if !skips && header.flags & record::FLAG_PATCH != 0 {
            return refused("the member is a patch of another file, which is not supported".to_owned());
        }
        if wanted {
            check_name(&name).map_err(|error| error.in_member(&name).byte(at))?;
        }
        let body = match (skips, header.method, known) {
            (true, _, _) => Body::Skip,
            (false, STORED, Some(_)) => Body::Copy,
            (false, STORED, None) => Body::Scan { held: Vec::new() },
            (false, method, _) => match spare.map_or_else(|| frame_for(method), |frame| Ok(Some(frame)))? {
                Some(mut frame) => {
                    frame.begin(data_at);
                    Body::Decode { frame, more: false }
                }
                None => {
                    let method_name = method_name(method);
                    return refused(format!(
                        "the member is compressed by method {method} ({method_name}), which is not \
                                            supported"
                    ))
                    .map_err(|error| {
                        error.hint(
                            "supported: stored, deflate, bzip2, zstd and xz; pack the archive again, or leave the \
                             member out by `members`",
                        )
                    });
                }
            },
        };
        Ok(Member { at, header, name, wanted, body, text: Hasher::new(), size: 0, compressed: 0 })
    }

    /// Takes out the decoder, to reuse it for a later member.
    pub(super) fn take_frame(&mut self) -> Option<Box<dyn Frame>> {
        match std::mem::replace(&mut self.body, Body::End) {
            Body::Decode { frame, .. } => Some(frame),
            _ => None,
        }
    }

    /// The next step. After [`Data::End`], checksum and sizes of the header are those of the data.
    pub(super) fn next(&mut self, input: &mut Input, spare: &mut Option<Box<dyn Frame>>) -> Result<Data> {
        match &mut self.body {
            Body::Skip => self.skip(input),
            Body::Copy => self.copy(input),
            Body::Scan { .. } => self.scan(input),
            Body::Decode { .. } => self.decode(input, spare),
            Body::Descriptor => self.descriptor(input),
            Body::End => Ok(Data::End),
        }
    }

    /// The remaining bytes of the data, if known.
    fn left(&self) -> Option<u64> {
        self.header.known_size().map(|size| size.saturating_sub(self.compressed))
    }

    /// How many bytes of `here` belong to the data.
    fn part_of(&self, here: usize) -> usize {
        self.left().map_or(here, |left| usize::try_from(left).unwrap_or(usize::MAX).min(here))
    }

    /// There is no input left: waits for more, or fails if there is no more.
    fn starve(&self, input: &Input, missing: String) -> Result<Data> {
        if !input.ended() {
            return Ok(Data::Hungry);
        }
        Err(cut("zip", &missing, input.position()))
    }

    fn skip(&mut self, input: &mut Input) -> Result<Data> {
        if self.left() == Some(0) {
            self.body = Body::Descriptor;
            return Ok(Data::Again);
        }
        let part = self.part_of(input.available());
        if part == 0 {
            return self.starve(input, self.bytes_missing());
        }
        input.used(part);
        self.compressed += part as u64;
        Ok(Data::Again)
    }

    fn copy(&mut self, input: &mut Input) -> Result<Data> {
        if self.left() == Some(0) {
            self.body = Body::Descriptor;
            return Ok(Data::Again);
        }
        let Some(text) = input.take(self.part_of(PIECE)) else {
            return self.starve(input, self.bytes_missing());
        };
        self.compressed += text.len() as u64;
        self.count(&text);
        Ok(Data::Text(text))
    }

    fn bytes_missing(&self) -> String {
        format!("{} bytes of a member are missing", self.left().unwrap_or(0))
    }

    fn count(&mut self, text: &[u8]) {
        self.text.update(text);
        self.size += text.len() as u64;
    }

    fn decode(&mut self, input: &mut Input, spare: &mut Option<Box<dyn Frame>>) -> Result<Data> {
        let left = self.left();
        let part = self.part_of(input.first().len());
        let Body::Decode { frame, more } = &mut self.body else {
            return Ok(Data::Again);
        };
        if part == 0 && !*more {
            if left == Some(0) {
                return Err(corrupt(
                    "the member's data is longer than the zip says: its compressed bytes end in the middle",
                    input.position(),
                ));
            }
            let missing = frame.missing();
            return self.starve(input, missing);
        }
        let room = part.saturating_mul(USUAL_RATIO).clamp(SMALLEST_PIECE, PIECE);
        let mut output = Vec::with_capacity(room);
        let progress = frame.decode(&input.first()[..part], &mut output, room)?;
        if progress.used == 0 && output.is_empty() && !progress.ended && part > 0 {
            return Err(Error::internal("a decoder of zip members makes no progress").byte(input.position()));
        }
        *more = output.len() == room;
        input.used(progress.used);
        self.compressed += progress.used as u64;
        if progress.ended {
            self.frame_ended(input, spare)?;
        }
        self.count(&output);
        Ok(if output.is_empty() { Data::Again } else { Data::Text(Bytes::from(output)) })
    }

    /// The compressed data ends here, but the header may say that more follows.
    fn frame_ended(&mut self, input: &Input, spare: &mut Option<Box<dyn Frame>>) -> Result<()> {
        let left = self.left().unwrap_or(0);
        if left > 0 && self.header.method == DEFLATE {
            return Err(corrupt(
                format!("the member's data is shorter than the zip says: {left} bytes follow its end"),
                input.position(),
            ));
        }
        if left > 0 {
            // Several frames in a row are one member, as they are one file.
            if let Body::Decode { frame, more } = &mut self.body {
                frame.begin(input.position());
                *more = false;
            }
            return Ok(());
        }
        *spare = self.take_frame();
        self.body = Body::Descriptor;
        Ok(())
    }

    /// The facts about the data once it has been read.
    fn facts(&self) -> Facts {
        let skipped = !self.wanted && self.header.known_size().is_some();
        Facts {
            crc: (!skipped).then(|| self.text.clone().finalize()),
            size: (!skipped).then_some(self.size),
            compressed: self.compressed,
        }
    }

    fn descriptor(&mut self, input: &mut Input) -> Result<Data> {
        let facts = self.facts();
        if !self.header.has_descriptor() {
            self.compare(facts, self.header.crc, self.header.size, input.position())?;
            self.body = Body::End;
            return Ok(Data::Again);
        }
        let wanted = record::DESCRIPTOR_LIMIT + 2;
        if input.available() < wanted && !input.ended() {
            return Ok(Data::Hungry);
        }
        let position = input.position();
        let bytes = input.head(wanted);
        let Some(found) = Descriptor::at_beginning(bytes, facts) else {
            return Err(self.no_descriptor(bytes, facts, position));
        };
        input.used(found.length);
        self.ended_with(found);
        Ok(Data::Again)
    }

    /// Why the bytes after the data are no descriptor of it.
    fn no_descriptor(&self, bytes: &[u8], facts: Facts, position: u64) -> Error {
        let fields = bytes.strip_prefix(&record::DESCRIPTOR).unwrap_or(bytes);
        if fields.len() < 12 {
            return cut("zip", "the descriptor after a member is cut off", position + bytes.len() as u64);
        }
        let said = record::u32_at(fields, 0);
        match self.compare(facts, said, facts.size.unwrap_or(0), position) {
            Err(error) => error,
            Ok(()) => corrupt("the descriptor after a member does not give the sizes of its data", position),
        }
    }

    fn ended_with(&mut self, found: Descriptor) {
        self.header.crc = found.crc;
        self.header.size = found.size;
        self.header.compressed = self.compressed;
        self.body = Body::End;
    }

    /// Compares the data with its records in the archive.
    fn compare(&self, facts: Facts, crc: u32, size: u64, byte: u64) -> Result<()> {
        if let Some(is) = facts.size
            && is != size
        {
            return Err(corrupt(
                format!("wrong length of a zip member: {is} bytes were read, the zip says {size}"),
                byte,
            ));
        }
        if let Some(is) = facts.crc
            && is != crc
        {
            return Err(corrupt(
                format!("wrong checksum of a zip member: its bytes give {is:08x}, the zip says {crc:08x}"),
                byte,
            ));
        }
        Ok(())
    }

    /// Looks for the end of stored data whose length only its descriptor gives.
    ///
    /// The descriptor needs no signature, and the data may hold anything, another zip included. So every position where
    /// a record begins is tried: the end is where the bytes before it are the right length and checksum. Nothing is
    /// spooled: all but the last bytes are given out as they arrive.
    fn scan(&mut self, input: &mut Input) -> Result<Data> {
        let Body::Scan { held } = &mut self.body else {
            return Ok(Data::Again);
        };
        let Some(chunk) = input.take(PIECE - HELD_BACK) else {
            return self.starve(input, "the descriptor of a stored member is missing".to_owned());
        };
        let fresh = held.len();
        held.extend_from_slice(&chunk);
        // A record's signature that ends in the fresh bytes.
        let search_from = fresh.saturating_sub(3);
        // The checksum of the data up to `summed`: it only moves forward, however many positions look like an end.
        let (mut sum, mut summed) = (self.text.clone(), 0);
        for hit in memmem::find_iter(&held[search_from..], b"PK") {
            let end = search_from + hit;
            if !matches!(held.get(end + 2..end + 4), Some([1, 2] | [3, 4])) {
                continue;
            }
            let checksum = |index: usize| {
                let sure = end.saturating_sub(record::DESCRIPTOR_LIMIT);
                sum.update(&held[summed..sure]);
                summed = sure;
                let mut sum = sum.clone();
                sum.update(&held[summed..index]);
                sum.finalize()
            };
            let Some(found) = Descriptor::at_end(&held[..end], self.size, checksum) else {
                continue;
            };
            let mut text = std::mem::take(held);
            // Puts back what was read too far: the next record.
            input.give_back(Bytes::copy_from_slice(&text[end..]));
            text.truncate(end - found.length);
            self.count(&text);
            self.compressed = self.size;
            self.ended_with(found);
            return Ok(if text.is_empty() { Data::Again } else { Data::Text(Bytes::from(text)) });
        }
        let sure = held.len().saturating_sub(HELD_BACK);
        if sure == 0 {
            return Ok(Data::Again);
        }
        let rest = held.split_off(sure);
        let text = std::mem::replace(held, rest);
        self.count(&text);
        Ok(Data::Text(Bytes::from(text)))
    }
}
