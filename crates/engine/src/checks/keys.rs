//! The keys of a `unique` check: which of them come again.
//!
//! ```text
//!  keys as bytes ─hash─▶ shard ─▶ table of its keys in memory ─▶ there already: counted, shown
//!                                     │ no memory left
//!                                     ▼
//!                                 the table, sorted, as a run in scratch ─▶ merged at the end: equal keys of several
//! ```
//! Keys are compared as whole bytes, never by their hashes alone. A key is there once in a table, so what is found
//! while rows come and what the merge of a shard finds are different rows. The files are [`super::runs`]'s.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{Float32Type, Float64Type};
use arrow::row::{RowConverter, Rows, SortField};
use datafusion::common::hash_utils::{RandomState, create_hashes};
use hashbrown::HashTable;
use millstream_core::{Budget, Error, Result};

use super::runs::{self, MERGE_MEMORY, Run, RunFile};

/// Parts of the keys, so that several tasks add some at once and each part is merged by itself.
const SHARDS: usize = 64;

/// Memory is reserved in steps of so many bytes; in tests in small ones, so that few keys are too many.
const STEP: usize = if cfg!(test) { 64 } else { 64 << 10 };

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
    /// The runs of all shards.
    file: RunFile,
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
    runs: Vec<Run>,
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
            file: RunFile::default(),
            spilled: AtomicU64::new(0),
        }
    }

    /// Adds the keys of the rows of `columns`, and says which were there; a key with a null is none. Values are equal
    /// as in SQL: both zeros are, and so is everything that is no number.
    ///
    /// # Errors
    /// If the columns have no order, or scratch cannot be written.
    pub fn add(&self, columns: &[ArrayRef]) -> Result<Found> {
        let unordered = |cause| Error::internal("the columns of a key cannot be compared").cause(cause);
        let fields: Vec<SortField> = columns.iter().map(|column| SortField::new(column.data_type().clone())).collect();
        let columns: Vec<ArrayRef> = columns.iter().map(with_one_zero).collect();
        let converter = RowConverter::new(fields.clone()).map_err(unordered)?;
        let rows = converter.convert_columns(&columns).map_err(unordered)?;
        let count = rows.num_rows();
        let mut hashes = vec![0; count];
        create_hashes(&columns, &self.random, &mut hashes).map_err(crate::fault::unwrap)?;
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
            let run = self.write_run(shard).map_err(|cause| self.fault("written to", &cause))?;
            self.spilled.fetch_add(run.bytes(), Ordering::Relaxed);
            shard.runs.push(run);
        }
        (shard.table, shard.bytes) = (HashTable::new(), Vec::new());
        self.budget.give_back(std::mem::take(&mut shard.reserved));
        Ok(())
    }

    fn write_run(&self, shard: &Shard) -> io::Result<Run> {
        let mut keys: Vec<&[u8]> = shard.table.iter().map(|key| shard.key(key)).collect();
        keys.sort_unstable();
        let bytes = keys.iter().map(|key| runs::stored(key)).sum();
        self.file.write(&self.scratch, bytes, |run| keys.iter().try_for_each(|key| run.add(key)))
    }

    fn fault(&self, what: &str, cause: &io::Error) -> Error {
        let scratch = self.scratch.display();
        let error = Error::io(format!("the keys of a `unique` check cannot be {what} scratch in {scratch}"), cause);
        match cause.kind() {
            io::ErrorKind::StorageFull => {
                error.hint("name a folder with more room with `--scratch`, or give more memory with `--memory`")
            }
            _ => error,
        }
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
            let (runs, fields) = (std::mem::take(&mut shard.runs), std::mem::take(&mut shard.fields));
            self.merge(runs, &fields, &mut found)?;
        }
        Ok(found)
    }

    fn merge(&self, runs: Vec<Run>, fields: &[SortField], found: &mut Found) -> Result<()> {
        self.budget.take(MERGE_MEMORY);
        let merged = runs::merge(&self.scratch, runs, &mut |key| {
            found.rows += 1;
            if found.examples.len() < EXAMPLES {
                found.examples.push(self.shown(fields, key));
            }
        });
        self.budget.give_back(MERGE_MEMORY);
        let written = merged.map_err(|cause| self.fault("merged in", &cause))?;
        self.spilled.fetch_add(written, Ordering::Relaxed);
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

/// `column` with one zero and one value that is no number, if it has floats: others have one form for each value.
fn with_one_zero(column: &ArrayRef) -> ArrayRef {
    if let Some(values) = column.as_primitive_opt::<Float64Type>() {
        return Arc::new(values.unary::<_, Float64Type>(|value| if value.is_nan() { f64::NAN } else { value + 0.0 }));
    }
    if let Some(values) = column.as_primitive_opt::<Float32Type>() {
        return Arc::new(values.unary::<_, Float32Type>(|value| if value.is_nan() { f32::NAN } else { value + 0.0 }));
    }
    Arc::clone(column)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use arrow::array::{Float32Array, Float64Array, Int64Array, StringViewArray};
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

    /// Nearly every batch becomes runs of its own, which are merged in several passes.
    #[test]
    fn many_runs_are_merged_in_the_memory_of_a_few() {
        let (set, budget, scratch) = set(0);
        let batch =
            |start: i64| -> Vec<_> { (start..start + 100).map(|id| (Some(id), Some(id.to_string()))).collect() };
        let found: u64 = (0..200).map(|number| set.add(&columns(&batch(number * 99))).expect("keys").rows).sum();
        let peak = budget.peak();
        let at_end = set.found_at_end().expect("runs");
        // Two batches one after the other have one key in common.
        assert_eq!((found + at_end.rows, at_end.examples.len()), (199, EXAMPLES));
        assert!(budget.peak() <= peak + MERGE_MEMORY && budget.used() == 0, "{} {peak}", budget.peak());
        assert_eq!(fs_err::read_dir(scratch.path()).expect("a folder").count(), 0);
    }

    #[test]
    fn floats_are_equal_as_in_sql() {
        let other_nan = f64::from_bits(f64::NAN.to_bits() | 1);
        let doubles = vec![Some(0.0), Some(-0.0), Some(f64::NAN), Some(-other_nan), None, None, Some(1.0)];
        let singles: Vec<_> = doubles.iter().map(|value| value.map(|value| value as f32)).collect();
        let of: [ArrayRef; 2] = [Arc::new(Float64Array::from(doubles)), Arc::new(Float32Array::from(singles))];
        for budget in [0, 64 << 20] {
            for column in &of {
                let (set, _, _scratch) = set(budget);
                let rows: u64 = (0..7).map(|row| set.add(&[column.slice(row, 1)]).expect("keys").rows).sum();
                assert_eq!(rows + set.found_at_end().expect("runs").rows, 2, "{column:?}");
            }
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
