//! Queues as sources of a job: what makes one of a URL and its settings. A queue is joined; it has no units.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use millstream_core::queue::Queue;
use millstream_core::registry::SourceEntry;
use millstream_core::source::{Source, SourceContext};
use millstream_core::spec::{Fault, SpecInfo};
use millstream_core::{ByteStream, Error, Result, Unit};
#[cfg(feature = "kafka")]
use millstream_queue::kafka::{self, Kafka, KafkaRead};
#[cfg(feature = "redis")]
use millstream_queue::redis::{self, RedisQueue, RedisRead};

/// The source `kafka`.
#[cfg(feature = "kafka")]
pub const KAFKA: SourceEntry = SourceEntry {
    spec: SpecInfo::of::<KafkaRead>(),
    schemes: &["kafka"],
    check: &kafka::check_url,
    rows: false,
    build: &|settings| {
        let settings: KafkaRead = crate::settings(settings)?;
        let make = |settings: &KafkaRead, url: &str| Ok(Arc::new(Kafka::new(url, settings.clone())?) as Arc<dyn Queue>);
        Ok(Arc::new(QueueSource { name: "kafka", settings, make }))
    },
};

/// The source `redis`.
#[cfg(feature = "redis")]
pub const REDIS: SourceEntry = SourceEntry {
    spec: SpecInfo::of::<RedisRead>(),
    schemes: &["redis", "rediss"],
    check: &redis::check_url,
    rows: false,
    build: &|settings| {
        let settings: RedisRead = crate::settings(settings)?;
        let make = |settings: &RedisRead, url: &str| {
            Ok(Arc::new(RedisQueue::new(url, settings.clone(), true)?) as Arc<dyn Queue>)
        };
        Ok(Arc::new(QueueSource { name: "redis", settings, make }))
    },
};

/// Makes a queue of settings and a URL.
type Make<S> = fn(&S, &str) -> std::result::Result<Arc<dyn Queue>, Fault>;

/// A kind of queue, with the settings of a source.
#[derive(Debug)]
pub struct QueueSource<S> {
    name: &'static str,
    settings: S,
    make: Make<S>,
}

#[async_trait]
impl<S: Debug + Send + Sync> Source for QueueSource<S> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn medium(&self) -> &'static str {
        "queue"
    }

    fn reads_once(&self) -> Option<&'static str> {
        Some("a queue")
    }

    fn can_reopen(&self, _: &Unit) -> bool {
        false
    }

    fn connections(&self) -> usize {
        1
    }

    fn list(&self, _: &SourceContext, pattern: &str) -> BoxStream<'static, Result<Unit>> {
        let unit = Unit::new(pattern);
        futures::stream::once(std::future::ready(Ok(unit))).boxed()
    }

    async fn open(&self, _: &SourceContext, unit: &Unit) -> Result<ByteStream> {
        Err(Error::job("a queue is read by `run` alone")
            .in_unit(&unit.uri, None)
            .hint("to look at messages, run a job with another `group`, `until: {rows: 10}` and `write: '-'`"))
    }

    fn queue(&self, pattern: &str) -> Option<std::result::Result<Arc<dyn Queue>, Fault>> {
        Some((self.make)(&self.settings, pattern))
    }
}
