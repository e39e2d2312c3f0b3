//! Facts about a table of a server and about a bulk statement, from which SQL is written. The sinks query them.

use crate::family::Family;

/// Facts about a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableFacts {
    /// What it is, if it is not a table: `a view`.
    pub other: Option<String>,
    /// Why a load into it cannot be rolled back: `its engine is Aria`.
    pub unsafe_engine: Option<String>,
    /// What prevents replacing the table by a new one: views on it, foreign keys to it.
    pub dependents: Vec<String>,
    /// Whether a table with the same definition would lack something: triggers, foreign keys.
    pub has_more: bool,
    /// Whether its triggers or rules may silently leave rows out.
    pub may_drop: bool,
    /// Its columns.
    pub columns: Vec<ColumnFacts>,
    /// The columns of each unique key.
    pub unique: Vec<Vec<String>>,
    /// The tables to which its foreign keys refer, itself left out. They have the names that [`TableFacts::name`] has.
    pub refers_to: Vec<String>,
    /// What tells it from all other tables of the database; of the server, where
    /// [`crate::load::LoadDialect::names_have_database`] says so.
    pub name: String,
    /// What else the server checks in single rows: `CONSTRAINT few CHECK (n < 5)`.
    pub checks: Vec<String>,
}

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnFacts {
    /// Its name.
    pub name: String,
    /// The type as the server writes it.
    pub declared: String,
    /// The family of its type.
    pub family: Family,
    /// Whether its type is a domain, which is not widened.
    pub is_domain: bool,
    /// Whether it may be null.
    pub nullable: bool,
    /// Whether it needs a value and has no default.
    pub required: bool,
    /// Whether the server computes it.
    pub generated: bool,
    /// Whether the server silently replaces a null by a value of its own.
    pub replaces_null: bool,
    /// The rest of the column's declaration, which a change of the type has to repeat.
    pub rest: String,
}

impl TableFacts {
    /// The column of this name; the case may differ if no name matches exactly.
    pub fn column(&self, name: &str) -> Option<&ColumnFacts> {
        self.columns
            .iter()
            .find(|column| column.name == name)
            .or_else(|| self.columns.iter().find(|column| column.name.eq_ignore_ascii_case(name)))
    }

    /// Whether exactly the columns of the key are unique.
    pub fn has_unique_key(&self, key: &[String]) -> bool {
        self.unique.iter().any(|unique| same_columns(unique, key))
    }

    /// Whether there is a unique key of other columns than those of `key`.
    pub fn has_other_unique(&self, key: &[String]) -> bool {
        self.unique.iter().any(|unique| !same_columns(unique, key))
    }
}

fn same_columns(left: &[String], right: &[String]) -> bool {
    left.len() == right.len() && left.iter().all(|one| right.iter().any(|other| other.eq_ignore_ascii_case(one)))
}

/// A foreign key by which rows of a table refer to those of another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignKey {
    /// Its name.
    pub name: String,
    /// The table that has it, as SQL text.
    pub table: String,
    /// Its columns, each with the one to which it refers.
    pub columns: Vec<(String, String)>,
    /// What it does when a row is deleted to which one refers: `CASCADE`.
    pub on_delete: String,
}

impl ForeignKey {
    /// The keys in rows of name, table, column, column that it refers to, and what it does. Those of one key are next
    /// to each other.
    pub fn of_rows(rows: impl IntoIterator<Item = Vec<Option<String>>>) -> Vec<ForeignKey> {
        let mut keys: Vec<ForeignKey> = Vec::new();
        for row in rows {
            let mut cells = row.into_iter().map(Option::unwrap_or_default);
            let mut next = || cells.next().unwrap_or_default();
            let (name, table, column, on_delete) = (next(), next(), (next(), next()), next());
            match keys.last_mut().filter(|key| key.name == name && key.table == table) {
                Some(key) => key.columns.push(column),
                None => keys.push(ForeignKey { name, table, columns: vec![column], on_delete }),
            }
        }
        keys
    }
}

/// An index of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// Its name.
    pub name: String,
    /// The server's definition, from which it can be rebuilt.
    pub definition: String,
}

impl Index {
    /// The index as one text, to store it.
    pub fn kept(&self) -> String {
        format!("{}\n{}", self.name, self.definition)
    }

    /// The index from the text of [`Index::kept`].
    pub fn of_kept(text: &str) -> Option<Self> {
        let (name, definition) = text.split_once('\n')?;
        Some(Index { name: name.to_owned(), definition: definition.to_owned() })
    }
}

/// A bulk statement: its table, and the form of the rows.
#[derive(Debug, Clone)]
pub struct Bulk {
    /// The statement.
    pub statement: String,
    /// The table, quoted.
    pub table: String,
    /// The columns, in the order of the rows' values.
    pub columns: Vec<BulkColumn>,
    /// Whether rows are encoded in the server's binary form.
    pub binary: bool,
}

pub use millstream_core::sink::ARRIVAL;

impl Bulk {
    /// The columns of the target: all but [`ARRIVAL`], which is the last.
    pub fn known_columns(&self) -> impl Iterator<Item = &BulkColumn> {
        self.columns.iter().filter(|column| column.name != ARRIVAL)
    }
}

/// A column of a bulk statement.
#[derive(Debug, Clone)]
pub struct BulkColumn {
    /// Its name.
    pub name: String,
    /// The family of its type.
    pub family: Family,
    /// Whether a null must not be sent, since the server would silently replace it.
    pub replaces_null: bool,
}

impl BulkColumn {
    /// A column that stores or refuses nulls.
    pub fn new(name: &str, family: Family) -> Self {
        BulkColumn { name: name.to_owned(), family, replaces_null: false }
    }
}
