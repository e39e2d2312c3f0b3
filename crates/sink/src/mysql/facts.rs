//! Queries facts about a table: its columns and keys, its indexes, and the user's rights.

use millstream_database::Dialect;
use millstream_database::mysql::{MysqlDialect, family};
use millstream_database::table::{ColumnFacts, ForeignKey, Index, TableFacts};

use super::message::GRANT;
use crate::database::server::{Connection, Failure, Right};

/// The indexes that check no rows, with the server's definitions: `KEY `name` (`a`,`b`(10)) USING BTREE`.
pub(super) async fn indexes(connection: &mut dyn Connection, table: &str) -> Result<Vec<Index>, Failure> {
    let rows = connection.query(&format!("SHOW CREATE TABLE {table}")).await?;
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

/// The rights on the quoted `table` that the user lacks. The server explains statements: that checks all rights,
/// including those of roles and of patterns of names, and changes nothing.
pub(super) async fn missing_rights(
    connection: &mut dyn Connection,
    table: &str,
    rights: &[Right],
) -> Result<Vec<String>, Failure> {
    let quoted = |names: &[String]| names.iter().map(|name| MysqlDialect.quoted(name)).collect::<Vec<_>>();
    let mut missing = Vec::new();
    // If the table is locked, the rights stay unknown, without waiting.
    connection.execute("SET SESSION lock_wait_timeout = 1").await?;
    for right in rights {
        let statement = match right {
            Right::Insert(columns) => {
                // Without a table MySQL does not allow WHERE.
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
        if let Err(Failure::Other(error)) = connection.query(&format!("EXPLAIN {statement}")).await
            && error.hint_text() == Some(GRANT)
        {
            missing.extend(error.cause_text().map(str::to_owned));
        }
    }
    Ok(missing)
}

/// The facts about a table, if it exists.
pub(super) async fn describe(connection: &mut dyn Connection, table: &str) -> Result<Option<TableFacts>, Failure> {
    let name = MysqlDialect.literal(table);
    let query = format!(
        "SELECT t.table_type, t.engine, e.transactions, CONCAT(t.table_schema, '.', t.table_name) FROM \
         information_schema.tables t LEFT JOIN information_schema.engines e ON e.engine = t.engine WHERE \
         t.table_schema = DATABASE() AND t.table_name = {name}"
    );
    let Some(row) = connection.query(&query).await?.into_iter().next() else { return Ok(None) };
    let mut row = row.into_iter();
    let mut next = || row.next().flatten().unwrap_or_default();
    let (kind, engine, transactions, full_name) = (next(), next(), next(), next());
    if kind != "BASE TABLE" && kind != "SYSTEM VERSIONED" {
        return Ok(Some(TableFacts { other: Some(format!("a {}", kind.to_lowercase())), ..TableFacts::default() }));
    }
    let unsafe_engine = (transactions != "YES").then(|| format!("its engine {engine} has no transactions"));
    let dependents = dependents(connection, &name).await?;
    let more = format!(
        "SELECT (SELECT COUNT(*) FROM information_schema.triggers WHERE event_object_schema = DATABASE() AND \
         event_object_table = {name}) + (SELECT COUNT(*) FROM information_schema.referential_constraints WHERE \
         constraint_schema = DATABASE() AND table_name = {name})"
    );
    let more = connection.query(&more).await?;
    let has_more = more.first().and_then(|row| row.first().cloned().flatten()).as_deref() != Some("0");
    Ok(Some(TableFacts {
        other: None,
        unsafe_engine,
        has_more: has_more || !dependents.is_empty(),
        dependents,
        may_drop: false,
        columns: columns(connection, &name).await?,
        unique: unique_keys(connection, &name).await?,
        refers_to: refers_to(connection, &name).await?,
        name: full_name,
        checks: checks(connection, &name).await?,
    }))
}

/// The CHECK constraints. Old servers have none, and no such system table.
async fn checks(connection: &mut dyn Connection, name: &str) -> Result<Vec<String>, Failure> {
    let version =
        connection.query("SELECT VERSION()").await?.into_iter().flatten().flatten().next().unwrap_or_default();
    // In MariaDB names are unique within a table, in MySQL within a database.
    let is_mariadb = version.to_lowercase().contains("mariadb");
    let of_table = match is_mariadb {
        true => format!("c.table_name = {name}"),
        false => format!(
            "c.constraint_name IN (SELECT t.constraint_name FROM information_schema.table_constraints t WHERE \
             t.table_schema = DATABASE() AND t.table_name = {name} AND t.constraint_type = 'CHECK')"
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
    match connection.query(&query).await {
        Ok(rows) => Ok(rows.into_iter().filter_map(check).collect()),
        Err(Failure::Other(_)) => Ok(Vec::new()),
        Err(other) => Err(other),
    }
}

/// The tables that refer to this one.
async fn dependents(connection: &mut dyn Connection, name: &str) -> Result<Vec<String>, Failure> {
    let query = format!(
        "SELECT DISTINCT IF(constraint_schema = DATABASE(), table_name, CONCAT(constraint_schema, '.', table_name)) \
         FROM information_schema.referential_constraints WHERE unique_constraint_schema = DATABASE() AND \
         referenced_table_name = {name} AND NOT (constraint_schema = DATABASE() AND table_name = {name})"
    );
    let rows = connection.query(&query).await?;
    Ok(rows.into_iter().flatten().flatten().map(|table| format!("a foreign key of table {table}")).collect())
}

/// The tables to which this one refers.
async fn refers_to(connection: &mut dyn Connection, name: &str) -> Result<Vec<String>, Failure> {
    let query = format!(
        "SELECT DISTINCT CONCAT(unique_constraint_schema, '.', referenced_table_name) FROM \
         information_schema.referential_constraints WHERE constraint_schema = DATABASE() AND table_name = {name} AND \
         NOT (unique_constraint_schema = DATABASE() AND referenced_table_name = {name})"
    );
    Ok(connection.query(&query).await?.into_iter().flatten().flatten().collect())
}

/// The foreign keys of the tables `by` that refer to `table`, and do something when its rows go.
pub(super) async fn cascading(
    connection: &mut dyn Connection,
    table: &str,
    by: &[&str],
) -> Result<Vec<ForeignKey>, Failure> {
    let by: Vec<String> = by.iter().map(|name| MysqlDialect.literal(name)).collect();
    let query = format!(
        "SELECT k.constraint_name, CONCAT('`', REPLACE(k.table_schema, '`', '``'), '`.`', REPLACE(k.table_name, '`', \
         '``'), '`'), k.column_name, k.referenced_column_name, r.delete_rule FROM \
         information_schema.referential_constraints r JOIN information_schema.key_column_usage k ON \
         k.constraint_schema = r.constraint_schema AND k.constraint_name = r.constraint_name AND k.table_name = \
         r.table_name WHERE r.unique_constraint_schema = DATABASE() AND r.referenced_table_name = {} AND r.delete_rule \
         NOT IN ('RESTRICT', 'NO ACTION') AND CONCAT(r.constraint_schema, '.', r.table_name) IN ({}) ORDER BY \
         k.table_schema, k.table_name, k.constraint_name, k.ordinal_position",
        MysqlDialect.literal(table),
        by.join(", ")
    );
    Ok(ForeignKey::of_rows(connection.query(&query).await?))
}

async fn columns(connection: &mut dyn Connection, name: &str) -> Result<Vec<ColumnFacts>, Failure> {
    let query = format!(
        "SELECT column_name, column_type, is_nullable, column_default, extra, generation_expression, VERSION() FROM \
         information_schema.columns WHERE table_schema = DATABASE() AND table_name = {name} ORDER BY \
         ordinal_position"
    );
    let rows = connection.query(&query).await?;
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
        // MariaDB gives an expression, MySQL the value itself.
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
        // `LOAD DATA` replaces a null by the current time, without a warning.
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
async fn unique_keys(connection: &mut dyn Connection, name: &str) -> Result<Vec<Vec<String>>, Failure> {
    let query = format!(
        "SELECT index_name, COALESCE(column_name, ''), sub_part FROM information_schema.statistics WHERE table_schema \
         = DATABASE() AND table_name = {name} AND non_unique = 0 ORDER BY index_name, seq_in_index"
    );
    let mut keys: Vec<(String, Vec<String>)> = Vec::new();
    for row in connection.query(&query).await? {
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

#[cfg(test)]
mod tests {
    #[test]
    fn indexes_are_found_in_what_the_server_declares() {
        let declared = "CREATE TABLE `t` (\n  `id` bigint(20) NOT NULL,\n  `KEY` int(11) COMMENT 'KEY `x` (`y`)',\n  \
                        PRIMARY KEY (`id`),\n  UNIQUE KEY `u` (`a`),\n  KEY `plain` (`a`,`b`(10) DESC) USING BTREE,\n  \
                        KEY `odd``name` (`c`) COMMENT 'a, b',\n  FULLTEXT KEY `words` (`d`),\n  CONSTRAINT `f` FOREIGN \
                        KEY (`a`) REFERENCES `o` (`id`)\n) ENGINE=InnoDB";
        let found: Vec<_> =
            super::indexes_in(declared).into_iter().map(|index| (index.name, index.definition)).collect();
        let index = |name: &str, definition: &str| (name.to_owned(), definition.to_owned());
        let plain = index("plain", "KEY `plain` (`a`,`b`(10) DESC) USING BTREE");
        assert_eq!(found, [plain, index("odd`name", "KEY `odd``name` (`c`) COMMENT 'a, b'")]);
    }
}
