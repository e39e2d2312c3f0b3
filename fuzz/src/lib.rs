//! Fuzz targets: one module each, with a function `run`, which panics if a property is violated.
//!
//! To add one: a module here with a line in [`TARGETS`], a file in `bin/` with its entry in `Cargo.toml`, and seeds in
//! `corpus/<name>/`. A test checks that none of the three is missing, and replays all corpora.

pub mod csv;
pub mod guess;
pub mod job;
pub mod json;
pub mod lines;
pub mod memory;
pub mod parquet;
pub mod rows;
pub mod sequence;
pub mod unpack;
pub mod zip;

/// Runs a target on one input.
pub type Run = fn(&[u8]);

/// All targets, by the names of their modules.
pub const TARGETS: &[(&str, Run)] = &[
    ("csv", csv::run),
    ("guess", guess::run),
    ("job", job::run),
    ("json", json::run),
    ("lines", lines::run),
    ("parquet", parquet::run),
    ("sequence", sequence::run),
    ("unpack", unpack::run),
    ("zip", zip::run),
];
