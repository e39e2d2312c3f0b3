//! The memory of one sort: its share of the budget, in segments that are reused.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use millstream_core::direct::Aligned;
use millstream_core::{Budget, Error, Result};

/// Bytes of a segment. A record lies in one segment; one that is longer has a segment of its own.
pub(crate) const SEGMENT: usize = 256 << 10;

/// How many records ahead [`fetch`] is worthwhile.
pub(crate) const AHEAD: usize = 12;

/// Prefetches the first bytes of `record`, which is needed soon: copying records in the order of their keys is mostly
/// waiting for memory.
pub(crate) fn fetch(record: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in [0, 64] {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: it is a hint, and no address is a wrong one.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(record.as_ptr().wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = record;
}

/// The memory that a sort may hold and that it holds. Everything in a sort takes memory here.
#[derive(Debug)]
pub(crate) struct Memory {
    budget: Arc<Budget>,
    limit: usize,
    used: AtomicUsize,
    peak: AtomicUsize,
    /// Free segments. They are not charged until they are taken again, and are dropped when the budget has given their
    /// memory to others. `None` once no more pieces are filled.
    free: Mutex<Option<Vec<Aligned>>>,
}

impl Memory {
    /// A memory of at most `limit` bytes of `budget`.
    pub(crate) fn new(budget: Arc<Budget>, limit: usize) -> Arc<Self> {
        Arc::new(Memory {
            budget,
            limit,
            used: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            free: Mutex::new(Some(Vec::new())),
        })
    }

    /// The limit in bytes.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// The free bytes.
    pub(crate) fn left(&self) -> usize {
        self.limit.saturating_sub(self.used.load(Ordering::Relaxed))
    }

    /// The most bytes that it has held.
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
            self.trim();
            return None;
        }
        self.peak.fetch_max(self.used.load(Ordering::Relaxed), Ordering::Relaxed);
        Some(Held { memory: Arc::clone(self), bytes })
    }

    /// Takes `bytes` whether they are free or not, for what a sort cannot continue without.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Held {
        let used = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(used, Ordering::Relaxed);
        self.budget.take(bytes);
        Held { memory: Arc::clone(self), bytes }
    }

    /// A segment with room for at least `least` bytes. `force` takes it even if nothing is free.
    pub(crate) fn segment(self: &Arc<Self>, least: usize, force: bool) -> Result<Option<Segment>> {
        let size = least.max(SEGMENT);
        let held = match self.try_take(size) {
            Some(held) => held,
            None if force => self.take(size),
            None => return Ok(None),
        };
        let used = if size == SEGMENT { self.free().as_mut().and_then(Vec::pop) } else { None };
        let bytes = used.map_or_else(|| Aligned::new(size), Ok).map_err(|cause| no_memory(&cause))?;
        Ok(Some(Segment { bytes: Some(bytes), filled: 0, held }))
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Option<Vec<Aligned>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the free segments, before something else takes their memory.
    pub(crate) fn trim(&self) {
        self.free().iter_mut().for_each(Vec::clear);
    }

    /// Keeps no segments from here on, since no more pieces are filled.
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

    /// Nothing, of the same memory.
    pub(crate) fn nothing(&self) -> Held {
        Held { memory: Arc::clone(&self.memory), bytes: 0 }
    }

    /// Takes `bytes` more, whether they are free or not.
    pub(crate) fn grow(&mut self, bytes: usize) {
        let memory = Arc::clone(&self.memory);
        self.join(memory.take(bytes));
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
    /// `Some` until it is dropped.
    bytes: Option<Aligned>,
    filled: usize,
    held: Held,
}

impl Segment {
    /// The filled bytes.
    pub(crate) fn filled(&self) -> &[u8] {
        self.bytes.as_ref().map_or(&[], |bytes| &bytes[..self.filled])
    }

    /// The bytes that are left.
    pub(crate) fn room(&self) -> usize {
        self.bytes.as_ref().map_or(0, |bytes| bytes.len() - self.filled)
    }

    /// The next `length` bytes, to be filled.
    pub(crate) fn next(&mut self, length: usize) -> &mut [u8] {
        let from = self.filled;
        self.filled += length;
        self.bytes.as_mut().map_or(&mut [], |bytes| &mut bytes[from..from + length])
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let bytes = self.bytes.take().filter(|bytes| bytes.len() == SEGMENT);
        if let (Some(bytes), Some(free)) = (bytes, self.held.memory.free().as_mut()) {
            free.push(bytes);
        }
    }
}

/// The error if the system refuses memory that the budget has granted.
pub(crate) fn no_memory(cause: &std::io::Error) -> Error {
    Error::io("the system has no memory left for a sort", cause)
        .hint("lower `--memory`: then more of the rows go to scratch")
}
