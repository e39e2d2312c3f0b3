//! Guessing, tried on the messy files under `tests/sniff` against the recorded answers of DuckDB's sniffer (see
//! `make.py` there), and on files that are no CSV.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use arrow::datatypes::DataType;
use bytes::Bytes;
use millstream_core::format::{ParseRequest, Parsed, Reading, Rows};
use serde::Deserialize;

use super::*;
use millstream_core::columns::Columns as DeclaredColumns;

/// Why an answer of ours is not DuckDB's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Because {
    /// DuckDB does not find the table, fails, or takes rows for names or names for rows.
    DuckDbIsWrong,
    /// Both find the same table, and we find numbers, dates or nulls that DuckDB leaves as text.
    WeFindMore,
    /// Both answers are reasonable.
    OfTaste,
}

use Because::{DuckDbIsWrong, OfTaste, WeFindMore};

/// Files about which we and DuckDB differ, and why.
const DIFFERENCES: &[(&str, Because, &str)] = &[
    ("all_text_no_header.csv", DuckDbIsWrong, "the texts of the first record come again: it is no header"),
    ("apache.csv", DuckDbIsWrong, "spaces and quotes cut every line into the same fields"),
    ("bank_statement.csv", WeFindMore, "decimal comma"),
    (
        "big_integers.csv",
        OfTaste,
        "more digits than int64: HUGEINT there, text here, since int64 and float64 lose digits",
    ),
    ("caret.csv", DuckDbIsWrong, "it does not try carets"),
    ("colon.csv", DuckDbIsWrong, "it does not try colons"),
    ("comment_long.csv", DuckDbIsWrong, "it takes the first comment for a header"),
    ("control_a.csv", DuckDbIsWrong, "it does not try control characters"),
    ("date_ambiguous.csv", OfTaste, "no value tells the day from the month: a date there, text here"),
    ("date_month_name.csv", WeFindMore, "names of months"),
    ("date_month_name_dashes.csv", WeFindMore, "names of months"),
    ("date_slashes_time.csv", WeFindMore, "american dates with times"),
    ("decimal_comma_pipe.csv", WeFindMore, "decimal comma"),
    ("decimal_comma_tab.csv", DuckDbIsWrong, "it cuts at the decimal commas"),
    ("english_thousands.csv", WeFindMore, "commas between thousands"),
    ("footer.csv", DuckDbIsWrong, "one short line at the end makes it give up the table"),
    ("german_crlf_quoted.csv", WeFindMore, "decimal comma"),
    ("german_negative.csv", WeFindMore, "decimal comma"),
    ("german_plain.csv", WeFindMore, "decimal comma"),
    ("german_thousands.csv", WeFindMore, "decimal comma"),
    (
        "header_duplicate.csv",
        OfTaste,
        "it renames the second one silently; we skip the header and write the names into the job",
    ),
    ("header_years.csv", DuckDbIsWrong, "years that follow each other stand above other numbers: they are names"),
    ("latin1.csv", DuckDbIsWrong, "it fails: the file is not UTF-8"),
    ("log_like.csv", OfTaste, "every line has the same number of words"),
    ("null_backslash.csv", WeFindMore, "texts for null"),
    ("null_dash.csv", WeFindMore, "texts for null"),
    ("null_na.csv", WeFindMore, "texts for null"),
    ("null_null.csv", WeFindMore, "texts for null"),
    ("pipes_and_commas.csv", DuckDbIsWrong, "it cuts at the commas inside the second field, and loses the header"),
    ("postgres_copy.csv", OfTaste, "a column that holds nothing but `t`: truth there, text here"),
    ("preamble_excel.csv", DuckDbIsWrong, "it takes the title for a header"),
    ("r_export.csv", WeFindMore, "texts for null"),
    ("ragged_long.csv", DuckDbIsWrong, "one long record makes it give up the table"),
    ("ragged_short.csv", DuckDbIsWrong, "one short record makes it give up the table"),
    ("semicolons_and_commas.csv", WeFindMore, "decimal comma"),
    ("space.csv", DuckDbIsWrong, "it does not try spaces"),
    ("swiss_thousands.csv", WeFindMore, "apostrophes between thousands"),
    ("tilde.csv", DuckDbIsWrong, "it does not try tildes"),
    ("utf16_be_bom.csv", DuckDbIsWrong, "it fails: the file is not UTF-8"),
    ("utf16_le_bom.csv", DuckDbIsWrong, "it fails: the file is not UTF-8"),
    ("utf16_le_tab.csv", DuckDbIsWrong, "it fails: the file is not UTF-8"),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sniff")
}

fn sample(name: &str) -> Sample {
    let text = fs_err::read(folder().join("files").join(name)).unwrap();
    Sample { uri: name.to_owned(), text: Bytes::from(text), complete: true }
}

fn guessed(name: &str) -> Guess {
    let sample = sample(name);
    guess(&sample, &sample.text[..sample.text.len().min(16)]).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[derive(Debug, Deserialize)]
struct Answers {
    files: BTreeMap<String, Answer>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Answer {
    Found(Box<DuckDb>),
    Error { error: String },
}

/// What DuckDB's sniffer says of a file.
#[derive(Debug, Deserialize)]
struct DuckDb {
    delimiter: String,
    quote: String,
    comment: String,
    skip: u64,
    header: bool,
    columns: serde_json::Map<String, Value>,
}

/// Kinds of types: how wide a number is does not matter here.
fn kind_of(name: &str) -> &'static str {
    match name {
        "bool" | "BOOLEAN" => "truth",
        "date" | "DATE" => "date",
        "time" | "TIME" => "time",
        "timestamp" | "TIMESTAMP" => "timestamp",
        "timestamptz" | "TIMESTAMP WITH TIME ZONE" => "timestamp with zone",
        "int64" | "BIGINT" | "INTEGER" | "HUGEINT" => "whole number",
        "float64" | "DOUBLE" => "number",
        _ => "text",
    }
}

/// Where our guess and DuckDB's differ.
fn differences(name: &str, ours: &Guess, duckdb: &DuckDb) -> Vec<String> {
    if ours.format != "csv" {
        return vec![format!("format {}", ours.format)];
    }
    let spec: CsvSpec = serde_json::from_value(ours.settings.clone()).unwrap();
    let columns = spec.columns.clone().unwrap_or_default().resolve().unwrap();
    let mut differences = Vec::new();
    let mut differ = |what: &str, ours: String, theirs: String| {
        if ours != theirs {
            differences.push(format!("{what}: {ours:?}, DuckDB {theirs:?}"));
        }
    };
    if columns.len() > 1 || duckdb.columns.len() > 1 {
        differ("delimiter", spec.delimiter.clone(), duckdb.delimiter.clone());
    }
    // DuckDB reports no quote if none occurs; that reads the same.
    if duckdb.quote != "(empty)" {
        differ("quote", spec.quote.clone(), duckdb.quote.clone());
    }
    // Comments and empty lines are ignored anyway: skipping their lines is the same.
    let comments = spec.comment.is_some() || duckdb.comment != "(empty)";
    let text = String::from_utf8_lossy(&sample(name).text).into_owned();
    let skipped = usize::try_from(spec.skip_lines.max(duckdb.skip)).unwrap();
    let left_out = text.lines().take(skipped).all(|line| line.is_empty());
    if !comments && !left_out {
        differ("skip", spec.skip_lines.to_string(), duckdb.skip.to_string());
    }
    differ("header", spec.header.to_string(), duckdb.header.to_string());
    differ("columns", columns.len().to_string(), duckdb.columns.len().to_string());
    for (index, (column, (name, data_type))) in columns.iter().zip(&duckdb.columns).enumerate() {
        // Both number the columns that have no name, from 1 and from 0.
        let made_up = format!("column{index}") == *name
            || format!("column{index:02}") == *name
            || format!("column{index:03}") == *name;
        let ours =
            if column.name == format!("column_{}", index + 1) && made_up { name.clone() } else { column.name.clone() };
        differ("name", ours, name.clone());
        let ours = millstream_core::columns::type_name(&column.data_type);
        differ(&column.name, kind_of(&ours).to_owned(), kind_of(data_type.as_str().unwrap_or("")).to_owned());
    }
    differences
}

#[test]
fn agrees_with_duckdb_where_duckdb_is_right() {
    let answers = fs_err::read_to_string(folder().join("duckdb.json")).unwrap();
    let answers: Answers = serde_json::from_str(&answers).unwrap();
    assert!(answers.files.len() >= 100, "{} files", answers.files.len());
    let mut unexplained = Vec::new();
    let mut differing = Vec::new();
    for (name, answer) in &answers.files {
        let differences = match answer {
            Answer::Found(duckdb) => differences(name, &guessed(name), duckdb),
            Answer::Error { error } => vec![format!("DuckDB fails: {error}")],
        };
        if differences.is_empty() {
            continue;
        }
        differing.push(name.as_str());
        if !DIFFERENCES.iter().any(|(known, ..)| known == name) {
            unexplained.push(format!("{name}: {}", differences.join("; ")));
        }
    }
    assert!(unexplained.is_empty(), "{} unexplained:\n{}", unexplained.len(), unexplained.join("\n"));
    let stale: Vec<_> = DIFFERENCES.iter().filter(|(name, ..)| !differing.contains(name)).collect();
    assert!(stale.is_empty(), "no longer different: {stale:?}");
    let count = |because: Because| DIFFERENCES.iter().filter(|(_, known, _)| *known == because).count();
    let files = answers.files.len();
    let agreed = files - differing.len();
    // Where DuckDB finds the table we find the same one, and the same types or more.
    let comparable = files - count(DuckDbIsWrong);
    assert!((agreed + count(WeFindMore)) * 10 >= comparable * 9, "{agreed} of {files} agree");
    assert!(agreed * 4 >= files * 3, "{agreed} of {files} agree");
}

/// Files with records that no guess can read.
const REJECTED: &[&str] = &["footer.csv", "ragged_short.csv", "ragged_long.csv"];

#[test]
fn what_is_guessed_reads_the_file() {
    for file in fs_err::read_dir(folder().join("files")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        let guess = guessed(&name);
        assert!(!guess.evidence.is_empty(), "{name}");
        let entry = crate::FORMATS.iter().find(|entry| entry.spec.name == guess.format).unwrap();
        let format = (entry.build)(&guess.settings).unwrap_or_else(|faults| panic!("{name}: {faults:?}"));
        let Reading::Stream(reading) = format.reading() else { panic!("{name}") };
        let mut parsed = Parsed::default();
        let mut read = || -> Result<()> {
            let mut parser = reading.parser(&ParseRequest::all(format.declared().unwrap()))?;
            parser.push(sample(&name).text, &mut parsed)?;
            parser.finish(&mut parsed)
        };
        read().unwrap_or_else(|error| panic!("{name}: {error} with {}", guess.settings));
        let rows: usize = parsed.rows.iter().map(|rows: &Rows| rows.batch.num_rows()).sum();
        assert!(rows > 0 || name == "header_only.csv", "{name} has no rows with {}", guess.settings);
        let rejects: Vec<_> = parsed.rejects.iter().map(|reject| reject.reason.to_string()).collect();
        assert_eq!(
            rejects.len(),
            usize::from(REJECTED.contains(&name.as_str())),
            "{name}: {rejects:?} with {}",
            guess.settings
        );
    }
}

fn guess_text(uri: &str, text: &[u8]) -> Result<Guess> {
    guess(
        &Sample { uri: uri.to_owned(), text: Bytes::copy_from_slice(text), complete: true },
        &text[..text.len().min(16)],
    )
}

#[test]
fn a_table_of_very_many_columns_is_guessed() {
    let columns = 20_000;
    for name in ["a", "1"] {
        let line = vec![name; columns].join(",");
        let text = format!("{line}\n{line}\n");
        let guess = guess_text("wide.csv", text.as_bytes()).expect("a table");
        assert_eq!(guess.settings["columns"].as_object().map(serde_json::Map::len), Some(columns), "`{name}`");
    }
}

/// Without a header both delimiters cut every record alike.
#[test]
fn commas_in_numbers_divide_no_fields() {
    for delimiter in [";", "\t", "|"] {
        let text = "a;1,5\nb;2,25\nc;13,0\n".replace(';', delimiter);
        let guess = guess_text("a.csv", text.as_bytes()).expect("a table");
        let columns = guess.settings["columns"].as_object().expect("columns");
        assert_eq!((guess.settings["delimiter"].as_str(), columns.len()), (Some(delimiter), 2), "{delimiter}");
        assert_eq!(guess.settings["decimal"], ",", "{delimiter}");
    }
    for text in ["a;b,1\nc;d,2\n", "1,5\n2,7\n"] {
        let guess = guess_text("a.csv", text.as_bytes()).expect("a table");
        assert!(guess.settings.get("delimiter").is_none(), "{text}");
    }
}

#[test]
fn other_formats_are_known() {
    assert_eq!(guess_text("a", b"PAR1\x15\x00\x15..").unwrap().format, "parquet");
    assert_eq!(guess_text("a", b"PAR1,PAR2\n1,2\n3,4\n").unwrap().format, "csv", "the name of a column");
    let json = guess_text("a", b"{\"a\": 1}\n{\"a\": 2.5}\n").unwrap();
    assert_eq!((json.format, &json.settings), ("json", &json!({"columns": {"a": "float64"}})));
    assert_eq!(guess_text("a", b"[{\"a\": 1}]").unwrap().format, "json");
    let prose = b"once upon a time\nthere was a file\nof nothing but prose, as you see here\n";
    assert_eq!(guess_text("story.txt", prose).unwrap().format, "lines");
    assert_eq!(
        guess_text("words.csv.gz", b"word\nquick\nbrown\n").unwrap().settings,
        json!({"columns": {"word": "utf8"}})
    );
    assert_eq!(guess_text("a", b"").unwrap_err().what(), "there is nothing to guess from: it has no text");
    let binary: Vec<u8> = (0..=255).cycle().take(4000).collect();
    assert!(guess_text("a.bin", &binary).unwrap_err().what().contains("it is not text"));
}

#[test]
fn the_settings_are_those_of_a_job() {
    let statement = guessed("bank_statement.csv");
    assert_eq!(
        statement.settings,
        json!({
            "delimiter": ";", "skip_lines": 3, "decimal": ",",
            "columns": {
                "Buchungstag": {"type": "date", "format": "%d.%m.%Y"}, "Verwendungszweck": "utf8",
                "Betrag": "float64", "Währung": "utf8",
            },
        })
    );
    assert_eq!(
        statement.evidence,
        [
            "`;` cuts 15 of 15 records into 4 fields",
            "the first record is a header: `Buchungstag` stands above values of type date",
            "column Buchungstag: `01.01.2023` is read as a date with the format %d.%m.%Y",
            "column Betrag: `0,00` is read as 0.00",
            "numbers have `,` before the fraction",
            "lines 1 to 3 are skipped: `Kontonummer;DE12 3456;`, `Zeitraum;01.01.2023 - 31.01.2023;`",
        ]
    );
    let nulls = guessed("null_na.csv");
    assert_eq!(nulls.settings, json!({"null": ["", "NA"], "columns": {"id": "int64", "value": "float64"}}));
    let columns: DeclaredColumns = serde_json::from_value(nulls.settings["columns"].clone()).unwrap();
    assert_eq!(columns.schema().unwrap().field(1).data_type(), &DataType::Float64);
    assert_eq!(guessed("latin1.csv").settings["encoding"], "windows-1252");
}
