//! Memory for large texts, used again when the text that was in it is dropped.
//!
//! A fresh buffer of some megabytes costs a page fault for each 4 KiB of it: a tenth of the time that inflate takes to
//! fill it. So the last few are kept. Small buffers are left to the allocator, which does the same for them.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;

/// The least size of a buffer that is kept, in bytes.
const WORTH_KEEPING: usize = 64 << 10;

/// The most that a pool keeps in all, in bytes.
const KEPT: usize = 8 << 20;

static TEXTS: Pool<u8> = Pool::new();
static SYMBOLS: Pool<u16> = Pool::new();

/// Buffers that nobody uses, the last dropped at the end: it is the most likely to be in the processor's cache.
struct Pool<T>(Mutex<Vec<Vec<T>>>);

impl<T> Pool<T> {
    const fn new() -> Self {
        Pool(Mutex::new(Vec::new()))
    }

    fn free(&self) -> MutexGuard<'_, Vec<Vec<T>>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// An empty buffer for at least `length` items.
    fn take(&self, length: usize) -> Vec<T> {
        if length * size_of::<T>() >= WORTH_KEEPING {
            let mut free = self.free();
            // A buffer that is much too large would be held by a text that is small.
            let fits = |buffer: &Vec<T>| buffer.capacity() >= length && buffer.capacity() / 2 <= length;
            if let Some(index) = free.iter().rposition(fits) {
                return free.remove(index);
            }
        }
        Vec::with_capacity(length)
    }

    fn give_back(&self, mut buffer: Vec<T>) {
        if bytes_of(&buffer) < WORTH_KEEPING || bytes_of(&buffer) > KEPT / 2 {
            return;
        }
        buffer.clear();
        let mut free = self.free();
        let mut kept: usize = bytes_of(&buffer) + free.iter().map(bytes_of).sum::<usize>();
        let too_many = free.iter().take_while(|oldest| {
            let over = kept > KEPT;
            kept -= if over { bytes_of(oldest) } else { 0 };
            over
        });
        let too_many = too_many.count();
        let dropped: Vec<_> = free.drain(..too_many).collect();
        free.push(buffer);
        // The allocator need not be waited for.
        drop(free);
        drop(dropped);
    }
}

fn bytes_of<T>(buffer: &Vec<T>) -> usize {
    buffer.capacity() * size_of::<T>()
}

/// An empty buffer for at least `size` bytes.
pub(crate) fn take(size: usize) -> Vec<u8> {
    TEXTS.take(size)
}

/// The text in `buffer`. When the last of its users has dropped it, the memory can be taken again.
pub(crate) fn text(buffer: Vec<u8>) -> Bytes {
    if buffer.capacity() < WORTH_KEEPING {
        return Bytes::from(buffer);
    }
    Bytes::from_owner(Kept(buffer))
}

/// `buffer` is not needed.
pub(crate) fn give_back(buffer: Vec<u8>) {
    TEXTS.give_back(buffer);
}

struct Kept(Vec<u8>);

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        TEXTS.give_back(std::mem::take(&mut self.0));
    }
}

/// Symbols of two bytes, whose memory can be taken again when they are dropped.
pub(crate) struct KeptSymbols(Vec<u16>);

impl KeptSymbols {
    /// None yet, with room for `length`.
    pub(crate) fn with_capacity(length: usize) -> Self {
        KeptSymbols(SYMBOLS.take(length))
    }
}

impl Deref for KeptSymbols {
    type Target = Vec<u16>;

    fn deref(&self) -> &Vec<u16> {
        &self.0
    }
}

impl DerefMut for KeptSymbols {
    fn deref_mut(&mut self) -> &mut Vec<u16> {
        &mut self.0
    }
}

impl Drop for KeptSymbols {
    fn drop(&mut self) {
        SYMBOLS.give_back(std::mem::take(&mut self.0));
    }
}
