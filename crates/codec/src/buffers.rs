//! Memory for large texts, used again when the text that was in it is dropped.
//!
//! A fresh buffer of some megabytes costs a page fault for each 4 KiB of it: a tenth of the time that inflate takes to
//! fill it. So the last few are kept. Small buffers are left to the allocator, which does the same for them.

use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;

/// The least size of a buffer that is kept, in bytes.
const WORTH_KEEPING: usize = 64 << 10;

/// The most that is kept in all, in bytes.
const KEPT: usize = 8 << 20;

/// Buffers that nobody uses, the last dropped at the end: it is the most likely to be in the processor's cache.
static FREE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

fn free() -> MutexGuard<'static, Vec<Vec<u8>>> {
    FREE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// An empty buffer for at least `size` bytes.
pub(crate) fn take(size: usize) -> Vec<u8> {
    if size >= WORTH_KEEPING {
        let mut free = free();
        // A buffer that is much too large would be held by a text that is small.
        let fits = |buffer: &Vec<u8>| buffer.capacity() >= size && buffer.capacity() / 2 <= size;
        if let Some(index) = free.iter().rposition(fits) {
            return free.remove(index);
        }
    }
    Vec::with_capacity(size)
}

/// The text in `buffer`. When the last of its users has dropped it, the memory can be taken again.
pub(crate) fn text(buffer: Vec<u8>) -> Bytes {
    if buffer.capacity() < WORTH_KEEPING {
        return Bytes::from(buffer);
    }
    Bytes::from_owner(Kept(buffer))
}

/// `buffer` is not needed.
pub(crate) fn give_back(mut buffer: Vec<u8>) {
    if buffer.capacity() < WORTH_KEEPING || buffer.capacity() > KEPT / 2 {
        return;
    }
    buffer.clear();
    let mut free = free();
    let mut kept: usize = buffer.capacity() + free.iter().map(Vec::capacity).sum::<usize>();
    let too_many = free.iter().take_while(|oldest| {
        let over = kept > KEPT;
        kept -= if over { oldest.capacity() } else { 0 };
        over
    });
    let too_many = too_many.count();
    let dropped: Vec<_> = free.drain(..too_many).collect();
    free.push(buffer);
    // The allocator need not be waited for.
    drop(free);
    drop(dropped);
}

struct Kept(Vec<u8>);

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        give_back(std::mem::take(&mut self.0));
    }
}
