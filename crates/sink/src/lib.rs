//! Millstream's sinks: files, databases, standard output.
//!
//! Each sink is a folder with the same file names: `mod.rs` (the sink), `spec.rs` (its settings), its implementation,
//! and `tests.rs`. `encode.rs` is shared by sinks that write bytes, `database` by those of database servers;
//! `conformance.rs` is the suite that every sink passes. The engine provides formats and codecs, in
//! [`millstream_core::sink::SinkParts`].

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
