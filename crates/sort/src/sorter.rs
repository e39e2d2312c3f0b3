//! A sort from its first row to its last: several inputs fill pieces, which are sorted beside them, written where memory
//! is short, and merged at the end.

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
use crate::piece::{Filling, Keep, Wanted};
use crate::plan;
use crate::rows::{Layout, Prepared};
use crate::scratch::{Scratch, Writer};

/// What a sort may use.
#[derive(Debug, Clone)]
pub struct Resources {
    /// What is held is charged here.
    pub budget: Arc<Budget>,
    /// The most of it that this sort holds, in bytes.
    pub memory: usize,
    /// Folders for what does not fit, at best each on a disk of its own.
    pub scratch: Vec<PathBuf>,
    /// How it is written there.
    pub compression: Compression,
    /// Bytes of a block there.
    pub block: usize,
    /// Bytes that are read of a run at once while runs are merged; if left out, as many as there is memory for.
    pub extent: Option<usize>,
    /// How many slices are merged at once.
    pub workers: usize,
}

/// A sort. Rows come through its inputs.
#[derive(Debug)]
pub struct Sort {
    layout: Arc<Layout>,
    keep: Option<Keep>,
    /// How many rows are wanted.
    first: Option<usize>,
    memory: Arc<Memory>,
    scratch: Arc<Scratch>,
    inputs: usize,
    /// Of all inputs together, where there may be too many.
    pieces: AtomicUsize,
    workers: usize,
    /// Bytes of a block in scratch, and of a run that are read at once.
    block: u64,
    extent: Option<usize>,
    /// Nanoseconds of work until the merge begins.
    busy: AtomicU64,
    merged_again: AtomicU64,
    /// Someone has given up.
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
    /// Of these, bytes that were written again, since there were too many runs to merge at once.
    pub merged_again: u64,
    /// Time at work until the merge begins, of all threads together, with what they waited for scratch.
    pub busy: Duration,
    /// Time that threads waited for scratch so far, all together.
    pub waited: Duration,
}

impl Sort {
    /// A sort of rows of `layout` from `inputs` at once. With `keep`, of the same rows one stays.
    pub fn new(layout: Arc<Layout>, keep: Option<Keep>, resources: &Resources, inputs: usize) -> Arc<Self> {
        Sort::first_rows(layout, keep, None, resources, inputs)
    }

    /// The same, of which only the `first` rows are wanted, if that is given: more may come, but all others are dropped as
    /// soon as that is known of them.
    pub fn first_rows(
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

    /// A way in. The rows of an earlier one count as earlier.
    pub fn input(self: &Arc<Self>) -> Input {
        let most = plan::piece(self.memory.limit() as u64, self.inputs as u64, self.scratch.disks() as u64) as usize;
        Input {
            filling: Filling::new(Arc::clone(&self.layout), Arc::clone(&self.memory), most),
            most,
            pieces: Vec::new(),
            rows: 0,
            sorted: 0,
            writers: Vec::new(),
            jobs: VecDeque::new(),
            ended: false,
            sort: Arc::clone(self),
        }
    }

    fn writer(&self) -> Writer {
        Writer::new(Arc::clone(&self.scratch), Arc::clone(&self.layout), Arc::clone(&self.memory))
    }

    /// The rows of all inputs, in order. Where there are runs, what is in memory leaves most of it to the merge and to what
    /// comes out of it: the rest is written, so this may wait for the disk.
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

    /// What it has used so far.
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

/// What has come through an input, sorted piece by piece.
#[derive(Debug)]
pub struct Finished {
    pieces: Vec<Piece>,
    writer: Writer,
    /// How many rows came.
    rows: u64,
}

impl Finished {
    /// How many rows came.
    pub fn rows(&self) -> u64 {
        self.rows
    }
}

/// One way into a sort.
#[derive(Debug)]
pub struct Input {
    sort: Arc<Sort>,
    filling: Filling,
    most: usize,
    pieces: Vec<Piece>,
    rows: u64,
    /// Bytes of the records in what has been handed over to be sorted.
    sorted: usize,
    /// Those that write nothing now.
    writers: Vec<Writer>,
    /// Pieces that are being sorted and written, in the order in which they came: one for each disk.
    jobs: VecDeque<Job>,
    ended: bool,
}

type Job = JoinHandle<(Writer, Result<Piece>)>;

impl Input {
    /// Takes in the rows of `prepared`; waits where memory has to be made free for them.
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
                // What is wanted of a piece depends on those before it where only the first rows are.
                let left = if self.sort.first.is_some() { 0 } else { at_once - 1 };
                self.settle(left).await?;
                let spill = self.sort.memory.left() < self.most && self.sort.first.is_none();
                self.hand_over(spill);
            } else if !self.make_room().await? {
                next = self.filling.add(prepared, next, true)?;
            }
        }
    }

    /// Bytes of all rows that have come.
    pub fn bytes(&self) -> usize {
        self.sorted + self.filling.bytes()
    }

    /// Makes memory free, if this input holds any that can be. `false` if not.
    async fn make_room(&mut self) -> Result<bool> {
        if let Some(left) = self.jobs.len().checked_sub(1) {
            return self.settle(left).await.map(|()| true);
        }
        if self.spill_oldest().await? {
            return Ok(true);
        }
        if self.filling.rows() == 0 {
            return Ok(false);
        }
        // Where only the first rows are wanted, hardly any may be left.
        self.hand_over(self.sort.first.is_none());
        self.settle(0).await?;
        Ok(true)
    }

    /// No more rows come.
    pub async fn finish(mut self) -> Result<Finished> {
        self.settle(0).await?;
        if self.filling.rows() > 0 {
            self.hand_over(false);
            self.settle(0).await?;
        }
        self.ended = true;
        let writer = self.writers.pop().unwrap_or_else(|| self.sort.writer());
        Ok(Finished { pieces: std::mem::take(&mut self.pieces), writer, rows: self.rows })
    }

    /// Sorts what has been filled beside what is filled next, and writes it where `spill` says so.
    fn hand_over(&mut self, spill: bool) {
        let empty = Filling::new(Arc::clone(&self.sort.layout), Arc::clone(&self.sort.memory), self.most);
        let filled = std::mem::replace(&mut self.filling, empty);
        self.sorted += filled.bytes();
        let wanted = self.wanted();
        let sort = Arc::clone(&self.sort);
        let job = self.start(move |writer| {
            let mut sorted = filled.sort(&wanted)?;
            if let Some(before) = &wanted.before {
                sorted = first_of(&sort.layout, &sort.memory, &wanted, Arc::clone(before), Arc::new(sorted))?;
            }
            match spill {
                true => Ok(Piece::Scratch(Arc::new(writer.write(&sorted)?))),
                false => Ok(Piece::Memory(Arc::new(sorted))),
            }
        });
        self.jobs.push_back(job);
    }

    /// Which of the rows that came last are wanted. Where it is only the first of all, they are put together with those that
    /// are in memory.
    fn wanted(&mut self) -> Wanted {
        let is_before = |piece: &mut Piece| matches!(piece, Piece::Memory(_)) && self.sort.first.is_some();
        let before = match self.pieces.pop_if(is_before) {
            Some(Piece::Memory(before)) => {
                self.sort.pieces.fetch_sub(1, Ordering::Relaxed);
                Some(before)
            }
            _ => None,
        };
        Wanted { keep: self.sort.keep, first: self.sort.first.unwrap_or(usize::MAX), before }
    }

    /// Where there are too many runs to merge all at once, makes one of several that follow each other: the smallest that
    /// do, so that no row is written much more often than it has to be.
    async fn merge_early(&mut self) -> Result<()> {
        let (limit, inputs) = (self.sort.memory.limit(), self.sort.inputs);
        let fan_in = plan::fan_in(limit as u64, self.sort.block) as usize;
        let most = (fan_in / inputs).max(2);
        // One that has fewer than its share leaves it to the others.
        if self.sort.pieces.load(Ordering::Relaxed) < fan_in || self.pieces.len() < most {
            return Ok(());
        }
        // It takes what the free segments had.
        self.sort.memory.trim();
        let sizes: Vec<u64> = self.pieces.iter().map(Piece::stored).collect();
        let count = (most / 2).max(2);
        let windows = sizes.windows(count).map(|window| window.iter().sum::<u64>());
        let Some((first, bytes)) = windows.enumerate().min_by_key(|(_, bytes)| *bytes) else { return Ok(()) };
        let pieces: Vec<Piece> = self.pieces[first..first + count].to_vec();
        let sort = Arc::clone(&self.sort);
        let job = self.start(move |writer| {
            let merge = || sort.merge_of(pieces.clone(), limit / SHARE / inputs, 1);
            let run = writer.merge(bytes, merge, &sort.stopped)?;
            sort.merged_again.fetch_add(run.stored(), Ordering::Relaxed);
            Ok(Piece::Scratch(Arc::new(run)))
        });
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
            self.pieces.push(piece);
            self.sort.pieces.fetch_add(1, Ordering::Relaxed);
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
    /// Whoever drops it before its end wants none of the rows.
    fn drop(&mut self) {
        if !self.ended {
            self.sort.stopped.store(true, Ordering::Relaxed);
        }
    }
}
