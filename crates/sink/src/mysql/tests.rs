//! Tests of peculiarities of MySQL and MariaDB: their types, engines, collations, `LOAD DATA LOCAL` and its refusal,
//! TLS.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, Float32Array, Float64Array,
    Int8Array, Int64Array, ListArray, RecordBatch, StringArray, Time64MicrosecondArray, TimestampMicrosecondArray,
    TimestampMillisecondArray, TimestampNanosecondArray, TimestampSecondArray, UInt64Array,
};
use arrow::datatypes::{Int32Type, Int64Type};
use millstream_core::sink::{Chunk, Delivered, LoadContext};
use millstream_database::Endpoint;
use millstream_testkit::{Authority, MariaDb, MariaDbOptions, PASSWORD, USER, Validity};
use serde_json::json;

use crate::conformance::context;
use crate::database::server::{Connection, Failure};
use crate::database::spec::DatabaseSpec;
use crate::database::tests::{Database, Kind, checked, load, many, people, sink, takes_its_time, whats};

fn database(statements: &str) -> Database {
    Database::new(Kind::Mariadb, statements)
}

fn column(name: &str, array: ArrayRef) -> RecordBatch {
    let ids: ArrayRef = Arc::new((0..array.len() as i64).collect::<Int64Array>());
    RecordBatch::try_from_iter_with_nullable([("id", ids, true), (name, array, true)]).expect("a batch")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_type_has_its_column_and_value() {
    let list = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1), None]), None]);
    let decimal = |digits, scale| {
        let values = Decimal128Array::from(vec![Some(-1250), None]).with_precision_and_scale(digits, scale);
        values.expect("fits")
    };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("truth", Arc::new(BooleanArray::from(vec![Some(true), None]))),
        ("tiny", Arc::new(Int8Array::from(vec![Some(-7), None]))),
        ("large", Arc::new(UInt64Array::from(vec![Some(u64::MAX), None]))),
        ("single", Arc::new(Float32Array::from(vec![Some(0.1), None]))),
        ("double", Arc::new(Float64Array::from(vec![Some(1.0 / 3.0), None]))),
        ("exact", Arc::new(decimal(10, 2))),
        ("text", Arc::new(StringArray::from(vec![Some("nul\0 tab\t line\n back\\ quote' 😀"), None]))),
        ("word", Arc::new([Some("a"), None].into_iter().collect::<DictionaryArray<Int32Type>>())),
        ("bytes", Arc::new(BinaryArray::from(vec![Some(&b"\x00\xff\t\\"[..]), None]))),
        ("day", Arc::new(Date32Array::from(vec![Some(19_000), None]))),
        ("time", Arc::new(Time64MicrosecondArray::from(vec![Some(3_600_000_001), None]))),
        ("second", Arc::new(TimestampSecondArray::from(vec![Some(-1), None]))),
        ("micro", Arc::new(TimestampMicrosecondArray::from(vec![Some(1_700_000_000_000_001), None]))),
        (
            "zoned",
            Arc::new(TimestampMillisecondArray::from(vec![Some(1_700_000_000_123), None]).with_timezone("+02:00")),
        ),
        ("list", Arc::new(list)),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, one)| (name, one, true)));
    let batch = batch.expect("a batch");
    let server = MariaDb::start(MariaDbOptions { arguments: vec!["--local-infile=0".to_owned()], certificate: None });
    let other = server.database();
    let slow = Database { kind: Kind::Mariadb, name: other.clone(), url: server.url(&other) };
    let fast = database("");
    for (database, expected_way) in
        [(&fast, None), (&slow, Some("by INSERT, which is slower, since local_infile is off"))]
    {
        let sink = database.sink(json!({}));
        let line = load(&sink, std::slice::from_ref(&batch)).await.expect("it loads");
        assert_eq!(line.contains("by INSERT"), expected_way.is_some(), "{line}");
        assert!(expected_way.is_none_or(|way| line.contains(way)), "{line}");
        let in_chunks = chunk_by_chunk(database, &batch).await;
        assert!(expected_way.map_or(!in_chunks.contains("by INSERT"), |way| in_chunks.contains(way)), "{in_chunks}");
        let ask = |sql: &str| match expected_way {
            None => database.query(sql),
            Some(_) => server.query(&other, sql),
        };
        assert_eq!(
            ask("SELECT truth, tiny, large, single, double, exact, word, HEX(bytes), day, time FROM t WHERE truth"
                .replace("double", "`double`")
                .as_str()),
            ["1\t-7\t18446744073709551615\t0.1\t0.3333333333333333\t-12.50\ta\t00FF095C\t2022-01-08\t01:00:00.000001"]
        );
        assert_eq!(
            ask("SELECT second, micro, zoned, list FROM t WHERE truth"),
            ["1969-12-31 23:59:59\t2023-11-14 22:13:20.000001\t2023-11-14 22:13:20.123\t[1,null]"]
        );
        let text = "nul\0 tab\t line\n back\\ quote' 😀";
        let digits: String = text.bytes().map(|byte| format!("{byte:02X}")).collect();
        assert_eq!(ask("SELECT HEX(text) FROM t WHERE truth"), [digits]);
        assert_eq!(ask("SELECT COUNT(*) FROM t WHERE COALESCE(truth, tiny, text, list, micro) IS NULL"), ["1"]);
        let types =
            ask("SELECT column_type FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = \
                 't' ORDER BY ordinal_position");
        assert_eq!(
            types.join(" "),
            "tinyint(1) tinyint(4) bigint(20) unsigned float double decimal(10,2) longtext longtext longblob date \
             time(6) datetime datetime(6) datetime(3) longtext"
        );
        sink.check(batch.schema()).await.expect("its own table fits");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_the_server_would_change_are_refused() {
    for (declared, batch, cause) in [
        (
            "v DOUBLE",
            column("v", Arc::new(Float64Array::from(vec![1.0, f64::NAN]))),
            "MySQL has neither NaN nor infinity",
        ),
        (
            "v DATETIME(6)",
            column("v", Arc::new(TimestampNanosecondArray::from(vec![1_000, 1]))),
            "the time has nanoseconds, and the database keeps microseconds",
        ),
        ("v DATE", column("v", Arc::new(Date32Array::from(vec![0, i32::MAX]))), "the date is outside the range"),
        ("v VARCHAR(3)", column("v", Arc::new(StringArray::from(vec!["abc", "abcd"]))), "Data"),
        (
            "v VARCHAR(3) CHARACTER SET latin1",
            column("v", Arc::new(StringArray::from(vec!["é", "☃"]))),
            "Incorrect string value",
        ),
        ("v ENUM('a', 'b')", column("v", Arc::new(StringArray::from(vec!["a", "c"]))), "Data truncated"),
        ("v DATE", column("v", Arc::new(StringArray::from(vec!["2024-02-29", "2023-02-29"]))), "Data truncated"),
        ("v VARCHAR(9) NOT NULL", column("v", Arc::new(StringArray::from(vec![Some("a"), None]))), "NULL supplied"),
        (
            "v TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP",
            column("v", Arc::new(TimestampSecondArray::from(vec![Some(1_700_000_000), None]))),
            "the column cannot be null, and the server would write the current time instead",
        ),
        (
            "v TIMESTAMP",
            column("v", Arc::new(TimestampSecondArray::from(vec![1_700_000_000, 5_000_000_000]))),
            "Out of range value",
        ),
        (
            "v TIME(3)",
            column("v", Arc::new(Time64MicrosecondArray::from(vec![1_000, 1_001]))),
            "the time has more fractional digits than the column keeps",
        ),
        ("v TINYINT", column("v", Arc::new(Int8Array::from(vec![Some(1), None]))), ""),
        ("v INT CHECK (v < 5)", column("v", Arc::new(Int8Array::from(vec![1, 9]))), "CONSTRAINT"),
    ] {
        let database = database(&format!("CREATE TABLE t (id BIGINT PRIMARY KEY, {declared})"));
        let loaded = load(&database.sink(json!({})), &[batch]).await;
        if cause.is_empty() {
            loaded.expect("a null is fine there");
            continue;
        }
        let error = loaded.expect_err(declared);
        assert!(error.cause_text().is_some_and(|text| text.starts_with(cause)), "{declared}: {error:?}");
        assert!(error.offending_text().is_some_and(|text| text.contains('1')), "{declared}: {error:?}");
        assert_eq!(database.count(), 0, "{declared}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_loaded_that_could_not_be_rolled_back() {
    let database = database("CREATE TABLE t (id BIGINT, name TEXT) ENGINE=MyISAM");
    let errors = checked(&database.sink(json!({})), &people(&[])).await;
    assert_eq!(
        whats(&errors),
        [format!("a load into table t of {} could not be rolled back", database.sink(json!({})).target())]
    );
    assert_eq!(errors[0].cause_text(), Some("its engine MyISAM has no transactions"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_with_more_keeps_it_when_it_is_emptied() {
    let database = database(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20)); INSERT INTO t VALUES (1, 'old'); CREATE TABLE log \
         (id BIGINT); CREATE TRIGGER noted AFTER INSERT ON t FOR EACH ROW INSERT INTO log VALUES (NEW.id)",
    );
    load(&database.sink(json!({"mode": "truncate"})), &[many(5..7)]).await.expect("it loads");
    assert_eq!(database.rows(), ["5\tname 5", "6\tname 6"]);
    assert_eq!(database.query("SELECT id FROM log ORDER BY id"), ["5", "6"]);
    database.query("CREATE TABLE child (id BIGINT, FOREIGN KEY (id) REFERENCES t (id))");
    let errors = checked(&database.sink(json!({"mode": "replace"})), &people(&[])).await;
    assert_eq!(errors[0].cause_text(), Some("a foreign key of table child depends on it"));
    let other = Database::new(Kind::Mariadb, "");
    let child = format!("CREATE TABLE far (id BIGINT, FOREIGN KEY (id) REFERENCES {}.t (id))", database.name);
    database.query("DROP TABLE child");
    other.query(&child);
    let errors = checked(&database.sink(json!({"mode": "replace"})), &people(&[])).await;
    let cause = format!("a foreign key of table {}.far depends on it", other.name);
    assert_eq!(errors[0].cause_text(), Some(cause.as_str()));
    other.query(
        "DROP TABLE far; CREATE TABLE t (id BIGINT PRIMARY KEY); CREATE TABLE near (id BIGINT REFERENCES t (id))",
    );
    load(&database.sink(json!({"mode": "replace"})), &[many(5..7)]).await.expect("the other is of another table t");
}

/// With statement-based replication a server warns of some statements, which is no fault of their rows.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_logs_statements_takes_the_rows() {
    for infile in ["--local-infile=1", "--local-infile=0"] {
        let arguments = ["--log-bin=log", "--server-id=1", "--binlog-format=STATEMENT", infile].map(str::to_owned);
        let server = MariaDb::start(MariaDbOptions { arguments: arguments.to_vec(), ..MariaDbOptions::default() });
        let name = server.database();
        server.query(&name, "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20), more INT UNIQUE AUTO_INCREMENT)");
        load(&sink(&server.url(&name), json!({})), &[many(0..5)]).await.expect("it loads");
        assert_eq!(server.query(&name, "SELECT COUNT(*), SUM(more) FROM t"), ["5\t15"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_are_no_choices() {
    let database = database("CREATE TABLE t (id BIGINT PRIMARY KEY, v ENUM('b', 'a'))");
    let errors = checked(&database.sink(json!({})), &column("v", Arc::new(Int8Array::from(vec![1])))).await;
    assert!(
        whats(&errors)[0].ends_with("is enum('b','a'), and the rows have int8: another kind of value"),
        "{errors:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_any_number_go_by_insert_within_the_limit_of_a_packet() {
    let arguments = ["--local-infile=0", "--max-allowed-packet=16384"].map(str::to_owned).to_vec();
    let server = MariaDb::start(MariaDbOptions { arguments, certificate: None });
    let name = server.database();
    let sink = sink(&server.url(&name), json!({"key": ["id"]}));
    load(&sink, &[many(0..5_000)]).await.expect("it loads");
    assert_eq!(server.query(&name, "SELECT COUNT(*), SUM(id), MAX(name) FROM t"), ["5000\t12497500\tname 999"]);
    let mut rows: Vec<(Option<i64>, &str)> = (5_000..6_000).map(|id| (Some(id), "it's")).collect();
    rows[700].0 = Some(3);
    let error = load(&sink, &[people(&rows)]).await.expect_err("3 is there");
    assert_eq!(error.offending_text(), Some("id='3', name='it's'"));
    assert_eq!(server.query(&name, "SELECT COUNT(*) FROM t"), ["5000"]);
    // A row that is too long for any statement is a bad row, and the others are loaded.
    let long = "x".repeat(17_000);
    let rows = people(&[(Some(7_000), "a"), (Some(7_001), long.as_str()), (Some(7_002), "b")]);
    let cause = "the row is longer than the server's max_allowed_packet, 16384 bytes";
    assert_eq!(load(&sink, std::slice::from_ref(&rows)).await.expect_err("too long").cause_text(), Some(cause));
    let ledger = sink.ledger("run", LoadContext { schema: rows.schema(), ..context(1) }).await.expect("it opens");
    let chunk = Chunk { unit: "u".to_owned(), number: 0 };
    let mut delivery = ledger.expect("there is one").delivery(vec![chunk], 1).await.expect("it begins");
    delivery.write(rows).await.expect("rows");
    let delivered = delivery.commit().await.expect("one may be bad");
    assert!(matches!(&delivered, Delivered::Written { rows: 2, refused } if refused[0].row == 1), "{delivered:?}");
    assert_eq!(server.query(&name, "SELECT COUNT(*) FROM t WHERE id >= 7000"), ["2"]);
    // A stream has no such limit.
    server.query(&name, "SET GLOBAL local_infile = 1");
    let line = load(&crate::database::tests::sink(&server.url(&name), json!({})), &[many(10_000..15_000)]).await;
    assert!(line.is_ok_and(|line| !line.contains("INSERT")));
    assert_eq!(server.query(&name, "SELECT COUNT(*) FROM t WHERE id >= 10000"), ["5000"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_has_to_prove_who_it_is() {
    let authority = Authority::new();
    let certificate = Some(authority.certificate("localhost", Validity::Current));
    let server = MariaDb::start(MariaDbOptions { arguments: vec![], certificate });
    let name = server.database();
    server.query("", &format!("ALTER USER '{USER}'@'%' REQUIRE SSL"));
    let folder = tempfile::TempDir::new().expect("a folder");
    let ca = folder.path().join("ca.pem");
    fs_err::write(&ca, authority.pem()).expect("a file");
    let url = |host: &str| server.url(&name).replace("127.0.0.1", host);
    let ca = ca.display().to_string();
    let trusting = sink(&url("localhost"), json!({"tls": "verify", "ca": ca}));
    load(&trusting, &[many(0..10)]).await.expect("it is proven");
    for (host, settings, hint) in [
        ("localhost", json!({"tls": "verify", "retries": 0}), "name its PEM file in `ca`"),
        ("127.0.0.1", json!({"tls": "verify", "ca": ca, "retries": 0}), "check the host"),
    ] {
        let errors = checked(&sink(&url(host), settings), &people(&[])).await;
        assert!(errors[0].what().starts_with("the encrypted connection to mysql://"), "{errors:?}");
        assert!(errors[0].hint_text().is_some_and(|text| text.contains(hint)), "{errors:?}");
        assert!(!format!("{errors:?}").contains(PASSWORD), "{errors:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_has_nothing_of_the_load_and_the_next_one_cleans_up() {
    let mut server = MariaDb::start(MariaDbOptions::default());
    let name = server.database();
    server.query(&name, "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20)); INSERT INTO t VALUES (-1, 'there')");
    for settings in [json!({"batch_rows": 100}), json!({"connections": 2, "batch_rows": 100})] {
        let sink = sink(&server.url(&name), settings);
        let context = crate::conformance::context(1);
        let context = millstream_core::sink::LoadContext { schema: people(&[]).schema(), ..context };
        let begun = sink.begin(context).await.expect("it begins");
        let mut writer = begun.writer(0).await.expect("a writer");
        writer.write(many(0..1_000)).await.expect("it writes");
        server.kill();
        let mut ended = writer.write(many(1_000..9_000)).await;
        if ended.is_ok() {
            ended = writer.close().await;
        }
        ended.expect_err("nobody is there");
        drop(writer);
        begun.abort().await;
        server.restart();
        assert_eq!(server.query(&name, "SELECT id FROM t"), ["-1"]);
        load(&sink, &[people(&[])]).await.expect("the next load");
        assert_eq!(server.query(&name, "SHOW TABLES"), ["t"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_not_make_tables_gets_a_hint() {
    let database = database("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20))");
    let user = format!("few{}", database.name);
    database.query(&format!(
        "CREATE USER '{user}'@'%' IDENTIFIED BY '{PASSWORD}'; GRANT SELECT, INSERT ON {}.t TO '{user}'@'%'",
        database.name
    ));
    let url = database.url.replace(USER, &user);
    let error = load(&sink(&url, json!({"connections": 2})), &[many(0..3)]).await.expect_err("no table of ours");
    assert!(error.hint_text().is_some_and(|hint| hint.contains("with `connections: 1`")), "{error:?}");
    load(&sink(&url, json!({})), &[many(0..3)]).await.expect("straight into the table");
    assert_eq!(database.count(), 3);
}

/// In a deadlock the server ends one transaction, which can be retried.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_can_be_tried_again() {
    let database =
        database("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20)); INSERT INTO t VALUES (1, 'a'), (2, 'b')");
    let spec: DatabaseSpec = serde_json::from_value(json!({"table": "t"})).expect("settings");
    let mut sessions = Vec::new();
    for own in [1, 2] {
        let mut session = connect(&database.url, &spec).await;
        session.execute("BEGIN").await.expect("it begins");
        session.execute(&format!("UPDATE t SET name = 'mine' WHERE id = {own}")).await.expect("it has the row");
        sessions.push((session, 3 - own));
    }
    let tasks = sessions.into_iter().map(|(mut session, other)| {
        tokio::spawn(async move {
            let ended = session.execute(&format!("UPDATE t SET name = 'mine too' WHERE id = {other}")).await;
            session.execute("ROLLBACK").await.expect("it rolls back");
            ended
        })
    });
    let ended = futures::future::join_all(tasks).await;
    let again = ended.iter().filter(|ended| matches!(ended, Ok(Err(Failure::Again { undone, .. })) if *undone));
    assert_eq!(again.count(), 1, "{ended:?}");
    assert_eq!(database.rows(), ["1\ta", "2\tb"]);
}

/// Another user may see the connections of a load, but not end them.
#[tokio::test(flavor = "multi_thread")]
async fn a_load_of_another_user_that_cannot_be_ended_is_reported() {
    let database = database("CREATE TABLE t (id BIGINT, name VARCHAR(20))");
    let user = format!("other_{}", database.name);
    database.query(&format!(
        "CREATE USER '{user}'@'%' IDENTIFIED BY '{PASSWORD}'; GRANT ALL ON {}.* TO '{user}'@'%'",
        database.name
    ));
    let open = async |url: &str| {
        let context = LoadContext { schema: people(&[]).schema(), take_over: true, ..context(1) };
        sink(url, json!({"lock_timeout": "1s"})).ledger("run", context).await
    };
    let first = open(&database.url).await.expect("it opens");
    let Err(error) = open(&database.url.replace(USER, &user)).await else { panic!("it is another's") };
    assert!(error.what().ends_with("cannot be ended"), "{error:?}");
    assert!(
        error.cause_text().is_some_and(|cause| cause.starts_with("connection ") && cause.contains("owner")),
        "{error:?}"
    );
    drop(first);
    open(&database.url.replace(USER, &user)).await.expect("nobody has it");
}

/// Loads a batch as one chunk into a table of its own. Returns the message.
async fn chunk_by_chunk(database: &Database, batch: &RecordBatch) -> String {
    let context = LoadContext { schema: batch.schema(), ..context(1) };
    let ledger = database.sink(json!({"table": "in_chunks"})).ledger("run", context).await.expect("it opens");
    let ledger = ledger.expect("there is one");
    let chunk = Chunk { unit: "u".to_owned(), number: 0 };
    let mut delivery = ledger.delivery(vec![chunk], 0).await.expect("a delivery");
    delivery.write(batch.clone()).await.expect("it takes rows");
    delivery.commit().await.expect("it commits");
    ledger.summary(2)
}

/// Server timeouts for idle connections and long statements do not apply to a load.
#[tokio::test(flavor = "multi_thread")]
async fn a_load_whose_rows_take_their_time_is_not_thrown_out() {
    let limits = ["--wait-timeout=1", "--idle-transaction-timeout=1", "--max-statement-time=1"].map(str::to_owned);
    let server = MariaDb::start(MariaDbOptions { arguments: limits.to_vec(), certificate: None });
    let name = server.database();
    server.query(&name, "CREATE TABLE t (id BIGINT, name VARCHAR(20))");
    server.query(&name, "CREATE TRIGGER slow BEFORE INSERT ON t FOR EACH ROW DO SLEEP(0.6)");
    takes_its_time(&server.url(&name)).await;
    assert_eq!(server.query(&name, "SELECT COUNT(*) FROM t"), ["8"]);
}

/// A connection outside of any load.
pub(crate) async fn connect(url: &str, spec: &DatabaseSpec) -> Box<dyn Connection> {
    let endpoint = Endpoint::parse(url, &spec.access(), super::PORT).expect("a place");
    Box::new(super::connection::connect(&endpoint, spec).await.expect("it connects"))
}
