//! What the job file may say of a SQLite sink, beside `from` and `write`.

use millstream_core::reject::MaxRejects;
use millstream_core::spec::{Duration, Fault, Spec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::database::action::{self, Action};
use crate::database::in_step::{EmptyInput, InStepSettings, Missing};
use crate::database::spec::{Mode, SchemaChange, key_faults, order_faults};

/// Settings of a SQLite sink.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SqliteSpec {
    /// The table. It is created if it does not exist, with columns of the rows' types.
    #[schemars(length(min = 1))]
    pub table: String,
    /// What happens to the rows that the table has.
    #[serde(default)]
    pub mode: Mode,
    /// The columns that identify a row: the primary key of a new table (in `history` with `valid_from`), and the key
    /// that `merge`, `ignore`, `sync` and `history` use.
    #[serde(default)]
    pub key: Vec<String>,
    /// For `sync` and `history`, which need it: what happens to rows of the table whose key does not come.
    #[serde(default)]
    pub missing: Option<Missing>,
    /// For `sync` and `history`: which rows of the table may be missing, as a SQL condition on its columns, such as
    /// `day = '2026-01-31'`. In `sync` no others are compared. A row that comes and is not in it ends the load.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub scope: Option<String>,
    /// For `sync` and `history`: how many rows may be missing, as a number or as a share of those that could be.
    /// With more, nothing is changed. By default 10%; `100%` allows all.
    #[serde(default)]
    pub max_deletes: Option<MaxRejects>,
    /// For `sync` and `history`: what happens if no row comes.
    #[serde(default)]
    pub empty_input: Option<EmptyInput>,
    /// For `history`: the column since when a version is valid. By default `valid_from`.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub valid_from: Option<String>,
    /// For `history`: the column until when a version was valid, null if it still is. By default `valid_to`.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub valid_to: Option<String>,
    /// For `history`: the column of the rows, a date or a time, since when each is valid. Several rows of a key become
    /// versions in its order. By default the time at which the run began, or the first run of its resume chain.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub as_of: Option<String>,
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
        faults.extend(key_faults(&self.key, self.mode));
        faults.extend(self.in_step().faults());
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

impl SqliteSpec {
    /// What it says of a table that is kept in step.
    pub(crate) fn in_step(&self) -> InStepSettings<'_> {
        InStepSettings {
            mode: self.mode,
            key: &self.key,
            missing: self.missing.as_ref(),
            scope: self.scope.as_deref(),
            max_deletes: self.max_deletes,
            empty_input: self.empty_input,
            valid_from: self.valid_from.as_deref(),
            valid_to: self.valid_to.as_deref(),
            as_of: self.as_of.as_deref(),
        }
    }
}
