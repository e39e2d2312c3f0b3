//! Arithmetic of integers and decimals that fails where its result does not fit.
//!
//! DataFusion's `+`, `-` and `*` on integers wrap around: 9223372036854775807 + 1 is a negative number, and the job
//! ends as if all were well. Those on decimals, and `/`, give numbers with more digits than the type of the result has,
//! where that type is the largest there is: writers then cut them off. This rule puts functions in their place, behind
//! the coercion of types, so that integers have one type. Their division, dates and floats check for themselves.

use std::fmt;

use arrow::array::ArrayRef;
use arrow::compute::kernels::numeric;
use arrow::datatypes::{
    DECIMAL32_MAX_PRECISION, DECIMAL64_MAX_PRECISION, DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType,
    Field, FieldRef,
};
use arrow::error::ArrowError;
use arrow::util::display::array_value_to_string;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result as DataFusionResult, internal_err};
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, LogicalPlan, Operator, ReturnFieldArgs, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::physical_expr_common::datum;
use millstream_core::values::fault;

use super::rewrite;

/// Puts checked functions in the place of operators on integers and decimals.
#[derive(Debug, Default)]
pub struct CheckedArithmetic;

impl AnalyzerRule for CheckedArithmetic {
    fn name(&self) -> &str {
        "checked_arithmetic"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> DataFusionResult<LogicalPlan> {
        rewrite::expressions(plan, checked_expr)
    }
}

fn checked_expr(expr: Expr, schema: &DFSchema) -> DataFusionResult<Transformed<Expr>> {
    let (operator, operands, result) = match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            let (of_left, of_right) = (left.get_type(schema)?, right.get_type(schema)?);
            let operator = Arithmetic::of(op);
            let integers = of_left.is_integer() && of_right.is_integer();
            let decimals = of_left.is_decimal() && of_right.is_decimal();
            let whole = Expr::BinaryExpr(BinaryExpr { left, op, right });
            let result = match operator {
                Some(Arithmetic::Divide) if integers => None,
                Some(_) if integers => Some(of_left),
                Some(_) if decimals => Some(whole.get_type(schema)?).filter(is_largest),
                _ => None,
            };
            match (operator, result, whole) {
                (Some(operator), Some(result), Expr::BinaryExpr(BinaryExpr { left, right, .. })) => {
                    (operator, vec![*left, *right], result)
                }
                (_, _, whole) => return Ok(Transformed::no(whole)),
            }
        }
        Expr::Negative(operand) if operand.get_type(schema)?.is_integer() => {
            let result = operand.get_type(schema)?;
            (Arithmetic::Negate, vec![*operand], result)
        }
        other => return Ok(Transformed::no(other)),
    };
    Ok(Transformed::yes(ScalarUDF::from(Checked::new(operator, result)).call(operands)))
}

/// Whether it is a decimal with all the digits that its kind can have. The type of a smaller result has room for
/// whatever comes of its operands.
fn is_largest(data_type: &DataType) -> bool {
    match data_type {
        DataType::Decimal32(digits, _) => *digits == DECIMAL32_MAX_PRECISION,
        DataType::Decimal64(digits, _) => *digits == DECIMAL64_MAX_PRECISION,
        DataType::Decimal128(digits, _) => *digits == DECIMAL128_MAX_PRECISION,
        DataType::Decimal256(digits, _) => *digits == DECIMAL256_MAX_PRECISION,
        _ => false,
    }
}

/// What is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Negate,
}

impl Arithmetic {
    fn of(operator: Operator) -> Option<Self> {
        match operator {
            Operator::Plus => Some(Arithmetic::Add),
            Operator::Minus => Some(Arithmetic::Subtract),
            Operator::Multiply => Some(Arithmetic::Multiply),
            Operator::Divide => Some(Arithmetic::Divide),
            _ => None,
        }
    }

    fn sign(self) -> &'static str {
        match self {
            Arithmetic::Add => "+",
            Arithmetic::Subtract | Arithmetic::Negate => "-",
            Arithmetic::Multiply => "*",
            Arithmetic::Divide => "/",
        }
    }
}

/// An operator on integers of one type, or on decimals, as a function.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Checked {
    arithmetic: Arithmetic,
    result: DataType,
    signature: Signature,
}

impl Checked {
    fn new(arithmetic: Arithmetic, result: DataType) -> Self {
        Checked {
            arithmetic,
            result,
            signature: Signature::any(2 - usize::from(arithmetic == Arithmetic::Negate), Volatility::Immutable),
        }
    }

    fn shown<T: fmt::Display>(&self, operands: impl IntoIterator<Item = T>) -> String {
        let sign = self.arithmetic.sign();
        let operands: Vec<String> = operands.into_iter().map(|operand| operand.to_string()).collect();
        match operands.as_slice() {
            [only] => format!("({sign} {only})"),
            several => several.join(&format!(" {sign} ")),
        }
    }
}

impl Checked {
    /// The result, if it has no more digits than its type. Integers have been checked by the kernel.
    fn fitting(
        &self,
        left: &ColumnarValue,
        right: &ColumnarValue,
        result: ColumnarValue,
    ) -> DataFusionResult<ColumnarValue> {
        if !self.result.is_decimal() {
            return Ok(result);
        }
        let rows = match &result {
            ColumnarValue::Array(results) => results.len(),
            ColumnarValue::Scalar(_) => 1,
        };
        let results: ArrayRef = result.to_array(rows)?;
        if fault(&results, 0..rows).is_none() {
            return Ok(result);
        }
        let row = (0..rows).find(|row| fault(&results, *row..*row + 1).is_some()).unwrap_or_default();
        let operand = |operand: &ColumnarValue| -> DataFusionResult<String> {
            Ok(array_value_to_string(&operand.to_array(rows)?, row)?)
        };
        let text = self.shown([operand(left)?, operand(right)?]);
        Err(ArrowError::ArithmeticOverflow(format!("Overflow happened on: {text}")).into())
    }
}

impl ScalarUDFImpl for Checked {
    fn name(&self) -> &str {
        match self.arithmetic {
            Arithmetic::Add => "checked_add",
            Arithmetic::Subtract => "checked_subtract",
            Arithmetic::Multiply => "checked_multiply",
            Arithmetic::Divide => "checked_divide",
            Arithmetic::Negate => "checked_negate",
        }
    }

    fn display_name(&self, operands: &[Expr]) -> DataFusionResult<String> {
        Ok(self.shown(operands))
    }

    fn schema_name(&self, operands: &[Expr]) -> DataFusionResult<String> {
        Ok(self.shown(operands.iter().map(Expr::schema_name)))
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DataFusionResult<DataType> {
        Ok(self.result.clone())
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> DataFusionResult<FieldRef> {
        let nullable = arguments.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Field::new(self.name(), self.result.clone(), nullable).into())
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        match (self.arithmetic, arguments.args.as_slice()) {
            (Arithmetic::Negate, [operand]) => {
                let operand = operand.to_array(arguments.number_rows)?;
                Ok(ColumnarValue::Array(numeric::neg(&operand)?))
            }
            (Arithmetic::Add, [left, right]) => self.fitting(left, right, datum::apply(left, right, numeric::add)?),
            (Arithmetic::Subtract, [left, right]) => {
                self.fitting(left, right, datum::apply(left, right, numeric::sub)?)
            }
            (Arithmetic::Multiply, [left, right]) => {
                self.fitting(left, right, datum::apply(left, right, numeric::mul)?)
            }
            (Arithmetic::Divide, [left, right]) => self.fitting(left, right, datum::apply(left, right, numeric::div)?),
            _ => internal_err!("`{}` has {} operands", self.name(), arguments.args.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::util::pretty::pretty_format_batches;
    use datafusion::prelude::SessionContext;

    use super::super::checked;

    async fn run(sql: &str) -> Result<String, String> {
        let context = checked(SessionContext::new());
        let frame = context.sql(sql).await.map_err(|error| error.strip_backtrace())?;
        let batches = frame.collect().await.map_err(|error| error.strip_backtrace())?;
        pretty_format_batches(&batches).map(|table| table.to_string()).map_err(|error| error.to_string())
    }

    const VALUES: &str =
        "FROM (VALUES (9223372036854775807, CAST(127 AS TINYINT), CAST(0 AS BIGINT UNSIGNED))) v(a, b, c)";

    #[tokio::test]
    async fn what_does_not_fit_is_an_error_and_not_a_wrong_number() {
        for wrong in [
            "a + 1",
            "1 + a",
            "a * 2",
            "-a - 2",
            "a + a",
            "b * b * 2000",
            "c - CAST(1 AS BIGINT UNSIGNED)",
            "-(-a - 1)",
            "9223372036854775807 + 1",
            "CASE WHEN a > 0 THEN a + 1 ELSE 0 END",
            "abs(a * 3)",
        ] {
            let message = run(&format!("SELECT {wrong} AS x {VALUES}")).await.expect_err(wrong);
            assert!(message.contains("Overflow happened on"), "{wrong}: {message}");
        }
    }

    const DECIMALS: &str = "FROM (VALUES (CAST('99999999999999999999999999999999999999' AS DECIMAL(38, 0)), \
         CAST('0.00000000000000000001' AS DECIMAL(38, 20)), CAST('1.5' AS DECIMAL(5, 2)))) v(a, b, c)";

    #[tokio::test]
    async fn a_decimal_result_has_no_more_digits_than_its_type() {
        for wrong in ["a + 1", "1 + a", "0 - a - a", "a * c", "a / b", "a + a", "CASE WHEN c > 1 THEN a + c ELSE c END"]
        {
            let message = run(&format!("SELECT {wrong} AS x {DECIMALS}")).await.expect_err(wrong);
            assert!(message.contains("Overflow happened on"), "{wrong}: {message}");
        }
        let fitting = "a - 1 AS d, c + c AS s, c * c AS p, c / 2 AS q, a + NULL AS n, a % 7 AS m";
        let table = run(&format!("SELECT {fitting} {DECIMALS}")).await.expect("all of them fit");
        for expected in ["99999999999999999999999999999999999998 ", "| 3.00 ", "| 2.2500 ", "| 0.75"] {
            assert!(table.contains(expected), "{expected}:\n{table}");
        }
        let names = run(&format!("SELECT a - 1, a * 0 {DECIMALS}")).await.expect("both fit");
        assert!(names.contains("v.a - Int64(1)"), "{names}");
    }

    #[tokio::test]
    async fn what_fits_is_computed_as_before_under_its_own_name() {
        let table = run(&format!("SELECT a - 1, b - b, -b, a * NULL, a - (SELECT 9223372036854775807) {VALUES}")).await;
        let table = table.expect("all of them fit");
        for expected in ["9223372036854775806", "| 0 ", "-127", "v.a - Int64(1)", "v.b - v.b", "(- v.b)"] {
            assert!(table.contains(expected), "{expected}:\n{table}");
        }
        let groups = run("SELECT x + 1 AS y, count(*) FROM (VALUES (1), (1), (2)) v(x) GROUP BY x + 1 ORDER BY x + 1");
        assert!(groups.await.expect("grouped by a sum").contains("| 2 | 2 "));
        let recursion =
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5) SELECT max(i) FROM n";
        assert!(run(recursion).await.expect("recursion").contains("| 5 "));
    }
}
