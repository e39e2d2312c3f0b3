//! The sink of PostgreSQL: rows by binary `COPY`, or by `COPY` of text if a column's type has no binary form here.
//!
//! `connection.rs` is a connection and its bulk path, `tags.rs` tags connections, `binary.rs` and `copy_text.rs` encode
//! rows in either form, `facts.rs` queries facts about a table, `message.rs` converts errors. `database` does the
//! loads, and `millstream-database` writes statements.

mod binary;
mod connection;
mod copy_text;
mod facts;
mod message;
mod spec;
mod tags;
#[cfg(all(test, feature = "mysql", feature = "postgres"))]
pub(crate) mod tests;

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use millstream_core::Result;
use millstream_core::registry::{Built, SinkEntry, SinkFormats};
use millstream_core::sink::{Sink, SinkParts};
use millstream_core::spec::{SpecInfo, parse};
use millstream_database::postgres::{PORT, PostgresDialect};
use millstream_database::table::Bulk;
use millstream_database::{Endpoint, LoadDialect};
use serde_json::Value;

use self::binary::BinaryForm;
use self::copy_text::CopyText;
pub use self::spec::PostgresSpec;
use crate::database::DatabaseSink;
use crate::database::encode::RowEncoder;
use crate::database::server::{Connection, Encoder, Server};
use crate::database::spec::DatabaseSpec;
use crate::database::text;

/// The registry's entry.
pub const ENTRY: SinkEntry = SinkEntry {
    spec: SpecInfo::of::<PostgresSpec>(),
    schemes: &["postgres", "postgresql"],
    words: &[],
    stores: false,
    formats: SinkFormats::None,
    build: &build,
};

fn build(settings: &Value, parts: SinkParts) -> Built<dyn Sink> {
    let PostgresSpec(spec) = parse::<PostgresSpec>(settings)?;
    let endpoint = Endpoint::parse(&parts.target, &spec.access(), PORT).map_err(|fault| vec![fault])?;
    Ok(Arc::new(DatabaseSink { server: Arc::new(Postgres { endpoint }), spec }))
}

/// A PostgreSQL server.
#[derive(Debug)]
struct Postgres {
    endpoint: Endpoint,
}

#[async_trait]
impl Server for Postgres {
    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn dialect(&self) -> &'static dyn LoadDialect {
        &PostgresDialect
    }

    async fn connect(&self, spec: &DatabaseSpec) -> Result<Box<dyn Connection>> {
        Ok(Box::new(connection::connect(&self.endpoint, spec).await?))
    }

    fn encoder(&self, bulk: &Bulk, schema: &SchemaRef, spec: &DatabaseSpec) -> Box<dyn Encoder> {
        match bulk.binary {
            true => Box::new(RowEncoder::new(BinaryForm::new(bulk), bulk, schema, spec)),
            false => Box::new(RowEncoder::new(CopyText::new(bulk), bulk, schema, spec)),
        }
    }

    fn shown(&self, bulk: &Bulk, row: &[u8]) -> String {
        if bulk.binary { binary::shown(bulk, row) } else { text::shown_row(bulk, row) }
    }
}
