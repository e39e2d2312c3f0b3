//! What a kind of database server gives a load: connections, and the form of rows that it takes. It owns the contract
//! between the load, which is the same for all, and the servers, which differ; what they write as SQL is
//! `millstream-database`'s.

use std::fmt::Debug;
use std::ops::Range;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use millstream_core::{Error, RejectKind, Result};
use millstream_database::table::{Bulk, Index, TableFacts};
use millstream_database::{LoadDialect, Place, TextRows};

use super::group::{Group, Rows};
use super::spec::DatabaseSpec;

/// Why a statement failed, by what can be done about it.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server does not take some of the rows. Nothing of the statement stays once it is rolled back.
    Rows(Refusal),
    /// Trying again can help: a deadlock, a lock that was not given in time. `undone` says whether the server has
    /// rolled back the whole transaction, `waited` that it is a lock that somebody holds.
    Again { error: Error, undone: bool, waited: bool },
    /// The connection is lost; what it had not committed is rolled back by the server.
    Lost(Error),
    /// Anything else.
    Other(Error),
}

/// What a server says of rows that it does not take.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) column: Option<String>,
    pub(crate) reason: String,
    pub(crate) kind: RejectKind,
    pub(crate) hint: Option<&'static str>,
    /// How many rows of the statement come before the bad one, if the server tells.
    pub(crate) at: Option<usize>,
    /// Whether that row would be refused whatever other rows there are.
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

/// A connection that somebody has, as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SeenSession {
    /// What the server calls it.
    pub(crate) id: String,
    /// Who has it from where and since when, for a message.
    pub(crate) shown: String,
}

/// A connection to a server, logged in and ready for loading: what is asked of the server, and sent to it. Tables are
/// named as the job names them.
#[async_trait]
pub(crate) trait Connection: Send {
    /// Runs a statement; how many rows it changed.
    async fn execute(&mut self, sql: &str) -> Result<u64, Failure>;

    /// The rows of a query, as text.
    async fn query(&mut self, sql: &str) -> Result<TextRows, Failure>;

    /// Sends some of the rows by the bulk path, inside of the transaction that is open. After a failure the statement
    /// must be rolled back.
    async fn bulk(&mut self, into: &Bulk, rows: &Rows, range: Range<usize>) -> Result<(), Failure>;

    /// How rows are sent by another way than the fast one, and why; in words for the report.
    fn detour(&self) -> Option<String> {
        None
    }

    /// What there is to know of a table, if it is there.
    async fn describe(&mut self, table: &str) -> Result<Option<TableFacts>, Failure>;

    /// Which of `rights` on a table, which is there, the user does not have, in the server's words. Takes no lock that
    /// could be waited for; what the server cannot tell like this is left out.
    async fn missing_rights(&mut self, table: &str, rights: &[Right]) -> Result<Vec<String>, Failure>;

    /// The indexes of a table that can wait for rows: those that no row is checked by, and of which the definition says
    /// all.
    async fn indexes(&mut self, table: &str) -> Result<Vec<Index>, Failure>;

    /// The names of all tables beside `table` that begin with `prefix`.
    async fn tables(&mut self, table: &str, prefix: &str) -> Result<Vec<String>, Failure>;

    /// The comment of the table `name` beside `table`, empty if it has none; `None` if there is no such table.
    async fn comment(&mut self, table: &str, name: &str) -> Result<Option<String>, Failure>;

    /// The name of the transaction that is open, by which its end can be asked for over another connection; `None` if
    /// the server has no such names.
    async fn transaction(&mut self) -> Result<Option<String>, Failure> {
        Ok(None)
    }

    /// Whether the transaction of that name was committed; `None` while that is open.
    async fn was_committed(&mut self, _name: &str) -> Result<Option<bool>, Failure> {
        Ok(None)
    }

    /// Takes a lock that is held as long as the connection lives; `false` if another connection has it.
    async fn lock(&mut self, name: &str) -> Result<bool, Failure>;

    /// Gives it back.
    async fn unlock(&mut self, name: &str) -> Result<(), Failure>;

    /// Marks this connection as one of `owner`'s, by which others find it.
    async fn mark(&mut self, owner: &str) -> Result<(), Failure>;

    /// The connections with the mark of `owner` that the user may see.
    async fn sessions_of(&mut self, owner: &str) -> Result<Vec<SeenSession>, Failure>;

    /// Ends a connection with the mark of `owner`, if it is still there: the server rolls back what it had not
    /// committed, which may take a moment.
    async fn end_session(&mut self, owner: &str, id: &str) -> Result<(), Failure>;

    /// Which other connections have transactions open that may hold locks of `tables`, as far as the user may see them.
    async fn holders(&mut self, tables: &[&str]) -> Result<Vec<SeenSession>, Failure>;
}

/// Turns rows into what the bulk path sends.
pub(crate) trait Encoder: Send {
    /// Adds rows of `batch` to `group`, from the row `from` on, until the group is full or the batch is at its end;
    /// returns the row to go on with. Rows that cannot be encoded go to the group's `refused`. `arrival` is the number
    /// of the batch's first row if the statement has a column for it.
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

/// A database server: where it is, how it writes SQL, connections to it, and the form of rows that it takes.
#[async_trait]
pub(crate) trait Server: Debug + Send + Sync {
    /// Where it is.
    fn place(&self) -> &Place;

    /// How it writes SQL.
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

/// What messages call the target: `table t of mysql://…`.
pub(crate) fn target_of(server: &dyn Server, spec: &DatabaseSpec) -> String {
    format!("table {} of {}", spec.table, server.place().shown)
}
