//! Queries for those who look at many runs: without reports, which are most of what the history holds.

use millstream_core::Result;
use rusqlite::types::Value as SqlValue;
use rusqlite::{params, params_from_iter};

use super::record::{Outcome, RunKind, RunRecord};
use super::store::{LAST_WORD, RunHistory, UNFINISHED, signed};

/// The columns of a record without what is large.
const LIGHT: &str = "run, logical, job, variables, fingerprint, process, began, ended, outcome, message, rows_read, \
                     rows_written, rows_rejected, units, NULL, NULL, program, moment, series, kind, sequence, step";

/// How many of the last runs are looked at for one that has begun a short while ago.
const LATE: u64 = 2_000;

/// Which runs are looked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFilter {
    /// Of this file, by its path from the root.
    pub job: Option<String>,
    /// Of jobs, or of sequences.
    pub kind: Option<RunKind>,
    /// With this outcome.
    pub outcome: Option<Outcome>,
    /// With this text in the path of the file, the name of the run, its variables or its error.
    pub text: Option<String>,
    /// That began at this time or later, in milliseconds since 1970.
    pub from: Option<u64>,
    /// That began before this time.
    pub to: Option<u64>,
    /// Those that are steps of sequences, too.
    pub steps: bool,
    /// Only those that are older than this run.
    pub before: Option<String>,
}

/// The numbers of a run that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunNumbers {
    /// The run, without what is large.
    pub run: String,
    /// The path of its file from the root.
    pub job: String,
    /// What it is of.
    pub kind: RunKind,
    /// When it began, in milliseconds since 1970.
    pub began: u64,
    /// When it ended; `None` if it runs or was killed.
    pub ended: Option<u64>,
    /// How it ended; `None` if it runs or was killed.
    pub outcome: Option<Outcome>,
    /// Rows that came out of the sources, that were written, and records that were rejected.
    pub rows: [u64; 3],
    /// Bytes fetched, if its report says so.
    pub bytes_read: Option<u64>,
}

/// A file of which there are runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownJob {
    /// Its path from the root.
    pub job: String,
    /// What it was when it ran last.
    pub kind: RunKind,
    /// How many runs there are.
    pub runs: u64,
}

impl RunHistory {
    /// A number that is another one when another process has changed the history.
    ///
    /// # Errors
    /// If the history cannot be read.
    pub fn data_version(&self) -> Result<i64> {
        let version = self.connection().pragma_query_value(None, "data_version", |row| row.get(0));
        self.checked(version)
    }

    /// The last `most` runs that `filter` lets through, the last one first, without reports and predictions.
    ///
    /// # Errors
    /// If the history cannot be read.
    pub fn browse(&self, filter: &RunFilter, most: u64) -> Result<Vec<RunRecord>> {
        let Demands { conditions, mut values } = Demands::of(filter);
        let is_seen_by_lock = filter.outcome.is_some_and(is_seen_by_lock);
        values.push(SqlValue::Integer(if is_seen_by_lock { -1 } else { signed(most) }));
        let conditions = conditions.join(" AND ");
        let index = if filter.outcome == Some(Outcome::Killed) { "INDEXED BY unfinished_runs" } else { "" };
        let query = format!("SELECT {LIGHT} FROM runs {index} WHERE {conditions} ORDER BY rowid DESC LIMIT ?");
        let mut runs = self.records(&query, params_from_iter(values))?;
        if let Some(outcome) = filter.outcome {
            runs.retain(|run| run.outcome == outcome);
        }
        runs.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        Ok(runs)
    }

    /// The run `run` without its report, if the history has it.
    ///
    /// # Errors
    /// If the history cannot be read.
    pub fn glance(&self, run: &str) -> Result<Option<RunRecord>> {
        Ok(self.records(&format!("SELECT {LIGHT} FROM runs WHERE run = ?1"), [run])?.pop())
    }

    /// The last `most` runs that left something to do, as [`RunHistory::unfinished`] has them, without reports.
    ///
    /// # Errors
    /// If the history cannot be read.
    pub fn left_over(&self, job: Option<&str>, most: u64) -> Result<Vec<RunRecord>> {
        self.unfinished_with(LIGHT, job, most)
    }

    /// Runs that have not stored how they ended: those that run, and those that were killed, the last one first.
    ///
    /// # Errors
    /// If the history cannot be read.
    pub fn without_end(&self) -> Result<Vec<RunRecord>> {
        self.records(&format!("SELECT {LIGHT} FROM runs WHERE outcome IS NULL ORDER BY rowid DESC"), [])
    }

    /// The runs that have begun or ended since the moment `since`, in milliseconds since 1970, the last one first; at
    /// most `most`.
    ///
    /// # Errors
    /// If the history cannot be read.
    pub fn changed_since(&self, since: u64, most: u64) -> Result<Vec<RunRecord>> {
        // Runs take their rows in the order in which they begin: one that ended lately is among the last ones, or it
        // has begun long ago, and those who ask have seen it run.
        let query = format!(
            "SELECT {LIGHT} FROM (SELECT rowid AS number, * FROM runs ORDER BY rowid DESC LIMIT ?2) WHERE began >= ?1 \
             OR ended >= ?1 ORDER BY number DESC"
        );
        self.records(&query, params![signed(since), signed(most)])
    }

    /// The runs that the process `process` has begun at `from` or later, the last one first, without reports.
    ///
    /// # Errors
    /// If the history cannot be read.
    pub fn of_process(&self, process: u32, from: u64) -> Result<Vec<RunRecord>> {
        // There is no index by processes: those that are looked for are among the last ones, or not there.
        let query = format!(
            "SELECT {LIGHT} FROM (SELECT rowid AS number, * FROM runs ORDER BY rowid DESC LIMIT {LATE}) WHERE process \
             = ?1 AND began >= ?2 ORDER BY number DESC"
        );
        self.records(&query, params![process, signed(from)])
    }

    /// All runs of the resume chain `logical`, the first one first, without reports.
    ///
    /// # Errors
    /// If the history cannot be read.
    pub fn chain(&self, logical: &str) -> Result<Vec<RunRecord>> {
        self.records(&format!("SELECT {LIGHT} FROM runs WHERE logical = ?1 ORDER BY rowid"), [logical])
    }

    /// The runs that are steps of the sequence whose first run is `logical`, the first one first, without reports.
    ///
    /// # Errors
    /// If the history cannot be read.
    pub fn steps_of(&self, logical: &str, most: u64) -> Result<Vec<RunRecord>> {
        let query = format!("SELECT {LIGHT} FROM runs WHERE sequence = ?1 ORDER BY rowid LIMIT ?2");
        self.records(&query, params![logical, signed(most)])
    }

    /// Whether `run` is the last of its resume chain, and no later run of the same job is done: then what it left can
    /// be resumed.
    ///
    /// # Errors
    /// If the history cannot be read.
    pub fn is_last_word(&self, run: &RunRecord) -> Result<bool> {
        let query = format!("SELECT EXISTS (SELECT 1 FROM runs AS this WHERE run = ?1 AND {LAST_WORD})");
        let is_last = self.connection().query_row(&query, [&run.run], |row| row.get::<_, bool>(0));
        self.checked(is_last)
    }

    /// The files of which there are runs that are no steps of sequences, by their paths; each with how many.
    ///
    /// # Errors
    /// If the history cannot be read.
    pub fn known_jobs(&self) -> Result<Vec<KnownJob>> {
        // Steps from one file to the next in the index: a plain DISTINCT would read all of it.
        let query = "WITH RECURSIVE files(job) AS (SELECT min(job) FROM runs UNION ALL SELECT (SELECT min(job) FROM \
                     runs WHERE job > files.job) FROM files WHERE files.job IS NOT NULL) SELECT job, (SELECT kind FROM \
                     runs WHERE runs.job = files.job ORDER BY rowid DESC LIMIT 1), (SELECT count(*) FROM runs WHERE \
                     runs.job = files.job) FROM files WHERE job IS NOT NULL";
        let known = || {
            let connection = self.connection();
            let mut find = connection.prepare(query)?;
            let known = find.query_map([], |row| {
                let kind = RunKind::of(row.get::<_, Option<String>>(1)?.as_deref());
                Ok(KnownJob { job: row.get(0)?, kind, runs: row.get::<_, i64>(2)?.unsigned_abs() })
            })?;
            known.collect::<rusqlite::Result<Vec<_>>>()
        };
        self.checked(known())
    }

    /// The numbers of the last `most` runs of the file `job`, or of all, that began at `from` or later; the last one
    /// first. Without those that are steps of sequences, unless a file is named.
    ///
    /// # Errors
    /// If the history cannot be read.
    pub fn numbers(&self, job: Option<&str>, from: u64, most: u64) -> Result<Vec<RunNumbers>> {
        let of = if job.is_some() { "job = ?1" } else { "?1 IS NULL AND +sequence IS NULL" };
        let query = format!(
            "SELECT run, job, kind, began, ended, outcome, rows_read, rows_written, rows_rejected, \
             json_extract(report, '$.bytes_read') FROM runs WHERE {of} AND began >= ?2 ORDER BY rowid DESC LIMIT ?3"
        );
        let numbers = || {
            let connection = self.connection();
            let mut find = connection.prepare(&query)?;
            let numbers = find.query_map(params![job, signed(from), signed(most)], |row| {
                let number = |index| row.get::<_, i64>(index).map(i64::unsigned_abs);
                let outcome = row.get::<_, Option<String>>(5)?;
                Ok(RunNumbers {
                    run: row.get(0)?,
                    job: row.get(1)?,
                    kind: RunKind::of(row.get::<_, Option<String>>(2)?.as_deref()),
                    began: number(3)?,
                    ended: row.get::<_, Option<i64>>(4)?.map(i64::unsigned_abs),
                    outcome: outcome.as_deref().and_then(Outcome::stored),
                    rows: [number(6)?, number(7)?, number(8)?],
                    bytes_read: row.get::<_, Option<i64>>(9)?.map(i64::unsigned_abs),
                })
            })?;
            numbers.collect::<rusqlite::Result<Vec<_>>>()
        };
        self.checked(numbers())
    }
}

/// What SQL demands of runs.
struct Demands {
    conditions: Vec<&'static str>,
    values: Vec<SqlValue>,
}

impl Demands {
    /// What `filter` demands.
    fn of(filter: &RunFilter) -> Self {
        let text = |text: &str| SqlValue::Text(text.to_owned());
        let number = |number: u64| SqlValue::Integer(signed(number));
        let mut demands = Demands { conditions: vec!["1"], values: Vec::new() };
        demands.add("job = ?", filter.job.as_deref().map(text));
        demands.add("coalesce(kind, 'job') = ?", filter.kind.map(|kind| text(kind.stored().unwrap_or("job"))));
        demands.add("began >= ?", filter.from.map(number));
        demands.add("began < ?", filter.to.map(number));
        demands.add(
            "shown_text_has(job, run, variables, message, ?)",
            filter.text.as_ref().map(|wanted| text(&wanted.to_lowercase())),
        );
        demands.add("rowid < (SELECT rowid FROM runs WHERE run = ?)", filter.before.as_deref().map(text));
        match filter.outcome {
            // That a run was killed, its lock says; it is stored where a scheduler has seen it.
            Some(Outcome::Running) => demands.conditions.push("outcome IS NULL"),
            Some(Outcome::Killed) => {
                // The first of these is that of an index.
                demands.conditions.push(UNFINISHED);
                demands.conditions.push("(outcome IS NULL OR outcome = 'killed')");
            }
            outcome => demands.add("outcome = ?", outcome.map(|outcome| text(outcome.name()))),
        }
        if !filter.steps {
            // Most runs are no steps: an index of these helps nobody who looks for others.
            demands.conditions.push("+sequence IS NULL");
        }
        demands
    }

    fn add(&mut self, condition: &'static str, value: Option<SqlValue>) {
        if let Some(value) = value {
            self.conditions.push(condition);
            self.values.push(value);
        }
    }
}

/// Whether the history alone does not know that a run has this outcome.
fn is_seen_by_lock(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Running | Outcome::Killed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{JobKey, LogicalRun};

    fn history() -> (tempfile::TempDir, std::sync::Arc<RunHistory>) {
        let folder = tempfile::TempDir::new().expect("a folder");
        let history = RunHistory::open(folder.path()).expect("it opens");
        (folder, history)
    }

    fn insert(history: &RunHistory, run: &str, logical: &str, outcome: Option<&str>, variables: &str) {
        let insert = "INSERT INTO runs (run, logical, job, variables, process, began, outcome, message) VALUES (?1, \
            ?2, \
                      '/jobs/a.yaml', ?4, 7, 1, ?3, 'at postgres://u:hunter3@db/x: Größe')";
        history.connection().execute(insert, params![run, logical, outcome, variables]).expect("inserted");
    }

    fn names(runs: &[RunRecord]) -> Vec<&str> {
        runs.iter().map(|run| run.run.as_str()).collect()
    }

    #[test]
    fn what_is_not_shown_is_not_found() {
        let (_folder, history) = history();
        insert(&history, "1-1", "1-1", Some("failed"), "DAY=2026\nPASSWORD=hunter2\nmore");
        let found = |text: &str| {
            let filter = RunFilter { text: Some(text.to_owned()), ..RunFilter::default() };
            !history.browse(&filter, 10).expect("it answers").is_empty()
        };
        assert!(found("day=2026") && found("A.YAML") && found("1-1") && found("GRÖ"));
        for secret in ["PASSWORD=h", "hunter2", "hunter3", "more"] {
            assert!(!found(secret), "{secret}");
        }
    }

    #[test]
    fn only_the_last_word_can_be_resumed() {
        let (_folder, history) = history();
        for (run, logical, outcome, variables) in [
            ("1-1", "1-1", Some("failed"), "A=1"),
            ("2-1", "1-1", Some("failed"), "A=1"),
            ("3-1", "3-1", Some("failed"), "A=2"),
            ("4-1", "4-1", Some("done"), "A=2"),
            ("5-1", "5-1", Some("interrupted"), "A=2"),
            ("6-1", "6-1", None, "A=3"),
        ] {
            insert(&history, run, logical, outcome, variables);
        }
        assert_eq!(names(&history.left_over(None, 10).expect("it answers")), ["6-1", "5-1", "2-1"]);
        assert_eq!(names(&history.unfinished(None, 2).expect("it answers")), ["6-1", "5-1"]);
        for run in history.browse(&RunFilter::default(), 10).expect("it answers") {
            let is_last = history.is_last_word(&run).expect("it answers");
            assert_eq!(is_last, ["2-1", "4-1", "5-1", "6-1"].contains(&run.run.as_str()), "{}", run.run);
        }
    }

    #[test]
    fn runs_are_found_by_how_they_ended() {
        let (_folder, history) = history();
        for (number, outcome) in [Some("done"), Some("failed"), None, Some("killed")].into_iter().enumerate() {
            insert(&history, &format!("{number}-1"), "x", outcome, "");
        }
        let key = JobKey { path: "/jobs/a.yaml".to_owned(), variables: String::new() };
        let of = LogicalRun { first: "9-1", moment: 7, series: None, kind: RunKind::Job, of_step: None };
        let _live = history.begin("9-1", of, &key).expect("it begins");
        let found = |outcome| {
            let filter = RunFilter { outcome: Some(outcome), ..RunFilter::default() };
            names(&history.browse(&filter, 10).expect("it answers")).join(" ")
        };
        let all = [Outcome::Done, Outcome::Failed, Outcome::Running, Outcome::Killed].map(found);
        assert_eq!(all, ["0-1", "1-1", "9-1", "3-1 2-1"]);
        assert_eq!(names(&history.without_end().expect("it answers")), ["9-1", "2-1"]);
        assert_eq!(history.known_jobs().expect("it answers")[0].runs, 5);
    }
}
