//! What the job file may say of SQL.

use millstream_core::spec::Spec;
use millstream_core::transform::Query;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A SQL query; the other entries are its tables.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct SqlSpec(#[schemars(length(min = 1))] pub Query);

impl Spec for SqlSpec {
    const NAME: &'static str = "sql";
    const SUMMARY: &'static str = "A SQL query; the other entries are its tables.";
    const EXAMPLE: &'static str = "sql: |\n  SELECT country, count(*) AS places\n  FROM ranked\n  GROUP BY country\n";
}
