//! The run history: what ran, how it ended, and what is unfinished, in a SQLite file of the state folder.
//!
//! `store.rs` the history and its queries; `record.rs` a run as it is stored; `migrations.rs` the version of the state
//! folder; `browse.rs` queries over many runs, `search.rs` for a text in them; `live.rs` a run that lives;
//! `progress.rs` its progress file, `status.rs` its status file and `view.rs` its view; `locks.rs` the locks of runs
//! and jobs; `retention.rs` how long runs are kept; `key.rs` what distinguishes jobs.

mod browse;
mod key;
mod live;
mod locks;
mod migrations;
mod progress;
mod record;
mod retention;
mod search;
mod status;
mod store;
mod view;

#[cfg(test)]
mod tests;

pub use browse::{KnownJob, RunFilter, RunNumbers};
pub use key::JobKey;
pub use live::LiveRun;
pub use locks::OnlyRun;
pub use progress::ProgressFile;
pub use record::{Ending, OfStep, Outcome, RunKind, RunRecord, began, new_name};
pub use status::{QueueStatus, RunStatus, StatusFile};
pub(crate) use store::signed;
pub use store::{LogicalRun, RunHistory, default_folder};
pub use view::ViewFile;
