//! The SQLite sink: rows into a table, in one transaction, so that they become visible all at once.
//!
//! `table.rs` examines the table and writes the statements, `values.rs` converts Arrow values. `database.rs` is the
//! database that the loads of a run share, `worker.rs` the thread that writes to it, `file.rs` its file. `loading.rs`
//! is the state of a load, `ready.rs` prepares its table, `insert.rs` inserts rows, `bisect.rs` finds refused rows,
//! `new_rows.rs` counts new rows, `finish.rs` has the steps after the rows, `publish.rs` those of a table that is kept
//! in step, `user_statements.rs` runs the user's actions. `message.rs` converts errors.
//!
//! `delivery.rs` loads piece by piece: chunks with entries of the ledger (`ledger.rs`), or epochs of queues with
//! positions (`positions.rs`).

mod bisect;
mod database;
mod delivery;
mod file;
mod finish;
mod insert;
mod ledger;
#[cfg(test)]
mod ledger_tests;
mod loading;
mod message;
mod new_rows;
mod positions;
#[cfg(test)]
mod positions_tests;
mod publish;
mod ready;
mod spec;
mod table;
#[cfg(test)]
pub(crate) mod tests;
mod user_statements;
mod values;
mod worker;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use millstream_core::positions::Positions;
use millstream_core::registry::{Built, SinkEntry, SinkFormats};
use millstream_core::sink::{
    ChangeNotes, Changes, InputFacts, KnownLoad, Ledger, Load, LoadContext, Sink, SinkParts, Writer, Written,
    WrittenChunks,
};
use millstream_core::source::SourceContext;
use millstream_core::spec::{Fault, SpecInfo, parse};
use millstream_core::{Budget, Error, Result, Step};
use millstream_database::load::Step as PublishStep;
use millstream_database::sqlite::{self, Access, LockWait, SqliteDialect, path_of};
use millstream_database::{Dialect, quoted_list, table_name};
use serde_json::Value;

use self::database::{Database, Joined};
use self::loading::{Loading, Taken};
pub use self::spec::SqliteSpec;
use self::table::{Destination, Merged};
use crate::database::in_step;
use crate::database::spec::Mode;
use crate::shared::{Charge, counted, folder_fault};

/// The registry's entry.
pub const ENTRY: SinkEntry = SinkEntry {
    spec: SpecInfo::of::<SqliteSpec>(),
    schemes: &["sqlite"],
    words: &[],
    stores: false,
    formats: SinkFormats::None,
    build: &build,
};

fn build(settings: &Value, parts: SinkParts) -> Built<dyn Sink> {
    let spec = parse::<SqliteSpec>(settings);
    let path = database_path(&parts.target);
    match (spec, path) {
        (Ok(spec), Ok(path)) => Ok(Arc::new(SqliteSink { spec, path })),
        (spec, path) => Err(spec.err().into_iter().flatten().chain(path.err()).collect()),
    }
}

/// The path in `sqlite:out/x.db`; `sqlite:///x.db` is an absolute one.
fn database_path(target: &str) -> Result<PathBuf, Fault> {
    let what = match path_of(target) {
        "" => "the target names no database",
        ":memory:" => "a database in memory would be lost at the end of the run",
        folder if folder.ends_with('/') => "the target is a folder",
        nul if nul.contains('\0') => "the path holds a NUL byte",
        path => return Ok(PathBuf::from(path)),
    };
    Err(Fault::new("write", what).hint("write a file: `sqlite:out/result.db`"))
}

/// Writes to a table of a SQLite database.
#[derive(Debug, Clone)]
pub(crate) struct SqliteSink {
    spec: SqliteSpec,
    path: PathBuf,
}

#[async_trait]
impl Sink for SqliteSink {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn target(&self) -> String {
        format!("sqlite:{}", self.path.display())
    }

    fn writes(&self) -> Vec<Written> {
        let file = Written::Files { template: self.path.display().to_string(), shards: 1 };
        let table = table_name(&self.target(), &self.spec.table);
        [self.spec.mode.writes(table), Some(file)].into_iter().flatten().collect()
    }

    async fn check(&self, schema: SchemaRef) -> Result<(), Vec<Error>> {
        let lock_wait = LockWait::new(self.spec.busy_timeout.0);
        // Dropping this future stops waiting for a locked database, so the wait is on a thread of its own.
        let _wanted = lock_wait.stop_on_drop();
        let sink = self.clone();
        let looked = tokio::task::spawn_blocking(move || sink.faults(&schema, &lock_wait)).await;
        match looked {
            Ok(faults) if faults.is_empty() => Ok(()),
            Ok(faults) => Err(faults),
            Err(cause) => Err(vec![Error::internal("looking at the database failed").cause(cause)]),
        }
    }

    fn describe(&self, schema: SchemaRef) -> String {
        let merged = Merged::default();
        let insert = table::insert_statement(&self.spec, &schema, 1, Destination::of(&self.spec), &merged);
        match self.spec.mode {
            Mode::Sync | Mode::History => {
                let columns: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
                let tables = table::OwnTables::new(&self.spec, "…");
                let steps = table::in_step(&self.spec, &tables, &columns).steps();
                steps.iter().map(PublishStep::sql).collect::<Vec<_>>().join(";\n")
            }
            _ if table::is_gathered(&self.spec) => {
                table::publish_statement(&self.spec, &schema, &merged, &quoted_list(&SqliteDialect, &self.spec.key))
            }
            Mode::Append | Mode::Merge | Mode::Ignore => insert,
            Mode::Truncate => format!("DELETE FROM {};\n{insert}", SqliteDialect.quoted(&self.spec.table)),
            Mode::Replace => table::create_statement(&self.spec, &schema),
        }
    }

    async fn begin(&self, context: LoadContext) -> Result<Arc<dyn Load>> {
        let database = Database::of_run(&self.path, &context.run, &context.budget)?;
        let marker = context.marker.clone().filter(|_| self.leaves_marker());
        let (began, schema) = (context.began(), Arc::clone(&context.schema));
        let loading = Loading::new(self.spec.clone(), schema, Arc::clone(&context.step)).with_marker(marker);
        let loading = loading.noting(context.notes).refusing(context.refusals).begun_at(began);
        let Joined { load, done_before } = database.join(loading).await?;
        let (spec, path) = (self.spec.clone(), self.path.clone());
        let (budget, step, taken) = (context.budget, context.step, Mutex::default());
        Ok(Arc::new(SqliteLoad { database, load, done_before, taken, spec, path, budget, step }))
    }

    fn adds_rows(&self) -> bool {
        self.spec.mode == Mode::Append
    }

    fn leaves_marker(&self) -> bool {
        matches!(self.spec.mode, Mode::Append | Mode::History)
    }

    async fn is_gone(&self, _: &SourceContext) -> Result<bool> {
        let sink = self.clone();
        let found = tokio::task::spawn_blocking(move || sink.has_no_table()).await;
        found.map_err(|cause| Error::internal("looking for a table failed").cause(cause))?
    }

    async fn known_loads(&self, _: LoadContext) -> Result<Vec<KnownLoad>> {
        let sink = self.clone();
        let found = tokio::task::spawn_blocking(move || ledger::look_for_loads(&sink.path, &sink.spec)).await;
        found.map_err(|cause| Error::internal("looking for loads failed").cause(cause))?
    }

    async fn forget_marker(&self, marker: &str, _: LoadContext, unwritten: bool) -> Result<()> {
        let (sink, marker) = (self.clone(), marker.to_owned());
        let done =
            tokio::task::spawn_blocking(move || ledger::forget_load(&sink.path, &sink.spec, &marker, unwritten)).await;
        done.map_err(|cause| Error::internal("forgetting a load failed").cause(cause))?
    }

    fn may_note_units(&self) -> bool {
        matches!(self.spec.mode, Mode::Append | Mode::Merge | Mode::Ignore)
    }

    async fn noted(&self, load: &str, _: LoadContext) -> Result<WrittenChunks> {
        let (sink, load) = (self.clone(), load.to_owned());
        let found = tokio::task::spawn_blocking(move || ledger::noted(&sink.path, &sink.spec, &load)).await;
        found.map_err(|cause| Error::internal("looking for notes failed").cause(cause))?
    }

    async fn change_notes(&self, load: &str, change: ChangeNotes, _: LoadContext) -> Result<()> {
        let (sink, load) = (self.clone(), load.to_owned());
        let changed =
            tokio::task::spawn_blocking(move || ledger::change_notes(&sink.path, &sink.spec, &load, &change)).await;
        changed.map_err(|cause| Error::internal("changing notes failed").cause(cause))?
    }

    fn may_keep_ledger(&self) -> bool {
        let SqliteSpec { mode, atomic, defer_indexes, before, after, .. } = &self.spec;
        *mode == Mode::Append && !atomic && !defer_indexes && before.is_empty() && after.is_empty()
    }

    fn may_keep_positions(&self) -> bool {
        positions::hindrance(&self.spec).is_none()
    }

    fn sent_twice(&self) -> Option<&'static str> {
        self.spec.mode.of_sent_twice(!self.spec.order_by.is_empty())
    }

    async fn positions(&self, load: &str, owner: &str, context: LoadContext) -> Result<Option<Arc<dyn Positions>>> {
        let (sink, load, owner) = (self.clone(), load.to_owned(), owner.to_owned());
        let opened =
            tokio::task::spawn_blocking(move || positions::open(&sink.path, &sink.spec, &load, &owner, context));
        let opened = opened.await.map_err(|cause| Error::internal("opening the positions failed").cause(cause))??;
        Ok(Some(Arc::new(opened)))
    }

    async fn ledger(&self, load: &str, context: LoadContext) -> Result<Option<Arc<dyn Ledger>>> {
        if !self.may_keep_ledger() {
            return Ok(None);
        }
        let (sink, load) = (self.clone(), load.to_owned());
        let opened = tokio::task::spawn_blocking(move || ledger::open(&sink.path, &sink.spec, &load, context)).await;
        let opened = opened.map_err(|cause| Error::internal("opening the ledger failed").cause(cause))??;
        Ok(Some(Arc::new(opened)))
    }
}

impl SqliteSink {
    fn faults(&self, schema: &SchemaRef, lock_wait: &LockWait) -> Vec<Error> {
        let mut faults = table::schema_faults(&self.spec, schema);
        faults.extend(schema.fields().iter().filter_map(values::type_fault));
        match self.place_faults(schema, lock_wait) {
            Ok(more) => faults.extend(more),
            Err(error) => faults.push(error),
        }
        faults
    }

    fn has_no_table(&self) -> Result<bool> {
        if !self.path.exists() {
            return Ok(true);
        }
        let shown = self.path.display().to_string();
        let opened = sqlite::open(&self.path, Access::Write);
        let connection = opened.map_err(|error| message::sqlite_error("read", &shown, &self.spec, &error))?;
        Ok(table::existing(&connection, &shown, &self.spec)?.is_none())
    }

    /// Faults of the file and of the table in it.
    fn place_faults(&self, schema: &SchemaRef, lock_wait: &LockWait) -> Result<Vec<Error>> {
        let shown = self.path.display().to_string();
        let folder = self.path.parent().unwrap_or(Path::new(""));
        let Ok(metadata) = fs_err::metadata(&self.path) else {
            let scope = table::scope_fault_of_new(&shown, &self.spec, schema).filter(|_| self.spec.before.is_empty());
            return Ok(folder_fault(folder).into_iter().chain(scope).collect());
        };
        if metadata.is_dir() {
            return Ok(vec![file::is_folder(&shown)]);
        }
        // SQLite creates its journal beside the file, so the folder must be writable, too.
        let mut faults: Vec<Error> = folder_fault(folder).into_iter().collect();
        if let Err(cause) = rustix::fs::access(&self.path, rustix::fs::Access::WRITE_OK)
            && faults.is_empty()
        {
            faults.push(crate::shared::path_error("write to", &self.path, &std::io::Error::from(cause)));
        }
        // The next reader rolls back the transaction of a killed process, for which it must be able to write.
        let mut journal = self.path.clone().into_os_string();
        journal.push("-journal");
        let access = match Path::new(&journal).exists() && faults.is_empty() {
            true => Access::Recover,
            false => Access::Read,
        };
        let told = |error| message::sqlite_error("read", &shown, &self.spec, &error);
        let mut connection = sqlite::open(&self.path, access).map_err(told)?;
        lock_wait.apply(&mut connection).map_err(told)?;
        // Statements of `before` may create or change the table.
        if self.spec.before.is_empty() {
            faults.extend(table::table_faults(&connection, &shown, &self.spec, schema)?);
        }
        Ok(faults)
    }
}

/// A load into a table.
struct SqliteLoad {
    database: Arc<Database>,
    load: u64,
    /// Whether an earlier run has written the rows.
    done_before: bool,
    /// What the table has accepted, once committed.
    taken: Mutex<Taken>,
    spec: SqliteSpec,
    path: PathBuf,
    budget: Arc<Budget>,
    step: Arc<Step>,
}

#[async_trait]
impl Load for SqliteLoad {
    async fn writer(&self, _partition: usize) -> Result<Box<dyn Writer>> {
        Ok(Box::new(SqliteWriter {
            database: Arc::clone(&self.database),
            load: self.load,
            budget: Arc::clone(&self.budget),
            step: Arc::clone(&self.step),
        }))
    }

    fn accept(&self, input: &InputFacts) -> Result<()> {
        let target = message::place(&self.path.display().to_string(), &self.spec);
        self.spec.in_step().accept(input, &target)
    }

    async fn prepare(&self) -> Result<()> {
        self.database.prepare(self.load).await
    }

    fn is_there(&self) -> bool {
        self.done_before
    }

    fn ignored(&self) -> u64 {
        self.taken().left_out
    }

    fn changes(&self) -> Option<Changes> {
        let taken = self.taken();
        taken.counts.changes(self.spec.mode, taken.rows)
    }

    async fn commit(&self) -> Result<String> {
        let taken = self.database.commit(self.load).await?;
        let place = message::place(&self.path.display().to_string(), &self.spec);
        if self.done_before {
            return Ok(format!("nothing new for {place}: its rows were added before"));
        }
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = taken;
        let rows = counted(taken.rows, "row");
        let shown = |changes: &Changes| in_step::shown(changes, self.spec.mode, self.spec.missing.as_ref());
        let changes = self.changes().as_ref().map_or(String::new(), |changes| format!(": {}", shown(changes)));
        Ok(match self.spec.mode {
            Mode::Append => format!("{rows} added to {place}"),
            Mode::Merge => format!("{rows} merged into {place}{changes}"),
            Mode::Sync | Mode::History => format!("{rows} compared with {place}{changes}"),
            Mode::Ignore => {
                format!("{rows} offered to {place}, {} left out as duplicates", counted(taken.left_out, "row"))
            }
            Mode::Replace | Mode::Truncate => format!("{rows} in {place}"),
        })
    }

    async fn abort(&self) {
        self.database.abort().await;
    }
}

impl SqliteLoad {
    fn taken(&self) -> Taken {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends one partition to the writing thread.
struct SqliteWriter {
    database: Arc<Database>,
    load: u64,
    budget: Arc<Budget>,
    step: Arc<Step>,
}

#[async_trait]
impl Writer for SqliteWriter {
    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        let charge = Charge::held(&self.budget, batch.get_array_memory_size());
        let start = Instant::now();
        let handed = self.database.rows(self.load, batch, charge).await;
        self.step.add_waiting_output(start.elapsed());
        handed
    }

    async fn close(&mut self) -> Result<()> {
        let start = Instant::now();
        let settled = self.database.settle().await;
        self.step.add_waiting_output(start.elapsed());
        settled
    }
}
