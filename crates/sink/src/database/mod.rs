//! The common part of the sinks of database servers: settings, loads, the search for bad rows, the comparison of a
//! table with the rows, and rows as text. Each kind of server implements [`server::Server`].
//!
//! `spec.rs` has the settings, `table.rs` compares a table with the rows, `cells.rs`, `encode.rs` and `text.rs` encode
//! Arrow values, `group.rs` has the rows of one statement, `bisect.rs` finds bad rows, `pool.rs` has the connections,
//! `load/` a load from begin to commit, `commit.rs` waits for the answer to a commit, `commit_marker.rs` has the commit
//! marker of a whole load, `action.rs` the user's actions, `indexes.rs` deferred indexes, `in_step.rs` tables that are
//! kept in step.
//!
//! `delivery.rs` loads piece by piece, `notes.rs` has what a piece notes: chunks in the ledger (`ledger.rs`,
//! `ledger_rows.rs`, `entry.rs` with the owner of a load), or positions of queues (`positions.rs`, `places.rs`;
//! `epoch.rs` merges rows).

pub(crate) mod action;
#[cfg(all(test, feature = "mysql", feature = "postgres"))]
mod ahead_tests;
pub(crate) mod bisect;
pub(crate) mod cells;
mod commit;
pub(crate) mod commit_marker;
mod delivery;
pub(crate) mod encode;
pub(crate) mod entry;
mod epoch;
#[cfg(all(test, feature = "mysql", feature = "postgres"))]
mod epoch_tests;
pub(crate) mod group;
pub(crate) mod in_step;
pub(crate) mod indexes;
pub(crate) mod ledger;
mod ledger_rows;
#[cfg(all(test, feature = "mysql", feature = "postgres"))]
mod ledger_tests;
pub(crate) mod load;
mod notes;
mod places;
pub(crate) mod pool;
pub(crate) mod positions;
#[cfg(all(test, feature = "mysql", feature = "postgres"))]
mod positions_tests;
mod replace;
pub(crate) mod server;
pub(crate) mod spec;
#[cfg(all(test, feature = "mysql", feature = "postgres"))]
mod staged_tests;
pub(crate) mod table;
#[cfg(all(test, feature = "mysql", feature = "postgres"))]
pub(crate) mod tests;
pub(crate) mod text;

use std::sync::Arc;

use arrow::datatypes::{FieldRef, SchemaRef};
use async_trait::async_trait;
use millstream_core::positions::Positions;
use millstream_core::sink::{
    ChangeNotes, FromWorkers, KnownLoad, Ledger, Load, LoadContext, Sink, StagedLoad, Written, WrittenChunks,
};
use millstream_core::source::SourceContext;
use millstream_core::{Error, Result};
use millstream_database::in_step::InStep;
use millstream_database::load::{Key, Publish, Step};
use millstream_database::table::BulkColumn;
use millstream_database::table_name;

use self::server::Server;
use self::spec::{DatabaseSpec, Mode};

/// The most columns that a table may have: the least of what MySQL and PostgreSQL allow.
const MAX_COLUMNS: usize = 1_017;

/// Writes to a table of a database server.
#[derive(Debug)]
pub(crate) struct DatabaseSink {
    pub(crate) server: Arc<dyn Server>,
    pub(crate) spec: DatabaseSpec,
}

impl DatabaseSink {
    fn schema_faults(&self, schema: &SchemaRef) -> Vec<Error> {
        let order: Vec<String> = self.spec.order().into_iter().map(|order| order.column).collect();
        let mut faults =
            table::schema_faults(self.server.dialect().product(), MAX_COLUMNS, &self.spec.key, &order, schema);
        faults.extend(schema.fields().iter().filter_map(cells::type_fault));
        faults.extend(self.spec.in_step().schema_faults(schema));
        faults
    }
}

#[async_trait]
impl Sink for DatabaseSink {
    fn name(&self) -> &'static str {
        self.server.dialect().name()
    }

    fn target(&self) -> String {
        self.server.endpoint().server.shown.clone()
    }

    fn writes(&self) -> Vec<Written> {
        let table = table_name(&self.server.endpoint().server.shown, &self.spec.table);
        self.spec.mode.writes(table).into_iter().collect()
    }

    async fn check(&self, schema: SchemaRef) -> Result<(), Vec<Error>> {
        let mut faults = self.schema_faults(&schema);
        let looked = async {
            let mut connection = pool::connect(self.server.as_ref(), &self.spec).await.map_err(|error| vec![error])?;
            // Statements of `before` may create or change the table.
            if !self.spec.before.is_empty() {
                return Ok(());
            }
            let server = self.server.as_ref();
            let (facts, _) = load::examine(server, connection.as_mut(), &self.spec, &schema).await?;
            if let Some(facts) = &facts {
                load::may_write(server, connection.as_mut(), &self.spec, &schema, facts).await?;
            }
            let scope = load::check_scope(server, connection.as_mut(), &self.spec, &schema, facts.as_ref()).await;
            scope.map_err(|error| vec![error])
        };
        faults.extend(looked.await.err().into_iter().flatten());
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    fn describe(&self, schema: SchemaRef) -> String {
        let names: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
        let (server, mut spec) = (self.server.as_ref(), self.spec.clone());
        spec.name_like(&names);
        let spec = &spec;
        let target = server.dialect().table(&spec.table);
        let (table_schema, table_key) = (spec.in_step().table_schema(&schema), spec.in_step().table_key());
        let create = server.dialect().create_table(&target, &table_schema, &table_key, spec.defer_key);
        let family = |field: &FieldRef| server.dialect().family(field.data_type(), spec.is_key(field.name()));
        let columns = schema.fields().iter().map(|field| BulkColumn::new(field.name(), family(field)));
        let order = spec.order();
        let key = Key { columns: &spec.key, order: &order };
        let beside = |name: &str| server.dialect().beside(&spec.table, &format!("_millstream_{name}"));
        let facts = load::expected_facts(server, spec, &schema);
        let publish = |how| server.dialect().publish(how, &beside("rows"), &target, key, &names, Some(&facts));
        let columns = columns.collect();
        let rows = match spec.mode {
            Mode::Replace => server.dialect().bulk_into_own(&target, columns, &schema).statement,
            _ => server.dialect().bulk(&target, columns, &schema).statement,
        };
        let steps = match spec.mode {
            Mode::Append | Mode::Truncate | Mode::Replace => return format!("{create};\n{rows}"),
            Mode::Merge => publish(Publish::Merge),
            Mode::Ignore => publish(Publish::Ignore),
            Mode::Sync | Mode::History => InStep {
                dialect: server.dialect(),
                target: &target,
                staging: &beside("rows"),
                versions: &beside("versions"),
                key: &spec.key,
                columns: &names,
                facts: Some(&facts),
                missing: spec.in_step().missing_rows(),
                scope: spec.scope.as_deref(),
                validity: spec.in_step().validity("…"),
                may_drop: false,
            }
            .steps(),
        };
        let statements: Vec<&str> = [create.as_str()].into_iter().chain(steps.iter().map(Step::sql)).collect();
        statements.join(";\n")
    }

    async fn begin(&self, context: LoadContext) -> Result<Arc<dyn Load>> {
        if let Some(first) = self.schema_faults(&context.schema).into_iter().next() {
            return Err(first);
        }
        load::begin(Arc::clone(&self.server), self.spec.clone(), context).await
    }

    fn adds_rows(&self) -> bool {
        self.spec.mode == Mode::Append
    }

    fn leaves_marker(&self) -> bool {
        matches!(self.spec.mode, Mode::Append | Mode::History)
    }

    async fn is_gone(&self, _: &SourceContext) -> Result<bool> {
        let mut connection = pool::connect(self.server.as_ref(), &self.spec).await?;
        let facts = connection.as_mut().describe(&self.spec.table).await.map_err(server::Failure::into_error)?;
        Ok(facts.is_none())
    }

    async fn known_loads(&self, context: LoadContext) -> Result<Vec<KnownLoad>> {
        ledger::known_loads(Arc::clone(&self.server), self.spec.clone(), context).await
    }

    async fn forget_marker(&self, marker: &str, context: LoadContext, unwritten: bool) -> Result<()> {
        ledger::forget_load(Arc::clone(&self.server), self.spec.clone(), marker.to_owned(), context, unwritten).await
    }

    fn may_keep_ledger(&self) -> bool {
        ledger::may_keep(&self.spec)
    }

    fn takes_of_workers(&self) -> FromWorkers {
        match self.may_keep_ledger() {
            true => FromWorkers::Chunks,
            false => FromWorkers::Nothing("its target or its settings allow no ledger".to_owned()),
        }
    }

    fn may_note_units(&self) -> bool {
        matches!(self.spec.mode, Mode::Append | Mode::Merge | Mode::Ignore)
    }

    async fn noted(&self, load: &str, context: LoadContext) -> Result<WrittenChunks> {
        let (server, spec, load) = (Arc::clone(&self.server), self.spec.clone(), load.to_owned());
        load::on_io(&context.io, async move {
            let mut connection = pool::connect(server.as_ref(), &spec).await?;
            commit_marker::noted(&server, connection.as_mut(), &spec, &load).await
        })
        .await
    }

    async fn change_notes(&self, load: &str, change: ChangeNotes, context: LoadContext) -> Result<()> {
        let (server, spec, load) = (Arc::clone(&self.server), self.spec.clone(), load.to_owned());
        let io = context.io.clone();
        load::on_io(&io, async move {
            let mut connection = pool::connect(server.as_ref(), &spec).await?;
            commit_marker::change_notes(&server, connection.as_mut(), &spec, &load, change, &context.run).await
        })
        .await
    }

    async fn ledger(&self, load: &str, context: LoadContext) -> Result<Option<Arc<dyn Ledger>>> {
        if let Some(first) = self.schema_faults(&context.schema).into_iter().next() {
            return Err(first);
        }
        ledger::open(Arc::clone(&self.server), self.spec.clone(), load.to_owned(), context).await
    }

    fn may_keep_positions(&self) -> bool {
        positions::hindrance(&self.spec).is_none()
    }

    fn sent_twice(&self) -> Option<&'static str> {
        self.spec.mode.of_sent_twice(!self.spec.order_by.is_empty())
    }

    async fn positions(&self, load: &str, owner: &str, context: LoadContext) -> Result<Option<Arc<dyn Positions>>> {
        if let Some(first) = self.schema_faults(&context.schema).into_iter().next() {
            return Err(first);
        }
        let (load, owner) = (load.to_owned(), owner.to_owned());
        positions::open(Arc::clone(&self.server), self.spec.clone(), load, owner, context).await.map(Some)
    }

    fn may_stage_chunks(&self) -> bool {
        ledger::may_stage(&self.spec)
    }

    async fn staged(&self, load: &str, of_sink: &str, context: LoadContext) -> Result<Option<StagedLoad>> {
        if let Some(first) = self.schema_faults(&context.schema).into_iter().next() {
            return Err(first);
        }
        let (load, of_sink) = (load.to_owned(), of_sink.to_owned());
        load::open_staged(Arc::clone(&self.server), self.spec.clone(), load, of_sink, context).await
    }
}
