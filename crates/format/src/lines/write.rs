//! One column of text as lines.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use millstream_core::format::{RowEncoder, TEXT};
use millstream_core::{Error, Result};

/// Whether values of the type are text, however they are kept.
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
        let column = cast(column, &TEXT).map_err(|cause| Error::internal("lines are no text").cause(cause))?;
        let texts = column.as_string_view();
        for row in 0..batch.num_rows() {
            let line = if texts.is_null(row) { "" } else { texts.value(row) };
            if memchr::memchr(b'\n', line.as_bytes()).is_some() || line.ends_with('\r') {
                return Err(Error::data("the text holds a line end and would become several lines")
                    .text(line)
                    .hint("replace line ends in SQL, or write csv or json"));
            }
            output.extend_from_slice(line.as_bytes());
            output.push(b'\n');
        }
        Ok(())
    }

    fn finish(&mut self, _output: &mut Vec<u8>) -> Result<()> {
        Ok(())
    }
}
