//! Helpers decode parts of a deflate stream ahead of its owner, and the owner jumps over the parts that they have
//! finished.
//!
//! ```text
//!            owner                    helper
//!  unit ├──────▶ known ────┤  gap   ├── search ── markers ──────▶ … ┤
//!                 the owner arrives ▲ exactly here? It stops the helper, takes the text, and continues after it
//! ```
//!
//! The owner waits at most for one step of the helper (64 Ki symbols), and gives the same text and the same faults as
//! without helpers. A helper's text is used only if the owner arrives at its first bit at the beginning of a block;
//! then it is what the owner would have decoded itself. Callers check the checksums, over the text as it comes out.
//!
//! The amount that is decoded ahead is bounded: a few regions of at most [`Sizes::gap`] bytes, each of at most
//! [`Sizes::most`] symbols.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use millstream_core::helpers::{HelperPool, Shared};

use crate::deflate::{Control, Links, NOWHERE, Region, Segment, Symbols, decode_ahead};
use crate::lookahead::Lookahead;

/// The most helpers at a time.
const MOST_JOBS: usize = 16;

/// How far ahead helpers begin, and how much they decode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// The most compressed bytes between the owner and its first helper, and between helpers.
    pub(crate) gap: usize,
    /// The least such bytes, for data whose text is many times larger.
    pub(crate) least: usize,
    /// The text between them, in bytes, at the ratio so far.
    pub(crate) text: usize,
    /// The most symbols that a helper decodes.
    pub(crate) most: usize,
}

/// A helper's share is about a millisecond of work: more than it costs to hand it over and to search for a block, and
/// little memory (at most 1 MiB, at two bytes a symbol).
const USUAL: Sizes = Sizes { gap: 128 << 10, least: 64 << 10, text: 3 << 17, most: 1 << 19 };

/// How many finished shares may wait for their owner while helpers get new ones.
const MOST_READY: usize = 1;

#[cfg(test)]
thread_local! {
    /// Sizes that tests set for small data.
    pub(crate) static TEST_SIZES: std::cell::Cell<Option<Sizes>> = const { std::cell::Cell::new(None) };
    /// How often an owner of this thread has jumped over markers, and over whole streams.
    pub(crate) static JUMPS: std::cell::Cell<(usize, usize)> = const { std::cell::Cell::new((0, 0)) };
}

fn sizes() -> Sizes {
    #[cfg(test)]
    if let Some(sizes) = TEST_SIZES.get() {
        return sizes;
    }
    USUAL
}

/// A share of the work, handed to a helper.
struct Job {
    /// The byte of the unit where its search begins.
    from: u64,
    control: Arc<Control>,
    shared: Option<Shared<Vec<Segment>>>,
}

impl Drop for Job {
    fn drop(&mut self) {
        self.control.stop();
        if let Some(shared) = self.shared.take() {
            shared.cancel();
        }
    }
}

/// What is decoded ahead of an owner.
pub(crate) struct Ahead {
    helpers: Arc<dyn HelperPool>,
    links: Links,
    sizes: Sizes,
    /// What the owner has not passed yet.
    coming: Lookahead,
    /// In the order of their positions.
    jobs: VecDeque<Job>,
    /// The remaining segments of a job that has been taken: each begins with a stream.
    ready: VecDeque<Segment>,
}

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ahead").field("end", &self.coming.end()).field("jobs", &self.jobs.len()).finish_non_exhaustive()
    }
}

impl Ahead {
    /// Nothing is decoded ahead yet.
    pub(crate) fn new(helpers: Arc<dyn HelperPool>, links: Links) -> Self {
        Ahead {
            helpers,
            links,
            sizes: sizes(),
            coming: Lookahead::default(),
            jobs: VecDeque::new(),
            ready: VecDeque::new(),
        }
    }

    /// Takes note of the bytes that come next, the first of which is byte `at` of the unit. Cheap if no helper is idle.
    pub(crate) fn see(&mut self, at: u64, coming: &mut dyn Iterator<Item = &Bytes>) {
        match self.jobs.is_empty() && self.helpers.idle() == 0 {
            true => self.coming.forget(at),
            false => self.coming.see(at, coming),
        }
    }

    /// How many compressed bytes after the owner's position can be used.
    pub(crate) fn wants(&self) -> usize {
        let helpers = (self.jobs.len() + self.helpers.idle()).min(MOST_JOBS);
        if helpers == 0 { 0 } else { (helpers + 1) * self.sizes.gap + self.sizes.least }
    }

    /// Bytes of memory that hold text.
    pub(crate) fn held(&self) -> usize {
        let ready = self.ready.iter().map(|segment| match &segment.symbols {
            Symbols::Marked(symbols, _) => 2 * symbols.capacity(),
            Symbols::Bytes(bytes, _) => bytes.capacity(),
        });
        ready.sum::<usize>() + self.jobs.iter().map(|job| job.control.held()).sum::<usize>()
    }

    /// Whether the owner should stop at the beginning of each block.
    pub(crate) fn watches(&self) -> bool {
        !self.jobs.is_empty() || !self.ready.is_empty()
    }

    /// Gives work to idle helpers. The owner is at byte `at`, and each byte so far has given `ratio` bytes of text.
    pub(crate) fn share(&mut self, at: u64, ratio: u64) {
        self.pass(at);
        let ready = self.jobs.iter().filter(|job| job.shared.as_ref().is_some_and(Shared::is_done)).count();
        if ready > MOST_READY {
            return;
        }
        let mut idle = self.helpers.idle().min(MOST_JOBS);
        let waiting = self.jobs.iter().filter(|job| job.shared.as_ref().is_some_and(|shared| !shared.is_taken()));
        idle = idle.saturating_sub(waiting.count());
        let gap = (self.sizes.text as u64 / ratio.max(1)) as usize;
        let gap = gap.clamp(self.sizes.least, self.sizes.gap) as u64;
        while idle > 0 && self.jobs.len() < MOST_JOBS {
            let ahead = self.ready.back().map_or(at, |segment| segment.end).max(at);
            let from = self.jobs.back().map_or(ahead, |job| job.from.max(ahead)) + gap;
            if from + self.sizes.least as u64 > self.coming.end() {
                return;
            }
            self.offer(from, (from + gap).min(self.coming.end()));
            idle -= 1;
        }
    }

    fn offer(&mut self, from: u64, to: u64) {
        let chunks = self.coming.parts(from, to).map(|(_, chunk)| chunk).collect();
        let region = Region { from, chunks, most: self.sizes.most, links: self.links };
        let control = Arc::new(Control::default());
        let theirs = Arc::clone(&control);
        let shared = Shared::offer(&*self.helpers, move || decode_ahead(&region, &theirs));
        self.jobs.push_back(Job { from, control, shared: Some(shared) });
    }

    /// Drops what lies before byte `at`, where the owner is.
    fn pass(&mut self, at: u64) {
        self.coming.pass(at);
        while self.jobs.front().is_some_and(|job| is_behind(job, at)) {
            self.jobs.pop_front();
        }
    }

    /// The segment that begins at bit `bit` of the unit, where the owner is at the beginning of a block or stream.
    pub(crate) fn segment_at(&mut self, bit: u64) -> Option<Segment> {
        while self.ready.front().is_some_and(|segment| segment.start < bit) {
            self.ready.pop_front();
        }
        if self.ready.front().is_some_and(|segment| segment.start == bit) {
            return self.ready.pop_front();
        }
        self.pass(bit / 8);
        while let Some(start) = self.jobs.front().and_then(|job| job.control.start()) {
            if start > bit {
                return None;
            }
            let mut job = self.jobs.pop_front()?;
            if start == bit {
                job.control.stop();
                self.ready = job.shared.take()?.take()?.into();
                return self.ready.pop_front();
            }
        }
        None
    }

    /// Drops the segments that follow one that could not be used.
    pub(crate) fn refuse(&mut self) {
        self.ready.clear();
    }
}

/// Whether the owner, at byte `at`, has passed `job`: it begins earlier, or no helper has started it.
fn is_behind(job: &Job, at: u64) -> bool {
    match job.control.start() {
        Some(start) => start == NOWHERE || start / 8 + 1 < at,
        None => job.from <= at && job.shared.as_ref().is_none_or(|shared| !shared.is_taken()),
    }
}
