//! A connection to MySQL or MariaDB. It sends statements and reads answers as text. Callers interpret errors.

use millstream_core::Result;
use millstream_core::spec::Duration;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error as Fault, Row, Value};

use crate::answer::TextRows;
use crate::endpoint::Endpoint;

/// A connection, logged in.
pub struct Session {
    /// The library's connection.
    pub connection: Conn,
    /// The endpoint of the connection.
    pub endpoint: Endpoint,
}

impl Session {
    /// Connects and logs in, within `timeout`.
    pub async fn open(endpoint: Endpoint, timeout: Duration) -> Result<Self> {
        let connection = super::connect(&endpoint, timeout).await?;
        Ok(Session { connection, endpoint })
    }

    /// Runs a statement. Returns how many rows it changed.
    pub async fn execute(&mut self, sql: &str) -> Result<u64, Fault> {
        self.connection.query_drop(sql).await?;
        Ok(self.connection.affected_rows())
    }

    /// The rows of a query, as text.
    pub async fn query(&mut self, sql: &str) -> Result<TextRows, Fault> {
        let rows: Vec<Row> = self.connection.query(sql).await?;
        Ok(rows.into_iter().map(|row| row.unwrap().into_iter().map(text).collect()).collect())
    }
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::NULL => None,
        Value::Bytes(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        other => Some(other.as_sql(true)),
    }
}
