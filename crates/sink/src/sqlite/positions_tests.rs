//! Tests of positions in a SQLite database: each message's row once, whoever else moves its place.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use millstream_core::positions::{Change, Move, Moved, Position, Positions};
use millstream_core::sink::{Changes, Delivered, LoadContext, RefusedRow, Sink, SinkParts};
use millstream_core::{ErrorKind, Result};
use rusqlite::Connection;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::build;
use crate::conformance::context;

/// A row: id, name and its order.
type Row = (Option<i64>, &'static str, Option<i64>);

fn batch(rows: &[Row]) -> RecordBatch {
    let columns: [(&str, ArrayRef, bool); 3] = [
        ("id", Arc::new(rows.iter().map(|row| row.0).collect::<Int64Array>()), true),
        ("name", Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.1))), true),
        ("at", Arc::new(rows.iter().map(|row| row.2).collect::<Int64Array>()), true),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).expect("a batch")
}

fn plain(ids: std::ops::Range<i64>) -> RecordBatch {
    batch(&ids.map(|id| (Some(id), "x", Some(id))).collect::<Vec<Row>>())
}

struct Database {
    _folder: TempDir,
    path: PathBuf,
}

impl Database {
    fn new(statements: &str) -> Self {
        let folder = TempDir::new().expect("a folder");
        let path = folder.path().join("x.db");
        if !statements.is_empty() {
            Connection::open(&path).and_then(|connection| connection.execute_batch(statements)).expect("statements");
        }
        Database { _folder: folder, path }
    }

    fn number(&self, sql: &str) -> i64 {
        Connection::open(&self.path).expect("a database").query_row(sql, [], |row| row.get(0)).expect("a number")
    }

    fn rows(&self) -> Vec<String> {
        let connection = Connection::open(&self.path).expect("a database");
        let query = "SELECT format('%d %s %s', id, name, coalesce(at, 'NULL')) FROM t ORDER BY id";
        let mut query = connection.prepare(query).expect("a query");
        query.query_map([], |row| row.get(0)).expect("an answer").collect::<rusqlite::Result<_>>().expect("rows")
    }

    async fn open(&self, owner: &str, settings: Value) -> Result<Arc<dyn Positions>> {
        let context = LoadContext { schema: batch(&[]).schema(), ..context(1) };
        Ok(sink(&self.path, settings).positions("load", owner, context).await?.expect("it keeps them"))
    }

    async fn positions(&self, owner: &str, settings: Value) -> Arc<dyn Positions> {
        self.open(owner, settings).await.expect("they open")
    }
}

fn sink(path: &Path, settings: Value) -> Arc<dyn Sink> {
    let mut all = json!({"table": "t"});
    all.as_object_mut().expect("an object").extend(settings.as_object().expect("an object").clone());
    let parts = SinkParts { target: format!("sqlite:{}", path.display()), format: None, codec: None, store: None };
    build(&all, parts).expect("valid settings")
}

fn one(place: &str, from: Option<u64>, to: Option<&str>) -> Move {
    Move { place: place.to_owned(), from, to: to.map(str::to_owned) }
}

fn p(from: u64) -> Vec<Move> {
    vec![one("p", Some(from), Some(&format!("after {from}")))]
}

async fn register(positions: &Arc<dyn Positions>) {
    assert_eq!(positions.set(vec![one("p", None, Some("new"))]).await.expect("it is new"), Moved::All);
}

async fn deliver(positions: &Arc<dyn Positions>, moves: Vec<Move>, rows: RecordBatch) -> Result<Delivered> {
    let mut delivery = positions.delivery(moves, 5).await?;
    delivery.write(rows).await?;
    delivery.commit().await
}

fn seen(positions: &[Position]) -> Vec<(&str, u64, &str, &str)> {
    positions.iter().map(|it| (it.place.as_str(), it.version, it.owner.as_str(), it.state.as_str())).collect()
}

fn written(rows: u64) -> Delivered {
    Delivered::Written { rows, refused: vec![] }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_moves_by_several_loses_and_doubles_no_row() {
    const STEPS: u64 = 200;
    let database = Database::new("");
    register(&database.positions("a", json!({})).await).await;
    let mut tasks = Vec::new();
    for owner in ["b", "c", "d", "e"] {
        let own = database.positions(owner, json!({})).await;
        tasks.push(tokio::spawn(async move {
            let (mut at, mut conflicts) = (1, 0);
            while at <= STEPS {
                let ids = (at as i64 - 1) * 5..at as i64 * 5;
                match deliver(&own, p(at), plain(ids)).await.expect("an answer") {
                    Delivered::Written { rows, .. } => at += rows / 5,
                    Delivered::Moved(elsewhere) => {
                        conflicts += 1;
                        at = elsewhere[0].version;
                    }
                    Delivered::AlreadyDone(_) | Delivered::Unknown(_) => panic!("it is its own file"),
                }
            }
            conflicts
        }));
    }
    let mut conflicts = 0;
    for task in tasks {
        conflicts += task.await.expect("no panic");
    }
    assert!(conflicts > 0, "they met");
    assert_eq!(database.number("SELECT count(*) FROM t"), 1_000);
    assert_eq!(database.number("SELECT count(DISTINCT id) FROM t"), 1_000);
    assert_eq!(database.number("SELECT version FROM _millstream_positions"), 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn moves_are_all_made_or_none() {
    let database = Database::new("");
    let own = database.positions("a", json!({})).await;
    let both = vec![one("x", None, Some("it's \n1")), one("y", None, Some("1"))];
    assert_eq!(own.set(both.clone()).await.expect("they are new"), Moved::All);
    let Moved::None(elsewhere) = own.set(both).await.expect("an answer") else { panic!("they are there") };
    assert_eq!(seen(&elsewhere), [("x", 1, "a", "it's \n1"), ("y", 1, "a", "1")]);
    let mut mixed = vec![one("z", None, Some("1")), one("x", Some(1), Some("2")), one("y", Some(7), None)];
    let Moved::None(elsewhere) = own.set(mixed.clone()).await.expect("an answer") else { panic!("y is at 1") };
    assert_eq!(seen(&elsewhere), [("y", 1, "a", "1")]);
    let moved = deliver(&own, mixed.clone(), plain(0..9)).await.expect("an answer");
    assert!(matches!(moved, Delivered::Moved(_)), "{moved:?}");
    assert_eq!(own.read().await.expect("it reads").len(), 2);
    mixed[2].from = Some(1);
    assert_eq!(deliver(&own, mixed, plain(0..9)).await.expect("it delivers"), written(9));
    let there = own.read().await.expect("it reads");
    assert_eq!(seen(&there), [("x", 2, "a", "2"), ("z", 1, "a", "1")]);
    assert_eq!(there, own.glance().await.expect("it reads"));
    let empty = own.delivery(vec![one("x", Some(2), Some("3"))], 0).await.expect("a delivery");
    assert_eq!(empty.commit().await.expect("it commits"), written(0));
    own.forget().await.expect("it forgets");
    assert_eq!((own.read().await.expect("it reads"), database.number("SELECT count(*) FROM t")), (vec![], 9));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_changes_what_another_process_has_moved() {
    let database = Database::new("");
    let (first, other) = (database.positions("a", json!({})).await, database.positions("b", json!({})).await);
    register(&first).await;
    let change: Change = Box::new(|there: &[Position]| {
        assert_eq!(seen(there), [("p", 1, "a", "new")]);
        Ok(vec![one("p", Some(1), None), one("heir", None, Some("new"))])
    });
    other.fence("p", Duration::from_secs(1), change).await.expect("it is fenced");
    assert_eq!(deliver(&first, p(1), plain(0..9)).await.expect("an answer"), Delivered::Moved(vec![]));
    assert_eq!(seen(&first.read().await.expect("it reads")), [("heir", 1, "b", "new")]);
    assert_eq!(other.connections_of("a").await.expect("it answers"), None);
    let wrong: Change = Box::new(|_: &[Position]| Ok(vec![one("heir", Some(7), None)]));
    let wrong = other.fence("heir", Duration::from_secs(1), wrong).await.expect_err("a bug");
    assert_eq!(wrong.kind(), ErrorKind::Internal);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_with_the_write_lock_is_waited_for() {
    let database = Database::new("");
    let own = database.positions("a", json!({"busy_timeout": "1s"})).await;
    register(&own).await;
    let patient = database.positions("a", json!({"busy_timeout": "10m"})).await;
    let holder = Connection::open(&database.path).expect("a database");
    let held = "BEGIN IMMEDIATE; UPDATE _millstream_positions SET version = 2, state = 'held'";
    holder.execute_batch(held).expect("the lock");
    assert_eq!(seen(&own.glance().await.expect("it does not wait")), [("p", 1, "a", "new")]);
    let late = deliver(&own, p(1), plain(0..9)).await.expect_err("it is locked");
    assert_eq!(late.kind(), ErrorKind::Transient, "{late:?}");
    assert_eq!(own.read().await.expect_err("it is locked").kind(), ErrorKind::Transient);
    let waiting = tokio::spawn(async move { deliver(&patient, p(1), plain(0..9)).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    holder.execute_batch("COMMIT").expect("it commits");
    let moved = waiting.await.expect("no panic").expect("an answer");
    assert!(matches!(&moved, Delivered::Moved(there) if seen(there) == [("p", 2, "a", "held")]), "{moved:?}");
    assert_eq!(deliver(&own, p(2), plain(0..9)).await.expect("it delivers"), written(9));
    holder.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    let long = database.positions("b", json!({"busy_timeout": "10m"}));
    let begun = Instant::now();
    tokio::pin!(long);
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut long).await.is_err(), "it waits");
    holder.execute_batch("ROLLBACK").expect("it ends");
    let long = long.await;
    holder.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    let stopping = Arc::clone(&long);
    let waiting = tokio::spawn(async move { deliver(&stopping, p(3), plain(0..9)).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(long.stop_waiting());
    assert!(waiting.await.expect("no panic").is_err());
    assert!(begun.elapsed() < Duration::from_secs(60), "it has not waited for ten minutes");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_rows_are_left_out_and_the_rest_is_there() {
    for settings in [
        json!({}),
        json!({"mode": "merge", "key": ["id"]}),
        json!({"mode": "merge", "key": ["id"], "order_by": ["at"]}),
        json!({"mode": "ignore", "key": ["id"], "order_by": ["at"]}),
    ] {
        let database =
            Database::new("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT CHECK (length(name) < 9), at INT)");
        let own = database.positions("a", settings.clone()).await;
        register(&own).await;
        let rows = batch(&[(Some(1), "a", None), (Some(2), "much too long", None), (Some(3), "c", Some(1))]);
        let Delivered::Written { rows, refused } = deliver(&own, p(1), rows).await.expect("one is allowed") else {
            panic!("{settings}: it was not moved")
        };
        assert_eq!((rows, refused.iter().map(|row| row.row).collect::<Vec<_>>()), (2, vec![1]), "{settings}");
        assert_eq!(database.rows(), ["1 a NULL", "3 c 1"], "{settings}");
        let mut none = own.delivery(p(2), 0).await.expect("a delivery");
        none.write(batch(&[(Some(4), "d", None), (Some(5), "much too long", None)])).await.expect("it takes rows");
        assert_eq!(none.commit().await.expect_err("none is allowed").kind(), ErrorKind::Data);
        assert_eq!(database.number("SELECT version FROM _millstream_positions"), 2);
        assert_eq!(database.rows().len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn epochs_are_merged_one_after_the_other() {
    let database = Database::new("");
    let own = database.positions("a", json!({"mode": "merge", "key": ["id"]})).await;
    register(&own).await;
    let first = batch(&[(Some(1), "a", Some(1)), (Some(2), "b", Some(1)), (Some(1), "aa", Some(0))]);
    assert_eq!(deliver(&own, p(1), first).await.expect("it delivers"), written(3));
    let second = batch(&[(Some(2), "b", Some(1)), (Some(1), "old", Some(0)), (Some(3), "c", None)]);
    assert_eq!(deliver(&own, p(2), second).await.expect("it delivers"), written(3));
    assert_eq!(database.rows(), ["1 old 0", "2 b 1", "3 c NULL"]);
    let changes = own.changes().expect("rows are compared");
    assert_eq!(changes, Changes { inserted: 3, updated: 2, unchanged: 1, deleted: 0 });
    no_key(&own, 3).await;
}

/// A row without a key is refused.
async fn no_key(own: &Arc<dyn Positions>, from: u64) {
    let delivered = deliver(own, p(from), batch(&[(None, "x", None), (Some(9), "y", None)])).await;
    let Delivered::Written { rows: 1, refused } = delivered.expect("one is allowed") else { panic!("one row") };
    let [RefusedRow { row: 0, column, .. }] = &refused[..] else { panic!("{refused:?}") };
    assert_eq!(column.as_deref(), Some("id"));
}

/// Of equal ones the later wins; a null comes last.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_message_does_not_replace_a_newer_row() {
    let database = Database::new("");
    let own = database.positions("a", json!({"mode": "merge", "key": ["id"], "order_by": ["at desc"]})).await;
    register(&own).await;
    let first = batch(&[
        (Some(1), "old", Some(1)),
        (Some(1), "new", Some(5)),
        (Some(1), "late", Some(3)),
        (Some(2), "null", None),
    ]);
    assert_eq!(deliver(&own, p(1), first).await.expect("it delivers"), written(4));
    assert_eq!(database.rows(), ["1 new 5", "2 null NULL"]);
    let second = batch(&[(Some(1), "older", Some(4)), (Some(2), "null too", None)]);
    assert_eq!(deliver(&own, p(2), second).await.expect("it delivers"), written(2));
    assert_eq!(database.rows(), ["1 new 5", "2 null too NULL"]);
    let third = batch(&[(Some(1), "equal", Some(5)), (Some(1), "none", None), (Some(2), "some", Some(0))]);
    assert_eq!(deliver(&own, p(3), third).await.expect("it delivers"), written(3));
    assert_eq!(database.rows(), ["1 equal 5", "2 some 0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_there_is_ignored() {
    for (settings, first) in [(json!({}), "1 a 2"), (json!({"order_by": ["at"]}), "1 aa 1")] {
        let database = Database::new("");
        let mut all = json!({"mode": "ignore", "key": ["id"]});
        all.as_object_mut().expect("an object").extend(settings.as_object().expect("an object").clone());
        let own = database.positions("a", all).await;
        register(&own).await;
        let rows = batch(&[(Some(1), "a", Some(2)), (Some(1), "aa", Some(1)), (Some(2), "b", None)]);
        assert_eq!(deliver(&own, p(1), rows).await.expect("it delivers"), written(3));
        assert_eq!((database.rows(), own.ignored()), (vec![first.to_owned(), "2 b NULL".to_owned()], 1));
        let again = batch(&[(Some(2), "c", Some(0)), (Some(3), "d", Some(0))]);
        assert_eq!(deliver(&own, p(2), again).await.expect("it delivers"), written(2));
        assert_eq!((database.rows().len(), own.ignored()), (3, 2));
        no_key(&own, 3).await;
        assert_eq!(own.changes(), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_was_dropped_is_not_made_again() {
    let database = Database::new("");
    let own = database.positions("a", json!({})).await;
    register(&own).await;
    Connection::open(&database.path).and_then(|connection| connection.execute_batch("DROP TABLE t")).expect("it drops");
    let error = deliver(&own, p(1), plain(0..9)).await.expect_err("there is no table");
    assert_ne!(error.kind(), ErrorKind::Transient, "{error:?}");
    assert_eq!(database.number("SELECT version FROM _millstream_positions"), 1);
    let error = database.open("b", json!({})).await.err().expect("it is gone");
    assert!(error.what().contains("messages of queues were in it"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_is_refused() {
    let database = Database::new("");
    for (settings, named) in [
        (json!({"mode": "replace"}), "mode: replace"),
        (json!({"mode": "truncate"}), "mode: truncate"),
        (json!({"mode": "history", "key": ["id"], "missing": "keep"}), "mode: history"),
        (json!({"atomic": true}), "atomic"),
        (json!({"defer_indexes": true}), "defer_indexes"),
        (json!({"before": ["SELECT 1"]}), "before"),
        (json!({"after": ["SELECT 1"]}), "after"),
    ] {
        assert!(!sink(&database.path, settings.clone()).may_keep_positions(), "{named}");
        let error = database.open("a", settings).await.err().expect("it needs an end");
        assert!(error.what().starts_with(&format!("`{named}` cannot be used for rows of a queue")), "{error:?}");
    }
    assert!(!database.path.exists());
    let newer = "CREATE TABLE _millstream_positions (x /* Millstream positions, version 2 */)";
    let database = Database::new(newer);
    let error = database.open("a", json!({})).await.err().expect("it is newer");
    assert!(error.what().ends_with("was written by a newer version of Millstream"), "{error:?}");
}
