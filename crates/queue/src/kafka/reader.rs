//! The thread that fetches: it alone takes messages and begins partitions, as the library wants it. It sends what it
//! finds, holds partitions back while too much waits, and never waits itself, so that the group keeps the consumer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use millstream_core::queue::{Lack, MessageId, Messages};
use millstream_core::{Budget, Error, Reservation};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::desk::{Begun, Chunk, Waits};
use super::fault::{Reaction, reaction};
use super::native::{Client, Failure, Fetcher, Notice, Raw, Taken};

/// How many bytes of messages one round takes, as far as the mean size says.
const ROUND: usize = 1 << 20;

/// The most messages of a round, and the least.
const MOST: usize = 4096;
const LEAST: usize = 16;

/// How long a round waits for messages. Commands wait for it, too.
const WAIT: Duration = Duration::from_millis(10);

/// Bytes that a message takes beside its body, about.
const BESIDE: usize = 64;

/// What may wait to be handed out: at least, and at most. The library has some, too, and fetches meanwhile.
const WINDOW: (usize, usize) = (1 << 20, 8 << 20);

/// After so long, partitions are held back: then the group hears of the consumer, and what the library has fetched
/// ahead is dropped. Most transactions of a target take less.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the thread is to do.
#[derive(Debug)]
pub(super) enum Command {
    /// Fetch a partition from an offset on, of an epoch of its leader.
    Begin { partition: i32, generation: u64, offset: i64, epoch: i32 },
    /// Note for the group where partitions stand.
    Note(Vec<(i32, i64)>),
    /// Leave the group, answer, and end.
    Leave(oneshot::Sender<()>),
    /// End as if the process had been killed.
    #[cfg(test)]
    Kill,
}

/// What the consumer hears of.
#[derive(Debug)]
pub(super) enum Report {
    /// The group has given partitions.
    Assigned(Vec<i32>),
    /// The group has taken partitions away.
    Revoked(Vec<i32>),
    /// A start was found, and where to fetch from.
    Begun(Begun, i64, i32),
    /// A partition has lost messages, and the settings say that this is no error.
    Gap(Error),
    /// Messages.
    Fetched(Chunk),
    /// A partition has no more messages before an offset.
    Ended { partition: i32, generation: u64, offset: i64 },
    /// A partition has no message where it was to be read.
    OutOfRange { partition: i32, generation: u64 },
    /// Brokers may be out of reach.
    Trouble,
    /// The topic has this id now.
    Topic(String),
    /// Something is waited for.
    Waiting(Error),
    /// It is there again, after this time.
    Back(Duration),
    /// The library gives up.
    Failed(Failure),
    /// The consumer cannot continue.
    Error(Error),
}

/// See the head of the file.
pub(super) struct Reader {
    pub(super) client: Arc<Client>,
    pub(super) fetcher: Fetcher,
    pub(super) commands: Receiver<Command>,
    pub(super) reports: UnboundedSender<Report>,
    pub(super) budget: Arc<Budget>,
    pub(super) state: ReaderState,
}

/// What the thread remembers.
#[derive(Default)]
pub(super) struct ReaderState {
    /// Of each partition that is fetched.
    generations: BTreeMap<i32, u64>,
    /// Where each of them continues.
    places: BTreeMap<i32, FetchPlace>,
    /// What was noted for the group of partitions that it still has.
    noted: BTreeMap<i32, i64>,
    /// Bytes that wait to be handed out.
    waiting: Arc<AtomicUsize>,
    /// The mean size of a message.
    mean: usize,
    full_since: Option<Instant>,
    is_held: bool,
}

/// Where a partition continues.
#[derive(Clone, Copy)]
struct FetchPlace {
    /// The offset behind what was taken.
    next: i64,
    /// The epoch of the leader, of the last message, or -1.
    epoch: i32,
    /// The library may have passed over the next message. If a batch ends with the end of a partition, the library
    /// believes that the message there was taken, too; when it holds the partition back (as it does at each rebalance,
    /// and for us), it continues behind that. Seen with librdkafka 2.12.1.
    is_doubtful: bool,
}

/// Messages of a partition in a round.
struct Gathered {
    partition: i32,
    messages: Messages,
    /// The offset of the first one.
    first: i64,
    next: i64,
    epoch: i32,
}

/// Whether the thread continues.
#[derive(PartialEq, Eq)]
enum Flow {
    Continue,
    End,
}

impl Reader {
    /// Fetches until a command says to end, or the consumer was dropped.
    pub(super) fn run(mut self) {
        if let Err(failure) = self.fetcher.subscribe() {
            self.report(Report::Failed(failure));
        }
        while self.obey() == Flow::Continue {
            match self.room() {
                Some(room) => {
                    self.let_go();
                    self.round(self.most(), WAIT);
                    drop(room);
                }
                None => self.wait_for_room(),
            }
            self.hear();
        }
    }

    fn report(&self, report: Report) {
        // Without a receiver the consumer was dropped, which the next look at the commands shows.
        let _ = self.reports.send(report);
    }

    /// Does what it is told.
    fn obey(&mut self) -> Flow {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Begin { partition, generation, offset, epoch }) => {
                    self.state.generations.insert(partition, generation);
                    self.state.places.insert(partition, FetchPlace { next: offset, epoch, is_doubtful: false });
                    if let Err(failure) = self.fetcher.begin(partition, offset, epoch) {
                        self.report(Report::Failed(failure));
                    }
                }
                Ok(Command::Note(offsets)) => {
                    self.state.noted.extend(offsets.iter().copied());
                    self.client.note(offsets);
                }
                Ok(Command::Leave(done)) => {
                    if !self.state.noted.is_empty() {
                        self.client.note_and_wait(std::mem::take(&mut self.state.noted));
                    }
                    self.fetcher.close();
                    let _ = done.send(());
                    return Flow::End;
                }
                #[cfg(test)]
                Ok(Command::Kill) => {
                    self.client.kill();
                    return Flow::End;
                }
                Err(TryRecvError::Empty) => return Flow::Continue,
                Err(TryRecvError::Disconnected) => return Flow::End,
            }
        }
    }

    /// Room for a round; `None` if too much waits already. Partitions that were held back stay so until half of it is
    /// gone: what the library had fetched ahead was dropped, and is fetched again.
    fn room(&self) -> Option<Option<Reservation>> {
        let waiting = self.state.waiting.load(Ordering::Relaxed);
        let window = (self.budget.limit() / 8).clamp(WINDOW.0, WINDOW.1);
        let window = if self.state.is_held { window / 2 } else { window };
        if waiting >= window {
            return None;
        }
        let bytes = ROUND.min(self.budget.limit() / 4);
        let room = self.budget.reserve_now(bytes);
        // Nothing is handed out while nothing waits: then the budget is others', and one message is let through.
        if room.is_none() && (waiting > 0 || self.budget.used() > 0) { None } else { Some(room) }
    }

    /// How many messages the next round takes.
    fn most(&self) -> usize {
        (ROUND / self.state.mean.max(1)).clamp(LEAST, MOST)
    }

    fn let_go(&mut self) {
        self.state.full_since = None;
        if std::mem::take(&mut self.state.is_held) {
            self.fetcher.hold(false);
            self.doubt();
        }
    }

    /// Partitions were held back.
    fn doubt(&mut self) {
        self.state.places.values_mut().for_each(|place| place.is_doubtful = true);
    }

    /// Whether the library has not passed over anything before `first`. Otherwise the partition is fetched once more
    /// from where it continues: what is missing then is a gap of the partition itself.
    fn is_continued(&mut self, partition: i32, first: i64, next: i64, next_epoch: i32) -> bool {
        let Some(place) = self.state.places.get_mut(&partition) else { return true };
        if place.is_doubtful && first > place.next {
            place.is_doubtful = false;
            let FetchPlace { next, epoch, .. } = *place;
            if let Err(failure) = self.fetcher.begin(partition, next, epoch) {
                self.report(Report::Failed(failure));
            }
            return false;
        }
        *place = FetchPlace { next: next.max(place.next), epoch: next_epoch.max(place.epoch), is_doubtful: false };
        true
    }

    /// Too much waits. What the library has fetched stands before what the group says, so after a while partitions are
    /// held back, and rounds show what the group says.
    fn wait_for_room(&mut self) {
        let since = *self.state.full_since.get_or_insert_with(Instant::now);
        if since.elapsed() < PATIENCE {
            return std::thread::sleep(Duration::from_millis(2));
        }
        if !self.state.is_held {
            self.state.is_held = true;
            self.fetcher.hold(true);
        }
        self.round(LEAST, WAIT);
    }

    /// Takes messages, and sends them by partition.
    fn round(&mut self, most: usize, wait: Duration) {
        let (mut gathered, mut others) = (Vec::<Gathered>::new(), Vec::new());
        let (generations, mean) = (&self.state.generations, self.state.mean);
        self.fetcher.take(most, wait, |taken, left| match taken {
            Taken::Message(message) => add(&mut gathered, message, || room(left, mean)),
            Taken::End(partition, offset) => {
                let generation = generations.get(&partition).copied();
                others.extend(generation.map(|generation| Report::Ended { partition, generation, offset }));
            }
            Taken::Failed(partition, failure) => others.extend(failed(partition, generations, failure)),
        });
        if self.client.was_rebalanced() {
            self.doubt();
        }
        for one in gathered {
            if self.is_continued(one.partition, one.first, one.next, one.epoch) {
                self.send(one);
            }
        }
        for report in others {
            let is_continued = match report {
                Report::Ended { partition, offset, .. } => self.is_continued(partition, offset, offset, -1),
                _ => true,
            };
            if is_continued {
                self.report(report);
            }
        }
    }

    fn send(&mut self, gathered: Gathered) {
        let Gathered { partition, messages, next, epoch, .. } = gathered;
        let Some(generation) = self.state.generations.get(&partition).copied() else { return };
        let bytes = messages.held();
        self.state.mean = (self.state.mean + messages.text().len() / messages.len().max(1) + BESIDE) / 2;
        let held = Some(Reservation::of_taken(&self.budget, bytes));
        let _waits = Some(Waits::new(&self.state.waiting, bytes));
        self.report(Report::Fetched(Chunk { partition, generation, messages, next, epoch, handed: 0, held, _waits }));
    }

    /// Passes on what the library has to say beside messages.
    fn hear(&mut self) {
        for notice in self.client.notices() {
            match notice {
                Notice::Assigned(partitions) => self.report(Report::Assigned(partitions)),
                Notice::Revoked(partitions) => {
                    for partition in &partitions {
                        self.state.generations.remove(partition);
                        self.state.places.remove(partition);
                        self.state.noted.remove(partition);
                    }
                    self.report(Report::Revoked(partitions));
                }
                Notice::Error(failure) => match reaction(&failure) {
                    Reaction::Nothing => {}
                    Reaction::End => self.report(Report::Failed(failure)),
                    Reaction::Wait | Reaction::OutOfRange | Reaction::NoTopic => self.report(Report::Trouble),
                },
            }
        }
    }
}

/// What an error of a partition means.
fn failed(partition: i32, generations: &BTreeMap<i32, u64>, failure: Failure) -> Option<Report> {
    match (reaction(&failure), generations.get(&partition)) {
        (Reaction::End, _) => Some(Report::Failed(failure)),
        (Reaction::OutOfRange, Some(&generation)) => Some(Report::OutOfRange { partition, generation }),
        (Reaction::Wait | Reaction::NoTopic, _) => Some(Report::Trouble),
        _ => None,
    }
}

/// Room for `count` messages, which take `mean` bytes each: a little more, since they differ.
fn room(count: usize, mean: usize) -> Messages {
    Messages::with_capacity(count, count * (mean + mean / 8))
}

/// Adds a message to those of its partition.
fn add(gathered: &mut Vec<Gathered>, raw: Raw<'_>, room: impl Fn() -> Messages) {
    let partition = raw.partition();
    // Messages of a partition follow each other.
    let at = gathered.iter().rposition(|one| one.partition == partition).unwrap_or_else(|| {
        let first = raw.offset();
        gathered.push(Gathered { partition, messages: room(), first, next: 0, epoch: -1 });
        gathered.len() - 1
    });
    let one = &mut gathered[at];
    (one.next, one.epoch) = (raw.offset() + 1, raw.leader_epoch());
    add_message(&mut one.messages, raw);
}

/// Adds a message.
pub(super) fn add_message(messages: &mut Messages, raw: Raw<'_>) {
    let number = |number: i64| u64::try_from(number).unwrap_or(0);
    let id = MessageId { major: number(i64::from(raw.partition())), minor: number(raw.offset()) };
    let mut message = messages.begin(id);
    message.time(raw.time());
    raw.key().into_iter().for_each(|key| message.key(key));
    raw.headers(|name, value| message.header(name, value));
    match raw.body() {
        Some(body) => message.body(body),
        None => message.lacks(Lack::Null),
    }
    message.end();
}
