//! What a run works with.

use millstream_core::{Error, ErrorKind, Result};
use millstream_job::{Job, Lint};
use millstream_state::LiveRun;

use super::events::Reports;
use crate::context::RunContext;
use crate::options::Cancel;
use crate::prepare::Prepared;
use crate::resume::ResumePoint;

/// What a run works with, from its plan to its commit.
#[derive(Clone, Copy)]
pub(super) struct Work<'w, 'j> {
    pub(super) run: &'w RunContext,
    pub(super) job: &'j Job,
    pub(super) prepared: &'w Prepared<'w>,
    pub(super) point: &'w ResumePoint,
    /// The run in the run history, if there is one.
    pub(super) live: Option<&'w LiveRun>,
    pub(super) cancel: &'w Cancel,
    /// Reports what is strange about the run.
    pub(super) warn: &'w (dyn Fn(&[Lint]) + Sync),
    /// Reports what happens.
    pub(super) reports: &'w Reports,
}

impl Work<'_, '_> {
    /// What `work` results in, unless the run is cancelled before.
    pub(super) async fn unless_interrupted<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(interruption()),
            done = work => done,
        }
    }
}

/// The error of a run that is cancelled.
pub(super) fn interruption() -> Error {
    Error::new(ErrorKind::Interrupted, "the run was interrupted; what it had written was rolled back")
        .hint("start it again with the same command")
}
