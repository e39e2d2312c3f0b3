//! Reading from PostgreSQL: `COPY … TO STDOUT` in binary form, all parts as of one snapshot.
//!
//! The first connection exports its snapshot and stays open; the reading connections import it. Each column is cast to
//! the type for its Arrow type, so that its binary form is known; other types are cast to text.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, i256};
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use millstream_core::format::{ParseRequest, Rows};
use millstream_core::source::SourceContext;
use millstream_core::{Error, Result};
use millstream_database::postgres::binary::{EPOCH_DAYS, EPOCH_MICROS, SIGNATURE};
use millstream_database::postgres::{PORT, PostgresDialect, Session, arrow_type, whole};
use millstream_database::{Dialect, Endpoint, TextRows};
use tokio_postgres::types::Type;
use tokio_postgres::{Column, CopyOutStream};

use super::kind::{Database, WallClock, on_io, server_endpoint};
use super::parts::{self, Key, Keys};
use super::query::{Query, list};
use super::rows::{Cell, Gathering};
use super::spec::ServerRead;

/// A snapshot, and the connection that holds it.
struct Snapshot {
    name: String,
    _holder: Session,
}

/// PostgreSQL servers, and the snapshots that were taken of them.
pub(super) struct Postgres {
    spec: ServerRead,
    snapshots: Mutex<HashMap<String, Arc<Snapshot>>>,
}

/// The server's error of a table that does not exist.
const UNDEFINED_TABLE: &str = "42P01";

impl std::fmt::Debug for Postgres {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Postgres").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl Postgres {
    pub(super) fn new(spec: ServerRead) -> Self {
        Postgres { spec, snapshots: Mutex::default() }
    }
}

async fn open(spec: &ServerRead, url: &str, snapshot: Option<&str>) -> Result<Session> {
    let endpoint = server_endpoint(url, spec, PORT)?;
    let session = Session::open(endpoint, spec.connect_timeout).await?;
    let take = snapshot.map(|name| format!("; SET TRANSACTION SNAPSHOT '{name}'")).unwrap_or_default();
    // Removes limits that the server may have for statements (older servers do not know all of them), except for a lock
    // that this job itself may hold.
    let settings = "SET TimeZone = 'UTC'; SET lock_timeout = '10min'; SET datestyle = 'ISO'; SET client_min_messages = \
                    'warning'; SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN \
                    ('idle_in_transaction_session_timeout', 'statement_timeout', 'transaction_timeout')";
    rows(&session, settings).await?;
    let begin = format!("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY{take}");
    rows(&session, &begin).await?;
    Ok(session)
}

/// The rows of statements, as text.
async fn rows(session: &Session, sql: &str) -> Result<TextRows> {
    session.query(sql).await.map_err(|fault| server_error(&session.endpoint, &fault))
}

/// Whether a query that is refused with this code is wrong in itself: a table may be created yet, and a right granted.
fn is_mistake(code: &str) -> bool {
    code.starts_with("42") && ![UNDEFINED_TABLE, "42501"].contains(&code)
}

/// The error of the server, or of a lost connection.
fn server_error(endpoint: &Endpoint, fault: &tokio_postgres::Error) -> Error {
    match fault.as_db_error() {
        Some(server_error) if !server_error.code().code().starts_with("57P") => {
            let error =
                Error::refused(format!("{} refuses the query", endpoint.server.shown)).cause(server_error.message());
            let error = if is_mistake(server_error.code().code()) { error.lasting() } else { error };
            match server_error.hint() {
                Some(hint) => error.hint(hint),
                None if server_error.code().code() == UNDEFINED_TABLE => {
                    error.hint("check the table's name, and its schema")
                }
                None if server_error.code().code() == "42501" => error.hint("GRANT SELECT ON the table TO the user"),
                None => error.hint("try the query with psql"),
            }
        }
        _ => endpoint.server.lost(whole(fault)),
    }
}

#[async_trait]
impl Keys for Session {
    async fn primary_key(&mut self, table: &str) -> Result<Option<String>> {
        let table = PostgresDialect.literal(&PostgresDialect.table(table));
        let statement = format!(
            "SELECT attname FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey) WHERE \
             indrelid = {table}::regclass AND indisprimary"
        );
        let mut names = rows(self, &statement).await?.into_iter().flatten().flatten();
        Ok(names.next().filter(|_| names.next().is_none()))
    }

    async fn key(&mut self, query: &Query, name: &str) -> Result<Option<Key>> {
        let statement = query.statement(&PostgresDialect.quoted(name), None, &PostgresDialect);
        let prepared = self.client.prepare(&statement).await.map_err(|fault| server_error(&self.endpoint, &fault))?;
        Ok(prepared.columns().first().and_then(|column| match *column.type_() {
            Type::INT2 | Type::INT4 | Type::INT8 | Type::NUMERIC | Type::FLOAT4 | Type::FLOAT8 => Some(Key::Number),
            Type::DATE | Type::TIMESTAMP | Type::TIMESTAMPTZ => Some(Key::Time),
            _ => None,
        }))
    }

    async fn ends(&mut self, query: &Query, name: &str, key: Key) -> Result<Option<(String, String)>> {
        let (column, cast) = (PostgresDialect.quoted(name), if key == Key::Time { "::timestamp" } else { "" });
        let ends = query.statement(&format!("min({column}){cast}, max({column}){cast}"), None, &PostgresDialect);
        let mut ends = rows(self, &ends).await?.into_iter().flatten();
        Ok(ends.next().flatten().zip(ends.next().flatten()))
    }

    fn dialect(&self) -> &'static dyn Dialect {
        &PostgresDialect
    }
}

#[async_trait]
impl Database for Postgres {
    fn dialect(&self) -> &'static dyn Dialect {
        &PostgresDialect
    }

    fn connections(&self) -> usize {
        self.spec.connections
    }

    async fn columns(&self, url: &str, query: &Query) -> Result<SchemaRef> {
        let mut session = open(&self.spec, url, None).await?;
        let statement = query.statement("*", None, &PostgresDialect);
        let prepared =
            session.client.prepare(&statement).await.map_err(|fault| server_error(&session.endpoint, &fault))?;
        let field = |column: &Column| Field::new(column.name(), arrow_type(column), true);
        let columns: Vec<Field> = prepared.columns().iter().map(field).collect();
        parts::check(&mut session, &self.spec, query, &columns).await?;
        Ok(Arc::new(Schema::new(columns)))
    }

    async fn lacks(&self, url: &str, table: &str) -> Result<bool> {
        let session = open(&self.spec, url, None).await?;
        // A table that the user may not read is another error.
        let looked = session.query(&format!("SELECT 1 FROM {} LIMIT 0", PostgresDialect.table(table))).await;
        let is_missing = |fault: &tokio_postgres::Error| {
            fault.as_db_error().is_some_and(|error| error.code().code() == UNDEFINED_TABLE)
        };
        match looked {
            Err(fault) if is_missing(&fault) => Ok(true),
            other => other.map(|_| false).map_err(|fault| server_error(&session.endpoint, &fault)),
        }
    }

    async fn parts(&self, url: &str, query: &Query) -> Result<Vec<String>> {
        let mut session = open(&self.spec, url, None).await?;
        let Some(parts) = parts::of_query(&mut session, &self.spec, query).await? else { return Ok(Vec::new()) };
        let mut exported = rows(&session, "SELECT pg_export_snapshot()").await?.into_iter().flatten().flatten();
        if let Some(name) = exported.next() {
            let snapshot = Arc::new(Snapshot { name, _holder: session });
            let mut snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
            snapshots.insert(url.to_owned(), snapshot);
        }
        Ok(parts)
    }

    async fn answer(&self, url: &str, sql: &str) -> Result<Vec<Option<String>>> {
        let session = open(&self.spec, url, None).await?;
        Ok(rows(&session, sql).await?.into_iter().next().unwrap_or_default())
    }

    fn wall_clock(&self) -> WallClock {
        WallClock {
            now: "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint, reset_val FROM pg_settings \
                  WHERE name = 'TimeZone'",
            reading: |moment| format!("timestamptz '{moment}+00' AT TIME ZONE reset_val"),
            earliest: |readings| {
                format!(
                    "SELECT (floor(extract(epoch FROM least({readings}))) * 1000000)::bigint FROM pg_settings WHERE \
                     name = 'TimeZone'"
                )
            },
        }
    }

    fn done(&self) {
        self.snapshots.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn read(
        &self,
        context: &SourceContext,
        url: &str,
        query: &Query,
        condition: Option<&str>,
        request: &ParseRequest,
    ) -> BoxStream<'static, Result<Rows>> {
        let schema = request.output_schema();
        let columns = schema
            .fields()
            .iter()
            .map(|field| format!("{}{}", PostgresDialect.quoted(field.name()), cast(field.data_type())));
        let statement = query.statement(&list(columns), condition, &PostgresDialect);
        let copy = format!("COPY ({statement}) TO STDOUT (FORMAT binary)");
        let snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = snapshots.get(url).cloned();
        let (spec, url, io, request) = (self.spec.clone(), url.to_owned(), context.io.clone(), request.clone());
        async_stream::try_stream! {
            let (session, stream) = on_io(&io, async move {
                let session = open(&spec, &url, snapshot.as_ref().map(|snapshot| snapshot.name.as_str())).await?;
                let copied = session.client.copy_out(&copy).await;
                let stream = copied.map_err(|fault| server_error(&session.endpoint, &fault))?;
                Ok((session, stream))
            })
            .await?;
            let mut stream = pin!(stream);
            let mut rows = BinaryRows::new(&request)?;
            while let Some(bytes) = next(&session, &mut stream).await? {
                rows.feed(bytes);
                while let Some(full) = rows.next()? {
                    yield full;
                }
            }
            if let Some(rest) = rows.finish()? {
                yield rest;
            }
        }
        .boxed()
    }
}

async fn next(session: &Session, stream: &mut std::pin::Pin<&mut CopyOutStream>) -> Result<Option<Bytes>> {
    stream.next().await.transpose().map_err(|fault| server_error(&session.endpoint, &fault))
}

/// The rows of a binary copy.
struct BinaryRows {
    /// Received bytes, which are not read yet from `at` on.
    buffer: Bytes,
    at: usize,
    begun: bool,
    ended: bool,
    columns: usize,
    rows: Gathering,
}

impl BinaryRows {
    fn new(request: &ParseRequest) -> Result<Self> {
        let rows = Gathering::new(request)?;
        let (buffer, columns) = (Bytes::new(), request.projection.len());
        Ok(BinaryRows { buffer, at: 0, begun: false, ended: false, columns, rows })
    }

    /// Appends bytes. Servers send whole rows, so there is rarely a rest to append to.
    fn feed(&mut self, bytes: Bytes) {
        let rest = &self.buffer[self.at..];
        self.buffer = if rest.is_empty() { bytes } else { [rest, &bytes].concat().into() };
        self.at = 0;
    }

    /// A full batch, if there is one.
    fn next(&mut self) -> Result<Option<Rows>> {
        if !self.begun {
            if self.buffer.len() < SIGNATURE.len() + 8 {
                return Ok(None);
            }
            if !self.buffer.starts_with(SIGNATURE) {
                return Err(Error::refused("the server does not send a binary copy"));
            }
            self.at = SIGNATURE.len() + 8;
            self.begun = true;
        }
        let buffer = self.buffer.clone();
        while let Some(length) = self.row_length(&buffer[self.at..]) {
            let row = &buffer[self.at..self.at + length];
            self.at += length;
            if let Some(full) = self.row(row)? {
                return Ok(Some(full));
            }
        }
        Ok(None)
    }

    /// The length of the row at the beginning of `bytes`, if it has arrived whole.
    fn row_length(&mut self, bytes: &[u8]) -> Option<usize> {
        let count = i16::from_be_bytes(*bytes.first_chunk::<2>()?);
        if count < 0 {
            self.ended = true;
            return None;
        }
        let mut at = 2;
        for _ in 0..count {
            let length = i32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?);
            at += 4 + usize::try_from(length).unwrap_or(0);
        }
        (bytes.len() >= at).then_some(at)
    }

    fn row(&mut self, row: &[u8]) -> Result<Option<Rows>> {
        let mut at = 2;
        for _ in 0..self.columns {
            let length = row.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(i32::from_be_bytes);
            let length = length.ok_or_else(|| Error::refused("the server sent a row with too few values"))?;
            at += 4;
            match usize::try_from(length) {
                Err(_) => self.rows.push(Cell::Null)?,
                Ok(length) => {
                    let value = row.get(at..at + length).unwrap_or_default();
                    let cell = cell(self.rows.next_type(), value).map_err(|what| self.fault(what))?;
                    self.rows.push(cell)?;
                    at += length;
                }
            }
        }
        self.rows.end_row()
    }

    fn fault(&self, what: &'static str) -> Error {
        self.rows.fault(what).hint("change or CAST such values in a `query`")
    }

    /// The remaining rows after all bytes.
    fn finish(&mut self) -> Result<Option<Rows>> {
        if !self.ended {
            return Err(Error::refused("the server's answer is cut off"));
        }
        self.rows.finish()
    }
}

/// A value in binary form: "PostgreSQL: the send functions of its types".
fn cell<'a>(data_type: &DataType, value: &'a [u8]) -> Result<Cell<'a>, &'static str> {
    const LENGTH: &str = "the length of a value does not match its type";
    fn number<const N: usize>(value: &[u8]) -> Result<[u8; N], &'static str> {
        value.try_into().map_err(|_| LENGTH)
    }
    Ok(match data_type {
        DataType::Boolean => Cell::Bool(number::<1>(value)?[0] != 0),
        DataType::Int16 => Cell::Integer(i16::from_be_bytes(number(value)?).into()),
        DataType::Int32 => Cell::Integer(i32::from_be_bytes(number(value)?).into()),
        DataType::Int64 => Cell::Integer(i64::from_be_bytes(number(value)?).into()),
        DataType::Float32 => Cell::Single(f32::from_be_bytes(number(value)?)),
        DataType::Float64 => Cell::Double(f64::from_be_bytes(number(value)?)),
        DataType::Decimal128(_, scale) | DataType::Decimal256(_, scale) => Cell::Decimal(numeric(value, *scale)?),
        DataType::Date32 => match i32::from_be_bytes(number(value)?) {
            i32::MAX | i32::MIN => return Err("infinity is not a date"),
            days => Cell::Date(days.checked_add(EPOCH_DAYS).ok_or("the date is out of range")?),
        },
        DataType::Time64(_) => Cell::Time(i64::from_be_bytes(number(value)?)),
        DataType::Timestamp(..) => match i64::from_be_bytes(number(value)?) {
            i64::MAX | i64::MIN => return Err("infinity is not a time"),
            micros => Cell::Timestamp(micros.checked_add(EPOCH_MICROS).ok_or("the time is out of range")?),
        },
        DataType::Binary => Cell::Bytes(value),
        _ => Cell::Text(std::str::from_utf8(value).map_err(|_| "the text is not UTF-8")?),
    })
}

/// A `numeric` in units of `scale`: digits of base 10,000, the first of them with the weight 10,000^weight.
fn numeric(value: &[u8], scale: i8) -> Result<i256, &'static str> {
    const DAMAGED: &str = "a numeric value is damaged";
    let word = |index: usize| {
        let bytes = value.get(2 * index..2 * index + 2).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u16::from_be_bytes).ok_or(DAMAGED)
    };
    let (count, weight, sign) = (word(0)?, word(1)? as i16, word(2)?);
    if ![0, 0x4000].contains(&sign) {
        return Err("NaN and infinity are not decimals");
    }
    let ten = i256::from_i128(10);
    let mut number = i256::ZERO;
    for index in 0..usize::from(count) {
        let digit = i256::from_i128(word(4 + index)?.into());
        number =
            number.checked_mul(i256::from_i128(10_000)).and_then(|number| number.checked_add(digit)).ok_or(DAMAGED)?;
    }
    // The position of the last digit, in units of the scale.
    let shift = 4 * (i32::from(weight) + 1 - i32::from(count)) + i32::from(scale);
    let power = ten.checked_pow(shift.unsigned_abs()).ok_or(DAMAGED)?;
    let scaled = if shift >= 0 { number.checked_mul(power) } else { number.checked_div(power) };
    let scaled = scaled.ok_or("the number is too large")?;
    Ok(if sign == 0 { scaled } else { scaled.wrapping_neg() })
}

/// The cast of a column to the type for its Arrow type.
fn cast(data_type: &DataType) -> String {
    match data_type {
        DataType::Boolean => "::bool".to_owned(),
        DataType::Int16 => "::int2".to_owned(),
        DataType::Int32 => "::int4".to_owned(),
        DataType::Int64 => "::int8".to_owned(),
        DataType::Float32 => "::float4".to_owned(),
        DataType::Float64 => "::float8".to_owned(),
        DataType::Decimal128(precision, scale) | DataType::Decimal256(precision, scale) => {
            format!("::numeric({precision},{scale})")
        }
        DataType::Date32 => "::date".to_owned(),
        DataType::Time64(_) => "::time".to_owned(),
        DataType::Timestamp(_, None) => "::timestamp".to_owned(),
        DataType::Timestamp(_, Some(_)) => "::timestamptz".to_owned(),
        DataType::Binary => "::bytea".to_owned(),
        _ => "::text".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numerics_are_exact() {
        let words = |words: &[i16]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
        let number = |value: &[i16], scale| numeric(&words(value), scale).map(|number| number.to_string());
        // 12345.678, -0.0001, 0, 10000
        assert_eq!(number(&[3, 1, 0, 3, 1, 2345, 6780], 3).as_deref(), Ok("12345678"));
        assert_eq!(number(&[1, -1, 0x4000, 4, 1], 4).as_deref(), Ok("-1"));
        assert_eq!(number(&[0, 0, 0, 2], 2).as_deref(), Ok("0"));
        assert_eq!(number(&[1, 1, 0, 0, 1], 0).as_deref(), Ok("10000"));
        assert!(number(&[0, 0, -16384, 0], 2).is_err());
        assert!(number(&[3, 1, 0, 3, 1], 3).is_err());
    }
}
