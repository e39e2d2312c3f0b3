//! Incremental sources whose sinks load all at once: each file goes once into each sink, whatever dies in between.

mod by;
mod files;
mod replay;
mod set_values;

use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use millstream_testkit::Nginx;
use serde_json::{Value, json};

use crate::use_databases::Database;
use crate::use_support::{Lab, Ran, csv_rows, finish, names, sqlite};

/// Places of customers, with their orders in files.
fn lab(transforms: &str, sinks: &str) -> Lab {
    let lab = Lab::with_job(&format!(
        "sources:\n  orders: {{read: 'in/*.csv', csv: {{columns: {{id: int64, customer: int64}}}}, incremental: \
         true}}\n  customers: {{read: customers.csv, csv: {{columns: {{customer: int64, segment: \
         utf8}}}}}}\n{transforms}sinks:\n{sinks}"
    ));
    lab.file("customers.csv", "customer,segment\n0,small\n1,large\n2,small\n");
    lab
}

const JOINED: &str = "transforms:\n  t: {sql: 'SELECT o.id, c.segment FROM orders AS o JOIN customers AS c ON \
                      o.customer = c.customer'}\n";

/// A file of a hundred orders.
fn orders(lab: &Lab, file: usize) {
    let text = (file * 100..(file + 1) * 100).fold("id,customer\n".to_owned(), |mut text, id| {
        let _ = writeln!(text, "{id},{}", id % 3);
        text
    });
    lab.file(&format!("in/{file}.csv"), text);
}

fn run(lab: &Lab, fail_point: &str) -> Ran {
    let mut command = lab.command(&["run", "job.yaml", "--json"]);
    command.env("MILLSTREAM_FAIL_AT", fail_point);
    finish(command, None)
}

/// Runs the job until it is killed at `fail_point`.
#[track_caller]
fn killed(lab: &Lab, fail_point: &str) {
    lab.killed(fail_point);
}

#[test]
fn files_are_joined_and_loaded_once_in_each_mode() {
    for mode in ["append", "merge, key: [id]", "ignore, key: [id]"] {
        let [mariadb, postgres] = Database::both();
        for database in [Some(&mariadb), Some(&postgres), None] {
            let url = database.map_or("sqlite:out.db".to_owned(), |database| database.url.clone());
            let sink = format!("  o: {{from: t, write: '{url}', table: t, mode: {mode}}}\n");
            let lab = lab(JOINED, &sink);
            let count = || match database {
                Some(database) => database.query("SELECT COUNT(*), COUNT(DISTINCT id) FROM t").concat(),
                None => sqlite(&lab.path("out.db"), "SELECT COUNT(*), COUNT(DISTINCT id) FROM t")[0].join("\t"),
            };
            orders(&lab, 0);
            orders(&lab, 1);
            let first = run(&lab, "none");
            first.ok();
            assert_eq!(count(), "200\t200", "{mode} {url}");
            orders(&lab, 2);
            let second = run(&lab, "none");
            let report = second.ok().json();
            assert_eq!(report["units_loaded_before"], 2, "{report:#}");
            assert_eq!(report["rows_written"], 100, "{report:#}");
            assert_eq!(count(), "300\t300", "{mode} {url}");
            let third = run(&lab, "none").ok().json();
            assert_eq!((&third["nothing_new"], &third["rows_written"]), (&true.into(), &0.into()), "{third:#}");
            // A run that dies at any moment is followed by one that loads what is missing.
            for fail_point in ["loading.before", "publish.before", "publish.after", "forget.before"] {
                let file = 3 + ["loading.before", "publish.before", "publish.after", "forget.before"]
                    .iter()
                    .position(|one| *one == fail_point)
                    .expect("one of them");
                orders(&lab, file);
                killed(&lab, fail_point);
                run(&lab, "none").ok();
                let rows = (file + 1) * 100;
                assert_eq!(count(), format!("{rows}\t{rows}"), "{mode} {url} {fail_point}");
            }
        }
    }
}

#[test]
fn sinks_that_lack_files_get_these_first() {
    let [mariadb, postgres] = Database::both();
    let sinks = format!(
        "  a: {{from: t, write: '{}', table: a}}\n  b: {{from: t, write: '{}', table: b, mode: merge, key: [id]}}\n  \
         c: {{from: orders, write: 'sqlite:c.db', table: c, atomic: true}}\n",
        mariadb.url, postgres.url
    );
    let lab = lab(JOINED, &sinks);
    let counts = |lab: &Lab| {
        let of = |database: &Database, table: &str| {
            database.query(&format!("SELECT COUNT(*), COUNT(DISTINCT id) FROM {table}")).concat()
        };
        let c = match lab.path("c.db").exists() {
            true => sqlite(&lab.path("c.db"), "SELECT COUNT(*), COUNT(DISTINCT id) FROM c")[0].join("\t"),
            false => String::new(),
        };
        [of(&mariadb, "a"), of(&postgres, "b"), c]
    };
    let all = |rows: usize| [(); 3].map(|()| format!("{rows}\t{rows}"));
    orders(&lab, 0);
    run(&lab, "none").ok();
    assert_eq!(counts(&lab), all(100));
    // The first sink has its rows, then the process dies; then the second.
    for (round, times) in [1, 2].into_iter().enumerate() {
        orders(&lab, 1 + round);
        killed(&lab, &format!("publish.next:{times}"));
        let before = (1 + round) * 100;
        let committed = counts(&lab);
        let differs = committed.iter().filter(|count| **count != format!("{before}\t{before}")).count();
        assert_eq!(differs, times, "{committed:?}");
        orders(&lab, 10 + round);
        let report = run(&lab, "none").ok().json();
        // Those that lack the file before get it first; then the new file goes into all three.
        assert_eq!(report["rows_written"], (3 - times) * 100 + 300, "{report:#}");
        fs_err::remove_file(lab.path(&format!("in/{}.csv", 10 + round))).expect("it is there");
        mariadb.query("DELETE FROM a WHERE id >= 1000");
        postgres.query("DELETE FROM b WHERE id >= 1000");
        sqlite(&lab.path("c.db"), "DELETE FROM c WHERE id >= 1000");
        assert_eq!(counts(&lab), all(before + 100), "{times}");
    }
    // A sink that is new gets all files that are still there.
    let job = lab.read("job.yaml");
    lab.file("job.yaml", job + "  d: {from: t, write: 'sqlite:d.db', table: d, mode: ignore, key: [id]}\n");
    run(&lab, "none").ok();
    assert_eq!(counts(&lab), all(300));
    assert_eq!(sqlite(&lab.path("d.db"), "SELECT COUNT(*) FROM d"), [["300"]]);
}

#[test]
fn what_would_combine_files_of_several_runs_is_refused() {
    let cases = [
        ("SELECT customer, count(*) AS n FROM orders GROUP BY customer", "an aggregate would combine"),
        ("SELECT id FROM orders ORDER BY id LIMIT 5", "a limit would count"),
        ("SELECT id, row_number() OVER (ORDER BY id) AS n FROM orders", "a window would look at"),
        ("SELECT DISTINCT customer FROM orders", "an aggregate would combine"),
        ("SELECT a.id FROM orders AS a JOIN orders AS b ON a.id = b.customer", "a join of two incremental sources"),
        ("SELECT c.segment, o.id FROM customers AS c LEFT JOIN orders AS o ON o.customer = c.customer", "come again"),
        ("SELECT id, 1 AS c FROM orders UNION ALL SELECT customer, 2 FROM customers", "not incremental"),
    ];
    for (sql, why) in cases {
        let transforms = format!("transforms:\n  t: {{sql: \"{sql}\"}}\n");
        let sink = "  o: {from: t, write: 'sqlite:out.db', table: t}\n";
        let lab = lab(&transforms, sink);
        orders(&lab, 0);
        lab.run(&["run", "job.yaml"]).ended(2).says(&["`orders` is incremental", why]);
        assert!(!lab.path("out.db").exists(), "{sql}");
    }
    // What keeps its rows whatever other files there are.
    let allowed = [
        "SELECT o.id, c.segment FROM orders AS o LEFT JOIN customers AS c ON o.customer = c.customer",
        "SELECT o.id FROM orders AS o WHERE o.customer IN (SELECT customer FROM customers WHERE segment = 'small')",
        "SELECT o.id, c.segment FROM orders AS o, customers AS c WHERE c.customer = 1",
        "SELECT o.id, c.n FROM orders AS o CROSS JOIN (SELECT count(*) AS n FROM customers) AS c ORDER BY o.id",
    ];
    for sql in allowed {
        let transforms = format!("transforms:\n  t: {{sql: \"{sql}\"}}\n");
        let lab = lab(&transforms, "  o: {from: t, write: 'sqlite:out.db', table: t}\n");
        orders(&lab, 0);
        run(&lab, "none").ok();
        orders(&lab, 1);
        run(&lab, "none").ok();
        let ids = sqlite(&lab.path("out.db"), "SELECT COUNT(*) - COUNT(DISTINCT id), MAX(id) > 100 FROM t");
        assert_eq!(ids, [["0", "1"]], "{sql}");
    }
}

#[test]
fn files_that_changed_or_were_begun_are_told_before_anything_is_loaded() {
    let sink = "  o: {from: t, write: 'sqlite:out.db', table: t}\n";
    let lab = lab(JOINED, sink);
    orders(&lab, 0);
    run(&lab, "none").ok();
    orders(&lab, 1);
    lab.file("in/0.csv", "id,customer\n7,1\n");
    let changed = lab.run(&["run", "job.yaml"]);
    changed.ended(1).says(&["a file has changed since it was loaded", "in/0.csv", "nothing is loaded"]);
    let count = || sqlite(&lab.path("out.db"), "SELECT COUNT(*) FROM t")[0][0].clone();
    assert_eq!(count(), "100");
    lab.run(&["run", "job.yaml", "--accept-changed"]).ok();
    assert_eq!(count(), "201");
    lab.run(&["run", "job.yaml"]).ok();
    assert_eq!(count(), "201");
    // Chunk by chunk, everything else is loaded, and there is no rest.
    let by_chunk = self::lab("", "  o: {from: orders, write: 'sqlite:out.db', table: t}\n");
    by_chunk.file("in/0.csv", "id,customer\n1,1\n");
    run(&by_chunk, "none").ok();
    by_chunk.file("in/0.csv", "id,customer\n1,1\n2,2\n");
    by_chunk.file("in/1.csv", "id,customer\n3,0\n");
    let changed = by_chunk.run(&["run", "job.yaml"]);
    changed.ended(1).says(&["hint: everything else is loaded; `--accept-changed` loads them as they are now"]);
    assert!(!changed.stderr.contains("--resume"), "{}", changed.stderr);
    assert_eq!(sqlite(&by_chunk.path("out.db"), "SELECT id FROM t ORDER BY id"), [["1"], ["3"]]);
    // Of a load chunk by chunk that died, the rest is not loaded all at once.
    let begun = self::lab("", "  o: {from: orders, write: 'sqlite:out.db', table: t}\n");
    let text = (0..2_000).fold("id,customer\n".to_owned(), |text, id| text + &format!("{id},1\n"));
    begun.file("in/0.csv", text);
    let mut command = begun.command(&["run", "job.yaml"]);
    command.env("MILLSTREAM_CHUNK_BYTES", "200").env("MILLSTREAM_FAIL_AT", "commit.after:1").stderr(Stdio::null());
    assert!(command.status().expect("it starts").signal().is_some());
    let job = begun.read("job.yaml");
    begun.file("job.yaml", job.replace("table: t", "table: t, atomic: true"));
    begun.run(&["run", "job.yaml"]).ended(1).says(&["has loaded a part of this file chunk by chunk", "in/0.csv"]);
    // As it was, the job loads the rest.
    begun.file("job.yaml", job);
    let mut command = begun.command(&["run", "job.yaml"]);
    command.env("MILLSTREAM_CHUNK_BYTES", "200");
    finish(command, None).ok();
    assert_eq!(sqlite(&begun.path("out.db"), "SELECT COUNT(*) FROM t"), [["2000"]]);
}

#[test]
fn what_is_skipped_or_fails_a_check_is_left_to_a_later_run() {
    let sink = "  o: {from: t, write: 'sqlite:out.db', table: t, checks: [{rows: {max: 150}}]}\n  f: {from: customers, \
                write: out.csv}\n";
    let lab = lab(JOINED, sink);
    (0..2).for_each(|file| orders(&lab, file));
    lab.run(&["run", "job.yaml"]).ended(1).says(&["200 rows, and at most 150 are allowed"]);
    fs_err::rename(lab.path("in/1.csv"), lab.path("1.csv")).expect("it is there");
    let nginx = Nginx::start(&lab.path("in"));
    let job = lab.read("job.yaml").replace("'in/*.csv'", "'@list.txt'");
    lab.file("job.yaml", job.replace("incremental: true", "incremental: true, on_error: skip"));
    lab.file("list.txt", format!("{}\n{}\n", nginx.url("0.csv"), nginx.url("1.csv")));
    let report = run(&lab, "none").ok().json();
    assert_eq!(report["units_skipped"], 1, "{report:#}");
    assert_eq!(sqlite(&lab.path("out.db"), "SELECT COUNT(*) FROM t"), [["100"]]);
    // The one that was not there then is loaded when it is.
    fs_err::rename(lab.path("1.csv"), lab.path("in/1.csv")).expect("it is there");
    run(&lab, "none").ok();
    assert_eq!(sqlite(&lab.path("out.db"), "SELECT COUNT(*), COUNT(DISTINCT id) FROM t"), [["200", "200"]]);
    assert_eq!(csv_rows(&lab.read("out.csv")).len(), 3);
}

#[test]
fn a_pass_that_catches_up_reads_only_what_goes_into_sinks_that_lack_files() {
    let sinks = "  a: {from: t, write: 'sqlite:a.db', table: t}\n  b: {from: u, write: 'sqlite:b.db', table: t}\n  c: \
                 {from: notes, write: c.csv}\n  d: {from: input, write: d.csv}\n";
    let lab = lab(&format!("{JOINED}  u: {{sql: 'SELECT id FROM orders'}}\n"), sinks);
    let more = "  notes: {read: notes.csv, csv: {columns: {n: int64}}, max_rejects: 5, checks: [{not_null: [n]}]}\n  \
                input: {read: '-', csv: {columns: {n: int64}}}\n";
    let job = lab.read("job.yaml").replace("csv: {columns: {id", "checks: [{not_null: [id]}], csv: {columns: {id");
    lab.file("job.yaml", job.replace("  customers:", &format!("{more}  customers:")));
    lab.file("notes.csv", "n\n1\nx\n2\n");
    let run = |fail_point: &str| {
        let mut command = lab.command(&["run", "job.yaml", "--json"]);
        command.env("MILLSTREAM_FAIL_AT", fail_point);
        finish(command, Some(b"n\n7\n8\n".to_vec()))
    };
    orders(&lab, 0);
    run("none").ok();
    orders(&lab, 1);
    assert!(![0, 1, 2].contains(&run("publish.next:1").code));
    orders(&lab, 2);
    let report = run("none").ok().json();
    // A hundred of them are those of the pass that caught up.
    assert_eq!(report["rows_written"], 304, "{report:#}");
    for name in ["a.db", "b.db"] {
        let counts = sqlite(&lab.path(name), "SELECT COUNT(*), COUNT(DISTINCT id) FROM t");
        assert_eq!(counts, [["300", "300"]], "{name}");
    }
    assert_eq!((csv_rows(&lab.read("c.csv")).len(), csv_rows(&lab.read("d.csv")).len()), (2, 2));
    // The pass that caught up was a run of its own.
    let runs = lab.run(&["runs", "--json"]).ok().json();
    let pass =
        lab.run(&["runs", runs["runs"][1]["run"].as_str().expect("a name"), "--json"]).ok().json()["run"].clone();
    assert_eq!(pass["report"]["caught_up"], true, "{pass:#}");
    let report = &pass["report"];
    assert_eq!((&report["rows_read"], &report["rows_rejected"]), (&100.into(), &0.into()), "{report:#}");
    let loaded: Vec<&str> =
        report["results"].as_array().expect("a list").iter().flat_map(|one| one["sink"].as_str()).collect();
    assert_eq!(loaded, ["b"], "{report:#}");
    let judged = report["checks"].as_array().expect("a list");
    assert_eq!(
        (judged.len(), &judged[0]["entry"], &judged[0]["rows"]),
        (1, &"orders".into(), &100.into()),
        "{report:#}"
    );
    let steps = report["steps"].as_array().expect("a list");
    let loads: Vec<&Value> = steps.iter().filter(|step| step["kind"] == "load").collect();
    assert_eq!((loads.len(), &loads[0]["name"]), (1, &"b".into()), "{report:#}");
}

#[test]
fn a_pass_that_catches_up_is_no_measure_of_how_many_rows_there_are() {
    let sinks = "  a: {from: t, write: 'sqlite:a.db', table: t, checks: [{rows: {min: 150, change: 10%}}, {not_null: \
                 [id]}]}\n  b: {from: t, write: 'sqlite:b.db', table: t}\n";
    let lab = lab(JOINED, sinks);
    let counts = || ["a.db", "b.db"].map(|name| sqlite(&lab.path(name), "SELECT COUNT(*) FROM t")[0][0].clone());
    (0..2).for_each(|file| orders(&lab, file));
    run(&lab, "none").ok();
    (2..4).for_each(|file| orders(&lab, file));
    killed(&lab, "publish.next:1");
    assert_eq!(counts(), ["400", "200"]);
    // One file remains to catch up with: fewer rows than `min`, and half of those of the run before.
    fs_err::remove_file(lab.path("in/3.csv")).expect("it is there");
    (4..6).for_each(|file| orders(&lab, file));
    let report = run(&lab, "none").ok().json();
    assert_eq!(report["rows_written"], 100 + 400, "one file into one sink, then two into both: {report:#}");
    assert_eq!(report["checks"].as_array().map(Vec::len), Some(2), "{report:#}");
    assert_eq!(counts(), ["600", "500"]);
    // Without new files there are no rows to judge.
    let report = run(&lab, "none").ok().json();
    assert_eq!((&report["nothing_new"], &report["checks"]), (&json!(true), &json!([])), "{report:#}");
    // A whole pass is judged.
    orders(&lab, 6);
    lab.run(&["run", "job.yaml"]).ended(1).says(&["100 rows, and at least 150 are required"]);
    assert_eq!(counts(), ["600", "500"]);
}

/// What a pass that catches up has read, rejected and checked is in the report of its command.
#[test]
fn a_command_reports_what_all_its_passes_have_done() {
    let more = "incremental: true, max_rejects: 50%, checks: [{rows: {min: 1}}, {not_null: customer, severity: warn, \
                at_most: 90%}, {range: {id: {max: 1000}}, severity: reject}]";
    let lab = lab(JOINED, "  a: {from: t, write: 'sqlite:a.db', table: t}\n");
    lab.file("job.yaml", lab.read("job.yaml").replace("incremental: true", more));
    lab.file("in/0.csv", "id,customer\n1,1\n2,2\nx,1\n3,\n4,1\n");
    let count = |name: &str| sqlite(&lab.path(name), "SELECT COUNT(*), COUNT(DISTINCT id) FROM t")[0].join("\t");
    let of_check = |report: &Value, index: usize| {
        let check = &report["checks"][index];
        format!("{} {}", check["check"].as_str().unwrap_or_default(), check["what"].as_str().unwrap_or_default())
    };
    lab.run(&["run", "job.yaml"]).ok();
    // A sink is new: all that the command has done is to let it catch up.
    let job = lab.read("job.yaml") + "  b: {from: t, write: 'sqlite:b.db', table: t}\n";
    lab.file("job.yaml", format!("on_success: [{{command: [sh, -c, 'cat > told.json']}}]\n{job}"));
    let ran = lab.run(&["run", "job.yaml"]);
    // The three customers are read by each pass.
    ran.ok().says(&["11 rows read, 3 written, 1 rejected", "first loaded what some sinks had and others lacked"]);
    ran.says(&["a: 0 rows added to table t", "b: 3 rows added to table t", "what was rejected: millstream rejects"]);
    assert!(!ran.stdout.contains("nothing new") && !ran.stdout.contains("loaded before"), "{}", ran.stdout);
    assert!(!ran.stderr.contains("nothing new") && !ran.stderr.contains("loaded before"), "{}", ran.stderr);
    let report: Value = serde_json::from_str(&lab.read("told.json")).expect("a report");
    assert_eq!((&report["nothing_new"], &report["rows_rejected"]), (&json!(false), &json!(1)), "{report:#}");
    assert_eq!(of_check(&report, 0), "not_null: customer 1 of 4 rows (25.00%)");
    let last = lab.run(&["rejects", "last", "--json"]).ok().json();
    assert_eq!((&last["run"], &last["rejects"][0]["line"]), (&report["rejects"], &json!(4)), "{last:#}");
    // A sink lacks a file since the run was killed, and another file comes: rejects of both.
    lab.file("in/1.csv", "id,customer\n11,1\n12,\ny,1\n1001,1\n");
    killed(&lab, "publish.next:1");
    assert_eq!((count("a.db"), count("b.db")), ("4\t4".to_owned(), "3\t3".to_owned()));
    lab.file("in/2.csv", "id,customer\n21,1\n22,1\nz,1\n");
    let report = run(&lab, "none").ok().json();
    assert_eq!((count("a.db"), count("b.db")), ("6\t6".to_owned(), "6\t6".to_owned()));
    let counts = ["rows_read", "rows_written", "rows_rejected"].map(|key| report[key].as_u64().unwrap_or_default());
    assert_eq!(counts, [4 + 3 + 3 + 3, 1 + 4, 2 + 1], "{report:#}");
    assert_eq!((&report["units_loaded_before"], &report["nothing_new"]), (&json!(1), &json!(false)), "{report:#}");
    let summaries: Vec<&str> =
        report["results"].as_array().expect("a list").iter().flat_map(|result| result["summary"].as_str()).collect();
    let of_b = "1 row added to table t of b.db; then 2 rows added to table t of b.db";
    assert_eq!(summaries, ["2 rows added to table t of a.db", of_b], "{report:#}");
    // How many rows there are is judged of the second pass alone.
    let checks = [0, 1, 2].map(|index| of_check(&report, index));
    let expected = ["rows 2 rows", "not_null: customer 1 of 4 rows (25.00%)", "range: id 1 of 5 rows (20.00%)"];
    assert_eq!(checks, expected, "{report:#}");
    let last = lab.run(&["rejects", "last", "--json"]).ok().json();
    let rejects = last["rejects"].as_array().expect("a list");
    // Of a row that a check has rejected the file is not known where all is loaded at once.
    let files: Vec<&str> = rejects.iter().map(|one| one["uri"].as_str().unwrap_or_default()).collect();
    assert_eq!((files, &last["run"]), (vec!["in/1.csv", "", "in/2.csv"], &report["rejects"]), "{last:#}");
}

/// What a pass that catches up has rejected goes only into the sinks that have caught up.
#[test]
fn rejects_of_all_passes_of_a_command_are_loaded_again() {
    let texts = "transforms:\n  t: {sql: 'SELECT id, CAST(customer AS text) AS customer FROM orders'}\n";
    let sink = |name: &str| format!("  {name}: {{from: t, write: 'sqlite:{name}.db', table: t, atomic: true}}\n");
    let lab = lab(texts, &sink("a"));
    let job = lab.read("job.yaml").replace("incremental: true", "incremental: true, max_rejects: 5");
    lab.file("job.yaml", &job);
    lab.file("in/0.csv", "id,customer\n1,1\n2,x\n");
    lab.run(&["run", "job.yaml"]).ok();
    lab.file("job.yaml", job + &sink("b"));
    lab.file("in/1.csv", "id,customer\n3,1\n4,x\n");
    lab.run(&["run", "job.yaml"]).ok().says(&["2 rejected"]);
    lab.file("job.yaml", lab.read("job.yaml").replace("id: int64, customer: int64", "id: int64, customer: utf8"));
    let replayed = lab.run(&["rejects", "last", "--replay"]);
    assert!(replayed.ok().stdout.starts_with("2 rejects of run"), "{}", replayed.stdout);
    let of = |name: &str| {
        let rows = sqlite(&lab.path(name), "SELECT id FROM t ORDER BY id");
        rows.into_iter().map(|row| row.concat()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!((of("a.db").as_str(), of("b.db").as_str()), ("1 3 4", "1 2 3 4"));
    let last = lab.run(&["rejects", "last"]);
    assert!(last.ok().stdout.contains("rejected nothing; 2 more were loaded later"), "{}", last.stdout);
}

#[test]
fn a_failed_check_says_whether_sinks_have_caught_up() {
    let sinks = "  a: {from: t, write: 'sqlite:a.db', table: t}\n  b: {from: t, write: 'sqlite:b.db', table: t}\n";
    let lab = lab(JOINED, sinks);
    let count = |name: &str| sqlite(&lab.path(name), "SELECT COUNT(*) FROM t")[0][0].clone();
    let more = "incremental: true, checks: [{not_null: customer}]";
    lab.file("job.yaml", lab.read("job.yaml").replace("incremental: true", more));
    orders(&lab, 0);
    killed(&lab, "publish.next:1");
    lab.file("in/1.csv", "id,customer\n1001,\n");
    let ran = lab.run(&["run", "job.yaml"]);
    ran.ended(1).says(&[
        "a check does not hold: not_null: customer",
        "sinks that lacked what others had loaded have caught up, and nothing else was published",
    ]);
    assert!(!ran.stderr.contains("no sink has published anything"), "{}", ran.stderr);
    assert_eq!((count("a.db"), count("b.db")), ("100".to_owned(), "100".to_owned()));
    // Now nothing was published.
    lab.run(&["run", "job.yaml"]).ended(1).says(&["no sink has published anything"]);
}

/// Names of the files that are still to be read.
fn left(lab: &Lab) -> Vec<String> {
    names(&lab.path("in"))
}

#[test]
fn files_that_changed_may_be_skipped_where_all_is_loaded_at_once() {
    for mode in ["append", "merge, key: [id]"] {
        let sinks = format!(
            "  a: {{from: t, write: 'sqlite:a.db', table: t, mode: {mode}}}\n  b: {{from: t, write: 'sqlite:b.db', \
             table: t, mode: {mode}}}\n"
        );
        let lab = lab(JOINED, &sinks);
        lab.file("job.yaml", lab.read("job.yaml").replace("incremental: true", "incremental: true, on_change: skip"));
        let counts = || ["a.db", "b.db"].map(|name| sqlite(&lab.path(name), "SELECT COUNT(*) FROM t")[0][0].clone());
        orders(&lab, 0);
        run(&lab, "none").ok();
        orders(&lab, 1);
        lab.file("in/0.csv", "id,customer\n7777,1\n");
        let report = run(&lab, "none").ok().json();
        assert_eq!(report["changed"], json!([{"source": "orders", "files": 1, "first": ["in/0.csv"]}]), "{mode}");
        assert_eq!(counts(), ["200", "200"], "{mode}");
        // One of the sinks has a file that the other one lacks, and then it changes: both stay as they are.
        orders(&lab, 2);
        killed(&lab, "publish.next:1");
        assert_eq!(counts(), ["300", "200"], "{mode}");
        run(&lab, "none").ok();
        assert_eq!(counts(), ["300", "300"], "{mode}");
        lab.run(&["run", "job.yaml", "--accept-changed"]).ok();
        assert_eq!(counts(), ["301", "301"], "{mode}");
    }
}

#[test]
fn files_are_moved_once_all_sinks_have_them_all_at_once() {
    let sinks = "  a: {from: t, write: 'sqlite:a.db', table: t}\n  b: {from: t, write: 'sqlite:b.db', table: t, mode: \
                 merge, key: [id]}\n";
    for window in ["none", "publish.before", "publish.next:1", "publish.after", "forget.before", "after_load.next:1"] {
        let lab = lab(JOINED, sinks);
        let job = lab.read("job.yaml").replace("incremental: true", "incremental: true, after_load: {move: done}");
        lab.file("job.yaml", job);
        (0..3).for_each(|file| orders(&lab, file));
        if window != "none" {
            killed(&lab, window);
            let expected = if window.starts_with("after_load") { 2 } else { 3 };
            assert_eq!(left(&lab).len(), expected, "{window}");
        }
        run(&lab, "none").ok();
        assert!(left(&lab).is_empty(), "{window}: {:?}", left(&lab));
        assert_eq!(names(&lab.path("done")), ["0.csv", "1.csv", "2.csv"], "{window}");
        for name in ["a.db", "b.db"] {
            let counts = sqlite(&lab.path(name), "SELECT COUNT(*), COUNT(DISTINCT id) FROM t");
            assert_eq!(counts, [["300", "300"]], "{window} {name}");
        }
    }
}

#[test]
fn files_with_rejects_stay_whatever_the_history_knows_all_at_once() {
    let sinks = "  a: {from: t, write: 'sqlite:a.db', table: t}\n  b: {from: t, write: 'sqlite:b.db', table: t, mode: \
                 merge, key: [id]}\n  c: {from: t, write: 'out/{run}.csv', mode: append}\n";
    for window in ["none", "publish.next:1", "publish.next:2", "publish.after", "forget.before"] {
        let lab = lab(JOINED, sinks);
        let incremental = "incremental: true, after_load: {move: done}, max_rejects: 5";
        lab.file("job.yaml", lab.read("job.yaml").replace("incremental: true", incremental));
        (0..3).for_each(|file| orders(&lab, file));
        lab.file("in/1.csv", lab.read("in/1.csv") + "none,1\n");
        if window != "none" {
            killed(&lab, window);
            fs_err::remove_dir_all(lab.path(".state")).expect("it is there");
        }
        run(&lab, "none").ok();
        fs_err::remove_dir_all(lab.path(".state")).expect("it is there");
        assert_eq!(left(&lab), ["1.csv"], "{window}");
        lab.run(&["run", "job.yaml"]).ok().says(&["in/1.csv: some of its records were rejected"]);
        assert_eq!(
            (left(&lab), names(&lab.path("done"))),
            (vec!["1.csv".into()], vec!["0.csv".into(), "2.csv".into()])
        );
        for name in ["a.db", "b.db"] {
            let counts = sqlite(&lab.path(name), "SELECT COUNT(*), COUNT(DISTINCT id) FROM t");
            assert_eq!(counts, [["300", "300"]], "{window} {name}");
        }
    }
}

/// A row of a join is not known to be of one file.
#[test]
fn all_files_of_a_run_stay_if_it_has_rejected_rows_that_may_be_of_any() {
    let joined = "transforms:\n  j: {sql: 'SELECT o.id, c.segment FROM orders AS o JOIN customers AS c ON o.customer = \
                  c.customer'}\n  t: {filter: {from: j, where: 'CAST(segment AS bigint) > 0'}, max_rejects: 500}\n";
    let lab = lab(joined, "  a: {from: t, write: 'sqlite:a.db', table: t, atomic: true}\n");
    lab.file("job.yaml", lab.read("job.yaml").replace("incremental: true", "incremental: true, after_load: delete"));
    lab.file("customers.csv", "customer,segment\n0,1\n1,2\n2,none\n");
    orders(&lab, 0);
    orders(&lab, 1);
    run(&lab, "none").ok();
    fs_err::remove_dir_all(lab.path(".state")).expect("it is there");
    run(&lab, "none").ok();
    assert_eq!(left(&lab), ["0.csv", "1.csv"]);
    // Files of later runs, which reject nothing, go.
    lab.file("customers.csv", "customer,segment\n0,1\n1,2\n2,3\n");
    orders(&lab, 2);
    run(&lab, "none").ok();
    assert_eq!(left(&lab), ["0.csv", "1.csv"]);
    assert_eq!(sqlite(&lab.path("a.db"), "SELECT COUNT(*) FROM t"), [["234"]]);
}

#[test]
fn files_stay_that_a_join_has_not_read() {
    let lab = lab(JOINED, "  a: {from: t, write: 'sqlite:a.db', table: t}\n");
    let job = lab.read("job.yaml").replace("incremental: true", "incremental: true, after_load: delete");
    lab.file("job.yaml", job);
    lab.file("customers.csv", "customer,segment\n");
    orders(&lab, 0);
    // The join has no need to read them.
    lab.run(&["run", "job.yaml"])
        .ended(1)
        .says(&["`orders` was not read to its end", "what it is joined with has no rows"]);
    assert_eq!(left(&lab), ["0.csv"]);
    lab.file("customers.csv", "customer,segment\n0,small\n1,large\n2,small\n");
    run(&lab, "none").ok();
    assert_eq!(sqlite(&lab.path("a.db"), "SELECT COUNT(*) FROM t"), [["100"]]);
    assert!(left(&lab).is_empty());
}

#[test]
fn a_pattern_that_matches_nothing_is_told_with_the_folder() {
    let lab = lab("", "  o: {from: orders, write: 'sqlite:out.db', table: t}\n");
    lab.file("job.yaml", lab.read("job.yaml").replace("incremental: true", "incremental: true, allow_empty: true"));
    let folder = fs_err::canonicalize(lab.path(".")).expect("a folder");
    let nothing = format!("  orders: no file matches in/*.csv (relative paths begin in {})\n", folder.display());
    for _ in 0..2 {
        let ran = lab.run(&["run", "job.yaml"]);
        assert!(!ran.ok().says(&[&nothing]).stderr.contains("everything was loaded before"), "{}", ran.stderr);
    }
    let report = run(&lab, "none").json();
    assert_eq!(report["unmatched"], json!([{"source": "orders", "patterns": ["in/*.csv"]}]));
    orders(&lab, 0);
    assert!(!lab.run(&["run", "job.yaml"]).ok().stderr.contains("no file matches"));
    lab.run(&["run", "job.yaml"]).ok().says(&["nothing new: everything was loaded before"]);
}

/// A file that one sink has and another lacks, and that cannot be opened any more.
#[test]
fn sinks_that_cannot_catch_up_end_the_run() {
    let lab = Lab::new();
    for file in ["0", "1"] {
        lab.file(&format!("in/{file}.csv"), format!("id\n{file}\n"));
    }
    let nginx = Nginx::start(&lab.path("in"));
    lab.file("list.txt", format!("{}\n{}\n", nginx.url("0.csv"), nginx.url("1.csv")));
    let job = "sources:\n  s: {read: '@list.txt', csv: {columns: {id: int64}}, incremental: true, on_error: skip, \
               allow_empty: true}\nsinks:\n  a: {from: s, write: 'sqlite:a.db', table: t, atomic: true}\n";
    lab.file("job.yaml", job);
    run(&lab, "none").ok();
    fs_err::remove_file(lab.path("in/0.csv")).expect("it is there");
    lab.file("job.yaml", format!("{job}  b: {{from: s, write: 'sqlite:b.db', table: t, atomic: true}}\n"));
    let told = ["some sinks lack files that others have, and these cannot be opened", "0.csv"];
    lab.run(&["run", "job.yaml"]).ended(1).says(&told);
    lab.file("in/0.csv", "id\n0\n");
    lab.run(&["run", "job.yaml", "--accept-changed"]);
    assert_eq!(sqlite(&lab.path("b.db"), "SELECT count(*) FROM t"), [["2"]]);
}
