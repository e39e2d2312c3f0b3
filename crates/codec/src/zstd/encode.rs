//! Encodes one zstd frame, with a checksum of the text, which the format leaves optional: a flipped bit must be found.

use millstream_core::codec::Encoder;
use millstream_core::{Error, Result};
use zstd::stream::raw::{CParameter, Encoder as Context, InBuffer, Operation, OutBuffer};

use crate::room;

/// Memory that is reserved at a time for compressed bytes: a whole block.
const STEP: usize = 128 * 1024;

/// Encodes one file.
pub(super) struct ZstdEncoder {
    context: Context<'static>,
}

impl ZstdEncoder {
    /// An encoder at one of zstd's levels, negative ones (faster) included.
    pub(super) fn new(level: Option<i32>) -> Result<Self> {
        let levels = zstd::compression_level_range();
        let level = level.unwrap_or(zstd::DEFAULT_COMPRESSION_LEVEL);
        if !levels.contains(&level) {
            return Err(Error::job(format!("zstd has no compression level {level}")).hint(format!(
                "levels of zstd: {} to {}",
                levels.start(),
                levels.end()
            )));
        }
        let mut context = Context::new(level).map_err(broken)?;
        context.set_parameter(CParameter::ChecksumFlag(true)).map_err(broken)?;
        Ok(ZstdEncoder { context })
    }

    /// Runs `step` with room behind the end of `output`.
    fn with_room<T>(
        &mut self,
        output: &mut Vec<u8>,
        step: impl FnOnce(&mut Context<'static>, &mut OutBuffer<'_, room::Spare<'_>>) -> T,
    ) -> T {
        // SAFETY: the buffer's position is what libzstd has written to the slice, from its beginning.
        unsafe {
            room::append(output, STEP, |spare| {
                let mut spare = room::Spare::new(spare);
                let mut target = OutBuffer::around(&mut spare);
                let result = step(&mut self.context, &mut target);
                (target.pos(), result)
            })
        }
    }
}

impl Encoder for ZstdEncoder {
    fn encode(&mut self, text: &[u8], output: &mut Vec<u8>) -> Result<()> {
        let mut source = InBuffer::around(text);
        while source.pos() < text.len() {
            self.with_room(output, |context, target| context.run(&mut source, target)).map_err(broken)?;
        }
        Ok(())
    }

    fn finish(&mut self, output: &mut Vec<u8>) -> Result<()> {
        loop {
            let left = self.with_room(output, |context, target| context.finish(target, true)).map_err(broken)?;
            if left == 0 {
                return Ok(());
            }
        }
    }
}

fn broken(cause: std::io::Error) -> Error {
    Error::internal("zstd cannot continue").cause(cause)
}
