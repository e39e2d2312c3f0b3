//! What the targets of the stream formats share: a text parsed in pieces, in a form that can be compared.

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::Int64Type;
use bytes::Bytes;
use millstream_core::Error;
use millstream_core::format::{ParseRequest, Parsed, StreamFormat};

/// The rows as one batch, the line of each, and what is said of each reject; or the error.
pub type Outcome = Result<(RecordBatch, Vec<i64>, Vec<(Bytes, String)>), String>;

/// Parses `text`, pushed in pieces of `piece` bytes.
pub fn parse(format: &dyn StreamFormat, text: &[u8], request: &ParseRequest, piece: usize) -> Outcome {
    let mut parser = format.parser(request).expect("the types can be read");
    let mut parsed = Parsed::default();
    let shown = |error: Error| format!("{error} {:?} {:?}", error.offending_text(), error.hint_text());
    for piece in text.chunks(piece.max(1)) {
        parser.push(Bytes::copy_from_slice(piece), &mut parsed).map_err(shown)?;
    }
    parser.finish(&mut parsed).map_err(shown)?;
    let batches: Vec<&RecordBatch> = parsed.rows.iter().map(|rows| &rows.batch).collect();
    // Text is shared with what was pushed, unchecked: this looks at all of it.
    batches.iter().flat_map(|batch| batch.columns()).for_each(|column| {
        column.to_data().validate_full().expect("an array that holds what it says");
    });
    let rows = concat_batches(&request.output_schema(), batches).expect("batches of one schema");
    let lines = parsed.rows.iter().filter_map(|rows| rows.lines.as_ref());
    let lines: Vec<i64> = lines.flat_map(|lines| lines.as_primitive::<Int64Type>().values().to_vec()).collect();
    assert_eq!(lines.len(), rows.num_rows(), "every row has its line");
    assert!(lines.is_sorted());
    let rejects = parsed.rejects.into_iter().map(|reject| {
        assert!(reject.reason.place().line.is_some() && reject.reason.place().byte.is_some());
        (reject.raw, shown(reject.reason))
    });
    Ok((rows, lines, rejects.collect()))
}
