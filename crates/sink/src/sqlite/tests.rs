//! Tests of the SQLite sink: the conformance suite for every mode, the conversion of every type, and every fault of a
//! database that can be provoked.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, Float32Array, Float64Array,
    Int32Array, Int64Array, ListArray, RecordBatch, StringArray, Time64MicrosecondArray, TimestampMicrosecondArray,
    TimestampMillisecondArray, UInt64Array,
};
use arrow::datatypes::{Field, Int32Type, Int64Type, Schema};
use millstream_core::sink::{Load, LoadContext, Sink, SinkParts};
use millstream_core::{Error, ErrorKind, Result};
use rusqlite::Connection;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{build, database_path};
use crate::conformance::{Subject, context, listing, run, schema, shown, suite, write};

/// A SQLite sink with settings.
struct Table(Value);

impl Subject for Table {
    fn sink(&self, folder: &Path) -> Arc<dyn Sink> {
        sink(&folder.join("new/x.db"), self.0.clone())
    }

    fn read(&self, folder: &Path) -> Vec<String> {
        let path = folder.join("new/x.db");
        if !path.exists() {
            return Vec::new();
        }
        read(&path)
    }

    fn adds(&self) -> bool {
        self.0.get("mode").is_none()
    }
}

fn sink(path: &Path, settings: Value) -> Arc<dyn Sink> {
    let parts = SinkParts { target: format!("sqlite:{}", path.display()), format: None, codec: None, store: None };
    build(&settings, parts).expect("valid settings")
}

fn read(path: &Path) -> Vec<String> {
    let connection = Connection::open(path).expect("a database");
    let there = connection.query_row("SELECT count(*) FROM sqlite_schema WHERE name = 't'", [], |row| row.get(0));
    match there {
        Ok(0) => return Vec::new(),
        // Between prepare and commit readers have to wait, and so see nothing either.
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) => return Vec::new(),
        other => assert_eq!(other.expect("a schema"), 1),
    }
    let mut statement = connection.prepare("SELECT id, name, amount, day FROM t").expect("the columns");
    let rows = statement.query_map([], |row| {
        let (name, day): (Option<String>, Option<String>) = (row.get(1)?, row.get(3)?);
        Ok(shown(row.get(0)?, name.as_deref(), row.get(2)?, day.as_deref()))
    });
    rows.expect("rows").map(|row| row.expect("a row")).collect()
}

/// The subjects of the suite by name.
pub(crate) fn subject(name: &str) -> Option<Box<dyn Subject>> {
    Some(Box::new(Table(match name {
        "sqlite-append" => json!({"table": "t"}),
        "sqlite-replace" => json!({"table": "t", "mode": "replace"}),
        "sqlite-truncate" => json!({"table": "t", "mode": "truncate", "key": ["ID"]}),
        _ => return None,
    })))
}

#[tokio::test(flavor = "multi_thread")]
async fn append_conforms() {
    suite("sqlite-append", subject("sqlite-append").expect("known").as_ref()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replace_conforms() {
    suite("sqlite-replace", subject("sqlite-replace").expect("known").as_ref()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn truncate_conforms() {
    suite("sqlite-truncate", subject("sqlite-truncate").expect("known").as_ref()).await;
}

/// A database made by `statements`, and its path.
fn database(statements: &str) -> (TempDir, std::path::PathBuf) {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("x.db");
    Connection::open(&path).and_then(|connection| connection.execute_batch(statements)).expect("statements");
    (folder, path)
}

fn query(path: &Path, sql: &str) -> Vec<String> {
    let connection = Connection::open(path).expect("a database");
    let mut statement = connection.prepare(sql).expect("a query");
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| {
        let cells = (0..columns).map(|column| Ok(format!("{:?}", row.get::<_, rusqlite::types::Value>(column)?)));
        cells.collect::<rusqlite::Result<Vec<_>>>().map(|cells| cells.join(" "))
    });
    rows.expect("rows").map(|row| row.expect("a row")).collect()
}

fn count(path: &Path) -> Vec<String> {
    query(path, "SELECT count(*) FROM t")
}

/// Loads batches, one after the other, by one writer.
async fn load(sink: &Arc<dyn Sink>, batches: &[RecordBatch]) -> Result<String> {
    let context = LoadContext { schema: batches[0].schema(), ..context(1) };
    let load = sink.begin(context).await?;
    let loaded = load_into(&load, batches).await;
    if loaded.is_err() {
        load.abort().await;
    }
    loaded
}

async fn load_into(load: &Arc<dyn Load>, batches: &[RecordBatch]) -> Result<String> {
    let mut writer = load.writer(0).await?;
    for batch in batches {
        writer.write(batch.clone()).await?;
    }
    writer.close().await?;
    load.prepare().await?;
    load.commit().await
}

/// A batch of `id` and `name`.
fn people(rows: &[(Option<i64>, &str)]) -> RecordBatch {
    let ids: ArrayRef = Arc::new(rows.iter().map(|row| row.0).collect::<Int64Array>());
    let names: ArrayRef = Arc::new(rows.iter().map(|row| Some(row.1)).collect::<StringArray>());
    RecordBatch::try_from_iter_with_nullable([("id", ids, true), ("name", names, true)]).expect("a batch")
}

async fn checked(sink: &Arc<dyn Sink>, batch: &RecordBatch) -> Vec<Error> {
    sink.check(batch.schema()).await.expect_err("something is wrong")
}

fn whats(errors: &[Error]) -> Vec<&str> {
    errors.iter().map(Error::what).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn merge_changes_what_is_there_and_the_last_row_wins() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("x.db");
    let sink = sink(&path, json!({"table": "t", "mode": "merge", "key": ["id"]}));
    let first = people(&[(Some(1), "a"), (Some(2), "b"), (Some(1), "a again")]);
    let line = load(&sink, &[first]).await.expect("it merges into a new table");
    assert_eq!(line, format!("3 rows merged into table t of {}: 2 inserted, 1 updated, 0 unchanged", path.display()));
    sink.check(people(&[]).schema()).await.expect("its own table fits");
    let many: Vec<(Option<i64>, String)> = (0..500).map(|id| (Some(id % 250), format!("n{id}"))).collect();
    let many: Vec<(Option<i64>, &str)> = many.iter().map(|(id, name)| (*id, name.as_str())).collect();
    load(&sink, &[people(&[(Some(2), "B"), (Some(900), "new")]), people(&many)]).await.expect("it merges");
    assert_eq!(count(&path), ["Integer(251)"]);
    assert_eq!(
        query(&path, "SELECT name FROM t WHERE id IN (0, 1, 2, 249, 900) ORDER BY id"),
        ["Text(\"n250\")", "Text(\"n251\")", "Text(\"n252\")", "Text(\"n499\")", "Text(\"new\")"]
    );
    let error = load(&sink, &[people(&[(Some(5), "x"), (None, "no key")])]).await.expect_err("a null key");
    assert_eq!(error.cause_text(), Some("a row without a value in the key column `id` cannot be identified"));
    assert_eq!(error.offending_text(), Some("id=NULL, name='no key'"));
    assert_eq!(query(&path, "SELECT name FROM t WHERE id = 5"), ["Text(\"n255\")"], "nothing of it stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn merge_keeps_columns_that_are_not_loaded() {
    let (_folder, path) =
        database("CREATE TABLE t (name TEXT, note TEXT, id INT UNIQUE); INSERT INTO t VALUES ('a', 'kept', 1)");
    let sink = sink(&path, json!({"table": "T", "mode": "merge", "key": ["ID"]}));
    sink.check(people(&[]).schema()).await.expect("a unique index will do");
    load(&sink, &[people(&[(Some(1), "b")])]).await.expect("it merges");
    assert_eq!(query(&path, "SELECT * FROM t"), ["Text(\"b\") Text(\"kept\") Integer(1)"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn merge_on_all_columns_adds_what_is_missing() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("x.db");
    let sink = sink(&path, json!({"table": "t", "mode": "merge", "key": ["id", "name"]}));
    load(&sink, &[people(&[(Some(1), "a"), (Some(1), "b"), (Some(1), "a")])]).await.expect("it merges");
    assert_eq!(count(&path), ["Integer(2)"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn ignored_rows_are_counted_and_the_first_stays() {
    let (_folder, path) =
        database("CREATE TABLE t (id INT UNIQUE, name TEXT CHECK (name <> 'bad')); INSERT INTO t VALUES (2, 'there')");
    let sink = sink(&path, json!({"table": "t", "mode": "ignore", "key": ["id"]}));
    let line = load(&sink, &[people(&[(Some(1), "a"), (Some(2), "b"), (Some(1), "again"), (Some(3), "c")])]).await;
    let place = format!("table t of {}", path.display());
    assert_eq!(line.expect("it loads"), format!("4 rows offered to {place}, 2 rows left out as duplicates"));
    let rows = ["Text(\"a\")", "Text(\"there\")", "Text(\"c\")"];
    assert_eq!(query(&path, "SELECT name FROM t ORDER BY id"), rows);
    load(&sink, &[people(&[(Some(9), "bad")])]).await.expect_err("only keys are ignored");
    load(&sink, &[people(&[(None, "no key")])]).await.expect_err("and rows that have one");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_says_which_of_the_rows_with_one_key_stays() {
    for (mode, id_of_two) in [("merge", "Integer(9)"), ("ignore", "Integer(0)")] {
        // The table itself compares keys.
        let (_folder, path) = database(
            "CREATE TABLE t (name TEXT COLLATE NOCASE PRIMARY KEY, id INT, note TEXT); INSERT INTO t VALUES ('two', 0, \
             'kept')",
        );
        let settings = json!({"table": "t", "mode": mode, "key": ["name"], "order_by": ["id desc"]});
        let sink = sink(&path, settings);
        let rows =
            [(Some(3), "one"), (None, "one"), (Some(7), "ONE"), (Some(5), "one"), (Some(9), "Two"), (Some(8), "TWO")];
        load(&sink, &[people(&rows)]).await.expect("it loads");
        let one = query(&path, "SELECT id FROM t WHERE name = 'one'");
        let two = query(&path, "SELECT id, note FROM t WHERE name = 'two'");
        assert_eq!((one, two), (vec!["Integer(7)".to_owned()], vec![format!("{id_of_two} Text(\"kept\")")]), "{mode}");
        assert_eq!(query(&path, "SELECT count(*) FROM sqlite_schema WHERE type = 'table'"), ["Integer(1)"]);
    }
    // Nulls come last in either direction, and a merge keeps the last to arrive of equal rows.
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("x.db");
    let settings = json!({"table": "t", "mode": "merge", "key": ["name"], "order_by": ["id"]});
    load(&sink(&path, settings), &[people(&[(None, "a"), (Some(4), "a"), (Some(2), "a"), (None, "b")])])
        .await
        .expect("it loads");
    assert_eq!(query(&path, "SELECT name, id FROM t ORDER BY 1"), ["Text(\"a\") Integer(2)", "Text(\"b\") Null"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_evolves_where_that_is_allowed() {
    for more in [json!({}), json!({"atomic": true}), json!({"mode": "merge", "key": ["id"]})] {
        let (_folder, path) = database("CREATE TABLE t (id INT PRIMARY KEY); INSERT INTO t VALUES (7)");
        let mut settings = json!({"table": "t"});
        settings.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let batch = people(&[(Some(1), "a")]);
        let frozen = sink(&path, settings.clone());
        assert!(checked(&frozen, &batch).await[0].hint_text().is_some_and(|hint| hint.ends_with("`schema: evolve`")));
        settings["schema"] = json!("evolve");
        let sink = sink(&path, settings);
        sink.check(batch.schema()).await.expect("it can be changed");
        let context = LoadContext { schema: batch.schema(), ..context(1) };
        match sink.ledger("job", context).await.expect("it opens") {
            Some(ledger) => {
                let chunk = millstream_core::sink::Chunk { unit: "u".to_owned(), number: 0 };
                let mut delivery = ledger.delivery(vec![chunk], 0).await.expect("it begins");
                delivery.write(batch).await.expect("rows");
                delivery.commit().await.expect("it delivers");
            }
            None => drop(load(&sink, &[batch]).await.expect("it loads")),
        }
        let rows = ["Integer(1) Text(\"a\")", "Integer(7) Null"];
        assert_eq!(query(&path, "SELECT id, name FROM t ORDER BY id"), rows, "{more}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_of_the_user_are_a_part_of_the_transaction() {
    let (_folder, path) = database("CREATE TABLE log (what TEXT); CREATE TABLE t (id INT, name TEXT)");
    let settings = |after: &str| {
        let before = ["DROP TABLE t", "CREATE TABLE t (id INT, name TEXT)"];
        json!({"table": "t", "before": before, "after": ["INSERT INTO log SELECT count(*) FROM t", after]})
    };
    let rows = [people(&[(Some(1), "a"), (Some(2), "b")])];
    for (after, cause) in
        [("DELETE FROM nowhere", "no such table: nowhere"), ("COMMIT", "it has ended the transaction")]
    {
        let error = load(&sink(&path, settings(after)), &rows).await.expect_err(after);
        assert_eq!((error.what(), error.offending_text()), ("a statement of `after` failed", Some(after)));
        assert_eq!(error.cause_text(), Some(cause));
    }
    // A statement that ends the transaction would commit the rows.
    query(&path, "DELETE FROM log RETURNING 1");
    load(&sink(&path, settings("SELECT 1")), &rows).await.expect("it loads");
    assert_eq!(query(&path, "SELECT * FROM log"), ["Text(\"2\")"]);
    assert_eq!(count(&path), ["Integer(2)"]);
}

/// Columns with numeric affinity convert text that looks like a number.
#[tokio::test(flavor = "multi_thread")]
async fn columns_that_would_change_values_are_reported() {
    let text = || -> ArrayRef { Arc::new(StringArray::from(vec!["007"])) };
    let whole = || -> ArrayRef { Arc::new(Int64Array::from(vec![(1 << 53) + 1])) };
    let float = || -> ArrayRef { Arc::new(Float64Array::from(vec![0.1 + 0.2])) };
    let long = Decimal128Array::from(vec![1]).with_precision_and_scale(16, 2).expect("it fits");
    for (declared, value, told) in [
        ("INTEGER", text(), Some("text that looks like a number")),
        ("VARCHAR(9)", text(), None),
        ("DECIMAL(5,2)", text(), Some("text that looks like a number")),
        ("DOUBLE", text(), Some("text that looks like a number")),
        ("", text(), None),
        ("REAL", whole(), Some("whole numbers up to 2⁵³")),
        ("TEXT", whole(), None),
        ("TEXT", float(), Some("only the first digits")),
        ("INT", float(), None),
        ("NUMERIC", Arc::new(long), Some("a number holds 15 digits")),
    ] {
        let (_folder, path) = database(&format!("CREATE TABLE t (v {declared})"));
        let batch = RecordBatch::try_from_iter([("v", value)]).expect("a batch");
        let sink = sink(&path, json!({"table": "t"}));
        match told {
            None => sink.check(batch.schema()).await.expect(declared),
            Some(told) => {
                let errors = checked(&sink, &batch).await;
                assert!(errors[0].what().contains(told), "{declared}: {errors:?}");
                load(&sink, &[batch]).await.expect_err("also without the check");
            }
        }
    }
}

/// Columns of unknown types have numeric affinity, too: there the values decide.
#[tokio::test(flavor = "multi_thread")]
async fn text_that_would_become_another_number_is_refused() {
    let (_folder, path) = database("CREATE TABLE t (v STRING)");
    let sink = sink(&path, json!({"table": "t"}));
    let batch = |values: &[&str]| {
        let values: ArrayRef = Arc::new(StringArray::from(values.to_vec()));
        RecordBatch::try_from_iter([("v", values)]).expect("a batch")
    };
    let same = [
        "2024-02-29",
        "12:30:00",
        "{\"a\": 1}",
        "7",
        "-12",
        "1.5",
        "e",
        "+",
        ".",
        "",
        "1,5",
        "0x1F",
        "inf",
        "NaN",
        "1e",
    ];
    load(&sink, &[batch(&same)]).await.expect("nothing of it is changed");
    let connection = Connection::open(&path).expect("a database");
    let mut rows = connection.prepare("SELECT CAST(v AS TEXT) FROM t ORDER BY rowid").expect("a query");
    let rows: Vec<String> = rows.query_map([], |row| row.get(0)).expect("rows").map(|row| row.expect("text")).collect();
    assert_eq!(rows, same);
    for other in
        ["007", " 7", "7 ", "+7", "1.50", "1e3", ".5", "5.", "-0", "1.0", "9223372036854775808", "0.12345678901234567"]
    {
        let error = load(&sink, &[batch(&[other])]).await.expect_err(other);
        assert_eq!((error.kind(), error.offending_text()), (ErrorKind::Data, Some(other)), "{error:?}");
        connection.execute("INSERT INTO t VALUES (?1)", [other]).expect("SQLite takes it");
        let text: String = connection
            .query_row("SELECT CAST(v AS TEXT) FROM t ORDER BY rowid DESC LIMIT 1", [], |row| row.get(0))
            .expect("a row");
        assert_ne!(text, other, "SQLite does not change it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_type_has_its_column_and_value() {
    let list = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1), None]), None]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("truth", Arc::new(BooleanArray::from(vec![Some(true), None]))),
        ("small", Arc::new(Int32Array::from(vec![Some(-7), None]))),
        ("large", Arc::new(UInt64Array::from(vec![Some(i64::MAX as u64), None]))),
        ("single", Arc::new(Float32Array::from(vec![Some(0.5), None]))),
        ("double", Arc::new(Float64Array::from(vec![Some(f64::INFINITY), None]))),
        (
            "short",
            Arc::new(Decimal128Array::from(vec![Some(1250), None]).with_precision_and_scale(10, 2).expect("fits")),
        ),
        (
            "long",
            Arc::new(
                Decimal128Array::from(vec![Some(i128::MAX / 10), None]).with_precision_and_scale(38, 2).expect("fits"),
            ),
        ),
        ("text", Arc::new(StringArray::from(vec![Some("nul\0 and ü"), None]))),
        ("word", Arc::new([Some("a"), None].into_iter().collect::<DictionaryArray<Int32Type>>())),
        ("bytes", Arc::new(BinaryArray::from(vec![Some(&b"\x00\xff"[..]), None]))),
        ("day", Arc::new(Date32Array::from(vec![Some(19_000), None]))),
        ("time", Arc::new(Time64MicrosecondArray::from(vec![Some(3_600_000_001), None]))),
        ("local", Arc::new(TimestampMicrosecondArray::from(vec![Some(1_700_000_000_000_000), None]))),
        (
            "zoned",
            Arc::new(TimestampMillisecondArray::from(vec![Some(1_700_000_000_123), None]).with_timezone("+02:00")),
        ),
        ("list", Arc::new(list)),
    ];
    let batch =
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)));
    let batch = batch.expect("a batch");
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("x.db");
    let sink = sink(&path, json!({"table": "t"}));
    sink.check(batch.schema()).await.expect("all types are known");
    load(&sink, &[batch]).await.expect("it loads");
    let row = query(&path, "SELECT * FROM t WHERE truth");
    let expected = [
        "Integer(1) Integer(-7) Integer(9223372036854775807) Real(0.5) Real(inf) Real(12.5)",
        "Text(\"170141183460469231731687303715884105.72\") Text(\"nul\\0 and ü\") Text(\"a\") Blob([0, 255])",
        "Text(\"2022-01-08\") Text(\"01:00:00.000001\") Text(\"2023-11-14 22:13:20.000000\")",
        "Text(\"2023-11-14 22:13:20.123\") Text(\"[1,null]\")",
    ];
    assert_eq!(row, [expected.join(" ")]);
    let types = query(&path, "SELECT group_concat(type, ' ') FROM pragma_table_info('t')");
    assert_eq!(
        types,
        ["Text(\"BOOLEAN INTEGER INTEGER REAL REAL NUMERIC TEXT TEXT TEXT BLOB TEXT TEXT TEXT TEXT TEXT\")"]
    );
    assert_eq!(query(&path, "SELECT count(*) FROM t WHERE coalesce(truth, small, text, list) IS NULL"), ["Integer(1)"]);
    assert_eq!(query(&path, "SELECT date(zoned) = '2023-11-14', short > 9 FROM t LIMIT 1"), ["Integer(1) Integer(1)"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_sqlite_would_change_are_refused() {
    let folder = TempDir::new().expect("a folder");
    let sink = sink(&folder.path().join("x.db"), json!({"table": "t"}));
    let large: ArrayRef = Arc::new(UInt64Array::from(vec![1, u64::MAX]));
    let error =
        load(&sink, &[RecordBatch::try_from_iter([("n", large)]).expect("a batch")]).await.expect_err("too large");
    assert_eq!(
        error.cause_text(),
        Some("18446744073709551615 is larger than SQLite's largest integer, 9223372036854775807")
    );
    assert_eq!((error.kind(), error.location().column.as_deref()), (ErrorKind::Data, Some("n")));
    let nan: ArrayRef = Arc::new(Float64Array::from(vec![1.0, f64::NAN]));
    let error = load(&sink, &[RecordBatch::try_from_iter([("x", nan)]).expect("a batch")]).await.expect_err("NaN");
    assert_eq!(error.cause_text(), Some("SQLite has no NaN and would store NULL"));
    assert_eq!(listing(folder.path()).len(), 0, "the database that was made is gone again");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_does_not_fit_the_table_is_reported_at_once() {
    let (_folder, path) = database(
        "CREATE TABLE t (nmae TEXT, must TEXT NOT NULL, may TEXT NOT NULL DEFAULT '', n INTEGER PRIMARY KEY,
                         id INT AS (n + 1) STORED);
         CREATE VIEW v AS SELECT 1 AS id, 2 AS name",
    );
    let place = format!("table t of {}", path.display());
    let batch = people(&[(Some(1), "a")]);
    let merge = sink(&path, json!({"table": "t", "mode": "merge", "key": ["id"]}));
    let errors = checked(&merge, &batch).await;
    assert_eq!(
        whats(&errors),
        [
            format!("the column `id` of {place} is computed by SQLite"),
            format!("{place} has no column `name`"),
            format!("{place} needs a value in the column `must`, and none is loaded"),
            format!("{place} has no unique key of exactly the columns id"),
        ]
    );
    let known = "did you mean `nmae`? its columns: nmae, must, may, n, id; or add it with `schema: evolve`";
    assert_eq!(errors[1].hint_text(), Some(known));
    assert_eq!(errors[3].hint_text(), Some("CREATE UNIQUE INDEX \"t_key\" ON \"t\" (\"id\")"));
    for mode in ["append", "replace", "truncate"] {
        let view = sink(&path, json!({"table": "v", "mode": mode}));
        assert_eq!(whats(&checked(&view, &batch).await), [format!("v of {} is a view, not a table", path.display())]);
        assert!(load(&view, std::slice::from_ref(&batch)).await.is_err(), "also without the check");
    }
    let replace = sink(&path, json!({"table": "t", "mode": "replace"}));
    replace.check(batch.schema()).await.expect("it will be made anew");

    let key = sink(&path, json!({"table": "new", "key": ["ident"]}));
    assert_eq!(
        whats(&checked(&key, &batch).await),
        ["the key column `ident` is not among the columns that are loaded"]
    );
    let fields = ["a", "A"].map(|name| Field::new(name, arrow::datatypes::DataType::Int64, true));
    let twice = RecordBatch::new_empty(Arc::new(Schema::new(fields.to_vec())));
    let new = sink(&path, json!({"table": "new"}));
    assert_eq!(whats(&checked(&new, &twice).await), ["SQLite cannot tell the columns `a` and `A` apart"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn indexes_can_wait_for_the_rows() {
    let declared = "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, code INTEGER UNIQUE);
                    CREATE INDEX \"by \"\"name\" ON t (lower(name)) WHERE id > 3; create index plain on T(name); \
                    CREATE UNIQUE INDEX other ON t (name, id); INSERT INTO t VALUES (-1, 'there', 7)";
    for mode in [json!({}), json!({"mode": "truncate"}), json!({"mode": "merge", "key": ["id"]})] {
        let (_folder, path) = database(declared);
        let all = "SELECT name, sql FROM sqlite_schema WHERE type = 'index' ORDER BY name";
        let before = query(&path, all);
        assert_eq!(before.len(), 4, "{before:?}");
        let mut settings = json!({"table": "t", "defer_indexes": true});
        settings.as_object_mut().expect("an object").extend(mode.as_object().expect("an object").clone());
        let sink = sink(&path, settings);
        load(&sink, &[people(&[(Some(1), "a"), (Some(2), "b")])]).await.expect("it loads");
        assert_eq!(query(&path, all), before, "{mode}");
        load(&sink, &[people(&[(Some(3), "a"), (None, "b")])]).await.ok();
        assert_eq!(query(&path, all), before, "{mode}");
        assert_eq!(query(&path, "PRAGMA integrity_check"), ["Text(\"ok\")"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_row_is_shown_and_nothing_stays() {
    let rows: Vec<(Option<i64>, &str)> = (0..300).map(|id| (Some(id), "x")).chain([(Some(123), "twice")]).collect();
    // The second of two rows with one key, inside a statement of many rows and at the end.
    for tail in [0, 100] {
        let mut rows = rows.clone();
        rows.extend((1000..1000 + tail).map(|id| (Some(id), "y")));
        let (_folder, path) = database("CREATE TABLE t (id INTEGER PRIMARY KEY ON CONFLICT IGNORE, name TEXT)");
        let sink = sink(&path, json!({"table": "t"}));
        let error = load(&sink, &[people(&rows)]).await.expect_err("123 is there twice");
        assert_eq!(error.what(), format!("table t of {} refuses a row", path.display()));
        assert_eq!(error.offending_text(), Some("id=123, name='twice'"));
        assert_eq!(error.cause_text(), Some("UNIQUE constraint failed: t.id"));
        assert!(error.hint_text().is_some_and(|hint| hint.contains("mode: merge")), "{error:?}");
        assert_eq!((error.kind(), count(&path)), (ErrorKind::Data, vec!["Integer(0)".to_owned()]));
    }
    let (_folder, path) = database("CREATE TABLE t (id INT, name BLOB CHECK (name <> 'x')) STRICT");
    let sink = sink(&path, json!({"table": "t"}));
    let error = load(&sink, &[people(&[(Some(1), "abc")])]).await.expect_err("no integer");
    assert_eq!(error.hint_text(), Some("the table is STRICT: CAST the value to its type"));
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_a_trigger_drops_are_missed() {
    let (_folder, path) = database(
        "CREATE TABLE t (id INT, name TEXT);
         CREATE TRIGGER r BEFORE INSERT ON t WHEN new.id = 2 BEGIN SELECT RAISE(IGNORE); END",
    );
    let sink = sink(&path, json!({"table": "t"}));
    let error = load(&sink, &[people(&[(Some(1), "a"), (Some(2), "b")])]).await.expect_err("a row is gone");
    assert!(error.cause_text().is_some_and(|cause| cause.ends_with("dropped 1 of 1 rows")), "{error}");

    let (_folder, path) = database(
        "CREATE TABLE t (id INT PRIMARY KEY, name TEXT); INSERT INTO t VALUES (1, 'x'), (2, 'y');
         CREATE TRIGGER r BEFORE UPDATE ON t WHEN new.id = 2 BEGIN SELECT RAISE(IGNORE); END",
    );
    let sink = self::sink(&path, json!({"table": "t", "mode": "merge", "key": ["id"]}));
    let error = load(&sink, &[people(&[(Some(1), "a"), (Some(2), "b")])]).await.expect_err("a change is gone");
    assert!(error.cause_text().is_some_and(|cause| cause.ends_with("dropped 1 of 1 rows")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_keys_hold_and_nothing_cascades() {
    let (_folder, path) = database(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT);
         CREATE TABLE child (t INT REFERENCES t (id) ON DELETE CASCADE);
         INSERT INTO t VALUES (1, 'a'), (2, 'b'); INSERT INTO child VALUES (1), (2)",
    );
    for mode in ["truncate", "replace"] {
        let sink = sink(&path, json!({"table": "t", "mode": mode, "key": ["id"]}));
        let error = load(&sink, &[people(&[(Some(1), "A")])]).await.expect_err("2 is still referred to");
        let what = format!("1 row of table child of {} would refer to rows that do not exist", path.display());
        assert_eq!(error.what(), what);
        load(&sink, &[people(&[(Some(1), "A"), (Some(2), "B")])]).await.expect("both are there again");
        assert_eq!(query(&path, "SELECT count(*) FROM child"), ["Integer(2)"]);
    }
    let child = sink(&path, json!({"table": "child"}));
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![9]));
    let error = load(&child, &[RecordBatch::try_from_iter([("t", ids)]).expect("a batch")]).await.expect_err("no 9");
    assert_eq!(error.cause_text(), Some("FOREIGN KEY constraint failed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sinks_of_a_run_share_a_database() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("x.db");
    let first = sink(&path, json!({"table": "t", "mode": "replace", "busy_timeout": "1s"}));
    // The same file by another path.
    let other = folder.path().join("../").join(folder.path().file_name().expect("a name")).join("x.db");
    let second = sink(&other, json!({"table": "u", "mode": "replace", "busy_timeout": "1s"}));
    for committed in [false, true] {
        let context = context(2);
        let (a, b) = (
            first.begin(context.clone()).await.expect("the first begins"),
            second.begin(context).await.expect("the second does not wait for the first"),
        );
        write(&first, &a, 2, 1000, 100).await.expect("it writes");
        write(&second, &b, 2, 500, 100).await.expect("it writes");
        a.prepare().await.expect("it prepares");
        b.prepare().await.expect("it prepares");
        if committed {
            assert!(a.commit().await.expect("both are in").starts_with("1000 rows"));
            assert!(b.commit().await.expect("both are in").starts_with("500 rows"));
            b.abort().await;
        } else {
            b.abort().await;
            assert!(a.commit().await.is_err(), "one ends the other");
            assert_eq!(listing(folder.path()).len(), 0);
        }
    }
    assert_eq!(query(&path, "SELECT (SELECT count(*) FROM t) + (SELECT count(*) FROM u)"), ["Integer(1500)"]);
}

/// One process may run several jobs at once.
#[tokio::test(flavor = "multi_thread")]
async fn two_runs_of_one_process_share_no_transaction() {
    let (_folder, path) = database("CREATE TABLE t (id INT, name TEXT); CREATE TABLE u (id INT, name TEXT)");
    let (t, u) = (
        sink(&path, json!({"table": "t", "busy_timeout": "200ms"})),
        sink(&path, json!({"table": "u", "busy_timeout": "200ms"})),
    );
    let of_run = |run: &str| LoadContext { run: run.to_owned(), schema: people(&[]).schema(), ..context(1) };
    let first = t.begin(of_run("one")).await.expect("it begins");
    let mut writer = first.writer(0).await.expect("a writer");
    writer.write(people(&[(Some(1), "a")])).await.expect("it writes");
    let locked = u.begin(of_run("another")).await.err().expect("the other run has a transaction of its own");
    assert_eq!(locked.what(), format!("{} is locked by another process", path.display()));
    writer.close().await.expect("the end of the other run is not its own");
    first.prepare().await.expect("it prepares");
    first.commit().await.expect("it commits");
    let second = u.begin(of_run("another")).await.expect("nobody holds the lock any more");
    second.writer(0).await.expect("a writer").write(people(&[(Some(2), "b")])).await.expect("it writes");
    second.abort().await;
    assert_eq!((count(&path), query(&path, "SELECT id FROM u")), (vec!["Integer(1)".to_owned()], vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_needs_every_load_prepared() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("x.db");
    let (t, u) = (sink(&path, json!({"table": "t"})), sink(&path, json!({"table": "u"})));
    let context = context(1);
    let a = t.begin(context.clone()).await.expect("it begins");
    let b = u.begin(context).await.expect("it begins");
    a.prepare().await.expect("it prepares");
    assert_eq!(a.commit().await.expect_err("the other is not ready").kind(), ErrorKind::Internal);
    b.abort().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_database_is_waited_for_and_then_reported() {
    let (_folder, path) = database("CREATE TABLE t (id INT, name TEXT)");
    let sink = sink(&path, json!({"table": "t", "busy_timeout": "300ms"}));
    let other = Connection::open(&path).expect("a database");
    other.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    let start = Instant::now();
    let error = load(&sink, &[people(&[(Some(1), "a")])]).await.expect_err("locked");
    assert!(start.elapsed() >= Duration::from_millis(290), "it waits");
    assert_eq!(error.what(), format!("{} is locked by another process", path.display()));
    assert_eq!((error.kind(), error.cause_text()), (ErrorKind::Transient, Some("database is locked (waited 300ms)")));
    assert_eq!(error.hint_text(), Some("wait until the other process is done with it, or raise `busy_timeout`"));

    let patient = sink_with_timeout(&path, "20s");
    let waiting = tokio::spawn(async move { load(&patient, &[people(&[(Some(1), "a")])]).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    other.execute_batch("COMMIT").expect("the lock is given back");
    waiting.await.expect("no panic").expect("it went on");
    assert_eq!(count(&path), ["Integer(1)"]);
}

/// Waiting for a locked database stops when the user ends the run.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_has_to_wait_for_a_lock_to_the_end() {
    let soon = Duration::from_millis(100);
    let start = Instant::now();
    let (_folder, path) = database("CREATE TABLE t (id INT, name TEXT)");
    let sink = sink_with_timeout(&path, "1h");
    let schema = people(&[]).schema();
    let other = Connection::open(&path).expect("a database");

    other.execute_batch("BEGIN EXCLUSIVE").expect("the lock");
    tokio::time::timeout(soon, sink.check(schema.clone())).await.expect_err("it waits");
    let begun = sink.begin(LoadContext { schema: schema.clone(), ..context(1) });
    assert!(tokio::time::timeout(soon, begun).await.is_err(), "it waits");
    other.execute_batch("ROLLBACK").expect("the lock is given back");

    let load = sink.begin(LoadContext { schema, ..context(1) }).await.expect("nobody holds the lock any more");
    load.writer(0).await.expect("a writer").write(people(&[(Some(1), "a")])).await.expect("it writes");
    other.execute_batch("BEGIN; SELECT * FROM t").expect("a reader");
    let preparing = Arc::clone(&load);
    let preparing = tokio::spawn(async move { preparing.prepare().await });
    tokio::time::sleep(soon).await;
    assert!(!preparing.is_finished(), "it waits for the reader");
    load.abort().await;
    let error = preparing.await.expect("no panic").expect_err("it was given up");
    assert_eq!(error.what(), "the load was aborted");
    assert!(start.elapsed() < Duration::from_secs(60), "an hour was never waited for");
    drop(other);
    assert_eq!(count(&path), ["Integer(0)"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_loads_of_a_run_cannot_share_a_table() {
    let (_folder, path) = database("CREATE TABLE t (id INT, name TEXT)");
    let context = LoadContext { schema: people(&[]).schema(), ..context(1) };
    let first = sink(&path, json!({"table": "t"})).begin(context.clone()).await.expect("it begins");
    let second = sink(&path.with_file_name("./x.db"), json!({"table": "T", "mode": "replace"}));
    let error = second.begin(context).await.err().expect("the same table");
    assert!(error.what().starts_with("two sinks write to table T of "), "{error}");
    first.abort().await;
}

fn sink_with_timeout(path: &Path, timeout: &str) -> Arc<dyn Sink> {
    sink(path, json!({"table": "t", "busy_timeout": timeout}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_cannot_make_the_commit_fail() {
    let (_folder, path) = database("CREATE TABLE t (id INT, name TEXT); INSERT INTO t VALUES (1, 'a')");
    let reader = Connection::open(&path).expect("a database");
    reader.execute_batch("BEGIN; SELECT * FROM t").expect("a reader");
    let sink = sink_with_timeout(&path, "200ms");
    let load = sink.begin(LoadContext { schema: people(&[]).schema(), ..context(1) }).await.expect("it begins");
    let mut writer = load.writer(0).await.expect("a writer");
    writer.write(people(&[(Some(2), "b")])).await.expect("it writes");
    let error = load.prepare().await.expect_err("prepare takes the lock that the commit needs");
    assert_eq!(error.what(), format!("{} is locked by another process", path.display()));
    load.abort().await;
    drop(reader);
    assert_eq!(count(&path), ["Integer(1)"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_journal_mode_stays() {
    let (_folder, path) = database("PRAGMA journal_mode = WAL; CREATE TABLE t (id INT, name TEXT)");
    let reader = Connection::open(&path).expect("a database");
    reader.execute_batch("BEGIN; SELECT * FROM t").expect("a reader does not disturb");
    load(&sink_with_timeout(&path, "1s"), &[people(&[(Some(2), "b")])]).await.expect("it loads");
    assert_eq!(query(&path, "PRAGMA journal_mode"), ["Text(\"wal\")"]);
    assert_eq!(count(&path), ["Integer(1)"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_database_is_reported_and_stays() {
    let folder = TempDir::new().expect("a folder");
    let batch = people(&[(Some(1), "a")]);
    let text = folder.path().join("text.db");
    fs_err::write(&text, "this is no database, but it is long enough to be looked at by SQLite\n".repeat(99))
        .expect("a file");
    fs_err::create_dir(folder.path().join("folder.db")).expect("a folder");
    let cases = [
        ("text.db", "is not a SQLite database"),
        ("folder.db", "is a folder, not a database"),
        ("text.db/x.db", "is a file, but a folder is needed"),
    ];
    let before = listing(folder.path());
    for (name, what) in cases {
        let sink = sink(&folder.path().join(name), json!({"table": "t"}));
        let errors = checked(&sink, &batch).await;
        assert!(errors.len() == 1 && errors[0].what().ends_with(what), "{errors:?}");
        assert!(load(&sink, std::slice::from_ref(&batch)).await.is_err(), "{name}: also without the check");
        assert_eq!(listing(folder.path()), before, "{name}");
    }
    let empty = folder.path().join("empty.db");
    fs_err::write(&empty, "").expect("a file");
    load(&sink(&empty, json!({"table": "t"})), &[batch]).await.expect("an empty file is an empty database");
    assert_eq!(count(&empty), ["Integer(1)"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_and_a_read_only_disk_are_reported() {
    let mount = |options: &str, path: &Path| {
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(path).status();
        status.is_ok_and(|status| status.success())
    };
    let disk = TempDir::new().expect("a folder");
    if !mount("size=300k", disk.path()) {
        eprintln!("skipped: mounting is not allowed here");
        return;
    }
    let path = disk.path().join("x.db");
    let sink = sink(&path, json!({"table": "t", "mode": "replace"}));
    run(&sink, 1, 500, 100).await.expect("500 rows fit");
    let load = sink.begin(context(1)).await.expect("it begins");
    let error = match write(&sink, &load, 1, 100_000, 1000).await {
        Ok(()) => load.prepare().await.expect_err("5 MB do not fit"),
        Err(error) => error,
    };
    load.abort().await;
    assert_eq!(error.what(), format!("cannot write to {}", path.display()));
    assert_eq!(error.hint_text(), Some("free some space, or write to another disk"));
    assert_eq!(count(&path), ["Integer(500)"], "the earlier table stays");

    assert!(mount("remount,ro,size=300k", disk.path()), "remounted");
    let errors = sink.check(schema()).await.expect_err("read-only");
    assert!(errors[0].what().starts_with("cannot write to the folder "), "{errors:?}");
    let error = run(&sink, 1, 10, 10).await.expect_err("read-only");
    assert!(error.what().contains("x.db"), "{error}");
    let _ = Command::new("umount").arg("-l").arg(disk.path()).status();
}

#[test]
fn targets_and_settings_are_checked_at_once() {
    assert_eq!(database_path("sqlite:out/x.db").expect("relative"), Path::new("out/x.db"));
    assert_eq!(database_path("sqlite:///tmp/x.db").expect("absolute"), Path::new("/tmp/x.db"));
    let faults = |target: &str, settings: Value| -> Vec<String> {
        let parts = SinkParts { target: target.to_owned(), format: None, codec: None, store: None };
        let faults = build(&settings, parts).expect_err("wrong settings");
        faults.iter().map(|fault| format!("{}: {}", fault.path.join("."), fault.what)).collect()
    };
    assert_eq!(
        faults("sqlite::memory:", json!({"table": "sqlite_x", "mode": "merge"})),
        [
            "table: `sqlite_x` is a name that SQLite keeps for itself",
            "key: `mode: merge` without a key",
            "write: a database in memory would be lost at the end of the run",
        ]
    );
    assert_eq!(
        faults("sqlite:", json!({"table": " "})),
        ["table: the table has no name", "write: the target names no database"]
    );
    assert_eq!(faults("sqlite:x", json!({"table": "t", "key": ["a", "A"]})), ["key.1: `A` is in the key twice"]);
    assert!(faults("sqlite:x", json!({}))[0].contains("missing field `table`"));
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_only_names() {
    let (folder, path) = database("CREATE TABLE other (a)");
    let table = "t\"; DROP TABLE other; --";
    let values: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let batch = RecordBatch::try_from_iter([("a\"b) SELECT", values)]).expect("a batch");
    let sink = sink(&path, json!({"table": table, "mode": "replace"}));
    sink.check(batch.schema()).await.expect("odd, but fine");
    load(&sink, std::slice::from_ref(&batch)).await.expect("it loads");
    load(&sink, std::slice::from_ref(&batch)).await.expect("and again");
    assert_eq!(query(&path, "SELECT count(*) FROM sqlite_schema"), ["Integer(2)"]);
    // A path that looks like SQLite's URIs is a path all the same.
    drop(folder);
}

#[test]
fn explain_shows_the_statements() {
    let describe = |settings: Value| sink(Path::new("x.db"), settings).describe(people(&[]).schema());
    assert_eq!(
        describe(json!({"table": "t", "mode": "replace", "key": ["id"]})),
        "CREATE TABLE \"t\" (\n  \"id\" INTEGER NOT NULL,\n  \"name\" TEXT,\n  PRIMARY KEY (\"id\")\n)"
    );
    assert_eq!(
        describe(json!({"table": "t", "mode": "ignore", "key": ["id"], "order_by": ["name desc"]})),
        "INSERT OR ABORT INTO \"t\" (\"id\", \"name\") SELECT \"id\", \"name\" FROM \"_millstream_rows_t\" WHERE true \
         ORDER BY \"name\" IS NULL, \"name\" DESC, rowid ON CONFLICT (\"id\") DO NOTHING"
    );
    assert_eq!(
        describe(json!({"table": "t", "mode": "merge", "key": ["id"]})),
        "INSERT OR ABORT INTO \"t\" (\"id\", \"name\") VALUES (?, ?) ON CONFLICT (\"id\") DO UPDATE SET \"name\" = \
         excluded.\"name\" WHERE \"t\".\"name\" IS NOT +excluded.\"name\" COLLATE BINARY"
    );
    assert_eq!(
        describe(json!({"table": "t", "mode": "merge", "key": ["id"], "order_by": ["name desc"]})),
        "INSERT OR ABORT INTO \"t\" (\"id\", \"name\") SELECT \"id\", \"name\" FROM (SELECT \"id\", \"name\", \
         row_number() OVER (PARTITION BY \"id\" ORDER BY \"name\" IS NULL, \"name\" DESC, rowid DESC) AS _millstream_n \
         FROM \"_millstream_rows_t\") WHERE _millstream_n = 1 ON CONFLICT (\"id\") DO UPDATE SET \"name\" = \
         excluded.\"name\" WHERE \"t\".\"name\" IS NOT +excluded.\"name\" COLLATE BINARY"
    );
}
