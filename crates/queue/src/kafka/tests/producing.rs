//! What is sent to a real broker.

use std::time::{SystemTime, UNIX_EPOCH};

use millstream_testkit::{Kafka as Broker, KafkaOptions, free_port};

use super::super::{KafkaWrite, Outgoing, Producer};
use super::member::{Member, Seen, read};
use tokio::runtime::Handle;

const WINDOW: usize = 8 << 20;

async fn producer(broker: &Broker, topic: &str) -> Producer {
    let target = format!("kafka://{}/{topic}", broker.address());
    Producer::connect(&target, &KafkaWrite::default(), WINDOW, &Handle::current()).await.expect("it connects")
}

/// A message of a key.
fn keyed<'m>(key: &'m str, body: &'m [u8]) -> Outgoing<'m> {
    Outgoing { key: Some(key.as_bytes()), body: Some(body), ..Outgoing::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_arrive_as_java_would_send_them() {
    let broker = Broker::shared();
    let topic = broker.topic(3);
    let mut producer = producer(broker, &topic).await;
    // Keys whose partitions Kafka's own tests of `murmur2` imply.
    for (key, body) in [("foobar", "a"), ("21", "b"), ("a-little-bit-long-string", "c")] {
        let headers = [("kind", Some(b"k".as_slice())), ("none", None)];
        producer.send(&Outgoing { headers: &headers, ..keyed(key, body.as_bytes()) }).await.expect("sent");
    }
    assert!(producer.confirm().await.expect("confirmed").is_empty());
    producer.send(&Outgoing { key: Some(b"foobar"), ..Outgoing::default() }).await.expect("sent");
    assert!(producer.confirm().await.expect("confirmed").is_empty());
    assert_eq!([0, 1, 2].map(|partition| broker.range(&topic, partition).1), [3, 0, 1]);
    let mut member = Member::join(broker, &topic, read(), &[]).await;
    let mut seen = member.messages(4).await;
    seen.sort_by_key(|message| message.id);
    let told: Vec<_> = seen.iter().map(|one| (one.id.major, one.body.as_str(), one.lack.is_some())).collect();
    assert_eq!(told, [(0, "a", false), (0, "b", false), (0, "", true), (2, "c", false)]);
    let headers: Vec<_> = seen[0].headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(headers, [("kind", "k"), ("none", "")]);
    member.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_keeps_its_order_while_the_broker_restarts() {
    let mut broker = Broker::start(KafkaOptions::default());
    let topic = broker.topic(4);
    let mut producer = producer(&broker, &topic).await;
    let body = |number: usize| format!("{number:06}");
    for number in 0..20_000 {
        if number == 10_000 {
            broker.kill();
        }
        let key = format!("key {}", number % 7);
        producer.send(&keyed(&key, body(number).as_bytes())).await.expect("sent");
    }
    let start = std::time::Instant::now();
    while producer.trouble().is_none() {
        assert!(start.elapsed() < std::time::Duration::from_secs(180), "no trouble is reported");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    broker.restart();
    assert!(producer.confirm().await.expect("confirmed").is_empty());
    let mut member = Member::join(&broker, &topic, read(), &[]).await;
    let mut seen = member.messages(20_000).await;
    seen.sort_by_key(|message| message.id);
    let mut bodies: Vec<&str> = seen.iter().map(|one| one.body.as_str()).collect();
    for key in 0..7 {
        let key = format!("key {key}");
        let of_key: Vec<&str> =
            seen.iter().filter(|one| one.key.as_deref() == Some(&key)).map(|one| one.body.as_str()).collect();
        assert!(of_key.is_sorted(), "{key} has lost its order");
    }
    bodies.sort_unstable();
    assert_eq!(bodies, (0..20_000).map(body).collect::<Vec<_>>());
    member.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_too_large_is_named_and_the_others_arrive() {
    let broker = Broker::shared();
    let topic = format!("small-{}", broker.topic(1));
    broker.create_topic(&topic, 1, &[("max.message.bytes", "10000"), ("compression.type", "producer")]);
    let mut producer = producer(broker, &topic).await;
    // What compresses well and what does not: neither takes those beside it along.
    let noise = std::iter::successors(Some(1_u64), |last| {
        let last = last ^ (last << 13);
        let last = last ^ (last >> 7);
        Some(last ^ (last << 17))
    });
    let noise: Vec<u8> = noise.take(8000).flat_map(u64::to_le_bytes).collect();
    for body in [b"a".to_vec(), vec![b'x'; 2_000_000], b"b".to_vec(), noise.clone(), b"d".to_vec()] {
        producer.send(&Outgoing { body: Some(&body), ..Outgoing::default() }).await.expect("sent");
    }
    let refused = producer.confirm().await.expect("confirmed");
    let told: Vec<_> = refused.iter().map(|(number, error)| (*number, error.what().to_owned())).collect();
    let what = format!("topic `{topic}` does not take a message");
    assert_eq!(told, [(1, what.clone()), (3, what)]);
    // Small messages that together are larger than a message may be.
    for _ in 0..100 {
        producer.send(&Outgoing { body: Some(&noise[..1000]), ..Outgoing::default() }).await.expect("sent");
    }
    assert!(producer.confirm().await.expect("confirmed").is_empty());
    producer.send(&Outgoing { body: Some(b"c"), ..Outgoing::default() }).await.expect("sent");
    assert!(producer.confirm().await.expect("confirmed").is_empty());
    assert_eq!(broker.range(&topic, 0), (0, 104));
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_a_topic_does_not_take_are_refused_alone() {
    let broker = Broker::shared();
    let topic = format!("choosy-{}", broker.topic(1));
    broker.create_topic(&topic, 1, &[("message.timestamp.after.max.ms", "60000")]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("later than 1970").as_millis() as i64;
    // This one knows what the topic takes, the other one what it took.
    let (mut knows, mut knew) = (producer(broker, &topic).await, producer(broker, &topic).await);
    knows.send(&Outgoing { time: Some(now + 3_600_000), ..keyed("k", b"far") }).await.expect("sent");
    knows.send(&Outgoing { time: Some(now + 10_000), ..keyed("k", b"near") }).await.expect("sent");
    let refused = knows.confirm().await.expect("confirmed");
    assert_eq!(refused.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0]);
    let cause = refused[0].1.cause_text().expect("a cause");
    assert!(cause.ends_with("later than now, and the topic allows 60 s (`message.timestamp.after.max.ms`)"), "{cause}");
    broker.configure_topic(&topic, &[("cleanup.policy", "compact")]);
    let mut knows = producer(broker, &topic).await;
    let bodies: Vec<String> = (0..200).map(|number| format!("{number:03}")).collect();
    for (name, producer) in [("a", &mut knows), ("b", &mut knew)] {
        for (number, body) in bodies.iter().enumerate() {
            let headers = [("from", Some(name.as_bytes()))];
            let message = Outgoing { headers: &headers, time: Some(now), ..keyed(name, body.as_bytes()) };
            let message = if number % 90 == 7 { Outgoing { key: None, ..message } } else { message };
            producer.send(&message).await.expect("sent");
        }
        let refused = producer.confirm().await.expect("confirmed");
        assert_eq!(refused.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [7, 97, 187], "{name}");
    }
    let mut member = Member::join(broker, &topic, read(), &[]).await;
    let mut seen = member.messages(1 + 2 * 197).await.split_off(1);
    seen.sort_by_key(|message| message.id);
    for name in ["a", "b"] {
        let of_name = seen.iter().filter(|one| one.key.as_deref() == Some(name));
        let mut found: Vec<&str> = of_name.clone().map(|one| one.body.as_str()).collect();
        found.sort_unstable();
        let expected = bodies.iter().enumerate().filter(|(number, _)| number % 90 != 7).map(|(_, body)| body.as_str());
        assert_eq!(found, expected.collect::<Vec<_>>(), "{name}");
        let is_whole = |one: &&Seen| one.time == Some(now) && one.headers == [("from".to_owned(), name.to_owned())];
        let part = of_name.clone().find(|one| !is_whole(one));
        assert!(part.is_none(), "it was sent again without its time or headers: {part:?}");
    }
    member.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_not_there_is_an_error_before_anything_is_sent() {
    let broker = Broker::shared();
    let connect = |target: String| async move {
        Producer::connect(&target, &KafkaWrite::default(), WINDOW, &Handle::current()).await.err().expect("an error")
    };
    let target = format!("kafka://{}/none", broker.address());
    assert_eq!(connect(target.clone()).await.what(), format!("the cluster of {target} has no topic `none`"));
    let target = format!("kafka://127.0.0.1:{}/t", free_port());
    assert_eq!(connect(target.clone()).await.what(), format!("{target} cannot be reached"));
    assert_eq!(connect("kafka://h".to_owned()).await.what(), "the URL names no topic");
}
