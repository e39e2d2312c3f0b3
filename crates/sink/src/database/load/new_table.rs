//! Loads rows into a new table, which replaces the target when all are in it.
//!
//! ```text
//!  writers ─▶ connections, each its own commits ─▶ new table        commit: it takes the target's name
//! ```
//! If tables are transactional, it gets the name in the transaction of the commit. Otherwise (MySQL) the commit is a
//! rename, which is recorded before as an intention.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use millstream_core::Result;

use super::control::{Control, close_pool};
use super::outcome::{Proof, commit, rename};
use super::own_tables::{Names, drop_table};
use super::shared::Shared;
use super::strategy::{Begun, Strategy};
use super::target::cannot_make;
use super::transaction::Publishing;
use crate::database::bisect::Scope;
use crate::database::commit_marker::CommitMarker;
use crate::database::server::{Connection, Failure};

/// A load into a new table.
struct NewTable {
    shared: Arc<Shared>,
    control: Control,
    names: Names,
    marker: Option<Arc<CommitMarker>>,
    /// The statements that give the table its key and its indexes.
    finish: Vec<String>,
    /// The statements that rename it to the target's name.
    swap: Vec<String>,
    /// The name of the transaction, if it has one.
    transaction: Mutex<Option<String>>,
}

/// Creates the new table: by `copy`, the statement for a copy of the target, or from the rows' types.
pub(super) async fn set_up(
    begun: Begun,
    mut control: Box<dyn Connection>,
    copy: Option<String>,
) -> Result<Arc<dyn Strategy>> {
    let Begun { server, spec, names, columns, .. } = &begun;
    let (dialect, connection, is_copy) = (server.dialect(), control.as_mut(), copy.is_some());
    let schema = &begun.context.schema;
    let create = copy.unwrap_or_else(|| dialect.create_table(&names.new, schema, &spec.key, spec.defer_key));
    connection.execute(&create).await.map_err(|failure| cannot_make(failure.into_error(), spec))?;
    // A copy has the target's keys.
    let mut finish = Vec::new();
    finish.extend((spec.defer_key && !is_copy).then(|| dialect.add_key(&names.new, &spec.key)));
    if spec.defer_indexes && begun.facts.is_some() {
        let indexes = connection.indexes(&spec.table).await.map_err(Failure::into_error)?;
        for index in &indexes {
            let dropped = connection.execute(&dialect.drop_index(&names.new, &index.name)).await;
            dropped.map_err(Failure::into_error)?;
        }
        finish.extend(dialect.create_indexes(&names.new, &indexes));
    }
    let bulk = match is_copy {
        true => dialect.bulk(&names.new, columns.clone(), schema),
        false => dialect.bulk_into_own(&names.new, columns.clone(), schema),
    };
    Ok(Arc::new(NewTable {
        shared: begun.shared(bulk, begun.pool(), Scope::Transaction),
        swap: begun.swap(),
        control: Control::new(control),
        finish,
        transaction: Mutex::default(),
        names: begun.names,
        marker: begun.marker,
    }))
}

impl NewTable {
    /// Whether the new table replaces the target in a transaction.
    fn is_transactional(&self) -> bool {
        self.shared.server.dialect().transactional_tables()
    }
}

#[async_trait]
impl Strategy for NewTable {
    fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    async fn prepare(&self, _taken: u64) -> Result<()> {
        drop(self.shared.pool.close());
        let mut lent = self.control.lend().await;
        let connection = lent.connection()?;
        if self.is_transactional() {
            let publishing = Publishing::of(self.finish.iter().chain(&self.swap).cloned());
            publishing.run(&self.shared, connection, self.marker.as_deref()).await?;
            let name = connection.transaction().await.map_err(Failure::into_error)?;
            *self.transaction.lock().unwrap_or_else(PoisonError::into_inner) = name;
            return Ok(());
        }
        for statement in &self.finish {
            connection.execute(statement).await.map_err(Failure::into_error)?;
        }
        // A rename has no transaction for a commit marker.
        if let Some(marker) = &self.marker {
            marker.intend(connection, &self.names.new_name).await.map_err(Failure::into_error)?;
        }
        Ok(())
    }

    async fn commit(&self, _taken: u64) -> Result<Box<dyn Connection>> {
        let connection = self.control.take().await?;
        let mut connection = if self.is_transactional() {
            let transaction = self.transaction.lock().unwrap_or_else(PoisonError::into_inner).take();
            let proof = Proof::of_transaction(&self.marker, transaction).unwrap_or(Proof::None);
            commit(&self.shared, connection, &proof).await?
        } else {
            rename(&self.shared, connection, &self.swap, &self.names, self.marker.as_ref()).await?
        };
        for table in [&self.names.new, &self.names.old] {
            // The rows are visible; the next run drops what is left.
            let _ = connection.execute(&drop_table(table)).await;
        }
        Ok(connection)
    }

    async fn roll_back(&self) -> Result<()> {
        close_pool(&self.shared).await;
        let tables = [self.names.new.as_str(), &self.names.old];
        self.control.roll_back(&self.shared, &self.names, None, self.marker.is_some(), &tables).await
    }
}
