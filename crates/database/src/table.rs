//! What there is to know of a table of a server, and of what is sent into one. It owns the facts that statements are
//! written from; how they are asked for is the sinks'.

use crate::family::Family;

/// What there is to know of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableFacts {
    /// What it is if it is no table that rows can be loaded into: `a view`.
    pub other: Option<String>,
    /// Why a load cannot be rolled back: `its engine is Aria`.
    pub unsafe_engine: Option<String>,
    /// What keeps the table from being replaced by a new one: views on it, foreign keys to it.
    pub dependents: Vec<String>,
    /// Whether a table with the same definition would lack something: triggers, foreign keys.
    pub has_more: bool,
    /// Its columns.
    pub columns: Vec<ColumnFacts>,
    /// The columns of each unique key.
    pub unique: Vec<Vec<String>>,
    /// What else the server checks in a row by itself: `CONSTRAINT few CHECK (n < 5)`.
    pub checks: Vec<String>,
}

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnFacts {
    /// Its name.
    pub name: String,
    /// The type as the server writes it.
    pub declared: String,
    /// What it can hold.
    pub family: Family,
    /// Whether its type is one of the user's own, which a wider one would not replace.
    pub is_domain: bool,
    /// Whether it may be null.
    pub nullable: bool,
    /// Whether it needs a value and has none by itself.
    pub required: bool,
    /// Whether the server computes it.
    pub generated: bool,
    /// Whether the server silently writes a value of its own where it is given a null.
    pub replaces_null: bool,
    /// What stands behind the type where the column is declared, if a change of the type has to repeat it.
    pub rest: String,
}

impl TableFacts {
    /// The column of this name; capitals may differ if none has it as it is.
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

/// An index of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// Its name.
    pub name: String,
    /// What the server needs to build it again, in its own words.
    pub definition: String,
}

impl Index {
    /// As one text.
    pub fn kept(&self) -> String {
        format!("{}\n{}", self.name, self.definition)
    }

    /// From one text.
    pub fn of_kept(text: &str) -> Option<Self> {
        let (name, definition) = text.split_once('\n')?;
        Some(Index { name: name.to_owned(), definition: definition.to_owned() })
    }
}

/// Where a bulk statement writes to, and in which form the rows are.
#[derive(Debug, Clone)]
pub struct Bulk {
    /// The statement of the fast way.
    pub statement: String,
    /// The table, quoted.
    pub table: String,
    /// The columns, in the order of the rows' values.
    pub columns: Vec<BulkColumn>,
    /// Whether rows are encoded in the server's binary form.
    pub binary: bool,
}

/// The column of a staging table that counts rows as they arrive.
pub const ARRIVAL: &str = "_millstream_arrival";

impl Bulk {
    /// The columns that the user knows: all but the order of arrival, which is the last.
    pub fn known_columns(&self) -> impl Iterator<Item = &BulkColumn> {
        self.columns.iter().filter(|column| column.name != ARRIVAL)
    }
}

/// A column of a bulk statement.
#[derive(Debug, Clone)]
pub struct BulkColumn {
    /// Its name.
    pub name: String,
    /// What it can hold.
    pub family: Family,
    /// Whether a null must not be sent, since the server would silently write a value of its own.
    pub replaces_null: bool,
}

impl BulkColumn {
    /// A column that takes a null, or refuses it.
    pub fn new(name: &str, family: Family) -> Self {
        BulkColumn { name: name.to_owned(), family, replaces_null: false }
    }
}
