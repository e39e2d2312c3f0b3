//! The connection that holds the lock of a load's own tables, and publishes their rows. A load has at most one; it also
//! rolls the load back.

use millstream_core::{Error, Result};
use tokio::sync::{Mutex, MutexGuard};

use super::own_tables::Names;
use super::shared::Shared;
use crate::database::commit_marker;
use crate::database::indexes::Waiting;
use crate::database::server::{Connection, Failure};

/// The connection, until it is lost or taken.
pub(super) struct Control(Mutex<Option<Box<dyn Connection>>>);

/// Use of the connection.
pub(super) struct Use<'a>(MutexGuard<'a, Option<Box<dyn Connection>>>);

impl Use<'_> {
    pub(super) fn connection(&mut self) -> Result<&mut dyn Connection> {
        match self.0.as_mut() {
            Some(connection) => Ok(connection.as_mut()),
            None => Err(none_left()),
        }
    }
}

fn none_left() -> Error {
    Error::internal("the load has no connection left to publish with")
}

impl Control {
    pub(super) fn new(connection: Box<dyn Connection>) -> Self {
        Control(Mutex::new(Some(connection)))
    }

    /// Borrows the connection.
    pub(super) async fn lend(&self) -> Use<'_> {
        Use(self.0.lock().await)
    }

    /// Takes the connection, for its last use.
    pub(super) async fn take(&self) -> Result<Box<dyn Connection>> {
        self.0.lock().await.take().ok_or_else(none_left)
    }

    /// Rolls back an open transaction, and lets the lock `id` and the connection go. The end of the connection does the
    /// same, but may take a moment.
    pub(super) async fn release(&self, id: &str) {
        if let Some(mut connection) = self.0.lock().await.take() {
            let _ = connection.execute("ROLLBACK").await;
            let _ = connection.unlock(id).await;
        }
    }

    /// Rolls back a failed load: its transaction, its intention in the ledger, its deferred indexes. Drops its
    /// `tables`. If the server is gone or still busy with a lost connection, this is left to the next load.
    pub(super) async fn roll_back(
        &self,
        shared: &Shared,
        names: &Names,
        around: Option<&Waiting>,
        recorded: bool,
        tables: &[&str],
    ) -> Result<()> {
        let Some(mut connection) = self.recovered(shared, &names.id).await? else { return Ok(()) };
        let connection = connection.as_mut();
        if let Some(around) = around {
            around.build_all(connection).await?;
        }
        if recorded {
            let rolled_back = commit_marker::roll_back(&shared.server, connection, &shared.spec, &names.new_name).await;
            rolled_back.map_err(Failure::into_error)?;
        }
        for table in tables {
            connection.execute(&super::own_tables::drop_table(table)).await.map_err(Failure::into_error)?;
        }
        Ok(())
    }

    /// The connection without an open transaction; if it has failed, another one that holds the lock `id`. `None` if
    /// the lost one still holds it.
    async fn recovered(&self, shared: &Shared, id: &str) -> Result<Option<Box<dyn Connection>>> {
        if let Some(mut kept) = self.0.lock().await.take()
            && kept.execute("ROLLBACK").await.is_ok()
        {
            return Ok(Some(kept));
        }
        let mut other = shared.server.connect(&shared.spec).await?;
        let is_free = other.lock(id).await.map_err(Failure::into_error)?;
        Ok(is_free.then_some(other))
    }
}

/// Closes the connections that have sent rows.
pub(super) async fn close_pool(shared: &Shared) {
    for mut connection in shared.pool.close() {
        let _ = connection.execute("ROLLBACK").await;
    }
}
