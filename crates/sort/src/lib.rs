//! Millstream's external sort: rows in one order, within a memory budget.
//!
//! ```text
//!             sorting phase                                       merging phase
//!  input ─▶ [piece, filled] ─▶ [piece, sorted] ─▶ run in scratch ─┐
//!           └─ two halves: one fills while the other is written ┘ ├─▶ slices of all runs ─▶ merged on all cores
//!  input ─▶ …                     or it stays in memory ──────────┘
//! ```
//! [`rows`] lays rows out as records, [`piece`] sorts what is in memory, [`scratch`] writes and reads runs ([`pack`]
//! makes them smaller), [`merge`] cuts them into slices, [`sorter`] drives it all, as [`plan`] says beforehand. Streams
//! of queries are the engine's.

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
