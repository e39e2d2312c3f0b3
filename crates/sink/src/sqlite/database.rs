//! One database while a run writes to it: one connection, one thread, one transaction. It owns the transaction and
//! the file; statements and values are others'.
//!
//! ```text
//!  writer 0 ─┐ bounded                    ┌─ BEGIN IMMEDIATE
//!  writer 1 ─┼─channel─▶ thread: inserts ─┤  INSERT …
//!  writer n ─┘                            └─ COMMIT when every load of the run is prepared
//! ```
//! SQLite lets one connection write at a time. So all loads of a run into the same file share a connection: two sinks
//! with a transaction each would wait for each other for ever, as neither commits before both are prepared.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use millstream_core::sink::{Refusals, Refused, RefusedRow, SHOWN_BAD_ROWS};
use millstream_core::{Budget, Error, ErrorKind, RejectKind, Result, Step};
use millstream_database::Dialect;
use millstream_database::sqlite::{self, Access, LockWait, SqliteDialect};
use rusqlite::{Connection, ErrorCode, Statement};
use tokio::sync::{mpsc, oneshot};

use super::message::sqlite_error;
use super::spec::SqliteSpec;
use super::table::{self, Destination};
use super::values::{Cell, Column, Reader, ReaderOptions};
use crate::database::action::Action;
use crate::database::spec::Mode;
use crate::shared::{Charge, create_folders, path_error, remove_folders};

/// Batches that may wait for the thread.
const WAITING_BATCHES: usize = 4;
/// The page cache that SQLite gets at most and at least, in bytes. Beyond it, it writes pages out early.
const CACHE_BYTES: std::ops::RangeInclusive<usize> = (2 << 20)..=(64 << 20);

/// How often a database is opened that others remove meanwhile.
const MOVED_TRIES: usize = 100;

/// Databases by their file and the run that writes to them.
type OpenDatabases = HashMap<(PathBuf, String), Weak<Database>>;

/// The databases that runs of this process are writing to.
static OPEN: LazyLock<Mutex<OpenDatabases>> = LazyLock::new(Mutex::default);

/// What the thread is asked for.
enum Request {
    Join { load: u64, loading: Box<Loading>, reply: oneshot::Sender<Result<bool>> },
    Rows { load: u64, batch: RecordBatch, charge: Charge },
    Settle { reply: oneshot::Sender<Result<()>> },
    Prepare { load: u64, reply: oneshot::Sender<Result<()>> },
    Commit { load: u64, reply: oneshot::Sender<Result<Taken>> },
    Abort { reply: oneshot::Sender<()> },
}

/// A load that has begun.
pub(super) struct Joined {
    /// Its number.
    pub(super) load: u64,
    /// Whether an earlier run has written its rows.
    pub(super) done_before: bool,
}

/// What the table has taken of a load.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Taken {
    /// Rows that came and were not refused.
    pub(super) rows: u64,
    /// Those of them that were left out, since their key was there.
    pub(super) left_out: u64,
}

/// One load into the database.
pub(super) struct Loading {
    spec: SqliteSpec,
    schema: SchemaRef,
    step: Arc<Step>,
    taken: Taken,
    prepared: bool,
    /// What is noted with the rows.
    mark: Option<String>,
    /// An earlier run has written them.
    done_before: bool,
    /// Tables with foreign keys that the load touches, and their violations before it.
    foreign: Vec<(String, u64)>,
    /// Who decides about rows that the table does not take.
    refusals: Option<Arc<dyn Refusals>>,
    /// The statements that build the indexes that wait for the rows.
    indexes: Vec<String>,
    /// Which columns are text that the table's column may make a number of; none if it is not known yet.
    watched: Vec<bool>,
    /// Whether rows that are gathered are tried first, so that the table tells which of them it does not take.
    tried: bool,
}

impl Loading {
    pub(super) fn new(spec: SqliteSpec, schema: SchemaRef, step: Arc<Step>) -> Self {
        let (mark, done_before) = (None, false);
        let (foreign, refusals, indexes) = (Vec::new(), None, Vec::new());
        let (watched, tried) = (Vec::new(), false);
        Loading {
            spec,
            schema,
            step,
            taken: Taken::default(),
            prepared: false,
            mark,
            done_before,
            foreign,
            refusals,
            indexes,
            watched,
            tried,
        }
    }

    /// The same, which notes `mark` with its rows.
    pub(super) fn marked(self, mark: Option<String>) -> Self {
        Loading { mark, ..self }
    }

    /// The same, with someone who decides about rows that the table does not take.
    pub(super) fn refusing(self, refusals: Option<Arc<dyn Refusals>>) -> Self {
        Loading { refusals, ..self }
    }

    /// Looks at the table, which is there: for columns that could make numbers of text, and for conditions on rows.
    pub(super) fn watch(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        self.watched = table::watched(connection, &self.spec, &self.schema)?;
        self.tried =
            self.refusals.is_some() && table::is_gathered(&self.spec) && table::checks_rows(connection, &self.spec)?;
        Ok(())
    }

    /// The columns of the rows.
    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Where the load's work is counted.
    pub(super) fn step(&self) -> &Step {
        &self.step
    }
}

/// A database that a run writes to.
pub(super) struct Database {
    requests: mpsc::Sender<Request>,
    /// Why the transaction failed, once it has.
    failure: Arc<Mutex<Option<Error>>>,
    loads: Mutex<u64>,
    /// How the thread waits for locks. The limit is each load's own.
    lock_wait: LockWait,
}

/// Nobody can ask the thread for anything any more, so it need not wait for anybody.
impl Drop for Database {
    fn drop(&mut self) {
        self.lock_wait.stop();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Database {
    /// The database at `path` for this run: the one that another load of the run has opened, or a new one.
    pub(super) fn of_run(path: &Path, run: &str, budget: &Arc<Budget>) -> Result<Arc<Self>> {
        let mut open = lock(&OPEN);
        open.retain(|_, database| database.strong_count() > 0);
        let key = (identity(path), run.to_owned());
        if let Some(database) = open.get(&key).and_then(Weak::upgrade) {
            return Ok(database);
        }
        let (requests, inbox) = mpsc::channel(WAITING_BATCHES);
        let failure = Arc::new(Mutex::new(None));
        let lock_wait = LockWait::new(Duration::ZERO);
        let worker = Worker {
            lock_wait: lock_wait.clone(),
            path: path.to_owned(),
            shown: path.display().to_string(),
            connection: None,
            created_file: false,
            created_folders: Vec::new(),
            loads: BTreeMap::new(),
            state: State::Writing,
            failure: Arc::clone(&failure),
            budget: Arc::clone(budget),
            cache: None,
            room: 0,
            unwritten: 0,
        };
        std::thread::Builder::new()
            .name("sqlite".to_owned())
            .spawn(move || worker.run(inbox))
            .map_err(|error| Error::io("cannot start the thread that writes to SQLite", &error))?;
        let database = Arc::new(Database { requests, failure, loads: Mutex::new(0), lock_wait });
        open.insert(key, Arc::downgrade(&database));
        Ok(database)
    }

    /// Adds a load, and makes its table ready.
    pub(super) async fn join(&self, loading: Loading) -> Result<Joined> {
        let load = {
            let mut loads = lock(&self.loads);
            *loads += 1;
            *loads
        };
        let (reply, answer) = oneshot::channel();
        self.send(Request::Join { load, loading: Box::new(loading), reply }).await?;
        let done_before = self.answer(answer).await??;
        Ok(Joined { load, done_before })
    }

    /// Hands a batch over.
    pub(super) async fn rows(&self, load: u64, batch: RecordBatch, charge: Charge) -> Result<()> {
        if let Some(error) = self.failed() {
            return Err(error);
        }
        self.send(Request::Rows { load, batch, charge }).await
    }

    /// Waits until the rows that were handed over are inserted.
    pub(super) async fn settle(&self) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.send(Request::Settle { reply }).await?;
        self.answer(answer).await?
    }

    /// Waits until all rows of the load are in and only the commit remains.
    pub(super) async fn prepare(&self, load: u64) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.send(Request::Prepare { load, reply }).await?;
        self.answer(answer).await?
    }

    /// Commits the transaction, if no other load of the run has done so. Returns what the table has taken.
    pub(super) async fn commit(&self, load: u64) -> Result<Taken> {
        let (reply, answer) = oneshot::channel();
        self.send(Request::Commit { load, reply }).await?;
        self.answer(answer).await?
    }

    /// Rolls the transaction back, for all loads of the run. If the thread waits for a lock, it stops.
    pub(super) async fn abort(&self) {
        self.lock_wait.stop();
        let (reply, answer) = oneshot::channel();
        if self.send(Request::Abort { reply }).await.is_ok() {
            let _ = answer.await;
        }
    }

    fn failed(&self) -> Option<Error> {
        lock(&self.failure).clone()
    }

    async fn send(&self, request: Request) -> Result<()> {
        self.requests.send(request).await.map_err(|_| self.gone())
    }

    async fn answer<T>(&self, answer: oneshot::Receiver<T>) -> Result<T> {
        answer.await.map_err(|_| self.gone())
    }

    fn gone(&self) -> Error {
        self.failed().unwrap_or_else(|| Error::internal("the thread that writes to SQLite has ended"))
    }
}

/// The same text for the same file, however its path is written, also before it exists.
fn identity(path: &Path) -> PathBuf {
    if let Ok(known) = fs_err::canonicalize(path) {
        return known;
    }
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let existing = absolute.ancestors().skip(1).find_map(|folder| Some((folder, fs_err::canonicalize(folder).ok()?)));
    match existing {
        Some((folder, known)) => absolute.strip_prefix(folder).map_or(absolute.clone(), |rest| known.join(rest)),
        None => absolute,
    }
}

/// How far the transaction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Writing,
    Failed,
    Committed,
}

/// The thread's side.
struct Worker {
    lock_wait: LockWait,
    path: PathBuf,
    shown: String,
    connection: Option<Connection>,
    created_file: bool,
    created_folders: Vec<PathBuf>,
    loads: BTreeMap<u64, Loading>,
    state: State,
    failure: Arc<Mutex<Option<Error>>>,
    budget: Arc<Budget>,
    cache: Option<Charge>,
    /// Bytes that SQLite may hold before it writes pages out.
    room: usize,
    /// Bytes of rows since SQLite could write pages out.
    unwritten: u64,
}

impl Worker {
    fn run(mut self, mut inbox: mpsc::Receiver<Request>) {
        // Whoever does not wait for an answer any more has gone; the work is the same.
        while let Some(request) = inbox.blocking_recv() {
            match request {
                Request::Join { load, loading, reply } => {
                    let _ = reply.send(self.attempt(|worker| worker.join(load, *loading)));
                }
                Request::Rows { load, batch, charge } => {
                    // A failure is told by the next call of whoever writes.
                    let _ = self.attempt(|worker| worker.insert(load, &batch));
                    drop(charge);
                }
                Request::Settle { reply } => {
                    let _ = reply.send(self.attempt(|_| Ok(())));
                }
                Request::Prepare { load, reply } => {
                    let _ = reply.send(self.attempt(|worker| worker.prepare(load)));
                }
                Request::Commit { load, reply } => {
                    let _ = reply.send(self.commit(load));
                }
                Request::Abort { reply } => {
                    self.fail(given_up());
                    let _ = reply.send(());
                }
            }
        }
        self.fail(given_up());
    }

    /// Does `work` unless the transaction has failed; a failure of it fails the transaction.
    fn attempt<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if let Some(error) = lock(&self.failure).clone() {
            return Err(error);
        }
        if self.state == State::Committed {
            return Err(Error::internal("rows came after the commit"));
        }
        work(self).map_err(|error| {
            let error = if self.lock_wait.is_stopped() { given_up() } else { error };
            self.fail(error.clone());
            error
        })
    }

    /// Rolls back and removes what was made, unless it is committed. The first failure is the one that is told.
    fn fail(&mut self, error: Error) {
        lock(&self.failure).get_or_insert(error);
        if self.state != State::Writing {
            return;
        }
        self.state = State::Failed;
        if let Some(connection) = self.connection.take() {
            // Closing rolls back too, but the lock would be lost with it.
            let _ = connection.execute_batch("ROLLBACK");
            if self.created_file {
                remove_empty(&connection, &self.path);
            }
        }
        self.cache = None;
        remove_folders(&mut self.created_folders);
    }

    fn told<'a>(&'a self, what: &'static str, spec: &'a SqliteSpec) -> impl Fn(rusqlite::Error) -> Error + 'a {
        move |error| sqlite_error(what, &self.shown, spec, &error)
    }

    /// Opens the database if this is its first load, and makes the load's table ready. Whether its rows are there
    /// already.
    fn join(&mut self, load: u64, mut loading: Loading) -> Result<bool> {
        if self.connection.is_none() {
            self.begin(&loading.spec)?;
        }
        let Some(connection) = &self.connection else {
            return Err(Error::internal("the database is not open"));
        };
        let spec = &loading.spec;
        if self.loads.values().any(|other| other.spec.table.eq_ignore_ascii_case(&spec.table)) {
            return Err(Error::job(format!("two sinks write to table {} of {}", spec.table, self.shown))
                .hint("give each sink a table of its own, or put their rows together with a `union`"));
        }
        if let Some(mark) = &loading.mark {
            let marked = super::ledger::enter_whole(connection, mark);
            loading.done_before = marked.map_err(self.told("write to", spec))?;
        }
        if loading.done_before {
            self.loads.insert(load, loading);
            return Ok(true);
        }
        run_actions(connection, &spec.before, "before", &self.lock_wait)?;
        let mut faults = table::schema_faults(spec, &loading.schema);
        faults.extend(table::table_faults(connection, &self.shown, spec, &loading.schema)?);
        if let Some(first) = faults.into_iter().next() {
            return Err(first);
        }
        loading.foreign = table::foreign_keys(connection, spec).map_err(self.told("look into", spec))?;
        let exists = table::existing(connection, &self.shown, spec)?.is_some();
        let name = SqliteDialect.quoted(&spec.table);
        let mut statements = Vec::new();
        match spec.mode {
            Mode::Replace if exists => statements.push(format!("DROP TABLE {name}")),
            Mode::Truncate if exists => statements.push(format!("DELETE FROM {name}")),
            _ => {}
        }
        if !exists || spec.mode == Mode::Replace {
            statements.push(table::create_statement(spec, &loading.schema));
        } else {
            let evolving = table::evolving(connection, spec, &loading.schema);
            statements.extend(evolving.map_err(self.told("look into", spec))?);
        }
        if spec.defer_indexes && exists {
            for (name, create) in table::indexes(connection, spec).map_err(self.told("look into", spec))? {
                statements.push(format!("DROP INDEX {}", SqliteDialect.quoted(&name)));
                loading.indexes.push(create);
            }
        }
        if table::is_gathered(spec) {
            statements.extend(table::gathering_statements(spec, &loading.schema));
        }
        for statement in statements {
            connection.execute_batch(&statement).map_err(self.told("make the table in", spec))?;
        }
        let watched = loading.watch(connection);
        watched.map_err(self.told("look into", &loading.spec))?;
        self.loads.insert(load, loading);
        Ok(false)
    }

    fn begin(&mut self, spec: &SqliteSpec) -> Result<()> {
        for _ in 0..MOVED_TRIES {
            // Until we hold the lock, a run that gives up may remove the empty database, and the folder, it had made.
            self.make_folder()?;
            let opened = sqlite::open(&self.path, Access::Write);
            let file = inode(&self.path);
            match opened {
                Ok(mut connection) => {
                    let lock_wait = self.lock_wait.with_limit(spec.busy_timeout.0);
                    let begun = set_up(&mut connection, &lock_wait, &self.budget);
                    if file.is_some() && inode(&self.path) == file {
                        self.connection = Some(connection);
                        let cache = begun.map_err(self.told("write to", spec))?;
                        self.room = cache.bytes();
                        self.cache = Some(cache);
                        return Ok(());
                    }
                }
                Err(_) if self.path.parent().is_some_and(is_missing) => {}
                Err(error) => return Err(self.told("open", spec)(error)),
            }
        }
        Err(Error::transient(format!("{} is removed again and again", self.shown)))
    }

    /// Makes the database's folder, and notes whether the database is ours to make.
    fn make_folder(&mut self) -> Result<()> {
        if let Some(folder) = self.path.parent() {
            create_folders(folder, &mut self.created_folders)?;
        }
        match fs_err::metadata(&self.path) {
            Ok(metadata) if metadata.is_dir() => return Err(is_folder(&self.shown)),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => self.created_file = true,
            Err(error) => return Err(path_error("look at", &self.path, &error)),
        }
        Ok(())
    }

    fn insert(&mut self, load: u64, batch: &RecordBatch) -> Result<()> {
        let (Some(connection), Some(loading)) = (&self.connection, self.loads.get_mut(&load)) else {
            return Err(Error::internal("rows came for a load that has not begun"));
        };
        if loading.done_before {
            return Ok(());
        }
        let (start, rows) = (Instant::now(), batch.num_rows() as u64);
        let mut refused = Refused::default();
        let room = loading.refusals.as_ref().map_or(0, |refusals| refusals.room(rows)).max(SHOWN_BAD_ROWS - 1);
        let inserted = insert_narrowed(connection, loading, &self.shown, batch, 0, room, &mut refused);
        loading.step.add_busy(start.elapsed());
        let Inserted { bytes, left_out } = inserted?;
        loading.step.add_bytes(bytes);
        if !refused.rows.is_empty() {
            let place = place(&self.shown, &loading.spec);
            match &loading.refusals {
                Some(refusals) => refusals.refuse(&place, &refused)?,
                None => return Err(refused.into_error(&place)),
            }
        }
        loading.taken.rows += rows - refused.rows.len() as u64;
        loading.taken.left_out += left_out;
        self.unwritten += bytes;
        self.write_out();
        Ok(())
    }

    /// Writes pages out where they fill the cache. While somebody reads the database that cannot be done, be it another
    /// process or this job itself: what is held then is charged.
    fn write_out(&mut self) {
        let (Some(connection), Some(cache)) = (&self.connection, &mut self.cache) else { return };
        if self.unwritten < self.room as u64 {
            return;
        }
        self.unwritten = 0;
        let held = if connection.cache_flush().is_ok() { 0 } else { cache.bytes() };
        cache.force(held + self.room);
    }

    /// Marks a load as complete. With the last of them everything but the commit is done: the foreign keys are
    /// looked at, and all pages are written, which takes the locks and the disk space that the commit needs.
    fn prepare(&mut self, load: u64) -> Result<()> {
        let Some(connection) = &self.connection else {
            return Err(Error::internal("the database is not open"));
        };
        match self.loads.get_mut(&load) {
            Some(loading) => {
                loading.prepared = true;
                if table::is_gathered(&loading.spec) {
                    publish(connection, loading, &self.shown)?;
                }
                for create in &loading.indexes {
                    let built = connection.execute_batch(create);
                    built.map_err(|error| sqlite_error("write to", &self.shown, &loading.spec, &error))?;
                }
                if !loading.done_before {
                    run_actions(connection, &loading.spec.after, "after", &self.lock_wait)?;
                }
                if let (Some(mark), false) = (&loading.mark, loading.done_before) {
                    let noted = super::ledger::mark_whole(connection, mark);
                    noted.map_err(|error| sqlite_error("write to", &self.shown, &loading.spec, &error))?;
                }
            }
            None => return Err(Error::internal("a load is prepared that has not begun")),
        }
        if !self.loads.values().all(|loading| loading.prepared) {
            return Ok(());
        }
        for loading in self.loads.values() {
            check_foreign_keys(connection, loading, &self.shown)?;
        }
        let Some(loading) = self.loads.get(&load) else { return Ok(()) };
        let lock_wait = self.lock_wait.with_limit(loading.spec.busy_timeout.0);
        let start = Instant::now();
        let is_busy = |error: &rusqlite::Error| error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy);
        let flushed = loading.step.writing(|| {
            let mut tries = 0;
            loop {
                match connection.cache_flush() {
                    Err(error) if is_busy(&error) && lock_wait.pause(start, tries) => tries += 1,
                    other => return other,
                }
            }
        });
        flushed.map_err(self.told("write to", &loading.spec))
    }

    fn commit(&mut self, load: u64) -> Result<Taken> {
        if self.state == State::Committed {
            return self.taken(load);
        }
        self.attempt(|worker| {
            if !worker.loads.values().all(|loading| loading.prepared) {
                return Err(Error::internal("a commit came before every load of the database was prepared"));
            }
            let (Some(connection), Some(loading)) = (&worker.connection, worker.loads.get(&load)) else {
                return Err(Error::internal("a load is committed that has not begun"));
            };
            let committed = loading.step.writing(|| connection.execute_batch("COMMIT"));
            committed.map_err(worker.told("commit to", &loading.spec))?;
            worker.state = State::Committed;
            worker.connection = None;
            worker.cache = None;
            worker.taken(load)
        })
    }

    fn taken(&self, load: u64) -> Result<Taken> {
        let loading = self.loads.get(&load);
        loading.map(|loading| loading.taken).ok_or_else(|| Error::internal("a load is committed that has not begun"))
    }
}

/// Gives SQLite memory for its pages: a share of the budget, within bounds.
pub(super) fn give_cache(connection: &Connection, budget: &Arc<Budget>) -> rusqlite::Result<Charge> {
    let wanted = (budget.limit() / 16).clamp(*CACHE_BYTES.start(), *CACHE_BYTES.end());
    let mut charge = Charge::new(budget, *CACHE_BYTES.start());
    let taken = if charge.set(wanted) { wanted } else { *CACHE_BYTES.start() };
    // The least is within what may always be held.
    let _ = charge.set(taken);
    sqlite::set_page_cache(connection, taken)?;
    Ok(charge)
}

/// Begins the transaction; the memory of the pages.
fn set_up(connection: &mut Connection, lock_wait: &LockWait, budget: &Arc<Budget>) -> rusqlite::Result<Charge> {
    lock_wait.apply(connection)?;
    connection.set_prepared_statement_cache_capacity(64);
    // Without it, replacing a table would delete rows of others: see `table::foreign_keys`.
    sqlite::enforce_foreign_keys(connection, false)?;
    let cache = give_cache(connection, budget)?;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    // Pages that cannot be written out since somebody reads are kept; waiting for that would stop the load at each of
    // them.
    connection.busy_handler(None::<fn(i32) -> bool>)?;
    Ok(cache)
}

/// Runs the user's own commands, and statements in the transaction that is open, which they may not end.
fn run_actions(connection: &Connection, actions: &[Action], when: &str, lock_wait: &LockWait) -> Result<()> {
    for action in actions {
        let statement = match action {
            Action::Statement(statement) => statement,
            Action::Command(line) => {
                line.run_blocking(when, || !lock_wait.is_stopped())?;
                continue;
            }
        };
        let failed =
            |cause: String| Error::refused(format!("a statement of `{when}` failed")).text(statement).cause(cause);
        connection.execute_batch(statement).map_err(|error| {
            failed(super::message::cause(&error)).hint("nothing was loaded: it is a part of the load's transaction")
        })?;
        if connection.is_autocommit() {
            return Err(failed("it has ended the transaction".to_owned())
                .hint("take it out: the load's own transaction is open, and what was in it may have been committed"));
        }
    }
    Ok(())
}

/// Moves the rows that were gathered into the table.
fn publish(connection: &Connection, loading: &mut Loading, shown: &str) -> Result<()> {
    let spec = &loading.spec;
    let told = |error: rusqlite::Error| {
        let told = sqlite_error("write to", shown, spec, &error);
        match is_refusal(&error) {
            true if told.reject_kind() == RejectKind::Duplicate => crate::database::load::moved_together(told),
            true if loading.tried => told,
            true => told.hint("mend such rows, or filter them out; `max_rejects` at the sink finds them one by one"),
            false => told,
        }
    };
    let changed = connection.execute(&table::publish_statement(spec, &loading.schema), []).map_err(told)?;
    connection.execute_batch(&format!("DROP TABLE {}", table::gathering(spec))).map_err(told)?;
    if spec.mode == Mode::Ignore {
        loading.taken.left_out = loading.taken.rows.saturating_sub(changed as u64);
    }
    Ok(())
}

/// The end of a load that nobody wants any more.
fn given_up() -> Error {
    Error::refused("the load was given up")
}

/// Which file is at `path`, if there is one.
fn inode(path: &Path) -> Option<(u64, u64)> {
    fs_err::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

fn is_missing(folder: &Path) -> bool {
    !folder.as_os_str().is_empty() && folder.symlink_metadata().is_err()
}

/// Removes the database that we made, if nobody has put anything into it. Under its lock: whoever waits for it sees
/// afterwards that the file is another, and SQLite itself refuses to write into one that was removed.
pub(super) fn remove_empty(connection: &Connection, path: &Path) {
    let locked = connection.busy_timeout(Duration::ZERO).and_then(|()| connection.execute_batch("BEGIN EXCLUSIVE"));
    if locked.is_ok() && fs_err::metadata(path).is_ok_and(|metadata| metadata.len() == 0) {
        // A database that stays is empty, which is no harm.
        let _ = fs_err::remove_file(path);
    }
}

/// The target is a folder.
pub(super) fn is_folder(shown: &str) -> Error {
    Error::refused(format!("{shown} is a folder, not a database"))
        .hint(format!("name a file in it, such as sqlite:{}/result.db", shown.trim_end_matches('/')))
}

fn check_foreign_keys(connection: &Connection, loading: &Loading, shown: &str) -> Result<()> {
    let spec = &loading.spec;
    for (name, before) in &loading.foreign {
        let now =
            table::violations(connection, name).map_err(|error| sqlite_error("look into", shown, spec, &error))?;
        if now > *before {
            let new = crate::shared::counted(now - before, "row");
            return Err(Error::data(format!("{new} of table {name} of {shown} would refer to rows that do not exist"))
                .cause("FOREIGN KEY constraint failed")
                .hint(format!("load the rows that they refer to, or see which: PRAGMA foreign_key_check({name})")));
        }
    }
    Ok(())
}

/// What has become of some rows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Inserted {
    /// Their bytes, about.
    pub(super) bytes: u64,
    /// How many were left out, since their key was there.
    left_out: u64,
}

/// Inserts the rows of a batch.
fn insert_batch(
    connection: &Connection,
    loading: &Loading,
    shown: &str,
    batch: &RecordBatch,
    into: Destination,
) -> Result<Inserted> {
    let (spec, schema) = (&loading.spec, &loading.schema);
    let columns: Vec<Column> = schema
        .fields()
        .iter()
        .zip(batch.columns())
        .map(|(field, array)| Column::new(field, array))
        .collect::<Result<_>>()?;
    let options = ReaderOptions::default();
    let readers: Vec<Reader> = columns.iter().map(|column| column.reader(&options)).collect::<Result<_>>()?;
    let told = |error: rusqlite::Error| sqlite_error("write to", shown, spec, &error);
    let many_rows = table::rows_in_statement(schema);
    let mut many = connection.prepare_cached(&table::insert_statement(spec, schema, many_rows, into)).map_err(told)?;
    let mut one = connection.prepare_cached(&table::insert_statement(spec, schema, 1, into)).map_err(told)?;
    let drops_rows = table::may_insert_fewer(spec, schema, into);
    let inserted = Inserted::default();
    let mut insertion = Insertion { readers, spec, shown, watched: &loading.watched, drops_rows, inserted };
    let mut row = 0;
    while row + many_rows <= batch.num_rows() {
        match insertion.rows(&mut many, row, many_rows)? {
            Ok(()) => {}
            // Which of the rows was it? Nothing of the statement stays, and the transaction is lost anyway.
            Err(error) if is_refusal(&error) && !connection.is_autocommit() => {
                for suspect in row..row + many_rows {
                    insertion.single(&mut one, suspect)?;
                }
                return Err(told(error));
            }
            Err(error) => return Err(told(error)),
        }
        row += many_rows;
    }
    for row in row..batch.num_rows() {
        insertion.single(&mut one, row)?;
    }
    Ok(insertion.inserted)
}

/// `table t of x.db`.
pub(super) fn place(shown: &str, spec: &SqliteSpec) -> String {
    format!("table {} of {shown}", spec.table)
}

/// Inserts a batch whose first row has the number `first`. If it is refused, in halves, down
/// to the bad rows, which are left out and told, until there are more than `room` of them.
pub(super) fn insert_narrowed(
    connection: &Connection,
    loading: &Loading,
    shown: &str,
    batch: &RecordBatch,
    first: u64,
    room: usize,
    refused: &mut Refused,
) -> Result<Inserted> {
    let told = |error: rusqlite::Error| sqlite_error("write to", shown, &loading.spec, &error);
    let mut all = Inserted::default();
    let mut parts = vec![(first, batch.clone())];
    while let Some((first, part)) = parts.pop().filter(|_| !refused.more) {
        connection.execute_batch("SAVEPOINT part").map_err(told)?;
        let error = match insert_tried(connection, loading, shown, &part) {
            Ok(inserted) => {
                all.bytes += inserted.bytes;
                all.left_out += inserted.left_out;
                connection.execute_batch("RELEASE part").map_err(told)?;
                continue;
            }
            Err(error) => error,
        };
        // A trigger may have rolled everything back.
        if error.kind() != ErrorKind::Data || connection.is_autocommit() {
            return Err(error);
        }
        connection.execute_batch("ROLLBACK TO part; RELEASE part").map_err(told)?;
        let half = part.num_rows() / 2;
        if half == 0 {
            refused.rows.push(refused_row(first, &part, &error));
            refused.more = refused.rows.len() > room;
            continue;
        }
        parts.push((first + half as u64, part.slice(half, part.num_rows() - half)));
        parts.push((first, part.slice(0, half)));
    }
    Ok(all)
}

/// Inserts the rows of a batch behind the savepoint `part`. The table in which rows are gathered does not check them;
/// so that is done while they are known one by one.
fn insert_tried(connection: &Connection, loading: &Loading, shown: &str, batch: &RecordBatch) -> Result<Inserted> {
    if loading.tried {
        insert_batch(connection, loading, shown, batch, Destination::Trial)?;
        let taken_back = connection.execute_batch("ROLLBACK TO part");
        taken_back.map_err(|error| sqlite_error("write to", shown, &loading.spec, &error))?;
    }
    insert_batch(connection, loading, shown, batch, Destination::of(&loading.spec))
}

fn refused_row(row: u64, record: &RecordBatch, error: &Error) -> RefusedRow {
    RefusedRow {
        row,
        record: Some(record.clone()),
        shown: error.offending_text().unwrap_or_default().to_owned(),
        column: error.place().column.clone(),
        reason: error.cause_text().unwrap_or(error.what()).to_owned(),
        kind: error.reject_kind(),
        hint: error.hint_text().map(str::to_owned),
    }
}

fn is_refusal(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::TooBig)
    )
}

/// Rows on their way into statements.
struct Insertion<'a> {
    readers: Vec<Reader<'a>>,
    spec: &'a SqliteSpec,
    shown: &'a str,
    watched: &'a [bool],
    /// Whether the statement may leave out rows that are there already.
    drops_rows: bool,
    inserted: Inserted,
}

impl<'a> Insertion<'a> {
    /// Runs a statement of `count` rows. The outer error is a value's, the inner one SQLite's.
    fn rows(&mut self, statement: &mut Statement, from: usize, count: usize) -> Result<rusqlite::Result<()>> {
        let mut variable = 1;
        for row in from..from + count {
            for column in 0..self.readers.len() {
                let cell = self.cell(column, row)?;
                self.inserted.bytes += cell.size();
                if let Err(error) = statement.raw_bind_parameter(variable, &cell) {
                    return Ok(Err(error));
                }
                variable += 1;
            }
        }
        match statement.raw_execute() {
            Ok(changed) if changed < count && !self.drops_rows => {
                let what =
                    format!("table {} of {} dropped {} of {count} rows", self.spec.table, self.shown, count - changed);
                Err(Error::data(what).hint("a trigger of the table refuses them: RAISE(IGNORE)"))
            }
            Ok(changed) => {
                self.inserted.left_out += count.saturating_sub(changed) as u64;
                Ok(Ok(()))
            }
            Err(error) => Ok(Err(error)),
        }
    }

    /// Runs a statement of one row; an error shows the row.
    fn single(&mut self, statement: &mut Statement, row: usize) -> Result<()> {
        let inserted = self.rows(statement, row, 1).map_err(|error| match error.offending_text() {
            Some(_) => error,
            None => error.text(self.shown_row(row)),
        });
        match inserted? {
            Ok(()) => Ok(()),
            Err(error) => Err(sqlite_error("write to", self.shown, self.spec, &error).text(self.shown_row(row))),
        }
    }

    /// A value, as long as the table can take it.
    fn cell(&mut self, column: usize, row: usize) -> Result<Cell<'a>> {
        let reader = &mut self.readers[column];
        let name = reader.name();
        let failed = match reader.cell(row) {
            Ok(Cell::Null)
                if self.spec.mode.needs_key() && self.spec.key.iter().any(|key| key.eq_ignore_ascii_case(name)) =>
            {
                Error::data(format!("a row without a value in the key column `{name}` cannot be told from others"))
                    .reject(RejectKind::Null)
                    .column(name)
                    .hint(format!("filter such rows out: {name} IS NOT NULL"))
            }
            Ok(Cell::Text(text))
                if self.watched.get(column).is_some_and(|watched| *watched) && table::becomes_another(&text) =>
            {
                super::values::becomes_another(&text, name)
            }
            Ok(cell) => return Ok(cell),
            Err(error) => error,
        };
        Err(if failed.offending_text().is_some() { failed } else { failed.text(self.shown_row(row)) })
    }

    /// The row for a message: `id=1, name='a'`.
    fn shown_row(&mut self, row: usize) -> String {
        let cells = self.readers.iter_mut().map(|reader| {
            let name = reader.name();
            format!("{name}={}", reader.cell(row).map_or_else(|_| "?".to_owned(), |cell| cell.shown()))
        });
        cells.collect::<Vec<_>>().join(", ")
    }
}
