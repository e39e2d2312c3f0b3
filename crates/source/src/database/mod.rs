//! Tables and queries of databases as sources: rows with types.
//!
//! ```text
//!  list   the key's least and greatest value ─▶ ranges of it, one a unit; and one view of the data for all of them
//!  read   SELECT the columns that are used … WHERE the range ─▶ batches
//! ```
//! `kind.rs` is the trait of a kind of database, `query.rs` the SQL of a read, `parts.rs` divides the key into ranges,
//! `rows.rs` gathers values into batches, `absent.rs` is a table that does not exist, `window.rs` has rows by the time
//! in one of their columns; `postgres.rs`, `mysql.rs` and
//! `sqlite.rs` are the kinds of databases. `millstream-database` has endpoints, logins and dialects.

mod absent;
mod kind;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod parts;
#[cfg(feature = "postgres")]
mod postgres;
mod query;
mod rows;
pub mod spec;
mod sqlite;
mod window;

#[cfg(all(test, feature = "mysql", feature = "postgres"))]
mod tests;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::{Field, Schema, SchemaRef};
use async_trait::async_trait;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use millstream_core::format::{ParseRequest, Rows};
use millstream_core::registry::{Built, SourceEntry};
use millstream_core::source::{PlaceClock, RowSource, Source, SourceContext, TableName, Window};
use millstream_core::spec::{Fault, SpecInfo};
use millstream_core::{ByteStream, Error, Result, Unit};
use millstream_database::table_name;
use serde_json::Value;

use self::absent::Absent;
use self::kind::{Database, on_io};
use self::query::Query;
#[cfg(feature = "mysql")]
use self::spec::MysqlRead;
#[cfg(feature = "postgres")]
use self::spec::PostgresRead;
use self::spec::SqliteRead;

/// Separates the URL of a database and the condition of a unit.
const PART: char = '#';

/// The source `mysql`.
#[cfg(feature = "mysql")]
pub const MYSQL: SourceEntry = SourceEntry {
    spec: SpecInfo::of::<MysqlRead>(),
    schemes: &["mysql", "mariadb"],
    check: &check,
    rows: true,
    build: &|settings| {
        let MysqlRead(spec) = crate::settings(settings)?;
        let query = Query::new(&spec.table, &spec.query);
        let absent = Absent::new(spec.if_missing, query.as_ref(), &spec.columns);
        built(query, absent, mysql::Mysql::new(spec))
    },
};

/// The source `postgres`.
#[cfg(feature = "postgres")]
pub const POSTGRES: SourceEntry = SourceEntry {
    spec: SpecInfo::of::<PostgresRead>(),
    schemes: &["postgres", "postgresql"],
    check: &check,
    rows: true,
    build: &|settings| {
        let PostgresRead(spec) = crate::settings(settings)?;
        let query = Query::new(&spec.table, &spec.query);
        let absent = Absent::new(spec.if_missing, query.as_ref(), &spec.columns);
        built(query, absent, postgres::Postgres::new(spec))
    },
};

/// The source `sqlite`.
pub const SQLITE: SourceEntry = SourceEntry {
    spec: SpecInfo::of::<SqliteRead>(),
    schemes: &["sqlite"],
    check: &check,
    rows: true,
    build: &|settings: &Value| {
        let spec: SqliteRead = crate::settings(settings)?;
        let query = Query::new(&spec.table, &spec.query);
        let absent = Absent::new(spec.if_missing, query.as_ref(), &spec.columns);
        built(query, absent, sqlite::Sqlite::new(spec))
    },
};

fn built(query: Option<Query>, absent: Option<Absent>, database: impl Database + 'static) -> Built<dyn Source> {
    Ok(Arc::new(DatabaseSource { query, absent: absent.map(Arc::new), database: Arc::new(database) }))
}

/// Checks a URL as far as possible without its settings.
fn check(url: &str) -> Result<(), Fault> {
    match url.contains(PART) {
        true => Err(Fault::new("", format!("a database's URL has no `{PART}`")).hint("name the table in `table`")),
        false => Ok(()),
    }
}

/// A table or a query of a database.
#[derive(Debug)]
struct DatabaseSource {
    /// `None` if the job names neither; only reading needs one.
    query: Option<Query>,
    /// The table, if it may be missing.
    absent: Option<Arc<Absent>>,
    database: Arc<dyn Database>,
}

impl DatabaseSource {
    fn query(&self) -> Result<Query> {
        self.query.clone().ok_or_else(|| {
            let name = self.database.dialect().name();
            Error::job("neither a table nor a query is given")
                .hint(format!("add `{name}: {{table: NAME}}` or `{name}: {{query: SELECT …}}` to the source"))
        })
    }
}

impl DatabaseSource {
    /// The parts of all rows, or of those in a window.
    fn list_rows(
        &self,
        context: &SourceContext,
        pattern: &str,
        window: Option<Window>,
    ) -> BoxStream<'static, Result<Unit>> {
        let (query, database, url) = (self.query(), Arc::clone(&self.database), pattern.to_owned());
        let (io, absent) = (context.io.clone(), self.absent.clone());
        let listed = async move {
            let query = query?;
            let looking = url.clone();
            let conditions = on_io(&io, async move {
                match absent {
                    Some(absent) if absent.look(database.as_ref(), &looking).await? => Ok(vec![None]),
                    _ => conditions(database.as_ref(), &looking, &query, window.as_ref()).await,
                }
            });
            let units = conditions.await?.into_iter().map(move |condition| match condition {
                Some(condition) => Unit::new(format!("{url}{PART}{condition}")),
                None => Unit::new(url.clone()),
            });
            Ok(futures::stream::iter(units.map(Ok)))
        };
        futures::stream::once(listed).try_flatten().boxed()
    }
}

/// The conditions of the units of `query`. A window that has a beginning is one unit: few rows are new.
async fn conditions(
    database: &dyn Database,
    url: &str,
    query: &Query,
    window: Option<&Window>,
) -> Result<Vec<Option<String>>> {
    let is_late = window.is_some_and(|window| window.from.is_some());
    let within = match window {
        Some(window) => window::condition(database, url, query, window).await?,
        None => None,
    };
    let parts = if is_late { Vec::new() } else { database.parts(url, query).await? };
    if parts.is_empty() {
        return Ok(vec![within]);
    }
    let with = |part: String| match &within {
        Some(within) => format!("{part} AND {within}"),
        None => part,
    };
    Ok(parts.into_iter().map(with).map(Some).collect())
}

/// The database's URL and the condition of a unit.
fn parted(unit: &Unit) -> (&str, Option<&str>) {
    match unit.uri.split_once(PART) {
        Some((url, condition)) => (url, Some(condition)),
        None => (&unit.uri, None),
    }
}

#[async_trait]
impl Source for DatabaseSource {
    fn name(&self) -> &'static str {
        self.database.dialect().name()
    }

    fn table(&self, pattern: &str) -> Option<TableName> {
        let name = table_name(pattern, self.query.as_ref()?.table()?)?;
        name.database.starts_with(self.database.dialect().name()).then_some(name)
    }

    fn connections(&self) -> usize {
        self.database.connections()
    }

    fn list(&self, context: &SourceContext, pattern: &str) -> BoxStream<'static, Result<Unit>> {
        self.list_rows(context, pattern, None)
    }

    async fn open(&self, _: &SourceContext, unit: &Unit) -> Result<ByteStream> {
        Err(Error::job("a database gives rows, not bytes")
            .in_unit(parted(unit).0, None)
            .hint("read it as a source of a job without a format block"))
    }

    fn rows(&self) -> Option<&dyn RowSource> {
        Some(self)
    }
}

#[async_trait]
impl RowSource for DatabaseSource {
    async fn columns(&self, context: &SourceContext, pattern: &str) -> Result<SchemaRef> {
        let (query, database, url) = (self.query()?, Arc::clone(&self.database), pattern.to_owned());
        let absent = self.absent.clone();
        on_io(&context.io, async move {
            if let Some(absent) = absent
                && let Some(columns) = absent.columns(database.as_ref(), &url).await?
            {
                return Ok(columns);
            }
            database.columns(&url, &query).await
        })
        .await
    }

    fn read(&self, context: &SourceContext, unit: &Unit, request: &ParseRequest) -> BoxStream<'static, Result<Rows>> {
        let (url, condition) = parted(unit);
        if self.absent.as_ref().is_some_and(|absent| absent.is_lacking(url)) {
            return futures::stream::empty().boxed();
        }
        match self.query() {
            Ok(query) => self.database.read(context, url, &query, condition, request),
            Err(error) => futures::stream::once(async { Err(error) }).boxed(),
        }
    }

    fn check_window_column(&self, columns: &Schema, column: &str) -> Result<()> {
        window::check_column(columns, column, self.database.dialect())
    }

    async fn clock(
        &self,
        context: &SourceContext,
        pattern: &str,
        column: &Field,
        lag: Duration,
    ) -> Result<Option<PlaceClock>> {
        let (query, database, url) = (self.query()?, Arc::clone(&self.database), pattern.to_owned());
        let (absent, column) = (self.absent.clone(), column.clone());
        on_io(&context.io, async move {
            match absent {
                Some(absent) if absent.look(database.as_ref(), &url).await? => Ok(None),
                _ => window::clock(database.as_ref(), &url, &query, &column, lag).await.map(Some),
            }
        })
        .await
    }

    fn list_window(&self, context: &SourceContext, pattern: &str, window: &Window) -> BoxStream<'static, Result<Unit>> {
        self.list_rows(context, pattern, Some(window.clone()))
    }

    fn done(&self) {
        self.database.done();
    }
}
