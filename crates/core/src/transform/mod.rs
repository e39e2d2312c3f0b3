//! What a transform has to do.
//!
//! ```text
//!  settings ─parse─▶ spec ─build─▶ Relation ─plan (engine)─▶ rows
//! ```
//! A transform is one folder, like any component. Its spec has texts whose places in the job file are kept ([`Text`]):
//! names of entries, SQL, sort keys. Its `build` composes a [`Relation`] of them: the rows as data, made of operations
//! that the engine can plan. What these cannot express, a transform computes by itself, batch by batch ([`Transform`]),
//! or in other processes ([`Workers`]). It knows nothing of plans, and the engine knows no transform.

mod function;
mod lookup;
mod order;
mod relation;
mod text;
mod workers;

use std::fmt::Debug;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};

use crate::error::{Error, Result};

pub use function::WorkFunction;
pub use lookup::{Duplicate, Lookup, Match, MatchWith, Miss, Taken};
pub use order::SortKey;
pub use relation::{Column, Distinct, Keep, Relation, SqlText, UnionBy};
pub use text::{ColumnName, EntryName, Expression, Query, ScratchPool, SortTerm, Text, TextKind};
pub use workers::{Answer, CallSize, Failure, GivenRows, Per, RowStream, WorkRules, Worker, Workers};

/// The keys of an entry of `transforms` beside the one of its transform: what any of them may say of its rows. No
/// transform can have such a name. The job crate, which reads them, has a test that none is missing here.
pub const KEYS_BESIDE: &[&str] = &["sorted_by", "max_rejects", "checks"];

/// Computes rows from the rows of one other entry, batch by batch.
pub trait Transform: Debug + Send + Sync {
    /// What it is called in reports and in the job file.
    fn name(&self) -> &'static str;

    /// The columns of its rows, for rows with the columns `input`.
    ///
    /// # Errors
    /// What is wrong with these columns. It is reported in the job file, before anything runs: at the setting that the
    /// fault names, otherwise at the entry that the transform reads.
    fn columns(&self, input: &Schema) -> Result<SchemaRef, ColumnsFault>;

    /// The rows for those of one batch, with the columns that [`Transform::columns`] gave. Several tasks call it at
    /// once, with batches in any order and of any size, so its result must depend on the batch alone. Columns of text
    /// and bytes may be of a view type.
    ///
    /// # Errors
    /// What ends the run. A fault of the data names the row's text ([`crate::Error::text`]) and its column.
    fn transform(&self, batch: &RecordBatch) -> Result<RecordBatch>;
}

/// What is wrong with the columns of the rows that a transform reads.
#[derive(Debug)]
pub struct ColumnsFault {
    /// The fault.
    pub error: Error,
    /// The setting that it is about.
    pub setting: Option<Text>,
}

impl ColumnsFault {
    /// A fault of the column that the setting `name` names.
    pub fn of(name: &ColumnName, error: Error) -> Self {
        ColumnsFault { error, setting: Some(name.0.clone()) }
    }
}

impl From<Error> for ColumnsFault {
    fn from(error: Error) -> Self {
        ColumnsFault { error, setting: None }
    }
}
