//! Deflate without a wrapping (RFC 1951), as gzip members and zip members carry it.
//!
//! The one place that knows which inflate is underneath: flate2's raw interface over zlib-rs.

use flate2::{Decompress, FlushDecompress, Status};
use millstream_core::Result;

use crate::frame::{Frame, Progress, corrupt};
use crate::room;

/// Decodes one deflate stream.
#[derive(Debug)]
pub(crate) struct Inflate {
    state: Decompress,
    begin: u64,
}

impl Inflate {
    /// A decoder; [`Frame::begin`] says where its data begins.
    pub(crate) fn new() -> Self {
        Inflate { state: Decompress::new(false), begin: 0 }
    }
}

impl Frame for Inflate {
    fn begin(&mut self, at: u64) {
        self.state.reset(false);
        self.begin = at;
    }

    fn decode(&mut self, input: &[u8], output: &mut Vec<u8>, room: usize) -> Result<Progress> {
        let before_in = self.state.total_in();
        let before_out = self.state.total_out();
        let state = &mut self.state;
        // SAFETY: `total_out` grows by the bytes that inflate has written to the slice, from its beginning.
        let status = unsafe {
            room::append(output, room, |spare| {
                let status = state.decompress_uninit(input, spare, FlushDecompress::None);
                ((state.total_out() - before_out) as usize, status)
            })
        };
        let used = (self.state.total_in() - before_in) as usize;
        match status {
            Ok(status) => Ok(Progress { used, ended: status == Status::StreamEnd }),
            Err(error) => {
                let fault = corrupt("the deflate data is corrupt", self.begin + self.state.total_in());
                // In its fast loop inflate forgets what it found, and says only that it is in a bad state.
                Err(match error.message().filter(|message| !message.contains("bad state")) {
                    Some(message) => fault.cause(message),
                    None => fault,
                })
            }
        }
    }

    fn missing(&self) -> String {
        "the compressed data breaks off".to_owned()
    }
}
