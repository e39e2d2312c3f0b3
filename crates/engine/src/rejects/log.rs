//! The files in which rejects are kept: JSON lines in frames of zstd, one file for each run.
//!
//! ```text
//!  STATE/rejects/FIRST/RUN.jsonl.zst    FIRST: the first run of its resume chain
//!  STATE/rejects/FIRST/replayed         what was loaded later: see [`Marks`]
//! ```
//! A line is a reject, or says something of others. Rejects of a chunk stand in the file before the chunk's notes are
//! committed, so a run that is killed between the two leaves rejects of rows that are loaded by the next run, and
//! rejected again. So of the rejects of a chunk only those of its last delivery count.
//!
//! A frame is written as a whole. The one that a killed run has left half written is passed over: what it told of was
//! not committed.
//!
//! The first line of a file holds its version ([`VERSION`]). A file without it has version 1, too.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fs_err::File;
use millstream_core::reject::{RawText, Rejected};
use millstream_core::sink::{Chunk, WrittenChunks};
use millstream_core::{Error, Result};
use serde::{Deserialize, Serialize};

/// Rejects that are not tied to a chunk are written when they take so much memory.
const BUFFER_BYTES: usize = 1 << 20;

/// The version of the files. Increase it when older programs would misread them.
const VERSION: u64 = 1;

/// The end of the names of the files.
const ENDING: &str = ".jsonl.zst";

/// A chunk on its way into a sink.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChunkId {
    /// The sink.
    pub sink: String,
    /// What the unit is called in the ledger.
    pub unit: String,
    /// The number of the chunk.
    pub number: u64,
}

impl ChunkId {
    /// That of `chunk` on its way into `sink`.
    pub fn new(sink: &str, chunk: &Chunk) -> Self {
        ChunkId { sink: sink.to_owned(), unit: chunk.unit.clone(), number: chunk.number }
    }
}

/// The delivery of chunks to which rejects belong; 0 if they are not delivered yet.
pub type DeliveryNumber = u64;

/// A reject in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RejectLine {
    /// What is told of it.
    #[serde(flatten)]
    pub rejected: Rejected,
    /// The text of its file before the first record, where that says how the records are to be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<RawText>,
    /// The chunk that it belongs to, if its load goes chunk by chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<ChunkId>,
    /// The delivery of that chunk.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub delivery: DeliveryNumber,
    /// Of a reject that was loaded again, and failed again: which one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again: Option<Again>,
}

/// A reject that was loaded again, and failed again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Again {
    /// Its id.
    pub id: String,
    /// The sink that it was loaded into.
    pub sink: String,
    /// How many times rejects had been loaded into the sink before.
    pub round: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// A delivery of this chunk has none.
    Without {
        /// The chunk.
        without: ChunkId,
        /// The delivery.
        delivery: DeliveryNumber,
    },
    /// Loads start again in this run: what earlier ones have rejected on the way, and is not tied to a chunk, does not
    /// count.
    Anew {
        /// The sources that they read, and their sinks.
        anew: Vec<String>,
    },
    /// The first line of a file.
    Version {
        /// Its version.
        version: u64,
        /// Empty: programs that do not know this line read it as an empty [`Line::Came`].
        came: HashMap<String, u64>,
    },
    /// How many records have come to entries of the job so far.
    Came {
        /// By the names of the entries.
        came: HashMap<String, u64>,
    },
    /// A reject.
    Reject(Box<RejectLine>),
}

/// A reject that counts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Kept {
    /// What tells it from all others: `RUN/NUMBER`.
    pub id: String,
    /// What is told of it.
    #[serde(flatten)]
    pub line: RejectLine,
    /// Whether it was loaded later.
    pub replayed: bool,
}

/// What earlier runs have left.
#[derive(Debug, Default)]
pub struct Earlier {
    /// Rejects that count.
    pub kept: Vec<Kept>,
    /// How many records had come to entries of the job.
    pub came: HashMap<String, u64>,
}

/// The file of a run that lives.
#[derive(Debug)]
pub struct RejectLog {
    folder: PathBuf,
    path: PathBuf,
    state: Mutex<State>,
    /// Chunks of which a delivery has rejects in a file, and is not committed.
    pending: Mutex<HashSet<ChunkId>>,
}

#[derive(Debug, Default)]
struct State {
    file: Option<File>,
    waiting: Vec<u8>,
    deliveries: DeliveryNumber,
}

/// The folder for the rejects of `first` and the runs that resume it.
pub fn folder(state: &Path, first: &str) -> PathBuf {
    state.join("rejects").join(first)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RejectLog {
    /// That of `run`, which resumes `first` or is it, in the state folder. Nothing is made until there is a reject.
    pub fn new(state: &Path, first: &str, run: &str) -> Self {
        let folder = folder(state, first);
        let path = folder.join(format!("{run}{ENDING}"));
        RejectLog { folder, path, state: Mutex::default(), pending: Mutex::default() }
    }

    /// What earlier runs have left.
    pub fn earlier(&self) -> Result<Earlier> {
        match self.folder.is_dir() {
            true => read(&self.folder),
            false => Ok(Earlier::default()),
        }
    }

    /// Notes that these chunks have rejects of a delivery that was not committed.
    pub fn remember(&self, chunks: impl IntoIterator<Item = ChunkId>) {
        lock(&self.pending).extend(chunks);
    }

    /// Adds lines, and returns when they are durable if `now`, or when they take much memory.
    pub fn add(&self, lines: impl IntoIterator<Item = Line>, now: bool) -> Result<()> {
        let mut state = lock(&self.state);
        for line in lines {
            serde_json::to_writer(&mut state.waiting, &line)
                .map_err(|cause| Error::internal("a reject cannot be written as JSON").cause(cause))?;
            state.waiting.push(b'\n');
        }
        if now || state.waiting.len() >= BUFFER_BYTES {
            self.write(&mut state).map_err(|cause| cannot_keep(&self.path, &cause))?;
        }
        Ok(())
    }

    /// Adds the rejects of one delivery of `chunks`, and returns when they are durable. What an earlier delivery of
    /// these chunks has rejected counts no more. `came` is how many records have come so far to those whose share
    /// counts.
    pub fn add_delivery(&self, chunks: &[ChunkId], rejects: Vec<RejectLine>, came: HashMap<String, u64>) -> Result<()> {
        let delivery = {
            let mut state = lock(&self.state);
            state.deliveries += 1;
            state.deliveries
        };
        let with: HashSet<ChunkId> = rejects.iter().filter_map(|line| line.chunk.clone()).collect();
        let without: Vec<ChunkId> = {
            let pending = lock(&self.pending);
            chunks.iter().filter(|chunk| pending.contains(chunk) && !with.contains(chunk)).cloned().collect()
        };
        if rejects.is_empty() && without.is_empty() {
            return Ok(());
        }
        self.remember(with);
        let rejects = rejects.into_iter().map(|line| Line::Reject(Box::new(RejectLine { delivery, ..line })));
        let without = without.into_iter().map(|without| Line::Without { without, delivery });
        let came = (!came.is_empty()).then_some(Line::Came { came });
        self.add(rejects.chain(without).chain(came), true)
    }

    /// Whether any chunk has rejects of a delivery that was not committed, as far as is known.
    pub fn is_pending(&self) -> bool {
        !lock(&self.pending).is_empty()
    }

    /// Whether there is anything in it.
    pub fn has_some(&self) -> bool {
        let state = lock(&self.state);
        state.file.is_some() || !state.waiting.is_empty()
    }

    /// Whether earlier runs have left something.
    pub fn has_earlier(&self) -> bool {
        self.folder.is_dir()
    }

    /// Writes what waits, and returns when it is durable.
    pub fn flush(&self) -> Result<()> {
        self.add([], true)
    }

    fn write(&self, state: &mut State) -> std::io::Result<()> {
        if state.waiting.is_empty() {
            return Ok(());
        }
        let is_new = state.file.is_none();
        let file = match &mut state.file {
            Some(file) => file,
            None => {
                fs_err::create_dir_all(&self.folder)?;
                let file = state.file.insert(File::create_new(&self.path)?);
                for folder in self.folder.ancestors().take(3) {
                    File::open(folder)?.sync_all()?;
                }
                file
            }
        };
        let mut encoder = zstd::Encoder::new(Vec::new(), zstd::DEFAULT_COMPRESSION_LEVEL)?;
        encoder.include_checksum(true)?;
        if is_new {
            serde_json::to_writer(&mut encoder, &Line::Version { version: VERSION, came: HashMap::new() })?;
            encoder.write_all(b"\n")?;
        }
        encoder.write_all(&state.waiting)?;
        file.write_all(&encoder.finish()?)?;
        state.waiting.clear();
        file.sync_data()
    }
}

fn cannot_keep(path: &Path, cause: &std::io::Error) -> Error {
    let error = Error::io(format!("the rejects cannot be kept in {}", path.display()), cause);
    match error.hint_text() {
        Some(_) => error,
        None => error.hint("name another folder with `--state` or MILLSTREAM_STATE"),
    }
}

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
    let mut earlier = what_counts(files(folder)?);
    let marks = Marks::read(folder)?;
    earlier.kept.iter_mut().for_each(|kept| kept.replayed = marks.lines.contains(&kept.id));
    Ok(earlier)
}

/// The lines of all files in `folder`, by their runs, in the order of these.
fn files(folder: &Path) -> Result<Vec<(String, Vec<Line>)>> {
    let failed = |path: &Path, cause: &std::io::Error| {
        Error::io(format!("the rejects in {} cannot be read", path.display()), cause)
    };
    let mut files = Vec::new();
    for entry in fs_err::read_dir(folder).map_err(|cause| failed(folder, &cause))? {
        let name = entry.map_err(|cause| failed(folder, &cause))?.file_name().to_string_lossy().into_owned();
        files.extend(name.strip_suffix(ENDING).map(str::to_owned));
    }
    files.sort_by_key(|run| order(run));
    let mut runs = Vec::new();
    for run in files {
        let path = folder.join(format!("{run}{ENDING}"));
        let lines = lines_of(&path).map_err(|cause| failed(&path, &cause))?;
        if let Some(Line::Version { version, .. }) = lines.first()
            && *version > VERSION
        {
            return Err(Error::newer(format!("the list of rejects {}", path.display()), version, VERSION)
                .hint("upgrade Millstream to show them or to resume their run"));
        }
        runs.push((run, lines));
    }
    Ok(runs)
}

/// Runs come in the order of their beginnings: `MILLISECONDS-PROCESS`.
fn order(run: &str) -> (u64, String) {
    let time = run.split('-').next().and_then(|time| time.parse().ok());
    (time.unwrap_or(u64::MAX), run.to_owned())
}

/// The lines of all whole frames.
fn lines_of(path: &Path) -> std::io::Result<Vec<Line>> {
    let mut file = BufReader::new(File::open(path)?);
    let mut lines = Vec::new();
    while !file.fill_buf()?.is_empty() {
        let mut text = Vec::new();
        let read = zstd::Decoder::with_buffer(&mut file)?.single_frame().read_to_end(&mut text);
        if let Err(cause) = read {
            // Only the end of a file can be half written.
            let mut rest = Vec::new();
            file.read_to_end(&mut rest)?;
            match cause.kind() {
                std::io::ErrorKind::UnexpectedEof => break,
                _ => return Err(cause),
            }
        }
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            lines.push(serde_json::from_slice(line).map_err(std::io::Error::other)?);
            if let [Line::Version { version, .. }] = lines[..]
                && version > VERSION
            {
                // The lines behind it may be of any form.
                return Ok(lines);
            }
        }
    }
    Ok(lines)
}

/// How a delivery of a chunk stands to others of it: what was delivered counts more than what was only read.
type Rank = (bool, usize, DeliveryNumber);

fn what_counts(runs: Vec<(String, Vec<Line>)>) -> Earlier {
    let mut earlier = Earlier::default();
    let mut last: HashMap<ChunkId, Rank> = HashMap::new();
    let mut anew: HashMap<String, usize> = HashMap::new();
    let rank = |run: usize, delivery: DeliveryNumber| (delivery > 0, run, delivery);
    for (index, (_, lines)) in runs.iter().enumerate() {
        for line in lines {
            let (chunk, delivery) = match line {
                Line::Without { without, delivery } => (Some(without), *delivery),
                Line::Reject(line) => (line.chunk.as_ref(), line.delivery),
                Line::Anew { anew: names } => {
                    anew.extend(names.iter().map(|name| (name.clone(), index)));
                    continue;
                }
                Line::Version { .. } => continue,
                Line::Came { came } => {
                    for (step, records) in came {
                        let known = earlier.came.entry(step.clone()).or_default();
                        *known = (*known).max(*records);
                    }
                    continue;
                }
            };
            if let Some(chunk) = chunk {
                let known = last.entry(chunk.clone()).or_default();
                *known = (*known).max(rank(index, delivery));
            }
        }
    }
    let mut again: HashMap<String, RejectLine> = HashMap::new();
    for (index, (run, lines)) in runs.into_iter().enumerate() {
        let rejects = lines.into_iter().filter_map(|line| match line {
            Line::Reject(line) => Some(*line),
            _ => None,
        });
        for (number, line) in (1..).zip(rejects) {
            let counts = match &line.chunk {
                Some(chunk) => last.get(chunk) == Some(&rank(index, line.delivery)),
                None => {
                    let names = line.rejected.sink.iter().chain(&line.rejected.source);
                    !names.filter_map(|name| anew.get(name)).any(|run| *run > index)
                }
            };
            match &line.again {
                Some(known) if counts => drop(again.insert(known.id.clone(), line)),
                None if counts => {
                    earlier.kept.push(Kept { id: format!("{run}/{number}"), line, replayed: false });
                }
                _ => {}
            }
        }
    }
    // What failed again is told with the last reason.
    for kept in &mut earlier.kept {
        if let Some(line) = again.remove(&kept.id) {
            let Rejected { step, kind, message, column, .. } = line.rejected;
            kept.line.rejected = Rejected { step, kind, message, column, ..kept.line.rejected.clone() };
        }
    }
    earlier
}

/// All rejects in `folder` that have failed again, and the run in which they did.
pub fn failed_again(folder: &Path) -> Result<Vec<(String, Again)>> {
    let again = |(run, lines): (String, Vec<Line>)| {
        let again = lines.into_iter().filter_map(|line| match line {
            Line::Reject(line) => line.again,
            _ => None,
        });
        again.map(|again| (run.clone(), again)).collect::<Vec<_>>()
    };
    Ok(files(folder)?.into_iter().flat_map(again).collect())
}

/// What is noted of rejects that were loaded later, in a file of lines.
///
/// ```text
///  ID <tab> SINK      loaded into this sink
///  <tab> SINK         a replay into this sink has come to its end
///  ID                 loaded into all sinks that it belongs to: no reject any more
/// ```
#[derive(Debug, Default)]
pub struct Marks {
    lines: HashSet<String>,
    rounds: HashMap<String, u64>,
}

impl Marks {
    fn path(folder: &Path) -> PathBuf {
        folder.join("replayed")
    }

    /// Those in `folder`.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = Marks::path(folder);
        let text = match fs_err::read_to_string(&path) {
            Ok(text) => text,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(cause) => return Err(Error::io(format!("the list {} cannot be read", path.display()), &cause)),
        };
        let mut marks = Marks::default();
        // A line that was cut short by a crash has no end.
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            match line.strip_prefix('\t') {
                Some(sink) => *marks.rounds.entry(sink.to_owned()).or_default() += 1,
                None => drop(marks.lines.insert(line.to_owned())),
            }
        }
        Ok(marks)
    }

    /// Whether a reject was loaded into `sink`.
    pub fn has(&self, id: &str, sink: &str) -> bool {
        self.lines.contains(&format!("{id}\t{sink}"))
    }

    /// How many replays into `sink` have come to their end.
    pub fn rounds(&self, sink: &str) -> u64 {
        self.rounds.get(sink).copied().unwrap_or(0)
    }

    /// A replay into `sink` has come to its end, and has loaded these.
    pub fn add(folder: &Path, sink: &str, ids: impl Iterator<Item = String>) -> Result<()> {
        let loaded: String = ids.map(|id| format!("{id}\t{sink}\n")).collect();
        Marks::append(folder, &format!("{loaded}\t{sink}\n"))
    }

    /// These are no rejects any more.
    pub fn finish(folder: &Path, ids: &[String]) -> Result<()> {
        match ids.is_empty() {
            true => Ok(()),
            false => Marks::append(folder, &ids.iter().map(|id| format!("{id}\n")).collect::<String>()),
        }
    }

    /// In front of it an end for a line that was cut short.
    fn append(folder: &Path, text: &str) -> Result<()> {
        let path = Marks::path(folder);
        let written = || -> std::io::Result<()> {
            let mut file = File::options().create(true).append(true).open(&path)?;
            file.write_all(format!("\n{text}").as_bytes())?;
            file.sync_all()
        };
        written().map_err(|cause| cannot_keep(&path, &cause))
    }
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

#[cfg(test)]
mod tests {
    use millstream_core::RejectKind;

    use super::*;

    fn chunk(number: u64) -> ChunkId {
        ChunkId { sink: "o".to_owned(), unit: "s\na.csv".to_owned(), number }
    }

    fn reject(chunk: Option<ChunkId>, message: &str) -> RejectLine {
        RejectLine {
            rejected: Rejected {
                step: "s".to_owned(),
                kind: RejectKind::Value,
                message: message.to_owned(),
                column: None,
                source: Some("s".to_owned()),
                sink: None,
                uri: Some("a.csv".to_owned()),
                member: None,
                line: Some(7),
                byte: Some(70),
                raw: Some(RawText::new(b"caf\xe9")),
                row: None,
            },
            head: None,
            chunk,
            delivery: 0,
            again: None,
        }
    }

    fn line(line: RejectLine) -> Line {
        Line::Reject(Box::new(line))
    }

    fn messages(earlier: &Earlier) -> Vec<&str> {
        earlier.kept.iter().map(|kept| kept.line.rejected.message.as_str()).collect()
    }

    #[test]
    fn nothing_is_made_until_there_is_a_reject() {
        let state = tempfile::TempDir::new().expect("a folder");
        let log = RejectLog::new(state.path(), "1-1", "1-1");
        log.add_delivery(&[chunk(0)], vec![], HashMap::new()).expect("nothing to write");
        log.flush().expect("nothing to write");
        assert_eq!(fs_err::read_dir(state.path()).expect("a folder").count(), 0);
        log.add([line(reject(None, "bad"))], true).expect("written");
        let kept = read(&folder(state.path(), "1-1")).expect("readable").kept;
        assert_eq!((kept[0].id.as_str(), &kept[0].line), ("1-1/1", &reject(None, "bad")));
    }

    #[test]
    fn of_a_chunk_the_last_delivery_counts() {
        let state = tempfile::TempDir::new().expect("a folder");
        let first = RejectLog::new(state.path(), "1-1", "1-1");
        first.add([line(reject(Some(chunk(0)), "read"))], false).expect("it waits");
        first
            .add_delivery(&[chunk(0), chunk(1)], vec![reject(Some(chunk(0)), "first")], HashMap::new())
            .expect("written");
        first.add_delivery(&[chunk(2)], vec![reject(Some(chunk(2)), "stays")], HashMap::new()).expect("written");
        let of = folder(state.path(), "1-1");
        assert_eq!(messages(&read(&of).expect("readable")), ["first", "stays"]);
        // Another run reads chunk 0 again, and does not come to its delivery.
        let second = RejectLog::new(state.path(), "1-1", "2-2");
        second.add([line(reject(Some(chunk(0)), "read again"))], true).expect("written");
        assert_eq!(messages(&read(&of).expect("readable")), ["first", "stays"]);
        let two = vec![reject(Some(chunk(0)), "second"), reject(Some(chunk(0)), "two")];
        second.add_delivery(&[chunk(0)], two, HashMap::new()).expect("written");
        assert_eq!(messages(&read(&of).expect("readable")), ["stays", "second", "two"]);
        // Delivered once more, the chunk has none.
        second.add_delivery(&[chunk(0)], vec![], HashMap::new()).expect("written");
        assert_eq!(messages(&read(&of).expect("readable")), ["stays"]);
        let written = WrittenChunks::new([("s\na.csv".to_owned(), 2)], str::to_owned);
        let kept = read(&of).expect("readable").kept;
        assert_eq!(committed(&kept, "o", &written).0.len(), 1);
        assert_eq!(committed(&kept, "other", &written).0.len(), 0);
    }

    #[test]
    fn a_load_that_begins_anew_forgets() {
        let state = tempfile::TempDir::new().expect("a folder");
        let first = RejectLog::new(state.path(), "1-1", "1-1");
        let other = || {
            let mut other = reject(None, "of another source");
            other.rejected.source = Some("t".to_owned());
            other
        };
        first.add([line(reject(None, "old")), line(other())], true).expect("written");
        let second = RejectLog::new(state.path(), "1-1", "2-2");
        let anew = Line::Anew { anew: vec!["s".to_owned()] };
        second.add([anew, line(reject(None, "new"))], true).expect("written");
        let earlier = read(&folder(state.path(), "1-1")).expect("readable");
        assert_eq!(messages(&earlier), ["of another source", "new"]);
    }

    #[test]
    fn a_frame_that_is_cut_short_is_passed_over_and_a_damaged_file_is_told() {
        let state = tempfile::TempDir::new().expect("a folder");
        let log = RejectLog::new(state.path(), "1-1", "1-1");
        log.add([line(reject(None, "whole"))], true).expect("written");
        let whole = fs_err::metadata(&log.path).expect("a file").len();
        log.add([line(reject(None, "cut"))], true).expect("written");
        let bytes = fs_err::read(&log.path).expect("a file");
        for length in whole as usize..bytes.len() {
            fs_err::write(&log.path, &bytes[..length]).expect("written");
            assert_eq!(messages(&read(&log.folder).expect("readable")), ["whole"], "{length}");
        }
        fs_err::write(&log.path, b"this is no zstd").expect("written");
        let error = read(&log.folder).expect_err("it is damaged");
        assert!(error.what().contains("1-1.jsonl.zst cannot be read"), "{error:?}");
    }

    /// Writes lines as they stand in a file.
    fn file(state: &Path, lines: &[&str]) -> PathBuf {
        let folder = folder(state, "1-1");
        fs_err::create_dir_all(&folder).expect("a folder");
        let text = lines.join("\n") + "\n";
        let bytes = zstd::encode_all(text.as_bytes(), 1).expect("packed");
        fs_err::write(folder.join(format!("1-1{ENDING}")), bytes).expect("written");
        folder
    }

    #[test]
    fn a_file_says_its_version_and_a_newer_one_is_refused() {
        let state = tempfile::TempDir::new().expect("a folder");
        let log = RejectLog::new(state.path(), "1-1", "1-1");
        log.add([line(reject(None, "a"))], true).expect("written");
        log.add([line(reject(None, "b"))], true).expect("written");
        let text = zstd::decode_all(&*fs_err::read(&log.path).expect("a file")).expect("packed");
        let text = String::from_utf8(text).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines[0], lines.len()), (r#"{"version":1,"came":{}}"#, 3));
        // A file without a version.
        let first = file(state.path(), &lines[1..]);
        assert_eq!(messages(&read(&first).expect("readable")), ["a", "b"]);
        let newer = file(state.path(), &[r#"{"version":2,"came":{}}"#, r#"{"nobody": "knows"}"#]);
        let error = read(&newer).expect_err("it is newer");
        assert!(error.what().ends_with("was written by a newer version of Millstream"), "{error:?}");
        assert!(failed_again(&newer).is_err());
    }

    #[test]
    fn what_was_loaded_later_is_marked_and_what_failed_again_has_its_new_reason() {
        let state = tempfile::TempDir::new().expect("a folder");
        let log = RejectLog::new(state.path(), "1-1", "1-1");
        log.add([line(reject(None, "a")), line(reject(None, "b"))], true).expect("written");
        Marks::add(&log.folder, "o", ["1-1/1".to_owned()].into_iter()).expect("written");
        let marks = Marks::read(&log.folder).expect("readable");
        assert!(marks.has("1-1/1", "o") && !marks.has("1-1/1", "other") && !marks.has("1-1/2", "o"));
        assert_eq!((marks.rounds("o"), marks.rounds("other")), (1, 0));
        assert!(read(&log.folder).expect("readable").kept.iter().all(|kept| !kept.replayed));
        Marks::finish(&log.folder, &["1-1/1".to_owned()]).expect("written");
        let again = Again { id: "1-1/2".to_owned(), sink: "o".to_owned(), round: 0 };
        let again = RejectLine { again: Some(again), ..reject(None, "b, still") };
        RejectLog::new(state.path(), "1-1", "2-2").add([line(again)], true).expect("written");
        let kept = read(&log.folder).expect("readable").kept;
        let told: Vec<_> = kept.iter().map(|kept| (kept.line.rejected.message.as_str(), kept.replayed)).collect();
        assert_eq!(told, [("a", true), ("b, still", false)]);
    }
}
