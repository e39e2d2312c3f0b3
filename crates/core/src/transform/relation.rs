//! The rows of a transform as data: operations over the rows of other entries, in the terms of SQL.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::lookup::Lookup;
use super::order::SortKey;
use super::text::{EntryName, Expression, Query, ScratchPool, Text};
use super::{Transform, Workers};

/// Rows, and how they are computed. The engine plans all of these; a transform composes them.
#[derive(Debug, Clone)]
pub enum Relation {
    /// The rows of a source or transform.
    Entry(EntryName),
    /// The rows of a SQL query over sources and transforms.
    Query(Query),
    /// The rows that meet a condition.
    Filter {
        /// The rows it reads.
        from: Box<Relation>,
        /// The condition.
        condition: Expression,
    },
    /// Rows with other columns.
    Project {
        /// The rows it reads.
        from: Box<Relation>,
        /// The columns, in order.
        columns: Vec<Column>,
    },
    /// The rows of several, one after the other.
    Union {
        /// The rows it reads, of at least one.
        of: Vec<Relation>,
        /// How columns find each other.
        by: UnionBy,
        /// Whether rows that are equal come out once.
        distinct: bool,
    },
    /// The rows in order.
    Sort {
        /// The rows it reads.
        from: Box<Relation>,
        /// What to sort by, most important first.
        by: Vec<SortKey>,
        /// How many rows to keep.
        limit: Option<u64>,
        /// Of which rows only one stays.
        distinct: Option<Distinct>,
        /// Whether rows with equal keys keep the order in which they came.
        stable: bool,
        /// The scratch disks that it uses.
        pool: Option<ScratchPool>,
    },
    /// One row of those that are equal.
    Dedupe {
        /// The rows it reads.
        from: Box<Relation>,
        /// The columns in which rows are equal, all if empty, and which of these stays.
        distinct: Distinct,
        /// The order of equal rows; if empty, that in which they came.
        order: Vec<SortKey>,
    },
    /// What a transform computes of each batch.
    Map {
        /// The rows it reads.
        from: Box<Relation>,
        /// The transform.
        transform: Arc<dyn Transform>,
    },
    /// What workers compute of each batch.
    Work {
        /// The rows it reads.
        from: Box<Relation>,
        /// The workers.
        workers: Arc<dyn Workers>,
    },
    /// Rows with columns of the rows of a reference that match them.
    Lookup {
        /// The rows it reads.
        from: Box<Relation>,
        /// The reference, which is read as a whole before the first row.
        within: Box<Relation>,
        /// What matches, and what is taken of it.
        lookup: Lookup,
    },
}

/// A column of [`Relation::Project`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its new name. Without one, the expression tells it: a column, or `AS name`.
    pub name: Option<String>,
    /// What it holds.
    pub expression: Expression,
}

/// Of which rows only one stays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Distinct {
    /// The expressions that are equal in such rows. If empty, those that the operation compares rows by.
    pub by: Vec<Expression>,
    /// Which one stays; `None` if the job does not say.
    pub keep: Option<Keep>,
}

/// Which row a dedupe keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Keep {
    /// The first.
    #[default]
    First,
    /// The last.
    Last,
}

/// How the columns of a union find each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum UnionBy {
    /// By their names; a column that a step lacks is null.
    #[default]
    Name,
    /// By their places; all steps have as many columns.
    Position,
}

/// A SQL text of a relation.
#[derive(Debug, Clone, Copy)]
pub struct SqlText<'a> {
    /// The text.
    pub text: &'a Text,
    /// The rows whose columns it is about; `None` for a query, which names its tables.
    pub of: Option<&'a Relation>,
}

impl Relation {
    /// The rows of the entry `name`, as the input of another relation.
    pub fn of(name: EntryName) -> Box<Relation> {
        Box::new(Relation::Entry(name))
    }

    /// The relations that it reads.
    pub fn inputs(&self) -> Vec<&Relation> {
        match self {
            Relation::Entry(_) | Relation::Query(_) => Vec::new(),
            Relation::Union { of, .. } => of.iter().collect(),
            Relation::Lookup { from, within, .. } => vec![from, within],
            Relation::Filter { from, .. }
            | Relation::Project { from, .. }
            | Relation::Sort { from, .. }
            | Relation::Dedupe { from, .. }
            | Relation::Map { from, .. }
            | Relation::Work { from, .. } => vec![from],
        }
    }

    /// It and all relations that it is made of, each behind those it reads.
    pub fn all(&self) -> Vec<&Relation> {
        let mut all: Vec<&Relation> = self.inputs().into_iter().flat_map(Relation::all).collect();
        all.push(self);
        all
    }

    /// Where its rows come from in the job file: the first entry or query that it reads.
    pub fn origin(&self) -> Option<&Text> {
        self.all().into_iter().find_map(|relation| match relation {
            Relation::Entry(name) => Some(&name.0),
            Relation::Query(query) => Some(&query.0),
            _ => None,
        })
    }

    /// The entries that its rows come from: not those that are only looked up in. `None` if that is not known, as a
    /// query may name any.
    pub fn row_entries(&self) -> Option<Vec<&EntryName>> {
        match self {
            Relation::Entry(name) => Some(vec![name]),
            Relation::Query(_) => None,
            Relation::Lookup { from, .. } => from.row_entries(),
            other => {
                let inputs = other.inputs().into_iter().map(Relation::row_entries).collect::<Option<Vec<_>>>();
                inputs.map(|inputs| inputs.into_iter().flatten().collect())
            }
        }
    }

    /// All of its SQL.
    pub fn sql(&self) -> Vec<SqlText<'_>> {
        self.all().into_iter().flat_map(Relation::own_sql).collect()
    }

    /// The SQL of its outermost operation, in the order in which it is computed.
    fn own_sql(&self) -> Vec<SqlText<'_>> {
        let (from, texts): (&Relation, Vec<&Text>) = match self {
            Relation::Entry(_) | Relation::Union { .. } | Relation::Map { .. } => return Vec::new(),
            Relation::Query(query) => return vec![SqlText { text: &query.0, of: None }],
            Relation::Filter { from, condition } => (from, vec![&condition.0]),
            Relation::Project { from, columns } => (from, columns.iter().map(|column| &column.expression.0).collect()),
            Relation::Sort { from, by, distinct, .. } => {
                let same = distinct.iter().flat_map(|distinct| &distinct.by).map(|same| &same.0);
                (from, by.iter().map(|key| &key.expression).chain(same).collect())
            }
            Relation::Dedupe { from, distinct, order } => {
                let order = order.iter().map(|key| &key.expression);
                (from, distinct.by.iter().map(|same| &same.0).chain(order).collect())
            }
            Relation::Work { from, workers } => {
                (from, workers.rules().order_by.iter().map(|key| &key.expression).collect())
            }
            Relation::Lookup { within, lookup, .. } => {
                (within, lookup.order_by.iter().map(|key| &key.expression).collect())
            }
        };
        texts.into_iter().map(|text| SqlText { text, of: Some(from) }).collect()
    }

    /// The scratch disks that its sorts use.
    pub fn pools(&self) -> Vec<&ScratchPool> {
        let pools = self.all().into_iter().filter_map(|relation| match relation {
            Relation::Sort { pool, .. } => pool.as_ref(),
            _ => None,
        });
        pools.collect()
    }
}
