//! The transaction that publishes the rows of a load's own tables, with retries, and errors of refused rows.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use millstream_core::{Error, RejectKind, Result, fail_point};
use millstream_database::first_cell;
use millstream_database::in_step::{InStep, Referred};
use millstream_database::load::{Counted, Step, StepFault};

use super::shared::Shared;
use crate::database::commit_marker::CommitMarker;
use crate::database::entry::blamed;
use crate::database::in_step::{Counts, accept_changed};
use crate::database::pool::pause;
use crate::database::server::{Connection, Failure};
use crate::database::spec::Mode;

/// A transaction that is left open for the commit.
#[derive(Debug, Default)]
pub(super) struct Publishing {
    /// Statements that run once before it, each by itself.
    pub(super) before: Vec<String>,
    /// Whether these have run.
    pub(super) is_ready: AtomicBool,
    pub(super) steps: Vec<Step>,
    /// Of a table that is kept in step.
    pub(super) in_step: Option<StepQueries>,
    /// The tables whose rows may not be changed by the deletion of missing ones, as the server's facts name them.
    pub(super) protected: OnceLock<Vec<String>>,
}

/// What is asked about a table that is kept in step.
#[derive(Debug)]
pub(super) struct StepQueries {
    /// Staged keys that are there more than once.
    pub(super) duplicates: String,
    /// How many rows may be missing, once those that are have gone.
    pub(super) compared: String,
    /// How many rows are missing, if these do not stay.
    pub(super) missing: Option<String>,
    /// The steps that delete missing rows.
    pub(super) deleting: Vec<Step>,
    /// Which missing rows are referred to, if missing rows are deleted.
    pub(super) referred: Option<Referred>,
    /// When the run began, for messages.
    pub(super) begin: String,
}

impl StepQueries {
    /// Those about the table of `in_step`, by a run that began at `begin`.
    pub(super) fn of(in_step: &InStep<'_>, begin: &str) -> Self {
        StepQueries {
            duplicates: in_step.duplicates(),
            compared: in_step.compared(),
            missing: in_step.missing(),
            deleting: in_step.deleting_steps(),
            referred: in_step.referred(),
            begin: begin.to_owned(),
        }
    }
}

impl Publishing {
    /// A transaction that counts nothing.
    pub(super) fn of(statements: impl Iterator<Item = String>) -> Self {
        Publishing { steps: statements.map(Step::plain).collect(), ..Publishing::default() }
    }

    /// Lets no missing row be deleted to which rows of `tables` refer.
    pub(super) fn protect(&self, tables: Vec<String>) {
        // It is called once.
        let _ = self.protected.set(tables);
    }

    /// Runs it, with retries after conflicts, and writes the commit marker `marker`. Returns what it has changed.
    pub(super) async fn run(
        &self,
        shared: &Shared,
        connection: &mut dyn Connection,
        marker: Option<&CommitMarker>,
    ) -> Result<Counts> {
        self.run_steps(&self.steps, shared, connection, marker).await
    }

    /// Fails if more rows are missing than may.
    pub(super) async fn check_missing(&self, shared: &Shared, connection: &mut dyn Connection) -> Result<()> {
        let Some(queries) = &self.in_step else { return Ok(()) };
        let Some(missing) = &queries.missing else { return Ok(()) };
        self.run_before(shared, connection).await?;
        let missing = count(connection, missing).await.map_err(Failure::into_error)?;
        let compared = count(connection, &queries.compared).await.map_err(Failure::into_error)?;
        shared.spec.in_step().accept_deletes(missing, compared, &shared.target)
    }

    /// Deletes missing rows, and commits that. Returns how many they were.
    pub(super) async fn delete_missing(&self, shared: &Shared, connection: &mut dyn Connection) -> Result<u64> {
        let Some(queries) = self.in_step.as_ref().filter(|queries| !queries.deleting.is_empty()) else { return Ok(0) };
        let counts = self.run_steps(&queries.deleting, shared, connection, None).await?;
        fail_point::pass("delete.before");
        connection.execute("COMMIT").await.map_err(Failure::into_error)?;
        fail_point::pass("delete.after");
        Ok(counts.deleted)
    }

    /// Runs `steps` in a transaction that is left open, with retries after conflicts.
    async fn run_steps(
        &self,
        steps: &[Step],
        shared: &Shared,
        connection: &mut dyn Connection,
        marker: Option<&CommitMarker>,
    ) -> Result<Counts> {
        self.run_before(shared, connection).await?;
        let mut tries = 0;
        loop {
            match self.try_once(steps, shared, connection, marker).await {
                Err(Failure::Again { .. }) if tries < shared.spec.retries => {
                    connection.execute("ROLLBACK").await.map_err(Failure::into_error)?;
                    pause(tries).await;
                    tries += 1;
                }
                Ok(counts) => return Ok(counts),
                Err(failure) => {
                    let is_row = matches!(failure, Failure::Rows(_));
                    let target = shared.server.dialect().table(&shared.spec.table);
                    let error = blamed(connection, &[&target], failure).await;
                    return Err(if is_row { moved_together(error, shared.spec.mode) } else { error });
                }
            }
        }
    }

    async fn run_before(&self, shared: &Shared, connection: &mut dyn Connection) -> Result<()> {
        if self.is_ready.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        for statement in &self.before {
            match (connection.execute(statement).await, &self.in_step) {
                (Ok(_), _) => {}
                (Err(failure @ Failure::Rows(_)), Some(queries)) => {
                    let found = connection.query(&queries.duplicates).await.map_err(Failure::into_error)?;
                    return Err(match found.is_empty() {
                        true => failure.into_error(),
                        false => shared.spec.in_step().duplicates(&found, &shared.target),
                    });
                }
                (Err(failure), _) => return Err(failure.into_error()),
            }
        }
        Ok(())
    }

    async fn try_once(
        &self,
        steps: &[Step],
        shared: &Shared,
        connection: &mut dyn Connection,
        marker: Option<&CommitMarker>,
    ) -> Result<Counts, Failure> {
        let mut counts = Counts::default();
        connection.execute("BEGIN").await?;
        for step in steps {
            fail_point::pass("publish.step");
            match step {
                Step::Never { sql, fault } => self.check(shared, connection, sql, *fault).await?,
                Step::Change { sql, counted: Counted::Merged, .. } => {
                    let [inserted, updated] = connection.merge(sql).await?;
                    counts.inserted += inserted;
                    counts.updated += updated;
                }
                Step::Change { sql, counted, expected } => {
                    if *counted == Counted::Deleted {
                        self.check_referred(shared, connection).await?;
                    }
                    let expected = match expected {
                        Some(query) => Some(count(connection, query).await?),
                        None => None,
                    };
                    let changed = connection.execute(sql).await.map_err(|failure| match counted {
                        Counted::Deleted => still_referred(failure, &shared.target),
                        _ => failure,
                    })?;
                    accept_changed(*counted, changed, expected, &shared.target).map_err(Failure::Other)?;
                    counts.add(*counted, changed);
                }
            }
            if matches!(step, Step::Change { counted: Counted::Deleted, .. }) {
                self.check_deletes(shared, connection, counts.deleted).await?;
            }
        }
        if let Some(marker) = marker {
            marker.write(connection).await?;
        }
        Ok(counts)
    }

    /// Fails if the query finds a key.
    async fn check(
        &self,
        shared: &Shared,
        connection: &mut dyn Connection,
        sql: &str,
        fault: StepFault,
    ) -> Result<(), Failure> {
        let found = connection.query(sql).await?;
        if found.is_empty() {
            return Ok(());
        }
        let begin = self.in_step.as_ref().map_or("", |queries| &queries.begin);
        Err(Failure::Other(shared.spec.in_step().fault(fault, &found, &shared.target, begin)))
    }

    /// Fails if the deletion of missing rows would change rows of protected tables.
    async fn check_referred(&self, shared: &Shared, connection: &mut dyn Connection) -> Result<(), Failure> {
        let queries = self.in_step.as_ref().and_then(|queries| queries.referred.as_ref());
        let (Some(referred), Some(tables)) = (queries, self.protected.get()) else { return Ok(()) };
        let tables: Vec<&str> = tables.iter().map(String::as_str).collect();
        if tables.is_empty() {
            return Ok(());
        }
        for key in connection.cascading(&shared.spec.table, &tables).await? {
            let found = connection.query(&referred.by(shared.server.dialect(), &key)).await?;
            if !found.is_empty() {
                return Err(Failure::Other(shared.spec.in_step().cascades(&found, &key, &shared.target)));
            }
        }
        Ok(())
    }

    /// Fails if more rows have gone than may.
    async fn check_deletes(
        &self,
        shared: &Shared,
        connection: &mut dyn Connection,
        deleted: u64,
    ) -> Result<(), Failure> {
        let Some(queries) = self.in_step.as_ref().filter(|_| deleted > 0) else { return Ok(()) };
        let left = count(connection, &queries.compared).await?;
        shared.spec.in_step().accept_deletes(deleted, left + deleted, &shared.target).map_err(Failure::Other)
    }
}

/// The number that a query counts.
pub(crate) async fn count(connection: &mut dyn Connection, query: &str) -> Result<u64, Failure> {
    let count = first_cell(connection.query(query).await?).and_then(|text| text.parse::<u64>().ok());
    count.ok_or_else(|| Failure::Other(Error::internal("the rows of the target cannot be counted")))
}

/// The failure to delete rows that are missing from the input, if rows of another table refer to them.
fn still_referred(failure: Failure, target: &str) -> Failure {
    let Failure::Rows(refusal) = failure else { return failure };
    if refusal.kind != RejectKind::Constraint {
        return Failure::Rows(refusal);
    }
    let what = format!("rows that are missing from the input cannot be deleted from {target}");
    let error = Error::data(what).cause(refusal.reason).hint(
        "rows of another table refer to them: delete those before (if this job loads that table, its input and this \
         one disagree), or let the foreign key do it (ON DELETE CASCADE), \
         or keep the missing rows: `missing: {flag: column}`",
    );
    Failure::Other(error)
}

/// The hint for a row with a value of a unique key that the table has already.
pub(crate) const DUPLICATE: &str =
    "the key already exists: `mode: merge` changes such rows, `mode: ignore` leaves them out";

/// The same, where `key` has said which rows are changed or left out.
const OTHER_DUPLICATE: &str = "another unique key than `key` has this value already, or two new rows have it: only \
                               rows with the same `key` are taken for the same row";

/// The error of a refused row that cannot be identified, in a load of `mode`.
pub(crate) fn moved_together(error: Error, mode: Mode) -> Error {
    let of_row = error.hint_text().map(|hint| match hint {
        DUPLICATE if mode.needs_key() => OTHER_DUPLICATE.to_owned(),
        hint => hint.to_owned(),
    });
    let way = "the rows are moved into the table all at once, so the database reports one that violates a key, and \
               none can be left out: filter such rows out";
    let hint = of_row.map_or_else(|| way.to_owned(), |hint| format!("{hint}; {way}"));
    error.hint(hint)
}
