//! The deferred indexes of a load: rebuilt in its transaction, or around it.

use std::sync::Arc;

use millstream_core::Result;
use millstream_database::table::Index;

use super::strategy::Begun;
use crate::database::indexes::Waiting;
use crate::database::server::{Connection, Failure};

/// The deferred indexes of the target.
pub(super) enum Deferred {
    /// None.
    None,
    /// They are dropped and rebuilt in the transaction of the load.
    Inside(Vec<Index>),
    /// They are dropped before it, and rebuilt after it.
    Around(Arc<Waiting>),
}

impl Deferred {
    /// The deferred indexes of a load into the target itself.
    pub(super) async fn of_target(begun: &Begun, connection: &mut dyn Connection) -> Result<Self> {
        if !begun.spec.defer_indexes || begun.facts.is_none() {
            return Ok(Deferred::None);
        }
        let indexes = connection.indexes(&begun.spec.table).await.map_err(Failure::into_error)?;
        Ok(match begun.server.dialect().transactional_tables() {
            true => Deferred::Inside(indexes),
            false => Deferred::Around(Arc::clone(&begun.waiting)),
        })
    }

    /// Indexes that are rebuilt in the transaction.
    pub(super) fn inside(&self) -> &[Index] {
        if let Deferred::Inside(indexes) = self { indexes } else { &[] }
    }

    /// Indexes that are rebuilt after the transaction.
    pub(super) fn around(&self) -> Option<&Waiting> {
        if let Deferred::Around(waiting) = self { Some(waiting) } else { None }
    }
}

/// Rebuilds the indexes around the transaction, which was committed.
pub(super) async fn build_behind(around: Option<&Waiting>, connection: &mut dyn Connection) -> Result<()> {
    let Some(around) = around else { return Ok(()) };
    around.build_all(connection).await.map_err(|error| {
        let hint = error.hint_text().unwrap_or_default().to_owned();
        error.hint(format!("the rows are already committed; {hint}"))
    })
}
