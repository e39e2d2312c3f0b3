//! Jobs from a topic of Kafka to another one, through the real binary: each message is there exactly once for readers
//! of committed messages, in its order, whatever dies.

use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millstream_testkit::{Kafka, KafkaOptions, free_port};
use rustix::process::{Pid, Signal, kill_process};

use super::to_queues::{
    CSV, PARTITIONS, assert_complete, from_topic, job, killed, noise, received, rows, run, to_topic,
};
use super::{until, until_it_listens};
use crate::use_support::Lab;

/// How long anything may take that takes a few seconds, or half a minute after a broker has died.
const PATIENCE: Duration = Duration::from_secs(400);

struct Scene {
    lab: Lab,
    first: String,
    second: String,
}

impl Scene {
    /// A job from a topic to another one, with `until` and other keys.
    fn new(kafka: &Kafka, head: &str) -> Self {
        let (lab, first, second) = (Lab::new(), kafka.topic(PARTITIONS), kafka.topic(PARTITIONS));
        job(&lab, head, &from_topic(kafka, &first), &to_topic(kafka, &second));
        Scene { lab, first, second }
    }

    /// Messages with these ids.
    fn add(&self, kafka: &Kafka, ids: Range<usize>) {
        let lab = Lab::new();
        rows(&lab, "rows.csv", ids);
        job(&lab, "", CSV, &to_topic(kafka, &self.first));
        run(&lab).ok();
    }

    /// How many offsets the topic has: messages, aborted ones and the ends of transactions.
    fn offsets(&self, kafka: &Kafka) -> usize {
        (0..PARTITIONS).map(|partition| kafka.range(&self.second, partition).1 as usize).sum()
    }

    fn wait_for(&self, kafka: &Kafka, messages: usize) {
        let begun = Instant::now();
        loop {
            let copied = if self.offsets(kafka) < messages { 0 } else { received(kafka, &self.second).len() };
            if copied >= messages {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{copied} of {messages}");
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    /// All messages are there, once, in their order.
    #[track_caller]
    fn assert_once(&self, kafka: &Kafka, messages: usize) {
        let copied = received(kafka, &self.second);
        assert_complete(&copied, messages);
        assert_eq!(copied.len(), messages, "some are there twice");
    }
}

/// A process of the job. A test that fails leaves none behind, and shows what it said.
struct Running {
    process: Child,
    said: PathBuf,
}

impl Running {
    fn start(lab: &Lab) -> Self {
        Self::with(lab, "MILLSTREAM_FAIL_AT", "none")
    }

    /// One that stops itself (SIGSTOP) where it is said.
    fn stopping(lab: &Lab, place: &str) -> Self {
        Self::with(lab, "MILLSTREAM_STOP_AT", place)
    }

    fn with(lab: &Lab, variable: &str, value: &str) -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let said = lab.path(&format!("said-{}.txt", STARTED.fetch_add(1, Ordering::Relaxed)));
        let file = fs_err::File::create(&said).expect("a file");
        let mut command = lab.command(&["run", "job.yaml"]);
        command.env(variable, value).env("MILLSTREAM_SHORT_SESSIONS", "1");
        command.stdout(Stdio::null()).stderr(Stdio::from(file.into_parts().0));
        Running { process: command.spawn().expect("it starts"), said }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it gets the signal");
    }

    /// Whether it stands still, by a signal.
    fn is_stopped(&self) -> bool {
        let stat = fs_err::read_to_string(format!("/proc/{}/stat", self.process.id())).expect("it is there");
        stat.rsplit_once(") ").expect("a state").1.starts_with('T')
    }

    /// Ends it as a service is ended.
    #[track_caller]
    fn stop(mut self) {
        until_it_listens(&self.process);
        self.signal(Signal::TERM);
        assert_eq!(self.process.wait().expect("it ends").code(), Some(0), "a service that is stopped ends well");
    }

    fn kill(&mut self) {
        self.process.kill().expect("it is killed");
        self.process.wait().expect("it ends");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            let said = fs_err::read_to_string(&self.said).unwrap_or_default();
            eprintln!("{}: {said}", self.said.display());
        }
    }
}

/// A run that is killed doubles nothing, wherever it dies, and what it had sent is not seen.
#[test]
fn a_killed_run_loses_and_doubles_nothing() {
    let kafka = Kafka::shared();
    let scene = Scene::new(kafka, "until: {empty: 2s}\ncommit: {rows: 500}");
    let mut all = 0;
    for kill in
        ["commit.before:2", "transaction.confirmed:2", "transaction.sent:2", "commit.after:2", "epoch.committed"]
    {
        scene.add(kafka, all..all + 2_000);
        all += 2_000;
        killed(&scene.lab, kill);
    }
    run(&scene.lab).ok();
    scene.assert_once(kafka, all);
    let ends = scene.offsets(kafka);
    assert!(ends > all, "{ends} offsets: nothing was aborted");
    run(&scene.lab).ok();
    scene.assert_once(kafka, all);
}

/// Processes share the partitions, and come, go and are killed at any time, while epochs are open.
#[test]
fn processes_that_come_and_go_share_the_messages() {
    let kafka = Kafka::shared();
    let scene = Scene::new(kafka, "until: stopped\ncommit: {rows: 100, every: 200ms}");
    let mut running: Vec<Running> = (0..3).map(|_| Running::start(&scene.lab)).collect();
    for round in 0..6 {
        scene.add(kafka, round * 1_500..(round + 1) * 1_500);
        std::thread::sleep(Duration::from_millis(500));
        let mut ended = std::mem::replace(&mut running[round % 3], Running::start(&scene.lab));
        if round % 2 == 0 {
            ended.stop();
        } else {
            ended.kill();
        }
    }
    scene.wait_for(kafka, 9_000);
    running.into_iter().for_each(Running::stop);
    scene.assert_once(kafka, 9_000);
}

/// A process that is stopped for longer than its session, between two epochs or within a transaction, writes nothing
/// afterwards of what another one has taken over; and goes on when that one has left.
#[test]
fn a_process_that_was_paused_doubles_nothing() {
    let kafka = Kafka::shared();
    let paused_at = |place: Option<&str>| {
        let scene = Scene::new(kafka, "until: stopped\ncommit: {rows: 100, every: 100ms}");
        scene.add(kafka, 0..1_000);
        let paused = match place {
            Some(place) => Running::stopping(&scene.lab, place),
            None => Running::start(&scene.lab),
        };
        if place.is_none() {
            scene.wait_for(kafka, 1_000);
            paused.signal(Signal::STOP);
        }
        until("it stands still", || paused.is_stopped());
        scene.add(kafka, 1_000..3_000);
        let other = Running::start(&scene.lab);
        scene.wait_for(kafka, 3_000);
        assert!(paused.is_stopped(), "it has written");
        paused.signal(Signal::CONT);
        scene.add(kafka, 3_000..5_000);
        scene.wait_for(kafka, 5_000);
        // All partitions are its own again.
        other.stop();
        scene.add(kafka, 5_000..6_000);
        scene.wait_for(kafka, 6_000);
        paused.stop();
        scene.assert_once(kafka, 6_000);
    };
    std::thread::scope(|scope| {
        for place in [None, Some("transaction.confirmed:4"), Some("transaction.sent:4"), Some("commit.after:4")] {
            scope.spawn(move || paused_at(place));
        }
    });
}

#[test]
fn nothing_is_doubled_while_the_broker_restarts() {
    let mut kafka = Kafka::start(KafkaOptions::default());
    let scene = Scene::new(&kafka, "until: stopped\ncommit: {rows: 100, every: 100ms}");
    let running = [Running::start(&scene.lab), Running::start(&scene.lab)];
    for round in 0..3 {
        scene.add(&kafka, round * 2_000..(round + 1) * 2_000);
        std::thread::sleep(Duration::from_millis(400));
        kafka.restart();
    }
    scene.wait_for(&kafka, 6_000);
    running.into_iter().for_each(Running::stop);
    scene.assert_once(&kafka, 6_000);
}

/// What a topic does not take is found before it is sent. If its settings change while the job runs, brokers refuse
/// some messages, with all that is in their transaction: the rest is sent again.
#[test]
fn refused_messages_take_no_others_with_them() {
    let kafka = Kafka::shared();
    let lab = Lab::new();
    let (first, second) = (kafka.topic(1), format!("compacted-{}", free_port()));
    kafka.create_topic(&second, 1, &[("max.message.bytes", "2000")]);
    let send = |ids: Range<usize>| {
        for id in ids {
            let name = if id % 100 == 30 { noise(20_000) } else { "x".to_owned() };
            let body = format!("{{\"id\": {id}, \"name\": \"{name}\"}}");
            match id % 40 {
                5 => kafka.send(&first, 0, [body]),
                _ => kafka.send_one(&first, 0, &format!("k{id}"), &[], 1_700_000_000_000, Some(&body)),
            }
        }
    };
    let source = format!(
        "read: 'kafka://{}/{first}', kafka: {{group: g-{first}}}, json: {{columns: {{id: int64, name: utf8}}}}, add: \
         [_key]",
        kafka.address()
    );
    let sink = format!("write: 'kafka://{}/{second}', add: [_key], max_rejects", kafka.address());
    let rejects = || {
        let rejects = lab.run(&["rejects", "--json"]).ok().json();
        rejects["rejects"].as_array().map_or(0, Vec::len)
    };
    let running = |head: &str| {
        job(&lab, head, &source, &format!("{sink}: 10"));
        Running::start(&lab)
    };
    let mut taken: Vec<usize> = (0..100).filter(|id| *id != 30).collect();
    let service = running("until: stopped");
    send(0..100);
    until("the first messages are there", || ids(kafka, &second) == taken);
    kafka.configure_topic(&second, &[("max.message.bytes", "2000"), ("cleanup.policy", "compact")]);
    send(100..200);
    taken.extend((100..200).filter(|id| id % 40 != 5 && *id != 130));
    until("the others are there", || ids(kafka, &second) == taken);
    service.stop();
    assert_eq!(rejects(), 1 + 3);
    // Another run knows it before, and fails before the transaction ends.
    send(200..300);
    job(&lab, "until: now", &source, &format!("{sink}: 3"));
    run(&lab).ended(3).says(&["records were rejected"]);
    assert_eq!(ids(kafka, &second), taken, "a transaction that was aborted is seen");
    job(&lab, "until: now", &source, &format!("{sink}: 4"));
    run(&lab).ok().says(&["96 messages added"]);
    taken.extend((200..300).filter(|id| id % 40 != 5 && *id != 230));
    assert_eq!(ids(kafka, &second), taken);
    lab.run(&["rejects"]).ok().prints(&["it has no key, and the topic is compacted (`cleanup.policy`)"]);
}

/// The ids of the messages that readers of committed ones see.
fn ids(kafka: &Kafka, topic: &str) -> Vec<usize> {
    let lab = Lab::new();
    let source = format!(
        "read: 'kafka://{}/{topic}', kafka: {{group: look-{topic}}}, json: {{columns: {{id: int64, name: utf8}}}}",
        kafka.address()
    );
    job(&lab, "until: now", &source, "write: out.csv");
    lab.file("job.yaml", lab.read("job.yaml").replace("write: out.csv", "write: 'sqlite:out.db', table: t"));
    run(&lab).ok();
    let rows = crate::use_resume::in_sqlite(&lab).query("SELECT id FROM t ORDER BY rowid");
    rows.iter().map(|id| id.parse().expect("a number")).collect()
}

/// Within one cluster it is exactly once, whichever of its brokers are named; from another one, at least once.
#[test]
fn the_guarantee_depends_on_the_cluster() {
    let (kafka, other) = (Kafka::shared(), Kafka::start(KafkaOptions::default()));
    let scene = Scene::new(kafka, "until: now\ncommit: {rows: 500}");
    let explained = |lab: &Lab| lab.run(&["explain", "job.yaml"]);
    explained(&scene.lab).ok().prints(&["epoch by epoch, exactly once: positions move in the transaction"]);
    scene.add(kafka, 0..1_000);
    let by_door = to_topic(kafka, &scene.second).replace(&kafka.address(), &kafka.door());
    job(&scene.lab, "until: {empty: 2s}\ncommit: {rows: 500}", &from_topic(kafka, &scene.first), &by_door);
    explained(&scene.lab).ok().prints(&["at least once: its brokers are not those of the source"]);
    killed(&scene.lab, "commit.after:2");
    run(&scene.lab).ok();
    scene.assert_once(kafka, 1_000);
    // The group hears of what was killed when later messages are there.
    scene.add(kafka, 1_000..1_100);
    run(&scene.lab).ok();
    let third = other.topic(PARTITIONS);
    job(&scene.lab, "until: {empty: 2s}", &from_topic(kafka, &scene.first), &to_topic(&other, &third));
    scene.add(kafka, 1_100..1_600);
    run(&scene.lab).ok().says(&["500 messages added"]);
    assert_eq!(received(&other, &third).len(), 500, "it begins at the offset of the group");
}

/// Brokers drop the positions of a job that has stood still for long: it does not begin again by itself.
#[test]
fn positions_that_brokers_have_dropped_are_missed() {
    let kafka = Kafka::start(KafkaOptions::default());
    let scene = Scene::new(&kafka, "until: now");
    scene.add(&kafka, 0..100);
    run(&scene.lab).ok();
    kafka.delete_groups("millstream-");
    scene.add(&kafka, 100..150);
    let told = format!("it is not known any more how far the queue was read into topic {}", scene.second);
    run(&scene.lab).ended(1).says(&[
        &told,
        "the group `millstream-",
        "lacks positions that it had",
        "`--restart` begins",
    ]);
    scene.assert_once(&kafka, 100);
    scene.lab.run(&["run", "job.yaml", "--restart"]).ok().says(&["150 messages added"]);
    scene.add(&kafka, 150..160);
    run(&scene.lab).ok().says(&["10 messages added"]);
    assert_eq!(received(&kafka, &scene.second).len(), 100 + 160);
}

#[test]
fn a_job_that_reads_what_it_writes_is_refused() {
    let (kafka, lab) = (Kafka::shared(), Lab::new());
    let topic = kafka.topic(1);
    job(&lab, "until: now", &from_topic(kafka, &topic), &to_topic(kafka, &topic));
    let told = format!("it writes to topic `{topic}`, which the job also reads: the job would read its own messages");
    run(&lab).ended(2).says(&["`o` cannot take rows of a queue", &told]);
    lab.run(&["explain", "job.yaml"]).ended(2).says(&[&told]);
    // The same brokers by another name.
    let by_door = to_topic(kafka, &topic).replace(&kafka.address(), &kafka.door());
    job(&lab, "until: now", &from_topic(kafka, &topic), &by_door);
    run(&lab).ended(2).says(&[&told]);
}
