//! Tables that are kept in step (`mode: sync` and `mode: history`), for all databases: the settings and what is wrong
//! with them, the columns that the table has beside those of the rows, what an input must be like, how many rows may
//! be missing, and the errors. `millstream-database` has the statements.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit};
use arrow::temporal_conversions::timestamp_ms_to_datetime;
use millstream_core::hint::did_you_mean;
use millstream_core::reject::MaxRejects;
use millstream_core::sink::{Changes, InputFacts};
use millstream_core::spec::Fault;
use millstream_core::types::type_name;
use millstream_core::{Error, Result};
use millstream_database::TextRows;
use millstream_database::in_step::{MissingRows, Validity};
use millstream_database::load::{Counted, StepFault};
use millstream_database::table::ForeignKey;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::spec::Mode;
use crate::shared::counted;

/// The share of rows that may be missing by default.
const MAX_DELETES: MaxRejects = MaxRejects::Share(0.1);

/// What to do about an input of which something was left out.
const FIX_INPUT: &str = "fix the input, or leave such rows out by a filter, which says that they do not count";

/// How many keys a message names.
const NAMED: usize = 5;

/// What happens to rows of the table whose key does not come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Missing {
    /// They are deleted; in a history, their current version ends.
    Delete,
    /// They stay.
    Keep,
    /// They stay, and this column of theirs, a boolean, becomes true. It becomes false when their key comes again.
    Flag(String),
}

/// What happens if no row comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EmptyInput {
    /// The load fails, and nothing is changed.
    Fail,
    /// All rows are missing, within `max_deletes`.
    Allow,
}

/// What a job says of a table that is kept in step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InStepSettings<'a> {
    pub(crate) mode: Mode,
    pub(crate) key: &'a [String],
    pub(crate) missing: Option<&'a Missing>,
    pub(crate) scope: Option<&'a str>,
    pub(crate) max_deletes: Option<MaxRejects>,
    pub(crate) empty_input: Option<EmptyInput>,
    pub(crate) valid_from: Option<&'a str>,
    pub(crate) valid_to: Option<&'a str>,
    pub(crate) as_of: Option<&'a str>,
}

impl<'a> InStepSettings<'a> {
    /// Faults that the types do not show.
    pub(crate) fn faults(&self) -> Vec<Fault> {
        let mode = self.mode.name();
        let mut faults = Vec::new();
        if self.mode.is_in_step() && self.missing.is_none() {
            faults.push(Fault::new("missing", format!("`mode: {mode}` without `missing`")).hint(
                "say what happens to rows of the table whose key does not come: `missing: delete`, `missing: keep`, or \
                 `missing: {flag: column}`",
            ));
        }
        let given = [
            ("missing", self.missing.is_some()),
            ("scope", self.scope.is_some()),
            ("max_deletes", self.max_deletes.is_some()),
            ("empty_input", self.empty_input.is_some()),
        ];
        let of_history = [
            ("valid_from", self.valid_from.is_some()),
            ("valid_to", self.valid_to.is_some()),
            ("as_of", self.as_of.is_some()),
        ];
        for (name, _) in given.iter().filter(|(_, is_given)| *is_given && !self.mode.is_in_step()) {
            faults.push(
                Fault::new(name, format!("`{name}` with `mode: {mode}`"))
                    .hint("it is for `mode: sync` and `mode: history`, which compare the rows with the whole table"),
            );
        }
        for (name, _) in of_history.iter().filter(|(_, is_given)| *is_given && self.mode != Mode::History) {
            faults.push(Fault::new(name, format!("`{name}` with `mode: {mode}`")).hint("it is for `mode: history`"));
        }
        if self.scope.is_some_and(|scope| scope.trim().is_empty()) {
            faults.push(Fault::new("scope", "the condition is empty"));
        }
        if let Some(as_of) = self.as_of.filter(|as_of| self.key.iter().any(|key| key.eq_ignore_ascii_case(as_of))) {
            faults.push(
                Fault::new("as_of", format!("the column `{as_of}` of `as_of` is in the key"))
                    .hint("leave it out of `key`: a row with another time is another version of the same key"),
            );
        }
        faults.extend(self.name_faults());
        faults
    }

    /// Faults of columns that have the same name.
    fn name_faults(&self) -> Vec<Fault> {
        let is_key = |name: &str| self.key.iter().any(|key| key.eq_ignore_ascii_case(name));
        let own: Vec<(&str, &str)> = self.own_names().collect();
        let twice = |index: usize, name: &str| own[..index].iter().any(|(_, other)| other.eq_ignore_ascii_case(name));
        let faults = own.iter().enumerate().filter_map(|(index, (setting, name))| {
            let why = match () {
                () if is_key(name) => "is in the key",
                () if twice(index, name) => "is named twice",
                () => return None,
            };
            Some(Fault::new(setting, format!("the column `{name}` {why}")).hint("name another column"))
        });
        faults.collect()
    }

    /// The columns of the table that are the load's own, by their settings.
    fn own_names(&self) -> impl Iterator<Item = (&'static str, &'a str)> {
        let history = self.mode == Mode::History;
        let times = [("valid_from", self.from()), ("valid_to", self.to())].into_iter().filter(move |_| history);
        let flag = match self.missing {
            Some(Missing::Flag(flag)) if self.mode.is_in_step() => Some(("missing", flag.as_str())),
            _ => None,
        };
        times.chain(flag)
    }

    fn from(&self) -> &'a str {
        self.valid_from.unwrap_or("valid_from")
    }

    fn to(&self) -> &'a str {
        self.valid_to.unwrap_or("valid_to")
    }

    /// The column that is true of rows that are missing.
    pub(crate) fn flag(&self) -> Option<&'a str> {
        self.own_names().find(|(setting, _)| *setting == "missing").map(|(_, name)| name)
    }

    /// The condition of `scope`, if the mode has one.
    pub(crate) fn used_scope(&self) -> Option<&'a str> {
        self.scope.filter(|_| self.mode.is_in_step())
    }

    /// The error of a condition of `scope` that the database refuses with `error`.
    pub(crate) fn scope_fault(&self, target: &str, error: &Error) -> Error {
        Error::refused(format!("the condition of `scope` for {target} cannot be used"))
            .text(self.scope.unwrap_or_default())
            .cause(error.cause_text().unwrap_or(error.what()))
            .hint("it is SQL of the database over columns that are loaded, without the name of a table")
    }

    /// Whether `as_of` is the column since when a version is valid.
    fn is_from(&self, name: &str) -> bool {
        name.eq_ignore_ascii_case(self.from()) && self.as_of.is_some_and(|as_of| as_of.eq_ignore_ascii_case(name))
    }

    /// Faults of the rows' columns.
    pub(crate) fn schema_faults(&self, schema: &SchemaRef) -> Vec<Error> {
        let mut faults = Vec::new();
        let field = |name: &str| schema.fields().iter().find(|field| field.name().eq_ignore_ascii_case(name));
        for (setting, name) in self.own_names().filter(|(_, name)| !self.is_from(name)) {
            if let Some(field) = field(name) {
                let what = format!("the rows have a column `{}`, which the load writes itself", field.name());
                let hint = format!("leave it out of the columns that are loaded, or name another one: `{setting}`");
                faults.push(Error::refused(what).column(field.name()).hint(hint));
            }
        }
        let Some(as_of) = self.as_of.filter(|_| self.mode == Mode::History) else { return faults };
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        match field(as_of) {
            None => faults.push(
                Error::job(format!("the column `{as_of}` of `as_of` is not among the columns that are loaded"))
                    .text(as_of)
                    .hint(did_you_mean(as_of, "columns", &names)),
            ),
            Some(field) if !is_time(field.data_type()) => {
                let what = format!("the column `{as_of}` of `as_of` is {}", type_name(field.data_type()));
                let hint = "a version is valid since a date or a time: CAST the column to `date` or `timestamp`";
                faults.push(Error::refused(what).column(as_of).hint(hint));
            }
            Some(_) => {}
        }
        faults
    }

    /// The type of the columns with times, for rows with `schema`.
    fn time_type(&self, schema: &SchemaRef) -> DataType {
        let as_of = self.as_of.and_then(|as_of| {
            let field = schema.fields().iter().find(|field| field.name().eq_ignore_ascii_case(as_of));
            field.map(|field| field.data_type().clone())
        });
        as_of.unwrap_or(DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())))
    }

    /// The moment at `millis` since 1970 in UTC, as text, with as many digits as the columns with times have.
    pub(crate) fn moment(&self, millis: u64, schema: &SchemaRef) -> String {
        let form = match self.time_type(schema) {
            DataType::Date32 | DataType::Date64 => "%Y-%m-%d",
            DataType::Timestamp(TimeUnit::Second, _) => "%Y-%m-%d %H:%M:%S",
            DataType::Timestamp(TimeUnit::Millisecond, _) => "%Y-%m-%d %H:%M:%S%.3f",
            DataType::Timestamp(TimeUnit::Nanosecond, _) => "%Y-%m-%d %H:%M:%S%.9f",
            _ => "%Y-%m-%d %H:%M:%S%.6f",
        };
        let moment = i64::try_from(millis).ok().and_then(timestamp_ms_to_datetime).unwrap_or_default();
        moment.format(form).to_string()
    }

    /// The columns of a table for rows with `schema`: also the load's own.
    pub(crate) fn table_schema(&self, schema: &SchemaRef) -> SchemaRef {
        let time = self.time_type(schema);
        let own = self.own_names().filter(|(_, name)| !self.is_from(name)).map(|(setting, name)| {
            let data_type = if setting == "missing" { DataType::Boolean } else { time.clone() };
            Arc::new(Field::new(name, data_type, true))
        });
        let fields: Vec<FieldRef> = schema.fields().iter().cloned().chain(own).collect();
        Arc::new(Schema::new(fields))
    }

    /// The key of the table: that of the rows, in a history also since when a version is valid.
    pub(crate) fn table_key(&self) -> Vec<String> {
        let from = (self.mode == Mode::History).then(|| self.from().to_owned());
        self.key.iter().cloned().chain(from).collect()
    }

    /// The columns that tell rows of the input apart.
    pub(crate) fn input_key(&self) -> Vec<String> {
        let as_of = self.as_of.filter(|_| self.mode == Mode::History);
        self.key.iter().cloned().chain(as_of.map(str::to_owned)).collect()
    }

    /// Whether a row of the input needs a value in this column.
    pub(crate) fn needs_value(&self, name: &str) -> bool {
        let as_of = self.as_of.filter(|_| self.mode == Mode::History);
        self.mode.needs_key()
            && (self.key.iter().any(|key| key.eq_ignore_ascii_case(name))
                || as_of.is_some_and(|as_of| as_of.eq_ignore_ascii_case(name)))
    }

    /// What becomes of rows that are missing.
    pub(crate) fn missing_rows(&self) -> MissingRows<'a> {
        match self.missing {
            Some(Missing::Delete) => MissingRows::Delete,
            Some(Missing::Flag(flag)) => MissingRows::Flag(flag),
            Some(Missing::Keep) | None => MissingRows::Keep,
        }
    }

    /// The columns of a history, for a run that began at `begin`.
    pub(crate) fn validity<'b>(&self, begin: &'b str) -> Option<Validity<'b>>
    where
        'a: 'b,
    {
        let validity = Validity { from: self.from(), to: self.to(), as_of: self.as_of, begin };
        (self.mode == Mode::History).then_some(validity)
    }

    /// Refuses an input of which something may be missing: rows of the table would wrongly count as missing.
    pub(crate) fn accept(&self, input: &InputFacts, target: &str) -> Result<()> {
        if !self.mode.is_in_step() {
            return Ok(());
        }
        let mode = self.mode.name();
        // Nothing is missing from a table whose rows stay until their files are ready.
        let not_ready = if self.missing_rows() == MissingRows::Keep { 0 } else { input.not_ready };
        let (lacks, hint) = match (input.rejected, input.skipped_units, not_ready) {
            (0, 0, 0) => return Ok(()),
            (0, 0, 1) => ("1 file is not ready".to_owned(), "run the job again when it is"),
            (0, 0, files) => (format!("{files} files are not ready"), "run the job again when all are"),
            (0, units, _) => (format!("{} could not be opened", counted(units, "unit")), FIX_INPUT),
            (records, _, _) => (format!("{} rejected", were(records, "record")), FIX_INPUT),
        };
        Err(Error::refused(format!("{lacks}, and `mode: {mode}` needs all rows; {target} is unchanged"))
            .cause("rows that are left out would count as missing from the input")
            .hint(hint))
    }

    /// Refuses an input without rows, unless that is allowed.
    pub(crate) fn accept_rows(&self, rows: u64, target: &str) -> Result<()> {
        if rows > 0 || !self.mode.is_in_step() || self.empty_input == Some(EmptyInput::Allow) {
            return Ok(());
        }
        Err(Error::refused(format!("no row came for {target}, which is unchanged"))
            .cause("all of its rows would count as missing")
            .hint("check the source; if its rows may all be gone: `empty_input: allow`"))
    }

    /// Refuses to let so many of the `compared` rows go.
    pub(crate) fn accept_deletes(&self, deleted: u64, compared: u64, target: &str) -> Result<()> {
        let most = self.max_deletes.unwrap_or(MAX_DELETES);
        if !most.is_exceeded(deleted, compared) {
            return Ok(());
        }
        let what = format!("{deleted} of {} of {target} are missing from the input", counted(compared, "row"));
        Err(Error::refused(format!("{what}, and at most {most} may be; nothing was changed"))
            .hint("check whether the input is complete; `max_deletes` allows more, and `max_deletes: 100%` all"))
    }

    /// The error of missing rows to which rows of another table of the job refer by `key`.
    pub(crate) fn cascades(&self, found: &TextRows, key: &ForeignKey, target: &str) -> Error {
        let ForeignKey { name, table, on_delete, .. } = key;
        Error::data(format!("rows that are missing from the input cannot be deleted from {target}"))
            .text(shown_keys(self.key, found))
            .cause(format!("rows of {table} refer to them, and its foreign key {name} has ON DELETE {on_delete}"))
            .hint(format!(
                "the job loads {table}, too, and only its own input may change it: leave such rows out of that, or \
                 keep the missing rows: `missing: {{flag: column}}`; rows that go over to another one in this run need \
                 a run with `missing: keep` before"
            ))
    }

    /// The error of rows with the same key in the input.
    pub(crate) fn duplicates(&self, found: &TextRows, target: &str) -> Error {
        let what = match self.as_of {
            Some(as_of) => format!("several rows for {target} have the same key and the same `{as_of}`"),
            None => format!("several rows for {target} have the same key"),
        };
        Error::data(what).text(shown_keys(&self.input_key(), found)).hint(self.duplicate_hint())
    }

    /// What to do about rows with the same key in the input.
    pub(crate) fn duplicate_hint(&self) -> &'static str {
        match (self.mode, self.as_of) {
            (Mode::History, None) => {
                "`mode: history` needs one row for each key: leave the others out (`dedupe`), or name the column since \
                 when each is valid: `as_of`"
            }
            (Mode::History, Some(_)) => {
                "`mode: history` needs one row for each key and time: leave the others out (`dedupe`)"
            }
            _ => "`mode: sync` needs one row for each key: leave the others out (`dedupe`)",
        }
    }

    /// The error of keys that a query has found.
    pub(crate) fn fault(&self, fault: StepFault, found: &TextRows, target: &str, begin: &str) -> Error {
        match fault {
            StepFault::OutsideScope => Error::data(format!("rows for {target} are outside of `scope`"))
                .text(shown_keys(self.key, found))
                .hint("they would not be compared with the rows that are there: filter them out, or widen `scope`"),
            StepFault::KeyOutsideScope => {
                Error::data(format!("{target} has rows with keys of the input outside of `scope`"))
                    .text(shown_keys(self.key, found))
                    .hint("they are not compared, and would be there twice: widen `scope`, or filter the rows out")
            }
            StepFault::NotNewer if self.as_of.is_some() => {
                Error::data(format!("rows for {target} are not newer than the versions that it has"))
                    .text(shown_keys(self.key, found))
                    .hint(
                        "versions are added in the order of `as_of` only: filter older rows out that differ from the \
                         version of their time; a key that was missing and comes again needs a time after the end of \
                         its last version",
                    )
            }
            StepFault::ClockBehind if self.as_of.is_some() => Error::refused(format!(
                "keys are missing from the input, and their versions in {target} cannot end, since they begin later"
            ))
            .text(shown_keys(self.key, found))
            .cause(format!(
                "by `{}` they begin after this run, which would end them at its own time: {begin} in UTC",
                self.as_of.unwrap_or_default()
            ))
            .hint(
                "if the column is not in UTC, convert it; if it lies in the future, run the job again when that time \
                 has passed; `missing: keep` ends no versions",
            ),
            StepFault::NoTime => Error::data(format!("{target} has times that cannot be compared with new ones"))
                .text(shown_keys(self.key, found))
                .cause("SQLite keeps times as texts or numbers, and these have another form than those of Millstream")
                .hint(
                    "write them as `2026-01-31` or `2026-01-31 10:00:00`, in UTC: UPDATE the columns with the \
                     beginning and the end of versions",
                ),
            StepFault::NotNewer | StepFault::ClockBehind => Error::refused(format!(
                "{target} has versions that are not older than this run, which began at {begin}"
            ))
            .text(shown_keys(self.key, found))
            .cause("the clock of this machine is behind, or that of an earlier run was ahead")
            .hint("correct the clock, or `valid_from` of these rows"),
        }
    }
}

/// `1 record was`, `2 records were`.
fn were(count: u64, one: &str) -> String {
    let verb = if count == 1 { "was" } else { "were" };
    format!("{} {verb}", counted(count, one))
}

fn is_time(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Date32 | DataType::Date64 | DataType::Timestamp(..))
}

/// Some keys for a message: `id=1, region=EU; id=2, region=EU; …`.
fn shown_keys(key: &[String], found: &TextRows) -> String {
    let cell = |(name, value): (&String, &Option<String>)| format!("{name}={}", value.as_deref().unwrap_or("null"));
    let row = |row: &Vec<Option<String>>| key.iter().zip(row).map(cell).collect::<Vec<_>>().join(", ");
    let mut shown: Vec<String> = found.iter().take(NAMED).map(row).collect();
    if found.len() > NAMED {
        shown.push("…".to_owned());
    }
    shown.join("; ")
}

/// What the statements of a publishing transaction have changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) inserted: u64,
    pub(crate) updated: u64,
    pub(crate) deleted: u64,
    pub(crate) versions: u64,
    pub(crate) returned: u64,
}

impl Counts {
    /// Adds the rows of a statement.
    pub(crate) fn add(&mut self, counted: Counted, rows: u64) {
        match counted {
            Counted::Nothing | Counted::Merged => {}
            Counted::Inserted => self.inserted += rows,
            Counted::Updated => self.updated += rows,
            Counted::Deleted => self.deleted += rows,
            Counted::Versions => self.versions += rows,
            Counted::Returned => self.returned += rows,
        }
    }

    /// What has changed in the target of a load of `rows` rows; `None` if its mode compares none.
    pub(crate) fn changes(&self, mode: Mode, rows: u64) -> Option<Changes> {
        let Counts { inserted, updated, deleted, versions, returned } = *self;
        match mode {
            // A row beside another one with its key, which stays, is among those that change nothing.
            Mode::Merge | Mode::Sync => {
                Some(Changes { inserted, updated, unchanged: rows.saturating_sub(inserted + updated), deleted })
            }
            Mode::History => Some(Changes {
                inserted: versions.saturating_sub(updated),
                updated: updated + returned,
                unchanged: rows.saturating_sub(versions + returned),
                deleted,
            }),
            Mode::Append | Mode::Replace | Mode::Truncate | Mode::Ignore => None,
        }
    }
}

/// Fails if the table has silently left out some of the `expected` changes of a statement.
pub(crate) fn accept_changed(counted_as: Counted, changed: u64, expected: Option<u64>, target: &str) -> Result<()> {
    let Some(expected) = expected.filter(|expected| changed != *expected) else { return Ok(()) };
    let verb = match counted_as {
        Counted::Deleted => "let go of",
        Counted::Updated | Counted::Returned => "changed",
        _ => "took",
    };
    Err(Error::data(format!("{target} {verb} {changed} of {}", counted(expected, "row")))
        .cause("nothing was refused: a trigger or a rule of the table leaves rows out")
        .hint("nothing was loaded; filter such rows out before, so that the counts match, or drop the trigger"))
}

/// What has changed, for the result line: `2 inserted, 1 updated, 7 unchanged, 1 deleted`.
pub(crate) fn shown(changes: &Changes, mode: Mode, missing: Option<&Missing>) -> String {
    let Changes { inserted, updated, unchanged, deleted } = changes;
    let rows = format!("{inserted} inserted, {updated} updated, {unchanged} unchanged");
    let gone = match (mode, missing) {
        (Mode::Merge, _) | (_, Some(Missing::Keep)) => return rows,
        (_, Some(Missing::Flag(_))) => "flagged",
        (Mode::History, _) => "closed",
        _ => "deleted",
    };
    format!("{rows}, {deleted} {gone}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(max_deletes: Option<MaxRejects>) -> InStepSettings<'static> {
        InStepSettings {
            mode: Mode::Sync,
            key: &[],
            missing: Some(&Missing::Delete),
            scope: None,
            max_deletes,
            empty_input: None,
            valid_from: None,
            valid_to: None,
            as_of: None,
        }
    }

    #[test]
    fn a_limit_says_how_many_rows_may_go() {
        for (most, deleted, compared, allowed) in [
            (None, 10, 100, true),
            (None, 11, 100, false),
            (None, 0, 0, true),
            (None, 1, 9, false),
            (Some(MaxRejects::Share(0.29)), 29, 100, true),
            (Some(MaxRejects::Share(0.29)), 30, 100, false),
            (Some(MaxRejects::Share(1.0)), 9, 9, true),
            (Some(MaxRejects::Share(0.0)), 1, 1_000, false),
            (Some(MaxRejects::Count(3)), 3, 3, true),
            (Some(MaxRejects::Count(3)), 4, 1_000_000, false),
        ] {
            let found = settings(most).accept_deletes(deleted, compared, "table t").is_ok();
            assert_eq!(found, allowed, "{most:?} {deleted} of {compared}");
        }
    }

    #[test]
    fn changes_add_up_to_the_rows() {
        let counts = Counts { inserted: 5, updated: 2, deleted: 1, versions: 5, returned: 1 };
        let sync = counts.changes(Mode::Sync, 10).expect("they are compared");
        assert_eq!(sync, Changes { inserted: 5, updated: 2, unchanged: 3, deleted: 1 });
        let merge = Counts { deleted: 0, ..counts }.changes(Mode::Merge, 10).expect("they are compared");
        assert_eq!(merge, Changes { inserted: 5, updated: 2, unchanged: 3, deleted: 0 });
        // Of five versions two follow others, and one row was flagged.
        let history = counts.changes(Mode::History, 10).expect("they are compared");
        assert_eq!(history, Changes { inserted: 3, updated: 3, unchanged: 4, deleted: 1 });
        assert_eq!(counts.changes(Mode::Append, 10), None);
    }

    #[test]
    fn keys_are_named_up_to_a_limit() {
        let key = ["id".to_owned(), "r".to_owned()];
        let row = |id: usize| vec![Some(id.to_string()), None];
        assert_eq!(shown_keys(&key, &vec![row(1), row(2)]), "id=1, r=null; id=2, r=null");
        assert!(shown_keys(&key, &(0..6).map(row).collect()).ends_with("id=4, r=null; …"));
    }
}
