//! Tests of merges and of ignored rows by deliveries of queues, against real servers.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use millstream_core::positions::{Move, Moved, Positions};
use millstream_core::sink::{Changes, Delivered, LoadContext, Sink};
use millstream_core::{ErrorKind, Result};
use millstream_testkit::PASSWORD;
use serde_json::{Value, json};

use super::tests::{Database, Kind, for_both, sink};
use crate::conformance::context;

/// A row: id, name and its order.
type Row<'a> = (Option<i64>, &'a str, Option<i64>);

fn batch(rows: &[Row<'_>]) -> RecordBatch {
    let columns: [(&str, ArrayRef, bool); 3] = [
        ("id", Arc::new(rows.iter().map(|row| row.0).collect::<Int64Array>()), true),
        ("name", Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.1))), true),
        ("at", Arc::new(rows.iter().map(|row| row.2).collect::<Int64Array>()), true),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).expect("a batch")
}

async fn open(sink: &Arc<dyn Sink>, load: &str, owner: &str) -> Result<Arc<dyn Positions>> {
    let context = LoadContext { schema: batch(&[]).schema(), ..context(1) };
    Ok(sink.positions(load, owner, context).await?.expect("it keeps them"))
}

fn with(mode: &str, settings: Value) -> Value {
    let mut all = json!({"mode": mode, "key": ["id"]});
    all.as_object_mut().expect("an object").extend(settings.as_object().expect("an object").clone());
    all
}

/// Positions with a place `p`.
async fn positions(database: &Database, mode: &str, settings: Value) -> Arc<dyn Positions> {
    let load = format!("{} merge", database.name);
    let own = open(&database.sink(with(mode, settings)), &load, "a").await.expect("they open");
    let new = Move { place: "p".to_owned(), from: None, to: Some(String::new()) };
    assert_eq!(own.set(vec![new]).await.expect("it is new"), Moved::All);
    own
}

/// Delivers rows with the move from a version.
async fn deliver(positions: &Arc<dyn Positions>, from: u64, rows: &[Row<'_>]) -> Result<Delivered> {
    let moves = vec![Move { place: "p".to_owned(), from: Some(from), to: Some(format!("after {from}")) }];
    let mut delivery = positions.delivery(moves, 5).await?;
    delivery.write(batch(rows)).await?;
    delivery.commit().await
}

fn written(rows: u64) -> Delivered {
    Delivered::Written { rows, refused: vec![] }
}

for_both!(
    epochs_are_merged_one_after_the_other,
    an_older_message_does_not_replace_a_newer_row,
    what_is_there_is_ignored,
    what_only_the_target_refuses_is_found,
    what_was_rolled_back_is_not_merged_later,
    several_merge_into_one_table,
    a_user_without_temporary_tables_gets_a_hint,
);

async fn epochs_are_merged_one_after_the_other(kind: Kind) {
    let database = Database::new(kind, "");
    let own = positions(&database, "merge", json!({"batch_rows": 2})).await;
    let first = [(Some(1), "a", Some(1)), (Some(2), "b", Some(1)), (Some(1), "aa", Some(0)), (Some(4), "d", Some(4))];
    assert_eq!(deliver(&own, 1, &first).await.expect("it delivers"), written(4));
    let second = [(Some(2), "b", Some(1)), (Some(1), "old", Some(0)), (Some(3), "c", None)];
    assert_eq!(deliver(&own, 2, &second).await.expect("it delivers"), written(3));
    assert_eq!(database.rows(), ["1\told\t0", "2\tb\t1", "3\tc\tNULL", "4\td\t4"]);
    let changes = own.changes().expect("rows are compared");
    assert_eq!(changes, Changes { inserted: 4, updated: 1, unchanged: 2, deleted: 0 });
    no_key(&own, 3).await;
    assert_eq!(database.tables(), ["_millstream_positions", "t"]);
    assert!(own.summary(7).starts_with("7 rows merged into table t"), "{}", own.summary(7));
}

/// A row without a key is refused.
async fn no_key(own: &Arc<dyn Positions>, from: u64) {
    let delivered = deliver(own, from, &[(None, "x", None), (Some(9), "y", None)]).await.expect("one is allowed");
    let Delivered::Written { rows: 1, refused } = delivered else { panic!("{delivered:?}") };
    assert_eq!((refused.len(), refused[0].row, refused[0].column.as_deref()), (1, 0, Some("id")));
}

/// Of equal ones the later wins; a null comes last.
async fn an_older_message_does_not_replace_a_newer_row(kind: Kind) {
    let database = Database::new(kind, "");
    let own = positions(&database, "merge", json!({"order_by": ["AT desc"]})).await;
    let first =
        [(Some(1), "old", Some(1)), (Some(1), "new", Some(5)), (Some(1), "late", Some(3)), (Some(2), "null", None)];
    assert_eq!(deliver(&own, 1, &first).await.expect("it delivers"), written(4));
    assert_eq!(database.rows(), ["1\tnew\t5", "2\tnull\tNULL"]);
    let second = [(Some(1), "older", Some(4)), (Some(2), "null too", None)];
    assert_eq!(deliver(&own, 2, &second).await.expect("it delivers"), written(2));
    assert_eq!(database.rows(), ["1\tnew\t5", "2\tnull too\tNULL"]);
    let third = [(Some(1), "equal", Some(5)), (Some(1), "none", None), (Some(2), "some", Some(0))];
    assert_eq!(deliver(&own, 3, &third).await.expect("it delivers"), written(3));
    assert_eq!(database.rows(), ["1\tequal\t5", "2\tsome\t0"]);
    let changes = own.changes().expect("rows are compared");
    assert_eq!((changes.inserted, changes.updated), (2, 3));
}

async fn what_is_there_is_ignored(kind: Kind) {
    for (settings, first) in [(json!({}), "1\ta\t2"), (json!({"order_by": ["at"]}), "1\taa\t1")] {
        let database = Database::new(kind, "");
        let own = positions(&database, "ignore", settings).await;
        let rows = [(Some(1), "a", Some(2)), (Some(1), "aa", Some(1)), (Some(2), "b", None)];
        assert_eq!(deliver(&own, 1, &rows).await.expect("it delivers"), written(3));
        assert_eq!((database.rows(), own.ignored()), (vec![first.to_owned(), "2\tb\tNULL".to_owned()], 1));
        let again = [(Some(2), "c", Some(0)), (Some(3), "d", Some(0))];
        assert_eq!(deliver(&own, 2, &again).await.expect("it delivers"), written(2));
        assert_eq!((database.count(), own.ignored(), own.changes()), (3, 2, None));
        no_key(&own, 3).await;
    }
}

/// Another unique key of the target, its foreign keys: the temporary table has none of these.
async fn what_only_the_target_refuses_is_found(kind: Kind) {
    for (mode, settings) in [
        ("merge", json!({})),
        ("merge", json!({"order_by": ["at"]})),
        ("ignore", json!({})),
        ("ignore", json!({"order_by": ["at"]})),
    ] {
        let database = Database::new(
            kind,
            "CREATE TABLE parent (id BIGINT PRIMARY KEY); INSERT INTO parent VALUES (1), (2); CREATE TABLE t (id \
             BIGINT PRIMARY KEY, name VARCHAR(9) UNIQUE, at BIGINT, FOREIGN KEY (at) REFERENCES parent (id)); INSERT \
             INTO t VALUES (100, 'taken', 1)",
        );
        let own = positions(&database, mode, settings.clone()).await;
        let mut rows: Vec<(Option<i64>, String, Option<i64>)> =
            (0..40).map(|id| (Some(id), format!("n{id}"), Some(1 + id % 2))).collect();
        rows[7].1 = "taken".to_owned();
        rows[20].2 = Some(3);
        rows[21].1 = "much too long".to_owned();
        rows[33].1 = "n32".to_owned();
        let rows: Vec<Row<'_>> = rows.iter().map(|row| (row.0, row.1.as_str(), row.2)).collect();
        let delivered = deliver(&own, 1, &rows).await.unwrap_or_else(|error| panic!("{mode} {settings}: {error:?}"));
        let Delivered::Written { rows, refused } = delivered else { panic!("{delivered:?}") };
        let numbers: Vec<u64> = refused.iter().map(|row| row.row).collect();
        assert_eq!((rows, numbers), (36, vec![7, 20, 21, 33]), "{mode} {settings}: {refused:?}");
        assert_eq!(refused[0].shown, "id='7', name='taken', at='2'");
        assert!(!refused[0].reason.contains("_millstream"), "{refused:?}");
        assert_eq!(database.count(), 37, "{mode} {settings}");
        // Too many are an error, and move nothing.
        let bad: Vec<Row<'_>> = (0..20).map(|id| (Some(200 + id), "taken", Some(1))).collect();
        let error = deliver(&own, 2, &bad).await.expect_err("five are allowed");
        assert_eq!(error.kind(), ErrorKind::Data, "{error:?}");
        assert_eq!((database.count(), own.read().await.expect("it reads")[0].version), (37, 2));
    }
}

async fn what_was_rolled_back_is_not_merged_later(kind: Kind) {
    let database = Database::new(kind, "");
    let own = positions(&database, "merge", json!({"connections": 1})).await;
    let moved = deliver(&own, 7, &[(Some(1), "moved", None)]).await.expect("an answer");
    assert!(matches!(moved, Delivered::Moved(_)), "{moved:?}");
    let moves = vec![Move { place: "p".to_owned(), from: Some(1), to: Some(String::new()) }];
    let mut dropped = own.delivery(moves.clone(), 0).await.expect("a delivery");
    dropped.write(batch(&[(Some(2), "dropped", None)])).await.expect("it takes rows");
    drop(dropped);
    let mut refused = own.delivery(moves, 0).await.expect("a delivery");
    refused.write(batch(&[(None, "refused", None), (Some(3), "refused", None)])).await.expect("it takes rows");
    assert!(refused.commit().await.is_err());
    for from in 1..4 {
        let id = from as i64 + 10;
        assert_eq!(deliver(&own, from, &[(Some(id), "in", None)]).await.expect("it delivers"), written(1));
    }
    assert_eq!(database.rows(), ["11\tin\tNULL", "12\tin\tNULL", "13\tin\tNULL"]);
}

/// Processes with places of their own, whose messages have the same keys.
async fn several_merge_into_one_table(kind: Kind) {
    let database = Database::new(kind, "");
    let load = format!("{} merge", database.name);
    let mut tasks = Vec::new();
    for owner in 0..3_i64 {
        let settings = with("merge", json!({"order_by": ["at desc"], "retries": 20}));
        let own = open(&database.sink(settings), &load, &format!("o{owner}")).await.expect("they open");
        tasks.push(tokio::spawn(async move {
            let place = format!("p{owner}");
            let one = |from, to: &str| vec![Move { place: place.clone(), from, to: Some(to.to_owned()) }];
            assert_eq!(own.set(one(None, "new")).await.expect("it is new"), Moved::All);
            let mut at = 1;
            while at <= 20 {
                let number = at as i64 * 3 + owner;
                let rows: Vec<Row<'_>> = (0..50).map(|id| (Some(id), "x", Some(number))).collect();
                let mut delivery = own.delivery(one(Some(at), "moved"), 0).await.expect("a delivery");
                let delivered = match delivery.write(batch(&rows)).await {
                    Ok(()) => delivery.commit().await,
                    Err(error) => Err(error),
                };
                match delivered {
                    Ok(Delivered::Written { rows: 50, .. }) => at += 1,
                    Err(error) if error.kind() == ErrorKind::Transient => {}
                    other => panic!("{other:?}"),
                }
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    assert_eq!(database.query("SELECT COUNT(*), MIN(at), MAX(at) FROM t"), ["50\t62\t62"]);
}

async fn a_user_without_temporary_tables_gets_a_hint(kind: Kind) {
    let database = Database::new(kind, "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20), at BIGINT)");
    drop(positions(&database, "merge", json!({})).await);
    let user = format!("few_{}", database.name);
    let rights = "SELECT, INSERT, UPDATE, DELETE";
    database.query(&match kind {
        Kind::Mariadb => format!(
            "CREATE USER '{user}'@'%' IDENTIFIED BY '{PASSWORD}'; GRANT {rights} ON {}.* TO '{user}'@'%'",
            database.name
        ),
        Kind::Postgres => format!(
            "REVOKE TEMPORARY ON DATABASE {} FROM PUBLIC; CREATE USER {user} PASSWORD '{PASSWORD}'; GRANT {rights} ON \
             ALL TABLES IN SCHEMA public TO {user}",
            database.name
        ),
    });
    let (start, rest) = database.url.split_once("://").expect("a scheme");
    let (login, rest) = rest.split_once('@').expect("a login");
    let (_, password) = login.split_once(':').expect("a password");
    let url = format!("{start}://{user}:{password}@{rest}");
    open(&sink(&url, json!({})), "load", "a").await.expect("rows are added without");
    let error = open(&sink(&url, with("merge", json!({}))), "load", "a").await.err().expect("it may not");
    assert!(error.hint_text().is_some_and(|hint| hint.contains("GRANT CREATE TEMPORARY TABLES")), "{error:?}");
}
