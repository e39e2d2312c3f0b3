//! Everything that can go wrong with a queue at once, for a while: processes are killed and stopped, servers restart,
//! connections break, answers are lost. In the end each good message is a row once, each bad one a reject, and nothing
//! is unacknowledged. The kinds of the breaks themselves are the testkit's.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use millstream_testkit::{
    Break, Kafka, KafkaOptions, MariaDb, MariaDbOptions, PatientProducer, Postgres, PostgresOptions, Proxy, Redis,
    RedisOptions,
};
use rustix::process::{Pid, Signal, kill_process};

use super::{rejected, until_it_listens};
use crate::use_resume::Target;
use crate::use_support::Lab;

/// How long it goes on, in seconds, unless `MILLSTREAM_SOAK_SECONDS` says otherwise.
const SECONDS: u64 = 60;

/// How long nothing may become a row, or be acknowledged, while something is left and nothing breaks any more. How long
/// all of it takes depends on the machine.
const DRAINING: Duration = Duration::from_secs(180);

/// How long a process is stopped: longer than others wait before they take over what it has.
const STOPPED: Duration = Duration::from_secs(12);

/// How many processes share the queue.
const PROCESSES: usize = 3;

/// How many partitions the topic has.
const PARTITIONS: i32 = 3;

/// Numbers that only look random, so that a soak can be done again.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}

/// A database that can be killed, and is reached through a proxy.
enum Database {
    Sqlite(Target),
    MariaDb(MariaDb, String, Proxy),
    Postgres(Postgres, String, Proxy),
}

/// Breaks for many connections: most of them work, and of the others each kind comes again and again.
fn breaks(kinds: &[Break]) -> Vec<Break> {
    let one = |number: usize| if number % 5 == 4 { kinds[number / 5 % kinds.len()] } else { Break::Nothing };
    (0..20_000).map(one).collect()
}

fn database_proxy(port: u16) -> Proxy {
    let kinds = [Break::SwallowAnswer("COMMIT"), Break::CutSending(60_000), Break::Cut(3_000)];
    Proxy::start(port, &breaks(&kinds))
}

impl Database {
    fn mariadb() -> Self {
        let server = MariaDb::start(MariaDbOptions::default());
        let (name, proxy) = (server.database(), database_proxy(server.port()));
        Database::MariaDb(server, name, proxy)
    }

    fn postgres() -> Self {
        let server = Postgres::start(PostgresOptions::default());
        let (name, proxy) = (server.database(), database_proxy(server.port()));
        Database::Postgres(server, name, proxy)
    }

    fn url(&self) -> String {
        let through =
            |url: String, port: u16, proxy: &Proxy| url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
        match self {
            Database::Sqlite(target) => target.url(),
            Database::MariaDb(server, name, proxy) => through(server.url(name), server.port(), proxy),
            Database::Postgres(server, name, proxy) => through(server.url(name), server.port(), proxy),
        }
    }

    fn query(&self, sql: &str) -> Vec<String> {
        match self {
            Database::Sqlite(target) => target.query(sql),
            Database::MariaDb(server, name, _) => server.query(name, sql),
            Database::Postgres(server, name, _) => server.query(name, sql),
        }
    }

    fn restart(&mut self, down: Duration) {
        match self {
            Database::Sqlite(_) => {}
            Database::MariaDb(server, ..) => {
                server.kill();
                std::thread::sleep(down);
                server.restart();
            }
            Database::Postgres(server, ..) => {
                server.kill();
                std::thread::sleep(down);
                server.restart();
            }
        }
    }

    fn cut(&self) {
        match self {
            Database::Sqlite(_) => {}
            Database::MariaDb(.., proxy) | Database::Postgres(.., proxy) => proxy.close_all(),
        }
    }
}

/// A queue that can be killed, and is reached through a proxy.
enum Queue {
    Redis(Redis, Proxy),
    Kafka(Box<Kafka>, String, PatientProducer),
}

impl Queue {
    fn redis() -> Self {
        let redis = Redis::start(RedisOptions::default());
        let kinds = [
            Break::SwallowAnswer("XACK"),
            Break::CutSending(20_000),
            Break::SwallowAnswer("XREADGROUP"),
            Break::Cut(100_000),
            Break::SwallowAnswer("XCLAIM"),
        ];
        let proxy = Proxy::start(redis.port(), &breaks(&kinds));
        Queue::Redis(redis, proxy)
    }

    fn kafka() -> Self {
        let breaks = breaks(&[Break::CutSending(20_000), Break::Cut(100_000)]);
        let kafka = Kafka::start(KafkaOptions { breaks, ..KafkaOptions::default() });
        let (topic, producer) = (kafka.topic(PARTITIONS), kafka.patient_producer());
        Queue::Kafka(Box::new(kafka), topic, producer)
    }

    /// The keys of a source that reads it.
    fn source(&self) -> String {
        match self {
            Queue::Redis(_, proxy) => format!(
                "read: redis://127.0.0.1:{}/0\n    redis: {{stream: events, group: load, claim_after: 10s}}",
                proxy.port()
            ),
            Queue::Kafka(kafka, topic, _) => {
                format!("read: kafka://{}/{topic}\n    kafka: {{group: load}}", kafka.door())
            }
        }
    }

    /// Adds 100 messages from `first` on, those whose numbers have a rest of `bad` bad ones. Whether they were added is
    /// seen in the queue.
    fn add(&self, first: u64, bad: u64) {
        match self {
            Queue::Redis(redis, _) => {
                let script = "for id = ARGV[1], ARGV[1] + 99 do local body = '{\"id\": ' .. id .. ', \"name\": \"row ' \
                              .. id .. '\"}' if id % 300 == tonumber(ARGV[2]) then body = 'bad ' .. id end \
                              redis.call('XADD', KEYS[1], '*', 'body', body) end";
                let _ = redis.try_command(&["EVAL", script, "1", "events", &first.to_string(), &bad.to_string()]);
            }
            Queue::Kafka(_, topic, producer) => {
                for id in first..first + 100 {
                    let body = match id % 300 == bad {
                        true => format!("bad {id}"),
                        false => format!("{{\"id\": {id}, \"name\": \"row {id}\"}}"),
                    };
                    producer.send(topic, i32::try_from(id % 3).expect("small"), &body);
                }
            }
        }
    }

    fn restart(&mut self, down: Duration) {
        match self {
            Queue::Redis(redis, _) => {
                redis.kill();
                std::thread::sleep(down);
                redis.restart();
            }
            Queue::Kafka(kafka, ..) => {
                kafka.kill();
                std::thread::sleep(down);
                kafka.restart();
            }
        }
    }

    /// How long it runs at least between two restarts: a broker leads its partitions some seconds after its start.
    fn quiet(&self) -> Duration {
        Duration::from_secs(if matches!(self, Queue::Redis(..)) { 5 } else { 12 })
    }

    fn cut(&self) {
        match self {
            Queue::Redis(_, proxy) => proxy.close_all(),
            Queue::Kafka(kafka, ..) => kafka.proxy().close_all(),
        }
    }

    /// The ids of good and of bad messages.
    fn messages(&self) -> [BTreeSet<String>; 2] {
        let mut messages = [BTreeSet::new(), BTreeSet::new()];
        match self {
            Queue::Redis(redis, _) => {
                let all = redis.command(&["XRANGE", "events", "-", "+"]);
                let lines: Vec<&str> = all.lines().collect();
                for entry in lines.chunks_exact(3) {
                    messages[usize::from(entry[2].starts_with("bad"))].insert(entry[0].to_owned());
                }
            }
            Queue::Kafka(kafka, topic, producer) => {
                producer.finish();
                for partition in 0..PARTITIONS {
                    for (offset, body) in kafka.messages(topic, partition) {
                        messages[usize::from(body.starts_with("bad"))].insert(format!("{partition}:{offset}"));
                    }
                }
            }
        }
        messages
    }

    /// How many messages are handed out and not acknowledged; of Kafka only the target knows that.
    fn unacknowledged(&self) -> usize {
        match self {
            Queue::Redis(redis, _) => {
                let pending = redis.command(&["XPENDING", "events", "load"]);
                pending.lines().next().and_then(|count| count.parse().ok()).expect("a number")
            }
            Queue::Kafka(..) => 0,
        }
    }
}

/// A process, and where it writes what it says.
struct Running {
    child: Child,
    log: String,
    /// When it is continued, if it is stopped.
    stopped: Option<Instant>,
}

struct Soak {
    lab: Lab,
    queue: Queue,
    database: Database,
    dice: Dice,
    running: Vec<Running>,
    started: usize,
    /// What was said by processes that ended by themselves.
    ended: Vec<String>,
    added: u64,
}

impl Soak {
    fn new(queue: Queue, database: impl FnOnce(&Lab) -> Database) -> Self {
        let lab = Lab::new();
        let database = database(&lab);
        lab.file(
            "job.yaml",
            format!(
                "until: stopped\ncommit: {{rows: 500, every: 200ms}}\nsources:\n  events:\n    {}\n    json: \
                 {{columns: {{id: int64, name: utf8}}}}\n    add: [_id]\n    max_rejects: 1000000\nsinks:\n  \
                 o: {{from: events, write: '{}', table: t}}\n",
                queue.source(),
                database.url()
            ),
        );
        let dice = Dice(std::process::id().into());
        eprintln!("the dice begin with {}", dice.0);
        Soak { lab, queue, database, dice, running: Vec::new(), started: 0, ended: Vec::new(), added: 0 }
    }

    fn start(&mut self) -> Running {
        let log = format!("log-{}", self.started);
        self.started += 1;
        let file = fs_err::File::create(self.lab.path(&log)).expect("a file");
        let mut command = self.lab.command(&["run", "job.yaml"]);
        command.env("MILLSTREAM_SHORT_SESSIONS", "1");
        command.stdout(Stdio::null()).stderr(Stdio::from(file.into_parts().0));
        Running { child: command.spawn().expect("it starts"), log, stopped: None }
    }

    /// Messages, of which one in about 300 is bad.
    fn produce(&mut self) {
        self.queue.add(self.added, self.dice.below(300));
        self.added += 100;
    }

    /// Notes processes that have ended by themselves, and starts others in their place.
    fn supervise(&mut self) {
        for index in 0..self.running.len() {
            if let Some(status) = self.running[index].child.try_wait().expect("it can be asked") {
                let log = self.lab.read(&self.running[index].log);
                self.ended.push(format!("{status}: {log}"));
                self.running[index] = self.start();
            }
            let process = &mut self.running[index];
            if process.stopped.is_some_and(|until| until <= Instant::now()) {
                process.stopped = None;
                kill_process(Pid::from_child(&process.child), Signal::CONT).expect("it is continued");
            }
        }
    }

    fn kill_one(&mut self) {
        let index = usize::try_from(self.dice.below(self.running.len() as u64)).expect("small");
        if self.running[index].stopped.is_none() {
            self.running[index].child.kill().expect("it is killed");
            self.running[index].child.wait().expect("it ends");
            self.running[index] = self.start();
        }
    }

    fn stop_one(&mut self) {
        if self.running.iter().all(|process| process.stopped.is_none()) {
            let index = usize::try_from(self.dice.below(self.running.len() as u64)).expect("small");
            let process = &mut self.running[index];
            process.stopped = Some(Instant::now() + STOPPED);
            kill_process(Pid::from_child(&process.child), Signal::STOP).expect("it is stopped");
        }
    }

    fn cut(&mut self) {
        match self.dice.below(2) {
            0 => self.queue.cut(),
            _ => self.database.cut(),
        }
    }

    /// Everything breaks again and again, each at its own pace.
    fn breaks(&mut self, end: Instant) {
        let now = Instant::now();
        let secs = Duration::from_secs;
        let [mut kill, mut stop, mut queue, mut database, mut cut] = [2, 3, 6, 9, 4].map(|seconds| now + secs(seconds));
        let is_due = |moment: &mut Instant, pause: Duration| {
            let is_due = *moment <= Instant::now();
            if is_due {
                *moment = Instant::now() + pause;
            }
            is_due
        };
        while Instant::now() < end {
            self.produce();
            self.supervise();
            let pause = self.dice.millis(1_000, 3_000);
            if is_due(&mut kill, pause) {
                self.kill_one();
            }
            if is_due(&mut stop, STOPPED + pause) {
                self.stop_one();
            }
            if is_due(&mut queue, self.queue.quiet() + pause) {
                let down = self.dice.millis(0, 1_500);
                self.queue.restart(down);
            }
            if is_due(&mut database, secs(5) + pause) {
                let down = self.dice.millis(0, 2_000);
                self.database.restart(down);
            }
            if is_due(&mut cut, secs(1) + pause) {
                self.cut();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn drain(&mut self, good: usize) {
        let (mut changed, mut before) = (Instant::now(), (0, 0));
        loop {
            self.supervise();
            let rows: usize = self.database.query("SELECT count(*) FROM t")[0].parse().expect("a number");
            let pending = self.queue.unacknowledged();
            let is_stopped = self.running.iter().any(|process| process.stopped.is_some());
            if rows >= good && pending == 0 && !is_stopped {
                return;
            }
            if before != (rows, pending) {
                (changed, before) = (Instant::now(), (rows, pending));
            }
            let is_stuck = changed.elapsed() >= DRAINING + STOPPED;
            assert!(!is_stuck, "{rows} of {good} rows, {pending} not acknowledged\n{}", self.said());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// What all processes have said.
    fn said(&self) -> String {
        (0..self.started).fold(String::new(), |mut said, number| {
            let log = fs_err::read_to_string(self.lab.path(&format!("log-{number}"))).unwrap_or_default();
            let _ = writeln!(said, "-- {number}\n{log}");
            said
        })
    }

    fn go(mut self) {
        let seconds = std::env::var("MILLSTREAM_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
        let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(SECONDS));
        self.produce();
        self.running = (0..PROCESSES).map(|_| self.start()).collect();
        self.breaks(end);
        let [good, bad] = self.queue.messages();
        self.drain(good.len());
        let stops = |process: &Running| kill_process(Pid::from_child(&process.child), Signal::TERM);
        self.running.iter().for_each(|process| until_it_listens(&process.child));
        self.running.iter().for_each(|process| stops(process).expect("it gets the signal"));
        for mut process in std::mem::take(&mut self.running) {
            let status = process.child.wait().expect("it ends");
            assert_eq!(status.code(), Some(0), "{}", self.lab.read(&process.log));
        }
        let rows = self.database.query("SELECT _id FROM t ORDER BY _id");
        let ids: BTreeSet<String> = rows.iter().cloned().collect();
        let (missing, more): (Vec<_>, Vec<_>) = (good.difference(&ids).collect(), ids.difference(&good).collect());
        let doubled = rows.len() - ids.len();
        eprintln!("{} good, {} bad, {} processes", good.len(), bad.len(), self.started);
        assert!(missing.is_empty() && more.is_empty() && doubled == 0, "{missing:?} {more:?} {doubled} doubled");
        assert_eq!(self.queue.unacknowledged(), 0);
        let rejects = rejected(&self.lab);
        assert_eq!(rejects, bad, "{:?}", bad.symmetric_difference(&rejects));
        assert!(bad.len() > 1 && self.started > PROCESSES, "it was not much of a soak");
        assert!(self.ended.is_empty(), "ended by themselves: {}", self.ended.join("\n"));
    }
}

#[test]
fn redis_into_sqlite() {
    Soak::new(Queue::redis(), |lab| Database::Sqlite(crate::use_resume::in_sqlite(lab))).go();
}

#[test]
fn redis_into_mariadb() {
    Soak::new(Queue::redis(), |_| Database::mariadb()).go();
}

#[test]
fn redis_into_postgres() {
    Soak::new(Queue::redis(), |_| Database::postgres()).go();
}

#[test]
fn kafka_into_sqlite() {
    Soak::new(Queue::kafka(), |lab| Database::Sqlite(crate::use_resume::in_sqlite(lab))).go();
}

#[test]
fn kafka_into_mariadb() {
    Soak::new(Queue::kafka(), |_| Database::mariadb()).go();
}

#[test]
fn kafka_into_postgres() {
    Soak::new(Queue::kafka(), |_| Database::postgres()).go();
}
