//! What the job file may say of standard output, beside `from`, `write`, `compress` and the format.

use millstream_core::spec::Spec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings of standard output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StdoutSpec {
    /// The compression level, on the scale of the codec; its own default if left out.
    pub level: Option<i32>,
}

impl Spec for StdoutSpec {
    const NAME: &'static str = "stdout";
    const SUMMARY: &'static str =
        "Writes to standard output, as csv with a header unless the entry names another format.";
    const EXAMPLE: &'static str = "\
from: ranked
write: \"-\"
";
}
