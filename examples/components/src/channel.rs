//! A sink that hands rows to the program itself: `channel:NAME`. As with every sink, rows become visible with the
//! commit.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use millstream::component::{
    Load, LoadContext, Registry, Sink, SinkEntry, SinkFormats, SinkParts, Spec, SpecInfo, Writer, parse,
};
use millstream::{Error, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A batch, and the name of the channel that it was written to.
pub type Named = (String, RecordBatch);

/// Settings of the sink `channel`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ChannelSpec {
    /// The most rows of a load. They stay in memory until the commit.
    #[schemars(range(min = 1))]
    pub most_rows: Option<usize>,
}

impl Spec for ChannelSpec {
    const NAME: &'static str = "channel";
    const SUMMARY: &'static str = "Rows for the program itself.";
    const EXAMPLE: &'static str = "from: ranked\nwrite: channel:results\nmost_rows: 1000\n";
}

/// Adds the sink to `registry`. The receiver gets all batches that its loads commit.
///
/// # Errors
/// If the registry already has such a sink.
pub fn add_to(registry: &mut Registry) -> Result<Receiver<Named>> {
    let (sender, receiver) = channel();
    // An entry lives as long as the process.
    let build = Box::leak(Box::new(move |settings: &_, parts: SinkParts| {
        let name = parts.target.trim_start_matches("channel:").to_owned();
        let sink = Channel { spec: parse(settings)?, name, sender: sender.clone() };
        Ok(Arc::new(sink) as Arc<dyn Sink>)
    }));
    registry.add_sink(SinkEntry {
        spec: SpecInfo::of::<ChannelSpec>(),
        schemes: &["channel"],
        words: &[],
        stores: false,
        formats: SinkFormats::None,
        build,
    })?;
    Ok(receiver)
}

#[derive(Debug)]
struct Channel {
    spec: ChannelSpec,
    name: String,
    sender: Sender<Named>,
}

#[async_trait]
impl Sink for Channel {
    fn name(&self) -> &'static str {
        ChannelSpec::NAME
    }

    fn target(&self) -> String {
        format!("channel:{}", self.name)
    }

    async fn check(&self, _: SchemaRef) -> Result<(), Vec<Error>> {
        match self.name.is_empty() {
            true => Err(vec![Error::job("the channel has no name").hint("write: channel:results")]),
            false => Ok(()),
        }
    }

    fn describe(&self, _: SchemaRef) -> String {
        "rows for the program".to_owned()
    }

    async fn begin(&self, _: LoadContext) -> Result<Arc<dyn Load>> {
        let held = Held { name: self.name.clone(), most: self.spec.most_rows, rows: Mutex::default() };
        Ok(Arc::new(ChannelLoad { held: Arc::new(held), sender: self.sender.clone() }))
    }
}

/// Rows that are not committed yet.
struct Held {
    name: String,
    most: Option<usize>,
    rows: Mutex<Vec<RecordBatch>>,
}

struct ChannelLoad {
    held: Arc<Held>,
    sender: Sender<Named>,
}

#[async_trait]
impl Load for ChannelLoad {
    async fn writer(&self, _: usize) -> Result<Box<dyn Writer>> {
        Ok(Box::new(ChannelWriter(Arc::clone(&self.held))))
    }

    async fn prepare(&self) -> Result<()> {
        Ok(())
    }

    async fn commit(&self) -> Result<String> {
        let batches = std::mem::take(&mut *self.held.rows.lock().unwrap_or_else(PoisonError::into_inner));
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        for batch in batches {
            let sent = self.sender.send((self.held.name.clone(), batch));
            sent.map_err(|_| Error::refused("the program reads the channel no longer"))?;
        }
        Ok(format!("{rows} rows in channel {}", self.held.name))
    }

    async fn abort(&self) {
        self.held.rows.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

struct ChannelWriter(Arc<Held>);

#[async_trait]
impl Writer for ChannelWriter {
    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        let mut rows = self.0.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let count = rows.iter().map(RecordBatch::num_rows).sum::<usize>() + batch.num_rows();
        if let Some(most) = self.0.most.filter(|most| count > *most) {
            return Err(Error::refused(format!("the load has more than {most} rows")).hint("raise `most_rows`"));
        }
        rows.push(batch);
        Ok(())
    }

    async fn close(&mut self) -> Result<()> {
        Ok(())
    }
}
