//! Any bytes as a CSV file: no panic, and the same rows, rejects and error for every way of cutting the text, also into
//! parts that are parsed separately. Rows that were read can be written and read again.
//!
//! The first byte of the input chooses the dialect, the second how the text is cut.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use bytes::Bytes;
use millstream_core::format::{Format, OnDrift, ParseRequest, Reading, Sample, StreamFormat, TEXT};
use serde_json::json;

use crate::rows::{parse, parse_apart};

fn format(choice: u8) -> millstream_format::csv::Csv {
    let mut settings = [
        json!({}),
        json!({"delimiter": ";", "decimal": ",", "thousands": ".", "null": ["", "NA"]}),
        json!({"delimiter": "\t", "quote": "none"}),
        json!({"escape": "\\", "trim": true, "comment": "#"}),
        json!({"delimiter": "ß", "quote": "'", "date_format": "%d.%m.%Y"}),
        json!({"encoding": "utf-16"}),
        json!({"encoding": "shift_jis"}),
        json!({"max_record": 40, "skip_lines": 1}),
    ][usize::from(choice & 7)]
    .clone();
    settings["header"] = json!(choice & 8 == 0);
    let spec = serde_json::from_value(settings).expect("valid settings");
    millstream_format::csv::Csv::new(&spec).expect("valid settings")
}

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let [choice, cut, text @ ..] = data else { return };
    let format = format(*choice);
    let sample = Sample { uri: "fuzz".to_owned(), text: Bytes::copy_from_slice(text), complete: cut & 1 == 0 };
    let declared = Arc::new(Schema::new(vec![
        Field::new("a", DataType::Int64, true),
        Field::new("b", TEXT, true),
        Field::new("c", DataType::Decimal128(10, 2), true),
        Field::new("d", DataType::Date32, true),
        Field::new("e", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true),
        Field::new("f", DataType::Float64, true),
        Field::new("g", DataType::Binary, true),
        Field::new("h", DataType::Time64(TimeUnit::Microsecond), true),
    ]));
    for schema in format.infer(&[sample], OnDrift::Fail).into_iter().chain([declared]) {
        let on_drift = if cut & 2 == 0 { OnDrift::Fail } else { OnDrift::Null };
        let request = ParseRequest { lines: true, on_drift, batch_rows: 5, ..ParseRequest::all(schema) };
        let piece = usize::from(cut >> 2) + 1;
        let whole = parse(&format, text, &request, text.len());
        assert_eq!(whole, parse(&format, text, &request, piece), "pieces of {piece} bytes change something");
        if let Some(apart) = parse_apart(&format, text, &request, piece, usize::from(*cut)) {
            assert_eq!(whole, apart, "parts that are parsed apart change something");
        }
        if let Ok((rows, ..)) = whole
            && *choice & 7 == 0
        {
            round(&format, &rows);
        }
    }
}

/// Writes the rows and checks that reading gives the same ones.
fn round(format: &millstream_format::csv::Csv, rows: &arrow::array::RecordBatch) {
    let mut written = Vec::new();
    let mut encoder = format.encoder(rows.schema(), true).expect("the types can be written");
    encoder.encode(rows, &mut written).expect("what was read can be written");
    encoder.finish(&mut written).expect("the end can be written");
    let Reading::Stream(stream) = format.reading() else { return };
    let request = ParseRequest { lines: true, ..ParseRequest::all(rows.schema()) };
    let (again, _, rejects) = parse(stream, &written, &request, written.len()).expect("what was written can be read");
    assert!(rejects.is_empty(), "{rejects:?}");
    assert_eq!(&again, rows);
}
