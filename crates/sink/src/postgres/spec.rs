//! What the job file may say of a PostgreSQL sink, beside `from` and `write`: what it may say of every database server.

use millstream_core::spec::{Fault, Spec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::database::spec::DatabaseSpec;

/// Settings of a PostgreSQL sink.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct PostgresSpec(pub DatabaseSpec);

impl Spec for PostgresSpec {
    const NAME: &'static str = "postgres";
    const SUMMARY: &'static str = "Loads into a table of PostgreSQL, by binary `COPY`.";
    const EXAMPLE: &'static str = "\
from: ranked
write: postgres://etl@db.example/geo
password: {secret: env:DB_PASSWORD}
table: people_by_country
mode: merge
key: [country]
";

    fn check(&self) -> Vec<Fault> {
        self.0.faults()
    }
}
