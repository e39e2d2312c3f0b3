//! What a copy of this process (by fork) that goes on with another task gets rid of: memory, and the command line.
//!
//! Only calls that are safe between fork and exec, without memory of the heap.

use std::ffi::CStr;
use std::ops::Range;

/// Anonymous memory of fewer bytes is left alone: small regions are data of libraries, of which calls may need some.
const LEAST: usize = 1 << 20;

/// What is looked at of a line of `/proc/self/maps`, in bytes; the rest is a path.
const MAPS_LINE: usize = 128;

/// What is looked at of `/proc/self/stat`, in bytes.
const STAT_LINE: usize = 1024;

/// What is left alone on each side of an address that is in use, in bytes. The kernel shows regions that touch each
/// other as one, so a stack may be a part of a large one.
const AROUND: usize = 1 << 20;

/// A multiple of all sizes of pages.
const PAGES: usize = 1 << 16;

/// Gives back the large regions of memory that a copy of a process has of it, but for the top of the stack and what
/// belongs to the thread.
///
/// The linker is one that may use such memory: it looks for a symbol at its first call, unless symbols are bound at
/// load (`-z now`, the default of rustc). What is called afterwards is therefore called once before.
///
/// # Safety
/// The process has one thread, and that uses nothing any more that was allocated before it was copied. All that it
/// calls is bound.
pub unsafe fn memory() {
    let here = 0_u8;
    // SAFETY: it is an address alone.
    let (stack, thread) = unsafe { ((&raw const here) as usize, libc::__errno_location() as usize) };
    let used = [stack.min(thread), stack.max(thread)];
    let drop_region = |line: &[u8]| {
        let Some(Region { start, end, is_shared, is_anonymous }) = Region::of(line) else { return };
        if end - start < LEAST || !(is_shared || is_anonymous) {
            return;
        }
        unused(start..end, used, |part| {
            let (start, length) = (part.start as *mut libc::c_void, part.len());
            // SAFETY: by the caller's promise nothing in it is used. What is private is empty from now on, but still
            // there.
            unsafe {
                match is_shared {
                    true => libc::munmap(start, length),
                    false => libc::madvise(start, length, libc::MADV_DONTNEED),
                }
            };
        });
    };
    // SAFETY: as above.
    unsafe { lines::<MAPS_LINE>(c"/proc/self/maps", drop_region) };
}

/// Calls `give` with the parts of `region` that are not near an address of `used`, which are in order.
fn unused(region: Range<usize>, used: [usize; 2], give: impl Fn(Range<usize>)) {
    let mut start = region.start;
    for address in used {
        let near = address.saturating_sub(AROUND) / PAGES * PAGES..(address + AROUND) / PAGES * PAGES;
        if near.end <= start || near.start >= region.end {
            continue;
        }
        if start < near.start {
            give(start..near.start);
        }
        start = near.end;
    }
    if start < region.end {
        give(start..region.end);
    }
}

/// Makes `words` the command line of this process, as other processes see it; what does not fit is cut off.
///
/// # Safety
/// Nothing in this process may use its arguments any more.
pub unsafe fn command_line(words: &[u8]) {
    // Behind the name, which may have blanks: the state is the first field, and the ends of the arguments are these.
    const START: usize = 45;
    let set = |line: &[u8]| {
        let behind = line.iter().rposition(|byte| *byte == b')').map_or(0, |place| place + 2);
        let mut fields = line[behind..].split(|byte| *byte == b' ').skip(START).map(number::<10>);
        let (Some(Some(start)), Some(Some(end))) = (fields.next(), fields.next()) else { return };
        if start == 0 || end <= start {
            return;
        }
        for place in 0..end - start {
            // SAFETY: the kernel says that the arguments are there, on the stack, which can be written.
            unsafe { *((start + place) as *mut u8) = words.get(place).copied().unwrap_or(0) };
        }
        // SAFETY: the last byte of the arguments. If it is none, the kernel shows what is behind, too.
        unsafe { *((end - 1) as *mut u8) = 0 };
    };
    // SAFETY: as the caller's.
    unsafe { lines::<STAT_LINE>(c"/proc/self/stat", set) };
}

/// A region of memory.
struct Region {
    start: usize,
    end: usize,
    is_shared: bool,
    is_anonymous: bool,
}

impl Region {
    /// The region in a line of `/proc/self/maps`, such as `7f00-7f80 rw-p 00000000 00:00 0`.
    fn of(line: &[u8]) -> Option<Region> {
        let mut fields = line.split(|byte| *byte == b' ');
        let mut range = fields.next()?.split(|byte| *byte == b'-').map(number::<16>);
        let (start, end) = (range.next()??, range.next()??);
        let rights = fields.next()?;
        let file = fields.nth(2)?;
        // What the kernel puts there has a name, such as `[stack]`.
        let is_kernels =
            fields.any(|field| field.starts_with(b"[") && !field.starts_with(b"[heap") && !field.starts_with(b"[anon"));
        Some(Region {
            start,
            end,
            is_shared: rights.get(3) == Some(&b's'),
            is_anonymous: file == b"0" && rights.get(1) == Some(&b'w') && !is_kernels,
        })
    }
}

/// The number that `digits` are, to the base `BASE`.
fn number<const BASE: u32>(digits: &[u8]) -> Option<usize> {
    let digit = |digit: &u8| (*digit as char).to_digit(BASE);
    let add = |number: usize, next: &u8| number.checked_mul(BASE as usize)?.checked_add(digit(next)? as usize);
    (!digits.is_empty()).then(|| digits.iter().try_fold(0, add)).flatten()
}

/// Calls `take` with the first `LENGTH` bytes of each line of the file `path`.
///
/// # Safety
/// Safe between fork and exec, if `take` is.
unsafe fn lines<const LENGTH: usize>(path: &CStr, take: impl Fn(&[u8])) {
    let (mut line, mut length, mut buffer) = ([0_u8; LENGTH], 0, [0_u8; 4096]);
    // SAFETY: three calls with memory of this function.
    unsafe {
        let file = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return;
        }
        loop {
            let read = libc::read(file, buffer.as_mut_ptr().cast(), buffer.len());
            if read <= 0 {
                break;
            }
            for byte in &buffer[..read.unsigned_abs()] {
                if *byte == b'\n' {
                    take(&line[..length]);
                    length = 0;
                } else if length < LENGTH {
                    line[length] = *byte;
                    length += 1;
                }
            }
        }
        libc::close(file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_near_a_used_address_is_left_alone() {
        let unused = |region: Range<usize>, used: [usize; 2]| {
            let parts = std::cell::RefCell::new(Vec::new());
            unused(region, used, |part| parts.borrow_mut().push(part));
            parts.into_inner()
        };
        let mib = |from: usize, to: usize| from << 20..to << 20;
        assert_eq!(unused(mib(10, 20), [0, 30 << 20]), [mib(10, 20)]);
        assert_eq!(unused(mib(10, 20), [12 << 20, 16 << 20]), [mib(10, 11), mib(13, 15), mib(17, 20)]);
        assert_eq!(unused(mib(10, 20), [10 << 20, 12 << 20]), [mib(13, 20)]);
        assert_eq!(unused(mib(10, 20), [19 << 20, 20 << 20]), [mib(10, 18)]);
    }

    #[test]
    fn regions_are_told_apart() {
        let of = |line: &str| {
            let Region { start, end, is_shared, is_anonymous } = Region::of(line.as_bytes()).expect("a region");
            (start, end, is_shared, is_anonymous)
        };
        assert_eq!(of("7f00-7f80 rw-p 00000000 00:00 0 "), (0x7f00, 0x7f80, false, true));
        assert_eq!(
            of("1000-2000 rw-p 00000000 00:00 0                          [heap]"),
            (0x1000, 0x2000, false, true)
        );
        assert_eq!(of("1000-2000 rw-p 00000000 00:00 0     [stack]"), (0x1000, 0x2000, false, false));
        assert_eq!(of("1000-2000 r--p 00000000 00:00 0     [vvar]"), (0x1000, 0x2000, false, false));
        assert_eq!(of("1000-2000 rw-s 00000000 00:01 7 /dev/zero (deleted)"), (0x1000, 0x2000, true, false));
        assert_eq!(of("1000-2000 rw-p 0003 08:01 123 /usr/lib/libc.so.6"), (0x1000, 0x2000, false, false));
        assert!(Region::of(b"none").is_none() && number::<16>(b"fffffffffffffffff").is_none());
    }
}
