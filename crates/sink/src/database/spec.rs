//! What the job file may say of a sink that is a database server, beside `from` and `write`. It owns the settings that
//! MySQL and PostgreSQL have in common, which are all of them.

use millstream_core::sink::Written;
use millstream_core::source::TableName;
use millstream_core::spec::{Duration, Fault, Secret, Size, TextOrSecret};
use millstream_database::{Access, Order, Tls};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::action::{self, Action};

/// A table of a database server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DatabaseSpec {
    /// The table. It is created if it does not exist, with columns of the rows' types. PostgreSQL: `schema.table` names
    /// one outside of the search path.
    #[schemars(length(min = 1))]
    pub table: String,
    /// What happens to the rows that the table has.
    #[serde(default)]
    pub mode: Mode,
    /// The columns that identify a row: the primary key of a new table, and the key that `merge` and `ignore` use.
    #[serde(default)]
    pub key: Vec<String>,
    /// Which of several rows with one key stays, for `merge` and `ignore`: the first in this order, such as
    /// `[changed_at desc]`. Without it the last to arrive stays in `merge`, and the first in `ignore`.
    #[serde(default)]
    pub order_by: Vec<String>,
    /// Whether the primary key of a new table is built when all rows are in it. That is quicker where rows come in no
    /// order; of rows with one key the load then fails at its end, and the database names the key and not the row.
    #[serde(default)]
    pub defer_key: bool,
    /// Whether the indexes of an existing table wait for the rows: they are dropped, and built again when all rows are
    /// in it. Keys, and others that no two rows may share, stay. The rows become visible at once then.
    #[serde(default)]
    pub defer_indexes: bool,
    /// What happens if an existing table does not fit the rows.
    #[serde(default)]
    pub schema: SchemaChange,
    /// The user's name; one in the URL takes precedence.
    #[serde(default)]
    pub user: Option<TextOrSecret>,
    /// A reference to the password; one in the URL takes precedence.
    #[serde(default)]
    pub password: Option<Secret>,
    /// Whether the connection is encrypted and the server has to prove who it is. By default it is, except to this
    /// machine itself. `sslmode` in the URL takes precedence.
    #[serde(default)]
    pub tls: Option<Tls>,
    /// The path of a PEM file with certificates of authorities to trust besides the system's.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub ca: Option<String>,
    /// Whether all rows appear at once, also with `append`, rather than chunk by chunk, each exactly once. A run that
    /// stops early has then loaded nothing, and `--resume` starts again.
    #[serde(default)]
    pub atomic: bool,
    /// How many connections load at once, from 1 to 64. By default 1 where rows go straight into an existing table
    /// (`append`), since several need a staging table and a second copy; else 2.
    #[serde(default)]
    #[schemars(range(min = 1, max = 64))]
    pub connections: Option<usize>,
    /// The most rows in one bulk statement.
    #[serde(default = "batch_rows")]
    #[schemars(range(min = 1, max = 10_000_000))]
    pub batch_rows: usize,
    /// About the most bytes in one bulk statement.
    #[serde(default = "batch_bytes")]
    pub batch_bytes: Size,
    /// SQL statements and commands (`{command: [program, argument]}`) that run before the table is inspected, one after
    /// the other, each by itself.
    #[serde(default)]
    pub before: Vec<Action>,
    /// SQL statements and commands that run when the rows have been committed, one after the other, each by itself.
    #[serde(default)]
    pub after: Vec<Action>,
    /// How long it may take to establish a connection.
    #[serde(default = "connect_timeout")]
    pub connect_timeout: Duration,
    /// How long to wait for a lock that another session holds, each time.
    #[serde(default = "lock_timeout")]
    pub lock_timeout: Duration,
    /// How often a statement is retried after a transient fault: a deadlock, a lock that was not granted in time, a
    /// server that does not accept connections yet.
    #[serde(default = "retries")]
    #[schemars(range(max = 100))]
    pub retries: u32,
}

fn batch_rows() -> usize {
    100_000
}

fn batch_bytes() -> Size {
    Size(8_000_000)
}

fn connect_timeout() -> Duration {
    Duration::from_seconds(10)
}

fn lock_timeout() -> Duration {
    Duration::from_seconds(30)
}

fn retries() -> u32 {
    5
}

/// The least and the most bytes in a bulk statement.
const BATCH_BYTES: std::ops::RangeInclusive<u64> = 1_000..=1_000_000_000;

/// What happens to the rows that the table has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// They stay, and the new ones are added.
    #[default]
    Append,
    /// The table is replaced by a new one, which is created from the rows' types.
    Replace,
    /// They are deleted; the table stays as it is defined.
    Truncate,
    /// A row with the key of a new one takes the new one's values.
    Merge,
    /// They stay, and so does a row whose key a new one has: the new one is left out.
    Ignore,
}

impl Mode {
    /// Whether the key identifies rows.
    pub(crate) fn needs_key(self) -> bool {
        matches!(self, Mode::Merge | Mode::Ignore)
    }

    /// Whether a source must not read the `table` that it writes: not what replaces or merges its own rows, which is
    /// made for that.
    pub(crate) fn writes(self, table: Option<TableName>) -> Option<Written> {
        let with_rejects = match self {
            Mode::Append => false,
            Mode::Truncate => true,
            Mode::Replace | Mode::Merge | Mode::Ignore => return None,
        };
        Some(Written::Table { table: table?, with_rejects })
    }
}

/// What happens if the table does not fit the rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SchemaChange {
    /// The load is refused before the first row.
    #[default]
    Freeze,
    /// Columns that are missing are added, and those that are too narrow are widened.
    Evolve,
}

impl DatabaseSpec {
    /// Faults that the types do not show.
    pub(crate) fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        if self.table.trim().is_empty() || self.table.contains('\0') {
            faults.push(Fault::new("table", "the table has no name"));
        }
        faults.extend(key_faults(
            &self.key,
            self.mode.needs_key(),
            if self.mode == Mode::Merge { "merge" } else { "ignore" },
        ));
        if self.defer_key && (self.key.is_empty() || self.mode.needs_key()) {
            faults.push(
                Fault::new("defer_key", "`defer_key` without a key to defer")
                    .hint("name a `key`; `mode: merge` and `mode: ignore` use it, so they keep it while loading"),
            );
        }
        if self.defer_indexes && self.mode == Mode::Replace {
            faults.push(
                Fault::new("defer_indexes", "`defer_indexes` with a table that is replaced").hint(
                    "the new table has no indexes but its key; `mode: truncate` keeps the table as it is defined",
                ),
            );
        }
        faults.extend(order_faults(&self.order_by, self.mode));
        if !BATCH_BYTES.contains(&self.batch_bytes.0) {
            faults.push(Fault::new("batch_bytes", "a bulk statement has from 1 kB to 1 GB"));
        }
        faults.extend(action::faults(&self.before, &self.after));
        faults
    }

    /// What it says of access to the server.
    pub(crate) fn access(&self) -> Access {
        Access {
            key: "write",
            user: self.user.clone(),
            password: self.password.clone(),
            tls: self.tls,
            ca: self.ca.clone(),
        }
    }

    /// Whether a column is in the key.
    pub(crate) fn is_key(&self, name: &str) -> bool {
        self.key.iter().any(|key| key.eq_ignore_ascii_case(name))
    }

    /// Writes the columns of key and order as `names` have them: capitals may differ.
    pub(crate) fn name_like(&mut self, names: &[String]) {
        let find = |column: &str| names.iter().find(|name| name.eq_ignore_ascii_case(column)).cloned();
        for key in &mut self.key {
            *key = find(key).unwrap_or_else(|| key.clone());
        }
        let renamed = self.order().into_iter().map(|order| {
            let column = find(&order.column).unwrap_or(order.column);
            if order.descending { format!("{column} desc") } else { format!("{column} asc") }
        });
        self.order_by = renamed.collect();
    }

    /// The order that is declared.
    pub(crate) fn order(&self) -> Vec<Order> {
        Order::all(&self.order_by)
    }
}

/// Faults of the order of rows with one key.
pub(crate) fn order_faults(order_by: &[String], mode: Mode) -> Vec<Fault> {
    let mut faults = Vec::new();
    if !order_by.is_empty() && !mode.needs_key() {
        faults.push(
            Fault::new("order_by", "`order_by` without a mode that uses a key")
                .hint("it says which of several rows with one key stays, for `mode: merge` and `mode: ignore`"),
        );
    }
    for (index, text) in order_by.iter().enumerate() {
        if let Err(what) = Order::parse(text) {
            faults.push(
                Fault::new(&format!("order_by.{index}"), what).hint("write a column, followed by `desc` if needed"),
            );
        }
    }
    faults
}

/// Faults of the key of any database's sink, in a mode that needs one or does not.
pub(crate) fn key_faults(key: &[String], needed: bool, mode: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    if needed && key.is_empty() {
        faults.push(
            Fault::new("key", format!("`mode: {mode}` without a key"))
                .hint("name the columns that identify a row: `key: [id]`"),
        );
    }
    for (index, column) in key.iter().enumerate() {
        if key[..index].iter().any(|other| other.eq_ignore_ascii_case(column)) {
            faults.push(Fault::new(&format!("key.{index}"), format!("`{column}` is in the key twice")));
        }
    }
    faults
}
