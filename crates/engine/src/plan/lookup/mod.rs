//! Lookups: rows get columns of the rows of a reference that match them.
//!
//! ```text
//!  reference ─▶ rows, compact ─▶ fit? ─ yes ─▶ table in memory, in the order of the keys' hashes ─┐
//!  (once a run)     └ digest            └ no ─▶ sort by hash ─▶ blocks in scratch, and an index ─┐ │
//!                                                                                                 ▼ ▼
//!  rows ─▶ keys of a common type ─▶ hashes ─▶ pairs of rows whose hashes are equal ─▶ verified ─▶ policy ─▶ rows
//! ```
//! A lookup gives at most one row for each row, unless every match counts, so it keeps where rows are from. All tasks,
//! and all groups of a load chunk by chunk, share the one reference.
//!
//! `shape.rs` what is looked up, resolved against the columns; `compare.rs` which types can be compared, and how;
//! `digest.rs` the hash that tells whether a reference is still the same; `reference.rs` reads it; `table.rs` and
//! `blocks.rs` find rows in it; `rows.rs` the node of the logical plan, `exec.rs` that of the physical one.

mod blocks;
mod compare;
mod digest;
mod exec;
mod found;
mod reference;
mod rows;
mod shape;
mod table;
#[cfg(test)]
mod tests;

pub use exec::{LOOKUP, LookupExec, lookups, row_inputs};
pub use reference::Lookups;
pub use rows::{LookupRows, LookupRowsPlanner};
pub use shape::{Projection, Shape};
