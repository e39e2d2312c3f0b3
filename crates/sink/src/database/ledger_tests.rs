//! Tests of the ledger against real servers: every chunk once, whatever is lost in transit.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use millstream_core::sink::{Accept, Chunk, Delivered, Delivery, Kept, Ledger, LoadContext, Sink, WorkerPart};
use millstream_core::{ErrorKind, Result};
use millstream_testkit::{Break, MariaDb, MariaDbOptions, Postgres, PostgresOptions, Proxy};
use serde_json::{Value, json};

use super::tests::{Database, Kind, for_both, many, people, sink};
use crate::conformance::context;

/// The chunks of one unit with these numbers.
fn chunks(numbers: std::ops::Range<u64>) -> Vec<Chunk> {
    numbers.map(|number| Chunk { unit: "s3://bucket/a.jsonl etag 1".to_owned(), number }).collect()
}

/// A hundred rows for each chunk.
fn rows(numbers: std::ops::Range<u64>) -> RecordBatch {
    many(numbers.start as i64 * 100..numbers.end as i64 * 100)
}

/// The ledger of `run 1`, taken over from any owner.
async fn ledger(sink: &Arc<dyn Sink>) -> Arc<dyn Ledger> {
    try_ledger(sink, true).await.expect("it opens")
}

async fn try_ledger(sink: &Arc<dyn Sink>, take_over: bool) -> Result<Arc<dyn Ledger>> {
    let context = LoadContext { schema: people(&[]).schema(), take_over, ..context(1) };
    Ok(sink.ledger("run 1", context).await?.expect("there is one"))
}

async fn deliver(ledger: &Arc<dyn Ledger>, numbers: std::ops::Range<u64>) -> Result<Delivered> {
    let mut delivery = ledger.delivery(chunks(numbers.clone()), 0).await?;
    delivery.write(rows(numbers)).await?;
    delivery.commit().await
}

fn written(rows: u64) -> Delivered {
    Delivered::Written { rows, refused: vec![] }
}

/// Asserts that the chunks below `count` are in the ledger and their rows in the table, each once.
fn assert_exactly(query: impl Fn(&str) -> Vec<String>, count: u64) {
    let rows = count * 100;
    let sum = (0..rows).sum::<u64>();
    assert_eq!(query("SELECT COUNT(*), SUM(id), COUNT(DISTINCT name) FROM t"), [format!("{rows}\t{sum}\t{rows}")]);
    let notes = query("SELECT COUNT(*), COUNT(DISTINCT chunk) FROM _millstream_ledger WHERE chunk >= 0");
    assert_eq!(notes, [format!("{count}\t{count}")]);
}

fn new_table(kind: Kind) -> Database {
    // Without a key, so that only the ledger prevents duplicates.
    Database::new(kind, "CREATE TABLE t (id BIGINT, name VARCHAR(30))")
}

for_both!(
    each_chunk_is_written_once,
    two_at_once_write_once,
    a_swallowed_answer_is_found_out,
    a_connection_lost_before_the_commit_leaves_nothing,
    a_delivery_that_is_dropped_leaves_nothing,
    bad_rows_are_left_out_as_far_as_allowed,
    every_kind_of_bad_row_is_left_out,
    a_deadlock_costs_no_row,
    a_noted_commit_without_an_answer_is_found_out,
    a_group_that_is_tried_again_is_taken_back_as_a_whole,
    loads_are_known_and_forgotten,
    who_loses_a_load_writes_nothing_more,
    a_load_that_somebody_has_is_not_taken_without_being_asked,
    workers_share_a_load_and_a_lost_one_blocks_nobody,
    a_worker_keeps_its_connections_for_its_next_part,
    a_run_that_takes_a_load_over_ends_all_of_its_workers,
    who_holds_a_lock_is_named,
    who_still_looks_into_the_ledger_is_named,
    only_rows_that_are_added_one_by_one_have_a_ledger,
);

async fn each_chunk_is_written_once(kind: Kind) {
    let database = Database::new(kind, "");
    let sink = database.sink(json!({"batch_rows": 150}));
    let first = ledger(&sink).await;
    assert_eq!(deliver(&first, 0..4).await.expect("it delivers"), written(400));
    assert_eq!(first.done(&chunks(2..6)).await.expect("it answers"), chunks(2..4));
    // A later run knows it too, and a chunk without rows is a chunk.
    let second = ledger(&sink).await;
    assert_eq!(deliver(&second, 3..5).await.expect("it answers"), Delivered::AlreadyDone(chunks(3..4)));
    let empty = second.delivery(chunks(9..10), 0).await.expect("a delivery");
    assert_eq!(empty.commit().await.expect("it commits"), written(0));
    assert_eq!(second.done(&chunks(0..20)).await.expect("it answers"), [chunks(0..4), chunks(9..10)].concat());
    assert_eq!(deliver(&second, 4..5).await.expect("it delivers"), written(100));
    assert_eq!(database.count(), 500);
    let other =
        sink.ledger("run 2", LoadContext { schema: people(&[]).schema(), ..context(1) }).await.expect("it opens");
    assert_eq!(other.expect("there is one").done(&chunks(0..9)).await.expect("it answers"), []);
}

async fn two_at_once_write_once(kind: Kind) {
    let database = new_table(kind);
    let sink = database.sink(json!({"connections": 4}));
    let ledger = ledger(&sink).await;
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let ledger = Arc::clone(&ledger);
        tasks.push(tokio::spawn(async move {
            let mut own = 0;
            for group in 0..8 {
                match deliver(&ledger, group * 3..group * 3 + 3).await.expect("it delivers") {
                    Delivered::Written { rows, .. } => own += rows,
                    Delivered::AlreadyDone(there) => assert_eq!(there, chunks(group * 3..group * 3 + 3)),
                    Delivered::Moved(_) | Delivered::Unknown(_) => panic!("a ledger has no positions"),
                }
            }
            own
        }));
    }
    let mut rows = 0;
    for task in tasks {
        rows += task.await.expect("no panic");
    }
    assert_eq!(rows, 2_400);
    assert_exactly(|sql| database.query(sql), 24);
}

async fn a_swallowed_answer_is_found_out(kind: Kind) {
    let database = new_table(kind);
    let breaks = [Break::Nothing, Break::SwallowAnswer("COMMIT"), Break::SwallowSilently("COMMIT"), Break::Nothing];
    let proxy = Proxy::start(database.port(), &breaks);
    let sink = sink(&database.behind(proxy.port()), json!({"batch_rows": 50}));
    let ledger = ledger(&sink).await;
    // The first connection works, and is kept busy for now.
    let mut held = ledger.delivery(chunks(0..1), 0).await.expect("a delivery");
    held.write(rows(0..1)).await.expect("it takes rows");
    assert_eq!(deliver(&ledger, 1..3).await.expect("it is found out"), written(200));
    assert_eq!(held.commit().await.expect("it commits"), written(100));
    for group in 3..8 {
        assert_eq!(deliver(&ledger, group..group + 1).await.expect("it delivers"), written(100));
    }
    assert!(proxy.connections() >= 3, "{}", proxy.connections());
    assert_exactly(|sql| database.query(sql), 8);
}

async fn a_connection_lost_before_the_commit_leaves_nothing(kind: Kind) {
    let database = new_table(kind);
    let proxy = Proxy::start(database.port(), &[Break::Nothing]);
    let sink = sink(&database.behind(proxy.port()), json!({"batch_rows": 100}));
    let ledger = ledger(&sink).await;
    let mut delivery = ledger.delivery(chunks(0..3), 0).await.expect("a delivery");
    delivery.write(rows(0..2)).await.expect("it takes rows");
    proxy.close_all();
    let mut ended = delivery.write(rows(2..3)).await;
    if ended.is_ok() {
        ended = delivery.commit().await.map(drop);
    }
    assert_eq!(ended.expect_err("the connection is gone").kind(), ErrorKind::Transient);
    assert_eq!(deliver(&ledger, 0..3).await.expect("again"), written(300));
    assert_exactly(|sql| database.query(sql), 3);
}

async fn a_delivery_that_is_dropped_leaves_nothing(kind: Kind) {
    let database = new_table(kind);
    let ledger = ledger(&database.sink(json!({"batch_rows": 100}))).await;
    let mut delivery = ledger.delivery(chunks(0..3), 0).await.expect("a delivery");
    delivery.write(rows(0..3)).await.expect("it takes rows");
    drop(delivery);
    assert_eq!(deliver(&ledger, 0..2).await.expect("it delivers"), written(200));
    assert_exactly(|sql| database.query(sql), 2);
}

async fn bad_rows_are_left_out_as_far_as_allowed(kind: Kind) {
    let database = Database::new(kind, "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(5))");
    let ledger = ledger(&database.sink(json!({"batch_rows": 40}))).await;
    let mut values: Vec<(Option<i64>, &str)> = (0..100).map(|id| (Some(id), "fits")).collect();
    for row in [3, 50, 51, 99] {
        values[row].1 = "too long";
    }
    let batch = people(&values);
    let deliver = async |bad_rows| {
        let mut delivery = ledger.delivery(chunks(0..1), bad_rows).await?;
        delivery.write(batch.clone()).await?;
        delivery.commit().await
    };
    let error = deliver(3).await.expect_err("there are four");
    assert_eq!(error.kind(), ErrorKind::Data, "{error:?}");
    assert_eq!(database.count(), 0);
    let Delivered::Written { rows, refused } = deliver(4).await.expect("four are allowed") else { panic!("not done") };
    assert_eq!((rows, refused.iter().map(|row| row.row).collect::<Vec<_>>()), (96, vec![3, 50, 51, 99]));
    assert!(refused[1].shown.replace('\'', "").starts_with("id=50, name=too long"), "{refused:?}");
    assert_eq!(database.count(), 96);
}

async fn every_kind_of_bad_row_is_left_out(kind: Kind) {
    let table = "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(9) NOT NULL, small BIGINT CHECK (small < 1000))";
    let database = Database::new(kind, table);
    let ids: Vec<i64> = (0..200).map(|id| if id == 20 { 19 } else { id }).collect();
    let names = (0..200).map(|id| match id {
        40 => None,
        60 => Some("much too long"),
        100 if kind == Kind::Postgres => Some("a\0b"),
        _ => Some("fits"),
    });
    let smalls = (0..200).map(|id| Some(if id == 80 { 40_000 } else { id }));
    let columns: [(&str, ArrayRef, bool); 3] = [
        ("id", Arc::new(Int64Array::from(ids)), false),
        ("name", Arc::new(names.collect::<StringArray>()), true),
        ("small", Arc::new(smalls.collect::<Int64Array>()), true),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(columns).expect("a batch");
    let sink = database.sink(json!({"batch_rows": 70}));
    let context = LoadContext { schema: batch.schema(), ..context(1) };
    let ledger = sink.ledger("run 1", context).await.expect("it opens").expect("there is one");
    let mut delivery = ledger.delivery(chunks(0..1), 10).await.expect("a delivery");
    delivery.write(batch).await.expect("it takes rows");
    let Delivered::Written { rows, refused } = delivery.commit().await.expect("it commits") else { panic!("not done") };
    let bad: &[u64] = if kind == Kind::Postgres { &[20, 40, 60, 80, 100] } else { &[20, 40, 60, 80] };
    assert_eq!(refused.iter().map(|row| row.row).collect::<Vec<_>>(), bad, "{refused:?}");
    assert_eq!(rows, 200 - bad.len() as u64);
    let found = database.query("SELECT id FROM t ORDER BY id");
    let expected = (0..200).filter(|id| !bad.contains(id)).map(|id| id.to_string());
    assert_eq!(found, expected.collect::<Vec<_>>());
    assert_eq!(ledger.done(&chunks(0..2)).await.expect("it answers"), chunks(0..1));
}

/// Another transaction and the delivery wait for each other's rows: whichever of them is ended, the rows of the
/// delivery are written once.
async fn a_deadlock_costs_no_row(kind: Kind) {
    let database = Database::new(kind, "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20))");
    let ledger = ledger(&database.sink(json!({"batch_rows": 100, "lock_timeout": "20s"}))).await;
    for round in 0..2 {
        let first = round * 400;
        // Heavier than the delivery, so that MySQL ends that.
        let heavy: Vec<String> = (0..2_000).map(|id| format!("({}, 'x')", 1_000_000 + id)).collect();
        let mut other = database.transaction("SELECT 1").await;
        if round == 0 {
            other.query(&format!("INSERT INTO t VALUES {}", heavy.join(", "))).await.expect("it writes");
        }
        other.query(&format!("INSERT INTO t VALUES ({}, 'other')", first + 350)).await.expect("it writes");
        let delivering = Arc::clone(&ledger);
        let delivered = tokio::spawn(async move {
            loop {
                match deliver(&delivering, first / 100..first / 100 + 4).await {
                    // The whole transaction was undone, and with it the groups before.
                    Err(error) if error.kind() == ErrorKind::Transient => {}
                    other => return other,
                }
            }
        });
        tokio::time::sleep(std::time::Duration::from_millis(400)).await;
        let ended = other.query(&format!("INSERT INTO t VALUES ({}, 'other')", first + 50)).await;
        let _ = other.execute("ROLLBACK").await;
        let delivered = delivered.await.expect("no panic").expect("it is tried again");
        assert_eq!(delivered, written(400), "{ended:?}");
    }
    assert_exactly(|sql| database.query(sql), 8);
}

/// Rows that become visible at once, with a commit marker: even if transactions have no names, the ledger shows the
/// outcome.
async fn a_noted_commit_without_an_answer_is_found_out(kind: Kind) {
    for (exists, settings, text) in [
        (true, json!({"retries": 2}), "COMMIT"),
        (true, json!({"retries": 2, "connections": 2}), "COMMIT"),
        (false, json!({"retries": 2}), if kind == Kind::Mariadb { "RENAME" } else { "COMMIT" }),
    ] {
        let table = if exists { "CREATE TABLE t (id BIGINT, name VARCHAR(30))" } else { "" };
        let database = Database::new(kind, table);
        // The word is first sent when all rows have arrived.
        let proxy = Proxy::start(database.port(), &[Break::SwallowAnswer(text), Break::Nothing]);
        let sink = sink(&database.behind(proxy.port()), settings.clone());
        let marker = Some("run 1\nall at once".to_owned());
        let context = LoadContext { schema: people(&[]).schema(), marker: marker.clone(), ..context(1) };
        let load = async |context: LoadContext| {
            let load = sink.begin(context).await?;
            let mut writer = load.writer(0).await?;
            writer.write(rows(0..1)).await?;
            writer.close().await?;
            load.prepare().await?;
            load.commit().await
        };
        let line = load(context.clone()).await.unwrap_or_else(|error| panic!("{settings}: {error:?}"));
        assert!(line.starts_with("100 rows"), "{line}");
        assert_eq!(database.count(), 100);
        // A run that knows nothing of that resumes it.
        let again = LoadContext { run: "another".to_owned(), take_over: true, ..context };
        assert!(load(again.clone()).await.expect("it goes on").starts_with("nothing new"));
        assert_eq!(database.count(), 100);
        sink.forget_marker("run 1\nall at once", again, false).await.expect("it forgets");
        assert_eq!(database.tables(), ["t"]);
    }
}

/// The ledger of `run 1` as the run `run` of a cluster has it, or one of its workers.
async fn shared_ledger(sink: &Arc<dyn Sink>, run: &str, worker: Option<u64>) -> Result<Arc<dyn Ledger>> {
    let (schema, run) = (people(&[]).schema(), run.to_owned());
    let worker = worker.map(|worker| WorkerPart { worker, attempt: 1, at_once: 2, kept: Kept::default() });
    let context = LoadContext { schema, run, take_over: true, worker, ..context(1) };
    Ok(sink.ledger("run 1", context).await?.expect("there is one"))
}

/// A delivery that has sent its rows and sleeps, as on a machine that is suspended.
async fn asleep(ledger: &Arc<dyn Ledger>, numbers: std::ops::Range<u64>) -> Box<dyn Delivery> {
    let mut delivery = ledger.delivery(chunks(numbers.clone()), 0).await.expect("a delivery");
    delivery.write(rows(numbers)).await.expect("it writes");
    delivery.send().await.expect("it sends");
    delivery
}

async fn workers_share_a_load_and_a_lost_one_blocks_nobody(kind: Kind) {
    let database = new_table(kind);
    let sink = database.sink(json!({"lock_timeout": "20s"}));
    let run = shared_ledger(&sink, "a run of workers", None).await.expect("it begins");
    let one = shared_ledger(&sink, "a run of workers", Some(1)).await.expect("it joins");
    let other = shared_ledger(&sink, "a run of workers", Some(11)).await.expect("it joins, and fences nobody");
    assert_eq!(deliver(&one, 0..1).await.expect("it delivers"), written(100));
    let sleeping = asleep(&one, 1..2).await;
    assert_eq!(deliver(&other, 2..3).await.expect("it is not in the way"), written(100));
    let began = std::time::Instant::now();
    run.end_worker(1).await.expect("it is lost");
    assert_eq!(deliver(&other, 1..2).await.expect("it reads again"), written(100));
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "it waited for the lost worker's lock");
    // It wakes up.
    let accept: Accept = Box::new(|_| Ok(Vec::new()));
    let woken = sleeping.commit_if(accept).await;
    assert!(!matches!(woken, Ok(Delivered::Written { .. })), "{woken:?}");
    assert_eq!(deliver(&one, 1..2).await.expect("it answers"), Delivered::AlreadyDone(chunks(1..2)));
    assert_eq!(deliver(&other, 3..4).await.expect("its sessions were left alone"), written(100));
    assert_exactly(|sql| database.query(sql), 4);
}

async fn a_worker_keeps_its_connections_for_its_next_part(kind: Kind) {
    let database = new_table(kind);
    let sink = database.sink(json!({}));
    let run = shared_ledger(&sink, "a run of workers", None).await.expect("it begins");
    let proxy = Proxy::start(database.port(), &[Break::Nothing]);
    let far = super::tests::sink(&database.behind(proxy.port()), json!({}));
    let part = WorkerPart { worker: 1, attempt: 1, at_once: 2, kept: Kept::default() };
    let deliver_part = async |numbers: std::ops::Range<u64>| {
        let worker = Some(part.clone());
        let context =
            LoadContext { schema: people(&[]).schema(), run: "a run of workers".to_owned(), worker, ..context(1) };
        let ledger = far.ledger("run 1", context).await.expect("it joins").expect("there is one");
        deliver(&ledger, numbers).await.expect("it delivers")
    };
    assert_eq!(deliver_part(0..1).await, written(100));
    let opened = proxy.connections();
    for number in 1..4 {
        assert_eq!(deliver_part(number..number + 1).await, written(100));
    }
    assert_eq!(proxy.connections(), opened, "nothing was opened anew");
    run.end_worker(1).await.expect("it is lost");
    assert_eq!(deliver_part(4..5).await, written(100), "it opens others");
    assert_eq!(proxy.connections(), opened + 1);
    assert_exactly(|sql| database.query(sql), 5);
}

async fn a_run_that_takes_a_load_over_ends_all_of_its_workers(kind: Kind) {
    let database = new_table(kind);
    let sink = database.sink(json!({}));
    let _run = shared_ledger(&sink, "a first run", None).await.expect("it begins");
    let worker = shared_ledger(&sink, "a first run", Some(3)).await.expect("it joins");
    let sleeping = asleep(&worker, 0..1).await;
    let next = shared_ledger(&sink, "another run", None).await.expect("it takes over");
    assert_eq!(deliver(&next, 0..2).await.expect("nothing blocks it"), written(200));
    let accept: Accept = Box::new(|_| Ok(Vec::new()));
    assert!(!matches!(sleeping.commit_if(accept).await, Ok(Delivered::Written { .. })));
    let error = deliver(&worker, 2..3).await.expect_err("it is of another run");
    assert!(error.what().starts_with("another run has taken over this load"), "{error:?}");
    let late = shared_ledger(&sink, "a first run", Some(4)).await.err().expect("it cannot join");
    assert!(late.what().starts_with("another run has taken over this load"), "{late:?}");
    assert_exactly(|sql| database.query(sql), 2);
}

/// In the second group of a delivery a bad row is found, and then a lock times out: rows of the group must not be sent
/// twice.
async fn a_group_that_is_tried_again_is_taken_back_as_a_whole(kind: Kind) {
    let database = Database::new(kind, "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(9))");
    let context = LoadContext { schema: people(&[]).schema(), ..context(1) };
    let holding = database.sink(json!({})).begin(context).await.expect("it begins");
    let mut writer = holding.writer(0).await.expect("a writer");
    writer.write(people(&[(Some(7), "holder")])).await.expect("it writes");
    writer.close().await.expect("it has the row");
    let ledger = ledger(&database.sink(json!({"batch_rows": 4, "lock_timeout": "1s", "retries": 60}))).await;
    let mut delivery = ledger.delivery(chunks(0..1), 3).await.expect("a delivery");
    let names = ["ok", "ok", "ok", "ok", "ok", "much too long", "ok", "ok"];
    let rows: Vec<(Option<i64>, &str)> = (1..).map(Some).zip(names).collect();
    let waiting = tokio::spawn(async move {
        delivery.write(people(&rows)).await?;
        delivery.commit().await
    });
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    holding.abort().await;
    let delivered = waiting.await.expect("no panic").expect("the lock was given");
    let Delivered::Written { rows, refused } = delivered else { panic!("it was not done") };
    assert_eq!((rows, refused.iter().map(|row| row.row).collect::<Vec<_>>()), (7, vec![5]), "{refused:?}");
    assert_eq!(database.count(), 7);
}

async fn loads_are_known_and_forgotten(kind: Kind) {
    let database = new_table(kind);
    let ledger = ledger(&database.sink(json!({}))).await;
    deliver(&ledger, 0..2).await.expect("it delivers");
    let known = ledger.loads().await.expect("it answers");
    assert_eq!((known.len(), known[0].load.as_str(), known[0].chunks), (1, "run 1", 2));
    assert!(known[0].idle_seconds < 600, "{known:?}");
    ledger.forget("run 1").await.expect("it forgets");
    assert_eq!(ledger.loads().await.expect("it answers"), []);
    assert_eq!(database.tables(), ["t"]);
    assert_eq!(database.count(), 200);
}

/// Locks of the former owner are released at once, and its next statement fails.
async fn who_loses_a_load_writes_nothing_more(kind: Kind) {
    let database = new_table(kind);
    let sink = database.sink(json!({"batch_rows": 100, "connections": 2}));
    let first = ledger(&sink).await;
    deliver(&first, 0..1).await.expect("it delivers");
    let mut sending = first.delivery(chunks(1..3), 0).await.expect("a delivery");
    sending.write(rows(1..3)).await.expect("it takes rows");
    let begun = std::time::Instant::now();
    let second = ledger(&sink).await;
    assert_eq!(deliver(&second, 1..3).await.expect("it delivers"), written(200));
    assert!(begun.elapsed().as_secs() < 25, "nobody waits for the first");
    let lost = sending.commit().await.expect_err("its connection was ended");
    let told =
        |error: millstream_core::Error| assert!(error.what().contains("another run has taken over"), "{error:?}");
    if lost.kind() != ErrorKind::Transient {
        told(lost);
    }
    told(deliver(&first, 3..4).await.expect_err("it is another's"));
    second.forget("run 1").await.expect("it forgets");
    let gone = deliver(&first, 3..4).await.expect_err("there is no ledger");
    assert_ne!(gone.kind(), ErrorKind::Transient, "{gone:?}");
    assert_eq!(database.count(), 300);
}

async fn a_load_that_somebody_has_is_not_taken_without_being_asked(kind: Kind) {
    let database = new_table(kind);
    let sink = database.sink(json!({}));
    let first = ledger(&sink).await;
    let Err(refused) = try_ledger(&sink, false).await else { panic!("it lives") };
    assert!(refused.what().starts_with("another run is loading into table t of"), "{refused:?}");
    assert!(refused.cause_text().is_some_and(|cause| cause.contains("from 127.0.0.1")), "{refused:?}");
    assert_eq!(deliver(&first, 0..1).await.expect("it delivers"), written(100));
    drop(first);
    try_ledger(&sink, false).await.expect("nobody has it");
}

async fn who_holds_a_lock_is_named(kind: Kind) {
    let database = new_table(kind);
    let sink = database.sink(json!({"lock_timeout": "1s", "retries": 1}));
    let first = ledger(&sink).await;
    deliver(&first, 0..1).await.expect("it delivers");
    drop(first);
    let lock = "SELECT 1 FROM _millstream_ledger WHERE chunk = -1 FOR UPDATE";
    let holder = database.transaction(lock).await;
    let begun = std::time::Instant::now();
    let Err(error) = try_ledger(&sink, true).await else { panic!("it is locked") };
    assert!(error.what().ends_with("a lock was not granted in time"), "{error:?}");
    assert!(
        error.cause_text().is_some_and(|cause| cause.contains("held by") && cause.contains("127.0.0.1")),
        "{error:?}"
    );
    assert!(begun.elapsed().as_secs() < 10, "it is tried once");
    drop(holder);
    // In the middle of a load it is retried, and then also reported.
    let first = ledger(&sink).await;
    let holder = database.transaction(lock).await;
    let error = deliver(&first, 1..2).await.expect_err("it is locked");
    assert_eq!(error.kind(), ErrorKind::Refused, "not to be delivered again: {error:?}");
    assert!(error.cause_text().is_some_and(|cause| cause.contains("held by")), "{error:?}");
    drop(holder);
    assert_eq!(deliver(&first, 1..2).await.expect("it delivers"), written(100));
}

/// The ledger of a complete load cannot be dropped while another session reads it: that is reported, and the next load
/// drops it.
async fn who_still_looks_into_the_ledger_is_named(kind: Kind) {
    let database = new_table(kind);
    let sink = database.sink(json!({}));
    let first = ledger(&sink).await;
    deliver(&first, 0..1).await.expect("it delivers");
    let reader = database.transaction("SELECT 1 FROM _millstream_ledger").await;
    let left = first.forget("run 1").await.expect_err("it is read");
    assert!(left.what().starts_with("the empty table _millstream_ledger"), "{left:?}");
    assert!(left.cause_text().is_some_and(|cause| cause.contains("held by")), "{left:?}");
    assert_eq!(database.query("SELECT count(*) FROM _millstream_ledger"), ["0"]);
    drop(reader);
    let next = ledger(&sink).await;
    deliver(&next, 0..1).await.expect("it delivers");
    next.forget("run 1").await.expect("it forgets");
    assert_eq!(database.tables(), ["t"]);
}

async fn only_rows_that_are_added_one_by_one_have_a_ledger(kind: Kind) {
    let database = new_table(kind);
    let settings: [Value; 3] =
        [json!({"mode": "replace"}), json!({"mode": "merge", "key": ["id"]}), json!({"after": ["SELECT 1"]})];
    for settings in settings {
        let context = LoadContext { schema: people(&[]).schema(), ..context(1) };
        let ledger = database.sink(settings).ledger("run", context).await.expect("it answers");
        assert!(ledger.is_none());
    }
    assert_eq!(database.tables(), ["t"]);
}

/// Kills the server while several deliver, starts it again, and delivers until all is done.
async fn survives_kills(url: String, mut kill_and_restart: impl FnMut()) {
    let sink = sink(&url, json!({"connections": 3, "batch_rows": 50, "retries": 20}));
    let ledger = ledger(&sink).await;
    for round in 0..3 {
        let mut tasks = Vec::new();
        for lane in 0..3_u64 {
            let ledger = Arc::clone(&ledger);
            tasks.push(tokio::spawn(async move {
                for group in (0..90).filter(|group| group % 3 == lane) {
                    if ledger.done(&chunks(group..group + 1)).await.is_ok_and(|done| !done.is_empty()) {
                        continue;
                    }
                    // The ledger knows the outcome; the next round continues.
                    if deliver(&ledger, group..group + 1).await.is_err() && round < 2 {
                        return;
                    }
                }
            }));
        }
        if round < 2 {
            tokio::time::sleep(std::time::Duration::from_millis(80)).await;
            kill_and_restart();
        }
        for task in tasks {
            task.await.expect("no panic");
        }
    }
    assert_eq!(ledger.done(&chunks(0..90)).await.expect("it answers").len(), 90);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_mariadb_has_each_chunk_once() {
    let mut server = MariaDb::start(MariaDbOptions::default());
    let name = server.database();
    server.query(&name, "CREATE TABLE t (id BIGINT, name VARCHAR(30))");
    survives_kills(server.url(&name), || {
        server.kill();
        server.restart();
    })
    .await;
    assert_exactly(|sql| server.query(&name, sql), 90);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_postgres_has_each_chunk_once() {
    let mut server = Postgres::start(PostgresOptions::default());
    let name = server.database();
    server.query(&name, "CREATE TABLE t (id BIGINT, name VARCHAR(30))");
    survives_kills(server.url(&name), || {
        server.kill();
        server.restart();
    })
    .await;
    assert_exactly(|sql| server.query(&name, sql), 90);
}
