//! `millstream forget` through the real binary: what is forgotten is loaded again by the next run, once, wherever
//! something is killed, into every kind of target.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::Duration;

use millstream_testkit::{KEY, S3Server, SECRET};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::use_resume::{Target, in_mariadb, in_postgres, in_sqlite};
use crate::use_support::{Lab, Ran, csv_rows, finish, names, sqlite, zip_of};

/// So few bytes of a chunk that a file has many.
const CHUNK: &str = "2000";

const ALL: [fn(&Lab) -> Target; 3] = [in_sqlite, in_mariadb, in_postgres];

/// Where `forget` is killed.
const KILLS: &[(&str, bool)] =
    &[("notes.begun", false), ("notes.before", false), ("notes.after", true), ("forget.next", true)];

fn finished(lab: &Lab, arguments: &[&str], fail_point: &str) -> Ran {
    let mut command = lab.command(arguments);
    command.env("MILLSTREAM_CHUNK_BYTES", CHUNK).env("MILLSTREAM_FAIL_AT", fail_point).env("BUCKET_SECRET", SECRET);
    finish(command, None)
}

fn run(lab: &Lab, more: &[&str]) -> Ran {
    finished(lab, &[&["run", "job.yaml"], more].concat(), "none")
}

fn forget(lab: &Lab, more: &[&str]) -> Ran {
    finished(lab, &[&["forget", "job.yaml"], more].concat(), "none")
}

#[track_caller]
fn killed(lab: &Lab, arguments: &[&str], fail_point: &str) {
    let mut command = lab.command(arguments);
    command.env("MILLSTREAM_CHUNK_BYTES", CHUNK).env("MILLSTREAM_FAIL_AT", fail_point);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().expect("it starts");
    assert_eq!(status.signal(), Some(9), "{fail_point}: {status:?}");
}

fn records(ids: std::ops::Range<usize>) -> String {
    ids.map(|id| format!("{{\"id\": {id}, \"name\": \"row {id}\"}}\n")).collect()
}

fn lab(make: fn(&Lab) -> Target, source: &str, sink: &str) -> (Lab, Target) {
    let lab = Lab::new();
    let target = make(&lab);
    lab.file(
        "job.yaml",
        format!(
            "sources:\n  s: {{read: 'in/*', json: {{columns: {{id: int64, name: utf8}}}}, incremental: true, add: \
             [_uri]{source}}}\nsinks:\n  o: {{from: s, write: '{}', table: t{sink}}}\n",
            target.url()
        ),
    );
    (lab, target)
}

/// How many rows each file has in the table.
fn by_file(target: &Target) -> BTreeMap<String, usize> {
    let rows = target.query("SELECT _uri, count(*) FROM t GROUP BY _uri ORDER BY _uri");
    let row = |row: String| {
        let (file, count) = row.split_once('\t').expect("two columns");
        (file.to_owned(), count.parse().expect("a number"))
    };
    rows.into_iter().map(row).collect()
}

fn counts(expected: &[(&str, usize)]) -> BTreeMap<String, usize> {
    expected.iter().map(|(file, count)| ((*file).to_owned(), *count)).collect()
}

fn files(lab: &Lab) {
    for (name, ids) in [("a", 0..300), ("b", 300..400), ("c", 400..500)] {
        lab.file(&format!("in/{name}.jsonl"), records(ids));
    }
}

#[test]
fn forgotten_files_are_loaded_again() {
    for make in ALL {
        let (lab, target) = lab(make, "", "");
        files(&lab);
        run(&lab, &[]).ok();
        let shown = ["o would forget 1 file: the next run loads it again", "  in/a.jsonl"];
        let warned =
            ["delete the rows whose `_uri` is one of the files before the next run, or they will be there twice"];
        forget(&lab, &["in/a.jsonl", "--dry-run"]).ok().prints(&shown).says(&warned);
        run(&lab, &[]).ok().says(&["nothing new"]);
        let forgotten = forget(&lab, &["in/a.jsonl", "in/z.jsonl"]);
        forgotten.ok().prints(&["o has forgotten 1 file", "  in/a.jsonl"]);
        forgotten.says(&["warning: no sink has loaded in/z.jsonl"]);
        target.query("DELETE FROM t WHERE _uri = 'in/a.jsonl'");
        run(&lab, &[]).ok().says(&["300 rows added"]);
        assert_eq!(by_file(&target), counts(&[("in/a.jsonl", 300), ("in/b.jsonl", 100), ("in/c.jsonl", 100)]));
        run(&lab, &[]).ok().says(&["nothing new"]);
        // Once more, by a pattern; what is forgotten is not there to be forgotten a second time.
        let found = forget(&lab, &["in/[ab]*", "--json"]).ok().json();
        let files = json!([{"source": "s", "uri": "in/a.jsonl"}, {"source": "s", "uri": "in/b.jsonl"}]);
        assert_eq!(found["sinks"][0]["files"], files, "{found}");
        assert_eq!((&found["sinks"][0]["loaded"], &found["not_found"]), (&json!("stay_with_uri"), &json!([])));
        forget(&lab, &["in/a.jsonl"]).ended(1).says(&["nothing was forgotten", "in/a.jsonl"]);
        target.query("DELETE FROM t WHERE _uri = 'in/a.jsonl' OR _uri = 'in/b.jsonl'");
        run(&lab, &[]).ok();
        assert_eq!(by_file(&target), counts(&[("in/a.jsonl", 300), ("in/b.jsonl", 100), ("in/c.jsonl", 100)]));
        // A file that is not there any more is known by its name.
        fs_err::rename(lab.path("in/c.jsonl"), lab.path("c.jsonl")).expect("it goes");
        forget(&lab, &["in/c*"]).ended(1).says(&["nothing was forgotten"]);
        forget(&lab, &["in/c.jsonl"]).ok();
        fs_err::rename(lab.path("c.jsonl"), lab.path("in/c.jsonl")).expect("it comes back");
        run(&lab, &[]).ok().says(&["100 rows added"]);
        assert_eq!(by_file(&target)["in/c.jsonl"], 200, "its rows were not deleted");
    }
}

#[test]
fn a_kill_leaves_a_file_known_or_forgotten() {
    for make in ALL {
        let (lab, target) = lab(make, "", "");
        files(&lab);
        lab.file("in/a.jsonl", records(1_000..3_000));
        run(&lab, &[]).ok();
        for (kill, is_forgotten) in KILLS {
            killed(&lab, &["forget", "job.yaml", "in/a.jsonl"], kill);
            let dry = forget(&lab, &["in/a.jsonl", "--dry-run"]);
            assert_eq!(dry.code, i32::from(*is_forgotten), "{kill}: {dry:?}");
            if *is_forgotten {
                target.query("DELETE FROM t WHERE _uri = 'in/a.jsonl'");
            }
            run(&lab, &[]).ok();
            let expected = counts(&[("in/a.jsonl", 2_000), ("in/b.jsonl", 100), ("in/c.jsonl", 100)]);
            assert_eq!(by_file(&target), expected, "{kill}");
        }
        // A run that is killed while it loads the file again is completed by the next one.
        for kill in ["ledger.after:2", "commit.before:2", "commit.after:2", "forget.before"] {
            forget(&lab, &["in/a.jsonl"]).ok();
            target.query("DELETE FROM t WHERE _uri = 'in/a.jsonl'");
            killed(&lab, &["run", "job.yaml", "--quiet"], kill);
            run(&lab, &[]).ok();
            assert_eq!(by_file(&target)["in/a.jsonl"], 2_000, "{kill}");
        }
    }
}

#[test]
fn all_members_of_a_forgotten_archive_are_loaded_again() {
    for make in ALL {
        let (lab, target) = lab(make, "", "");
        let (one, two) = (records(0..300), records(300..500));
        fs_err::create_dir_all(lab.path("in")).expect("a folder");
        fs_err::write(lab.path("in/a.zip"), zip_of(&[("one.jsonl", one.as_bytes()), ("two.jsonl", two.as_bytes())]))
            .expect("a file");
        run(&lab, &[]).ok();
        forget(&lab, &["in/a.zip"]).ok();
        target.query("DELETE FROM t");
        run(&lab, &[]).ok().says(&["500 rows added"]);
        run(&lab, &[]).ok().says(&["nothing new"]);
        assert_eq!(target.query("SELECT count(*), count(DISTINCT id) FROM t"), ["500\t500"]);
    }
}

#[test]
fn a_file_that_is_loaded_in_part_is_completed_first() {
    for make in ALL {
        let (lab, target) = lab(make, "", "");
        files(&lab);
        run(&lab, &[]).ok();
        lab.file("in/d.jsonl", records(500..2_000));
        killed(&lab, &["run", "job.yaml", "--quiet", "--memory", "64MiB"], "commit.after:2");
        let told = ["a file is loaded in part", "in/d.jsonl", "nothing was forgotten"];
        forget(&lab, &["in/a.jsonl", "in/d.jsonl"]).ended(1).says(&told);
        run(&lab, &[]).ok();
        assert_eq!(by_file(&target)["in/d.jsonl"], 1_500);
        assert_eq!(by_file(&target)["in/a.jsonl"], 300, "it was not forgotten either");
        forget(&lab, &["in/d.jsonl"]).ok();
        target.query("DELETE FROM t WHERE _uri = 'in/d.jsonl'");
        run(&lab, &[]).ok();
        assert_eq!(by_file(&target)["in/d.jsonl"], 1_500);
    }
}

/// A run that is stopped for a while has looked at the ledger before a file was forgotten: nothing comes twice.
#[test]
fn nothing_comes_twice_by_a_run_that_has_begun_before() {
    for (make, on_server) in [(in_sqlite as fn(&Lab) -> Target, false), (in_mariadb, true), (in_postgres, true)] {
        let (lab, target) = lab(make, ", on_change: reload", "");
        files(&lab);
        run(&lab, &[]).ok();
        lab.file("in/a.jsonl", records(0..310));
        lab.file("in/d.jsonl", records(500..900));
        let mut command = lab.command(&["run", "job.yaml", "--quiet"]);
        command.env("MILLSTREAM_CHUNK_BYTES", CHUNK).env("MILLSTREAM_STOP_AT", "loading.before");
        let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        let process = Pid::from_child(&running);
        while !is_stopped(process) {
            std::thread::sleep(Duration::from_millis(10));
        }
        // On this machine the lock of the run says so.
        forget(&lab, &["in/a.jsonl"]).ended(1).says(&["running"]);
        // On another one the server does; in SQLite the run sees it when it goes on.
        let asked = forget(&lab, &["in/a.jsonl", "--state", "other"]);
        match on_server {
            true => drop(asked.ended(1).says(&["another run is loading into"])),
            false => drop(asked.ok()),
        }
        kill_process(process, Signal::CONT).expect("it goes on");
        let ended = running.wait().expect("it ends");
        assert_eq!(ended.code(), Some(i32::from(!on_server)));
        run(&lab, &[]).ok();
        let expected = counts(&[("in/a.jsonl", 310), ("in/b.jsonl", 100), ("in/c.jsonl", 100), ("in/d.jsonl", 400)]);
        assert_eq!(by_file(&target), expected);
    }
}

/// Whether the process has been stopped by a signal.
fn is_stopped(process: Pid) -> bool {
    let stat = fs_err::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|behind| behind.trim_start().starts_with('T'))
}

#[test]
fn a_reload_replaces_the_rows_of_a_forgotten_file() {
    for make in ALL {
        let (lab, target) = lab(make, ", on_change: reload", "");
        files(&lab);
        run(&lab, &[]).ok();
        forget(&lab, &["in/a.jsonl"]).ok().prints(&["replaces the rows of the file by those that it has now"]);
        target.query("DELETE FROM t WHERE id < 10");
        run(&lab, &[]).ok();
        let expected = counts(&[("in/a.jsonl", 300), ("in/b.jsonl", 100), ("in/c.jsonl", 100)]);
        assert_eq!(by_file(&target), expected);
        run(&lab, &[]).ok().says(&["nothing new"]);
        for kill in ["reload.begun", "reload.deleted", "reload.noted", "commit.before", "commit.after"] {
            forget(&lab, &["in/a.jsonl"]).ok();
            killed(&lab, &["run", "job.yaml", "--quiet"], kill);
            run(&lab, &[]).ok();
            assert_eq!(by_file(&target), expected, "{kill}");
        }
        // It is a version like others from then on.
        lab.file("in/a.jsonl", records(0..7));
        run(&lab, &[]).ok();
        assert_eq!(by_file(&target)["in/a.jsonl"], 7);
    }
}

#[test]
fn a_forgotten_file_that_has_changed_is_loaded_as_it_is_now() {
    let (lab, target) = lab(in_sqlite, "", "");
    files(&lab);
    run(&lab, &[]).ok();
    lab.file("in/a.jsonl", records(0..20));
    run(&lab, &[]).ended(1).says(&["a file has changed since it was loaded"]);
    forget(&lab, &["in/a.jsonl"]).ok();
    target.query("DELETE FROM t WHERE _uri = 'in/a.jsonl'");
    run(&lab, &[]).ok();
    assert_eq!(by_file(&target)["in/a.jsonl"], 20);
    // It may change again.
    lab.file("in/a.jsonl", records(0..30));
    run(&lab, &[]).ended(1).says(&["a file has changed since it was loaded"]);
    run(&lab, &["--accept-changed"]).ok();
    assert_eq!(by_file(&target)["in/a.jsonl"], 50);
    run(&lab, &[]).ok().says(&["nothing new"]);
}

/// What was rejected of a file before it was forgotten keeps it no more; what is rejected since does.
#[test]
fn rejects_of_before_a_file_was_forgotten_do_not_keep_it() {
    for sink in ["", ", atomic: true"] {
        for make in ALL {
            let (lab, target) = lab(make, ", after_load: {move: done}, max_rejects: 5", sink);
            lab.file("in/a.jsonl", records(0..10) + "{\"id\": \"none\"}\n");
            lab.file("in/b.jsonl", records(10..20) + "{\"id\": \"none\"}\n");
            run(&lab, &[]).ok();
            assert_eq!(names(&lab.path("in")), ["a.jsonl", "b.jsonl"]);
            lab.file("in/a.jsonl", records(0..11));
            forget(&lab, &["in/*"]).ok();
            target.query("DELETE FROM t");
            run(&lab, &[]).ok().says(&["in/b.jsonl: some of its records were rejected"]);
            assert_eq!(
                (names(&lab.path("in")), names(&lab.path("done"))),
                (vec!["b.jsonl".into()], vec!["a.jsonl".into()])
            );
            fs_err::remove_dir_all(lab.path(".state")).expect("it is there");
            run(&lab, &[]).ok().says(&["in/b.jsonl: some of its records were rejected"]);
            assert_eq!(by_file(&target), counts(&[("in/a.jsonl", 11), ("in/b.jsonl", 10)]));
        }
    }
}

#[test]
fn sinks_forget_each_for_itself() {
    for mode in ["append", "merge, key: [id]", "ignore, key: [id]"] {
        let [mariadb, postgres] = crate::use_databases::Database::both();
        let lab = Lab::new();
        let sinks = [("a", "sqlite:a.db"), ("b", mariadb.url.as_str()), ("c", postgres.url.as_str())];
        let sinks: String = sinks
            .iter()
            .map(|(name, url)| format!("  {name}: {{from: s, write: '{url}', table: t, atomic: true, mode: {mode}}}\n"))
            .collect();
        lab.file(
            "job.yaml",
            format!(
                "sources:\n  s: {{read: 'in/*', json: {{columns: {{id: int64, name: utf8}}}}, incremental: true, add: \
                 [_uri]}}\nsinks:\n{}",
                if mode == "append" { sinks.clone() } else { sinks.replace(", atomic: true", "") }
            ),
        );
        files(&lab);
        run(&lab, &[]).ok();
        let count = || {
            let sql = "SELECT count(*) FROM t";
            let of = |found: Vec<String>| found.concat().parse::<usize>().expect("a number");
            [of(sqlite(&lab.path("a.db"), sql).concat()), of(mariadb.query(sql)), of(postgres.query(sql))]
        };
        assert_eq!(count(), [500; 3]);
        // One alone, and all of them but for a kill after the first.
        forget(&lab, &["in/b.jsonl", "--sink", "b"]).ok();
        mariadb.query("DELETE FROM t WHERE _uri = 'in/b.jsonl'");
        run(&lab, &[]).ok();
        assert_eq!(count(), [500; 3], "{mode}");
        killed(&lab, &["forget", "job.yaml", "in/c.jsonl"], "forget.next");
        sqlite(&lab.path("a.db"), "DELETE FROM t WHERE _uri = 'in/c.jsonl'");
        run(&lab, &[]).ok();
        assert_eq!(count(), [500; 3], "{mode}");
        let found = forget(&lab, &["in/*", "--json"]).ok().json();
        assert_eq!(found["sinks"].as_array().map(Vec::len), Some(3), "{found}");
        run(&lab, &[]).ok().says(&["500 rows read"]);
        let again = if mode == "append" { 1_000 } else { 500 };
        assert_eq!(count(), [again; 3], "{mode}");
        run(&lab, &[]).ok().says(&["nothing new"]);
    }
}

#[test]
fn file_sinks_forget_in_their_list() {
    for in_bucket in [false, true] {
        let lab = Lab::new();
        lab.0.folder("store/bucket");
        let server = in_bucket.then(|| S3Server::start(&lab.path("store"), true));
        let (base, block) = match &server {
            None => ("store/bucket/", String::new()),
            Some(server) => (
                "s3://bucket/",
                format!(
                    ", s3: {{endpoint: '{}', allow_http: true, region: us-east-1, max_backoff: 20ms, access_key_id: \
                     {KEY}, secret_access_key: {{secret: env:BUCKET_SECRET}}}}",
                    server.url()
                ),
            ),
        };
        lab.file(
            "job.yaml",
            format!(
                "sources:\n  s: {{read: 'in/*', json: {{columns: {{id: int64, name: utf8}}}}, incremental: true}}\n\
                 sinks:\n  o: {{from: s, write: '{base}{{run}}.csv', mode: append{block}}}\n"
            ),
        );
        files(&lab);
        run(&lab, &[]).ok();
        let rows = || {
            let files = names(&lab.path("store/bucket")).into_iter().filter(|name| name.ends_with(".csv"));
            files.map(|name| csv_rows(&lab.read(&format!("store/bucket/{name}"))).len()).sum::<usize>()
        };
        assert_eq!(rows(), 500);
        for (kill, is_forgotten) in KILLS {
            let mut command = lab.command(&["forget", "job.yaml", "in/b.jsonl"]);
            command.env("MILLSTREAM_FAIL_AT", kill).env("BUCKET_SECRET", SECRET).stderr(Stdio::null());
            assert_eq!(command.status().expect("it starts").signal(), Some(9), "{kill}");
            let before = rows();
            run(&lab, &[]).ok();
            assert_eq!(rows(), before + if *is_forgotten { 100 } else { 0 }, "{in_bucket} {kill}");
        }
        forget(&lab, &["in/c.jsonl"]).ok().says(&["delete them before the next run"]);
        let before = rows();
        run(&lab, &[]).ok();
        assert_eq!(rows(), before + 100);
        run(&lab, &[]).ok().says(&["nothing new"]);
    }
}

/// Rows with a time, read from PostgreSQL into SQLite.
#[test]
fn rows_from_a_time_on_are_read_again() {
    let [_, source] = crate::use_databases::Database::both();
    for (column, to) in [("timestamptz", "2026-01-02T00:00:00Z"), ("timestamp", "2026-01-02 00:00:00")] {
        source.query("DROP TABLE IF EXISTS o");
        source.query(&format!("CREATE TABLE o (id bigint PRIMARY KEY, name text, at {column} NOT NULL)"));
        let values: Vec<String> =
            (1..=5).map(|day| format!("({day}, 'first', '2026-01-0{day} 12:00:00+00')")).collect();
        source.query(&format!("INSERT INTO o VALUES {}", values.join(", ")));
        for mode in ["merge, key: [id]", "append"] {
            let lab = Lab::new();
            let url = &source.url;
            lab.file(
                "job.yaml",
                format!(
                    "sources:\n  s: {{read: '{url}', postgres: {{table: o}}, incremental: {{by: at, lag: 1s}}}}\n\
                     sinks:\n  o: {{from: s, write: 'sqlite:o.db', table: t, mode: {mode}}}\n"
                ),
            );
            run(&lab, &[]).ok();
            let count = |sql: &str| sqlite(&lab.path("o.db"), &format!("SELECT count(*) FROM t WHERE {sql}")).concat();
            assert_eq!(count("true"), ["5"]);
            // What was written without a new time is not seen, until the rows are forgotten.
            source.query("UPDATE o SET name = 'second' WHERE id > 1");
            run(&lab, &[]).ok();
            assert_eq!(count("name = 'second'"), ["0"]);
            killed(&lab, &["forget", "job.yaml", "--to", to], "notes.before");
            run(&lab, &[]).ok();
            assert_eq!(count("name = 'second'"), ["0"], "nothing was forgotten");
            forget(&lab, &["--to", to]).ok().prints(&["o has forgotten the rows of s with at from 2026-01-02"]);
            if mode == "append" {
                sqlite(&lab.path("o.db"), "DELETE FROM t WHERE id > 1");
            }
            run(&lab, &[]).ok();
            assert_eq!((count("true"), count("name = 'second'")), (vec!["5".into()], vec!["4".into()]), "{mode}");
            run(&lab, &[]).ok();
            assert_eq!(count("true"), ["5"]);
            forget(&lab, &["--to", "2999-01-01 00:00Z"]).ended(2).says(&["this is not a time"]);
            source.query("UPDATE o SET name = 'first'");
            forget(&lab, &["in/a"]).ended(2).says(&["are read by the time in a column"]);
        }
        // In files, the mark is in their list.
        let lab = Lab::new();
        let url = &source.url;
        lab.file(
            "job.yaml",
            format!(
                "sources:\n  s: {{read: '{url}', postgres: {{table: o}}, incremental: {{by: at, lag: 1s}}}}\nsinks:\n  \
                 o: {{from: s, write: 'out/{{run}}.csv', mode: append}}\n"
            ),
        );
        let rows = || {
            let files = names(&lab.path("out")).into_iter().filter(|name| name.ends_with(".csv"));
            files.map(|name| csv_rows(&lab.read(&format!("out/{name}"))).len()).sum::<usize>()
        };
        run(&lab, &[]).ok();
        killed(&lab, &["forget", "job.yaml", "--to", to], "notes.before");
        run(&lab, &[]).ok();
        assert_eq!(rows(), 5);
        forget(&lab, &["--to", to]).ok().says(&["delete them before the next run"]);
        run(&lab, &[]).ok();
        run(&lab, &[]).ok();
        assert_eq!(rows(), 9, "four of them twice");
        let other = if column == "timestamp" { "2026-01-02T00:00:00Z" } else { "2026-01-02" };
        let lab = Lab::new();
        let url = &source.url;
        lab.file(
            "job.yaml",
            format!(
                "sources:\n  s: {{read: '{url}', postgres: {{table: o}}, incremental: {{by: at}}}}\nsinks:\n  o: \
                 {{from: s, write: 'sqlite:o.db', table: t, mode: merge, key: [id]}}\n"
            ),
        );
        forget(&lab, &["--to", other]).ended(2).says(&["`--to`", "time zone"]);
        forget(&lab, &["--to", to]).ended(1).says(&["no sink has loaded rows of these sources"]);
        run(&lab, &[]).ok();
        let later = if column == "timestamp" { "2999-01-01" } else { "2999-01-01T00:00:00Z" };
        forget(&lab, &["--to", later]).ended(1).says(&["are loaded only up to", "nothing was forgotten"]);
    }
}

#[test]
fn what_cannot_be_forgotten_is_refused() {
    let (lab, _target) = lab(in_sqlite, "", "");
    files(&lab);
    forget(&lab, &["in/a.jsonl"]).ended(1).says(&["nothing was forgotten: no sink has loaded these files"]);
    assert!(!lab.path("out.db").exists(), "nothing is made for that");
    for (arguments, told) in [
        (&["in/a.jsonl", "--source", "x"][..], "the job has no incremental source of this name"),
        (&["in/a.jsonl", "--sink", "x"], "the job has no sink of this name"),
        (&["in/[a"], "the `[` is not closed"),
        (&[], "<FILE>"),
        (&["in/a.jsonl", "--to", "2026-01-01"], "cannot be used with"),
    ] {
        forget(&lab, arguments).ended(2).says(&[told]);
    }
    lab.file("job.yaml", lab.read("job.yaml").replace("incremental: true, ", ""));
    forget(&lab, &["in/a.jsonl"]).ended(2).says(&["the job has no incremental source"]);
}

/// The load of a job with variables is known by them.
#[test]
fn variables_are_those_of_the_runs() {
    let (lab, target) = lab(in_sqlite, "", "");
    lab.file("job.yaml", lab.read("job.yaml").replace("in/*", "in/${DAY}*"));
    files(&lab);
    run(&lab, &["--set", "DAY=a"]).ok();
    forget(&lab, &["in/a.jsonl", "--set", "DAY=b"]).ended(1).says(&["needs the same `--set`"]);
    let found: Value = forget(&lab, &["in/a.jsonl", "--set", "DAY=a", "--json"]).ok().json();
    assert_eq!(found["sinks"][0]["sink"], "o");
    run(&lab, &["--set", "DAY=a"]).ok();
    assert_eq!(by_file(&target), counts(&[("in/a.jsonl", 600)]));
}
