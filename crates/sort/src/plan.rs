//! The plan of a sort from the size of its data: runs, passes, memory and scratch.
//!
//! A sort with a memory M sorts pieces of M/2, since one half is filled while the other is written. (With more disks
//! than inputs, pieces are smaller, so that each disk has one to write.) So D bytes make 2·D/M runs. A merge of all of
//! them at once holds a block of b bytes of each: if it has all of M, that is 2·D/M · b ≤ M, and so M ≥ √(2·b·D). With
//! b = 128 KiB that is the rule of IBM's best-practice paper on sorting in DataStage, √(MB) / 2. Ours has a quarter of
//! M for these blocks, as slices that are merged and their rows take the rest: M ≥ √(8·b·D). But b follows from D, down
//! to 16 KiB, so one input needs no more memory than the paper's. Since D is under a root, an estimate that is wrong by
//! a factor of two does no harm unless memory is very short.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use millstream_core::spec::Size;
use millstream_core::{Error, Result};

use crate::merge::{EXTENT, SHARE};

/// The most bytes of a piece, unless there would be too many runs to merge at once. Several pieces let all cores sort.
const PIECE: u64 = 64 << 20;

/// The assumed bytes of a row.
const ROW: u64 = 64;

/// The most bytes of a block in scratch.
const BLOCK: u64 = 64 << 10;

/// How a sort will go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Bytes to be sorted, if known.
    pub data: Option<u64>,
    /// The most bytes of memory that it holds.
    pub memory: u64,
    /// Bytes of a piece that is sorted at once.
    pub piece: u64,
    /// Bytes of a block of a run in scratch.
    pub block: u64,
    /// Runs that are written to scratch; none if all fits in memory.
    pub runs: Option<u64>,
    /// The most runs that are merged at once.
    pub fan_in: u64,
    /// How often the rows are merged: once, and once more each time that runs are first merged into longer ones.
    pub passes: u32,
}

impl Plan {
    /// The plan for `data` bytes in `rows` rows, as far as known, which arrive through `inputs` at once, with so many
    /// `disks`. `block` sets the bytes of blocks.
    pub fn new(
        data: Option<u64>,
        rows: Option<u64>,
        memory: u64,
        (inputs, disks): (u64, u64),
        block: Option<u64>,
    ) -> Self {
        // In memory each row has an entry beside its record.
        let entries = |data: u64| rows.unwrap_or(data / ROW).saturating_mul(size_of::<u128>() as u64);
        let held = data.map(|data| data.saturating_add(entries(data)));
        let largest = (memory / ((1 + jobs(inputs, disks)) * inputs.max(1))).max(1);
        // So small that about a thousand runs can be merged at once with 64 MiB of memory or more; and smaller if there
        // are more runs.
        let read = memory / SHARE as u64;
        let fitting = read / held.map_or(1024, |held| held.div_ceil(largest)).max(1024);
        let block = block.unwrap_or(fitting.clamp(EXTENT.0 as u64, BLOCK));
        let fan_in = fan_in(memory, block);
        let piece = held.map_or(0, |held| held.div_ceil(fan_in)).max(PIECE).min(largest);
        let runs = held.map(|held| if held <= memory { 0 } else { held.div_ceil(piece) });
        let mut passes = 1;
        let mut left = runs.unwrap_or(0);
        while left > fan_in {
            left = left.div_ceil(fan_in);
            passes += 1;
        }
        Plan { data, memory, piece, block, runs, fan_in, passes }
    }

    /// Bytes written to scratch, if known.
    pub fn scratch(&self) -> Option<u64> {
        let data = self.data?;
        Some(if self.runs == Some(0) { 0 } else { data.saturating_mul(u64::from(self.passes)) })
    }

    /// Fails if `folders` have no room for a `part` of the bytes to be written, before anything is read.
    pub fn check(&self, folders: &[PathBuf], part: f64) -> Result<()> {
        let Some(scratch) = self.scratch().filter(|scratch| *scratch > 0) else { return Ok(()) };
        // Folders on one file system share its room. If the room is unknown, writing will fail.
        let room = |folder: &PathBuf| {
            let (disk, file) = (rustix::fs::statvfs(folder).ok()?, rustix::fs::stat(folder).ok()?);
            Some((file.st_dev, disk.f_bavail * disk.f_frsize))
        };
        let Some(rooms) = folders.iter().map(room).collect::<Option<BTreeMap<_, u64>>>() else { return Ok(()) };
        let free: u64 = rooms.values().sum();
        if free as f64 >= scratch as f64 * part {
            return Ok(());
        }
        let data = self.data.unwrap_or_default();
        let (has, folders) = (if folders.len() == 1 { "has" } else { "have" }, folders.iter());
        let folders = folders.map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ");
        let (data, scratch, free) = (Size(data), Size(scratch), Size(free));
        Err(Error::refused(format!("sorting about {data} needs {scratch} of scratch, and {folders} {has} {free} left"))
            .hint("name a folder with more room with `--scratch`, or give more memory with `--memory`"))
    }
}

/// How many pieces of one input are sorted and written at once: all inputs together keep all disks busy.
pub(crate) fn jobs(inputs: u64, disks: u64) -> u64 {
    disks.div_ceil(inputs.max(1)).max(1)
}

/// The most runs that are merged at once with `memory` bytes, if `block` bytes of each are held.
pub(crate) fn fan_in(memory: u64, block: u64) -> u64 {
    (memory / SHARE as u64 / block.max(EXTENT.0 as u64)).max(2)
}

/// With `#` the size is the most that can come.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = if f.alternate() { "at most" } else { "about" };
        write!(f, "memory={}", Size(self.memory))?;
        match (self.data, self.runs, self.scratch()) {
            (Some(data), Some(0), _) => write!(f, ", {about} {} in memory", Size(data)),
            (Some(data), Some(runs), Some(scratch)) => {
                let passes = if self.passes == 1 { "pass" } else { "passes" };
                let (data, scratch) = (Size(data), Size(scratch));
                write!(f, ", {about} {data} in {runs} runs, {} merge {passes}, scratch={scratch}", self.passes)
            }
            _ => write!(f, ", runs of {}", Size(self.piece)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: [u64; 8] = [1, 4, 8, 16, 24, 32, 48, 64];

    /// The table in the paper: GB of data, and the least memory in MB for each number of nodes; 0 if the default of 20
    /// MB is enough.
    const PAPER: [(f64, [u64; 8]); 10] = [
        (1.0, [0, 0, 0, 0, 0, 0, 0, 0]),
        (1.5, [0, 0, 0, 0, 0, 0, 0, 0]),
        (3.0, [28, 0, 0, 0, 0, 0, 0, 0]),
        (10.0, [51, 25, 0, 0, 0, 0, 0, 0]),
        (30.0, [88, 44, 31, 22, 0, 0, 0, 0]),
        (100.0, [160, 80, 57, 40, 33, 28, 23, 20]),
        (300.0, [277, 139, 98, 69, 57, 49, 40, 35]),
        (1000.0, [506, 253, 179, 126, 103, 89, 73, 63]),
        (3000.0, [876, 438, 310, 219, 179, 155, 126, 110]),
        (10000.0, [1600, 800, 566, 400, 327, 283, 231, 200]),
    ];

    #[test]
    fn the_papers_table_follows_from_the_rule() {
        let mebibyte = f64::from(1 << 20);
        for (gigabytes, row) in PAPER {
            for (nodes, expected) in NODES.into_iter().zip(row) {
                let data = gigabytes * 1024.0 * mebibyte / nodes as f64;
                let memory = (2.0 * 128.0 * 1024.0 * data).sqrt() / mebibyte;
                let shown = if memory < 20.0 { 0 } else { memory.round() as u64 };
                assert_eq!(shown, expected, "{gigabytes} GB on {nodes} nodes");
                // Ours needs no more.
                let plan = Plan::new(Some(data as u64), Some(0), expected.max(20) << 20, (1, 1), None);
                assert_eq!(plan.passes, 1, "{gigabytes} GB on {nodes} nodes: {plan:?}");
            }
        }
    }

    #[test]
    fn plans_tell_runs_passes_and_scratch() {
        let fits = Plan::new(Some(50 << 20), None, 100 << 20, (2, 1), None);
        assert_eq!((fits.runs, fits.passes, fits.scratch()), (Some(0), 1, Some(0)));
        let once = Plan::new(Some(2 << 30), Some(0), 120 << 20, (2, 1), None);
        assert_eq!((once.piece, once.runs, once.passes, once.scratch()), (30 << 20, Some(69), 1, Some(2 << 30)));
        let twice = Plan::new(Some(8 << 30), Some(0), 8 << 20, (2, 1), None);
        assert_eq!((twice.runs, twice.fan_in, twice.passes), (Some(4096), 128, 2));
        assert_eq!(twice.scratch(), Some(16 << 30));
        let unknown = Plan::new(None, None, 120 << 20, (1, 1), None);
        assert_eq!((unknown.runs, unknown.passes, unknown.scratch()), (None, 1, None));
    }

    #[test]
    fn too_little_scratch_is_reported_before_anything_is_read() {
        let folders = [std::env::temp_dir()];
        assert!(Plan::new(Some(1 << 50), None, 100 << 20, (2, 1), None).check(&folders, 0.5).is_err_and(|error| {
            let hint = error.hint_text().unwrap_or_default().to_owned();
            error.what().starts_with("sorting about ") && error.what().ends_with(" left") && hint.contains("--scratch")
        }));
        for data in [None, Some(10 << 20), Some(101 << 20)] {
            Plan::new(data, None, 100 << 20, (2, 1), None).check(&folders, 0.5).expect("there is room");
        }
        Plan::new(Some(1 << 50), None, 100 << 20, (2, 1), None)
            .check(&["/no/such/folder".into()], 0.5)
            .expect("told when it is used");
    }

    #[test]
    fn plans_are_read_by_people() {
        let shown =
            |data: Option<u64>| Plan::new(data, data.map(|data| data / 100), 100_000_000, (2, 1), None).to_string();
        assert_eq!(
            shown(Some(2_000_000_000)),
            "memory=100 MB, about 2.00 GB in 93 runs, 1 merge pass, scratch=2.00 GB"
        );
        assert_eq!(shown(Some(50_000_000)), "memory=100 MB, about 50.0 MB in memory");
        let most = format!("{:#}", Plan::new(Some(50_000_000), None, 100_000_000, (2, 1), None));
        assert_eq!(most, "memory=100 MB, at most 50.0 MB in memory");
        assert_eq!(shown(None), "memory=100 MB, runs of 25.0 MB");
    }
}
