//! What sequences ask between the runs of their jobs: the rows of a query, files, whether a condition holds. The
//! processes of a sequence are not the engine's.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, NullArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::json::writer::{JsonArray, WriterBuilder};
use datafusion::common::{DFSchema, ScalarValue};
use millstream_core::spec::TextOrSecret;
use millstream_core::{Error, Result};
use millstream_job::{JobText, Moment, SourceStep};
use millstream_source::pattern::escape;
use serde_json::{Map, Value};

use crate::context::RunContext;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::fault;
use crate::mail::{self, Letter};
use crate::require::{files_there, first_value, no_truth, rows_of};
use crate::sql;

/// A row: the values of its columns, in their order.
pub type Row = Map<String, Value>;

/// A request of a sequence.
#[derive(Debug, Clone)]
pub struct Request {
    /// The URL.
    pub url: String,
    /// Its method, in capitals.
    pub method: &'static str,
    /// The body; empty if there is none.
    pub body: String,
    /// Headers.
    pub headers: Vec<(String, TextOrSecret)>,
    /// The path of a file with further authorities.
    pub ca: Option<String>,
}

/// What a server has answered to a request: a status of 2xx, and the beginning of the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The status.
    pub status: u16,
    /// The first 16 KiB of the body.
    pub body: String,
}

/// `pattern` of files as it stands in a file of `folder`: a relative path begins there, and so does one of a list. URLs
/// stay as they are.
pub fn pattern_in(folder: &Path, pattern: &str) -> String {
    let (list, path) = match pattern.strip_prefix('@') {
        Some(path) => ("@", path),
        None => ("", pattern),
    };
    match path.contains("://") || path.starts_with('/') {
        true => pattern.to_owned(),
        false => format!("{list}{}/{path}", escape(&folder.to_string_lossy())),
    }
}

impl Engine {
    /// The first `most` rows of `source`, which stands in `text`, and whether the first value of the first one counts
    /// as true: it is neither null, false nor 0.
    ///
    /// # Errors
    /// If the source cannot be read.
    pub async fn rows_of_query(
        &self,
        text: &JobText,
        moment: Moment,
        source: SourceStep,
        most: usize,
    ) -> Result<(Vec<Row>, bool), Failure> {
        let text = text.clone();
        let look = async move |context: &RunContext| {
            let batches = rows_of(context, &text, moment, &source, most).await?;
            let holds = no_truth(first_value(&batches)?.as_ref()).is_none();
            Ok((rows(&batches)?, holds))
        };
        self.with_looking_context(look).await
    }

    /// The names of the first `most` files of `source` that are there.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub async fn files_of(&self, source: SourceStep, most: usize) -> Result<Vec<String>, Failure> {
        let look = async move |context: &RunContext| {
            let files = files_there(context, &source, most).await?;
            Ok(files.into_iter().map(|unit| unit.name()).collect())
        };
        self.with_looking_context(look).await
    }

    /// Whether `condition`, SQL over one row with these columns, is true. Null is not.
    ///
    /// # Errors
    /// If it is no condition, or cannot be computed.
    pub async fn holds(&self, condition: &str, columns: Row) -> Result<bool, Failure> {
        let condition = condition.to_owned();
        let look = async move |context: &RunContext| Ok(holds(context, &condition, &columns)?);
        self.with_looking_context(look).await
    }

    /// Sends a mail by the server of the machine.
    ///
    /// # Errors
    /// If there is no server, an address is none, or the server refuses the mail.
    pub async fn send_mail(&self, letter: Letter) -> Result<()> {
        mail::send(letter, self.machine().smtp.as_ref()).await
    }

    /// Sends a request. What may pass is retried.
    ///
    /// # Errors
    /// If the server cannot be reached, or answers with another status than 2xx.
    #[cfg(feature = "http")]
    pub async fn request(&self, request: Request) -> Result<Answered> {
        use millstream_source::http::{HttpSpec, request as send};

        let Request { url, method, body, headers, ca } = request;
        let settings = HttpSpec { headers: headers.into_iter().collect(), ca, retries: 3, ..HttpSpec::default() };
        let io = tokio::runtime::Handle::current();
        let answered = send(&io, &settings, method, &url, body).await.map_err(|error| {
            error.hint("the server has to answer with a status of 2xx; `url`, `headers` and `ca` are in the step")
        })?;
        Ok(Answered { status: answered.status, body: answered.body })
    }

    /// Sends nothing.
    ///
    /// # Errors
    /// Always.
    #[cfg(not(feature = "http"))]
    pub async fn request(&self, _: Request) -> Result<Answered> {
        Err(Error::job("this build sends no requests").hint("use one with the feature `http`"))
    }
}

/// The rows of `batches` as JSON.
fn rows(batches: &[RecordBatch]) -> Result<Vec<Row>> {
    let failed = |cause: arrow::error::ArrowError| Error::internal("rows cannot be written as JSON").cause(cause);
    let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, JsonArray>(Vec::new());
    writer.write_batches(&batches.iter().collect::<Vec<_>>()).map_err(failed)?;
    writer.finish().map_err(failed)?;
    let text = writer.into_inner();
    if text.is_empty() {
        return Ok(Vec::new());
    }
    serde_json::from_slice(&text).map_err(|cause| Error::internal("rows are no JSON").cause(cause))
}

fn holds(context: &RunContext, condition: &str, columns: &Row) -> Result<bool> {
    let state = context.session.state();
    let batch = one_row(columns)?;
    let schema = DFSchema::try_from(batch.schema()).map_err(fault::unwrap)?;
    let wrong = |cause: datafusion::error::DataFusionError| {
        Error::job("the condition cannot be computed").text(condition).cause(fault::unwrap(cause).what())
    };
    let expression = sql::expression(&state, condition, &schema).map_err(wrong)?;
    let expression = state.create_physical_expr(expression, &schema).map_err(wrong)?;
    let value = expression.evaluate(&batch).and_then(|value| value.into_array(1)).map_err(wrong)?;
    match ScalarValue::try_from_array(&value, 0).map_err(wrong)? {
        ScalarValue::Boolean(Some(holds)) => Ok(holds),
        value if value.is_null() => Ok(false),
        value => {
            let what = format!("the condition gives {value}, which is neither true nor false");
            Err(Error::job(what).text(condition).hint("compare it with something: `steps.rows.n > 0`"))
        }
    }
}

/// One row with `columns`. SQL folds names without quotes, so a name with capitals is there in lower case, too.
fn one_row(columns: &Row) -> Result<RecordBatch> {
    let mut fields: Vec<Field> = Vec::new();
    let mut values: Vec<ArrayRef> = Vec::new();
    let folded = columns.iter().map(|(name, value)| (name.to_lowercase(), value));
    let all = columns.iter().map(|(name, value)| (name.clone(), value)).chain(folded);
    for (name, value) in all {
        if fields.iter().any(|field| *field.name() == name) {
            continue;
        }
        let value = array(value);
        fields.push(Field::new(name, value.data_type().clone(), true));
        values.push(value);
    }
    if fields.is_empty() {
        fields.push(Field::new("", DataType::Null, true));
        values.push(Arc::new(NullArray::new(1)));
    }
    let failed = |cause: arrow::error::ArrowError| Error::internal("a row cannot be made").cause(cause);
    RecordBatch::try_new(Arc::new(Schema::new(fields)), values).map_err(failed)
}

fn array(value: &Value) -> ArrayRef {
    match value {
        Value::Null => Arc::new(NullArray::new(1)),
        Value::Bool(value) => Arc::new(BooleanArray::from(vec![*value])),
        Value::Number(number) => match number.as_i64() {
            Some(number) => Arc::new(Int64Array::from(vec![number])),
            None => Arc::new(Float64Array::from(vec![number.as_f64()])),
        },
        Value::String(text) => Arc::new(StringArray::from(vec![text.as_str()])),
        other => Arc::new(StringArray::from(vec![other.to_string()])),
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;
    use serde_json::json;

    use super::*;

    fn holds(condition: &str, columns: Value) -> Result<bool, String> {
        let engine = Engine::builder().build().expect("an engine");
        let Value::Object(columns) = columns else { panic!("columns") };
        block_on(engine.holds(condition, columns)).map_err(|failure| failure.to_string())
    }

    #[test]
    fn conditions_are_sql_over_one_row() {
        assert_eq!(holds("3 > 2", json!({})), Ok(true));
        assert_eq!(holds("n > 5 AND DAY < '2026-02-01'", json!({"n": 10, "DAY": "2026-01-31"})), Ok(true));
        assert_eq!(holds("\"DAY\" = day", json!({"DAY": "x"})), Ok(true));
        assert_eq!(holds("n > 5", json!({"n": null})), Ok(false), "null is not true");
        assert_eq!(holds("x IS NULL AND NOT ok", json!({"x": null, "ok": false})), Ok(true));
        let number = holds("n + 1", json!({"n": 1})).expect_err("no condition");
        assert!(number.contains("gives 2, which is neither true nor false"), "{number}");
        let unknown = holds("m > 1", json!({"n": 1})).expect_err("no such column");
        assert!(unknown.contains("the condition cannot be computed") && unknown.contains('m'), "{unknown}");
    }
}
