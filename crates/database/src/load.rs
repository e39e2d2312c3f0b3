//! The statements of a load into a table of a server, as text. The trait separates a load, which is the same for all
//! servers, from their dialects.

use std::time::Duration;

use arrow::datatypes::{DataType, SchemaRef};

use crate::family::Family;
use crate::in_step::StepDialect;
use crate::order::Order;
use crate::table::{Bulk, BulkColumn, ColumnFacts, Index, TableFacts};

/// What publishing does with the rows that the target already has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Publish {
    /// Adds the new rows to them.
    Add,
    /// Replaces them.
    Instead,
    /// Updates those with the same key.
    Merge,
    /// Updates those with the same key, except for the ones that precede the new row in the declared order.
    MergeNewer,
    /// Keeps them, and leaves out new rows with the same key.
    Ignore,
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
impl Publish {
    /// Whether it updates rows with the same key.
    pub(crate) fn merges(self) -> bool {
        matches!(self, Publish::Merge | Publish::MergeNewer)
    }
}

/// What the rows that a statement changes are counted as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Not at all.
    Nothing,
    /// New rows.
    Inserted,
    /// Changed rows.
    Updated,
    /// New rows and changed ones: the connection tells them apart.
    Merged,
    /// Rows that were deleted, closed or flagged since they are missing.
    Deleted,
    /// New versions, before they are inserted.
    Versions,
    /// Rows that are not missing any more.
    Returned,
}

/// Why a table cannot be kept in step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepFault {
    /// Staged rows are outside of the scope.
    OutsideScope,
    /// Rows of the target that are outside of the scope have keys of staged ones.
    KeyOutsideScope,
    /// A version is not newer than the current one.
    NotNewer,
    /// A version would end before it began, since a clock was ahead then.
    ClockBehind,
    /// The target has times in a form that cannot be compared.
    NoTime,
}

/// One step of the transaction that moves staged rows into the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A statement.
    Change {
        /// The statement.
        sql: String,
        /// What its rows are counted as.
        counted: Counted,
        /// A query for how many rows it has to change, if the table may silently leave some out.
        expected: Option<String>,
    },
    /// A query for keys that must find none.
    Never {
        /// The query.
        sql: String,
        /// What is wrong if it does.
        fault: StepFault,
    },
}

impl Step {
    /// A statement whose rows are not counted.
    pub fn plain(sql: String) -> Self {
        Step::change(sql, Counted::Nothing)
    }

    /// A statement whose rows are counted.
    pub fn change(sql: String, counted: Counted) -> Self {
        Step::Change { sql, counted, expected: None }
    }

    /// The text of the statement or query.
    pub fn sql(&self) -> &str {
        let (Step::Change { sql, .. } | Step::Never { sql, .. }) = self;
        sql
    }
}

/// The key of rows, and which of several rows with one key stays.
#[derive(Debug, Clone, Copy)]
pub struct Key<'a> {
    /// The columns of the key.
    pub columns: &'a [String],
    /// The first row in this order stays. Of equal ones, a merge keeps the last to arrive, and other modes the first.
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

/// What a staging table has because of its rows' keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StagedKeys<'a> {
    /// Nothing.
    None,
    /// A column that numbers rows as they arrive.
    Arrival,
    /// No two rows with the same values of these columns, if the server can check that while it loads.
    Unique(&'a [String]),
}

/// A new table that replaces the target.
#[derive(Debug, Clone, Copy)]
pub struct NewTable<'a> {
    /// The target's name in the job.
    pub target: &'a str,
    /// Whether the target exists.
    pub exists: bool,
    /// The new table's own name.
    pub name: &'a str,
    /// The name for the old table, if it is not dropped.
    pub old_name: &'a str,
    /// Whether the new table has a primary key.
    pub has_key: bool,
}

/// How a kind of server writes the statements of a load.
pub trait LoadDialect: StepDialect {
    /// A table as the server names it in messages: without its schema.
    fn bare_table<'a>(&self, name: &'a str) -> &'a str {
        name
    }

    /// Whether what facts call a table says of which database of the server it is.
    fn names_have_database(&self) -> bool {
        false
    }

    /// The table `name` beside the table `target`, as SQL text.
    fn beside(&self, _target: &str, name: &str) -> String {
        self.quoted(name)
    }

    /// The family of the column type that [`crate::Dialect::column_type`] gives.
    fn family(&self, data_type: &DataType, is_key: bool) -> Family;

    /// The statement that creates a table with the columns of `schema`. A deferred key is added later.
    fn create_table(&self, table: &str, schema: &SchemaRef, key: &[String], deferred: bool) -> String;

    /// The statement that adds a key that [`LoadDialect::create_table`] has deferred.
    fn add_key(&self, table: &str, key: &[String]) -> String;

    /// The statement that drops an index of `table`.
    fn drop_index(&self, table: &str, name: &str) -> String;

    /// The statements that build indexes of `table`.
    fn create_indexes(&self, table: &str, indexes: &[Index]) -> Vec<String>;

    /// The statements that create a staging table with columns of the target's types.
    fn create_staging(
        &self,
        table: &str,
        target: &str,
        columns: &[String],
        keys: StagedKeys<'_>,
        facts: Option<&TableFacts>,
    ) -> Vec<String>;

    /// The statements that create a temporary table of the connection, like a staging table that numbers rows as they
    /// arrive.
    fn create_temporary(
        &self,
        table: &str,
        target: &str,
        columns: &[String],
        facts: Option<&TableFacts>,
    ) -> Vec<String>;

    /// The statement that empties it within a transaction; `None` if each transaction leaves it empty anyway.
    fn empty_temporary(&self, table: &str) -> Option<String> {
        Some(format!("DELETE FROM {table}"))
    }

    /// The statement that creates an empty copy of the target to replace it, or `None` if the copy would lack
    /// something.
    fn create_like(&self, table: &str, target: &str, facts: &TableFacts) -> Option<String>;

    /// Statements that add columns to the target and widen types.
    fn alter(&self, target: &str, added: &[(String, String)], widened: &[(ColumnFacts, String)]) -> Vec<String>;

    /// The bulk statement.
    fn bulk(&self, table: &str, columns: Vec<BulkColumn>, schema: &SchemaRef) -> Bulk;

    /// The bulk statement for a table that [`LoadDialect::create_table`] has created.
    fn bulk_into_own(&self, table: &str, columns: Vec<BulkColumn>, schema: &SchemaRef) -> Bulk {
        self.bulk(table, columns, schema)
    }

    /// The statement that deletes all rows of the target, within the open transaction.
    fn empty(&self, target: &str, facts: Option<&TableFacts>) -> String;

    /// The statements that move staged rows into the target, in one transaction.
    fn publish(
        &self,
        how: Publish,
        from: &str,
        into: &str,
        key: Key<'_>,
        columns: &[String],
        facts: Option<&TableFacts>,
    ) -> Vec<Step>;

    /// The statements that replace the target by a new table. If the server supports it, they run within the open
    /// transaction.
    fn swap(&self, new: NewTable<'_>) -> Vec<String>;

    /// Whether tables can be created, renamed and dropped inside of a transaction.
    fn transactional_tables(&self) -> bool;

    /// The last statement of a publishing transaction, if transactions have no names: it deletes one row of the staging
    /// table, so that the number of rows shows whether the transaction was committed.
    fn unstage_one(&self, _staging: &str) -> Option<String> {
        None
    }

    /// A query for the number of staged rows that waits for the end of a transaction with [`LoadDialect::unstage_one`].
    fn count_staged(&self, staging: &str) -> String {
        format!("SELECT COUNT(*) FROM {staging}")
    }

    /// The statement that sets the savepoint `millstream` after everything sent so far.
    fn next_savepoint(&self) -> &'static str;

    /// The statement that says how long a connection waits for a lock.
    fn wait_for_locks(&self, limit: Duration) -> String;

    /// One command that creates the ledger's table: `load_key` and `unit_key` of 64 characters, `chunk`, `attempt` of
    /// 16, `note`, `written_at`; the first three are the key.
    fn create_ledger(&self, table: &str, comment: &str) -> String;

    /// The same for a table with the notes of one staging table: it must not outlive the rows there.
    fn create_notes(&self, table: &str, comment: &str) -> String {
        self.create_ledger(table, comment)
    }

    /// One command that creates the table of positions: `load_key` and `place_key` of 64 characters, which are the key,
    /// `version`, `attempt` and `owner` of 16, `state` for a megabyte, `place` of 500 bytes, `written_at`. Its rows are
    /// few, and change all the time.
    fn create_positions(&self, table: &str, comment: &str) -> String;

    /// The statement after which each statement of a connection sees what was committed before it, if locking ones do
    /// not do so anyway.
    fn see_commits(&self) -> Option<&'static str> {
        None
    }

    /// A condition that holds where `column`, as SQL text, is `text` byte by byte, whatever its collation.
    fn is_exactly(&self, column: &str, text: &str) -> String;

    /// The suffix of a query that takes shared locks on its rows until the transaction ends.
    fn share_lock(&self) -> &'static str;

    /// Statements that lock a table against all other connections, and the one that unlocks it. They commit the open
    /// transaction.
    fn lock_table(&self, table: &str) -> (Vec<String>, &'static str);

    /// An expression for the whole seconds since a time.
    fn seconds_since(&self, time: &str) -> String;
}
