//! Functions for SQL whose values workers compute.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array, new_empty_array};
use arrow::compute::{concat_batches, sort_to_indices, take};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::tree_node::Transformed;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature,
    Volatility,
};
use datafusion::scalar::ScalarValue;
use futures::{StreamExt, TryStreamExt, stream};
use millstream_core::reject::RejectKind;
use millstream_core::transform::WorkFunction;
use millstream_core::types::type_name;
use millstream_core::{Error, ErrorKind, Result};
use tokio::runtime::Handle;

use super::pool::Pool;
use super::rows::{Part, Work};
use crate::{fault, sql};

/// The columns that the workers of `function` take: one for each argument.
pub fn arguments(function: &WorkFunction) -> SchemaRef {
    let field = |(index, data_type): (usize, &DataType)| Field::new(format!("${}", index + 1), data_type.clone(), true);
    Arc::new(Schema::new(function.arguments.iter().enumerate().map(field).collect::<Vec<_>>()))
}

/// The function as SQL calls it. Its values are those of the workers of `pool`, whose step has its name. It blocks the
/// thread that calls it, which has to be one of `runtime`.
pub fn sql_function(function: &WorkFunction, pool: &Arc<Pool>, runtime: Handle) -> ScalarUDF {
    let volatility = if pool.rules().deterministic { Volatility::Immutable } else { Volatility::Volatile };
    let types = if function.arguments.is_empty() { TypeSignature::Nullary } else { TypeSignature::UserDefined };
    let schema = Arc::new(Schema::new(vec![Field::new("value", function.returns.clone(), true)]));
    // An expression that fails is computed again: the numbers of rows need not fit together.
    pool.counters().begin_stream();
    let work = Work {
        pool: Arc::clone(pool),
        schema,
        wanted: None,
        keep: Vec::new(),
        width: function.arguments.len(),
        taker: None,
        is_entry: false,
        carried: None,
        went: Arc::default(),
        lost: Arc::default(),
    };
    ScalarUDF::new_from_impl(SqlFunction {
        signature: Signature::new(types, volatility),
        returns: function.returns.clone(),
        arguments: function.arguments.clone(),
        takes: arguments(function),
        work,
        runtime,
        step: None,
    })
}

/// `plan` of `step`, which alone is to blame if a function that it calls fails: afterwards steps are one plan.
///
/// # Errors
/// Those of the planner.
pub fn called_by(step: &str, plan: LogicalPlan) -> DataFusionResult<LogicalPlan> {
    let step: Arc<str> = step.into();
    sql::rewritten(plan, |expression, _| match expression {
        Expr::ScalarFunction(call) => match call.func.inner().downcast_ref::<SqlFunction>() {
            Some(function) => {
                let function = SqlFunction { step: Some(Arc::clone(&step)), ..function.clone() };
                let function = Arc::new(ScalarUDF::new_from_impl(function));
                Ok(Transformed::yes(Expr::ScalarFunction(ScalarFunction::new_udf(function, call.args))))
            }
            None => Ok(Transformed::no(Expr::ScalarFunction(call))),
        },
        other => Ok(Transformed::no(other)),
    })
}

#[derive(Clone)]
struct SqlFunction {
    signature: Signature,
    arguments: Vec<DataType>,
    returns: DataType,
    takes: SchemaRef,
    work: Work,
    runtime: Handle,
    /// The step that calls it, where that is known.
    step: Option<Arc<str>>,
}

impl SqlFunction {
    /// The value of each row of `columns`, the arguments of `count` rows.
    async fn values(&self, mut columns: Vec<ArrayRef>, count: usize) -> Result<ArrayRef> {
        // The operator that calls it looks for the row to blame by calling it again.
        if let Some(error) = self.work.lost.find(&columns) {
            return Err(self.in_function(error));
        }
        // The number of each row is carried: rows that are tried again come later.
        columns.push(Arc::new(UInt32Array::from_iter_values(0..count as u32)));
        let mut fields: Vec<_> = self.takes.fields().iter().cloned().collect();
        fields.push(Arc::new(Field::new("row", DataType::UInt32, false)));
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        let rows = RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options);
        let calls = stream::unfold(Some(rows.map_err(unfit)?), |mut rest| async move {
            let rows = self.work.pool.call_rows().cut(&mut rest)?;
            Some((self.work.rows(Part { rows, ends: Vec::new() }), rest))
        });
        let done: Vec<Vec<RecordBatch>> =
            calls.buffered(self.work.pool.size()).try_collect().await.map_err(|error| self.in_function(error))?;
        let done = done.concat();
        let given: usize = done.iter().map(RecordBatch::num_rows).sum();
        if given != count {
            return Err(Error::internal(format!("{given} values for {count} rows")));
        }
        match &done[..] {
            [] => Ok(new_empty_array(&self.returns)),
            [rows] => Ok(Arc::clone(rows.column(0))),
            [first, ..] => {
                let rows = concat_batches(&first.schema(), &done).map_err(unfit)?;
                let order = sort_to_indices(rows.column(1), None, None).map_err(unfit)?;
                take(rows.column(0), &order, None).map_err(unfit)
            }
        }
    }

    /// `error` of the function at a row.
    fn in_function(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::Data {
            return error;
        }
        let what = format!("the function `{}` failed: {}", self.work.pool.step(), error.what());
        let told = Error::data(what).reject(RejectKind::Expression);
        let told = error.offending_text().into_iter().fold(told, |told, text| told.text(text));
        let told = error.cause_text().into_iter().fold(told, |told, cause| told.cause(cause));
        error.hint_text().into_iter().fold(told, |told, hint| told.hint(hint))
    }
}

impl ScalarUDFImpl for SqlFunction {
    fn name(&self) -> &str {
        self.work.pool.step()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DataFusionResult<DataType> {
        Ok(self.returns.clone())
    }

    fn coerce_types(&self, given: &[DataType]) -> DataFusionResult<Vec<DataType>> {
        let fits = given.len() == self.arguments.len()
            && self.arguments.iter().zip(given).all(|(takes, given)| is_taken(takes, given));
        if fits {
            return Ok(self.arguments.clone());
        }
        let names = |types: &[DataType]| types.iter().map(type_name).collect::<Vec<_>>().join(", ");
        let takes = format!("`{}` takes ({}), and is given ({})", self.name(), names(&self.arguments), names(given));
        Err(DataFusionError::Plan(takes))
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        // Without the promise each row is a call of its own.
        let is_constant = self.work.pool.rules().deterministic
            && call.number_rows > 0
            && !call.args.is_empty()
            && call.args.iter().all(|one| matches!(one, ColumnarValue::Scalar(_)));
        let count = if is_constant { 1 } else { call.number_rows };
        let columns = call.args.into_iter().map(|one| one.into_array(count)).collect::<DataFusionResult<Vec<_>>>()?;
        if count == 0 {
            return Ok(ColumnarValue::Array(new_empty_array(&self.returns)));
        }
        let counters = self.work.pool.counters();
        counters.add_rows_in(count as u64);
        // Nothing can drop what blocks a thread.
        let values = self.work.pool.unless_stopped(self.values(columns, count));
        let values = tokio::task::block_in_place(|| self.runtime.block_on(values));
        let values = values.map_err(|error| match &self.step {
            Some(step) => fault::carry_of_step(error, step),
            None => fault::carry(error),
        })?;
        counters.add_rows(count as u64);
        match is_constant {
            true => ScalarValue::try_from_array(&values, 0).map(ColumnarValue::Scalar),
            false => Ok(ColumnarValue::Array(values)),
        }
    }
}

impl std::fmt::Debug for SqlFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SqlFunction").field(&self.work.pool.step()).finish()
    }
}

/// Of one run, in which names are unique.
impl PartialEq for SqlFunction {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.work.pool, &other.work.pool) && self.step == other.step
    }
}

impl Eq for SqlFunction {}

impl Hash for SqlFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.work.pool.step().hash(state);
    }
}

/// Whether a value of type `given` is converted to `takes` without a CAST. A number that does not fit is an error when
/// it is computed.
fn is_taken(takes: &DataType, given: &DataType) -> bool {
    let is_text = |one: &DataType| matches!(one, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    let is_binary = |one: &DataType| matches!(one, DataType::Binary | DataType::LargeBinary | DataType::BinaryView);
    let is_time = |one: &DataType| matches!(one, DataType::Time32(_) | DataType::Time64(_));
    let digits = |one: &DataType| match one {
        DataType::Decimal128(digits, scale) | DataType::Decimal256(digits, scale) => {
            Some((i16::from(*digits) - i16::from(*scale), *scale))
        }
        _ => None,
    };
    match (takes, given) {
        _ if takes == given || given.is_null() => true,
        (DataType::Timestamp(_, zone), DataType::Timestamp(_, other)) => zone.is_some() == other.is_some(),
        (DataType::Float64, DataType::Float32 | DataType::Float16) => true,
        (DataType::Float64 | DataType::Decimal128(..) | DataType::Decimal256(..), _) if given.is_integer() => true,
        (_, DataType::Dictionary(_, values)) => is_taken(takes, values),
        _ => {
            let wider = digits(takes)
                .zip(digits(given))
                .is_some_and(|((whole, scale), (other, fraction))| whole >= other && scale >= fraction);
            wider
                || (takes.is_integer() && given.is_integer())
                || (is_text(takes) && is_text(given))
                || (is_binary(takes) && is_binary(given))
                || (is_time(takes) && is_time(given))
        }
    }
}

fn unfit(cause: arrow::error::ArrowError) -> Error {
    Error::internal("values of a function do not fit together").cause(cause)
}
