//! Redis, and servers that speak like it: streams with consumer groups.
//!
//! `place.rs` where a server is; `connection.rs` a connection; `reply.rs` what the server answers; `fault.rs` what its
//! errors mean.

mod connection;
mod fault;
mod place;
mod reply;

pub use connection::{Commands, Connection};
pub use fault::{Fault, Reaction};
pub use place::Place;
pub use reply::{EntryId, Fields, Value};
