//! The load of a sink that takes no rows in a run, since it has them already and others do not.

use arrow::array::RecordBatch;
use async_trait::async_trait;
use millstream_core::Result;
use millstream_core::sink::{Load, Writer};

/// Lets rows go, and writes nothing.
pub(super) struct PassedLoad;

#[async_trait]
impl Load for PassedLoad {
    async fn writer(&self, _partition: usize) -> Result<Box<dyn Writer>> {
        Ok(Box::new(PassedLoad))
    }

    async fn prepare(&self) -> Result<()> {
        Ok(())
    }

    fn is_there(&self) -> bool {
        true
    }

    async fn commit(&self) -> Result<String> {
        Ok("has these files already".to_owned())
    }

    async fn abort(&self) {}
}

#[async_trait]
impl Writer for PassedLoad {
    async fn write(&mut self, _batch: RecordBatch) -> Result<()> {
        Ok(())
    }

    async fn close(&mut self) -> Result<()> {
        Ok(())
    }
}
