//! A topic as a queue: how a consumer joins the group, with which settings of the library.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::epochs::TopicFacts;
use millstream_core::queue::{Consumer, Joining, MessageId, Messages, Queue};
use millstream_core::spec;
use millstream_core::{Error, Result};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};

use super::consumer::{KafkaConsumer, Task};
use super::desk::Desk;
use super::fault::{self, Reaction};
use super::native::{Client, Failure, Fetcher, Notice, Topic};
use super::place::Place;
use super::reader::{Reader, ReaderState};
use super::sample;
use super::spec::KafkaRead;
use super::starter::Starter;
use super::watch::Watch;

/// How long brokers may need for their first answer.
const FIRST_ANSWER: Duration = Duration::from_secs(15);

/// How many messages a look takes at most, unless there are more partitions.
const LOOKED_AT: i64 = 1_000;

/// A topic, and the group in whose name it is read.
#[derive(Debug)]
pub struct Kafka {
    place: Place,
    read: KafkaRead,
}

impl Kafka {
    /// The topic that the URL `target` names.
    ///
    /// # Errors
    /// If it is no such URL, or does not fit the settings.
    pub fn new(target: &str, read: KafkaRead) -> Result<Self, spec::Fault> {
        let place = Place::parse(target, &read.access(), &read.brokers, read.sasl)?;
        Ok(Kafka { place, read })
    }

    /// Connects, and asks what there is. Blocks.
    fn connect(&self, window: usize) -> Result<(Arc<Client>, Fetcher, BTreeMap<i32, i64>)> {
        let config = self.settings(window)?;
        let refused = |cause| Error::internal("the client of Kafka cannot be set up").cause(cause);
        let (client, mut fetcher) = Client::new(&config, &self.place.topic).map_err(refused)?;
        let doing = format!("reading topic {}", self.place.topic);
        let failed = |failure: Failure| fault::error(&failure, &self.place, &doing);
        let topic = first_answer(&client, &mut fetcher, FIRST_ANSWER).map_err(failed)?;
        if topic.partitions.is_empty() {
            return Err(fault::no_topic(&self.place));
        }
        let end = |partition: &i32| Ok((*partition, client.range(*partition, FIRST_ANSWER)?.1));
        let ends = topic.partitions.iter().map(end).collect::<Result<_, _>>().map_err(failed)?;
        Ok((client, fetcher, ends))
    }

    /// What is set of the library: nothing is fetched that was not asked for, offsets are never chosen by it, and what
    /// it fetches ahead of all partitions together is bounded by a part of `window` bytes. An answer that is on its way
    /// may come on top.
    fn settings(&self, window: usize) -> Result<rdkafka::ClientConfig> {
        let mut config = self.place.client()?;
        let kilobytes = (window / 8 / 1024).clamp(1024, 4 << 10).to_string();
        for (name, value) in [
            ("group.id", self.read.group.as_str()),
            ("partition.assignment.strategy", "cooperative-sticky"),
            ("enable.auto.commit", "false"),
            ("enable.auto.offset.store", "false"),
            ("auto.offset.reset", "error"),
            ("enable.partition.eof", "true"),
            // How soon a member hears that another one has come or gone.
            ("heartbeat.interval.ms", "1000"),
            ("isolation.level", "read_committed"),
            ("queued.max.messages.kbytes", &kilobytes),
            ("queued.min.messages", "1000000"),
            ("fetch.max.bytes", "4194304"),
            ("max.partition.fetch.bytes", "1048576"),
            // A single message may be larger than what is fetched at once.
            ("receive.message.max.bytes", "1000000000"),
            ("fetch.queue.backoff.ms", "5"),
            ("fetch.wait.max.ms", "100"),
            ("fetch.error.backoff.ms", "250"),
        ] {
            config.set(name, value);
        }
        // Tests do not wait so long for members that were killed.
        if cfg!(test) || (cfg!(debug_assertions) && std::env::var_os("MILLSTREAM_SHORT_SESSIONS").is_some()) {
            config.set("session.timeout.ms", "6000");
        }
        Ok(config)
    }
}

/// The id of the cluster that has the topic. Blocks.
fn cluster(place: &Place) -> Result<Option<String>> {
    let refused = |cause| Error::internal("the client of Kafka cannot be set up").cause(cause);
    let (client, mut fetcher) = Client::new(&place.client()?, &place.topic).map_err(refused)?;
    let answer = first_answer(&client, &mut fetcher, FIRST_ANSWER);
    answer.map_err(|failure| fault::error(&failure, place, &format!("reading topic {}", place.topic)))?;
    Ok(client.cluster(FIRST_ANSWER))
}

/// Does `work`, which blocks, beside the tasks of `io`.
pub(super) async fn in_background<T: Send + 'static>(
    io: &Handle,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = io.spawn_blocking(work).await;
    done.map_err(|cause| Error::internal("Kafka was not connected to").cause(cause))?
}

/// What the topic is. Refusals end the wait at once: the library goes on trying after them.
pub(super) fn first_answer(client: &Client, fetcher: &mut Fetcher, wait: Duration) -> Result<Topic, Failure> {
    let mut last = None;
    let answer = client.describe(wait, || {
        fetcher.take(1, Duration::ZERO, |_, _| {});
        for notice in client.notices() {
            let Notice::Error(failure) = notice else { continue };
            match fault::reaction(&failure) {
                Reaction::End => return Err(failure),
                // That all are down says less than why the last one is.
                Reaction::Wait if last.is_some() && fault::is_of_all(&failure) => {}
                _ => last = Some(failure),
            }
        }
        Ok(())
    });
    // Why no broker was reached says more than that the time is over.
    answer.map_err(|failure| match fault::reaction(&failure) {
        Reaction::Wait | Reaction::Nothing => last.unwrap_or(failure),
        _ => failure,
    })
}

#[async_trait]
impl Queue for Kafka {
    fn shown(&self) -> String {
        self.place.server.shown.clone()
    }

    fn name(&self) -> String {
        format!("kafka {}", self.place.topic)
    }

    fn group(&self) -> &str {
        &self.read.group
    }

    fn is_partitioned(&self) -> bool {
        true
    }

    fn topic(&self) -> Option<TopicFacts> {
        Some(self.place.facts())
    }

    async fn cluster(&self, io: &Handle) -> Result<Option<String>> {
        let place = self.place.clone();
        in_background(io, move || cluster(&place)).await
    }

    async fn sample(&self, bytes: usize, io: &Handle) -> Result<Messages> {
        let queue = Kafka { place: self.place.clone(), read: self.read.clone() };
        in_background(io, move || queue.look(bytes)).await
    }

    fn shown_id(&self, id: MessageId) -> String {
        format!("{}:{}", id.major, id.minor)
    }

    async fn join(&self, joining: Joining) -> Result<Box<dyn Consumer>> {
        Ok(Box::new(self.member(joining).await?))
    }
}

impl Kafka {
    /// The first and the last messages of the partitions, each of about half of `bytes`. Blocks.
    fn look(&self, bytes: usize) -> Result<Messages> {
        let (client, mut fetcher, ends) = self.connect(8 * bytes)?;
        let failed =
            |failure: Failure| fault::error(&failure, &self.place, &format!("reading topic {}", self.place.topic));
        let (mut first, mut last) = (BTreeMap::new(), BTreeMap::new());
        let each = (LOOKED_AT / 2 / ends.len() as i64).max(1);
        for (partition, end) in ends {
            let start = client.range(partition, FIRST_ANSWER).map_err(failed)?.0;
            let middle = end.min(start + each);
            first.insert(partition, start..middle);
            last.insert(partition, middle.max(end - each)..end);
        }
        let mut messages = Messages::default();
        for (spans, most) in [(first, bytes.div_ceil(2)), (last, bytes)] {
            sample::fetch(&mut fetcher, spans, most, &mut messages).map_err(failed)?;
        }
        Ok(messages)
    }

    /// Joins the group.
    pub(super) async fn member(&self, joining: Joining) -> Result<KafkaConsumer> {
        let queue = Kafka { place: self.place.clone(), read: self.read.clone() };
        let window = joining.budget.limit() / 8;
        let (client, fetcher, ends) = in_background(&joining.io, move || queue.connect(window)).await?;
        let (reports, heard) = mpsc::unbounded_channel();
        let (commands, obeyed) = std::sync::mpsc::channel();
        let reader = Reader {
            client: Arc::clone(&client),
            fetcher,
            commands: obeyed,
            reports: reports.clone(),
            budget: joining.budget,
            state: ReaderState::default(),
        };
        let thread = std::thread::Builder::new().name("kafka".to_owned()).spawn(move || reader.run());
        thread.map_err(|cause| Error::io("no thread can be started to read from Kafka", &cause))?;
        let trouble = Arc::new(Notify::new());
        let (place, watched) = (self.place.clone(), Arc::clone(&trouble));
        let watch = Watch { client: Arc::clone(&client), place, reports: reports.clone(), trouble: watched };
        let starter = Starter {
            client: Arc::clone(&client),
            place: self.place.clone(),
            start: self.read.start,
            on_gap: self.read.on_gap,
            positions: joining.positions,
            reports,
        };
        Ok(KafkaConsumer {
            desk: Desk::new(&self.place.topic, ends),
            client,
            starter: Arc::new(starter),
            commands,
            reports: heard,
            trouble,
            _watch: Task(joining.io.spawn(watch.run())),
            io: joining.io,
            events: VecDeque::new(),
            waits: 0,
        })
    }
}
