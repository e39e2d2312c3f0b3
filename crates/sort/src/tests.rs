//! Sorts of all types, orders and sizes against a reference: arrow's rows, compared one by one.

use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, BooleanArray, Date32Array, Decimal128Array,
    Decimal256Array, DictionaryArray, DurationMillisecondArray, FixedSizeBinaryArray, FixedSizeListArray, Float16Array,
    Float32Array, Float64Array, Int8Array, Int32Array, Int64Array, IntervalMonthDayNanoArray, LargeStringArray,
    ListArray, NullArray, RecordBatch, StringArray, StringViewArray, StructArray, Time64MicrosecondArray,
    TimestampMicrosecondArray, TimestampNanosecondArray, UInt16Array, UInt32Array, UInt64Array,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{SortOptions, concat_batches, take_record_batch};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Field, Float16Type, Int8Type, Int32Type, Int64Type, IntervalMonthDayNano, Schema,
    SchemaRef, UInt64Type, i256,
};
use arrow_row::{RowConverter, SortField};
use fastrand::Rng;
use millstream_core::{Budget, ErrorKind};
use millstream_testkit::Mount;
use proptest::prelude::*;

use crate::{Compression, Keep, Key, KeyValues, Layout, Order, Plan, Resources, Sort, Usage};

/// The resources of a sort under test.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// The budget of all holders together.
    budget: usize,
    memory: usize,
    inputs: usize,
    compression: Compression,
    block: usize,
    keep: Option<Keep>,
    /// How many first keys decide which rows are the same.
    same: usize,
    /// How many of the first rows are needed.
    first: Option<usize>,
}

const AMPLE: Shape = Shape {
    budget: 1 << 30,
    memory: 64 << 20,
    inputs: 1,
    compression: Compression::None,
    block: 64 << 10,
    keep: None,
    same: usize::MAX,
    first: None,
};

/// So little memory that everything is written in small runs.
const STARVED: Shape = Shape { memory: 3 << 20, block: 4 << 10, ..AMPLE };

struct Outcome {
    batches: Vec<RecordBatch>,
    usage: Usage,
    left: usize,
}

fn sort(batches: &[RecordBatch], keys: &[Key], shape: Shape) -> Outcome {
    let folder = tempfile::tempdir().expect("a folder");
    let outcome = try_sort(batches, keys, shape, &[folder.path().to_owned()], || {}).expect("it is sorted");
    let left = fs_err::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(left, 0, "nothing is left in scratch");
    outcome
}

/// Bytes of a piece if nothing is known of the data.
fn piece(memory: usize, inputs: usize, disks: usize) -> usize {
    Plan::new(None, None, memory as u64, (inputs as u64, disks as u64), None).piece as usize
}

/// Sorts with scratch in `folders`; calls `between` between the two phases.
fn try_sort(
    batches: &[RecordBatch],
    keys: &[Key],
    shape: Shape,
    folders: &[PathBuf],
    between: impl FnOnce(),
) -> millstream_core::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let budget = Budget::new(shape.budget);
    let resources = Resources {
        budget: Arc::clone(&budget),
        memory: shape.memory,
        scratch: folders.to_vec(),
        compression: shape.compression,
        piece: piece(shape.memory, shape.inputs, folders.len()),
        block: shape.block,
        extent: None,
        workers: 2,
    };
    let layout = Arc::new(Layout::with_same(&batches[0].schema(), keys, shape.same).expect("a layout"));
    let sort = Sort::new(Arc::clone(&layout), shape.keep, shape.first, &resources, shape.inputs);
    let sorted = runtime.block_on(async {
        let mut finished = Vec::new();
        let share = batches.len().div_ceil(shape.inputs);
        for part in batches.chunks(share.max(1)) {
            let mut input = sort.input();
            for batch in part {
                input.push(&layout.prepare(batch, &[]).expect("prepared")).await?;
            }
            finished.push(input.finish().await?);
        }
        between();
        let mut merge = sort.merge(finished)?;
        let mut sorted = Vec::new();
        while let Some(slice) = merge.next_slice()? {
            sorted.extend(slice.merge().expect("merged"));
        }
        Ok((sorted, sort.usage()))
    });
    drop((sort, runtime));
    let left = budget.used();
    sorted.map(|(batches, usage)| Outcome { batches, usage, left })
}

/// `batches` in order, as arrow's rows compare; with `keep`, one of the rows that are equal in the first `same` keys
/// stays.
fn reference(batches: &[RecordBatch], keys: &[Key], keep: Option<Keep>, same: usize) -> RecordBatch {
    let all = concat_batches(&batches[0].schema(), batches).expect("one batch");
    let columns: Vec<ArrayRef> = keys.iter().map(|key| Arc::clone(all.column(column(key)))).collect();
    let field = |(key, values): (&Key, &ArrayRef)| {
        let Order { descending, nulls_first } = key.order;
        SortField::new_with_options(values.data_type().clone(), SortOptions { descending, nulls_first })
    };
    let rows_of = |keys: &[Key]| {
        let converter = RowConverter::new(keys.iter().zip(&columns).map(field).collect()).expect("known types");
        converter.convert_columns(&columns[..keys.len()]).expect("rows")
    };
    let rows = rows_of(keys);
    let mut order: Vec<u32> = (0..all.num_rows() as u32).collect();
    order.sort_by(|one, other| rows.row(*one as usize).cmp(&rows.row(*other as usize)));
    if let Some(keep) = keep {
        let rows = rows_of(&keys[..same.min(keys.len())]);
        order.dedup_by(|next, kept| {
            let equal = rows.row(*next as usize) == rows.row(*kept as usize);
            if equal && keep == Keep::Last {
                *kept = *next;
            }
            equal
        });
    }
    take_record_batch(&all, &UInt32Array::from(order)).expect("taken")
}

fn first_rows(batch: &RecordBatch, first: usize) -> RecordBatch {
    batch.slice(0, first.min(batch.num_rows()))
}

fn column(key: &Key) -> usize {
    match key.values {
        KeyValues::Column(index) => index,
        KeyValues::Computed { .. } => unreachable!("tests sort by columns"),
    }
}

fn key(column: usize, descending: bool, nulls_first: bool) -> Key {
    Key { values: KeyValues::Column(column), order: Order { descending, nulls_first } }
}

#[track_caller]
fn check(batches: &[RecordBatch], keys: &[Key], shape: Shape) -> Outcome {
    let outcome = sort(batches, keys, shape);
    let sorted = concat_batches(&batches[0].schema(), &outcome.batches).expect("one batch");
    let expected = reference(batches, keys, shape.keep, shape.same);
    let (sorted, expected) = match shape.first {
        // Equal rows of another input may follow.
        Some(first) => (first_rows(&sorted, first), first_rows(&expected, first)),
        None => (sorted, expected),
    };
    assert_eq!(sorted.num_rows(), expected.num_rows(), "{keys:?} {shape:?}");
    assert!(sorted == expected, "{keys:?} {shape:?}");
    assert_eq!(outcome.left, 0, "all memory is given back");
    outcome
}

/// Texts of which many share their beginnings, some are empty, and some have zeros or the last byte in them.
fn text(random: &mut Rng) -> String {
    const STEMS: [&str; 8] =
        ["", "a", "a\0", "a\0\0b", "https://example.com/", "https://example.com/long/path/", "\u{ff}", "z"];
    let mut text = STEMS[random.usize(..STEMS.len())].to_owned();
    for _ in 0..random.usize(..4) {
        text.push_str(["", "\0", "b", "ÿ", "0123456789abc"][random.usize(..5)]);
    }
    text
}

/// One value of a thousand kinds.
fn number(random: &mut Rng) -> i64 {
    match random.u8(..6) {
        0 => i64::MIN,
        1 => i64::MAX,
        2 => random.i64(-2..3),
        _ => random.i64(..),
    }
}

fn float(random: &mut Rng) -> f64 {
    match random.u8(..8) {
        0 => f64::NAN,
        1 => -f64::NAN,
        2 => 0.0,
        3 => -0.0,
        4 => f64::INFINITY,
        5 => f64::NEG_INFINITY,
        _ => f64::from_bits(random.u64(..)),
    }
}

fn column_of(kind: usize, rows: usize, nullable: bool, random: &mut Rng) -> ArrayRef {
    fn some<T>(random: &mut Rng, nullable: bool, value: impl Fn(&mut Rng) -> T) -> Option<T> {
        (!nullable || random.u8(..4) > 0).then(|| value(random))
    }
    macro_rules! of {
        ($array:ty, $value:expr) => {
            Arc::new((0..rows).map(|_| some(random, nullable, $value)).collect::<$array>())
        };
    }
    match kind {
        0 => of!(Int64Array, number),
        1 => of!(Int8Array, |random| random.i8(..)),
        2 => of!(UInt16Array, |random| random.u16(..5)),
        3 => of!(Float64Array, float),
        4 => of!(BooleanArray, Rng::bool),
        5 => of!(StringArray, text),
        6 => of!(StringViewArray, text),
        7 => of!(BinaryArray, |random: &mut Rng| text(random).into_bytes()),
        8 => of!(Date32Array, |random: &mut Rng| random.i32(-5..5)),
        9 => of!(TimestampNanosecondArray, number),
        10 => Arc::new(
            (0..rows)
                .map(|_| some(random, nullable, |random| i128::from(number(random)) * 1000))
                .collect::<Decimal128Array>()
                .with_precision_and_scale(38, 3)
                .expect("a decimal"),
        ),
        11 => of!(UInt64Array, |random| random.u64(..)),
        12 => {
            let texts: Vec<Option<String>> = (0..rows).map(|_| some(random, nullable, text)).collect();
            Arc::new(texts.iter().map(Option::as_deref).collect::<DictionaryArray<Int32Type>>())
        }
        13 => {
            let list = |random: &mut Rng| (0..random.usize(..3)).map(|_| Some(random.i64(..3))).collect::<Vec<_>>();
            let lists: Vec<_> = (0..rows).map(|_| some(random, nullable, list)).collect();
            Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists))
        }
        14 => {
            let inner = Arc::new((0..rows).map(|_| some(random, true, text)).collect::<StringArray>()) as ArrayRef;
            let field = Arc::new(Field::new("t", DataType::Utf8, true));
            let count = Arc::new(Int32Array::from_iter_values((0..rows).map(|_| random.i32(..3)))) as ArrayRef;
            let other = Arc::new(Field::new("n", DataType::Int32, false));
            Arc::new(StructArray::from(vec![(field, inner), (other, count)]))
        }
        15 => {
            let values = (0..rows).map(|_| some(random, nullable, |random| [random.u8(..3), random.u8(..), 0]));
            let values: Vec<Option<[u8; 3]>> = values.collect();
            Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(values.into_iter(), 3).expect("of one size"))
        }
        16 => Arc::new(NullArray::new(rows)),
        17 => of!(Float32Array, |random| float(random) as f32),
        18 => {
            let half = |random: &mut Rng| <Float16Type as ArrowPrimitiveType>::Native::from_f64(float(random));
            of!(Float16Array, half)
        }
        19 => of!(LargeStringArray, text),
        20 => of!(BinaryViewArray, |random: &mut Rng| text(random).into_bytes()),
        21 => Arc::new(
            (0..rows)
                .map(|_| some(random, nullable, |random| i256::from_parts(random.u128(..), number(random).into())))
                .collect::<Decimal256Array>()
                .with_precision_and_scale(76, -3)
                .expect("a decimal"),
        ),
        22 => of!(Time64MicrosecondArray, |random| random.i64(..1_000)),
        23 => of!(DurationMillisecondArray, number),
        24 => Arc::new(
            (0..rows)
                .map(|_| some(random, nullable, number))
                .collect::<TimestampMicrosecondArray>()
                .with_timezone("Europe/Berlin"),
        ),
        25 => of!(IntervalMonthDayNanoArray, |random| {
            IntervalMonthDayNano::new(random.i32(-2..2), random.i32(-2..2), number(random))
        }),
        _ => {
            let values = |random: &mut Rng| Some(vec![Some(random.i64(..3)), None, Some(random.i64(..))]);
            let lists: Vec<_> = (0..rows).map(|_| some(random, nullable, values).flatten()).collect();
            Arc::new(FixedSizeListArray::from_iter_primitive::<Int64Type, _, _>(lists, 3))
        }
    }
}

const KINDS: usize = 27;

/// Batches with one column of each of `kinds`; the nullable ones have nulls. The last column numbers the rows.
fn batches(kinds: &[(usize, bool)], sizes: &[usize], seed: u64) -> Vec<RecordBatch> {
    let mut random = Rng::with_seed(seed);
    let mut schema: Option<SchemaRef> = None;
    let mut first = 0;
    sizes
        .iter()
        .map(|rows| {
            let mut columns: Vec<ArrayRef> =
                kinds.iter().map(|(kind, nullable)| column_of(*kind, *rows, *nullable, &mut random)).collect();
            columns.push(Arc::new(Int64Array::from_iter_values(first..first + *rows as i64)));
            first += *rows as i64;
            let schema = schema.get_or_insert_with(|| {
                let field = |(index, column): (usize, &ArrayRef)| {
                    let nullable = kinds.get(index).is_some_and(|(kind, nullable)| *nullable || *kind == 16);
                    Field::new(format!("c{index}"), column.data_type().clone(), nullable)
                };
                Arc::new(Schema::new(columns.iter().enumerate().map(field).collect::<Vec<_>>()))
            });
            RecordBatch::try_new(Arc::clone(schema), columns).expect("a batch")
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_types_in_any_order(
        kinds in proptest::collection::vec((0..KINDS, any::<bool>()), 1..5),
        keys in proptest::collection::vec((0_usize..5, any::<bool>(), any::<bool>()), 1..4),
        sizes in proptest::collection::vec(0_usize..700, 1..6),
        seed: u64,
        compress: bool,
        keep in prop_oneof![Just(None), Just(Some(Keep::First)), Just(Some(Keep::Last))],
        same in 1_usize..4,
    ) {
        let batches = batches(&kinds, &sizes, seed);
        let keys: Vec<Key> =
            keys.iter().map(|(column, down, first)| key(column % (kinds.len() + 1), *down, *first)).collect();
        let compression = if compress { Compression::Lz4 } else { Compression::None };
        check(&batches, &keys, Shape { compression, keep, same, ..AMPLE });
    }

    #[test]
    fn texts_alone_are_their_own_keys(
        sizes in proptest::collection::vec(0_usize..3000, 1..4),
        seed: u64,
        kind in 5_usize..8,
        nullable: bool,
        descending: bool,
        nulls_first: bool,
    ) {
        let all = batches(&[(kind, nullable)], &sizes, seed);
        let alone: Vec<RecordBatch> = all.iter().map(|batch| batch.project(&[0]).expect("one column")).collect();
        check(&alone, &[key(0, descending, nulls_first)], AMPLE);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_types_when_all_is_written(
        kinds in proptest::collection::vec((0..KINDS, any::<bool>()), 1..5),
        keys in proptest::collection::vec((0_usize..5, any::<bool>(), any::<bool>()), 1..4),
        sizes in proptest::collection::vec(2_000_usize..3_000, 3..5),
        seed: u64,
        compression in prop_oneof![
            Just(Compression::Auto), Just(Compression::None), Just(Compression::Lz4), Just(Compression::Zstd),
        ],
        keep in prop_oneof![Just(None), Just(Some(Keep::First)), Just(Some(Keep::Last))],
        same in 1_usize..4,
        inputs in 1_usize..3,
    ) {
        let batches = batches(&kinds, &sizes, seed);
        let keys: Vec<Key> =
            keys.iter().map(|(column, down, first)| key(column % (kinds.len() + 1), *down, *first)).collect();
        let outcome = check(&batches, &keys, Shape { memory: 128 << 10, compression, keep, same, inputs, ..STARVED });
        prop_assert!(outcome.usage.written > 0, "{:?}", outcome.usage);
    }
}

#[test]
fn what_does_not_fit_is_written_and_merged() {
    for kinds in [&[(5, false), (0, true)][..], &[(0, false), (6, true), (3, true), (13, true)]] {
        let batches = batches(kinds, &[8192; 40], 7);
        for keep in [None, Some(Keep::First), Some(Keep::Last)] {
            for compression in [Compression::Auto, Compression::None, Compression::Lz4, Compression::Zstd] {
                for keys in [&[key(0, false, true)][..], &[key(0, true, true), key(1, false, false)]] {
                    let outcome = check(&batches, keys, Shape { keep, compression, ..STARVED });
                    assert!(outcome.usage.written > 0, "it was written");
                }
            }
        }
    }
}

#[test]
fn rows_that_are_the_same_in_the_first_keys() {
    // Texts, numbers, and what only arrow-row writes: with ends that are known, and without.
    let batches = batches(&[(2, true), (5, true), (13, true), (1, false)], &[4096; 16], 17);
    let orders: [&[Key]; 4] = [
        &[key(0, true, false), key(4, true, true)],
        &[key(1, false, true), key(0, false, true), key(4, true, true)],
        &[key(2, true, true), key(3, false, true), key(4, false, true)],
        &[key(3, false, true), key(1, true, true)],
    ];
    for keys in orders {
        for keep in [Keep::First, Keep::Last] {
            for same in 1..keys.len() {
                for shape in [STARVED, Shape { memory: 1 << 20, inputs: 2, ..STARVED }] {
                    check(&batches, keys, Shape { keep: Some(keep), same, ..shape });
                }
            }
        }
    }
}

#[test]
fn what_is_dropped_early_is_not_written() {
    let batches = batches(&[(2, true), (5, false)], &[8192; 40], 19);
    let keys = [key(0, false, true), key(2, true, true)];
    let usage = check(&batches, &keys, Shape { keep: Some(Keep::First), same: 1, ..STARVED }).usage;
    assert!(usage.written < 64 << 10, "there are six different values: {usage:?}");
    let usage = check(&batches, &keys, STARVED).usage;
    assert!(usage.written > 4 << 20, "{usage:?}");
}

#[test]
fn what_may_fit_is_not_written() {
    // With their entries, more than half of the memory.
    let batches = batches(&[(2, false)], &[8192; 8], 37);
    let keys = [key(0, false, true)];
    let bytes = check(&batches, &keys, AMPLE).usage.memory;
    for (memory, is_written) in [(bytes * 11 / 10 + (1 << 20), false), (bytes * 2 / 3, true)] {
        let usage = check(&batches, &keys, Shape { memory, ..AMPLE }).usage;
        assert_eq!(usage.written > 0, is_written, "{usage:?}");
    }
}

#[test]
fn of_first_rows_none_is_written() {
    let batches = batches(&[(2, true), (5, true), (1, false)], &[8192; 40], 31);
    // Six values, texts of which many are equal, and all rows different.
    let orders: [&[Key]; 3] = [
        &[key(0, false, true), key(3, true, true)],
        &[key(1, true, false), key(3, false, true)],
        &[key(3, true, true)],
    ];
    for keys in orders {
        for keep in [None, Some(Keep::First), Some(Keep::Last)] {
            for (first, inputs) in [(0, 1), (3, 2), (1000, 1), (4000, 2), (9000, 1)] {
                let shape = Shape { keep, same: 1, first: Some(first), inputs, ..STARVED };
                let usage = check(&batches, keys, shape).usage;
                assert_eq!(usage.written, 0, "{shape:?} {usage:?}");
            }
        }
    }
}

#[test]
fn more_first_rows_than_fit_are_written() {
    let batches = batches(&[(5, true), (0, false)], &[8192; 30], 37);
    for keep in [None, Some(Keep::Last)] {
        for inputs in [1, 2] {
            let shape = Shape { keep, first: Some(150_000), inputs, ..STARVED };
            let usage = check(&batches, &[key(0, false, true), key(1, true, true)], shape).usage;
            assert!(usage.written > 0, "{usage:?}");
        }
    }
}

#[test]
fn first_rows_are_right_where_few_runs_are_merged_at_once() {
    let batches = batches(&[(5, true), (0, false)], &[8192; 60], 41);
    for (first, inputs) in [(5_000, 1), (20_000, 1), (20_000, 2), (100_000, 2)] {
        for block in [256 << 10, 1 << 20] {
            let shape = Shape { first: Some(first), inputs, block, memory: 8 << 20, ..AMPLE };
            check(&batches, &[key(1, false, true), key(0, true, true)], shape);
        }
    }
}

#[test]
fn one_input_keeps_several_disks_busy() {
    let (one, other) = (Mount::tmpfs("size=64m"), Mount::tmpfs("size=64m"));
    let (Some(one), Some(other)) = (one, other) else { return };
    let folders = [one.path().to_owned(), other.path().to_owned()];
    let used = || {
        let disks = folders.iter().map(|folder| rustix::fs::statvfs(folder).expect("a disk"));
        disks.map(|disk| (disk.f_blocks - disk.f_bfree) * disk.f_frsize).collect::<Vec<_>>()
    };
    let between = std::cell::Cell::new(Vec::new());
    let (batches, keys) = (eight_megabytes(), [key(0, false, true)]);
    let outcome = try_sort(&batches, &keys, STARVED, &folders, || between.set(used())).expect("it is sorted");
    let sorted = concat_batches(&batches[0].schema(), &outcome.batches).expect("one batch");
    assert!(sorted == reference(&batches, &keys, None, usize::MAX), "in the order in which they came");
    let used = between.take();
    // A disk that seems twice as fast gets nearly all, so the shares are not checked.
    assert!(used.iter().all(|bytes| *bytes > outcome.usage.written / 20), "{used:?} {:?}", outcome.usage);
}

#[test]
fn several_inputs_are_one_order() {
    let batches = batches(&[(0, true), (5, true)], &[8192; 30], 3);
    let keys = [key(1, false, false), key(0, true, true), key(2, false, false)];
    for shape in [Shape { inputs: 3, ..STARVED }, Shape { inputs: 3, memory: 8 << 20, ..AMPLE }] {
        check(&batches, &keys, shape);
    }
}

#[test]
fn equal_keys_few_keys_and_orders_that_are_there_already() {
    let rows = 150_000;
    let mut random = Rng::with_seed(5);
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let long = "the same beginning of all keys, which is longer than any prefix of theirs ".repeat(4);
    let texts: [Vec<String>; 5] = [
        (0..rows).map(|_| long.clone()).collect(),
        (0..rows).map(|row| format!("{long}{}", row % 3)).collect(),
        (0..rows).map(|row| format!("{row:09}")).collect(),
        (0..rows).map(|row| format!("{:09}", rows - row)).collect(),
        (0..rows).map(|row| format!("{:09}", if random.u8(..) == 0 { random.i64(..rows) } else { row })).collect(),
    ];
    for texts in texts {
        let texts: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
        let batch = RecordBatch::try_from_iter([("t", texts), ("n", Arc::clone(&ids))]).expect("a batch");
        let batches: Vec<RecordBatch> =
            (0..rows as usize).step_by(8192).map(|from| batch.slice(from, 8192.min(rows as usize - from))).collect();
        for keep in [None, Some(Keep::First), Some(Keep::Last)] {
            let outcome = check(&batches, &[key(0, false, true)], Shape { keep, ..STARVED });
            assert!(outcome.usage.memory <= STARVED.memory + (2 << 20), "{:?}", outcome.usage);
        }
    }
}

#[test]
fn a_row_that_is_larger_than_the_memory() {
    let texts: Vec<String> = (0..40).map(|row| format!("{:03}{}", (row * 7) % 40, "x".repeat(row * 50_000))).collect();
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
    let batch = RecordBatch::try_from_iter([("t", texts)]).expect("a batch");
    let tiny = Shape { memory: 256 << 10, ..STARVED };
    check(std::slice::from_ref(&batch), &[key(0, false, true)], tiny);
    check(&[batch], &[key(0, true, true)], Shape { compression: Compression::Lz4, ..tiny });
}

#[test]
fn nothing_at_all() {
    let none = batches(&[(0, false)], &[0, 0], 1);
    let outcome = sort(&none, &[key(0, false, true)], AMPLE);
    assert!(outcome.batches.is_empty());
    assert_eq!((outcome.usage.written, outcome.left), (0, 0));
}

#[test]
fn too_many_runs_are_merged_early() {
    let batches = batches(&[(5, false), (0, true)], &[8192; 60], 11);
    let keys = [key(0, false, true), key(1, true, false)];
    // Two inputs, each with 8 runs at most.
    let shape = Shape { memory: 1 << 20, inputs: 2, ..STARVED };
    for keep in [None, Some(Keep::Last)] {
        let usage = check(&batches, &keys, Shape { keep, ..shape }).usage;
        assert!(usage.merged_again > 0, "{usage:?}");
        assert!(usage.merged_again < 3 * (usage.written - usage.merged_again), "{usage:?}");
    }
    let usage = check(&batches, &keys, Shape { memory: 8 << 20, ..shape }).usage;
    assert!(usage.written > 0 && usage.merged_again == 0, "{usage:?}");
}

#[test]
fn runs_that_are_short_since_others_hold_the_memory_are_merged_early() {
    let batches = batches(&[(5, false), (0, true)], &[8192; 60], 13);
    let shape = Shape { budget: 400 << 10, memory: 2 << 20, ..STARVED };
    let usage = check(&batches, &[key(0, false, true)], shape).usage;
    assert!(usage.merged_again > 0 && usage.runs > 32, "{usage:?}");
}

#[test]
fn keys_that_differ_only_by_zeros_at_their_end() {
    let endings = ["a\0", "a", "", "\0", "a\0\0", "exactly 12 c", "exactly 12 c\0"];
    let texts: ArrayRef = Arc::new(StringViewArray::from_iter_values((0..300_000).map(|row| endings[row % 7])));
    let batch = RecordBatch::try_from_iter([("t", texts)]).expect("a batch");
    let batches: Vec<RecordBatch> = (0..30).map(|part| batch.slice(part * 10_000, 10_000)).collect();
    for descending in [false, true] {
        for shape in [AMPLE, STARVED, Shape { keep: Some(Keep::First), ..STARVED }] {
            check(&batches, &[key(0, descending, false)], shape);
        }
    }
}

#[test]
fn dictionaries_that_have_more_values_together_than_keys() {
    let values = |batch: i32| (0..120).map(move |row| format!("{:05}", (row * 7_919 + batch * 31) % 10_007));
    let batch = |batch: i32| {
        let texts: DictionaryArray<Int8Type> =
            values(batch).map(Some).collect::<Vec<_>>().iter().map(|text| text.as_deref()).collect();
        let lists = ListArray::new(
            Arc::new(Field::new("item", texts.data_type().clone(), true)),
            OffsetBuffer::from_repeated_length(2, 60),
            Arc::new(texts.clone()),
            None,
        );
        let lists: ArrayRef = arrow::compute::concat(&[&lists, &lists]).expect("of one type");
        RecordBatch::try_from_iter([("t", Arc::new(texts) as ArrayRef), ("l", lists)]).expect("a batch")
    };
    let batches: Vec<RecordBatch> = (0..50).map(batch).collect();
    let mut expected: Vec<String> = (0..50).flat_map(values).collect();
    expected.sort();
    for keys in [&[key(0, false, true)][..], &[key(0, false, true), key(1, true, true)]] {
        let outcome = sort(&batches, keys, Shape { memory: 256 << 10, ..STARVED });
        let texts = outcome.batches.iter().flat_map(|batch| {
            assert_eq!(batch.schema(), batches[0].schema());
            let texts = arrow::compute::cast(batch.column(0), &DataType::Utf8).expect("texts");
            texts.as_string::<i32>().iter().map(|text| text.unwrap_or_default().to_owned()).collect::<Vec<_>>()
        });
        assert!(texts.eq(expected.iter().cloned()));
    }
}

#[test]
fn rows_of_nothing_are_rows() {
    let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Null, false)]));
    let batch = RecordBatch::try_new(schema, vec![Arc::new(NullArray::new(1000))]).expect("a batch");
    check(&[batch], &[key(0, false, true)], AMPLE);
}

/// About 8 MB, in batches.
fn eight_megabytes() -> Vec<RecordBatch> {
    batches(&[(5, false), (0, true), (10, false)], &[8192; 25], 23)
}

#[test]
fn each_byte_is_written_once_and_hardly_more_than_the_data() {
    let lines: ArrayRef =
        Arc::new(StringViewArray::from_iter_values((0..80_000).map(|row| format!("{:099}", row * 7919 % 80_000))));
    let batch = RecordBatch::try_from_iter([("line", lines)]).expect("a batch");
    let batches: Vec<RecordBatch> = (0..10).map(|part| batch.slice(part * 8000, 8000)).collect();
    // With their line ends.
    let data = 80_000 * 100;
    for (compression, share) in [(Compression::None, 1.02), (Compression::Auto, 0.6), (Compression::Lz4, 0.6)] {
        let usage = check(&batches, &[key(0, false, true)], Shape { block: 64 << 10, compression, ..STARVED }).usage;
        assert!(usage.written as f64 <= share * f64::from(data), "{compression:?} {usage:?}");
    }
}

#[test]
fn full_scratch_is_reported_and_another_disk_is_used() {
    let Some(small) = Mount::tmpfs("size=1m") else { return };
    let batches = eight_megabytes();
    let keys = [key(0, false, true)];
    let only = [small.path().to_owned()];
    let error = try_sort(&batches, &keys, STARVED, &only, || {}).err().expect("1 MB is not enough");
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.what().contains(&small.path().display().to_string()), "{error:?}");
    assert!(error.cause_text().is_some_and(|cause| cause.contains("no space left")), "{error:?}");
    assert!(error.hint_text().is_some_and(|hint| hint.contains("--scratch")), "{error:?}");
    assert_eq!(fs_err::read_dir(small.path()).expect("a folder").count(), 0);

    let large = tempfile::tempdir().expect("a folder");
    let both = [small.path().to_owned(), large.path().to_owned()];
    let outcome = try_sort(&batches, &keys, STARVED, &both, || {}).expect("the other disk has room");
    let sorted = concat_batches(&batches[0].schema(), &outcome.batches).expect("one batch");
    assert!(sorted == reference(&batches, &keys, None, usize::MAX));
    assert_eq!(outcome.left, 0);
}

#[test]
fn many_times_the_memory_are_sorted() {
    let batches = batches(&[(6, false), (0, true), (10, false)], &[8192; 80], 29);
    let shape = Shape { memory: 1 << 20, ..STARVED };
    let usage = check(&batches, &[key(1, true, false), key(0, false, true)], shape).usage;
    let once = usage.written - usage.merged_again;
    assert!(once > 30 * shape.memory as u64 && usage.merged_again < 3 * once, "{usage:?}");
    assert!(usage.memory < 2 * shape.memory, "{usage:?}");
}

#[test]
fn sixteen_megabytes_sort_a_gigabyte() {
    const ROWS: u64 = 1_000_000;
    let (letters, mut random) =
        ((0..128 << 10).map(|_| fastrand::alphanumeric()).collect::<String>(), Rng::with_seed(31));
    // The filler of a key, to check that each row is whole.
    let filler = |key: u64| &letters[(key % (64 << 10)) as usize..][..1000];
    let batch_of = |keys: Vec<u64>| {
        let fillers: ArrayRef = Arc::new(StringViewArray::from_iter_values(keys.iter().map(|key| filler(*key))));
        let keys: ArrayRef = Arc::new(UInt64Array::from(keys));
        RecordBatch::try_from_iter([("key", keys), ("filler", fillers)]).expect("a batch")
    };
    let folder = tempfile::tempdir().expect("a folder");
    let memory = 16 << 20;
    let resources = Resources {
        budget: Budget::new(memory),
        memory,
        scratch: vec![folder.path().to_owned()],
        compression: Compression::Auto,
        piece: piece(memory, 1, 1),
        block: 16 << 10,
        extent: None,
        workers: 2,
    };
    let layout = Layout::new(&batch_of(Vec::new()).schema(), &[key(0, false, true)]).expect("a layout");
    let layout = Arc::new(layout);
    let sort = Sort::new(Arc::clone(&layout), None, None, &resources, 1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let mut sum = 0_u64;
    let finished = runtime.block_on(async {
        let mut input = sort.input();
        for _ in 0..ROWS / 1000 {
            let keys: Vec<u64> = (0..1000).map(|_| random.u64(..)).collect();
            sum = keys.iter().fold(sum, |sum, key| sum.wrapping_add(*key));
            input.push(&layout.prepare(&batch_of(keys), &[]).expect("prepared")).await.expect("taken in");
        }
        input.finish().await.expect("sorted")
    });
    let (mut last, mut rows) = (0, 0);
    let _runtime = runtime.enter();
    let mut merge = sort.merge(vec![finished]).expect("a merge");
    while let Some(slice) = merge.next_slice().expect("read") {
        for batch in slice.merge().expect("merged") {
            let fillers = batch.column(1).as_string_view();
            for (row, key) in batch.column(0).as_primitive::<UInt64Type>().values().iter().enumerate() {
                assert!(last <= *key && fillers.value(row) == filler(*key), "row {rows}");
                (last, rows, sum) = (*key, rows + 1, sum.wrapping_sub(*key));
            }
        }
    }
    let usage = sort.usage();
    assert_eq!((rows, sum), (ROWS, 0));
    assert!(usage.written - usage.merged_again >= ROWS * 1000 && usage.memory <= memory + memory / 4, "{usage:?}");
}

#[test]
fn scratch_that_is_full_when_the_merge_begins_is_reported() {
    let Some(small) = Mount::tmpfs("size=16m") else { return };
    let batches = eight_megabytes();
    let fill = || {
        let rest = [0; 1 << 16];
        let mut file = fs_err::File::create(small.path().join("others")).expect("writable");
        while std::io::Write::write(&mut file, &rest).is_ok_and(|written| written > 0) {}
    };
    // Half of it has been written; the merge needs the memory of the rest.
    let shape = Shape { memory: 4 << 20, inputs: 2, ..STARVED };
    let keys = [key(0, false, true)];
    let only = [small.path().to_owned()];
    let error = try_sort(&batches, &keys, shape, &only, fill).err().expect("nothing more can be written");
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.what().contains(&small.path().display().to_string()), "{error:?}");
    assert!(error.cause_text().is_some_and(|cause| cause.contains(" was to be written, after ")), "{error:?}");
    assert_eq!(fs_err::read_dir(small.path()).expect("a folder").count(), 1, "only the file of others");
    let large = tempfile::tempdir().expect("a folder");
    fs_err::remove_file(small.path().join("others")).expect("it is there");
    let both = [small.path().to_owned(), large.path().to_owned()];
    let outcome = try_sort(&batches, &keys, shape, &both, fill).expect("the other disk has room");
    let sorted = concat_batches(&batches[0].schema(), &outcome.batches).expect("one batch");
    assert!(sorted == reference(&batches, &keys, None, usize::MAX));
}

#[test]
fn memory_that_is_a_disk_is_used_first() {
    let Some(memory) = Mount::tmpfs("size=64m") else { return };
    let Some(little) = Mount::tmpfs("size=1m") else { return };
    let disk = tempfile::tempdir().expect("a folder");
    let batches = eight_megabytes();
    let used = |folder: &std::path::Path| {
        let disk = rustix::fs::statvfs(folder).expect("a disk");
        (disk.f_blocks - disk.f_bfree) * disk.f_frsize
    };
    let after = std::cell::Cell::new((0, 0));
    let folders = [disk.path().to_owned(), little.path().to_owned(), memory.path().to_owned()];
    let look = || after.set((used(little.path()), used(memory.path())));
    let outcome = try_sort(&batches, &[key(0, false, true)], STARVED, &folders, look).expect("it is sorted");
    let (little, memory) = after.get();
    // What was in memory until the merge began was written later.
    let seen = little + memory + STARVED.memory as u64;
    assert!(seen >= outcome.usage.written && memory > 4 << 20, "{little}, {memory}: {:?}", outcome.usage);
}

#[test]
fn scratch_that_is_gone_is_reported() {
    let gone = tempfile::tempdir().expect("a folder").path().to_owned();
    let error = try_sort(&eight_megabytes(), &[key(0, false, true)], STARVED, std::slice::from_ref(&gone), || {}).err();
    let error = error.expect("there is no such folder");
    assert!(error.what().contains(&gone.display().to_string()), "{error:?}");
}

#[test]
fn a_folder_that_is_removed_between_the_phases_is_no_matter() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_owned();
    let batches = eight_megabytes();
    let keys = [key(1, true, true)];
    let remove = || fs_err::remove_dir_all(&path).expect("it is empty");
    let outcome =
        try_sort(&batches, &keys, STARVED, std::slice::from_ref(&path), remove).expect("files without names stay");
    let sorted = concat_batches(&batches[0].schema(), &outcome.batches).expect("one batch");
    assert!(sorted == reference(&batches, &keys, None, usize::MAX));
}
