//! The parquet format.
//!
//! ```text
//!  file ─ fetch.rs ─▶ directory ─ types.rs, prune.rs ─▶ columns, row groups ─ reader.rs ─▶ batches ─ writer.rs ─▶ file
//!                                                     group.rs ◀── pages, charged ── pages.rs, memory.rs
//! ```
//! The parquet crate handles encodings, compressions and most of the directory. Headers of pages are checked before
//! pages are unpacked (`pages.rs`), and values before they are returned (`values.rs`).

mod directory;
mod fetch;
mod group;
mod guard;
mod memory;
mod pages;
mod prune;
mod reader;
mod spec;
mod thrift;
mod types;
mod values;
mod writer;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use futures::stream::BoxStream;
use millstream_core::format::{Format, OnDrift, ParseRequest, Parsed, RangeFormat, ReadAt, Reading, RowEncoder};
use millstream_core::registry::{Built, FormatEntry, is_content_type};
use millstream_core::spec::{self as core_spec, SpecInfo};
use millstream_core::{Error, Result};
use serde_json::Value;

pub use self::spec::{Compression, ParquetSpec};
use crate::drift::{Types, merge};

/// The format's entry in the registry.
pub const ENTRY: FormatEntry = FormatEntry {
    spec: SpecInfo::of::<ParquetSpec>(),
    extensions: &[".parquet"],
    suggested: &|_| Value::Object(serde_json::Map::new()),
    by_content_type: &|value| {
        is_content_type(value, &["application/vnd.apache.parquet"]).then(|| Value::Object(serde_json::Map::new()))
    },
    build: &|settings| {
        let spec: ParquetSpec = core_spec::parse(settings)?;
        let built: Built<dyn Format> = Ok(Arc::new(ParquetFormat::new(spec)));
        built
    },
};

/// Parquet with its settings.
#[derive(Debug, Default)]
pub struct ParquetFormat {
    spec: ParquetSpec,
}

impl ParquetFormat {
    /// The format with these settings.
    pub fn new(spec: ParquetSpec) -> Self {
        ParquetFormat { spec }
    }
}

impl Format for ParquetFormat {
    fn name(&self) -> &'static str {
        "parquet"
    }

    /// The files declare their columns themselves.
    fn declared(&self) -> Option<SchemaRef> {
        None
    }

    fn reading(&self) -> Reading<'_> {
        Reading::Ranges(self)
    }

    fn splittable(&self) -> bool {
        false
    }

    fn encoder(&self, schema: SchemaRef, begin: bool) -> Result<Box<dyn RowEncoder>> {
        if !begin {
            return Err(Error::internal("a parquet file was asked for in pieces"));
        }
        Ok(Box::new(writer::ParquetEncoder::new(&self.spec, schema)?))
    }
}

#[async_trait]
impl RangeFormat for ParquetFormat {
    async fn columns(&self, file: Arc<dyn ReadAt>) -> Result<SchemaRef> {
        guard::guarded_future(async move {
            let directory = fetch::directory(file.as_ref()).await?;
            Ok(types::columns(&types::reader_metadata(&directory.metadata)?))
        })
        .await
    }

    fn merge(&self, files: &[(String, SchemaRef)], on_drift: OnDrift) -> Result<SchemaRef> {
        merge(files, on_drift, Types::Stored)
    }

    async fn cuts(&self, file: Arc<dyn ReadAt>) -> Result<Vec<u64>> {
        reader::cuts(file.as_ref()).await
    }

    fn read(&self, file: Arc<dyn ReadAt>, request: &ParseRequest) -> BoxStream<'static, Result<Parsed>> {
        reader::read(file, request.clone())
    }
}
