//! The page cache: how much of a file is in it, and dropping pages that only this run has read.
//!
//! Streaming more data than fits into memory evicts the pages of all processes, without any gain. So the pages of a
//! file that was not in the cache are dropped after reading, once the run has read more than half of the free memory.
//! Less than that stays for the next run.

use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

use fs_err::File;
use millstream_core::source::SourceContext;
use rustix::fs::Advice;

/// Counts the bytes of `range`, which is about to be read, as cached or from the disk. Returns whether none of it is
/// cached. If the system cannot tell, nothing is counted.
pub(crate) fn look(context: &SourceContext, file: &File, range: &Range<u64>) -> bool {
    let length = range.end - range.start;
    let Some(cached) = cached_bytes(file, range) else { return false };
    context.cache.add_cached(cached.min(length));
    context.cache.add_disk(length.saturating_sub(cached));
    cached == 0 && length > 0
}

/// Whether the run has read more into the cache than the machine has room for.
pub(crate) fn is_full(context: &SourceContext) -> bool {
    static ROOM: OnceLock<u64> = OnceLock::new();
    context.cache.disk() > *ROOM.get_or_init(|| available_memory().map_or(u64::MAX, |bytes| bytes / 2))
}

/// Drops `range` of `file` from the cache.
pub(crate) fn let_go(file: &File, range: &Range<u64>) {
    // The system may ignore the advice.
    let _ = rustix::fs::fadvise(file, range.start, NonZeroU64::new(range.end - range.start), Advice::DontNeed);
}

/// Bytes of `range` that are in the page cache, in whole pages.
fn cached_bytes(file: &File, range: &Range<u64>) -> Option<u64> {
    /// The number of the call, the same on all machines but Alpha.
    const CACHESTAT: libc::c_long = 451;
    #[repr(C)]
    struct Span {
        offset: u64,
        length: u64,
    }
    #[repr(C)]
    #[derive(Default)]
    struct Pages {
        cached: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    if range.is_empty() {
        return Some(0);
    }
    let span = Span { offset: range.start, length: range.end - range.start };
    let mut pages = Pages::default();
    // SAFETY: cachestat(2), since Linux 6.5: it reads one structure and writes the other, both of the kernel's layout
    // and alive for the call.
    let done = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const span, &raw mut pages, 0) };
    (done == 0).then(|| pages.cached * rustix::param::page_size() as u64)
}

fn available_memory() -> Option<u64> {
    let text = fs_err::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use millstream_core::Budget;

    use super::*;

    #[tokio::test]
    async fn bytes_are_counted_where_they_are_and_let_go_where_they_came_from_the_disk() {
        let tree = millstream_testkit::TempTree::new();
        let path = tree.file("a", "");
        let mut file = fs_err::OpenOptions::new().read(true).write(true).open(&path).expect("the file opens");
        file.write_all(&vec![7; 1 << 20]).expect("it is written");
        let context = SourceContext {
            io: tokio::runtime::Handle::current(),
            budget: Budget::new(1 << 20),
            cache: Arc::default(),
            programs: Arc::default(),
            pace: Arc::default(),
        };
        let range = 0..1 << 20;
        // Before Linux 6.5 this is unknown.
        if cached_bytes(&file, &range).is_none() {
            assert!(!look(&context, &file, &range) && context.cache.cached() == 0);
            return;
        }
        assert!(!look(&context, &file, &range), "what was just written is there");
        assert_eq!((context.cache.cached(), context.cache.disk()), (1 << 20, 0));
        let in_memory = rustix::fs::fstatfs(&file).expect("a file system").f_type == 0x0102_1994;
        file.sync_all().expect("it is on the disk");
        let_go(&file, &range);
        assert_eq!(look(&context, &file, &range), !in_memory);
        assert_eq!(context.cache.disk(), if in_memory { 0 } else { 1 << 20 });
        assert!(!is_full(&context), "a megabyte is little");
        context.cache.add_disk(1 << 60);
        assert!(is_full(&context));
    }
}
