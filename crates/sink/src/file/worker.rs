//! The files that a worker of a cluster writes in a folder that all machines see. `handed.rs` tells what becomes of
//! them.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use millstream_core::sink::{LoadContext, WorkerPart};
use millstream_core::{Error, Result};

use super::destination::{Draft, Staging, TargetFiles};
use super::handed::{HandedFile, place};
use super::plan::PlannedFile;
use super::staged::{RUN, StagedFile, temporary_folder};
use crate::shared::{blocking, path_error, sync_folder};

/// The files of a worker in a folder that all machines see. Dropping it removes them, unless they are handed over.
pub(crate) struct ForRun {
    target_files: TargetFiles,
    /// What their names begin with.
    prefix: String,
    /// The hidden folder of the run.
    temporary: PathBuf,
    written: Mutex<Vec<PathBuf>>,
    context: LoadContext,
}

impl ForRun {
    /// Joins the load that the run has begun.
    ///
    /// # Errors
    /// If that is not to be seen here.
    pub(crate) fn join(target_files: &TargetFiles, context: &LoadContext, part: &WorkerPart) -> Result<Self> {
        let temporary = temporary_folder(&target_files.target);
        let note = temporary.join(RUN);
        let begun = blocking(|| fs_err::read_to_string(&note));
        if begun.as_ref().is_ok_and(|run| *run == context.run) {
            let prefix = format!("{}-{}-", context.run, part.attempt);
            let (target_files, context) = (target_files.clone(), context.clone());
            return Ok(ForRun { target_files, prefix, temporary, written: Mutex::default(), context });
        }
        let cause = match begun {
            Ok(_) => format!("{} is of another run", note.display()),
            Err(cause) => cause.to_string(),
        };
        let folder = target_files.target.folder().display();
        Err(Error::refused(format!("what the run has begun to write in {folder} is not to be seen here"))
            .cause(cause)
            .hint("is this folder the same one on all machines?"))
    }

    fn written(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self) {
        // The run removes what is left.
        self.written().drain(..).for_each(|path| drop(fs_err::remove_file(path)));
    }
}

#[async_trait]
impl Staging for ForRun {
    async fn file(&self, number: usize, path: &str) -> Result<Box<dyn Draft>> {
        let staged = self.temporary.join(format!("{}{number}", self.prefix));
        let shown = self.target_files.target.folder().join(path);
        let file = blocking(|| StagedFile::create(staged.clone(), shown, &self.context.budget))?;
        self.written().push(staged);
        Ok(Box::new(file))
    }

    fn is_there(&self) -> bool {
        false
    }

    async fn prepare(&self, _: Vec<PlannedFile>) -> Result<()> {
        Err(of_run())
    }

    async fn commit(&self) -> Result<Vec<String>> {
        Err(of_run())
    }

    async fn abort(&self) {
        blocking(|| self.remove());
    }

    async fn hand_over(&self, files: &mut [HandedFile]) -> Result<()> {
        blocking(|| {
            for handed in files {
                let number = handed.file.staged.ok_or_else(of_run)?;
                let name = format!("{}{number}", self.prefix);
                let path = self.temporary.join(&name);
                let synced = self.context.step.writing(|| fs_err::File::open(&path).and_then(|file| file.sync_all()));
                synced.map_err(|error| path_error("sync", &path, &error))?;
                handed.name = Some(name);
            }
            sync_folder(&self.temporary)?;
            self.written().clear();
            Ok(())
        })
    }

    async fn discard(&self, handed: &HandedFile) {
        blocking(|| place(&self.temporary, handed).map(fs_err::remove_file)).map(drop).unwrap_or_default();
    }
}

impl Drop for ForRun {
    fn drop(&mut self) {
        self.remove();
    }
}

fn of_run() -> Error {
    Error::internal("only the load of the run gives files their names")
}
