//! The `csv` settings of a job file, and their meaning: the [`Dialect`] (how records and fields are separated)
//! and the [`Conventions`] (how values are written).

use std::borrow::Cow;

use encoding_rs::Encoding;
use millstream_core::spec::{Fault, Size, Spec};
use millstream_core::{Error, Result};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::encoding;
use millstream_core::columns::{Columns, check_time_format};

/// Settings of the csv format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CsvSpec {
    /// The character between two fields.
    #[schemars(length(min = 1, max = 4))]
    pub delimiter: String,
    /// The character around fields that hold a delimiter, a quote or a line end; `none` if quotes are ordinary text.
    #[schemars(length(min = 1, max = 4))]
    pub quote: String,
    /// The character that, inside quotes, makes the quote after it ordinary. Without it a quote is doubled.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1), with = "String")]
    pub escape: Option<String>,
    /// Whether the first record holds the names of the columns.
    pub header: bool,
    /// The columns and their types. With a header they are found by name and may stand in any order; without one they
    /// are in the order of the fields. Without `columns` the types come from a sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Columns")]
    pub columns: Option<Columns>,
    /// The text (or texts) that stand for null. By default an empty field is null, and an empty field in quotes is
    /// the empty text. Text in quotes is never null; a quoted number or date is null like an unquoted one.
    pub null: Texts,
    /// Lines that begin with this character are skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1), with = "String")]
    pub comment: Option<String>,
    /// The encoding of the bytes, a label such as `utf-16` or `windows-1252`. By default it is UTF-8, or UTF-16 if
    /// the file begins with its mark.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub encoding: Option<String>,
    /// Whether spaces and tabs around fields are left out. Around numbers and dates they always are.
    pub trim: bool,
    /// Lines at the beginning of each file that are skipped, before the header.
    pub skip_lines: u64,
    /// The character before the fraction of a number.
    #[schemars(length(min = 1, max = 1))]
    pub decimal: String,
    /// The character between the thousands of a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4), with = "String")]
    pub thousands: Option<String>,
    /// How dates are written, as a strftime format; by default `2024-12-31`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub date_format: Option<String>,
    /// How times are written; by default `23:59:59`, with or without a fraction.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub time_format: Option<String>,
    /// How timestamps are written; by default `2024-12-31T23:59:59`, with a `T` or a space, with or without a fraction.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub timestamp_format: Option<String>,
    /// The texts that mean true; case is ignored.
    pub true_texts: Texts,
    /// The texts that mean false; case is ignored.
    pub false_texts: Texts,
    /// The longest record. A longer one is an error: most often a quote that is not closed.
    pub max_record: Size,
}

impl Default for CsvSpec {
    fn default() -> Self {
        CsvSpec {
            delimiter: ",".to_owned(),
            quote: "\"".to_owned(),
            escape: None,
            header: true,
            columns: None,
            null: Texts::One(String::new()),
            comment: None,
            encoding: None,
            trim: false,
            skip_lines: 0,
            decimal: ".".to_owned(),
            thousands: None,
            date_format: None,
            time_format: None,
            timestamp_format: None,
            true_texts: Texts::One("true".to_owned()),
            false_texts: Texts::One("false".to_owned()),
            max_record: Size(16 << 20),
        }
    }
}

/// One text or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Texts {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl Texts {
    /// The texts.
    pub fn all(&self) -> &[String] {
        match self {
            Texts::One(text) => std::slice::from_ref(text),
            Texts::Many(texts) => texts,
        }
    }
}

impl JsonSchema for Texts {
    fn schema_name() -> Cow<'static, str> {
        "Texts".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "description": "One text or a list of them.",
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        })
    }
}

/// The word for "no quotes".
pub(crate) const NO_QUOTE: &str = "none";

impl Spec for CsvSpec {
    const NAME: &'static str = "csv";
    const SUMMARY: &'static str = "Text with a record on each line and a delimiter between fields.";
    const EXAMPLE: &'static str = "\
read: sales/*.csv.gz
csv:
  delimiter: \";\"
  decimal: \",\"
  columns:
    day: {type: date, format: \"%d.%m.%Y\"}
    shop: utf8
    amount: decimal(12, 2)
";

    fn check(&self) -> Vec<Fault> {
        let mut faults = self.check_characters();
        if let Some(columns) = &self.columns {
            faults.extend(columns.check("columns"));
            // A key of a json record may be empty; a header without a name is numbered when it is read.
            faults.extend(columns.nameless("columns"));
            if columns.is_empty() {
                faults.push(
                    Fault::new("columns", "no column is declared")
                        .hint("leave `columns` out to have the types come from a sample"),
                );
            }
        }
        let formats = [
            ("date_format", &self.date_format),
            ("time_format", &self.time_format),
            ("timestamp_format", &self.timestamp_format),
        ];
        for (key, format) in formats {
            if let Some(Err(error)) = format.as_deref().map(check_time_format) {
                faults.push(fault_of(key, &error));
            }
        }
        if let Some(Err(hint)) = self.encoding.as_deref().map(encoding::by_label) {
            faults.push(Fault::new("encoding", "there is no encoding of that name").hint(hint));
        }
        for (key, texts) in [("true_texts", &self.true_texts), ("false_texts", &self.false_texts)] {
            if texts.all().is_empty() {
                faults.push(Fault::new(key, "at least one text is needed"));
            }
        }
        let both = self.true_texts.all().iter().find(|text| matches_any(text.as_bytes(), self.false_texts.all()));
        if let Some(text) = both {
            faults.push(Fault::new("false_texts", format!("`{text}` is in `true_texts` too")));
        }
        if self.max_record.0 == 0 || self.max_record.0 > MAX_RECORD {
            faults.push(Fault::new("max_record", "a record has from 1 byte to 1GiB"));
        }
        faults
    }
}

/// The most that `max_record` may be, in bytes: positions inside a piece of text have 32 bits.
pub(crate) const MAX_RECORD: u64 = 1 << 30;

fn fault_of(path: &str, error: &Error) -> Fault {
    let fault = Fault::new(path, error.what());
    match error.hint_text() {
        Some(hint) => fault.hint(hint),
        None => fault,
    }
}

impl CsvSpec {
    fn check_characters(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut seen: Vec<(&str, char)> = Vec::new();
        let settings = [
            ("delimiter", Some(self.delimiter.as_str())),
            ("quote", Some(self.quote.as_str()).filter(|quote| *quote != NO_QUOTE)),
            ("escape", self.escape.as_deref().filter(|escape| *escape != self.quote)),
            ("comment", self.comment.as_deref()),
        ];
        for (key, text) in settings {
            let Some(text) = text else { continue };
            match one_character(text) {
                Some(character) if key != "delimiter" && !character.is_ascii() => {
                    faults.push(Fault::new(key, "only a character of ASCII can be used here"));
                }
                Some('\n' | '\r') => faults.push(Fault::new(key, "a line end cannot be used here")),
                Some(character) => {
                    if let Some((other, _)) = seen.iter().find(|(_, known)| *known == character) {
                        faults.push(Fault::new(key, format!("it is the same character as the {other}")));
                    }
                    seen.push((key, character));
                }
                None => {
                    let fault = Fault::new(key, "it is not one character");
                    let hint = if key == "quote" {
                        "write one character, or `none`"
                    } else {
                        "write one character; a tab is \"\\t\" in double quotes"
                    };
                    faults.push(fault.hint(hint));
                }
            }
        }
        if self.escape.is_some() && self.quote == NO_QUOTE {
            faults.push(Fault::new("escape", "there is nothing to escape without a quote").hint("leave `escape` out"));
        }
        faults.extend(self.check_number_signs());
        faults
    }

    fn check_number_signs(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let sign =
            |text: &str| one_character(text).filter(|sign| !sign.is_alphanumeric() && !matches!(sign, '+' | '-'));
        match sign(&self.decimal) {
            Some(decimal) if decimal.is_ascii() => {}
            _ => faults.push(Fault::new("decimal", "it is not one sign").hint("write `.` or `,`")),
        }
        if let Some(thousands) = self.thousands.as_deref() {
            if sign(thousands).is_none() {
                faults.push(
                    Fault::new("thousands", "it is not one sign").hint("write `,`, `.`, a space or an apostrophe"),
                );
            } else if thousands == self.decimal {
                faults.push(Fault::new("thousands", "it is the same character as `decimal`"));
            }
        }
        faults
    }

    /// The dialect. The spec has passed [`Spec::check`]; what it would have found is an error here too.
    pub(crate) fn dialect(&self) -> Result<Dialect> {
        let byte = |text: &str| match text.as_bytes() {
            [byte] => Ok(*byte),
            _ => Err(Error::job("it is not one character").text(text)),
        };
        let quote = if self.quote == NO_QUOTE { None } else { Some(byte(&self.quote)?) };
        let escape = self.escape.as_deref().map(byte).transpose()?;
        if one_character(&self.delimiter).is_none() {
            return Err(Error::job("the delimiter is not one character").text(&self.delimiter));
        }
        Ok(Dialect {
            delimiter: self.delimiter.as_bytes().to_vec(),
            quote,
            escape: escape.filter(|escape| Some(*escape) != quote),
            comment: self.comment.as_deref().map(byte).transpose()?,
            trim: self.trim,
            max_record: usize::try_from(self.max_record.0.min(MAX_RECORD)).unwrap_or(usize::MAX),
        })
    }

    /// How values are written.
    pub(crate) fn conventions(&self) -> Conventions {
        Conventions {
            nulls: self.null.all().to_vec(),
            decimal: self.decimal.bytes().next().unwrap_or(b'.'),
            thousands: self.thousands.clone(),
            date_format: self.date_format.clone(),
            time_format: self.time_format.clone(),
            timestamp_format: self.timestamp_format.clone(),
            true_texts: self.true_texts.all().to_vec(),
            false_texts: self.false_texts.all().to_vec(),
        }
    }

    /// The declared encoding.
    pub(crate) fn encoding(&self) -> Result<Option<&'static Encoding>> {
        let by_label = |label: &str| {
            encoding::by_label(label)
                .map_err(|hint| Error::job("there is no encoding of that name").text(label).hint(hint))
        };
        self.encoding.as_deref().map(by_label).transpose()
    }
}

fn one_character(text: &str) -> Option<char> {
    let mut characters = text.chars();
    characters.next().filter(|_| characters.next().is_none())
}

/// Whether `text` is one of `texts`; capitals of ASCII make no difference.
pub(crate) fn matches_any(text: &[u8], texts: &[String]) -> bool {
    texts.iter().any(|one| one.as_bytes().eq_ignore_ascii_case(text))
}

/// How records and fields are separated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dialect {
    /// One character in UTF-8.
    pub delimiter: Vec<u8>,
    /// `None`: quotes are ordinary text.
    pub quote: Option<u8>,
    /// The escape inside quotes, if it is not the quote itself.
    pub escape: Option<u8>,
    /// Begins a line that is skipped.
    pub comment: Option<u8>,
    /// Whether spaces and tabs around fields are left out.
    pub trim: bool,
    /// The longest record, in bytes.
    pub max_record: usize,
}

impl Dialect {
    /// Whether `byte` may be left out around a field.
    pub fn is_blank(&self, byte: u8) -> bool {
        matches!(byte, b' ' | b'\t') && self.delimiter != [byte] && self.quote != Some(byte)
    }
}

/// How values are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Conventions {
    /// Texts that stand for null.
    pub nulls: Vec<String>,
    /// Before the fraction.
    pub decimal: u8,
    /// Between thousands.
    pub thousands: Option<String>,
    /// strftime.
    pub date_format: Option<String>,
    /// strftime.
    pub time_format: Option<String>,
    /// strftime.
    pub timestamp_format: Option<String>,
    /// At least one.
    pub true_texts: Vec<String>,
    /// At least one.
    pub false_texts: Vec<String>,
}
