//! One database while a run writes to it: one connection, one thread, one transaction. Loads of a run share it;
//! `worker.rs` is the thread.
//!
//! ```text
//!  writer 0 ─┐ bounded                    ┌─ BEGIN IMMEDIATE
//!  writer 1 ─┼─channel─▶ thread: inserts ─┤  INSERT …
//!  writer n ─┘                            └─ COMMIT when every load of the run is prepared
//! ```
//! SQLite lets one connection write at a time. So all loads of a run into the same file share a connection: two sinks
//! with a transaction each would wait for each other forever, as neither commits before both are prepared.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use arrow::array::RecordBatch;
use millstream_core::{Budget, Error, Result, threads};
use millstream_database::sqlite::LockWait;
use tokio::sync::{mpsc, oneshot};

use super::loading::{Loading, Taken};
use super::worker::{Request, Worker};
use crate::shared::Charge;

/// The most batches that wait for the thread.
const WAITING_BATCHES: usize = 4;

/// Databases by their file and the run that writes to them.
type OpenDatabases = HashMap<(PathBuf, String), Weak<Database>>;

/// The databases that runs of this process are writing to.
static OPEN: LazyLock<Mutex<OpenDatabases>> = LazyLock::new(Mutex::default);

/// A load that has begun.
pub(super) struct Joined {
    /// Its number.
    pub(super) load: u64,
    /// Whether an earlier run has written its rows.
    pub(super) done_before: bool,
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

/// The thread gets no more requests, so it need not wait for a lock.
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
        let worker = Worker::new(path, lock_wait.clone(), Arc::clone(&failure), budget);
        threads::spawn("sqlite", move || worker.run(inbox))
            .map_err(|error| Error::io("cannot start the thread that writes to SQLite", &error))?;
        let database = Arc::new(Database { requests, failure, loads: Mutex::new(0), lock_wait });
        open.insert(key, Arc::downgrade(&database));
        Ok(database)
    }

    /// Adds a load, and prepares its table.
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

    /// Sends a batch to the thread.
    pub(super) async fn rows(&self, load: u64, batch: RecordBatch, charge: Charge) -> Result<()> {
        if let Some(error) = self.failed() {
            return Err(error);
        }
        self.send(Request::Rows { load, batch, charge }).await
    }

    /// Waits until the sent rows are inserted.
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

    /// Commits the transaction, if no other load of the run has done so. Returns what the table has accepted.
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

/// The same path for the same file, however it is written, even before it exists.
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
