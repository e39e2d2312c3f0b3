//! The conformance suite for all sinks, with its rows, runs and formats. A sink provides itself, and a reader that
//! shares no code with it ([`Subject`]).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{
    Array, ArrayRef, AsArray, Date32Array, Float64Array, Int64Array, RecordBatch, StringViewArray, UInt32Array,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use async_trait::async_trait;
use futures::stream::BoxStream;
use millstream_core::codec::{Codec, Decoder, Encoder};
use millstream_core::format::{
    Format, OnDrift, ParseRequest, Parsed, Parser, RangeFormat, ReadAt, Reading, RowEncoder, Sample, StreamFormat,
};
use millstream_core::sink::{Load, LoadContext, ROUTE, RoutingKind, Sink, SinkParts};
use millstream_core::{Budget, Error, Result, Step, StepKind};
use parquet::arrow::ArrowWriter;
use tempfile::TempDir;

/// A sink under test.
pub(crate) trait Subject: Send + Sync {
    /// The sink, writing into `folder`.
    fn sink(&self, folder: &Path) -> Arc<dyn Sink>;
    /// All rows that another program sees in `folder`, as [`shown`], in any order.
    fn read(&self, folder: &Path) -> Vec<String>;
    /// Everything in `folder`, visible or not.
    fn listing(&self, folder: &Path) -> BTreeSet<PathBuf> {
        listing(folder)
    }
    /// Whether a second run adds to the first.
    fn adds(&self) -> bool {
        false
    }
}

/// The columns of the suite's rows.
pub(crate) fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("name", DataType::Utf8View, true),
        Field::new("amount", DataType::Float64, true),
        Field::new("day", DataType::Date32, true),
    ]))
}

/// Texts that are hard to encode correctly.
const NAMES: [Option<&str>; 7] = [
    Some("plain"),
    None,
    Some(""),
    Some("a \"quote\", a comma"),
    Some("two\nlines"),
    Some("Zürich/../x"),
    Some("__null__"),
];

/// Rows with the numbers of `ids`.
pub(crate) fn rows(ids: std::ops::Range<i64>) -> RecordBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(ids.clone())),
        Arc::new(ids.clone().map(|id| NAMES[id as usize % NAMES.len()]).collect::<StringViewArray>()),
        Arc::new(ids.clone().map(|id| (id % 5 != 0).then_some(id as f64 / 4.0)).collect::<Float64Array>()),
        Arc::new(ids.map(|id| (id % 3 != 0).then_some(id as i32)).collect::<Date32Array>()),
    ];
    RecordBatch::try_new(schema(), columns).expect("columns of one length")
}

/// A row as one text, for comparison.
pub(crate) fn shown(id: i64, name: Option<&str>, amount: Option<f64>, day: Option<&str>) -> String {
    format!("{id} {name:?} {amount:?} {day:?}")
}

/// The rows of a batch as [`shown`].
pub(crate) fn shown_rows(batch: &RecordBatch) -> Vec<String> {
    let names = cast(batch.column(1), &DataType::Utf8View).expect("text");
    let days = cast(batch.column(3), &DataType::Utf8View).expect("dates");
    (0..batch.num_rows())
        .map(|row| {
            let text = |column: &ArrayRef| column.is_valid(row).then(|| column.as_string_view().value(row).to_owned());
            let amounts = batch.column(2).as_primitive::<arrow::datatypes::Float64Type>();
            shown(
                batch.column(0).as_primitive::<Int64Type>().value(row),
                text(&names).as_deref(),
                amounts.is_valid(row).then(|| amounts.value(row)),
                text(&days).as_deref(),
            )
        })
        .collect()
}

fn expected(ids: std::ops::Range<i64>) -> Vec<String> {
    let mut rows = shown_rows(&rows(ids));
    rows.sort();
    rows
}

fn seen(subject: &dyn Subject, folder: &Path) -> Vec<String> {
    let mut rows = subject.read(folder);
    rows.sort();
    rows
}

/// A context of a new run.
pub(crate) fn context(partitions: usize) -> LoadContext {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let run = format!("run{}", RUNS.fetch_add(1, Ordering::Relaxed));
    LoadContext {
        first: run.clone(),
        run,
        sink: "result".to_owned(),
        marker: None,
        notes: None,
        take_over: false,
        worker: None,
        schema: schema(),
        partitions,
        ordered: false,
        io: tokio::runtime::Handle::current(),
        scratch: std::env::temp_dir(),
        programs: Arc::default(),
        budget: Budget::new(64 << 20),
        step: Step::new("result", StepKind::Load, "test"),
        refusals: None,
    }
}

/// `batch` with the route that the engine would append.
pub(crate) fn routed(sink: &dyn Sink, batch: RecordBatch) -> RecordBatch {
    let Some(routing) = sink.routing() else { return batch };
    let ids = batch.column(0).as_primitive::<Int64Type>();
    let route: ArrayRef = match routing.kind {
        RoutingKind::Hash(count) | RoutingKind::Mod(count) => {
            Arc::new(ids.values().iter().map(|id| Some(*id as u32 % count)).collect::<UInt32Array>())
        }
        RoutingKind::Value => cast(batch.column(1), &DataType::Utf8View).expect("text"),
    };
    let mut fields: Vec<Field> = batch.schema().fields().iter().map(|field| field.as_ref().clone()).collect();
    fields.push(Field::new(ROUTE, route.data_type().clone(), true));
    let mut columns = batch.columns().to_vec();
    columns.push(route);
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).expect("columns of one length")
}

/// Writes rows with the numbers below `count` through `partitions` writers at once, in batches of `size`.
pub(crate) async fn write(
    sink: &Arc<dyn Sink>,
    load: &Arc<dyn Load>,
    partitions: usize,
    count: i64,
    size: usize,
) -> Result<()> {
    let mut tasks = Vec::new();
    for partition in 0..partitions {
        let (sink, load) = (Arc::clone(sink), Arc::clone(load));
        tasks.push(tokio::spawn(async move {
            let mut writer = load.writer(partition).await?;
            let starts = (0..count).step_by(size).skip(partition).step_by(partitions);
            for start in starts {
                let batch = rows(start..count.min(start + size as i64));
                writer.write(routed(sink.as_ref(), batch)).await?;
            }
            writer.close().await
        }));
    }
    // All end before the first fault is reported: none may write after an abort.
    let mut ended = Vec::new();
    for task in tasks {
        ended.push(task.await.expect("no writer panics"));
    }
    ended.into_iter().collect()
}

/// A whole run. Returns its summary.
pub(crate) async fn run(sink: &Arc<dyn Sink>, partitions: usize, count: i64, size: usize) -> Result<String> {
    let load = sink.begin(context(partitions)).await?;
    write(sink, &load, partitions, count, size).await?;
    load.prepare().await?;
    load.commit().await
}

/// All files and folders below `folder`, hidden ones too.
pub(crate) fn listing(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in fs_err::read_dir(&at).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path.clone());
            }
            found.insert(path);
        }
    }
    found
}

/// The temporary files below `folder`.
fn temporaries(subject: &dyn Subject, folder: &Path) -> Vec<PathBuf> {
    let below = |path: &PathBuf| path.strip_prefix(folder).expect("below the folder").display().to_string();
    subject.listing(folder).into_iter().filter(|path| below(path).contains(".tmp")).collect()
}

/// Runs the whole suite. `name` finds the subject again in another process.
pub(crate) async fn suite(name: &str, subject: &dyn Subject) {
    what_is_written_is_read(subject).await;
    nothing_is_seen_before_the_commit(subject).await;
    an_abort_leaves_nothing(subject).await;
    a_dropped_load_leaves_nothing(subject).await;
    a_load_without_rows_is_complete(subject).await;
    a_second_run_replaces_or_adds(subject).await;
    a_spent_budget_slows_and_does_not_stop(subject).await;
    a_killed_process_leaves_nothing(name, subject).await;
}

async fn what_is_written_is_read(subject: &dyn Subject) {
    for (partitions, count, size) in [(1, 1000, 300), (4, 20_000, 700), (3, 10, 1), (8, 5, 100)] {
        let folder = TempDir::new().expect("a folder");
        let sink = subject.sink(folder.path());
        sink.check(schema()).await.expect("nothing is wrong yet");
        let load = sink.begin(context(partitions)).await.expect("it begins");
        write(&sink, &load, partitions, count, size).await.expect("it writes");
        load.prepare().await.expect("it prepares");
        let line = load.commit().await.expect("it commits");
        assert!(line.starts_with(&format!("{count} rows")), "{line}");
        assert_eq!(seen(subject, folder.path()), expected(0..count), "{partitions} writers");
        drop(load);
        assert_eq!(temporaries(subject, folder.path()), Vec::<PathBuf>::new());
    }
}

async fn nothing_is_seen_before_the_commit(subject: &dyn Subject) {
    let folder = TempDir::new().expect("a folder");
    let sink = subject.sink(folder.path());
    let context = context(2);
    let step = Arc::clone(&context.step);
    let budget = Arc::clone(&context.budget);
    let load = sink.begin(context).await.expect("it begins");
    write(&sink, &load, 2, 5000, 500).await.expect("it writes");
    assert_eq!(subject.read(folder.path()), [""; 0], "before prepare");
    load.prepare().await.expect("it prepares");
    assert_eq!(subject.read(folder.path()), [""; 0], "before commit");
    load.commit().await.expect("it commits");
    assert_eq!(seen(subject, folder.path()), expected(0..5000));
    let counted = step.snapshot();
    assert!(counted.bytes > 10_000, "bytes are counted: {counted:?}");
    assert!(counted.busy > 0.0, "work is counted: {counted:?}");
    drop(load);
    for _ in 0..6_000 {
        if budget.used() == 0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{} bytes of the budget were not given back", budget.used());
}

async fn an_abort_leaves_nothing(subject: &dyn Subject) {
    let folder = TempDir::new().expect("a folder");
    for prepared in [false, true] {
        let sink = subject.sink(folder.path());
        let load = sink.begin(context(2)).await.expect("it begins");
        write(&sink, &load, 2, 3000, 500).await.expect("it writes");
        if prepared {
            load.prepare().await.expect("it prepares");
        }
        load.abort().await;
        assert_eq!(subject.listing(folder.path()), BTreeSet::new(), "prepared: {prepared}");
    }
    let sink = subject.sink(folder.path());
    run(&sink, 2, 700, 100).await.expect("it runs");
    let before = subject.listing(folder.path());
    let load = sink.begin(context(1)).await.expect("it begins");
    write(&sink, &load, 1, 100, 10).await.expect("it writes");
    load.abort().await;
    assert_eq!(subject.listing(folder.path()), before, "the earlier result stays");
    assert_eq!(seen(subject, folder.path()), expected(0..700));
}

async fn a_dropped_load_leaves_nothing(subject: &dyn Subject) {
    let folder = TempDir::new().expect("a folder");
    let sink = subject.sink(folder.path());
    let load = sink.begin(context(2)).await.expect("it begins");
    write(&sink, &load, 2, 3000, 500).await.expect("it writes");
    drop(load);
    assert_eq!(subject.read(folder.path()), [""; 0]);
    run(&sink, 2, 300, 100).await.expect("the next run goes on");
    assert_eq!(seen(subject, folder.path()), expected(0..300));
}

async fn a_load_without_rows_is_complete(subject: &dyn Subject) {
    let folder = TempDir::new().expect("a folder");
    let sink = subject.sink(folder.path());
    let load = sink.begin(context(2)).await.expect("it begins");
    let mut writer = load.writer(0).await.expect("a writer");
    writer.write(routed(sink.as_ref(), rows(0..0))).await.expect("no rows are fine");
    writer.close().await.expect("it closes");
    load.prepare().await.expect("it prepares");
    let line = load.commit().await.expect("it commits");
    assert!(line.starts_with("0 rows"), "{line}");
    assert_eq!(subject.read(folder.path()), [""; 0]);
    drop((writer, load));
    let other = TempDir::new().expect("a folder");
    let line = run(&subject.sink(other.path()), 2, 0, 1).await.expect("no batches are fine");
    assert!(line.starts_with("0 rows"), "{line}");
    assert_eq!(subject.read(other.path()), [""; 0]);
}

async fn a_second_run_replaces_or_adds(subject: &dyn Subject) {
    let folder = TempDir::new().expect("a folder");
    let sink = subject.sink(folder.path());
    run(&sink, 2, 3000, 100).await.expect("the first run");
    sink.check(schema()).await.expect("a second run is fine");
    run(&sink, 2, 70, 100).await.expect("the second run");
    let mut both = expected(0..70);
    if subject.adds() {
        both.extend(expected(0..3000));
        both.sort();
    }
    assert_eq!(seen(subject, folder.path()), both);
}

async fn a_spent_budget_slows_and_does_not_stop(subject: &dyn Subject) {
    let folder = TempDir::new().expect("a folder");
    let sink = subject.sink(folder.path());
    let context = LoadContext { budget: Budget::new(0), ..context(3) };
    let load = sink.begin(context).await.expect("it begins");
    write(&sink, &load, 3, 9000, 3000).await.expect("it writes");
    load.prepare().await.expect("it prepares");
    load.commit().await.expect("it commits");
    assert_eq!(seen(subject, folder.path()), expected(0..9000));
}

/// Starts this test program again, which writes and dies without cleaning up.
async fn a_killed_process_leaves_nothing(name: &str, subject: &dyn Subject) {
    for point in ["written", "prepared"] {
        let folder = TempDir::new().expect("a folder");
        assert_eq!(subject.read(folder.path()), [""; 0], "nothing yet");
        crash(name, point, folder.path());
        assert_eq!(subject.read(folder.path()), [""; 0], "killed when {point}");
        run(&subject.sink(folder.path()), 2, 300, 100).await.expect("the next run goes on");
        assert_eq!(seen(subject, folder.path()), expected(0..300), "killed when {point}");
        assert_eq!(temporaries(subject, folder.path()), Vec::<PathBuf>::new(), "the next run cleans up");
    }
}

/// Lets another process write with the subject `name` into `folder` and die at `point`.
pub(crate) fn crash(name: &str, point: &str, folder: &Path) {
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program)
        .args(["--exact", "conformance::dies_on_purpose", "--ignored", "--nocapture"])
        .env("MILLSTREAM_CRASH", format!("{name} {point}"))
        .env("MILLSTREAM_CRASH_FOLDER", folder)
        .output()
        .expect("it starts");
    assert!(!output.status.success(), "it should have died: {output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("dying now"), "it died too early: {output:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "other tests start it in a process of its own"]
async fn dies_on_purpose() {
    let Ok(order) = std::env::var("MILLSTREAM_CRASH") else { return };
    let folder = PathBuf::from(std::env::var_os("MILLSTREAM_CRASH_FOLDER").expect("a folder"));
    let (name, point) = order.split_once(' ').expect("a name and a point");
    let subject = crate::file::tests::subject(name)
        .or_else(|| crate::file::bucket_tests::subject(name))
        .or_else(|| crate::sqlite::tests::subject(name));
    #[cfg(all(feature = "mysql", feature = "postgres"))]
    let subject = subject.or_else(|| crate::database::tests::subject(name));
    let subject = subject.expect("a subject of that name");
    let sink = subject.sink(&folder);
    let load = sink.begin(context(2)).await.expect("it begins");
    write(&sink, &load, 2, 20_000, 500).await.expect("it writes");
    if point != "written" {
        load.prepare().await.expect("it prepares");
    }
    if point == "committing" {
        crate::file::tests::half_commit(&folder);
    }
    eprintln!("dying now");
    std::process::abort();
}

/// The parts of a sink for `target`.
pub(crate) fn parts(target: &Path, format: Arc<dyn Format>, gzip: bool) -> SinkParts {
    let codec: Option<Arc<dyn Codec>> = if gzip { Some(Arc::new(Gzip)) } else { None };
    SinkParts { target: target.display().to_string(), format: Some(format), codec, store: None }
}

fn not_in_tests<T>() -> Result<T> {
    Err(Error::internal("the formats of these tests only write"))
}

/// A csv that is written only: every text is quoted, a null is nothing.
#[derive(Debug)]
pub(crate) struct Csv;

impl Format for Csv {
    fn name(&self) -> &'static str {
        "csv"
    }

    fn declared(&self) -> Option<SchemaRef> {
        None
    }

    fn reading(&self) -> Reading<'_> {
        Reading::Stream(self)
    }

    fn splittable(&self) -> bool {
        true
    }

    fn encoder(&self, schema: SchemaRef, begin: bool) -> Result<Box<dyn RowEncoder>> {
        if schema.fields().iter().any(|field| field.data_type().is_nested()) {
            return Err(Error::job("csv has no nested values"));
        }
        Ok(Box::new(CsvEncoder { schema, header: begin }))
    }
}

impl StreamFormat for Csv {
    fn infer(&self, _: &[Sample], _: OnDrift) -> Result<SchemaRef> {
        not_in_tests()
    }

    fn parser(&self, _: &ParseRequest) -> Result<Box<dyn Parser>> {
        not_in_tests()
    }
}

struct CsvEncoder {
    schema: SchemaRef,
    header: bool,
}

impl CsvEncoder {
    fn header(&mut self, output: &mut Vec<u8>) {
        if std::mem::take(&mut self.header) {
            let names: Vec<&str> = self.schema.fields().iter().map(|field| field.name().as_str()).collect();
            output.extend_from_slice(names.join(",").as_bytes());
            output.push(b'\n');
        }
    }
}

impl RowEncoder for CsvEncoder {
    fn encode(&mut self, batch: &RecordBatch, output: &mut Vec<u8>) -> Result<()> {
        assert_eq!(batch.schema().fields().len(), self.schema.fields().len(), "the route is no column");
        self.header(output);
        let options = FormatOptions::new();
        let columns: Vec<ArrayFormatter> = batch
            .columns()
            .iter()
            .map(|c| ArrayFormatter::try_new(c.as_ref(), &options).expect("a flat type"))
            .collect();
        for row in 0..batch.num_rows() {
            for (index, column) in columns.iter().enumerate() {
                if index > 0 {
                    output.push(b',');
                }
                if batch.column(index).is_valid(row) {
                    let text = column.value(row).to_string().replace('"', "\"\"");
                    output.extend_from_slice(format!("\"{text}\"").as_bytes());
                }
            }
            output.push(b'\n');
        }
        Ok(())
    }

    fn finish(&mut self, output: &mut Vec<u8>) -> Result<()> {
        self.header(output);
        Ok(())
    }
}

/// Reads the output of [`Csv`] with the csv crate. That cannot distinguish null from an empty text, so only the text is
/// quoted, and this checks the raw text.
pub(crate) fn read_csv(text: &[u8]) -> Vec<String> {
    let mut reader = csv::ReaderBuilder::new().from_reader(text);
    assert_eq!(reader.headers().expect("a header"), vec!["id", "name", "amount", "day"]);
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.expect("a whole record");
        let start = record.position().expect("a position").byte() as usize;
        let id: i64 = record[0].parse().expect("a number");
        let raw = &text[start + record[0].len() + 3..];
        let name = raw.starts_with(b"\"").then_some(&record[1]);
        let some = |index: usize| Some(&record[index]).filter(|text| !text.is_empty());
        rows.push(shown(id, name, some(2).map(|text| text.parse().expect("a number")), some(3)));
    }
    rows
}

/// Parquet, written only: a format that cannot be split. With row groups of so many rows.
#[derive(Debug)]
pub(crate) struct Parquet(pub(crate) usize);

impl Format for Parquet {
    fn name(&self) -> &'static str {
        "parquet"
    }

    fn declared(&self) -> Option<SchemaRef> {
        None
    }

    fn reading(&self) -> Reading<'_> {
        Reading::Ranges(self)
    }

    fn splittable(&self) -> bool {
        false
    }

    fn encoder(&self, schema: SchemaRef, begin: bool) -> Result<Box<dyn RowEncoder>> {
        assert!(begin, "a parquet file cannot be continued");
        let writer = ArrowWriter::try_new(Vec::new(), schema, None).expect("a schema");
        Ok(Box::new(ParquetEncoder { writer, taken: 0, group_rows: self.0 }))
    }
}

#[async_trait]
impl RangeFormat for Parquet {
    async fn columns(&self, _: Arc<dyn ReadAt>) -> Result<SchemaRef> {
        not_in_tests()
    }

    fn merge(&self, _: &[(String, SchemaRef)], _: OnDrift) -> Result<SchemaRef> {
        not_in_tests()
    }

    fn read(&self, _: Arc<dyn ReadAt>, _: &ParseRequest) -> BoxStream<'static, Result<Parsed>> {
        Box::pin(futures::stream::once(async { not_in_tests() }))
    }
}

struct ParquetEncoder {
    writer: ArrowWriter<Vec<u8>>,
    taken: usize,
    group_rows: usize,
}

impl RowEncoder for ParquetEncoder {
    fn encode(&mut self, batch: &RecordBatch, output: &mut Vec<u8>) -> Result<()> {
        self.writer.write(batch).expect("rows");
        if self.writer.in_progress_rows() >= self.group_rows {
            self.writer.flush().expect("a row group");
        }
        output.extend_from_slice(&self.writer.inner()[self.taken..]);
        self.taken = self.writer.inner().len();
        Ok(())
    }

    fn held(&self) -> usize {
        self.writer.memory_size()
    }

    fn relieve(&mut self, output: &mut Vec<u8>) -> Result<()> {
        self.writer.flush().expect("a row group");
        output.extend_from_slice(&self.writer.inner()[self.taken..]);
        self.taken = self.writer.inner().len();
        Ok(())
    }

    fn finish(&mut self, output: &mut Vec<u8>) -> Result<()> {
        self.writer.finish().expect("the directory");
        output.extend_from_slice(&self.writer.inner()[self.taken..]);
        self.taken = self.writer.inner().len();
        Ok(())
    }
}

/// gzip, written only.
#[derive(Debug)]
pub(crate) struct Gzip;

impl Codec for Gzip {
    fn name(&self) -> &'static str {
        "gzip"
    }

    fn extension(&self) -> &'static str {
        ".gz"
    }

    fn recognises(&self, head: &[u8]) -> bool {
        head.starts_with(&[0x1f, 0x8b])
    }

    fn decoder(&self) -> Result<Box<dyn Decoder>> {
        not_in_tests()
    }

    fn encoder(&self, level: Option<i32>) -> Result<Option<Box<dyn Encoder>>> {
        let level = level.unwrap_or(6);
        if !(0..=9).contains(&level) {
            return Err(Error::job(format!("gzip has no level {level}")).hint("levels: 0 to 9"));
        }
        let level = flate2::Compression::new(level as u32);
        Ok(Some(Box::new(GzipEncoder(Some(flate2::write::GzEncoder::new(Vec::new(), level))))))
    }
}

struct GzipEncoder(Option<flate2::write::GzEncoder<Vec<u8>>>);

impl Encoder for GzipEncoder {
    fn encode(&mut self, text: &[u8], output: &mut Vec<u8>) -> Result<()> {
        let encoder = self.0.as_mut().expect("not finished");
        std::io::Write::write_all(encoder, text).expect("memory");
        output.append(encoder.get_mut());
        Ok(())
    }

    fn finish(&mut self, output: &mut Vec<u8>) -> Result<()> {
        output.append(&mut self.0.take().expect("not finished twice").finish().expect("memory"));
        Ok(())
    }
}
