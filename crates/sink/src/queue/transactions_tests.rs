//! Positions in a cluster of Kafka, against a real broker: processes that lose places and regain them, and many places.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use millstream_core::Result;
use millstream_core::epochs::Epochs;
use millstream_core::positions::{Move, Moved, Positions};
use millstream_core::queue::Queue;
use millstream_core::sink::{Delivered, LoadContext};
use millstream_queue::kafka::{Kafka as Topic, KafkaRead, KafkaWrite, TopicLoad, Transactions};
use millstream_testkit::Kafka;

use super::message::Part;
use super::taking::Taking;
use super::tests::{form, rows, schema};
use super::transactions::{MOST, TopicPositions};
use super::{PATIENCE_OF_EPOCHS, terms};
use crate::conformance::context;

/// How long anything may take that takes a few seconds.
const PATIENCE: Duration = Duration::from_secs(300);

/// A topic that is read, and one that is written to.
struct Scene {
    kafka: &'static Kafka,
    source: String,
    target: String,
}

impl Scene {
    fn new(partitions: i32) -> Self {
        let kafka = Kafka::shared();
        Scene { kafka, source: kafka.topic(partitions), target: kafka.topic(1) }
    }

    /// The positions as the process `owner` opens them.
    async fn positions(&self, owner: &str) -> Arc<TopicPositions> {
        let [source, target] =
            [&self.source, &self.target].map(|topic| format!("kafka://{}/{topic}", self.kafka.address()));
        let context = LoadContext { schema: schema(), ..context(1) };
        let queue = Topic::new(&source, KafkaRead::new("g")).expect("a queue");
        let cluster = queue.cluster(&context.io).await.expect("it is up");
        let facts = queue.facts().topic.expect("a topic");
        let of = TopicLoad { source: &facts, cluster: cluster.as_deref(), is_one_cluster: true, load: &source, owner };
        let opened = Transactions::open(&target, &KafkaWrite::default(), of, 4 << 20, &context.io).await;
        let terms = terms(&context.budget, &context.io, PATIENCE_OF_EPOCHS);
        let taking = Taking { form: form(&Part::ALL), terms, context };
        Arc::new(TopicPositions::new(opened.expect("they open").expect("one cluster"), taking, target))
    }

    fn step(&self, partition: usize, from: Option<u64>) -> Move {
        let next = from.unwrap_or(0);
        let to = format!(r#"{{"version":1,"next":{next},"topic":"T","epoch":-1}}"#);
        Move { place: format!("{} {partition}", self.source), from, to: Some(to) }
    }

    /// Three messages of partition 0.
    async fn deliver(&self, positions: &TopicPositions, from: u64) -> Delivered {
        self.try_deliver(positions, 0, from).await.expect("it is up")
    }

    async fn try_deliver(&self, positions: &TopicPositions, partition: usize, from: u64) -> Result<Delivered> {
        let mut delivery = positions.delivery(vec![self.step(partition, Some(from))], 0).await?;
        delivery.write(rows(&[None; 3])).await?;
        tokio::time::timeout(PATIENCE, delivery.commit()).await.expect("in time")
    }

    async fn register(&self, positions: &TopicPositions, partitions: usize) {
        let new = (0..partitions).map(|partition| self.step(partition, None)).collect();
        assert_eq!(positions.set(new).await.expect("it is up"), Moved::All);
    }

    /// How many messages, ends of transactions and aborted messages there are.
    fn offsets(&self) -> i64 {
        self.kafka.range(&self.target, 0).1
    }
}

fn written() -> Delivered {
    Delivered::Written { rows: 3, refused: Vec::new() }
}

/// Where a delivery has found its place.
fn found(delivered: &Delivered) -> Option<u64> {
    let Delivered::Moved(positions) = delivered else { panic!("{delivered:?}") };
    positions.first().map(|position| position.version)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_regains_a_place_goes_on() {
    let scene = Scene::new(1);
    let (a, b) = (scene.positions("a").await, scene.positions("b").await);
    scene.register(&a, 1).await;
    for round in 0..3 {
        assert_eq!(scene.deliver(&a, 1 + 2 * round).await, written(), "round {round}");
        assert_eq!(scene.deliver(&b, 2 + 2 * round).await, written(), "round {round}");
        // What it knew is old: it hears so, writes nothing, and fences nobody.
        assert_eq!(found(&scene.deliver(&a, 1 + 2 * round).await), Some(3 + 2 * round));
    }
    assert_eq!(scene.deliver(&b, 7).await, written());
    assert_eq!(scene.offsets(), 7 * (3 + 1), "nothing was aborted");
}

/// A process that knows nothing of it does not get through with a producer that was fenced.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_was_fenced_writes_nothing_and_may_come_back() {
    let scene = Scene::new(1);
    let (a, b) = (scene.positions("a").await, scene.positions("b").await);
    scene.register(&a, 1).await;
    assert_eq!(scene.deliver(&a, 1).await, written());
    assert_eq!(scene.deliver(&b, 2).await, written());
    assert_eq!(found(&scene.deliver(&a, 2).await), None, "it is only known that it stands elsewhere");
    assert_eq!(found(&scene.deliver(&a, 2).await), Some(3));
    assert_eq!(scene.deliver(&b, 3).await, written());
    assert_eq!(scene.deliver(&a, 4).await, written());
    assert_eq!(a.read().await.expect("it is up")[0].version, 5);
}

/// Positions are noted again, but not those that another process has moved, nor those that are in use.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_fences_nobody_else() {
    let scene = Scene::new(2);
    let (a, b) = (scene.positions("a").await, scene.positions("b").await);
    scene.register(&a, 2).await;
    assert_eq!(scene.deliver(&a, 1).await, written());
    assert_eq!(scene.deliver(&b, 2).await, written());
    assert_eq!(a.known(), [(scene.step(0, None).place, 2), (scene.step(1, None).place, 1)]);
    a.renew_all().await;
    assert_eq!(a.known(), [(scene.step(1, None).place, 1)], "the other one is not its own any more");
    assert_eq!(scene.deliver(&b, 3).await, written(), "it was not fenced");
    // Its own are as they were.
    assert_eq!(scene.try_deliver(&a, 1, 1).await.expect("it is up"), written());
    // One that is in use is passed over.
    let mut open = b.delivery(vec![scene.step(0, Some(4))], 0).await.expect("a delivery");
    open.write(rows(&[None; 3])).await.expect("it takes rows");
    let renewing = Arc::clone(&b);
    let accept = move |_: &millstream_core::sink::Refused| {
        futures::executor::block_on(renewing.renew_all());
        Ok(Vec::new())
    };
    assert_eq!(open.commit_if(Box::new(accept)).await.expect("it is up"), written());
    assert_eq!(a.read().await.expect("it is up").iter().map(|one| one.version).collect::<Vec<_>>(), [5, 2]);
}

/// Each producer has threads: those that are idle make room.
#[tokio::test(flavor = "multi_thread")]
async fn many_places_share_some_producers() {
    let places = MOST + 8;
    let scene = Scene::new(i32::try_from(places).expect("few"));
    let own = scene.positions("a").await;
    scene.register(&own, places).await;
    for from in 1..3 {
        let all = join_all((0..places).map(|partition| scene.try_deliver(&own, partition, from))).await;
        for delivered in all {
            assert_eq!(delivered.expect("it is up"), written());
        }
        let idle = own.idle();
        assert!(idle.len() <= MOST, "{}", idle.len());
        assert_eq!(idle.iter().collect::<BTreeSet<_>>().len(), idle.len(), "one for each place");
    }
    let there = own.read().await.expect("it is up");
    assert_eq!((there.len(), there.iter().all(|one| one.version == 3)), (places, true));
    assert_eq!(scene.offsets(), i64::try_from(2 * places * (3 + 1)).expect("few"), "nothing was aborted");
}

/// A compacted topic takes no message without a key, and refuses all that have come with it. Of a topic that is
/// compacted already these are known before they are sent; one that becomes compacted later refuses them itself.
#[tokio::test(flavor = "multi_thread")]
async fn only_bad_messages_are_refused() {
    for (is_known, because) in [(true, "it has no key"), (false, "validate")] {
        let scene = Scene::new(1);
        let compact = || scene.kafka.configure_topic(&scene.target, &[("cleanup.policy", "compact")]);
        if is_known {
            compact();
        }
        let own = scene.positions("a").await;
        scene.register(&own, 1).await;
        if !is_known {
            compact();
        }
        let deliver = async |from, bad_rows| {
            let mut delivery = own.delivery(vec![scene.step(0, Some(from))], bad_rows).await.expect("a delivery");
            // The first row of each batch has no key.
            for _ in 0..3 {
                delivery.write(rows(&[None; 20])).await.expect("it takes rows");
            }
            tokio::time::timeout(PATIENCE, delivery.commit()).await.expect("in time")
        };
        assert!(deliver(1, 2).await.is_err(), "there are three");
        let Delivered::Written { rows, refused } = deliver(1, 3).await.expect("it is up") else {
            panic!("not written")
        };
        let numbers: Vec<u64> = refused.iter().map(|row| row.row).collect();
        assert_eq!((rows, numbers), (57, vec![0, 20, 40]));
        let is_right = |shown: &str, reason: &str| shown.contains("id=0") && reason.contains(because);
        assert!(refused.iter().all(|row| is_right(&row.shown, &row.reason)), "{refused:?}");
        assert_eq!(own.read().await.expect("it is up")[0].version, 2);
    }
}
