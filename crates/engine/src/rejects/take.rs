//! Who takes the rows that cannot be computed.

use std::sync::Arc;

use arrow::array::RecordBatch;
use millstream_core::{Error, Result};

use super::origin::{origin, refusal_of_row};
use super::{Entry, Rejects, of_row};

/// Takes rows that cannot be computed.
pub trait TakeRow: Send + Sync {
    /// Leaves out `row`, a batch of one, on which the steps named by `step` fail. An error ends the run.
    fn take(&self, step: &str, row: &RecordBatch, error: Error) -> Result<()>;

    /// `error` of `row`, a batch of one, with its file and line as far as they are known.
    fn place(&self, row: &RecordBatch, error: Error) -> Error;
}

/// Leaves rows out at once.
pub struct TakeAtOnce {
    /// The rejects of the run.
    pub rejects: Arc<Rejects>,
    /// The sink that the rows are on their way to, if it is one.
    pub sink: Option<String>,
}

impl TakeRow for TakeAtOnce {
    fn take(&self, step: &str, row: &RecordBatch, error: Error) -> Result<()> {
        let rejected = |row: Option<&RecordBatch>| of_row(step, self.sink.as_deref(), &error, row);
        let refusal = refusal_of_row(&self.rejects, Some(row), error.clone(), rejected);
        self.rejects.take(&Entry::Step(step.to_owned()), vec![refusal])
    }

    fn place(&self, row: &RecordBatch, error: Error) -> Error {
        match origin(row, 0) {
            Some((origin, _)) => origin.place(error),
            None => error,
        }
    }
}
