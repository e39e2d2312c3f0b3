//! Rows on standard output: a few as a table or as JSON, or all that a query gives in a format.

use std::io::IsTerminal;
use std::sync::Arc;

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow_json::writer::{JsonArray, WriterBuilder};
use futures::TryStreamExt;
use futures::executor::block_on;
use millstream::component::Format;
use millstream::files::FirstRows;
use millstream::rejects::LeftOut;
use millstream::types::type_name;
use millstream::{Engine, Error, Failure, Result, RowStream};
use serde_json::{Value, json};

use crate::arguments::Sql;
use crate::output::Output;
use crate::table::table;

/// The form of a query's rows, beside the formats that Millstream writes.
pub const TABLE: &str = "table";

/// Bytes of rows that an encoder may hold.
const MOST_HELD: usize = 32 << 20;

/// Rows that are encoded at once.
const ENCODED_ROWS: usize = 1024;

/// How the rows of a query are written.
#[derive(Debug, Clone)]
pub enum Form {
    /// The first rows, as a table.
    Table {
        /// How many.
        rows: usize,
    },
    /// All rows, in this format.
    Format(&'static str),
    /// All rows, as one JSON array.
    Array,
}

impl Form {
    /// The form that the options ask for: without any, a table on a terminal, and csv elsewhere.
    pub fn of(output: Output, sql: &Sql) -> Result<Self> {
        let formats = millstream::component::registry().formats;
        let format = |name: &str| formats.iter().map(|format| format.spec.name).find(|format| *format == name);
        let table = Form::Table { rows: sql.rows };
        match sql.format.as_deref() {
            Some(_) if output.json => {
                Err(Error::job("`--json` and `--format` ask for two forms of the rows").hint("leave out one of them"))
            }
            Some(TABLE) => Ok(table),
            Some(name) => {
                format(name).map(Form::Format).ok_or_else(|| Error::job(format!("there is no format `{name}`")))
            }
            None if output.json => Ok(Form::Array),
            None if std::io::stdout().is_terminal() => Ok(table),
            None => Ok(Form::Format("csv")),
        }
    }

    /// Writes `rows`.
    pub fn show(self, output: Output, engine: &Engine, rows: RowStream) -> Result<(), Failure> {
        match self {
            Form::Table { rows: most } => show_table(output, rows, most),
            Form::Format(name) => encode(output, format(engine, name, &json!({}))?, rows),
            Form::Array => encode(output, format(engine, "json", &json!({"layout": "array"}))?, rows),
        }
    }
}

/// The format `name` of `engine`, with these settings.
fn format(engine: &Engine, name: &str, settings: &serde_json::Value) -> Result<Arc<dyn Format>> {
    let entry = engine.registry().formats.iter().find(|entry| entry.spec.name == name);
    let format = entry.and_then(|entry| (entry.build)(settings).ok());
    format.ok_or_else(|| Error::internal(format!("the format {name} cannot be made")))
}

/// Shows the first `most` rows, and whether there are more.
fn show_table(output: Output, mut rows: RowStream, most: usize) -> Result<(), Failure> {
    let schema = Arc::clone(rows.schema());
    // One more than is shown tells that there are more.
    let (mut batches, mut room) = (Vec::new(), most.saturating_add(1));
    while room > 0
        && let Some(batch) = block_on(rows.try_next())?
    {
        let taken = batch.num_rows().min(room);
        room -= taken;
        batches.push(batch.slice(0, taken));
    }
    drop(rows);
    let has_more = room == 0;
    if let Some(last) = batches.last_mut().filter(|_| has_more) {
        *last = last.slice(0, last.num_rows() - 1);
    }
    output.result(&rows_as_table(&schema, &batches)?)?;
    if has_more {
        output.chat(&format!("… there are more rows than {most}: --rows shows more, --format csv writes all\n"));
    }
    Ok(())
}

/// Writes all rows in a format, as they come.
fn encode(output: Output, format: Arc<dyn Format>, mut rows: RowStream) -> Result<(), Failure> {
    let mut encoder = format.encoder(Arc::clone(rows.schema()), true)?;
    let mut bytes = Vec::new();
    while let Some(batch) = block_on(rows.try_next())? {
        for start in (0..batch.num_rows()).step_by(ENCODED_ROWS) {
            encoder.encode(&batch.slice(start, ENCODED_ROWS.min(batch.num_rows() - start)), &mut bytes)?;
            if encoder.held() > MOST_HELD {
                encoder.relieve(&mut bytes)?;
            }
        }
        output.bytes(&bytes)?;
        bytes.clear();
    }
    encoder.finish(&mut bytes)?;
    Ok(output.bytes(&bytes)?)
}

/// One object a row.
pub fn rows_as_json(batches: &[RecordBatch]) -> Result<String> {
    let failed = |cause: arrow::error::ArrowError| Error::internal("rows cannot be written as JSON").cause(cause);
    let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, JsonArray>(Vec::new());
    writer.write_batches(&batches.iter().collect::<Vec<_>>()).map_err(failed)?;
    writer.finish().map_err(failed)?;
    let mut text = String::from_utf8_lossy(&writer.into_inner()).into_owned();
    if text.is_empty() {
        text.push_str("[]");
    }
    text.push('\n');
    Ok(text)
}

/// The first rows as an object: the columns with their types, and each row as a list of texts, as a table shows them;
/// null is null.
pub fn with_columns(shown: &FirstRows) -> Result<Value> {
    let failed = |cause: arrow::error::ArrowError| Error::internal("rows cannot be shown").cause(cause);
    let options = FormatOptions::default();
    let mut rows = Vec::new();
    for batch in &shown.batches {
        let columns = batch.columns().iter().map(|column| ArrayFormatter::try_new(column.as_ref(), &options));
        let columns: Vec<ArrayFormatter<'_>> = columns.collect::<Result<_, _>>().map_err(failed)?;
        for row in 0..batch.num_rows() {
            let cell = |(number, column): (usize, &ArrayFormatter<'_>)| match batch.column(number).is_null(row) {
                true => Value::Null,
                false => Value::from(column.value(row).to_string()),
            };
            rows.push(columns.iter().enumerate().map(cell).collect::<Vec<_>>());
        }
    }
    let column = |field: &Arc<Field>| json!({"name": field.name(), "type": type_name(field.data_type())});
    let columns: Vec<Value> = shown.schema.fields().iter().map(column).collect();
    let left_out = shown
        .left_out
        .iter()
        .map(|LeftOut { entry, count, first }| json!({"entry": entry, "count": count, "first": first}));
    let left_out: Vec<Value> = left_out.collect();
    Ok(json!({"columns": columns, "rows": rows, "left_out": left_out, "lints": shown.warnings, "errors": []}))
}

/// Cells longer than this are cut.
const CELL_LIMIT: usize = 60;

/// The rows below the names of their columns.
pub fn rows_as_table(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<String> {
    let failed = |cause: arrow::error::ArrowError| Error::internal("rows cannot be shown").cause(cause);
    let options = FormatOptions::default().with_null("");
    let mut rows = Vec::new();
    for batch in batches {
        let columns: Vec<ArrayFormatter<'_>> = batch
            .columns()
            .iter()
            .map(|column| ArrayFormatter::try_new(column.as_ref(), &options))
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        for row in 0..batch.num_rows() {
            rows.push(columns.iter().map(|column| cell(&column.value(row).to_string())).collect());
        }
    }
    let header: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
    let right: Vec<bool> = schema.fields().iter().map(|field| is_number(field.data_type())).collect();
    Ok(table(&header, &rows, &right))
}

fn is_number(kind: &DataType) -> bool {
    kind.is_numeric()
}

/// A value in one line, not too long.
fn cell(text: &str) -> String {
    let mut shown = String::new();
    for (index, character) in text.chars().enumerate() {
        if index == CELL_LIMIT {
            shown.push('…');
            break;
        }
        match character {
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            other if other.is_control() => shown.push('·'),
            other => shown.push(other),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, StringArray};
    use arrow::datatypes::{Field, Schema};

    use super::*;

    #[test]
    fn rows_are_shown_in_one_line_each() {
        let schema: SchemaRef = Arc::new(Schema::new(vec![
            Field::new("n", DataType::Int64, true),
            Field::new("text", DataType::Utf8, true),
        ]));
        let long = "x".repeat(100);
        let batch = RecordBatch::try_new(
            Arc::clone(&schema),
            vec![
                Arc::new(Int64Array::from(vec![Some(1000), None])),
                Arc::new(StringArray::from(vec!["a\nb\u{7}", long.as_str()])),
            ],
        )
        .expect("a batch");
        let shown = rows_as_table(&schema, std::slice::from_ref(&batch)).expect("shown");
        assert_eq!(shown, format!("   n  text\n1000  a\\nb·\n      {}…\n", "x".repeat(60)));
        assert_eq!(rows_as_json(&[]).expect("json"), "[]\n");
        assert!(rows_as_json(&[batch]).expect("json").starts_with(r#"[{"n":1000,"text":"a\nb\u0007"}"#));
    }
}
