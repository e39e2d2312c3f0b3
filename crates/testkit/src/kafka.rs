//! A real Kafka broker in KRaft mode with a folder of its own, on free ports of loopback.
//!
//! ```text
//!  tests' own topics, messages ──▶ plain listener ┐
//!  what is under test ─────▶ proxy ─▶ door ───────┴─ broker
//! ```
//!
//! A broker tells its clients under which address they are to come again. So the door is a listener of its own, which
//! names the proxy, and may speak TLS and ask for a login.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer};
use rdkafka::{Offset, TopicPartitionList};

use crate::guarded::{Guarded, set_up};
use crate::nginx::free_port;
use crate::proftpd::secret_file;
use crate::{Break, Certificate, PASSWORD, Proxy, TempTree, USER};

/// What `scripts/install-test-kafka.sh` installs.
const INSTALLED: &str = "kafka-4.4.0-1";

/// The broker needs no more memory for a test's messages, and starts sooner without the second compiler.
const JAVA: [&str; 5] = ["-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"];

/// How long a request of a test may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Only warnings are of interest when a test fails.
const LOGGING: &str = "rootLogger.level=WARN
rootLogger.appenderRefs=o
rootLogger.appenderRef.o.ref=O
appender.o.type=Console
appender.o.name=O
appender.o.layout.type=PatternLayout
appender.o.layout.pattern=%d %p %c{1} %m%n
";

/// One broker, which coordinates groups and transactions alone, makes no topics unasked, and keeps messages of any
/// time: by default, those that are older than a week go half a minute after its start.
const SETTINGS: &str = "process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
auto.create.topics.enable=false
log.retention.ms=-1
log.cleaner.backoff.ms=100
log.segment.delete.delay.ms=100
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
";

/// Options of a broker.
#[derive(Debug, Clone, Default)]
pub struct KafkaOptions {
    /// More settings, a name and a value each: `message.max.bytes`, `5000000`.
    pub settings: Vec<(String, String)>,
    /// What happens to connections through the door, one after the other; the last one holds for all that follow.
    pub breaks: Vec<Break>,
    /// Whether the door asks for the login [`USER`] and [`PASSWORD`]: by PLAIN or SCRAM.
    pub login: bool,
    /// The door speaks TLS as this server, which has to be `localhost`.
    pub certificate: Option<Certificate>,
}

/// A running broker. It ends when dropped, or with this process.
pub struct Kafka {
    process: Option<Guarded>,
    port: u16,
    proxy: Proxy,
    folder: TempTree,
    admin: OnceLock<AdminClient<DefaultClientContext>>,
    topics: AtomicUsize,
}

impl std::fmt::Debug for Kafka {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kafka").field("port", &self.port).finish_non_exhaustive()
    }
}

impl Kafka {
    /// The broker that all tests of this program share. It lives as long as the program.
    pub fn shared() -> &'static Kafka {
        static SHARED: OnceLock<Kafka> = OnceLock::new();
        SHARED.get_or_init(|| Kafka::start(KafkaOptions::default()))
    }

    /// Starts a separate broker.
    ///
    /// # Panics
    /// If Kafka or Java is not installed, or it does not start.
    pub fn start(options: KafkaOptions) -> Self {
        let folder = TempTree::new();
        let (port, door, controller) = (free_port(), free_port(), free_port());
        let breaks = if options.breaks.is_empty() { vec![Break::Nothing] } else { options.breaks.clone() };
        let proxy = Proxy::start(door, &breaks);
        secret_file(&folder, "server.properties", &settings(&folder, &options, [port, door, controller, proxy.port()]));
        folder.file("log4j2.properties", LOGGING);
        let (admin, topics) = (OnceLock::new(), AtomicUsize::new(0));
        let mut broker = Kafka { process: None, port, proxy, folder, admin, topics };
        broker.format(options.login);
        broker.restart();
        broker
    }

    /// Makes the folder of the data.
    fn format(&self, has_login: bool) {
        let mut line = self.java("kafka.tools.StorageTool");
        // Each broker is a cluster of its own: by its port, as a port has five digits at most.
        let cluster = format!("{:05}XRFQS2hxtKLqS6Fuw", self.port);
        line.extend(["format", "-t", &cluster, "--standalone", "-c"].map(str::to_owned));
        line.push(self.folder.path("server.properties").display().to_string());
        for kind in ["SCRAM-SHA-256", "SCRAM-SHA-512"].into_iter().filter(|_| has_login) {
            line.extend(["--add-scram".to_owned(), format!("{kind}=[name={USER},password={PASSWORD}]")]);
        }
        set_up("root", Path::new("java"), &line, "default-jre-headless");
    }

    /// The arguments that run a class of the broker.
    fn java(&self, class: &str) -> Vec<String> {
        let mut line: Vec<String> = JAVA.map(str::to_owned).to_vec();
        line.push(format!("-Dlog4j2.configurationFile=file:{}", self.folder.path("log4j2.properties").display()));
        line.extend(["-cp".to_owned(), format!("{}/*", installed().display()), class.to_owned()]);
        line
    }

    /// Starts the broker, or restarts it in the same folder and on the same ports after a kill.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        self.kill();
        let log = self.folder.path("log");
        let mut line = self.java("kafka.Kafka");
        line.push(self.folder.path("server.properties").display().to_string());
        let process = Guarded::start("root", Path::new("java"), &line, &log, self.folder.root());
        process.wait_until("kafka", &log, || self.answers());
        self.process = Some(process);
    }

    fn answers(&self) -> bool {
        let metadata = self.admin().inner().fetch_metadata(None, Duration::from_secs(2));
        metadata.is_ok_and(|metadata| !metadata.brokers().is_empty())
    }

    /// Kills the broker (`kill -9`), and waits for its end.
    pub fn kill(&mut self) {
        self.process.iter().for_each(Guarded::kill);
        self.process = None;
    }

    /// Ends the broker as an administrator does, and waits for its end.
    ///
    /// # Panics
    /// If it does not end within two minutes.
    pub fn stop(&mut self) {
        self.signal("-TERM");
        let start = Instant::now();
        while self.process.as_ref().is_some_and(Guarded::is_running) {
            assert!(start.elapsed() < PATIENCE, "the broker does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        self.process = None;
    }

    /// Stops its process where it is (SIGSTOP): its connections stay open, and say nothing.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    #[expect(clippy::expect_used, reason = "tests stop here")]
    fn signal(&self, name: &str) {
        let process = self.process.as_ref().expect("the broker runs");
        let status = Command::new("kill").arg(name).arg(process.id().to_string()).status();
        assert!(status.expect("kill is there").success(), "the broker does not run");
    }

    /// Its plain listener: `127.0.0.1:9092`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The listener behind the proxy, with TLS and login as its options say: `localhost:9093`.
    pub fn door(&self) -> String {
        format!("localhost:{}", self.proxy.port())
    }

    /// What stands before the door.
    pub fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn admin(&self) -> &AdminClient<DefaultClientContext> {
        self.admin.get_or_init(|| self.client(&[]).create().unwrap_or_else(|error| panic!("a client: {error}")))
    }

    /// The configuration of a client of the plain listener, with more settings.
    pub fn client(&self, settings: &[(&str, &str)]) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.address()).set("reconnect.backoff.max.ms", "500");
        for (name, value) in settings {
            config.set(*name, *value);
        }
        config
    }

    /// A new topic with so many partitions; its name.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn topic(&self, partitions: i32) -> String {
        let name = format!("topic-{}", self.topics.fetch_add(1, Ordering::SeqCst));
        self.create_topic(&name, partitions, &[]);
        name
    }

    /// Makes a topic with settings (`cleanup.policy`, `compact`), and waits until it is there.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn create_topic(&self, name: &str, partitions: i32, settings: &[(&str, &str)]) {
        let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        let topic = settings.iter().fold(topic, |topic, (name, value)| topic.set(name, value));
        let done = self.admin().create_topics([&topic], &AdminOptions::new());
        wait(done, &format!("topic {name} is made"), |(_, code)| *code == RDKafkaErrorCode::TopicAlreadyExists);
        let is_there = || {
            let metadata = self.admin().inner().fetch_metadata(Some(name), PATIENCE).ok()?;
            let partitions = metadata.topics().first().filter(|topic| topic.error().is_none())?.partitions();
            Some(!partitions.is_empty() && partitions.iter().all(|partition| partition.leader() >= 0))
        };
        until(&format!("topic {name} is there"), || is_there() == Some(true));
    }

    /// Gives a topic that is there these settings, in place of those that it has of its own, and waits until they hold.
    ///
    /// # Panics
    /// If the brokers refuse.
    pub fn configure_topic(&self, name: &str, settings: &[(&str, &str)]) {
        let change = AlterConfig::new(ResourceSpecifier::Topic(name));
        let change = settings.iter().fold(change, |change, (name, value)| change.set(name, value));
        let done = self.admin().alter_configs([&change], &AdminOptions::new());
        wait(done, &format!("topic {name} is changed"), |_| false);
        // The broker applies changes one after the other, and shows a new topic before it has applied all that came
        // with it. So once the second one is seen, what was before the first one holds.
        (0..2).for_each(|_| drop(self.topic(1)));
    }

    /// Deletes a topic with its messages, and waits until it is not there any more.
    ///
    /// # Panics
    /// If it cannot be deleted.
    pub fn delete_topic(&self, name: &str) {
        let done = self.admin().delete_topics(&[name], &AdminOptions::new());
        let is_gone = |code: &RDKafkaErrorCode| *code == RDKafkaErrorCode::UnknownTopicOrPartition;
        wait(done, &format!("topic {name} is deleted"), |(_, code)| is_gone(code));
        let is_there = || {
            let metadata = self.admin().inner().fetch_metadata(Some(name), PATIENCE).ok()?;
            Some(metadata.topics().first().is_some_and(|topic| topic.error().is_none()))
        };
        until(&format!("topic {name} has ended"), || is_there() == Some(false));
    }

    /// Deletes the groups whose names begin with `prefix`, and what they have noted: as time does it.
    ///
    /// # Panics
    /// If there are none, or they cannot be deleted.
    #[expect(clippy::expect_used, reason = "tests stop here")]
    pub fn delete_groups(&self, prefix: &str) {
        let groups = self.admin().inner().fetch_group_list(None, PATIENCE).expect("a list of groups");
        let names: Vec<&str> = groups.groups().iter().map(|group| group.name()).collect();
        let names: Vec<&str> = names.into_iter().filter(|name| name.starts_with(prefix)).collect();
        assert!(!names.is_empty(), "there are no groups {prefix}…");
        let each = block_on(self.admin().delete_groups(&names, &AdminOptions::new())).expect("groups are deleted");
        each.into_iter().for_each(|one| drop(one.expect("a group is deleted")));
    }

    /// Deletes the messages of a partition before an offset.
    ///
    /// # Panics
    /// If that fails.
    #[expect(clippy::expect_used, reason = "tests stop here")]
    pub fn delete_records(&self, topic: &str, partition: i32, before: i64) {
        let mut offsets = TopicPartitionList::new();
        offsets.add_partition_offset(topic, partition, Offset::Offset(before)).expect("an offset");
        let done = block_on(self.admin().delete_records(&offsets, &AdminOptions::new())).expect("records are deleted");
        done.elements().iter().for_each(|one| one.error().expect("records are deleted"));
    }

    /// The first offset of a partition, and the one behind the last message that readers of transactions see.
    ///
    /// # Panics
    /// If the broker does not say.
    pub fn range(&self, topic: &str, partition: i32) -> (i64, i64) {
        let start = Instant::now();
        loop {
            match self.admin().inner().fetch_watermarks(topic, partition, PATIENCE) {
                Ok(range) => return range,
                // A broker that has just started leads no partition for some seconds.
                Err(error) => assert!(start.elapsed() < PATIENCE, "offsets of the partition: {error}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sends messages to a partition, and waits until they are there.
    ///
    /// # Panics
    /// If that fails.
    pub fn send(&self, topic: &str, partition: i32, bodies: impl IntoIterator<Item = impl AsRef<[u8]>>) {
        let producer = self.producer(&[]);
        bodies.into_iter().for_each(|body| put(&producer, record(topic, partition).payload(body.as_ref())));
        flush(&producer);
    }

    /// Sends a message with a key, headers and a time in milliseconds since 1970, and waits until it is there. Without
    /// a body it says that the key was deleted.
    ///
    /// # Panics
    /// If that fails.
    pub fn send_one(
        &self,
        topic: &str,
        partition: i32,
        key: &str,
        headers: &[(&str, &str)],
        time: i64,
        body: Option<&str>,
    ) {
        let all = headers
            .iter()
            .fold(OwnedHeaders::new(), |all, (key, value)| all.insert(Header { key, value: Some(*value) }));
        let message = record(topic, partition).key(key.as_bytes()).headers(all).timestamp(time);
        let producer = self.producer(&[]);
        put(&producer, body.iter().fold(message, |message, body| message.payload(body.as_bytes())));
        flush(&producer);
    }

    /// Sends messages to a partition in one transaction, which is aborted unless `commits`, and waits until its end is
    /// there.
    ///
    /// # Panics
    /// If that fails.
    #[expect(clippy::expect_used, reason = "tests stop here")]
    pub fn send_in_transaction(&self, topic: &str, partition: i32, bodies: &[&str], commits: bool) {
        let producer = self.producer(&[("transactional.id", &format!("{topic}-{partition}"))]);
        producer.init_transactions(PATIENCE).expect("transactions");
        producer.begin_transaction().expect("a transaction");
        let end = self.range(topic, partition).1 + i64::try_from(bodies.len()).expect("few") + 1;
        bodies.iter().for_each(|body| put(&producer, record(topic, partition).payload(body.as_bytes())));
        // An abort would drop what has not left yet.
        flush(&producer);
        match commits {
            true => producer.commit_transaction(PATIENCE).expect("a commit"),
            false => producer.abort_transaction(PATIENCE).expect("an abort"),
        }
        until("the transaction has ended", || self.range(topic, partition).1 == end);
    }

    /// A producer that waits for a broker that is away.
    pub fn patient_producer(&self) -> PatientProducer {
        let settings = [("enable.idempotence", "true"), ("message.timeout.ms", "0")];
        PatientProducer(self.producer(&settings))
    }

    /// All messages of a partition that readers of transactions see: offsets and bodies.
    ///
    /// # Panics
    /// If they cannot be read.
    #[expect(clippy::expect_used, reason = "tests stop here")]
    pub fn messages(&self, topic: &str, partition: i32) -> Vec<(i64, String)> {
        let settings = [("group.id", "look"), ("enable.partition.eof", "true"), ("enable.auto.commit", "false")];
        let consumer: BaseConsumer = self.client(&settings).create().expect("a consumer");
        let mut start = TopicPartitionList::new();
        start.add_partition_offset(topic, partition, Offset::Beginning).expect("an offset");
        consumer.assign(&start).expect("the partition is read");
        let (mut messages, begun) = (Vec::new(), Instant::now());
        loop {
            match consumer.poll(Duration::from_millis(200)) {
                Some(Ok(message)) => {
                    let body = String::from_utf8_lossy(message.payload().unwrap_or_default()).into_owned();
                    messages.push((message.offset(), body));
                }
                Some(Err(KafkaError::PartitionEOF(_))) => return messages,
                // A broker that has just started leads no partition for some seconds.
                Some(Err(_)) | None => assert!(begun.elapsed() < PATIENCE, "partition {partition} cannot be read"),
            }
        }
    }

    /// A producer for messages of other kinds.
    ///
    /// # Panics
    /// If it cannot be made.
    #[expect(clippy::expect_used, reason = "tests stop here")]
    pub fn producer(&self, settings: &[(&str, &str)]) -> BaseProducer {
        let usual = [("linger.ms", "5"), ("message.max.bytes", "50000000")];
        self.client(&[&usual, settings].concat()).create().expect("a producer")
    }
}

/// A message without key and body.
/// Sends messages, also while the broker is away: each is there once in the end.
pub struct PatientProducer(BaseProducer);

impl std::fmt::Debug for PatientProducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PatientProducer").finish_non_exhaustive()
    }
}

impl PatientProducer {
    /// Sends a message, without waiting for it.
    pub fn send(&self, topic: &str, partition: i32, body: &str) {
        put(&self.0, record(topic, partition).payload(body.as_bytes()));
        self.0.poll(Duration::ZERO);
    }

    /// Waits until all messages are there.
    ///
    /// # Panics
    /// If they do not arrive.
    pub fn finish(&self) {
        flush(&self.0);
    }
}

fn record<'m>(topic: &'m str, partition: i32) -> BaseRecord<'m, [u8], [u8]> {
    BaseRecord::to(topic).partition(partition)
}

/// Hands a message to a producer, and waits while its queue is full.
fn put(producer: &BaseProducer, message: BaseRecord<'_, [u8], [u8]>) {
    let mut message = Some(message);
    while let Some(next) = message.take() {
        match producer.send(next) {
            Ok(()) => {}
            Err((_, refused)) => {
                producer.poll(Duration::from_millis(20));
                message = Some(refused);
            }
        }
    }
}

/// Waits until all messages are there.
#[expect(clippy::expect_used, reason = "tests stop here")]
fn flush(producer: &BaseProducer<DefaultProducerContext>) {
    producer.flush(PATIENCE).expect("the messages arrive");
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    futures::executor::block_on(future)
}

/// Waits for an answer that says for each of several things whether it was done. `was_done` finds it in an error: a
/// client whose connection ends before the answer comes asks again.
fn wait<T, E: std::fmt::Debug>(
    answer: impl Future<Output = Result<Vec<Result<T, E>>, KafkaError>>,
    what: &str,
    was_done: impl Fn(&E) -> bool,
) {
    for one in block_on(answer).unwrap_or_else(|error| panic!("{what}: {error}")) {
        match one {
            Err(error) if !was_done(&error) => panic!("{what}: {error:?}"),
            _ => {}
        }
    }
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The folder with the broker's files.
#[expect(clippy::expect_used, reason = "tests stop here")]
fn installed() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let folder = cache.expect("the environment names a home").join("millstream/test-servers").join(INSTALLED);
    assert!(folder.exists(), "{} is needed by the tests: run scripts/install-test-kafka.sh", folder.display());
    folder
}

/// The broker's settings; the ports are those of the plain listener, the door, the controller and the proxy.
fn settings(folder: &TempTree, options: &KafkaOptions, [port, door, controller, proxy]: [u16; 4]) -> String {
    let mut text = SETTINGS.to_owned();
    let mut set = |name: &str, value: &str| text.extend([name, "=", value, "\n"]);
    let door_speaks = match (options.login, &options.certificate) {
        (false, None) => "PLAINTEXT",
        (false, Some(_)) => "SSL",
        (true, None) => "SASL_PLAINTEXT",
        (true, Some(_)) => "SASL_SSL",
    };
    let plain = format!("PLAINTEXT://127.0.0.1:{port}");
    set("controller.quorum.bootstrap.servers", &format!("127.0.0.1:{controller}"));
    set("listeners", &format!("{plain},DOOR://127.0.0.1:{door},CONTROLLER://127.0.0.1:{controller}"));
    set("advertised.listeners", &format!("{plain},DOOR://localhost:{proxy}"));
    let speaks = format!("PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,DOOR:{door_speaks}");
    set("listener.security.protocol.map", &speaks);
    set("log.dirs", &folder.path("data").display().to_string());
    if let Some(Certificate { certificate, key }) = &options.certificate {
        secret_file(folder, "key.pem", &format!("{key}\n{certificate}"));
        set("listener.name.door.ssl.keystore.type", "PEM");
        set("listener.name.door.ssl.keystore.location", &folder.path("key.pem").display().to_string());
    }
    if options.login {
        let plain = "org.apache.kafka.common.security.plain.PlainLoginModule required";
        set("listener.name.door.plain.sasl.jaas.config", &format!("{plain} user_{USER}=\"{PASSWORD}\";"));
        for kind in ["scram-sha-256", "scram-sha-512"] {
            let module = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
            set(&format!("listener.name.door.{kind}.sasl.jaas.config"), module);
        }
    }
    options.settings.iter().for_each(|(name, value)| set(name, value));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_restarts_with_its_messages() {
        let mut broker = Kafka::start(KafkaOptions::default());
        let topic = broker.topic(2);
        broker.send(&topic, 1, ["a", "b", "c"]);
        broker.send_in_transaction(&topic, 0, &["d"], false);
        assert_eq!([0, 1].map(|partition| broker.range(&topic, partition)), [(0, 2), (0, 3)]);
        broker.pause();
        broker.resume();
        broker.kill();
        broker.restart();
        broker.delete_records(&topic, 1, 2);
        assert_eq!(broker.range(&topic, 1), (2, 3));
        broker.delete_topic(&topic);
        broker.create_topic(&topic, 1, &[]);
        assert_eq!(broker.range(&topic, 0), (0, 0));
        broker.stop();
        broker.restart();
        assert_eq!(broker.range(&topic, 0), (0, 0));
    }
}
