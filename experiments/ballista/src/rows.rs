//! Compares results without their order.

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::row::{RowConverter, SortField};
use datafusion::error::Result;
use datafusion::execution::SendableRecordBatchStream;
use futures::TryStreamExt;
use std::hash::{DefaultHasher, Hasher};

/// A multiset of rows: their number, and the sum of the hashes of all rows, which does not depend on their order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rows {
    pub count: u64,
    pub sum: u128,
}

impl Rows {
    pub fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        let fields = batch.schema().fields().iter().map(|f| SortField::new(f.data_type().clone())).collect();
        for row in RowConverter::new(fields)?.convert_columns(batch.columns())?.iter() {
            let mut hasher = DefaultHasher::new();
            hasher.write(row.as_ref());
            self.sum += u128::from(hasher.finish());
            self.count += 1;
        }
        Ok(())
    }

    pub async fn of(mut stream: SendableRecordBatchStream) -> Result<Rows> {
        let mut rows = Rows::default();
        while let Some(batch) = stream.try_next().await? {
            rows.add(&batch)?;
        }
        Ok(rows)
    }
}

/// How a result differs from the one that was expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Equal,
    /// Each row came this many times.
    Times(u64),
    /// That many rows are missing, and perhaps others are wrong.
    Fewer(u64),
    /// That many rows are too many, and not each the same number of times.
    More(u64),
    /// As many rows, but not the same.
    Wrong,
    Failed(String),
}

impl Outcome {
    pub fn of(expected: Rows, found: Result<Rows>) -> Outcome {
        let found = match found {
            Ok(found) => found,
            Err(error) => return Outcome::Failed(error.to_string()),
        };
        let factor = found.count.checked_div(expected.count).unwrap_or(0);
        if found == expected {
            Outcome::Equal
        } else if factor > 1 && found.count == factor * expected.count && found.sum == u128::from(factor) * expected.sum
        {
            Outcome::Times(factor)
        } else if found.count < expected.count {
            Outcome::Fewer(expected.count - found.count)
        } else if found.count > expected.count {
            Outcome::More(found.count - expected.count)
        } else {
            Outcome::Wrong
        }
    }

    /// Of a result of which only the number of rows is known before: the rows of a limit.
    pub fn of_counts(expected: Rows, found: Result<Rows>) -> Outcome {
        let sum = expected.sum;
        Outcome::of(expected, found.map(|found| Rows { sum, ..found }))
    }

    /// A few letters for a table.
    pub fn short(&self) -> String {
        match self {
            Outcome::Equal => "=".into(),
            Outcome::Times(factor) => format!("x{factor}"),
            Outcome::Fewer(rows) => format!("-{rows}"),
            Outcome::More(rows) => format!("+{rows}"),
            Outcome::Wrong => "wrong".into(),
            Outcome::Failed(_) => "error".into(),
        }
    }
}
