//! A SQL function: `digit_sum(123)` is 6.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array};
use arrow::datatypes::{DataType, Int64Type};
use millstream::sql::{ColumnarValue, ScalarUDF, Volatility, create_udf};

/// The function `digit_sum`, of `int64`.
pub fn digit_sum() -> ScalarUDF {
    let digits = |arguments: &[ColumnarValue]| {
        let arrays = ColumnarValue::values_to_arrays(arguments)?;
        let sums: Int64Array = arrays[0].as_primitive::<Int64Type>().unary(digit_sum_of);
        Ok(ColumnarValue::Array(Arc::new(sums) as ArrayRef))
    };
    create_udf("digit_sum", vec![DataType::Int64], DataType::Int64, Volatility::Immutable, Arc::new(digits))
}

fn digit_sum_of(number: i64) -> i64 {
    let mut rest = number.unsigned_abs();
    let mut sum = 0;
    while rest > 0 {
        sum += (rest % 10) as i64;
        rest /= 10;
    }
    sum
}
