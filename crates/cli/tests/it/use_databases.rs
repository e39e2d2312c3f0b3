//! Database servers through the real binary: MariaDB and PostgreSQL as sinks of real jobs.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use millstream_testkit::{MariaDb, PASSWORD, Postgres, USER};

use crate::use_support::Lab;

/// A database of either server.
#[derive(Clone)]
pub struct Database {
    name: String,
    pub url: String,
    query: fn(&str, &str) -> Vec<String>,
}

impl Database {
    pub fn both() -> [Database; 2] {
        let (mariadb, postgres) = (MariaDb::shared(), Postgres::shared());
        let (first, second) = (mariadb.database(), postgres.database());
        [
            Database { url: mariadb.url(&first), name: first, query: |name, sql| MariaDb::shared().query(name, sql) },
            Database {
                url: postgres.url(&second),
                name: second,
                query: |name, sql| Postgres::shared().query(name, sql),
            },
        ]
    }

    pub fn query(&self, sql: &str) -> Vec<String> {
        (self.query)(&self.name, sql)
    }

    pub fn tables(&self) -> Vec<String> {
        let query = "SELECT table_name FROM information_schema.tables WHERE table_schema IN ('public', '";
        self.query(&format!("{query}{}')", self.name))
    }

    /// The URL without its password.
    fn shown(&self) -> String {
        self.url.replace(PASSWORD, "***")
    }
}

/// Four files of `id`, `name` and `amount`, and a job that loads them.
fn lab(url: &str, sink: &str) -> Lab {
    let lab = Lab::with_job(&format!(
        "sources:\n  s: {{read: 'in/*.jsonl'}}\nsinks:\n  o: {{from: s, write: '{url}', {sink}}}\n"
    ));
    for file in 0..4 {
        let rows = (file * 2_500..(file + 1) * 2_500).fold(String::new(), |mut text, id| {
            let amount = if id % 3 == 0 { "null".to_owned() } else { format!("{}.25", id) };
            let _ = writeln!(text, r#"{{"id": {id}, "name": "row\t{id} \"é\"", "amount": {amount}}}"#);
            text
        });
        lab.file(&format!("in/{file}.jsonl"), rows);
    }
    lab
}

/// What all rows of [`lab`] together are, in either database.
fn assert_complete(database: &Database) {
    assert_eq!(
        database.query("SELECT COUNT(*), SUM(id), COUNT(amount), SUM(LENGTH(name)) FROM t"),
        ["10000\t49995000\t6666\t".to_owned() + &sum_of_lengths(database)]
    );
}

fn sum_of_lengths(database: &Database) -> String {
    let is_mariadb = database.url.starts_with("mysql");
    // MariaDB's LENGTH is of bytes, PostgreSQL's of characters.
    let length = |id: usize| "row\t \"é\"".len() - usize::from(!is_mariadb) + id.to_string().len();
    (0..10_000).map(length).sum::<usize>().to_string()
}

#[test]
fn rows_get_into_a_new_table_and_into_one_that_is_there() {
    for database in Database::both() {
        let lab = lab(&database.url, "table: t, key: [id]");
        let ran = lab.run(&["run", "job.yaml"]);
        ran.ok();
        let told = format!("{}{}", ran.stdout, ran.stderr);
        assert!(told.contains(&format!("10,000 rows added to table t of {}", database.shown())), "{told}");
        assert_complete(&database);
        lab.run(&["run", "job.yaml"]).ended(1).says(&["refuses 5 rows or more", "uplicate", "`mode: ignore`"]);
        assert_complete(&database);
        for mode in ["replace", "truncate", "merge", "ignore"] {
            lab.file("job.yaml", lab.read("job.yaml").replace("key: [id]", &format!("key: [id], mode: {mode}")));
            lab.run(&["run", "job.yaml"]).ok();
            assert_complete(&database);
            assert_eq!(database.tables(), ["t"], "{mode}");
            lab.file("job.yaml", lab.read("job.yaml").replace(&format!(", mode: {mode}"), ""));
        }
    }
}

#[test]
fn a_secret_is_a_reference_and_the_plan_is_reported() {
    for database in Database::both() {
        let url = database.url.replace(&format!("{USER}:{PASSWORD}@"), "");
        let settings = format!("table: t, key: [id], user: {USER}, password: {{secret: env:DB_PASSWORD}}");
        let lab = lab(&url, &settings);
        lab.run(&["run", "job.yaml"]).ended(2).says(&["the secret's variable DB_PASSWORD is not set"]);
        let with_secret = |arguments: &[&str]| {
            let mut command = lab.command(arguments);
            command.env("DB_PASSWORD", PASSWORD);
            crate::use_support::finish(command, None)
        };
        let explained = with_secret(&["explain", "job.yaml"]);
        explained.ok();
        assert!(
            explained.stdout.contains("CREATE TABLE ") && explained.stdout.contains("PRIMARY KEY"),
            "{}",
            explained.stdout
        );
        let checked = with_secret(&["check", "job.yaml"]);
        checked.ok();
        let ran = with_secret(&["run", "job.yaml"]);
        ran.ok();
        for text in [&explained.stdout, &explained.stderr, &checked.stderr, &ran.stderr, &ran.stdout] {
            assert!(!text.contains(PASSWORD), "{text}");
        }
        assert_complete(&database);
    }
}

#[test]
fn a_bad_row_fails_the_job_with_all_its_sinks() {
    for database in Database::both() {
        database.query("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(30), amount DOUBLE PRECISION)");
        let lab = lab(&database.url, "table: t");
        lab.file("job.yaml", lab.read("job.yaml") + "  file: {from: s, write: out/all.csv}\n");
        let long = "x".repeat(40);
        lab.file("in/4.jsonl", format!(r#"{{"id": 77777, "name": "{long}", "amount": 1.5}}"#));
        lab.run(&["run", "job.yaml"]).ended(1).says(&[
            &format!("table t of {} refuses a row", database.shown()),
            "77777",
            "widen the column, or shorten the value",
        ]);
        assert_eq!(database.query("SELECT COUNT(*) FROM t"), ["0"]);
        assert!(!lab.path("out/all.csv").exists());
        assert_eq!(database.tables(), ["t"]);
    }
}

#[test]
fn a_killed_run_leaves_nothing_that_the_next_one_does_not_clean_up() {
    for database in Database::both() {
        let lab = lab(&database.url, "table: t, mode: replace, key: [id], batch_rows: 100");
        let mut child =
            lab.command(&["run", "job.yaml"]).stderr(std::process::Stdio::null()).spawn().expect("it starts");
        let start = Instant::now();
        while database.tables().is_empty() && start.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
        lab.run(&["run", "job.yaml"]).ok();
        assert_complete(&database);
        assert_eq!(database.tables(), ["t"]);
    }
}

/// Statements and commands run in order before and after the load. The error of a failed one contains its output.
#[test]
fn commands_run_before_and_behind_a_load() {
    for url in Database::both().map(|database| database.url).into_iter().chain(["sqlite:out.db".to_owned()]) {
        let settings = |before: &str, after: &str| {
            format!(
                "table: t, before: ['CREATE TABLE t (id BIGINT, name VARCHAR(99), amount DOUBLE PRECISION)', \
                 {{command: {before}}}], \
                 after: ['UPDATE t SET name = NULL', {{command: {after}}}]"
            )
        };
        let made = lab(&url, &settings("[sh, -c, 'echo begun > steps']", "[sh, -c, 'echo \"$0\" >> steps', ended]"));
        made.run(&["run", "job.yaml"]).ok();
        assert_eq!(made.read("steps"), "begun\nended\n", "{url}");
        for (before, after, what) in [
            (
                "[sh, -c, 'echo first >&2; echo no room >&2; exit 3']",
                "[\"true\"]",
                ["a command of `before` failed", "exit status: 3: no room"],
            ),
            ("[no-such-program]", "[\"true\"]", ["a command of `before` failed", "it cannot be started"]),
            ("[\"true\"]", "[\"false\"]", ["a command of `after` failed", "exit status: 1"]),
        ] {
            let lab = lab(&url, &settings(before, after).replace("CREATE TABLE t", "CREATE TABLE IF NOT EXISTS t"));
            lab.run(&["run", "job.yaml"]).ended(1).says(&what);
        }
        let lab = lab(&url, &settings("[]", "[' ']"));
        lab.run(&["check", "--offline", "job.yaml"]).ended(2).says(&["the command names no program"]);
    }
}

#[test]
fn what_is_wrong_with_the_settings_is_reported_at_once() {
    let lab =
        lab("mysql://u@127.0.0.1/d", "table: t, mode: merge, order_by: [id sideways up], connections: 0, tabel: x");
    lab.run(&["check", "--offline", "job.yaml"]).ended(2).says(&["tabel", "connections"]);
    lab.file("job.yaml", lab.read("job.yaml").replace(", connections: 0, tabel: x", ""));
    lab.run(&["check", "--offline", "job.yaml"]).ended(2).says(&["`mode: merge` without a key"]);
    lab.file(
        "job.yaml",
        lab.read("job.yaml").replace("u@127.0.0.1/d", "127.0.0.1/d").replace("mode: merge", "key: [id]"),
    );
    lab.run(&["check", "--offline", "job.yaml"]).ended(2).says(&["`order_by` without a mode that uses it"]);
    lab.file("job.yaml", lab.read("job.yaml").replace(", order_by: [id sideways up]", ""));
    lab.run(&["check", "--offline", "job.yaml"]).ended(2).says(&["the URL has no user"]);
}
