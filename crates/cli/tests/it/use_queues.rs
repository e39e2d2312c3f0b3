//! Jobs that read a queue, through the real binary: each message becomes a row once, whatever dies.

mod columns;
mod example;
mod files;
mod kafka;
mod kafka_to_kafka;
mod living;
mod others;
mod rejects;
mod secured;
mod several;
mod soak;
mod to_queues;

use std::collections::BTreeSet;
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use millstream_testkit::{Postgres, PostgresOptions, Redis, RedisOptions};
use rustix::process::{Pid, Signal, kill_process};

use crate::use_resume::{Target, in_mariadb, in_postgres, in_sqlite};
use crate::use_support::{Lab, Ran};

const ALL: [fn(&Lab) -> Target; 3] = [in_sqlite, in_mariadb, in_postgres];

struct Scene {
    lab: Lab,
    redis: Redis,
    target: Target,
}

impl Scene {
    /// A stream `events` with a group, into a table. `until` and other keys of the job, of the source and of the sink.
    fn new(make: fn(&Lab) -> Target, job: &str, source: &str, sink: &str) -> Self {
        let (lab, redis) = (Lab::new(), Redis::start(RedisOptions::default()));
        let target = make(&lab);
        lab.file(
            "job.yaml",
            format!(
                "{job}\nsources:\n  events: {{read: '{}', redis: {{stream: events, group: load, claim_after: 10s}}, \
                 json: {{columns: {{id: int64, name: utf8}}}}, add: [_id]{source}}}\nsinks:\n  o: {{from: events, \
                 write: '{}', table: t{sink}}}\n",
                redis.url(),
                target.url()
            ),
        );
        Scene { lab, redis, target }
    }

    /// Messages with these ids, in the stream.
    fn add(&self, ids: Range<usize>) {
        let script = "for id = ARGV[1], ARGV[2] - 1 do redis.call('XADD', KEYS[1], '*', 'body', '{\"id\": ' .. id .. \
                      ', \"name\": \"row ' .. id .. '\"}') end";
        self.redis.command(&["EVAL", script, "1", "events", &ids.start.to_string(), &ids.end.to_string()]);
    }

    /// A message with this body.
    fn add_body(&self, body: &str) {
        self.redis.command(&["XADD", "events", "*", "body", body]);
    }

    fn start(&self, fail_point: &str) -> Child {
        let mut command = self.lab.command(&["run", "job.yaml"]);
        command.env("MILLSTREAM_FAIL_AT", fail_point).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("it starts")
    }

    fn run(&self, more: &[&str]) -> Ran {
        self.lab.run(&[&["run", "job.yaml"], more].concat())
    }

    fn count(&self) -> (usize, usize) {
        let rows = self.target.query("SELECT count(*), count(DISTINCT id) FROM t").concat();
        let (rows, ids) = rows.split_once('\t').expect("two numbers");
        (rows.parse().expect("a number"), ids.parse().expect("a number"))
    }

    fn pending(&self) -> String {
        self.redis.command(&["XPENDING", "events", "load"])
    }
}

#[test]
fn messages_become_rows_once() {
    for make in ALL {
        let scene = Scene::new(make, "until: now\ncommit: {rows: 3000}", "", "");
        scene.add(0..10_000);
        scene.run(&[]).ok().says(&["10,000 rows read, 10,000 written", "10,000 rows added"]);
        assert_eq!(scene.count(), (10_000, 10_000));
        scene.run(&[]).ok();
        assert_eq!(scene.count(), (10_000, 10_000), "nothing comes twice");
        scene.add(10_000..10_050);
        scene.run(&[]).ok();
        assert_eq!(scene.count(), (10_050, 10_050));
        assert!(scene.pending().starts_with('0'), "{}", scene.pending());
    }
}

/// A run that is killed leaves nothing lost and nothing doubled, wherever it dies.
#[test]
fn a_killed_run_loses_and_doubles_nothing() {
    for make in ALL {
        let scene = Scene::new(make, "until: {empty: 1s}\ncommit: {rows: 500}", "", "");
        let mut all = 0;
        for kill in ["commit.before:2", "commit.after:2", "epoch.committed:2", "epoch.committed", "bulk.before:2"] {
            scene.add(all..all + 2_000);
            all += 2_000;
            let status = scene.start(kill).wait().expect("it ends");
            assert_eq!(status.signal(), Some(9), "{kill}");
        }
        scene.run(&[]).ok();
        assert_eq!(scene.count(), (all, all));
        assert!(scene.pending().starts_with('0'), "{}", scene.pending());
    }
}

/// Three processes share the messages, and are killed at any time.
#[test]
fn processes_that_come_and_go_share_the_messages() {
    const ALL_MESSAGES: usize = 30_000;
    for make in ALL {
        let scene = Scene::new(make, "until: stopped\ncommit: {rows: 200, every: 100ms}", "", "");
        let mut running: Vec<Child> = (0..3).map(|_| scene.start("none")).collect();
        for round in 0..6 {
            scene.add(round * ALL_MESSAGES / 6..(round + 1) * ALL_MESSAGES / 6);
            std::thread::sleep(Duration::from_millis(700));
            let index = round % running.len();
            running[index].kill().expect("it is killed");
            running[index].wait().expect("it ends");
            running[index] = scene.start("none");
        }
        let begun = Instant::now();
        while scene.count().1 < ALL_MESSAGES || !scene.pending().starts_with('0') {
            assert!(begun.elapsed() < Duration::from_secs(200), "{:?} {}", scene.count(), scene.pending());
            std::thread::sleep(Duration::from_millis(200));
        }
        running.into_iter().for_each(stop);
        assert_eq!(scene.count(), (ALL_MESSAGES, ALL_MESSAGES));
    }
}

#[test]
fn bad_messages_are_rejects_with_their_ids() {
    let scene = Scene::new(in_sqlite, "until: now", ", max_rejects: 10", "");
    scene.add(0..5);
    for bad in ["{\"id\": 5, \"name\": ", "5}", "", "[]", "{\"id\": \"x\"}", "{\"id\": 6,\n \"name\": \"two lines\"}"] {
        scene.add_body(bad);
    }
    scene.add(7..9);
    scene.run(&[]).ok();
    assert_eq!(scene.target.query("SELECT id FROM t ORDER BY id"), ["0", "1", "2", "3", "4", "6", "7", "8"]);
    let rejects = scene.lab.run(&["rejects", "--json"]).ok().json();
    let rejects = rejects["rejects"].as_array().expect("a list").clone();
    let ids: Vec<String> = scene.target.query("SELECT _id FROM t WHERE id < 5 ORDER BY id");
    assert!(ids.iter().all(|id| id.contains('-')), "{ids:?}");
    assert!(
        rejects.iter().all(|reject| reject["message_id"].as_str().is_some_and(|id| id.contains('-'))),
        "{rejects:?}"
    );
    assert!(rejects.iter().any(|reject| reject["raw"]["text"] == "5}"), "{rejects:?}");
    assert!(scene.pending().starts_with('0'), "{}", scene.pending());
    scene.run(&[]).ok();
    assert_eq!(scene.count().0, 8);
}

/// Waits until something holds.
#[track_caller]
fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(300), "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The ids of the messages that runs have rejected.
fn rejected(lab: &Lab) -> BTreeSet<String> {
    let runs = lab.run(&["runs", "-n", "100000", "--json"]).ok().json();
    let mut ids = BTreeSet::new();
    for run in runs["runs"].as_array().expect("a list") {
        let rejects = lab.run(&["rejects", run["run"].as_str().expect("a name"), "--json"]).ok().json();
        let rejects = rejects["rejects"].as_array().expect("a list").clone();
        ids.extend(rejects.iter().map(|reject| reject["message_id"].as_str().expect("an id").to_owned()));
    }
    ids
}

/// What the system says of a process: `State`, `SigCgt`; nothing once it has been waited for.
fn status_of(process: &Child, key: &str) -> String {
    let status = fs_err::read_to_string(format!("/proc/{}/status", process.id())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

/// Waits until a process is stopped, as by `MILLSTREAM_STOP_AT`.
#[track_caller]
fn until_paused(process: &Child) {
    until("it is stopped", || status_of(process, "State").starts_with('T'));
}

/// Waits until a process listens to signals, or has ended: before that, they end it.
#[track_caller]
fn until_it_listens(process: &Child) {
    let listens = || {
        let caught = u64::from_str_radix(&status_of(process, "SigCgt"), 16).unwrap_or_default();
        caught >> (Signal::TERM.as_raw() - 1) & 1 == 1
    };
    until("it listens to signals", || listens() || status_of(process, "State").starts_with('Z'));
}

#[track_caller]
fn stop(mut process: Child) {
    until_it_listens(&process);
    kill_process(Pid::from_child(&process), Signal::TERM).expect("it gets the signal");
    assert_eq!(process.wait().expect("it ends").code(), Some(0), "a service that is stopped ends well");
}

/// A service may start before its target, waits for one that goes away, and ends well while it is away.
#[test]
fn a_service_waits_for_its_target() {
    let mut server = Postgres::start(PostgresOptions::default());
    let name = server.database();
    let scene = Scene::new(in_sqlite, "until: stopped\ncommit: {every: 100ms}", "", "");
    scene.lab.file("job.yaml", scene.lab.read("job.yaml").replace(&scene.target.url(), &server.url(&name)));
    let rows = |server: &Postgres| server.try_query(&name, "SELECT count(*) FROM t").unwrap_or_default().concat();
    server.kill();
    let mut process = scene.start("none");
    scene.add(0..100);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(process.try_wait().expect("it can be asked"), None, "it waits");
    server.restart();
    until("it has begun", || rows(&server) == "100");
    server.kill();
    scene.add(100..150);
    std::thread::sleep(Duration::from_secs(1));
    server.restart();
    until("it goes on", || rows(&server) == "150");
    server.kill();
    scene.add(150..200);
    std::thread::sleep(Duration::from_secs(1));
    stop(process);
    server.restart();
    assert_eq!(rows(&server), "150");
    let process = scene.start("none");
    until("what was given back comes again", || rows(&server) == "200" && scene.pending().starts_with('0'));
    stop(process);
}

/// Messages that come again since they were revoked count once, and so do those that are bad.
#[test]
fn revoked_messages_count_once() {
    let scene = Scene::new(in_sqlite, "until: stopped\ncommit: {every: 5s}", ", max_rejects: 3", "");
    scene.add(0..7);
    (0..3).for_each(|_| scene.add_body("bad"));
    scene.redis.command(&["XGROUP", "CREATE", "events", "load", "0"]);
    let process = scene.start("none");
    until("it has read", || scene.pending().starts_with("10"));
    scene.target.query("DELETE FROM _millstream_positions");
    until("all are committed", || scene.pending().starts_with('0'));
    stop(process);
    assert_eq!(scene.count(), (7, 7));
}

#[test]
fn runs_end_when_they_are_to_end() {
    let scene = Scene::new(in_sqlite, "until: {rows: 120}\ncommit: {rows: 50}", "", "");
    scene.add(0..1_000);
    scene.run(&[]).ok();
    assert_eq!(scene.count(), (120, 120));
    for (until, rows) in [("{for: 1s}", 1_000), ("empty", 1_000)] {
        let job = scene.lab.read("job.yaml").replace("until: {rows: 120}", &format!("until: {until}"));
        scene.lab.file("job.yaml", job);
        scene.run(&[]).ok();
        assert_eq!(scene.count(), (rows, rows), "{until}");
    }
}

#[test]
fn jobs_that_cannot_run_are_refused() {
    let scene = Scene::new(in_sqlite, "until: now", "", "");
    let job = scene.lab.read("job.yaml");
    for (changed, told) in [
        (job.replace("until: now\n", ""), "is a queue, which has no end, and the job does not say `until`"),
        (job.replace("table: t", "table: t, mode: replace"), "cannot take rows of a queue"),
        (
            job.replace("sinks:", "transforms:\n  n: {sql: 'SELECT count(*) AS n FROM events'}\nsinks:")
                .replace("from: events", "from: n"),
            "an aggregate combines rows",
        ),
        (job.replace("group: load, ", ""), "the key `group` is missing"),
    ] {
        scene.lab.file("job.yaml", changed);
        scene.run(&[]).ended(2).says(&[told]);
    }
    scene.lab.file("job.yaml", &job);
    scene.run(&["--restart"]).ended(2).says(&["a queue is not loaded anew by `--restart`", "another `group`"]);
    scene.lab.run(&["preview", "job.yaml", "events"]).ended(2).says(&["a queue is read by `run` alone"]);
    for check in ["{unique: [id]}", "{not_null: [id]}", "{range: {id: {min: 5}}, severity: warn}"] {
        for place in ["add: [_id]", "table: t"] {
            scene.lab.file("job.yaml", job.replace(place, &format!("{place}, checks: [{check}]")));
            scene.run(&[]).ended(2).says(&["has a check that is judged when all rows have come", "no end"]);
        }
    }
}
