//! Millstream's sinks: files, databases, queues, standard output, programs, nothing.
//!
//! Each sink is a folder with the same file names: `mod.rs` (the sink), `spec.rs` (its settings), its implementation,
//! and `tests.rs`. `encode.rs` is shared by sinks that write bytes, `database` by those of database servers;
//! `conformance.rs` is the suite that every sink passes. The engine provides formats and codecs, in
//! [`millstream_core::sink::SinkParts`]. `moves.rs` and `table_version.rs` are shared by all sinks of databases.

// Of what the sinks of databases share, a build without some of them leaves parts unused.
#![cfg_attr(not(all(feature = "mysql", feature = "postgres")), allow(dead_code))]

pub mod command;
#[cfg(test)]
mod conformance;
mod database;
pub mod discard;
mod encode;
pub mod file;
mod moves;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "kafka", feature = "redis"))]
pub mod queue;
mod shared;
pub mod sqlite;
pub mod stdout;
mod table_version;

use millstream_core::registry::{OptionalComponent, SinkEntry};

/// All sinks of this build.
pub const SINKS: &[SinkEntry] = &[
    file::ENTRY,
    #[cfg(feature = "kafka")]
    queue::KAFKA,
    #[cfg(feature = "mysql")]
    mysql::ENTRY,
    #[cfg(feature = "postgres")]
    postgres::ENTRY,
    #[cfg(feature = "redis")]
    queue::REDIS,
    sqlite::ENTRY,
    stdout::ENTRY,
    command::ENTRY,
    discard::ENTRY,
];

/// The sinks that are behind a feature, whether this build has them or not, and the stores that sinks write to.
pub const OPTIONAL: &[OptionalComponent] = &[
    OptionalComponent { name: "kafka", schemes: &["kafka"], feature: "kafka" },
    OptionalComponent { name: "mysql", schemes: &["mysql", "mariadb"], feature: "mysql" },
    OptionalComponent { name: "postgres", schemes: &["postgres", "postgresql"], feature: "postgres" },
    OptionalComponent { name: "redis", schemes: &["redis", "rediss"], feature: "redis" },
    OptionalComponent { name: "s3", schemes: &["s3"], feature: "cloud" },
    OptionalComponent { name: "gs", schemes: &["gs"], feature: "cloud" },
    OptionalComponent { name: "az", schemes: &["az"], feature: "cloud" },
];
