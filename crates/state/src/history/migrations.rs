//! The version of the state folder, and the migrations to it.
//!
//! The history has a version ([`VERSION`]), which holds for the whole folder: increase it with every change that an
//! older program would misread. Opening an older history migrates it; a newer one is refused.

use millstream_core::fail_point;
use rusqlite::{Connection, TransactionBehavior};

/// The migrations: the one at index N turns a history of version N into one of version N + 1. Version 0 is a new
/// history, or one written before histories had a version. Never change a migration that was released; append another
/// one. Programs of earlier versions may be running meanwhile, so migrations only add what these can ignore.
const MIGRATIONS: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS runs (run TEXT PRIMARY KEY, logical TEXT NOT NULL, job TEXT NOT \
    NULL, variables TEXT NOT NULL, fingerprint TEXT, process INTEGER NOT NULL, began INTEGER NOT NULL, ended INTEGER, \
    outcome TEXT, message TEXT, rows_read INTEGER NOT NULL DEFAULT 0, rows_written INTEGER NOT NULL DEFAULT 0, \
    rows_rejected INTEGER NOT NULL DEFAULT 0, units INTEGER NOT NULL DEFAULT 0, predicted TEXT, report TEXT); \
    ALTER TABLE runs ADD COLUMN program TEXT",
    "ALTER TABLE runs ADD COLUMN moment INTEGER; ALTER TABLE runs ADD COLUMN series TEXT",
    "ALTER TABLE runs ADD COLUMN kind TEXT; ALTER TABLE runs ADD COLUMN sequence TEXT; \
    ALTER TABLE runs ADD COLUMN step TEXT; CREATE INDEX runs_of_sequences ON runs (sequence, step); \
    CREATE TABLE schedules (sequence TEXT PRIMARY KEY, known INTEGER, followed INTEGER) WITHOUT ROWID; \
    CREATE TABLE occurrences (sequence TEXT NOT NULL, planned INTEGER NOT NULL, state TEXT NOT NULL, cause TEXT, \
    why TEXT, decided INTEGER NOT NULL, run TEXT, logical TEXT, claimed INTEGER, ended INTEGER, outcome TEXT, \
    message TEXT, attempts INTEGER NOT NULL DEFAULT 0, late INTEGER, PRIMARY KEY (sequence, planned)) WITHOUT ROWID; \
    CREATE INDEX occurrences_of_runs ON occurrences (run) WHERE run IS NOT NULL; \
    CREATE INDEX open_occurrences ON occurrences (sequence) WHERE state IN ('queued', 'started'); \
    CREATE TABLE missed (sequence TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, \
    count INTEGER NOT NULL, why TEXT NOT NULL, decided INTEGER NOT NULL); \
    CREATE INDEX missed_of_sequences ON missed (sequence, last); \
    CREATE TABLE arrivals (sequence TEXT NOT NULL, file TEXT NOT NULL, modified INTEGER NOT NULL, \
    size INTEGER NOT NULL, seen INTEGER NOT NULL, PRIMARY KEY (sequence, file)) WITHOUT ROWID",
    // With a hundred thousand runs, what asks for those of a job may not look at all of them.
    "CREATE INDEX runs_of_jobs ON runs (job); CREATE INDEX runs_of_keys ON runs (job, variables); \
    CREATE INDEX runs_of_chains ON runs (logical); CREATE INDEX unfinished_runs ON runs (outcome) \
    WHERE outcome IS NULL OR outcome NOT IN ('done', 'skipped')",
    // Whether a later run of a job is done is not asked of each of its later runs.
    "CREATE INDEX runs_of_outcomes ON runs (job, variables, outcome)",
];

/// The version of the history and its folder, stored as SQLite's `user_version`.
pub(super) const VERSION: i64 = MIGRATIONS.len() as i64;

/// Migrates the history to [`VERSION`] in one transaction, for which other processes wait. Returns its version if it is
/// a newer one, and changes nothing then.
pub(super) fn migrate(connection: &mut Connection) -> rusqlite::Result<Option<i64>> {
    let found = version(connection)?;
    if found >= VERSION {
        return Ok((found > VERSION).then_some(found));
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have migrated it meanwhile.
    let found = version(&transaction)?;
    if found >= VERSION {
        return Ok((found > VERSION).then_some(found));
    }
    let done = usize::try_from(found).unwrap_or(0);
    MIGRATIONS.iter().skip(done).try_for_each(|step| transaction.execute_batch(step))?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    fail_point::pass("migrate.before");
    transaction.commit()?;
    fail_point::pass("migrate.after");
    Ok(None)
}

/// The version of a history.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}
