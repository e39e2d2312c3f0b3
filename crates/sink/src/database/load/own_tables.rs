//! The tables of a load: their names, and dropping those of dead loads.
//!
//! The names begin with that of a lock which the load holds as long as it lives. So a table whose lock is free belongs
//! to a dead load, and the next load drops it.

use std::sync::Arc;

use millstream_core::Result;

use crate::database::commit_marker;
use crate::database::server::{Connection, Failure, Server};
use crate::database::spec::DatabaseSpec;

/// The prefix of the names of our tables and locks.
pub(crate) const PREFIX: &str = "_millstream_";

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
        let id = format!("{PREFIX}{:016x}", RandomState::new().hash_one((run, sink)));
        let (new_name, old_name) = (format!("{id}_new"), format!("{id}_old"));
        let (dialect, target) = (server.dialect(), &spec.table);
        Names {
            target: dialect.table(target),
            new: dialect.beside(target, &new_name),
            staging: dialect.beside(target, &format!("{id}_rows")),
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

/// Drops the tables of dead loads, except those of other users.
pub(crate) async fn clean(
    server: &Arc<dyn Server>,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
) -> Result<()> {
    let mut dead: Vec<String> = Vec::new();
    let tables = connection.tables(&spec.table, PREFIX).await.map_err(Failure::into_error)?;
    for name in tables {
        let Some(id) = name.get(..PREFIX.len() + 16).filter(|id| name[id.len()..].starts_with('_')) else { continue };
        if !dead.iter().any(|known| known == id) {
            if !connection.lock(id).await.map_err(Failure::into_error)? {
                continue;
            }
            dead.push(id.to_owned());
        }
        match drop_dead(server, connection, spec, &name).await {
            Ok(()) | Err(Failure::Other(_)) => {}
            Err(other) => return Err(other.into_error()),
        }
    }
    for id in dead {
        connection.unlock(&id).await.map_err(Failure::into_error)?;
    }
    Ok(())
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
