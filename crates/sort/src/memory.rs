//! The memory of one sort: its share of the budget, in pieces that are used again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use millstream_core::Budget;

/// Bytes of a segment. A record lies in one segment; one that is longer has a segment of its own.
pub(crate) const SEGMENT: usize = 256 << 10;

/// What a sort may hold, and what it holds. All that holds memory for a sort takes it here.
#[derive(Debug)]
pub(crate) struct Memory {
    budget: Arc<Budget>,
    limit: usize,
    used: AtomicUsize,
    peak: AtomicUsize,
    /// Segments that nobody uses now. They are not charged: who takes one is charged again, and while pieces are filled
    /// nobody else takes what they had. `None` when no more are filled.
    free: Mutex<Option<Vec<Vec<u8>>>>,
}

impl Memory {
    /// At most `limit` bytes of `budget`.
    pub(crate) fn new(budget: Arc<Budget>, limit: usize) -> Arc<Self> {
        Arc::new(Memory {
            budget,
            limit,
            used: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            free: Mutex::new(Some(Vec::new())),
        })
    }

    /// The most it may hold, in bytes.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes that are free in it now.
    pub(crate) fn left(&self) -> usize {
        self.limit.saturating_sub(self.used.load(Ordering::Relaxed))
    }

    /// The most it ever held.
    pub(crate) fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// Takes `bytes` if they are free.
    pub(crate) fn try_take(self: &Arc<Self>, bytes: usize) -> Option<Held> {
        let fits = |used: usize| used.checked_add(bytes).filter(|total| *total <= self.limit);
        if self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err() {
            self.budget.refuse();
            return None;
        }
        if !self.budget.try_take(bytes) {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            return None;
        }
        self.peak.fetch_max(self.used.load(Ordering::Relaxed), Ordering::Relaxed);
        Some(Held { memory: Arc::clone(self), bytes })
    }

    /// Takes `bytes` whether they are free or not: for what one cannot go on without.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Held {
        let used = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(used, Ordering::Relaxed);
        self.budget.take(bytes);
        Held { memory: Arc::clone(self), bytes }
    }

    /// A segment with room for at least `least` bytes. `force` takes it although nothing is free.
    pub(crate) fn segment(self: &Arc<Self>, least: usize, force: bool) -> Option<Segment> {
        let size = least.max(SEGMENT);
        let held = match force {
            true => self.try_take(size).unwrap_or_else(|| self.take(size)),
            false => self.try_take(size)?,
        };
        let used = if size == SEGMENT { self.free().as_mut().and_then(Vec::pop) } else { None };
        Some(Segment { bytes: used.unwrap_or_else(|| vec![0; size]), filled: 0, held })
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Option<Vec<Vec<u8>>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the segments that nobody uses, before something else takes their memory.
    pub(crate) fn trim(&self) {
        self.free().iter_mut().for_each(Vec::clear);
    }

    /// No more pieces are filled: from here on no segment is kept.
    pub(crate) fn keep_no_segments(&self) {
        *self.free() = None;
    }
}

/// Bytes that are taken; given back when dropped.
#[derive(Debug)]
pub(crate) struct Held {
    memory: Arc<Memory>,
    bytes: usize,
}

impl Held {
    /// Adds what `other` holds.
    pub(crate) fn join(&mut self, mut other: Held) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Gives all but `bytes` back.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        self.bytes -= less;
        self.memory.used.fetch_sub(less, Ordering::Relaxed);
        self.memory.budget.give_back(less);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

/// Bytes in one piece, filled from the beginning.
#[derive(Debug)]
pub(crate) struct Segment {
    bytes: Vec<u8>,
    filled: usize,
    held: Held,
}

impl Segment {
    /// What has been filled.
    pub(crate) fn filled(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    /// What is left.
    pub(crate) fn room(&self) -> usize {
        self.bytes.len() - self.filled
    }

    /// The next `length` bytes, to be filled.
    pub(crate) fn next(&mut self, length: usize) -> &mut [u8] {
        let place = &mut self.bytes[self.filled..self.filled + length];
        self.filled += length;
        place
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if self.bytes.len() == SEGMENT
            && let Some(free) = self.held.memory.free().as_mut()
        {
            free.push(std::mem::take(&mut self.bytes));
        }
    }
}
