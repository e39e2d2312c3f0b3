//! The run history: opening it, beginning runs, and asking for them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::clock::now;
use millstream_core::{Error, Result, fail_point};
use rusqlite::{Connection, ErrorCode, OptionalExtension, Params, params};
use serde_json::Value;

use super::key::JobKey;
use super::live::LiveRun;
use super::locks::{self, OnlyRun, RunLock};
use super::migrations::{VERSION, migrate};
use super::progress::{self, ProgressFile};
use super::record::{COLUMNS, OfStep, Outcome, RunKind, RunRecord, record};
use super::retention::{self, KEPT, Kept};
use super::search;
use super::status;
use super::view;

/// How long to wait while others write to the history. A process that is stopped (Ctrl-Z) in the middle of a write
/// keeps all others waiting.
const BUSY_TIMEOUT: Duration = Duration::from_secs(60);

/// Holds for runs that may have left something to do. An index has these alone.
pub(super) const UNFINISHED: &str = "(outcome IS NULL OR outcome NOT IN ('done', 'skipped'))";

/// Holds for a run `this` if neither its resume chain has a later run, nor a later run of the same job is done. These
/// are two questions, each with an index: as one, with an `OR`, it would read all later runs of a job for each of its
/// runs.
pub(super) const LAST_WORD: &str = "NOT EXISTS (SELECT 1 FROM runs AS later INDEXED BY runs_of_outcomes WHERE \
    later.job \
    = this.job AND later.variables = this.variables AND later.outcome = 'done' AND later.rowid > this.rowid) AND NOT \
    EXISTS (SELECT 1 FROM runs AS later INDEXED BY runs_of_chains WHERE later.logical = this.logical AND later.rowid > \
    this.rowid AND later.job = this.job AND later.variables = this.variables)";

/// The version of this program.
pub(super) const PROGRAM: &str = env!("CARGO_PKG_VERSION");

/// The logical run that a run belongs to.
#[derive(Debug, Clone, Copy)]
pub struct LogicalRun<'a> {
    /// The first run of the resume chain.
    pub first: &'a str,
    /// When it began, in milliseconds since 1970.
    pub moment: i64,
    /// The series of runs that it belongs to.
    pub series: Option<&'a str>,
    /// What it is of.
    pub kind: RunKind,
    /// The step of a sequence that it is.
    pub of_step: Option<&'a OfStep>,
}

/// The run history.
#[derive(Debug)]
pub struct RunHistory {
    folder: PathBuf,
    connection: Mutex<Connection>,
    pub(super) kept: Kept,
}

/// Why a run history cannot be opened.
pub(super) enum Unopened {
    /// It is there, and may hold runs that matter: a newer version has written it, or another process holds it.
    Needed(Error),
    /// Anything else.
    Other(Error),
}

impl Unopened {
    pub(super) fn into_error(self) -> Error {
        match self {
            Unopened::Needed(error) | Unopened::Other(error) => error,
        }
    }
}

/// The default state folder; `None` if there is no home.
pub fn default_folder() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
    folder("XDG_STATE_HOME")
        .or_else(|| Some(folder("HOME")?.join(".local/state")))
        .map(|state| state.join("millstream"))
}

impl RunHistory {
    /// Opens the run history in `folder`, and creates what is missing.
    pub fn open(folder: &Path) -> Result<Arc<Self>> {
        RunHistory::try_open(folder, BUSY_TIMEOUT).map_err(Unopened::into_error)
    }

    /// The same for the default folder; `None` if it cannot be used. A history that is newer or held by another process
    /// is an error even so: a run without it might load rows twice.
    pub fn open_if_possible(folder: &Path) -> Result<Option<Arc<Self>>> {
        match RunHistory::try_open(folder, BUSY_TIMEOUT) {
            Ok(history) => Ok(Some(history)),
            Err(Unopened::Needed(error)) => Err(error),
            Err(Unopened::Other(_)) => Ok(None),
        }
    }

    pub(super) fn try_open(folder: &Path, timeout: Duration) -> Result<Arc<Self>, Unopened> {
        let failed = |cause: std::io::Error| {
            let error = Error::io(format!("the state folder {} cannot be used", folder.display()), &cause)
                .hint("name another one with `--state` or MILLSTREAM_STATE");
            Unopened::Other(error)
        };
        for part in [locks::RUNS, locks::JOBS, progress::FOLDER, status::FOLDER, view::FOLDER] {
            fs_err::create_dir_all(folder.join(part)).map_err(failed)?;
        }
        let unusable = |error: rusqlite::Error| match is_held(&error) {
            true => Unopened::Needed(cannot_be_used(folder, &error)),
            false => Unopened::Other(cannot_be_used(folder, &error)),
        };
        let mut connection = Connection::open(folder.join("runs.db")).map_err(unusable)?;
        connection.busy_timeout(timeout).map_err(unusable)?;
        match migrate(&mut connection).map_err(unusable)? {
            Some(newer) => Err(Unopened::Needed(is_newer(folder, newer))),
            None => {
                search::add_functions(&connection).map_err(unusable)?;
                let (folder, connection) = (folder.to_owned(), Mutex::new(connection));
                Ok(Arc::new(RunHistory { folder, connection, kept: KEPT }))
            }
        }
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `done`, whose error names the history.
    pub(crate) fn checked<T>(&self, done: rusqlite::Result<T>) -> Result<T> {
        done.map_err(|error| cannot_be_used(&self.folder, &error))
    }

    /// Enters a run of `job`, which belongs to `logical`.
    pub fn begin(self: &Arc<Self>, run: &str, logical: LogicalRun<'_>, job: &JobKey) -> Result<LiveRun> {
        let lock = RunLock::take(&self.folder, run)?;
        locks::remove_old(&self.folder);
        fail_point::pass("state.before");
        let insert = "INSERT INTO runs (run, logical, job, variables, process, began, program, moment, series, kind, \
                      sequence, step) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
        let LogicalRun { first, moment, series, kind, of_step } = logical;
        let (sequence, step) = of_step.map(|of| (&of.sequence, &of.step)).unzip();
        let (process, began) = (std::process::id(), signed(now()));
        let kind = kind.stored();
        let values =
            params![run, first, job.path, job.variables, process, began, PROGRAM, moment, series, kind, sequence, step];
        let number = {
            let connection = self.connection();
            self.checked(connection.execute(insert, values))?;
            connection.last_insert_rowid().unsigned_abs()
        };
        fail_point::pass("state.after");
        self.forget_old_runs(number)?;
        let progress = ProgressFile::new(&self.folder, run);
        Ok(LiveRun::new(Arc::clone(self), run, progress, lock))
    }

    /// Forgets the oldest runs when there are too many, and what is kept of them beside the history. `number` is that
    /// of the run that has just begun.
    fn forget_old_runs(&self, number: u64) -> Result<()> {
        let is_alive = |run: &str| locks::is_alive(&self.folder, run);
        if self.checked(retention::forget_oldest(&self.connection(), self.kept, number, is_alive))? {
            retention::remove_files(&self.folder, || retention::whole_runs(&self.connection(), self.kept).ok());
        }
        Ok(())
    }

    /// What `query` gives with `values`: rows of [`COLUMNS`].
    pub(super) fn records(&self, query: &str, values: impl Params) -> Result<Vec<RunRecord>> {
        let records = || {
            let connection = self.connection();
            let mut query = connection.prepare(query)?;
            let records = query.query_map(values, record)?;
            records.collect::<rusqlite::Result<Vec<_>>>()
        };
        Ok(self.checked(records())?.into_iter().map(|record| self.as_it_is(record)).collect())
    }

    /// Makes sure that no other run of `job` loads chunk by chunk.
    pub fn only_run(&self, job: &JobKey) -> Result<OnlyRun> {
        if let Some(lock) = OnlyRun::take(&self.folder, job)? {
            return Ok(lock);
        }
        let error = Error::refused("this job is running already");
        let other = self.last(job)?.filter(|other| other.outcome == Outcome::Running);
        let error = match other {
            Some(other) => error.cause(format!("run {} in process {}", other.run, other.process)),
            None => error,
        };
        Err(error.hint("wait until it has ended, or end it"))
    }

    /// All runs, the last one first, whatever the clock has shown; of one job, if `job` is given.
    pub fn list(&self, job: Option<&str>, most: u64) -> Result<Vec<RunRecord>> {
        let of_job = if job.is_some() { "job = ?1" } else { "?1 IS NULL" };
        let query = format!("SELECT {COLUMNS} FROM runs WHERE {of_job} ORDER BY rowid DESC LIMIT ?2");
        self.records(&query, params![job, signed(most)])
    }

    /// The last run that is no step of a sequence, or, if all are, the last one; of one job, if `job` is given.
    pub fn newest(&self, job: Option<&str>) -> Result<Option<RunRecord>> {
        let of_job = if job.is_some() { "job = ?1" } else { "?1 IS NULL" };
        let query = format!(
            "SELECT {COLUMNS} FROM runs WHERE sequence IS NULL AND step IS NULL AND {of_job} ORDER BY rowid DESC \
             LIMIT 1"
        );
        Ok(self.records(&query, [job])?.pop().or(self.list(job, 1)?.pop()))
    }

    /// The last `most` runs that left something to do, of one job, if `job` is given: neither the same logical run has
    /// a later one, nor is a later one of the same job done. The last one first.
    pub fn unfinished(&self, job: Option<&str>, most: u64) -> Result<Vec<RunRecord>> {
        self.unfinished_with(COLUMNS, job, most)
    }

    /// The same, with these columns of a record.
    pub(super) fn unfinished_with(&self, columns: &str, job: Option<&str>, most: u64) -> Result<Vec<RunRecord>> {
        let query = format!(
            "SELECT {columns} FROM runs AS this INDEXED BY unfinished_runs WHERE {UNFINISHED} AND (?1 IS NULL OR job = \
             ?1) AND {LAST_WORD} ORDER BY rowid DESC"
        );
        // Some without an outcome run.
        let mut runs = self.records(&query, params![job])?;
        runs.retain(|run| run.outcome.is_unfinished());
        runs.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        Ok(runs)
    }

    /// The last run of `job` that had begun to load: others have left nothing to resume.
    pub fn last(&self, job: &JobKey) -> Result<Option<RunRecord>> {
        Ok(self.loading_runs(job, 1)?.pop())
    }

    /// The runs of `job` that had begun to load, the last one first.
    pub fn loading_runs(&self, job: &JobKey, most: u64) -> Result<Vec<RunRecord>> {
        let query = format!(
            "SELECT {COLUMNS} FROM runs WHERE job = ?1 AND variables = ?2 AND fingerprint IS NOT NULL \
             ORDER BY rowid DESC LIMIT ?3"
        );
        self.records(&query, params![job.path, job.variables, signed(most)])
    }

    /// How many rows the runs of the resume chain `logical` have made visible chunk by chunk, as far as they could note
    /// it; without those of the run `except`.
    pub fn rows_of(&self, logical: &str, except: Option<&str>) -> Result<u64> {
        let runs = || {
            let connection = self.connection();
            let mut find = connection.prepare("SELECT run FROM runs WHERE logical = ?1")?;
            let runs = find.query_map([logical], |row| row.get(0))?;
            runs.collect::<rusqlite::Result<Vec<String>>>()
        };
        let runs = self.checked(runs())?;
        let counted = runs.iter().filter(|run| except != Some(run.as_str()));
        Ok(counted.filter_map(|run| progress::noted_rows(&self.folder, run)).sum())
    }

    /// The last run before `run` of the same job that was done.
    pub fn done_before(&self, run: &RunRecord) -> Result<Option<RunRecord>> {
        let query = format!(
            "SELECT {COLUMNS} FROM runs WHERE job = ?1 AND variables = ?2 AND outcome = 'done' \
             AND rowid < (SELECT rowid FROM runs WHERE run = ?3) ORDER BY rowid DESC LIMIT 1"
        );
        let values = params![run.job, run.variables, run.run];
        let found = self.connection().query_row(&query, values, record).optional();
        self.checked(found)
    }

    /// The reports of the last `most` runs of `job` that were done, the last one first.
    pub fn reports_of(&self, job: &JobKey, most: u64) -> Result<Vec<Value>> {
        let query = "SELECT report FROM runs WHERE job = ?1 AND variables = ?2 AND outcome = 'done' \
                     AND report IS NOT NULL ORDER BY rowid DESC LIMIT ?3";
        let reports = || {
            let connection = self.connection();
            let mut query = connection.prepare(query)?;
            let reports = query.query_map(params![job.path, job.variables, signed(most)], |row| row.get(0))?;
            reports.collect::<rusqlite::Result<Vec<String>>>()
        };
        let reports = self.checked(reports())?;
        Ok(reports.iter().filter_map(|report| serde_json::from_str(report).ok()).collect())
    }

    /// The run `run`, if the history has it.
    pub fn find(&self, run: &str) -> Result<Option<RunRecord>> {
        let query = format!("SELECT {COLUMNS} FROM runs WHERE run = ?1");
        let found = self.connection().query_row(&query, [run], record).optional();
        Ok(self.checked(found)?.map(|record| self.as_it_is(record)))
    }

    /// When the logical run `first` began, in milliseconds since 1970; `None` if no run of it is known.
    pub fn moment_of(&self, first: &str) -> Result<Option<i64>> {
        let query = format!("SELECT {COLUMNS} FROM runs WHERE logical = ?1 LIMIT 1");
        let found = self.connection().query_row(&query, [first], record).optional();
        Ok(self.checked(found)?.map(|run| run.moment()))
    }

    /// The runs of `job` that belong to a series, the last one first.
    pub fn in_series(&self, job: &str) -> Result<Vec<RunRecord>> {
        let query = format!("SELECT {COLUMNS} FROM runs WHERE job = ?1 AND series IS NOT NULL ORDER BY rowid DESC");
        self.records(&query, [job])
    }

    /// Whether a run that is a step of the logical run `sequence` had begun to load.
    pub fn has_loaded(&self, sequence: &str) -> Result<bool> {
        let query = "SELECT EXISTS (SELECT 1 FROM runs WHERE sequence = ?1 AND fingerprint IS NOT NULL)";
        self.checked(self.connection().query_row(query, [sequence], |row| row.get(0)))
    }

    /// The runs that are `step`, the last one first.
    pub fn of_step(&self, step: &OfStep) -> Result<Vec<RunRecord>> {
        let query = format!("SELECT {COLUMNS} FROM runs WHERE sequence = ?1 AND step = ?2 ORDER BY rowid DESC");
        self.records(&query, params![step.sequence, step.step])
    }

    /// Whether the resume chain `logical` is done.
    pub fn is_done(&self, logical: &str) -> Result<bool> {
        let query = "SELECT EXISTS (SELECT 1 FROM runs WHERE logical = ?1 AND outcome = 'done')";
        self.checked(self.connection().query_row(query, [logical], |row| row.get(0)))
    }

    /// How `run` goes, as JSON; of one that was killed, how it went last. `None` if that is not known. `run` is a run
    /// of the history.
    pub fn view_of(&self, run: &str) -> Option<String> {
        view::view_of(&self.folder, run)
    }

    /// Whether the process of `run` lives, as far as this machine knows.
    pub fn is_alive(&self, run: &str) -> bool {
        locks::is_alive(&self.folder, run)
    }

    /// Whether the run `run` was of this machine, and its process is gone.
    pub fn has_died(&self, run: &str) -> bool {
        locks::has_died(&self.folder, run)
    }

    /// `record`, with what the history cannot know: a run without an outcome is running if its lock is held.
    fn as_it_is(&self, record: RunRecord) -> RunRecord {
        if record.outcome != Outcome::Running {
            return record;
        }
        let outcome = match locks::is_alive(&self.folder, &record.run) {
            true => Outcome::Running,
            false => Outcome::Killed,
        };
        let status = status::status_of(&self.folder, &record.run);
        let record = match &status {
            Some(now) => RunRecord {
                rows_read: now.rows_read,
                rows_written: if outcome == Outcome::Running || now.queue.is_some() { now.rows_written } else { 0 },
                rows_rejected: now.rows_rejected,
                units: now.units,
                ..record
            },
            None => record,
        };
        // Of rows that become visible chunk by chunk it is known how many are.
        let rows_written = progress::noted_rows(&self.folder, &record.run).unwrap_or(record.rows_written);
        RunRecord { outcome, rows_written, status, ..record }
    }
}

fn is_newer(folder: &Path, found: i64) -> Error {
    Error::newer(format!("the state folder {}", folder.display()), found, VERSION)
        .hint("upgrade Millstream, or use another folder with `--state`; nothing was changed in this one")
}

/// Whether another process holds the history.
fn is_held(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

fn cannot_be_used(folder: &Path, error: &rusqlite::Error) -> Error {
    if is_held(error) {
        return Error::refused(format!("another process holds the run history in {}", folder.display()))
            .cause(error)
            .hint("a process that was stopped in the middle of a write holds it: continue that process, or end it");
    }
    Error::refused(format!("the run history in {} cannot be used", folder.display()))
        .cause(error)
        .hint("name another folder with `--state` or MILLSTREAM_STATE")
}

/// SQLite's integers have a sign.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
