//! What the ways of loading have in common: what one is set up from, and what it does until its rows are visible.

use std::sync::Arc;

use async_trait::async_trait;
use millstream_core::Result;
use millstream_core::sink::LoadContext;
use millstream_database::load::NewTable;
use millstream_database::table::{Bulk, BulkColumn, TableFacts};

use super::own_tables::Names;
use super::shared::Shared;
use crate::database::bisect::Scope;
use crate::database::indexes::Waiting;
use crate::database::note::Note;
use crate::database::pool::Pool;
use crate::database::server::{Connection, Server};
use crate::database::spec::DatabaseSpec;

/// How rows get into the target. Its methods run on the runtime of the network.
#[async_trait]
pub(super) trait Strategy: Send + Sync {
    /// What the writers of the load share.
    fn shared(&self) -> &Arc<Shared>;

    /// All rows were sent, and the tables have taken `taken` of them: does everything but the last step, which makes
    /// them visible.
    async fn prepare(&self, taken: u64) -> Result<()>;

    /// Makes the rows visible, and removes what is not needed any more. Returns a connection that works.
    async fn commit(&self, taken: u64) -> Result<Box<dyn Connection>>;

    /// Rolls back what was done, as far as the server can be reached. Nothing of the load is visible either way.
    async fn roll_back(&self) -> Result<()>;

    /// How many rows the target has taken out of a staging table.
    fn published(&self) -> u64 {
        0
    }
}

/// A load that has begun, before it is decided how its rows get into the target.
pub(super) struct Begun {
    pub(super) server: Arc<dyn Server>,
    pub(super) spec: DatabaseSpec,
    pub(super) context: LoadContext,
    /// Notes, with what makes the rows visible, that they are.
    pub(super) note: Option<Arc<Note>>,
    /// Those of the target, if it is there.
    pub(super) facts: Option<TableFacts>,
    pub(super) names: Names,
    /// The columns that are loaded.
    pub(super) columns: Vec<BulkColumn>,
    /// How many connections load.
    pub(super) connections: usize,
    /// Indexes of the target that loads have dropped and not built again.
    pub(super) waiting: Arc<Waiting>,
}

impl Begun {
    /// The names of the columns that are loaded.
    pub(super) fn column_names(&self) -> Vec<String> {
        self.columns.iter().map(|column| column.name.clone()).collect()
    }

    /// Connections for the writers, marked as this load's.
    pub(super) fn pool(&self) -> Pool {
        let owner = self.note.as_deref().map(Note::owner);
        Pool::new(&self.server, &self.spec, self.connections).marked(owner)
    }

    /// What the writers share, which send their rows by `bulk` over the connections of `pool`, each group in a `scope`.
    pub(super) fn shared(&self, bulk: Bulk, pool: Pool, scope: Scope) -> Arc<Shared> {
        let shared = Shared::new(&self.server, &self.spec, bulk, pool, scope, &self.context.step);
        let refusals = self.context.refusals.clone();
        Arc::new(Shared { own: Some(self.names.id.clone()), refusals, ..shared })
    }

    /// The statements by which the new table takes the target's name.
    pub(super) fn swap(&self) -> Vec<String> {
        self.server.dialect().swap(NewTable {
            target: &self.spec.table,
            exists: self.facts.is_some(),
            name: &self.names.new_name,
            old_name: &self.names.old_name,
            has_key: !self.spec.key.is_empty(),
        })
    }
}
