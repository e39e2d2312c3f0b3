//! SQL over files: the rows of a query as a stream, and the query as a job.

use std::path::Path;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use futures::TryStreamExt;
use millstream::machine::{Asked, Machine};
use millstream::{Engine, JobBuilder, RunOptions};
use serde_json::json;
use tempfile::TempDir;

fn engine(folder: &Path) -> Engine {
    let asked = Asked { cores: Some(2), memory: Some(256 << 20), state: Some(folder.join("state")), scratch: vec![] };
    Engine::builder().machine(Machine::detect(asked).unwrap()).build().unwrap()
}

/// A folder with the numbers below 30,000 in files of its folder `in`.
fn numbers() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs_err::create_dir(folder.path().join("in")).unwrap();
    for part in 0..3 {
        let rows = (0..10_000).map(|row| format!("{};{}\n", part * 10_000 + row, row % 3)).collect::<String>();
        fs_err::write(folder.path().join(format!("in/{part}.dat")), format!("n;k\n{rows}")).unwrap();
    }
    folder
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_is_a_stream_and_a_job() {
    let folder = numbers();
    let engine = engine(folder.path());
    let sql = format!("SELECT k, sum(n) AS total FROM '{}/in/*.dat' GROUP BY k ORDER BY k", folder.path().display());
    let query = engine.query(&sql).await.unwrap();
    let rows = query.rows().await.unwrap();
    let columns: Vec<_> = rows.schema().fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(columns, ["k", "total"]);
    let batches: Vec<_> = rows.try_collect().await.unwrap();
    let totals: Vec<i64> =
        batches.iter().flat_map(|batch| batch.column(1).as_primitive::<Int64Type>().values().to_vec()).collect();
    let expected = [0, 1, 2].map(|k| (0..30_000).filter(|n| n % 10_000 % 3 == k).sum::<i64>());
    assert_eq!(totals, expected);

    let output = folder.path().join("totals.csv");
    let job = JobBuilder::from(&query).sink("result", json!({"from": query.entry(), "write": output}));
    assert!(job.to_string().starts_with(&query.job_file()), "{job}");
    let job = job.build(&engine).await.unwrap();
    engine.start(job, RunOptions::default()).unwrap().finish().await.unwrap();
    let lines = (0..3).map(|k| format!("{k},{}\n", expected[k])).collect::<String>();
    assert_eq!(fs_err::read_to_string(output).unwrap(), format!("k,total\n{lines}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_are_told_in_the_lines_of_the_query() {
    let folder = numbers();
    let engine = engine(folder.path());
    let name = folder.path().join("in/0.dat").display().to_string();
    let query = engine.query(&format!("SELECT k,\n  '{name}' || n + nn\nFROM '{name}' \"a b\"")).await.unwrap();
    let failure = query.rows().await.unwrap_err();
    let lint = &failure.lints[0];
    assert_eq!((lint.path.as_str(), lint.line, lint.column, lint.length), ("query", 2, name.len() + 13, 2), "{lint:?}");
    let failure = engine.query("SELECT *\nFROM 'nowhere.csv'").await.unwrap_err();
    assert_eq!((failure.lints[0].line, failure.lints[0].column, failure.errors.len()), (2, 6, 0));
    // The stream of a query that is dropped ends, and others of the same text begin anew.
    let query = engine.query(&format!("SELECT n FROM '{}/in/{{0..2}}.dat'", folder.path().display())).await.unwrap();
    drop(query.rows().await.unwrap());
    let rows: usize =
        query.rows().await.unwrap().try_fold(0, async |sum, batch| Ok(sum + batch.num_rows())).await.unwrap();
    assert_eq!(rows, 30_000);
}
