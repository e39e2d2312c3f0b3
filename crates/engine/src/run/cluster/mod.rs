//! A run whose units are read by the workers of a cluster.
//!
//! ```text
//!  coordinator: begin ─▶ distribute ─▶ load what is left, alone ─▶ commit      (the run, as without workers)
//!                            │ units, by bundles         ▲ kept, committed, counted
//!  worker:                   └─▶ plan · read · deliver ──┘                     (the same chunks in the same ledger)
//! ```
//! Workers do nothing but what a run that resumes another one does: they deliver chunks that the target does not have.
//! When they have ended, the run loads what is left, as if it had been resumed: it finds all units complete, or reads
//! those that are not. So whatever becomes of workers, whether the load is complete is decided in one place.
//!
//! `hindrance.rs` why a job is not distributed; `task.rs` what workers get, and what they give back; `distribute.rs`
//! the coordinator's side; `tracked.rs` which deliveries are committed; `work.rs` the worker's side.

mod distribute;
mod hindrance;
mod task;
mod tracked;
mod work;

pub use hindrance::hindrance;
pub use work::EngineWork;
