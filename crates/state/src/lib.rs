//! What outlives a process: the state folder, in which one run keeps what later runs need.
//!
//! ```text
//!  STATE/runs.db                        the run history: a row for each run
//!  STATE/rows/RUN                       the progress file of a run: how many of its rows are visible
//!  STATE/status/RUN, STATE/views/RUN    how a live run goes: in short, and all of it
//!  STATE/live/RUN.lock                  locked by the run's process as long as it lives
//!  STATE/jobs/KEY.lock                  locked by the one run of a job that loads
//!  STATE/scheduler.lock                 locked by the one scheduler of the folder
//!  STATE/cancel/RUN                     asks a run to stop
//!  STATE/shares/…                       how much memory each run has, locked by its process
//!  STATE/pools/NAME.PLACE               locked by a step of a sequence that has this place in a pool
//!  STATE/waits/….json                   a run that waits for its hours, locked by its process
//!  STATE/queues/KEY                     says that a load of a queue has begun whose target may forget that
//!  STATE/sequences/RUN/events.jsonl     what has happened in a run of a sequence
//!  STATE/sequences/RUN/…                what its steps were started with, and what they have said
//!  STATE/rejects/FIRST/RUN.jsonl.zst    what a run rejected; FIRST is the first run of its resume chain
//!  STATE/rejects/FIRST/replayed         which of these rejects were loaded later
//! ```
//! [`history`] owns the first five, `scheduler.rs` and `cancel.rs` the next two, `shares.rs` and `waits.rs` the three
//! behind them, `begun.rs` the next one, `sequences.rs` the folder of sequences, [`rejects`] the others;
//! `occurrences.rs` the tables of `runs.db` for what schedules have decided. The locks are the system's: a process that
//! is killed releases them, whatever process gets its number later.
//!
//! The history is for people and for `--resume`. What is in a target, the target itself knows: losing the state folder
//! loses no row. What a run decides by all this stands in the engine.

mod begun;
mod cancel;
pub mod history;
pub mod occurrences;
pub mod rejects;
mod scheduler;
mod sequences;
mod shares;
mod waits;

pub use begun::BegunLoad;
pub use cancel::CancelFile;
pub use history::{
    Ending, JobKey, KnownJob, LiveRun, LogicalRun, OfStep, OnlyRun, Outcome, ProgressFile, QueueStatus, RunFilter,
    RunHistory, RunKind, RunNumbers, RunRecord, RunStatus, StatusFile, ViewFile, began, default_folder, new_name,
};
pub use occurrences::{Claim, Occurrences};
pub use scheduler::OnlyScheduler;
pub use sequences::SequenceFolder;
pub use shares::{MemoryShare, PoolPlace, Wanted, memory_taken, places_taken};
pub use waits::{ShownWait, WaitingRun};
