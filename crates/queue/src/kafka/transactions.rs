//! Messages and positions in one transaction: where the readers of a topic stand is kept as offsets of a group of its
//! own, in the cluster that has both topics.
//!
//! Each partition that is read has a transactional id, whichever process reads it. A process that begins to write what
//! it has of a partition makes a producer of that id, which fences all earlier ones: their transactions are ended, and
//! they can commit no other. Only then it reads the offset, which nobody else can move any more. So a position need not
//! be compared when it is moved, as databases do it; it is compared once, when the producer is there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millstream_core::epochs::TopicFacts;
use millstream_core::positions::{PartitionPosition, Position};
use millstream_core::{Error, ErrorKind, Result, stable_hash};
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::Producer as _;
use rdkafka::{Offset, TopicPartitionList};
use tokio::runtime::Handle;

use super::fault;
use super::noted;
use super::place::Place;
use super::place_producer::PlaceProducer;
use super::producer::{self, Producer};
use super::queue::in_background;
use super::spec::KafkaWrite;
use super::topic::{self, Limits};

/// The longest time that a transaction stays open whose process has died, in milliseconds.
const TIMEOUT: &str = "60000";

/// How long brokers may need for an answer.
pub(super) const ANSWER: Duration = Duration::from_secs(10);

/// How long transactions are waited for that are moving positions, where that can be done without.
const SETTLING: Duration = Duration::from_secs(2);

/// The positions of one load of a topic into another.
pub struct Transactions {
    /// The topic that is written to.
    pub(super) place: Place,
    /// The topic that is read.
    pub(super) source: String,
    group: String,
    pub(super) owner: String,
    limits: Limits,
    window: usize,
    pub(super) io: Handle,
    is_ending: AtomicBool,
    /// Gives what the group has noted, once the transactions that move it have ended.
    settled: Option<BaseConsumer>,
}

impl std::fmt::Debug for Transactions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transactions").field("group", &self.group).finish_non_exhaustive()
    }
}

/// A load of a topic.
#[derive(Debug, Clone, Copy)]
pub struct TopicLoad<'n> {
    /// What the settings of the source say.
    pub source: &'n TopicFacts,
    /// The id of the source's cluster, if its brokers say it.
    pub cluster: Option<&'n str>,
    /// Whether settings name a broker of the one topic for the other, too: they must be in one cluster then.
    pub is_one_cluster: bool,
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
    /// If the brokers cannot be reached or refuse, or there is no such topic; if it is the one that is read; if the
    /// topics have to be in one cluster, and it does not turn out that they are.
    pub async fn open(
        target: &str,
        write: &KafkaWrite,
        of: TopicLoad<'_>,
        window: usize,
        io: &Handle,
    ) -> Result<Option<Self>> {
        let place = Producer::place(target, write).map_err(|fault| Error::job(fault.what))?;
        let (cluster, source, handle) = (of.cluster.map(str::to_owned), of.source.name.clone(), io.clone());
        let (group, is_one_cluster) = (group_of(of.load, &place.topic), of.is_one_cluster);
        let owner = of.owner.to_owned();
        in_background(io, move || {
            let facts = topic::look(&place, &place.client()?, &handle)?;
            if !is_same_cluster(&place, cluster.as_deref(), facts.cluster.as_deref(), is_one_cluster)? {
                return Ok(None);
            }
            if place.topic == source {
                return Err(Error::job(reads_itself(&source)).hint("write to another topic"));
            }
            let settled = consumer(&place, &group, "read_committed")?;
            let (limits, settled, is_ending) = (facts.limits, Some(settled), AtomicBool::new(false));
            Ok(Some(Transactions { place, source, group, owner, limits, window, io: handle, is_ending, settled }))
        })
        .await
    }

    /// The run is to end: what has become of a transaction is not asked for long any more.
    pub fn end_soon(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// Whether the run is to end.
    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
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
        in_background(&self.io, move || shared.fence(partition, &[])).await
    }

    /// The same, which sends each message by itself: brokers refuse one without others.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Transient`] if the brokers cannot be reached.
    pub async fn single_producer(self: &Arc<Self>, place: &str) -> Result<PlaceProducer> {
        let (shared, partition) = (Arc::clone(self), self.partition(place)?);
        in_background(&self.io, move || shared.fence(partition, &[("batch.num.messages", "1")])).await
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

    pub(super) fn settled(&self) -> Result<&BaseConsumer> {
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
        let Some(topic) = metadata.topics().iter().find(|topic| topic.name() == self.source) else {
            return Err(Error::transient(format!("the brokers do not say which partitions {} has", self.source)));
        };
        // A broker that has just started may not know the topic yet.
        match topic.error() {
            None => Ok(topic.partitions().iter().map(|partition| partition.id()).collect()),
            Some(_) => Err(Error::transient(format!("the brokers do not know the topic {} now", self.source))),
        }
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
    fn fence(self: Arc<Self>, partition: i32, more: &[(&str, &str)]) -> Result<PlaceProducer> {
        let id = format!("{}-{}-{partition}", self.group, self.source);
        let settings = [("transactional.id", id.as_str()), ("transaction.timeout.ms", TIMEOUT)];
        let settings = [&settings, more].concat();
        let producer = producer::start(self.place.clone(), self.limits.clone(), self.window, &settings)?;
        producer.library().init_transactions(ANSWER).map_err(|error| self.error(&error))?;
        let position = self.noted(self.settled()?, &[partition], ANSWER)?.pop();
        Ok(PlaceProducer::new(producer, self, partition, position))
    }

    /// The error for the user.
    pub(super) fn error(&self, error: &KafkaError) -> Error {
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

/// Why a job is refused that writes to the topic which it reads.
pub fn reads_itself(topic: &str) -> String {
    format!("it writes to topic `{topic}`, which the job also reads: the job would read its own messages")
}

/// Whether two topics, of which `place` is one, are in the same cluster, by the ids that brokers give; `has_to_be` if
/// it was promised.
fn is_same_cluster(place: &Place, source: Option<&str>, target: Option<&str>, has_to_be: bool) -> Result<bool> {
    match (source, target) {
        (Some(source), Some(target)) if source == target => Ok(true),
        (Some(source), Some(target)) if has_to_be => {
            let what = "a source and a sink name a broker in common, but are in different clusters";
            let cause = format!("the cluster of the source is {source}, that of topic {} is {target}", place.topic);
            Err(Error::refused(what).cause(cause).hint("check the brokers in the URLs and in `brokers`"))
        }
        (Some(_), Some(_)) => Ok(false),
        _ if has_to_be => {
            let what = format!("{}: brokers do not say which cluster they are of", place.server.shown);
            Err(Error::transient(what)
                .hint("try again; if it stays so, check that the brokers are version 0.11 or later"))
        }
        _ => Ok(false),
    }
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

#[cfg(test)]
mod tests {
    use millstream_net::server::Access;

    use super::super::spec::Sasl;
    use super::*;

    #[test]
    fn what_was_promised_of_clusters_holds_or_is_an_error() {
        let access = Access { key: "write", ..Access::default() };
        let place = Place::parse("kafka://b1/t", &access, &[], Sasl::ScramSha256).expect("a place");
        let same = |source, target, has_to_be| is_same_cluster(&place, source, target, has_to_be);
        for has_to_be in [false, true] {
            assert!(same(Some("a"), Some("a"), has_to_be).expect("an answer"));
        }
        for (source, target) in [(Some("a"), Some("b")), (None, Some("b")), (Some("a"), None), (None, None)] {
            assert!(!same(source, target, false).expect("at least once"));
            let error = same(source, target, true).expect_err("it was promised");
            let kind = if source.and(target).is_some() { ErrorKind::Refused } else { ErrorKind::Transient };
            assert_eq!(error.kind(), kind, "{error:?}");
        }
    }
}
