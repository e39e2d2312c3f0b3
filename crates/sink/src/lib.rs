//! Where Millstream writes to: files, databases, standard output.
//!
//! One folder a sink, with the same file names in each: `mod.rs` (the sink and how its parts are wired), `spec.rs`
//! (what the job file may say), then the work, then `tests.rs`. `encode.rs` is what the sinks that write bytes share,
//! `database` what those of database servers share;
//! `conformance.rs` is the suite that every sink passes. Formats and codecs come from outside, in
//! [`millstream_core::sink::SinkParts`]; how rows get here is the engine's.

#[cfg(test)]
mod conformance;
mod database;
mod encode;
pub mod file;
mod ledger_version;
pub mod mysql;
pub mod postgres;
mod shared;
pub mod sqlite;

pub mod stdout;

use millstream_core::registry::SinkEntry;

/// Every kind of sink.
pub const SINKS: &[SinkEntry] = &[file::ENTRY, mysql::ENTRY, postgres::ENTRY, sqlite::ENTRY, stdout::ENTRY];
