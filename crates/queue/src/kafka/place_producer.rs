//! Sends messages of one partition that is read, in transactions that move its position: how one begins, is sent and
//! ends, and what has become of one whose end was not answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_core::positions::{Move, Position};
use millstream_core::{Error, ErrorKind, Result, fail_point};
use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{Producer as _, ThreadedProducer};
use rdkafka::{Offset, TopicPartitionList};

use super::fault;
use super::noted;
use super::producer::{Confirmations, Outgoing, Producer, RefusedMessage};
use super::queue::in_background;
use super::state::State;
use super::transactions::{ANSWER, Transactions};

/// How long brokers may need to commit a transaction before its outcome is asked for. Tests wait for its end, and have
/// brokers on the same machine.
pub(super) const COMMIT: Duration = Duration::from_secs(if cfg!(test) { 10 } else { 20 });

/// How long the outcome is asked for when the run is to end.
const DOUBT: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 20 });

/// How long one call of the library waits, and the pause between two questions about an outcome.
const STEP: Duration = Duration::from_secs(1);

/// The pause before a call of the library is repeated that may have failed at once.
const PAUSE: Duration = Duration::from_millis(20);

/// What has become of a transaction.
#[derive(Debug)]
pub enum Ended {
    /// Everything is there, and the position was moved.
    Committed,
    /// Nothing is there. It may be tried again.
    Aborted(Error),
    /// Nothing is there: another process has taken the partition over.
    Fenced,
    /// It is not known, and cannot be found out: the position was moved on since, or the run is to end. Where the
    /// partition stands, if that is known.
    Unknown(Option<Position>),
}

/// Sends messages of one partition that is read.
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
    /// Of a partition that stands at `position`, which nobody else can move before `producer` is fenced.
    pub(super) fn new(
        producer: Producer,
        transactions: Arc<Transactions>,
        partition: i32,
        position: Option<Position>,
    ) -> Self {
        PlaceProducer { producer: Some(producer), transactions, partition, position, is_open: false }
    }

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
        Some(match fault::reaction(&failure) {
            fault::Reaction::End | fault::Reaction::NoTopic => {
                fault::error(&failure, place, &format!("writing to topic {}", place.topic))
            }
            _ => fault::aborted(place, failure.text),
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

    /// Moves the position in the transaction, and commits it. If the outcome is not known, it is asked for as long as
    /// brokers need to answer, until [`Transactions::end_soon`]. A producer is given back if it may be used again.
    ///
    /// # Errors
    /// If waiting does not help.
    pub async fn commit(mut self, to: &Move) -> Result<(Ended, Option<Self>)> {
        let position = self.moved(to)?;
        if let Err(error) = self.add(&position).await? {
            return Ok((self.failed(&error).await, None));
        }
        fail_point::pass("transaction.sent");
        self.end(position).await
    }

    /// Adds a position to the transaction.
    pub(super) async fn add(&mut self, position: &Position) -> Result<Result<(), KafkaError>> {
        let (offsets, group) = (self.offsets(position)?, self.transactions.settled()?.group_metadata());
        let group = group.ok_or_else(|| Error::internal("a group has no metadata"))?;
        self.blocking(move |library| patiently(|| library.send_offsets_to_transaction(&offsets, &group, STEP))).await
    }

    /// Commits the transaction, to which `position` was added.
    pub(super) async fn end(mut self, position: Position) -> Result<(Ended, Option<Self>)> {
        match self.blocking(|library| patiently(|| library.commit_transaction(STEP))).await? {
            Ok(()) => {
                (self.position, self.is_open) = (Some(position), false);
                Ok((Ended::Committed, Some(self)))
            }
            Err(KafkaError::Transaction(error)) if error.txn_requires_abort() => {
                Ok((self.failed(&KafkaError::Transaction(error)).await, None))
            }
            Err(error) => self.find_out(position, error).await,
        }
    }

    /// The transaction cannot be committed: nothing of it is there.
    async fn failed(mut self, error: &KafkaError) -> Ended {
        if !self.is_fenced() {
            // Whether it is fenced may show when it aborts.
            let _ = self.abort().await;
        }
        match self.is_fenced() {
            true => Ended::Fenced,
            false if is_lasting(error) => Ended::Aborted(self.transactions.error(error)),
            false => Ended::Aborted(self.transactions.aborted(error)),
        }
    }

    /// Finds out whether a transaction was committed that moved the partition to `position`; as long as it takes,
    /// unless the run is to end.
    async fn find_out(self, position: Position, error: KafkaError) -> Result<(Ended, Option<Self>)> {
        let (transactions, place, is_fenced) = (Arc::clone(&self.transactions), self.place(), self.is_fenced());
        let before = self.position.clone();
        drop(self);
        let begun = Instant::now();
        loop {
            // Another process may be about to write: it is not fenced for the sake of this one's count.
            let found = match is_fenced {
                true => transactions.position(&place).await.map(|position| (position, None)),
                false => transactions.producer(&place).await.map(|own| (own.position.clone(), Some(own))),
            };
            match found {
                Ok((now, own)) => {
                    return Ok(match outcome(before.as_ref(), &position, now.as_ref()) {
                        Outcome::Committed => (Ended::Committed, own),
                        Outcome::Not if is_fenced => (Ended::Fenced, None),
                        Outcome::Not => (Ended::Aborted(transactions.aborted(&error)), own),
                        Outcome::Other => (Ended::Fenced, None),
                        Outcome::Unknown => (Ended::Unknown(now), None),
                    });
                }
                Err(error) if error.kind() != ErrorKind::Transient => return Err(error),
                Err(_) if transactions.is_ending() && begun.elapsed() >= DOUBT => {
                    return Ok((Ended::Unknown(None), None));
                }
                Err(_) => tokio::time::sleep(STEP).await,
            }
        }
    }

    /// Notes the position again, so that the brokers keep it. The producer, if that was possible.
    pub async fn renew(mut self) -> Option<Self> {
        let position = self.position.clone()?;
        self.begin().await.ok()?;
        self.add(&position).await.ok()?.ok()?;
        match self.end(position).await {
            Ok((Ended::Committed, producer)) => producer,
            _ => None,
        }
    }

    /// The position after a move.
    pub(super) fn moved(&self, to: &Move) -> Result<Position> {
        let state = to.to.clone().ok_or_else(|| Error::internal("a position of a partition was to be removed"))?;
        Ok(Position {
            place: to.place.clone(),
            version: to.from.map_or(1, |version| version + 1),
            owner: self.transactions.owner.clone(),
            state,
            idle: Duration::ZERO,
        })
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
        fault::aborted(&self.place, super::native::words(error))
    }
}

/// What the position of a partition says of a transaction.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// It was committed.
    Committed,
    /// It was not: the position is where it was before.
    Not,
    /// It was not: another one has made the same step.
    Other,
    /// Nobody can say: others have moved the position on since, or it was removed.
    Unknown,
}

/// What has become of a transaction that was to move a partition from `before` to `to`, if it stands at `now` and no
/// transaction is open.
fn outcome(before: Option<&Position>, to: &Position, now: Option<&Position>) -> Outcome {
    match now {
        Some(now) if now == to => Outcome::Committed,
        now if now == before => Outcome::Not,
        Some(now) if now.version == to.version => Outcome::Other,
        _ => Outcome::Unknown,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_says_what_has_become_of_a_transaction() {
        let at = |version, owner: &str| Position {
            place: "t 0".to_owned(),
            version,
            owner: owner.to_owned(),
            state: format!("after {version}"),
            idle: Duration::ZERO,
        };
        for (before, now, expected) in [
            (Some(at(3, "a")), Some(at(4, "a")), Outcome::Committed),
            (Some(at(3, "a")), Some(at(3, "a")), Outcome::Not),
            (None, None, Outcome::Not),
            (Some(at(3, "a")), Some(at(4, "b")), Outcome::Other),
            (Some(at(3, "a")), Some(at(5, "b")), Outcome::Unknown),
            (Some(at(3, "a")), None, Outcome::Unknown),
            (Some(at(3, "a")), Some(at(0, "")), Outcome::Unknown),
        ] {
            let to = at(before.as_ref().map_or(1, |before| before.version + 1), "a");
            assert_eq!(outcome(before.as_ref(), &to, now.as_ref()), expected, "{before:?} {now:?}");
        }
    }
}
