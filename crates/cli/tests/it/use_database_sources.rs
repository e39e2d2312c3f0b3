//! Databases as sources of real jobs: through SQL, with files, from one server into another, and what goes wrong.

use millstream_testkit::{MariaDb, PASSWORD, Postgres, USER};

use crate::use_support::Lab;

/// A database of a server with 20,000 rows in `t`, its URL, and the name of its source.
fn filled(product: &str) -> (String, String) {
    let create = "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(30), price DECIMAL(9,2), at TIMESTAMP NULL)";
    let postgres = create.replace(" NULL)", ")");
    if product == "mysql" {
        let (server, insert) = (
            MariaDb::shared(),
            "INSERT INTO t SELECT seq, CONCAT('é', seq), seq / 4, \
             FROM_UNIXTIME(seq) FROM seq_1_to_20000",
        );
        let database = server.database();
        server.query(&database, &format!("SET time_zone = '+00:00'; {create}; {insert}"));
        (server.url(&database), database)
    } else {
        let (server, insert) = (
            Postgres::shared(),
            "INSERT INTO t SELECT n, 'é' || n, n / 4.0, to_timestamp(n) AT TIME ZONE 'UTC' FROM generate_series(1, \
             20000) n",
        );
        let database = server.database();
        server.query(&database, &format!("{postgres}; {insert}"));
        (server.url(&database), database)
    }
}

#[test]
fn a_table_goes_through_sql_into_a_file() {
    for product in ["mysql", "postgres"] {
        let (url, _) = filled(product);
        let lab = Lab::with_job(&format!(
            "sources:\n  t: {{read: '{url}', {product}: {{table: t, connections: 3}}}}\n  \
             f: {{read: names.csv}}\n\
             transforms:\n  r: {{sql: 'SELECT f.kind, count(*) AS n, sum(t.price) AS price, max(t.at) AS at FROM t \
             JOIN f ON t.id % 4 = f.rest GROUP BY f.kind ORDER BY f.kind'}}\n\
             sinks:\n  o: {{from: r, write: out.csv}}\n"
        ));
        lab.file("names.csv", "rest,kind\n0,even\n2,even\n1,odd\n");
        let report = lab.report(&[]);
        assert_eq!(
            lab.read("out.csv").replace('Z', ""),
            "kind,n,price,at\neven,10000,25002500.00,1970-01-01T05:33:20\nodd,5000,12498750.00,1970-01-01T05:33:17\n"
        );
        assert!(report.to_string().contains("20000"), "{report}");
        let explained = lab.run(&["explain", "job.yaml"]);
        explained.ok();
        assert!(explained.stdout.contains("ReadExec: t, rows, columns=[id, price, at]"), "{}", explained.stdout);
        lab.run(&["preview", "job.yaml", "t"]).ok();
        lab.run(&["check", "job.yaml"]).ok();
        lab.run(&["check", "--offline", "job.yaml"]).ok();
    }
}

#[test]
fn rows_go_from_one_server_into_the_other_and_into_sqlite_and_back() {
    let (from, _) = filled("mysql");
    let postgres = Postgres::shared();
    let name = postgres.database();
    let to = postgres.url(&name);
    let lab = Lab::with_job(&format!(
        "sources:\n  t: {{read: '{from}', mysql: {{table: t}}}}\n\
         sinks:\n  o: {{from: t, write: '{to}', table: copy, key: [id], mode: replace}}\n  \
         l: {{from: t, write: 'sqlite:copy.db', table: t, mode: replace}}\n"
    ));
    lab.run(&["run", "job.yaml"]).ok();
    let sums = "SELECT count(*), sum(id), sum(price), min(name), max(at)::timestamp FROM copy";
    assert_eq!(postgres.query(&name, sums), ["20000\t200010000\t50002500.00\té1\t1970-01-01 05:33:20"]);

    lab.file(
        "job.yaml",
        "sources:\n  t: {read: 'sqlite:copy.db', sqlite: {query: 'SELECT id, name FROM t WHERE id <= 3'}}\n\
         sinks:\n  o: {from: t, write: back.csv}\n",
    );
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(lab.read("back.csv"), "id,name\n1,é1\n2,é2\n3,é3\n");
}

#[test]
fn faults_of_a_database_that_is_read_name_it_without_its_password() {
    for product in ["mysql", "postgres"] {
        let (url, _) = filled(product);
        let job = |url: &str, settings: &str| {
            Lab::with_job(&format!(
                "sources:\n  t: {{read: '{url}', {product}: {{{settings}}}}}\nsinks:\n  o: {{from: t, write: \
                 out.csv}}\n"
            ))
        };
        let says = |lab: &Lab, code: i32, parts: &[&str]| {
            let ran = lab.run(&["run", "job.yaml"]);
            ran.ended(code).says(parts);
            assert!(!ran.stderr.contains(PASSWORD), "{}", ran.stderr);
            assert!(!lab.path("out.csv").exists());
        };
        says(
            &job(&url, "table: absent"),
            1,
            &["error: ", "refuses the query", "absent", "hint: check the table's name"],
        );
        says(&job(&url, ""), 2, &["neither a table nor a query is given", "hint: "]);
        says(&job(&url, "table: t, split_by: name"), 2, &["rows cannot be split by this column", "split_by"]);
        let wrong = url.replace(PASSWORD, "wrong");
        says(&job(&wrong, "table: t"), 1, &["the login is refused", "hint: check user and password"]);
        let secret = url.replace(&format!("{USER}:{PASSWORD}@"), "");
        let lab = job(&secret, &format!("table: t, user: {USER}, password: {{secret: env:DB_PASSWORD}}"));
        lab.run(&["run", "job.yaml"]).ended(2).says(&["DB_PASSWORD is not set"]);
        let mut command = lab.command(&["run", "job.yaml"]);
        command.env("DB_PASSWORD", PASSWORD);
        crate::use_support::finish(command, None).ok();
        assert_eq!(lab.read("out.csv").lines().count(), 20_001);
        lab.run(&["count", &url]).ended(2).says(&["neither a table nor a query is given"]);
        job(&url, "table: t, query: SELECT 1")
            .run(&["check", "--offline", "job.yaml"])
            .ended(2)
            .says(&["both a table and a query are given", "hint: leave one of them out"]);
    }
}

#[test]
fn settings_that_a_database_has_no_use_for_are_reported() {
    let rejects = "sources:\n  t: {read: 'mysql://u@h/d', max_rejects: 5, mysql: {table: t}}\nsinks:\n  o: {from: t, \
                   write: o.csv}\n";
    let lab = Lab::with_job(rejects);
    lab.run(&["check", "--offline", "job.yaml"]).ended(2).says(&[
        "a database's rows are not records",
        "2 |",
        "`query`",
    ]);
    for product in ["mysql", "postgres"] {
        let (url, _) = filled(product);
        for (name, what) in
            [("nme", "`split_by` is not among the columns that are read"), ("name", "cannot be split by this column")]
        {
            let job = format!(
                "sources:\n  t: {{read: '{url}', {product}: {{query: SELECT * FROM t, split_by: \
                 {name}}}}}\nsinks:\n  o: \
                 {{from: t, write: o.csv}}\n"
            );
            Lab::with_job(&job).run(&["check", "job.yaml"]).ended(2).says(&[what]);
        }
    }
    let (url, _) = filled("postgres");
    let job = format!("sources:\n  s: {{read: in.csv}}\nsinks:\n  o: {{from: s, write: '{url}', table: far.t}}\n");
    let lab = Lab::with_job(&job);
    lab.file("in.csv", "a\n1\n");
    lab.run(&["check", "job.yaml"]).says(&["there is no schema far for the table far.t", "CREATE SCHEMA"]);
}

/// The rows of a table go into another of the same database, and back into their own in its stead.
#[test]
fn one_database_is_read_and_written() {
    for product in ["mysql", "postgres"] {
        let (url, name) = filled(product);
        let query = |sql: &str| match product {
            "mysql" => MariaDb::shared().query(&name, sql),
            _ => Postgres::shared().query(&name, sql),
        };
        let job = |sink: &str| {
            format!(
                "sources:\n  t: {{read: '{url}', {product}: {{table: t, connections: 3}}}}\n\
                 transforms:\n  r: {{select: {{from: t, columns: [id, name, \"CAST(price * 2 AS DECIMAL(20, 2)) AS \
                 price\"]}}}}\n\
                 sinks:\n  o: {{from: r, write: '{url}', lock_timeout: 5s, {sink}}}\n"
            )
        };
        for (sink, of, times) in [
            ("table: copy", "copy", 2),
            ("table: copy, mode: merge, key: [id]", "copy", 2),
            ("table: t, mode: replace, key: [id]", "t", 2),
            ("table: t, mode: merge, key: [id]", "t", 4),
            ("table: t, mode: truncate", "t", 8),
        ] {
            let lab = Lab::with_job(&job(sink));
            if sink == "table: copy, mode: merge, key: [id]" {
                query("CREATE UNIQUE INDEX k ON copy (id)");
            }
            lab.run(&["run", "job.yaml"]).ok();
            let sums = query(&format!("SELECT COUNT(*), SUM(id), SUM(price) FROM {of}"));
            let price = 50_002_500 * times;
            assert!(sums[0].starts_with(&format!("20000\t200010000\t{price}.")), "{product}, {sink}: {sums:?}");
        }
        let lab = Lab::with_job(&job("table: t"));
        let ran = lab.run(&["check", "--offline", "job.yaml"]);
        ran.ended(2).says(&["`o` writes table t, which `t` reads", "add the rows to another table"]);
    }
}

/// A reader of a SQLite file keeps written pages from the disk. It must not stop the load.
#[test]
fn one_file_of_sqlite_is_read_and_written() {
    let lab = Lab::with_job(
        "sources:\n  t: {read: 'sqlite:x.db', sqlite: {table: t}}\n\
         sinks:\n  o: {from: t, write: 'sqlite:x.db', table: copy, busy_timeout: 1h}\n",
    );
    let connection = rusqlite::Connection::open(lab.path("x.db")).expect("a database");
    let rows = "CREATE TABLE t (id INTEGER, name TEXT); WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM \
                n WHERE i < \
                200000) INSERT INTO t SELECT i, 'a name that takes some room ' || i FROM n";
    connection.execute_batch(rows).expect("rows");
    drop(connection);
    // One that waits for itself is taken for one that hangs.
    lab.run(&["run", "job.yaml", "--memory", "64MiB"]).ok();
    let sums = "SELECT count(*), sum(id), sum(length(name)) FROM ";
    let both = ["t", "copy"].map(|table| crate::use_support::sqlite(&lab.path("x.db"), &format!("{sums}{table}")));
    assert_eq!(both[0], both[1]);
}
