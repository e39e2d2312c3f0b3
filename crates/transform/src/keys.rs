//! Columns that rows are compared by, as several transforms have them: one, or a list.

use millstream_core::spec::Fault;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One, or a list of at least one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Keys<T> {
    /// A column or SQL expression.
    One(#[schemars(length(min = 1))] T),
    /// Several.
    Several(#[schemars(length(min = 1))] Vec<T>),
}

impl<T> Keys<T> {
    /// All of them.
    pub fn into_vec(self) -> Vec<T> {
        match self {
            Keys::One(key) => vec![key],
            Keys::Several(keys) => keys,
        }
    }

    /// The fault of an empty list at `path`. The schema counts columns; this says what to do.
    pub fn fault(&self, path: &str) -> Option<Fault> {
        let is_empty = matches!(self, Keys::Several(keys) if keys.is_empty());
        let hint = "name at least one: by: [first_column, second_column]";
        is_empty.then(|| Fault::new(path, "`by` names no column").hint(hint))
    }
}
