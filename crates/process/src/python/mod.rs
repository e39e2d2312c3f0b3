//! Python functions as programs.
//!
//! ```text
//!  batch ─marshal─▶ ┌ worker.py ─▶ function(row) ┐ ─unmarshal─▶ rows, rows that have failed
//!                   └ one process, many batches  ┘
//! ```

mod marshal;
mod unmarshal;
mod worker;

use arrow::datatypes::Schema;
use millstream_core::Result;

pub use worker::{Function, PythonWorker};

/// Whether functions take rows with these columns.
///
/// # Errors
/// If a column has a type that has no counterpart in Python.
pub fn check_columns(schema: &Schema) -> Result<()> {
    marshal::conversions(schema).map(drop)
}
