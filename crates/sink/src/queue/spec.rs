//! What the job file may say of writing to a queue, beside `from`, `write`, `compress` and the format.

use millstream_core::hint::did_you_mean;
use millstream_core::spec::Fault;
#[cfg(any(feature = "kafka", feature = "redis"))]
use millstream_core::spec::Spec;
#[cfg(feature = "kafka")]
use millstream_queue::kafka::KafkaWrite;
#[cfg(feature = "redis")]
use millstream_queue::redis::RedisWrite;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::message::Part;

/// Settings of a topic of Kafka that is written to.
#[cfg(feature = "kafka")]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KafkaSpec {
    /// How the brokers are reached.
    pub kafka: KafkaWrite,
    /// Columns that are not in the body of a message, but set its key (`_key`), headers (`_headers`, a JSON object of
    /// texts) and time (`_time`).
    pub add: Vec<String>,
    /// The compression level, on the scale of the codec; its own default if left out.
    pub level: Option<i32>,
}

#[cfg(feature = "kafka")]
impl Spec for KafkaSpec {
    const NAME: &'static str = "kafka";
    const SUMMARY: &'static str = "Sends each row as a message to a topic of Kafka, at least once; exactly once from \
                                    another topic of the same cluster.";
    const EXAMPLE: &'static str = "\
from: ranked
write: kafka://broker.example/countries
kafka: {user: etl, password: {secret: env:KAFKA_PASSWORD}}
";

    fn check(&self) -> Vec<Fault> {
        let own = self.kafka.faults().into_iter().map(|fault| inside(Self::NAME, fault));
        own.chain(parts(&self.add, &[]).err().into_iter().flatten()).collect()
    }
}

/// Settings of a stream of Redis that is written to.
#[cfg(feature = "redis")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RedisSpec {
    /// The stream, and how its server is reached.
    pub redis: RedisWrite,
    /// Columns that are not in the body of a message, but set its key (`_key`, a field of that name) and headers
    /// (`_headers`, a JSON object of texts, which are more fields of the entry).
    #[serde(default)]
    pub add: Vec<String>,
    /// The compression level, on the scale of the codec; its own default if left out.
    #[serde(default)]
    pub level: Option<i32>,
}

/// What an entry of a stream has no place for.
#[cfg(feature = "redis")]
pub(super) const NOT_OF_REDIS: &[(Part, &str)] = &[(Part::Time, "Redis sets the time of an entry itself")];

#[cfg(feature = "redis")]
impl Spec for RedisSpec {
    const NAME: &'static str = "redis";
    const SUMMARY: &'static str = "Adds each row as an entry to a stream of Redis or Valkey, at least once.";
    const EXAMPLE: &'static str = "\
from: ranked
write: redis://queue.example/0
redis: {stream: countries, password: {secret: env:REDIS_PASSWORD}}
";

    fn check(&self) -> Vec<Fault> {
        let own = self.redis.faults().into_iter().map(|fault| inside(Self::NAME, fault));
        own.chain(parts(&self.add, NOT_OF_REDIS).err().into_iter().flatten()).collect()
    }
}

/// A fault of settings below a key.
fn inside(key: &str, mut fault: Fault) -> Fault {
    fault.path.insert(0, key.to_owned());
    fault
}

/// What the columns of `add` set; the queue has no place for `without`.
///
/// # Errors
/// What is wrong with them, each with its place.
pub(super) fn parts(add: &[String], without: &[(Part, &str)]) -> Result<Vec<Part>, Vec<Fault>> {
    let names = || Part::ALL.into_iter().filter(|part| without.iter().all(|(other, _)| other != part)).map(Part::name);
    let part = |at: usize, name: &String| {
        let fault = |what: String| Fault::new(&format!("add.{at}"), what);
        let Some(part) = Part::ALL.into_iter().find(|part| part.name() == name) else {
            return Err(match name.as_str() {
                "_id" => {
                    let what = "`_id` cannot be set: the queue gives each message its id";
                    fault(what.to_owned()).hint("leave it out of `add`; a column `_id` is then part of the body")
                }
                _ => fault(format!("`{name}` is nothing that a message has beside its body")).hint(did_you_mean(
                    name,
                    "columns of `add`",
                    &names().collect::<Vec<_>>(),
                )),
            });
        };
        if let Some((_, why)) = without.iter().find(|(other, _)| *other == part) {
            let hint = format!("leave `{name}` out of `add`: the column is then part of the body");
            return Err(fault((*why).to_owned()).hint(hint));
        }
        if add[..at].contains(name) {
            return Err(fault(format!("`{name}` stands twice in `add`")).hint("remove one of them"));
        }
        Ok(part)
    };
    let (parts, faults): (Vec<_>, Vec<_>) =
        add.iter().enumerate().map(|(at, name)| part(at, name)).partition(Result::is_ok);
    match faults.is_empty() {
        true => Ok(parts.into_iter().flatten().collect()),
        false => Err(faults.into_iter().filter_map(Result::err).collect()),
    }
}
