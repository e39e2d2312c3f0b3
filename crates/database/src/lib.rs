//! Database servers as places: where one is, who logs in, whether to trust it, and a connection to it.
//!
//! `place.rs` is the URL and the settings put together, `tls.rs` whom to trust, `mysql.rs` and `postgres/` connections
//! and what the servers say when there is none. What is read or written over a connection is the sources' and sinks'.

pub mod mysql;
pub mod place;
pub mod postgres;
mod tls;

pub use place::{Access, Place, Tls};
