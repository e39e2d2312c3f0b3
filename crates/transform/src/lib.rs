//! Millstream's transforms: SQL, short forms for what it is most often used for, and functions of one's own.
//!
//! A transform is one folder: `spec.rs` says what the job file may say, `mod.rs` composes a
//! [`Relation`](millstream_core::transform::Relation) of it. Planning and running that is left to the engine. To add
//! one, add a folder and a line in [`TRANSFORMS`].

mod dedupe;
mod filter;
mod function;
mod keys;
mod lookup;
mod map;
mod python;
mod select;
mod sort;
mod sql;
#[cfg(test)]
mod tests;
mod union;

use millstream_core::registry::TransformEntry;

pub use function::ENTRY as FUNCTION;

/// All transforms.
pub const TRANSFORMS: &[TransformEntry] =
    &[sql::ENTRY, filter::ENTRY, select::ENTRY, union::ENTRY, sort::ENTRY, dedupe::ENTRY, lookup::ENTRY, map::ENTRY];
