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
use super::plan::PlannedFile;

/// The files that a sink would write.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) target: Target,
    /// Whether what is there already is replaced.
    pub(crate) overwrite: bool,
}

/// Where files go.
#[async_trait]
pub(crate) trait Place: Debug + Send + Sync {
    /// What keeps files from being written there, as far as it is known before there are rows and without a network.
    /// `first` are the paths that are known by then.
    fn check(&self, wanted: &Wanted, first: &[String]) -> Vec<Error>;

    /// What keeps files from being written there, as far as only the network tells. Changes nothing.
    async fn reach(&self, wanted: &Wanted, first: &[String], context: &SourceContext) -> Vec<Error>;

    /// Begins a load, and finishes or removes what a dead run left.
    async fn begin(&self, wanted: &Wanted, context: &LoadContext) -> Result<Box<dyn Staging>>;
}

/// The files of one load, which nobody sees before they are committed. Dropped, they are taken back.
#[async_trait]
pub(crate) trait Staging: Send + Sync {
    /// Begins the file of that number, which will be at `path`.
    async fn file(&self, number: usize, path: &str) -> Result<Box<dyn Draft>>;

    /// All files are closed: makes everything durable. After this only the short `commit` remains.
    async fn prepare(&self, files: Vec<PlannedFile>) -> Result<()>;

    /// Gives the files their names, and removes those of the set that was there before.
    async fn commit(&self) -> Result<()>;

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

/// What is told if there is a set already that shall stay.
pub(crate) fn earlier_fault(target: &Target) -> Error {
    Error::refused(format!("an earlier run's files {} exist already", target.shown()))
        .hint("move them away, or leave `overwrite: false` out to replace them")
}

/// What is told if there is a file already that shall stay.
pub(crate) fn existing_fault(shown: &str) -> Error {
    Error::refused(format!("{shown} exists already"))
        .hint("move it away, or leave `overwrite: false` out to replace it")
}
