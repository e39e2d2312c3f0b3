//! Resuming loads that merge rows into a table, or add the missing ones: what is staged chunk by chunk is there when
//! the next run begins, and the table has the same rows as after a run that nothing has stopped.
//!
//! Several rows of a file have the same key, so the wrong one would stay if the order of arrival were lost.

use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::time::Instant;

use millstream_testkit::{MariaDb, MariaDbOptions, Postgres, PostgresOptions};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{
    ELSEWHERE, Target, asleep, command, go_on, in_mariadb, in_postgres, is_long, killed_at_moment, run, spawn,
    start_over, stopped,
};
use crate::use_support::{Lab, gzip, zip_of};

/// Records of each file, and how many of them have different keys.
const RECORDS: usize = 900;
const KEYS: usize = 400;

/// Files, one of which is an archive with two members.
const FILES: usize = 6;

/// Keys that are in the table before.
const BEFORE: usize = 10;

/// Where a run is killed, and how often it comes there before the last time.
const FAIL_POINTS: &[(&str, &[usize])] = &[
    ("staging.made", &[1]),
    ("loading.before", &[1]),
    ("ledger.before", &[1, 3]),
    ("ledger.after", &[2]),
    ("bulk.before", &[2]),
    ("bulk.after", &[1, 3]),
    ("commit.before", &[1, 2, 4]),
    ("commit.after", &[1, 2, 5]),
    ("publish.step", &[1, 2]),
    ("publish.before", &[1]),
    ("publish.after", &[1]),
    ("state.before", &[1, 2]),
    ("state.after", &[1, 2]),
    ("forget.before", &[1]),
];

fn records(file: usize) -> String {
    (0..RECORDS).fold(String::new(), |mut text, n| {
        let _ = writeln!(text, r#"{{"id": {}, "n": {n}, "name": "row {file} é"}}"#, file * 1_000 + n % KEYS);
        text
    })
}

fn files(lab: &Lab) {
    lab.file("in/0.jsonl", records(0));
    lab.file("in/1.jsonl.gz", gzip(records(1).as_bytes()));
    lab.file("in/2.zip", zip_of(&[("a.jsonl", records(2).as_bytes()), ("b.jsonl", records(3).as_bytes())]));
    lab.file("in/4.jsonl", records(4));
    lab.file("in/5.jsonl", records(5));
    lab.file("in/empty.jsonl", "");
}

fn job(url: &str, mode: &str) -> String {
    format!(
        "sources:\n  s: {{read: 'in/*', json: {{columns: {{id: int64, n: int64, name: utf8}}}}}}\ntransforms:\n  t: \
         {{filter: {{from: s, where: 'id >= 0'}}}}\nsinks:\n  o: {{from: t, write: '{url}', table: t, key: [id], mode: \
         {mode}}}\n"
    )
}

fn lab(make: fn(&Lab) -> Target, mode: &str) -> (Lab, Target) {
    let lab = Lab::new();
    files(&lab);
    let target = make(&lab);
    lab.file("job.yaml", job(&target.url(), mode));
    (lab, target)
}

const SERVERS: [fn(&Lab) -> Target; 2] = [in_mariadb, in_postgres];
const MODES: [&str; 2] = ["merge", "ignore"];

/// A table with some rows.
fn make_table(target: &Target) {
    target.query("CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY, n BIGINT, name VARCHAR(40))");
    for id in 0..BEFORE {
        target.query(&format!("INSERT INTO t VALUES ({id}, -1, 'before')"));
    }
}

/// The rows of the table once all are there, which had rows before if `had_rows`.
fn expected(mode: &str, had_rows: bool) -> Vec<String> {
    let mut rows = Vec::new();
    for file in 0..FILES {
        for key in 0..KEYS {
            let id = file * 1_000 + key;
            let last = (0..RECORDS).rev().find(|n| n % KEYS == key).expect("each key is there");
            rows.push(match mode {
                "ignore" if had_rows && id < BEFORE => format!("{id}\t-1\tbefore"),
                "ignore" => format!("{id}\t{key}\trow {file} é"),
                _ => format!("{id}\t{last}\trow {file} é"),
            });
        }
    }
    rows
}

#[track_caller]
fn assert_rows(target: &Target, mode: &str, had_rows: bool) {
    let found = target.query("SELECT id, n, name FROM t ORDER BY id");
    let expected = expected(mode, had_rows);
    let wrong: Vec<_> = found.iter().zip(&expected).filter(|(found, expected)| found != expected).take(3).collect();
    assert!(wrong.is_empty() && found.len() == expected.len(), "{} of {}: {wrong:?}", found.len(), expected.len());
}

#[track_caller]
fn assert_complete(target: &Target, mode: &str, had_rows: bool) {
    assert_rows(target, mode, had_rows);
    assert_eq!(target.tables(), ["t"], "what was staged goes when the run is complete");
}

/// Own tables of loads.
fn staged(target: &Target) -> Vec<String> {
    let mut tables = target.tables();
    tables.retain(|table| table.starts_with("_millstream_"));
    tables.sort();
    tables
}

#[track_caller]
fn killed(lab: &Lab, fail_point: &str) {
    let status = spawn(lab, &[("MILLSTREAM_FAIL_AT", fail_point)]).wait().expect("it ends");
    assert_eq!(status.signal(), Some(9), "{fail_point}: {status:?}");
}

/// The report of a run.
#[track_caller]
fn report(lab: &Lab, arguments: &[&str]) -> Value {
    let ran = run(lab, &[&["--json"], arguments].concat());
    ran.ok();
    ran.json()
}

fn killed_at_each_fail_point(make: fn(&Lab) -> Target) {
    for mode in MODES {
        let (lab, target) = lab(make, mode);
        for (fail_point, times) in FAIL_POINTS {
            let times: Vec<usize> = if is_long() { (1..=8).collect() } else { times.to_vec() };
            for time in times {
                // Each of them with a table that is there, or without.
                let had_rows = (time + fail_point.len()) % 2 == 0;
                if had_rows {
                    make_table(&target);
                }
                let trap = format!("{fail_point}:{time}");
                let status = spawn(&lab, &[("MILLSTREAM_FAIL_AT", &trap)]).wait().expect("it ends");
                let killed = status.signal() == Some(9);
                assert!(killed || (status.success() && (is_long() || trap == "publish.step:2")), "{trap}: {status:?}");
                println!("{mode}: killed at {trap}");
                if !had_rows && fail_point.starts_with("commit") {
                    assert!(!target.tables().contains(&"t".to_owned()), "{trap}: nothing is visible yet");
                }
                run(&lab, &["--resume"]).ok();
                assert_complete(&target, mode, had_rows);
                start_over(&lab, &target);
            }
        }
    }
}

#[test]
fn mariadb_killed_at_each_fail_point() {
    killed_at_each_fail_point(in_mariadb);
}

#[test]
fn postgres_killed_at_each_fail_point() {
    killed_at_each_fail_point(in_postgres);
}

fn killed_at_any_moment(make: fn(&Lab) -> Target) {
    for mode in MODES {
        let (lab, target) = lab(make, mode);
        let begun = Instant::now();
        run(&lab, &[]).ok();
        let whole = begun.elapsed();
        assert_complete(&target, mode, false);
        start_over(&lab, &target);
        let moments = if is_long() { 60 } else { 12 };
        for moment in 0..moments {
            let had_rows = moment % 2 == 0;
            if had_rows {
                make_table(&target);
            }
            killed_at_moment(&lab, moment, moments, whole);
            run(&lab, &["--resume"]).ok();
            assert_complete(&target, mode, had_rows);
            start_over(&lab, &target);
        }
    }
}

#[test]
fn mariadb_killed_at_any_moment() {
    killed_at_any_moment(in_mariadb);
}

#[test]
fn postgres_killed_at_any_moment() {
    killed_at_any_moment(in_postgres);
}

/// Where MariaDB has no table yet, a new one is renamed into place.
#[test]
fn mariadb_killed_while_a_new_table_becomes_visible() {
    for mode in MODES {
        let (lab, target) = lab(in_mariadb, mode);
        for fail_point in ["rename.before", "rename.after"] {
            killed(&lab, fail_point);
            run(&lab, &["--resume"]).ok().says(&[if fail_point == "rename.after" {
                "nothing new for"
            } else {
                "table t"
            }]);
            assert_complete(&target, mode, false);
            start_over(&lab, &target);
        }
    }
}

/// A run that is killed again and again ends once each has staged a little more; complete files are not read again.
#[test]
fn files_that_are_staged_are_not_read_again() {
    for make in SERVERS {
        let (lab, target) = lab(make, "merge");
        make_table(&target);
        killed(&lab, "commit.after:4");
        (0..3).for_each(|_| killed_resuming_at(&lab, "commit.after:2"));
        killed_resuming_at(&lab, "publish.before");
        let report = report(&lab, &["--resume"]);
        assert_eq!(report["units_loaded_before"], 6, "{report}");
        assert_eq!(report["rows_read"], 0, "{report}");
        let changes = &report["results"][0]["changes"];
        let rows = FILES * KEYS;
        assert_eq!(changes["updated"], BEFORE, "{report}");
        assert_eq!(changes["inserted"], rows - BEFORE, "{report}");
        let summary = report["results"][0]["summary"].as_str().expect("a text");
        assert!(summary.starts_with("5400 rows merged into"), "{summary}");
        assert_complete(&target, "merge", true);
    }
}

#[track_caller]
fn killed_resuming_at(lab: &Lab, fail_point: &str) {
    let mut child = command(lab, &["run", "job.yaml", "--quiet", "--resume"]);
    let status = child.env("MILLSTREAM_FAIL_AT", fail_point).status().expect("it ends");
    assert_eq!(status.signal(), Some(9), "{fail_point}");
}

/// Killed behind the commit, the next run finds that everything is there.
#[test]
fn what_is_published_is_found() {
    for make in SERVERS {
        for mode in MODES {
            let (lab, target) = lab(make, mode);
            make_table(&target);
            killed(&lab, "publish.after");
            assert_rows(&target, mode, true);
            let ran = run(&lab, &["--resume"]);
            ran.ok().says(&["nothing new for table t", "6 files were loaded before"]);
            assert_complete(&target, mode, true);
        }
    }
}

/// What has come since then is not passed over: everything is merged again.
#[test]
fn what_is_published_is_merged_again_if_there_is_more() {
    for make in SERVERS {
        for mode in MODES {
            let (lab, target) = lab(make, mode);
            lab.file("later.jsonl", "{\"id\": 99999, \"n\": 1, \"name\": \"later\"}\n");
            make_table(&target);
            killed(&lab, "publish.after");
            fs_err::rename(lab.path("later.jsonl"), lab.path("in/later.jsonl")).expect("it is renamed");
            let report = report(&lab, &["--resume"]);
            assert_eq!(report["rows_read"], FILES * RECORDS + 1, "{report}");
            assert_eq!(target.query("SELECT name FROM t WHERE id = 99999"), ["later"]);
            target.query("DELETE FROM t WHERE id = 99999");
            assert_complete(&target, mode, true);
        }
    }
}

/// A plain run begins anew, and drops what the dead one has staged.
#[test]
fn a_plain_run_begins_anew() {
    for make in SERVERS {
        let (lab, target) = lab(make, "merge");
        killed(&lab, "commit.after:3");
        let before = staged(&target);
        assert!(before.iter().any(|table| table.ends_with("_rows")), "{before:?}");
        let report = report(&lab, &[]);
        assert_eq!((&report["units_loaded_before"], &report["rows_read"]), (&0.into(), &(FILES * RECORDS).into()));
        assert_complete(&target, "merge", false);
    }
}

/// What is staged for one job stays when another one loads into the same table, for a week.
#[test]
fn what_another_job_may_resume_is_kept_for_a_while() {
    for make in SERVERS {
        let (lab, target) = lab(make, "merge");
        make_table(&target);
        killed(&lab, "commit.after:5");
        let before = staged(&target);
        let other = lab.read("job.yaml").replace("in/*", "in/5.jsonl");
        lab.file("other.yaml", &other);
        let other = || command(&lab, &["run", "other.yaml"]);
        crate::use_support::finish(other(), None).ok();
        assert_eq!(staged(&target), before, "another job leaves it");
        let resumed = report(&lab, &["--resume"]);
        assert!(resumed["rows_written"].as_u64() < Some((FILES * RECORDS) as u64), "{resumed}");
        assert_complete(&target, "merge", true);

        killed(&lab, "commit.after:3");
        let notes = staged(&target).into_iter().find(|table| table.ends_with("_notes")).expect("notes");
        target.query(&format!("UPDATE {notes} SET written_at = '2020-01-01'"));
        crate::use_support::finish(other(), None).ok();
        assert_eq!(staged(&target), Vec::<String>::new(), "it is too old");
        let resumed = report(&lab, &["--resume"]);
        assert_eq!(resumed["rows_written"], FILES * RECORDS, "{resumed}");
        assert_complete(&target, "merge", true);
    }
}

/// Two jobs that merge into one table, both killed: each finds its own rows.
#[test]
fn two_jobs_do_not_share_what_is_staged() {
    for make in SERVERS {
        let (lab, target) = lab(make, "merge");
        make_table(&target);
        let text = lab.read("job.yaml");
        let (first, second) = (text.replace("in/*", "in/[0-2]*"), text.replace("in/*", "in/[45]*"));
        lab.file("first.yaml", first);
        lab.file("second.yaml", second);
        for name in ["first.yaml", "second.yaml"] {
            let mut child = command(&lab, &["run", name, "--quiet"]);
            let status = child.env("MILLSTREAM_FAIL_AT", "commit.after:2").status().expect("it ends");
            assert_eq!(status.signal(), Some(9));
        }
        assert_eq!(staged(&target).iter().filter(|table| table.ends_with("_rows")).count(), 2);
        for name in ["second.yaml", "first.yaml"] {
            crate::use_support::finish(command(&lab, &["run", name, "--resume"]), None).ok();
        }
        assert_complete(&target, "merge", true);
    }
}

/// What cannot be used of the staged rows is staged again, and no run is refused for that.
#[test]
fn what_has_changed_since_begins_anew() {
    for make in SERVERS {
        let (lab, target) = lab(make, "merge");
        type Change = fn(&Lab, &Target);
        let rows_of = |target: &Target| staged(target).into_iter().find(|table| table.ends_with("_rows"));
        fn table(target: &Target) -> String {
            staged(target).into_iter().find(|table| table.ends_with("_rows")).expect("a staging table")
        }
        let changes: [(&str, Change); 6] = [
            ("dropped", |_, target| drop(target.query(&format!("DROP TABLE {}", table(target))))),
            ("without a column", |_, target| {
                drop(target.query(&format!("ALTER TABLE {} DROP COLUMN name", table(target))));
            }),
            ("emptied", |_, target| drop(target.query(&format!("DELETE FROM {}", table(target))))),
            ("the target is another", |_, target| drop(target.query("ALTER TABLE t ADD COLUMN more INT"))),
            ("a file has changed", |lab, _| drop(lab.file("in/5.jsonl", records(5) + "\n"))),
            ("without the notes", |_, target| {
                let notes = staged(target).into_iter().find(|table| table.ends_with("_notes")).expect("notes");
                target.query(&format!("DROP TABLE {notes}"));
            }),
        ];
        for (what, change) in changes {
            make_table(&target);
            killed(&lab, "publish.step");
            assert!(rows_of(&target).is_some());
            change(&lab, &target);
            let report = report(&lab, &["--resume"]);
            assert_eq!(report["rows_written"], FILES * RECORDS, "{what}: {report}");
            assert_complete(&target, "merge", true);
            start_over(&lab, &target);
        }
    }
}

/// A server that crashes empties unlogged tables: what was staged is staged again.
#[test]
fn a_server_that_crashes_costs_no_row() {
    let mut postgres = Postgres::start(PostgresOptions::default());
    let name = postgres.database();
    let lab = Lab::new();
    files(&lab);
    lab.file("job.yaml", job(&postgres.url(&name), "merge"));
    let of = |postgres: &Postgres, sql: &str| postgres.query(&name, sql);
    let sum = "SELECT COUNT(*), SUM(n), COUNT(DISTINCT id) FROM t";
    run(&lab, &[]).ok();
    let expected = of(&postgres, sum);
    // While it loads, and between two runs.
    for alive in [true, false] {
        of(&postgres, "DROP TABLE t");
        let _ = fs_err::remove_dir_all(lab.path(".state"));
        if alive {
            let child = asleep(&lab, "commit.after:3");
            postgres.kill();
            postgres.restart();
            go_on(&child);
            let mut child = child;
            assert_eq!(child.wait().expect("it ends").code(), Some(1), "{}", lab.read("sleeper.log"));
        } else {
            killed(&lab, "commit.after:5");
            postgres.kill();
            postgres.restart();
        }
        let ran = run(&lab, &["--resume", "--json"]);
        ran.ok();
        assert_eq!(ran.json()["rows_written"], FILES * RECORDS);
        assert_eq!(of(&postgres, sum), expected);
        let tables = "SELECT count(*) FROM pg_tables WHERE tablename LIKE '\\_millstream%'";
        assert_eq!(of(&postgres, tables), ["0"]);
    }

    let mut mariadb = MariaDb::start(MariaDbOptions::default());
    let name = mariadb.database();
    lab.file("job.yaml", job(&mariadb.url(&name), "merge"));
    let _ = fs_err::remove_dir_all(lab.path(".state"));
    let mut child = spawn(&lab, &[("MILLSTREAM_STOP_AT", "commit.before:2")]);
    stopped(&child);
    mariadb.kill();
    mariadb.restart();
    go_on(&child);
    if !child.wait().expect("it ends").success() {
        run(&lab, &["--resume"]).ok();
    }
    assert_eq!(mariadb.query(&name, sum), expected);
}

/// Two runs on two machines do their work one after the other; what the first has staged is left alone.
#[test]
fn a_run_elsewhere_leaves_what_a_live_one_has_staged() {
    for make in SERVERS {
        let (lab, target) = lab(make, "merge");
        make_table(&target);
        let mut sleeper = asleep(&lab, "commit.after:3");
        run(&lab, &["--resume"]).ended(1).says(&["still running"]);
        run(&lab, &ELSEWHERE).ok();
        assert_rows(&target, "merge", true);
        go_on(&sleeper);
        assert!(sleeper.wait().expect("it ends").success(), "{}", lab.read("sleeper.log"));
        assert_complete(&target, "merge", true);
    }
}

/// With a check that fails nothing is published, and nothing is left to a run that would fail in the same way.
#[test]
fn a_check_that_fails_publishes_nothing() {
    for make in SERVERS {
        let (lab, target) = lab(make, "merge");
        make_table(&target);
        let text = lab.read("job.yaml");
        let checked = text.replace("where: 'id >= 0'}}", "where: 'id >= 0'}, checks: [{rows: {min: 1000000}}]}");
        assert_ne!(text, checked);
        lab.file("job.yaml", &checked);
        run(&lab, &[]).ended(1).says(&["1,000,000"]);
        assert_eq!(target.query("SELECT COUNT(*) FROM t"), [BEFORE.to_string()]);
        assert_eq!(target.tables(), ["t"]);
        // The checks of a run that resumes another one see all rows.
        let all = FILES * RECORDS;
        let checked = checked.replace("1000000", &all.to_string());
        lab.file("job.yaml", &checked);
        killed(&lab, "commit.after:5");
        let report = report(&lab, &["--resume"]);
        assert!(report["rows_written"].as_u64() < Some(all as u64), "{report}");
        assert_complete(&target, "merge", true);
    }
}

/// Rows that the table refuses and records that cannot be read are counted once, however often the run is killed.
#[test]
fn what_is_rejected_is_counted_once() {
    for make in SERVERS {
        let (lab, target) = lab(make, "merge");
        target.query(
            "CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY, n BIGINT, name VARCHAR(40), CONSTRAINT few CHECK (n < \
             1000))",
        );
        let text = lab.read("job.yaml").replace("mode: merge}", "mode: merge, max_rejects: 100}");
        lab.file("job.yaml", text.replace("name: utf8}}", "name: utf8}}, max_rejects: 100"));
        for file in [0, 4, 5] {
            let bad = format!("{{\"id\": {file}77, \"n\": 5000, \"name\": \"too large\"}}\n{{\"id\": \"x\"}}\n");
            lab.file(&format!("in/{file}.jsonl"), bad.clone() + &records(file) + &bad);
        }
        killed(&lab, "commit.after:3");
        killed_resuming_at(&lab, "rejects.after:2");
        killed_resuming_at(&lab, "publish.before");
        let report = report(&lab, &["--resume"]);
        assert_eq!(report["rows_rejected"], 0, "all were rejected by earlier runs: {report}");
        let rejects = lab.run(&["rejects", "--json"]);
        rejects.ok();
        assert_eq!(rejects.json()["rejects"].as_array().map(Vec::len), Some(12), "{}", rejects.stdout);
        assert_complete(&target, "merge", false);
    }
}

/// A run that cannot publish keeps what it has staged: once the cause is gone, nothing is read again.
#[test]
fn a_run_that_fails_leaves_what_it_has_staged() {
    for make in SERVERS {
        for mode in MODES {
            let (lab, target) = lab(make, mode);
            target.query("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT, name VARCHAR(40), UNIQUE (name, n))");
            let n = if mode == "merge" { 2 * KEYS + 20 } else { 20 };
            target.query(&format!("INSERT INTO t VALUES (99999, {n}, 'row 4 é')"));
            let failed = run(&lab, &[]);
            failed.ended(1).says(&[
                "hint: another unique key than `key` has this value already",
                "the rows are moved into the table all at once",
                "5,400 rows are staged",
                "--resume",
            ]);
            assert_eq!(target.query("SELECT COUNT(*) FROM t"), ["1"]);
            run(&lab, &["--resume"]).ended(1).says(&["what is staged stays"]);
            target.query("DELETE FROM t WHERE id = 99999");
            let report = report(&lab, &["--resume"]);
            assert_eq!((&report["rows_read"], &report["units_loaded_before"]), (&0.into(), &6.into()), "{report}");
            assert_complete(&target, mode, false);
        }
    }
}

/// A small load that fails has nothing staged, and leaves nothing.
#[test]
fn a_small_load_that_fails_leaves_nothing() {
    for make in SERVERS {
        let (lab, target) = lab(make, "merge");
        make_table(&target);
        lab.file("job.yaml", lab.read("job.yaml").replace("in/*", "in/[9e]*"));
        lab.file("in/9.jsonl", "{\"id\": 1, \"n\": 1, \"name\": \"x\"}\n{\"id\": \"x\"}\n");
        let failed = run(&lab, &[]);
        failed.ended(1);
        assert!(!failed.stderr.contains("staged"), "{}", failed.stderr);
        assert_eq!(target.tables(), ["t"]);
    }
}

/// `atomic` loads rows as they come, and so do steps whose rows come in batches: a killed run begins anew.
#[test]
fn with_atomic_nothing_is_left_to_resume() {
    for make in SERVERS {
        let (lab, target) = lab(make, "merge");
        let text = lab.read("job.yaml");
        let told = |lab: &Lab| lab.run(&["explain", "job.yaml"]).ok().stdout.contains("`--resume` stages the rest");
        assert!(told(&lab));
        lab.file("job.yaml", text.replace("mode: merge}", "mode: merge, atomic: true}"));
        assert!(!told(&lab));
        killed(&lab, "publish.before");
        let report = report(&lab, &["--resume"]);
        assert_eq!((&report["rows_written"], &report["units_loaded_before"]), (&(FILES * RECORDS).into(), &0.into()));
        assert_rows(&target, "merge", false);
    }
}

/// Rows with keys are the same however often a file is listed.
#[test]
fn a_file_that_is_listed_twice_is_no_fault() {
    for make in SERVERS {
        let (lab, target) = lab(make, "merge");
        lab.file("job.yaml", lab.read("job.yaml").replace("read: 'in/*'", "read: ['in/*', 'in/[45]*']"));
        killed(&lab, "commit.after:3");
        run(&lab, &["--resume"]).ok();
        assert_complete(&target, "merge", false);
    }
}

/// What is looked up in another reference is not put beside what an earlier run has staged.
#[test]
fn a_reference_that_has_changed_begins_anew() {
    for make in SERVERS {
        let (lab, target) = lab(make, "merge");
        let reference =
            |word: &str| (0..FILES * 1_000).fold("k,w\n".to_owned(), |text, k| text + &format!("{k},{word}\n"));
        lab.file("words.csv", reference("old"));
        let lookup = "  l: {lookup: {from: t, in: words, on: {id: k}, take: {name: w}}}\nsinks:";
        let text = lab.read("job.yaml").replace("name: utf8}", "more: utf8}");
        let text = text.replace("transforms:", "  words: {read: words.csv}\ntransforms:").replace("sinks:", lookup);
        lab.file("job.yaml", text.replace("from: t, write", "from: l, write"));
        for file in [0, 4, 5] {
            lab.file(&format!("in/{file}.jsonl"), records(file).replace("name", "more"));
        }
        lab.file("in/1.jsonl.gz", "").parent().map(|folder| fs_err::remove_file(folder.join("1.jsonl.gz")));
        fs_err::remove_file(lab.path("in/2.zip")).expect("a file");
        for change in [false, true] {
            killed(&lab, "commit.after:3");
            if change {
                lab.file("words.csv", reference("new"));
            }
            let report = report(&lab, &["--resume"]);
            assert_eq!(report["rows_written"] == 3 * RECORDS, change, "{report}");
            let expected = if change { "new" } else { "old" };
            assert_eq!(target.query("SELECT DISTINCT name FROM t"), [expected]);
            start_over(&lab, &target);
        }
    }
}

/// Ctrl-C lets commits that are under way end, and says what is staged.
#[test]
fn an_interrupted_run_says_what_it_has_staged() {
    for make in SERVERS {
        let (lab, target) = lab(make, "merge");
        make_table(&target);
        let mut sleeper = asleep(&lab, "commit.after:3");
        kill_process(Pid::from_child(&sleeper), Signal::INT).expect("it is there");
        go_on(&sleeper);
        assert_eq!(sleeper.wait().expect("it ends").code(), Some(130));
        let told = lab.read("sleeper.log");
        assert!(told.contains(" rows are staged, and nothing is visible"), "{told}");
        assert!(told.contains("millstream run --resume job.yaml` stages the rest"), "{told}");
        assert_eq!(target.query("SELECT COUNT(*) FROM t"), [BEFORE.to_string()]);
        let report = report(&lab, &["--resume"]);
        assert!(report["rows_written"].as_u64() < Some((FILES * RECORDS) as u64), "{report}");
        assert_complete(&target, "merge", true);
    }
}
