//! Property tests: a guess reads every record of a CSV file unchanged, or names what it does not read.

use std::collections::{HashMap, HashSet};

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use bytes::Bytes;
use millstream_core::format::{ParseRequest, Parsed, Reading, Sample};
use proptest::prelude::*;

use super::{Guess, guess};

/// What a column holds.
const VALUES: &[&[&str]] = &[
    &["1", "2", "37", "-4", "1000000", "12345678901"],
    &["0.5", "1.25", "-3", "10.0", "1e-7", "2.5e+10"],
    &["1.9", "1.10", "2.0"],
    &["9007199254740993", "0.5", "18014398509481985"],
    &["99999999999999999999", "1", "2"],
    &["word", "more words", "straße", "x"],
    &["Smith, John", "Doe; Jane", "a|b", "tab\there"],
    &["say \"hi\"", "\"", "it's", "'quoted'", "5\" pipe"],
    &["two\nlines", "one line", "a,\n\nb"],
    &["2024-01-31", "2023-12-01"],
    &["31.12.2024", "01.02.2024"],
    &["01/02/2024", "03/04/2023"],
    &["01/31/2024", "02/03/2024"],
    &["10.12.24", "2.2.0", "1.0.12"],
    &["2024-01-31 10:11:12", "2024-01-31T23:59:59.125"],
    &["2024-01-31T10:11:12+02:00", "2024-01-31T10:11:12Z"],
    &["10:15", "23:59:00"],
    &["Y", "N"],
    &["true", "false"],
    &["NA", "1", "2"],
    &["NA", "DE", "FR"],
    &["-", "1.5"],
    &["+318855443322", "+4930123456"],
    &["00123", "04711"],
    &["1,234", "12,345"],
    &["1.234,56", "0,5"],
    &["1,234,567.5", "12,345"],
    &["1 234", "123 456"],
    &["#foo", "#bar", "baz"],
    &["1e5", "12E4", "7"],
    &["0x1F", "0xff"],
    &["", "a", "b"],
    &["", "1"],
    &[" padded ", "not"],
    &["t", "f"],
    &["-0", "0"],
    &["1.2.3", "1.2"],
];

/// A file and what it holds.
#[derive(Debug, Clone)]
struct File {
    text: String,
    delimiter: char,
    /// The records, with the line on which each begins; the first holds the names, if there are any.
    records: Vec<(u64, Vec<String>)>,
    header: bool,
}

/// How a file is written.
#[derive(Debug, Clone)]
struct Style {
    delimiter: char,
    header: bool,
    quote_all: bool,
    end: &'static str,
    titles: usize,
    comments: bool,
    mark: bool,
    /// Of the names: as many as there are columns, one less, one more.
    names: i32,
    /// A record that lacks a field.
    short: Option<usize>,
}

fn style() -> impl Strategy<Value = Style> {
    let delimiter = prop::sample::select(vec![',', ';', '\t', '|']);
    let end = prop::sample::select(vec!["\n", "\r\n"]);
    let names = prop::sample::select(vec![0, 0, 0, 0, -1, 1]);
    let often = |yes: u32| prop::bool::weighted(1.0 / f64::from(yes));
    (
        delimiter,
        any::<bool>(),
        often(4),
        end,
        (often(5), 1..3_usize),
        often(6),
        often(6),
        names,
        prop::option::weighted(0.1, 1..9_usize),
    )
        .prop_map(|(delimiter, header, quote_all, end, (has_titles, titles), comments, mark, names, short)| {
            Style {
                delimiter,
                header,
                quote_all,
                end,
                titles: if has_titles { titles } else { 0 },
                comments,
                mark,
                names,
                short,
            }
        })
}

fn file() -> impl Strategy<Value = File> {
    let columns = prop::collection::vec(0..VALUES.len(), 1..6);
    let picks = prop::collection::vec(prop::collection::vec(0..12_usize, 6), 1..14);
    (columns, picks, style()).prop_map(|(columns, picks, style)| written(&columns, &picks, &style))
}

fn written(columns: &[usize], picks: &[Vec<usize>], style: &Style) -> File {
    let mut file = File { text: String::new(), delimiter: style.delimiter, records: Vec::new(), header: style.header };
    let mut line = 1;
    if style.mark {
        file.text.push('\u{feff}');
    }
    for title in 0..style.titles {
        file.text.push_str(["Report of the year", "made by a machine"][title]);
        file.text.push_str(style.end);
        line += 1;
    }
    let mut records: Vec<Vec<String>> = Vec::new();
    if style.header {
        let mut names: Vec<String> = (0..columns.len()).map(|column| format!("name {column}")).collect();
        match style.names {
            -1 => names.truncate(columns.len() - 1),
            1 => names.push("more".to_owned()),
            _ => {}
        }
        records.push(names);
    }
    for (row, picks) in picks.iter().enumerate() {
        let value = |(column, pick): (&usize, &usize)| VALUES[*column][pick % VALUES[*column].len()].to_owned();
        let mut record: Vec<String> = columns.iter().zip(picks).map(value).collect();
        if style.short == Some(row) {
            record.pop();
        }
        records.push(record);
    }
    for (number, record) in records.into_iter().enumerate() {
        if style.comments && number == 2 {
            file.text.push_str("# nothing of use");
            file.text.push_str(style.end);
            line += 1;
        }
        let fields: Vec<String> = record.iter().map(|field| in_quotes(field, style)).collect();
        let text = fields.join(&style.delimiter.to_string());
        let is_blank = text.is_empty();
        file.text.push_str(&text);
        file.text.push_str(style.end);
        if !is_blank {
            file.records.push((line, record));
        }
        line += 1 + text.matches('\n').count() as u64;
    }
    file
}

fn in_quotes(field: &str, style: &Style) -> String {
    let needs = style.quote_all || field.contains([style.delimiter, '"', '\n', '\r']);
    if needs { format!("\"{}\"", field.replace('"', "\"\"")) } else { field.to_owned() }
}

/// The file read with the guessed settings: the rows by their lines, and the names of the columns.
type Read = (HashMap<u64, Vec<Option<String>>>, Vec<String>);

fn read(guess: &Guess, sample: &Sample) -> Read {
    let entry = crate::FORMATS.iter().find(|entry| entry.spec.name == guess.format).unwrap();
    let format = (entry.build)(&guess.settings).unwrap_or_else(|faults| panic!("{faults:?}"));
    let Reading::Stream(reading) = format.reading() else { panic!("{}", guess.format) };
    let schema = format.declared().unwrap();
    let names = schema.fields().iter().map(|field| field.name().clone()).collect();
    let mut parser = reading.parser(&ParseRequest { lines: true, ..ParseRequest::all(schema) }).unwrap();
    let mut parsed = Parsed::default();
    let done = parser.push(sample.text.clone(), &mut parsed).and_then(|()| parser.finish(&mut parsed));
    if let Err(error) = done {
        let told = guess.evidence.iter().any(|one| one.contains(error.what()));
        assert!(told, "{error} is not told by {:?}", guess.evidence);
    }
    let mut rows = HashMap::new();
    for piece in &parsed.rows {
        let lines = piece.lines.as_ref().unwrap().as_primitive::<Int64Type>();
        let options = FormatOptions::new();
        let columns: Vec<_> = piece
            .batch
            .columns()
            .iter()
            .map(|column| (column, ArrayFormatter::try_new(column, &options).unwrap()))
            .collect();
        for row in 0..piece.batch.num_rows() {
            let value = |(array, formatter): &(&arrow::array::ArrayRef, ArrayFormatter<'_>)| {
                (!array.is_null(row)).then(|| formatter.value(row).to_string())
            };
            rows.insert(lines.value(row).cast_unsigned(), columns.iter().map(value).collect());
        }
    }
    (rows, names)
}

/// A number as its digits and the power of ten of the last one.
fn number(text: &str) -> Option<(bool, String, i64)> {
    let (negative, rest) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (mantissa, power) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let power: i64 = power.parse().ok()?;
    let short = digits.trim_end_matches('0');
    let power = power - fraction.len() as i64 + (digits.len() - short.len()) as i64;
    let short = short.trim_start_matches('0');
    Some(if short.is_empty() { (negative, String::new(), 0) } else { (negative, short.to_owned(), power) })
}

/// Whether `got` is the field `expected`, or `guess` reports how its column differs.
fn is_same(guess: &Guess, name: &str, expected: &str, got: Option<&str>) -> bool {
    let trimmed = if guess.settings["trim"] == true { expected.trim() } else { expected };
    let same = match got {
        None => trimmed.is_empty(),
        Some(got) => {
            got == trimmed
                || expected.replace(' ', "T") == got
                || number(expected).is_some_and(|number_of| number(got) == Some(number_of))
                || got == format!("{expected}:00")
        }
    };
    same || guess.evidence.iter().any(|one| one.starts_with(&format!("column {name}:")))
}

fn check(file: &File, uri: &str) {
    let sample = Sample { uri: uri.to_owned(), text: Bytes::from(file.text.clone()), complete: true };
    let Ok(guess) = guess(&sample, &sample.text) else {
        assert!(file.text.trim_start_matches('\u{feff}').trim().is_empty(), "nothing is guessed of {:?}", file.text);
        return;
    };
    let context = || format!("{:?}\n{}\n{:#?}", file.text, guess.settings, guess.evidence);
    let (rows, names) = read(&guess, &sample);
    let skipped = guess.settings.get("skip_lines").and_then(serde_json::Value::as_u64).unwrap_or(0);
    if guess.format == "lines" {
        let lines: HashSet<u64> = rows.keys().copied().collect();
        assert!(file.records.iter().all(|(line, _)| lines.contains(line)), "{}", context());
        return;
    }
    let told = |part: &str| guess.evidence.iter().any(|one| one.contains(part));
    let as_generated = guess.settings.get("delimiter").map_or(",", |sign| sign.as_str().unwrap())
        == file.delimiter.to_string()
        && guess.settings.get("quote").is_none()
        && file.records.iter().all(|(_, record)| record.len() <= names.len());
    for (number, (line, record)) in file.records.iter().enumerate() {
        let Some(row) = rows.get(line) else {
            let first = file.records.iter().position(|(line, _)| *line > skipped);
            let is_header = first == Some(number)
                && (told("is a header") || told("taken for a header") || told("the names of the columns"));
            let is_skipped = *line <= skipped && (told("is skipped:") || told("are skipped:"));
            let is_named = told(&format!("line {line},")) || told(&format!("line {line}:"));
            let is_counted = told("records of this file cannot be read") || told("record of this file cannot be read");
            // With another quote, a record of several lines begins on another line.
            let is_cut = guess.settings.get("quote").is_some();
            assert!(is_header || is_skipped || is_named || is_counted || is_cut, "line {line} is lost: {}", context());
            continue;
        };
        if as_generated && row.len() == record.len() {
            for ((name, expected), got) in names.iter().zip(record).zip(row) {
                assert!(
                    is_same(&guess, name, expected, got.as_deref()),
                    "line {line}, column {name}: {expected:?} became {got:?}: {}",
                    context()
                );
            }
        }
    }
    // Names are not lost, either.
    if file.header && as_generated && !rows.contains_key(&file.records[0].0) {
        let kept = file.records[0].1.iter().filter(|name| names.contains(name)).count();
        assert!(
            kept == file.records[0].1.len() || told(&file.records[0].1[0]) || told("one more"),
            "names are lost: {}",
            context()
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_guess_reads_every_record_or_names_it(file in file(), csv in any::<bool>()) {
        check(&file, if csv { "a.csv" } else { "a.txt" });
    }

    #[test]
    fn a_guess_of_any_text_reads_it_or_says_why_not(text in "[a1\"',;#\n\t .-]{0,60}") {
        let sample = Sample { uri: "a.csv".to_owned(), text: Bytes::from(text), complete: true };
        if let Ok(guess) = guess(&sample, &sample.text) {
            read(&guess, &sample);
        }
    }
}
