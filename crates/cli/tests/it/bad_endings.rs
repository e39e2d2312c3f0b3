//! Early endings: a reader that closes the pipe, a user who cancels the run; and their JSON output.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{MILLSTREAM, without_progress};
use crate::transcript::{COLUMNS, Session, assert_transcript};

/// No test waits longer than this for what must come.
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn a_reader_who_leaves_ends_it_quietly() {
    let mut session = Session::with("rows.csv", "1,some name that fills the pipe\n".repeat(100_000));
    session.job(
        "rows: {read: rows.csv, csv: {header: false, columns: {id: int64, name: utf8}}}",
        "write: '-', csv: {header: false}",
    );
    for command in ["run job.yaml", "cat rows.csv", "preview job.yaml -n 50000", "check --schema"] {
        let script = format!("set -o pipefail; '{MILLSTREAM}' {command} | head -1");
        let output = session.within(&["bash", "-c"], &[&script]).output().expect("bash runs");
        let ended = session.record(&format!("set -o pipefail; millstream {command} | head -1"), output);
        assert_eq!(ended.code, Some(0), "{command}: {}", ended.stderr);
        assert_eq!(ended.stdout.lines().count(), 1, "{command}");
        assert_eq!(ended.stderr, "", "{command}: not a word");
    }
    assert_transcript!("reader_leaves", session);
}

#[test]
fn a_reader_who_leaves_takes_nothing_from_another_sink_in_silence() {
    let session = Session::with("rows.csv", "1,some name that fills the pipe\n".repeat(100_000));
    session.tree.file(
        "job.yaml",
        "sources:\n  rows: {read: rows.csv, csv: {header: false, columns: {id: int64, name: utf8}}}\nsinks:\n  \
         shown: {from: rows, write: '-', csv: {}}\n  kept: {from: rows, write: out/x.csv}\n",
    );
    let script = format!("set -o pipefail; '{MILLSTREAM}' run job.yaml | head -1");
    let output = session.within(&["bash", "-c"], &[&script]).output().expect("bash runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("its reader has closed it") && said.contains("step shown"), "{said}");
    assert!(session.left().is_empty(), "all sinks of a job or none");
}

#[test]
fn a_full_standard_output_is_a_failure() {
    let mut session = Session::with("rows.csv", "id,name\n1,a\n");
    session.job(&format!("rows: {{read: rows.csv, {COLUMNS}}}"), "write: '-', csv: {}");
    for command in ["run job.yaml", "cat rows.csv", "count rows.csv", "preview job.yaml", "guess rows.csv"] {
        let script = format!("'{MILLSTREAM}' {command} > /dev/full");
        let output = session.within(&["sh", "-c"], &[&script]).output().expect("sh runs");
        let ended = session.record(&format!("millstream {command} > /dev/full"), output);
        assert_eq!(ended.code, Some(1), "{command}");
    }
    assert_transcript!("standard_output_full", session);
}

/// A run that reads from a pipe which stays open, and has begun to write.
struct Slow {
    child: Child,
    /// Keeps the pipe open.
    _pipe: std::process::ChildStdin,
}

impl Slow {
    /// Ends its input, and waits for its end.
    fn finish(self) -> std::process::Output {
        drop(self._pipe);
        self.child.wait_with_output().expect("it ends")
    }
}

/// Starts the job of `session` with rows on standard input, and waits until `begun` says that it writes.
fn slow(session: &Session, rows: usize, begun: impl Fn() -> bool) -> Slow {
    // The test process may ignore hangups, which its children would inherit.
    let mut command = session.within(&["env", "--default-signal=HUP", MILLSTREAM], &["run", "job.yaml"]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    slow_child(command.spawn().expect("the binary starts"), rows, begun)
}

/// The same for a run that was started otherwise.
fn slow_child(mut child: Child, rows: usize, begun: impl Fn() -> bool) -> Slow {
    use std::io::Write;
    let mut pipe = child.stdin.take().expect("a pipe");
    pipe.write_all(b"id,name\n").expect("it reads");
    pipe.write_all("1,a\n".repeat(rows).as_bytes()).expect("it reads");
    wait_until("the run writes", begun);
    Slow { child, _pipe: pipe }
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal(child: &Child, signal: Signal) {
    let id = Pid::from_raw(child.id().try_into().expect("a small number")).expect("not zero");
    kill_process(id, signal).expect("it runs");
}

fn ended(mut slow: Slow) -> std::process::Output {
    let start = Instant::now();
    while slow.child.try_wait().expect("our child").is_none() {
        if start.elapsed() > PATIENCE {
            slow.child.kill().expect("it runs");
            panic!("the run did not end within {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    slow.child.wait_with_output().expect("it has ended")
}

#[test]
fn ctrl_c_takes_back_what_was_written() {
    let mut session = Session::new();
    Connection::open(session.tree.path("x.db"))
        .and_then(|database| database.execute_batch("CREATE TABLE t (id INTEGER, name TEXT)"))
        .expect("a table");
    session.tree.file(
        "job.yaml",
        format!(
            "sources:\n  rows: {{read: '-', {COLUMNS}}}\nsinks:\n  files: {{from: rows, write: out/x.csv}}\n  \
             table: {{from: rows, write: 'sqlite:x.db', table: t}}\n"
        ),
    );
    for (one, shown) in [(Signal::INT, "Ctrl-C"), (Signal::TERM, "kill"), (Signal::HUP, "a terminal that goes away")] {
        let out = session.tree.path("out");
        let slow = slow(&session, 200_000, || fs_err::read_dir(&out).is_ok_and(|mut entries| entries.next().is_some()));
        signal(&slow.child, one);
        let ended = session.record(&format!("millstream run job.yaml   # {shown}"), ended(slow));
        assert_eq!(ended.code, Some(130), "{}", ended.stderr);
        assert!(session.left().is_empty(), "temporary files are gone, too: {:?}", session.left());
        let database = Connection::open(session.tree.path("x.db")).expect("a database");
        let rows: i64 = database.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).expect("a count");
        assert_eq!(rows, 0);
    }
    assert_transcript!("interrupted", session);
}

/// A run under `nohup` continues after a hangup.
#[test]
fn a_hangup_that_is_ignored_stays_ignored() {
    let session = Session::new();
    session.job(&format!("rows: {{read: '-', {COLUMNS}}}"), "write: out/x.csv");
    let out = session.tree.path("out");
    // The redirections keep `nohup` from telling what it does with a terminal.
    let mut command = session.within(&["nohup", MILLSTREAM], &["run", "job.yaml"]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let slow = slow_child(command.spawn().expect("the binary starts"), 200_000, || {
        fs_err::read_dir(&out).is_ok_and(|mut entries| entries.next().is_some())
    });
    signal(&slow.child, Signal::HUP);
    let output = slow.finish();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(session.left().len(), 1);
}

/// Rolling back waits for a database that another process has locked; the second Ctrl-C does not.
#[test]
fn a_second_ctrl_c_ends_at_once() {
    let session = Session::new();
    let sink = "write: 'sqlite:x.db', table: t, busy_timeout: 1h";
    session.job(&format!("rows: {{read: '-', {COLUMNS}}}"), sink);
    let path = session.tree.path("x.db");
    let database = Connection::open(&path).expect("a database");
    database.execute_batch("CREATE TABLE t (id INTEGER, name TEXT); BEGIN EXCLUSIVE").expect("a lock");
    let mut slow = slow(&session, 10, || true);
    let stderr = slow.child.stderr.take().expect("a pipe");
    let (sender, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(stderr);
        let mut line = String::new();
        // It may have taken so long to begin that it has told its progress.
        while without_progress(&line).is_empty() && lines.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {}
        let _ = sender.send(without_progress(&line));
        let _ = lines.read_to_end(&mut Vec::new());
    });
    wait_for_handler(&slow.child, Signal::INT);
    signal(&slow.child, Signal::INT);
    let line = told.recv_timeout(PATIENCE).expect("it answers the first");
    assert!(line.contains("a second Ctrl-C ends at once"), "{line}");
    if slow.child.try_wait().expect("our child").is_none() {
        signal(&slow.child, Signal::INT);
    }
    assert_eq!(ended(slow).status.code(), Some(130));
    database.execute_batch("ROLLBACK").expect("the lock is ours");
    assert_eq!(rows_of(&path), 0);
}

/// Waits until the process has a handler for `signal`: before that, the signal would end it without a word.
fn wait_for_handler(child: &Child, signal: Signal) {
    let status = format!("/proc/{}/status", child.id());
    let begun = Instant::now();
    loop {
        let text = fs_err::read_to_string(&status).expect("it runs");
        let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("caught signals").trim();
        let caught = u64::from_str_radix(caught, 16).expect("a bit for each signal");
        if caught >> (signal.as_raw() - 1) & 1 == 1 {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "it never handles the signal");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn rows_of(path: &Path) -> i64 {
    let database = Connection::open(path).expect("a database");
    database.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).expect("a count")
}

/// What standard output holds as one JSON object.
fn object(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|fault| panic!("{fault}: {text}"))
}

#[test]
fn failures_are_reported_in_the_machine_output() {
    let mut session = Session::with("rows.csv", "id,name\n1,a\nabc,b\n");
    for command in [["run", "--json"], ["preview", "--json"]] {
        let ended = session.fails(1, &[command[0], command[1], "job.yaml"]);
        let told = object(&ended.stdout);
        let error = &told["errors"][0];
        assert_eq!((&error["kind"], &error["line"], &error["column"]), (&"data".into(), &3.into(), &"id".into()));
        assert!(error["hint"].is_string() && error["step"] == "rows" && error["uri"] == "rows.csv", "{error}");
    }
    let ended = session.fails(1, &["count", "--json", "nosuch.csv"]);
    assert_eq!(object(&ended.stdout)["errors"][0]["kind"], "refused");
    session.tree.file(
        "bad.yaml",
        "sources:\n  rows: {read: rows.csv, reed: 1}\nsinks:\n  out: {from: rows, write: out/x.csv}\n",
    );
    for command in ["check", "run"] {
        let ended = session.fails(2, &[command, "--json", "bad.yaml"]);
        let told = object(&ended.stdout);
        assert_eq!((&told["lints"][0]["line"], &told["errors"]), (&2.into(), &Value::Array(Vec::new())), "{told}");
    }
    assert_transcript!("json_failures", session);
}

#[test]
fn quiet_prints_errors_only() {
    let mut session = Session::with("rows.csv", "id,name\n1,a\nabc,b\n");
    let loud = session.fails(1, &["run", "job.yaml"]);
    let quiet = session.fails(1, &["run", "--quiet", "job.yaml"]);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr), ("", loud.stderr), "an error is not chat");
    session.tree.file("rows.csv", "id,name\n1,a\n");
    let done = session.run(&["run", "--quiet", "job.yaml"]);
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (Some(0), "", ""));
}
