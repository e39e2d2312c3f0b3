//! A run on many machines: which worker reads which units, and how coordinator and workers speak.
//!
//! ```text
//!  listing ─▶ Pool ─bundle─▶ Leases ─▶ coordinator ═ TLS ═ worker ─▶ what it reads with: Work
//!                                      └─▶ kept, counted, lost: Load
//! ```
//! What is read, and what comes of it, is the engine's: this crate hands on texts and values that it does not look
//! into. Workers load through the ledger of the target, which decides what is there; what has no ledger counts once, by
//! the lease.
//!
//! `pool.rs` the units that wait, packed; `leases.rs` who has which of them, as a function of what happens and of the
//! time; `identity.rs` the secret of a cluster; `wire.rs` the messages; `coordinator.rs` and `worker.rs` the two sides.

mod coordinator;
mod identity;
mod leases;
mod pool;
mod wire;
mod worker;

pub use coordinator::{Left, Listening, Load, Outcome, Seen, Settings, Standing, coordinate};
pub use identity::Identity;
pub use leases::{Answer, Bundle, Counts, Deadly, Done, Leases, Listed, Worker};
pub use pool::{Extent, ListedUnit, Pool};
pub use wire::{Hello, PROTOCOL, SentError, ToRead};
pub use worker::{Link, Parted, ReadBundle, Work, join};
