//! Tests against a real broker: members of a group that commit into targets in memory, while the broker, the topic and
//! the group change.

mod member;
mod producing;
mod transactions;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::Budget;
use millstream_core::queue::{Lack, MessageId};
use millstream_net::server::Tls;
use millstream_testkit::{Authority, Kafka as Broker, KafkaOptions, PASSWORD, TempTree, USER, Validity};

use super::{Kafka, KafkaRead, OnGap, Sasl, Start};
use crate::testing::{Loss, MemoryTarget};
use member::{Member, bodies, read};

/// The offsets that a target has committed of a partition, each once.
fn offsets(target: &MemoryTarget, partition: u64) -> Vec<u64> {
    let committed = target.committed();
    assert!(committed.values().all(|count| *count == 1), "some were committed more than once");
    committed.into_keys().filter(|id| id.major == partition).map(|id| id.minor).collect()
}

/// So many from an offset on.
fn from(first: u64, count: u64) -> Vec<u64> {
    (first..first + count).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_comes_as_it_was_sent() {
    use rdkafka::message::{Header, OwnedHeaders};
    use rdkafka::producer::{BaseRecord, Producer};
    let broker = Broker::shared();
    let topic = broker.topic(1);
    let producer = broker.producer(&[]);
    let headers = OwnedHeaders::new()
        .insert(Header { key: "kind", value: Some("a") })
        .insert(Header { key: "kind", value: None::<&str> });
    let whole = BaseRecord::to(&topic).payload("body").key("key").headers(headers).timestamp(1234);
    producer.send(whole).map_err(|(error, _)| error).expect("sent");
    let large = vec![b'x'; 900_000];
    let more: [BaseRecord<'_, [u8], [u8]>; 3] = [
        BaseRecord::to(&topic).payload(b"".as_slice()),
        BaseRecord::to(&topic).key(b"tombstone".as_slice()),
        BaseRecord::to(&topic).payload(large.as_slice()),
    ];
    more.into_iter().for_each(|record| producer.send(record).map_err(|(error, _)| error).expect("sent"));
    producer.flush(Duration::from_secs(120)).expect("they arrive");
    let target = MemoryTarget::new();
    let mut member = Member::join(broker, &topic, read(), &[&target]).await;
    let messages = member.messages(4).await;
    assert_eq!(messages.iter().map(|one| one.body.len()).collect::<Vec<_>>(), [4, 0, 0, 900_000]);
    let keys: Vec<_> = messages.iter().map(|one| one.key.as_deref()).collect();
    assert_eq!(keys, [Some("key"), None, Some("tombstone"), None]);
    let headers: Vec<_> = messages[0].headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!((headers, messages[0].time), (vec![("kind", "a"), ("kind", "")], Some(1234)));
    assert_eq!(messages.iter().map(|one| one.lack).collect::<Vec<_>>(), [None, None, Some(Lack::Null), None]);
    assert_eq!((messages[0].body.as_str(), messages[3].id), ("body", MessageId { major: 0, minor: 3 }));
    member.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_continues_from_the_position_and_not_from_the_group() {
    let broker = Broker::shared();
    let topic = broker.topic(2);
    (0..2).for_each(|partition| broker.send(&topic, partition, bodies(1000)));
    let target = MemoryTarget::new();
    let mut member = Member::join(broker, &topic, read(), &[&target]).await;
    member.whole_epoch(300).await;
    member.whole_epoch(300).await;
    // What it has not committed comes again.
    member.messages(200).await;
    member.leave().await;
    let done = target.committed().len();
    assert!((600..=2000).contains(&done), "{done}");
    let mut member = Member::join(broker, &topic, read(), &[&target]).await;
    member.until_empty(500).await;
    assert_eq!([0, 1].map(|partition| offsets(&target, partition)), [from(0, 1000), from(0, 1000)]);
    assert!(member.has_seen("start"), "{:?}", member.seen);
    let lag = member.consumer().lag();
    assert_eq!((lag.messages, lag.oldest), (Some(0), None));
    member.leave().await;
    // Another target knows nothing of the group's offset, which stands at the end.
    let fresh = MemoryTarget::new();
    let mut member = Member::join(broker, &topic, read(), &[&fresh]).await;
    member.until_empty(500).await;
    assert_eq!(offsets(&fresh, 1), from(0, 1000));
    member.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_positions_the_groups_offset_counts() {
    let broker = Broker::shared();
    let topic = broker.topic(1);
    broker.send(&topic, 0, bodies(10));
    let mut member = Member::join(broker, &topic, read(), &[]).await;
    assert_eq!(member.messages(4).await.len(), 4);
    member.acknowledge().await;
    member.leave().await;
    let mut member = Member::join(broker, &topic, read(), &[]).await;
    assert_eq!(member.messages(6).await[0].id.minor, 4);
    member.leave().await;
    let latest = KafkaRead { start: Start::Latest, group: "other".to_owned(), ..read() };
    let mut member = Member::join(broker, &topic, latest, &[]).await;
    member.until_empty(5).await;
    broker.send(&topic, 0, bodies(1));
    assert_eq!(member.messages(1).await[0].id.minor, 10);
    member.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_sink_gets_what_it_lacks() {
    let broker = Broker::shared();
    let topic = broker.topic(1);
    broker.send(&topic, 0, bodies(100));
    let (first, second) = (MemoryTarget::new(), MemoryTarget::new());
    let mut member = Member::join(broker, &topic, read(), &[&first]).await;
    member.whole_epoch(60).await;
    member.leave().await;
    let mut member = Member::join(broker, &topic, read(), &[&first, &second]).await;
    member.whole_epoch(20).await;
    member.whole_epoch(15).await;
    // The second sink fails where both lack messages: they come again, to the second only.
    member.whole_epoch(30).await;
    second.lose(&[Loss::Transaction]);
    member.whole_epoch(10).await;
    member.until_empty(30).await;
    assert_eq!((offsets(&first, 0), offsets(&second, 0)), (from(0, 100), from(0, 100)));
    member.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_transactions_and_lost_answers_leave_each_message_once() {
    let broker = Broker::shared();
    let topic = broker.topic(3);
    (0..3).for_each(|partition| broker.send(&topic, partition, bodies(2000)));
    let target = MemoryTarget::new();
    let mut member = Member::join(broker, &topic, read(), &[&target]).await;
    for loss in [Loss::Transaction, Loss::Answer, Loss::Answer, Loss::Transaction] {
        member.whole_epoch(500).await;
        target.lose(&[loss]);
        member.whole_epoch(500).await;
    }
    member.until_empty(1000).await;
    (0..3).for_each(|partition| assert_eq!(offsets(&target, partition), from(0, 2000)));
    member.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_come_and_go_while_epochs_are_open() {
    let broker = Broker::shared();
    let topic = broker.topic(3);
    (0..3).for_each(|partition| broker.send(&topic, partition, bodies(50_000)));
    let target = MemoryTarget::new();
    let mut first = Member::join(broker, &topic, read(), &[&target]).await;
    for _ in 0..10 {
        first.epoch(2000).await;
    }
    let mut second = Member::join(broker, &topic, read(), &[&target]).await;
    // Both are in their epochs while the group gives partitions from one to the other.
    for _ in 0..20 {
        tokio::join!(first.epoch(700), second.epoch(900));
    }
    second.gather(500).await;
    drop(second);
    for _ in 0..5 {
        first.epoch(1000).await;
    }
    let mut third = Member::join(broker, &topic, read(), &[&target]).await;
    for _ in 0..10 {
        tokio::join!(first.epoch(500), third.epoch(500));
    }
    third.gather(500).await;
    third.kill();
    for _ in 0..5 {
        first.epoch(1000).await;
    }
    let mut fourth = Member::join(broker, &topic, read(), &[&target]).await;
    first.gather(100).await;
    first.leave().await;
    fourth.until_count(&target, 150_000).await;
    (0..3).for_each(|partition| assert_eq!(offsets(&target, partition), from(0, 50_000)));
    fourth.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn markers_of_transactions_are_no_messages_and_no_loss() {
    let broker = Broker::shared();
    let topic = broker.topic(1);
    for (bodies, commits) in [(["a", "b"], true), (["c", "d"], false), (["e", "f"], true), (["g", "h"], false)] {
        broker.send_in_transaction(&topic, 0, &bodies, commits);
    }
    let target = MemoryTarget::new();
    let mut member = Member::join(broker, &topic, read(), &[&target]).await;
    member.until_empty(10).await;
    member.until_next(&target, &topic, 12).await;
    assert_eq!(offsets(&target, 0), [0, 1, 6, 7]);
    member.leave().await;
    // Retention takes the trailing marker: that is no gap.
    broker.delete_records(&topic, 0, 12);
    broker.send(&topic, 0, ["i"]);
    let mut member = Member::join(broker, &topic, read(), &[&target]).await;
    member.until_empty(10).await;
    assert_eq!(offsets(&target, 0), [0, 1, 6, 7, 12]);
    member.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_retention_took_is_an_error_or_a_warning() {
    let broker = Broker::shared();
    let topic = broker.topic(1);
    broker.send(&topic, 0, bodies(100));
    let target = MemoryTarget::new();
    let mut member = Member::join(broker, &topic, read(), &[&target]).await;
    member.whole_epoch(10).await;
    member.leave().await;
    broker.delete_records(&topic, 0, 40);
    let mut member = Member::join(broker, &topic, read(), &[&target]).await;
    let error = member.fails().await;
    assert_eq!(error.what(), format!("partition 0 of topic `{topic}` has lost messages that were not read"));
    assert_eq!(error.cause_text(), Some("offsets 10 to 39 were deleted; the first that is there is 40"));
    member.leave().await;
    let warns = || KafkaRead { on_gap: OnGap::Warn, ..read() };
    let mut member = Member::join(broker, &topic, warns(), &[&target]).await;
    member.until_empty(100).await;
    assert_eq!(offsets(&target, 0), [from(0, 10), from(40, 60)].concat());
    assert_eq!(member.count("gap"), 1);
    member.leave().await;
    // Told once: the position has moved.
    let mut member = Member::join(broker, &topic, warns(), &[&target]).await;
    member.until_empty(100).await;
    assert_eq!(member.count("gap"), 0);
    member.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_was_created_again_is_a_gap() {
    let broker = Broker::shared();
    let topic = broker.topic(1);
    broker.send(&topic, 0, bodies(10));
    let target = MemoryTarget::new();
    let mut member = Member::join(broker, &topic, read(), &[&target]).await;
    member.whole_epoch(5).await;
    member.leave().await;
    broker.delete_topic(&topic);
    broker.create_topic(&topic, 1, &[]);
    broker.send(&topic, 0, bodies(20));
    let mut member = Member::join(broker, &topic, read(), &[&target]).await;
    let error = member.fails().await;
    assert_eq!(error.what(), format!("topic `{topic}` was deleted and created again"));
    member.leave().await;
    let fresh = MemoryTarget::new();
    let mut member =
        Member::join(broker, &topic, KafkaRead { on_gap: OnGap::Warn, ..read() }, &[&target, &fresh]).await;
    member.until_empty(100).await;
    assert_eq!((member.count("gap"), offsets(&fresh, 0)), (1, from(0, 20)));
    // The numbers begin anew, so those of the first five name two messages each.
    let twice = BTreeMap::from_iter(target.committed().into_iter().filter(|(_, count)| *count == 2));
    assert_eq!((target.committed().len(), twice.len()), (20, 5));
    member.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compaction_leaves_gaps_that_are_no_loss() {
    use rdkafka::producer::{BaseRecord, Producer};
    let broker = Broker::shared();
    let topic = format!("compact-{}", broker.topic(1));
    let settings = [("cleanup.policy", "compact"), ("segment.ms", "100"), ("min.cleanable.dirty.ratio", "0.001")];
    broker.create_topic(&topic, 1, &settings);
    let producer = broker.producer(&[]);
    for round in 0..10 {
        for key in ["a", "b"] {
            producer.send(BaseRecord::to(&topic).key(key).payload("x")).map_err(|(error, _)| error).expect("sent");
        }
        producer.flush(Duration::from_secs(120)).expect("they arrive");
        tokio::time::sleep(Duration::from_millis(if round < 9 { 120 } else { 0 })).await;
    }
    let start = std::time::Instant::now();
    loop {
        let target = MemoryTarget::new();
        let mut member = Member::join(broker, &topic, read(), &[&target]).await;
        member.until_empty(100).await;
        member.leave().await;
        let there = offsets(&target, 0);
        assert_eq!(there.last(), Some(&19));
        if there.len() < 20 {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(300), "the broker compacts nothing");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_restarts_or_stands_still_is_waited_for() {
    let mut broker = Broker::start(KafkaOptions::default());
    let topic = broker.topic(2);
    (0..2).for_each(|partition| broker.send(&topic, partition, bodies(5000)));
    let target = MemoryTarget::new();
    let mut member = Member::join(&broker, &topic, read(), &[&target]).await;
    member.whole_epoch(1000).await;
    broker.kill();
    member.until_seen("waiting").await;
    broker.restart();
    member.until_seen("back").await;
    member.epoch(1000).await;
    broker.pause();
    member.until_seen_again("waiting", 2).await;
    broker.resume();
    member.until_seen_again("back", 2).await;
    (0..2).for_each(|partition| broker.send(&topic, partition, bodies(100)));
    member.until_count(&target, 10_200).await;
    (0..2).for_each(|partition| assert_eq!(offsets(&target, partition), from(0, 5100)));
    assert_eq!((member.count("waiting"), member.count("back"), member.count("gap")), (2, 2, 0));
    member.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_lost_while_reading_is_found() {
    let broker = Broker::shared();
    let topic = broker.topic(1);
    let large = std::iter::repeat_n("y".repeat(10_000), 5000);
    broker.send(&topic, 0, large);
    let target = MemoryTarget::new();
    let warns = KafkaRead { on_gap: OnGap::Warn, ..read() };
    let mut member = Member::join(broker, &topic, warns, &[&target]).await;
    member.messages(10).await;
    member.commit().await;
    // More than the library has fetched ahead.
    broker.delete_records(&topic, 0, 4990);
    member.until_empty(1000).await;
    let there = offsets(&target, 0);
    assert!(there.len() < 5000, "nothing was lost");
    assert_eq!((there[0], there.last()), (0, Some(&4999)));
    assert_eq!(member.count("gap"), 1, "{:?}", member.seen);
    member.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_bounded_and_the_group_keeps_who_waits() {
    let broker = Broker::shared();
    let topic = broker.topic(2);
    let large = || std::iter::repeat_n("y".repeat(10_000), 3000);
    (0..2).for_each(|partition| broker.send(&topic, partition, large()));
    let (target, budget) = (MemoryTarget::new(), Budget::new(16 << 20));
    let same = KafkaRead::new(format!("load-{topic}"));
    let queue = Kafka::new(&format!("kafka://{}/{topic}", broker.address()), same).expect("a topic");
    let mut member = Member::member(&queue, "a".to_owned(), Arc::clone(&budget), &[&target]).await.expect("it joins");
    member.messages(10).await;
    // Longer than a session, and held back.
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert!(budget.used() <= 8 << 20, "{} bytes", budget.used());
    // Another joins meanwhile: half of the topic is given to it.
    let mut other = Member::join(broker, &topic, read(), &[&target]).await;
    let start = std::time::Instant::now();
    while !other.has_seen("empty") {
        assert!(start.elapsed() < Duration::from_secs(300), "{:?}", other.seen);
        other.epoch(500).await;
    }
    assert_eq!(target.committed().len(), 3000);
    member.until_count(&target, 6000).await;
    (0..2).for_each(|partition| assert_eq!(offsets(&target, partition), from(0, 3000)));
    // A round may be larger than what it was reserved, as its messages are only then seen.
    assert!(budget.peak() <= 18 << 20, "{} bytes", budget.peak());
    other.leave().await;
    member.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_at_the_start_is_an_error_with_a_hint() {
    let broker = Broker::shared();
    let target = MemoryTarget::new();
    let join = |address: String, topic: &'static str| {
        let target = Arc::clone(&target);
        async move { Member::join_at(&address, topic, read(), &[&target]).await.err().expect("an error") }
    };
    let error = join(broker.address(), "none").await;
    assert_eq!(error.what(), format!("the cluster of kafka://{}/none has no topic `none`", broker.address()));
    let address = format!("127.0.0.1:{}", millstream_testkit::free_port());
    let error = join(address.clone(), "t").await;
    assert_eq!(error.what(), format!("kafka://{address}/t cannot be reached"));
    assert!(error.cause_text().is_some_and(|cause| cause.contains("Connection refused")), "{error:?}");
    assert_eq!(error.kind(), millstream_core::ErrorKind::Transient);
}

#[tokio::test(flavor = "multi_thread")]
async fn brokers_prove_who_they_are_and_users_too() {
    let authority = Authority::new();
    let certificate = Some(authority.certificate("localhost", Validity::Current));
    let broker = Broker::start(KafkaOptions { certificate, login: true, ..KafkaOptions::default() });
    let topic = broker.topic(1);
    broker.send(&topic, 0, bodies(3));
    let tree = TempTree::new();
    let ca = Some(tree.file("ca.pem", authority.pem()).display().to_string());
    let target = MemoryTarget::new();
    let settings = |sasl, password: &str, ca: &Option<String>| {
        let address = format!("{USER}:{password}@{}", broker.door());
        (address, KafkaRead { sasl, tls: Some(Tls::Verify), ca: ca.clone(), ..read() })
    };
    for sasl in [Sasl::Plain, Sasl::ScramSha256, Sasl::ScramSha512] {
        let (address, read) = settings(sasl, PASSWORD, &ca);
        let mut member = Member::join_at(&address, &topic, read, &[&target]).await.expect("it joins");
        member.until_empty(10).await;
        member.leave().await;
    }
    assert_eq!(offsets(&target, 0), from(0, 3));
    for (sasl, password, ca, hint) in [
        (Sasl::Plain, "wrong1", &ca, "check user and password, and `sasl`"),
        (Sasl::ScramSha512, "wrong1", &ca, "check user and password, and `sasl`"),
        (
            Sasl::Plain,
            PASSWORD,
            &None,
            "name the authority of the brokers in `ca`, or write `tls: off` if the network is trusted",
        ),
    ] {
        let (address, read) = settings(sasl, password, ca);
        let error = Member::join_at(&address, &topic, read, &[&target]).await.err().expect("an error");
        assert_eq!(error.hint_text(), Some(hint), "{error:?}");
        assert!(!format!("{error:?}").contains(password), "{error:?}");
    }
}
