//! Tests of positions against real servers: each message's row once, whoever else moves its place, and whatever is lost
//! in transit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millstream_core::positions::{Change, Move, Moved, Position, Positions};
use millstream_core::sink::{Delivered, Delivery, LoadContext, Sink};
use millstream_core::{Error, ErrorKind, Result};
use millstream_testkit::{Break, MariaDb, MariaDbOptions, PASSWORD, Postgres, PostgresOptions, Proxy};
use serde_json::{Value, json};

use super::tests::{Database, Kind, for_both, many, people, sink};
use crate::conformance::context;

/// The name of the load. Tags in MariaDB are those of all databases of the server.
fn load_of(database: &Database) -> String {
    format!("{} job.yaml result t group", database.name)
}

async fn try_positions(sink: &Arc<dyn Sink>, load: &str, owner: &str) -> Result<Arc<dyn Positions>> {
    let context = LoadContext { schema: people(&[]).schema(), ..context(1) };
    Ok(sink.positions(load, owner, context).await?.expect("it keeps them"))
}

/// Positions as the process `owner` opens them.
pub(super) async fn positions(database: &Database, owner: &str, settings: Value) -> Arc<dyn Positions> {
    try_positions(&database.sink(settings), &load_of(database), owner).await.expect("they open")
}

pub(super) fn one(place: &str, from: Option<u64>, to: Option<&str>) -> Move {
    Move { place: place.to_owned(), from, to: to.map(str::to_owned) }
}

/// The place `p`, from a version on.
pub(super) fn p(from: u64) -> Vec<Move> {
    vec![one("p", Some(from), Some(&format!("after {from}")))]
}

/// Rows with the numbers of a range on their way, with moves.
pub(super) async fn sent(
    positions: &Arc<dyn Positions>,
    moves: Vec<Move>,
    ids: std::ops::Range<i64>,
) -> Result<Box<dyn Delivery>> {
    let mut delivery = positions.delivery(moves, 0).await?;
    delivery.write(many(ids)).await?;
    Ok(delivery)
}

pub(super) async fn deliver(
    positions: &Arc<dyn Positions>,
    moves: Vec<Move>,
    ids: std::ops::Range<i64>,
) -> Result<Delivered> {
    sent(positions, moves, ids).await?.commit().await
}

pub(super) async fn register(positions: &Arc<dyn Positions>) {
    assert_eq!(positions.set(vec![one("p", None, Some("new"))]).await.expect("it is new"), Moved::All);
}

pub(super) fn written(rows: u64) -> Delivered {
    Delivered::Written { rows, refused: vec![] }
}

/// Place, version, owner and state.
fn seen(positions: &[Position]) -> Vec<(&str, u64, &str, &str)> {
    positions.iter().map(|it| (it.place.as_str(), it.version, it.owner.as_str(), it.state.as_str())).collect()
}

async fn version(positions: &Arc<dyn Positions>) -> u64 {
    positions.read().await.expect("it reads").iter().find(|it| it.place == "p").map_or(0, |it| it.version)
}

/// Without a key, so that only positions prevent duplicates.
pub(super) fn new_table(kind: Kind) -> Database {
    Database::new(kind, "CREATE TABLE t (id BIGINT, name VARCHAR(30))")
}

for_both!(
    of_two_processes_one_moves_a_place,
    places_of_one_process_move_side_by_side,
    merges_of_one_process_go_one_by_one,
    moves_without_rows_are_all_made_or_none,
    what_is_noted_comes_back_as_it_was,
    a_chain_of_moves_by_several_loses_and_doubles_no_row,
    a_swallowed_answer_is_found_out,
    a_silent_commit_is_found_out,
    a_connection_lost_before_the_commit_leaves_nothing,
    a_swallowed_answer_to_moves_without_rows_is_found_out,
    who_has_stopped_is_fenced,
    a_fence_waits_for_who_goes_on,
    a_fence_is_asked_again_if_another_place_moves,
    a_reader_waits_for_what_is_in_doubt,
    bad_rows_are_left_out_as_far_as_allowed,
    a_table_that_is_dropped_meanwhile_moves_nothing,
    a_table_that_was_dropped_is_not_made_again,
    loads_do_not_meet,
    a_newer_table_is_refused,
    settings_that_need_all_rows_are_refused,
    connections_are_those_of_one_process,
    a_user_who_may_not_create_the_table_gets_the_statement,
);

async fn of_two_processes_one_moves_a_place(kind: Kind) {
    let database = new_table(kind);
    let (first, second) = (positions(&database, "a", json!({})).await, positions(&database, "b", json!({})).await);
    register(&first).await;
    for round in 1..=10 {
        let ids = (round as i64 - 1) * 100..round as i64 * 100;
        let (one, other) = (sent(&first, p(round), ids.clone()), sent(&second, p(round), ids));
        let (one, other) = (one.await.expect("it takes rows"), other.await.expect("it takes rows"));
        let (one, other) = tokio::join!(one.commit(), other.commit());
        let mut all = [one.expect("an answer"), other.expect("an answer")];
        all.sort_by_key(|delivered| matches!(delivered, Delivered::Moved(_)));
        let Delivered::Moved(elsewhere) = &all[1] else { panic!("both: {all:?}") };
        assert_eq!(all[0], written(100));
        assert_eq!((elsewhere.len(), elsewhere[0].version), (1, round + 1));
        assert_eq!(elsewhere[0].state, format!("after {round}"));
    }
    assert_eq!(database.query("SELECT COUNT(*), COUNT(DISTINCT id) FROM t"), ["1000\t1000"]);
}

async fn places_of_one_process_move_side_by_side(kind: Kind) {
    let database = new_table(kind);
    // Rows are sent as they come, so that both transactions are open at once.
    let own = positions(&database, "a", json!({"batch_rows": 4})).await;
    assert_eq!(own.connections(), 2);
    let places = vec![one("p", None, Some("new")), one("q", None, Some("new"))];
    assert_eq!(own.set(places).await.expect("they are new"), Moved::All);
    let q = vec![one("q", Some(1), Some("after 1"))];
    let first = sent(&own, p(1), 0..100).await.expect("it takes rows");
    let other = tokio::time::timeout(Duration::from_secs(100), sent(&own, q.clone(), 100..200));
    let other = other.await.expect("it does not wait for the first").expect("it takes rows");
    assert_eq!(other.commit().await.expect("it commits"), written(100));
    drop(first);
    assert!(matches!(deliver(&own, q, 100..200).await, Ok(Delivered::Moved(_))), "only the first is undone");
    assert_eq!(deliver(&own, p(1), 0..100).await.expect("it commits"), written(100));
    assert_eq!(database.query("SELECT COUNT(*), COUNT(DISTINCT id) FROM t"), ["200\t200"]);
}

async fn merges_of_one_process_go_one_by_one(kind: Kind) {
    let database = Database::new(kind, "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(30))");
    for mode in ["merge", "ignore"] {
        let settings = json!({"mode": mode, "key": ["id"], "connections": 3});
        assert_eq!(positions(&database, "a", settings).await.connections(), 1, "{mode}");
    }
}

async fn moves_without_rows_are_all_made_or_none(kind: Kind) {
    let database = new_table(kind);
    let first = positions(&database, "a", json!({})).await;
    assert_eq!(first.read().await.expect("it reads"), []);
    let both = vec![one("x", None, Some("1")), one("y", None, Some("1"))];
    assert_eq!(first.set(both.clone()).await.expect("they are new"), Moved::All);
    let Moved::None(elsewhere) = first.set(both).await.expect("an answer") else { panic!("they are there") };
    assert_eq!(seen(&elsewhere), [("x", 1, "a", "1"), ("y", 1, "a", "1")]);
    // One insertion, one change and one removal, of which the last is not possible.
    let mut mixed = vec![one("z", None, Some("1")), one("x", Some(1), Some("2")), one("y", Some(7), None)];
    let Moved::None(elsewhere) = first.set(mixed.clone()).await.expect("an answer") else { panic!("y is at 1") };
    assert_eq!(seen(&elsewhere), [("y", 1, "a", "1")]);
    assert_eq!(seen(&first.read().await.expect("it reads")), [("x", 1, "a", "1"), ("y", 1, "a", "1")]);
    mixed[2].from = Some(1);
    assert_eq!(first.set(mixed.clone()).await.expect("an answer"), Moved::All);
    assert_eq!(seen(&first.read().await.expect("it reads")), [("x", 2, "a", "2"), ("z", 1, "a", "1")]);
    // What has no position is left out.
    let Moved::None(elsewhere) = first.set(vec![one("y", Some(1), None)]).await.expect("an answer") else { panic!() };
    assert_eq!(elsewhere, []);
    assert_eq!(first.set(vec![]).await.expect("nothing to do"), Moved::All);
    assert!(first.set(vec![one("q", None, None)]).await.is_err());
    // With rows, and with none.
    let removed = deliver(&first, vec![one("z", Some(1), None), one("x", Some(2), Some("3"))], 0..5).await;
    assert_eq!(removed.expect("it delivers"), written(5));
    let empty = first.delivery(vec![one("x", Some(3), Some("4"))], 0).await.expect("a delivery");
    assert_eq!(empty.commit().await.expect("it commits"), written(0));
    assert_eq!(seen(&first.read().await.expect("it reads")), [("x", 4, "a", "4")]);
    first.forget().await.expect("it forgets");
    assert_eq!((first.read().await.expect("it reads"), database.count()), (vec![], 5));
}

async fn what_is_noted_comes_back_as_it_was(kind: Kind) {
    let database = new_table(kind);
    let first = positions(&database, "0123456789abcdef", json!({})).await;
    let place = format!("kafka b1:9092 it's \\ \"é\" {}", "x".repeat(460));
    for state in [String::new(), "it's \\n \n\t\" ` é 🦀 $1 %s".to_owned(), "12-0 ".repeat(200_000)] {
        first.forget().await.expect("it forgets");
        let moves = vec![one(&place, None, Some(&state))];
        assert_eq!(first.set(moves).await.expect("it is new"), Moved::All);
        let there = first.read().await.expect("it reads");
        assert_eq!(seen(&there), [(place.as_str(), 1, "0123456789abcdef", state.as_str())]);
        assert!(there[0].idle < Duration::from_secs(600), "{:?}", there[0].idle);
    }
}

/// Each of four tasks tries to deliver what comes next, and reads again if another one was faster.
async fn a_chain_of_moves_by_several_loses_and_doubles_no_row(kind: Kind) {
    const STEPS: u64 = 200;
    let database = new_table(kind);
    let first = positions(&database, "a", json!({})).await;
    register(&first).await;
    let (conflicts, mut tasks) = (Arc::new(AtomicU64::new(0)), Vec::new());
    for owner in ["b", "c", "d", "e"] {
        let (own, conflicts) = (positions(&database, owner, json!({"batch_rows": 3})).await, Arc::clone(&conflicts));
        tasks.push(tokio::spawn(async move {
            let mut at = version(&own).await;
            while at <= STEPS {
                let ids = (at as i64 - 1) * 5..at as i64 * 5;
                match deliver(&own, p(at), ids).await {
                    Ok(Delivered::Written { rows, .. }) => at += rows / 5,
                    Ok(Delivered::Moved(elsewhere)) => {
                        conflicts.fetch_add(1, Ordering::Relaxed);
                        at = elsewhere[0].version;
                    }
                    Err(error) if error.kind() == ErrorKind::Transient => {}
                    other => panic!("{other:?}"),
                }
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    let rows = STEPS * 5;
    let sum = (0..rows).sum::<u64>();
    let found = database.query("SELECT COUNT(*), SUM(id), COUNT(DISTINCT id) FROM t");
    assert_eq!(found, [format!("{rows}\t{sum}\t{rows}")]);
    assert_eq!(version(&first).await, STEPS + 1);
    assert!(conflicts.load(Ordering::Relaxed) > 0, "they met");
}

/// Positions through a proxy: connections of the kind come one after the other, the first one when they are opened.
async fn behind(database: &Database, proxy: &Proxy, settings: Value) -> Arc<dyn Positions> {
    let sink = sink(&database.behind(proxy.port()), settings);
    try_positions(&sink, &load_of(database), "a").await.expect("they open")
}

async fn a_swallowed_answer_is_found_out(kind: Kind) {
    let database = new_table(kind);
    register(&positions(&database, "z", json!({})).await).await;
    // The first connection opens the positions, the second one delivers.
    let proxy = Proxy::start(database.port(), &[Break::Nothing, Break::SwallowAnswer("COMMIT"), Break::Nothing]);
    let own = behind(&database, &proxy, json!({"retries": 2})).await;
    assert_eq!(deliver(&own, p(1), 0..100).await.expect("it is found out"), written(100));
    assert!(proxy.connections() > 2, "the outcome was asked for");
    assert_eq!(deliver(&own, p(2), 100..200).await.expect("it goes on"), written(100));
    assert_eq!(database.query("SELECT COUNT(*), COUNT(DISTINCT id) FROM t"), ["200\t200"]);
    // A place that another process has moved since says where it stands.
    let other = positions(&database, "z", json!({})).await;
    let moved = other.delivery(p(2), 0).await.expect("a delivery").commit().await.expect("an answer");
    assert!(matches!(&moved, Delivered::Moved(elsewhere) if elsewhere[0].version == 3), "{moved:?}");
}

/// The answer does not come, and the connection stays open.
async fn a_silent_commit_is_found_out(kind: Kind) {
    let database = new_table(kind);
    register(&positions(&database, "z", json!({})).await).await;
    let proxy = Proxy::start(database.port(), &[Break::Nothing, Break::SwallowSilently("COMMIT"), Break::Nothing]);
    let own = behind(&database, &proxy, json!({})).await;
    assert_eq!(deliver(&own, p(1), 0..100).await.expect("it is found out"), written(100));
    assert_eq!((version(&own).await, database.count()), (2, 100));
    // A place that is removed leaves nothing by which that is known: another one may have removed it.
    let proxy = Proxy::start(database.port(), &[Break::Nothing, Break::SwallowSilently("COMMIT"), Break::Nothing]);
    let own = behind(&database, &proxy, json!({})).await;
    let removed = deliver(&own, vec![one("p", Some(2), None)], 100..200).await.expect("it is found out");
    assert_eq!(removed, Delivered::Unknown(vec![]));
    assert_eq!((version(&own).await, database.count()), (0, 200));
}

async fn a_connection_lost_before_the_commit_leaves_nothing(kind: Kind) {
    let database = new_table(kind);
    register(&positions(&database, "z", json!({})).await).await;
    let proxy = Proxy::start(database.port(), &[Break::Nothing]);
    let own = behind(&database, &proxy, json!({"batch_rows": 10})).await;
    let delivery = sent(&own, p(1), 0..100).await.expect("it takes rows");
    proxy.close_all();
    let lost = delivery.commit().await.expect_err("it is lost");
    assert_eq!(lost.kind(), ErrorKind::Transient, "{lost:?}");
    assert_eq!((version(&own).await, database.count()), (1, 0));
    assert_eq!(deliver(&own, p(1), 0..100).await.expect("it is delivered again"), written(100));
    assert_eq!((version(&own).await, database.count()), (2, 100));
}

async fn a_swallowed_answer_to_moves_without_rows_is_found_out(kind: Kind) {
    let database = new_table(kind);
    for silent in [false, true] {
        let kind = if silent { Break::SwallowSilently("COMMIT") } else { Break::SwallowAnswer("COMMIT") };
        let proxy = Proxy::start(database.port(), &[Break::Nothing, kind, kind, Break::Nothing]);
        let own = behind(&database, &proxy, json!({})).await;
        let place = format!("{silent}");
        assert_eq!(own.set(vec![one(&place, None, Some("1"))]).await.expect("it is found out"), Moved::All);
        let to: Change = Box::new(|there: &[Position]| {
            let moved = there.iter().filter(|it| it.state == "1");
            Ok(moved.map(|it| one(&it.place, Some(it.version), Some("fenced"))).collect())
        });
        own.fence(&place, Duration::from_secs(1), to).await.expect("it is found out");
        let there = own.read().await.expect("it reads");
        let it = there.iter().find(|it| it.place == place).expect("it is there");
        assert_eq!((it.version, it.state.as_str()), (2, "fenced"));
    }
}

/// Whether a place was removed meanwhile.
fn is_empty(delivered: &Delivered) -> bool {
    matches!(delivered, Delivered::Moved(now) | Delivered::Unknown(now) if now.is_empty())
}

/// Removes `p`, and gives what it had said to `heir`.
pub(super) fn inherit(seen: Arc<std::sync::Mutex<Vec<Position>>>) -> Change {
    Box::new(move |there: &[Position]| {
        *seen.lock().expect("no panic") = there.to_vec();
        let Some(dead) = there.iter().find(|it| it.place == "p") else { return Ok(vec![]) };
        let heir = there.iter().find(|it| it.place == "heir").map(|it| it.version);
        Ok(vec![one("p", Some(dead.version), None), one("heir", heir, Some(&dead.state))])
    })
}

async fn who_has_stopped_is_fenced(kind: Kind) {
    let database = new_table(kind);
    let (stopped, other) = (positions(&database, "a", json!({})).await, positions(&database, "b", json!({})).await);
    register(&stopped).await;
    assert_eq!(deliver(&stopped, p(1), 0..100).await.expect("it delivers"), written(100));
    // Its rows are sent, and the transaction stays open.
    let open = sent(&positions_of_few(&database).await, p(2), 100..200).await.expect("it takes rows");
    let seen_by = Arc::new(std::sync::Mutex::new(Vec::new()));
    let begun = Instant::now();
    other.fence("p", Duration::from_secs(1), inherit(Arc::clone(&seen_by))).await.expect("it is fenced");
    assert!(begun.elapsed() < Duration::from_secs(45), "{:?}", begun.elapsed());
    assert_eq!(seen(&seen_by.lock().expect("no panic")), [("p", 2, "a", "after 1")]);
    match open.commit().await {
        Err(error) => assert_eq!(error.kind(), ErrorKind::Transient, "{error:?}"),
        Ok(delivered) => assert!(is_empty(&delivered), "{delivered:?}"),
    }
    assert_eq!(deliver(&stopped, p(2), 100..200).await.expect("an answer"), Delivered::Moved(vec![]));
    assert_eq!(seen(&other.read().await.expect("it reads")), [("heir", 1, "b", "after 1")]);
    assert_eq!(database.count(), 100);
    // Once more: there is nothing left to do.
    other.fence("p", Duration::from_secs(1), inherit(seen_by)).await.expect("it is fenced");
    assert_eq!(seen(&other.read().await.expect("it reads")), [("heir", 1, "b", "after 1")]);
}

/// Positions of the process `a` that send each few rows at once.
async fn positions_of_few(database: &Database) -> Arc<dyn Positions> {
    positions(database, "a", json!({"batch_rows": 10})).await
}

async fn a_fence_waits_for_who_goes_on(kind: Kind) {
    let database = new_table(kind);
    let (first, other) = (positions_of_few(&database).await, positions(&database, "b", json!({})).await);
    register(&first).await;
    let open = sent(&first, p(1), 0..100).await.expect("it takes rows");
    let seen_by = Arc::new(std::sync::Mutex::new(Vec::new()));
    let change = inherit(Arc::clone(&seen_by));
    let fencing = tokio::spawn(async move { other.fence("p", Duration::from_secs(20), change).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(open.commit().await.expect("it is waited for"), written(100));
    fencing.await.expect("no panic").expect("it is fenced");
    assert_eq!(seen(&seen_by.lock().expect("no panic")), [("p", 2, "a", "after 1")]);
    assert_eq!(seen(&first.read().await.expect("it reads")), [("heir", 1, "b", "after 1")]);
}

async fn a_fence_is_asked_again_if_another_place_moves(kind: Kind) {
    let database = new_table(kind);
    let (first, other) = (positions(&database, "a", json!({})).await, positions(&database, "b", json!({})).await);
    register(&first).await;
    assert_eq!(first.set(vec![one("heir", None, Some("h"))]).await.expect("it is new"), Moved::All);
    let asked = Arc::new(AtomicU64::new(0));
    let (asking, moving, io) = (Arc::clone(&asked), Arc::clone(&first), tokio::runtime::Handle::current());
    let seen_by = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut inherit = inherit(seen_by);
    let change: Change = Box::new(move |there: &[Position]| {
        let moves = inherit(there)?;
        if asking.fetch_add(1, Ordering::Relaxed) == 0 {
            let moved =
                tokio::task::block_in_place(|| io.block_on(moving.set(vec![one("heir", Some(1), Some("moved"))])));
            assert_eq!(moved?, Moved::All);
        }
        Ok(moves)
    });
    other.fence("p", Duration::from_secs(5), change).await.expect("it is fenced");
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    assert_eq!(seen(&other.read().await.expect("it reads")), [("heir", 3, "b", "new")]);
    let refuse: Change = Box::new(|_: &[Position]| Err(Error::refused("no")));
    let refused = other.fence("p", Duration::from_secs(5), refuse).await.expect_err("its error");
    assert_eq!(refused.what(), "no");
}

/// A transaction takes what one place says into a new one: who reads meanwhile finds it in either, and never in none.
async fn a_reader_waits_for_what_is_in_doubt(kind: Kind) {
    let database = new_table(kind);
    let (first, other) = (positions_of_few(&database).await, positions(&database, "b", json!({})).await);
    register(&first).await;
    let moves = vec![one("p", Some(1), None), one("heir", None, Some("inherited"))];
    let open = sent(&first, moves, 0..100).await.expect("it takes rows");
    let reading = Arc::clone(&other);
    let reading = tokio::spawn(async move { reading.read().await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!reading.is_finished(), "it waits");
    assert_eq!(seen(&other.glance().await.expect("it answers")), [("p", 1, "a", "new")]);
    assert_eq!(open.commit().await.expect("it commits"), written(100));
    let there = reading.await.expect("no panic").expect("it reads");
    assert_eq!(seen(&there), [("heir", 1, "a", "inherited")]);
    // One that is rolled back has moved nothing.
    let open = sent(&first, vec![one("heir", Some(1), Some("other"))], 100..200).await.expect("it takes rows");
    let reading = tokio::spawn(async move { other.read().await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(open);
    let there = reading.await.expect("no panic").expect("it reads");
    assert_eq!(seen(&there), [("heir", 1, "a", "inherited")]);
}

async fn bad_rows_are_left_out_as_far_as_allowed(kind: Kind) {
    let database = Database::new(kind, "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(9))");
    let own = positions(&database, "a", json!({"batch_rows": 4})).await;
    register(&own).await;
    let names = ["ok", "much too long", "ok", "ok", "ok", "much too long", "ok"];
    let rows: Vec<(Option<i64>, &str)> = [1, 2, 3, 3, 4, 5, 6].map(Some).into_iter().zip(names).collect();
    for (bad_rows, is_taken) in [(2, false), (3, true)] {
        let mut delivery = own.delivery(p(1), bad_rows).await.expect("a delivery");
        delivery.write(people(&rows)).await.expect("it takes rows");
        match delivery.commit().await {
            Ok(Delivered::Written { rows, refused }) if is_taken => {
                assert_eq!((rows, refused.iter().map(|row| row.row).collect::<Vec<_>>()), (4, vec![1, 3, 5]));
            }
            Err(error) if !is_taken => {
                assert_eq!(error.kind(), ErrorKind::Data, "{error:?}");
                assert_eq!((version(&own).await, database.count()), (1, 0));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((version(&own).await, database.count()), (2, 4));
}

async fn a_table_that_is_dropped_meanwhile_moves_nothing(kind: Kind) {
    let database = new_table(kind);
    let own = positions(&database, "a", json!({})).await;
    register(&own).await;
    database.query("DROP TABLE t");
    let error = deliver(&own, p(1), 0..100).await.expect_err("there is no table");
    assert_eq!(error.kind(), ErrorKind::Refused, "{error:?}");
    assert_eq!(version(&own).await, 1);
    database.query("DROP TABLE _millstream_positions");
    let error = own.set(p(1)).await.expect_err("there are no positions");
    assert_eq!(error.kind(), ErrorKind::Refused, "{error:?}");
}

async fn a_table_that_was_dropped_is_not_made_again(kind: Kind) {
    let database = new_table(kind);
    register(&positions(&database, "a", json!({})).await).await;
    database.query("DROP TABLE t");
    let error = try_positions(&database.sink(json!({})), &load_of(&database), "b").await.err().expect("it is gone");
    assert!(error.what().contains("messages of queues were in it"), "{error:?}");
    let hint = error.hint_text().expect("a hint");
    let delete = hint.split_once("forget the positions: ").expect("a statement").1;
    database.query(delete);
    assert_eq!(positions(&database, "b", json!({})).await.read().await.expect("it reads"), []);
    assert_eq!(database.count(), 0);
}

async fn loads_do_not_meet(kind: Kind) {
    let database = new_table(kind);
    let first = positions(&database, "a", json!({})).await;
    let other = try_positions(&database.sink(json!({})), "another load", "a").await.expect("they open");
    register(&first).await;
    register(&other).await;
    assert_eq!(deliver(&first, p(1), 0..5).await.expect("it delivers"), written(5));
    assert_eq!((version(&first).await, version(&other).await), (2, 1));
    first.forget().await.expect("it forgets");
    assert_eq!((version(&first).await, version(&other).await), (0, 1));
}

async fn a_newer_table_is_refused(kind: Kind) {
    let database = new_table(kind);
    drop(positions(&database, "a", json!({})).await);
    database.query(match kind {
        Kind::Mariadb => "ALTER TABLE _millstream_positions COMMENT = 'Millstream positions, version 2'",
        Kind::Postgres => "COMMENT ON TABLE _millstream_positions IS 'Millstream positions, version 2'",
    });
    let error = try_positions(&database.sink(json!({})), "load", "b").await.err().expect("it is newer");
    assert!(error.what().contains("`_millstream_positions` beside table t of"), "{error:?}");
    assert!(error.what().ends_with("was written by a newer version of Millstream"), "{error:?}");
}

async fn settings_that_need_all_rows_are_refused(kind: Kind) {
    let database = Database::new(kind, "");
    for (settings, named) in [
        (json!({"mode": "replace"}), "mode: replace"),
        (json!({"mode": "truncate"}), "mode: truncate"),
        (json!({"mode": "history", "key": ["id"], "missing": "keep"}), "mode: history"),
        (json!({"mode": "sync", "key": ["id"], "missing": "keep"}), "mode: sync"),
        (json!({"atomic": true}), "atomic"),
        (json!({"key": ["id"], "defer_key": true}), "defer_key"),
        (json!({"defer_indexes": true}), "defer_indexes"),
        (json!({"before": ["SELECT 1"]}), "before"),
        (json!({"after": ["SELECT 1"]}), "after"),
    ] {
        let sink = database.sink(settings);
        assert!(!sink.may_keep_positions(), "{named}");
        let error = try_positions(&sink, "load", "a").await.err().expect("it needs an end");
        assert!(error.what().starts_with(&format!("`{named}` cannot be used for rows of a queue")), "{error:?}");
    }
    assert!(database.sink(json!({})).may_keep_positions());
    assert_eq!(database.tables(), Vec::<String>::new());
    let nobody = try_positions(&database.sink(json!({})), "load", "").await.err().expect("it has no name");
    assert_eq!(nobody.kind(), ErrorKind::Internal);
}

async fn connections_are_those_of_one_process(kind: Kind) {
    let database = new_table(kind);
    let (first, other) = (positions(&database, "a", json!({})).await, positions(&database, "b", json!({})).await);
    register(&first).await;
    assert_eq!(other.connections_of("nobody").await.expect("it answers"), Some(0));
    assert!(other.connections_of("a").await.expect("it answers").is_some_and(|count| count > 0));
    drop(first);
    let begun = Instant::now();
    while other.connections_of("a").await.expect("it answers") != Some(0) {
        assert!(begun.elapsed() < Duration::from_secs(120), "they have ended");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Kills the server while several processes deliver to places of their own, and starts it again.
async fn survives_kills(url: String, mut kill_and_restart: impl FnMut()) {
    let sink = sink(&url, json!({"retries": 20, "batch_rows": 4}));
    let mut tasks = Vec::new();
    for place in 0..3_i64 {
        let own = try_positions(&sink, "load", &format!("p{place}")).await.expect("they open");
        let name = format!("place {place}");
        assert_eq!(own.set(vec![one(&name, None, Some(""))]).await.expect("it is new"), Moved::All);
        tasks.push(tokio::spawn(async move {
            let mut at = 1;
            while at <= 60 {
                let first = place * 10_000 + at as i64 * 10;
                match deliver(&own, vec![one(&name, Some(at), Some("x"))], first..first + 10).await {
                    Ok(Delivered::Written { rows, .. }) => at += rows / 10,
                    // What became of an earlier attempt is known by now.
                    Ok(Delivered::Moved(elsewhere) | Delivered::Unknown(elsewhere)) => at = elsewhere[0].version,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Transient, "{error:?}"),
                    Ok(other) => panic!("{other:?}"),
                }
            }
        }));
    }
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        tokio::task::block_in_place(&mut kill_and_restart);
    }
    for task in tasks {
        task.await.expect("no panic");
    }
}

const ONCE: &str = "SELECT COUNT(*), COUNT(DISTINCT id) FROM t";

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_mariadb_has_each_row_once() {
    let mut server = MariaDb::start(MariaDbOptions::default());
    let name = server.database();
    server.query(&name, "CREATE TABLE t (id BIGINT, name VARCHAR(30))");
    survives_kills(server.url(&name), || {
        server.kill();
        server.restart();
    })
    .await;
    assert_eq!(server.query(&name, ONCE), ["1800\t1800"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_postgres_has_each_row_once() {
    let mut server = Postgres::start(PostgresOptions::default());
    let name = server.database();
    server.query(&name, "CREATE TABLE t (id BIGINT, name VARCHAR(30))");
    survives_kills(server.url(&name), || {
        server.kill();
        server.restart();
    })
    .await;
    assert_eq!(server.query(&name, ONCE), ["1800\t1800"]);
}

/// A user who may not create tables, and who may write to `t`.
fn with_few_rights(database: &Database) -> (String, String) {
    let user = format!("few_{}", database.name);
    database.query(&match database.kind {
        Kind::Mariadb => format!(
            "CREATE USER '{user}'@'%' IDENTIFIED BY '{PASSWORD}'; GRANT SELECT, INSERT ON {}.t TO '{user}'@'%'",
            database.name
        ),
        Kind::Postgres => format!(
            "REVOKE CREATE ON SCHEMA public FROM PUBLIC; CREATE USER {user} PASSWORD '{PASSWORD}'; GRANT SELECT, \
             INSERT ON t TO {user}"
        ),
    });
    let (start, rest) = database.url.split_once("://").expect("a scheme");
    let (login, rest) = rest.split_once('@').expect("a login");
    let (_, password) = login.split_once(':').expect("a password");
    (format!("{start}://{user}:{password}@{rest}"), user)
}

/// The hint has the statement by which another user can create the table.
async fn a_user_who_may_not_create_the_table_gets_the_statement(kind: Kind) {
    let database = new_table(kind);
    let (url, user) = with_few_rights(&database);
    let load = load_of(&database);
    let error = try_positions(&sink(&url, json!({})), &load, "a").await.err().expect("it may not");
    assert!(error.what().contains("cannot be created"), "{error:?}");
    assert!(error.cause_text().is_some_and(|cause| cause.contains("denied")), "{error:?}");
    let create = error.hint_text().and_then(|hint| hint.split_once("ON it: ")).expect("a statement").1.to_owned();
    database.query(&create);
    let told = |error: &Error| error.hint_text().is_some_and(|hint| hint.contains("GRANT SELECT, INSERT, UPDATE"));
    let error = match try_positions(&sink(&url, json!({})), &load, "a").await {
        // In MySQL tables that may not be read cannot be seen.
        Err(error) => error,
        Ok(own) => own.set(vec![one("p", None, Some("new"))]).await.expect_err("it is another user's"),
    };
    assert!(told(&error), "{error:?}");
    let to = if kind == Kind::Mariadb { format!("'{user}'@'%'") } else { user };
    database.query(&format!("GRANT SELECT, INSERT, UPDATE, DELETE ON _millstream_positions TO {to}"));
    let own = try_positions(&sink(&url, json!({})), &load, "a").await.expect("they open");
    register(&own).await;
    assert_eq!(deliver(&own, p(1), 0..10).await.expect("it delivers"), written(10));
}
