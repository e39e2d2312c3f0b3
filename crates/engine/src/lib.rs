//! Millstream's engine: from a job to a DataFusion plan to a run and its report.
//!
//! This is the only crate that names every component ([`registry()`]) and the only one that knows DataFusion. What the
//! command line needs is here: [`load()`], [`check`], [`run`](run::run), [`explain`], [`preview`], [`guess`],
//! [`count`](urls::count) and [`cat`](urls::cat).

pub mod chunks;
mod commands;
pub mod failure;
pub mod fault;
mod fingerprint;
pub mod guess;
mod job_text;
mod ledgers;
mod load;
pub mod machine;
mod member;
pub mod memory;
mod node;
pub mod options;
mod overlap;
pub mod plan;
pub mod prepare;
pub mod read;
mod registry;
pub mod rejects;
pub mod replay;
pub mod report;
mod reword;
pub mod routing;
pub mod run;
pub mod runs;
pub mod runtime;
mod scratch;
pub mod sql;
mod stable;
pub mod urls;
pub mod verdict;

pub use commands::{Checked, FirstRows, Variables, check, explain, load, preview};
pub use failure::Failure;
pub use machine::{Asked, Machine};
pub use options::Warn;
pub use prepare::Base;
pub use registry::registry;
