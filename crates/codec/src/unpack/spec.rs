//! What the job file may say of unpacking: the `limits:` block of a source.

use millstream_core::spec::{Fault, Size, Spec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Text below this size (64 MiB) is never held against [`Limits::max_ratio`]: it does no harm, and small files of
/// zeros or of one repeated line are honest.
pub const RATIO_APPLIES_FROM: u64 = 64 << 20;

/// Limits against data that unpacks to far more than it should (bombs), for each unit.
///
/// Memory is not what they protect: unpacking holds little memory however large the text is. They protect the time
/// and the target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// How many times larger than its compressed bytes the text of a unit (and of each member of an archive) may be,
    /// once there is more than 64 MiB of it. The default of 400 is twice what very regular tables reach, and less
    /// than half of what a bomb of gzip or zip has (1032, the most that deflate can do).
    #[schemars(range(min = 1))]
    pub max_ratio: u32,
    /// The most text that a unit may have: a whole number of bytes, or text such as `2GiB`. No limit by default.
    pub max_bytes: Option<Size>,
    /// The most members that an archive may have. What is known of each is held in memory until the archive's
    /// directory, at its end, has been compared with them.
    #[schemars(range(min = 1))]
    pub max_members: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { max_ratio: 400, max_bytes: None, max_members: 1_000_000 }
    }
}

impl Spec for Limits {
    const NAME: &'static str = "limits";
    const SUMMARY: &'static str = "Limits against data that unpacks to far more than it should.";
    const EXAMPLE: &str = "read: logs/*.gz\nlines: {}\nlimits: {max_ratio: 1000, max_bytes: 20GiB}\n";

    fn check(&self) -> Vec<Fault> {
        let too_small =
            |name: &str, value: u32| (value == 0).then(|| Fault::new(name, format!("{name} must be at least 1")));
        [too_small("max_ratio", self.max_ratio), too_small("max_members", self.max_members)]
            .into_iter()
            .flatten()
            .collect()
    }
}
