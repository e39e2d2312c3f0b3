//! Deliveries into a SQLite database: rows are held until all have come, and inserted in one transaction. `ledger.rs`
//! and `positions.rs` have the transactions; `bisect.rs` and `insert.rs` insert rows.

use std::path::Path;
use std::sync::Arc;

use arrow::array::RecordBatch;
use async_trait::async_trait;
use millstream_core::sink::{Accept, Chunk, Delivered, Delivery, Refused, RefusedRow};
use millstream_core::{Budget, Error, Result, fail_point};
use millstream_database::sqlite::{self, Access, LockWait};
use rusqlite::Connection;

use super::loading::Loading;
use super::message::place;
use super::spec::SqliteSpec;
use super::{bisect, file};
use crate::shared::Charge;

/// A connection for deliveries.
pub(super) struct Connected {
    pub(super) connection: Connection,
    /// How it waits for locks.
    pub(super) lock_wait: LockWait,
    /// The charge for SQLite's pages.
    pub(super) cache: Charge,
}

/// Connects to the database at `path`.
pub(super) fn connect(path: &Path, spec: &SqliteSpec, budget: &Arc<Budget>) -> rusqlite::Result<Connected> {
    let mut connection = sqlite::open(path, Access::Write)?;
    let lock_wait = LockWait::new(spec.busy_timeout.0);
    lock_wait.apply(&mut connection)?;
    // Deliveries delete no rows, so none of other tables can be deleted with them.
    sqlite::enforce_foreign_keys(&connection, true)?;
    let cache = file::give_cache(&connection, budget)?;
    Ok(Connected { connection, lock_wait, cache })
}

/// What became of the rows of a delivery.
pub(super) struct Inserted {
    /// How many the table has accepted.
    pub(super) rows: u64,
    pub(super) refused: Vec<RefusedRow>,
    /// How many were left out, since their key existed.
    pub(super) left_out: u64,
    /// How many were written.
    pub(super) written: u64,
    /// How many of a merge are new.
    pub(super) new: u64,
    /// What is noted of the rows that are missing.
    pub(super) further: Vec<Chunk>,
}

/// Inserts rows in the open transaction, and asks whether those may be missing that the table does not take.
pub(super) fn insert(
    connection: &Connection,
    loading: &Loading,
    shown: &str,
    batches: &[RecordBatch],
    bad_rows: usize,
    accept: Accept,
) -> Result<Inserted> {
    let (mut refused, mut all) = (Refused::default(), super::insert::Inserted::default());
    let mut rows = 0;
    fail_point::pass("bulk.before");
    for batch in batches {
        let of = bisect::insert(connection, loading, shown, batch, rows, bad_rows, &mut refused)?;
        all.bytes += of.bytes;
        all.left_out += of.left_out;
        all.written += of.written;
        all.new += of.new;
        rows += batch.num_rows() as u64;
    }
    fail_point::pass("bulk.after");
    // If not all bad rows were found, none may be left out.
    let further = accept(&refused)?;
    if refused.more {
        return Err(refused.into_error(&place(shown, &loading.spec)));
    }
    loading.step.add_bytes(all.bytes);
    let rows = rows - refused.rows.len() as u64;
    let super::insert::Inserted { left_out, written, new, .. } = all;
    Ok(Inserted { rows, refused: refused.rows, left_out, written, new, further })
}

/// Commits the transaction, or rolls it back. `told` words SQLite's errors.
pub(super) fn end<T>(
    connection: &Connection,
    commits: bool,
    done: Result<T>,
    told: impl Fn(rusqlite::Error) -> Error,
) -> Result<T> {
    fail_point::pass("commit.before");
    match connection.execute_batch(if commits { "COMMIT" } else { "ROLLBACK" }) {
        Ok(()) => {
            fail_point::pass("commit.after");
            done
        }
        Err(error) => {
            // A commit that fails for lack of space leaves the transaction open.
            let _ = connection.execute_batch("ROLLBACK");
            Err(done.err().unwrap_or_else(|| told(error)))
        }
    }
}

/// Runs `work`, which blocks, on a thread of its own.
pub(super) async fn blocking<S: Send + Sync + 'static, T: Send + 'static>(
    state: &Arc<S>,
    work: impl FnOnce(&S) -> Result<T> + Send + 'static,
) -> Result<T> {
    let state = Arc::clone(state);
    let done = tokio::task::spawn_blocking(move || work(&state)).await;
    done.unwrap_or_else(|cause| Err(Error::internal("a task of the load failed").cause(cause)))
}

/// Delivers rows, which blocks.
type Deliver = Box<dyn FnOnce(&[RecordBatch], Accept) -> Result<Delivered> + Send>;

/// Rows that are held until all have come.
pub(super) struct SqliteDelivery {
    budget: Arc<Budget>,
    deliver: Deliver,
    held: Vec<(RecordBatch, Charge)>,
}

impl SqliteDelivery {
    /// Rows for `deliver`.
    pub(super) fn new(
        budget: &Arc<Budget>,
        deliver: impl FnOnce(&[RecordBatch], Accept) -> Result<Delivered> + Send + 'static,
    ) -> Self {
        SqliteDelivery { budget: Arc::clone(budget), deliver: Box::new(deliver), held: Vec::new() }
    }
}

#[async_trait]
impl Delivery for SqliteDelivery {
    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        let charge = Charge::held(&self.budget, batch.get_array_memory_size());
        self.held.push((batch, charge));
        Ok(())
    }

    async fn commit_if(self: Box<Self>, accept: Accept) -> Result<Delivered> {
        let SqliteDelivery { deliver, held, .. } = *self;
        blocking(&Arc::new(()), move |()| {
            let (batches, _charges): (Vec<RecordBatch>, Vec<Charge>) = held.into_iter().unzip();
            deliver(&batches, accept)
        })
        .await
    }
}
