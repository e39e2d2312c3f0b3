//! How MySQL and MariaDB write the statements of a load. It only makes SQL text, which the tests below check.

use std::time::Duration;

use arrow::datatypes::{DataType, SchemaRef};

use super::dialect::MysqlDialect;
use super::types;
use crate::dialect::{Dialect, quoted_list};
use crate::family::Family;
use crate::load::{Counted, Key, LoadDialect, NewTable, Publish, StagedKeys, Step, is_in};
use crate::order::{Order, precedes};
use crate::table::{ARRIVAL, Bulk, BulkColumn, ColumnFacts, Index, TableFacts};

impl LoadDialect for MysqlDialect {
    fn names_have_database(&self) -> bool {
        true
    }

    fn family(&self, data_type: &DataType, is_key: bool) -> Family {
        types::family(&self.column_type(data_type, is_key).to_lowercase())
    }

    fn create_table(&self, table: &str, schema: &SchemaRef, key: &[String], deferred: bool) -> String {
        let column = |field: &arrow::datatypes::FieldRef| {
            let is_key = is_in(key, field.name());
            // In old versions, a timestamp without `NULL` gets the current time.
            let null = if is_key { "NOT NULL" } else { "NULL" };
            format!("  {} {} {null}", self.quoted(field.name()), self.column_type(field.data_type(), is_key))
        };
        let mut lines: Vec<String> = schema.fields().iter().map(column).collect();
        if !key.is_empty() && !deferred {
            lines.push(format!("  PRIMARY KEY ({})", quoted_list(self, key)));
        }
        format!(
            "CREATE TABLE {table} (\n{}\n) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
            lines.join(",\n")
        )
    }

    fn add_key(&self, table: &str, key: &[String]) -> String {
        format!("ALTER TABLE {table} ADD PRIMARY KEY ({})", quoted_list(self, key))
    }

    fn drop_index(&self, table: &str, name: &str) -> String {
        format!("ALTER TABLE {table} DROP INDEX {}", self.quoted(name))
    }

    /// One statement builds all of them in one pass over the table.
    fn create_indexes(&self, table: &str, indexes: &[Index]) -> Vec<String> {
        let added: Vec<String> = indexes.iter().map(|index| format!("ADD {}", index.definition)).collect();
        if added.is_empty() { vec![] } else { vec![format!("ALTER TABLE {table} {}", added.join(", "))] }
    }

    /// It has the loaded columns, without the target's keys.
    fn create_staging(
        &self,
        table: &str,
        target: &str,
        columns: &[String],
        keys: StagedKeys<'_>,
        _facts: Option<&TableFacts>,
    ) -> Vec<String> {
        let keys = match keys {
            StagedKeys::Arrival => numbered(),
            // Without an index, the server would compare each row with all others.
            StagedKeys::Unique(key) => format!("(PRIMARY KEY ({})) ", quoted_list(self, key)),
            StagedKeys::None => String::new(),
        };
        vec![staging("TABLE", table, &keys, target, columns)]
    }

    fn create_temporary(
        &self,
        table: &str,
        target: &str,
        columns: &[String],
        _facts: Option<&TableFacts>,
    ) -> Vec<String> {
        vec![staging("TEMPORARY TABLE", table, &numbered(), target, columns)]
    }

    fn create_like(&self, table: &str, target: &str, facts: &TableFacts) -> Option<String> {
        (!facts.has_more).then(|| format!("CREATE TABLE {table} LIKE {target}"))
    }

    fn alter(&self, target: &str, added: &[(String, String)], widened: &[(ColumnFacts, String)]) -> Vec<String> {
        let added = added.iter().map(|(name, kind)| format!("ADD COLUMN {} {kind}", self.quoted(name)));
        let widened = widened
            .iter()
            .map(|(column, kind)| format!("MODIFY COLUMN {} {kind}{}", self.quoted(&column.name), column.rest));
        vec![format!("ALTER TABLE {target} {}", added.chain(widened).collect::<Vec<_>>().join(", "))]
    }

    fn bulk(&self, table: &str, columns: Vec<BulkColumn>, schema: &SchemaRef) -> Bulk {
        bulk(table, columns, schema, "utf8mb4")
    }

    /// The server reads text character by character, unless the character set is `binary`. Texts of these tables are
    /// UTF-8 like ours, so nothing is converted, but the server still checks them. JSON does not accept bytes.
    fn bulk_into_own(&self, table: &str, columns: Vec<BulkColumn>, schema: &SchemaRef) -> Bulk {
        let has_json = schema.fields().iter().any(|field| self.column_type(field.data_type(), false) == "JSON");
        bulk(table, columns, schema, if has_json { "utf8mb4" } else { "binary" })
    }

    /// `TRUNCATE` would commit.
    fn empty(&self, target: &str, _facts: Option<&TableFacts>) -> String {
        format!("DELETE FROM {target}")
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
        publish(how, from, into, key, columns, facts)
    }

    /// One statement renames both, so that no reader sees a moment without the table.
    fn swap(&self, new: NewTable<'_>) -> Vec<String> {
        let target = self.table(new.target);
        let away = match new.exists {
            true => format!("{target} TO {}, ", self.beside(new.target, new.old_name)),
            false => String::new(),
        };
        vec![format!("RENAME TABLE {away}{} TO {target}", self.beside(new.target, new.name))]
    }

    fn transactional_tables(&self) -> bool {
        false
    }

    fn unstage_one(&self, staging: &str) -> Option<String> {
        Some(format!("DELETE FROM {staging} LIMIT 1"))
    }

    fn count_staged(&self, staging: &str) -> String {
        format!("SELECT COUNT(*) FROM {staging} LOCK IN SHARE MODE")
    }

    /// A savepoint replaces an earlier one of the same name.
    fn next_savepoint(&self) -> &'static str {
        "SAVEPOINT millstream"
    }

    /// Whole seconds, at least one.
    fn wait_for_locks(&self, limit: Duration) -> String {
        let seconds = limit.as_secs().max(1);
        format!("SET SESSION innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}")
    }

    fn create_ledger(&self, table: &str, comment: &str) -> String {
        format!(
            "CREATE TABLE {table} (load_key CHAR(64) NOT NULL, unit_key CHAR(64) NOT NULL, chunk BIGINT NOT NULL, \
             attempt CHAR(16) NOT NULL, note TEXT NULL, written_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, \
             PRIMARY KEY (load_key, unit_key, chunk)) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin \
             COMMENT={}",
            self.literal(comment)
        )
    }

    fn create_positions(&self, table: &str, comment: &str) -> String {
        format!(
            "CREATE TABLE {table} (load_key CHAR(64) NOT NULL, place_key CHAR(64) NOT NULL, version BIGINT NOT NULL, \
             attempt CHAR(16) NOT NULL, owner CHAR(16) NOT NULL, state MEDIUMTEXT NOT NULL, place VARCHAR(500) NOT \
             NULL, written_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (load_key, place_key)) \
             ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT={}",
            self.literal(comment)
        )
    }

    fn is_exactly(&self, column: &str, text: &str) -> String {
        let text = self.literal(text);
        // The first part can use an index. A text as bytes is not padded with spaces.
        format!("{column} = {text} AND CAST(CONVERT({column} USING utf8mb4) AS BINARY) = CAST({text} AS BINARY)")
    }

    fn share_lock(&self) -> &'static str {
        "LOCK IN SHARE MODE"
    }

    fn lock_table(&self, table: &str) -> (Vec<String>, &'static str) {
        (vec![format!("LOCK TABLES {table} WRITE")], "UNLOCK TABLES")
    }

    fn seconds_since(&self, time: &str) -> String {
        format!("TIMESTAMPDIFF(SECOND, {time}, CURRENT_TIMESTAMP)")
    }
}

/// The statement that creates a table with columns like the target's.
fn staging(kind: &str, table: &str, keys: &str, target: &str, columns: &[String]) -> String {
    let columns = quoted_list(&MysqlDialect, columns);
    format!("CREATE {kind} {table} {keys}ENGINE=InnoDB AS SELECT {columns} FROM {target} WHERE FALSE")
}

/// The column that numbers rows as they arrive.
fn numbered() -> String {
    format!("({} BIGINT NOT NULL DEFAULT 0) ", MysqlDialect.quoted(ARRIVAL))
}

/// The bulk statement. Bytes travel as hexadecimal digits, since the server reads and checks text. `character_set` is
/// that of the data.
fn bulk(table: &str, columns: Vec<BulkColumn>, schema: &SchemaRef, character_set: &str) -> Bulk {
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
         '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n' ({}){set}",
        names.join(", ")
    );
    // Inserts need the same conversions.
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

/// The conversion around a value that its column does not take as written.
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

/// The conversion to a family: the text before and after the value.
pub fn around(family: Family) -> (&'static str, &'static str) {
    match family {
        Family::Bits => ("CAST(", " AS UNSIGNED)"),
        Family::Bytes => ("UNHEX(", ")"),
        _ => ("", ""),
    }
}

/// The statements that move staged rows into the target.
fn publish(
    how: Publish,
    from: &str,
    into: &str,
    key: Key<'_>,
    columns: &[String],
    facts: Option<&TableFacts>,
) -> Vec<Step> {
    let all = quoted_list(&MysqlDialect, columns);
    let insert = format!("INSERT INTO {into} ({all})");
    let is_key = |name: &&String| key.has(name);
    let changed: Vec<String> =
        columns.iter().filter(|name| !is_key(name)).map(|name| MysqlDialect.quoted(name)).collect();
    let on = |left: &str| -> String {
        let keys = columns.iter().filter(is_key).map(|name| format!("{left}.{0} = s.{0}", MysqlDialect.quoted(name)));
        keys.collect::<Vec<_>>().join(" AND ")
    };
    let missing = || {
        let one = one_of_each(how, from, key, columns);
        let there = format!("SELECT 1 FROM {into} t WHERE {}", on("t"));
        Step::change(format!("{insert} SELECT {all} FROM ({one}) s WHERE NOT EXISTS ({there})"), Counted::Inserted)
    };
    let every = || Step::change(format!("{insert} SELECT {all} FROM {from}"), Counted::Inserted);
    match how {
        Publish::Add => vec![every()],
        Publish::Instead => vec![Step::plain(MysqlDialect.empty(into, facts)), every()],
        Publish::Ignore => vec![missing()],
        Publish::Merge | Publish::MergeNewer if changed.is_empty() => vec![missing()],
        // `ON DUPLICATE KEY` has no condition, and would also change a row that shares another unique key.
        Publish::Merge | Publish::MergeNewer
            if how == Publish::MergeNewer || facts.is_some_and(|facts| facts.has_other_unique(key.columns)) =>
        {
            let sets: Vec<String> = changed.iter().map(|name| format!("t.{name} = s.{name}")).collect();
            let one = one_of_each(how, from, key, columns);
            let precedes =
                || precedes(key.order, |name| ["t", "s"].map(|of| format!("{of}.{}", MysqlDialect.quoted(name))));
            let newer = (how == Publish::MergeNewer).then(|| format!(" WHERE {} IS NOT TRUE", precedes()));
            let (on, newer) = (on("t"), newer.unwrap_or_default());
            let update = format!("UPDATE {into} t JOIN ({one}) s ON {on} SET {}{newer}", sets.join(", "));
            vec![Step::change(update, Counted::Merged), missing()]
        }
        Publish::Merge | Publish::MergeNewer => {
            let sets: Vec<String> = changed.iter().map(|name| format!("{name} = VALUES({name})")).collect();
            let one = one_of_each(how, from, key, columns);
            // The server changes only rows that differ in a byte.
            let upsert = format!("{insert} SELECT {all} FROM ({one}) s ON DUPLICATE KEY UPDATE {}", sets.join(", "));
            vec![Step::change(upsert, Counted::Merged)]
        }
    }
}

/// A query for one staged row per key: the first in the declared order.
fn one_of_each(how: Publish, from: &str, key: Key<'_>, columns: &[String]) -> String {
    let direction = |descending| if descending { " DESC" } else { "" };
    let ordered = |order: &Order| {
        let name = MysqlDialect.quoted(&order.column);
        // Nulls come last in either direction.
        format!("{name} IS NULL, {name}{}", direction(order.descending))
    };
    let mut order: Vec<String> = key.order.iter().map(ordered).collect();
    order.push(format!("{}{}", MysqlDialect.quoted(ARRIVAL), direction(how.merges())));
    let all = quoted_list(&MysqlDialect, columns);
    format!(
        "SELECT {all} FROM (SELECT {all}, ROW_NUMBER() OVER (PARTITION BY {} ORDER BY {}) AS `_millstream_rank` FROM \
         {from}) ranked WHERE `_millstream_rank` = 1",
        quoted_list(&MysqlDialect, key.columns),
        order.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(how: Publish, facts: Option<&TableFacts>) -> Vec<String> {
        let (columns, key) = (["id".to_owned(), "n".to_owned()], ["ID".to_owned()]);
        let order = [Order { column: "n".to_owned(), descending: true }];
        let key = Key { columns: &key, order: &order };
        let statements = MysqlDialect.publish(how, "`s`", "`t`", key, &columns, facts);
        statements.iter().map(|step| step.sql().to_owned()).collect()
    }

    #[test]
    fn staged_rows_are_published_by_what_they_do_with_those_that_are_there() {
        assert_eq!(publish(Publish::Add, None), ["INSERT INTO `t` (`id`, `n`) SELECT `id`, `n` FROM `s`"]);
        assert_eq!(publish(Publish::Instead, None)[0], "DELETE FROM `t`");
        let one = |arrival: &str| {
            format!(
                "SELECT `id`, `n` FROM (SELECT `id`, `n`, ROW_NUMBER() OVER (PARTITION BY `ID` ORDER BY `n` IS NULL, \
                 `n` DESC, `_millstream_arrival`{arrival}) AS `_millstream_rank` FROM `s`) ranked WHERE \
                 `_millstream_rank` = 1"
            )
        };
        let missing = |arrival: &str| {
            format!(
                "INSERT INTO `t` (`id`, `n`) SELECT `id`, `n` FROM ({}) s WHERE NOT EXISTS (SELECT 1 FROM `t` t WHERE \
                 t.`id` = s.`id`)",
                one(arrival)
            )
        };
        assert_eq!(publish(Publish::Ignore, None), [missing("")]);
        let merge = format!(
            "INSERT INTO `t` (`id`, `n`) SELECT `id`, `n` FROM ({}) s ON DUPLICATE KEY UPDATE `n` = VALUES(`n`)",
            one(" DESC")
        );
        assert_eq!(publish(Publish::Merge, None), [merge]);
        // A row that shares only another unique key must not be changed.
        let unique = vec![vec!["id".to_owned()], vec!["n".to_owned()]];
        let facts = TableFacts { unique, ..TableFacts::default() };
        let update = format!("UPDATE `t` t JOIN ({}) s ON t.`id` = s.`id` SET t.`n` = s.`n`", one(" DESC"));
        assert_eq!(publish(Publish::Merge, Some(&facts)), [update.clone(), missing(" DESC")]);
        let newer = "((t.`n` > s.`n` OR (t.`n` IS NOT NULL AND s.`n` IS NULL))) IS NOT TRUE";
        let update = format!("{update} WHERE {newer}");
        assert_eq!(publish(Publish::MergeNewer, None), [update, missing(" DESC")]);
    }

    #[test]
    fn one_statement_takes_the_old_table_away_and_brings_the_new_one() {
        let new = NewTable { target: "t", exists: true, name: "x_new", old_name: "x_old", has_key: true };
        assert_eq!(MysqlDialect.swap(new), ["RENAME TABLE `t` TO `x_old`, `x_new` TO `t`"]);
        assert_eq!(MysqlDialect.swap(NewTable { exists: false, ..new }), ["RENAME TABLE `x_new` TO `t`"]);
    }
}
