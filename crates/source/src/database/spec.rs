//! What the job file may say of reading from databases.

use millstream_core::columns::Columns;
use millstream_core::spec::{Duration, Fault, Secret, Spec, TextOrSecret};
use millstream_database::{Access, Tls};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What happens if the table does not exist.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum IfMissing {
    /// The run fails.
    #[default]
    Fail,
    /// There are no rows, with the columns of `columns`. In SQLite the file may be missing, too.
    Empty,
}

/// A table or a query of a database server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ServerRead {
    /// The table or view. PostgreSQL: `schema.table` names one outside of the search path.
    #[schemars(length(min = 1))]
    pub table: Option<String>,
    /// A query, instead of a table.
    #[schemars(length(min = 1))]
    pub query: Option<String>,
    /// What happens if the table does not exist.
    pub if_missing: IfMissing,
    /// The columns of a table that does not exist, with `if_missing: empty`: names and types, in their order.
    pub columns: Columns,
    /// The column by whose values the rows are split into parts that several connections read: a number, a date or a
    /// time. By default it is the primary key of the table, if that is one such column. Without one, all rows come over
    /// one connection.
    #[schemars(length(min = 1))]
    pub split_by: Option<String>,
    /// How many connections read at once, from 1 to 64.
    #[schemars(range(min = 1, max = 64))]
    pub connections: usize,
    /// The user's name; one in the URL takes precedence.
    pub user: Option<TextOrSecret>,
    /// A reference to the password; one in the URL takes precedence.
    pub password: Option<Secret>,
    /// Whether the connection is encrypted and the server has to prove who it is. By default it is, except to this
    /// machine itself. `sslmode` in the URL takes precedence.
    pub tls: Option<Tls>,
    /// The path of a PEM file with certificates of authorities to trust besides the system's.
    #[schemars(length(min = 1))]
    pub ca: Option<String>,
    /// How long it may take to establish a connection.
    pub connect_timeout: Duration,
}

impl Default for ServerRead {
    fn default() -> Self {
        ServerRead {
            table: None,
            query: None,
            if_missing: IfMissing::Fail,
            columns: Columns::default(),
            split_by: None,
            connections: 2,
            user: None,
            password: None,
            tls: None,
            ca: None,
            connect_timeout: Duration::from_seconds(10),
        }
    }
}

impl ServerRead {
    /// What it says of access to the server.
    pub(super) fn access(&self) -> Access {
        Access {
            key: "read",
            user: self.user.clone(),
            password: self.password.clone(),
            tls: self.tls,
            ca: self.ca.clone(),
        }
    }

    fn faults(&self) -> Vec<Fault> {
        let mut faults = what_faults(self.table.as_deref(), self.query.as_deref());
        faults.extend(missing_faults(self.if_missing, &self.columns, self.query.is_some()));
        if !(1..=64).contains(&self.connections) {
            faults.push(Fault::new("connections", "connections are from 1 to 64"));
        }
        if self.connect_timeout.0.is_zero() {
            let hint = "write a time such as 10s";
            faults.push(Fault::new("connect_timeout", "the time must be longer than 0").hint(hint));
        }
        faults
    }
}

/// What is wrong with what is to be read.
fn what_faults(table: Option<&str>, query: Option<&str>) -> Vec<Fault> {
    let mut faults = Vec::new();
    if table.is_some() && query.is_some() {
        faults.push(Fault::new("query", "both a table and a query are given").hint("leave one of them out"));
    }
    for (key, text) in [("table", table), ("query", query)] {
        if text.is_some_and(|text| text.trim().is_empty() || text.contains('\0')) {
            faults.push(Fault::new(key, format!("the {key} is empty, or holds a NUL byte")));
        }
    }
    faults
}

/// What is wrong with what is said of a table that does not exist.
fn missing_faults(if_missing: IfMissing, columns: &Columns, is_query: bool) -> Vec<Fault> {
    let mut faults = columns.check("columns");
    faults.extend(columns.nameless("columns"));
    match if_missing {
        IfMissing::Empty if columns.is_empty() => faults.push(
            Fault::new("if_missing", "the columns of a table that does not exist are not known")
                .hint("name them with their types: `columns: {id: int64, name: utf8}`"),
        ),
        IfMissing::Empty if is_query => faults.push(
            Fault::new("if_missing", "`if_missing` with a query")
                .hint("it is for a `table`: which tables a query needs is not known"),
        ),
        IfMissing::Fail if !columns.is_empty() => faults.push(
            Fault::new("columns", "a database says which columns a table has")
                .hint("leave `columns` out; with `if_missing: empty` they are those of a table that does not exist"),
        ),
        IfMissing::Empty | IfMissing::Fail => {}
    }
    faults
}

/// A table or a query of MySQL or MariaDB.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct MysqlRead(pub ServerRead);

impl Spec for MysqlRead {
    const NAME: &'static str = "mysql";
    const SUMMARY: &'static str = "A table or a query of MySQL or MariaDB, read by several connections.";
    const EXAMPLE: &'static str = "\
read: mysql://etl@db.example/forum
mysql: {table: posts, password: {secret: env:DB_PASSWORD}}
";

    fn check(&self) -> Vec<Fault> {
        self.0.faults()
    }
}

/// A table or a query of PostgreSQL.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct PostgresRead(pub ServerRead);

impl Spec for PostgresRead {
    const NAME: &'static str = "postgres";
    const SUMMARY: &'static str = "A table or a query of PostgreSQL, read by several connections.";
    const EXAMPLE: &'static str = "\
read: postgres://etl@db.example/forum
postgres:
  query: SELECT id, title, edited_at FROM posts WHERE NOT hidden
  split_by: id
  password: {secret: env:DB_PASSWORD}
";

    fn check(&self) -> Vec<Fault> {
        self.0.faults()
    }
}

/// A table or a query of a SQLite database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SqliteRead {
    /// The table or view.
    #[schemars(length(min = 1))]
    pub table: Option<String>,
    /// A query, instead of a table.
    #[schemars(length(min = 1))]
    pub query: Option<String>,
    /// What happens if the table does not exist.
    pub if_missing: IfMissing,
    /// The columns of a table that does not exist, with `if_missing: empty`: names and types, in their order.
    pub columns: Columns,
    /// How long to wait while another process holds the database.
    pub busy_timeout: Duration,
}

impl Default for SqliteRead {
    fn default() -> Self {
        SqliteRead {
            table: None,
            query: None,
            if_missing: IfMissing::Fail,
            columns: Columns::default(),
            busy_timeout: Duration::from_seconds(30),
        }
    }
}

impl Spec for SqliteRead {
    const NAME: &'static str = "sqlite";
    const SUMMARY: &'static str = "A table or a query of a SQLite database.";
    const EXAMPLE: &'static str = "\
read: sqlite:data/geonames.db
sqlite: {table: places}
";

    fn check(&self) -> Vec<Fault> {
        let mut faults = what_faults(self.table.as_deref(), self.query.as_deref());
        faults.extend(missing_faults(self.if_missing, &self.columns, self.query.is_some()));
        faults
    }
}
