//! Queues as sinks: each row is a message of a topic of Kafka or of a stream of Redis.
//!
//! ```text
//!  rows ─▶ message (encoding) ─▶ sender (what is not confirmed) ─▶ outlet (a producer of crates/queue)
//! ```
//! `load.rs` is a load that ends, `epochs.rs` one of another queue (`taking.rs`), `spec.rs` what the job file says.
//! Messages cannot be taken back, and those whose confirmation was lost are sent again: each row is there at least
//! once. From a topic of Kafka to another one of the same cluster, each is there exactly once (`transactions.rs`,
//! `topic_delivery.rs`).

mod epochs;
#[cfg(feature = "kafka")]
mod kafka;
mod load;
mod message;
mod outlet;
#[cfg(feature = "redis")]
mod redis;
mod sender;
mod spec;
mod taking;
#[cfg(test)]
mod tests;
#[cfg(feature = "kafka")]
mod topic_delivery;
#[cfg(feature = "kafka")]
mod transactions;
#[cfg(test)]
#[cfg(feature = "kafka")]
mod transactions_tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use millstream_core::epochs::{EpochTarget, Guarantee, QueueFacts, QueueLoad as LoadOfQueue};
use millstream_core::registry::{Built, SinkEntry, SinkFormats};
use millstream_core::sink::{Load, LoadContext, Sink, SinkParts};
use millstream_core::source::SourceContext;
use millstream_core::spec::{SpecInfo, parse};
use millstream_core::{Budget, Error, Result};
use millstream_database::on_io;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use self::load::{QueueLoad, Shared};
use self::message::Form;
use self::outlet::{TASK, Target, Terms};
use self::sender::Sender;
#[cfg(feature = "kafka")]
pub use self::spec::KafkaSpec;
#[cfg(feature = "redis")]
pub use self::spec::RedisSpec;
use self::taking::Taking;
use crate::encode::Encoding;

/// How long a run that ends waits for a server that is away.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long an epoch waits for it, before all of it is sent again.
const PATIENCE_OF_EPOCHS: Duration = Duration::from_secs(20);

/// The least and the most bytes that are on their way at once.
const WINDOW: (usize, usize) = (4 << 20, 64 << 20);

/// The sink `kafka`.
#[cfg(feature = "kafka")]
pub const KAFKA: SinkEntry = SinkEntry {
    spec: SpecInfo::of::<KafkaSpec>(),
    schemes: &["kafka"],
    words: &[],
    stores: false,
    formats: SinkFormats::Default("json"),
    build: &build_kafka,
};

/// The sink `redis`.
#[cfg(feature = "redis")]
pub const REDIS: SinkEntry = SinkEntry {
    spec: SpecInfo::of::<RedisSpec>(),
    schemes: &["redis", "rediss"],
    words: &[],
    stores: false,
    formats: SinkFormats::Default("json"),
    build: &build_redis,
};

#[cfg(feature = "kafka")]
fn build_kafka(settings: &Value, parts: SinkParts) -> Built<dyn Sink> {
    let KafkaSpec { kafka: settings, add, level } = parse(settings)?;
    let place = millstream_queue::kafka::Producer::place(&parts.target, &settings).map_err(|fault| vec![fault])?;
    let form =
        Form { encoding: Encoding::new(&parts, level)?, parts: spec::parts(&add, &[])?, taken: Vec::new(), id: None };
    let target = Arc::new(kafka::Topic { target: parts.target, settings, place });
    Ok(Arc::new(QueueSink { target, form }))
}

#[cfg(feature = "redis")]
fn build_redis(settings: &Value, parts: SinkParts) -> Built<dyn Sink> {
    let RedisSpec { redis: settings, add, level } = parse(settings)?;
    let place = millstream_queue::redis::Place::parse(&parts.target, &settings.access());
    let place = place.map_err(|fault| vec![fault])?;
    let form = Form {
        encoding: Encoding::new(&parts, level)?,
        parts: spec::parts(&add, spec::NOT_OF_REDIS)?,
        taken: vec![settings.field.clone(), millstream_queue::redis::KEY_FIELD.to_owned()],
        id: settings.id.clone(),
    };
    Ok(Arc::new(QueueSink { target: Arc::new(redis::Stream { settings, place }), form }))
}

/// Sends rows to a queue.
#[derive(Debug)]
struct QueueSink {
    target: Arc<dyn Target>,
    form: Form,
}

#[async_trait]
impl Sink for QueueSink {
    fn name(&self) -> &'static str {
        self.target.name()
    }

    fn medium(&self) -> &'static str {
        "queue"
    }

    fn target(&self) -> String {
        self.target.url()
    }

    /// Several sinks may send to a queue.
    fn is_shareable(&self) -> bool {
        true
    }

    fn shows_rows_early(&self) -> bool {
        true
    }

    fn adds_rows(&self) -> bool {
        true
    }

    fn leaves_marker(&self) -> bool {
        false
    }

    async fn check(&self, schema: SchemaRef) -> Result<(), Vec<Error>> {
        let faults = self.form.faults(&schema);
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    async fn reach(&self, context: &SourceContext, _resumes: Option<&str>) -> Result<(), Vec<Error>> {
        let (target, io) = (Arc::clone(&self.target), context.io.clone());
        let reached = on_io(&context.io, TASK, async move { target.reach(&io).await });
        reached.await.map_err(|error| vec![error])
    }

    fn describe(&self, _schema: SchemaRef) -> String {
        format!("messages, each of one row as {}, to {}", self.form.describe(), self.target.shown())
    }

    async fn begin(&self, context: LoadContext) -> Result<Arc<dyn Load>> {
        let terms = terms(&context.budget, &context.io, PATIENCE);
        let (target, budget) = (Arc::clone(&self.target), Arc::clone(&context.budget));
        let sender =
            on_io(&context.io, TASK, async move { Ok(Sender::new(target.connect(&terms).await?, &terms, &budget)) });
        let sender = Arc::new(Mutex::new(sender.await?));
        let (form, place) = (self.form.clone(), self.target.shown());
        let (sent, known, has_sent) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        Ok(Arc::new(QueueLoad(Arc::new(Shared { context, form, place, sender, sent, known, has_sent }))))
    }

    fn guarantee(&self, queue: &QueueFacts) -> Result<Guarantee, String> {
        self.target.guarantee(queue)
    }

    async fn epochs(&self, load: &LoadOfQueue, context: LoadContext) -> Result<Option<EpochTarget>> {
        let terms = terms(&context.budget, &context.io, PATIENCE_OF_EPOCHS);
        let (target, form) = (Arc::clone(&self.target), self.form.clone());
        let taking = Taking { context, form, terms };
        if let Some(positions) = target.positions(load, &taking).await? {
            return Ok(Some(EpochTarget::Once(positions)));
        }
        let shared = epochs::Shared { target, taking, idle: Default::default(), known: Default::default() };
        Ok(Some(EpochTarget::AtLeastOnce(Arc::new(epochs::QueueEpochs(Arc::new(shared))))))
    }
}

fn terms(budget: &Budget, io: &Handle, patience: Duration) -> Terms {
    Terms { window: (budget.limit() / 8).clamp(WINDOW.0, WINDOW.1), patience, io: io.clone() }
}
