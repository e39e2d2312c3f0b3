//! Sinks that load each epoch of a queue by itself, as if it were all there is: at least once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::RecordBatch;
use async_trait::async_trait;
use millstream_core::Result;
use millstream_core::counts::counted;
use millstream_core::epochs::Epochs;
use millstream_core::positions::Move;
use millstream_core::sink::{Accept, Delivered, Delivery, Load, LoadContext, Refused, Sink, Writer};

/// Begins a load for each epoch.
pub struct EachEpoch {
    sink: Arc<dyn Sink>,
    context: LoadContext,
    begun: AtomicU64,
}

impl EachEpoch {
    /// Loads into `sink`. `context` is that of a load with one writer; each epoch has a name of its own in it.
    pub fn new(sink: Arc<dyn Sink>, context: LoadContext) -> Self {
        EachEpoch { sink, context, begun: AtomicU64::new(0) }
    }
}

#[async_trait]
impl Epochs for EachEpoch {
    async fn delivery(&self, _: Vec<Move>, _: usize) -> Result<Box<dyn Delivery>> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let name = |run: &str| format!("{run}-{number}");
        let context =
            LoadContext { run: name(&self.context.run), first: name(&self.context.first), ..self.context.clone() };
        let load = self.sink.begin(context).await?;
        let writer = match load.writer(0).await {
            Ok(writer) => Some(writer),
            Err(error) => {
                load.abort().await;
                return Err(error);
            }
        };
        Ok(Box::new(EpochDelivery { load: Some(load), writer, rows: 0, io: self.context.io.clone() }))
    }

    fn target(&self) -> String {
        self.sink.target()
    }

    fn summary(&self, rows: u64) -> String {
        format!("{} to {}", counted(rows, "row"), self.sink.target())
    }
}

/// The load of one epoch. If it is dropped, the load is aborted.
struct EpochDelivery {
    load: Option<Arc<dyn Load>>,
    writer: Option<Box<dyn Writer>>,
    rows: u64,
    io: tokio::runtime::Handle,
}

#[async_trait]
impl Delivery for EpochDelivery {
    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        self.rows += batch.num_rows() as u64;
        match &mut self.writer {
            Some(writer) => writer.write(batch).await,
            None => Ok(()),
        }
    }

    async fn commit_if(mut self: Box<Self>, accept: Accept) -> Result<Delivered> {
        let mut writer = self.writer.take();
        if let Some(writer) = &mut writer {
            writer.close().await?;
        }
        drop(writer);
        if let Some(load) = &self.load {
            load.prepare().await?;
            accept(&Refused::default())?;
            load.commit().await?;
        }
        self.load = None;
        Ok(Delivered::Written { rows: self.rows, refused: Vec::new() })
    }
}

impl Drop for EpochDelivery {
    fn drop(&mut self) {
        self.writer = None;
        if let Some(load) = self.load.take() {
            self.io.spawn(async move { load.abort().await });
        }
    }
}
