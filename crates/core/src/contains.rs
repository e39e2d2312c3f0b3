//! The texts that raw records must contain to be parsed: what a job file says of them. Formats do the searching.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which records of a text are parsed. The others are dropped, and count as filtered.
///
/// A record is compared as its bytes stand in the (decoded, UTF-8) text, before it is parsed, without its line end.
/// Capital letters matter. If both lists are given, both must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("minProperties" = 1))]
pub struct Contains {
    /// A record must contain at least one of these texts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1), inner(length(min = 1)))]
    pub any: Vec<String>,
    /// A record must contain all of these texts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1), inner(length(min = 1)))]
    pub all: Vec<String>,
}

impl Contains {
    /// Whether every record passes.
    pub fn is_empty(&self) -> bool {
        self.any.is_empty() && self.all.is_empty()
    }

    /// All texts.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.any.iter().chain(&self.all).map(String::as_str)
    }

    /// Whether `record` passes: the definition, which formats compute faster.
    pub fn matches(&self, record: &[u8]) -> bool {
        let has = |text: &String| memchr::memmem::find(record, text.as_bytes()).is_some();
        self.all.iter().all(has) && (self.any.is_empty() || self.any.iter().any(has))
    }
}
