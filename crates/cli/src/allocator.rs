//! The allocator: freed memory is returned to the system soon.
//!
//! A budget means the resident size of the process. By default mimalloc keeps freed memory for a second, and the kernel
//! backs it with huge pages, whose unused rest also counts as resident: together they doubled the peak of a streaming
//! run, and let it grow with the number of files. If it is returned at once, the buffers of a text that several cores
//! parse are faulted in again and again, since one thread takes what another frees: that took a third of the time of
//! such a load. So memory is kept for some milliseconds, if there is much of it; longer by a process that does nothing,
//! since mimalloc returns it when other memory is freed.
//!
//! mimalloc takes memory in pages of up to 4 MB, and returns a page when nothing in it is in use. Rows come in buffers
//! of some 100 KB that live for different times, so a few pages are always held for what is left in them: 25 MB in a
//! sort. That is little beside most budgets. Under a small one, large pieces are mapped one by one. A few mappings that
//! were freed are kept for the next pieces of their size: a fifth of the time of a run that parses messages went into
//! mappings and pages.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{c_long, c_ulong, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libmimalloc_sys::mi_is_in_heap_region;
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// The least size of a piece that has a mapping of its own under a small budget, in bytes.
const LARGE: usize = 64 << 10;

/// A budget below this one is small, in bytes.
const SMALL_BUDGET: u64 = 200_000_000;

/// Budgets from which on freed memory is kept, in bytes, and for how many milliseconds at least.
const KEPT_FOR: [(u64, c_long); 2] = [(500_000_000, 10), (1_000_000_000, 50)];

/// The most mappings that are kept, and their bytes together.
const MOST_KEPT: (usize, usize) = (48, 6 << 20);

/// Whether large pieces are mapped one by one.
static MAPS: AtomicBool = AtomicBool::new(false);

/// Fits the allocator to a budget of `memory` bytes: under a small one large pieces are mapped from now on.
pub fn fit(memory: u64) {
    if memory < SMALL_BUDGET {
        MAPS.store(true, Ordering::Relaxed);
    }
    let kept_for = KEPT_FOR.iter().rev().find(|(budget, _)| memory >= *budget);
    return_after(kept_for.map_or(0, |(_, milliseconds)| *milliseconds));
}

/// mimalloc, and mappings for large pieces under a small budget.
struct Allocator;

impl Allocator {
    /// Whether a piece of `size` bytes is to be mapped.
    fn maps(size: usize, alignment: usize) -> bool {
        size >= LARGE && MAPS.load(Ordering::Relaxed) && alignment <= PAGE
    }

    /// Whether `piece` was mapped. Before the budget was known, large pieces were mimalloc's, too.
    fn is_mapped(piece: *mut u8, layout: Layout) -> bool {
        // SAFETY: any address may be asked about.
        Allocator::maps(layout.size(), layout.align()) && !unsafe { mi_is_in_heap_region(piece.cast::<c_void>()) }
    }
}

/// The least page of all systems, in bytes.
const PAGE: usize = 4096;

/// The length of the mapping of a piece: a multiple of a sixteenth of the next power of two, so that many pieces have
/// mappings of the same length. What is behind the piece is never touched, and takes no memory.
fn length(size: usize) -> usize {
    let step = (size.next_power_of_two() / 16).max(PAGE);
    size.checked_next_multiple_of(step).unwrap_or(size)
}

/// Mappings that were freed, the last one last: their addresses and lengths.
struct Kept {
    mappings: [(usize, usize); MOST_KEPT.0],
    count: usize,
    bytes: usize,
}

static KEPT: Mutex<Kept> = Mutex::new(Kept { mappings: [(0, 0); MOST_KEPT.0], count: 0, bytes: 0 });

impl Kept {
    /// Takes the latest mapping of this length.
    fn take(&mut self, length: usize) -> Option<*mut u8> {
        let at = self.mappings[..self.count].iter().rposition(|mapping| mapping.1 == length)?;
        Some(self.remove(at).0 as *mut u8)
    }

    fn remove(&mut self, at: usize) -> (usize, usize) {
        let mapping = self.mappings[at];
        self.mappings.copy_within(at + 1..self.count, at);
        self.count -= 1;
        self.bytes -= mapping.1;
        mapping
    }

    /// Keeps a mapping; the oldest ones make room.
    fn keep(&mut self, mapping: (usize, usize)) {
        if mapping.1 > MOST_KEPT.1 {
            return unmap(mapping);
        }
        while self.count == MOST_KEPT.0 || (self.count > 0 && self.bytes + mapping.1 > MOST_KEPT.1) {
            unmap(self.remove(0));
        }
        self.mappings[self.count] = mapping;
        self.count += 1;
        self.bytes += mapping.1;
    }
}

fn kept() -> MutexGuard<'static, Kept> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a mapping that nobody uses.
fn unmap((address, length): (usize, usize)) {
    // SAFETY: the mapping has this length, and nobody uses it any more.
    unsafe { libc::munmap(address as *mut c_void, length) };
}

fn map(size: usize) -> *mut u8 {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the kernel chooses touches nothing else.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), size, access, kind, -1, 0) };
    if mapped == libc::MAP_FAILED { ptr::null_mut() } else { mapped.cast() }
}

// SAFETY: a piece is either mimalloc's or a mapping of its own, `is_mapped` tells which, and it is freed as what it is.
// Mappings begin at a page, are at least as long as asked for, and are zero when they are new.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if Allocator::maps(layout.size(), layout.align()) {
            let length = length(layout.size());
            let again = kept().take(length);
            return again.unwrap_or_else(|| map(length));
        }
        // SAFETY: as the caller's.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if Allocator::maps(layout.size(), layout.align()) {
            return map(length(layout.size()));
        }
        // SAFETY: as the caller's.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        if Allocator::is_mapped(piece, layout) {
            return kept().keep((piece as usize, length(layout.size())));
        }
        // SAFETY: as the caller's.
        unsafe { MiMalloc.dealloc(piece, layout) }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let (is_mapped, will_be) = (Allocator::is_mapped(piece, layout), Allocator::maps(size, layout.align()));
        if is_mapped && will_be {
            let (before, after) = (length(layout.size()), length(size));
            if before == after {
                return piece;
            }
            // SAFETY: the mapping has this length, and the caller uses the address that is returned.
            let moved = unsafe { libc::mremap(piece.cast(), before, after, libc::MREMAP_MAYMOVE) };
            return if moved == libc::MAP_FAILED { ptr::null_mut() } else { moved.cast() };
        }
        if !is_mapped && !will_be {
            // SAFETY: as the caller's.
            return unsafe { MiMalloc.realloc(piece, layout, size) };
        }
        // SAFETY: the caller promises a size that is valid with this alignment. The pieces do not overlap, and both
        // have the bytes that are copied.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !new.is_null() {
                ptr::copy_nonoverlapping(piece, new, size.min(layout.size()));
                self.dealloc(piece, layout);
            }
            new
        }
    }
}

/// `mi_option_purge_delay` of mimalloc 3 (and 2): milliseconds until freed memory is returned.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Has the kernel back no memory of this process with huge pages, and returns freed memory at once, until the budget is
/// known. Call it first of all, in a process of our own.
pub fn settle() {
    const YES: c_ulong = 1;
    const UNUSED: c_ulong = 0;
    // SAFETY: the call takes numbers only, and changes nothing but how the kernel backs pages. If the kernel refuses,
    // memory is backed as before.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, YES, UNUSED, UNUSED, UNUSED) };
    return_after(0);
}

/// Returns freed memory to the system soon, in a process of which nothing is known. This concerns the allocator alone.
pub fn return_soon() {
    return_after(KEPT_FOR[0].1);
}

/// Returns what was freed, in a process that is about to wait.
pub fn return_now() {
    // SAFETY: it may be called at any time.
    unsafe { libmimalloc_sys::mi_collect(true) };
}

fn return_after(milliseconds: c_long) {
    // SAFETY: the option exists, and may be set at any time.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, milliseconds) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_are_close_have_mappings_of_one_length() {
        assert_eq!([64 << 10, (64 << 10) + 1, 72 << 10].map(length), [64 << 10, 72 << 10, 72 << 10]);
        for size in (LARGE..4 << 20).step_by(999) {
            assert!(length(size) >= size && length(size) <= size + size / 8 + PAGE, "{size}");
        }
    }

    #[test]
    fn few_mappings_are_kept_and_the_oldest_ones_go_first() {
        let mut kept = Kept { mappings: [(0, 0); MOST_KEPT.0], count: 0, bytes: 0 };
        let megabyte = 1 << 20;
        let pieces: Vec<*mut u8> = (0..7).map(|_| map(megabyte)).collect();
        pieces.iter().for_each(|piece| kept.keep((*piece as usize, megabyte)));
        assert_eq!((kept.count, kept.bytes), (6, MOST_KEPT.1));
        assert_eq!(kept.take(megabyte / 2), None, "another length");
        assert_eq!(kept.take(megabyte), Some(pieces[6]), "the latest");
        let large = (map(2 * MOST_KEPT.1) as usize, 2 * MOST_KEPT.1);
        kept.keep(large);
        assert_eq!(kept.count, 5, "what is larger than all of them is returned");
        for _ in 0..MOST_KEPT.0 + 5 {
            kept.keep((map(LARGE) as usize, LARGE));
        }
        assert_eq!(kept.count, MOST_KEPT.0);
        while kept.count > 0 {
            unmap(kept.remove(0));
        }
    }
}
