//! What the tasks of one consumer share: where it reads, what it has seen, and the way to the consumer.
//!
//! ```text
//!  reader ──┐                         ┌─▶ keeper: acknowledges
//!  claimer ─┼─▶ told ─▶ consumer ─────┘
//!  beat ────┘   (a window limits what waits there)
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::positions::{Moved, Position, Positions};
use millstream_core::queue::{Joining, Messages, SinkSet};
use millstream_core::{Error, Reservation, Result};
use tokio::sync::mpsc::UnboundedSender;

use super::gaps::Seen;
use super::link::{Change, Link, Outage, Pauses};
use super::place::Place;
use super::ranges::Ranges;
use super::reply::EntryId;
use super::rows::{GroupState, Rows};
use super::spec::{OnGap, RedisRead};
use super::stream::Stream;
use super::waiting::{Came, Window};

/// About how many bytes are read at once: the server writes its log after each read.
const READ_BYTES: usize = 3 << 20;

/// The most messages that are read at once: the server does nothing else meanwhile.
const MOST_AT_ONCE: usize = 10_000;

/// How soon it is seen that messages may be read which another task has not read.
const LOOK: Duration = Duration::from_millis(50);

/// What a message takes before any has been seen, in bytes.
const FIRST_MEAN: usize = 4096;

/// What a message takes beside its body, in bytes.
const BESIDE_BODY: usize = 64;

/// The time in which the name of a consumer is used.
#[derive(Debug)]
pub(super) struct Life {
    /// Its number, from 1.
    pub(super) number: u64,
    pub(super) name: String,
}

/// What a task says to the consumer, and in which life; 0 for those that outlive one.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) life: u64,
    pub(super) what: What,
}

/// What happened.
#[derive(Debug)]
pub(super) enum What {
    Came(Box<Came>),
    Empty,
    ReachedStart,
    Gap(Error),
    Change(Change),
    /// The name must not be used any more.
    Over,
    Failed(Error),
}

/// What all tasks of a consumer share.
pub(super) struct Shared {
    pub(super) place: Arc<Place>,
    pub(super) stream: Stream,
    /// The stream, for messages.
    pub(super) shown: String,
    pub(super) settings: RedisRead,
    pub(super) joining: Joining,
    pub(super) told: UnboundedSender<Told>,
    pub(super) window: Window,
    /// What was the last entry of the stream when the consumer joined.
    pub(super) end_at_start: EntryId,
    /// Whether that was reached.
    pub(super) has_reached_start: AtomicBool,
    /// Whether entries of consumers that may be dead may still come.
    pub(super) is_open: AtomicBool,
    /// Whether nothing has come since the consumer heard that there is nothing.
    pub(super) is_empty: AtomicBool,
    outage: Arc<Outage>,
    seen: Mutex<Seen>,
    mean: AtomicUsize,
    /// How many messages may still be read, if not all.
    left: Option<AtomicUsize>,
    /// Messages that the group has not read; the largest number if that is not known.
    lag: AtomicU64,
}

impl Shared {
    pub(super) fn new(
        place: Arc<Place>,
        stream: Stream,
        settings: RedisRead,
        joining: Joining,
        told: UnboundedSender<Told>,
        (seen, end_at_start): (Seen, EntryId),
    ) -> Self {
        let window = Window::new(joining.budget.limit() / 8);
        Shared {
            shown: shown(&place, &stream.key),
            left: joining.most.map(AtomicUsize::new),
            place,
            stream,
            settings,
            joining,
            told,
            window,
            end_at_start,
            has_reached_start: AtomicBool::new(false),
            is_open: AtomicBool::new(true),
            is_empty: AtomicBool::new(false),
            outage: Arc::default(),
            seen: Mutex::new(seen),
            mean: AtomicUsize::new(FIRST_MEAN),
            lag: AtomicU64::new(u64::MAX),
        }
    }

    /// A connection that the server knows by `name`. What happens to the server outlives the consumer's names.
    pub(super) fn link(self: &Arc<Self>, name: &str) -> Link {
        let shared = Arc::clone(self);
        let changes = move |change| shared.tell(0, What::Change(change));
        Link::new(Arc::clone(&self.place), name, Arc::clone(&self.outage), Box::new(changes))
    }

    /// Says something to the consumer. One that is not there any more does not need it.
    pub(super) fn tell(&self, life: u64, what: What) {
        let _ = self.told.send(Told { life, what });
    }

    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The group has come so far.
    pub(super) fn note_position(&self, position: EntryId) {
        let mut seen = self.seen();
        seen.position = seen.position.max(position);
    }

    /// All sinks.
    pub(super) fn all_sinks(&self) -> SinkSet {
        (0..self.joining.positions.len()).fold(0, |set, bit| set | 1 << bit)
    }

    /// The sinks that keep positions.
    pub(super) fn targets(&self) -> impl Iterator<Item = &Arc<dyn Positions>> {
        self.joining.positions.iter().flatten()
    }

    /// How many messages are read at once.
    pub(super) fn count(&self) -> usize {
        (READ_BYTES / self.mean.load(Ordering::Relaxed).max(1)).clamp(1, MOST_AT_ONCE)
    }

    /// A buffer for so many messages.
    pub(super) fn buffer(&self, count: usize) -> Messages {
        Messages::with_capacity(count, count * self.mean.load(Ordering::Relaxed))
    }

    /// How many messages may be read at once; waits for ever once no more are to be read. What a read has not brought
    /// is [given back](Self::not_read).
    pub(super) async fn allowed(&self) -> usize {
        let Some(left) = &self.left else { return self.count() };
        loop {
            match left.swap(0, Ordering::SeqCst) {
                0 => tokio::time::sleep(LOOK).await,
                count => return count,
            }
        }
    }

    /// So many messages that were [allowed](Self::allowed) were not read.
    pub(super) fn not_read(&self, count: usize) {
        if let Some(left) = &self.left {
            left.fetch_add(count, Ordering::SeqCst);
        }
    }

    /// Waits until there is room for so many messages.
    pub(super) async fn room(&self, count: usize) -> Reservation {
        self.window.open().await;
        self.joining.budget.admitted().await;
        self.joining.budget.reserve(count * self.mean.load(Ordering::Relaxed)).await
    }

    /// Hands messages over, for which there is `room`.
    pub(super) fn came(
        &self,
        life: u64,
        messages: Messages,
        from: Option<EntryId>,
        sinks: SinkSet,
        mut room: Reservation,
    ) {
        let held = messages.held() + messages.len() * BESIDE_BODY;
        match room.bytes().checked_sub(held) {
            Some(more) => room.shrink(more),
            // It has come, so it is held already.
            None => room = Reservation::of_taken(&self.joining.budget, held),
        }
        self.window.add(held);
        self.is_empty.store(false, Ordering::SeqCst);
        self.tell(life, What::Came(Box::new(Came::new(messages, from, sinks, room))));
    }

    /// Takes note of how large messages are.
    pub(super) fn note_mean(&self, messages: &Messages) {
        let now = (messages.text().len() / messages.len().max(1)).max(1) + BESIDE_BODY;
        let before = self.mean.load(Ordering::Relaxed);
        // Larger ones count at once, smaller ones by and by.
        self.mean.store(if now > before { now } else { (before * 3 + now) / 4 }, Ordering::Relaxed);
    }

    pub(super) fn set_lag(&self, lag: Option<u64>) {
        self.lag.store(lag.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(super) fn lag(&self) -> Option<u64> {
        Some(self.lag.load(Ordering::Relaxed)).filter(|lag| *lag != u64::MAX)
    }

    /// The queue has lost messages: an error, or an event.
    pub(super) fn lost(&self, life: u64, error: Error) -> Result<()> {
        match self.settings.on_gap {
            OnGap::Fail => Err(error),
            OnGap::Warn => {
                self.tell(life, What::Gap(error));
                Ok(())
            }
        }
    }

    /// The rows that targets have now, for each sink.
    pub(super) async fn glance(&self) -> Result<Vec<Option<Rows>>> {
        let mut all = Vec::with_capacity(self.joining.positions.len());
        for positions in &self.joining.positions {
            all.push(match positions {
                None => None,
                Some(positions) => Some(self.rows(&positions.glance().await?)?),
            });
        }
        Ok(all)
    }

    /// What is committed in each sink. Waits for targets that cannot be reached.
    ///
    /// Transactions that are open are not waited for: one of a stopped process may stay so, and those that have had an
    /// entry before it was claimed are fenced, so none of them is open.
    pub(super) async fn committed(&self) -> Result<Vec<Option<Ranges>>> {
        let mut pauses = Pauses::default();
        loop {
            match self.glance().await {
                Ok(targets) => return Ok(targets.iter().map(|rows| rows.as_ref().map(Rows::committed)).collect()),
                Err(error) => pauses.pause(error).await?,
            }
        }
    }

    /// The rows of the stream among positions.
    pub(super) fn rows(&self, positions: &[Position]) -> Result<Rows> {
        Rows::of(&self.stream.key, positions)
    }

    /// Changes what all targets keep of the group; whether the first one was changed now. `change` says whether there
    /// is something to change. It is no fault if others change it meanwhile. Waits for targets that cannot be reached.
    pub(super) async fn change_group(&self, change: impl Fn(&mut GroupState) -> bool) -> Result<bool> {
        let mut first = None;
        for positions in self.targets() {
            let (mut pauses, mut is_unsure) = (Pauses::default(), false);
            let is_done = loop {
                match self.change_group_of(positions.as_ref(), &change).await {
                    // A try whose answer was lost may have changed it.
                    Ok(is_done) => break is_done || is_unsure,
                    Err(error) => pauses.pause(error).await?,
                }
                is_unsure = true;
            };
            first.get_or_insert(is_done);
        }
        Ok(first.unwrap_or(true))
    }

    async fn change_group_of(
        &self,
        positions: &dyn Positions,
        change: &impl Fn(&mut GroupState) -> bool,
    ) -> Result<bool> {
        for _ in 0..3 {
            let rows = self.rows(&positions.glance().await?)?;
            let Some(group) = &rows.group else { break };
            let mut state = group.state.clone();
            if !change(&mut state) {
                break;
            }
            if positions.set(vec![rows.group_to(&self.stream.key, &state)]).await? == Moved::All {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes the rows of a consumer in all targets that know it, so that it can never commit again. A transaction of
    /// its own is waited for so long.
    pub(super) async fn fence(&self, name: &str, wait: Duration) -> Result<()> {
        for positions in self.targets() {
            // Rows are made before a consumer reads, and never again.
            if !self.rows(&positions.glance().await?)?.knows(name) {
                continue;
            }
            let (stream, name) = (self.stream.key.clone(), name.to_owned());
            let place = super::rows::consumer_place(&name, &stream);
            let change = move |positions: &[Position]| {
                Ok(Rows::of(&stream, positions)?.removes(&stream, &name, &Ranges::default(), true))
            };
            positions.fence(&place, wait, Box::new(change)).await?;
        }
        Ok(())
    }
}

/// The stream `key` of a server, for messages.
pub fn shown(place: &Place, key: &str) -> String {
    format!("stream {} of {}", millstream_core::error::one_line(key), place.server.shown)
}
