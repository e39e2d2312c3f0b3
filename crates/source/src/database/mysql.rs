//! Reading from MySQL and MariaDB: prepared statements, whose results come in binary form, so that floats keep all
//! their digits.
//!
//! These servers cannot share a snapshot between connections. So the connections begin their snapshots while a read
//! lock keeps others from writing: on the table, or, for a query, whose tables are unknown, on all tables. If the user
//! may not lock, all rows come over one connection with one snapshot.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use millstream_core::format::{ParseRequest, Rows};
use millstream_core::source::SourceContext;
use millstream_core::{Error, Result};
use millstream_database::mysql::{MysqlDialect, PORT, Session, arrow_type, ends_connection};
use millstream_database::{Dialect, Endpoint};
use mysql_async::consts::ColumnType;
use mysql_async::prelude::Queryable;
use mysql_async::{Column, Params, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::kind::{Database, WallClock, on_io, server_endpoint};
use super::parts::{self, Key, Keys};
use super::query::{Query, list};
use super::rows::{Cell, Gathering, decimal};
use super::spec::ServerRead;

/// Times are in UTC, and reading has no time limit (whose name differs between MariaDB and MySQL). A lock that is not
/// available soon is skipped, since waiting for it blocks others.
const SETTINGS: [&str; 2] = [
    "SET SESSION time_zone = '+00:00', net_write_timeout = 3600, wait_timeout = 604800, lock_wait_timeout = 10 \
     /*M!100101 , max_statement_time = 0 */ /*!50708 , max_execution_time = 0 */",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
];

/// The server's error of a table that does not exist.
const NO_SUCH_TABLE: u16 = 1146;

/// The server's codes of queries that are wrong in themselves: syntax, columns, functions and groups.
const MISTAKES: [u16; 12] = [1052, 1054, 1055, 1056, 1064, 1065, 1111, 1140, 1149, 1247, 1305, 1630];

/// Begins a snapshot.
const BEGIN: &str = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY";

/// Connections that share one view of the data.
struct View {
    idle: Mutex<Vec<Session>>,
    permits: Arc<Semaphore>,
}

/// MySQL servers, and the views taken of them.
pub(super) struct Mysql {
    spec: ServerRead,
    views: Mutex<HashMap<String, Arc<View>>>,
}

impl std::fmt::Debug for Mysql {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mysql").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl Mysql {
    pub(super) fn new(spec: ServerRead) -> Self {
        Mysql { spec, views: Mutex::default() }
    }

    fn view(&self, url: &str) -> Option<Arc<View>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner).get(url).cloned()
    }
}

async fn open(spec: &ServerRead, url: &str) -> Result<Session> {
    let endpoint = server_endpoint(url, spec, PORT)?;
    let mut session = Session::open(endpoint, spec.connect_timeout).await?;
    for setting in SETTINGS {
        run(&mut session, setting).await?;
    }
    Ok(session)
}

async fn run(session: &mut Session, sql: &str) -> Result<()> {
    session.execute(sql).await.map(drop).map_err(|fault| server_error(&session.endpoint, fault))
}

/// The values of a query's first row, as text.
async fn first(session: &mut Session, sql: &str) -> Result<Vec<Option<String>>> {
    let rows = session.query(sql).await.map_err(|fault| server_error(&session.endpoint, fault))?;
    Ok(rows.into_iter().next().unwrap_or_default())
}

async fn columns(session: &mut Session, sql: &str) -> Result<Vec<Column>> {
    let prepared = session.connection.prep(sql).await.map_err(|fault| server_error(&session.endpoint, fault))?;
    let columns = prepared.columns().to_vec();
    session.connection.close(prepared).await.map_err(|fault| server_error(&session.endpoint, fault))?;
    Ok(columns)
}

/// Locks the tables of `query` against writes; `false` if the user may not, or others hold locks.
async fn lock(session: &mut Session, query: &Query) -> bool {
    let statement = match query.table() {
        Some(table) => format!("LOCK TABLES {} READ", MysqlDialect.table(table)),
        None => "FLUSH TABLES WITH READ LOCK".to_owned(),
    };
    session.execute(&statement).await.is_ok()
}

#[async_trait]
impl Keys for Session {
    async fn primary_key(&mut self, table: &str) -> Result<Option<String>> {
        let statement = format!(
            "SELECT COUNT(*), MAX(column_name) FROM information_schema.key_column_usage WHERE table_schema = \
             DATABASE() AND table_name = {} AND constraint_name = 'PRIMARY'",
            MysqlDialect.literal(table)
        );
        let server_error = first(self, &statement).await?;
        let one = server_error.first().and_then(Option::as_deref) == Some("1");
        Ok(server_error.into_iter().nth(1).flatten().filter(|_| one))
    }

    async fn key(&mut self, query: &Query, name: &str) -> Result<Option<Key>> {
        let columns = columns(self, &query.statement(&MysqlDialect.quoted(name), None, &MysqlDialect)).await?;
        Ok(columns.first().and_then(key))
    }

    async fn ends(&mut self, query: &Query, name: &str, _: Key) -> Result<Option<(String, String)>> {
        let column = MysqlDialect.quoted(name);
        let ends = query.statement(&format!("MIN({column}), MAX({column})"), None, &MysqlDialect);
        let mut ends = first(self, &ends).await?.into_iter();
        Ok(ends.next().flatten().zip(ends.next().flatten()))
    }

    fn dialect(&self) -> &'static dyn Dialect {
        &MysqlDialect
    }
}

/// Connections with one view of the data; `None` if nothing can be locked.
async fn view(spec: &ServerRead, url: &str, query: &Query, mut first: Session) -> Result<Option<View>> {
    if !lock(&mut first, query).await {
        return Ok(None);
    }
    let mut sessions = Vec::new();
    let begun = async {
        for _ in 0..spec.connections {
            let mut session = open(spec, url).await?;
            run(&mut session, BEGIN).await?;
            sessions.push(session);
        }
        Ok(())
    };
    let begun: Result<()> = begun.await;
    run(&mut first, "UNLOCK TABLES").await?;
    begun?;
    Ok(Some(View { permits: Arc::new(Semaphore::new(sessions.len())), idle: Mutex::new(sessions) }))
}

#[async_trait]
impl Database for Mysql {
    fn dialect(&self) -> &'static dyn Dialect {
        &MysqlDialect
    }

    fn connections(&self) -> usize {
        self.spec.connections
    }

    async fn columns(&self, url: &str, query: &Query) -> Result<SchemaRef> {
        let mut session = open(&self.spec, url).await?;
        let columns = columns(&mut session, &query.statement("*", None, &MysqlDialect)).await?;
        let field = |column: &Column| Field::new(column.name_str(), arrow_type(column), true);
        let columns: Vec<Field> = columns.iter().map(field).collect();
        parts::check(&mut session, &self.spec, query, &columns).await?;
        Ok(Arc::new(Schema::new(columns)))
    }

    async fn lacks(&self, url: &str, table: &str) -> Result<bool> {
        let mut session = open(&self.spec, url).await?;
        // A table that the user may not read is another error.
        let looked = session.query(&format!("SELECT 1 FROM {} LIMIT 0", MysqlDialect.table(table))).await;
        match looked {
            Err(mysql_async::Error::Server(error)) if error.code == NO_SUCH_TABLE => Ok(true),
            other => other.map(|_| false).map_err(|fault| server_error(&session.endpoint, fault)),
        }
    }

    async fn parts(&self, url: &str, query: &Query) -> Result<Vec<String>> {
        let mut session = open(&self.spec, url).await?;
        let parts = parts::of_query(&mut session, &self.spec, query).await?.unwrap_or_default();
        if parts.is_empty() {
            return Ok(parts);
        }
        match view(&self.spec, url, query, session).await? {
            Some(view) => {
                let mut views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
                views.insert(url.to_owned(), Arc::new(view));
                Ok(parts)
            }
            None => Ok(Vec::new()),
        }
    }

    async fn answer(&self, url: &str, sql: &str) -> Result<Vec<Option<String>>> {
        let mut session = open(&self.spec, url).await?;
        first(&mut session, sql).await
    }

    fn wall_clock(&self) -> WallClock {
        WallClock {
            now: "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), IF(@@GLOBAL.time_zone = \
                  'SYSTEM', @@GLOBAL.system_time_zone, @@GLOBAL.time_zone)",
            reading: |moment| format!("CONVERT_TZ('{moment}', '+00:00', @@GLOBAL.time_zone)"),
            earliest: |readings| format!("SELECT TIMESTAMPDIFF(SECOND, '1970-01-01', LEAST({readings})) * 1000000"),
        }
    }

    fn done(&self) {
        self.views.lock().unwrap_or_else(PoisonError::into_inner).clear();
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
        let columns = schema.fields().iter().map(|field| MysqlDialect.quoted(field.name()));
        let statement = query.statement(&list(columns), condition, &MysqlDialect);
        let view = self.view(url);
        let (spec, url, io, request) = (self.spec.clone(), url.to_owned(), context.io.clone(), request.clone());
        async_stream::try_stream! {
            let mut lent = on_io(&io, PooledConnection::new(view, spec, url)).await?;
            let mut rows = Gathering::new(&request)?;
            let columns = request.projection.len();
            let session = lent.session()?;
            let endpoint = session.endpoint.clone();
            let broken = |fault| server_error(&endpoint, fault);
            let answer = session.connection.exec_iter(statement, Params::Empty).await;
            let mut answer = answer.map_err(&broken)?;
            loop {
                let row = answer.next().await.map_err(&broken)?;
                let Some(row) = row else { break };
                if let Some(full) = add(&mut rows, row.unwrap(), columns)? {
                    yield full;
                }
            }
            drop(answer);
            if let Some(rest) = rows.finish()? {
                yield rest;
            }
            lent.give_back();
        }
        .boxed()
    }
}

/// The error of the server, or of a lost connection.
fn server_error(endpoint: &Endpoint, fault: mysql_async::Error) -> Error {
    match fault {
        mysql_async::Error::Server(server_error) if !ends_connection(server_error.code) => {
            let error =
                Error::refused(format!("{} refuses the query", endpoint.server.shown)).cause(server_error.message);
            let error = if MISTAKES.contains(&server_error.code) { error.lasting() } else { error };
            match server_error.code {
                NO_SUCH_TABLE => error.hint("check the table's name, and the database in the URL"),
                1142 | 1143 => error.hint("GRANT SELECT ON the table TO the user"),
                _ => error.hint("try the query with the server's own client"),
            }
        }
        other => endpoint.server.lost(other.to_string()),
    }
}

/// A connection for one part. After reading the part to its end, it returns to its view.
struct PooledConnection {
    session: Option<Session>,
    view: Option<Arc<View>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl PooledConnection {
    /// A connection of the view, or a new one if there is no view.
    async fn new(view: Option<Arc<View>>, spec: ServerRead, url: String) -> Result<Self> {
        let Some(view) = view else {
            let mut session = open(&spec, &url).await?;
            run(&mut session, BEGIN).await?;
            return Ok(PooledConnection { session: Some(session), view: None, _permit: None });
        };
        let gone = || {
            Error::transient("a connection that held the snapshot was lost")
                .hint("check the server's log; the job can be started again")
        };
        let permit = Arc::clone(&view.permits).acquire_owned().await.map_err(|_| gone())?;
        let session = view.idle.lock().unwrap_or_else(PoisonError::into_inner).pop().ok_or_else(gone)?;
        Ok(PooledConnection { session: Some(session), view: Some(view), _permit: Some(permit) })
    }

    fn session(&mut self) -> Result<&mut Session> {
        self.session.as_mut().ok_or_else(|| Error::internal("a connection was given back before its time"))
    }

    fn give_back(&mut self) {
        if let (Some(view), Some(session)) = (&self.view, self.session.take()) {
            view.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
        }
    }
}

/// Adds a row. Returns a batch if it is full.
fn add(rows: &mut Gathering, values: Vec<Value>, columns: usize) -> Result<Option<Rows>> {
    for value in values.iter().take(columns) {
        let cell = cell(rows.next_type(), value).map_err(|what| {
            rows.fault(what).hint("change or CAST such values in a `query`, such as nullif(x, '0000-00-00')")
        })?;
        rows.push(cell)?;
    }
    rows.end_row()
}

/// Converts a value of the binary protocol.
fn cell<'a>(data_type: &DataType, value: &'a Value) -> Result<Cell<'a>, &'static str> {
    Ok(match (value, data_type) {
        (Value::NULL, _) => Cell::Null,
        (Value::Int(number), _) => Cell::Integer((*number).into()),
        (Value::UInt(number), _) => Cell::Integer((*number).into()),
        (Value::Float(number), _) => Cell::Single(*number),
        (Value::Double(number), _) => Cell::Double(*number),
        (Value::Date(year, month, day, ..), DataType::Date32) => {
            Cell::Date(days(*year, *month, *day).ok_or("this is not a calendar date")?)
        }
        (Value::Date(year, month, day, hour, minute, second, micro), _) => {
            let days = days(*year, *month, *day).ok_or("this is not a calendar date")?;
            let seconds = i64::from(*hour) * 3600 + i64::from(*minute) * 60 + i64::from(*second);
            Cell::Timestamp((i64::from(days) * 86_400 + seconds) * 1_000_000 + i64::from(*micro))
        }
        (Value::Time(false, 0, hour, minute, second, micro), _) => {
            let seconds = i64::from(*hour) * 3600 + i64::from(*minute) * 60 + i64::from(*second);
            Cell::Time(seconds * 1_000_000 + i64::from(*micro))
        }
        (Value::Time(..), _) => return Err("this is not a time of day"),
        (Value::Bytes(bytes), DataType::Binary) => Cell::Bytes(bytes),
        (Value::Bytes(bytes), DataType::Decimal128(_, scale) | DataType::Decimal256(_, scale)) => {
            let text = std::str::from_utf8(bytes).map_err(|_| "this is not a decimal")?;
            Cell::Decimal(decimal(text, *scale).ok_or("this is not a decimal with the column's digits")?)
        }
        // A bit field comes as bytes, the highest first.
        (Value::Bytes(bytes), DataType::UInt64) if bytes.len() <= 8 => {
            Cell::Integer(bytes.iter().fold(0, |number, byte| number << 8 | i128::from(*byte)))
        }
        (Value::Bytes(bytes), _) => Cell::Text(std::str::from_utf8(bytes).map_err(|_| "the text is not UTF-8")?),
    })
}

/// Days since 1970-01-01; `None` for dates outside of the calendar, such as zeros.
fn days(year: u16, month: u8, day: u8) -> Option<i32> {
    let date = chrono::NaiveDate::from_ymd_opt(year.into(), month.into(), day.into())?;
    i32::try_from(date.signed_duration_since(chrono::NaiveDate::default()).num_days()).ok()
}

/// How the values of a column can be divided into ranges, if at all.
fn key(column: &Column) -> Option<Key> {
    match arrow_type(column) {
        DataType::Date32 | DataType::Timestamp(..) => Some(Key::Time),
        DataType::Decimal128(..) | DataType::Decimal256(..) => Some(Key::Number),
        number if number.is_numeric() && column.column_type() != ColumnType::MYSQL_TYPE_BIT => Some(Key::Number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::TimeUnit;

    use super::*;

    #[test]
    fn values_are_what_they_are() {
        let timestamp = DataType::Timestamp(TimeUnit::Microsecond, None);
        let value = Value::Date(1969, 12, 31, 23, 59, 59, 999_999);
        assert_eq!(cell(&timestamp, &value), Ok(Cell::Timestamp(-1)));
        assert_eq!(cell(&DataType::Date32, &Value::Date(1970, 1, 2, 0, 0, 0, 0)), Ok(Cell::Date(1)));
        assert!(cell(&DataType::Date32, &Value::Date(0, 0, 0, 0, 0, 0, 0)).is_err());
        assert!(cell(&DataType::Time64(TimeUnit::Microsecond), &Value::Time(true, 0, 1, 0, 0, 0)).is_err());
        assert_eq!(cell(&DataType::UInt64, &Value::Bytes(vec![1, 0])), Ok(Cell::Integer(256)));
    }
}
