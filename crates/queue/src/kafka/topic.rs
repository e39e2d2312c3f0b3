//! What a topic takes, asked before anything is written to it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millstream_core::{Error, RejectKind, Result};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use tokio::runtime::Handle;

use super::fault::{self, Reaction};
use super::native::Client;
use super::place::Place;
use super::producer::Outgoing;

/// How long brokers may need for their first answer.
const FIRST_ANSWER: Duration = Duration::from_secs(15);

/// How long the answer to a question may take whose answer can be done without.
const MOMENT: Duration = Duration::from_secs(5);

/// A span of time without an end, in milliseconds: the largest number of Kafka's settings.
const FOREVER: u64 = i64::MAX.unsigned_abs();

/// What the library allows as the most bytes of a batch.
const LEAST: usize = 1_000;
const MOST: usize = 1_000_000_000;

/// What a topic is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TopicFacts {
    pub(super) limits: Limits,
    /// The id of the cluster, if the brokers have one.
    pub(super) cluster: Option<String>,
}

/// Which messages a topic takes, as far as the user may see its settings. A broker refuses all messages that come in a
/// batch with one that it does not take, so those are found before they are sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Limits {
    /// The most bytes of a batch of messages.
    pub(super) largest: Option<usize>,
    /// Whether messages have keys: later messages of a key replace earlier ones.
    needs_keys: bool,
    /// How much earlier and later than now the time of a message may be, with the setting that says so.
    before: Option<(Duration, &'static str)>,
    after: Option<(Duration, &'static str)>,
}

/// Why a topic does not take a message: the kind, the reason and what to do.
pub(super) type Objection = (RejectKind, String, &'static str);

impl Limits {
    fn of(topic: &ConfigResource) -> Self {
        let number = |name: &str| value(topic, name)?.parse::<u64>().ok();
        // Brokers set the time themselves otherwise.
        let has_own_times = value(topic, "message.timestamp.type").is_none_or(|kind| kind == "CreateTime");
        let span = |name: &'static str| {
            // Settings without an end are the largest number that there is.
            let millis = number(name).filter(|millis| has_own_times && *millis < FOREVER)?;
            Some((Duration::from_millis(millis), name))
        };
        // Brokers before 3.6 have one setting for both.
        let both = span("message.timestamp.difference.max.ms");
        Limits {
            largest: number("max.message.bytes").map(|most| usize::try_from(most).unwrap_or(MOST).clamp(LEAST, MOST)),
            needs_keys: value(topic, "cleanup.policy").is_some_and(|policy| policy.contains("compact")),
            before: span("message.timestamp.before.max.ms").or(both),
            after: span("message.timestamp.after.max.ms").or(both),
        }
    }

    /// Why it takes no such message now, if it does not. The clock is read only for messages with a time of their own.
    pub(super) fn objection(&self, message: &Outgoing<'_>, now: impl FnOnce() -> SystemTime) -> Option<Objection> {
        if self.needs_keys && message.key.is_none() {
            let cause = "it has no key, and the topic is compacted (`cleanup.policy`)";
            return Some((RejectKind::Other, cause.to_owned(), "give such messages a key, or leave them out"));
        }
        let time = UNIX_EPOCH + Duration::from_millis(u64::try_from(message.time?).ok()?);
        let (gap, limit, direction) = match now().duration_since(time) {
            Ok(before) => (before, self.before, "earlier"),
            Err(error) => (error.duration(), self.after, "later"),
        };
        let (most, setting) = limit.filter(|(most, _)| gap > *most)?;
        let cause = format!(
            "its time is {} s {direction} than now, and the topic allows {} s (`{setting}`)",
            gap.as_secs(),
            most.as_secs()
        );
        Some((RejectKind::Other, cause, "leave `_time` out of `add`, or change the setting of the topic"))
    }
}

/// Asks whether the topic is there, or would be created by the first message; creates nothing. Blocks.
///
/// # Errors
/// If the brokers cannot be reached or refuse, or there is no such topic.
pub(super) fn look(place: &Place, config: &ClientConfig, io: &Handle) -> Result<TopicFacts> {
    let broken = |cause| Error::internal("the client of Kafka cannot be set up").cause(cause);
    let (client, mut fetcher) = Client::new(config, &place.topic).map_err(broken)?;
    let admin: AdminClient<DefaultClientContext> =
        config.create().map_err(|error| broken(super::native::words(&error)))?;
    match super::queue::first_answer(&client, &mut fetcher, FIRST_ANSWER) {
        Ok(_) => {
            let topic = io.block_on(settings(&admin, ResourceSpecifier::Topic(&place.topic)));
            let limits = topic.as_ref().map(Limits::of).unwrap_or_default();
            Ok(TopicFacts { limits, cluster: client.cluster(MOMENT) })
        }
        Err(failure) if fault::reaction(&failure) == Reaction::NoTopic && creates_topics(&admin, io) => {
            Ok(TopicFacts { limits: Limits::default(), cluster: client.cluster(MOMENT) })
        }
        Err(failure) => Err(fault::error(&failure, place, &format!("writing to topic {}", place.topic))),
    }
}

/// Whether the brokers create topics themselves, and say so.
fn creates_topics(admin: &AdminClient<DefaultClientContext>, io: &Handle) -> bool {
    let Ok(metadata) = admin.inner().fetch_metadata(None, MOMENT) else { return false };
    let Some(broker) = metadata.brokers().first() else { return false };
    let broker = io.block_on(settings(admin, ResourceSpecifier::Broker(broker.id())));
    broker.is_some_and(|broker| value(&broker, "auto.create.topics.enable") == Some("true"))
}

/// The settings of a topic or broker, if the user may see them.
async fn settings(admin: &AdminClient<DefaultClientContext>, of: ResourceSpecifier<'_>) -> Option<ConfigResource> {
    let options = AdminOptions::new().request_timeout(Some(MOMENT));
    admin.describe_configs([&of], &options).await.ok()?.pop()?.ok()
}

fn value<'r>(resource: &'r ConfigResource, name: &str) -> Option<&'r str> {
    resource.get(name)?.value.as_deref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_topic_does_not_take_is_known_before() {
        let hour = Duration::from_secs(3_600);
        let limits =
            Limits { largest: None, needs_keys: true, before: Some((2 * hour, "b")), after: Some((hour, "a")) };
        let now = UNIX_EPOCH + 1_000 * hour;
        let at = |hours: i64| Some(hours * 3_600_000);
        let objection = |key: Option<&[u8]>, time: Option<i64>| {
            limits.objection(&Outgoing { key, time, ..Outgoing::default() }, || now).map(|(_, cause, _)| cause)
        };
        assert_eq!(objection(Some(b"k"), None), None);
        assert_eq!(
            objection(None, None).as_deref(),
            Some("it has no key, and the topic is compacted (`cleanup.policy`)")
        );
        for fits in [998, 1_000, 1_001] {
            assert_eq!(objection(Some(b""), at(fits)), None, "{fits}");
        }
        let late = "its time is 10800 s earlier than now, and the topic allows 7200 s (`b`)";
        assert_eq!(objection(Some(b"k"), at(997)).as_deref(), Some(late));
        let early = "its time is 7200 s later than now, and the topic allows 3600 s (`a`)";
        assert_eq!(objection(Some(b"k"), at(1_002)).as_deref(), Some(early));
        let any = Outgoing { time: at(9_000), ..Outgoing::default() };
        assert_eq!(Limits::default().objection(&any, || now), None);
    }
}
