//! What a file is, by its beginning: the format, its settings, and why.
//!
//! `millstream guess` writes the answer into a job, so that it is frozen there and a person has looked at it. Nothing
//! is guessed while a job runs. `dialect` finds how a csv text is cut into records and fields, `types` what the
//! fields are; this file puts both together and knows the other formats.

mod dialect;
mod types;

#[cfg(test)]
mod tests;

use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252};
use millstream_core::format::{OnDrift, Reading, Sample};
use millstream_core::unit::path_of;
use millstream_core::{Error, Result};
use serde_json::{Value, json};

use crate::columns::{ColumnSpec, Columns};
use crate::csv::infer::decoded;
use crate::csv::spec::{CsvSpec, Texts};

/// What a file seems to be.
#[derive(Debug, Clone, PartialEq)]
pub struct Guess {
    /// The format's key in the job file: `csv`.
    pub format: &'static str,
    /// The settings under that key, with the columns and their types.
    pub settings: Value,
    /// Why, one sentence each.
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
    let (encoding, said) = encoding(sample);
    let mut evidence: Vec<String> = said.into_iter().collect();
    let text = decoded(sample, encoding);
    let text = String::from_utf8_lossy(&text);
    if text.trim().is_empty() {
        return Err(Error::data("there is nothing to guess from: it has no text").in_unit(&sample.uri, None));
    }
    if is_binary(&text) {
        return Err(Error::data("it is no text and begins like no format that is known")
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
        return Ok(guess_csv(&text, found, encoding, evidence));
    }
    evidence.push("no character cuts its lines into the same number of fields".to_owned());
    let mut settings = json!({});
    if let Some(encoding) = encoding {
        settings["encoding"] = json!(encoding.name().to_lowercase());
    }
    Ok(Guess { format: "lines", settings, evidence })
}

/// Whether it begins like a parquet file. A text can begin with these letters too, the name of a column for example;
/// in a parquet file zeros stand near the beginning, as they end the structures that it is made of.
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

/// The encoding, where it has to be said (UTF-8, and UTF-16 with its mark, are found when the file is read), and why.
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
    let evidence = vec![format!("it begins with {kind} of JSON")];
    Ok(Some(Guess { format: "json", settings: json!({"columns": columns}), evidence }))
}

fn guess_csv(
    text: &str,
    found: dialect::Found,
    encoding: Option<&'static Encoding>,
    mut evidence: Vec<String>,
) -> Guess {
    evidence.extend(found.evidence.iter().cloned());
    let table = types::table(text, &found);
    evidence.extend(table.evidence);
    let mut spec = CsvSpec {
        header: table.header,
        skip_lines: if table.skip_header { found.second_line } else { found.skip_lines },
        trim: found.trim,
        comment: found.comment.map(String::from),
        encoding: encoding.map(|encoding| encoding.name().to_lowercase()),
        escape: found.escape.map(String::from),
        decimal: table.decimal.to_string(),
        thousands: table.thousands.map(String::from),
        columns: Some(Columns(table.columns)),
        ..CsvSpec::default()
    };
    spec.delimiter = found.delimiter.to_string();
    spec.quote = found.quote.map_or_else(|| crate::csv::spec::NO_QUOTE.to_owned(), String::from);
    if !table.nulls.is_empty() {
        spec.null = Texts::Many(std::iter::once(String::new()).chain(table.nulls).collect());
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
    Guess { format: "csv", settings: settings(&spec), evidence }
}

/// The settings that differ from the defaults, as a job file says them.
fn settings(spec: &CsvSpec) -> Value {
    let (Ok(Value::Object(mut said)), Ok(default)) =
        (serde_json::to_value(spec), serde_json::to_value(CsvSpec::default()))
    else {
        return json!({});
    };
    said.retain(|key, value| default.get(key) != Some(&*value));
    // The columns are the longest: they come last.
    if let Some(columns) = said.shift_remove("columns") {
        said.insert("columns".to_owned(), columns);
    }
    Value::Object(said)
}
