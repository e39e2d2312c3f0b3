//! One column of text as lines.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::DataType;
use millstream_core::format::RowEncoder;
use millstream_core::{Error, Result};

type LineOf<'a> = Box<dyn Fn(usize) -> &'a str + 'a>;

/// Encodes one file. A null is an empty line.
pub(crate) struct LineEncoder;

impl RowEncoder for LineEncoder {
    fn encode(&mut self, batch: &RecordBatch, output: &mut Vec<u8>) -> Result<()> {
        let Some(column) = batch.columns().first() else {
            return Err(Error::internal("a batch of lines has no column"));
        };
        let text: LineOf<'_> = match column.data_type() {
            DataType::Utf8 => {
                let values = column.as_string::<i32>();
                Box::new(|row| values.value(row))
            }
            DataType::LargeUtf8 => {
                let values = column.as_string::<i64>();
                Box::new(|row| values.value(row))
            }
            DataType::Utf8View => {
                let values = column.as_string_view();
                Box::new(|row| values.value(row))
            }
            other => return Err(Error::internal(format!("lines cannot be written from {other}"))),
        };
        for row in 0..batch.num_rows() {
            let line = if column.is_null(row) { "" } else { text(row) };
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
