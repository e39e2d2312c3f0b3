//! What the job file may say of a sink that is a database server, beside `from` and `write`. It owns the settings that
//! MySQL and PostgreSQL have in common, which are all of them.

use millstream_core::reject::MaxRejects;
use millstream_core::sink::Written;
use millstream_core::source::TableName;
use millstream_core::spec::{Duration, Fault, Secret, Size, TextOrSecret};
use millstream_database::table::TableFacts;
use millstream_database::{Access, Order, Tls};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::action::{self, Action};
use super::in_step::{EmptyInput, InStepSettings, Missing};

/// A table of a database server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DatabaseSpec {
    /// The table. It is created if it does not exist, with columns of the rows' types. PostgreSQL: `schema.table` names
    /// one outside of the search path.
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
    /// (`append`), since several need a staging table and a second copy; else 2. Rows of a queue: 2 with
    /// `append`, each of which takes some of the partitions, and as many again that wait to commit; always 1 with
    /// `merge` and `ignore`.
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
    /// The table becomes like the rows: new ones are inserted, those that differ are changed, and `missing` says what
    /// happens to the others.
    Sync,
    /// They stay as versions: a row that differs from the current version of its key becomes a new version, and the
    /// current one ends.
    History,
}

impl Mode {
    /// Whether the key identifies rows.
    pub(crate) fn needs_key(self) -> bool {
        matches!(self, Mode::Merge | Mode::Ignore | Mode::Sync | Mode::History)
    }

    /// Whether an order decides between rows with the same key.
    pub(crate) fn has_order(self) -> bool {
        matches!(self, Mode::Merge | Mode::Ignore)
    }

    /// Whether rows may come epoch by epoch, without an end.
    pub(crate) fn takes_epochs(self) -> bool {
        matches!(self, Mode::Append | Mode::Merge | Mode::Ignore)
    }

    /// What becomes of a message of a queue that was sent twice; an order decides between rows with the same key if
    /// `has_order`.
    pub(crate) fn of_sent_twice(self, has_order: bool) -> Option<&'static str> {
        match self {
            Mode::Append => Some("is there twice, unless `mode: ignore` or `merge` has a key that identifies it"),
            Mode::Ignore => Some("is there once, by `key`"),
            Mode::Merge if has_order => Some("is there once, by `key`: the last one by `order_by`"),
            Mode::Merge => Some("is there once, by `key`: the one that came last, which may be an older one"),
            Mode::Replace | Mode::Truncate | Mode::Sync | Mode::History => None,
        }
    }

    /// Whether the table is kept in step with the rows.
    pub(crate) fn is_in_step(self) -> bool {
        matches!(self, Mode::Sync | Mode::History)
    }

    /// Its name in the job file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Append => "append",
            Mode::Replace => "replace",
            Mode::Truncate => "truncate",
            Mode::Merge => "merge",
            Mode::Ignore => "ignore",
            Mode::Sync => "sync",
            Mode::History => "history",
        }
    }

    /// Its setting in the job file.
    pub(crate) fn setting(self) -> &'static str {
        match self {
            Mode::Append => "mode: append",
            Mode::Replace => "mode: replace",
            Mode::Truncate => "mode: truncate",
            Mode::Merge => "mode: merge",
            Mode::Ignore => "mode: ignore",
            Mode::Sync => "mode: sync",
            Mode::History => "mode: history",
        }
    }

    /// Whether a source must not read the `table` that it writes: not what replaces or merges its own rows, which is
    /// made for that.
    pub(crate) fn writes(self, table: Option<TableName>) -> Option<Written> {
        let with_rejects = match self {
            Mode::Append => false,
            Mode::Truncate => true,
            Mode::Replace | Mode::Merge | Mode::Ignore | Mode::Sync | Mode::History => return None,
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
        faults.extend(key_faults(&self.key, self.mode));
        faults.extend(self.in_step().faults());
        if self.defer_key && (self.key.is_empty() || self.mode.needs_key()) {
            faults.push(
                Fault::new("defer_key", "`defer_key` without a key to defer")
                    .hint("name a `key`; modes that use it, such as `merge`, keep it while loading"),
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

    /// Writes the columns of key and order as `names` have them: capitals may differ.
    pub(crate) fn name_like(&mut self, names: &[String]) {
        let find = |column: &str| names.iter().find(|name| name.eq_ignore_ascii_case(column)).cloned();
        for key in self.key.iter_mut().chain(&mut self.as_of) {
            *key = find(key).unwrap_or_else(|| key.clone());
        }
        let renamed = self.order().into_iter().map(|order| {
            let column = find(&order.column).unwrap_or(order.column);
            if order.descending { format!("{column} desc") } else { format!("{column} asc") }
        });
        self.order_by = renamed.collect();
    }

    /// Names the columns that the load writes itself as the table does, where only the case differs.
    pub(crate) fn name_own_like(&mut self, facts: &TableFacts) {
        let find = |name: &str| facts.column(name).map(|column| column.name.clone());
        if self.mode == Mode::History {
            for (setting, usual) in [(&mut self.valid_from, "valid_from"), (&mut self.valid_to, "valid_to")] {
                let known = find(setting.as_deref().unwrap_or(usual));
                *setting = known.or(setting.take());
            }
        }
        if let Some(Missing::Flag(flag)) = &mut self.missing
            && let Some(known) = find(flag)
        {
            *flag = known;
        }
    }

    /// The order that is declared.
    pub(crate) fn order(&self) -> Vec<Order> {
        Order::all(&self.order_by)
    }
}

/// Faults of the order of rows with one key.
pub(crate) fn order_faults(order_by: &[String], mode: Mode) -> Vec<Fault> {
    let mut faults = Vec::new();
    if !order_by.is_empty() && !mode.has_order() {
        faults.push(
            Fault::new("order_by", "`order_by` without a mode that uses it")
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

/// Faults of the key of any database's sink.
pub(crate) fn key_faults(key: &[String], mode: Mode) -> Vec<Fault> {
    let mut faults = Vec::new();
    if mode.needs_key() && key.is_empty() {
        faults.push(
            Fault::new("key", format!("`mode: {}` without a key", mode.name()))
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
