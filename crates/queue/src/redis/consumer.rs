//! A consumer of a stream: hands out what its tasks bring, and begins anew under another name when the one that it has
//! must not be used any more.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use millstream_core::positions::{Move, Moved, Position, Positions};
use millstream_core::queue::{Consumer, Event, Lag, MessageBatch};
use millstream_core::{Error, ErrorKind, Result};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::book::Book;
use super::keeper::{self, Acknowledged, Confirmed};
use super::link::{Change, Pauses};
use super::ranges::Ranges;
use super::reply::EntryId;
use super::rows::{NAME_PREFIX, Rows, consumer_place};
use super::shared::{Life, Shared, Told, What};
use super::stream::entry_ids;
use super::waiting::{Came, Part};
use super::{claimer, reader};

/// How long a consumer that leaves waits for its acknowledgements, and for the server otherwise.
const FAREWELL: Duration = Duration::from_secs(30);

/// A name for a consumer, which no other one has ever had.
fn new_name(process: &str) -> String {
    // The keys of the hasher are random, from the system.
    let random = std::collections::hash_map::RandomState::new();
    let mut hasher = random.build_hasher();
    hasher.write_u128(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos());
    let host = fs_err::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String =
        host.trim().chars().filter(|c| c.is_ascii_alphanumeric() || ".-".contains(*c)).take(64).collect();
    let host = if host.is_empty() { "host" } else { host.as_str() };
    format!("{NAME_PREFIX}{host}-{process}-{:016x}", hasher.finish())
}

/// A consumer of a stream of Redis.
pub(super) struct RedisConsumer {
    shared: Arc<Shared>,
    book: Book,
    /// The number of the life that is there, or begins.
    life: u64,
    state: State,
    told: UnboundedReceiver<Told>,
    /// What is to be reported next.
    events: VecDeque<Event>,
    /// What has come, and was not handed out yet.
    waiting: VecDeque<Came>,
    acknowledged: UnboundedSender<Acknowledged>,
    confirmed: Confirmed,
    keeper: JoinSet<()>,
}

enum State {
    Alive(JoinSet<()>),
    Begins(JoinSet<Result<Begun>>),
}

/// A name that is registered.
struct Begun {
    life: Arc<Life>,
    versions: Vec<Option<u64>>,
    /// Names of which no target says that they are dead.
    left: Vec<String>,
}

impl RedisConsumer {
    /// Registers a name, and begins to read.
    pub(super) async fn begin(
        shared: Arc<Shared>,
        told: UnboundedReceiver<Told>,
        events: Vec<Event>,
        added: u64,
    ) -> Result<Self> {
        let begun = begin(&shared, 1, added).await?;
        let (acknowledged, entries) = unbounded_channel();
        let (confirmed, mut keeper) = (Confirmed::default(), JoinSet::new());
        let io = shared.joining.io.clone();
        keeper.spawn_on(keeper::acknowledge(Arc::clone(&shared), entries, Arc::clone(&confirmed)), &io);
        let mut consumer = RedisConsumer {
            book: Book::new(&shared.stream.key),
            shared,
            life: 1,
            state: State::Alive(JoinSet::new()),
            told,
            events: events.into(),
            waiting: VecDeque::new(),
            acknowledged,
            confirmed,
            keeper,
        };
        consumer.live(begun);
        Ok(consumer)
    }

    /// Starts the tasks of a life.
    fn live(&mut self, begun: Begun) {
        let Begun { life, versions, left } = begun;
        self.book.begin(&life.name, &versions);
        let (mut tasks, shared) = (JoinSet::new(), &self.shared);
        let io = &shared.joining.io;
        let acknowledged = || self.acknowledged.clone();
        tasks.spawn_on(reader::read(Arc::clone(shared), Arc::clone(&life), acknowledged()), io);
        tasks.spawn_on(claimer::watch(Arc::clone(shared), Arc::clone(&life), left, acknowledged()), io);
        for positions in shared.targets() {
            tasks.spawn_on(keeper::beat(Arc::clone(shared), Arc::clone(&life), Arc::clone(positions)), io);
        }
        self.state = State::Alive(tasks);
    }

    /// The name must not be used any more: what was handed out is revoked, and a new life begins.
    fn end_life(&mut self) {
        if matches!(self.state, State::Begins(_)) {
            return;
        }
        let (name, revoked) = self.book.end();
        if !revoked.is_empty() {
            self.events.push_back(Event::Revoked(revoked));
        }
        for came in self.waiting.drain(..) {
            self.shared.window.take(came.bytes());
        }
        self.life += 1;
        let (shared, number) = (Arc::clone(&self.shared), self.life);
        shared.is_open.store(true, Ordering::SeqCst);
        // What was dropped is still to come.
        shared.has_reached_start.store(false, Ordering::SeqCst);
        shared.is_empty.store(false, Ordering::SeqCst);
        let mut task = JoinSet::new();
        let begins = async move { begin_anew(&shared, number, name).await };
        task.spawn_on(begins, &self.shared.joining.io);
        self.state = State::Begins(task);
    }

    /// Takes note of what was confirmed.
    fn note_confirmed(&mut self) {
        let confirmed = std::mem::take(&mut *self.confirmed.lock().unwrap_or_else(PoisonError::into_inner));
        confirmed.into_iter().for_each(|batch| self.book.confirmed(batch));
    }

    /// What a task says, as an event if it is one at once.
    fn take(&mut self, told: Told) -> Result<Option<Event>> {
        if told.life != 0 && told.life != self.life {
            if let What::Came(came) = told.what {
                self.shared.window.take(came.bytes());
            }
            return Ok(None);
        }
        Ok(match told.what {
            What::Came(came) => {
                self.waiting.push_back(*came);
                None
            }
            What::Over => {
                self.end_life();
                None
            }
            What::Failed(error) => return Err(error),
            What::Empty => Some(Event::Empty),
            What::ReachedStart => Some(Event::ReachedStart),
            What::Gap(error) => Some(Event::Gap(error)),
            What::Change(Change::Waiting(error)) => Some(Event::Waiting(error)),
            What::Change(Change::Back(time)) => Some(Event::Back(time)),
        })
    }

    /// Hands out up to `most` of the messages that wait.
    fn hand_out(&mut self, most: usize) -> Option<Event> {
        let came = self.waiting.front_mut()?;
        let before = came.bytes();
        let Part { messages, ranges, sinks, room } = came.take(most);
        self.shared.window.take(before - came.bytes());
        if came.is_over() {
            self.waiting.pop_front();
        }
        let number = self.book.hand_out(entry_ids(messages.ids()), ranges, sinks, room);
        Some(Event::Messages(MessageBatch { number, messages, sinks }))
    }
}

#[async_trait]
impl Consumer for RedisConsumer {
    async fn next(&mut self, most: usize) -> Result<Event> {
        loop {
            self.note_confirmed();
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            if let Some(event) = self.hand_out(most) {
                return Ok(event);
            }
            let told = match &mut self.state {
                State::Begins(task) => match task.join_next().await {
                    Some(Ok(begun)) => {
                        self.live(begun?);
                        continue;
                    }
                    _ => return Err(Error::internal("the consumer could not begin anew")),
                },
                State::Alive(_) => match self.told.try_recv() {
                    Ok(told) => Some(told),
                    Err(_) => {
                        self.shared.window.lacks();
                        self.told.recv().await
                    }
                },
            };
            let told = told.ok_or_else(|| Error::internal("the tasks of a consumer have ended"))?;
            if let Some(event) = self.take(told)? {
                return Ok(event);
            }
        }
    }

    fn has(&self, batch: u64) -> bool {
        self.book.has(batch)
    }

    fn moves(&mut self, sink: usize, batches: &[u64]) -> Vec<Move> {
        self.note_confirmed();
        self.book.moves(sink, batches)
    }

    async fn committed(&mut self, sink: usize, batches: &[u64]) -> Result<()> {
        self.book.committed(sink, batches);
        Ok(())
    }

    async fn moved(&mut self, _sink: usize, batches: &[u64], _positions: Vec<Position>) -> Result<()> {
        self.give_back(batches).await
    }

    async fn give_back(&mut self, batches: &[u64]) -> Result<()> {
        if batches.iter().any(|batch| self.book.has(*batch)) {
            self.end_life();
        }
        Ok(())
    }

    async fn acknowledge(&mut self, batches: &[u64]) -> Result<()> {
        for batch in batches {
            let Some(ids) = self.book.acknowledge(*batch) else { continue };
            let _ = self.acknowledged.send(Acknowledged { batch: Some(*batch), ids });
        }
        Ok(())
    }

    fn lag(&self) -> Lag {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let age = |id: EntryId| now.saturating_sub(Duration::from_millis(id.milliseconds));
        Lag { messages: self.shared.lag(), oldest: self.book.oldest().map(age) }
    }

    async fn leave(mut self: Box<Self>) -> Result<()> {
        let Some((name, confirmed)) = self.stop().await else { return Ok(()) };
        let shared = Arc::clone(&self.shared);
        for (positions, confirmed) in shared.joining.positions.iter().zip(confirmed) {
            if let Some(positions) = positions {
                unless_away(remove(&shared, positions.as_ref(), &name, confirmed)).await?;
            }
        }
        // Without the server the others find out later.
        if let Ok(Ok(true)) = timeout(FAREWELL, remove_from_group(&shared, &name)).await {
            unless_away(async { shared.change_group(|group| group.gone.remove(&name)).await.map(drop) }).await?;
        }
        Ok(())
    }
}

/// Says farewell to a target. From one that is away the others find out later that the consumer is dead.
async fn unless_away(farewell: impl Future<Output = Result<()>>) -> Result<()> {
    match timeout(FAREWELL, farewell).await {
        Ok(Err(error)) if error.kind() != ErrorKind::Transient => Err(error),
        _ => Ok(()),
    }
}

impl RedisConsumer {
    /// Stops reading, and waits for acknowledgements. Gives the name, if there is one, and for each sink what its row
    /// has though it is acknowledged.
    async fn stop(&mut self) -> Option<(String, Vec<Ranges>)> {
        match &mut self.state {
            State::Alive(tasks) => tasks.shutdown().await,
            State::Begins(task) => task.shutdown().await,
        }
        // The keeper ends when nobody can give it anything.
        self.acknowledged = unbounded_channel().0;
        let _ = timeout(FAREWELL, self.keeper.join_next()).await;
        self.note_confirmed();
        let confirmed = (0..self.shared.joining.positions.len()).map(|sink| self.book.confirmed_in_row(sink)).collect();
        Some((self.book.end().0?, confirmed))
    }
}

/// Removes the rows of a consumer that leaves. What it has committed stays, except for what is `confirmed`.
async fn remove(shared: &Shared, positions: &dyn Positions, name: &str, confirmed: Ranges) -> Result<()> {
    let (stream, owned) = (shared.stream.key.clone(), name.to_owned());
    let change =
        move |positions: &[Position]| Ok(Rows::of(&stream, positions)?.removes(&stream, &owned, &confirmed, true));
    positions.fence(&consumer_place(name, &shared.stream.key), FAREWELL, Box::new(change)).await
}

/// Removes a consumer from the group, if it has no entries; whether it did.
async fn remove_from_group(shared: &Arc<Shared>, name: &str) -> Result<bool> {
    let mut link = shared.link(name);
    loop {
        let connection = link.ready().await?;
        match shared.stream.remove(connection, name).await {
            Ok(is_removed) => return Ok(is_removed),
            Err(fault) => link.failed(fault, &format!("leaving {}", shared.shown)).await?,
        }
    }
}

/// Registers a new name in all targets: only then anything is read or claimed under it.
async fn begin(shared: &Shared, number: u64, added: u64) -> Result<Begun> {
    let name = new_name(&shared.joining.process);
    let mut versions = Vec::new();
    for positions in &shared.joining.positions {
        versions.push(match positions {
            None => None,
            Some(positions) => {
                register(shared, positions.as_ref(), &name, added).await?;
                Some(1)
            }
        });
    }
    Ok(Begun { life: Arc::new(Life { number, name }), versions, left: Vec::new() })
}

async fn register(shared: &Shared, positions: &dyn Positions, name: &str, added: u64) -> Result<()> {
    loop {
        let rows = shared.rows(&positions.glance().await?)?;
        // The answer to an earlier try may have been lost; the group may be new to several at once.
        let is_there = rows.consumers.contains_key(name);
        if is_there || positions.set(rows.registers(&shared.stream.key, name, added)).await? == Moved::All {
            return Ok(());
        }
    }
}

/// Removes the rows of the former name, and registers another one. Waits for targets.
async fn begin_anew(shared: &Shared, number: u64, former: Option<String>) -> Result<Begun> {
    let added = shared.seen().added;
    let wait = shared.settings.claim_after.0;
    let mut pauses = Pauses::default();
    if let Some(name) = &former {
        while let Err(error) = shared.fence(name, wait).await {
            pauses.pause(error).await?;
        }
    }
    loop {
        match begin(shared, number, added).await {
            Ok(begun) => return Ok(Begun { left: Vec::from_iter(former), ..begun }),
            Err(error) => pauses.pause(error).await?,
        }
    }
}
