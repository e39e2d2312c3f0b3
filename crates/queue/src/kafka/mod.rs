//! Kafka, and brokers that speak like it: topics with partitions, read by consumer groups, and written to
//! (`producer.rs`).
//!
//! ```text
//!  native ◀─ reader (a thread) ─reports─▶ consumer ◀─▶ desk (what was handed out, and how positions move)
//!    ▲                                      │
//!    └───────── starter, watch (tasks) ◀────┘ where a partition begins, what it has lost; whether brokers are there
//! ```
//!
//! `transactions.rs` messages and positions that go together, by a producer for each partition that is read
//! (`place_producer.rs`). `place.rs` where a topic is; `topic.rs` what it takes;
//! `spec.rs` what the job file says; `state.rs` what a target keeps of a partition; `fault.rs` what errors mean;
//! `native.rs` the C library.

mod consumer;
mod desk;
mod fault;
mod native;
mod noted;
mod place;
mod place_producer;
mod producer;
mod queue;
mod reader;
mod sample;
mod spec;
mod starter;
mod state;
#[cfg(test)]
mod tests;
mod topic;
mod transactions;
mod watch;

pub use place::{Place, check_url};
pub use place_producer::{Ended, PlaceProducer};
pub use producer::{Outgoing, Producer, RefusedMessage};
pub use queue::Kafka;
pub use spec::{KafkaRead, KafkaWrite, OnGap, Sasl, Start};
pub use transactions::{TopicLoad, Transactions, reads_itself};
