//! The order that a source or a transform says its rows have: held against the rows before anything is made of it.

use std::cmp::Ordering;
use std::sync::{Mutex, PoisonError};

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::SortOptions;
use arrow::datatypes::{Int64Type, Schema};
use arrow::row::{OwnedRow, RowConverter, SortField};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use millstream_core::{Error, Result};

/// One key of the order: a column, and its direction.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SortedBy {
    /// The column's name.
    pub column: String,
    /// Its direction, and where its nulls are.
    pub options: SortOptions,
}

/// Sees all rows of a source in the order in which they come.
#[derive(Debug)]
pub struct OrderCheck {
    /// By their place in the batches that come.
    keys: Vec<usize>,
    names: Vec<String>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    converter: RowConverter,
    /// The last row so far: its keys, and as they are shown.
    last: Option<(OwnedRow, String)>,
}

impl OrderCheck {
    /// For batches of `schema`, whose rows are in the order of `keys`, all of which are among its columns.
    pub fn new(schema: &Schema, keys: &[SortedBy]) -> Result<Self> {
        let failed = |cause: arrow::error::ArrowError| {
            Error::job("rows cannot be in the order that `sorted_by` says").cause(cause)
        };
        let indices = keys.iter().map(|key| schema.index_of(&key.column)).collect::<std::result::Result<Vec<_>, _>>();
        let indices = indices.map_err(failed)?;
        let field = |(key, index): (&SortedBy, &usize)| {
            SortField::new_with_options(schema.field(*index).data_type().clone(), key.options)
        };
        let converter = RowConverter::new(keys.iter().zip(&indices).map(field).collect()).map_err(failed)?;
        let names = keys.iter().map(|key| key.column.clone()).collect();
        Ok(OrderCheck { keys: indices, names, state: Mutex::new(State { converter, last: None }) })
    }

    /// An error with its line if the next rows are not in order; `lines` are the lines on which they begin.
    pub fn check(&self, batch: &RecordBatch, lines: Option<&ArrayRef>) -> Result<()> {
        let failed = |cause: arrow::error::ArrowError| Error::internal("rows cannot be compared").cause(cause);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let columns: Vec<ArrayRef> = self.keys.iter().map(|key| batch.column(*key).clone()).collect();
        let rows = state.converter.convert_columns(&columns).map_err(failed)?;
        let Some(last) = rows.num_rows().checked_sub(1) else { return Ok(()) };
        let falls_behind = |row: usize| match row.checked_sub(1) {
            Some(before) => rows.row(row).cmp(&rows.row(before)) == Ordering::Less,
            None => state.last.as_ref().is_some_and(|(before, _)| rows.row(row) < before.row()),
        };
        if let Some(row) = (0..=last).find(|row| falls_behind(*row)) {
            let before = match row.checked_sub(1) {
                Some(before) => self.shown(&columns, before)?,
                None => state.last.as_ref().map(|(_, shown)| shown.clone()).unwrap_or_default(),
            };
            let line = lines.map(|lines| lines.as_primitive::<Int64Type>().value(row) as u64);
            let error = Error::data("the rows are not in the order that `sorted_by` says")
                .text(self.shown(&columns, row)?)
                .cause(format!("the row before it has {before}"))
                .hint("declare the order that the rows have, or leave out `sorted_by`: then they are sorted");
            return Err(line.into_iter().fold(error, Error::line));
        }
        state.last = Some((rows.row(last).owned(), self.shown(&columns, last)?));
        Ok(())
    }

    /// The keys of `row` with their names.
    fn shown(&self, columns: &[ArrayRef], row: usize) -> Result<String> {
        let options = FormatOptions::default().with_null("null");
        let value = |(name, column): (&String, &ArrayRef)| {
            let shown = ArrayFormatter::try_new(column.as_ref(), &options);
            shown.map(|shown| format!("{name}={}", shown.value(row)))
        };
        let values = self.names.iter().zip(columns).map(value).collect::<std::result::Result<Vec<_>, _>>();
        Ok(values.map_err(|cause| Error::internal("a row cannot be shown").cause(cause))?.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringArray};

    use super::*;

    #[test]
    fn the_first_row_out_of_order_is_reported_also_between_batches() {
        let batch = |texts: &[Option<&str>], numbers: &[i64]| {
            let texts: ArrayRef = Arc::new(StringArray::from(texts.to_vec()));
            let numbers: ArrayRef = Arc::new(Int64Array::from(numbers.to_vec()));
            RecordBatch::try_from_iter_with_nullable([("n", numbers, false), ("t", texts, true)]).expect("a batch")
        };
        let up = SortOptions { descending: false, nulls_first: false };
        let down = SortOptions { descending: true, nulls_first: true };
        let keys = [("t", up), ("n", down)].map(|(column, options)| SortedBy { column: column.to_owned(), options });
        let first = batch(&[Some("a"), Some("a"), Some("b")], &[7, 7, 9]);
        let check = OrderCheck::new(&first.schema(), &keys).expect("an order");
        check.check(&first, None).expect("in order");
        check.check(&batch(&[Some("b"), None, None], &[8, 3, 2]), None).expect("in order");
        let lines: ArrayRef = Arc::new(Int64Array::from(vec![8, 9, 10]));
        let error = check.check(&batch(&[None, None, None], &[1, 5, 0]), Some(&lines)).expect_err("5 comes after 1");
        assert_eq!(error.location().line, Some(9));
        assert_eq!(error.offending_text(), Some("t=null, n=5"));
        let error = check.check(&batch(&[Some("z")], &[1]), None).expect_err("null was there");
        assert_eq!(error.cause_text(), Some("the row before it has t=null, n=2"));
    }
}
