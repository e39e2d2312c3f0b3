//! Consumers of a real server, and a target in memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millstream_core::positions::Positions;
use millstream_core::queue::{Consumer, Event, Joining, MessageBatch, MessageId, Queue};
use millstream_core::sink::Delivered;
use millstream_core::spec;
use millstream_core::step::StepKind;
use millstream_core::{Budget, ErrorKind, Result, Step};
use millstream_testkit::{Break, Proxy, Redis, RedisOptions};

use super::connection::{Commands, Connection};
use super::place::Place;
use super::{RedisQueue, RedisRead};
use crate::testing::{Loss, MemoryPositions, MemoryTarget};

/// So soon consumers of tests are taken for dead.
const CLAIM_AFTER: Duration = Duration::from_secs(2);

const PATIENCE: Duration = Duration::from_secs(120);

fn server() -> Redis {
    Redis::start(RedisOptions::default())
}

fn settings() -> RedisRead {
    RedisRead { claim_after: spec::Duration(CLAIM_AFTER), ..RedisRead::new("s", "g") }
}

fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}/0")
}

fn queue(server: &Redis, settings: RedisRead) -> RedisQueue {
    RedisQueue::new(&url(server.port()), settings, false).expect("a queue")
}

fn joining(process: &str, sinks: &[Option<Arc<MemoryPositions>>]) -> Joining {
    let positions = sinks.iter().map(|sink| sink.clone().map(|sink| sink as Arc<dyn Positions>));
    Joining {
        process: process.to_owned(),
        positions: positions.collect(),
        budget: Budget::new(64 << 20),
        step: Step::new("events", StepKind::Fetch, "redis"),
        io: tokio::runtime::Handle::current(),
    }
}

/// Adds entries whose body is their number.
async fn add(server: &Redis, numbers: std::ops::Range<usize>) {
    let place = Place::parse(&url(server.port()), &settings().access()).expect("a place");
    let mut connection = Connection::open(&place, "producer").await.expect("a connection");
    for first in numbers.clone().step_by(1000) {
        let mut commands = Commands::default();
        for number in first..numbers.end.min(first + 1000) {
            let body = number.to_string();
            commands.add(["XADD", "s", "*", "body", &body].map(str::as_bytes));
        }
        connection.all(&commands, PATIENCE).await.expect("ids");
    }
}

/// Entries that are handed out and not acknowledged.
fn pending(server: &Redis) -> usize {
    let summary = server.command(&["XPENDING", "s", "g"]);
    summary.lines().next().and_then(|line| line.parse().ok()).expect("a number")
}

/// The consumers of the group.
fn consumers(server: &Redis) -> Vec<String> {
    let listed = server.command(&["XINFO", "CONSUMERS", "s", "g"]);
    let lines: Vec<&str> = listed.lines().collect();
    let named = lines.windows(2).filter(|pair| pair[0] == "name").map(|pair| pair[1].to_owned());
    named.filter(|name| name != "millstream-counted").collect()
}

/// What an engine does with a consumer.
struct Driver {
    consumer: Box<dyn Consumer>,
    sinks: Vec<Option<Arc<MemoryPositions>>>,
    /// What sinks without positions have got.
    loose: Arc<Mutex<BTreeMap<MessageId, usize>>>,
    /// How long a delivery is held open.
    hold: Duration,
    epoch: Vec<MessageBatch>,
    events: Vec<String>,
}

impl Driver {
    async fn join(queue: &RedisQueue, process: &str, sinks: Vec<Option<Arc<MemoryPositions>>>) -> Result<Self> {
        let consumer = queue.join(joining(process, &sinks)).await?;
        Ok(Driver {
            consumer,
            sinks,
            loose: Arc::default(),
            hold: Duration::ZERO,
            epoch: Vec::new(),
            events: Vec::new(),
        })
    }

    /// Gathers messages for a while.
    async fn gather(&mut self, most: usize, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while self.epoch.iter().map(|batch| batch.messages.len()).sum::<usize>() < most {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(event) = tokio::time::timeout(left, self.consumer.next(most)).await else { break };
            self.take(event?);
        }
        Ok(())
    }

    fn take(&mut self, event: Event) {
        let shown = match event {
            Event::Messages(batch) => return self.epoch.push(batch),
            Event::Revoked(numbers) => {
                self.epoch.retain(|batch| !numbers.contains(&batch.number));
                "revoked".to_owned()
            }
            Event::ReachedStart => "reached start".to_owned(),
            Event::Empty => "empty".to_owned(),
            Event::Waiting(error) => format!("waiting: {error}"),
            Event::Back(_) => "back".to_owned(),
            Event::Gap(error) => format!("gap: {}", error.what()),
        };
        self.events.push(shown);
    }

    /// Commits what was gathered, and acknowledges it.
    async fn commit(&mut self) -> Result<()> {
        let epoch = std::mem::take(&mut self.epoch);
        if epoch.is_empty() {
            return Ok(());
        }
        for sink in 0..self.sinks.len() {
            let own: Vec<&MessageBatch> = epoch.iter().filter(|batch| batch.sinks & (1 << sink) != 0).collect();
            if !own.is_empty() && !self.deliver(sink, &own).await? {
                return Ok(());
            }
        }
        let numbers: Vec<u64> = epoch.iter().map(|batch| batch.number).collect();
        self.consumer.acknowledge(&numbers).await
    }

    /// Whether the sink has committed the batches; otherwise they are revoked.
    async fn deliver(&mut self, sink: usize, batches: &[&MessageBatch]) -> Result<bool> {
        let numbers: Vec<u64> = batches.iter().map(|batch| batch.number).collect();
        let ids: Vec<MessageId> = batches.iter().flat_map(|batch| batch.messages.ids().to_vec()).collect();
        loop {
            let moves = self.consumer.moves(sink, &numbers);
            let Some(positions) = self.sinks[sink].clone() else {
                let mut loose = self.loose.lock().expect("not poisoned");
                ids.iter().for_each(|id| *loose.entry(*id).or_default() += 1);
                break;
            };
            assert_eq!(moves.len(), 1);
            let mut delivery = positions.begin(moves);
            let added = delivery.add(&ids).await;
            tokio::time::sleep(self.hold).await;
            let delivered = match added {
                Ok(()) => delivery.end().await,
                Err(error) => Err(error),
            };
            match delivered {
                Ok(Delivered::Written { .. }) => break,
                Ok(Delivered::Moved(positions)) => {
                    self.consumer.moved(sink, &numbers, positions).await?;
                    return Ok(false);
                }
                Ok(other) => panic!("{other:?}"),
                Err(error) if error.kind() == ErrorKind::Transient => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => return Err(error),
            }
        }
        self.consumer.committed(sink, &numbers).await?;
        Ok(true)
    }

    /// Commits epochs until something holds.
    async fn work_until(&mut self, mut done: impl FnMut(&Driver) -> bool) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < end, "it takes too long: {:?}", self.events);
            self.gather(2000, Duration::from_millis(20)).await?;
            self.commit().await?;
        }
        Ok(())
    }

    fn has(&self, event: &str) -> bool {
        self.events.iter().any(|one| one.starts_with(event))
    }
}

/// Asserts that all messages are committed once, and waits until all are acknowledged.
async fn assert_once(server: &Redis, target: &MemoryTarget, count: usize) {
    let committed = target.committed();
    let often: Vec<_> = committed.iter().filter(|(_, times)| **times != 1).take(5).collect();
    assert!(often.is_empty(), "{often:?}");
    assert_eq!(committed.len(), count);
    let end = Instant::now() + PATIENCE;
    while pending(server) > 0 {
        assert!(Instant::now() < end, "{} entries are not acknowledged", pending(server));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_committed_once_and_acknowledged() {
    let (server, target) = (server(), MemoryTarget::new());
    add(&server, 0..10_000).await;
    let mut driver =
        Driver::join(&queue(&server, settings()), "p", vec![Some(target.positions("p"))]).await.expect("joins");
    driver.work_until(|driver| driver.has("empty")).await.expect("works");
    assert_eq!(driver.events, ["reached start", "empty"]);
    add(&server, 10_000..12_000).await;
    driver.work_until(|_| target.committed().len() == 12_000).await.expect("works");
    assert_once(&server, &target, 12_000).await;
    driver.consumer.leave().await.expect("leaves");
    assert_eq!(consumers(&server), Vec::<String>::new());
    let rows = target.positions("p").read().await.expect("it is up");
    assert_eq!(rows.iter().map(|row| row.place.as_str()).collect::<Vec<_>>(), ["group s"]);
    assert!(rows[0].state.ends_with("0-0  "), "{}", rows[0].state);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_message_is_committed_once_whatever_happens() {
    const COUNT: usize = 100_000;
    let mut server = server();
    let target = MemoryTarget::new();
    add(&server, 0..COUNT).await;
    // The first answers to acknowledgements are swallowed.
    let proxy = Proxy::start(server.port(), &[&[Break::SwallowAnswer("XACK"); 40][..], &[Break::Nothing]].concat());
    let queue = RedisQueue::new(&url(proxy.port()), settings(), false).expect("a queue");
    let is_done = Arc::new(AtomicBool::new(false));
    let epochs = Arc::new(AtomicUsize::new(0));
    let start = |number: usize| {
        let (queue, sinks) = (queue.clone(), vec![Some(target.positions(&format!("p{number}")))]);
        let (is_done, epochs) = (Arc::clone(&is_done), Arc::clone(&epochs));
        tokio::spawn(async move {
            let mut driver = loop {
                match Driver::join(&queue, &format!("p{number}"), sinks.clone()).await {
                    Ok(driver) => break driver,
                    Err(error) if error.kind() == ErrorKind::Transient => {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    Err(error) => panic!("{error:?}"),
                }
            };
            driver.hold = Duration::from_millis(10);
            while !is_done.load(Ordering::SeqCst) {
                driver.gather(1000, Duration::from_millis(20)).await.expect("messages");
                driver.commit().await.expect("a commit");
                epochs.fetch_add(1, Ordering::SeqCst);
            }
            driver.consumer.leave().await.expect("leaves");
        })
    };
    let mut tasks: Vec<_> = (0..3).map(start).collect();
    let mut number = 3;
    let end = Instant::now() + PATIENCE * 2;
    while target.committed().len() < COUNT {
        assert!(Instant::now() < end, "{} of {COUNT}", target.committed().len());
        tokio::time::sleep(Duration::from_millis(300)).await;
        if number < 15 {
            // As `kill -9` does: nothing is given back.
            tasks[number % 3].abort();
            tasks[number % 3] = start(number);
            target.lose(&[[Loss::Answer, Loss::Transaction][number % 2]]);
            number += 1;
        }
        if number == 6 || number == 10 {
            tokio::task::block_in_place(|| server.restart());
        }
    }
    assert!(number >= 15, "it was too quick to disturb it: {number}");
    let deadline = Instant::now() + PATIENCE;
    while pending(&server) > 0 {
        assert!(Instant::now() < deadline, "{} pending", pending(&server));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    is_done.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.expect("a worker ends well");
    }
    assert_once(&server, &target, COUNT).await;
}
