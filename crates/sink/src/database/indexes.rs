//! Deferred indexes: dropped before rows are loaded into an existing table, and rebuilt afterwards. This file keeps
//! their definitions meanwhile.
//!
//! If tables can change inside of a transaction, it is all in one, and nothing is kept. Otherwise (MySQL) the
//! definitions are in the ledger from before the first one is dropped until the last one is built. They belong to the
//! table, not to a load, so the next load builds what a dead one has left.
//!
//! ```text
//!  load_key          unit_key   chunk   attempt   note
//!  digest of table   digest     -2                the definition
//! ```

use std::sync::Arc;

use millstream_core::{Error, Result, fail_point};
use millstream_database::table::Index;

use super::entry::Entry;
use super::server::{Connection, Failure, Server};
use super::spec::DatabaseSpec;
use crate::shared::digest;

/// The deferred indexes of one table.
#[derive(Debug)]
pub(crate) struct Waiting {
    server: Arc<dyn Server>,
    spec: DatabaseSpec,
    entry: Entry,
    target: String,
}

impl Waiting {
    /// The deferred indexes of the target.
    pub(crate) fn new(server: &Arc<dyn Server>, spec: &DatabaseSpec) -> Self {
        let entry = Entry::new(server, spec, &format!("indexes\n{}", spec.table), "");
        Waiting { server: Arc::clone(server), spec: spec.clone(), target: server.dialect().table(&spec.table), entry }
    }

    /// Stores the definitions of all indexes that can be deferred, then drops them.
    pub(crate) async fn drop_all(&self, connection: &mut dyn Connection) -> Result<()> {
        let indexes = connection.indexes(&self.spec.table).await.map_err(Failure::into_error)?;
        if indexes.is_empty() {
            return Ok(());
        }
        if !self.entry.make_ledger(connection).await? {
            return Err(Error::refused("the definitions of indexes cannot be kept while they wait for the rows")
                .cause("the user may not create a table for them")
                .hint("GRANT CREATE, or leave out `defer_indexes`"));
        }
        for index in &indexes {
            self.keep(connection, index).await.map_err(Failure::into_error)?;
        }
        fail_point::pass("indexes.kept");
        for index in &indexes {
            let dropped = connection.execute(&self.server.dialect().drop_index(&self.target, &index.name)).await;
            match dropped {
                // It stays if a foreign key or an AUTO_INCREMENT column needs it.
                Ok(_) | Err(Failure::Other(_)) => {}
                Err(other) => return Err(other.into_error()),
            }
        }
        fail_point::pass("indexes.dropped");
        Ok(())
    }

    async fn keep(&self, connection: &mut dyn Connection, index: &Index) -> Result<(), Failure> {
        let Entry { table, key, .. } = &self.entry;
        let values =
            format!("('{key}', '{}', -2, '', {})", digest(&index.name), self.server.dialect().literal(&index.kept()));
        let insert = format!("INSERT INTO {table} (load_key, unit_key, chunk, attempt, note) VALUES {values}");
        match connection.execute(&insert).await {
            // A dead load has already stored it.
            Ok(_) | Err(Failure::Rows(_)) => Ok(()),
            Err(other) => Err(other),
        }
    }

    /// Builds all deferred indexes, including those of dead loads.
    pub(crate) async fn build_all(&self, connection: &mut dyn Connection) -> Result<()> {
        let built = self.try_build(connection).await;
        built.map_err(|failure| {
            failure
                .into_error()
                .hint("the definitions of the indexes are kept: the next load into this table builds them")
        })
    }

    async fn try_build(&self, connection: &mut dyn Connection) -> Result<(), Failure> {
        if self.server.dialect().transactional_tables() || !self.entry.has_ledger(connection).await? {
            return Ok(());
        }
        let Entry { table, key, .. } = &self.entry;
        let of_table = format!("FROM {table} WHERE load_key = '{key}' AND chunk = -2");
        let kept = connection.query(&format!("SELECT note {of_table} ORDER BY unit_key")).await?;
        let kept: Vec<Index> = kept.into_iter().flatten().flatten().filter_map(|text| Index::of_kept(&text)).collect();
        if kept.is_empty() {
            return Ok(());
        }
        let there = connection.indexes(&self.spec.table).await?;
        let missing: Vec<Index> =
            kept.into_iter().filter(|index| !there.iter().any(|other| other.name == index.name)).collect();
        fail_point::pass("indexes.before");
        for statement in self.server.dialect().create_indexes(&self.target, &missing) {
            connection.execute(&statement).await?;
        }
        fail_point::pass("indexes.after");
        connection.execute(&format!("DELETE {of_table}")).await?;
        // The indexes are built; the next load drops an empty ledger that stays.
        let _ = self.entry.tidy(connection).await;
        Ok(())
    }
}
