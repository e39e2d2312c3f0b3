//! The codec traits: bytes to bytes, pushed, so that nobody ever blocks on input inside a decoder.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::helpers::HelperPool;
use crate::spec::Size;

/// Text below this many bytes (64 MiB) is never held against [`Limits::ratio`]: it does no harm, and small files of
/// zeros or of one repeated line are honest.
pub const RATIO_APPLIES_FROM: u64 = 64 << 20;

/// How much a unit may unpack to: the `limits` of a source, against bombs.
///
/// Memory is not what they protect: unpacking holds little of it however large the text is. They protect the time
/// and the target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// How many times larger than its compressed bytes the text of a unit, and of each member of an archive, may be
    /// once there is more than 64 MiB of it. The default of 400 is twice what very regular tables reach, and less
    /// than half of what a bomb of gzip or zip has (1032, the most that deflate can do).
    #[schemars(range(min = 1))]
    pub ratio: u64,
    /// The most text that a unit may have: a whole number of bytes, or text such as `2GiB`. No limit by default.
    pub bytes: Option<Size>,
    /// The most members that an archive may have. What is known of each is held in memory until the archive's
    /// directory, at its end, has been compared with them.
    #[schemars(range(min = 1))]
    pub members: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { ratio: 400, bytes: None, members: 1_000_000 }
    }
}

/// A compression of one stream of bytes.
pub trait Codec: Debug + Send + Sync {
    /// What it is called in reports and job files: `gzip`.
    fn name(&self) -> &'static str;

    /// The ending of file names, with the dot: `.gz`. It only breaks ties when reading; the sink adds none.
    fn extension(&self) -> &'static str;

    /// Whether a unit that begins with `head` (up to 16 bytes, fewer if the unit is shorter) is of this codec.
    fn recognises(&self, head: &[u8]) -> bool;

    /// A decoder at the beginning of a unit.
    fn decoder(&self) -> Result<Box<dyn Decoder>>;

    /// The text of a whole unit in one call, where that is quicker than a decoder. It never judges: `None` if there is
    /// more than `most` bytes of text, if anything at all is wrong, or if the codec has no such way. Then the decoder
    /// is to be asked, which finds the same text, or the fault and its byte.
    fn decode_whole(&self, data: &[u8], most: usize) -> Option<Bytes> {
        let _ = (data, most);
        None
    }

    /// An encoder at the beginning of a file; `None` if this codec only reads. `level` is the codec's own scale.
    fn encoder(&self, level: Option<i32>) -> Result<Option<Box<dyn Encoder>>>;
}

/// Decodes one unit. Its errors name the byte of the compressed unit; the caller adds the unit.
pub trait Decoder: Send {
    /// Decodes from `input`, appending at most `room` bytes to `output`, and returns how many bytes of `input` were
    /// used. It uses all of `input` or fills the room, whichever comes first; it may be called again with empty
    /// input while it still has output to give.
    fn decode(&mut self, input: &[u8], output: &mut Vec<u8>, room: usize) -> Result<usize>;

    /// There is no more input: an error unless the unit ended where it should.
    fn finish(&mut self) -> Result<()>;

    /// Shows what will be given to the next calls of [`Decoder::decode`]: `coming` are the bytes from byte `at` of the
    /// unit on, as far as they are here. A decoder may let the idle of `pool` work on them; what it gives is the same.
    fn look_ahead(&mut self, pool: &Arc<dyn HelperPool>, at: u64, coming: &mut dyn Iterator<Item = &Bytes>) {
        let _ = (pool, at, coming);
    }

    /// How many bytes it could use if they were shown to it by [`Decoder::look_ahead`].
    fn wants(&self) -> usize {
        0
    }

    /// Bytes of memory that hold text which was decoded ahead.
    fn held(&self) -> usize {
        0
    }
}

/// Encodes one file.
pub trait Encoder: Send {
    /// Encodes `text`, appending what is ready to `output`.
    fn encode(&mut self, text: &[u8], output: &mut Vec<u8>) -> Result<()>;

    /// Appends the end to `output`. Nothing may be encoded after it.
    fn finish(&mut self, output: &mut Vec<u8>) -> Result<()>;
}
