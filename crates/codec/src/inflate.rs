//! Deflate without a wrapping (RFC 1951), as gzip members and zip members carry it.
//!
//! It combines our own decoder (see [`crate::deflate`]) with idle helpers that decode ahead (see [`crate::ahead`]).

use std::sync::Arc;

use bytes::Bytes;
use millstream_core::Result;
use millstream_core::helpers::HelperPool;

use crate::ahead::Ahead;
use crate::deflate::{InflateFault, Inflater, Links, Resolver, Segment, Stop, Symbols};
use crate::frame::{Frame, Progress, corrupt};
use crate::symbols::KeptSymbols;

/// Decodes one deflate stream.
#[derive(Debug)]
pub(crate) struct Inflate {
    decoder: Inflater<u8>,
    /// Bytes of the unit used so far.
    position: u64,
    /// Whether the stream ends where the decoder is.
    ended: bool,
    jump: Option<Box<Jump>>,
    ahead: Option<Box<Ahead>>,
    /// Bytes of the unit and of text so far, for their ratio.
    seen: (u64, u64),
}

/// A segment that a helper has decoded, while its text is given out.
struct Jump {
    text: Text,
    given: usize,
    /// The decoder at its end; none if the stream ends there.
    decoder: Option<Inflater<u8>>,
    /// Its compressed bytes. They count as used in step with the text.
    bytes: u64,
    used: u64,
}

enum Text {
    Marked(KeptSymbols, Resolver),
    Bytes(Vec<u8>),
}

impl std::fmt::Debug for Jump {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jump").field("given", &self.given).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Jump {
    /// A jump over `segment` from byte `at`, after the text in `window`.
    fn over(segment: Segment, at: u64, window: &[u8]) -> Self {
        let bytes = segment.end.saturating_sub(at);
        let (text, decoder) = match segment.symbols {
            Symbols::Bytes(text, decoder) => (Text::Bytes(text), decoder),
            Symbols::Marked(symbols, decoder) => {
                let resolver = Resolver::new(window);
                let decoder = decoder.resolve(&resolver);
                (Text::Marked(symbols, resolver), Some(decoder))
            }
        };
        Jump { text, given: 0, decoder, bytes, used: 0 }
    }

    fn length(&self) -> usize {
        match &self.text {
            Text::Marked(symbols, _) => symbols.len(),
            Text::Bytes(bytes) => bytes.len(),
        }
    }

    /// Appends at most `room` bytes of the text to `output`.
    fn give(&mut self, output: &mut Vec<u8>, room: usize) {
        let end = self.length().min(self.given + room);
        match &self.text {
            Text::Marked(symbols, resolver) => resolver.resolve(&symbols[self.given..end], output),
            Text::Bytes(bytes) => output.extend_from_slice(&bytes[self.given..end]),
        }
        self.given = end;
    }

    /// How many of `available` bytes belong to the text given so far; they count as used.
    fn consume(&mut self, available: usize) -> usize {
        let share = match self.length() {
            0 => self.bytes,
            length => (u128::from(self.bytes) * self.given as u128 / length as u128) as u64,
        };
        let used = (share - self.used).min(available as u64);
        self.used += used;
        used as usize
    }

    fn is_over(&self) -> bool {
        self.given == self.length() && self.used == self.bytes
    }
}

impl Inflate {
    /// A decoder; [`Frame::begin`] says where its data begins.
    pub(crate) fn new() -> Self {
        Inflate { decoder: Inflater::new(), position: 0, ended: false, jump: None, ahead: None, seen: (0, 0) }
    }

    /// See [`Frame::look_ahead`].
    pub(crate) fn look_ahead(
        &mut self,
        helpers: &Arc<dyn HelperPool>,
        links: Links,
        at: u64,
        coming: &mut dyn Iterator<Item = &Bytes>,
    ) {
        if self.ahead.is_none() && helpers.idle() > 0 {
            self.ahead = Some(Box::new(Ahead::new(Arc::clone(helpers), links)));
        }
        if let Some(ahead) = &mut self.ahead {
            ahead.see(at, coming);
        }
    }

    /// See [`Frame::wants`].
    pub(crate) fn wants(&self) -> usize {
        self.ahead.as_ref().map_or(0, |ahead| ahead.wants())
    }

    /// See [`Frame::held`].
    pub(crate) fn held(&self) -> usize {
        let jump = self.jump.as_ref().map_or(0, |jump| match &jump.text {
            Text::Marked(symbols, _) => 2 * symbols.capacity(),
            Text::Bytes(bytes) => bytes.capacity(),
        });
        jump + self.ahead.as_ref().map_or(0, |ahead| ahead.held())
    }

    /// The bit of the unit that comes next.
    fn bit(&self) -> u64 {
        self.position * 8 - u64::from(self.decoder.bits_left())
    }

    /// Jumps over a segment that begins here, if there is one. `fresh`: this is the first block of the stream.
    fn try_jump(&mut self, fresh: bool) {
        let bit = self.bit();
        let Some(ahead) = &mut self.ahead else { return };
        let Some(segment) = ahead.segment_at(bit) else { return };
        let fits = match segment.symbols {
            // Nothing came before it.
            Symbols::Bytes(..) => fresh,
            // A marker must not reach before the beginning.
            Symbols::Marked(..) => !fresh && self.decoder.window().len() == crate::deflate::WINDOW,
        };
        if !fits {
            ahead.refuse();
            return;
        }
        #[cfg(test)]
        crate::ahead::JUMPS.with(|jumps| {
            let (marked, whole) = jumps.get();
            jumps.set(if fresh { (marked, whole + 1) } else { (marked + 1, whole) });
        });
        self.jump = Some(Box::new(Jump::over(segment, self.position, self.decoder.window())));
        self.share();
    }

    /// Gives work to idle helpers.
    fn share(&mut self) {
        let end = self.jump.as_ref().map_or(self.position, |jump| self.position + jump.bytes - jump.used);
        let ratio = self.seen.1 / self.seen.0.max(1);
        if let Some(ahead) = &mut self.ahead {
            ahead.share(end, ratio);
        }
    }

    /// Gives the text of a jump. Returns how much of `input` was used. At its end, the helper's decoder takes over.
    fn give(&mut self, input: &[u8], output: &mut Vec<u8>, room: usize) -> usize {
        let Some(jump) = &mut self.jump else { return 0 };
        jump.give(output, room);
        let used = jump.consume(input.len());
        self.position += used as u64;
        if jump.is_over()
            && let Some(jump) = self.jump.take()
        {
            match jump.decoder {
                Some(decoder) => self.decoder = decoder,
                None => self.ended = true,
            }
        }
        used
    }

    fn fault(&self, fault: InflateFault) -> millstream_core::Error {
        corrupt("the deflate data is corrupt", self.bit() / 8).cause(fault)
    }

    fn count(&mut self, used: usize, given: usize) {
        self.seen.0 += used as u64;
        self.seen.1 += given as u64;
    }
}

impl Frame for Inflate {
    fn begin(&mut self, at: u64) {
        self.decoder.begin();
        self.position = at;
        self.ended = false;
        self.jump = None;
        self.try_jump(true);
    }

    fn decode(&mut self, input: &[u8], output: &mut Vec<u8>, room: usize) -> Result<Progress> {
        let full = output.len() + room;
        let start = output.len();
        let mut used = 0;
        if self.ahead.is_some() {
            self.share();
        }
        loop {
            if self.jump.is_some() {
                used += self.give(&input[used..], output, full - output.len());
                if self.jump.is_some() {
                    break;
                }
            }
            if self.ended {
                break;
            }
            let watches = self.ahead.as_ref().is_some_and(|ahead| ahead.watches());
            let decoded = self.decoder.decode(&input[used..], output, full - output.len(), watches);
            let (now, stop) = match decoded {
                Ok((now, stop)) => (now, Ok(stop)),
                Err((now, fault)) => (now, Err(fault)),
            };
            used += now;
            self.position += now as u64;
            match stop.map_err(|fault| self.fault(fault))? {
                Stop::Block => self.try_jump(false),
                Stop::End => self.ended = true,
                Stop::Input | Stop::Room => break,
            }
        }
        self.count(used, output.len() - start);
        Ok(Progress { used, ended: self.ended })
    }

    fn missing(&self) -> String {
        "the compressed data is cut off".to_owned()
    }
}
