//! Many runs in one process, from inside a runtime that is not theirs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::join_all;
use millstream::history::{Outcome, RunHistory, RunRecord};
use millstream::machine::{Asked, Machine};
use millstream::{Cancel, Engine, ErrorKind, Event, Job, JobBuilder, RunOptions};
use serde_json::json;
use tempfile::TempDir;

/// An engine with `memory` MiB and its state and scratch in `folder`.
fn engine(folder: &Path, memory: u64) -> Engine {
    let asked = Asked {
        cores: Some(2),
        memory: Some(memory << 20),
        scratch: vec![folder.to_owned()],
        state: Some(folder.join("state")),
    };
    Engine::builder().machine(Machine::detect(asked).unwrap()).build().unwrap()
}

/// Orders in two files of CSV, about `megabytes` each.
fn write_orders(folder: &Path, megabytes: usize) {
    for part in 0..2_u64 {
        let mut text = "id,customer,amount,note\n".to_owned();
        let mut id = part;
        while text.len() < megabytes << 20 {
            let mixed = id.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let _ = writeln!(text, "{id},c{},{},note {mixed:x} of an order", mixed % 5_000, mixed % 100_000);
            id += 2;
        }
        fs_err::write(folder.join(format!("orders-{part}.csv")), text).unwrap();
    }
}

const ORDERS: &str = "orders-*.csv";

/// Ten jobs that all use the same names for different things.
fn jobs(folder: &Path, output: &Path) -> Vec<JobBuilder> {
    let plain = || JobBuilder::new().source("rows", json!({"read": folder.join(ORDERS)}));
    let to = |name: &str| json!({"from": "result", "write": output.join(name)});
    let table = |name: &str, mode: &str| {
        let target = format!("sqlite:{}", output.join(name).display());
        json!({"from": "result", "write": target, "table": "t", "mode": mode})
    };
    let query = |text: &str| json!({"sql": text});
    vec![
        plain().transform("result", query("SELECT customer, sum(amount) AS n FROM rows GROUP BY customer ORDER BY 1")),
        plain().transform("result", json!({"sort": {"from": "rows", "by": ["amount desc", "id"]}})),
        plain().transform("result", json!({"filter": {"from": "rows", "where": "amount < 500"}})),
        plain().transform("result", json!({"dedupe": {"from": "rows", "by": "customer", "order": "id"}})),
        plain().transform("result", query("SELECT id, note FROM rows WHERE id % 7 = 0 ORDER BY note")),
        plain().transform(
            "result",
            query("SELECT a.id, b.amount FROM rows a JOIN rows b ON a.id = b.id + 2 WHERE a.amount > 90000 ORDER BY 1"),
        ),
        plain().transform("result", json!({"sort": {"from": "rows", "by": "note", "limit": 1000}})),
        plain().transform("result", json!({"select": {"from": "rows", "columns": ["id", "amount * 2 AS double"]}})),
        plain().transform("result", json!({"filter": {"from": "rows", "where": "id % 3 = 0"}})),
        plain().transform("result", query("SELECT id % 10 AS k, count(*) AS n, max(note) AS m FROM rows GROUP BY 1")),
    ]
    .into_iter()
    .enumerate()
    .map(|(number, job)| {
        let sink = match number {
            7 => table("7.db", "append"),
            8 => table("8.db", "replace"),
            _ => to(&format!("{number}.csv")),
        };
        job.path(output.join(format!("{number}.yaml")).display().to_string()).sink("out", sink)
    })
    .collect()
}

/// Waits until nothing is reserved: the threads of a run that has ended may give back last bytes a moment later.
async fn holds_nothing(engine: &Engine) {
    let begun = Instant::now();
    while engine.budget().used() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(120), "{} bytes are still reserved", engine.budget().used());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What a job has written, whatever the order of its rows.
fn rows_of(output: &Path, number: usize) -> Vec<String> {
    let database = output.join(format!("{number}.db"));
    let mut rows: Vec<String> = match database.exists() {
        true => {
            let connection = rusqlite::Connection::open(database).unwrap();
            let mut statement = connection.prepare("SELECT * FROM t").unwrap();
            let columns = statement.column_count();
            let text = |row: &rusqlite::Row<'_>, column| format!("{:?}", row.get_ref(column).unwrap());
            let row = |row: &rusqlite::Row<'_>| Ok((0..columns).map(|column| text(row, column)).collect());
            statement.query_map([], row).unwrap().map(Result::unwrap).collect()
        }
        false => {
            let text = fs_err::read_to_string(output.join(format!("{number}.csv"))).unwrap();
            text.lines().map(str::to_owned).collect()
        }
    };
    rows.sort_unstable();
    rows
}

#[tokio::test(flavor = "current_thread")]
async fn ten_jobs_at_once_end_with_the_results_of_ten_one_after_another() {
    let folder = TempDir::new().unwrap();
    let [alone, together] = ["alone", "together"].map(|name| folder.path().join(name));
    fs_err::create_dir(&alone).unwrap();
    fs_err::create_dir(&together).unwrap();
    write_orders(folder.path(), 3);
    let engine = engine(folder.path(), 416);
    for job in jobs(folder.path(), &alone) {
        let job = job.build(&engine).await.unwrap();
        engine.start(job, RunOptions::default()).unwrap().finish().await.unwrap();
    }
    let mut built = Vec::new();
    for job in jobs(folder.path(), &together) {
        built.push(job.build(&engine).await.unwrap());
    }
    holds_nothing(&engine).await;
    let budget = Arc::clone(engine.budget());
    let runs: Vec<_> = built.into_iter().map(|job| engine.start(job, RunOptions::default()).unwrap()).collect();
    let reports = join_all(runs.into_iter().map(|run| run.finish())).await;
    let mut names = BTreeMap::new();
    for (number, report) in reports.into_iter().enumerate() {
        let report = report.unwrap_or_else(|failure| panic!("job {number}: {failure}"));
        let expected = rows_of(&alone, number);
        assert!(!expected.is_empty() && expected == rows_of(&together, number), "job {number}");
        assert!(report.cpu_seconds > 0.0 && report.rows_read > 0, "{report:?}");
        names.insert(report.run, number);
    }
    assert_eq!(names.len(), 10, "each run has a name of its own");
    assert!(budget.peak() <= budget.limit(), "{} of {}", budget.peak(), budget.limit());
    holds_nothing(&engine).await;
}

/// A named pipe.
pub fn make_pipe(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
}

/// A job that never ends by itself: it reads a pipe that nothing writes to.
async fn endless(folder: &Path, engine: &Engine, name: &str) -> Arc<Job> {
    let pipe = folder.join(format!("{name}.pipe"));
    make_pipe(&pipe);
    let source = json!({"read": pipe, "lines": {}});
    let job = JobBuilder::new().path(folder.join(format!("{name}.yaml")).display().to_string());
    let sink = json!({"from": "rows", "write": folder.join(format!("{name}.csv"))});
    job.source("rows", source).sink("out", sink).build(engine).await.unwrap()
}

#[tokio::test]
async fn a_run_is_cancelled_by_its_handle_by_others_and_by_dropping_it() {
    let folder = TempDir::new().unwrap();
    let engine = engine(folder.path(), 512);
    let cancel = Cancel::default();
    let options = |cancel: &Cancel| RunOptions { cancel: cancel.clone(), ..RunOptions::default() };
    let mut by_handle = engine.start(endless(folder.path(), &engine, "a").await, RunOptions::default()).unwrap();
    let by_other = engine.start(endless(folder.path(), &engine, "b").await, options(&cancel)).unwrap();
    let mut dropped = engine.start(endless(folder.path(), &engine, "c").await, RunOptions::default()).unwrap();
    assert!(matches!(dropped.next_event().await, Some(Event::Progress(_))));
    drop(dropped);
    let progress = tokio::time::timeout(Duration::from_secs(180), by_handle.next()).await.expect("it reports");
    assert!(matches!(progress, Some(Event::Progress(_))), "{progress:?}");
    by_handle.cancel();
    cancel.cancel();
    for run in [by_handle, by_other] {
        let failure = run.finish().await.expect_err("it was cancelled");
        assert_eq!(failure.errors[0].kind(), ErrorKind::Interrupted, "{failure}");
    }
    assert!(!folder.path().join("a.csv").exists() && !folder.path().join("b.csv").exists());
    let history = RunHistory::open(&folder.path().join("state")).unwrap();
    let is_interrupted = |run: &RunRecord| run.job.ends_with("c.yaml") && run.outcome == Outcome::Interrupted;
    let begun = Instant::now();
    while !history.list(None, 10).unwrap().iter().any(is_interrupted) {
        assert!(begun.elapsed() < Duration::from_secs(180), "a run whose handle is dropped ends");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn runs_wait_for_their_turn() {
    let folder = TempDir::new().unwrap();
    let asked = Asked { state: Some(folder.path().join("state")), ..Asked::default() };
    let machine = Machine::detect(asked).unwrap();
    let engine = Engine::builder().machine(machine).most_runs(1).build().unwrap();
    let first = engine.start(endless(folder.path(), &engine, "a").await, RunOptions::default()).unwrap();
    let mut events = first;
    assert!(matches!(events.next_event().await, Some(Event::Progress(_))), "the first has its turn");
    let mut second = engine.start(endless(folder.path(), &engine, "b").await, RunOptions::default()).unwrap();
    assert!(matches!(second.next_event().await, Some(Event::Waiting)));
    let third = engine.start(endless(folder.path(), &engine, "c").await, RunOptions::default()).unwrap();
    third.cancel();
    assert!(third.finish().await.is_err(), "one that waits can be cancelled");
    events.cancel();
    assert!(events.finish().await.is_err());
    assert!(matches!(second.next_event().await, Some(Event::Progress(_))), "now it is the second's turn");
    second.cancel();
    assert!(second.finish().await.is_err());
}

#[test]
fn without_any_runtime() {
    let folder = TempDir::new().unwrap();
    let engine = engine(folder.path(), 128);
    fs_err::write(folder.path().join("in.csv"), "a\n1\n2\n").unwrap();
    let output = folder.path().join("out.csv");
    let job = JobBuilder::new()
        .source("rows", json!({"read": folder.path().join("in.csv")}))
        .sink("out", json!({"from": "rows", "write": output}));
    let report = futures::executor::block_on(async {
        let job = job.build(&engine).await?;
        engine.start(job, RunOptions::default())?.finish().await
    });
    assert_eq!(report.unwrap().rows_written, 2);
    assert_eq!(fs_err::read_to_string(output).unwrap(), "a\n1\n2\n");
}

#[tokio::test]
async fn to_drop_a_run_leaves_others_with_the_same_options_alone() {
    let folder = TempDir::new().unwrap();
    let engine = engine(folder.path(), 256);
    fs_err::write(folder.path().join("in.csv"), "a\n1\n").unwrap();
    let options = RunOptions::default();
    drop(engine.start(endless(folder.path(), &engine, "a").await, options.clone()).unwrap());
    assert!(!options.cancel.is_cancelled());
    let job = JobBuilder::new()
        .source("rows", json!({"read": folder.path().join("in.csv")}))
        .sink("out", json!({"from": "rows", "write": folder.path().join("out.csv")}));
    let job = job.build(&engine).await.unwrap();
    // A job may run often: each run has components of its own.
    for _ in 0..3 {
        let run = engine.start(Arc::clone(&job), options.clone()).unwrap();
        assert_eq!(run.finish().await.unwrap().rows_written, 1);
    }
}

#[tokio::test]
async fn variables_that_a_job_is_parsed_with_tell_its_runs_apart() {
    let folder = TempDir::new().unwrap();
    let engine = engine(folder.path(), 256);
    for day in ["1", "2"] {
        fs_err::write(folder.path().join(format!("{day}.csv")), "a\n1\n").unwrap();
    }
    let text = format!(
        "sources: {{s: {{read: '{0}/${{DAY}}.csv'}}}}\n\
         sinks: {{o: {{from: s, write: 'sqlite:{0}/t.db', table: t, mode: append}}}}\n",
        folder.path().display()
    );
    let path = folder.path().join("job.yaml").display().to_string();
    let mut rows = Vec::new();
    for day in ["1", "2", "1"] {
        let set = [("DAY".to_owned(), day.to_owned())].into();
        let options = millstream::ParseOptions { set, needs_secrets: true, now: None };
        let job = engine.parse_job(&path, &text, &options).await.unwrap().job;
        let options = RunOptions { resume: true, ..RunOptions::default() };
        rows.push(engine.start(job, options).unwrap().finish().await.unwrap().rows_written);
    }
    assert_eq!(rows, [1, 1, 0], "the third run finds the first one done");
}

#[tokio::test]
async fn a_panic_is_an_error_and_never_the_end_of_the_rows() {
    use millstream::sql::{ColumnarValue, Volatility, create_udf};
    let folder = TempDir::new().unwrap();
    fs_err::write(folder.path().join("in.csv"), "a\n1\n").unwrap();
    let kind = arrow::datatypes::DataType::Int64;
    let panics = |_: &[ColumnarValue]| panic!("on purpose");
    let boom = create_udf("boom", vec![kind.clone()], kind, Volatility::Volatile, Arc::new(panics));
    let asked = Asked { state: Some(folder.path().join("state")), ..Asked::default() };
    let engine = Engine::builder().machine(Machine::detect(asked).unwrap()).function(boom).build().unwrap();
    let job = JobBuilder::new()
        .source("rows", json!({"read": folder.path().join("in.csv")}))
        .sql("result", "SELECT boom(a) AS b FROM rows")
        .sink("out", json!({"from": "result", "write": folder.path().join("out.csv")}));
    let job = job.build(&engine).await.unwrap();
    let rows: Vec<_> = engine.rows(Arc::clone(&job), "result").await.unwrap().collect().await;
    assert!(rows.last().is_some_and(Result::is_err), "{rows:?}");
    let failure = engine.start(job, RunOptions::default()).unwrap().finish().await.expect_err("it panics");
    assert_eq!(failure.errors[0].kind(), ErrorKind::Internal, "{failure}");
    assert!(!folder.path().join("out.csv").exists());
}

/// A function that a program adds may give values of several types; sinks know none such.
#[tokio::test]
async fn unions_become_text_at_the_end_of_a_step() {
    use arrow::array::{ArrayRef, AsArray, Int64Array, StringArray, UnionArray};
    use arrow::datatypes::{DataType, Field, Int64Type, UnionFields};
    use millstream::sql::{ColumnarValue, Volatility, create_udf};

    let folder = TempDir::new().unwrap();
    fs_err::write(folder.path().join("in.csv"), "a\n1\n2\n3\n").unwrap();
    let members = [Field::new("number", DataType::Int64, true), Field::new("word", DataType::Utf8, true)];
    let fields = UnionFields::try_new([0, 1], members).unwrap();
    let kind = DataType::Union(fields.clone(), arrow::datatypes::UnionMode::Sparse);
    // 1 as a number, 2 as a word, and nothing for 3.
    let either = move |values: &[ColumnarValue]| {
        let numbers = values[0].to_array(1)?;
        let numbers = numbers.as_primitive::<Int64Type>();
        let word = |number: Option<i64>| (number == Some(2)).then(|| "two".to_owned());
        let children: Vec<ArrayRef> = vec![
            Arc::new(numbers.iter().map(|number| number.filter(|number| *number == 1)).collect::<Int64Array>()),
            Arc::new(numbers.iter().map(word).collect::<StringArray>()),
        ];
        let types = (0..numbers.len()).map(|row| i8::from(numbers.value(row) == 2)).collect();
        let union = UnionArray::try_new(fields.clone(), types, None, children)?;
        Ok(ColumnarValue::Array(Arc::new(union)))
    };
    let either = create_udf("either", vec![DataType::Int64], kind, Volatility::Immutable, Arc::new(either));
    let asked = Asked { state: Some(folder.path().join("state")), ..Asked::default() };
    let engine = Engine::builder().machine(Machine::detect(asked).unwrap()).function(either).build().unwrap();
    let job = JobBuilder::new()
        .source("rows", json!({"read": folder.path().join("in.csv")}))
        .transform("chosen", json!({"select": {"from": "rows", "columns": {"id": "a", "b": "either(a)"}}}))
        .sql("result", "SELECT id, b, either(id) AS c FROM chosen ORDER BY id")
        .sink("out", json!({"from": "result", "write": folder.path().join("out.jsonl")}));
    let job = job.build(&engine).await.unwrap();
    engine.start(job, RunOptions::default()).unwrap().finish().await.unwrap();
    let text = fs_err::read_to_string(folder.path().join("out.jsonl")).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [r#"{"id":1,"b":"1","c":"1"}"#, r#"{"id":2,"b":"two","c":"two"}"#, r#"{"id":3,"b":null,"c":null}"#]
    );
}
