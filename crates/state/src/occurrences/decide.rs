//! What the scheduler decides, and what it finds out about runs that cannot say it themselves.

use millstream_core::clock::now;
use millstream_core::{Result, fail_point};
use rusqlite::{Connection, Params, Transaction, TransactionBehavior, params};

use super::Occurrences;
use crate::history::{Outcome, signed};

/// So many occurrences of a sequence are kept beside those that are open, and so many spans of missed times.
pub(super) const KEPT: i64 = 1_000;

/// A file that is gone for so long, in milliseconds, is a new one when it is there again.
const FORGOTTEN_AFTER: i64 = 7 * 86_400_000;

/// What is decided about a sequence at a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decisions {
    /// The path of the sequence's file, from the root.
    pub sequence: String,
    /// All planned times up to this one are decided.
    pub known: Option<i64>,
    /// What starts.
    pub start: Option<NewOccurrence>,
    /// What waits.
    pub queued: Option<NewOccurrence>,
    /// What will not run.
    pub skipped: Vec<SkippedTime>,
    /// What was missed.
    pub missed: Vec<MissedTimes>,
    /// The files that have brought `start` about.
    pub arrivals: Vec<Arrival>,
    /// All ends of runs up to this one, as the history counts them, are decided.
    pub followed: Option<i64>,
}

/// An occurrence that was not there before, or that waited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewOccurrence {
    /// Its planned time.
    pub planned: i64,
    /// What has brought it about; not needed if it waited.
    pub cause: Option<String>,
}

/// An occurrence that will not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedTime {
    /// Its planned time.
    pub planned: i64,
    /// Why.
    pub why: String,
}

/// Planned times one after the other that were missed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct MissedTimes {
    /// The first of them.
    pub first: i64,
    /// The last one.
    pub last: i64,
    /// How many they are.
    pub count: i64,
    /// Why they are not caught up.
    pub why: String,
}

/// A file that has arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// Its path from the root.
    pub file: String,
    /// When it was last changed.
    pub modified: i64,
    /// Its length in bytes.
    pub size: i64,
}

impl Occurrences {
    /// Runs `work` in one transaction.
    fn change<T>(&self, work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>) -> Result<T> {
        let mut connection = self.history.connection();
        let change = || {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let done = work(&transaction)?;
            transaction.commit()?;
            Ok(done)
        };
        self.history.checked(change())
    }

    /// Whether the statement has changed a row.
    fn has_changed(&self, statement: &str, values: impl Params) -> Result<bool> {
        self.change(|transaction| transaction.execute(statement, values)).map(|rows| rows > 0)
    }

    /// Stores `all`, or nothing of it. Says of each whether its start holds: if the occurrence had started before, it
    /// does not.
    ///
    /// # Errors
    /// If the history cannot be used; nothing is decided then.
    pub fn decide(&self, all: &[Decisions]) -> Result<Vec<bool>> {
        fail_point::pass("decide.before");
        let decided = self.change(|transaction| all.iter().map(|one| store(transaction, one)).collect());
        fail_point::pass("decide.after");
        decided
    }

    /// Nothing is started that no run has claimed: the occurrence is skipped. Whether that was so.
    ///
    /// # Errors
    /// If the history cannot be used.
    pub fn withdraw(&self, sequence: &str, planned: i64, why: &str) -> Result<bool> {
        let update = "UPDATE occurrences SET state = 'skipped', why = ?3 WHERE sequence = ?1 AND planned = ?2 \
                      AND state IN ('started', 'queued') AND run IS NULL";
        self.has_changed(update, params![sequence, planned, why])
    }

    /// The occurrence has failed before a run could claim it. Whether that was so.
    ///
    /// # Errors
    /// If the history cannot be used.
    pub fn fail(&self, sequence: &str, planned: i64, message: &str) -> Result<bool> {
        let update = "UPDATE occurrences SET state = 'ended', ended = ?3, outcome = ?4, message = ?5 \
                      WHERE sequence = ?1 AND planned = ?2 AND state = 'started' AND run IS NULL";
        let values = params![sequence, planned, signed(now()), Outcome::Failed.name(), message];
        self.has_changed(update, values)
    }

    /// `run` was killed, and no run resumes it. Whether the occurrence had not ended before.
    ///
    /// # Errors
    /// If the history cannot be used.
    pub fn was_killed(&self, sequence: &str, planned: i64, run: &str) -> Result<bool> {
        let update = "UPDATE occurrences SET state = 'ended', ended = ?4, outcome = ?5 \
                      WHERE sequence = ?1 AND planned = ?2 AND state = 'started' AND run = ?3";
        self.has_changed(update, params![sequence, planned, run, signed(now()), Outcome::Killed.name()])
    }

    /// The occurrence is started again, since the process that was to run it, or ran it, was killed.
    ///
    /// # Errors
    /// If the history cannot be used.
    pub fn again(&self, sequence: &str, planned: i64) -> Result<bool> {
        let update = "UPDATE occurrences SET attempts = attempts + 1 WHERE sequence = ?1 AND planned = ?2 \
                      AND state = 'started'";
        self.has_changed(update, params![sequence, planned])
    }

    /// It is known at `now` that the occurrence will miss its deadline, or has missed it. Whether it was not known
    /// before.
    ///
    /// # Errors
    /// If the history cannot be used.
    pub fn is_late(&self, sequence: &str, planned: i64, now: i64) -> Result<bool> {
        let update = "UPDATE occurrences SET late = ?3 WHERE sequence = ?1 AND planned = ?2 AND late IS NULL";
        self.has_changed(update, params![sequence, planned, now])
    }

    /// Forgets files that have arrived for `sequence`, were noted long before `now`, and are not there any more:
    /// `gone` are all that are not there.
    ///
    /// # Errors
    /// If the history cannot be used.
    pub fn forget_arrivals(&self, sequence: &str, gone: &[String], now: i64) -> Result<()> {
        let delete = "DELETE FROM arrivals WHERE sequence = ?1 AND file = ?2 AND seen < ?3";
        self.change(|transaction| {
            gone.iter().try_for_each(|file| {
                transaction.execute(delete, params![sequence, file, now - FORGOTTEN_AFTER]).map(drop)
            })
        })
    }

    /// Deletes the oldest of what is settled, of each sequence that has too much. Returns what was deleted, so that
    /// what is kept beside it can go, too.
    ///
    /// # Errors
    /// If the history cannot be used.
    pub fn delete_oldest(&self, sequence: &str) -> Result<Vec<i64>> {
        self.change(|transaction| {
            let count = "SELECT count(*) FROM occurrences WHERE sequence = ?1";
            let count: i64 = transaction.query_row(count, [sequence], |row| row.get(0))?;
            if count <= KEPT + KEPT / 10 {
                return Ok(Vec::new());
            }
            let old = "SELECT planned FROM occurrences WHERE sequence = ?1 AND state IN ('ended', 'skipped') \
                       AND planned NOT IN (SELECT planned FROM occurrences WHERE sequence = ?1 \
                       ORDER BY planned DESC LIMIT ?2)";
            let old: Vec<i64> = transaction
                .prepare(old)?
                .query_map(params![sequence, KEPT], |row| row.get(0))?
                .collect::<rusqlite::Result<_>>()?;
            for planned in &old {
                let delete = "DELETE FROM occurrences WHERE sequence = ?1 AND planned = ?2";
                transaction.execute(delete, params![sequence, planned])?;
            }
            let delete = "DELETE FROM missed WHERE sequence = ?1 AND last < \
                          (SELECT min(planned) FROM occurrences WHERE sequence = ?1)";
            transaction.execute(delete, [sequence])?;
            Ok(old)
        })
    }
}

/// Whether what starts did not start before.
fn store(transaction: &Transaction<'_>, decisions: &Decisions) -> rusqlite::Result<bool> {
    let Decisions { sequence, known, start, queued, skipped, missed, arrivals, followed } = decisions;
    let decided = signed(now());
    for SkippedTime { planned, why } in skipped {
        let insert = "INSERT INTO occurrences (sequence, planned, state, why, decided) \
                      VALUES (?1, ?2, 'skipped', ?3, ?4) ON CONFLICT DO UPDATE SET state = 'skipped', why = ?3, \
                      decided = ?4 WHERE state = 'queued'";
        transaction.execute(insert, params![sequence, planned, why, decided])?;
    }
    for MissedTimes { first, last, count, why } in missed {
        miss(transaction, sequence, (*first, *last, *count), why, decided)?;
    }
    if let Some(NewOccurrence { planned, cause }) = queued {
        let insert = "INSERT INTO occurrences (sequence, planned, state, cause, decided) \
                      VALUES (?1, ?2, 'queued', ?3, ?4) ON CONFLICT DO NOTHING";
        transaction.execute(insert, params![sequence, planned, cause, decided])?;
    }
    let mut holds = true;
    if let Some(NewOccurrence { planned, cause }) = start {
        let insert = "INSERT INTO occurrences (sequence, planned, state, cause, decided) \
                      VALUES (?1, ?2, 'started', ?3, ?4) ON CONFLICT DO UPDATE SET state = 'started', decided = ?4 \
                      WHERE state = 'queued'";
        holds = transaction.execute(insert, params![sequence, planned, cause, decided])? > 0;
    }
    for Arrival { file, modified, size } in arrivals {
        let insert =
            "INSERT OR REPLACE INTO arrivals (sequence, file, modified, size, seen) VALUES (?1, ?2, ?3, ?4, ?5)";
        transaction.execute(insert, params![sequence, file, modified, size, decided])?;
    }
    let insert = "INSERT INTO schedules (sequence, known, followed) VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET \
                  known = coalesce(?2, known), followed = coalesce(?3, followed)";
    transaction.execute(insert, params![sequence, known, followed])?;
    Ok(holds)
}

/// Times that follow the span before them for the same reason make it longer.
fn miss(
    connection: &Connection,
    sequence: &str,
    (first, last, count): (i64, i64, i64),
    why: &str,
    decided: i64,
) -> rusqlite::Result<()> {
    let update = "UPDATE missed SET last = ?2, count = count + ?3, decided = ?5 WHERE sequence = ?1 AND why = ?4 \
                  AND rowid = (SELECT max(rowid) FROM missed WHERE sequence = ?1) AND NOT EXISTS (SELECT 1 FROM \
                  occurrences WHERE sequence = ?1 AND planned > missed.last)";
    let longer = connection.execute(update, params![sequence, last, count, why, decided])?;
    if longer == 0 {
        let insert = "INSERT INTO missed (sequence, first, last, count, why, decided) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        connection.execute(insert, params![sequence, first, last, count, why, decided])?;
    }
    Ok(())
}
