//! What is found in memory and in scratch, against a look at every pair of rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Date32Array, Float64Array, Int32Array, Int64Array, ListArray, RecordBatch, StringArray,
    StringViewArray, TimestampNanosecondArray, UInt64Array,
};
use arrow::compute::{SortColumn, SortOptions, concat_batches, lexsort_to_indices, take_record_batch};
use arrow::datatypes::{DataType, Field, Int32Type, Schema, TimeUnit};
use datafusion::physical_expr::expressions::Column;
use millstream_core::transform::{Duplicate, Lookup, Match, MatchWith, Miss, Taken};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::{Just, any};
use proptest::test_runner::{Config, TestRunner};

use super::blocks::BlockWriter;
use super::compare::{Scale, common, key, scale};
use super::digest::{Digest, of_batch};
use super::found::{Found, Probe};
use super::reference::{add_hashes, order, with_hashes};
use super::shape::{Projection, Shape};
use super::table::Table;

/// A row of a reference: its keys, the range, what it is sorted by, and its name.
type Row = (Option<i32>, Option<u8>, Option<i32>, Option<i32>, i64);

/// A row that is looked up: its keys and its value.
type Asked = (Option<i64>, Option<u8>, Option<i32>);

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))
        .expect("columns of one length")
}

/// Long enough not to be a part of a view.
fn word(letter: Option<u8>) -> Option<String> {
    letter.map(|letter| format!("a word that is long and ends with {letter}"))
}

fn reference(rows: &[Row]) -> RecordBatch {
    let column = |of: fn(&Row) -> Option<i32>| rows.iter().map(of).collect::<Vec<_>>();
    let names = rows.iter().enumerate().map(|(at, _)| format!("name {at}"));
    batch(vec![
        ("id", Arc::new(Int32Array::from(column(|row| row.0)))),
        ("word", Arc::new(rows.iter().map(|row| word(row.1)).collect::<StringArray>())),
        ("begins", Arc::new(Date32Array::from(column(|row| row.2)))),
        ("ends", Arc::new(Date32Array::from(column(|row| row.3)))),
        ("place", Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.4)))),
        ("name", Arc::new(StringViewArray::from_iter_values(names))),
    ])
}

fn asked(rows: &[Asked]) -> RecordBatch {
    batch(vec![
        ("customer", Arc::new(rows.iter().map(|row| row.0).collect::<Int64Array>())),
        ("text", Arc::new(rows.iter().map(|row| word(row.1)).collect::<StringViewArray>())),
        ("day", Arc::new(rows.iter().map(|row| row.2).collect::<Date32Array>())),
    ])
}

fn lookup(keys: usize, ranged: bool, duplicate: Duplicate) -> Lookup {
    let equal = [("customer", "id"), ("text", "word")]
        .map(|(column, other)| Match { column: column.into(), with: MatchWith::Equal(other.into()) });
    let range = Match {
        column: "day".into(),
        with: MatchWith::Range { from: Some("begins".into()), before: Some("ends".into()) },
    };
    Lookup {
        on: equal.into_iter().take(keys).chain(ranged.then_some(range)).collect(),
        take: vec![Taken { name: "found".into(), column: "name".into() }],
        miss: Miss::Null,
        duplicate,
        order_by: Vec::new(),
    }
}

/// The shape of a lookup, and the columns of the reference that it needs.
fn shaped(lookup: &Lookup, asked: &RecordBatch, reference: &RecordBatch) -> (Shape, RecordBatch) {
    let (asked, schema) = (asked.schema(), reference.schema());
    let (mut shape, Projection(mut columns)) = Shape::new(lookup, "l", ("facts", &asked), ("customers", &schema))
        .unwrap_or_else(|faults| panic!("{faults:?}"));
    if lookup.duplicate == Duplicate::First {
        shape.order = vec![(columns.len(), SortOptions { descending: true, nulls_first: true })];
        columns.push(schema.index_of("place").expect("a column"));
    }
    (shape, reference.project(&columns).expect("columns"))
}

fn in_memory(shape: &Shape, reference: &RecordBatch) -> Table {
    Table::new(shape, reference).expect("a table")
}

fn in_scratch(shape: &Shape, reference: &RecordBatch) -> super::blocks::Blocks {
    let hashed = add_hashes(&with_hashes(&reference.schema(), shape), shape, reference).expect("hashes");
    let columns: Vec<SortColumn> = order(shape, &reference.schema())
        .iter()
        .map(|by| {
            let column = by.expr.downcast_ref::<Column>().expect("a column");
            SortColumn { values: Arc::clone(hashed.column(column.index())), options: Some(by.options) }
        })
        .collect();
    let order = lexsort_to_indices(&columns, None).expect("an order");
    let sorted = take_record_batch(&hashed, &order).expect("rows");
    let folder = tempfile::tempdir().expect("a folder");
    let mut writer =
        BlockWriter::new(folder.path(), shape, &RecordBatch::new_empty(reference.schema())).expect("a file");
    for start in (0..sorted.num_rows()).step_by(7) {
        writer.add(shape, &sorted.slice(start, 7.min(sorted.num_rows() - start))).expect("written");
    }
    writer.end().expect("written").0
}

/// The names that each row finds.
fn names(count: usize, find: impl Fn(usize) -> (Found, usize)) -> Vec<Vec<String>> {
    let mut names = vec![Vec::new(); count];
    let mut start = 0;
    while start < count {
        let (found, next) = find(start);
        assert!(next > start && found.rows.is_sorted());
        for (row, position) in found.rows.iter().zip(&found.positions) {
            names[*row as usize].push(found.columns[0].as_string_view().value(*position as usize).to_owned());
        }
        start = next;
    }
    names.iter_mut().for_each(|names| names.sort());
    names
}

/// The rows of the reference that match, by a look at each.
fn matching(keys: usize, ranged: bool, asked: &Asked, rows: &[Row]) -> Vec<usize> {
    let fits = |row: &Row| {
        let id = keys < 1 || matches!((asked.0, row.0), (Some(one), Some(other)) if one == i64::from(other));
        let word = keys < 2 || matches!((asked.1, row.1), (Some(one), Some(other)) if one == other);
        let in_range = !ranged
            || asked
                .2
                .is_some_and(|day| row.2.is_none_or(|from| from <= day) && row.3.is_none_or(|before| day < before));
        id && word && in_range
    };
    rows.iter().enumerate().filter(|(_, row)| fits(row)).map(|(at, _)| at).collect()
}

#[test]
fn what_is_found_is_what_matches() {
    let row = (option::of(0..6), option::of(0..3_u8), option::of(0..20), option::of(0..20), 0..3_i64);
    let asks = (option::of(0..7_i64), option::of(0..3_u8), option::of(-1..21));
    let duplicates = [Duplicate::Fail, Duplicate::First, Duplicate::All].map(Just);
    let [fail, first, all] = duplicates;
    let cases = (vec(row, 0..80), vec(asks, 1..60), 0..3_usize, any::<bool>(), proptest::prop_oneof![fail, first, all]);
    let mut runner = TestRunner::new(Config { cases: 600, failure_persistence: None, ..Config::default() });
    let result = runner.run(&cases, |(rows, asks, keys, ranged, duplicate)| {
        if keys == 0 && !ranged {
            return Ok(());
        }
        let (reference, asked) = (reference(&rows), asked(&asks));
        let (shape, reference) = shaped(&lookup(keys, ranged, duplicate), &asked, &reference);
        let columns: Vec<usize> = shape.probed().map(|name| asked.schema().index_of(name).expect("a column")).collect();
        let probe = Probe::new(&shape, &asked, &columns).expect("keys");
        let (table, blocks) = (in_memory(&shape, &reference), in_scratch(&shape, &reference));
        let count = asks.len();
        let memory = names(count, |start| table.find(&probe, start..count).expect("found"));
        let scratch = names(count, |start| blocks.find(&probe, start..count).expect("found"));
        for (at, one) in asks.iter().enumerate() {
            let all = matching(keys, ranged, one, &rows);
            let mut expected: Vec<String> = all.iter().map(|row| format!("name {row}")).collect();
            expected.sort();
            for found in [&memory[at], &scratch[at]] {
                match duplicate {
                    Duplicate::All => assert_eq!(*found, expected, "{one:?}"),
                    Duplicate::Fail => {
                        assert!(found.len() >= expected.len().min(2), "{one:?}: {found:?} of {expected:?}");
                        assert!(found.iter().all(|name| expected.contains(name)));
                    }
                    Duplicate::First => {
                        assert_eq!(found.len(), expected.len().min(1), "{one:?}");
                        let place = |name: &String| rows[name["name ".len()..].parse::<usize>().expect("a number")].4;
                        let best = all.iter().map(|row| rows[*row].4).max();
                        assert_eq!(found.first().map(place), best, "{one:?}: {found:?} of {expected:?}");
                    }
                }
            }
            if duplicate == Duplicate::First {
                assert_eq!(memory[at], scratch[at], "of equal ones both take the same");
            }
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn of_equal_rows_the_first_does_not_depend_on_how_they_come() {
    let rows: Vec<Row> = (0..40).map(|at| (Some(at % 4), None, None, None, 0)).collect();
    let asked = asked(&(0..4).map(|id| (Some(id), None, None)).collect::<Vec<Asked>>());
    let batch = reference(&rows);
    let backwards = UInt64Array::from_iter_values((0..40).rev());
    let found = [batch.clone(), take_record_batch(&batch, &backwards).expect("rows")].map(|reference| {
        let (shape, reference) = shaped(&lookup(1, false, Duplicate::First), &asked, &reference);
        let probe = Probe::new(&shape, &asked, &[0]).expect("keys");
        let table = in_memory(&shape, &reference);
        names(4, |start| table.find(&probe, start..4).expect("found"))
    });
    assert_eq!(found[0], found[1]);
}

#[test]
fn a_row_with_many_matches_comes_with_all_of_them() {
    let rows: Vec<Row> = (0..5_000).map(|_| (Some(1), None, None, None, 0)).collect();
    let asked = asked(&vec![(Some(1), None, None); 20]);
    let (shape, reference) = shaped(&lookup(1, false, Duplicate::All), &asked, &reference(&rows));
    let probe = Probe::new(&shape, &asked, &[0]).expect("keys");
    let table = in_memory(&shape, &reference);
    let (first, next) = table.find(&probe, 0..20).expect("found");
    assert!(next < 20 && first.rows.len() == next * 5_000, "{next}");
    let counts: Vec<usize> =
        names(20, |start| table.find(&probe, start..20).expect("found")).iter().map(Vec::len).collect();
    assert_eq!(counts, [5_000; 20]);
}

#[test]
fn types_have_a_common_type_only_without_loss() {
    use DataType::{
        Boolean, Date32, Decimal128, Decimal256, Float32, Float64, Int8, Int32, Int64, Time32, Timestamp, UInt8,
        UInt64, Utf8, Utf8View,
    };
    let zone = |unit| Timestamp(unit, Some("UTC".into()));
    for (one, other, expected) in [
        (Int32, Int64, Some(Int64)),
        (UInt64, Int8, Some(Int64)),
        (UInt64, UInt8, Some(UInt64)),
        (Utf8, Utf8View, Some(Utf8View)),
        (Utf8, Int64, None),
        (Int64, Float64, Some(Int64)),
        (UInt64, Float32, Some(UInt64)),
        (Int32, Float32, Some(Float64)),
        (Decimal128(10, 2), Int64, Some(Decimal128(38, 2))),
        (Decimal128(38, 2), Decimal128(10, 9), Some(Decimal256(76, 9))),
        (Decimal256(76, 0), Decimal256(76, 76), None),
        (Decimal128(10, 2), Float64, None),
        (Date32, Timestamp(TimeUnit::Second, None), Some(Timestamp(TimeUnit::Microsecond, None))),
        (Date32, zone(TimeUnit::Second), None),
        (zone(TimeUnit::Second), zone(TimeUnit::Nanosecond), Some(zone(TimeUnit::Nanosecond))),
        (Timestamp(TimeUnit::Second, None), zone(TimeUnit::Second), None),
        (Time32(TimeUnit::Second), Time32(TimeUnit::Millisecond), Some(DataType::Time64(TimeUnit::Nanosecond))),
        (Boolean, Boolean, Some(Boolean)),
        (Boolean, Int8, None),
        (DataType::Null, Utf8, Some(Utf8View)),
        (DataType::Dictionary(Box::new(Int32), Box::new(Utf8)), Utf8, Some(Utf8View)),
    ] {
        assert_eq!(common(&one, &other), expected, "{one} and {other}");
        if !matches!(one, Timestamp(..)) {
            assert_eq!(common(&other, &one), expected, "{other} and {one}");
        }
    }
}

#[test]
fn what_a_type_cannot_hold_matches_nothing() {
    let longs: ArrayRef = Arc::new(UInt64Array::from(vec![7, u64::MAX]));
    let keys = key(&longs, &DataType::Int64).expect("a cast");
    assert!(keys.is_valid(0) && keys.is_null(1));
    let far: ArrayRef = Arc::new(Date32Array::from(vec![0, 2_932_896]));
    let keys = key(&far, &DataType::Timestamp(TimeUnit::Nanosecond, None)).expect("a cast");
    assert!(keys.is_valid(0) && keys.is_null(1), "no nanosecond is in the year 9999");
    let halves: ArrayRef = Arc::new(Float64Array::from(vec![2.0, 2.5, 1e30, f64::NAN]));
    let keys = key(&halves, &DataType::Int64).expect("a cast");
    assert!(keys.is_valid(0) && (1..4).all(|at| keys.is_null(at)));
    let zeros: ArrayRef = Arc::new(Float64Array::from(vec![0.0, -0.0]));
    let keys = key(&zeros, &DataType::Float64).expect("doubles");
    let bits: Vec<u64> =
        keys.as_primitive::<arrow::datatypes::Float64Type>().values().iter().map(|zero| zero.to_bits()).collect();
    assert_eq!(bits, [0, 0]);
}

#[test]
fn ranges_have_one_scale() {
    let nanosecond = DataType::Timestamp(TimeUnit::Nanosecond, None);
    let day = scale(&[&DataType::Date32, &nanosecond, &DataType::Null]).expect("both are times");
    assert_eq!(day, Scale::Nanoseconds);
    let far: ArrayRef = Arc::new(Date32Array::from(vec![Some(1), Some(2_932_896), None]));
    let (numbers, nulls) = day.numbers(&far).expect("numbers");
    assert_eq!(numbers[..2], [86_400_000_000_000, 2_932_896 * 86_400_000_000_000]);
    assert!(nulls.expect("one is null").is_null(2));
    let times: ArrayRef = Arc::new(TimestampNanosecondArray::from(vec![86_400_000_000_000]));
    assert_eq!(day.numbers(&times).expect("numbers").0, [86_400_000_000_000]);
    let reals: ArrayRef = Arc::new(Float64Array::from(vec![f64::NEG_INFINITY, -1.5, -0.0, 0.0, 1.5, f64::NAN]));
    let (numbers, _) = Scale::Real.numbers(&reals).expect("numbers");
    assert!(numbers.is_sorted() && numbers[2] == numbers[3] && numbers[4] < numbers[5], "{numbers:?}");
    assert_eq!(scale(&[&DataType::Int64, &DataType::Decimal128(10, 3)]), Some(Scale::Exact(3)));
    assert_eq!(scale(&[&DataType::Utf8, &DataType::Utf8]), None);
    assert_eq!(scale(&[&DataType::Decimal128(9, 2), &DataType::Float64]), None);
    for (value, bounds) in [(DataType::Int64, DataType::Float64), (DataType::Float64, DataType::Int64)] {
        assert_eq!(scale(&[&value, &bounds, &bounds]), Some(Scale::Halves));
        assert_eq!(scale(&[&value, &bounds, &value]), None);
    }
    let reals = [f64::NEG_INFINITY, -1.5, -1.0, -0.5, -0.0, 0.0, 0.5, 2.0, 9e18, f64::INFINITY, f64::NAN];
    let halves = Scale::Halves.numbers(&(Arc::new(Float64Array::from(reals.to_vec())) as ArrayRef)).expect("numbers").0;
    let longs = [i64::MIN, -2, -1, 0, 1, 2, i64::MAX];
    let doubled = Scale::Halves.numbers(&(Arc::new(Int64Array::from(longs.to_vec())) as ArrayRef)).expect("numbers").0;
    for (real, half) in reals.into_iter().zip(halves).filter(|(real, _)| !real.is_nan() && real.abs() < 1e15) {
        for (long, double) in longs.into_iter().zip(&doubled).filter(|(long, _)| long.abs_diff(0) < 1 << 50) {
            let expected = (long as f64).partial_cmp(&real);
            assert!(expected.is_some_and(|order| order.is_lt() == (*double < half)), "{long} and {real}");
            assert!(expected.is_some_and(|order| order.is_le() == (*double <= half)), "{long} and {real}");
        }
    }
}

/// Digests as they are stored in ledgers. If this fails, loads that were begun before cannot be resumed.
#[test]
fn digests_stay() {
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1), None]), Some(vec![]), None]);
    let all = batch(vec![
        ("number", Arc::new(Int32Array::from(vec![Some(1), None, Some(-3)]))),
        ("text", Arc::new(StringArray::from(vec![Some("a"), Some(""), Some("a text of some length")]))),
        ("day", Arc::new(Date32Array::from(vec![1, 2, 3]))),
        ("real", Arc::new(Float64Array::from(vec![0.5, f64::NAN, -0.0]))),
        ("list", Arc::new(lists)),
    ]);
    assert_eq!(of_batch(&all).expect("hashes"), DIGESTS);
}

const DIGESTS: [u64; 3] = [5_866_428_773_600_249_213, 13_077_688_879_086_282_861, 8_810_548_506_482_054_533];

#[test]
fn a_digest_does_not_depend_on_order_or_layout() {
    let rows: Vec<Row> = (0..50).map(|at| (Some(at), word(Some(1)).map(|_| 1), None, None, i64::from(at))).collect();
    let one = reference(&rows);
    let digest = |batches: &[&RecordBatch]| {
        let mut digest = Digest::default();
        batches.iter().for_each(|batch| digest.add(&of_batch(batch).expect("hashes")));
        digest.hash()
    };
    let backwards = take_record_batch(&one, &UInt64Array::from_iter_values((0..50).rev())).expect("rows");
    assert_eq!(digest(&[&one]), digest(&[&backwards.slice(20, 30), &backwards.slice(0, 20)]));
    let names = arrow::compute::cast(one.column(5), &DataType::Utf8).expect("texts");
    let mut columns = one.columns().to_vec();
    columns[5] = names;
    let fields: Vec<Field> = columns.iter().map(|column| Field::new("c", column.data_type().clone(), true)).collect();
    let plain = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).expect("columns");
    assert_eq!(digest(&[&one]), digest(&[&plain]));
    let mut changed: BTreeMap<u64, &str> = BTreeMap::new();
    changed.insert(digest(&[&one]), "as it is");
    let twice = concat_batches(&one.schema(), [&one, &one.slice(0, 1)]).expect("rows");
    for (batch, what) in [(one.slice(1, 49), "a row is gone"), (twice, "a row is there twice")] {
        assert!(changed.insert(digest(&[&batch]), what).is_none(), "{what}");
    }
    let mut rows = rows;
    rows[7].4 += 1;
    assert!(changed.insert(digest(&[&reference(&rows)]), "a value differs").is_none());
}
