//! Queries, waits, and the items of loops that are rows or files.

use std::path::Path;
use std::time::{Duration, Instant};

use millstream_core::program::Lines;
use millstream_core::{Error, Result};
use millstream_engine::Failure;
use millstream_engine::sequences::{Row, pattern_in};
use millstream_job::Lint;
use millstream_job::graph::{Located, SourceStep};
use millstream_job::sequence::model::{Awaited, Items, QueryAction, WaitAction};
use millstream_job::sequence::sources;
use millstream_job::sequence::template::Template;
use serde_json::{Value, json};

use crate::progress::Item;
use crate::surroundings::{Done, Surroundings, in_words as words};
use crate::values::Values;

/// With what the URL of a database begins that is a file.
const SQLITE: &str = "sqlite:";

/// The most items of a loop.
const MOST_ITEMS: usize = 100_000;

/// A query on a database.
pub(crate) struct Asked {
    source: SourceStep,
}

/// What is wrong with a query or a pattern once its texts are filled in.
fn refused(lints: Vec<Lint>) -> Error {
    let Some(lint) = lints.into_iter().next() else { return Error::internal("the query is no source") };
    let error = Error::refused(lint.what);
    lint.hint.into_iter().fold(error, Error::hint)
}

fn in_words(failure: &Failure) -> String {
    failure.errors.first().map_or_else(|| failure.to_string(), words)
}

/// The URL of a database: that of a file begins at the folder of the sequence.
fn in_folder(surroundings: &Surroundings, url: &str) -> String {
    match url.strip_prefix(SQLITE).filter(|path| !path.starts_with('/')) {
        Some(path) => format!("{SQLITE}{}", surroundings.folder.join(path).display()),
        None => url.to_owned(),
    }
}

/// What lists the files of a pattern that `template` gives.
fn files(values: &Values<'_>, surroundings: &Surroundings, template: &Template) -> Result<SourceStep> {
    let pattern = pattern_in(&surroundings.folder, &values.fill(template)?);
    let (text, registry) = (&surroundings.sequence.text, surroundings.engine.registry());
    sources::of_files(template, &pattern, text, registry).map_err(refused)
}

/// The name of a file as the steps of the sequence see it, which run in its folder.
fn from_folder(surroundings: &Surroundings, name: String) -> String {
    let of_folder = Path::new(&name).strip_prefix(&surroundings.folder).ok().and_then(Path::to_str);
    of_folder.map(str::to_owned).unwrap_or(name)
}

fn source(values: &Values<'_>, surroundings: &Surroundings, query: &QueryAction) -> Result<SourceStep> {
    let (url, sql) = (in_folder(surroundings, &values.fill(&query.from)?), values.fill(&query.query)?);
    let registry = surroundings.engine.registry();
    sources::of_query(query, &url, &sql, &surroundings.sequence.text, registry).map_err(refused)
}

impl Asked {
    pub(super) fn new(values: &Values<'_>, surroundings: &Surroundings, query: &QueryAction) -> Result<Self> {
        Ok(Asked { source: source(values, surroundings, query)? })
    }

    /// The first row, and whether its first value counts as true.
    async fn first(&self, surroundings: &Surroundings) -> Result<(Option<Row>, bool), Failure> {
        let Surroundings { engine, sequence, .. } = surroundings;
        let (rows, holds) = engine.rows_of_query(&sequence.text, sequence.moment, self.source.clone(), 1).await?;
        Ok((rows.into_iter().next(), holds))
    }

    pub(super) async fn ask(&self, surroundings: &Surroundings) -> Done {
        match self.first(surroundings).await {
            Ok((row, _)) => Done::with(row.unwrap_or_default()),
            Err(failure) => Done::failed(in_words(&failure)),
        }
    }
}

/// What is waited for.
enum For {
    File(SourceStep),
    Query { asked: Asked, until: Option<Located<String>> },
}

/// Why it is not seen whether something is there.
enum NotSeen {
    /// That may pass.
    Now(String),
    /// That does not.
    Ever(String),
}

/// A wait.
pub(crate) struct Wait {
    what: For,
    limit: Option<Duration>,
    every: Duration,
}

impl Wait {
    pub(super) fn new(values: &Values<'_>, surroundings: &Surroundings, wait: &WaitAction) -> Result<Self> {
        let what = match &wait.what {
            Awaited::File(template) => For::File(files(values, surroundings, template)?),
            Awaited::Query { query, until } => {
                let asked = Asked::new(values, surroundings, query)?;
                For::Query { asked, until: until.clone() }
            }
        };
        Ok(Wait { what, limit: wait.limit, every: wait.every })
    }

    /// `lines` takes why it cannot look.
    pub(super) async fn wait(&self, surroundings: &Surroundings, lines: Lines) -> Done {
        let begun = Instant::now();
        let mut before = None;
        loop {
            // What is waited for may not be there yet in any way: a server that starts, a folder, a table.
            let why = match self.look(surroundings).await {
                Ok(Some(results)) => return Done::with(results),
                Ok(None) => None,
                Err(NotSeen::Now(why)) => Some(why),
                Err(NotSeen::Ever(why)) => return Done::failed(why),
            };
            if let Some(why) = why.as_ref().filter(|why| before.as_ref() != Some(*why)) {
                lines(why);
            }
            before.clone_from(&why);
            let left = self.limit.map(|limit| limit.saturating_sub(begun.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                let limit = millstream_core::spec::Duration(self.limit.unwrap_or_default());
                let why = why.map_or(String::new(), |why| format!(": {why}"));
                return Done::failed(format!("it did not come within {limit}{why}"));
            }
            tokio::time::sleep(left.map_or(self.every, |left| left.min(self.every))).await;
        }
    }

    /// The results, if it is there.
    async fn look(&self, surroundings: &Surroundings) -> Result<Option<Row>, NotSeen> {
        let failed = |failure: Failure| NotSeen::Now(in_words(&failure));
        let of_query = |failure: Failure| match may_pass(&failure) {
            true => NotSeen::Now(in_words(&failure)),
            false => NotSeen::Ever(in_words(&failure)),
        };
        let engine = &surroundings.engine;
        match &self.what {
            For::File(source) => {
                let found = engine.files_of(source.clone(), 1).await.map_err(failed)?;
                let results = |file: String| {
                    json!({"file": from_folder(surroundings, file)}).as_object().cloned().unwrap_or_default()
                };
                Ok(found.into_iter().next().map(results))
            }
            For::Query { asked, until } => {
                let (row, holds) = asked.first(surroundings).await.map_err(of_query)?;
                let Some(row) = row else { return Ok(None) };
                let holds = match until {
                    Some(until) => {
                        let holds = engine.holds(&until.value, row.clone()).await;
                        holds.map_err(|failure| NotSeen::Ever(format!("`until`: {}", in_words(&failure))))?
                    }
                    None => holds,
                };
                Ok(holds.then_some(row))
            }
        }
    }
}

/// Whether the same may succeed later: nothing is wrong with the query itself.
fn may_pass(failure: &Failure) -> bool {
    failure.lints.is_empty() && failure.errors.iter().all(Error::may_pass)
}

/// The items of a loop over rows or files.
pub(crate) async fn items_of(values: &Values<'_>, surroundings: &Surroundings) -> Result<Vec<Item>, String> {
    let failed = |failure: Failure| in_words(&failure);
    let error = |error: Error| words(&error);
    let Surroundings { engine, sequence, .. } = surroundings;
    let Some(for_each) = &values.step.for_each else { return Ok(Vec::new()) };
    let items: Vec<Item> = match &for_each.items {
        Items::Rows(query) => {
            let source = source(values, surroundings, query).map_err(error)?;
            let rows = engine.rows_of_query(&sequence.text, sequence.moment, source, MOST_ITEMS + 1).await;
            rows.map_err(failed)?.0.into_iter().map(Item::Row).collect()
        }
        Items::Files(template) => {
            let source = files(values, surroundings, template).map_err(error)?;
            let mut files = engine.files_of(source, MOST_ITEMS + 1).await.map_err(failed)?;
            files.sort();
            files.into_iter().map(|file| Item::Text(from_folder(surroundings, file))).collect()
        }
        Items::List(_) | Items::Days(_) => Vec::new(),
    };
    let null = |item: &Item| matches!(item, Item::Row(row) if row.values().next().is_none_or(Value::is_null));
    if let Some(position) = items.iter().position(null) {
        return Err(format!("row {} of the items has null in its first column", position + 1));
    }
    match items.len() > MOST_ITEMS {
        true => Err(format!("there are more than {MOST_ITEMS} items")),
        false => Ok(items),
    }
}
