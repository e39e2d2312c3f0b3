//! xz (the .xz file format 1.2.1): units of one or many streams, with stream padding. Read only.

mod decode;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use millstream_core::Result;
use millstream_core::codec::{Codec, Decoder, Encoder};
use millstream_core::registry::CodecEntry;

pub(crate) use decode::XzStream;

use crate::frame::{Framed, Framing, Padding, begins_with, recognises};

/// The first bytes of a stream.
const MAGIC: [u8; 6] = [0xfd, b'7', b'z', b'X', b'Z', 0];

const FRAMING: Framing =
    Framing { name: "xz", piece: "stream", padding: Padding::ZerosOfFour, begins: |head| begins_with(head, &MAGIC) };

/// The registry's entry.
pub(crate) const ENTRY: CodecEntry = CodecEntry { name: "xz", extensions: &[".xz"], build: || Arc::new(Xz) };

/// The codec.
#[derive(Debug)]
struct Xz;

impl Codec for Xz {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn extension(&self) -> &'static str {
        ".xz"
    }

    fn recognises(&self, head: &[u8]) -> bool {
        recognises(head, &MAGIC, 2)
    }

    fn decoder(&self) -> Result<Box<dyn Decoder>> {
        Ok(Box::new(Framed::new(FRAMING, Box::new(XzStream::new()))))
    }

    fn encoder(&self, _level: Option<i32>) -> Result<Option<Box<dyn Encoder>>> {
        Ok(None)
    }
}
