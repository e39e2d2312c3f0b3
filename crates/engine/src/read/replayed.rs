//! Reads rejects that are loaded again, in place of the files of their source.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use millstream_core::format::Format;
use millstream_core::source::{Source, SourceContext};
use millstream_core::{ByteStream, Error, Result, Unit};
use millstream_job::SourceStep;
use serde_json::Value;

use super::lacking::Lacking;
use super::unopened::Unopened;
use super::{Opened, PlaceSource, Reader};
use crate::rejects::replay::Replay;

/// `reader`, which reads the records of its source that are loaded again, and nothing else.
pub fn reader(replay: &Arc<Replay>, reader: &Reader, source: &SourceStep) -> Result<Arc<Reader>> {
    let place: Arc<dyn Source> = Arc::new(ReplaySource(Arc::clone(replay)));
    Ok(Arc::new(Reader {
        name: reader.name.clone(),
        patterns: replay.of_source(&reader.name),
        places: vec![PlaceSource { schemes: &[""], source: place }],
        registry: reader.registry,
        format: without_encoding(reader, source)?.unwrap_or_else(|| Arc::clone(&reader.format)),
        members: Vec::new(),
        limits: reader.limits.clone(),
        allow_empty: true,
        on_drift: reader.on_drift,
        lacking: Lacking::default(),
        empty_files: reader.empty_files,
        unopened: Unopened::new(source.on_error),
        validate: reader.validate,
        sorted_by: Vec::new(),
        provenance: reader.provenance.clone(),
        incremental: false,
        rejects: Arc::clone(&reader.rejects),
        filtered: AtomicU64::new(0),
        replay: Some(Arc::clone(replay)),
        context: reader.context.clone(),
        steps: reader.steps.clone(),
        opened: Opened::default(),
    }))
}

/// The format of a source whose text has another encoding: what is kept of its records is UTF-8.
fn without_encoding(reader: &Reader, source: &SourceStep) -> Result<Option<Arc<dyn Format>>> {
    let block = reader.registry.formats.iter().find_map(|entry| Some((entry, source.settings.get(entry.spec.name)?)));
    let Some((entry, Value::Object(settings))) = block else { return Ok(None) };
    if !settings.contains_key("encoding") {
        return Ok(None);
    }
    let settings =
        settings.iter().filter(|(key, _)| *key != "encoding").map(|(key, value)| (key.clone(), value.clone()));
    let built = (entry.build)(&Value::Object(settings.collect()));
    built.map(Some).map_err(|_| Error::internal("a format cannot do without its encoding"))
}

/// Gives records as units.
#[derive(Debug)]
struct ReplaySource(Arc<Replay>);

impl ReplaySource {
    fn text(&self, unit: &Unit) -> Result<Bytes> {
        let found = self.0.unit(&unit.uri).map(|unit| unit.text.clone());
        found.ok_or_else(|| Error::internal("a reject is loaded again that is none").in_unit(&unit.uri, None))
    }
}

#[async_trait]
impl Source for ReplaySource {
    fn name(&self) -> &'static str {
        "rejects"
    }

    fn connections(&self) -> usize {
        1
    }

    fn list(&self, _: &SourceContext, pattern: &str) -> BoxStream<'static, Result<Unit>> {
        let size = self.0.unit(pattern).map(|unit| unit.text.len() as u64);
        let unit = Unit { size, ..Unit::new(pattern) };
        futures::stream::once(std::future::ready(Ok(unit))).boxed()
    }

    async fn open(&self, _: &SourceContext, unit: &Unit) -> Result<ByteStream> {
        let text = self.text(unit)?;
        Ok(futures::stream::once(std::future::ready(Ok(text))).boxed())
    }

    async fn read_range(&self, _: &SourceContext, _: &Unit, _: Range<u64>) -> Result<Option<Bytes>> {
        Ok(None)
    }

    async fn look(&self, _: &SourceContext, unit: &Unit) -> Result<Unit> {
        Ok(Unit { size: Some(self.text(unit)?.len() as u64), ..unit.clone() })
    }
}
