//! Messages to a topic: sent without waiting for each, confirmed together. Messages of one key keep their order. After
//! an error whose outcome is unknown messages may be there twice; within a producer, the brokers drop repetitions.
//!
//! A broker that refuses a message refuses all others of its batch, too. What a topic does not take is therefore found
//! before it is sent. If its settings have changed since, the others are sent again: only then, they come behind later
//! messages of their keys.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use millstream_core::spec;
use millstream_core::{Error, RejectKind, Result};
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, Message as _, OwnedHeaders, OwnedMessage};
use rdkafka::producer::{
    BaseRecord, NoCustomPartitioner, Producer as _, ProducerContext, PurgeConfig, ThreadedProducer,
};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::fault::{self, Reaction};
use super::native::{self, Failure};
use super::place::Place;
use super::queue::in_background;
use super::spec::KafkaWrite;
use super::topic::{self, Limits, Objection};

/// How many bytes a message may have where brokers do not say.
const DEFAULT_LARGEST: usize = 1_000_000;

/// How long to wait until there is room for another message.
const PAUSE: Duration = Duration::from_millis(2);

/// A message that a broker refused: its number, from 0, among those since the last confirmation, and why.
pub type RefusedMessage = (usize, Error);

/// A message that is to be sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct Outgoing<'m> {
    /// The key.
    pub key: Option<&'m [u8]>,
    /// Names and values beside the body.
    pub headers: &'m [(&'m str, Option<&'m [u8]>)],
    /// When it came, in milliseconds since 1970; the time at which it is sent, if it does not say so.
    pub time: Option<i64>,
    /// What it says.
    pub body: Option<&'m [u8]>,
}

/// What sends messages to a topic.
pub struct Producer {
    producer: ThreadedProducer<Confirmations>,
    place: Place,
    limits: Limits,
    /// The most bytes that a message may have.
    largest: usize,
    /// Messages sent since the last confirmation.
    sent: usize,
    /// Their times, up to the last one that has a time of its own: the library does not give it back.
    times: Vec<Option<i64>>,
    refused: Vec<RefusedMessage>,
}

impl Producer {
    /// Connects to the topic that the URL `target` names. At most about `window` bytes are on their way at once.
    ///
    /// # Errors
    /// If the brokers cannot be reached or refuse, or there is no such topic and they create none.
    pub async fn connect(target: &str, write: &KafkaWrite, window: usize, io: &Handle) -> Result<Self> {
        let place = Self::place(target, write).map_err(|fault| Error::job(fault.what))?;
        let handle = io.clone();
        in_background(io, move || connect(place, window, &handle)).await
    }

    /// Asks whether the topic that the URL `target` names can be written to, and changes nothing.
    ///
    /// # Errors
    /// If the brokers cannot be reached or refuse, or there is no such topic and they create none.
    pub async fn look(target: &str, write: &KafkaWrite, io: &Handle) -> Result<()> {
        let place = Self::place(target, write).map_err(|fault| Error::job(fault.what))?;
        let handle = io.clone();
        in_background(io, move || topic::look(&place, &place.client()?, &handle).map(drop)).await
    }

    /// The topic that a URL names.
    ///
    /// # Errors
    /// If it is no such URL, or does not fit the settings.
    pub fn place(target: &str, write: &KafkaWrite) -> Result<Place, spec::Fault> {
        Place::parse(target, &write.access(), &write.brokers, write.sasl)
    }

    /// Sends a message; waits only while too many are on their way. Messages of a key go to one partition, the one that
    /// Kafka's own Java client takes; those without a key anywhere. If the topic does not take it,
    /// [`Producer::confirm`] says so.
    ///
    /// # Errors
    /// If the producer cannot continue.
    pub async fn send(&mut self, message: &Outgoing<'_>) -> Result<()> {
        let number = self.sent;
        self.sent += 1;
        if let Some(objection) = self.limits.objection(message, SystemTime::now) {
            self.object(number, objection);
            return Ok(());
        }
        if message.time.is_some() && !self.is_transactional() {
            self.times.resize(number, None);
            self.times.push(message.time);
        }
        let headers = (!message.headers.is_empty()).then(|| with_headers(message.headers));
        let sent = self.produce(number, message, headers).await;
        if sent.is_err() {
            self.sent -= 1;
        }
        sent
    }

    async fn produce(&mut self, number: usize, message: &Outgoing<'_>, headers: Option<OwnedHeaders>) -> Result<()> {
        let topic = self.place.topic.clone();
        let mut record = BaseRecord::<[u8], [u8], usize>::with_opaque_to(&topic, number);
        (record.key, record.payload, record.timestamp) = (message.key, message.body, message.time);
        record.headers = headers;
        loop {
            let Err((error, again)) = self.producer.send(record) else { return Ok(()) };
            match error {
                KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull) => record = again,
                KafkaError::MessageProduction(RDKafkaErrorCode::MessageSizeTooLarge) => {
                    let cause = format!("it has more than {} bytes, the most that the topic allows", self.largest);
                    let hint = "set `max.message.bytes` of the topic to more, or leave such messages out";
                    self.object(number, (RejectKind::TooLong, cause, hint));
                    return Ok(());
                }
                other => return Err(self.broken(native::words(&other))),
            }
            self.check()?;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// A message is refused before it is sent.
    fn object(&mut self, number: usize, (kind, cause, hint): Objection) {
        self.refused.push((number, self.refusal(&cause).reject(kind).hint(hint)));
        self.producer.context().confirm(None);
    }

    /// Waits until all messages that were sent are there, however long the brokers need. Those that were refused, by
    /// their numbers; the next message has number 0 again.
    ///
    /// # Errors
    /// If the producer cannot continue: then it is unknown which messages are there.
    pub async fn confirm(&mut self) -> Result<Vec<RefusedMessage>> {
        let mut is_given_up = false;
        loop {
            self.send_innocent_again().await?;
            let confirmed = self.producer.context().changed.notified();
            self.check()?;
            if !is_given_up && self.broken_by().is_some() {
                // Nothing of the transaction will be there. The library would keep what has not left for a minute.
                self.producer.purge(PurgeConfig::default().queue().inflight());
                is_given_up = true;
            }
            if self.producer.context().state().confirmed >= self.sent {
                break;
            }
            // Errors come without a confirmation, too.
            let _ = tokio::time::timeout(Duration::from_millis(200), confirmed).await;
        }
        self.sent = 0;
        self.times.clear();
        let mut state = self.producer.context().state();
        state.confirmed = 0;
        let refused = std::mem::take(&mut state.refused);
        drop(state);
        let mut all = std::mem::take(&mut self.refused);
        all.extend(refused.into_iter().map(|(number, cause, kind)| (number, self.refusal(&cause).reject(kind))));
        all.sort_by_key(|(number, _)| *number);
        Ok(all)
    }

    /// Sends messages again that were refused because of others of their batches.
    async fn send_innocent_again(&mut self) -> Result<()> {
        let innocent = std::mem::take(&mut self.producer.context().state().innocent);
        for (number, message) in innocent {
            let time = self.times.get(number).copied().flatten();
            let again = Outgoing { key: message.key(), headers: &[], time, body: message.payload() };
            self.produce(number, &again, message.headers().cloned()).await?;
        }
        Ok(())
    }

    /// Why brokers cannot be reached now, if they cannot: messages wait for them.
    pub fn trouble(&self) -> Option<Error> {
        let state = self.producer.context().state();
        state.trouble.as_ref().map(|failure| fault::error(failure, &self.place, &self.doing()))
    }

    /// Why a message of a transaction has failed, if any has: then none of them can be committed.
    pub(super) fn broken_by(&self) -> Option<Failure> {
        self.library().context().state().broken.clone()
    }

    /// Messages that follow belong to another transaction.
    pub(super) fn begin(&mut self) {
        self.sent = 0;
        self.refused.clear();
        let mut state = self.library().context().state();
        (state.confirmed, state.broken) = (0, None);
        state.refused.clear();
    }

    /// The library's producer.
    pub(super) fn library(&self) -> &ThreadedProducer<Confirmations> {
        &self.producer
    }

    fn check(&self) -> Result<()> {
        let ended = self.producer.context().state().ended.clone();
        match ended {
            None => Ok(()),
            // Another producer can do what this one cannot do any more.
            Some(failure) if self.is_transactional() && fault::is_fatal(&failure) => Err(self.broken(failure.text)),
            Some(failure) => Err(fault::error(&failure, &self.place, &self.doing())),
        }
    }

    fn is_transactional(&self) -> bool {
        self.library().context().is_transactional
    }

    fn doing(&self) -> String {
        format!("writing to topic {}", self.place.topic)
    }

    fn refusal(&self, cause: &str) -> Error {
        Error::refused(format!("topic `{}` does not take a message", self.place.topic)).cause(cause)
    }

    fn broken(&self, cause: String) -> Error {
        if self.is_transactional() {
            return fault::aborted(&self.place, cause);
        }
        let error = Error::refused(format!("{}: no message can be sent any more", self.doing()));
        error.cause(self.place.server.without_secrets(cause))
    }
}

/// A producer for a topic that is there, or appears with its first message. Blocks.
fn connect(place: Place, window: usize, io: &Handle) -> Result<Producer> {
    let limits = topic::look(&place, &place.client()?, io)?.limits;
    // A message that was given up would break the order: how long to wait is the run's decision.
    start(place, limits, window, &[("message.timeout.ms", "0")])
}

/// A producer for a topic that takes what `limits` says, with more settings. Blocks, and asks no broker.
pub(super) fn start(place: Place, limits: Limits, window: usize, settings: &[(&str, &str)]) -> Result<Producer> {
    let mut config = place.client()?;
    // A broker refuses all messages of a batch that is larger than a message may be.
    let largest = limits.largest.unwrap_or(DEFAULT_LARGEST);
    let kilobytes = (window.max(2 * largest) / 1024).clamp(1024, 1 << 20).to_string();
    for (name, value) in [
        // Repetitions are dropped by the brokers, and the order is kept over them.
        ("enable.idempotence", "true"),
        ("partitioner", "murmur2_random"),
        ("linger.ms", "20"),
        ("batch.size", &largest.min(1_000_000).to_string()),
        ("message.max.bytes", &largest.to_string()),
        ("compression.type", "lz4"),
        ("queue.buffering.max.kbytes", &kilobytes),
        ("queue.buffering.max.messages", "1000000"),
    ]
    .iter()
    .chain(settings)
    {
        config.set(*name, *value);
    }
    let is_transactional = config.get("transactional.id").is_some();
    let producer: ThreadedProducer<Confirmations> = config
        .create_with_context(Confirmations { is_transactional, ..Confirmations::default() })
        .map_err(|error| Error::internal("the client of Kafka cannot be set up").cause(native::words(&error)))?;
    Ok(Producer { producer, place, limits, largest, sent: 0, times: Vec::new(), refused: Vec::new() })
}

fn with_headers(headers: &[(&str, Option<&[u8]>)]) -> OwnedHeaders {
    let insert = |all: OwnedHeaders, (key, value): &(&str, Option<&[u8]>)| all.insert(Header { key, value: *value });
    headers.iter().fold(OwnedHeaders::new_with_capacity(headers.len()), insert)
}

/// What the library reports, from a thread of its own.
#[derive(Debug, Default)]
pub(super) struct Confirmations {
    is_transactional: bool,
    state: Arc<Mutex<Confirmed>>,
    changed: Notify,
}

/// What was confirmed since the last time that it was asked for.
#[derive(Debug, Default)]
struct Confirmed {
    confirmed: usize,
    refused: Vec<(usize, String, RejectKind)>,
    /// Messages that were refused because of others of their batches.
    innocent: Vec<(usize, OwnedMessage)>,
    /// Why a message of a transaction has failed, whether it was refused itself or not.
    broken: Option<Failure>,
    trouble: Option<Failure>,
    ended: Option<Failure>,
}

impl Confirmations {
    fn state(&self) -> MutexGuard<'_, Confirmed> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn confirm(&self, refused: Option<(usize, String, RejectKind)>) {
        let mut state = self.state();
        state.confirmed += 1;
        state.trouble = None;
        state.refused.extend(refused);
        drop(state);
        self.changed.notify_one();
    }
}

impl ClientContext for Confirmations {
    fn log(&self, _level: RDKafkaLogLevel, _facility: &str, _message: &str) {}

    fn error(&self, error: KafkaError, reason: &str) {
        let Some(code) = error.rdkafka_error_code() else { return };
        let failure = Failure { code: code as i32, text: reason.to_owned() };
        match fault::reaction(&failure) {
            Reaction::End => self.state().ended = Some(failure),
            Reaction::Wait => self.state().trouble = Some(failure),
            _ => {}
        }
    }
}

impl ProducerContext<NoCustomPartitioner> for Confirmations {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, number: usize) {
        let Err((error, message)) = result else { return self.confirm(None) };
        let code = error.rdkafka_error_code();
        // Of a transaction nothing is kept: all of it is sent again in another one.
        if code == Some(RDKafkaErrorCode::InvalidDifferentRecord) && !self.is_transactional {
            self.state().innocent.push((number, message.detach()));
            return self.changed.notify_one();
        }
        if self.is_transactional {
            self.state().broken.get_or_insert_with(|| fault::of_library(error));
            if !code.is_some_and(fault::is_of_message) {
                return self.confirm(None);
            }
        }
        let kind = match code {
            Some(RDKafkaErrorCode::MessageSizeTooLarge) => RejectKind::TooLong,
            _ => RejectKind::Other,
        };
        self.confirm(Some((number, native::words(error), kind)));
    }
}
