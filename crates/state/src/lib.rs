//! What outlives a process: the state folder, in which one run keeps what later runs need.
//!
//! ```text
//!  STATE/runs.db                        the run history: a row for each run
//!  STATE/rows/RUN                       the progress file of a run: how many of its rows are visible
//!  STATE/live/RUN.lock                  locked by the run's process as long as it lives
//!  STATE/jobs/KEY.lock                  locked by the one run of a job that loads
//!  STATE/queues/KEY                     says that a load of a queue has begun whose target may forget that
//!  STATE/sequences/RUN/events.jsonl     what has happened in a run of a sequence
//!  STATE/sequences/RUN/…                what its steps were started with, and what they have said
//!  STATE/rejects/FIRST/RUN.jsonl.zst    what a run rejected; FIRST is the first run of its resume chain
//!  STATE/rejects/FIRST/replayed         which of these rejects were loaded later
//! ```
//! [`history`] owns the first four, `begun.rs` the fifth, `sequences.rs` the next two, [`rejects`] the others. The locks are the system's: a process
//! that is killed releases them, whatever process gets its number later.
//!
//! The history is for people and for `--resume`. What is in a target, the target itself knows: losing the state folder
//! loses no row. What a run decides by all this stands in the engine.

mod begun;
pub mod history;
pub mod rejects;
mod sequences;

pub use begun::BegunLoad;
pub use history::{
    Ending, JobKey, LiveRun, LogicalRun, OfStep, OnlyRun, Outcome, ProgressFile, QueueStatus, RunHistory, RunKind,
    RunRecord, RunStatus, StatusFile, began, default_folder, new_name,
};
pub use sequences::SequenceFolder;
