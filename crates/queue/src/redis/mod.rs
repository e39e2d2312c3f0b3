//! Redis, and servers that speak like it: streams with consumer groups.
//!
//! `place.rs` where a server is; `connection.rs` a connection; `reply.rs` what the server answers; `fault.rs` what its
//! errors mean; `spec.rs` what a job file may say.

mod connection;
mod fault;
mod place;
mod reply;
mod spec;

pub use connection::{Commands, Connection};
pub use fault::{Fault, Reaction};
pub use place::{Place, check_url};
pub use reply::{EntryId, Fields, Value};
pub use spec::{Acked, OnGap, RedisRead, Start};
