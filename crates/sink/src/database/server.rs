//! What a kind of database server gives: connections, names, types, statements. It owns the contract between the load,
//! which is the same for all, and the servers, which differ.

use std::fmt::Debug;
use std::ops::Range;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::{FieldRef, SchemaRef};
use async_trait::async_trait;
use millstream_core::{Error, RejectKind, Result};
use millstream_database::family::Family;
use millstream_database::{Place, TextRows};

use super::group::{Group, Rows};
use super::spec::DatabaseSpec;
use super::table::{ColumnFacts, TableFacts};

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

/// An index of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Index {
    pub(crate) name: String,
    /// What the server needs to build it again, in its own words.
    pub(crate) definition: String,
}

impl Index {
    /// As one text.
    pub(crate) fn kept(&self) -> String {
        format!("{}\n{}", self.name, self.definition)
    }

    /// From one text.
    pub(crate) fn of_kept(text: &str) -> Option<Self> {
        let (name, definition) = text.split_once('\n')?;
        Some(Index { name: name.to_owned(), definition: definition.to_owned() })
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

/// A connection, logged in.
#[async_trait]
pub(crate) trait Session: Send {
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
}

/// Where a bulk statement writes to, and in which form the rows are.
#[derive(Debug, Clone)]
pub(crate) struct Bulk {
    /// The statement of the fast way.
    pub(crate) statement: String,
    /// The table, quoted.
    pub(crate) table: String,
    pub(crate) columns: Vec<BulkColumn>,
    /// Whether rows are encoded in the server's binary form.
    pub(crate) binary: bool,
}

impl Bulk {
    /// The columns that the user knows: all but the order of arrival, which is the last.
    pub(crate) fn known_columns(&self) -> impl Iterator<Item = &BulkColumn> {
        self.columns.iter().filter(|column| column.name != ARRIVAL)
    }

    /// A row of text with tabs, for a message.
    pub(crate) fn shown_text(&self, row: &[u8]) -> String {
        let names: Vec<&str> = self.known_columns().map(|column| column.name.as_str()).collect();
        super::text::shown(&names, row.strip_suffix(b"\n").unwrap_or(row))
    }
}

/// A column of a bulk statement.
#[derive(Debug, Clone)]
pub(crate) struct BulkColumn {
    pub(crate) name: String,
    pub(crate) family: Family,
    /// Whether a null must not be sent, since the server would silently write a value of its own.
    pub(crate) replaces_null: bool,
}

impl BulkColumn {
    /// A column that takes a null, or refuses it.
    pub(crate) fn new(name: &str, family: Family) -> Self {
        BulkColumn { name: name.to_owned(), family, replaces_null: false }
    }
}

/// Turns rows into what the bulk path sends.
pub(crate) trait Encoder: Send {
    /// Adds rows of `batch` to `group`, from the row `from` on, until the group is full or the batch is at its end;
    /// returns the row to go on with. Rows that cannot be encoded go to the group's `refused`. `arrival` is the number
    /// of the batch's first row if the statement has a column for it.
    fn encode(&mut self, batch: &RecordBatch, from: usize, arrival: Option<u64>, group: &mut Group) -> Result<usize>;
}

/// The column of a staging table that counts rows as they arrive.
pub(crate) const ARRIVAL: &str = "_millstream_arrival";

/// What the publishing of staged rows does with those that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Publish {
    /// Adds to them.
    Add,
    /// Takes their place.
    Instead,
    /// Changes those with the same key.
    Merge,
    /// Leaves out those whose key is there.
    Ignore,
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

/// A kind of database server, and which one.
#[async_trait]
pub(crate) trait Server: Debug + Send + Sync {
    /// `mysql`, `postgres`.
    fn name(&self) -> &'static str;

    /// Where it is.
    fn place(&self) -> &Place;

    /// The product's name in messages.
    fn product(&self) -> &'static str;

    /// Connects and logs in, ready for loading.
    async fn connect(&self, spec: &DatabaseSpec) -> Result<Box<dyn Session>>;

    /// A name as SQL text.
    fn quoted(&self, name: &str) -> String;

    /// The target as SQL text; PostgreSQL's may name a schema.
    fn table(&self, spec: &DatabaseSpec) -> String {
        self.quoted(&spec.table)
    }

    /// The target as the server names it in messages: without its schema.
    fn bare_table<'a>(&self, spec: &'a DatabaseSpec) -> &'a str {
        &spec.table
    }

    /// A table of ours beside the target, as SQL text.
    fn beside(&self, _spec: &DatabaseSpec, name: &str) -> String {
        self.quoted(name)
    }

    /// The type of the column that is made for a field.
    fn column_type(&self, field: &FieldRef, is_key: bool) -> String;

    /// What there is to know of the target, if it is there.
    async fn describe(&self, session: &mut dyn Session, spec: &DatabaseSpec) -> Result<Option<TableFacts>, Failure>;

    /// Which of `rights` on the target, which is there, the user does not have, in the server's words. Takes no lock
    /// that could be waited for; what the server cannot tell like this is left out.
    async fn missing_rights(
        &self,
        session: &mut dyn Session,
        spec: &DatabaseSpec,
        rights: &[Right],
    ) -> Result<Vec<String>, Failure>;

    /// What can hold all values of a column type that is made by [`Server::column_type`].
    fn family(&self, field: &FieldRef, is_key: bool) -> Family;

    /// The statement that makes a table with the columns of `schema` and the key, unless that is deferred.
    fn create_table(&self, table: &str, spec: &DatabaseSpec, schema: &SchemaRef) -> String;

    /// The statement that gives a table the key which [`Server::create_table`] has deferred.
    fn add_key(&self, table: &str, spec: &DatabaseSpec) -> String;

    /// The indexes of the target that can wait for rows: those that no row is checked by, and of which the definition
    /// says all.
    async fn indexes(&self, session: &mut dyn Session, spec: &DatabaseSpec) -> Result<Vec<Index>, Failure>;

    /// The statement that drops an index of `table`.
    fn drop_index(&self, table: &str, name: &str) -> String;

    /// The statements that build indexes of `table`.
    fn create_indexes(&self, table: &str, indexes: &[Index]) -> Vec<String>;

    /// The statements that make a staging table with columns of the target's types.
    fn create_staging(
        &self,
        table: &str,
        target: &str,
        columns: &[String],
        arrival: bool,
        facts: Option<&TableFacts>,
    ) -> Vec<String>;

    /// The statement that makes an empty copy of the target to take its place, or nothing if that would lose something
    /// of it (`lost` then says what).
    fn create_like(&self, table: &str, target: &str, facts: &TableFacts) -> Option<String>;

    /// Statements that change the target so that it can take the rows: columns that are added, types that are widened.
    fn alter(&self, target: &str, added: &[(String, String)], widened: &[(ColumnFacts, String)]) -> Vec<String>;

    /// The bulk statement.
    fn bulk(&self, table: &str, columns: Vec<BulkColumn>, schema: &SchemaRef) -> Bulk;

    /// The same for a table that [`Server::create_table`] has made.
    fn bulk_into_own(&self, table: &str, columns: Vec<BulkColumn>, schema: &SchemaRef) -> Bulk {
        self.bulk(table, columns, schema)
    }

    /// An encoder for a bulk statement.
    fn encoder(&self, bulk: &Bulk, schema: &SchemaRef, spec: &DatabaseSpec) -> Box<dyn Encoder>;

    /// The values of one encoded row, for a message.
    fn shown(&self, bulk: &Bulk, row: &[u8]) -> String {
        bulk.shown_text(row)
    }

    /// The statement that deletes all rows of the target, as a part of the transaction that is open.
    fn empty(&self, target: &str, facts: Option<&TableFacts>) -> String;

    /// The statements that move staged rows into the target, run in one transaction. The number of rows that the last
    /// one changed is told.
    fn publish(
        &self,
        how: Publish,
        from: &str,
        into: &str,
        spec: &DatabaseSpec,
        columns: &[String],
        facts: Option<&TableFacts>,
    ) -> Vec<String>;

    /// The statements by which a new table takes the target's name. If the server has transactions for them they are
    /// part of one that is still open.
    fn swap(
        &self,
        new: &str,
        old: &str,
        spec: &DatabaseSpec,
        exists: bool,
        new_name: &str,
        old_name: &str,
    ) -> Vec<String>;

    /// Whether tables can be made, renamed and dropped inside of a transaction.
    fn transactional_tables(&self) -> bool;

    /// The name of the transaction that is open, by which its end can be asked for over another connection; `None` if
    /// the server has no such names.
    async fn transaction(&self, _session: &mut dyn Session) -> Result<Option<String>, Failure> {
        Ok(None)
    }

    /// Whether the transaction of that name was committed; `None` while that is open.
    async fn was_committed(&self, _session: &mut dyn Session, _name: &str) -> Result<Option<bool>, Failure> {
        Ok(None)
    }

    /// The last statement of a publishing transaction where transactions have no names: it takes one row from the
    /// staging table, so that their number tells the end.
    fn mark_staged(&self, _staging: &str) -> Option<String> {
        None
    }

    /// A query for the number of staged rows that waits for the end of a transaction that marks them.
    fn count_staged(&self, staging: &str) -> String {
        format!("SELECT COUNT(*) FROM {staging}")
    }

    /// The statement by which the savepoint `millstream` comes to stand behind all that was sent so far.
    fn next_savepoint(&self) -> &'static str;

    /// Takes a lock that is held as long as the connection lives; `false` if another connection has it.
    async fn lock(&self, session: &mut dyn Session, name: &str) -> Result<bool, Failure>;

    /// Gives it back.
    async fn unlock(&self, session: &mut dyn Session, name: &str) -> Result<(), Failure>;

    /// Marks a connection as one of `owner`'s, by which others find it.
    async fn mark(&self, session: &mut dyn Session, owner: &str) -> Result<(), Failure>;

    /// The connections with the mark of `owner` that the user may see.
    async fn sessions_of(&self, session: &mut dyn Session, owner: &str) -> Result<Vec<SeenSession>, Failure>;

    /// Ends a connection with the mark of `owner`, if it is still there: the server rolls back what it had not
    /// committed, which may take a moment.
    async fn end_session(&self, session: &mut dyn Session, owner: &str, id: &str) -> Result<(), Failure>;

    /// Which other connections have transactions open that may hold locks of `tables`, as far as the user may see them.
    async fn holders(&self, session: &mut dyn Session, tables: &[&str]) -> Result<Vec<SeenSession>, Failure>;

    /// The statement that says how long a connection waits for a lock.
    fn wait_for_locks(&self, limit: Duration) -> String;

    /// A text as SQL text.
    fn text(&self, text: &str) -> String;

    /// What creates the ledger's table, as one command: `load_key` and `unit_key` of 64 characters, `chunk`, `attempt`
    /// of 16, `note`, `written_at`; the first three are the key. Its comment is [`crate::ledger_version::mark`].
    fn create_ledger(&self, table: &str) -> String;

    /// The comment of the table `name` beside the target, empty if it has none; `None` if there is no such table.
    async fn comment(
        &self,
        session: &mut dyn Session,
        spec: &DatabaseSpec,
        name: &str,
    ) -> Result<Option<String>, Failure>;

    /// What a query ends with that keeps its rows as they are until the transaction ends, but lets others read them so
    /// too.
    fn share_lock(&self) -> &'static str;

    /// Statements that keep everyone else from a table, and the one that ends that. They commit what was open.
    fn lock_table(&self, table: &str) -> (Vec<String>, &'static str);

    /// An expression for the whole seconds since a time.
    fn seconds_since(&self, time: &str) -> String;

    /// The names of all tables beside the target that begin with `prefix`.
    async fn tables(
        &self,
        session: &mut dyn Session,
        spec: &DatabaseSpec,
        prefix: &str,
    ) -> Result<Vec<String>, Failure>;
}

/// What messages call the target: `table t of mysql://…`.
pub(crate) fn target_of(server: &dyn Server, spec: &DatabaseSpec) -> String {
    format!("table {} of {}", spec.table, server.place().shown)
}
