//! The trait of a kind of database.

use std::fmt::Debug;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use futures::stream::BoxStream;
use millstream_core::format::{ParseRequest, Rows};
use millstream_core::source::SourceContext;
use millstream_core::{Error, Result};
use millstream_database::{Dialect, Endpoint};

use super::query::Query;
use super::spec::ServerRead;

/// How a database is asked for the time. Times are in microseconds since 1970; those without a zone as if in UTC.
pub(super) struct WallClock {
    /// The statement that gives the time now, and the time zone of columns that have none.
    pub now: &'static str,
    /// The expression of what a clock in this zone shows at a moment, which is written `2026-01-31 12:00:00` in UTC.
    pub reading: fn(&str) -> String,
    /// The statement that gives the earliest of a list of readings.
    pub earliest: fn(&str) -> String,
}

/// A kind of database.
#[async_trait]
pub(super) trait Database: Debug + Send + Sync {
    /// How it writes SQL.
    fn dialect(&self) -> &'static dyn Dialect;

    /// The most parts that are read at once.
    fn connections(&self) -> usize;

    /// The columns of a query.
    async fn columns(&self, url: &str, query: &Query) -> Result<SchemaRef>;

    /// Whether the database answers, and there is no table or view of this name.
    async fn lacks(&self, url: &str, table: &str) -> Result<bool>;

    /// The conditions that divide the rows of a query into parts: each row meets exactly one. None if all rows are one
    /// part. Later reads see the data as of this call.
    async fn parts(&self, url: &str, query: &Query) -> Result<Vec<String>>;

    /// The rows that meet a condition. The stream may be polled on any runtime.
    fn read(
        &self,
        context: &SourceContext,
        url: &str,
        query: &Query,
        condition: Option<&str>,
        request: &ParseRequest,
    ) -> BoxStream<'static, Result<Rows>>;

    /// The values of the first row of `sql`, as text.
    async fn answer(&self, url: &str, sql: &str) -> Result<Vec<Option<String>>>;

    /// How it is asked for the time.
    fn wall_clock(&self) -> WallClock;

    /// The condition of the rows whose `column` is not a time, if that is not for the type of the column to say.
    fn not_a_time(&self, _column: &str) -> Option<String> {
        None
    }

    /// Releases the locks and snapshots after everything has been read.
    fn done(&self) {}
}

/// Runs `work`, which reads a database, on the runtime of the network.
pub(super) async fn on_io<T: Send + 'static>(
    io: &tokio::runtime::Handle,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    millstream_database::on_io(io, "reading a database", work).await
}

/// The endpoint of a server. Some faults of a URL only show together with the settings.
pub(super) fn server_endpoint(url: &str, spec: &ServerRead, default_port: u16) -> Result<Endpoint> {
    Endpoint::parse(url, &spec.access(), default_port).map_err(|fault| {
        let error = Error::job(fault.what.clone());
        fault.hint.iter().fold(error, |error, hint| error.hint(hint.clone()))
    })
}
