//! Tests of the csv format: the conformance suite, every fault, and the `csv` and `arrow-csv` crates as references.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, Int64Array, RecordBatch, StringViewArray};
use arrow::datatypes::{DataType, Field, Float64Type, Int64Type, Schema, SchemaRef};
use bytes::Bytes;
use millstream_core::contains::Contains;
use millstream_core::format::{
    EmptyFiles, Format, OnDrift, ParseRequest, Parsed, Sample, SeenColumns, StreamFormat, TEXT, Validate,
};
use millstream_core::spec::Spec;
use millstream_core::{Error, ErrorKind, Result};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::conformance::{self, Columns, Outcome, Subject, batch_of, encode, parse};
use millstream_core::columns::type_name;

fn csv(settings: Value) -> Csv {
    let spec: CsvSpec = millstream_core::spec::parse(&settings).expect("valid settings");
    Csv::new(&spec).expect("valid settings")
}

/// Reads with the columns that the settings declare.
fn read(settings: Value, text: &[u8]) -> Result<Outcome> {
    let format = csv(settings);
    let request =
        ParseRequest { lines: true, bytes: true, ..ParseRequest::all(format.declared().expect("declared columns")) };
    let whole = parse(&format, text, &request, &[]);
    // The result does not depend on how the text is cut.
    let bytewise: Vec<usize> = (1..text.len()).collect();
    let cut = parse(&format, text, &request, &bytewise);
    match (&whole, &cut) {
        (Ok(whole), Ok(cut)) => {
            assert_eq!(whole.rows, cut.rows);
            assert_eq!(whole.lines, cut.lines);
            assert_eq!(whole.bytes, cut.bytes);
            assert_eq!(shown_rejects(whole), shown_rejects(cut));
        }
        (Err(whole), Err(cut)) => assert_eq!(shown(whole), shown(cut)),
        _ => panic!("whole and cut differ: {whole:?} {cut:?}"),
    }
    whole
}

/// An error in one line: location, message, text, cause, hint.
fn shown(error: &Error) -> String {
    let part = |name: &str, text: Option<&str>| text.map_or(String::new(), |text| format!(" | {name}: {text}"));
    format!(
        "{}: {}{}{}{}",
        error.location(),
        error.what(),
        part("text", error.offending_text()),
        part("cause", error.cause_text()),
        part("hint", error.hint_text())
    )
}

fn shown_rejects(outcome: &Outcome) -> Vec<String> {
    outcome.rejects.iter().map(|reject| format!("{:?} {}", reject.raw, shown(&reject.reason))).collect()
}

fn texts(outcome: &Outcome, column: usize) -> Vec<Option<String>> {
    outcome.rows.column(column).as_string_view().iter().map(|text| text.map(str::to_owned)).collect()
}

fn some(texts: &[&str]) -> Vec<Option<String>> {
    texts.iter().map(|text| Some((*text).to_owned())).collect()
}

#[test]
fn conformance_of_every_type() {
    let bytes: Vec<Option<&[u8]>> =
        vec![Some(b"\x00\xff"), Some(b""), Some(b"abc"), None, Some(b"\xde"), Some(b"0"), None, Some(b"z")];
    let bytes = batch_of(vec![
        ("id", Arc::new(Int64Array::from_iter_values(0..8)) as ArrayRef),
        ("bytes", Arc::new(BinaryArray::from(bytes))),
    ]);
    let dialects = [
        json!({}),
        json!({"delimiter": ";", "decimal": ",", "quote": "'"}),
        json!({"delimiter": "\t", "escape": "\\", "null": "\\N", "comment": "#"}),
        json!({"delimiter": "ß", "trim": true, "true_texts": ["ja"], "false_texts": "nein"}),
    ];
    for settings in dialects {
        for batch in [conformance::flat(), conformance::far(), bytes.clone()] {
            let bad_record: &[u8] = if settings["delimiter"] == ";" { b"1;2;x\"';'a'b\n" } else { b"1,2\n" };
            Subject {
                format: Arc::new(csv(settings.clone())),
                batch,
                bad_record: Some(bad_record),
                columns: Columns::Named,
            }
            .check();
        }
    }
}

#[test]
fn conformance_of_one_column() {
    let values = vec![Some("a"), None, Some(""), Some("a\nb"), None, Some("# no comment"), Some("\u{feff}"), None];
    let batch = batch_of(vec![("only", Arc::new(StringViewArray::from(values)) as ArrayRef)]);
    let format = Arc::new(csv(json!({"comment": "#"})));
    let subject = Subject { format, batch, bad_record: Some(b"a,b\n"), columns: Columns::Named };
    subject.check();
    subject.check_memory();
}

#[test]
fn quotes_nulls_and_line_ends() {
    let columns = json!({"columns": {"a": "utf8", "b": "utf8"}});
    let text = b"a,b\r\n\"x \"\"y\"\"\",\r\n\n\"\",\"two\r\nlines\"\r\n,last\nno end,\"\"\"\"";
    let outcome = read(columns, text).unwrap();
    assert_eq!(texts(&outcome, 0), [Some("x \"y\"".into()), Some(String::new()), None, Some("no end".into())]);
    assert_eq!(texts(&outcome, 1), [None, Some("two\r\nlines".into()), Some("last".into()), Some("\"".into())]);
    assert_eq!(outcome.lines, [2, 4, 6, 7]);
    assert!(outcome.rejects.is_empty());
}

#[test]
fn text_shares_the_pushed_buffer() {
    let format = csv(json!({"columns": {"a": "utf8"}, "header": false}));
    let request = ParseRequest::all(format.declared().unwrap());
    let text = Bytes::from_static(b"longer than twelve bytes\n\"also longer than twelve\"\nshort\n");
    let mut parser = format.parser(&request).unwrap();
    let mut parsed = Parsed::default();
    parser.push(text.clone(), &mut parsed).unwrap();
    parser.finish(&mut parsed).unwrap();
    let array = parsed.rows[0].batch.column(0).as_string_view().clone();
    assert_eq!(array.data_buffers().len(), 1);
    assert_eq!(array.data_buffers()[0].as_ptr(), text.as_ptr());
    assert_eq!(array.value(1), "also longer than twelve");
}

#[test]
fn bad_records_are_distinguished() {
    let settings = json!({"columns": {"id": "int64", "name": "utf8", "small": "int8"}});
    let text = b"id,name,small\n\
        1,a,1\n\
        2,b,2,3\n\
        3,c\n\
        4,x\"y,4\n\
        5,\"x\"y,5\n\
        6,\"two\nlines\",6\n\
        7,\xff\xfe,7\n\
        abc,h,8\n\
        9,i,128\n\
        10,j,\" 10 \"\n";
    let outcome = read(settings, text).unwrap();
    let ids: Vec<i64> = outcome.rows.column(0).as_primitive::<Int64Type>().values().to_vec();
    assert_eq!(ids, [1, 6, 10]);
    assert_eq!(outcome.lines, [2, 7, 12]);
    let reasons: Vec<String> = outcome.rejects.iter().map(|reject| shown(&reject.reason)).collect();
    let expected = [
        "line 3, byte 20: the record has 4 fields, expected 3 | text: 2,b,2,3 | hint: a field that holds the delimiter \
         (`,`) must be in quotes (`\"`)",
        "line 4, byte 28: the record has 2 fields, expected 3 | text: 3,c | hint: fields at the end are missing, or a \
         line end inside a field is not in quotes",
        "line 5, byte 35: there is a quote inside a field that is not in quotes | text: \"y,4 | hint: put the whole \
         field in quotes and double the quote inside it, or set `quote: none` if `\"` is ordinary text",
        "line 6, byte 45: there is text after the closing quote of a field | text: y,5 | hint: a quote inside a field \
         in quotes is doubled (\"\"); set `escape` if the file escapes quotes differently, or `trim: true` if only \
         spaces follow",
        "line 9, byte 67, column name: these bytes are not UTF-8 | text: \\xff\\xfe,7 | hint: set `encoding`, for \
         example to windows-1252",
        "line 10, byte 72, column id: the value is not an int64 | text: abc | hint: correct it, or declare the column \
         as utf8",
        "line 11, byte 84, column small: the value is out of the range of int8, -128 to 127 | text: 128 | hint: \
         declare a wider type",
    ];
    assert_eq!(reasons, expected);
    assert_eq!(outcome.rejects[0].raw, &b"2,b,2,3"[..]);
    assert!(outcome.rejects.iter().all(|reject| reject.reason.kind() == ErrorKind::Data));
}

#[test]
fn a_quote_that_is_never_closed_is_no_reject() {
    let settings = json!({"columns": {"id": "int64", "name": "utf8"}});
    let error = read(settings.clone(), b"id,name\n1,a\nx,b\n2,\"c\n3,d\n4,e\n").unwrap_err();
    assert_eq!(
        shown(&error),
        "line 4, byte 18: the quote opened in line 4 is not closed before the end | text: \"c\\n3,d\\n4,e\\n | \
         hint: the file may be cut short; set `quote: none` if `\"` is ordinary text"
    );
    let outcome = read(settings, b"id,name\n1,a\n2,\"c\n3,d\n4,\"e\n5,f\n").unwrap();
    assert_eq!(outcome.rejects[0].reason.cause_text(), Some("the record continues to line 5"));
    assert_eq!((outcome.lines, outcome.rejects.len()), (vec![2, 6], 1));
}

#[test]
fn values_have_hints_that_fit() {
    let hint = |column: Value, value: &str| {
        let text = format!("{value}\n");
        let outcome =
            read(json!({"header": false, "delimiter": ";", "columns": {"a": column}}), text.as_bytes()).unwrap();
        assert_eq!(outcome.rows.num_rows(), 0);
        outcome.rejects[0].reason.hint_text().unwrap().to_owned()
    };
    assert_eq!(hint(json!("int64"), "NA"), "if it stands for null, set `null: [\"\", \"NA\"]`");
    assert!(hint(json!("float64"), "1,5").contains("decimal: \",\""));
    assert!(hint(json!("int64"), "1.5").contains("float64"));
    assert!(hint(json!("bool"), "maybe").contains("true_texts"));
    assert!(hint(json!("date"), "31.12.2024").contains("%d.%m.%Y"));
    assert!(hint(json!("timestamp"), "2024-12-31T00:00:00Z").contains("timestamptz"));
    assert!(hint(json!("time"), "00:00:00.0000001").contains("microseconds"));
    assert!(hint(json!("decimal(4, 1)"), "1.25").contains("larger scale"));
    assert!(hint(json!("decimal(4, 1)"), "1234.5").contains("wider"));
    assert!(hint(json!("binary"), "xyz").contains("hexadecimal"));
}

#[test]
fn a_record_has_a_longest_length() {
    let settings = json!({"columns": {"a": "utf8", "b": "utf8"}, "header": false, "max_record": 20});
    let outcome = read(settings.clone(), b"1234567890,123456789\n\"a\nb\",c\n").unwrap();
    assert_eq!(outcome.rows.num_rows(), 2);
    let error = read(settings.clone(), b"x,y\n1234567890,1234567890\n").unwrap_err();
    assert!(shown(&error).starts_with("line 2, byte 4: the record is longer than 20"), "{}", shown(&error));
    // Far longer than a push: it must not be kept until the end.
    let mut text = b"x,y\nz,\"open\n".to_vec();
    text.resize(10_000, b'\n');
    let format = csv(settings);
    let request = ParseRequest::all(format.declared().unwrap());
    let mut parser = format.parser(&request).unwrap();
    let error =
        text.chunks(7).find_map(|piece| parser.push(Bytes::copy_from_slice(piece), &mut Parsed::default()).err());
    let error = error.expect("an error before the end");
    assert_eq!(error.cause_text(), Some("the quote opened in line 2 is not closed"));
    assert_eq!((error.location().line, error.location().byte), (Some(2), Some(4)));
}

#[test]
fn headers_that_cannot_be_used() {
    let columns = json!({"columns": {"a": "utf8", "b": "utf8"}});
    let error = |text: &[u8]| shown(&read(columns.clone(), text).unwrap_err());
    assert!(error(b"a,a\n").starts_with("line 1, byte 0: the header has the column a twice"), "{}", error(b"a,a\n"));
    let semicolons = error(b"a;b\n1;2\n");
    assert!(semicolons.contains("is `;` the delimiter? set `delimiter: \";\"`"), "{semicolons}");
    let missing = error(b"\n\na,c\n");
    assert!(
        missing.starts_with("line 3, byte 2: the file lacks the column b and has the additional column c"),
        "{missing}"
    );
    assert!(error(b"a,\"b\n").contains("the quote opened in line 1 is not closed"));
    assert!(error(b"a,b\xff\n").contains("these bytes are not UTF-8"));
    for empty in [&b"a,b"[..], b"a,b\n", b"\xef\xbb\xbfa,b\r\n", b" a , b \n"] {
        let outcome = read(columns.clone(), empty).unwrap();
        assert_eq!((outcome.rows.num_rows(), outcome.rejects.len()), (0, 0));
    }
}

#[test]
fn a_file_with_nothing_in_it_is_an_error_where_a_header_is_due() {
    let columns = json!({"a": "utf8", "b": "utf8"});
    let comments = json!({"columns": columns, "comment": "#", "skip_lines": 1});
    for (settings, text, what) in [
        (json!({"columns": columns}), &b""[..], "the file is empty, but a header is required"),
        (json!({"columns": columns}), b"\xef\xbb\xbf", "the file is empty, but a header is required"),
        (json!({"columns": columns}), b"\n\r\n", "the file has no header, only blank lines or comments"),
        (comments, b"title\n# a\n", "the file has no header after the lines that `skip_lines` skips"),
    ] {
        let error = read(settings.clone(), text).unwrap_err();
        assert_eq!((error.what(), error.kind()), (what, ErrorKind::Data));
        assert!(error.hint_text().unwrap().contains("`empty_files: allow`"));
        let format = csv(settings);
        let request = ParseRequest { empty_files: EmptyFiles::Allow, ..ParseRequest::all(format.declared().unwrap()) };
        let allowed = parse(&format, text, &request, &[]).unwrap();
        assert_eq!((allowed.rows.num_rows(), allowed.rejects.len()), (0, 0));
    }
    let without = read(json!({"columns": {"a": "utf8"}, "header": false}), b"").unwrap();
    assert_eq!(without.rows.num_rows(), 0, "nothing is due");
}

#[test]
fn a_cr_alone_is_a_fault_where_lines_end_in_lf() {
    let settings = json!({"columns": {"id": "int64", "note": "utf8"}});
    let text = b"id,note\n1,left\rright\n2,\"left\rright\"\n3,c\r\n\"4\"\r,d\n5,e\n";
    let outcome = read(settings.clone(), text).unwrap();
    assert_eq!(outcome.rows.column(0).as_primitive::<Int64Type>().values(), &[2, 3, 5]);
    assert_eq!(texts(&outcome, 1), some(&["left\rright", "c", "e"]));
    let reasons: Vec<String> = outcome.rejects.iter().map(|reject| shown(&reject.reason)).collect();
    let what = "there is a carriage return (CR) outside of quotes that ends no line";
    let rest =
        "cause: the lines of this file end in LF | hint: put the field that holds it in quotes (`\"`), or remove it";
    let expected = [("line 2, byte 14", r"1,left\rright"), ("line 6, byte 44", r#""4"\r,d"#)];
    assert_eq!(reasons, expected.map(|(place, text)| format!("{place}: {what} | text: {text} | {rest}")));
    assert_eq!(outcome.rejects[0].raw, &b"1,left\rright"[..]);
    // The first line end decides, also one of a title; of a file whose lines end in CR, LF ends them too.
    let outcome = read(settings.clone(), b"id,note\r1,a\r2,b\n3,c\r").unwrap();
    assert_eq!((outcome.rows.num_rows(), outcome.lines), (3, vec![2, 3, 4]));
    let titled = json!({"columns": {"id": "int64", "note": "utf8"}, "skip_lines": 1, "header": false});
    assert_eq!(read(titled.clone(), b"title\n1,a\r2,b\n").unwrap().rejects.len(), 1);
    assert_eq!(read(titled, b"title\r1,a\r2,b\n").unwrap().rows.num_rows(), 2);
    // The last line of a file that was cut between CR and LF.
    assert_eq!(read(settings, b"id,note\r\n1,a\r\n2,b\r").unwrap().rejects.len(), 1);
}

#[test]
fn a_file_with_none_of_the_columns_is_an_error_whatever_may_be_missing() {
    let columns = json!({"columns": {"id": "int64", "name": "utf8"}});
    let format = csv(columns.clone());
    let request = ParseRequest { on_drift: OnDrift::Null, ..ParseRequest::all(format.declared().unwrap()) };
    let error = |text: &[u8]| shown(&parse(&format, text, &request, &[]).unwrap_err());
    assert_eq!(
        error(b"id;name\n1;a\n"),
        "line 1, byte 0: the file has none of the columns of the source | text: id;name | cause: the file has \
         `id;name`; the source has `id`, `name` | hint: the header is one field; is `;` the delimiter? set `delimiter: \
         \";\"`; files \
         with different delimiters are different sources"
    );
    let tabs = error(b"\"id\"\t\"name, first\"\n1\ta\n");
    assert!(tabs.contains("divided by a tab, not by `,`") || tabs.contains("inside a field"), "{tabs}");
    let other = error(b"nr,nmae\n1,a\n");
    assert!(other.contains("the file has `nr`, `nmae`; the source has `id`, `name`"), "{other}");
    assert!(other.contains("is `nmae` the column that the source calls `name`?"), "{other}");
    let some = parse(&format, b"id,more\n1,a\n", &request, &[]).unwrap();
    assert_eq!(some.rows.num_rows(), 1);
    let seen = SeenColumns::default();
    parse(&format, b"id,more\n1,a\n", &ParseRequest { seen: Some(seen.clone()), ..request }, &[]).unwrap();
    assert_eq!((seen.missing(), seen.only_other()), (vec![1], None));
}

#[test]
fn names_below_a_title_are_found_however_the_text_comes() {
    let schema = Schema::new(vec![Field::new("a", TEXT, true), Field::new("b", DataType::Int64, true)]);
    let request = ParseRequest { on_drift: OnDrift::Null, ..ParseRequest::all(Arc::new(schema)) };
    let far = [b"title\n".as_slice(), &[b'x'; 70_000], b"\na,b\n"].concat();
    let last = "correct `columns`, or leave the file out of `read`: all of its rows would be null";
    for (settings, text, hint) in [
        (json!({}), &b"\"\"\n\r\nx,y\na,b\n1,2\n"[..], "line 4 has the names of the columns: set `skip_lines: 3`"),
        (
            json!({"trim": true, "comment": "#", "max_record": 7}),
            b"\xef\xbb\xbf#\r\n\n\"x\"\r\n\"a\",b\r\n",
            "line 4 has the names of the columns: set `skip_lines: 3`",
        ),
        (
            json!({"max_record": 7}),
            b"\xef\xbb\xbf#\r\n\n\"a\",b\r\n",
            "line 3 has the names of the columns: set `skip_lines: 2`",
        ),
        (json!({}), b"\"two\nlines\"\r\ra,b\r1,2\r", "line 4 has the names of the columns: set `skip_lines: 3`"),
        (json!({}), b"title\na,b", last),
        (json!({}), b"title", last),
        (json!({"max_record": 5}), b"title\nlonger\na,b\n", last),
        (json!({}), &far, last),
    ] {
        let format = csv(settings);
        let whole = parse(&format, text, &request, &[]).unwrap_err();
        assert_eq!(whole.hint_text(), Some(hint), "{}", shown(&whole));
        let sample = Sample { uri: "a.csv".into(), text: Bytes::copy_from_slice(text), complete: false };
        if !text.ends_with(b"title") {
            assert_eq!(shown(&format.fits(&sample, &request).unwrap_err()), shown(&whole));
        }
        for size in [1, 3, 64, 50_000] {
            let cuts: Vec<usize> = (size..text.len()).step_by(size).collect();
            assert_eq!(shown(&parse(&format, text, &request, &cuts).unwrap_err()), shown(&whole));
            assert!(conformance::same_apart(&format, text, &request, &cuts, size));
        }
    }
}

#[test]
fn a_delimiter_that_the_text_contradicts_does_not_fit() {
    let fits = |settings: Value, text: &str| {
        let format = csv(settings);
        let request = ParseRequest::all(format.declared().unwrap());
        let text = Bytes::copy_from_slice(text.as_bytes());
        format.fits(&Sample { uri: "a.csv".into(), text, complete: true }, &request)
    };
    let settings = json!({"header": false, "columns": {"id": "int64", "name": "utf8"}});
    let error = fits(settings.clone(), "1;a\n2;b\n").unwrap_err();
    assert_eq!(error.what(), "the delimiter (`,`) does not occur in the file");
    assert_eq!(error.hint_text(), Some("set `delimiter: \";\"`"));
    fits(settings.clone(), "1;a\n2;b,c\n").expect("it occurs");
    fits(settings.clone(), "1;a\n2;b;c\n").expect("nothing else cuts it better");
    fits(settings, "").expect("nothing is due");
    let named = json!({"columns": {"id": "int64", "name": "utf8"}});
    assert!(fits(named.clone(), "id;name\n").is_err(), "the header tells");
    fits(named, "id,name\n1;a\n").expect("a bad record is a reject");
}

#[test]
fn what_stands_before_and_between_the_records() {
    let settings = json!({
        "columns": {"a": "int64", "b": "utf8"}, "skip_lines": 2, "comment": "#", "trim": true,
    });
    for end in ["\n", "\r\n", "\r"] {
        let text =
            "\u{feff}report, of \"today\n\n# comment \"\na , b\n1,  x  \n#2,y\n 3 , \"  z  \" \n".replace('\n', end);
        let outcome = read(settings.clone(), text.as_bytes()).unwrap();
        assert_eq!(outcome.rows.column(0).as_primitive::<Int64Type>().values(), &[1, 3]);
        assert_eq!(texts(&outcome, 1), some(&["x", "  z  "]));
        assert_eq!(outcome.lines, [5, 7], "line ends {end:?}");
    }
}

#[test]
fn other_encodings() {
    let columns = json!({"a": "utf8", "b": "int64"});
    let text = "a,b\nä€,1\n";
    let utf16: Vec<u8> = "\u{feff}a,b\nä€,1\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    for (settings, bytes) in [
        (json!({"columns": columns}), text.as_bytes().to_vec()),
        (json!({"columns": columns}), utf16),
        (json!({"columns": columns, "encoding": "windows-1252"}), b"a,b\n\xe4\x80,1\n".to_vec()),
    ] {
        assert_eq!(texts(&read(settings, &bytes).unwrap(), 0), some(&["ä€"]));
    }
    let half: Vec<u8> = [0x61, 0xd800, 0x62, 0x0a].iter().flat_map(|unit: &u16| unit.to_le_bytes()).collect();
    let settings = json!({"columns": {"a": "utf8"}, "header": false, "encoding": "utf-16"});
    let outcome = read(settings, &half).unwrap();
    assert_eq!(outcome.rejects[0].reason.what(), "these bytes are not utf-16le");
}

#[test]
fn numbers_and_dates_of_other_countries() {
    let settings = json!({
        "delimiter": ";", "decimal": ",", "thousands": ".", "date_format": "%d.%m.%Y", "null": ["", "k. A."],
        "true_texts": ["ja", "1"], "false_texts": "nein",
        "columns": {"n": "float64", "d": "date", "e": {"type": "date", "format": "%m/%d/%y"}, "b": "bool"},
    });
    let outcome = read(settings, "n;d;e;b\n1.234,5;31.12.2024;12/31/24;JA\nk. A.;;;nein\n".as_bytes()).unwrap();
    assert!(outcome.rejects.is_empty(), "{:?}", shown_rejects(&outcome));
    let numbers = outcome.rows.column(0).as_primitive::<Float64Type>();
    assert_eq!((numbers.value(0), numbers.is_null(1)), (1234.5, true));
    assert_eq!(outcome.rows.column(1), outcome.rows.column(2));
    assert!(outcome.rows.column(3).as_boolean().value(0) && !outcome.rows.column(3).as_boolean().value(1));
}

#[test]
fn values_of_unused_columns_are_checked_if_asked_for() {
    let format = csv(json!({"columns": {"a": "int64", "b": "int64"}, "header": false}));
    let text = b"1,x\n2,2\n3,3,3\n";
    let request = ParseRequest { projection: vec![0], ..ParseRequest::all(format.declared().unwrap()) };
    let used = parse(&format, text, &request, &[]).unwrap();
    assert_eq!((used.rows.num_rows(), used.rejects.len()), (2, 1), "the structure is always checked");
    let request = ParseRequest { validate: Validate::All, ..request };
    let all = parse(&format, text, &request, &[]).unwrap();
    assert_eq!((all.rows.num_rows(), all.rejects.len()), (1, 2));
    assert_eq!(all.rejects[0].reason.location().column.as_deref(), Some("b"));
    let request = ParseRequest { projection: Vec::new(), ..request };
    let none = parse(&format, text, &request, &[]).unwrap();
    assert_eq!((none.rows.num_rows(), none.rejects.len()), (1, 2));
}

fn infer(settings: Value, samples: &[&str], on_drift: OnDrift) -> Result<String> {
    let sample = |(index, text): (usize, &&str)| Sample {
        uri: format!("{index}.csv"),
        text: Bytes::copy_from_slice(text.as_bytes()),
        complete: true,
    };
    let samples: Vec<Sample> = samples.iter().enumerate().map(sample).collect();
    let schema = csv(settings).infer(&samples, on_drift)?;
    let shown = schema.fields().iter().map(|field| format!("{} {}", field.name(), type_name(field.data_type())));
    Ok(shown.collect::<Vec<_>>().join(", "))
}

#[test]
fn types_come_from_samples() {
    let text = "whole,part,zip,big,truth,day,moment,utc,clock,text,none,\n\
                1,1.5,01234,99999999999999999999,true,2024-12-31,2024-12-31 12:00:00,2024-12-31T12:00:00Z,12:00,a,,\n\
                -2,2,00001,1,FALSE,2024-02-29,2024-02-29,2024-02-29 00:00:00+01:00,23:59:59.5,,,\n";
    assert_eq!(
        infer(json!({}), &[text], OnDrift::Fail).unwrap(),
        "whole int64, part float64, zip utf8, big utf8, truth bool, day date, moment timestamp, utc timestamptz, \
         clock time, text utf8, none utf8, column_12 utf8"
    );
    assert_eq!(
        infer(json!({"header": false}), &["1,x\n2,y\n"], OnDrift::Fail).unwrap(),
        "column_1 int64, column_2 utf8"
    );
    assert_eq!(infer(json!({}), &["a,b\n1,\n", "b,a\n2.5,x\n", ""], OnDrift::Fail).unwrap(), "a utf8, b float64");
    assert_eq!(infer(json!({}), &["a\n1\n", "b\n2\n"], OnDrift::Widen).unwrap(), "a int64, b int64");
    assert_eq!(infer(json!({}), &["a\n1\n", "b\n2\n"], OnDrift::Null).unwrap(), "a int64");
    assert!(infer(json!({}), &["a\n1\n", "b\n2\n"], OnDrift::Fail).is_err());
    let comment = json!({"comment": "#", "skip_lines": 1});
    assert_eq!(infer(comment, &["x\n#y\n\na,b\n1,2\n1,2,3\n"], OnDrift::Fail).unwrap(), "a int64, b int64");
    for (samples, what) in [
        (&["", "\n\n"][..], "columns cannot be inferred: there is no record"),
        (&["", "\u{feff}"], "columns cannot be inferred: the files are empty"),
        (&[""], "columns cannot be inferred: the file is empty"),
    ] {
        let error = infer(json!({}), samples, OnDrift::Fail).unwrap_err();
        assert_eq!(error.what(), what);
        assert!(error.hint_text().unwrap().contains("declare `columns` and set `empty_files: allow`"));
    }
    assert!(infer(json!({}), &["a,\"b\n1,2\n"], OnDrift::Fail).is_err());
}

#[test]
fn the_cut_end_of_a_sample_does_not_count() {
    let sample =
        |text: &'static str| Sample { uri: "a.csv".into(), text: Bytes::from_static(text.as_bytes()), complete: false };
    let schema = csv(json!({})).infer(&[sample("a,b\n1,2\n3,4x")], OnDrift::Fail).unwrap();
    assert_eq!(schema.field(1).data_type(), &DataType::Int64);
    let error = csv(json!({})).infer(&[sample("a,b")], OnDrift::Fail).unwrap_err();
    assert_eq!(shown(&error).split(" |").next().unwrap(), "a.csv, line 1: the sample ends inside the first record");
}

#[test]
fn settings_are_checked() {
    let faults = |settings: Value| -> Vec<String> {
        let faults = millstream_core::spec::parse::<CsvSpec>(&settings).unwrap_err();
        faults.iter().map(|fault| format!("{}: {}", fault.path.join("."), fault.what)).collect()
    };
    assert_eq!(
        faults(json!({"delimiter": ",,", "quote": "ä", "escape": "\n", "comment": "##"})),
        [
            "delimiter: it is not one character",
            "quote: only a character of ASCII can be used here",
            "escape: a line end cannot be used here",
            "comment: it is not one character"
        ]
    );
    assert_eq!(faults(json!({"quote": ","})), ["quote: it is the same character as the delimiter"]);
    assert_eq!(
        faults(json!({"quote": "none", "escape": "\\"})),
        ["escape: there is nothing to escape without a quote"]
    );
    assert_eq!(faults(json!({"decimal": "x"})), ["decimal: it is not one sign"]);
    assert_eq!(faults(json!({"thousands": "."})), ["thousands: it is the same character as `decimal`"]);
    assert_eq!(faults(json!({"date_format": "%Q"})), ["date_format: this is not a format of dates and times"]);
    assert_eq!(faults(json!({"encoding": "utf-9"})), ["encoding: there is no encoding of that name"]);
    assert_eq!(faults(json!({"true_texts": "x", "false_texts": "X"})), ["false_texts: `x` is in `true_texts` too"]);
    assert_eq!(faults(json!({"columns": {"a": "text"}})), ["columns.a: there is no type named `text`: `text`"]);
    assert_eq!(faults(json!({"columns": {}})), ["columns: no column is declared"]);
    assert_eq!(faults(json!({"max_record": 0})), ["max_record: a record has from 1 byte to 1GiB"]);
    let again: CsvSpec = serde_json::from_value(serde_json::to_value(CsvSpec::default()).unwrap()).unwrap();
    assert!(again == CsvSpec::default() && again.check().is_empty());
}

#[test]
fn what_cannot_be_written_is_an_error() {
    let text = batch_of(vec![("a", Arc::new(StringViewArray::from(vec![Some("x,y"), None])) as ArrayRef)]);
    let write = |settings: Value, batch: &RecordBatch| -> Result<Vec<u8>> {
        let mut output = Vec::new();
        let mut encoder = csv(settings).encoder(batch.schema(), true)?;
        encoder.encode(batch, &mut output)?;
        encoder.finish(&mut output)?;
        Ok(output)
    };
    let error = write(json!({"quote": "none"}), &text).unwrap_err();
    assert_eq!(shown(&error).split(" |").next().unwrap(), "column a: the text cannot be written without quotes");
    assert!(write(json!({"null": []}), &text).is_err(), "no text for null");
    assert!(write(json!({"null": ","}), &text).is_err(), "a null that reads as two fields");
    assert!(write(json!({"skip_lines": 1}), &text).is_err() && write(json!({"encoding": "utf-16"}), &text).is_err());
    let zero = batch_of(vec![("a", Arc::new(Int64Array::from(vec![0])) as ArrayRef)]);
    assert!(write(json!({"null": "0"}), &zero).is_err(), "a zero that reads as null");
    let error = write(json!({}), &conformance::nested()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Job);
    assert!(shown(&error).contains("csv has no values of type list<int64>"), "{}", shown(&error));
}

#[test]
fn dates_are_written_in_their_formats() {
    let settings = json!({"header": false, "columns": {
        "a": {"type": "date", "format": "%d.%m.%Y"},
        "b": {"type": "timestamp", "format": "%d/%m/%Y %H:%M:%S"},
        "c": {"type": "time", "format": "%H.%M"},
        "d": {"type": "timestamptz", "format": "%Y%m%dT%H%M%S%z"},
    }});
    let text = b"31.12.2024,01/02/2003 04:05:06,23.59,20240229T235959+0000\n,,,\n";
    let outcome = read(settings.clone(), text).unwrap();
    assert_eq!(outcome.rows.num_rows(), 2, "{:?}", shown_rejects(&outcome));
    let written = encode(&csv(settings), &outcome.rows.schema(), std::slice::from_ref(&outcome.rows), true);
    assert_eq!(String::from_utf8_lossy(&written), String::from_utf8_lossy(text));
}

fn text_schema(width: usize) -> SchemaRef {
    Arc::new(Schema::new((0..width).map(|n| Field::new(format!("c{n}"), TEXT, true)).collect::<Vec<_>>()))
}

/// Settings that change where records end.
fn dialect_settings(dialect: usize) -> Value {
    let settings = [
        json!({"header": false}),
        json!({}),
        json!({"trim": true, "comment": "#", "header": false}),
        json!({"escape": "\\", "header": false}),
        json!({"escape": "\\", "trim": true, "comment": "#", "skip_lines": 2}),
        json!({"quote": "none", "delimiter": "ä", "header": false}),
        json!({"delimiter": "ä", "trim": true, "header": false, "skip_lines": 1}),
    ];
    settings[dialect % DIALECTS].clone()
}

const DIALECTS: usize = 7;

/// Text of bytes that are special in CSV.
fn messy() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => Just(b",".to_vec()),
        4 => Just(b"\"".to_vec()),
        3 => Just(b"\n".to_vec()),
        1 => Just(b"\r\n".to_vec()),
        1 => Just(b"\r".to_vec()),
        1 => Just(b"\\".to_vec()),
        1 => Just(b"#".to_vec()),
        1 => Just(b" ".to_vec()),
        1 => Just(b"\xc3\xa4".to_vec()),
        1 => Just(b"\xff".to_vec()),
        4 => proptest::collection::vec(b'a'..=b'f', 1..40),
        2 => Just(b"a,b\n".to_vec()),
    ];
    proptest::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

#[test]
fn rare_texts_are_found_among_many_records() {
    let record = |row: usize| match row % 1000 {
        7 => format!("wanted,{row}\n"),
        300 => format!("\"two\nlines, wanted\",{row}\n"),
        500 => format!("\"wanted\n\",{row},\n"),
        501 | 502 => "\r\n".to_owned(),
        700 => format!("\"other\nwanted\"\"\",{row}\r\n"),
        _ => format!("some other text,{row}\n"),
    };
    let text: String = ["a,b\n".to_owned()].into_iter().chain((0..20_000).map(record)).collect();
    let format = csv(json!({"columns": {"a": "utf8", "b": "int64"}}));
    let request =
        ParseRequest { lines: true, bytes: true, ..ParseRequest::all(format.declared().expect("declared columns")) };
    let contains = Contains { any: Vec::new(), all: vec!["wanted".to_owned()] };
    let cuts: Vec<usize> = (0..text.len()).step_by(50_000).collect();
    for cuts in [Vec::new(), cuts] {
        let length = |text: &[u8]| sound_record(text, &format.dialect);
        conformance::same_if_removed_later(&format, text.as_bytes(), &request, &contains, &cuts, length, |_| false);
    }
    let request = ParseRequest { contains, ..request };
    let outcome = parse(&format, text.as_bytes(), &request, &[]).expect("a sound text");
    assert_eq!((outcome.rows.num_rows(), outcome.rejects.len(), outcome.passed_over), (60, 20, 20_000 - 80 - 40));
    assert!(conformance::same_apart(&format, text.as_bytes(), &request, &[60_000], 30_000));
}

/// Mostly good records, with bad ones of every kind.
fn mostly_plain() -> impl Strategy<Value = Vec<u8>> {
    let good =
        vec!["a,1,1.5\n", "text of some length,-2,3\r\n", ",,\n", "\"a,\"\"b\"\"\",3,\"4\"\n", "\"two\nlines\",5,6\n"];
    let odd = vec![
        "\n",
        "\r\n",
        "\r",
        "a,1\n",
        "a,1,2,3\n",
        "#,1,2\n",
        "#\"\n",
        "a\"b,1,2\n",
        "\"a\"b,1,2\n",
        "\"a\" ,1,2\n",
        " \"a\",1,2\n",
        "a,x,2\n",
        "\r,1,2\n",
        "a,1,2\r",
        "\"\r\n\",1,2\n",
        "\"open,1,2\n",
        "'a\",1,2\n",
        "\"\"\"\",1,2\n",
        "\"\"\",1,2\n",
        "ä,1,2\n",
        "a field with so many words that the record is longer than sixty bytes,1,2\n",
    ];
    let record = prop_oneof![
        12 => prop::sample::select(good).prop_map(|record| record.as_bytes().to_vec()),
        1 => prop::sample::select(odd).prop_map(|record| record.as_bytes().to_vec()),
        1 => Just(b"\xff,1,2\n".to_vec()),
    ];
    proptest::collection::vec(record, 0..80).prop_map(|records| records.concat())
}

/// The length of the sound record with which `text` begins, without its line end.
fn sound_record(text: &[u8], dialect: &Dialect) -> usize {
    let at = |at: usize| text.get(at).copied();
    let is_quote = |one: Option<u8>| one.is_some() && one == dialect.quote;
    let mut end = 0;
    loop {
        while dialect.trim && at(end).is_some_and(|byte| b" \t".contains(&byte)) {
            end += 1;
        }
        if is_quote(at(end)) {
            end += 1;
            while !is_quote(at(end)) || (dialect.escape.is_none() && is_quote(at(end + 1))) {
                let is_escaped = at(end) == dialect.escape || is_quote(at(end));
                end += if at(end).is_some() && is_escaped { 2 } else { 1 };
            }
            end += 1;
        }
        while !matches!(at(end), None | Some(b'\n' | b'\r')) && !text[end..].starts_with(&dialect.delimiter) {
            end += 1;
        }
        match at(end) {
            None | Some(b'\n' | b'\r') => return end,
            Some(_) => end += dialect.delimiter.len(),
        }
    }
}

fn with_cuts(text: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = (Vec<u8>, Vec<usize>)> {
    text.prop_flat_map(|text| {
        let length = text.len();
        let cuts = proptest::collection::vec(0..=length, 0..6).prop_map(|mut cuts| {
            cuts.sort_unstable();
            cuts
        });
        (Just(text), cuts)
    })
}

/// The text after a byte order mark, a header or nothing.
fn beginning_with(text: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let beginnings = vec![&b""[..], b"\xef\xbb\xbf", b"a,b\n", b"\xef\xbb\xbf#\r\n\n\"a\",b\r\n"];
    (prop::sample::select(beginnings), text).prop_map(|(beginning, text)| [beginning, &text].concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn cuts_change_nothing((text, cuts) in with_cuts(beginning_with(messy())), dialect in 0..4_usize) {
        let settings = [
            json!({}),
            json!({"trim": true, "comment": "#"}),
            json!({"escape": "\\", "header": false}),
            json!({"quote": "none", "delimiter": "ä", "header": false}),
        ];
        let format = csv(settings[dialect].clone());
        let request = ParseRequest {
            lines: true,
            bytes: true,
            batch_rows: 3,
            on_drift: OnDrift::Null,
            ..ParseRequest::all(Arc::new(Schema::new(vec![
                Field::new("a", TEXT, true), Field::new("b", DataType::Int64, true),
            ])))
        };
        match (parse(&format, &text, &request, &[]), parse(&format, &text, &request, &cuts)) {
            (Ok(whole), Ok(cut)) => {
                prop_assert_eq!(&whole.rows, &cut.rows);
                prop_assert_eq!(&whole.lines, &cut.lines);
                prop_assert_eq!(&whole.bytes, &cut.bytes);
                prop_assert_eq!(shown_rejects(&whole), shown_rejects(&cut));
            }
            (Err(whole), Err(cut)) => prop_assert_eq!(shown(&whole), shown(&cut)),
            (whole, cut) => prop_assert!(false, "{whole:?} {cut:?}"),
        }
    }

    #[test]
    fn records_that_lack_a_text_are_no_rows_and_no_rejects(
        (text, cuts) in with_cuts(beginning_with(messy())),
        plain in mostly_plain(),
        is_plain in any::<bool>(),
        dialect in 0..5_usize,
        any in proptest::collection::vec("[ab1,\"\n\r]{1,2}", 0..3),
        all in proptest::collection::vec("[ab1,\"\n\r]{1,2}", 0..3),
        limit in prop::sample::select(vec![20, 1 << 20]),
        size in 1..60_usize,
    ) {
        let (text, cuts) = if is_plain { (plain, Vec::new()) } else { (text, cuts) };
        let mut settings = [
            json!({}),
            json!({"trim": true, "comment": "#"}),
            json!({"escape": "\\", "header": false}),
            json!({"quote": "none", "header": false}),
            json!({"header": false}),
        ][dialect].clone();
        settings["max_record"] = limit.into();
        let format = csv(settings);
        let request = ParseRequest {
            lines: true,
            bytes: true,
            batch_rows: 3,
            on_drift: OnDrift::Null,
            ..ParseRequest::all(Arc::new(Schema::new(vec![
                Field::new("a", TEXT, true), Field::new("b", DataType::Int64, true),
            ])))
        };
        let contains = Contains { any, all };
        let length = |text: &[u8]| sound_record(text, &format.dialect);
        conformance::same_if_removed_later(&format, &text, &request, &contains, &cuts, length, |_| false);
        conformance::same_apart(&format, &text, &ParseRequest { contains, ..request }, &cuts, size);
    }

    #[test]
    fn the_quick_way_takes_what_the_other_would_take(
        text in mostly_plain(), dialect in 0..4_usize, limit in prop::sample::select(vec![60, 1 << 20]),
    ) {
        let mut settings = [
            json!({}),
            json!({"comment": "#"}),
            json!({"trim": true, "quote": "'"}),
            json!({"quote": "none"}),
        ][dialect].clone();
        settings["max_record"] = json!(limit);
        settings["header"] = json!(false);
        let format = csv(settings);
        let columns = [("a", TEXT), ("b", DataType::Int64), ("c", DataType::Float64)];
        let fields = columns.map(|(name, data_type)| Field::new(name, data_type, true));
        let all = ParseRequest::all(Arc::new(Schema::new(fields.to_vec())));
        let request = ParseRequest { lines: true, bytes: true, ..all };
        // Pieces this short are not swept.
        let cuts: Vec<usize> = (50..text.len()).step_by(50).collect();
        match (parse(&format, &text, &request, &[]), parse(&format, &text, &request, &cuts)) {
            (Ok(whole), Ok(cut)) => {
                prop_assert_eq!(&whole.rows, &cut.rows);
                prop_assert_eq!(&whole.lines, &cut.lines);
                prop_assert_eq!(&whole.bytes, &cut.bytes);
                prop_assert_eq!(shown_rejects(&whole), shown_rejects(&cut));
            }
            (Err(whole), Err(cut)) => prop_assert_eq!(shown(&whole), shown(&cut)),
            (whole, cut) => prop_assert!(false, "{whole:?} {cut:?}"),
        }
    }

    #[test]
    fn pieces_parsed_apart_are_the_same(
        (text, cuts) in with_cuts(beginning_with(messy())),
        dialect in 0..DIALECTS,
        size in 1..60_usize,
        limit in prop::sample::select(vec![7, 30, 1 << 20]),
    ) {
        let mut settings = dialect_settings(dialect);
        settings["max_record"] = json!(limit);
        let format = csv(settings);
        let request = ParseRequest {
            lines: true,
            bytes: true,
            batch_rows: 3,
            on_drift: OnDrift::Null,
            ..ParseRequest::all(Arc::new(Schema::new(vec![
                Field::new("a", TEXT, true), Field::new("b", DataType::Int64, true),
            ])))
        };
        prop_assert!(conformance::same_apart(&format, &text, &request, &cuts, size));
    }

    /// Against a plain loop: the first line end decides, and then a CR alone ends a line or is a fault of it.
    #[test]
    fn the_first_line_end_decides(
        (text, cuts) in with_cuts(
            proptest::collection::vec(prop::sample::select(vec!["a,b", "c", ",", "\n", "\n", "\r\n", "\r"]), 0..40)
                .prop_map(|pieces| pieces.concat().into_bytes())
        ),
        size in 1..40_usize,
    ) {
        let format = csv(json!({"quote": "none", "header": false}));
        let request = ParseRequest { lines: true, bytes: true, batch_rows: 3, ..ParseRequest::all(text_schema(2)) };
        let outcome = parse(&format, &text, &request, &cuts).unwrap();
        prop_assert!(conformance::same_apart(&format, &text, &request, &cuts, size));
        let text = String::from_utf8(text).unwrap();
        let first = text.find(['\n', '\r']).map(|at| &text[at..]);
        let returns = first.is_some_and(|end| end.starts_with('\r') && !end.starts_with("\r\n"));
        let lines: Vec<&str> = match returns {
            true => text.split_inclusive('\n').flat_map(|line| match line.strip_suffix("\r\n") {
                // CR LF is one line end.
                Some(line) => line.split('\r').collect::<Vec<_>>(),
                None => line.trim_end_matches('\n').split('\r').collect(),
            }).collect(),
            false => text.split('\n').enumerate().map(|(number, line)| {
                let last = number == text.matches('\n').count();
                if last { line } else { line.strip_suffix('\r').unwrap_or(line) }
            }).collect(),
        };
        let wanted = |line: &&str| !line.is_empty();
        let good: Vec<&str> = lines.iter().copied().filter(wanted)
            .filter(|line| !line.contains('\r') && line.matches(',').count() == 1).collect();
        let bad: Vec<&str> = lines.iter().copied().filter(wanted).filter(|line| !good.contains(line)).collect();
        let refused: Vec<String> =
            outcome.rejects.iter().map(|reject| String::from_utf8_lossy(&reject.raw).into_owned()).collect();
        prop_assert_eq!(outcome.rows.num_rows(), good.len());
        prop_assert_eq!(refused, bad);
    }

    #[test]
    fn what_is_accepted_is_what_the_csv_crate_reads((text, cuts) in with_cuts(messy())) {
        let format = csv(json!({"header": false}));
        let outcome = parse(&format, &text, &ParseRequest::all(text_schema(2)), &cuts);
        // The csv crate is lenient: it is compared where nothing was refused.
        if let Ok(outcome) = outcome && outcome.rejects.is_empty() {
            let mut reader = csv_reader(&text);
            let expected: Vec<Vec<String>> = reader
                .byte_records()
                .map(|record| record.unwrap().iter().map(|field| String::from_utf8(field.to_vec()).unwrap()).collect())
                .collect();
            let found: Vec<Vec<String>> = (0..outcome.rows.num_rows())
                .map(|row| (0..2).map(|column| {
                    let values = outcome.rows.column(column).as_string_view();
                    if values.is_null(row) { String::new() } else { values.value(row).to_owned() }
                }).collect())
                .collect();
            let without_mark = |mut rows: Vec<Vec<String>>| {
                if let Some(first) = rows.first_mut() { first[0] = first[0].trim_start_matches('\u{feff}').to_owned(); }
                rows
            };
            prop_assert_eq!(without_mark(found), without_mark(expected));
        }
    }

    #[test]
    fn what_the_csv_crate_writes_is_read(rows in proptest::collection::vec(proptest::collection::vec("[a-c,;\"'\n\r#äß \
        ]{0,20}", 3), 0..20)) {
        let mut writer = ::csv::WriterBuilder::new().quote_style(::csv::QuoteStyle::Always).from_writer(Vec::new());
        rows.iter().for_each(|row| writer.write_record(row).unwrap());
        let text = writer.into_inner().unwrap();
        let format = csv(json!({"header": false}));
        let cuts: Vec<usize> = (0..text.len()).step_by(5).collect();
        let outcome = parse(&format, &text, &ParseRequest::all(text_schema(3)), &cuts).unwrap();
        prop_assert!(outcome.rejects.is_empty());
        for column in 0..3 {
            let expected: Vec<Option<String>> = rows.iter().map(|row| Some(row[column].clone())).collect();
            prop_assert_eq!(texts(&outcome, column), expected);
        }
    }

    #[test]
    fn numbers_are_read_like_arrow_reads_them(
        values in proptest::collection::vec(
            (any::<Option<i64>>(), any::<Option<f64>>(), "[a-z\",\n]{1,20}"),
            1..30,
        )
    ) {
        let batch = batch_of(vec![
            ("i", Arc::new(values.iter().map(|value| value.0).collect::<Int64Array>()) as ArrayRef),
            ("f", Arc::new(values.iter().map(|value| value.1).collect::<arrow::array::Float64Array>())),
            ("t", Arc::new(StringViewArray::from_iter_values(values.iter().map(|value| &value.2)))),
        ]);
        let format = csv(json!({}));
        let text = encode(&format, &batch.schema(), std::slice::from_ref(&batch), true);
        let ours = parse(&format, &text, &ParseRequest::all(batch.schema()), &[text.len() / 2]).unwrap().rows;
        let theirs: Vec<RecordBatch> = arrow_csv::ReaderBuilder::new(batch.schema())
            .with_header(true).build(&text[..]).unwrap().collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(&ours, &theirs[0]);
        prop_assert_eq!(&ours, &batch);
    }
}

fn csv_reader(text: &[u8]) -> ::csv::Reader<&[u8]> {
    ::csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text)
}

#[test]
fn one_record_is_cut_out_of_a_file_and_made_a_file_again() {
    let text = b"# c\nid,name\n1,\"a\nb\"\n2,c\n";
    for (header, length) in [(true, b"# c\nid,name\n".len()), (false, b"# c\n".len())] {
        let format = csv(json!({"comment": "#", "header": header, "columns": {"id": "utf8", "name": "utf8"}}));
        let columns = format.declared().expect("declared columns");
        let request = ParseRequest { lines: true, bytes: true, ..ParseRequest::all(columns) };
        assert_eq!(format.needs_header(), header);
        assert_eq!(format.header_length(text, &request), length, "header: {header}");
        let (head, rest) = text.split_at(b"# c\nid,name\n".len());
        let record = &rest[..format.record_length(head, rest, &request)];
        assert_eq!(record, b"1,\"a\nb\"\n");
        let file = format.file_of_record(head, record);
        assert_eq!(format.record_length(head, &file[head.len()..], &request), file.len() - head.len());
    }
}

#[test]
fn a_content_type_tells_settings() {
    for (value, settings) in [
        ("text/csv; charset=utf-8", Some(json!({}))),
        ("Text/CSV;header=absent", Some(json!({"header": false}))),
        ("text/tab-separated-values", Some(json!({"delimiter": "\t"}))),
        ("text/plain", None),
        ("application/json", None),
    ] {
        assert_eq!((ENTRY.by_content_type)(value), settings, "{value}");
    }
}

#[test]
fn lines_of_a_file_without_quotes_can_be_read_behind_others() {
    let text = b"id,name\n1,a\"\n2,\"b\n\n3\n4,d,e\n5,\xff\n6,f";
    let columns = json!({"id": "int64", "name": "utf8"});
    let behind = |settings: Value, text: &[u8]| {
        let mut all = json!({"columns": columns});
        all.as_object_mut().expect("an object").extend(settings.as_object().expect("an object").clone());
        let format = csv(all);
        let request = ParseRequest::all(format.declared().expect("declared columns"));
        conformance::same_behind(&format, text, &request)
    };
    assert!(behind(json!({"quote": "none"}), text));
    let with_returns = String::from_utf8_lossy(text).replace('\n', "\r\n");
    assert!(behind(json!({"quote": "none"}), with_returns.as_bytes()));
    assert!(!behind(json!({"quote": "none"}), b"id,name\r1,a\n2,b\n"), "a CR ends a line");
    assert!(!behind(json!({"quote": "none", "comment": "#"}), b"id,name\n1,a\n2,b\n"));
    assert!(!behind(json!({}), b"id,name\n1,a\n2,b\n"), "a line end may stand in quotes");
}
