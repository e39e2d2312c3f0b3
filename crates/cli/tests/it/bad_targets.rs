//! Targets that cannot take the rows: full, read-only, locked, or with rows that do not fit.

use std::path::Path;
use std::process::Command;

use rusqlite::Connection;

use crate::harness::MILLSTREAM;
use crate::transcript::{COLUMNS, Ended, Session, assert_transcript};

fn rows(count: usize) -> String {
    (0..count).fold("id,name\n".to_owned(), |text, number| text + &format!("{number},name {number}\n"))
}

/// Runs `script` in a mount namespace of its own. `$0` is the binary.
fn with_mounts(session: &Session, script: &str) -> Ended {
    let own = if rustix::process::geteuid().is_root() { vec!["--mount"] } else { vec!["--map-root-user", "--mount"] };
    let works = Command::new("unshare").args(&own).args(["mount", "-t", "tmpfs", "tmpfs", "/mnt"]).output();
    let works = works.expect("this test needs unshare of util-linux");
    assert!(
        works.status.success(),
        "this test mounts a small disk: run it as root, or where users may make namespaces (unshare {}): {}",
        own.join(" "),
        String::from_utf8_lossy(&works.stderr)
    );
    let program: Vec<&str> = ["unshare"].into_iter().chain(own).chain(["sh", "-c", script, MILLSTREAM]).collect();
    session.within(&program, &[]).output().expect("unshare runs").into()
}

/// Runs the job with a disk at `out` that is mounted with `options`, and lists what is left on it.
fn on_disk(session: &mut Session, options: &str, after: &str) {
    let mut script = format!("mount -t tmpfs -o size={options} tmpfs out && {after} \"$0\" run job.yaml; code=$?; ");
    script.push_str("ls -A out | sed 's/^/left: /'; exit $code");
    let ended = with_mounts(session, &script);
    let ended = session.record("millstream run job.yaml; ls -A out", ended);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert_eq!(ended.stdout, "", "nothing may be left");
}

const SINKS: [&str; 3] = ["write: out/x.csv", "write: out/x.csv.gz", "write: 'sqlite:out/x.db', table: t"];

#[test]
fn a_full_disk() {
    let mut session = Session::with("rows.csv", rows(20_000));
    session.tree.folder("out");
    for sink in SINKS {
        session.job(&format!("rows: {{read: rows.csv, {COLUMNS}}}"), sink);
        on_disk(&mut session, "32k", "");
    }
    assert_transcript!("target_full", session);
}

#[test]
fn a_read_only_disk() {
    let mut session = Session::with("rows.csv", rows(10));
    session.tree.folder("out");
    for sink in SINKS {
        session.job(&format!("rows: {{read: rows.csv, {COLUMNS}}}"), sink);
        on_disk(&mut session, "1m", "mount -o remount,ro out &&");
    }
    assert_transcript!("target_read_only", session);
}

fn in_table(path: &Path, table: &str) -> i64 {
    let database = Connection::open(path).expect("a database");
    database.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).expect("a count")
}

#[test]
fn a_database_locked_by_another_process() {
    let mut session = Session::with("rows.csv", rows(10));
    let sink = "write: 'sqlite:x.db', table: t, busy_timeout: 300ms";
    session.job(&format!("rows: {{read: rows.csv, {COLUMNS}}}"), sink);
    let database = Connection::open(session.tree.path("x.db")).expect("a database");
    database.execute_batch("CREATE TABLE t (id INTEGER, name TEXT); BEGIN EXCLUSIVE").expect("a lock");
    session.fails(1, &["run", "job.yaml"]);
    database.execute_batch("ROLLBACK").expect("the lock is ours");
    assert_eq!(in_table(&session.tree.path("x.db"), "t"), 0);
    let ended = session.run(&["run", "--quiet", "job.yaml"]);
    assert_eq!((ended.code, in_table(&session.tree.path("x.db"), "t")), (Some(0), 10), "as soon as it is free");
    assert_transcript!("sqlite_locked", session);
}

#[test]
fn rows_that_the_table_refuses() {
    let mut session = Session::with("rows.csv", rows(10));
    let path = session.tree.path("x.db");
    let database = Connection::open(&path).expect("a database");
    database
        .execute_batch(
            "CREATE TABLE keyed (id INTEGER PRIMARY KEY, name TEXT); INSERT INTO keyed VALUES (7, 'before');
             CREATE TABLE other (number INTEGER, name TEXT);
             CREATE TABLE short (id INTEGER, name TEXT CHECK (length(name) < 3))",
        )
        .expect("tables");
    drop(database);
    for table in ["keyed", "other", "short"] {
        session.job(&format!("rows: {{read: rows.csv, {COLUMNS}}}"), &format!("write: 'sqlite:x.db', table: {table}"));
        session.fails(1, &["run", "job.yaml"]);
    }
    assert_eq!(["keyed", "other", "short"].map(|table| in_table(&path, table)), [1, 0, 0], "all or nothing");
    assert_transcript!("sqlite_refused", session);
}

#[test]
fn not_a_database() {
    let mut session = Session::with("rows.csv", rows(10));
    session.tree.file("x.db", "these are the notes of somebody, and no database");
    session.job(&format!("rows: {{read: rows.csv, {COLUMNS}}}"), "write: 'sqlite:x.db', table: t");
    session.fails(1, &["run", "job.yaml"]);
    assert_eq!(
        fs_err::read(session.tree.path("x.db")).expect("the file"),
        b"these are the notes of somebody, and no database"
    );
    assert_transcript!("sqlite_none", session);
}

#[test]
fn a_file_where_a_folder_should_be() {
    let mut session = Session::with("rows.csv", rows(10));
    session.job(&format!("rows: {{read: rows.csv, {COLUMNS}}}"), "write: rows.csv/x.csv");
    session.fails(1, &["run", "job.yaml"]);
    session.tree.folder("folder/x.csv");
    session.job(&format!("rows: {{read: rows.csv, {COLUMNS}}}"), "write: folder/x.csv");
    session.fails(1, &["run", "job.yaml"]);
    assert_transcript!("target_folder", session);
}

#[test]
fn a_fault_in_one_of_two_sinks_leaves_neither() {
    let mut session = Session::with("rows.csv", rows(10));
    Connection::open(session.tree.path("x.db"))
        .and_then(|database| database.execute_batch("CREATE TABLE t (id INTEGER CHECK (id < 5), name TEXT)"))
        .expect("a table");
    session.tree.file(
        "job.yaml",
        format!(
            "sources:\n  rows: {{read: rows.csv, {COLUMNS}}}\nsinks:\n  files: {{from: rows, write: out/x.csv}}\n  \
             table: {{from: rows, write: 'sqlite:x.db', table: t}}\n"
        ),
    );
    session.fails(1, &["run", "job.yaml"]);
    assert_eq!(in_table(&session.tree.path("x.db"), "t"), 0);
    assert_transcript!("target_one_of_two", session);
}

#[test]
fn a_failed_run_leaves_the_result_of_the_one_before() {
    let mut session = Session::with("rows.csv", "id,name\n1,a\n");
    assert_eq!(session.run(&["run", "--quiet", "job.yaml"]).code, Some(0));
    session.tree.file("rows.csv", "id,name\n2,b\nx,c\n");
    let ended = session.run(&["run", "job.yaml"]);
    assert_eq!(ended.code, Some(1));
    assert_eq!(session.left().len(), 1, "and no temporary file");
    assert_eq!(fs_err::read_to_string(session.tree.path("out/x.csv")).expect("the result"), "id,name\n1,a\n");
}
