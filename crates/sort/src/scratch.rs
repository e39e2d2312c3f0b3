//! Runs on disk: records in order, in blocks that are checked when they are read.
//!
//! ```text
//!  run    block block block …  zeros     each block: records, or what was made of them; checked when it is read
//!         └ begins at a page       └ to the end of a page
//! ```
//! The files have no names, so nothing is left of a killed process. They are written and read past the page cache, in
//! large pieces. Separate threads read ahead.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millstream_core::direct::{self, ALIGNMENT, Aligned, Appender, Pending};
use millstream_core::spec::Size;
use millstream_core::{Error, ErrorKind, Result};

use crate::memory::{AHEAD, Held, Memory, fetch, no_memory};
use crate::merge::Merge;
use crate::pack::Compression;
use crate::piece::{ENTRY, Sorted, entries_of, position};
use crate::rows::Layout;

/// Blocks that are written at once.
const WRITTEN: usize = 8;

/// The least and most bytes of them.
const WRITE: (usize, usize) = (64 << 10, 512 << 10);

/// The scratch folders, at best each on a disk of its own.
#[derive(Debug)]
pub(crate) struct Scratch {
    disks: Vec<Disk>,
    compression: Compression,
    /// Bytes of the records of a block.
    block: usize,
    written: AtomicU64,
    runs: AtomicU64,
    waited: Arc<Waited>,
}

/// The total time that threads waited for scratch.
#[derive(Debug, Default)]
struct Waited(AtomicU64);

impl Waited {
    /// Counts the time of `work`, which only waits for a disk.
    fn count<T>(&self, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let done = work();
        self.0.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        done
    }
}

#[derive(Debug)]
struct Disk {
    folder: PathBuf,
    /// Whether it is in memory.
    in_memory: bool,
    /// Bytes whose writing has begun.
    waiting: AtomicU64,
    written: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Disk {
    /// The expected nanoseconds until `bytes` more are written.
    fn delay(&self, bytes: u64) -> u64 {
        let (written, time) = (self.written.load(Ordering::Relaxed), self.nanoseconds.load(Ordering::Relaxed));
        let each = if written == 0 { 1.0 } else { time as f64 / written as f64 };
        ((self.waiting.load(Ordering::Relaxed) + bytes) as f64 * each) as u64
    }

    /// Whether there is room for `bytes` more.
    fn has_room(&self, bytes: u64) -> bool {
        let room = rustix::fs::statvfs(&self.folder).map_or(0, |disk| disk.f_bavail * disk.f_frsize);
        self.waiting.load(Ordering::Relaxed) + bytes <= room
    }

    fn fault(&self, cause: &std::io::Error) -> Error {
        let error = Error::io(format!("rows to sort cannot be written to scratch in {}", self.folder.display()), cause);
        match cause.kind() {
            std::io::ErrorKind::StorageFull => {
                error.hint("name a folder with more room with `--scratch`, or give more memory with `--memory`")
            }
            _ => error,
        }
    }
}

/// Whether the files of `folder` are in memory (`tmpfs`, `ramfs`).
pub fn is_in_memory(folder: &Path) -> bool {
    const TMPFS: u32 = 0x0102_1994;
    const RAMFS: u32 = 0x8584_58f6;
    rustix::fs::statfs(folder).is_ok_and(|disk| [TMPFS, RAMFS].contains(&(disk.f_type as u32)))
}

impl Scratch {
    pub(crate) fn new(folders: &[PathBuf], compression: Compression, block: usize) -> Arc<Self> {
        let disk = |folder: &PathBuf| Disk {
            folder: folder.clone(),
            in_memory: is_in_memory(folder),
            waiting: AtomicU64::new(0),
            written: AtomicU64::new(0),
            nanoseconds: AtomicU64::new(0),
        };
        let disks = folders.iter().map(disk).collect();
        let (written, runs) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Scratch { disks, compression, block, written, runs, waited: Arc::default() })
    }

    /// How many disks there are.
    pub(crate) fn disks(&self) -> usize {
        self.disks.len()
    }

    /// Runs that were sorted and written.
    pub(crate) fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    /// The `error` of a disk that failed to write a run of about `bytes` bytes, with the sizes.
    fn with_sizes(&self, error: Error, bytes: u64) -> Error {
        match (error.kind(), error.cause_text().map(str::to_owned)) {
            (ErrorKind::Refused, Some(cause)) => {
                let (bytes, before) = (Size(bytes), Size(self.written()));
                error.cause(format!("{cause}: about {bytes} was to be written, after {before} in all"))
            }
            _ => error,
        }
    }

    /// The total time that threads waited for it.
    pub(crate) fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.0.load(Ordering::Relaxed))
    }

    /// Bytes written in all.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }
}

/// Writes runs, one after the other, into a file on each disk that it uses.
#[derive(Debug)]
pub(crate) struct Writer {
    scratch: Arc<Scratch>,
    layout: Arc<Layout>,
    memory: Arc<Memory>,
    /// For each disk: the file, and where it ends.
    files: Vec<Option<(Arc<File>, u64)>>,
    /// The records of a block.
    block: Vec<u8>,
    packed: Vec<u8>,
}

/// A run on disk.
#[derive(Debug)]
pub(crate) struct Run {
    file: Arc<File>,
    folder: PathBuf,
    layout: Arc<Layout>,
    compression: Compression,
    waited: Arc<Waited>,
    /// The position of its first block.
    start: u64,
    blocks: Vec<Block>,
    /// The memory of the list of blocks.
    _held: Held,
}

/// A block: its bytes on disk and in memory, its rows, and the CRC-32 of its bytes on disk.
#[derive(Debug, Clone, Copy)]
struct Block {
    stored: u32,
    raw: u32,
    rows: u32,
    check: u32,
}

impl Writer {
    pub(crate) fn new(scratch: Arc<Scratch>, layout: Arc<Layout>, memory: Arc<Memory>) -> Self {
        let files = scratch.disks.iter().map(|_| None).collect();
        Writer { scratch, layout, memory, files, block: Vec::new(), packed: Vec::new() }
    }

    /// Writes `sorted` to the disk that should finish first. If a disk is full, another one is used.
    pub(crate) fn write(&mut self, sorted: &Sorted) -> Result<Run> {
        let bytes = sorted.bytes() as u64;
        let run = self.on_any_disk(bytes, |open| {
            (0..sorted.rows()).try_for_each(|row| {
                if row + AHEAD < sorted.rows() {
                    fetch(sorted.record(row + AHEAD));
                }
                open.add(sorted.record(row))
            })
        })?;
        self.scratch.runs.fetch_add(1, Ordering::Relaxed);
        Ok(run)
    }

    /// Writes the rows of `merge` (`bytes` bytes of runs) as one longer run, unless it is `stopped` meanwhile.
    pub(crate) fn merge(&mut self, bytes: u64, merge: impl Fn() -> Merge, stopped: &AtomicBool) -> Result<Run> {
        self.on_any_disk(bytes, |open| {
            let mut merge = merge();
            while let Some(slice) = merge.next_slice()? {
                if stopped.load(Ordering::Relaxed) {
                    return Err(Error::new(ErrorKind::Interrupted, "the run ended while rows were sorted"));
                }
                slice.in_order(|records| records.iter().try_for_each(|record| open.add(record)))?;
            }
            Ok(())
        })
    }

    /// Lets `write` write a run of about `bytes` bytes to one disk after the other, until one succeeds. An error that
    /// is not of the disk ends the attempts.
    fn on_any_disk(&mut self, bytes: u64, write: impl Fn(&mut OpenRun<'_>) -> Result<()>) -> Result<Run> {
        let scratch = Arc::clone(&self.scratch);
        let mut order: Vec<usize> = (0..scratch.disks.len()).collect();
        order.sort_by_cached_key(|disk| {
            let disk = &scratch.disks[*disk];
            (!disk.has_room(bytes), !disk.in_memory, disk.delay(bytes))
        });
        let mut first: Option<Error> = None;
        for disk in order {
            let position = &scratch.disks[disk];
            position.waiting.fetch_add(bytes, Ordering::Relaxed);
            let begun = Instant::now();
            let run = self.write_to(disk, &write);
            position.waiting.fetch_sub(bytes, Ordering::Relaxed);
            match run {
                Ok(run) => {
                    let stored = run.stored();
                    position.written.fetch_add(stored, Ordering::Relaxed);
                    position.nanoseconds.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
                    scratch.written.fetch_add(stored, Ordering::Relaxed);
                    return Ok(run);
                }
                Err(WriteFault { error, of_disk }) => {
                    self.give_back(disk);
                    if !of_disk {
                        return Err(error);
                    }
                    first.get_or_insert_with(|| scratch.with_sizes(error, bytes));
                }
            }
        }
        Err(first.unwrap_or_else(|| Error::internal("there is no folder for scratch")))
    }

    /// Frees what an abandoned run has written to `disk`; earlier runs in the same file stay.
    fn give_back(&mut self, disk: usize) {
        if let Some((file, end)) = &self.files[disk] {
            // If that is not possible, the room is freed with the file.
            let _ = file.set_len(*end);
        }
    }

    fn write_to(
        &mut self,
        disk: usize,
        write: impl Fn(&mut OpenRun<'_>) -> Result<()>,
    ) -> std::result::Result<Run, WriteFault> {
        let position = &self.scratch.disks[disk];
        let fault = |cause: std::io::Error| WriteFault { error: position.fault(&cause), of_disk: true };
        let (file, start) = match &self.files[disk] {
            Some((file, end)) => (Arc::clone(file), *end),
            None => (Arc::new(tempfile::tempfile_in(&position.folder).map_err(fault)?), 0),
        };
        self.block.clear();
        let piece = (WRITTEN * self.scratch.block).clamp(WRITE.0, WRITE.1);
        // There is no other way to free memory.
        let held = self.memory.take(Appender::held(piece) + 2 * self.scratch.block);
        let mut open = OpenRun {
            layout: &self.layout,
            position,
            waited: &self.scratch.waited,
            asked: self.scratch.compression,
            compression: None,
            most: self.scratch.block,
            appender: Appender::new(Arc::clone(&file), start, piece).map_err(fault)?,
            block: &mut self.block,
            packed: &mut self.packed,
            usual: held.bytes(),
            held,
            failed: false,
            rows: 0,
            blocks: Vec::new(),
        };
        let written = write(&mut open).and_then(|()| open.close());
        let (end, mut blocks, compression) = written.map_err(|error| WriteFault { error, of_disk: open.failed })?;
        drop(open);
        blocks.shrink_to_fit();
        let held = self.memory.take(size_of_val(blocks.as_slice()));
        self.files[disk] = Some((Arc::clone(&file), end));
        let (folder, layout) = (position.folder.clone(), Arc::clone(&self.layout));
        let waited = Arc::clone(&self.scratch.waited);
        Ok(Run { file, folder, layout, compression, waited, start, blocks, _held: held })
    }
}

/// An error of writing a run.
struct WriteFault {
    error: Error,
    /// Whether another disk may succeed.
    of_disk: bool,
}

/// A run that is being written.
struct OpenRun<'a> {
    layout: &'a Layout,
    position: &'a Disk,
    waited: &'a Waited,
    asked: Compression,
    /// `Some` after the first block.
    compression: Option<Compression>,
    /// Bytes after which a block is sealed.
    most: usize,
    appender: Appender,
    block: &'a mut Vec<u8>,
    packed: &'a mut Vec<u8>,
    /// Its memory, of which so many bytes are usual.
    held: Held,
    usual: usize,
    /// Whether the disk has failed.
    failed: bool,
    rows: u32,
    blocks: Vec<Block>,
}

impl OpenRun<'_> {
    /// Adds the record at the beginning of `bytes`.
    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        let record = &bytes[..self.layout.measure(bytes).end];
        if record.len() > self.most {
            self.held.grow(2 * record.len());
        }
        self.block.extend_from_slice(record);
        self.rows += 1;
        if self.block.len() >= self.most {
            self.seal()?;
        }
        Ok(())
    }

    fn seal(&mut self) -> Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let compression = match self.compression {
            Some(known) => known,
            None => *self.compression.insert(self.asked.for_run(self.block, self.packed)),
        };
        let stored = compression.pack(self.block, self.packed);
        let (length, check) = (stored.len() as u32, crc32fast::hash(stored));
        let (appender, waited) = (&mut self.appender, self.waited);
        if let Err(cause) = waited.count(|| appender.append(stored)) {
            return Err(self.fault(&cause));
        }
        self.blocks.push(Block { stored: length, raw: self.block.len() as u32, rows: self.rows, check });
        self.block.clear();
        self.rows = 0;
        // A record of many blocks made the buffers larger.
        for bytes in [&mut *self.block, &mut *self.packed] {
            bytes.truncate(0);
            bytes.shrink_to(2 * self.most);
        }
        self.held.shrink_to(self.usual);
        Ok(())
    }

    fn close(&mut self) -> Result<(u64, Vec<Block>, Compression)> {
        self.seal()?;
        let (appender, waited) = (&mut self.appender, self.waited);
        if let Err(cause) = waited.count(|| appender.fill_page()) {
            return Err(self.fault(&cause));
        }
        let blocks = std::mem::take(&mut self.blocks);
        Ok((self.appender.end(), blocks, self.compression.unwrap_or(self.asked)))
    }

    fn fault(&mut self, cause: &std::io::Error) -> Error {
        self.failed = true;
        self.position.fault(cause)
    }
}

impl Run {
    /// Its bytes on disk.
    pub(crate) fn stored(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.stored)).sum()
    }

    /// Frees its room on the disk. It cannot be read any more.
    pub(crate) fn release(&self) {
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        // If a file system cannot do that, the room is freed with the file.
        let _ = rustix::fs::fallocate(&self.file, flags, self.start, self.stored());
    }

    fn damaged(&self) -> Error {
        Error::refused(format!("scratch in {} does not hold what was written to it", self.folder.display()))
            .hint("check the disk, and start the run again")
    }

    fn unreadable(&self, cause: &std::io::Error) -> Error {
        Error::io(format!("scratch in {} cannot be read", self.folder.display()), cause)
    }

    /// Fails if `content` is not what was written as `blocks`.
    fn check(&self, blocks: &[Block], content: &[u8]) -> Result<()> {
        let mut at = 0;
        for block in blocks {
            let stored = &content[at..at + block.stored as usize];
            at += stored.len();
            if crc32fast::hash(stored) != block.check {
                return Err(self.damaged());
            }
        }
        Ok(())
    }

    /// The records of `extent`, decompressed from `content`, with room for their entries.
    fn unpacked(&self, extent: &Extent, content: &[u8]) -> Result<Aligned> {
        let mut records = Aligned::new(extent.with_entries(extent.raw)).map_err(|cause| no_memory(&cause))?;
        let (mut from, mut to) = (0, 0);
        for block in &self.blocks[extent.from..extent.to] {
            let stored = &content[from..from + block.stored as usize];
            let room = &mut records[to..to + block.raw as usize];
            (from, to) = (from + stored.len(), to + room.len());
            match stored.len() == room.len() {
                true => room.copy_from_slice(stored),
                false => self.compression.unpack(stored, room).ok_or_else(|| self.damaged())?,
            }
        }
        Ok(records)
    }

    /// Writes the entries of the records between `start` and `end` of `bytes` to the end of `bytes`, so that the first
    /// bytes of keys are read only once.
    fn note_entries(&self, bytes: &mut [u8], start: usize, end: usize, rows: usize) {
        let (records, places) = bytes.split_at_mut(bytes.len() - rows * ENTRY);
        let entries = entries_of(&self.layout, &records[start..end], rows);
        for (position, entry) in places.chunks_exact_mut(ENTRY).zip(entries) {
            position.copy_from_slice(&(entry + start as u128).to_ne_bytes());
        }
    }

    /// Reads the run from its beginning.
    pub(crate) fn reader(self: Arc<Self>, memory: &Arc<Memory>) -> RunReader {
        RunReader { at: self.start, next: 0, memory: Arc::clone(memory), page: Vec::new(), ahead: None, run: self }
    }
}

/// Blocks that are read at once: their range, position, bytes on disk and in memory, and rows.
#[derive(Debug, Clone, Copy)]
struct Extent {
    from: usize,
    to: usize,
    at: u64,
    stored: usize,
    raw: usize,
    rows: usize,
}

impl Extent {
    /// The range of whole pages of the file that contain it, and its first byte in them.
    fn pages(&self) -> (u64, u64, usize) {
        let (first, last) = (direct::align_down(self.at), direct::align_up(self.at + self.stored as u64));
        (first, last, (self.at - first) as usize)
    }

    /// Bytes of memory for its records and their entries.
    fn size(&self) -> usize {
        let (first, last, _) = self.pages();
        self.with_entries(if self.is_packed() { self.raw } else { (last - first) as usize })
    }

    /// `bytes` with room for the entries after them.
    fn with_entries(&self, bytes: usize) -> usize {
        bytes.next_multiple_of(ENTRY) + self.rows * ENTRY
    }

    /// More bytes of memory that decompressing it takes.
    fn size_packed(&self) -> usize {
        let (first, last, _) = self.pages();
        if self.is_packed() { (last - first) as usize } else { 0 }
    }

    fn is_packed(&self) -> bool {
        self.stored != self.raw
    }
}

/// Reads the blocks of a run one after the other.
#[derive(Debug)]
pub(crate) struct RunReader {
    run: Arc<Run>,
    memory: Arc<Memory>,
    at: u64,
    next: usize,
    /// The page of the file at `at`, if it was already read; else empty.
    page: Vec<u8>,
    /// The extent that is being read ahead.
    ahead: Option<(Extent, Pending<Result<Taken>>)>,
}

/// A buffer, and how many bytes of it are filled.
type Filled = std::io::Result<(Aligned, usize)>;

/// The records read from a run, and the page in which they ended, if the run continues in it.
type Taken = (Chunk, Vec<u8>);

impl RunReader {
    /// Whether there are more records.
    pub(crate) fn has_more(&self) -> bool {
        self.next < self.run.blocks.len()
    }

    /// The next blocks that make up `bytes` in memory, but one at least.
    fn extent(&self, bytes: usize) -> Extent {
        let mut extent = Extent { from: self.next, to: self.next, at: self.at, stored: 0, raw: 0, rows: 0 };
        for block in &self.run.blocks[self.next..] {
            if extent.to > self.next && extent.raw + block.raw as usize > bytes {
                break;
            }
            extent.to += 1;
            extent.stored += block.stored as usize;
            extent.raw += block.raw as usize;
            extent.rows += block.rows as usize;
        }
        extent
    }

    /// Bytes of memory that the next `bytes` take.
    pub(crate) fn size(&self, bytes: usize) -> usize {
        self.ahead.as_ref().map_or_else(|| self.extent(bytes), |(extent, ..)| *extent).size()
    }

    /// Bytes of memory that reading the next `bytes` takes beyond what is read already.
    pub(crate) fn cost(&self, bytes: usize) -> usize {
        if self.ahead.is_some() { 0 } else { self.extent(bytes).size() }
    }

    /// Starts reading the next `bytes`, if there is memory for them.
    pub(crate) fn read_ahead(&mut self, bytes: usize) -> bool {
        if self.ahead.is_some() || !self.has_more() {
            return true;
        }
        let extent = self.extent(bytes);
        let size = extent.size() + extent.size_packed();
        // Reading ahead is optional.
        if self.memory.left() < 2 * size {
            return false;
        }
        let Some(held) = self.memory.try_take(size) else { return false };
        let reading = self.reading(extent, held);
        let taking = move || {
            let content = reading.content();
            reading.take(content)
        };
        self.ahead = Some((extent, direct::wait_elsewhere(taking)));
        true
    }

    fn reading(&self, extent: Extent, held: Held) -> Reading {
        Reading { run: Arc::clone(&self.run), extent, page: self.page.clone(), held }
    }

    /// The next records: those read ahead, or blocks of about `bytes` bytes.
    pub(crate) fn read(&mut self, bytes: usize) -> Result<Chunk> {
        let (extent, taken) = match self.ahead.take() {
            Some((extent, pending)) => {
                let taken = self.run.waited.count(|| pending.wait());
                (extent, taken.map_err(|cause| self.run.unreadable(&cause))?)
            }
            None => {
                let extent = self.extent(bytes);
                let held = self.memory.take(extent.size() + extent.size_packed());
                let reading = self.reading(extent, held);
                let content = self.run.waited.count(|| reading.content());
                (extent, reading.take(content))
            }
        };
        let chunk;
        (chunk, self.page) = taken?;
        self.at += extent.stored as u64;
        self.next = extent.to;
        Ok(chunk)
    }
}

/// An extent to be read and decompressed, by any thread.
struct Reading {
    run: Arc<Run>,
    extent: Extent,
    /// The first page, if it was already read.
    page: Vec<u8>,
    held: Held,
}

impl Reading {
    /// Reads its pages.
    fn content(&self) -> Filled {
        let ((first, last, _), known) = (self.extent.pages(), self.page.len());
        let pages = (last - first) as usize;
        let mut content = Aligned::new(if self.extent.is_packed() { pages } else { self.extent.with_entries(pages) })?;
        content[..known].copy_from_slice(&self.page);
        let count = direct::read_at(&self.run.file, &mut content[known..pages], first + known as u64)?;
        Ok((content, known + count))
    }

    /// Decompresses the records in its pages.
    fn take(mut self, content: Filled) -> Result<Taken> {
        let (run, extent) = (Arc::clone(&self.run), self.extent);
        let (_, _, start) = extent.pages();
        let end = start + extent.stored;
        let (content, length) = content.map_err(|cause| run.unreadable(&cause))?;
        if length < end {
            return Err(run.damaged());
        }
        let mut page = Vec::new();
        if !end.is_multiple_of(ALIGNMENT) {
            page.extend_from_slice(&content[end - end % ALIGNMENT..end.next_multiple_of(ALIGNMENT)]);
        }
        let blocks = &run.blocks[extent.from..extent.to];
        run.check(blocks, &content[start..end])?;
        let (mut bytes, start) = match extent.is_packed() {
            true => (run.unpacked(&extent, &content[start..end])?, 0),
            false => (content, start),
        };
        run.note_entries(&mut bytes, start, start + extent.raw, extent.rows);
        self.held.shrink_to(extent.size());
        Ok((Chunk { bytes, rows: extent.rows, _held: self.held }, page))
    }
}

/// Records that were read back, in order.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// The records, followed by their entries.
    bytes: Aligned,
    rows: usize,
    _held: Held,
}

impl Chunk {
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of the records, without their entries.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len() - self.rows * ENTRY
    }

    /// The entry of `row`.
    pub(crate) fn entry(&self, row: usize) -> u128 {
        let at = self.bytes.len() - (self.rows - row) * ENTRY;
        self.bytes[at..].first_chunk().map_or(0, |entry| u128::from_ne_bytes(*entry))
    }

    /// Bytes that begin with the record of `row`.
    pub(crate) fn record(&self, row: usize) -> &[u8] {
        &self.bytes[position(self.entry(row)) as usize..]
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    use arrow::array::{ArrayRef, RecordBatch, StringArray};
    use millstream_core::Budget;

    use super::*;
    use crate::piece::{Filling, Selection};
    use crate::{Key, KeyValues, Order};

    #[test]
    fn what_was_changed_on_the_disk_is_not_taken_for_rows() {
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            let folder = tempfile::tempdir().expect("a folder");
            let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..5000).map(|row| format!("text {row}"))));
            let batch = RecordBatch::try_from_iter([("t", texts)]).expect("a batch");
            let order = Order { descending: false, nulls_first: true };
            let layout = Layout::new(&batch.schema(), &[Key { values: KeyValues::Column(0), order }]);
            let layout = Arc::new(layout.expect("a layout"));
            let memory = Memory::new(Budget::new(1 << 30), 1 << 28);
            let wanted = Selection { keep: None, first: usize::MAX, last: None };
            let mut filling = Filling::new(Arc::clone(&layout), Arc::clone(&memory), 1 << 24);
            filling.add(&layout.prepare(&batch, &[]).expect("prepared"), 0, false).expect("memory");
            let sorted = filling.sort(&wanted).expect("memory");
            let scratch = Scratch::new(&[folder.path().to_owned()], compression, 4096);
            let run = Arc::new(Writer::new(scratch, layout, Arc::clone(&memory)).write(&sorted).expect("written"));
            let length = run.stored();
            // The same file through the cache, so that single bytes can be written.
            let path = format!("/proc/self/fd/{}", run.file.as_raw_fd());
            let file: File = fs_err::OpenOptions::new().read(true).write(true).open(path).expect("the file").into();
            let read = || {
                let mut reader = Arc::clone(&run).reader(&memory);
                let mut rows = 0;
                while reader.has_more() {
                    rows += reader.read(10_000)?.rows();
                }
                Ok::<_, Error>(rows)
            };
            assert_eq!(read().expect("as it was written"), 5000);
            for at in (0..length).step_by(97) {
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).expect("a byte");
                file.write_all_at(&[byte[0] ^ 0x10], at).expect("a byte");
                let error = read().expect_err("a byte is wrong");
                assert_eq!(error.kind(), ErrorKind::Refused);
                assert!(error.what().contains("does not hold what was written"), "{error:?}");
                file.write_all_at(&byte, at).expect("a byte");
            }
            file.set_len(length - 1).expect("a shorter file");
            assert!(read().is_err());
        }
    }
}
