//! One column of text as lines.

use arrow::array::{Array, AsArray, ByteView, RecordBatch, StringViewArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use millstream_core::format::{RowEncoder, TEXT};
use millstream_core::views::INLINE;
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
        let start = output.len();
        append(texts, output);
        // All are searched at once, since texts with line ends are rare.
        let written = &output[start..];
        let may_end_with_return = memchr::memchr(b'\r', written).is_some();
        if may_end_with_return || memchr::memchr_iter(b'\n', written).count() != batch.num_rows() {
            let is_wrong = |line: &&str| line.contains('\n') || line.ends_with('\r');
            if let Some(wrong) = texts.iter().flatten().find(is_wrong) {
                return Err(Error::data("the text holds a line end and would become several lines")
                    .text(wrong)
                    .hint("replace line ends in SQL, or write csv or json"));
            }
        }
        Ok(())
    }

    fn finish(&mut self, _output: &mut Vec<u8>) -> Result<()> {
        Ok(())
    }
}

/// Appends `texts`, each with a line end. Lines that lie behind each other in their buffer, as in a file that was read,
/// are copied together.
fn append(texts: &StringViewArray, output: &mut Vec<u8>) {
    // From the first of such lines to the end of their buffer, and how long they are.
    let (mut run, mut length): (&[u8], usize) = (&[], 0);
    for row in 0..texts.len() {
        let line = if texts.is_null(row) { &[] } else { texts.value(row).as_bytes() };
        let next = &run[length..];
        let is_next = if line.len() > INLINE { line.as_ptr() == next.as_ptr() } else { next.starts_with(line) };
        if is_next && next.get(line.len()) == Some(&b'\n') {
            length += line.len() + 1;
            continue;
        }
        output.extend_from_slice(&run[..length]);
        (run, length) = (&[], 0);
        if line.len() > INLINE {
            let view = ByteView::from(texts.views()[row]);
            let rest = &texts.data_buffers()[view.buffer_index as usize][view.offset as usize..];
            if rest.get(line.len()) == Some(&b'\n') {
                (run, length) = (rest, line.len() + 1);
                continue;
            }
        }
        output.extend_from_slice(line);
        output.push(b'\n');
    }
    output.extend_from_slice(&run[..length]);
}
