//! A sort from its first row to its last: several inputs fill pieces, which are sorted meanwhile, written if memory is
//! short, and merged at the end.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millstream_core::{Budget, Error, Result};
use tokio::task::JoinHandle;

use crate::memory::Memory;
use crate::merge::{Merge, Piece, SHARE, first_of};
use crate::pack::Compression;
use crate::piece::{Filling, GATHERED, Keep, Selection};
use crate::plan;
use crate::rows::{Layout, Prepared};
use crate::scratch::{Scratch, Writer};

/// The resources of a sort.
#[derive(Debug, Clone)]
pub struct Resources {
    /// The budget that memory is charged to.
    pub budget: Arc<Budget>,
    /// The most of it that this sort holds, in bytes.
    pub memory: usize,
    /// Folders for what does not fit, at best each on a disk of its own.
    pub scratch: Vec<PathBuf>,
    /// The compression of runs.
    pub compression: Compression,
    /// Bytes of a piece that is sorted at once, as [`crate::Plan`] has them.
    pub piece: usize,
    /// Bytes of a block in scratch, as [`crate::Plan`] has them.
    pub block: usize,
    /// Bytes that are read of a run at once while runs are merged; by default as many as there is memory for.
    pub extent: Option<usize>,
    /// How many slices are merged at once.
    pub workers: usize,
}

/// A sort. Rows come through its inputs.
#[derive(Debug)]
pub struct Sort {
    layout: Arc<Layout>,
    keep: Option<Keep>,
    /// How many of the first rows are needed.
    first: Option<usize>,
    memory: Arc<Memory>,
    scratch: Arc<Scratch>,
    inputs: usize,
    /// The pieces of all inputs, to notice if there are too many.
    pieces: AtomicUsize,
    workers: usize,
    /// Bytes of a piece, of a block in scratch, and of a run that are read at once.
    piece: usize,
    block: u64,
    extent: Option<usize>,
    /// Nanoseconds of work until the merge begins.
    busy: AtomicU64,
    merged_again: AtomicU64,
    /// An input was dropped before its end.
    stopped: AtomicBool,
}

/// What a sort has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The most bytes of memory that it held.
    pub memory: usize,
    /// Runs written to scratch.
    pub runs: u64,
    /// Bytes written to scratch.
    pub written: u64,
    /// Bytes of these that were written again, since there were too many runs to merge at once.
    pub merged_again: u64,
    /// The total time of all threads until the merge begins, including waiting for scratch.
    pub busy: Duration,
    /// The total time that threads waited for scratch so far.
    pub waited: Duration,
}

impl Sort {
    /// A sort of rows of `layout` from `inputs` at once. With `keep`, one of the same rows stays. If only the `first`
    /// rows are needed, others are dropped as early as possible.
    pub fn new(
        layout: Arc<Layout>,
        keep: Option<Keep>,
        first: Option<usize>,
        resources: &Resources,
        inputs: usize,
    ) -> Arc<Self> {
        Arc::new(Sort {
            memory: Memory::new(Arc::clone(&resources.budget), resources.memory),
            scratch: Scratch::new(&resources.scratch, resources.compression, resources.block),
            layout,
            keep,
            first,
            inputs: inputs.max(1),
            pieces: AtomicUsize::new(0),
            workers: resources.workers,
            piece: resources.piece,
            block: resources.block as u64,
            extent: resources.extent,
            busy: AtomicU64::new(0),
            merged_again: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        })
    }

    /// The layout of its rows.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Adds an input. The rows of earlier inputs count as earlier.
    pub fn input(self: &Arc<Self>) -> Input {
        Input {
            filling: Filling::new(Arc::clone(&self.layout), Arc::clone(&self.memory), self.piece),
            pieces: Vec::new(),
            rows: 0,
            sorted: 0,
            last: None,
            writes: false,
            writers: Vec::new(),
            jobs: VecDeque::new(),
            merging: None,
            ended: false,
            sort: Arc::clone(self),
        }
    }

    fn writer(&self) -> Writer {
        Writer::new(Arc::clone(&self.scratch), Arc::clone(&self.layout), Arc::clone(&self.memory))
    }

    /// The rows of all inputs, in order. If there are runs, most pieces in memory are written, to free memory for the
    /// merge and its output, so this may wait for the disk.
    pub fn merge(&self, mut inputs: Vec<Finished>) -> Result<Merge> {
        self.memory.keep_no_segments();
        let is_run = |piece: &Piece| matches!(piece, Piece::Scratch(_));
        if inputs.iter().any(|input| input.pieces.iter().any(is_run)) {
            for Finished { pieces, writer, .. } in &mut inputs {
                for piece in pieces {
                    if self.memory.left() < self.memory.limit() / 4 * 3
                        && let Piece::Memory(sorted) = piece
                    {
                        *piece = Piece::Scratch(Arc::new(writer.write(sorted)?));
                    }
                }
            }
        }
        let pieces = inputs.into_iter().flat_map(|input| input.pieces).collect();
        Ok(self.merge_of(pieces, self.memory.limit() / SHARE, self.workers))
    }

    fn merge_of(&self, pieces: Vec<Piece>, share: usize, workers: usize) -> Merge {
        Merge::new(Arc::clone(&self.layout), Arc::clone(&self.memory), self.keep, pieces, share, self.extent, workers)
    }

    /// The figures of the sort so far.
    pub fn usage(&self) -> Usage {
        Usage {
            memory: self.memory.peak(),
            runs: self.scratch.runs(),
            written: self.scratch.written(),
            merged_again: self.merged_again.load(Ordering::Relaxed),
            busy: Duration::from_nanos(self.busy.load(Ordering::Relaxed)),
            waited: self.scratch.waited(),
        }
    }

    /// Counts the time that `work` takes.
    fn timed<T>(&self, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let done = work();
        self.busy.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        done
    }
}

/// The sorted pieces of an input.
#[derive(Debug)]
pub struct Finished {
    pieces: Vec<Piece>,
    writer: Writer,
    /// The number of rows.
    rows: u64,
}

impl Finished {
    /// The number of rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }
}

/// One input of a sort.
#[derive(Debug)]
pub struct Input {
    sort: Arc<Sort>,
    filling: Filling,
    pieces: Vec<Piece>,
    rows: u64,
    /// Bytes of the records that have been passed on for sorting.
    sorted: usize,
    /// The entry of a row after which none is needed.
    last: Option<u128>,
    /// Whether it is known that not all fits in memory.
    writes: bool,
    /// Idle writers.
    writers: Vec<Writer>,
    /// Pieces that are being sorted and written, in the order of arrival: one per disk.
    jobs: VecDeque<Job>,
    /// Runs that are being merged into one.
    merging: Option<Merging>,
    ended: bool,
}

type Job = JoinHandle<(Writer, Result<Piece>)>;

/// Runs that are being merged into one, since there are too many: the pieces from `first` on, none of which is in
/// memory. Pieces are combined and added only after them.
#[derive(Debug)]
struct Merging {
    first: usize,
    count: usize,
    job: Job,
}

impl Input {
    /// Adds the rows of `prepared`. Waits if memory has to be freed for them.
    pub async fn push(&mut self, prepared: &Prepared) -> Result<()> {
        let mut next = 0;
        loop {
            next = self.sort.timed(|| self.filling.add(prepared, next, false))?;
            if next == prepared.rows() {
                self.rows += next as u64;
                return Ok(());
            }
            if self.filling.is_full() {
                let at_once = plan::jobs(self.sort.inputs as u64, self.sort.scratch.disks() as u64) as usize;
                // If only the first rows are needed, which rows of a piece to keep depends on the pieces before it.
                let left = if self.sort.first.is_some() { 0 } else { at_once - 1 };
                self.settle(left).await?;
                let spill = self.has_to_spill().await?;
                self.hand_over(spill);
            } else if !self.make_room().await? {
                next = self.filling.add(prepared, next, true)?;
            }
        }
    }

    /// The bytes of all rows so far.
    pub fn bytes(&self) -> usize {
        self.sorted + self.filling.bytes()
    }

    /// Whether a full piece is written while the next is filled. The first pieces are not, until it is known that not
    /// all fits in memory.
    async fn has_to_spill(&mut self) -> Result<bool> {
        if self.writes || self.sort.first.is_some() || self.sort.memory.left() >= self.sort.piece {
            return Ok(self.writes);
        }
        if !self.pieces.is_empty() || !self.jobs.is_empty() {
            // The next piece is filled in its memory.
            self.spill_oldest().await?;
            self.writes = true;
        }
        Ok(self.writes)
    }

    /// Frees memory of this input. `false` if there is none to free.
    async fn make_room(&mut self) -> Result<bool> {
        if let Some(left) = self.jobs.len().checked_sub(1) {
            return self.settle(left).await.map(|()| true);
        }
        if self.merging.is_some() {
            return self.end_merging().await.map(|()| true);
        }
        if self.spill_oldest().await? {
            self.writes = self.sort.first.is_none();
            return Ok(true);
        }
        if self.filling.rows() == 0 {
            return Ok(false);
        }
        // If only the first rows are needed, hardly any may be left.
        self.hand_over(self.sort.first.is_none());
        self.settle(0).await?;
        Ok(true)
    }

    /// Ends the input.
    pub async fn finish(mut self) -> Result<Finished> {
        self.settle(0).await?;
        if self.filling.rows() > 0 {
            self.hand_over(false);
            self.settle(0).await?;
        }
        self.end_merging().await?;
        self.ended = true;
        let writer = self.writers.pop().unwrap_or_else(|| self.sort.writer());
        Ok(Finished { pieces: std::mem::take(&mut self.pieces), writer, rows: self.rows })
    }

    /// Starts sorting the filled piece, and writing it if `spill`. The next piece is filled meanwhile.
    fn hand_over(&mut self, spill: bool) {
        let empty = Filling::new(Arc::clone(&self.sort.layout), Arc::clone(&self.sort.memory), self.sort.piece);
        let filled = std::mem::replace(&mut self.filling, empty);
        self.sorted += filled.bytes();
        let wanted = self.wanted();
        let job = self.start(move |writer| {
            let sorted = filled.sort(&wanted)?;
            match spill {
                true => Ok(Piece::Scratch(Arc::new(writer.write(&sorted)?))),
                false => Ok(Piece::Memory(Arc::new(sorted))),
            }
        });
        self.jobs.push_back(job);
    }

    /// Which rows of the next piece to keep.
    fn wanted(&self) -> Selection {
        Selection { keep: self.sort.keep, first: self.sort.first.unwrap_or(usize::MAX), last: self.last }
    }

    /// Adds a sorted piece.
    async fn take_in(&mut self, piece: Piece) -> Result<()> {
        let Some(first) = self.sort.first else {
            self.add(piece);
            return Ok(());
        };
        if matches!(&piece, Piece::Memory(sorted) if sorted.rows() == 0) {
            return Ok(());
        }
        self.add(piece);
        loop {
            if let (Some(Piece::Memory(sorted)), Some(last)) = (self.pieces.last(), first.checked_sub(1))
                && sorted.rows() >= first
            {
                let last = sorted.entry(last);
                self.last = Some(self.last.map_or(last, |before| before.min(last)));
            }
            // A piece is combined with the one before it if it has at least half as many rows: so there are few pieces,
            // and no row is copied often.
            let [.., Piece::Memory(earlier), Piece::Memory(later)] = self.pieces.as_slice() else { return Ok(()) };
            let bytes = earlier.bytes() + later.bytes();
            if later.rows() < earlier.rows() / 2 || bytes > GATHERED.min(self.sort.memory.left()) {
                return Ok(());
            }
            let (earlier, later, wanted) = (Arc::clone(earlier), Arc::clone(later), self.wanted());
            let sort = Arc::clone(&self.sort);
            let job = self.start(move |_| {
                let both = first_of(&sort.layout, &sort.memory, &wanted, earlier, later)?;
                Ok(Piece::Memory(Arc::new(both)))
            });
            let both = self.end_of(job).await?;
            self.pieces.truncate(self.pieces.len() - 2);
            self.sort.pieces.fetch_sub(2, Ordering::Relaxed);
            self.add(both);
        }
    }

    fn add(&mut self, piece: Piece) {
        self.pieces.push(piece);
        self.sort.pieces.fetch_add(1, Ordering::Relaxed);
    }

    /// If there are too many runs to merge at once, starts merging several neighbouring ones into one: the smallest, so
    /// that no row is written much more often than necessary. More rows arrive meanwhile.
    async fn merge_early(&mut self) -> Result<()> {
        let (limit, inputs) = (self.sort.memory.limit(), self.sort.inputs);
        let fan_in = plan::fan_in(limit as u64, self.sort.block) as usize;
        let most = (fan_in / inputs).max(2);
        if self.merging.as_ref().is_some_and(|merging| merging.job.is_finished() || self.pieces.len() > most + most / 2)
        {
            self.end_merging().await?;
        }
        // An input with fewer than its share leaves this to the others.
        let are_few = self.sort.pieces.load(Ordering::Relaxed) < fan_in || self.pieces.len() < most;
        if self.merging.is_some() || are_few {
            return Ok(());
        }
        // The merge takes the memory of the free segments.
        self.sort.memory.trim();
        let count = (most / 2).max(2);
        let are_runs = |pieces: &[Piece]| pieces.iter().all(|piece| matches!(piece, Piece::Scratch(_)));
        let windows = self.pieces.windows(count).enumerate().filter(|(_, window)| are_runs(window));
        let sizes = windows.map(|(first, window)| (first, window.iter().map(Piece::stored).sum::<u64>()));
        let Some((first, bytes)) = sizes.min_by_key(|(_, bytes)| *bytes) else { return Ok(()) };
        let pieces: Vec<Piece> = self.pieces[first..first + count].to_vec();
        let sort = Arc::clone(&self.sort);
        let job = self.start(move |writer| {
            let merge = || sort.merge_of(pieces.clone(), limit / SHARE / inputs, 1);
            let run = writer.merge(bytes, merge, &sort.stopped)?;
            sort.merged_again.fetch_add(run.stored(), Ordering::Relaxed);
            Ok(Piece::Scratch(Arc::new(run)))
        });
        self.merging = Some(Merging { first, count, job });
        Ok(())
    }

    /// Waits until no runs are being merged.
    async fn end_merging(&mut self) -> Result<()> {
        let Some(Merging { first, count, job }) = self.merging.take() else { return Ok(()) };
        let piece = self.end_of(job).await?;
        self.sort.pieces.fetch_sub(count - 1, Ordering::Relaxed);
        for merged in self.pieces.splice(first..first + count, [piece]) {
            if let Piece::Scratch(run) = merged {
                run.release();
            }
        }
        Ok(())
    }

    fn start(&mut self, work: impl FnOnce(&mut Writer) -> Result<Piece> + Send + 'static) -> Job {
        let mut writer = self.writers.pop().unwrap_or_else(|| self.sort.writer());
        let sort = Arc::clone(&self.sort);
        tokio::task::spawn_blocking(move || {
            let piece = sort.timed(|| work(&mut writer));
            (writer, piece)
        })
    }

    /// Waits until no more than `left` pieces are being sorted.
    async fn settle(&mut self, left: usize) -> Result<()> {
        while self.jobs.len() > left {
            let Some(oldest) = self.jobs.pop_front() else { break };
            let piece = self.end_of(oldest).await?;
            self.take_in(piece).await?;
            self.merge_early().await?;
        }
        Ok(())
    }

    async fn end_of(&mut self, job: Job) -> Result<Piece> {
        let (writer, piece) = job.await.map_err(|cause| Error::internal("sorting failed").cause(cause))?;
        self.writers.push(writer);
        piece
    }

    /// Writes the first piece that is in memory. `false` if there is none.
    async fn spill_oldest(&mut self) -> Result<bool> {
        self.settle(0).await?;
        let oldest = self.pieces.iter().position(|piece| matches!(piece, Piece::Memory(_)));
        let Some(index) = oldest else { return Ok(false) };
        let Piece::Memory(sorted) = self.pieces[index].clone() else { return Ok(false) };
        let job = self.start(move |writer| Ok(Piece::Scratch(Arc::new(writer.write(&sorted)?))));
        self.pieces[index] = self.end_of(job).await?;
        Ok(true)
    }
}

impl Drop for Input {
    /// An input that is dropped before its end cancels its jobs.
    fn drop(&mut self) {
        if !self.ended {
            self.sort.stopped.store(true, Ordering::Relaxed);
        }
    }
}
