//! The traits that folders and buckets implement, so that the writing of rows does not depend on them.
//!
//! ```text
//!  Destination ─begin─▶ Staging ─file─▶ Draft ─ append … ─ close
//!                          │                                  │
//!                          └──────────▶ prepare ◀─────────────┘
//!                                       commit, or abort
//! ```

use std::fmt::Debug;

use async_trait::async_trait;
use millstream_core::sink::{ChangeNotes, LoadContext, WorkerPart};
use millstream_core::source::SourceContext;
use millstream_core::{Error, Result};

use super::handed::HandedFile;
use super::naming::Target;
use super::plan::{Plan, PlannedFile};
use super::spec::{FileMode, FileSpec};

/// Where a sink writes files, how it splits rows over them, and what happens to those of earlier runs.
#[derive(Debug, Clone)]
pub(crate) struct TargetFiles {
    pub(crate) target: Target,
    /// What happens to the files of earlier runs.
    pub(crate) mode: FileMode,
    /// Whether the job file sets the mode.
    pub(crate) chosen: bool,
    /// The expression of `split`.
    pub(crate) split: Option<String>,
}

impl TargetFiles {
    /// Combines `target` with the settings.
    pub(crate) fn new(target: Target, spec: &FileSpec) -> Self {
        let (mode, chosen) = (spec.mode(), spec.chosen_mode().is_some());
        TargetFiles { target, mode, chosen, split: spec.split.clone() }
    }

    /// Whether the list `plan` stays beside a single file until its resume chain, which began with the run `first`, has
    /// ended.
    pub(crate) fn keeps_until_end(&self, plan: &Plan, first: &str) -> bool {
        self.mode == FileMode::Error && !self.target.is_set() && !plan.unfinished && plan.is_of(first)
    }

    /// Whether it matters which files of `plan` still exist, since the user may have moved some away.
    pub(crate) fn looks_at(&self, plan: &Plan, resumes: Option<&str>) -> bool {
        self.mode == FileMode::Error && !resumes.is_some_and(|first| plan.is_of(first))
    }

    /// The same for files with `run` in their names.
    pub(crate) fn of_run(&self, run: &str) -> Self {
        TargetFiles { target: self.target.of_run(run), ..self.clone() }
    }
}

/// The destination of files: a folder or a bucket.
#[async_trait]
pub(crate) trait Destination: Debug + Send + Sync {
    /// Faults that are known before there are rows and without a network. `first` are the paths that are known by then.
    fn check(&self, target_files: &TargetFiles, first: &[String]) -> Vec<Error>;

    /// Checks for files of earlier runs, except those of the resume chain that began with `resumes`, and for faults
    /// that need the network. Changes nothing.
    async fn reach(
        &self,
        target_files: &TargetFiles,
        first: &[String],
        context: &SourceContext,
        resumes: Option<&str>,
    ) -> Vec<Error>;

    /// Finishes the commit of a dead run. Returns whether there was one. `resumes` as for `reach`.
    async fn recover(&self, target_files: &TargetFiles, context: &SourceContext, resumes: Option<&str>)
    -> Result<bool>;

    /// Removes a list that was only kept for the resume chain that began with `first`.
    async fn settle(&self, target_files: &TargetFiles, context: &SourceContext, first: &str) -> Result<()>;

    /// Begins a load, and finishes or removes the remains of a dead run.
    async fn begin(&self, target_files: &TargetFiles, context: &LoadContext) -> Result<Box<dyn Staging>>;

    /// Takes part in a load that the run has begun, as a worker of a cluster.
    async fn join(
        &self,
        target_files: &TargetFiles,
        context: &LoadContext,
        part: &WorkerPart,
    ) -> Result<Box<dyn Staging>>;

    /// The list of the current files, finished or not.
    async fn listed(&self, target: &Target, context: &SourceContext) -> Result<Option<Plan>>;

    /// The list of the current files, once the commit of a dead run is finished as far as it can be.
    async fn settled(&self, target: &Target, context: &SourceContext) -> Result<Option<Plan>>;

    /// Changes what the list has noted for a load, once the commit of a dead run is finished as far as it can be.
    async fn change_notes(
        &self,
        target_files: &TargetFiles,
        context: &LoadContext,
        load: &str,
        change: &ChangeNotes,
    ) -> Result<()>;

    /// Removes what the list keeps for a load.
    async fn forget(&self, target_files: &TargetFiles, context: &LoadContext, load: &str) -> Result<()>;
}

/// The files of one load, which are not visible before the commit. Dropping it rolls back.
#[async_trait]
pub(crate) trait Staging: Send + Sync {
    /// Begins the file with that number, which will be at `path`.
    async fn file(&self, number: usize, path: &str) -> Result<Box<dyn Draft>>;

    /// Whether an earlier run has already written the files, so that none is written now.
    fn is_there(&self) -> bool;

    /// Makes everything durable after all files are closed. Only the short `commit` remains.
    async fn prepare(&self, files: Vec<PlannedFile>) -> Result<()>;

    /// Gives the files their names. Removes the stale files of earlier runs, and returns their names for the report.
    async fn commit(&self) -> Result<Vec<String>>;

    /// Rolls back, unless it is committed. No draft is left by then.
    async fn abort(&self);

    /// Lets workers see that the load has begun.
    async fn begin_for_workers(&self) -> Result<()> {
        Ok(())
    }

    /// Makes the files of a worker durable, and completes what the load of the run needs to know of them. From then on
    /// they are not rolled back here.
    async fn hand_over(&self, _files: &mut [HandedFile]) -> Result<()> {
        Err(Error::internal("files of the run itself are handed over to nobody"))
    }

    /// Makes a file of a worker the one with that number.
    async fn adopt(&self, _number: usize, _handed: &HandedFile) -> Result<()> {
        Err(Error::internal("only the load of the run adopts files"))
    }

    /// Removes a file of a worker that nobody adopts.
    async fn discard(&self, _handed: &HandedFile) {}
}

/// A file that is being written.
#[async_trait]
pub(crate) trait Draft: Send {
    /// Adds bytes.
    async fn append(&mut self, bytes: &[u8]) -> Result<()>;

    /// Closes the open file, if nothing is added for a while.
    async fn rest(&mut self) -> Result<()>;

    /// Ends the file.
    async fn close(self: Box<Self>) -> Result<()>;
}

/// The error if a file already exists that must stay.
pub(crate) fn existing_fault(shown: &str, mode: FileMode) -> Error {
    let error = Error::refused(format!("{shown} exists already"));
    match mode {
        FileMode::Append => error
            .cause("a file with this run's name exists, but the list of files does not have it")
            .hint("if it holds the rows of this run, start again with --restart; or move it away"),
        _ => error.hint("move it away, or write `mode: replace` to replace it"),
    }
}
