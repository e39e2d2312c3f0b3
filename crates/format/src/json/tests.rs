//! Tests of JSON: the conformance suite, each fault, inference, layouts, and serde_json as a reference.

use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use bytes::Bytes;
use millstream_core::contains::Contains;
use millstream_core::format::{Format, OnDrift, ParseRequest, Reject, Sample, StreamFormat, Validate};
use millstream_core::{Error, ErrorKind};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::conformance::{self, Columns, Outcome, Subject, encode, far, flat, nested};
use millstream_core::columns::{ColumnSpec, Columns as Declared, parse_type, type_name};

fn format(settings: Value) -> JsonFormat {
    JsonFormat::new(core_spec::parse(&settings).expect("good settings")).expect("good columns")
}

fn schema(columns: &[(&str, &str)]) -> SchemaRef {
    let field = |(name, data_type): &(&str, &str)| Field::new(*name, parse_type(data_type).expect("a type"), true);
    Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()))
}

/// Reads `text` with the settings' columns or, if they declare none, `id int64, name utf8`.
fn try_read(settings: Value, text: &[u8]) -> Result<Outcome> {
    let format = format(settings);
    let schema = format.declared().unwrap_or_else(|| schema(&[("id", "int64"), ("name", "utf8")]));
    conformance::parse(&format, text, &ParseRequest { lines: true, bytes: true, ..ParseRequest::all(schema) }, &[])
}

fn read(settings: Value, text: &[u8]) -> Outcome {
    try_read(settings, text).expect("readable")
}

/// The ids of the rows.
fn ids(outcome: &Outcome) -> Vec<i64> {
    outcome.rows.column(0).as_primitive::<Int64Type>().values().to_vec()
}

/// Location, message and text in one line.
fn shown(error: &Error) -> String {
    let text = error.offending_text().map(|text| format!(" [{text}]")).unwrap_or_default();
    format!("{error}{text}")
}

/// Reads one bad record between two good ones, in every layout that cuts at brackets or at lines, and returns the
/// message.
fn fault(columns: Value, bad: &str) -> String {
    let lines = format!("{{\"id\": 1}}\n{bad}\n{{\"id\": 3}}\n");
    let outcome = read(json!({"columns": columns, "layout": "lines"}), lines.as_bytes());
    assert_eq!(ids(&outcome), [1, 3], "the neighbours of {bad}");
    assert_eq!(outcome.rejects.len(), 1, "{bad}");
    let reject = &outcome.rejects[0];
    assert_eq!(reject.raw, bad.trim_end_matches(' ').as_bytes());
    assert_eq!(reject.reason.kind(), ErrorKind::Data);
    shown(&reject.reason)
}

fn id_fault(bad: &str) -> String {
    fault(json!({"id": "int64", "name": "utf8"}), bad)
}

#[test]
fn conformance_of_lines() {
    for batch in [flat(), nested(), far()] {
        for settings in [json!({}), json!({"nulls": "omit"}), json!({"decimals": "text", "layout": "lines"})] {
            // A column that is null throughout leaves no trace if nulls are left out.
            let all_null = batch.columns().iter().any(|column| column.null_count() == column.len());
            if all_null && settings["nulls"] == "omit" {
                continue;
            }
            let mut settings = settings;
            settings["columns"] = serde_json::to_value(declared(&batch)).expect("a map");
            let format: Arc<dyn Format> = Arc::new(format(settings));
            let bad_record = Some(b"{\"id\": \"x\"}\n".as_slice());
            Subject { format, batch: batch.clone(), bad_record, columns: Columns::Optional }.check();
        }
    }
    let format: Arc<dyn Format> = Arc::new(format(json!({"layout": "lines"})));
    Subject { format, batch: flat(), bad_record: Some(b"[]\n"), columns: Columns::Optional }.check_memory();
}

#[test]
fn conformance_of_arrays() {
    for batch in [flat(), nested(), far()] {
        let format: Arc<dyn Format> = Arc::new(format(json!({"layout": "array"})));
        Subject { format, batch, bad_record: None, columns: Columns::Optional }.check();
    }
}

fn declared(batch: &RecordBatch) -> Declared {
    let column = |field: &Arc<Field>| (field.name().clone(), ColumnSpec::Type(type_name(field.data_type())));
    Declared(batch.schema().fields().iter().map(column).collect())
}

#[test]
fn faults_of_values_are_distinguished() {
    let cases = [
        (r#"{"id": "abc"}"#, "line 2, byte 17, column id: not int64 [abc]"),
        (
            r#"{"id": 9223372036854775808}"#,
            "line 2, byte 17, column id: out of the range of int64 [9223372036854775808]",
        ),
        (r#"{"id": 1e400}"#, "line 2, byte 17, column id: out of the range of int64 [1e400]"),
        (r#"{"id": 1.5}"#, "line 2, byte 17, column id: int64 cannot hold all its digits after the point [1.5]"),
        (r#"{"id": true}"#, "line 2, byte 17, column id: expected int64, found a truth value [true]"),
        (r#"{"id": [1, 2]}"#, "line 2, byte 17, column id: expected int64, found a list [[1, 2]]"),
        (r#"{"id": {"a": 1}}"#, "line 2, byte 17, column id: expected int64, found an object [{\"a\": 1}]"),
        (r#"{"id": ""}"#, "line 2, byte 17, column id: not int64 []"),
    ];
    for (bad, expected) in cases {
        assert_eq!(id_fault(bad), expected);
    }
}

#[test]
fn faults_of_every_type() {
    let cases = [
        ("bool", "1", "expected bool, found a number [1]"),
        ("int8", "128", "out of the range of int8 [128]"),
        ("uint8", "-1", "out of the range of uint8 [-1]"),
        ("uint64", "18446744073709551616", "out of the range of uint64 [18446744073709551616]"),
        ("float32", "1e39", "out of the range of float32 [1e39]"),
        ("float64", "1e309", "out of the range of float64 [1e309]"),
        ("float64", "\"inf\"", "not float64 [inf]"),
        ("float64", "\"abc\"", "not float64 [abc]"),
        ("decimal(4, 2)", "100", "out of the range of decimal(4, 2) [100]"),
        ("decimal(4, 2)", "0.001", "decimal(4, 2) cannot hold all its digits after the point [0.001]"),
        ("decimal(4, 2)", "\"x\"", "not decimal(4, 2) [x]"),
        ("decimal(76, 0)", "1e999999999999999999999", "out of the range of decimal(76, 0) [1e999999999999999999999]"),
        ("date", "\"2023-02-29\"", "out of the range of date [2023-02-29]"),
        ("date", "\"29.02.2024\"", "not date [29.02.2024]"),
        ("date", "20240229", "expected date, found a number [20240229]"),
        ("time", "\"24:00\"", "out of the range of time [24:00]"),
        ("timestamp", "\"2024-02-29T10\"", "not timestamp [2024-02-29T10]"),
        (
            "timestamp",
            "\"2024-02-29T10:00:00.1234567\"",
            "timestamp cannot hold all its digits after the point [2024-02-29T10:00:00.1234567]",
        ),
        ("timestamptz", "\"2024-02-29T10:00:00+25:00\"", "out of the range of timestamptz [2024-02-29T10:00:00+25:00]"),
        ("binary", "\"abc\"", "not binary [abc]"),
        ("list<int64>", "1", "expected a list, found a number [1]"),
        ("struct<a: int64>", "[1]", "expected an object, found a list [[1]]"),
    ];
    for (data_type, value, expected) in cases {
        let bad = format!("{{\"x\": {value}}}");
        let told = fault(json!({"id": "int64", "x": data_type}), &bad);
        assert_eq!(told, format!("line 2, byte 16, column x: {expected}"), "{data_type}");
    }
}

#[test]
fn a_fault_inside_a_value_has_its_path() {
    let columns = json!({"id": "int64", "people": "list<struct<name: utf8, age: int8>>"});
    let bad = r#"{"people": [{"name": "a", "age": 1}, {"name": "b", "age": 1000}]}"#;
    let told = fault(columns, bad);
    assert_eq!(told, "line 2, byte 68, column people[2].age: out of the range of int8 [1000]");
}

#[test]
fn faults_of_the_grammar_are_distinguished() {
    let cases = [
        (r#"{"id": 2,}"#, "line 2, byte 18: a comma before the end of the object"),
        (r#"{"name": [1,]}"#, "line 2, byte 21, column name: a comma before the end of the list"),
        (r#"{"id": 2 "name": 3}"#, "line 2, byte 19: expected `,` or `}` in the object [\"name\": 3}]"),
        (r#"{"name": [1 2]}"#, "line 2, byte 22, column name: expected `,` or `]` in the list [2]}]"),
        (r#"{"id" 2}"#, "line 2, byte 16: a `:` is missing after a key [id]"),
        (r#"{id: 2}"#, "line 2, byte 11: expected a key in double quotes [id: 2}]"),
        (r#"{'id': 2}"#, "line 2, byte 11: a key in single quotes ['id': 2}]"),
        (r#"{"id": 'a'}"#, "line 2, byte 17, column id: a text in single quotes [']"),
        (r#"{"id": NaN}"#, "line 2, byte 17, column id: not a JSON value: JSON has no such number [NaN]"),
        (r#"{"id": -Infinity}"#, "line 2, byte 17, column id: not a JSON value: JSON has no such number [-Infinity]"),
        (r#"{"id": None}"#, "line 2, byte 17, column id: not a JSON value [None]"),
        (r#"{"id": True}"#, "line 2, byte 17, column id: not a JSON value [True]"),
        (r#"{"id": nulls}"#, "line 2, byte 17, column id: not a JSON value [nulls]"),
        (r#"{"id": 012}"#, "line 2, byte 17, column id: a number has a leading 0 [012]"),
        (r#"{"id": 1.}"#, "line 2, byte 17, column id: a number has no digits after its point [1.]"),
        (r#"{"id": 1e}"#, "line 2, byte 17, column id: a number has no digits in its exponent [1e]"),
        (r#"{"id": 1x}"#, "line 2, byte 17, column id: not a number [1x]"),
        (r#"{"id": +1}"#, "line 2, byte 17, column id: not a JSON value [+1]"),
        (r#"{"id": .5}"#, "line 2, byte 17, column id: not a JSON value [.5]"),
        (r#"{"id": 2, "id": 2}"#, "line 2, byte 18, column id: a key occurs twice in one object [id]"),
        (r#"{"name": "\x"}"#, "line 2, byte 20, column name: an unknown escape inside a text [\\x]"),
        (
            r#"{"name": "\u12g4"}"#,
            "line 2, byte 20, column name: a \\u escape without four hexadecimal digits [\\u12g4]",
        ),
        (
            r#"{"name": "\ud83d!"}"#,
            "line 2, byte 20, column name: half a character: one \\u escape of a pair is missing [\\ud83d]",
        ),
        (
            r#"{"name": "\ude00\ud83d"}"#,
            "line 2, byte 20, column name: half a character: one \\u escape of a pair is missing [\\ude00]",
        ),
        (
            r#"{"name": "\ud83d\uae00"}"#,
            "line 2, byte 20, column name: half a character: one \\u escape of a pair is missing [\\ud83d]",
        ),
        ("{\"name\": \"a\tb\"}", "line 2, byte 21, column name: a control character (0x09) inside a text"),
        (r#"{"id": 2} {"id": 3}"#, "line 2, byte 20: text after the end of the record [{\"id\": 3}]"),
        (r#"{"id": 2}}"#, "line 2, byte 19: text after the end of the record [}]"),
        ("{\"id\": 2}\u{c}", "line 2, byte 19: text after the end of the record [\\u{c}]"),
        ("12", "line 2, byte 10: the record is a number, not an object [12]"),
        ("[1]", "line 2, byte 10: the record is a list, not an object [[1]]"),
        ("null", "line 2, byte 10: the record is null, not an object [null]"),
        ("hello, world", "line 2, byte 10: not a JSON value [hello]"),
        (r#"{"id": 2, "colour": "red"}"#, "line 2, byte 18, column colour: a key that is not a column [colour]"),
    ];
    for (bad, expected) in cases {
        assert_eq!(id_fault(bad), expected, "{bad}");
    }
}

#[test]
fn a_record_cut_anywhere_says_so() {
    let record = r#"{"name": "a\u00e9\ud83d\ude00", "id": -1.0e0, "tags": [true, false, null, {"a": []}]}"#;
    let columns = json!({"id": "int64", "name": "utf8", "tags": "utf8"});
    for end in 1..record.len() {
        let told = fault(columns.clone(), &record[..end]);
        assert!(told.contains("cut short"), "{:?}: {told}", &record[..end]);
        assert!(told.starts_with("line 2, byte "), "{told}");
    }
}

#[test]
fn bytes_that_are_not_utf8_are_named() {
    let outcome = read(json!({}), b"{\"id\": 1}\n{\"id\": 2, \"name\": \"M\xfcnchen\"}\n{\"id\": 3}\n");
    assert_eq!(ids(&outcome), [1, 3]);
    let reason = &outcome.rejects[0].reason;
    assert_eq!(shown(reason), "line 2, byte 30: bytes that are not UTF-8 [\\xfc\\x6e\\x63\\x68\\x65\\x6e\\x22\\x7d]");
    let error = try_read(json!({}), b"\xff\xfe{\0").expect_err("UTF-16");
    assert_eq!(error.what(), "the text is UTF-16, and JSON must be UTF-8");
}

#[test]
fn nesting_has_a_limit_and_no_stack_overflows() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let deep =
            |levels: usize| format!("{{\"id\": 1, \"name\": {}null{}}}", open.repeat(levels), close.repeat(levels));
        // The record itself is one level.
        assert_eq!(ids(&read(json!({}), deep(127).as_bytes())), [1]);
        for levels in [128, 100_000] {
            let outcome = read(json!({}), deep(levels).as_bytes());
            let what = outcome.rejects[0].reason.what().to_owned();
            assert_eq!(what, "objects and lists are nested deeper than 128 levels");
        }
    }
    let endless = "[".repeat(1 << 20);
    let error = try_read(json!({"layout": "array"}), endless.as_bytes()).expect_err("too many brackets");
    assert_eq!(error.what(), "more objects and lists are open than can be followed");
}

#[test]
fn numbers_may_be_written_in_any_way_that_is_exact() {
    let columns = json!({"id": "int64", "price": "decimal(10, 2)", "ratio": "float64"});
    let text = br#"{"id": 1.0, "price": 1.50, "ratio": "0.5"}
{"id": 2e0, "price": "150e-2", "ratio": 5e-1}
{"id": "3", "price": 15e-1, "ratio": "5E-1"}
{"id": 0.4e1, "price": 1.5000, "ratio": 0.50}"#;
    let outcome = read(json!({"columns": columns}), text);
    assert_eq!(ids(&outcome), [1, 2, 3, 4]);
    let price = arrow::util::display::array_value_to_string(outcome.rows.column(1), 2).expect("a decimal");
    assert_eq!(price, "1.50");
    let prices = outcome.rows.column(1).as_primitive::<arrow::datatypes::Decimal128Type>();
    assert!(prices.values().iter().all(|price| *price == 150));
    let ratios = outcome.rows.column(2).as_primitive::<arrow::datatypes::Float64Type>();
    assert!(ratios.values().iter().all(|ratio| *ratio == 0.5));
}

#[test]
fn a_text_column_takes_everything() {
    let text = br#"{"id": 1, "name": "text"}
{"id": 2, "name": 1.50}
{"id": 3, "name": [1, {"a" : null}]}
{"id": 4, "name": true}
{"id": 5, "name": null}
{"id": 6}"#;
    let outcome = read(json!({}), text);
    let names: Vec<Option<&str>> = outcome.rows.column(1).as_string_view().iter().collect();
    assert_eq!(names, [Some("text"), Some("1.50"), Some("[1, {\"a\" : null}]"), Some("true"), None, None]);
}

#[test]
fn dates_can_have_a_format() {
    let columns = json!({
        "id": "int64",
        "day": {"type": "date", "format": "%d.%m.%Y"},
        "at": {"type": "timestamptz", "format": "%d/%b/%Y:%H:%M:%S %z"},
    });
    let text = br#"{"id": 1, "day": "29.02.2024", "at": "10/Oct/2000:13:55:36 -0700"}
{"id": 2, "day": "2024-02-29"}"#;
    let outcome = read(json!({"columns": columns}), text);
    assert_eq!(ids(&outcome), [1]);
    assert_eq!(shown(&outcome.rejects[0].reason), "line 2, byte 84, column day: not date [2024-02-29]");
    let day = outcome.rows.column(1).as_primitive::<arrow::datatypes::Date32Type>().value(0);
    let at = outcome.rows.column(2).as_primitive::<arrow::datatypes::TimestampMicrosecondType>().value(0);
    assert_eq!((day, at), (19_782, 971_211_336_000_000), "29 February 2024, and 20:55:36 UTC");
}

#[test]
fn marks_ends_and_blank_lines_do_not_matter() {
    let text = b"\xef\xbb\xbf\r\n  {\"id\": 1}\r\n\r\n\t\n{\"id\": 2}   \n{\"id\": 3}";
    let outcome = read(json!({}), text);
    assert_eq!(ids(&outcome), [1, 2, 3]);
    assert_eq!(outcome.lines, [2, 5, 6]);
    assert_eq!(ids(&read(json!({}), b"")), [0_i64; 0]);
    assert_eq!(ids(&read(json!({}), b"\n\n  ")), [0_i64; 0]);
}

#[test]
fn the_byte_of_a_fault_counts_the_byte_order_mark() {
    let outcome = read(json!({}), b"\xef\xbb\xbf{\"id\": 1}\n  {\"id\": x}\n");
    assert_eq!(outcome.rejects[0].reason.to_string(), "line 2, byte 22, column id: not a JSON value");
}

#[test]
fn layouts_are_found() {
    let cases: [(&[u8], &[i64]); 9] = [
        (b"{\"id\": 1}\n{\"id\": 2}\n", &[1, 2]),
        (b"[{\"id\": 1}, {\"id\": 2}]", &[1, 1]),
        (b" \n[\n  {\n \"id\": 1\n },\n {\"id\": 2}\n]\n", &[3, 6]),
        (b"{\n  \"id\": 1\n}\n{\n  \"id\": 2\n}\n", &[1, 4]),
        (b"{\"id\":\n1}\n{\"id\": 2}\n", &[1, 3]),
        (b"{\"id\": 1}{\"id\": 2} {\"id\": 3}", &[1, 1, 1]),
        (b"{\"name\": \"{[\", \"id\": 1}\n{\"id\": 2}\n", &[1, 2]),
        (b"{\"name\": \"\\\"}\", \"id\": 1}", &[1]),
        (b"[]", &[]),
    ];
    for (text, lines) in cases {
        let outcome = read(json!({}), text);
        assert_eq!(outcome.lines, lines, "{}", String::from_utf8_lossy(text));
        assert!(outcome.rejects.is_empty());
        assert_eq!(ids(&outcome), (1..=lines.len() as i64).collect::<Vec<_>>());
        let format = format(json!({}));
        let request = ParseRequest {
            lines: true,
            bytes: true,
            ..ParseRequest::all(schema(&[("id", "int64"), ("name", "utf8")]))
        };
        for cut in 0..text.len() {
            let again = conformance::parse(&format, text, &request, &[cut]).expect("readable");
            assert_eq!((again.rows, again.lines), (outcome.rows.clone(), outcome.lines.clone()), "cut at {cut}");
        }
    }
}

#[test]
fn a_bad_record_of_an_array_leaves_its_neighbours_alone() {
    let text = b"[{\"id\": 1},\n {\"id\": \"}]\",\n  \"name\": \"\\\"]\"}, 7, \"a ] b\", {\"id\": 2,}, {\"id\": 3}]";
    let outcome = read(json!({}), text);
    assert_eq!(ids(&outcome), [1, 3]);
    let told: Vec<String> = outcome.rejects.iter().map(|reject| shown(&reject.reason)).collect();
    assert_eq!(
        told,
        [
            "line 2, byte 20, column id: not int64 [}]]",
            "line 3, byte 44: the record is a number, not an object [7]",
            "line 3, byte 47: the record is a text, not an object [\"a ] b\"]",
            "line 3, byte 64: a comma before the end of the object",
        ]
    );
}

#[test]
fn an_array_that_is_broken_between_records_ends_the_reading() {
    let cases: [(&[u8], &str); 9] = [
        (b"[{\"id\": 1} {\"id\": 2}]", "line 1, byte 11: expected `,` or `]` after a record [{]"),
        (b"[{\"id\": 1},\n]", "line 2, byte 12: a comma before the end of the array []]"),
        (b"[,{\"id\": 1}]", "line 1, byte 1: expected a record [,]"),
        (b"[{\"id\": 1}]\n{", "line 2, byte 12: text after the end of the array [{]"),
        (b"[{\"id\": 1}", "line 1, byte 10: the array is cut short: its `]` is missing"),
        (b"[{\"id\": 1},\n", "line 2, byte 12: the array is cut short: its `]` is missing"),
        (b"[{\"id\": [1}]", "line 1, byte 10: `}` closes nothing that is open [}]"),
        (b"[{\"id\": 1,\n \"name\": \"a\n\"}]", "line 2, byte 20: a text is not closed on its line"),
        (b"", "line 1: the text is empty, and `layout: array` expects `[`"),
    ];
    for (text, expected) in cases {
        let error = try_read(json!({"layout": "array"}), text).expect_err("broken");
        assert_eq!(shown(&error), expected);
    }
    let outcome = read(json!({"layout": "array"}), b"[{\"id\": 1}, {\"id\": 2, \"name\": \"a");
    assert_eq!(ids(&outcome), [1]);
    let told = shown(&outcome.rejects[0].reason);
    assert_eq!(
        told,
        "line 1, byte 32, column name: the record is cut short in the middle of a text [{\"id\": 2, \"name\": \"a]"
    );
}

#[test]
fn records_that_are_too_long_are_passed_over() {
    let long = format!("{{\"id\": 2, \"name\": \"{}\"}}", "x".repeat(100));
    for (layout, text) in [
        ("lines", format!("{{\"id\": 1}}\n{long}\n{{\"id\": 3}}\n")),
        ("array", format!("[{{\"id\": 1}},\n{long},\n{{\"id\": 3}}]")),
        ("objects", format!("{{\"id\": 1}}\n{long}\n{{\"id\": 3}}")),
    ] {
        let format = format(json!({"layout": layout, "max_record": 50}));
        let request = ParseRequest {
            lines: true,
            bytes: true,
            ..ParseRequest::all(schema(&[("id", "int64"), ("name", "utf8")]))
        };
        for cuts in [Vec::new(), vec![60], (1..text.len()).collect()] {
            let outcome = conformance::parse(&format, text.as_bytes(), &request, &cuts).expect("readable");
            assert_eq!(ids(&outcome), [1, 3], "{layout}");
            assert_eq!(outcome.lines, [1, 3], "{layout}");
            let reject = &outcome.rejects[0];
            assert_eq!(reject.reason.what(), "the record is longer than 50 bytes");
            assert_eq!(reject.reason.location().line, Some(2));
            assert_eq!(reject.raw, long.as_bytes()[..50]);
        }
    }
    // White space alone is no record, but a line that is too long is never skipped silently.
    let blank = format!("{}\n{{\"id\": 1}}", " ".repeat(60));
    let outcome = read(json!({"layout": "lines", "max_record": 50}), blank.as_bytes());
    assert_eq!((ids(&outcome), outcome.rejects.len()), (vec![1], 1));
}

#[test]
fn blanks_before_the_first_record_are_counted_and_not_kept() {
    let request =
        ParseRequest { lines: true, bytes: true, ..ParseRequest::all(schema(&[("id", "int64"), ("name", "utf8")])) };
    let format = format(json!({"max_record": 50}));
    let lines = " \r\n\t \n".repeat(30);
    let long = " ".repeat(51);
    for (text, expected, rejects) in [
        (format!("{lines}  {{\"id\": 1}}\n[]"), vec![61], vec![62]),
        (format!("\u{feff}{lines}  [{{\"id\": 1}},\n\n3]"), vec![61], vec![63]),
        (format!("{lines}  {{\n\"id\": 1}}"), vec![61], vec![]),
        (format!("\n{}\r\n{{\"id\": 1}}", &long[1..]), vec![3], vec![]),
        (format!("{lines}\n{long}\n{{\"id\": 1}}"), vec![63], vec![62]),
        (format!("\n{long}[\n{{\"id\": 1}}"), vec![3], vec![2]),
    ] {
        for cuts in [Vec::new(), vec![60], (1..text.len()).collect()] {
            let outcome = conformance::parse(&format, text.as_bytes(), &request, &cuts).expect("readable");
            let rejected: Vec<u64> =
                outcome.rejects.iter().filter_map(|reject| reject.reason.location().line).collect();
            assert_eq!((&outcome.lines, &rejected), (&expected, &rejects), "{text:?}");
            let bytes = outcome.rejects.iter().filter_map(|reject| reject.reason.location().byte);
            assert!(
                bytes
                    .zip(&outcome.rejects)
                    .all(|(byte, reject)| text.as_bytes()[byte as usize..].starts_with(&reject.raw))
            );
        }
    }
    let mut splitter = records::Splitter::new(Layout::Auto, 1 << 20);
    for _ in 0..1000 {
        splitter.push(b"        \n", &mut |_| Ok(())).expect("blanks are no fault");
    }
    assert!(splitter.held() < 20, "{}", splitter.held());
}

#[test]
fn keys_that_are_no_columns_follow_on_drift() {
    let format = format(json!({"columns": {"id": "int64", "at": "struct<x: int64>"}}));
    let text = b"{\"id\": 1, \"new\": 1}\n{\"id\": 2, \"at\": {\"x\": 1, \"y\": 2}}\n{\"id\": 3}\n";
    let schema = format.declared().expect("declared");
    for (on_drift, expected) in [(OnDrift::Fail, vec![3]), (OnDrift::Widen, vec![3]), (OnDrift::Null, vec![1, 2, 3])] {
        let request = ParseRequest { on_drift, ..ParseRequest::all(Arc::clone(&schema)) };
        let outcome = conformance::parse(&format, text, &request, &[]).expect("readable");
        assert_eq!(ids(&outcome), expected);
        if on_drift == OnDrift::Fail {
            let reason = &outcome.rejects[1].reason;
            assert_eq!(reason.location().column.as_deref(), Some("at.y"));
            assert_eq!(reason.hint_text(), Some("add it to `columns`, or leave it out with `on_drift: null`"));
        }
    }
}

#[test]
fn keys_that_are_no_columns_may_be_many_and_come_twice() {
    let format = format(json!({"columns": {"id": "int64"}}));
    let extras: Vec<String> = (0..100).map(|key| format!("\"extra {key}\": {{\"x\": [{key}]}}")).collect();
    let good = |id: usize| format!("{{{}, \"id\": {id}, {}}}\n", extras.join(", "), extras[..80].join(", "));
    let bad = |key: usize| good(7).replace(&format!("\"extra {key}\": {{"), &format!("\"extra {key}\": {{,"));
    let text = [good(1), good(2), bad(3), bad(99), good(5)].concat();
    let schema = format.declared().expect("declared");
    let request = ParseRequest { on_drift: OnDrift::Null, ..ParseRequest::all(schema) };
    let outcome = conformance::parse(&format, text.as_bytes(), &request, &[]).expect("readable");
    assert_eq!(ids(&outcome), [1, 2, 5]);
    let places: Vec<_> = outcome.rejects.iter().map(|reject| reject.reason.location().column.clone()).collect();
    assert_eq!(places, [Some("extra 3".to_owned()), Some("extra 99".to_owned())]);
}

#[test]
fn values_that_are_not_used_are_converted_only_if_asked() {
    let format = format(json!({"columns": {"id": "int64", "n": "int64"}}));
    let text = b"{\"id\": 1, \"n\": \"x\"}\n{\"id\": 2, \"n\": 2,}\n{\"id\": 3}\n";
    let request = ParseRequest { projection: vec![0], ..ParseRequest::all(format.declared().expect("declared")) };
    let used = conformance::parse(&format, text, &request, &[]).expect("readable");
    assert_eq!(ids(&used), [1, 3], "the grammar is always checked");
    let request = ParseRequest { validate: Validate::All, ..request };
    assert_eq!(ids(&conformance::parse(&format, text, &request, &[]).expect("readable")), [3]);
}

#[test]
fn batches_end_when_their_text_is_large() {
    let record = format!("{{\"id\": 1, \"name\": \"{}\"}}\n", "x".repeat(1 << 20));
    let outcome = read(json!({}), record.repeat(40).as_bytes());
    assert_eq!(outcome.rows.num_rows(), 40);
    assert!(outcome.batches.len() >= 2);
    let request = ParseRequest::all(schema(&[("id", "int64"), ("name", "utf8")]));
    assert!(outcome.batches[0].num_rows() < request.batch_rows);
}

fn inferred(settings: Value, samples: &[(&str, bool)]) -> Result<String> {
    let samples: Vec<Sample> = samples
        .iter()
        .enumerate()
        .map(|(index, (text, complete))| Sample {
            uri: format!("sample{index}.json"),
            text: Bytes::copy_from_slice(text.as_bytes()),
            complete: *complete,
        })
        .collect();
    let schema = format(settings).infer(&samples, OnDrift::Fail)?;
    let fields = schema.fields().iter().map(|field| format!("{} {}", field.name(), type_name(field.data_type())));
    Ok(fields.collect::<Vec<_>>().join(", "))
}

#[test]
fn types_come_from_the_sample() {
    let cases = [
        (r#"{"a": 1}"#, "a int64"),
        ("{\"a\": 1}\n{\"a\": 1.5}", "a float64"),
        ("{\"a\": 1}\n{\"a\": 18446744073709551615}", "a uint64"),
        ("{\"a\": -1}\n{\"a\": 18446744073709551615}", "a utf8"),
        ("{\"a\": 1}\n{\"a\": 99999999999999999999}", "a utf8"),
        ("{\"a\": 1.5}\n{\"a\": 99999999999999999999}", "a utf8"),
        ("{\"a\": 1.5}\n{\"a\": 9007199254740992}", "a float64"),
        ("{\"a\": 1.5}\n{\"a\": -9007199254740993}", "a utf8"),
        ("{\"a\": -0.123456789012345e-8}", "a float64"),
        ("{\"a\": 3.141592653589793238}", "a utf8"),
        ("{\"a\": 0.30000000000000004}", "a float64"),
        ("{\"a\": 9007199254740993.5}", "a utf8"),
        ("{\"a\": 1}\n{\"a\": true}", "a utf8"),
        ("{\"a\": 1}\n{\"a\": [1]}", "a utf8"),
        ("{\"a\": null}\n{\"a\": true}", "a bool"),
        (r#"{"a": null, "b": [], "c": {}, "d": [null]}"#, "a utf8, b list<utf8>, c utf8, d list<utf8>"),
        (r#"{"a": "2024-01-01", "b": "12"}"#, "a utf8, b utf8"),
        (
            r#"{"a": [1, 2.5], "b": {"x": 1, "y": [{"z": "t"}]}}"#,
            "a list<float64>, b struct<x: int64, y: list<struct<z: utf8>>>",
        ),
        ("{\"a\": 1}\n{\"b\": \"x\", \"a\": 2}", "a int64, b utf8"),
        ("[{\"a\": {\"x\": 1}}, {\"a\": {\"y\": 1}}, {\"a\": null}]", "a struct<x: int64, y: int64>"),
        ("{\"a\": 1}\nnot json\n{\"b\": 2}", "a int64, b int64"),
    ];
    for (text, expected) in cases {
        assert_eq!(inferred(json!({}), &[(text, true)]).expect("columns"), expected, "{text}");
    }
    let two = inferred(json!({}), &[("{\"a\": 1}\n{\"b\": \"cut", false), ("{\"c\": 1}", true)]).expect("columns");
    assert_eq!(two, "a int64, c int64");
}

#[test]
fn a_dictionary_is_taken_as_text() {
    let pairs: Vec<String> = (0..600).map(|n| format!("\"key{n}\": {n}")).collect();
    let text = format!("{{\"id\": 1, \"counts\": {{{}}}}}", pairs.join(", "));
    assert_eq!(inferred(json!({}), &[(&text, true)]).expect("columns"), "id int64, counts utf8");
}

#[test]
fn samples_without_columns_say_why() {
    let cases: [(&str, bool, &str); 6] = [
        ("", true, "sample0.json: the sample has no records to take columns from"),
        ("{}", true, "sample0.json: the objects of the sample have no keys to take columns from"),
        ("{\"a\": \"long", false, "sample0.json: the first record is longer than the sample of 11 bytes"),
        ("{\"a\": 1,}", true, "sample0.json, line 1, byte 7: a comma before the end of the object"),
        ("[1, 2]", true, "sample0.json, line 1, byte 1: the record is a number, not an object"),
        ("name,size\n", true, "sample0.json, line 1, byte 0: not a JSON value"),
    ];
    for (text, complete, expected) in cases {
        let error = inferred(json!({}), &[(text, complete)]).expect_err("no columns");
        assert_eq!(error.to_string(), expected);
        assert!(error.hint_text().is_some(), "{expected}");
    }
    let error = inferred(json!({"max_record": 8}), &[("\n{\"a\": 1234}\n", true)]).expect_err("too long");
    assert_eq!(error.to_string(), "sample0.json, line 2, byte 1: the record is longer than 8 bytes");
    let text = Bytes::from_static(b"{\"a\": \"\xff\"}\n");
    let sample = Sample { uri: "latin.json".to_owned(), text, complete: true };
    let error = format(json!({})).infer(&[sample], OnDrift::Fail).expect_err("not UTF-8");
    assert_eq!(error.to_string(), "latin.json, line 1, byte 7: bytes that are not UTF-8");
}

#[test]
fn what_is_written_looks_like_this() {
    let batch = conformance::batch_of(vec![
        ("id", Arc::new(arrow::array::Int64Array::from(vec![Some(1), None]))),
        ("na\"me", Arc::new(arrow::array::StringArray::from(vec![Some("a\n\u{1}\"é\\"), None]))),
        ("at", Arc::new(arrow::array::TimestampSecondArray::from(vec![Some(0), None]).with_timezone("+02:00"))),
        ("nothing", arrow::array::new_null_array(&DataType::Null, 2)),
        ("ratio", Arc::new(arrow::array::Float64Array::from(vec![Some(f64::NAN), Some(1.0)]))),
    ]);
    let text = |settings: Value, batches: &[RecordBatch]| {
        String::from_utf8(encode(&format(settings), &batch.schema(), batches, true)).expect("UTF-8")
    };
    let first = r#"{"id":1,"na\"me":"a\n\u0001\"é\\","at":"1970-01-01T00:00:00Z","nothing":null,"ratio":"NaN"}"#;
    let second = r#"{"id":null,"na\"me":null,"at":null,"nothing":null,"ratio":1.0}"#;
    let all = std::slice::from_ref(&batch);
    assert_eq!(text(json!({}), all), format!("{first}\n{second}\n"));
    assert_eq!(text(json!({"layout": "array"}), all), format!("[\n{first},\n{second}\n]\n"));
    assert_eq!(text(json!({"nulls": "omit"}), &[batch.slice(1, 1)]), "{\"ratio\":1.0}\n");
    assert_eq!(text(json!({}), &[]), "");
    assert_eq!(text(json!({"layout": "array"}), &[]), "[]\n");
}

#[test]
fn types_without_a_form_are_refused_before_the_first_row() {
    let interval = DataType::Interval(arrow::datatypes::IntervalUnit::DayTime);
    let schema = Arc::new(Schema::new(vec![Field::new("gap", interval, true)]));
    let error = format(json!({})).encoder(schema, true).err().expect("no form for intervals");
    assert_eq!((error.kind(), error.location().column.as_deref()), (ErrorKind::Job, Some("gap")));
}

#[test]
fn maps_and_dictionaries_can_be_written() {
    let mut maps =
        arrow::array::MapBuilder::new(None, arrow::array::StringBuilder::new(), arrow::array::Int64Builder::new());
    maps.keys().append_value("a");
    maps.values().append_value(1);
    maps.append(true).expect("one value a key");
    maps.append(false).expect("one value a key");
    let words: arrow::array::DictionaryArray<arrow::datatypes::Int8Type> = vec![Some("x"), None].into_iter().collect();
    let batch = conformance::batch_of(vec![("m", Arc::new(maps.finish())), ("w", Arc::new(words))]);
    let text = encode(&format(json!({})), &batch.schema(), &[batch], true);
    assert_eq!(String::from_utf8_lossy(&text), "{\"m\":{\"a\":1},\"w\":\"x\"}\n{\"m\":null,\"w\":null}\n");
}

#[test]
fn settings_have_faults() {
    let faults = (ENTRY.build)(&json!({"columns": {"a": "int"}, "max_record": 0})).expect_err("two faults");
    let paths: Vec<String> = faults.iter().map(|fault| fault.path.join(".")).collect();
    assert_eq!(paths, ["columns.a", "max_record"]);
    assert!((ENTRY.build)(&json!({"layout": "lines", "max_record": "1MB"})).is_ok());
}

/// Any JSON value of a few levels.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        // Without its feature `float_roundtrip`, serde_json itself reads long fractions inexactly.
        any::<i32>().prop_map(|eighths| Value::from(f64::from(eighths) / 8.0)),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

#[test]
fn bad_records_leave_nothing_behind() {
    let format = format(json!({"columns": {"name": "utf8", "tags": "list<utf8>", "id": "int64"}}));
    let request = ParseRequest::all(format.declared().expect("columns"));
    let long = "x".repeat(1000);
    let bad = format!("{{\"name\": \"{long}\", \"tags\": [\"{long}\"], \"id\": \"no\"}}\n").repeat(2000);
    let good = |id: usize| format!("{{\"name\": \"good {long}\", \"tags\": [\"t\", \"{long}\"], \"id\": {id}}}\n");
    let text = format!("{}{bad}{}", good(1), good(2));
    let outcome = conformance::parse(&format, text.as_bytes(), &request, &[]).expect("readable");
    assert_eq!((outcome.rejects.len(), outcome.rows.num_rows()), (2000, 2));
    let names = outcome.rows.column(0).as_string_view();
    assert!(names.iter().all(|name| name == Some(format!("good {long}").as_str())));
    let tags = outcome.rows.column(1).as_list::<i32>().values().as_string_view().clone();
    assert_eq!(tags.iter().flatten().collect::<Vec<_>>(), ["t", &long, "t", &long]);

    let mut parser = format.parser(&request).expect("a parser");
    let mut parsed = millstream_core::format::Parsed::default();
    parser.push(Bytes::from(text), &mut parsed).expect("readable");
    parser.finish(&mut parsed).expect("complete");
    let held: usize = parsed.rows.iter().map(|rows| rows.batch.get_array_memory_size()).sum();
    assert!(held < 100_000, "{held} bytes for two rows");
}

#[test]
fn a_leap_second_is_out_of_range() {
    for (data_type, format, text) in
        [("time", "%H:%M:%S", "23:59:60"), ("timestamp", "%Y-%m-%d %H:%M:%S", "2016-12-31 23:59:60")]
    {
        let columns = json!({"at": {"type": data_type, "format": format}});
        let told = fault_of_value(columns, &format!("{{\"at\": \"{text}\"}}"));
        assert!(told.contains(&format!("out of the range of {data_type}")), "{told}");
    }
}

/// The message about one bad record.
fn fault_of_value(columns: Value, bad: &str) -> String {
    let outcome = read(json!({"columns": columns}), bad.as_bytes());
    shown(&outcome.rejects.first().expect("a reject").reason)
}

#[test]
fn two_columns_of_one_name_are_not_written() {
    let fields = vec![Field::new("a", DataType::Int64, true), Field::new("a", DataType::Int64, true)];
    let error = format(json!({})).encoder(Arc::new(Schema::new(fields)), true).err().expect("a key comes once");
    assert_eq!(error.what(), "two columns are named a, and an object has a key once");
}

/// A value, or something that looks like one.
fn any_token() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "-?(0|[1-9][0-9]{0,3})",
        2 => "-?(0|[1-9][0-9]{0,3})\\.[0-9]{1,4}",
        1 => "-?[0-9]{1,20}(\\.[0-9]{0,18})?([eE][+-]?[0-9]{0,3})?[a-z]?",
        4 => r#""[ -!#-\[\]-~é]{0,20}""#,
        1 => r#""([a-z]|\\[nu"x]|\\u00e9|[\x00-\x1f]|😀){0,40}"?"#,
        2 => prop::sample::select(vec!["true", "false", "null", "nul", "nulls", "truee", "[]", "{}", "{", "", " "])
            .prop_map(str::to_owned),
        1 => r#"\[-?[1-9][0-9]{0,9}(, ?[0-9]{1,9}){0,3}\]"#,
        1 => r#"\{"x": ?[0-9]{1,3}, ?"y":"[a-z]{0,15}"(,"z":1)?\}"#,
        1 => r#""20[0-9]{2}-0[1-9]-[0-3][0-9]""#,
        1 => r#"\{"x": ?[0-9]{1,3}(, ?"x":[0-9]{1,3})?\}"#,
    ]
}

/// Records of nearly the same keys, written in nearly the same way: a few of the values are not what they were before.
fn any_records() -> impl Strategy<Value = Vec<String>> {
    const KEYS: [&str; 10] = [
        "id",
        "small",
        "price",
        "single",
        "amount",
        "ok",
        "name",
        "tags",
        "a key that is longer than the others",
        "at",
    ];
    const TYPICAL: [&str; 10] = [
        "-?[1-9][0-9]{0,17}",
        "-?[1-9]?[0-9]",
        "-?[1-9][0-9]{0,9}\\.[0-9]{1,9}",
        "[0-9]\\.[0-9]{1,7}",
        "-?[1-9][0-9]{0,5}(\\.[0-9]{1,2})?",
        "true|false|null",
        "\"[a-z ]{0,30}\"",
        "\\[([1-9][0-9]{0,9}, ?){0,4}[0-9]\\]",
        "\\{\"x\": ?[0-9]{1,3}, ?\"y\":\"[a-z]{0,15}\"\\}",
        "\"20[0-9]{2}-0[1-9]-[12][0-9]\"",
    ];
    let change = (0..40_usize, any_token());
    let record = (any::<u16>(), prop::collection::vec(change, 0..3), 0..60_usize, 0..12_usize);
    // Each key has two values, and each record one of them.
    let one = |typical: &'static str| prop_oneof![20 => typical, 1 => any_token()].boxed();
    let common: Vec<_> = TYPICAL.iter().map(|typical| [one(typical), one(typical)]).collect();
    let style = prop::sample::select(vec![(",", ":"), (", ", ": "), (" ,  ", "\t:")]);
    (common, style, prop::collection::vec(record, 1..25)).prop_map(|(common, (comma, colon), records)| {
        let written = |(other, changes, odd, place): (u16, Vec<(usize, String)>, usize, usize)| {
            let value = |(index, pair): (usize, &[String; 2])| pair[usize::from(other >> index & 1)].clone();
            let mut values: Vec<String> = common.iter().enumerate().map(value).collect();
            for (index, value) in changes {
                if let Some(slot) = values.get_mut(index) {
                    *slot = value;
                }
            }
            let mut fields: Vec<String> = KEYS
                .iter()
                .zip(&values)
                .filter(|(_, value)| !value.is_empty())
                .map(|(key, value)| format!("\"{key}\"{colon}{value}"))
                .collect();
            let place = place.min(fields.len());
            match odd {
                0 => fields.swap(0, place.saturating_sub(1)),
                1 => fields.insert(place, "\"name\":\"again\"".to_owned()),
                2 => fields.insert(place, format!("\"extra\"{colon}[1, {{}}]")),
                3 => fields.insert(place, format!("\"more\"{colon}1")),
                4 => fields.truncate(place),
                5 => fields.insert(place, "\"n\\u0061me\":1".to_owned()),
                6 => fields.insert(place, String::new()),
                11 => fields.clear(),
                12 => fields.extend([format!("\"more\"{colon}1"), format!("\"more\"{colon}2")]),
                _ => {}
            }
            let text = format!("{{{}}}", fields.join(comma));
            match odd {
                7 => text.chars().take(text.chars().count() * place / 12).collect(),
                8 => format!("  {text} \t"),
                9 => format!("{text}\r"),
                10 => format!("{text}}}"),
                _ => text,
            }
        };
        records.into_iter().map(written).collect()
    })
}

/// When a record is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Never,
    /// Since it has a key that is not a column.
    Fail,
    Always,
}

/// Records with keys that come twice, and objects without keys.
const REPEATED: [(&str, When); 15] = [
    ("{}", When::Never),
    ("{ }", When::Never),
    (r#"{"id":1}"#, When::Never),
    (r#"{"id":1,"id":1}"#, When::Always),
    (r#"{"id":1,"i\u0064":2}"#, When::Always),
    (r#"{"id":null,"id":1}"#, When::Always),
    (r#"{"more":1,"more":2}"#, When::Fail),
    (r#"{"id":1,"more":{},"more":{}}"#, When::Fail),
    (r#"{"s":{}}"#, When::Never),
    (r#"{"s":{"x":1,"x":2}}"#, When::Always),
    (r#"{"s":{"z":1,"z":1}}"#, When::Fail),
    (r#"{"l":[{"x":1},{}]}"#, When::Never),
    (r#"{"l":[{"x":1},{"x":1,"x":1}]}"#, When::Always),
    (r#"{"t":{"x":1,"x":2}}"#, When::Never),
    (r#"{"t":{}}"#, When::Never),
];

/// Rows, lines and the messages of the rejects.
type Told = std::result::Result<(Vec<RecordBatch>, Vec<i64>, Vec<(Bytes, String)>), String>;

fn told(outcome: Result<Outcome>) -> Told {
    let outcome = outcome.map_err(|error| shown(&error))?;
    let reason = |error: &Error| format!("{} {:?} {:?}", shown(error), error.location(), error.hint_text());
    let rejects = outcome.rejects.iter().map(|reject| (reject.raw.clone(), reason(&reject.reason))).collect();
    Ok((outcome.batches, outcome.lines, rejects))
}

/// Whether brackets or a text are open at the end of `record`, or its end is only that of the file.
fn is_open(record: &[u8]) -> bool {
    let (mut depth, mut in_text, mut escaped) = (0, false, false);
    for byte in record {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'{' | b'[' if !in_text => depth += 1,
            b'}' | b']' if !in_text => depth -= 1,
            _ => {}
        }
    }
    depth > 0 || in_text || !matches!(record.last(), Some(b'}' | b']' | b'"'))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn records_that_lack_a_text_are_no_rows_and_no_rejects(
        records in any_records(),
        layout in prop::sample::select(vec!["lines", "lines", "array", "objects"]),
        any in proptest::collection::vec("[0-9a-e\":,]{1,2}|\"id\"|name", 0..3),
        all in proptest::collection::vec("[0-9a-e\":,]{1,2}|\"id\"|name", 0..3),
        limit in prop::sample::select(vec![60, 1 << 20]),
        mut cuts in proptest::collection::vec(0..=2000_usize, 0..4),
        size in 1..400_usize,
    ) {
        let text = match layout {
            "array" => format!("[{}]", records.join(",")),
            _ => records.join("\n") + "\n",
        };
        cuts.retain(|cut| *cut <= text.len());
        cuts.sort_unstable();
        let columns = json!({"id": "int64", "price": "float64", "name": "utf8"});
        let format = format(json!({"columns": columns, "layout": layout, "max_record": limit}));
        let request = ParseRequest {
            lines: true,
            bytes: true,
            on_drift: OnDrift::Null,
            batch_rows: 3,
            ..ParseRequest::all(format.declared().expect("columns"))
        };
        let contains = Contains { any, all };
        let stays = |reject: &Reject| {
            (layout != "lines" && is_open(&reject.raw)) || reject.reason.what().starts_with("the record is longer")
        };
        let length = |text: &[u8]| format.record_length(&[], text, &request);
        conformance::same_if_removed_later(&format, text.as_bytes(), &request, &contains, &cuts, length, stays);
        conformance::same_apart(&format, text.as_bytes(), &ParseRequest { contains, ..request }, &cuts, size);
    }

    /// In short pieces no record has a margin, so the fast paths are never used: the same result shows that they accept
    /// and read the same values as the plain path.
    #[test]
    fn quick_ways_are_like_the_plain_way(
        records in any_records(),
        layout in prop::sample::select(vec!["lines", "lines", "lines", "array", "objects"]),
        on_drift in prop::sample::select(vec![OnDrift::Fail, OnDrift::Null]),
        unused in prop::sample::select(vec![0, 1, 9]),
        size in 1..quick::MARGIN,
    ) {
        let columns = json!({
            "id": "int64", "small": "int8", "price": "float64", "single": "float32", "amount": "decimal(9, 2)",
            "ok": "bool", "name": "utf8", "tags": "list<int64>", "at": "date",
            "a key that is longer than the others": "struct<x: uint16, y: utf8>",
        });
        let text = match layout {
            "array" => format!("[{}]", records.join(",")),
            _ => records.join("\n"),
        };
        let format = format(json!({"columns": columns, "layout": layout}));
        let schema = format.declared().expect("columns");
        let projection = (unused..schema.fields().len()).collect();
        let request = ParseRequest { lines: true, bytes: true, on_drift, projection, ..ParseRequest::all(schema) };
        let cuts: Vec<usize> = (0..text.len()).step_by(size).skip(1).collect();
        let plain = told(conformance::parse(&format, text.as_bytes(), &request, &cuts));
        prop_assert_eq!(told(conformance::parse(&format, text.as_bytes(), &request, &[])), plain);
    }

    /// A duplicate key and an object without keys mean the same in every layout, however the text is cut.
    #[test]
    fn repeated_keys_and_empty_objects_are_the_same_in_every_layout(
        records in prop::collection::vec(prop::sample::select(REPEATED.to_vec()), 1..30),
        on_drift in prop::sample::select(vec![OnDrift::Fail, OnDrift::Null]),
        size in 1..40_usize,
    ) {
        let columns = json!({
            "id": "int64", "s": "struct<x: int64>", "l": "list<struct<x: int64>>", "t": "utf8",
        });
        let texts: Vec<&str> = records.iter().map(|(text, _)| *text).collect();
        let refused: Vec<&str> = records
            .iter()
            .filter(|(_, when)| *when == When::Always || (*when == When::Fail && on_drift == OnDrift::Fail))
            .map(|(text, _)| *text)
            .collect();
        let layouts = [
            ("lines", texts.join("\n")),
            ("objects", texts.join(" ")),
            ("array", format!("[{}]", texts.join(","))),
        ];
        let mut first: Option<RecordBatch> = None;
        for (layout, text) in layouts {
            let format = format(json!({"columns": columns, "layout": layout}));
            let request = ParseRequest {
                lines: true, bytes: true, on_drift, ..ParseRequest::all(format.declared().expect("columns"))
            };
            let cuts: Vec<usize> = (0..text.len()).step_by(size).skip(1).collect();
            conformance::same_apart(&format, text.as_bytes(), &request, &cuts, size);
            for cuts in [Vec::new(), cuts] {
                let outcome = conformance::parse(&format, text.as_bytes(), &request, &cuts).expect("readable");
                let found: Vec<String> =
                    outcome.rejects.iter().map(|reject| String::from_utf8_lossy(&reject.raw).into_owned()).collect();
                prop_assert_eq!(&found, &refused);
                prop_assert_eq!(outcome.rows.num_rows(), texts.len() - refused.len());
                prop_assert_eq!(first.get_or_insert(outcome.rows.clone()), &outcome.rows);
            }
        }
    }

    /// serde_json writes, we read: every value comes back, whatever the layout and the cuts.
    #[test]
    fn we_read_what_serde_json_writes(
        values in prop::collection::vec(any_value(), 0..8),
        layout in 0..4_usize,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let records: Vec<Value> =
            values.iter().enumerate().map(|(id, value)| json!({"id": id, "name": value})).collect();
        let text = match layout {
            0 => records.iter().map(|record| format!("{record}\n")).collect::<String>(),
            1 => serde_json::to_string(&records).expect("JSON"),
            2 => serde_json::to_string_pretty(&records).expect("JSON"),
            _ => records.iter().map(|record| serde_json::to_string_pretty(record).expect("JSON")).collect(),
        };
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        cuts.sort_unstable();
        let request = ParseRequest::all(schema(&[("id", "int64"), ("name", "utf8")]));
        let outcome = conformance::parse(&format(json!({})), text.as_bytes(), &request, &cuts).expect("readable");
        prop_assert!(outcome.rejects.is_empty());
        prop_assert_eq!(outcome.rows.num_rows(), values.len());
        let apart = conformance::same_apart(&format(json!({})), text.as_bytes(), &request, &cuts, 30);
        prop_assert!(!apart || layout == 0);
        for (row, value) in values.iter().enumerate() {
            let read = outcome.rows.column(1).as_string_view();
            match value {
                Value::Null => prop_assert!(read.is_null(row)),
                Value::String(text) => prop_assert_eq!(read.value(row), text),
                other => prop_assert_eq!(&serde_json::from_str::<Value>(read.value(row)).expect("JSON"), other),
            }
        }
    }

    /// We accept exactly the records that serde_json accepts (except that it allows duplicate keys and deeper nesting).
    #[test]
    fn we_refuse_what_serde_json_refuses(
        text in r#"\{"name":([\[\]\{\},:"\\ntrue0-9eE.+ \-]|\\u[0-9a-f]{4}|null|true|"[a-z]"){0,12}\}"#
    ) {
        let request = ParseRequest::all(schema(&[("id", "int64"), ("name", "utf8")]));
        let request = ParseRequest { on_drift: OnDrift::Null, ..request };
        let lines = format(json!({"layout": "lines"}));
        let outcome = conformance::parse(&lines, text.as_bytes(), &request, &[]).expect("lines are always readable");
        let theirs = serde_json::from_str::<Value>(&text);
        let duplicate = outcome.rejects.iter().any(|reject| reject.reason.what().contains("twice"));
        // serde_json refuses numbers beyond float64 as such; in a text column they are only text.
        let number = theirs.as_ref().is_err_and(|error| error.to_string().contains("number out of range"));
        if !duplicate && !number {
            prop_assert_eq!(outcome.rows.num_rows() == 1, theirs.is_ok(), "{} {:?}", text, theirs);
        }
    }

    /// For any bytes and cuts: no panic, and the cuts change nothing.
    #[test]
    fn any_bytes_give_the_same_however_they_are_cut(
        pieces in prop::collection::vec(
            prop_oneof![
                Just(b"{".to_vec()), Just(b"}".to_vec()), Just(b"[".to_vec()), Just(b"]".to_vec()),
                Just(b",".to_vec()), Just(b"\"".to_vec()), Just(b"\\".to_vec()), Just(b"\n".to_vec()),
                Just(b"{\"id\": 1}".to_vec()), Just(b"{\"id\": 1, \"name\": \"a\"}\n".to_vec()), Just(b" ".to_vec()),
                Just(b"\"name\":".to_vec()), Just(b"\xc3\xa9".to_vec()), prop::collection::vec(any::<u8>(), 0..3),
            ],
            0..20,
        ),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        layout in prop::sample::select(vec!["auto", "lines", "array", "objects"]),
        max_record in prop::sample::select(vec![5, 16, 1000]),
        size in 1..40_usize,
    ) {
        let text = pieces.concat();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        cuts.sort_unstable();
        let format = format(json!({"layout": layout, "max_record": max_record}));
        let all = ParseRequest::all(schema(&[("id", "int64"), ("name", "utf8")]));
        let request = ParseRequest { lines: true, bytes: true, ..all };
        let apart = conformance::same_apart(&format, &text, &request, &cuts, size);
        let utf16 = [&b"\xff\xfe"[..], b"\xfe\xff"].iter().any(|mark| text.starts_with(mark));
        prop_assert!(apart || layout != "lines" || utf16, "lines can be cut");
        let whole = conformance::parse(&format, &text, &request, &[]);
        let cut = conformance::parse(&format, &text, &request, &cuts);
        match (whole, cut) {
            (Ok(whole), Ok(cut)) => {
                prop_assert_eq!(&whole.rows, &cut.rows);
                prop_assert_eq!(&whole.lines, &cut.lines);
                prop_assert_eq!(&whole.bytes, &cut.bytes);
                let told = |outcome: &Outcome| {
                    outcome.rejects.iter().map(|reject| (reject.raw.clone(), shown(&reject.reason))).collect::<Vec<_>>()
                };
                prop_assert_eq!(told(&whole), told(&cut));
            }
            (Err(whole), Err(cut)) => prop_assert_eq!(shown(&whole), shown(&cut)),
            (whole, cut) => prop_assert!(false, "{:?} against {:?}", whole.is_ok(), cut.is_ok()),
        }
    }
}

#[test]
fn one_value_is_cut_out_of_a_file_and_made_a_file_again() {
    let request = ParseRequest::all(schema(&[("a", "utf8")]));
    let lines = format(json!({"layout": "lines"}));
    assert_eq!(lines.record_length(b"", b"{\"a\": \"},\"},\n {\"b\": 2}]", &request), b"{\"a\": \"},\"}".len());
    assert_eq!(lines.record_length(b"", b"{\"a\":", &request), b"{\"a\":".len());
    assert_eq!(lines.file_of_record(b"", b"{}"), b"{}\n");
    assert_eq!(format(json!({"layout": "array"})).file_of_record(b"", b"{}"), b"[{}]\n");
}
