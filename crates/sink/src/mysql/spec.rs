//! What the job file may say of a MySQL sink, beside `from` and `write`: what it may say of every database server.

use millstream_core::spec::{Fault, Spec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::database::spec::DatabaseSpec;

/// Settings of a MySQL sink.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct MysqlSpec(pub DatabaseSpec);

impl Spec for MysqlSpec {
    const NAME: &'static str = "mysql";
    const SUMMARY: &'static str = "Loads into a table of MySQL or MariaDB, by `LOAD DATA LOCAL INFILE` from memory.";
    const EXAMPLE: &'static str = "\
from: ranked
write: mysql://etl@db.example/geo
password: {secret: env:DB_PASSWORD}
table: people_by_country
mode: merge
key: [country]
";

    fn check(&self) -> Vec<Fault> {
        self.0.faults()
    }
}
