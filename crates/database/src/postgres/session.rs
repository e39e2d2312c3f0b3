//! A connection to PostgreSQL. It sends statements and reads answers as text. Callers interpret errors.

use millstream_core::Result;
use millstream_core::spec::Duration;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Error as Fault, SimpleQueryMessage};

use crate::answer::TextRows;
use crate::endpoint::Endpoint;

/// A connection, logged in. Dropping it ends the connection.
pub struct Session {
    /// The library's connection.
    pub client: Client,
    /// The endpoint of the connection.
    pub endpoint: Endpoint,
    /// The task that transfers the bytes of the connection.
    mover: JoinHandle<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        // It does not wait for running statements: the server rolls them back.
        self.mover.abort();
    }
}

impl Session {
    /// Connects and logs in, within `timeout`.
    pub async fn open(endpoint: Endpoint, timeout: Duration) -> Result<Self> {
        let (client, mover) = super::connect(&endpoint, timeout).await?;
        Ok(Session { client, endpoint, mover })
    }

    /// Runs statements. Returns how many rows the last one changed.
    pub async fn execute(&self, sql: &str) -> Result<u64, Fault> {
        let counts = self.client.simple_query(sql).await?.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::CommandComplete(count) => Some(count),
            _ => None,
        });
        Ok(counts.last().unwrap_or(0))
    }

    /// The rows of queries, as text.
    pub async fn query(&self, sql: &str) -> Result<TextRows, Fault> {
        let rows = self.client.simple_query(sql).await?.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|index| row.get(index).map(str::to_owned)).collect())
            }
            _ => None,
        });
        Ok(rows.collect())
    }
}
