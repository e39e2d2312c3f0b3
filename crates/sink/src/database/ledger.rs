//! Loads rows straight into the target, chunk by chunk. The ledger, a table beside the target, records the chunks in
//! the same transaction. The protocol:
//!
//! ```text
//!  BEGIN ─▶ insert the ledger's rows ─▶ bulk statements ─▶ COMMIT ─▶ written
//!                   │ conflict                               │ no answer
//!                   ▼                                        ▼
//!            ROLLBACK, already done          on a new connection: BEGIN ─▶ insert the same rows
//!                                               conflict, and they are ours ─▶ written
//!                                               conflict, and they are another's ─▶ already done
//!                                               no conflict ─▶ ROLLBACK: it was not committed
//! ```
//! The ledger's unique key makes a second insert wait for the end of the first one, even for a transaction of our own
//! whose outcome is unknown. So the second insert waits until there is an answer. `entry.rs` has the owner of a load.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use futures::FutureExt;
use millstream_core::sink::{
    Accept, Chunk, Delivered, Delivery, KnownLoad, Ledger, LoadContext, Refused, Replaced, Replacement, SHOWN_BAD_ROWS,
    WrittenChunks,
};
use millstream_core::{Budget, Error, ErrorKind, Result, fail_point};
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

use super::bisect::{self, Scope};
use super::commit;
use super::entry::{Entry, Forget, blamed};
use super::group::{BadRow, Group, Rows, numbered};
use super::indexes::Waiting;
use super::ledger_rows::{ROWS, all_chunks, record, recorded};
use super::load::{self, Shared, on_io};
use super::pool::{Pool, connect, connect_as, pause};
use super::server::{Connection, Encoder, Failure, Server, target_of};
use super::spec::{DatabaseSpec, Mode};
use crate::shared::{counted, digest};

/// How many connections deliver by default.
const CONNECTIONS: usize = 2;

/// A ledger in a database.
pub(crate) struct DatabaseLedger(Arc<LedgerState>);

/// What the deliveries of a ledger share.
pub(super) struct LedgerState {
    pub(super) shared: Arc<Shared>,
    /// The run that delivers.
    run: String,
    pub(super) entry: Entry,
    schema: SchemaRef,
    budget: Arc<Budget>,
    pub(super) io: Handle,
    /// Counts the rows that are written.
    rows: Arc<AtomicU64>,
}

/// What the ledger of a staged load is made from.
pub(super) struct StagedParts {
    /// It sends rows into the staging table.
    pub(super) shared: Arc<Shared>,
    pub(super) entry: Entry,
    /// The columns of the staging table.
    pub(super) schema: SchemaRef,
    /// Counts the rows that are written.
    pub(super) rows: Arc<AtomicU64>,
}

/// Whether rows may become visible chunk by chunk: the user's statements and a deferred key need a load as a whole.
pub(crate) fn may_keep(spec: &DatabaseSpec) -> bool {
    spec.mode == Mode::Append && is_plain(spec)
}

/// Whether rows may be staged chunk by chunk.
pub(crate) fn may_stage(spec: &DatabaseSpec) -> bool {
    spec.mode.has_order() && is_plain(spec)
}

fn is_plain(spec: &DatabaseSpec) -> bool {
    let waits = spec.defer_key || spec.defer_indexes;
    !spec.atomic && !waits && spec.before.is_empty() && spec.after.is_empty()
}

/// The ledger of `load`, if rows of this sink can become visible chunk by chunk.
pub(crate) async fn open(
    server: Arc<dyn Server>,
    spec: DatabaseSpec,
    load: String,
    context: LoadContext,
) -> Result<Option<Arc<dyn Ledger>>> {
    if !may_keep(&spec) {
        return Ok(None);
    }
    let io = context.io.clone();
    on_io(&io, async move {
        let state = set_up(server, spec, load, context).await?;
        Ok(state.map(|state| Arc::new(DatabaseLedger(Arc::new(state))) as Arc<dyn Ledger>))
    })
    .await
}

async fn set_up(
    server: Arc<dyn Server>,
    mut spec: DatabaseSpec,
    load: String,
    context: LoadContext,
) -> Result<Option<LedgerState>> {
    let entry = Entry::new(&server, &spec, &load, &context.run);
    let mut connection = connect_as(server.as_ref(), &spec, &entry.owner).await?;
    if !entry.enter(connection.as_mut(), context.take_over).await? {
        return Ok(None);
    }
    let has_rows = entry.has_written(connection.as_mut()).await.map_err(Failure::into_error)?;
    if has_rows && connection.as_mut().describe(&spec.table).await.map_err(Failure::into_error)?.is_none() {
        return Err(super::table::is_gone(&target_of(server.as_ref(), &spec)));
    }
    Waiting::new(&server, &spec).build_all(connection.as_mut()).await?;
    load::clean(&server, connection.as_mut(), &spec).await?;
    let facts = load::ready_target(server.as_ref(), connection.as_mut(), &spec, &context.schema).await?;
    let columns = load::bulk_columns(server.as_ref(), &spec, &context.schema, Some(&facts));
    spec.name_like(&columns.iter().map(|column| column.name.clone()).collect::<Vec<_>>());
    let count = if context.ordered { 1 } else { spec.connections.unwrap_or(CONNECTIONS) };
    let bulk = server.dialect().bulk(&server.dialect().table(&spec.table), columns, &context.schema);
    let pool = Pool::new(&server, &spec, count).tagged(Some(&entry.owner));
    let shared = Arc::new(Shared::new(&server, &spec, bulk, pool, Scope::Transaction, &context.step));
    let LoadContext { run, schema, budget, io, .. } = context;
    let state = LedgerState { shared, run, entry, schema, budget, io, rows: Arc::default() };
    state.shared.pool.give(connection);
    Ok(Some(state))
}

/// All loads that are in the ledger, if there is one.
pub(crate) async fn known_loads(
    server: Arc<dyn Server>,
    spec: DatabaseSpec,
    context: LoadContext,
) -> Result<Vec<KnownLoad>> {
    on_io(&context.io, async move {
        let mut connection = connect(server.as_ref(), &spec).await?;
        let entry = Entry::new(&server, &spec, "", "");
        entry.loads(connection.as_mut()).await.map_err(Failure::into_error)
    })
    .await
}

/// Forgets the load `load`; with `unwritten` only if nothing of it is recorded.
pub(crate) async fn forget_load(
    server: Arc<dyn Server>,
    spec: DatabaseSpec,
    load: String,
    context: LoadContext,
    unwritten: bool,
) -> Result<()> {
    let io = context.io.clone();
    on_io(&io, async move {
        let mut connection = connect(server.as_ref(), &spec).await?;
        let what = match unwritten {
            true => Forget::Unwritten,
            false if context.take_over => Forget::Anyway,
            false => Forget::Own,
        };
        Entry::new(&server, &spec, &load, &context.run).forget(connection.as_mut(), what).await.map(drop)
    })
    .await
}

impl LedgerState {
    /// Which of `chunks` are written; with `attempt`, by that attempt.
    pub(super) async fn written(
        &self,
        connection: &mut dyn Connection,
        chunks: &[Chunk],
        attempt: Option<&str>,
    ) -> Result<Vec<Chunk>, Failure> {
        let by = attempt.map_or(String::new(), |attempt| format!(" AND attempt = '{attempt}'"));
        let mut known = WrittenChunks::new([], digest);
        let mut units: Vec<&str> = chunks.iter().map(|chunk| chunk.unit.as_str()).collect();
        units.sort_unstable();
        units.dedup();
        for some in units.chunks(ROWS) {
            let some: Vec<String> = some.iter().map(|unit| format!("'{}'", digest(unit))).collect();
            let condition = format!(" AND unit_key IN ({}){by}", some.join(", "));
            known.extend(recorded(&self.entry.table, connection, &self.entry.key, &condition).await?);
        }
        Ok(chunks.iter().filter(|chunk| known.contains(chunk)).cloned().collect())
    }

    /// Begins a transaction and records the chunks. Returns the chunks that are already written, if any.
    async fn begin(
        &self,
        connection: &mut dyn Connection,
        chunks: &[Chunk],
        attempt: &str,
    ) -> Result<Option<Vec<Chunk>>, Failure> {
        connection.execute("BEGIN").await?;
        fail_point::pass("ledger.before");
        self.entry.check(connection).await?;
        match record(&self.entry, connection, chunks, attempt).await {
            Ok(()) => {
                fail_point::pass("ledger.after");
                Ok(None)
            }
            Err(Failure::Rows(_)) => {
                connection.execute("ROLLBACK").await?;
                self.written(connection, chunks, None).await.map(Some)
            }
            Err(other) => Err(other),
        }
    }

    /// Whether an attempt without an answer has written the chunks; `false` if that cannot be determined yet.
    async fn is_ours(&self, chunks: &[Chunk], attempt: &str) -> bool {
        let Ok(mut connection) = self.shared.pool.connect().await else { return false };
        self.written(connection.as_mut(), chunks, Some(attempt)).await.is_ok_and(|ours| !ours.is_empty())
    }

    /// Finds the outcome of a commit without an answer.
    async fn resolve(&self, chunks: &[Chunk], attempt: &str) -> Result<Outcome> {
        let mut tries = 0;
        loop {
            let unknown = match self.try_resolve(chunks, attempt).await {
                Ok(outcome) => return Ok(outcome),
                Err(error) if error.kind() != ErrorKind::Transient => return Err(error),
                Err(error) => error,
            };
            if tries >= self.shared.spec.retries {
                let what = format!("the connection was lost while {} was committed", self.shared.target);
                return Err(Error::refused(what)
                    .cause(unknown.cause_text().unwrap_or(unknown.what()))
                    .hint("the ledger knows whether the rows are there: resume when the server is back"));
            }
            pause(tries).await;
            tries += 1;
        }
    }

    async fn try_resolve(&self, chunks: &[Chunk], attempt: &str) -> Result<Outcome> {
        let mut connection = self.shared.pool.connect().await?;
        let connection = connection.as_mut();
        let there = self.begin(connection, chunks, &new_name()).await.map_err(Failure::into_error)?;
        let Some(there) = there else {
            connection.execute("ROLLBACK").await.map_err(Failure::into_error)?;
            return Ok(Outcome::Undone);
        };
        let ours = self.written(connection, chunks, Some(attempt)).await.map_err(Failure::into_error)?;
        Ok(if ours.is_empty() { Outcome::Others(there) } else { Outcome::Ours })
    }
}

/// The outcome of a commit.
enum Outcome {
    Ours,
    Others(Vec<Chunk>),
    Undone,
}

/// A unique name for an attempt.
pub(super) fn new_name() -> String {
    use std::hash::{BuildHasher, RandomState};
    format!("{:016x}", RandomState::new().hash_one(()))
}

impl DatabaseLedger {
    /// The ledger of a staged load.
    pub(super) fn staged(parts: StagedParts, context: &LoadContext) -> Self {
        let StagedParts { shared, entry, schema, rows } = parts;
        let (run, budget, io) = (context.run.clone(), Arc::clone(&context.budget), context.io.clone());
        DatabaseLedger(Arc::new(LedgerState { shared, run, entry, schema, budget, io, rows }))
    }

    pub(super) fn state(&self) -> Arc<LedgerState> {
        Arc::clone(&self.0)
    }

    /// A delivery in an open transaction in which `chunks` are recorded as those of `attempt`.
    pub(super) fn delivery_in(
        &self,
        transaction: OpenTransaction,
        mut chunks: Vec<Chunk>,
        attempt: String,
    ) -> TableDelivery {
        chunks.sort();
        chunks.dedup();
        let state = self.state();
        let encoder = state.shared.server.encoder(&state.shared.bulk, &state.schema, &state.shared.spec);
        TableDelivery {
            encoder,
            chunks,
            attempt,
            group: None,
            transaction: Some(transaction),
            already: None,
            rows: 0,
            sealed: 0,
            refused: Refused::default(),
            bad_rows: SHOWN_BAD_ROWS - 1,
            state,
        }
    }

    async fn strike_out(&self, entry: Entry, what: Forget) -> Result<bool> {
        let state = Arc::clone(&self.0);
        on_io(&self.0.io, async move {
            let _permit = state.shared.pool.permit().await?;
            let mut connection = state.shared.pool.take().await?;
            let struck = entry.forget(connection.as_mut(), what).await?;
            state.shared.pool.give(connection);
            Ok(struck)
        })
        .await
    }

    /// The entry of `load`; `None` if it is this ledger's own.
    fn other(&self, load: &str) -> Option<Entry> {
        let shared = &self.0.shared;
        (!self.0.entry.is_of(load)).then(|| Entry::new(&shared.server, &shared.spec, load, &self.0.run))
    }

    async fn all_of(&self, load_key: String) -> Result<WrittenChunks> {
        let state = Arc::clone(&self.0);
        on_io(&self.0.io, async move {
            let _permit = state.shared.pool.permit().await?;
            let mut connection = state.shared.pool.take().await?;
            let written = all_chunks(&state.entry.table, connection.as_mut(), &load_key).await;
            let written = written.map_err(Failure::into_error)?;
            state.shared.pool.give(connection);
            Ok(written)
        })
        .await
    }
}

#[async_trait]
impl Ledger for DatabaseLedger {
    async fn written(&self) -> Result<WrittenChunks> {
        self.all_of(self.0.entry.key.clone()).await
    }

    async fn written_of(&self, load: &str) -> Result<WrittenChunks> {
        self.all_of(digest(load)).await
    }

    async fn roll_back(&self, number: u64) -> Result<()> {
        let state = Arc::clone(&self.0);
        on_io(&self.0.io, async move {
            let _permit = state.shared.pool.permit().await?;
            let mut connection = state.shared.pool.take().await?;
            let Entry { table, key, .. } = &state.entry;
            let delete = format!("DELETE FROM {table} WHERE load_key = '{key}' AND chunk = {number}");
            let taken = async {
                connection.execute("BEGIN").await?;
                state.entry.check_locked(connection.as_mut(), "FOR UPDATE").await?;
                connection.execute(&delete).await?;
                connection.execute("COMMIT").await.map(drop)
            };
            taken.await.map_err(Failure::into_error)?;
            state.shared.pool.give(connection);
            Ok(())
        })
        .await
    }

    async fn count(&self) -> Result<u64> {
        let state = Arc::clone(&self.0);
        on_io(&self.0.io, async move {
            let _permit = state.shared.pool.permit().await?;
            let mut connection = state.shared.pool.take().await?;
            let Entry { table, key, .. } = &state.entry;
            let query = format!("SELECT COUNT(*) FROM {table} WHERE load_key = '{key}' AND chunk >= 0");
            let rows = connection.query(&query).await.map_err(Failure::into_error)?;
            state.shared.pool.give(connection);
            let count = rows.into_iter().flatten().flatten().next().and_then(|text| text.parse().ok());
            count.ok_or_else(|| Error::internal("the ledger cannot be counted"))
        })
        .await
    }

    async fn delivery(&self, mut chunks: Vec<Chunk>, bad_rows: usize) -> Result<Box<dyn Delivery>> {
        // Recording chunks in one order prevents deadlocks.
        chunks.sort();
        chunks.dedup();
        let state = Arc::clone(&self.0);
        let encoder = state.shared.server.encoder(&state.shared.bulk, &state.schema, &state.shared.spec);
        Ok(Box::new(TableDelivery {
            encoder,
            chunks,
            attempt: new_name(),
            group: None,
            transaction: None,
            already: None,
            rows: 0,
            sealed: 0,
            refused: Refused::default(),
            bad_rows,
            state,
        }))
    }

    async fn replace(&self, replacement: Replacement) -> Result<Replaced> {
        self.replace_rows(replacement).await
    }

    async fn forget(&self, load: &str) -> Result<()> {
        match self.other(load) {
            Some(other) => self.strike_out(other, Forget::Anyway).await.map(drop),
            None => self.strike_out(self.0.entry.clone(), Forget::Own).await.map(drop),
        }
    }

    async fn forget_unwritten(&self, load: &str) -> Result<bool> {
        let entry = self.other(load).unwrap_or_else(|| self.0.entry.clone());
        self.strike_out(entry, Forget::Unwritten).await
    }

    fn target(&self) -> String {
        self.0.shared.target.clone()
    }

    fn summary(&self, rows: u64) -> String {
        format!("{} added to {}{}", counted(rows, "row"), self.0.shared.target, self.0.shared.detour())
    }

    async fn loads(&self) -> Result<Vec<KnownLoad>> {
        let state = Arc::clone(&self.0);
        on_io(&self.0.io, async move {
            let _permit = state.shared.pool.permit().await?;
            let mut connection = state.shared.pool.take().await?;
            let known = state.entry.loads(connection.as_mut()).await.map_err(Failure::into_error)?;
            state.shared.pool.give(connection);
            Ok(known)
        })
        .await
    }
}

/// A connection with a transaction in which the chunks are recorded.
pub(super) struct OpenTransaction {
    connection: Box<dyn Connection>,
    _permit: OwnedSemaphorePermit,
}

impl OpenTransaction {
    pub(super) fn new(connection: Box<dyn Connection>, permit: OwnedSemaphorePermit) -> Self {
        OpenTransaction { connection, _permit: permit }
    }

    pub(super) fn connection(&mut self) -> &mut dyn Connection {
        self.connection.as_mut()
    }

    pub(super) fn into_connection(self) -> Box<dyn Connection> {
        self.connection
    }
}

/// A delivery of the rows of some chunks.
pub(super) struct TableDelivery {
    state: Arc<LedgerState>,
    encoder: Box<dyn Encoder>,
    chunks: Vec<Chunk>,
    attempt: String,
    group: Option<Group>,
    transaction: Option<OpenTransaction>,
    /// The chunks that others have written: nothing more is sent.
    already: Option<Vec<Chunk>>,
    /// Rows so far.
    rows: u64,
    /// Rows in groups that were sent.
    sealed: u64,
    refused: Refused,
    bad_rows: usize,
}

#[async_trait]
impl Delivery for TableDelivery {
    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        let mut row = 0;
        while row < batch.num_rows() && self.already.is_none() && !self.refused.more {
            let start = std::time::Instant::now();
            let spec = &self.state.shared.spec;
            let bytes = usize::try_from(spec.batch_bytes.0).unwrap_or(usize::MAX);
            let group = self.group.get_or_insert_with(|| Group::new(&self.state.budget, bytes));
            row = self.encoder.encode(&batch, row, None, group)?;
            let full = group.is_full(spec.batch_rows);
            self.state.shared.step.add_busy(start.elapsed());
            if full {
                self.flush().await?;
            }
        }
        self.rows += batch.num_rows() as u64;
        Ok(())
    }

    async fn commit_if(mut self: Box<Self>, accept: Accept) -> Result<Delivered> {
        self.flush().await?;
        if let Some(already) = self.already {
            return Ok(Delivered::AlreadyDone(already));
        }
        // If not all bad rows were found, none may be left out.
        let further = accept(&self.refused)?;
        if self.refused.more {
            return Err(self.refused.into_error(&self.state.shared.target));
        }
        let Some(mut transaction) = self.transaction.take() else {
            return Err(Error::internal("a delivery lost its connection"));
        };
        let (state, chunks, attempt) = (Arc::clone(&self.state), self.chunks, self.attempt);
        let outcome = on_io(&self.state.io, async move {
            let noted = record(&state.entry, transaction.connection.as_mut(), &further, &attempt).await;
            noted.map_err(Failure::into_error)?;
            fail_point::pass("commit.before");
            let committed = commit::unless_it_is_there(transaction.connection.as_mut(), "COMMIT", || {
                state.is_ours(&chunks, &attempt).boxed()
            });
            match committed.await {
                Ok(answer) => {
                    fail_point::pass("commit.after");
                    if answer.is_some() {
                        state.shared.pool.give(transaction.connection);
                    }
                    Ok(Outcome::Ours)
                }
                Err(Failure::Lost(_)) => {
                    drop(transaction);
                    state.resolve(&chunks, &attempt).await
                }
                Err(other) => Err(other.into_error()),
            }
        });
        match outcome.await? {
            Outcome::Ours => {
                let rows = self.rows - self.refused.rows.len() as u64;
                self.state.rows.fetch_add(rows, Ordering::Relaxed);
                Ok(Delivered::Written { rows, refused: self.refused.rows })
            }
            Outcome::Others(chunks) => Ok(Delivered::AlreadyDone(chunks)),
            Outcome::Undone => Err(Error::transient(format!(
                "the connection was lost before {} was committed",
                self.state.shared.target
            ))
            .hint("check the server's log; none of the rows is there, and they can be sent again")),
        }
    }
}

/// The result of sending a group.
enum Sent {
    Done(OpenTransaction, Vec<BadRow>),
    Already(Vec<Chunk>),
}

impl TableDelivery {
    /// Sends the gathered rows, and records the chunks before the first of them.
    async fn flush(&mut self) -> Result<()> {
        if self.already.is_some() || self.refused.more {
            return Ok(());
        }
        let mut group = self.group.take().unwrap_or_else(|| Group::new(&self.state.budget, 0));
        if group.is_empty() && self.transaction.is_some() {
            return Ok(());
        }
        let own = std::mem::take(&mut group.refused);
        let left = self.bad_rows.saturating_sub(self.refused.rows.len() + own.len());
        let rows = group.sealed();
        let start = std::time::Instant::now();
        let transaction = self.transaction.take();
        let (state, chunks, attempt) = (Arc::clone(&self.state), self.chunks.clone(), self.attempt.clone());
        let sending = rows.clone();
        let sent =
            on_io(&self.state.io, async move { send(&state, transaction, &chunks, &attempt, &sending, left).await });
        let sent = sent.await;
        self.state.shared.step.add_waiting_output(start.elapsed());
        match sent.map_err(|error| self.state.shared.error_of_target(error))? {
            Sent::Already(chunks) => self.already = Some(chunks),
            Sent::Done(transaction, bad) => {
                self.transaction = Some(transaction);
                self.state.shared.step.add_bytes(rows.part(0..rows.count()).len() as u64);
                self.add_refused(&rows, own, bad);
            }
        }
        Ok(())
    }

    /// Adds the bad rows of a group: those that could not be encoded, and those that the server has refused.
    fn add_refused(&mut self, rows: &Rows, own: Vec<BadRow>, mut bad: Vec<BadRow>) {
        bad.iter_mut().for_each(|row| row.reason = self.state.shared.of_target(&row.reason));
        let count = (rows.count() + own.len()) as u64;
        let base = self.sealed;
        self.refused
            .rows
            .extend(numbered(own, bad).into_iter().map(|(row, one)| one.into_refused_row(base + row as u64, None)));
        self.refused.more = self.refused.rows.len() > self.bad_rows;
        self.sealed += count;
    }
}

/// Sends a group in the open transaction, or in a new one that records the chunks first.
async fn send(
    state: &LedgerState,
    transaction: Option<OpenTransaction>,
    chunks: &[Chunk],
    attempt: &str,
    rows: &Rows,
    left: usize,
) -> Result<Sent> {
    let begins = transaction.is_none();
    let mut transaction = match transaction {
        Some(transaction) => transaction,
        None => {
            OpenTransaction { _permit: state.shared.pool.permit().await?, connection: state.shared.pool.take().await? }
        }
    };
    let most = left.saturating_add(1).max(SHOWN_BAD_ROWS);
    let mut tries = 0;
    loop {
        let connection = transaction.connection.as_mut();
        let sent = async {
            if !begins {
                connection.execute(Scope::Savepoint.begin()).await?;
            } else if let Some(already) = state.begin(connection, chunks, attempt).await? {
                return Ok(Err(already));
            }
            fail_point::pass("bulk.before");
            let bad = bisect::load(state.shared.server.as_ref(), connection, &state.shared.bulk, rows, most).await?;
            fail_point::pass("bulk.after");
            if !begins {
                connection.execute(Scope::Savepoint.keep()).await?;
            }
            Ok(Ok(bad))
        };
        match sent.await {
            Ok(Ok(bad)) => {
                state.shared.record_detour(transaction.connection.as_ref());
                return Ok(Sent::Done(transaction, bad));
            }
            Ok(Err(already)) => {
                state.shared.pool.give(transaction.connection);
                return Ok(Sent::Already(already));
            }
            Err(Failure::Again { error, undone, waited }) => {
                // Earlier groups of the same transaction are lost.
                if undone && !begins {
                    return Err(error);
                }
                if tries >= state.shared.spec.retries {
                    return Err(in_vain(state, transaction, Failure::Again { error, undone, waited }).await);
                }
                let scope = if begins { Scope::Transaction } else { Scope::Savepoint };
                transaction.connection.execute(scope.roll_back()).await.map_err(Failure::into_error)?;
                pause(tries).await;
                tries += 1;
            }
            Err(other) => return Err(other.into_error()),
        }
    }
}

/// The error of a group after the last attempt. It is permanent, since delivering it again would multiply all waits.
async fn in_vain(state: &LedgerState, mut transaction: OpenTransaction, failure: Failure) -> Error {
    let tables = [state.shared.bulk.table.as_str(), &state.entry.table];
    let error = blamed(transaction.connection.as_mut(), &tables, failure).await;
    let into_refused_row = Error::refused(error.what()).cause(error.cause_text().unwrap_or_default());
    error.hint_text().into_iter().fold(into_refused_row, |into_refused_row, hint| into_refused_row.hint(hint))
}
