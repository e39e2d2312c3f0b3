//! Reads open files: regular files by position, from the page cache at once and otherwise one or two blocks ahead;
//! pipes and devices as a stream.
//!
//! A change of a file's size or time while it is read is an error, since the bytes may be partly old and partly new.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use fs_err::File;
use fs_err::os::unix::fs::OpenOptionsExt;
use futures::{Stream, StreamExt};
use millstream_core::buffers;
use millstream_core::direct::{self, Aligned};
use millstream_core::source::SourceContext;
use millstream_core::{ByteStream, Error, Result};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Advice, FileType, Stat};
use rustix::io::Errno;
use tokio::task::JoinHandle;

use super::{cache, io_error, uri_of};
use crate::feed::{Room, feed};

/// Files up to this size are read at once.
pub(crate) const SMALL: u64 = 1 << 20;

/// Large files are read in blocks of this size.
const BLOCK: u64 = 256 << 10;

/// So much is read ahead before it is tried again whether the next block is in the page cache. For the time of one
/// read, the disk may then have nothing to do.
const WINDOW: u64 = 32 << 20;

/// How far ahead the kernel is advised.
const AHEAD: u64 = 4 << 20;

/// The size of reads past the page cache.
const PIECE: u64 = 512 << 10;

/// How many such pieces are read ahead, since the kernel does not.
const PIECES: usize = 8;

/// The most bytes of one read of a pipe.
const PIPE_BLOCK: usize = 64 << 10;

/// How long to wait for a pipe before checking whether to stop, in nanoseconds.
const PIPE_PATIENCE: i64 = 100_000_000;

/// Identifies a version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) size: u64,
    inode: u64,
    seconds: i64,
    nanoseconds: i64,
}

impl Stamp {
    pub(crate) fn of(stat: &Stat) -> Self {
        Stamp {
            size: u64::try_from(stat.st_size).unwrap_or(0),
            inode: stat.st_ino,
            seconds: stat.st_mtime,
            nanoseconds: stat.st_mtime_nsec.cast_signed(),
        }
    }

    /// `inode-time-size`, in hexadecimal digits.
    pub(crate) fn etag(&self) -> String {
        format!("{:x}-{:x}.{:x}-{:x}", self.inode, self.seconds, self.nanoseconds, self.size)
    }

    pub(crate) fn modified_milliseconds(&self) -> i64 {
        self.seconds.saturating_mul(1000).saturating_add(self.nanoseconds / 1_000_000)
    }
}

/// An open file.
#[derive(Debug)]
pub(crate) enum Opened {
    /// A regular file: it has a size, and can be read at any position.
    Regular(Arc<File>, Stamp),
    /// A pipe, a device, or a file of the kernel's that has no size.
    Stream(Arc<File>),
}

/// Opens `path`. Blocks, though not for the other end of a pipe.
pub(crate) fn open(path: &Path) -> Result<Opened> {
    let file = open_file(path).map_err(|cause| match cause.kind() {
        std::io::ErrorKind::NotFound => super::walk::named(path).err().unwrap_or_else(|| gone(path)),
        _ => io_error("the file cannot be opened", path, &cause),
    })?;
    let stat = look_up(&file, path)?;
    let stamp = Stamp::of(&stat);
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Err(super::walk::named(path).err().unwrap_or_else(|| gone(path))),
        FileType::RegularFile if stamp.size > 0 => Ok(Opened::Regular(Arc::new(file), stamp)),
        // An empty regular file reads as an empty stream; files of the kernel (/proc) only claim to be empty.
        _ => Ok(Opened::Stream(Arc::new(file))),
    }
}

fn open_file(path: &Path) -> std::io::Result<File> {
    // Without this flag the call would wait for a writer of a pipe, and could not be stopped.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    fs_err::OpenOptions::new().read(true).custom_flags(nonblocking).open(path)
}

/// The whole file at `path`, which was listed with that size and etag, if it can be read without waiting. `None` also
/// if it has changed since.
pub(crate) fn read_listed(path: &Path, size: u64, etag: &str) -> Option<Bytes> {
    let file = open_file(path).ok()?;
    let bytes = read_cached(&file, size)?;
    (Stamp::of(&look_up(&file, path).ok()?).etag() == etag).then_some(bytes)
}

fn look_up(file: &File, path: &Path) -> Result<Stat> {
    rustix::fs::fstat(file).map_err(|cause| io_error("the file cannot be looked up", path, &cause.into()))
}

fn gone(path: &Path) -> Error {
    Error::refused("the file was removed after it was listed").in_unit(&uri_of(path), None)
}

fn changed(path: &Path) -> Error {
    Error::refused("the file changed while it was read")
        .in_unit(&uri_of(path), None)
        .hint("run again when nothing writes to it")
}

/// Exactly `range` of the file. Blocks.
pub(crate) fn read_range(file: &File, path: &Path, range: Range<u64>) -> Result<Bytes> {
    let length = usize::try_from(range.end - range.start)
        .map_err(|_| Error::refused("the range does not fit into memory").in_unit(&uri_of(path), None))?;
    let mut bytes = buffers::take(length);
    while bytes.len() < length {
        let (filled, at) = (bytes.len(), range.start + bytes.len() as u64);
        match rustix::io::pread(file, &mut bytes.spare_capacity_mut()[..length - filled], at) {
            Ok(([], _)) => return Err(changed(path)),
            Ok((read, _)) => {
                let count = read.len();
                // SAFETY: `pread` has initialised these bytes, the first of the spare capacity.
                unsafe { bytes.set_len(filled + count) };
            }
            Err(Errno::INTR) => {}
            Err(cause) => return Err(io_error("it cannot be read", path, &cause.into()).byte(at)),
        }
    }
    Ok(buffers::share(bytes))
}

/// [`read_range`] of bytes that are not read again soon: they do not stay in a full cache.
pub(crate) fn read_range_once(context: &SourceContext, file: &File, path: &Path, range: Range<u64>) -> Result<Bytes> {
    let cold = cache::look(context, file, &range);
    let bytes = read_range(file, path, range.clone())?;
    if cold && cache::is_full(context) {
        cache::let_go(file, &range);
    }
    Ok(bytes)
}

/// The first `size` bytes of the file, if all of them are in the page cache: it does not block.
fn read_cached(file: &File, size: u64) -> Option<Bytes> {
    let size = usize::try_from(size).ok()?;
    let mut bytes = buffers::take(size);
    while bytes.len() < size {
        let (at, rest) = (bytes.len() as u64, size - bytes.len());
        if append_cached(file, at, rest, &mut bytes) == 0 {
            return None;
        }
    }
    Some(buffers::share(bytes))
}

/// Appends up to `most` bytes of the file from byte `at` on to `bytes`, as far as they are in the page cache, and
/// returns how many: 0 also at the end of the file, and on file systems that cannot tell. It does not block.
fn append_cached(file: &File, at: u64, most: usize, bytes: &mut Vec<u8>) -> usize {
    bytes.reserve(most);
    let rest = &mut bytes.spare_capacity_mut()[..most];
    let piece = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
    let Ok(at) = libc::off_t::try_from(at) else { return 0 };
    // SAFETY: preadv2(2) writes at most `iov_len` bytes to the spare capacity, which is alive for the call.
    let count = unsafe { libc::preadv2(file.as_raw_fd(), &raw const piece, 1, at, libc::RWF_NOWAIT) };
    // Reads that would block are errors.
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the call has initialised these bytes, the first of the spare capacity.
    unsafe { bytes.set_len(bytes.len() + count) };
    count
}

/// Makes sure that the file is still the version that was opened. Blocks.
pub(crate) fn verify(file: &File, path: &Path, stamp: &Stamp) -> Result<()> {
    if Stamp::of(&look_up(file, path)?) == *stamp { Ok(()) } else { Err(changed(path)) }
}

/// The size of a block: a small one where the job may read only so many bytes a second, since what comes at once has to
/// be paid for before more comes.
fn block(context: &SourceContext) -> u64 {
    context.pace.ahead().map_or(BLOCK, |ahead| BLOCK.min(ahead as u64))
}

/// The bytes of a regular file's `range`: blocks that are in the page cache are copied where they are wanted, others
/// are read ahead.
///
/// Two threads that hand a block to each other wake up for each, which takes longer than to copy it from the cache.
pub(crate) fn stream_file(
    context: &SourceContext,
    path: Arc<Path>,
    file: Arc<File>,
    stamp: Stamp,
    range: Range<u64>,
) -> ByteStream {
    Blocks { context: context.clone(), path, file, stamp, rest: range, ahead: None }.boxed()
}

/// A range of a file.
struct Blocks {
    context: SourceContext,
    path: Arc<Path>,
    file: Arc<File>,
    stamp: Stamp,
    /// What is neither read nor read ahead.
    rest: Range<u64>,
    /// Reads ahead from the first byte on that was not in the page cache.
    ahead: Option<ByteStream>,
}

impl Blocks {
    /// The next bytes, if they are in the page cache.
    fn next_cached(&mut self) -> Option<Result<Bytes>> {
        let most = (self.rest.end - self.rest.start).min(block(&self.context)) as usize;
        let mut bytes = buffers::take(most);
        let count = append_cached(&self.file, self.rest.start, most, &mut bytes) as u64;
        if count == 0 {
            buffers::give_back(bytes);
            return None;
        }
        self.rest.start += count;
        self.context.cache.add_cached(count);
        Some(verify(&self.file, &self.path, &self.stamp).map(|()| buffers::share(bytes)))
    }

    /// `next`; nothing comes behind an error.
    fn last_if_failed(&mut self, next: Result<Bytes>) -> Result<Bytes> {
        next.inspect_err(|_| self.rest.start = self.rest.end)
    }

    /// Reads ahead what comes next.
    fn read_ahead(&mut self) -> ByteStream {
        let (path, file, stamp) = (Arc::clone(&self.path), Arc::clone(&self.file), self.stamp);
        let end = self.rest.end.min((self.rest.start / WINDOW + 1) * WINDOW);
        let range = std::mem::replace(&mut self.rest.start, end)..end;
        // A file larger than the budget would take memory for the cache that is not granted.
        let is_large = stamp.size > self.context.budget.process();
        match is_large.then(|| past_the_cache(&file)).flatten() {
            Some(direct) => stream_large(&self.context, path, file, direct, stamp, range),
            None => stream_ahead(&self.context, path, file, stamp, range),
        }
    }
}

impl Stream for Blocks {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(ahead) = &mut self.ahead {
                match ready!(ahead.as_mut().poll_next(context)) {
                    None => self.ahead = None,
                    Some(next) => return Poll::Ready(Some(self.last_if_failed(next))),
                }
            }
            if self.rest.is_empty() {
                return Poll::Ready(None);
            }
            // It never has to wait, so it lets other tasks take their turn.
            let turn = ready!(tokio::task::coop::poll_proceed(context));
            turn.made_progress();
            match self.next_cached() {
                Some(next) => return Poll::Ready(Some(self.last_if_failed(next))),
                None => self.ahead = Some(self.read_ahead()),
            }
        }
    }
}

/// The bytes of a regular file's `range`, read ahead.
fn stream_ahead(
    context: &SourceContext,
    path: Arc<Path>,
    file: Arc<File>,
    stamp: Stamp,
    range: Range<u64>,
) -> ByteStream {
    let counted = context.clone();
    feed(context, 2 * BLOCK as usize, move |feeder| async move {
        advise(&file, range.start, range.end - range.start, Advice::Sequential);
        let mut ahead = LookAhead { at: range.start, end: range.end, cold: VecDeque::new() };
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at + block(&counted));
            let room = feeder.room((end - at) as usize).await;
            let (file, path) = (Arc::clone(&file), Arc::clone(&path));
            let context = counted.clone();
            let read = blocking(move || {
                let cold = ahead.look(&context, &file, at);
                let bytes = read_range(&file, &path, at..end)?;
                if cold && cache::is_full(&context) {
                    cache::let_go(&file, &(at..end));
                }
                verify(&file, &path, &stamp).map(|()| (bytes, ahead))
            });
            let bytes;
            (bytes, ahead) = read.await?;
            feeder.send(bytes, room);
            at = end;
        }
        Ok(())
    })
}

/// Several pieces of `range` at once: cached ones from the cache, others past it.
fn stream_large(
    context: &SourceContext,
    path: Arc<Path>,
    file: Arc<File>,
    direct: Arc<std::fs::File>,
    stamp: Stamp,
    range: Range<u64>,
) -> ByteStream {
    let counted = context.clone();
    feed(context, PIECES * PIECE as usize, move |feeder| async move {
        let mut pieces: VecDeque<(Room, JoinHandle<Result<Bytes>>)> = VecDeque::new();
        let mut at = range.start;
        loop {
            while at < range.end && pieces.len() < PIECES {
                let piece = at..range.end.min((at / PIECE + 1) * PIECE);
                let length = (piece.end - piece.start) as usize;
                let room = match pieces.is_empty() {
                    true => feeder.room(length).await,
                    false => match feeder.spare(length) {
                        Some(room) => room,
                        None => break,
                    },
                };
                at = piece.end;
                let (file, direct, path) = (Arc::clone(&file), Arc::clone(&direct), Arc::clone(&path));
                let context = counted.clone();
                let read = tokio::spawn(blocking(move || {
                    let bytes = match cache::look(&context, &file, &piece) {
                        true => read_direct(&direct, &path, piece)?,
                        false => read_range(&file, &path, piece)?,
                    };
                    verify(&file, &path, &stamp).map(|()| bytes)
                }));
                pieces.push_back((room, read));
            }
            let Some((room, read)) = pieces.pop_front() else { return Ok(()) };
            let bytes = read.await.map_err(|cause| Error::internal("a reading task failed").cause(cause))??;
            feeder.send(bytes, room);
        }
    })
}

/// The same file, reopened to read past the page cache. `None` if that is not possible.
fn past_the_cache(file: &File) -> Option<Arc<std::fs::File>> {
    let again = File::open(format!("/proc/self/fd/{}", file.file().as_raw_fd())).ok()?.into_file();
    direct::bypass_cache(&again).then(|| Arc::new(again))
}

/// [`read_range`] past the page cache.
fn read_direct(file: &std::fs::File, path: &Path, range: Range<u64>) -> Result<Bytes> {
    let (start, end) = (direct::align_down(range.start), direct::align_up(range.end));
    let read = Aligned::new((end - start) as usize)
        .and_then(|mut bytes| direct::read_at(file, &mut bytes, start).map(|count| (bytes, count)));
    let (bytes, count) = read.map_err(|cause| io_error("it cannot be read", path, &cause).byte(range.start))?;
    if start + (count as u64) < range.end {
        return Err(changed(path));
    }
    let wanted = (range.start - start) as usize..(range.end - start) as usize;
    Ok(Bytes::from_owner(bytes).slice(wanted))
}

/// The blocks that the kernel was advised to read ahead, and which were not cached before.
struct LookAhead {
    at: u64,
    end: u64,
    cold: VecDeque<bool>,
}

impl LookAhead {
    /// Advises the kernel to read up to [`AHEAD`] after byte `at`, where a block begins. Returns whether that block was
    /// not cached.
    fn look(&mut self, context: &SourceContext, file: &File, at: u64) -> bool {
        while self.at < self.end.min(at + AHEAD) {
            let block = self.at..self.end.min(self.at + BLOCK);
            self.cold.push_back(cache::look(context, file, &block));
            advise(file, block.start, block.end - block.start, Advice::WillNeed);
            self.at = block.end;
        }
        self.cold.pop_front().unwrap_or(false)
    }
}

/// Advises the kernel. A file system may ignore it.
fn advise(file: &File, offset: u64, length: u64, advice: Advice) {
    let _ = rustix::fs::fadvise(file, offset, NonZeroU64::new(length), advice);
}

/// The bytes of a pipe or device, as they arrive. `path` is for messages.
pub(crate) fn stream_pipe(context: &SourceContext, path: Arc<Path>, file: Arc<File>) -> ByteStream {
    feed(context, 4 * PIPE_BLOCK, move |feeder| async move {
        let stop = StopOnDrop::default();
        loop {
            let room = feeder.room(PIPE_BLOCK).await;
            let (file, path, stop) = (Arc::clone(&file), Arc::clone(&path), Arc::clone(&stop.0));
            let bytes = blocking(move || read_pipe(&file, &path, &stop)).await?;
            if bytes.is_empty() {
                return Ok(());
            }
            feeder.send(bytes, room);
        }
    })
}

/// Stops a blocking thread when dropped.
#[derive(Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The next bytes of a pipe; empty at its end, or if it was stopped. A read of a silent pipe could not be stopped, so
/// it first waits until there is something to read.
fn read_pipe(file: &File, path: &Path, stop: &AtomicBool) -> Result<Bytes> {
    let fault = |cause: Errno| io_error("it cannot be read", path, &cause.into());
    let patience = Timespec { tv_sec: 0, tv_nsec: PIPE_PATIENCE };
    let mut bytes = Vec::with_capacity(PIPE_BLOCK);
    while !stop.load(Ordering::Relaxed) {
        let mut ready = [PollFd::new(file, PollFlags::IN)];
        match rustix::event::poll(&mut ready, Some(&patience)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(cause) => return Err(fault(cause)),
        }
        match rustix::io::read(file, spare_capacity(&mut bytes)) {
            Ok(_) => break,
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(cause) => return Err(fault(cause)),
        }
    }
    Ok(Bytes::from(bytes))
}

/// Runs `work` on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(cause) if cause.is_cancelled() => Err(super::interrupted()),
        Err(cause) => Err(Error::internal("a reading thread failed").cause(cause)),
    }
}
