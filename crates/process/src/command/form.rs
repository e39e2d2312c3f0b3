//! How a job says the form of rows between Millstream and a program.

use millstream_core::registry::FormatEntry;
use millstream_core::spec::Fault;
use millstream_format::{csv, json, lines};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::exchange::{Exchange, Records};

/// The form of rows between Millstream and a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExchangeForm {
    /// One column of text, a line for each row.
    Lines,
    /// Records with a header.
    Csv,
    /// An object a line.
    Json,
    /// A stream of Arrow IPC.
    Arrow,
}

impl ExchangeForm {
    /// What writes and reads rows in this form.
    ///
    /// # Errors
    /// If the format does not take its own settings.
    pub fn exchange(self) -> Result<Exchange, Vec<Fault>> {
        let text = |records, entry: FormatEntry, settings: Value| {
            Ok::<_, Vec<Fault>>(Exchange::Text(records, (entry.build)(&settings)?))
        };
        match self {
            ExchangeForm::Lines => text(Records::Lines, lines::ENTRY, json!({})),
            ExchangeForm::Csv => text(Records::Csv, csv::ENTRY, json!({})),
            ExchangeForm::Json => text(Records::Json, json::ENTRY, json!({"layout": "lines"})),
            ExchangeForm::Arrow => Ok(Exchange::Arrow),
        }
    }

    /// What it is called in the job file.
    pub fn name(self) -> &'static str {
        match self {
            ExchangeForm::Lines => "lines",
            ExchangeForm::Csv => "csv",
            ExchangeForm::Json => "json",
            ExchangeForm::Arrow => "arrow",
        }
    }
}
