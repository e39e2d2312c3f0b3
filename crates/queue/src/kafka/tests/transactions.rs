//! Transactions of partitions against a real broker: what has become of one whose end is not answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_core::epochs::TopicFacts;
use millstream_core::positions::Move;
use millstream_core::queue::Queue;
use millstream_testkit::{Kafka as Broker, KafkaOptions};
use tokio::runtime::Handle;

use super::super::state::{State, place};
use super::super::{Ended, Kafka, KafkaWrite, Outgoing, PlaceProducer, TopicLoad, Transactions};
use super::member::read;

/// How long anything may take that takes a few seconds.
const PATIENCE: Duration = Duration::from_secs(90);

/// The positions of a load from one topic into another, for a process.
async fn transactions(broker: &Broker, topics: [&str; 2], owner: &str) -> Arc<Transactions> {
    let [source, target] = topics.map(|topic| format!("kafka://{}/{topic}", broker.address()));
    let queue = Kafka::new(&source, read()).expect("a queue");
    let cluster = queue.cluster(&Handle::current()).await.expect("it is up");
    let facts: TopicFacts = queue.facts().topic.expect("a topic");
    let of = TopicLoad { source: &facts, cluster: cluster.as_deref(), is_one_cluster: true, load: &source, owner };
    let opened = Transactions::open(&target, &KafkaWrite::default(), of, 4 << 20, &Handle::current()).await;
    Arc::new(opened.expect("they open").expect("one cluster"))
}

/// The move of partition 0 from a version.
fn step(topic: &str, from: Option<u64>) -> Move {
    let next = i64::try_from(from.unwrap_or(0)).expect("small");
    Move { place: place(topic, 0), from, to: Some(State::new(next, "T", -1).to_text()) }
}

/// A transaction with a message that is confirmed, and a move that is added to it.
async fn sent(producer: &mut PlaceProducer, to: &Move) {
    producer.begin().await.expect("it begins");
    producer.send(&Outgoing { body: Some(b"m"), ..Outgoing::default() }).await.expect("sent");
    assert!(producer.confirm().await.expect("confirmed").is_empty());
    let position = producer.moved(to).expect("a position");
    producer.add(&position).await.expect("asked").expect("added");
}

/// A producer of a place. A broker that has just started coordinates no transactions for some seconds.
async fn begun(transactions: &Arc<Transactions>, place: &str) -> PlaceProducer {
    let start = Instant::now();
    loop {
        match transactions.producer(place).await {
            Ok(producer) => return producer,
            Err(error) => assert!(start.elapsed() < PATIENCE, "it is up: {error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Brokers that stand still for longer than anything waits that can be waited for otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_is_asked_for_as_long_as_brokers_are_away() {
    let broker = Broker::start(KafkaOptions::default());
    let (source, target) = (broker.topic(1), broker.topic(1));
    let transactions = transactions(&broker, [&source, &target], "a").await;
    let mut producer = begun(&transactions, &place(&source, 0)).await;
    let first = step(&source, None);
    sent(&mut producer, &first).await;
    broker.pause();
    let position = producer.moved(&first).expect("a position");
    let mut ending = tokio::spawn(producer.end(position.clone()));
    // The commit gives up after two seconds here, and each question after ten.
    let early = tokio::time::timeout(Duration::from_secs(15), &mut ending).await;
    assert!(early.is_err(), "it is not known: {early:?}");
    broker.resume();
    let (ended, producer) =
        tokio::time::timeout(PATIENCE, ending).await.expect("in time").expect("no panic").expect("an end");
    let now = transactions.position(&place(&source, 0)).await.expect("it is up");
    match &ended {
        Ended::Committed => assert_eq!(now, Some(position)),
        Ended::Aborted(_) => assert_eq!(now, None),
        other => panic!("{other:?}"),
    }
    // Either way the partition goes on.
    let mut producer = producer.expect("it can be used");
    let next = step(&source, now.map(|now| now.version));
    sent(&mut producer, &next).await;
    let position = producer.moved(&next).expect("a position");
    let (ended, _) = producer.end(position).await.expect("an end");
    assert!(matches!(ended, Ended::Committed), "{ended:?}");
    // A run that is to end does not ask any longer.
    let mut producer = begun(&transactions, &place(&source, 0)).await;
    let last = step(&source, producer.position().map(|now| now.version));
    sent(&mut producer, &last).await;
    broker.pause();
    transactions.end_soon();
    let position = producer.moved(&last).expect("a position");
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
    let first = step(&source, None);
    sent(&mut stopped, &first).await;
    let mut other = begun(&b, &place(&source, 0)).await;
    assert_eq!(other.position(), None, "what was open is not there");
    sent(&mut other, &first).await;
    let position = other.moved(&first).expect("a position");
    let (ended, other) = other.end(position.clone()).await.expect("an end");
    assert!(matches!(ended, Ended::Committed), "{ended:?}");
    let position = stopped.moved(&first).expect("a position");
    let (ended, none) = stopped.end(position).await.expect("an end");
    assert!(matches!(ended, Ended::Fenced) && none.is_none(), "{ended:?}");
    // It has fenced nobody.
    let mut other = other.expect("it can be used");
    let second = step(&source, Some(1));
    sent(&mut other, &second).await;
    let position = other.moved(&second).expect("a position");
    let (ended, _) = other.end(position).await.expect("an end");
    assert!(matches!(ended, Ended::Committed), "{ended:?}");
}
