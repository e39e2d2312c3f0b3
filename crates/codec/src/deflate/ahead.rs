//! Decodes from somewhere in the middle of a unit, for the owner, which decodes from the beginning and will arrive
//! there.
//!
//! ```text
//!  region ──────┬──────────────────────┬───────┬──────────────────── to
//!     search…   │ segment: markers     │ links │ segment: bytes  …
//!               start                  end of the stream, next stream
//! ```
//!
//! The beginning is a guess: a block (whose window is unknown) or a whole stream (which needs none), whichever is found
//! first. If the owner arrives exactly there, the guess was right. The owner then takes the symbols and continues with
//! the helper's decoder, which may be in the middle of a block or right before a fault.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;

use super::find::find_block;
use super::{Inflater, Stop, marker};
use crate::symbols::KeptSymbols;

/// Symbols that are decoded before the helper checks whether to stop.
const STEP: usize = 64 << 10;

/// Bytes that are searched before the helper checks whether to stop.
const SEARCH_STEP: usize = 4 << 10;

/// A guess counts as right after so many symbols without a fault.
const BELIEVED: usize = 32 << 10;

/// The header and trailer around streams.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Links {
    /// The length of the header, if the bytes begin with a whole one.
    pub(crate) header: fn(&[u8]) -> Option<usize>,
    /// The bytes of the trailer.
    pub(crate) trailer: usize,
}

/// Shared by the owner and a helper.
#[derive(Debug, Default)]
pub(crate) struct Control {
    start: AtomicU64,
    stop: AtomicBool,
    held: AtomicUsize,
}

/// The start is not found yet.
const SEARCHING: u64 = 0;
/// There is no start in the region.
pub(crate) const NOWHERE: u64 = u64::MAX;

impl Control {
    /// The bit of the unit where the first segment begins; `None` if that is not known yet.
    pub(crate) fn start(&self) -> Option<u64> {
        Some(self.start.load(Ordering::Acquire)).filter(|start| *start != SEARCHING)
    }

    /// Asks the helper to stop after its step.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Bytes of memory that the text takes so far.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// A region to decode ahead.
#[derive(Debug)]
pub(crate) struct Region {
    /// The byte of the unit where the search begins.
    pub(crate) from: u64,
    /// The bytes from there.
    pub(crate) chunks: Vec<Bytes>,
    /// The most symbols to decode.
    pub(crate) most: usize,
    pub(crate) links: Links,
}

/// A decoded piece of a stream.
pub(crate) struct Segment {
    /// The bit of the unit where it begins.
    pub(crate) start: u64,
    /// The position in the unit after the last byte that was used.
    pub(crate) end: u64,
    pub(crate) symbols: Symbols,
}

/// The text of a segment, and the decoder at its end.
pub(crate) enum Symbols {
    /// The segment begins in the middle of a stream.
    Marked(KeptSymbols, Inflater<u16>),
    /// The segment begins with a stream. Without a decoder it is the whole stream.
    Bytes(Vec<u8>, Option<Inflater<u8>>),
}

/// Decodes `region` as far as possible. The first segment begins at [`Control::start`].
pub(crate) fn decode_ahead(region: &Region, control: &Control) -> Vec<Segment> {
    let joined;
    let data = match region.chunks.as_slice() {
        [one] => one.as_ref(),
        many => {
            joined = many.concat();
            &joined
        }
    };
    let mut work = Work { region, data, control, left: region.most, segments: Vec::new() };
    let mut next = work.first();
    if next.is_none() && work.segments.is_empty() {
        control.start.store(NOWHERE, Ordering::Release);
    }
    let mut inflater = None;
    while let Some(at) = next {
        next = work.stream(at, &mut inflater);
    }
    work.segments
}

struct Work<'a> {
    region: &'a Region,
    data: &'a [u8],
    control: &'a Control,
    /// Symbols that may still be decoded.
    left: usize,
    segments: Vec<Segment>,
}

impl Work<'_> {
    /// Finds a beginning, and decodes the block there. Returns where the next stream begins.
    fn first(&mut self) -> Option<usize> {
        let mut searcher = Inflater::<u16>::new();
        let mut from = 0;
        while from < self.data.len() && !self.control.stopped() {
            let to = (from + SEARCH_STEP).min(self.data.len());
            let stream = self.find_stream(from, to);
            let before = stream.map_or(to, |(header, _)| header);
            let mut bit = from * 8;
            while let Some(found) = find_block(&mut searcher, self.data, bit, before * 8) {
                if let Some(next) = self.block(found) {
                    return next;
                }
                bit = found + 1;
            }
            if let Some((header, body)) = stream {
                if self.believe_stream(body) {
                    self.publish(body as u64 * 8);
                    return Some(body);
                }
                from = header + 1;
            } else {
                from = to;
            }
        }
        None
    }

    /// Where in `from..to` a stream seems to begin: the positions of its header and of its data.
    fn find_stream(&self, from: usize, to: usize) -> Option<(usize, usize)> {
        memchr::memchr_iter(0x1f, &self.data[from..to]).find_map(|index| {
            let header = from + index;
            Some((header, header + (self.region.links.header)(&self.data[header..])?))
        })
    }

    fn believe_stream(&self, body: usize) -> bool {
        let mut trial = Inflater::<u8>::new();
        trial.decode(&self.data[body..], &mut Vec::new(), BELIEVED, false).is_ok()
    }

    fn publish(&self, bit: u64) {
        self.control.start.store(self.region.from * 8 + bit, Ordering::Release);
    }

    /// Decodes from the block at `bit`. `None` if there is no block; else where the next stream begins.
    fn block(&mut self, bit: usize) -> Option<Option<usize>> {
        let mut inflater = Inflater::<u16>::new();
        inflater.begin_after(&marker::markers());
        inflater.begin_in_byte(self.data[bit / 8], (bit % 8) as u32);
        let mut at = bit / 8 + 1;
        let mut symbols = KeptSymbols::with_capacity(self.left.min(self.data.len() * 4));
        let (used, stop) = inflater.decode(&self.data[at..], &mut symbols, BELIEVED.min(self.left), false).ok()?;
        at += used;
        self.publish(bit as u64);
        let ended = self.rest(&mut inflater, &mut symbols, &mut at, stop);
        let (start, end) = (self.region.from * 8 + bit as u64, self.region.from + at as u64);
        self.segments.push(Segment { start, end, symbols: Symbols::Marked(symbols, inflater) });
        Some(self.next_stream(ended, at))
    }

    /// Decodes the stream at byte `body`. Returns where the next one begins.
    fn stream(&mut self, body: usize, spare: &mut Option<Inflater<u8>>) -> Option<usize> {
        let mut inflater = spare.take().unwrap_or_else(Inflater::new);
        inflater.begin();
        let mut at = body;
        let mut symbols = Vec::new();
        let ended = self.rest(&mut inflater, &mut symbols, &mut at, Stop::Room);
        let (start, end) = ((self.region.from + body as u64) * 8, self.region.from + at as u64);
        let going = if ended {
            *spare = Some(inflater);
            None
        } else {
            Some(inflater)
        };
        self.segments.push(Segment { start, end, symbols: Symbols::Bytes(symbols, going) });
        self.next_stream(ended, at)
    }

    /// Continues decoding at byte `at`, after `stop`, until the stream or the input ends, the limit is reached, the
    /// owner asks to stop, or a fault is found. Returns whether the stream ended.
    fn rest<T: super::inflate::Symbol>(
        &mut self,
        inflater: &mut Inflater<T>,
        symbols: &mut Vec<T>,
        at: &mut usize,
        mut stop: Stop,
    ) -> bool {
        let before = self.control.held();
        self.left = self.left.saturating_sub(symbols.len());
        while stop == Stop::Room && self.left > 0 && !self.control.stopped() {
            let known = symbols.len();
            match inflater.decode(&self.data[*at..], symbols, STEP.min(self.left), false) {
                Ok((used, now)) => {
                    *at += used;
                    stop = now;
                }
                // The owner will find the fault itself.
                Err((used, _)) => {
                    *at += used;
                    stop = Stop::Input;
                }
            }
            self.left -= (symbols.len() - known).min(self.left);
            self.control.held.store(before + symbols.capacity() * size_of::<T>(), Ordering::Relaxed);
        }
        stop == Stop::End
    }

    /// Where the stream after one that ended at byte `end` begins.
    fn next_stream(&self, ended: bool, end: usize) -> Option<usize> {
        if !ended || self.left == 0 || self.control.stopped() {
            return None;
        }
        let header = end + self.region.links.trailer;
        Some(header + (self.region.links.header)(self.data.get(header..)?)?)
    }
}
