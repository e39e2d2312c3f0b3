//! Millstream's formats: text to batches and back.
//!
//! One folder a format (`lines`, `csv`, `json`, `parquet`), each with an `ENTRY` that stands in [`FORMATS`]. What
//! they share: [`columns`] (the type names of job files), [`drift`] (the columns of several files, by name),
//! [`encoding`] (bytes to UTF-8) and `split` (pieces of a text that can be parsed apart).
//! Where bytes come from and how they are compressed is left to the sources and codecs.

pub mod columns;
#[cfg(test)]
mod conformance;
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

/// All formats. To add one is to add a folder and a line here.
pub const FORMATS: &[FormatEntry] = &[lines::ENTRY, csv::ENTRY, json::ENTRY, parquet::ENTRY];
