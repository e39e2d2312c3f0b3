//! Tests of the ledger in a SQLite database: every chunk once, with any deliveries.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use millstream_core::ErrorKind;
use millstream_core::sink::{Chunk, Delivered, Ledger, LoadContext, SinkParts};
use rusqlite::Connection;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::build;
use crate::conformance::context;

fn chunks(numbers: std::ops::Range<u64>) -> Vec<Chunk> {
    numbers.map(|number| Chunk { unit: "in/a.csv 1700000000 77".to_owned(), number }).collect()
}

/// A hundred rows for each chunk; those of `long` have a name that is too long.
fn rows(numbers: std::ops::Range<u64>, long: &[i64]) -> RecordBatch {
    let ids = numbers.start as i64 * 100..numbers.end as i64 * 100;
    let names = ids.clone().map(|id| if long.contains(&id) { "much too long" } else { "fits" });
    let columns: [(&str, ArrayRef); 2] = [
        ("id", Arc::new(Int64Array::from_iter_values(ids.clone()))),
        ("name", Arc::new(StringArray::from_iter_values(names))),
    ];
    RecordBatch::try_from_iter(columns).expect("a batch")
}

async fn ledger(path: &Path, settings: Value) -> Option<Arc<dyn Ledger>> {
    let parts = SinkParts { target: format!("sqlite:{}", path.display()), format: None, codec: None, store: None };
    let sink = build(&settings, parts).expect("valid settings");
    let context = LoadContext { schema: rows(0..1, &[]).schema(), ..context(1) };
    sink.ledger("job.yaml result", context).await.expect("it opens")
}

async fn deliver(
    ledger: &Arc<dyn Ledger>,
    numbers: std::ops::Range<u64>,
    long: &[i64],
    bad_rows: usize,
) -> millstream_core::Result<Delivered> {
    let mut delivery = ledger.delivery(chunks(numbers.clone()), bad_rows).await?;
    delivery.write(rows(numbers, long)).await?;
    delivery.commit().await
}

fn query(path: &Path, sql: &str) -> i64 {
    Connection::open(path).expect("a database").query_row(sql, [], |row| row.get(0)).expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn each_chunk_is_written_once_by_the_first_writer() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("new/x.db");
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let ledger = ledger(&path, json!({"table": "t"})).await.expect("there is one");
        tasks.push(tokio::spawn(async move {
            let mut own = 0;
            for group in 0..10 {
                match deliver(&ledger, group * 2..group * 2 + 2, &[], 0).await.expect("it delivers") {
                    Delivered::Written { rows, .. } => own += rows,
                    Delivered::AlreadyDone(there) => assert_eq!(there, chunks(group * 2..group * 2 + 2)),
                    Delivered::Moved(_) | Delivered::Unknown(_) => panic!("a ledger has no positions"),
                }
            }
            own
        }));
    }
    let mut all = 0;
    for task in tasks {
        all += task.await.expect("no panic");
    }
    assert_eq!((all, query(&path, "SELECT count(*) FROM t")), (2_000, 2_000));
    assert_eq!(query(&path, "SELECT count(DISTINCT id) FROM t"), 2_000);
    assert_eq!(query(&path, "SELECT count(*) FROM _millstream_ledger WHERE chunk >= 0"), 20);
    let later = ledger(&path, json!({"table": "t"})).await.expect("there is one");
    assert_eq!(later.done(&chunks(18..25)).await.expect("it answers"), chunks(18..20));
    let known = later.loads().await.expect("it answers");
    assert_eq!((known.len(), known[0].load.as_str(), known[0].chunks), (1, "job.yaml result", 20));
    assert!(known[0].idle_seconds < 600, "{known:?}");
    later.forget("job.yaml result").await.expect("it forgets");
    assert_eq!(query(&path, "SELECT count(*) FROM sqlite_schema WHERE name LIKE '%ledger%'"), 0);
    assert_eq!(later.loads().await.expect("it answers"), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_earlier_writes_are_reported_as_done() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("x.db");
    let ledger = ledger(&path, json!({"table": "t"})).await.expect("there is one");
    let written = Delivered::Written { rows: 100, refused: vec![] };
    assert_eq!(deliver(&ledger, 2..3, &[], 0).await.expect("it delivers"), written);
    assert_eq!(deliver(&ledger, 0..4, &[], 0).await.expect("it answers"), Delivered::AlreadyDone(chunks(2..3)));
    assert_eq!(query(&path, "SELECT count(*) FROM t"), 100);
    assert_eq!(ledger.done(&chunks(0..4)).await.expect("it answers"), chunks(2..3));
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_rows_are_left_out_as_far_as_allowed() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("x.db");
    let table = "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT CHECK (length(name) < 9))";
    Connection::open(&path).and_then(|connection| connection.execute_batch(table)).expect("a table");
    let ledger = ledger(&path, json!({"table": "t"})).await.expect("there is one");
    let error = deliver(&ledger, 0..2, &[3, 150, 199], 2).await.expect_err("there are three");
    assert_eq!(error.kind(), ErrorKind::Data);
    assert_eq!(query(&path, "SELECT count(*) FROM t"), 0);
    let delivered = deliver(&ledger, 0..2, &[3, 150, 199], 3).await.expect("three are allowed");
    let Delivered::Written { rows, refused } = delivered else { panic!("it was not done") };
    assert_eq!((rows, refused.iter().map(|row| row.row).collect::<Vec<_>>()), (197, vec![3, 150, 199]));
    assert_eq!(refused[0].shown, "id=3, name='much too long'");
    assert!(refused[0].reason.starts_with("CHECK constraint failed"), "{refused:?}");
    assert_eq!(query(&path, "SELECT count(*) FROM t"), 197);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_appears_at_once_has_no_ledger() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("x.db");
    assert!(ledger(&path, json!({"table": "t", "mode": "replace"})).await.is_none());
    assert!(!path.exists());
}
