//! From a topic of Kafka to another one of the same cluster: the messages of each partition that is read go in one
//! transaction with its position (`crates/queue/src/kafka/transactions.rs`).
//!
//! `topic_delivery.rs` sends them. Producers of places that this process has are kept between epochs, as far as nobody
//! else has moved these places.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::future::join_all;
use millstream_core::epochs::Epochs;
use millstream_core::positions::{Change, Move, Moved, Position, Positions};
use millstream_core::sink::Delivery;
use millstream_core::{Error, Result};
use millstream_queue::kafka::{Ended, PlaceProducer, Transactions};
use tokio::sync::{Mutex as Waiting, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use super::load::summary;
use super::taking::Taking;
use super::topic_delivery::TopicDelivery;

/// The most producers of a sink. Each has about five threads.
pub(super) const MOST: usize = 32;

/// After how long a position is noted again that was not moved: brokers drop offsets after a week, by default.
const RENEWAL: Duration = Duration::from_secs(3600);

/// How often it is looked for such positions.
const LOOKS: Duration = Duration::from_secs(600);

/// The positions of a load in a cluster of Kafka.
pub(super) struct TopicPositions(Arc<Shared>);

/// Shared by the deliveries.
pub(super) struct Shared {
    pub(super) transactions: Arc<Transactions>,
    pub(super) taking: Taking,
    /// The topic, for messages.
    pub(super) shown: String,
    /// One for each producer that may be in use.
    permits: Arc<Semaphore>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Producers that are not in use; the one that was used last comes last.
    idle: Vec<PlaceProducer>,
    /// The places that this process reads, as far as is known here: the version of each, and when it was noted.
    own: BTreeMap<String, (u64, Instant)>,
    /// Held by what moves a place, so that one process does not fence itself.
    in_use: BTreeMap<String, Arc<Waiting<()>>>,
}

/// Says that a place is in use, and that its producer counts among the most that there may be.
pub(super) struct Lease {
    _place: OwnedMutexGuard<()>,
    _permit: OwnedSemaphorePermit,
}

/// What was asked for, if a place stands where it was expected; or where that stands instead, if that is known.
pub(super) type Found<T> = Result<T, Option<Position>>;

impl TopicPositions {
    pub(super) fn new(transactions: Transactions, taking: Taking, shown: String) -> Self {
        let (io, transactions) = (taking.terms.io.clone(), Arc::new(transactions));
        let (permits, state) = (Arc::new(Semaphore::new(MOST)), Mutex::default());
        let shared = Arc::new(Shared { transactions, taking, shown, permits, state });
        io.spawn(renew(Arc::downgrade(&shared)));
        TopicPositions(shared)
    }
}

#[cfg(test)]
impl TopicPositions {
    /// The places that it takes for its own, with their versions.
    pub(super) fn known(&self) -> Vec<(String, u64)> {
        self.0.state().own.iter().map(|(place, (version, _))| (place.clone(), *version)).collect()
    }

    /// The places of idle producers.
    pub(super) fn idle(&self) -> Vec<String> {
        self.0.state().idle.iter().map(PlaceProducer::place).collect()
    }

    /// Notes all positions again that may be.
    pub(super) async fn renew_all(&self) {
        self.0.renew(Duration::ZERO).await;
    }
}

/// Notes positions again as long as the load is there.
async fn renew(shared: Weak<Shared>) {
    loop {
        tokio::time::sleep(LOOKS).await;
        let Some(shared) = shared.upgrade() else { return };
        shared.renew(RENEWAL).await;
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, place: &str) -> Arc<Waiting<()>> {
        Arc::clone(self.state().in_use.entry(place.to_owned()).or_default())
    }

    async fn lease(&self, place: OwnedMutexGuard<()>) -> Result<Lease> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.map_err(|cause| Error::internal("no producer can be used").cause(cause))?;
        Ok(Lease { _place: place, _permit: permit })
    }

    /// A producer for a place that stands at a version. A process that has it there is fenced, but not one that
    /// has moved it.
    pub(super) async fn producer(&self, place: &str, at: Option<u64>) -> Result<Found<(PlaceProducer, Lease)>> {
        let lease = self.lease(self.place(place).lock_owned().await).await?;
        // An idle producer knows the place as it has left it: others may have moved it since, and may have fenced it.
        if let Some(idle) = self.take(place).filter(|idle| version(idle.position()) == at) {
            return Ok(Ok((idle, lease)));
        }
        // What is not known now is compared when the producer is there.
        if let Ok(found) = self.transactions.position(place).await
            && version(found.as_ref()) != at
        {
            return Ok(Err(found));
        }
        let fresh = self.transactions.producer(place).await?;
        Ok(match version(fresh.position()) == at {
            true => Ok((fresh, lease)),
            false => Err(fresh.position().cloned()),
        })
    }

    /// The idle producer of a place; if there is none, others make room for it.
    fn take(&self, place: &str) -> Option<PlaceProducer> {
        let mut state = self.state();
        if let Some(at) = state.idle.iter().position(|idle| idle.place() == place) {
            return Some(state.idle.remove(at));
        }
        let room = self.permits.available_permits();
        let too_many = state.idle.len().saturating_sub(room);
        state.idle.drain(..too_many);
        None
    }

    pub(super) fn keep(&self, producer: PlaceProducer) {
        let (mut state, place) = (self.state(), producer.place());
        if let Some(position) = producer.position() {
            state.own.insert(place.clone(), (position.version, Instant::now()));
        }
        state.idle.retain(|idle| idle.place() != place);
        state.idle.push(producer);
    }

    /// Another process has moved a place.
    pub(super) fn is_lost(&self, place: &str) {
        let mut state = self.state();
        state.own.remove(place);
        state.idle.retain(|idle| idle.place() != place);
    }

    /// Moves a place without messages. Where it stands, if that is elsewhere.
    async fn set(&self, only: Move) -> Result<Option<Vec<Position>>> {
        let (mut producer, _lease) = match self.producer(&only.place, only.from).await? {
            Ok(found) => found,
            Err(elsewhere) => return Ok(Some(elsewhere.into_iter().collect())),
        };
        producer.begin().await?;
        let (ended, producer) = self.taking.waiting(async move { producer.commit(&only).await }).await?;
        producer.into_iter().for_each(|producer| self.keep(producer));
        match ended {
            Ended::Committed => Ok(None),
            Ended::Aborted(error) => Err(error),
            Ended::Fenced => Ok(Some(Vec::new())),
            Ended::Unknown(now) => Ok(Some(now.into_iter().collect())),
        }
    }

    /// Notes positions again that were not moved for so long. What cannot be done now is done later.
    async fn renew(&self, after: Duration) {
        let own: Vec<String> = self.state().own.keys().cloned().collect();
        for place in own {
            // What is in use is noted anyway.
            if let Ok(held) = self.place(&place).try_lock_owned() {
                // It may not be possible now.
                let _ = self.renew_place(&place, held, after).await;
            }
        }
    }

    /// Notes the position of a place again, unless that was done just now.
    async fn renew_place(&self, place: &str, held: OwnedMutexGuard<()>, after: Duration) -> Result<()> {
        let own = self.state().own.get(place).copied();
        let Some((known, _)) = own.filter(|(_, noted)| noted.elapsed() >= after) else { return Ok(()) };
        // The producer of a process that has taken the place over is not to be fenced.
        if version(self.transactions.position(place).await?.as_ref()) != Some(known) {
            self.is_lost(place);
            return Ok(());
        }
        let _lease = self.lease(held).await?;
        let idle = self.take(place).filter(|idle| version(idle.position()) == Some(known));
        let producer = match idle {
            Some(idle) => idle,
            None => self.transactions.producer(place).await?,
        };
        if version(producer.position()) != Some(known) {
            self.is_lost(place);
            return Ok(());
        }
        if let Some(producer) = producer.renew().await {
            self.keep(producer);
        }
        Ok(())
    }
}

pub(super) fn version(position: Option<&Position>) -> Option<u64> {
    position.map(|position| position.version)
}

#[async_trait]
impl Epochs for TopicPositions {
    async fn delivery(&self, moves: Vec<Move>, bad_rows: usize) -> Result<Box<dyn Delivery>> {
        let [only] = <[Move; 1]>::try_from(moves)
            .map_err(|moves| Error::internal(format!("a transaction was to move {} positions", moves.len())))?;
        Ok(Box::new(TopicDelivery::new(Arc::clone(&self.0), only, bad_rows)))
    }

    fn target(&self) -> String {
        self.0.shown.clone()
    }

    fn summary(&self, rows: u64) -> String {
        summary(rows, 0, &self.0.shown)
    }

    fn connections(&self) -> usize {
        MOST
    }

    fn end_soon(&self) {
        self.0.transactions.end_soon();
    }
}

#[async_trait]
impl Positions for TopicPositions {
    async fn read(&self) -> Result<Vec<Position>> {
        self.0.transactions.read().await
    }

    fn begun(&self, places: &[(String, u64)]) {
        let own = places.iter().map(|(place, version)| (place.clone(), (*version, Instant::now())));
        self.0.state().own.extend(own);
    }

    async fn set(&self, moves: Vec<Move>) -> Result<Moved> {
        let done = join_all(moves.into_iter().map(|only| self.0.set(only))).await;
        let done = done.into_iter().collect::<Result<Vec<_>>>()?;
        match done.iter().all(Option::is_none) {
            true => Ok(Moved::All),
            false => Ok(Moved::None(done.into_iter().flatten().flatten().collect())),
        }
    }

    async fn fence(&self, place: &str, _wait: Duration, mut change: Change) -> Result<()> {
        loop {
            // A producer that is there may have been fenced itself, and one that is in use may be what is in the way.
            drop(self.0.take(place));
            let producer = self.0.transactions.producer(place).await?;
            let moves = change(&self.read().await?)?;
            self.0.keep(producer);
            if moves.iter().any(|one| one.place != place) {
                return Err(Error::internal("a fence was to move other places"));
            }
            if moves.is_empty() || self.set(moves).await? == Moved::All {
                return Ok(());
            }
        }
    }

    async fn connections_of(&self, _owner: &str) -> Result<Option<usize>> {
        Ok(None)
    }

    async fn forget(&self) -> Result<()> {
        self.0.state().own.clear();
        self.0.transactions.forget().await
    }

    fn may_expire_in(&self) -> Option<String> {
        Some(format!("the group `{}`", self.0.transactions.group()))
    }

    fn is_by_place(&self) -> bool {
        true
    }
}
