//! A load whose rows an earlier run has already made visible.

use std::sync::Arc;

use async_trait::async_trait;
use millstream_core::Result;
use millstream_core::sink::{Load, Writer};
use tokio::runtime::Handle;

use super::shared::on_io;
use super::user_statements::run_after;
use crate::database::commit_marker::CommitMarker;
use crate::database::pool::connect;
use crate::database::server::{Server, target_of};
use crate::database::spec::DatabaseSpec;

/// A load whose rows an earlier run has made visible: it accepts rows without writing them again.
pub(super) struct LoadedBefore {
    pub(super) server: Arc<dyn Server>,
    pub(super) spec: DatabaseSpec,
    /// `Some` if the statements after the commit may not have run.
    pub(super) marker: Option<Arc<CommitMarker>>,
    pub(super) io: Handle,
}

#[async_trait]
impl Load for LoadedBefore {
    async fn writer(&self, _partition: usize) -> Result<Box<dyn Writer>> {
        Ok(Box::new(crate::shared::NoWriter))
    }

    fn is_there(&self) -> bool {
        true
    }

    async fn prepare(&self) -> Result<()> {
        Ok(())
    }

    async fn commit(&self) -> Result<String> {
        let (server, spec) = (Arc::clone(&self.server), self.spec.clone());
        if let Some(marker) = self.marker.clone().filter(|_| !spec.after.is_empty()) {
            let (server, spec) = (Arc::clone(&server), spec.clone());
            on_io(&self.io, async move {
                let mut connection = connect(server.as_ref(), &spec).await?;
                run_after(connection.as_mut(), &spec, Some(&marker)).await
            })
            .await?;
        }
        Ok(format!("nothing new for {}: its rows were added before", target_of(server.as_ref(), &spec)))
    }

    async fn abort(&self) {}
}
