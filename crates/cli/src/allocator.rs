//! The allocator and its settings: what was freed goes back to the system at once.
//!
//! A budget means the resident size of the process. By default mimalloc keeps what was freed for a while, and the
//! kernel backs its memory with huge pages, of which the unused rest counts as resident too: together they doubled the
//! peak of a run that streams, and let it grow with the number of files. Giving back at once costs no time that could
//! be measured, since the large buffers, which are most of the memory, are few.

use std::ffi::{c_long, c_ulong};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of mimalloc 3 (and 2): milliseconds until freed memory is given back.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Makes memory that was freed leave the process at once. Call it first of all.
pub fn settle() {
    const YES: c_ulong = 1;
    const UNUSED: c_ulong = 0;
    let at_once: c_long = 0;
    // SAFETY: the call takes numbers only, and changes nothing but how the kernel backs pages. Where the kernel
    // refuses, memory is backed as it was.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, YES, UNUSED, UNUSED, UNUSED) };
    // SAFETY: the option exists, and may be set at any time.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, at_once) };
}
