//! What the job file may say of reading files.

use millstream_core::spec::Spec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Files of this machine have nothing to set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileSpec {}

impl Spec for FileSpec {
    const NAME: &'static str = "file";
    const SUMMARY: &'static str = "Files of this machine: a path, or a pattern with `*`, `?`, `[a-z]`, `**`, `{a,b}` \
                                   and `{000..999}`.";
    const EXAMPLE: &'static str = "read: data/**/*.csv.gz\ncsv: {header: true}\n";
}
