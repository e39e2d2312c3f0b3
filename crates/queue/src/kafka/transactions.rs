//! Messages and positions in one transaction: where the readers of a topic stand is kept as offsets of a group of its
//! own, in the cluster that has both topics.
//!
//! Each partition that is read has a transactional id, whichever process reads it. A process that begins to write what
//! it has of a partition makes a producer of that id, which fences all earlier ones: their transactions are ended, and
//! they can commit no other. Only then it reads the offset, which nobody else can move any more. So a position need not
//! be compared when it is moved, as databases do it; it is compared once, when the producer is there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_core::epochs::TopicFacts;
use millstream_core::positions::{Move, PartitionPosition, Position};
use millstream_core::{Error, ErrorKind, Result, fail_point, stable_hash};
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{Producer as _, ThreadedProducer};
use rdkafka::{Offset, TopicPartitionList};
use tokio::runtime::Handle;

use super::fault;
use super::noted;
use super::place::Place;
use super::producer::{self, Confirmations, Outgoing, Producer, RefusedMessage};
use super::queue::in_background;
use super::spec::KafkaWrite;
use super::state::State;
use super::topic;

/// The longest time that a transaction stays open whose process has died, in milliseconds.
const TIMEOUT: &str = "60000";

/// How long brokers may need for an answer.
const ANSWER: Duration = Duration::from_secs(10);

/// How long transactions are waited for that are moving positions, where that can be done without.
const SETTLING: Duration = Duration::from_secs(2);

/// How long brokers may need to commit a transaction before its outcome is asked for.
const COMMIT: Duration = Duration::from_secs(20);

/// How long the outcome is asked for.
const DOUBT: Duration = Duration::from_secs(60);

/// How long one call of the library waits, and the pause between two questions about an outcome.
const STEP: Duration = Duration::from_secs(1);

/// The pause before a call of the library is repeated that may have failed at once.
const PAUSE: Duration = Duration::from_millis(20);

/// The positions of one load of a topic into another.
pub struct Transactions {
    /// The topic that is written to.
    place: Place,
    /// The topic that is read.
    source: String,
    group: String,
    owner: String,
    largest: Option<usize>,
    window: usize,
    io: Handle,
    /// Gives what the group has noted, once the transactions that move it have ended.
    settled: Option<BaseConsumer>,
}

impl std::fmt::Debug for Transactions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transactions").field("group", &self.group).finish_non_exhaustive()
    }
}

/// What has become of a transaction.
#[derive(Debug)]
pub enum Ended {
    /// Everything is there, and the position was moved.
    Committed,
    /// Nothing is there. It may be tried again.
    Aborted(Error),
    /// Another process has taken the partition over. What it finds there is there once; it is not known whether it is
    /// of this transaction.
    Fenced,
}

/// A load of a topic.
#[derive(Debug, Clone, Copy)]
pub struct TopicLoad<'n> {
    /// What the settings of the source say.
    pub source: &'n TopicFacts,
    /// The id of the source's cluster.
    pub cluster: &'n str,
    /// The name of the load, which all of its processes share.
    pub load: &'n str,
    /// The name of this process.
    pub owner: &'n str,
}

impl Transactions {
    /// Opens the positions of a load into the topic that the URL `target` names; `None` if that is in another cluster
    /// than the one that is read. Producers keep about `window` bytes on their way.
    ///
    /// # Errors
    /// If the brokers cannot be reached or refuse, or there is no such topic; if it is the one that is read.
    pub async fn open(
        target: &str,
        write: &KafkaWrite,
        of: TopicLoad<'_>,
        window: usize,
        io: &Handle,
    ) -> Result<Option<Self>> {
        let place = Producer::place(target, write).map_err(|fault| Error::job(fault.what))?;
        let (cluster, source, handle) = (of.cluster.to_owned(), of.source.name.clone(), io.clone());
        let group = group_of(of.load, &place.topic);
        let owner = of.owner.to_owned();
        in_background(io, move || {
            let facts = topic::look(&place, &place.client()?, &handle)?;
            if facts.cluster != Some(cluster) {
                return Ok(None);
            }
            if place.topic == source {
                return Err(same_topic(&place));
            }
            let settled = consumer(&place, &group, "read_committed")?;
            let (largest, settled) = (facts.largest, Some(settled));
            Ok(Some(Transactions { place, source, group, owner, largest, window, io: handle, settled }))
        })
        .await
    }

    /// The group whose offsets are the positions.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// All positions. Transactions that are moving some are waited for, but not for long: a position that is read too
    /// early is found out when its producer is there.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Transient`] if the brokers cannot be reached.
    pub async fn read(self: &Arc<Self>) -> Result<Vec<Position>> {
        let shared = Arc::clone(self);
        in_background(&self.io, move || {
            let partitions = shared.partitions()?;
            let settled = shared.noted(shared.settled()?, &partitions, SETTLING);
            match settled {
                Err(error) if error.kind() == ErrorKind::Transient => {
                    let hasty = consumer(&shared.place, &shared.group, "read_uncommitted")?;
                    shared.noted(&hasty, &partitions, ANSWER)
                }
                done => done,
            }
        })
        .await
    }

    /// Where the partition of a place stands, as it was committed last.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Transient`] if the brokers cannot be reached, or a transaction is not settled.
    pub async fn position(self: &Arc<Self>, place: &str) -> Result<Option<Position>> {
        let (shared, partition) = (Arc::clone(self), self.partition(place)?);
        in_background(&self.io, move || Ok(shared.noted(shared.settled()?, &[partition], SETTLING)?.pop())).await
    }

    /// A producer for what this process has of a place, which fences those of others. Its position is where the
    /// partition stands then.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Transient`] if the brokers cannot be reached.
    pub async fn producer(self: &Arc<Self>, place: &str) -> Result<PlaceProducer> {
        let (shared, partition) = (Arc::clone(self), self.partition(place)?);
        in_background(&self.io, move || shared.fence(partition)).await
    }

    /// Removes all positions.
    ///
    /// # Errors
    /// If the brokers cannot be reached or refuse.
    pub async fn forget(self: &Arc<Self>) -> Result<()> {
        let (shared, io) = (Arc::clone(self), self.io.clone());
        in_background(&self.io, move || {
            let admin: AdminClient<DefaultClientContext> =
                shared.place.client()?.create().map_err(|error| shared.error(&error))?;
            let options = AdminOptions::new().request_timeout(Some(ANSWER));
            let done = io.block_on(admin.delete_groups(&[&shared.group], &options));
            for one in done.map_err(|error| shared.error(&error))? {
                match one {
                    Ok(_) | Err((_, RDKafkaErrorCode::GroupIdNotFound)) => {}
                    Err((_, code)) => return Err(shared.error(&KafkaError::Global(code))),
                }
            }
            Ok(())
        })
        .await
    }

    fn settled(&self) -> Result<&BaseConsumer> {
        self.settled.as_ref().ok_or_else(|| Error::internal("the offsets of a group are closed"))
    }

    fn partition(&self, place: &str) -> Result<i32> {
        let own = PartitionPosition::topic_and_partition(place).filter(|(topic, _)| *topic == self.source);
        let partition = own.and_then(|(_, partition)| i32::try_from(partition).ok());
        partition.ok_or_else(|| Error::internal(format!("`{place}` is no partition of topic {}", self.source)))
    }

    /// Blocks.
    fn partitions(&self) -> Result<Vec<i32>> {
        let metadata =
            self.settled()?.fetch_metadata(Some(&self.source), ANSWER).map_err(|error| self.error(&error))?;
        let topics = metadata.topics().iter().filter(|topic| topic.error().is_none());
        Ok(topics.flat_map(|topic| topic.partitions()).map(|partition| partition.id()).collect())
    }

    /// What the group has noted of partitions. Blocks.
    fn noted(&self, consumer: &BaseConsumer, partitions: &[i32], wait: Duration) -> Result<Vec<Position>> {
        let mut asked = TopicPartitionList::with_capacity(partitions.len());
        for partition in partitions {
            asked.add_partition(&self.source, *partition);
        }
        let answer = consumer.committed_offsets(asked, wait).map_err(|error| self.error(&error))?;
        let mut positions = Vec::new();
        for one in answer.elements() {
            one.error().map_err(|error| self.error(&error))?;
            if let Offset::Offset(offset) = one.offset() {
                positions.push(noted::position(&self.source, one.partition(), offset, one.metadata())?);
            }
        }
        Ok(positions)
    }

    /// Blocks.
    fn fence(self: Arc<Self>, partition: i32) -> Result<PlaceProducer> {
        let id = format!("{}-{}-{partition}", self.group, self.source);
        let settings = [("transactional.id", id.as_str()), ("transaction.timeout.ms", TIMEOUT)];
        let producer = producer::start(self.place.clone(), self.largest, self.window, &settings)?;
        producer.library().init_transactions(ANSWER).map_err(|error| self.error(&error))?;
        let position = self.noted(self.settled()?, &[partition], ANSWER)?.pop();
        Ok(PlaceProducer { producer: Some(producer), transactions: self, partition, position, is_open: false })
    }

    /// The error for the user.
    fn error(&self, error: &KafkaError) -> Error {
        fault::error(&fault::of_library(error), &self.place, &format!("writing to topic {}", self.place.topic))
    }
}

impl Drop for Transactions {
    fn drop(&mut self) {
        // The library ends its threads, and waits for that.
        let settled = self.settled.take();
        drop(self.io.spawn_blocking(move || drop(settled)));
    }
}

/// The error of a job that reads what it writes.
fn same_topic(place: &Place) -> Error {
    Error::job(format!("the job reads the topic `{}` that it writes to: it would read its own messages", place.topic))
        .hint("write to another topic")
}

/// The group that keeps the positions of a load into a topic. Its name is stored: it must never change.
fn group_of(load: &str, topic: &str) -> String {
    let name = format!("{load}\n{topic}");
    format!("millstream-{:016x}{:016x}", stable_hash::hash(&name), stable_hash::hash(format!("second\n{name}")))
}

/// Asks for what a group has noted; it joins none. Blocks.
fn consumer(place: &Place, group: &str, isolation: &str) -> Result<BaseConsumer> {
    let mut config = place.client()?;
    config.set("group.id", group).set("isolation.level", isolation).set("enable.auto.commit", "false");
    let consumer = config.create();
    consumer
        .map_err(|error| Error::internal("the client of Kafka cannot be set up").cause(super::native::words(&error)))
}

/// Sends messages of one partition that is read, in transactions that move its position.
pub struct PlaceProducer {
    producer: Option<Producer>,
    transactions: Arc<Transactions>,
    partition: i32,
    position: Option<Position>,
    /// Whether a transaction is open.
    is_open: bool,
}

impl std::fmt::Debug for PlaceProducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlaceProducer").field("partition", &self.partition).finish_non_exhaustive()
    }
}

impl PlaceProducer {
    /// The place.
    pub fn place(&self) -> String {
        super::state::place(&self.transactions.source, self.partition)
    }

    /// Where the partition stands, unless another process has taken it over meanwhile.
    pub fn position(&self) -> Option<&Position> {
        self.position.as_ref()
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// If the producer cannot continue.
    pub async fn begin(&mut self) -> Result<()> {
        self.own()?.begin();
        self.blocking(|library| library.begin_transaction())
            .await?
            .map_err(|error| self.transactions.aborted(&error))?;
        self.is_open = true;
        Ok(())
    }

    /// Sends a message, as [`Producer::send`] does.
    ///
    /// # Errors
    /// If the transaction cannot be committed any more, or the producer cannot continue.
    pub async fn send(&mut self, message: &Outgoing<'_>) -> Result<()> {
        self.own()?.send(message).await
    }

    /// Waits until all messages that were sent are there, as [`Producer::confirm`] does.
    ///
    /// # Errors
    /// If the producer cannot continue.
    pub async fn confirm(&mut self) -> Result<Vec<RefusedMessage>> {
        self.own()?.confirm().await
    }

    /// Why brokers cannot be reached now, if they cannot.
    pub fn trouble(&self) -> Option<Error> {
        self.producer.as_ref().and_then(Producer::trouble)
    }

    /// Why the transaction cannot be committed, if that is so: a message that a broker refused takes all others with
    /// it.
    pub fn broken_by(&self) -> Option<Error> {
        let failure = self.producer.as_ref()?.broken_by()?;
        let place = &self.transactions.place;
        let doing = format!("writing to topic {}", place.topic);
        Some(match fault::reaction(&failure) {
            fault::Reaction::End | fault::Reaction::NoTopic => fault::error(&failure, place, &doing),
            _ => Error::transient(format!("{doing}: a transaction was aborted")).cause(failure.text),
        })
    }

    /// Whether another process has taken the partition over, as far as this one knows.
    pub fn is_fenced(&self) -> bool {
        self.producer.as_ref().is_some_and(|producer| is_fenced(producer.library()))
    }

    /// Drops what was sent since the transaction began.
    ///
    /// # Errors
    /// If the producer cannot continue: another one drops it.
    pub async fn abort(&mut self) -> Result<()> {
        if std::mem::take(&mut self.is_open) {
            let aborted = self.blocking(|library| library.abort_transaction(ANSWER)).await?;
            aborted.map_err(|error| self.transactions.error(&error))?;
        }
        Ok(())
    }

    /// Moves the position in the transaction, and commits it. If the outcome is not known, it is asked for. A producer
    /// is given back if it may be used again.
    ///
    /// # Errors
    /// If waiting does not help.
    pub async fn commit(mut self, to: &Move) -> Result<(Ended, Option<Self>)> {
        let (position, offsets) = self.moved(to)?;
        let settled = Arc::clone(&self.transactions);
        let committing = self.blocking(move |library| commit(library, &settled, &offsets)).await??;
        match committing {
            Committing::Done => {
                (self.position, self.is_open) = (Some(position), false);
                Ok((Ended::Committed, Some(self)))
            }
            Committing::Failed(_) if self.is_fenced() => Ok((Ended::Fenced, None)),
            Committing::Failed(error) => {
                // Whether it is fenced may show when it aborts.
                let _ = self.abort().await;
                let error = match is_lasting(&error) {
                    true => self.transactions.error(&error),
                    false => self.transactions.aborted(&error),
                };
                Ok((if self.is_fenced() { Ended::Fenced } else { Ended::Aborted(error) }, None))
            }
            Committing::Unknown(error) => self.find_out(position, error).await,
        }
    }

    /// Finds out whether a transaction was committed that moved the partition to `position`.
    async fn find_out(self, position: Position, error: KafkaError) -> Result<(Ended, Option<Self>)> {
        let (transactions, place, is_fenced) = (Arc::clone(&self.transactions), self.place(), self.is_fenced());
        let before = self.position.clone();
        drop(self);
        let begun = Instant::now();
        while begun.elapsed() < DOUBT {
            // Another process may be about to write: it is not fenced for the sake of this one's count.
            let found = match is_fenced {
                true => transactions.position(&place).await.map(|position| (position, None)),
                false => transactions.producer(&place).await.map(|own| (own.position.clone(), Some(own))),
            };
            match found {
                Ok((found, own)) if found.as_ref() == Some(&position) => return Ok((Ended::Committed, own)),
                Ok((found, own)) if found == before && !is_fenced => {
                    return Ok((Ended::Aborted(transactions.aborted(&error)), own));
                }
                Ok(_) => return Ok((Ended::Fenced, None)),
                Err(error) if error.kind() != ErrorKind::Transient => return Err(error),
                Err(_) => tokio::time::sleep(STEP).await,
            }
        }
        Ok((Ended::Fenced, None))
    }

    /// Notes the position again, so that the brokers keep it. Whether that was possible.
    pub async fn renew(mut self) -> Option<Self> {
        let position = self.position.clone()?;
        let offsets = self.offsets(&position).ok()?;
        self.begin().await.ok()?;
        let settled = Arc::clone(&self.transactions);
        let done = self.blocking(move |library| commit(library, &settled, &offsets)).await.ok()?.ok()?;
        self.is_open = false;
        matches!(done, Committing::Done).then_some(self)
    }

    /// The position after a move, and as what the group notes it.
    fn moved(&self, to: &Move) -> Result<(Position, TopicPartitionList)> {
        let state = to.to.clone().ok_or_else(|| Error::internal("a position of a partition was to be removed"))?;
        let position = Position {
            place: to.place.clone(),
            version: to.from.map_or(1, |version| version + 1),
            owner: self.transactions.owner.clone(),
            state,
            idle: Duration::ZERO,
        };
        let offsets = self.offsets(&position)?;
        Ok((position, offsets))
    }

    fn offsets(&self, position: &Position) -> Result<TopicPartitionList> {
        let next = State::of_text(&position.state, &position.place)?.next;
        let mut offsets = TopicPartitionList::with_capacity(1);
        let mut one = offsets.add_partition(&self.transactions.source, self.partition);
        one.set_offset(Offset::Offset(next)).map_err(|error| self.transactions.error(&error))?;
        one.set_metadata(noted::text(position.version, &position.owner, &position.state));
        Ok(offsets)
    }

    fn own(&mut self) -> Result<&mut Producer> {
        self.producer.as_mut().ok_or_else(|| Error::internal("a producer is closed"))
    }

    /// Calls the library where it may block.
    async fn blocking<T: Send + 'static>(
        &mut self,
        call: impl FnOnce(&ThreadedProducer<Confirmations>) -> T + Send + 'static,
    ) -> Result<T> {
        let library = self.own()?.library().clone();
        in_background(&self.transactions.io, move || Ok(call(&library))).await
    }
}

impl Drop for PlaceProducer {
    fn drop(&mut self) {
        let Some(producer) = self.producer.take() else { return };
        let is_open = self.is_open;
        // The library waits for its threads. An open transaction would hide later ones from readers for a while.
        drop(self.transactions.io.spawn_blocking(move || {
            if is_open {
                let _ = producer.library().abort_transaction(STEP);
            }
            drop(producer);
        }));
    }
}

impl Transactions {
    fn aborted(&self, error: &KafkaError) -> Error {
        let words = self.place.server.without_secrets(super::native::words(error));
        Error::transient(format!("writing to topic {}: a transaction was aborted", self.place.topic)).cause(words)
    }
}

/// How far a commit has come.
enum Committing {
    Done,
    /// It was not committed.
    Failed(KafkaError),
    /// It may be.
    Unknown(KafkaError),
}

/// Moves the position and commits. Blocks.
fn commit(
    library: &ThreadedProducer<Confirmations>,
    transactions: &Transactions,
    offsets: &TopicPartitionList,
) -> Result<Committing> {
    let metadata = transactions.settled()?.group_metadata();
    let metadata = metadata.ok_or_else(|| Error::internal("a group has no metadata"))?;
    if let Err(error) = patiently(|| library.send_offsets_to_transaction(offsets, &metadata, STEP)) {
        return Ok(Committing::Failed(error));
    }
    fail_point::pass("transaction.sent");
    Ok(match patiently(|| library.commit_transaction(STEP)) {
        Ok(()) => Committing::Done,
        Err(KafkaError::Transaction(error)) if error.txn_requires_abort() => {
            Committing::Failed(KafkaError::Transaction(error))
        }
        Err(error) => Committing::Unknown(error),
    })
}

/// Calls the library as long as it says that a later call may succeed.
fn patiently(mut call: impl FnMut() -> Result<(), KafkaError>) -> Result<(), KafkaError> {
    let begun = Instant::now();
    loop {
        match call() {
            Err(error) if may_pass(&error) && begun.elapsed() < COMMIT => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
}

fn may_pass(error: &KafkaError) -> bool {
    match error {
        KafkaError::Transaction(error) => error.is_retriable() && !error.is_fatal() && !error.txn_requires_abort(),
        KafkaError::Flush(code) => *code == RDKafkaErrorCode::OperationTimedOut,
        _ => false,
    }
}

/// Whether waiting does not help.
fn is_lasting(error: &KafkaError) -> bool {
    matches!(fault::reaction(&fault::of_library(error)), fault::Reaction::End)
}

fn is_fenced(library: &ThreadedProducer<Confirmations>) -> bool {
    library.client().fatal_error().is_some_and(|(code, _)| fault::is_fence(code))
}
