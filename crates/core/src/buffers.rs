//! Memory for large pieces of data, used again when what was in it is dropped.
//!
//! Freed memory goes back to the system at once, so a fresh buffer of some megabytes costs a page fault for each 4 KiB
//! of it: a tenth of the time that inflate takes to fill it. So the last few are kept. Small buffers are left to the
//! allocator, which does the same for them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;

/// The least size of a buffer that is kept, in bytes.
const WORTH_KEEPING: usize = 64 << 10;

/// The most that a pool keeps in all, in bytes, if nothing else is said.
const KEPT: usize = 16 << 20;

static KEPT_AT_MOST: AtomicUsize = AtomicUsize::new(KEPT);

/// Has each pool keep no more than `bytes` of what nobody uses, from now on.
pub fn keep_at_most(bytes: usize) {
    KEPT_AT_MOST.store(bytes.min(KEPT), Ordering::Relaxed);
}

/// From here on, in bytes, half a buffer is too much to be left empty.
const COARSE: usize = 4 << 20;

static BYTES: Pool<u8> = Pool::new();

/// An empty buffer for at least `size` bytes.
pub fn take(size: usize) -> Vec<u8> {
    BYTES.take(size)
}

/// What is in `buffer`. When the last of its users has dropped it, the memory can be taken again.
pub fn share(buffer: Vec<u8>) -> Bytes {
    if buffer.capacity() < WORTH_KEEPING {
        return Bytes::from(buffer);
    }
    Bytes::from_owner(Kept(buffer))
}

/// `buffer` is not needed.
pub fn give_back(buffer: Vec<u8>) {
    BYTES.give_back(buffer);
}

struct Kept(Vec<u8>);

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        BYTES.give_back(std::mem::take(&mut self.0));
    }
}

/// Buffers that nobody uses, the last dropped at the end: it is the most likely to be in the processor's cache.
#[derive(Debug)]
pub struct Pool<T>(Mutex<Vec<Vec<T>>>);

impl<T> Pool<T> {
    /// A pool of none.
    pub const fn new() -> Self {
        Pool(Mutex::new(Vec::new()))
    }

    fn free(&self) -> MutexGuard<'_, Vec<Vec<T>>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// An empty buffer for at least `length` items. Large ones have a power of two of them, the largest a multiple of
    /// an eighth of that, so that those for data of different lengths can take each other's place.
    pub fn take(&self, length: usize) -> Vec<T> {
        if length * size_of::<T>() < WORTH_KEEPING {
            return Vec::with_capacity(length);
        }
        let power = length.next_power_of_two();
        let length = if power * size_of::<T>() > COARSE { length.next_multiple_of(power / 8) } else { power };
        let mut free = self.free();
        // A buffer that is much too large would be held by data that is small.
        match free.iter().rposition(|buffer| (length..2 * length).contains(&buffer.capacity())) {
            Some(index) => free.remove(index),
            None => {
                // The allocator need not be waited for.
                drop(free);
                Vec::with_capacity(length)
            }
        }
    }

    /// `buffer` is not needed.
    pub fn give_back(&self, mut buffer: Vec<T>) {
        let most = KEPT_AT_MOST.load(Ordering::Relaxed);
        if bytes_of(&buffer) < WORTH_KEEPING || bytes_of(&buffer) > most {
            return;
        }
        buffer.clear();
        let mut free = self.free();
        let mut kept: usize = bytes_of(&buffer) + free.iter().map(bytes_of).sum::<usize>();
        let too_many = free.iter().take_while(|oldest| {
            let over = kept > most;
            kept -= if over { bytes_of(oldest) } else { 0 };
            over
        });
        let too_many = too_many.count();
        let dropped: Vec<_> = free.drain(..too_many).collect();
        free.push(buffer);
        drop(free);
        drop(dropped);
    }
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Pool::new()
    }
}

fn bytes_of<T>(buffer: &Vec<T>) -> usize {
    buffer.capacity() * size_of::<T>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_back_is_taken_again() {
        let pool = Pool::<u8>::new();
        let mut first = pool.take(100_000);
        assert_eq!(first.capacity(), 1 << 17);
        first.push(1);
        let place = first.as_ptr();
        pool.give_back(first);
        let again = pool.take(70_000);
        assert!(again.is_empty() && again.as_ptr() == place);
        pool.give_back(again);
        assert_ne!(pool.take(65_536).capacity(), 1 << 17, "much too large");
        assert_eq!(pool.take(8_500_000).capacity(), 10 << 20);
    }

    #[test]
    fn little_is_kept() {
        let pool = Pool::<u16>::new();
        (0..40).for_each(|_| pool.give_back(Vec::with_capacity(1 << 19)));
        pool.give_back(Vec::with_capacity((KEPT >> 1) + 1));
        pool.give_back(Vec::with_capacity(10));
        assert_eq!(pool.free().len(), KEPT >> 20);
    }

    #[test]
    fn shared_bytes_are_the_buffer() {
        for length in [10, 100_000] {
            let mut buffer = take(length);
            buffer.resize(length, 7);
            let place = buffer.as_ptr();
            let shared = share(buffer);
            assert_eq!((shared.len(), shared.as_ptr()), (length, place));
        }
    }
}
