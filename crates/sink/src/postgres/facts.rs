//! Queries facts about a table: its columns and keys, its indexes, its dependents, and the user's rights.

use millstream_core::Error;
use millstream_database::Dialect;
use millstream_database::postgres::{PostgresDialect, family, parts, schema_of};
use millstream_database::table::{ColumnFacts, ForeignKey, Index, TableFacts};

use crate::database::server::{Connection, Failure, Right};

/// The facts about a table, if it exists.
pub(super) async fn describe(connection: &mut dyn Connection, table: &str) -> Result<Option<TableFacts>, Failure> {
    let (_, name) = parts(table);
    let query = format!(
        "SELECT c.oid, c.relkind, c.relkind = 'p' OR c.relhasrules OR EXISTS (SELECT 1 FROM pg_trigger g WHERE \
         g.tgrelid = c.oid AND NOT g.tgisinternal) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE \
         n.nspname = {} AND c.relname = {} AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S', 'i')",
        schema_of(table),
        PostgresDialect.literal(name)
    );
    let Some(row) = connection.query(&query).await?.into_iter().next() else {
        return place_for(connection, table).await.map(|()| None);
    };
    let mut cells = row.into_iter().map(Option::unwrap_or_default);
    let mut next = || cells.next().unwrap_or_default();
    let (oid, kind, may_drop) = (next(), next(), next() == "t");
    let other = match kind.as_str() {
        "r" | "p" => None,
        "v" => Some("a view"),
        "m" => Some("a materialized view"),
        "f" => Some("a foreign table"),
        _ => Some("no table"),
    };
    if let Some(other) = other {
        return Ok(Some(TableFacts { other: Some(other.to_owned()), ..TableFacts::default() }));
    }
    Ok(Some(TableFacts {
        other: None,
        unsafe_engine: None,
        has_more: true,
        may_drop,
        dependents: dependents(connection, &oid).await?,
        columns: columns(connection, &oid).await?,
        unique: unique_keys(connection, &oid).await?,
        checks: checks(connection, &oid).await?,
        refers_to: refers_to(connection, &oid).await?,
        name: oid,
    }))
}

/// The rights on the quoted `table` that the user lacks.
pub(super) async fn missing_rights(
    connection: &mut dyn Connection,
    table: &str,
    rights: &[Right],
) -> Result<Vec<String>, Failure> {
    let mut missing = Vec::new();
    for right in rights {
        let (word, columns) = match right {
            Right::Insert(columns) => ("INSERT", columns.as_slice()),
            Right::Update(columns) => ("UPDATE", columns.as_slice()),
            Right::Empty { truncates } => (if *truncates { "TRUNCATE" } else { "DELETE" }, &[][..]),
        };
        let of_table = format!("has_table_privilege({}::regclass, '{word}')", PostgresDialect.literal(table));
        let query = match right {
            Right::Empty { .. } => format!("SELECT '' WHERE NOT {of_table}"),
            _ => {
                let names: Vec<String> = columns.iter().map(|name| PostgresDialect.literal(name)).collect();
                format!(
                    "SELECT name FROM unnest(ARRAY[{}]::text[]) name WHERE NOT has_column_privilege({}::regclass, \
                     name, '{word}')",
                    names.join(", "),
                    PostgresDialect.literal(table)
                )
            }
        };
        let refused: Vec<String> = connection.query(&query).await?.into_iter().flatten().flatten().collect();
        if !refused.is_empty() {
            let of_columns = match refused.len() == columns.len() || columns.is_empty() {
                true => String::new(),
                false => format!(" of {}", refused.join(", ")),
            };
            missing.push(format!("permission denied for {word}{of_columns}"));
        }
    }
    Ok(missing)
}

/// Checks whether a table could be created: there is a schema, and the user may create tables in it.
async fn place_for(connection: &mut dyn Connection, table: &str) -> Result<(), Failure> {
    let schema = schema_of(table);
    let query = format!(
        "SELECT n.nspname, has_schema_privilege(n.oid, 'CREATE') FROM pg_namespace n WHERE n.nspname = {schema}"
    );
    let found = connection.query(&query).await?.into_iter().next();
    let mut cells = found.into_iter().flatten().flatten();
    let error = match (parts(table).0, cells.next(), cells.next().as_deref()) {
        (_, Some(_), Some("t")) => return Ok(()),
        (_, Some(schema), _) => Error::refused(format!("there is no table {table}, and the user may not create it"))
            .cause(format!("permission denied for schema {schema}"))
            .hint(format!("load into an existing table; or GRANT CREATE ON SCHEMA {schema} TO the user")),
        (Some(schema), None, _) => Error::refused(format!("there is no schema {schema} for the table {table}"))
            .hint(format!("check its name; or CREATE SCHEMA {}", PostgresDialect.quoted(schema))),
        (None, None, _) => Error::refused(format!("there is no schema for the table {table}"))
            .cause("no schema in the user's search path exists")
            .hint("name one: `table: schema.name`"),
    };
    Err(Failure::Other(error))
}

/// The CHECK constraints, with the server's definitions.
async fn checks(connection: &mut dyn Connection, oid: &str) -> Result<Vec<String>, Failure> {
    let query = format!(
        "SELECT format('CONSTRAINT %I %s', conname, pg_get_constraintdef(oid)) FROM pg_constraint WHERE conrelid = \
         {oid} AND contype = 'c'"
    );
    Ok(connection.query(&query).await?.into_iter().flatten().flatten().collect())
}

/// The indexes that check no rows, and that their definition describes fully: not those of a constraint or of a
/// partitioned table, in another tablespace, or with a flag or comment. Their names are quoted, with their schema.
pub(super) async fn indexes(connection: &mut dyn Connection, table: &str) -> Result<Vec<Index>, Failure> {
    let query = format!(
        "SELECT format('%I.%I', n.nspname, x.relname), pg_get_indexdef(i.indexrelid) FROM pg_index i JOIN pg_class x \
         ON x.oid = i.indexrelid JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = {} AND c.relname = {} AND c.relkind = 'r' AND NOT i.indisunique AND i.indisvalid AND NOT \
         i.indisclustered AND NOT i.indisreplident AND x.reltablespace = 0 AND NOT EXISTS (SELECT 1 FROM pg_constraint \
         k WHERE k.conindid = x.oid) AND obj_description(x.oid, 'pg_class') IS NULL AND NOT EXISTS (SELECT 1 FROM \
         pg_inherits h WHERE h.inhrelid = x.oid) ORDER BY 1",
        schema_of(table),
        PostgresDialect.literal(parts(table).1)
    );
    let rows = connection.query(&query).await?.into_iter();
    let index = |row: Vec<Option<String>>| {
        let mut cells = row.into_iter().flatten();
        Some(Index { name: cells.next()?, definition: cells.next()? })
    };
    Ok(rows.filter_map(index).collect())
}

/// Objects that would be lost or broken if the table was dropped.
async fn dependents(connection: &mut dyn Connection, oid: &str) -> Result<Vec<String>, Failure> {
    let query = format!(
        "SELECT DISTINCT 'the view ' || v.relname FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid JOIN pg_class \
         v ON v.oid = r.ev_class WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass AND \
         d.refobjid = {oid} AND v.oid <> {oid} UNION SELECT 'a foreign key of table ' || c.relname FROM pg_constraint \
         k JOIN pg_class c ON c.oid = k.conrelid WHERE k.contype = 'f' AND k.confrelid = {oid} AND k.conrelid <> {oid} \
         ORDER BY 1"
    );
    Ok(connection.query(&query).await?.into_iter().flatten().flatten().collect())
}

/// The tables to which this one refers, by their numbers.
async fn refers_to(connection: &mut dyn Connection, oid: &str) -> Result<Vec<String>, Failure> {
    let query = format!(
        "SELECT DISTINCT confrelid FROM pg_constraint WHERE contype = 'f' AND conrelid = {oid} AND confrelid <> {oid}"
    );
    Ok(connection.query(&query).await?.into_iter().flatten().flatten().collect())
}

/// The foreign keys of the tables with the numbers `by` that refer to `table`, and do something when its rows go.
pub(super) async fn cascading(
    connection: &mut dyn Connection,
    table: &str,
    by: &[&str],
) -> Result<Vec<ForeignKey>, Failure> {
    let query = format!(
        "SELECT k.conname, format('%I.%I', n.nspname, c.relname), a.attname, b.attname, CASE k.confdeltype WHEN 'c' \
         THEN 'CASCADE' WHEN 'n' THEN 'SET NULL' ELSE 'SET DEFAULT' END FROM pg_constraint k JOIN pg_class c ON c.oid \
         = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace CROSS JOIN LATERAL unnest(k.conkey, k.confkey) \
         WITH ORDINALITY AS u(referring, referred, place) JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum \
         = u.referring JOIN pg_attribute b ON b.attrelid = k.confrelid AND b.attnum = u.referred WHERE k.contype = 'f' \
         AND k.confrelid = {}::regclass AND k.conrelid IN ({}) AND k.confdeltype IN ('c', 'n', 'd') ORDER BY k.oid, \
         u.place",
        PostgresDialect.literal(&PostgresDialect.table(table)),
        by.join(", ")
    );
    Ok(ForeignKey::of_rows(connection.query(&query).await?))
}

async fn columns(connection: &mut dyn Connection, oid: &str) -> Result<Vec<ColumnFacts>, Failure> {
    let query = format!(
        "SELECT attname, format_type(atttypid, atttypmod), CASE typtype WHEN 'd' THEN format_type(typbasetype, \
         typtypmod) ELSE format_type(atttypid, atttypmod) END, attnotnull, atthasdef OR attidentity <> '', \
         attgenerated <> '' OR attidentity = 'a' FROM pg_attribute JOIN pg_type t ON t.oid = atttypid WHERE attrelid = \
         {oid} AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
    );
    let rows = connection.query(&query).await?;
    let column = |row: Vec<Option<String>>| {
        let mut cells = row.into_iter().map(Option::unwrap_or_default);
        let mut next = || cells.next().unwrap_or_default();
        let (name, declared, base) = (next(), next(), next());
        let (required, given, generated) = (next() == "t", next() == "t", next() == "t");
        ColumnFacts {
            family: family(&base),
            is_domain: base != declared,
            name,
            declared,
            nullable: !required,
            required: required && !given,
            generated,
            replaces_null: false,
            rest: String::new(),
        }
    };
    Ok(rows.into_iter().map(column).collect())
}

/// The columns of each unique index that `ON CONFLICT` can use: no expressions, no condition, not deferred.
async fn unique_keys(connection: &mut dyn Connection, oid: &str) -> Result<Vec<Vec<String>>, Failure> {
    let query = format!(
        "SELECT i.indexrelid, a.attname FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS \
         k(attribute, place) JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attribute WHERE \
         i.indrelid = {oid} AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs \
         IS NULL AND k.place <= i.indnkeyatts ORDER BY 1, k.place"
    );
    let mut keys: Vec<(String, Vec<String>)> = Vec::new();
    for row in connection.query(&query).await? {
        let mut cells = row.into_iter().map(Option::unwrap_or_default);
        let (index, column) = (cells.next().unwrap_or_default(), cells.next().unwrap_or_default());
        match keys.last_mut().filter(|(name, _)| *name == index) {
            Some((_, columns)) => columns.push(column),
            None => keys.push((index, vec![column])),
        }
    }
    Ok(keys.into_iter().map(|(_, columns)| columns).collect())
}
