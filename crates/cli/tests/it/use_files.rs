//! The files of incremental sources through the real binary: which are ready, which have changed and are reloaded, what
//! becomes of them once they are loaded, and how they are forgotten.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, SystemTime};

use millstream_testkit::{Break, KEY, MariaDb, Nginx, Postgres, Proxy, S3Server, SECRET};
use serde_json::{Value, json};

use crate::use_databases::Database;
use crate::use_resume::{Target, in_mariadb, in_postgres, in_sqlite};
use crate::use_support::{Lab, Ran, finish, gzip, names, zip_of};
use crate::use_sync::leave_out;

/// Decoded bytes of a chunk: so few that a file has many, and its rows do not wait in memory.
const CHUNK: &str = "2000";

const ALL: [fn(&Lab) -> Target; 3] = [in_sqlite, in_mariadb, in_postgres];

fn run(lab: &Lab, arguments: &[&str]) -> Ran {
    run_with(lab, arguments, &[])
}

fn run_with(lab: &Lab, arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
    let mut command = lab.command(&[&["run", "job.yaml"], arguments].concat());
    command.env("MILLSTREAM_CHUNK_BYTES", CHUNK).envs(variables.iter().copied());
    finish(command, None)
}

/// Runs the job, which is killed at `fail_point`.
#[track_caller]
fn killed_at(lab: &Lab, fail_point: &str) {
    let mut command = lab.command(&["run", "job.yaml", "--quiet"]);
    command.env("MILLSTREAM_CHUNK_BYTES", CHUNK).env("MILLSTREAM_FAIL_AT", fail_point);
    let status = command.status().expect("it starts");
    assert_eq!(status.signal(), Some(9), "{fail_point}: {status:?}");
}

fn report(lab: &Lab) -> Value {
    run(lab, &["--json"]).ok().json()
}

fn records(ids: std::ops::Range<usize>) -> String {
    ids.map(|id| format!("{{\"id\": {id}, \"name\": \"row {id} é\"}}\n")).collect()
}

fn job(url: &str, more: &str) -> String {
    format!(
        "sources:\n  s: {{read: 'in/*', json: {{columns: {{id: int64, name: utf8}}}}, incremental: true, add: \
         [_uri]{more}}}\nsinks:\n  o: {{from: s, write: '{url}', table: t}}\n"
    )
}

fn lab(target: impl Fn(&Lab) -> Target, more: &str) -> (Lab, Target) {
    let lab = Lab::new();
    let target = target(&lab);
    lab.file("job.yaml", job(&target.url(), more));
    (lab, target)
}

/// How many rows each file has in the table, and the sum of their ids.
fn by_file(target: &Target) -> BTreeMap<String, (usize, usize)> {
    let rows = target.query("SELECT _uri, count(*), sum(id) FROM t GROUP BY _uri ORDER BY _uri");
    let number = |text: &str| text.parse().expect("a number");
    let row = |row: String| {
        let cells: Vec<&str> = row.split('\t').collect();
        (cells[0].to_owned(), (number(cells[1]), number(cells[2])))
    };
    rows.into_iter().map(row).collect()
}

fn of(ids: std::ops::Range<usize>) -> (usize, usize) {
    (ids.len(), ids.sum())
}

#[track_caller]
fn assert_files(target: &Target, expected: &[(&str, std::ops::Range<usize>)]) {
    let expected = expected.iter().map(|(file, ids)| ((*file).to_owned(), of(ids.clone()))).collect();
    assert_eq!(by_file(target), expected);
}

/// Sets when a file was changed, in seconds before now.
fn aged(lab: &Lab, file: &str, seconds: i64) {
    let file = std::fs::File::options().write(true).open(lab.path(file)).expect("it is there");
    let by = Duration::from_secs(seconds.unsigned_abs());
    let now = SystemTime::now();
    file.set_modified(if seconds < 0 { now + by } else { now - by }).expect("it has a time");
}

#[test]
fn files_that_are_too_young_are_left_for_a_later_run() {
    let (lab, target) = lab(in_sqlite, ", ready: {min_age: 5m}");
    for (name, ids, age) in [("a", 0..10, 1_000), ("b", 10..20, 10), ("c", 20..30, -3_600)] {
        lab.file(&format!("in/{name}.jsonl"), records(ids));
        aged(&lab, &format!("in/{name}.jsonl"), age);
    }
    let first = report(&lab);
    let waiting = json!([{"source": "s", "files": 2, "first": ["in/b.jsonl", "in/c.jsonl"]}]);
    assert_eq!(first["not_ready"], waiting);
    assert_files(&target, &[("in/a.jsonl", 0..10)]);
    // Nothing is noted of them.
    aged(&lab, "in/b.jsonl", 400);
    run(&lab, &[]).ok().says(&["  s: 1 file is not ready and is left for a later run: in/c.jsonl"]);
    assert_files(&target, &[("in/a.jsonl", 0..10), ("in/b.jsonl", 10..20)]);
    // A clock that was wrong, and is right again.
    aged(&lab, "in/c.jsonl", 3_600);
    assert_eq!(report(&lab)["not_ready"], json!([]));
    assert_files(&target, &[("in/a.jsonl", 0..10), ("in/b.jsonl", 10..20), ("in/c.jsonl", 20..30)]);
}

#[test]
fn a_source_none_of_whose_files_is_ready_is_empty() {
    let (lab, _) = lab(in_sqlite, ", ready: {min_age: 1h}");
    lab.file("in/a.jsonl", records(0..10));
    run(&lab, &[]).ended(1).says(&["no file is ready to be read", "in/a.jsonl", "allow_empty: true"]);
    lab.file("job.yaml", lab.read("job.yaml").replace("add:", "allow_empty: true, add:"));
    run(&lab, &[]).ok().says(&["1 file is not ready"]);
}

#[test]
fn a_file_is_ready_with_its_marker_beside_it() {
    for (marker, ready, markers) in
        [("{name}.ok", "in/a.jsonl.ok", 1), ("{stem}.done", "in/a.done", 1), ("ok/{name}", "in/ok/a.jsonl", 1)]
    {
        let (lab, target) = lab(in_sqlite, &format!(", ready: {{marker: '{marker}'}}"));
        lab.file("in/a.jsonl", records(0..10));
        lab.file("in/b.jsonl", records(10..20));
        lab.file(ready, "this is no record");
        run(&lab, &[]).ok().says(&["1 file is not ready", "in/b.jsonl"]);
        assert_files(&target, &[("in/a.jsonl", 0..10)]);
        lab.file(&ready.replace('a', "b"), "");
        assert_eq!(report(&lab)["units_loaded_before"], markers);
        assert_files(&target, &[("in/a.jsonl", 0..10), ("in/b.jsonl", 10..20)]);
    }
}

#[test]
fn one_marker_may_stand_for_a_folder_and_is_for_any_source() {
    let (lab, target) = lab(in_sqlite, ", ready: {marker: _SUCCESS, min_age: 1ms}");
    let job = lab.read("job.yaml").replace("in/*", "in/**/*").replace("incremental: true, ", "");
    lab.file("job.yaml", job.replace("table: t", "table: t, mode: replace"));
    lab.file("in/day=1/a.jsonl", records(0..10));
    lab.file("in/day=1/_SUCCESS", "");
    // It is a file like others.
    lab.file("in/day=1/_SUCCESSES", records(10..20));
    lab.file("in/day=2/a.jsonl", records(20..30));
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(report(&lab)["not_ready"][0]["first"], json!(["in/day=2/a.jsonl"]));
    assert_files(&target, &[("in/day=1/_SUCCESSES", 10..20), ("in/day=1/a.jsonl", 0..10)]);
}

#[test]
fn what_has_no_files_has_none_that_are_not_ready() {
    let lab = Lab::new();
    for (read, ready, told) in [
        ("read: '-'", "{min_age: 5m}", "`ready` is for files, and this source reads `stdin`"),
        ("command: {run: [echo, '{}']}", "{min_age: 5m}", "`ready` is for files"),
        ("read: 'sqlite:in.db', sqlite: {table: t}", "{min_age: 5m}", "`ready` is for files"),
        ("read: 'http://127.0.0.1:9/a.jsonl'", "{marker: '{name}.ok'}", "which lists no files"),
        ("read: 'in/*'", "{marker: '{name}'}", "a marker needs some text of its own"),
        ("read: 'in/*'", "{marker: '*.ok'}", "only `{name}` and `{stem}` stand for something"),
        ("read: 'in/*'", "{marker: '../{name}.ok'}", "a marker is beside its file"),
        ("read: 'in/*'", "{min_age: 5 minutes}", "min_age"),
    ] {
        let job = format!("sources:\n  s: {{{read}, ready: {ready}}}\nsinks:\n  o: {{from: s, write: out.jsonl}}\n");
        lab.file("job.yaml", job);
        lab.run(&["check", "job.yaml", "--offline"]).ended(2).says(&[told]);
    }
}

#[test]
fn changed_files_may_be_skipped() {
    let (lab, target) = lab(in_sqlite, ", on_change: skip");
    lab.file("in/a.jsonl", records(0..10));
    lab.file("in/b.jsonl", records(10..20));
    run(&lab, &[]).ok();
    lab.file("in/a.jsonl", records(0..15));
    lab.file("in/c.jsonl", records(20..30));
    let report = report(&lab);
    assert_eq!(report["changed"], json!([{"source": "s", "files": 1, "first": ["in/a.jsonl"]}]));
    let all = [("in/a.jsonl", 0..10), ("in/b.jsonl", 10..20), ("in/c.jsonl", 20..30)];
    assert_files(&target, &all);
    run(&lab, &[]).ok().says(&["warning: s: 1 file has changed since it was loaded and is skipped: in/a.jsonl"]);
    assert_files(&target, &all);
    // The option still loads them beside.
    run(&lab, &["--accept-changed"]).ok();
    assert_eq!(by_file(&target)["in/a.jsonl"].0, 25);
}

/// Files of several kinds.
fn files(lab: &Lab) {
    lab.file("in/a.jsonl", records(0..700));
    lab.file("in/b.jsonl.gz", gzip(records(700..900).as_bytes()));
    let members = [("x.jsonl", records(900..1_000)), ("y.jsonl", records(1_000..1_100))];
    let members: Vec<(&str, &[u8])> = members.iter().map(|(name, text)| (*name, text.as_bytes())).collect();
    lab.file("in/c.zip", zip_of(&members));
    lab.file("in/d.jsonl", records(1_100..1_200));
}

#[test]
fn changed_files_may_be_reloaded() {
    for make in ALL {
        let (lab, target) = lab(make, ", on_change: reload");
        files(&lab);
        run(&lab, &[]).ok();
        // One that grows, one that shrinks to nothing, an archive that loses a member and gets another.
        lab.file("in/a.jsonl", records(0..800));
        lab.file("in/b.jsonl.gz", gzip(b""));
        lab.file("in/c.zip", zip_of(&[("z.jsonl", records(2_000..2_100).as_bytes())]));
        lab.file("in/e.jsonl", records(3_000..3_010));
        let after = [
            ("in/a.jsonl", 0..800),
            ("in/c.zip", 2_000..2_100),
            ("in/d.jsonl", 1_100..1_200),
            ("in/e.jsonl", 3_000..3_010),
        ];
        let report = report(&lab);
        let result = &report["results"][0];
        assert_eq!(
            result["reloaded"],
            json!({"files": 3, "rows_deleted": 1_100, "rows_inserted": 900, "without_rows": []})
        );
        assert_eq!((&result["tally"]["read"], &result["tally"]["written"]), (&json!(910), &json!(910)));
        assert_files(&target, &after);
        run(&lab, &[]).ok().says(&["nothing new", "5 files were loaded before"]);
        // The same content as before is another version, and a version that was there before comes back.
        lab.file("in/c.zip", zip_of(&[("x.jsonl", records(900..1_000).as_bytes())]));
        run(&lab, &[]).ok().says(&["reloaded 1 file that had changed: 100 rows deleted, 100 inserted"]);
        assert_eq!(by_file(&target)["in/c.zip"], of(900..1_000));
        run(&lab, &[]).ok().says(&["nothing new"]);
        assert_eq!(target.tables(), ["_millstream_ledger", "t"]);
    }
}

#[test]
fn only_rows_of_the_file_are_deleted() {
    for make in ALL {
        let (lab, target) = lab(make, ", on_change: reload");
        lab.file("in/a.jsonl", records(0..10));
        run(&lab, &[]).ok();
        // MySQL takes the first two for equal.
        for (id, uri) in [(91, "IN/A.jsonl"), (92, "in/a.jsonl "), (93, "in/a_jsonl"), (94, "in/ä.jsonl")] {
            target.query(&format!("INSERT INTO t (id, name, _uri) VALUES ({id}, 'other', '{uri}')"));
        }
        lab.file("in/a.jsonl", records(5..20));
        run(&lab, &[]).ok().says(&["10 rows deleted, 15 inserted"]);
        assert_eq!(target.query("SELECT count(*), sum(id) FROM t WHERE id < 90"), ["15\t180"]);
        assert_eq!(target.query("SELECT count(*) FROM t WHERE id > 90"), ["4"]);
        // The report names a file whose rows were deleted by someone else.
        target.query("DELETE FROM t WHERE id < 90");
        lab.file("in/a.jsonl", records(0..7));
        run(&lab, &[]).ok().says(&[
            "0 rows deleted, 7 inserted",
            "warning: these had no rows in the table, though they were loaded before: in/a.jsonl",
        ]);
        assert_eq!(target.query("SELECT count(*) FROM t"), ["11"]);
    }
}

/// In each window of a reload, and what is there after it: the old version or the new one.
const WINDOWS: &[(&str, bool)] = &[
    ("reload.read", false),
    ("reload.begun", false),
    ("reload.deleted", false),
    ("reload.noted", false),
    ("bulk.after", false),
    ("commit.before", false),
    ("commit.after", true),
    ("publish.before", true),
    ("forget.before", true),
];

fn killed_in_each_window(target: fn(&Lab) -> Target) {
    for (window, is_new) in WINDOWS {
        for again in [&[] as &[&str], &["--resume"]] {
            let (lab, target) = lab(target, ", on_change: reload");
            lab.file("in/a.jsonl", records(0..700));
            lab.file("in/b.jsonl", records(700..800));
            run(&lab, &[]).ok();
            lab.file("in/a.jsonl", records(100..900));
            killed_at(&lab, window);
            let (old, new) = (0..700, 100..900);
            assert_files(&target, &[("in/a.jsonl", if *is_new { new.clone() } else { old }), ("in/b.jsonl", 700..800)]);
            run(&lab, again).ok();
            assert_files(&target, &[("in/a.jsonl", new), ("in/b.jsonl", 700..800)]);
            run(&lab, &[]).ok().says(&["nothing new"]);
        }
    }
}

#[test]
fn sqlite_killed_in_each_window_of_a_reload() {
    killed_in_each_window(in_sqlite);
}

#[test]
fn mariadb_killed_in_each_window_of_a_reload() {
    killed_in_each_window(in_mariadb);
}

#[test]
fn postgres_killed_in_each_window_of_a_reload() {
    killed_in_each_window(in_postgres);
}

/// Rows of other tables that refer to rows of a file stay when the file is loaded again, in SQLite; the row that is
/// referred to has to come again.
#[test]
fn a_reload_deletes_no_rows_of_other_tables() {
    let (lab, target) = lab(in_sqlite, ", on_change: reload");
    target.query("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, _uri TEXT)");
    target.query("CREATE TABLE child (t INTEGER REFERENCES t (id) ON DELETE CASCADE)");
    lab.file("in/a.jsonl", records(0..3));
    run(&lab, &[]).ok();
    target.query("INSERT INTO child VALUES (0), (1)");
    lab.file("in/a.jsonl", records(0..4));
    run(&lab, &[]).ok();
    assert_eq!(target.query("SELECT count(*) FROM t"), ["4"]);
    assert_eq!(target.query("SELECT t FROM child ORDER BY t"), ["0", "1"]);
    lab.file("in/a.jsonl", records(1..6));
    run(&lab, &[]).ended(1).says(&["1 row of table child of", "would refer to rows that do not exist"]);
    assert_eq!(target.query("SELECT count(*) FROM t"), ["4"]);
    target.query("DELETE FROM child WHERE t = 0");
    run(&lab, &[]).ok();
    assert_eq!(target.query("SELECT count(*) FROM t"), ["5"]);
}

/// Old rows that a trigger leaves in the table would stay beside the new ones.
#[test]
fn a_reload_whose_old_rows_stay_fails() {
    for make in [in_sqlite as fn(&Lab) -> Target, in_postgres] {
        let (lab, target) = lab(make, ", on_change: reload");
        lab.file("in/a.jsonl", records(0..3));
        run(&lab, &[]).ok();
        leave_out(&target, "DELETE", "OLD.id > 1");
        lab.file("in/a.jsonl", records(10..14));
        run(&lab, &[]).ended(1).says(&["table t of", "let go of 2 of 3 rows", "a trigger or a rule of the table"]);
        assert_eq!(target.query("SELECT id FROM t ORDER BY id"), ["0", "1", "2"]);
    }
}

/// A commit that is never answered, and a connection that breaks, cost no row.
#[test]
fn a_reload_survives_connections_that_break() {
    let [mariadb, postgres] = Database::both();
    for (database, port) in [(mariadb, MariaDb::shared().port()), (postgres, Postgres::shared().port())] {
        for broken in [Break::SwallowAnswer("COMMIT"), Break::CutSending(20_000)] {
            let plan = [Break::Nothing, broken, broken, Break::Nothing, Break::Nothing, Break::Nothing];
            let lab = Lab::new();
            lab.file("job.yaml", job(&database.url, ", on_change: reload"));
            lab.file("in/a.jsonl", records(0..700));
            run(&lab, &[]).ok();
            lab.file("in/a.jsonl", records(100..900));
            let proxy = Proxy::start(port, &plan);
            let url = database.url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
            lab.file("job.yaml", job(&url, ", on_change: reload"));
            let ran = run(&lab, &[]);
            lab.file("job.yaml", job(&database.url, ", on_change: reload"));
            let target = Target::Server(database.clone());
            if ran.code != 0 {
                run(&lab, &[]).ok();
            }
            assert_files(&target, &[("in/a.jsonl", 100..900)]);
            database.tables().iter().for_each(|table| drop(database.query(&format!("DROP TABLE {table}"))));
        }
    }
}

#[test]
fn what_is_rejected_of_a_reloaded_file_counts_once() {
    for make in ALL {
        let (lab, target) = lab(make, ", on_change: reload, max_rejects: 1");
        lab.file("in/a.jsonl", records(0..300) + "{\"id\": \"none\"}\n" + &records(300..400));
        run(&lab, &[]).ok();
        assert_files(&target, &[("in/a.jsonl", 0..400)]);
        lab.file("in/a.jsonl", records(0..300) + "{\"id\": \"none at all\"}\n" + &records(300..500));
        killed_at(&lab, "reload.noted");
        // If the reject of the killed run counted, there would be two.
        let report = run(&lab, &["--resume", "--json"]).ok().json();
        assert_eq!(report["rows_rejected"], 1);
        assert_files(&target, &[("in/a.jsonl", 0..500)]);
        lab.file("in/a.jsonl", "{\"id\": \"none\"}\n{\"id\": \"none\"}\n".to_owned() + &records(0..3));
        run(&lab, &[]).ended(3);
        assert_files(&target, &[("in/a.jsonl", 0..500)]);
    }
}

#[test]
fn a_table_that_refuses_a_row_of_a_reloaded_file_keeps_the_old_ones() {
    for make in ALL {
        let (lab, target) = lab(make, ", on_change: reload");
        lab.file("in/a.jsonl", records(0..10));
        target.query("CREATE TABLE t (id BIGINT NOT NULL UNIQUE, name VARCHAR(50), _uri VARCHAR(99))");
        run(&lab, &[]).ok();
        lab.file("in/a.jsonl", records(5..15) + &records(7..8));
        run(&lab, &[]).ended(1).says(&["in/a.jsonl", "refuses a row", "the file stays as it was loaded before"]);
        assert_files(&target, &[("in/a.jsonl", 0..10)]);
        lab.file("in/a.jsonl", records(5..15));
        run(&lab, &[]).ok();
        assert_files(&target, &[("in/a.jsonl", 5..15)]);
    }
}

#[test]
fn what_a_reload_needs_is_told_before_the_run() {
    let (lab, _) = lab(in_sqlite, ", on_change: reload");
    lab.file("in/a.jsonl", records(0..10));
    let job = lab.read("job.yaml");
    let both = "  p: {from: s, write: 'sqlite:out.db', table: t}\n";
    let url = job.split('\'').find(|part| part.starts_with("sqlite:")).expect("a target").to_owned();
    let narrow = job.replace("sinks:", "transforms:\n  n: {select: {from: s, columns: [id]}}\nsinks:");
    for (job, told) in [
        (job.replace("incremental: true, ", ""), "`on_change` is for incremental sources"),
        (job.replace(", add: [_uri]", ""), "finds the rows of a file by the column `_uri`"),
        (job.replace("table: t", "table: t, max_rejects: 5"), "may leave out rows that its table refuses"),
        (job.clone() + &both.replace("sqlite:out.db", &url), "writes to the same table"),
        (narrow.replace("{from: s, write", "{from: n, write"), "have no column `_uri`"),
        (job.replace("reload", "again"), "again"),
    ] {
        lab.file("job.yaml", job);
        lab.run(&["check", "job.yaml"]).ended(2).says(&[told]);
    }
}

#[test]
fn a_column_that_is_not_the_file_of_the_row_is_refused() {
    let (lab, target) = lab(in_sqlite, ", on_change: reload");
    lab.file("in/a.jsonl", records(0..10));
    let job = lab
        .read("job.yaml")
        .replace("sinks:", "transforms:\n  n: {select: {from: s, columns: [id, name, 'upper(_uri) AS _uri']}}\nsinks:");
    lab.file("job.yaml", job.replace("{from: s, write", "{from: n, write"));
    run(&lab, &[]).ok();
    lab.file("in/a.jsonl", records(0..20));
    run(&lab, &[]).ended(2).says(&[
        "the column `_uri` is not the file of the row",
        "IN/A.JSONL",
        "hand it on unchanged",
    ]);
    assert_files(&target, &[("IN/A.JSONL", 0..10)]);
}

#[test]
fn loaded_files_may_be_moved() {
    for make in ALL {
        let (lab, target) = lab(make, ", after_load: {move: done/of s}, ready: {marker: '{name}.ok'}");
        lab.file("job.yaml", lab.read("job.yaml").replace("in/*", "in/**/*.jsonl"));
        lab.file("in/a.jsonl", records(0..10));
        lab.file("in/a.jsonl.ok", "");
        lab.file("in/x/y/b.jsonl", records(10..20));
        lab.file("in/x/y/b.jsonl.ok", "");
        lab.file("in/c.jsonl", records(20..30));
        run(&lab, &[]).ok().says(&["  s: 2 files moved after the load", "in/c.jsonl"]);
        assert_eq!(names(&lab.path("in")), ["c.jsonl", "x"]);
        assert_eq!(names(&lab.path("done/of s")), ["a.jsonl", "a.jsonl.ok", "x"]);
        assert_eq!(names(&lab.path("done/of s/x/y")), ["b.jsonl", "b.jsonl.ok"]);
        // The marker has gone with its file: another one of this name waits for its own, and is then another version.
        lab.file("in/a.jsonl", records(30..40));
        run(&lab, &[]).ended(1).says(&["no file is ready to be read"]);
        assert_files(&target, &[("in/a.jsonl", 0..10), ("in/x/y/b.jsonl", 10..20)]);
    }
}

/// A marker of several files goes with the first of them, and is not looked for again.
#[test]
fn a_marker_of_several_files_is_deleted_once() {
    let (lab, _target) = lab(in_sqlite, ", after_load: delete, ready: {marker: '{stem}.ok'}");
    lab.file("in/a.json", records(0..3));
    lab.file("in/a.jsonl", records(3..5));
    lab.file("in/a.ok", "");
    let report = report(&lab);
    assert_eq!(report["disposed"][0]["deleted"], 2, "{report}");
    assert_eq!(report["disposed"][0]["left"], 0, "{report}");
    assert!(!lab.path("in/a.ok").exists());
}

#[test]
fn loaded_files_may_be_deleted_unless_some_of_their_records_were_rejected() {
    let (lab, target) = lab(in_sqlite, ", after_load: delete, max_rejects: 5");
    lab.file("in/a.jsonl", records(0..10));
    lab.file("in/b.jsonl", records(10..20) + "{\"id\": \"none\"}\n");
    let told = [
        "  s: 1 file deleted after the load",
        "warning: s: 1 file is loaded and stays where it is; the next run tries again",
        "    in/b.jsonl: some of its records were rejected",
    ];
    run(&lab, &[]).ok().says(&told);
    assert_eq!(names(&lab.path("in")), ["b.jsonl"]);
    // A later run, which does not read it, knows it, too.
    lab.file("in/c.jsonl", records(20..30));
    let disposed = report(&lab)["disposed"].clone();
    assert_eq!((&disposed[0]["deleted"], &disposed[0]["left"]), (&json!(1), &json!(1)));
    assert_eq!(names(&lab.path("in")), ["b.jsonl"]);
    assert_files(&target, &[("in/a.jsonl", 0..10), ("in/b.jsonl", 10..20), ("in/c.jsonl", 20..30)]);
}

/// What rejects a record: what the job says at the source, between it and the sink, and at the sink, with the record.
const REJECTING: &[(&str, &str, &str, &str)] = &[
    (", max_rejects: 5", "", "", "{\"id\": \"none\", \"name\": \"a\"}"),
    (", max_rejects: 5, checks: [{range: {id: {min: 0}}, severity: reject}]", "", "", "{\"id\": -1, \"name\": \"a\"}"),
    (
        "",
        "{filter: {from: s, where: 'CAST(substr(name, 5, length(name) - 6) AS bigint) >= 0'}, max_rejects: 5}",
        "",
        "{\"id\": 7, \"name\": \"none\"}",
    ),
    (
        "",
        "{lookup: {from: s, in: names, on: {id: known}, take: [note], miss: reject}, max_rejects: 5}",
        "",
        "{\"id\": 7000, \"name\": \"a\"}",
    ),
    ("", "", ", max_rejects: 5", "{\"id\": 305, \"name\": \"twice\"}"),
];

/// A job in which something rejects records, and its target, in which ids are unique.
fn rejecting(make: fn(&Lab) -> Target, (source, step, sink, _): (&str, &str, &str, &str)) -> (Lab, Target) {
    let (lab, target) = lab(make, &format!(", after_load: {{move: done}}{source}"));
    let known: String = (0..1_000).map(|id| format!("{id},known\n")).collect();
    lab.file("names.csv", format!("known,note\n{known}"));
    let mut job = lab.read("job.yaml").replace("table: t}", &format!("table: t{sink}}}"));
    if !step.is_empty() {
        let names = "  names: {read: names.csv, csv: {columns: {known: int64, note: utf8}}}\n";
        let names = if step.contains("names") { names } else { "" };
        let steps = format!("{names}transforms:\n  x: {step}\nsinks:\n");
        job = job.replace("sinks:\n", &steps).replace("from: s, write", "from: x, write");
    }
    lab.file("job.yaml", job);
    target.query("CREATE TABLE t (id bigint PRIMARY KEY, name varchar(100), _uri varchar(100), note varchar(100))");
    (lab, target)
}

#[test]
fn files_with_rejects_stay_wherever_the_run_history_is() {
    for make in ALL {
        for case in REJECTING {
            let (lab, target) = rejecting(make, *case);
            lab.file("in/a.jsonl", records(0..300));
            lab.file("in/b.jsonl", format!("{}{}\n{}", records(300..600), case.3, records(600..700)));
            run(&lab, &[]).ok().says(&["1 rejected", "1 file moved", "in/b.jsonl: some of its records were rejected"]);
            assert_eq!(names(&lab.path("in")), ["b.jsonl"], "{case:?}");
            // Neither another state folder nor one that has forgotten the run lets the file go.
            run(&lab, &["--state", "other"])
                .ok()
                .says(&["nothing new", "in/b.jsonl: some of its records were rejected"]);
            fs_err::remove_dir_all(lab.path(".state")).expect("it is there");
            run(&lab, &[]).ok().says(&["nothing new", "in/b.jsonl: some of its records were rejected"]);
            assert_eq!(
                (names(&lab.path("in")), names(&lab.path("done"))),
                (vec!["b.jsonl".into()], vec!["a.jsonl".into()])
            );
            assert_eq!(target.query("SELECT count(*) FROM t"), ["700"], "{case:?}");
        }
    }
}

/// Runs on two machines: of the rejects of the first, the second has no log.
#[test]
fn rejects_of_a_killed_run_keep_a_file_that_another_machine_completes() {
    for make in ALL {
        let (lab, target) = lab(make, ", after_load: delete, max_rejects: 5");
        lab.file("in/a.jsonl", format!("{{\"id\": \"none\"}}\n{}", records(0..600)));
        let mut command = lab.command(&["run", "job.yaml", "--quiet", "--memory", "64MiB"]);
        command.env("MILLSTREAM_CHUNK_BYTES", CHUNK).env("MILLSTREAM_FAIL_AT", "commit.after:2");
        assert_eq!(command.status().expect("it starts").signal(), Some(9));
        run(&lab, &["--state", "other"]).ok().says(&["in/a.jsonl: some of its records were rejected"]);
        assert_files(&target, &[("in/a.jsonl", 0..600)]);
        assert_eq!(names(&lab.path("in")), ["a.jsonl"]);
    }
}

/// What is replayed is no reject any more, where the log of both is known.
#[test]
fn a_file_goes_once_its_rejects_are_loaded() {
    let (lab, target) = rejecting(in_sqlite, REJECTING[1]);
    lab.file("in/a.jsonl", format!("{}{}\n", records(10..20), REJECTING[1].3));
    run(&lab, &[]).ok().says(&["in/a.jsonl: some of its records were rejected"]);
    run(&lab, &["--state", "other"]).ok().says(&["in/a.jsonl: some of its records were rejected"]);
    let job = lab.read("job.yaml");
    lab.file("job.yaml", job.replace("min: 0", "min: -5"));
    lab.run(&["rejects", "--replay"]).ok();
    assert_eq!(target.query("SELECT count(*) FROM t"), ["11"]);
    lab.file("job.yaml", job);
    run(&lab, &["--state", "other"]).ok().says(&["in/a.jsonl: some of its records were rejected"]);
    run(&lab, &[]).ok().says(&["1 file moved"]);
    assert_eq!(names(&lab.path("done")), ["a.jsonl"]);
}

#[test]
fn the_rejects_of_the_new_version_count_once_a_file_is_reloaded() {
    for make in ALL {
        let (lab, target) = lab(make, ", on_change: reload, max_rejects: 5");
        lab.file("in/a.jsonl", records(0..10));
        run(&lab, &[]).ok();
        lab.file("in/a.jsonl", format!("{{\"id\": \"none\"}}\n{}", records(0..12)));
        run(&lab, &[]).ok().says(&["1 rejected"]);
        lab.file("job.yaml", lab.read("job.yaml").replace("on_change:", "after_load: delete, on_change:"));
        fs_err::remove_dir_all(lab.path(".state")).expect("it is there");
        run(&lab, &[]).ok().says(&["in/a.jsonl: some of its records were rejected"]);
        // The note of the old version goes with it.
        lab.file("in/a.jsonl", records(0..15));
        fs_err::remove_dir_all(lab.path(".state")).expect("it is there");
        run(&lab, &[]).ok().says(&["1 file deleted"]);
        assert!(names(&lab.path("in")).is_empty());
        assert_files(&target, &[("in/a.jsonl", 0..15)]);
    }
}

#[test]
fn nothing_is_overwritten_where_files_are_moved_to() {
    let (lab, target) = lab(in_sqlite, ", after_load: {move: done}");
    lab.file("in/a.jsonl", records(0..10));
    lab.file("in/b.jsonl", records(10..20));
    lab.file("done/a.jsonl", "another");
    run(&lab, &[]).ok().says(&[
        "  s: 1 file moved after the load",
        "in/a.jsonl: there is a file of this name where it is to be moved: done/a.jsonl",
    ]);
    assert_eq!((names(&lab.path("in")), lab.read("done/a.jsonl")), (vec!["a.jsonl".to_owned()], "another".to_owned()));
    fs_err::remove_file(lab.path("done/a.jsonl")).expect("it goes");
    run(&lab, &[]).ok().says(&["nothing new", "  s: 1 file moved after the load"]);
    assert_eq!(names(&lab.path("done")), ["a.jsonl", "b.jsonl"]);
    assert_files(&target, &[("in/a.jsonl", 0..10), ("in/b.jsonl", 10..20)]);
}

#[test]
fn a_failed_run_moves_nothing() {
    let (lab, _) = lab(in_sqlite, ", after_load: {move: done}");
    lab.file("in/a.jsonl", records(0..10));
    lab.file("in/b.jsonl", "{\"id\": \"none\"}\n");
    run(&lab, &[]).ended(1);
    assert_eq!(names(&lab.path("in")), ["a.jsonl", "b.jsonl"]);
    lab.file("in/b.jsonl", records(10..20));
    run(&lab, &[]).ok().says(&["2 files moved after the load"]);
    assert!(names(&lab.path("in")).is_empty());
}

#[test]
fn the_next_run_moves_what_a_killed_one_has_loaded() {
    for make in ALL {
        for (window, left, again) in [
            ("commit.after", 3, &[] as &[&str]),
            ("publish.after", 3, &[]),
            ("forget.before", 3, &["--resume"]),
            ("after_load.before", 3, &[]),
            ("after_load.next:1", 2, &["--resume"]),
            ("after_load.next:2", 1, &[]),
        ] {
            let (lab, target) = lab(make, ", after_load: {move: done}");
            for (name, ids) in [("a", 0..300), ("b", 300..400), ("c", 400..500)] {
                lab.file(&format!("in/{name}.jsonl"), records(ids));
            }
            killed_at(&lab, window);
            assert_eq!(names(&lab.path("in")).len(), left, "{window}");
            run(&lab, again).ok();
            assert_eq!(names(&lab.path("done")), ["a.jsonl", "b.jsonl", "c.jsonl"], "{window}");
            assert!(names(&lab.path("in")).is_empty(), "{window}");
            assert_files(&target, &[("in/a.jsonl", 0..300), ("in/b.jsonl", 300..400), ("in/c.jsonl", 400..500)]);
        }
    }
}

#[test]
fn a_reloaded_file_is_moved_and_a_skipped_one_stays() {
    for (on_change, left) in [("reload", 0), ("skip", 1)] {
        let (lab, target) = lab(in_sqlite, &format!(", on_change: {on_change}"));
        lab.file("in/a.jsonl", records(0..10));
        run(&lab, &[]).ok();
        lab.file("in/a.jsonl", records(0..20));
        let job = lab.read("job.yaml").replace("on_change:", "after_load: {move: done}, on_change:");
        lab.file("job.yaml", job);
        run(&lab, &[]).ok();
        assert_eq!(names(&lab.path("in")).len(), left, "{on_change}");
        assert_files(&target, &[("in/a.jsonl", if left == 0 { 0..20 } else { 0..10 })]);
    }
}

#[test]
fn what_becomes_of_files_is_for_local_ones_of_incremental_sources() {
    let (lab, _) = lab(in_sqlite, ", after_load: {move: done}");
    lab.file("in/a.jsonl", records(0..10));
    let job = lab.read("job.yaml");
    for (job, told) in [
        (job.replace("incremental: true, ", ""), "`after_load` is for incremental sources"),
        (
            job.replace("'in/*'", "'s3://bucket/*'"),
            "`after_load` is for files of this machine, and this source reads `s3`",
        ),
        (job.replace("'in/*'", "'@list'"), "and this source reads `a list`"),
        (job.replace("{move: done}", "gone"), "gone"),
        (
            job.replace("after_load: {move: done}", "on_change: reload").replace("table: t", "table: t, atomic: true"),
            "`on_change: reload` of `s` needs sinks that are loaded file by file",
        ),
    ] {
        lab.file("job.yaml", job);
        lab.run(&["check", "job.yaml"]).ended(2).says(&[told]);
    }
    // Files that would be read again where they are moved to stay.
    lab.file("job.yaml", job.replace("in/*", "**/*.jsonl"));
    run(&lab, &[]).ok().says(&["in/a.jsonl: the file would be read again where it is to be moved: done/in/a.jsonl"]);
}

/// Objects have a time of change, markers are objects, and their URLs tell the rows of each.
#[test]
fn objects_of_a_bucket_are_like_files() {
    let lab = Lab::new();
    lab.0.folder("store/bucket");
    let server = S3Server::start(&lab.path("store"), true);
    let block = format!(
        "s3: {{endpoint: '{}', allow_http: true, region: us-east-1, access_key_id: {KEY}, secret_access_key: {{secret: \
         env:BUCKET_SECRET}}}}",
        server.url()
    );
    let more = format!(", on_change: reload, ready: {{min_age: 5m, marker: '{{stem}}.done'}}, {block}");
    lab.file("job.yaml", job("sqlite:out.db", &more).replace("in/*", "s3://bucket/in/*"));
    for (name, ids, age) in [("a", 0..10, 1_000), ("b", 10..20, 10), ("c", 20..30, 1_000)] {
        lab.file(&format!("store/bucket/in/{name}.jsonl"), records(ids));
        aged(&lab, &format!("store/bucket/in/{name}.jsonl"), age);
    }
    lab.file("store/bucket/in/a.done", "");
    lab.file("store/bucket/in/b.done", "");
    let secret = [("BUCKET_SECRET", SECRET)];
    let report = run_with(&lab, &["--json"], &secret).ok().json();
    assert_eq!(report["not_ready"][0]["first"], json!(["s3://bucket/in/b.jsonl", "s3://bucket/in/c.jsonl"]));
    let target = Target::Sqlite(lab.path("out.db"));
    assert_files(&target, &[("s3://bucket/in/a.jsonl", 0..10)]);
    lab.file("store/bucket/in/a.jsonl", records(5..25));
    aged(&lab, "store/bucket/in/a.jsonl", 500);
    run_with(&lab, &[], &secret).ok().says(&["10 rows deleted, 20 inserted"]);
    assert_files(&target, &[("s3://bucket/in/a.jsonl", 5..25)]);
}

#[test]
fn a_server_that_does_not_tell_the_time_of_change_has_no_files_of_an_age() {
    let (lab, _) = lab(in_sqlite, ", ready: {min_age: 5m}");
    lab.file("served/a.jsonl", records(0..10));
    let nginx = Nginx::start(&lab.path("served"));
    let job = lab.read("job.yaml").replace("in/*", &nginx.url("a.jsonl"));
    lab.file("job.yaml", job);
    run(&lab, &[]).ended(1).says(&["it is not known when this was last changed", "a.jsonl", "a `marker` does not"]);
}
