//! A live run in the history.

use std::sync::Arc;

use millstream_core::clock::now;
use millstream_core::{Error, Result, fail_point};
use rusqlite::{Params, TransactionBehavior, params};
use serde_json::Value;

use super::locks::RunLock;
use super::progress::ProgressFile;
use super::record::{Ending, Outcome};
use super::status::StatusFile;
use super::store::{RunHistory, signed};
use super::view::ViewFile;
use crate::{CancelFile, occurrences};

/// A live run that is in the history. It counts as killed if this is dropped before [`LiveRun::end`].
#[derive(Debug)]
pub struct LiveRun {
    history: Arc<RunHistory>,
    /// Its name.
    pub run: String,
    progress: Arc<ProgressFile>,
    status: Arc<StatusFile>,
    view: Arc<ViewFile>,
    _lock: RunLock,
}

impl LiveRun {
    pub(super) fn new(history: Arc<RunHistory>, run: &str, progress: ProgressFile, lock: RunLock) -> Self {
        let status = Arc::new(StatusFile::new(history.folder(), run));
        let view = Arc::new(ViewFile::new(history.folder(), run));
        LiveRun { history, run: run.to_owned(), progress: Arc::new(progress), status, view, _lock: lock }
    }

    /// Its progress file.
    pub fn progress(&self) -> Arc<ProgressFile> {
        Arc::clone(&self.progress)
    }

    /// The file that asks it to stop.
    pub fn cancel_file(&self) -> CancelFile {
        CancelFile::new(self.history.folder(), &self.run)
    }

    /// Its status file.
    pub fn status(&self) -> Arc<StatusFile> {
        Arc::clone(&self.status)
    }

    /// Its view.
    pub fn view(&self) -> Arc<ViewFile> {
        Arc::clone(&self.view)
    }

    /// Removes what says how the run goes, and what asks it to stop.
    fn remove_files(&self) {
        self.status.remove();
        self.view.remove();
        self.cancel_file().remove();
    }

    /// Stores that loading begins, what the run's rows depend on, and what is expected of it.
    pub fn loading(&self, fingerprint: &str, predicted: &Value) -> Result<()> {
        let update = "UPDATE runs SET fingerprint = ?2, predicted = ?3 WHERE run = ?1";
        let values = params![self.run, fingerprint, predicted.to_string()];
        self.history.checked(self.history.connection().execute(update, values)).map(drop)
    }

    /// Stores that there is nothing to resume after all.
    pub fn left_nothing(&self) -> Result<()> {
        let update = "UPDATE runs SET fingerprint = NULL WHERE run = ?1";
        self.history.checked(self.history.connection().execute(update, [&self.run])).map(drop)
    }

    /// Stores that the run was skipped, and why.
    pub fn skip(&self, why: &str) -> Result<()> {
        let update = "UPDATE runs SET ended = ?2, outcome = ?3, message = ?4 WHERE run = ?1";
        let values = params![self.run, signed(now()), Outcome::Skipped.name(), why];
        self.remove_files();
        self.store_end(update, values, Outcome::Skipped, Some(why))
    }

    /// Removes the run from the history: it has no right to begin.
    pub fn withdraw(self) -> Result<()> {
        let deleted = self.history.connection().execute("DELETE FROM runs WHERE run = ?1", [&self.run]);
        self.history.checked(deleted).map(drop)
    }

    /// Stores the end of the run and, with it, that of the occurrence that it has claimed.
    fn store_end(&self, update: &str, values: impl Params, outcome: Outcome, message: Option<&str>) -> Result<()> {
        let mut connection = self.history.connection();
        let store = || {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            transaction.execute(update, values)?;
            occurrences::end(&transaction, &self.run, outcome, message)?;
            transaction.commit()
        };
        self.history.checked(store())
    }

    /// Stores how the run ended.
    pub fn end(&self, error: Option<&Error>, ending: &Ending) -> Result<()> {
        let outcome = Outcome::of(error);
        let message = error.map(|error| match error.cause_text() {
            Some(cause) => format!("{}: {cause}", error.what()),
            None => error.what().to_owned(),
        });
        let update = "UPDATE runs SET ended = ?2, outcome = ?3, message = ?4, rows_read = ?5, rows_written = ?6, \
                      rows_rejected = ?7, units = ?8, report = ?9 WHERE run = ?1";
        let values = params![
            self.run,
            signed(now()),
            outcome.name(),
            message,
            signed(ending.rows_read),
            signed(ending.rows_written),
            signed(ending.rows_rejected),
            signed(ending.units),
            ending.report.as_ref().map(Value::to_string)
        ];
        fail_point::pass("state.before");
        let done = self.store_end(update, values, outcome, message.as_deref());
        fail_point::pass("state.after");
        self.remove_files();
        match done.is_ok() && outcome == Outcome::Done {
            // No run resumes it.
            true => self.progress.clear(),
            false => self.progress.note(),
        }
        done
    }
}
