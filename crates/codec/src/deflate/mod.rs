//! Inflate (RFC 1951): a decoder of our own that can stop and continue anywhere, begin at any bit, and decode without
//! knowing the text before it.
//!
//! ```text
//!            ┌───────────┐  unknown to a decoder that begins in the middle: markers stand for it
//!            │ window    │ ──▶ output
//!  input ──▶ bits ──▶ codes ──▶ literals, copies
//! ```
//!
//! It is generic over its output. Normally these are bytes. A decoder that begins in the middle gives 16-bit symbols: a
//! value from 256 on is a marker, which stands for a byte of the unknown window. Copies copy markers like bytes, and
//! once the window is known, [`Resolver`] replaces them. (M. Kerbiriou, R. Chikhi: Parallel decompression of
//! gzip-compressed files and random access to DNA sequences, 2019; M. Knespel, H. Brunst: Rapidgzip, 2023.)
//!
//! - `table`: prefix codes.
//! - `inflate`: the decoder.
//! - `marker`: symbols for bytes that are not known yet.
//! - `find`: where a block may begin.
//! - `ahead`: decodes from somewhere in the middle.
//!
//! Callers handle the formats around the data (gzip, zip) and the errors that users see.

mod ahead;
mod find;
mod inflate;
mod marker;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use ahead::{Control, Links, NOWHERE, Region, Segment, Symbols, decode_ahead};
pub(crate) use inflate::{Inflater, Stop};
pub(crate) use marker::Resolver;

/// How far back a copy may reach.
pub(crate) const WINDOW: usize = 32 * 1024;

/// A fault of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InflateFault {
    BlockType,
    StoredLength,
    TooManySymbols,
    LengthCode,
    Repeat,
    NoEnd,
    LiteralCode,
    DistanceCode,
    Literal,
    Distance,
    TooFar,
}

impl std::fmt::Display for InflateFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            InflateFault::BlockType => "there is no such type of block",
            InflateFault::StoredLength => "the two lengths of a stored block differ",
            InflateFault::TooManySymbols => "a code has too many symbols",
            InflateFault::LengthCode => "the code of the lengths is not valid",
            InflateFault::Repeat => "a length is repeated too often, or before there is one",
            InflateFault::NoEnd => "a block has no code for its end",
            InflateFault::LiteralCode => "the code of literals and lengths is not valid",
            InflateFault::DistanceCode => "the code of distances is not valid",
            InflateFault::Literal => "bits that are not a literal or length",
            InflateFault::Distance => "bits that are not a distance",
            InflateFault::TooFar => "a copy from before the beginning",
        })
    }
}
