//! Consumers of a real server, and a target in memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millstream_core::positions::Positions;
use millstream_core::queue::{Consumer, Event, Joining, MessageBatch, MessageId, Queue};
use millstream_core::sink::Delivered;
use millstream_core::spec;
use millstream_core::{Budget, ErrorKind, Result};
use millstream_testkit::{Break, Proxy, Redis, RedisOptions};

use super::connection::{Commands, Connection};
use super::place::Place;
use super::{Acked, OnGap, RedisQueue, RedisRead, Start};
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
        most: None,
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
                Ok(Delivered::Moved(positions) | Delivered::Unknown(positions)) => {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_was_stopped_cannot_commit_what_others_have_claimed() {
    let (server, target) = (server(), MemoryTarget::new());
    add(&server, 0..5000).await;
    let (queue, sinks) = (queue(&server, settings()), vec![Some(target.positions("stopped"))]);
    let is_done = Arc::new(AtomicBool::new(false));
    let (stopped_queue, until) = (queue.clone(), Arc::clone(&is_done));
    let (stops, stands_still) = tokio::sync::oneshot::channel();
    let (wakes, woken) = std::sync::mpsc::channel();
    // A runtime with one thread, all of whose tasks stand still when that waits, as after SIGSTOP.
    let stopped = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let mut driver = Driver::join(&stopped_queue, "stopped", sinks.clone()).await.expect("joins");
            driver.gather(1000, PATIENCE).await.expect("messages");
            let epoch = std::mem::take(&mut driver.epoch);
            let numbers: Vec<u64> = epoch.iter().map(|batch| batch.number).collect();
            let positions = sinks[0].clone().expect("it keeps positions");
            let mut delivery = positions.begin(driver.consumer.moves(0, &numbers));
            for batch in &epoch {
                delivery.add(batch.messages.ids()).await.expect("it is up");
            }
            stops.send(()).expect("somebody waits for it");
            woken.recv().expect("it is woken up");
            let Delivered::Moved(now) = delivery.end().await.expect("an end") else { panic!("it was fenced") };
            driver.consumer.moved(0, &numbers, now).await.expect("it begins anew");
            driver.work_until(|driver| driver.has("revoked") && until.load(Ordering::SeqCst)).await.expect("works");
            driver.consumer.leave().await.expect("leaves");
        })
    });
    stands_still.await.expect("it has messages");
    let mut driver = Driver::join(&queue, "other", vec![Some(target.positions("other"))]).await.expect("joins");
    driver.work_until(|_| target.committed().len() == 5000).await.expect("works");
    // What it does when it wakes up, among others and for a while.
    wakes.send(()).expect("it stands still");
    let end = Instant::now() + CLAIM_AFTER * 2;
    driver.work_until(|_| Instant::now() > end).await.expect("works");
    is_done.store(true, Ordering::SeqCst);
    driver.work_until(|_| stopped.is_finished()).await.expect("works");
    stopped.join().expect("it ends well");
    assert_once(&server, &target, 5000).await;
    driver.consumer.leave().await.expect("leaves");
    assert_eq!(consumers(&server), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_sinks_each_gets_what_it_lacks() {
    let (server, first, second) = (server(), MemoryTarget::new(), MemoryTarget::new());
    add(&server, 0..5000).await;
    let queue = queue(&server, settings());
    let sinks = |process: &str| vec![Some(first.positions(process)), Some(second.positions(process)), None];
    let mut killed = Driver::join(&queue, "killed", sinks("killed")).await.expect("joins");
    killed.gather(1000, PATIENCE).await.expect("messages");
    second.set_down(true);
    // The first sink commits, the second does not, and the process is killed.
    let end = Instant::now() + PATIENCE;
    let has_committed = async {
        while first.committed().is_empty() && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    tokio::select! {
        ended = killed.commit() => panic!("the second is down: {ended:?}"),
        () = has_committed => {}
    }
    assert!(!first.committed().is_empty() && second.committed().is_empty());
    drop(killed);
    second.set_down(false);
    let mut driver = Driver::join(&queue, "other", sinks("other")).await.expect("joins");
    driver.work_until(|_| first.committed().len() == 5000 && second.committed().len() == 5000).await.expect("works");
    assert_once(&server, &first, 5000).await;
    assert_once(&server, &second, 5000).await;
    assert_eq!(driver.loose.lock().expect("not poisoned").len(), 5000);
    driver.consumer.leave().await.expect("leaves");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sinks_without_positions_get_everything_at_least_once() {
    let server = server();
    add(&server, 0..3000).await;
    let queue = queue(&server, settings());
    let mut killed = Driver::join(&queue, "killed", vec![None]).await.expect("joins");
    killed.gather(1000, PATIENCE).await.expect("messages");
    drop(killed);
    let mut driver = Driver::join(&queue, "other", vec![None]).await.expect("joins");
    driver.work_until(|driver| driver.has("empty")).await.expect("works");
    assert_eq!(driver.loose.lock().expect("not poisoned").len(), 3000);
    let numbers = std::mem::take(&mut driver.epoch).iter().map(|batch| batch.number).collect::<Vec<_>>();
    driver.consumer.give_back(&numbers).await.expect("gives back");
    driver.consumer.leave().await.expect("leaves");
    assert_eq!((pending(&server), consumers(&server)), (0, Vec::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_of_one_message_leaves_the_others_to_the_next_one() {
    let server = server();
    add(&server, 0..3).await;
    let mut got = Vec::new();
    for number in 0..3 {
        let joining = Joining { most: Some(1), ..joining(&format!("p{number}"), &[None]) };
        let mut consumer = queue(&server, settings()).join(joining).await.expect("joins");
        let batch = loop {
            let event = tokio::time::timeout(PATIENCE, consumer.next(10)).await.expect("in time").expect("an event");
            if let Event::Messages(batch) = event {
                break batch;
            }
        };
        // What would be read ahead comes by now.
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!((batch.messages.len(), pending(&server)), (1, 1));
        got.push(String::from_utf8(batch.messages.body(0).to_vec()).expect("a text"));
        consumer.committed(0, &[batch.number]).await.expect("committed");
        consumer.acknowledge(&[batch.number]).await.expect("acknowledged");
        consumer.leave().await.expect("leaves");
    }
    assert_eq!((got, pending(&server)), (["0", "1", "2"].map(str::to_owned).to_vec(), 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_back_comes_again() {
    let (server, target) = (server(), MemoryTarget::new());
    add(&server, 0..1000).await;
    let sinks = vec![Some(target.positions("p"))];
    let mut driver = Driver::join(&queue(&server, settings()), "p", sinks).await.expect("joins");
    driver.gather(500, PATIENCE).await.expect("messages");
    let numbers: Vec<u64> = driver.epoch.iter().map(|batch| batch.number).collect();
    driver.consumer.give_back(&numbers).await.expect("gives back");
    driver.work_until(|_| target.committed().len() == 1000).await.expect("works");
    assert_eq!(driver.events[0], "revoked");
    assert_once(&server, &target, 1000).await;
}

/// Reads the first ten messages of a stream, and gives what a consumer says after something was done to the others:
/// with `on_gap: warn`, and the error with `on_gap: fail`.
async fn after(disturb: impl Fn(&Redis)) -> (Vec<String>, String) {
    let mut said = Vec::new();
    for on_gap in [OnGap::Warn, OnGap::Fail] {
        let (server, target) = (server(), MemoryTarget::new());
        let queue = queue(&server, RedisRead { on_gap, ..settings() });
        let sinks = vec![Some(target.positions("p"))];
        add(&server, 0..10).await;
        let mut driver = Driver::join(&queue, "p", sinks.clone()).await.expect("joins");
        driver.work_until(|driver| driver.has("empty")).await.expect("works");
        assert_once(&server, &target, 10).await;
        driver.consumer.leave().await.expect("leaves");
        add(&server, 10..20).await;
        disturb(&server);
        add(&server, 20..30).await;
        let ended = match Driver::join(&queue, "q", sinks).await {
            Err(error) => Err(error),
            Ok(mut driver) => {
                let ended = driver.work_until(|driver| driver.has("empty")).await;
                if ended.is_ok() {
                    driver.consumer.leave().await.expect("leaves");
                }
                said.extend(driver.events.iter().filter(|event| event.starts_with("gap")).cloned());
                said.push(format!("{} committed", target.committed().len()));
                ended
            }
        };
        if on_gap == OnGap::Fail {
            return (said, ended.expect_err("it is an error").what().to_owned());
        }
        ended.expect("it is none");
        // Once it was reported, it is none any more.
        let settings = RedisRead { on_gap: OnGap::Fail, ..settings() };
        let queue = RedisQueue::new(&url(server.port()), settings, false).expect("a queue");
        let mut driver = Driver::join(&queue, "r", vec![Some(target.positions("r"))]).await.expect("joins");
        driver.work_until(|driver| driver.has("empty")).await.expect("it is known");
    }
    unreachable!("the second one returns");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_were_trimmed_before_they_were_read_are_reported() {
    let (said, error) = after(|server| drop(server.command(&["XTRIM", "s", "MAXLEN", "3"]))).await;
    assert_eq!(said[1..2], ["23 committed"]);
    assert!(said[0].contains("has lost 7 messages before the group has read them"), "{said:?}");
    assert!(error.contains("has lost 7 messages"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_were_deleted_before_they_were_read_are_reported() {
    let delete_last = |server: &Redis| {
        let last = server.command(&["XREVRANGE", "s", "+", "-", "COUNT", "1"]);
        server.command(&["XDEL", "s", last.lines().next().expect("an id")]);
    };
    let (said, error) = after(delete_last).await;
    assert_eq!(said[1..2], ["29 committed"]);
    assert!(said[0].contains("were deleted before the group has read them"), "{said:?}");
    assert!(error.contains("were deleted before"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_was_deleted_is_reported() {
    let (said, error) = after(|server| drop(server.command(&["DEL", "s"]))).await;
    assert_eq!(said[1..2], ["20 committed"]);
    assert!(said[0].contains("or its consumer group was deleted"), "{said:?}");
    assert!(error.contains("or its consumer group was deleted"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_position_that_went_back_is_reported() {
    let (said, error) = after(|server| drop(server.command(&["XGROUP", "SETID", "s", "g", "0"]))).await;
    assert_eq!(said[1..2], ["30 committed"]);
    assert!(said[0].contains("went back: messages that were read come again"), "{said:?}");
    assert!(error.contains("went back"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_deleted_in_a_run_is_reported() {
    let (server, target) = (server(), MemoryTarget::new());
    add(&server, 0..10).await;
    let queue = queue(&server, RedisRead { on_gap: OnGap::Warn, ..settings() });
    let mut driver = Driver::join(&queue, "p", vec![Some(target.positions("p"))]).await.expect("joins");
    driver.work_until(|_| target.committed().len() == 10).await.expect("works");
    server.command(&["DEL", "s"]);
    add(&server, 10..20).await;
    driver.work_until(|_| target.committed().len() == 20).await.expect("works");
    assert!(driver.has("gap: "), "{:?}", driver.events);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_a_foreign_consumer_are_taken_over_and_that_is_reported() {
    let (server, target) = (server(), MemoryTarget::new());
    add(&server, 0..10).await;
    server.command(&["XGROUP", "CREATE", "s", "g", "0"]);
    server.command(&["XREADGROUP", "GROUP", "g", "somebody", "COUNT", "4", "STREAMS", "s", ">"]);
    let deleted = server.command(&["XRANGE", "s", "-", "+", "COUNT", "1"]);
    server.command(&["XDEL", "s", deleted.lines().next().expect("an id")]);
    let queue = queue(&server, RedisRead { on_gap: OnGap::Warn, ..settings() });
    let mut driver = Driver::join(&queue, "p", vec![Some(target.positions("p"))]).await.expect("joins");
    driver.work_until(|driver| driver.has("empty")).await.expect("works");
    assert_once(&server, &target, 9).await;
    assert!(driver.events.iter().any(|event| event.contains("that consumer somebody may have processed")));
    assert!(driver.events.iter().any(|event| event.contains("has lost 1 message that consumer somebody")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loaded_entries_are_deleted_if_that_is_wanted() {
    let (server, target) = (server(), MemoryTarget::new());
    add(&server, 0..3000).await;
    let queue = queue(&server, RedisRead { acked: Acked::Delete, ..settings() });
    let mut driver = Driver::join(&queue, "p", vec![Some(target.positions("p"))]).await.expect("joins");
    driver.work_until(|_| target.committed().len() == 3000).await.expect("works");
    assert_once(&server, &target, 3000).await;
    add(&server, 3000..4000).await;
    driver.work_until(|_| target.committed().len() == 4000).await.expect("works");
    assert_once(&server, &target, 4000).await;
    assert_eq!(server.command(&["XLEN", "s"]), "0");
    driver.consumer.leave().await.expect("leaves");
    server.command(&["XGROUP", "CREATE", "s", "other", "0"]);
    let error = queue.join(joining("p", &[])).await.err().expect("others have a right to the entries");
    assert!(error.what().contains("has another consumer group"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_begins_where_the_settings_say() {
    let (server, target) = (server(), MemoryTarget::new());
    add(&server, 0..10).await;
    let queue = queue(&server, RedisRead { start: Start::Latest, ..settings() });
    let sinks = vec![Some(target.positions("p"))];
    let mut driver = Driver::join(&queue, "p", sinks.clone()).await.expect("joins");
    driver.work_until(|driver| driver.has("empty")).await.expect("works");
    driver.consumer.leave().await.expect("leaves");
    add(&server, 10..15).await;
    // It is known now.
    let mut driver = Driver::join(&queue, "q", sinks).await.expect("joins");
    driver.work_until(|driver| driver.has("empty")).await.expect("works");
    assert_once(&server, &target, 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_any_form_come() {
    let server = server();
    let huge = "x".repeat(3 << 20);
    let place = Place::parse(&url(server.port()), &settings().access()).expect("a place");
    let mut connection = Connection::open(&place, "producer").await.expect("a connection");
    for fields in [vec!["body", "a", "kind", "k"], vec!["body", &huge], vec!["other", "b", "kind", "k"]] {
        let words: Vec<&[u8]> = ["XADD", "s", "*"].into_iter().chain(fields).map(str::as_bytes).collect();
        connection.command(&words).await.expect("an id");
    }
    let settings = RedisRead { field: Some("body".to_owned()), ..settings() };
    let queue = RedisQueue::new(&url(server.port()), settings, true).expect("a queue");
    let mut driver = Driver::join(&queue, "p", vec![None]).await.expect("joins");
    driver.gather(3, PATIENCE).await.expect("messages");
    let mut messages = millstream_core::queue::Messages::default();
    for batch in &driver.epoch {
        (0..batch.messages.len()).for_each(|number| messages.append(&batch.messages, number));
    }
    assert_eq!(messages.body(0), b"a");
    assert_eq!(messages.body(1).len(), 3 << 20);
    assert_eq!(messages.lacking(), [(2, millstream_core::queue::Lack::NoField)]);
    assert_eq!(messages.headers(0).collect::<Vec<_>>(), [(b"kind".as_slice(), b"k".as_slice())]);
    assert!(driver.consumer.lag().oldest.is_some());
    assert_eq!(driver.consumer.lag().messages, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_server_refuses_ends_the_run_or_is_waited_for() {
    let mut server = server();
    server.command(&["SET", "s", "1"]);
    let queue = queue(&server, settings());
    let error = queue.join(joining("p", &[None])).await.err().expect("it is no stream");
    assert!(error.hint_text().is_some_and(|hint| hint.contains("not a stream")), "{error:?}");
    server.command(&["DEL", "s"]);
    let mut driver = Driver::join(&queue, "p", vec![None]).await.expect("joins");
    driver.work_until(|driver| driver.has("empty")).await.expect("works");
    server.kill();
    driver.work_until(|driver| driver.has("waiting")).await.expect("works");
    tokio::task::block_in_place(|| server.restart());
    driver.work_until(|driver| driver.has("back")).await.expect("works");
    let outages = driver.events.iter().filter(|event| event.starts_with("waiting")).count();
    assert_eq!(outages, 1, "{:?}", driver.events);
    add(&server, 0..10).await;
    driver.work_until(|driver| driver.loose.lock().expect("not poisoned").len() == 10).await.expect("works");
}
