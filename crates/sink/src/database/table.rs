//! Compares an existing table with the rows. The servers provide the facts about tables, and the types of new columns.

use arrow::datatypes::{FieldRef, SchemaRef};
use millstream_core::Error;
use millstream_core::hint::did_you_mean;
use millstream_core::types::type_name;
use millstream_database::family::{Family, Fit, fit, holds};
use millstream_database::table::{ColumnFacts, TableFacts};

use super::spec::{DatabaseSpec, Mode, SchemaChange};

/// Changes to a table so that it fits the rows.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Fields without a column.
    pub(crate) added: Vec<FieldRef>,
    /// Fields whose column is too narrow, with the column.
    pub(crate) widened: Vec<(ColumnFacts, FieldRef)>,
}

/// The error if the table is missing, although a load that is resumed has rows in it.
pub(crate) fn is_gone(target: &str) -> Error {
    Error::refused(format!("{target} is not there, and parts of this load were in it"))
        .cause("the table was dropped or renamed, and the ledger still says that they are loaded")
        .hint("restore it, or load everything again: `--restart`")
}

/// Faults of the rows' columns, for any table.
pub(crate) fn schema_faults(
    product: &str,
    most: usize,
    key: &[String],
    order_by: &[String],
    schema: &SchemaRef,
) -> Vec<Error> {
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    let mut faults = Vec::new();
    if names.is_empty() || names.len() > most {
        let what = format!("a table of {} columns, and {product} allows 1 to {most}", names.len());
        faults.push(Error::refused(what).hint("select the columns that the table needs"));
    }
    for (index, name) in names.iter().enumerate() {
        if let Some(other) = names[..index].iter().find(|other| other.eq_ignore_ascii_case(name)) {
            let what = format!("{product} cannot tell the columns `{other}` and `{name}` apart");
            faults.push(Error::refused(what).column(*name).hint("give one of them another name: SELECT x AS y"));
        }
        if name.contains('\0') {
            faults.push(Error::refused("a column's name holds a NUL byte").column(*name));
        }
    }
    for (what, columns) in [("key", key), ("order", order_by)] {
        for column in columns {
            if !names.iter().any(|name| name.eq_ignore_ascii_case(column)) {
                let told = format!("the {what} column `{column}` is not among the columns that are loaded");
                let directed = column.rsplit_once(' ').filter(|(name, _)| names.contains(name));
                let hint = match directed {
                    Some((name, word)) => format!("`{word}` is not a direction: `{name} desc` or `{name} asc`"),
                    None => did_you_mean(column, "columns", &names),
                };
                faults.push(Error::job(told).text(column).hint(hint));
            }
        }
    }
    faults
}

/// All faults of the table, which is to have the columns of `schema`, and the necessary changes.
pub(crate) fn compare(
    target: &str,
    spec: &DatabaseSpec,
    schema: &SchemaRef,
    facts: &TableFacts,
    family: impl Fn(&FieldRef) -> Family,
    unique_index: impl Fn() -> String,
) -> Result<Changes, Vec<Error>> {
    if let Some(other) = &facts.other {
        let what = format!("{target} is {other}, not a table");
        return Err(vec![Error::refused(what).hint("load into a table of another name")]);
    }
    let mut faults = Vec::new();
    if spec.mode == Mode::Replace {
        faults.extend(facts.dependents.iter().map(|dependent| {
            Error::refused(format!("{target} cannot be replaced by a new table"))
                .cause(format!("{dependent} depends on it"))
                .hint("`mode: truncate` keeps the table and replaces its rows")
        }));
        return if faults.is_empty() { Ok(Changes::default()) } else { Err(faults) };
    }
    if let Some(cause) = &facts.unsafe_engine {
        let what = format!("a load into {target} could not be rolled back");
        faults.push(Error::refused(what).cause(cause).hint("ALTER TABLE … ENGINE=InnoDB, or load into another table"));
    }
    let mut changes = Changes::default();
    for field in schema.fields() {
        column_fault(target, spec, facts, field, family(field), &mut changes, &mut faults);
    }
    faults.extend(flag_fault(target, spec, schema, facts, &family));
    for column in facts.columns.iter().filter(|column| column.required) {
        if !schema.fields().iter().any(|field| field.name().eq_ignore_ascii_case(&column.name)) {
            faults.push(
                Error::refused(format!("{target} needs a value in the column `{}`, and none is loaded", column.name))
                    .column(&column.name)
                    .hint("it is NOT NULL and has no default: select a value for it"),
            );
        }
    }
    let has_key = |key: &String| schema.fields().iter().any(|field| field.name().eq_ignore_ascii_case(key));
    let key = spec.in_step().table_key();
    if spec.mode.needs_key() && key.iter().all(has_key) && !facts.has_unique_key(&key) {
        faults.push(
            Error::refused(format!("{target} has no unique key of exactly the columns {}", key.join(", ")))
                .cause("rows are identified by a primary key or a unique index")
                .hint(unique_index()),
        );
    }
    if faults.is_empty() { Ok(changes) } else { Err(faults) }
}

/// The fault of a column for flags that is no boolean where the database has these: it could not be asked.
fn flag_fault(
    target: &str,
    spec: &DatabaseSpec,
    schema: &SchemaRef,
    facts: &TableFacts,
    family: impl Fn(&FieldRef) -> Family,
) -> Option<Error> {
    let flag = spec.in_step().flag()?;
    let field = schema.fields().iter().find(|field| field.name().eq_ignore_ascii_case(flag))?;
    let known = facts.column(flag).filter(|column| family(field) == Family::Bool && column.family != Family::Bool)?;
    let what = format!("the column `{}` of {target} is {}", known.name, known.declared);
    let hint = "`missing: {flag: …}` needs a boolean column";
    Some(Error::refused(what).column(&known.name).hint(hint))
}

fn column_fault(
    target: &str,
    spec: &DatabaseSpec,
    facts: &TableFacts,
    field: &FieldRef,
    wider: Family,
    changes: &mut Changes,
    faults: &mut Vec<Error>,
) {
    let name = field.name();
    let evolves = spec.schema == SchemaChange::Evolve;
    let Some(column) = facts.column(name) else {
        if evolves {
            changes.added.push(FieldRef::clone(field));
            return;
        }
        let known: Vec<&str> = facts.columns.iter().map(|column| column.name.as_str()).collect();
        let hint = format!("{}; or add it with `schema: evolve`", did_you_mean(name, "its columns", &known));
        faults.push(Error::refused(format!("{target} has no column `{name}`")).column(name).hint(hint));
        return;
    };
    if column.generated {
        faults.push(
            Error::refused(format!("the column `{name}` of {target} is computed by the server"))
                .column(name)
                .hint("leave it out of the columns that are loaded"),
        );
        return;
    }
    let what = |why: &str| {
        format!(
            "the column `{name}` of {target} is {}, and the rows have {}: {why}",
            column.declared,
            type_name(field.data_type())
        )
    };
    match fit(field.data_type(), column.family) {
        Fit::Whole => {}
        Fit::Narrow if evolves && !column.is_domain && holds(wider, column.family) => {
            changes.widened.push((column.clone(), FieldRef::clone(field)));
        }
        Fit::Narrow if evolves => {
            faults.push(Error::refused(what("no type holds all values of both kinds")).column(name).hint(
                "CAST it to the column's type, which reports the rows that do not fit; or change the column by hand",
            ))
        }
        Fit::Narrow => faults.push(Error::refused(what("some values would not fit")).column(name).hint(
            "CAST it to the column's type, which reports the rows that do not fit; or widen the column: `schema: \
             evolve`",
        )),
        Fit::None => faults
            .push(Error::refused(what("another kind of value")).column(name).hint("CAST it to the type of the column")),
    }
}
