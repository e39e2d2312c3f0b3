//! Real servers, read by the sources: types, parts, snapshots, faults.

use std::fmt::Write as _;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{Int32Type, Int64Type, TimestampMicrosecondType};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use millstream_core::ErrorKind;
use millstream_core::spec::parse;
use millstream_testkit::{Break, MariaDb, MariaDbOptions, PASSWORD, Postgres, PostgresOptions, Proxy, TempTree, USER};
use serde_json::json;

use super::*;
use crate::conformance::with_context;

/// The source that reads `url`, with these settings.
fn source(url: &str, settings: Value) -> Arc<dyn Source> {
    let scheme = url.split(':').next().unwrap_or_default();
    let entry = [MYSQL, POSTGRES, SQLITE].into_iter().find(|entry| entry.schemes.contains(&scheme)).expect("a scheme");
    (entry.check)(url).expect("a good URL");
    (entry.build)(&settings).expect("good settings")
}

/// The result of reading a source: its columns, its units, and all rows with the unit's number.
struct Seen {
    schema: SchemaRef,
    units: Vec<Unit>,
    batches: Vec<RecordBatch>,
}

impl Seen {
    /// The rows as text, sorted.
    fn rows(&self) -> Vec<String> {
        let options = FormatOptions::default().with_null("NULL");
        let mut rows = Vec::new();
        for batch in &self.batches {
            let columns: Vec<ArrayRef> = batch.columns().iter().map(without_zone).collect();
            let columns: Vec<ArrayFormatter> = columns
                .iter()
                .map(|column| ArrayFormatter::try_new(column, &options).expect("types that can be shown"))
                .collect();
            for row in 0..batch.num_rows() {
                rows.push(columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>().join("|"));
            }
        }
        rows.sort();
        rows
    }

    fn types(&self) -> Vec<String> {
        self.schema.fields().iter().map(|field| format!("{}: {}", field.name(), field.data_type())).collect()
    }
}

/// Times as they are in UTC: showing a zone needs its names.
fn without_zone(column: &ArrayRef) -> ArrayRef {
    match column.as_primitive_opt::<TimestampMicrosecondType>() {
        Some(times) => Arc::new(times.clone().with_timezone_opt(None::<&str>)),
        None => Arc::clone(column),
    }
}

fn seen(url: &str, settings: Value) -> Result<Seen> {
    seen_after(url, settings, || ())
}

/// Reads everything; `listed` runs when the units are known.
fn seen_after(url: &str, settings: Value, listed: impl FnOnce()) -> Result<Seen> {
    let source = source(url, settings);
    with_context(64 << 20, |context| async move {
        let endpoint = source.rows().expect("a place of rows");
        let schema = endpoint.columns(&context, url).await?;
        let units: Vec<Unit> = source.list(&context, url).try_collect().await?;
        listed();
        let request = ParseRequest { batch_rows: 1_000, ..ParseRequest::all(Arc::clone(&schema)) };
        let mut reading: Vec<_> = units.iter().map(|unit| endpoint.read(&context, unit, &request)).collect();
        // Units are read as the engine does: no more at once than there are connections.
        let mut batches = Vec::new();
        for rows in &mut reading {
            while let Some(rows) = rows.next().await {
                batches.push(rows?.batch);
            }
        }
        Ok(Seen { schema, units, batches })
    })
}

fn fault(url: &str, settings: Value) -> Error {
    match seen(url, settings) {
        Ok(seen) => panic!("{:?}", seen.rows()),
        Err(error) => error,
    }
}

#[test]
fn postgres_types_are_exact() {
    let server = Postgres::shared();
    let database = server.database();
    server.query(
        &database,
        "CREATE TYPE mood AS ENUM ('good', 'bad');
         CREATE TABLE t (b bool, i2 smallint, i4 integer, i8 bigint, f4 real, f8 double precision, n numeric(12,3),
            long numeric(50,0), loose numeric, d date, ti time, ts timestamp, tz timestamptz, t text, v varchar(9),
            bytes bytea, u uuid, j jsonb, m mood, a integer[]);
         INSERT INTO t VALUES (true, -32768, 2147483647, -9223372036854775808, 0.1, 0.1, -123456789.125,
            99999999999999999999999999999999999999999999999999, 1.50, '0044-03-15', '23:59:59.999999',
            '1969-12-31 23:59:59.5', '2005-06-01 12:00:00+02', E'a\\tb\\né', 'x', '\\x00ff',
            'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{\"a\": [1]}', 'bad', '{1,2}');
         INSERT INTO t DEFAULT VALUES",
    );
    let seen = seen(&server.url(&database), json!({"table": "t"})).expect("rows");
    assert_eq!(
        seen.types(),
        [
            "b: Boolean",
            "i2: Int16",
            "i4: Int32",
            "i8: Int64",
            "f4: Float32",
            "f8: Float64",
            "n: Decimal128(12, 3)",
            "long: Decimal256(50, 0)",
            "loose: Utf8View",
            "d: Date32",
            "ti: Time64(µs)",
            "ts: Timestamp(µs)",
            "tz: Timestamp(µs, \"UTC\")",
            "t: Utf8View",
            "v: Utf8View",
            "bytes: Binary",
            "u: Utf8View",
            "j: Utf8View",
            "m: Utf8View",
            "a: Utf8View",
        ]
    );
    let full = "true|-32768|2147483647|-9223372036854775808|0.1|0.1|-123456789.125|\
                99999999999999999999999999999999999999999999999999|1.50|0044-03-15|23:59:59.999999|\
                1969-12-31T23:59:59.500|2005-06-01T10:00:00|a\tb\né|x|00ff|a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11|\
                {\"a\": [1]}|bad|{1,2}";
    assert_eq!(seen.rows(), [["NULL"; 20].join("|"), full.to_owned()]);
}

#[test]
fn mysql_types_are_exact() {
    let server = MariaDb::shared();
    let database = server.database();
    server.query(
        &database,
        "CREATE TABLE t (b BOOLEAN, i1 TINYINT UNSIGNED, i3 MEDIUMINT, i8 BIGINT, u8 BIGINT UNSIGNED, f4 FLOAT, \
            f8 DOUBLE, n DECIMAL(12,3), un DECIMAL(5,2) UNSIGNED, big DECIMAL(65,30), y YEAR, d DATE, ti TIME(6), \
            ts DATETIME(6), tz TIMESTAMP(3) NULL, t TEXT, v VARCHAR(9), bytes VARBINARY(9), u UUID, j JSON, \
            m ENUM('good','bad'), bits BIT(12));
         SET time_zone = '+02:00';
         INSERT INTO t VALUES (TRUE, 255, -8388608, -9223372036854775808, 18446744073709551615, 0.1, 0.1, \
            -123456789.125, 999.99, -12345678901234567890123456789012345.5, 2155, '1000-01-01', '23:59:59.999999', \
            '9999-12-31 23:59:59.000001', '2005-06-01 12:00:00.25', 'a\\tb\\né', 'x', x'00ff', \
            'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{\"a\": [1]}', 'bad', b'100000000001'), \
            (NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,\
            NULL)",
    );
    let seen = seen(&server.url(&database), json!({"table": "t"})).expect("rows");
    assert_eq!(
        seen.types(),
        [
            "b: Int8",
            "i1: UInt8",
            "i3: Int32",
            "i8: Int64",
            "u8: UInt64",
            "f4: Float32",
            "f8: Float64",
            "n: Decimal128(12, 3)",
            "un: Decimal128(5, 2)",
            "big: Decimal256(65, 30)",
            "y: UInt16",
            "d: Date32",
            "ti: Time64(µs)",
            "ts: Timestamp(µs)",
            "tz: Timestamp(µs, \"UTC\")",
            "t: Utf8View",
            "v: Utf8View",
            "bytes: Binary",
            "u: Utf8View",
            "j: Utf8View",
            "m: Utf8View",
            "bits: UInt64",
        ]
    );
    let full = "1|255|-8388608|-9223372036854775808|18446744073709551615|0.1|0.1|-123456789.125|999.99|\
                -12345678901234567890123456789012345.500000000000000000000000000000|2155|1000-01-01|23:59:59.999999|\
                9999-12-31T23:59:59.000001|2005-06-01T10:00:00.250|a\tb\né|x|00ff|\
                a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11|{\"a\": [1]}|bad|2049";
    assert_eq!(seen.rows(), [full.to_owned(), ["NULL"; 22].join("|")]);
}

#[test]
fn sqlite_types_are_those_of_its_values() {
    let tree = TempTree::new();
    let path = tree.path("a.db");
    let database = rusqlite::Connection::open(&path).expect("a database");
    database
        .execute_batch(
            "CREATE TABLE t (i INTEGER, r, t TEXT, b BLOB, mixed, none);
             INSERT INTO t VALUES (1, 1, 'a', x'00ff', 5, NULL), (9223372036854775807, 2.5, 'é', NULL, 'five', NULL)",
        )
        .expect("statements");
    let url = format!("sqlite:{}", path.display());
    let all = seen(&url, json!({"table": "t"})).expect("rows");
    let types = ["i: Int64", "r: Float64", "t: Utf8View", "b: Binary", "mixed: Utf8View", "none: Utf8View"];
    assert_eq!(all.types(), types);
    assert_eq!(all.rows(), ["1|1.0|a|00ff|5|NULL", "9223372036854775807|2.5|é|NULL|five|NULL"]);
    let query = seen(&url, json!({"query": "SELECT count(*) AS n FROM t; "})).expect("rows");
    assert_eq!((query.types(), query.rows()), (vec!["n: Int64".to_owned()], vec!["2".to_owned()]));

    // A later value of another kind than the first rows.
    database
        .execute_batch(
            "CREATE TABLE late (n); WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 1500)
             INSERT INTO late SELECT x FROM c; INSERT INTO late VALUES ('text')",
        )
        .expect("statements");
    let error = fault(&url, json!({"table": "late"}));
    assert_eq!(error.what(), "the value is text, and the column is int64");
    assert_eq!((error.location().line, error.location().column.as_deref()), (Some(1501), Some("n")));
    // A whole number that no float holds.
    let large = "CREATE TABLE large (n); INSERT INTO large VALUES (0.5), (9007199254740992), (9007199254740993)";
    database.execute_batch(large).expect("statements");
    let error = fault(&url, json!({"table": "large"}));
    assert_eq!(error.what(), "the value is a whole number, and the column is float64");
    assert_eq!(error.location().line, Some(3));

    let missing = fault(&format!("sqlite:{}/none.db", tree.root().display()), json!({"table": "t"}));
    assert!(missing.what().starts_with("there is no file"), "{missing:?}");
    assert!(fault(&url, json!({"table": "x"})).cause_text().is_some_and(|cause| cause.contains("no such table: x")));
    let other = tree.file("b.db", "this is no database, but text that is long enough to be looked at");
    let error = fault(&format!("sqlite:{}", other.display()), json!({"table": "x"}));
    assert_eq!(error.hint_text(), Some("it is not a SQLite database"));
}

/// Runs a statement.
type Run = Box<dyn Fn(&str) -> Vec<String>>;

/// A server of either kind, and how to run a statement on it.
struct Server {
    url: String,
    query: Run,
}

fn both() -> [Server; 2] {
    let (mariadb, postgres) = (MariaDb::shared(), Postgres::shared());
    let (first, second) = (mariadb.database(), postgres.database());
    [
        Server { url: mariadb.url(&first), query: Box::new(move |sql| MariaDb::shared().query(&first, sql)) },
        Server { url: postgres.url(&second), query: Box::new(move |sql| Postgres::shared().query(&second, sql)) },
    ]
}

impl Server {
    /// A table `t` with `rows` rows, whose key has gaps.
    fn fill(&self, rows: usize) {
        (self.query)("CREATE TABLE t (id BIGINT PRIMARY KEY, other INTEGER, at DATE, name VARCHAR(20))");
        let values = (0..rows).fold(String::new(), |mut text, row| {
            let other = if row % 7 == 0 { "NULL".to_owned() } else { (row % 100 * 1_000).to_string() };
            let comma = if row > 0 { "," } else { "" };
            let _ = write!(text, "{comma}({}, {other}, '20{:02}-01-31', 'n{row}')", row * row, row % 30);
            text
        });
        (self.query)(&format!("INSERT INTO t VALUES {values}"));
    }
}

#[test]
fn parts_are_the_whole_and_of_one_moment() {
    for server in both() {
        server.fill(3_000);
        for (settings, at_least) in [
            (json!({"table": "t", "connections": 3}), 24),
            (json!({"table": "t", "connections": 1}), 1),
            (json!({"table": "t", "split_by": "other"}), 16),
            (json!({"table": "t", "split_by": "at", "connections": 2}), 16),
            (json!({"query": "SELECT * FROM t WHERE id >= -100"}), 1),
            (json!({"query": "SELECT * FROM t -- all", "split_by": "id"}), 16),
        ] {
            let write = || {
                (server.query)("INSERT INTO t VALUES (-5, 5, NULL, 'late'), (9000001, 5, NULL, 'late')");
                (server.query)("UPDATE t SET name = 'changed' WHERE id < 0 OR name = 'n2999'");
            };
            let found = seen_after(&server.url, settings.clone(), write).expect("rows");
            assert!(found.units.len() >= at_least, "{settings}: {:?}", found.units);
            let names: Vec<String> =
                found.rows().iter().map(|row| row.rsplit('|').next().unwrap_or("").into()).collect();
            // One stream takes its snapshot when it is read; parts have theirs from the listing.
            if found.units.len() > 1 || server.url.starts_with("postgres") && settings.get("table").is_some() {
                assert!(!names.iter().any(|name| name == "late" || name == "changed"), "{settings}");
                assert_eq!(names.len(), 3_000, "{settings}");
            } else {
                assert_eq!(names.len(), 3_002, "{settings}");
            }
            (server.query)("DELETE FROM t WHERE name = 'late' OR id = -5 OR id = 9000001");
            (server.query)("UPDATE t SET name = 'n2999' WHERE name = 'changed'");
        }
    }
}

#[test]
fn only_columns_that_are_asked_for_are_read() {
    for server in both() {
        server.fill(10);
        let source = source(&server.url, json!({"table": "t"}));
        let url = server.url.clone();
        let (narrow, none) = with_context(64 << 20, |context| async move {
            let endpoint = source.rows().expect("a place of rows");
            let schema = endpoint.columns(&context, &url).await.expect("columns");
            let read = async |projection| {
                let request = ParseRequest { projection, lines: true, ..ParseRequest::all(Arc::clone(&schema)) };
                let rows: Vec<Rows> =
                    endpoint.read(&context, &Unit::new(&url), &request).try_collect().await.expect("rows");
                rows
            };
            (read(vec![3, 1]).await, read(vec![]).await)
        });
        let batch = concat_batches(&narrow[0].batch.schema(), narrow.iter().map(|rows| &rows.batch)).expect("rows");
        assert_eq!(batch.column(0).as_string_view().value(0), "n0");
        assert!(batch.column(1).as_primitive::<Int32Type>().is_null(0));
        let lines = narrow[0].lines.as_ref().expect("numbers").as_primitive::<Int64Type>();
        assert_eq!((lines.value(0), lines.value(9)), (1, 10));
        assert_eq!(none[0].batch.num_rows(), 10);
    }
}

#[test]
fn what_cannot_be_read_is_reported() {
    for server in both() {
        server.fill(3_000);
        let wrong = server.url.replace(PASSWORD, "no password of theirs");
        let error = fault(&wrong.replace(' ', "%20"), json!({"table": "t"}));
        assert!(error.what().ends_with("the login is refused"), "{error:?}");
        assert!(!format!("{error:?}").contains("no password"), "{error:?}");
        let error = fault(&server.url, json!({"table": "absent"}));
        assert!(error.what().ends_with("refuses the query"), "{error:?}");
        assert!(error.cause_text().is_some_and(|cause| cause.contains("absent")), "{error:?}");
        assert!(error.hint_text().is_some_and(|hint| hint.contains("the table's name")), "{error:?}");
        let error = fault(&server.url, json!({"query": "SELEKT 1"}));
        assert!(error.cause_text().is_some_and(|cause| cause.contains("syntax")), "{error:?}");
        let error = fault(&server.url, json!({"table": "t", "split_by": "name"}));
        assert_eq!(error.what(), "rows cannot be split by this column");
        let error = fault(&server.url, json!({}));
        assert_eq!(error.what(), "neither a table nor a query is given");
        let login = format!("{USER}:{PASSWORD}@");
        let error = fault(&server.url.replace(&login, ""), json!({"table": "t"}));
        assert!(error.what().contains("has no user"), "{error:?}");
    }
    let both = json!({"table": "t", "query": "SELECT 1", "connections": 0});
    let faults = parse::<PostgresRead>(&both).expect_err("faults");
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!((MYSQL.check)("mysql://u@h/d#x").is_err());
}

#[test]
fn values_that_have_no_place_are_reported_with_their_row() {
    let postgres = Postgres::shared();
    let database = postgres.database();
    for (value, what) in [
        ("'infinity'::date", "infinity is not a date"),
        ("'-infinity'::timestamptz", "infinity is not a time"),
        ("'NaN'::numeric(5,2)", "NaN and infinity are not decimals"),
    ] {
        let error = fault(&postgres.url(&database), json!({"query": format!("SELECT 1 AS a, {value} AS b")}));
        assert_eq!((error.what(), error.kind()), (what, ErrorKind::Data));
        assert_eq!((error.location().line, error.location().column.as_deref()), (Some(1), Some("b")));
    }
    let mariadb = MariaDb::shared();
    let database = mariadb.database();
    mariadb.query(
        &database,
        "SET sql_mode = ''; CREATE TABLE t (d DATE, t TIME); INSERT INTO t VALUES ('2005-01-01', '1:00'), \
         ('0000-00-00', '1:00'); CREATE TABLE u (t TIME); INSERT INTO u VALUES ('-25:00:00')",
    );
    let error = fault(&mariadb.url(&database), json!({"table": "t"}));
    assert_eq!((error.what(), error.location().line), ("this is not a calendar date", Some(2)));
    assert!(error.hint_text().is_some_and(|hint| hint.contains("nullif")), "{error:?}");
    assert_eq!(fault(&mariadb.url(&database), json!({"table": "u"})).what(), "this is not a time of day");
}

#[test]
fn a_connection_that_breaks_is_reported() {
    let (mariadb, postgres) = (MariaDb::shared(), Postgres::shared());
    for server in both() {
        server.fill(3_000);
        let port = if server.url.starts_with("mysql") { mariadb.port() } else { postgres.port() };
        // Far enough into the rows of a query that gives them often.
        let proxy = Proxy::start(port, &[Break::Nothing, Break::Nothing, Break::Cut(60_000)]);
        let url = server.url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
        let error = fault(&url, json!({"query": "SELECT a.id, b.name FROM t a CROSS JOIN t b", "connections": 1}));
        assert!(error.what().contains("was lost"), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::Transient);
        let proxy = Proxy::start(port, &[Break::Cut(0)]);
        let url = server.url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
        let error = fault(&url, json!({"table": "t"}));
        assert!(error.what().ends_with("cannot be reached"), "{error:?}");
    }
}

#[test]
fn a_server_that_is_killed_is_reported() {
    let mut mariadb = MariaDb::start(MariaDbOptions::default());
    let database = mariadb.database();
    mariadb.query(&database, "CREATE TABLE t (id INT PRIMARY KEY); INSERT INTO t SELECT seq FROM seq_1_to_5000");
    let settings = json!({"table": "t"});
    let error = seen_after(&mariadb.url(&database), settings.clone(), || mariadb.kill()).err().expect("a fault");
    assert!(error.what().contains("was lost"), "{error:?}");
    let mut postgres = Postgres::start(PostgresOptions::default());
    let database = postgres.database();
    postgres.query(&database, "CREATE TABLE t (id INT PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 5000)");
    let url = postgres.url(&database);
    let error = seen_after(&url, settings, || postgres.kill()).err().expect("a fault");
    assert!(error.what().contains("was lost") || error.what().contains("cannot be reached"), "{error:?}");
}

#[test]
fn a_user_who_may_not_lock_reads_by_one_connection() {
    let server = MariaDb::shared();
    let database = server.database();
    server.query(
        &database,
        &format!(
            "CREATE TABLE t (id INT PRIMARY KEY); INSERT INTO t SELECT seq FROM seq_1_to_5000; \
             CREATE USER 'reader_{database}'@'%' IDENTIFIED BY 'r'; GRANT SELECT ON {database}.* TO \
             'reader_{database}'@'%'"
        ),
    );
    let url = server.url(&database).replace(&format!("{USER}:{PASSWORD}"), &format!("reader_{database}:r"));
    let found = seen(&url, json!({"table": "t"})).expect("rows");
    assert_eq!((found.units.len(), found.rows().len()), (1, 5_000));
}
