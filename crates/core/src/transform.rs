//! What a transform of one's own has to do: the transforms of a job file beside SQL and its short forms.

use std::fmt::Debug;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};

use crate::error::Result;

/// Computes rows from the rows of one other entry, batch by batch.
pub trait Transform: Debug + Send + Sync {
    /// What it is called in reports and in the job file.
    fn name(&self) -> &'static str;

    /// The columns of its rows, for rows with the columns `input`.
    ///
    /// # Errors
    /// What is wrong with these columns. It is reported at the transform's entry in the job file, before anything
    /// runs.
    fn columns(&self, input: &Schema) -> Result<SchemaRef>;

    /// The rows for those of one batch, with the columns that [`Transform::columns`] gave. Several tasks call it at
    /// once, with batches in any order and of any size, so its result must depend on the batch alone. Columns of text
    /// and bytes may be of a view type.
    ///
    /// # Errors
    /// What ends the run. A fault of the data names the row's text ([`crate::Error::text`]) and its column.
    fn transform(&self, batch: &RecordBatch) -> Result<RecordBatch>;
}
