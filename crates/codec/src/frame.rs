//! Frames: pieces of compressed data that end by themselves, and a unit that is a row of them.
//!
//! gzip calls them members, zstd frames, bzip2 and xz streams. Each codec gives a [`Frame`]; [`Framed`] turns it into
//! a decoder of a whole unit: one frame after the other, padding where the format allows it, and an error for
//! anything else that follows. The zip container uses the bare frames for its members.

use std::sync::Arc;

use bytes::Bytes;
use millstream_core::codec::Decoder;
use millstream_core::helpers::HelperPool;
use millstream_core::{Error, Result};

/// One self-ending piece of compressed data.
pub(crate) trait Frame: Send {
    /// A new frame begins at byte `at` of the unit. Buffers are kept.
    fn begin(&mut self, at: u64);

    /// Decodes from `input`, appending at most `room` bytes to `output`. It uses all of `input`, fills the room or
    /// comes to its end. After the end it is only called again after [`Frame::begin`].
    fn decode(&mut self, input: &[u8], output: &mut Vec<u8>, room: usize) -> Result<Progress>;

    /// What is missing if the input ends here, as a sentence.
    fn missing(&self) -> String;

    /// See [`Decoder::look_ahead`].
    fn look_ahead(&mut self, helpers: &Arc<dyn HelperPool>, at: u64, coming: &mut dyn Iterator<Item = &Bytes>) {
        let _ = (helpers, at, coming);
    }

    /// See [`Decoder::wants`].
    fn wants(&self) -> usize {
        0
    }

    /// See [`Decoder::held`].
    fn held(&self) -> usize {
        0
    }
}

/// What one call of [`Frame::decode`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Bytes of the input that were used.
    pub(crate) used: usize,
    /// Whether the frame has ended. All of its text has been given.
    pub(crate) ended: bool,
}

/// What a format allows between its frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Padding {
    /// Nothing.
    None,
    /// Zeros after the last frame, up to the end: tapes and disks pad so, and gzip(1) accepts it.
    ZerosAtEnd,
    /// Zeros in multiples of four, after any frame: the xz format's stream padding.
    ZerosOfFour,
}

/// How the frames of a format follow each other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Framing {
    /// The codec's name.
    pub(crate) name: &'static str,
    /// What the format calls a frame.
    pub(crate) piece: &'static str,
    /// What may lie between frames.
    pub(crate) padding: Padding,
    /// Whether a frame can begin with these bytes: `None` while there are too few to tell.
    pub(crate) begins: fn(&[u8]) -> Option<bool>,
}

/// Whether `head` begins with `magic`; `None` if it is too short to tell.
pub(crate) fn begins_with(head: &[u8], magic: &[u8]) -> Option<bool> {
    let common = head.len().min(magic.len());
    if head[..common] != magic[..common] {
        Some(false)
    } else if common == magic.len() {
        Some(true)
    } else {
        None
    }
}

/// Whether a whole unit that begins with `head` is one of `magic`: at least `least` bytes of the magic are there, and
/// none is wrong. So a unit that is cut inside its magic is still found to be damaged. From `least` bytes on, the magic
/// cannot be plausible text.
pub(crate) fn recognises(head: &[u8], magic: &[u8], least: usize) -> bool {
    head.len() >= least && begins_with(head, magic) != Some(false)
}

/// A unit that is a row of frames.
pub(crate) struct Framed {
    framing: Framing,
    frame: Box<dyn Frame>,
    /// Bytes of the unit used so far.
    position: u64,
    state: State,
}

enum State {
    Inside,
    Between { head: Vec<u8>, zeros: u64 },
}

impl Framed {
    /// The decoder of a unit whose frames are decoded by `frame`.
    pub(crate) fn new(framing: Framing, mut frame: Box<dyn Frame>) -> Self {
        frame.begin(0);
        Framed { framing, frame, position: 0, state: State::Inside }
    }

    /// Looks for the next frame in `input`; returns how many bytes were used. All of them, unless a frame begins.
    fn between(&mut self, input: &[u8]) -> Result<usize> {
        let State::Between { head, zeros } = &mut self.state else {
            return Ok(0);
        };
        for (index, &byte) in input.iter().enumerate() {
            let at = self.position + index as u64;
            if byte == 0 && head.is_empty() && self.framing.padding != Padding::None {
                *zeros += 1;
                continue;
            }
            if *zeros > 0 && self.framing.padding == Padding::ZerosAtEnd {
                return Err(garbage(&self.framing, &input[index..], at));
            }
            if *zeros % 4 != 0 {
                return Err(uneven_padding(&self.framing, *zeros, at));
            }
            head.push(byte);
            match (self.framing.begins)(head) {
                None => {}
                Some(false) => {
                    let start = at + 1 - head.len() as u64;
                    let shown = [head.as_slice(), &input[index + 1..]].concat();
                    return Err(garbage(&self.framing, &shown, start));
                }
                Some(true) => {
                    self.frame.begin(at + 1 - head.len() as u64);
                    // The magic gives no text, so it needs no room.
                    self.frame.decode(head, &mut Vec::new(), 0)?;
                    self.state = State::Inside;
                    return Ok(index + 1);
                }
            }
        }
        Ok(input.len())
    }
}

impl Decoder for Framed {
    fn decode(&mut self, input: &[u8], output: &mut Vec<u8>, room: usize) -> Result<usize> {
        let full = output.len() + room;
        let mut used = 0;
        loop {
            if let State::Between { .. } = self.state {
                let skipped = self.between(&input[used..])?;
                used += skipped;
                self.position += skipped as u64;
            }
            if let State::Between { .. } = self.state {
                return Ok(used);
            }
            if output.len() == full {
                return Ok(used);
            }
            let before = output.len();
            let progress = self.frame.decode(&input[used..], output, full - before)?;
            used += progress.used;
            self.position += progress.used as u64;
            if progress.ended {
                self.state = State::Between { head: Vec::new(), zeros: 0 };
                continue;
            }
            let stuck = progress.used == 0 && output.len() == before;
            if stuck && used < input.len() {
                return Err(
                    Error::internal(format!("the {} decoder makes no progress", self.framing.name)).byte(self.position)
                );
            }
            if used == input.len() {
                return Ok(used);
            }
        }
    }

    fn look_ahead(&mut self, helpers: &Arc<dyn HelperPool>, at: u64, coming: &mut dyn Iterator<Item = &Bytes>) {
        self.frame.look_ahead(helpers, at, coming);
    }

    fn wants(&self) -> usize {
        self.frame.wants()
    }

    fn held(&self) -> usize {
        self.frame.held()
    }

    fn finish(&mut self) -> Result<()> {
        match &self.state {
            State::Inside => Err(cut(self.framing.name, &self.frame.missing(), self.position)),
            State::Between { head, .. } if !head.is_empty() => {
                Err(garbage(&self.framing, head, self.position - head.len() as u64))
            }
            State::Between { zeros, .. } if *zeros % 4 != 0 && self.framing.padding == Padding::ZerosOfFour => {
                Err(uneven_padding(&self.framing, *zeros, self.position))
            }
            State::Between { .. } => Ok(()),
        }
    }
}

/// The error of a unit that ends at `byte`, before its data does.
pub(crate) fn cut(name: &str, missing: &str, byte: u64) -> Error {
    Error::data(format!("{name} is truncated: {missing}"))
        .byte(byte)
        .hint("the file was cut short, or is still being written; get it again")
}

/// The error of a frame that is wrong at about `byte`.
pub(crate) fn corrupt(what: impl Into<String>, byte: u64) -> Error {
    Error::data(what).byte(byte).hint("the file is damaged; get it again")
}

fn garbage(framing: &Framing, shown: &[u8], byte: u64) -> Error {
    let shown = &shown[..shown.len().min(16)];
    Error::data(format!("garbage after the last {} {}", framing.name, framing.piece)).byte(byte).text(shown).hint(
        format!(
            "the {} data is complete up to this byte; cut the file there if the rest is not needed, else get it again",
            framing.name
        ),
    )
}

fn uneven_padding(framing: &Framing, zeros: u64, byte: u64) -> Error {
    corrupt(format!("{} padding of {zeros} bytes, which is not a multiple of four", framing.name), byte)
}
