//! The tables of a load: their names, and dropping those of dead loads.
//!
//! The names begin with that of a lock which the load holds as long as it lives. So a table whose lock is free belongs
//! to a dead load, and the next load drops it; unless it is staged chunk by chunk (`resumable.rs`) and may be resumed:
//! then it has notes, and stays for a while.

use std::sync::Arc;

use millstream_core::Result;

use crate::database::commit_marker;
use crate::database::server::{Connection, Failure, Server};
use crate::database::spec::DatabaseSpec;
use crate::shared::digest;

/// The prefix of the names of our tables and locks.
pub(crate) const PREFIX: &str = "_millstream_";

/// How long after its last chunk a staged load of another job is kept, in seconds.
const KEPT: u64 = 7 * 24 * 60 * 60;

/// The end of the name of a table with notes.
const NOTES: &str = "_notes";

/// The names of a load's tables. Fields without `name` in theirs are SQL text.
#[derive(Debug, Clone)]
pub(super) struct Names {
    /// The lock.
    pub(super) id: String,
    pub(super) target: String,
    /// The table that replaces the target.
    pub(super) new: String,
    pub(super) new_name: String,
    pub(super) staging: String,
    pub(super) staging_name: String,
    /// The notes of what is staged, if that is resumed.
    pub(super) notes: String,
    pub(super) notes_name: String,
    /// The new versions of a history.
    pub(super) versions: String,
    /// The former target, until it is dropped.
    pub(super) old: String,
    pub(super) old_name: String,
}

impl Names {
    pub(super) fn new(server: &dyn Server, spec: &DatabaseSpec, run: &str, sink: &str) -> Self {
        use std::hash::{BuildHasher, RandomState};
        // Random, so that runs of several machines never have the same.
        Names::of(server, spec, format!("{PREFIX}{:016x}", RandomState::new().hash_one((run, sink))))
    }

    /// Those of the load `load`, which every run that resumes it finds again.
    pub(super) fn of_load(server: &dyn Server, spec: &DatabaseSpec, load: &str) -> Self {
        Names::of(server, spec, format!("{PREFIX}{:.16}", digest(load)))
    }

    fn of(server: &dyn Server, spec: &DatabaseSpec, id: String) -> Self {
        let (new_name, old_name) = (format!("{id}_new"), format!("{id}_old"));
        let (staging_name, notes_name) = (format!("{id}_rows"), format!("{id}{NOTES}"));
        let (dialect, target) = (server.dialect(), &spec.table);
        Names {
            target: dialect.table(target),
            new: dialect.beside(target, &new_name),
            staging: dialect.beside(target, &staging_name),
            staging_name,
            notes: dialect.beside(target, &notes_name),
            notes_name,
            versions: dialect.beside(target, &format!("{id}_versions")),
            old: dialect.beside(target, &old_name),
            id,
            new_name,
            old_name,
        }
    }
}

/// The statement that drops `table` if it exists.
pub(super) fn drop_table(table: &str) -> String {
    format!("DROP TABLE IF EXISTS {table}")
}

/// Drops the tables of dead loads, except those of other users, and those that may be resumed.
pub(crate) async fn clean(
    server: &Arc<dyn Server>,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
) -> Result<()> {
    clean_beside(server, connection, spec, None).await
}

/// The same for a load that is staged chunk by chunk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Beside<'a> {
    /// Its lock, which this connection holds.
    pub(super) id: &'a str,
    /// What the names of all loads of its sink begin with: a dead one of these is not resumed any more.
    pub(super) of_sink: &'a str,
}

/// The same, beside a load that is staged.
pub(super) async fn clean_beside(
    server: &Arc<dyn Server>,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
    beside: Option<Beside<'_>>,
) -> Result<()> {
    let tables = connection.tables(&spec.table, PREFIX).await.map_err(Failure::into_error)?;
    let mut ids: Vec<&str> = tables.iter().filter_map(|name| id_of(name)).collect();
    ids.sort_unstable();
    ids.dedup();
    for id in ids.into_iter().filter(|id| beside.is_none_or(|beside| beside.id != *id)) {
        if !connection.lock(id).await.map_err(Failure::into_error)? {
            continue;
        }
        let own: Vec<&String> = tables.iter().filter(|name| id_of(name) == Some(id)).collect();
        let has_notes = own.iter().any(|name| name.ends_with(NOTES));
        if !has_notes || !is_kept(server, connection, spec, id, beside.map(|beside| beside.of_sink)).await? {
            for name in own {
                match drop_dead(server, connection, spec, name).await {
                    Ok(()) | Err(Failure::Other(_)) => {}
                    Err(other) => return Err(other.into_error()),
                }
            }
        }
        connection.unlock(id).await.map_err(Failure::into_error)?;
    }
    Ok(())
}

/// The lock of the load that the table `name` belongs to, if it is a table of a load.
fn id_of(name: &str) -> Option<&str> {
    name.get(..PREFIX.len() + 16).filter(|id| name[id.len()..].starts_with('_'))
}

/// Whether the dead load `id`, which has notes, may be resumed: it is none of `of_sink`, and not too old.
async fn is_kept(
    server: &Arc<dyn Server>,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
    id: &str,
    of_sink: Option<&str>,
) -> Result<bool> {
    let dialect = server.dialect();
    let (notes, age) = (dialect.beside(&spec.table, &format!("{id}{NOTES}")), dialect.seconds_since("MAX(written_at)"));
    let query = format!("SELECT MAX(CASE WHEN chunk = -1 THEN note END), {age} FROM {notes}");
    let row = match connection.query(&query).await {
        Ok(rows) => rows.into_iter().next().unwrap_or_default(),
        // It belongs to another user, or its load has just ended.
        Err(Failure::Other(_)) => return Ok(true),
        Err(other) => return Err(other.into_error()),
    };
    let mut cells = row.into_iter();
    let (load, age) = (cells.next().flatten(), cells.next().flatten().and_then(|age| age.parse::<u64>().ok()));
    // A server that has crashed may have emptied the notes, and the rows with them.
    let Some(load) = load else { return Ok(false) };
    let is_stale = of_sink.is_some_and(|of_sink| load.starts_with(of_sink));
    Ok(!is_stale && age.is_none_or(|age| age < KEPT))
}

/// Drops the table `name` of a dead load.
async fn drop_dead(
    server: &Arc<dyn Server>,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
    name: &str,
) -> Result<(), Failure> {
    commit_marker::roll_back(server, connection, spec, name).await?;
    connection.execute(&drop_table(&server.dialect().beside(&spec.table, name))).await.map(drop)
}
