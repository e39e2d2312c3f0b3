//! Helpers decode the next frames while the owner of a unit decodes one.
//!
//! ```text
//!            owner
//!  unit ├────▶  frame  ├── frame ──┼── frame ──┼── fra…
//!                        helper 1    helper 2    not all of it is here
//! ```
//! The headers of its blocks say where a frame ends. When the owner reaches a frame that a helper has decoded or is
//! decoding, it takes the text; a faulty frame has none, and the owner finds the fault itself. While the owner gives
//! out such a text, which does not take long, the next frame is left to the owner: otherwise it would have to wait
//! there.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use millstream_core::buffers;
use millstream_core::helpers::{HelperPool, Shared};

use super::decode::{Header, read_header};
use super::walk::Walk;
use super::whole;
use crate::lookahead::Lookahead;

/// The most frames that are decoded ahead at a time.
const MOST_JOBS: usize = 16;

/// Compressed bytes to look ahead per helper, and twice as many for the owner. A larger frame is left to the owner.
const LOOKED_AT: usize = 4 << 20;

/// The most text of a frame that is decoded ahead.
const MOST_TEXT: u64 = 16 << 20;

/// The most frames without text that are passed over to find one.
const MOST_SKIPPED: usize = 16;

/// The longest header: see [`read_header`].
const HEADER: u64 = 18;

#[cfg(test)]
thread_local! {
    /// How many frames owners of this thread have taken.
    pub(super) static TAKEN: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// A frame.
#[derive(Debug, Clone, Copy)]
struct Extent {
    /// Its bytes in the unit.
    start: u64,
    end: u64,
    /// The most bytes of text that it can have.
    text: u64,
}

/// A frame, handed to a helper.
struct Job {
    frame: Extent,
    decoded: Option<Shared<Option<Bytes>>>,
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(decoded) = self.decoded.take() {
            decoded.cancel();
        }
    }
}

/// What is decoded ahead of an owner.
pub(super) struct Ahead {
    helpers: Arc<dyn HelperPool>,
    coming: Lookahead,
    /// In the order of their positions.
    jobs: VecDeque<Job>,
}

impl Ahead {
    /// Nothing is decoded ahead yet.
    pub(super) fn new(helpers: Arc<dyn HelperPool>) -> Self {
        Ahead { helpers, coming: Lookahead::default(), jobs: VecDeque::new() }
    }

    /// Takes note of the bytes that come next, the first of which is byte `at` of the unit.
    pub(super) fn see(&mut self, at: u64, coming: &mut dyn Iterator<Item = &Bytes>) {
        match self.jobs.is_empty() && self.helpers.idle() == 0 {
            true => self.coming.forget(at),
            false => self.coming.see(at, coming),
        }
    }

    /// How many compressed bytes after the owner's position can be used.
    pub(super) fn wants(&self) -> usize {
        let helpers = (self.jobs.len() + self.helpers.idle()).min(MOST_JOBS);
        if helpers == 0 { 0 } else { (helpers + 2) * LOOKED_AT }
    }

    /// Bytes of memory that hold text.
    pub(super) fn held(&self) -> usize {
        let taken = self.jobs.iter().filter(|job| job.decoded.as_ref().is_some_and(Shared::is_taken));
        taken.map(|job| job.frame.text as usize).sum()
    }

    /// Gives the next frames to idle helpers. The owner is at byte `at`, in the frame of `walk`, which it decodes or
    /// (`jumps`) has taken.
    pub(super) fn share(&mut self, at: u64, walk: &Walk, jumps: bool) {
        self.coming.pass(at);
        let waiting = |job: &&Job| job.decoded.as_ref().is_some_and(|decoded| !decoded.is_taken());
        let is_ready = |job: &Job| job.decoded.as_ref().is_some_and(Shared::is_done);
        if self.jobs.iter().any(is_ready) {
            return;
        }
        let mut idle = self.helpers.idle().saturating_sub(self.jobs.iter().filter(waiting).count());
        while idle > 0 && self.jobs.len() < MOST_JOBS {
            let next = match self.jobs.back() {
                Some(job) => Some(job.frame.end),
                None => {
                    let end = self.end_of(*walk, at);
                    if jumps { end.and_then(|end| self.frame_from(end)).map(|frame| frame.end) } else { end }
                }
            };
            let Some(frame) = next.and_then(|start| self.frame_from(start)) else { return };
            let job = self.offer(frame);
            self.jobs.push_back(job);
            idle -= 1;
        }
    }

    /// Where the frame of `walk` ends, if its blocks have arrived.
    fn end_of(&self, mut walk: Walk, from: u64) -> Option<u64> {
        self.coming.parts(from, u64::MAX).for_each(|(at, bytes)| walk.over(at, &bytes));
        match walk {
            Walk::Ended { end, .. } => Some(end),
            _ => None,
        }
    }

    /// The first frame with data from byte `start` on, if it has arrived whole and is not too large.
    fn frame_from(&self, mut start: u64) -> Option<Extent> {
        let mut skipped = 0;
        let (header, checksum) = loop {
            let head: Vec<u8> = self.coming.parts(start, start + HEADER).flat_map(|(_, bytes)| bytes).collect();
            match read_header(&head, start).ok()? {
                Header::Short => return None,
                Header::Skippable { left } if skipped < MOST_SKIPPED => {
                    skipped += 1;
                    start = start.checked_add(8 + left)?;
                }
                Header::Skippable { .. } => return None,
                Header::Data { length, checksum, .. } => break (length, checksum),
            }
        };
        let mut walk = Walk::new(start + header as u64, checksum);
        self.coming.parts(start, u64::MAX).for_each(|(at, bytes)| walk.over(at, &bytes));
        match walk {
            Walk::Ended { end, text } if end <= self.coming.end() && text <= MOST_TEXT => {
                Some(Extent { start, end, text })
            }
            _ => None,
        }
    }

    fn offer(&self, frame: Extent) -> Job {
        let parts: Vec<Bytes> = self.coming.parts(frame.start, frame.end).map(|(_, bytes)| bytes).collect();
        let decoded = Shared::offer(&*self.helpers, move || decode(&parts, frame.text as usize));
        Job { frame, decoded: Some(decoded) }
    }

    /// The text and the end of the frame that begins at byte `start`, where the owner is, if a helper has started it
    /// and it is right.
    pub(super) fn take(&mut self, start: u64) -> Option<(Bytes, u64)> {
        while self.jobs.front().is_some_and(|job| job.frame.start < start) {
            self.jobs.pop_front();
        }
        let mut job = self.jobs.pop_front_if(|job| job.frame.start == start)?;
        let decoded = job.decoded.take_if(|decoded| decoded.is_taken())?;
        let text = decoded.take()??;
        #[cfg(test)]
        TAKEN.set(TAKEN.get() + 1);
        Some((text, job.frame.end))
    }
}

/// The text of the frame in `parts`, at most `most` bytes, if it is right.
fn decode(parts: &[Bytes], most: usize) -> Option<Bytes> {
    let [one] = parts else {
        let mut joined = buffers::take(parts.iter().map(Bytes::len).sum());
        parts.iter().for_each(|part| joined.extend_from_slice(part));
        let text = whole::decode(&joined, most);
        buffers::give_back(joined);
        return text;
    };
    whole::decode(one, most)
}
