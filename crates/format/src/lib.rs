//! Millstream's formats: text to batches and back.
//!
//! Each format has a folder (`lines`, `csv`, `json`, `parquet`) with an `ENTRY`, which is listed in [`FORMATS`]. They
//! share [`drift`] (the columns of several files, by name), [`encoding`] (bytes to UTF-8), `split` (pieces of a text
//! that can be parsed separately) and `contains` (the records that are parsed at all).

#[cfg(test)]
mod conformance;
mod contains;
pub mod csv;
pub mod drift;
pub mod encoding;
pub mod json;
pub mod lines;
pub mod parquet;
mod sniff;
mod split;

use millstream_core::registry::FormatEntry;

pub use sniff::{Guess, foreign_member, foreign_text, guess};

/// All formats. A new one needs a folder and a line here.
pub const FORMATS: &[FormatEntry] = &[lines::ENTRY, csv::ENTRY, json::ENTRY, parquet::ENTRY];
