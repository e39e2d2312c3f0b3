//! A run whose units are read by the workers of a cluster.
//!
//! ```text
//!  coordinator: begin ─▶ distribute ─▶ load what is left, alone ─▶ commit      (the run, as without workers)
//!                            │ units, by bundles         ▲ kept, committed, counted
//!  worker:                   └─▶ plan · read · deliver ──┘                     (the same chunks in the same ledger)
//! ```
//! Workers do nothing but what a run that resumes another one does: they deliver chunks that the target does not have.
//! When they have ended, the run loads what is left, as if it had been resumed: it finds all units complete, or reads
//! those that are not. So whatever becomes of workers, whether the load is complete is decided in one place. Where the
//! target has no ledger, which is so of files, the leases take its place: what is left is what no bundle that counts
//! has.
//!
//! `hindrance.rs` why a job is not distributed; `task.rs` what workers get, and what they give back, `code.rs` code of
//! one's own on its way to them; `distribute.rs` the coordinator's side, `files.rs` files of workers, `count.rs` lines
//! that are counted, and `session.rs` what both have in common; `tracked.rs` which deliveries are committed; `work.rs`
//! the worker's side, and `announced.rs` what it says of units that may take it down.

mod announced;
mod code;
mod count;
mod distribute;
mod files;
mod hindrance;
mod session;
mod task;
mod tracked;
mod work;

use std::path::PathBuf;
use std::sync::Arc;

use millstream_job::Job;
use serde::{Deserialize, Serialize};

use crate::context::RunContext;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::prepare::{Reach, prepare};

pub use work::EngineWork;

/// What the workers of a cluster would do of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distribution {
    /// The sources that they would read.
    pub read: Vec<String>,
    /// The sinks into which they would write.
    pub written: Vec<String>,
    /// Why all of it runs on one machine, if it does, in words that end a sentence.
    pub here: Option<String>,
}

impl Engine {
    /// What workers would do of `job` that see the folders `shared` where this machine has them.
    ///
    /// # Errors
    /// If the job cannot be planned.
    pub async fn distribution(&self, job: Arc<Job>, shared: Vec<PathBuf>) -> Result<Distribution, Failure> {
        self.with_looking_context(async move |context: &RunContext| {
            let prepared = prepare(context, &job, None, Reach::Online).await?;
            let physical = prepared.plan_sinks(&job).await?;
            let here = hindrance::hindrance(&job, &prepared, &physical, &shared)
                .and_then(|()| code::gather(&job, &prepared).map(drop).map_err(|error| error.what().to_owned()))
                .err();
            let names =
                |all: Vec<&String>| if here.is_some() { Vec::new() } else { all.into_iter().cloned().collect() };
            let read = names(job.sources.iter().map(|source| &source.name.value).collect());
            let written = names(job.sinks.iter().map(|sink| &sink.name.value).collect());
            Ok(Distribution { read, written, here })
        })
        .await
    }
}
