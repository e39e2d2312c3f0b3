//! The sink of MySQL and MariaDB: rows by `LOAD DATA LOCAL INFILE` from memory, checked after every statement.
//!
//! `session.rs` is a connection and its bulk path, `marks.rs` whose it is, `table.rs` knows types and writes the
//! statements, `message.rs` says what went wrong. How a load goes is `database`'s.

mod marks;
mod message;
mod session;
mod spec;
mod table;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::{FieldRef, SchemaRef};
use async_trait::async_trait;
use millstream_core::Result;
use millstream_core::registry::{Built, SinkEntry};
use millstream_core::sink::{Sink, SinkParts};
use millstream_core::spec::{SpecInfo, parse};
use millstream_database::family::Family;
use millstream_database::mysql::{MysqlDialect, PORT, family, wait_for_locks};
use millstream_database::{Dialect, Place, first_cell};
use serde_json::Value;

pub use self::spec::MysqlSpec;
use crate::database::DatabaseSink;
use crate::database::encode::{RowEncoder, TextForm};
use crate::database::server::{
    Bulk, BulkColumn, Encoder, Failure, Index, Publish, Right, SeenSession, Server, Session,
};
use crate::database::spec::DatabaseSpec;
use crate::database::table::{ColumnFacts, TableFacts};
use crate::database::text::Flavour;
use crate::ledger_version;

/// The registry's entry.
pub const ENTRY: SinkEntry = SinkEntry {
    spec: SpecInfo::of::<MysqlSpec>(),
    schemes: &["mysql", "mariadb"],
    stores: false,
    formats: false,
    build: &build,
};

fn build(settings: &Value, parts: SinkParts) -> Built<dyn Sink> {
    let MysqlSpec(spec) = parse::<MysqlSpec>(settings)?;
    let place = Place::parse(&parts.target, &spec.access(), PORT).map_err(|fault| vec![fault])?;
    Ok(Arc::new(DatabaseSink { server: Arc::new(Mysql { place }), spec }))
}

/// A MySQL or MariaDB server.
#[derive(Debug)]
struct Mysql {
    place: Place,
}

#[async_trait]
impl Server for Mysql {
    fn name(&self) -> &'static str {
        "mysql"
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn product(&self) -> &'static str {
        "MySQL"
    }

    async fn connect(&self, spec: &DatabaseSpec) -> Result<Box<dyn Session>> {
        Ok(Box::new(session::connect(&self.place, spec).await?))
    }

    fn quoted(&self, name: &str) -> String {
        MysqlDialect.quoted(name)
    }

    fn column_type(&self, field: &FieldRef, is_key: bool) -> String {
        MysqlDialect.column_type(field.data_type(), is_key)
    }

    fn family(&self, field: &FieldRef, is_key: bool) -> Family {
        family(&self.column_type(field, is_key).to_lowercase())
    }

    async fn missing_rights(
        &self,
        session: &mut dyn Session,
        spec: &DatabaseSpec,
        rights: &[Right],
    ) -> Result<Vec<String>, Failure> {
        table::missing_rights(session, &self.table(spec), rights).await
    }

    async fn describe(&self, session: &mut dyn Session, spec: &DatabaseSpec) -> Result<Option<TableFacts>, Failure> {
        table::describe(session, &spec.table).await
    }

    fn create_table(&self, table: &str, spec: &DatabaseSpec, schema: &SchemaRef) -> String {
        table::create_statement(table, spec, schema)
    }

    fn add_key(&self, table: &str, spec: &DatabaseSpec) -> String {
        table::key_statement(table, spec)
    }

    async fn indexes(&self, session: &mut dyn Session, spec: &DatabaseSpec) -> Result<Vec<Index>, Failure> {
        table::indexes(session, &self.table(spec)).await
    }

    fn drop_index(&self, table: &str, name: &str) -> String {
        format!("ALTER TABLE {table} DROP INDEX {}", MysqlDialect.quoted(name))
    }

    /// One statement builds all of them in one pass over the table.
    fn create_indexes(&self, table: &str, indexes: &[Index]) -> Vec<String> {
        let added: Vec<String> = indexes.iter().map(|index| format!("ADD {}", index.definition)).collect();
        if added.is_empty() { vec![] } else { vec![format!("ALTER TABLE {table} {}", added.join(", "))] }
    }

    fn create_staging(
        &self,
        table: &str,
        target: &str,
        columns: &[String],
        arrival: bool,
        _facts: Option<&TableFacts>,
    ) -> Vec<String> {
        vec![table::staging_statement(table, target, columns, arrival)]
    }

    fn create_like(&self, table: &str, target: &str, facts: &TableFacts) -> Option<String> {
        (!facts.has_more).then(|| format!("CREATE TABLE {table} LIKE {target}"))
    }

    fn alter(&self, target: &str, added: &[(String, String)], widened: &[(ColumnFacts, String)]) -> Vec<String> {
        let added = added.iter().map(|(name, kind)| format!("ADD COLUMN {} {kind}", MysqlDialect.quoted(name)));
        let widened = widened
            .iter()
            .map(|(column, kind)| format!("MODIFY COLUMN {} {kind}{}", MysqlDialect.quoted(&column.name), column.rest));
        vec![format!("ALTER TABLE {target} {}", added.chain(widened).collect::<Vec<_>>().join(", "))]
    }

    fn bulk(&self, table: &str, columns: Vec<BulkColumn>, schema: &SchemaRef) -> Bulk {
        table::bulk(table, columns, schema, "utf8mb4")
    }

    /// The server reads text character by character, which it need not where it is told of bytes. Texts of these tables
    /// are UTF-8 as ours are, so nothing is to be converted; it is checked all the same. But JSON is not made of bytes.
    fn bulk_into_own(&self, table: &str, columns: Vec<BulkColumn>, schema: &SchemaRef) -> Bulk {
        let has_json = schema.fields().iter().any(|field| MysqlDialect.column_type(field.data_type(), false) == "JSON");
        table::bulk(table, columns, schema, if has_json { "utf8mb4" } else { "binary" })
    }

    fn encoder(&self, bulk: &Bulk, schema: &SchemaRef, spec: &DatabaseSpec) -> Box<dyn Encoder> {
        Box::new(RowEncoder::new(TextForm(Flavour::Mysql), bulk, schema, spec))
    }

    fn empty(&self, target: &str, _facts: Option<&TableFacts>) -> String {
        table::empty_statement(target)
    }

    fn publish(
        &self,
        how: Publish,
        from: &str,
        into: &str,
        spec: &DatabaseSpec,
        columns: &[String],
        facts: Option<&TableFacts>,
    ) -> Vec<String> {
        table::publish(how, from, into, spec, columns, facts)
    }

    /// One statement renames both, so that nobody sees a moment without the table.
    fn swap(&self, new: &str, old: &str, spec: &DatabaseSpec, exists: bool, _: &str, _: &str) -> Vec<String> {
        let target = self.table(spec);
        let away = if exists { format!("{target} TO {old}, ") } else { String::new() };
        vec![format!("RENAME TABLE {away}{new} TO {target}")]
    }

    fn transactional_tables(&self) -> bool {
        false
    }

    fn mark_staged(&self, staging: &str) -> Option<String> {
        Some(format!("DELETE FROM {staging} LIMIT 1"))
    }

    fn count_staged(&self, staging: &str) -> String {
        format!("SELECT COUNT(*) FROM {staging} LOCK IN SHARE MODE")
    }

    /// One of the same name takes the place of the former one.
    fn next_savepoint(&self) -> &'static str {
        "SAVEPOINT millstream"
    }

    async fn lock(&self, session: &mut dyn Session, name: &str) -> Result<bool, Failure> {
        let rows = session.query(&format!("SELECT GET_LOCK({}, 1)", MysqlDialect.literal(name))).await?;
        Ok(first_cell(rows).as_deref() == Some("1"))
    }

    async fn unlock(&self, session: &mut dyn Session, name: &str) -> Result<(), Failure> {
        session.query(&format!("SELECT RELEASE_LOCK({})", MysqlDialect.literal(name))).await.map(drop)
    }

    async fn mark(&self, session: &mut dyn Session, owner: &str) -> Result<(), Failure> {
        marks::mark(session, owner).await
    }

    async fn sessions_of(&self, session: &mut dyn Session, owner: &str) -> Result<Vec<SeenSession>, Failure> {
        marks::sessions_of(session, owner).await
    }

    async fn end_session(&self, session: &mut dyn Session, _owner: &str, id: &str) -> Result<(), Failure> {
        marks::end_session(session, id).await
    }

    async fn holders(&self, session: &mut dyn Session, _tables: &[&str]) -> Result<Vec<SeenSession>, Failure> {
        marks::holders(session).await
    }

    fn wait_for_locks(&self, limit: Duration) -> String {
        wait_for_locks(limit)
    }

    fn text(&self, text: &str) -> String {
        MysqlDialect.literal(text)
    }

    fn create_ledger(&self, table: &str) -> String {
        format!(
            "CREATE TABLE {table} (load_key CHAR(64) NOT NULL, unit_key CHAR(64) NOT NULL, chunk BIGINT NOT NULL, \
             attempt \
             CHAR(16) NOT NULL, note TEXT NULL, written_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY \
             (load_key, unit_key, chunk)) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT={}",
            MysqlDialect.literal(&ledger_version::mark())
        )
    }

    async fn comment(
        &self,
        session: &mut dyn Session,
        _spec: &DatabaseSpec,
        name: &str,
    ) -> Result<Option<String>, Failure> {
        let query = format!(
            "SELECT table_comment FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = {}",
            MysqlDialect.literal(name)
        );
        let row = session.query(&query).await?.into_iter().next();
        Ok(row.map(|row| row.into_iter().flatten().next().unwrap_or_default()))
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

    async fn tables(
        &self,
        session: &mut dyn Session,
        _spec: &DatabaseSpec,
        prefix: &str,
    ) -> Result<Vec<String>, Failure> {
        let query = format!(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND LEFT(table_name, {}) \
             = {}",
            prefix.len(),
            MysqlDialect.literal(prefix)
        );
        Ok(session.query(&query).await?.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect())
    }
}
