//! The sink of MySQL and MariaDB: rows by `LOAD DATA LOCAL INFILE` from memory, checked after every statement.
//!
//! `connection.rs` is a connection and its bulk path, `tags.rs` tags connections, `facts.rs` queries facts about a
//! table, `message.rs` converts errors. `database` does the loads, and `millstream-database` writes statements.

mod connection;
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
use millstream_database::mysql::{MysqlDialect, PORT};
use millstream_database::table::Bulk;
use millstream_database::{Endpoint, LoadDialect};
use serde_json::Value;

pub use self::spec::MysqlSpec;
use crate::database::DatabaseSink;
use crate::database::encode::{RowEncoder, TextForm};
use crate::database::server::{Connection, Encoder, Server};
use crate::database::spec::DatabaseSpec;
use crate::database::text::Flavour;

/// The registry's entry.
pub const ENTRY: SinkEntry = SinkEntry {
    spec: SpecInfo::of::<MysqlSpec>(),
    schemes: &["mysql", "mariadb"],
    words: &[],
    stores: false,
    formats: SinkFormats::None,
    build: &build,
};

fn build(settings: &Value, parts: SinkParts) -> Built<dyn Sink> {
    let MysqlSpec(spec) = parse::<MysqlSpec>(settings)?;
    let endpoint = Endpoint::parse(&parts.target, &spec.access(), PORT).map_err(|fault| vec![fault])?;
    Ok(Arc::new(DatabaseSink { server: Arc::new(Mysql { endpoint }), spec }))
}

/// A MySQL or MariaDB server.
#[derive(Debug)]
struct Mysql {
    endpoint: Endpoint,
}

#[async_trait]
impl Server for Mysql {
    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn dialect(&self) -> &'static dyn LoadDialect {
        &MysqlDialect
    }

    async fn connect(&self, spec: &DatabaseSpec) -> Result<Box<dyn Connection>> {
        Ok(Box::new(connection::connect(&self.endpoint, spec).await?))
    }

    fn encoder(&self, bulk: &Bulk, schema: &SchemaRef, spec: &DatabaseSpec) -> Box<dyn Encoder> {
        Box::new(RowEncoder::new(TextForm(Flavour::Mysql), bulk, schema, spec))
    }
}
