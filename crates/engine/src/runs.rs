//! The run history: what ran, how it ended, and what is unfinished, in a SQLite file of the state folder.
//!
//! ```text
//!  STATE/runs.db          a row for each run
//!  STATE/live/RUN.lock    locked by the run's process as long as it lives
//!  STATE/jobs/KEY.lock    locked by the one run of a job that loads chunk by chunk
//!  STATE/rejects/RUN/     what was left out by a run and those that resume it: see [`crate::rejects::log`]
//! ```
//! The locks are the system's, so a process that is killed gives them back, whatever process has its number then. The
//! history is for people and for `--resume`. What is in a target, the target itself knows: losing the history loses no
//! row.
//!
//! The history has a version ([`VERSION`]), which holds for the whole folder: increase it with every change that an
//! older program would misread. Opening an older history migrates it; a newer one is refused.

use std::collections::HashSet;
use std::fs::TryLockError;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fs_err::File;
use millstream_core::{Error, ErrorKind, Result, fail_point};
use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior, params};
use serde::Serialize;
use serde_json::Value;

use crate::stable;

/// So many runs are kept.
const KEPT: u64 = 1_000;

/// How long the lock of a killed run is kept: by then no server has anything of the run any more.
const KEPT_LOCK: Duration = Duration::from_secs(24 * 60 * 60);

/// How long another run may write to the history.
const PATIENCE: Duration = Duration::from_secs(10);

/// The columns of a record, in the order of [`record`].
const COLUMNS: &str = "run, logical, job, variables, fingerprint, process, began, ended, outcome, message, rows_read, \
                       rows_written, rows_rejected, units, predicted, report, program";

/// The migrations: the one at index N turns a history of version N into one of version N + 1. Version 0 is a new
/// history, or one written before histories had a version. Never change a migration that was released; append another
/// one. Programs of earlier versions may be running meanwhile, so migrations only add what these can ignore.
const MIGRATIONS: &[&str] =
    &["CREATE TABLE IF NOT EXISTS runs (run TEXT PRIMARY KEY, logical TEXT NOT NULL, job TEXT NOT \
    NULL, variables TEXT NOT NULL, fingerprint TEXT, process INTEGER NOT NULL, began INTEGER NOT NULL, ended INTEGER, \
    outcome TEXT, message TEXT, rows_read INTEGER NOT NULL DEFAULT 0, rows_written INTEGER NOT NULL DEFAULT 0, \
    rows_rejected INTEGER NOT NULL DEFAULT 0, units INTEGER NOT NULL DEFAULT 0, predicted TEXT, report TEXT); \
    ALTER TABLE runs ADD COLUMN program TEXT"];

/// The version of the history and its folder, stored as SQLite's `user_version`.
const VERSION: i64 = MIGRATIONS.len() as i64;

/// The version of this program.
const PROGRAM: &str = env!("CARGO_PKG_VERSION");

/// How often a run that lives notes its rows.
const NOTING: Duration = Duration::from_secs(5);

/// What tells a job from others: its file, and the variables that were set for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobKey {
    /// The path of the file, from the root.
    pub path: String,
    /// The variables of the command line, as `NAME=VALUE`, sorted.
    pub variables: String,
}

impl JobKey {
    /// Of the job at `path` with `variables`.
    pub fn new(path: &str, variables: &[(String, String)]) -> Self {
        let path = fs_err::canonicalize(path).map_or_else(|_| path.to_owned(), |path| path.display().to_string());
        let mut variables: Vec<String> = variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        variables.sort();
        JobKey { path, variables: variables.join("\n") }
    }

    /// As one text.
    pub fn text(&self) -> String {
        match self.variables.is_empty() {
            true => self.path.clone(),
            // Values may be long, and do not belong in a target.
            false => format!("{} {:016x}", self.path, stable::hash(&self.variables)),
        }
    }
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It runs.
    Running,
    /// To its end.
    Done,
    /// With an error.
    Failed,
    /// Someone asked it to end.
    Interrupted,
    /// Its process ended before it could record how.
    Killed,
}

impl Outcome {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Running => "running",
            Outcome::Done => "done",
            Outcome::Failed => "failed",
            Outcome::Interrupted => "interrupted",
            Outcome::Killed => "killed",
        }
    }

    /// Whether there is something left of it to do.
    pub fn is_unfinished(self) -> bool {
        matches!(self, Outcome::Failed | Outcome::Interrupted | Outcome::Killed)
    }
}

/// What the run history says of a run.
#[derive(Debug, Clone, Serialize)]
pub struct RunRecord {
    /// Its name.
    pub run: String,
    /// The name of the first run of the resume chain.
    pub logical: String,
    /// The job's file.
    pub job: String,
    /// The variables of the command line.
    pub variables: String,
    /// What its rows depended on, in short.
    pub fingerprint: Option<String>,
    /// The process.
    pub process: u32,
    /// When it began, in milliseconds since 1970.
    pub began: u64,
    /// When it ended.
    pub ended: Option<u64>,
    /// How it ended.
    pub outcome: Outcome,
    /// The error, if it ended with one.
    pub message: Option<String>,
    /// Rows that came out of the sources.
    pub rows_read: u64,
    /// Rows that the sinks took.
    pub rows_written: u64,
    /// Records that were refused.
    pub rows_rejected: u64,
    /// Units read to their end.
    pub units: u64,
    /// What was expected when it began.
    pub predicted: Value,
    /// Its report, if it ended well.
    pub report: Option<Value>,
    /// The version of Millstream; `None` for runs before this was stored.
    pub program: Option<String>,
}

/// What is told of a run when it ends.
#[derive(Debug, Clone, Default)]
pub struct Ending {
    /// Rows that came out of the sources.
    pub rows_read: u64,
    /// Rows that the sinks took.
    pub rows_written: u64,
    /// Records that were refused.
    pub rows_rejected: u64,
    /// Units read to their end.
    pub units: u64,
    /// The report, if it ended well.
    pub report: Option<Value>,
}

/// The run history.
#[derive(Debug)]
pub struct RunBook {
    folder: PathBuf,
    connection: Mutex<Connection>,
}

/// A live run that is in the history.
#[derive(Debug)]
pub struct LiveRun {
    book: Arc<RunBook>,
    /// Its name.
    pub run: String,
    pen: Arc<Pen>,
    lock: PathBuf,
    _locked: File,
}

/// The only run of its job that loads chunk by chunk.
#[derive(Debug)]
pub struct OnlyRun(#[allow(dead_code)] File);

/// Why a run history cannot be opened.
enum Unopened {
    /// A newer version of the program has written it.
    Newer(Error),
    /// Anything else.
    Other(Error),
}

impl Unopened {
    fn into_error(self) -> Error {
        match self {
            Unopened::Newer(error) | Unopened::Other(error) => error,
        }
    }
}

/// Where the state is kept by default; `None` if there is no home.
pub fn default_folder() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
    folder("XDG_STATE_HOME")
        .or_else(|| Some(folder("HOME")?.join(".local/state")))
        .map(|state| state.join("millstream"))
}

impl RunBook {
    /// Opens the run history in `folder`, and creates what is missing.
    pub fn open(folder: &Path) -> Result<Arc<Self>> {
        RunBook::try_open(folder).map_err(Unopened::into_error)
    }

    /// The same for the default folder; `None` if it cannot be used. A newer history is an error even so: a run without
    /// the history might load rows twice.
    pub fn open_if_possible(folder: &Path) -> Result<Option<Arc<Self>>> {
        match RunBook::try_open(folder) {
            Ok(book) => Ok(Some(book)),
            Err(Unopened::Newer(error)) => Err(error),
            Err(Unopened::Other(_)) => Ok(None),
        }
    }

    fn try_open(folder: &Path) -> Result<Arc<Self>, Unopened> {
        let failed = |cause: std::io::Error| {
            let error = Error::io(format!("the state folder {} cannot be used", folder.display()), &cause)
                .hint("name another one with `--state` or MILLSTREAM_STATE");
            Unopened::Other(error)
        };
        for part in ["live", "jobs", "rows"] {
            fs_err::create_dir_all(folder.join(part)).map_err(failed)?;
        }
        let told = |error| Unopened::Other(fault(folder, &error));
        let mut connection = Connection::open(folder.join("runs.db")).map_err(told)?;
        connection.busy_timeout(PATIENCE).map_err(told)?;
        match migrate(&mut connection).map_err(told)? {
            Some(newer) => Err(Unopened::Newer(is_newer(folder, newer))),
            None => Ok(Arc::new(RunBook { folder: folder.to_owned(), connection: Mutex::new(connection) })),
        }
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told<T>(&self, done: rusqlite::Result<T>) -> Result<T> {
        done.map_err(|error| fault(&self.folder, &error))
    }

    /// Enters a run of `job`; `logical` is the run that it resumes, or its own name.
    pub fn begin(self: &Arc<Self>, run: &str, logical: &str, job: &JobKey) -> Result<LiveRun> {
        let lock = self.lock_file(run);
        let failed = |cause: std::io::Error| Error::io("the lock of the run cannot be created", &cause);
        let file = File::create(&lock).map_err(failed)?;
        file.lock().map_err(failed)?;
        self.remove_old_locks();
        fail_point::pass("state.before");
        let insert = "INSERT INTO runs (run, logical, job, variables, process, began, program) \
                      VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        let values = params![run, logical, job.path, job.variables, std::process::id(), signed(now()), PROGRAM];
        self.told(self.connection().execute(insert, values))?;
        fail_point::pass("state.after");
        self.told(self.forget_old_runs())?;
        let pen = Arc::new(Pen { path: self.rows_file(run), rows: Mutex::default() });
        Ok(LiveRun { book: Arc::clone(self), run: run.to_owned(), pen, lock, _locked: file })
    }

    /// Forgets the oldest runs, many at a time: to find them takes a look at all runs, their reports included, and to
    /// count them one at an index.
    fn forget_old_runs(&self) -> rusqlite::Result<()> {
        let count: i64 = self.connection().query_row("SELECT count(*) FROM runs", [], |row| row.get(0))?;
        if count <= signed(KEPT + KEPT / 10) {
            return Ok(());
        }
        let old = "DELETE FROM runs WHERE run NOT IN (SELECT run FROM runs ORDER BY began DESC LIMIT ?1)";
        if self.connection().execute(old, [signed(KEPT)])? > 0 {
            self.forget_rejects();
        }
        Ok(())
    }

    /// Removes the locks that runs which were killed have left. A young one still says that its run was of this
    /// machine, and is dead. What cannot be removed stays, to no harm.
    fn remove_old_locks(&self) {
        let Ok(files) = fs_err::read_dir(self.folder.join("live")) else { return };
        for path in files.flatten().map(|file| file.path()) {
            let old = fs_err::metadata(&path).and_then(|metadata| metadata.modified());
            let is_old = old.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age > KEPT_LOCK));
            if is_old && File::open(&path).is_ok_and(|file| file.try_lock().is_ok()) {
                let _ = fs_err::remove_file(&path);
            }
        }
    }

    /// Removes the rejects, and what is noted of rows, of runs that are no longer in the history. What cannot be
    /// removed stays, to no harm.
    fn forget_rejects(&self) {
        let known =
            self.list(None, u64::MAX).map(|runs| runs.into_iter().map(|run| run.logical).collect::<HashSet<_>>());
        let (Ok(known), Ok(folders)) = (known, fs_err::read_dir(self.folder.join("rejects"))) else { return };
        for folder in folders.flatten() {
            if !known.contains(folder.file_name().to_string_lossy().as_ref()) {
                let _ = fs_err::remove_dir_all(folder.path());
            }
        }
        let runs = self.list(None, u64::MAX).map(|runs| runs.into_iter().map(|run| run.run).collect::<HashSet<_>>());
        let (Ok(runs), Ok(files)) = (runs, fs_err::read_dir(self.folder.join("rows"))) else { return };
        for file in files.flatten().filter(|file| !runs.contains(file.file_name().to_string_lossy().as_ref())) {
            let _ = fs_err::remove_file(file.path());
        }
    }

    fn lock_file(&self, run: &str) -> PathBuf {
        self.folder.join("live").join(format!("{run}.lock"))
    }

    /// What a run has noted of its rows.
    fn noted_rows(&self, run: &str) -> Option<u64> {
        let noted = fs_err::read_to_string(self.rows_file(run)).ok()?;
        // A file that is empty was about to be written.
        Some(noted.parse().unwrap_or(1))
    }

    fn rows_file(&self, run: &str) -> PathBuf {
        self.folder.join("rows").join(run)
    }

    /// Makes sure that no other run of `job` loads chunk by chunk.
    pub fn only_run(&self, job: &JobKey) -> Result<OnlyRun> {
        let path = self.folder.join("jobs").join(format!("{:016x}.lock", stable::hash(&job.text())));
        let failed = |cause: std::io::Error| Error::io("the lock of the job cannot be created", &cause);
        let file = File::create(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(OnlyRun(file)),
            Err(TryLockError::WouldBlock) => {
                let error = Error::refused("this job is running already");
                let other = self.last(job)?.filter(|other| other.outcome == Outcome::Running);
                let error = match other {
                    Some(other) => error.cause(format!("run {} in process {}", other.run, other.process)),
                    None => error,
                };
                Err(error.hint("wait until it has ended, or end it"))
            }
            Err(TryLockError::Error(cause)) => Err(failed(cause)),
        }
    }

    /// All runs, the last one first; of one job, if `job` is given.
    pub fn list(&self, job: Option<&str>, most: u64) -> Result<Vec<RunRecord>> {
        let query =
            format!("SELECT {COLUMNS} FROM runs WHERE ?1 IS NULL OR job = ?1 ORDER BY began DESC, run DESC LIMIT ?2");
        let records = || {
            let connection = self.connection();
            let mut query = connection.prepare(&query)?;
            let records = query.query_map(params![job, signed(most)], record)?;
            records.collect::<rusqlite::Result<Vec<_>>>()
        };
        Ok(self.told(records())?.into_iter().map(|record| self.alive(record)).collect())
    }

    /// The last run of `job` that had begun to load: others have left nothing to resume.
    pub fn last(&self, job: &JobKey) -> Result<Option<RunRecord>> {
        let query = format!(
            "SELECT {COLUMNS} FROM runs WHERE job = ?1 AND variables = ?2 AND fingerprint IS NOT NULL ORDER BY began \
             DESC, run \
             DESC LIMIT 1"
        );
        let found = self.connection().query_row(&query, [&job.path, &job.variables], record).optional();
        Ok(self.told(found)?.map(|record| self.alive(record)))
    }

    /// How many rows the runs that resume `logical` have made visible chunk by chunk, as far as they could say.
    pub fn rows_of(&self, logical: &str) -> Result<u64> {
        let runs = self.list(None, u64::MAX)?;
        let rows = runs.iter().filter(|run| run.logical == logical).filter_map(|run| self.noted_rows(&run.run));
        Ok(rows.sum())
    }

    /// The last run before `run` of the same job that was done.
    pub fn done_before(&self, run: &RunRecord) -> Result<Option<RunRecord>> {
        let query = format!(
            "SELECT {COLUMNS} FROM runs WHERE job = ?1 AND variables = ?2 AND outcome = 'done' AND began < ?3 ORDER BY \
             began \
             DESC LIMIT 1"
        );
        let values = params![run.job, run.variables, signed(run.began)];
        let found = self.connection().query_row(&query, values, record).optional();
        self.told(found)
    }

    /// Whether all that belongs to the run `logical` is done.
    pub fn is_done(&self, logical: &str) -> Result<bool> {
        let query = "SELECT EXISTS (SELECT 1 FROM runs WHERE logical = ?1 AND outcome = 'done')";
        self.told(self.connection().query_row(query, [logical], |row| row.get(0)))
    }

    /// Whether the run `run` was of this machine, and its process is gone.
    pub fn has_died(&self, run: &str) -> bool {
        File::open(self.lock_file(run)).is_ok_and(|file| file.try_lock_shared().is_ok())
    }

    /// A run without an outcome runs if its lock is held.
    fn alive(&self, record: RunRecord) -> RunRecord {
        if record.outcome != Outcome::Running {
            return record;
        }
        let free = match File::open(self.lock_file(&record.run)) {
            Ok(file) => file.try_lock_shared().is_ok(),
            Err(_) => true,
        };
        let rows_written = self.noted_rows(&record.run).unwrap_or(record.rows_written);
        RunRecord { outcome: if free { Outcome::Killed } else { Outcome::Running }, rows_written, ..record }
    }
}

/// Notes, while a run lives, that rows of it have become visible, now and then: what a run that is killed has done at
/// least. They are in a file beside the history, which a run that is stopped in the middle of writing would keep from
/// all others.
#[derive(Debug)]
pub struct Pen {
    path: PathBuf,
    /// Rows that are visible, and when that was last noted.
    rows: Mutex<(u64, Option<Instant>)>,
}

impl Pen {
    /// So many rows more are visible. The first are noted at once.
    pub fn add_rows(&self, rows: u64) {
        let mut known = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        known.0 += rows;
        if known.0 == 0 || known.1.is_some_and(|last| last.elapsed() < NOTING) {
            return;
        }
        known.1 = Some(Instant::now());
        // What cannot be noted now is noted with later rows.
        let _ = fs_err::write(&self.path, known.0.to_string());
    }

    /// The target has lost rows that were visible: what is noted of them says nothing any more.
    pub fn strike_out(&self) {
        *self.rows.lock().unwrap_or_else(PoisonError::into_inner) = (0, None);
        let _ = fs_err::remove_file(&self.path);
    }
}

impl LiveRun {
    /// For those who make rows visible.
    pub fn pen(&self) -> Arc<Pen> {
        Arc::clone(&self.pen)
    }

    /// Notes that loading begins, what the run's rows depend on, and what is expected of it.
    pub fn loading(&self, fingerprint: &str, predicted: &Value) -> Result<()> {
        let update = "UPDATE runs SET fingerprint = ?2, predicted = ?3 WHERE run = ?1";
        let values = params![self.run, fingerprint, predicted.to_string()];
        self.book.told(self.book.connection().execute(update, values)).map(drop)
    }

    /// Notes how the run ended.
    pub fn end(&self, error: Option<&Error>, ending: &Ending) -> Result<()> {
        let outcome = match error.map(Error::kind) {
            None => Outcome::Done,
            Some(ErrorKind::Interrupted) => Outcome::Interrupted,
            Some(_) => Outcome::Failed,
        };
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
        let done = self.book.told(self.book.connection().execute(update, values)).map(drop);
        fail_point::pass("state.after");
        if done.is_ok() && outcome == Outcome::Done {
            // No run resumes it.
            let _ = fs_err::remove_file(&self.pen.path);
        }
        done
    }
}

impl Drop for LiveRun {
    fn drop(&mut self) {
        // Finding no lock file says as much as finding it free.
        let _ = fs_err::remove_file(&self.lock);
    }
}

fn record(row: &Row<'_>) -> rusqlite::Result<RunRecord> {
    let number = |index| row.get::<_, i64>(index).map(i64::unsigned_abs);
    let value = |index| -> rusqlite::Result<Option<Value>> {
        Ok(row.get::<_, Option<String>>(index)?.and_then(|text| serde_json::from_str(&text).ok()))
    };
    let outcome: Option<String> = row.get(8)?;
    let known = [Outcome::Done, Outcome::Failed, Outcome::Interrupted];
    Ok(RunRecord {
        run: row.get(0)?,
        logical: row.get(1)?,
        job: row.get(2)?,
        variables: row.get(3)?,
        fingerprint: row.get(4)?,
        process: row.get(5)?,
        began: number(6)?,
        ended: row.get::<_, Option<i64>>(7)?.map(i64::unsigned_abs),
        outcome: known.into_iter().find(|known| outcome.as_deref() == Some(known.name())).unwrap_or(Outcome::Running),
        message: row.get(9)?,
        rows_read: number(10)?,
        rows_written: number(11)?,
        rows_rejected: number(12)?,
        units: number(13)?,
        predicted: value(14)?.unwrap_or(Value::Null),
        report: value(15)?,
        program: row.get(16)?,
    })
}

/// Migrates the history to [`VERSION`] in one transaction, for which other processes wait. Returns its version if it is
/// a newer one, and changes nothing then.
fn migrate(connection: &mut Connection) -> rusqlite::Result<Option<i64>> {
    let found = version(connection)?;
    if found >= VERSION {
        return Ok((found > VERSION).then_some(found));
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have migrated it meanwhile.
    let found = version(&transaction)?;
    if found >= VERSION {
        return Ok((found > VERSION).then_some(found));
    }
    let done = usize::try_from(found).unwrap_or(0);
    MIGRATIONS.iter().skip(done).try_for_each(|step| transaction.execute_batch(step))?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    fail_point::pass("migrate.before");
    transaction.commit()?;
    fail_point::pass("migrate.after");
    Ok(None)
}

fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

fn is_newer(folder: &Path, found: i64) -> Error {
    Error::newer(format!("the state folder {}", folder.display()), found, VERSION)
        .hint("upgrade Millstream, or use another folder with `--state`; nothing was changed in this one")
}

fn fault(folder: &Path, error: &rusqlite::Error) -> Error {
    Error::refused(format!("the run history in {} cannot be used", folder.display()))
        .cause(error)
        .hint("name another folder with `--state` or MILLSTREAM_STATE")
}

/// Milliseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// SQLite's integers have a sign.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> JobKey {
        JobKey { path: "/jobs/a.yaml".to_owned(), variables: String::new() }
    }

    #[test]
    fn a_run_that_ends_without_a_word_was_killed() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let book = RunBook::open(folder.path()).expect("it opens");
        let run = book.begin("1-1", "1-1", &key()).expect("it begins");
        let last = |book: &RunBook| book.last(&key()).expect("it answers").expect("there is one");
        let other = RunBook::open(folder.path()).expect("it opens twice");
        assert!(other.last(&key()).expect("it answers").is_none(), "there is nothing to go on with");
        run.loading("xyz", &Value::Null).expect("noted");
        assert_eq!(last(&other).outcome, Outcome::Running);
        drop(run);
        assert_eq!(last(&other).outcome, Outcome::Killed);
        let run = book.begin("2-2", "1-1", &key()).expect("it begins");
        run.loading("abc", &Value::Null).expect("noted");
        run.end(None, &Ending { rows_written: 7, ..Ending::default() }).expect("noted");
        drop(run);
        let done = last(&other);
        assert_eq!((done.outcome, done.rows_written, done.fingerprint.as_deref()), (Outcome::Done, 7, Some("abc")));
        assert!(other.is_done("1-1").expect("it answers") && !other.is_done("2-2").expect("it answers"));
        assert_eq!(other.list(None, 10).expect("it answers").len(), 2);
        assert_eq!(other.list(Some("/jobs/b.yaml"), 10).expect("it answers").len(), 0);
    }

    /// A history of version 0 with a run that was killed.
    fn first_book(folder: &Path) {
        let connection = Connection::open(folder.join("runs.db")).expect("a database");
        connection
            .execute_batch(
                "CREATE TABLE runs (run TEXT PRIMARY KEY, logical TEXT NOT NULL, job TEXT NOT NULL, variables TEXT NOT \
                 NULL, fingerprint TEXT, process INTEGER NOT NULL, began INTEGER NOT NULL, ended INTEGER, outcome \
                 TEXT, message TEXT, rows_read INTEGER NOT NULL DEFAULT 0, rows_written INTEGER NOT NULL DEFAULT 0, \
                 rows_rejected INTEGER NOT NULL DEFAULT 0, units INTEGER NOT NULL DEFAULT 0, predicted TEXT, report \
                 TEXT); INSERT INTO runs (run, logical, job, variables, fingerprint, process, began) VALUES ('1-1', \
                 '1-1', \
                 '/jobs/a.yaml', '', '0123456789abcdef', 7, 1)",
            )
            .expect("a book");
    }

    #[test]
    fn a_book_without_a_version_is_migrated_once_by_several_processes() {
        let folder = tempfile::TempDir::new().expect("a folder");
        first_book(folder.path());
        let books: Vec<_> = std::thread::scope(|scope| {
            let open = |_| scope.spawn(|| RunBook::open(folder.path()).expect("it is migrated"));
            let threads: Vec<_> = (0..8).map(open).collect();
            threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
        });
        for book in books {
            let last = book.last(&key()).expect("it answers").expect("the run is there");
            assert_eq!((last.run.as_str(), last.outcome, last.program), ("1-1", Outcome::Killed, None));
            assert_eq!(version(&book.connection()).expect("it has one"), VERSION);
        }
        let book = RunBook::open(folder.path()).expect("it opens again");
        let run = book.begin("2-2", "1-1", &key()).expect("it begins");
        run.loading("abc", &Value::Null).expect("noted");
        let last = book.last(&key()).expect("it answers").expect("there is one");
        assert_eq!(last.program.as_deref(), Some(PROGRAM));
    }

    #[test]
    fn a_newer_book_is_refused_and_stays_as_it_is() {
        let folder = tempfile::TempDir::new().expect("a folder");
        drop(RunBook::open(folder.path()).expect("it opens"));
        let connection = Connection::open(folder.path().join("runs.db")).expect("a database");
        connection.pragma_update(None, "user_version", VERSION + 1).expect("written");
        drop(connection);
        let before = fs_err::read(folder.path().join("runs.db")).expect("a file");
        for error in [
            RunBook::open(folder.path()).expect_err("it is newer"),
            RunBook::open_if_possible(folder.path()).expect_err("it is newer"),
        ] {
            assert!(error.what().ends_with("was written by a newer version of Millstream"), "{error:?}");
            assert!(error.hint_text().is_some_and(|hint| hint.contains("`--state`")), "{error:?}");
        }
        assert_eq!(fs_err::read(folder.path().join("runs.db")).expect("a file"), before);
    }

    #[test]
    fn locks_of_killed_runs_go_after_a_day_and_those_of_live_ones_stay() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let book = RunBook::open(folder.path()).expect("it opens");
        let live = book.begin("1-1", "1-1", &key()).expect("it begins");
        let long_ago = SystemTime::now() - Duration::from_secs(25 * 60 * 60);
        for name in ["old", "young", "1-1"] {
            let path = book.lock_file(name);
            let file = File::options().create(true).truncate(false).write(true).open(&path).expect("a file");
            if name != "young" {
                file.file().set_modified(long_ago).expect("it takes the time");
            }
        }
        book.begin("2-2", "2-2", &key()).expect("it begins");
        assert!(!book.lock_file("old").exists() && book.has_died("young"));
        assert!(book.lock_file("1-1").exists() && !book.has_died("1-1"));
        drop(live);
    }

    #[test]
    fn the_oldest_runs_are_forgotten_many_at_a_time() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let book = RunBook::open(folder.path()).expect("it opens");
        let fill = |runs: std::ops::Range<u64>| {
            let mut connection = book.connection();
            let transaction = connection.transaction().expect("begun");
            let insert =
                "INSERT INTO runs (run, logical, job, variables, process, began) VALUES (?1, ?1, 'j', '', 1, ?2)";
            for run in runs {
                transaction.execute(insert, params![format!("{run}-1"), signed(run)]).expect("written");
            }
            transaction.commit().expect("written");
        };
        let count = || book.list(None, u64::MAX).expect("it answers").len() as u64;
        fill(0..KEPT + KEPT / 10 - 1);
        drop(book.begin("a", "a", &key()).expect("it begins"));
        assert_eq!(count(), KEPT + KEPT / 10);
        drop(book.begin("b", "b", &key()).expect("it begins"));
        assert_eq!(count(), KEPT);
        let runs = book.list(None, u64::MAX).expect("it answers");
        assert!(runs.iter().all(|run| run.run != "0-1") && runs[0].run == "b", "the newest stay");
    }

    #[test]
    fn one_run_of_a_job_loads_at_a_time() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let book = RunBook::open(folder.path()).expect("it opens");
        let first = book.only_run(&key()).expect("nobody else runs");
        let refused = book.only_run(&key()).expect_err("one runs");
        assert!(refused.what().contains("running already"), "{refused:?}");
        let other = JobKey { variables: "DAY=1".to_owned(), ..key() };
        book.only_run(&other).expect("it is another job");
        drop(first);
        book.only_run(&key()).expect("nobody else runs");
    }
}
