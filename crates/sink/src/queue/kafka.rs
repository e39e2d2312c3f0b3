//! A topic of Kafka that is written to: brokers that are away are waited for, but only for a while.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use millstream_core::epochs::{Guarantee, QueueFacts, QueueLoad, TopicFacts};
use millstream_core::positions::Positions;
use millstream_core::{Error, Result};
use millstream_queue::kafka::{
    KafkaWrite, Outgoing, Place, PlaceProducer, Producer, RefusedMessage, TopicLoad, Transactions, reads_itself,
};
use tokio::runtime::Handle;

use super::message::Message;
use super::outlet::{Outlet, Target, Terms};
use super::taking::Taking;
use super::transactions::TopicPositions;

/// How often it is asked whether brokers can be reached.
const LOOK: Duration = Duration::from_secs(1);

/// A topic.
#[derive(Debug)]
pub(super) struct Topic {
    pub(super) target: String,
    pub(super) settings: KafkaWrite,
    pub(super) place: Place,
}

#[async_trait]
impl Target for Topic {
    fn name(&self) -> &'static str {
        "kafka"
    }

    fn url(&self) -> String {
        self.place.server.shown.clone()
    }

    fn shown(&self) -> String {
        let url = &self.place.server.shown;
        let cluster = url.rsplit_once('/').map_or(url.as_str(), |(cluster, _)| cluster);
        format!("topic {} of {cluster}", self.place.topic)
    }

    async fn connect(&self, terms: &Terms) -> Result<Box<dyn Outlet>> {
        let producer = Producer::connect(&self.target, &self.settings, terms.window, &terms.io).await?;
        Ok(Box::new(KafkaOutlet { producer, patience: terms.patience }))
    }

    async fn reach(&self, io: &Handle) -> Result<()> {
        Producer::look(&self.target, &self.settings, io).await
    }

    fn guarantee(&self, queue: &QueueFacts) -> Result<Guarantee, String> {
        let Some(source) = &queue.topic else {
            let why = "messages are confirmed, and sent again if the run dies before they are acknowledged";
            return Ok(Guarantee::once_or_more(why));
        };
        match self.shares_brokers(source) {
            true if self.place.topic == source.name => Err(reads_itself(&source.name)),
            true => Ok(Guarantee::once(
                "positions move in the transaction of the messages, for readers with `isolation.level=read_committed`; \
                 brokers forget them if the job stands still for a week (`offsets.retention.minutes`)",
            )),
            false => Ok(Guarantee::once_or_more(
                "its brokers are not those of the source; if they turn out to be of the same cluster when the job \
                 runs, exactly once",
            )),
        }
    }

    async fn positions(&self, load: &QueueLoad, taking: &Taking) -> Result<Option<Arc<dyn Positions>>> {
        let (Some(source), io) = (&load.queue.topic, &taking.terms.io) else { return Ok(None) };
        let (cluster, is_one_cluster) = (load.source.cluster(io).await?, self.shares_brokers(source));
        let cluster = cluster.as_deref();
        let of = TopicLoad { source, cluster, is_one_cluster, load: &load.load, owner: &load.owner };
        let opened = Transactions::open(&self.target, &self.settings, of, taking.terms.window, io).await?;
        let positions = |opened| Arc::new(TopicPositions::new(opened, taking.clone(), self.shown()));
        Ok(opened.map(|opened| positions(opened) as Arc<dyn Positions>))
    }
}

impl Topic {
    /// Whether a broker of the source is one of its own, as the settings name them.
    fn shares_brokers(&self, source: &TopicFacts) -> bool {
        let is_own = |broker: &String| self.place.facts().brokers.iter().any(|own| own.eq_ignore_ascii_case(broker));
        source.brokers.iter().any(is_own)
    }
}

/// What sends messages of Kafka.
#[async_trait]
pub(super) trait Sending: Send {
    async fn send(&mut self, message: &Outgoing<'_>) -> Result<()>;

    async fn confirm(&mut self) -> Result<Vec<RefusedMessage>>;

    /// Why brokers cannot be reached now, if they cannot.
    fn trouble(&self) -> Option<Error>;
}

#[async_trait]
impl Sending for Producer {
    async fn send(&mut self, message: &Outgoing<'_>) -> Result<()> {
        Producer::send(self, message).await
    }

    async fn confirm(&mut self) -> Result<Vec<RefusedMessage>> {
        Producer::confirm(self).await
    }

    fn trouble(&self) -> Option<Error> {
        Producer::trouble(self)
    }
}

#[async_trait]
impl Sending for PlaceProducer {
    async fn send(&mut self, message: &Outgoing<'_>) -> Result<()> {
        PlaceProducer::send(self, message).await
    }

    async fn confirm(&mut self) -> Result<Vec<RefusedMessage>> {
        PlaceProducer::confirm(self).await
    }

    fn trouble(&self) -> Option<Error> {
        PlaceProducer::trouble(self)
    }
}

/// Waits for brokers that are away, but only for a while.
pub(super) struct KafkaOutlet<P> {
    pub(super) producer: P,
    pub(super) patience: Duration,
}

#[async_trait]
impl<P: Sending> Outlet for KafkaOutlet<P> {
    async fn send(&mut self, message: &Message) -> Result<()> {
        let headers = message.headers.iter().map(|(name, value)| (name.as_str(), Some(value.as_bytes())));
        let headers: Vec<_> = headers.collect();
        let key = message.key.as_ref().map(String::as_bytes);
        let outgoing = Outgoing { key, headers: &headers, time: message.time, body: Some(&message.body) };
        self.producer.send(&outgoing).await
    }

    async fn confirm(&mut self) -> Result<Vec<(usize, Error)>> {
        let mut away: Option<Instant> = None;
        loop {
            if let Ok(confirmed) = tokio::time::timeout(LOOK, self.producer.confirm()).await {
                return confirmed;
            }
            match self.producer.trouble() {
                Some(trouble) if away.get_or_insert_with(Instant::now).elapsed() > self.patience => {
                    return Err(trouble);
                }
                Some(_) => {}
                None => away = None,
            }
        }
    }
}
