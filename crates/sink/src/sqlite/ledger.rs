//! The ledger in a SQLite database: loads rows chunk by chunk, each delivery in one transaction with the entries of its
//! chunks. [`millstream_core::sink`] describes ledgers; `bisect.rs` and `insert.rs` insert rows.
//!
//! SQLite allows one writer, so one connection makes one delivery at a time. The answer to a commit cannot be lost.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arrow::array::RecordBatch;
use async_trait::async_trait;
use millstream_core::sink::{
    Accept, ChangeNotes, Chunk, Delivered, Delivery, FORGOTTEN, KnownLoad, Ledger, LoadContext, LoadNotes, Noted,
    Refused, Replaced, Replacement, SHOWN_BAD_ROWS, WrittenChunks,
};
use millstream_core::{Budget, Error, Result, fail_point};
use millstream_database::Dialect;
use millstream_database::load::Counted;
use millstream_database::sqlite::{self, Access, LockWait, SqliteDialect};
use rusqlite::{Connection, ErrorCode, OptionalExtension, TransactionBehavior};

use super::delivery::{self, Connected, Inserted, SqliteDelivery, blocking};
use super::finish::check_foreign_keys;
use super::loading::Loading;
use super::message::{place, sqlite_error};
use super::spec::SqliteSpec;
use super::{bisect, file, table};
use crate::database::in_step::accept_changed;
use crate::shared::{Charge, counted, create_folders, digest, remove_folders};
use crate::table_version::LEDGER;

/// The statement that creates the ledger's table.
fn create() -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS _millstream_ledger (load_key TEXT NOT NULL, unit_key TEXT NOT NULL, chunk INTEGER \
         NOT NULL, note TEXT, written_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (load_key, unit_key, \
         chunk) /* {} */) WITHOUT ROWID",
        LEDGER.comment()
    )
}

/// A ledger in a SQLite database.
pub(super) struct SqliteLedger(Arc<LedgerState>);

struct LedgerState {
    connection: Mutex<Connection>,
    loading: Loading,
    load: String,
    path: PathBuf,
    shown: String,
    spec: SqliteSpec,
    budget: Arc<Budget>,
    /// The charge for SQLite's pages.
    _cache: Charge,
    /// Whether the load is in the ledger. The first delivery enters it and creates the tables: a load that fails before
    /// leaves nothing.
    entered: AtomicBool,
    /// Whether the table is known to accept rows, since this run has delivered some.
    ready: AtomicBool,
    /// When units of the load were last forgotten, as far as the run knows.
    forgotten: i64,
    /// Whether this run has created the file.
    created_file: bool,
    created_folders: Mutex<Vec<PathBuf>>,
    /// How it waits for locks.
    lock_wait: LockWait,
}

/// Opens the ledger of `load`. Blocks.
pub(super) fn open(path: &Path, spec: &SqliteSpec, load: &str, context: LoadContext) -> Result<SqliteLedger> {
    let shown = path.display().to_string();
    let mut created_folders = Vec::new();
    if let Some(folder) = path.parent() {
        create_folders(folder, &mut created_folders)?;
    }
    let created_file = !path.exists();
    let sqlite_error = |error| sqlite_error("write to", &shown, spec, &error);
    let Connected { connection, lock_wait, cache } =
        delivery::connect(path, spec, &context.budget).map_err(sqlite_error)?;
    let entered = match look(&connection, spec, &shown, load, &context) {
        Ok(entered) => AtomicBool::new(entered),
        Err(error) => {
            leave(&connection, path, created_file, &mut created_folders);
            return Err(error);
        }
    };
    let forgotten = match entered.load(Ordering::Relaxed) {
        true => last_forgotten(&connection, load).map_err(sqlite_error)?,
        false => 0,
    };
    let mut loading = Loading::new(spec.clone(), context.schema, context.step);
    loading.watch(&connection).map_err(sqlite_error)?;
    Ok(SqliteLedger(Arc::new(LedgerState {
        connection: Mutex::new(connection),
        loading,
        load: load.to_owned(),
        path: path.to_owned(),
        shown,
        spec: spec.clone(),
        budget: context.budget,
        _cache: cache,
        entered,
        ready: AtomicBool::new(false),
        forgotten,
        created_file,
        created_folders: Mutex::new(created_folders),
        lock_wait,
    })))
}

/// Refuses a ledger of a newer version.
fn check_version(connection: &Connection, spec: &SqliteSpec, shown: &str) -> Result<()> {
    let query = "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = '_millstream_ledger'";
    let definition: Option<String> = connection
        .query_row(query, [], |row| row.get(0))
        .optional()
        .map_err(|error| sqlite_error("write to", shown, spec, &error))?;
    LEDGER.check(&definition.unwrap_or_default(), &place(shown, spec))
}

/// Whether the load is in the ledger. Fails if the table does not fit the rows.
fn look(connection: &Connection, spec: &SqliteSpec, shown: &str, load: &str, context: &LoadContext) -> Result<bool> {
    let mut faults = table::schema_faults(spec, &context.schema);
    faults.extend(table::table_faults(connection, shown, spec, &context.schema)?);
    if let Some(first) = faults.into_iter().next() {
        return Err(first);
    }
    check_version(connection, spec, shown)?;
    let sqlite_error = |error| sqlite_error("write to", shown, spec, &error);
    let entered = is_entered(connection, load).map_err(sqlite_error)?;
    if entered
        && has_written(connection, &digest(load)).map_err(sqlite_error)?
        && table::existing(connection, shown, spec)?.is_none()
    {
        return Err(crate::database::table::is_gone(&place(shown, spec)));
    }
    Ok(entered)
}

/// Whether anything of the load with this key is recorded.
fn has_written(connection: &Connection, key: &str) -> rusqlite::Result<bool> {
    let written = "SELECT EXISTS (SELECT 1 FROM _millstream_ledger WHERE load_key = ?1 AND chunk >= 0)";
    connection.query_row(written, [key], |row| row.get(0))
}

/// Removes the file and the folders that we created, if they are empty.
pub(super) fn leave(connection: &Connection, path: &Path, created_file: bool, created_folders: &mut Vec<PathBuf>) {
    if created_file {
        file::remove_empty(connection, path);
    }
    remove_folders(created_folders);
}

/// Whether there is a ledger. This uses a query, since the library's schema cache may be out of date.
fn has_ledger(connection: &Connection) -> rusqlite::Result<bool> {
    let query = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = '_millstream_ledger')";
    connection.prepare_cached(query)?.query_row([], |row| row.get(0))
}

/// What `read` finds in the ledger, `none` if there is no ledger: other loads create it and drop it between any two
/// statements.
fn in_ledger<T>(
    connection: &Connection,
    none: T,
    read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let _unchanged = connection.is_autocommit().then(|| connection.unchecked_transaction()).transpose()?;
    if has_ledger(connection)? { read(connection) } else { Ok(none) }
}

/// When units of the load were last forgotten; 0 if none were.
fn last_forgotten(connection: &Connection, load: &str) -> rusqlite::Result<i64> {
    let query = "SELECT coalesce(max(chunk), 0) FROM _millstream_ledger WHERE load_key = ?1 AND unit_key = ?2";
    connection.prepare_cached(query)?.query_row([digest(load), digest(FORGOTTEN)], |row| row.get(0))
}

/// Whether the load is in the ledger. Once it is forgotten, another run may write its rows again.
fn is_entered(connection: &Connection, load: &str) -> rusqlite::Result<bool> {
    let query = "SELECT EXISTS (SELECT 1 FROM _millstream_ledger WHERE load_key = ?1 AND chunk = -1)";
    in_ledger(connection, false, |connection| {
        connection.prepare_cached(query)?.query_row([digest(load)], |row| row.get(0))
    })
}

/// Enters a load, in the open transaction.
fn enter(connection: &Connection, load: &str) -> rusqlite::Result<()> {
    connection.execute_batch(&create())?;
    let enter = "INSERT OR IGNORE INTO _millstream_ledger (load_key, unit_key, chunk, note) VALUES (?1, '', -1, ?2)";
    connection.execute(enter, [&digest(load), load]).map(drop)
}

/// Enters a load that is written as a whole, in the open transaction. Returns whether it is already written.
pub(super) fn enter_whole(connection: &Connection, load: &str) -> rusqlite::Result<bool> {
    enter(connection, load)?;
    let written = "SELECT EXISTS (SELECT 1 FROM _millstream_ledger WHERE load_key = ?1 AND chunk = 0)";
    connection.query_row(written, [digest(load)], |row| row.get(0))
}

/// Writes the commit marker of a load, in its transaction.
pub(super) fn write_marker(connection: &Connection, load: &str) -> rusqlite::Result<()> {
    let note = "INSERT INTO _millstream_ledger (load_key, unit_key, chunk) VALUES (?1, '', 0)";
    connection.execute(note, [digest(load)]).map(drop)
}

/// Enters a load of all runs, in the open transaction. Returns whether anything is noted for it.
pub(super) fn enter_notes(connection: &Connection, load: &str) -> rusqlite::Result<bool> {
    enter(connection, load)?;
    has_written(connection, &digest(load))
}

/// Writes notes, in the transaction of the rows. Returns whether all notes that they replace were there.
pub(super) fn write_notes(connection: &Connection, notes: &LoadNotes) -> rusqlite::Result<bool> {
    write_noted(connection, &notes.load, notes.noted())
}

fn write_noted(connection: &Connection, load: &str, noted: Noted) -> rusqlite::Result<bool> {
    let mut note =
        connection.prepare("INSERT INTO _millstream_ledger (load_key, unit_key, chunk) VALUES (?1, ?2, ?3)")?;
    let mut take_back =
        connection.prepare("DELETE FROM _millstream_ledger WHERE load_key = ?1 AND unit_key = ?2 AND chunk = ?3")?;
    let load = digest(load);
    for Chunk { unit, number } in noted.replaced {
        if take_back.execute((&load, digest(&unit), number.cast_signed()))? != 1 {
            return Ok(false);
        }
    }
    for Chunk { unit, number } in noted.chunks {
        note.execute((&load, digest(&unit), number.cast_signed()))?;
    }
    Ok(true)
}

/// Changes what is noted for the load `load` in the database at `path`. Blocks.
pub(super) fn change_notes(path: &Path, spec: &SqliteSpec, load: &str, change: &ChangeNotes) -> Result<()> {
    if change(&noted(path, spec, load)?)?.is_empty() {
        return Ok(());
    }
    let shown = path.display().to_string();
    let sqlite_error = |error| sqlite_error("write to", &shown, spec, &error);
    let mut connection = sqlite::open(path, Access::Write).map_err(sqlite_error)?;
    LockWait::new(spec.busy_timeout.0).apply(&mut connection).map_err(sqlite_error)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(sqlite_error)?;
    fail_point::pass("notes.begun");
    let noted = change(&written(&transaction, load).map_err(sqlite_error)?)?.sorted();
    if !write_noted(&transaction, load, noted).map_err(sqlite_error)? {
        return Err(Error::internal("a note that is replaced is not there"));
    }
    fail_point::pass("notes.before");
    transaction.commit().map_err(sqlite_error)?;
    fail_point::pass("notes.after");
    Ok(())
}

/// What is noted for the load `load` in the database at `path`. Blocks.
pub(super) fn noted(path: &Path, spec: &SqliteSpec, load: &str) -> Result<WrittenChunks> {
    if !path.exists() {
        return Ok(WrittenChunks::new([], digest));
    }
    let shown = path.display().to_string();
    let sqlite_error = |error| sqlite_error("read", &shown, spec, &error);
    let mut connection = sqlite::open(path, Access::Write).map_err(sqlite_error)?;
    LockWait::new(spec.busy_timeout.0).apply(&mut connection).map_err(sqlite_error)?;
    check_version(&connection, spec, &shown)?;
    written(&connection, load).map_err(sqlite_error)
}

/// All chunks that are written of `load`.
fn written(connection: &Connection, load: &str) -> rusqlite::Result<WrittenChunks> {
    let query = "SELECT unit_key, chunk FROM _millstream_ledger WHERE load_key = ?1 AND chunk >= 0";
    let known = in_ledger(connection, Vec::new(), |connection| {
        let mut query = connection.prepare_cached(query)?;
        let rows = query.query_map([digest(load)], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?;
        rows.map(|row| row.map(|(unit, number)| (unit, number.unsigned_abs()))).collect()
    })?;
    Ok(WrittenChunks::new(known, digest))
}

/// All loads that are in the ledger, if there is one.
fn known_loads(connection: &Connection) -> rusqlite::Result<Vec<KnownLoad>> {
    let query = "SELECT max(note), count(*) - 1, max(0, unixepoch() - unixepoch(max(written_at))) FROM \
                 _millstream_ledger GROUP BY load_key ORDER BY 3, 1";
    in_ledger(connection, Vec::new(), |connection| {
        let mut query = connection.prepare(query)?;
        let rows = query.query_map([], |row| {
            let number = |index| row.get::<_, i64>(index).map(i64::unsigned_abs);
            let load: Option<String> = row.get(0)?;
            let (load, chunks, idle_seconds) = (load.unwrap_or_default(), number(1)?, number(2)?);
            Ok(KnownLoad { load, chunks, idle_seconds, connections: Vec::new() })
        })?;
        rows.collect()
    })
}

/// The same for the database at `path`. Blocks.
pub(super) fn look_for_loads(path: &Path, spec: &SqliteSpec) -> Result<Vec<KnownLoad>> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let sqlite_error = |error| sqlite_error("read", &path.display().to_string(), spec, &error);
    let mut connection = sqlite::open(path, Access::Write).map_err(sqlite_error)?;
    LockWait::new(spec.busy_timeout.0).apply(&mut connection).map_err(sqlite_error)?;
    check_version(&connection, spec, &path.display().to_string())?;
    known_loads(&connection).map_err(sqlite_error)
}

/// Forgets a load that is written as a whole. Blocks.
pub(super) fn forget_load(path: &Path, spec: &SqliteSpec, load: &str, unwritten: bool) -> Result<()> {
    let shown = path.display().to_string();
    // The roll-back may have removed the file.
    if !path.exists() {
        return Ok(());
    }
    let sqlite_error = |error| sqlite_error("write to", &shown, spec, &error);
    let mut connection = sqlite::open(path, Access::Write).map_err(sqlite_error)?;
    LockWait::new(spec.busy_timeout.0).apply(&mut connection).map_err(sqlite_error)?;
    check_version(&connection, spec, &shown)?;
    forget(&mut connection, &digest(load), unwritten).map(drop).map_err(sqlite_error)
}

/// Forgets the load with this key, with `unwritten` only if nothing of it is written. The ledger is dropped with the
/// last one.
fn forget(connection: &mut Connection, key: &str, unwritten: bool) -> rusqlite::Result<bool> {
    if !has_ledger(connection)? {
        return Ok(true);
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another load may have dropped it meanwhile.
    if !has_ledger(&transaction)? {
        return Ok(true);
    }
    if unwritten && has_written(&transaction, key)? {
        return Ok(false);
    }
    transaction.execute("DELETE FROM _millstream_ledger WHERE load_key = ?1", [key])?;
    let left: bool = transaction.query_row("SELECT EXISTS (SELECT 1 FROM _millstream_ledger)", [], |row| row.get(0))?;
    if !left {
        transaction.execute_batch("DROP TABLE _millstream_ledger")?;
    }
    transaction.commit()?;
    Ok(true)
}

impl LedgerState {
    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sqlite_error(&self, error: rusqlite::Error) -> Error {
        sqlite_error("write to", &self.shown, &self.spec, &error)
    }

    fn done(&self, connection: &Connection, chunks: &[Chunk]) -> rusqlite::Result<Vec<Chunk>> {
        let known = written(connection, &self.load)?;
        Ok(chunks.iter().filter(|chunk| known.contains(chunk)).cloned().collect())
    }

    /// Prepares the table and enters the load, if this is the first delivery. Returns whether the load is still in the
    /// ledger.
    fn enter(&self, connection: &Connection) -> Result<bool> {
        if !self.ready.load(Ordering::Relaxed) {
            let schema = &self.loading.schema;
            let statements = match table::existing(connection, &self.shown, &self.spec)? {
                None => vec![table::create_statement(&self.spec, schema)],
                Some(_) => table::evolving(connection, &self.spec, schema).map_err(|error| self.sqlite_error(error))?,
            };
            statements
                .iter()
                .try_for_each(|statement| connection.execute_batch(statement))
                .map_err(|error| self.sqlite_error(error))?;
        }
        if self.entered.load(Ordering::Relaxed) {
            return is_entered(connection, &self.load).map_err(|error| self.sqlite_error(error));
        }
        enter(connection, &self.load).map_err(|error| self.sqlite_error(error))?;
        Ok(true)
    }

    /// Writes rows and the entries of their chunks in one transaction.
    fn deliver(&self, chunks: &[Chunk], batches: &[RecordBatch], bad_rows: usize, accept: Accept) -> Result<Delivered> {
        let connection = self.connection();
        connection.execute_batch("BEGIN IMMEDIATE").map_err(|error| self.sqlite_error(error))?;
        let delivered = self.transaction(&connection, chunks, batches, bad_rows, accept);
        let is_written = matches!(delivered, Ok(Delivered::Written { .. }));
        let delivered = self.end(&connection, is_written, delivered)?;
        if is_written {
            self.entered.store(true, Ordering::Relaxed);
            self.ready.store(true, Ordering::Relaxed);
        }
        Ok(delivered)
    }

    fn transaction(
        &self,
        connection: &Connection,
        chunks: &[Chunk],
        batches: &[RecordBatch],
        bad_rows: usize,
        accept: Accept,
    ) -> Result<Delivered> {
        fail_point::pass("ledger.before");
        self.be_entered(connection)?;
        match self.note(connection, chunks) {
            Ok(()) => fail_point::pass("ledger.after"),
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => {
                // The entries before the conflict are ours, and must not stay.
                connection.execute_batch("ROLLBACK; BEGIN IMMEDIATE").map_err(|error| self.sqlite_error(error))?;
                return self
                    .done(connection, chunks)
                    .map(Delivered::AlreadyDone)
                    .map_err(|error| self.sqlite_error(error));
            }
            Err(error) => return Err(self.sqlite_error(error)),
        }
        let Inserted { rows, refused, further, .. } =
            delivery::insert(connection, &self.loading, &self.shown, batches, bad_rows, accept)?;
        self.note(connection, &further).map_err(|error| self.sqlite_error(error))?;
        Ok(Delivered::Written { rows, refused })
    }

    /// Replaces the rows of a unit in one transaction. Rows of other tables must not be deleted with the old ones, of
    /// which many come again: so foreign keys are not enforced, but compared before and after.
    fn replace(&self, replacement: Replacement) -> Result<Replaced> {
        let connection = self.connection();
        let told = |error| self.sqlite_error(error);
        sqlite::enforce_foreign_keys(&connection, false).map_err(told)?;
        let replaced = connection.execute_batch("BEGIN IMMEDIATE").map_err(told).and_then(|()| {
            let replaced = self.replacing(&connection, replacement);
            let is_new = matches!(replaced, Ok(Replaced { is_new: true, .. }));
            self.end(&connection, is_new, replaced)
        });
        sqlite::enforce_foreign_keys(&connection, true).map_err(told)?;
        replaced
    }

    /// Commits the transaction, or rolls it back.
    fn end<T>(&self, connection: &Connection, commits: bool, done: Result<T>) -> Result<T> {
        delivery::end(connection, commits, done, |error| self.sqlite_error(error))
    }

    fn replacing(&self, connection: &Connection, replacement: Replacement) -> Result<Replaced> {
        let Replacement { column, value, forgets, known_by, chunks, rows } = replacement;
        self.be_entered(connection)?;
        fail_point::pass("reload.begun");
        let told = |error| self.sqlite_error(error);
        if self.done(connection, &known_by).map_err(told)?.len() == known_by.len() {
            return Ok(Replaced::default());
        }
        let foreign = table::foreign_keys(connection, &self.spec).map_err(told)?;
        let forgotten = self.remove_notes(connection, &forgets).map_err(told)?;
        let (table, column) = (SqliteDialect.quoted(&self.spec.table), SqliteDialect.quoted(&column));
        let of_unit = format!("FROM {table} WHERE {column} = ?1 COLLATE BINARY");
        let deleted = connection.execute(&format!("DELETE {of_unit}"), [&value]).map_err(told)? as u64;
        if table::may_drop(connection, &self.spec).map_err(told)? {
            let left = format!("SELECT count(*) {of_unit}");
            let left: i64 = connection.query_row(&left, [&value], |row| row.get(0)).map_err(told)?;
            let old = Some(deleted + left.unsigned_abs());
            accept_changed(Counted::Deleted, deleted, old, &place(&self.shown, &self.spec))?;
        }
        fail_point::pass("reload.deleted");
        self.note(connection, &chunks).map_err(told)?;
        fail_point::pass("reload.noted");
        let (mut refused, mut inserted) = (Refused::default(), 0);
        for batch in rows {
            let batch = batch?;
            let room = SHOWN_BAD_ROWS - 1;
            let of = bisect::insert(connection, &self.loading, &self.shown, &batch, inserted, room, &mut refused)?;
            self.loading.step.add_bytes(of.bytes);
            inserted += batch.num_rows() as u64;
        }
        fail_point::pass("bulk.after");
        if !refused.rows.is_empty() || refused.more {
            return Err(refused.into_error(&place(&self.shown, &self.spec)));
        }
        check_foreign_keys(connection, &self.spec, &foreign, &self.shown).map_err(|broken| broken.error)?;
        Ok(Replaced { is_new: true, deleted, inserted, forgotten })
    }

    /// Fails if the load is not in the ledger any more.
    fn be_entered(&self, connection: &Connection) -> Result<()> {
        if self.enter(connection)? {
            return self.has_forgotten_nothing(connection);
        }
        let what = format!("another run has completed this load into {}, or has abandoned it", self.shown);
        Err(Error::refused(what).hint("see `millstream runs`; nothing was written twice"))
    }

    /// Fails if units of the load were forgotten since this run has looked at the ledger.
    fn has_forgotten_nothing(&self, connection: &Connection) -> Result<()> {
        if last_forgotten(connection, &self.load).map_err(|error| self.sqlite_error(error))? == self.forgotten {
            return Ok(());
        }
        let what = format!("files that are loaded into {} were forgotten meanwhile", self.shown);
        Err(Error::refused(what).hint("run the job again: it loads them, and nothing twice"))
    }

    fn remove_notes(&self, connection: &Connection, units: &[String]) -> rusqlite::Result<u64> {
        let delete = "DELETE FROM _millstream_ledger WHERE load_key = ?1 AND unit_key = ?2 AND chunk >= 0";
        let mut delete = connection.prepare_cached(delete)?;
        let (load, mut removed) = (digest(&self.load), 0);
        for unit in units {
            removed += delete.execute((&load, digest(unit)))? as u64;
        }
        Ok(removed)
    }

    fn note(&self, connection: &Connection, chunks: &[Chunk]) -> rusqlite::Result<()> {
        let mut insert = connection
            .prepare_cached("INSERT INTO _millstream_ledger (load_key, unit_key, chunk) VALUES (?1, ?2, ?3)")?;
        let load = digest(&self.load);
        for chunk in chunks {
            insert.execute((&load, digest(&chunk.unit), chunk.number as i64))?;
        }
        Ok(())
    }
}

#[async_trait]
impl Ledger for SqliteLedger {
    async fn written(&self) -> Result<WrittenChunks> {
        blocking(&self.0, |state| written(&state.connection(), &state.load).map_err(|error| state.sqlite_error(error)))
            .await
    }

    async fn written_of(&self, load: &str) -> Result<WrittenChunks> {
        let load = load.to_owned();
        blocking(&self.0, move |state| written(&state.connection(), &load).map_err(|error| state.sqlite_error(error)))
            .await
    }

    async fn roll_back(&self, number: u64) -> Result<()> {
        blocking(&self.0, move |state| {
            let connection = state.connection();
            let delete = "DELETE FROM _millstream_ledger WHERE load_key = ?1 AND chunk = ?2";
            let taken = has_ledger(&connection).and_then(|there| match there {
                true => connection.execute(delete, (digest(&state.load), number as i64)).map(drop),
                false => Ok(()),
            });
            taken.map_err(|error| state.sqlite_error(error))
        })
        .await
    }

    async fn count(&self) -> Result<u64> {
        blocking(&self.0, |state| {
            let connection = state.connection();
            let count = "SELECT count(*) FROM _millstream_ledger WHERE load_key = ?1 AND chunk >= 0";
            let counted = match has_ledger(&connection) {
                Ok(true) => connection.query_row(count, [digest(&state.load)], |row| row.get::<_, i64>(0)),
                other => other.map(|_| 0),
            };
            counted.map(i64::unsigned_abs).map_err(|error| state.sqlite_error(error))
        })
        .await
    }

    async fn delivery(&self, chunks: Vec<Chunk>, bad_rows: usize) -> Result<Box<dyn Delivery>> {
        let state = Arc::clone(&self.0);
        let deliver = move |batches: &[RecordBatch], accept: Accept| {
            let start = Instant::now();
            let delivered = state.deliver(&chunks, batches, bad_rows, accept);
            state.loading.step.add_busy(start.elapsed());
            delivered
        };
        Ok(Box::new(SqliteDelivery::new(&self.0.budget, deliver)))
    }

    async fn replace(&self, replacement: Replacement) -> Result<Replaced> {
        blocking(&self.0, move |state| {
            let start = Instant::now();
            let replaced = state.replace(replacement);
            state.loading.step.add_busy(start.elapsed());
            replaced
        })
        .await
    }

    async fn forget(&self, load: &str) -> Result<()> {
        let key = digest(load);
        blocking(&self.0, move |state| {
            forget(&mut state.connection(), &key, false).map(drop).map_err(|error| state.sqlite_error(error))
        })
        .await
    }

    async fn forget_unwritten(&self, load: &str) -> Result<bool> {
        let key = digest(load);
        blocking(&self.0, move |state| {
            let mut connection = state.connection();
            let forgotten = forget(&mut connection, &key, true).map_err(|error| state.sqlite_error(error))?;
            if forgotten {
                let mut folders = state.created_folders.lock().unwrap_or_else(PoisonError::into_inner);
                leave(&connection, &state.path, state.created_file, &mut folders);
            }
            Ok(forgotten)
        })
        .await
    }

    fn stop_waiting(&self) -> bool {
        self.0.lock_wait.stop();
        true
    }

    fn target(&self) -> String {
        place(&self.0.shown, &self.0.spec)
    }

    fn summary(&self, rows: u64) -> String {
        format!("{} added to table {} of {}", counted(rows, "row"), self.0.spec.table, self.0.shown)
    }

    async fn loads(&self) -> Result<Vec<KnownLoad>> {
        blocking(&self.0, |state| known_loads(&state.connection()).map_err(|error| state.sqlite_error(error))).await
    }
}
