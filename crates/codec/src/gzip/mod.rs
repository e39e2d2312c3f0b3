//! gzip (RFC 1952): units of one or many members, as gzip, pigz and bgzip write them.
//!
//! The framing is our own, so that every error has its exact byte and a missing end is found; the deflate data inside
//! is left to [`crate::inflate`].

mod decode;
mod encode;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_ahead;
mod whole;

use std::sync::Arc;

use bytes::Bytes;
use millstream_core::Result;
use millstream_core::codec::{Codec, Decoder, Encoder};
use millstream_core::registry::CodecEntry;

use crate::frame::{Framed, Framing, Padding, begins_with, recognises};

/// The first two bytes of every member. The third, the method, is judged by the decoder: there is only one.
const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// How members follow each other: zeros after the last one are padding, as for gzip(1).
const FRAMING: Framing =
    Framing { name: "gzip", piece: "member", padding: Padding::ZerosAtEnd, begins: |head| begins_with(head, &MAGIC) };

/// The registry's entry.
pub(crate) const ENTRY: CodecEntry =
    CodecEntry { name: "gzip", extensions: &[".gz", ".gzip", ".bgz"], build: || Arc::new(Gzip) };

/// The codec.
#[derive(Debug)]
struct Gzip;

impl Codec for Gzip {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn extension(&self) -> &'static str {
        ".gz"
    }

    fn recognises(&self, head: &[u8]) -> bool {
        recognises(head, &MAGIC, 2)
    }

    fn decoder(&self) -> Result<Box<dyn Decoder>> {
        Ok(Box::new(Framed::new(FRAMING, Box::new(decode::Member::new()))))
    }

    fn decode_whole(&self, data: &[u8], most: usize) -> Option<Bytes> {
        whole::text(data, most)
    }

    fn encoder(&self, level: Option<i32>) -> Result<Option<Box<dyn Encoder>>> {
        Ok(Some(Box::new(encode::GzipEncoder::new(level)?)))
    }
}
