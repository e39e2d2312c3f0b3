//! Indexes that wait for the rows: dropped before rows come into a table that is there, built again behind them. It
//! owns what becomes of their definitions meanwhile; how a server writes them is the server's.
//!
//! Where tables change inside of a transaction, all of it is one, and there is nothing to keep. Elsewhere (MySQL) the
//! definitions are in the ledger from before the first is dropped until the last is built, for the table and not for a
//! load: so whichever load comes next builds what a dead one has left undone.
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

/// The indexes of one table that wait.
#[derive(Debug)]
pub(crate) struct Waiting {
    server: Arc<dyn Server>,
    spec: DatabaseSpec,
    entry: Entry,
    target: String,
}

impl Waiting {
    /// Those of the target.
    pub(crate) fn new(server: &Arc<dyn Server>, spec: &DatabaseSpec) -> Self {
        let entry = Entry::new(server, spec, &format!("indexes\n{}", spec.table), "");
        Waiting { server: Arc::clone(server), spec: spec.clone(), target: server.dialect().table(&spec.table), entry }
    }

    /// Keeps the definitions of all indexes that can wait, then drops these.
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
                // It stays if a foreign key or a counted column needs it.
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
            // It is kept, from a load that died.
            Ok(_) | Err(Failure::Rows(_)) => Ok(()),
            Err(other) => Err(other),
        }
    }

    /// Builds all that wait, also those of loads that died.
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
        // The indexes are there; an empty ledger that stays is taken away by the next load.
        let _ = self.entry.tidy(connection).await;
        Ok(())
    }
}
