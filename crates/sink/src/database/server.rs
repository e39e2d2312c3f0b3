//! The traits of a kind of database server: its connections, and the encoding of rows. The load is the same for all
//! servers. `millstream-database` has the dialects.

use std::fmt::Debug;
use std::ops::Range;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use millstream_core::{Error, RejectKind, Result};
use millstream_database::table::{Bulk, ForeignKey, Index, TableFacts};
use millstream_database::{Endpoint, LoadDialect, TextRows};

use super::group::{Group, Rows};
use super::spec::DatabaseSpec;

/// A failed statement, by what can be done about it.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server refuses some of the rows. Nothing of the statement stays once it is rolled back.
    Rows(Refusal),
    /// A retry can help: after a deadlock, or a lock timeout. `undone` says whether the server has rolled back the
    /// whole transaction, `waited` that it was a lock timeout.
    Again { error: Error, undone: bool, waited: bool },
    /// The connection is lost; the server rolls back its transaction.
    Lost(Error),
    /// Anything else.
    Other(Error),
}

/// A server's message about refused rows.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) column: Option<String>,
    pub(crate) reason: String,
    pub(crate) kind: RejectKind,
    pub(crate) hint: Option<&'static str>,
    /// How many rows of the statement come before the bad one, if known.
    pub(crate) at: Option<usize>,
    /// Whether that row would be refused regardless of other rows.
    pub(crate) by_itself: bool,
}

impl Failure {
    /// The error for a statement that sends no rows.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Failure::Rows(refusal) => {
                let error = Error::data("the database refuses what was loaded").cause(refusal.reason);
                let error = refusal.column.into_iter().fold(error, |error, column| error.column(column));
                refusal.hint.into_iter().fold(error, |error, hint| error.hint(hint))
            }
            Failure::Again { error, .. } | Failure::Lost(error) | Failure::Other(error) => error,
        }
    }
}

/// A session of the server, as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SeenSession {
    /// The server's id of it.
    pub(crate) id: String,
    /// Its user, origin and start, for a message.
    pub(crate) shown: String,
}

/// A connection to a server, logged in and ready for loading. Tables are named as in the job.
#[async_trait]
pub(crate) trait Connection: Send {
    /// Runs a statement. Returns how many rows it changed.
    async fn execute(&mut self, sql: &str) -> Result<u64, Failure>;

    /// Runs a statement of [`Counted::Merged`](millstream_database::load::Counted). Returns how many rows are new, and
    /// how many were changed.
    async fn merge(&mut self, sql: &str) -> Result<[u64; 2], Failure>;

    /// The rows of a query, as text.
    async fn query(&mut self, sql: &str) -> Result<TextRows, Failure>;

    /// Sends some of the rows by the bulk path, inside of the open transaction. After a failure the statement must be
    /// rolled back.
    async fn bulk(&mut self, into: &Bulk, rows: &Rows, range: Range<usize>) -> Result<(), Failure>;

    /// The slower method by which rows are sent, if any, and why; as text for the report.
    fn detour(&self) -> Option<String> {
        None
    }

    /// The facts about a table, if it exists.
    async fn describe(&mut self, table: &str) -> Result<Option<TableFacts>, Failure>;

    /// Which of `rights` on an existing table the user lacks, in the server's words. It waits for no locks; rights that
    /// cannot be checked like this are left out.
    async fn missing_rights(&mut self, table: &str, rights: &[Right]) -> Result<Vec<String>, Failure>;

    /// The indexes of a table that can be deferred: those that check no rows, and are fully described by their
    /// definition.
    async fn indexes(&mut self, table: &str) -> Result<Vec<Index>, Failure>;

    /// The foreign keys of the tables `by`, which are named as in [`TableFacts::name`], that refer to `table` and
    /// change or delete rows when one is deleted to which they refer.
    async fn cascading(&mut self, table: &str, by: &[&str]) -> Result<Vec<ForeignKey>, Failure>;

    /// The names of all tables beside `table` that begin with `prefix`.
    async fn tables(&mut self, table: &str, prefix: &str) -> Result<Vec<String>, Failure>;

    /// The comment of the table `name` beside `table`, empty if it has none; `None` if there is no such table.
    async fn comment(&mut self, table: &str, name: &str) -> Result<Option<String>, Failure>;

    /// The name of the open transaction, by which another connection can query its outcome; `None` if the server has no
    /// such names.
    async fn transaction(&mut self) -> Result<Option<String>, Failure> {
        Ok(None)
    }

    /// Whether the transaction of that name was committed; `None` while that is open.
    async fn was_committed(&mut self, _name: &str) -> Result<Option<bool>, Failure> {
        Ok(None)
    }

    /// Acquires a lock that is held as long as the connection lives; `false` if another connection has it.
    async fn lock(&mut self, name: &str) -> Result<bool, Failure>;

    /// Releases it.
    async fn unlock(&mut self, name: &str) -> Result<(), Failure>;

    /// Tags this connection with `owner`, so that others can find it.
    async fn tag(&mut self, owner: &str) -> Result<(), Failure>;

    /// The connections with the tag of `owner` that the user may see.
    async fn sessions_of(&mut self, owner: &str) -> Result<Vec<SeenSession>, Failure>;

    /// Ends a connection with the tag of `owner`, if it still exists: the server rolls back its transaction, which may
    /// take a moment.
    async fn end_session(&mut self, owner: &str, id: &str) -> Result<(), Failure>;

    /// Other connections with open transactions that may lock `tables`, as far as the user may see them.
    async fn holders(&mut self, tables: &[&str]) -> Result<Vec<SeenSession>, Failure>;
}

/// Encodes rows for the bulk path.
pub(crate) trait Encoder: Send {
    /// Adds rows of `batch` to `group`, from the row `from` on, until the group is full or the batch ends. Returns the
    /// next row. Rows that cannot be encoded are added to the group's `refused`. `arrival` is the number of the batch's
    /// first row if the statement has a column for it.
    fn encode(&mut self, batch: &RecordBatch, from: usize, arrival: Option<u64>, group: &mut Group) -> Result<usize>;
}

/// A right on the target that a load needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Right {
    /// To insert rows with these columns.
    Insert(Vec<String>),
    /// To change these columns.
    Update(Vec<String>),
    /// To remove all rows: by TRUNCATE, or by DELETE.
    Empty { truncates: bool },
}

/// A database server: its endpoint, its dialect, connections to it, and the encoding of rows.
#[async_trait]
pub(crate) trait Server: Debug + Send + Sync {
    /// Its endpoint.
    fn endpoint(&self) -> &Endpoint;

    /// Its dialect.
    fn dialect(&self) -> &'static dyn LoadDialect;

    /// Connects and logs in, ready for loading.
    async fn connect(&self, spec: &DatabaseSpec) -> Result<Box<dyn Connection>>;

    /// An encoder for a bulk statement.
    fn encoder(&self, bulk: &Bulk, schema: &SchemaRef, spec: &DatabaseSpec) -> Box<dyn Encoder>;

    /// The values of one encoded row, for a message.
    fn shown(&self, bulk: &Bulk, row: &[u8]) -> String {
        super::text::shown_row(bulk, row)
    }
}

/// The name of the target in messages: `table t of mysql://…`.
pub(crate) fn target_of(server: &dyn Server, spec: &DatabaseSpec) -> String {
    format!("table {} of {}", spec.table, server.endpoint().server.shown)
}
