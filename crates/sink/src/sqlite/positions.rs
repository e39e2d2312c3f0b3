//! Positions of queues in a SQLite database, moved in the transactions of the rows. [`millstream_core::positions`]
//! describes them.
//!
//! SQLite allows one writer, so whatever moves or reads positions for certain begins by taking the write lock. The
//! answer to a commit cannot be lost. SQLite knows no connections of others: a stopped process that holds the lock is
//! waited for, and cannot be ended.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use async_trait::async_trait;
use millstream_core::epochs::Epochs;
use millstream_core::positions::{Change, Move, Moved, Position, Positions};
use millstream_core::sink::{Accept, Changes, Delivered, Delivery, LoadContext};
use millstream_core::{Budget, Error, Result, fail_point};
use millstream_database::sqlite::LockWait;
use rusqlite::{Connection, OptionalExtension};

use super::delivery::{self, Connected, Inserted, SqliteDelivery, blocking};
use super::finish::moved_error;
use super::loading::Loading;
use super::message::{place, sqlite_error};
use super::spec::SqliteSpec;
use super::table::{self, Destination};
use super::{ledger, new_rows};
use crate::database::in_step::Counts;
use crate::database::positions::{is_gone, needs_an_end};
use crate::database::spec::Mode;
use crate::moves;
use crate::shared::{Charge, counted, create_folders, digest};
use crate::table_version::POSITIONS;

/// The statement that creates the table of positions.
fn create() -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS _millstream_positions (load_key TEXT NOT NULL, place TEXT NOT NULL, version \
         INTEGER NOT NULL, owner TEXT NOT NULL, state TEXT NOT NULL, written_at TEXT NOT NULL DEFAULT \
         CURRENT_TIMESTAMP, PRIMARY KEY (load_key, place) /* {} */)",
        POSITIONS.comment()
    )
}

/// Positions in a SQLite database.
pub(super) struct SqlitePositions(Arc<State>);

struct State {
    connection: Mutex<Connection>,
    loading: Loading,
    load_key: String,
    owner: String,
    shown: String,
    spec: SqliteSpec,
    budget: Arc<Budget>,
    _cache: Charge,
    lock_wait: LockWait,
    done: Mutex<Done>,
}

/// What this process has done so far.
#[derive(Debug, Clone, Copy, Default)]
struct Done {
    rows: u64,
    left_out: u64,
    counts: Counts,
}

/// The setting that keeps positions from being kept, if there is one.
pub(super) fn hindrance(spec: &SqliteSpec) -> Option<&'static str> {
    match spec {
        SqliteSpec { mode, .. } if !mode.takes_epochs() => Some(mode.setting()),
        SqliteSpec { atomic: true, .. } => Some("atomic"),
        SqliteSpec { defer_indexes: true, .. } => Some("defer_indexes"),
        SqliteSpec { before, .. } if !before.is_empty() => Some("before"),
        SqliteSpec { after, .. } if !after.is_empty() => Some("after"),
        _ => None,
    }
}

/// Opens the positions of `load` for the process `owner`. Blocks.
pub(super) fn open(
    path: &Path,
    spec: &SqliteSpec,
    load: &str,
    owner: &str,
    context: LoadContext,
) -> Result<SqlitePositions> {
    moves::check_owner(owner)?;
    let shown = path.display().to_string();
    if let Some(setting) = hindrance(spec) {
        return Err(needs_an_end(&place(&shown, spec), setting));
    }
    let mut created: Vec<PathBuf> = Vec::new();
    if let Some(folder) = path.parent() {
        create_folders(folder, &mut created)?;
    }
    let created_file = !path.exists();
    let told = |error| sqlite_error("write to", &shown, spec, &error);
    let Connected { mut connection, lock_wait, cache } =
        delivery::connect(path, spec, &context.budget).map_err(told)?;
    let mut loading = Loading::new(spec.clone(), context.schema, context.step);
    let ready = connection.execute_batch("BEGIN IMMEDIATE").map_err(told).and_then(|()| {
        let ready = make_ready(&connection, &loading, &shown, &digest(load));
        delivery::end(&connection, ready.is_ok(), ready, told)
    });
    if let Err(error) = ready {
        ledger::leave(&connection, path, created_file, &mut created);
        return Err(error);
    }
    be_ready(&mut connection, &mut loading).map_err(told)?;
    Ok(SqlitePositions(Arc::new(State {
        connection: Mutex::new(connection),
        loading,
        load_key: digest(load),
        owner: owner.to_owned(),
        shown,
        spec: spec.clone(),
        budget: context.budget,
        _cache: cache,
        lock_wait,
        done: Mutex::default(),
    })))
}

/// Makes the table and that of the positions, in the open transaction.
fn make_ready(connection: &Connection, loading: &Loading, shown: &str, load_key: &str) -> Result<()> {
    let Loading { spec, schema, .. } = loading;
    let told = |error| sqlite_error("write to", shown, spec, &error);
    let mut faults = table::schema_faults(spec, schema);
    faults.extend(table::table_faults(connection, shown, spec, schema)?);
    if let Some(first) = faults.into_iter().next() {
        return Err(first);
    }
    let definition = "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = '_millstream_positions'";
    let definition: Option<String> = connection.query_row(definition, [], |row| row.get(0)).optional().map_err(told)?;
    POSITIONS.check(&definition.unwrap_or_default(), &place(shown, spec))?;
    connection.execute_batch(&create()).map_err(told)?;
    let exists = table::existing(connection, shown, spec)?.is_some();
    if !exists && !all(connection, load_key).map_err(told)?.is_empty() {
        let delete = format!("DELETE FROM {} WHERE load_key = '{load_key}'", POSITIONS.name);
        return Err(is_gone(&place(shown, spec), &delete));
    }
    let statements = match exists {
        false => vec![table::create_statement(spec, schema)],
        true => table::evolving(connection, spec, schema).map_err(told)?,
    };
    statements.iter().try_for_each(|statement| connection.execute_batch(statement)).map_err(told)
}

/// Prepares the connection for rows.
fn be_ready(connection: &mut Connection, loading: &mut Loading) -> rusqlite::Result<()> {
    loading.watch(connection)?;
    if loading.spec.mode == Mode::Merge {
        if !loading.spec.order_by.is_empty() {
            loading.merged = std::mem::take(&mut loading.merged).newer();
        }
        new_rows::count(connection, vec![(loading.spec.table.clone(), loading.new_rows.clone())])?;
    }
    if loading.destination() == Destination::Gathering {
        loading.tried = table::checks_rows(connection, &loading.spec)?;
        connection.execute_batch(&table::temporary_gathering(&loading.spec, &loading.schema))?;
    }
    Ok(())
}

/// All positions of a load, by place.
fn all(connection: &Connection, load_key: &str) -> rusqlite::Result<Vec<Position>> {
    let mut query = connection.prepare_cached(
        "SELECT place, version, owner, state, max(0, unixepoch() - unixepoch(written_at)) FROM _millstream_positions \
         WHERE load_key = ?1 ORDER BY place",
    )?;
    let rows = query.query_map([load_key], |row| {
        let number = |index| row.get::<_, i64>(index).map(i64::unsigned_abs);
        let (place, owner, state) = (row.get(0)?, row.get(2)?, row.get(3)?);
        Ok(Position { place, version: number(1)?, owner, state, idle: Duration::from_secs(number(4)?) })
    })?;
    rows.collect()
}

impl State {
    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sqlite_error(&self, error: rusqlite::Error) -> Error {
        sqlite_error("write to", &self.shown, &self.spec, &error)
    }

    fn all(&self, connection: &Connection) -> Result<Vec<Position>> {
        all(connection, &self.load_key).map_err(|error| self.sqlite_error(error))
    }

    /// Does `work` with the write lock. It says whether that is committed.
    fn transaction<T>(&self, work: impl FnOnce(&Connection) -> Result<(bool, T)>) -> Result<T> {
        let connection = self.connection();
        connection.execute_batch("BEGIN IMMEDIATE").map_err(|error| self.sqlite_error(error))?;
        let done = work(&connection);
        let commits = matches!(done, Ok((true, _)));
        let done = delivery::end(&connection, commits, done, |error| self.sqlite_error(error));
        done.map(|(_, done)| done)
    }

    /// Makes moves in the open transaction. Returns the places that stand elsewhere if not all could be made.
    fn make(&self, connection: &Connection, moves: &[Move]) -> Result<Option<Vec<Position>>> {
        fail_point::pass("ledger.before");
        for one in moves {
            if self.make_one(connection, one).map_err(|error| self.sqlite_error(error))? != 1 {
                // What was made before it is rolled back.
                connection.execute_batch("ROLLBACK; BEGIN IMMEDIATE").map_err(|error| self.sqlite_error(error))?;
                return Ok(Some(moves::elsewhere(moves, self.all(connection)?)));
            }
        }
        fail_point::pass("ledger.after");
        Ok(None)
    }

    fn make_one(&self, connection: &Connection, one: &Move) -> rusqlite::Result<usize> {
        let (load, place, owner) = (&self.load_key, &one.place, &self.owner);
        let from = one.from.unwrap_or_default().cast_signed();
        match (&one.from, &one.to) {
            (Some(_), Some(state)) => connection
                .prepare_cached(
                    "UPDATE _millstream_positions SET version = version + 1, owner = ?1, state = ?2, written_at = \
                     CURRENT_TIMESTAMP WHERE load_key = ?3 AND place = ?4 AND version = ?5",
                )?
                .execute((owner, state, load, place, from)),
            (Some(_), None) => connection
                .prepare_cached(
                    "DELETE FROM _millstream_positions WHERE load_key = ?1 AND place = ?2 AND version = ?3",
                )?
                .execute((load, place, from)),
            (None, state) => connection
                .prepare_cached(
                    "INSERT OR IGNORE INTO _millstream_positions (load_key, place, version, owner, state) VALUES (?1, \
                     ?2, 1, ?3, ?4)",
                )?
                .execute((load, place, owner, state.as_deref().unwrap_or_default())),
        }
    }

    fn set(&self, moves: &[Move]) -> Result<Moved> {
        self.transaction(|connection| {
            let elsewhere = self.make(connection, moves)?;
            Ok((elsewhere.is_none(), elsewhere.map_or(Moved::All, Moved::None)))
        })
    }

    fn fence(&self, mut change: Change) -> Result<()> {
        self.transaction(|connection| {
            let moves = change(&self.all(connection)?)?;
            moves::check(&moves)?;
            match self.make(connection, &moves)? {
                None => Ok((true, ())),
                Some(_) => Err(Error::internal("a change of positions names versions that are not there")),
            }
        })
    }

    /// Moves places, and writes rows, in one transaction.
    fn deliver(&self, moves: &[Move], batches: &[RecordBatch], bad_rows: usize, accept: Accept) -> Result<Delivered> {
        let delivered = self.transaction(|connection| {
            if let Some(elsewhere) = self.make(connection, moves)? {
                return Ok((false, Err(elsewhere)));
            }
            let mut inserted = delivery::insert(connection, &self.loading, &self.shown, batches, bad_rows, accept)?;
            if !inserted.further.is_empty() {
                return Err(Error::internal("chunks were noted with rows of a queue"));
            }
            if self.loading.destination() == Destination::Gathering {
                self.move_gathered(connection, &mut inserted)?;
            }
            Ok((true, Ok(inserted)))
        })?;
        let Inserted { rows, refused, left_out, written, new, .. } = match delivered {
            Ok(inserted) => inserted,
            Err(elsewhere) => return Ok(Delivered::Moved(elsewhere)),
        };
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.rows += rows;
        done.left_out += left_out;
        done.counts.inserted += new;
        done.counts.updated += written.saturating_sub(new);
        Ok(Delivered::Written { rows, refused })
    }

    /// Moves the gathered rows into the table.
    fn move_gathered(&self, connection: &Connection, inserted: &mut Inserted) -> Result<()> {
        let statement = table::publish_statement(&self.spec, &self.loading.schema, &self.loading.merged, "");
        let changed = connection.prepare_cached(&statement).and_then(|mut statement| statement.execute([]));
        let changed = changed.map_err(|error| moved_error(&self.loading, &self.shown, &error))?;
        inserted.left_out = inserted.rows.saturating_sub(changed as u64);
        let emptied = connection.execute(&format!("DELETE FROM {}", table::gathering(&self.spec)), []);
        emptied.map(drop).map_err(|error| self.sqlite_error(error))
    }

    fn done(&self) -> Done {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Epochs for SqlitePositions {
    async fn delivery(&self, moves: Vec<Move>, bad_rows: usize) -> Result<Box<dyn Delivery>> {
        moves::check(&moves)?;
        let state = Arc::clone(&self.0);
        let deliver = move |batches: &[RecordBatch], accept: Accept| {
            let start = Instant::now();
            let delivered = state.deliver(&moves, batches, bad_rows, accept);
            state.loading.step.add_busy(start.elapsed());
            delivered
        };
        Ok(Box::new(SqliteDelivery::new(&self.0.budget, deliver)))
    }

    fn target(&self) -> String {
        place(&self.0.shown, &self.0.spec)
    }

    fn summary(&self, rows: u64) -> String {
        let (rows, target) = (counted(rows, "row"), self.target());
        match self.0.spec.mode {
            Mode::Merge => format!("{rows} merged into {target}"),
            Mode::Ignore => format!("{rows} offered to {target}"),
            _ => format!("{rows} added to {target}"),
        }
    }

    fn ignored(&self) -> u64 {
        match self.0.spec.mode {
            Mode::Ignore => self.0.done().left_out,
            _ => 0,
        }
    }

    fn changes(&self) -> Option<Changes> {
        let Done { rows, counts, .. } = self.0.done();
        // Of some tables SQLite does not report which rows are new.
        counts.changes(self.0.spec.mode, rows).filter(|_| self.0.loading.unreported.is_none())
    }

    fn stop_waiting(&self) -> bool {
        self.0.lock_wait.stop();
        true
    }
}

#[async_trait]
impl Positions for SqlitePositions {
    async fn read(&self) -> Result<Vec<Position>> {
        blocking(&self.0, |state| state.transaction(|connection| Ok((false, state.all(connection)?)))).await
    }

    async fn glance(&self) -> Result<Vec<Position>> {
        blocking(&self.0, |state| state.all(&state.connection())).await
    }

    async fn set(&self, moves: Vec<Move>) -> Result<Moved> {
        moves::check(&moves)?;
        blocking(&self.0, move |state| state.set(&moves)).await
    }

    async fn fence(&self, _place: &str, _wait: Duration, change: Change) -> Result<()> {
        blocking(&self.0, move |state| state.fence(change)).await
    }

    async fn connections_of(&self, _owner: &str) -> Result<Option<usize>> {
        Ok(None)
    }

    async fn forget(&self) -> Result<()> {
        blocking(&self.0, |state| {
            let delete = "DELETE FROM _millstream_positions WHERE load_key = ?1";
            let deleted = state.connection().execute(delete, [&state.load_key]);
            deleted.map(drop).map_err(|error| state.sqlite_error(error))
        })
        .await
    }
}
