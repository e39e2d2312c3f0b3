//! Functions for SQL whose values workers compute.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array, new_empty_array};
use arrow::compute::{concat_batches, sort_to_indices, take};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility,
};
use datafusion::scalar::ScalarValue;
use millstream_core::reject::RejectKind;
use millstream_core::transform::WorkFunction;
use millstream_core::{Error, ErrorKind, Result};
use tokio::runtime::Handle;

use super::pool::Pool;
use super::rows::{Part, Work};

/// The columns that the workers of `function` take: one for each argument.
pub fn arguments(function: &WorkFunction) -> SchemaRef {
    let field = |(index, data_type): (usize, &DataType)| Field::new(format!("{}", index + 1), data_type.clone(), true);
    Arc::new(Schema::new(function.arguments.iter().enumerate().map(field).collect::<Vec<_>>()))
}

/// The function as SQL calls it. Its values are those of the workers of `pool`, whose step has its name. It blocks the
/// thread that calls it, which has to be one of `runtime`.
pub fn sql_function(function: &WorkFunction, pool: &Arc<Pool>, runtime: Handle) -> ScalarUDF {
    let volatility = if pool.rules().deterministic { Volatility::Immutable } else { Volatility::Volatile };
    let types = match function.arguments.is_empty() {
        true => TypeSignature::Nullary,
        false => TypeSignature::Exact(function.arguments.clone()),
    };
    let schema = Arc::new(Schema::new(vec![Field::new("value", function.returns.clone(), true)]));
    let work = Work {
        pool: Arc::clone(pool),
        schema,
        keep: Vec::new(),
        width: function.arguments.len(),
        taker: None,
        is_entry: false,
        failed: Arc::default(),
    };
    ScalarUDF::new_from_impl(SqlFunction {
        signature: Signature::new(types, volatility),
        returns: function.returns.clone(),
        takes: arguments(function),
        work,
        runtime,
    })
}

struct SqlFunction {
    signature: Signature,
    returns: DataType,
    takes: SchemaRef,
    work: Work,
    runtime: Handle,
}

impl SqlFunction {
    /// The value of each row of `columns`, the arguments of `count` rows.
    async fn values(&self, mut columns: Vec<ArrayRef>, count: usize) -> Result<ArrayRef> {
        // The number of each row is carried: rows that are tried again come later.
        columns.push(Arc::new(UInt32Array::from_iter_values(0..count as u32)));
        let mut fields: Vec<_> = self.takes.fields().iter().cloned().collect();
        fields.push(Arc::new(Field::new("row", DataType::UInt32, false)));
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        let rows = RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options);
        let part = Part { rows: rows.map_err(unfit)?, ends: Vec::new() };
        let done = self.work.rows(part).await.map_err(|error| self.in_function(error))?;
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

    /// `error` of the function at a row. Which step calls it is found where the error comes out.
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

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let is_constant = !call.args.is_empty() && call.args.iter().all(|one| matches!(one, ColumnarValue::Scalar(_)));
        let count = if is_constant { 1 } else { call.number_rows };
        let columns = call.args.into_iter().map(|one| one.into_array(count)).collect::<DataFusionResult<Vec<_>>>()?;
        let values = tokio::task::block_in_place(|| self.runtime.block_on(self.values(columns, count)));
        let values = values.map_err(|error| DataFusionError::External(Box::new(error)))?;
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
        Arc::ptr_eq(&self.work.pool, &other.work.pool)
    }
}

impl Eq for SqlFunction {}

impl Hash for SqlFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.work.pool.step().hash(state);
    }
}

fn unfit(cause: arrow::error::ArrowError) -> Error {
    Error::internal("values of a function do not fit together").cause(cause)
}
