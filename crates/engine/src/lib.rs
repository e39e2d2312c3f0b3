//! Millstream's engine: from a job to a DataFusion plan to a run and its report.
//!
//! This is the only crate that names every component ([`registry()`]) and the only one that knows DataFusion. Three
//! types are its face: an [`Engine`] is what all runs of a process share, a [`JobPlan`] is a checked job, and a
//! [`Run`](run::Run) is a job that runs.

pub mod checks;
pub mod chunks;
pub mod commands;
mod context;
mod engine;
pub mod explain;
pub mod failure;
pub mod fault;
mod fingerprint;
mod first_rows;
pub mod forget;
mod guess;
mod hooks;
mod job_plan;
pub mod job_text;
mod load;
pub mod machine;
pub mod mail;
mod member;
pub mod memory;
mod monitor;
mod node;
pub mod options;
mod overlap;
pub mod parse;
pub mod plan;
mod planner_names;
mod prepare;
mod query;
pub mod read;
mod registry;
pub mod rejects;
pub mod replay;
pub mod report;
mod require;
mod resume;
mod reword;
pub mod routing;
pub mod run;
mod runtime;
mod scratch;
pub mod sequences;
pub mod sql;
pub mod stages;
mod stream;
mod surroundings;
pub mod testing;
pub mod urls;
pub mod verdict;

pub use engine::{Engine, EngineBuilder};
pub use failure::Failure;
pub use job_plan::{JobPlan, Runnable};
pub use machine::{Asked, Machine};
pub use parse::{Checked, Outline, ParseOptions, Parsed};
pub use query::Query;
pub use registry::registry;
pub use resume::HAS_CHANGED;
pub use stream::RowStream;
