//! Loading chunk by chunk: rows become visible piece by piece, each piece exactly once however many runs it takes.
//!
//! ```text
//!            ┌ units ─▶ rows with positions   ─▶ chunks ─▶ group ─┐        ┌ plan ─▶ delivery ─▶ commit
//!  task N ───┤                                                     ├─ queue ┤
//!  task M ───┘                                                     ┘        └ plan ─▶ delivery ─▶ commit
//! ```
//! A **chunk** of a unit is all records whose first decoded byte lies in one stretch of [`CHUNK_BYTES`]; so the cut
//! depends on nothing but the data. A **group** is some whole chunks of one or more units in memory. Its rows go
//! through a plan of their own, whose end says that all of them have come out, and into one transaction of the target,
//! beside the notes of the chunks. A group whose transaction failed is still there and is delivered again.
//!
//! `pipeline.rs` which pipelines can be loaded so; `sinks.rs` which sinks; `units.rs` what tells units apart, and which
//! of them are complete; `versions.rs` which group notes the version of a unit; `group.rs` the rows of a group;
//! `assemble.rs` who puts them together; `instance.rs` the plan of a group; `span.rs` which records its rows are from;
//! `refused.rs` what is left out on the way; `arrival.rs` in which order staged rows count as having come;
//! `messages.rs` the rows of a queue, `epochs.rs` its epochs in place of chunks, and `each_epoch.rs` those that are
//! loads of their own; `queue_plan.rs` what holds for them; `references.rs` what lookups look up in; `load.rs` who
//! reads and delivers; `reload.rs` what replaces the rows of units that have changed; `spool.rs` where their rows wait.
//! `shared.rs` what the workers of a cluster tell that share a load. `origins.rs` reads rows for targets that are
//! loaded at once; `additive.rs` which plans of incremental sources can be loaded so, `admission.rs` which of their
//! units, and `marks.rs` which of their rows, if they are read by the time in a column. The target's side is
//! [`millstream_core::sink::Ledger`].

pub mod additive;
pub mod admission;
mod arrival;
mod assemble;
pub mod each_epoch;
pub mod epochs;
pub mod group;
pub mod instance;
pub mod load;
pub mod marks;
pub mod messages;
pub mod origins;
pub mod pipeline;
pub mod queue_plan;
pub mod references;
mod refused;
mod reload;
pub mod shared;
pub mod sinks;
mod span;
mod spool;
pub mod turn;
pub mod units;
mod versions;

/// Decoded bytes of a chunk. A load that was begun with other chunks cannot be resumed, so this stays as it is.
const CHUNK_BYTES: u64 = 1 << 20;

/// Decoded bytes of a chunk, in tests fewer.
pub fn chunk_bytes() -> u64 {
    #[cfg(debug_assertions)]
    if let Some(bytes) = std::env::var("MILLSTREAM_CHUNK_BYTES").ok().and_then(|bytes| bytes.parse().ok()) {
        return bytes;
    }
    CHUNK_BYTES
}
