//! Functions for SQL that are computed in processes of their own.

use std::sync::Arc;

use arrow::datatypes::DataType;

use super::Workers;

/// A function for SQL. Each row gives one value, which may be null.
#[derive(Debug, Clone)]
pub struct WorkFunction {
    /// The types of its arguments.
    pub arguments: Vec<DataType>,
    /// The type of its value.
    pub returns: DataType,
    /// What computes it: called for [`Row`](super::Per::Row)s with a column for each argument, they give one column.
    pub workers: Arc<dyn Workers>,
}
