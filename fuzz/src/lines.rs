//! Any bytes as lines: no panic, the same lines and rejects for every way of cutting the text, as many as are counted,
//! and none lost if a text is required.
//!
//! The first byte of the input chooses the encoding and the longest line, the second how the text is cut.

use arrow::array::AsArray;
use millstream_core::format::{Format, ParseRequest, Parsed, Required, StreamFormat};
use serde_json::json;

use crate::rows::{Rows, parse, parse_apart};

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let [choice, cut, text @ ..] = data else { return };
    let max_record = if choice & 1 == 0 { 20 } else { 1 << 20 };
    let mut settings = json!({"max_record": max_record});
    if let Some(encoding) = ["utf-8", "utf-16", "windows-1252"].get(usize::from(choice >> 1 & 3)) {
        settings["encoding"] = json!(encoding);
    }
    let spec = serde_json::from_value(settings).expect("valid settings");
    let format = millstream_format::lines::Lines::new(&spec).expect("valid settings");
    let schema = format.declared().expect("lines always have their column");
    let request = ParseRequest { lines: true, batch_rows: 5, ..ParseRequest::all(schema) };
    let whole = parse(&format, text, &request, text.len());
    assert_eq!(whole, parse(&format, text, &request, usize::from(*cut) + 1), "cut every {} bytes", cut + 1);
    if let Some(apart) = parse_apart(&format, text, &request, usize::from(*cut) + 1, usize::from(*choice >> 3)) {
        assert_eq!(whole, apart, "parts that are parsed apart change something");
    }
    if let Ok(whole) = &whole {
        check_required(&format, text, &request, usize::from(*cut) + 1, whole);
    }
    let counting = ParseRequest { projection: Vec::new(), lines: false, ..request };
    let counted = count(&format, text, &counting, usize::from(*cut) + 1);
    match whole {
        Ok((rows, _, rejects)) => assert_eq!(counted, Ok(rows.num_rows() + rejects.len())),
        Err(_) => assert!(counted.is_err(), "a line that is too long is so for those who count too"),
    }
}

/// Checks that a required text (some bytes of the input) does not change the lines that contain it.
fn check_required(format: &dyn StreamFormat, text: &[u8], request: &ParseRequest, piece: usize, whole: &Rows) {
    let Some(required) = text.get(3..5).and_then(|bytes| std::str::from_utf8(bytes).ok()) else { return };
    let hint = Required { column: 0, text: required.to_owned() };
    let request = ParseRequest { required: vec![hint], ..request.clone() };
    let some = parse(format, text, &request, piece).expect("what is required is no fault");
    assert_eq!(some.2, whole.2, "other rejects");
    assert_eq!(with(&some, required), with(whole, required), "other lines");
}

fn with(outcome: &Rows, required: &str) -> Vec<(String, i64)> {
    let lines = outcome.0.column(0).as_string_view().iter().flatten().zip(&outcome.1);
    let wanted = lines.filter(|(line, _)| line.contains(required));
    wanted.map(|(line, number)| (line.to_owned(), *number)).collect()
}

fn count(format: &dyn StreamFormat, text: &[u8], request: &ParseRequest, piece: usize) -> Result<usize, String> {
    let mut parser = format.parser(request).expect("lines can be counted");
    let mut parsed = Parsed::default();
    for piece in text.chunks(piece) {
        parser.push(bytes::Bytes::copy_from_slice(piece), &mut parsed).map_err(|error| error.to_string())?;
    }
    parser.finish(&mut parsed).map_err(|error| error.to_string())?;
    assert!(parsed.rejects.is_empty());
    Ok(parsed.rows.iter().map(|rows| rows.batch.num_rows()).sum())
}
