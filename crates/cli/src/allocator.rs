//! The allocator and its settings: freed memory is returned to the system at once.
//!
//! A budget means the resident size of the process. By default mimalloc keeps freed memory for a while, and the kernel
//! backs it with huge pages, whose unused rest also counts as resident: together they doubled the peak of a streaming
//! run, and let it grow with the number of files. Returning memory at once costs no measurable time, since most of the
//! memory is in few large buffers.

use std::ffi::{c_long, c_ulong};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of mimalloc 3 (and 2): milliseconds until freed memory is returned.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Returns freed memory to the system at once. Call it first of all.
pub fn settle() {
    const YES: c_ulong = 1;
    const UNUSED: c_ulong = 0;
    let at_once: c_long = 0;
    // SAFETY: the call takes numbers only, and changes nothing but how the kernel backs pages. If the kernel refuses,
    // memory is backed as before.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, YES, UNUSED, UNUSED, UNUSED) };
    // SAFETY: the option exists, and may be set at any time.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, at_once) };
}
