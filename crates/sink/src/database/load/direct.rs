//! Loads rows straight into the target, in one transaction of one connection, which is open from the beginning of the
//! load to its commit.
//!
//! ```text
//!  writers ─▶ one connection, one transaction ─▶ target        commit: COMMIT
//! ```
//! There are no tables of the load's own. If the connection is lost, so is the load.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use millstream_core::Result;

use super::deferred::{Deferred, build_behind};
use super::outcome::{Proof, commit};
use super::shared::Shared;
use super::strategy::{Begun, Strategy};
use crate::database::bisect::Scope;
use crate::database::commit_marker::CommitMarker;
use crate::database::pool::Pool;
use crate::database::server::{Connection, Failure};
use crate::database::spec::Mode;

/// A load straight into the target.
struct Direct {
    shared: Arc<Shared>,
    indexes: Deferred,
    /// The target, as SQL text.
    target: String,
    marker: Option<Arc<CommitMarker>>,
    /// The name of the transaction, if it has one.
    transaction: Mutex<Option<String>>,
}

/// Opens the transaction, and executes the statements before the rows.
pub(super) async fn set_up(begun: Begun, mut control: Box<dyn Connection>) -> Result<Arc<dyn Strategy>> {
    let connection = control.as_mut();
    let indexes = Deferred::of_target(&begun, connection).await?;
    let (dialect, target) = (begun.server.dialect(), begun.names.target.clone());
    if let Some(around) = indexes.around() {
        around.drop_all(connection).await?;
    }
    let emptied = (begun.spec.mode == Mode::Truncate).then(|| dialect.empty(&target, begun.facts.as_ref()));
    let dropped = indexes.inside().iter().map(|index| dialect.drop_index(&target, &index.name));
    for statement in ["BEGIN".to_owned()].into_iter().chain(dropped).chain(emptied) {
        connection.execute(&statement).await.map_err(Failure::into_error)?;
    }
    let bulk = dialect.bulk(&target, begun.columns.clone(), &begun.context.schema);
    let pool = Pool::only(&begun.server, &begun.spec, control);
    let shared = begun.shared(bulk, pool, Scope::Savepoint);
    Ok(Arc::new(Direct { shared, indexes, target, marker: begun.marker, transaction: Mutex::default() }))
}

#[async_trait]
impl Strategy for Direct {
    fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    async fn prepare(&self, _taken: u64) -> Result<()> {
        // A lost connection is reported before other sinks commit.
        let mut connection = self.shared.pool.take().await?;
        connection.query("SELECT 1").await.map_err(Failure::into_error)?;
        for statement in self.shared.server.dialect().create_indexes(&self.target, self.indexes.inside()) {
            connection.execute(&statement).await.map_err(Failure::into_error)?;
        }
        if let Some(marker) = &self.marker {
            marker.write(connection.as_mut()).await.map_err(Failure::into_error)?;
        }
        let name = connection.transaction().await.map_err(Failure::into_error)?;
        *self.transaction.lock().unwrap_or_else(PoisonError::into_inner) = name;
        self.shared.pool.give(connection);
        Ok(())
    }

    async fn commit(&self, _taken: u64) -> Result<Box<dyn Connection>> {
        let transaction = self.transaction.lock().unwrap_or_else(PoisonError::into_inner).take();
        let proof = Proof::of_transaction(&self.marker, transaction).unwrap_or(Proof::None);
        let connection = self.shared.pool.take().await?;
        let mut connection = commit(&self.shared, connection, &proof).await?;
        build_behind(self.indexes.around(), connection.as_mut()).await?;
        Ok(connection)
    }

    async fn roll_back(&self) -> Result<()> {
        for mut connection in self.shared.pool.close() {
            let _ = connection.execute("ROLLBACK").await;
            if let Some(around) = self.indexes.around() {
                around.build_all(connection.as_mut()).await?;
            }
        }
        Ok(())
    }
}
