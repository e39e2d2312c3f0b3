//! Files that are written and read past the page cache: what nobody reads again soon is not worth a page.
//!
//! A page of the cache is a page of memory that the kernel has to find, and to free again; on a virtual machine the
//! first touch of one is a fault of the host's as well. Written past the cache, 2 GB cost a quarter of a second of
//! processor time instead of up to six. What it takes in return: memory, places and lengths that are multiples of
//! [`ALIGNMENT`], and pieces that are large.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memmap2::MmapMut;
use rustix::fs::OFlags;

use crate::per_process::PerProcess;

/// Places in memory and in files are multiples of this, in bytes: no disk asks for more.
pub const ALIGNMENT: usize = 4096;

/// The most that is kept of buffers that nobody uses, in bytes, if nothing else is said.
const KEPT: usize = 16 << 20;

static KEPT_AT_MOST: AtomicUsize = AtomicUsize::new(KEPT);

/// Has no more than `bytes` kept of buffers that nobody uses, from now on, and no more than 16 MB in any case.
pub fn keep_at_most(bytes: usize) {
    KEPT_AT_MOST.store(bytes.min(KEPT), Ordering::Relaxed);
}

/// Has `file` read and written past the page cache: `false` where the file system cannot do that.
pub fn bypass_cache(file: &File) -> bool {
    switch(file, |flags| flags | OFlags::DIRECT)
}

fn use_cache(file: &File) -> bool {
    switch(file, |flags| flags - OFlags::DIRECT)
}

fn switch(file: &File, change: impl Fn(OFlags) -> OFlags) -> bool {
    let flags = rustix::fs::fcntl_getfl(file);
    flags.and_then(|flags| rustix::fs::fcntl_setfl(file, change(flags))).is_ok()
}

/// `at`, or the next multiple of [`ALIGNMENT`] behind it.
pub fn align_up(at: u64) -> u64 {
    at.next_multiple_of(ALIGNMENT as u64)
}

/// `at`, or the last multiple of [`ALIGNMENT`] before it.
pub fn align_down(at: u64) -> u64 {
    at - at % ALIGNMENT as u64
}

/// What nobody uses.
#[derive(Debug)]
struct Free {
    /// The last dropped at the end.
    maps: VecDeque<MmapMut>,
    /// Bytes of all of them.
    bytes: usize,
}

impl Free {
    /// One of `size` bytes or somewhat more: one that is much too large would be held by data that is small.
    fn take(&mut self, size: usize) -> Option<MmapMut> {
        let fits = |map: &MmapMut| (size..=2 * size).contains(&map.len());
        let index = self.maps.iter().rposition(fits)?;
        let map = self.maps.remove(index)?;
        self.bytes -= map.len();
        Some(map)
    }

    /// Keeps `map`; what has been here for longest is no longer kept where it is too much.
    fn keep(&mut self, map: MmapMut) -> Vec<MmapMut> {
        self.bytes += map.len();
        self.maps.push_back(map);
        let most = KEPT_AT_MOST.load(Ordering::Relaxed);
        let mut dropped = Vec::new();
        while self.bytes > most
            && let Some(oldest) = self.maps.pop_front()
        {
            self.bytes -= oldest.len();
            dropped.push(oldest);
        }
        dropped
    }
}

static FREE: Mutex<Free> = Mutex::new(Free { maps: VecDeque::new(), bytes: 0 });

fn free() -> MutexGuard<'static, Free> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes in memory that begins at a multiple of [`ALIGNMENT`]. It is mapped apart from the allocator's, so it goes back
/// to the system whatever thread drops it, but for a little that is kept to be used again.
#[derive(Debug)]
pub struct Aligned {
    map: Option<MmapMut>,
    length: usize,
}

impl Aligned {
    /// `length` bytes, of which nobody knows what they are.
    ///
    /// # Errors
    /// If the system has no memory left.
    pub fn new(length: usize) -> io::Result<Self> {
        let size = length.next_multiple_of(ALIGNMENT);
        let used = free().take(size);
        let map = match used {
            Some(map) => Some(map),
            None if size == 0 => None,
            None => Some(MmapMut::map_anon(size)?),
        };
        Ok(Aligned { map, length })
    }

    /// How many bytes it takes in memory.
    pub fn held(&self) -> usize {
        self.map.as_ref().map_or(0, |map| map.len())
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        if let Some(map) = self.map.take() {
            // What is dropped goes back to the system when nobody waits for the lock any more.
            let dropped = free().keep(map);
            drop(dropped);
        }
    }
}

impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::ops::Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.as_ref().map_or(&[], |map| &map[..self.length])
    }
}

impl std::ops::DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.map.as_mut().map_or(&mut [], |map| &mut map[..self.length])
    }
}

/// Pieces that an [`Appender`] writes at once, beside the one that is filled: a disk behind a queue is only busy while
/// something waits in it.
const BEHIND: usize = 3;

/// Appends to a file, in large pieces, past the page cache where the file system can do that. The pieces are written by
/// threads of their own while the next is filled; so an error may be that of an earlier piece.
#[derive(Debug)]
pub struct Appender {
    file: Arc<File>,
    /// What has been appended and not been written; of the size of a piece.
    buffer: Aligned,
    filled: usize,
    /// Where in the file the buffer begins.
    at: u64,
    direct: bool,
    writing: VecDeque<Pending<io::Result<()>>>,
}

impl Appender {
    /// Appends behind byte `at` of `file`, which should be a multiple of [`ALIGNMENT`], in pieces of `piece` bytes.
    ///
    /// # Errors
    /// If the system has no memory left.
    pub fn new(file: Arc<File>, at: u64, piece: usize) -> io::Result<Self> {
        // Several pieces are under way, each to a place of its own.
        switch(&file, |flags| flags - OFlags::APPEND);
        let direct = at.is_multiple_of(ALIGNMENT as u64) && bypass_cache(&file);
        let buffer = Aligned::new(piece.next_multiple_of(ALIGNMENT))?;
        Ok(Appender { file, buffer, filled: 0, at, direct, writing: VecDeque::new() })
    }

    /// The most bytes of memory that one with such pieces holds.
    pub fn held(piece: usize) -> usize {
        piece.next_multiple_of(ALIGNMENT) * (BEHIND + 1)
    }

    /// The length of the file with all that was appended.
    pub fn end(&self) -> u64 {
        self.at + self.filled as u64
    }

    /// Appends `bytes`.
    pub fn append(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = bytes.len().min(self.buffer.len() - self.filled);
            self.buffer[self.filled..self.filled + count].copy_from_slice(&bytes[..count]);
            self.filled += count;
            bytes = &bytes[count..];
            if self.filled == self.buffer.len() {
                self.write(self.filled)?;
            }
        }
        Ok(())
    }

    /// Appends zeros up to the next multiple of [`ALIGNMENT`], and waits until all is written.
    pub fn fill_page(&mut self) -> io::Result<()> {
        let zeros = (align_up(self.end()) - self.end()) as usize;
        self.append(&[0; ALIGNMENT][..zeros])?;
        self.flush()
    }

    /// Waits until all is written; what is no whole page goes through the cache, and so does what comes behind it.
    pub fn flush(&mut self) -> io::Result<()> {
        let whole = self.filled - self.filled % ALIGNMENT;
        if self.direct && whole > 0 {
            self.write(whole)?;
        }
        self.settle(0)?;
        if self.filled > 0 {
            self.direct = !use_cache(&self.file);
            self.write(self.filled)?;
        }
        self.settle(0)
    }

    /// Has the first `count` bytes of the buffer written.
    fn write(&mut self, count: usize) -> io::Result<()> {
        self.settle(BEHIND - 1)?;
        let mut next = Aligned::new(self.buffer.len())?;
        next[..self.filled - count].copy_from_slice(&self.buffer[count..self.filled]);
        let (full, file, at) = (std::mem::replace(&mut self.buffer, next), Arc::clone(&self.file), self.at);
        self.filled -= count;
        self.at += count as u64;
        self.writing.push_back(wait_elsewhere(move || write_at(&file, &full[..count], at)));
        Ok(())
    }

    /// Waits until at most `left` pieces are being written.
    fn settle(&mut self, left: usize) -> io::Result<()> {
        while self.writing.len() > left {
            let Some(oldest) = self.writing.pop_front() else { break };
            oldest.wait()??;
        }
        Ok(())
    }
}

impl Drop for Appender {
    /// Nothing is written any more when it is gone.
    fn drop(&mut self) {
        self.writing.drain(..).for_each(|piece| drop(piece.wait()));
    }
}

/// Whether what failed for `cause` may be tried again through the cache, once: not all file systems say beforehand what
/// they cannot do. Others that use the file may have found that out meanwhile.
fn is_worth_the_cache(file: &File, cause: &io::Error, tried: &mut bool) -> bool {
    cause.kind() == io::ErrorKind::InvalidInput && !std::mem::replace(tried, true) && use_cache(file)
}

/// Writes `bytes` at byte `at` of `file`, past the cache or through it, as it can be done.
fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    let (mut written, mut tried) = (0, false);
    while written < bytes.len() {
        match file.write_at(&bytes[written..], at + written as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(more) => written += more,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) if is_worth_the_cache(file, &cause, &mut tried) => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(())
}

/// Threads that wait for disks, so that nobody else has to. What is read is also checked and unpacked there.
const WAITING: usize = 12;

type Work = Box<dyn FnOnce() + Send>;

/// What is being done on another thread.
#[derive(Debug)]
pub struct Pending<T>(Receiver<T>);

impl<T> Pending<T> {
    /// Waits for its end.
    pub fn wait(self) -> io::Result<T> {
        self.0.recv().map_err(|_| io::Error::other("a thread that waits for the disk failed"))
    }
}

/// Has `work`, which waits for a disk, done by a thread that is for nothing else. It is done in any case, before the
/// answer is waited for.
pub fn wait_elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Pending<T> {
    static QUEUE: PerProcess<Sender<Work>> = PerProcess::new();
    let (done, pending) = channel();
    let work: Work = Box::new(move || {
        // Where nobody waits any more, nothing is lost.
        let _ = done.send(work());
    });
    // Where there are no threads to be had, whoever asks does it.
    let Ok::<_, Infallible>(queue) = QUEUE.get_or_make(|| Ok(waiting_threads()));
    if let Err(SendError(work)) = queue.send(work) {
        work();
    }
    Pending(pending)
}

fn waiting_threads() -> Sender<Work> {
    let (sender, receiver) = channel::<Work>();
    let receiver = Arc::new(Mutex::new(receiver));
    for _ in 0..WAITING {
        let receiver = Arc::clone(&receiver);
        let next = move || receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let work = move || {
            while let Ok(work) = next() {
                work();
            }
        };
        if std::thread::Builder::new().name("millstream-disk".to_owned()).spawn(work).is_err() {
            break;
        }
    }
    sender
}

/// Fills `buffer` from byte `at` of `file` on, as far as the file goes: how many bytes there were.
pub fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let (mut filled, mut tried) = (0, false);
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            // The file ended within a page, and past the cache nothing can be asked for behind it.
            Err(cause) if cause.kind() == io::ErrorKind::InvalidInput && !filled.is_multiple_of(ALIGNMENT) => break,
            Err(cause) if is_worth_the_cache(file, &cause, &mut tried) => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_begin_at_a_page() {
        let mut first = Aligned::new(10_000).expect("memory");
        assert_eq!((first.len(), first.as_ptr() as usize % ALIGNMENT), (10_000, 0));
        first.fill(7);
        assert!(first.iter().all(|byte| *byte == 7));
        assert_eq!((first.held(), Aligned::new(0).expect("nothing").len()), (12_288, 0));
    }

    #[test]
    fn what_was_appended_is_in_the_file_however_it_came() {
        let folder = tempfile::tempdir().expect("a folder");
        for piece in [4096, 8192, 100_000] {
            let path = folder.path().join(piece.to_string());
            let file = fs_err::OpenOptions::new().create_new(true).append(true).open(&path);
            let mut appender = Appender::new(Arc::new(file.expect("a file").into()), 0, piece).expect("memory");
            let mut expected = Vec::new();
            for round in 0..400_usize {
                let bytes: Vec<u8> = (0..round * 37 % 1000).map(|byte| (byte + round) as u8).collect();
                appender.append(&bytes).expect("appended");
                expected.extend_from_slice(&bytes);
                if round == 200 {
                    appender.flush().expect("flushed");
                    assert_eq!(appender.end(), expected.len() as u64);
                }
            }
            appender.flush().expect("flushed");
            assert!(fs_err::read(&path).expect("the file") == expected, "piece of {piece}");
        }
    }

    #[test]
    fn what_is_read_past_the_cache_is_what_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        let expected: Vec<u8> = (0..100_000_u32).map(|byte| (byte * 7) as u8).collect();
        fs_err::write(&path, &expected).expect("a file");
        let file: File = fs_err::File::open(&path).expect("a file").into();
        bypass_cache(&file);
        let mut buffer = Aligned::new(align_up(100_000) as usize).expect("memory");
        assert_eq!(read_at(&file, &mut buffer, 0).expect("read"), 100_000);
        assert!(buffer[..100_000] == expected);
        // What cannot be read past the cache, here for its place in memory, is read through it.
        assert_eq!(read_at(&file, &mut buffer[1..], 0).expect("read"), 100_000);
        assert!(buffer[1..100_001] == expected);
        assert_eq!((align_down(8191), align_up(8191), align_up(8192)), (4096, 8192, 8192));
    }
}
