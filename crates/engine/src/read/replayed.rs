//! Reads rejects that are loaded again, in place of the files of their source.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use millstream_core::format::Format;
use millstream_core::source::{Source, SourceContext};
use millstream_core::{ByteStream, Error, Result, Unit};
use millstream_job::{ReadyKeys, SourceStep};
use serde_json::Value;

use super::{Reader, SchemeSource, SourcePlan};
use crate::rejects::replay::Replay;

/// `reader`, which reads the records of its source that are loaded again, and nothing else.
pub fn reader(replay: &Arc<Replay>, reader: &Reader, source: &SourceStep) -> Result<Arc<Reader>> {
    let rejects: Arc<dyn Source> = Arc::new(ReplaySource(Arc::clone(replay)));
    let plan = SourcePlan {
        patterns: replay.of_source(&reader.name),
        sources: vec![SchemeSource { schemes: &[""], source: rejects }],
        format: without_encoding(reader, source)?.unwrap_or_else(|| Arc::clone(&reader.format)),
        members: Vec::new(),
        allow_empty: true,
        sorted_by: Vec::new(),
        incremental: false,
        incremental_by: None,
        ready_keys: ReadyKeys::default(),
        after_load: None,
        ..reader.plan().clone()
    };
    let replayed = Reader::new(plan, reader.context.clone(), reader.steps.clone(), Arc::clone(&reader.rejects));
    Ok(Arc::new(Reader { replay: Some(Arc::clone(replay)), ..replayed }))
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
        found.ok_or_else(|| Error::internal("what is replayed is not a reject").in_unit(&unit.uri, None))
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

    async fn look(&self, _: &SourceContext, unit: &Unit) -> Result<Unit> {
        Ok(Unit { size: Some(self.text(unit)?.len() as u64), ..unit.clone() })
    }
}
