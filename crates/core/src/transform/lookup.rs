//! What a lookup is: which rows of a reference match a row, what is taken of them, and what happens otherwise.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::order::SortKey;
use super::text::ColumnName;

/// Which rows of a reference match, and what is taken of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Lookup {
    /// Conditions, all of which hold for rows that match. At most one is a range.
    pub on: Vec<Match>,
    /// The columns that rows get.
    pub take: Vec<Taken>,
    /// What becomes of a row that none matches.
    pub miss: Miss,
    /// What becomes of a row that several match.
    pub duplicate: Duplicate,
    /// With [`Duplicate::First`]: in which order the first one comes first.
    pub order_by: Vec<SortKey>,
}

/// A condition between a row and a row of the reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    /// The column of the row.
    pub column: ColumnName,
    /// What the reference has to have.
    pub with: MatchWith,
}

/// What a row of the reference has to have, for a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MatchWith {
    /// The same value in this column.
    Equal(ColumnName),
    /// A range that holds the value.
    Range {
        /// The column with the smallest value of the range. Null, or no column: it is open.
        from: Option<ColumnName>,
        /// The column with the value before which the range ends. Null, or no column: it is open.
        before: Option<ColumnName>,
    },
}

impl MatchWith {
    /// The columns of the reference.
    pub fn columns(&self) -> Vec<&ColumnName> {
        match self {
            MatchWith::Equal(column) => vec![column],
            MatchWith::Range { from, before } => from.iter().chain(before).collect(),
        }
    }
}

/// A column that rows get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Its name.
    pub name: ColumnName,
    /// The column of the reference that it is.
    pub column: ColumnName,
}

/// What becomes of a row that no row of the reference matches.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Miss {
    /// The run fails.
    #[default]
    Fail,
    /// It is rejected.
    Reject,
    /// It gets nulls.
    Null,
    /// It is left out.
    Drop,
    /// It gets these values, by the names of the columns; others are null.
    Value(Vec<(String, Value)>),
}

/// What happens if several rows of the reference match a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Duplicate {
    /// The run fails.
    #[default]
    Fail,
    /// The first of them in the order of `order_by` counts.
    First,
    /// The row comes once for each of them. Then it is not loaded chunk by chunk.
    All,
}
