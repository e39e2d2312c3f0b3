//! A load into a table of a database server, from its beginning to its commit. This file prepares the load before the
//! first row, and chooses its route once. The dialects write the statements.
//!
//! The routes are `direct.rs`, `new_table.rs` and `staged.rs`; `route.rs` chooses, and `strategy.rs` is their trait.
//! Beside them: `target.rs` prepares the target, `writer.rs` sends rows, `shared.rs` is shared by writers,
//! `own_tables.rs` names the tables of a load, `control.rs` is the connection that publishes them, `transaction.rs` its
//! transaction, `deferred.rs` has the deferred indexes, `outcome.rs` finds out whether a commit was done,
//! `user_statements.rs` runs the user's actions, `loaded_before.rs` is a load that is already done. `resumable.rs` is a
//! staged load whose rows come chunk by chunk, so that another run can resume it.

mod control;
mod deferred;
mod direct;
mod loaded_before;
mod new_table;
mod outcome;
mod own_tables;
mod resumable;
mod route;
mod shared;
mod staged;
mod strategy;
mod target;
mod transaction;
mod user_statements;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use millstream_core::sink::{Changes, InputFacts, Load, LoadContext, TableLinks, Writer};
use millstream_core::{Budget, Error, Result};
use tokio::runtime::Handle;

use self::loaded_before::LoadedBefore;
use self::own_tables::Names;
#[cfg(test)]
pub(crate) use self::own_tables::PREFIX;
pub(crate) use self::own_tables::clean;
pub(crate) use self::resumable::open as open_staged;
use self::route::Route;
pub(crate) use self::shared::{Shared, on_io};
use self::staged::Staging;
pub(crate) use self::staged::arrival;
use self::strategy::{Begun, Strategy};
pub(crate) use self::target::{bulk_columns, check_scope, examine, expected_facts, may_write, ready_target};
pub(crate) use self::transaction::{DUPLICATE, count, moved_together};
use self::writer::RowWriter;
use super::commit_marker::{self, CommitMarker, MarkerState};
use super::indexes::Waiting;
use super::pool::connect;
use super::server::{Connection, Failure, Server, target_of};
use super::spec::{DatabaseSpec, Mode};
use super::{in_step, table};
use crate::shared::counted;

/// Begins a load.
pub(crate) async fn begin(server: Arc<dyn Server>, spec: DatabaseSpec, context: LoadContext) -> Result<Arc<dyn Load>> {
    let io = context.io.clone();
    on_io(&io, async move { set_up(server, spec, context).await }).await
}

/// A load that is ready for rows, or one whose rows are already visible.
async fn set_up(server: Arc<dyn Server>, spec: DatabaseSpec, context: LoadContext) -> Result<Arc<dyn Load>> {
    let mut control = connect(server.as_ref(), &spec).await?;
    let connection = control.as_mut();
    let (mut marker, waiting) = (None, Waiting::new(&server, &spec));
    if let Some(notes) = &context.notes {
        marker = commit_marker::enter_notes(&server, connection, &spec, notes, &context).await?;
        if marker.is_none() {
            return Err(no_ledger(&target_of(server.as_ref(), &spec)));
        }
    } else if let Some(name) = context.marker.as_ref().filter(|_| matches!(spec.mode, Mode::Append | Mode::History)) {
        match commit_marker::enter(&server, connection, &spec, name, &context).await? {
            MarkerState::Present(marker) => {
                if connection.describe(&spec.table).await.map_err(Failure::into_error)?.is_none() {
                    return Err(table::is_gone(&target_of(server.as_ref(), &spec)));
                }
                waiting.build_all(connection).await?;
                clean(&server, connection, &spec).await?;
                return Ok(Arc::new(LoadedBefore { server, spec, marker, io: context.io }));
            }
            MarkerState::Missing(missing) => marker = Some(missing),
            MarkerState::NoLedger => {}
        }
    }
    if let Some(marker) = &marker {
        connection.tag(marker.owner()).await.map_err(Failure::into_error)?;
    }
    let (schema, budget, io) = (Arc::clone(&context.schema), Arc::clone(&context.budget), context.io.clone());
    let strategy = choose(server, spec, context, control, marker.clone(), waiting).await?;
    Ok(Arc::new(DatabaseLoad { strategy, marker, schema, budget, io, rows: Arc::default(), arrivals: Arc::default() }))
}

/// The error of a load that has to note its units, and cannot.
fn no_ledger(target: &str) -> Error {
    Error::refused(format!("the files that are loaded into {target} cannot be noted"))
        .cause("there is no table `_millstream_ledger`, and the user may not create one")
        .hint("let the user create tables beside it, or leave out `incremental`")
}

/// Examines the target, and sets the load up by its route.
async fn choose(
    server: Arc<dyn Server>,
    mut spec: DatabaseSpec,
    context: LoadContext,
    mut control: Box<dyn Connection>,
    marker: Option<Arc<CommitMarker>>,
    waiting: Waiting,
) -> Result<Arc<dyn Strategy>> {
    let connection = control.as_mut();
    user_statements::run(connection, &spec.before, "before").await?;
    let facts = match &context.notes {
        // A new table that is renamed has no transaction for notes everywhere.
        Some(_) => Some(target::ready_target(server.as_ref(), connection, &spec, &context.schema).await?),
        None => target::fitting(server.as_ref(), connection, &spec, &context.schema).await?,
    };
    let names = Names::new(server.as_ref(), &spec, &context.run, &context.sink);
    clean(&server, connection, &spec).await?;
    if !connection.lock(&names.id).await.map_err(Failure::into_error)? {
        return Err(Error::internal("another load has the same name"));
    }
    if !spec.defer_indexes {
        waiting.build_all(connection).await?;
    }
    let columns = bulk_columns(server.as_ref(), &spec, &context.schema, facts.as_ref());
    spec.name_like(&columns.iter().map(|column| column.name.clone()).collect::<Vec<_>>());
    if let Some(facts) = &facts {
        spec.name_own_like(facts);
    }
    target::check_scope(server.as_ref(), connection, &spec, &context.schema, facts.as_ref()).await?;
    let connections = route::connections(&spec, facts.is_some(), context.ordered);
    let copy = facts.as_ref().and_then(|facts| server.dialect().create_like(&names.new, &names.target, facts));
    let may_refuse = context.refusals.is_some();
    let route = route::route(&spec, connections, facts.as_ref(), copy.is_some(), may_refuse);
    let copy = copy.filter(|_| spec.mode == Mode::Truncate);
    let begun = Begun { server, spec, context, marker, facts, names, columns, connections, waiting: Arc::new(waiting) };
    match route {
        Route::Direct => direct::set_up(begun, control).await,
        Route::New => new_table::set_up(begun, control, copy).await,
        Route::Staged(how) => staged::set_up(begun, control, how, Staging::New).await,
    }
}

/// A load that has begun.
struct DatabaseLoad {
    strategy: Arc<dyn Strategy>,
    /// The commit marker, which is written in the transaction that makes the rows visible.
    marker: Option<Arc<CommitMarker>>,
    schema: SchemaRef,
    budget: Arc<Budget>,
    io: Handle,
    /// Rows so far.
    rows: Arc<AtomicU64>,
    /// Rows that are numbered by arrival.
    arrivals: Arc<AtomicU64>,
}

impl DatabaseLoad {
    fn shared(&self) -> &Arc<Shared> {
        self.strategy.shared()
    }

    /// How many rows the tables have accepted.
    fn taken(&self) -> u64 {
        self.rows.load(Ordering::Relaxed).saturating_sub(self.shared().refused.load(Ordering::Relaxed))
    }

    fn summary(&self) -> String {
        let shared = self.shared();
        let verb = match shared.spec.mode {
            Mode::Append => "added to",
            Mode::Merge => "merged into",
            Mode::Ignore => "offered to",
            Mode::Sync | Mode::History => "compared with",
            Mode::Replace | Mode::Truncate => "in",
        };
        let rows = counted(self.taken(), "row");
        let left_out = match shared.spec.mode {
            Mode::Ignore => format!(", {} left out as duplicates", counted(self.ignored(), "row")),
            _ => String::new(),
        };
        let spec = &shared.spec;
        let changes = self.changes().map(|changes| in_step::shown(&changes, spec.mode, spec.missing.as_ref()));
        let changes = changes.map_or(String::new(), |changes| format!(": {changes}"));
        format!("{rows} {verb} {}{left_out}{}{changes}", shared.target, shared.detour())
    }
}

#[async_trait]
impl Load for DatabaseLoad {
    async fn writer(&self, _partition: usize) -> Result<Box<dyn Writer>> {
        let arrivals = self.shared().spec.mode.has_order().then_some(&self.arrivals);
        let (shared, budget) = (Arc::clone(self.shared()), Arc::clone(&self.budget));
        Ok(Box::new(RowWriter::new(shared, &self.schema, self.io.clone(), budget, &self.rows, arrivals)))
    }

    fn links(&self) -> Option<TableLinks> {
        self.shared().links.clone()
    }

    fn protect(&self, tables: Vec<String>) {
        self.strategy.protect(tables);
    }

    async fn check_missing(&self) -> Result<()> {
        let strategy = Arc::clone(&self.strategy);
        on_io(&self.io, async move { strategy.check_missing().await }).await
    }

    async fn delete_missing(&self) -> Result<u64> {
        let strategy = Arc::clone(&self.strategy);
        let deleted = on_io(&self.io, async move { strategy.delete_missing().await }).await;
        deleted.map_err(|error| self.shared().error_of_target(error))
    }

    fn accept(&self, input: &InputFacts) -> Result<()> {
        let (in_step, target) = (self.shared().spec.in_step(), &self.shared().target);
        in_step.accept(input, target)?;
        in_step.accept_rows(self.taken(), target)
    }

    async fn prepare(&self) -> Result<()> {
        let (strategy, taken) = (Arc::clone(&self.strategy), self.taken());
        let start = Instant::now();
        let done = on_io(&self.io, async move { strategy.prepare(taken).await }).await;
        self.shared().step.add_waiting_output(start.elapsed());
        done.map_err(|error| self.shared().error_of_target(error))
    }

    fn ignored(&self) -> u64 {
        match self.shared().spec.mode {
            Mode::Ignore => self.taken().saturating_sub(self.strategy.counts().inserted),
            _ => 0,
        }
    }

    fn changes(&self) -> Option<Changes> {
        self.strategy.counts().changes(self.shared().spec.mode, self.taken())
    }

    async fn commit(&self) -> Result<String> {
        let (strategy, marker) = (Arc::clone(&self.strategy), self.marker.clone());
        let (taken, summary) = (self.taken(), self.summary());
        on_io(&self.io, async move {
            let mut connection = strategy.commit(taken).await?;
            let spec = &strategy.shared().spec;
            user_statements::run_after(connection.as_mut(), spec, marker.as_deref()).await?;
            Ok(summary)
        })
        .await
    }

    async fn abort(&self) {
        let strategy = Arc::clone(&self.strategy);
        // Nothing of the load is visible either way.
        let _ = on_io(&self.io, async move { strategy.roll_back().await }).await;
    }

    async fn suspend(&self) {
        let strategy = Arc::clone(&self.strategy);
        // A connection that cannot be released is closed.
        let _ = on_io(&self.io, async move { strategy.suspend().await }).await;
    }
}
