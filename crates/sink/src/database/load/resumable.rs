//! A staged load whose rows come chunk by chunk, so that a run which resumes another one finds what that has staged.
//!
//! ```text
//!  deliveries ─▶ staging table, and the notes of their chunks ─▶ target, and the commit marker
//!                one transaction for each                        one transaction
//! ```
//! The notes are in a table of their own beside the staging table, in the form of the ledger: the load's entry with its
//! owner (`entry.rs`), a note for each chunk (`ledger.rs`), the commit marker (`commit_marker.rs`). Both tables are
//! named after the load, and are lost together: when a server empties unlogged tables, or when they are dropped. One
//! note more has the form of the tables. If that is another now, nothing of what is staged is used.
//!
//! `staged.rs` moves the rows into the target; the engine decides whether what is staged can be used for its job.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use millstream_core::sink::{
    ARRIVAL, Changes, Chunk, Delivery, KnownLoad, Ledger, Load, LoadContext, StagedLoad, Writer, WrittenChunks,
};
use millstream_core::{Error, Result, fail_point};
use millstream_database::load::Publish;
use millstream_database::quoted_list;
use millstream_database::table::TableFacts;

use super::own_tables::{Beside, Names, clean_beside, drop_table};
use super::shared::{Shared, on_io};
use super::staged::{Moved, Staging, arrival, create_new, create_staging, set_up as set_up_staged};
use super::strategy::Begun;
use super::{DatabaseLoad, bulk_columns, route, target};
use crate::database::bisect::Scope;
use crate::database::commit_marker::CommitMarker;
use crate::database::entry::{Entry, blamed, header};
use crate::database::indexes::Waiting;
use crate::database::ledger::{DatabaseLedger, StagedParts, may_stage};
use crate::database::pool::{Pool, connect, connect_as};
use crate::database::server::{Connection, Failure, Server, target_of};
use crate::database::spec::{DatabaseSpec, Mode};
use crate::shared::{counted, digest};

/// The number of the note that has the form of the tables.
const FORM: i64 = -3;

/// How often the lock is asked for: another load that cleans up may hold it for a moment.
const LOCK_TRIES: usize = 40;

/// The pause in between.
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// Opens the load `load`; `None` if it cannot be staged chunk by chunk.
pub(crate) async fn open(
    server: Arc<dyn Server>,
    spec: DatabaseSpec,
    load: String,
    of_sink: String,
    context: LoadContext,
) -> Result<Option<StagedLoad>> {
    if !may_stage(&spec) {
        return Ok(None);
    }
    let io = context.io.clone();
    on_io(&io, async move { set_up(server, spec, &load, &of_sink, context).await }).await
}

async fn set_up(
    server: Arc<dyn Server>,
    mut spec: DatabaseSpec,
    load: &str,
    of_sink: &str,
    context: LoadContext,
) -> Result<Option<StagedLoad>> {
    let names = Names::of_load(server.as_ref(), &spec, load);
    let entry = Entry::in_table(&names.notes_name, &server, &spec, load, &context.run);
    let mut control = connect_as(server.as_ref(), &spec, &entry.owner).await?;
    let connection = control.as_mut();
    if !enter(connection, &names, &entry, context.take_over).await? {
        return Ok(None);
    }
    let beside = Beside { id: &names.id, of_sink };
    clean_beside(&server, connection, &spec, Some(beside)).await?;
    let waiting = Waiting::new(&server, &spec);
    waiting.build_all(connection).await?;
    let marker = Arc::new(CommitMarker::of_staged(entry.clone()));
    if marker.is_there(connection).await.map_err(Failure::into_error)? {
        connection.unlock(&names.id).await.map_err(Failure::into_error)?;
        return Ok(Some(published(&server, &spec, names, entry, &context)));
    }
    marker.remove_intention(connection).await.map_err(Failure::into_error)?;
    let facts = target::fitting(server.as_ref(), connection, &spec, &context.schema).await?;
    let columns = bulk_columns(server.as_ref(), &spec, &context.schema, facts.as_ref());
    spec.name_like(&columns.iter().map(|column| column.name.clone()).collect::<Vec<_>>());
    let connections = route::connections(&spec, facts.is_some(), context.ordered);
    let (marker, waiting) = (Some(marker), Arc::new(waiting));
    let begun = Begun { server, spec, context, marker, facts, names, columns, connections, waiting };
    staged(begun, control, entry).await.map(Some)
}

/// Takes the lock of the load, and makes this run its owner; `false` if there can be no notes.
async fn enter(connection: &mut dyn Connection, names: &Names, entry: &Entry, take_over: bool) -> Result<bool> {
    let lock = async |connection: &mut dyn Connection| connection.lock(&names.id).await.map_err(Failure::into_error);
    if lock(connection).await? {
        return entry.enter(connection, take_over).await;
    }
    // The run that has it is alive, and its connections are ended if it may be taken over.
    let is_known = entry.has_ledger(connection).await.map_err(Failure::into_error)?;
    if is_known && !entry.enter(connection, take_over).await? {
        return Ok(false);
    }
    for _ in 0..LOCK_TRIES {
        if lock(connection).await? {
            return if is_known { Ok(true) } else { entry.enter(connection, take_over).await };
        }
        tokio::time::sleep(LOCK_PAUSE).await;
    }
    Err(Error::transient(format!("another run is loading into {}", entry.target)).hint("try again later"))
}

/// The load, with what is staged of it if that can be used.
async fn staged(begun: Begun, mut control: Box<dyn Connection>, entry: Entry) -> Result<StagedLoad> {
    let connection = control.as_mut();
    let form = form(&begun);
    let found = resumed_rows(&begun, connection, &entry, &form).await.map_err(Failure::into_error)?;
    if found.is_none() {
        let begun_anew = begin_tables_anew(&begun, connection, &entry, &form).await;
        begun_anew.map_err(Failure::into_error)?;
    }
    // It has no rows before the transaction that publishes it.
    for table in [&begun.names.new, &begun.names.old] {
        connection.execute(&drop_table(table)).await.map_err(Failure::into_error)?;
    }
    let how = Moved::By(if begun.spec.mode == Mode::Merge { Publish::Merge } else { Publish::Ignore });
    let is = if found.is_some() { Staging::Resumed } else { Staging::Resumable };
    let (names, marker, context) = (begun.names.clone(), begun.marker.clone(), begun.context.clone());
    let (connections, schema) = (begun.connections, with_arrival(&begun.context.schema));
    let strategy = set_up_staged(begun, control, how, is).await?;
    fail_point::pass("staging.made");
    let rows = Arc::new(AtomicU64::new(found.unwrap_or(0)));
    let parts = StagedParts { shared: Arc::clone(strategy.shared()), entry, schema, rows: Arc::clone(&rows) };
    let ledger = DatabaseLedger::staged(parts, &context);
    let LoadContext { schema, budget, io, .. } = context;
    let load = DatabaseLoad { strategy, marker, schema, budget, io, rows: Arc::clone(&rows), arrivals: Arc::default() };
    let ledger = StagedLedger { ledger, names, rows, connections };
    Ok(StagedLoad { ledger: Arc::new(ledger), load: Arc::new(load) })
}

/// The columns of the staging table.
fn with_arrival(schema: &SchemaRef) -> SchemaRef {
    let arrival = Arc::new(Field::new(ARRIVAL, DataType::Int64, false));
    Arc::new(Schema::new(schema.fields().iter().cloned().chain([arrival]).collect::<Vec<_>>()))
}

/// The form of the tables, as a hash: what is staged for one is not moved into another.
fn form(begun: &Begun) -> String {
    let Begun { facts, .. } = begun;
    let facts = facts.as_ref().map(|TableFacts { columns, unique, checks, .. }| {
        let columns = columns.iter().map(|column| format!("{} {} {}", column.name, column.declared, column.nullable));
        (columns.collect::<Vec<_>>(), unique.clone(), checks.clone())
    });
    digest(&format!("{:?}\n{:?}\n{facts:?}", create_new(begun), create_staging(begun)))
}

/// How many rows are staged; `None` if what is there cannot be used.
async fn resumed_rows(
    begun: &Begun,
    connection: &mut dyn Connection,
    entry: &Entry,
    form: &str,
) -> Result<Option<u64>, Failure> {
    let Begun { server, spec, names, .. } = begun;
    let noted = format!("SELECT note FROM {} WHERE unit_key = '{}' AND chunk = {FORM}", names.notes, header());
    let noted = connection.query(&noted).await?.into_iter().flatten().flatten().next();
    let is_there = connection.tables(&spec.table, &names.staging_name).await?.contains(&names.staging_name);
    if noted.as_deref() != Some(form) || !is_there || !entry.has_written(connection).await? {
        return Ok(None);
    }
    let columns = begun.columns.iter().map(|column| &column.name);
    let columns = quoted_list(server.dialect(), columns.chain([&ARRIVAL.to_owned()]));
    match connection.query(&format!("SELECT {columns} FROM {} WHERE 1 = 0", names.staging)).await {
        Ok(_) => {}
        // Someone has changed it.
        Err(Failure::Other(_)) => return Ok(None),
        Err(other) => return Err(other),
    }
    let count = connection.query(&format!("SELECT COUNT(*) FROM {}", names.staging)).await?;
    let count = count.into_iter().flatten().flatten().next().and_then(|text| text.parse().ok());
    // Someone may have emptied it.
    Ok(count.filter(|rows| *rows > 0))
}

/// Drops what is staged, and notes the form of the tables.
async fn begin_tables_anew(
    begun: &Begun,
    connection: &mut dyn Connection,
    entry: &Entry,
    form: &str,
) -> Result<(), Failure> {
    let Names { notes, staging, .. } = &begun.names;
    let (key, unit, dialect) = (&entry.key, header(), begun.server.dialect());
    connection.execute(&format!("DELETE FROM {notes} WHERE chunk <> -1")).await?;
    connection.execute(&drop_table(staging)).await?;
    let values = format!("('{key}', '{unit}', {FORM}, '', {})", dialect.literal(form));
    let insert = format!("INSERT INTO {notes} (load_key, unit_key, chunk, attempt, note) VALUES {values}");
    connection.execute(&insert).await.map(drop)
}

/// A load whose rows an earlier run has made visible.
fn published(
    server: &Arc<dyn Server>,
    spec: &DatabaseSpec,
    names: Names,
    entry: Entry,
    context: &LoadContext,
) -> StagedLoad {
    let columns = bulk_columns(server.as_ref(), spec, &context.schema, None).into_iter().chain([arrival()]).collect();
    let schema = with_arrival(&context.schema);
    let bulk = server.dialect().bulk(&names.staging, columns, &schema);
    let pool = Pool::new(server, spec, 1).tagged(Some(&entry.owner));
    let shared = Arc::new(Shared::new(server, spec, bulk, pool, Scope::Transaction, &context.step));
    let rows: Arc<AtomicU64> = Arc::default();
    let parts = StagedParts { shared, entry, schema, rows: Arc::clone(&rows) };
    let ledger = StagedLedger { ledger: DatabaseLedger::staged(parts, context), names, rows, connections: 1 };
    let load = Published { target: target_of(server.as_ref(), spec), mode: spec.mode };
    StagedLoad { ledger: Arc::new(ledger), load: Arc::new(load) }
}

/// What is left of a load whose rows are visible.
struct Published {
    target: String,
    mode: Mode,
}

#[async_trait]
impl Load for Published {
    async fn writer(&self, _partition: usize) -> Result<Box<dyn Writer>> {
        Ok(Box::new(crate::shared::NoWriter))
    }

    fn is_there(&self) -> bool {
        true
    }

    async fn prepare(&self) -> Result<()> {
        Ok(())
    }

    fn changes(&self) -> Option<Changes> {
        None
    }

    async fn commit(&self) -> Result<String> {
        let verb = if self.mode == Mode::Merge { "merged" } else { "offered" };
        Ok(format!("nothing new for {}: its rows were {verb} before", self.target))
    }

    async fn abort(&self) {}
}

/// The ledger of a staged load.
struct StagedLedger {
    ledger: DatabaseLedger,
    names: Names,
    /// How many rows are staged.
    rows: Arc<AtomicU64>,
    connections: usize,
}

impl StagedLedger {
    /// Does `work` over a connection of its own, unless another run owns the load.
    async fn drop_tables(&self, unless_written: bool) -> Result<bool> {
        let (state, names) = (self.ledger.state(), self.names.clone());
        on_io(&self.ledger.state().into.io, async move {
            let (entry, spec) = (&state.entry, &state.into.shared.spec);
            let mut connection = connect(state.into.shared.server.as_ref(), spec).await?;
            let connection = connection.as_mut();
            if !entry.has_ledger(connection).await.map_err(Failure::into_error)? {
                return Ok(true);
            }
            let is_own = entry.is_own(connection).await.map_err(Failure::into_error)?;
            if !is_own || (unless_written && entry.has_written(connection).await.map_err(Failure::into_error)?) {
                return Ok(false);
            }
            let Names { notes, staging, new, old, .. } = &names;
            for table in [notes, staging, new, old] {
                if let Err(failure) = connection.execute(&drop_table(table)).await {
                    return Err(blamed(connection, &[table], failure).await);
                }
            }
            Ok(true)
        })
        .await
    }
}

#[async_trait]
impl Ledger for StagedLedger {
    async fn written(&self) -> Result<WrittenChunks> {
        self.ledger.written().await
    }

    async fn written_of(&self, load: &str) -> Result<WrittenChunks> {
        self.ledger.written_of(load).await
    }

    async fn roll_back(&self, number: u64) -> Result<()> {
        self.ledger.roll_back(number).await
    }

    async fn count(&self) -> Result<u64> {
        self.ledger.count().await
    }

    fn target(&self) -> String {
        self.ledger.target()
    }

    async fn delivery(&self, chunks: Vec<Chunk>, bad_rows: usize) -> Result<Box<dyn Delivery>> {
        self.ledger.delivery(chunks, bad_rows).await
    }

    async fn begin_anew(&self) -> Result<()> {
        let (state, Names { notes, staging, .. }) = (self.ledger.state(), self.names.clone());
        on_io(&self.ledger.state().into.io, async move {
            let _permit = state.into.shared.pool.permit().await?;
            let mut connection = state.into.shared.pool.take().await?;
            let emptied = async {
                connection.execute("BEGIN").await?;
                state.entry.check_locked(connection.as_mut(), "FOR UPDATE").await?;
                connection.execute(&format!("DELETE FROM {notes} WHERE chunk >= 0")).await?;
                connection.execute(&state.into.shared.server.dialect().empty(&staging, None)).await?;
                connection.execute("COMMIT").await.map(drop)
            };
            if let Err(failure) = emptied.await {
                return Err(blamed(connection.as_mut(), &[&staging], failure).await);
            }
            state.into.shared.pool.give(connection);
            Ok(())
        })
        .await?;
        self.rows.store(0, Ordering::Relaxed);
        Ok(())
    }

    fn connections(&self) -> usize {
        self.connections
    }

    async fn forget(&self, _load: &str) -> Result<()> {
        self.drop_tables(false).await.map(drop)
    }

    async fn forget_unwritten(&self, _load: &str) -> Result<bool> {
        self.drop_tables(true).await
    }

    fn summary(&self, rows: u64) -> String {
        format!("{} staged for {}", counted(rows, "row"), self.target())
    }

    async fn loads(&self) -> Result<Vec<KnownLoad>> {
        Ok(Vec::new())
    }
}
