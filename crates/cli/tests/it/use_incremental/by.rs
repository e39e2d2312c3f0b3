//! Incremental sources that are databases, read by the time in a column: each row goes once into sinks that append, and
//! its latest form into those that merge, whatever dies in between, and however late a transaction commits.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millstream_testkit::{MariaDb, MariaDbOptions, Postgres};
use serde_json::Value;

use super::{killed, run};
use crate::use_databases::Database;
use crate::use_resume::Target;
use crate::use_support::{Lab, sqlite};

/// What is wrong with a column, its type, the values of two rows, and parts of the message.
type Wrong<'a> = (usize, &'a str, &'a str, &'a [&'a str]);

/// A table `orders` of a database that is read.
struct Place {
    kind: &'static str,
    target: Target,
    url: String,
}

impl Place {
    /// One in each kind of database; times have a zone.
    fn all(lab: &Lab) -> [Place; 3] {
        let [mariadb, postgres] = Database::both();
        let urls = [mariadb.url.clone(), postgres.url.clone(), "sqlite:src.db".to_owned()];
        let targets = [Target::Server(mariadb), Target::Server(postgres), Target::Sqlite(lab.path("src.db"))];
        let kinds = ["mysql", "postgres", "sqlite"].into_iter().zip(["TIMESTAMP(6) NULL", "timestamptz", "TEXT"]);
        let mut places = kinds.zip(targets.into_iter().zip(urls)).map(|((kind, column), (target, url))| {
            target.query(&format!("CREATE TABLE orders (id INT PRIMARY KEY, name VARCHAR(30), updated_at {column})"));
            Place { kind, target, url }
        });
        [(); 3].map(|()| places.next().expect("there are three"))
    }

    fn ago(&self, seconds: u32) -> String {
        match self.kind {
            "mysql" => format!("NOW(6) - INTERVAL {seconds} SECOND"),
            "postgres" => format!("clock_timestamp() - interval '{seconds} seconds'"),
            _ => format!("strftime('%Y-%m-%d %H:%M:%f', 'now', '-{seconds} seconds')"),
        }
    }

    /// Adds a row that was changed so many seconds ago.
    fn add(&self, id: u32, seconds: u32) {
        self.target.query(&format!("INSERT INTO orders VALUES ({id}, 'new', {})", self.ago(seconds)));
    }

    /// The source of a job.
    fn source(&self, lag: &str) -> String {
        let Place { kind, url, .. } = self;
        format!("  orders: {{read: '{url}', {kind}: {{table: orders}}, incremental: {{by: updated_at, lag: {lag}}}}}\n")
    }

    /// A job that loads it into a table of SQLite.
    fn job(&self, lab: &Lab, lag: &str, mode: &str) {
        let source = self.source(lag);
        let sink = format!("  o: {{from: orders, write: 'sqlite:out.db', table: t, {mode}}}\n");
        lab.file("job.yaml", format!("sources:\n{source}sinks:\n{sink}"));
    }
}

fn ids(lab: &Lab) -> Vec<String> {
    sqlite(&lab.path("out.db"), "SELECT id FROM t ORDER BY id").concat()
}

fn window<'a>(report: &'a Value, name: &str) -> &'a Value {
    &report["windows"][0][name]
}

fn seconds(count: f64) {
    std::thread::sleep(Duration::from_secs_f64(count));
}

/// Moves the mark that is noted in the target, by so many seconds.
fn move_mark(lab: &Lab, seconds: i64) {
    // In microseconds since 1970; what tells the column is far above.
    let is_mark = "chunk BETWEEN 1000000000000000 AND 4000000000000000";
    let update = format!("UPDATE _millstream_ledger SET chunk = chunk + {} WHERE {is_mark}", seconds * 1_000_000);
    sqlite(&lab.path("out.db"), &update);
}

#[test]
fn each_row_is_appended_once_however_late_it_is_committed() {
    let base = Lab::new();
    let places = Place::all(&base);
    let labs: Vec<Lab> = places.iter().map(|_| Lab::new()).collect();
    let all = || places.iter().zip(&labs);
    for (place, lab) in all() {
        if place.kind == "sqlite" {
            fs_err::rename(base.path("src.db"), lab.path("src.db")).expect("it is there");
        }
    }
    let places = places.map(|place| match place.kind {
        "sqlite" => Place { target: Target::Sqlite(labs[2].path("src.db")), ..place },
        _ => place,
    });
    let all = || places.iter().zip(&labs);
    for (place, lab) in all() {
        place.job(lab, "9s", "mode: append");
        [(1, 100), (2, 50), (3, 0)].into_iter().for_each(|(id, ago)| place.add(id, ago));
        let report = lab.report(&[]);
        assert_eq!(ids(lab), ["1", "2"], "{}: the third is too young", place.kind);
        assert_eq!((window(&report, "from"), window(&report, "by")), (&Value::Null, &"updated_at".into()));
        assert_eq!(window(&report, "until"), window(&report, "mark"));
        // A transaction that took two seconds.
        place.add(4, 2);
    }
    // Bounds are whole seconds.
    seconds(10.1);
    let mut marks = Vec::new();
    for (place, lab) in all() {
        let report = lab.report(&[]);
        assert_eq!(ids(lab), ["1", "2", "3", "4"], "{}: {report:#}", place.kind);
        let mark = window(&report, "mark").as_str().expect("a time").trim_end_matches('Z').replace('T', " ");
        // A row at exactly the mark belongs to the next window, one just before it to the last.
        let zone = if place.kind == "postgres" { "+00" } else { "" };
        let set = if place.kind == "mysql" { "SET time_zone = '+00:00'; " } else { "" };
        place.target.query(&format!("{set}INSERT INTO orders VALUES (5, 'mark', '{mark}{zone}')"));
        marks.push(window(&report, "mark").clone());
    }
    seconds(1.2);
    for ((place, lab), mark) in all().zip(marks) {
        let report = lab.report(&[]);
        assert_eq!(window(&report, "from"), &mark, "{}", place.kind);
        assert_eq!(ids(lab), ["1", "2", "3", "4", "5"], "{}: {report:#}", place.kind);
    }
    seconds(1.2);
    for (place, lab) in all() {
        let report = lab.report(&[]);
        assert_eq!(report["rows_written"], 0, "{}: {report:#}", place.kind);
        let ran = lab.run(&["run", "job.yaml"]);
        ran.ok();
        let told = format!("{}{}", ran.stdout, ran.stderr);
        assert!(told.contains("nothing new") || told.contains("orders: read rows with updated_at from 20"), "{told}");
        // The ledger keeps one mark, however many runs there were.
        let notes = sqlite(&lab.path("out.db"), "SELECT COUNT(*) FROM _millstream_ledger WHERE chunk >= 0");
        assert_eq!(notes, [["3"]], "{}: with its column, and the table", place.kind);
    }
}

#[test]
fn changed_rows_are_merged_again() {
    for index in 0..3 {
        let lab = Lab::new();
        let place = Place::all(&lab).into_iter().nth(index).expect("one of three");
        place.job(&lab, "10m", "mode: merge, key: [id]");
        [(1, 7200), (2, 3600), (3, 0)].into_iter().for_each(|(id, ago)| place.add(id, ago));
        let report = lab.report(&[]);
        assert_eq!(ids(&lab), ["1", "2", "3"]);
        assert_eq!((window(&report, "from"), window(&report, "until")), (&Value::Null, &Value::Null));
        place.target.query(&format!("UPDATE orders SET name = 'changed', updated_at = {} WHERE id = 1", place.ago(0)));
        // Committed within the lag, and long after it.
        place.add(4, 300);
        place.add(5, 1800);
        let report = lab.report(&[]);
        assert_eq!(ids(&lab), ["1", "2", "3", "4"], "{}", place.kind);
        let changes = &report["results"][0]["changes"];
        let counts = ["inserted", "updated", "unchanged"].map(|name| changes[name].as_u64());
        assert_eq!(counts, [Some(1), Some(1), Some(1)], "{report:#}");
        assert_eq!(sqlite(&lab.path("out.db"), "SELECT name FROM t WHERE id = 1"), [["changed"]]);
        let told = lab.run(&["run", "job.yaml"]);
        let told = format!("{}{}", told.stdout, told.stderr);
        assert!(told.contains("orders: read rows with updated_at from 20") && told.contains("Z on\n"), "{told}");
        let explained = lab.run(&["explain", "job.yaml"]).ok().stdout.clone();
        assert!(explained.contains("a run reads rows with updated_at from 10m before the last run on"), "{explained}");
    }
}

#[test]
fn whatever_dies_around_the_commits_each_row_is_in_each_sink_once() {
    let lab = Lab::new();
    let [mariadb, postgres] = Database::both();
    for place in Place::all(&lab) {
        let table = |name: &str| format!("{name}_{}", place.kind);
        let sinks = format!(
            "  a: {{from: orders, write: '{}', table: {}}}\n  b: {{from: orders, write: '{}', table: {}}}\n  c: \
             {{from: orders, write: 'sqlite:out.db', table: {}}}\n",
            mariadb.url,
            table("a"),
            postgres.url,
            table("b"),
            table("c")
        );
        lab.file("job.yaml", format!("sources:\n{}sinks:\n{sinks}", place.source("0s")));
        let counts = || {
            let count = |name: &str| format!("SELECT COUNT(*), COUNT(DISTINCT id) FROM {}", table(name));
            let c = sqlite(&lab.path("out.db"), &count("c"))[0].join("\t");
            [mariadb.query(&count("a")).concat(), postgres.query(&count("b")).concat(), c]
        };
        place.add(1, 5);
        run(&lab, "none").ok();
        assert_eq!(counts(), [(); 3].map(|()| "1\t1".to_owned()));
        let mut rows = 1;
        for fail_point in
            ["loading.before", "publish.before", "publish.next:1", "publish.next:2", "publish.after", "forget.before"]
        {
            rows += 1;
            place.add(rows, 0);
            seconds(1.1);
            killed(&lab, fail_point);
            let committed = counts().iter().filter(|count| **count == format!("{rows}\t{rows}")).count();
            let expected = match fail_point {
                "publish.next:1" => 1,
                "publish.next:2" => 2,
                "publish.after" | "forget.before" => 3,
                _ => 0,
            };
            assert_eq!(committed, expected, "{fail_point} {:?}", counts());
            // What was written meanwhile comes to all of them.
            rows += 1;
            place.add(rows, 0);
            seconds(1.1);
            run(&lab, "none").ok();
            assert_eq!(counts(), [(); 3].map(|()| format!("{rows}\t{rows}")), "{} {fail_point}", place.kind);
        }
        // A sink that is new gets all rows; the others do not get them again.
        let job = lab.read("job.yaml");
        lab.file("job.yaml", format!("{job}  d: {{from: orders, write: 'sqlite:d.db', table: {}}}\n", table("d")));
        run(&lab, "none").ok();
        assert_eq!(counts(), [(); 3].map(|()| format!("{rows}\t{rows}")));
        let new = sqlite(&lab.path("d.db"), &format!("SELECT COUNT(*), COUNT(DISTINCT id) FROM {}", table("d")));
        assert_eq!(new, [[rows.to_string(), rows.to_string()]]);
    }
}

#[test]
fn a_merge_that_dies_is_done_by_the_next_run() {
    let lab = Lab::new();
    let [place, ..] = Place::all(&lab);
    let [_, postgres] = Database::both();
    let sinks = format!(
        "  a: {{from: orders, write: '{}', table: a, mode: merge, key: [id]}}\n  b: {{from: orders, write: \
         'sqlite:out.db', table: t, mode: ignore, key: [id]}}\n",
        postgres.url
    );
    lab.file("job.yaml", format!("sources:\n{}sinks:\n{sinks}", place.source("10m")));
    place.add(1, 0);
    run(&lab, "none").ok();
    for (id, fail_point) in [(2, "publish.before"), (3, "publish.next:1"), (4, "publish.after")] {
        place.add(id, 0);
        place.target.query(&format!("UPDATE orders SET name = 'n{id}', updated_at = {} WHERE id = 1", place.ago(0)));
        killed(&lab, fail_point);
        run(&lab, "none").ok();
        let expected: Vec<String> = (1..=id).map(|id| id.to_string()).collect();
        assert_eq!(ids(&lab), expected);
        assert_eq!(postgres.query("SELECT id FROM a ORDER BY id"), expected);
        assert_eq!(postgres.query("SELECT name FROM a WHERE id = 1"), [format!("n{id}")]);
    }
}

#[test]
fn rows_without_a_time_fail_the_run_before_anything_is_published() {
    for index in 0..3 {
        let lab = Lab::new();
        let place = Place::all(&lab).into_iter().nth(index).expect("one of three");
        place.job(&lab, "0s", "mode: append");
        place.add(1, 5);
        lab.report(&[]);
        place.target.query("INSERT INTO orders VALUES (2, 'x', NULL), (3, 'y', NULL)");
        place.add(4, 0);
        seconds(1.1);
        lab.run(&["run", "job.yaml"]).ended(1).says(&[
            "2 rows have no time in the column by which rows are read",
            "updated_at",
            "hint: give these rows a time",
        ]);
        assert_eq!(ids(&lab), ["1"]);
        place.target.query(&format!("UPDATE orders SET updated_at = {} WHERE updated_at IS NULL", place.ago(0)));
        seconds(1.1);
        lab.report(&[]);
        assert_eq!(ids(&lab), ["1", "2", "3", "4"]);
    }
}

#[test]
fn columns_that_are_no_times_are_refused() {
    let cases: [Wrong<'_>; 6] = [
        (0, "DATE", "'2026-01-01'", &["it is a date", "which does not say when on that day"]),
        (1, "date", "'2026-01-01'", &["it is a date"]),
        (0, "BIGINT", "5", &["it is a number", "not committed yet"]),
        (1, "bigint", "5", &["it is a number"]),
        (2, "INTEGER", "5", &["it is a number"]),
        (1, "text", "'2026-01-01 12:00:00'", &["it is not a time"]),
    ];
    for (index, column, value, says) in cases {
        let lab = Lab::new();
        let place = Place::all(&lab).into_iter().nth(index).expect("one of three");
        place.target.query(&format!("CREATE TABLE other (id INT, at {column})"));
        place.target.query(&format!("INSERT INTO other VALUES (1, {value})"));
        place.job(&lab, "0s", "mode: append");
        lab.file(
            "job.yaml",
            lab.read("job.yaml").replace("table: orders}", "table: other}").replace("updated_at", "at"),
        );
        for command in ["check", "run"] {
            lab.run(&[command, "job.yaml"]).ended(2).says(&["rows cannot be read by this column"]).says(says);
        }
        lab.file("job.yaml", lab.read("job.yaml").replace("by: at", "by: att"));
        lab.run(&["run", "job.yaml"])
            .ended(2)
            .says(&["`by` of `incremental` is not among the columns", "did you mean `at`"]);
    }
}

#[test]
fn times_that_are_text_are_all_of_one_form() {
    let cases = [
        ("31/01/2026 12:00:00", "not a time"),
        ("2026-01-31", "not a time"),
        ("2026-01-31 12:00:00+02:00", "not a time"),
        ("2026-01-31T12:00:00", "of two forms"),
    ];
    for (value, says) in cases {
        let lab = Lab::new();
        let [_, _, place] = Place::all(&lab);
        place.job(&lab, "0s", "mode: append");
        place.add(1, 5);
        place.target.query(&format!("INSERT INTO orders VALUES (2, 'x', '{value}')"));
        lab.run(&["run", "job.yaml"]).ended(1).says(&[says, "nothing is loaded", "of one form"]);
        assert!(sqlite(&lab.path("out.db"), "SELECT 1 FROM sqlite_schema WHERE name = 't'").is_empty());
    }
    // Any one form goes.
    for form in ["%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%fZ", "%Y-%m-%d %H:%M:%S"] {
        let lab = Lab::new();
        let [_, _, place] = Place::all(&lab);
        place.job(&lab, "0s", "mode: append");
        let add = |id: u32| {
            place.target.query(&format!("INSERT INTO orders VALUES ({id}, 'x', strftime('{form}', 'now'))"));
            seconds(1.1);
            lab.report(&[]);
        };
        add(1);
        add(2);
        add(3);
        assert_eq!(ids(&lab), ["1", "2", "3"], "{form}");
    }
}

#[test]
fn a_clock_that_went_back_is_an_error() {
    for (mode, lag, moves) in [("mode: append", "0s", [-5, 3600]), ("mode: merge, key: [id]", "10m", [300, 3600])] {
        for index in 0..3 {
            let lab = Lab::new();
            let place = Place::all(&lab).into_iter().nth(index).expect("one of three");
            place.job(&lab, lag, mode);
            place.add(1, 5);
            lab.report(&[]);
            place.add(2, 0);
            seconds(1.1);
            // Within the lag nothing can be missed.
            move_mark(&lab, moves[0]);
            if mode.contains("merge") {
                lab.report(&[]);
                assert_eq!(ids(&lab), ["1", "2"]);
            }
            move_mark(&lab, moves[1]);
            lab.run(&["run", "job.yaml"]).ended(1).says(&[
                "the clock of the database went back: it shows 20",
                "would not read",
                "hint: set the clock right",
            ]);
        }
    }
}

#[test]
fn columns_without_a_zone_are_in_that_of_the_server() {
    let mut server = MariaDb::start(MariaDbOptions::default());
    server.restart_with("--default-time-zone=-05:00");
    let mariadb = server.database();
    let postgres = Postgres::shared().database();
    Postgres::shared().query(&postgres, &format!("ALTER DATABASE \"{postgres}\" SET TimeZone = 'America/New_York'"));
    let ask = |kind: &str, sql: &str| match kind {
        "mysql" => server.query(&mariadb, sql),
        _ => Postgres::shared().query(&postgres, sql),
    };
    for (kind, url, column) in [
        ("mysql", server.url(&mariadb), "DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6)"),
        ("postgres", Postgres::shared().url(&postgres), "timestamp DEFAULT localtimestamp"),
    ] {
        let lab = Lab::with_job(&format!(
            "sources:\n  orders: {{read: '{url}', {kind}: {{table: orders}}, incremental: {{by: at, lag: \
             0s}}}}\nsinks:\n  o: {{from: orders, write: 'sqlite:out.db', table: t}}\n"
        ));
        ask(kind, &format!("CREATE TABLE orders (id INT, at {column})"));
        for id in 1..=3 {
            ask(kind, &format!("INSERT INTO orders (id) VALUES ({id})"));
            seconds(1.1);
            let report = lab.report(&[]);
            let expected: Vec<String> = (1..=id).map(|id| id.to_string()).collect();
            assert_eq!(ids(&lab), expected, "{kind}: {report:#}");
            let hour = window(&report, "mark").as_str().expect("a time")[..13].replace('T', " ");
            let shown = ask(kind, "SELECT MAX(at) FROM orders").concat();
            assert!(shown.starts_with(&hour) || shown[14..16] == *"59", "{shown} is in the hour of {report:#}");
        }
    }
}

#[test]
fn marks_are_of_a_column_and_a_table() {
    let lab = Lab::new();
    let [_, place, _] = Place::all(&lab);
    place.target.query("ALTER TABLE orders ADD other timestamptz DEFAULT now()");
    place.job(&lab, "0s", "mode: append");
    let add = |id| {
        place.target.query(&format!("INSERT INTO orders (id, name, updated_at) VALUES ({id}, 'x', {})", place.ago(0)));
        seconds(1.1);
    };
    add(1);
    lab.report(&[]);
    let job = lab.read("job.yaml");
    lab.file("job.yaml", job.replace("by: updated_at", "by: other"));
    lab.run(&["run", "job.yaml"]).ended(1).says(&[
        "the loaded rows of `orders` were found by the time in another column",
        "hint: change `by` and `table` back",
    ]);
    lab.file("job.yaml", job);
    add(2);
    lab.report(&[]);
    assert_eq!(ids(&lab), ["1", "2"]);
    // As with files, everything can be read again.
    let report = lab.report(&["--restart"]);
    assert_eq!(window(&report, "from"), &Value::Null);
    assert_eq!(ids(&lab), ["1", "1", "2", "2"]);
}

#[test]
fn a_query_that_has_changed_is_noticed() {
    for index in 0..3 {
        let lab = Lab::new();
        let place = Place::all(&lab).into_iter().nth(index).expect("one of three");
        place.job(&lab, "0s", "mode: append");
        let base = lab.read("job.yaml");
        let query = |text: &str| lab.file("job.yaml", base.replace("table: orders}", &format!("query: \"{text}\"}}")));
        let add = |id| {
            place.add(id, 0);
            seconds(1.1);
        };
        query("SELECT id, updated_at FROM orders WHERE id < 100");
        [1, 200].into_iter().for_each(add);
        lab.report(&[]);
        // Another layout is the same query.
        query("select id,  updated_at from orders where id<100;");
        add(2);
        lab.report(&[]);
        // Row 200 is before the mark: it would never be read.
        query("SELECT id, updated_at FROM orders");
        lab.run(&["run", "job.yaml"]).ended(1).says(&[
            "the `query` of `orders` has changed since its rows were loaded",
            "rows up to 20",
            "`--accept-changed` continues from there",
            "`--restart` reads all rows again",
        ]);
        assert_eq!(ids(&lab), ["1", "2"], "{}", place.kind);
        // Accepted once, it is the query from then on.
        query("SELECT id, updated_at, 7 AS n FROM orders WHERE id < 100");
        let job = lab.read("job.yaml").replace("from: orders", "from: t");
        let job =
            job.replace("sinks:", "transforms:\n  t: {select: {from: orders, columns: [id, updated_at]}}\nsinks:");
        lab.file("job.yaml", job);
        add(3);
        lab.run(&["run", "job.yaml"]).ended(1);
        lab.report(&["--accept-changed"]);
        assert_eq!(ids(&lab), ["1", "2", "3"], "{}", place.kind);
        add(4);
        lab.report(&[]);
        assert_eq!(ids(&lab), ["1", "2", "3", "4"], "{}", place.kind);
        let notes = sqlite(&lab.path("out.db"), "SELECT COUNT(*) FROM _millstream_ledger WHERE chunk >= 0");
        assert_eq!(notes, [["3"]], "{}", place.kind);
        query("SELECT id, updated_at FROM orders WHERE id < 100");
        lab.run(&["run", "job.yaml"]).ended(1).says(&["the `query` of `orders` has changed"]);
    }
}

#[test]
fn dates_in_a_query_do_not_change_it() {
    let lab = Lab::new();
    let [_, place, _] = Place::all(&lab);
    place.job(&lab, "0s", "mode: append");
    let query = "query: \"SELECT id, updated_at FROM orders WHERE updated_at >= '${today - 7 day}' AND id < ${MOST}\"}";
    lab.file("job.yaml", lab.read("job.yaml").replace("table: orders}", query));
    let run = |now: u64, most: &str| {
        let mut command = lab.command(&["run", "job.yaml"]);
        command.env("MILLSTREAM_NOW", now.to_string()).env("MOST", most);
        crate::use_support::finish(command, None)
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_millis() as u64;
    place.add(1, 0);
    seconds(1.1);
    run(now, "100").ok();
    place.add(2, 0);
    seconds(1.1);
    run(now + 86_400_000, "100").ok();
    assert_eq!(ids(&lab), ["1", "2"]);
    run(now + 86_400_000, "200").ended(1).says(&["the `query` of `orders` has changed"]);
}

#[test]
fn marks_of_earlier_versions_have_no_query_and_get_one() {
    let lab = Lab::new();
    let [_, place, _] = Place::all(&lab);
    place.job(&lab, "0s", "mode: append");
    let job = lab.read("job.yaml");
    let query = |text: &str| lab.file("job.yaml", job.replace("table: orders}", &format!("query: \"{text}\"}}")));
    query("SELECT * FROM orders");
    let add = |id| {
        place.add(id, 0);
        seconds(1.1);
    };
    add(1);
    lab.report(&[]);
    let notes = "_millstream_ledger WHERE chunk >= 0";
    let of_query = crate::use_upgrade::digest("\nmark orders\nselected");
    sqlite(&lab.path("out.db"), &format!("DELETE FROM {notes} AND unit_key = '{of_query}'"));
    let count = || sqlite(&lab.path("out.db"), &format!("SELECT COUNT(*) FROM {notes}")).concat();
    assert_eq!(count(), ["2"]);
    query("SELECT * FROM orders WHERE id > 0");
    add(2);
    lab.report(&[]);
    assert_eq!((ids(&lab), count()), (vec!["1".to_owned(), "2".to_owned()], vec!["3".to_owned()]));
    query("SELECT * FROM orders");
    lab.run(&["run", "job.yaml"]).ended(1).says(&["the `query` of `orders` has changed"]);
}

#[test]
fn the_first_run_reads_in_parts_and_later_ones_a_window() {
    for index in 0..2 {
        let lab = Lab::new();
        let place = Place::all(&lab).into_iter().nth(index).expect("one of three");
        let series = match place.kind {
            "mysql" => "SELECT seq, 'x', NOW(6) - INTERVAL 60 SECOND FROM seq_1_to_50000",
            _ => "SELECT n, 'x', now() - interval '60 seconds' FROM generate_series(1, 50000) n",
        };
        place.target.query(&format!("INSERT INTO orders {series}"));
        place.job(&lab, "0s", "mode: append");
        let fetched = |report: &Value| {
            let steps = report["steps"].as_array().expect("steps");
            let fetch = steps.iter().find(|step| step["name"] == "orders" && step["kind"] == "fetch");
            fetch.expect("it fetches")["units"].as_u64().expect("a number")
        };
        let report = lab.report(&[]);
        assert!(fetched(&report) > 1, "{report:#}");
        let count = || sqlite(&lab.path("out.db"), "SELECT COUNT(*), COUNT(DISTINCT id) FROM t").concat();
        assert_eq!(count(), ["50000", "50000"]);
        place.add(60_000, 0);
        seconds(1.1);
        let report = lab.report(&[]);
        assert_eq!((fetched(&report), &report["rows_read"]), (1, &1.into()), "{report:#}");
        assert_eq!(count(), ["50001", "50001"]);
    }
}

#[test]
fn what_a_job_may_not_say_is_found_before_it_runs() {
    let database = "read: 'postgres://u@h/d', postgres: {table: t}";
    let table = "write: 'sqlite:out.db', table: t";
    let by = "incremental: {by: at}";
    let cases = [
        (format!("read: 'in/*.csv', {by}"), table.to_owned(), "is for databases, and this source reads something else"),
        (
            format!("read: ['postgres://u@h/d', 'postgres://u@h/e'], postgres: {{table: t}}, {by}"),
            table.to_owned(),
            "is for one database, and this source reads several",
        ),
        (format!("{database}, {by}, on_change: skip"), table.to_owned(), "`on_change` is for files"),
        (format!("{database}, incremental: {{by: at, lag: soon}}"), table.to_owned(), "lag"),
        (format!("{database}, incremental: {{column: at}}"), table.to_owned(), "column"),
        (format!("{database}, incremental: true"), table.to_owned(), "name the column that has the time"),
        (format!("{database}, {by}"), "write: out.csv".to_owned(), "cannot note which of its rows it has"),
        (format!("{database}, {by}"), "write: '-'".to_owned(), "cannot note which of its rows it has"),
        (
            format!("{database}, {by}"),
            "write: 'lake/{value}.csv', mode: partitions, split: day".to_owned(),
            "or into files with `mode: append`",
        ),
        (format!("{database}, {by}"), format!("{table}, mode: truncate"), "cannot note which of its rows it has"),
        (
            format!("{database}, {by}"),
            format!("{table}, mode: sync, key: [id], missing: delete"),
            "`mode: sync` of `o` needs all rows in each run, and `s` is incremental: it gives only new ones",
        ),
        (
            "read: 'in/*.csv', incremental: true".to_owned(),
            format!("{table}, mode: sync, key: [id], missing: delete"),
            "`mode: merge` takes new and changed rows only, and removes none",
        ),
        (
            "read: 'in/*.csv', incremental: true".to_owned(),
            format!("{table}, mode: history, key: [id], missing: keep"),
            "`mode: history` of `o` needs all rows in each run",
        ),
    ];
    for (source, sink, says) in cases {
        let lab = Lab::with_job(&format!("sources:\n  s: {{{source}}}\nsinks:\n  o: {{from: s, {sink}}}\n"));
        lab.run(&["check", "--offline", "job.yaml"]).ended(2).says(&[says]);
    }
    let mut both = format!("sources:\n  s: {{{database}, {by}}}\nsinks:\n  a: {{from: s, {table}}}\n");
    let _ = writeln!(both, "  m: {{from: s, write: 'sqlite:m.db', table: t, mode: merge, key: [id]}}");
    Lab::with_job(&both)
        .run(&["check", "--offline", "job.yaml"])
        .ended(2)
        .says(&["its rows are appended by `a` and merged by `m`", "by two sources"]);
}

#[test]
fn rows_are_joined_and_looked_up_but_not_combined() {
    let lab = Lab::new();
    let [_, place, _] = Place::all(&lab);
    lab.file("names.csv", "id,kind\n1,a\n2,b\n3,c\n");
    let job = |transform: &str| {
        lab.file(
            "job.yaml",
            format!(
                "sources:\n{}  names: {{read: names.csv}}\ntransforms:\n  t: {transform}\nsinks:\n  o: {{from: t, \
                 write: 'sqlite:out.db', table: t}}\n",
                place.source("0s")
            ),
        );
    };
    job("{sql: 'SELECT count(*) AS n FROM orders'}");
    place.add(1, 5);
    lab.run(&["run", "job.yaml"]).ended(2).says(&["`orders` is incremental", "an aggregate would combine"]);
    job("{sql: 'SELECT o.id, n.kind FROM orders o JOIN names n ON o.id = n.id'}");
    seconds(1.1);
    lab.report(&[]);
    place.add(2, 0);
    job("{sql: 'SELECT id, kind FROM l'}\n  l: {lookup: {from: orders, in: names, on: {id: id}, take: {kind: kind}}}");
    seconds(1.1);
    lab.report(&[]);
    assert_eq!(sqlite(&lab.path("out.db"), "SELECT id, kind FROM t ORDER BY id"), [["1", "a"], ["2", "b"]]);
}

#[test]
fn a_table_that_is_not_there_yet_is_read_once_it_is() {
    let lab = Lab::new();
    let [_, postgres] = Database::both();
    lab.file(
        "job.yaml",
        format!(
            "sources:\n  s: {{read: '{}', postgres: {{table: later, if_missing: empty, columns: {{id: int64, at: \
             timestamptz}}}}, incremental: {{by: at, lag: 0s}}}}\nsinks:\n  o: {{from: s, write: 'sqlite:out.db', \
             table: t}}\n",
            postgres.url
        ),
    );
    let report = lab.report(&[]);
    assert_eq!(report["nothing_new"], true, "{report:#}");
    postgres.query("CREATE TABLE later AS SELECT 7::bigint AS id, now() - interval '1 day' AS at");
    lab.report(&[]);
    assert_eq!(ids(&lab), ["7"]);
}
