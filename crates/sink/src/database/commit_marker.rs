//! The commit marker of a load whose rows become visible all at once, in the ledger. `entry.rs` has the owner of a
//! load, `ledger.rs` the chunks.

use std::sync::Arc;

use millstream_core::sink::{ChangeNotes, Chunk, LoadContext, LoadNotes, WrittenChunks};
use millstream_core::{Error, Result, fail_point};

use super::entry::{Entry, blamed, header};
use super::ledger_rows::{all_chunks, record, take_back};
use super::pool::connect_as;
use super::server::{Connection, Failure, Server, target_of};
use super::spec::DatabaseSpec;
use crate::shared::digest;

/// Replaces the attempt in the commit marker of a load whose statements after the commit have run.
const OVER: &str = "over";

/// The commit marker of a load, written in the transaction that makes its rows visible: chunk 0 of the entry's unit. If
/// a new table is renamed without a transaction, this is recorded before as an intention, with the table's name: once
/// no table has this name any more, the rename is done. So the intention is removed before the table is dropped.
///
/// If later runs are not to load the same units again, these are noted in place of the marker, for a load of all runs:
/// then the entry is that load's, and the notes of this run say that its rows are visible.
pub(crate) struct CommitMarker {
    entry: Entry,
    notes: Option<Arc<LoadNotes>>,
}

impl CommitMarker {
    /// The marker of a load whose entry has a table of its own.
    pub(crate) fn of_staged(entry: Entry) -> Self {
        CommitMarker { entry, notes: None }
    }

    /// Whether the rows of the load are visible, as far as this connection sees.
    pub(crate) async fn is_there(&self, connection: &mut dyn Connection) -> Result<bool, Failure> {
        is_recorded(&self.entry, connection).await
    }

    /// Removes an intention that was not carried out.
    pub(crate) async fn remove_intention(&self, connection: &mut dyn Connection) -> Result<(), Failure> {
        remove_intentions(&self.entry, connection, &format!("load_key = '{}'", self.entry.key)).await
    }

    /// The owner of the load's connections.
    pub(crate) fn owner(&self) -> &str {
        &self.entry.owner
    }

    /// Writes the commit marker, if this run still owns the load.
    pub(crate) async fn write(&self, connection: &mut dyn Connection) -> Result<(), Failure> {
        self.entry.check(connection).await?;
        if let Some(notes) = &self.notes {
            let noted = notes.noted();
            if !take_back(&self.entry, connection, &noted.replaced).await? {
                return Err(Failure::Other(self.loaded_by_another()));
            }
            return match record(&self.entry, connection, &noted.chunks, &self.entry.owner).await {
                Err(Failure::Rows(_)) => Err(Failure::Other(self.loaded_by_another())),
                recorded => recorded,
            };
        }
        let Entry { table, key, .. } = &self.entry;
        let insert =
            format!("INSERT INTO {table} (load_key, unit_key, chunk, attempt) VALUES ('{key}', '{}', 0, '')", header());
        connection.execute(&insert).await.map(drop)
    }

    fn loaded_by_another(&self) -> Error {
        Error::refused(format!(
            "another run has loaded some of the same files or rows into {} meanwhile",
            self.entry.target
        ))
        .hint("nothing was written twice: run the job again")
    }

    /// Records the intention to rename the table `name`, if this run still owns the load.
    pub(crate) async fn intend(&self, connection: &mut dyn Connection, name: &str) -> Result<(), Failure> {
        let Entry { server, table, key, .. } = &self.entry;
        connection.execute("BEGIN").await?;
        self.entry.check(connection).await?;
        let values = format!("('{key}', '{}', 0, '', {})", header(), server.dialect().literal(name));
        connection
            .execute(&format!("INSERT INTO {table} (load_key, unit_key, chunk, attempt, note) VALUES {values}"))
            .await?;
        connection.execute("COMMIT").await.map(drop)
    }

    /// Records that the statements after the commit have run.
    pub(crate) async fn end(&self, connection: &mut dyn Connection) -> Result<(), Failure> {
        let Entry { table, key, .. } = &self.entry;
        let update = format!(
            "UPDATE {table} SET attempt = '{OVER}' WHERE load_key = '{key}' AND unit_key = '{}' AND chunk = 0",
            header()
        );
        connection.execute(&update).await.map(drop)
    }

    /// Whether [`Self::end`] was recorded.
    async fn has_ended(&self, connection: &mut dyn Connection) -> Result<bool, Failure> {
        let Entry { table, key, .. } = &self.entry;
        let query =
            format!("SELECT attempt FROM {table} WHERE load_key = '{key}' AND unit_key = '{}' AND chunk = 0", header());
        let attempt = connection.query(&query).await?.into_iter().flatten().flatten().next();
        Ok(attempt.is_some_and(|attempt| attempt.trim_end() == OVER))
    }

    /// Whether the commit marker is written, checked over another connection: this waits for an open transaction of the
    /// other one, which locks the entry.
    pub(crate) async fn is_written(&self, connection: &mut dyn Connection) -> Result<bool, Failure> {
        self.entry.check_locked(connection, "FOR UPDATE").await?;
        match &self.notes {
            Some(notes) => self.has_noted(connection, &notes.noted().chunks).await,
            None => is_recorded(&self.entry, connection).await,
        }
    }

    /// Whether this run has noted `chunks`: all of them, or none.
    async fn has_noted(&self, connection: &mut dyn Connection, chunks: &[Chunk]) -> Result<bool, Failure> {
        let Some(first) = chunks.first() else { return Ok(false) };
        let Entry { table, key, owner, .. } = &self.entry;
        let (unit, number) = (digest(&first.unit), first.number);
        let query = format!(
            "SELECT 1 FROM {table} WHERE load_key = '{key}' AND unit_key = '{unit}' AND chunk = {number} AND attempt = \
             '{owner}'"
        );
        Ok(!connection.query(&query).await?.is_empty())
    }
}

/// Enters the load of all runs in which `notes` are, to note more with the rows of this run; `None` if there can be no
/// ledger.
pub(crate) async fn enter_notes(
    server: &Arc<dyn Server>,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
    notes: &Arc<LoadNotes>,
    context: &LoadContext,
) -> Result<Option<Arc<CommitMarker>>> {
    let entry = Entry::new(server, spec, &notes.load, &context.run);
    if !entry.enter(connection, context.take_over).await? {
        return Ok(None);
    }
    let is_there = connection.describe(&spec.table).await.map_err(Failure::into_error)?.is_some();
    if !is_there && entry.has_written(connection).await.map_err(Failure::into_error)? {
        return Err(super::table::is_gone(&target_of(server.as_ref(), spec)));
    }
    Ok(Some(Arc::new(CommitMarker { entry, notes: Some(Arc::clone(notes)) })))
}

/// What is noted for the load `load`.
pub(crate) async fn noted(
    server: &Arc<dyn Server>,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
    load: &str,
) -> Result<WrittenChunks> {
    let entry = Entry::new(server, spec, load, "");
    if !entry.has_ledger(connection).await.map_err(Failure::into_error)? {
        return Ok(WrittenChunks::new([], digest));
    }
    all_chunks(&entry.table, connection, &entry.key).await.map_err(Failure::into_error)
}

/// Changes what is noted for the load `load`, once it belongs to the run `run` and no other.
pub(crate) async fn change_notes(
    server: &Arc<dyn Server>,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
    load: &str,
    change: ChangeNotes,
    run: &str,
) -> Result<()> {
    let entry = Entry::new(server, spec, load, run);
    let before = noted(server, connection, spec, load).await?;
    if change(&before)?.is_empty() {
        return Ok(());
    }
    // Another program may look for its connections by the owner.
    let mut owned = connect_as(server.as_ref(), spec, &entry.owner).await?;
    let connection = owned.as_mut();
    if !entry.enter(connection, false).await? {
        return Err(Error::internal(format!("the ledger beside {} cannot be used", entry.target)));
    }
    let changed = async {
        connection.execute("BEGIN").await?;
        entry.check_locked(connection, "FOR UPDATE").await?;
        fail_point::pass("notes.begun");
        let noted = change(&all_chunks(&entry.table, connection, &entry.key).await?).map_err(Failure::Other)?.sorted();
        if !take_back(&entry, connection, &noted.replaced).await? {
            return Err(Failure::Other(Error::internal("a note that is replaced is not there")));
        }
        record(&entry, connection, &noted.chunks, &entry.owner).await?;
        fail_point::pass("notes.before");
        connection.execute("COMMIT").await.map(drop)
    };
    match changed.await {
        Ok(()) => {
            fail_point::pass("notes.after");
            Ok(())
        }
        Err(failure) => Err(blamed(connection, &[&entry.table], failure).await),
    }
}

/// Whether a load as a whole is already visible.
pub(crate) enum MarkerState {
    /// It is not; with the commit marker to write.
    Missing(Arc<CommitMarker>),
    /// It is; with the commit marker, if the statements after the commit may not have run.
    Present(Option<Arc<CommitMarker>>),
    /// Unknown, since there can be no ledger.
    NoLedger,
}

/// Enters the load `load`, whose rows become visible all at once.
pub(crate) async fn enter(
    server: &Arc<dyn Server>,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
    load: &str,
    context: &LoadContext,
) -> Result<MarkerState> {
    let entry = Entry::new(server, spec, load, &context.run);
    if !entry.enter(connection, context.take_over).await? {
        return Ok(MarkerState::NoLedger);
    }
    if is_recorded(&entry, connection).await.map_err(Failure::into_error)? {
        let marker = CommitMarker { entry, notes: None };
        let has_ended = marker.has_ended(connection).await.map_err(Failure::into_error)?;
        return Ok(MarkerState::Present((!has_ended).then(|| Arc::new(marker))));
    }
    remove_intentions(&entry, connection, &format!("load_key = '{}'", entry.key)).await.map_err(Failure::into_error)?;
    Ok(MarkerState::Missing(Arc::new(CommitMarker { entry, notes: None })))
}

/// Whether the load has a commit marker, or an intention that was carried out.
async fn is_recorded(entry: &Entry, connection: &mut dyn Connection) -> Result<bool, Failure> {
    let (table, load, unit) = (&entry.table, &entry.key, header());
    let query = format!("SELECT note FROM {table} WHERE load_key = '{load}' AND unit_key = '{unit}' AND chunk = 0");
    match connection.query(&query).await?.into_iter().flatten().next() {
        None => Ok(false),
        Some(None) => Ok(true),
        Some(Some(name)) => Ok(!entry.has_table(connection, &name).await?),
    }
}

/// Removes intentions that will not be carried out.
async fn remove_intentions(entry: &Entry, connection: &mut dyn Connection, which: &str) -> Result<(), Failure> {
    let (table, unit) = (&entry.table, header());
    let delete =
        format!("DELETE FROM {table} WHERE {which} AND unit_key = '{unit}' AND chunk = 0 AND note IS NOT NULL");
    connection.execute(&delete).await.map(drop)
}

/// Removes the intention to rename the table `name`, before the table is dropped: its load is dead or has failed.
pub(crate) async fn roll_back(
    server: &Arc<dyn Server>,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
    name: &str,
) -> Result<(), Failure> {
    let entry = Entry::new(server, spec, "", "");
    if server.dialect().transactional_tables()
        || !entry.has_ledger(connection).await?
        || !entry.has_table(connection, name).await?
    {
        return Ok(());
    }
    remove_intentions(&entry, connection, &format!("note = {}", server.dialect().literal(name))).await
}
