//! Reading from SQLite: one statement on a blocking thread, which passes on its batches.
//!
//! In SQLite values have types, but columns do not. So the first rows decide the type of a column: whole numbers,
//! numbers with a fraction, text or bytes. A later value of another kind is an error with its row.

use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use millstream_core::format::{ParseRequest, Rows, TEXT};
use millstream_core::source::SourceContext;
use millstream_core::{Error, Result};
use millstream_database::Dialect;
use millstream_database::sqlite::{self, Access, LockWait, SqliteDialect, path_of};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Statement};
use tokio::sync::mpsc;

use super::kind::{Database, WallClock};
use super::query::{Query, list};
use super::rows::{Cell, Gathering};
use super::spec::SqliteRead;

/// How many rows decide the types of columns.
const LOOKED_AT: usize = 1_000;

/// Batches that wait to be taken.
const AHEAD: usize = 2;

/// SQLite databases.
#[derive(Debug)]
pub(super) struct Sqlite {
    spec: SqliteRead,
}

impl Sqlite {
    pub(super) fn new(spec: SqliteRead) -> Self {
        Sqlite { spec }
    }
}

fn open(spec: &SqliteRead, path: &str) -> Result<Connection> {
    if !Path::new(path).exists() {
        return Err(Error::refused(format!("there is no file {path}")).hint("check the path after `sqlite:`"));
    }
    let mut connection = sqlite::open(Path::new(path), Access::Read).map_err(|cause| fault(path, &cause))?;
    LockWait::new(spec.busy_timeout.0).apply(&mut connection).map_err(|cause| fault(path, &cause))?;
    Ok(connection)
}

fn fault(path: &str, cause: &rusqlite::Error) -> Error {
    let error = Error::refused(format!("{path} cannot be read")).cause(cause);
    // The query is wrong in itself; a table may be created yet.
    let is_mistake = matches!(cause, rusqlite::Error::SqlInputError { error, .. }
        if error.code == rusqlite::ErrorCode::Unknown);
    let error = if is_mistake && !cause.to_string().contains("no such table") { error.lasting() } else { error };
    match cause.sqlite_error_code() {
        Some(rusqlite::ErrorCode::NotADatabase) => error.hint("it is not a SQLite database"),
        Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked) => {
            error.hint("another process holds it: wait until it ends, or raise `busy_timeout`")
        }
        _ => error.hint("try the query with the command sqlite3"),
    }
}

fn prepare<'c>(connection: &'c Connection, path: &str, statement: &str) -> Result<Statement<'c>> {
    connection.prepare(statement).map_err(|cause| fault(path, &cause))
}

/// The columns of a query, from its first rows.
fn columns(spec: &SqliteRead, path: &str, query: &Query) -> Result<SchemaRef> {
    let connection = open(spec, path)?;
    let mut statement = prepare(&connection, path, &query.statement("*", None, &SqliteDialect))?;
    let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
    let mut types: Vec<Option<DataType>> = vec![None; names.len()];
    let mut rows = statement.query([]).map_err(|cause| fault(path, &cause))?;
    for _ in 0..LOOKED_AT {
        let Some(row) = rows.next().map_err(|cause| fault(path, &cause))? else { break };
        for (index, known) in types.iter_mut().enumerate() {
            let value = row.get_ref(index).map_err(|cause| fault(path, &cause))?;
            *known = wider(known.take(), kind(value));
        }
    }
    let fields = names.into_iter().zip(types);
    let fields = fields.map(|(name, found)| Field::new(name, found.unwrap_or(TEXT), true));
    Ok(Arc::new(Schema::new(fields.collect::<Vec<_>>())))
}

/// Whether there is no table or view of this name, or no database yet.
fn lacks(spec: &SqliteRead, path: &str, table: &str) -> Result<bool> {
    if !Path::new(path).exists() {
        return Ok(true);
    }
    let connection = open(spec, path)?;
    let query = "SELECT NOT EXISTS (SELECT 1 FROM sqlite_schema WHERE lower(name) = lower(?1) AND type IN ('table', \
                 'view'))";
    connection.query_row(query, [table], |row| row.get(0)).map_err(|cause| fault(path, &cause))
}

/// The values of the first row of `sql`, as text.
fn answer(spec: &SqliteRead, path: &str, sql: &str) -> Result<Vec<Option<String>>> {
    let connection = open(spec, path)?;
    let mut statement = prepare(&connection, path, sql)?;
    let count = statement.column_count();
    let mut rows = statement.query([]).map_err(|cause| fault(path, &cause))?;
    let Some(row) = rows.next().map_err(|cause| fault(path, &cause))? else { return Ok(Vec::new()) };
    let value = |index| {
        let value = row.get_ref(index).map_err(|cause| fault(path, &cause))?;
        Ok(match value {
            ValueRef::Null => None,
            ValueRef::Integer(number) => Some(number.to_string()),
            ValueRef::Real(number) => Some(number.to_string()),
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        })
    };
    (0..count).map(value).collect()
}

/// The type of a value; none of a null.
fn kind(value: ValueRef<'_>) -> Option<DataType> {
    match value {
        ValueRef::Null => None,
        ValueRef::Integer(_) => Some(DataType::Int64),
        ValueRef::Real(_) => Some(DataType::Float64),
        ValueRef::Text(_) => Some(TEXT),
        ValueRef::Blob(_) => Some(DataType::Binary),
    }
}

/// The type that holds values of both.
fn wider(one: Option<DataType>, other: Option<DataType>) -> Option<DataType> {
    match (one, other) {
        (Some(one), Some(other)) if one == other => Some(one),
        (Some(DataType::Int64 | DataType::Float64), Some(DataType::Int64 | DataType::Float64)) => {
            Some(DataType::Float64)
        }
        (Some(_), Some(_)) => Some(TEXT),
        (one, other) => one.or(other),
    }
}

/// Reads all rows and passes them on, until the receiver is dropped.
fn read(
    spec: &SqliteRead,
    path: &str,
    sql: &str,
    request: &ParseRequest,
    to: &mpsc::Sender<Result<Rows>>,
) -> Result<()> {
    let connection = open(spec, path)?;
    let mut statement = prepare(&connection, path, sql)?;
    let mut gathering = Gathering::new(request)?;
    let mut rows = statement.query([]).map_err(|cause| fault(path, &cause))?;
    while let Some(row) = rows.next().map_err(|cause| fault(path, &cause))? {
        for index in 0..request.projection.len() {
            let value = row.get_ref(index).map_err(|cause| fault(path, &cause))?;
            let cell = match value {
                ValueRef::Null => Cell::Null,
                ValueRef::Integer(number) => Cell::Integer(number.into()),
                ValueRef::Real(number) => Cell::Double(number),
                ValueRef::Text(text) => {
                    Cell::Text(std::str::from_utf8(text).map_err(|_| gathering.fault("the text is not UTF-8"))?)
                }
                ValueRef::Blob(bytes) => Cell::Bytes(bytes),
            };
            gathering.push(cell)?;
        }
        if let Some(full) = gathering.end_row()?
            && to.blocking_send(Ok(full)).is_err()
        {
            return Ok(());
        }
    }
    if let Some(rest) = gathering.finish()? {
        // If the receiver is gone, the rows are not needed any more.
        let _ = to.blocking_send(Ok(rest));
    }
    Ok(())
}

#[async_trait]
impl Database for Sqlite {
    fn dialect(&self) -> &'static dyn Dialect {
        &SqliteDialect
    }

    fn connections(&self) -> usize {
        1
    }

    async fn columns(&self, url: &str, query: &Query) -> Result<SchemaRef> {
        let (spec, path, query) = (self.spec.clone(), path_of(url).to_owned(), query.clone());
        let looked = tokio::task::spawn_blocking(move || columns(&spec, &path, &query)).await;
        looked.map_err(|cause| Error::internal("looking at a database failed").cause(cause))?
    }

    async fn lacks(&self, url: &str, table: &str) -> Result<bool> {
        let (spec, path, table) = (self.spec.clone(), path_of(url).to_owned(), table.to_owned());
        let looked = tokio::task::spawn_blocking(move || lacks(&spec, &path, &table)).await;
        looked.map_err(|cause| Error::internal("looking at a database failed").cause(cause))?
    }

    async fn parts(&self, _: &str, _: &Query) -> Result<Vec<String>> {
        // Connections cannot share a snapshot, and one reads as fast as a core can process the rows.
        Ok(Vec::new())
    }

    async fn answer(&self, url: &str, sql: &str) -> Result<Vec<Option<String>>> {
        let (spec, path, sql) = (self.spec.clone(), path_of(url).to_owned(), sql.to_owned());
        let asked = tokio::task::spawn_blocking(move || answer(&spec, &path, &sql)).await;
        asked.map_err(|cause| Error::internal("asking a database failed").cause(cause))?
    }

    /// Its own functions give times in UTC.
    fn wall_clock(&self) -> WallClock {
        WallClock {
            now: "SELECT CAST(strftime('%s', 'now') AS INTEGER) * 1000000, 'UTC'",
            reading: |moment| format!("CAST(strftime('%s', '{moment}') AS INTEGER)"),
            earliest: |readings| format!("SELECT min({readings}) * 1000000"),
        }
    }

    fn not_a_time(&self, column: &str) -> Option<String> {
        let form = "[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9][ T][0-2][0-9]:[0-5][0-9]:[0-6][0-9]*";
        let rest = format!("substr({column}, 20)");
        Some(format!(
            "(typeof({column}) <> 'text' OR {column} NOT GLOB '{form}' OR NOT ({rest} IN ('', 'Z') OR ({rest} GLOB \
             '.[0-9]*' AND rtrim(substr({rest}, 2), 'Z') NOT GLOB '*[^0-9]*')))"
        ))
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
        let columns = schema.fields().iter().map(|field| SqliteDialect.quoted(field.name()));
        let sql = query.statement(&list(columns), condition, &SqliteDialect);
        let (spec, path, request) = (self.spec.clone(), path_of(url).to_owned(), request.clone());
        let (sender, mut receiver) = mpsc::channel(AHEAD);
        context.io.spawn_blocking(move || {
            if let Err(error) = read(&spec, &path, &sql, &request, &sender) {
                let _ = sender.blocking_send(Err(error));
            }
        });
        futures::stream::poll_fn(move |task| receiver.poll_recv(task)).boxed()
    }
}
