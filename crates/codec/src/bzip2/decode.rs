//! Decodes one bzip2 stream; the blocks are left to libbz2.

use bzip2::{Decompress, Error as Fault, Status};
use millstream_core::{Error, ErrorKind, Result};

use crate::frame::{Frame, Progress, corrupt};
use crate::room;

/// Decodes streams, one after the other.
pub(crate) struct Bzip2Stream {
    state: Option<Decompress>,
    begin: u64,
    position: u64,
}

impl Bzip2Stream {
    /// A decoder. It allocates its memory (up to 3.6 MB) with the first byte.
    pub(crate) fn new() -> Self {
        Bzip2Stream { state: None, begin: 0, position: 0 }
    }
}

impl Frame for Bzip2Stream {
    fn begin(&mut self, at: u64) {
        self.state = None;
        self.begin = at;
        self.position = at;
    }

    fn decode(&mut self, input: &[u8], output: &mut Vec<u8>, room: usize) -> Result<Progress> {
        let state = self.state.get_or_insert_with(|| Decompress::new(false));
        let before_in = state.total_in();
        let before_out = state.total_out();
        // SAFETY: `total_out` grows by the bytes that libbz2 has written to the slice, from its beginning.
        let status = unsafe {
            room::append(output, room, |spare| {
                let status = state.decompress_uninit(input, spare);
                ((state.total_out() - before_out) as usize, status)
            })
        };
        let used = (state.total_in() - before_in) as usize;
        self.position += used as u64;
        match status {
            Ok(Status::StreamEnd) => {
                self.state = None;
                Ok(Progress { used, ended: true })
            }
            Ok(Status::MemNeeded) => {
                Err(Error::new(ErrorKind::Memory, "bzip2 cannot allocate its memory").byte(self.position))
            }
            Ok(_) => Ok(Progress { used, ended: false }),
            Err(Fault::DataMagic) if self.position < self.begin + 10 => {
                Err(corrupt("not bzip2: the first bytes are wrong", self.begin))
            }
            Err(_) => Err(corrupt("the bzip2 data is corrupt", self.position)
                .cause("a block is damaged, or its checksum is wrong")),
        }
    }

    fn missing(&self) -> String {
        "the compressed data is cut off".to_owned()
    }
}
