//! Plans: checked once, run often, written and read back.

use std::path::Path;

use futures::TryStreamExt;
use millstream::explain::Visibility;
use millstream::{Engine, ErrorKind, JobBuilder, JobPlan, RunOptions};
use serde_json::json;
use tempfile::TempDir;

fn engine(folder: &Path) -> Engine {
    let asked = millstream::machine::Asked { state: Some(folder.join("state")), ..Default::default() };
    Engine::builder().machine(millstream::machine::Machine::detect(asked).unwrap()).build().unwrap()
}

/// Reads `in.csv`, whose column `a` has numbers so far, and writes them to `out.csv`.
fn job(folder: &Path) -> JobBuilder {
    JobBuilder::new()
        .path(folder.join("job.yaml").display().to_string())
        .source("rows", json!({"read": folder.join("in*.csv"), "add": ["_line"], "max_rejects": "1%"}))
        .transform("result", json!({"select": {"from": "rows", "columns": ["a + 1 AS b"]}}))
        .sink("out", json!({"from": "result", "write": folder.join("out.csv")}))
}

fn is_shareable<T: Send + Sync + Clone + 'static>(_: &T) {}

#[tokio::test]
async fn a_plan_says_how_the_job_would_run() {
    let folder = TempDir::new().unwrap();
    fs_err::write(folder.path().join("in.csv"), "a\n1\n2\n").unwrap();
    let engine = engine(folder.path());
    let plan = engine.plan(job(folder.path()).build(&engine).await.unwrap()).await.unwrap();
    is_shareable(&plan);
    let explained = plan.explain();
    assert_eq!(explained.sources[0].max_rejects.as_deref(), Some("1%"));
    let columns: Vec<_> =
        explained.sources[0].columns.iter().map(|one| (one.name.as_str(), one.kind.as_str())).collect();
    assert_eq!(columns, [("a", "int64"), ("_line", "int64")]);
    assert!(matches!(&explained.sinks[0].visibility, Visibility::AtOnce(why) if !why.is_empty()));
    assert!(explained.sinks[0].plan.iter().any(|operator| operator.text.starts_with("ReadExec")), "{explained:?}");
    assert_eq!(plan.columns("result").unwrap().field(0).name(), "b");
}

#[tokio::test]
async fn a_plan_runs_often_and_reads_what_is_there_then() {
    let folder = TempDir::new().unwrap();
    fs_err::write(folder.path().join("in.csv"), "a\n1\n").unwrap();
    let engine = engine(folder.path());
    let plan = engine.plan(job(folder.path()).build(&engine).await.unwrap()).await.unwrap();
    fs_err::write(folder.path().join("in2.csv"), "a\n5\n").unwrap();
    for _ in 0..2 {
        let report = engine.start(&plan, RunOptions::default()).unwrap().finish().await.unwrap();
        assert_eq!(report.rows_written, 2);
    }
    fs_err::remove_file(folder.path().join("in.csv")).unwrap();
    fs_err::remove_file(folder.path().join("in2.csv")).unwrap();
    let failure = engine.start(&plan, RunOptions::default()).unwrap().finish().await.expect_err("nothing to read");
    assert_eq!(failure.errors[0].kind(), ErrorKind::Refused, "{failure}");
}

#[tokio::test]
async fn a_plan_that_was_written_has_the_columns_and_variables_of_then() {
    let folder = TempDir::new().unwrap();
    fs_err::write(folder.path().join("in.csv"), "a\n1\n").unwrap();
    let engine = engine(folder.path());
    let text = job(folder.path()).to_string().replace("a + 1", "a + ${BY}");
    let set = [("BY".to_owned(), "10".to_owned())].into();
    let options = millstream::ParseOptions { set, needs_secrets: true, now: None };
    let parsed = engine.parse_job("job.yaml", &text, &options).await.unwrap();
    let plan = engine.plan(parsed.job).await.unwrap();
    let written = serde_json::from_str(&plan.to_json().unwrap().to_string()).unwrap();
    // Now the numbers would be taken for decimals.
    fs_err::write(folder.path().join("in.csv"), "a\n1.5\n2\n").unwrap();
    let restored: JobPlan = engine.restore(&written).unwrap();
    assert_eq!(restored.to_json().unwrap(), plan.to_json().unwrap());
    let failure =
        engine.start(&restored, RunOptions::default()).unwrap().finish().await.expect_err("1.5 is not an int64");
    assert_eq!(failure.errors[0].kind(), ErrorKind::Rejects, "{failure}");
    assert!(failure.to_string().contains("`1.5`"), "{failure}");
    fs_err::write(folder.path().join("in.csv"), "a\n7\n").unwrap();
    let report = engine.start(&restored, RunOptions::default()).unwrap().finish().await.unwrap();
    assert_eq!(report.rows_written, 1);
    assert_eq!(fs_err::read_to_string(folder.path().join("out.csv")).unwrap(), "b\n17\n");

    let mut newer = written.clone();
    newer["version"] = json!(99);
    let failure = engine.restore(&newer).expect_err("it is newer");
    assert!(failure.to_string().contains("newer version of Millstream"), "{failure}");
    assert!(engine.restore(&json!({"version": 1})).is_err());
}

#[tokio::test]
async fn rows_come_as_a_stream_without_views() {
    let folder = TempDir::new().unwrap();
    fs_err::write(folder.path().join("in.csv"), "a,t\n1,x\n2,y\nz,w\n").unwrap();
    let engine = engine(folder.path());
    let columns = json!({"a": "int64", "t": "utf8"});
    let source = json!({"read": folder.path().join("in.csv"), "csv": {"columns": columns}, "max_rejects": 1});
    let mut rows = JobBuilder::read(&engine, source.clone()).await.unwrap();
    let kinds: Vec<_> = rows.schema().fields().iter().map(|field| field.data_type().to_string()).collect();
    assert_eq!(kinds, ["Int64", "Utf8"]);
    let mut count = 0;
    while let Some(batch) = rows.try_next().await.unwrap() {
        assert_eq!(batch.schema(), *rows.schema());
        count += batch.num_rows();
    }
    assert_eq!((count, rows.left_out().len()), (2, 1));

    let mut strict = source;
    strict["max_rejects"] = json!(0);
    let rows = JobBuilder::read(&engine, strict).await.unwrap();
    let failure = rows.try_collect::<Vec<_>>().await.expect_err("`z` is not an int64");
    assert_eq!(failure.errors[0].offending_text(), Some("z"), "{failure}");

    let absent = JobBuilder::read(&engine, json!({"read": folder.path().join("absent.csv")})).await;
    assert!(absent.expect_err("no such file").to_string().contains("absent.csv"));
}

#[tokio::test]
async fn a_plan_of_what_cannot_be_read_twice_is_refused_rather_than_short_of_rows() {
    let folder = TempDir::new().unwrap();
    let engine = engine(folder.path());
    let pipe = folder.path().join("in.pipe");
    crate::runs::make_pipe(&pipe);
    let target = pipe.clone();
    let writer = std::thread::spawn(move || {
        // The reader may leave when it has seen enough.
        let _ = fs_err::write(target, "a\n".to_owned() + &"1\n".repeat(100_000));
    });
    let job = JobBuilder::new()
        .source("rows", json!({"read": pipe, "csv": {}}))
        .sink("out", json!({"from": "rows", "write": folder.path().join("out.csv")}));
    let plan = engine.plan(job.build(&engine).await.unwrap()).await.unwrap();
    writer.join().unwrap();
    let failure =
        engine.start(&plan, RunOptions::default()).unwrap().finish().await.expect_err("rows would be missing");
    assert!(failure.to_string().contains("cannot be read again"), "{failure}");
}
