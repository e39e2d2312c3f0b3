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
//! whose outcome is unknown. So the second insert waits until there is an answer. `delivery.rs` and `notes.rs` carry it
//! out; `entry.rs` has the owner of a load.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use millstream_core::sink::{
    Chunk, Delivery, Kept, KnownLoad, Ledger, LoadContext, Replaced, Replacement, SHOWN_BAD_ROWS, WrittenChunks,
};
use millstream_core::{Error, Result};
use millstream_database::table::Bulk;

use super::bisect::Scope;
use super::delivery::{Delivering, OpenTransaction, TableDelivery};
use super::entry::{Entry, Forget};
use super::indexes::Waiting;
use super::ledger_rows::all_chunks;
use super::load::{self, Shared, on_io};
use super::notes::Notes;
use super::pool::{Pool, connect, connect_as};
use super::server::{Connection, Failure, Server, target_of};
use super::spec::{DatabaseSpec, Mode};
use crate::shared::{counted, digest};

/// How many connections deliver by default.
const CONNECTIONS: usize = 2;

/// A ledger in a database.
pub(crate) struct DatabaseLedger(Arc<LedgerState>);

/// What the deliveries of a ledger share.
pub(super) struct LedgerState {
    pub(super) into: Arc<Delivering>,
    /// The run that delivers.
    run: String,
    pub(super) entry: Entry,
    /// Where a worker keeps its connections, and under which name.
    kept: Option<(Kept, String)>,
}

/// What a worker keeps of a load: its connections, and what it has found out about the target.
struct KeptSessions {
    connections: Vec<Box<dyn Connection>>,
    spec: DatabaseSpec,
    bulk: Bulk,
}

impl Drop for LedgerState {
    fn drop(&mut self) {
        let Some((kept, name)) = self.kept.take() else { return };
        let shared = &self.into.shared;
        let connections = shared.pool.close();
        if !connections.is_empty() {
            kept.give(&name, KeptSessions { connections, spec: shared.spec.clone(), bulk: shared.bulk.clone() });
        }
    }
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
    let tag = entry.tag(context.worker.as_ref().map(|part| part.worker));
    let of_part = |limit| context.worker.as_ref().map_or(limit, |part| part.of_limit(limit));
    let count = if context.ordered { 1 } else { spec.connections.map_or(CONNECTIONS, of_part) };
    let kept = context.worker.as_ref().map(|part| (part.kept.clone(), format!("{}\n{load}", context.sink)));
    if let Some(KeptSessions { connections, spec, bulk }) = kept.as_ref().and_then(|(kept, name)| kept.take(name)) {
        let pool = Pool::new(&server, &spec, count).tagged(Some(&tag));
        let mut all = connections.into_iter().take(count);
        // One that the server has ended meanwhile is no reason to fail: others are opened.
        if let Some(mut first) = all.next()
            && entry.join(first.as_mut()).await.is_ok()
        {
            [first].into_iter().chain(all).for_each(|connection| pool.give(connection));
            return Ok(Some(LedgerState::new(server, spec, bulk, pool, entry, context, kept)));
        }
    }
    let mut connection = connect_as(server.as_ref(), &spec, &tag).await?;
    match context.worker {
        Some(_) => entry.join(connection.as_mut()).await?,
        None if entry.enter(connection.as_mut(), context.take_over).await? => {}
        None => return Ok(None),
    }
    let has_rows = entry.has_written(connection.as_mut()).await.map_err(Failure::into_error)?;
    if has_rows && connection.as_mut().describe(&spec.table).await.map_err(Failure::into_error)?.is_none() {
        return Err(super::table::is_gone(&target_of(server.as_ref(), &spec)));
    }
    if context.worker.is_none() {
        Waiting::new(&server, &spec).build_all(connection.as_mut()).await?;
        load::clean(&server, connection.as_mut(), &spec).await?;
    }
    let facts = load::ready_target(server.as_ref(), connection.as_mut(), &spec, &context.schema).await?;
    let columns = load::bulk_columns(server.as_ref(), &spec, &context.schema, Some(&facts));
    spec.name_like(&columns.iter().map(|column| column.name.clone()).collect::<Vec<_>>());
    let bulk = server.dialect().bulk(&server.dialect().table(&spec.table), columns, &context.schema);
    let pool = Pool::new(&server, &spec, count).tagged(Some(&tag));
    pool.give(connection);
    Ok(Some(LedgerState::new(server, spec, bulk, pool, entry, context, kept)))
}

impl LedgerState {
    fn new(
        server: Arc<dyn Server>,
        spec: DatabaseSpec,
        bulk: Bulk,
        pool: Pool,
        entry: Entry,
        context: LoadContext,
        kept: Option<(Kept, String)>,
    ) -> Self {
        let shared = Arc::new(Shared::new(&server, &spec, bulk, pool, Scope::Transaction, &context.step));
        let LoadContext { run, schema, budget, io, .. } = context;
        let into = Arc::new(Delivering { shared, schema, budget, io, rows: Arc::default(), epochs: None });
        LedgerState { into, run, entry, kept }
    }
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

impl DatabaseLedger {
    /// The ledger of a staged load.
    pub(super) fn staged(parts: StagedParts, context: &LoadContext) -> Self {
        let StagedParts { shared, entry, schema, rows } = parts;
        let (run, budget, io) = (context.run.clone(), Arc::clone(&context.budget), context.io.clone());
        let into = Arc::new(Delivering { shared, schema, budget, io, rows, epochs: None });
        DatabaseLedger(Arc::new(LedgerState { into, run, entry, kept: None }))
    }

    pub(super) fn state(&self) -> Arc<LedgerState> {
        Arc::clone(&self.0)
    }

    /// A delivery in an open transaction in which `notes` are written.
    pub(super) fn delivery_in(&self, transaction: OpenTransaction, notes: Notes) -> TableDelivery {
        TableDelivery::new(Arc::clone(&self.0.into), notes, SHOWN_BAD_ROWS - 1).inside(transaction)
    }

    async fn strike_out(&self, entry: Entry, what: Forget) -> Result<bool> {
        let state = Arc::clone(&self.0);
        on_io(&self.0.into.io, async move {
            let _permit = state.into.shared.pool.permit().await?;
            let mut connection = state.into.shared.pool.take().await?;
            let struck = entry.forget(connection.as_mut(), what).await?;
            state.into.shared.pool.give(connection);
            Ok(struck)
        })
        .await
    }

    /// The entry of `load`; `None` if it is this ledger's own.
    fn other(&self, load: &str) -> Option<Entry> {
        let shared = &self.0.into.shared;
        (!self.0.entry.is_of(load)).then(|| Entry::new(&shared.server, &shared.spec, load, &self.0.run))
    }

    async fn all_of(&self, load_key: String) -> Result<WrittenChunks> {
        let state = Arc::clone(&self.0);
        on_io(&self.0.into.io, async move {
            let _permit = state.into.shared.pool.permit().await?;
            let mut connection = state.into.shared.pool.take().await?;
            let written = all_chunks(&state.entry.table, connection.as_mut(), &load_key).await;
            let written = written.map_err(Failure::into_error)?;
            state.into.shared.pool.give(connection);
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
        on_io(&self.0.into.io, async move {
            let _permit = state.into.shared.pool.permit().await?;
            let mut connection = state.into.shared.pool.take().await?;
            let Entry { table, key, .. } = &state.entry;
            let delete = format!("DELETE FROM {table} WHERE load_key = '{key}' AND chunk = {number}");
            let taken = async {
                connection.execute("BEGIN").await?;
                state.entry.check_locked(connection.as_mut(), "FOR UPDATE").await?;
                connection.execute(&delete).await?;
                connection.execute("COMMIT").await.map(drop)
            };
            taken.await.map_err(Failure::into_error)?;
            state.into.shared.pool.give(connection);
            Ok(())
        })
        .await
    }

    async fn count(&self) -> Result<u64> {
        let state = Arc::clone(&self.0);
        on_io(&self.0.into.io, async move {
            let _permit = state.into.shared.pool.permit().await?;
            let mut connection = state.into.shared.pool.take().await?;
            let Entry { table, key, .. } = &state.entry;
            let query = format!("SELECT COUNT(*) FROM {table} WHERE load_key = '{key}' AND chunk >= 0");
            let rows = connection.query(&query).await.map_err(Failure::into_error)?;
            state.into.shared.pool.give(connection);
            let count = rows.into_iter().flatten().flatten().next().and_then(|text| text.parse().ok());
            count.ok_or_else(|| Error::internal("the ledger cannot be counted"))
        })
        .await
    }

    async fn end_worker(&self, worker: u64) -> Result<()> {
        let state = Arc::clone(&self.0);
        on_io(&self.0.into.io, async move {
            let _permit = state.into.shared.pool.permit().await?;
            let mut connection = state.into.shared.pool.take().await?;
            state.entry.end_worker(connection.as_mut(), worker).await?;
            state.into.shared.pool.give(connection);
            Ok(())
        })
        .await
    }

    async fn delivery(&self, chunks: Vec<Chunk>, bad_rows: usize) -> Result<Box<dyn Delivery>> {
        let notes = Notes::chunks(&self.0.entry, chunks);
        Ok(Box::new(TableDelivery::new(Arc::clone(&self.0.into), notes, bad_rows)))
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
        self.0.into.shared.target.clone()
    }

    fn summary(&self, rows: u64) -> String {
        format!("{} added to {}{}", counted(rows, "row"), self.0.into.shared.target, self.0.into.shared.detour())
    }

    async fn loads(&self) -> Result<Vec<KnownLoad>> {
        let state = Arc::clone(&self.0);
        on_io(&self.0.into.io, async move {
            let _permit = state.into.shared.pool.permit().await?;
            let mut connection = state.into.shared.pool.take().await?;
            let known = state.entry.loads(connection.as_mut()).await.map_err(Failure::into_error)?;
            state.into.shared.pool.give(connection);
            Ok(known)
        })
        .await
    }
}
