//! A whole gzip unit inflated in one call, by libdeflate. It returns nothing for faulty data; the decoder then finds
//! the fault.

use std::cell::RefCell;
use std::ptr::NonNull;

use bytes::Bytes;
use libdeflate_sys::{
    libdeflate_alloc_decompressor, libdeflate_decompressor, libdeflate_free_decompressor,
    libdeflate_gzip_decompress_ex, libdeflate_result_LIBDEFLATE_INSUFFICIENT_SPACE as INSUFFICIENT_SPACE,
    libdeflate_result_LIBDEFLATE_SUCCESS as SUCCESS,
};
use millstream_core::buffers;

use super::MAGIC;
use crate::room;

/// Header and trailer without anything between.
const SMALLEST_MEMBER: usize = 18;

/// The most that deflate can do.
const MOST_RATIO: usize = 1032;

/// The flag of a header's own checksum, which libdeflate does not compare.
const HAS_CHECK: u8 = 1 << 1;

thread_local! {
    /// Reused, since making one takes as long as inflating a kilobyte.
    static INFLATE: RefCell<Option<Inflate>> = const { RefCell::new(None) };
}

/// The text of all members of `data`, if it is right and at most `most` bytes.
pub(super) fn text(data: &[u8], most: usize) -> Option<Bytes> {
    INFLATE.with_borrow_mut(|inflate| {
        if inflate.is_none() {
            *inflate = Inflate::new();
        }
        let mut output = buffers::take(expected_size(data, most)?);
        match inflate.as_mut()?.members(data, &mut output, most) {
            Some(()) => Some(buffers::share(output)),
            None => {
                buffers::give_back(output);
                None
            }
        }
    })
}

/// How much memory to allocate first. The length at the end is only a hint: it is that of the last member, and may be
/// wrong or padding.
fn expected_size(data: &[u8], most: usize) -> Option<usize> {
    let said = u32::from_le_bytes(*data.last_chunk()?) as usize;
    let plausible = said >= data.len() / 2 && said / MOST_RATIO <= data.len();
    let expected = if plausible { said } else { data.len().saturating_mul(4) };
    (!plausible || said <= most).then_some(expected.clamp(1, most.max(1)))
}

/// libdeflate's decompressor.
struct Inflate(NonNull<libdeflate_decompressor>);

impl Inflate {
    fn new() -> Option<Self> {
        // SAFETY: it takes nothing and gives memory, or null.
        NonNull::new(unsafe { libdeflate_alloc_decompressor() }).map(Inflate)
    }

    fn members(&mut self, mut data: &[u8], output: &mut Vec<u8>, most: usize) -> Option<()> {
        loop {
            data = self.member(data, output, most)?;
            if data.iter().all(|&byte| byte == 0) {
                return Some(());
            }
        }
    }

    /// Appends the text of the first member of `data`; returns what follows it.
    fn member<'a>(&mut self, data: &'a [u8], output: &mut Vec<u8>, most: usize) -> Option<&'a [u8]> {
        if data.len() < SMALLEST_MEMBER || !data.starts_with(&MAGIC) || data[3] & HAS_CHECK != 0 {
            return None;
        }
        loop {
            let (mut used, mut written) = (0, 0);
            let room = (output.capacity().min(most)).saturating_sub(output.len());
            // SAFETY: both slices are valid for their lengths, and libdeflate keeps within them; on success it has
            // initialised `written` bytes of the second, from its beginning.
            let result = unsafe {
                room::append(output, room, |spare| {
                    let result = libdeflate_gzip_decompress_ex(
                        self.0.as_ptr(),
                        data.as_ptr().cast(),
                        data.len(),
                        spare.as_mut_ptr().cast(),
                        spare.len(),
                        &mut used,
                        &mut written,
                    );
                    (if result == SUCCESS { written } else { 0 }, result)
                })
            };
            match result {
                SUCCESS => return data.get(used..),
                INSUFFICIENT_SPACE if output.capacity() < most => {
                    let more = output.capacity().max(data.len()).max(SMALLEST_MEMBER);
                    output.reserve_exact((output.capacity() + more).min(most) - output.len());
                }
                _ => return None,
            }
        }
    }
}

impl Drop for Inflate {
    fn drop(&mut self) {
        // SAFETY: it comes from libdeflate, and nothing else refers to it.
        unsafe { libdeflate_free_decompressor(self.0.as_ptr()) }
    }
}
