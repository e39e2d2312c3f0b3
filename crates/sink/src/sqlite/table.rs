//! The table: its definition, its comparison with the rows, and the statements of a load. `millstream-database` has the
//! types of columns.

use arrow::datatypes::{DataType, SchemaRef};
use millstream_core::hint::did_you_mean;
use millstream_core::types::type_name;
use millstream_core::{Error, Result};
use millstream_database::in_step::{self, InStep, StepDialect};
use millstream_database::sqlite::{Affinity, NUMERIC_DIGITS, SqliteDialect, column_type, decimal_digits};
use millstream_database::{Dialect, Order, precedes, quoted_list};
use rusqlite::{Connection, OptionalExtension};

use super::message::{place, sqlite_error};
use super::spec::SqliteSpec;
use crate::database::spec::{Mode, SchemaChange};

/// The most columns of SQLite, as it is built.
const MAX_COLUMNS: usize = 2_000;
/// The most variables in one statement.
const MAX_VARIABLES: usize = 32_766;
/// The most rows in one statement: more rows gain nothing.
const MAX_ROWS: usize = 64;

/// A column of a table that exists.
#[derive(Debug)]
struct Column {
    name: String,
    declared: String,
    affinity: Affinity,
    required: bool,
    key: bool,
    generated: bool,
}

/// Why the column would change some values of a type.
fn affinity_fault(affinity: Affinity, declared: &str, data_type: &DataType) -> Option<&'static str> {
    let is_float = matches!(data_type, DataType::Float16 | DataType::Float32 | DataType::Float64);
    let is_long_decimal = decimal_digits(data_type).is_some_and(|digits| digits > NUMERIC_DIGITS);
    let is_text = matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    // Text is also allowed in columns of declared types that SQLite does not know: dates, JSON.
    let declared = declared.to_ascii_uppercase();
    let is_number = affinity != Affinity::Numeric || declared.contains("NUM") || declared.contains("DEC");
    match (affinity, data_type) {
        (_, DataType::Dictionary(_, values)) => affinity_fault(affinity, &declared, values),
        (Affinity::Text, _) if is_float => Some("SQLite would keep only the first digits of it"),
        (Affinity::Real, DataType::Int64 | DataType::UInt64) => Some("a float holds whole numbers up to 2⁵³"),
        (Affinity::Integer | Affinity::Real | Affinity::Numeric, _) if is_long_decimal => {
            Some("a number holds 15 digits")
        }
        (Affinity::Integer | Affinity::Real | Affinity::Numeric, _) if is_text && is_number => {
            Some("text that looks like a number would become one, without its zeros and signs")
        }
        _ => None,
    }
}

/// Whether SQLite would convert `text` to a number that is written differently.
pub(super) fn becomes_another(text: &str) -> bool {
    let number = text.trim_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    let looks_like_one = number.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    if !looks_like_one || !number.bytes().any(|byte| byte.is_ascii_digit()) {
        return false;
    }
    let Ok(real) = number.parse::<f64>() else { return false };
    let is_whole = text.parse::<i64>().is_ok_and(|whole| whole.to_string() == text);
    let is_short = text.contains('.') && text.len() <= usize::from(NUMERIC_DIGITS) && real.to_string() == text;
    !is_whole && !is_short
}

/// The statement that creates the table.
pub(super) fn create_statement(spec: &SqliteSpec, schema: &SchemaRef) -> String {
    let (schema, key) = (spec.in_step().table_schema(schema), spec.in_step().table_key());
    let is_key = |name: &str| key.iter().any(|key| key.eq_ignore_ascii_case(name));
    let mut lines: Vec<String> = schema
        .fields()
        .iter()
        .map(|field| {
            // Unlike other databases, SQLite would allow NULL in a primary key.
            let required = if is_key(field.name()) { " NOT NULL" } else { "" };
            format!("  {} {}{required}", SqliteDialect.quoted(field.name()), column_type(field.data_type()))
        })
        .collect();
    if !key.is_empty() {
        lines.push(format!("  PRIMARY KEY ({})", quoted_list(&SqliteDialect, &key)));
    }
    format!("CREATE TABLE {} (\n{}\n)", SqliteDialect.quoted(&spec.table), lines.join(",\n"))
}

/// How many rows one statement inserts.
pub(super) fn rows_in_statement(schema: &SchemaRef) -> usize {
    (MAX_VARIABLES / schema.fields().len().max(1)).clamp(1, MAX_ROWS)
}

/// Where a statement inserts rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Destination {
    /// Into the table.
    Table,
    /// Into the table in which rows are gathered.
    Gathering,
    /// Into the table, to be rolled back: this tests the checks of single rows, but not keys.
    Trial,
}

/// Which rows a merge writes of those whose key exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Merged {
    /// Those that differ. The columns in `as_given` keep values as they are given: `1` and `1.0` are two values.
    Differing { as_given: Vec<String> },
    /// All of them.
    All,
    /// Those that differ, and come first in the declared order, or stand equal.
    Newer { as_given: Vec<String> },
}

impl Default for Merged {
    fn default() -> Self {
        Merged::Differing { as_given: Vec::new() }
    }
}

impl Merged {
    /// Of a load into the existing table. Its triggers may drop rows: then each row has to be written.
    pub(super) fn of(connection: &Connection, spec: &SqliteSpec) -> rusqlite::Result<Self> {
        if may_drop(connection, spec)? {
            return Ok(Merged::All);
        }
        let columns = columns(connection, &spec.table)?.into_iter();
        let as_given = columns.filter(|column| column.affinity == Affinity::Blob).map(|column| column.name);
        Ok(Merged::Differing { as_given: as_given.collect() })
    }

    /// The same, of rows that do not come behind the stored one in the declared order.
    pub(super) fn newer(self) -> Self {
        match self {
            Merged::Differing { as_given } | Merged::Newer { as_given } => Merged::Newer { as_given },
            Merged::All => Merged::Newer { as_given: Vec::new() },
        }
    }

    /// The condition for rows that are written, of those whose key exists, by the columns `names` beside the key.
    fn condition(&self, spec: &SqliteSpec, names: &[&String]) -> String {
        let table = SqliteDialect.quoted(&spec.table);
        let (Merged::Differing { as_given } | Merged::Newer { as_given }) = self else { return String::new() };
        let differs = |name: &&String| {
            let (old, new) = (column_of(&table, name), column_of("excluded", name));
            match as_given.iter().any(|column| column.eq_ignore_ascii_case(name)) {
                true => SqliteDialect.differs(&old, &new, None),
                // The new value may not have been converted for the column yet. The sign lets the comparison do it.
                false => format!("{old} IS NOT +{new} COLLATE BINARY"),
            }
        };
        let differ = names.iter().map(differs).collect::<Vec<_>>().join(" OR ");
        let Merged::Newer { .. } = self else { return format!(" WHERE {differ}") };
        let stored_first =
            precedes(&Order::all(&spec.order_by), |column| [column_of(&table, column), column_of("excluded", column)]);
        format!(" WHERE ({differ}) AND {stored_first} IS NOT TRUE")
    }
}

fn column_of(table: &str, name: &str) -> String {
    format!("{table}.{}", SqliteDialect.quoted(name))
}

impl Destination {
    /// Where the rows of a load go.
    pub(super) fn of(spec: &SqliteSpec) -> Self {
        if is_gathered(spec) { Destination::Gathering } else { Destination::Table }
    }
}

/// The statement that inserts `rows` rows. `OR ABORT` overrides an `ON CONFLICT IGNORE` of the table, which would
/// silently drop rows.
pub(super) fn insert_statement(
    spec: &SqliteSpec,
    schema: &SchemaRef,
    rows: usize,
    into: Destination,
    merged: &Merged,
) -> String {
    let count = schema.fields().len();
    let values = format!("({})", vec!["?"; count].join(", "));
    let values = vec![values.as_str(); rows].join(", ");
    let (names, table) = (column_list(schema), SqliteDialect.quoted(&spec.table));
    match into {
        Destination::Gathering => format!("INSERT INTO {} ({names}) VALUES {values}", gathering(spec)),
        Destination::Trial => {
            format!("INSERT OR ABORT INTO {table} ({names}) VALUES {values} ON CONFLICT DO NOTHING")
        }
        Destination::Table => {
            format!("INSERT OR ABORT INTO {table} ({names}) VALUES {values}{}", on_conflict(spec, schema, merged))
        }
    }
}

fn column_list(schema: &SchemaRef) -> String {
    quoted_list(&SqliteDialect, schema.fields().iter().map(|field| field.name()))
}

/// The clause for a row whose key exists.
fn on_conflict(spec: &SqliteSpec, schema: &SchemaRef, merged: &Merged) -> String {
    if !spec.mode.has_order() {
        return String::new();
    }
    let key = quoted_list(&SqliteDialect, &spec.key);
    if drops_rows(spec, schema) {
        return format!(" ON CONFLICT ({key}) DO NOTHING");
    }
    let names: Vec<&String> =
        schema.fields().iter().map(|field| field.name()).filter(|name| !is_key(spec, name)).collect();
    let set = |name: &&String| format!("{} = {}", SqliteDialect.quoted(name), column_of("excluded", name));
    let changed: Vec<String> = names.iter().map(set).collect();
    let condition = merged.condition(spec, &names);
    format!(" ON CONFLICT ({key}) DO UPDATE SET {}{condition}", changed.join(", "))
}

/// Whether rows are gathered first, since an order decides which of several rows with one key stays, or all of them are
/// compared with the table.
pub(super) fn is_gathered(spec: &SqliteSpec) -> bool {
    !spec.order_by.is_empty() || spec.mode.is_in_step()
}

/// The name of a table of ours for the load.
fn own_table(spec: &SqliteSpec, what: &str) -> String {
    format!("_millstream_{what}_{}", spec.table)
}

/// The table as it is kept in step with gathered rows of the columns `columns`, by a run that began at `begin`, as a
/// part of what `tables` names.
pub(super) fn in_step<'a>(spec: &'a SqliteSpec, tables: &'a OwnTables, columns: &'a [String]) -> InStep<'a> {
    InStep {
        dialect: &SqliteDialect,
        target: &tables.target,
        staging: &tables.gathering,
        versions: &tables.versions,
        key: &spec.key,
        columns,
        facts: None,
        missing: spec.in_step().missing_rows(),
        scope: spec.scope.as_deref(),
        validity: spec.in_step().validity(&tables.begin),
        may_drop: false,
    }
}

/// The tables of a load that keeps one in step, as SQL text.
pub(super) struct OwnTables {
    target: String,
    pub(super) gathering: String,
    pub(super) versions: String,
    /// The index of gathered rows.
    pub(super) index: String,
    /// When the run began.
    pub(super) begin: String,
}

impl OwnTables {
    /// Of a run that began at `begin`.
    pub(super) fn new(spec: &SqliteSpec, begin: &str) -> Self {
        OwnTables {
            target: SqliteDialect.quoted(&spec.table),
            gathering: gathering(spec),
            versions: SqliteDialect.quoted(&own_table(spec, "versions")),
            index: SqliteDialect.quoted(&own_table(spec, "keys")),
            begin: begin.to_owned(),
        }
    }
}

/// The name of the table in which rows are gathered.
pub(super) fn gathering(spec: &SqliteSpec) -> String {
    SqliteDialect.quoted(&own_table(spec, "rows"))
}

/// The statements that create the table in which rows are gathered, with the affinities of the target's columns.
pub(super) fn gathering_statements(
    connection: &Connection,
    spec: &SqliteSpec,
    schema: &SchemaRef,
) -> rusqlite::Result<Vec<String>> {
    let names: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
    let tables = OwnTables::new(spec, "");
    let drop = |name: &str| format!("DROP TABLE IF EXISTS {name}");
    if !spec.mode.is_in_step() {
        let columns = quoted_list(&SqliteDialect, &names);
        let (name, target) = (&tables.gathering, &tables.target);
        return Ok(vec![drop(name), format!("CREATE TABLE {name} AS SELECT {columns} FROM {target} WHERE false")]);
    }
    let mut statements =
        vec![drop(&tables.gathering), compared_table(connection, spec, schema, &tables.gathering, &names)?];
    let versions = in_step(spec, &tables, &names).version_columns();
    if !versions.is_empty() {
        statements.push(drop(&tables.versions));
        statements.push(compared_table(connection, spec, schema, &tables.versions, &versions)?);
    }
    Ok(statements)
}

/// The statement that creates a table of rows that are compared with the target's. So its keys have the collations of
/// the target's, which `CREATE TABLE … AS` would leave out.
fn compared_table(
    connection: &Connection,
    spec: &SqliteSpec,
    schema: &SchemaRef,
    name: &str,
    names: &[String],
) -> rusqlite::Result<String> {
    let (known, schema) = (columns(connection, &spec.table)?, spec.in_step().table_schema(schema));
    let mut lines = Vec::new();
    for column in names {
        let declared = match known.iter().find(|known| known.name.eq_ignore_ascii_case(column)) {
            Some(known) => affinity_type(known.affinity),
            // It is new.
            None => schema.field_with_name(column).map_or("", |field| column_type(field.data_type())),
        };
        let key = if is_key(spec, column) { collation(connection, spec, column)? } else { None };
        let collate = key.map_or(String::new(), |name| format!(" COLLATE {}", SqliteDialect.quoted(&name)));
        lines.push(format!("{} {declared}{collate}", SqliteDialect.quoted(column)));
    }
    Ok(format!("CREATE TABLE {name} ({})", lines.join(", ")))
}

/// A declared type with this affinity.
fn affinity_type(affinity: Affinity) -> &'static str {
    match affinity {
        Affinity::Text => "TEXT",
        Affinity::Integer => "INTEGER",
        Affinity::Real => "REAL",
        Affinity::Numeric => "NUMERIC",
        Affinity::Blob => "BLOB",
    }
}

/// The statement that creates a temporary table in which rows are gathered, with the affinities of the target's
/// columns.
pub(super) fn temporary_gathering(spec: &SqliteSpec, schema: &SchemaRef) -> String {
    let (name, target) = (gathering(spec), SqliteDialect.quoted(&spec.table));
    format!("CREATE TEMP TABLE {name} AS SELECT {} FROM {target} WHERE false", column_list(schema))
}

/// The statement that moves gathered rows into the table: of a merge the one that stays of each key, so that nothing is
/// written that another row replaces; otherwise all, the one that stays first. `keys` is the key, as the table compares
/// it.
pub(super) fn publish_statement(spec: &SqliteSpec, schema: &SchemaRef, merged: &Merged, keys: &str) -> String {
    let ordered = |order: &Order| {
        let name = SqliteDialect.quoted(&order.column);
        // Nulls come last.
        format!("{name} IS NULL, {name}{}", if order.descending { " DESC" } else { "" })
    };
    let order = Order::all(&spec.order_by).iter().map(ordered).collect::<Vec<_>>().join(", ");
    let (names, from) = (column_list(schema), gathering(spec));
    let rows = match spec.mode {
        Mode::Merge => format!(
            "(SELECT {names}, row_number() OVER (PARTITION BY {keys} ORDER BY {order}, rowid DESC) AS _millstream_n \
             FROM {from}) WHERE _millstream_n = 1"
        ),
        _ => format!("{from} WHERE true ORDER BY {order}, rowid"),
    };
    format!(
        "INSERT OR ABORT INTO {} ({names}) SELECT {names} FROM {rows}{}",
        SqliteDialect.quoted(&spec.table),
        on_conflict(spec, schema, merged)
    )
}

/// The statements that add missing columns to the table, if that is allowed.
pub(super) fn evolving(
    connection: &Connection,
    spec: &SqliteSpec,
    schema: &SchemaRef,
) -> rusqlite::Result<Vec<String>> {
    if spec.schema == SchemaChange::Freeze {
        return Ok(Vec::new());
    }
    let columns = columns(connection, &spec.table)?;
    let schema = spec.in_step().table_schema(schema);
    let is_missing = |name: &str| !columns.iter().any(|column| column.name.eq_ignore_ascii_case(name));
    let missing = schema.fields().iter().filter(|field| is_missing(field.name()));
    let add = missing.map(|field| {
        let (name, kind) = (SqliteDialect.quoted(field.name()), column_type(field.data_type()));
        format!("ALTER TABLE {} ADD COLUMN {name} {kind}", SqliteDialect.quoted(&spec.table))
    });
    Ok(add.collect())
}

/// Whether rows with existing keys are left out: with `ignore`, and in a merge of rows that only have keys.
fn drops_rows(spec: &SqliteSpec, schema: &SchemaRef) -> bool {
    match spec.mode {
        Mode::Ignore => true,
        Mode::Merge => schema.fields().iter().all(|field| is_key(spec, field.name())),
        Mode::Append | Mode::Replace | Mode::Truncate | Mode::Sync | Mode::History => false,
    }
}

/// Whether [`insert_statement`] may write fewer rows than it has: a merge writes only rows that differ.
pub(super) fn may_insert_fewer(spec: &SqliteSpec, schema: &SchemaRef, into: Destination, merged: &Merged) -> bool {
    match into {
        Destination::Table => drops_rows(spec, schema) || (spec.mode == Mode::Merge && *merged != Merged::All),
        Destination::Gathering => false,
        Destination::Trial => true,
    }
}

fn is_key(spec: &SqliteSpec, name: &str) -> bool {
    spec.key.iter().any(|key| key.eq_ignore_ascii_case(name))
}

/// The names of the table's indexes that check no rows, and the statements that create them.
pub(super) fn indexes(connection: &Connection, spec: &SqliteSpec) -> rusqlite::Result<Vec<(String, String)>> {
    // SQLite stores the beginning of the statement in capitals; indexes of keys have no statement.
    let mut query = connection.prepare(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND lower(tbl_name) = lower(?1) AND sql LIKE 'CREATE \
         INDEX %' ORDER BY name",
    )?;
    let indexes = query.query_map([&spec.table], |row| Ok((row.get(0)?, row.get(1)?)))?;
    indexes.collect()
}

/// Faults of the rows' columns, for any table.
pub(super) fn schema_faults(spec: &SqliteSpec, schema: &SchemaRef) -> Vec<Error> {
    let order: Vec<String> = Order::all(&spec.order_by).into_iter().map(|order| order.column).collect();
    let mut faults = crate::database::table::schema_faults("SQLite", MAX_COLUMNS, &spec.key, &order, schema);
    faults.extend(spec.in_step().schema_faults(schema));
    faults
}

/// The kind of an existing object with the table's name: `table`, `view`.
pub(super) fn existing(connection: &Connection, shown: &str, spec: &SqliteSpec) -> Result<Option<String>> {
    connection
        .query_row(
            "SELECT type FROM sqlite_schema WHERE lower(name) = lower(?1) AND type IN ('table', 'view')",
            [&spec.table],
            |row| row.get(0),
        )
        .optional()
        .map_err(|error| sqlite_error("look into", shown, spec, &error))
}

/// All faults of the table for rows of `schema`.
pub(super) fn table_faults(
    connection: &Connection,
    shown: &str,
    spec: &SqliteSpec,
    schema: &SchemaRef,
) -> Result<Vec<Error>> {
    let place = format!("table {} of {shown}", spec.table);
    match existing(connection, shown, spec)?.as_deref() {
        None => return Ok(scope_fault(connection, &place, spec, None, schema).into_iter().collect()),
        Some("table") => {}
        Some(kind) => {
            let what = format!("{} of {shown} is a {kind}, not a table", spec.table);
            return Ok(vec![Error::refused(what).hint("load into a table of another name")]);
        }
    }
    if spec.mode == Mode::Replace {
        return Ok(Vec::new());
    }
    let told = |error| sqlite_error("look into", shown, spec, &error);
    let columns = columns(connection, &spec.table).map_err(told)?;
    let loaded = schema;
    let (schema, table_key) = (spec.in_step().table_schema(schema), spec.in_step().table_key());
    let mut faults = column_faults(&columns, &place, spec, &schema);
    if spec.mode.needs_key() && !has_unique_key(connection, spec, &table_key, &columns).map_err(told)? {
        let key = table_key.join(", ");
        faults.push(
            Error::refused(format!("{place} has no unique key of exactly the columns {key}"))
                .cause("rows are identified by a primary key or a unique index")
                .hint(format!(
                    "CREATE UNIQUE INDEX {} ON {} ({})",
                    SqliteDialect.quoted(&format!("{}_key", spec.table)),
                    SqliteDialect.quoted(&spec.table),
                    quoted_list(&SqliteDialect, &table_key)
                )),
        );
    }
    if faults.is_empty() {
        faults.extend(scope_fault(connection, &place, spec, Some(&columns), loaded));
    }
    Ok(faults)
}

/// The fault of a condition of `scope` that is not one over columns that are loaded. `known` are the table's columns,
/// if it exists.
fn scope_fault(
    connection: &Connection,
    place: &str,
    spec: &SqliteSpec,
    known: Option<&[Column]>,
    schema: &SchemaRef,
) -> Option<Error> {
    let settings = spec.in_step();
    let scope = settings.used_scope()?;
    let target = known.map(|_| SqliteDialect.quoted(&spec.table));
    let find = |name: &str| known?.iter().find(|column| column.name.eq_ignore_ascii_case(name));
    let name_of = |name: &str| find(name).map(|column| column.name.as_str());
    let query = in_step::try_scope(&SqliteDialect, scope, schema, target.as_deref(), name_of);
    let error = connection.prepare(&query).err()?;
    Some(settings.scope_fault(place, &Error::refused(error.to_string())))
}

/// The same for a database that does not exist yet.
pub(super) fn scope_fault_of_new(shown: &str, spec: &SqliteSpec, schema: &SchemaRef) -> Option<Error> {
    let connection = Connection::open_in_memory().ok()?;
    scope_fault(&connection, &place(shown, spec), spec, None, schema)
}

/// Which columns of the rows are text that the table's column could convert to numbers.
pub(super) fn watched(connection: &Connection, spec: &SqliteSpec, schema: &SchemaRef) -> rusqlite::Result<Vec<bool>> {
    let columns = columns(connection, &spec.table)?;
    let is_numeric = |name: &str| {
        let column = columns.iter().find(|column| column.name.eq_ignore_ascii_case(name));
        column.is_some_and(|column| column.affinity == Affinity::Numeric)
    };
    Ok(schema
        .fields()
        .iter()
        .map(|field| column_type(field.data_type()) == "TEXT" && is_numeric(field.name()))
        .collect())
}

/// How many rows the table has, if it is one whose new rows SQLite does not report (`WITHOUT ROWID`).
pub(super) fn unreported_rows(connection: &Connection, spec: &SqliteSpec) -> rusqlite::Result<Option<u64>> {
    let query = "SELECT EXISTS (SELECT 1 FROM pragma_table_list(?1) WHERE wr)";
    if !connection.query_row(query, [&spec.table], |row| row.get::<_, bool>(0))? {
        return Ok(None);
    }
    let count = format!("SELECT count(*) FROM {}", SqliteDialect.quoted(&spec.table));
    connection.query_row(&count, [], |row| row.get::<_, i64>(0)).map(|count| Some(count.unsigned_abs()))
}

/// The columns of a key with the collations by which the table's own keys compare them, as SQL text.
pub(super) fn collated(connection: &Connection, spec: &SqliteSpec, key: &[String]) -> rusqlite::Result<String> {
    let mut collated = Vec::new();
    for column in key {
        let collation = collation(connection, spec, column)?.unwrap_or_else(|| "BINARY".to_owned());
        collated.push(format!("{} COLLATE {}", SqliteDialect.quoted(column), SqliteDialect.quoted(&collation)));
    }
    Ok(collated.join(", "))
}

/// The collation by which the table's own keys compare a column. What an `INTEGER PRIMARY KEY` compares has no index,
/// and no collation.
fn collation(connection: &Connection, spec: &SqliteSpec, column: &str) -> rusqlite::Result<Option<String>> {
    let query = "SELECT x.coll FROM pragma_index_list(?1) l, pragma_index_xinfo(l.name) x WHERE l.\"unique\" AND x.key \
                 AND lower(x.name) = lower(?2) LIMIT 1";
    connection.prepare_cached(query)?.query_row([&spec.table, column], |row| row.get(0)).optional()
}

/// Whether triggers of the table may drop rows. Then each row has to be written, so that those that are not are missed.
pub(super) fn may_drop(connection: &Connection, spec: &SqliteSpec) -> rusqlite::Result<bool> {
    let query = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'trigger' AND lower(tbl_name) = lower(?1) AND \
                 sql LIKE '%IGNORE%')";
    connection.query_row(query, [&spec.table], |row| row.get(0))
}

/// Whether the table checks more in a row than its keys: nulls, constraints, types, triggers.
pub(super) fn checks_rows(connection: &Connection, spec: &SqliteSpec) -> rusqlite::Result<bool> {
    let query = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE lower(tbl_name) = lower(?1) AND (type = 'trigger' OR \
                 (type = 'table' AND sql LIKE '%CHECK%'))) OR EXISTS (SELECT 1 FROM pragma_table_xinfo(?1) WHERE \
                 \"notnull\" AND pk = 0) OR EXISTS (SELECT 1 FROM pragma_table_list(?1) WHERE strict)";
    connection.query_row(query, [&spec.table], |row| row.get(0))
}

fn columns(connection: &Connection, table: &str) -> rusqlite::Result<Vec<Column>> {
    let strict = "SELECT coalesce(max(strict), 0) FROM pragma_table_list(?1)";
    let is_strict: bool = connection.query_row(strict, [table], |row| row.get(0))?;
    let mut statement = connection
        .prepare("SELECT name, type, \"notnull\", dflt_value IS NULL, pk, hidden FROM pragma_table_xinfo(?1)")?;
    let rows = statement.query_map([table], |row| {
        let (declared, key): (String, i64) = (row.get(1)?, row.get(4)?);
        // An INTEGER PRIMARY KEY is the rowid, which SQLite assigns by itself.
        let numbered = key == 1 && declared.eq_ignore_ascii_case("INTEGER");
        Ok(Column {
            name: row.get(0)?,
            affinity: Affinity::of(&declared, is_strict),
            declared,
            required: row.get::<_, bool>(2)? && row.get::<_, bool>(3)? && !numbered,
            key: key > 0,
            generated: row.get::<_, i64>(5)? > 1,
        })
    })?;
    rows.collect()
}

fn column_faults(columns: &[Column], place: &str, spec: &SqliteSpec, schema: &SchemaRef) -> Vec<Error> {
    let mut faults = Vec::new();
    let known: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    for field in schema.fields() {
        let name = field.name();
        match columns.iter().find(|column| column.name.eq_ignore_ascii_case(name)) {
            None if spec.schema == SchemaChange::Evolve => {}
            None => {
                let known = did_you_mean(name, "its columns", &known);
                let hint = format!("{known}; or add it with `schema: evolve`");
                faults.push(Error::refused(format!("{place} has no column `{name}`")).column(name).hint(hint));
            }
            Some(column) if column.generated => faults.push(
                Error::refused(format!("the column `{name}` of {place} is computed by SQLite"))
                    .column(name)
                    .hint("leave it out of the columns that are loaded"),
            ),
            Some(column) => {
                faults.extend(affinity_fault(column.affinity, &column.declared, field.data_type()).map(|why| {
                    let declared = if column.declared.is_empty() { "without a type" } else { &column.declared };
                    let have = type_name(field.data_type());
                    let what = format!("the column `{name}` of {place} is {declared}, and the rows have {have}: {why}");
                    Error::refused(what)
                        .column(name)
                        .hint("CAST it to the type of the column, or declare the column differently")
                }))
            }
        }
    }
    for column in columns.iter().filter(|column| column.required) {
        if !schema.fields().iter().any(|field| field.name().eq_ignore_ascii_case(&column.name)) {
            faults.push(
                Error::refused(format!("{place} needs a value in the column `{}`, and none is loaded", column.name))
                    .column(&column.name)
                    .hint("it is NOT NULL and has no default: select a value for it"),
            );
        }
    }
    faults
}

/// Whether a primary key or a unique index (without a condition) has exactly the columns of the key, in any order.
fn has_unique_key(
    connection: &Connection,
    spec: &SqliteSpec,
    key: &[String],
    columns: &[Column],
) -> rusqlite::Result<bool> {
    let same = |names: &[String]| {
        names.len() == key.len() && names.iter().all(|name| key.iter().any(|key| key.eq_ignore_ascii_case(name)))
    };
    // An INTEGER PRIMARY KEY has no index.
    let primary: Vec<String> = columns.iter().filter(|column| column.key).map(|column| column.name.clone()).collect();
    if same(&primary) {
        return Ok(true);
    }
    let mut indexes =
        connection.prepare("SELECT name FROM pragma_index_list(?1) WHERE \"unique\" = 1 AND partial = 0")?;
    let names: Vec<String> = indexes.query_map([&spec.table], |row| row.get(0))?.collect::<Result<_, _>>()?;
    for index in names {
        let mut statement = connection.prepare("SELECT coalesce(name, '') FROM pragma_index_info(?1)")?;
        let indexed: Vec<String> = statement.query_map([&index], |row| row.get(0))?.collect::<Result<_, _>>()?;
        if same(&indexed) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Each table that a load touches by a foreign key, with the number of its violations before the load.
///
/// SQLite only enforces foreign keys if a connection enables that, and then deletes rows of other tables when a parent
/// row is replaced (ON DELETE CASCADE). So a load does not enable it, and compares the violations before and after.
pub(super) fn foreign_keys(connection: &Connection, spec: &SqliteSpec) -> rusqlite::Result<Vec<(String, u64)>> {
    let mut statement = connection.prepare(
        "SELECT DISTINCT t.name FROM sqlite_schema t, pragma_foreign_key_list(t.name) k
         WHERE t.type = 'table' AND (lower(t.name) = lower(?1) OR lower(k.\"table\") = lower(?1))",
    )?;
    let tables: Vec<String> = statement.query_map([&spec.table], |row| row.get(0))?.collect::<Result<_, _>>()?;
    tables
        .into_iter()
        .map(|table| {
            let emptied =
                matches!(spec.mode, Mode::Replace | Mode::Truncate) && table.eq_ignore_ascii_case(&spec.table);
            let before = if emptied { 0 } else { violations(connection, &table)? };
            Ok((table, before))
        })
        .collect()
}

/// How many rows of the table refer to rows that do not exist.
pub(super) fn violations(connection: &Connection, table: &str) -> rusqlite::Result<u64> {
    let count = "SELECT count(*) FROM pragma_foreign_key_check(?1)";
    connection.query_row(count, [table], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs)
}
