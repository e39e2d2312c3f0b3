//! zstd (RFC 8878): units of one or many frames, skippable ones among them.

mod ahead;
mod decode;
mod encode;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_ahead;
mod walk;
mod whole;

use std::sync::Arc;

use bytes::Bytes;
use millstream_core::Result;
use millstream_core::codec::{Codec, Decoder, Encoder};
use millstream_core::registry::CodecEntry;

pub(crate) use decode::ZstdFrame;

use crate::frame::{Framed, Framing, Padding, begins_with, recognises};

/// The first bytes of a frame with data.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Bytes 1 to 3 of a skippable frame; byte 0 is 0x50 to 0x5f. pzstd begins its files with one.
const SKIPPABLE: [u8; 3] = [0x2a, 0x4d, 0x18];

const FRAMING: Framing = Framing { name: "zstd", piece: "frame", padding: Padding::None, begins };

fn begins(head: &[u8]) -> Option<bool> {
    match head.split_first() {
        Some((first, rest)) if first & 0xf0 == 0x50 => begins_with(rest, &SKIPPABLE),
        _ => begins_with(head, &MAGIC),
    }
}

/// The registry's entry.
pub(crate) const ENTRY: CodecEntry =
    CodecEntry { name: "zstd", extensions: &[".zst", ".zstd"], build: || Arc::new(Zstd) };

/// The codec.
#[derive(Debug)]
struct Zstd;

impl Codec for Zstd {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn extension(&self) -> &'static str {
        ".zst"
    }

    fn recognises(&self, head: &[u8]) -> bool {
        // A skippable frame begins like text ("Q*M"): all four bytes must be there.
        recognises(head, &MAGIC, 2) || begins(head) == Some(true)
    }

    fn decoder(&self) -> Result<Box<dyn Decoder>> {
        Ok(Box::new(Framed::new(FRAMING, Box::new(ZstdFrame::new()?))))
    }

    fn decode_whole(&self, data: &[u8], most: usize) -> Option<Bytes> {
        whole::text(data, most)
    }

    fn encoder(&self, level: Option<i32>) -> Result<Option<Box<dyn Encoder>>> {
        Ok(Some(Box::new(encode::ZstdEncoder::new(level)?)))
    }
}
