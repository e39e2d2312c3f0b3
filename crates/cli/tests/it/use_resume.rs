//! Loading chunk by chunk through the real binary: whatever dies, and whenever, every row is there once in the end.
//!
//! `use_resume/merge.rs` has loads into staging tables. The tables here have no key, so that nothing but the ledger
//! keeps rows from coming twice. With `MILLSTREAM_LONG_TESTS` every fail point is tried several times, and many more
//! moments.

mod merge;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::{Deref, DerefMut};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use millstream_testkit::{Break, MariaDb, MariaDbOptions, Mount, Postgres, PostgresOptions, Proxy};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::use_databases::Database;
use crate::use_support::{Lab, Ran, finish, gzip, sqlite, zip_of};

/// Records of each file.
const RECORDS: usize = 700;

/// Decoded bytes of a chunk.
const CHUNK: &str = "2000";

/// Where a run is killed, and how often it comes there before the last time. `.end` is the end of the run.
const FAIL_POINTS: &[(&str, &[usize])] = &[
    ("ledger.before", &[1, 3]),
    ("ledger.after", &[2]),
    ("bulk.before", &[2]),
    ("bulk.after", &[1, 3]),
    ("commit.before", &[1, 2, 4]),
    ("commit.after", &[1, 2, 4]),
    ("state.before", &[1, 2]),
    ("state.after", &[1, 2]),
    ("publish.before", &[1]),
    ("publish.after", &[1]),
    ("forget.before", &[1]),
];

/// A database that rows are loaded into, and looked at.
pub enum Target {
    Sqlite(PathBuf),
    Server(Database),
}

impl Target {
    pub fn url(&self) -> String {
        match self {
            Target::Sqlite(path) => format!("sqlite:{}", path.display()),
            Target::Server(database) => database.url.clone(),
        }
    }

    pub fn query(&self, sql: &str) -> Vec<String> {
        match self {
            Target::Sqlite(path) => sqlite(path, sql).into_iter().map(|row| row.join("\t")).collect(),
            Target::Server(database) => database.query(sql),
        }
    }

    pub fn tables(&self) -> Vec<String> {
        match self {
            Target::Sqlite(_) => self.query("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1"),
            Target::Server(database) => database.tables(),
        }
    }
}

fn is_long() -> bool {
    std::env::var_os("MILLSTREAM_LONG_TESTS").is_some()
}

fn record(id: usize) -> String {
    format!(r#"{{"id": {id}, "name": "row {id} é", "half": {}}}"#, id % 2)
}

fn records(ids: std::ops::Range<usize>) -> String {
    ids.fold(String::new(), |mut text, id| {
        let _ = writeln!(text, "{}", record(id));
        text
    })
}

/// Files of several kinds: plain, packed, an archive, and one that is empty.
fn files(lab: &Lab) {
    let of = |file: usize| records(file * RECORDS..(file + 1) * RECORDS);
    lab.file("in/0.jsonl", of(0));
    lab.file("in/1.jsonl.gz", gzip(of(1).as_bytes()));
    lab.file("in/2.zip", zip_of(&[("a.jsonl", of(2).as_bytes()), ("b.jsonl", of(3).as_bytes())]));
    lab.file("in/4.jsonl", of(4) + &of(5));
    lab.file("in/empty.jsonl", "");
}

const FILES: usize = 6;

fn job(url: &str, more: &str) -> String {
    format!(
        "sources:\n  s: {{read: 'in/*', json: {{columns: {{id: int64, name: utf8, half: \
         int64}}}}{more}}}\ntransforms:\n  \
         t: {{filter: {{from: s, where: 'half = 0 OR id > 5'}}}}\n  u: {{select: {{from: t, columns: [id, \
         \"upper(name) AS name\"]}}}}\n\
         sinks:\n  o: {{from: u, write: '{url}', table: t}}\n"
    )
}

fn lab(target: impl Fn(&Lab) -> Target) -> (Lab, Target) {
    let lab = Lab::new();
    files(&lab);
    let target = target(&lab);
    lab.file("job.yaml", job(&target.url(), ""));
    (lab, target)
}

fn command(lab: &Lab, arguments: &[&str]) -> Command {
    let mut command = lab.command(arguments);
    command.env("MILLSTREAM_CHUNK_BYTES", CHUNK);
    command
}

fn run(lab: &Lab, arguments: &[&str]) -> Ran {
    finish(command(lab, &[&["run", "job.yaml"], arguments].concat()), None)
}

/// A run in the background that ends with its test, even one that was stopped by a signal and never went on.
struct Running(Child);

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended, and been waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(lab: &Lab, variables: &[(&str, &str)]) -> Running {
    let mut command = command(lab, &["run", "job.yaml", "--quiet"]);
    command.envs(variables.iter().copied()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Running(command.spawn().expect("it starts"))
}

/// All rows that belong into the table, each once, by their keys.
pub fn expected(ids: std::ops::Range<usize>) -> BTreeMap<String, usize> {
    let kept = ids.filter(|id| id % 2 == 0 || *id > 5);
    kept.map(|id| (format!("{id}\tROW {id} É"), 1)).collect()
}

#[track_caller]
fn assert_rows(target: &Target, expected: &BTreeMap<String, usize>) {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for row in target.query("SELECT id, name FROM t") {
        *found.entry(row).or_default() += 1;
    }
    let wrong: Vec<_> = found.iter().filter(|(row, count)| expected.get(*row) != Some(*count)).take(5).collect();
    assert!(wrong.is_empty(), "rows that come too often, or do not belong here: {wrong:?}");
    assert_eq!(found.len(), expected.len(), "rows are missing");
}

/// Everything is in the table, and nothing else is left.
#[track_caller]
fn assert_complete(target: &Target) {
    assert_rows(target, &expected(0..FILES * RECORDS));
    assert_eq!(target.tables(), ["t"], "the ledger goes when the run is complete");
}

/// In the middle of it: what is there is there once, and so is each chunk.
#[track_caller]
fn assert_no_row_twice(target: &Target) {
    if !target.tables().iter().any(|table| table == "t") {
        return;
    }
    assert_eq!(target.query("SELECT id FROM t GROUP BY id HAVING count(*) > 1"), Vec::<String>::new());
    if target.tables().iter().any(|table| table == "_millstream_ledger") {
        let twice = "SELECT chunk FROM _millstream_ledger GROUP BY load_key, unit_key, chunk HAVING count(*) > 1";
        assert_eq!(target.query(twice), Vec::<String>::new());
    }
}

fn start_over(lab: &Lab, target: &Target) {
    let _ = fs_err::remove_dir_all(lab.path(".state"));
    for table in target.tables() {
        target.query(&format!("DROP TABLE {table}"));
    }
}

#[track_caller]
fn resume(lab: &Lab, target: &Target) {
    assert_no_row_twice(target);
    let ran = run(lab, &["--resume"]);
    ran.ok();
    assert_rows(target, &expected(0..FILES * RECORDS));
    if target.tables() == ["t"] {
        // There is nothing more to do, and that is no error.
        run(lab, &["--resume"]).ok().says(&["nothing new"]);
    } else {
        // It was killed when all was done but to forget: the next run does that.
        ran.says(&["nothing new"]);
        run(lab, &[]).ok();
        assert_eq!(target.tables(), ["t"], "the ledger goes when the run is complete");
    }
}

fn killed_at_each_fail_point(target: impl Fn(&Lab) -> Target) {
    let (lab, target) = lab(target);
    for (fail_point, times) in FAIL_POINTS {
        let times: Vec<usize> = if is_long() { (1..=8).collect() } else { times.to_vec() };
        for time in times {
            let status =
                spawn(&lab, &[("MILLSTREAM_FAIL_AT", &format!("{fail_point}:{time}"))]).wait().expect("it ends");
            let killed = status.signal() == Some(9);
            assert!(killed || (is_long() && status.success()), "{fail_point}:{time}: {status:?}");
            println!("killed at {fail_point}:{time}");
            resume(&lab, &target);
            start_over(&lab, &target);
        }
    }
}

/// Runs the job, and kills it at one of many moments of a run that takes `whole`.
fn killed_at_moment(lab: &Lab, moment: u32, moments: u32, whole: Duration) {
    // Spread over the run, and a little beside the last time.
    let share = (f64::from(moment) + f64::from(std::process::id() % 97) / 97.0) / f64::from(moments);
    let mut child = spawn(lab, &[]);
    std::thread::sleep(whole.mul_f64(share));
    child.kill().expect("it can be killed");
    child.wait().expect("it ends");
}

fn killed_at_any_moment(target: impl Fn(&Lab) -> Target) {
    let (lab, target) = lab(target);
    let begun = Instant::now();
    run(&lab, &[]).ok();
    let whole = begun.elapsed();
    assert_complete(&target);
    start_over(&lab, &target);
    let moments = if is_long() { 100 } else { 25 };
    for moment in 0..moments {
        killed_at_moment(&lab, moment, moments, whole);
        resume(&lab, &target);
        start_over(&lab, &target);
    }
}

pub fn in_sqlite(lab: &Lab) -> Target {
    Target::Sqlite(lab.path("out.db"))
}

pub fn in_mariadb(_: &Lab) -> Target {
    let [database, _] = Database::both();
    Target::Server(database)
}

pub fn in_postgres(_: &Lab) -> Target {
    let [_, database] = Database::both();
    Target::Server(database)
}

#[test]
fn sqlite_killed_at_each_fail_point() {
    killed_at_each_fail_point(in_sqlite);
}

#[test]
fn mariadb_killed_at_each_fail_point() {
    killed_at_each_fail_point(in_mariadb);
}

#[test]
fn postgres_killed_at_each_fail_point() {
    killed_at_each_fail_point(in_postgres);
}

#[test]
fn sqlite_killed_at_any_moment() {
    killed_at_any_moment(in_sqlite);
}

#[test]
fn mariadb_killed_at_any_moment() {
    killed_at_any_moment(in_mariadb);
}

#[test]
fn postgres_killed_at_any_moment() {
    killed_at_any_moment(in_postgres);
}

/// Both servers, and how to get at them through a proxy.
fn servers() -> [(Database, u16); 2] {
    let [mariadb, postgres] = Database::both();
    [(mariadb, MariaDb::shared().port()), (postgres, Postgres::shared().port())]
}

#[test]
fn connections_that_break_cost_no_row() {
    let (no_answer, in_the_middle) = (Break::SwallowAnswer("COMMIT"), Break::CutSending(30_000));
    for (database, port) in servers() {
        for broken in [no_answer, in_the_middle] {
            let plan = [Break::Nothing, Break::Nothing, broken, Break::Nothing, broken, Break::Nothing];
            let proxy = Proxy::start(port, &plan);
            let lab = Lab::new();
            files(&lab);
            let url = database.url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
            lab.file("job.yaml", job(&url, ""));
            let ran = run(&lab, &[]);
            let target = Target::Server(database.clone());
            if ran.code != 0 {
                assert_no_row_twice(&target);
                run(&lab, &["--resume"]).ok();
            }
            assert_complete(&target);
            start_over(&lab, &target);
        }
    }
}

/// Rows that are more than fits on a disk of a few megabytes.
const WIDE: usize = 16_000;

/// A load fails when the server's disk gets full, and can be resumed when there is room.
fn fills_the_disk<S>(
    server: &mut S,
    url: &str,
    query: impl Fn(&S, &str) -> Vec<String>,
    make_room: impl FnOnce(&mut S),
) {
    let lab = Lab::new();
    for file in 0..4 {
        let rows = (file * WIDE / 4..(file + 1) * WIDE / 4)
            .map(|id| format!(r#"{{"id": {}, "name": "{}", "half": 0}}"#, id, format!("{id:07}").repeat(60)));
        lab.file(&format!("in/{file}.jsonl"), rows.collect::<Vec<_>>().join("\n") + "\n");
    }
    lab.file("job.yaml", job(url, "").replace("table: t}", "table: t, retries: 0}"));
    let run = |arguments: &[&str]| {
        let mut command = lab.command(&[&["run", "job.yaml"], arguments].concat());
        command.env("MILLSTREAM_CHUNK_BYTES", "50000");
        finish(command, None)
    };
    let full = run(&[]);
    full.ended(1).says(&["free some space on the server's disk"]);
    assert_eq!(query(server, "SELECT id FROM t GROUP BY id HAVING count(*) > 1"), Vec::<String>::new());
    run(&["--resume"]).ended(1).says(&["free some space on the server's disk"]);
    make_room(server);
    run(&["--resume"]).ok();
    let sum = WIDE * (WIDE - 1) / 2;
    let whole = "SELECT count(*), sum(id), count(DISTINCT name) FROM t WHERE length(name) = 420";
    assert_eq!(query(server, whole), [format!("{WIDE}\t{sum}\t{WIDE}")]);
    run(&["--resume"]).ok().says(&["nothing new"]);
}

#[test]
fn a_full_disk_at_mariadb_costs_no_row() {
    // On a disk that is really full this server ends itself while it rolls back; a file that may not grow fails as it
    // should.
    let file = |most: &str| format!("--innodb-data-file-path=ibdata1:12M:autoextend:max:{most}");
    let arguments =
        vec![file("16M"), "--innodb-file-per-table=0".to_owned(), "--innodb-autoextend-increment=1".to_owned()];
    let mut server = MariaDb::start(MariaDbOptions { arguments, certificate: None });
    let name = server.database();
    let url = server.url(&name);
    let query = |server: &MariaDb, sql: &str| server.query(&name, sql);
    fills_the_disk(&mut server, &url, query, |server| server.restart_with(&file("64M")));
}

#[test]
fn a_full_disk_at_postgres_costs_no_row() {
    let Some(disk) = Mount::tmpfs("size=3m") else { return };
    let mut server = Postgres::start(PostgresOptions::default());
    let name = server.database_in(disk.path());
    let url = server.url(&name);
    fills_the_disk(&mut server, &url, |server, sql| server.query(&name, sql), |_| disk.resize("64m"));
}

/// A full disk under a SQLite file.
#[test]
fn a_full_disk_under_sqlite_costs_no_row() {
    let Some(disk) = Mount::tmpfs("size=3m") else { return };
    let path = disk.path().join("out.db");
    let query = |sql: &str| sqlite(&path, sql).into_iter().map(|row| row.join("\t")).collect();
    let lab = Lab::new();
    lab.file("in/0.jsonl", records(0..60_000));
    lab.file("job.yaml", job(&format!("sqlite:{}", path.display()), ""));
    let run = |arguments: &[&str]| {
        let mut command = lab.command(&[&["run", "job.yaml"], arguments].concat());
        command.env("MILLSTREAM_CHUNK_BYTES", "20000");
        finish(command, None)
    };
    let ballast = disk.path().join("ballast");
    fs_err::write(&ballast, vec![0; 5 << 19]).expect("there is room");
    run(&[]).ended(1).says(&["full", "free some space"]);
    fs_err::remove_file(&ballast).expect("it is there");
    disk.resize("64m");
    run(&["--resume"]).ok();
    let target = Target::Sqlite(path.clone());
    assert_rows(&target, &expected(0..60_000));
    let tables: Vec<String> = query("SELECT name FROM sqlite_schema WHERE type = 'table'");
    assert_eq!(tables, ["t"]);
}

/// The table changes between two transactions of a run: the run fails, and can be resumed when the table fits again.
#[test]
fn a_table_that_changes_meanwhile_costs_no_row() {
    for make in [in_sqlite as fn(&Lab) -> Target, in_mariadb, in_postgres] {
        let (lab, target) = lab(make);
        let one = if matches!(target, Target::Server(_)) { "table: t, connections: 1}" } else { "table: t}" };
        lab.file("job.yaml", lab.read("job.yaml").replace("table: t}", one));
        let mut child = asleep(&lab, "commit.after:2");
        target.query("ALTER TABLE t RENAME COLUMN name TO former_name");
        go_on(&child);
        assert_eq!(child.wait().expect("it ends").code(), Some(1));
        let told = lab.read("sleeper.log");
        assert!(told.contains("name") && told.contains("error:"), "{told}");
        run(&lab, &["--resume"]).ended(1).says(&["name"]);
        target.query("ALTER TABLE t RENAME COLUMN former_name TO name");
        run(&lab, &["--resume"]).ok();
        assert_complete(&target);
    }
}

#[test]
fn a_server_that_dies_costs_no_row() {
    let mut mariadb = MariaDb::start(MariaDbOptions::default());
    let name = mariadb.database();
    let lab = Lab::new();
    files(&lab);
    lab.file("job.yaml", job(&mariadb.url(&name), ""));
    let mut child = spawn(&lab, &[("MILLSTREAM_STOP_AT", "commit.before:2")]);
    stopped(&child);
    mariadb.kill();
    mariadb.restart();
    go_on(&child);
    if !child.wait().expect("it ends").success() {
        run(&lab, &["--resume"]).ok();
    }
    let rows = mariadb.query(&name, "SELECT COUNT(*), COUNT(DISTINCT id) FROM t");
    let all = expected(0..FILES * RECORDS).len();
    assert_eq!(rows, [format!("{all}\t{all}")]);

    let mut postgres = Postgres::start(PostgresOptions::default());
    let name = postgres.database();
    lab.file("job.yaml", job(&postgres.url(&name), ""));
    let mut child = spawn(&lab, &[("MILLSTREAM_STOP_AT", "commit.before:2")]);
    stopped(&child);
    postgres.kill();
    postgres.restart();
    go_on(&child);
    if !child.wait().expect("it ends").success() {
        run(&lab, &["--resume"]).ok();
    }
    assert_eq!(postgres.query(&name, "SELECT COUNT(*), COUNT(DISTINCT id) FROM t"), [format!("{all}\t{all}")]);
}

/// A server that acknowledges commits before they are on its disk, and dies: the run reports that, and the next one
/// loads what is missing.
#[test]
fn a_server_that_loses_what_it_has_committed_costs_no_row() {
    let lazily = ["--innodb-flush-log-at-trx-commit=0", "--innodb-flush-log-at-timeout=2700"].map(str::to_owned);
    let mut mariadb = MariaDb::start(MariaDbOptions { arguments: lazily.to_vec(), certificate: None });
    let name = mariadb.database();
    let lab = Lab::new();
    files(&lab);
    lab.file("job.yaml", job(&mariadb.url(&name), "").replace("table: t}", "table: t, connections: 1}"));
    let mut child = asleep(&lab, "commit.after:3");
    mariadb.kill();
    mariadb.restart();
    go_on(&child);
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
    let told = lab.read("sleeper.log");
    assert!(told.contains("has lost rows that it had committed") && told.contains("`--resume` loads"), "{told}");
    run(&lab, &["--resume"]).ok();
    let all = expected(0..FILES * RECORDS).len();
    let rows = mariadb.query(&name, "SELECT COUNT(*), COUNT(DISTINCT id) FROM t");
    assert_eq!(rows, [format!("{all}\t{all}")]);
}

/// Waits until the process has stopped itself.
#[track_caller]
fn stopped(child: &Child) {
    let begun = Instant::now();
    let state = || {
        let text = fs_err::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
        text.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
    };
    while state() != Some('T') {
        assert!(begun.elapsed() < Duration::from_secs(180) && state() != Some('Z'), "it does not stop: {:?}", state());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn go_on(child: &Child) {
    let process = Pid::from_child(child);
    kill_process(process, Signal::CONT).expect("it is there");
}

/// A run that has stopped itself at `fail_point`, with its output in `sleeper.log`.
fn asleep(lab: &Lab, fail_point: &str) -> Running {
    let mut command = command(lab, &["run", "job.yaml", "--quiet"]);
    let log = fs_err::File::create(lab.path("sleeper.log")).expect("a log");
    command
        .env("MILLSTREAM_STOP_AT", fail_point)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::from(log.into_file()));
    let sleeper = Running(command.spawn().expect("it starts"));
    stopped(&sleeper);
    sleeper
}

/// Wakes a run up, which must fail with a message.
#[track_caller]
fn wakes_up_in_vain(lab: &Lab, mut sleeper: Running) {
    go_on(&sleeper);
    let ended = sleeper.wait().expect("it ends");
    let told = lab.read("sleeper.log");
    assert_eq!(ended.code(), Some(1), "{told}");
    assert!(told.contains("another run has "), "{told}");
}

/// A running commit ends before Ctrl-C ends the run: the reported rows are the visible ones, and SQLite leaves no
/// journal that a reader would have to roll back.
#[test]
fn an_interrupted_load_ends_its_commits_and_counts_them() {
    for make in [in_sqlite as fn(&Lab) -> Target, in_mariadb, in_postgres] {
        let mut interrupted = 0;
        for fail_point in ["bulk.after:3", "commit.before:2", "commit.after:4"] {
            let (lab, target) = lab(make);
            let mut sleeper = asleep(&lab, fail_point);
            kill_process(Pid::from_child(&sleeper), Signal::INT).expect("it is there");
            go_on(&sleeper);
            let ended = sleeper.wait().expect("it ends");
            let told = lab.read("sleeper.log");
            if ended.success() {
                // On a busy machine everything may be loaded before the signal is seen.
                assert_complete(&target);
                continue;
            }
            interrupted += 1;
            assert_eq!(ended.code(), Some(130), "{told}");
            if let Target::Sqlite(path) = &target {
                let read_only = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
                let database = rusqlite::Connection::open_with_flags(path, read_only).expect("a database");
                let rows = database.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0));
                rows.unwrap_or_else(|error| panic!("{fail_point}: a reader fails: {error}"));
                let journal = path.with_extension("db-journal");
                assert!(!journal.exists(), "{fail_point}: a journal is left");
            }
            let there = target.query("SELECT count(*) FROM t").concat();
            assert!(told.contains(&format!("{there} rows are loaded")), "{fail_point}: {there} rows are there: {told}");
            resume(&lab, &target);
        }
        assert!(interrupted > 0, "no run was interrupted");
    }
}

/// Jobs that are built in code may have the same name, and a job file may be another one for a while.
#[test]
fn a_job_is_resumed_after_another_one_has_run_under_its_name() {
    for make in [in_sqlite as fn(&Lab) -> Target, in_mariadb, in_postgres] {
        let (lab, target) = lab(make);
        let status = spawn(&lab, &[("MILLSTREAM_FAIL_AT", "commit.before:4")]).wait().expect("it ends");
        assert_eq!(status.signal(), Some(9));
        let job = lab.read("job.yaml");
        lab.file("other.db", "");
        lab.file(
            "job.yaml",
            "sources: {s: {read: 'in/*'}}\nsinks: {o: {from: s, write: 'sqlite:other.db', table: o}}\n",
        );
        run(&lab, &[]).ok();
        run(&lab, &["--resume"]).ok().says(&["nothing new"]);
        lab.file("job.yaml", &job);
        resume(&lab, &target);
        lab.file("job.yaml", job.replace("id > 5", "id > 6"));
        run(&lab, &["--resume"]).ended(1).says(&["the last run of this job loaded everything", "has changed"]);
    }
}

const ELSEWHERE: [&str; 2] = ["--state", "elsewhere"];

/// A load that another state folder has completed is not started again by the first run.
#[test]
fn a_resume_after_another_run_has_finished_adds_nothing() {
    for make in [in_sqlite as fn(&Lab) -> Target, in_mariadb, in_postgres] {
        let (lab, target) = lab(make);
        let status = spawn(&lab, &[("MILLSTREAM_FAIL_AT", "commit.before:4")]).wait().expect("it ends");
        assert_eq!(status.signal(), Some(9));
        let runs = lab.run(&["runs", "--json"]);
        assert!(runs.ok().json()["runs"][0]["rows_written"].as_u64() > Some(0), "{}", runs.stdout);
        run(&lab, &[&["--resume"], &ELSEWHERE[..]].concat()).ok();
        assert_complete(&target);
        for _ in 0..2 {
            let ran = run(&lab, &["--resume"]);
            ran.ended(1).says(&["the target has no record of what", "check whether all rows are there"]);
            assert_complete(&target);
        }
    }
}

#[test]
fn a_run_that_wakes_up_after_another_took_over_does_no_harm() {
    // SQLite's writer holds the whole file while it sleeps.
    let of_sqlite: &[&str] = &["commit.after:2"];
    let of_servers = &["ledger.before:3", "ledger.after:2", "bulk.before:2", "commit.before:2", "commit.after:2"];
    for (make, fail_points) in
        [(in_sqlite as fn(&Lab) -> Target, of_sqlite), (in_mariadb, of_servers), (in_postgres, of_servers)]
    {
        for fail_point in fail_points {
            let (lab, target) = lab(make);
            let sleeper = asleep(&lab, fail_point);
            // On the same machine no run can resume it while it lives…
            run(&lab, &["--resume"]).ended(1).says(&["still running"]);
            run(&lab, &[]).ended(1).says(&["this job is running already"]);
            // …and on another machine, which does not know it, the target shows it.
            let known = matches!(target, Target::Server(_));
            let told = if known {
                "another run of this job is loading now"
            } else {
                "an earlier run of this job is unfinished"
            };
            run(&lab, &ELSEWHERE).ended(1).says(&[told, "--resume"]);
            let begun = Instant::now();
            run(&lab, &[&["--resume"], &ELSEWHERE[..]].concat()).ok();
            assert!(begun.elapsed() < Duration::from_secs(30), "{fail_point}: nobody waits for who sleeps");
            assert_complete(&target);
            wakes_up_in_vain(&lab, sleeper);
            assert_complete(&target);
        }
    }
}

/// The same, woken up in the middle of the other run's load.
#[test]
fn a_process_that_wakes_up_while_another_resumes_does_no_harm() {
    for make in [in_mariadb as fn(&Lab) -> Target, in_postgres] {
        let (lab, target) = lab(make);
        let sleeper = asleep(&lab, "commit.before:2");
        let mut other = command(&lab, &[&["run", "job.yaml", "--resume", "--quiet"], &ELSEWHERE[..]].concat());
        other.env("MILLSTREAM_STOP_AT", "bulk.before:1").stdout(Stdio::null());
        let mut other = Running(other.spawn().expect("it starts"));
        stopped(&other);
        wakes_up_in_vain(&lab, sleeper);
        assert_no_row_twice(&target);
        go_on(&other);
        assert!(other.wait().expect("it ends").success());
        assert_complete(&target);
    }
}

/// A suspended process that locks a whole file cannot be ended by another one.
#[test]
fn a_file_that_a_sleeper_holds_is_reported() {
    let (lab, target) = lab(in_sqlite);
    lab.file("job.yaml", lab.read("job.yaml").replace("table: t}", "table: t, busy_timeout: 1s}"));
    let mut sleeper = asleep(&lab, "bulk.after:2");
    let begun = Instant::now();
    let refused = run(&lab, &[&["--resume"], &ELSEWHERE[..]].concat());
    refused.ended(1).says(&["is locked by another process", "waited 1s"]);
    assert!(begun.elapsed() < Duration::from_secs(30));
    go_on(&sleeper);
    assert!(sleeper.wait().expect("it ends").success(), "{}", lab.read("sleeper.log"));
    assert_complete(&target);
}

#[test]
fn what_has_changed_since_is_reported() {
    let (lab, target) = lab(in_sqlite);
    let killed = |fail_point: &str| {
        let status = spawn(&lab, &[("MILLSTREAM_FAIL_AT", fail_point)]).wait().expect("it ends");
        assert_eq!(status.signal(), Some(9));
    };
    killed("publish.before");
    // A run with other rows cannot resume it.
    let as_it_was = lab.read("job.yaml");
    lab.file("job.yaml", as_it_was.replace("id > 5", "id > 6"));
    run(&lab, &["--resume"]).ended(1).says(&["the job has changed", "`--restart`"]);
    run(&lab, &[]).ended(1).says(&["an earlier run of this job is unfinished", "`--restart`"]);
    // The target knows that too, without the run history.
    run(&lab, &[&["--resume"], &ELSEWHERE[..]].concat()).ended(1).says(&["the job has changed", "`--restart`"]);
    // A comment is no change, and neither is a limit.
    lab.file(
        "job.yaml",
        format!("# a comment\n{}", as_it_was.replace("half: int64}}", "half: int64}}, max_rejects: 1")),
    );
    lab.file("in/0.jsonl", records(0..RECORDS) + &record(99_999));
    let told = run(&lab, &["--resume"]);
    told.ended(1).says(&["a file has changed since it was loaded", "in/0.jsonl", "--accept-changed"]);
    assert_rows(&target, &expected(0..FILES * RECORDS));
    run(&lab, &["--resume", "--accept-changed"]).ok();
    let mut rows = expected(0..FILES * RECORDS);
    for row in expected(0..RECORDS).into_keys() {
        *rows.entry(row).or_default() += 1;
    }
    rows.insert("99999\tROW 99999 É".to_owned(), 1);
    assert_rows(&target, &rows);
}

#[test]
fn a_run_that_begins_anew_leaves_what_was_loaded() {
    let (lab, target) = lab(in_sqlite);
    spawn(&lab, &[("MILLSTREAM_FAIL_AT", "publish.before")]).wait().expect("it ends");
    run(&lab, &["--restart"]).ok();
    let twice: BTreeMap<String, usize> = expected(0..FILES * RECORDS).into_keys().map(|row| (row, 2)).collect();
    assert_rows(&target, &twice);
    assert_eq!(target.tables(), ["t"]);
}

#[test]
fn an_incremental_source_gives_each_file_once() {
    for make in [in_sqlite as fn(&Lab) -> Target, in_mariadb, in_postgres] {
        let (lab, target) = lab(make);
        // Of the source, or of the whole job.
        lab.file(
            "job.yaml",
            match &target {
                Target::Sqlite(_) => format!("incremental: true\n{}", job(&target.url(), "")),
                Target::Server(_) => job(&target.url(), ", incremental: true"),
            },
        );
        run(&lab, &[]).ok();
        assert_rows(&target, &expected(0..FILES * RECORDS));
        run(&lab, &[]).ok().says(&["nothing new", "5 files were loaded before"]);
        lab.file("in/6.jsonl", records(FILES * RECORDS..FILES * RECORDS + 100));
        let report = finish(command(&lab, &["run", "job.yaml", "--json"]), None).ok().json();
        assert_eq!((&report["rows_read"], &report["units_loaded_before"]), (&Value::from(100), &Value::from(5)));
        assert_rows(&target, &expected(0..FILES * RECORDS + 100));
        // After a kill, the next run resumes it by itself.
        lab.file("in/7.jsonl", records(FILES * RECORDS + 100..FILES * RECORDS + 400));
        let status = spawn(&lab, &[("MILLSTREAM_FAIL_AT", "commit.after:1")]).wait().expect("it ends");
        assert_eq!(status.signal(), Some(9));
        run(&lab, &[]).ok();
        assert_rows(&target, &expected(0..FILES * RECORDS + 400));
    }
}

#[test]
fn only_what_goes_row_by_row_is_loaded_chunk_by_chunk() {
    let lab = Lab::new();
    files(&lab);
    let explained = |transform: &str, sink: &str| {
        lab.file(
            "job.yaml",
            format!(
                "sources:\n  s: {{read: 'in/*', json: {{columns: {{id: int64, name: utf8, half: \
                 int64}}}}}}\ntransforms:\n  u: \
                 {transform}\nsinks:\n  o: {{from: u, write: 'sqlite:out.db', table: t{sink}}}\n"
            ),
        );
        let explained = lab.run(&["explain", "job.yaml"]);
        let line = explained.ok().stdout.lines().find(|line| line.contains("rows become visible")).map(str::to_owned);
        line.expect("it is told").trim().to_owned()
    };
    for (transform, told) in [
        ("{filter: {from: s, where: id > 3}}", "chunk by chunk, each exactly once"),
        ("{sql: 'SELECT id FROM s UNION ALL SELECT id FROM s'}", "a step with several consumers"),
        ("{sql: 'SELECT count(*) AS n FROM s'}", "an aggregate combines rows"),
        ("{sort: {from: s, by: id}}", "a sort needs all rows"),
        ("{sql: 'SELECT id FROM s LIMIT 5'}", "a limit counts all rows"),
        ("{sql: 'SELECT id, random() AS r FROM s'}", "the function `random` may give another value each time"),
        ("{sql: 'SELECT id, row_number() OVER (ORDER BY id) AS r FROM s'}", "all at once"),
    ] {
        let line = explained(transform, "");
        assert!(line.contains(told), "{transform}: {line}");
    }
    assert!(
        explained("{filter: {from: s, where: id > 3}}", ", mode: replace")
            .contains("its target or its settings require it")
    );
    lab.file("job.yaml", lab.read("job.yaml").replace("half: int64}}", "half: int64}}, incremental: true"));
    lab.run(&["run", "job.yaml"]).ended(2).says(&["`s` is incremental", "cannot be loaded file by file"]);
}

#[test]
fn a_file_that_is_listed_twice_is_reported() {
    let (lab, _) = lab(in_sqlite);
    lab.file("job.yaml", lab.read("job.yaml").replace("'in/*'", "['in/*', 'in/0*']"));
    run(&lab, &[]).ended(1).says(&["a file is listed twice", "in/0.jsonl", "matches the file once"]);
}

#[test]
fn a_small_load_that_fails_leaves_nothing() {
    for make in [in_sqlite as fn(&Lab) -> Target, in_mariadb, in_postgres] {
        let lab = Lab::new();
        let target = make(&lab);
        lab.file("job.yaml", job(&target.url(), ""));
        lab.file("in/0.jsonl", records(0..20));
        lab.file("in/1.jsonl", "{\"id\": \"none\"}\n");
        run(&lab, &[]).ended(1).says(&["in/1.jsonl"]);
        match target {
            Target::Sqlite(path) => assert!(!path.exists()),
            Target::Server(database) => {
                assert_eq!(database.query("SELECT count(*) FROM t"), ["0"]);
                assert_eq!(database.tables(), ["t"]);
            }
        }
    }
}

/// All rows at once, added to what is there: killed at any step, they are added once.
fn all_at_once_killed_at_each_fail_point(target: impl Fn(&Lab) -> Target) {
    let (lab, target) = lab(target);
    let text = lab
        .read("job.yaml")
        .replace("where: 'half = 0 OR id > 5'}}", "where: 'half = 0 OR id > 5'}}\n  v: {sort: {from: u, by: id}}");
    lab.file("job.yaml", text.replace("from: u, write", "from: v, write"));
    for fail_point in ["publish.before", "publish.after", "state.before:2", "state.after:2", "forget.before"] {
        target.query("CREATE TABLE t (id BIGINT, name VARCHAR(40))");
        let status = spawn(&lab, &[("MILLSTREAM_FAIL_AT", fail_point)]).wait().expect("it ends");
        assert_eq!(status.signal(), Some(9), "{fail_point}");
        run(&lab, &["--resume"]).ok();
        assert_rows(&target, &expected(0..FILES * RECORDS));
        run(&lab, &["--resume"]).ok().says(&["nothing new"]);
        assert_rows(&target, &expected(0..FILES * RECORDS));
        if !fail_point.starts_with("state.after") && fail_point != "forget.before" {
            assert_eq!(target.tables(), ["t"], "{fail_point}");
        }
        start_over(&lab, &target);
    }
}

/// Modes that replace or merge existing rows are repeated, and give the same rows.
#[test]
fn rows_that_replace_or_meet_others_are_there_once_whenever_the_run_is_killed() {
    for make in [in_sqlite as fn(&Lab) -> Target, in_mariadb, in_postgres] {
        for mode in ["mode: replace", "mode: truncate", "mode: merge, key: [id]", "mode: ignore, key: [id]"] {
            let (lab, target) = lab(make);
            lab.file("job.yaml", lab.read("job.yaml").replace("table: t}", &format!("table: t, {mode}}}")));
            for fail_point in ["publish.before", "rename.before", "rename.after", "publish.after", "state.before:2"] {
                target.query("CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY, name VARCHAR(40))");
                if !mode.contains("key") {
                    target.query("INSERT INTO t VALUES (-1, 'before')");
                }
                let status = spawn(&lab, &[("MILLSTREAM_FAIL_AT", fail_point)]).wait().expect("it ends");
                assert!(status.signal() == Some(9) || fail_point.starts_with("rename"), "{mode}, {fail_point}");
                run(&lab, &["--resume"]).ok();
                assert_complete(&target);
                start_over(&lab, &target);
            }
        }
    }
}

/// Between the commits of two sinks one has its rows, and the other has none.
#[test]
fn two_sinks_killed_between_their_commits_have_their_rows_once() {
    for make in [in_mariadb as fn(&Lab) -> Target, in_postgres] {
        let (lab, target) = lab(make);
        let both = format!(
            "table: t, atomic: true}}\n  p: {{from: u, write: '{}', table: s, atomic: true}}\n  f: {{from: u, write: \
             out.csv}}",
            target.url()
        );
        lab.file("job.yaml", lab.read("job.yaml").replace("table: t}", &both));
        for fail_point in ["publish.next", "publish.next:2"] {
            for table in ["s", "t"] {
                target.query(&format!("CREATE TABLE {table} (id BIGINT, name VARCHAR(40))"));
            }
            let status = spawn(&lab, &[("MILLSTREAM_FAIL_AT", fail_point)]).wait().expect("it ends");
            assert_eq!(status.signal(), Some(9), "{fail_point}");
            run(&lab, &["--resume"]).ok();
            let rows = expected(0..FILES * RECORDS);
            assert_rows(&target, &rows);
            let others = target.query("SELECT count(*), count(DISTINCT id) FROM s");
            assert_eq!(others, [format!("{0}\t{0}", rows.len())], "{fail_point}");
            assert_eq!(lab.read("out.csv").lines().count(), rows.len() + 1, "{fail_point}");
            target.query("DROP TABLE s");
            start_over(&lab, &target);
        }
    }
}

/// Where MySQL has no table yet, a new one is renamed into place, which is no part of a transaction.
#[test]
fn mariadb_killed_while_a_new_table_becomes_visible() {
    let (lab, target) = lab(in_mariadb);
    lab.file("job.yaml", lab.read("job.yaml").replace("table: t}", "table: t, atomic: true}"));
    lab.file("other.yaml", job(&target.url(), "").replace("table: t}", "table: other, mode: replace}"));
    for fail_point in ["publish.before", "rename.before", "rename.after", "publish.after", "state.before:2"] {
        for others_clean in [false, true] {
            let status = spawn(&lab, &[("MILLSTREAM_FAIL_AT", fail_point)]).wait().expect("it ends");
            assert_eq!(status.signal(), Some(9), "{fail_point}");
            if others_clean {
                lab.run(&["run", "other.yaml"]).ok();
                target.query("DROP TABLE other");
                assert!(!target.tables().iter().any(|name| name.ends_with("_new")), "tables of the dead are dropped");
            }
            run(&lab, &["--resume"]).ok();
            assert_complete(&target);
            start_over(&lab, &target);
        }
    }
}

/// Deferred indexes are rebuilt whatever dies.
#[test]
fn deferred_indexes_are_built_after_every_crash() {
    for make in [in_sqlite as fn(&Lab) -> Target, in_mariadb, in_postgres] {
        let fail_points = ["indexes.kept", "indexes.dropped", "publish.before", "indexes.before", "indexes.after"];
        for (connections, fail_points) in [(1, &fail_points[..]), (2, &fail_points[1..4])] {
            let (lab, target) = lab(make);
            let more = match target {
                Target::Server(_) => format!("table: t, defer_indexes: true, connections: {connections}}}"),
                Target::Sqlite(_) => "table: t, defer_indexes: true}".to_owned(),
            };
            lab.file("job.yaml", lab.read("job.yaml").replace("table: t}", &more));
            let is_mariadb = target.url().starts_with("mysql");
            for fail_point in fail_points {
                if fail_point.starts_with("indexes") && !is_mariadb {
                    // There it is all one transaction.
                    continue;
                }
                target.query("CREATE TABLE t (id BIGINT, name VARCHAR(40))");
                target.query("CREATE INDEX by_name ON t (name)");
                let status = spawn(&lab, &[("MILLSTREAM_FAIL_AT", fail_point)]).wait().expect("it ends");
                assert_eq!(status.signal(), Some(9), "{fail_point}");
                run(&lab, &["--resume"]).ok();
                assert_complete(&target);
                let indexes = target.query(match (&target, is_mariadb) {
                    (Target::Sqlite(_), _) => "SELECT name FROM sqlite_schema WHERE type = 'index'",
                    (_, true) => "SELECT index_name FROM information_schema.statistics WHERE table_schema = DATABASE()",
                    (_, false) => "SELECT indexname FROM pg_indexes WHERE tablename = 't'",
                });
                assert_eq!(indexes, ["by_name"], "{fail_point}");
                start_over(&lab, &target);
            }
        }
    }
}

#[test]
fn sqlite_killed_while_all_rows_become_visible() {
    all_at_once_killed_at_each_fail_point(in_sqlite);
}

#[test]
fn mariadb_killed_while_all_rows_become_visible() {
    all_at_once_killed_at_each_fail_point(in_mariadb);
}

#[test]
fn postgres_killed_while_all_rows_become_visible() {
    all_at_once_killed_at_each_fail_point(in_postgres);
}

#[test]
fn who_wakes_up_when_another_has_made_all_rows_visible_does_no_harm() {
    for make in [in_mariadb as fn(&Lab) -> Target, in_postgres] {
        for connections in [1, 2] {
            let (lab, target) = lab(make);
            target.query("CREATE TABLE t (id BIGINT, name VARCHAR(40))");
            let more = format!("table: t, atomic: true, connections: {connections}}}");
            lab.file("job.yaml", lab.read("job.yaml").replace("table: t}", &more));
            let sleeper = asleep(&lab, "publish.before");
            run(&lab, &ELSEWHERE).ended(1).says(&["another run of this job is loading now", "--resume"]);
            run(&lab, &[&["--resume"], &ELSEWHERE[..]].concat()).ok();
            assert_complete(&target);
            wakes_up_in_vain(&lab, sleeper);
            assert_complete(&target);
        }
    }
}

/// A run that would go on all at once does not see, by its own history, what one with another state folder has loaded
/// chunk by chunk since.
#[test]
fn what_another_has_loaded_since_by_chunk_is_not_loaded_all_at_once_beside_it() {
    for make in [in_sqlite as fn(&Lab) -> Target, in_mariadb] {
        let (lab, target) = lab(make);
        target.query("CREATE TABLE t (id BIGINT, name VARCHAR(40))");
        let by_chunk = lab.read("job.yaml");
        let at_once = by_chunk.replace("table: t}", "table: t, atomic: true}");
        lab.file("job.yaml", &at_once);
        let status = spawn(&lab, &[("MILLSTREAM_FAIL_AT", "publish.before")]).wait().expect("it ends");
        assert_eq!(status.signal(), Some(9));
        lab.file("job.yaml", &by_chunk);
        let mut other = command(&lab, &[&["run", "job.yaml", "--quiet"], &ELSEWHERE[..]].concat());
        let status = other.env("MILLSTREAM_FAIL_AT", "commit.after:2").status().expect("it starts");
        assert_eq!(status.signal(), Some(9));
        lab.file("job.yaml", &at_once);
        let refused = run(&lab, &["--resume"]);
        refused.ended(1).says(&["has loaded some of its rows chunk by chunk, and this run loads all at once"]);
        assert_no_row_twice(&target);
        // The other run can be resumed: the first one has no rows there.
        lab.file("job.yaml", &by_chunk);
        run(&lab, &[&["--resume"], &ELSEWHERE[..]].concat()).ok();
        assert_rows(&target, &expected(0..FILES * RECORDS));
    }
}

/// Beside a load that goes on all at once, an incremental one goes all at once, too, and still notes its files.
#[test]
fn an_incremental_load_beside_one_that_goes_on_all_at_once_notes_its_files() {
    let (lab, target) = lab(in_sqlite);
    target.query("CREATE TABLE t (id BIGINT, name VARCHAR(40))");
    let by_chunk = lab.read("job.yaml");
    lab.file("job.yaml", by_chunk.replace("table: t}", "table: t, atomic: true}"));
    let status = spawn(&lab, &[("MILLSTREAM_FAIL_AT", "publish.after")]).wait().expect("it ends");
    assert_eq!(status.signal(), Some(9));
    lab.file("new.csv", "id\n1\n");
    let both = by_chunk.replace("sources:\n", "sources:\n  i: {read: new.csv, csv: {}, incremental: true}\n");
    lab.file("job.yaml", format!("{both}  p: {{from: i, write: '{}', table: p}}\n", target.url()));
    let resumed = run(&lab, &[&["--resume"], &ELSEWHERE[..]].concat());
    resumed.ok().says(&["its rows were added before", "1 row added to table p"]);
    assert_rows(&target, &expected(0..FILES * RECORDS));
    // Chunk by chunk, from now on, the file is known.
    let only = "sources:\n  i: {read: new.csv, csv: {}, incremental: true}\nsinks:\n";
    lab.file("job.yaml", format!("{only}  p: {{from: i, write: '{}', table: p}}\n", target.url()));
    run(&lab, &[]).ok().says(&["nothing new"]);
    assert_eq!(target.query("SELECT id FROM p"), ["1"]);
}

/// Resuming after the end adds no row twice, and files that have changed since do not count as loaded.
#[test]
fn what_has_changed_since_all_was_done_is_not_passed_over() {
    for make in [in_sqlite as fn(&Lab) -> Target, in_mariadb, in_postgres] {
        let (lab, target) = lab(make);
        let text = lab.read("job.yaml");
        run(&lab, &[]).ok();
        run(&lab, &["--resume"]).ok().says(&["nothing new"]);
        let others = [("half = 0", "half = 1", "the job has changed"), ("", "", "its files have changed")];
        for (before, after, what) in others {
            lab.file("job.yaml", text.replace(before, after));
            if before.is_empty() {
                lab.file("job.yaml", &text);
                lab.file("in/more.jsonl", "{\"id\": 1000000, \"name\": \"more\", \"half\": 0}\n");
            }
            run(&lab, &["--resume"]).ended(1).says(&["loaded everything", what, "incremental: true"]);
            assert_complete(&target);
        }
        fs_err::remove_file(lab.path("in/more.jsonl")).expect("it is there");
        run(&lab, &["--resume"]).ok().says(&["nothing new"]);
        target.query("DROP TABLE t");
        run(&lab, &["--resume"]).ended(1).says(&["its table in", "no longer exists", "restore it"]);
        assert_eq!(target.tables(), Vec::<String>::new());
        // What replaces what was there is made again, whatever has become of it.
        lab.file("job.yaml", text.replace("table: t}", "table: t, mode: replace}"));
        run(&lab, &[]).ok();
        target.query("DROP TABLE t");
        run(&lab, &["--resume"]).ok();
        assert_complete(&target);
    }
}

/// Runs the job `text`, with `more` at its sink, and kills it after everything is loaded, before it records that.
fn killed_when_all_was_loaded(lab: &Lab, target: &Target, text: &str, more: &str) {
    lab.file("job.yaml", text.replace("table: t}", &format!("table: t{more}}}")));
    if !more.is_empty() {
        target.query("CREATE TABLE t (id BIGINT, name VARCHAR(40))");
    }
    let status = spawn(lab, &[("MILLSTREAM_FAIL_AT", "state.before:2")]).wait().expect("it ends");
    assert_eq!(status.signal(), Some(9));
}

/// Everything was loaded chunk by chunk, and the run died before it could record that. A resumed run finds it, with or
/// without the run history, also after a run that failed early.
#[test]
fn what_is_complete_is_not_loaded_again() {
    for make in [in_sqlite as fn(&Lab) -> Target, in_mariadb, in_postgres] {
        let (lab, target) = lab(make);
        let text = lab.read("job.yaml");
        for more in ["", ", atomic: true"] {
            killed_when_all_was_loaded(&lab, &target, &text, more);
            run(&lab, &[&["--resume"], &ELSEWHERE[..]].concat()).ok();
            assert_complete(&target);
            start_over(&lab, &target);
            fs_err::remove_dir_all(lab.path("elsewhere")).expect("it is there");
            killed_when_all_was_loaded(&lab, &target, &text, more);
            // A refused run cannot be resumed.
            run(&lab, &[]).ended(1).says(&["has loaded all of its rows"]);
            run(&lab, &["--resume"]).ok();
            assert_rows(&target, &expected(0..FILES * RECORDS));
            start_over(&lab, &target);
        }
    }
}

/// A run has loaded everything, and died before it could record that: a plain run is refused, and adds no row twice.
#[test]
fn what_is_complete_is_not_loaded_once_more_without_a_word() {
    for make in [in_sqlite as fn(&Lab) -> Target, in_mariadb, in_postgres] {
        let (lab, target) = lab(make);
        let text = lab.read("job.yaml");
        for more in ["", ", atomic: true"] {
            killed_when_all_was_loaded(&lab, &target, &text, more);
            let told = ["an earlier run of this job has loaded all of its rows", "--resume", "--restart"];
            for arguments in [&[][..], &ELSEWHERE[..]] {
                run(&lab, arguments).ended(1).says(&told);
                assert_rows(&target, &expected(0..FILES * RECORDS));
            }
            run(&lab, &["--resume"]).ok().says(&["nothing new"]);
            assert_complete(&target);
            start_over(&lab, &target);
            fs_err::remove_dir_all(lab.path("elsewhere")).expect("it is there");
        }
    }
}

/// Statements after the commit run once, whatever dies; and at least once, if that is in the middle of them.
#[test]
fn statements_behind_the_commit_are_resumed() {
    for make in [in_sqlite as fn(&Lab) -> Target, in_mariadb, in_postgres] {
        let (lab, target) = lab(make);
        let is_sqlite = matches!(target, Target::Sqlite(_));
        let text = lab.read("job.yaml");
        let with = |after: &str| text.replace("table: t}", &format!("table: t, after: ['{after}']}}"));
        let insert = "INSERT INTO log VALUES (1)";
        for (fail_point, times) in
            [("publish.before", 1), ("after.before", 1), ("after.after", 2), ("state.before:2", 1)]
        {
            if is_sqlite && fail_point.starts_with("after") {
                // There they are part of the transaction.
                continue;
            }
            target.query("CREATE TABLE t (id BIGINT, name VARCHAR(40))");
            target.query("CREATE TABLE log (n INT)");
            lab.file("job.yaml", with(insert));
            let status = spawn(&lab, &[("MILLSTREAM_FAIL_AT", fail_point)]).wait().expect("it ends");
            assert_eq!(status.signal(), Some(9), "{fail_point}");
            run(&lab, &["--resume"]).ok();
            assert_rows(&target, &expected(0..FILES * RECORDS));
            assert_eq!(target.query("SELECT COUNT(*) FROM log"), [times.to_string()], "{fail_point}");
            start_over(&lab, &target);
        }
        // One that fails can be fixed.
        target.query("CREATE TABLE t (id BIGINT, name VARCHAR(40))");
        target.query("CREATE TABLE log (n INT)");
        lab.file("job.yaml", with("INSERT INTO logg VALUES (1)"));
        run(&lab, &[]).ended(1).says(&["a statement of `after` failed", "logg"]);
        lab.file("job.yaml", with(insert));
        run(&lab, &["--resume"]).ok();
        assert_rows(&target, &expected(0..FILES * RECORDS));
        assert_eq!(target.query("SELECT COUNT(*) FROM log"), ["1"]);
    }
}

/// The table was dropped, and the ledger still lists its rows as loaded.
#[test]
fn a_table_that_is_gone_is_reported() {
    for make in [in_sqlite as fn(&Lab) -> Target, in_mariadb, in_postgres] {
        let (lab, target) = lab(make);
        spawn(&lab, &[("MILLSTREAM_FAIL_AT", "commit.after:2")]).wait().expect("it ends");
        target.query("DROP TABLE t");
        let told = ["is not there, and parts of this load were in it", "--restart"];
        run(&lab, &["--resume"]).ended(1).says(&told);
        run(&lab, &["--restart"]).ok();
        assert_complete(&target);
        start_over(&lab, &target);
        lab.file("job.yaml", job(&target.url(), ", incremental: true"));
        run(&lab, &[]).ok();
        run(&lab, &[]).ok().says(&["nothing new"]);
        target.query("DROP TABLE t");
        run(&lab, &[]).ended(1).says(&told);
        run(&lab, &["--restart"]).ok();
        assert_rows(&target, &expected(0..FILES * RECORDS));
        run(&lab, &[]).ok().says(&["nothing new"]);
        start_over(&lab, &target);
    }
}

/// Another machine finds what a machine has loaded all at once before it died.
#[test]
fn a_load_at_once_is_found_without_the_run_history() {
    for make in [in_sqlite as fn(&Lab) -> Target, in_mariadb, in_postgres] {
        let (lab, target) = lab(make);
        let begins = |fail_point: &str| {
            target.query("CREATE TABLE t (id BIGINT, name VARCHAR(40))");
            let status = spawn(&lab, &[("MILLSTREAM_FAIL_AT", fail_point)]).wait().expect("it ends");
            assert_eq!(status.signal(), Some(9), "{fail_point}");
        };
        lab.file("job.yaml", lab.read("job.yaml").replace("table: t}", "table: t, atomic: true}"));
        for fail_point in ["publish.before", "publish.after", "state.after:2"] {
            begins(fail_point);
            run(&lab, &[&["--resume"], &ELSEWHERE[..]].concat()).ok();
            assert_complete(&target);
            start_over(&lab, &target);
            fs_err::remove_dir_all(lab.path("elsewhere")).expect("it is there");
        }
        // A new run removes the commit marker of the dead one.
        begins("publish.before");
        run(&lab, &[]).ok();
        assert_complete(&target);
    }
}

/// What was begun all at once is resumed so, also by a version, or a job, that could go chunk by chunk: the ledger does
/// not say which chunks are there.
#[test]
fn a_load_that_has_begun_all_at_once_is_resumed_all_at_once() {
    for make in [in_sqlite as fn(&Lab) -> Target, in_mariadb, in_postgres] {
        let (lab, target) = lab(make);
        let (by_chunk, at_once) =
            (lab.read("job.yaml"), lab.read("job.yaml").replace("table: t}", "table: t, atomic: true}"));
        for fail_point in ["publish.before", "publish.after", "state.after:2"] {
            for history in [&[][..], &ELSEWHERE] {
                target.query("CREATE TABLE t (id BIGINT, name VARCHAR(40))");
                lab.file("job.yaml", &at_once);
                let status = spawn(&lab, &[("MILLSTREAM_FAIL_AT", fail_point)]).wait().expect("it ends");
                assert_eq!(status.signal(), Some(9), "{fail_point}");
                lab.file("job.yaml", &by_chunk);
                if fail_point == "publish.after" {
                    run(&lab, history).ended(1).says(&["has loaded all of its rows, but is unfinished"]);
                }
                run(&lab, &[&["--resume"], history].concat()).ok();
                assert_rows(&target, &expected(0..FILES * RECORDS));
                start_over(&lab, &target);
                let _ = fs_err::remove_dir_all(lab.path("elsewhere"));
            }
        }
    }
}

#[test]
fn a_load_that_has_begun_chunk_by_chunk_is_not_resumed_all_at_once() {
    for make in [in_sqlite as fn(&Lab) -> Target, in_mariadb, in_postgres] {
        let (lab, target) = lab(make);
        let (by_chunk, at_once) =
            (lab.read("job.yaml"), lab.read("job.yaml").replace("table: t}", "table: t, atomic: true}"));
        let status = spawn(&lab, &[("MILLSTREAM_FAIL_AT", "commit.after:2")]).wait().expect("it ends");
        assert_eq!(status.signal(), Some(9));
        lab.file("job.yaml", &at_once);
        for more in [&[][..], &["--resume"], &["--resume", ELSEWHERE[0], ELSEWHERE[1]]] {
            run(&lab, more).ended(1).says(&["chunk by chunk, and this run loads all at once", "`--restart`"]);
        }
        lab.file("job.yaml", &by_chunk);
        resume(&lab, &target);
    }
}

#[test]
fn runs_are_in_the_run_history() {
    let (lab, target) = lab(in_sqlite);
    lab.run(&["runs"]).ok();
    spawn(&lab, &[("MILLSTREAM_FAIL_AT", "commit.after:2")]).wait().expect("it ends");
    let unfinished =
        || lab.run(&["runs", "--unfinished", "--json"]).ok().json()["runs"].as_array().expect("a list").len();
    assert_eq!(unfinished(), 1);
    let listed = lab.run(&["runs"]);
    assert!(listed.ok().stdout.contains("killed") && listed.stdout.contains("job.yaml"), "{}", listed.stdout);
    run(&lab, &["--resume"]).ok();
    assert_eq!(unfinished(), 0);
    assert_complete(&target);
    run(&lab, &[]).ok();
    let last = lab.run(&["runs", "last"]);
    let told = &last.ok().stdout;
    assert!(told.contains(": done\n") && told.contains("rows written") && told.contains("expected"), "{told}");
    let json = lab.run(&["runs", "last", "--job", "job.yaml", "--json"]).ok().json();
    assert_eq!(json["run"]["rows_written"], expected(0..FILES * RECORDS).len());
    assert_eq!(json["before"]["outcome"], "done");
    lab.run(&["runs", "no-such-run"]).ended(2).says(&["there is no run `no-such-run`"]);
    let nowhere = lab.run(&["runs", "--state", "job.yaml/state"]);
    nowhere.ended(1).says(&["the state folder job.yaml/state cannot be used", "--state"]);
}
