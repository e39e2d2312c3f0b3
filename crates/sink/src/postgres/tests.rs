//! Tests of peculiarities of PostgreSQL: its types in binary form and as text, schemas, views, TLS.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, DurationSecondArray,
    Float32Array, Float64Array, Int8Array, Int32Array, Int64Array, ListArray, RecordBatch, StringArray,
    Time64MicrosecondArray, TimestampMicrosecondArray, TimestampMillisecondArray, TimestampNanosecondArray,
    UInt64Array,
};
use arrow::datatypes::{Int32Type, Int64Type};
use millstream_core::sink::LoadContext;
use millstream_database::Endpoint;
use millstream_testkit::{Authority, PASSWORD, Postgres, PostgresOptions, USER, Validity};
use serde_json::json;

use crate::conformance::context;
use crate::database::server::{Connection, Failure};
use crate::database::spec::DatabaseSpec;
use crate::database::tests::{Database, Kind, checked, load, many, people, sink, takes_its_time, whats};

fn database(statements: &str) -> Database {
    Database::new(Kind::Postgres, statements)
}

fn column(name: &str, array: ArrayRef) -> RecordBatch {
    let ids: ArrayRef = Arc::new((0..array.len() as i64).collect::<Int64Array>());
    RecordBatch::try_from_iter_with_nullable([("id", ids, true), (name, array, true)]).expect("a batch")
}

/// A column of each type; with one that has no binary form, all of them go as text.
fn every_type(with_text: bool) -> RecordBatch {
    let list = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1), None]), None]);
    let decimal = Decimal128Array::from(vec![Some(-125_000_001), None]).with_precision_and_scale(20, 6).expect("fits");
    let mut columns: Vec<(&str, ArrayRef)> = vec![
        ("truth", Arc::new(BooleanArray::from(vec![Some(true), None]))),
        ("tiny", Arc::new(Int8Array::from(vec![Some(-7), None]))),
        ("middle", Arc::new(Int32Array::from(vec![Some(i32::MIN), None]))),
        ("large", Arc::new(UInt64Array::from(vec![Some(u64::MAX), None]))),
        ("single", Arc::new(Float32Array::from(vec![Some(0.1), None]))),
        ("double", Arc::new(Float64Array::from(vec![Some(f64::NEG_INFINITY), None]))),
        ("exact", Arc::new(decimal)),
        ("text", Arc::new(StringArray::from(vec![Some("tab\t line\n back\\ \\N quote' 😀"), None]))),
        ("word", Arc::new([Some("a"), None].into_iter().collect::<DictionaryArray<Int32Type>>())),
        ("bytes", Arc::new(BinaryArray::from(vec![Some(&b"\x00\xff\t\\"[..]), None]))),
        ("day", Arc::new(Date32Array::from(vec![Some(-1), None]))),
        ("time", Arc::new(Time64MicrosecondArray::from(vec![Some(3_600_000_001), None]))),
        ("micro", Arc::new(TimestampMicrosecondArray::from(vec![Some(1_700_000_000_000_001), None]))),
        (
            "zoned",
            Arc::new(TimestampMillisecondArray::from(vec![Some(1_700_000_000_123), None]).with_timezone("+02:00")),
        ),
        ("list", Arc::new(list)),
    ];
    if with_text {
        columns.push(("span", Arc::new(DurationSecondArray::from(vec![Some(90), None]))));
    }
    let batch = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, one)| (name, one, true)));
    batch.expect("a batch")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_type_has_its_column_and_value_in_either_form() {
    for with_text in [false, true] {
        let database = database("");
        let batch = every_type(with_text);
        let sink = database.sink(json!({}));
        let statement = sink.describe(batch.schema());
        assert_eq!(statement.ends_with("(FORMAT binary)"), !with_text, "{statement}");
        load(&sink, std::slice::from_ref(&batch)).await.expect("it loads");
        assert_eq!(
            database.query(
                "SELECT truth, tiny, middle, large, single, \"double\", exact, word, bytes, day, time FROM \
                            t WHERE truth"
            ),
            ["t\t-7\t-2147483648\t18446744073709551615\t0.1\t-Infinity\t-125.000001\ta\t\\x00ff095c\t1969-12-31\t\
                 01:00:00.000001"]
        );
        assert_eq!(
            database.query("SET timezone = 'UTC'; SELECT micro, zoned, list FROM t WHERE truth"),
            ["2023-11-14 22:13:20.000001\t2023-11-14 22:13:20.123+00\t[1, null]"]
        );
        let text = "tab\t line\n back\\ \\N quote' 😀";
        let digits: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(database.query("SELECT encode(convert_to(text, 'UTF8'), 'hex') FROM t WHERE truth"), [digits]);
        assert_eq!(
            database.query("SELECT count(*) FROM t WHERE coalesce(truth::text, tiny::text, text, list::text) IS NULL"),
            ["1"]
        );
        let types = database.query(
            "SELECT string_agg(format_type(atttypid, atttypmod), ' ' ORDER BY attnum) FROM pg_attribute WHERE attrelid \
             = \
             't'::regclass AND attnum BETWEEN 1 AND 15",
        );
        assert_eq!(
            types,
            ["boolean smallint integer numeric(20,0) real double precision numeric(20,6) text text bytea date time \
                 without \
              time zone timestamp without time zone timestamp with time zone jsonb"]
        );
        sink.check(batch.schema()).await.expect("its own table fits");
        load(&sink, &[batch]).await.expect("it loads again");
        assert_eq!(database.count(), 4);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_of_other_types_are_read_from_text() {
    let database = database(
        "CREATE TYPE mood AS ENUM ('glad', 'sad'); CREATE TABLE t (id BIGINT, who UUID, how mood, seen TIMESTAMPTZ, \
         tags \
         TEXT[], address INET)",
    );
    let texts = |name, values: [&str; 2]| (name, Arc::new(StringArray::from(values.to_vec())) as ArrayRef, true);
    let batch = RecordBatch::try_from_iter_with_nullable([
        ("id", Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef, true),
        texts("who", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "00000000-0000-0000-0000-000000000000"]),
        texts("how", ["glad", "sad"]),
        texts("seen", ["2024-02-29 12:00:00", "2024-02-29 12:00:00+02"]),
        texts("tags", ["{a,b}", "{}"]),
        texts("address", ["10.0.0.1", "::1"]),
    ]);
    let batch = batch.expect("a batch");
    let sink = database.sink(json!({}));
    sink.check(batch.schema()).await.expect("they fit");
    load(&sink, &[batch]).await.expect("it loads");
    let rows = database.query("SET timezone = 'UTC'; SELECT * FROM t ORDER BY id");
    assert_eq!(rows[0], "1\ta0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11\tglad\t2024-02-29 12:00:00+00\t{a,b}\t10.0.0.1");
    let bad = column("how", Arc::new(StringArray::from(vec!["glad", "angry"])));
    let error = load(&sink, &[bad]).await.expect_err("no such mood");
    assert_eq!(
        (error.location().column.as_deref(), error.offending_text()),
        (Some("how"), Some("id='1', how='angry'"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_do_not_fit_are_refused_with_their_row() {
    // Too long for any index, with too many different letters to be compressed.
    let long: String =
        (0..4_000_u32).filter_map(|index| char::from_u32(0x4e00 + index.wrapping_mul(7919) % 20_000)).collect();
    for (declared, batch, cause) in [
        (
            "v TEXT",
            column("v", Arc::new(StringArray::from(vec!["a", "a\0b"]))),
            "PostgreSQL's text cannot hold a NUL byte",
        ),
        (
            "v TIMESTAMP",
            column("v", Arc::new(TimestampNanosecondArray::from(vec![1_000, 1]))),
            "the time has nanoseconds, and the database keeps microseconds",
        ),
        ("v VARCHAR(3)", column("v", Arc::new(StringArray::from(vec!["abc", "abcd"]))), "value too long"),
        (
            "v TIME(0)",
            column("v", Arc::new(Time64MicrosecondArray::from(vec![1_000_000, 1_000_001]))),
            "the time has more fractional digits than the column keeps",
        ),
        (
            "v DATE",
            column("v", Arc::new(StringArray::from(vec!["2024-02-29", "2023-02-29"]))),
            "date/time field value out of range",
        ),
        (
            "v VARCHAR(9) NOT NULL",
            column("v", Arc::new(StringArray::from(vec![Some("a"), None]))),
            "null value in column",
        ),
        ("v INT CHECK (v < 5)", column("v", Arc::new(Int32Array::from(vec![1, 9]))), "new row for relation"),
        ("v INT REFERENCES other", column("v", Arc::new(Int32Array::from(vec![1, 9]))), "insert or update on table"),
        ("v JSONB", column("v", Arc::new(StringArray::from(vec!["[1]", "[1"]))), "invalid input syntax for type json"),
        ("v TEXT UNIQUE", column("v", Arc::new(StringArray::from(vec!["a", long.as_str()]))), "index row"),
    ] {
        let database = database("CREATE TABLE other (id INT PRIMARY KEY); INSERT INTO other VALUES (1)");
        database.query(&format!("CREATE TABLE t (id BIGINT PRIMARY KEY, {declared})"));
        let error = load(&database.sink(json!({})), &[batch]).await.expect_err(declared);
        assert!(error.cause_text().is_some_and(|text| text.starts_with(cause)), "{declared}: {error:?}");
        assert!(
            error.offending_text().is_some_and(|text| text.contains("id=1") || text.contains("id='1'")),
            "{declared}: {error:?}"
        );
        assert_eq!(database.count(), 0, "{declared}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_null_is_reported_with_its_row_on_several_connections_too() {
    let database = database("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(9))");
    let error = load(&database.sink(json!({"connections": 2})), &[people(&[(Some(1), "a"), (None, "none")])]).await;
    assert_eq!(error.expect_err("a null").offending_text(), Some("id=NULL, name='none'"));
    assert_eq!(database.tables(), ["t"]);
}

/// A transaction may have any number of groups and bad rows.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_groups_and_bad_rows_go_in_one_transaction() {
    let server = Postgres::start(PostgresOptions {
        settings: vec!["max_locks_per_transaction=10".to_owned(), "max_connections=20".to_owned()],
        certificate: None,
    });
    let name = server.database();
    server.query(&name, "CREATE TABLE t (id BIGINT, name VARCHAR(20) CHECK (id % 3 <> 0 OR id >= 100000))");
    let sink = sink(&server.url(&name), json!({"batch_rows": 10}));
    load(&sink, &[many(100_000..110_000)]).await.expect("it loads");
    let ledger = sink.ledger("run", LoadContext { schema: many(0..1).schema(), ..context(1) }).await.expect("it opens");
    let chunk = millstream_core::sink::Chunk { unit: "u".to_owned(), number: 0 };
    let mut delivery = ledger.expect("there is one").delivery(vec![chunk], 10_000).await.expect("it begins");
    delivery.write(many(0..10_000)).await.expect("rows");
    delivery.commit().await.expect("a third may be bad");
    assert_eq!(server.query(&name, "SELECT COUNT(*), COUNT(DISTINCT id) FROM t"), ["16666\t16666"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_can_be_named() {
    let database = database("CREATE SCHEMA \"My Own\"");
    let sink = database.sink(json!({"table": "My Own.t", "mode": "replace", "key": ["id"]}));
    load(&sink, &[many(0..3)]).await.expect("a new table");
    load(&sink, &[many(0..2)]).await.expect("in the place of the old one");
    assert_eq!(database.query("SELECT * FROM \"My Own\".t ORDER BY id"), ["0\tname 0", "1\tname 1"]);
    assert_eq!(database.query("SELECT indexname FROM pg_indexes WHERE tablename = 't'"), ["t_pkey"]);
    assert_eq!(database.query("SELECT count(*) FROM pg_tables WHERE tablename LIKE '\\_millstream%'"), ["0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_depends_on_a_table_keeps_it_from_being_replaced() {
    let database = database(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT); CREATE VIEW seen AS SELECT id FROM t; CREATE TABLE child \
         (id \
         BIGINT REFERENCES t)",
    );
    let errors = checked(&database.sink(json!({"mode": "replace"})), &people(&[])).await;
    let causes: Vec<_> = errors.iter().map(|error| error.cause_text()).collect();
    assert_eq!(causes, [Some("a foreign key of table child depends on it"), Some("the view seen depends on it")]);
    load(&database.sink(json!({"mode": "truncate"})), &[many(0..3)]).await.expect("its rows can be");
    load(&database.sink(json!({"mode": "truncate"})), &[many(1..3)]).await.expect("and again");
    assert_eq!(database.query("SELECT id FROM seen ORDER BY 1"), ["1", "2"]);
    let errors = checked(&database.sink(json!({"table": "seen"})), &people(&[])).await;
    assert!(whats(&errors)[0].ends_with("is a view, not a table"), "{errors:?}");
}

/// A renamed table keeps the name of its key, which a new table then cannot use.
#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_a_table_that_was_renamed_is_in_nobodys_way() {
    let database = database("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT); ALTER TABLE t RENAME TO old");
    for settings in [json!({"key": ["id"]}), json!({"key": ["id"], "mode": "replace"})] {
        for deferred in [false, true] {
            let mut settings = settings.clone();
            settings["defer_key"] = json!(deferred);
            load(&database.sink(settings), &[many(0..3)]).await.expect("it loads");
            assert_eq!(database.count(), 3);
            database.query("DROP TABLE t");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_that_leaves_rows_out_is_noticed() {
    let database = database(
        "CREATE TABLE t (id BIGINT, name TEXT); CREATE FUNCTION skip() RETURNS trigger AS 'BEGIN IF NEW.id = 2 THEN \
         RETURN \
         NULL; END IF; RETURN NEW; END' LANGUAGE plpgsql; CREATE TRIGGER skipping BEFORE INSERT ON t FOR EACH ROW \
         EXECUTE \
         FUNCTION skip()",
    );
    let error = load(&database.sink(json!({})), &[many(0..5)]).await.expect_err("2 is missing");
    assert_eq!(
        (error.offending_text(), error.cause_text()),
        (Some("id=2, name='name 2'"), Some("the server wrote 0 of 1 rows"))
    );
    for settings in [json!({"connections": 2}), json!({"mode": "truncate"})] {
        let error = load(&database.sink(settings.clone()), &[many(0..5)]).await.expect_err("2 is missing");
        assert!(error.what().ends_with("took 4 of 5 rows"), "{settings}: {error:?}");
        assert_eq!((database.count(), database.tables()), (0, vec!["t".to_owned()]), "{settings}");
    }
}

/// `bytea` has escapes of its own in text; the bytes must be loaded unchanged.
#[tokio::test(flavor = "multi_thread")]
async fn text_becomes_bytes_as_it_is() {
    for more in ["", ", span TEXT"] {
        let database = database(&format!("CREATE TABLE t (id BIGINT PRIMARY KEY, v BYTEA{more})"));
        let texts = ["\\x41", "a\\\\b", "\\101", "\\q", "tab\t nul\0 é"];
        let mut batch = column("v", Arc::new(StringArray::from(texts.to_vec())));
        if !more.is_empty() {
            // A type without a binary form makes all rows text.
            let span: ArrayRef = Arc::new(DurationSecondArray::from(vec![9; texts.len()]));
            let columns =
                [("id", batch.column(0).clone(), true), ("v", batch.column(1).clone(), true), ("span", span, true)];
            batch = RecordBatch::try_from_iter_with_nullable(columns).expect("a batch");
        }
        load(&database.sink(json!({})), &[batch]).await.expect("it loads");
        let digits = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        let expected: Vec<String> = texts.iter().map(|text| digits(text)).collect();
        assert_eq!(database.query("SELECT encode(v, 'hex') FROM t ORDER BY id"), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_domain_is_as_narrow_as_its_type() {
    let database = database("CREATE DOMAIN price AS NUMERIC(10, 2); CREATE TABLE t (id BIGINT PRIMARY KEY, v price)");
    let exact = Decimal128Array::from(vec![125_001]).with_precision_and_scale(20, 3).expect("fits");
    let errors = checked(&database.sink(json!({})), &column("v", Arc::new(exact))).await;
    assert!(whats(&errors)[0].contains("is price, and the rows have"), "{errors:?}");
    let exact = Decimal128Array::from(vec![12_501]).with_precision_and_scale(10, 2).expect("fits");
    load(&database.sink(json!({})), &[column("v", Arc::new(exact))]).await.expect("it loads");
    assert_eq!(database.query("SELECT v FROM t"), ["125.01"]);
}

/// A database in another encoding does not have every letter.
#[tokio::test(flavor = "multi_thread")]
async fn letters_that_the_database_does_not_have_are_reported() {
    let mut database = database("");
    let latin = format!("{}_latin", database.name);
    database.query(&format!("CREATE DATABASE {latin} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'"));
    database.url = database.url.replace(&database.name, &latin);
    let create =
        json!({"mode": "append", "before": ["CREATE TABLE IF NOT EXISTS t (id BIGINT PRIMARY KEY, name TEXT)"]});
    let error = load(&database.sink(create.clone()), &[people(&[(Some(1), "é"), (Some(2), "☃")])]).await;
    let error = error.expect_err("no snowman");
    assert_eq!(error.reject_kind(), millstream_core::RejectKind::Encoding);
    assert!(error.offending_text().is_some_and(|text| text.starts_with("id=2")), "{error:?}");
    load(&database.sink(create), &[people(&[(Some(1), "é")])]).await.expect("it loads");
    Postgres::shared().query(&latin, "DROP TABLE t");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_load_of_another_user_left_stops_nobody() {
    let database = database("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20))");
    database.query("CREATE TABLE _millstream_0123456789abcdef_rows (id INT)");
    let user = format!("other{}", database.name);
    database.query(&format!(
        "CREATE USER {user} PASSWORD '{PASSWORD}'; GRANT ALL ON SCHEMA public TO {user}; GRANT SELECT, INSERT ON t TO \
         {user}"
    ));
    let url = database.url.replace(USER, &user);
    for settings in [json!({}), json!({"connections": 2})] {
        load(&sink(&url, settings), &[many(0..1)]).await.expect("it loads");
        database.query("DELETE FROM t");
    }
    assert_eq!(database.tables(), ["_millstream_0123456789abcdef_rows", "t"]);
    load(&database.sink(json!({})), &[many(0..1)]).await.expect("its owner's next load");
    assert_eq!(database.tables(), ["t"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_has_to_prove_who_it_is() {
    let authority = Authority::new();
    let certificate = Some(authority.certificate("localhost", Validity::Current));
    let server = Postgres::start(PostgresOptions { settings: vec![], certificate });
    let name = server.database();
    let folder = tempfile::TempDir::new().expect("a folder");
    let ca = folder.path().join("ca.pem");
    fs_err::write(&ca, authority.pem()).expect("a file");
    let url = |host: &str| server.url(&name).replace("127.0.0.1", host);
    let ca = ca.display().to_string();
    let trusting = sink(
        &url("localhost"),
        json!({"tls": "verify", "ca": ca, "after": ["CREATE TABLE seen AS SELECT ssl FROM \
                                                   pg_stat_ssl WHERE pid = pg_backend_pid()"]}),
    );
    load(&trusting, &[many(0..10)]).await.expect("it is proven");
    assert_eq!(server.query(&name, "SELECT * FROM seen"), ["t"]);
    for (host, settings, hint) in [
        ("localhost", json!({"tls": "verify", "retries": 0}), "name its PEM file in `ca`"),
        ("127.0.0.1", json!({"tls": "verify", "ca": ca, "retries": 0}), "check the host"),
    ] {
        let errors = checked(&sink(&url(host), settings), &people(&[])).await;
        assert!(errors[0].what().starts_with("the encrypted connection to postgres://"), "{errors:?}");
        assert!(errors[0].hint_text().is_some_and(|text| text.contains(hint)), "{errors:?}");
        assert!(!format!("{errors:?}").contains(PASSWORD), "{errors:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_has_nothing_of_the_load_and_the_next_one_cleans_up() {
    let mut server = Postgres::start(PostgresOptions::default());
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
        assert_eq!(server.query(&name, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"), ["t"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_not_make_tables_gets_a_hint() {
    let database = database("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20))");
    let user = format!("few{}", database.name);
    database.query(&format!("CREATE USER {user} PASSWORD '{PASSWORD}'; GRANT SELECT, INSERT ON t TO {user}"));
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
    let again = ended.iter().filter(|ended| matches!(ended, Ok(Err(Failure::Again { undone, .. })) if !*undone));
    assert_eq!(again.count(), 1, "{ended:?}");
    assert_eq!(database.rows(), ["1\ta", "2\tb"]);
}

/// Server timeouts for idle connections and long statements do not apply to a load.
#[tokio::test(flavor = "multi_thread")]
async fn a_load_whose_rows_take_their_time_is_not_thrown_out() {
    let database = database("CREATE TABLE t (id BIGINT, name VARCHAR(20))");
    database.query(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.6); RETURN NEW; END'; \
         CREATE \
         TRIGGER slow BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION slow()",
    );
    for setting in ["idle_session_timeout", "idle_in_transaction_session_timeout", "statement_timeout"] {
        database.query(&format!("ALTER DATABASE {} SET {setting} = '1s'", database.name));
    }
    takes_its_time(&database.url).await;
    assert_eq!(database.count(), 8);
}

/// A connection outside of any load.
pub(crate) async fn connect(url: &str, spec: &DatabaseSpec) -> Box<dyn Connection> {
    let endpoint = Endpoint::parse(url, &spec.access(), super::PORT).expect("a place");
    Box::new(super::connection::connect(&endpoint, spec).await.expect("it connects"))
}
