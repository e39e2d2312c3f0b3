//! Merges the rows of one delivery, or leaves out those whose key is there. They are gathered in a temporary table of
//! the connection, and go from there into the target in the same transaction.
//!
//! ```text
//!  BEGIN ─▶ move the places ─▶ bulk statements into the temporary table ─▶ merge ─▶ empty it ─▶ COMMIT
//!                                                                            │ a row is refused
//!                                                                            ▼
//!                                          roll back to the savepoint, merge parts in order of arrival, each after a
//!                                          savepoint: halves of those that are refused, down to single rows
//! ```
//! `bisect.rs` finds rows that the temporary table refuses, which checks what the target checks in single rows.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use millstream_core::sink::Changes;
use millstream_core::{Error, fail_point};
use millstream_database::load::{Counted, Key, Publish, Step};
use millstream_database::quoted_list;
use millstream_database::table::{ARRIVAL, TableFacts};

use super::group::BadRow;
use super::in_step::Counts;
use super::load::{Shared, moved_together};
use super::pool::{Making, pause};
use super::server::{Connection, Failure, Refusal, Server};
use super::spec::{DatabaseSpec, Mode};

/// What the name of the temporary table begins with.
pub(super) const OWN: &str = "_millstream_epoch";

const BEGIN: &str = "SAVEPOINT millstream_epoch";
const ROLL_BACK: &str = "ROLLBACK TO SAVEPOINT millstream_epoch";
const KEEP: &str = "RELEASE SAVEPOINT millstream_epoch";

/// How deliveries merge rows.
pub(super) struct MergedEpochs {
    server: Arc<dyn Server>,
    how: Publish,
    /// The temporary table, as SQL text.
    pub(super) table: String,
    target: String,
    spec: DatabaseSpec,
    columns: Vec<String>,
    facts: TableFacts,
    done: Mutex<Done>,
}

/// What this process has done so far.
#[derive(Debug, Clone, Copy, Default)]
struct Done {
    rows: u64,
    counts: Counts,
}

impl MergedEpochs {
    /// Into the table that `facts` are of, with these columns; `None` if the mode of `spec` merges nothing.
    pub(super) fn new(
        server: &Arc<dyn Server>,
        spec: &DatabaseSpec,
        columns: Vec<String>,
        facts: TableFacts,
    ) -> Option<Self> {
        let how = match spec.mode {
            Mode::Merge if spec.order_by.is_empty() => Publish::Merge,
            Mode::Merge => Publish::MergeNewer,
            Mode::Ignore => Publish::Ignore,
            _ => return None,
        };
        let (table, target) = (server.dialect().quoted(&format!("{OWN}_rows")), server.dialect().table(&spec.table));
        let (server, spec, done) = (Arc::clone(server), spec.clone(), Mutex::default());
        Some(MergedEpochs { server, how, table, target, spec, columns, facts, done })
    }

    /// The statements that make the temporary table of a connection.
    pub(super) fn making(&self) -> Making {
        let dialect = self.server.dialect();
        let create = dialect.create_temporary(&self.table, &self.target, &self.columns, Some(&self.facts));
        // A bad row is then reported individually; the target checks what cannot be checked here.
        let checks = self.facts.checks.iter().map(|check| format!("ALTER TABLE {} ADD {check}", self.table));
        Making { create, checks: checks.collect(), refused: cannot_make }
    }

    /// The statements that merge the rows, or those that have come as these ones.
    fn steps(&self, arrived: Option<&Range<u64>>) -> Vec<Step> {
        let dialect = self.server.dialect();
        let (order, arrival) = (self.spec.order(), dialect.quoted(ARRIVAL));
        let from = match arrived {
            Some(Range { start, end }) => {
                format!("(SELECT * FROM {} WHERE {arrival} >= {start} AND {arrival} < {end}) e", self.table)
            }
            None => self.table.clone(),
        };
        let key = Key { columns: &self.spec.key, order: &order };
        dialect.publish(self.how, &from, &self.target, key, &self.columns, Some(&self.facts))
    }

    /// Merges `rows` rows in the open transaction, and empties the temporary table. Returns what that has changed, and
    /// the rows that the target refuses, at most `most`: then the rest is not merged.
    pub(super) async fn merge(
        &self,
        shared: &Shared,
        connection: &mut dyn Connection,
        rows: u64,
        most: usize,
    ) -> Result<(Counts, Vec<BadRow>), Failure> {
        let mut tries = 0;
        loop {
            connection.execute(BEGIN).await?;
            fail_point::pass("publish.step");
            let merged = match self.run(connection, None).await {
                Err(Failure::Rows(_)) => {
                    connection.execute(ROLL_BACK).await?;
                    self.merge_parts(connection, rows, most).await
                }
                merged => merged.map(|counts| (counts, Vec::new())),
            };
            match merged {
                Err(Failure::Again { undone: false, .. }) if tries < shared.spec.retries => {
                    connection.execute(ROLL_BACK).await?;
                    pause(tries).await;
                    tries += 1;
                }
                Err(other) => return Err(other),
                Ok(merged) => {
                    connection.execute(KEEP).await?;
                    if let Some(empty) = self.server.dialect().empty_temporary(&self.table) {
                        connection.execute(&empty).await?;
                    }
                    return Ok(merged);
                }
            }
        }
    }

    async fn run(&self, connection: &mut dyn Connection, arrived: Option<&Range<u64>>) -> Result<Counts, Failure> {
        let mut counts = Counts::default();
        for step in self.steps(arrived) {
            match &step {
                Step::Change { sql, counted: Counted::Merged, .. } => {
                    let [inserted, updated] = connection.merge(sql).await?;
                    counts.inserted += inserted;
                    counts.updated += updated;
                }
                Step::Change { sql, counted, .. } => counts.add(*counted, connection.execute(sql).await?),
                Step::Never { .. } => {}
            }
        }
        Ok(counts)
    }

    /// Merges the rows part by part, without those that are refused.
    async fn merge_parts(
        &self,
        connection: &mut dyn Connection,
        rows: u64,
        most: usize,
    ) -> Result<(Counts, Vec<BadRow>), Failure> {
        let (mut counts, mut bad) = (Counts::default(), Vec::new());
        // The next part is the last of the list.
        let mut parts = Vec::new();
        parts.push(0..rows);
        connection.execute("SAVEPOINT millstream").await?;
        while let Some(part) = parts.pop().filter(|_| bad.len() < most) {
            let refusal = match self.run(connection, Some(&part)).await {
                Ok(Counts { inserted, updated, .. }) => {
                    counts.inserted += inserted;
                    counts.updated += updated;
                    connection.execute(self.server.dialect().next_savepoint()).await?;
                    continue;
                }
                Err(Failure::Rows(refusal)) => refusal,
                Err(other) => return Err(other),
            };
            connection.execute("ROLLBACK TO SAVEPOINT millstream").await?;
            let middle = part.start + (part.end - part.start) / 2;
            if middle == part.start {
                bad.extend(self.bad_row(connection, part.start, refusal).await?);
                continue;
            }
            parts.extend([middle..part.end, part.start..middle]);
        }
        connection.execute("RELEASE SAVEPOINT millstream").await?;
        // Which of several rows with one key comes first is known of all of them only.
        if self.how == Publish::Ignore && !self.spec.order_by.is_empty() && bad.len() < most {
            counts = self.merge_without(connection, &bad).await?;
        }
        Ok((counts, bad))
    }

    /// Merges all rows but these.
    async fn merge_without(&self, connection: &mut dyn Connection, bad: &[BadRow]) -> Result<Counts, Failure> {
        connection.execute(ROLL_BACK).await?;
        let (arrival, numbers) = (self.server.dialect().quoted(ARRIVAL), bad.iter().map(|row| row.index.to_string()));
        let numbers = numbers.collect::<Vec<_>>().join(", ");
        if !numbers.is_empty() {
            connection.execute(&format!("DELETE FROM {} WHERE {arrival} IN ({numbers})", self.table)).await?;
        }
        self.run(connection, None).await.map_err(|failure| match failure {
            Failure::Rows(_) => Failure::Other(moved_together(failure.into_error(), self.spec.mode)),
            other => other,
        })
    }

    /// The row that has come as `arrival`, if there is one: others were refused before.
    async fn bad_row(
        &self,
        connection: &mut dyn Connection,
        arrival: u64,
        refusal: Refusal,
    ) -> Result<Option<BadRow>, Failure> {
        let dialect = self.server.dialect();
        let columns = quoted_list(dialect, &self.columns);
        let query = format!("SELECT {columns} FROM {} WHERE {} = {arrival}", self.table, dialect.quoted(ARRIVAL));
        let row = connection.query(&query).await?.pop();
        let Refusal { column, reason, kind, hint, .. } = refusal;
        let index = usize::try_from(arrival).unwrap_or(usize::MAX);
        Ok(row.map(|row| {
            let shown = self.columns.iter().zip(row).map(|(name, value)| match value {
                Some(value) => format!("{name}='{value}'"),
                None => format!("{name}=NULL"),
            });
            let shown = shown.collect::<Vec<_>>().join(", ");
            BadRow { index, shown, column, reason, kind, hint: hint.map(str::to_owned) }
        }))
    }

    /// Adds what a committed delivery of `rows` rows has changed.
    pub(super) fn add(&self, rows: u64, counts: Counts) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.rows += rows;
        done.counts.inserted += counts.inserted;
        done.counts.updated += counts.updated;
    }

    fn done(&self) -> Done {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many rows were left out.
    pub(super) fn ignored(&self) -> u64 {
        let Done { rows, counts } = self.done();
        if self.spec.mode == Mode::Ignore { rows.saturating_sub(counts.inserted) } else { 0 }
    }

    /// What was changed.
    pub(super) fn changes(&self) -> Option<Changes> {
        let Done { rows, counts } = self.done();
        counts.changes(self.spec.mode, rows)
    }
}

/// Adds a hint for a user who may not make the temporary table.
fn cannot_make(error: Error) -> Error {
    let is_denied =
        error.cause_text().is_some_and(|cause| cause.contains("denied") || cause.contains("temporary tables"));
    if !is_denied {
        return error;
    }
    error.hint(
        "`mode: merge` and `ignore` gather the rows of a queue in a temporary table: GRANT CREATE TEMPORARY TABLES \
         (MySQL), or TEMPORARY ON DATABASE (PostgreSQL)",
    )
}
