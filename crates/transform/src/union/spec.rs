//! What the job file may say of a union.

use millstream_core::spec::Spec;
use millstream_core::transform::{EntryName, UnionBy};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The rows of several steps, one after the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum UnionSpec {
    /// The steps.
    List(#[schemars(length(min = 2))] Vec<EntryName>),
    /// The steps and how they are put together.
    Keys(UnionKeys),
}

impl Spec for UnionSpec {
    const NAME: &'static str = "union";
    const SUMMARY: &'static str = "The rows of several steps, one after the other.";
    const EXAMPLE: &'static str = "union: {of: [ranked, others], distinct: true}\n";
}

/// The rows of several steps, one after the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnionKeys {
    /// The steps.
    #[schemars(length(min = 2))]
    pub of: Vec<EntryName>,
    /// How columns find each other.
    #[serde(default)]
    pub by: UnionBy,
    /// Whether rows that are equal come out once.
    #[serde(default)]
    pub distinct: bool,
}
