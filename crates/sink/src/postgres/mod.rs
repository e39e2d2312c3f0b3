//! The sink of PostgreSQL: rows by binary `COPY`, or by `COPY` of text where a column's type has no binary form here.
//!
//! `session.rs` is a connection and its bulk path, `marks.rs` whose it is, `binary.rs` the rows in binary form,
//! `table.rs` knows types and writes the statements, `message.rs` says what went wrong. How a load goes is
//! `database`'s.

mod binary;
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
use millstream_database::postgres::{PORT, PostgresDialect, family, parts, schema_of, wait_for_locks};
use millstream_database::{Dialect, Place, first_cell};
use serde_json::Value;

use self::binary::BinaryForm;
pub use self::spec::PostgresSpec;
use self::table::CopyText;
use crate::database::DatabaseSink;
use crate::database::encode::RowEncoder;
use crate::database::server::{
    Bulk, BulkColumn, Encoder, Failure, Index, Publish, Right, SeenSession, Server, Session,
};
use crate::database::spec::DatabaseSpec;
use crate::database::table::{ColumnFacts, TableFacts};
use crate::ledger_version;

/// The registry's entry.
pub const ENTRY: SinkEntry = SinkEntry {
    spec: SpecInfo::of::<PostgresSpec>(),
    schemes: &["postgres", "postgresql"],
    stores: false,
    formats: false,
    build: &build,
};

/// How often a lock is tried for, and with which pause.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

fn build(settings: &Value, parts: SinkParts) -> Built<dyn Sink> {
    let PostgresSpec(spec) = parse::<PostgresSpec>(settings)?;
    let place = Place::parse(&parts.target, &spec.access(), PORT).map_err(|fault| vec![fault])?;
    Ok(Arc::new(DatabaseSink { server: Arc::new(Postgres { place }), spec }))
}

/// A PostgreSQL server.
#[derive(Debug)]
struct Postgres {
    place: Place,
}

#[async_trait]
impl Server for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn product(&self) -> &'static str {
        "PostgreSQL"
    }

    async fn connect(&self, spec: &DatabaseSpec) -> Result<Box<dyn Session>> {
        Ok(Box::new(session::connect(&self.place, spec).await?))
    }

    fn quoted(&self, name: &str) -> String {
        PostgresDialect.quoted(name)
    }

    fn table(&self, spec: &DatabaseSpec) -> String {
        let (_, table) = parts(&spec.table);
        self.beside(spec, table)
    }

    fn bare_table<'a>(&self, spec: &'a DatabaseSpec) -> &'a str {
        parts(&spec.table).1
    }

    fn beside(&self, spec: &DatabaseSpec, name: &str) -> String {
        match parts(&spec.table).0 {
            Some(schema) => format!("{}.{}", PostgresDialect.quoted(schema), PostgresDialect.quoted(name)),
            None => PostgresDialect.quoted(name),
        }
    }

    fn column_type(&self, field: &FieldRef, _is_key: bool) -> String {
        PostgresDialect.column_type(field.data_type(), false)
    }

    fn family(&self, field: &FieldRef, is_key: bool) -> Family {
        family(&self.column_type(field, is_key))
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
        table::indexes(session, &spec.table).await
    }

    fn drop_index(&self, _table: &str, name: &str) -> String {
        format!("DROP INDEX {name}")
    }

    fn create_indexes(&self, _table: &str, indexes: &[Index]) -> Vec<String> {
        indexes.iter().map(|index| index.definition.clone()).collect()
    }

    fn create_staging(
        &self,
        table: &str,
        target: &str,
        columns: &[String],
        arrival: bool,
        facts: Option<&TableFacts>,
    ) -> Vec<String> {
        table::staging_statements(table, target, columns, arrival, facts)
    }

    /// A new table would be without the views on the old one, its rights, its sequences.
    fn create_like(&self, _table: &str, _target: &str, _facts: &TableFacts) -> Option<String> {
        None
    }

    fn alter(&self, target: &str, added: &[(String, String)], widened: &[(ColumnFacts, String)]) -> Vec<String> {
        let added = added.iter().map(|(name, kind)| format!("ADD COLUMN {} {kind}", PostgresDialect.quoted(name)));
        let widened = widened
            .iter()
            .map(|(column, kind)| format!("ALTER COLUMN {} TYPE {kind}", PostgresDialect.quoted(&column.name)));
        vec![format!("ALTER TABLE {target} {}", added.chain(widened).collect::<Vec<_>>().join(", "))]
    }

    fn bulk(&self, table: &str, columns: Vec<BulkColumn>, schema: &SchemaRef) -> Bulk {
        let types = schema.fields().iter().zip(&columns);
        let binary = types.into_iter().all(|(field, column)| binary::has_form(field.data_type(), column.family));
        let names: Vec<String> = columns.iter().map(|column| PostgresDialect.quoted(&column.name)).collect();
        let form = if binary { " (FORMAT binary)" } else { "" };
        let statement = format!("COPY {table} ({}) FROM STDIN{form}", names.join(", "));
        Bulk { statement, table: table.to_owned(), columns, binary }
    }

    fn encoder(&self, bulk: &Bulk, schema: &SchemaRef, spec: &DatabaseSpec) -> Box<dyn Encoder> {
        match bulk.binary {
            true => Box::new(RowEncoder::new(BinaryForm::new(bulk), bulk, schema, spec)),
            false => Box::new(RowEncoder::new(CopyText::new(bulk), bulk, schema, spec)),
        }
    }

    fn shown(&self, bulk: &Bulk, row: &[u8]) -> String {
        if bulk.binary { binary::shown(bulk, row) } else { bulk.shown_text(row) }
    }

    fn empty(&self, target: &str, facts: Option<&TableFacts>) -> String {
        table::empty_statement(target, facts)
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

    fn swap(
        &self,
        new: &str,
        _old: &str,
        spec: &DatabaseSpec,
        exists: bool,
        new_name: &str,
        _old_name: &str,
    ) -> Vec<String> {
        let (_, name) = parts(&spec.table);
        let mut statements = Vec::new();
        if exists {
            statements.push(format!("DROP TABLE {}", self.table(spec)));
        }
        statements.push(format!("ALTER TABLE {new} RENAME TO {}", PostgresDialect.quoted(name)));
        if !spec.key.is_empty() {
            let (made, wanted) = (self.beside(spec, &table::key_name(new_name)), table::key_name(name));
            statements.push(table::rename_key(&made, &wanted, &self.beside(spec, &wanted)));
        }
        statements
    }

    fn transactional_tables(&self) -> bool {
        true
    }

    async fn transaction(&self, session: &mut dyn Session) -> Result<Option<String>, Failure> {
        let rows = session.query("SELECT txid_current()").await?;
        Ok(rows.into_iter().flatten().flatten().next())
    }

    async fn was_committed(&self, session: &mut dyn Session, name: &str) -> Result<Option<bool>, Failure> {
        let rows = session.query(&format!("SELECT txid_status({name})")).await?;
        Ok(match rows.into_iter().flatten().flatten().next().as_deref() {
            Some("committed") => Some(true),
            Some("aborted") => Some(false),
            _ => None,
        })
    }

    /// One of the same name would stand inside of the former one, which stays, and the server has room for some
    /// thousands.
    fn next_savepoint(&self) -> &'static str {
        "RELEASE SAVEPOINT millstream; SAVEPOINT millstream"
    }

    async fn lock(&self, session: &mut dyn Session, name: &str) -> Result<bool, Failure> {
        let query = format!("SELECT pg_try_advisory_lock(hashtextextended({}, 0))", PostgresDialect.literal(name));
        for _ in 0..LOCK_TRIES {
            let rows = session.query(&query).await?;
            if first_cell(rows).as_deref() == Some("t") {
                return Ok(true);
            }
            tokio::time::sleep(LOCK_PAUSE).await;
        }
        Ok(false)
    }

    async fn unlock(&self, session: &mut dyn Session, name: &str) -> Result<(), Failure> {
        let query = format!("SELECT pg_advisory_unlock(hashtextextended({}, 0))", PostgresDialect.literal(name));
        session.query(&query).await.map(drop)
    }

    async fn mark(&self, session: &mut dyn Session, owner: &str) -> Result<(), Failure> {
        marks::mark(session, owner).await
    }

    async fn sessions_of(&self, session: &mut dyn Session, owner: &str) -> Result<Vec<SeenSession>, Failure> {
        marks::sessions_of(session, owner).await
    }

    async fn end_session(&self, session: &mut dyn Session, owner: &str, id: &str) -> Result<(), Failure> {
        marks::end_session(session, owner, id).await
    }

    async fn holders(&self, session: &mut dyn Session, tables: &[&str]) -> Result<Vec<SeenSession>, Failure> {
        marks::holders(session, tables).await
    }

    fn wait_for_locks(&self, limit: Duration) -> String {
        wait_for_locks(limit)
    }

    fn text(&self, text: &str) -> String {
        PostgresDialect.literal(text)
    }

    fn create_ledger(&self, table: &str) -> String {
        format!(
            "CREATE TABLE {table} (load_key char(64) NOT NULL, unit_key char(64) NOT NULL, chunk bigint NOT NULL, \
             attempt \
             char(16) NOT NULL, note text, written_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (load_key, \
             unit_key, \
             chunk)); COMMENT ON TABLE {table} IS {}",
            PostgresDialect.literal(&ledger_version::mark())
        )
    }

    async fn comment(
        &self,
        session: &mut dyn Session,
        spec: &DatabaseSpec,
        name: &str,
    ) -> Result<Option<String>, Failure> {
        let query = format!(
            "SELECT obj_description(c.oid, 'pg_class') FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = {} AND c.relname = {} AND c.relkind IN ('r', 'p')",
            schema_of(&spec.table),
            PostgresDialect.literal(name)
        );
        let row = session.query(&query).await?.into_iter().next();
        Ok(row.map(|row| row.into_iter().flatten().next().unwrap_or_default()))
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

    async fn tables(
        &self,
        session: &mut dyn Session,
        spec: &DatabaseSpec,
        prefix: &str,
    ) -> Result<Vec<String>, Failure> {
        let query = format!(
            "SELECT tablename FROM pg_tables WHERE schemaname = {} AND left(tablename, {}) = {}",
            schema_of(&spec.table),
            prefix.len(),
            PostgresDialect.literal(prefix)
        );
        Ok(session.query(&query).await?.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect())
    }
}
