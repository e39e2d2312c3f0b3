//! What the job file may say of a sink that keeps nothing, beside `from` and `write`.

use millstream_core::spec::Spec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings of a sink that keeps nothing. There are none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiscardSpec {}

impl Spec for DiscardSpec {
    const NAME: &'static str = "discard";
    const SUMMARY: &'static str = "Takes all rows and keeps none, to measure what comes before it.";
    const EXAMPLE: &'static str = "\
from: ranked
write: discard
";
}
