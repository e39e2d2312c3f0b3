//! Columns that may hold values of several types (unions) become text at the end of a step.
//!
//! No function of ours gives one, but one that a program adds to the engine may. Sinks, formats and own code know no
//! unions. Within a query they stay what they are, so that other functions can take them apart.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringViewArray};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use arrow::util::display::array_value_to_string;
use datafusion::common::{Result as DataFusionResult, internal_err};
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, LogicalPlanBuilder, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use millstream_core::format::TEXT;

/// `plan` with texts in place of its unions.
pub fn as_texts(plan: LogicalPlan) -> DataFusionResult<LogicalPlan> {
    let is_union = |data_type: &DataType| matches!(data_type, DataType::Union(..));
    if !plan.schema().fields().iter().any(|field| is_union(field.data_type())) {
        return Ok(plan);
    }
    let function = Arc::new(ScalarUDF::from(UnionAsText { signature: Signature::any(1, Volatility::Immutable) }));
    let columns = plan.schema().iter().map(|(table, field)| {
        let column = Expr::from((table, field));
        match is_union(field.data_type()) {
            true => function.call(vec![column]).alias_qualified(table.cloned(), field.name()),
            false => column,
        }
    });
    let columns: Vec<Expr> = columns.collect();
    LogicalPlanBuilder::from(plan).project(columns)?.build()
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct UnionAsText {
    signature: Signature,
}

impl ScalarUDFImpl for UnionAsText {
    fn name(&self) -> &str {
        "union_as_text"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DataFusionResult<DataType> {
        Ok(TEXT)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let [union] = arguments.args.as_slice() else { return internal_err!("a union is one value") };
        let union = union.to_array(arguments.number_rows)?;
        Ok(ColumnarValue::Array(Arc::new(texts(&union)?)))
    }
}

/// The values of a union as texts; null where the value is.
fn texts(union: &ArrayRef) -> Result<StringViewArray, ArrowError> {
    let union = union.as_union();
    let text = |row: usize| {
        let value = union.value(row);
        (!value.is_empty() && value.is_valid(0)).then(|| array_value_to_string(&value, 0)).transpose()
    };
    (0..union.len()).map(text).collect()
}
