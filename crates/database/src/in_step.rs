//! The statements that keep a table in step with staged rows: `mode: sync`, and the versions of `mode: history`. They
//! are the same for all databases, except for what [`StepDialect`] says. The sinks run them in one transaction.
//!
//! ```text
//!  sync      missing rows: delete or flag ─▶ update those that differ ─▶ insert new ones
//!  history   versions = staged rows that differ from the current version
//!            missing rows: close or flag ─▶ close what has a new version ─▶ insert versions
//! ```
//! Conditions of the user (`scope`) name the target's columns without a table. So the target is never renamed, and
//! staged rows are never joined with it where such a condition stands, but only asked in a query of their own.

use arrow::datatypes::{DataType, SchemaRef};

use crate::dialect::{Dialect, quoted_list};
use crate::family::Family;
use crate::load::{Counted, Step, StepFault};
use crate::table::{ColumnFacts, ForeignKey, TableFacts};

/// The alias of staged rows.
pub(crate) const STAGED: &str = "_millstream";

/// How many keys a message names.
const NAMED: usize = 6;

/// What the dialects write differently.
pub trait StepDialect: Dialect {
    /// A condition: two values of a column differ in any bit. A null equals a null. `facts` are those of the column, if
    /// its table exists.
    fn differs(&self, left: &str, right: &str, facts: Option<&ColumnFacts>) -> String;

    /// The statement that sets columns of `target` from the rows of `source`, a table or a query in brackets, as
    /// [`STAGED`].
    fn update(&self, target: &str, sets: &[(String, String)], source: &str, condition: &str) -> String {
        let sets: Vec<String> = sets.iter().map(|(column, value)| format!("{column} = {value}")).collect();
        format!("{} {target} SET {} FROM {source} {STAGED} WHERE {condition}", self.update_verb(), sets.join(", "))
    }

    /// The beginning of a statement that changes rows. Rows that cannot be changed must not be left out.
    fn update_verb(&self) -> &'static str {
        "UPDATE"
    }

    /// The beginning of a statement that adds rows. None may be left out, or replace others.
    fn insert_verb(&self) -> &'static str {
        "INSERT INTO"
    }

    /// The statement that deletes all rows of `target` without one of `source`, as [`STAGED`], for which `on` holds.
    /// `key` is a column of `source` that is never null.
    fn delete_missing(&self, target: &str, source: &str, on: &str, _key: &str) -> String {
        format!("DELETE FROM {target} WHERE NOT EXISTS (SELECT 1 FROM {source} {STAGED} WHERE {on})")
    }

    /// The statement that lets no other session change the target until the transaction ends.
    fn lock_out(&self, _target: &str) -> Option<String> {
        None
    }

    /// The statements after the rows that let staged keys be found, and refuse those that are there twice.
    fn index_staged(&self, _staging: &str, _key: &[String]) -> Vec<String> {
        Vec::new()
    }

    /// A null in place of a column that a table does not have yet.
    fn null_of(&self, _data_type: &DataType) -> String {
        "NULL".to_owned()
    }

    /// A value of a column with times in a form in which two are compared by their moments.
    fn time(&self, value: &str) -> String {
        value.to_owned()
    }

    /// A condition: a value is in no form that [`StepDialect::time`] knows. `None` if the types of columns rule that
    /// out.
    fn is_no_time(&self, _value: &str) -> Option<String> {
        None
    }

    /// A moment as a value for a column: `text` is its date, or its date and time in UTC.
    fn moment(&self, text: &str, facts: Option<&ColumnFacts>) -> String;
}

/// What becomes of rows of the target that are not among the staged ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingRows<'a> {
    /// They are deleted; of a history, their current versions end.
    Delete,
    /// They stay.
    Keep,
    /// This column of theirs becomes true.
    Flag(&'a str),
}

/// The columns of a history.
#[derive(Debug, Clone, Copy)]
pub struct Validity<'a> {
    /// The column since when a version is valid.
    pub from: &'a str,
    /// The column until when it was; null if it still is.
    pub to: &'a str,
    /// The staged column since when a row is valid; otherwise all are since `begin`.
    pub as_of: Option<&'a str>,
    /// When the run began: date and time in UTC as text.
    pub begin: &'a str,
}

/// A table that is kept in step. Tables are SQL text, columns are not.
#[derive(Debug, Clone, Copy)]
pub struct InStep<'a> {
    /// How it is written.
    pub dialect: &'a dyn StepDialect,
    /// The target.
    pub target: &'a str,
    /// The staged rows.
    pub staging: &'a str,
    /// New versions of a history.
    pub versions: &'a str,
    /// The columns of the key.
    pub key: &'a [String],
    /// The staged columns, the key among them.
    pub columns: &'a [String],
    /// The facts about the target, if it exists.
    pub facts: Option<&'a TableFacts>,
    /// What becomes of rows that are missing.
    pub missing: MissingRows<'a>,
    /// The condition for the rows of the target that are compared.
    pub scope: Option<&'a str>,
    /// Of a history.
    pub validity: Option<Validity<'a>>,
    /// Whether the target may silently leave out changes. Then they are counted before.
    pub may_drop: bool,
}

/// What is asked about missing rows to which rows of another table refer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Referred {
    /// A query for the keys of all missing rows.
    keys: String,
    target: String,
}

impl Referred {
    /// A query for the keys of missing rows to which rows refer by `key`.
    pub fn by(&self, dialect: &dyn Dialect, key: &ForeignKey) -> String {
        let equal = key.columns.iter().map(|(referring, referred)| {
            format!("referring_.{} = {}.{}", dialect.quoted(referring), self.target, dialect.quoted(referred))
        });
        let equal = equal.collect::<Vec<_>>().join(" AND ");
        format!("{} AND EXISTS (SELECT 1 FROM {} referring_ WHERE {equal}) LIMIT {NAMED}", self.keys, key.table)
    }
}

impl InStep<'_> {
    /// The columns that tell staged rows apart: the key, and since when a version is valid.
    pub fn staged_key(&self) -> Vec<String> {
        let as_of = self.validity.and_then(|validity| validity.as_of);
        self.key.iter().cloned().chain(as_of.map(str::to_owned)).collect()
    }

    /// The columns of the table of new versions.
    pub fn version_columns(&self) -> Vec<String> {
        let Some(validity) = self.validity else { return Vec::new() };
        let plain = self.columns.iter().filter(|column| !same(column, validity.from));
        plain.cloned().chain([validity.from.to_owned(), validity.to.to_owned()]).collect()
    }

    /// The transaction.
    pub fn steps(&self) -> Vec<Step> {
        let lock = self.facts.and_then(|_| self.dialect.lock_out(self.target));
        let lock = lock.map(Step::plain);
        let outside = self.scope.map(|scope| {
            let sql = self.keys_where(self.staging, &format!("({scope}) IS NOT TRUE"));
            Step::Never { sql, fault: StepFault::OutsideScope }
        });
        let rest = match self.validity {
            Some(validity) => self.history(validity),
            None => self.sync(),
        };
        lock.into_iter().chain(outside).chain(rest).collect()
    }

    /// A query for how many rows of the target may be missing, once those that are have been deleted or flagged.
    pub fn compared(&self) -> String {
        let conditions: Vec<String> = self.comparable().collect();
        let filter = if conditions.is_empty() { String::new() } else { format!(" WHERE {}", conditions.join(" AND ")) };
        format!("SELECT COUNT(*) FROM {}{filter}", self.target)
    }

    /// A query for how many rows of the target are missing; `None` if these stay.
    pub fn missing(&self) -> Option<String> {
        Some(format!("SELECT COUNT(*) FROM {} WHERE {}", self.target, self.missing_condition()?))
    }

    /// Queries for missing rows that are deleted although rows of other tables refer to them; `None` if none are
    /// deleted.
    pub fn referred(&self) -> Option<Referred> {
        if self.missing != MissingRows::Delete || self.validity.is_some() {
            return None;
        }
        let (key, target) = (quoted_list(self.dialect, self.key), self.target.to_owned());
        let keys = format!("SELECT {key} FROM {target} WHERE {}", self.missing_condition()?);
        Some(Referred { keys, target })
    }

    /// The beginning of [`InStep::steps`] that deletes missing rows, with the checks before it; empty if none are
    /// deleted.
    pub fn deleting_steps(&self) -> Vec<Step> {
        if self.missing != MissingRows::Delete || self.validity.is_some() {
            return Vec::new();
        }
        let mut steps = self.steps();
        let is_last = |step: &Step| matches!(step, Step::Change { counted: Counted::Deleted, .. });
        steps.truncate(steps.iter().position(is_last).map_or(0, |last| last + 1));
        steps
    }

    /// A query for staged keys that are there more than once.
    pub fn duplicates(&self) -> String {
        self.duplicates_of(&quoted_list(self.dialect, self.staged_key()))
    }

    /// The same for the columns `keys`, which are SQL text.
    pub fn duplicates_of(&self, keys: &str) -> String {
        format!("SELECT {keys} FROM {} GROUP BY {keys} HAVING COUNT(*) > 1 LIMIT {NAMED}", self.staging)
    }

    fn sync(&self) -> Vec<Step> {
        let outside = self.scope.map(|scope| {
            let keys = quoted_list(self.dialect, self.key);
            let outside = format!("({keys}) IN (SELECT {keys} FROM {}) AND ({scope}) IS NOT TRUE", self.staging);
            Step::Never { sql: self.keys_where(self.target, &outside), fault: StepFault::KeyOutsideScope }
        });
        let missing = self.missing_condition().map(|missing| {
            let sql = match self.missing {
                MissingRows::Flag(flag) => self.set_flag(flag, &missing),
                _ if self.scope.is_none() => {
                    let key = self.staged(self.first_key());
                    self.dialect.delete_missing(self.target, self.staging, &self.keys_equal_staged(), &key)
                }
                MissingRows::Delete | MissingRows::Keep => format!("DELETE FROM {} WHERE {missing}", self.target),
            };
            self.change(sql, Counted::Deleted, format!("{} WHERE {missing}", self.target))
        });
        let update = self.update_differing();
        let names = quoted_list(self.dialect, self.columns);
        let values: Vec<String> = self.columns.iter().map(|column| self.staged(column)).collect();
        let (names, values) = self.with_flag(names, values.join(", "));
        let new = format!(
            "{} {STAGED} LEFT JOIN {} ON {} WHERE {} IS NULL",
            self.staging,
            self.target,
            self.keys_equal_staged(),
            self.of_target(self.first_key())
        );
        let into = format!("{} {} ({names})", self.dialect.insert_verb(), self.target);
        let insert = self.change(format!("{into} SELECT {values} FROM {new}"), Counted::Inserted, new);
        outside.into_iter().chain(missing).chain(update).chain([insert]).collect()
    }

    /// A statement that changes as many rows of the target as `rows` has: tables with conditions.
    fn change(&self, sql: String, counted: Counted, rows: String) -> Step {
        let expected = self.may_drop.then(|| format!("SELECT COUNT(*) FROM {rows}"));
        Step::Change { sql, counted, expected }
    }

    fn update_differing(&self) -> Option<Step> {
        let mut sets: Vec<(String, String)> = Vec::new();
        let mut differ = Vec::new();
        for column in self.columns {
            let facts = self.column_facts(column);
            // Keys that are equal may still differ, such as `a` and `A`; numbers do not.
            if self.is_key(column) && !facts.is_none_or(may_differ_as_key) {
                continue;
            }
            let staged = self.staged(column);
            differ.push(self.dialect.differs(&self.of_target(column), &staged, facts));
            sets.push((self.dialect.quoted(column), staged));
        }
        if let MissingRows::Flag(flag) = self.missing {
            differ.push(format!("{} IS TRUE", self.of_target(flag)));
            sets.push((self.dialect.quoted(flag), "FALSE".to_owned()));
        }
        if sets.is_empty() {
            return None;
        }
        let condition = format!("{} AND ({})", self.keys_equal_staged(), differ.join(" OR "));
        let sql = self.dialect.update(self.target, &sets, self.staging, &condition);
        let rows = format!("{} JOIN {} {STAGED} ON {condition}", self.target, self.staging);
        Some(self.change(sql, Counted::Updated, rows))
    }

    fn history(&self, validity: Validity<'_>) -> Vec<Step> {
        let quoted = |name: &str| self.dialect.quoted(name);
        let names = self.version_columns();
        let list = quoted_list(self.dialect, &names);
        let begin = self.dialect.moment(validity.begin, self.column_facts(validity.from));
        let versions = match validity.as_of {
            None => self.versions_now(&list, &begin),
            Some(as_of) => self.versions_as_of(&list, as_of, validity),
        };
        let mut steps = vec![Step::change(versions, Counted::Versions)];
        let (from, to) = (quoted(validity.from), self.of_target(validity.to));
        let time = |value: &str| self.dialect.time(value);
        let (since, new) = (self.of_target(validity.from), time(&format!("{STAGED}.{from}")));
        let of_keys = |condition: String| {
            let (keys, on) = (self.keys_of(STAGED), self.keys_equal(self.target, STAGED));
            let (versions, target) = (self.versions, self.target);
            format!(
                "SELECT DISTINCT {keys} FROM {versions} {STAGED} JOIN {target} ON {on} WHERE {condition} LIMIT {NAMED}"
            )
        };
        let no_time = self.dialect.is_no_time(&since).zip(self.dialect.is_no_time(&to));
        steps.extend(no_time.map(|(since, until)| Step::Never {
            sql: of_keys(format!("{since} OR ({to} IS NOT NULL AND {until})")),
            fault: StepFault::NoTime,
        }));
        let not_newer = format!("({to} IS NULL AND {} >= {new}) OR {} > {new}", time(&since), time(&to));
        steps.push(Step::Never { sql: of_keys(not_newer), fault: StepFault::NotNewer });
        if let Some(missing) = self.missing_condition() {
            let sql = match self.missing {
                MissingRows::Flag(flag) => self.set_flag(flag, &missing),
                MissingRows::Delete | MissingRows::Keep => {
                    let no_time = self.dialect.is_no_time(&since).map(|no_time| format!("{missing} AND {no_time}"));
                    steps.extend(no_time.map(|no_time| Step::Never {
                        sql: self.keys_where(self.target, &no_time),
                        fault: StepFault::NoTime,
                    }));
                    let ahead = format!("{missing} AND {} >= {}", time(&since), time(&begin));
                    let sql = self.keys_where(self.target, &ahead);
                    steps.push(Step::Never { sql, fault: StepFault::ClockBehind });
                    let end = self.dialect.moment(validity.begin, self.column_facts(validity.to));
                    let verb = self.dialect.update_verb();
                    format!("{verb} {} SET {} = {end} WHERE {missing}", self.target, quoted(validity.to))
                }
            };
            steps.push(self.change(sql, Counted::Deleted, format!("{} WHERE {missing}", self.target)));
        }
        let keys = quoted_list(self.dialect, self.key);
        let renamed: Vec<String> =
            self.key.iter().enumerate().map(|(n, k)| format!("{} AS _m{n}", quoted(k))).collect();
        let first =
            format!("(SELECT {}, MIN({from}) AS _mf FROM {} GROUP BY {keys})", renamed.join(", "), self.versions);
        let on: Vec<String> =
            self.key.iter().enumerate().map(|(n, k)| format!("{} = {STAGED}._m{n}", self.of_target(k))).collect();
        let condition = format!("{} AND {to} IS NULL", on.join(" AND "));
        let sets = [(quoted(validity.to), format!("{STAGED}._mf"))];
        let close = self.dialect.update(self.target, &sets, &first, &condition);
        let closed = format!("{} JOIN {first} {STAGED} ON {condition}", self.target);
        steps.push(self.change(close, Counted::Updated, closed));
        if let MissingRows::Flag(flag) = self.missing {
            let there = format!("EXISTS (SELECT 1 FROM {} {STAGED} WHERE {})", self.staging, self.keys_equal_staged());
            let condition = format!("{to} IS NULL AND {} IS TRUE AND {there}", self.of_target(flag));
            let verb = self.dialect.update_verb();
            let sql = format!("{verb} {} SET {} = FALSE WHERE {condition}", self.target, quoted(flag));
            steps.push(self.change(sql, Counted::Returned, format!("{} WHERE {condition}", self.target)));
        }
        let (into, values) = self.with_flag(list.clone(), list);
        let verb = self.dialect.insert_verb();
        let insert = format!("{verb} {} ({into}) SELECT {values} FROM {}", self.target, self.versions);
        steps.push(self.change(insert, Counted::Inserted, self.versions.to_owned()));
        steps
    }

    /// Fills the table of versions with staged rows that differ from the current versions, all valid since `begin`.
    fn versions_now(&self, list: &str, begin: &str) -> String {
        let values: Vec<String> = self.columns.iter().map(|column| self.staged(column)).collect();
        format!(
            "INSERT INTO {} ({list}) SELECT {}, {begin}, NULL FROM {} {STAGED} LEFT JOIN {} ON {} AND {} IS NULL WHERE \
             {} IS NULL{}",
            self.versions,
            values.join(", "),
            self.staging,
            self.target,
            self.keys_equal_staged(),
            self.of_target(self.to()),
            self.of_target(self.first_key()),
            self.or_differs(|index| self.staged(&self.columns[index]), |column, _| self.of_target(column))
        )
    }

    /// Fills the table of versions with the staged rows of each key in their order: those that differ from the one
    /// before, the first from the current version.
    ///
    /// Rows that are not newer than the current version change nothing if they equal the version that was valid at
    /// their time. Others get into the table of versions, where they are found to be not newer.
    fn versions_as_of(&self, list: &str, as_of: &str, validity: Validity<'_>) -> String {
        let index_of = |name: &str| self.columns.iter().position(|column| same(column, name)).unwrap_or_default();
        let keys: Vec<String> = self.key.iter().map(|key| format!("_m{}", index_of(key))).collect();
        let window = format!("OVER (PARTITION BY {} ORDER BY _mt)", keys.join(", "));
        let before = self.compared_columns().map(|(index, _)| format!(", LAG(_m{index}) {window} AS _p{index}"));
        let ranked = format!(
            "SELECT matched_.*, LAG(_c) {window} AS _pc, LEAD(_c) {window} AS _nc{} FROM ({}) matched_",
            before.collect::<String>(),
            self.matched(as_of, validity)
        );
        let staged = |index: usize| format!("{STAGED}._m{index}");
        let from_before = self.or_differs(staged, |_, index| format!("{STAGED}._p{index}"));
        let from_valid = self.or_differs(staged, |_, index| format!("{STAGED}._t{index}"));
        let follows = format!("{STAGED}._c < 2 AND {STAGED}._c = COALESCE({STAGED}._pc, 9)");
        // The key has ended, and no row lets it begin again.
        let is_ended = format!(
            "{STAGED}._c = 2 AND {STAGED}._nc IS NULL AND {STAGED}._vt IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {} \
             WHERE {} AND {} IS NULL)",
            self.target,
            self.keys_renamed(),
            self.of_target(validity.to)
        );
        let kept = format!(
            "SELECT {STAGED}.* FROM ({ranked}) {STAGED} WHERE ({follows} AND (FALSE{from_before})) OR (NOT ({follows}) \
             AND ({STAGED}._c = 0{from_valid})) OR ({is_ended})"
        );
        let values: Vec<String> = self
            .columns
            .iter()
            .enumerate()
            .filter(|(_, column)| !same(column, validity.from))
            .map(|(index, _)| format!("_m{index}"))
            .collect();
        format!(
            "INSERT INTO {} ({list}) SELECT {}, _mt, LEAD(_mt) {window} FROM ({kept}) kept_",
            self.versions,
            values.join(", ")
        )
    }

    /// The staged rows with their times as `_mt`, and the version that was valid then: its values as `_t…`, its end as
    /// `_vt`. `_c` is 0 without one, 1 if the row is newer than it and it is the current one, and otherwise 2.
    fn matched(&self, as_of: &str, validity: Validity<'_>) -> String {
        let time = |value: &str| self.dialect.time(value);
        let (from, to) = (self.of_target(validity.from), self.of_target(validity.to));
        let (since, until, at) = (time(&from), time(&to), time(&format!("{STAGED}._mt")));
        let values = self.compared_columns().map(|(index, name)| format!(", {} AS _t{index}", self.of_target(name)));
        format!(
            "SELECT {STAGED}.*, CASE WHEN {} IS NULL THEN 0 WHEN {to} IS NULL AND {since} < {at} THEN 1 ELSE 2 END AS \
             _c, {to} AS _vt{} FROM ({}) {STAGED} LEFT JOIN {} ON {} AND {since} <= {at} AND ({to} IS NULL OR {until} \
             > {at})",
            self.of_target(self.first_key()),
            values.collect::<String>(),
            self.renamed(as_of),
            self.target,
            self.keys_renamed()
        )
    }

    /// ` OR …` for each column whose values differ, except for keys and times.
    fn or_differs(&self, staged: impl Fn(usize) -> String, other: impl Fn(&str, usize) -> String) -> String {
        self.compared_columns().fold(String::new(), |all, (index, column)| {
            let facts = self.column_facts(column);
            format!("{all} OR {}", self.dialect.differs(&other(column, index), &staged(index), facts))
        })
    }

    /// The columns of which a difference makes a new version, with their places: all but keys and times.
    fn compared_columns(&self) -> impl Iterator<Item = (usize, &String)> {
        let validity = self.validity;
        let is_time = move |column: &str| {
            validity.is_some_and(|validity| {
                same(column, validity.from) || validity.as_of.is_some_and(|as_of| same(column, as_of))
            })
        };
        self.columns.iter().enumerate().filter(move |(_, column)| {
            !is_time(column) && (!self.is_key(column) || self.column_facts(column).is_none_or(may_differ_as_key))
        })
    }

    /// The condition for rows of the target that are missing; `None` if these stay.
    fn missing_condition(&self) -> Option<String> {
        if self.missing == MissingRows::Keep {
            return None;
        }
        let there = format!("EXISTS (SELECT 1 FROM {} {STAGED} WHERE {})", self.staging, self.keys_equal_staged());
        let conditions: Vec<String> = self.comparable().chain([format!("NOT {there}")]).collect();
        Some(conditions.join(" AND "))
    }

    /// The conditions for rows of the target that may be missing.
    fn comparable(&self) -> impl Iterator<Item = String> {
        let scope = self.scope.map(|scope| format!("({scope})"));
        let open = self.validity.map(|validity| format!("{} IS NULL", self.of_target(validity.to)));
        let flag = match self.missing {
            MissingRows::Flag(flag) => Some(format!("{} IS NOT TRUE", self.of_target(flag))),
            MissingRows::Delete | MissingRows::Keep => None,
        };
        scope.into_iter().chain(open).chain(flag)
    }

    fn set_flag(&self, flag: &str, condition: &str) -> String {
        let verb = self.dialect.update_verb();
        format!("{verb} {} SET {} = TRUE WHERE {condition}", self.target, self.dialect.quoted(flag))
    }

    /// Columns and values of new rows, which are not flagged.
    fn with_flag(&self, names: String, values: String) -> (String, String) {
        match self.missing {
            MissingRows::Flag(flag) => (format!("{names}, {}", self.dialect.quoted(flag)), format!("{values}, FALSE")),
            MissingRows::Delete | MissingRows::Keep => (names, values),
        }
    }

    /// A staged column.
    fn staged(&self, column: &str) -> String {
        format!("{STAGED}.{}", self.dialect.quoted(column))
    }

    /// The staged rows under names that the target's columns do not have, with the time of `as_of` as `_mt`.
    fn renamed(&self, as_of: &str) -> String {
        let columns = self.columns.iter().enumerate();
        let columns: String =
            columns.map(|(index, column)| format!("{} AS _m{index}, ", self.dialect.quoted(column))).collect();
        format!("SELECT {columns}{} AS _mt FROM {}", self.dialect.quoted(as_of), self.staging)
    }

    fn keys_renamed(&self) -> String {
        let columns = self.columns.iter().enumerate().filter(|(_, column)| self.is_key(column));
        let equal = columns.map(|(index, column)| format!("{} = {STAGED}._m{index}", self.of_target(column)));
        equal.collect::<Vec<_>>().join(" AND ")
    }

    fn keys_equal(&self, left: &str, right: &str) -> String {
        let equal = self.key.iter().map(|key| {
            let key = self.dialect.quoted(key);
            format!("{left}.{key} = {right}.{key}")
        });
        equal.collect::<Vec<_>>().join(" AND ")
    }

    fn keys_equal_staged(&self) -> String {
        self.keys_equal(self.target, STAGED)
    }

    fn keys_of(&self, table: &str) -> String {
        let keys = self.key.iter().map(|key| format!("{table}.{}", self.dialect.quoted(key)));
        keys.collect::<Vec<_>>().join(", ")
    }

    fn keys_where(&self, table: &str, condition: &str) -> String {
        format!("SELECT {} FROM {table} WHERE {condition} LIMIT {NAMED}", quoted_list(self.dialect, self.key))
    }

    fn of_target(&self, column: &str) -> String {
        format!("{}.{}", self.target, self.dialect.quoted(column))
    }

    fn column_facts(&self, column: &str) -> Option<&ColumnFacts> {
        self.facts.and_then(|facts| facts.column(column))
    }

    fn is_key(&self, column: &str) -> bool {
        self.key.iter().any(|key| same(key, column))
    }

    fn first_key(&self) -> &str {
        self.key.first().map_or("", String::as_str)
    }

    fn to(&self) -> &str {
        self.validity.map_or("", |validity| validity.to)
    }
}

/// A query that reads nothing, and fails if `scope` is not a condition over the columns of `schema`. `target` is the
/// table, if it exists, and `known` the name that it has for a column.
pub fn try_scope<'a>(
    dialect: &dyn StepDialect,
    scope: &str,
    schema: &SchemaRef,
    target: Option<&str>,
    known: impl Fn(&str) -> Option<&'a str>,
) -> String {
    let columns = schema.fields().iter().map(|field| match known(field.name()) {
        Some(name) => dialect.quoted(name),
        None => format!("{} AS {}", dialect.null_of(field.data_type()), dialect.quoted(field.name())),
    });
    let columns = columns.collect::<Vec<_>>().join(", ");
    let from = target.map_or(String::new(), |target| format!(" FROM {target}"));
    format!("SELECT 1 FROM (SELECT {columns}{from}) {STAGED} WHERE ({scope}) LIMIT 0")
}

fn same(left: &str, right: &str) -> bool {
    left.eq_ignore_ascii_case(right)
}

/// Whether values that are equal as keys may still differ.
fn may_differ_as_key(facts: &ColumnFacts) -> bool {
    matches!(facts.family, Family::Text | Family::Choice | Family::Other)
}
