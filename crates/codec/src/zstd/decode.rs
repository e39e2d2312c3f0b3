//! Decodes one zstd frame. Its header is read here first, so that what cannot be decoded (a window that is too large, a
//! dictionary) is refused with its reason before any memory is taken; libzstd decodes the rest.

use std::cell::Cell;
use std::sync::Arc;

use bytes::Bytes;
use millstream_core::helpers::HelperPool;
use millstream_core::{Error, ErrorKind, Result};
use zstd::stream::raw::{Decoder as Context, InBuffer, Operation, OutBuffer};

use super::ahead::Ahead;
use super::magic::{MAGIC, begins};
use super::walk::Walk;
use crate::frame::{Frame, Progress, corrupt};
use crate::room;

/// The largest window, in bytes: 128 MiB, the default limit of `zstd -d`.
const WINDOW_LIMIT: u64 = 128 << 20;

/// libzstd gets no more bytes at a time than up to the next multiple of this in a frame. It does not say where in them
/// it found a fault. So the reported position depends on the frame alone, not on how its bytes arrived.
const STEP: u64 = 128 << 10;

/// Magic (4), descriptor (1), window (1), dictionary (4), content size (8).
const HEADER_LIMIT: usize = 18;

#[derive(Debug)]
enum State {
    /// The header's bytes so far.
    Header(Vec<u8>),
    /// In a skippable frame.
    Skip { left: u64 },
    /// In the blocks. `more` says that libzstd may still hold text.
    Blocks { more: bool },
    /// In a frame that a helper has decoded.
    Jump(Jump),
}

/// The text of a frame that a helper has decoded, while it is given out.
#[derive(Debug)]
struct Jump {
    text: Bytes,
    /// Bytes of the frame that are not used yet.
    left: u64,
}

/// The largest window of contexts that are kept for the next unit: 8 MiB, as `zstd -19` needs.
const KEPT_WINDOW: u64 = 8 << 20;

thread_local! {
    /// The context of the last unit, whose window is already allocated.
    static SPARE: Cell<Option<Context<'static>>> = const { Cell::new(None) };
}

/// Decodes frames, one after the other.
pub(crate) struct ZstdFrame {
    /// Taken out only when this is dropped.
    context: Option<Context<'static>>,
    /// The largest window so far, in bytes.
    window: u64,
    state: State,
    /// The position in the unit where the frame begins.
    start: u64,
    position: u64,
    /// The bytes of the frame's text by its header.
    expected: Option<u64>,
    given: u64,
    /// Where the frame ends, as far as that is known.
    walk: Walk,
    ahead: Option<Box<Ahead>>,
}

impl ZstdFrame {
    /// A decoder; fails if there is no memory for it.
    pub(crate) fn new() -> Result<Self> {
        let spare = SPARE.take();
        let context = match spare {
            Some(context) => context,
            None => Context::new()
                .map_err(|cause| Error::new(ErrorKind::Memory, "zstd cannot allocate its memory").cause(cause))?,
        };
        let mut frame = ZstdFrame {
            context: Some(context),
            window: 0,
            state: State::Header(Vec::new()),
            start: 0,
            position: 0,
            expected: None,
            given: 0,
            walk: Walk::default(),
            ahead: None,
        };
        frame.begin(0);
        Ok(frame)
    }

    /// Reads the header from `input`; returns how many bytes were used.
    fn header(&mut self, input: &[u8]) -> Result<usize> {
        let State::Header(gathered) = &mut self.state else {
            return Ok(0);
        };
        // A header that lies whole in the input stays there: given the whole frame at once, libzstd decodes it
        // straight into the output.
        if gathered.is_empty()
            && let Header::Data { length, text, window, checksum } = read_header(input, self.position)?
            && length <= input.len()
        {
            self.expected = text;
            self.window = self.window.max(window);
            self.walk = Walk::new(self.position + length as u64, checksum);
            self.state = State::Blocks { more: true };
            return Ok(0);
        }
        let mut used = 0;
        for &byte in input {
            gathered.push(byte);
            used += 1;
            self.position += 1;
            match read_header(gathered, self.position - gathered.len() as u64)? {
                Header::Skippable { left } => {
                    self.state = State::Skip { left };
                    return Ok(used);
                }
                Header::Data { length, text, window, checksum } if length == gathered.len() => {
                    self.expected = text;
                    self.window = self.window.max(window);
                    self.walk = Walk::new(self.position, checksum);
                    let header = std::mem::take(gathered);
                    self.state = State::Blocks { more: true };
                    self.blocks(&header, &mut Vec::new(), 0, false)?;
                    return Ok(used);
                }
                _ => {}
            }
        }
        Ok(used)
    }

    /// Decodes `input` in steps, as far as there is room.
    fn steps(&mut self, input: &[u8], output: &mut Vec<u8>, room: usize) -> Result<Progress> {
        let (full, mut all) = (output.len() + room, Progress { used: 0, ended: false });
        loop {
            let left = STEP - (self.position - self.start) % STEP;
            let rest = &input[all.used..];
            let next = &rest[..rest.len().min(left as usize)];
            let progress = self.blocks(next, output, full - output.len(), true)?;
            all = Progress { used: all.used + progress.used, ended: progress.ended };
            if all.ended || progress.used < next.len() || all.used == input.len() || output.len() == full {
                return Ok(all);
            }
        }
    }

    /// Decodes `input` with one call of libzstd.
    fn blocks(&mut self, input: &[u8], output: &mut Vec<u8>, room: usize, counted: bool) -> Result<Progress> {
        let Some(context) = &mut self.context else {
            return Err(Error::internal("a zstd decoder without its context"));
        };
        let mut source = InBuffer::around(input);
        // SAFETY: the buffer's position is what libzstd has written to the slice, from its beginning.
        let (hint, written) = unsafe {
            room::append(output, room, |spare| {
                let mut spare = room::Spare::new(spare);
                let mut target = OutBuffer::around(&mut spare);
                let hint = context.run(&mut source, &mut target);
                let written = target.pos();
                (written, (hint, written))
            })
        };
        let used = source.pos();
        if counted {
            self.walk.over(self.position, &input[..used]);
            self.position += used as u64;
        }
        let hint = hint.map_err(|cause| {
            let step = self.start + (self.position - self.start) / STEP * STEP;
            corrupt("the zstd data is corrupt", step).cause(cause)
        })?;
        self.state = State::Blocks { more: written == room };
        self.given += written as u64;
        // libzstd compares the two only where the last block has text, or the whole frame is there at once.
        if let Some(expected) = self.expected.filter(|expected| hint == 0 && *expected != self.given) {
            let cause = format!("a frame has {} bytes of text, and its header says {expected}", self.given);
            return Err(corrupt("the zstd data is corrupt", self.position).cause(cause));
        }
        Ok(Progress { used, ended: hint == 0 })
    }

    /// Gives out the text of a frame that a helper has decoded, and skips its bytes.
    fn jump(&mut self, input: &[u8], output: &mut Vec<u8>, room: usize) -> Progress {
        let State::Jump(jump) = &mut self.state else {
            return Progress { used: 0, ended: false };
        };
        output.extend_from_slice(&jump.text.split_to(jump.text.len().min(room)));
        let used = usize::try_from(jump.left).unwrap_or(usize::MAX).min(input.len());
        jump.left -= used as u64;
        self.position += used as u64;
        Progress { used, ended: jump.left == 0 && jump.text.is_empty() }
    }

    fn skip(&mut self, input: &[u8]) -> Progress {
        let State::Skip { left } = &mut self.state else {
            return Progress { used: 0, ended: false };
        };
        let used = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
        *left -= used as u64;
        self.position += used as u64;
        Progress { used, ended: *left == 0 }
    }
}

impl Frame for ZstdFrame {
    fn begin(&mut self, at: u64) {
        // Resetting the session of a context cannot fail; if it could, the next frame's decoding would say so.
        if let Some(context) = &mut self.context {
            let _ = context.reinit();
        }
        self.state = State::Header(Vec::new());
        (self.start, self.position) = (at, at);
        (self.expected, self.given) = (None, 0);
        self.walk = Walk::default();
        if let Some(ahead) = &mut self.ahead
            && let Some((text, end)) = ahead.take(at)
        {
            self.walk = Walk::ending(end);
            self.state = State::Jump(Jump { text, left: end - at });
        }
    }

    fn decode(&mut self, input: &[u8], output: &mut Vec<u8>, room: usize) -> Result<Progress> {
        if let Some(ahead) = &mut self.ahead {
            ahead.share(self.position, &self.walk, matches!(self.state, State::Jump(_)));
        }
        let mut used = self.header(input)?;
        match self.state {
            State::Header(_) => Ok(Progress { used, ended: false }),
            State::Jump(_) => Ok(self.jump(input, output, room)),
            State::Skip { .. } => {
                let progress = self.skip(&input[used..]);
                used += progress.used;
                Ok(Progress { used, ended: progress.ended })
            }
            State::Blocks { more } => {
                let rest = &input[used..];
                // libzstd calls it an error to be called again and again without anything to do.
                if room == 0 || (rest.is_empty() && !more) {
                    return Ok(Progress { used, ended: false });
                }
                let progress = self.steps(rest, output, room)?;
                Ok(Progress { used: used + progress.used, ended: progress.ended })
            }
        }
    }

    fn missing(&self) -> String {
        match &self.state {
            State::Header(_) => "the header of a frame is cut off".to_owned(),
            State::Skip { left } => format!("{left} bytes of a skippable frame are missing"),
            State::Blocks { .. } | State::Jump(_) => "the compressed data is cut off".to_owned(),
        }
    }

    fn look_ahead(&mut self, helpers: &Arc<dyn HelperPool>, at: u64, coming: &mut dyn Iterator<Item = &Bytes>) {
        if self.ahead.is_none() && helpers.idle() > 0 {
            self.ahead = Some(Box::new(Ahead::new(Arc::clone(helpers))));
        }
        if let Some(ahead) = &mut self.ahead {
            ahead.see(at, coming);
        }
    }

    fn wants(&self) -> usize {
        self.ahead.as_ref().map_or(0, |ahead| ahead.wants())
    }

    fn held(&self) -> usize {
        let jump = match &self.state {
            State::Jump(jump) => jump.text.len(),
            _ => 0,
        };
        jump + self.ahead.as_ref().map_or(0, |ahead| ahead.held())
    }
}

impl Drop for ZstdFrame {
    fn drop(&mut self) {
        if self.window <= KEPT_WINDOW {
            // At the very end of a thread the spare slot is gone.
            let _ = SPARE.try_with(|spare| spare.set(self.context.take()));
        }
    }
}

/// The header of a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// Not enough bytes yet.
    Short,
    /// A skippable frame with `left` bytes after its header.
    Skippable { left: u64 },
    /// A frame with data.
    Data {
        /// The header's length.
        length: usize,
        /// The size of the text, if the header has it.
        text: Option<u64>,
        /// The size of the window in bytes.
        window: u64,
        /// Whether four more bytes follow the last block.
        checksum: bool,
    },
}

/// Reads the header at the beginning of `bytes` (RFC 8878, 3.1.1.1), which lie at byte `at` of the unit.
pub(super) fn read_header(bytes: &[u8], at: u64) -> Result<Header> {
    match begins(bytes) {
        None => return Ok(Header::Short),
        Some(false) => {
            return Err(corrupt("not zstd: the first bytes are wrong", at).text(&bytes[..bytes.len().min(4)]));
        }
        Some(true) => {}
    }
    if bytes[..4] != MAGIC {
        let left = bytes.get(4..8).map(number);
        return Ok(left.map_or(Header::Short, |left| Header::Skippable { left }));
    }
    let Some(&descriptor) = bytes.get(4) else {
        return Ok(Header::Short);
    };
    let single_segment = descriptor & 0x20 != 0;
    let dictionary_size = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let content_size = match descriptor >> 6 {
        0 => usize::from(single_segment),
        power => 1 << power,
    };
    let dictionary_at = 5 + usize::from(!single_segment);
    let content_at = dictionary_at + dictionary_size;
    let length = content_at + content_size;
    debug_assert!(length <= HEADER_LIMIT);
    if bytes.len() < length {
        return Ok(Header::Short);
    }
    // The two-byte form counts from 256: shorter text fits the one-byte form.
    let text = match content_size {
        0 => None,
        2 => Some(number(&bytes[content_at..length]) + 256),
        _ => Some(number(&bytes[content_at..length])),
    };
    let window = if single_segment { text.unwrap_or(0) } else { window_size(bytes[5]) };
    if window > WINDOW_LIMIT {
        return Err(Error::refused(format!(
            "a zstd frame needs a window of {window} bytes; at most {WINDOW_LIMIT} are allowed"
        ))
        .byte(at)
        .hint("compress it again with a window of at most 128 MiB: `zstd --long=27`, or without `--long`"));
    }
    let dictionary = number(&bytes[dictionary_at..content_at]);
    if dictionary != 0 {
        return Err(Error::refused(format!("a zstd frame needs dictionary {dictionary}, which is not available"))
            .byte(at)
            .hint("compress it again without a dictionary"));
    }
    Ok(Header::Data { length, text, window, checksum: descriptor & 0x04 != 0 })
}

/// The window's size in bytes from its descriptor: a power of two and eighths of it.
fn window_size(descriptor: u8) -> u64 {
    let base = 1u64 << (10 + (descriptor >> 3));
    base + base / 8 * u64::from(descriptor & 7)
}

/// Up to eight bytes, the lowest first.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}
