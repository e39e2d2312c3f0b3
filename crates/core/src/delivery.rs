//! Rows on their way into one transaction of a target, and what becomes of them.

use arrow::array::RecordBatch;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::position::Position;
use crate::{Error, RejectKind, Result};

/// A piece of a unit that is written as a whole or not at all.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chunk {
    /// What tells the unit from all others.
    pub unit: String,
    /// Which piece of it, from 0; below 2^63.
    pub number: u64,
}

/// The rows of some chunks on their way. If it is dropped before its commit, nothing of it stays.
#[async_trait]
pub trait Delivery: Send {
    /// Adds rows.
    async fn write(&mut self, batch: RecordBatch) -> Result<()>;

    /// Sends what was added, so that only the commit is left where that is possible. Returns how many rows are known to
    /// be refused.
    async fn send(&mut self) -> Result<usize> {
        Ok(0)
    }

    /// Writes the rows and notes the chunks, in one transaction. Before that is committed, `accept` is asked whether
    /// the rows may be missing that the target does not take, and takes note of them; its error is the delivery's. What
    /// it returns is noted in the same transaction. It is not asked where the chunks are there already. An error of the
    /// kind [`crate::ErrorKind::Transient`] says for certain that neither rows nor notes are there, and that the chunks
    /// may be delivered again.
    async fn commit_if(self: Box<Self>, accept: Accept) -> Result<Delivered>;

    /// The same, where any row may be missing that was allowed to the delivery.
    async fn commit(self: Box<Self>) -> Result<Delivered> {
        self.commit_if(Box::new(|_| Ok(Vec::new()))).await
    }
}

/// Whether rows that a target does not take may be missing, and what is noted beside the chunks then. No other delivery
/// notes the same.
pub type Accept = Box<dyn FnOnce(&Refused) -> Result<Vec<Chunk>> + Send>;

/// Rows that a target does not take.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Refused {
    /// The rows, in their order.
    pub rows: Vec<RefusedRow>,
    /// Whether there may be more, which were not looked for since there are too many.
    pub more: bool,
}

impl Refused {
    /// The error of a load that ends for these rows of `place`: `table t of mysql://…`.
    pub fn into_error(self, place: &str) -> Error {
        let count = match (self.rows.len(), self.more) {
            (1, false) => "a row".to_owned(),
            (few, false) => format!("{few} rows"),
            (many, true) => format!("{many} rows or more"),
        };
        let mut rows = self.rows.into_iter();
        let Some(first) = rows.next() else { return Error::internal("a row was refused, and it is not known which") };
        let mut cause = first.reason;
        let mut hints: Vec<String> = first.hint.into_iter().collect();
        for other in rows.take(SHOWN_BAD_ROWS - 1) {
            cause.push_str(&format!("\n{}: {}", crate::error::printable(other.shown.as_bytes()), other.reason));
            hints.extend(other.hint.filter(|hint| !hints.contains(hint)));
        }
        let error = Error::data(format!("{place} refuses {count}")).text(first.shown).cause(cause).reject(first.kind);
        let error = first.column.into_iter().fold(error, |error, column| error.column(column));
        error.hint(if hints.is_empty() { "fix such rows, or filter them out".to_owned() } else { hints.join("\n") })
    }
}

/// How many bad rows are looked for and shown when a load fails for them.
pub const SHOWN_BAD_ROWS: usize = 5;

/// What became of a delivery.
#[derive(Debug, Clone, PartialEq)]
pub enum Delivered {
    /// Everything is in the target, once.
    Written {
        /// How many rows that were.
        rows: u64,
        /// Rows that the target did not take.
        refused: Vec<RefusedRow>,
    },
    /// Nothing was written, since these of the chunks are there already.
    AlreadyDone(Vec<Chunk>),
    /// Nothing was written, since these positions stand elsewhere than the moves of the delivery say. The list may be
    /// empty: then it is only known that they do.
    Moved(Vec<Position>),
    /// It is not known whether everything is in the target, and it cannot be found out any more: the answer to the
    /// commit was lost, and these positions were moved on since; or the run is to end, and the target does not answer.
    /// Each row is there at most once, and the positions say which messages come again.
    Unknown(Vec<Position>),
}

/// A row that the target did not take.
#[derive(Debug, Clone, PartialEq)]
pub struct RefusedRow {
    /// Its number among the rows of the delivery, from 0.
    pub row: u64,
    /// The row as it was handed over, by itself, if the sink has kept it.
    pub record: Option<RecordBatch>,
    /// Its values, for a message: `id=1, name='a'`.
    pub shown: String,
    /// The column that is to blame, if that is known.
    pub column: Option<String>,
    /// Why, in the target's words.
    pub reason: String,
    /// Why, in one word.
    pub kind: RejectKind,
    /// What to do, if that is known.
    pub hint: Option<String>,
}

/// What a load has changed in a target that it compares with its rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// New rows.
    pub inserted: u64,
    /// Rows that were there and differed.
    pub updated: u64,
    /// Rows that have changed nothing: they were there as they are now, or another row of the input with the same key
    /// stays in their place.
    pub unchanged: u64,
    /// Rows that were missing: deleted, closed or flagged.
    pub deleted: u64,
}
