//! What the job file may say of a dedupe.

use millstream_core::spec::{Fault, Spec};
use millstream_core::transform::{EntryName, Expression, Keep, SortTerm};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::keys::Keys;

/// Keeps one row of those that are equal in some columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DedupeSpec {
    /// The source or transform it reads.
    pub from: EntryName,
    /// The columns in which rows are equal; all columns if left out.
    #[serde(default)]
    #[schemars(with = "Keys<Expression>")]
    pub by: Option<Keys<Expression>>,
    /// Which of the equal rows stays, in the order that `order` gives (the first, if left out). Without `order` it is
    /// that in which the rows came: that of the files as they are listed, and of their lines. Then one task reads them.
    #[serde(default)]
    #[schemars(with = "Keep")]
    pub keep: Option<Keep>,
    /// The order of equal rows, written as in `sort`. Without it and without `keep` any one of them stays.
    #[serde(default)]
    pub order: Order,
}

/// One sort key, or a list of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Order {
    /// One.
    One(SortTerm),
    /// Several.
    Several(Vec<SortTerm>),
}

impl Default for Order {
    fn default() -> Self {
        Order::Several(Vec::new())
    }
}

impl Order {
    /// All of them.
    pub fn into_vec(self) -> Vec<SortTerm> {
        match self {
            Order::One(term) => vec![term],
            Order::Several(terms) => terms,
        }
    }
}

impl Spec for DedupeSpec {
    const NAME: &'static str = "dedupe";
    const SUMMARY: &'static str = "Keeps one row of those that are equal in some columns.";
    const EXAMPLE: &'static str = "dedupe: {from: ranked, by: name, keep: last, order: [people, country]}\n";

    fn check(&self) -> Vec<Fault> {
        self.by.iter().filter_map(|by| by.fault("by")).collect()
    }
}
