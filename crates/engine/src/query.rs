//! SQL over files: a query that names files and URLs in place of tables, as a job.
//!
//! Each file is guessed as `guess` does it and becomes a source, and the query becomes a transform that names the
//! sources. Errors have their place in the query, not in the job.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use millstream_core::{Error, ErrorKind, Result};
use millstream_job::{Job, JobText, Lint, Position, Span};
use serde_json::{Map, Value, json};

use crate::context::RunContext;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::fault::without_job;
use crate::guess::Guessed;
use crate::job_plan::JobPlan;
use crate::job_text::job_file;
use crate::parse::ParseOptions;
use crate::sql::PlanFault;
use crate::sql::files::{FileName, Files, files};
use crate::stream::RowStream;

/// What a query is called in messages, and the transform in its job.
const QUERY: &str = "query";

/// What to do about a guess.
const KEEP: &str = "if that is wrong, write it down in a job: `millstream guess URL > job.yaml` begins one";

/// A SQL query over files: `SELECT … FROM 'data/*.csv.gz' JOIN 's3://bucket/names.parquet' USING (id)`.
///
/// It is a job with a source for each file and one transform, `query`.
#[derive(Debug, Clone)]
pub struct Query {
    engine: Engine,
    entries: Map<String, Value>,
    warnings: Vec<Lint>,
    origin: Origin,
}

/// What is found out of the files of a query.
#[derive(Default)]
struct Found {
    /// The settings of the sources that it needs.
    sources: Map<String, Value>,
    /// The names of the sources by those of the files.
    names: HashMap<String, String>,
    warnings: Vec<Lint>,
}

/// The text that a query was given as, and where its job has it from.
#[derive(Debug, Clone)]
struct Origin {
    text: JobText,
    /// The place of the first name of each source.
    sources: HashMap<String, Span>,
    /// For each character of the SQL of the job, and the place behind it, the place in the text.
    places: Vec<Position>,
}

impl Engine {
    /// Reads a query that names paths, globs and URLs in quotes in place of tables, and guesses their formats and
    /// columns from the first file of each.
    ///
    /// # Errors
    /// Everything that is wrong with the query or its files, with lines and columns of `sql`.
    pub async fn query(&self, sql: &str) -> Result<Query, Failure> {
        let text = JobText::new(QUERY, sql);
        let lint = |PlanFault { fault, length }: PlanFault| {
            let lint = text.error(Span { line: fault.line, column: fault.column, length }, fault.what);
            fault.hint.into_iter().fold(lint, Lint::hint)
        };
        let failed = |faults: Vec<PlanFault>| Failure { lints: faults.into_iter().map(lint).collect(), errors: vec![] };
        let files = files(sql).map_err(failed)?;
        if files.names.is_empty() {
            let lint = text.error(Span { line: 1, column: 1, length: 1 }, "the query reads no file");
            return Err(lint.hint("name a file or a URL in quotes: SELECT … FROM 'data/*.csv.gz'").into());
        }
        let Found { sources, names, warnings } = self.look_at(&text, &files).await?;
        let (rewritten, places) = rewritten(sql, &files.names, &names);
        let first = |file: &FileName| (names[&file.name].clone(), span_of(&text, file));
        let origin = Origin { sources: files.names.iter().rev().map(first).collect(), text, places };
        let entries = json!({"sources": sources, "transforms": {QUERY: {"sql": rewritten}}});
        let Value::Object(entries) = entries else { return Err(Error::internal("a job is no object").into()) };
        Ok(Query { engine: self.clone(), entries, warnings, origin })
    }

    /// Guesses all `files`.
    async fn look_at(&self, text: &JobText, files: &Files) -> Result<Found, Failure> {
        let mut seen = BTreeSet::new();
        let names: Vec<FileName> = files.names.iter().filter(|file| seen.insert(file.name.clone())).cloned().collect();
        let (text, mut taken) = (text.clone(), files.expressions.clone());
        self.with_context(async move |context: &RunContext| {
            let (mut found, mut failure) = (Found::default(), Failure::default());
            taken.push(QUERY.to_owned());
            for file in names {
                match guess(context, &file).await {
                    Ok(guessed) => {
                        let name = free_name(guessed.name(), &taken);
                        taken.push(name.clone());
                        found.sources.insert(name.clone(), guessed.source());
                        let told = guessed.beyond_name().map(|what| text.warning(span_of(&text, &file), what));
                        found.warnings.extend(told.map(|lint| lint.hint(KEEP)));
                        found.names.insert(file.name, name);
                    }
                    Err(error) => failure.add(in_query(&text, &file, error)),
                }
            }
            failure.none().map(|()| found)
        })
        .await
    }
}

async fn guess(context: &RunContext, file: &FileName) -> Result<Guessed> {
    if let Some(source) = context.registry().source_for(&file.name).filter(|source| source.rows) {
        let key = source.spec.name;
        return Err(Error::job("a database is no file")
            .hint(format!("read it with a job, whose source names the table: `{key}: {{table: NAME}}`")));
    }
    let once = || {
        Error::job("this can be read only once, and a query reads its beginning before its rows, to guess the columns")
            .hint("write it to a file first, or read it with a job, whose source has its format")
    };
    if file.name == "-" {
        return Err(once());
    }
    let guessed = Guessed::of(context, &file.name).await?;
    if guessed.consumed().is_empty() { Ok(guessed) } else { Err(once()) }
}

/// `name`, or one like it that is not taken.
fn free_name(name: String, taken: &[String]) -> String {
    let is_free = |name: &String| !taken.contains(name);
    let numbered = (2..).map(|number| format!("{name}_{number}"));
    std::iter::once(name.clone()).chain(numbered).find(is_free).unwrap_or(name)
}

/// What is wrong with a file that the query names. A file that is damaged has a place of its own.
fn in_query(text: &JobText, file: &FileName, error: Error) -> Failure {
    if !matches!(error.kind(), ErrorKind::Job | ErrorKind::Refused) {
        return error.into();
    }
    let what = match error.cause_text() {
        Some(cause) => format!("{}: {cause}", error.what()),
        None => error.what().to_owned(),
    };
    let lint = text.error(span_of(text, file), what);
    let error = without_job(error);
    error.hint_text().into_iter().fold(lint, Lint::hint).into()
}

fn span_of(text: &JobText, file: &FileName) -> Span {
    let (line, column) = file.start;
    let end = if file.end.0 == line { file.end.1 } else { text.line(line).chars().count() + 1 };
    Span { line, column, length: end.saturating_sub(column).max(1) }
}

/// `sql` with the sources of `names` in place of `files`, and for each of its characters the place in `sql`.
fn rewritten(sql: &str, files: &[FileName], names: &HashMap<String, String>) -> (String, Vec<Position>) {
    let (mut rewritten, mut places) = (String::new(), Vec::new());
    let mut files = files.iter().peekable();
    let mut at = Position { line: 1, column: 1 };
    for character in sql.chars() {
        let here = (at.line, at.column);
        if let Some(file) = files.peek().filter(|file| file.start == here) {
            let name = format!("\"{}\"", names[&file.name]);
            places.extend(name.chars().map(|_| at));
            rewritten.push_str(&name);
        }
        files.next_if(|file| file.end == here);
        if files.peek().is_none_or(|file| file.start > here) {
            rewritten.push(character);
            places.push(at);
        }
        at = match character {
            '\n' => Position { line: at.line + 1, column: 1 },
            _ => Position { line: at.line, column: at.column + 1 },
        };
    }
    places.push(at);
    (rewritten, places)
}

impl Query {
    /// What was guessed of files beyond what their names say.
    pub fn warnings(&self) -> &[Lint] {
        &self.warnings
    }

    /// The job as a job file. It has no sink.
    pub fn job_file(&self) -> String {
        job_file(&self.entries)
    }

    /// The sections of the job file, as JSON: `sources` and `transforms`.
    pub fn entries(&self) -> &Map<String, Value> {
        &self.entries
    }

    /// The entry of the job whose rows are those of the query.
    pub fn entry(&self) -> &'static str {
        QUERY
    }

    /// Reads the rows of the query.
    ///
    /// # Errors
    /// Everything that is wrong with it, with lines and columns of its text; what goes wrong later comes from the
    /// stream.
    pub async fn rows(&self) -> Result<RowStream, Failure> {
        let job = self.job().await?;
        let rows = self.engine.rows(Arc::clone(&job), QUERY).await;
        rows.map_err(|failure| self.origin.in_text(failure, Some(&job)))
    }

    /// The plan of the query: its columns, and rows that are read from it any number of times.
    ///
    /// # Errors
    /// As those of [`Query::rows`].
    pub async fn plan(&self) -> Result<JobPlan, Failure> {
        let job = self.job().await?;
        let plan = self.engine.plan(Arc::clone(&job)).await;
        plan.map_err(|failure| self.origin.in_text(failure, Some(&job)))
    }

    async fn job(&self) -> Result<Arc<Job>, Failure> {
        let mut entries = self.entries.clone();
        // A job has a sink; this one is never opened.
        entries.insert("sinks".to_owned(), json!({"discarded": {"from": QUERY, "write": "discard"}}));
        let options = ParseOptions { needs_secrets: true, ..ParseOptions::default() };
        let parsed = self.engine.parse_job(QUERY, &job_file(&entries), &options).await;
        Ok(parsed.map_err(|failure| self.origin.in_text(failure, None))?.job)
    }
}

impl Origin {
    /// `failure`, with what is wrong at its place in the text instead of in `job`.
    fn in_text(&self, failure: Failure, job: Option<&Job>) -> Failure {
        let places = job.map_or_else(HashMap::new, |job| self.places_of(job));
        let lints = failure.lints.into_iter().map(|lint| {
            let start = places.get(&Position { line: lint.line, column: lint.column });
            let end = places.get(&Position { line: lint.line, column: lint.column + lint.length });
            let span = match (start, end) {
                (Some(start), Some(end)) if end.line == start.line => {
                    Span { length: end.column.saturating_sub(start.column).max(1), ..Span::at(*start, 1) }
                }
                (Some(start), _) => Span::at(*start, 1),
                _ => job.and_then(|job| self.source_at(job, lint.line)).unwrap_or_default(),
            };
            let in_text = self.text.lint(lint.severity, span, lint.what).code(lint.code);
            lint.hint.into_iter().fold(in_text, Lint::hint)
        });
        Failure { lints: lints.collect(), errors: failure.errors }
    }

    /// The places of the text by those of the job.
    fn places_of(&self, job: &Job) -> HashMap<Position, Position> {
        let query = job.transforms.iter().find(|step| step.name.value == QUERY);
        let Some((step, sql)) = query.and_then(|step| Some((step, step.rows.sql().first()?.text))) else {
            return HashMap::new();
        };
        let located = step.located(sql);
        let (mut line, mut column) = (1, 1);
        let mut places = HashMap::new();
        for (character, place) in sql.as_str().chars().map(Some).chain([None]).zip(&self.places) {
            places.entry(located.locate(line, column)).or_insert(*place);
            (line, column) = if character == Some('\n') { (line + 1, 1) } else { (line, column + 1) };
        }
        places
    }

    /// The name of the source in whose entry `line` of `job` is.
    fn source_at(&self, job: &Job, line: usize) -> Option<Span> {
        let before = job.sources.iter().filter(|source| source.name.span.line <= line);
        let source = before.max_by_key(|source| source.name.span.line)?;
        self.sources.get(&source.name.value).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sources_take_the_places_of_files() {
        let sql = "SELECT ä\nFROM 'ö.csv' x, 'b.csv'\nWHERE 1";
        let files = files(sql).expect("files").names;
        let names = [("ö.csv", "o"), ("b.csv", "longer_name")];
        let names = names.into_iter().map(|(file, name)| (file.to_owned(), name.to_owned())).collect();
        let (rewritten, places) = rewritten(sql, &files, &names);
        assert_eq!(rewritten, "SELECT ä\nFROM \"o\" x, \"longer_name\"\nWHERE 1");
        assert_eq!(places.len(), rewritten.chars().count() + 1);
        let place = |text: &str| {
            let index = rewritten[..rewritten.find(text).expect("it is there")].chars().count();
            (places[index].line, places[index].column)
        };
        assert_eq!(["\"o\"", "x,", "name\"", "WHERE"].map(place), [(2, 6), (2, 14), (2, 17), (3, 1)]);
    }

    #[test]
    fn a_name_that_is_taken_gets_a_number() {
        let taken = ["a", "a_2", "query"].map(str::to_owned);
        assert_eq!(free_name("a".into(), &taken), "a_3");
        assert_eq!(free_name("b".into(), &taken), "b");
    }
}
