//! Jobs that read a topic of Kafka, through the real binary: each message becomes a row once, whatever dies.

use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use millstream_testkit::{Kafka, KafkaOptions, MariaDb, MariaDbOptions, free_port};
use rustix::process::{Pid, Signal, kill_process};

use super::{ALL, stop};
use crate::use_resume::{Target, in_mariadb, in_postgres, in_sqlite};
use crate::use_support::{Lab, Ran};

const PARTITIONS: usize = 3;

/// How long anything may take that takes a few seconds.
const PATIENCE: Duration = Duration::from_secs(300);

struct Scene {
    lab: Lab,
    topic: String,
    target: Target,
}

impl Scene {
    /// A topic of three partitions, which a group loads into a table. `job` has `until` and other keys of the job;
    /// `source` and `sink` more keys of both.
    fn new(kafka: &Kafka, make: fn(&Lab) -> Target, job: &str, source: &str, sink: &str) -> Self {
        let lab = Lab::new();
        let (topic, target) = (kafka.topic(PARTITIONS as i32), make(&lab));
        lab.file(
            "job.yaml",
            format!(
                "{job}\nsources:\n  events: {{read: 'kafka://{}/{topic}', kafka: {{group: load-{topic}}}, json: \
                 {{columns: {{id: int64, name: utf8}}}}, add: [_id]{source}}}\nsinks:\n  o: {{from: events, write: \
                 '{}', table: t{sink}}}\n",
                kafka.address(),
                target.url()
            ),
        );
        Scene { lab, topic, target }
    }

    fn change(&self, from: &str, to: &str) {
        let job = self.lab.read("job.yaml");
        assert!(job.contains(from), "{job}");
        self.lab.file("job.yaml", job.replace(from, to));
    }

    /// Messages with these ids, over all partitions.
    fn add(&self, kafka: &Kafka, ids: Range<usize>) {
        for partition in 0..PARTITIONS {
            let own = ids.clone().filter(|id| id % PARTITIONS == partition);
            kafka.send(
                &self.topic,
                partition as i32,
                own.map(|id| format!("{{\"id\": {id}, \"name\": \"row {id}\"}}")),
            );
        }
    }

    fn start(&self, fail_point: &str) -> Child {
        let mut command = self.lab.command(&["run", "job.yaml"]);
        command.env("MILLSTREAM_FAIL_AT", fail_point).env("MILLSTREAM_SHORT_SESSIONS", "1");
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts")
    }

    /// Runs until it is killed at a fail point.
    fn killed(&self, fail_point: &str) {
        let mut command = self.lab.command(&["run", "job.yaml"]);
        command.env("MILLSTREAM_FAIL_AT", fail_point).env("MILLSTREAM_SHORT_SESSIONS", "1");
        let ended = command.output().expect("it starts");
        assert_eq!(ended.status.signal(), Some(9), "{fail_point}: {}", String::from_utf8_lossy(&ended.stderr));
    }

    fn run(&self) -> Ran {
        self.lab.run(&["run", "job.yaml"])
    }

    /// How many rows there are, and how many messages they are of.
    fn count(&self) -> (usize, usize) {
        count(&self.target, "t")
    }

    fn wait_for(&self, messages: usize) {
        let begun = Instant::now();
        while count_of(&self.target, "t").is_none_or(|(_, ids)| ids < messages) {
            assert!(begun.elapsed() < PATIENCE, "{:?} of {messages}", self.count());
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

fn count_of(target: &Target, table: &str) -> Option<(usize, usize)> {
    let has_table = target.tables().iter().any(|one| one == table);
    has_table.then(|| count(target, table))
}

fn count(target: &Target, table: &str) -> (usize, usize) {
    let rows = target.query(&format!("SELECT count(*), count(DISTINCT _id) FROM {table}")).concat();
    let (rows, ids) = rows.split_once('\t').expect("two numbers");
    (rows.parse().expect("a number"), ids.parse().expect("a number"))
}

#[test]
fn messages_become_rows_once() {
    let kafka = Kafka::shared();
    for make in ALL {
        let scene = Scene::new(kafka, make, "until: now\ncommit: {rows: 3000}", "", "");
        scene.add(kafka, 0..10_000);
        scene.run().ok().says(&["10,000 rows read, 10,000 written", "10,000 rows added"]);
        assert_eq!(scene.count(), (10_000, 10_000));
        scene.run().ok();
        assert_eq!(scene.count(), (10_000, 10_000), "nothing comes twice");
        scene.add(kafka, 10_000..10_050);
        scene.change("until: now", "until: {empty: 1s}");
        scene.run().ok();
        assert_eq!(scene.count(), (10_050, 10_050));
        scene.add(kafka, 10_050..10_200);
        scene.change("until: {empty: 1s}", "until: {rows: 120}");
        scene.run().ok();
        assert_eq!(scene.count(), (10_170, 10_170));
    }
}

#[test]
fn messages_are_merged_and_ignored_by_key() {
    let kafka = Kafka::shared();
    let times = "table: t, mode: merge, key: [id], order_by: [at desc]";
    for make in ALL {
        let scene = Scene::new(kafka, make, "until: now\ncommit: {rows: 2}", "", "");
        scene.change("name: utf8}", "name: utf8, at: int64}");
        scene.change("table: t", times);
        let body = |id: usize, name: &str, at: usize| format!("{{\"id\": {id}, \"name\": \"{name}\", \"at\": {at}}}");
        kafka.send(&scene.topic, 0, [body(1, "b", 2), body(1, "a", 1), body(2, "a", 1), body(2, "b", 2)]);
        scene.run().ok();
        assert_eq!(scene.target.query("SELECT name FROM t ORDER BY id"), ["b", "b"]);
        kafka.send(&scene.topic, 1, [body(1, "late", 1), body(2, "c", 3), body(3, "a", 1)]);
        scene.run().ok();
        assert_eq!(scene.target.query("SELECT name FROM t ORDER BY id"), ["b", "c", "a"]);
        scene.change(times, "table: t, mode: ignore, key: [id]");
        kafka.send(&scene.topic, 2, [body(1, "no", 9), body(4, "a", 1)]);
        scene.run().ok();
        assert_eq!(scene.target.query("SELECT name FROM t ORDER BY id"), ["b", "c", "a", "a"]);
    }
}

#[test]
fn rows_have_the_key_headers_and_time_of_their_message() {
    let kafka = Kafka::shared();
    let scene = Scene::new(kafka, in_sqlite, "until: now", "", "");
    scene.change("add: [_id]", "add: [_id, _key, _headers, _time]");
    let body = "{\"id\": 1, \"name\": \"é\"}";
    kafka.send_one(&scene.topic, 2, "k é", &[("a", "1"), ("b", "zwei")], 1_700_000_000_123, Some(body));
    scene.run().ok();
    let row = scene.target.query("SELECT _id, _key, _headers, _time, name FROM t").concat();
    assert!(row.starts_with("2:0\tk é\t{\"a\":\"1\",\"b\":\"zwei\"}\t2023-11-14"), "{row}");
    assert!(row.contains("22:13:20.123") && row.ends_with("\té"), "{row}");
}

#[test]
fn bad_messages_and_those_without_a_body_are_rejects_with_their_ids() {
    let kafka = Kafka::shared();
    let scene = Scene::new(kafka, in_sqlite, "until: now", ", max_rejects: 10", "");
    scene.add(kafka, 0..3);
    kafka.send(&scene.topic, 0, ["{\"id\": ", "{\"id\": \"x\"}"]);
    kafka.send_one(&scene.topic, 1, "k", &[], 1_700_000_000_000, None);
    scene.run().ok();
    assert_eq!(scene.target.query("SELECT _id FROM t ORDER BY 1"), ["0:0", "1:0", "2:0"]);
    let rejects = scene.lab.run(&["rejects", "--json"]).ok().json();
    let rejects = rejects["rejects"].as_array().expect("a list").clone();
    let mut ids: Vec<&str> = rejects.iter().filter_map(|reject| reject["message_id"].as_str()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["0:1", "0:2", "1:1"], "{rejects:?}");
}

/// What only moves a position is committed, too: an aborted transaction leaves no message, and nothing is waited for.
#[test]
fn aborted_messages_are_passed_once() {
    let kafka = Kafka::shared();
    let scene = Scene::new(kafka, in_sqlite, "until: {empty: 1s}", "", "");
    kafka.send_in_transaction(&scene.topic, 0, &["{\"id\": 1}"], false);
    kafka.send_in_transaction(&scene.topic, 1, &["{\"id\": 2}"], true);
    scene.run().ok();
    assert_eq!(scene.target.query("SELECT id FROM t"), ["2"]);
    // Positions stand behind all of it: what is deleted was read.
    kafka.delete_records(&scene.topic, 0, 2);
    kafka.delete_records(&scene.topic, 1, 2);
    scene.run().ok();
    assert_eq!(scene.count(), (1, 1));
}

/// Markers of transactions come while the queue is empty: it stays so.
#[test]
fn markers_alone_do_not_keep_a_run_from_its_end() {
    let kafka = Kafka::shared();
    let scene = Scene::new(kafka, in_sqlite, "until: {empty: 4s}", "", "");
    scene.add(kafka, 0..3);
    let mut process = scene.start("none");
    scene.wait_for(3);
    kafka.send_in_transaction(&scene.topic, 0, &["{\"id\": 1}"], false);
    let begun = Instant::now();
    while process.try_wait().expect("it is there").is_none() {
        assert!(begun.elapsed() < Duration::from_secs(180), "it does not end");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(process.wait().expect("it ends").code(), Some(0));
}

/// A run that is killed leaves nothing lost and nothing doubled, wherever it dies.
#[test]
fn a_killed_run_loses_and_doubles_nothing() {
    let kafka = Kafka::shared();
    let killed = |make: fn(&Lab) -> Target| {
        let scene = Scene::new(kafka, make, "until: {empty: 2s}\ncommit: {rows: 500}", "", "");
        let mut all = 0;
        for kill in ["commit.before:2", "commit.after:2", "epoch.committed", "bulk.before:2"] {
            scene.add(kafka, all..all + 3_000);
            all += 3_000;
            scene.killed(kill);
        }
        scene.run().ok();
        assert_eq!(scene.count(), (all, all));
    };
    std::thread::scope(|scope| ALL.into_iter().for_each(|make| drop(scope.spawn(move || killed(make)))));
}

/// A large epoch is written by two transactions at once, each of which moves other partitions: one may be committed
/// when the process dies, and the other not.
#[test]
fn transactions_side_by_side_lose_and_double_nothing() {
    const EPOCH: usize = 3_000;
    let kafka = Kafka::shared();
    let killed = |make: fn(&Lab) -> Target| {
        let commit = format!("commit: {{rows: {EPOCH}, every: 20s}}");
        let scene = Scene::new(kafka, make, &format!("until: now\n{commit}"), "", "");
        let mut all = 0;
        for kill in ["commit.before", "commit.after", "commit.after:2", "epoch.committed", "commit.after:3"] {
            scene.add(kafka, all..all + 2 * EPOCH);
            all += 2 * EPOCH;
            scene.killed(kill);
        }
        scene.run().ok();
        assert_eq!(scene.count(), (all, all));
        scene.add(kafka, all..all + EPOCH);
        scene.run().ok();
        assert_eq!(scene.count(), (all + EPOCH, all + EPOCH));
        let attempts = scene.target.query("SELECT count(DISTINCT attempt), count(*) FROM _millstream_positions");
        assert_eq!(attempts, ["2\t3"], "two transactions have moved three partitions");
    };
    std::thread::scope(|scope| {
        [in_mariadb, in_postgres].into_iter().for_each(|make| drop(scope.spawn(move || killed(make))));
    });
}

/// Processes share the partitions, and come, go and are killed at any time, while epochs are open.
#[test]
fn processes_that_come_and_go_share_the_messages() {
    const ALL_MESSAGES: usize = 12_000;
    let kafka = Kafka::shared();
    let shared = |make: fn(&Lab) -> Target| {
        let scene = Scene::new(kafka, make, "until: stopped\ncommit: {rows: 200, every: 200ms}", "", "");
        let mut running: Vec<Child> = (0..3).map(|_| scene.start("none")).collect();
        for round in 0..6 {
            scene.add(kafka, round * ALL_MESSAGES / 6..(round + 1) * ALL_MESSAGES / 6);
            std::thread::sleep(Duration::from_millis(1_500));
            let mut ended = std::mem::replace(&mut running[round % 3], scene.start("none"));
            if round % 2 == 0 {
                stop(ended);
            } else {
                ended.kill().expect("it is killed");
                ended.wait().expect("it ends");
            }
        }
        scene.wait_for(ALL_MESSAGES);
        running.into_iter().for_each(stop);
        assert_eq!(scene.count(), (ALL_MESSAGES, ALL_MESSAGES));
    };
    std::thread::scope(|scope| ALL.into_iter().for_each(|make| drop(scope.spawn(move || shared(make)))));
}

/// A process that was stopped while others took its partitions finds that positions were moved on, and writes nothing
/// of what it has: neither the epoch that it was writing nor the next one.
#[test]
fn a_process_that_was_paused_doubles_nothing() {
    let kafka = Kafka::shared();
    for make in [in_mariadb, in_postgres] {
        let scene = Scene::new(kafka, make, "until: stopped\ncommit: {rows: 100, every: 100ms}", "", "");
        let paused = scene.start("none");
        scene.add(kafka, 0..300);
        scene.wait_for(300);
        kill_process(Pid::from_child(&paused), Signal::STOP).expect("it is stopped");
        scene.add(kafka, 300..6_000);
        let other = scene.start("none");
        scene.wait_for(6_000);
        kill_process(Pid::from_child(&paused), Signal::CONT).expect("it continues");
        scene.add(kafka, 6_000..9_000);
        scene.wait_for(9_000);
        stop(paused);
        stop(other);
        assert_eq!(scene.count(), (9_000, 9_000));
    }
}

/// A process that is stopped within a transaction does not keep others from its partitions.
#[test]
fn a_process_that_was_paused_while_it_committed_is_fenced() {
    let kafka = Kafka::shared();
    let fenced = |make: fn(&Lab) -> Target| {
        let scene = Scene::new(kafka, make, "until: stopped\ncommit: {rows: 100, every: 100ms}", "", "");
        scene.add(kafka, 0..3_000);
        let mut command = scene.lab.command(&["run", "job.yaml"]);
        command.env("MILLSTREAM_STOP_AT", "commit.before:3").env("MILLSTREAM_SHORT_SESSIONS", "1");
        let paused = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        scene.wait_for(100);
        let other = scene.start("none");
        scene.wait_for(3_000);
        kill_process(Pid::from_child(&paused), Signal::CONT).expect("it continues");
        scene.add(kafka, 3_000..6_000);
        scene.wait_for(6_000);
        stop(paused);
        stop(other);
        assert_eq!(scene.count(), (6_000, 6_000));
    };
    std::thread::scope(|scope| {
        [in_mariadb, in_postgres].into_iter().for_each(|make| drop(scope.spawn(move || fenced(make))));
    });
}

/// Brokers and databases restart, and processes are stopped for a while, as long as `MILLSTREAM_SOAK_SECONDS` says.
#[test]
fn nothing_is_lost_while_servers_restart() {
    let seconds = std::env::var("MILLSTREAM_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let mut kafka = Kafka::start(KafkaOptions::default());
    let mut database = MariaDb::start(MariaDbOptions::default());
    let name = database.database();
    let scene = Scene::new(&kafka, in_sqlite, "until: stopped\ncommit: {rows: 500, every: 100ms}", "", "");
    let file = scene.target.url();
    scene.change(&file, &database.url(&name));
    let running = [scene.start("none"), scene.start("none")];
    let (begun, mut all) = (Instant::now(), 0);
    for round in 0.. {
        if begun.elapsed() > Duration::from_secs(seconds) {
            break;
        }
        scene.add(&kafka, all..all + 3_000);
        all += 3_000;
        std::thread::sleep(Duration::from_millis(500));
        match round % 3 {
            0 => kafka.restart(),
            1 => database.restart(),
            _ => {
                let one = Pid::from_child(&running[round / 3 % 2]);
                kill_process(one, Signal::STOP).expect("it is stopped");
                std::thread::sleep(Duration::from_secs(8));
                kill_process(one, Signal::CONT).expect("it continues");
            }
        }
    }
    let rows = || database.query(&name, "SELECT count(*), count(DISTINCT _id) FROM t").concat();
    let begun = Instant::now();
    while rows() != format!("{all}\t{all}") {
        if begun.elapsed() > PATIENCE {
            let there = database.query(&name, "SELECT id FROM t");
            let missing: Vec<usize> = (0..all).filter(|id| !there.contains(&id.to_string())).collect();
            let positions = database.query(&name, "SELECT * FROM _millstream_positions");
            let ends: Vec<_> = (0..PARTITIONS as i32).map(|partition| kafka.range(&scene.topic, partition)).collect();
            panic!("{} of {all}: {missing:?} are missing; {positions:?}; {ends:?}", rows());
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    running.into_iter().for_each(stop);
    assert_eq!(rows(), format!("{all}\t{all}"));
}

/// A service ends when it is stopped, even if its target is away.
#[test]
fn a_service_is_stopped_while_its_target_is_away() {
    let kafka = Kafka::shared();
    let mut database = MariaDb::start(MariaDbOptions::default());
    let name = database.database();
    let scene = Scene::new(kafka, in_sqlite, "until: stopped\ncommit: {every: 100ms}", "", "");
    let file = scene.target.url();
    scene.change(&file, &database.url(&name));
    let process = scene.start("none");
    scene.add(kafka, 0..30);
    let rows =
        || database.query(&name, "SELECT count(*) FROM information_schema.tables WHERE table_name = 't'").concat();
    let begun = Instant::now();
    while rows() == "0" {
        assert!(begun.elapsed() < PATIENCE, "there is no table");
        std::thread::sleep(Duration::from_millis(100));
    }
    std::thread::sleep(Duration::from_secs(2));
    database.kill();
    scene.add(kafka, 30..60);
    std::thread::sleep(Duration::from_secs(2));
    let begun = Instant::now();
    stop(process);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[test]
fn rows_are_filtered_and_looked_up_on_their_way() {
    let kafka = Kafka::shared();
    let scene = Scene::new(kafka, in_sqlite, "until: now\ncommit: {rows: 200}", "", "");
    scene.lab.file("kinds.csv", "kind,title\n0,even\n1,odd\n");
    scene.change(
        "sinks:",
        "  kinds: {read: kinds.csv}\ntransforms:\n  few: {sql: 'SELECT _id, id, id % 2 AS kind FROM events WHERE id \
         % 10 < 5'}\n  named: {lookup: {from: few, in: kinds, on: {kind: kind}, take: [title]}}\nsinks:",
    );
    scene.change("from: events", "from: named");
    scene.add(kafka, 0..1_000);
    scene.run().ok();
    assert_eq!(scene.count(), (500, 500));
    assert_eq!(scene.target.query("SELECT title, count(*) FROM t GROUP BY 1 ORDER BY 1"), ["even\t300", "odd\t200"]);
    scene.run().ok();
    assert_eq!(scene.count(), (500, 500));
}

#[test]
fn lost_messages_end_the_run_unless_they_may_be_lost() {
    let kafka = Kafka::shared();
    let scene = Scene::new(kafka, in_sqlite, "until: now", "", "");
    scene.add(kafka, 0..30);
    scene.run().ok();
    scene.add(kafka, 30..60);
    kafka.delete_records(&scene.topic, 1, 15);
    let ran = scene.run();
    ran.ended(1).says(&["partition 1", "offsets 10 to 14 were deleted"]);
    assert_eq!(scene.count().0, scene.count().1);
    let group = format!("group: load-{}", scene.topic);
    scene.change(&group, &format!("{group}, on_gap: warn"));
    scene.run().ok().says(&["partition 1"]);
    assert_eq!(scene.count(), (55, 55));
}

#[test]
fn topics_and_brokers_that_are_not_there() {
    let kafka = Kafka::shared();
    let scene = Scene::new(kafka, in_sqlite, "until: now", "", "");
    scene.change(&scene.topic, "nowhere");
    scene.run().ended(1).says(&["nowhere"]);
    scene.change(&kafka.address(), &format!("127.0.0.1:{}", free_port()));
    scene.run().ended(1).says(&["127.0.0.1"]);
}
