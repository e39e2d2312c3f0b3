//! Tests of staged loads against real servers: what a run stages, another one finds, and only one of them owns it.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use millstream_core::Result;
use millstream_core::sink::{ARRIVAL, Chunk, Delivered, Delivery, Ledger, LoadContext, StagedLoad};
use serde_json::json;

use super::tests::{Database, Kind, for_both, many, people};
use crate::conformance::context;

/// The name of a load of a run. MariaDB's locks are those of all databases of the server.
fn load_of(database: &Database, run: &str) -> String {
    format!("/{}.yaml\no\nt\n{run}\nstaged", database.name)
}

/// Opens a load, as a run of its own.
async fn open_load(database: &Database, run: &str, take_over: bool) -> Result<StagedLoad> {
    let sink = database.sink(json!({"mode": "merge", "key": ["id"]}));
    let context = LoadContext { schema: people(&[]).schema(), take_over, ..context(1) };
    let of_sink = load_of(database, "").replace("\nstaged", "");
    Ok(sink.staged(&load_of(database, run), &of_sink, context).await?.expect("it can be staged"))
}

async fn open(database: &Database) -> StagedLoad {
    open_load(database, "1-1", true).await.expect("it opens")
}

fn chunk(number: u64) -> Vec<Chunk> {
    vec![Chunk { unit: "a.jsonl".to_owned(), number }]
}

/// Ten rows for a chunk, which have come in the order of the chunks.
fn rows(number: u64) -> RecordBatch {
    let batch = many(number as i64 * 10..number as i64 * 10 + 10);
    let arrivals: ArrayRef = Arc::new(Int64Array::from_iter_values((0..10).map(|row| number as i64 * 1_000 + row)));
    let mut fields: Vec<_> = batch.schema().fields().iter().cloned().collect();
    fields.push(Arc::new(Field::new(ARRIVAL, DataType::Int64, false)));
    let columns = batch.columns().iter().cloned().chain([arrivals]).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).expect("columns of one length")
}

async fn delivery(ledger: &Arc<dyn Ledger>, number: u64) -> Result<Box<dyn Delivery>> {
    let mut delivery = ledger.delivery(chunk(number), 0).await?;
    delivery.write(rows(number)).await?;
    Ok(delivery)
}

async fn deliver(ledger: &Arc<dyn Ledger>, number: u64) -> Result<Delivered> {
    delivery(ledger, number).await?.commit().await
}

fn written(rows: u64) -> Delivered {
    Delivered::Written { rows, refused: vec![] }
}

for_both!(
    what_is_staged_is_found_and_published_once,
    a_run_that_loses_its_load_stages_nothing_more,
    a_load_that_somebody_has_is_left_alone,
    what_is_staged_can_begin_anew,
    a_load_that_fails_leaves_what_it_is_told_to_leave,
);

async fn what_is_staged_is_found_and_published_once(kind: Kind) {
    let database = Database::new(kind, "");
    let first = open(&database).await;
    assert_eq!(deliver(&first.ledger, 0).await.expect("it delivers"), written(10));
    first.load.suspend().await;
    let second = open(&database).await;
    assert_eq!(second.ledger.count().await.expect("it counts"), 1);
    assert_eq!(deliver(&second.ledger, 0).await.expect("it answers"), Delivered::AlreadyDone(chunk(0)));
    assert_eq!(deliver(&second.ledger, 1).await.expect("it delivers"), written(10));
    assert!(!database.tables().contains(&"t".to_owned()), "nothing is visible yet");
    second.load.prepare().await.expect("it prepares");
    let summary = second.load.commit().await.expect("it commits");
    assert!(summary.starts_with("20 rows merged into table t"), "{summary}");
    assert_eq!(second.load.changes().map(|changes| changes.inserted), Some(20));
    assert_eq!(database.count(), 20);
    // A run that does not know it finds it done, and does nothing more.
    let third = open(&database).await;
    assert!(third.load.is_there());
    third.load.prepare().await.expect("there is nothing to do");
    assert!(third.load.commit().await.expect("there is nothing to do").starts_with("nothing new for table t"));
    third.ledger.forget("").await.expect("it is forgotten");
    assert_eq!(database.tables(), ["t"]);
}

async fn a_run_that_loses_its_load_stages_nothing_more(kind: Kind) {
    let database = Database::new(kind, "");
    let first = open(&database).await;
    assert_eq!(deliver(&first.ledger, 0).await.expect("it delivers"), written(10));
    // It holds a transaction open, and the lock of the load.
    let open_delivery = delivery(&first.ledger, 1).await.expect("it takes rows");
    let second = open(&database).await;
    assert!(open_delivery.commit().await.is_err(), "its connection was ended");
    for _ in 0..2 {
        let lost = deliver(&first.ledger, 2).await.expect_err("it has lost its load");
        assert!(
            lost.what().contains("another run has taken over this load") || lost.what().contains("lost"),
            "{lost:?}"
        );
    }
    assert!(first.load.prepare().await.is_err());
    // What it drops is nothing of the other's.
    first.load.abort().await;
    first.ledger.forget("").await.expect("it forgets nothing");
    assert_eq!(second.ledger.count().await.expect("it counts"), 1);
    assert_eq!(deliver(&second.ledger, 1).await.expect("it delivers"), written(10));
    second.load.prepare().await.expect("it prepares");
    second.load.commit().await.expect("it commits");
    assert_eq!(database.count(), 20);
    second.ledger.forget("").await.expect("it is forgotten");
    assert_eq!(database.tables(), ["t"]);
}

async fn a_load_that_somebody_has_is_left_alone(kind: Kind) {
    let database = Database::new(kind, "");
    let first = open(&database).await;
    assert_eq!(deliver(&first.ledger, 0).await.expect("it delivers"), written(10));
    let refused = open_load(&database, "1-1", false).await.err().expect("it is in use");
    assert!(refused.what().contains("another run is loading into table t"), "{refused:?}");
    // Another run of the sink drops what dead runs have left, and nothing of a live one.
    let beside = open_load(&database, "2-2", false).await.expect("it opens");
    beside.load.abort().await;
    assert_eq!(deliver(&first.ledger, 1).await.expect("it delivers"), written(10));
    first.load.suspend().await;
    drop(first);
    let beside = open_load(&database, "2-2", false).await.expect("it opens");
    beside.load.abort().await;
    assert_eq!(database.tables(), Vec::<String>::new());
}

async fn what_is_staged_can_begin_anew(kind: Kind) {
    let database = Database::new(kind, "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(30))");
    let first = open(&database).await;
    assert_eq!(deliver(&first.ledger, 0).await.expect("it delivers"), written(10));
    first.ledger.begin_anew().await.expect("it begins anew");
    assert_eq!(first.ledger.count().await.expect("it counts"), 0);
    assert_eq!(deliver(&first.ledger, 3).await.expect("it delivers"), written(10));
    first.load.prepare().await.expect("it prepares");
    let summary = first.load.commit().await.expect("it commits");
    assert!(summary.starts_with("10 rows merged"), "{summary}");
    assert_eq!(database.query("SELECT MIN(id), MAX(id) FROM t"), ["30\t39"]);
}

async fn a_load_that_fails_leaves_what_it_is_told_to_leave(kind: Kind) {
    let database = Database::new(kind, "");
    let first = open(&database).await;
    assert_eq!(deliver(&first.ledger, 0).await.expect("it delivers"), written(10));
    first.load.prepare().await.expect("it prepares");
    first.load.suspend().await;
    let second = open(&database).await;
    assert_eq!(second.ledger.count().await.expect("it counts"), 1);
    second.load.prepare().await.expect("it prepares");
    second.load.abort().await;
    assert_eq!(database.tables(), Vec::<String>::new());
}
