//! Tests of the lines format.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, StringViewArray, UInt32Array};
use bytes::Bytes;
use millstream_core::contains::Contains;
use millstream_core::format::{ParseRequest, Parsed, Required};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::conformance::{Columns, Outcome, Subject, batch_of, parse as parse_text, same_apart, same_if_removed_later};

fn lines(settings: Value) -> Lines {
    let spec: LinesSpec = millstream_core::spec::parse(&settings).expect("valid settings");
    Lines::new(&spec).expect("valid settings")
}

fn request() -> ParseRequest {
    ParseRequest { lines: true, bytes: true, ..ParseRequest::all(lines(json!({})).declared().unwrap()) }
}

fn read(settings: Value, text: &[u8], cuts: &[usize]) -> Result<Outcome> {
    parse_text(&lines(settings), text, &request(), cuts)
}

fn values(outcome: &Outcome) -> Vec<String> {
    outcome.rows.column(0).as_string_view().iter().map(|line| line.unwrap_or("null").to_owned()).collect()
}

#[test]
fn conformance() {
    let long = "longer than twelve bytes";
    let values = vec!["a", "", "  ", long, "\"quoted\",", "\tä", "a\rb", "日本語"];
    let batch = batch_of(vec![(LINE, Arc::new(StringViewArray::from(values)) as ArrayRef)]);
    let format = Arc::new(lines(json!({})));
    let subject = Subject { format, batch, bad_record: Some(b"\xff\n"), columns: Columns::Fixed };
    subject.check();
    subject.check_memory();
}

#[test]
fn line_ends() {
    for (text, expected) in [
        (&b""[..], vec![]),
        (b"\n", vec![""]),
        (b"a", vec!["a"]),
        (b"a\n", vec!["a"]),
        (b"a\r\n\r\nb\rc\n\r", vec!["a", "", "b\rc", ""]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb", vec!["a", "\u{feff}b"]),
        (b"\xff\xfea\0\n\0", vec!["a"]),
    ] {
        let outcome = read(json!({}), text, &[]).unwrap();
        assert_eq!(values(&outcome), expected);
        let count = ParseRequest { projection: Vec::new(), lines: false, bytes: false, ..request() };
        let counted = parse_text(&lines(json!({})), text, &count, &[]).unwrap();
        assert_eq!(counted.rows.num_rows(), expected.len());
    }
}

#[test]
fn bad_bytes_are_rejected_unless_only_line_ends_count() {
    let text = b"a\nb\xe4\r\nc\n";
    let outcome = read(json!({}), text, &[]).unwrap();
    assert_eq!((values(&outcome), outcome.lines), (vec!["a".to_owned(), "c".to_owned()], vec![1, 3]));
    let reason = &outcome.rejects[0].reason;
    assert_eq!(reason.to_string(), "line 2, byte 3: these bytes are not UTF-8");
    assert_eq!(outcome.rejects[0].raw, &b"b\xe4"[..]);
    assert_eq!(values(&read(json!({"encoding": "latin1"}), text, &[]).unwrap()), ["a", "bä", "c"]);
    let count = ParseRequest { projection: Vec::new(), lines: false, bytes: false, ..request() };
    assert_eq!(parse_text(&lines(json!({})), text, &count, &[]).unwrap().rows.num_rows(), 3);
}

#[test]
fn a_line_has_a_longest_length() {
    let settings = json!({"max_record": 5});
    assert_eq!(values(&read(settings.clone(), b"12345\n12345", &[]).unwrap()).len(), 2);
    let text = b"12345\n1\n123456\n1";
    let bytewise: Vec<usize> = (1..text.len()).collect();
    for cuts in [&[][..], &[9], &[3, 10], &bytewise] {
        for count in [true, false] {
            let mut request = request();
            if count {
                request = ParseRequest { projection: Vec::new(), lines: false, bytes: false, ..request };
            }
            let error = parse_text(&lines(settings.clone()), text, &request, cuts).unwrap_err();
            assert_eq!(error.to_string(), "line 3, byte 8: the line is longer than 5 B", "cut at {cuts:?}");
        }
    }
}

#[test]
fn lines_share_the_pushed_buffer() {
    let text = Bytes::from_static(b"longer than twelve bytes\nanother that is long enough\n");
    let mut parser = lines(json!({})).parser(&ParseRequest::all(lines(json!({})).declared().unwrap())).unwrap();
    let mut parsed = Parsed::default();
    parser.push(text.clone(), &mut parsed).unwrap();
    parser.finish(&mut parsed).unwrap();
    let array = parsed.rows[0].batch.column(0).as_string_view().clone();
    assert_eq!(array.data_buffers()[0].as_ptr(), text.as_ptr());
}

#[test]
fn lines_without_the_required_text_are_passed_over() {
    let request = ParseRequest { required: vec![Required { column: 0, text: "key".into() }], ..request() };
    let text = b"a\nb\nthe key\r\nc\n\na key and a key\nkey";
    let outcome = parse_text(&lines(json!({})), text, &request, &[]).unwrap();
    assert_eq!(values(&outcome), ["the key", "a key and a key", "key"]);
    assert_eq!((outcome.lines, outcome.passed_over), (vec![3, 6, 7], 4));
}

#[test]
fn only_utf8_can_be_cut() {
    let cut = |settings: Value, head: &[u8]| lines(settings).splitter(head).is_some();
    assert!(cut(json!({}), b"") && cut(json!({}), b"a\nb") && cut(json!({"encoding": "utf-8"}), b"\xff\xfe"));
    assert!(!cut(json!({}), b"\xff\xfea\0") && !cut(json!({"encoding": "latin1"}), b"a"));
}

#[test]
fn what_is_no_line_is_not_written() {
    let numbers = batch_of(vec![("n", Arc::new(Int64Array::from(vec![1])) as ArrayRef)]);
    let error = lines(json!({})).encoder(numbers.schema(), true).map(|_| ()).unwrap_err();
    assert_eq!(error.what(), "lines are written from a column of text, and it is int64");
    let two = batch_of(vec![
        ("a", Arc::new(StringViewArray::from(vec!["x"])) as ArrayRef),
        ("b", Arc::new(StringViewArray::from(vec!["y"]))),
    ]);
    assert!(lines(json!({})).encoder(two.schema(), true).is_err());
    for text in ["a\nb", "a\r"] {
        let batch = batch_of(vec![("a", Arc::new(StringViewArray::from(vec![text])) as ArrayRef)]);
        let mut encoder = lines(json!({})).encoder(batch.schema(), true).unwrap();
        assert!(encoder.encode(&batch, &mut Vec::new()).is_err(), "{text:?}");
    }
}

proptest! {
    #[test]
    fn pieces_parsed_apart_are_the_same(
        text in proptest::collection::vec(prop::sample::select(b"ab\n\n\r\xe4\xef\xbb\xbf".to_vec()), 0..80),
        mut cuts in proptest::collection::vec(0..=80_usize, 0..6),
        size in 1..40_usize,
        limit in prop::sample::select(vec![3, 10, 1 << 20]),
        count in any::<bool>(),
    ) {
        cuts.retain(|cut| *cut <= text.len());
        cuts.sort_unstable();
        let mut request = ParseRequest { batch_rows: 3, ..request() };
        if count {
            request = ParseRequest { projection: Vec::new(), lines: false, bytes: false, ..request };
        }
        let apart = same_apart(&lines(json!({"max_record": limit})), &text, &request, &cuts, size);
        prop_assert!(apart, "lines can be cut");
    }

    #[test]
    fn only_sound_lines_without_the_required_text_are_passed_over(
        text in proptest::collection::vec(prop::sample::select(b"aaabb\n\n\r\xe4".to_vec()), 0..200),
        mut cuts in proptest::collection::vec(0..=200_usize, 0..4),
        required in "[ab\n\r]{1,3}",
    ) {
        cuts.retain(|cut| *cut <= text.len());
        cuts.sort_unstable();
        let all = read(json!({}), &text, &cuts).unwrap();
        let hint = Required { column: 0, text: required.clone() };
        let request = ParseRequest { batch_rows: 3, required: vec![hint], ..request() };
        let some = parse_text(&lines(json!({})), &text, &request, &cuts).unwrap();
        let wanted = |outcome: &Outcome| -> Vec<(String, i64)> {
            let rows = values(outcome).into_iter().zip(outcome.lines.iter().copied());
            rows.filter(|(line, _)| line.contains(&required)).collect()
        };
        prop_assert_eq!(wanted(&some), wanted(&all));
        prop_assert_eq!(some.rows.num_rows() as u64 + some.passed_over, all.rows.num_rows() as u64);
        let told = |outcome: &Outcome| -> Vec<String> {
            outcome.rejects.iter().map(|reject| reject.reason.to_string()).collect()
        };
        prop_assert_eq!(told(&some), told(&all));
    }

    #[test]
    fn lines_that_lack_a_text_are_no_rows_and_no_rejects(
        text in proptest::collection::vec(prop::sample::select(b"aaabb\n\n\r\xe4".to_vec()), 0..200),
        mut cuts in proptest::collection::vec(0..=200_usize, 0..4),
        any in proptest::collection::vec("[ab\r]{1,3}", 0..3),
        all in proptest::collection::vec("[ab\r]{1,2}", 0..3),
        limit in prop::sample::select(vec![5, 1 << 20]),
        size in 1..40_usize,
    ) {
        cuts.retain(|cut| *cut <= text.len());
        cuts.sort_unstable();
        let contains = Contains { any, all };
        let request = ParseRequest { batch_rows: 3, ..request() };
        let format = lines(json!({"max_record": limit}));
        let length = |text: &[u8]| text.iter().position(|byte| *byte == b'\n').unwrap_or(text.len());
        same_if_removed_later(&format, &text, &request, &contains, &cuts, length, |_| false);
        same_apart(&format, &text, &ParseRequest { contains, ..request }, &cuts, size);
    }

    #[test]
    fn lines_are_those_of_a_plain_split(text in "[ab\n\rä]{0,200}", size in 1..50_usize) {
        let cuts: Vec<usize> = (0..text.len()).step_by(size).collect();
        let outcome = read(json!({}), text.as_bytes(), &cuts).unwrap();
        let body = text.strip_suffix('\n').unwrap_or(&text);
        let expected: Vec<String> = if text.is_empty() {
            Vec::new()
        } else {
            body.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line).to_owned()).collect()
        };
        prop_assert_eq!(values(&outcome), expected);
        prop_assert_eq!(outcome.lines, (1..=outcome.rows.num_rows() as i64).collect::<Vec<_>>());
    }

    #[test]
    fn lines_are_written_as_they_are_wherever_they_lie(
        text in "([ab]{0,20}\r?\n){1,30}[ab]{0,20}",
        chosen in prop::collection::vec((0..30_u32, 1..5_u32, any::<bool>()), 0..20),
    ) {
        let outcome = read(json!({}), text.as_bytes(), &[]).unwrap();
        let rows = outcome.rows.num_rows() as u32;
        // Some that follow each other, and nulls between them.
        let runs = chosen.into_iter().flat_map(|(from, count, null)| {
            (from..from + count).map(|row| Some(row % rows)).chain(null.then_some(None))
        });
        let chosen: UInt32Array = runs.collect();
        let column = arrow::compute::take(outcome.rows.column(0), &chosen, None).unwrap();
        let line = |line: Option<&str>| line.unwrap_or("").to_owned() + "\n";
        let expected: String = column.as_string_view().iter().map(line).collect();
        let batch = batch_of(vec![(LINE, column)]);
        let mut written = b"before\n".to_vec();
        lines(json!({})).encoder(batch.schema(), true).unwrap().encode(&batch, &mut written).unwrap();
        prop_assert_eq!(String::from_utf8(written).unwrap(), format!("before\n{expected}"));
    }
}

#[test]
fn a_dictionary_of_texts_is_text() {
    use arrow::array::{DictionaryArray, RecordBatch};
    use arrow::datatypes::Int8Type;

    let values: DictionaryArray<Int8Type> = [Some("a"), None, Some("b"), Some("a")].into_iter().collect();
    let batch = RecordBatch::try_from_iter([("line", Arc::new(values) as _)]).expect("one column");
    let mut output = Vec::new();
    let format = Lines::new(&LinesSpec::default()).expect("good settings");
    let mut encoder = format.encoder(batch.schema(), true).expect("text");
    encoder.encode(&batch, &mut output).expect("no line ends");
    assert_eq!(output, b"a\n\nb\na\n");
}
