//! Any bytes as lines: no panic, the same lines and rejects however the text is cut, and as many as are counted.
//!
//! The first byte of the input chooses the encoding and the longest line, the second how the text is cut.

use millstream_core::format::{Format, ParseRequest, Parsed, StreamFormat};
use serde_json::json;

use crate::rows::{parse, parse_apart};

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
    let counting = ParseRequest { projection: Vec::new(), lines: false, ..request };
    let counted = count(&format, text, &counting, usize::from(*cut) + 1);
    match whole {
        Ok((rows, _, rejects)) => assert_eq!(counted, Ok(rows.num_rows() + rejects.len())),
        Err(_) => assert!(counted.is_err(), "a line that is too long is so for those who count too"),
    }
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
