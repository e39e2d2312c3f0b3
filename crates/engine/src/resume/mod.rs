//! What a run resumes: its place among the runs of its job, and what these have left in the targets.
//!
//! A load in a target's ledger is named after the job, the sink, the table and the first run of its resume chain; that
//! of an incremental source after the first three. So a target knows by itself what was begun in it and not ended, also
//! when a machine asks that knows nothing of the run that began it.
//!
//! `decide.rs` the policy, as pure functions; `refusals.rs` its messages; `names.rs` the names of loads; `point.rs`
//! what the run history says; `left.rs` what earlier runs have left in targets; `ledger.rs` the ledger of a sink in
//! this run, `staged.rs` its staged load; `look.rs` what commands look at between runs; `other_values.rs` what
//! runs with other values of `--set` have loaded.

mod decide;
mod ledger;
mod left;
mod look;
mod names;
mod other_values;
mod point;
mod refusals;
mod staged;
#[cfg(test)]
mod tests;

pub use ledger::{OpenLedger, complete, forget, stopped};
pub use other_values::OtherValues;
pub use point::{ResumePoint, ToDo};
pub use refusals::HAS_CHANGED;
pub use staged::{OpenStaged, left};
