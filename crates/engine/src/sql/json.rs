//! Functions on JSON texts: `json_get` and its like. `json_operators.rs` has `->` and `->>`, which are two of them.
//!
//! | function | gives |
//! |---|---|
//! | `json_get(text, step, …)`, `->` | the value as JSON |
//! | `json_as_text`, `->>` | the value as text: a text without its quotes, anything else as JSON |
//! | `json_get_str`, `_int`, `_float`, `_bool` | the value, which has to be of that kind |
//! | `json_get_array` | the items of a list, each as JSON |
//! | `json_length` | how many items or keys the list or object has |
//! | `json_contains` | whether there is something, if only `null` |
//!
//! A step is a key or an index from 0; the steps may be columns. A text that is null, or a step that is, gives null; so
//! does what is not there, and JSON's own `null`. A text that is not JSON fails the expression: nothing that was read
//! wrongly passes for what is not there. What is found has a type that everything else in a job knows: there is no
//! union of all kinds of values.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, ListBuilder, StringViewArray, StringViewBuilder,
};
use arrow::datatypes::{DataType, Field, Int64Type};
use datafusion::common::{Result as DataFusionResult, internal_err, plan_err};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use datafusion::scalar::ScalarValue;
use millstream_core::format::TEXT;
use millstream_core::types::type_name;
use millstream_core::{Error, RejectKind};
use millstream_format::json::path::{PathStep, Value, items_at, of_another_kind, value_at};

use crate::fault;

/// What is made of the value that is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wanted {
    Json,
    AsText,
    Text,
    Int,
    Float,
    Bool,
    Array,
    Length,
    Contains,
}

impl Wanted {
    /// All of them.
    pub const ALL: [Wanted; 9] = [
        Wanted::Json,
        Wanted::AsText,
        Wanted::Text,
        Wanted::Int,
        Wanted::Float,
        Wanted::Bool,
        Wanted::Array,
        Wanted::Length,
        Wanted::Contains,
    ];

    /// The name of its function.
    pub fn function(self) -> &'static str {
        match self {
            Wanted::Json => "json_get",
            Wanted::AsText => "json_as_text",
            Wanted::Text => "json_get_str",
            Wanted::Int => "json_get_int",
            Wanted::Float => "json_get_float",
            Wanted::Bool => "json_get_bool",
            Wanted::Array => "json_get_array",
            Wanted::Length => "json_length",
            Wanted::Contains => "json_contains",
        }
    }

    fn data_type(self) -> DataType {
        match self {
            Wanted::Json | Wanted::AsText | Wanted::Text => TEXT,
            Wanted::Int | Wanted::Length => DataType::Int64,
            Wanted::Float => DataType::Float64,
            Wanted::Bool | Wanted::Contains => DataType::Boolean,
            Wanted::Array => DataType::List(Arc::new(Field::new_list_field(TEXT, true))),
        }
    }
}

/// The function that makes `wanted` of a value.
pub fn function(wanted: Wanted) -> ScalarUDF {
    let signature = Signature::user_defined(Volatility::Immutable);
    ScalarUDF::from(JsonFunction { wanted, signature })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct JsonFunction {
    wanted: Wanted,
    signature: Signature,
}

impl ScalarUDFImpl for JsonFunction {
    fn name(&self) -> &str {
        self.wanted.function()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DataFusionResult<DataType> {
        Ok(self.wanted.data_type())
    }

    fn coerce_types(&self, given: &[DataType]) -> DataFusionResult<Vec<DataType>> {
        let step = |step: &DataType| match step {
            step if is_text(step) => Some(TEXT),
            step if step.is_integer() => Some(DataType::Int64),
            _ => None,
        };
        let taken = match given.split_first() {
            Some((text, steps)) if is_text(text) => std::iter::once(Some(TEXT)).chain(steps.iter().map(step)).collect(),
            _ => None,
        };
        let Some(taken) = taken else {
            let given: Vec<String> = given.iter().map(type_name).collect();
            let name = self.name();
            return plan_err!("`{name}` takes (a JSON text, keys and indices), and is given ({})", given.join(", "));
        };
        Ok(taken)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let is_constant = arguments.args.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        let rows = if is_constant { 1 } else { arguments.number_rows };
        let Some((text, steps)) = arguments.args.split_first() else {
            return internal_err!("`{}` has no arguments", self.name());
        };
        let text = text.to_array(rows)?;
        let steps = steps.iter().map(Steps::of).collect::<DataFusionResult<Vec<Steps>>>()?;
        let found = compute(self.wanted, text.as_string_view(), &steps).map_err(fault::carry)?;
        Ok(match is_constant {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&found, 0)?),
            false => ColumnarValue::Array(found),
        })
    }
}

fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Null => true,
        DataType::Dictionary(_, values) => is_text(values),
        _ => false,
    }
}

/// One step of the paths of all rows.
enum Steps {
    Key(Option<String>),
    Index(Option<i64>),
    Keys(ArrayRef),
    Indices(ArrayRef),
}

impl Steps {
    fn of(argument: &ColumnarValue) -> DataFusionResult<Self> {
        Ok(match argument {
            ColumnarValue::Scalar(ScalarValue::Int64(index)) => Steps::Index(*index),
            ColumnarValue::Scalar(value) => match value.try_as_str() {
                Some(key) => Steps::Key(key.map(str::to_owned)),
                None => return internal_err!("a step is a {}", value.data_type()),
            },
            ColumnarValue::Array(steps) if *steps.data_type() == DataType::Int64 => Steps::Indices(Arc::clone(steps)),
            ColumnarValue::Array(steps) => Steps::Keys(Arc::clone(steps)),
        })
    }

    /// The step of a row; `None` if it is null.
    fn at(&self, row: usize) -> Option<PathStep<'_>> {
        match self {
            Steps::Key(key) => key.as_deref().map(PathStep::Key),
            Steps::Index(index) => index.map(PathStep::Index),
            Steps::Keys(keys) => keys.is_valid(row).then(|| PathStep::Key(keys.as_string_view().value(row))),
            Steps::Indices(indices) => {
                indices.is_valid(row).then(|| PathStep::Index(indices.as_primitive::<Int64Type>().value(row)))
            }
        }
    }
}

/// What `wanted` makes of each row.
fn compute(wanted: Wanted, texts: &StringViewArray, steps: &[Steps]) -> Result<ArrayRef, Error> {
    let values = || each(texts, steps, |text, path| Ok(value_at(text, path)?.filter(|value| *value != Value::Null)));
    match wanted {
        Wanted::Json => made::<StringViewArray, _, _>(values(), |value| Ok(value.json())),
        Wanted::AsText => made::<StringViewArray, _, _>(values(), |value| Ok(as_text(value))),
        Wanted::Text => made::<StringViewArray, _, _>(values(), text),
        Wanted::Int => made::<Int64Array, _, _>(values(), int),
        Wanted::Float => made::<Float64Array, _, _>(values(), float),
        Wanted::Bool => made::<BooleanArray, _, _>(values(), truth),
        Wanted::Length => made::<Int64Array, _, _>(values(), length),
        Wanted::Contains => {
            let found = each(texts, steps, |text, path| Ok(Some(value_at(text, path)?.is_some())));
            made::<BooleanArray, _, _>(found, Ok)
        }
        Wanted::Array => lists(each(texts, steps, items_at)),
    }
}

/// What `read` finds in each row; null where the text or a step is.
fn each<'t, T: 't>(
    texts: &'t StringViewArray,
    steps: &'t [Steps],
    read: impl Fn(&'t str, &[PathStep<'t>]) -> Result<Option<T>, Error> + 't,
) -> impl Iterator<Item = Result<Option<T>, Error>> + 't {
    let mut path = Vec::with_capacity(steps.len());
    texts.iter().enumerate().map(move |(row, text)| {
        path.clear();
        path.extend(steps.iter().map_while(|step| step.at(row)));
        match text {
            Some(text) if path.len() == steps.len() => read(text, &path),
            _ => Ok(None),
        }
    })
}

/// `make` of all that was found, as an array.
fn made<A: Array + FromIterator<Option<V>> + 'static, V, T>(
    found: impl Iterator<Item = Result<Option<T>, Error>>,
    make: impl Fn(T) -> Result<V, Error>,
) -> Result<ArrayRef, Error> {
    let values = found.map(|found| found?.map(&make).transpose());
    Ok(Arc::new(values.collect::<Result<A, Error>>()?))
}

fn as_text<'t>(value: Value<'t>) -> Cow<'t, str> {
    match value {
        Value::Text(text, _) => text,
        other => Cow::Borrowed(other.json()),
    }
}

fn text<'t>(value: Value<'t>) -> Result<Cow<'t, str>, Error> {
    match value {
        Value::Text(text, _) => Ok(text),
        other => Err(of_another_kind(&other, "a text")),
    }
}

fn int(value: Value<'_>) -> Result<i64, Error> {
    match value {
        Value::Number(number) => number.parse().map_err(|_| no_int64(number)),
        other => Err(of_another_kind(&other, "a number")),
    }
}

fn no_int64(number: &str) -> Error {
    Error::data("the JSON number is not an int64")
        .reject(RejectKind::Expression)
        .text(number)
        .hint("json_get_float takes any number, and json_as_text its digits")
}

fn float(value: Value<'_>) -> Result<f64, Error> {
    match value {
        Value::Number(number) => match number.parse::<f64>() {
            Ok(float) if float.is_finite() => Ok(float),
            _ => Err(Error::data("the JSON number is too large for a float64")
                .reject(RejectKind::Expression)
                .text(number)),
        },
        other => Err(of_another_kind(&other, "a number")),
    }
}

fn truth(value: Value<'_>) -> Result<bool, Error> {
    match value {
        Value::Bool(truth) => Ok(truth),
        other => Err(of_another_kind(&other, "a truth value")),
    }
}

fn length(value: Value<'_>) -> Result<i64, Error> {
    match value {
        Value::List(_, count) | Value::Object(_, count) => Ok(i64::try_from(count).unwrap_or(i64::MAX)),
        other => Err(of_another_kind(&other, "a list or an object")),
    }
}

fn lists<'t>(found: impl Iterator<Item = Result<Option<Vec<&'t str>>, Error>>) -> Result<ArrayRef, Error> {
    let mut builder = ListBuilder::new(StringViewBuilder::new());
    for items in found {
        let items = items?;
        items.iter().flatten().for_each(|item| builder.values().append_value(item));
        builder.append(items.is_some());
    }
    Ok(Arc::new(builder.finish()))
}
