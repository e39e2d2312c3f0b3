//! Databases, for sources and sinks alike: endpoints and logins, connections, and how each database writes names, texts
//! and types.
//!
//! `endpoint.rs` combines the URL and the settings of a server; `tls.rs` has the trusted authorities; `answer.rs` is
//! the answer to a query as text; `name.rs` says which table is meant; `dialect.rs` and `load.rs` are the traits for
//! SQL text; `table.rs` and `order.rs` are facts for the statements of a load; `family.rs` is what columns can hold;
//! `in_step.rs` has the statements that keep a table in step; `io.rs` runs work on the runtime of the network.
//! `mysql/`, `postgres/` and `sqlite/` are the kinds of databases. Sources and sinks decide what to send over a
//! connection.

mod answer;
mod dialect;
pub mod endpoint;
pub mod family;
pub mod in_step;
mod io;
pub mod load;
#[cfg(feature = "mysql")]
pub mod mysql;
mod name;
mod order;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod sqlite;
pub mod table;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod tls;

pub use answer::{TextRows, first_cell};
pub use dialect::{Dialect, quoted_list};
pub use endpoint::Endpoint;
pub use io::on_io;
pub use load::LoadDialect;
pub use millstream_net::server::{Access, Tls};
pub use name::table_name;
pub use order::{Order, precedes};
