//! A sink that takes all rows and keeps none: what a job costs without its target.
//!
//! Rows come to it in their columns and are dropped, so nothing is encoded. Nothing of a load exists outside of the
//! process, so there is nothing to roll back, and no ledger.

mod spec;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use millstream_core::epochs::{Guarantee, QueueFacts};
use millstream_core::registry::{Built, SinkEntry, SinkFormats};
use millstream_core::sink::{Load, LoadContext, Sink, SinkParts, Writer};
use millstream_core::spec::{Spec, SpecInfo, parse};
use millstream_core::{Error, Result};
use serde_json::Value;

pub use self::spec::DiscardSpec;
use crate::shared::counted;

/// The registry's entry.
pub const ENTRY: SinkEntry = SinkEntry {
    spec: SpecInfo::of::<DiscardSpec>(),
    schemes: &[],
    words: &[DiscardSpec::NAME],
    stores: false,
    formats: SinkFormats::None,
    build: &build,
};

fn build(settings: &Value, _parts: SinkParts) -> Built<dyn Sink> {
    parse::<DiscardSpec>(settings)?;
    Ok(Arc::new(DiscardSink))
}

/// Takes rows and keeps none.
#[derive(Debug)]
pub(crate) struct DiscardSink;

#[async_trait]
impl Sink for DiscardSink {
    fn name(&self) -> &'static str {
        DiscardSpec::NAME
    }

    fn target(&self) -> String {
        DiscardSpec::NAME.to_owned()
    }

    /// Rows of several sinks do not meet: none of them is kept.
    fn is_shareable(&self) -> bool {
        true
    }

    async fn check(&self, _schema: SchemaRef) -> Result<(), Vec<Error>> {
        Ok(())
    }

    fn describe(&self, _schema: SchemaRef) -> String {
        "all rows, none of which is kept".to_owned()
    }

    fn guarantee(&self, _queue: &QueueFacts) -> Result<Guarantee, String> {
        Ok(Guarantee::once_or_more("rows are counted before their messages are acknowledged"))
    }

    async fn begin(&self, _context: LoadContext) -> Result<Arc<dyn Load>> {
        Ok(Arc::new(DiscardLoad::default()))
    }
}

/// Counts the rows that its writers drop.
#[derive(Default)]
struct DiscardLoad {
    rows: Arc<AtomicU64>,
}

#[async_trait]
impl Load for DiscardLoad {
    async fn writer(&self, _partition: usize) -> Result<Box<dyn Writer>> {
        Ok(Box::new(DiscardWriter { rows: Arc::clone(&self.rows) }))
    }

    async fn prepare(&self) -> Result<()> {
        Ok(())
    }

    async fn commit(&self) -> Result<String> {
        Ok(format!("{} discarded", counted(self.rows.load(Ordering::Relaxed), "row")))
    }

    async fn abort(&self) {}
}

/// Drops the rows of one partition.
struct DiscardWriter {
    rows: Arc<AtomicU64>,
}

#[async_trait]
impl Writer for DiscardWriter {
    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        self.rows.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
        Ok(())
    }

    async fn close(&mut self) -> Result<()> {
        Ok(())
    }
}
