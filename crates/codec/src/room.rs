//! Lets a decoder append to a vector, into memory that is not initialised, within a given room.
//!
//! Filling the memory with zeros first would cost more than decoding a small unit.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use zstd::stream::raw::WriteBuf;

/// Lets `write` fill up to `room` items after the end of `output`. It returns how many it wrote, from the beginning,
/// and a result.
///
/// # Safety
/// `write` must have initialised as many items, from the beginning of the slice, as it returns.
pub(crate) unsafe fn append<T>(
    output: &mut Vec<u8>,
    room: usize,
    write: impl FnOnce(&mut [MaybeUninit<u8>]) -> (usize, T),
) -> T {
    output.reserve(room);
    let length = output.len();
    let (written, result) = write(&mut output.spare_capacity_mut()[..room]);
    // SAFETY: the caller promises that `written` bytes are initialised; `min` keeps it inside of what was reserved.
    unsafe { output.set_len(length + written.min(room)) };
    result
}

/// Uninitialised memory as zstd writes to it.
pub(crate) struct Spare<'a> {
    memory: &'a mut [MaybeUninit<u8>],
    filled: usize,
}

impl<'a> Spare<'a> {
    /// Nothing of `memory` is filled yet.
    pub(crate) fn new(memory: &'a mut [MaybeUninit<u8>]) -> Self {
        Spare { memory, filled: 0 }
    }
}

// SAFETY: `as_slice` covers only what zstd reported as written, and the pointer is valid for `capacity` bytes.
unsafe impl WriteBuf for Spare<'_> {
    fn as_slice(&self) -> &[u8] {
        // SAFETY: the first `filled` bytes have been written, see `filled_until`.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().cast(), self.filled) }
    }

    fn capacity(&self) -> usize {
        self.memory.len()
    }

    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.memory.as_mut_ptr().cast::<c_void>().cast()
    }

    unsafe fn filled_until(&mut self, filled: usize) {
        self.filled = filled.min(self.memory.len());
    }
}
