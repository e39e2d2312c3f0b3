//! Tests of loads into real servers of both kinds: the conformance suite, modes, comparison of tables, bad rows, faults
//! of connections and servers. Peculiarities of one kind are tested beside it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use millstream_core::sink::{Load, LoadContext, Sink, SinkParts};
use millstream_core::{Error, ErrorKind, Result};
use millstream_testkit::{Break, MariaDb, PASSWORD, Postgres, Proxy};
use serde_json::{Value, json};

use super::server::Connection;
use super::spec::DatabaseSpec;
use crate::conformance::{Subject, context, schema, shown, suite};

/// A kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Mariadb,
    Postgres,
}

/// A database of a shared server, or of any other.
#[derive(Debug, Clone)]
pub(crate) struct Database {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) url: String,
}

impl Database {
    /// A new database in which `statements` were run.
    pub(crate) fn new(kind: Kind, statements: &str) -> Self {
        let (name, url) = match kind {
            Kind::Mariadb => {
                let name = MariaDb::shared().database();
                let url = MariaDb::shared().url(&name);
                (name, url)
            }
            Kind::Postgres => {
                let name = Postgres::shared().database();
                let url = Postgres::shared().url(&name);
                (name, url)
            }
        };
        let database = Database { kind, name, url };
        if !statements.is_empty() {
            database.query(statements);
        }
        database
    }

    pub(crate) fn query(&self, sql: &str) -> Vec<String> {
        self.try_query(sql).unwrap_or_else(|problem| panic!("{sql}: {problem}"))
    }

    fn try_query(&self, sql: &str) -> Result<Vec<String>, String> {
        match self.kind {
            Kind::Mariadb => MariaDb::shared().try_query(&self.name, sql),
            Kind::Postgres => Postgres::shared().try_query(&self.name, sql),
        }
    }

    /// The names of all tables.
    pub(crate) fn tables(&self) -> Vec<String> {
        self.query(match self.kind {
            Kind::Mariadb => "SHOW TABLES",
            Kind::Postgres => "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1",
        })
    }

    /// A sink for table `t` with more settings.
    pub(crate) fn sink(&self, settings: Value) -> Arc<dyn Sink> {
        sink(&self.url, settings)
    }

    /// The URL of the same database through another port.
    pub(crate) fn behind(&self, port: u16) -> String {
        let (start, rest) = self.url.split_once("127.0.0.1:").expect("a port");
        let (_, name) = rest.split_once('/').expect("a database");
        format!("{start}127.0.0.1:{port}/{name}")
    }

    pub(crate) fn port(&self) -> u16 {
        match self.kind {
            Kind::Mariadb => MariaDb::shared().port(),
            Kind::Postgres => Postgres::shared().port(),
        }
    }

    /// A connection with a transaction open in which `statement` was run.
    pub(crate) async fn transaction(&self, statement: &str) -> Box<dyn Connection> {
        let spec: DatabaseSpec = serde_json::from_value(json!({"table": "t"})).expect("settings");
        let mut connection = match self.kind {
            Kind::Mariadb => crate::mysql::tests::connect(&self.url, &spec).await,
            Kind::Postgres => crate::postgres::tests::connect(&self.url, &spec).await,
        };
        connection.execute("BEGIN").await.expect("it begins");
        connection.query(statement).await.expect("it answers");
        connection
    }

    /// All rows of table `t` as text, in the order of `id`.
    pub(crate) fn rows(&self) -> Vec<String> {
        self.query("SELECT * FROM t ORDER BY id")
    }

    pub(crate) fn count(&self) -> u64 {
        self.query("SELECT count(*) FROM t")[0].parse().expect("a number")
    }
}

pub(crate) fn sink(url: &str, settings: Value) -> Arc<dyn Sink> {
    try_sink(url, settings).expect("valid settings")
}

fn try_sink(url: &str, settings: Value) -> millstream_core::registry::Built<dyn Sink> {
    let mut all = json!({"table": "t"});
    all.as_object_mut().expect("an object").extend(settings.as_object().expect("an object").clone());
    let entry = if url.starts_with("mysql") { crate::mysql::ENTRY } else { crate::postgres::ENTRY };
    (entry.build)(&all, SinkParts { target: url.to_owned(), format: None, codec: None, store: None })
}

/// Loads batches, one after the other, by one writer.
pub(crate) async fn load(sink: &Arc<dyn Sink>, batches: &[RecordBatch]) -> Result<String> {
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
pub(crate) fn people(rows: &[(Option<i64>, &str)]) -> RecordBatch {
    let ids: ArrayRef = Arc::new(rows.iter().map(|row| row.0).collect::<Int64Array>());
    let names: ArrayRef = Arc::new(rows.iter().map(|row| Some(row.1)).collect::<StringArray>());
    RecordBatch::try_from_iter_with_nullable([("id", ids, true), ("name", names, true)]).expect("a batch")
}

/// Rows with the numbers of a range.
pub(crate) fn many(ids: std::ops::Range<i64>) -> RecordBatch {
    let names: Vec<String> = ids.clone().map(|id| format!("name {id}")).collect();
    people(&ids.zip(&names).map(|(id, name)| (Some(id), name.as_str())).collect::<Vec<_>>())
}

pub(crate) async fn checked(sink: &Arc<dyn Sink>, batch: &RecordBatch) -> Vec<Error> {
    sink.check(batch.schema()).await.expect_err("something is wrong")
}

pub(crate) fn whats(errors: &[Error]) -> Vec<&str> {
    errors.iter().map(Error::what).collect()
}

/// A sink of the conformance suite, with a database for each folder.
struct Table(Kind, Value);

impl Table {
    fn database(&self, folder: &Path) -> Database {
        let note = folder.join("database");
        if !note.exists() {
            let database = Database::new(self.0, "");
            fs_err::write(&note, format!("{}\n{}", database.name, database.url)).expect("a note");
        }
        let text = fs_err::read_to_string(&note).expect("a note");
        let (name, url) = text.split_once('\n').expect("two lines");
        Database { kind: self.0, name: name.to_owned(), url: url.to_owned() }
    }
}

impl Subject for Table {
    fn sink(&self, folder: &Path) -> Arc<dyn Sink> {
        self.database(folder).sink(self.1.clone())
    }

    fn read(&self, folder: &Path) -> Vec<String> {
        let database = self.database(folder);
        if !database.tables().contains(&"t".to_owned()) {
            return Vec::new();
        }
        let query = match self.0 {
            Kind::Mariadb => "SELECT id, COALESCE(HEX(name), 'NULL'), amount, day FROM t",
            Kind::Postgres => {
                "SET lock_timeout = '300ms'; SELECT id, coalesce(encode(convert_to(name, 'UTF8'), 'hex'), 'NULL'), \
                 amount, day FROM t"
            }
        };
        // Between prepare and commit readers may have to wait, and so see nothing either.
        let Ok(rows) = database.try_query(query) else { return Vec::new() };
        rows.iter().map(|row| shown_row(row)).collect()
    }

    fn listing(&self, folder: &Path) -> BTreeSet<PathBuf> {
        let tables = self.database(folder).tables().into_iter();
        let file = |name: String| if name.starts_with(super::load::PREFIX) { format!("{name}.tmp") } else { name };
        tables.map(|name| folder.join(file(name))).collect()
    }

    fn adds(&self) -> bool {
        self.1.get("mode").is_none()
    }
}

/// A row of the client's output in the form of the suite.
fn shown_row(row: &str) -> String {
    let cells: Vec<&str> = row.split('\t').collect();
    let some = |index: usize| Some(cells[index]).filter(|cell| *cell != "NULL");
    let name = some(1).map(|digits| {
        let bytes = (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits"));
        String::from_utf8(bytes.collect()).expect("text")
    });
    let amount = some(2).map(|text| text.parse().expect("a number"));
    shown(cells[0].parse().expect("a number"), name.as_deref(), amount, some(3))
}

/// The subjects of the suite by name.
pub(crate) fn subject(name: &str) -> Option<Box<dyn Subject>> {
    let (kind, rest) = name.split_once('-')?;
    let kind = match kind {
        "mysql" => Kind::Mariadb,
        "postgres" => Kind::Postgres,
        _ => return None,
    };
    let settings = match rest {
        "append" => json!({"batch_rows": 700}),
        "several" => json!({"connections": 3, "batch_rows": 700}),
        "replace" => json!({"mode": "replace", "batch_bytes": 10_000}),
        "truncate" => json!({"mode": "truncate", "key": ["ID"]}),
        "merge" => json!({"mode": "merge", "key": ["id"]}),
        _ => return None,
    };
    Some(Box::new(Table(kind, settings)))
}

/// Runs the suite for one route.
pub(crate) async fn conforms(kind: Kind, way: &str) {
    let name = format!("{}-{way}", if kind == Kind::Mariadb { "mysql" } else { "postgres" });
    suite(&name, subject(&name).expect("known").as_ref()).await;
}

/// Makes a test of each function for both kinds of servers.
macro_rules! for_both {
    ($($name:ident),+ $(,)?) => {
        mod mysql {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(super::Kind::Mariadb).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(super::Kind::Postgres).await;
            })+
        }
    };
}

pub(crate) use for_both;

for_both!(
    append_conforms,
    several_connections_conform,
    replace_conforms,
    truncate_conforms,
    merge_changes_what_is_there,
    ignore_leaves_out_what_is_there,
    a_declared_order_says_which_row_stays,
    a_new_table_is_made_like_the_rows,
    a_key_can_wait_for_the_rows,
    indexes_can_wait_for_the_rows,
    all_faults_of_a_table_are_reported_at_once,
    a_table_evolves_if_it_may,
    bad_rows_are_found_among_many,
    many_bad_rows_are_reported_in_part,
    a_row_without_a_key_is_refused,
    logins_are_refused_with_a_reason,
    statements_run_before_and_after,
    a_lock_is_waited_for_and_then_reported,
    a_lost_connection_leaves_nothing,
    a_commit_without_an_answer_is_found_out,
    a_commit_of_deletes_alone_without_an_answer_is_unknown_or_found_out,
    a_statement_that_breaks_off_in_its_middle_is_no_load,
    tables_of_the_dead_are_dropped_and_of_the_living_are_not,
);

async fn append_conforms(kind: Kind) {
    conforms(kind, "append").await;
}

async fn several_connections_conform(kind: Kind) {
    conforms(kind, "several").await;
}

async fn replace_conforms(kind: Kind) {
    conforms(kind, "replace").await;
}

async fn truncate_conforms(kind: Kind) {
    conforms(kind, "truncate").await;
}

async fn merge_changes_what_is_there(kind: Kind) {
    let database = Database::new(kind, "CREATE TABLE t (name VARCHAR(50), note VARCHAR(50), id BIGINT PRIMARY KEY)");
    database.query("INSERT INTO t VALUES ('a', 'kept', 1), ('b', 'kept', 2)");
    let sink = database.sink(json!({"mode": "merge", "key": ["ID"], "connections": 3, "batch_rows": 2}));
    let batch = people(&[(Some(1), "A"), (Some(3), "c"), (Some(3), "last"), (Some(1), "AA"), (Some(4), "d")]);
    let line = load(&sink, std::slice::from_ref(&batch)).await.expect("it merges");
    assert!(line.starts_with("5 rows merged into table t of "), "{line}");
    assert!(!line.contains(PASSWORD), "{line}");
    assert_eq!(database.rows(), ["AA\tkept\t1", "b\tkept\t2", "last\tNULL\t3", "d\tNULL\t4"]);
    assert_eq!(database.tables(), ["t"]);
    // Another unique key must not select the row to change.
    database.query("CREATE UNIQUE INDEX other ON t (name)");
    let error = load(&sink, &[people(&[(Some(9), "b")])]).await.expect_err("b is another's name");
    assert_eq!(error.kind(), ErrorKind::Data, "{error}");
    load(&sink, &[people(&[(Some(2), "new"), (Some(5), "e")])]).await.expect("it merges");
    assert_eq!(database.rows()[1], "new\tkept\t2");
    assert_eq!((database.count(), database.tables()), (5, vec!["t".to_owned()]));
}

async fn ignore_leaves_out_what_is_there(kind: Kind) {
    let database = Database::new(kind, "");
    let sink = database.sink(json!({"mode": "ignore", "key": ["id"]}));
    load(&sink, &[people(&[(Some(1), "a"), (Some(2), "b"), (Some(1), "later")])]).await.expect("into a new table");
    let line = load(&sink, &[people(&[(Some(1), "x"), (Some(3), "c")])]).await.expect("into the table");
    assert!(line.ends_with(", 1 row left out as duplicates"), "{line}");
    assert_eq!(database.rows(), ["1\ta", "2\tb", "3\tc"]);
    assert_eq!(database.tables(), ["t"]);
}

async fn a_declared_order_says_which_row_stays(kind: Kind) {
    let database = Database::new(kind, "");
    let sink = database.sink(json!({"mode": "merge", "key": ["id"], "order_by": ["name desc"]}));
    let null: ArrayRef = Arc::new(StringArray::from(vec![None, Some("b"), Some("c"), Some("a")]));
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 1, 1, 1]));
    let batch = RecordBatch::try_from_iter_with_nullable([("id", ids, true), ("name", null, true)]).expect("a batch");
    load(&sink, &[batch]).await.expect("it merges");
    assert_eq!(database.rows(), ["1\tc"]);
}

async fn a_new_table_is_made_like_the_rows(kind: Kind) {
    let database = Database::new(kind, "");
    let sink = database.sink(json!({"key": ["id"]}));
    sink.check(schema()).await.expect("nothing is wrong");
    assert_eq!(database.tables(), [""; 0], "a check changes nothing");
    let statement = sink.describe(schema());
    assert!(statement.starts_with("CREATE TABLE "), "{statement}");
    load(&sink, &[many(0..10)]).await.expect("it loads");
    let error = load(&sink, &[many(9..11)]).await.expect_err("9 is there");
    assert!(error.hint_text().is_some_and(|hint| hint.contains("`mode: ignore`")), "{error:?}");
    assert_eq!(error.offending_text().map(|text| text.replace('\'', "")).as_deref(), Some("id=9, name=name 9"));
    assert_eq!(database.count(), 10);
}

async fn a_key_can_wait_for_the_rows(kind: Kind) {
    let database = Database::new(kind, "");
    let sink = database.sink(json!({"key": ["id"], "defer_key": true, "mode": "replace"}));
    assert!(!sink.describe(schema()).contains("PRIMARY KEY"), "{}", sink.describe(schema()));
    load(&sink, &[many(0..10), many(20..30)]).await.expect("it loads");
    let key = "SELECT column_name FROM information_schema.key_column_usage WHERE table_name = 't'";
    let has_key = || database.query(&format!("{key} AND table_schema IN ('public', '{}')", database.name));
    assert_eq!((database.count(), has_key()), (20, vec!["id".to_owned()]));
    let error = load(&sink, &[many(0..10), many(9..12)]).await.expect_err("9 is there twice");
    assert!(error.cause_text().is_some_and(|cause| cause.contains("9")), "{error:?}");
    assert_eq!((database.count(), database.tables()), (20, vec!["t".to_owned()]), "nothing has changed");
    // An existing table already has its key.
    let appending = database.sink(json!({"key": ["id"], "defer_key": true}));
    load(&appending, &[many(40..50)]).await.expect("it loads");
    assert_eq!((database.count(), has_key()), (30, vec!["id".to_owned()]));
    let emptying = database.sink(json!({"key": ["id"], "defer_key": true, "mode": "truncate"}));
    load(&emptying, &[many(0..10)]).await.expect("it loads");
    assert_eq!((database.count(), has_key()), (10, vec!["id".to_owned()]));
}

/// The declared indexes of table `t`.
fn indexes(database: &Database) -> Vec<String> {
    database.query(match database.kind {
        Kind::Mariadb => {
            "SELECT index_name, non_unique, column_name, sub_part FROM information_schema.statistics WHERE \
             table_schema = DATABASE() AND table_name = 't' ORDER BY index_name, seq_in_index"
        }
        Kind::Postgres => "SELECT indexdef FROM pg_indexes WHERE tablename = 't' ORDER BY 1",
    })
}

async fn indexes_can_wait_for_the_rows(kind: Kind) {
    for settings in [
        json!({}),
        json!({"connections": 2}),
        json!({"mode": "truncate"}),
        json!({"mode": "merge", "key": ["id"]}),
        json!({"mode": "ignore", "key": ["id"]}),
    ] {
        let database = Database::new(kind, "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20), code INT UNIQUE)");
        database.query("INSERT INTO t VALUES (-1, 'there', 7)");
        database.query(match kind {
            Kind::Mariadb => "CREATE INDEX `by ``name` ON t (name(5), id); CREATE INDEX plain ON t (name)",
            Kind::Postgres => {
                "CREATE INDEX \"by \"\"name\" ON t (lower(name)) WHERE id > 3; CREATE INDEX plain ON t (name DESC)"
            }
        });
        let before = indexes(&database);
        assert!(before.len() >= 4, "{before:?}");
        let mut all = settings.clone();
        all["defer_indexes"] = json!(true);
        let sink = database.sink(all);
        let line = load(&sink, &[many(0..500)]).await.unwrap_or_else(|error| panic!("{settings}: {error:?}"));
        assert!(line.starts_with("500 rows"), "{line}");
        assert_eq!(indexes(&database), before, "{settings}");
        assert_eq!(database.tables(), ["t"], "{settings}");
        assert_eq!(database.count(), if settings["mode"] == "truncate" { 500 } else { 501 });
        // They also stay after a failed load.
        load(&sink, &[people(&[(Some(9), "much longer than it may be")])]).await.expect_err("it is too long");
        assert_eq!(indexes(&database), before, "{settings}");
        assert_eq!(database.tables(), ["t"], "{settings}");
    }
    // While rows are loaded directly, the table only has its keys.
    if kind == Kind::Mariadb {
        let database =
            Database::new(kind, "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20), KEY plain (name))");
        let context = LoadContext { schema: people(&[]).schema(), ..context(1) };
        let load = database.sink(json!({"defer_indexes": true})).begin(context).await.expect("it begins");
        assert_eq!(indexes(&database).len(), 1);
        // It dies, and any other load builds the indexes it has left.
        drop(load);
        let replaced = database.sink(json!({"connections": 2}));
        self::load(&replaced, &[many(0..5)]).await.expect("the next load");
        assert_eq!(indexes(&database).len(), 2);
        assert_eq!(database.tables(), ["t"]);
    }
}

async fn all_faults_of_a_table_are_reported_at_once(kind: Kind) {
    let database = Database::new(kind, "CREATE TABLE t (nmae VARCHAR(9), id INT, needed INT NOT NULL)");
    let sink = database.sink(json!({"mode": "merge", "key": ["id"]}));
    let errors = checked(&sink, &people(&[])).await;
    let endpoint = format!("table t of {}", sink.target());
    let told = whats(&errors);
    assert_eq!(told.len(), 4, "{told:?}");
    assert!(told[0].starts_with(&format!("the column `id` of {endpoint} is int")), "{told:?}");
    assert!(told[0].ends_with("and the rows have int64: some values would not fit"), "{told:?}");
    assert_eq!(told[1], format!("{endpoint} has no column `name`"));
    assert_eq!(told[2], format!("{endpoint} needs a value in the column `needed`, and none is loaded"));
    assert_eq!(told[3], format!("{endpoint} has no unique key of exactly the columns id"));
    let error = load(&sink, &[people(&[])]).await.err();
    assert_eq!(error.expect("refused").what(), told[0]);
    database.query("CREATE VIEW v AS SELECT 1 AS id");
    let view = database.sink(json!({"table": "v"}));
    assert_eq!(
        whats(&checked(&view, &people(&[])).await),
        [format!("table v of {} is a view, not a table", view.target())]
    );
    let missing = database.sink(json!({"key": ["idd"]}));
    assert!(whats(&checked(&missing, &people(&[])).await)[0].starts_with("the key column `idd` is not among"));
}

async fn a_table_evolves_if_it_may(kind: Kind) {
    let database = Database::new(kind, "CREATE TABLE t (id INT NOT NULL, PRIMARY KEY (id)); INSERT INTO t VALUES (1)");
    let sink = database.sink(json!({"schema": "evolve"}));
    sink.check(people(&[]).schema()).await.expect("it may change");
    load(&sink, &[people(&[(Some(1 << 40), "far")])]).await.expect("it loads");
    assert_eq!(database.rows(), ["1\tNULL".to_owned(), format!("{}\tfar", 1_i64 << 40)]);
    load(&sink, &[people(&[(None, "none")])]).await.expect_err("the key is still NOT NULL");
}

async fn bad_rows_are_found_among_many(kind: Kind) {
    for connections in [1, 2] {
        let database = Database::new(kind, "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(12) NOT NULL)");
        database.query("INSERT INTO t VALUES (-1, 'there')");
        let sink = database.sink(json!({"connections": connections}));
        let mut rows: Vec<(Option<i64>, &str)> = (0..3000).map(|id| (Some(id), "fits")).collect();
        rows[1234].1 = "much longer than it may be";
        rows[2999].1 = "this one as well";
        let error = load(&sink, &[people(&rows)]).await.expect_err("two do not fit");
        assert_eq!(error.what(), format!("table t of {} refuses 2 rows", sink.target()));
        let text = error.offending_text().expect("the first").replace('\'', "");
        assert_eq!(text, "id=1234, name=much longer than it may be");
        assert!(error.cause_text().expect("a cause").contains("this one as well"), "{error}");
        assert!(error.hint_text().expect("a hint").starts_with("widen the column"), "{error:?}");
        assert_eq!(database.rows(), ["-1\tthere"], "nothing of it stays");
        assert_eq!(database.tables(), ["t"]);
    }
}

async fn many_bad_rows_are_reported_in_part(kind: Kind) {
    let database = Database::new(kind, "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(12))");
    let rows: Vec<(Option<i64>, &str)> = (0..2000).map(|id| (Some(id % 500), "again")).collect();
    let error = load(&database.sink(json!({})), &[people(&rows)]).await.expect_err("keys are there twice");
    assert_eq!(error.what(), format!("table t of {} refuses 5 rows or more", database.sink(json!({})).target()));
    assert_eq!(error.offending_text().map(|text| text.replace('\'', "")).as_deref(), Some("id=0, name=again"));
    assert_eq!(database.count(), 0);
}

async fn a_row_without_a_key_is_refused(kind: Kind) {
    let database = Database::new(kind, "");
    let sink = database.sink(json!({"mode": "merge", "key": ["id"]}));
    let error = load(&sink, &[people(&[(Some(5), "x"), (None, "no key")])]).await.expect_err("a null key");
    assert_eq!(error.cause_text(), Some("a row without a value in a key column"));
    assert_eq!(error.location().column.as_deref(), Some("id"));
    assert_eq!(error.offending_text().map(|text| text.replace('\'', "")).as_deref(), Some("id=NULL, name=no key"));
    assert_eq!(database.tables(), [""; 0]);
}

async fn logins_are_refused_with_a_reason(kind: Kind) {
    let database = Database::new(kind, "");
    let wrong = sink(&database.url.replace(PASSWORD, "wrong-secret"), json!({}));
    let error = checked(&wrong, &people(&[])).await.remove(0);
    assert_eq!(error.what(), format!("{}: the login is refused", wrong.target()));
    assert!(!format!("{error:?}").contains("wrong-secret"), "{error:?}");
    let missing = sink(&database.url.replace(&database.name, "nowhere"), json!({}));
    let error = checked(&missing, &people(&[])).await.remove(0);
    assert_eq!(error.what(), format!("{}: there is no such database", missing.target()));
    let nobody = sink(&database.behind(millstream_testkit::free_port()), json!({"retries": 0}));
    let error = checked(&nobody, &people(&[])).await.remove(0);
    assert_eq!(
        (error.what(), error.kind()),
        (format!("{} cannot be reached", nobody.target()).as_str(), ErrorKind::Transient)
    );
    let encrypted = sink(&database.url, json!({"tls": "verify", "retries": 0}));
    let error = checked(&encrypted, &people(&[])).await.remove(0);
    assert_eq!(
        error.what(),
        format!("the encrypted connection to {} cannot be established", encrypted.target()),
        "{error}"
    );
}

async fn statements_run_before_and_after(kind: Kind) {
    let database = Database::new(kind, "");
    let before = ["CREATE TABLE t (id BIGINT, name VARCHAR(20))", "INSERT INTO t VALUES (0, 'first')"];
    let sink = database.sink(json!({"before": before, "after": ["UPDATE t SET name = 'after' WHERE id = 1"]}));
    sink.check(people(&[]).schema()).await.expect("who knows what `before` makes");
    load(&sink, &[people(&[(Some(1), "one")])]).await.expect("it loads");
    assert_eq!(database.rows(), ["0\tfirst", "1\tafter"]);
    let sink = database.sink(json!({"before": ["NONSENSE"]}));
    let error = load(&sink, &[people(&[])]).await.expect_err("no statement");
    assert_eq!((error.what(), error.offending_text()), ("a statement of `before` failed", Some("NONSENSE")));
    let sink = database.sink(json!({"after": ["NONSENSE"]}));
    let error = load(&sink, &[people(&[(Some(2), "two")])]).await.expect_err("no statement");
    assert!(error.hint_text().is_some_and(|hint| hint.starts_with("the rows are already committed")), "{error:?}");
    assert_eq!(database.count(), 3);
}

/// Another transaction locks the row that is loaded.
async fn a_lock_is_waited_for_and_then_reported(kind: Kind) {
    let database = Database::new(kind, "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20))");
    let holder = database.sink(json!({}));
    let context = LoadContext { schema: people(&[]).schema(), ..context(1) };
    let holding = holder.begin(context).await.expect("it begins");
    let mut writer = holding.writer(0).await.expect("a writer");
    writer.write(people(&[(Some(7), "holder")])).await.expect("it writes");
    writer.close().await.expect("it has the row");
    let impatient = database.sink(json!({"lock_timeout": "1s", "retries": 1}));
    let error = load(&impatient, &[people(&[(Some(7), "other")])]).await.expect_err("the row is locked");
    assert_eq!(error.what(), format!("{}: a lock was not granted in time", impatient.target()), "{error}");
    assert_eq!(error.kind(), ErrorKind::Transient);
    let patient = database.sink(json!({"lock_timeout": "1s", "retries": 60}));
    let waiting = tokio::spawn(async move { load(&patient, &[people(&[(Some(8), "b"), (Some(7), "other")])]).await });
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    holding.abort().await;
    waiting.await.expect("no panic").expect("the lock was given");
    assert_eq!(database.rows(), ["7\tother", "8\tb"]);
}

async fn a_lost_connection_leaves_nothing(kind: Kind) {
    for settings in
        [json!({}), json!({"connections": 2}), json!({"mode": "replace"}), json!({"mode": "merge", "key": ["id"]})]
    {
        let database = Database::new(kind, "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20))");
        database.query("INSERT INTO t VALUES (-1, 'there')");
        let proxy = Proxy::start(database.port(), &[Break::Nothing]);
        let mut all = settings.clone();
        all["batch_rows"] = json!(100);
        let sink = sink(&database.behind(proxy.port()), all);
        let context = LoadContext { schema: people(&[]).schema(), ..context(1) };
        let load = sink.begin(context).await.expect("it begins");
        let mut writer = load.writer(0).await.expect("a writer");
        writer.write(many(0..1000)).await.expect("it writes");
        proxy.close_all();
        let mut ended = Ok(());
        for start in 1..20 {
            ended = ended.and(writer.write(many(start * 1000..start * 1000 + 1000)).await);
        }
        let mut ended = ended.and(writer.close().await);
        if ended.is_ok() {
            ended = load.prepare().await;
        }
        let error = ended.expect_err("the connection is gone");
        assert_eq!(error.kind(), ErrorKind::Transient, "{settings}: {error:?}");
        drop(writer);
        load.abort().await;
        assert_eq!(database.rows(), ["-1\tthere"], "{settings}");
        assert_eq!(database.tables(), ["t"], "{settings}");
    }
}

async fn tables_of_the_dead_are_dropped_and_of_the_living_are_not(kind: Kind) {
    let database = Database::new(kind, "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20))");
    database.query("CREATE TABLE _millstream_0123456789abcdef_rows (id INT)");
    database.query("CREATE TABLE _millstream_other (id INT)");
    let living = database.sink(json!({"mode": "merge", "key": ["id"]}));
    let context = LoadContext { schema: people(&[]).schema(), ..context(1) };
    let first = living.begin(context).await.expect("it begins");
    assert_eq!(database.tables().len(), 3, "{:?}", database.tables());
    load(&living, &[people(&[(Some(1), "a")])]).await.expect("another load");
    assert_eq!(database.tables().len(), 3, "what lives stays: {:?}", database.tables());
    first.abort().await;
    assert_eq!(database.tables(), ["_millstream_other", "t"]);
}

async fn a_commit_without_an_answer_is_found_out(kind: Kind) {
    let renaming = if kind == Kind::Mariadb { "RENAME" } else { "COMMIT" };
    for (settings, swallowed, new) in [
        (json!({}), Break::SwallowAnswer("COMMIT"), false),
        (json!({"connections": 2}), Break::SwallowAnswer("COMMIT"), false),
        (json!({"connections": 2}), Break::SwallowSilently("COMMIT"), false),
        (json!({"mode": "merge", "key": ["id"]}), Break::SwallowAnswer("COMMIT"), false),
        (json!({"mode": "replace", "key": ["id"]}), Break::SwallowAnswer(renaming), true),
        (json!({"mode": "replace", "key": ["id"]}), Break::SwallowSilently(renaming), true),
    ] {
        let database = Database::new(kind, "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20))");
        database.query("INSERT INTO t VALUES (-1, 'there')");
        let proxy = Proxy::start(database.port(), &[swallowed, Break::Nothing]);
        let mut all = settings.clone();
        all["retries"] = json!(2);
        let loaded = load(&sink(&database.behind(proxy.port()), all), &[many(0..100)]).await;
        // In MySQL a transaction has no name, and a direct load no table of its own.
        if kind == Kind::Mariadb && settings == json!({}) {
            let error = loaded.expect_err("it is unknown");
            assert!(error.hint_text().is_some_and(|hint| hint.starts_with("it is unknown")), "{error:?}");
        } else {
            let line = loaded.unwrap_or_else(|error| panic!("{settings}: {error:?}"));
            assert!(line.starts_with("100 rows"), "{line}");
        }
        assert_eq!(database.count(), if new { 100 } else { 101 }, "{settings}");
        assert_eq!(database.tables(), ["t"], "{settings}");
    }
}

/// Without rows, the staging table does not show whether rows of the target were deleted.
async fn a_commit_of_deletes_alone_without_an_answer_is_unknown_or_found_out(kind: Kind) {
    let database = Database::new(kind, "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20))");
    database.query("INSERT INTO t VALUES (-1, 'there')");
    let proxy = Proxy::start(database.port(), &[Break::SwallowAnswer("COMMIT"), Break::Nothing]);
    let settings = json!({"mode": "sync", "key": ["id"], "missing": "delete", "max_deletes": "100%", "empty_input":
                          "allow", "retries": 2});
    let loaded = load(&sink(&database.behind(proxy.port()), settings), &[people(&[])]).await;
    if kind == Kind::Mariadb {
        let error = loaded.expect_err("it is unknown");
        assert!(error.hint_text().is_some_and(|hint| hint.starts_with("it is unknown")), "{error:?}");
    } else {
        loaded.expect("the transaction has a name");
    }
    assert_eq!(database.count(), 0);
}

async fn a_statement_that_breaks_off_in_its_middle_is_no_load(kind: Kind) {
    for settings in [json!({}), json!({"connections": 2}), json!({"mode": "replace"})] {
        let database = Database::new(kind, "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20))");
        database.query("INSERT INTO t VALUES (-1, 'there')");
        // All rows are one statement of about a megabyte; a direct load sends them over its first connection.
        let first = if settings == json!({}) { Break::CutSending(300_000) } else { Break::Nothing };
        let proxy = Proxy::start(database.port(), &[first, Break::CutSending(300_000), Break::Nothing]);
        let sink = sink(&database.behind(proxy.port()), settings.clone());
        let error = load(&sink, &[many(0..50_000)]).await.expect_err("it breaks off");
        assert_eq!(error.kind(), ErrorKind::Transient, "{settings}: {error:?}");
        assert_eq!(database.rows(), ["-1\tthere"], "{settings}");
        assert_eq!(database.tables(), ["t"], "{settings}");
    }
}

/// Loads eight rows into table `t`, with long pauses: straight, by several connections, and in chunks.
pub(crate) async fn takes_its_time(url: &str) {
    let pause = || tokio::time::sleep(std::time::Duration::from_millis(2500));
    let context = || LoadContext { schema: people(&[]).schema(), ..context(1) };
    let straight = sink(url, json!({})).begin(context()).await.expect("it begins");
    let staged = sink(url, json!({"connections": 2})).begin(context()).await.expect("it begins");
    let ledger = sink(url, json!({})).ledger("run", context()).await.expect("it opens").expect("there is one");
    let chunk = |number| millstream_core::sink::Chunk { unit: "u".to_owned(), number };
    let deliver = async |number| {
        let mut delivery = ledger.delivery(vec![chunk(number)], 0).await?;
        delivery.write(many(0..2)).await?;
        delivery.commit().await
    };
    deliver(0).await.expect("it delivers");
    pause().await;
    deliver(1).await.expect("it delivers");
    for load in [straight, staged] {
        load_into(&load, &[many(0..2)]).await.expect("its connection is there");
    }
}
