//! Databases, for sources and sinks alike: where one is and who logs in, connections to it, and how names, texts and
//! types are written there.
//!
//! `place.rs` is the URL and the settings of a server put together, `tls.rs` whom to trust, `answer.rs` the answer to a
//! query as text, `name.rs` which table is meant, `dialect.rs` what all databases write in their own way, `load.rs` the statements of a load,
//! `table.rs` and `order.rs` what these are written from, `family.rs` what a column can hold, `io.rs` work on the
//! runtime of the network. `mysql/`, `postgres/` and `sqlite/` are the kinds of databases. What is read or written over
//! a connection is the sources' and sinks'.

mod answer;
mod dialect;
pub mod family;
mod io;
pub mod load;
pub mod mysql;
mod name;
mod order;
pub mod place;
pub mod postgres;
pub mod sqlite;
pub mod table;
mod tls;

pub use answer::{TextRows, first_cell};
pub use dialect::{Dialect, quoted_list};
pub use io::on_io;
pub use load::LoadDialect;
pub use name::table_name;
pub use order::Order;
pub use place::{Access, Place, Tls};
