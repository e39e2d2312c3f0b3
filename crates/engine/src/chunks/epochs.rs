//! A sink that takes rows of a queue, an epoch after the other: from rows to a group, and from a group to one
//! transaction that moves the positions behind its messages. Who gathers epochs, and when, is decided elsewhere.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::epochs::{EpochTarget, Epochs, LaterMoves};
use millstream_core::sink::{Chunk, Delivered, Delivery, KnownLoad, Ledger, WrittenChunks};
use millstream_core::{Error, ErrorKind, Result};
use millstream_state::rejects::ChunkId;
use tokio::sync::Semaphore;

use super::group::{ChunkRows, Group, counts};
use super::load::{ChunkLoad, Loading};
use super::turn::{Turn, TurnGiver, Turns};
use crate::report::Tally;

/// The first pause before what was away is asked again, and the longest: each is twice as long as the one before.
pub const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// So long the end of a run waits for what is left to be done behind its commits.
const LONGEST_REST: Duration = Duration::from_secs(2);

/// A sink that takes epochs.
pub struct EpochLoad {
    loading: Arc<Loading>,
    ledger: Arc<EpochLedger>,
    /// Whether a delivery can make the moves of one place only.
    is_by_place: bool,
    /// One for each delivery that the target takes at once.
    permits: Semaphore,
    turns: Turns,
}

impl EpochLoad {
    /// Loads rows of a queue into `target`. `load` is what a load chunk by chunk is made from.
    pub fn new(target: &EpochTarget, load: impl FnOnce(Arc<dyn Ledger>) -> ChunkLoad) -> Self {
        let ledger =
            Arc::new(EpochLedger { epochs: target.epochs(), given: AtomicU64::new(0), moves: Mutex::default() });
        let loading = load(Arc::clone(&ledger) as Arc<dyn Ledger>).into_epochs();
        let is_by_place = target.positions().is_some_and(|positions| positions.is_by_place());
        let permits = Semaphore::new(ledger.epochs.connections().max(1));
        EpochLoad { loading, ledger, is_by_place, permits, turns: Turns::new() }
    }

    /// Whether deliveries may begin before their turn.
    pub fn takes_ahead(&self) -> bool {
        self.ledger.epochs.takes_ahead()
    }

    /// The turn of one more delivery of the epoch with this number, whose messages come from these places.
    pub fn turn(&self, epoch: u64, places: BTreeSet<u64>) -> (TurnGiver, Turn) {
        self.turns.add(epoch, places)
    }

    /// Whether a delivery can make the moves of one place only.
    pub fn is_by_place(&self) -> bool {
        self.is_by_place
    }

    /// How many deliveries the target takes at once.
    pub fn connections(&self) -> usize {
        self.ledger.epochs.connections()
    }

    /// These rows do not come to it: it has them, or their messages come again.
    pub fn pass(&self, rows: &[ChunkRows]) {
        let (count, rejected) = counts(rows);
        self.loading.came.read.fetch_add(count, Ordering::Relaxed);
        self.come_again(count, rejected);
    }

    fn come_again(&self, rows: u64, rejected: u64) {
        self.loading.came.before.fetch_add(rows, Ordering::Relaxed);
        self.loading.came.rejected_before.fetch_add(rejected, Ordering::Relaxed);
    }

    /// Writes the rows of an epoch and makes the moves that come with its turn, in one transaction; as often as it
    /// takes while the target is away. It begins once the target takes one delivery more: each needs descriptors and
    /// memory. If the turn never comes, it ends as if positions stood elsewhere. `None` if the run is to end while the
    /// target is away: then the rows are dropped. `waits` hears that the target is away, and that it is back.
    pub async fn deliver(&self, rows: Vec<ChunkRows>, turn: Turn, waits: &dyn Waits) -> Result<Option<Delivered>> {
        let (count, rejected) = counts(&rows);
        self.loading.came.read.fetch_add(count, Ordering::Relaxed);
        let mut group = Group::new(0, &self.loading.load.budget);
        rows.into_iter().for_each(|rows| group.push(rows));
        let name = &self.loading.load.name;
        let delivered = self.deliver_group(group, &turn, waits).await.map_err(|error| error.in_step(name))?;
        if !matches!(delivered, Some(Delivered::Written { .. })) {
            self.come_again(count, rejected);
        }
        Ok(delivered)
    }

    async fn deliver_group(&self, mut group: Group, turn: &Turn, waits: &dyn Waits) -> Result<Option<Delivered>> {
        let (name, mut pause, mut is_waiting) = (&self.loading.load.name, PAUSES.0, false);
        let given = self.ledger.give(turn.moves());
        group.note([given.note()]);
        let group = Arc::new(group);
        loop {
            let tried = match turn.has_come() {
                true => self.in_turn(&group, turn).await,
                false => match self.ahead(&group, turn).await {
                    Some(tried) => tried,
                    None => continue,
                },
            };
            match tried {
                Err(error) if error.kind() == ErrorKind::Transient => {
                    self.turns.retreat();
                    if !std::mem::replace(&mut is_waiting, true) {
                        waits.waiting(name, &error);
                    }
                    if waits.pause(pause).await {
                        self.end_rejects(&group, None)?;
                        return Ok(None);
                    }
                    pause = (pause * 2).min(PAUSES.1);
                }
                Err(error) => return Err(error),
                Ok(delivered) => {
                    if is_waiting {
                        waits.back(name);
                    }
                    self.end_rejects(&group, Some(&delivered))?;
                    return Ok(Some(delivered));
                }
            }
        }
    }

    /// Delivers a group that has its turn.
    async fn in_turn(&self, group: &Arc<Group>, turn: &Turn) -> Result<Delivered> {
        let mut permit = Some(self.permits.acquire().await);
        let may_commit = async |_| {
            turn.sent();
            // Who commits needs no room for rows.
            permit.take_if(|_| self.takes_ahead());
            true
        };
        self.loading.try_deliver(group, may_commit).await
    }

    /// Sends a group before its turn, and commits it then. `None` if it has to be sent again, in its turn.
    async fn ahead(&self, group: &Arc<Group>, turn: &Turn) -> Option<Result<Delivered>> {
        let again_in_turn = async || match turn.comes().await {
            true => None,
            false => Some(Ok(Delivered::Moved(Vec::new()))),
        };
        if !self.turns.may_send(turn).await || turn.has_come() {
            return again_in_turn().await;
        }
        let mut permit = Some(self.permits.acquire().await);
        let mut has_sent = false;
        let may_commit = async |refused| {
            // Rows may be refused since those of the epoch before are not visible.
            has_sent = refused == 0 || turn.has_come();
            if !has_sent {
                return false;
            }
            turn.sent();
            permit.take();
            turn.comes().await
        };
        let tried = tokio::select! {
            biased;
            tried = self.loading.try_deliver(group, may_commit) => tried,
            () = self.turns.must_give_up(turn) => return again_in_turn().await,
        };
        // Whether an error is the target's fault, or the rows', shows in its turn.
        if has_sent { Some(tried) } else { again_in_turn().await }
    }

    /// No delivery of the group follows: if it is not written, its messages come again, and the rejects that deliveries
    /// have logged do not count. Where that is not known they do: one that is there twice is better than none.
    fn end_rejects(&self, group: &Group, delivered: Option<&Delivered>) -> Result<()> {
        let Some(log) = self.loading.load.rejects.log().filter(|log| log.is_pending()) else { return Ok(()) };
        let name = &self.loading.load.name;
        let chunks: Vec<ChunkId> = group.chunks().iter().map(|chunk| ChunkId::new(name, chunk)).collect();
        match delivered {
            Some(Delivered::Written { .. } | Delivered::Unknown(_)) => log.settle(&chunks),
            Some(Delivered::Moved(_) | Delivered::AlreadyDone(_)) | None => log.void(&chunks)?,
        }
        Ok(())
    }

    /// What has become of the records so far, none of which may be missing.
    pub fn tally(&self) -> Result<Tally> {
        self.loading.tally(self.loading.rows.load(Ordering::Relaxed))
    }

    /// What there is now: "252 rows added to table t".
    pub fn summary(&self) -> String {
        self.ledger.epochs.summary(self.loading.rows.load(Ordering::Relaxed))
    }

    /// The run is to end when the epoch that is being written is there.
    pub fn end_soon(&self) {
        self.ledger.epochs.end_soon();
    }

    /// Waits until no commit is under way, and lets none begin any more.
    pub async fn end_commits(&self) {
        let end_soon = self.ledger.epochs.stop_waiting();
        self.loading.load.commits.end(end_soon).await;
        // What is not done by then is done by the next run.
        let _ = tokio::time::timeout(LONGEST_REST, self.ledger.epochs.settle()).await;
    }
}

/// Receives when a target is away and when it is back, and ends the waiting.
#[async_trait]
pub trait Waits: Send + Sync {
    /// A delivery of the sink begins to wait for its target, for this reason.
    fn waiting(&self, sink: &str, error: &Error);

    /// The target has answered a delivery that has waited.
    fn back(&self, sink: &str);

    /// Waits for so long, or until the run is to end; whether it is.
    async fn pause(&self, pause: Duration) -> bool;
}

/// Epochs as a ledger: what a delivery notes are moves, whatever its chunks are.
struct EpochLedger {
    epochs: Arc<dyn Epochs>,
    /// How many deliveries were given moves.
    given: AtomicU64,
    /// Those of the deliveries that are under way.
    moves: Mutex<HashMap<u64, LaterMoves>>,
}

/// The moves of a delivery, as long as it may be tried.
struct Given<'l> {
    ledger: &'l EpochLedger,
    number: u64,
}

/// The unit of the note that says which moves a delivery makes.
const MOVES: &str = "\nmoves";

impl Given<'_> {
    /// Says which moves a delivery makes.
    fn note(&self) -> Chunk {
        Chunk { unit: MOVES.to_owned(), number: self.number }
    }
}

impl Drop for Given<'_> {
    fn drop(&mut self) {
        self.ledger.moves().remove(&self.number);
    }
}

impl EpochLedger {
    fn give(&self, moves: LaterMoves) -> Given<'_> {
        let number = self.given.fetch_add(1, Ordering::Relaxed);
        self.moves().insert(number, moves);
        Given { ledger: self, number }
    }

    fn moves(&self) -> MutexGuard<'_, HashMap<u64, LaterMoves>> {
        self.moves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Ledger for EpochLedger {
    async fn written(&self) -> Result<WrittenChunks> {
        Ok(WrittenChunks::new([], str::to_owned))
    }

    async fn written_of(&self, _: &str) -> Result<WrittenChunks> {
        self.written().await
    }

    async fn roll_back(&self, _: u64) -> Result<()> {
        Err(Error::internal("epochs are not rolled back"))
    }

    fn target(&self) -> String {
        self.epochs.target()
    }

    async fn delivery(&self, chunks: Vec<Chunk>, bad_rows: usize) -> Result<Box<dyn Delivery>> {
        let number = chunks.iter().find(|chunk| chunk.unit == MOVES).map(|chunk| chunk.number);
        let moves = number.and_then(|number| self.moves().get(&number).cloned());
        let moves = moves.ok_or_else(|| Error::internal("an epoch has no moves"))?;
        match moves.get() {
            Some(moves) => self.epochs.delivery(moves.clone(), bad_rows).await,
            None => self.epochs.delivery_ahead(moves, bad_rows).await,
        }
    }

    fn stop_waiting(&self) -> bool {
        self.epochs.stop_waiting()
    }

    fn connections(&self) -> usize {
        self.epochs.connections()
    }

    async fn forget(&self, _: &str) -> Result<()> {
        Ok(())
    }

    async fn forget_unwritten(&self, _: &str) -> Result<bool> {
        Ok(false)
    }

    fn summary(&self, rows: u64) -> String {
        self.epochs.summary(rows)
    }

    async fn loads(&self) -> Result<Vec<KnownLoad>> {
        Ok(Vec::new())
    }
}
