//! What the job file may say of a filter.

use millstream_core::spec::Spec;
use millstream_core::transform::{EntryName, Expression};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Keeps the rows that meet a condition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FilterSpec {
    /// The source or transform it reads.
    pub from: EntryName,
    /// The condition: a SQL expression over the columns.
    #[schemars(length(min = 1))]
    pub r#where: Expression,
}

impl Spec for FilterSpec {
    const NAME: &'static str = "filter";
    const SUMMARY: &'static str = "Keeps the rows that meet a condition.";
    const EXAMPLE: &'static str = "filter: {from: ranked, where: people > 500000 AND country = 'FR'}\n";
}
