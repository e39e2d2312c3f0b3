//! Millstream's codecs: compressed bytes to text, and back where the sinks need it.
//!
//! - [`CODECS`]: the compressions of one stream (gzip, zstd, bzip2, xz), as the registry knows them.
//! - [`Unpack`]: everything that lies between the bytes of a unit and its text: which codec it is (by its first
//!   bytes), the archives zip and tar, decoding, and the limits against bombs. It does no I/O.
//! - [`ZipPlan`]: which parts of a large zip are to be read, by its directory.
//!
//! Sources provide the bytes, and formats parse the text.

mod ahead;
mod bzip2;
#[cfg(test)]
mod conformance;
mod deflate;
mod frame;
mod gzip;
mod inflate;
mod input;
mod lookahead;
mod members;
mod ratio;
mod room;
mod symbols;
mod tar;
#[cfg(test)]
mod test_helpers;
mod unpack;
mod xz;
mod zip;
mod zstd;

use millstream_core::registry::CodecEntry;

pub use millstream_core::codec::Limits;
pub use unpack::{
    PACKED_HEAD, Packing, Unpack, UnpackOptions, Unpacked, check_members, codec_by_name, has_directory_by_name,
    is_packed, is_zip, packing_by_name,
};
pub use zip::{ZipCuts, ZipEnding, ZipPlan, ZipPlanner};

/// All codecs. A new one needs a folder and a line here.
pub const CODECS: &[CodecEntry] = &[gzip::ENTRY, zstd::ENTRY, bzip2::ENTRY, xz::ENTRY];
