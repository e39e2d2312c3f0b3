//! A connection to PostgreSQL, and its bulk path: `COPY … FROM STDIN`, from rows that are encoded already.

use std::ops::Range;
use std::pin::pin;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use millstream_core::{RejectKind, Result};
use millstream_database::{Place, TextRows, postgres};
use tokio_postgres::CopyInSink;

use super::{binary, message};
use crate::database::group::Rows;
use crate::database::server::{Bulk, Failure, Refusal, Session};
use crate::database::spec::DatabaseSpec;

/// Bytes that are handed on at a time.
const PIECE: usize = 256 << 10;

/// Keeps the server from ending a connection that has nothing to do until all rows have come, and a statement that
/// moves all of them, whatever it was told to do with other people's. Older servers do not know all of these settings.
const STAY: &str = "SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN ('idle_session_timeout', \
                    'idle_in_transaction_session_timeout', 'statement_timeout', 'transaction_timeout')";

/// A connection that loads.
pub(super) struct PostgresSession(postgres::Session);

/// Connects and logs in.
pub(super) async fn connect(place: &Place, spec: &DatabaseSpec) -> Result<PostgresSession> {
    let mut session = PostgresSession(postgres::Session::open(place.clone(), spec.connect_timeout).await?);
    // Times have no zone but UTC; what the server only mentions need not be sent.
    let settings = format!(
        "SET TimeZone = 'UTC'; SET client_min_messages = 'warning'; SET datestyle = 'ISO'; {}",
        postgres::wait_for_locks(spec.lock_timeout.0)
    );
    session.execute(&settings).await.map_err(Failure::into_error)?;
    session.query(STAY).await.map_err(Failure::into_error)?;
    Ok(session)
}

impl PostgresSession {
    fn failure(&self, fault: &tokio_postgres::Error) -> Failure {
        message::failure(&self.0.place, fault)
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
impl Session for PostgresSession {
    async fn execute(&mut self, sql: &str) -> Result<u64, Failure> {
        self.0.execute(sql).await.map_err(|fault| self.failure(&fault))
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
        // A trigger can leave rows out without a word.
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
}
