//! The last column of rows that tells where they are from, on its way through steps that answer several rows together.

use std::fmt::Debug;

use arrow::array::{Array, ArrayRef};
use millstream_core::Result;

/// What the last column of rows tells.
pub trait Carried: Debug + Send + Sync {
    /// Whether the rows `one` and `other` of `column` may not be answered together: nothing could tell where such an
    /// answer is from.
    fn is_apart(&self, column: &ArrayRef, one: usize, other: usize) -> bool;

    /// What the column has, in a row, for rows that were answered for all of `column` together. It has at least one.
    ///
    /// # Errors
    /// If the column is not what it should be.
    fn together(&self, column: &ArrayRef) -> Result<ArrayRef>;

    /// Behind which rows of `column` a batch has to end, the last of which is its end.
    fn ends(&self, column: &ArrayRef) -> Vec<usize> {
        let ends = (1..column.len()).filter(|row| self.is_apart(column, row - 1, *row));
        ends.chain((!column.is_empty()).then_some(column.len())).collect()
    }
}
