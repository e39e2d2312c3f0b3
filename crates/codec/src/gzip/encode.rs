//! Encodes one gzip member. The header has neither a name nor a time, so that the same text gives the same file.

use crc32fast::Hasher;
use flate2::{Compress, Compression, FlushCompress, Status};
use millstream_core::codec::Encoder;
use millstream_core::{Error, Result};

/// Method deflate, no flags, no time, unknown operating system.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];

/// Memory that is reserved at a time for compressed bytes.
const STEP: usize = 32 * 1024;

/// gzip(1)'s own default.
const DEFAULT_LEVEL: i32 = 6;

/// Encodes one file.
#[derive(Debug)]
pub(super) struct GzipEncoder {
    deflate: Compress,
    text: Hasher,
    length: u32,
    begun: bool,
}

impl GzipEncoder {
    /// An encoder at level 0 (stored) to 9 (smallest).
    pub(super) fn new(level: Option<i32>) -> Result<Self> {
        let level = level.unwrap_or(DEFAULT_LEVEL);
        let known = u32::try_from(level).ok().filter(|level| *level <= 9);
        let Some(known) = known else {
            return Err(Error::job(format!("gzip has no compression level {level}")).hint("levels of gzip: 0 to 9"));
        };
        let deflate = Compress::new(Compression::new(known), false);
        Ok(GzipEncoder { deflate, text: Hasher::new(), length: 0, begun: false })
    }

    fn begin(&mut self, output: &mut Vec<u8>) {
        if !self.begun {
            output.extend_from_slice(&HEADER);
            self.begun = true;
        }
    }
}

impl Encoder for GzipEncoder {
    fn encode(&mut self, text: &[u8], output: &mut Vec<u8>) -> Result<()> {
        self.begin(output);
        self.text.update(text);
        self.length = self.length.wrapping_add(text.len() as u32);
        let mut rest = text;
        while !rest.is_empty() {
            output.reserve(STEP);
            let before = self.deflate.total_in();
            self.deflate.compress_vec(rest, output, FlushCompress::None).map_err(broken)?;
            rest = &rest[(self.deflate.total_in() - before) as usize..];
        }
        Ok(())
    }

    fn finish(&mut self, output: &mut Vec<u8>) -> Result<()> {
        self.begin(output);
        loop {
            output.reserve(STEP);
            let status = self.deflate.compress_vec(&[], output, FlushCompress::Finish).map_err(broken)?;
            if status == Status::StreamEnd {
                break;
            }
        }
        output.extend_from_slice(&self.text.clone().finalize().to_le_bytes());
        output.extend_from_slice(&self.length.to_le_bytes());
        Ok(())
    }
}

fn broken(error: flate2::CompressError) -> Error {
    Error::internal("deflate cannot continue").cause(error)
}
