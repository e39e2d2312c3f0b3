//! Millstream's sources: files, standard input, programs, HTTP, FTP, SFTP, buckets, databases.
//!
//! ```text
//!  pattern ─expand─▶ paths and URLs ─list─▶ units ─open─▶ bytes
//!          pattern                   file · stdin · http · ftp · sftp · object
//! ```
//!
//! This crate handles names (braces, wildcards, lists of URLs), connections, retries and reading ahead. Codecs decode
//! the bytes. Each source is a folder with `mod.rs`, `spec.rs` (its settings), its implementation, and `tests.rs`. A
//! new one needs a folder and a line in [`SOURCES`].

// Of what several sources share, a build without some of them leaves parts unused.
#![cfg_attr(
    not(all(feature = "cloud", feature = "ftp", feature = "mysql", feature = "postgres", feature = "sftp")),
    allow(dead_code)
)]

pub mod command;
pub mod database;
mod feed;
pub mod file;
#[cfg(feature = "ftp")]
pub mod ftp;
#[cfg(feature = "http")]
pub mod http;
mod io;
pub mod list;
#[cfg(feature = "cloud")]
pub mod object;
pub mod pattern;
#[cfg(any(feature = "kafka", feature = "redis"))]
pub mod queue;
#[cfg(any(feature = "ftp", feature = "sftp"))]
mod remote;
#[cfg(any(feature = "ftp", feature = "http", feature = "sftp"))]
mod retry;
#[cfg(feature = "sftp")]
pub mod sftp;
pub mod stdin;
#[cfg(any(feature = "ftp", feature = "http"))]
mod tls;

#[cfg(test)]
mod conformance;

pub use list::{Listed, list_file};

use millstream_core::registry::{OptionalComponent, SourceEntry, StoreEntry};
#[cfg(any(feature = "ftp", feature = "http", feature = "sftp"))]
use millstream_core::spec::Duration;
use millstream_core::spec::{Fault, Spec, parse};
use serde_json::Value;

/// All sources of this build.
pub const SOURCES: &[SourceEntry] = &[
    file::ENTRY,
    stdin::ENTRY,
    command::ENTRY,
    #[cfg(feature = "http")]
    http::ENTRY,
    #[cfg(feature = "ftp")]
    ftp::ENTRY,
    #[cfg(feature = "sftp")]
    sftp::ENTRY,
    #[cfg(feature = "cloud")]
    object::S3,
    #[cfg(feature = "cloud")]
    object::GCS,
    #[cfg(feature = "cloud")]
    object::AZURE,
    #[cfg(feature = "mysql")]
    database::MYSQL,
    #[cfg(feature = "postgres")]
    database::POSTGRES,
    database::SQLITE,
    #[cfg(feature = "kafka")]
    queue::KAFKA,
    #[cfg(feature = "redis")]
    queue::REDIS,
];

/// The sources that are behind a feature, whether this build has them or not.
pub const OPTIONAL: &[OptionalComponent] = &[
    OptionalComponent { name: "http", schemes: &["http", "https"], feature: "http" },
    OptionalComponent { name: "ftp", schemes: &["ftp", "ftps"], feature: "ftp" },
    OptionalComponent { name: "sftp", schemes: &["sftp"], feature: "sftp" },
    OptionalComponent { name: "s3", schemes: &["s3"], feature: "cloud" },
    OptionalComponent { name: "gs", schemes: &["gs"], feature: "cloud" },
    OptionalComponent { name: "az", schemes: &["az"], feature: "cloud" },
    OptionalComponent { name: "mysql", schemes: &["mysql", "mariadb"], feature: "mysql" },
    OptionalComponent { name: "postgres", schemes: &["postgres", "postgresql"], feature: "postgres" },
    OptionalComponent { name: "kafka", schemes: &["kafka"], feature: "kafka" },
    OptionalComponent { name: "redis", schemes: &["redis", "rediss"], feature: "redis" },
];

/// All stores of objects of this build, for writing.
pub const STORES: &[StoreEntry] = &[
    #[cfg(feature = "cloud")]
    object::S3_STORE,
    #[cfg(feature = "cloud")]
    object::GCS_STORE,
    #[cfg(feature = "cloud")]
    object::AZURE_STORE,
];

/// The settings of a source; a missing block is an empty one.
fn settings<S: Spec>(block: &Value) -> Result<S, Vec<Fault>> {
    if block.is_null() { parse(&Value::Object(serde_json::Map::new())) } else { parse(block) }
}

/// Checks the settings that all network sources have.
#[cfg(any(feature = "ftp", feature = "http", feature = "sftp"))]
fn connection_faults(connections: usize, most: usize, connect_timeout: Duration, timeout: Duration) -> Vec<Fault> {
    let mut faults = Vec::new();
    if !(1..=most).contains(&connections) {
        faults.push(Fault::new("connections", format!("connections are from 1 to {most}")));
    }
    for (key, duration) in [("connect_timeout", connect_timeout), ("timeout", timeout)] {
        if duration.0.is_zero() {
            faults.push(Fault::new(key, "the time must be longer than 0").hint("write a time such as 30s"));
        }
    }
    faults
}
