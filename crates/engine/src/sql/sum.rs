//! `sum` that fails where its result does not fit.
//!
//! DataFusion's own wraps around. Here it runs in a wider type, and the result is narrowed at the end: so it depends
//! on neither the order of the rows nor on how they were split among the cores, which a check of each addition would.
//!
//! | of | summed as |
//! |---|---|
//! | int64, uint64 | decimal(38, 0): 2^63 values cannot exceed it |
//! | decimal(p, s), p ≥ 28 | decimal(76, s) |
//! | anything else | itself: decimals gain ten digits, floats become infinite |

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, PrimitiveArray};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType, Decimal128Type, Field, FieldRef, Int64Type,
    UInt64Type,
};
use arrow::util::display::array_value_to_string;
use datafusion::common::{Result as DataFusionResult, ScalarValue, exec_err};
use datafusion::functions_aggregate::sum::sum_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, ReversedUDAF, SetMonotonicity, Signature,
};

/// `sum`, checked.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct CheckedSum {
    unchecked: Arc<AggregateUDF>,
}

impl Default for CheckedSum {
    fn default() -> Self {
        CheckedSum { unchecked: sum_udaf() }
    }
}

/// The type in which sums that come out as `data_type` are formed.
fn wide(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::Int64 | DataType::UInt64 => Some(DataType::Decimal128(DECIMAL128_MAX_PRECISION, 0)),
        // The sum of less than 28 digits has room for ten more.
        DataType::Decimal128(digits, scale) if *digits >= DECIMAL128_MAX_PRECISION => {
            Some(DataType::Decimal256(DECIMAL256_MAX_PRECISION, *scale))
        }
        _ => None,
    }
}

/// `values` as `data_type`; an error if one of them does not fit.
fn converted(values: &ArrayRef, data_type: &DataType) -> DataFusionResult<ArrayRef> {
    if values.data_type() == data_type {
        return Ok(Arc::clone(values));
    }
    if *data_type == DataType::Decimal128(DECIMAL128_MAX_PRECISION, 0) {
        // Whole numbers fit, so that none needs to be looked at.
        let whole: Option<PrimitiveArray<Decimal128Type>> = match values.data_type() {
            DataType::Int64 => Some(values.as_primitive::<Int64Type>().unary(i128::from)),
            DataType::UInt64 => Some(values.as_primitive::<UInt64Type>().unary(i128::from)),
            _ => None,
        };
        if let Some(whole) = whole {
            return Ok(Arc::new(whole.with_data_type(data_type.clone())));
        }
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    Ok(cast_with_options(values, data_type, &options)?)
}

/// The wide `sums` as `data_type`. The error is that of an addition that does not fit.
fn narrowed(sums: &ArrayRef, data_type: &DataType) -> DataFusionResult<ArrayRef> {
    converted(sums, data_type).or_else(|error| {
        let fitting = cast_with_options(sums, data_type, &CastOptions::default())?;
        match (0..sums.len()).find(|&row| fitting.is_null(row) && !sums.is_null(row)) {
            Some(row) => exec_err!("Overflow happened on: sum = {}", array_value_to_string(sums, row)?),
            None => Err(error),
        }
    })
}

/// `arguments` with another type of the result: the accumulators of DataFusion look at nothing else.
fn with_result<'a>(arguments: &AccumulatorArgs<'a>, data_type: &DataType) -> AccumulatorArgs<'a> {
    let field = arguments.return_field.as_ref().clone().with_data_type(data_type.clone());
    AccumulatorArgs { return_field: Arc::new(field), ..arguments.clone() }
}

impl AggregateUDFImpl for CheckedSum {
    fn name(&self) -> &str {
        self.unchecked.name()
    }

    fn signature(&self) -> &Signature {
        self.unchecked.signature()
    }

    fn return_type(&self, arguments: &[DataType]) -> DataFusionResult<DataType> {
        self.unchecked.return_type(arguments)
    }

    fn state_fields(&self, arguments: StateFieldsArgs) -> DataFusionResult<Vec<FieldRef>> {
        let wide = wide(arguments.return_field.data_type());
        let field = match wide {
            Some(wide) => Arc::new(Field::new(arguments.return_field.name(), wide, true)),
            None => Arc::clone(&arguments.return_field),
        };
        self.unchecked.inner().state_fields(StateFieldsArgs { return_field: field, ..arguments })
    }

    fn accumulator(&self, arguments: AccumulatorArgs) -> DataFusionResult<Box<dyn Accumulator>> {
        let result = arguments.return_field.data_type().clone();
        let Some(wide) = wide(&result) else { return self.unchecked.accumulator(arguments) };
        let sums = self.unchecked.accumulator(with_result(&arguments, &wide))?;
        Ok(Box::new(Wide { sums, wide, result }))
    }

    fn create_sliding_accumulator(&self, arguments: AccumulatorArgs) -> DataFusionResult<Box<dyn Accumulator>> {
        let result = arguments.return_field.data_type().clone();
        let inner = self.unchecked.inner();
        match wide(&result) {
            // Of distinct values in a moving window only those of int64 can be summed, and only in their own type.
            Some(wide) if !arguments.is_distinct => {
                let sums = inner.create_sliding_accumulator(with_result(&arguments, &wide))?;
                Ok(Box::new(Wide { sums, wide, result }))
            }
            _ => inner.create_sliding_accumulator(arguments),
        }
    }

    fn groups_accumulator_supported(&self, arguments: AccumulatorArgs) -> bool {
        self.unchecked.groups_accumulator_supported(arguments)
    }

    fn create_groups_accumulator(&self, arguments: AccumulatorArgs) -> DataFusionResult<Box<dyn GroupsAccumulator>> {
        let result = arguments.return_field.data_type().clone();
        let Some(wide) = wide(&result) else { return self.unchecked.create_groups_accumulator(arguments) };
        let sums = self.unchecked.create_groups_accumulator(with_result(&arguments, &wide))?;
        Ok(Box::new(WideGroups { sums, wide, result }))
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.unchecked.inner().set_monotonicity(data_type)
    }
}

/// One sum, formed in a wider type.
#[derive(Debug)]
struct Wide {
    sums: Box<dyn Accumulator>,
    wide: DataType,
    result: DataType,
}

impl Wide {
    fn widened(&self, values: &[ArrayRef]) -> DataFusionResult<Vec<ArrayRef>> {
        values.iter().map(|values| converted(values, &self.wide)).collect()
    }
}

impl Accumulator for Wide {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DataFusionResult<()> {
        let widened = self.widened(values)?;
        self.sums.update_batch(&widened)
    }

    fn evaluate(&mut self) -> DataFusionResult<ScalarValue> {
        let sum = self.sums.evaluate()?.to_array()?;
        ScalarValue::try_from_array(&narrowed(&sum, &self.result)?, 0)
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.sums.size()
    }

    fn state(&mut self) -> DataFusionResult<Vec<ScalarValue>> {
        self.sums.state()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> DataFusionResult<()> {
        self.sums.merge_batch(states)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> DataFusionResult<()> {
        let widened = self.widened(values)?;
        self.sums.retract_batch(&widened)
    }

    fn supports_retract_batch(&self) -> bool {
        self.sums.supports_retract_batch()
    }
}

/// A sum for each group, formed in a wider type.
struct WideGroups {
    sums: Box<dyn GroupsAccumulator>,
    wide: DataType,
    result: DataType,
}

impl GroupsAccumulator for WideGroups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        total: usize,
    ) -> DataFusionResult<()> {
        let widened = converted(&values[0], &self.wide)?;
        self.sums.update_batch(&[widened], groups, filter, total)
    }

    fn evaluate(&mut self, emit: EmitTo) -> DataFusionResult<ArrayRef> {
        narrowed(&self.sums.evaluate(emit)?, &self.result)
    }

    fn state(&mut self, emit: EmitTo) -> DataFusionResult<Vec<ArrayRef>> {
        self.sums.state(emit)
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], total: usize) -> DataFusionResult<()> {
        self.sums.merge_batch(states, groups, total)
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> DataFusionResult<Vec<ArrayRef>> {
        self.sums.convert_to_state(&[converted(&values[0], &self.wide)?], filter)
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.sums.size()
    }
}

#[cfg(test)]
mod tests {
    use arrow::util::pretty::pretty_format_batches;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::super::checked;

    async fn run(sql: &str) -> Result<String, String> {
        let context = checked(SessionContext::new_with_config(SessionConfig::new().with_target_partitions(3)));
        let frame = context.sql(sql).await.map_err(|error| error.strip_backtrace())?;
        let batches = frame.collect().await.map_err(|error| error.strip_backtrace())?;
        pretty_format_batches(&batches).map(|table| table.to_string()).map_err(|error| error.to_string())
    }

    const LARGE: &str = "(VALUES ('a', 9223372036854775807), ('a', 9223372036854775807), ('b', 5)) v(k, n)";

    #[tokio::test]
    async fn a_sum_that_does_not_fit_is_an_error() {
        let nines = "9".repeat(38);
        for query in [
            format!("SELECT sum(n) FROM {LARGE}"),
            format!("SELECT k, sum(n) FROM {LARGE} GROUP BY k"),
            format!("SELECT sum(n) OVER (ORDER BY n ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM {LARGE}"),
            "SELECT sum(DISTINCT n) FROM (VALUES (9223372036854775807), (9223372036854775806)) v(n)".to_owned(),
            format!("SELECT sum(CAST(n AS DECIMAL(38, 0))) FROM (VALUES ('{nines}'), ('{nines}')) v(n)"),
        ] {
            match run(&query).await {
                Err(message) => assert!(message.contains("Overflow happened on: sum = "), "{query}: {message}"),
                Ok(table) => panic!("{query}\n{table}"),
            }
        }
    }

    #[tokio::test]
    async fn only_the_result_must_fit() {
        let query = "SELECT k, sum(n), sum(DISTINCT n), sum(n) FILTER (WHERE n < 0) FROM (VALUES ('a', \
                     9223372036854775807), \
                     ('a', 9223372036854775807), ('a', -9223372036854775807), ('b', NULL), ('c', 7)) v(k, n) GROUP BY \
                     k ORDER BY k";
        let table = run(query).await.expect("all sums fit");
        assert!(table.contains("| a | 9223372036854775807 | 0 "), "{table}");
        assert!(table.contains("| c | 7 "), "{table}");
        let types = run("SELECT arrow_typeof(sum(n)) AS a, sum(x) AS c FROM (VALUES (1, 1.5), (2, 2.5)) v(n, x)");
        assert!(types.await.expect("sums").contains("| Int64 "), "the types of the results stay");
        let moving = "SELECT sum(n) OVER (ORDER BY n ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS s FROM (VALUES (1), \
                      (2), (4)) v(n)";
        let moving = run(moving).await.expect("a moving sum");
        assert!(["| 1 ", "| 3 ", "| 6 "].iter().all(|sum| moving.contains(sum)), "{moving}");
    }
}
