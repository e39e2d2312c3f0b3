//! Transactions of partitions against a real broker: what has become of one whose end is not answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_core::epochs::TopicFacts;
use millstream_core::positions::{Move, Position};
use millstream_core::queue::Queue;
use millstream_core::{Error, ErrorKind, Result};
use millstream_testkit::{Kafka as Broker, KafkaOptions};
use tokio::runtime::Handle;

use super::super::place_producer::COMMIT;
use super::super::state::{State, place};
use super::super::transactions::ANSWER;
use super::super::{Ended, Kafka, KafkaWrite, Outgoing, PlaceProducer, TopicLoad, Transactions};
use super::member::read;

/// How long anything may take that takes a few seconds.
const PATIENCE: Duration = Duration::from_secs(180);

/// The positions of a load from one topic into another, for a process.
async fn transactions(broker: &Broker, topics: [&str; 2], owner: &str) -> Arc<Transactions> {
    let [source, target] = topics.map(|topic| format!("kafka://{}/{topic}", broker.address()));
    let queue = Kafka::new(&source, read()).expect("a queue");
    let cluster = ready(async || queue.cluster(&Handle::current()).await).await;
    let facts: TopicFacts = queue.facts().topic.expect("a topic");
    let of = TopicLoad { source: &facts, cluster: cluster.as_deref(), is_one_cluster: true, load: &source, owner };
    let (write, io) = (KafkaWrite::default(), Handle::current());
    Arc::new(ready(async || Transactions::open(&target, &write, of, 4 << 20, &io).await).await.expect("one cluster"))
}

/// What a broker answers that is up, but may not be ready: one that has just started, or has stood still, coordinates
/// no groups and no transactions for some seconds, or for many on a busy machine.
async fn ready<T>(mut ask: impl AsyncFnMut() -> Result<T>) -> T {
    let start = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => {
                assert!(error.kind() == ErrorKind::Transient && start.elapsed() < PATIENCE, "it is up: {error:?}");
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The move of partition 0 from a version.
fn step(topic: &str, from: Option<u64>) -> Move {
    let next = i64::try_from(from.unwrap_or(0)).expect("small");
    Move { place: place(topic, 0), from, to: Some(State::new(next, "T", -1).to_text()) }
}

/// A transaction with a message that is confirmed, and a move that is added to it; the position after it.
async fn sent(producer: &mut PlaceProducer, to: &Move) -> Position {
    ready(async || match tried(producer, to).await {
        Err(error) => producer.abort().await.and(Err(error)),
        done => done,
    })
    .await
}

async fn tried(producer: &mut PlaceProducer, to: &Move) -> Result<Position> {
    producer.begin().await?;
    producer.send(&Outgoing { body: Some(b"m"), ..Outgoing::default() }).await?;
    assert!(producer.confirm().await?.is_empty());
    let position = producer.moved(to)?;
    let added = producer.add(&position).await?;
    added.map_err(|error| Error::transient("the position was not added").cause(error.to_string()))?;
    Ok(position)
}

/// Commits a transaction of a producer with a step of the partition, in more than one try if the broker is not ready;
/// the producer after it.
async fn committed(transactions: &Arc<Transactions>, mut producer: PlaceProducer, source: &str) -> PlaceProducer {
    let start = Instant::now();
    loop {
        let to = step(source, producer.position().map(|now| now.version));
        let position = sent(&mut producer, &to).await;
        let (ended, own) = producer.end(position).await.expect("an end");
        match ended {
            Ended::Committed => return own.expect("it can be used"),
            Ended::Aborted(error) => assert!(start.elapsed() < PATIENCE, "it is up: {error:?}"),
            other => panic!("{other:?}"),
        }
        producer = match own {
            Some(own) => own,
            None => begun(transactions, &place(source, 0)).await,
        };
    }
}

/// A producer of a place.
async fn begun(transactions: &Arc<Transactions>, place: &str) -> PlaceProducer {
    ready(async || transactions.producer(place).await).await
}

/// Brokers that stand still for longer than anything waits that can be waited for otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_is_asked_for_as_long_as_brokers_are_away() {
    // Otherwise its controller takes it for dead, and its partitions have no leader for a moment when it is back. A
    // transaction that it commits then gets no markers (Kafka 4.4.0): its log of transactions says that all is done,
    // and for readers the transaction stays open for ever.
    let settings = vec![("broker.session.timeout.ms".to_owned(), "600000".to_owned())];
    let broker = Broker::start(KafkaOptions { settings, ..KafkaOptions::default() });
    let (source, target) = (broker.topic(1), broker.topic(1));
    let transactions = transactions(&broker, [&source, &target], "a").await;
    let mut producer = begun(&transactions, &place(&source, 0)).await;
    let position = sent(&mut producer, &step(&source, None)).await;
    broker.pause();
    let mut ending = tokio::spawn(producer.end(position.clone()));
    // The commit gives up, and so does the first question at least.
    let early = tokio::time::timeout(COMMIT + ANSWER + Duration::from_secs(3), &mut ending).await;
    assert!(early.is_err(), "it is not known: {early:?}");
    broker.resume();
    let (ended, producer) =
        tokio::time::timeout(PATIENCE, ending).await.expect("in time").expect("no panic").expect("an end");
    let now = ready(async || transactions.position(&place(&source, 0)).await).await;
    match &ended {
        Ended::Committed => assert_eq!(now, Some(position)),
        Ended::Aborted(_) => assert_eq!(now, None),
        other => panic!("{other:?}"),
    }
    // Either way the partition goes on.
    drop(committed(&transactions, producer.expect("it can be used"), &source).await);
    // A run that is to end does not ask any longer.
    let mut producer = begun(&transactions, &place(&source, 0)).await;
    let last = step(&source, producer.position().map(|now| now.version));
    let position = sent(&mut producer, &last).await;
    broker.pause();
    transactions.end_soon();
    let ended = tokio::time::timeout(PATIENCE, producer.end(position)).await.expect("in time");
    broker.resume();
    assert!(matches!(ended, Ok((Ended::Unknown(None), None))), "{ended:?}");
}

/// Who is fenced while its commit is not answered fences nobody to find out, and says what it can.
#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_transaction_is_not_there() {
    let broker = Broker::shared();
    let (source, target) = (broker.topic(1), broker.topic(1));
    let (a, b) =
        (transactions(broker, [&source, &target], "a").await, transactions(broker, [&source, &target], "b").await);
    let mut stopped = begun(&a, &place(&source, 0)).await;
    let position = sent(&mut stopped, &step(&source, None)).await;
    let other = begun(&b, &place(&source, 0)).await;
    assert_eq!(other.position(), None, "what was open is not there");
    let other = committed(&b, other, &source).await;
    let (ended, none) = stopped.end(position).await.expect("an end");
    assert!(matches!(ended, Ended::Fenced) && none.is_none(), "{ended:?}");
    // It has fenced nobody.
    let other = committed(&b, other, &source).await;
    assert_eq!(other.position().map(|now| now.version), Some(2));
}
