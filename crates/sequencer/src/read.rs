//! Reads a sequence with the files that it names, each once: what was checked is what runs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millstream_core::clock;
use millstream_engine::parse::unreadable;
use millstream_engine::{Engine, Failure, sql};
use millstream_job::sequence::{self, LoadedSequence, NamedFiles, NamedJob, Sequence, SequenceOptions};
use millstream_job::{Lint, decode};
use millstream_schedule::schedule_faults;

pub use millstream_job::sequence::is_sequence;

/// What reading needs beside the file.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// Values of parameters and variables. They come before those of the environment.
    pub set: BTreeMap<String, String>,
    /// Whether the sequence is about to run: a secret that is not there is then an error.
    pub running: bool,
    /// When the logical run begins, in milliseconds since 1970; now, if it is left out.
    pub moment: Option<i64>,
    /// The texts of files that take the place of those on the disk, by their paths from the root.
    pub texts: BTreeMap<PathBuf, String>,
}

/// A sequence that was read.
#[derive(Debug, Clone)]
pub struct ReadSequence {
    /// The sequence.
    pub sequence: Arc<Sequence>,
    /// What is strange and no error, of the files that it names, too.
    pub warnings: Vec<Lint>,
    /// The texts of all files that it names, directly or not, by their paths from the root.
    pub texts: BTreeMap<PathBuf, String>,
    /// What `--set` gave.
    pub set: BTreeMap<String, String>,
}

/// Reads the sequence at `path`.
///
/// # Errors
/// If it cannot be read; else everything that is wrong with it and the files that it names.
pub fn read(engine: &Engine, path: &str, options: &ReadOptions) -> Result<ReadSequence, Failure> {
    let text = match options.texts.get(&from_root(path)) {
        Some(text) => text.clone(),
        None => {
            let absent = "a sequence is a local file with `steps:`";
            let bytes = fs_err::read(path).map_err(|cause| unreadable("the file", path, &cause, absent))?;
            decode(path, &bytes).map_err(|lint| Failure::from(*lint))?.to_owned()
        }
    };
    read_text(engine, path, &text, options)
}

/// Reads the sequence `text`, which stands at `path`.
///
/// # Errors
/// As those of [`read`].
pub fn read_text(engine: &Engine, path: &str, text: &str, options: &ReadOptions) -> Result<ReadSequence, Failure> {
    let files = Files { engine, given: &options.texts, read: RefCell::default() };
    let pools: Option<Vec<String>> = engine.machine().pools.as_ref().map(|pools| pools.keys().cloned().collect());
    let loaded = sequence::load(
        path,
        text,
        engine.registry(),
        &SequenceOptions {
            set: &options.set,
            environment: &|name| std::env::var(name).ok(),
            references: &|query| sql::references(query),
            schedule: &schedule_faults,
            pools: pools.as_deref(),
            files: &files,
            running: options.running,
            now: options.moment.unwrap_or_else(|| clock::now().cast_signed()),
        },
    );
    let LoadedSequence { sequence, lints, .. } = loaded;
    let Some(sequence) = sequence else { return Err(Failure { lints, errors: Vec::new() }) };
    let texts = files.read.into_inner().into_iter();
    let texts = texts.map(|(path, bytes)| (path, String::from_utf8_lossy(&bytes).into_owned())).collect();
    Ok(ReadSequence { sequence: Arc::new(sequence), warnings: lints, texts, set: options.set.clone() })
}

/// The path from the root; the same for all ways to write it.
pub(crate) fn from_root(path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    fs_err::canonicalize(path).or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}

/// Files as they were when they were read first.
struct Files<'a> {
    engine: &'a Engine,
    given: &'a BTreeMap<PathBuf, String>,
    read: RefCell<BTreeMap<PathBuf, Vec<u8>>>,
}

impl NamedFiles for Files<'_> {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let key = from_root(path);
        if let Some(bytes) = self.read.borrow().get(&key) {
            return Ok(bytes.clone());
        }
        let bytes = match self.given.get(&key) {
            Some(text) => text.clone().into_bytes(),
            None => fs_err::read(path)?,
        };
        self.read.borrow_mut().insert(key, bytes.clone());
        Ok(bytes)
    }

    fn job_lints(&self, job: &NamedJob<'_>) -> Vec<Lint> {
        self.engine.lints_of_named(job)
    }
}
