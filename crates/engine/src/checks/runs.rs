//! Sorted runs of keys in scratch, and their merge. What the keys mean is [`super::keys`]'s to know.
//!
//! ```text
//!  file   run │ run │ run …     each run: its keys in order, each once, with its length before it
//! ```
//! All runs of a set of keys stand in one file, however many there are, so no more files are open than sets. The files
//! have no names: nothing is left of a killed process.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The most runs that are merged at once: more are merged to fewer first. Each has a buffer.
const FAN_IN: usize = if cfg!(test) { 3 } else { 32 };

/// The buffer of a run that is written or read, in bytes.
const BUFFER: usize = 32 << 10;

/// The memory that a merge takes, in bytes.
pub const MERGE_MEMORY: usize = (FAN_IN + 1) * BUFFER;

/// A file of runs, which several threads may write at once.
#[derive(Debug, Default)]
pub struct RunFile(Mutex<Option<(Arc<File>, u64)>>);

/// A run.
#[derive(Debug, Clone)]
pub struct Run {
    file: Arc<File>,
    range: Range<u64>,
}

/// Writes the keys of a run.
pub struct RunWriter(BufWriter<Place>);

/// A place in a file, which moves on with what is written or read there.
struct Place {
    file: Arc<File>,
    range: Range<u64>,
}

impl RunFile {
    /// Writes a run of at most `bytes` bytes ([`stored`]) with the keys that `fill` adds. The file is made in `folder`
    /// with the first run.
    ///
    /// # Errors
    /// If it cannot be made or written.
    pub fn write(
        &self,
        folder: &Path,
        bytes: u64,
        fill: impl FnOnce(&mut RunWriter) -> io::Result<()>,
    ) -> io::Result<Run> {
        let place = self.reserve(folder, bytes)?;
        let (file, start) = (Arc::clone(&place.file), place.range.start);
        let mut writer = RunWriter(BufWriter::with_capacity(BUFFER, place));
        fill(&mut writer)?;
        let place = writer.0.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok(Run { file, range: start..place.range.start })
    }

    /// The next `bytes` bytes of the file.
    fn reserve(&self, folder: &Path, bytes: u64) -> io::Result<Place> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, start) = match open.take() {
            Some(there) => there,
            None => (Arc::new(tempfile::tempfile_in(folder)?), 0),
        };
        let end = start + bytes;
        *open = Some((Arc::clone(&file), end));
        Ok(Place { file, range: start..end })
    }
}

impl Run {
    /// Its size in the file, in bytes.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn keys(&self) -> Keys {
        let place = Place { file: Arc::clone(&self.file), range: self.range.clone() };
        Keys(BufReader::with_capacity(BUFFER, place))
    }
}

/// The bytes that `key` takes in a run.
pub fn stored(key: &[u8]) -> u64 {
    (size_of::<u32>() + key.len()) as u64
}

impl RunWriter {
    /// Adds `key`, which is greater than the one before.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn add(&mut self, key: &[u8]) -> io::Result<()> {
        self.0.write_all(&(key.len() as u32).to_le_bytes())?;
        self.0.write_all(key)
    }
}

/// Merges `runs`, and calls `again` with each key for each run after the first that has it. Returns how many bytes were
/// written to `folder` for it.
///
/// # Errors
/// If scratch cannot be written or read.
pub fn merge(folder: &Path, mut runs: Vec<Run>, again: &mut dyn FnMut(&[u8])) -> io::Result<u64> {
    let mut written = 0;
    while runs.len() > FAN_IN {
        let file = RunFile::default();
        let mut fewer = Vec::new();
        for group in runs.chunks(FAN_IN) {
            let bytes = group.iter().map(Run::bytes).sum();
            let run = file.write(folder, bytes, |run| merge_at_once(group, &mut |key| run.add(key), again))?;
            written += run.bytes();
            fewer.push(run);
        }
        runs = fewer;
    }
    merge_at_once(&runs, &mut |_| Ok(()), again)?;
    Ok(written)
}

/// Merges `runs` in one pass: `out` gets each key once, `again` each time that it comes again.
fn merge_at_once(
    runs: &[Run],
    out: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    again: &mut dyn FnMut(&[u8]),
) -> io::Result<()> {
    let mut readers: Vec<Keys> = runs.iter().map(Run::keys).collect();
    let mut heads = BinaryHeap::new();
    for (number, reader) in readers.iter_mut().enumerate() {
        heads.extend(reader.next()?.map(|key| Reverse((key, number))));
    }
    let mut last: Option<Vec<u8>> = None;
    while let Some(Reverse((key, number))) = heads.pop() {
        heads.extend(readers[number].next()?.map(|key| Reverse((key, number))));
        if last.as_ref() == Some(&key) {
            again(&key);
        } else {
            out(&key)?;
            last = Some(key);
        }
    }
    Ok(())
}

/// The keys of a run as they are read.
struct Keys(BufReader<Place>);

impl Keys {
    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        if self.0.buffer().is_empty() && self.0.get_ref().range.is_empty() {
            return Ok(None);
        }
        let mut length = [0; size_of::<u32>()];
        self.0.read_exact(&mut length)?;
        let mut key = vec![0; u32::from_le_bytes(length) as usize];
        self.0.read_exact(&mut key)?;
        Ok(Some(key))
    }
}

impl Read for Place {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min((self.range.end - self.range.start) as usize);
        let read = self.file.read_at(&mut buffer[..most], self.range.start)?;
        self.range.start += read as u64;
        Ok(read)
    }
}

impl Write for Place {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write_at(bytes, self.range.start)?;
        self.range.start += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    type KeysOfRun = BTreeSet<Vec<u8>>;

    fn write(file: &RunFile, folder: &Path, keys: &KeysOfRun) -> Run {
        let bytes = keys.iter().map(|key| stored(key)).sum();
        let run = file.write(folder, bytes, |run| keys.iter().try_for_each(|key| run.add(key)));
        run.expect("a run")
    }

    proptest! {
        #[test]
        fn a_key_of_several_runs_comes_again_in_each_but_one(
            runs in {
                let key = prop::collection::vec(0u8..3, 0..4);
                prop::collection::vec(prop::collection::btree_set(key, 0..20), 0..40)
            },
        ) {
            let (folder, file) = (tempfile::tempdir().expect("a folder"), RunFile::default());
            let written = runs.iter().map(|keys| write(&file, folder.path(), keys)).collect();
            let mut found: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
            let bytes = merge(folder.path(), written, &mut |key| *found.entry(key.to_vec()).or_default() += 1);
            prop_assert_eq!(bytes.expect("a merge") > 0, runs.len() > FAN_IN && runs.iter().any(|run| !run.is_empty()));
            let mut expected: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
            runs.into_iter().flatten().for_each(|key| *expected.entry(key).or_default() += 1);
            expected.retain(|_, times| { *times -= 1; *times > 0 });
            prop_assert_eq!(found, expected);
            prop_assert_eq!(fs_err::read_dir(folder.path()).expect("a folder").count(), 0);
        }
    }

    #[test]
    fn a_run_that_was_cut_off_is_an_error() {
        let (folder, file) = (tempfile::tempdir().expect("a folder"), RunFile::default());
        let run = write(&file, folder.path(), &[b"one".to_vec(), b"two".to_vec()].into());
        run.file.set_len(run.bytes() - 1).expect("a file");
        let error = merge(folder.path(), vec![run], &mut |_| {}).expect_err("it was cut off");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
