//! The statements of a load into a table of a server, as text. It owns the contract between a load, which goes the same
//! way for all servers, and their dialects, which differ.

use std::time::Duration;

use arrow::datatypes::{DataType, SchemaRef};

use crate::dialect::Dialect;
use crate::family::Family;
use crate::order::Order;
use crate::table::{Bulk, BulkColumn, ColumnFacts, Index, TableFacts};

/// What the publishing of staged rows does with those that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Publish {
    /// Adds to them.
    Add,
    /// Takes their place.
    Instead,
    /// Changes those with the same key.
    Merge,
    /// Leaves out those whose key is there.
    Ignore,
}

/// What tells rows from each other, and which of several with one key stays.
#[derive(Debug, Clone, Copy)]
pub struct Key<'a> {
    /// The columns of the key.
    pub columns: &'a [String],
    /// The first row in this order stays; of those that it does not tell apart the last to arrive in a merge, and else
    /// the first.
    pub order: &'a [Order],
}

impl Key<'_> {
    /// Whether a column is in the key.
    pub fn has(&self, name: &str) -> bool {
        is_in(self.columns, name)
    }
}

/// Whether `columns` have one of this name; capitals may differ.
pub(crate) fn is_in(columns: &[String], name: &str) -> bool {
    columns.iter().any(|column| column.eq_ignore_ascii_case(name))
}

/// A new table that takes the target's name.
#[derive(Debug, Clone, Copy)]
pub struct NewTable<'a> {
    /// The target's name, as the job has it.
    pub target: &'a str,
    /// Whether there is a table of this name.
    pub exists: bool,
    /// The new table's own name.
    pub name: &'a str,
    /// The name that the former table gets, if it is not dropped.
    pub old_name: &'a str,
    /// Whether the new table has a primary key.
    pub has_key: bool,
}

/// How a kind of server writes the statements of a load.
pub trait LoadDialect: Dialect {
    /// A table as the server names it in messages: without its schema.
    fn bare_table<'a>(&self, name: &'a str) -> &'a str {
        name
    }

    /// The table `name` beside the table `target`, as SQL text.
    fn beside(&self, _target: &str, name: &str) -> String {
        self.quoted(name)
    }

    /// What can hold all values of the column type that [`Dialect::column_type`] gives.
    fn family(&self, data_type: &DataType, is_key: bool) -> Family;

    /// The statement that makes a table with the columns of `schema`. A key that is deferred is added later.
    fn create_table(&self, table: &str, schema: &SchemaRef, key: &[String], deferred: bool) -> String;

    /// The statement that gives a table the key which [`LoadDialect::create_table`] has deferred.
    fn add_key(&self, table: &str, key: &[String]) -> String;

    /// The statement that drops an index of `table`.
    fn drop_index(&self, table: &str, name: &str) -> String;

    /// The statements that build indexes of `table`.
    fn create_indexes(&self, table: &str, indexes: &[Index]) -> Vec<String>;

    /// The statements that make a staging table with columns of the target's types, and one that counts rows as they
    /// arrive.
    fn create_staging(
        &self,
        table: &str,
        target: &str,
        columns: &[String],
        arrival: bool,
        facts: Option<&TableFacts>,
    ) -> Vec<String>;

    /// The statement that makes an empty copy of the target to take its place, or nothing if that would lose something
    /// of it.
    fn create_like(&self, table: &str, target: &str, facts: &TableFacts) -> Option<String>;

    /// Statements that change the target so that it can take the rows: columns that are added, types that are widened.
    fn alter(&self, target: &str, added: &[(String, String)], widened: &[(ColumnFacts, String)]) -> Vec<String>;

    /// The bulk statement.
    fn bulk(&self, table: &str, columns: Vec<BulkColumn>, schema: &SchemaRef) -> Bulk;

    /// The same for a table that [`LoadDialect::create_table`] has made.
    fn bulk_into_own(&self, table: &str, columns: Vec<BulkColumn>, schema: &SchemaRef) -> Bulk {
        self.bulk(table, columns, schema)
    }

    /// The statement that deletes all rows of the target, as a part of the transaction that is open.
    fn empty(&self, target: &str, facts: Option<&TableFacts>) -> String;

    /// The statements that move staged rows into the target, run in one transaction. The number of rows that the last
    /// one changed is reported.
    fn publish(
        &self,
        how: Publish,
        from: &str,
        into: &str,
        key: Key<'_>,
        columns: &[String],
        facts: Option<&TableFacts>,
    ) -> Vec<String>;

    /// The statements by which a new table takes the target's name. If the server has transactions for them they are
    /// part of one that is still open.
    fn swap(&self, new: NewTable<'_>) -> Vec<String>;

    /// Whether tables can be made, renamed and dropped inside of a transaction.
    fn transactional_tables(&self) -> bool;

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

    /// The statement that says how long a connection waits for a lock.
    fn wait_for_locks(&self, limit: Duration) -> String;

    /// What creates the ledger's table, as one command: `load_key` and `unit_key` of 64 characters, `chunk`, `attempt`
    /// of 16, `note`, `written_at`; the first three are the key.
    fn create_ledger(&self, table: &str, comment: &str) -> String;

    /// What a query ends with that keeps its rows as they are until the transaction ends, but lets others read them so
    /// too.
    fn share_lock(&self) -> &'static str;

    /// Statements that keep everyone else from a table, and the one that ends that. They commit what was open.
    fn lock_table(&self, table: &str) -> (Vec<String>, &'static str);

    /// An expression for the whole seconds since a time.
    fn seconds_since(&self, time: &str) -> String;
}
