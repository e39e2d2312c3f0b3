//! Runs on disk: records in order, in blocks that are checked when they are read.
//!
//! ```text
//!  block   [bytes of the records] [bytes as stored] [CRC-32 of what is stored]   records, or what LZ4 made of them
//! ```
//! The files have no names, so nothing is left of a process that is killed. They are written and read through the page
//! cache: what is read back soon never comes from the disk, and the kernel reads ahead what is asked for.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use millstream_core::{Error, ErrorKind, Result};

use crate::memory::{Held, Memory};
use crate::merge::Merge;
use crate::piece::Sorted;
use crate::rows::Layout;

/// Bytes before what a block stores.
const HEAD: usize = 12;

/// Bytes that are written at once.
const WRITE: usize = 1 << 20;

/// Whether what is written is made smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// As it is.
    #[default]
    None,
    /// LZ4, in blocks of its own.
    Lz4,
}

/// The folders for what does not fit in memory, at best each on a disk of its own.
#[derive(Debug)]
pub(crate) struct Scratch {
    disks: Vec<Disk>,
    compression: Compression,
    /// Bytes of the records of a block.
    block: usize,
    written: AtomicU64,
    runs: AtomicU64,
}

#[derive(Debug)]
struct Disk {
    folder: PathBuf,
    /// Bytes that are being written now.
    waiting: AtomicU64,
    written: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Disk {
    /// Nanoseconds after which `bytes` more would be written.
    fn delay(&self, bytes: u64) -> u64 {
        let (written, time) = (self.written.load(Ordering::Relaxed), self.nanoseconds.load(Ordering::Relaxed));
        let each = if written == 0 { 1.0 } else { time as f64 / written as f64 };
        ((self.waiting.load(Ordering::Relaxed) + bytes) as f64 * each) as u64
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

impl Scratch {
    pub(crate) fn new(folders: &[PathBuf], compression: Compression, block: usize) -> Arc<Self> {
        let disk = |folder: &PathBuf| Disk {
            folder: folder.clone(),
            waiting: AtomicU64::new(0),
            written: AtomicU64::new(0),
            nanoseconds: AtomicU64::new(0),
        };
        let disks = folders.iter().map(disk).collect();
        Arc::new(Scratch { disks, compression, block, written: AtomicU64::new(0), runs: AtomicU64::new(0) })
    }

    /// Runs that were sorted and written.
    pub(crate) fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
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
    /// By the disk: the file, and where it ends.
    files: Vec<Option<(Arc<File>, u64)>>,
    buffer: Vec<u8>,
    block: Vec<u8>,
}

/// A run on disk.
#[derive(Debug)]
pub(crate) struct Run {
    file: Arc<File>,
    folder: PathBuf,
    layout: Arc<Layout>,
    /// Where its blocks begin.
    start: u64,
    blocks: Vec<Block>,
}

/// A block: its bytes on disk and in memory, and its rows.
#[derive(Debug, Clone, Copy)]
struct Block {
    stored: u32,
    raw: u32,
    rows: u32,
}

impl Writer {
    pub(crate) fn new(scratch: Arc<Scratch>, layout: Arc<Layout>) -> Self {
        let files = scratch.disks.iter().map(|_| None).collect();
        Writer { scratch, layout, files, buffer: Vec::new(), block: Vec::new() }
    }

    /// Writes `sorted` to the disk that will have it soonest. A disk that is full is left for another one.
    pub(crate) fn write(&mut self, sorted: &Sorted) -> Result<Run> {
        let bytes = sorted.bytes() as u64;
        let run =
            self.on_any_disk(bytes, |open| (0..sorted.rows()).try_for_each(|row| open.add(sorted.record(row))))?;
        self.scratch.runs.fetch_add(1, Ordering::Relaxed);
        Ok(run)
    }

    /// Writes what `merge` makes of `bytes` bytes of runs as one longer run, unless it is `stopped` on the way.
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

    /// Has `write` write a run of about `bytes` bytes to one disk after the other, until one takes it.
    fn on_any_disk(&mut self, bytes: u64, write: impl Fn(&mut OpenRun<'_>) -> Result<()>) -> Result<Run> {
        let scratch = Arc::clone(&self.scratch);
        let mut order: Vec<usize> = (0..scratch.disks.len()).collect();
        order.sort_by_key(|disk| scratch.disks[*disk].delay(bytes));
        let mut first: Option<Error> = None;
        for disk in order {
            let place = &scratch.disks[disk];
            place.waiting.fetch_add(bytes, Ordering::Relaxed);
            let begun = Instant::now();
            let run = self.write_to(disk, &write);
            place.waiting.fetch_sub(bytes, Ordering::Relaxed);
            match run {
                Ok(run) => {
                    let stored = run.stored();
                    place.written.fetch_add(stored, Ordering::Relaxed);
                    place.nanoseconds.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
                    scratch.written.fetch_add(stored, Ordering::Relaxed);
                    return Ok(run);
                }
                Err(error) => {
                    self.give_back(disk);
                    first.get_or_insert(error);
                }
            }
        }
        Err(first.unwrap_or_else(|| Error::internal("there is no folder for scratch")))
    }

    /// Gives back what was written to `disk` in vain; earlier runs in the same file stay.
    fn give_back(&mut self, disk: usize) {
        if let Some((file, end)) = &self.files[disk] {
            // Where that is not possible, the room comes back with the file.
            let _ = file.set_len(*end);
        }
    }

    fn write_to(&mut self, disk: usize, write: impl Fn(&mut OpenRun<'_>) -> Result<()>) -> Result<Run> {
        let place = &self.scratch.disks[disk];
        let (file, start) = match &self.files[disk] {
            Some((file, end)) => (Arc::clone(file), *end),
            None => (Arc::new(tempfile::tempfile_in(&place.folder).map_err(|cause| place.fault(&cause))?), 0),
        };
        self.buffer.clear();
        self.block.clear();
        let (compression, most) = (self.scratch.compression, self.scratch.block);
        let (buffer, block) = (&mut self.buffer, &mut self.block);
        let layout = &self.layout;
        let blocks = Vec::new();
        let mut open =
            OpenRun { layout, place, compression, most, file: &file, end: start, buffer, block, rows: 0, blocks };
        write(&mut open)?;
        let (end, blocks) = open.close()?;
        self.files[disk] = Some((Arc::clone(&file), end));
        let (folder, layout) = (place.folder.clone(), Arc::clone(&self.layout));
        Ok(Run { file, folder, layout, start, blocks })
    }
}

/// A run that is being written.
struct OpenRun<'a> {
    layout: &'a Layout,
    place: &'a Disk,
    compression: Compression,
    /// Bytes after which a block is sealed.
    most: usize,
    file: &'a File,
    end: u64,
    buffer: &'a mut Vec<u8>,
    block: &'a mut Vec<u8>,
    rows: u32,
    blocks: Vec<Block>,
}

impl OpenRun<'_> {
    /// Adds the record with which `bytes` begins.
    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        self.block.extend_from_slice(&bytes[..self.layout.measure(bytes).end]);
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
        let (stored, raw) = seal(self.block, self.compression, self.buffer);
        self.blocks.push(Block { stored, raw, rows: self.rows });
        self.block.clear();
        self.rows = 0;
        if self.buffer.len() >= WRITE {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.file.write_all_at(self.buffer, self.end).map_err(|cause| self.place.fault(&cause))?;
        self.end += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn close(mut self) -> Result<(u64, Vec<Block>)> {
        self.seal()?;
        self.flush()?;
        Ok((self.end, self.blocks))
    }
}

/// Adds a block with `records` to `buffer`: its bytes on disk and in memory.
fn seal(records: &[u8], compression: Compression, buffer: &mut Vec<u8>) -> (u32, u32) {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; HEAD]);
    if compression == Compression::Lz4 {
        let room = lz4_flex::block::get_maximum_output_size(records.len());
        buffer.resize(start + HEAD + room, 0);
        // It fails only where the room is too small.
        let stored = lz4_flex::block::compress_into(records, &mut buffer[start + HEAD..]).unwrap_or(usize::MAX);
        buffer.truncate(start + HEAD + if stored < records.len() { stored } else { 0 });
    }
    if buffer.len() == start + HEAD {
        buffer.extend_from_slice(records);
    }
    let stored = (buffer.len() - start - HEAD) as u32;
    let check = crc32fast::hash(&buffer[start + HEAD..]);
    for (index, number) in [records.len() as u32, stored, check].into_iter().enumerate() {
        buffer[start + 4 * index..start + 4 * index + 4].copy_from_slice(&number.to_le_bytes());
    }
    (stored + HEAD as u32, records.len() as u32)
}

impl Run {
    /// Its bytes on disk.
    pub(crate) fn stored(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.stored)).sum()
    }

    /// Gives its room on the disk back. Nothing is read of it any more.
    pub(crate) fn release(&self) {
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        // Where a file system cannot do that, the room comes back with the file.
        let _ = rustix::fs::fallocate(&self.file, flags, self.start, self.stored());
    }

    fn damaged(&self) -> Error {
        Error::refused(format!("scratch in {} does not hold what was written to it", self.folder.display()))
            .hint("nothing was written to the target; look at the disk, and start the run again")
    }

    /// Reads the run from its beginning.
    pub(crate) fn reader(self: Arc<Self>, memory: &Arc<Memory>) -> RunReader {
        RunReader { at: self.start, next: 0, memory: Arc::clone(memory), run: self }
    }
}

/// Blocks that are read at once: up to which, their bytes on disk and in memory, their rows.
struct Extent {
    to: usize,
    stored: usize,
    raw: usize,
    rows: usize,
}

/// Reads the blocks of a run one after the other.
#[derive(Debug)]
pub(crate) struct RunReader {
    run: Arc<Run>,
    memory: Arc<Memory>,
    at: u64,
    next: usize,
}

impl RunReader {
    /// Whether there are more.
    pub(crate) fn has_more(&self) -> bool {
        self.next < self.run.blocks.len()
    }

    /// The blocks from `from` on that make up `bytes` on disk, but one at least.
    fn extent(&self, from: usize, bytes: usize) -> Extent {
        let mut extent = Extent { to: from, stored: 0, raw: 0, rows: 0 };
        for block in &self.run.blocks[from..] {
            if extent.to > from && extent.stored >= bytes {
                break;
            }
            extent.to += 1;
            extent.stored += block.stored as usize;
            extent.raw += block.raw as usize;
            extent.rows += block.rows as usize;
        }
        extent
    }

    /// Bytes of memory that reading the next `bytes` takes.
    pub(crate) fn cost(&self, bytes: usize) -> usize {
        let Extent { stored, raw, rows, .. } = self.extent(self.next, bytes);
        stored.max(raw) + rows * size_of::<u32>()
    }

    /// The next records: blocks of about `bytes` bytes on disk. What follows them is asked for, so that it is there when
    /// it is wanted.
    pub(crate) fn read(&mut self, bytes: usize) -> Result<Chunk> {
        let Extent { to, stored, raw, rows } = self.extent(self.next, bytes);
        let mut content = vec![0; stored];
        self.run.file.read_exact_at(&mut content, self.at).map_err(|cause| match cause.kind() {
            std::io::ErrorKind::UnexpectedEof => self.run.damaged(),
            _ => Error::io(format!("scratch in {} cannot be read", self.run.folder.display()), &cause),
        })?;
        let following = self.extent(to, bytes).stored;
        let advise = |at: u64, length: usize, advice| {
            if let Some(length) = std::num::NonZeroU64::new(length as u64) {
                // It is only advice.
                let _ = rustix::fs::fadvise(&self.run.file, at, Some(length), advice);
            }
        };
        advise(self.at + stored as u64, following, rustix::fs::Advice::WillNeed);
        let is_plain = stored == raw + HEAD * (to - self.next);
        let mut records = Vec::with_capacity(if is_plain { 0 } else { raw });
        let mut places = Vec::with_capacity(rows);
        let mut at = 0;
        for Block { stored: block_stored, raw: block_raw, .. } in &self.run.blocks[self.next..to] {
            let block = &content[at..at + *block_stored as usize];
            at += *block_stored as usize;
            let number =
                |index: usize| u32::from_le_bytes([block[index], block[index + 1], block[index + 2], block[index + 3]]);
            let body = &block[HEAD..];
            if (number(0), number(4)) != (*block_raw, body.len() as u32) || number(8) != crc32fast::hash(body) {
                return Err(self.run.damaged());
            }
            let start = if is_plain { at - body.len() } else { records.len() };
            if !is_plain {
                match body.len() == *block_raw as usize {
                    true => records.extend_from_slice(body),
                    false => {
                        records.resize(start + *block_raw as usize, 0);
                        lz4_flex::block::decompress_into(body, &mut records[start..])
                            .map_err(|_| self.run.damaged())?;
                    }
                }
            }
            let bytes = if is_plain { body } else { &records[start..] };
            let mut record = 0;
            while record < bytes.len() {
                places.push((start + record) as u32);
                record += self.run.layout.measure(&bytes[record..]).end;
            }
        }
        self.at += stored as u64;
        self.next = to;
        let bytes = if is_plain { content } else { records };
        let held = self.memory.take(bytes.len() + places.len() * size_of::<u32>());
        Ok(Chunk { layout: Arc::clone(&self.run.layout), bytes, places, _held: held })
    }
}

/// Records that were read back, in order.
#[derive(Debug)]
pub(crate) struct Chunk {
    layout: Arc<Layout>,
    bytes: Vec<u8>,
    places: Vec<u32>,
    _held: Held,
}

impl Chunk {
    pub(crate) fn rows(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes that begin with the record of `row`.
    pub(crate) fn record(&self, row: usize) -> &[u8] {
        &self.bytes[self.places[row] as usize..]
    }

    pub(crate) fn key(&self, row: usize) -> &[u8] {
        self.layout.key(self.record(row))
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, RecordBatch, StringArray};
    use millstream_core::Budget;

    use super::*;
    use crate::piece::Filling;
    use crate::{Key, KeyValues, Order};

    #[test]
    fn what_was_changed_on_the_disk_is_not_taken_for_rows() {
        for compression in [Compression::None, Compression::Lz4] {
            let folder = tempfile::tempdir().expect("a folder");
            let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..5000).map(|row| format!("text {row}"))));
            let batch = RecordBatch::try_from_iter([("t", texts)]).expect("a batch");
            let order = Order { descending: false, nulls_first: true };
            let layout = Layout::new(&batch.schema(), &[Key { values: KeyValues::Column(0), order }]);
            let layout = Arc::new(layout.expect("a layout"));
            let memory = Memory::new(Budget::new(1 << 30), 1 << 28);
            let mut filling = Filling::new(Arc::clone(&layout), Arc::clone(&memory), 1 << 24);
            filling.add(&layout.prepare(&batch, &[]).expect("prepared"), 0, false);
            let sorted = filling.sort(None);
            let scratch = Scratch::new(&[folder.path().to_owned()], compression, 4096);
            let run = Arc::new(Writer::new(scratch, layout).write(&sorted).expect("written"));
            let length = run.file.metadata().expect("a file").len();
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
                run.file.read_exact_at(&mut byte, at).expect("a byte");
                run.file.write_all_at(&[byte[0] ^ 0x10], at).expect("a byte");
                let error = read().expect_err("a byte is wrong");
                assert_eq!(error.kind(), ErrorKind::Refused);
                assert!(error.what().contains("does not hold what was written"), "{error:?}");
                run.file.write_all_at(&byte, at).expect("a byte");
            }
            run.file.set_len(length - 1).expect("a shorter file");
            assert!(read().is_err());
        }
    }
}
