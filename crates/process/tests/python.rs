//! Python functions take rows and give rows. A row that fails is reported, and harms no other row.

use std::ffi::OsString;
use std::path::Path;
use std::sync::{Arc, Mutex};

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int8Array,
    Int64Array, ListArray, RecordBatch, StringArray, StringViewArray, StructArray, Time64MicrosecondArray,
    TimestampMicrosecondArray, TimestampNanosecondArray, UInt64Array,
};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, TimeUnit, TimestampNanosecondType};
use millstream_core::transform::{Answer, Per, Worker};
use millstream_core::{Error, Result};
use millstream_process::python::{Function, PythonWorker};
use millstream_process::{Children, Program};

/// A module with functions, and what runs them.
struct Module {
    folder: tempfile::TempDir,
    children: Children,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Module {
    fn new(code: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs_err::write(folder.path().join("code.py"), code).expect("written");
        Module { folder, children: Children::new().expect("started"), lines: Arc::default() }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    async fn worker(
        &self,
        name: &str,
        per: Per,
        takes: &RecordBatch,
        gives: &[(&str, DataType)],
    ) -> Result<PythonWorker> {
        let gives: Vec<Field> = gives.iter().map(|(name, kind)| Field::new(*name, kind.clone(), true)).collect();
        let function = Function {
            interpreter: Program { command: vec![OsString::from("python3")], ..Program::default() },
            file: self.path().join("code.py"),
            name: name.to_owned(),
            per,
            is_arrow: false,
            takes_values: false,
            takes: takes.schema(),
            gives: Arc::new(Schema::new(gives)),
        };
        let lines = Arc::clone(&self.lines);
        let take = move |line: &str| lines.lock().expect("no panic").push(line.to_owned());
        PythonWorker::start(&self.children, &Arc::new(function), Arc::new(take)).await
    }

    /// The answer of the function `f` to `batch`.
    async fn answer(&self, per: Per, batch: &RecordBatch, gives: &[(&str, DataType)]) -> Answer {
        let mut worker = self.worker("f", per, batch, gives).await.expect("loaded");
        worker.call(batch, &[]).await.expect("answered")
    }
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))
        .expect("a batch")
}

fn ids(values: &[i64]) -> RecordBatch {
    batch(vec![("id", Arc::new(Int64Array::from(values.to_vec())))])
}

fn ints(answer: &Answer, column: usize) -> Vec<Option<i64>> {
    answer.rows.column(column).as_primitive::<Int64Type>().iter().collect()
}

fn origins(answer: &Answer) -> Vec<u32> {
    answer.origins.as_ref().expect("row by row").values().to_vec()
}

/// The rows that have failed, and why.
fn failures(answer: &Answer) -> Vec<(Option<u32>, String)> {
    let what = |error: &Error| {
        let place = error.location().column.iter().map(|column| format!("column {column}"));
        let text = error.offending_text().map(str::to_owned);
        std::iter::once(error.what().to_owned()).chain(place).chain(text).collect::<Vec<_>>().join(": ")
    };
    answer.failures.iter().map(|failure| (failure.part, what(&failure.error))).collect()
}

/// The same as [`failures`] gives them.
fn expected(failures: &[(Option<u32>, &str)]) -> Vec<(Option<u32>, String)> {
    failures.iter().map(|(row, what)| (*row, (*what).to_owned())).collect()
}

/// A function that forgets its `return` must not leave all rows out.
#[tokio::test]
async fn nothing_for_many_rows_is_an_error() {
    let module = Module::new("def f(rows): list(rows)\ndef one(rows): return {'id': 1}\n");
    for (name, per, what) in [
        ("f", Per::Batch, "the function gave None"),
        ("f", Per::Group, "the function gave None"),
        ("one", Per::Batch, "the function gave one dict for a batch"),
    ] {
        let mut worker = module.worker(name, per, &ids(&[]), &[("id", DataType::Int64)]).await.expect("loaded");
        let ends: &[usize] = if per == Per::Group { &[1, 3] } else { &[] };
        let answer = worker.call(&ids(&[1, 2, 3]), ends).await.expect("answered");
        assert_eq!(answer.rows.num_rows(), 0);
        assert!(failures(&answer)[0].1.starts_with(what), "{name} {per:?}: {:?}", failures(&answer));
    }
    let mut worker = module.worker("one", Per::Group, &ids(&[]), &[("id", DataType::Int64)]).await.expect("loaded");
    let answer = worker.call(&ids(&[1, 2, 3]), &[1, 3]).await.expect("answered");
    assert_eq!(ints(&answer, 0), [Some(1), Some(1)], "one row for each group");
}

#[tokio::test]
async fn nanoseconds_are_cut_off() {
    let sent = batch(vec![("at", Arc::new(TimestampNanosecondArray::from(vec![-1, 1_999, -1_000])))]);
    let module = Module::new("def f(row): return row\n");
    let answer = module.answer(Per::Row, &sent, &[("at", sent.column(0).data_type().clone())]).await;
    let at = answer.rows.column(0).as_primitive::<TimestampNanosecondType>().values().to_vec();
    assert_eq!(at, [-1_000, 1_000, -1_000]);
}

#[tokio::test]
async fn every_type_goes_there_and_back() {
    let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let nanos = DataType::Timestamp(TimeUnit::Nanosecond, None);
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1), None]), None, Some(vec![])]);
    let structs = StructArray::from(vec![
        (Arc::new(Field::new("x", DataType::Int64, true)), Arc::new(Int64Array::from(vec![1, 2, 3])) as ArrayRef),
        (Arc::new(Field::new("y", DataType::Utf8, true)), Arc::new(StringArray::from(vec!["a", "ü", ""])) as ArrayRef),
    ]);
    let long = "x".repeat(300);
    let big = Decimal128Array::from(vec![Some(-12345), None, Some(5)]).with_precision_and_scale(20, 3).expect("fits");
    let sent = batch(vec![
        ("bool", Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)]))),
        ("tiny", Arc::new(Int8Array::from(vec![-128, 0, 127]))),
        ("int", Arc::new(Int64Array::from(vec![Some(i64::MIN), None, Some(i64::MAX)]))),
        ("ints", Arc::new(Int64Array::from(vec![1 << 40, -(1 << 33), 7]))),
        ("unsigned", Arc::new(UInt64Array::from(vec![u64::MAX, 0, 1 << 63]))),
        ("float", Arc::new(Float64Array::from(vec![Some(0.1), None, Some(f64::NEG_INFINITY)]))),
        ("text", Arc::new(StringArray::from(vec![Some("Zürich\0🦀"), None, Some(&long)]))),
        ("texts", Arc::new(StringArray::from(vec!["日本", "", "b"]))),
        ("bytes", Arc::new(BinaryArray::from_opt_vec(vec![Some(b"\xff\x00"), None, Some(b"")]))),
        ("date", Arc::new(Date32Array::from(vec![Some(-719_162), None, Some(20_000)]))),
        ("time", Arc::new(Time64MicrosecondArray::from(vec![Some(86_399_999_999), None, Some(0)]))),
        ("at", Arc::new(TimestampMicrosecondArray::from(vec![Some(-1), None, Some(1_700_000_000_000_001)]))),
        ("utc", Arc::new(TimestampMicrosecondArray::from(vec![Some(-1), None, Some(1)]).with_timezone("UTC"))),
        ("nanos", Arc::new(TimestampNanosecondArray::from(vec![1_000, 2_000, 3_000]))),
        ("decimal", Arc::new(big)),
        ("list", Arc::new(lists)),
        ("struct", Arc::new(structs)),
    ]);
    let gives: Vec<(&str, DataType)> =
        sent.schema_ref().fields().iter().map(|field| (field.name().as_str(), field.data_type().clone())).collect();
    assert!(gives.contains(&("utc", utc)) && gives.contains(&("nanos", nanos)));
    let module = Module::new("def f(row): return row\ndef all(rows): return rows\n");
    let answer = module.answer(Per::Row, &sent, &gives).await;
    assert_eq!(failures(&answer), expected(&[]));
    assert_eq!(answer.rows, sent);
    assert_eq!(origins(&answer), [0, 1, 2]);
    let mut worker = module.worker("all", Per::Batch, &sent, &gives).await.expect("loaded");
    for _ in 0..3 {
        let answer = worker.call(&sent, &[]).await.expect("answered");
        assert_eq!((answer.rows, answer.origins.is_none(), answer.failures.len()), (sent.clone(), true, 0));
    }
}

#[tokio::test]
async fn a_date_that_python_lacks_fails_its_row_alone() {
    let sent = batch(vec![("day", Arc::new(Date32Array::from(vec![Some(0), Some(-800_000), None, Some(1)])))]);
    let module = Module::new("def f(row): return row\ndef all(rows): return rows\n");
    let gives = [("day", DataType::Date32)];
    let answer = module.answer(Per::Row, &sent, &gives).await;
    assert_eq!(origins(&answer), [0, 2, 3]);
    let [(Some(1), what)] = &failures(&answer)[..] else { panic!("{answer:?}") };
    assert!(what.starts_with("Python has no such value of column `day`: "), "{what}");
    let mut worker = module.worker("all", Per::Batch, &sent, &gives).await.expect("loaded");
    let answer = worker.call(&sent, &[]).await.expect("answered");
    assert_eq!((answer.rows.num_rows(), answer.failures.len(), answer.failures[0].part), (0, 1, None));
}

#[tokio::test]
async fn nested_values_are_as_strict_as_others() {
    let module = Module::new(
        "from decimal import Decimal\nGOOD = {'l': [1, None], 's': {'a': 1, 'd': Decimal('1.5')}}\nANSWERS = [\n    \
         GOOD, {**GOOD, 'l': [1.5]}, {**GOOD, 'l': ['5']}, {**GOOD, 'l': 5}, {**GOOD, 's': {'a': 1}}, \
         {**GOOD, 's': {'a': 1, \
         'd': Decimal('1.239')}}, {**GOOD, 'l': None, 's': None}, {**GOOD, 'l': []},\n]\n\n\ndef f(row): return \
         ANSWERS[row['id']] if row['id'] < 90 else None\n",
    );
    let members = vec![Field::new("a", DataType::Int64, true), Field::new("d", DataType::Decimal128(8, 2), true)];
    let list = DataType::List(Arc::new(Field::new_list_field(DataType::Int64, true)));
    let gives = [("l", list), ("s", DataType::Struct(members.into()))];
    let answer = module.answer(Per::Row, &ids(&[0, 1, 2, 3, 4, 5, 6, 7]), &gives).await;
    let mut failed: Vec<Option<u32>> = failures(&answer).into_iter().map(|(row, _)| row).collect();
    failed.sort();
    assert_eq!(failed, [1, 2, 3, 4, 5].map(Some), "{answer:?}");
    assert_eq!(origins(&answer), [0, 6, 7]);
    let lists = answer.rows.column(0).as_list::<i32>();
    assert_eq!(lists.value(0).as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), [Some(1), None]);
    assert!(lists.is_null(1) && lists.value(2).is_empty() && !lists.is_null(2));
    let structs = answer.rows.column(1).as_struct();
    let decimals = structs.column(1).as_primitive::<arrow::datatypes::Decimal128Type>();
    assert_eq!(decimals.iter().collect::<Vec<_>>(), [Some(150), None, Some(150)]);
    assert!(structs.is_null(1));
    // No row at all, too.
    let none = module.answer(Per::Row, &ids(&[90]), &gives).await;
    assert_eq!((none.rows.num_rows(), none.failures.len()), (0, 0));
}

#[tokio::test]
async fn rows_may_be_one_dict_that_changes_and_values_their_own_classes() {
    let module = Module::new(
        "import enum\n\nclass Colour(str, enum.Enum): RED = 'red'\n\nclass Number:\n    def __index__(self): return \
         7\n\nout = {}\n\ndef f(row):\n    out['id'] = row['id'] if row['id'] else Number()\n    out['colour'] = \
         Colour.RED if row['id'] else None\n    return out\n",
    );
    let gives = [("id", DataType::Int64), ("colour", DataType::Utf8View)];
    let answer = module.answer(Per::Row, &ids(&[1, 0, 2]), &gives).await;
    assert_eq!(failures(&answer), expected(&[]));
    assert_eq!(ints(&answer, 0), [Some(1), Some(7), Some(2)]);
    let colours: Vec<Option<&str>> = answer.rows.column(1).as_string_view().iter().collect();
    assert_eq!(colours, [Some("red"), None, Some("red")]);
}

#[tokio::test]
async fn a_worker_that_ends_is_noticed_though_its_children_live() {
    let module = Module::new(
        "import os, subprocess, time\n\ndef f(row):\n    subprocess.Popen(['sleep', '100'], start_new_session=True)\n \
         \x20  if os.fork() == 0:\n        time.sleep(100)\n    os._exit(3)\n",
    );
    let mut worker = module.worker("f", Per::Row, &ids(&[1]), &[("id", DataType::Int64)]).await.expect("loaded");
    let begun = std::time::Instant::now();
    let error = worker.call(&ids(&[1]), &[]).await.expect_err("no answer");
    assert_eq!(error.cause_text(), Some("it ended with status 3"));
    // The child sleeps for 100 s.
    assert!(begun.elapsed() < std::time::Duration::from_secs(60));
}

#[tokio::test]
async fn a_bool_is_no_number() {
    let module = Module::new("def f(row): return {'n': True, 'x': 1.5}\ndef g(row): return {'n': 1, 'x': True}\n");
    for name in ["f", "g"] {
        let gives = [("n", DataType::Int64), ("x", DataType::Float64)];
        let mut worker = module.worker(name, Per::Row, &ids(&[1]), &gives).await.expect("loaded");
        let answer = worker.call(&ids(&[1]), &[]).await.expect("answered");
        assert_eq!((answer.rows.num_rows(), answer.failures.len()), (0, 1), "{name}");
    }
}

#[tokio::test]
async fn what_arrives_is_what_python_has_for_it() {
    let sent = batch(vec![
        ("view", Arc::new(StringViewArray::from(vec!["a"]))),
        ("date", Arc::new(Date32Array::from(vec![1]))),
        ("at", Arc::new(TimestampMicrosecondArray::from(vec![1_500_000]))),
        ("utc", Arc::new(TimestampMicrosecondArray::from(vec![0]).with_timezone("Europe/Berlin"))),
        ("time", Arc::new(Time64MicrosecondArray::from(vec![3_661_000_001]))),
        ("amount", Arc::new(Decimal128Array::from(vec![-5]).with_precision_and_scale(10, 2).expect("fits"))),
        (
            "dates",
            Arc::new(ListArray::new(
                Arc::new(Field::new_list_field(DataType::Date32, true)),
                arrow::buffer::OffsetBuffer::from_lengths([1]),
                Arc::new(Date32Array::from(vec![0])),
                None,
            )),
        ),
    ]);
    let module = Module::new("def f(row): return {'text': repr(list(row.values()))}\n");
    let answer = module.answer(Per::Row, &sent, &[("text", DataType::Utf8)]).await;
    assert_eq!(
        answer.rows.column(0).as_string::<i32>().value(0),
        "['a', datetime.date(1970, 1, 2), datetime.datetime(1970, 1, 1, 0, 0, 1, 500000), datetime.datetime(1970, 1, \
         1, 0, 0, tzinfo=datetime.timezone.utc), datetime.time(1, 1, 1, 1), Decimal('-0.05'), [datetime.date(1970, 1, \
         1)]]"
    );
}

#[tokio::test]
async fn rows_are_left_out_and_fail_one_by_one() {
    let module = Module::new(
        "def f(row):\n    n = row['id']\n    if n == 2: return None\n    if n == 3: return {'id': 10 // (n - 3)}\n    \
         return {'id': n * 10}\n",
    );
    let answer = module.answer(Per::Row, &ids(&[1, 2, 3, 4]), &[("id", DataType::Int64)]).await;
    assert_eq!((ints(&answer, 0), origins(&answer)), (vec![Some(10), Some(40)], vec![0, 3]));
    assert_eq!(failures(&answer), expected(&[(Some(2), "ZeroDivisionError: integer division or modulo by zero")]));
    let trace = answer.failures[0].error.cause_text().expect("a traceback");
    assert!(trace.contains("code.py\", line 4, in f") && !trace.contains("millstream"), "{trace}");
}

#[tokio::test]
async fn each_wrong_answer_fails_its_row_alone() {
    let module = Module::new(
        "import datetime\n\nANSWERS = [\n    {'id': 1, 'text': 'a', 'day': datetime.date(1970, 1, 2)}, 5, {'id': 1}, \
         {'id': 'x', 'text': 'a', 'day': None}, {'id': 1, 'text': 'a', 'day': None, 'more': 1}, {'id': 1.5, 'text': \
         'a', 'day': None}, {'id': 2 ** 40, 'text': 'a', 'day': None}, {'id': 2 ** 80, 'text': 'a', 'day': None}, \
         {'id': 1, 'text': b'a', 'day': None}, {'id': 1, 'text': '\\ud800', 'day': None}, {'id': 1, 'text': 'a', \
         'day': datetime.datetime(2000, 1, 1)}, {'id': True, 'text': None, 'day': None}, {'id': 2, 'text': 'z', \
         'day': None},\n]\n\n\ndef f(row): return ANSWERS[row['id']]\n",
    );
    let gives = [("id", DataType::Int32), ("text", DataType::Utf8), ("day", DataType::Date32)];
    let asked: Vec<i64> = (0..13).collect();
    let answer = module.answer(Per::Row, &ids(&asked), &gives).await;
    let mut failed = failures(&answer);
    failed.sort();
    assert_eq!(
        failed,
        expected(&[
            (Some(1), "the function gave 5; a row is a dict"),
            (Some(2), "the function gave no `text`, only ['id']"),
            (Some(3), "the function gave a value that is no int32: column id: 'x'"),
            (Some(4), "the function gave `more`, which is none of `columns`"),
            (Some(5), "the function gave a value that is no int32: column id: 1.5"),
            (Some(6), "the function gave a value that is no int32: column id: 1099511627776"),
            (Some(7), "the function gave a value that is no int32: column id: an int of more than 64 bits"),
            (Some(8), "the function gave a value that is no utf8: column text: bytes"),
            (Some(9), "the function gave a value that is no utf8: column text: a str with half a surrogate pair"),
            (Some(10), "the function gave datetime.datetime(2000, 1, 1, 0, 0) for `day`"),
            (Some(11), "the function gave a value that is no int32: column id: True"),
        ])
    );
    assert_eq!(origins(&answer), [0, 12]);
    let days: Vec<Option<i32>> = answer.rows.column(2).as_primitive::<arrow::datatypes::Date32Type>().iter().collect();
    assert_eq!(days, [Some(1), None]);
}

#[tokio::test]
async fn a_batch_gives_any_number_of_rows_or_fails_as_a_whole() {
    let module = Module::new(
        "def f(rows):\n    for row in rows:\n        if row['id'] < 0: raise ValueError('negative')\n        for n in \
         range(row['id']): yield {'id': n}\n",
    );
    let mut worker = module.worker("f", Per::Batch, &ids(&[]), &[("id", DataType::Int64)]).await.expect("loaded");
    let answer = worker.call(&ids(&[2, 0, 1]), &[]).await.expect("answered");
    assert_eq!(ints(&answer, 0), [Some(0), Some(1), Some(0)]);
    let answer = worker.call(&ids(&[2, -1, 1]), &[]).await.expect("answered");
    assert_eq!((answer.rows.num_rows(), failures(&answer)), (0, expected(&[(None, "ValueError: negative")])));
    let answer = worker.call(&ids(&[]), &[]).await.expect("answered");
    assert_eq!((answer.rows.num_rows(), answer.failures.len()), (0, 0));
}

#[tokio::test]
async fn decimals_keep_all_of_their_digits() {
    let module = Module::new("from decimal import Decimal\n\ndef f(row): return {'d': Decimal(row['text'])}\n");
    let texts = StringArray::from(vec!["1.10", "1E+3", "1.234", "99999999", "NaN"]);
    let sent = batch(vec![("text", Arc::new(texts))]);
    let answer = module.answer(Per::Row, &sent, &[("d", DataType::Decimal128(8, 2))]).await;
    let values = answer.rows.column(0).as_primitive::<arrow::datatypes::Decimal128Type>();
    assert_eq!((values.values().to_vec(), origins(&answer)), (vec![110, 100_000], vec![0, 1]));
    assert_eq!(
        failures(&answer),
        expected(&[
            (Some(2), "the function gave a value that is no decimal(8, 2): column d: 1.234"),
            (Some(3), "the function gave a value that is no decimal(8, 2): column d: 99999999"),
            (Some(4), "the function gave a value that is no decimal(8, 2): column d: NaN"),
        ])
    );
}

#[tokio::test]
async fn what_a_function_prints_is_no_answer() {
    let module = Module::new(
        "import sys\n\ndef f(row):\n    print('hello')\n    print('there', file=sys.stderr)\n    sys.stdin.read()\n    \
         return row\n",
    );
    let answer = module.answer(Per::Row, &ids(&[1]), &[("id", DataType::Int64)]).await;
    assert_eq!(ints(&answer, 0), [Some(1)]);
    for _ in 0..6_000 {
        if module.lines.lock().expect("no panic").len() == 2 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(*module.lines.lock().expect("no panic"), ["hello", "there"]);
}

#[tokio::test]
async fn a_worker_that_ends_says_how() {
    let module = Module::new(
        "import os, sys\n\ndef f(row):\n    if row['id'] == 1: os._exit(3)\n    if row['id'] == 2: \
         os.kill(os.getpid(), 9)\n    print('out of luck', file=sys.stderr)\n    sys.exit(4)\n",
    );
    for (id, cause) in
        [(1, "it ended with status 3"), (2, "it was killed (signal 9)"), (3, "it ended with status 4\nout of luck")]
    {
        let sent = ids(&[id]);
        let mut worker = module.worker("f", Per::Row, &sent, &[("id", DataType::Int64)]).await.expect("loaded");
        let error = worker.call(&sent, &[]).await.expect_err("no answer");
        assert!(error.what().starts_with("the Python worker of `f` of "), "{error:?}");
        assert_eq!(error.cause_text(), Some(cause));
        let again = worker.call(&sent, &[]).await.expect_err("still no answer");
        assert_eq!(again.cause_text(), Some(cause));
    }
}

#[tokio::test]
async fn a_function_that_cannot_be_loaded_says_why() {
    let cause = async |code: &str, name: &str| {
        let module = Module::new(code);
        let error: Error = module.worker(name, Per::Row, &ids(&[]), &[]).await.expect_err("not loaded");
        let folder = module.path().display().to_string();
        assert_eq!(error.what().replace(&folder, "…"), format!("`{name}` of …/code.py cannot be loaded"));
        error.cause_text().expect("a cause").replace(&folder, "…")
    };
    assert_eq!(
        cause("def score(row): return row\n", "skore").await,
        "there is no function `skore`; did you mean `score`?"
    );
    assert_eq!(cause("score = 5\n", "score").await, "`score` is no function");
    let text = cause("import math\n\nmath.sqrt(-1)\n", "f").await;
    assert!(text.starts_with("ValueError: ") && text.contains("…/code.py\", line 3, in <module>"), "{text}");
    let text = cause("import nosuchmodule\n", "f").await;
    assert!(text.starts_with("ModuleNotFoundError: No module named 'nosuchmodule'"), "{text}");
    let text = cause("def f(:\n", "f").await;
    assert!(text.starts_with("File \"…/code.py\", line 1") && text.contains("SyntaxError"), "{text}");
}

#[tokio::test]
async fn a_module_finds_its_neighbours() {
    let module = Module::new("from neighbour import double\n\ndef f(row): return {'id': double(row['id'])}\n");
    fs_err::write(module.path().join("neighbour.py"), "def double(n): return 2 * n\n").expect("written");
    let answer = module.answer(Per::Row, &ids(&[21]), &[("id", DataType::Int64)]).await;
    assert_eq!(ints(&answer, 0), [Some(42)]);
}

#[tokio::test]
async fn a_type_that_python_lacks_is_refused() {
    let module = Module::new("def f(row): return row\n");
    let sent = batch(vec![("span", Arc::new(arrow::array::IntervalDayTimeArray::from(vec![None])))]);
    let error = module.worker("f", Per::Row, &sent, &[]).await.expect_err("refused");
    assert!(error.what().starts_with("column `span` has type interval"), "{error:?}");
}

#[tokio::test]
async fn a_worker_that_is_watched_says_where_it_was() {
    let code = "import os\ndef f(row):\n    if row['id'] == 3: os._exit(1)\n    return row\ndef g(rows):\n    \
                for row in rows: f(row)\n";
    let (module, batch) = (Module::new(code), ids(&[5, 4, 3, 2, 1]));
    for (name, per, ends, place) in [("f", Per::Row, &[][..], 2), ("g", Per::Group, &[2, 5], 1)] {
        for watched in [true, false] {
            let gives = [("id", DataType::Int64)];
            let mut worker = module.worker(name, per, &batch, &gives).await.expect("loaded");
            if watched {
                worker.watch();
            }
            worker.call(&batch, ends).await.expect_err("it has ended");
            assert_eq!(worker.at(), watched.then_some(place), "{name}");
        }
    }
    let mut worker = module.worker("f", Per::Row, &batch, &[("id", DataType::Int64)]).await.expect("loaded");
    worker.watch();
    let answer = worker.call(&ids(&[1, 2]), &[]).await.expect("answered");
    assert_eq!((ints(&answer, 0), worker.at()), (vec![Some(1), Some(2)], None));
}
