//! The rows that a tested job gives: captured in files in place of its sinks, and read beside those that are expected.
//!
//! Both are written as JSON by the same writer, from the types that the job's entry has: so 1.5 is 1.50 where the
//! column is a decimal, and a text is a date where it is one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use millstream_core::columns::parse_type;
use millstream_core::format::{Format, ParseRequest, Parsed, StreamFormat};
use millstream_core::hint::did_you_mean;
use millstream_core::types::type_name;
use millstream_core::{Error, Result};
use millstream_format::json::JsonFormat;
use millstream_job::Job;
use millstream_job::entries::CHECKS;
use millstream_job::replace::Replacement;
use millstream_job::test_file::JobTest;
use serde_json::{Map, Value, json};

use super::compare::{Column, Row};
use crate::job_plan::JobPlan;

/// The sinks that capture rows.
pub struct Captured(Vec<Capture>);

struct Capture {
    sink: String,
    /// The entry that is expected by this name: the sink's own, or that of what it reads.
    entry: String,
    from: String,
    path: PathBuf,
    is_added: bool,
}

/// The rows that are expected, and those that are there.
pub struct Compared {
    /// The columns that are compared.
    pub columns: Vec<Column>,
    /// What is expected.
    pub expected: Vec<Row>,
    /// What is there.
    pub found: Vec<Row>,
}

/// What captures the rows of all sinks of `job`, and of the other entries that `test` expects, in `folder`.
pub fn capture(job: &Job, test: &JobTest, folder: &Path) -> Result<Captured> {
    let folder = folder.join("out");
    fs_err::create_dir_all(&folder).map_err(|cause| Error::io("a folder for rows cannot be made", &cause))?;
    let capture = |sink: String, entry: &str, from: &str, is_added| {
        let path = folder.join(format!("{sink}.jsonl"));
        Capture { sink, entry: entry.to_owned(), from: from.to_owned(), path, is_added }
    };
    let is_sink = |name: &str| job.sinks.iter().any(|sink| sink.name.value == name);
    let mut captures: Vec<Capture> = job
        .sinks
        .iter()
        .map(|sink| capture(sink.name.value.clone(), &sink.name.value, &sink.from.value, false))
        .collect();
    for entry in test.expect.keys().filter(|entry| !is_sink(entry)) {
        let mut sink = format!("rows_of_{entry}");
        while is_sink(&sink) {
            sink.push('_');
        }
        captures.push(capture(sink, entry, entry, true));
    }
    Ok(Captured(captures))
}

impl Captured {
    /// What stands in for the sinks.
    pub fn sinks(&self) -> BTreeMap<String, Replacement> {
        let one = |capture: &Capture| {
            let write = json!({"write": capture.path, "json": writing(), "from": capture.from});
            let set = write.as_object().cloned().unwrap_or_default();
            let keep = if capture.is_added { Vec::new() } else { vec![CHECKS.to_owned()] };
            (capture.sink.clone(), Replacement { keep, set })
        };
        self.0.iter().map(one).collect()
    }

    /// The rows of `entry` beside those that are expected of it, in the types that it has in `plan`.
    pub fn rows(&self, entry: &str, plan: &JobPlan, expected: &[Row]) -> Result<Compared> {
        let capture = self.0.iter().find(|capture| capture.entry == entry);
        let (capture, schema) = capture
            .and_then(|capture| Some((capture, plan.columns(&capture.from)?)))
            .ok_or_else(|| Error::internal("an entry of a test has no rows").text(entry))?;
        let columns = columns(entry, schema, expected)?;
        let text = match fs_err::read_to_string(&capture.path) {
            Ok(text) => text,
            Err(cause) => return Err(Error::io("the rows of a test cannot be read", &cause)),
        };
        let mut found = rows_of(&text)?;
        let is_compared = |name: &str| columns.iter().any(|column| column.name == name);
        found.iter_mut().for_each(|row| row.retain(|column, _| is_compared(column)));
        let expected = typed(entry, schema, &columns, expected)?;
        Ok(Compared { columns, expected, found })
    }
}

/// How rows are written that are compared.
fn writing() -> Value {
    json!({"decimals": "text"})
}

/// The columns that `rows` name, in the order of `schema`; all if there are no rows.
fn columns(entry: &str, schema: &Schema, rows: &[Row]) -> Result<Vec<Column>> {
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    let is_known = |column: &&String| names.contains(&column.as_str());
    if let Some(unknown) = rows.iter().flat_map(Map::keys).find(|column| !is_known(column)) {
        return Err(Error::job(format!("`{entry}` has no column `{unknown}`, which the test expects"))
            .hint(did_you_mean(unknown, "columns", &names)));
    }
    let is_named = |field: &&Arc<Field>| rows.is_empty() || rows.iter().any(|row| row.contains_key(field.name()));
    let column = |field: &Arc<Field>| Column {
        name: field.name().clone(),
        has_fractions: field.data_type().is_floating() || field.data_type().is_decimal(),
    };
    Ok(schema.fields().iter().filter(is_named).map(column).collect())
}

/// `rows` with the values that their columns have in `schema`.
fn typed(entry: &str, schema: &Schema, columns: &[Column], rows: &[Row]) -> Result<Vec<Row>> {
    let field = |column: &Column| {
        let data_type = schema.field_with_name(&column.name).ok()?.data_type();
        // That which a job file would declare, in the one of several that is read.
        let read = parse_type(&type_name(data_type)).unwrap_or_else(|_| data_type.clone());
        Some(Field::new(&column.name, read, true))
    };
    let fields: Vec<Field> = columns.iter().filter_map(field).collect();
    let schema: SchemaRef = Arc::new(Schema::new(fields));
    let format = JsonFormat::new(serde_json::from_value(writing()).unwrap_or_default())
        .map_err(|_| Error::internal("the settings of a test's rows are wrong"))?;
    let lines: String = rows.iter().map(|row| Value::from(row.clone()).to_string() + "\n").collect();
    let mut parsed = Parsed::default();
    let mut parser = format.parser(&ParseRequest::all(Arc::clone(&schema)))?;
    parser.push(lines.into(), &mut parsed)?;
    parser.finish(&mut parsed)?;
    if let Some(reject) = parsed.rejects.first() {
        let what = format!("row {} that is expected of `{entry}` is none: {}", reject.line, reject.reason.what());
        let error = Error::job(what).text(&reject.raw);
        return Err(reject.reason.location().column.as_ref().map_or(error.clone(), |column| error.column(column)));
    }
    let mut text = Vec::new();
    let mut encoder = format.encoder(schema, true)?;
    for rows in &parsed.rows {
        encoder.encode(&rows.batch, &mut text)?;
    }
    encoder.finish(&mut text)?;
    rows_of(&String::from_utf8_lossy(&text))
}

/// Lines of JSON as rows.
fn rows_of(text: &str) -> Result<Vec<Row>> {
    let row = |line: &str| {
        serde_json::from_str(line).map_err(|cause| Error::internal("a row of a test is not JSON").cause(cause))
    };
    text.lines().map(row).collect()
}
