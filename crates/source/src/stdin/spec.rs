//! What the job file may say of standard input.

use millstream_core::spec::Spec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Standard input has nothing to set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StdinSpec {}

impl Spec for StdinSpec {
    const NAME: &'static str = "stdin";
    const SUMMARY: &'static str = "Standard input, once: `-`.";
    const EXAMPLE: &'static str = "read: \"-\"\nlines: {}\n";
}
