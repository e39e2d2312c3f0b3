//! bzip2: units of one or many streams, as bzip2, pbzip2 and lbzip2 write them. Read only.

mod decode;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use millstream_core::Result;
use millstream_core::codec::{Codec, Decoder, Encoder};
use millstream_core::registry::CodecEntry;

pub(crate) use decode::Bzip2Stream;

use crate::frame::{Framed, Framing, Padding, begins_with};

/// A stream begins with "BZh" and the block size, `1` to `9`; then comes one of these.
const BLOCK: [u8; 6] = [0x31, 0x41, 0x59, 0x26, 0x53, 0x59];
const END: [u8; 6] = [0x17, 0x72, 0x45, 0x38, 0x50, 0x90];

const FRAMING: Framing = Framing { name: "bzip2", piece: "stream", padding: Padding::None, begins };

/// Whether a stream can begin with `head`. A text may begin with "BZh1", so the magic of the first block (or of the
/// end) must follow.
fn begins(head: &[u8]) -> Option<bool> {
    let letters = begins_with(head, b"BZh");
    if letters != Some(true) {
        return letters;
    }
    match head.get(3) {
        None => None,
        Some(b'1'..=b'9') => {
            let rest = &head[4..];
            match (begins_with(rest, &BLOCK), begins_with(rest, &END)) {
                (Some(false), end) => end,
                (block, _) => block,
            }
        }
        Some(_) => Some(false),
    }
}

/// The registry's entry.
pub(crate) const ENTRY: CodecEntry =
    CodecEntry { name: "bzip2", extensions: &[".bz2", ".bzip2"], build: || Arc::new(Bzip2) };

/// The codec.
#[derive(Debug)]
struct Bzip2;

impl Codec for Bzip2 {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn extension(&self) -> &'static str {
        ".bz2"
    }

    fn recognises(&self, head: &[u8]) -> bool {
        // "BZh9" alone is more likely a cut file than a text.
        head.len() >= 4 && begins(head) != Some(false)
    }

    fn decoder(&self) -> Result<Box<dyn Decoder>> {
        Ok(Box::new(Framed::new(FRAMING, Box::new(Bzip2Stream::new()))))
    }

    fn encoder(&self, _level: Option<i32>) -> Result<Option<Box<dyn Encoder>>> {
        Ok(None)
    }
}
