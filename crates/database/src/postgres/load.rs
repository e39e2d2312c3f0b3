//! How PostgreSQL writes the statements of a load. It only makes SQL text, which the tests below check.

use std::time::Duration;

use arrow::datatypes::{DataType, SchemaRef};

use super::dialect::{PostgresDialect, parts};
use super::{binary, types};
use crate::dialect::{Dialect, quoted_list};
use crate::family::Family;
use crate::in_step::StepDialect;
use crate::load::{Counted, Key, LoadDialect, NewTable, Publish, StagedKeys, Step};
use crate::order::{Order, precedes};
use crate::table::{ARRIVAL, Bulk, BulkColumn, ColumnFacts, Index, TableFacts};

impl LoadDialect for PostgresDialect {
    fn bare_table<'a>(&self, name: &'a str) -> &'a str {
        parts(name).1
    }

    fn beside(&self, target: &str, name: &str) -> String {
        match parts(target).0 {
            Some(schema) => format!("{}.{}", self.quoted(schema), self.quoted(name)),
            None => self.quoted(name),
        }
    }

    fn family(&self, data_type: &DataType, is_key: bool) -> Family {
        types::family(&self.column_type(data_type, is_key))
    }

    fn create_table(&self, table: &str, schema: &SchemaRef, key: &[String], deferred: bool) -> String {
        let columns = schema.fields().iter();
        let mut lines: Vec<String> = columns
            .map(|field| format!("  {} {}", self.quoted(field.name()), self.column_type(field.data_type(), false)))
            .collect();
        if !key.is_empty() && !deferred {
            // The server chooses a free name: the usual one may belong to a renamed table.
            lines.push(format!("  PRIMARY KEY ({})", quoted_list(self, key)));
        }
        format!("CREATE TABLE {table} (\n{}\n)", lines.join(",\n"))
    }

    fn add_key(&self, table: &str, key: &[String]) -> String {
        format!("ALTER TABLE {table} ADD PRIMARY KEY ({})", quoted_list(self, key))
    }

    fn drop_index(&self, _table: &str, name: &str) -> String {
        format!("DROP INDEX {name}")
    }

    fn create_indexes(&self, _table: &str, indexes: &[Index]) -> Vec<String> {
        indexes.iter().map(|index| index.definition.clone()).collect()
    }

    /// It has the loaded columns, without the target's keys. It is unlogged, since it need not survive a crash of the
    /// server.
    fn create_staging(
        &self,
        table: &str,
        target: &str,
        columns: &[String],
        keys: StagedKeys<'_>,
        facts: Option<&TableFacts>,
    ) -> Vec<String> {
        // The index of a key is quicker to build when all rows are in the table.
        let arrival = if keys == StagedKeys::Arrival { numbered() } else { String::new() };
        staging("UNLOGGED TABLE", table, "", &arrival, target, columns, facts)
    }

    /// Each transaction leaves it empty, since nothing would clean it up otherwise.
    fn create_temporary(
        &self,
        table: &str,
        target: &str,
        columns: &[String],
        facts: Option<&TableFacts>,
    ) -> Vec<String> {
        staging("TEMPORARY TABLE", table, "ON COMMIT DELETE ROWS ", &numbered(), target, columns, facts)
    }

    fn empty_temporary(&self, _table: &str) -> Option<String> {
        None
    }

    /// A new table would lack the views, rights and sequences of the old one.
    fn create_like(&self, _table: &str, _target: &str, _facts: &TableFacts) -> Option<String> {
        None
    }

    fn alter(&self, target: &str, added: &[(String, String)], widened: &[(ColumnFacts, String)]) -> Vec<String> {
        let added = added.iter().map(|(name, kind)| format!("ADD COLUMN {} {kind}", self.quoted(name)));
        let widened =
            widened.iter().map(|(column, kind)| format!("ALTER COLUMN {} TYPE {kind}", self.quoted(&column.name)));
        vec![format!("ALTER TABLE {target} {}", added.chain(widened).collect::<Vec<_>>().join(", "))]
    }

    fn bulk(&self, table: &str, columns: Vec<BulkColumn>, schema: &SchemaRef) -> Bulk {
        let mut types = schema.fields().iter().zip(&columns);
        let binary = types.all(|(field, column)| binary::has_form(field.data_type(), column.family));
        let names = quoted_list(self, columns.iter().map(|column| &column.name));
        let form = if binary { " (FORMAT binary)" } else { "" };
        let statement = format!("COPY {table} ({names}) FROM STDIN{form}");
        Bulk { statement, table: table.to_owned(), columns, binary }
    }

    /// A table that others refer to cannot be truncated.
    fn empty(&self, target: &str, facts: Option<&TableFacts>) -> String {
        let referred = facts.is_some_and(|facts| facts.dependents.iter().any(|one| one.contains("foreign key")));
        if referred { format!("DELETE FROM {target}") } else { format!("TRUNCATE {target}") }
    }

    fn publish(
        &self,
        how: Publish,
        from: &str,
        into: &str,
        key: Key<'_>,
        columns: &[String],
        facts: Option<&TableFacts>,
    ) -> Vec<Step> {
        let all = quoted_list(self, columns);
        let insert = format!("INSERT INTO {into} ({all})");
        let keys = quoted_list(self, columns.iter().filter(|name| key.has(name)));
        let order = order(how, key.order);
        let one = || format!("SELECT DISTINCT ON ({keys}) {all} FROM {from} ORDER BY {keys}, {order}");
        let every = || Step::change(format!("{insert} SELECT {all} FROM {from}"), Counted::Inserted);
        match how {
            Publish::Add => vec![every()],
            Publish::Instead => vec![Step::plain(self.empty(into, facts)), every()],
            Publish::Merge | Publish::MergeNewer if facts.is_some() && columns.iter().any(|name| !key.has(name)) => {
                vec![Step::change(merge(how, &one(), into, key, columns, facts), Counted::Merged)]
            }
            Publish::Merge | Publish::MergeNewer | Publish::Ignore => {
                let sql = format!("{insert} {} ON CONFLICT ({keys}) DO NOTHING", one());
                vec![Step::change(sql, Counted::Inserted)]
            }
        }
    }

    fn swap(&self, new: NewTable<'_>) -> Vec<String> {
        let (_, name) = parts(new.target);
        let mut statements = Vec::new();
        if new.exists {
            statements.push(format!("DROP TABLE {}", self.table(new.target)));
        }
        let made = self.beside(new.target, new.name);
        statements.push(format!("ALTER TABLE {made} RENAME TO {}", self.quoted(name)));
        if new.has_key {
            let (made, wanted) = (self.beside(new.target, &key_name(new.name)), key_name(name));
            statements.push(rename_key(&made, &wanted, &self.beside(new.target, &wanted)));
        }
        statements
    }

    fn transactional_tables(&self) -> bool {
        true
    }

    /// The server would nest a savepoint of the same name inside the earlier one, and allows some thousands.
    fn next_savepoint(&self) -> &'static str {
        "RELEASE SAVEPOINT millstream; SAVEPOINT millstream"
    }

    fn wait_for_locks(&self, limit: Duration) -> String {
        format!("SET lock_timeout = {}", limit.as_millis().max(1))
    }

    fn create_ledger(&self, table: &str, comment: &str) -> String {
        create_ledger("TABLE", table, comment)
    }

    /// After a crash the server empties unlogged tables, staging tables as well as their notes.
    fn create_notes(&self, table: &str, comment: &str) -> String {
        create_ledger("UNLOGGED TABLE", table, comment)
    }

    /// A page has room for the next version of a row.
    fn create_positions(&self, table: &str, comment: &str) -> String {
        format!(
            "CREATE TABLE {table} (load_key char(64) NOT NULL, place_key char(64) NOT NULL, version bigint NOT NULL, \
             attempt char(16) NOT NULL, owner char(16) NOT NULL, state text NOT NULL, place text NOT NULL, written_at \
             timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (load_key, place_key)) WITH (fillfactor = 50); COMMENT ON \
             TABLE {table} IS {}",
            self.literal(comment)
        )
    }

    fn see_commits(&self) -> Option<&'static str> {
        Some("SET default_transaction_isolation = 'read committed'")
    }

    fn is_exactly(&self, column: &str, text: &str) -> String {
        let text = self.literal(text);
        // The first part can use an index.
        format!("{column} = {text} AND {column}::text COLLATE \"C\" = {text}")
    }

    fn share_lock(&self) -> &'static str {
        "FOR SHARE"
    }

    fn lock_table(&self, table: &str) -> (Vec<String>, &'static str) {
        (vec!["BEGIN".to_owned(), format!("LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")], "COMMIT")
    }

    fn seconds_since(&self, time: &str) -> String {
        format!("floor(extract(epoch FROM now() - {time}))::bigint")
    }
}

/// The column that numbers rows as they arrive.
fn numbered() -> String {
    format!(", 0::bigint AS {}", PostgresDialect.quoted(ARRIVAL))
}

/// The statements that create a table with columns like the target's. A null where it has none is then reported with
/// its row.
fn staging(
    kind: &str,
    table: &str,
    options: &str,
    arrival: &str,
    target: &str,
    columns: &[String],
    facts: Option<&TableFacts>,
) -> Vec<String> {
    let loaded = quoted_list(&PostgresDialect, columns);
    let make = format!("CREATE {kind} {table} {options}AS SELECT {loaded}{arrival} FROM {target} WITH NO DATA");
    let required: Vec<String> = facts
        .iter()
        .flat_map(|facts| &facts.columns)
        .filter(|column| !column.nullable && columns.contains(&column.name))
        .map(|column| format!("ALTER COLUMN {} SET NOT NULL", PostgresDialect.quoted(&column.name)))
        .collect();
    let require = (!required.is_empty()).then(|| format!("ALTER TABLE {table} {}", required.join(", ")));
    [make].into_iter().chain(require).collect()
}

fn create_ledger(kind: &str, table: &str, comment: &str) -> String {
    format!(
        "CREATE {kind} {table} (load_key char(64) NOT NULL, unit_key char(64) NOT NULL, chunk bigint NOT NULL, attempt \
         char(16) NOT NULL, note text, written_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (load_key, unit_key, \
         chunk)); COMMENT ON TABLE {table} IS {}",
        PostgresDialect.literal(comment)
    )
}

/// The query that merges the rows of the query `staged`, one for each key. It answers with the numbers of new and
/// changed rows.
///
/// `ON CONFLICT` alone would lock each row that is there, which writes to its page, also if it does not differ. Here it
/// is for rows that another session inserts at the same time.
fn merge(
    how: Publish,
    staged: &str,
    into: &str,
    key: Key<'_>,
    columns: &[String],
    facts: Option<&TableFacts>,
) -> String {
    let dialect = PostgresDialect;
    let (all, quoted) = (quoted_list(&dialect, columns), |name: &String| dialect.quoted(name));
    let is_key = |name: &&String| key.has(name);
    let keys = quoted_list(&dialect, columns.iter().filter(is_key));
    let changed: Vec<&String> = columns.iter().filter(|name| !is_key(name)).collect();
    let on: Vec<String> = columns.iter().filter(is_key).map(|name| format!("t.{0} = s.{0}", quoted(name))).collect();
    let on = on.join(" AND ");
    let sets = |from: &str| {
        let sets = changed.iter().map(|name| format!("{0} = {from}.{0}", quoted(name)));
        sets.collect::<Vec<_>>().join(", ")
    };
    let differs = |name: &&String| {
        let facts = facts.and_then(|facts| facts.column(name));
        dialect.differs(&format!("t.{}", quoted(name)), &format!("s.{}", quoted(name)), facts)
    };
    let differ: Vec<String> = changed.iter().map(differs).collect();
    let newer = |before: &str, one: &str, other: &str| match how {
        Publish::MergeNewer => {
            let precedes = precedes(key.order, |name| [one, other].map(|of| format!("{of}.{}", dialect.quoted(name))));
            format!("{before}{precedes} IS NOT TRUE")
        }
        _ => String::new(),
    };
    format!(
        "WITH s AS ({staged}), updated AS (UPDATE {into} AS t SET {} FROM s WHERE {on} AND ({}){} RETURNING 1), \
         inserted AS (INSERT INTO {into} AS o ({all}) SELECT {all} FROM s WHERE NOT EXISTS (SELECT 1 FROM {into} AS t \
         WHERE {on}) ON CONFLICT ({keys}) DO UPDATE SET {}{} RETURNING 1) SELECT (SELECT count(*) FROM inserted), \
         (SELECT count(*) FROM updated)",
        sets("s"),
        differ.join(" OR "),
        newer(" AND ", "t", "s"),
        sets("EXCLUDED"),
        newer(" WHERE ", "o", "EXCLUDED"),
    )
}

/// The name of a table's primary key.
fn key_name(table: &str) -> String {
    format!("{table}_pkey")
}

/// The statement that gives the key of a new table its usual name, unless that is taken: a renamed table keeps the name
/// of its key.
fn rename_key(key: &str, name: &str, beside: &str) -> String {
    format!(
        "DO $millstream$ BEGIN IF to_regclass({}) IS NULL THEN ALTER INDEX IF EXISTS {key} RENAME TO {}; END IF; END \
         $millstream$",
        PostgresDialect.literal(beside),
        PostgresDialect.quoted(name)
    )
}

/// The declared order of rows with one key; nulls come last in either direction.
fn order(how: Publish, order: &[Order]) -> String {
    let direction = |descending| if descending { " DESC" } else { "" };
    let ordered =
        |order: &Order| format!("{}{} NULLS LAST", PostgresDialect.quoted(&order.column), direction(order.descending));
    let mut order: Vec<String> = order.iter().map(ordered).collect();
    order.push(format!("{}{}", PostgresDialect.quoted(ARRIVAL), direction(how.merges())));
    order.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(how: Publish, columns: &[&str]) -> Vec<String> {
        let columns: Vec<String> = columns.iter().map(|name| (*name).to_owned()).collect();
        let (key, order) = (["ID".to_owned()], [Order { column: "n".to_owned(), descending: true }]);
        let key = Key { columns: &key, order: &order };
        let statements = PostgresDialect.publish(how, "s", "t", key, &columns, Some(&TableFacts::default()));
        statements.iter().map(|step| step.sql().to_owned()).collect()
    }

    #[test]
    fn staged_rows_are_published_by_what_they_do_with_those_that_are_there() {
        let insert = "INSERT INTO t (\"id\", \"n\") SELECT";
        let one = |arrival: &str| {
            format!(
                "DISTINCT ON (\"id\") \"id\", \"n\" FROM s ORDER BY \"id\", \"n\" DESC NULLS LAST, \
                 \"_millstream_arrival\"{arrival}"
            )
        };
        let both = ["id", "n"];
        assert_eq!(publish(Publish::Add, &both), [format!("{insert} \"id\", \"n\" FROM s")]);
        assert_eq!(publish(Publish::Instead, &both)[0], "TRUNCATE t");
        let ignore = format!("{insert} {} ON CONFLICT (\"id\") DO NOTHING", one(""));
        assert_eq!(publish(Publish::Ignore, &both), [ignore]);
        let merge = publish(Publish::Merge, &both).concat();
        assert!(merge.starts_with(&format!("WITH s AS (SELECT {})", one(" DESC"))), "{merge}");
        assert!(merge.contains("SET \"n\" = s.\"n\" FROM s WHERE t.\"id\" = s.\"id\" AND ("), "{merge}");
        assert!(merge.contains("ON CONFLICT (\"id\") DO UPDATE SET \"n\" = EXCLUDED.\"n\""), "{merge}");
        let newer = publish(Publish::MergeNewer, &both).concat();
        let precedes = |one, other| {
            format!(
                "(({one}.\"n\" > {other}.\"n\" OR ({one}.\"n\" IS NOT NULL AND {other}.\"n\" IS NULL))) IS NOT TRUE"
            )
        };
        assert!(newer.contains(&format!(" AND {} RETURNING 1)", precedes("t", "s"))), "{newer}");
        assert!(
            newer.contains(&format!("= EXCLUDED.\"n\" WHERE {} RETURNING 1)", precedes("o", "EXCLUDED"))),
            "{newer}"
        );
        assert!(publish(Publish::Merge, &["id"])[0].ends_with("DO NOTHING"), "nothing but the key");
    }

    #[test]
    fn a_table_that_others_refer_to_is_not_truncated() {
        let facts = |dependent: &str| TableFacts { dependents: vec![dependent.to_owned()], ..TableFacts::default() };
        assert_eq!(PostgresDialect.empty("t", Some(&facts("a foreign key of table x"))), "DELETE FROM t");
        assert_eq!(PostgresDialect.empty("t", Some(&facts("the view v"))), "TRUNCATE t");
    }

    #[test]
    fn a_new_table_takes_the_name_in_the_schema_of_the_target_and_the_name_of_its_key() {
        let new = NewTable { target: "s.t", exists: true, name: "x_new", old_name: "x_old", has_key: false };
        let statements = ["DROP TABLE \"s\".\"t\"", "ALTER TABLE \"s\".\"x_new\" RENAME TO \"t\""];
        assert_eq!(PostgresDialect.swap(new), statements);
        let with_key = PostgresDialect.swap(NewTable { exists: false, has_key: true, ..new });
        assert_eq!((with_key.len(), with_key[0].as_str()), (2, statements[1]));
        assert!(with_key[1].contains("\"s\".\"x_new_pkey\" RENAME TO \"t_pkey\""), "{}", with_key[1]);
    }
}
