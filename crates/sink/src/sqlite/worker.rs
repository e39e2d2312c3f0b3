//! The thread that writes to one database, with its connection and transaction. A request that fails ends the
//! transaction, and with it every load of the run into this database.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arrow::array::RecordBatch;
use millstream_core::sink::{Refused, SHOWN_BAD_ROWS};
use millstream_core::{Budget, Error, Result};
use millstream_database::sqlite::LockWait;
use rusqlite::{Connection, ErrorCode};
use tokio::sync::{mpsc, oneshot};

use super::bisect;
use super::file::File;
use super::finish::{check_foreign_keys, finish};
use super::insert::Inserted;
use super::loading::{Loading, Taken};
use super::message::{place, sqlite_error};
use super::new_rows;
use super::ready::make_ready;
use super::spec::SqliteSpec;
use crate::database::spec::Mode;
use crate::shared::Charge;

/// Requests to the thread.
pub(super) enum Request {
    /// Add a load; replies whether its rows are already written.
    Join { load: u64, loading: Box<Loading>, reply: oneshot::Sender<Result<bool>> },
    /// Insert a batch.
    Rows { load: u64, batch: RecordBatch, charge: Charge },
    /// Reply once all batches so far are inserted.
    Settle { reply: oneshot::Sender<Result<()>> },
    /// Finish a load except for the commit.
    Prepare { load: u64, reply: oneshot::Sender<Result<()>> },
    /// Commit, unless that is already done.
    Commit { load: u64, reply: oneshot::Sender<Result<Taken>> },
    /// Roll back.
    Abort { reply: oneshot::Sender<()> },
}

/// The state of the transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Writing,
    Failed,
    Committed,
}

/// The thread's side of a database.
pub(super) struct Worker {
    lock_wait: LockWait,
    file: File,
    connection: Option<Connection>,
    loads: BTreeMap<u64, Loading>,
    state: State,
    /// Why the transaction failed, once it has.
    failure: Arc<Mutex<Option<Error>>>,
    budget: Arc<Budget>,
    cache: Option<Charge>,
    /// Bytes that SQLite may hold before it writes pages out.
    room: usize,
    /// Bytes of rows since SQLite could write pages out.
    unwritten: u64,
}

/// The error of a load that was rolled back.
fn rolled_back() -> Error {
    Error::refused("the load was aborted")
}

impl Worker {
    pub(super) fn new(
        path: &Path,
        lock_wait: LockWait,
        failure: Arc<Mutex<Option<Error>>>,
        budget: &Arc<Budget>,
    ) -> Self {
        Worker {
            lock_wait,
            file: File::new(path),
            connection: None,
            loads: BTreeMap::new(),
            state: State::Writing,
            failure,
            budget: Arc::clone(budget),
            cache: None,
            room: 0,
            unwritten: 0,
        }
    }

    /// Handles requests until the channel is closed.
    pub(super) fn run(mut self, mut inbox: mpsc::Receiver<Request>) {
        // A reply to a dropped receiver is ignored.
        while let Some(request) = inbox.blocking_recv() {
            match request {
                Request::Join { load, loading, reply } => {
                    let _ = reply.send(self.attempt(|worker| worker.join(load, *loading)));
                }
                Request::Rows { load, batch, charge } => {
                    // The writer's next call reports a failure.
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
                    self.roll_back(rolled_back());
                    let _ = reply.send(());
                }
            }
        }
        self.roll_back(rolled_back());
    }

    fn failure(&self) -> MutexGuard<'_, Option<Error>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` unless the transaction has failed; if it fails, so does the transaction.
    fn attempt<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if let Some(error) = self.failure().clone() {
            return Err(error);
        }
        if self.state == State::Committed {
            return Err(Error::internal("rows came after the commit"));
        }
        work(self).map_err(|error| {
            let error = if self.lock_wait.is_stopped() { rolled_back() } else { error };
            self.roll_back(error.clone());
            error
        })
    }

    /// Rolls back and removes created files, unless it is committed. The first failure is reported.
    fn roll_back(&mut self, error: Error) {
        self.failure().get_or_insert(error);
        if self.state != State::Writing {
            return;
        }
        self.state = State::Failed;
        let connection = self.connection.take();
        self.file.roll_back(connection);
        self.cache = None;
    }

    fn told<'a>(&'a self, what: &'static str, spec: &'a SqliteSpec) -> impl Fn(rusqlite::Error) -> Error + 'a {
        move |error| sqlite_error(what, &self.file.shown, spec, &error)
    }

    /// The connection, once the first load has joined.
    fn connection(&self) -> Result<&Connection> {
        self.connection.as_ref().ok_or_else(|| Error::internal("the database is not open"))
    }

    /// Opens the database if this is its first load, and prepares the load's table. Returns whether its rows are
    /// already written.
    fn join(&mut self, load: u64, mut loading: Loading) -> Result<bool> {
        if self.connection.is_none() {
            let (connection, cache) = self.file.begin(&loading.spec, &self.lock_wait, &self.budget)?;
            self.room = cache.bytes();
            self.connection = Some(connection);
            self.cache = Some(cache);
        }
        let table = &loading.spec.table;
        if self.loads.values().any(|other| other.spec.table.eq_ignore_ascii_case(table)) {
            return Err(Error::job(format!("two sinks write to table {table} of {}", self.file.shown))
                .hint("give each sink a table of its own, or combine their rows with a `union`"));
        }
        make_ready(self.connection()?, &mut loading, &self.file.shown, &self.lock_wait)?;
        let done_before = loading.done_before;
        self.loads.insert(load, loading);
        self.count_new_rows()?;
        Ok(done_before)
    }

    /// Counts the new rows of merges.
    fn count_new_rows(&mut self) -> Result<()> {
        let merges = self.loads.values().filter(|loading| loading.spec.mode == Mode::Merge);
        let tables: Vec<_> = merges.map(|loading| (loading.spec.table.clone(), loading.new_rows.clone())).collect();
        match &mut self.connection {
            Some(connection) if !tables.is_empty() => new_rows::count(connection, tables)
                .map_err(|error| Error::internal("new rows cannot be counted").cause(error)),
            _ => Ok(()),
        }
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
        let inserted = bisect::insert(connection, loading, &self.file.shown, batch, 0, room, &mut refused);
        loading.step.add_busy(start.elapsed());
        let Inserted { bytes, left_out, written, new } = inserted?;
        loading.step.add_bytes(bytes);
        if !refused.rows.is_empty() {
            let place = place(&self.file.shown, &loading.spec);
            match &loading.refusals {
                Some(refusals) => refusals.refuse(&place, &refused)?,
                None => return Err(refused.into_error(&place)),
            }
        }
        loading.taken.rows += rows - refused.rows.len() as u64;
        loading.taken.left_out += left_out;
        loading.taken.written += written;
        loading.taken.counts.inserted += new;
        self.unwritten += bytes;
        self.write_out();
        Ok(())
    }

    /// Writes pages out if they fill the cache. That is not possible while another process or this job reads the
    /// database: the held pages are then charged.
    fn write_out(&mut self) {
        let (Some(connection), Some(cache)) = (&self.connection, &mut self.cache) else { return };
        if self.unwritten < self.room as u64 {
            return;
        }
        self.unwritten = 0;
        let held = if connection.cache_flush().is_ok() { 0 } else { cache.bytes() };
        cache.force(held + self.room);
    }

    /// Marks a load as complete. With the last one everything except the commit is done: foreign keys are checked, and
    /// all pages are written, which takes the locks and the disk space that the commit needs.
    fn prepare(&mut self, load: u64) -> Result<()> {
        let Some(connection) = &self.connection else {
            return Err(Error::internal("the database is not open"));
        };
        let Some(loading) = self.loads.get_mut(&load) else {
            return Err(Error::internal("a load is prepared that has not begun"));
        };
        loading.prepared = true;
        finish(connection, loading, &self.file.shown, &self.lock_wait)?;
        if !self.loads.values().all(|loading| loading.prepared) {
            return Ok(());
        }
        for loading in self.loads.values() {
            let checked = check_foreign_keys(connection, &loading.spec, &loading.foreign, &self.file.shown);
            checked
                .map_err(|broken| broken.error.in_step(self.step_of(&broken.table).unwrap_or(&loading.step.name)))?;
        }
        match self.loads.get(&load) {
            Some(loading) => self.flush(connection, loading),
            None => Ok(()),
        }
    }

    /// The entry of the job that loads `table`.
    fn step_of(&self, table: &str) -> Option<&str> {
        let loading = self.loads.values().find(|loading| loading.spec.table.eq_ignore_ascii_case(table))?;
        Some(&loading.step.name)
    }

    /// Writes all pages out, as soon as no other connection reads the database.
    fn flush(&self, connection: &Connection, loading: &Loading) -> Result<()> {
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
