//! The codec traits: bytes to bytes, pushed, so that nobody ever blocks on input inside a decoder.

use std::fmt::Debug;

use crate::Result;

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
}

/// Encodes one file.
pub trait Encoder: Send {
    /// Encodes `text`, appending what is ready to `output`.
    fn encode(&mut self, text: &[u8], output: &mut Vec<u8>) -> Result<()>;

    /// Appends the end to `output`. Nothing may be encoded after it.
    fn finish(&mut self, output: &mut Vec<u8>) -> Result<()>;
}
