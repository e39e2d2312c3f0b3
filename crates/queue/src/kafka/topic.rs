//! What a topic takes, asked before anything is written to it.

use std::time::Duration;

use millstream_core::{Error, Result};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use tokio::runtime::Handle;

use super::fault::{self, Reaction};
use super::native::Client;
use super::place::Place;

/// How long brokers may need for their first answer.
const FIRST_ANSWER: Duration = Duration::from_secs(15);

/// How long the answer to a question may take whose answer can be done without.
const MOMENT: Duration = Duration::from_secs(5);

/// What the library allows as the most bytes of a batch.
const LEAST: usize = 1_000;
const MOST: usize = 1_000_000_000;

/// What a topic takes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TopicFacts {
    /// The most bytes of a batch of messages, if the brokers tell the user.
    pub(super) largest: Option<usize>,
    /// The id of the cluster, if the brokers have one.
    pub(super) cluster: Option<String>,
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
            let largest = topic.and_then(|topic| value(&topic, "max.message.bytes")?.parse::<usize>().ok());
            let largest = largest.map(|largest| largest.clamp(LEAST, MOST));
            Ok(TopicFacts { largest, cluster: client.cluster(MOMENT) })
        }
        Err(failure) if fault::reaction(&failure) == Reaction::NoTopic && creates_topics(&admin, io) => {
            Ok(TopicFacts { largest: None, cluster: client.cluster(MOMENT) })
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
