//! Shared by the targets of the stream formats: parses a text in pieces into a form that can be compared.

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::Int64Type;
use bytes::Bytes;
use millstream_core::Error;
use millstream_core::format::{ParseRequest, Parsed, StreamFormat};

/// The rows as one batch, the line of each, and the message of each reject.
pub type Rows = (RecordBatch, Vec<i64>, Vec<(Bytes, String)>);

/// Rows, or the error.
pub type Outcome = Result<Rows, String>;

fn shown(error: Error) -> String {
    format!("{error} {:?} {:?}", error.offending_text(), error.hint_text())
}

/// Parses `text`, pushed in pieces of `piece` bytes.
pub fn parse(format: &dyn StreamFormat, text: &[u8], request: &ParseRequest, piece: usize) -> Outcome {
    let mut parser = format.parser(request).expect("the types can be read");
    let mut parsed = Parsed::default();
    for piece in text.chunks(piece.max(1)) {
        parser.push(Bytes::copy_from_slice(piece), &mut parsed).map_err(shown)?;
    }
    parser.finish(&mut parsed).map_err(shown)?;
    Ok(together(request, parsed))
}

/// Parses `text`, pushed in pieces of `piece` bytes, in parts of at least `size` bytes that are parsed separately;
/// `None` if it cannot be cut.
pub fn parse_apart(
    format: &dyn StreamFormat,
    text: &[u8],
    request: &ParseRequest,
    piece: usize,
    size: usize,
) -> Option<Outcome> {
    let mut splitter = format.splitter(text)?;
    let mut pieces = Vec::new();
    text.chunks(piece.max(1)).for_each(|text| splitter.push(Bytes::copy_from_slice(text), size, &mut pieces));
    splitter.finish(&mut pieces);
    let mut first = format.parser(request).expect("the types can be read");
    let mut parsed = Parsed::default();
    let parse = || {
        for (index, piece) in pieces.into_iter().enumerate() {
            if index == 0 {
                piece.text.into_iter().try_for_each(|text| first.push(text, &mut parsed))?;
                first.finish(&mut parsed)?;
                continue;
            }
            let mut parser = first.fork(piece.place).expect("the first piece says all there is to know");
            piece.text.into_iter().try_for_each(|text| parser.push(text, &mut parsed))?;
            parser.finish(&mut parsed)?;
        }
        Ok(())
    };
    let result: Result<(), Error> = parse();
    Some(result.map_err(shown).map(|()| together(request, parsed)))
}

/// All rows, validated, as one batch.
fn together(request: &ParseRequest, parsed: Parsed) -> Rows {
    let batches: Vec<&RecordBatch> = parsed.rows.iter().map(|rows| &rows.batch).collect();
    // Text is shared unchecked with the pushed bytes: this validates all of it.
    batches.iter().flat_map(|batch| batch.columns()).for_each(|column| {
        column.to_data().validate_full().expect("an array that holds what it says");
    });
    let rows = concat_batches(&request.output_schema(), batches).expect("batches of one schema");
    let lines = parsed.rows.iter().filter_map(|rows| rows.lines.as_ref());
    let lines: Vec<i64> = lines.flat_map(|lines| lines.as_primitive::<Int64Type>().values().to_vec()).collect();
    assert_eq!(lines.len(), rows.num_rows(), "every row has its line");
    assert!(lines.is_sorted());
    let rejects = parsed.rejects.into_iter().map(|reject| {
        assert!(reject.reason.location().line.is_some() && reject.reason.location().byte.is_some());
        (reject.raw, shown(reject.reason))
    });
    (rows, lines, rejects.collect())
}
