//! What a folder and a bucket have in common. Who writes rows need not know where they go.
//!
//! ```text
//!  Place ─begin─▶ Staging ─file─▶ Draft ─ append … ─ close
//!                    │                                  │
//!                    └──────────▶ prepare ◀─────────────┘
//!                                 commit, or abort
//! ```

use std::fmt::Debug;

use async_trait::async_trait;
use millstream_core::sink::LoadContext;
use millstream_core::source::SourceContext;
use millstream_core::{Error, Result};

use super::naming::Target;
use super::plan::{Plan, PlannedFile};
use super::spec::{FileMode, FileSpec};

/// The files that a sink would write.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) target: Target,
    /// What happens to the files of earlier runs.
    pub(crate) mode: FileMode,
    /// Whether the job file says so.
    pub(crate) chosen: bool,
    /// The expression of `split`.
    pub(crate) split: Option<String>,
}

impl Wanted {
    /// What the settings say of `target`.
    pub(crate) fn new(target: Target, spec: &FileSpec) -> Self {
        let (mode, chosen) = (spec.mode(), spec.chosen_mode().is_some());
        Wanted { target, mode, chosen, split: spec.split.clone() }
    }

    /// Whether the list `plan` stays beside a single file until its run, the chain of which began with `first`, has
    /// ended.
    pub(crate) fn keeps_until_end(&self, plan: &Plan, first: &str) -> bool {
        self.mode == FileMode::Error && !self.target.is_set() && !plan.unfinished && plan.is_of(first)
    }

    /// Whether it matters which of the files of `plan` are there still: what the user has moved away is in nobody's
    /// way.
    pub(crate) fn looks_at(&self, plan: &Plan, resumes: Option<&str>) -> bool {
        self.mode == FileMode::Error && !resumes.is_some_and(|first| plan.is_of(first))
    }

    /// The same for files with `run` in their names.
    pub(crate) fn of_run(&self, run: &str) -> Self {
        Wanted { target: self.target.of_run(run), ..self.clone() }
    }
}

/// Where files go.
#[async_trait]
pub(crate) trait Place: Debug + Send + Sync {
    /// What keeps files from being written there, as far as it is known before there are rows and without a network.
    /// `first` are the paths that are known by then.
    fn check(&self, wanted: &Wanted, first: &[String]) -> Vec<Error>;

    /// What keeps files from being written there: what earlier runs have left, but for those that `resumes` is the
    /// first of, and what only the network tells. Changes nothing.
    async fn reach(
        &self,
        wanted: &Wanted,
        first: &[String],
        context: &SourceContext,
        resumes: Option<&str>,
    ) -> Vec<Error>;

    /// Finishes what a dead run had committed; whether there was something to finish. `resumes` as for `reach`.
    async fn recover(&self, wanted: &Wanted, context: &SourceContext, resumes: Option<&str>) -> Result<bool>;

    /// Removes the list that was kept only while the run chain that began with `first` had not ended.
    async fn settle(&self, wanted: &Wanted, context: &SourceContext, first: &str) -> Result<()>;

    /// Begins a load, and finishes or removes what a dead run left.
    async fn begin(&self, wanted: &Wanted, context: &LoadContext) -> Result<Box<dyn Staging>>;

    /// The list of the files that are there, be it done or not.
    async fn listed(&self, target: &Target, context: &SourceContext) -> Result<Option<Plan>>;

    /// Takes a commit marker out of the list.
    async fn unmark(&self, wanted: &Wanted, context: &LoadContext, marker: &str) -> Result<()>;
}

/// The files of one load, which nobody sees before they are committed. Dropped, they are taken back.
#[async_trait]
pub(crate) trait Staging: Send + Sync {
    /// Begins the file of that number, which will be at `path`.
    async fn file(&self, number: usize, path: &str) -> Result<Box<dyn Draft>>;

    /// Whether an earlier run has written the files, and none is written now.
    fn is_there(&self) -> bool;

    /// All files are closed: makes everything durable. After this only the short `commit` remains.
    async fn prepare(&self, files: Vec<PlannedFile>) -> Result<()>;

    /// Gives the files their names, and removes those of earlier runs that go: these come back, as a reader knows them.
    async fn commit(&self) -> Result<Vec<String>>;

    /// Takes back everything, unless it is committed. No draft is left by then.
    async fn abort(&self);
}

/// A file that is being written.
#[async_trait]
pub(crate) trait Draft: Send {
    /// Adds bytes.
    async fn append(&mut self, bytes: &[u8]) -> Result<()>;

    /// Nothing is added for a while: lets go of an open file.
    async fn rest(&mut self) -> Result<()>;

    /// Nothing more is added.
    async fn close(self: Box<Self>) -> Result<()>;
}

/// What is told if there is a file already that shall stay.
pub(crate) fn existing_fault(shown: &str, mode: FileMode) -> Error {
    let error = Error::refused(format!("{shown} exists already"));
    match mode {
        FileMode::Append => error
            .cause("a file with this run's name exists, but the list of files does not have it")
            .hint("if it holds the rows of this run, start again with --restart; or move it away"),
        _ => error.hint("move it away, or write `mode: replace` to replace it"),
    }
}
