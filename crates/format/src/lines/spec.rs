//! What a job file may say of lines.

use millstream_core::spec::{Fault, Size, Spec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::encoding;

/// Settings of the lines format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LinesSpec {
    /// The encoding of the bytes, a label such as `utf-16` or `windows-1252`. By default it is UTF-8, or UTF-16 if
    /// the file begins with its mark.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub encoding: Option<String>,
    /// The longest line. A longer one is an error: most often the file is not text.
    pub max_record: Size,
}

impl Default for LinesSpec {
    fn default() -> Self {
        LinesSpec { encoding: None, max_record: Size(16 << 20) }
    }
}

impl Spec for LinesSpec {
    const NAME: &'static str = "lines";
    const SUMMARY: &'static str = "Text with one column, `line`: the text before each line end.";
    const EXAMPLE: &'static str = "\
read: logs/*.log.gz
lines: {encoding: windows-1252}
";

    fn check(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        if let Some(Err(hint)) = self.encoding.as_deref().map(encoding::by_label) {
            faults.push(Fault::new("encoding", "there is no encoding of that name").hint(hint));
        }
        if self.max_record.0 == 0 || self.max_record.0 > MAX_RECORD {
            faults.push(Fault::new("max_record", "a line has from 1 byte to 1GiB"));
        }
        faults
    }
}

/// The most that `max_record` may be, in bytes: positions inside a piece of text have 32 bits.
pub(crate) const MAX_RECORD: u64 = 1 << 30;
