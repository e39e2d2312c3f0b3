//! The common part of the routes: their input, and the trait of their steps.

use std::sync::Arc;

use async_trait::async_trait;
use millstream_core::Result;
use millstream_core::sink::{LoadContext, TableLinks};
use millstream_database::Endpoint;
use millstream_database::in_step::{InStep, MissingRows};
use millstream_database::load::{LoadDialect, NewTable};
use millstream_database::table::{Bulk, BulkColumn, TableFacts};

use super::own_tables::Names;
use super::shared::Shared;
use crate::database::bisect::Scope;
use crate::database::commit_marker::CommitMarker;
use crate::database::in_step::Counts;
use crate::database::indexes::Waiting;
use crate::database::pool::Pool;
use crate::database::server::{Connection, Server};
use crate::database::spec::{DatabaseSpec, Mode};

/// What the table that the facts call `table` is called in the links of others: with its server, and with its database
/// where the facts leave that out.
fn linked_name(dialect: &dyn LoadDialect, endpoint: &Endpoint, table: &str) -> String {
    let (host, port) = (endpoint.server.place(), endpoint.server.port);
    match dialect.names_have_database() {
        true => format!("{}://{host}:{port}#{table}", dialect.name()),
        false => format!("{}://{host}:{port}/{}#{table}", dialect.name(), endpoint.database),
    }
}

/// How rows get into the target. Its methods run on the runtime of the network.
#[async_trait]
pub(super) trait Strategy: Send + Sync {
    /// The part that the writers of the load share.
    fn shared(&self) -> &Arc<Shared>;

    /// Prepares the commit after all rows were sent, of which the tables have accepted `taken`: only the short last
    /// step is left.
    async fn prepare(&self, taken: u64) -> Result<()>;

    /// Lets no row of the target be deleted to which rows of `tables` refer.
    fn protect(&self, _tables: Vec<String>) {}

    /// Fails if too many rows of the target are missing.
    async fn check_missing(&self) -> Result<()> {
        Ok(())
    }

    /// Deletes the rows of the target that are missing, in a transaction of its own. Returns how many.
    async fn delete_missing(&self) -> Result<u64> {
        Ok(0)
    }

    /// Makes the rows visible, and removes what is not needed any more. Returns a working connection.
    async fn commit(&self, taken: u64) -> Result<Box<dyn Connection>>;

    /// Rolls back the load, as far as the server can be reached. None of its rows are visible either way.
    async fn roll_back(&self) -> Result<()>;

    /// Lets the server go, and leaves what is staged, if another run can resume it.
    async fn suspend(&self) -> Result<()> {
        self.roll_back().await
    }

    /// What the rows of a staging table have changed in the target.
    fn counts(&self) -> Counts {
        Counts::default()
    }
}

/// A load that has begun, before its route is chosen.
pub(super) struct Begun {
    pub(super) server: Arc<dyn Server>,
    pub(super) spec: DatabaseSpec,
    pub(super) context: LoadContext,
    /// The commit marker, which is written in the transaction that makes the rows visible.
    pub(super) marker: Option<Arc<CommitMarker>>,
    /// The facts about the target, if it exists.
    pub(super) facts: Option<TableFacts>,
    pub(super) names: Names,
    /// The columns that are loaded.
    pub(super) columns: Vec<BulkColumn>,
    /// How many connections load.
    pub(super) connections: usize,
    /// Deferred indexes of the target.
    pub(super) waiting: Arc<Waiting>,
}

impl Begun {
    /// The names of the columns that are loaded.
    pub(super) fn column_names(&self) -> Vec<String> {
        self.columns.iter().map(|column| column.name.clone()).collect()
    }

    /// The table as it is kept in step with staged rows that have the columns `columns`, by a run that began at
    /// `begin`.
    pub(super) fn in_step<'a>(&'a self, columns: &'a [String], begin: &'a str) -> InStep<'a> {
        let (spec, names) = (&self.spec, &self.names);
        InStep {
            dialect: self.server.dialect(),
            target: if self.facts.is_some() { &names.target } else { &names.new },
            staging: &names.staging,
            versions: &names.versions,
            key: &spec.key,
            columns,
            facts: self.facts.as_ref(),
            missing: spec.in_step().missing_rows(),
            scope: spec.scope.as_deref(),
            validity: spec.in_step().validity(begin),
            may_drop: self.facts.as_ref().is_some_and(|facts| facts.may_drop),
        }
    }

    /// Connections for the writers, tagged with the owner of this load.
    pub(super) fn pool(&self) -> Pool {
        let owner = self.marker.as_deref().map(CommitMarker::owner);
        Pool::new(&self.server, &self.spec, self.connections).tagged(owner)
    }

    /// The part that the writers share, which send rows by `bulk` over the connections of `pool`, each group in a
    /// `scope`.
    pub(super) fn shared(&self, bulk: Bulk, pool: Pool, scope: Scope) -> Arc<Shared> {
        let shared = Shared::new(&self.server, &self.spec, bulk, pool, scope, &self.context.step);
        let refusals = self.context.refusals.clone();
        let links = self.links(matches!(scope, Scope::Savepoint));
        Arc::new(Shared { own: Some(self.names.id.clone()), links, refusals, ..shared })
    }

    /// The foreign keys of the target, if it exists. `is_locked` says whether rows of it are locked before the
    /// publishing.
    fn links(&self, is_locked: bool) -> Option<TableLinks> {
        let facts = self.facts.as_ref()?;
        let of_server = |table: &String| link_of(self.server.as_ref(), table);
        let refers_to = facts.refers_to.iter().map(of_server).collect();
        let deletes = self.spec.mode == Mode::Sync && self.spec.in_step().missing_rows() == MissingRows::Delete;
        Some(TableLinks { table: of_server(&facts.name), refers_to, is_locked, deletes })
    }

    /// The statements that replace the target by the new table.
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

/// What the table `name` of a server is called in links.
pub(super) fn link_of(server: &dyn Server, name: &str) -> String {
    linked_name(server.dialect(), server.endpoint(), name)
}

#[cfg(all(test, feature = "mysql", feature = "postgres"))]
mod tests {
    use millstream_database::Access;
    use millstream_database::mysql::MysqlDialect;
    use millstream_database::postgres::PostgresDialect;

    use super::*;

    #[test]
    fn tables_of_one_server_have_one_name_whatever_it_is_reached_by() {
        let name = |dialect: &dyn LoadDialect, target: &str, table: &str| {
            let endpoint = Endpoint::parse(target, &Access::default(), 3306).expect("a URL");
            linked_name(dialect, &endpoint, table)
        };
        let of_mysql = |target: &str| name(&MysqlDialect, target, "a.customers");
        let customers = of_mysql("mysql://me@localhost/a");
        for same in ["mysql://you@127.0.0.1/a", "mysql://me@[::1]/b", "mysql://me@LOCALHOST:3306/b"] {
            assert_eq!(of_mysql(same), customers, "{same}");
        }
        for other in ["mysql://me@localhost:3307/a", "mysql://me@db.example.com/a"] {
            assert_ne!(of_mysql(other), customers, "{other}");
        }
        // Numbers of tables are those of a database.
        let of_postgres = |target: &str| name(&PostgresDialect, target, "16384");
        assert_eq!(of_postgres("postgres://me@localhost/a"), of_postgres("postgres://me@127.0.0.1/a"));
        assert_ne!(of_postgres("postgres://me@localhost/a"), of_postgres("postgres://me@localhost/b"));
    }
}
