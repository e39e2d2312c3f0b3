//! Services as their operators see them while they live: progress, the run history, outages, and what stays of rejects.

use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::time::Duration;

use millstream_testkit::{Kafka, KafkaOptions, Postgres, PostgresOptions};
use serde_json::Value;

use super::{Scene, stop, until};
use crate::use_resume::in_sqlite;
use crate::use_support::Lab;

const SERVICE: &str = "until: stopped\ncommit: {every: 100ms}";

impl Scene {
    /// A process that writes what it says into the file `log`.
    pub(super) fn start_logged(&self, log: &str, environment: &[(&str, &str)]) -> Child {
        let file = fs_err::File::create(self.lab.path(log)).expect("a file");
        let mut command = self.lab.command(&["run", "job.yaml"]);
        command.envs(environment.iter().copied()).stdout(Stdio::null()).stderr(Stdio::from(file.into_parts().0));
        command.spawn().expect("it starts")
    }

    /// The last run, as `millstream runs` has it.
    pub(super) fn last_run(&self) -> Value {
        self.lab.run(&["runs", "--json"]).ok().json()["runs"][0].clone()
    }

    fn says_times(&self, log: &str, what: &str) -> usize {
        self.lab.read(log).matches(what).count()
    }
}

#[test]
fn a_service_is_seen_while_it_runs() {
    let scene = Scene::new(in_sqlite, SERVICE, ", max_rejects: 10", "");
    scene.add(0..500);
    scene.add_body("bad");
    let process = scene.start("none");
    until("its rows are seen", || scene.last_run()["rows_written"] == 500);
    let run = scene.last_run();
    assert_eq!(
        (&run["outcome"], &run["rows_read"], &run["rows_rejected"]),
        (&"running".into(), &501.into(), &1.into())
    );
    until("it is behind nothing", || scene.last_run()["status"]["queue"]["lag"] == 0);
    until("nothing comes any more", || scene.last_run()["status"]["rate"] == 0.0);
    scene.add(500..600);
    until("messages come", || scene.last_run()["status"]["rate"].as_f64().is_some_and(|rate| rate > 0.0));
    until("they are committed", || scene.last_run()["rows_written"] == 600);
    let epochs = scene.last_run()["status"]["queue"]["epochs"].as_u64().expect("a number");
    assert!(epochs >= 2, "{epochs}");
    scene.lab.run(&["runs"]).ok().prints(&["running", " msg/s · 0 behind", "now", "600"]);
    let name = run["run"].as_str().expect("a name").to_owned();
    scene.lab.run(&["runs", &name]).ok().prints(&[": running\n", "since 20", " msg/s · 0 behind", "600"]);
    stop(process);
    let run = scene.last_run();
    assert_eq!((&run["outcome"], &run["rows_written"], run.get("status")), (&"done".into(), &600.into(), None));
    let status = scene.lab.path(".state/status");
    assert_eq!(fs_err::read_dir(status).expect("a folder").count(), 0, "no file is left of a run that has ended");
}

/// Only the lock says that a run lives: one that was killed is seen as that at once, with what it did last.
#[test]
fn a_killed_service_is_seen_as_killed() {
    let scene = Scene::new(in_sqlite, SERVICE, "", "");
    scene.add(0..50);
    let mut process = scene.start("none");
    until("its rows are seen", || scene.last_run()["rows_written"] == 50);
    process.kill().expect("it is killed");
    process.wait().expect("it ends");
    let run = scene.last_run();
    assert_eq!((&run["outcome"], &run["rows_written"]), (&"killed".into(), &50.into()));
    let name = run["run"].as_str().expect("a name");
    scene.lab.run(&["runs", name]).ok().prints(&[": killed\n", "continues where its targets stand"]);
    let listed = scene.lab.run(&["runs"]);
    assert!(!listed.stdout.contains("msg/s"), "{}", listed.stdout);
}

#[test]
fn the_report_of_a_service_has_intervals() {
    let scene = Scene::new(in_sqlite, "until: {empty: 2s}\ncommit: {rows: 200, every: 100ms}", ", max_rejects: 10", "");
    scene.add(0..1_000);
    scene.add_body("bad");
    let report = scene.run(&["--json"]).ok().json();
    let intervals = report["intervals"].as_array().expect("a list");
    let sum = |key: &str| intervals.iter().map(|one| one[key].as_u64().expect("a number")).sum::<u64>();
    assert!((2..10).contains(&intervals.len()), "{intervals:?}");
    assert_eq!(["messages", "rows_written", "rejected"].map(sum), [1_001, 1_000, 1]);
    assert!(sum("epochs") >= 5, "{intervals:?}");
    let last = intervals.last().expect("one");
    assert_eq!((&last["lag"], &last["oldest_seconds"], &last["messages"]), (&0.into(), &Value::Null, &0.into()));
    assert!(last["to"].as_str().is_some_and(|to| to.ends_with('Z')), "{last}");
    let run = scene.lab.run(&["runs", "last", "--json"]).ok().json();
    assert_eq!(run["run"]["report"]["intervals"], report["intervals"], "the history has them, too");
}

/// A target that is away at the start, and twice in the middle, is reported once each time, and so is its return; a
/// queue that is away, too, however many connections notice it.
#[test]
fn each_outage_is_reported_once() {
    let mut server = Postgres::start(PostgresOptions::default());
    let name = server.database();
    let mut scene = Scene::new(in_sqlite, SERVICE, "", "");
    let job = scene.lab.read("job.yaml").replace(&scene.target.url(), &server.url(&name));
    scene.lab.file("job.yaml", job);
    let rows = |server: &Postgres| server.try_query(&name, "SELECT count(*) FROM t").unwrap_or_default().concat();
    server.kill();
    let process = scene.start_logged("log", &[]);
    let counts = |scene: &Scene, of: &str| {
        [format!("`{of}` waits"), format!("`{of}` continues")].map(|what| scene.says_times("log", &what))
    };
    let mut all = 0;
    for outage in 1..=3 {
        scene.add(all..all + 50);
        all += 50;
        until("it says that it waits", || counts(&scene, "o") == [outage, outage - 1]);
        // So long that several attempts fail.
        std::thread::sleep(Duration::from_secs(2));
        server.restart();
        until("it goes on", || rows(&server) == all.to_string() && counts(&scene, "o") == [outage, outage]);
        server.kill();
    }
    server.restart();
    for outage in 1..=3 {
        scene.redis.kill();
        until("it says that it waits", || counts(&scene, "events") == [outage, outage - 1]);
        std::thread::sleep(Duration::from_secs(1));
        scene.redis.restart();
        scene.add(all..all + 50);
        all += 50;
        until("it goes on", || rows(&server) == all.to_string() && counts(&scene, "events") == [outage, outage]);
        // Some connections notice it only now.
        std::thread::sleep(Duration::from_secs(2));
    }
    stop(process);
    assert_eq!(counts(&scene, "events"), [3, 3], "{}", scene.lab.read("log"));
    assert!(counts(&scene, "o")[0] <= 4, "{}", scene.lab.read("log"));
}

/// A restart of a broker is noticed by the group, by each partition, and by what watches the topic.
#[test]
fn each_outage_of_kafka_is_reported_once() {
    let (mut kafka, lab) = (Kafka::start(KafkaOptions::default()), Lab::new());
    let topic = kafka.topic(3);
    lab.file(
        "job.yaml",
        format!(
            "{SERVICE}\nsources:\n  events: {{read: 'kafka://{}/{topic}', kafka: {{group: g}}, json: {{columns: {{id: \
             int64}}}}}}\nsinks:\n  o: {{from: events, write: 'sqlite:out.db', table: t}}\n",
            kafka.address()
        ),
    );
    let rows = || {
        let listed = lab.run(&["runs", "--json"]).json();
        listed["runs"][0]["rows_written"].as_u64().unwrap_or_default()
    };
    let add = |kafka: &Kafka, outage: i32| {
        (0..3).for_each(|partition| kafka.send(&topic, partition, [format!("{{\"id\": {outage}}}")]));
    };
    add(&kafka, 0);
    let log = fs_err::File::create(lab.path("log")).expect("a file").into_parts().0;
    let mut command = lab.command(&["run", "job.yaml"]);
    let process = command.env("MILLSTREAM_SHORT_SESSIONS", "1").stdout(Stdio::null()).stderr(Stdio::from(log)).spawn();
    let process = process.expect("it starts");
    let counts = || ["waits", "continues"].map(|what| lab.read("log").matches(&format!("`events` {what}")).count());
    until("it has begun", || rows() == 3);
    for outage in 1..=2 {
        kafka.kill();
        until("it says that it waits", || counts() == [outage, outage - 1]);
        std::thread::sleep(Duration::from_secs(2));
        kafka.restart();
        add(&kafka, outage as i32);
        until("it goes on", || rows() == 3 * (outage as u64 + 1) && counts() == [outage, outage]);
    }
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(counts(), [2, 2], "{}", lab.read("log"));
    stop(process);
}

/// Whatever notices a gap, it is reported once.
#[test]
fn a_gap_is_reported_once() {
    let scene = Scene::new(in_sqlite, SERVICE, "", "");
    scene
        .lab
        .file("job.yaml", scene.lab.read("job.yaml").replace("claim_after: 10s", "claim_after: 10s, on_gap: warn"));
    scene.add(0..50);
    let process = scene.start_logged("log", &[]);
    until("it has read", || scene.last_run()["rows_written"] == 50);
    scene.redis.command(&["DEL", "events"]);
    std::thread::sleep(Duration::from_secs(1));
    scene.add(50..60);
    until("it goes on", || scene.count().1 == 60);
    std::thread::sleep(Duration::from_secs(2));
    stop(process);
    assert_eq!(scene.says_times("log", "was deleted"), 1, "{}", scene.lab.read("log"));
}

/// A port that takes connections and says nothing is that of a server which begins to run, or is busy.
#[test]
fn a_database_that_says_nothing_is_waited_for() {
    let scene = Scene::new(in_sqlite, SERVICE, "", "");
    let mute = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("mysql://etl@{}/shop", mute.local_addr().expect("an address"));
    scene.lab.file("job.yaml", scene.lab.read("job.yaml").replace(&scene.target.url(), &url));
    let mut process = scene.start_logged("log", &[]);
    until("it waits", || scene.says_times("log", "`o` waits, and continues when it is there again") == 1);
    assert_eq!(scene.says_times("log", "no MySQL greeting came"), 1, "{}", scene.lab.read("log"));
    assert_eq!(process.try_wait().expect("it can be asked"), None, "it lives");
    stop(process);
}
