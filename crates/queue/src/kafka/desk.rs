//! Which partitions a consumer has, what of them was handed out, committed and acknowledged, and how positions move:
//! decisions over what the broker and the sinks report. It waits for nothing and asks nobody.
//!
//! ```text
//!  assigned ─▶ starting ─begun─▶ reading ─chunks─▶ ready ─▶ batches out ─committed by each sink─▶ acknowledged
//!                 ▲                  │
//!                 └──── restarted ◀──┘ a position stands elsewhere, a batch came back, the partition lost messages
//! ```
//!
//! A partition that starts, or starts again, has a new generation: whatever comes of an older one is dropped.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millstream_core::Reservation;
use millstream_core::positions::{Move, Position};
use millstream_core::queue::{MessageBatch, MessageId, Messages, SinkSet};

use super::state::{State, place};

/// How long a member without partitions waits for some before it takes the queue for empty.
const SETTLING: Duration = Duration::from_secs(5);

/// Messages of one partition as they were fetched.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) partition: i32,
    pub(super) generation: u64,
    pub(super) messages: Messages,
    /// The offset to continue at.
    pub(super) next: i64,
    /// The leader's epoch, of the last message, or -1.
    pub(super) epoch: i32,
    /// How many of them were handed out.
    pub(super) handed: usize,
    /// What they hold.
    pub(super) held: Option<Reservation>,
    /// Counts them as waiting until they are handed out.
    pub(super) _waits: Option<Waits>,
}

/// Bytes that wait to be handed out, counted as long as this is there.
#[derive(Debug)]
pub(super) struct Waits {
    waiting: Arc<AtomicUsize>,
    bytes: usize,
}

impl Waits {
    pub(super) fn new(waiting: &Arc<AtomicUsize>, bytes: usize) -> Self {
        waiting.fetch_add(bytes, Ordering::Relaxed);
        Waits { waiting: Arc::clone(waiting), bytes }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A start of a partition, as it was found.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) partition: i32,
    pub(super) generation: u64,
    pub(super) topic: String,
    /// For each sink: its position's version, if its target keeps positions, and the first offset that it lacks.
    pub(super) sinks: Vec<(Option<u64>, i64)>,
}

/// A start that is to be found: the partition and its generation.
pub(super) type Start = (i32, u64);

/// What a sink is known to have of a partition.
#[derive(Debug)]
struct Known {
    /// The version of its position; `None` if its target keeps none.
    version: Option<u64>,
    /// It lacks messages from this offset on.
    from: i64,
    /// Moves that were given and of which nothing was reported: the last batch of each, and the version that it names.
    given: VecDeque<(u64, u64)>,
}

#[derive(Debug)]
struct Partition {
    generation: u64,
    /// Before it has begun: empty.
    sinks: Vec<Known>,
    has_begun: bool,
    topic: String,
    /// The offset behind what was fetched.
    end: i64,
    /// The offset behind what was acknowledged.
    acknowledged: i64,
    is_at_end: bool,
}

/// A batch that was handed out.
#[derive(Debug)]
struct Out {
    partition: i32,
    first: i64,
    next: i64,
    epoch: i32,
    sinks: SinkSet,
    time: Option<i64>,
    /// Given back when the batch is acknowledged or dropped.
    _held: Option<Reservation>,
}

/// See the head of the file.
#[derive(Debug)]
pub(super) struct Desk {
    topic: String,
    partitions: BTreeMap<i32, Partition>,
    ready: VecDeque<Chunk>,
    out: BTreeMap<u64, Out>,
    generations: u64,
    batches: u64,
    /// Where each partition ended when the consumer joined.
    ends: BTreeMap<i32, i64>,
    /// When the group gave partitions last, or none.
    assigned: Option<Instant>,
    has_reached_start: bool,
    has_said_empty: bool,
}

impl Desk {
    /// A desk without partitions; `ends` is where each partition of the topic ends now.
    pub(super) fn new(topic: &str, ends: BTreeMap<i32, i64>) -> Self {
        Desk {
            topic: topic.to_owned(),
            partitions: BTreeMap::new(),
            ready: VecDeque::new(),
            out: BTreeMap::new(),
            generations: 0,
            batches: 0,
            ends,
            assigned: None,
            has_reached_start: false,
            has_said_empty: false,
        }
    }

    /// The group has given these partitions to the consumer.
    pub(super) fn assigned(&mut self, partitions: &[i32]) -> Vec<Start> {
        self.assigned = Some(Instant::now());
        partitions.iter().map(|partition| self.start(*partition)).collect()
    }

    fn start(&mut self, partition: i32) -> Start {
        self.generations += 1;
        // What is there of it is still to come.
        (self.has_reached_start, self.has_said_empty) = (false, false);
        let generation = self.generations;
        let waits = Partition {
            generation,
            sinks: Vec::new(),
            has_begun: false,
            topic: String::new(),
            end: 0,
            acknowledged: 0,
            is_at_end: false,
        };
        self.partitions.insert(partition, waits);
        (partition, generation)
    }

    /// The group has taken these partitions away: the numbers of the batches that are dropped by that.
    pub(super) fn revoked(&mut self, partitions: &[i32]) -> Vec<u64> {
        partitions.iter().for_each(|partition| drop(self.partitions.remove(partition)));
        (self.has_reached_start, self.has_said_empty) = (false, false);
        self.drop_of(partitions)
    }

    /// Drops what is ready or out of partitions: the numbers of the batches.
    fn drop_of(&mut self, partitions: &[i32]) -> Vec<u64> {
        self.ready.retain(|chunk| !partitions.contains(&chunk.partition));
        self.out.extract_if(.., |_, out| partitions.contains(&out.partition)).map(|(number, _)| number).collect()
    }

    /// Partitions start again: their starts, and the numbers of the batches that are dropped by that.
    pub(super) fn restart(&mut self, partitions: &[i32]) -> (Vec<Start>, Vec<u64>) {
        let own: Vec<i32> =
            partitions.iter().copied().filter(|partition| self.partitions.contains_key(partition)).collect();
        let dropped = self.drop_of(&own);
        (own.into_iter().map(|partition| self.start(partition)).collect(), dropped)
    }

    /// The partitions of these batches, as far as the consumer still has them.
    pub(super) fn partitions_of(&self, batches: &[u64]) -> Vec<i32> {
        let mut partitions: Vec<i32> = batches.iter().filter_map(|one| Some(self.out.get(one)?.partition)).collect();
        partitions.sort_unstable();
        partitions.dedup();
        partitions
    }

    /// Whether a batch was handed out, and neither acknowledged nor dropped.
    pub(super) fn has(&self, batch: u64) -> bool {
        self.out.contains_key(&batch)
    }

    /// Whether a start is still wanted.
    pub(super) fn wants(&self, partition: i32, generation: u64) -> bool {
        self.partitions.get(&partition).is_some_and(|one| one.generation == generation)
    }

    /// The partitions that have begun by another id of the topic.
    pub(super) fn of_other_topic(&self, id: &str) -> Vec<i32> {
        let is_other = |one: &Partition| one.has_begun && !one.topic.is_empty() && !id.is_empty() && one.topic != id;
        self.partitions.iter().filter(|(_, one)| is_other(one)).map(|(number, _)| *number).collect()
    }

    /// A start was found. Whether it is still wanted.
    pub(super) fn begin(&mut self, begun: Begun) -> bool {
        let Some(partition) = self.partitions.get_mut(&begun.partition) else { return false };
        if partition.generation != begun.generation {
            return false;
        }
        let known = |(version, from)| Known { version, from, given: VecDeque::new() };
        partition.sinks = begun.sinks.into_iter().map(known).collect();
        let lowest = partition.sinks.iter().map(|known| known.from).min().unwrap_or(0);
        (partition.end, partition.acknowledged) = (lowest, lowest);
        (partition.has_begun, partition.topic) = (true, begun.topic);
        true
    }

    /// Messages were fetched.
    pub(super) fn fetched(&mut self, mut chunk: Chunk) {
        let Some(partition) = self.partitions.get_mut(&chunk.partition) else { return };
        if partition.generation != chunk.generation || !partition.has_begun || chunk.next <= partition.end {
            return;
        }
        // The library may give messages twice after it was held back.
        chunk.handed = chunk.messages.ids().partition_point(|id| offset(id) < partition.end);
        partition.end = chunk.next;
        partition.is_at_end = false;
        self.has_said_empty = false;
        self.ready.push_back(chunk);
    }

    /// A partition has no message before `offset` that was not fetched. Behind the last message there may be markers of
    /// transactions, which the position passes with the batch before, or alone.
    pub(super) fn ended(&mut self, number: i32, generation: u64, offset: i64) {
        let Some(partition) = self.partitions.get_mut(&number).filter(|one| one.generation == generation) else {
            return;
        };
        partition.is_at_end = true;
        if offset <= partition.end {
            return;
        }
        partition.end = offset;
        let same = |chunk: &&mut Chunk| chunk.partition == number && chunk.generation == generation;
        match self.ready.iter_mut().rev().find(same) {
            Some(last) => last.next = offset,
            None => {
                let (messages, epoch) = (Messages::default(), -1);
                let chunk = Chunk {
                    partition: number,
                    generation,
                    messages,
                    next: offset,
                    epoch,
                    handed: 0,
                    held: None,
                    _waits: None,
                };
                self.ready.push_back(chunk);
            }
        }
    }

    /// The next batch, with at most `most` messages.
    pub(super) fn hand_out(&mut self, most: usize) -> Option<MessageBatch> {
        let chunk = self.ready.front_mut()?;
        let number = chunk.partition;
        let partition = self.partitions.get(&number)?;
        let ids = &chunk.messages.ids()[chunk.handed..];
        let first = ids.first().map_or(chunk.next - 1, offset);
        let sinks = lacking(&partition.sinks, first);
        // Where another sink begins to lack messages, another batch begins.
        let change = partition.sinks.iter().map(|known| known.from).filter(|from| *from > first).min();
        let alike = ids.partition_point(|id| change.is_none_or(|change| offset(id) < change));
        let (messages, next, held) = take(&mut self.ready, alike.min(most.max(1)))?;
        let time = (!messages.is_empty()).then(|| messages.time(0)).flatten();
        let (next, epoch) = next;
        self.out.insert(self.batches, Out { partition: number, first, next, epoch, sinks, time, _held: held });
        self.batches += 1;
        Some(MessageBatch { number: self.batches - 1, messages, sinks })
    }

    /// What moves a sink's positions behind these batches: one move for each partition. Asked again for the same
    /// batches before anything was reported of them, the same moves.
    pub(super) fn moves(&mut self, sink: usize, batches: &[u64]) -> Vec<Move> {
        let mut last: BTreeMap<i32, u64> = BTreeMap::new();
        for (number, out) in batches.iter().filter_map(|number| Some((*number, self.out.get(number)?))) {
            if out.sinks & bit(sink) != 0 {
                last.entry(out.partition).and_modify(|last| *last = number.max(*last)).or_insert(number);
            }
        }
        last.into_iter().filter_map(|(partition, last)| self.move_to(sink, partition, last)).collect()
    }

    fn move_to(&mut self, sink: usize, number: i32, last: u64) -> Option<Move> {
        let partition = self.partitions.get_mut(&number)?;
        let known = partition.sinks.get_mut(sink)?;
        let version = known.version?;
        let given = known.given.iter().find(|(batch, _)| *batch == last).map(|(_, from)| *from);
        let from = given.unwrap_or_else(|| {
            let from = known.given.back().map_or(version, |(_, from)| from + 1);
            known.given.push_back((last, from));
            from
        });
        let out = self.out.get(&last)?;
        let state = State::new(out.next, &partition.topic, out.epoch);
        Some(Move { place: place(&self.topic, number), from: Some(from), to: Some(state.to_text()) })
    }

    /// A sink has committed these batches, with the moves that were given for them last.
    pub(super) fn committed(&mut self, sink: usize, batches: &[u64]) {
        for number in batches {
            let Some(out) = self.out.get(number) else { continue };
            let known = self.partitions.get_mut(&out.partition).and_then(|partition| partition.sinks.get_mut(sink));
            let Some(known) = known else { continue };
            if let Some(at) = known.given.iter().position(|(batch, _)| batch == number) {
                known.version = known.given.get(at).map(|(_, from)| from + 1);
                known.given.drain(..=at);
            }
        }
    }

    /// All sinks have committed these batches: for each partition of them the offset to note for the group, if that
    /// changes.
    pub(super) fn acknowledge(&mut self, batches: &[u64]) -> Vec<(i32, i64)> {
        let mut behind: BTreeMap<i32, i64> = BTreeMap::new();
        for out in batches.iter().filter_map(|number| self.out.remove(number)) {
            behind.entry(out.partition).and_modify(|next| *next = out.next.max(*next)).or_insert(out.next);
        }
        behind.into_iter().filter_map(|(partition, next)| self.acknowledged(partition, next)).collect()
    }

    fn acknowledged(&mut self, number: i32, next: i64) -> Option<(i32, i64)> {
        let open = self.out.values().filter(|out| out.partition == number).map(|out| out.first).min();
        let partition = self.partitions.get_mut(&number)?;
        let next = open.map_or(next, |open| open.min(next));
        let is_more = next > partition.acknowledged;
        partition.acknowledged = partition.acknowledged.max(next);
        is_more.then_some((number, next))
    }

    /// Whether the consumer now stands where the queue ended when it joined, or behind that. True once, and once more
    /// after partitions came or went, or began again.
    pub(super) fn reaches_start(&mut self) -> bool {
        let is_behind = |(number, partition): (&i32, &Partition)| {
            partition.has_begun && self.ends.get(number).is_none_or(|end| partition.end >= *end)
        };
        let is_there = !self.has_reached_start && self.is_handed_out() && self.partitions.iter().all(is_behind);
        self.has_reached_start |= is_there;
        is_there
    }

    /// Whether there are now no more messages. True once for each time that it becomes so.
    pub(super) fn becomes_empty(&mut self) -> bool {
        let at_end = |partition: &Partition| partition.has_begun && partition.is_at_end;
        let is_empty = !self.has_said_empty && self.is_handed_out() && self.partitions.values().all(at_end);
        self.has_said_empty |= is_empty;
        is_empty
    }

    /// Whether it has no partition. The group gives none to a new member before the others have given some up.
    pub(super) fn has_none(&self) -> bool {
        self.partitions.is_empty()
    }

    fn is_handed_out(&self) -> bool {
        let settled = |assigned: Instant| !self.has_none() || assigned.elapsed() >= SETTLING;
        self.ready.is_empty() && self.assigned.is_some_and(settled)
    }

    /// How many messages there are behind what was acknowledged, if `end` knows where all partitions end.
    pub(super) fn behind(&self, end: impl Fn(i32) -> Option<i64>) -> Option<u64> {
        let behind = |(number, partition): (&i32, &Partition)| {
            let end = end(*number).filter(|_| partition.has_begun)?.max(partition.end);
            u64::try_from(end - partition.acknowledged).ok()
        };
        self.partitions.iter().map(behind).sum()
    }

    /// When the first message came that was handed out and is not acknowledged, in milliseconds since 1970.
    pub(super) fn oldest(&self) -> Option<i64> {
        self.out.values().filter_map(|out| out.time).min()
    }

    /// The places of these positions among its partitions.
    pub(super) fn partitions_at(&self, positions: &[Position]) -> Vec<i32> {
        let is_there = |number: &i32| positions.iter().any(|one| one.place == place(&self.topic, *number));
        self.partitions.keys().copied().filter(is_there).collect()
    }
}

fn bit(sink: usize) -> SinkSet {
    1 << sink
}

/// The sinks that lack the message at an offset.
fn lacking(sinks: &[Known], offset: i64) -> SinkSet {
    let lacking = sinks.iter().enumerate().filter(|(_, known)| known.from <= offset);
    lacking.fold(0, |set, (sink, _)| set | bit(sink))
}

fn offset(id: &MessageId) -> i64 {
    i64::try_from(id.minor).unwrap_or(i64::MAX)
}

/// Messages, the offset and the leader's epoch to go on at, and what holds them.
type Part = (Messages, (i64, i32), Option<Reservation>);

/// Takes so many messages of the first chunk. A whole one is not copied.
fn take(ready: &mut VecDeque<Chunk>, count: usize) -> Option<Part> {
    let chunk = ready.front_mut()?;
    let (from, to) = (chunk.handed, chunk.handed + count);
    if to < chunk.messages.len() {
        let part = copy(&chunk.messages, from..to);
        chunk.handed = to;
        let held = chunk.held.as_mut().map(|held| held.split(part.held()));
        return Some((part, (offset(&chunk.messages.ids()[to - 1]) + 1, chunk.epoch), held));
    }
    let chunk = ready.pop_front()?;
    let messages = if from == 0 { chunk.messages } else { copy(&chunk.messages, from..to) };
    Some((messages, (chunk.next, chunk.epoch), chunk.held))
}

/// A copy of some messages.
fn copy(messages: &Messages, range: std::ops::Range<usize>) -> Messages {
    let bytes: usize = range.clone().map(|number| messages.body(number).len()).sum();
    let mut part = Messages::with_capacity(range.len(), bytes);
    for number in range {
        let mut message = part.begin(messages.ids()[number]);
        message.time(messages.time(number).unwrap_or(-1));
        messages.key(number).into_iter().for_each(|key| message.key(key));
        messages.headers(number).for_each(|(name, value)| message.header(name, value));
        match messages.lacking().binary_search_by_key(&number, |(at, _)| *at) {
            Ok(at) => message.lacks(messages.lacking()[at].1),
            Err(_) => message.body(messages.body(number)),
        }
        message.end();
    }
    part
}

#[cfg(test)]
mod tests;
