//! A run on many machines: which worker reads which units.
//!
//! ```text
//!  listing ─▶ Pool ─bundle─▶ Leases ─▶ worker ─▶ done, once
//! ```
//! It owns these decisions and nothing else: no clock, no network, no thread. What happens and the moment are
//! arguments, so that a test passes hours of a cluster within a second. Workers load through the ledger of the target,
//! which decides what is there; what has no ledger counts once, by the lease.
//!
//! `pool.rs` the units that wait, packed; `leases.rs` who has which of them.

mod leases;
mod pool;

pub use leases::{Answer, Bundle, Counts, Deadly, Done, Leases, Listed, Worker};
pub use pool::{ListedUnit, Pool};
