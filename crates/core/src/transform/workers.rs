//! What computes rows in processes of its own.
//!
//! ```text
//!  batch ─▶ ┌ worker ┐ ─▶ rows, failures
//!  batch ─▶ └ worker ┘ ─▶ rows, failures
//! ```
//! The component says what a worker is and how it is asked. The engine starts as many as the job may have, keeps them
//! for the whole run, gives each of them batches, and decides what becomes of those that fail. Rows that are too many
//! for one answer are passed through a worker as a stream.

use std::fmt::Debug;
use std::num::NonZeroUsize;
use std::time::Duration;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::datatypes::{Schema, SchemaRef};
use async_trait::async_trait;
use futures::stream::BoxStream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ColumnName, ColumnsFault, SortKey};
use crate::error::{Error, Result};
use crate::program::ProgramContext;

/// What a worker is called with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Per {
    /// One row; it gives one row or none.
    #[default]
    Row,
    /// The rows of a batch; it gives any number of rows.
    Batch,
    /// All rows that are equal in some columns, in order; it gives any number of rows.
    Group,
    /// All rows, or the part of them that one of several workers takes; it gives any number of rows.
    Stream,
}

/// How many rows a call of a worker has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallSize {
    /// Few where rows take long: the worker computes one after the other, so that some take less time than all.
    Rows,
    /// Those of a batch.
    Batch,
    /// Those of several batches where they take no time: a call costs more than its rows.
    Batches,
}

/// How workers are used.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkRules {
    /// What a worker is called with.
    pub per: Per,
    /// Columns that its rows keep beside those that it gives. Only [`Per::Row`] can have some.
    pub keep: Vec<ColumnName>,
    /// With [`Per::Group`]: the columns that are equal in a group.
    pub by: Vec<ColumnName>,
    /// The order of the rows in a group, most important first; none if any will do.
    pub order_by: Vec<SortKey>,
    /// Whether what it gives for a row depends on that row alone, and is the same each time.
    pub deterministic: bool,
    /// How many rows it gets at once.
    pub call_size: CallSize,
    /// How many there are; `None` for one a core, or one in all with [`Per::Stream`].
    pub workers: Option<NonZeroUsize>,
    /// How long one may take for a call, or between two signs of work on a stream; `None` for any time.
    pub timeout: Option<Duration>,
    /// How much memory each may take, in bytes.
    pub memory: Option<u64>,
}

/// Workers of one kind, with the settings of one entry.
#[async_trait]
pub trait Workers: Debug + Send + Sync {
    /// What they are called in reports and messages.
    fn name(&self) -> &'static str;

    /// The columns that they give, for rows with the columns `input`; without those that are kept.
    ///
    /// # Errors
    /// What is wrong with these columns.
    fn columns(&self, input: &Schema) -> Result<SchemaRef, ColumnsFault>;

    /// How they are used.
    fn rules(&self) -> &WorkRules;

    /// What their rows depend on beside the settings: hashes of files. A resumed load compares it with that of its
    /// first run.
    ///
    /// # Errors
    /// If a file cannot be read.
    fn fingerprint(&self, folder: &std::path::Path) -> Result<Value>;

    /// Starts a worker for rows with the columns `input`.
    ///
    /// # Errors
    /// If it cannot be started, or cannot load what it computes with.
    async fn start(&self, input: &SchemaRef, context: &ProgramContext) -> Result<Box<dyn Worker>>;
}

/// A worker. It ends when it is dropped.
#[async_trait]
pub trait Worker: Send {
    /// The rows for those of `batch`. With [`Per::Group`] the batch has whole groups, and `ends` says behind which row
    /// each of them ends: the last number is that of all rows. If the future is dropped before it is done, the worker
    /// cannot be used any more.
    ///
    /// # Errors
    /// If the worker has ended, or answers what cannot be read. Then it cannot be used any more, and another one may
    /// fail at the same batch or not. One of the kind [`Refused`](crate::ErrorKind::Refused) says that earlier answers
    /// cannot be trusted.
    async fn call(&mut self, batch: &RecordBatch, ends: &[usize]) -> Result<Answer>;

    /// Has the next call say at which row or group it is, if the worker can: a few microseconds for each.
    fn watch(&mut self) {}

    /// The row of the batch, or with [`Per::Group`] the group, from 0, at which a call that has failed was, as far as
    /// the worker has said.
    fn at(&self) -> Option<u32> {
        None
    }

    /// Passes `rows` through and hands what it gives to `given`: with [`Per::Stream`] until the worker has ended, with
    /// [`Per::Group`] as one group. If the future is dropped before it is done, the worker cannot be used any more.
    ///
    /// # Errors
    /// Those of `rows` and `given`; if the worker fails, ends before it has taken all rows, or gives what cannot be
    /// read. Then it cannot be used any more.
    async fn pass(&mut self, rows: RowStream, given: &dyn GivenRows) -> Result<()>;

    /// No more rows follow: looks whether the worker agrees. Then it has ended, or ends when it is dropped.
    ///
    /// # Errors
    /// If it has given more than it was asked for, or says that it has failed.
    async fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    /// What runs its code, as far as it matters for what that gives: `Python 3.11`. `None` if it does not say.
    fn interpreter(&self) -> Option<&str> {
        None
    }

    /// What measures its memory, in bytes.
    fn measure(&self) -> Box<dyn Fn() -> u64 + Send + Sync>;
}

/// Rows that a worker takes one after the other.
pub type RowStream = BoxStream<'static, Result<RecordBatch>>;

/// Takes the rows that a worker gives for a stream.
#[async_trait]
pub trait GivenRows: Send + Sync {
    /// The columns that are wanted, by their places in increasing order, if they are not all. A worker may leave out
    /// the others: its rows have all columns, or these alone.
    fn wanted(&self) -> Option<&[usize]> {
        None
    }

    /// Takes some of them, in their order.
    ///
    /// # Errors
    /// If nobody wants them any more.
    async fn take(&self, rows: RecordBatch) -> Result<()>;
}

/// What a worker gives for a batch.
#[derive(Debug)]
pub struct Answer {
    /// The rows, without those that are kept.
    pub rows: RecordBatch,
    /// With [`Per::Row`]: of which row of the batch each is, from 0, in order.
    pub origins: Option<UInt32Array>,
    /// What has failed.
    pub failures: Vec<Failure>,
}

/// A row, group or batch for which a worker has failed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The row of the batch, or with [`Per::Group`] the group, from 0; `None` for the whole batch.
    pub part: Option<u32>,
    /// What is wrong.
    pub error: Error,
}
