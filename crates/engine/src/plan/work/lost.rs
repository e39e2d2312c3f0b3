//! Rows at which workers have ended, or had to be ended, each time that they were tried.

use std::sync::{Mutex, MutexGuard, PoisonError};

use arrow::array::{ArrayRef, RecordBatch};
use arrow::error::ArrowError;
use arrow::row::{OwnedRow, RowConverter, SortField};
use millstream_core::Error;

/// Rows that are not to be tried again, and why.
#[derive(Debug, Default)]
pub struct Lost(Mutex<Option<Known>>);

#[derive(Debug)]
struct Known {
    converter: RowConverter,
    rows: Vec<(OwnedRow, Error)>,
}

impl Lost {
    fn lock(&self) -> MutexGuard<'_, Option<Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds `row`, a batch of one, which has failed with `error`. One that has no values, or none that can be compared,
    /// is tried again.
    pub fn add(&self, row: &RecordBatch, error: &Error) {
        let mut known = self.lock();
        let mut add = || -> Result<(), ArrowError> {
            if known.is_none() && row.num_columns() > 0 {
                let fields = row.columns().iter().map(|column| SortField::new(column.data_type().clone())).collect();
                *known = Some(Known { converter: RowConverter::new(fields)?, rows: Vec::new() });
            }
            let Some(Known { converter, rows }) = known.as_mut() else { return Ok(()) };
            let row = converter.convert_columns(row.columns())?.row(0).owned();
            rows.push((row, error.clone()));
            Ok(())
        };
        let _ = add();
    }

    /// Why one of the rows of `columns` is not to be tried again, if there is such a row.
    pub fn find(&self, columns: &[ArrayRef]) -> Option<Error> {
        let known = self.lock();
        let Known { converter, rows: lost } = known.as_ref()?;
        let rows = converter.convert_columns(columns).ok()?;
        rows.iter().find_map(|row| lost.iter().find(|(lost, _)| lost.row() == row).map(|(_, error)| error.clone()))
    }
}
