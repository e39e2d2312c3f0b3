//! Millstream's engine: from a job to a DataFusion plan to a run and its report.
//!
//! This is the only crate that names every component ([`registry()`]) and the only one that knows DataFusion. What the
//! command line needs is here: [`load()`], [`check`], [`run`](run::run), [`explain`], [`preview`], [`guess`],
//! [`count`](urls::count) and [`cat`](urls::cat).

pub mod chunks;
mod commands;
pub mod fault;
mod fingerprint;
pub mod guess;
mod ledgers;
mod load;
pub mod machine;
pub mod memory;
pub mod meter;
mod overlap;
pub mod plan;
pub mod prepare;
pub mod read;
mod registry;
pub mod rejects;
pub mod report;
pub mod routing;
pub mod run;
pub mod runs;
pub mod runtime;
mod scratch;
pub mod sql;
mod stable;
pub mod tee;
pub mod urls;
pub mod verdict;

pub use commands::{Checked, FirstRows, Variables, Warn, check, explain, load, preview};
pub use machine::{Asked, Machine};
pub use prepare::{Base, Failure};
pub use registry::registry;
