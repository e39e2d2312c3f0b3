//! The target of a load: whether it fits the rows, whether the user may write to it, and changes to it. `table.rs`
//! compares the table with the rows.

use arrow::datatypes::{FieldRef, SchemaRef};
use millstream_core::{Error, Result};
use millstream_database::in_step::{MissingRows, try_scope};
use millstream_database::quoted_list;
use millstream_database::table::{BulkColumn, ColumnFacts, TableFacts};

use crate::database::server::{Connection, Failure, Right, Server, target_of};
use crate::database::spec::{DatabaseSpec, Mode, SchemaChange};
use crate::database::table::{self, Changes};

/// Examines the target; `None` if it does not exist.
pub(crate) async fn examine(
    server: &dyn Server,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
    schema: &SchemaRef,
) -> Result<(Option<TableFacts>, Changes), Vec<Error>> {
    let one = |failure: Failure| vec![failure.into_error()];
    let Some(facts) = connection.describe(&spec.table).await.map_err(one)? else {
        return Ok((None, Changes::default()));
    };
    let schema = &spec.in_step().table_schema(schema);
    let key = quoted_list(server.dialect(), spec.in_step().table_key());
    let index = || {
        format!(
            "CREATE UNIQUE INDEX {} ON {} ({key})",
            server.dialect().quoted("key"),
            server.dialect().table(&spec.table)
        )
    };
    let family = |field: &FieldRef| server.dialect().family(field.data_type(), spec.is_key(field.name()));
    let changes = table::compare(&target_of(server, spec), spec, schema, &facts, family, index)?;
    Ok((Some(facts), changes))
}

/// Checks whether the user may change the existing target, as far as the server tells without waiting for locks.
pub(crate) async fn may_write(
    server: &dyn Server,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
    schema: &SchemaRef,
    facts: &TableFacts,
) -> Result<(), Vec<Error>> {
    // A table that replaces the target belongs to the user.
    if spec.mode == Mode::Replace {
        return Ok(());
    }
    let columns: Vec<&ColumnFacts> = schema.fields().iter().filter_map(|field| facts.column(field.name())).collect();
    let names = |keys: bool| {
        let wanted = columns.iter().filter(|column| keys || !spec.is_key(&column.name));
        wanted.map(|column| column.name.clone()).collect::<Vec<_>>()
    };
    let mut rights = vec![Right::Insert(names(true))];
    let in_step = spec.in_step();
    match spec.mode {
        Mode::Sync => {
            rights.push(Right::Update(names(false)));
            if in_step.missing_rows() == MissingRows::Delete {
                rights.push(Right::Empty { truncates: false });
            }
        }
        Mode::History => rights.push(Right::Update(in_step.validity("").iter().map(|v| v.to.to_owned()).collect())),
        Mode::Merge => rights.push(Right::Update(names(false))),
        Mode::Truncate => {
            rights.push(Right::Empty { truncates: !server.dialect().empty("t", Some(facts)).starts_with("DELETE") })
        }
        _ => {}
    }
    let missing =
        connection.missing_rights(&spec.table, &rights).await.map_err(|failure| vec![failure.into_error()])?;
    let refused = |cause: String| {
        Error::refused(format!("the user may not write to {}", target_of(server, spec)))
            .cause(cause)
            .hint("GRANT the user what is missing")
    };
    if missing.is_empty() { Ok(()) } else { Err(missing.into_iter().map(refused).collect()) }
}

/// Fails if the condition of `scope` is not one over columns that are loaded, before any row is. `facts` are those of
/// the target, if it exists.
pub(crate) async fn check_scope(
    server: &dyn Server,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
    schema: &SchemaRef,
    facts: Option<&TableFacts>,
) -> Result<()> {
    let (dialect, in_step) = (server.dialect(), spec.in_step());
    let Some(scope) = in_step.used_scope() else { return Ok(()) };
    let known = |name: &str| facts.and_then(|facts| facts.column(name)).map(|column| column.name.as_str());
    let target = facts.map(|_| dialect.table(&spec.table));
    let query = try_scope(dialect, scope, schema, target.as_deref(), known);
    match connection.query(&query).await {
        Ok(_) => Ok(()),
        Err(Failure::Other(error)) => Err(in_step.scope_fault(&target_of(server, spec), &error)),
        Err(failure) => Err(failure.into_error()),
    }
}

/// The facts about the target after changing it to fit the rows, if that is allowed; `None` if it does not exist.
pub(super) async fn fitting(
    server: &dyn Server,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
    schema: &SchemaRef,
) -> Result<Option<TableFacts>> {
    let first = |faults: Vec<Error>| faults.into_iter().next().unwrap_or_else(|| Error::internal("a fault of none"));
    let (facts, changes) = examine(server, connection, spec, schema).await.map_err(first)?;
    if change(server, connection, spec, &changes).await? {
        return connection.describe(&spec.table).await.map_err(Failure::into_error);
    }
    Ok(facts)
}

/// Prepares the target for direct loading; creates it if it does not exist.
pub(crate) async fn ready_target(
    server: &dyn Server,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
    schema: &SchemaRef,
) -> Result<TableFacts> {
    if let Some(facts) = fitting(server, connection, spec, schema).await? {
        return Ok(facts);
    }
    let create = server.dialect().create_table(&server.dialect().table(&spec.table), schema, &spec.key, false);
    let made = connection.execute(&create).await;
    // Another run of the same load may have just created it.
    match fitting(server, connection, spec, schema).await? {
        Some(facts) => Ok(facts),
        None => Err(match made {
            Err(failure) => cannot_make(failure.into_error(), spec),
            Ok(_) => Error::transient(format!("{} was dropped while it was created", target_of(server, spec))),
        }),
    }
}

/// Changes the target to fit the rows. Returns whether there was anything to change.
async fn change(
    server: &dyn Server,
    connection: &mut dyn Connection,
    spec: &DatabaseSpec,
    changes: &Changes,
) -> Result<bool> {
    if spec.schema == SchemaChange::Freeze || (changes.added.is_empty() && changes.widened.is_empty()) {
        return Ok(false);
    }
    let typed = |field: &FieldRef| server.dialect().column_type(field.data_type(), spec.is_key(field.name()));
    let added: Vec<_> = changes.added.iter().map(|field| (field.name().clone(), typed(field))).collect();
    let widened: Vec<_> = changes.widened.iter().map(|(column, field)| (column.clone(), typed(field))).collect();
    for statement in server.dialect().alter(&server.dialect().table(&spec.table), &added, &widened) {
        connection.execute(&statement).await.map_err(Failure::into_error)?;
    }
    Ok(true)
}

/// Adds a hint on what still works if the user may not create tables.
pub(super) fn cannot_make(error: Error, spec: &DatabaseSpec) -> Error {
    let denied = error.cause_text().is_some_and(|cause| cause.contains("denied"));
    if !denied {
        return error;
    }
    let hint = match spec.mode {
        Mode::Append => {
            "the user may not create tables: `mode: append` into an existing table works without that right, with \
             `connections: 1`"
        }
        _ => {
            "the user may not create tables, which this mode needs: GRANT CREATE (and DROP, ALTER), or use `mode: \
             append` into an existing table"
        }
    };
    error.hint(hint)
}

/// The facts about a table that is created for the rows.
pub(crate) fn expected_facts(server: &dyn Server, spec: &DatabaseSpec, schema: &SchemaRef) -> TableFacts {
    let dialect = server.dialect();
    let (schema, key) = (spec.in_step().table_schema(schema), spec.in_step().table_key());
    let column = |field: &FieldRef| {
        let is_key = key.iter().any(|key| key.eq_ignore_ascii_case(field.name()));
        ColumnFacts {
            name: field.name().clone(),
            declared: dialect.column_type(field.data_type(), is_key),
            family: dialect.family(field.data_type(), is_key),
            is_domain: false,
            nullable: !is_key,
            required: false,
            generated: false,
            replaces_null: false,
            rest: String::new(),
        }
    };
    let columns = schema.fields().iter().map(column).collect();
    TableFacts { columns, unique: vec![key], ..TableFacts::default() }
}

/// The columns of the target that the rows are sent into.
pub(crate) fn bulk_columns(
    server: &dyn Server,
    spec: &DatabaseSpec,
    schema: &SchemaRef,
    facts: Option<&TableFacts>,
) -> Vec<BulkColumn> {
    let facts = facts.filter(|_| spec.mode != Mode::Replace);
    let column = |field: &FieldRef| match facts.and_then(|facts| facts.column(field.name())) {
        Some(column) => {
            let replaces_null = column.replaces_null;
            BulkColumn { replaces_null, ..BulkColumn::new(&column.name, column.family) }
        }
        None => BulkColumn::new(field.name(), server.dialect().family(field.data_type(), spec.is_key(field.name()))),
    };
    schema.fields().iter().map(column).collect()
}
