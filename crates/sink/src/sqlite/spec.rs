//! What the job file may say of a SQLite sink, beside `from` and `write`.

use millstream_core::spec::{Duration, Fault, Spec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::database::action::{self, Action};
use crate::database::spec::{Mode, SchemaChange, key_faults, order_faults};

/// Settings of a SQLite sink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SqliteSpec {
    /// The table. It is created if it does not exist, with columns of the rows' types.
    #[schemars(length(min = 1))]
    pub table: String,
    /// What happens to the rows that the table has.
    #[serde(default)]
    pub mode: Mode,
    /// The columns that identify a row: the primary key of a new table, and the key that `merge` and `ignore` use.
    #[serde(default)]
    pub key: Vec<String>,
    /// Which of several rows with one key stays, for `merge` and `ignore`: the first in this order, such as
    /// `[changed_at desc]`. Without it the last to arrive stays in `merge`, and the first in `ignore`. With it, the
    /// rows are gathered in a table of ours first.
    #[serde(default)]
    pub order_by: Vec<String>,
    /// Whether the indexes of an existing table wait for the rows: they are dropped, and built again when all rows are
    /// in it. Keys, and others that no two rows may share, stay. The rows become visible at once then.
    #[serde(default)]
    pub defer_indexes: bool,
    /// Whether all rows appear at once, also with `append`, rather than chunk by chunk, each exactly once. A run that
    /// stops early has then loaded nothing, and `--resume` starts again.
    #[serde(default)]
    pub atomic: bool,
    /// What happens if an existing table lacks columns of the rows.
    #[serde(default)]
    pub schema: SchemaChange,
    /// SQL statements, in the transaction of the load, and commands (`{command: [program, argument]}`) that run before
    /// the table is inspected. The rows become visible at once then.
    #[serde(default)]
    pub before: Vec<Action>,
    /// SQL statements, in the transaction of the load, and commands that run when all rows are in the table, before
    /// they are committed. The rows become visible at once then.
    #[serde(default)]
    pub after: Vec<Action>,
    /// How long to wait while another process holds the database.
    #[serde(default = "busy_timeout")]
    pub busy_timeout: Duration,
}

fn busy_timeout() -> Duration {
    Duration::from_seconds(30)
}

impl Spec for SqliteSpec {
    const NAME: &'static str = "sqlite";
    const SUMMARY: &'static str = "Loads into a table of a SQLite database, in one transaction.";
    const EXAMPLE: &'static str = "\
from: ranked
write: sqlite:out/geonames.db
table: people_by_country
mode: merge
key: [country]
";

    fn check(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        if self.table.trim().is_empty() {
            faults.push(Fault::new("table", "the table has no name"));
        }
        if self.table.to_ascii_lowercase().starts_with("sqlite_") {
            faults.push(
                Fault::new("table", format!("`{}` is a name that SQLite keeps for itself", self.table))
                    .hint("names that begin with `sqlite_` cannot be used"),
            );
        }
        if self.table.contains('\0') {
            faults.push(Fault::new("table", "the table's name holds a NUL byte"));
        }
        let mode = if self.mode == Mode::Merge { "merge" } else { "ignore" };
        faults.extend(key_faults(&self.key, self.mode.needs_key(), mode));
        faults.extend(order_faults(&self.order_by, self.mode));
        faults.extend(action::faults(&self.before, &self.after));
        if self.defer_indexes && self.mode == Mode::Replace {
            faults.push(
                Fault::new("defer_indexes", "`defer_indexes` with a table that is replaced").hint(
                    "the new table has no indexes but its key; `mode: truncate` keeps the table as it is defined",
                ),
            );
        }
        faults
    }
}
