//! Loads rows into a staging table, and from there into the target, in one transaction; or into a new table, if there
//! is no target yet.
//!
//! ```text
//!  writers ─▶ connections, each its own commits ─▶ staging table ─▶ target, one transaction        commit: COMMIT
//! ```
//! If a new table cannot get its name in the transaction, that is committed before: the commit is a rename, which is
//! recorded before as an intention.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use millstream_core::Result;
use millstream_database::family::Family;
use millstream_database::load::{Counted, Key, Publish, StagedKeys, Step};
use millstream_database::table::{ARRIVAL, BulkColumn, TableFacts};

use super::control::{Control, close_pool};
use super::deferred::{Deferred, build_behind};
use super::outcome::{Proof, commit, rename};
use super::own_tables::{Names, drop_table};
use super::shared::Shared;
use super::strategy::{Begun, Strategy, link_of};
use super::target::cannot_make;
use super::transaction::{Publishing, StepQueries};
use crate::database::bisect::Scope;
use crate::database::commit_marker::CommitMarker;
use crate::database::in_step::{Counts, accept_changed};
use crate::database::server::{Connection, Failure};

/// A load through a staging table.
struct Staged {
    shared: Arc<Shared>,
    control: Control,
    names: Names,
    indexes: Deferred,
    marker: Option<Arc<CommitMarker>>,
    how: Moved,
    /// Whether another run can resume what is staged.
    is_resumable: bool,
    publishing: Publishing,
    /// The statements after the commit that rename a new table, if that is not transactional.
    rename: Vec<String>,
    /// What the publishing has changed.
    counts: Mutex<Counts>,
    /// How many rows were deleted before.
    deleted: AtomicU64,
    /// The name of the transaction, if it has one.
    transaction: Mutex<Option<String>>,
}

/// How staged rows get into the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moved {
    /// By themselves.
    By(Publish),
    /// The target is kept in step with them.
    InStep,
}

/// What a staging table has when a load begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Staging {
    /// There is none; it goes with the run.
    New,
    /// There is none; it stays if the run dies.
    Resumable,
    /// It is there, with what an earlier run has staged.
    Resumed,
}

/// Creates the staging table, and a new table if there is no target.
pub(super) async fn set_up(
    begun: Begun,
    mut control: Box<dyn Connection>,
    how: Moved,
    is: Staging,
) -> Result<Arc<dyn Strategy>> {
    let connection = control.as_mut();
    make_tables(&begun, connection, is).await?;
    let indexes = Deferred::of_target(&begun, connection).await?;
    let (publishing, rename) = publishing(&begun, how, &indexes);
    let mut columns = begun.columns.clone();
    columns.extend(begun.spec.mode.has_order().then(arrival));
    let bulk = begun.server.dialect().bulk(&begun.names.staging, columns, &begun.context.schema);
    Ok(Arc::new(Staged {
        shared: begun.shared(bulk, begun.pool(), Scope::Transaction),
        control: Control::new(control),
        indexes,
        how,
        is_resumable: is != Staging::New,
        publishing,
        rename,
        counts: Mutex::default(),
        deleted: AtomicU64::new(0),
        transaction: Mutex::default(),
        names: begun.names,
        marker: begun.marker,
    }))
}

/// The column of a staging table with the order of arrival.
pub(crate) fn arrival() -> BulkColumn {
    BulkColumn::new(ARRIVAL, Family::Integer { bytes: 8, signed: true })
}

/// The statement that creates a new table, if there is no target.
pub(super) fn create_new(begun: &Begun) -> Option<String> {
    let (dialect, in_step) = (begun.server.dialect(), begun.spec.in_step());
    // The key is not deferred: it decides between rows with the same key when rows are moved.
    let schema = in_step.table_schema(&begun.context.schema);
    begun.facts.is_none().then(|| dialect.create_table(&begun.names.new, &schema, &in_step.table_key(), false))
}

/// The statements that create the staging table.
pub(super) fn create_staging(begun: &Begun) -> Vec<String> {
    let Begun { server, spec, names, facts, .. } = begun;
    let key = spec.in_step().input_key();
    let keys = match () {
        () if spec.mode.has_order() => StagedKeys::Arrival,
        () if spec.mode.is_in_step() => StagedKeys::Unique(&key),
        () => StagedKeys::None,
    };
    server.dialect().create_staging(&names.staging, model(begun), &begun.column_names(), keys, facts.as_ref())
}

/// The table whose columns those of the load's own tables are like.
fn model(begun: &Begun) -> &str {
    if begun.facts.is_some() { &begun.names.target } else { &begun.names.new }
}

async fn make_tables(begun: &Begun, connection: &mut dyn Connection, is: Staging) -> Result<()> {
    let Begun { server, spec, names, facts, .. } = begun;
    let staging = if is == Staging::Resumed { Vec::new() } else { create_staging(begun) };
    let columns = begun.column_names();
    let versions = begun.in_step(&columns, "").version_columns();
    let versions = match versions.is_empty() {
        true => Vec::new(),
        false => server.dialect().create_staging(&names.versions, model(begun), &versions, StagedKeys::None, None),
    };
    for statement in create_new(begun).into_iter().chain(staging).chain(versions) {
        connection.execute(&statement).await.map_err(|failure| cannot_make(failure.into_error(), spec))?;
    }
    match facts {
        Some(facts) if is != Staging::Resumed => check_rows(connection, &names.staging, facts).await,
        _ => Ok(()),
    }
}

/// Lets the staging table check the same as the target, so that a bad row is reported individually. The target checks
/// the rest when the rows are moved.
async fn check_rows(connection: &mut dyn Connection, staging: &str, facts: &TableFacts) -> Result<()> {
    for check in &facts.checks {
        match connection.execute(&format!("ALTER TABLE {staging} ADD {check}")).await {
            Ok(_) | Err(Failure::Other(_)) => {}
            Err(other) => return Err(other.into_error()),
        }
    }
    Ok(())
}

/// The transaction that moves the rows, and the statements after its commit.
fn publishing(begun: &Begun, how: Moved, indexes: &Deferred) -> (Publishing, Vec<String>) {
    let Begun { server, spec, names, facts, .. } = begun;
    let dialect = server.dialect();
    let into = if facts.is_some() { &names.target } else { &names.new };
    let context = &begun.context;
    let (columns, begin) = (begun.column_names(), spec.in_step().moment(context.began(), &context.schema));
    let in_step = begun.in_step(&columns, &begin);
    let (mut before, mut queries) = (Vec::new(), None);
    let moved = match how {
        Moved::By(how) => {
            let order = spec.order();
            let key = Key { columns: &spec.key, order: &order };
            dialect.publish(how, &names.staging, into, key, &columns, facts.as_ref())
        }
        Moved::InStep => {
            before = dialect.index_staged(&names.staging, &in_step.staged_key());
            queries = Some(StepQueries::of(&in_step, &begin));
            in_step.steps()
        }
    };
    let dropped = indexes.inside().iter().map(|index| dialect.drop_index(into, &index.name)).map(Step::plain);
    let mut steps: Vec<Step> = dropped.chain(moved).collect();
    let mut behind = dialect.create_indexes(into, indexes.inside());
    // With a commit marker, the ledger shows the outcome; and what is staged may have to be moved once more.
    behind.extend(dialect.unstage_one(&names.staging).filter(|_| begun.marker.is_none()));
    let mut rename = if facts.is_some() { vec![] } else { begun.swap() };
    if dialect.transactional_tables() {
        behind.push(format!("DROP TABLE {}", names.staging));
        behind.push(drop_table(&names.versions));
        behind.append(&mut rename);
    }
    steps.extend(behind.into_iter().map(Step::plain));
    (Publishing { before, steps, in_step: queries, ..Publishing::default() }, rename)
}

#[async_trait]
impl Strategy for Staged {
    fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    async fn prepare(&self, taken: u64) -> Result<()> {
        drop(self.shared.pool.close());
        let mut lent = self.control.lend().await;
        let connection = lent.connection()?;
        if let Some(around) = self.indexes.around() {
            around.drop_all(connection).await?;
        }
        let is_renamed = !self.rename.is_empty();
        let marker = self.marker.as_deref();
        let counts = self.publishing.run(&self.shared, connection, marker.filter(|_| !is_renamed)).await?;
        let counts = Counts { deleted: counts.deleted + self.deleted.load(Ordering::Relaxed), ..counts };
        let rows = counts.inserted;
        if matches!(self.how, Moved::By(Publish::Add | Publish::Instead)) {
            accept_changed(Counted::Inserted, rows, Some(taken), &self.shared.target)?;
        }
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner) = counts;
        if is_renamed {
            connection.execute("COMMIT").await.map_err(Failure::into_error)?;
            // A rename has no transaction for a commit marker.
            if let Some(marker) = marker {
                marker.intend(connection, &self.names.new_name).await.map_err(Failure::into_error)?;
            }
            return Ok(());
        }
        let name = connection.transaction().await.map_err(Failure::into_error)?;
        *self.transaction.lock().unwrap_or_else(PoisonError::into_inner) = name;
        Ok(())
    }

    fn protect(&self, tables: Vec<String>) {
        let start = link_of(self.shared.server.as_ref(), "");
        let names = tables.iter().filter_map(|table| table.strip_prefix(&start)).map(str::to_owned);
        self.publishing.protect(names.collect());
    }

    async fn check_missing(&self) -> Result<()> {
        self.publishing.check_missing(&self.shared, self.control.lend().await.connection()?).await
    }

    async fn delete_missing(&self) -> Result<u64> {
        let deleted = self.publishing.delete_missing(&self.shared, self.control.lend().await.connection()?).await?;
        self.deleted.fetch_add(deleted, Ordering::Relaxed);
        Ok(deleted)
    }

    async fn commit(&self, taken: u64) -> Result<Box<dyn Connection>> {
        let transaction = self.transaction.lock().unwrap_or_else(PoisonError::into_inner).take();
        let proof = Proof::of_transaction(&self.marker, transaction);
        let proof = proof.unwrap_or_else(|| match (self.how, taken) {
            // Without rows, the staging table is the same before and after, and the target is not.
            (Moved::InStep, 0) => Proof::None,
            _ => Proof::Staged(self.names.staging.clone(), taken),
        });
        let connection = self.control.take().await?;
        let mut connection = match self.rename.is_empty() {
            true => commit(&self.shared, connection, &proof).await?,
            false => rename(&self.shared, connection, &self.rename, &self.names, self.marker.as_ref()).await?,
        };
        build_behind(self.indexes.around(), connection.as_mut()).await?;
        for table in [&self.names.staging, &self.names.versions, &self.names.new, &self.names.old] {
            // The rows are visible; the next run drops what is left.
            let _ = connection.execute(&drop_table(table)).await;
        }
        Ok(connection)
    }

    async fn roll_back(&self) -> Result<()> {
        close_pool(&self.shared).await;
        let Names { staging, versions, new, old, notes, .. } = &self.names;
        // Without its notes a staging table is not resumed.
        let notes = self.is_resumable.then_some(notes.as_str());
        let tables: Vec<&str> = notes.into_iter().chain([staging.as_str(), versions, new, old]).collect();
        // An intention that is among the notes goes with them.
        let recorded = self.marker.is_some() && !self.is_resumable;
        self.control.roll_back(&self.shared, &self.names, self.indexes.around(), recorded, &tables).await
    }

    async fn suspend(&self) -> Result<()> {
        if !self.is_resumable {
            return self.roll_back().await;
        }
        close_pool(&self.shared).await;
        self.control.release(&self.names.id).await;
        Ok(())
    }

    fn counts(&self) -> Counts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
