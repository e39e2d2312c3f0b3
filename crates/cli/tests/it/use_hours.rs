//! `hours:` through the real binary, under a clock that the tests set.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Stdio};

use millstream_testkit::{Redis, RedisOptions};

use crate::use_support::{Lab, sqlite};

/// 2026-11-27, 12:00 in Berlin.
const NOON: i64 = 1_795_777_200_000;

const HOUR: i64 = 3_600_000;

/// A clock that shows what its file says.
struct Clock(PathBuf);

impl Clock {
    fn new(lab: &Lab, now: i64) -> Self {
        Clock(lab.file("clock", now.to_string()))
    }

    /// The clock is never seen half written.
    fn set(&self, now: i64) {
        let next = self.0.with_extension("next");
        fs_err::write(&next, now.to_string()).expect("the clock is set");
        fs_err::rename(next, &self.0).expect("the clock is set");
    }

    fn start(&self, lab: &Lab, arguments: &[&str]) -> Running {
        let mut command = lab.command(arguments);
        command.env("MILLSTREAM_NOW", format!("@{}", self.0.display())).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        Running { child, stderr }
    }
}

struct Running {
    child: Child,
    stderr: BufReader<ChildStderr>,
}

impl Running {
    /// The next line that contains `wanted`.
    fn says(&mut self, wanted: &str) -> String {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            assert!(self.stderr.read_line(&mut line).expect("text") > 0, "it never says `{wanted}`, but: {all}");
            if line.contains(wanted) {
                return line;
            }
            all.push_str(&line);
        }
    }

    fn ends(mut self, code: i32) {
        assert_eq!(self.child.wait().expect("it ends").code(), Some(code));
    }
}

fn lab(more: &str) -> Lab {
    let lab = Lab::with_job(&format!(
        "timezone: Europe/Berlin\nhours: 20:00-06:00\n{more}sources:\n  s: {{read: 'in/*.csv', csv: {{columns: {{n: \
         int64}}}}}}\nsinks:\n  o: {{from: s, write: 'sqlite:out.db', table: t, mode: append}}\n"
    ));
    lab.file("in/a.csv", "n\n1\n2\n");
    lab
}

fn rows(lab: &Lab) -> Vec<Vec<String>> {
    sqlite(&lab.path("out.db"), "SELECT count(*), count(DISTINCT n) FROM t")
}

#[test]
fn a_run_waits_for_its_hours() {
    let lab = lab("");
    let clock = Clock::new(&lab, NOON);
    let mut run = clock.start(&lab, &["run", "job.yaml"]);
    let line = run.says("the job runs at");
    assert_eq!(line, "the job runs at 20:00-06:00: it begins at 2026-11-27T20:00:00+01:00\n");
    let runs = lab.run(&["runs", "--json"]).ok().json();
    assert_eq!((&runs["runs"], &runs["waiting"][0]["hours"]), (&serde_json::json!([]), &"20:00-06:00".into()));
    let waits = "job.yaml waits for its hours, 20:00-06:00: it begins at 2026-11-27T20:00:00+01:00";
    lab.run(&["runs"]).ok().prints(&[waits]);
    clock.set(NOON + 8 * HOUR);
    run.ends(0);
    assert_eq!(lab.run(&["runs", "--json"]).ok().json()["waiting"], serde_json::json!([]));
    assert_eq!(rows(&lab), [["2", "2"]]);
}

#[test]
fn a_run_whose_hours_end_continues_at_their_next_beginning() {
    // At least some seconds of reading: it is in the middle when its hours end.
    let lab = lab("throttle: {bytes_per_second: 30kB}\n");
    let text: String = (0..60_000).map(|n| format!("{n}\n")).collect();
    lab.file("in/a.csv", format!("n\n{text}"));
    let clock = Clock::new(&lab, NOON + 17 * HOUR);
    let mut run = clock.start(&lab, &["run", "job.yaml"]);
    let runs = || lab.run(&["runs", "--json"]).ok().json();
    let outcomes = |runs: serde_json::Value| -> Vec<String> {
        let all = runs["runs"].as_array().into_iter().flatten();
        all.map(|run| run["outcome"].as_str().unwrap_or_default().to_owned()).collect()
    };
    while outcomes(runs()) != ["running"] {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    clock.set(NOON + 19 * HOUR);
    let line = run.says("the job runs at");
    assert_eq!(line, "the job runs at 20:00-06:00: it continues at 2026-11-28T20:00:00+01:00\n");
    assert_eq!(outcomes(runs()), ["interrupted"]);
    lab.run(&["runs"]).ok().prints(&["interrupted", "it continues at 2026-11-28T20:00:00+01:00"]);
    // It holds nothing: others may write to the same database.
    let database = rusqlite::Connection::open(lab.path("out.db")).expect("a database");
    database.busy_timeout(std::time::Duration::ZERO).expect("no waiting");
    database.execute_batch("CREATE TABLE other (a int)").expect("nobody has a lock");
    clock.set(NOON + 32 * HOUR);
    run.ends(0);
    assert_eq!(rows(&lab), [["60000", "60000"]]);
    assert_eq!(outcomes(runs()), ["done", "interrupted"]);
}

#[test]
fn a_run_that_waits_can_be_interrupted() {
    let lab = lab("");
    let clock = Clock::new(&lab, NOON);
    let mut run = clock.start(&lab, &["run", "job.yaml"]);
    run.says("it begins at");
    let process = rustix::process::Pid::from_child(&run.child);
    rustix::process::kill_process(process, rustix::process::Signal::INT).expect("it is asked to end");
    run.ends(130);
    assert!(!lab.path("out.db").exists());
}

/// What was loaded stays, and is resumed: nothing else is said of it.
#[test]
fn a_run_that_waits_to_continue_can_be_interrupted() {
    let lab = lab("throttle: {bytes_per_second: 30kB}\n");
    let text: String = (0..60_000).map(|n| format!("{n}\n")).collect();
    lab.file("in/a.csv", format!("n\n{text}"));
    let clock = Clock::new(&lab, NOON + 17 * HOUR);
    let mut run = clock.start(&lab, &["run", "job.yaml"]);
    while !lab.run(&["runs"]).ok().stdout.contains("running") {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    clock.set(NOON + 19 * HOUR);
    run.says("it continues at");
    let process = rustix::process::Pid::from_child(&run.child);
    rustix::process::kill_process(process, rustix::process::Signal::INT).expect("it is asked to end");
    assert_eq!(run.says("error:"), "error: the run was stopped while it waited for its hours\n");
    run.says("`millstream run --resume job.yaml` continues it");
    run.ends(130);
    let mut again = clock.start(&lab, &["run", "--resume", "job.yaml"]);
    again.says("it continues at 2026-11-28T20:00:00+01:00");
    clock.set(NOON + 32 * HOUR);
    again.ends(0);
    assert_eq!(rows(&lab), [["60000", "60000"]]);
}

#[test]
fn explain_shows_them_and_check_what_is_wrong() {
    let lab = lab("");
    let shown = "runs at 20:00-06:00 (Europe/Berlin); when that is over, it waits for the next day";
    lab.run(&["explain", "job.yaml"]).ok().prints(&[shown]);
    let job = lab.read("job.yaml");
    lab.file("job.yaml", format!("priority: low\n{job}"));
    lab.run(&["explain", "job.yaml"]).ok().prints(&["runs with low priority"]);
    lab.file("job.yaml", job.replace("20:00-06:00", "20:00-26:00"));
    lab.run(&["check", "job.yaml"]).ended(2).says(&["job.yaml:2:8", "20:00-26:00"]);
    lab.file("job.yaml", job.replace("'in/*.csv'", "'-'"));
    let what = "`hours` cannot be kept: `s` reads standard input, which can be read only once";
    lab.run(&["check", "job.yaml"]).ended(2).says(&[what]);
}

#[test]
fn a_service_leaves_its_queue_when_its_hours_end_and_comes_back() {
    let redis = Redis::start(RedisOptions::default());
    let lab = Lab::with_job(&format!(
        "timezone: Europe/Berlin\nhours: 20:00-06:00\nuntil: stopped\ncommit: {{rows: 1}}\nsources:\n  s:\n    read: \
         '{}'\n    redis: {{stream: events, group: load}}\n    json: {{columns: {{n: int64}}}}\nsinks:\n  o: {{from: \
         s, write: 'sqlite:out.db', table: t, mode: append}}\n",
        redis.url()
    ));
    let add = |n: usize| drop(redis.command(&["XADD", "events", "*", "body", &format!("{{\"n\": {n}}}")]));
    // The table is not there at first.
    let count = || -> Option<i64> {
        let database = rusqlite::Connection::open(lab.path("out.db")).ok()?;
        database.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).ok()
    };
    let loaded = |wanted: i64| {
        while count() != Some(wanted) {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    };
    add(1);
    let clock = Clock::new(&lab, NOON + 9 * HOUR);
    let mut run = clock.start(&lab, &["run", "job.yaml"]);
    loaded(1);
    clock.set(NOON + 20 * HOUR);
    run.says("it continues at 2026-11-28T20:00:00+01:00");
    let consumers = redis.command(&["XINFO", "CONSUMERS", "events", "load"]);
    assert!(!consumers.contains("inactive"), "nobody is in the group: {consumers}");
    add(2);
    clock.set(NOON + 33 * HOUR);
    loaded(2);
    let process = rustix::process::Pid::from_child(&run.child);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).expect("it is asked to end");
    run.ends(0);
    assert_eq!(rows(&lab), [["2", "2"]]);
}
