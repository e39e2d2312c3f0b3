//! zstd (RFC 8878): units of one or many frames, skippable ones among them.

mod ahead;
mod decode;
mod encode;
mod magic;
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

use crate::frame::{Framed, Framing, Padding, recognises};
use magic::{MAGIC, begins};

const FRAMING: Framing = Framing { name: "zstd", piece: "frame", padding: Padding::None, begins };

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
