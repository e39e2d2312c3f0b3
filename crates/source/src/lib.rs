//! Where Millstream reads from: files, standard input, HTTP.
//!
//! ```text
//!  pattern ─expand─▶ paths and URLs ─list─▶ units ─open─▶ bytes
//!          pattern                   file · stdin · http
//! ```
//!
//! This crate owns names (braces, wildcards, lists of URLs), connections, retries and reading ahead. What the bytes
//! mean is the codec's matter. A source is one folder: `mod.rs` the wiring, `spec.rs` what the job file may say, then
//! the work, then `tests.rs`. To add one, add a folder and a line in [`SOURCES`].

mod feed;
pub mod file;
//HTTP pub mod http;
pub mod list;
pub mod pattern;
pub mod stdin;

#[cfg(test)]
mod conformance;

pub use list::{Listed, list_file};

use millstream_core::registry::SourceEntry;

/// All sources.
pub const SOURCES: &[SourceEntry] = &[file::ENTRY, stdin::ENTRY];
