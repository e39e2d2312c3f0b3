//! What the job file may say of json.

use millstream_core::spec::{Fault, Size, Spec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use millstream_core::columns::Columns;

/// The settings of json. All are optional.
///
/// Reading takes the grammar of JSON strictly. A key that a record lacks is null, whatever `on_drift` says; a key that
/// is not a column, at any depth, makes the record a reject unless `on_drift` is `null`. A column of text takes a value
/// of any other kind as the text that it is written as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct JsonSpec {
    /// The columns and their types: `{id: int64, tags: list<utf8>, place: struct<lat: float64, lon: float64>}`.
    /// Without them, keys and types come from a sample: whole numbers are int64, others float64; texts stay texts, also
    /// where they look like dates; a key whose values are of different kinds is utf8.
    #[serde(skip_serializing_if = "Columns::is_empty")]
    pub columns: Columns,
    /// How the records lie in the file.
    pub layout: Layout,
    /// The most bytes that one record may have, so that a missing bracket cannot fill the memory.
    pub max_record: Size,
    /// How a null is written.
    pub nulls: Nulls,
    /// How decimals are written.
    pub decimals: Decimals,
}

/// How the records lie in the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Reading: what the first line looks like. Writing: lines.
    #[default]
    Auto,
    /// One object a line; blank lines are skipped.
    Lines,
    /// One array of objects.
    Array,
    /// Objects that follow each other and may span lines. (Written like lines.)
    Objects,
}

/// How a null is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Nulls {
    /// As `null`.
    #[default]
    Write,
    /// Its key is left out (items of lists are always written).
    Omit,
}

/// How decimals are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Decimals {
    /// As numbers with all their digits.
    #[default]
    Number,
    /// As texts, for readers that would round them.
    Text,
}

impl Default for JsonSpec {
    fn default() -> Self {
        JsonSpec {
            columns: Columns::default(),
            layout: Layout::default(),
            max_record: Size(16 << 20),
            nulls: Nulls::default(),
            decimals: Decimals::default(),
        }
    }
}

impl Spec for JsonSpec {
    const NAME: &'static str = "json";
    const SUMMARY: &'static str = "JSON objects: one a line, in an array, or following each other.";
    const EXAMPLE: &'static str = "\
read: data/events/*.jsonl.gz
json:
  columns: {id: int64, kind: utf8, at: timestamptz, tags: list<utf8>}
";

    fn check(&self) -> Vec<Fault> {
        let mut faults = self.columns.check("columns");
        if self.max_record.0 == 0 {
            faults.push(Fault::new("max_record", "a record has at least one byte"));
        }
        faults
    }
}
