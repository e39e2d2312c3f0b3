//! Places that give rows: databases. It owns which sources are read so, and their columns.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use millstream_core::format::{Format, Reading, RowEncoder};
use millstream_core::{Error, Registry, Result};

use super::Reader;

/// Stands for a format where there is none: the rows come with their types.
#[derive(Debug)]
pub(crate) struct Stored;

impl Format for Stored {
    fn name(&self) -> &'static str {
        "rows"
    }

    fn declared(&self) -> Option<SchemaRef> {
        None
    }

    fn reading(&self) -> Reading<'_> {
        Reading::Rows
    }

    fn splittable(&self) -> bool {
        false
    }

    fn encoder(&self, _: SchemaRef, _: bool) -> Result<Box<dyn RowEncoder>> {
        Err(Error::internal("rows as they are stored cannot be written"))
    }
}

/// The format of a source all of whose patterns are places that give rows.
pub fn format(registry: &Registry, patterns: &[String]) -> Option<Arc<dyn Format>> {
    let stored = |pattern: &String| registry.source_for(pattern).is_some_and(|entry| entry.rows);
    (!patterns.is_empty() && patterns.iter().all(stored)).then(|| -> Arc<dyn Format> { Arc::new(Stored) })
}

/// The columns of all patterns, matched by name.
pub async fn columns(reader: &Arc<Reader>) -> Result<SchemaRef> {
    let mut found = Vec::new();
    for pattern in &reader.patterns {
        for url in millstream_source::pattern::expand(pattern)? {
            let source = reader.source_of(&url)?;
            let place = source.rows().ok_or_else(|| Error::internal("the place gives no rows"))?;
            let columns = place.columns(&reader.context, &url).await.map_err(|error| error.in_unit(&url, None))?;
            found.push((url, columns));
        }
    }
    millstream_format::drift::merge(&found, reader.on_drift, millstream_format::drift::Types::Stored)
}
