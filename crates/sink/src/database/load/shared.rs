//! Shared by the writers and the route of a load: the bulk statement, the connections, and the handling of refused
//! rows.

use std::future::Future;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use millstream_core::sink::{Refusals, TableLinks};
use millstream_core::{Error, Result, Step};
use millstream_database::table::Bulk;
use tokio::runtime::Handle;

use crate::database::bisect::Scope;
use crate::database::pool::Pool;
use crate::database::server::{Connection, Server, target_of};
use crate::database::spec::DatabaseSpec;

/// Runs `work`, a part of a load, on the runtime of the network.
pub(crate) async fn on_io<T: Send + 'static>(
    io: &Handle,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    millstream_database::on_io(io, "a task of the load", work).await
}

/// Shared by the tasks of a load.
pub(crate) struct Shared {
    pub(crate) server: Arc<dyn Server>,
    pub(crate) spec: DatabaseSpec,
    /// `table t of mysql://…`.
    pub(crate) target: String,
    /// The prefix of the names of the load's own tables, if it has any.
    pub(crate) own: Option<String>,
    /// The foreign keys of the target, if it exists.
    pub(crate) links: Option<TableLinks>,
    pub(crate) bulk: Bulk,
    pub(crate) pool: Pool,
    /// The scope of each group of rows.
    pub(crate) scope: Scope,
    pub(crate) step: Arc<Step>,
    /// Decides about rows that the table refuses.
    pub(crate) refusals: Option<Arc<dyn Refusals>>,
    /// How many rows were left out.
    pub(crate) refused: AtomicU64,
    /// The slower method by which rows were sent, if any.
    pub(super) detour: Mutex<Option<String>>,
}

impl Shared {
    /// The shared part of a load without tables of its own, whose target refuses rows.
    pub(crate) fn new(
        server: &Arc<dyn Server>,
        spec: &DatabaseSpec,
        bulk: Bulk,
        pool: Pool,
        scope: Scope,
        step: &Arc<Step>,
    ) -> Self {
        Shared {
            target: target_of(server.as_ref(), spec),
            server: Arc::clone(server),
            spec: spec.clone(),
            own: None,
            links: None,
            bulk,
            pool,
            scope,
            step: Arc::clone(step),
            refusals: None,
            refused: AtomicU64::new(0),
            detour: Mutex::default(),
        }
    }

    /// Records the method by which `connection` has sent rows.
    pub(crate) fn record_detour(&self, connection: &dyn Connection) {
        if let Some(detour) = connection.detour() {
            self.detour.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(detour);
        }
    }

    /// The slower method by which rows were sent, in brackets; empty if there was none.
    pub(crate) fn detour(&self) -> String {
        let detour = self.detour.lock().unwrap_or_else(PoisonError::into_inner).clone();
        detour.map_or(String::new(), |detour| format!(" ({detour})"))
    }

    /// A message about a table of the load, reworded for the target.
    pub(crate) fn of_target(&self, text: &str) -> String {
        let (Some(own), target) = (&self.own, self.server.dialect().bare_table(&self.spec.table)) else {
            return text.to_owned();
        };
        ["_rows", "_new", "_versions"]
            .iter()
            .fold(text.to_owned(), |text, own_table| text.replace(&format!("{own}{own_table}"), target))
    }

    /// The same for an error's cause.
    pub(crate) fn error_of_target(&self, error: Error) -> Error {
        let cause = error.cause_text().map(|cause| self.of_target(cause));
        cause.into_iter().fold(error, |error, cause| error.cause(cause))
    }
}
