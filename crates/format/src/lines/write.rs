//! One column of text as lines.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use millstream_core::format::{RowEncoder, TEXT};
use millstream_core::{Error, Result};

/// Whether the type is one of the text types.
pub(crate) fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => is_text(values),
        _ => false,
    }
}

/// Encodes one file. A null is an empty line.
pub(crate) struct LineEncoder;

impl RowEncoder for LineEncoder {
    fn encode(&mut self, batch: &RecordBatch, output: &mut Vec<u8>) -> Result<()> {
        let Some(column) = batch.columns().first() else {
            return Err(Error::internal("a batch of lines has no column"));
        };
        let column = cast(column, &TEXT).map_err(|cause| Error::internal("lines are not text").cause(cause))?;
        let texts = column.as_string_view();
        let line = |row: usize| if texts.is_null(row) { "" } else { texts.value(row) };
        let start = output.len();
        let mut is_line = true;
        for row in 0..batch.num_rows() {
            let line = line(row);
            is_line &= line.as_bytes().last() != Some(&b'\r');
            output.extend_from_slice(line.as_bytes());
            output.push(b'\n');
        }
        // All are searched at once, since texts with line ends are rare.
        if !is_line || memchr::memchr_iter(b'\n', &output[start..]).count() != batch.num_rows() {
            let is_wrong = |line: &&str| line.contains('\n') || line.ends_with('\r');
            let wrong = (0..batch.num_rows()).map(line).find(is_wrong).unwrap_or_default();
            return Err(Error::data("the text holds a line end and would become several lines")
                .text(wrong)
                .hint("replace line ends in SQL, or write csv or json"));
        }
        Ok(())
    }

    fn finish(&mut self, _output: &mut Vec<u8>) -> Result<()> {
        Ok(())
    }
}
