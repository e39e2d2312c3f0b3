//! MySQL's tables: what an existing one is like, and the statements of a load. Connections and values are others'.

use arrow::datatypes::{DataType, SchemaRef};
use millstream_database::family::Family;
use millstream_database::mysql::{MysqlDialect, family};
use millstream_database::{Dialect, quoted_list};

use super::message::GRANT;
use crate::database::server::{ARRIVAL, Bulk, BulkColumn, Failure, Index, Publish, Right, Session};
use crate::database::spec::{DatabaseSpec, Mode, Order};
use crate::database::table::{ColumnFacts, TableFacts};

/// The statement that makes a table.
pub(super) fn create_statement(table: &str, spec: &DatabaseSpec, schema: &SchemaRef) -> String {
    let mut lines: Vec<String> = schema
        .fields()
        .iter()
        .map(|field| {
            let is_key = spec.is_key(field.name());
            // A timestamp that is not said to be nullable would be given the current time in old versions.
            let null = if is_key { "NOT NULL" } else { "NULL" };
            format!(
                "  {} {} {null}",
                MysqlDialect.quoted(field.name()),
                MysqlDialect.column_type(field.data_type(), is_key)
            )
        })
        .collect();
    if !spec.key.is_empty() && !spec.defer_key {
        lines.push(format!("  PRIMARY KEY ({})", quoted_list(&MysqlDialect, &spec.key)));
    }
    format!(
        "CREATE TABLE {table} (\n{}\n) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        lines.join(",\n")
    )
}

/// The statement that gives a table its key.
pub(super) fn key_statement(table: &str, spec: &DatabaseSpec) -> String {
    format!("ALTER TABLE {table} ADD PRIMARY KEY ({})", quoted_list(&MysqlDialect, &spec.key))
}

/// The indexes that no row is checked by, as the server declares them: `KEY `name` (`a`,`b`(10)) USING BTREE`.
pub(super) async fn indexes(session: &mut dyn Session, table: &str) -> Result<Vec<Index>, Failure> {
    let rows = session.query(&format!("SHOW CREATE TABLE {table}")).await?;
    let declared = rows.into_iter().next().and_then(|row| row.into_iter().nth(1).flatten()).unwrap_or_default();
    Ok(indexes_in(&declared))
}

fn indexes_in(declared: &str) -> Vec<Index> {
    let index = |line: &str| {
        let definition = line.trim().trim_end_matches(',');
        let name = definition.strip_prefix("KEY `")?;
        // A backtick in a name is written twice.
        let mut end = 0;
        while let Some(at) = name[end..].find('`') {
            end += at;
            if !name[end + 1..].starts_with('`') {
                break;
            }
            end += 2;
        }
        Some(Index { name: name[..end].replace("``", "`"), definition: definition.to_owned() })
    };
    declared.lines().filter_map(index).collect()
}

/// The statement that makes a staging table: the columns that are loaded, without the target's keys.
pub(super) fn staging_statement(table: &str, target: &str, columns: &[String], arrival: bool) -> String {
    let arrival =
        if arrival { format!("({} BIGINT NOT NULL DEFAULT 0) ", MysqlDialect.quoted(ARRIVAL)) } else { String::new() };
    format!(
        "CREATE TABLE {table} {arrival}ENGINE=InnoDB AS SELECT {} FROM {target} WHERE FALSE",
        quoted_list(&MysqlDialect, columns)
    )
}

/// The bulk statement. Bytes travel as hexadecimal digits: a text in UTF-8 is what the server reads, and checks. It is
/// told that what comes is in `character_set`.
pub(super) fn bulk(table: &str, columns: Vec<BulkColumn>, schema: &SchemaRef, character_set: &str) -> Bulk {
    let mut names = Vec::new();
    let mut sets = Vec::new();
    for (index, column) in columns.iter().enumerate() {
        let name = MysqlDialect.quoted(&column.name);
        let data_type = schema.fields().get(index).map(|field| field.data_type());
        match conversion(data_type, column.family) {
            Some((before, after)) => {
                names.push(format!("@c{index}"));
                sets.push(format!("{name} = {before}@c{index}{after}"));
            }
            None => names.push(name),
        }
    }
    let set = if sets.is_empty() { String::new() } else { format!(" SET {}", sets.join(", ")) };
    let statement = format!(
        "LOAD DATA LOCAL INFILE 'millstream' INTO TABLE {table} CHARACTER SET {character_set} FIELDS TERMINATED BY \
         '\\t' \
         ESCAPED BY '\\\\' LINES TERMINATED BY '\\n' ({}){set}",
        names.join(", ")
    );
    // The other way needs the same conversions.
    let columns = columns
        .into_iter()
        .enumerate()
        .map(|(index, column)| {
            let data_type = schema.fields().get(index).map(|field| field.data_type());
            let family = match (conversion(data_type, column.family), column.family) {
                (Some(_), Family::Bits) => Family::Bits,
                (Some(_), _) => Family::Bytes,
                (None, Family::Bytes) => Family::Other,
                (None, family) => family,
            };
            BulkColumn { family, ..column }
        })
        .collect();
    Bulk { statement, table: table.to_owned(), columns, binary: false }
}

/// What stands around a value that does not go into its column as it is written.
fn conversion(data_type: Option<&DataType>, family: Family) -> Option<(&'static str, &'static str)> {
    match (data_type, family) {
        (_, Family::Bits) => Some(around(Family::Bits)),
        (Some(DataType::Dictionary(_, values)), _) => conversion(Some(values), family),
        (Some(DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_)), _) => {
            Some(around(Family::Bytes))
        }
        _ => None,
    }
}

/// The conversion to a family, before and behind the value.
pub(super) fn around(family: Family) -> (&'static str, &'static str) {
    match family {
        Family::Bits => ("CAST(", " AS UNSIGNED)"),
        Family::Bytes => ("UNHEX(", ")"),
        _ => ("", ""),
    }
}

/// What the user may not do with `table`, which is quoted. The server is asked to explain statements: it checks the
/// rights, which may be those of roles and of patterns of names, and changes nothing.
pub(super) async fn missing_rights(
    session: &mut dyn Session,
    table: &str,
    rights: &[Right],
) -> Result<Vec<String>, Failure> {
    let quoted = |names: &[String]| names.iter().map(|name| MysqlDialect.quoted(name)).collect::<Vec<_>>();
    let mut missing = Vec::new();
    // A table that somebody keeps locked tells nothing, and is not waited for.
    session.execute("SET SESSION lock_wait_timeout = 1").await?;
    for right in rights {
        let statement = match right {
            Right::Insert(columns) => {
                // Without a table MySQL knows no WHERE.
                let nulls = vec!["NULL"; columns.len()].join(", ");
                let columns = quoted(columns).join(", ");
                format!("INSERT INTO {table} ({columns}) SELECT {nulls} FROM (SELECT 1 AS one) AS nothing WHERE 1 = 0")
            }
            Right::Update(columns) if columns.is_empty() => continue,
            Right::Update(columns) => {
                let set: Vec<String> = quoted(columns).into_iter().map(|column| format!("{column} = NULL")).collect();
                format!("UPDATE {table} SET {} WHERE 1 = 0", set.join(", "))
            }
            Right::Empty { truncates: true } => continue,
            Right::Empty { truncates: false } => format!("DELETE FROM {table} WHERE 1 = 0"),
        };
        if let Err(Failure::Other(error)) = session.query(&format!("EXPLAIN {statement}")).await
            && error.hint_text() == Some(GRANT)
        {
            missing.extend(error.cause_text().map(str::to_owned));
        }
    }
    Ok(missing)
}

/// What there is to know of a table, if it is there.
pub(super) async fn describe(session: &mut dyn Session, table: &str) -> Result<Option<TableFacts>, Failure> {
    let name = MysqlDialect.literal(table);
    let query = format!(
        "SELECT t.table_type, t.engine, e.transactions FROM information_schema.tables t LEFT JOIN \
         information_schema.engines e ON e.engine = t.engine WHERE t.table_schema = DATABASE() AND t.table_name = \
         {name}"
    );
    let Some(row) = session.query(&query).await?.into_iter().next() else { return Ok(None) };
    let mut row = row.into_iter();
    let mut next = || row.next().flatten().unwrap_or_default();
    let (kind, engine, transactions) = (next(), next(), next());
    if kind != "BASE TABLE" && kind != "SYSTEM VERSIONED" {
        return Ok(Some(TableFacts { other: Some(format!("a {}", kind.to_lowercase())), ..TableFacts::default() }));
    }
    let unsafe_engine = (transactions != "YES").then(|| format!("its engine {engine} has no transactions"));
    let dependents = dependents(session, &name).await?;
    let more = format!(
        "SELECT (SELECT COUNT(*) FROM information_schema.triggers WHERE event_object_schema = DATABASE() AND \
         event_object_table = {name}) + (SELECT COUNT(*) FROM information_schema.referential_constraints WHERE \
         constraint_schema = DATABASE() AND table_name = {name})"
    );
    let more = session.query(&more).await?;
    let has_more = more.first().and_then(|row| row.first().cloned().flatten()).as_deref() != Some("0");
    Ok(Some(TableFacts {
        other: None,
        unsafe_engine,
        has_more: has_more || !dependents.is_empty(),
        dependents,
        columns: columns(session, &name).await?,
        unique: unique_keys(session, &name).await?,
        checks: checks(session, &name).await?,
    }))
}

/// The conditions on rows. Old servers have none, and know no such table.
async fn checks(session: &mut dyn Session, name: &str) -> Result<Vec<String>, Failure> {
    let version = session.query("SELECT VERSION()").await?.into_iter().flatten().flatten().next().unwrap_or_default();
    // MariaDB's names are those of a table, MySQL's those of a database: there another table cannot have them.
    let is_mariadb = version.to_lowercase().contains("mariadb");
    let of_table = match is_mariadb {
        true => format!("c.table_name = {name}"),
        false => format!(
            "c.constraint_name IN (SELECT t.constraint_name FROM information_schema.table_constraints t WHERE \
             t.table_schema = \
             DATABASE() AND t.table_name = {name} AND t.constraint_type = 'CHECK')"
        ),
    };
    let query = format!(
        "SELECT c.constraint_name, c.check_clause FROM information_schema.check_constraints c WHERE \
         c.constraint_schema = DATABASE() AND {of_table}"
    );
    let check = |row: Vec<Option<String>>| {
        let mut cells = row.into_iter().flatten();
        let (name, clause) = (cells.next()?, cells.next()?);
        Some(if is_mariadb {
            format!("CONSTRAINT {} CHECK ({clause})", MysqlDialect.quoted(&name))
        } else {
            format!("CHECK ({clause})")
        })
    };
    match session.query(&query).await {
        Ok(rows) => Ok(rows.into_iter().filter_map(check).collect()),
        Err(Failure::Other(_)) => Ok(Vec::new()),
        Err(other) => Err(other),
    }
}

/// The tables that refer to this one.
async fn dependents(session: &mut dyn Session, name: &str) -> Result<Vec<String>, Failure> {
    let query = format!(
        "SELECT DISTINCT IF(constraint_schema = DATABASE(), table_name, CONCAT(constraint_schema, '.', table_name)) \
         FROM \
         information_schema.referential_constraints WHERE unique_constraint_schema = DATABASE() AND \
         referenced_table_name = \
         {name} AND NOT (constraint_schema = DATABASE() AND table_name = {name})"
    );
    let rows = session.query(&query).await?;
    Ok(rows.into_iter().flatten().flatten().map(|table| format!("a foreign key of table {table}")).collect())
}

async fn columns(session: &mut dyn Session, name: &str) -> Result<Vec<ColumnFacts>, Failure> {
    let query = format!(
        "SELECT column_name, column_type, is_nullable, column_default, extra, generation_expression, VERSION() FROM \
         information_schema.columns WHERE table_schema = DATABASE() AND table_name = {name} ORDER BY ordinal_position"
    );
    let rows = session.query(&query).await?;
    Ok(rows.into_iter().map(column).collect())
}

fn column(row: Vec<Option<String>>) -> ColumnFacts {
    let mut cells = row.into_iter();
    let mut next = || cells.next().flatten();
    let (name, declared) = (next().unwrap_or_default(), next().unwrap_or_default());
    let nullable = next().is_none_or(|word| word == "YES");
    let default = next();
    let extra = next().unwrap_or_default().to_lowercase();
    let generated = next().is_some_and(|expression| !expression.is_empty());
    let is_mariadb = next().is_some_and(|version| version.to_lowercase().contains("mariadb"));
    let counts = extra.contains("auto_increment");
    let mut rest = if nullable { " NULL" } else { " NOT NULL" }.to_owned();
    if let Some(default) = &default {
        // MariaDB tells an expression, MySQL the value itself.
        rest.push_str(&match is_mariadb || extra.contains("default_generated") {
            true => format!(" DEFAULT {default}"),
            false => format!(" DEFAULT {}", MysqlDialect.literal(default)),
        });
    }
    if counts {
        rest.push_str(" AUTO_INCREMENT");
    }
    ColumnFacts {
        is_domain: false,
        required: !nullable && default.is_none() && !counts && !generated,
        // `LOAD DATA` makes the current time of it, without a warning.
        replaces_null: !nullable && declared.to_lowercase().starts_with("timestamp"),
        family: family(&declared.to_lowercase()),
        name,
        declared,
        nullable,
        generated,
        rest,
    }
}

/// The columns of each unique key that has no prefixes of columns in it.
async fn unique_keys(session: &mut dyn Session, name: &str) -> Result<Vec<Vec<String>>, Failure> {
    let query = format!(
        "SELECT index_name, COALESCE(column_name, ''), sub_part FROM information_schema.statistics WHERE table_schema \
         = \
         DATABASE() AND table_name = {name} AND non_unique = 0 ORDER BY index_name, seq_in_index"
    );
    let mut keys: Vec<(String, Vec<String>)> = Vec::new();
    for row in session.query(&query).await? {
        let mut cells = row.into_iter();
        let (index, column) = (cells.next().flatten().unwrap_or_default(), cells.next().flatten().unwrap_or_default());
        let prefix = cells.next().flatten();
        let column = prefix.map_or(column.clone(), |length| format!("{column}({length})"));
        match keys.last_mut().filter(|(name, _)| *name == index) {
            Some((_, columns)) => columns.push(column),
            None => keys.push((index, vec![column])),
        }
    }
    Ok(keys.into_iter().map(|(_, columns)| columns).collect())
}

/// The statement that deletes all rows; `TRUNCATE` would commit.
pub(super) fn empty_statement(table: &str) -> String {
    format!("DELETE FROM {table}")
}

/// The statements that move staged rows into the target.
pub(super) fn publish(
    how: Publish,
    from: &str,
    into: &str,
    spec: &DatabaseSpec,
    columns: &[String],
    facts: Option<&TableFacts>,
) -> Vec<String> {
    let all = quoted_list(&MysqlDialect, columns);
    let insert = format!("INSERT INTO {into} ({all})");
    let is_key = |name: &&String| spec.is_key(name);
    let changed: Vec<String> =
        columns.iter().filter(|name| !is_key(name)).map(|name| MysqlDialect.quoted(name)).collect();
    let on = |left: &str| -> String {
        let keys = columns.iter().filter(is_key).map(|name| format!("{left}.{0} = s.{0}", MysqlDialect.quoted(name)));
        keys.collect::<Vec<_>>().join(" AND ")
    };
    let missing = || {
        let one = one_of_each(from, spec, columns);
        format!("{insert} SELECT {all} FROM ({one}) s WHERE NOT EXISTS (SELECT 1 FROM {into} t WHERE {})", on("t"))
    };
    match how {
        Publish::Add => vec![format!("{insert} SELECT {all} FROM {from}")],
        Publish::Instead => vec![empty_statement(into), format!("{insert} SELECT {all} FROM {from}")],
        Publish::Ignore => vec![missing()],
        Publish::Merge if changed.is_empty() => vec![missing()],
        // By `ON DUPLICATE KEY` a row would be changed whose other unique key is that of a new one.
        Publish::Merge if facts.is_some_and(|facts| facts.has_other_unique(&spec.key)) => {
            let sets: Vec<String> = changed.iter().map(|name| format!("t.{name} = s.{name}")).collect();
            let one = one_of_each(from, spec, columns);
            let update = format!("UPDATE {into} t JOIN ({one}) s ON {} SET {}", on("t"), sets.join(", "));
            vec![update, missing()]
        }
        Publish::Merge => {
            let sets: Vec<String> = changed.iter().map(|name| format!("{name} = VALUES({name})")).collect();
            let one = one_of_each(from, spec, columns);
            vec![format!("{insert} SELECT {all} FROM ({one}) s ON DUPLICATE KEY UPDATE {}", sets.join(", "))]
        }
    }
}

/// A query for one staged row a key: the first in the declared order.
fn one_of_each(from: &str, spec: &DatabaseSpec, columns: &[String]) -> String {
    let direction = |descending| if descending { " DESC" } else { "" };
    let ordered = |order: &Order| {
        let name = MysqlDialect.quoted(&order.column);
        // Nulls come last in either direction.
        format!("{name} IS NULL, {name}{}", direction(order.descending))
    };
    let mut order: Vec<String> = spec.order().iter().map(ordered).collect();
    order.push(format!("{}{}", MysqlDialect.quoted(ARRIVAL), direction(spec.mode == Mode::Merge)));
    let all = quoted_list(&MysqlDialect, columns);
    format!(
        "SELECT {all} FROM (SELECT {all}, ROW_NUMBER() OVER (PARTITION BY {} ORDER BY {}) AS `_millstream_rank` FROM \
         {from}) ranked WHERE `_millstream_rank` = 1",
        quoted_list(&MysqlDialect, &spec.key),
        order.join(", ")
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn indexes_are_found_in_what_the_server_declares() {
        let declared = "CREATE TABLE `t` (\n  `id` bigint(20) NOT NULL,\n  `KEY` int(11) COMMENT 'KEY `x` \
                        (`y`)',\n  PRIMARY KEY \
                        (`id`),\n  UNIQUE KEY `u` (`a`),\n  KEY `plain` (`a`,`b`(10) DESC) USING BTREE,\n  KEY \
                        `odd``name` (`c`) \
                        COMMENT 'a, b',\n  FULLTEXT KEY `words` (`d`),\n  CONSTRAINT `f` FOREIGN KEY (`a`) REFERENCES \
                        `o` \
                        (`id`)\n) ENGINE=InnoDB";
        let found: Vec<_> =
            super::indexes_in(declared).into_iter().map(|index| (index.name, index.definition)).collect();
        let index = |name: &str, definition: &str| (name.to_owned(), definition.to_owned());
        let plain = index("plain", "KEY `plain` (`a`,`b`(10) DESC) USING BTREE");
        assert_eq!(found, [plain, index("odd`name", "KEY `odd``name` (`c`) COMMENT 'a, b'")]);
    }
}
