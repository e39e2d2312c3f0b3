//! Tests of Parquet: the conformance suite, pruning that changes nothing, drift between files, and files that are
//! damaged in every byte. The parquet crate's own reader and writer are the reference.

use std::ops::Range;
use std::sync::Mutex;

use arrow::array::{
    Array, ArrayRef, AsArray, Date64Array, DictionaryArray, Float64Array, Int32Array, Int64Array, LargeStringArray,
    ListArray, RecordBatch, StringArray, StringViewArray, Time32SecondArray, TimestampNanosecondArray,
    TimestampSecondArray, UInt64Array,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{cast, concat_batches, filter_record_batch, kernels::cmp};
use arrow::datatypes::{DataType, Field, Int8Type, Int64Type, Schema, TimeUnit};
use bytes::Bytes;
use futures::executor::block_on;
use millstream_core::ErrorKind;
use millstream_core::columns::type_name;
use millstream_core::format::{Bound, Comparison};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::data_type::{DataType as _, Int96, Int96Type};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::conformance::{Columns, InMemory, Outcome, Subject, batch_of, encode, far, flat, nested, read};

fn format(settings: Value) -> ParquetFormat {
    ParquetFormat::new(core_spec::parse(&settings).expect("good settings"))
}

fn columns_of(file: &[u8]) -> Result<SchemaRef> {
    block_on(ParquetFormat::default().columns(Arc::new(InMemory(Bytes::copy_from_slice(file)))))
}

fn request(batch: &RecordBatch) -> ParseRequest {
    ParseRequest { lines: true, ..ParseRequest::all(batch.schema()) }
}

/// Writes with the parquet crate itself.
fn reference_write(batch: &RecordBatch, properties: WriterProperties) -> Vec<u8> {
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).expect("types of parquet");
    writer.write(batch).expect("written");
    writer.into_inner().expect("finished")
}

#[test]
fn conformance() {
    for batch in [flat(), nested(), far()] {
        for compression in ["snappy", "zstd", "gzip", "lz4", "none"] {
            let format: Arc<dyn Format> = Arc::new(format(json!({"compression": compression, "row_group_rows": 3})));
            Subject { format, batch: batch.clone(), bad_record: None, columns: Columns::Named }.check();
        }
    }
}

#[test]
fn lines_are_the_numbers_of_the_rows() {
    let batch = flat();
    let file = encode(&format(json!({"row_group_rows": 3})), &batch.schema(), std::slice::from_ref(&batch), true);
    let outcome = read(&ParquetFormat::default(), &file, &request(&batch)).expect("readable");
    assert_eq!(outcome.lines, (1..=8).collect::<Vec<i64>>());
    let bounds = vec![Bound { column: 0, comparison: Comparison::Greater, value: Arc::new(Int64Array::from(vec![5])) }];
    let outcome = read(&ParquetFormat::default(), &file, &ParseRequest { bounds, ..request(&batch) });
    assert_eq!(outcome.expect("readable").lines, [7, 8], "the numbers of a file do not depend on what is skipped");
}

#[test]
fn the_parquet_crate_reads_what_we_write() {
    for batch in [flat(), nested(), far()] {
        let file = encode(&format(json!({"row_group_rows": 5})), &batch.schema(), std::slice::from_ref(&batch), true);
        let builder = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(file)).expect("a parquet file");
        assert_eq!(builder.metadata().num_row_groups(), 2);
        assert_eq!(
            builder.metadata().file_metadata().created_by(),
            Some(concat!("millstream ", env!("CARGO_PKG_VERSION")))
        );
        let rows: Vec<RecordBatch> = builder.build().expect("readable").map(|rows| rows.expect("readable")).collect();
        let declared = rows[0].schema();
        assert!(!format!("{declared:?}").contains("View"), "{declared:?}");
        let rows = concat_batches(&declared, &rows).expect("one schema");
        for (column, expected) in rows.columns().iter().zip(batch.columns()) {
            assert_eq!(&cast(column, expected.data_type()).expect("the same without views"), expected);
        }
    }
}

#[test]
fn row_groups_end_when_they_are_large() {
    let text = "x".repeat(100_000);
    let many: ArrayRef = Arc::new(StringViewArray::from_iter_values((0..200).map(|n| format!("{n}{text}"))));
    let batch = batch_of(vec![("text", many)]);
    let format = format(json!({"compression": "none"}));
    let mut encoder = format.encoder(batch.schema(), true).expect("types of parquet");
    let mut file = Vec::new();
    let mut waiting = 0;
    for _ in 0..8 {
        let before = file.len();
        encoder.encode(&batch, &mut file).expect("written");
        waiting = if file.len() > before { 0 } else { waiting + 1 };
        assert!(waiting <= 4, "64 MiB are four batches of 20 MB");
    }
    encoder.finish(&mut file).expect("written");
    let outcome = read(&format, &file, &request(&batch)).expect("readable");
    assert_eq!(outcome.rows.num_rows(), 1600);
}

#[test]
fn what_is_held_can_be_given_out_early() {
    let batch = flat();
    let format = ParquetFormat::default();
    let mut encoder = format.encoder(batch.schema(), true).expect("types of parquet");
    let mut file = Vec::new();
    for _ in 0..2 {
        encoder.encode(&batch, &mut file).expect("written");
        assert!(encoder.held() > 0, "the row group is not full");
        encoder.relieve(&mut file).expect("written");
        assert_eq!(encoder.held(), 0);
    }
    encoder.finish(&mut file).expect("finished");
    let builder = ParquetRecordBatchReaderBuilder::try_new(Bytes::copy_from_slice(&file)).expect("a parquet file");
    assert_eq!(builder.metadata().num_row_groups(), 2);
    let outcome = read(&format, &file, &request(&batch)).expect("readable");
    assert_eq!(outcome.rows.num_rows(), 2 * batch.num_rows());
    assert_eq!(outcome.rows.slice(batch.num_rows(), batch.num_rows()), outcome.rows.slice(0, batch.num_rows()));
}

#[test]
fn types_of_other_writers_become_ours() {
    let words: DictionaryArray<Int8Type> = vec![Some("x"), None, Some("y")].into_iter().collect();
    let list = ListArray::from_iter_primitive::<Int64Type, _, _>(vec![Some(vec![Some(1)]), None, Some(vec![])]);
    let batch = RecordBatch::try_new(
        Arc::new(Schema::new(vec![
            Field::new("words", words.data_type().clone(), true),
            Field::new("large", DataType::LargeUtf8, false),
            Field::new("plain", DataType::Utf8, false).with_metadata([("k".to_owned(), "v".to_owned())].into()),
            Field::new("bytes", DataType::FixedSizeBinary(2), false),
            Field::new("list", list.data_type().clone(), true),
            Field::new("nanoseconds", DataType::Timestamp(TimeUnit::Nanosecond, None), false),
        ])),
        vec![
            Arc::new(words),
            Arc::new(LargeStringArray::from(vec!["a", "b", "c"])),
            Arc::new(StringArray::from(vec!["a", "b", "longer than twelve bytes"])),
            Arc::new(
                arrow::array::FixedSizeBinaryArray::try_from_iter([b"ab", b"cd", b"ef"].into_iter()).expect("two"),
            ),
            Arc::new(list),
            Arc::new(TimestampNanosecondArray::from(vec![1, 2, 3])),
        ],
    )
    .expect("columns of one length");
    for properties in [WriterProperties::new(), WriterProperties::builder().set_dictionary_enabled(false).build()] {
        let file = reference_write(&batch, properties);
        let schema = columns_of(&file).expect("columns");
        let types: Vec<String> = schema.fields().iter().map(|field| type_name(field.data_type())).collect();
        assert_eq!(types, ["utf8", "utf8", "utf8", "binary", "list<int64>", "timestamp"]);
        assert!(schema.fields().iter().all(|field| field.is_nullable() && field.metadata().is_empty()));
        assert_eq!(schema.field(0).data_type(), &millstream_core::format::TEXT);
        let rows = read(&ParquetFormat::default(), &file, &ParseRequest::all(schema)).expect("readable").rows;
        let words: Vec<Option<&str>> = rows.column(0).as_string_view().iter().collect();
        assert_eq!(words, [Some("x"), None, Some("y")]);
        assert_eq!(rows.column(1).as_string_view().value(2), "c");
        assert_eq!(rows.column(2).as_string_view().value(2), "longer than twelve bytes");
        assert_eq!(rows.column(3).as_binary::<i32>().value(2), b"ef");
        assert_eq!(rows.column(5).as_primitive::<arrow::datatypes::TimestampNanosecondType>().values(), &[1, 2, 3]);
    }
}

#[test]
fn old_timestamps_of_96_bits_are_read() {
    let schema = Arc::new(parse_message_type("message m { required int96 at; }").expect("a schema"));
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).expect("a writer");
    let mut group = writer.next_row_group().expect("a group");
    let mut column = group.next_column().expect("a column").expect("a column");
    let mut late = Int96::new();
    // Noon of Julian day 2,440,588 + 3,000,000: the year 10183, beyond what 64 bits of nanoseconds hold.
    late.set_data((43_200_u64 * 1_000_000_000) as u32, ((43_200_u64 * 1_000_000_000) >> 32) as u32, 5_440_588);
    let mut epoch = Int96::new();
    epoch.set_data(1000, 0, 2_440_588);
    column.typed::<Int96Type>().write_batch(&[epoch, late], None, None).expect("written");
    column.close().expect("closed");
    group.close().expect("closed");
    let file = writer.into_inner().expect("finished");
    assert_eq!(Int96Type::get_physical_type(), parquet::basic::Type::INT96);
    let schema = columns_of(&file).expect("columns");
    assert_eq!(schema.field(0).data_type(), &DataType::Timestamp(TimeUnit::Microsecond, None));
    let rows = read(&ParquetFormat::default(), &file, &ParseRequest::all(schema)).expect("readable").rows;
    let values = rows.column(0).as_primitive::<arrow::datatypes::TimestampMicrosecondType>().values().to_vec();
    assert_eq!(values, [1, (3_000_000 * 86_400 + 43_200) * 1_000_000]);
}

fn file_of(columns: Vec<(&str, ArrayRef)>) -> Vec<u8> {
    let batch = batch_of(columns);
    encode(&ParquetFormat::default(), &batch.schema(), std::slice::from_ref(&batch), true)
}

#[test]
fn files_whose_types_differ_are_widened_or_refused() {
    let first =
        file_of(vec![("id", Arc::new(Int32Array::from(vec![1, 2]))), ("gone", Arc::new(Int64Array::from(vec![1, 2])))]);
    let second = file_of(vec![
        ("new", Arc::new(StringArray::from(vec!["a"]))),
        ("id", Arc::new(Int64Array::from(vec![1_i64 << 40]))),
    ]);
    let format = ParquetFormat::default();
    let files: Vec<(String, SchemaRef)> = [("first", &first), ("second", &second)]
        .map(|(name, file)| (name.to_owned(), columns_of(file).expect("columns")))
        .into();
    let schema = format.merge(&files, OnDrift::Widen).expect("merged");
    let shown: Vec<String> =
        schema.fields().iter().map(|f| format!("{} {}", f.name(), type_name(f.data_type()))).collect();
    assert_eq!(shown, ["id int64", "gone int64", "new utf8"]);
    let widened = |file: &[u8]| {
        let request = ParseRequest { on_drift: OnDrift::Widen, ..ParseRequest::all(Arc::clone(&schema)) };
        read(&format, file, &request).expect("readable").rows
    };
    assert_eq!(widened(&first).column(0).as_primitive::<Int64Type>().values(), &[1, 2]);
    assert_eq!(widened(&first).column(2).null_count(), 2);
    assert_eq!(widened(&second).column(0).as_primitive::<Int64Type>().values(), &[1 << 40]);
    assert_eq!(widened(&second).column(1).null_count(), 1);

    let strict = ParseRequest { on_drift: OnDrift::Null, ..ParseRequest::all(Arc::clone(&schema)) };
    let error = read(&format, &first, &strict).expect_err("another type");
    assert_eq!(error.to_string(), "column id: the column is int32, and int64 in the source");
    assert_eq!(error.hint_text(), Some("set `on_drift: widen` to read both as the wider type"));
    let error = format.merge(&files, OnDrift::Fail).expect_err("other columns");
    assert!(error.to_string().starts_with("second: the file lacks the column gone"), "{error}");
}

/// A file that counts the bytes that are read.
#[derive(Debug)]
struct Counted {
    bytes: Bytes,
    requests: Mutex<Vec<Range<u64>>>,
}

#[async_trait]
impl ReadAt for Counted {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    async fn read_at(&self, range: Range<u64>) -> Result<Bytes> {
        self.requests.lock().expect("no panic").push(range.clone());
        Ok(self.bytes.slice(range.start as usize..range.end as usize))
    }
}

#[test]
fn only_what_is_needed_is_read() {
    let rows = 100_000_i64;
    let scattered = |n: i64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64);
    let batch = batch_of(vec![
        ("id", Arc::new(Int64Array::from_iter_values(0..rows))),
        ("noise", Arc::new(Int64Array::from_iter_values((0..rows).map(scattered)))),
    ]);
    let settings = json!({"row_group_rows": 10_000, "compression": "none"});
    let file = Bytes::from(encode(&format(settings), &batch.schema(), std::slice::from_ref(&batch), true));
    let read_bytes = |request: ParseRequest| {
        let counted = Arc::new(Counted { bytes: file.clone(), requests: Mutex::default() });
        let rows = block_on(futures::StreamExt::collect::<Vec<_>>(
            ParquetFormat::default().read(Arc::clone(&counted) as Arc<dyn ReadAt>, &request),
        ));
        let rows: usize =
            rows.into_iter().flat_map(|parsed| parsed.expect("readable").rows).map(|rows| rows.batch.num_rows()).sum();
        let requests = counted.requests.lock().expect("no panic").clone();
        (rows, requests.iter().map(|range| range.end - range.start).sum::<u64>())
    };
    let all = request(&batch);
    let (everything, all_bytes) = read_bytes(all.clone());
    assert_eq!(everything, 100_000);
    assert!(all_bytes >= file.len() as u64 / 2);
    let (counted, count_bytes) = read_bytes(ParseRequest { projection: Vec::new(), ..all.clone() });
    assert_eq!(counted, 100_000);
    assert!(count_bytes <= 64 << 10, "counting reads the directory alone: {count_bytes}");
    let value: ArrayRef = Arc::new(Int64Array::from(vec![42_000]));
    let bounds = vec![Bound { column: 0, comparison: Comparison::Equal, value }];
    let (kept, kept_bytes) = read_bytes(ParseRequest { bounds, ..all });
    assert_eq!(kept, 10_000);
    assert!(kept_bytes < all_bytes / 5, "{kept_bytes} of {all_bytes}");
}

/// The rows of `outcome` that meet all bounds, by arrow's own comparison.
fn matching(outcome: &Outcome, bounds: &[Bound]) -> Vec<i64> {
    let mut rows = outcome.rows.clone();
    for bound in bounds {
        let column = rows.column(bound.column);
        let value = arrow::array::Scalar::new(Arc::clone(&bound.value));
        let mask = match bound.comparison {
            Comparison::Equal => cmp::eq(column, &value),
            Comparison::Less => cmp::lt(column, &value),
            Comparison::LessOrEqual => cmp::lt_eq(column, &value),
            Comparison::Greater => cmp::gt(column, &value),
            Comparison::GreaterOrEqual => cmp::gt_eq(column, &value),
        };
        rows = filter_record_batch(&rows, &mask.expect("types of one kind")).expect("a mask of its length");
    }
    rows.column(0).as_primitive::<Int64Type>().values().to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Skipping row groups never changes which matching rows come out, and what comes out is what the parquet crate
    /// reads.
    #[test]
    fn pruning_changes_nothing(
        values in prop::collection::vec(
            (
                prop::option::of(-3..3_i64),
                prop::option::of(prop::sample::select(vec![f64::NAN, -f64::NAN, f64::INFINITY, -0.0, 0.0, 1.5, -2.0])),
                prop::option::of(prop::sample::select(vec!["", "a", "ab", "é", "zz", "a longer text than a view"])),
                prop::option::of(any::<u64>()),
            ),
            0..40,
        ),
        bounds in prop::collection::vec((1..5_usize, 0..5_usize, any::<prop::sample::Index>()), 0..3),
        rows in 1..9_u32,
        statistics in prop::sample::select(vec![
            EnabledStatistics::Chunk, EnabledStatistics::Page, EnabledStatistics::None,
        ]),
    ) {
        let batch = batch_of(vec![
            ("row", Arc::new(Int64Array::from_iter_values(0..values.len() as i64))),
            ("n", Arc::new(Int64Array::from_iter(values.iter().map(|value| value.0)))),
            ("x", Arc::new(Float64Array::from_iter(values.iter().map(|value| value.1)))),
            ("text", Arc::new(StringViewArray::from_iter(values.iter().map(|value| value.2)))),
            ("u", Arc::new(UInt64Array::from_iter(values.iter().map(|value| value.3)))),
        ]);
        let properties = WriterProperties::builder()
            .set_max_row_group_row_count(Some(rows as usize))
            .set_statistics_enabled(statistics)
            .set_statistics_truncate_length(Some(1))
            .build();
        let file = reference_write(&batch, properties);
        let bounds: Vec<Bound> = bounds
            .into_iter()
            .filter(|_| !values.is_empty())
            .map(|(column, comparison, row)| Bound {
                column,
                comparison: [
                    Comparison::Equal,
                    Comparison::Less,
                    Comparison::LessOrEqual,
                    Comparison::Greater,
                    Comparison::GreaterOrEqual,
                ][comparison],
                value: batch.column(column).slice(row.index(values.len()), 1),
            })
            .filter(|bound| bound.value.null_count() == 0)
            .collect();
        let format = ParquetFormat::default();
        let whole = read(&format, &file, &request(&batch)).expect("readable");
        prop_assert_eq!(&whole.rows, &batch);
        let pruned = ParseRequest { bounds: bounds.clone(), ..request(&batch) };
        let pruned = read(&format, &file, &pruned).expect("readable");
        prop_assert_eq!(matching(&pruned, &bounds), matching(&whole, &bounds));
    }
}

#[test]
fn what_is_no_parquet_file_is_reported() {
    let good = file_of(vec![("id", Arc::new(Int64Array::from(vec![1, 2, 3])))]);
    let mut long_directory = good.clone();
    let at = good.len() - 8;
    long_directory[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut encrypted = good.clone();
    encrypted.truncate(good.len() - 4);
    encrypted.extend_from_slice(b"PARE");
    let size = good.len();
    let cases: [(&[u8], String); 6] = [
        (b"", "not a parquet file: it is empty".to_owned()),
        (b"PAR1PAR1", "not a parquet file: it has only 8 bytes".to_owned()),
        (b"id,name\n1,a\n2,b\n", "byte 12: not a parquet file: it does not end with PAR1".to_owned()),
        (&good[..size - 1], format!("byte {}: not a parquet file: it does not end with PAR1", size - 5)),
        (
            &long_directory,
            format!(
                "byte {at}: damaged parquet file: its directory would have 4294967295 bytes, and the file has {size}"
            ),
        ),
        (&encrypted, "the parquet file is encrypted".to_owned()),
    ];
    for (file, expected) in cases {
        let error = columns_of(file).expect_err("no parquet file");
        assert_eq!(error.to_string(), expected);
        assert!(error.hint_text().is_some());
    }
}

#[test]
fn a_fault_of_the_place_comes_through_as_it_was() {
    #[derive(Debug)]
    struct Failing(Bytes);

    #[async_trait]
    impl ReadAt for Failing {
        fn size(&self) -> u64 {
            self.0.len() as u64
        }

        async fn read_at(&self, range: Range<u64>) -> Result<Bytes> {
            if range.end < self.size() {
                return Err(Error::transient("the connection was closed"));
            }
            Ok(self.0.slice(range.start as usize..))
        }
    }

    let batch = batch_of(vec![("id", Arc::new(Int64Array::from_iter_values(0..100_000)))]);
    let file = Bytes::from(encode(
        &format(json!({"compression": "none"})),
        &batch.schema(),
        std::slice::from_ref(&batch),
        true,
    ));
    let stream = ParquetFormat::default().read(Arc::new(Failing(file)), &request(&batch));
    let rows: Vec<Result<Parsed>> = block_on(futures::StreamExt::collect(stream));
    assert_eq!(rows.len(), 1);
    let error = rows[0].as_ref().expect_err("the connection was closed");
    assert_eq!((error.kind(), error.what()), (ErrorKind::Transient, "the connection was closed"));
}

/// Every byte of a file with each of several values: an error or rows, never a panic, and never a wrong number of rows.
#[test]
fn damaged_files_are_errors() {
    let file = file_of(vec![
        ("id", Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]))),
        ("text", Arc::new(StringViewArray::from(vec![Some("a"), Some("a longer text than a view"), None]))),
        ("list", {
            let lists = vec![Some(vec![Some(1), None]), None, Some(vec![])];
            Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists))
        }),
    ]);
    let all = ParseRequest::all(columns_of(&file).expect("columns"));
    for at in 0..file.len() {
        for value in [0, 1, 0x7f, 0xff, file[at].wrapping_add(1), file[at] ^ 0x80] {
            let mut damaged = file.clone();
            damaged[at] = value;
            if let Ok(outcome) = read(&ParquetFormat::default(), &damaged, &all) {
                assert_eq!(outcome.rows.num_rows(), 3, "byte {at} as {value}");
            }
        }
    }
    for cut in 0..file.len() {
        assert!(read(&ParquetFormat::default(), &file[..cut], &all).is_err(), "cut at {cut}");
    }
}

/// Most readers know nothing of the types that Arrow had: what the file itself does not say is a whole number to them.
#[test]
fn times_of_all_units_are_times_to_other_readers() {
    let seconds: ArrayRef = Arc::new(TimestampSecondArray::from(vec![Some(1_704_103_200), None]).with_timezone("UTC"));
    let list = ListArray::new(
        Arc::new(Field::new("item", seconds.data_type().clone(), true)),
        OffsetBuffer::from_lengths([2, 0]),
        Arc::clone(&seconds),
        None,
    );
    let columns: [(&str, ArrayRef); 4] = [
        ("seconds", seconds),
        ("time", Arc::new(Time32SecondArray::from(vec![Some(3_723), None]))),
        ("day", Arc::new(Date64Array::from(vec![Some(86_400_000 * 19_000), None]))),
        ("list", Arc::new(list)),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true)));
    let batch = batch.expect("a batch");
    let file = encode(&format(json!({})), &batch.schema(), std::slice::from_ref(&batch), true);
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let builder = ParquetRecordBatchReaderBuilder::try_new_with_options(Bytes::from(file), options);
    let rows = builder.expect("a parquet file").build().expect("readable").next().expect("rows").expect("readable");
    for (column, expected) in rows.columns().iter().zip(batch.columns()) {
        assert!(!column.data_type().is_integer(), "{}", column.data_type());
        assert_eq!(&cast(column, expected.data_type()).expect("the same times"), expected);
    }
    for (column, cause) in [
        (Arc::new(Date64Array::from(vec![1])) as ArrayRef, "its dates have times of day"),
        (Arc::new(TimestampSecondArray::from(vec![i64::MAX])), "Overflow"),
    ] {
        let batch = RecordBatch::try_from_iter([("t", column)]).expect("a batch");
        let mut encoder = format(json!({})).encoder(batch.schema(), true).expect("an encoder");
        let error = encoder.encode(&batch, &mut Vec::new()).expect_err("it would be another time");
        assert!(error.cause_text().is_some_and(|text| text.contains(cause)), "{error:?}");
    }
}

#[test]
fn types_without_a_form_are_refused_before_the_first_row() {
    let union = DataType::Union(
        arrow::datatypes::UnionFields::from_fields([Field::new("a", DataType::Int64, true)]),
        arrow::datatypes::UnionMode::Sparse,
    );
    let schema = Arc::new(Schema::new(vec![Field::new("either", union, true)]));
    let error = format(json!({})).encoder(schema, true).err().expect("no form for unions");
    assert_eq!(error.kind(), ErrorKind::Job);
}

#[test]
fn settings_have_faults() {
    let faults = (ENTRY.build)(&json!({"row_group_rows": 0})).expect_err("a fault");
    assert_eq!(faults[0].path, ["row_group_rows"]);
    assert!((ENTRY.build)(&json!({"compression": "zstd"})).is_ok());
}
