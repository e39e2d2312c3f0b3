//! Guesses what a file is by its beginning: the format, its settings, and the evidence.
//!
//! `millstream guess` writes the answer into a job, where the user checks it. Nothing is guessed while a job runs.
//! `dialect` finds how a CSV text is cut into records and fields, and `types` the types of the fields; this file
//! combines both and knows the other formats.
//!
//! A guess reports what it skips or changes: `verify` reads the sample with the guessed settings, by the parser of a
//! run, and compares. A column whose values change becomes text; skipped and refused lines are named.
//!
//! `kinds` recognises files that are neither text nor a known format by their first bytes.

mod dialect;
mod kinds;
mod types;
mod verify;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252};
use millstream_core::format::{OnDrift, Reading, Sample};
use millstream_core::unit::path_of;
use millstream_core::{Error, Result};
use serde_json::{Value, json};

use crate::csv::infer::decoded;
use crate::csv::spec::{CsvSpec, Texts};
pub use kinds::{foreign_member, foreign_text};
use millstream_core::columns::{ColumnSpec, Columns};
use types::Header;

/// What a file seems to be.
#[derive(Debug, Clone, PartialEq)]
pub struct Guess {
    /// The format's key in the job file: `csv`.
    pub format: &'static str,
    /// The settings under that key, with the columns and their types.
    pub settings: Value,
    /// The evidence, and what is skipped or changed, one sentence each. They may quote control characters of the file.
    pub evidence: Vec<String>,
}

/// What parquet files begin with.
const PARQUET: &[u8] = b"PAR1";

/// Guesses the format of a file from its decoded beginning. `head` is its first bytes (four are enough). An error if
/// it is neither text nor a format that is known.
pub fn guess(sample: &Sample, head: &[u8]) -> Result<Guess> {
    if is_parquet(sample, head) {
        let evidence = vec!["it begins with PAR1, as parquet files do; its columns are stored in it".to_owned()];
        return Ok(Guess { format: "parquet", settings: json!({}), evidence });
    }
    if let Some(error) = foreign_text(&sample.text, false) {
        return Err(error.in_unit(&sample.uri, None));
    }
    let (encoding, said) = encoding(sample);
    let mut evidence: Vec<String> = said.into_iter().collect();
    let text = decoded(sample, encoding);
    let text = String::from_utf8_lossy(&text);
    if text.trim().is_empty() {
        return Err(Error::data("there is nothing to guess from: it has no text").in_unit(&sample.uri, None));
    }
    if is_binary(&text) {
        return Err(Error::data("it is not text, and does not begin like any known format")
            .text(head)
            .in_unit(&sample.uri, None)
            .hint(
                "csv, json, lines and parquet are known, compressed with gzip, zstd, bzip2 or xz, or in a zip or tar",
            ));
    }
    if let Some(json) = guess_json(sample, &text)? {
        return Ok(json);
    }
    let csv_name = crate::csv::ENTRY.extensions.iter().any(|ending| name_has(&sample.uri, ending));
    if let Some(found) = dialect::find(&text, sample.complete, csv_name) {
        return guess_csv(sample, &text, &found, encoding, evidence);
    }
    evidence.push("no character cuts its lines into the same number of fields".to_owned());
    let mut settings = json!({});
    if let Some(encoding) = encoding {
        settings["encoding"] = json!(encoding.name().to_lowercase());
    }
    Ok(Guess { format: "lines", settings, evidence })
}

/// Whether it begins like a parquet file. A text can begin with these letters, too, for example in the name of a
/// column. A Parquet file has zeros near the beginning, which end its structures.
fn is_parquet(sample: &Sample, head: &[u8]) -> bool {
    let begins = |bytes: &[u8]| bytes.starts_with(PARQUET);
    let look = &sample.text[..sample.text.len().min(4096)];
    begins(look) && look.contains(&0) || begins(head) && !begins(look)
}

/// Whether a file's name has that ending, before or without the ending of a compression.
fn name_has(uri: &str, ending: &str) -> bool {
    let name = path_of(uri).to_ascii_lowercase();
    name.ends_with(ending) || name.contains(&format!("{ending}."))
}

/// The encoding, if it must be set (UTF-8, and UTF-16 with its mark, are detected when the file is read), and the
/// evidence.
fn encoding(sample: &Sample) -> (Option<&'static Encoding>, Option<String>) {
    let text = &sample.text;
    match Encoding::for_bom(text) {
        Some((encoding, _)) if encoding == UTF_8 => return (None, None),
        Some((encoding, _)) => return (None, Some(format!("it begins with the mark of {}", encoding.name()))),
        None => {}
    }
    let zeros = |odd: usize| text.iter().skip(odd).step_by(2).take(1000).filter(|byte| **byte == 0).count();
    let half = text.len().min(2000) / 2;
    if half > 0 && zeros(1) * 3 > half * 2 && zeros(0) == 0 {
        return (Some(UTF_16LE), Some("every second byte is zero: it is UTF-16, little end first".to_owned()));
    }
    if half > 0 && zeros(0) * 3 > half * 2 && zeros(1) == 0 {
        return (Some(UTF_16BE), Some("every second byte is zero: it is UTF-16, big end first".to_owned()));
    }
    match std::str::from_utf8(text) {
        Ok(_) => (None, None),
        // The sample may end inside a character.
        Err(fault) if fault.error_len().is_none() && !sample.complete => (None, None),
        Err(fault) => {
            let said = format!(
                "byte {} is not UTF-8: windows-1252 is assumed, check letters with accents",
                fault.valid_up_to()
            );
            (Some(WINDOWS_1252), Some(said))
        }
    }
}

fn is_binary(text: &str) -> bool {
    let look = || text.chars().take(4096);
    let control = look()
        .filter(|sign| sign.is_control() && !matches!(sign, '\n' | '\r' | '\t' | '\x01' | '\x1e' | '\x1f' | '\x0c'))
        .count();
    control * 50 > look().count()
}

fn guess_json(sample: &Sample, text: &str) -> Result<Option<Guess>> {
    let begins = text.trim_start();
    if !begins.starts_with(['{', '[']) {
        return Ok(None);
    }
    let first = serde_json::Deserializer::from_str(begins).into_iter::<Value>().next();
    match first {
        Some(Ok(Value::Object(_) | Value::Array(_))) => {}
        Some(Err(error)) if error.is_eof() && !sample.complete => {}
        _ => return Ok(None),
    }
    let internal = || Error::internal("json cannot be set up without settings");
    let format = (crate::json::ENTRY.build)(&json!({})).map_err(|_| internal())?;
    let Reading::Stream(reading) = format.reading() else { return Err(internal()) };
    let schema = reading.infer(std::slice::from_ref(sample), OnDrift::Widen)?;
    let columns = schema.fields().iter().map(|field| (field.name().clone(), ColumnSpec::of(field.data_type(), None)));
    let columns = serde_json::to_value(Columns(columns.collect())).map_err(|_| internal())?;
    let kind = if begins.starts_with('[') { "an array" } else { "an object" };
    let mut evidence = vec![format!("it begins with {kind} of JSON")];
    let settings = json!({"columns": columns});
    evidence.extend(verify::refused(crate::json::ENTRY, &settings, sample)?);
    Ok(Some(Guess { format: "json", settings, evidence }))
}

/// How often a guess is repeated with more columns as text.
const ROUNDS: usize = 4;

fn guess_csv(
    sample: &Sample,
    text: &str,
    found: &dialect::Found,
    encoding: Option<&'static Encoding>,
    mut evidence: Vec<String>,
) -> Result<Guess> {
    let mut as_text: HashSet<usize> = HashSet::new();
    let mut demoted = Vec::new();
    for round in 0.. {
        let table = types::table(text, found, &as_text);
        let spec = spec_of(text, found, &table, encoding);
        let verdict = verify::verify(text, found, &spec)?;
        if round < ROUNDS && !verdict.changed.is_empty() {
            for (column, value) in verdict.changed {
                as_text.insert(column);
                let name = table.columns.get(column).map_or("", |(name, _)| name);
                demoted.push(format!("column {name}: `{}` would not stay as it is, so it stays text", shown(&value)));
            }
            continue;
        }
        evidence.extend(found.evidence.iter().cloned());
        evidence.extend(table.evidence);
        evidence.extend(table.notes);
        evidence.extend(demoted);
        evidence.extend(verdict.notes);
        let changed = verdict.changed.iter().filter_map(|(column, value)| Some((table.columns.get(*column)?, value)));
        evidence.extend(
            changed.map(|((name, _), value)| format!("column {name}: `{}` is read as something else", shown(value))),
        );
        return Ok(Guess { format: "csv", settings: settings(&spec, &sample.uri), evidence });
    }
    Err(Error::internal("a guess is not tried for ever"))
}

/// The settings that read `found` as `table`.
fn spec_of(text: &str, found: &dialect::Found, table: &types::Table, encoding: Option<&'static Encoding>) -> CsvSpec {
    let mut spec = CsvSpec {
        header: matches!(table.header, Header::First { .. }),
        skip_lines: skip_lines(text, found, table.header),
        trim: found.trim,
        comment: found.comment.map(String::from),
        encoding: encoding.map(|encoding| encoding.name().to_lowercase()),
        escape: found.escape.map(String::from),
        decimal: table.decimal.to_string(),
        thousands: table.thousands.map(String::from),
        columns: Some(Columns(table.columns.clone())),
        ..CsvSpec::default()
    };
    spec.delimiter = found.delimiter.to_string();
    spec.quote = found.quote.map_or_else(|| crate::csv::spec::NO_QUOTE.to_owned(), String::from);
    if !table.nulls.is_empty() {
        spec.null = Texts::Many(std::iter::once(String::new()).chain(table.nulls.iter().cloned()).collect());
    }
    let words = |pick: fn(&(&'static str, &'static str)) -> &'static str, word: &str| {
        Texts::Many(
            std::iter::once(word.to_owned()).chain(table.truths.iter().map(|truth| pick(truth).to_owned())).collect(),
        )
    };
    if !table.truths.is_empty() {
        spec.true_texts = words(|truth| truth.0, "true");
        spec.false_texts = words(|truth| truth.1, "false");
    }
    spec
}

/// Lines to skip so that the reader begins with the table: those of a title, those that the reader would take for a
/// header, and a header that it cannot read. Lines that may be records are not skipped.
fn skip_lines(text: &str, found: &dialect::Found, header: Header) -> u64 {
    let first = found.records.first().map_or(1, |row| row.line);
    let is_skipped = match header {
        Header::Skipped { .. } => return found.second_line,
        Header::Before => true,
        Header::First { strong: true } => true,
        Header::First { strong: false } | Header::None => found.has_only_titles(text),
    };
    // Lines that the reader ignores anyway need not be skipped.
    if is_skipped && !found.before.is_empty() { first - 1 } else { 0 }
}

/// `text` as a comment shows it: not more than a few words.
fn shown(text: &str) -> String {
    const MOST: usize = 60;
    let short: String = text.chars().take(MOST).collect();
    if short.len() < text.len() { format!("{short}…") } else { short }
}

/// The settings that differ from the defaults, as in a job file. The delimiter `,` is only left out if the name ends in
/// `.csv`.
fn settings(spec: &CsvSpec, uri: &str) -> Value {
    let (Ok(Value::Object(mut said)), Ok(default)) =
        (serde_json::to_value(spec), serde_json::to_value(CsvSpec::default()))
    else {
        return json!({});
    };
    let says_comma = name_has(uri, ".csv") && ![".tsv", ".tab", ".psv"].iter().any(|ending| name_has(uri, ending));
    said.retain(|key, value| (key == "delimiter" && !says_comma) || default.get(key) != Some(&*value));
    // The columns are the longest: they come last.
    if let Some(columns) = said.shift_remove("columns") {
        said.insert("columns".to_owned(), columns);
    }
    Value::Object(said)
}
