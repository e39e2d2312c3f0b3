//! A target in memory, for tests of consumers: positions with versions and locks, and the ids of the messages that were
//! committed with them. Several processes share it, and it fails when a test says so.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arrow::array::{Array, RecordBatch, UInt64Array};
use async_trait::async_trait;
use millstream_core::epochs::Epochs;
use millstream_core::positions::{Change, Move, Moved, Position, Positions};
use millstream_core::queue::MessageId;
use millstream_core::sink::{Accept, Delivered, Delivery, Refused};
use millstream_core::{Error, Result};
use tokio::sync::Notify;

/// What goes wrong with the next transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// It is rolled back, and a transient error says so.
    Transaction,
    /// It is committed, and then the place is not as the process left it: a delivery ends as unknown, a move
    /// without rows with a transient error.
    Answer,
}

/// A target that all processes of a test share.
#[derive(Debug, Default)]
pub(crate) struct MemoryTarget {
    state: Mutex<State>,
    unlocked: Notify,
}

#[derive(Debug, Default)]
struct State {
    positions: BTreeMap<String, Held>,
    committed: BTreeMap<MessageId, usize>,
    /// Which transaction has locked a place.
    locks: HashMap<String, u64>,
    transactions: u64,
    losses: Vec<Loss>,
    is_down: bool,
    /// Of each process; `None` if the target cannot tell.
    connections: Option<HashMap<String, usize>>,
}

#[derive(Debug, Clone)]
struct Held {
    version: u64,
    owner: String,
    state: String,
    moved: Instant,
}

impl MemoryTarget {
    /// An empty one.
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The positions as the process `owner` sees and moves them.
    pub(crate) fn positions(self: &Arc<Self>, owner: &str) -> Arc<MemoryPositions> {
        Arc::new(MemoryPositions { target: Arc::clone(self), owner: owner.to_owned() })
    }

    /// How often each message was committed.
    pub(crate) fn committed(&self) -> BTreeMap<MessageId, usize> {
        self.state().committed.clone()
    }

    /// What is lost of the next transactions that move positions, the first one first.
    pub(crate) fn lose(&self, losses: &[Loss]) {
        self.state().losses.splice(0..0, losses.iter().rev().copied());
    }

    /// Whether everything fails for now.
    pub(crate) fn set_down(&self, is_down: bool) {
        self.state().is_down = is_down;
    }

    /// How many connections a process has. Before the first call, the target cannot tell.
    pub(crate) fn set_connections(&self, owner: &str, count: usize) {
        self.state().connections.get_or_insert_default().insert(owner.to_owned(), count);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the places of `wanted` for a transaction, or all that have a lock must be free where none is wanted.
    async fn lock(&self, transaction: Option<u64>, wanted: &[String]) {
        loop {
            let unlocked = self.unlocked.notified();
            tokio::pin!(unlocked);
            unlocked.as_mut().enable();
            if self.state().lock(transaction, wanted) {
                return;
            }
            unlocked.await;
        }
    }

    fn end(&self, transaction: u64) {
        self.state().locks.retain(|_, holder| *holder != transaction);
        self.unlocked.notify_waiters();
    }
}

impl State {
    fn lock(&mut self, transaction: Option<u64>, wanted: &[String]) -> bool {
        let Some(transaction) = transaction else { return self.locks.is_empty() };
        let is_free = |place: &String| self.locks.get(place).is_none_or(|holder| *holder == transaction);
        let is_free = wanted.iter().all(is_free);
        if is_free {
            self.locks.extend(wanted.iter().map(|place| (place.clone(), transaction)));
        }
        is_free
    }

    fn check(&self) -> Result<()> {
        if self.is_down { Err(Error::transient("the target is down")) } else { Ok(()) }
    }

    fn all(&self) -> Vec<Position> {
        self.positions.iter().map(|(place, held)| held.as_position(place)).collect()
    }

    /// The places of moves that stand elsewhere, as they are; `None` if none does.
    fn elsewhere(&self, moves: &[Move]) -> Option<Vec<Position>> {
        let version = |place: &String| self.positions.get(place).map(|held| held.version);
        let wrong: Vec<&Move> = moves.iter().filter(|one| version(&one.place) != one.from).collect();
        let now = wrong.iter().filter_map(|one| Some(self.positions.get(&one.place)?.as_position(&one.place)));
        (!wrong.is_empty()).then(|| now.collect())
    }

    fn apply(&mut self, moves: &[Move], owner: &str) {
        for one in moves {
            match &one.to {
                None => drop(self.positions.remove(&one.place)),
                Some(state) => {
                    let version = one.from.unwrap_or(0) + 1;
                    let held = Held { version, owner: owner.to_owned(), state: state.clone(), moved: Instant::now() };
                    self.positions.insert(one.place.clone(), held);
                }
            }
        }
    }
}

impl Held {
    fn as_position(&self, place: &str) -> Position {
        Position {
            place: place.to_owned(),
            version: self.version,
            owner: self.owner.clone(),
            state: self.state.clone(),
            idle: self.moved.elapsed(),
        }
    }
}

/// The positions of a [`MemoryTarget`], as one process sees them.
#[derive(Debug)]
pub(crate) struct MemoryPositions {
    target: Arc<MemoryTarget>,
    owner: String,
}

impl MemoryPositions {
    /// Begins a transaction: the places of its moves are locked from the first ids that are added until it ends.
    pub(crate) fn begin(&self, moves: Vec<Move>) -> MemoryDelivery {
        let mut state = self.target.state();
        state.transactions += 1;
        let (number, target) = (state.transactions, Arc::clone(&self.target));
        MemoryDelivery { target, owner: self.owner.clone(), number, moves, is_open: false, ids: Vec::new() }
    }

    /// Commits messages with moves.
    pub(crate) async fn commit(&self, moves: Vec<Move>, ids: &[MessageId]) -> Result<Delivered> {
        let mut delivery = self.begin(moves);
        delivery.add(ids).await?;
        delivery.end().await
    }
}

#[async_trait]
impl Epochs for MemoryPositions {
    async fn delivery(&self, moves: Vec<Move>, _bad_rows: usize) -> Result<Box<dyn Delivery>> {
        self.target.state().check()?;
        Ok(Box::new(self.begin(moves)))
    }

    fn target(&self) -> String {
        "table t in memory".to_owned()
    }

    fn summary(&self, rows: u64) -> String {
        format!("{rows} rows added to table t")
    }
}

#[async_trait]
impl Positions for MemoryPositions {
    async fn read(&self) -> Result<Vec<Position>> {
        self.target.state().check()?;
        self.target.lock(None, &[]).await;
        Ok(self.target.state().all())
    }

    async fn glance(&self) -> Result<Vec<Position>> {
        let state = self.target.state();
        state.check()?;
        Ok(state.all())
    }

    async fn set(&self, moves: Vec<Move>) -> Result<Moved> {
        let mut delivery = self.begin(moves);
        delivery.add(&[]).await?;
        match delivery.take_place()? {
            (None, Some(Loss::Answer)) => Err(Error::transient("the answer was lost")),
            (None, _) => Ok(Moved::All),
            (Some(positions), _) => Ok(Moved::None(positions)),
        }
    }

    async fn fence(&self, place: &str, wait: Duration, mut change: Change) -> Result<()> {
        let transaction = self.begin(Vec::new());
        let place = [place.to_owned()];
        let locked = tokio::time::timeout(wait, self.target.lock(Some(transaction.number), &place)).await;
        let mut state = self.target.state();
        state.check()?;
        if locked.is_err() {
            // The holder's connection ends, and with it all its locks.
            let holder = state.locks.get(&place[0]).copied();
            state.locks.retain(|_, one| Some(*one) != holder);
        }
        let moves = change(&state.all())?;
        if state.elsewhere(&moves).is_some() {
            return Err(Error::internal("a change names other versions than it was given"));
        }
        state.apply(&moves, &self.owner);
        Ok(())
    }

    async fn connections_of(&self, owner: &str) -> Result<Option<usize>> {
        let state = self.target.state();
        state.check()?;
        Ok(state.connections.as_ref().map(|counts| counts.get(owner).copied().unwrap_or(0)))
    }

    async fn forget(&self) -> Result<()> {
        self.target.state().positions.clear();
        Ok(())
    }
}

/// A transaction of a [`MemoryTarget`]. Dropped before its end, it leaves nothing.
#[derive(Debug)]
pub(crate) struct MemoryDelivery {
    target: Arc<MemoryTarget>,
    owner: String,
    number: u64,
    moves: Vec<Move>,
    is_open: bool,
    ids: Vec<MessageId>,
}

impl MemoryDelivery {
    /// Adds messages that are committed with the moves.
    pub(crate) async fn add(&mut self, ids: &[MessageId]) -> Result<()> {
        self.target.state().check()?;
        if !self.is_open {
            let places: Vec<String> = self.moves.iter().map(|one| one.place.clone()).collect();
            self.target.lock(Some(self.number), &places).await;
            self.is_open = true;
        }
        self.ids.extend_from_slice(ids);
        Ok(())
    }

    /// Commits.
    pub(crate) async fn end(mut self) -> Result<Delivered> {
        self.add(&[]).await?;
        Ok(match self.take_place()? {
            (None, Some(Loss::Answer)) => Delivered::Unknown(self.now()),
            (None, _) => Delivered::Written { rows: self.ids.len() as u64, refused: Vec::new() },
            (Some(positions), _) => Delivered::Moved(positions),
        })
    }

    fn now(&self) -> Vec<Position> {
        let mut all = self.target.state().all();
        all.retain(|position| self.moves.iter().any(|one| one.place == position.place));
        all
    }

    /// Makes the moves and commits the messages; the places that stand elsewhere, if there are some.
    fn take_place(&mut self) -> Result<(Option<Vec<Position>>, Option<Loss>)> {
        let mut state = self.target.state();
        state.check()?;
        let loss = if self.moves.is_empty() { None } else { state.losses.pop() };
        if loss == Some(Loss::Transaction) {
            return Err(Error::transient("the transaction was lost"));
        }
        let is_locked = |one: &Move| state.locks.get(&one.place) == Some(&self.number);
        let elsewhere = state.elsewhere(&self.moves);
        if elsewhere.is_some() {
            return Ok((elsewhere, None));
        }
        if !self.moves.iter().all(is_locked) {
            return Err(Error::transient("the connection was ended"));
        }
        state.apply(&self.moves, &self.owner);
        self.ids.iter().for_each(|id| *state.committed.entry(*id).or_default() += 1);
        Ok((None, loss))
    }
}

impl Drop for MemoryDelivery {
    fn drop(&mut self) {
        self.target.end(self.number);
    }
}

#[async_trait]
impl Delivery for MemoryDelivery {
    /// The ids are the first two columns.
    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        let column = |number: usize| batch.column(number).as_any().downcast_ref::<UInt64Array>();
        let (Some(major), Some(minor)) = (column(0), column(1)) else {
            return Err(Error::internal("the first two columns are no ids"));
        };
        let ids: Vec<MessageId> = major
            .values()
            .iter()
            .zip(minor.values())
            .map(|(major, minor)| MessageId { major: *major, minor: *minor })
            .collect();
        self.add(&ids).await
    }

    async fn commit_if(self: Box<Self>, accept: Accept) -> Result<Delivered> {
        accept(&Refused::default())?;
        self.end().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(minor: u64) -> MessageId {
        MessageId { major: 0, minor }
    }

    fn to(from: Option<u64>, state: &str) -> Vec<Move> {
        vec![Move { place: "p".to_owned(), from, to: Some(state.to_owned()) }]
    }

    async fn states(positions: &MemoryPositions) -> Vec<(u64, String)> {
        let all = positions.read().await.expect("it is up");
        all.into_iter().map(|position| (position.version, position.state)).collect()
    }

    #[tokio::test]
    async fn of_two_that_know_the_same_version_one_commits() {
        let target = MemoryTarget::new();
        let (a, b) = (target.positions("a"), target.positions("b"));
        assert_eq!(a.set(to(None, "1")).await.expect("a move"), Moved::All);
        let (one, other) = ([id(1)], [id(2)]);
        let (first, second) = tokio::join!(a.commit(to(Some(1), "2"), &one), b.commit(to(Some(1), "3"), &other));
        assert_eq!(first.expect("a commit"), Delivered::Written { rows: 1, refused: Vec::new() });
        let Delivered::Moved(now) = second.expect("an end") else { panic!("it was moved") };
        assert_eq!((now[0].version, now[0].owner.as_str(), now[0].state.as_str()), (2, "a", "2"));
        assert_eq!(target.committed(), BTreeMap::from([(id(1), 1)]));
    }

    #[tokio::test]
    async fn a_fence_ends_a_delivery_that_is_held_open() {
        let target = MemoryTarget::new();
        let (a, b) = (target.positions("a"), target.positions("b"));
        a.set(to(None, "1")).await.expect("a move");
        let mut open = a.begin(to(Some(1), "2"));
        open.add(&[id(1)]).await.expect("it is up");
        assert_eq!(b.glance().await.expect("it is up").len(), 1);
        assert!(tokio::time::timeout(Duration::from_millis(10), b.read()).await.is_err(), "the place is locked");
        let remove = |all: &[Position]| Ok(vec![Move { place: "p".to_owned(), from: Some(all[0].version), to: None }]);
        b.fence("p", Duration::from_millis(10), Box::new(remove)).await.expect("a fence");
        assert_eq!(open.end().await.expect("an end"), Delivered::Moved(Vec::new()));
        assert_eq!((states(&a).await, target.committed().len()), (Vec::new(), 0));
    }

    #[tokio::test]
    async fn what_is_lost_is_said() {
        let target = MemoryTarget::new();
        let a = target.positions("a");
        a.set(to(None, "1")).await.expect("a move");
        target.lose(&[Loss::Transaction, Loss::Answer]);
        assert!(a.commit(to(Some(1), "2"), &[id(1)]).await.is_err());
        assert_eq!((states(&a).await, target.committed().len()), (vec![(1, "1".to_owned())], 0));
        assert!(matches!(a.commit(to(Some(1), "2"), &[id(1)]).await, Ok(Delivered::Unknown(_))));
        assert_eq!((states(&a).await, target.committed().len()), (vec![(2, "2".to_owned())], 1));
        assert_eq!(a.connections_of("a").await.expect("it is up"), None);
        target.set_connections("a", 2);
        assert_eq!(a.connections_of("a").await.expect("it is up"), Some(2));
        target.set_down(true);
        assert!(a.read().await.is_err());
    }
}
