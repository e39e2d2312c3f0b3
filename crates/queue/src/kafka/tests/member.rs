//! A member of a group as a run uses it: gathers batches into epochs, and commits them into targets in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millstream_core::positions::Positions;
use millstream_core::queue::{Consumer, Event, Joining, Lack, MessageBatch, MessageId, Messages};
use millstream_core::sink::Delivered;
use millstream_core::{Budget, Error};
use millstream_testkit::Kafka as Broker;

use super::super::consumer::KafkaConsumer;
use super::super::{Kafka, KafkaRead};
use crate::testing::{MemoryPositions, MemoryTarget};

/// How long a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(300);

/// Settings of tests.
pub(super) fn read() -> KafkaRead {
    KafkaRead::new("load")
}

/// So many bodies.
pub(super) fn bodies(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|number| format!("{{\"number\":{number}}}"))
}

/// A message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) id: MessageId,
    pub(super) body: String,
    pub(super) key: Option<String>,
    pub(super) headers: Vec<(String, String)>,
    pub(super) time: Option<i64>,
    pub(super) lack: Option<Lack>,
}

impl Seen {
    fn of(messages: &Messages, at: usize) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Seen {
            id: messages.ids()[at],
            body: text(messages.body(at)),
            key: messages.key(at).map(text),
            headers: messages.headers(at).map(|(name, value)| (text(name), text(value))).collect(),
            time: messages.time(at),
            lack: messages.lacking().iter().find(|(number, _)| *number == at).map(|(_, lack)| *lack),
        }
    }
}

/// See the head of the file.
pub(super) struct Member {
    consumer: KafkaConsumer,
    positions: Vec<Arc<MemoryPositions>>,
    open: Vec<MessageBatch>,
    /// What happened beside messages.
    pub(super) seen: Vec<String>,
}

impl Member {
    /// Joins the group of a topic, for these targets; without one, for a sink that keeps no positions.
    pub(super) async fn join(broker: &Broker, topic: &str, read: KafkaRead, targets: &[&Arc<MemoryTarget>]) -> Self {
        Self::join_at(&broker.address(), topic, read, targets).await.expect("it joins")
    }

    /// The same, at the broker of an address.
    pub(super) async fn join_at(
        address: &str,
        topic: &str,
        read: KafkaRead,
        targets: &[&Arc<MemoryTarget>],
    ) -> Result<Self, Error> {
        static PROCESSES: AtomicUsize = AtomicUsize::new(0);
        let process = format!("{:016x}", PROCESSES.fetch_add(1, Ordering::Relaxed));
        let read = KafkaRead { group: format!("{}-{topic}", read.group), ..read };
        let queue = Kafka::new(&format!("kafka://{address}/{topic}"), read).expect("a topic");
        Self::member(&queue, process, Budget::new(128 << 20), targets).await
    }

    /// The same, with a budget.
    pub(super) async fn member(
        queue: &Kafka,
        process: String,
        budget: Arc<Budget>,
        targets: &[&Arc<MemoryTarget>],
    ) -> Result<Self, Error> {
        let positions: Vec<_> = targets.iter().map(|target| target.positions(&process)).collect();
        let kept = positions.iter().map(|one| Some(Arc::clone(one) as Arc<dyn Positions>));
        let joining = Joining {
            process,
            positions: if targets.is_empty() { vec![None] } else { kept.collect() },
            budget,
            most: None,
            io: tokio::runtime::Handle::current(),
        };
        let consumer = queue.member(joining).await?;
        Ok(Member { consumer, positions, open: Vec::new(), seen: Vec::new() })
    }

    pub(super) fn consumer(&self) -> &dyn Consumer {
        &self.consumer
    }

    async fn next(&mut self, most: usize) -> Result<Option<()>, Error> {
        match tokio::time::timeout(Duration::from_millis(100), self.consumer.next(most)).await {
            Err(_) => return Ok(None),
            Ok(event) => match event? {
                Event::Messages(batch) => {
                    assert!(batch.messages.len() <= most, "more messages than were asked for");
                    self.open.push(batch);
                }
                Event::Revoked(numbers) => self.open.retain(|batch| !numbers.contains(&batch.number)),
                Event::ReachedStart => self.seen.push("start".to_owned()),
                Event::Empty => self.seen.push("empty".to_owned()),
                Event::Waiting(_) => self.seen.push("waiting".to_owned()),
                Event::Back(_) => self.seen.push("back".to_owned()),
                Event::Gap(_) => self.seen.push("gap".to_owned()),
            },
        }
        Ok(Some(()))
    }

    fn rows(&self) -> usize {
        self.open.iter().map(|batch| batch.messages.len()).sum()
    }

    /// Gathers up to so many messages, for up to two seconds.
    pub(super) async fn gather(&mut self, rows: usize) {
        let start = Instant::now();
        while self.rows() < rows && start.elapsed() < Duration::from_secs(2) {
            self.next(rows - self.rows()).await.expect("messages");
        }
    }

    /// Waits for so many messages, and commits them.
    pub(super) async fn whole_epoch(&mut self, rows: usize) {
        self.messages(rows).await;
        self.commit().await;
    }

    /// Gathers messages and commits them, as far as they come soon.
    pub(super) async fn epoch(&mut self, rows: usize) {
        self.gather(rows).await;
        self.commit().await;
    }

    /// Commits what was gathered in each target, and acknowledges it.
    pub(super) async fn commit(&mut self) {
        let open = std::mem::take(&mut self.open);
        let numbers: Vec<u64> = open.iter().map(|batch| batch.number).collect();
        for (sink, positions) in self.positions.iter().enumerate() {
            let own = |batch: &&MessageBatch| batch.sinks & (1 << sink) != 0;
            let ids: Vec<MessageId> = open.iter().filter(own).flat_map(|batch| batch.messages.ids()).copied().collect();
            let moves = self.consumer.moves(sink, &numbers);
            if moves.is_empty() {
                assert!(ids.is_empty(), "messages without moves");
                continue;
            }
            assert_eq!(moves, self.consumer.moves(sink, &numbers), "asked again, the same");
            match positions.commit(moves, &ids).await {
                Ok(Delivered::Written { .. }) => self.consumer.committed(sink, &numbers).await.expect("noted"),
                Ok(Delivered::Moved(now) | Delivered::Unknown(now)) => {
                    return self.consumer.moved(sink, &numbers, now).await.expect("noted");
                }
                Ok(other) => panic!("{other:?}"),
                Err(_) => return self.consumer.give_back(&numbers).await.expect("given back"),
            }
        }
        self.consumer.acknowledge(&numbers).await.expect("noted");
    }

    /// Acknowledges what was gathered, without a target.
    pub(super) async fn acknowledge(&mut self) {
        let numbers: Vec<u64> = self.open.drain(..).map(|batch| batch.number).collect();
        self.consumer.acknowledge(&numbers).await.expect("noted");
    }

    /// Waits for so many messages.
    pub(super) async fn messages(&mut self, count: usize) -> Vec<Seen> {
        self.until(|member| member.rows() >= count, count).await;
        let all = |batch: &MessageBatch| (0..batch.messages.len()).map(|at| Seen::of(&batch.messages, at)).collect();
        self.open.iter().flat_map(|batch| -> Vec<Seen> { all(batch) }).collect()
    }

    async fn until(&mut self, holds: impl Fn(&Self) -> bool, most: usize) {
        let start = Instant::now();
        while !holds(self) {
            assert!(start.elapsed() < PATIENCE, "waited in vain: {:?}, {} open", self.seen, self.rows());
            self.next(most.saturating_sub(self.rows()).max(1)).await.expect("messages");
        }
    }

    /// Commits epochs of so many messages until the queue is empty.
    pub(super) async fn until_empty(&mut self, rows: usize) {
        let start = Instant::now();
        self.seen.retain(|seen| seen != "empty");
        while !self.has_seen("empty") {
            assert!(start.elapsed() < PATIENCE, "waited in vain: {:?}", self.seen);
            self.next(rows).await.expect("messages");
            if self.rows() >= rows {
                self.commit().await;
            }
        }
        self.commit().await;
        // What came back after the last commit.
        if self.next(rows).await.expect("messages").is_some() {
            Box::pin(self.until_empty(rows)).await;
        }
    }

    /// Commits epochs until a target has so many messages.
    pub(super) async fn until_count(&mut self, target: &Arc<MemoryTarget>, count: usize) {
        let start = Instant::now();
        while target.committed().len() < count {
            let so_far = target.committed().len();
            assert!(start.elapsed() < PATIENCE, "{so_far} of {count}: {:?}", self.seen);
            self.epoch(5000).await;
        }
    }

    /// Commits epochs until a target's position of partition 0 is at an offset.
    pub(super) async fn until_next(&mut self, target: &Arc<MemoryTarget>, topic: &str, next: i64) {
        let start = Instant::now();
        loop {
            let positions = target.positions("test").read().await.expect("positions");
            let position = positions.iter().find(|one| one.place == format!("{topic} 0")).expect("a position");
            if position.state.contains(&format!("\"next\":{next},")) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{position:?}");
            self.epoch(10).await;
        }
    }

    /// The error that ends it.
    pub(super) async fn fails(&mut self) -> Error {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < PATIENCE, "it does not fail: {:?}", self.seen);
            if let Err(error) = self.next(10).await {
                return error;
            }
        }
    }

    /// Commits epochs until this has happened.
    pub(super) async fn until_seen(&mut self, what: &str) {
        self.until_seen_again(what, 1).await;
    }

    /// Commits epochs until this has happened so often.
    pub(super) async fn until_seen_again(&mut self, what: &str, times: usize) {
        let start = Instant::now();
        while self.count(what) < times {
            assert!(start.elapsed() < PATIENCE, "waited in vain for {what}: {:?}", self.seen);
            self.next(1000).await.expect("messages");
            self.commit().await;
        }
    }

    pub(super) fn has_seen(&self, what: &str) -> bool {
        self.count(what) > 0
    }

    pub(super) fn count(&self, what: &str) -> usize {
        self.seen.iter().filter(|seen| *seen == what).count()
    }

    pub(super) async fn leave(self) {
        Box::new(self.consumer).leave().await.expect("it leaves");
    }

    /// Ends as if the process had been killed.
    pub(super) fn kill(self) {
        self.consumer.kill();
    }
}
