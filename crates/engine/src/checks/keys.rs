//! The keys of a `unique` check: which of them come again.
//!
//! ```text
//!  keys as bytes ─hash─▶ shard ─▶ table of its keys in memory ─▶ there already: counted, shown
//!                                     │ no memory left
//!                                     ▼
//!                                 the table, sorted, as a run in scratch ─▶ merged at the end: equal keys of several
//! ```
//! Keys are compared as whole bytes, never by their hashes alone. A key is there once in a table, so what is found
//! while rows come and what the merge of a shard finds are different rows.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::{Array, ArrayRef};
use arrow::buffer::NullBuffer;
use arrow::row::{RowConverter, Rows, SortField};
use datafusion::common::hash_utils::{RandomState, create_hashes};
use hashbrown::HashTable;
use millstream_core::{Budget, Error, Result};
use tempfile::NamedTempFile;

/// Parts of the keys, so that several tasks add some at once and each part is merged by itself.
const SHARDS: usize = 64;

/// Memory is reserved in steps of so many bytes; in tests in small ones, so that few keys are too many.
const STEP: usize = if cfg!(test) { 64 } else { 64 << 10 };

/// The buffer of a run that is written or read.
const BUFFER: usize = 64 << 10;

/// How many keys that come again are shown.
const EXAMPLES: usize = 3;

/// All keys so far.
#[derive(Debug)]
pub struct KeySet {
    /// The names of the columns.
    columns: Vec<String>,
    budget: Arc<Budget>,
    scratch: PathBuf,
    random: RandomState,
    shards: Vec<Mutex<Shard>>,
    spilled: AtomicU64,
}

/// Rows whose keys have come before.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// How many.
    pub rows: u64,
    /// The first of the keys, as text.
    pub examples: Vec<String>,
}

/// A part of the keys.
#[derive(Debug, Default)]
struct Shard {
    /// The place of each key in `bytes`, and its hash.
    table: HashTable<Key>,
    /// Keys one after the other.
    bytes: Vec<u8>,
    reserved: usize,
    runs: Vec<NamedTempFile>,
    /// Turns keys into text again.
    fields: Vec<SortField>,
}

#[derive(Debug, Clone, Copy)]
struct Key {
    hash: u64,
    start: usize,
    length: u32,
}

impl Shard {
    fn key(&self, key: &Key) -> &[u8] {
        &self.bytes[key.start..key.start + key.length as usize]
    }

    /// Adds a key; whether it was there.
    fn insert(&mut self, hash: u64, key: &[u8]) -> bool {
        let Shard { table, bytes, .. } = self;
        let there = |known: &Key| known.hash == hash && bytes[known.start..][..known.length as usize] == *key;
        if table.find(hash, there).is_some() {
            return true;
        }
        let new = Key { hash, start: bytes.len(), length: key.len() as u32 };
        bytes.extend_from_slice(key);
        table.insert_unique(hash, new, |key| key.hash);
        false
    }

    /// The memory that it takes, or will with `more` bytes of keys, in bytes: the table and the bytes grow by doubling.
    fn memory(&self, more: usize, keys: usize) -> usize {
        let table = (self.table.len() + keys).max(self.table.capacity()).next_power_of_two() * (size_of::<Key>() + 1);
        table + (self.bytes.len() + more).max(self.bytes.capacity())
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KeySet {
    /// No keys of these columns. What does not fit into `budget` goes to the folder `scratch`.
    pub fn new(columns: Vec<String>, budget: &Arc<Budget>, scratch: PathBuf) -> Self {
        KeySet {
            columns,
            budget: Arc::clone(budget),
            scratch,
            random: RandomState::default(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            spilled: AtomicU64::new(0),
        }
    }

    /// Adds the keys of the rows of `columns`, and says which were there; a key with a null is none.
    ///
    /// # Errors
    /// If the columns have no order, or scratch cannot be written.
    pub fn add(&self, columns: &[ArrayRef]) -> Result<Found> {
        let unordered = |cause| Error::internal("the columns of a key cannot be compared").cause(cause);
        let fields: Vec<SortField> = columns.iter().map(|column| SortField::new(column.data_type().clone())).collect();
        let converter = RowConverter::new(fields.clone()).map_err(unordered)?;
        let rows = converter.convert_columns(columns).map_err(unordered)?;
        let count = rows.num_rows();
        let mut hashes = vec![0; count];
        create_hashes(columns, &self.random, &mut hashes).map_err(crate::fault::unwrap)?;
        let nulls = columns
            .iter()
            .fold(None, |nulls, column| NullBuffer::union(nulls.as_ref(), column.logical_nulls().as_ref()));
        let mut of_shards: Vec<Vec<u32>> = vec![Vec::new(); SHARDS];
        let is_key = |row: &usize| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(*row));
        (0..count).filter(is_key).for_each(|row| of_shards[shard_of(hashes[row])].push(row as u32));
        let mut found = Found::default();
        for (shard, of_shard) in self.shards.iter().zip(of_shards).filter(|(_, of_shard)| !of_shard.is_empty()) {
            let mut shard = lock(shard);
            if shard.fields.is_empty() {
                shard.fields = fields.clone();
            }
            self.make_room(&mut shard, &rows, &of_shard)?;
            for row in of_shard {
                let key = rows.row(row as usize);
                if shard.insert(hashes[row as usize], key.data()) {
                    found.rows += 1;
                    if found.examples.len() < EXAMPLES {
                        found.examples.push(self.shown(&fields, key.data()));
                    }
                }
            }
        }
        Ok(found)
    }

    /// Makes room in `shard` for the keys of `rows` with these numbers; if there is none left, what it has becomes a
    /// run.
    fn make_room(&self, shard: &mut Shard, rows: &Rows, numbers: &[u32]) -> Result<()> {
        let bytes: usize = numbers.iter().map(|row| rows.row(*row as usize).data().len()).sum();
        let wanted = shard.memory(bytes, numbers.len()).next_multiple_of(STEP);
        if wanted <= shard.reserved {
            return Ok(());
        }
        if !self.budget.try_take(wanted - shard.reserved) {
            self.spill(shard)?;
            // The keys of one batch are held by it anyway.
            let least = shard.memory(bytes, numbers.len()).next_multiple_of(STEP);
            self.budget.take(least);
            shard.reserved = least;
            return Ok(());
        }
        shard.reserved = wanted;
        Ok(())
    }

    /// Writes what `shard` has in memory as a sorted run.
    fn spill(&self, shard: &mut Shard) -> Result<()> {
        if !shard.table.is_empty() {
            let failed = |cause: io::Error| {
                Error::io(format!("keys cannot be written to the scratch folder {}", self.scratch.display()), &cause)
            };
            let run = self.write_run(shard).map_err(failed)?;
            shard.runs.push(run);
            self.spilled
                .fetch_add((shard.bytes.len() + shard.table.len() * size_of::<u32>()) as u64, Ordering::Relaxed);
        }
        (shard.table, shard.bytes) = (HashTable::new(), Vec::new());
        self.budget.give_back(std::mem::take(&mut shard.reserved));
        Ok(())
    }

    fn write_run(&self, shard: &Shard) -> io::Result<NamedTempFile> {
        let mut keys: Vec<&[u8]> = shard.table.iter().map(|key| shard.key(key)).collect();
        keys.sort_unstable();
        let mut file = tempfile::Builder::new().prefix("millstream-keys-").tempfile_in(&self.scratch)?;
        let mut out = BufWriter::with_capacity(BUFFER, file.as_file_mut());
        for key in keys {
            out.write_all(&(key.len() as u32).to_le_bytes())?;
            out.write_all(key)?;
        }
        out.flush()?;
        drop(out);
        Ok(file)
    }

    /// Bytes that were written to scratch.
    pub fn spilled(&self) -> u64 {
        self.spilled.load(Ordering::Relaxed)
    }

    /// The rows whose keys were in several runs. Nothing is added afterwards, and the memory is given back.
    ///
    /// # Errors
    /// If scratch cannot be read.
    pub fn found_at_end(&self) -> Result<Found> {
        let mut found = Found::default();
        for shard in &self.shards {
            let mut shard = lock(shard);
            if shard.runs.is_empty() {
                (shard.table, shard.bytes) = (HashTable::new(), Vec::new());
                self.budget.give_back(std::mem::take(&mut shard.reserved));
                continue;
            }
            self.spill(&mut shard)?;
            let (runs, fields) = (std::mem::take(&mut shard.runs), shard.fields.clone());
            let failed = |cause: io::Error| {
                Error::io(format!("keys in the scratch folder {} cannot be read", self.scratch.display()), &cause)
            };
            self.merge(runs, &fields, &mut found).map_err(failed)?;
        }
        Ok(found)
    }

    fn merge(&self, runs: Vec<NamedTempFile>, fields: &[SortField], found: &mut Found) -> io::Result<()> {
        let mut readers = Vec::new();
        let mut heads = BinaryHeap::new();
        for (number, mut run) in runs.into_iter().enumerate() {
            run.as_file_mut().seek(SeekFrom::Start(0))?;
            let mut reader = BufReader::with_capacity(BUFFER, run);
            heads.extend(next_key(&mut reader)?.map(|key| Reverse((key, number))));
            readers.push(reader);
        }
        let mut last: Option<Vec<u8>> = None;
        while let Some(Reverse((key, number))) = heads.pop() {
            heads.extend(next_key(&mut readers[number])?.map(|key| Reverse((key, number))));
            if last.as_ref() == Some(&key) {
                found.rows += 1;
                if found.examples.len() < EXAMPLES {
                    found.examples.push(self.shown(fields, &key));
                }
            }
            last = Some(key);
        }
        Ok(())
    }

    /// A key as text: `{"id":7}`.
    fn shown(&self, fields: &[SortField], key: &[u8]) -> String {
        let columns = || {
            let converter = RowConverter::new(fields.to_vec()).ok()?;
            let parser = converter.parser();
            let columns = converter.convert_rows([parser.parse(key)]).ok()?;
            let named = self.columns.iter().map(String::as_str).zip(columns);
            arrow::array::RecordBatch::try_from_iter(named).ok()
        };
        let shown = columns().and_then(|row| crate::rejects::json_of(&row));
        shown.map_or_else(|| "a key that cannot be shown".to_owned(), |key| key.to_string())
    }
}

impl Drop for KeySet {
    fn drop(&mut self) {
        let reserved: usize = self.shards.iter().map(|shard| std::mem::take(&mut lock(shard).reserved)).sum();
        self.budget.give_back(reserved);
    }
}

/// The table uses the low bits of a hash.
fn shard_of(hash: u64) -> usize {
    (hash >> 32) as usize % SHARDS
}

fn next_key(reader: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match reader.read_exact(&mut length) {
        Ok(()) => {}
        Err(end) if end.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let mut key = vec![0; u32::from_le_bytes(length) as usize];
    reader.read_exact(&mut key)?;
    Ok(Some(key))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use arrow::array::{Int64Array, StringViewArray};
    use proptest::prelude::*;

    use super::*;

    fn set(budget: usize) -> (KeySet, Arc<Budget>, tempfile::TempDir) {
        let (scratch, budget) = (tempfile::tempdir().expect("a folder"), Budget::new(budget));
        let columns = vec!["a".to_owned(), "b".to_owned()];
        (KeySet::new(columns, &budget, scratch.path().to_owned()), budget, scratch)
    }

    fn columns(rows: &[(Option<i64>, Option<String>)]) -> Vec<ArrayRef> {
        let (numbers, texts): (Vec<_>, Vec<_>) = rows.iter().cloned().unzip();
        vec![Arc::new(Int64Array::from(numbers)), Arc::new(StringViewArray::from(texts))]
    }

    /// Rows that have the key of an earlier one, by a map.
    fn expected(rows: &[(Option<i64>, Option<String>)]) -> u64 {
        let mut counts = HashMap::new();
        rows.iter().filter(|(a, b)| a.is_some() && b.is_some()).for_each(|row| *counts.entry(row).or_insert(0) += 1);
        counts.values().map(|count: &u64| count - 1).sum()
    }

    proptest! {
        #[test]
        fn rows_whose_keys_came_before_are_counted(
            rows in prop::collection::vec((prop::option::of(0i64..40), prop::option::of("[ab]{0,3}")), 0..400),
            batch in 1usize..60,
            budget in prop::sample::select(vec![0usize, 1 << 20, 64 << 20]),
        ) {
            let (set, budget_of, _scratch) = set(budget);
            let mut found = 0;
            for rows in rows.chunks(batch) {
                found += set.add(&columns(rows)).expect("keys").rows;
            }
            found += set.found_at_end().expect("runs").rows;
            prop_assert_eq!(found, expected(&rows));
            prop_assert_eq!(budget_of.used(), 0);
        }
    }

    #[test]
    fn a_key_that_comes_again_is_shown_also_from_scratch() {
        for budget in [0, 64 << 20] {
            let (set, _, _scratch) = set(budget);
            let rows = [(Some(1), Some("x".to_owned())), (Some(2), Some("y".to_owned()))];
            let mut found = Found::default();
            for _ in 0..2 {
                let now = set.add(&columns(&rows[..1])).expect("keys");
                (found.rows, found.examples) = (found.rows + now.rows, [found.examples, now.examples].concat());
                set.add(&columns(&rows[1..])).map(|now| found.rows += now.rows).expect("keys");
            }
            let at_end = set.found_at_end().expect("runs");
            assert_eq!(found.rows + at_end.rows, 2);
            assert_eq!(set.spilled() > 0, budget == 0);
            let shown: Vec<String> = found.examples.into_iter().chain(at_end.examples).collect();
            assert!(shown.contains(&r#"{"a":1,"b":"x"}"#.to_owned()), "{shown:?}");
        }
    }
}
