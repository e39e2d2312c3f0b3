//! What the writers of a load share with the way it takes: where they send rows to and over what, and what becomes of
//! rows that are refused.

use std::future::Future;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use millstream_core::sink::Refusals;
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

/// What the tasks of a load share.
pub(crate) struct Shared {
    pub(crate) server: Arc<dyn Server>,
    pub(crate) spec: DatabaseSpec,
    /// `table t of mysql://…`.
    pub(crate) place: String,
    /// What the names of the load's own tables begin with, if it has any.
    pub(crate) own: Option<String>,
    pub(crate) bulk: Bulk,
    pub(crate) pool: Pool,
    /// What each group of rows is sent in.
    pub(crate) scope: Scope,
    pub(crate) step: Arc<Step>,
    /// Who decides about rows that the table refuses.
    pub(crate) refusals: Option<Arc<dyn Refusals>>,
    /// How many rows were left out.
    pub(crate) refused: AtomicU64,
    /// How rows were sent by a slower way, if they were.
    pub(super) detour: Mutex<Option<String>>,
}

impl Shared {
    /// Of a load without tables of its own, that refuses rows itself.
    pub(crate) fn new(
        server: &Arc<dyn Server>,
        spec: &DatabaseSpec,
        bulk: Bulk,
        pool: Pool,
        scope: Scope,
        step: &Arc<Step>,
    ) -> Self {
        Shared {
            place: target_of(server.as_ref(), spec),
            server: Arc::clone(server),
            spec: spec.clone(),
            own: None,
            bulk,
            pool,
            scope,
            step: Arc::clone(step),
            refusals: None,
            refused: AtomicU64::new(0),
            detour: Mutex::default(),
        }
    }

    /// Notes by which way `connection` has sent rows.
    pub(crate) fn note_detour(&self, connection: &dyn Connection) {
        if let Some(detour) = connection.detour() {
            self.detour.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(detour);
        }
    }

    /// The slower way that rows were sent by, in brackets; nothing if there was none.
    pub(crate) fn detour(&self) -> String {
        let detour = self.detour.lock().unwrap_or_else(PoisonError::into_inner).clone();
        detour.map_or(String::new(), |detour| format!(" ({detour})"))
    }

    /// What the server says of a table of the load's own, as if it were said of the target.
    pub(super) fn of_target(&self, text: &str) -> String {
        let (Some(own), target) = (&self.own, self.server.dialect().bare_table(&self.spec.table)) else {
            return text.to_owned();
        };
        text.replace(&format!("{own}_rows"), target).replace(&format!("{own}_new"), target)
    }

    /// The same of an error's cause.
    pub(super) fn error_of_target(&self, error: Error) -> Error {
        let cause = error.cause_text().map(|cause| self.of_target(cause));
        cause.into_iter().fold(error, |error, cause| error.cause(cause))
    }
}
