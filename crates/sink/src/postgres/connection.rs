//! A connection to PostgreSQL, and its bulk path: `COPY … FROM STDIN`, with encoded rows.

use std::ops::Range;
use std::pin::pin;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use millstream_core::{RejectKind, Result};
use millstream_database::postgres::{PostgresDialect, Session, schema_of};
use millstream_database::table::{Bulk, ForeignKey, Index, TableFacts};
use millstream_database::{Dialect, Endpoint, LoadDialect, TextRows, first_cell};
use tokio_postgres::CopyInSink;

use super::{binary, facts, message, tags};
use crate::database::group::Rows;
use crate::database::server::{Connection, Failure, Refusal, Right, SeenSession};
use crate::database::spec::DatabaseSpec;

/// Bytes that are sent at a time.
const PIECE: usize = 256 << 10;

/// Removes time limits of the server: a connection may be idle until all rows have arrived, and a statement may move
/// all rows. Older servers do not know all of these settings.
const STAY: &str = "SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN ('idle_session_timeout', \
                    'idle_in_transaction_session_timeout', 'statement_timeout', 'transaction_timeout')";

/// How often a lock is tried.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// A connection that loads.
pub(super) struct PostgresConnection(Session);

/// Connects and logs in.
pub(super) async fn connect(endpoint: &Endpoint, spec: &DatabaseSpec) -> Result<PostgresConnection> {
    let mut connection = PostgresConnection(Session::open(endpoint.clone(), spec.connect_timeout).await?);
    // Times have no zone but UTC; notices need not be sent.
    let settings = format!(
        "SET TimeZone = 'UTC'; SET client_min_messages = 'warning'; SET datestyle = 'ISO'; {}",
        PostgresDialect.wait_for_locks(spec.lock_timeout.0)
    );
    connection.execute(&settings).await.map_err(Failure::into_error)?;
    connection.query(STAY).await.map_err(Failure::into_error)?;
    Ok(connection)
}

impl PostgresConnection {
    fn failure(&self, fault: &tokio_postgres::Error) -> Failure {
        message::failure(&self.0.endpoint, fault)
    }

    async fn copy(&mut self, into: &Bulk, bytes: Bytes) -> Result<u64, tokio_postgres::Error> {
        let sink: CopyInSink<Bytes> = self.0.client.copy_in(into.statement.as_str()).await?;
        let mut sink = pin!(sink);
        let (head, tail) = if into.binary { (binary::HEAD, binary::TAIL) } else { (&b""[..], &b""[..]) };
        let pieces = (0..bytes.len()).step_by(PIECE).map(|at| bytes.slice(at..bytes.len().min(at + PIECE)));
        let all = [Bytes::from_static(head)].into_iter().chain(pieces).chain([Bytes::from_static(tail)]);
        let mut all = futures::stream::iter(all.filter(|piece| !piece.is_empty()).map(Ok));
        while let Some(piece) = all.next().await {
            sink.feed(piece?).await?;
        }
        sink.finish().await
    }
}

#[async_trait]
impl Connection for PostgresConnection {
    async fn execute(&mut self, sql: &str) -> Result<u64, Failure> {
        self.0.execute(sql).await.map_err(|fault| self.failure(&fault))
    }

    async fn merge(&mut self, sql: &str) -> Result<[u64; 2], Failure> {
        let found = self.query(sql).await?;
        let number = |index: usize| found.first()?.get(index)?.as_ref()?.parse().ok();
        Ok([0, 1].map(|index| number(index).unwrap_or(0)))
    }

    async fn query(&mut self, sql: &str) -> Result<TextRows, Failure> {
        self.0.query(sql).await.map_err(|fault| self.failure(&fault))
    }

    async fn bulk(&mut self, into: &Bulk, rows: &Rows, range: Range<usize>) -> Result<(), Failure> {
        let count = range.len() as u64;
        let written = self.copy(into, rows.part(range)).await.map_err(|fault| self.failure(&fault))?;
        if written == count {
            return Ok(());
        }
        // A trigger can silently skip rows.
        let reason = format!("the server wrote {written} of {count} rows");
        Err(Failure::Rows(Refusal {
            column: None,
            reason,
            kind: RejectKind::Constraint,
            hint: Some("a trigger of the table leaves rows out"),
            at: None,
            by_itself: false,
        }))
    }

    async fn describe(&mut self, table: &str) -> Result<Option<TableFacts>, Failure> {
        facts::describe(self, table).await
    }

    async fn cascading(&mut self, table: &str, by: &[&str]) -> Result<Vec<ForeignKey>, Failure> {
        facts::cascading(self, table, by).await
    }

    async fn missing_rights(&mut self, table: &str, rights: &[Right]) -> Result<Vec<String>, Failure> {
        facts::missing_rights(self, &PostgresDialect.table(table), rights).await
    }

    async fn indexes(&mut self, table: &str) -> Result<Vec<Index>, Failure> {
        facts::indexes(self, table).await
    }

    async fn tables(&mut self, table: &str, prefix: &str) -> Result<Vec<String>, Failure> {
        let query = format!(
            "SELECT tablename FROM pg_tables WHERE schemaname = {} AND left(tablename, {}) = {}",
            schema_of(table),
            prefix.len(),
            PostgresDialect.literal(prefix)
        );
        Ok(self.query(&query).await?.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect())
    }

    async fn comment(&mut self, table: &str, name: &str) -> Result<Option<String>, Failure> {
        let query = format!(
            "SELECT obj_description(c.oid, 'pg_class') FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = {} AND c.relname = {} AND c.relkind IN ('r', 'p')",
            schema_of(table),
            PostgresDialect.literal(name)
        );
        let row = self.query(&query).await?.into_iter().next();
        Ok(row.map(|row| row.into_iter().flatten().next().unwrap_or_default()))
    }

    async fn transaction(&mut self) -> Result<Option<String>, Failure> {
        let rows = self.query("SELECT txid_current()").await?;
        Ok(rows.into_iter().flatten().flatten().next())
    }

    async fn was_committed(&mut self, name: &str) -> Result<Option<bool>, Failure> {
        let rows = self.query(&format!("SELECT txid_status({name})")).await?;
        Ok(match rows.into_iter().flatten().flatten().next().as_deref() {
            Some("committed") => Some(true),
            Some("aborted") => Some(false),
            _ => None,
        })
    }

    async fn lock(&mut self, name: &str) -> Result<bool, Failure> {
        let query = format!("SELECT pg_try_advisory_lock(hashtextextended({}, 0))", PostgresDialect.literal(name));
        for _ in 0..LOCK_TRIES {
            if first_cell(self.query(&query).await?).as_deref() == Some("t") {
                return Ok(true);
            }
            tokio::time::sleep(LOCK_PAUSE).await;
        }
        Ok(false)
    }

    async fn unlock(&mut self, name: &str) -> Result<(), Failure> {
        let query = format!("SELECT pg_advisory_unlock(hashtextextended({}, 0))", PostgresDialect.literal(name));
        self.query(&query).await.map(drop)
    }

    async fn tag(&mut self, owner: &str) -> Result<(), Failure> {
        tags::tag(self, owner).await
    }

    async fn sessions_of(&mut self, owner: &str) -> Result<Vec<SeenSession>, Failure> {
        tags::sessions_of(self, owner).await
    }

    async fn end_session(&mut self, owner: &str, id: &str) -> Result<(), Failure> {
        tags::end_session(self, owner, id).await
    }

    async fn holders(&mut self, tables: &[&str]) -> Result<Vec<SeenSession>, Failure> {
        tags::holders(self, tables).await
    }
}
