//! The inputs of a test as files, and what stands in for the sources of the job that read them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::Schema;
use millstream_core::format::{Format, Reading};
use millstream_core::types::type_name;
use millstream_core::{Error, Registry, Result};
use millstream_job::entries::{AddColumn, CHECKS, COMMAND, MAX_REJECTS, SORTED_BY};
use millstream_job::replace::Replacement;
use millstream_job::test_file::{JobTest, TestSource};
use millstream_job::{Job, SourceStep};
use serde_json::{Map, Value, json};

use super::compare::Row;
use crate::read::source_plan::{Provenance, named_format};

/// Keys of a source that say something of its rows, not of where or how they are read.
const OF_ROWS: &[&str] = &["add", "validate", MAX_REJECTS, SORTED_BY, CHECKS];

/// Keys of a source that say where it is read, and how files are found.
const OF_PLACES: &[&str] =
    &["read", COMMAND, "members", "allow_empty", "on_error", "incremental", "ready", "on_change", "after_load"];

/// What stands in for each source of `job` in `test`, which is in the file `test_file`. Inputs are written into
/// `folder`.
pub fn replace(
    registry: &Registry,
    job: &Job,
    test: &JobTest,
    test_file: &Path,
    folder: &Path,
) -> Result<BTreeMap<String, Replacement>> {
    let one = |source: &SourceStep| {
        let name = &source.name.value;
        let Some(given) = test.sources.get(name) else {
            return Err(Error::internal("a source of a test has no input").text(name));
        };
        let replaced = match (&given.rows, &given.text, &given.file) {
            (Some(rows), ..) => of_rows(registry, source, given, rows, folder),
            (_, Some(text), _) => of_text(registry, source, text, folder),
            (.., Some(file)) => of_file(registry, source, &test_file.with_file_name("").join(file)),
            _ => Err(Error::internal("an input of a test is empty")),
        };
        Ok((name.clone(), replaced.map_err(|error| error.in_step(name))?))
    };
    job.sources.iter().map(one).collect()
}

/// The format of a source, as far as the job tells.
fn format_of(registry: &Registry, source: &SourceStep) -> Option<Arc<dyn Format>> {
    source.format.clone().or_else(|| named_format(registry, source))
}

fn of_rows(
    registry: &Registry,
    source: &SourceStep,
    given: &TestSource,
    rows: &[Row],
    folder: &Path,
) -> Result<Replacement> {
    let declared = format_of(registry, source).and_then(|format| format.declared());
    let mut keep: Vec<String> = OF_ROWS.iter().map(|key| (*key).to_owned()).collect();
    let columns = match (&given.columns, declared) {
        (Some(columns), _) => {
            serde_json::to_value(columns).map_err(|cause| Error::internal("columns cannot be written").cause(cause))?
        }
        // What a queue adds stands in the rows, too.
        (None, Some(declared)) => {
            let added = of_messages(source).map(|column| Provenance::of(column).field());
            let fields: Vec<_> = declared.fields().iter().map(|field| field.as_ref().clone()).chain(added).collect();
            types(&Schema::new(fields))
        }
        (None, None) if rows.is_empty() => {
            return Err(Error::job("the columns of the source are not known: it declares none, and `rows` is empty")
                .hint("add `columns: {id: int64, …}` beside `rows`"));
        }
        (None, None) => json!({}),
    };
    let json = if columns == json!({}) { json!({}) } else { json!({"columns": columns}) };
    let lines: String = rows.iter().map(|row| Value::from(row.clone()).to_string() + "\n").collect();
    let path = write(folder, &format!("{}.jsonl", source.name.value), &lines)?;
    if of_messages(source).next().is_some() {
        keep.retain(|key| key != "add");
    }
    Ok(Replacement { keep, set: reading(&path, [("json", json)]) })
}

/// The columns that a source adds of the messages of a queue.
fn of_messages(source: &SourceStep) -> impl Iterator<Item = &AddColumn> {
    source.add.iter().filter(|column| column.is_of_message())
}

/// Only given rows have what a queue adds.
fn without_messages(source: &SourceStep) -> Result<()> {
    let Some(column) = of_messages(source).next() else { return Ok(()) };
    let what = format!("the source adds `{}` of the messages of a queue, which a text or file lacks", column.name());
    Err(Error::job(what).hint("give `rows` with this column"))
}

fn types(columns: &Schema) -> Value {
    columns.fields().iter().map(|field| (field.name().clone(), json!(type_name(field.data_type())))).collect()
}

fn of_text(registry: &Registry, source: &SourceStep, text: &str, folder: &Path) -> Result<Replacement> {
    without_messages(source)?;
    let ending = source.read.first().and_then(|pattern| registry.by_name(&pattern.value).1).map(|(_, ending)| ending);
    if source.format.is_none() && ending.is_none() {
        return Err(no_format(format_of(registry, source).as_deref()));
    }
    let path = write(folder, &format!("{}{}", source.name.value, ending.unwrap_or("")), text)?;
    Ok(Replacement { keep: kept(registry, source), set: reading(&path, []) })
}

fn of_file(registry: &Registry, source: &SourceStep, path: &Path) -> Result<Replacement> {
    without_messages(source)?;
    if source.format.is_none() && registry.by_name(&path.to_string_lossy()).1.is_none() {
        return Err(no_format(format_of(registry, source).as_deref()));
    }
    Ok(Replacement { keep: kept(registry, source), set: reading(path, []) })
}

/// The error of an input that the source has no format for.
fn no_format(format: Option<&dyn Format>) -> Error {
    match format.map(Format::reading) {
        Some(Reading::Rows) => Error::job("a database gives rows, and no text").hint("give `rows`"),
        _ => Error::job("the source's format is not known: neither its entry nor its name tells it")
            .hint("add a format block to the source, such as `csv: {}`, or give `rows`"),
    }
}

/// The keys of a source that is parsed as the job says, but read elsewhere.
fn kept(registry: &Registry, source: &SourceStep) -> Vec<String> {
    let is_place = |key: &str| OF_PLACES.contains(&key) || registry.sources.iter().any(|entry| entry.spec.name == key);
    let keys = source.settings.as_object().into_iter().flatten().map(|(key, _)| key.clone());
    keys.filter(|key| !is_place(key)).chain([CHECKS.to_owned()]).collect()
}

fn reading<const N: usize>(path: &Path, further: [(&str, Value); N]) -> Map<String, Value> {
    let pattern = millstream_source::pattern::escape(&path.to_string_lossy());
    let keys = [("read", json!(pattern)), ("incremental", json!(false))].into_iter().chain(further);
    keys.map(|(key, value)| (key.to_owned(), value)).collect()
}

fn write(folder: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = folder.join("in").join(name);
    let made = fs_err::create_dir_all(folder.join("in")).and_then(|()| fs_err::write(&path, text));
    made.map_err(|cause| Error::io("the input of a test cannot be written", &cause))?;
    Ok(path)
}
