//! Decodes one xz stream; blocks, checks and index are left to liblzma.

use liblzma::stream::{Action, Error as Fault, Status, Stream, TELL_UNSUPPORTED_CHECK};
use millstream_core::{Error, ErrorKind, Result};

use crate::frame::{Frame, Progress, corrupt};
use crate::room;

/// The most memory a stream may ask for, in bytes: a dictionary of 128 MiB (`xz -9` has 64) and what goes with it.
const MEMORY_LIMIT: u64 = (128 + 8) << 20;

/// Decodes streams, one after the other.
pub(crate) struct XzStream {
    state: Option<Stream>,
    begin: u64,
    position: u64,
}

impl XzStream {
    /// A decoder. It allocates its memory when the stream says how much it needs.
    pub(crate) fn new() -> Self {
        XzStream { state: None, begin: 0, position: 0 }
    }

    fn fault(&self, fault: Fault) -> Error {
        match fault {
            Fault::Format => corrupt("not xz: the first bytes are wrong", self.begin),
            Fault::MemLimit => {
                Error::refused(format!("an xz stream needs more than {MEMORY_LIMIT} bytes of memory to be decoded"))
                    .byte(self.position)
                    .hint("compress it again with a dictionary of at most 128 MiB: any of `xz -0` to `xz -9`")
            }
            Fault::Mem => Error::new(ErrorKind::Memory, "xz cannot allocate its memory").byte(self.position),
            Fault::UnsupportedCheck => {
                Error::refused("an xz stream has a kind of checksum that cannot be checked").byte(self.position)
            }
            Fault::Options => Error::refused("an xz stream uses options or filters that are not supported")
                .byte(self.position)
                .hint("compress it again with `xz`"),
            other => corrupt("the xz data is corrupt", self.position).cause(match other {
                Fault::Data => "a block is damaged, or its checksum or the index is wrong".to_owned(),
                other => other.to_string(),
            }),
        }
    }
}

impl Frame for XzStream {
    fn begin(&mut self, at: u64) {
        self.state = None;
        self.begin = at;
        self.position = at;
    }

    fn decode(&mut self, input: &[u8], output: &mut Vec<u8>, room: usize) -> Result<Progress> {
        let mut state = match self.state.take() {
            Some(state) => state,
            None => {
                Stream::new_stream_decoder(MEMORY_LIMIT, TELL_UNSUPPORTED_CHECK).map_err(|fault| self.fault(fault))?
            }
        };
        let before_in = state.total_in();
        let before_out = state.total_out();
        // SAFETY: `total_out` grows by the bytes that liblzma has written to the slice, from its beginning.
        let status = unsafe {
            room::append(output, room, |spare| {
                let status = state.process_uninit(input, spare, Action::Run);
                ((state.total_out() - before_out) as usize, status)
            })
        };
        let used = (state.total_in() - before_in) as usize;
        self.position += used as u64;
        match status {
            Ok(Status::StreamEnd) => Ok(Progress { used, ended: true }),
            Ok(_) => {
                self.state = Some(state);
                Ok(Progress { used, ended: false })
            }
            Err(fault) => Err(self.fault(fault)),
        }
    }

    fn missing(&self) -> String {
        "the compressed data is cut off".to_owned()
    }
}
