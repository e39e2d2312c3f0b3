//! Tests of deliveries that send their rows before their turn, against real servers.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::epochs::LaterMoves;
use millstream_core::positions::Positions;
use millstream_core::sink::{Delivered, Delivery};
use serde_json::json;

use super::positions_tests::{deliver, inherit, new_table, p, positions, register, sent, written};
use super::tests::{Database, Kind, for_both, many};

/// With a key, whose values an open transaction locks.
const WITH_KEY: &str = "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(30))";

/// Rows that are sent, whose moves are not known.
async fn ahead(positions: &Arc<dyn Positions>, ids: std::ops::Range<i64>) -> (Box<dyn Delivery>, LaterMoves) {
    let moves = LaterMoves::default();
    let mut delivery = positions.delivery_ahead(Arc::clone(&moves), 0).await.expect("it takes some ahead");
    delivery.write(many(ids)).await.expect("it takes rows");
    assert_eq!(delivery.send().await.expect("it sends them"), 0);
    (delivery, moves)
}

for_both!(
    rows_follow_in_their_turn,
    moves_are_made_between_rows_as_soon_as_they_are_known,
    who_comes_too_late_writes_nothing,
    what_has_no_turn_is_not_there,
    only_what_is_added_is_sent_ahead,
    rows_of_who_is_fenced_are_waited_for_by_nobody,
    rows_of_who_has_stopped_are_not_waited_for_long,
);

async fn rows_follow_in_their_turn(kind: Kind) {
    let database = new_table(kind);
    let own = positions(&database, "a", json!({"connections": 1})).await;
    register(&own).await;
    let mut first = sent(&own, p(1), 0..100).await.expect("it takes rows");
    first.send().await.expect("it sends them");
    // The first one has the place, and is open.
    let behind = tokio::time::timeout(Duration::from_secs(20), ahead(&own, 100..200));
    let (second, moves) = behind.await.expect("it does not wait");
    assert_eq!(database.count(), 0);
    assert_eq!(first.commit().await.expect("it commits"), written(100));
    moves.set(p(2)).expect("they are new");
    assert_eq!(second.commit().await.expect("it commits"), written(100));
    assert_eq!(database.query("SELECT COUNT(*), COUNT(DISTINCT id) FROM t"), ["200\t200"]);
    assert!(matches!(deliver(&own, p(2), 200..300).await, Ok(Delivered::Moved(_))), "it has moved");
}

async fn moves_are_made_between_rows_as_soon_as_they_are_known(kind: Kind) {
    let database = new_table(kind);
    let own = positions(&database, "a", json!({"batch_rows": 10})).await;
    register(&own).await;
    let (mut delivery, moves) = ahead(&own, 0..100).await;
    moves.set(p(1)).expect("they are new");
    delivery.write(many(100..150)).await.expect("it takes rows");
    let other = positions(&database, "b", json!({})).await;
    let fence = other.fence("p", Duration::from_secs(3600), inherit(Arc::default()));
    tokio::time::timeout(Duration::from_millis(300), fence).await.expect_err("it has the place");
    assert_eq!(delivery.commit().await.expect("it commits"), written(150));
    assert_eq!(database.count(), 150);
}

async fn who_comes_too_late_writes_nothing(kind: Kind) {
    let database = new_table(kind);
    let (own, other) = (positions(&database, "a", json!({})).await, positions(&database, "b", json!({})).await);
    register(&own).await;
    let (delivery, moves) = ahead(&own, 0..100).await;
    assert_eq!(deliver(&other, p(1), 0..100).await.expect("it commits"), written(100));
    moves.set(p(1)).expect("they are new");
    let Ok(Delivered::Moved(elsewhere)) = delivery.commit().await else { panic!("others have moved it") };
    assert_eq!((elsewhere.len(), elsewhere[0].version), (1, 2));
    assert_eq!(database.count(), 100);
}

async fn what_has_no_turn_is_not_there(kind: Kind) {
    let database = new_table(kind);
    let own = positions(&database, "a", json!({})).await;
    register(&own).await;
    let (delivery, _) = ahead(&own, 0..100).await;
    delivery.commit().await.expect_err("nobody knows its moves");
    drop(ahead(&own, 0..100).await);
    assert_eq!(deliver(&own, p(1), 0..100).await.expect("it commits"), written(100));
    assert_eq!(database.count(), 100);
}

async fn only_what_is_added_is_sent_ahead(kind: Kind) {
    let database = Database::new(kind, WITH_KEY);
    assert!(positions(&database, "a", json!({})).await.takes_ahead());
    let merging = positions(&database, "b", json!({"mode": "merge", "key": ["id"]})).await;
    assert!(!merging.takes_ahead());
}

async fn rows_of_who_is_fenced_are_waited_for_by_nobody(kind: Kind) {
    let database = Database::new(kind, WITH_KEY);
    let (stopped, other) = (positions(&database, "a", json!({})).await, positions(&database, "b", json!({})).await);
    register(&stopped).await;
    assert_eq!(deliver(&stopped, p(1), 0..10).await.expect("it commits"), written(10));
    let (delivery, moves) = ahead(&stopped, 10..20).await;
    other.fence("p", Duration::from_secs(1), inherit(Arc::default())).await.expect("it is fenced");
    let heir = vec![super::positions_tests::one("heir", Some(1), Some("after 1"))];
    let rows = tokio::time::timeout(Duration::from_secs(20), deliver(&other, heir, 10..20));
    assert_eq!(rows.await.expect("nobody has them locked").expect("it commits"), written(10));
    moves.set(p(2)).expect("they are new");
    delivery.commit().await.expect_err("its connection was ended");
    assert_eq!(database.count(), 20);
}

async fn rows_of_who_has_stopped_are_not_waited_for_long(kind: Kind) {
    let database = Database::new(kind, WITH_KEY);
    let stopped = positions(&database, "a", json!({})).await;
    let other = positions(&database, "b", json!({"lock_timeout": "1s", "retries": 1})).await;
    register(&stopped).await;
    assert_eq!(deliver(&stopped, p(1), 0..10).await.expect("it commits"), written(10));
    let (delivery, moves) = ahead(&stopped, 10..20).await;
    // As a member of a group does to which a partition goes over.
    deliver(&other, p(2), 10..20).await.expect_err("the rows are locked");
    assert_eq!(deliver(&other, p(2), 10..20).await.expect("it commits"), written(10));
    moves.set(p(2)).expect("they are new");
    delivery.commit().await.expect_err("its connection was ended");
    assert_eq!(database.count(), 20);
}
