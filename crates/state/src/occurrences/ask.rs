//! Questions about what was decided.

use millstream_core::Result;
use rusqlite::{Connection, Params, Row, params};

use super::claim;
use super::{Arrival, COLUMNS, MissedTimes, Occurrence, Occurrences, occurrence};
use crate::history::Outcome;

/// What was decided last about a sequence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Known {
    /// All planned times up to this one are decided, in milliseconds since 1970.
    pub known: Option<i64>,
    /// All ends of runs up to this one are decided.
    pub followed: Option<i64>,
}

/// A run of a sequence that has begun, as those that follow it see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunOfSequence {
    /// The place of the run in the history: later runs have larger ones.
    pub place: i64,
    /// Its name.
    pub run: String,
    /// When its logical run began: its planned time, if it has one.
    pub moment: i64,
    /// When it ended.
    pub ended: Option<i64>,
    /// How it ended; [`Outcome::Running`] or [`Outcome::Killed`] if it did not store that.
    pub outcome: Outcome,
}

impl Occurrences {
    fn rows<T>(
        &self,
        query: &str,
        values: impl Params,
        row: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>> {
        let connection = self.history.connection();
        let rows = |connection: &Connection| {
            connection.prepare_cached(query)?.query_map(values, row)?.collect::<rusqlite::Result<Vec<T>>>()
        };
        self.history.checked(rows(&connection))
    }

    /// Whether another process has written to the history: the number is another one then.
    ///
    /// # Errors
    /// If the history cannot be used.
    pub fn version(&self) -> Result<i64> {
        let version = self.history.connection().pragma_query_value(None, "data_version", |row| row.get(0));
        self.history.checked(version)
    }

    /// What was decided last about `sequence`.
    ///
    /// # Errors
    /// If the history cannot be used.
    pub fn known(&self, sequence: &str) -> Result<Known> {
        let query = "SELECT known, followed FROM schedules WHERE sequence = ?1";
        let known = |row: &Row<'_>| Ok(Known { known: row.get(0)?, followed: row.get(1)? });
        Ok(self.rows(query, [sequence], known)?.pop().unwrap_or_default())
    }

    /// The planned times behind `moment` of all occurrences of `sequence`.
    ///
    /// # Errors
    /// If the history cannot be used.
    pub fn behind(&self, sequence: &str, moment: i64) -> Result<Vec<i64>> {
        let query = "SELECT planned FROM occurrences WHERE sequence = ?1 AND planned > ?2";
        self.rows(query, params![sequence, moment], |row| row.get(0))
    }

    /// All occurrences that are queued or started, in order.
    ///
    /// # Errors
    /// If the history cannot be used.
    pub fn open(&self) -> Result<Vec<Occurrence>> {
        let query =
            format!("SELECT {COLUMNS} FROM occurrences WHERE state IN ('queued', 'started') ORDER BY decided, planned");
        self.rows(&query, [], occurrence)
    }

    /// The occurrence of `sequence` at `planned`.
    ///
    /// # Errors
    /// If the history cannot be used.
    pub fn find(&self, sequence: &str, planned: i64) -> Result<Option<Occurrence>> {
        let found = claim::find(&self.history.connection(), sequence, planned);
        self.history.checked(found)
    }

    /// The last `most` occurrences of `sequence`, by their planned times, the last one first.
    ///
    /// # Errors
    /// If the history cannot be used.
    pub fn last(&self, sequence: &str, most: i64) -> Result<Vec<Occurrence>> {
        let query = format!("SELECT {COLUMNS} FROM occurrences WHERE sequence = ?1 ORDER BY planned DESC LIMIT ?2");
        self.rows(&query, params![sequence, most], occurrence)
    }

    /// The last `most` spans of missed times of `sequence`, the last one first.
    ///
    /// # Errors
    /// If the history cannot be used.
    pub fn missed(&self, sequence: &str, most: i64) -> Result<Vec<MissedTimes>> {
        let query = "SELECT first, last, count, why FROM missed WHERE sequence = ?1 ORDER BY rowid DESC LIMIT ?2";
        self.rows(query, params![sequence, most], |row| {
            Ok(MissedTimes { first: row.get(0)?, last: row.get(1)?, count: row.get(2)?, why: row.get(3)? })
        })
    }

    /// How long the last `most` runs of occurrences of `sequence` took that ended well and were never killed, in
    /// milliseconds, the last one first.
    ///
    /// # Errors
    /// If the history cannot be used.
    pub fn durations(&self, sequence: &str, most: i64) -> Result<Vec<i64>> {
        let query = "SELECT ended - claimed FROM occurrences WHERE sequence = ?1 AND outcome = 'done' \
                     AND attempts = 0 AND run = logical ORDER BY planned DESC LIMIT ?2";
        self.rows(query, params![sequence, most], |row| row.get(0))
    }

    /// The files that have arrived for `sequence`.
    ///
    /// # Errors
    /// If the history cannot be used.
    pub fn arrivals(&self, sequence: &str) -> Result<Vec<Arrival>> {
        let query = "SELECT file, modified, size FROM arrivals WHERE sequence = ?1";
        let arrival = |row: &Row<'_>| Ok(Arrival { file: row.get(0)?, modified: row.get(1)?, size: row.get(2)? });
        self.rows(query, [sequence], arrival)
    }

    /// The place behind which the next run will stand in the history.
    ///
    /// # Errors
    /// If the history cannot be used.
    pub fn last_place(&self) -> Result<i64> {
        let place = self.history.connection().query_row("SELECT max(rowid) FROM runs", [], |row| row.get(0));
        self.history.checked(place.map(|place: Option<i64>| place.unwrap_or(0)))
    }

    /// The runs of `sequence`, by itself and not as a step of another, behind `place` in the history, in order.
    ///
    /// # Errors
    /// If the history cannot be used.
    pub fn runs_behind(&self, sequence: &str, place: i64) -> Result<Vec<RunOfSequence>> {
        let query = "SELECT rowid, run, coalesce(moment, began), ended, outcome FROM runs WHERE rowid > ?2 \
                     AND job = ?1 AND kind = 'sequence' AND sequence IS NULL ORDER BY rowid";
        let run = |row: &Row<'_>| {
            let outcome: Option<String> = row.get(4)?;
            let outcome = outcome.as_deref().and_then(Outcome::stored).unwrap_or(Outcome::Running);
            Ok(RunOfSequence { place: row.get(0)?, run: row.get(1)?, moment: row.get(2)?, ended: row.get(3)?, outcome })
        };
        let runs = self.rows(query, params![sequence, place], run)?;
        let as_it_is = |run: RunOfSequence| match run.outcome {
            Outcome::Running if !self.history.is_alive(&run.run) => RunOfSequence { outcome: Outcome::Killed, ..run },
            _ => run,
        };
        Ok(runs.into_iter().map(as_it_is).collect())
    }
}
