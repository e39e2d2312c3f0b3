//! Any bytes as a JSON file: no panic, and the same rows, rejects and error for every way of cutting the text. Of
//! lines, exactly those are accepted that serde_json accepts.
//!
//! The first byte of the input chooses the layout and the limit of a record, the second how the text is cut: into
//! pieces of at most 64 bytes, in which no record has the margin that the fast paths need. So the fast paths are
//! compared with the plain one.

use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use bytes::Bytes;
use millstream_core::format::{Format, OnDrift, ParseRequest, Parsed, Reading, Sample, StreamFormat, TEXT};
use millstream_format::json::{JsonFormat, JsonSpec, Layout};
use serde_json::{Map, Value};

use crate::rows;

/// The rows with their lines, and the message of each reject; or the error.
type Outcome = Result<(Vec<(RecordBatch, Vec<i64>)>, Vec<(Bytes, String)>), String>;

fn format(choice: u8) -> JsonFormat {
    let layout = [Layout::Auto, Layout::Lines, Layout::Array, Layout::Objects][usize::from(choice & 3)];
    let max_record = [16, 100, 1 << 20, 1 << 20][usize::from(choice >> 2 & 3)];
    let spec = JsonSpec { layout, max_record: millstream_core::spec::Size(max_record), ..JsonSpec::default() };
    JsonFormat::new(spec).expect("settings without columns have no faults")
}

fn parse(format: &dyn StreamFormat, text: &[u8], request: &ParseRequest, piece: usize) -> Outcome {
    let mut parser = format.parser(request).expect("the types can be read");
    let mut parsed = Parsed::default();
    let shown = |error: millstream_core::Error| format!("{error} {:?}", error.offending_text());
    for piece in text.chunks(piece.max(1)) {
        parser.push(Bytes::copy_from_slice(piece), &mut parsed).map_err(shown)?;
    }
    parser.finish(&mut parsed).map_err(shown)?;
    let rows = parsed.rows.into_iter().map(|rows| {
        let lines = rows.lines.expect("lines were asked for");
        assert_eq!(lines.len(), rows.batch.num_rows());
        (rows.batch, lines.as_primitive::<Int64Type>().values().to_vec())
    });
    let rejects = parsed.rejects.into_iter().map(|reject| {
        let place = reject.reason.location();
        assert!(place.line.is_some() && place.byte.is_some_and(|byte| byte <= text.len() as u64));
        (reject.raw, shown(reject.reason))
    });
    Ok((rows.collect(), rejects.collect()))
}

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let [choice, cut, text @ ..] = data else { return };
    let format = format(*choice);
    let Reading::Stream(stream) = format.reading() else { return };
    let sample = Sample { uri: "fuzz".to_owned(), text: Bytes::copy_from_slice(text), complete: cut & 1 == 0 };
    let fallback = Arc::new(Schema::new(vec![
        Field::new("a", DataType::Int64, true),
        Field::new("b", TEXT, true),
        Field::new("c", DataType::Float64, true),
        Field::new("d", DataType::Decimal128(20, 3), true),
        Field::new("e", DataType::Timestamp(arrow::datatypes::TimeUnit::Microsecond, None), true),
    ]));
    let inferred = stream.infer(&[sample], OnDrift::Fail);
    for schema in inferred.into_iter().chain([fallback]) {
        let on_drift = if cut & 2 == 0 { OnDrift::Fail } else { OnDrift::Null };
        let request = ParseRequest { lines: true, on_drift, ..ParseRequest::all(schema) };
        let whole = parse(stream, text, &request, text.len());
        let pieces = parse(stream, text, &request, usize::from(cut >> 2) + 1);
        assert_eq!(whole, pieces, "the pieces of {} bytes change something", usize::from(cut >> 2) + 1);
        if let Some(apart) = rows::parse_apart(stream, text, &request, usize::from(cut >> 2) + 1, usize::from(*choice))
        {
            let whole = rows::parse(stream, text, &request, text.len());
            assert_eq!(whole, apart, "parts that are parsed apart change something");
        }
    }
    against_serde_json(text);
}

/// Compares, line by line, what is accepted with what serde_json accepts.
fn against_serde_json(text: &[u8]) {
    let format = JsonFormat::new(JsonSpec { layout: Layout::Lines, ..JsonSpec::default() }).expect("no columns");
    let schema = Arc::new(Schema::new(vec![Field::new("a", TEXT, true)]));
    let request = ParseRequest { lines: true, on_drift: OnDrift::Null, ..ParseRequest::all(schema) };
    for line in text.split(|byte| *byte == b'\n') {
        if line.iter().all(|byte| b" \t\r".contains(byte))
            || line.starts_with(b"\xef\xbb\xbf")
            || line.starts_with(b"\xff\xfe")
        {
            continue;
        }
        let Ok((rows, rejects)) = parse(&format, line, &request, line.len()) else { continue };
        let taken = rows.iter().map(|(batch, _)| batch.num_rows()).sum::<usize>() == 1;
        // serde_json allows duplicate keys, and has other limits for depths and numbers.
        let ours_alone =
            rejects.iter().any(|(_, told)| told.contains("occurs twice") || told.contains("nested deeper"));
        match serde_json::from_slice::<Map<String, Value>>(line) {
            Ok(_) => assert!(taken || ours_alone, "serde_json takes it: {rejects:?}"),
            Err(error) => {
                let theirs_alone =
                    error.to_string().contains("number out of range") || error.to_string().contains("recursion limit");
                assert!(!taken || theirs_alone, "serde_json refuses it: {error}");
            }
        }
    }
}
