//! What earlier runs have left in the reject log, and which of their rejects count.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use millstream_core::Result;
use millstream_core::reject::Rejected;
use millstream_core::sink::{Chunk, WrittenChunks};

use super::files::{PieceLines, read_all};
use super::folder;
use super::line::{Again, CheckedLine, CheckedRows, ChunkId, DeliveryNumber, Earlier, Kept, Line, RejectLine};
use super::replayed::ReplayedRejects;

/// The rejects of `first` and the runs that resume it, in the state folder.
pub fn of_run(state: &Path, first: &str) -> Result<Vec<Kept>> {
    let folder = folder(state, first);
    match folder.is_dir() {
        true => Ok(read(&folder)?.kept),
        false => Ok(Vec::new()),
    }
}

/// The rejects in `folder` that count.
pub fn read(folder: &Path) -> Result<Earlier> {
    let mut earlier = what_counts(read_all(folder)?);
    let replayed = ReplayedRejects::read(folder)?;
    earlier.kept.iter_mut().for_each(|kept| kept.replayed = replayed.is_finished(&kept.id));
    Ok(earlier)
}

/// All rejects in `folder` that have failed again, and the run in which they did.
pub fn failed_again(folder: &Path) -> Result<Vec<(String, Again)>> {
    let again = |piece: PieceLines| {
        let run = piece.name.run.clone();
        piece.into_rejects().filter_map(|line| line.again).map(move |again| (run.clone(), again))
    };
    Ok(read_all(folder)?.into_iter().flat_map(again).collect())
}

/// Of the rejects of `sink`, those whose chunks are written, and the chunks of the others.
pub fn committed<'a>(kept: &'a [Kept], sink: &str, written: &WrittenChunks) -> (Vec<&'a RejectLine>, HashSet<ChunkId>) {
    let of_sink = kept.iter().filter_map(|kept| {
        let chunk = kept.line.chunk.as_ref().filter(|chunk| chunk.sink == sink)?;
        Some((&kept.line, chunk))
    });
    let (mut there, mut missing) = (Vec::new(), HashSet::new());
    for (line, chunk) in of_sink {
        match written.contains(&Chunk { unit: chunk.unit.clone(), number: chunk.number }) {
            true => there.push(line),
            false => drop(missing.insert(chunk.clone())),
        }
    }
    (there, missing)
}

/// What checks have counted of deliveries into `sink` whose chunks are written.
pub fn committed_checks<'a>(
    checked: &'a [CheckedLine],
    sink: &'a str,
    written: &'a WrittenChunks,
) -> impl Iterator<Item = &'a CheckedRows> {
    let is_written = move |chunk: &ChunkId| {
        chunk.sink == sink && written.contains(&Chunk { unit: chunk.unit.clone(), number: chunk.number })
    };
    checked.iter().filter(move |line| line.chunks.iter().all(is_written)).flat_map(|line| &line.checked)
}

/// How a delivery of a chunk compares with others of it: one that was delivered outranks one that was only read, then
/// the later file counts, then the later delivery.
type Rank = (bool, usize, DeliveryNumber);

/// What all lines say of rejects in other lines. Files have numbers, in the order in which they were written.
#[derive(Default)]
struct Standing {
    /// The last delivery of each chunk.
    last: HashMap<ChunkId, Rank>,
    /// The last file in which the loads of a source or sink started again.
    anew: HashMap<String, usize>,
    /// How many records had come to entries of the job.
    came: HashMap<String, u64>,
}

impl Standing {
    fn of(pieces: &[PieceLines]) -> Self {
        let mut standing = Standing::default();
        for (file, piece) in pieces.iter().enumerate() {
            piece.lines.iter().for_each(|line| standing.add(file, line));
        }
        standing
    }

    fn add(&mut self, file: usize, line: &Line) {
        match line {
            Line::Version { .. } => {}
            Line::Without { without, delivery } => self.add_delivery(file, without, *delivery),
            Line::Checked(line) => line.chunks.iter().for_each(|chunk| self.add_delivery(file, chunk, line.delivery)),
            Line::Reject(line) => line.chunk.iter().for_each(|chunk| self.add_delivery(file, chunk, line.delivery)),
            Line::Anew { anew } => self.anew.extend(anew.iter().map(|name| (name.clone(), file))),
            Line::Came { came } => {
                for (entry, records) in came {
                    let known = self.came.entry(entry.clone()).or_default();
                    *known = (*known).max(*records);
                }
            }
        }
    }

    fn add_delivery(&mut self, file: usize, chunk: &ChunkId, delivery: DeliveryNumber) {
        let known = self.last.entry(chunk.clone()).or_default();
        *known = (*known).max(rank(file, delivery));
    }

    /// Whether a reject in the file number `file` counts.
    fn counts(&self, file: usize, line: &RejectLine) -> bool {
        match &line.chunk {
            Some(chunk) => self.last.get(chunk) == Some(&rank(file, line.delivery)),
            None => {
                let mut entries = line.rejected.sink.iter().chain(&line.rejected.source);
                !entries.any(|entry| self.anew.get(entry).is_some_and(|anew| *anew > file))
            }
        }
    }

    /// Whether no chunk of `line`, in the file number `file`, was delivered again.
    fn counts_checked(&self, file: usize, line: &CheckedLine) -> bool {
        line.chunks.iter().all(|chunk| self.last.get(chunk) == Some(&rank(file, line.delivery)))
    }
}

fn rank(file: usize, delivery: DeliveryNumber) -> Rank {
    (delivery > 0, file, delivery)
}

/// The chunk of the first reject that the delivery of `line` has of the same unit; `known` has those of the lines
/// before it.
fn first_chunk(known: &mut HashMap<(String, DeliveryNumber, String), ChunkId>, line: &RejectLine) -> Option<ChunkId> {
    let (chunk, uri) = (line.chunk.as_ref()?, line.rejected.uri.as_ref()?);
    let delivery = (chunk.sink.clone(), line.delivery, uri.clone());
    Some(known.entry(delivery).or_insert_with(|| chunk.clone()).clone())
}

fn what_counts(pieces: Vec<PieceLines>) -> Earlier {
    let standing = Standing::of(&pieces);
    let (mut kept, mut again, mut checked) = (Vec::new(), HashMap::new(), Vec::new());
    for (number, piece) in pieces.into_iter().enumerate() {
        let of_checks = piece.lines.iter().filter_map(Line::checked);
        checked.extend(of_checks.filter(|line| standing.counts_checked(number, line)).cloned());
        let file = piece.name.stem();
        let mut first_chunks = HashMap::new();
        for (index, line) in (1..).zip(piece.into_rejects()) {
            let noted_by = first_chunk(&mut first_chunks, &line);
            if !standing.counts(number, &line) {
                continue;
            }
            match &line.again {
                Some(known) => drop(again.insert(known.id.clone(), line.rejected)),
                None => kept.push(Kept { id: format!("{file}/{index}"), line, replayed: false, noted_by }),
            }
        }
    }
    // What failed again has the last reason.
    for kept in &mut kept {
        if let Some(Rejected { step, kind, message, column, .. }) = again.remove(&kept.id) {
            kept.line.rejected = Rejected { step, kind, message, column, ..kept.line.rejected.clone() };
        }
    }
    Earlier { kept, came: standing.came, checked }
}
