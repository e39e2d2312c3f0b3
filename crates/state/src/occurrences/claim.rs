//! Claims: the run of an occurrence takes it, and its end is that of the occurrence.

use millstream_core::clock::now;
use millstream_core::{Result, fail_point};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::{COLUMNS, Occurrence, OccurrenceState, Occurrences, occurrence};
use crate::history::{LiveRun, Outcome, signed};

/// Whether a run may begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// It may: the occurrence is its own.
    Claimed,
    /// It may not, and why.
    Refused(String),
}

impl Occurrences {
    /// Claims the occurrence of `sequence` at `planned` for `run`, before this does anything else. It succeeds for one
    /// run only; if that is dead or has not ended well, also for one that resumes it, and for any if it was killed
    /// before it had begun to do anything ([`LiveRun::loading`]). A run that is refused is to end at once, with
    /// [`LiveRun::withdraw`].
    ///
    /// # Errors
    /// If the history cannot be used. The run may not begin then.
    pub fn claim(&self, sequence: &str, planned: i64, run: &LiveRun) -> Result<Claim> {
        fail_point::pass("claim.before");
        let mut connection = self.history.connection();
        let mut claim = || {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let found = find(&transaction, sequence, planned)?;
            let logical = chain_of(&transaction, &run.run)?.unwrap_or_else(|| run.run.clone());
            if let Some(why) = self.refusal(&transaction, found.as_ref(), &run.run, &logical)? {
                return Ok(Claim::Refused(why));
            }
            transaction.execute(
                "UPDATE occurrences SET state = 'started', run = ?3, logical = ?4, claimed = coalesce(claimed, ?5), \
                 ended = NULL, outcome = NULL, message = NULL WHERE sequence = ?1 AND planned = ?2",
                params![sequence, planned, run.run, logical, signed(now())],
            )?;
            transaction.commit()?;
            Ok(Claim::Claimed)
        };
        let claimed = self.history.checked(claim());
        fail_point::pass("claim.after");
        claimed
    }

    /// Why `run` of the resume chain `logical` cannot have the occurrence `found`.
    fn refusal(
        &self,
        connection: &Connection,
        found: Option<&Occurrence>,
        run: &str,
        logical: &str,
    ) -> rusqlite::Result<Option<String>> {
        let Some(found) = found else { return Ok(Some("no scheduler has decided to start it".to_owned())) };
        if found.state == OccurrenceState::Skipped || found.state == OccurrenceState::Queued {
            return Ok(Some(format!("it is {}", found.state.name())));
        }
        let Some(other) = &found.run else {
            // A child that could not begin has ended it.
            let has_ended = found.state == OccurrenceState::Ended;
            return Ok(has_ended.then(|| "it has ended".to_owned()));
        };
        if other == run {
            return Ok(None);
        }
        if found.outcome == Some(Outcome::Done) || found.outcome == Some(Outcome::Skipped) {
            return Ok(Some(format!("run {other} is done")));
        }
        if self.history.is_alive(other) {
            return Ok(Some(format!("run {other} has it")));
        }
        let resumes = found.logical.as_deref() == Some(logical);
        // What has done nothing, or was forgotten, is not resumed: another run starts anew.
        let is_left = has_begun(connection, other)?;
        Ok((!resumes && is_left).then(|| format!("run {other} has begun it, and this one does not resume that")))
    }

    /// Whether `run` has begun its work ([`LiveRun::loading`]), so that something can be resumed.
    ///
    /// # Errors
    /// If the history cannot be used.
    pub fn has_begun(&self, run: &str) -> Result<bool> {
        let begun = has_begun(&self.history.connection(), run);
        self.history.checked(begun)
    }

    /// The occurrence that the resume chain `logical` has claimed, if it has one: a run that resumes it claims that.
    ///
    /// # Errors
    /// If the history cannot be used.
    pub fn of_chain(&self, logical: &str) -> Result<Option<Occurrence>> {
        let query = format!("SELECT {COLUMNS} FROM occurrences WHERE logical = ?1 ORDER BY claimed DESC LIMIT 1");
        let found = self.history.connection().query_row(&query, [logical], occurrence).optional();
        self.history.checked(found)
    }
}

/// The first run of the resume chain of `run`; `None` if the history does not have it.
fn chain_of(connection: &Connection, run: &str) -> rusqlite::Result<Option<String>> {
    connection.query_row("SELECT logical FROM runs WHERE run = ?1", [run], |row| row.get(0)).optional()
}

/// Whether the history knows that `run` has begun its work.
fn has_begun(connection: &Connection, run: &str) -> rusqlite::Result<bool> {
    let query = "SELECT EXISTS (SELECT 1 FROM runs WHERE run = ?1 AND fingerprint IS NOT NULL)";
    connection.query_row(query, [run], |row| row.get(0))
}

pub(super) fn find(connection: &Connection, sequence: &str, planned: i64) -> rusqlite::Result<Option<Occurrence>> {
    let query = format!("SELECT {COLUMNS} FROM occurrences WHERE sequence = ?1 AND planned = ?2");
    connection.query_row(&query, params![sequence, planned], occurrence).optional()
}

/// The occurrence that `run` has claimed, if it has one, has ended with it.
pub(crate) fn end(
    connection: &Connection,
    run: &str,
    outcome: Outcome,
    message: Option<&str>,
) -> rusqlite::Result<usize> {
    let update = "UPDATE occurrences SET state = 'ended', ended = ?2, outcome = ?3, message = ?4 WHERE run = ?1";
    connection.execute(update, params![run, signed(now()), outcome.name(), message])
}
