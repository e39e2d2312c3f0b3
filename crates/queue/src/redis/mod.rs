//! Redis, and servers that speak like it: streams with consumer groups.
//!
//! `place.rs` where a server is; `connection.rs` a connection; `reply.rs` what the server answers; `fault.rs` what its
//! errors mean; `link.rs` how a server is waited for; `spec.rs` what a job file may say.
//!
//! A consumer: `queue.rs` joins a group, `consumer.rs` hands out what its tasks bring (`reader.rs`, `claimer.rs`,
//! `keeper.rs`; `shared.rs` and `waiting.rs` are between them), `stream.rs` is what is asked of the server. What they
//! decide stands apart from what they do: `ranges.rs`, `rows.rs`, `gaps.rs`, `watch.rs`, `book.rs`.
//!
//! A writer: `producer.rs`.

mod book;
mod claimer;
mod connection;
mod consumer;
mod fault;
mod gaps;
mod keeper;
mod link;
mod place;
mod producer;
mod queue;
mod ranges;
mod reader;
mod reply;
mod rows;
mod shared;
mod spec;
mod stream;
mod waiting;
mod watch;

#[cfg(test)]
mod tests;

pub use connection::{Commands, Connection};
pub use fault::{Fault, Reaction};
pub use place::{Place, check_url};
pub use producer::{OnOutage, RedisProducer};
pub use queue::RedisQueue;
pub use reply::{EntryId, Fields, Value};
pub use shared::shown as shown_stream;
pub use spec::{Acked, KEY_FIELD, OnGap, RedisRead, RedisWrite, Start};
