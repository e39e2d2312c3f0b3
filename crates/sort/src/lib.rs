//! Millstream's external sort: rows in one order, within a memory budget.
//!
//! ```text
//!             sorting phase                                       merging phase
//!  input ─▶ [piece, filled] ─▶ [piece, sorted] ─▶ run in scratch ─┐
//!           └─ two halves: one fills while the other is written ┘ ├─▶ slices of all runs ─▶ merged on all cores
//!  input ─▶ …                     or it stays in memory ──────────┘
//! ```
//! [`rows`] lays rows out as records, [`piece`] sorts records in memory, [`scratch`] writes and reads runs ([`pack`]
//! compresses them), [`merge`] cuts them into slices, [`plan`] computes the sizes, and [`sorter`] drives it all.

mod memory;
mod merge;
mod pack;
mod piece;
mod plan;
mod rows;
mod scratch;
mod sorter;
#[cfg(test)]
mod tests;
mod values;

pub use merge::{Merge, Merged, Slice};
pub use pack::Compression;
pub use piece::Keep;
pub use plan::Plan;
pub use rows::{Key, KeyValues, Layout, Order, Prepared};
pub use scratch::is_in_memory;
pub use sorter::{Finished, Input, Resources, Sort, Usage};
