//! The texts that raw records must contain to be parsed: what a job file says of them. Formats do the searching.

use std::fmt;

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

    /// Whether `record` passes: the definition, which formats compute faster.
    pub fn matches(&self, record: &[u8]) -> bool {
        let has = |text: &String| memchr::memmem::find(record, text.as_bytes()).is_some();
        self.all.iter().all(has) && (self.any.is_empty() || self.any.iter().any(has))
    }
}

impl fmt::Display for Contains {
    /// `all of "a", "b"; one of "c", "d"`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |texts: &[String]| texts.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(", ");
        let part = |words: &str, texts: &[String]| match texts {
            [] => None,
            [text] => Some(format!("{text:?}")),
            texts => Some(format!("{words} {}", list(texts))),
        };
        let parts: Vec<String> = part("all of", &self.all).into_iter().chain(part("one of", &self.any)).collect();
        f.write_str(&parts.join("; "))
    }
}
